//! Predicted against measured, in words and as JSON.

use super::seconds;
use crate::accuracy::score::{Outcome, Summary};
use crate::accuracy::stats::Errors;
use crate::predict::TableScore;
use serde_json::{json, Map, Value};
use std::collections::BTreeMap;
use std::fmt::Write;

/// The object of `validate --json`.
pub fn json(outcomes: &[Outcome], summaries: &[(String, Summary)]) -> Value {
    let summary: Map<String, Value> = summaries.iter().map(|(tag, s)| (tag.clone(), summary(s))).collect();
    json!({"rows": outcomes.iter().map(row).collect::<Vec<_>>(), "summary": summary})
}

fn row(o: &Outcome) -> Value {
    json!({
        "id": o.id, "tag": o.tag, "status": status(o), "stack": o.stack,
        "measured": {"step_seconds": o.measured_step, "peak_memory_gib": o.measured_memory},
        "predicted": {"step_seconds": o.predicted_step, "peak_memory_gib": o.predicted_memory},
        "low": o.low, "high": o.high, "fits": o.fits,
        "error": {"step": o.step_error, "memory": o.memory_error},
        "marks": o.marks
    })
}

fn status(o: &Outcome) -> String {
    o.skipped.as_ref().map_or("ok".into(), |why| format!("skipped: {why}"))
}

fn summary(s: &Summary) -> Value {
    let of = |f: fn(&Errors) -> f64| s.step.as_ref().map(f);
    json!({
        "rows": s.rows, "step_mape": of(|e| e.mape), "step_median_ape": of(|e| e.median),
        "step_p90_ape": of(|e| e.p90), "step_bias": of(|e| e.bias),
        "in_range": s.in_range, "half_width": s.half_width,
        "memory_rows": s.memory_rows, "memory_mape": s.memory_mape,
        "regret_groups": s.regret.groups, "regret_mean": s.regret.mean, "regret_max": s.regret.max,
        "regret_random": s.regret.random
    })
}

/// The table that a person reads: rows that were predicted, reasons of those that were not, summaries.
pub fn text(outcomes: &[Outcome], summaries: &[(String, Summary)]) -> String {
    let mut out = String::new();
    let done: Vec<&Outcome> = outcomes.iter().filter(|o| o.skipped.is_none()).collect();
    if !done.is_empty() {
        let _ =
            writeln!(out, "{:<22} {:<26} {:>10} {:>10} {:>8}  notes", "row", "stack", "measured", "predicted", "error");
    }
    for o in &done {
        let time = |s: Option<f64>| s.map_or("–".into(), seconds);
        let error = o.step_error.map_or("–".into(), |e| format!("{:+.1} %", 100.0 * e));
        let line = format!(
            "{:<22} {:<26} {:>10} {:>10} {:>8}  {}",
            o.id,
            o.stack,
            time(o.measured_step),
            time(o.predicted_step),
            error,
            o.marks.join("; ")
        );
        let _ = writeln!(out, "{}", line.trim_end());
    }
    reasons(&mut out, outcomes);
    table(&mut out, summaries);
    out
}

/// How many rows were skipped, and why, most frequent first.
fn reasons(out: &mut String, outcomes: &[Outcome]) {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for why in outcomes.iter().filter_map(|o| o.skipped.as_deref()) {
        *counts.entry(why).or_default() += 1;
    }
    let total: usize = counts.values().sum();
    if total == 0 {
        return;
    }
    let mut sorted: Vec<_> = counts.into_iter().collect();
    sorted.sort_by(|a, b| b.1.cmp(&a.1).then(a.0.cmp(b.0)));
    let _ = writeln!(out, "\nskipped: {total} of {} rows", outcomes.len());
    for (why, n) in sorted {
        let _ = writeln!(out, "  {n:>5}  {why}");
    }
}

fn table(out: &mut String, summaries: &[(String, Summary)]) {
    let _ = writeln!(
        out,
        "\n{:<20} {:>5} {:>8} {:>8} {:>8} {:>8} {:>8}  {:>6} {:>8} {:>8} {:>8}  {:>6} {:>8}",
        "source",
        "rows",
        "mean",
        "median",
        "p90",
        "bias",
        "in range",
        "groups",
        "regret",
        "max",
        "random",
        "memory",
        "mean"
    );
    let percent = |x: Option<f64>| x.map_or("–".into(), |x| format!("{:.1} %", 100.0 * x));
    for (tag, s) in summaries.iter().filter(|(_, s)| s.rows > 0 || s.memory_rows > 0) {
        let of = |f: fn(&Errors) -> f64| percent(s.step.as_ref().map(f));
        let bias = s.step.as_ref().map_or("–".into(), |e| format!("{:+.1} %", 100.0 * e.bias));
        let r = &s.regret;
        let _ = writeln!(
            out,
            "{tag:<20} {:>5} {:>8} {:>8} {:>8} {bias:>8} {:>8}  {:>6} {:>8} {:>8} {:>8}  {:>6} {:>8}",
            s.rows,
            of(|e| e.mape),
            of(|e| e.median),
            of(|e| e.p90),
            percent(s.in_range),
            r.groups,
            percent(r.mean),
            percent(r.max),
            percent(r.random),
            s.memory_rows,
            percent(s.memory_mape)
        );
    }
    if let Some((_, all)) = summaries.iter().find(|(tag, _)| tag == "all") {
        for group in &all.regret.close {
            let _ = writeln!(out, "not counted in max, its best two lie closer than repeats do: {group}");
        }
    }
}

/// The object of `validate --kernels --json`.
pub fn kernels_json(s: &TableScore) -> Value {
    json!({
        "rows": s.rows, "median_ape": s.median_ape, "p90_ape": s.p90_ape, "bias": s.bias,
        "extrapolated": s.extrapolated
    })
}

/// The line of `validate --kernels`.
pub fn kernels_text(s: &TableScore) -> String {
    format!(
        "{} rows: median error {:.1} %, p90 {:.1} %, bias {:+.1} %; {} extrapolated\n",
        s.rows,
        100.0 * s.median_ape,
        100.0 * s.p90_ape,
        100.0 * s.bias,
        s.extrapolated
    )
}

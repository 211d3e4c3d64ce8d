//! What a search did and found, in words and as JSON.

use super::prediction::{self, Planned};
use super::stages::peak_gib;
use super::{grouped, seconds};
use crate::planfile;
use crate::predict::fix::{lines, words};
use serde_json::{json, Map, Value};
use std::fmt::Write;

/// Bytes of a GiB.
const GIB: f64 = (1u64 << 30) as f64;

/// What a search did.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Searched {
    /// Layouts of the space on all devices; those on fewer where none uses all.
    pub candidates: u64,
    /// Layouts on all devices before orders of axes.
    pub before_orders: u64,
    /// Layouts that leave devices idle, before orders of axes.
    pub idle: u64,
    /// Lower bounds of single plans.
    pub evaluated: u64,
    /// Simulations.
    pub simulated: u64,
    /// Seconds that it took.
    pub seconds: f64,
    /// Whether no plan was left out that has a lower bound below the best time.
    pub optimal: bool,
    /// Seconds of a step below which no plan of the space is; `None` where one layout was asked for.
    pub lower_bound: Option<f64>,
}

impl Searched {
    /// One layout that was given: nothing says that it is the best of a space.
    pub fn one_layout(seconds: f64) -> Searched {
        Searched { candidates: 1, before_orders: 1, evaluated: 1, simulated: 1, seconds, ..Searched::default() }
    }
}

/// The object `search` of `plan --json`.
pub fn searched_json(s: &Searched) -> Value {
    json!({
        "candidates": s.candidates, "evaluated": s.evaluated, "simulated": s.simulated, "seconds": s.seconds,
        "optimal": s.optimal, "lower_bound_step_seconds": s.lower_bound,
        "candidates_before_layouts": s.before_orders, "candidates_idle": s.idle
    })
}

/// A plan with its prediction, as `alternatives` lists them.
pub fn planned_json(p: &Planned) -> Value {
    json!({"plan": planfile::value(p.plan), "prediction": prediction::json(p)})
}

/// The object of `plan --json`.
pub fn json(best: &Planned, alternatives: &[Planned], searched: &Searched) -> Map<String, Value> {
    let all: Vec<Value> = alternatives.iter().map(planned_json).collect();
    let mut out = Map::new();
    out.insert("plan".into(), planfile::value(best.plan));
    out.insert("prediction".into(), prediction::json(best));
    out.insert("alternatives".into(), all.into());
    out.insert("search".into(), searched_json(searched));
    out
}

/// What the search did, and what that proves. Empty where one layout was predicted.
pub fn text(best: &Planned, searched: &Searched) -> String {
    let Some(bound) = searched.lower_bound else { return String::new() };
    let n = |n: u64| grouped(n as f64);
    let (plan, mut out) = (best.plan, String::new());
    let all = match (searched.before_orders, searched.candidates) {
        (0, _) => "no candidate".to_string(),
        (before, all) if before == all => format!("{} candidates", n(all)),
        (before, all) => format!("{} candidates ({} before orders of axes)", n(all), n(before)),
    };
    let idle = match searched.idle {
        0 => String::new(),
        some => format!(" and {} on fewer", n(some)),
    };
    let _ = writeln!(
        out,
        "search: {all} on {} devices{idle}; {} bounded one by one, {} simulated, {}",
        n(plan.devices),
        n(searched.evaluated),
        n(searched.simulated),
        seconds(searched.seconds)
    );
    let step = seconds(best.prediction.step_seconds);
    let _ = match searched.optimal {
        true => writeln!(
            out,
            "optimal: of these plans every one whose lower bound is below {step} was simulated, and none was faster (the \
             least of the bounds is {})",
            seconds(bound)
        ),
        false => writeln!(out, "not proved optimal: the search did not end; no plan takes less than {}", seconds(bound)),
    };
    out
}

/// What came close: decisions in which each differs, how much slower, its memory.
pub fn alternatives(best: &Planned, others: &[Planned]) -> String {
    if others.is_empty() {
        return String::new();
    }
    let mut out = "the next best plans, by what differs from the best:\n".to_string();
    for other in others {
        let slower = 100.0 * (other.prediction.step_seconds / best.prediction.step_seconds - 1.0);
        let _ = writeln!(
            out,
            "  {:>10} {slower:>+7.2} % {:>12}  {}",
            seconds(other.prediction.step_seconds),
            memory(other),
            differing(best, other)
        );
    }
    out
}

/// The decisions of another plan that are not those of the best.
fn differing(best: &Planned, other: &Planned) -> String {
    let pairs = lines(&best.plan.layout).into_iter().zip(lines(&other.plan.layout));
    let mut out: Vec<String> =
        pairs.filter(|(a, b)| a != b).map(|(_, (key, value))| format!("{key}={value}")).collect();
    if best.plan.layers_per_stage != other.plan.layers_per_stage {
        out.push(format!("layers {}", sum_of(&other.plan.layers_per_stage)));
    }
    out.join(",")
}

/// Numbers joined by plus signs, equal neighbours together: `7+14×8+7`.
pub fn sum_of(numbers: &[u64]) -> String {
    let groups = numbers.chunk_by(|a, b| a == b);
    let word = |g: &[u64]| if g.len() > 1 { format!("{}×{}", g.len(), g[0]) } else { g[0].to_string() };
    groups.map(word).collect::<Vec<_>>().join("+")
}

/// Memory of the fullest device.
pub(super) fn memory(p: &Planned) -> String {
    peak_gib(p.prediction).map_or("–".to_string(), |gib| format!("{gib:.2} GiB"))
}

/// A plan under less memory: its share of the room, and the plan; `None` where nothing fits.
pub type Point<'a> = (f64, Option<Planned<'a>>);

/// Time against memory: the plans that are fastest under less and less of it.
pub fn pareto(points: &[Point]) -> String {
    let mut out =
        "time against memory, the fastest plan within a share of it, by what differs from the best:\n".to_string();
    let best = points.first().and_then(|(_, plan)| plan.as_ref());
    for (share, plan) in points {
        let share = format!("{:.0} %", 100.0 * share);
        let _ = match plan {
            Some(p) => {
                let step = seconds(p.prediction.step_seconds);
                let words = best.map_or_else(|| words(&p.plan.layout), |b| differing(b, p));
                let words = if words.is_empty() { "the plan above" } else { &words };
                writeln!(out, "  {share:>6} {step:>10} {:>12}  {words}", memory(p))
            }
            None => writeln!(out, "  {share:>6} nothing fits"),
        };
    }
    out
}

/// The list `pareto` of `plan --json`.
pub fn pareto_json(points: &[Point]) -> Value {
    let one = |(share, plan): &Point| {
        let mut out = json!({"memory_share": share});
        if let (Some(map), Some(p)) = (out.as_object_mut(), plan) {
            map.insert("plan".into(), planfile::value(p.plan));
            map.insert("prediction".into(), prediction::json(p));
        }
        out
    };
    points.iter().map(one).collect()
}

/// The object of `plan --json` where nothing fits. `smallest` is in bytes, without the margin.
pub fn infeasible_json(reason: &str, smallest: f64, fewest_devices: Option<u64>) -> Value {
    json!({"reason": reason, "smallest_memory_gib": smallest / GIB, "fewest_devices": fewest_devices})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_neighbours_are_counted() {
        assert_eq!(sum_of(&[7, 8, 8, 8, 7]), "7+3×8+7");
        assert_eq!(sum_of(&[32]), "32");
    }

    #[test]
    fn one_layout_proves_nothing() {
        let v = searched_json(&Searched::one_layout(0.5));
        assert_eq!((&v["candidates"], &v["optimal"]), (&1.into(), &false.into()));
        assert_eq!(v["lower_bound_step_seconds"], Value::Null);
        assert_eq!(infeasible_json("too large", 2.0 * GIB, None)["smallest_memory_gib"], 2.0);
    }
}

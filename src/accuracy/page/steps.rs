//! Errors of step times: by source, by kind, by group, row by row, and against releases.

use super::{cell, percent, signed};
use crate::accuracy::assumed::AssumedLine;
use crate::accuracy::evaluate::{Report, ROOFLINE};
use crate::accuracy::lines::{Line, DISAGREES};
use crate::accuracy::stats::Errors;
use crate::report::seconds;
use std::fmt::Write;

/// What the columns mean.
const LEGEND: &str = "\
*Left out* predicts a group by constants found on the framework's other groups, so it is the error to expect of a \
model or machine that nobody has measured. *In sample* finds the constants on all groups, *shipped* takes those in \
the product. *Roofline* is executed FLOPs (recomputation included) over a fixed share of the peak rate of all \
devices, without communication: what a predictor has to beat. *Floor* is how far repeats of one configuration lie \
from their mean: software releases alone move a row by that much. *In range* is the \
share of measured times inside the range that the shipped prediction states. In-sample and shipped figures are \
means; a dash is nothing to tell.";

/// All tables of step times but the one by group.
pub(super) fn steps(out: &mut String, report: &Report) {
    let _ = writeln!(out, "## Steps, by source\n");
    let _ = writeln!(out, "{} of {} rows are evaluated. {LEGEND}\n", report.evaluated, report.rows);
    errors_table(out, "source", &report.tags);
    if !report.parted.is_empty() {
        out.push_str("Sources whose rows are of two kinds:\n\n");
        errors_table(out, "source and kind", &report.parted);
    }
    singles(out, report);
    assumed(out, &report.assumed);
    releases(out, report);
}

/// The table by group.
pub(super) fn groups(out: &mut String, report: &Report) {
    out.push_str(
        "## By group\n\nA group is what is left out together: framework · hidden size/heads · accelerator.\n\n",
    );
    errors_table(out, "group", &report.groups);
}

fn errors_table(out: &mut String, what: &str, lines: &[Line]) {
    if lines.is_empty() {
        out.push_str("No row is evaluated.\n\n");
        return;
    }
    let _ = writeln!(
        out,
        "| {what} | rows | votes | groups | left out: mean | median | p90 | bias | in sample | shipped | in range | roofline at {ROOFLINE} | its bias | floor |"
    );
    out.push_str("|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|\n");
    for l in lines {
        let of = |e: &Option<Errors>, f: fn(&Errors) -> String| e.as_ref().map_or("–".to_string(), f);
        let mean = |e: &Option<Errors>| of(e, |e| percent(e.mape));
        let cells = [
            l.rows.to_string(),
            format!("{:.0}", l.votes),
            l.groups.to_string(),
            mean(&l.left_out),
            of(&l.left_out, |e| percent(e.median)),
            of(&l.left_out, |e| percent(e.p90)),
            of(&l.left_out, |e| signed(e.bias)),
            mean(&l.in_sample),
            mean(&l.shipped),
            l.covered.map_or("–".to_string(), percent),
            mean(&l.roofline),
            of(&l.roofline, |e| signed(e.bias)),
            l.floor.map_or("–".to_string(), percent),
        ];
        let _ = writeln!(out, "| {} | {} |", cell(&l.name), cells.join(" | "));
    }
    out.push('\n');
}

fn singles(out: &mut String, report: &Report) {
    if report.singles.is_empty() {
        return;
    }
    out.push_str("Row by row:\n\n| row | measured | left out | shipped |\n|---|---:|---:|---:|\n");
    for r in &report.singles {
        let (measured, left, shipped) = (seconds(r.measured), signed(r.left_out), signed(r.shipped));
        let _ = writeln!(out, "| {} | {measured} | {left} | {shipped} |", cell(&r.id));
    }
    out.push('\n');
}

/// Rows with what their source does not state.
fn assumed(out: &mut String, lines: &[AssumedLine]) {
    if lines.is_empty() {
        return;
    }
    out.push_str(
        "Llama 3's table tells an interleaved schedule and not how many chunks a pipeline rank has. Its rows are \
         not evaluated; they are predicted here by the shipped constants with 4 chunks and with 8, our inference \
         (126 layers on 16·8 chunks, one each). MFU is told in both conventions, as the paper's is not stated.\n\n\
         | row | chunks | MFU printed | predicted, attention causal | with the whole square |\n|---|---:|---:|---:|---:|\n",
    );
    for l in lines {
        let printed = l.measured.map_or("–".to_string(), percent);
        let _ = match &l.predicted {
            Ok((causal, full)) => writeln!(
                out,
                "| {} | {} | {printed} | {} | {} |",
                cell(&l.id),
                l.chunks,
                percent(*causal),
                percent(*full)
            ),
            Err(why) => {
                writeln!(out, "| {} | {} | {printed} | not predicted: {} | – |", cell(&l.id), l.chunks, cell(why))
            }
        };
    }
    out.push('\n');
}

/// A source against the median of its own releases.
fn releases(out: &mut String, report: &Report) {
    let (Some(errors), disagree) = (&report.releases.0, &report.releases.1) else { return };
    let _ = writeln!(
        out,
        "mbridge against the median of each configuration over its releases, left out: mean {}, median {}, p90 {}, \
         bias {}.\n",
        percent(errors.mape),
        percent(errors.median),
        percent(errors.p90),
        signed(errors.bias)
    );
    if disagree.is_empty() {
        return;
    }
    let _ = writeln!(
        out,
        "Source disagrees: rows more than {} from that median.\n\n| row | measured | median | off | configuration |\n|---|---:|---:|---:|---|",
        percent(DISAGREES)
    );
    for d in disagree {
        let off = signed(d.measured / d.median - 1.0);
        let (measured, median) = (seconds(d.measured), seconds(d.median));
        let _ = writeln!(out, "| {} | {measured} | {median} | {off} | {} |", cell(&d.id), cell(&d.configuration));
    }
    out.push('\n');
}

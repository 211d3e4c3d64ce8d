//! How the stated ranges hold what was measured.

use super::{cell, percent};
use crate::accuracy::evaluate::Report;
use crate::accuracy::lines::Held;
use crate::accuracy::stats::Errors;
use crate::predict::range::{HELD, NEAREST};
use std::fmt::Write;

/// Coverage by source and kind.
pub(super) fn ranges(out: &mut String, report: &Report) {
    if report.tags.is_empty() {
        return;
    }
    let _ = writeln!(
        out,
        "## Ranges\n\nA prediction states a range that is to hold {} of measurements. It is made of the errors of the \
         {NEAREST} configurations most like it (framework, experts, narrow formats, devices, and what the step's time \
         is made of), nearer ones counting more. *Group unseen*: a row's range is made without its group, of \
         left-out errors, round the left-out prediction: what to expect of a model or machine that nobody has \
         measured. *Configuration unseen*: without the row and its repeats, of the errors of constants found on all \
         runs, round their prediction: another layout of a known model. *Shipped*: round the product's own \
         prediction. Half-widths are medians, here over the median error of the same predictions.\n",
        percent(HELD)
    );
    out.push_str("| source | votes | group unseen: held | half-width | over median error | configuration unseen: held | half-width | over median error | shipped: held |\n|---|---:|---:|---:|---:|---:|---:|---:|---:|\n");
    for line in report.tags.iter().chain(&report.parted) {
        let cells = [
            held(line.unseen, &line.left_out),
            held(line.seen, &line.in_sample),
            line.covered.map_or("–".into(), percent),
        ];
        let _ = writeln!(out, "| {} | {:.0} | {} |", cell(&line.name), line.votes, cells.join(" | "));
    }
    out.push('\n');
}

fn held(held: Option<Held>, errors: &Option<Errors>) -> String {
    let Some(h) = held else { return "– | – | –".into() };
    let median = errors.as_ref().map(|e| e.median).filter(|m| *m > 0.0);
    let over = median.map_or("–".into(), |m| format!("{:.2}", h.half_width / m));
    format!("{} | {} | {over}", percent(h.share), percent(h.half_width))
}

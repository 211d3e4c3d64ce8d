//! Constants by framework, and rows that are not evaluated.

use super::{cell, number, percent};
use crate::accuracy::evaluate::{ConstantLine, Report, StackLines};
use std::fmt::Write;

/// The constants of every framework.
pub(super) fn constants(out: &mut String, stacks: &[StackLines]) {
    out.push_str("## Constants\n\nAt most eight a framework, fitted where there are at least 24 rows in 3 groups; others take their parent's. A value at a bound of its range is marked *: its mechanism may be another.\n\n");
    for s in stacks {
        let (name, rows, groups) = (cell(&s.stack), s.rows, s.groups);
        if !s.fitted {
            let parent = s.parent.as_deref().unwrap_or("no other: it keeps the starting values");
            let _ = writeln!(out, "### {name}\n\n{rows} rows in {groups} groups are too few; constants of {parent}.\n");
            continue;
        }
        let error =
            s.error.map_or(String::new(), |e| format!(" Four of five left-out runs are within {}.", percent(e)));
        let _ = writeln!(out, "### {name}\n\nFound on {rows} rows in {groups} groups.{error}\n");
        if s.constants.is_empty() {
            out.push_str("No constants of its own.\n\n");
            continue;
        }
        out.push_str("| constant | unit | range | shipped | on all rows | reason |\n|---|---|---|---:|---:|---|\n");
        for c in &s.constants {
            let _ = writeln!(out, "{}", constant(c));
        }
        out.push('\n');
    }
}

fn constant(c: &ConstantLine) -> String {
    let unit = if c.unit.is_empty() { "ratio" } else { c.unit };
    let bound = if c.at_bound { "\\*" } else { "" };
    let fitted = c.fitted.map_or("–".to_string(), |v| number(v) + bound);
    let (low, high) = (number(c.range.0), number(c.range.1));
    format!("| {} | {unit} | {low} to {high} | {} | {fitted} | {} |", c.name, number(c.shipped), cell(c.why))
}

/// Every row that is not evaluated, with its reason, and the share of those that could be.
pub(super) fn skipped(out: &mut String, report: &Report) {
    let total: usize = report.skipped.iter().map(|(.., n)| n).sum();
    let r = &report.ready;
    let share = if r.rows == 0 { 0.0 } else { r.predicted as f64 / r.rows as f64 };
    let _ = writeln!(
        out,
        "## Rows that are not evaluated\n\n{total} of {}. Of the {} rows that their files mark as ready to be \
         simulated, {} are predicted, in time or in memory: {}.{}\n",
        report.rows,
        r.rows,
        r.predicted,
        percent(share),
        match r.silent.is_empty() {
            true => String::new(),
            false => format!(" No row is predicted of {}.", cell(&r.silent.join(", "))),
        }
    );
    if total == 0 {
        return;
    }
    out.push_str("| source | reason | rows |\n|---|---|---:|\n");
    for (tag, why, n) in &report.skipped {
        let _ = writeln!(out, "| {} | {} | {n} |", cell(tag), cell(why));
    }
    out.push('\n');
}

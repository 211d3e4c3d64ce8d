//! `docs/accuracy.md`: data in, Markdown out.

use super::evaluate::{ConstantLine, Line, Report, StackLines, TableLine, ROOFLINE};
use super::stats::Errors;
use std::fmt::Write;

/// The page. Everything on it comes from the report: the same report gives the same bytes.
pub fn page(report: &Report) -> String {
    let mut out = String::from(INTRODUCTION);
    tables(&mut out, "Kernels", "Products and attention against measured tables.", &report.kernels);
    tables(&mut out, "Collectives", "Messages between ranks against measured tables.", &report.collectives);
    let _ = writeln!(out, "## Steps without a pipeline, by source\n");
    let _ = writeln!(out, "{} of {} rows are evaluated. {LEGEND}\n", report.evaluated, report.rows);
    errors_table(&mut out, "source", &report.tags);
    let _ = writeln!(
        out,
        "## By group\n\nA group is what is left out together: framework · hidden size/heads · accelerator.\n"
    );
    errors_table(&mut out, "group", &report.groups);
    constants(&mut out, &report.stacks);
    skipped(&mut out, report);
    out
}

const INTRODUCTION: &str = "\
# Accuracy

Made by `autoshard accuracy`; do not edit. Errors are relative, (predicted − measured) / measured; a bias above 0
is predicted too slow. Repeats of one configuration share one vote.

";

/// What the columns mean.
const LEGEND: &str = "\
*Left out* predicts a group by constants found on the framework's other groups, so it is the error to expect of a \
model or machine that nobody has measured. *In sample* finds the constants on all groups, *shipped* takes those in \
the product. *Roofline* is executed FLOPs (recomputation included) over a fixed share of the peak rate of all \
devices, without communication: what a predictor has to beat. *Floor* is how far repeats of one configuration lie \
from their mean: software releases alone move a row by that much. *In range* is the \
share of measured times inside the range that the shipped prediction states. In-sample and shipped figures are \
means; a dash is nothing to tell.";

fn tables(out: &mut String, title: &str, about: &str, lines: &[TableLine]) {
    if lines.is_empty() {
        return;
    }
    let _ = writeln!(out, "## {title}\n\n{about}\n");
    out.push_str(
        "| table | device | rows | median | p90 | bias | extrapolated |\n|---|---|---:|---:|---:|---:|---:|\n",
    );
    for l in lines {
        let s = &l.score;
        let _ = writeln!(
            out,
            "| {} | {} | {} | {} | {} | {} | {} |",
            cell(&l.table),
            cell(&l.device),
            s.rows,
            percent(s.median_ape),
            percent(s.p90_ape),
            signed(s.bias),
            s.extrapolated
        );
    }
    out.push('\n');
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

fn constants(out: &mut String, stacks: &[StackLines]) {
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

fn skipped(out: &mut String, report: &Report) {
    let total: usize = report.skipped.iter().map(|(_, n)| n).sum();
    let _ = writeln!(out, "## Rows that are not evaluated\n\n{total} of {}.\n", report.rows);
    if total == 0 {
        return;
    }
    out.push_str("| reason | rows |\n|---|---:|\n");
    for (why, n) in &report.skipped {
        let _ = writeln!(out, "| {} | {n} |", cell(why));
    }
}

/// Text that cannot break a table.
fn cell(text: &str) -> String {
    text.replace('|', "\\|").replace(['\n', '\r'], " ")
}

fn percent(x: f64) -> String {
    format!("{:.1} %", x * 100.0)
}

fn signed(x: f64) -> String {
    format!("{:+.1} %", x * 100.0)
}

/// Three significant digits.
fn number(x: f64) -> String {
    match x.abs() {
        0.0 => "0".into(),
        a if !(1e-3..1e4).contains(&a) => format!("{x:.2e}"),
        a => format!("{x:.*}", (2 - a.log10().floor() as i32).max(0) as usize),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_report_is_a_page() {
        let text = page(&Report::default());
        assert!(text.starts_with("# Accuracy\n"), "{text}");
        assert!(text.contains("No row is evaluated.") && !text.contains("## Kernels"), "{text}");
    }

    #[test]
    fn a_report_is_told_in_full() {
        let e = |mape| Some(Errors { rows: 3, mape, median: 0.05, p90: 0.2, bias: -0.012 });
        let line = Line {
            name: "a|b".into(),
            rows: 3,
            votes: 2.0,
            groups: 2,
            left_out: e(0.1234),
            in_sample: e(0.09),
            shipped: e(0.08),
            covered: Some(0.5),
            roofline: None,
            floor: Some(0.03),
        };
        let constant = ConstantLine {
            name: "launch gap",
            unit: "s",
            range: (0.0, 3e-5),
            shipped: 2.5e-6,
            fitted: Some(3e-5),
            at_bound: true,
            why: "hosts",
        };
        let stack = StackLines {
            stack: "s".into(),
            parent: None,
            rows: 30,
            groups: 4,
            fitted: true,
            error: Some(0.1),
            constants: vec![constant],
        };
        let small = StackLines {
            stack: "t".into(),
            parent: Some("p".into()),
            rows: 3,
            groups: 1,
            fitted: false,
            ..stack.clone()
        };
        let report = Report {
            rows: 10,
            evaluated: 3,
            tags: vec![line],
            stacks: vec![stack, small],
            skipped: vec![("no heads".into(), 7)],
            ..Report::default()
        };
        let text = page(&report);
        for part in [
            "| a\\|b | 3 | 2 | 2 | 12.3 % | 5.0 % | 20.0 % | -1.2 % | 9.0 % | 8.0 % | 50.0 % | – | – | 3.0 % |",
            "| launch gap | s | 0 to 3.00e-5 | 2.50e-6 | 3.00e-5\\* | hosts |",
            "Found on 30 rows in 4 groups. Four of five left-out runs are within 10.0 %.",
            "3 rows in 1 groups are too few; constants of p.",
            "| no heads | 7 |",
            "3 of 10 rows are evaluated",
        ] {
            assert!(text.contains(part), "{part}\n{text}");
        }
        assert_eq!(text, page(&report));
    }

    #[test]
    fn numbers_have_three_digits() {
        assert_eq!(["1.25", "0.0300", "123", "0"], [1.25, 0.03, 123.4, 0.0].map(number).each_ref().map(|s| s.as_str()));
    }
}

//! `docs/accuracy.md`: data in, Markdown out. A file a section.

mod choices;
mod constants;
mod memory;
mod ranges;
mod steps;

use super::evaluate::{Report, TableLine};
use std::fmt::Write;

/// The page. Everything on it comes from the report: the same report gives the same bytes.
pub fn page(report: &Report) -> String {
    let mut out = String::from(INTRODUCTION);
    tables(&mut out, "Kernels", "Products and attention against measured tables.", &report.kernels);
    tables(&mut out, "Collectives", "Messages between ranks against measured tables.", &report.collectives);
    steps::steps(&mut out, report);
    ranges::ranges(&mut out, report);
    choices::choices(&mut out, report);
    memory::memory(&mut out, &report.memory);
    steps::groups(&mut out, report);
    constants::constants(&mut out, &report.stacks);
    constants::skipped(&mut out, report);
    out
}

const INTRODUCTION: &str = "\
# Accuracy

Made by `autoshard accuracy`; do not edit. Errors are relative, (predicted − measured) / measured; a bias above 0
is predicted too slow. Repeats of one configuration share one vote.

";

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
    use crate::accuracy::assumed::AssumedLine;
    use crate::accuracy::evaluate::{ConstantLine, Ready, RegretGroup, RegretLine, StackLines};
    use crate::accuracy::lines::{Disagreement, Held, Line, RowLine};
    use crate::accuracy::memory::MemoryLine;
    use crate::accuracy::regret::{Group, Regret};
    use crate::accuracy::stats::Errors;

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
            unseen: Some(Held { share: 0.78, half_width: 0.08 }),
            seen: None,
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
        let disagreement = Disagreement { id: "m-1".into(), configuration: "k".into(), measured: 1.2, median: 1.0 };
        let group = Group { name: "g".into(), layouts: 4, regret: 0.02, random: 0.3, gap: 0.01, close: false };
        let regret = Regret { groups: 1, mean: Some(0.02), max: Some(0.02), random: Some(0.3), close: Vec::new() };
        let assumed = |predicted| AssumedLine { id: "llama".into(), chunks: 8, measured: Some(0.43), predicted };
        let memory = MemoryLine {
            name: "m, dense".into(),
            rows: 5,
            distinct: 4,
            mean: Some(0.015),
            worst: Some(-0.04),
            out_of_memory: 5,
            out_refused: 4,
            complete: 91,
            complete_refused: 2,
        };
        let report = Report {
            rows: 10,
            evaluated: 3,
            tags: vec![line],
            stacks: vec![stack, small],
            skipped: vec![("a|b".into(), "no heads".into(), 7)],
            ready: Ready { rows: 4, predicted: 3, silent: vec!["t".into()] },
            releases: (e(0.1), vec![disagreement]),
            singles: vec![RowLine { id: "k-1".into(), measured: 1.1, left_out: 0.01, shipped: -0.02 }],
            assumed: vec![assumed(Ok((0.42, 0.44))), assumed(Err("no | bar".into()))],
            regrets: vec![RegretLine { name: "t".into(), shipped: regret.clone(), left_out: regret }],
            regret_groups: vec![RegretGroup { tag: "t".into(), shipped: group, left_out: None }],
            memory: vec![memory],
            ..Report::default()
        };
        let text = page(&report);
        for part in [
            "| a\\|b | 3 | 2 | 2 | 12.3 % | 5.0 % | 20.0 % | -1.2 % | 9.0 % | 8.0 % | 50.0 % | – | – | 3.0 % |",
            "| launch gap | s | 0 to 3.00e-5 | 2.50e-6 | 3.00e-5\\* | hosts |",
            "Found on 30 rows in 4 groups. Four of five left-out runs are within 10.0 %.",
            "3 rows in 1 groups are too few; constants of p.",
            "| a\\|b | no heads | 7 |",
            "Of the 4 rows that their files mark as ready to be simulated, 3 are predicted, in time or in memory: 75.0 %. No row is predicted of t.",
            "| a\\|b | 2 | 78.0 % | 8.0 % | 1.60 | – | – | – | 50.0 % |",
            "| k-1 | 1.10 s | +1.0 % | -2.0 % |",
            "| llama | 8 | 43.0 % | 42.0 % | 44.0 % |",
            "| llama | 8 | 43.0 % | not predicted: no \\| bar | – |",
            "| t | 1 | 2.0 % | 2.0 % | 30.0 % | 0 | 2.0 % | 2.0 % |",
            "| g | 4 | 2.0 % | – | 30.0 % | 1.0 % |  |",
            "| m, dense | 5 | 4 | 1.5 % | -4.0 % | 4 of 5 | 2 of 91 |",
            "| m-1 | 1.20 s | 1.00 s | +20.0 % | k |",
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

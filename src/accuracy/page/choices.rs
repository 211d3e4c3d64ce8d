//! Whether the predicted-best layout is a good one.

use super::{cell, percent};
use crate::accuracy::evaluate::{RegretGroup, RegretLine, Report};
use std::fmt::Write;

/// Groups of a source that are told one by one.
const MOST: usize = 20;

/// Regrets by source, then group by group.
pub(super) fn choices(out: &mut String, report: &Report) {
    if report.regrets.is_empty() {
        return;
    }
    out.push_str(
        "## Choosing a layout\n\nRows that differ in the layout only form a group, if there are three layouts or \
         more. Its *regret* is how much slower the predicted-best layout was measured than the best; *random* is the \
         mean over layouts. Groups whose best two lie closer than repeats do cannot tell; they are listed, and not \
         counted in the maximum. *Left out*: by constants that have not seen the group's model.\n\n\
         | source | groups | mean | max | random | cannot tell | left out: mean | max |\n|---|---:|---:|---:|---:|---:|---:|---:|\n",
    );
    for line in &report.regrets {
        let _ = writeln!(out, "{}", row(line));
    }
    let _ = writeln!(out, "\nGroup by group; of a source with more than {MOST}, those with the largest regret.\n");
    out.push_str("| group | layouts | regret | left out | random | second best is slower by | |\n|---|---:|---:|---:|---:|---:|---|\n");
    for line in &report.regrets {
        let mut groups: Vec<&RegretGroup> = report.regret_groups.iter().filter(|g| g.tag == line.name).collect();
        if groups.len() > MOST {
            groups.sort_by(|a, b| b.shipped.regret.total_cmp(&a.shipped.regret));
            groups.truncate(MOST);
        }
        for group in groups {
            let _ = writeln!(out, "{}", single(group));
        }
    }
    out.push('\n');
}

fn row(l: &RegretLine) -> String {
    let share = |x: Option<f64>| x.map_or("–".to_string(), percent);
    let (s, u) = (&l.shipped, &l.left_out);
    let cells = [
        s.groups.to_string(),
        share(s.mean),
        share(s.max),
        share(s.random),
        s.close.len().to_string(),
        share(u.mean),
        share(u.max),
    ];
    format!("| {} | {} |", cell(&l.name), cells.join(" | "))
}

fn single(g: &RegretGroup) -> String {
    let (s, word) = (&g.shipped, if g.shipped.close { "cannot tell" } else { "" });
    let left = g.left_out.as_ref().map_or("–".to_string(), |u| percent(u.regret));
    let cells = [s.layouts.to_string(), percent(s.regret), left, percent(s.random), percent(s.gap)];
    format!("| {} | {} | {word} |", cell(&s.name), cells.join(" | "))
}

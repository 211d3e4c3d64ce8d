//! The best plans of several questions as one table, with the rows where the kind of plan changes.

use super::prediction::Planned;
use super::search::{infeasible_json, memory, planned_json, searched_json, sum_of, Searched};
use super::{grouped, seconds};
use crate::predict::{Layout, Recompute};
use serde_json::{json, Value};

/// One question of a sweep and its answer.
#[derive(Clone, Debug)]
pub struct Row<'a> {
    /// Devices that may be used.
    pub devices: u64,
    /// Positions of a sequence.
    pub seq_len: u64,
    /// Sequences of a step.
    pub global_batch: u64,
    /// The best plan, or what is in its way.
    pub answer: Result<(Planned<'a>, Searched), Nothing<'a>>,
}

/// Why nothing fits.
#[derive(Clone, Copy, Debug)]
pub struct Nothing<'a> {
    /// In words.
    pub reason: &'a str,
    /// Least bytes that any plan needs of a device, without the margin.
    pub smallest: f64,
    /// The fewest devices on which something fits.
    pub fewest_devices: Option<u64>,
}

/// The words for how a layout spreads a step, in the order in which they become necessary.
pub fn kinds(l: &Layout) -> Vec<&'static str> {
    let ranks = l.dp * l.cp;
    let shares = l.shard_group > 1;
    let mut out = Vec::new();
    let mut say = |word, holds: bool| out.extend(holds.then_some(word));
    say("DP", ranks > 1 && (!shares || l.zero == 0));
    say("ZeRO-1", shares && l.zero == 1);
    say("ZeRO-2", shares && l.zero == 2);
    say("FSDP", shares && l.zero == 3 && l.shard_group == ranks);
    say("HSDP", shares && l.zero == 3 && l.shard_group < ranks);
    say("recompute", l.recompute != Recompute::None);
    say("TP", l.tp > 1);
    say("CP", l.cp > 1);
    say("PP", l.pp > 1);
    say("EP", l.ep > 1);
    out
}

/// What becomes of the kinds from one plan to the next: `FSDP` for the first, then `+ recompute`, `− recompute`. How
/// data ranks share is one thing: a word for it replaces the other.
fn change(before: Option<&[&str]>, now: &[&str]) -> String {
    const SHARING: [&str; 5] = ["DP", "ZeRO-1", "ZeRO-2", "FSDP", "HSDP"];
    let Some(before) = before else { return now.join(" + ") };
    let mut words: Vec<String> = Vec::new();
    for word in now.iter().filter(|w| !before.contains(w)) {
        words.push(if SHARING.contains(word) { word.to_string() } else { format!("+ {word}") });
    }
    let replaced = now.iter().any(|w| SHARING.contains(w));
    let replaced = |w: &&str| replaced && SHARING.contains(w);
    let gone = before.iter().filter(|w| !(now.contains(w) || replaced(w)));
    words.extend(gone.map(|w| format!("− {w}")));
    words.join(" ")
}

const HEAD: [&str; 12] = [
    "devices",
    "sequence",
    "batch",
    "tp·cp·pp·dp",
    "zero/group",
    "mbs·m",
    "recompute",
    "schedule",
    "step",
    "MFU",
    "memory",
    "what changes",
];

/// Columns of the question.
const ASKED: usize = 3;

/// The table, under what all rows have in common. Times of the search are left out, so that the same questions print
/// the same.
pub fn text(rows: &[Row]) -> String {
    let mut before: Option<Vec<&'static str>> = None;
    let mut cells: Vec<[String; 12]> = vec![HEAD.map(str::to_string)];
    for row in rows {
        let number = |n: u64| grouped(n as f64);
        let sizes = [number(row.devices), number(row.seq_len), number(row.global_batch)];
        let rest = match &row.answer {
            Ok((p, _)) => {
                let now = kinds(&p.plan.layout);
                let changed = change(before.as_deref(), &now);
                before = Some(now);
                planned(p, changed)
            }
            Err(nothing) => nothing_fits(nothing),
        };
        let mut all = sizes.into_iter().chain(rest);
        cells.push(std::array::from_fn(|_| all.next().unwrap_or_default()));
    }
    let same = |c: usize| rows.len() > 1 && cells[2..].iter().all(|row| row[c] == cells[1][c]);
    let varies: Vec<usize> = (0..HEAD.len()).filter(|c| *c >= ASKED || !same(*c)).collect();
    let kept: Vec<Vec<&str>> = cells.iter().map(|row| varies.iter().map(|c| row[*c].as_str()).collect()).collect();
    heading(rows, &varies) + &table(&kept) + LEGEND
}

const LEGEND: &str =
    "tp·cp·pp·dp multiply to the devices used; zero/group: the ZeRO stage and the ranks that share by it; \
mbs·m: sequences of a micro-batch, and how many of them; MFU counts causal attention once; memory is the fullest \
device's\n";

/// What all rows are about: model, machine, and what of the question does not change.
fn heading(rows: &[Row], varies: &[usize]) -> String {
    let Some(Ok((p, _))) = rows.iter().map(|row| &row.answer).find(|a| a.is_ok()) else { return String::new() };
    let plan = p.plan;
    let mut out = format!("{} on {}, {}, stack {}", p.facts.name, p.cluster.id, plan.precision, plan.stack);
    let sizes = [
        format!("{} devices", grouped(plan.devices as f64)),
        format!("sequences of {}", grouped(plan.seq_len as f64)),
        format!("{} sequences a step", grouped(plan.global_batch as f64)),
    ];
    for (_, size) in sizes.iter().enumerate().filter(|(c, _)| !varies.contains(c)) {
        out += &format!(", {size}");
    }
    out + "\n"
}

fn planned(p: &Planned, changed: String) -> [String; 9] {
    let l = &p.plan.layout;
    let again = match &l.recompute {
        Recompute::Stages(counts) => format!("layers:{}", sum_of(counts)),
        other => other.to_string(),
    };
    let chunks = if l.vpp > 1 { format!(" v={}", l.vpp) } else { String::new() };
    let schedule = if l.pp > 1 { format!("{}{chunks}", l.schedule) } else { "–".to_string() };
    let mfu = p.share(p.prediction.model_flops_causal).map_or("–".to_string(), |x| format!("{:.1} %", 100.0 * x));
    [
        format!("{}·{}·{}·{}", l.tp, l.cp, l.pp, l.dp),
        format!("{}/{}", l.zero, l.shard_group),
        format!("{}·{}", l.micro_batch, l.microbatches),
        again,
        schedule,
        seconds(p.prediction.step_seconds),
        mfu,
        memory(p),
        changed,
    ]
}

fn nothing_fits(n: &Nothing) -> [String; 9] {
    let fewest = n.fewest_devices.map_or(String::new(), |d| format!(", {} devices would do", grouped(d as f64)));
    let mut out = [const { String::new() }; 9];
    out[7] = format!("≥ {:.2} GiB", n.smallest / (1u64 << 30) as f64);
    out[8] = format!("nothing fits{fewest}");
    out
}

/// Cells between bars, columns as wide as their widest cell.
fn table(cells: &[Vec<&str>]) -> String {
    let width = |c: usize| cells.iter().map(|row| row[c].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..cells.first().map_or(0, Vec::len)).map(width).collect();
    let mut out = String::new();
    for (i, row) in cells.iter().enumerate() {
        let padded: Vec<String> = row.iter().zip(&widths).map(|(cell, w)| format!("{cell:<w$}", w = *w)).collect();
        out += &format!("| {} |\n", padded.join(" | "));
        if i == 0 {
            let rule: Vec<String> = widths.iter().map(|w| "-".repeat(*w)).collect();
            out += &format!("| {} |\n", rule.join(" | "));
        }
    }
    out
}

/// The object of `plan --sweep --json`.
pub fn json(rows: &[Row]) -> Value {
    let one = |row: &Row| {
        let mut out = match &row.answer {
            Ok((p, searched)) => {
                let mut v = planned_json(p);
                v["search"] = searched_json(searched);
                v["kinds"] = json!(kinds(&p.plan.layout));
                v
            }
            Err(n) => json!({"infeasible": infeasible_json(n.reason, n.smallest, n.fewest_devices)}),
        };
        out["devices"] = row.devices.into();
        out["seq_len"] = row.seq_len.into();
        out["global_batch"] = row.global_batch.into();
        out
    };
    json!({"sweep": rows.iter().map(one).collect::<Vec<_>>()})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_says_what_comes_and_what_goes() {
        assert_eq!(change(None, &["FSDP", "recompute"]), "FSDP + recompute");
        assert_eq!(change(Some(&["DP"]), &["FSDP"]), "FSDP");
        assert_eq!(change(Some(&["FSDP", "recompute"]), &["HSDP", "TP"]), "HSDP + TP − recompute");
        assert_eq!(change(Some(&["HSDP", "TP"]), &["HSDP", "TP"]), "");
        assert_eq!(change(Some(&["DP", "TP"]), &["TP"]), "− DP");
    }

    #[test]
    fn nothing_that_fits_is_a_row_with_numbers() {
        let nothing = Nothing { reason: "too large", smallest: 161.5 * (1u64 << 30) as f64, fewest_devices: Some(16) };
        let rows = [Row { devices: 8, seq_len: 8192, global_batch: 8, answer: Err(nothing) }];
        let printed = text(&rows);
        assert!(printed.contains("| ≥ 161.50 GiB | nothing fits, 16 devices would do |"), "{printed}");
        let v = json(&rows);
        assert_eq!(v.pointer("/sweep/0/infeasible/fewest_devices"), Some(&16.into()));
        assert_eq!(v.pointer("/sweep/0/devices"), Some(&8.into()));
    }
}

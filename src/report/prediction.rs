//! A predicted step, in words and as JSON.

use super::stages::{self, Room};
use super::{bytes, grouped, seconds};
use crate::planfile::PlanFile;
use crate::predict::fix::words;
use crate::predict::settings::Settings;
use crate::predict::{Layout, ModelFacts, Part, PartKind, Prediction};
use autoshard_cost::cluster::Cluster;
use autoshard_cost::goodput::{self, Goodput, Losses};
use serde_json::{json, Map, Value};
use std::fmt::Write;

/// All that a report of a plan tells.
#[derive(Clone, Copy, Debug)]
pub struct Planned<'a> {
    /// The model.
    pub facts: &'a ModelFacts,
    /// The machine.
    pub cluster: &'a Cluster,
    /// What was decided, and for what.
    pub plan: &'a PlanFile,
    /// The layout and where it comes from.
    pub settings: &'a Settings,
    /// What the step takes.
    pub prediction: &'a Prediction,
    /// Memory that it may use.
    pub room: Room,
    /// Tokens to train on, for days and cost.
    pub tokens: Option<f64>,
}

impl Planned<'_> {
    /// Devices that the layout uses.
    pub fn devices(&self) -> u64 {
        self.settings.layout.devices()
    }

    /// Tokens/s of all devices.
    pub fn tokens_per_second(&self) -> f64 {
        self.settings.global_batch as f64 * self.settings.seq_len as f64 / self.prediction.step_seconds
    }

    /// What failures of the cluster lose, and what is left with the best checkpoint interval; `None` where the
    /// cluster's failures are not known.
    pub fn goodput(&self) -> Option<(Losses, Goodput)> {
        let failures = self.cluster.failures.as_ref()?;
        let nodes = (self.devices() as f64 / self.cluster.devices_per_node.max(1) as f64).ceil();
        let losses = Losses {
            between_failures: goodput::between_failures(failures, nodes),
            write: goodput::write_seconds(self.facts.parameters as f64, nodes),
            restart: failures.restart(self.devices()),
        };
        Some((losses, goodput::best(&losses)))
    }

    /// Share of the peak rate that these FLOPs of a step make; `None` where no peak is known.
    pub fn share(&self, flops: f64) -> Option<f64> {
        let peak = self.cluster.device.peak_of(self.plan.precision.format())?;
        Some(self.prediction.utilisation(flops, self.devices(), peak))
    }
}

/// The object `prediction` of `plan --json`. What is not predicted is null.
pub fn json(p: &Planned) -> Value {
    let r = p.prediction;
    let useful = p.goodput();
    let mut parts = Map::new();
    for row in rows(&r.parts) {
        let total = row.exposed + row.hidden;
        parts.insert(
            row.name.to_string(),
            json!({"seconds": total, "exposed_seconds": row.exposed, "bytes": row.bytes, "tier": row.tier}),
        );
    }
    json!({
        "step_seconds": r.step_seconds, "step_seconds_low": r.low, "step_seconds_high": r.high,
        "tokens_per_second_per_device": p.tokens_per_second() / p.devices() as f64,
        "mfu": p.share(r.model_flops_causal), "mfu_full_attention": p.share(r.model_flops_full),
        "hfu": p.share(r.hardware_flops),
        "peak_memory_gib": stages::peak_gib(r), "memory_gib": stages::memory_json(r),
        "fits": stages::fits(r, &p.room), "memory_limit_gib": p.room.bytes / (1u64 << 30) as f64,
        "memory_margin": p.room.margin,
        "stages": stages::stages_json(r, p.facts.layers), "parts": parts,
        "bubble_seconds": r.exposed(PartKind::Bubble),
        "exposed_communication_seconds": r.exposed(PartKind::Collective),
        "goodput": useful.map(|(_, g)| g.useful),
        "checkpoint_interval_seconds": useful.map(|(_, g)| g.interval).filter(|s| s.is_finite()),
        "seconds_between_failures": useful.map(|(l, _)| l.between_failures).filter(|s| s.is_finite()),
        "marks": marks(p)
    })
}

/// Entries of one name, exposed and hidden.
struct Row<'a> {
    name: &'a str,
    exposed: f64,
    hidden: f64,
    bytes: f64,
    tier: &'a str,
}

fn rows(parts: &[Part]) -> Vec<Row<'_>> {
    let mut out: Vec<Row> = Vec::new();
    for part in parts {
        let at = match out.iter().position(|r| r.name == part.name) {
            Some(at) => at,
            None => {
                out.push(Row { name: &part.name, exposed: 0.0, hidden: 0.0, bytes: 0.0, tier: &part.tier });
                out.len() - 1
            }
        };
        let row = &mut out[at];
        *(if part.exposed { &mut row.exposed } else { &mut row.hidden }) += part.seconds;
        // Both entries of a collective tell the bytes of the whole.
        row.bytes = row.bytes.max(part.bytes);
    }
    out
}

/// What to know: the prediction's marks, and a share of the peak that no machine can reach.
fn marks(p: &Planned) -> Vec<String> {
    let mut out = p.prediction.marks.clone();
    if let Some(mfu) = p.share(p.prediction.model_flops_causal).filter(|mfu| *mfu > 1.0) {
        out.push(format!("ERROR: an MFU of {:.0} % cannot be: a peak rate or a time is wrong", 100.0 * mfu));
    }
    out
}

/// The report that a person reads.
pub fn text(p: &Planned) -> String {
    let f = p.facts;
    let mut out = format!(
        "{}: {} layers, {} heads ({} kv) on {} devices of {} ({}), {}, stack {}\n",
        f.name,
        f.layers,
        f.heads,
        f.kv_heads,
        p.devices(),
        p.cluster.id,
        p.cluster.device.id,
        p.plan.precision,
        p.plan.stack
    );
    idle(&mut out, p);
    settings(&mut out, p);
    times(&mut out, p.prediction);
    stages::text(&mut out, p.prediction, &p.room);
    totals(&mut out, p);
    for mark in &marks(p) {
        let _ = writeln!(out, "note: {mark}");
    }
    out
}

/// Devices that the plan leaves alone: as many as it uses were faster than more.
fn idle(out: &mut String, p: &Planned) {
    let (used, all) = (p.devices(), p.plan.devices);
    if used < all {
        let [idle, all, used] = [all - used, all, used].map(|n| grouped(n as f64));
        let _ = writeln!(out, "{idle} of {all} devices idle: tp·cp·pp·dp = {used} of them are used");
    }
}

fn settings(out: &mut String, p: &Planned) {
    let s = p.settings;
    let matters = |key: &str| matters(key, &s.layout, p.facts.experts > 0);
    out.push_str("settings, and who decided:\n");
    for line in s.lines.iter().filter(|line| line.default.is_empty() || matters(line.key)) {
        let origin = if line.default.is_empty() { "fixed" } else { &line.default };
        let _ = writeln!(out, "  {:<13} {:<14} {origin}", line.key, line.value);
    }
    let _ = writeln!(out, "the same layout in both ways:\n  --fix  {}", words(&s.layout));
    let _ = match &s.mesh {
        Ok(mesh) => writeln!(out, "  --mesh {mesh}"),
        Err(why) => writeln!(out, "  --mesh none: {why}"),
    };
}

/// Whether another value of a decision would change anything beside the rest of the layout.
fn matters(key: &str, l: &Layout, experts: bool) -> bool {
    match key {
        "cp_method" => l.cp > 1,
        "schedule" | "vpp" => l.pp > 1,
        "sp" => l.tp > 1,
        "keep" => l.zero == 3,
        "shard_group" => l.zero > 0,
        "ep" | "etp" => experts,
        _ => true,
    }
}

fn times(out: &mut String, r: &Prediction) {
    out.push_str("where a step's time goes, on the slowest device:\n");
    let _ = writeln!(out, "  {:<28} {:>10} {:>7} {:>10} {:>12}  tier", "", "exposed", "", "hidden", "bytes");
    let share = |s: f64| format!("{:.1} %", 100.0 * s / r.step_seconds);
    for row in rows(&r.parts) {
        let moved = if row.bytes > 0.0 { bytes(row.bytes) } else { String::new() };
        let hidden = if row.hidden > 0.0 { seconds(row.hidden) } else { String::new() };
        let line = format!(
            "  {:<28} {:>10} {:>7} {:>10} {:>12}  {}",
            row.name,
            seconds(row.exposed),
            share(row.exposed),
            hidden,
            moved,
            row.tier
        );
        let _ = writeln!(out, "{}", line.trim_end());
    }
    let _ = writeln!(
        out,
        "  {:<28} {:>10}   expected between {} and {}",
        "step",
        seconds(r.step_seconds),
        seconds(r.low),
        seconds(r.high)
    );
}

fn totals(out: &mut String, p: &Planned) {
    let r = p.prediction;
    let percent = |x: Option<f64>| x.map_or("unknown".to_string(), |x| format!("{:.1} %", 100.0 * x));
    let _ = writeln!(
        out,
        "MFU {} (causal attention counted once), {} (whole attention), HFU {}; of the peak in {}",
        percent(p.share(r.model_flops_causal)),
        percent(p.share(r.model_flops_full)),
        percent(p.share(r.hardware_flops)),
        p.plan.precision.format()
    );
    let rate = p.tokens_per_second();
    let _ = writeln!(out, "{} tokens/s, {} a device", grouped(rate), grouped(rate / p.devices() as f64));
    let useful = p.goodput();
    if let Some((losses, goodput)) = &useful {
        failures(out, p, losses, goodput, rate);
    }
    if let Some(tokens) = p.tokens {
        budget(out, p, tokens, rate, useful.map(|(_, g)| g.useful));
    }
}

/// What failures leave, with where the figures come from.
fn failures(out: &mut String, p: &Planned, l: &Losses, g: &Goodput, rate: f64) {
    let percent = |x: f64| format!("{:.2} %", 100.0 * x);
    let source = p.cluster.failures.as_ref().map_or("", |f| f.source.as_str());
    let _ = writeln!(
        out,
        "goodput {} with a checkpoint after every {} of work: {} useful tokens/s",
        percent(g.useful),
        time(g.interval),
        grouped(rate * g.useful)
    );
    let _ = writeln!(
        out,
        "  lost: {} to checkpoints, {} to work done again, {} to restarts",
        percent(g.checkpoints),
        percent(g.rework),
        percent(g.restarts)
    );
    let _ = writeln!(
        out,
        "  a failure every {}, {} to restart ({source}); {} to write a checkpoint, {:.0} bytes a parameter at {}/s a node",
        time(l.between_failures),
        time(l.restart),
        time(l.write),
        goodput::CHECKPOINT_BYTES,
        bytes(goodput::WRITE_RATE)
    );
}

/// A long time: seconds, minutes, hours or days.
fn time(s: f64) -> String {
    match s {
        s if s < 120.0 => seconds(s),
        s if s < 7200.0 => format!("{:.1} min", s / 60.0),
        s if s < 172_800.0 => format!("{:.1} h", s / 3600.0),
        s => format!("{:.1} days", s / 86_400.0),
    }
}

/// Days and cost of a token budget; failures make both longer where they are known.
fn budget(out: &mut String, p: &Planned, tokens: f64, rate: f64, useful: Option<f64>) {
    let days = tokens / rate / 86_400.0 / useful.unwrap_or(1.0);
    let hours = days * 24.0 * p.devices() as f64;
    let counted = if useful.is_some() { "failures counted" } else { "failures not counted" };
    let _ = write!(out, "{tokens:.3e} tokens: {days:.1} days, {} device-hours", grouped(hours));
    let _ = match p.cluster.price {
        Some(price) => {
            writeln!(out, ", ${} at ${price:.2} a device and hour; {counted}", grouped(hours * price))
        }
        None => writeln!(out, "; no price of {} is known; {counted}", p.cluster.id),
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exposed_and_hidden_parts_are_one_row() {
        let part = |exposed, seconds| Part {
            name: "tp all-reduce".into(),
            kind: PartKind::Collective,
            seconds,
            exposed,
            bytes: 8.0,
            tier: "nvlink".into(),
        };
        let parts = [part(true, 1.0), part(false, 2.0)];
        let all = rows(&parts);
        assert_eq!((all.len(), all[0].exposed, all[0].hidden, all[0].bytes), (1, 1.0, 2.0, 8.0));
    }
}

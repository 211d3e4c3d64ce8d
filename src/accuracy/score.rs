//! Rows predicted and compared.

use super::fit::parallel;
use super::regret::{self, Trial};
use super::stats::{self, equal};
use crate::predict::{Backend, Memory, PredictError, Prediction};
use crate::runs::{machine, Entry, Machine, MemoryKind, RunRow, Unit};
use autoshard_cost::cluster::Cluster;
use autoshard_cost::device::Device;
use autoshard_cost::stack::Stack;
use std::collections::BTreeMap;
use std::sync::Arc;

/// A row with its machine and framework.
#[derive(Clone, Debug)]
pub struct Prepared<'a> {
    /// The row.
    pub row: &'a RunRow,
    /// What it ran on.
    pub machine: Arc<Cluster>,
    /// What ran it.
    pub stack: Arc<Stack>,
    /// The row's marks and the machine's.
    pub marks: Vec<String>,
}

impl Prepared<'_> {
    /// FLOP/s of one device in the row's format; `None` where not known.
    pub fn peak(&self) -> Option<f64> {
        self.machine.device.peak_of(self.row.precision.format())
    }

    /// Seconds of the measured step in the row's unit.
    pub fn measured_seconds(&self, prediction: &Prediction) -> Option<f64> {
        self.row.unit.measured_seconds(self.row, prediction, self.peak())
    }
}

/// What is asked of the backend once and used by many rows.
struct Loaded {
    devices: BTreeMap<String, Result<Device, PredictError>>,
    clusters: BTreeMap<String, Result<Arc<Cluster>, PredictError>>,
    stacks: BTreeMap<String, Result<Arc<Stack>, PredictError>>,
}

/// Finds machine and framework of every entry, in order; the error is why it is skipped. `stack` replaces the
/// rows' own framework.
pub fn prepare<'a>(
    entries: &'a [Entry],
    backend: &dyn Backend,
    stack: Option<&str>,
) -> Vec<Result<Prepared<'a>, String>> {
    let rows = || {
        entries.iter().filter_map(|e| match e {
            Entry::Ready(row) => Some(row.as_ref()),
            Entry::Skipped(_) => None,
        })
    };
    let stack_of = |row: &'a RunRow| stack.map_or(row.stack.clone(), str::to_string);
    let loaded = Loaded {
        devices: distinct(rows().filter(|r| r.cluster.is_none()).map(|r| r.accelerator.clone()), |n| backend.device(n)),
        clusters: distinct(rows().filter_map(|r| r.cluster.clone()), |n| backend.cluster(n).map(Arc::new)),
        stacks: distinct(rows().map(stack_of), |n| backend.stack(n).map(Arc::new)),
    };
    let one = |entry: &'a Entry| match entry {
        Entry::Skipped(s) => Err(s.why.clone()),
        Entry::Ready(row) => place(row, &stack_of(row), &loaded),
    };
    entries.iter().map(one).collect()
}

fn distinct<T>(names: impl Iterator<Item = String>, load: impl Fn(&str) -> T) -> BTreeMap<String, T> {
    let mut out = BTreeMap::new();
    for name in names {
        out.entry(name).or_insert_with_key(|n| load(n));
    }
    out
}

fn place<'a>(row: &'a RunRow, stack: &str, loaded: &Loaded) -> Result<Prepared<'a>, String> {
    let found = |e: Option<String>| e.unwrap_or_else(|| "not loaded".to_string());
    let stack = match loaded.stacks.get(stack) {
        Some(Ok(s)) => s.clone(),
        other => return Err(found(other.and_then(|r| r.as_ref().err()).map(ToString::to_string))),
    };
    let mut marks = row.marks.clone();
    let chosen = match (&row.cluster, loaded.devices.get(&row.accelerator)) {
        (Some(name), _) => Machine::Preset(name.clone()),
        (None, Some(Ok(device))) => machine(row, device)?,
        (None, other) => return Err(found(other.and_then(|r| r.as_ref().err()).map(ToString::to_string))),
    };
    let machine = match chosen {
        Machine::Made(cluster, mark) => {
            marks.push(mark);
            Arc::new(*cluster)
        }
        Machine::Preset(name) => match loaded.clusters.get(&name) {
            Some(Ok(c)) => c.clone(),
            other => return Err(found(other.and_then(|r| r.as_ref().err()).map(ToString::to_string))),
        },
    };
    Ok(Prepared { row, machine, stack, marks })
}

/// One row of `validate`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Outcome {
    /// The row's id.
    pub id: String,
    /// Its source.
    pub tag: String,
    /// Its framework.
    pub stack: String,
    /// Why it was not predicted; `None` where it was.
    pub skipped: Option<String>,
    /// Seconds of the measured step, in the row's unit.
    pub measured_step: Option<f64>,
    /// GiB measured.
    pub measured_memory: Option<f64>,
    /// Seconds predicted.
    pub predicted_step: Option<f64>,
    /// GiB predicted, of the kind that was measured.
    pub predicted_memory: Option<f64>,
    /// Range of the prediction, s.
    pub low: Option<f64>,
    /// Upper end, s.
    pub high: Option<f64>,
    /// Whether it is predicted to fit into memory; `None` where memory is not predicted.
    pub fits: Option<bool>,
    /// Signed relative error of the time: above 0 is predicted too slow.
    pub step_error: Option<f64>,
    /// Signed relative error of memory.
    pub memory_error: Option<f64>,
    /// What to know about row and prediction.
    pub marks: Vec<String>,
}

/// Predicts and compares every entry, in order, on a few threads.
pub fn score(entries: &[Entry], backend: &dyn Backend, stack: Option<&str>, threads: usize) -> Vec<Outcome> {
    let prepared = prepare(entries, backend, stack);
    let pairs: Vec<_> = entries.iter().zip(prepared).collect();
    parallel(&pairs, threads, |(entry, prepared)| match prepared {
        Err(why) => skipped(entry, why.clone()),
        Ok(p) => match backend.predict_row(p.row, &p.machine, &p.stack) {
            Ok(prediction) => compare(p, &prediction),
            Err(e) => skipped(entry, e.to_string()),
        },
    })
}

/// What is told of a row that is not predicted.
pub(super) fn skipped(entry: &Entry, why: String) -> Outcome {
    let (id, tag, stack, step, memory) = match entry {
        Entry::Ready(r) => (&r.id, &r.tag, &r.stack, r.measured.step_seconds, r.measured.memory_gib),
        Entry::Skipped(s) => (&s.id, &s.tag, &s.stack, s.step_seconds, s.memory_gib),
    };
    Outcome {
        id: id.clone(),
        tag: tag.clone(),
        stack: stack.clone(),
        skipped: Some(why),
        measured_step: step,
        measured_memory: memory,
        ..Outcome::default()
    }
}

/// A row's prediction against what was measured.
pub(super) fn compare(p: &Prepared, prediction: &Prediction) -> Outcome {
    let row = p.row;
    let measured = p.measured_seconds(prediction);
    let mut marks = p.marks.clone();
    marks.extend(prediction.marks.iter().cloned());
    if row.measured.memory_gib.is_some() && row.measured.memory_kind.is_none() {
        marks.push("kind of memory not stated: compared as reserved".into());
    }
    let error = |measured: f64| prediction.step_seconds / measured - 1.0;
    let memory = predicted_memory(prediction, row.measured.memory_kind);
    // Where memory alone is compared, there may be no time.
    let timed = |seconds: f64| Some(seconds).filter(|_| prediction.step_seconds > 0.0);
    Outcome {
        id: row.id.clone(),
        tag: row.tag.clone(),
        stack: p.stack.name.clone(),
        skipped: (measured.is_none() && !(row.has_memory() && memory.is_some())).then(|| unmeasurable(row)),
        measured_step: measured,
        measured_memory: row.measured.memory_gib,
        predicted_step: timed(prediction.step_seconds),
        predicted_memory: memory,
        low: timed(prediction.low),
        high: timed(prediction.high),
        fits: fits(prediction, &p.machine.device),
        step_error: measured.map(error),
        memory_error: row.measured.memory_gib.zip(memory).map(|(measured, predicted)| predicted / measured - 1.0),
        marks,
    }
}

/// Predicted memory of a kind, GiB, of the stage that has most of it; unknown kinds are compared as reserved.
fn predicted_memory(prediction: &Prediction, kind: Option<MemoryKind>) -> Option<f64> {
    let bytes = |m: &Memory| match kind {
        Some(MemoryKind::Allocated) => m.allocated,
        Some(MemoryKind::Reserved) | None => m.reserved,
        Some(MemoryKind::Device) => m.device,
    };
    let stages = prediction.stages.iter().filter_map(|s| s.memory.as_ref());
    stages.map(bytes).max_by(f64::total_cmp).map(|b| b / (1u64 << 30) as f64)
}

/// Whether the fullest stage is within the memory that the device shows, with no margin.
fn fits(prediction: &Prediction, device: &Device) -> Option<bool> {
    let (_, memory) = prediction.fullest()?;
    Some(memory.device <= device.memory_visible.unwrap_or(device.memory))
}

fn unmeasurable(row: &RunRow) -> String {
    match row.unit {
        Unit::Seconds if row.measured.out_of_memory => "ran out of memory: no time".into(),
        Unit::Seconds if row.has_memory() => "no time or rate".into(),
        Unit::Mfu(_) => format!("no peak rate of {} in {}", row.accelerator, row.precision),
        _ => "the row lacks a size that its FLOP convention needs".into(),
    }
}

/// Errors and regrets of a set of rows.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Summary {
    /// Rows that were predicted and compared.
    pub rows: usize,
    /// Errors of their time.
    pub step: Option<stats::Errors>,
    /// Share of measured times (0–1) inside the stated range.
    pub in_range: Option<f64>,
    /// Median half-width of the ranges, as a share of the prediction.
    pub half_width: Option<f64>,
    /// Rows whose memory was compared.
    pub memory_rows: usize,
    /// Mean absolute relative error of memory.
    pub memory_mape: Option<f64>,
    /// Groups of rows that differ in the layout only.
    pub regret: regret::Regret,
}

/// Summaries by tag, in order, and last of `all`. Every row has one vote.
pub fn summarise(entries: &[Entry], outcomes: &[Outcome]) -> Vec<(String, Summary)> {
    let trials = trials(entries, outcomes);
    let spread = regret::spreads(&trials);
    let mut tags: Vec<&str> = outcomes.iter().map(|o| o.tag.as_str()).collect();
    tags.sort_unstable();
    tags.dedup();
    let one = |tag: Option<&str>| {
        let mine = |t: &str| tag.is_none_or(|tag| tag == t);
        let outcomes: Vec<&Outcome> = outcomes.iter().filter(|o| mine(&o.tag)).collect();
        let trials: Vec<&Trial> = trials.iter().filter(|t| mine(&t.tag)).collect();
        summary(&outcomes, &trials, &spread)
    };
    let each = tags.iter().map(|t| (t.to_string(), one(Some(t))));
    each.chain([("all".to_string(), one(None))]).collect()
}

fn summary(outcomes: &[&Outcome], trials: &[&Trial], spread: &regret::Spreads) -> Summary {
    let compared = outcomes.iter().filter(|o| o.skipped.is_none());
    let steps: Vec<f64> = compared.clone().filter_map(|o| o.step_error).collect();
    let ranges: Vec<(f64, f64)> = compared.clone().filter_map(|o| range_of(o)).collect();
    let over = |of: fn(&(f64, f64)) -> f64| equal(&ranges.iter().map(of).collect::<Vec<_>>());
    let memory: Vec<f64> = compared.filter_map(|o| o.memory_error).map(f64::abs).collect();
    Summary {
        rows: steps.len(),
        step: stats::errors(&equal(&steps)),
        in_range: stats::mean(&over(|r| r.0)),
        half_width: stats::quantile(&over(|r| r.1), 0.5),
        memory_rows: memory.len(),
        memory_mape: stats::mean(&equal(&memory)),
        regret: regret::regret(&regret::groups(trials, spread)),
    }
}

/// Whether a measured time is in its range (1 or 0), and the range's half-width over the prediction.
fn range_of(o: &Outcome) -> Option<(f64, f64)> {
    let (measured, low, high) = (o.measured_step?, o.low?, o.high?);
    Some((f64::from(u8::from((low..=high).contains(&measured))), (high - low) / 2.0 / o.predicted_step?))
}

/// The compared rows as layouts of regret groups.
pub fn trials(entries: &[Entry], outcomes: &[Outcome]) -> Vec<Trial> {
    let one = |(entry, outcome): (&Entry, &Outcome)| match entry {
        Entry::Ready(row) if outcome.skipped.is_none() => Some(Trial {
            tag: row.tag.clone(),
            group: regret_group(row),
            layout: row.layout_key.clone(),
            repeat: row.repeat_key.clone(),
            measured: outcome.measured_step?,
            predicted: outcome.predicted_step?,
        }),
        _ => None,
    };
    entries.iter().zip(outcomes).filter_map(one).collect()
}

/// Tag, release, model dims, accelerator, devices, batch, sequence, precision.
fn regret_group(row: &RunRow) -> String {
    let dims = ["ffn_hidden", "heads", "kv_heads", "moe"];
    let dims = dims.map(|k| row.model.get(k).map_or("-".into(), ToString::to_string)).join("/");
    format!(
        "{} {} L{} h{} v{} {dims} {} n{} b{} s{} {}",
        row.tag,
        row.release.as_deref().unwrap_or("-"),
        row.layers,
        row.hidden,
        row.vocab,
        row.accelerator,
        row.gpus,
        row.global_batch,
        row.seq_len,
        row.precision
    )
}

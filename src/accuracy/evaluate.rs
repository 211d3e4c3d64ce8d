//! Everything that `docs/accuracy.md` tells, computed: rows in, a [`Report`] out.
//!
//! For each framework the constants that it names are found on its rows without a pipeline. *Left out*: a
//! group (framework, hidden size, heads, accelerator; cuts and proxies stand with their parent) is predicted by
//! constants found on the framework's other groups. *In sample*: by constants found on all of them. *Shipped*:
//! by the constants in the product. Repeats of a configuration share one vote everywhere.
//!
//! A search starts at neutral values, or at what was found for the framework's parent: those rows are of another
//! framework, so of other groups, though perhaps of the same model and machine.

use super::fit::{self, parallel, Fit, FitError, Options, Sample};
use super::knobs::{knobs, range_of};
use super::score::{prepare, Prepared};
use super::stats::{errors, mean, quantile, Errors, Vote};
use crate::predict::{Backend, Prediction, TableScore, Timer};
use crate::runs::Entry;
use autoshard_cost::stack::{Constant, Stack};
use std::collections::BTreeMap;

/// Share of the peak rate at which the crude roofline computes.
pub const ROOFLINE: f64 = 0.45;

/// A table of kernels or messages, scored.
#[derive(Clone, Debug, PartialEq)]
pub struct TableLine {
    /// The table's name.
    pub table: String,
    /// The device.
    pub device: String,
    /// Its score.
    pub score: TableScore,
}

/// Errors of a set of rows by every way of predicting.
#[derive(Clone, Debug, PartialEq)]
pub struct Line {
    /// Tag or group.
    pub name: String,
    /// Rows.
    pub rows: usize,
    /// Distinct configurations: votes.
    pub votes: f64,
    /// Groups that were left out one by one.
    pub groups: usize,
    /// By constants that have not seen the row's group.
    pub left_out: Option<Errors>,
    /// By constants found on all rows of the framework.
    pub in_sample: Option<Errors>,
    /// By the constants in the product.
    pub shipped: Option<Errors>,
    /// Share of measured times (0–1) inside the range that the shipped prediction states.
    pub covered: Option<f64>,
    /// By FLOPs over [`ROOFLINE`] of the peak.
    pub roofline: Option<Errors>,
    /// What no predictor that knows the configuration alone can get below: how far repeats of one
    /// configuration are from their mean. `None` without repeats.
    pub floor: Option<f64>,
}

/// A constant as it is documented.
#[derive(Clone, Debug, PartialEq)]
pub struct ConstantLine {
    /// Its name.
    pub name: &'static str,
    /// Its unit; empty for a ratio.
    pub unit: &'static str,
    /// The range it is searched in.
    pub range: (f64, f64),
    /// In the product.
    pub shipped: f64,
    /// Found on all rows of the framework; `None` where it has none.
    pub fitted: Option<f64>,
    /// Whether that stands at a bound.
    pub at_bound: bool,
    /// Why this range.
    pub why: &'static str,
}

/// A framework's constants.
#[derive(Clone, Debug, PartialEq)]
pub struct StackLines {
    /// The framework.
    pub stack: String,
    /// Whose constants it takes where it has none.
    pub parent: Option<String>,
    /// Rows that they were found on.
    pub rows: usize,
    /// Groups of these rows.
    pub groups: usize,
    /// Whether these are enough for constants of its own.
    pub fitted: bool,
    /// Error of left-out runs that four of five stay within.
    pub error: Option<f64>,
    /// Its constants.
    pub constants: Vec<ConstantLine>,
}

/// All that the page tells.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Report {
    /// Rows of the files.
    pub rows: usize,
    /// Rows that are evaluated: without a pipeline, and predicted.
    pub evaluated: usize,
    /// Kernel tables.
    pub kernels: Vec<TableLine>,
    /// Tables of collectives.
    pub collectives: Vec<TableLine>,
    /// By source, and `all` last.
    pub tags: Vec<Line>,
    /// By group.
    pub groups: Vec<Line>,
    /// Constants by framework.
    pub stacks: Vec<StackLines>,
    /// Why rows are not evaluated, most frequent first.
    pub skipped: Vec<(String, usize)>,
}

/// A row that is evaluated.
struct Case<'a> {
    prepared: Prepared<'a>,
    shipped: Prediction,
    measured: f64,
    weight: f64,
}

/// Errors of one row, with its vote.
struct Judged {
    tag: String,
    group: String,
    repeat: Option<String>,
    measured: f64,
    left_out: Vote,
    in_sample: Vote,
    shipped: Vote,
    covered: Vote,
    roofline: Option<Vote>,
}

/// Evaluates the rows of one or more files.
///
/// # Errors
/// Where constants cannot be found, which is a mistake in their ranges.
pub fn evaluate(entries: &[Entry], backend: &dyn Backend, options: &Options) -> Result<Report, FitError> {
    let (cases, skipped) = cases(entries, backend, options.threads);
    let mut stacks: BTreeMap<&str, Vec<&Case>> = BTreeMap::new();
    for case in &cases {
        stacks.entry(&case.prepared.stack.name).or_default().push(case);
    }
    let mut judged = Vec::new();
    let mut constants = Vec::new();
    let mut found: BTreeMap<&str, Vec<Constant>> = BTreeMap::new();
    for name in parents_first(&stacks) {
        let cases = &stacks[name];
        let parent = cases[0].prepared.stack.parent.as_deref().and_then(|p| found.get(p));
        let samples: Vec<Sample<Timer>> = cases.iter().map(|c| sample(c, backend)).collect();
        let (lines, votes, values) = judge(cases, &samples, parent.map_or(&[], Vec::as_slice), options)?;
        constants.push(lines);
        judged.extend(votes);
        found.insert(name, values);
    }
    constants.sort_by(|a: &StackLines, b| a.stack.cmp(&b.stack));
    Ok(Report {
        rows: entries.len(),
        evaluated: judged.len(),
        tags: lines(&judged, |j| &j.tag, true),
        groups: lines(&judged, |j| &j.group, false),
        stacks: constants,
        skipped,
        ..Report::default()
    })
}

/// Names of the frameworks, each after its parent. Parents in a circle come last, in order of their names.
fn parents_first<'a>(stacks: &BTreeMap<&'a str, Vec<&Case>>) -> Vec<&'a str> {
    let mut waiting: Vec<&str> = stacks.keys().copied().collect();
    let mut ordered = Vec::new();
    loop {
        let free = |name: &&str| {
            let parent = stacks[*name][0].prepared.stack.parent.as_deref();
            !parent.is_some_and(|p| p != *name && waiting.contains(&p))
        };
        let (next, rest): (Vec<&str>, Vec<&str>) = waiting.iter().copied().partition(free);
        ordered.extend(&next);
        if next.is_empty() || rest.is_empty() {
            ordered.extend(&rest);
            return ordered;
        }
        waiting = rest;
    }
}

/// The rows that are evaluated, and why others are not.
fn cases<'a>(entries: &'a [Entry], backend: &dyn Backend, threads: usize) -> (Vec<Case<'a>>, Vec<(String, usize)>) {
    let prepared = prepare(entries, backend, None);
    let made = parallel(&prepared, threads, |p| {
        let p = p.as_ref().map_err(Clone::clone)?;
        let shipped = backend.predict_row(p.row, &p.machine, &p.stack).map_err(|e| e.to_string())?;
        let measured = p.measured_seconds(&shipped).ok_or("no measured time in the row's unit")?;
        Ok((p.clone(), shipped, measured))
    });
    let mut reasons: BTreeMap<String, usize> = BTreeMap::new();
    let mut kept = Vec::new();
    for one in made {
        match one {
            Ok(one) => kept.push(one),
            Err(why) => *reasons.entry(why).or_default() += 1,
        }
    }
    let keys: Vec<Option<&str>> = kept.iter().map(|(p, _, _)| p.row.repeat_key.as_deref()).collect();
    let weights = fit::votes(&keys);
    let cases = kept.into_iter().zip(weights);
    let cases = cases.map(|((prepared, shipped, measured), weight)| Case { prepared, shipped, measured, weight });
    let mut reasons: Vec<_> = reasons.into_iter().collect();
    reasons.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
    (cases.collect(), reasons)
}

fn sample<'c>(case: &'c Case, backend: &'c dyn Backend) -> Sample<Timer<'c>> {
    let p = &case.prepared;
    Sample {
        row: backend.timer(p.row, &p.machine, &p.stack),
        measured: case.measured,
        weight: case.weight,
        group: p.row.group.to_string(),
    }
}

/// Finds a framework's constants and judges them, row by row.
fn judge(
    cases: &[&Case],
    samples: &[Sample<Timer>],
    parent: &[Constant],
    options: &Options,
) -> Result<(StackLines, Vec<Judged>, Vec<Constant>), FitError> {
    let stack = cases[0].prepared.stack.clone();
    let mut knobs = knobs(&stack, parent);
    // Too few runs say more about themselves than about a framework: such a stack keeps its parent's constants.
    let fitted = is_fitted(samples);
    knobs.iter_mut().for_each(|k| k.fixed |= !fitted);
    let predict = |values: &[f64], timer: &Timer| timer(values);
    let all: Vec<&Sample<Timer>> = samples.iter().collect();
    let whole = fit::fit(&knobs, &all, &predict, options)?;
    let out = fit::leave_one_group_out(&knobs, samples, &predict, options)?;
    let judged = cases.iter().zip(samples).zip(&out).map(|((case, sample), out)| {
        let error = |predicted: f64| Vote { value: predicted / case.measured - 1.0, weight: case.weight };
        let p = &case.prepared;
        Judged {
            tag: p.row.tag.clone(),
            group: sample.group.clone(),
            repeat: p.row.repeat_key.clone(),
            measured: case.measured,
            left_out: out.vote(),
            in_sample: error(predict(&whole.values, &sample.row)),
            shipped: error(case.shipped.step_seconds),
            covered: Vote { value: f64::from(u8::from(inside(case))), weight: case.weight },
            roofline: p.peak().map(|peak| error(roofline(&case.shipped, p.row.gpus, peak))),
        }
    });
    let judged: Vec<Judged> = judged.collect();
    let found = stack.constants.iter().zip(&whole.values).map(|(c, v)| Constant { name: c.name, value: *v });
    let sizes: Vec<Vote> = judged.iter().map(|j| Vote { value: j.left_out.value.abs(), ..j.left_out }).collect();
    let error = quantile(&sizes, RANGE);
    Ok((StackLines { error, ..stack_lines(&stack, &whole, samples) }, judged, found.collect()))
}

/// Share of left-out runs that the stated range of a prediction is to hold.
const RANGE: f64 = 0.8;
/// Rows and groups that a stack needs for constants of its own.
const ENOUGH: (usize, usize) = (24, 3);

/// Whether a stack has enough rows and groups for constants of its own.
fn is_fitted(samples: &[Sample<Timer>]) -> bool {
    samples.len() >= ENOUGH.0 && distinct(samples.iter().map(|s| s.group.as_str())) >= ENOUGH.1
}

/// Whether the measurement is in the range that was stated for it.
fn inside(case: &Case) -> bool {
    (case.shipped.low..=case.shipped.high).contains(&case.measured)
}

/// Seconds of executed FLOPs, recomputation included, at [`ROOFLINE`] of the peak of all devices.
fn roofline(p: &Prediction, devices: u64, peak: f64) -> f64 {
    p.hardware_flops / (devices as f64 * peak * ROOFLINE)
}

fn stack_lines(stack: &Stack, whole: &Fit, samples: &[Sample<Timer>]) -> StackLines {
    let one = |(i, c): (usize, &Constant)| {
        let r = range_of(c.name);
        ConstantLine {
            name: r.label,
            unit: r.unit,
            range: (r.low, r.high),
            shipped: c.value,
            fitted: whole.values.get(i).copied(),
            at_bound: whole.at_bound.get(i).copied().unwrap_or(false),
            why: r.why,
        }
    };
    StackLines {
        stack: stack.name.clone(),
        parent: stack.parent.clone(),
        rows: samples.len(),
        groups: distinct(samples.iter().map(|s| s.group.as_str())),
        fitted: is_fitted(samples),
        error: None,
        constants: stack.constants.iter().enumerate().map(one).collect(),
    }
}

fn distinct<'a>(names: impl Iterator<Item = &'a str>) -> usize {
    names.collect::<std::collections::BTreeSet<_>>().len()
}

/// Lines by a name, in order; with `all` after them where asked.
fn lines(judged: &[Judged], name: impl Fn(&Judged) -> &str, total: bool) -> Vec<Line> {
    let mut sets: BTreeMap<&str, Vec<&Judged>> = BTreeMap::new();
    for j in judged {
        sets.entry(name(j)).or_default().push(j);
    }
    let mut out: Vec<Line> = sets.iter().map(|(name, set)| line(name, set)).collect();
    if total {
        out.push(line("all", &judged.iter().collect::<Vec<_>>()));
    }
    out
}

fn line(name: &str, set: &[&Judged]) -> Line {
    let of = |vote: fn(&Judged) -> Option<Vote>| {
        let votes: Vec<Vote> = set.iter().filter_map(|j| vote(j)).collect();
        errors(&votes)
    };
    Line {
        name: name.into(),
        rows: set.len(),
        votes: set.iter().map(|j| j.left_out.weight).sum(),
        groups: distinct(set.iter().map(|j| j.group.as_str())),
        left_out: of(|j| Some(j.left_out)),
        in_sample: of(|j| Some(j.in_sample)),
        shipped: of(|j| Some(j.shipped)),
        covered: mean(&set.iter().map(|j| j.covered).collect::<Vec<_>>()),
        roofline: of(|j| j.roofline),
        floor: floor(set),
    }
}

/// Mean distance of repeats from the mean of their configuration, each configuration one vote.
fn floor(set: &[&Judged]) -> Option<f64> {
    let mut keys: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
    for j in set {
        if let Some(key) = &j.repeat {
            keys.entry(key).or_default().push(j.measured);
        }
    }
    let distance = |times: &Vec<f64>| {
        let centre = times.iter().sum::<f64>() / times.len() as f64;
        times.iter().map(|t| (t / centre - 1.0).abs()).sum::<f64>() / times.len() as f64
    };
    let votes: Vec<Vote> =
        keys.values().filter(|t| t.len() > 1).map(|t| Vote { value: distance(t), weight: 1.0 }).collect();
    mean(&votes)
}

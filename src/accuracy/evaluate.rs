//! Everything that `docs/accuracy.md` tells, computed: rows in, a [`Report`] out.
//!
//! For each framework the constants that it names are found on all its rows that are predicted. *Left out*: a
//! group (framework, hidden size, heads, accelerator; cuts and proxies stand with their parent) is predicted by
//! constants found on the framework's other groups. *In sample*: by constants found on all of them. *Shipped*:
//! by the constants in the product. Repeats of a configuration share one vote everywhere.
//!
//! A search starts at neutral values, or at what was found for the framework's parent: those rows are of another
//! framework, so of other groups, though perhaps of the same model and machine.

use super::assumed::AssumedLine;
use super::fit::{self, parallel, Fit, FitError, Options, Sample};
use super::knobs::{knobs, range_of};
use super::lines::{self, Disagreement, Judged, Line, RowLine, Traits};
use super::memory::{memory, MemoryLine};
use super::regret;
use super::score::{compare, prepare, skipped, trials, Outcome, Prepared};
use super::stats::{quantile, Errors, Vote};
use crate::predict::range::{Likeness, Validated, HELD};
use crate::predict::{Backend, Prediction, TableScore, Timer};
use crate::runs::Entry;
use autoshard_cost::stack::{Constant, Stack};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};

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

/// Regrets by the constants in the product, and by constants that have not seen a row's group.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RegretLine {
    /// The source, or `all`.
    pub name: String,
    /// By the constants in the product.
    pub shipped: regret::Regret,
    /// By left-out constants.
    pub left_out: regret::Regret,
}

/// One group of the regret.
#[derive(Clone, Debug, PartialEq)]
pub struct RegretGroup {
    /// The source.
    pub tag: String,
    /// By the constants in the product.
    pub shipped: regret::Group,
    /// By left-out constants.
    pub left_out: Option<regret::Group>,
}

/// Rows that can be simulated.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Ready {
    /// Rows that their file marks as ready.
    pub rows: usize,
    /// Those that are predicted, in time or in memory.
    pub predicted: usize,
    /// Sources with ready rows and no prediction.
    pub silent: Vec<String>,
}

/// All that the page tells.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Report {
    /// Rows of the files.
    pub rows: usize,
    /// Rows that are evaluated: predicted, with a measured time.
    pub evaluated: usize,
    /// Rows that can be simulated.
    pub ready: Ready,
    /// Kernel tables.
    pub kernels: Vec<TableLine>,
    /// Tables of collectives.
    pub collectives: Vec<TableLine>,
    /// By source, and `all` last.
    pub tags: Vec<Line>,
    /// Sources whose rows are of two kinds, by kind.
    pub parted: Vec<Line>,
    /// By group.
    pub groups: Vec<Line>,
    /// Rows told one by one.
    pub singles: Vec<RowLine>,
    /// Rows predicted with what they do not state.
    pub assumed: Vec<AssumedLine>,
    /// Errors against the median of releases, and rows that disagree with it.
    pub releases: (Option<Errors>, Vec<Disagreement>),
    /// Regrets by source, and `all` last.
    pub regrets: Vec<RegretLine>,
    /// Groups of the regret, one by one.
    pub regret_groups: Vec<RegretGroup>,
    /// Memory by source.
    pub memory: Vec<MemoryLine>,
    /// Constants by framework.
    pub stacks: Vec<StackLines>,
    /// What ranges of predictions are made of.
    pub validated: Vec<Validated>,
    /// Why rows are not evaluated: source, reason, rows; most frequent first.
    pub skipped: Vec<(String, String, usize)>,
}

/// A row that is evaluated.
struct Case<'a> {
    index: usize,
    prepared: Prepared<'a>,
    shipped: Prediction,
    measured: f64,
    weight: f64,
}

/// Constants of a framework that a search found: what takes minutes, kept apart from what follows from them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Found {
    /// On all of its rows, in the order of its constants.
    pub whole: Vec<f64>,
    /// Which of them stand at a bound.
    pub at_bound: Vec<bool>,
    /// Without each group, by group.
    pub without: BTreeMap<String, Vec<f64>>,
}

/// By framework.
pub type Searched = BTreeMap<String, Found>;

/// Source whose releases are compared.
const RELEASES: &str = "mbridge";
/// Sources that are judged and not fitted on. BLOOM's chronicles print one early iteration of each layout, and the
/// width of its heads decides which kernel runs, which no table here tells.
const NOT_FITTED: [&str; 1] = ["bloom"];
/// Sources whose rows are told one by one.
const SINGLES: [&str; 3] = ["korthikanti_t5", "korthikanti_dp8", "bloom_prod"];

/// Evaluates the rows of one or more files. Constants that `searched` holds are taken from there, the others are
/// put there.
///
/// # Errors
/// Where constants cannot be found, which is a mistake in their ranges.
pub fn evaluate(
    entries: &[Entry],
    backend: &dyn Backend,
    options: &Options,
    searched: &mut Searched,
) -> Result<Report, FitError> {
    let (cases, outcomes) = cases(entries, backend, options.threads);
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
        let (lines, votes, values) = {
            let parent = parent.map_or(&[][..], Vec::as_slice);
            let known = search(cases, &samples, parent, options, searched.remove(name))?;
            let judged = judge(cases, &samples, &known);
            searched.insert(name.to_string(), known);
            judged
        };
        constants.push(lines);
        judged.extend(votes);
        found.insert(name, values);
    }
    judged.sort_by_key(|j| j.index);
    lines::find_ranges(&mut judged);
    constants.sort_by(|a: &StackLines, b| a.stack.cmp(&b.stack));
    let (regrets, regret_groups) = regrets(entries, &outcomes, &judged);
    Ok(Report {
        rows: entries.len(),
        evaluated: judged.len(),
        ready: ready(entries, &outcomes),
        tags: lines::lines(&judged, |j| &j.tag, true),
        parted: lines::parted(&judged),
        groups: lines::lines(&judged, |j| &j.group, false),
        singles: lines::one_by_one(&judged, &SINGLES),
        releases: lines::against_median(&judged, RELEASES),
        regrets,
        regret_groups,
        memory: memory(entries, &outcomes),
        stacks: constants,
        validated: judged.into_iter().map(|j| j.validated).collect(),
        skipped: reasons(&outcomes),
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

/// The rows that are evaluated, and what is predicted of all, by the constants in the product.
fn cases<'a>(entries: &'a [Entry], backend: &dyn Backend, threads: usize) -> (Vec<Case<'a>>, Vec<Outcome>) {
    let pairs: Vec<_> = entries.iter().zip(prepare(entries, backend, None)).collect();
    let made = parallel(&pairs, threads, |(entry, prepared)| {
        let predicted = prepared.as_ref().map_err(Clone::clone).and_then(|p| {
            let shipped = backend.predict_row(p.row, &p.machine, &p.stack).map_err(|e| e.to_string())?;
            Ok((p.clone(), shipped))
        });
        match predicted {
            Ok((p, shipped)) => (compare(&p, &shipped), Some((p, shipped))),
            Err(why) => (skipped(entry, why), None),
        }
    });
    let mut kept = Vec::new();
    let mut outcomes = Vec::with_capacity(made.len());
    for (index, (outcome, predicted)) in made.into_iter().enumerate() {
        if let (Some((prepared, shipped)), Some(measured)) = (predicted, outcome.measured_step) {
            if outcome.skipped.is_none() {
                kept.push((index, prepared, shipped, measured));
            }
        }
        outcomes.push(outcome);
    }
    let keys: Vec<Option<&str>> = kept.iter().map(|(_, p, ..)| p.row.repeat_key.as_deref()).collect();
    let weights = fit::votes(&keys);
    let cases = kept.into_iter().zip(weights).map(|((index, prepared, shipped, measured), weight)| Case {
        index,
        prepared,
        shipped,
        measured,
        weight,
    });
    (cases.collect(), outcomes)
}

/// Why rows are not evaluated, by source.
fn reasons(outcomes: &[Outcome]) -> Vec<(String, String, usize)> {
    let mut counts: BTreeMap<(&str, &str), usize> = BTreeMap::new();
    for o in outcomes {
        if let Some(why) = &o.skipped {
            *counts.entry((&o.tag, why)).or_default() += 1;
        }
    }
    let mut out: Vec<_> = counts.into_iter().map(|((tag, why), n)| (tag.to_string(), why.to_string(), n)).collect();
    out.sort_by_key(|(.., n)| std::cmp::Reverse(*n));
    out
}

/// How many of the rows that are ready are predicted.
fn ready(entries: &[Entry], outcomes: &[Outcome]) -> Ready {
    let mut out = Ready::default();
    let mut tags: BTreeMap<&str, usize> = BTreeMap::new();
    for (entry, outcome) in entries.iter().zip(outcomes) {
        let ready = match entry {
            Entry::Ready(_) => true,
            Entry::Skipped(s) => s.ready,
        };
        if ready {
            let predicted = usize::from(outcome.predicted_step.is_some());
            out.rows += 1;
            out.predicted += predicted;
            *tags.entry(&outcome.tag).or_default() += predicted;
        }
    }
    out.silent = tags.into_iter().filter(|(_, n)| *n == 0).map(|(t, _)| t.to_string()).collect();
    out
}

/// Regrets by source, and the groups one by one.
fn regrets(entries: &[Entry], outcomes: &[Outcome], judged: &[Judged]) -> (Vec<RegretLine>, Vec<RegretGroup>) {
    // The same rows, with what constants say that have not seen their group.
    let mut unseen = outcomes.to_vec();
    unseen.iter_mut().for_each(|o| o.predicted_step = None);
    for j in judged {
        unseen[j.index].predicted_step = Some(j.predicted);
    }
    let (shipped, unseen) = (trials(entries, outcomes), trials(entries, &unseen));
    let spreads = regret::spreads(&shipped);
    let groups = |trials: &[regret::Trial], tag: Option<&str>| {
        let mine: Vec<&regret::Trial> = trials.iter().filter(|t| tag.is_none_or(|tag| tag == t.tag)).collect();
        regret::groups(&mine, &spreads)
    };
    let mut tags: Vec<&str> = shipped.iter().map(|t| t.tag.as_str()).collect();
    tags.sort_unstable();
    tags.dedup();
    let line = |tag: Option<&str>| RegretLine {
        name: tag.unwrap_or("all").to_string(),
        shipped: regret::regret(&groups(&shipped, tag)),
        left_out: regret::regret(&groups(&unseen, tag)),
    };
    let lines = tags.iter().map(|t| line(Some(t))).chain([line(None)]).filter(|l| l.shipped.groups > 0).collect();
    let each = tags.iter().flat_map(|tag| {
        let others = groups(&unseen, Some(tag));
        let told = move |shipped: regret::Group| {
            let left_out = others.iter().find(|g| g.name == shipped.name).cloned();
            RegretGroup { tag: tag.to_string(), shipped, left_out }
        };
        groups(&shipped, Some(tag)).into_iter().map(told)
    });
    (lines, each.collect())
}

fn sample<'c>(case: &'c Case, backend: &'c dyn Backend) -> Sample<Timer<'c>> {
    let p = &case.prepared;
    Sample {
        row: backend.timer(p.row, &p.machine, &p.stack),
        measured: case.measured,
        weight: case.weight,
        group: p.row.group.to_string(),
        // Repeats of a configuration; other repeats, told by nothing but their equal time, are as well off apart.
        alike: p.row.repeat_key.as_ref().map(|key| hash(&(key, case.shipped.step_seconds.to_bits()))),
    }
}

fn hash(of: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    of.hash(&mut hasher);
    hasher.finish()
}

/// Finds a framework's constants, unless they are known for all of its groups.
fn search(
    cases: &[&Case],
    samples: &[Sample<Timer>],
    parent: &[Constant],
    options: &Options,
    known: Option<Found>,
) -> Result<Found, FitError> {
    let stack = &cases[0].prepared.stack;
    let whole = |f: &Found| f.whole.len() == stack.constants.len();
    if let Some(found) = known.filter(|f| whole(f) && samples.iter().all(|s| f.without.contains_key(&s.group))) {
        return Ok(found);
    }
    let mut knobs = knobs(stack, parent);
    // Too few runs say more about themselves than about a framework: such a stack keeps its parent's constants.
    let fitted = is_fitted(samples);
    knobs.iter_mut().for_each(|k| k.fixed |= !fitted);
    let predict = |values: &[f64], timer: &Timer| timer(values);
    let fitted_on = |(c, _): &(&&Case, &Sample<Timer>)| !NOT_FITTED.contains(&c.prepared.row.tag.as_str());
    let fitted_on: Vec<&Sample<Timer>> = cases.iter().zip(samples).filter(fitted_on).map(|(_, s)| s).collect();
    let Fit { values, at_bound, .. } = fit::fit(&knobs, &fitted_on, &predict, options)?;
    Ok(Found {
        whole: values,
        at_bound,
        without: fit::without_each_group(&knobs, samples, &fitted_on, &predict, options)?,
    })
}

/// Judges a framework's constants, row by row.
fn judge(cases: &[&Case], samples: &[Sample<Timer>], whole: &Found) -> (StackLines, Vec<Judged>, Vec<Constant>) {
    let stack = cases[0].prepared.stack.clone();
    let predict = |values: &[f64], timer: &Timer| timer(values);
    let out = fit::left_out(samples, &whole.without, &predict);
    let judged = cases.iter().zip(samples).zip(&out).map(|((case, sample), out)| {
        let error = |predicted: f64| Vote { value: predicted / case.measured - 1.0, weight: case.weight };
        let p = &case.prepared;
        let known = predict(&whole.whole, &sample.row);
        let off = |predicted: f64| (case.measured / predicted).ln().abs();
        Judged {
            index: case.index,
            id: p.row.id.clone(),
            tag: p.row.tag.clone(),
            group: sample.group.clone(),
            repeat: p.row.repeat_key.clone(),
            traits: Traits::of(p.row),
            measured: case.measured,
            predicted: out.predicted,
            known,
            left_out: out.vote(),
            in_sample: error(known),
            shipped: error(case.shipped.step_seconds),
            covered: Vote { value: f64::from(u8::from(inside(case))), weight: case.weight },
            roofline: p.peak().map(|peak| error(roofline(&case.shipped, p.row.gpus, peak))),
            validated: Validated {
                like: like(case),
                unseen: off(out.predicted),
                seen: off(known),
                weight: case.weight,
            },
            unseen: None,
            seen: None,
        }
    });
    let judged: Vec<Judged> = judged.collect();
    let found = stack.constants.iter().zip(&whole.whole).map(|(c, v)| Constant { name: c.name, value: *v });
    let sizes: Vec<Vote> = judged.iter().map(|j| Vote { value: j.left_out.value.abs(), ..j.left_out }).collect();
    let error = quantile(&sizes, HELD);
    (StackLines { error, ..stack_lines(&stack, whole, samples) }, judged, found.collect())
}

/// What a row's prediction is like, for the ranges of others.
fn like(case: &Case) -> Likeness {
    let (p, row) = (&case.prepared, case.prepared.row);
    let kind = (Traits::of(row).experts, row.precision.format().bytes() < 2.0);
    Likeness::new(&row.group, kind, row.gpus, &case.shipped, &p.machine)
}

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

fn stack_lines(stack: &Stack, whole: &Found, samples: &[Sample<Timer>]) -> StackLines {
    let one = |(i, c): (usize, &Constant)| {
        let r = range_of(c.name);
        ConstantLine {
            name: r.label,
            unit: r.unit,
            range: (r.low, r.high),
            shipped: c.value,
            fitted: whole.whole.get(i).copied(),
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

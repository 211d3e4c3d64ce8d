//! Bases one behind the other, side by side.

use super::base::{self, expert_flops, Base};
use super::expand::Expansion;
use super::leaf::Leaf;
use super::line::Line;
use super::outsize::is_too_large;
use super::space::{self, Inside};
use super::{Ask, Context};
use crate::predict::predictor::Predictor;
use crate::predict::{Layout, PredictError};
use autoshard_passes::predict::step::Scratch;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

/// A plan that was simulated.
#[derive(Clone, Debug, PartialEq)]
pub struct Found {
    /// Its layout.
    pub layout: Layout,
    /// Decoder layers of each stage.
    pub layers_per_stage: Vec<u64>,
    /// The same, where it is not the usual cut.
    pub stated: Option<Vec<u64>>,
    /// Seconds of a step.
    pub seconds: f64,
    /// What it counts by the objective.
    pub value: f64,
    /// The lower bound of that in the best order of axes.
    pub bound: f64,
    /// The lower bound in its own.
    pub own_bound: f64,
}

/// What a search has done.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Counts {
    /// Plans that were bounded one by one, by what they compute again, too; those that do not fit included.
    pub evaluated: u64,
    /// Simulations.
    pub simulated: u64,
    /// Layouts that do not fit whatever they compute again.
    pub too_large: u64,
    /// The least bound of a plan that fits, by the objective.
    pub least_bound: f64,
}

impl Default for Counts {
    fn default() -> Counts {
        Counts { evaluated: 0, simulated: 0, too_large: 0, least_bound: f64::INFINITY }
    }
}

impl Counts {
    pub(crate) fn add(&mut self, other: &Counts) {
        self.evaluated += other.evaluated;
        self.simulated += other.simulated;
        self.too_large += other.too_large;
        self.least_bound = self.least_bound.min(other.least_bound);
    }
}

/// What a search answers.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// The best plans, best first; empty where nothing fits.
    pub best: Vec<Found>,
    /// What was done.
    pub counts: Counts,
    /// Bases, and those that were expanded.
    pub bases: (usize, usize),
}

/// The best plans so far.
#[derive(Clone, Debug)]
pub(crate) struct Best {
    top: usize,
    /// Best first; of equal ones the first that came.
    pub all: Vec<Found>,
}

impl Best {
    pub fn new(top: usize) -> Best {
        Best { top: top.max(1), all: Vec::new() }
    }

    /// What a plan has to be below.
    pub fn threshold(&self) -> f64 {
        if self.all.len() < self.top {
            f64::INFINITY
        } else {
            self.all.last().map_or(f64::INFINITY, |f| f.value)
        }
    }

    pub fn add(&mut self, found: Found) {
        if self.all.contains(&found) {
            return;
        }
        let at = self.all.partition_point(|f| f.value <= found.value);
        self.all.insert(at, found);
        self.all.truncate(self.top);
    }
}

/// Searches the space.
///
/// # Errors
/// As predictions; that nothing fits is an answer.
pub fn search(ask: &Ask, predictor: &Predictor) -> Result<Outcome, PredictError> {
    let context = Context::new(ask, predictor)?;
    if context.fewest > ask.devices {
        let counts = Counts::default();
        return Ok(Outcome { best: Vec::new(), counts, bases: (0, 0) });
    }
    let mut bases = bases(&context, false)?;
    let smallest = bases.iter().map(|b| b.inside.micro_batch).min().unwrap_or(1);
    bases.sort_by_key(|b| turn(ask, b, smallest));
    let line = Line::new(ask.top);
    line.work(&bases, |b, mut best, scratch| {
        if b.bound >= best.threshold() {
            return Ok(None);
        }
        let mut expansion = Expansion::new(&context, b);
        expansion.search(b, &mut best, scratch)?;
        Ok(Some((best, expansion.counts)))
    })?;
    let (best, counts, expanded) = line.end();
    if ask.exhaustive {
        return exhaustive(&context, &best);
    }
    Ok(Outcome { best: best.all, counts, bases: (bases.len(), expanded) })
}

/// When to look at a base: first at the smallest micro-batch on the tensor-parallel ranks of a server, or as many as
/// heads allow, long sequences split; then at the smallest micro-batches inside a server; then by bounds alone. A bound
/// of a base knows no bubbles and little of memory, so the first ones by it are seldom good.
fn turn(ask: &Ask, base: &Base, smallest: u64) -> (bool, u64) {
    let server = ask.cluster.tiers.first().and_then(|t| t.fanout).unwrap_or(1);
    let i = &base.inside;
    let early = i.micro_batch == smallest && i.tp <= server;
    let split = ask.seq_len.div_ceil(POSITIONS).next_power_of_two();
    let as_usual = early && i.cp == split && (i.sp || i.tp == 1);
    (!early, if as_usual { server - i.tp } else { server })
}

/// Positions that a rank seldom has more of.
const POSITIONS: u64 = 16_384;

/// Bases by their bounds; with `all` those whose micro-batch is too large for any plan, too.
fn bases(context: &Context, all: bool) -> Result<Vec<Base>, PredictError> {
    let flops = expert_flops(context)?;
    let insides = space::insides(context.ask);
    // The smallest micro-batch comes first.
    let kinds: Vec<&[Inside]> = insides.chunk_by(|a, b| a.micro_batch < b.micro_batch).collect();
    let made = side_by_side(&kinds, |kind, _| {
        // Those below fit a device by themselves, those from here on do not.
        let (mut low, mut high) = (0, kind.len());
        while !all && low < high {
            let middle = (low + high) / 2;
            match is_too_large(context, &kind[middle])? {
                true => high = middle,
                false => low = middle + 1,
            }
        }
        base::bases(context, &kind[..high], flops)
    })?;
    let mut out: Vec<Base> = made.into_iter().flatten().collect();
    out.sort_by(|a, b| a.bound.total_cmp(&b.bound));
    Ok(out)
}

/// Every plan's bound, and every plan simulated whose bound is not above the best that a search has found. What that
/// search simulated counts for nothing here.
fn exhaustive(context: &Context, found: &Best) -> Result<Outcome, PredictError> {
    let (bases, limit) = (bases(context, true)?, found.threshold());
    let done = side_by_side(&bases, |b, _| {
        let mut expansion = Expansion::new(context, b);
        Ok((expansion.all(b, limit)?, expansion.counts))
    })?;
    let mut counts = Counts::default();
    let mut leaves: Vec<Leaf> = Vec::new();
    for (more, c) in done {
        leaves.extend(more);
        counts.add(&c);
    }
    leaves.sort_by(|a, b| a.bound.total_cmp(&b.bound));
    let parts: Vec<&[Leaf]> = leaves.chunks(64).collect();
    let played = side_by_side(&parts, |leaves, scratch| {
        let (mut best, mut counts) = (Best::new(context.ask.top), Counts::default());
        for leaf in leaves.iter() {
            let mut expansion = Expansion::of(context);
            expansion.finish(leaf.clone(), &mut best, scratch)?;
            counts.add(&expansion.counts);
        }
        Ok((best, counts))
    })?;
    let mut best = Best::new(context.ask.top);
    for (more, c) in played {
        more.all.into_iter().for_each(|f| best.add(f));
        counts.add(&c);
    }
    Ok(Outcome { best: best.all, counts, bases: (bases.len(), bases.len()) })
}

/// Works on all of them with as many threads as there are cores; answers in their order.
pub(crate) fn side_by_side<T: Sync, U: Send>(
    items: &[T],
    work: impl Fn(&T, &mut Scratch) -> Result<U, PredictError> + Sync,
) -> Result<Vec<U>, PredictError> {
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get()).min(items.len().max(1));
    let next = AtomicUsize::new(0);
    let answers: Mutex<Vec<(usize, Result<U, PredictError>)>> = Mutex::new(Vec::with_capacity(items.len()));
    let run = || {
        let mut scratch = Scratch::default();
        let mut own = Vec::new();
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let Some(item) = items.get(at) else { break };
            own.push((at, work(item, &mut scratch)));
        }
        answers.lock().unwrap_or_else(PoisonError::into_inner).extend(own);
    };
    match threads {
        0 | 1 => run(),
        n => std::thread::scope(|s| {
            for _ in 1..n {
                s.spawn(run);
            }
            run();
        }),
    }
    let mut all = answers.into_inner().unwrap_or_else(PoisonError::into_inner);
    all.sort_by_key(|(at, _)| *at);
    all.into_iter().map(|(_, answer)| answer).collect()
}

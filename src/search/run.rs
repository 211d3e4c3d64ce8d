//! Bases in the order of their bounds, in batches side by side.

use super::base::{base, expert_flops, Base};
use super::expand::{Expansion, Leaf};
use super::{space, Ask, Context};
use crate::predict::predictor::Predictor;
use crate::predict::prices::Prices;
use crate::predict::{CpMethod, Layout, PredictError, Schedule};
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
    /// Lower bounds of plans, those that do not fit included.
    pub evaluated: u64,
    /// Simulations.
    pub simulated: u64,
    /// Plans that do not fit.
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
    fn add(&mut self, other: &Counts) {
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
    fn new(top: usize) -> Best {
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
    let any = space::Inside { tp: 1, sp: false, cp: 1, cp_method: CpMethod::Ring, micro_batch: 1 };
    let layout = space::layout(ask, &any, (1, 1), (1, 1), (Schedule::OneFOneB, 1), (0, 1), false);
    let prices = Prices::new(predictor, &ask.job(&layout, None))?;
    let fastest = prices.fastest();
    let (cuts, orders) = Default::default();
    let context = Context { ask, predictor, prices, fastest, cuts, orders };
    let bases = bases(&context)?;
    let mut best = Best::new(ask.top);
    let mut counts = Counts::default();
    if let Some(seed) = seed(ask, &bases) {
        let mut expansion = Expansion::new(&context);
        expansion.search(seed, &mut best, &mut Scratch::default())?;
        counts.add(&expansion.counts);
    }
    let (mut at, mut size) = (0, 4);
    while at < bases.len() && bases[at].bound < best.threshold() {
        let batch = &bases[at..(at + size).min(bases.len())];
        let done = side_by_side(batch, |b, scratch| {
            let (mut best, mut expansion) = (best.clone(), Expansion::new(&context));
            if b.bound < best.threshold() {
                expansion.search(b, &mut best, scratch)?;
            }
            Ok((best, expansion.counts))
        })?;
        for (more, c) in done {
            more.all.into_iter().for_each(|found| best.add(found));
            counts.add(&c);
        }
        at += batch.len();
        size = (2 * size).min(LARGEST_BATCH);
    }
    if ask.exhaustive {
        return exhaustive(&context, &bases, &best);
    }
    Ok(Outcome { best: best.all, counts, bases: (bases.len(), at) })
}

/// Bases that are expanded by one threshold at most.
const LARGEST_BATCH: usize = 32;

/// Where to look first: one sequence a micro-batch on the tensor-parallel ranks of a server, or as many of them as
/// heads allow. A bound of a base knows no memory and no bubbles, so the first ones by it are seldom good.
fn seed<'a>(ask: &Ask, bases: &'a [Base]) -> Option<&'a Base> {
    let server = ask.cluster.tiers.first().and_then(|t| t.fanout).unwrap_or(1);
    let key = |b: &&Base| {
        let i = &b.inside;
        (i.micro_batch, i.cp, i.tp.abs_diff(server), !i.sp)
    };
    bases.iter().min_by_key(key)
}

/// All bases by their bounds.
fn bases(context: &Context) -> Result<Vec<Base>, PredictError> {
    let flops = expert_flops(context)?;
    let insides = space::insides(context.ask);
    let mut out = side_by_side(&insides, |i, _| base(context, *i, flops))?;
    out.sort_by(|a, b| a.bound.total_cmp(&b.bound));
    Ok(out)
}

/// Every plan's bound, and every plan simulated whose bound is not above the best that a search has found. What that
/// search simulated counts for nothing here.
fn exhaustive(context: &Context, bases: &[Base], found: &Best) -> Result<Outcome, PredictError> {
    let limit = found.threshold();
    let done = side_by_side(bases, |b, _| {
        let mut expansion = Expansion::new(context);
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
        let (mut best, mut expansion) = (Best::new(context.ask.top), Expansion::new(context));
        leaves.iter().try_for_each(|leaf| expansion.simulate(leaf, &mut best, scratch))?;
        Ok((best, expansion.counts))
    })?;
    let mut best = Best::new(context.ask.top);
    for (more, c) in played {
        more.all.into_iter().for_each(|f| best.add(f));
        counts.add(&c);
    }
    Ok(Outcome { best: best.all, counts, bases: (bases.len(), bases.len()) })
}

/// Works on all of them with as many threads as there are cores; answers in their order.
fn side_by_side<T: Sync, U: Send>(
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

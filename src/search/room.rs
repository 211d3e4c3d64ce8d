//! What is decided inside a plan: how layers are cut into stages, and how many each stage computes again so that it
//! fits its device.

use super::base::Seconds;
use super::bound;
use super::variant::Variant;
use super::Context;
use crate::predict::cut::{chunks_of, cut, Cut};
use crate::predict::memory::{Functions, Moments, Play, Stage};
use crate::predict::predictor::{data, Job};
use crate::predict::{Layout, PredictError, Recompute, Schedule};
use autoshard_passes::predict::step::Data;
use autoshard_passes::profile::{Parameters, Saved};
use rustc_hash::FxHashMap;
use std::sync::{Arc, Mutex, PoisonError};

/// Cuts that were made.
pub(crate) type Cuts = Mutex<FxHashMap<(bool, u64, u64), Option<Arc<Cut>>>>;

/// The usual cut of a layout; `None` where the model has no layers for it.
pub(crate) fn usual(context: &Context, l: &Layout) -> Option<Arc<Cut>> {
    let chunks = chunks_of(l.schedule, l.vpp);
    let key = (matches!(l.schedule, Schedule::ZbV | Schedule::DualPipeV), l.pp, chunks);
    let mut all = context.cuts.lock().unwrap_or_else(PoisonError::into_inner);
    let made = || {
        let schedule = if l.pp > 1 { l.schedule } else { Schedule::OneFOneB };
        cut(&context.calls.order, &context.calls.layer, schedule, (l.pp, l.vpp), None).ok().map(Arc::new)
    };
    all.entry(key).or_insert_with(made).clone()
}

/// Layers by stage such that the slowest stage has least to do, where that is less than in the usual cut. Layers count
/// their mean; what is on a stage beside them counts what it takes.
pub(crate) fn balanced(is_layer: &[bool], l: &Layout, usual: &Cut, calls: &[Seconds]) -> Option<Vec<u64>> {
    let chunks = chunks_of(l.schedule, l.vpp);
    let total: u64 = usual.layers.iter().sum();
    if l.pp < 2 || total == 0 {
        return None;
    }
    let of = |layer: bool, units: &Vec<Vec<(usize, usize)>>| -> f64 {
        let units = units.iter().flatten().filter(|(f, _)| is_layer[*f] == layer);
        units.map(|(f, n)| *n as f64 * calls[*f].once()).sum()
    };
    let each = usual.stages.iter().map(|s| of(true, s)).sum::<f64>() / total as f64;
    let beside: Vec<f64> = usual.stages.iter().map(|s| of(false, s)).collect();
    let slowest = |counts: &[u64]| counts.iter().zip(&beside).map(|(n, b)| *n as f64 * each + b).fold(0.0, f64::max);
    let mean = (total as f64 * each + beside.iter().sum::<f64>()) / l.pp as f64;
    if WORTH * slowest(&usual.layers) <= mean {
        return None;
    }
    let least = |s: usize| if s == 0 || s + 1 == beside.len() { chunks - 1 } else { chunks };
    // What fits below the mean anyway, and then one by one.
    let below = |s: usize| (((mean - beside[s]) / each).floor().max(0.0) as u64).max(least(s));
    let mut counts: Vec<u64> = (0..beside.len()).map(below).collect();
    let mut left = total.checked_sub(counts.iter().sum())?;
    while left > 0 {
        // To the stage that is done first; of equal ones to the last, which holds fewest micro-batches.
        let time = |s: &usize| (counts[*s] + 1) as f64 * each + beside[*s];
        let s = (0..beside.len()).rev().min_by(|a, b| time(a).total_cmp(&time(b)))?;
        counts[s] += 1;
        left -= 1;
    }
    (slowest(&counts) < WORTH * slowest(&usual.layers)).then_some(counts)
}

/// Share of the slowest stage's time in the usual cut below which another one is worth saying.
const WORTH: f64 = 0.998;

/// Whether a plan fits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Fit {
    /// Not with all layers computed again.
    No,
    /// A stage is too slow with what it has to compute again.
    TooSlow,
    /// With so many layers of each stage computed again.
    Counts(Vec<u64>),
}

/// By stage: elements, dense and of experts, and bytes of buffers.
pub(crate) type Sizes = Arc<[([f64; 2], f64)]>;

/// The memory of one cut under one recomputation policy.
pub(crate) struct Rooms {
    saved: Arc<Vec<Saved>>,
    layer: Vec<bool>,
    parameters: Vec<Parameters>,
    boundary: f64,
    allocator: f64,
    moments: Arc<Moments>,
    /// Bytes that a device may take as predicted.
    limit: f64,
    /// Stages with the chunks of an earlier one: their states are the same.
    like: Vec<usize>,
    /// By stage: its elements, dense and of experts, and bytes of its buffers; to be filled from [`Rooms::sizes`].
    pub stages: Sizes,
    /// Where the numbers of a stage begin.
    offsets: Vec<usize>,
    /// Bytes that come and go, by what is shared and by stage and layers computed again; NaN where not known yet.
    moving: [Vec<f64>; CLASSES],
}

impl Rooms {
    /// `job` has the policy that calls follow where they compute again.
    ///
    /// # Errors
    /// As predictions.
    pub fn new(
        context: &Context,
        job: &Job,
        saved: Arc<Vec<Saved>>,
        variant: &Variant,
        cut: &Cut,
    ) -> Result<Rooms, PredictError> {
        let room = &context.ask.room;
        let stages = cut.stages.iter().enumerate();
        let offsets = cut.layers.iter().scan(0, |at, n| {
            *at += *n as usize + 1;
            Some(*at - *n as usize - 1)
        });
        let mut like: Vec<usize> = Vec::with_capacity(cut.stages.len());
        for (i, s) in stages {
            // Most stages are like the one before.
            let before = i.checked_sub(1).filter(|j| cut.stages[*j] == *s);
            like.push(before.map_or(i, |j| like[j]));
        }
        Ok(Rooms {
            saved,
            layer: context.calls.layer.clone(),
            parameters: variant.parameters.clone(),
            boundary: variant.boundary,
            allocator: job.stack.habits.memory.allocator,
            moments: context.predictor.moments(&Play::of(job.layout, cut.chunks()))?,
            limit: room.bytes / (1.0 + room.margin),
            like,
            stages: Sizes::from([]),
            offsets: offsets.collect(),
            moving: Default::default(),
        })
    }

    /// Elements and bytes of buffers by stage.
    pub fn sizes(&self, job: &Job, cut: &Cut) -> Vec<([f64; 2], f64)> {
        let (at, functions) = (self.at(job, cut), self.functions());
        let mut out: Vec<([f64; 2], f64)> = Vec::with_capacity(self.like.len());
        for (i, like) in self.like.iter().enumerate() {
            let stage = at.stage(&functions, i, 0);
            out.push(if *like < i { out[*like] } else { (stage.elements(), stage.buffered()) });
        }
        out
    }

    /// Bytes of a stage's device when so many of its layers are computed again, `still` of which never change.
    fn device(&mut self, at: &At, stage: usize, count: u64, still: f64) -> f64 {
        let place = self.offsets[stage] + count as usize;
        let known = self.moving[at.class].get(place).copied().filter(|bytes| !bytes.is_nan() && !at.moves);
        let moving = match known {
            Some(known) => known,
            None => {
                let functions = self.functions();
                let moving =
                    self.moments.stages.get(stage).map_or(0.0, |m| at.stage(&functions, stage, count).moving(m));
                let numbers = &mut self.moving[at.class];
                if numbers.is_empty() {
                    let all = at.cut.layers.iter().map(|n| *n as usize + 1).sum();
                    numbers.resize(all, f64::NAN);
                }
                numbers[place] = moving;
                moving
            }
        };
        (still + moving) * self.allocator + at.beyond
    }

    /// A plan of this pipeline.
    fn at<'a>(&self, job: &'a Job<'a>, cut: &'a Cut) -> At<'a> {
        let mut out = At { job, data: data(job), cut, class: 0, beyond: 0.0, moves: false };
        out.class = class(&out.data);
        let functions = self.functions();
        let stage = out.stage(&functions, 0, 0);
        let (beyond, moves) = (stage.beyond(), stage.moves_by_share());
        (out.beyond, out.moves) = (beyond, moves);
        out
    }

    /// The fewest layers to compute again in any plan of this pipeline: with all states shared by all data ranks and
    /// nothing gathered, as `job` says by ZeRO-3 in one group.
    pub fn least_counts(&mut self, job: &Job, cut: &Cut, too_slow: impl Fn(usize, u64) -> bool) -> Fit {
        let (shared, resting) = self.least(job, cut);
        if resting.moves {
            return Fit::Counts(vec![0; cut.layers.len()]);
        }
        self.counts_of(&shared, &resting, too_slow)
    }

    /// Whether some plan of this pipeline may fit when so many layers of each stage are computed again.
    pub fn may_fit(&mut self, job: &Job, cut: &Cut, counts: &[u64]) -> bool {
        let (shared, resting) = self.least(job, cut);
        resting.moves || self.fits_at(&shared, &resting, counts)
    }

    /// What holds least still, and what moves least.
    fn least<'a>(&self, job: &'a Job<'a>, cut: &'a Cut) -> (At<'a>, At<'a>) {
        let (shared, at) = (self.at(job, cut), self.at(job, cut));
        (shared, At { data: Data { zero: 1, ..at.data }, class: RESTING, ..at })
    }

    fn functions(&self) -> Functions<'_> {
        Functions { saved: &self.saved, parameters: &self.parameters, layer: &self.layer, boundary: self.boundary }
    }

    /// Bytes of a stage that recomputation does not change; `known` are those of the stage before.
    fn still(&self, at: &At, stage: usize, known: Option<f64>) -> f64 {
        let like = self.like[stage];
        match known.filter(|_| like < stage && like == self.like[stage - 1]) {
            Some(same) => same,
            None => {
                let (elements, buffers) = self.stages[stage];
                at.stage(&self.functions(), stage, 0).still(elements, buffers)
            }
        }
    }

    /// Whether the first stage may fit with all its layers computed again, in some plan of this pipeline.
    pub fn first_may_fit(&mut self, job: &Job, cut: &Cut) -> bool {
        let (shared, resting) = self.least(job, cut);
        let still = self.still(&shared, 0, None);
        resting.moves || self.device(&resting, 0, cut.layers[0], still) <= self.limit
    }

    /// The fewest layers that each stage has to compute again.
    pub fn counts(&mut self, job: &Job, cut: &Cut, too_slow: impl Fn(usize, u64) -> bool) -> Fit {
        let at = self.at(job, cut);
        self.counts_of(&at, &at, too_slow)
    }

    /// Of a plan whose states are those of one way to share, and what comes and goes those of another.
    fn counts_of(&mut self, states: &At, moving: &At, too_slow: impl Fn(usize, u64) -> bool) -> Fit {
        let mut still = None;
        let mut out: Vec<u64> = Vec::with_capacity(self.like.len());
        for stage in 0..self.like.len() {
            let bytes = self.still(states, stage, still);
            still = Some(bytes);
            let Some(count) = self.count(moving, stage, bytes, out.last().copied()) else { return Fit::No };
            if too_slow(stage, count) {
                return Fit::TooSlow;
            }
            out.push(count);
        }
        Fit::Counts(out)
    }

    /// The fewest layers of a stage; `before` is what the stage before it takes. A stage like it that holds no more
    /// micro-batches takes no more.
    fn count(&mut self, at: &At, stage: usize, still: f64, before: Option<u64>) -> Option<u64> {
        let like = self.like[stage] < stage && self.moments.falls.get(stage) == Some(&true) && !at.moves;
        let (mut low, mut high) = (0, at.cut.layers[stage]);
        match before.filter(|_| like) {
            Some(0) => return Some(0),
            // Often it takes as many.
            Some(most) if self.device(at, stage, most - 1, still) > self.limit => return Some(most),
            Some(most) => high = most - 1,
            None if self.device(at, stage, high, still) > self.limit => return None,
            None => (),
        }
        if self.device(at, stage, 0, still) <= self.limit {
            return Some(0);
        }
        // `low` does not fit, `high` does.
        while high - low > 1 {
            let middle = (low + high) / 2;
            match self.device(at, stage, middle, still) <= self.limit {
                true => high = middle,
                false => low = middle,
            }
        }
        Some(high)
    }

    /// Whether all stages fit when so many layers of each are computed again.
    pub fn fits(&mut self, job: &Job, cut: &Cut, counts: &[u64]) -> bool {
        let at = self.at(job, cut);
        self.fits_at(&at, &at, counts)
    }

    fn fits_at(&mut self, states: &At, moving: &At, counts: &[u64]) -> bool {
        let mut still = None;
        (0..self.like.len()).all(|stage| {
            let bytes = self.still(states, stage, still);
            still = Some(bytes);
            self.device(moving, stage, counts[stage], bytes) <= self.limit
        })
    }
}

/// Ways to share that differ in what comes and goes, [`RESTING`] among them.
const CLASSES: usize = 5;

/// Nothing gathered or reduced, but what calls save as where gradients are shared.
const RESTING: usize = 4;

/// The way to share: ZeRO-0 and 1, 2, 3, and 3 that keeps.
fn class(data: &Data) -> usize {
    match (data.zero, data.keep) {
        (0 | 1, _) => 0,
        (2, _) => 1,
        (_, false) => 2,
        (_, true) => 3,
    }
}

/// A plan whose memory is asked for.
struct At<'a> {
    job: &'a Job<'a>,
    data: Data,
    cut: &'a Cut,
    /// What shares, as far as it decides what comes and goes.
    class: usize,
    /// Bytes outside of the allocator.
    beyond: f64,
    /// Whether what moves depends on how many ranks share.
    moves: bool,
}

impl At<'_> {
    fn stage<'s>(&'s self, f: &'s Functions<'s>, stage: usize, count: u64) -> Stage<'s> {
        let layers = self.cut.layers[stage];
        let share = if layers == 0 { 1.0 } else { count as f64 / layers as f64 };
        Stage { job: self.job, f, data: &self.data, chunks: &self.cut.stages[stage], share }
    }
}

/// Layers of each stage that a recomputation computes again.
pub fn counts(recompute: &Recompute, cut: &Cut) -> Vec<u64> {
    let of = |(s, n): (usize, &u64)| match recompute {
        Recompute::None => 0,
        other => (other.share(s, &cut.layers) * *n as f64).round() as u64,
    };
    cut.layers.iter().enumerate().map(of).collect()
}

/// Recomputation of these counts in the words of a layout.
pub fn said(counts: &[u64], cut: &Cut) -> Recompute {
    match () {
        () if counts.iter().all(|n| *n == 0) => Recompute::None,
        () if counts == cut.layers => Recompute::Full,
        () => Recompute::Stages(counts.to_vec()),
    }
}

/// Costs of a cut's stages under a recomputation.
pub fn costs(cut: &Cut, calls: &[Seconds], recompute: &Recompute) -> bound::Stages {
    bound::stages(cut, calls, |s| recompute.share(s, &cut.layers))
}

//! What is decided inside a plan: how layers are cut into stages, and how many each stage computes again so that it
//! fits its device.

use super::base::Seconds;
use super::bound;
use super::Context;
use crate::predict::cut::{chunks_of, cut, Cut};
use crate::predict::memory::{Functions, Moments, Play, Stage};
use crate::predict::predictor::{data, Job, Profiles};
use crate::predict::{Layout, PredictError, Recompute, Schedule};
use autoshard_passes::predict::step::Data;
use autoshard_passes::profile::{Parameters, Saved};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

/// Cuts that were made.
pub(crate) type Cuts = Mutex<HashMap<(bool, u64, u64), Option<Arc<Cut>>>>;

/// The usual cut of a layout; `None` where the model has no layers for it.
pub(crate) fn usual(context: &Context, profiles: &Profiles, l: &Layout) -> Option<Arc<Cut>> {
    let chunks = chunks_of(l.schedule, l.vpp);
    let key = (matches!(l.schedule, Schedule::ZbV | Schedule::DualPipeV), l.pp, chunks);
    let mut all = context.cuts.lock().unwrap_or_else(PoisonError::into_inner);
    let made = || {
        let schedule = if l.pp > 1 { l.schedule } else { Schedule::OneFOneB };
        cut(&profiles.calls, &profiles.layer, schedule, (l.pp, l.vpp), None).ok().map(Arc::new)
    };
    all.entry(key).or_insert_with(made).clone()
}

/// Layers by stage such that the slowest stage has least to do, where that is less than in the usual cut. Layers count
/// their mean; what is on a stage beside them counts what it takes.
pub(crate) fn balanced(profiles: &Profiles, l: &Layout, usual: &Cut, calls: &[Seconds]) -> Option<Vec<u64>> {
    let chunks = chunks_of(l.schedule, l.vpp);
    let total: u64 = usual.layers.iter().sum();
    if l.pp < 2 || total == 0 {
        return None;
    }
    let of = |layer: bool, units: &Vec<Vec<(usize, usize)>>| -> f64 {
        let units = units.iter().flatten().filter(|(f, _)| profiles.layer[*f] == layer);
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

/// The memory of one cut under one recomputation policy.
pub(crate) struct Rooms {
    saved: Arc<Vec<Saved>>,
    profiles: Arc<Profiles>,
    parameters: Vec<Parameters>,
    moments: Arc<Moments>,
    /// Bytes that a device may take as predicted.
    limit: f64,
    /// Stages with the chunks of an earlier one: their states are the same.
    like: Vec<usize>,
    /// Where the numbers of a stage begin.
    offsets: Vec<usize>,
    /// Bytes that come and go, by what is shared and by stage and layers computed again; NaN where not known yet.
    moving: [Vec<f64>; 8],
}

impl Rooms {
    /// `job` has the policy that calls follow where they compute again.
    ///
    /// # Errors
    /// As predictions.
    pub fn new(context: &Context, job: &Job, profiles: &Arc<Profiles>, cut: &Cut) -> Result<Rooms, PredictError> {
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
            saved: context.predictor.saved(job)?,
            profiles: profiles.clone(),
            parameters: profiles.functions.iter().map(|f| f.parameters).collect(),
            moments: context.predictor.moments(&Play::of(job.layout, cut.chunks()))?,
            limit: room.bytes / (1.0 + room.margin),
            like,
            offsets: offsets.collect(),
            moving: Default::default(),
        })
    }

    /// Bytes of a stage's device when so many of its layers are computed again, `still` of which never change.
    fn device(&mut self, at: &At, stage: usize, count: u64, still: f64) -> f64 {
        let class = usize::from(at.data.zero) + 4 * usize::from(at.data.keep);
        let place = self.offsets[stage] + count as usize;
        let known = self.moving[class].get(place).copied().unwrap_or(f64::NAN);
        let functions = self.functions();
        let s = at.stage(&functions, stage, count);
        if !known.is_nan() && !s.moves_by_share() {
            return s.device(still, known);
        }
        let moving = self.moments.get(stage).map_or(0.0, |m| s.moving(m));
        let device = s.device(still, moving);
        let numbers = &mut self.moving[class];
        if numbers.is_empty() {
            let all = at.cut.layers.iter().map(|n| *n as usize + 1).sum();
            numbers.resize(all, f64::NAN);
        }
        numbers[place] = moving;
        device
    }

    /// The fewest layers to compute again in any plan of this pipeline: with all states shared by all data ranks and
    /// nothing gathered, as `job` says by ZeRO-3 in one group. `None` where nothing fits, or as soon as a stage is too
    /// slow with what it computes again.
    pub fn least_counts(&mut self, job: &Job, cut: &Cut, too_slow: impl Fn(usize, u64) -> bool) -> Option<Vec<u64>> {
        let shared = At { job, data: data(job), cut };
        let still = self.still(&shared);
        let resting = At { data: Data { zero: 1, ..shared.data }, ..shared };
        if resting.stage(&self.functions(), 0, 0).moves_by_share() {
            return Some(vec![0; cut.layers.len()]);
        }
        let mut out: Vec<u64> = Vec::with_capacity(still.len());
        for (stage, still) in still.iter().enumerate() {
            let count = self.count(&resting, stage, *still, out.last().copied())?;
            out.push(count);
            // One stage that is slow enough is all there is to know.
            if too_slow(stage, count) {
                return None;
            }
        }
        Some(out)
    }

    fn functions(&self) -> Functions<'_> {
        Functions {
            saved: &self.saved,
            parameters: &self.parameters,
            layer: &self.profiles.layer,
            boundary: self.profiles.boundary_bytes(),
        }
    }

    /// By stage: bytes that recomputation does not change.
    fn still(&self, at: &At) -> Vec<f64> {
        let functions = self.functions();
        let mut out: Vec<f64> = Vec::with_capacity(self.like.len());
        for (i, like) in self.like.iter().enumerate() {
            out.push(if *like < i { out[*like] } else { at.stage(&functions, i, 0).still() });
        }
        out
    }

    /// The fewest layers that each stage has to compute again; `None` where one does not fit even so.
    pub fn counts(&mut self, job: &Job, cut: &Cut) -> Option<Vec<u64>> {
        let at = At { job, data: data(job), cut };
        let still = self.still(&at);
        let mut out: Vec<u64> = Vec::with_capacity(still.len());
        for (stage, still) in still.iter().enumerate() {
            let count = self.count(&at, stage, *still, out.last().copied())?;
            out.push(count);
        }
        Some(out)
    }

    /// The fewest layers of a stage; `hint` is what the stage before takes, which is often as many or one more.
    fn count(&mut self, at: &At, stage: usize, still: f64, hint: Option<u64>) -> Option<u64> {
        let (mut low, mut high) = (0, at.cut.layers[stage]);
        if self.device(at, stage, 0, still) <= self.limit {
            return Some(0);
        }
        if let Some(hint) = hint.filter(|h| (1..=high).contains(h)) {
            match self.device(at, stage, hint, still) <= self.limit {
                true if self.device(at, stage, hint - 1, still) > self.limit => return Some(hint),
                true => high = hint - 1,
                false => low = hint,
            }
        }
        if high == at.cut.layers[stage] && self.device(at, stage, high, still) > self.limit {
            return None;
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

    /// Bytes of each stage's device when so many layers of each are computed again.
    pub fn devices(&mut self, job: &Job, cut: &Cut, counts: &[u64]) -> Vec<f64> {
        let at = At { job, data: data(job), cut };
        let still = self.still(&at);
        still.iter().enumerate().map(|(stage, still)| self.device(&at, stage, counts[stage], *still)).collect()
    }

    /// Whether all stages fit.
    pub fn fits(&mut self, job: &Job, cut: &Cut, counts: &[u64]) -> bool {
        self.devices(job, cut, counts).iter().all(|bytes| *bytes <= self.limit)
    }
}

/// A plan whose memory is asked for.
struct At<'a> {
    job: &'a Job<'a>,
    data: Data,
    cut: &'a Cut,
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

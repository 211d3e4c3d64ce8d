//! From what decides a micro-batch's kernels to plans, level by level.

use super::base::Base;
use super::bound::{self, Chain};
use super::room::{self, Rooms};
use super::run::{Best, Counts, Found};
use super::space;
use super::variant::{places, Variant, Variants};
use super::Context;
use crate::predict::cut::{cut, Cut};
use crate::predict::predictor::{self, blocks, data, sent_on};
use crate::predict::prices::{nearest, Groups};
use crate::predict::{Layout, Module, PredictError, Recompute, Schedule};
use autoshard_cost::collectives::Kind as Message;
use autoshard_cost::schedule::Player;
use autoshard_cost::stack::ConstantName;
use autoshard_passes::predict::step::Scratch;
use autoshard_passes::predict::Group;
use std::collections::hash_map::{Entry, HashMap};
use std::sync::Arc;

/// What a plan may compute again.
#[derive(Clone, Debug, PartialEq)]
pub enum Policy {
    /// Nothing, or whole layers: as few of each stage as memory wants.
    Layers,
    /// As it is said.
    Said(Recompute),
}

/// The policies of a space, [`Policy::Layers`] first where nothing is fixed: the others are tried where it has to
/// compute something again.
pub(crate) fn policies(context: &Context) -> Vec<Policy> {
    if let Some(fixed) = &context.ask.fix.recompute {
        return vec![Policy::Said(fixed.clone())];
    }
    let mut light = vec![Module::LayerNorm];
    light.extend((context.ask.facts.experts > 0).then_some(Module::MoeAct));
    let selective = |modules: Vec<Module>| Policy::Said(Recompute::Selective(modules));
    vec![Policy::Layers, selective(vec![Module::CoreAttn]), selective(light), selective(vec![Module::Mlp])]
}

/// A pipeline with a schedule and a cut, whatever data ranks share.
struct Pipeline {
    bound: f64,
    /// Sharing is left open.
    layout: Layout,
    cut: Arc<Cut>,
    /// Where it is not the usual cut.
    layers: Option<Vec<u64>>,
}

/// A plan before orders of axes, with its bound.
#[derive(Clone, Debug)]
pub(crate) struct Leaf {
    pub bound: f64,
    pub layout: Layout,
    pub cut: Arc<Cut>,
    pub layers: Option<Vec<u64>>,
    policy: u8,
}

/// Seconds of a stage's calls for a micro-batch.
fn stage_seconds(chunks: &[Vec<(usize, usize)>], of: impl Fn(usize) -> f64) -> f64 {
    chunks.iter().flatten().map(|(f, n)| *n as f64 * of(*f)).sum()
}

/// One base being expanded.
pub(crate) struct Expansion<'a> {
    context: &'a Context<'a>,
    policies: Vec<Policy>,
    variants: Variants,
    plays: Plays,
    pub counts: Counts,
}

/// Pipelines that were played without data parallelism, by their costs.
#[derive(Default)]
struct Plays {
    player: Player,
    known: HashMap<Vec<u64>, Vec<f64>>,
}

impl Plays {
    /// When each stage ends.
    fn get(&mut self, chain: &Chain) -> Result<&[f64], PredictError> {
        let numbers = chain.stages.iter().flatten().flatten().map(|x| x.to_bits());
        let sizes = [chain.kind as u64, chain.microbatches, chain.stages.len() as u64, chain.hop.to_bits()];
        let key: Vec<u64> = sizes.into_iter().chain(numbers).collect();
        let Plays { player, known } = self;
        match known.entry(key) {
            Entry::Occupied(found) => Ok(found.into_mut()),
            Entry::Vacant(free) => {
                let ends = chain.play(player).map_err(|e| PredictError::Missing {
                    entity: chain.kind.to_string(),
                    what: format!("a play ({e})"),
                    instead: "use another schedule".to_string(),
                })?;
                Ok(free.insert(ends))
            }
        }
    }
}

impl<'a> Expansion<'a> {
    pub fn new(context: &'a Context<'a>) -> Expansion<'a> {
        Expansion {
            context,
            policies: policies(context),
            variants: Variants::default(),
            plays: Plays::default(),
            counts: Counts::default(),
        }
    }

    /// Adds all plans of a base that are better than the best.
    ///
    /// # Errors
    /// As predictions.
    pub fn search(&mut self, base: &Base, best: &mut Best, scratch: &mut Scratch) -> Result<(), PredictError> {
        let mut pipelines = self.pipelines(base, best.threshold())?;
        pipelines.sort_by(|a, b| a.bound.total_cmp(&b.bound));
        for pipeline in &pipelines {
            if pipeline.bound >= best.threshold() {
                break;
            }
            let mut leaves = self.leaves(pipeline, best.threshold())?;
            leaves.sort_by(|a, b| a.bound.total_cmp(&b.bound));
            for leaf in &leaves {
                if leaf.bound >= best.threshold() {
                    break;
                }
                self.simulate(leaf, best, scratch)?;
            }
        }
        Ok(())
    }

    /// Bounds every plan of a base, with no bound of many, and returns those whose bound is at most `limit`.
    ///
    /// # Errors
    /// As predictions.
    pub fn all(&mut self, base: &Base, limit: f64) -> Result<Vec<Leaf>, PredictError> {
        let mut out = Vec::new();
        for pipeline in self.pipelines(base, f64::INFINITY)? {
            out.extend(self.leaves(&pipeline, f64::INFINITY)?.into_iter().filter(|leaf| leaf.bound <= limit));
        }
        Ok(out)
    }

    /// Pipelines whose work alone is below the threshold.
    fn pipelines(&mut self, base: &Base, threshold: f64) -> Result<Vec<Pipeline>, PredictError> {
        let ask = self.context.ask;
        let i = &base.inside;
        let overhead = ask.stack.value(ConstantName::StepOverhead, 0.0);
        let mut out = Vec::new();
        for (pp, dp) in space::pipelines(ask, i) {
            let m = ask.global_batch / dp / i.micro_batch;
            let weight = ask.objective.weight(ask, i.tp * i.cp * pp * dp);
            let work = |micro_batch: f64| (m as f64 * micro_batch / pp as f64 + overhead) * weight;
            if work(base.work) >= threshold {
                continue;
            }
            let schedules = space::schedules(ask, pp, m);
            for experts in space::experts(ask, i.tp * i.cp * dp) {
                let none = space::layout(ask, i, (pp, dp), experts, (Schedule::OneFOneB, 1), (0, 1), false);
                let near = nearest(&places(self.context, &none));
                let variant = self.variants.get(self.context, &none, 0, &near)?;
                if work(variant.work) >= threshold {
                    continue;
                }
                for schedule in &schedules {
                    let layout = Layout { schedule: schedule.0, vpp: schedule.1, ..none.clone() };
                    self.cuts(&variant, layout, &near, (weight, threshold), &mut out)?;
                }
            }
        }
        Ok(out)
    }

    /// The cuts of a pipeline whose chains are below the threshold.
    fn cuts(
        &self,
        variant: &Variant,
        layout: Layout,
        near: &Groups,
        (weight, threshold): (f64, f64),
        out: &mut Vec<Pipeline>,
    ) -> Result<(), PredictError> {
        let Some(usual) = room::usual(self.context, &variant.profiles, &layout) else { return Ok(()) };
        let other = room::balanced(&variant.profiles, &layout, &usual, &variant.calls);
        let stated = other.and_then(|layers| {
            let p = &variant.profiles;
            let made = cut(&p.calls, &p.layer, layout.schedule, (layout.pp, layout.vpp), Some(&layers)).ok()?;
            Some((Arc::new(made), Some(layers)))
        });
        for (cut, layers) in std::iter::once((usual, None)).chain(stated) {
            let stages = room::costs(&cut, &variant.calls, &Recompute::None);
            let chain = self.chain(variant, &layout, near, &stages)?;
            let overhead = self.context.ask.stack.value(ConstantName::StepOverhead, 0.0);
            let bound = (chain.seconds(|_| 0.0, 0.0, |_| 0.0) + overhead) * weight;
            if bound < threshold {
                out.push(Pipeline { bound, layout: layout.clone(), cut, layers });
            }
        }
        Ok(())
    }

    fn chain<'s>(
        &self,
        variant: &Variant,
        l: &Layout,
        groups: &Groups,
        stages: &'s bound::Stages,
    ) -> Result<Chain<'s>, PredictError> {
        let bytes = sent_on(&variant.profiles, l);
        let hop = self.context.prices.message(Message::SendRecv, Group::Pipeline, groups, bytes)?;
        let kind = l.schedule.kind();
        Ok(Chain { kind, stages, microbatches: l.microbatches, hop, blocking: l.pp > 1 && blocks(kind) })
    }

    /// The plans of a pipeline that fit and whose bounds are below the threshold.
    fn leaves(&mut self, p: &Pipeline, threshold: f64) -> Result<Vec<Leaf>, PredictError> {
        let ask = self.context.ask;
        let mut rooms: Vec<Option<Rooms>> = (0..2 * self.policies.len()).map(|_| None).collect();
        let mut out = Vec::new();
        let data_ranks = p.layout.cp * p.layout.dp;
        let sharings = space::sharings(ask, data_ranks);
        if self.policies[0] == Policy::Layers && self.least(p, data_ranks, threshold, &mut rooms)? >= threshold {
            let all: usize =
                (0..=3).map(|z| sharings.iter().filter(|s| s.0 == z).count() * space::keeps(ask, z).len()).sum();
            self.counts.evaluated += all as u64;
            return Ok(out);
        }
        for zero in 0..=3 {
            for keep in space::keeps(ask, zero) {
                // The largest groups first: where they do not fit, smaller ones do not.
                let mut fits = true;
                for (_, shard_group) in sharings.iter().rev().filter(|(z, _)| *z == zero) {
                    self.counts.evaluated += 1;
                    if fits {
                        let layout = Layout { zero, shard_group: *shard_group, keep, ..p.layout.clone() };
                        fits = self.leaf(p, layout, threshold, &mut rooms, &mut out)?;
                    }
                    self.counts.too_large += u64::from(!fits);
                }
            }
        }
        Ok(out)
    }

    /// The least bound of a pipeline's plans, whatever data ranks share: with as few layers computed again as memory
    /// wants at the best of all sharings, by the lightest way to compute something again. Infinite where none fits.
    fn least(
        &mut self,
        p: &Pipeline,
        data_ranks: u64,
        threshold: f64,
        rooms: &mut [Option<Rooms>],
    ) -> Result<f64, PredictError> {
        let layout = Layout { zero: 3, shard_group: data_ranks, recompute: Recompute::Full, ..p.layout.clone() };
        let job = self.context.ask.job(&layout, p.layers.as_deref());
        let near = nearest(&places(self.context, &layout));
        let again = self.again(p, &layout, &near)?;
        let none = self.variants.get(self.context, &p.layout, 0, &near)?;
        let once: Vec<f64> = p.cut.stages.iter().map(|s| stage_seconds(s, |f| none.calls[f].once())).collect();
        let ask = self.context.ask;
        let weight = ask.objective.weight(ask, layout.devices());
        let too_slow = |stage: usize, count: u64| {
            let whole = again[0][stage] * count as f64 / p.cut.layers[stage].max(1) as f64;
            let parts = again[1..].iter().map(|a| a[stage]).fold(f64::INFINITY, f64::min);
            let more = if count == 0 { 0.0 } else { whole.min(parts) };
            layout.microbatches as f64 * (once[stage] + more) * weight >= threshold
        };
        let counts = match self.room(p, &layout, 0, rooms)?.least_counts(&job, &p.cut, too_slow) {
            None => return Ok(f64::INFINITY),
            Some(counts) if counts.iter().all(|n| *n == 0) => return Ok(p.bound),
            Some(counts) => counts,
        };
        let mut least = f64::INFINITY;
        for (at, policy) in self.policies.clone().iter().enumerate() {
            let recompute = match policy {
                Policy::Layers => room::said(&counts, &p.cut),
                Policy::Said(said) => said.clone(),
            };
            let layout = Layout { recompute, ..layout.clone() };
            let variant = self.variants.get(self.context, &layout, at as u8, &near)?;
            let stages = room::costs(&p.cut, &variant.calls, &layout.recompute);
            let chain = self.chain(&variant, &layout, &near, &stages)?;
            let overhead = ask.stack.value(ConstantName::StepOverhead, 0.0);
            least = least.min((chain.seconds(|_| 0.0, 0.0, |_| 0.0) + overhead) * weight);
            if least < threshold {
                break;
            }
        }
        Ok(least)
    }

    /// Seconds that each policy adds to a micro-batch on each stage where it recomputes all that it may.
    fn again(&mut self, p: &Pipeline, layout: &Layout, near: &Groups) -> Result<Vec<Vec<f64>>, PredictError> {
        let mut out = Vec::with_capacity(self.policies.len());
        for at in 0..self.policies.len() {
            let recompute = match &self.policies[at] {
                Policy::Layers => Recompute::Full,
                Policy::Said(said) => said.clone(),
            };
            let layout = Layout { recompute, ..layout.clone() };
            let variant = self.variants.get(self.context, &layout, at as u8, near)?;
            out.push(p.cut.stages.iter().map(|s| stage_seconds(s, |f| variant.calls[f].again)).collect());
        }
        Ok(out)
    }

    /// The memory of a pipeline under a policy. What calls save differs where gradients are shared out unit by unit.
    fn room<'r>(
        &mut self,
        p: &Pipeline,
        layout: &Layout,
        policy: usize,
        rooms: &'r mut [Option<Rooms>],
    ) -> Result<&'r mut Rooms, PredictError> {
        match &mut rooms[2 * policy + usize::from(layout.zero >= 2)] {
            Some(room) => Ok(room),
            none => {
                let near = nearest(&places(self.context, layout));
                let variant = self.variants.get(self.context, layout, policy as u8, &near)?;
                let job = self.context.ask.job(layout, p.layers.as_deref());
                Ok(none.insert(Rooms::new(self.context, &job, &variant.profiles, &p.cut)?))
            }
        }
    }

    /// A plan under each policy. Whether it fits under one.
    fn leaf(
        &mut self,
        p: &Pipeline,
        layout: Layout,
        threshold: f64,
        rooms: &mut [Option<Rooms>],
        out: &mut Vec<Leaf>,
    ) -> Result<bool, PredictError> {
        let mut fits = false;
        for policy in 0..self.policies.len() {
            let Some(layout) = self.fit(p, layout.clone(), policy, rooms)? else {
                // What does not fit with whole layers computed again does not with parts of them.
                if self.policies[policy] == Policy::Layers {
                    break;
                }
                continue;
            };
            fits = true;
            // A pipeline reduces gradients once, so sharing them or keeping what was gathered takes as long as ZeRO-1.
            let alike = |l: &Leaf| {
                l.layout.zero == 1
                    && l.layout.shard_group == layout.shard_group
                    && l.layout.recompute == layout.recompute
            };
            let late = layout.pp > 1 && (layout.zero == 2 || layout.keep);
            if late && out.iter().any(alike) {
                break;
            }
            let near = nearest(&places(self.context, &layout));
            let bound = self.bound(&layout, &p.cut, policy as u8, &near, false)?;
            self.counts.least_bound = self.counts.least_bound.min(bound);
            let again = layout.recompute != Recompute::None;
            if bound < threshold {
                let (cut, layers) = (p.cut.clone(), p.layers.clone());
                out.push(Leaf { bound, layout, cut, layers, policy: policy as u8 });
            }
            if !again {
                break;
            }
        }
        Ok(fits)
    }

    /// The layout with its recomputation, if it fits.
    fn fit(
        &mut self,
        p: &Pipeline,
        mut layout: Layout,
        policy: usize,
        rooms: &mut [Option<Rooms>],
    ) -> Result<Option<Layout>, PredictError> {
        let said = match &self.policies[policy] {
            Policy::Layers => None,
            Policy::Said(said) => Some(said.clone()),
        };
        layout.recompute = said.clone().unwrap_or(Recompute::Full);
        if matches!(&layout.recompute, Recompute::Stages(counts) if counts.len() as u64 != layout.pp) {
            return Ok(None);
        }
        let job = self.context.ask.job(&layout, p.layers.as_deref());
        let room = self.room(p, &layout, policy, rooms)?;
        let recompute = match said {
            None => room.counts(&job, &p.cut).map(|counts| room::said(&counts, &p.cut)),
            Some(said) => room.fits(&job, &p.cut, &room::counts(&said, &p.cut)).then_some(said),
        };
        Ok(recompute.map(|recompute| Layout { recompute, ..layout }))
    }

    /// Lower bound of a plan with its groups at these places, by the objective: in closed form, or with `play` from a
    /// pipeline that was played without data parallelism.
    fn bound(&mut self, l: &Layout, cut: &Cut, policy: u8, groups: &Groups, play: bool) -> Result<f64, PredictError> {
        let ask = self.context.ask;
        let variant = self.variants.get(self.context, l, policy, groups)?;
        let messages = self.variants.data(self.context, l, &variant, groups)?;
        let data = data(&ask.job(l, None));
        let stages = room::costs(cut, &variant.calls, &l.recompute);
        let chain = self.chain(&variant, l, groups, &stages)?;
        let factor = ask.stack.value(ConstantName::Optimizer, 1.0);
        let (prices, bytes) = (&self.context.prices, predictor::OPTIMIZER_BYTES);
        let optimizer = bound::optimizer(prices, &data, cut, &variant.parameters, (bytes, factor));
        let overhead = ask.stack.value(ConstantName::StepOverhead, 0.0);
        let plan = bound::Plan { chain, cut, calls: &variant.calls, data: &data, messages: &messages };
        let share = |s: usize| l.recompute.share(s, &cut.layers);
        let seconds = match play && l.pp > 1 {
            true => plan.seconds_after(self.plays.get(&chain)?, share),
            false => plan.seconds(chain.seconds(|_| 0.0, 0.0, |_| 0.0), share),
        };
        Ok((seconds + optimizer + overhead) * ask.objective.weight(ask, l.devices()))
    }

    /// Plays a plan in every order of its axes that differs and whose bound is below the best.
    ///
    /// # Errors
    /// As predictions.
    pub fn simulate(&mut self, leaf: &Leaf, best: &mut Best, scratch: &mut Scratch) -> Result<(), PredictError> {
        let (context, ask) = (self.context, self.context.ask);
        let weight = ask.objective.weight(ask, leaf.layout.devices());
        for order in space::orders(ask, &context.prices.places, &context.orders, &leaf.layout) {
            let layout = Layout { order: Some(order), ..leaf.layout.clone() };
            let places = places(context, &layout);
            let mut bound = self.bound(&layout, &leaf.cut, leaf.policy, &places, false)?;
            if bound < best.threshold() {
                bound = bound.max(self.bound(&layout, &leaf.cut, leaf.policy, &places, true)?);
            }
            if bound >= best.threshold() {
                continue;
            }
            let job = ask.job(&layout, leaf.layers.as_deref());
            let ready = context.predictor.prepare_at(&job, context.prices.places.layout(&job)?)?;
            let (_, time) = ready.play(&job, ask.stack, scratch, false)?;
            self.counts.simulated += 1;
            let value = time.seconds * weight;
            if value < best.threshold() {
                best.add(Found {
                    layers_per_stage: ready.layers().to_vec(),
                    stated: leaf.layers.clone(),
                    seconds: time.seconds,
                    value,
                    bound: leaf.bound,
                    own_bound: bound,
                    layout,
                });
            }
        }
        Ok(())
    }
}

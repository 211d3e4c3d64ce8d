//! From what decides a micro-batch's kernels to pipelines, and from those to plans that are simulated.

use super::base::{alone, Base};
use super::bound::{self, Chain, Stages};
use super::leaf::{Leaf, Leaves};
use super::open::{Open, Plan, Step};
use super::policy::{policies, Policy};
use super::room::{self, Rooms, Sizes};
use super::run::{Best, Counts, Found};
use super::space;
use super::variant::{places, Variant, Variants};
use super::Context;
use crate::predict::cut::{chunks_of, cut, Cut};
use crate::predict::memory::Play;
use crate::predict::predictor::{self, blocks, data, sent_on};
use crate::predict::prices::{nearest, Groups};
use crate::predict::{Layout, PredictError, Recompute, Schedule};
use autoshard_cost::collectives::Kind as Message;
use autoshard_cost::schedule::Player;
use autoshard_cost::stack::ConstantName;
use autoshard_passes::predict::step::Scratch;
use autoshard_passes::predict::Group;
use rustc_hash::FxHashMap;
use std::collections::hash_map::Entry;
use std::rc::Rc;
use std::sync::Arc;

/// A pipeline with a schedule and a cut, whatever data ranks share.
pub(crate) struct Pipeline {
    /// By its chains alone, by the objective.
    pub bound: f64,
    /// The same in seconds, the step's overhead left out.
    pub chains: f64,
    /// Sharing is left open.
    pub layout: Layout,
    pub cut: Arc<Cut>,
    /// Where it is not the usual cut.
    pub layers: Option<Vec<u64>>,
    /// Its functions without recomputation, at the nearest places.
    pub variant: Arc<Variant>,
    /// Seconds of a send at the nearest place.
    pub hop: f64,
}

/// What decides the memory of a cut within a base beside who shares its states: the recomputation policy, whether
/// gradients are shared (what calls save differs), experts' degrees, the cut and the fullest moments. Cuts are told apart
/// by where they are: pipelines keep theirs as long as a base is worked on.
pub(crate) type RoomKey = (usize, bool, (u64, u64), *const Cut, Play);

/// Share by which sums that are added up in another order than a simulation's may be larger.
const ROUNDING: f64 = 1e-12;

/// One base being expanded.
pub(crate) struct Expansion<'a> {
    pub context: &'a Context<'a>,
    pub policies: Vec<Policy>,
    pub variants: Variants,
    pub rooms: FxHashMap<RoomKey, Rooms>,
    pub sizes: FxHashMap<(*const Cut, (u64, u64)), Sizes>,
    /// Seconds with experts, by their degrees.
    experts: FxHashMap<(u64, u64), f64>,
    /// Whether no plan is left out by a bound of many.
    every: bool,
    plays: Plays,
    pub counts: Counts,
}

impl<'a> Expansion<'a> {
    /// Knows what the base does.
    pub fn new(context: &'a Context<'a>, base: &Base) -> Expansion<'a> {
        let mut out = Expansion::of(context);
        if let Some(variant) = &base.variant {
            let layout = alone(context.ask, &base.inside);
            let near = nearest(&places(context, &layout));
            out.variants = Variants::knowing(&layout, &near, variant);
        }
        out
    }

    /// Knows nothing.
    pub fn of(context: &'a Context<'a>) -> Expansion<'a> {
        Expansion {
            context,
            policies: policies(context.ask),
            variants: Variants::default(),
            rooms: FxHashMap::default(),
            sizes: FxHashMap::default(),
            experts: FxHashMap::default(),
            every: false,
            plays: Plays::default(),
            counts: Counts::default(),
        }
    }

    /// Adds all plans of a base that are better than the best: of what is open the least bound first, so that what is
    /// simulated has a bound below the best of the base.
    ///
    /// # Errors
    /// As predictions.
    pub fn search(&mut self, base: &Base, best: &mut Best, scratch: &mut Scratch) -> Result<(), PredictError> {
        let pipelines = self.pipelines(base, best.threshold())?;
        let mut open = Open::default();
        pipelines.iter().enumerate().for_each(|(i, p)| open.push(p.bound, Step::Pipeline(i)));
        while let Some((bound, step)) = open.pop(best.threshold().is_infinite()) {
            if bound >= best.threshold() {
                break;
            }
            match step {
                Step::Pipeline(i) => {
                    let leaves = Leaves::new(self, &pipelines[i]).below(best.threshold())?;
                    leaves.into_iter().for_each(|leaf| open.push(leaf.bound, Step::Leaf(leaf)));
                }
                Step::Leaf(leaf) => {
                    for (bound, plan) in self.in_orders(leaf, best.threshold())? {
                        open.push(bound, Step::Plan(plan));
                    }
                }
                Step::Plan(plan) => open.push(bound.max(self.played(&plan)?), Step::Played(plan)),
                Step::Played(plan) => self.simulate(&plan, bound, best, scratch)?,
            }
        }
        Ok(())
    }

    /// A plan in every order of its axes that differs, where it is below the threshold.
    fn in_orders(&mut self, leaf: Leaf, threshold: f64) -> Result<Vec<(f64, Plan)>, PredictError> {
        let context = self.context;
        let mut out = Vec::new();
        let leaf = Rc::new(leaf);
        for order in space::orders(context.ask, &context.prices.places, &context.orders, &leaf.layout) {
            let layout = Layout { order: Some(order), ..leaf.layout.clone() };
            let places = places(context, &layout);
            // What the mean stage does: most orders that part tensor-parallel ranks go by that alone.
            let work = self.variants.get(context, &layout, leaf.policy, &places)?.work;
            let mean = layout.microbatches as f64 * work / layout.pp as f64;
            if (mean + self.overhead()) * context.ask.objective.weight(context.ask, layout.devices()) >= threshold {
                continue;
            }
            let bound = self.bound(&layout, &leaf.cut, leaf.policy, &places, false)?;
            if bound < threshold {
                out.push((bound.max(leaf.bound), Plan { leaf: leaf.clone(), layout }));
            }
        }
        Ok(out)
    }

    /// The bound of a plan from its pipeline, played without data parallelism.
    fn played(&mut self, plan: &Plan) -> Result<f64, PredictError> {
        let places = places(self.context, &plan.layout);
        self.bound(&plan.layout, &plan.leaf.cut, plan.leaf.policy, &places, true)
    }

    /// Plays a plan.
    fn simulate(&mut self, p: &Plan, bound: f64, best: &mut Best, scratch: &mut Scratch) -> Result<(), PredictError> {
        let (context, ask) = (self.context, self.context.ask);
        let job = ask.job(&p.layout, p.leaf.layers.as_deref());
        let ready = context.predictor.prepare_at(&job, context.prices.places.layout(&job)?)?;
        let (_, time) = ready.play(&job, ask.stack, scratch, false)?;
        self.counts.simulated += 1;
        let value = time.seconds * ask.objective.weight(ask, p.layout.devices());
        if value < best.threshold() {
            best.add(Found {
                layout: p.layout.clone(),
                layers_per_stage: ready.layers().to_vec(),
                stated: p.leaf.layers.clone(),
                seconds: time.seconds,
                value,
                bound: p.leaf.bound,
                own_bound: bound,
            });
        }
        Ok(())
    }

    /// Simulates a plan in every order of its axes that differs and whose bound is not above the best.
    ///
    /// # Errors
    /// As predictions.
    pub fn finish(&mut self, leaf: Leaf, best: &mut Best, scratch: &mut Scratch) -> Result<(), PredictError> {
        for (bound, plan) in self.in_orders(leaf, best.threshold())? {
            let bound = bound.max(self.played(&plan)?);
            if bound < best.threshold() {
                self.simulate(&plan, bound, best, scratch)?;
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
        self.every = true;
        let pipelines = self.pipelines(base, f64::INFINITY)?;
        for pipeline in &pipelines {
            let leaves = Leaves::new(self, pipeline).all()?;
            out.extend(leaves.into_iter().filter(|leaf| leaf.bound <= limit));
        }
        Ok(out)
    }

    /// Seconds of a step that no kernel explains.
    pub fn overhead(&self) -> f64 {
        self.context.ask.stack.value(ConstantName::StepOverhead, 0.0)
    }

    /// Pipelines whose work alone is below the threshold.
    fn pipelines(&mut self, base: &Base, threshold: f64) -> Result<Vec<Pipeline>, PredictError> {
        let ask = self.context.ask;
        let i = &base.inside;
        let mut out = Vec::new();
        let overhead = self.overhead();
        let mut cuts = FxHashMap::default();
        for (pp, dp) in space::pipelines(ask, i) {
            if i.tp * i.cp * pp * dp < self.context.fewest && !self.every {
                continue;
            }
            let m = ask.global_batch / dp / i.micro_batch;
            let weight = ask.objective.weight(ask, i.tp * i.cp * pp * dp);
            // What the mean stage does, or a schedule's chain at the least.
            let over = |seconds: f64| (seconds + overhead) * weight >= threshold;
            if over(m as f64 * base.work / pp as f64) {
                continue;
            }
            let schedules = space::schedules(ask, pp, m);
            for experts in space::experts(ask, i.tp * i.cp * dp) {
                if over(m as f64 * self.with_experts(base, experts)? / pp as f64) {
                    continue;
                }
                let none = space::layout(ask, i, (pp, dp), experts, (Schedule::OneFOneB, 1), (0, 1), false);
                let near = nearest(&places(self.context, &none));
                let variant = self.variants.get(self.context, &none, 0, &near)?;
                if over(m as f64 * variant.work / pp as f64) {
                    continue;
                }
                let hop = self.hop(&variant, &none, &near)?;
                for (schedule, vpp) in schedules.iter().copied() {
                    if over(bound::of_any_cut(schedule.kind(), &variant.calls, variant.work, pp, m)) {
                        continue;
                    }
                    let layout = Layout { schedule, vpp, ..none.clone() };
                    let key = (experts, pp, chunks_of(schedule, vpp), is_v(schedule));
                    let cuts = match cuts.entry(key) {
                        Entry::Occupied(found) => found.into_mut(),
                        Entry::Vacant(free) => free.insert(self.cuts(&variant, &layout)),
                    };
                    for (cut, layers, stages) in cuts.iter() {
                        let chains = self.chain(&layout, hop, stages).seconds(|_| 0.0, 0.0, |_| 0.0);
                        if over(chains) {
                            continue;
                        }
                        let bound = (chains + overhead) * weight;
                        let (layout, cut, layers) = (layout.clone(), cut.clone(), layers.clone());
                        out.push(Pipeline { bound, chains, layout, cut, layers, variant: variant.clone(), hop });
                    }
                }
            }
        }
        Ok(out)
    }

    /// Seconds of a micro-batch through the whole model with experts split so, at the least.
    fn with_experts(&mut self, base: &Base, degrees: (u64, u64)) -> Result<f64, PredictError> {
        if self.context.ask.facts.experts == 0 {
            return Ok(base.work);
        }
        if let Some(known) = self.experts.get(&degrees) {
            return Ok(*known);
        }
        let seconds = base.dense + self.context.experts.seconds(self.context, &base.inside, degrees)?;
        self.experts.insert(degrees, seconds);
        Ok(seconds)
    }

    /// The cuts of a layout's pipeline, with what their stages take.
    fn cuts(&self, variant: &Variant, layout: &Layout) -> Vec<(Arc<Cut>, Option<Vec<u64>>, Stages)> {
        let calls = &self.context.calls;
        let Some(usual) = room::usual(self.context, layout) else { return Vec::new() };
        let other = room::balanced(&calls.layer, layout, &usual, &variant.calls).and_then(|layers| {
            let degrees = (layout.pp, layout.vpp);
            let made = cut(&calls.order, &calls.layer, layout.schedule, degrees, Some(&layers)).ok()?;
            Some((Arc::new(made), Some(layers)))
        });
        let both = std::iter::once((usual, None)).chain(other);
        let costs = |cut: &Cut| room::costs(cut, &variant.calls, &Recompute::None);
        both.map(|(cut, layers)| {
            let stages = costs(&cut);
            (cut, layers, stages)
        })
        .collect()
    }

    /// Seconds of a send from stage to stage.
    pub fn hop(&self, variant: &Variant, l: &Layout, groups: &Groups) -> Result<f64, PredictError> {
        let bytes = sent_on(variant.boundary, l);
        self.context.prices.message(Message::SendRecv, Group::Pipeline, groups, bytes)
    }

    /// The chains of a layout's pipeline.
    pub fn chain<'s>(&self, l: &Layout, hop: f64, stages: &'s Stages) -> Chain<'s> {
        let kind = l.schedule.kind();
        Chain { kind, stages, microbatches: l.microbatches, hop, blocking: l.pp > 1 && blocks(kind) }
    }

    /// Lower bound of a plan with its groups at these places, by the objective: in closed form, or with `play` from a
    /// pipeline that was played without data parallelism.
    ///
    /// # Errors
    /// As predictions.
    pub fn bound(
        &mut self,
        l: &Layout,
        cut: &Cut,
        policy: u8,
        groups: &Groups,
        play: bool,
    ) -> Result<f64, PredictError> {
        let variant = self.variants.get(self.context, l, policy, groups)?;
        let stages = room::costs(cut, &variant.calls, &l.recompute);
        let hop = self.hop(&variant, l, groups)?;
        let chain = self.chain(l, hop, &stages);
        let alone = match play && l.pp > 1 {
            true => Alone::Played(self.plays.get(&chain)?.to_vec()),
            false => Alone::Chains(chain.seconds(|_| 0.0, 0.0, |_| 0.0)),
        };
        self.bound_of(l, cut, &variant, groups, (&chain, alone))
    }

    /// The same where the pipeline alone is bounded already.
    ///
    /// # Errors
    /// As predictions.
    pub fn bound_of(
        &mut self,
        l: &Layout,
        cut: &Cut,
        variant: &Variant,
        groups: &Groups,
        (chain, alone): (&Chain, Alone),
    ) -> Result<f64, PredictError> {
        let ask = self.context.ask;
        let messages = self.variants.data(self.context, l, variant, groups)?;
        let data = data(&ask.job(l, None));
        let factor = ask.stack.value(ConstantName::Optimizer, 1.0);
        let (prices, bytes) = (&self.context.prices, predictor::OPTIMIZER_BYTES);
        let optimizer = bound::optimizer(prices, &data, cut, &variant.parameters, (bytes, factor));
        let plan = bound::Plan { chain: *chain, cut, calls: &variant.calls, data: &data, messages: &messages };
        let share = |s: usize| l.recompute.share(s, &cut.layers);
        let seconds = match alone {
            Alone::Played(ends) => plan.seconds_after(&ends, share),
            Alone::Chains(seconds) => plan.seconds(seconds, share),
        };
        let weight = ask.objective.weight(ask, l.devices());
        Ok((seconds + optimizer + self.overhead()) * weight * (1.0 - ROUNDING))
    }
}

/// Schedules whose second chunks come back.
fn is_v(schedule: Schedule) -> bool {
    matches!(schedule, Schedule::ZbV | Schedule::DualPipeV)
}

/// A pipeline without data parallelism.
#[derive(Clone, Debug)]
pub(crate) enum Alone {
    /// Seconds of its longest chain.
    Chains(f64),
    /// When each stage ends.
    Played(Vec<f64>),
}

/// Pipelines that were played without data parallelism, by their costs.
#[derive(Default)]
struct Plays {
    player: Player,
    known: FxHashMap<Vec<u64>, Vec<f64>>,
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

//! Lower bounds of a plan's time, in closed form.
//!
//! A pipeline takes at least as long as each chain of steps that have to follow one another. For stage s that is the
//! way of the first micro-batch down to it, all its own work, and (where the last step of a stage is the last
//! backward of its first chunk) the way of the last micro-batch back:
//!
//! ```text
//! T ≥ Σ_{j<s} (F_j + hop) + m·w_s + Σ_{j<s} (B_j + hop)
//! ```
//!
//! for GPipe, 1F1B and its interleaved form, with F and B of the first chunk, which for equal stages is the textbook
//! (m + (p − 1)/v)(F + B). Interleaved chunks go round: the first micro-batch passes all parts before the last stage's
//! first backward, and the last one passes all of them back after that stage's last one through its last chunk, each
//! with a hop from part to part. A split backward only needs gradients of activations on the way back, and its gradients of
//! weights fill the last stage's time. What data-parallel ranks exchange adds the gather of the first unit, before which
//! nothing starts, and the reduction of the unit whose backward is last; all messages of a stage have to fit in the step.

use super::base::Seconds;
use crate::predict::cut::Cut;
use crate::predict::prices::{Groups, Prices};
use crate::predict::PredictError;
use autoshard_cost::collectives::Kind as Message;
use autoshard_cost::schedule::{Cost, Kind, Pipeline, Player, ScheduleError};
use autoshard_passes::predict::step::Data;
use autoshard_passes::predict::Group;
use autoshard_passes::profile::Parameters;

/// Seconds of a micro-batch on each stage, by chunk: forward, gradients of activations (with what is computed again),
/// gradients of weights.
pub type Stages = Vec<Vec<[f64; 3]>>;

/// The costs of a cut, given which share of its layers each stage computes again.
pub fn stages(cut: &Cut, calls: &[Seconds], share: impl Fn(usize) -> f64) -> Stages {
    let of_chunk = |again: f64, units: &Vec<(usize, usize)>| {
        let mut out = [0.0; 3];
        for (f, n) in units {
            let (s, n) = (&calls[*f], *n as f64);
            out[0] += n * s.forward;
            out[1] += n * (s.input + again * s.again);
            out[2] += n * s.weight;
        }
        out
    };
    let stage = |(i, chunks): (usize, &Vec<Vec<(usize, usize)>>)| {
        let again = share(i);
        chunks.iter().map(|units| of_chunk(again, units)).collect()
    };
    cut.stages.iter().enumerate().map(stage).collect()
}

/// Seconds of a pipeline however its layers are cut, at the least. `work` are those of a micro-batch through all
/// stages.
///
/// Let c be the share of a stage's work w_j that the first micro-batch does there on its way down and the last one on
/// its way back: all of it with whole backwards, the forward where they are split. From T ≥ m·w_s + c·Σ_{j<s} w_j for
/// every stage follows w_s ≤ (T/m)(1 − c/m)^s at equality, whose sum is the work, so T ≥ c·work/(1 − (1 − c/m)^p).
pub fn of_any_cut(kind: Kind, calls: &[Seconds], work: f64, stages: u64, microbatches: u64) -> f64 {
    let (p, m) = (stages as f64, microbatches as f64);
    let share = |c: &Seconds| if c.once() > 0.0 { c.forward / c.once() } else { 1.0 };
    let c = match kind {
        _ if stages == 1 => return m * work,
        Kind::Naive => return m * work,
        Kind::GPipe | Kind::OneForwardOneBackward => 1.0,
        Kind::ZeroBubbleH1 => calls.iter().map(share).fold(1.0, f64::min),
        // Chunks may be any part of a stage.
        Kind::Interleaved | Kind::ZeroBubbleV | Kind::DualPipeV => 0.0,
    };
    let filled = 1.0 - (1.0 - c / m).max(0.0).powf(p);
    (m * work / p).max(if c > 0.0 { c * work / filled } else { 0.0 })
}

/// A pipeline whose time is bounded.
#[derive(Clone, Copy, Debug)]
pub struct Chain<'a> {
    /// The schedule.
    pub kind: Kind,
    /// Costs.
    pub stages: &'a Stages,
    /// Micro-batches.
    pub microbatches: u64,
    /// Seconds from one stage to the next.
    pub hop: f64,
    /// Whether sends keep their stage.
    pub blocking: bool,
}

impl Chain<'_> {
    /// When each stage ends its last step, played: what no data-parallel message can shorten.
    ///
    /// # Errors
    /// Where there is no such schedule.
    pub fn play(&self, player: &mut Player) -> Result<Vec<f64>, ScheduleError> {
        let cost = |c: &[f64; 3]| Cost { forward: c[0], backward_input: c[1], backward_weight: c[2], ready: 0.0 };
        let costs: Vec<Cost> = self.stages.iter().flatten().map(cost).collect();
        let pipeline = Pipeline {
            kind: self.kind,
            stages: self.stages.len() as u32,
            chunks: self.stages.first().map_or(1, Vec::len) as u32,
            microbatches: self.microbatches as u32,
            costs: &costs,
            message: self.hop,
            blocking: self.blocking,
        };
        Ok(player.play(&pipeline, false)?.iter().map(|p| p.end).collect())
    }

    /// Seconds until all stages are done, at the least. `each` are seconds that messages add to a micro-batch of a
    /// stage, `head` those before its first step, `tail` those behind its last.
    pub fn seconds(&self, each: impl Fn(usize) -> f64, head: f64, tail: impl Fn(usize) -> f64) -> f64 {
        let m = self.microbatches as f64;
        let p = self.stages.len();
        let sum = |s: usize| self.stages[s].iter().map(|c| c[0] + c[1] + c[2]).sum::<f64>();
        if self.kind == Kind::Naive && p > 1 {
            let all: f64 = (0..p).map(|s| sum(s) + each(s)).sum();
            return head + m * (all + 2.0 * (p - 1) as f64 * self.hop) + tail(0);
        }
        // Ways down to a stage and back from it.
        let (mut down, mut back, mut back_input) = (head, 0.0, 0.0);
        let mut worst: f64 = 0.0;
        for (s, stage) in self.stages.iter().enumerate() {
            let work = sum(s);
            let more = if work > 0.0 { 1.0 + each(s) / work } else { 1.0 };
            let own = m * (work * more + self.sends(s, p));
            worst = worst.max(match self.ends_at_first() {
                // The last send back is among the stage's own.
                true if self.blocking && s > 0 => down + own + back - self.hop + tail(0),
                true => down + own + back + tail(0),
                false => down + own + tail(s),
            });
            if self.kind == Kind::ZeroBubbleH1 && s + 1 == p {
                worst = worst.max(down + self.split(stage, more) + back_input + tail(0));
            }
            if self.kind == Kind::Interleaved && s + 1 == p {
                worst = worst.max(head + self.rounds(own, more, &each) + tail(0));
            }
            if self.turns() {
                // All that is not a gradient of weights is done before the last gradient of activations goes back.
                let needed: f64 = stage.iter().map(|c| c[0] + c[1]).sum();
                worst = worst.max(down + m * needed + back_input + tail(0));
            }
            let [f, x, w] = stage[0].map(|seconds| seconds * more);
            down += f + self.hop;
            back += x + w + self.hop;
            back_input += x + self.hop;
        }
        if self.turns() {
            worst = worst.max(head + self.round_trip() + tail(0));
        }
        worst
    }

    /// Whether micro-batches come back to the first stage before their loss.
    fn turns(&self) -> bool {
        matches!(self.kind, Kind::ZeroBubbleV | Kind::DualPipeV) && self.stages.len() > 1
    }

    /// The first stage of a V: before its first forward through its last chunk a micro-batch went through all others,
    /// and it could do no more than forwards of its first chunk; the rest is behind that. Or one micro-batch there and
    /// back by itself.
    fn round_trip(&self) -> f64 {
        let m = self.microbatches as f64;
        let sum = |of: fn(&[f64; 3]) -> f64| self.stages.iter().flatten().map(of).sum::<f64>();
        let hops = (2 * self.stages.len() - 2) as f64 * self.hop;
        let [first, last] = &self.stages[0][..] else { return 0.0 };
        let whole = |c: &[f64; 3]| c[0] + c[1] + c[2];
        let there = sum(|c| c[0]) - last[0] + hops;
        let (early, all) = (m * first[0], m * (whole(first) + whole(last)));
        let behind = (all - early).max(all - there);
        (there + behind).max(sum(|c| c[0] + c[1]) + 2.0 * hops)
    }

    /// Interleaved: a micro-batch through all parts and back, and what the last stage does in between. Before its
    /// first forward through its last chunk are p through each of the others, and as many backwards behind its last.
    fn rounds(&self, own: f64, more: f64, each: &impl Fn(usize) -> f64) -> f64 {
        let p = self.stages.len();
        let (mut passes, mut parts) = (0.0, 0usize);
        for (s, stage) in self.stages.iter().enumerate() {
            let work: f64 = stage.iter().map(|c| c[0] + c[1] + c[2]).sum();
            passes += work + if work > 0.0 { each(s) } else { 0.0 };
            parts += stage.len();
        }
        let last = &self.stages[p - 1];
        let whole = |c: &[f64; 3]| (c[0] + c[1] + c[2]) * more;
        let (ends, others) = last.split_last().map_or((0.0, &last[..0]), |(end, others)| (whole(end), others));
        let outside = p as f64 * others.iter().map(whole).sum::<f64>() + ends;
        passes + 2.0 * (parts - 1) as f64 * self.hop + (own - outside).max(0.0)
    }

    /// Whether the last step of every stage is a whole backward that the first stage's last one waits for.
    fn ends_at_first(&self) -> bool {
        matches!(self.kind, Kind::Naive | Kind::GPipe | Kind::OneForwardOneBackward | Kind::Interleaved)
    }

    /// Seconds of a micro-batch in which a stage waits for its own sends.
    fn sends(&self, s: usize, p: usize) -> f64 {
        let sends = usize::from(s > 0) + usize::from(s + 1 < p);
        if self.blocking {
            sends as f64 * self.hop
        } else {
            0.0
        }
    }

    /// Seconds of the last stage of ZB-H1 up to its last gradient of an activation: its gradients of weights come p − 1
    /// micro-batches behind, and the next one follows that.
    fn split(&self, stage: &[[f64; 3]], more: f64) -> f64 {
        let m = self.microbatches as f64;
        let behind = (self.stages.len() - 1) as f64;
        let [f, x, w] = stage[0].map(|seconds| seconds * more);
        m * (f + x) + (m - behind - 1.0).max(0.0) * w
    }
}

/// Messages of data parallelism, in seconds, of functions.
#[derive(Clone, Debug, Default)]
pub struct DataSeconds {
    /// By function: the gather of a call's parameters.
    pub gather: Vec<f64>,
    /// By function: the reduction of a call's gradients, scattered and then summed over replicas.
    pub reduce: Vec<f64>,
    /// By function: what of that is between the ranks of a shard group.
    pub scatter: Vec<f64>,
    /// By function: what of it is between replicas.
    pub outside: Vec<f64>,
}

impl DataSeconds {
    /// Prices messages.
    ///
    /// # Errors
    /// Groups that the cluster has no place for.
    pub(crate) fn new(
        prices: &Prices,
        groups: &Groups,
        data: &Data,
        parameters: &[Parameters],
    ) -> Result<DataSeconds, PredictError> {
        let mut out = DataSeconds::default();
        for p in parameters {
            let (mut gather, mut scatter, mut outside, mut reduce) = (0.0, 0.0, 0.0, 0.0f64);
            let sides = [(Group::Shard, Group::Replicas), (Group::ExpertShard, Group::ExpertReplicas)];
            for (side, ((inner, outer), elements)) in sides.into_iter().zip([p.dense, p.expert]).enumerate() {
                let bytes = elements * data.gradient_bytes;
                let mut replicas = 0.0;
                if data.shard[side] > 1 {
                    gather += prices.message(Message::AllGather, inner, groups, elements * data.copy_bytes)?;
                    scatter += prices.message(Message::ReduceScatter, inner, groups, bytes)?;
                }
                if data.replicas[side] > 1 {
                    let share = bytes / data.shard[side].max(1) as f64;
                    replicas = prices.message(Message::AllReduce, outer, groups, share)?;
                }
                outside += replicas;
                reduce = reduce.max(scatter + replicas);
            }
            out.gather.push(gather);
            out.reduce.push(reduce);
            out.scatter.push(scatter);
            out.outside.push(outside);
        }
        Ok(out)
    }
}

/// Seconds of the optimizer's loops, by the stage that has most.
pub(crate) fn optimizer(
    prices: &Prices,
    data: &Data,
    cut: &Cut,
    parameters: &[Parameters],
    (bytes, factor): (f64, f64),
) -> f64 {
    let share = |side: usize| if data.zero >= 1 { data.shard[side].max(1) as f64 } else { 1.0 };
    let (dense, expert) = (share(0), share(1));
    let elements = |chunks: &Vec<Vec<(usize, usize)>>| -> f64 {
        let of = |(f, n): &(usize, usize)| *n as f64 * (parameters[*f].dense / dense + parameters[*f].expert / expert);
        chunks.iter().flatten().map(of).sum()
    };
    let most = cut.stages.iter().map(elements).fold(0.0, f64::max);
    if most > 0.0 {
        prices.memory(most * bytes) * factor
    } else {
        0.0
    }
}

/// What data parallelism adds before the first and behind the last step of a stage, at the least.
#[derive(Clone, Copy, Debug, Default)]
struct Ends {
    head: f64,
    tail: f64,
}

/// A plan whose step is bounded.
#[derive(Clone, Copy, Debug)]
pub struct Plan<'a> {
    /// Its pipeline.
    pub chain: Chain<'a>,
    /// Its calls.
    pub cut: &'a Cut,
    /// Seconds of a call of each function.
    pub calls: &'a [Seconds],
    /// How data ranks share.
    pub data: &'a Data,
    /// What that costs.
    pub messages: &'a DataSeconds,
}

impl Plan<'_> {
    /// Lower bound of a step without its optimizer. `alone` is what the pipeline's chains take without data parallelism.
    pub fn seconds(&self, alone: f64, share: impl Fn(usize) -> f64) -> f64 {
        let (chain, data) = (&self.chain, self.data);
        if data.shard.iter().chain(&data.replicas).all(|n| *n <= 1) {
            return alone;
        }
        let m = chain.microbatches as f64;
        if chain.stages.len() > 1 {
            let first = self.ends(0, share(0));
            let tail = if chain.ends_at_first() { first.tail } else { 0.0 };
            return match data.zero == 3 && !data.keep {
                // What each micro-batch waits for is the least of all stages.
                true => chain.seconds(|s| self.gather(s), 0.0, |_| tail),
                false => alone + first.head + tail,
            };
        }
        // One stage: micro-batches that gather and reduce by themselves start with a gather.
        let every = data.zero >= 2;
        let ends = self.ends(0, share(0));
        let kernels = alone + if every { m } else { 1.0 } * ends.head + ends.tail;
        // All messages of the micro-batches that are played go through the same links.
        let gathers = match data.zero {
            0 => 0.0,
            3 if !data.keep => 2.0 * self.total(0, &self.messages.gather),
            _ => self.total(0, &self.messages.gather),
        };
        let played = if every { m.min(2.0) } else { 1.0 };
        let links = played * (gathers + self.total(0, &self.messages.scatter)) + (m - played) * alone / m;
        kernels.max(if data.overlap { links } else { 0.0 })
    }

    /// The gather before a stage's first unit.
    fn gather(&self, stage: usize) -> f64 {
        self.cut.stages[stage].iter().flatten().next().map_or(0.0, |(f, _)| self.messages.gather[*f])
    }

    /// The same for a pipeline whose stages end at these times without data parallelism. All steps wait for the first
    /// stage's first, so what that waits for delays every end.
    pub fn seconds_after(&self, ends: &[f64], share: impl Fn(usize) -> f64) -> f64 {
        let gathers_once = self.data.zero != 3 || self.data.keep;
        let head = if gathers_once { self.ends(0, share(0)).head } else { 0.0 };
        let last = ends.iter().enumerate().map(|(s, end)| end + self.ends(s, share(s)).tail);
        head + last.fold(0.0, f64::max)
    }

    fn total(&self, stage: usize, of: &[f64]) -> f64 {
        self.cut.stages[stage].iter().flatten().map(|(f, n)| *n as f64 * of[*f]).sum()
    }

    /// Nothing starts before the first unit is gathered, and the gathers of all units run one behind the other, of
    /// which all but the last unit's forward can hide some. Reductions likewise: they start once the backward of the
    /// last unit is done, and end behind that of the first.
    fn ends(&self, stage: usize, again: f64) -> Ends {
        let units = || self.cut.stages[stage].iter().flatten();
        let (Some((first, _)), Some((last, _))) = (units().next(), units().next_back()) else {
            return Ends::default();
        };
        let m = self.messages;
        if self.data.shard.iter().chain(&self.data.replicas).all(|n| *n <= 1) {
            return Ends::default();
        }
        let mut out = Ends { head: m.gather[*first], tail: m.reduce[*first] };
        if self.data.overlap {
            let backward = |c: &Seconds| c.input + c.weight + again * c.again;
            let sum = |of: &dyn Fn(&Seconds) -> f64| units().map(|(f, n)| *n as f64 * of(&self.calls[*f])).sum::<f64>();
            let (ahead, behind) = (&self.calls[*last].forward, backward(&self.calls[*last]));
            let gathers = self.total(stage, &m.gather) - (sum(&|c| c.forward) - ahead);
            let links = self.total(stage, &m.scatter).max(self.total(stage, &m.outside));
            out.head = out.head.max(gathers);
            out.tail = out.tail.max(links - (sum(&backward) - behind));
        }
        if self.data.zero == 0 {
            out.head = 0.0;
        }
        out
    }
}

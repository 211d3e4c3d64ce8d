//! A training step of a pipeline: what each stage does for a micro-batch, played by its schedule, with the
//! gathers before and the reductions behind it.
//!
//! A stage's kernels for a micro-batch are the sums of its units' phases. Parameters that data-parallel ranks
//! share are gathered once before the first micro-batch (in each, with ZeRO-3 that does not keep them), and
//! gradients are reduced in the last one's backward, as Megatron and torchtitan do; what of that is not hidden
//! is found by playing one micro-batch of the stage alone, and stands before the stage's first step and behind
//! its last. The optimizer starts when the last stage is done, because it needs the norm of all gradients.

use super::parts::{Messages, Traffic};
use super::step::{self, played, Scratch, Step, StepTime, Unit};
use super::trace::{Event, Lane, Recorder};
use super::{Group, Rates, Transfer};
use autoshard_cost::collectives::Kind as Message;
use autoshard_cost::schedule::{Cost, Kind, Pipeline, ScheduleError, Work};
use autoshard_cost::sim::SimError;

/// The stages of a pipeline.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pipe<'a> {
    /// The schedule.
    pub kind: Kind,
    /// By stage, by chunk in the order of the forward.
    pub stages: &'a [Vec<Vec<Unit>>],
    /// Bytes that a rank hands to the next stage for a micro-batch.
    pub boundary_bytes: f64,
    /// Whether a stage waits until what it sends has arrived.
    pub blocking: bool,
}

/// Why a pipeline has no time.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum PipelineError {
    /// There is no such schedule.
    #[error(transparent)]
    Schedule(#[from] ScheduleError),
    /// Durations that are not numbers.
    #[error(transparent)]
    Tasks(#[from] SimError),
}

/// What a stage has to do besides its steps.
#[derive(Clone, Debug, Default)]
struct Ends {
    /// Seconds that its first step waits for parameters.
    head: f64,
    /// Seconds behind its last step until gradients are reduced.
    tail: f64,
    /// Seconds that gathers add to each micro-batch.
    each: f64,
    /// The messages of a step.
    messages: Messages,
}

/// Times a step of a pipeline. `base.units` is not read. With `explain` it is also played without messages, to
/// tell what they cost; otherwise their exposed part counts as bubble.
///
/// # Errors
/// Where there is no such schedule.
pub fn time(
    base: &Step,
    pipe: &Pipe,
    rates: &impl Rates,
    scratch: &mut Scratch,
    explain: bool,
) -> Result<StepTime, PipelineError> {
    let m = base.microbatches.max(1);
    // Stages are played by themselves first, which is nothing to tell.
    let recorder = scratch.recorder.take();
    let flat: Vec<Vec<Unit>> = pipe.stages.iter().map(|chunks| chunks.concat()).collect();
    let mut ends: Vec<Ends> = Vec::with_capacity(flat.len());
    for (i, units) in flat.iter().enumerate() {
        // Most stages are equal to the one before.
        let same = i.checked_sub(1).filter(|j| flat[*j] == *units);
        let made = match same {
            Some(j) => ends[j].clone(),
            None => stage_ends(&Step { units, ..base.clone() }, rates, scratch)?,
        };
        ends.push(made);
    }
    let costs = costs(base, pipe, &ends);
    let hop = rates.transfer(Message::SendRecv, Group::Pipeline, pipe.boundary_bytes);
    let hop = Transfer { seconds: hop.seconds * base.collectives, ..hop };
    let pipeline = Pipeline {
        kind: pipe.kind,
        stages: pipe.stages.len() as u32,
        chunks: pipe.stages.first().map_or(1, Vec::len) as u32,
        microbatches: m as u32,
        costs: &costs,
        message: hop.seconds,
        blocking: pipe.blocking,
    };
    let free = Pipeline { message: 0.0, ..pipeline };
    let finish = |plays: &[autoshard_cost::schedule::StagePlay]| {
        let last = plays.iter().zip(&ends).map(|(p, e)| p.end + e.tail).enumerate();
        last.fold((0, 0.0), |a: (usize, f64), b| if b.1 > a.1 { b } else { a })
    };
    let without = if explain { Some(finish(scratch.player.play(&free, false)?).1) } else { None };
    let plays = scratch.player.play(&pipeline, recorder.is_some())?;
    let (slowest, seconds) = finish(plays);
    let without = without.unwrap_or(seconds);
    let stages = plays.iter().map(|p| p.busy).collect();
    let busiest = Step { units: &flat[slowest], ..base.clone() };
    let mut out = step::inside(&busiest);
    out.stages = stages;
    let e = &ends[slowest];
    out.messages.add(&e.messages, 1.0);
    let waits = (seconds - without).max(0.0);
    out.messages.push(hops(pipe, &hop, m, waits));
    out.optimizer = flat.iter().map(|u| step::optimizer(&Step { units: u, ..base.clone() }, rates)).fold(0.0, f64::max);
    out.overhead = base.overhead;
    out.seconds = seconds + out.optimizer + out.overhead;
    scratch.recorder = recorder.map(|r| Recorder { events: events(&pipeline, scratch, &ends, (seconds, &out)), ..r });
    let seen = out.compute.seconds() + out.messages.exposed() + out.optimizer + out.overhead;
    out.bubble = (out.seconds - seen).max(0.0);
    Ok(out)
}

/// Steps and messages of all stages, what stands before and behind them, and the update.
fn events(p: &Pipeline, scratch: &Scratch, ends: &[Ends], (seconds, out): (f64, &StepTime)) -> Vec<Event> {
    let parts = p.stages * p.chunks;
    let mut all = Vec::with_capacity(2 * scratch.player.events().len());
    let mut event = |rank, lane, name: &str, start: f64, seconds: f64| {
        if seconds > 0.0 {
            all.push(Event { rank, lane, name: name.to_string(), start, seconds });
        }
    };
    // By stage: when its last send on and its last send back arrive, and its last step ends.
    let mut sent = vec![[0.0f64; 2]; p.stages as usize];
    let mut last = vec![0.0f64; p.stages as usize];
    for e in scratch.player.events() {
        event(e.stage, Lane::Compute, &e.step.to_string(), e.start, e.end - e.start);
        last[e.stage as usize] = last[e.stage as usize].max(e.end);
        let part = p.kind.part(p.stages, e.stage, e.step.chunk);
        let (to, back) = match e.step.work {
            Work::Forward => (Some(part + 1).filter(|to| *to < parts), false),
            Work::Backward | Work::BackwardInput => (part.checked_sub(1), true),
            Work::BackwardWeight => (None, false),
        };
        if to.is_some_and(|to| p.kind.holder(p.stages, to).0 != e.stage) {
            let free = &mut sent[e.stage as usize][usize::from(back)];
            let start = free.max(e.end);
            *free = start + p.message;
            let lane = if back { Lane::Backward } else { Lane::Forward };
            event(e.stage, lane, &format!("send {}", e.step), start, p.message);
        }
    }
    for (stage, end) in (0u32..).zip(ends) {
        event(stage, Lane::Data, "dp all-gather", 0.0, end.head);
        event(stage, Lane::Data, "dp reduction", last[stage as usize], end.tail);
        event(stage, Lane::Compute, "optimizer", seconds, out.optimizer);
        event(stage, Lane::Compute, "step overhead", seconds + out.optimizer, out.overhead);
    }
    all
}

/// The sends of the slowest stage.
fn hops(pipe: &Pipe, hop: &Transfer, m: u64, exposed: f64) -> Traffic {
    let count = 2.0 * m as f64 * pipe.stages.first().map_or(1, Vec::len) as f64;
    Traffic {
        kind: Message::SendRecv,
        group: Group::Pipeline,
        tier: hop.tier,
        load: hop.load,
        count,
        bytes: count * pipe.boundary_bytes,
        exposed,
        hidden: (count * hop.seconds - exposed).max(0.0),
    }
}

/// Plays a micro-batch of a stage alone.
fn stage_ends(step: &Step, rates: &impl Rates, scratch: &mut Scratch) -> Result<Ends, SimError> {
    let mut out = Ends::default();
    let d = &step.data;
    let shares = d.shard.iter().chain(&d.replicas).any(|n| *n > 1);
    if !shares || step.units.is_empty() {
        return Ok(out);
    }
    // Parameters that are not kept are gathered in every micro-batch.
    let every = d.zero == 3 && !d.keep;
    let all = played(step, rates, scratch)?;
    let inside = step::inside(&Step { microbatches: 1, ..step.clone() });
    let busy = inside.compute.seconds() + inside.messages.exposed();
    let mut gathers = 0.0;
    for t in all.messages.0 {
        let gather = t.kind == Message::AllGather;
        gathers += if gather { t.exposed } else { 0.0 };
        let times = if every && gather { step.microbatches.max(1) as f64 } else { 1.0 };
        let (count, bytes) = (t.count * times, t.bytes * times);
        out.messages.push(Traffic { count, bytes, exposed: t.exposed * times, hidden: t.hidden * times, ..t });
    }
    *(if every { &mut out.each } else { &mut out.head }) = gathers;
    out.tail = (all.seconds - busy - gathers).max(0.0);
    Ok(out)
}

/// Seconds of each chunk.
fn costs(base: &Step, pipe: &Pipe, ends: &[Ends]) -> Vec<Cost> {
    let mut out = Vec::new();
    for (chunks, ends) in pipe.stages.iter().zip(ends) {
        let all = chunks.concat();
        let whole = work(base, &all);
        let total = whole[0] + whole[1] + whole[2];
        for units in chunks {
            let [forward, input, weight] = work(base, units);
            // Messages of each micro-batch go with the kernels that wait for them.
            let more = if total > 0.0 { 1.0 + ends.each / total } else { 1.0 };
            out.push(Cost {
                forward: forward * more,
                backward_input: input * more,
                backward_weight: weight * more,
                ready: ends.head,
            });
        }
    }
    out
}

/// Seconds of forward, of gradients of activations (with what is computed again) and of weights.
fn work(base: &Step, units: &[Unit]) -> [f64; 3] {
    let mut out = [0.0; 3];
    for u in units {
        let (p, n) = (&base.priced[u.function], u.count as f64);
        out[0] += n * p.forward.seconds();
        out[1] += n * (p.backward_input.seconds() + u.recompute * p.recompute.seconds());
        out[2] += n * p.backward_weight.seconds();
    }
    out
}

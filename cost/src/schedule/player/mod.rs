//! Plays a schedule: when each stage takes its steps.
//!
//! The times of a pipeline follow from one another by taking the later of two and adding seconds (a max-plus linear
//! system: Baccelli et al., *Synchronization and Linearity*, 1992). Steps come one by one from the order of each stage,
//! and of what was sent only the last times are kept (`channels.rs`), so that a play needs no memory for its
//! micro-batches. Once every period adds what the one before has added, whole periods are left out (`steady.rs`); only
//! steps that are played take time.

mod channels;
mod engine;
mod exchange;
mod steady;
#[cfg(test)]
mod tests;
mod time;

use super::build::check;
use super::order::class;
use super::{Kind, ScheduleError, Step, Work};
use engine::Engine;

/// A pipeline with the times of its steps.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pipeline<'a> {
    /// The schedule.
    pub kind: Kind,
    /// Stages.
    pub stages: u32,
    /// Chunks of a stage.
    pub chunks: u32,
    /// Micro-batches.
    pub microbatches: u32,
    /// Seconds of each chunk, stage by stage: `costs[stage · chunks + chunk]`.
    pub costs: &'a [Cost],
    /// Seconds of a message from a stage to another.
    pub message: f64,
    /// Whether a stage waits for what it sends.
    ///
    /// With one chunk a stage as in Megatron-Core's non-interleaved schedule
    /// (`forward_backward_pipelining_without_interleaving`): a message moves once its sender and its receiver have both
    /// come to it, and keeps both from computing. Between a forward and a backward a stage sends and receives at once
    /// (`send_forward_recv_backward`, `send_backward_recv_forward`), else it sends before it receives.
    ///
    /// With several chunks only the sender waits, until its message has arrived.
    pub blocking: bool,
}

/// Seconds of a chunk for one micro-batch.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Cost {
    /// Its forward.
    pub forward: f64,
    /// Gradients of activations, with what is computed again for them.
    pub backward_input: f64,
    /// Gradients of weights.
    pub backward_weight: f64,
    /// Seconds from the start of the step before which its first forward cannot start.
    pub ready: f64,
}

/// How a stage spends a step.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StagePlay {
    /// Start of its first step, s.
    pub start: f64,
    /// End of its last step, or of its last message where sends block, s.
    pub end: f64,
    /// Seconds in which it works.
    pub busy: f64,
    /// Seconds in which it waits for what it sends, where sends block: from the end of the step until the message has
    /// arrived.
    pub sending: f64,
}

/// A step that was played.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Played {
    /// The stage.
    pub stage: u32,
    /// The step.
    pub step: Step,
    /// Start, s.
    pub start: f64,
    /// End, s.
    pub end: f64,
}

/// Plays schedules, keeping its scratch: a play that needs no more than the ones before allocates nothing.
#[derive(Clone, Debug, Default)]
pub struct Player {
    engine: Engine,
    plays: Vec<StagePlay>,
}

/// Micro-batches times chunks at most, so that steps of a stage can be counted.
const MOST: u64 = 1 << 28;

impl Player {
    /// Plays all steps. `record` keeps them for [`Player::events`]; then each is played, otherwise periods that are
    /// like the ones before are left out.
    ///
    /// # Errors
    /// Where there is no such schedule, where costs are missing or are no seconds, and where it is too large.
    pub fn play(&mut self, p: &Pipeline, record: bool) -> Result<&[StagePlay], ScheduleError> {
        examine(p)?;
        self.engine.reset(p, record)?;
        self.engine.run()?;
        self.plays.clear();
        let costs = p.costs.chunks_exact(p.chunks as usize);
        self.plays.extend(self.engine.stages.iter().zip(costs).map(|(stage, costs)| StagePlay {
            start: stage.start,
            end: stage.free.at,
            busy: f64::from(p.microbatches) * costs.iter().map(Cost::all).sum::<f64>(),
            sending: stage.sending.at,
        }));
        Ok(&self.plays)
    }

    /// What was played last, where it was recorded: the steps of each stage in order, those of different stages mixed.
    pub fn events(&self) -> &[Played] {
        &self.engine.events
    }

    /// Steps of all stages that were played last; those that were left out do not count.
    pub fn steps(&self) -> u64 {
        self.engine.stages.iter().map(|s| s.played).sum()
    }

    /// Whether what was left out last is known exactly, but for rounding. `false` where a steady state was not found
    /// within 512 periods, and the mean of the last 256 of them or more stands for those that were left out.
    pub fn exact(&self) -> bool {
        self.engine.exact()
    }
}

impl Cost {
    fn all(&self) -> f64 {
        self.forward + self.backward_input + self.backward_weight
    }

    /// By [`Work`]: forward, whole backward, its halves.
    fn seconds(&self, work: Work) -> f64 {
        match work {
            Work::Forward => self.forward,
            Work::Backward => self.backward_input + self.backward_weight,
            Work::BackwardInput => self.backward_input,
            Work::BackwardWeight => self.backward_weight,
        }
    }
}

/// Whether a pipeline can be played.
fn examine(p: &Pipeline) -> Result<(), ScheduleError> {
    check(p.kind, p.stages, p.chunks, p.microbatches)?;
    let steps = u64::from(p.microbatches).saturating_mul(u64::from(p.chunks));
    let parts = u64::from(p.stages).saturating_mul(u64::from(p.chunks));
    if steps > MOST || parts > MOST {
        return Err(ScheduleError::TooMany { kind: p.kind, steps: 3 * steps.saturating_mul(u64::from(p.stages)) });
    }
    if p.costs.len() as u64 != parts {
        return Err(ScheduleError::Costs { stages: p.stages, chunks: p.chunks, costs: p.costs.len() });
    }
    let bad = |seconds: f64| !(0.0..f64::INFINITY).contains(&seconds);
    for (at, cost) in (0u32..).zip(p.costs) {
        let seconds = [cost.forward, cost.backward_input, cost.backward_weight, cost.ready];
        if let Some(seconds) = seconds.into_iter().find(|s| bad(*s)) {
            return Err(ScheduleError::Seconds { stage: at / p.chunks, chunk: at % p.chunks, seconds });
        }
    }
    match bad(p.message) {
        true => Err(ScheduleError::Message(p.message)),
        false => Ok(()),
    }
}

//! Pipeline schedules: in which order each stage takes its steps.
//!
//! A model is cut into *parts*, one after the other. A stage holds one part, or several, its *chunks*. A
//! micro-batch goes forward through all parts and backward through all parts; a schedule says in which order
//! each stage does its share. What waits follow from it is found by a [`Player`], which knows pipelines alone and needs
//! no more steps for more micro-batches, or by the simulator of tasks, beside anything else ([`lower`], and for
//! thousands of micro-batches [`lower_periodic`]).
//!
//! With F, B = Bx + W the seconds of a stage for a micro-batch (forward, backward, of which the gradients of
//! activations and of weights), p equal stages, m micro-batches, v chunks a stage and messages that take no
//! time, a step takes m (F + B) and
//! - naive: (m p − m)(F + B) more, as one stage works at a time;
//! - GPipe (Huang et al., 2019) and 1F1B (Narayanan et al., PipeDream-Flush, 2021): (p − 1)(F + B);
//! - interleaved 1F1B (Narayanan et al., 2021): (p − 1)(F + B) / v;
//! - ZB-H1 (Qi et al., 2401.10241): (p − 1)(F + B − 2W);
//! - ZB-V (the same, section 6): none on any stage once it has started, where F = Bx = W;
//! - DualPipeV (DeepSeek-AI, DualPipe's README, 2025): (p − 1)(F&B + B − 3W) of a chunk's times by the README, with F&B
//!   a pair that overlaps. A pair whose steps run one after the other, as here, waits less: (p − 1) F where F = Bx = W.

mod build;
mod held;
#[cfg(test)]
mod lists;
mod lower;
mod order;
mod player;
mod repeat;
#[cfg(test)]
mod tests;

pub use build::schedule;
pub use held::{fullest, Moment};
pub use lower::{in_flight, lower, rules, Lowered};
pub use player::{Cost, Pipeline, Played, Player, StagePlay};
pub use repeat::{lower_periodic, Repeated};

use crate::sim::SimError;
use std::fmt;
use thiserror::Error;

/// A kind of schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// One micro-batch after the other.
    Naive,
    /// All forwards, then all backwards.
    GPipe,
    /// One forward, one backward, after as many forwards as stages follow.
    OneForwardOneBackward,
    /// The same with several chunks a stage, as Megatron does it: chunk c of stage i is part c p + i, and
    /// micro-batches go through the chunks in groups of p.
    Interleaved,
    /// 1F1B whose backward is split: stage i does the gradients of weights i micro-batches later.
    ZeroBubbleH1,
    /// Two chunks a stage in a V: stage i holds parts i and 2p − 1 − i; the backward is split.
    ZeroBubbleV,
    /// The same V, where a forward of one micro-batch and a backward of another make a pair (DeepSeek's DualPipeV):
    /// what a stack overlaps within the pair is its own; here its two steps run one after the other.
    DualPipeV,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Kind; 7] = [
        Kind::Naive,
        Kind::GPipe,
        Kind::OneForwardOneBackward,
        Kind::Interleaved,
        Kind::ZeroBubbleH1,
        Kind::ZeroBubbleV,
        Kind::DualPipeV,
    ];

    /// Its name, as in plans.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Naive => "naive",
            Kind::GPipe => "gpipe",
            Kind::OneForwardOneBackward => "1f1b",
            Kind::Interleaved => "interleaved",
            Kind::ZeroBubbleH1 => "zb-h1",
            Kind::ZeroBubbleV => "zb-v",
            Kind::DualPipeV => "dualpipe-v",
        }
    }

    /// The part that is a chunk of a stage.
    pub fn part(self, stages: u32, stage: u32, chunk: u32) -> u32 {
        match self {
            Kind::ZeroBubbleV | Kind::DualPipeV if chunk == 1 => 2 * stages - 1 - stage,
            _ => chunk * stages + stage,
        }
    }

    /// The stage that holds a part, and as which chunk.
    pub fn holder(self, stages: u32, part: u32) -> (u32, u32) {
        match self {
            Kind::ZeroBubbleV | Kind::DualPipeV if (stages..2 * stages).contains(&part) => (2 * stages - 1 - part, 1),
            _ => (part % stages, part / stages),
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What a stage does in a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Work {
    /// The forward.
    Forward,
    /// The whole backward.
    Backward,
    /// The gradients of activations, for which the stage before waits.
    BackwardInput,
    /// The gradients of weights, for which nothing waits but the update.
    BackwardWeight,
}

/// One step of a stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Step {
    /// What it does.
    pub work: Work,
    /// For which micro-batch.
    pub microbatch: u32,
    /// Through which chunk of the stage.
    pub chunk: u32,
}

/// `F3`, `B3`, `Bx3`, `W3`; with the chunk behind it where that is not the first: `F3.1`.
impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let work = match self.work {
            Work::Forward => "F",
            Work::Backward => "B",
            Work::BackwardInput => "Bx",
            Work::BackwardWeight => "W",
        };
        write!(f, "{work}{}", self.microbatch)?;
        match self.chunk {
            0 => Ok(()),
            chunk => write!(f, ".{chunk}"),
        }
    }
}

/// Why there is no such schedule.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum ScheduleError {
    /// Nothing to schedule.
    #[error(
        "{kind} with {stages} stages, {chunks} chunks and {microbatches} micro-batches: each has to be at least 1"
    )]
    Empty {
        /// The schedule.
        kind: Kind,
        /// Stages.
        stages: u32,
        /// Chunks of a stage.
        chunks: u32,
        /// Micro-batches.
        microbatches: u32,
    },
    /// More steps than can be numbered.
    #[error("{kind}: {steps} steps of all stages are too many; schedule fewer micro-batches, and let them repeat")]
    TooMany {
        /// The schedule.
        kind: Kind,
        /// Steps of all stages.
        steps: u64,
    },
    /// A number of chunks that the schedule does not have.
    #[error("{kind} with {chunks} chunks a stage: it has {needs}; more chunks need interleaved")]
    Chunks {
        /// The schedule.
        kind: Kind,
        /// Chunks of a stage.
        chunks: u32,
        /// How many it has.
        needs: u32,
    },
    /// Micro-batches that do not make whole groups.
    #[error(
        "interleaved with {microbatches} micro-batches on {stages} stages: micro-batches go in groups of as many \
         as there are stages; use a multiple of {stages} (it need not be one of stages times chunks): {}", Near(*.stages, *.microbatches)
    )]
    Groups {
        /// Stages.
        stages: u32,
        /// Micro-batches.
        microbatches: u32,
    },
    /// Costs of another number of chunks.
    #[error("{costs} costs for {stages} stages of {chunks} chunks; give one for each chunk, stage by stage")]
    Costs {
        /// Stages.
        stages: u32,
        /// Chunks of a stage.
        chunks: u32,
        /// How many costs there are.
        costs: usize,
    },
    /// A cost that is no time.
    #[error("stage {stage}, chunk {chunk}: {seconds} s is no time; it has to be finite and 0 or more")]
    Seconds {
        /// The stage.
        stage: u32,
        /// The chunk.
        chunk: u32,
        /// What its cost says.
        seconds: f64,
    },
    /// A message that takes no time that there is.
    #[error("a message takes {0} s, which is no time; it has to be finite and 0 or more")]
    Message(f64),
    /// A stage that waits for ever.
    #[error(
        "stage {stage} waits for ever{}: its order of steps and those of the other stages do not fit together, which is \
         an error of this schedule; please report it", .step.map(|s| format!(" before {s}")).unwrap_or_default()
    )]
    Stuck {
        /// The stage.
        stage: u32,
        /// Its next step; `None` where only what it sent last waits.
        step: Option<Step>,
    },
    /// More stages than the simulator has streams for.
    #[error("{0} stages are more than the simulator has streams for (21,845); use fewer stages")]
    Stages(usize),
    /// A step that another waits for, and that no stage takes.
    #[error(
        "stage {stage}, {step}: it waits for the {needs:?} of micro-batch {} through part {part}, which no stage does: \
         add that step to the stage that holds the part", step.microbatch
    )]
    Missing {
        /// The stage that waits.
        stage: u32,
        /// The step that waits.
        step: Step,
        /// What is missing.
        needs: Work,
        /// Through which part of the model.
        part: u32,
    },
    /// A step that is listed twice.
    #[error("stage {stage}, {step}: it is listed twice; take one away")]
    Twice {
        /// The stage.
        stage: u32,
        /// The step.
        step: Step,
    },
    /// Stages that wait for one another.
    #[error("{}; no stage can go on: change the order of one", Circle(.0))]
    Deadlock(
        /// Stages and steps: each cannot start before the next has ended, the last not before the first.
        Vec<(u32, Step)>,
    ),
    /// Anything else that the simulator refuses.
    #[error(transparent)]
    Tasks(#[from] SimError),
}

/// The multiples of a number next to another.
struct Near(u32, u32);

impl fmt::Display for Near {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let &Near(stages, microbatches) = self;
        let below = microbatches / stages.max(1) * stages;
        match (below, below.checked_add(stages)) {
            (0, Some(above)) => write!(f, "{above}"),
            (_, Some(above)) => write!(f, "{below} or {above}"),
            (_, None) => write!(f, "{below}"),
        }
    }
}

/// The text of a deadlock.
struct Circle<'a>(&'a [(u32, Step)]);

impl fmt::Display for Circle<'_> {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let mut word = "";
        for (stage, step) in self.0.iter().chain(self.0.first()) {
            write!(f, "{word}{step} of stage {stage}")?;
            word = " comes after ";
        }
        Ok(())
    }
}

//! Plays a schedule: when each stage takes its steps.

use super::{schedule, Kind, ScheduleError, Step, Work};

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
    /// Whether a stage waits until what it sends has arrived.
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
    /// End of its last step, s.
    pub end: f64,
    /// Seconds in which it works.
    pub busy: f64,
    /// Seconds in which it waits for what it sends, where sends block.
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

/// Plays schedules, keeping its scratch.
#[derive(Clone, Debug, Default)]
pub struct Player {
    stages: Vec<StagePlay>,
    events: Vec<Played>,
    arrived: Vec<f64>,
}

impl Player {
    /// Plays all steps. `record` keeps them for [`Player::events`].
    ///
    /// # Errors
    /// Where there is no such schedule.
    pub fn play(&mut self, p: &Pipeline, record: bool) -> Result<&[StagePlay], ScheduleError> {
        let steps = schedule(p.kind, p.stages, p.chunks, p.microbatches)?;
        let parts = (p.stages * p.chunks) as usize;
        let m = p.microbatches as usize;
        self.stages.clear();
        self.stages.resize(p.stages as usize, StagePlay { start: f64::NAN, ..StagePlay::default() });
        self.events.clear();
        // When the input of a part's forward, or the cotangent of its result, is there.
        self.arrived.clear();
        self.arrived.resize(2 * parts * m, f64::NAN);
        let mut next = vec![0usize; p.stages as usize];
        let mut sent = vec![[0.0f64; 2]; p.stages as usize];
        let mut moved = true;
        while moved {
            moved = false;
            for stage in 0..p.stages {
                let s = stage as usize;
                while let Some(step) = steps[s].get(next[s]) {
                    let part = p.kind.part(p.stages, stage, step.chunk) as usize;
                    let cost = &p.costs[s * p.chunks as usize + step.chunk as usize];
                    let (mb, last) = (step.microbatch as usize, part + 1 == parts);
                    let (seconds, after, direction) = match step.work {
                        Work::Forward if part == 0 => (cost.forward, cost.ready, Some(0)),
                        Work::Forward => (cost.forward, self.arrived[part * m + mb].max(cost.ready), Some(0)),
                        Work::Backward | Work::BackwardInput => {
                            let weight = if step.work == Work::Backward { cost.backward_weight } else { 0.0 };
                            let at = if last { 0.0 } else { self.arrived[(parts + part) * m + mb] };
                            (cost.backward_input + weight, at, Some(1))
                        }
                        Work::BackwardWeight => (cost.backward_weight, 0.0, None),
                    };
                    if after.is_nan()
                        || (step.work == Work::Forward && part > 0 && self.arrived[part * m + mb].is_nan())
                    {
                        break;
                    }
                    let state = &mut self.stages[s];
                    let start = state.end.max(after);
                    let end = start + seconds;
                    if state.start.is_nan() {
                        state.start = start;
                    }
                    state.busy += seconds;
                    state.end = end;
                    if record {
                        self.events.push(Played { stage, step: *step, start, end });
                    }
                    let to = match direction {
                        Some(0) if !last => Some(part + 1),
                        Some(1) if part > 0 => Some(part - 1),
                        _ => None,
                    };
                    if let (Some(to), Some(d)) = (to, direction) {
                        let (holder, _) = p.kind.holder(p.stages, to as u32);
                        let arrives = match holder == stage {
                            true => end,
                            false => {
                                sent[s][d] = sent[s][d].max(end) + p.message;
                                if p.blocking {
                                    self.stages[s].sending += sent[s][d] - end;
                                    self.stages[s].end = sent[s][d];
                                }
                                sent[s][d]
                            }
                        };
                        self.arrived[(d * parts + to) * m + mb] = arrives;
                    }
                    next[s] += 1;
                    moved = true;
                }
            }
        }
        Ok(&self.stages)
    }

    /// What was played last, where it was recorded.
    pub fn events(&self) -> &[Played] {
        &self.events
    }
}

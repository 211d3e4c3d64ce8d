//! The order of a stage's steps, as phases: a few cycles of steps, each so many times. Steps follow from them one by
//! one, so that a schedule of any number of micro-batches takes no more memory than one of few.

use super::{Kind, Step, Work};
use Work::{Backward, BackwardInput, BackwardWeight, Forward};

/// A step of a cycle: what is done through which chunk; the micro-batch follows from how often it was done before.
#[derive(Clone, Copy, Debug)]
struct Slot {
    work: Work,
    chunk: u32,
}

/// Stands for a chunk that is another one from time to time: groups of p micro-batches go through one chunk after the
/// other.
const TURN: u32 = u32::MAX;

type Cycle = &'static [Slot];

const fn on(work: Work, chunk: u32) -> Slot {
    Slot { work, chunk }
}

const F: Slot = on(Forward, 0);
const B: Slot = on(Backward, 0);
const BX: Slot = on(BackwardInput, 0);
const W: Slot = on(BackwardWeight, 0);
const F1: Slot = on(Forward, 1);
const B1: Slot = on(Backward, 1);
const BX1: Slot = on(BackwardInput, 1);
const W1: Slot = on(BackwardWeight, 1);
const FT: Slot = on(Forward, TURN);
const BT: Slot = on(Backward, TURN);

/// Some cycles, one after the other.
#[derive(Clone, Copy, Debug)]
struct Phase {
    cycle: Cycle,
    times: u32,
    /// Cycles of a period, in which the stage does its share of one more round of micro-batches; 0 where the number of
    /// cycles does not grow with that of micro-batches.
    period: u32,
    /// Which of the phases with a period it is, from 1; 0 without.
    steady: u32,
}

/// What a stage does, phase by phase, of which one is looked for.
struct Phases {
    /// Its number.
    wanted: u32,
    /// Phases so far, those with a period, and the one that is looked for.
    seen: u32,
    steady: u32,
    found: Phase,
}

impl Phases {
    fn looking_for(wanted: u32) -> Phases {
        Phases { wanted, seen: 0, steady: 0, found: Phase { cycle: &[], times: 0, period: 0, steady: 0 } }
    }

    /// Cycles whose number does not grow with that of micro-batches.
    fn then(&mut self, times: u32, cycle: Cycle) -> &mut Phases {
        self.steady(times, cycle, 0)
    }

    fn steady(&mut self, times: u32, cycle: Cycle, period: u32) -> &mut Phases {
        if times > 0 {
            self.steady += u32::from(period > 0);
            if self.seen == self.wanted {
                self.found = Phase { cycle, times, period, steady: if period > 0 { self.steady } else { 0 } };
            }
            self.seen += 1;
        }
        self
    }
}

/// A stage of a schedule.
#[derive(Clone, Copy, Debug)]
struct Of {
    kind: Kind,
    stages: u32,
    stage: u32,
    chunks: u32,
    microbatches: u32,
}

/// The phases of a stage, one after the other; the one of a number.
fn phase(of: Of, number: u32) -> Phase {
    let mut phases = Phases::looking_for(number);
    let Of { stages, stage, chunks, microbatches, .. } = of;
    let after = stages - stage - 1;
    match of.kind {
        Kind::Naive => {
            phases.steady(microbatches, &[F, B], 1);
        }
        Kind::GPipe => {
            phases.steady(microbatches, &[F], 1).steady(microbatches, &[B], 1);
        }
        // Before its first backward a stage goes forward once for every stage that follows (Megatron's warm-up count,
        // p − i − 1), and once more.
        Kind::OneForwardOneBackward => {
            let warm = after.min(microbatches);
            phases.then(warm, &[F]).steady(microbatches - warm, &[F, B], 1).then(warm, &[B]);
        }
        // Groups of p micro-batches go through one chunk after the other, backward through the last chunk first.
        // Megatron's warm-up count is 2 (p − i − 1) + (v − 1) p.
        Kind::Interleaved => {
            let total = microbatches * chunks;
            let warm = (2 * after + (chunks - 1) * stages).min(total);
            // Of one chunk, any number of micro-batches makes a group.
            let period = if chunks == 1 { 1 } else { stages * chunks };
            phases.then(warm, &[FT]).steady(total - warm, &[FT, BT], period).then(warm, &[BT]);
        }
        Kind::ZeroBubbleH1 => half(&mut phases, after.min(microbatches), stage.min(microbatches), microbatches),
        Kind::ZeroBubbleV => vee(&mut phases, stages, stage, microbatches),
        Kind::DualPipeV => dual(&mut phases, stages, stage, microbatches),
    }
    phases.found
}

/// The later a stage, the fewer micro-batches it has under way, and the more gradients of weights it can put off in
/// the same memory: stage i as many as stages precede it (`behind`). So the gradients of activations reach the first
/// stage early, and those of weights fill the end.
fn half(phases: &mut Phases, warm: u32, behind: u32, microbatches: u32) {
    let rest = microbatches - warm;
    phases.then(warm, &[F]);
    match behind <= rest {
        true => phases.then(behind, &[F, BX]).steady(rest - behind, &[F, BX, W], 1).then(warm, &[BX, W]),
        false => phases.then(rest, &[F, BX]).then(behind - rest, &[BX]).then(microbatches - behind, &[BX, W]),
    };
    phases.then(behind, &[W]);
}

/// With unit times, stage i runs its chunks so that it never waits:
/// - forwards of chunk 0 until the first micro-batch has been down to the last stage and back: 2 (p − i) − 1; then
///   forwards of both in turn, i times;
/// - while the pipeline fills, chunk 1 goes forward and backward, p − i times;
/// - both chunks do all three of their steps in turn, as long as forwards are left;
/// - gradients of activations first: those of both chunks while both have some, then those of chunk 0 with gradients
///   of weights between; the gradients of weights that are left come last.
///
/// The pattern needs 2p − 1 micro-batches; with fewer, those that do not exist are left out of it.
fn vee(phases: &mut Phases, stages: u32, stage: u32, microbatches: u32) {
    let total = microbatches.max(2 * stages - 1);
    let (before, rest) = (stage, stages - stage);
    phases.then(2 * rest - 1, &[F]).then(before, &[F1, F]).then(rest, &[F1, BX1, W1]);
    phases.steady(total - (stages + rest - 1), &[F, BX, W, F1, BX1, W1], 1).then(rest - 1, &[BX, W, F1, BX1, W1]);
    phases.then(before, &[BX, BX1]).then(rest, &[BX, W]);
    phases.then(before, &[W1]).then(before, &[W]);
}

/// Two chunks in a V as well, but backwards are whole wherever a forward through the other chunk runs beside them; as
/// in DualPipeV (the README of deepseek-ai/DualPipe), which keeps 2p + 1 chunks' activations on every stage:
/// - forwards of chunk 0 until the first micro-batch is back, then forwards of both until 2p chunks are kept;
/// - while the pipeline fills, chunk 1 goes backward, in halves, and forward;
/// - the pairs: forward through chunk 0 and backward through chunk 1, then the other way round;
/// - the backwards of what is left, then only gradients of activations, which the stage before waits for, and those of
///   weights where there is time.
///
/// The pattern needs 2p micro-batches; with fewer, those that do not exist are left out of it.
fn dual(phases: &mut Phases, stages: u32, stage: u32, microbatches: u32) {
    let total = microbatches.max(2 * stages);
    let (before, rest) = (stage + 1, stages - stage - 1);
    phases.then(2 * rest, &[F]).then(before, &[F, F1]).then(rest, &[BX1, W1, F1]);
    phases.steady(total - 2 * stages + before, &[F, B1, F1, B], 1).then(rest, &[B1, F1, B]);
    let (whole, split) = (before / 2, before.div_ceil(2));
    // Half of these backwards are split: whole ones first; where their number is odd, one pair is half and half.
    phases.then(whole, &[B1, B]).then(split - whole, &[B1, BX]).then(whole, &[BX1, BX]);
    // As many gradients of weights are left for each chunk.
    let (one, zero) = (whole.min(rest), rest - whole.min(rest));
    phases.then(one, &[W1, BX]).then(zero, &[W, BX]);
    phases.then(whole - one, &[W1]).then(split + one, &[W]);
}

/// A place in groups of micro-batches that go through one chunk after the other.
#[derive(Clone, Copy, Debug, Default)]
struct Turn {
    /// The first micro-batch of the group.
    group: u32,
    within: u32,
    chunk: u32,
}

impl Turn {
    fn step(&self, work: Work, chunks: u32) -> Step {
        let chunk = if work == Forward { self.chunk } else { chunks - 1 - self.chunk };
        Step { work, microbatch: self.group + self.within, chunk }
    }

    fn advance(&mut self, stages: u32, chunks: u32) {
        self.within += 1;
        if self.within == stages {
            self.within = 0;
            self.chunk += 1;
            if self.chunk == chunks {
                self.chunk = 0;
                self.group += stages;
            }
        }
    }
}

/// The steps of a stage, one by one.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cursor {
    of: Of,
    /// The number of the phase after the one under way.
    next: u32,
    phase: Phase,
    /// The place in the cycle.
    at: usize,
    /// Forwards, backwards and gradients of weights so far, by chunk.
    done: [[u32; 2]; 3],
    /// Where chunks take turns: of forwards and of backwards.
    turns: [Turn; 2],
    step: Option<Step>,
}

/// Forwards, backwards, gradients of weights.
pub(super) fn class(work: Work) -> usize {
    match work {
        Forward => 0,
        Backward | BackwardInput => 1,
        BackwardWeight => 2,
    }
}

impl Cursor {
    /// Before the first step of a stage, of a schedule that there is.
    pub(super) fn new(kind: Kind, stages: u32, stage: u32, chunks: u32, microbatches: u32) -> Cursor {
        let of = Of { kind, stages, stage, chunks, microbatches };
        let mut cursor = Cursor {
            of,
            next: 1,
            phase: phase(of, 0),
            at: 0,
            done: [[0; 2]; 3],
            turns: [Turn::default(); 2],
            step: None,
        };
        cursor.find();
        cursor
    }

    /// The step that is next.
    pub(super) fn step(&self) -> Option<Step> {
        self.step
    }

    /// Goes on to the step after.
    #[inline]
    pub(super) fn advance(&mut self) {
        self.pass();
        self.find();
    }

    /// Which of the phases it is in that grow with the number of micro-batches, from 1; 0 in others.
    pub(super) fn steady(&self) -> u32 {
        self.phase.steady
    }

    /// Steps of a period of its phase.
    pub(super) fn period(&self) -> u32 {
        self.phase.period * self.phase.cycle.len() as u32
    }

    /// Whole periods that are left of its phase, beside the cycle under way.
    pub(super) fn periods(&self) -> u32 {
        match self.phase.period {
            0 => 0,
            period => (self.phase.times - 1) / period,
        }
    }

    /// Leaves out so many periods of the phase, at most as many as are left. What comes behind is numbered as if their
    /// micro-batches did not exist.
    pub(super) fn leave_out(&mut self, periods: u32) {
        self.phase.times -= periods.min(self.periods()) * self.phase.period;
    }

    /// Enters the next phase.
    #[cold]
    fn enter(&mut self) {
        self.phase = phase(self.of, self.next);
        self.next += 1;
    }

    /// Finds the next step that exists.
    #[inline]
    fn find(&mut self) {
        self.step = self.at();
        while self.step.is_some_and(|step| step.microbatch >= self.of.microbatches) {
            self.pass();
            self.step = self.at();
        }
    }

    /// The step of the place in the cycle.
    #[inline]
    fn at(&self) -> Option<Step> {
        let &Slot { work, chunk } = self.phase.cycle.get(self.at)?;
        Some(match chunk {
            TURN => self.turns[class(work) & 1].step(work, self.of.chunks),
            _ => Step { work, microbatch: self.done[class(work)][chunk as usize & 1], chunk },
        })
    }

    /// Passes the place in the cycle.
    #[inline]
    fn pass(&mut self) {
        let Some(&Slot { work, chunk }) = self.phase.cycle.get(self.at) else { return };
        match chunk {
            TURN => self.turns[class(work) & 1].advance(self.of.stages, self.of.chunks),
            _ => {
                self.done[class(work)][chunk as usize & 1] += 1;
                if work == Backward {
                    self.done[2][chunk as usize & 1] += 1;
                }
            }
        }
        self.at += 1;
        if self.at == self.phase.cycle.len() {
            self.at = 0;
            self.phase.times -= 1;
            if self.phase.times == 0 {
                self.enter();
            }
        }
    }
}

impl Iterator for Cursor {
    type Item = Step;

    fn next(&mut self) -> Option<Step> {
        let step = self.step?;
        self.advance();
        Some(step)
    }
}

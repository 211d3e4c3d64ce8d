//! The order of each stage's steps.

use super::{Kind, ScheduleError, Step, Work};
use Work::{Backward, BackwardInput, BackwardWeight, Forward};

/// Steps of all stages at most: tables of them fit into memory.
pub(super) const MOST: u64 = 1 << 26;

/// The steps of each stage, in order: every forward and every backward, whole or in its two halves, once.
pub fn schedule(kind: Kind, stages: u32, chunks: u32, microbatches: u32) -> Result<Vec<Vec<Step>>, ScheduleError> {
    check(kind, stages, chunks, microbatches)?;
    // Three steps for a chunk and a micro-batch at most.
    let steps = u64::from(stages).saturating_mul(3 * u64::from(chunks)).saturating_mul(u64::from(microbatches));
    if steps > MOST {
        return Err(ScheduleError::TooMany { kind, steps });
    }
    let steps = |stage| match kind {
        Kind::Naive => naive(microbatches),
        Kind::GPipe => gpipe(microbatches),
        Kind::OneForwardOneBackward => one_by_one(stages, stage, microbatches),
        Kind::Interleaved => interleaved(stages, stage, chunks, microbatches),
        Kind::ZeroBubbleH1 => half(stages, stage, microbatches),
        Kind::ZeroBubbleV => vee(stages, stage, microbatches),
    };
    Ok((0..stages).map(steps).collect())
}

/// Whether a kind has schedules of these numbers.
pub(super) fn check(kind: Kind, stages: u32, chunks: u32, microbatches: u32) -> Result<(), ScheduleError> {
    if stages == 0 || chunks == 0 || microbatches == 0 {
        return Err(ScheduleError::Empty { kind, stages, chunks, microbatches });
    }
    let needs = match kind {
        Kind::Interleaved => chunks,
        Kind::ZeroBubbleV => 2,
        _ => 1,
    };
    if chunks != needs {
        return Err(ScheduleError::Chunks { kind, chunks, needs });
    }
    if kind == Kind::Interleaved && !microbatches.is_multiple_of(stages) {
        return Err(ScheduleError::Groups { stages, microbatches });
    }
    Ok(())
}

/// A step on a stage's first chunk.
fn on(work: Work, microbatch: u32) -> Step {
    Step { work, microbatch, chunk: 0 }
}

fn naive(microbatches: u32) -> Vec<Step> {
    (0..microbatches).flat_map(|m| [on(Forward, m), on(Backward, m)]).collect()
}

fn gpipe(microbatches: u32) -> Vec<Step> {
    let forwards = (0..microbatches).map(|m| on(Forward, m));
    forwards.chain((0..microbatches).map(|m| on(Backward, m))).collect()
}

/// `warm` forwards, then a forward and a backward in turn, then the backwards that are left; `forward(k)` and
/// `backward(k)` say what the k-th of `total` is.
fn in_turn(
    total: u32,
    warm: u32,
    forward: impl Fn(u32) -> Step,
    mut backward: impl FnMut(u32, &mut Vec<Step>),
) -> Vec<Step> {
    let warm = warm.min(total);
    let mut steps: Vec<Step> = (0..warm).map(&forward).collect();
    for k in 0..total {
        if warm + k < total {
            steps.push(forward(warm + k));
        }
        backward(k, &mut steps);
    }
    steps
}

/// Before its first backward a stage goes forward once for every stage that follows (Megatron's warm-up count,
/// p − i − 1), and once more.
fn one_by_one(stages: u32, stage: u32, microbatches: u32) -> Vec<Step> {
    let backward = |k, steps: &mut Vec<Step>| steps.push(on(Backward, k));
    in_turn(microbatches, stages - stage - 1, |k| on(Forward, k), backward)
}

/// Groups of p micro-batches go through one chunk after the other, backward through the last chunk first.
/// Megatron's warm-up count is 2 (p − i − 1) + (v − 1) p.
fn interleaved(stages: u32, stage: u32, chunks: u32, microbatches: u32) -> Vec<Step> {
    let place = |k: u32| {
        let (group, within) = (k / (stages * chunks), k % (stages * chunks));
        (group * stages + within % stages, within / stages)
    };
    let forward = |k| {
        let (microbatch, chunk) = place(k);
        Step { work: Forward, microbatch, chunk }
    };
    let backward = |k, steps: &mut Vec<Step>| {
        let (microbatch, chunk) = place(k);
        steps.push(Step { work: Backward, microbatch, chunk: chunks - 1 - chunk });
    };
    let warm = 2 * (stages - stage - 1) + (chunks - 1) * stages;
    in_turn(microbatches * chunks, warm, forward, backward)
}

/// The later a stage, the fewer micro-batches it has under way, and the more gradients of weights it can put
/// off in the same memory: stage i as many as stages precede it. So the gradients of activations reach the
/// first stage early, and those of weights fill the end.
fn half(stages: u32, stage: u32, microbatches: u32) -> Vec<Step> {
    let behind = stage.min(microbatches);
    let backward = |k, steps: &mut Vec<Step>| {
        steps.push(on(BackwardInput, k));
        if k >= behind {
            steps.push(on(BackwardWeight, k - behind));
        }
    };
    let mut steps = in_turn(microbatches, stages - stage - 1, |k| on(Forward, k), backward);
    steps.extend((microbatches - behind..microbatches).map(|k| on(BackwardWeight, k)));
    steps
}

/// Counts of what a stage has done, by chunk.
#[derive(Default)]
struct Counts {
    steps: Vec<Step>,
    forward: [u32; 2],
    input: [u32; 2],
    weight: [u32; 2],
}

impl Counts {
    /// The next step of a kind, on a chunk.
    fn next(&mut self, work: Work, chunk: usize) {
        let count = match work {
            Forward => &mut self.forward[chunk],
            BackwardInput | Backward => &mut self.input[chunk],
            BackwardWeight => &mut self.weight[chunk],
        };
        self.steps.push(Step { work, microbatch: *count, chunk: chunk as u32 });
        *count += 1;
    }

    /// Several in turn, so many times.
    fn cycle(&mut self, times: u32, steps: &[(Work, usize)]) {
        for _ in 0..times {
            steps.iter().for_each(|(work, chunk)| self.next(*work, *chunk));
        }
    }
}

/// With unit times, stage i runs its chunks so that it never waits:
/// - forwards of chunk 0 until the first micro-batch has been down to the last stage and back: 2 (p − i) − 1;
///   then forwards of both in turn, i times;
/// - while the pipeline fills, chunk 1 goes forward and backward, p − i times;
/// - both chunks do all three of their steps in turn, as long as forwards are left;
/// - gradients of activations first: those of both chunks while both have some, then those of chunk 0 with
///   gradients of weights between; the gradients of weights that are left come last.
///
/// The pattern needs 2p − 1 micro-batches; with fewer, those that do not exist are left out of it.
fn vee(stages: u32, stage: u32, microbatches: u32) -> Vec<Step> {
    let total = microbatches.max(2 * stages - 1);
    let (before, rest) = (stage, stages - stage);
    let mut c = Counts::default();
    c.cycle(2 * rest - 1, &[(Forward, 0)]);
    c.cycle(before, &[(Forward, 1), (Forward, 0)]);
    c.cycle(rest, &[(Forward, 1), (BackwardInput, 1), (BackwardWeight, 1)]);
    while c.forward[1] < total {
        if c.forward[0] < total {
            c.next(Forward, 0);
        }
        c.cycle(1, &[(BackwardInput, 0), (BackwardWeight, 0)]);
        c.cycle(1, &[(Forward, 1), (BackwardInput, 1), (BackwardWeight, 1)]);
    }
    c.cycle(before, &[(BackwardInput, 0), (BackwardInput, 1)]);
    c.cycle(rest, &[(BackwardInput, 0), (BackwardWeight, 0)]);
    c.cycle(total - c.weight[1], &[(BackwardWeight, 1)]);
    c.cycle(total - c.weight[0], &[(BackwardWeight, 0)]);
    c.steps.retain(|s| s.microbatch < microbatches);
    c.steps
}

//! Schedules as plain lists of each stage's steps, written down one by one: what the phases of [`super::order`] are
//! held against.

use super::{Kind, Step, Work};
use Work::{Backward, BackwardInput, BackwardWeight, Forward};

/// The steps of a stage; `None` for kinds that have no list of their own here.
pub(super) fn list(kind: Kind, stages: u32, stage: u32, chunks: u32, microbatches: u32) -> Option<Vec<Step>> {
    Some(match kind {
        Kind::Naive => naive(microbatches),
        Kind::GPipe => gpipe(microbatches),
        Kind::OneForwardOneBackward => one_by_one(stages, stage, microbatches),
        Kind::Interleaved => interleaved(stages, stage, chunks, microbatches),
        Kind::ZeroBubbleH1 => half(stages, stage, microbatches),
        Kind::ZeroBubbleV => vee(stages, stage, microbatches),
        Kind::DualPipeV => return None,
    })
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

fn one_by_one(stages: u32, stage: u32, microbatches: u32) -> Vec<Step> {
    let backward = |k, steps: &mut Vec<Step>| steps.push(on(Backward, k));
    in_turn(microbatches, stages - stage - 1, |k| on(Forward, k), backward)
}

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

//! How much of what forwards save a stage holds at a time.
//!
//! A forward through a chunk adds what the backward will read, the end of its backward takes it away. Whatever the
//! chunks save, a stage holds most at one of few moments: those at which no other holds as much of every chunk.

use super::build::check;
use super::{schedule, Kind, ScheduleError, Step, Work};

/// A moment of a stage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Moment {
    /// By chunk: micro-batches whose savings are held beside the one that is worked on.
    pub held: Vec<u32>,
    /// The chunk that is worked on.
    pub chunk: u32,
    /// Whether that is its backward.
    pub backward: bool,
}

/// By stage: the moments that hold most.
///
/// # Errors
/// As [`schedule`].
pub fn fullest(kind: Kind, stages: u32, chunks: u32, microbatches: u32) -> Result<Vec<Vec<Moment>>, ScheduleError> {
    check(kind, stages, chunks, microbatches)?;
    // One by one, or all forwards first: no need to walk through them.
    let same = match kind {
        Kind::Naive => Some(0),
        Kind::GPipe => Some(microbatches - 1),
        _ => None,
    };
    if let Some(most) = same {
        let both = [false, true].map(|backward| Moment { held: vec![most], chunk: 0, backward });
        return Ok(vec![both.to_vec(); stages as usize]);
    }
    let steps = schedule(kind, stages, chunks, microbatches)?;
    Ok(steps.iter().map(|s| of_stage(s, chunks as usize)).collect())
}

fn of_stage(steps: &[Step], chunks: usize) -> Vec<Moment> {
    let mut held = vec![0u32; chunks];
    let mut out: Vec<Moment> = Vec::new();
    for step in steps {
        let at = step.chunk as usize;
        let backward = match step.work {
            Work::Forward => Some(false),
            Work::Backward | Work::BackwardInput => Some(true),
            Work::BackwardWeight => None,
        };
        if let Some(backward) = backward {
            // What the backward reads is its own, and counted with it.
            held[at] -= u32::from(backward);
            add(&mut out, &held, step.chunk, backward);
            held[at] += 1;
        }
        if matches!(step.work, Work::Backward | Work::BackwardWeight) {
            held[at] -= 1;
        }
    }
    out
}

/// Adds a moment unless another of its kind holds as much; those that hold no more go.
fn add(all: &mut Vec<Moment>, held: &[u32], chunk: u32, backward: bool) {
    let within = |a: &[u32], b: &[u32]| a.iter().zip(b).all(|(a, b)| a <= b);
    let same = |m: &Moment| m.chunk == chunk && m.backward == backward;
    if all.iter().any(|m| same(m) && within(held, &m.held)) {
        return;
    }
    all.retain(|m| !(same(m) && within(&m.held, held)));
    all.push(Moment { held: held.to_vec(), chunk, backward });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stage_of_1f1b_holds_as_many_as_stages_follow() {
        let all = fullest(Kind::OneForwardOneBackward, 4, 1, 16).unwrap();
        for (stage, moments) in all.iter().enumerate() {
            let most = 3 - stage as u32;
            let expected = [false, true].map(|backward| Moment { held: vec![most], chunk: 0, backward });
            assert_eq!(moments.len(), 2, "{moments:?}");
            assert!(expected.iter().all(|m| moments.contains(m)), "stage {stage}: {moments:?}");
        }
    }

    #[test]
    fn no_moment_holds_more_than_the_fullest() {
        for kind in Kind::ALL {
            let chunks = match kind {
                Kind::Interleaved => 3,
                Kind::ZeroBubbleV | Kind::DualPipeV => 2,
                _ => 1,
            };
            let steps = schedule(kind, 4, chunks, 12).unwrap();
            for (steps, moments) in steps.iter().zip(fullest(kind, 4, chunks, 12).unwrap()) {
                // Any savings: what is held at most step by step is what it is over the moments.
                let saves: Vec<u64> = (0..chunks).map(|c| [7, 3, 5][c as usize]).collect();
                let (mut now, mut most) = (0, 0);
                for step in steps {
                    let one = saves[step.chunk as usize];
                    match step.work {
                        Work::Forward => {
                            most = most.max(now);
                            now += one;
                        }
                        Work::Backward => {
                            most = most.max(now - one);
                            now -= one;
                        }
                        Work::BackwardInput => most = most.max(now - one),
                        Work::BackwardWeight => now -= one,
                    }
                }
                let sum = |m: &Moment| m.held.iter().zip(&saves).map(|(n, s)| u64::from(*n) * s).sum::<u64>();
                assert_eq!(moments.iter().map(sum).max(), Some(most), "{kind}");
            }
        }
    }
}

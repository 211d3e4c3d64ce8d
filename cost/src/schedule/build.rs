//! The order of each stage's steps.

use super::order::Cursor;
use super::{Kind, ScheduleError, Step};

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
    Ok((0..stages).map(|stage| Cursor::new(kind, stages, stage, chunks, microbatches).collect()).collect())
}

/// Whether a kind has schedules of these numbers.
pub(super) fn check(kind: Kind, stages: u32, chunks: u32, microbatches: u32) -> Result<(), ScheduleError> {
    if stages == 0 || chunks == 0 || microbatches == 0 {
        return Err(ScheduleError::Empty { kind, stages, chunks, microbatches });
    }
    let needs = match kind {
        Kind::Interleaved => chunks,
        Kind::ZeroBubbleV | Kind::DualPipeV => 2,
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

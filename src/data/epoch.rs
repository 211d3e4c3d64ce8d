//! Which samples a step and a rank train on.

use std::ops::Range;

use super::DataError;

/// The order of samples: batch after batch, and from the start again after the last whole batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Epoch {
    /// Samples in a global batch; at least 1.
    pub batch: u64,
    /// Whole batches in an epoch, at least 1; None for an endless source.
    pub batches: Option<u64>,
}

/// How many steps of an endless source are checked: its map is the same arithmetic at every step.
const ENDLESS_CHECK: u64 = 4;

impl Epoch {
    /// The first sample of a step's global batch.
    pub fn first(&self, step: u64) -> u64 {
        let in_epoch = self.batches.map_or(step, |n| step % n);
        in_epoch.wrapping_mul(self.batch)
    }

    /// The samples of one data rank at a step: an equal, contiguous share of the global batch.
    pub fn assignment(&self, step: u64, data_rank: u64, data_ranks: u64) -> Result<Range<u64>, DataError> {
        if data_ranks == 0 || data_rank >= data_ranks || !self.batch.is_multiple_of(data_ranks) {
            return Err(DataError::Uneven { batch: self.batch, data_ranks });
        }
        Ok(self.share(step, data_rank, data_ranks))
    }

    /// The same once the ranks are known to divide the batch.
    fn share(&self, step: u64, data_rank: u64, data_ranks: u64) -> Range<u64> {
        let share = self.batch / data_ranks;
        let start = self.first(step).wrapping_add(data_rank * share);
        start..start.wrapping_add(share)
    }

    /// Proves that the samples of all ranks over all steps of an epoch are disjoint and complete.
    pub fn check(&self, data_ranks: u64) -> Result<(), DataError> {
        self.assignment(0, 0, data_ranks)?;
        let steps = self.batches.unwrap_or(ENDLESS_CHECK);
        check_assignment(steps, data_ranks, steps * self.batch, |step, rank| self.share(step, rank, data_ranks))
    }
}

/// Whether a map (step, data rank) → samples hands out each of `samples` exactly once over `steps` steps.
/// The map is taken as it is, so that a test can seed a wrong one.
pub fn check_assignment(
    steps: u64,
    data_ranks: u64,
    samples: u64,
    assign: impl Fn(u64, u64) -> Range<u64>,
) -> Result<(), DataError> {
    let pairs = (0..steps).flat_map(|step| (0..data_ranks).map(move |rank| (step, rank)));
    let mut all: Vec<(Range<u64>, u64, u64)> = pairs.map(|(step, rank)| (assign(step, rank), step, rank)).collect();
    all.sort_by_key(|(range, ..)| (range.start, range.end));
    let end = (samples..samples, steps.saturating_sub(1), data_ranks.saturating_sub(1));
    let mut expected = 0;
    for (got, step, rank) in all.into_iter().chain([end]) {
        if got.start != expected || got.end < got.start || got.end > samples {
            let fault = if got.start > expected { "left out" } else { "seen twice" };
            return Err(DataError::Assignment { step, rank, got, expected, fault });
        }
        expected = got.end;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_share_is_a_partition() {
        for (batch, batches, ranks) in [(1, 1, 1), (8, 5, 4), (12, 3, 3), (6, 7, 6), (4, 1, 2)] {
            Epoch { batch, batches: Some(batches) }.check(ranks).unwrap();
            Epoch { batch, batches: None }.check(ranks).unwrap();
        }
        let epoch = Epoch { batch: 8, batches: Some(5) };
        assert_eq!(epoch.assignment(1, 3, 4).unwrap(), 14..16);
        assert_eq!(epoch.assignment(6, 3, 4).unwrap(), 14..16);
        let uneven = epoch.check(3).unwrap_err().to_string();
        assert_eq!(uneven, "the batch of 8 sequences cannot be shared evenly by 3 data ranks; use a multiple of 3");
        assert!(epoch.check(0).is_err());
        assert!(epoch.assignment(0, 4, 4).is_err());
    }

    #[test]
    fn wrong_maps_are_caught() {
        let share = |step: u64, rank: u64| step * 4 + rank * 2..step * 4 + rank * 2 + 2;
        check_assignment(3, 2, 12, share).unwrap();
        // Both ranks read the same: the classic mistake of a loader that forgot its rank.
        let same = check_assignment(3, 2, 12, |step, _| share(step, 0)).unwrap_err().to_string();
        assert_eq!(same, "step 0, data rank 1 gets samples 0..2, but 2 comes next: samples would be seen twice");
        let gap = check_assignment(3, 2, 12, |step, rank| {
            if rank == 1 {
                share(step, 1).start + 1..share(step, 1).end
            } else {
                share(step, 0)
            }
        });
        assert!(gap.unwrap_err().to_string().ends_with("but 2 comes next: samples would be left out"));
        let missing_end = check_assignment(2, 2, 12, share).unwrap_err().to_string();
        assert!(missing_end.contains("but 8 comes next: samples would be left out"), "{missing_end}");
        assert!(check_assignment(3, 2, 11, share).is_err());
    }
}

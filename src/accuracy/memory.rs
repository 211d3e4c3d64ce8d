//! Predicted memory against readings.

use super::score::Outcome;
use super::stats::{equal, mean};
use crate::runs::Entry;
use std::collections::BTreeMap;

/// Memory of a source's rows.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MemoryLine {
    /// The source, with the kind of model.
    pub name: String,
    /// Rows with a reading and a prediction.
    pub rows: usize,
    /// Readings that differ in value or model: a source may print one for several rows.
    pub distinct: usize,
    /// Mean absolute relative error, each distinct reading one vote; `None` without readings.
    pub mean: Option<f64>,
    /// The largest, signed.
    pub worst: Option<f64>,
    /// Rows that ran out of memory and are predicted.
    pub out_of_memory: usize,
    /// Those that are predicted not to fit.
    pub out_refused: usize,
    /// Rows that ran, are of a source where others ran out of memory, and are predicted.
    pub complete: usize,
    /// Those that are predicted not to fit, though they did.
    pub complete_refused: usize,
}

/// Lines by source, dense models and those with experts apart; sources without a reading or a verdict that can
/// be held against a run have none.
pub fn memory(entries: &[Entry], outcomes: &[Outcome]) -> Vec<MemoryLine> {
    let mut lines: BTreeMap<String, (MemoryLine, BTreeMap<String, Vec<f64>>)> = BTreeMap::new();
    for (entry, outcome) in entries.iter().zip(outcomes) {
        let Entry::Ready(row) = entry else { continue };
        let experts = super::lines::Traits::of(row).experts;
        let name = format!("{}, {}", row.tag, if experts { "experts" } else { "dense" });
        let (line, readings) = lines.entry(name).or_default();
        if let (Some(error), Some(measured)) = (outcome.memory_error, outcome.measured_memory) {
            line.rows += 1;
            readings.entry(format!("{} {measured:.3}", row.name)).or_default().push(error);
        }
        if let Some(fits) = outcome.fits {
            let (count, refused) = match row.measured.out_of_memory {
                true => (&mut line.out_of_memory, &mut line.out_refused),
                false => (&mut line.complete, &mut line.complete_refused),
            };
            *count += 1;
            *refused += usize::from(!fits);
        }
    }
    let done = lines.into_iter().map(|(name, (line, readings))| finish(MemoryLine { name, ..line }, &readings));
    done.filter(|l| l.rows > 0 || l.out_of_memory > 0 || l.complete_refused > 0).collect()
}

fn finish(line: MemoryLine, readings: &BTreeMap<String, Vec<f64>>) -> MemoryLine {
    let sizes: Vec<f64> = readings
        .values()
        .filter_map(|errors| mean(&equal(&errors.iter().map(|e| e.abs()).collect::<Vec<_>>())))
        .collect();
    let worst = readings.values().flatten().copied().max_by(|a, b| a.abs().total_cmp(&b.abs()));
    MemoryLine { distinct: readings.len(), mean: mean(&equal(&sizes)), worst, ..line }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reading_that_is_printed_twice_has_one_vote() {
        let readings = [("a 10.0".to_string(), vec![0.1, -0.3]), ("b 20.0".to_string(), vec![-0.05])].into();
        let l = finish(MemoryLine { rows: 3, ..MemoryLine::default() }, &readings);
        assert_eq!((l.rows, l.distinct, l.worst), (3, 2, Some(-0.3)));
        assert!((l.mean.unwrap() - 0.125).abs() < 1e-12);
    }
}

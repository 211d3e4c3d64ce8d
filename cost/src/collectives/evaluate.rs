//! How well the times inside a node do: on rows, on rows that were left out, on rank counts never seen.

use super::place::InNode;
use super::table::{Constants, DeviceTable, Tables};
use super::{Kind, Row};
use crate::kernels::How;

/// Errors over some rows. Shares, not percent.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Score {
    /// Rows that were predicted.
    pub rows: usize,
    /// Median of |predicted ÷ measured − 1|.
    pub median_ape: f64,
    /// Its 90th percentile.
    pub p90_ape: f64,
    /// Mean of predicted ÷ measured − 1.
    pub bias: f64,
    /// Rows beyond the table's range.
    pub extrapolated: usize,
}

/// One row and what was said of it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Check {
    /// The measurement.
    pub row: Row,
    /// Seconds that were predicted without it.
    pub predicted: f64,
    /// How.
    pub how: How,
}

impl Check {
    /// predicted ÷ measured − 1.
    pub fn error(&self) -> f64 {
        self.predicted / self.row.seconds - 1.0
    }
}

/// Sums up checks; `None` without any.
pub fn score(checks: &[Check]) -> Option<Score> {
    let mut sizes: Vec<f64> = checks.iter().map(|c| c.error().abs()).collect();
    sizes.sort_by(f64::total_cmp);
    Some(Score {
        rows: checks.len(),
        median_ape: quantile(&sizes, 0.5)?,
        p90_ape: quantile(&sizes, 0.9)?,
        bias: checks.iter().map(Check::error).sum::<f64>() / checks.len() as f64,
        extrapolated: checks.iter().filter(|c| c.how != How::Interpolated).count(),
    })
}

/// Quantile of ascending values, linear between neighbours.
fn quantile(sorted: &[f64], q: f64) -> Option<f64> {
    let at = q * (sorted.len().checked_sub(1)? as f64);
    let (low, high) = (sorted[at.floor() as usize], sorted[at.ceil() as usize]);
    Some(low + (at - at.floor()) * (high - low))
}

/// Predicts a user's rows on one device from the tables, as `validate --kernels` does; rows across nodes and of
/// operations without a table are left out. `None` where nothing is left, or the device has no table.
pub fn evaluate(rows: &[Row], device: &str, tables: &Tables) -> Option<Score> {
    let own = tables.own(device);
    let table = own.or(tables.related(device))?;
    let most = rows.iter().map(|r| r.ranks).max()?;
    let of = &tables.constants;
    let mut checks = predict(&InNode::new(table, most, of), rows);
    if own.is_none() {
        checks.iter_mut().for_each(|c| c.how = How::Related);
    }
    score(&checks)
}

/// Leaves out a fifth of a table five times, another fifth each time, and predicts it from the rest.
/// `seed` draws the fifths.
pub fn left_out(table: &DeviceTable, seed: u64, of: &Constants) -> Vec<Check> {
    let fold = |r: &Row| hash(r, seed) % 5;
    let part = |f: u64| {
        let (out, kept): (Vec<Row>, Vec<Row>) = table.rows.iter().partition(|r| fold(r) == f);
        predict(&InNode::new(&DeviceTable { rows: kept, ..table.clone() }, 8, of), &out)
    };
    (0..5).flat_map(part).collect()
}

/// Predicts the rows of `ranks` ranks and more from those of fewer.
pub fn more_ranks(table: &DeviceTable, ranks: u64, of: &Constants) -> Vec<Check> {
    let (out, kept): (Vec<Row>, Vec<Row>) = table.rows.iter().partition(|r| r.ranks >= ranks);
    predict(&InNode::new(&DeviceTable { rows: kept, ..table.clone() }, ranks, of), &out)
}

fn predict(model: &InNode, rows: &[Row]) -> Vec<Check> {
    let check = |row: &Row| {
        let point = model.point(row.kind, row.ranks as f64, row.bytes)?;
        Some(Check { row: *row, predicted: point.seconds, how: point.how })
    };
    rows.iter().filter(|r| r.nodes == 1).filter_map(check).collect()
}

/// A number that looks random, of what a row is and not of what it measured.
fn hash(row: &Row, seed: u64) -> u64 {
    let kind = Kind::MEASURED.iter().position(|k| *k == row.kind).unwrap_or(9) as u64;
    let parts = [kind, row.ranks, row.bytes.to_bits()];
    // The finalizer of SplitMix64, applied to each part in turn.
    parts.iter().fold(seed, |h, p| {
        let mut z = (h ^ p).wrapping_add(0x9e37_79b9_7f4a_7c15);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    })
}

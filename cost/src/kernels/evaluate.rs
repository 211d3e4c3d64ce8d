//! How far times are from measured ones.

use super::rows::Rows;
use super::{How, Kernels, Product};

/// Distances of predicted times from a table's.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Errors {
    /// Rows compared.
    pub rows: usize,
    /// Median of |predicted / measured − 1|.
    pub median_ape: f64,
    /// Its 90th percentile.
    pub p90_ape: f64,
    /// Mean of predicted / measured − 1.
    pub bias: f64,
    /// Rows whose time was not interpolated within measurements of this device.
    pub extrapolated: usize,
}

/// Predicts every row and compares; `None` where there are no rows.
pub fn evaluate(kernels: &Kernels, rows: &Rows) -> Option<Errors> {
    let pairs: Vec<(f64, super::Time)> = match rows {
        Rows::Products(rows) => rows
            .iter()
            .map(|r| {
                let p = Product { format: r.format, m: r.m, n: r.n, k: r.k, count: 1.0, accumulate: false };
                (r.us, kernels.product(&p))
            })
            .collect(),
        Rows::Attention(rows) => rows.iter().map(|r| (r.us, kernels.attention(&r.attention()))).collect(),
    };
    let ratios: Vec<f64> = pairs.iter().map(|(us, t)| t.seconds * 1e6 / us - 1.0).collect();
    let mut sizes: Vec<f64> = ratios.iter().map(|r| r.abs()).collect();
    sizes.sort_by(f64::total_cmp);
    Some(Errors {
        rows: pairs.len(),
        median_ape: quantile(&sizes, 0.5)?,
        p90_ape: quantile(&sizes, 0.9)?,
        bias: ratios.iter().sum::<f64>() / ratios.len() as f64,
        extrapolated: pairs.iter().filter(|(_, t)| t.how != How::Interpolated).count(),
    })
}

/// A quantile of sorted numbers, linear between neighbours.
fn quantile(sorted: &[f64], q: f64) -> Option<f64> {
    let at = q * sorted.len().checked_sub(1)? as f64;
    let low = sorted[at as usize];
    let high = sorted[(at.ceil() as usize).min(sorted.len() - 1)];
    Some(low + (at - at.floor()) * (high - low))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_lie_between_neighbours() {
        assert_eq!(quantile(&[1.0, 2.0, 4.0], 0.5), Some(2.0));
        assert_eq!(quantile(&[1.0, 2.0], 0.5), Some(1.5));
        assert_eq!(quantile(&[], 0.5), None);
    }
}

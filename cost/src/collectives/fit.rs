//! Fitting a law to measurements: damped least squares on log(time), robust, with the prior as further rows.

use super::kriging::Cholesky;
use super::law::{Fabric, Law, LawConstants, CONSTANTS};
use super::{Kind, Row};

/// How strongly the prior holds, and what counts as an outlier. In logarithms, but for the scalings.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FitConstants {
    /// Weight of the whole prior against one measurement.
    pub prior: f64,
    /// Spread of a latency or bandwidth around its prior.
    pub spread: f64,
    /// Spread of c around its prior.
    pub switch_spread: f64,
    /// Spread of q around its prior.
    pub pcie_spread: f64,
    /// Spread of q between the operations of one machine, which share its wires.
    pub pooled_spread: f64,
    /// A residual beyond this pulls no harder.
    pub outlier: f64,
}

/// Steps of the fit: it stops long before where it converges.
const ROUNDS: usize = 60;

/// Fits the laws of one machine's operations. On PCI Express the exponent is the machine's, so operations are
/// first fitted alone and then again around the mean of what they found.
pub fn laws(priors: &[Law], rows: &[Row], fit: &FitConstants, of: &LawConstants) -> Vec<Law> {
    let alone =
        |l: &Law| law(l, rows, if l.fabric == Fabric::Pcie { fit.pcie_spread } else { fit.switch_spread }, fit, of);
    let first: Vec<Law> = priors.iter().map(alone).collect();
    let machine: Vec<f64> = first.iter().filter(|l| l.fabric == Fabric::Pcie).map(|l| l.scaling).collect();
    if machine.len() < 2 {
        return first;
    }
    let mean = machine.iter().sum::<f64>() / machine.len() as f64;
    priors.iter().map(|l| law(&Law { scaling: mean, ..*l }, rows, fit.pooled_spread, fit, of)).collect()
}

/// Fits one law to the rows of its kind. `spread`: of its scaling around the prior's.
fn law(prior: &Law, rows: &[Row], spread: f64, fit: &FitConstants, of: &LawConstants) -> Law {
    let rows: Vec<&Row> = rows.iter().filter(|r| r.kind == prior.kind && r.nodes == 1).collect();
    let center = prior.constants();
    let pull = |i: usize| fit.prior / if i + 1 == CONSTANTS { spread } else { fit.spread };
    let residuals = |c: &[f64; CONSTANTS]| -> Vec<f64> {
        let law = prior.with_constants(c);
        let of_row = |r: &&Row| (law.seconds(r.ranks as f64, r.bytes, of) / r.seconds).ln();
        let held = (0..CONSTANTS).map(|i| pull(i) * (c[i] - center[i]));
        rows.iter().map(of_row).chain(held).collect()
    };
    let loss = |r: &[f64]| -> f64 {
        let (data, held) = r.split_at(rows.len());
        data.iter().map(|x| soft(x / fit.outlier) * fit.outlier.powi(2)).sum::<f64>()
            + held.iter().map(|x| x * x).sum::<f64>()
    };
    let mut at = center;
    let mut now = residuals(&at);
    let mut damping = 1e-3;
    for _ in 0..ROUNDS {
        let Some(step) = step(&at, &now, rows.len(), damping, fit.outlier, &residuals) else { break };
        let mut next = at;
        for (n, s) in next.iter_mut().zip(&step) {
            *n += s.clamp(-1.0, 1.0);
        }
        // What the law holds in bounds must not drift away behind them.
        next[CONSTANTS - 1] = prior.with_constants(&next).scaling;
        let then = residuals(&next);
        if loss(&then) < loss(&now) {
            let gain = loss(&now) - loss(&then);
            (at, now) = (next, then);
            damping = (damping / 5.0).max(1e-9);
            if gain < 1e-9 * loss(&now) {
                break;
            }
        } else {
            damping *= 5.0;
            if damping > 1e6 {
                break;
            }
        }
    }
    prior.with_constants(&at)
}

/// A step of Levenberg and Marquardt; the first `data` rows are weighted by how far out they are.
fn step(
    at: &[f64; CONSTANTS],
    now: &[f64],
    data: usize,
    damping: f64,
    outlier: f64,
    residuals: &impl Fn(&[f64; CONSTANTS]) -> Vec<f64>,
) -> Option<Vec<f64>> {
    const H: f64 = 1e-5;
    let columns: Vec<Vec<f64>> = (0..CONSTANTS)
        .map(|i| {
            let mut moved = *at;
            moved[i] += H;
            residuals(&moved).iter().zip(now).map(|(a, b)| (a - b) / H).collect()
        })
        .collect();
    let weight = |k: usize| if k < data { 1.0 / (1.0 + (now[k] / outlier).powi(2)).sqrt() } else { 1.0 };
    let dot = |a: &[f64], b: &[f64]| (0..now.len()).map(|k| weight(k) * a[k] * b[k]).sum::<f64>();
    let mut normal: Vec<Vec<f64>> =
        (0..CONSTANTS).map(|i| (0..=i).map(|j| dot(&columns[i], &columns[j])).collect()).collect();
    for (i, row) in normal.iter_mut().enumerate() {
        row[i] += damping * (row[i] + 1e-6);
    }
    let right: Vec<f64> = columns.iter().map(|c| -dot(c, now)).collect();
    Some(Cholesky::new(normal)?.solve(&right))
}

/// Twice (√(1 + x²) − 1): quadratic for small x, linear for large.
fn soft(x: f64) -> f64 {
    2.0 * ((1.0 + x * x).sqrt() - 1.0)
}

/// Whether rows of this kind are there to fit.
pub fn has(rows: &[Row], kind: Kind) -> bool {
    rows.iter().any(|r| r.kind == kind && r.nodes == 1)
}

//! What a law leaves over, interpolated between measurements (simple kriging, a Gaussian process's mean).
//!
//! The residual log(measured ÷ law) is a random field over (log2 bytes, log2 ranks): a part that neighbours in
//! size and ranks share, and a part of each rank count alone. Away from all measurements it is 0, so that
//! the law stands alone there.

/// How residuals hang together. Lengths in octaves.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct KrigingConstants {
    /// Length in size over which the shared part lasts.
    pub size: f64,
    /// Length in ranks over which the shared part lasts.
    pub ranks: f64,
    /// Variance of a measurement's noise over the shared part's.
    pub noise: f64,
    /// How far the shared part moves along log2 bytes when ranks double, for rings: protocols change partly by
    /// whole buffer, partly by the part of a rank.
    pub shift: f64,
    /// The same for an all-to-all, whose protocols change by the message to one peer.
    pub peer_shift: f64,
    /// Variance of the part of one rank count over the shared part's.
    pub own: f64,
    /// Its length in size.
    pub own_size: f64,
    /// A measurement that its neighbours miss by more than this (in log) counts as that much noisier.
    pub outlier: f64,
}

/// The field, conditioned on measurements.
#[derive(Clone, Debug)]
pub struct Field {
    constants: KrigingConstants,
    shift: f64,
    at: Vec<[f64; 2]>,
    weights: Vec<f64>,
}

impl Field {
    /// Conditions the field on residuals at (log2 bytes, log2 ranks). `shift`: of this operation.
    pub fn new(at: Vec<[f64; 2]>, residuals: &[f64], shift: f64, constants: KrigingConstants) -> Field {
        let mut field = Field { constants, shift, at, weights: Vec::new() };
        let mut noise = vec![constants.noise; residuals.len()];
        if let Some(errors) = field.left_out(residuals, &noise) {
            for (n, e) in noise.iter_mut().zip(errors) {
                *n *= (e / constants.outlier).powi(2).max(1.0);
            }
        }
        if let Some(factor) = Cholesky::new(field.covariance(&noise)) {
            field.weights = factor.solve(residuals);
        }
        field
    }

    /// The expected residual.
    pub fn value(&self, log2_bytes: f64, log2_ranks: f64) -> f64 {
        let here = [log2_bytes, log2_ranks];
        self.at.iter().zip(&self.weights).map(|(a, w)| w * self.correlation(here, *a)).sum()
    }

    /// How far each residual lies from what the others say of it.
    fn left_out(&self, residuals: &[f64], noise: &[f64]) -> Option<Vec<f64>> {
        let factor = Cholesky::new(self.covariance(noise))?;
        let weights = factor.solve(residuals);
        Some(weights.iter().zip(factor.inverse_diagonal()).map(|(w, d)| w / d).collect())
    }

    fn covariance(&self, noise: &[f64]) -> Vec<Vec<f64>> {
        let row = |i: usize| {
            let mut row: Vec<f64> = self.at[..=i].iter().map(|b| self.correlation(self.at[i], *b)).collect();
            row[i] += noise[i];
            row
        };
        (0..self.at.len()).map(row).collect()
    }

    fn correlation(&self, a: [f64; 2], b: [f64; 2]) -> f64 {
        let c = &self.constants;
        let sizes = a[0] - b[0];
        let ranks = a[1] - b[1];
        let shared = matern((sizes - self.shift * ranks).abs() / c.size) * (-ranks.abs() / c.ranks).exp();
        let own = if ranks.abs() < 1e-6 { c.own * matern(sizes.abs() / c.own_size) } else { 0.0 };
        shared + own
    }
}

/// Matérn correlation of smoothness 3/2 at a distance in lengths.
fn matern(distance: f64) -> f64 {
    let x = 3f64.sqrt() * distance;
    (1.0 + x) * (-x).exp()
}

/// A lower triangle whose product with its transpose is a symmetric positive definite matrix.
pub(crate) struct Cholesky {
    rows: Vec<Vec<f64>>,
}

impl Cholesky {
    /// Factors a matrix given by its lower triangle; `None` if it is not positive definite.
    pub(crate) fn new(mut a: Vec<Vec<f64>>) -> Option<Cholesky> {
        for i in 0..a.len() {
            for j in 0..=i {
                let dot: f64 = (0..j).map(|k| a[i][k] * a[j][k]).sum();
                let rest = a[i][j] - dot;
                a[i][j] = match (i == j, rest > 0.0) {
                    (true, true) => rest.sqrt(),
                    (true, false) => return None,
                    (false, _) => rest / a[j][j],
                };
            }
        }
        Some(Cholesky { rows: a })
    }

    /// x of A x = b.
    pub(crate) fn solve(&self, b: &[f64]) -> Vec<f64> {
        let mut x = b.to_vec();
        for i in 0..x.len() {
            let dot: f64 = (0..i).map(|k| self.rows[i][k] * x[k]).sum();
            x[i] = (x[i] - dot) / self.rows[i][i];
        }
        for i in (0..x.len()).rev() {
            let dot: f64 = (i + 1..x.len()).map(|k| self.rows[k][i] * x[k]).sum();
            x[i] = (x[i] - dot) / self.rows[i][i];
        }
        x
    }

    /// The diagonal of A⁻¹.
    fn inverse_diagonal(&self) -> Vec<f64> {
        let n = self.rows.len();
        let unit = |i: usize| (0..n).map(|k| if k == i { 1.0 } else { 0.0 }).collect::<Vec<f64>>();
        (0..n).map(|i| self.solve(&unit(i))[i]).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const C: KrigingConstants = KrigingConstants {
        size: 5.0,
        ranks: 4.0,
        noise: 1e-6,
        shift: 0.5,
        peer_shift: 1.0,
        own: 0.2,
        own_size: 1.5,
        outlier: 10.0,
    };

    #[test]
    fn it_goes_through_its_points_and_fades() {
        let at = vec![[10.0, 1.0], [12.0, 1.0], [12.0, 2.0]];
        let field = Field::new(at.clone(), &[0.2, -0.1, 0.05], C.shift, C);
        for (a, r) in at.iter().zip([0.2, -0.1, 0.05]) {
            assert!((field.value(a[0], a[1]) - r).abs() < 1e-3);
        }
        assert!(field.value(60.0, 1.0).abs() < 1e-3);
    }

    #[test]
    fn an_outlier_counts_little() {
        let at: Vec<[f64; 2]> = (0..9).map(|i| [10.0 + i as f64, 1.0]).collect();
        let mut r = vec![0.0; 9];
        r[4] = 1.0;
        let plain = Field::new(at.clone(), &r, 0.0, C).value(14.0, 1.0);
        let robust = Field::new(at, &r, 0.0, KrigingConstants { noise: 0.05, outlier: 0.1, ..C }).value(14.0, 1.0);
        assert!(plain > 0.9 && robust < 0.3, "{plain} {robust}");
    }
}

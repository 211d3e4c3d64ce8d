//! A formula for the time of a kernel, fitted to measured times or taken as it is.

/// What a kernel asks of a device, in seconds at its peaks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Demand {
    /// FLOPs over the peak rate.
    pub compute: f64,
    /// Bytes that must move at least once, over the memory bandwidth.
    pub memory: f64,
    /// Steps that follow each other whatever the parallelism, in thousands: the contracted size of a product.
    pub chain: f64,
}

/// `launch + ((compute/a)^p + (memory/b)^p + (chain·c)^p)^(1/p)`: a roofline with a rounded corner, a chain
/// of dependent steps, and the latency of a launch. It rises with each of the three.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Base {
    /// Share of the peak rate that large kernels reach.
    pub compute_share: f64,
    /// Share of the memory bandwidth; above 1 where operands stay in the cache from one run to the next.
    pub memory_share: f64,
    /// Seconds of a thousand dependent steps.
    pub chain: f64,
    /// Seconds of a launch with nothing to do.
    pub launch: f64,
    /// Roundness of the corner: p is 1 + this.
    pub corner: f64,
}

impl Base {
    /// Where fits start, and what a device without a table gets: near the medians of the fits to the bf16 products of
    /// A100, H100, H200, B200, GB200 and L40S (`kernel-accuracy` prints them).
    pub const TYPICAL: Base =
        Base { compute_share: 0.78, memory_share: 0.85, chain: 0.4e-6, launch: 2.6e-6, corner: 1.2 };

    /// Seconds.
    pub fn seconds(&self, d: &Demand) -> f64 {
        let p = 1.0 + self.corner;
        let part = |x: f64| x.powf(p);
        let sum =
            part(d.compute / self.compute_share) + part(d.memory / self.memory_share) + part(d.chain * self.chain);
        self.launch + sum.powf(1.0 / p)
    }

    fn parameters(&self) -> [f64; N] {
        [self.compute_share, self.memory_share, self.chain, self.launch, self.corner].map(f64::ln)
    }

    fn of(p: [f64; N]) -> Base {
        let [compute_share, memory_share, chain, launch, corner] = p.map(f64::exp);
        Base { compute_share, memory_share, chain, launch, corner }
    }

    /// The fit to `(demand, ln seconds)`: Levenberg and Marquardt's steps on the logarithms of the parameters,
    /// rows far off weighing less, and a weak pull to [`Base::TYPICAL`] that decides what the rows do not.
    pub fn fit(rows: &[(Demand, f64)]) -> Base {
        let start = Base::TYPICAL.parameters();
        let mut at = start;
        let mut damping = 1e-2;
        let mut error = total(rows, &at, &start);
        for _ in 0..STEPS {
            let (matrix, slope) = normal(rows, &at, &start);
            let mut damped = matrix;
            for (i, row) in damped.iter_mut().enumerate() {
                row[i] *= 1.0 + damping;
            }
            let Some(step) = solve(damped, slope) else { break };
            let mut next = at;
            for (n, s) in next.iter_mut().zip(step) {
                // No step changes a parameter by more than a factor of e.
                *n += s.clamp(-1.0, 1.0);
            }
            let e = total(rows, &next, &start);
            if e < error {
                let gained = error - e;
                (at, error, damping) = (next, e, damping * 0.3);
                if gained < 1e-7 * error {
                    break;
                }
            } else {
                damping *= 10.0;
                if damping > 1e8 {
                    break;
                }
            }
        }
        Base::of(at)
    }
}

const N: usize = 5;
const STEPS: usize = 40;
/// Residuals of more than about this (in logarithms) weigh less.
const SCALE: f64 = 0.1;
/// Weight of the pull to the typical parameters: as one row each.
const PULL: f64 = 0.1;

/// Sum of the soft absolute residuals, and the pull.
fn total(rows: &[(Demand, f64)], at: &[f64; N], start: &[f64; N]) -> f64 {
    let base = Base::of(*at);
    let soft = |r: f64| 2.0 * SCALE * SCALE * ((1.0 + (r / SCALE).powi(2)).sqrt() - 1.0);
    let pull: f64 = at.iter().zip(start).map(|(a, s)| (PULL * (a - s)).powi(2)).sum();
    rows.iter().map(|(d, y)| soft(base.seconds(d).ln() - y)).sum::<f64>() + pull
}

/// Normal equations of one weighted step, derivatives by differences.
fn normal(rows: &[(Demand, f64)], at: &[f64; N], start: &[f64; N]) -> ([[f64; N]; N], [f64; N]) {
    const H: f64 = 1e-5;
    let base = Base::of(*at);
    let moved: Vec<Base> = (0..N)
        .map(|i| {
            let mut p = *at;
            p[i] += H;
            Base::of(p)
        })
        .collect();
    let (mut matrix, mut slope) = ([[0.0; N]; N], [0.0; N]);
    for (d, y) in rows {
        let f = base.seconds(d).ln();
        let r = y - f;
        let w = 1.0 / (1.0 + (r / SCALE).powi(2)).sqrt();
        let mut g = [0.0; N];
        for (g, b) in g.iter_mut().zip(&moved) {
            *g = (b.seconds(d).ln() - f) / H;
        }
        for i in 0..N {
            slope[i] += w * g[i] * r;
            for j in 0..N {
                matrix[i][j] += w * g[i] * g[j];
            }
        }
    }
    for i in 0..N {
        matrix[i][i] += PULL * PULL;
        slope[i] += PULL * PULL * (start[i] - at[i]);
    }
    (matrix, slope)
}

/// Gaussian elimination with pivots; `None` where the matrix is singular.
fn solve(mut a: [[f64; N]; N], mut b: [f64; N]) -> Option<[f64; N]> {
    for i in 0..N {
        let pivot = (i..N).max_by(|&x, &y| a[x][i].abs().total_cmp(&a[y][i].abs()))?;
        a.swap(i, pivot);
        b.swap(i, pivot);
        if a[i][i].abs() < 1e-300 || !a[i][i].is_finite() {
            return None;
        }
        let top = a[i];
        for r in i + 1..N {
            let f = a[r][i] / top[i];
            for (x, t) in a[r].iter_mut().zip(top) {
                *x -= f * t;
            }
            b[r] -= f * b[i];
        }
    }
    for i in (0..N).rev() {
        let known: f64 = (i + 1..N).map(|j| a[i][j] * b[j]).sum();
        b[i] = (b[i] - known) / a[i][i];
    }
    Some(b)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fit_finds_the_parameters_that_made_the_times() {
        let truth = Base { compute_share: 0.6, memory_share: 0.9, chain: 0.2e-6, launch: 4e-6, corner: 2.0 };
        let mut rows = vec![];
        for i in 0..6 {
            for j in 0..6 {
                for l in 0..4 {
                    let d = Demand { compute: 1e-7 * 6f64.powi(i), memory: 1e-7 * 6f64.powi(j), chain: 5f64.powi(l) };
                    rows.push((d, truth.seconds(&d).ln()));
                }
            }
        }
        let fit = Base::fit(&rows);
        assert!((fit.compute_share - 0.6).abs() < 0.01 && (fit.launch - 4e-6).abs() < 1e-7, "{fit:?}");
        assert!((fit.memory_share - 0.9).abs() < 0.02 && (fit.chain - 0.2e-6).abs() < 1e-8, "{fit:?}");
    }
}

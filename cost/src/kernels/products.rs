//! From measured products to a complete grid: a formula, trees on what it leaves, no falls.

use super::base::{Base, Demand};
use super::grid::{lines, Grid};
use super::monotone;
use super::rows::ProductRow;
use super::trees::Forest;
use crate::device::{Device, Format};
use std::collections::HashMap;

/// Figures of a device that its products depend on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Figures {
    /// FLOP/s at the format's peak.
    pub peak: f64,
    /// Bytes/s to memory.
    pub bandwidth: f64,
    /// Streaming multiprocessors or cores.
    pub units: f64,
    /// Bytes of an operand's element.
    pub bytes: f64,
}

/// Multiprocessors where a device's count is not known; what shares one is a guess then.
const UNITS: f64 = 128.0;
/// FLOP/s where no peak is known: tables of such a device are then fitted from there.
const PEAK: f64 = 1e14;

impl Figures {
    /// Those of a device in a format.
    pub fn of(device: &Device, format: Format) -> Figures {
        let peak = device.peak_of(format).or_else(|| device.peak_of(Format::Bf16)).or(device.vector_peak);
        Figures {
            peak: peak.filter(|p| *p > 0.0).unwrap_or(PEAK),
            bandwidth: device.memory_bandwidth.max(1.0),
            units: device.units.map_or(UNITS, f64::from),
            bytes: format.bytes(),
        }
    }

    /// What a product asks: 2·m·n·k FLOPs; both operands and a 16-bit result (wider where the operands
    /// are); k dependent steps.
    pub fn demand(&self, m: f64, n: f64, k: f64) -> Demand {
        let bytes = self.bytes * (m * k + n * k) + self.bytes.max(2.0) * m * n;
        Demand { compute: 2.0 * m * n * k / self.peak, memory: bytes / self.bandwidth, chain: k / 1000.0 }
    }
}

/// Tiles of C whose last wave over the multiprocessors the trees may look at: those that cuBLAS and CUTLASS
/// name in their kernels.
const TILES: [(f64, f64); 10] = [
    (64.0, 64.0),
    (64.0, 128.0),
    (128.0, 64.0),
    (128.0, 128.0),
    (128.0, 256.0),
    (256.0, 128.0),
    (256.0, 256.0),
    (128.0, 192.0),
    (192.0, 128.0),
    (64.0, 256.0),
];

const WIDTH: usize = 12 + TILES.len();

/// Share of the multiprocessors that stand idle, as a logarithm: in the last wave, or, where there are fewer
/// tiles than multiprocessors, when each tile's k is split among as many as fit.
pub(super) fn idle(tiles: f64, units: f64) -> f64 {
    let given =
        if tiles <= units { units / (tiles * (units / tiles).floor()) } else { (tiles / units).ceil() * units / tiles };
    given.log2()
}

fn features(f: &Figures, m: f64, n: f64, k: f64) -> [f64; WIDTH] {
    let (a, b, c) = (m.log2(), n.log2(), k.log2());
    // Powers of two in m: libraries choose by alignment. Odd sizes, fractions included, have none.
    let aligned = f64::from((m as u64).trailing_zeros().min(16));
    let whole = f64::from(u8::from(m % 2.0 == 0.0));
    let mut out = [0.0; WIDTH];
    out[..12].copy_from_slice(&[a, b, c, whole, a + b, a + b + c, b + c, a + c, a - b, b - c, a - c, aligned]);
    for (o, (tm, tn)) in out[12..].iter_mut().zip(TILES) {
        *o = idle((m / tm).ceil() * (n / tn).ceil(), f.units);
    }
    out
}

/// Time of any product: the formula and the trees.
#[derive(Clone, Debug)]
pub struct Model {
    /// Figures that it was fitted with.
    pub figures: Figures,
    /// The formula.
    pub base: Base,
    forest: Forest,
}

impl Model {
    /// The fit to rows of one format.
    pub fn fit(rows: &[ProductRow], figures: Figures) -> Model {
        let demands: Vec<(Demand, f64)> =
            rows.iter().map(|r| (figures.demand(r.m, r.n, r.k), (r.us * 1e-6).ln())).collect();
        let base = Base::fit(&demands);
        let table: Vec<f64> = rows.iter().flat_map(|r| features(&figures, r.m, r.n, r.k)).collect();
        let left: Vec<f64> = demands.iter().map(|(d, y)| y - base.seconds(d).ln()).collect();
        Model { figures, base, forest: Forest::fit(&table, WIDTH, &left) }
    }

    /// Logarithm of microseconds.
    pub fn ln_us(&self, m: f64, n: f64, k: f64) -> f64 {
        let base = self.base.seconds(&self.figures.demand(m, n, k));
        (base * 1e6).ln() + self.forest.value(&features(&self.figures, m, n, k))
    }
}

/// Lines of each axis at most, and the sizes up to which formula and trees go on.
const MOST: [usize; 3] = [60, 30, 30];
const LIMIT: [f64; 3] = [1_048_576.0, 262_144.0, 262_144.0];

/// The grid of measured products of one format: measured points keep their times, others have the model's,
/// and all move as little as possible until none falls.
pub fn grid(rows: &[ProductRow], figures: Figures) -> Grid {
    let model = Model::fit(rows, figures);
    let sizes = |axis: usize| rows.iter().map(move |r| [r.m, r.n, r.k][axis]);
    let axes = [0, 1, 2].map(|i| lines(sizes(i), MOST[i], LIMIT[i]));
    let measured = [0, 1, 2].map(|i| sizes(i).fold((f64::INFINITY, 0.0), |(a, b), v| (v.min(a), v.max(b))));
    let mut known: HashMap<[u64; 3], (f64, f64)> = HashMap::new();
    for r in rows {
        let sum = known.entry([r.m, r.n, r.k].map(f64::to_bits)).or_default();
        *sum = (sum.0 + r.us.ln(), sum.1 + 1.0);
    }
    let (mut values, mut weights) = (vec![], vec![]);
    for &m in &axes[0] {
        for &n in &axes[1] {
            for &k in &axes[2] {
                let rare = if m % 2.0 == 0.0 { 1.0 } else { ODD };
                let (value, weight) = match known.get(&[m, n, k].map(f64::to_bits)) {
                    Some((sum, count)) => (sum / count, MEASURED * rare),
                    None => (model.ln_us(m, n, k), MODELLED * rare),
                };
                values.push(value);
                weights.push(weight);
            }
        }
    }
    monotone::project(&mut values, &weights, [0, 1, 2].map(|i| axes[i].len()));
    Grid::new(axes, measured, &values)
}

/// Weights of points when falls are taken out: a measurement counts more than a guess.
pub(super) const MEASURED: f64 = 1.0;
pub(super) const MODELLED: f64 = 0.6;
/// Odd sizes are slow and rare, in the tables (a fifth of them is there) and in models: one should not push
/// its even neighbours.
const ODD: f64 = 0.3;

#[cfg(test)]
mod tests {
    use super::*;

    /// Products of an imaginary device that rounds up to waves of 128 × 128 tiles.
    pub(crate) fn waves(m: f64, n: f64, k: f64) -> f64 {
        let waves = ((m / 128.0).ceil() * (n / 128.0).ceil() / 100.0).ceil();
        3.0 + waves * (0.01 * k + 0.5)
    }

    #[test]
    fn left_out_points_are_close_and_nothing_falls() {
        let figures = Figures { peak: 3e14, bandwidth: 2e12, units: 100.0, bytes: 2.0 };
        let (mut kept, mut left) = (vec![], vec![]);
        for (i, m) in [64.0, 128.0, 256.0, 512.0, 1024.0, 1536.0, 2048.0, 4096.0, 8192.0].into_iter().enumerate() {
            for (j, n) in [64.0, 256.0, 512.0, 1024.0, 2048.0, 3072.0, 4096.0, 8192.0].into_iter().enumerate() {
                for (l, k) in [128.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0].into_iter().enumerate() {
                    let row = ProductRow { format: Format::Bf16, m, n, k, us: waves(m, n, k) };
                    if (i * 7 + j * 3 + l) % 5 == 0 {
                        left.push(row)
                    } else {
                        kept.push(row)
                    };
                }
            }
        }
        let g = grid(&kept, figures);
        let mut errors: Vec<f64> = left.iter().map(|r| (g.seconds([r.m, r.n, r.k]) * 1e6 / r.us - 1.0).abs()).collect();
        errors.sort_by(f64::total_cmp);
        assert!(errors[errors.len() / 2] < 0.05, "median {}", errors[errors.len() / 2]);
        for k in [100.0, 3000.0] {
            let times: Vec<f64> = (5..200).map(|i| g.seconds([f64::from(i) * 64.0, 700.0, k])).collect();
            assert!(times.windows(2).all(|w| w[1] > w[0] * 0.98));
        }
    }
}

//! From measured attention to grids, and from an attention to a point of them.

use super::base::{Base, Demand};
use super::grid::{lines, Grid};
use super::products::{idle, Figures, MEASURED, MODELLED};
use super::rows::AttentionRow;
use super::trees::Forest;
use super::{monotone, Attention};
use std::collections::HashMap;

/// The grid of one width of heads, and of one number of query heads where the table tells them apart.
///
/// Axes are sequences × query heads, positions, key/value heads over query heads. Causal, forward.
#[derive(Clone, Debug, PartialEq)]
pub struct HeadGrid {
    /// Width of a head.
    pub dim: f64,
    /// Query heads of a sequence; 0 where the grid is of any number.
    pub heads: f64,
    /// Times.
    pub grid: Grid,
}

/// Grids of one device, by width, then by heads, rising.
pub type Grids = Vec<HeadGrid>;

/// Grids by number of heads at most. A table of a single width has room for them, and needs them: on A100 the
/// same work takes up to 40 % longer in 4 heads of 8 sequences than in 32 heads of one, while the other
/// tables, of several widths, gain nothing.
const BY_HEADS: usize = 12;

/// Rows of queries that flash kernels give a multiprocessor at a time.
const TILES: [f64; 4] = [64.0, 128.0, 192.0, 256.0];
const WIDTH: usize = 9 + TILES.len();

/// What causal attention asks: two products of half the scores (2·heads·s²·d FLOPs), queries, keys, values
/// and results in 16 bits, and a chain over the keys.
fn demand(f: &Figures, heads: f64, seq: f64, share: f64, dim: f64) -> Demand {
    let bytes = 2.0 * heads * seq * dim * (2.0 + 2.0 * share);
    Demand { compute: 2.0 * heads * seq * seq * dim / f.peak, memory: bytes / f.bandwidth, chain: seq / 1000.0 }
}

/// `of` is the number of query heads of a sequence, or 0 where it is not told apart.
fn features(f: &Figures, heads: f64, seq: f64, share: f64, dim: f64, of: f64) -> [f64; WIDTH] {
    let (a, b, c, d) = (heads.log2(), seq.log2(), share.log2(), dim.log2());
    let mut out = [0.0; WIDTH];
    out[..9].copy_from_slice(&[a, b, c, d, a + b, a + 2.0 * b, a + c, idle(heads, f.units), of]);
    for (o, t) in out[9..].iter_mut().zip(TILES) {
        *o = idle(heads * (seq / t).ceil(), f.units);
    }
    out
}

/// Lines of the axes. Shares of key/value heads in between fall on the nearest.
const MOST: usize = 48;
const HEADS: f64 = 131_072.0;
const SEQ: f64 = 1_048_576.0;
/// Lines below the measured positions.
const SHORT: [f64; 4] = [64.0, 128.0, 256.0, 384.0];
const SHARES: [f64; 7] = [1.0 / 64.0, 1.0 / 32.0, 1.0 / 16.0, 0.125, 0.25, 0.5, 1.0];
/// A width of heads with fewer rows has no grid of its own; its rows still teach the trees.
const ROWS: usize = 30;

/// Grids of measured attention.
pub fn grids(rows: &[AttentionRow], figures: Figures) -> Grids {
    let mut dims: Vec<f64> = rows.iter().map(|r| r.head_dim).collect();
    dims.sort_by(f64::total_cmp);
    dims.dedup();
    let counted = |d: &f64| rows.iter().filter(|r| r.head_dim == *d).count();
    let most = dims.iter().map(counted).max().unwrap_or(0);
    let heads = match dims.len() {
        1 => lines(rows.iter().map(|r| r.heads), BY_HEADS, 0.0),
        _ => vec![0.0],
    };
    let model = Model::fit(rows, figures, heads.len() > 1);
    dims.retain(|d| counted(d) >= ROWS.min(most));
    let each = |dim: f64| heads.iter().map(move |h| (dim, *h)).collect::<Vec<_>>();
    let of = |(dim, heads): (f64, f64)| HeadGrid { dim, heads, grid: grid(rows, dim, heads, &model) };
    dims.into_iter().flat_map(each).map(of).collect()
}

/// A row's point: sequences × heads, positions, key/value heads over query heads.
fn point(r: &AttentionRow) -> [f64; 3] {
    [r.batch * r.heads, r.seq, (r.kv_heads / r.heads).min(1.0)]
}

/// Time of any causal attention: a formula, and trees on what it leaves.
struct Model {
    figures: Figures,
    base: Base,
    forest: Forest,
}

impl Model {
    /// The fit; `by_heads` says whether the number of heads is told apart.
    fn fit(rows: &[AttentionRow], figures: Figures, by_heads: bool) -> Model {
        let (mut asked, mut table) = (vec![], vec![]);
        for r in rows {
            let [heads, seq, share] = point(r);
            let of = if by_heads { r.heads } else { 0.0 };
            asked.push((demand(&figures, heads, seq, share, r.head_dim), (r.us * 1e-6).ln()));
            table.extend(features(&figures, heads, seq, share, r.head_dim, of));
        }
        let base = Base::fit(&asked);
        let left: Vec<f64> = asked.iter().map(|(d, y)| y - base.seconds(d).ln()).collect();
        Model { figures, base, forest: Forest::fit(&table, WIDTH, &left) }
    }

    /// Logarithm of microseconds.
    fn ln_us(&self, heads: f64, seq: f64, share: f64, dim: f64, of: f64) -> f64 {
        let seconds = self.base.seconds(&demand(&self.figures, heads, seq, share, dim));
        (seconds * 1e6).ln() + self.forest.value(&features(&self.figures, heads, seq, share, dim, of))
    }
}

/// The grid of one width and number of heads (0: any): means of measurements at its points, the model
/// elsewhere.
fn grid(rows: &[AttentionRow], dim: f64, of: f64, model: &Model) -> Grid {
    let wide: Vec<&AttentionRow> = rows.iter().filter(|r| r.head_dim == dim).collect();
    let sizes = |axis: usize| wide.iter().map(move |r| point(r)[axis]);
    let range = |axis: usize| sizes(axis).fold((f64::INFINITY, 0.0f64), |(a, b), v| (a.min(v), b.max(v)));
    let measured = [range(0), range(1), range(2)];
    let short = SHORT.into_iter().filter(|s| *s < measured[1].0);
    let axes = [lines(sizes(0), MOST, HEADS), lines(sizes(1).chain(short), MOST, SEQ), SHARES.to_vec()];
    let mut known: HashMap<[u64; 3], (f64, f64)> = HashMap::new();
    for r in wide.iter().filter(|r| of == 0.0 || r.heads == of) {
        let sum = known.entry(point(r).map(f64::to_bits)).or_default();
        *sum = (sum.0 + r.us.ln(), sum.1 + 1.0);
    }
    let (mut values, mut weights) = (vec![], vec![]);
    for &heads in &axes[0] {
        for &seq in &axes[1] {
            for &share in &axes[2] {
                let known = known.get(&[heads, seq, share].map(f64::to_bits));
                let mean = known.map(|(sum, count)| sum / count);
                values.push(mean.unwrap_or_else(|| model.ln_us(heads, seq, share, dim, of)));
                weights.push(if known.is_some() { MEASURED } else { MODELLED });
            }
        }
    }
    monotone::project(&mut values, &weights, [0, 1, 2].map(|i| axes[i].len()));
    Grid::new(axes, measured, &values)
}

/// The causal square that does the same work: as many scores to a query on average (`share`·keys), and as
/// many queries in all. Windows, context parallelism and full attention are then priced by one table.
///
/// Returns sequences × heads, positions, and key/value heads over query heads.
pub fn square(a: &Attention) -> [f64; 3] {
    let seq = (2.0 * a.share * a.keys).max(1.0);
    let heads = a.batch * a.heads * a.queries / seq;
    [heads.max(1.0), seq, (a.kv_heads / a.heads).clamp(1.0 / 64.0, 1.0)]
}

/// Seconds of the forward, and whether the point was measured: grids of the next widths, in between by the
/// logarithm of the mean of key and value width (two products, one with each). `None` without grids.
pub fn seconds(grids: &Grids, a: &Attention) -> Option<(f64, bool)> {
    let at = square(a);
    let dim = (0.5 * (a.head_dim + a.value_dim)).max(1.0);
    let first = grids.partition_point(|g| g.dim < dim);
    let wider = grids.get(first).and_then(|g| Some((g.dim, by_heads(grids, g.dim, a.heads, at)?)));
    if let Some((d, found)) = wider {
        if d == dim {
            return Some(found);
        }
    }
    let narrower = first.checked_sub(1).map(|i| grids[i].dim);
    let narrower = narrower.and_then(|d| Some((d, by_heads(grids, d, a.heads, at)?)));
    match (narrower, wider) {
        (Some((d0, (t0, in0))), Some((d1, (t1, in1)))) => {
            let w = (dim / d0).ln() / (d1 / d0).ln();
            Some((t0 * (t1 / t0).powf(w), in0 && in1))
        }
        // Narrower heads than measured fill the units worse: never below half the narrowest's time.
        (None, Some((d, (t, _)))) => Some((t * (dim / d).max(0.5), false)),
        (Some((d, (t, _))), None) => Some((t * dim / d, false)),
        (None, None) => None,
    }
}

/// The time of one width, linear in logarithms between the next numbers of heads, constant outside.
fn by_heads(grids: &Grids, dim: f64, heads: f64, at: [f64; 3]) -> Option<(f64, bool)> {
    let from = grids.partition_point(|g| g.dim < dim);
    let wide = &grids[from..from + grids[from..].partition_point(|g| g.dim == dim)];
    let above = wide.partition_point(|g| g.heads < heads).min(wide.len().checked_sub(1)?);
    let high = &wide[above];
    let (t1, inside) = (high.grid.seconds(at), high.grid.covers(at));
    if above == 0 || high.heads <= heads {
        return Some((t1, inside));
    }
    let low = &wide[above - 1];
    let w = (heads / low.heads).ln() / (high.heads / low.heads).ln();
    let t0 = low.grid.seconds(at);
    Some((t0 * (t1 / t0).powf(w), inside))
}

/// Time of the backward over the forward's, by positions of the causal square: five products instead of two,
/// at another rate. From the published rates of FlashAttention-2 on H100, forward alone (f) and forward with
/// backward (fb), causal, head widths 64 and 128 (Dao-AILab/flash-attention @0251105, `assets/*.png`, labels
/// read by eye): 3.5·f/fb − 1, mean of both widths. 2.5 would be the forward's rate. Nothing here measures
/// other kernels' backward; no error is claimed.
pub const BACKWARD: [(f64, f64); 6] =
    [(512.0, 3.285), (1024.0, 3.146), (2048.0, 2.944), (4096.0, 2.833), (8192.0, 2.783), (16384.0, 2.630)];

/// [`BACKWARD`] at any number of positions: linear in their logarithm, constant outside.
pub fn backward_ratio(seq: f64) -> f64 {
    let above = BACKWARD.iter().position(|(s, _)| *s >= seq).unwrap_or(BACKWARD.len());
    match (above.checked_sub(1).map(|i| BACKWARD[i]), BACKWARD.get(above)) {
        (Some((s0, r0)), Some((s1, r1))) => r0 + (r1 - r0) * (seq / s0).ln() / (s1 / s0).ln(),
        (None, Some((_, r))) => *r,
        (Some((_, r)), None) => r,
        (None, None) => 2.5,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn causal(seq: f64) -> Attention {
        AttentionRow { batch: 2.0, seq, heads: 8.0, kv_heads: 2.0, head_dim: 128.0, us: 1.0 }.attention()
    }

    #[test]
    fn squares_keep_scores_and_queries() {
        assert_eq!(square(&causal(4096.0)), [16.0, 4096.0, 0.25]);
        let window = Attention { share: 512.0 / 4096.0, ..causal(4096.0) };
        assert_eq!(square(&window), [64.0, 1024.0, 0.25]);
        let ring = Attention { keys: 2048.0, share: 1.0, ..causal(4096.0) };
        assert_eq!(square(&ring), [16.0, 4096.0, 0.25]);
    }

    #[test]
    fn the_ratio_meets_its_points_and_ends() {
        assert_eq!(backward_ratio(2048.0), 2.944);
        assert!(backward_ratio(3000.0) < 2.944 && backward_ratio(3000.0) > 2.833);
        assert_eq!((backward_ratio(1.0), backward_ratio(1e6)), (3.285, 2.630));
    }
}

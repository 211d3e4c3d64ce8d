//! Boosted regression trees: what a formula leaves of measured times.
//!
//! Libraries choose tiles, splits and clusters by rules of their own, so times jump where no formula
//! foresees it. Trees cut where the data do. Gradient boosting (Friedman, "Greedy function approximation",
//! 2001) with Huber's loss, histograms of at most `BINS` bins, trees grown leaf by leaf. The draw of rows
//! and features is a fixed sequence: the same rows give the same trees.

/// Bins of a feature.
const BINS: usize = 63;
/// Trees at most.
const TREES: usize = 600;
/// Leaves of a tree.
const LEAVES: usize = 63;
/// Rows of a leaf at least.
const LEAF_ROWS: u32 = 6;
/// Step of a tree.
const RATE: f64 = 0.1;
/// Residuals beyond this are clipped: one row in ten or so is an outlier of its neighbourhood.
const CLIP: f64 = 0.08;
/// Share of rows and of features that a tree sees.
const ROW_SHARE: f64 = 0.8;
const FEATURE_SHARE: f64 = 0.6;

/// A node: a cut, or a leaf where `feature` is `LEAF`.
#[derive(Clone, Copy, Debug)]
struct Node {
    feature: u16,
    /// Rows whose feature is at most this go left.
    cut: f64,
    left: u32,
    right: u32,
    value: f64,
}

const LEAF: u16 = u16::MAX;

/// A sum of trees.
#[derive(Clone, Debug, Default)]
pub struct Forest {
    trees: Vec<Vec<Node>>,
}

impl Forest {
    /// Fits `targets`, one a row; `features` holds `width` numbers a row.
    pub fn fit(features: &[f64], width: usize, targets: &[f64]) -> Forest {
        let rows = targets.len();
        let mut forest = Forest::default();
        if width == 0 || rows < 4 * LEAF_ROWS as usize {
            return forest;
        }
        let bins = Bins::new(features, width);
        let mut residuals = targets.to_vec();
        let mut random = Random(0x9E37_79B9_7F4A_7C15);
        for _ in 0..TREES {
            let chosen: Vec<u32> = (0..rows as u32).filter(|_| random.next() < ROW_SHARE).collect();
            let used: Vec<usize> = (0..width).filter(|_| random.next() < FEATURE_SHARE).collect();
            let tree = grow(&bins, &residuals, chosen, &used);
            for (row, r) in features.chunks_exact(width).zip(&mut residuals) {
                *r -= follow(&tree, row);
            }
            forest.trees.push(tree);
        }
        forest
    }

    /// The sum of the trees at one row of features.
    pub fn value(&self, row: &[f64]) -> f64 {
        self.trees.iter().map(|t| follow(t, row)).sum()
    }
}

fn follow(tree: &[Node], row: &[f64]) -> f64 {
    let mut node = &tree[0];
    while node.feature != LEAF {
        node = &tree[if row[node.feature as usize] <= node.cut { node.left } else { node.right } as usize];
    }
    node.value
}

/// A fixed sequence of numbers in 0–1 (splitmix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (z ^ (z >> 31)) as f64 / u64::MAX as f64
    }
}

/// Features as bin numbers, feature by feature.
struct Bins {
    rows: usize,
    codes: Vec<u8>,
    /// Upper edges of each feature's bins.
    edges: Vec<Vec<f64>>,
}

impl Bins {
    fn new(features: &[f64], width: usize) -> Bins {
        let rows = features.len() / width;
        let (mut codes, mut edges) = (Vec::with_capacity(features.len()), vec![]);
        for f in 0..width {
            let column: Vec<f64> = features.iter().skip(f).step_by(width).copied().collect();
            let e = cuts(&column);
            codes.extend(column.iter().map(|v| e.partition_point(|x| x < v) as u8));
            edges.push(e);
        }
        Bins { rows, codes, edges }
    }
}

/// Cuts between distinct values, at equal counts of rows where there are more than `BINS`.
fn cuts(column: &[f64]) -> Vec<f64> {
    let mut sorted = column.to_vec();
    sorted.sort_by(f64::total_cmp);
    let mut distinct = sorted.clone();
    distinct.dedup();
    let chosen = if distinct.len() <= BINS {
        distinct
    } else {
        let mut c: Vec<f64> = (1..=BINS).map(|i| sorted[i * (sorted.len() - 1) / BINS]).collect();
        c.dedup();
        c
    };
    // A cut lies halfway to the next chosen value, so that sizes in between go to the nearer side.
    chosen.windows(2).map(|w| 0.5 * (w[0] + w[1])).collect()
}

/// A leaf that may still be cut.
struct Open {
    node: usize,
    rows: Vec<u32>,
    best: Option<Cut>,
}

#[derive(Clone, Copy)]
struct Cut {
    gain: f64,
    feature: usize,
    bin: usize,
}

fn grow(bins: &Bins, residuals: &[f64], rows: Vec<u32>, used: &[usize]) -> Vec<Node> {
    let leaf = |rows: &[u32]| {
        let sum: f64 = rows.iter().map(|&r| residuals[r as usize].clamp(-CLIP, CLIP)).sum();
        let value = if rows.is_empty() { 0.0 } else { RATE * sum / rows.len() as f64 };
        Node { feature: LEAF, cut: 0.0, left: 0, right: 0, value }
    };
    let mut tree = vec![leaf(&rows)];
    let best = best_cut(bins, residuals, &rows, used);
    let mut open = vec![Open { node: 0, rows, best }];
    for _ in 1..LEAVES {
        let gain = |o: &Open| o.best.map_or(0.0, |c| c.gain);
        let Some(i) = (0..open.len()).max_by(|&a, &b| gain(&open[a]).total_cmp(&gain(&open[b]))) else { break };
        let Some(cut) = open[i].best else { break };
        let Open { node, rows, .. } = open.swap_remove(i);
        let codes = &bins.codes[cut.feature * bins.rows..][..bins.rows];
        let (left, right): (Vec<u32>, Vec<u32>) = rows.iter().partition(|&&r| codes[r as usize] as usize <= cut.bin);
        tree[node].feature = cut.feature as u16;
        tree[node].cut = bins.edges[cut.feature][cut.bin];
        tree[node].left = tree.len() as u32;
        tree[node].right = tree.len() as u32 + 1;
        for rows in [left, right] {
            tree.push(leaf(&rows));
            let best = best_cut(bins, residuals, &rows, used);
            open.push(Open { node: tree.len() - 1, rows, best });
        }
    }
    tree
}

/// The cut that lowers the squared error of clipped residuals most.
fn best_cut(bins: &Bins, residuals: &[f64], rows: &[u32], used: &[usize]) -> Option<Cut> {
    let count = rows.len() as u32;
    if count < 2 * LEAF_ROWS {
        return None;
    }
    let gradients: Vec<f64> = rows.iter().map(|&r| residuals[r as usize].clamp(-CLIP, CLIP)).collect();
    let total: f64 = gradients.iter().sum();
    let whole = total * total / f64::from(count);
    let mut best: Option<Cut> = None;
    for &feature in used {
        let codes = &bins.codes[feature * bins.rows..][..bins.rows];
        let mut histogram = [(0.0f64, 0u32); BINS + 1];
        for (&r, g) in rows.iter().zip(&gradients) {
            let h = &mut histogram[codes[r as usize] as usize];
            h.0 += g;
            h.1 += 1;
        }
        let (mut sum, mut left) = (0.0, 0);
        for (bin, h) in histogram.iter().enumerate().take(bins.edges[feature].len()) {
            sum += h.0;
            left += h.1;
            if left < LEAF_ROWS || count - left < LEAF_ROWS {
                continue;
            }
            let rest = total - sum;
            let gain = sum * sum / f64::from(left) + rest * rest / f64::from(count - left) - whole;
            if gain > best.map_or(1e-12, |c| c.gain) {
                best = Some(Cut { gain, feature, bin });
            }
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_is_found_and_the_fit_repeats() {
        let features: Vec<f64> = (0..400).map(|i| f64::from(i) / 10.0).collect();
        let targets: Vec<f64> = features.iter().map(|x| if *x < 17.0 { -0.2 } else { 0.3 }).collect();
        let forest = Forest::fit(&features, 1, &targets);
        assert!((forest.value(&[5.0]) + 0.2).abs() < 0.01 && (forest.value(&[30.0]) - 0.3).abs() < 0.01);
        assert_eq!(forest.value(&[17.3]), Forest::fit(&features, 1, &targets).value(&[17.3]));
        assert_eq!(Forest::fit(&[1.0], 1, &[1.0]).value(&[1.0]), 0.0);
    }
}

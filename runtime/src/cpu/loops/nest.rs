//! The loop nest of a kernel, reshaped for execution: which loops are the lane, which are cut over
//! tasks, which are reduced inside one.
//!
//! Everything that depends on loop indices (addresses, indices themselves, table positions, random
//! counters) is a [`Column`]: a base plus a stride per loop. Reshaping the nest therefore looks at
//! columns alone.

/// An affine function of the loop indices, which count from 0.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Column {
    /// Value at index 0 everywhere.
    pub base: usize,
    /// Stride per loop.
    pub strides: Vec<usize>,
}

/// A loop nest with its columns.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Nest {
    /// Lengths: outer loops, then the lane.
    pub lens: Vec<usize>,
    /// Affine functions.
    pub columns: Vec<Column>,
    /// The last outer loop runs along the lane, too: its length, and its stride per column. The
    /// lane then has `pair · lens.last()` entries.
    pub pair: usize,
    /// Strides of the paired loop, one per column (0 without).
    pub pair_strides: Vec<usize>,
    /// How many of the outer loops, from the first, are kept by all combining stores.
    pub kept: usize,
}

/// Lanes shorter than this are worth running along with the loop around them.
const SHORT: usize = 256;

impl Nest {
    /// A nest as lowering made it.
    pub fn new(lens: Vec<usize>, columns: Vec<Column>) -> Nest {
        let pair_strides = vec![0; columns.len()];
        Nest { kept: lens.len() - 1, lens, columns, pair: 1, pair_strides }
    }

    /// Reshapes: drops loops of one entry, merges what nests, moves loops that no combining store
    /// lacks to the front, and pairs a short lane with the loop around it. `reduces`: some
    /// instruction needs the lane as it is. `combining`: columns of stores that combine; `stores`:
    /// of all.
    pub fn reshape(&mut self, reduces: bool, combining: &[usize], stores: &[usize]) {
        self.drop_single(reduces || !combining.is_empty());
        let lane_is_reduced = combining.iter().any(|c| self.lane_stride(*c) == 0);
        if !reduces && !lane_is_reduced {
            self.merge_lane();
        }
        self.sort(combining);
        // A store of one element per row needs rows.
        let per_row = stores.iter().any(|c| self.lane_stride(*c) == 0);
        if !reduces && combining.is_empty() && !per_row {
            self.pair_lane();
        }
    }

    /// Length of the lane.
    pub fn lane(&self) -> usize {
        self.pair * self.inner()
    }

    /// Length of the lane without the paired loop.
    pub fn inner(&self) -> usize {
        self.lens[self.lens.len() - 1]
    }

    /// Lengths of the outer loops.
    pub fn outer(&self) -> &[usize] {
        &self.lens[..self.lens.len() - 1]
    }

    /// Stride of a column along the lane (within the paired loop).
    pub fn lane_stride(&self, column: usize) -> usize {
        self.columns[column].strides[self.lens.len() - 1]
    }

    /// Whether a column is the same all along the lane.
    pub fn is_uniform(&self, column: usize) -> bool {
        self.lane_stride(column) == 0 && self.pair_strides[column] == 0
    }

    fn remove(&mut self, l: usize) {
        self.lens.remove(l);
        self.columns.iter_mut().for_each(|c| {
            c.strides.remove(l);
        });
    }

    fn drop_single(&mut self, keep_lane: bool) {
        for l in (0..self.lens.len()).rev() {
            let lane = l == self.lens.len() - 1;
            if self.lens[l] == 1 && self.lens.len() > 1 && !(lane && keep_lane) {
                self.remove(l);
            }
        }
        self.kept = self.lens.len() - 1;
    }

    /// Merges the loop around the lane into it as long as all columns nest.
    fn merge_lane(&mut self) {
        while self.lens.len() > 1 {
            let (l, lane) = (self.lens.len() - 2, self.lens.len() - 1);
            let len = self.lens[lane];
            let nests = |c: &Column| c.strides[lane].checked_mul(len) == Some(c.strides[l]);
            if len == 0 || !self.columns.iter().all(nests) {
                break;
            }
            self.lens[lane] *= self.lens[l];
            self.remove(l);
        }
        self.kept = self.lens.len() - 1;
    }

    /// Loops that every combining store has, first; the order is otherwise kept.
    fn sort(&mut self, combining: &[usize]) {
        let lane = self.lens.len() - 1;
        let has = |l: &usize| combining.iter().all(|c| self.columns[*c].strides[*l] != 0);
        let (kept, reduced): (Vec<usize>, Vec<usize>) = (0..lane).partition(has);
        self.kept = kept.len();
        let order: Vec<usize> = kept.into_iter().chain(reduced).chain([lane]).collect();
        self.lens = order.iter().map(|l| self.lens[*l]).collect();
        for c in &mut self.columns {
            c.strides = order.iter().map(|l| c.strides[*l]).collect();
        }
    }

    fn pair_lane(&mut self) {
        if self.lens.len() < 2 || self.inner() >= SHORT || self.inner() == 0 {
            return;
        }
        let l = self.lens.len() - 2;
        self.pair = self.lens[l];
        self.pair_strides = self.columns.iter().map(|c| c.strides[l]).collect();
        self.remove(l);
        self.kept = self.lens.len() - 1;
    }
}

/// Stretches of the lane within which a column is strided: calls `f` with the index of the paired
/// loop, the index within, the position relative to `start`, and the length.
#[inline]
pub(super) fn stretches(inner: usize, start: usize, len: usize, mut f: impl FnMut(usize, usize, usize, usize)) {
    if start + len <= inner {
        // The usual case: no paired loop, or a tile within one round of it.
        return f(0, start, 0, len);
    }
    let (mut outer, mut within, mut done) = (start / inner, start % inner, 0);
    while done < len {
        let n = (inner - within).min(len - done);
        f(outer, within, done, n);
        (outer, within, done) = (outer + 1, 0, done + n);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn column(strides: &[usize]) -> Column {
        Column { base: 0, strides: strides.to_vec() }
    }

    #[test]
    fn contiguous_loops_become_one_lane() {
        let mut n = Nest::new(vec![2, 1, 3, 4], vec![column(&[12, 9, 4, 1]), column(&[0, 0, 0, 0])]);
        n.reshape(false, &[], &[0]);
        assert_eq!((n.lens, n.pair), (vec![24], 1));
    }

    #[test]
    fn a_broadcast_is_paired() {
        let mut n = Nest::new(vec![5, 3, 4], vec![column(&[12, 4, 1]), column(&[0, 4, 1])]);
        n.reshape(false, &[], &[0]);
        assert_eq!((n.lens.clone(), n.pair, n.lane()), (vec![12], 5, 60));
        assert_eq!(n.pair_strides, [12, 0]);
    }

    #[test]
    fn loops_that_a_combining_store_lacks_go_inside() {
        let mut n = Nest::new(vec![5, 3, 4], vec![column(&[15, 5, 1]), column(&[0, 4, 1])]);
        n.reshape(false, &[1], &[1]);
        assert_eq!((n.lens.clone(), n.kept, n.pair), (vec![3, 5, 4], 1, 1));
        assert_eq!(n.columns[0].strides, [5, 15, 1]);
    }

    #[test]
    fn stretches_cover_the_tile() {
        let mut seen = vec![];
        stretches(5, 3, 9, |o, w, at, n| seen.push((o, w, at, n)));
        assert_eq!(seen, [(0, 3, 0, 2), (1, 0, 2, 5), (2, 0, 7, 2)]);
    }
}

//! The loops of a nest and the affine functions of their indices: addresses, indices, table
//! positions and random counters are all columns, so reshaping a nest looks at columns alone.

use std::fmt::Write;

/// Length of a loop.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Len {
    /// Padded size.
    pub size: usize,
    /// Position of the split extent whose real length is a factor of the loop's.
    pub extent: Option<usize>,
    /// The other factor.
    pub times: usize,
}

impl Len {
    /// A whole range.
    pub fn whole(size: usize) -> Len {
        Len { size, extent: None, times: size }
    }

    /// Real length, in C; `n3` is the real length of extent 3.
    pub fn text(&self, int: &str) -> String {
        match self.extent {
            None => format!("({int}){}", self.times),
            Some(e) if self.times == 1 => format!("({int})n{e}"),
            Some(e) => format!("({int})n{e} * {}", self.times),
        }
    }

    /// Whether the real length is always a multiple of this.
    pub fn divides(&self, lanes: usize) -> bool {
        self.times.is_multiple_of(lanes)
    }

    /// Whether it can be shorter than its size.
    pub fn ragged(&self) -> bool {
        self.extent.is_some()
    }
}

/// An affine function of the loop indices, which count from 0.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Column {
    /// Constant part.
    pub base: usize,
    /// Multiples of the first global index of split extents.
    pub starts: Vec<(usize, usize)>,
    /// Stride per loop.
    pub strides: Vec<usize>,
}

/// Loops, the lane last, with their columns.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Nest {
    /// Loops.
    pub lens: Vec<Len>,
    /// Affine functions.
    pub columns: Vec<Column>,
}

/// Terms of a sum in C.
struct Sum(String);

impl Sum {
    fn add(&mut self, term: &str, factor: usize, int: &str) {
        if factor == 0 {
            return;
        }
        let plus = if self.0.is_empty() { "" } else { " + " };
        let _ = match factor {
            1 => write!(self.0, "{plus}({int}){term}"),
            _ => write!(self.0, "{plus}({int}){term} * {factor}"),
        };
    }
}

impl Nest {
    /// Index of the lane loop.
    pub fn lane(&self) -> usize {
        self.lens.len() - 1
    }

    /// Stride of a column along the lane.
    pub fn lane_stride(&self, column: usize) -> usize {
        self.columns[column].strides[self.lane()]
    }

    /// Whether no loop moves a column.
    pub fn is_fixed(&self, column: usize) -> bool {
        self.columns[column].strides.iter().all(|s| *s == 0)
    }

    /// Largest value that a column takes, if that fits.
    pub fn largest(&self, column: usize, globals: &[usize]) -> Option<usize> {
        let c = &self.columns[column];
        let mut last = c.base;
        for (factor, extent) in &c.starts {
            last = last.checked_add(factor.checked_mul(*globals.get(*extent)?)?)?;
        }
        for (len, stride) in self.lens.iter().zip(&c.strides) {
            last = last.checked_add(len.size.saturating_sub(1).checked_mul(*stride)?)?;
        }
        Some(last)
    }

    /// A column in C: `d0`, `d1`, … are the indices of the outer loops, `lane` that of the lane.
    pub fn text(&self, column: usize, lane: &str, int: &str) -> String {
        let c = &self.columns[column];
        let mut sum = Sum(String::new());
        for (factor, extent) in &c.starts {
            sum.add(&format!("s{extent}"), *factor, int);
        }
        for (l, stride) in c.strides.iter().enumerate() {
            let index = if l == self.lane() { lane.to_string() } else { format!("d{l}") };
            sum.add(&index, *stride, int);
        }
        match (sum.0.is_empty(), c.base) {
            (true, base) => format!("({int}){base}"),
            (false, 0) => sum.0,
            (false, base) => format!("{} + {base}", sum.0),
        }
    }

    fn remove(&mut self, l: usize) {
        self.lens.remove(l);
        self.columns.iter_mut().for_each(|c| {
            c.strides.remove(l);
        });
    }

    /// Drops whole loops of one entry. The lane goes, too, unless it is wanted.
    pub fn drop_single(&mut self, keep_lane: bool) {
        for l in (0..self.lens.len()).rev() {
            let wanted = keep_lane && l == self.lane();
            if self.lens.len() > 1 && self.lens[l] == Len::whole(1) && !wanted {
                self.remove(l);
            }
        }
    }

    /// Merges neighbours that all columns walk as one. The inner one must be whole: what follows a
    /// tail is somewhere else.
    pub fn merge(&mut self, lane_too: bool) {
        let mut l = self.lens.len().saturating_sub(1);
        while l > 0 {
            let inner = &self.lens[l];
            let size = inner.size;
            let nests = |c: &Column| c.strides[l].checked_mul(size) == Some(c.strides[l - 1]);
            let allowed = (lane_too || l != self.lane()) && !inner.ragged() && size > 0;
            if allowed && self.columns.iter().all(nests) {
                let (size, times) = (self.lens[l].size, self.lens[l].times);
                let outer = &mut self.lens[l - 1];
                outer.size = outer.size.saturating_mul(size);
                outer.times = outer.times.saturating_mul(times);
                for c in &mut self.columns {
                    c.strides[l - 1] = c.strides[l];
                }
                self.remove(l);
            }
            l -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn column(strides: &[usize]) -> Column {
        Column { base: 0, starts: vec![], strides: strides.to_vec() }
    }

    #[test]
    fn contiguous_loops_become_one() {
        let lens = vec![Len { size: 2, extent: Some(0), times: 1 }, Len::whole(3), Len::whole(4)];
        let mut n = Nest { lens, columns: vec![column(&[12, 4, 1])] };
        n.merge(true);
        assert_eq!(n.lens, [Len { size: 24, extent: Some(0), times: 12 }]);
        assert_eq!(n.text(0, "lane", "unsigned"), "(unsigned)lane");
        assert_eq!(n.lens[0].text("unsigned"), "(unsigned)n0 * 12");
    }

    #[test]
    fn a_ragged_inner_loop_stays() {
        let lens = vec![Len::whole(2), Len { size: 3, extent: Some(0), times: 1 }, Len::whole(4)];
        let mut n = Nest { lens, columns: vec![column(&[12, 4, 1]), column(&[0, 4, 1])] };
        n.merge(true);
        assert_eq!(n.lens.iter().map(|l| l.size).collect::<Vec<_>>(), [2, 12]);
        assert_eq!(n.columns[0].strides, [12, 1]);
    }

    #[test]
    fn broadcasts_keep_loops_apart() {
        let lens = vec![Len::whole(5), Len::whole(1), Len::whole(4)];
        let mut n = Nest { lens, columns: vec![column(&[4, 4, 1]), column(&[0, 9, 1])] };
        n.drop_single(false);
        n.merge(true);
        assert_eq!(n.lens.len(), 2);
        assert_eq!(n.text(1, "lane", "unsigned"), "(unsigned)lane");
    }
}

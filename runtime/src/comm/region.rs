//! Boxes of global indices and strided copies between local buffers.

use autoshard_ir::mesh::{Mesh, Part};
use autoshard_ir::Type;
use std::ops::Range;

/// The box of global indices that the rank at `coords` holds of a value of this type.
pub fn parts(mesh: &Mesh, ty: &Type, coords: &[usize]) -> Vec<Part> {
    ty.dims.iter().map(|d| mesh.part(d.size, &d.axes, coords)).collect()
}

/// Number of elements in a box.
pub(crate) fn volume(parts: &[Part]) -> usize {
    parts.iter().map(|p| p.len).product()
}

/// Common part of two boxes (zero lengths where they do not meet).
pub(crate) fn intersect(a: &[Part], b: &[Part]) -> Vec<Part> {
    let meet = |(a, b): (&Part, &Part)| {
        let start = a.start.max(b.start);
        let end = (a.start + a.len).min(b.start + b.len);
        Part { start, len: end.saturating_sub(start) }
    };
    a.iter().zip(b).map(meet).collect()
}

/// Local size of a type in bytes, tails included, or `None` where sizes or strides would overflow.
/// What [`Mesh::local_bytes`] computes, for types that nobody has verified.
pub(crate) fn checked_bytes(mesh: &Mesh, ty: &Type) -> Option<usize> {
    let limit = isize::MAX as usize / 4;
    let mut bytes = ty.dtype.bytes();
    for dim in &ty.dims {
        // An empty dimension counts as one: strides do not see it.
        bytes = bytes.checked_mul(mesh.local_size(dim).max(1))?;
        if bytes > limit || dim.size > limit {
            return None;
        }
    }
    Some(mesh.local_bytes(ty))
}

/// A copy of a box between two row-major local buffers; all numbers are elements.
#[derive(Clone, Debug, PartialEq)]
pub struct BoxCopy {
    /// First element read.
    from: usize,
    /// First element written.
    to: usize,
    /// Outer loops: count, stride in the source, stride in the target.
    loops: Vec<(usize, usize, usize)>,
    /// Contiguous elements per innermost step.
    row: usize,
}

impl BoxCopy {
    /// Copies `region` (global indices) out of a buffer of local sizes `from_sizes` that holds the
    /// global indices from `from_start`, into one of `to_sizes` from `to_start`.
    pub(crate) fn new(
        region: &[Part],
        (from_sizes, from_parts): (&[usize], &[Part]),
        (to_sizes, to_parts): (&[usize], &[Part]),
    ) -> BoxCopy {
        let mut copy = BoxCopy { from: 0, to: 0, loops: Vec::new(), row: 1 };
        let (mut from_stride, mut to_stride) = (1, 1);
        // While everything inside a dimension is contiguous in both, it joins the row.
        let mut contiguous = true;
        for d in (0..region.len()).rev() {
            let len = region[d].len;
            copy.from += (region[d].start - from_parts[d].start.min(region[d].start)) * from_stride;
            copy.to += (region[d].start - to_parts[d].start.min(region[d].start)) * to_stride;
            if contiguous {
                copy.row *= len;
            } else if len != 1 {
                copy.loops.push((len, from_stride, to_stride));
            }
            contiguous &= len == from_sizes[d] && len == to_sizes[d];
            from_stride *= from_sizes[d];
            to_stride *= to_sizes[d];
        }
        copy.loops.reverse();
        copy
    }

    /// Copies the whole real part of a local buffer to or from a packed one.
    pub(crate) fn pack(sizes: &[usize], parts: &[Part]) -> BoxCopy {
        let packed: Vec<usize> = parts.iter().map(|p| p.len).collect();
        BoxCopy::new(parts, (sizes, parts), (&packed, parts))
    }

    /// Elements of the box.
    pub(crate) fn elements(&self) -> usize {
        self.loops.iter().map(|l| l.0).product::<usize>() * self.row
    }

    /// Calls `f(source offset, target offset, n)` for each contiguous run of the elements `range` of
    /// the box, counted in row-major order.
    pub(crate) fn rows(&self, range: Range<usize>, mut f: impl FnMut(usize, usize, usize)) {
        let mut at = range.start;
        if range.is_empty() || self.elements() == 0 {
            return;
        }
        let mut index = vec![0; self.loops.len()];
        let (mut from, mut to, mut rest) = (self.from, self.to, at / self.row);
        for (i, (count, fs, ts)) in index.iter_mut().zip(&self.loops).rev() {
            *i = rest % count;
            rest /= count;
            from += *i * fs;
            to += *i * ts;
        }
        while at < range.end {
            let skip = at % self.row;
            let n = (self.row - skip).min(range.end - at);
            f(from + skip, to + skip, n);
            at += n;
            for (i, (count, fs, ts)) in index.iter_mut().zip(&self.loops).rev() {
                *i += 1;
                from += fs;
                to += ts;
                if *i < *count {
                    break;
                }
                *i = 0;
                from -= fs * count;
                to -= ts * count;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(start: usize, len: usize) -> Part {
        Part { start, len }
    }

    /// Offsets that a copy of `range` touches, one by one.
    fn elements(copy: &BoxCopy, range: Range<usize>) -> Vec<(usize, usize)> {
        let mut all = Vec::new();
        copy.rows(range, |f, t, n| all.extend((0..n).map(|i| (f + i, t + i))));
        all
    }

    #[test]
    fn whole_buffers_are_one_row() {
        let whole = [part(0, 3), part(0, 4)];
        let copy = BoxCopy::new(&whole, (&[3, 4], &whole), (&[3, 4], &whole));
        assert_eq!((copy.row, copy.loops.len()), (12, 0));
    }

    #[test]
    fn a_box_inside_visits_each_element_once_in_order() {
        // Columns 2..4 of a 3×4 buffer (global columns 4..8) into a packed one.
        let from = [part(0, 3), part(4, 4)];
        let region = [part(0, 3), part(6, 2)];
        let copy = BoxCopy::new(&region, (&[3, 4], &from), (&[3, 2], &region));
        let want = [(2, 0), (3, 1), (6, 2), (7, 3), (10, 4), (11, 5)];
        assert_eq!(elements(&copy, 0..6), want);
        for cut in 0..=6 {
            let mut both = elements(&copy, 0..cut);
            both.extend(elements(&copy, cut..6));
            assert_eq!(both, want, "cut at {cut}");
        }
    }

    #[test]
    fn tails_are_not_part_of_the_box() {
        let copy = BoxCopy::pack(&[2, 3], &[part(4, 1), part(3, 2)]);
        assert_eq!(elements(&copy, 0..copy.elements()), [(0, 0), (1, 1)]);
        let empty = BoxCopy::pack(&[2, 3], &[part(4, 0), part(3, 2)]);
        assert_eq!(empty.elements(), 0);
        assert_eq!(elements(&empty, 0..0), []);
    }
}

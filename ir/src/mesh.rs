//! Device meshes: named axes, ranks as coordinates, and which part of a dimension a rank holds.

use crate::core::{Axis, Dim, Type};
use std::fmt;

/// Named axes, outermost first. Ranks are row-major coordinates: the last axis varies fastest.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mesh {
    /// Axis names and sizes.
    pub axes: Vec<(Axis, usize)>,
}

/// The part of a dimension that one rank holds, in global indices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// First global index.
    pub start: usize,
    /// Number of real entries (the rest of the local buffer is tail).
    pub len: usize,
}

impl Mesh {
    /// A mesh from names and sizes; axes of size 1 are kept.
    pub fn new(axes: &[(&str, usize)]) -> Mesh {
        Mesh { axes: axes.iter().map(|(n, s)| (Axis::new(n), *s)).collect() }
    }

    /// Number of ranks.
    pub fn ranks(&self) -> usize {
        self.axes.iter().map(|(_, s)| s).product()
    }

    /// Size of an axis (1 if the mesh does not have it).
    pub fn size(&self, axis: &Axis) -> usize {
        self.axes.iter().find(|(a, _)| a == axis).map_or(1, |(_, s)| *s)
    }

    /// Number of ranks that a list of axes spans.
    pub fn span(&self, axes: &[Axis]) -> usize {
        axes.iter().map(|a| self.size(a)).product()
    }

    /// Position of an axis.
    pub fn position(&self, axis: &Axis) -> Option<usize> {
        self.axes.iter().position(|(a, _)| a == axis)
    }

    /// Axes in mesh order.
    pub fn sort(&self, axes: &mut [Axis]) {
        axes.sort_by_key(|a| self.position(a));
    }

    /// Coordinates of a rank, one per axis.
    pub fn coords(&self, rank: usize) -> Vec<usize> {
        let mut rest = rank;
        let mut coords = vec![0; self.axes.len()];
        for (c, (_, size)) in coords.iter_mut().zip(&self.axes).rev() {
            *c = rest % size;
            rest /= size;
        }
        coords
    }

    /// Rank at these coordinates.
    pub fn rank(&self, coords: &[usize]) -> usize {
        coords.iter().zip(&self.axes).fold(0, |r, (c, (_, size))| r * size + c)
    }

    /// Coordinate of `coords` on an axis.
    pub fn coord(&self, coords: &[usize], axis: &Axis) -> usize {
        self.position(axis).map_or(0, |i| coords[i])
    }

    /// The ranks that differ from `rank` only on `axes`, ordered by their coordinates on them
    /// (first listed axis slowest).
    pub fn group(&self, rank: usize, axes: &[Axis]) -> Vec<usize> {
        let base = self.coords(rank);
        let mut groups = vec![base];
        for axis in axes {
            let Some(p) = self.position(axis) else { continue };
            groups = groups
                .into_iter()
                .flat_map(|g| {
                    (0..self.axes[p].1).map(move |c| {
                        let mut g = g.clone();
                        g[p] = c;
                        g
                    })
                })
                .collect();
        }
        groups.iter().map(|g| self.rank(g)).collect()
    }

    /// Local size of a dimension: every rank allocates ⌈n/k⌉ per cut, nested.
    pub fn local_size(&self, dim: &Dim) -> usize {
        dim.axes.iter().fold(dim.size, |n, a| n.div_ceil(self.size(a)))
    }

    /// Local sizes of a type, in elements.
    pub fn local_sizes(&self, ty: &Type) -> Vec<usize> {
        ty.dims.iter().map(|d| self.local_size(d)).collect()
    }

    /// Local buffer size in bytes, tails included.
    pub fn local_bytes(&self, ty: &Type) -> usize {
        self.local_sizes(ty).iter().product::<usize>() * ty.dtype.bytes()
    }

    /// The part of `size` entries, split by `axes`, that the rank at `coords` holds.
    pub fn part(&self, size: usize, axes: &[Axis], coords: &[usize]) -> Part {
        let (mut start, mut len, mut padded) = (0, size, size);
        for a in axes {
            let chunk = padded.div_ceil(self.size(a));
            let skip = chunk * self.coord(coords, a);
            start += skip;
            len = len.saturating_sub(skip).min(chunk);
            padded = chunk;
        }
        Part { start: start.min(size), len }
    }

    /// Whether all ranks hold equally many real entries.
    pub fn even(&self, dim: &Dim) -> bool {
        self.local_size(dim) * self.span(&dim.axes) == dim.size
    }
}

impl fmt::Display for Mesh {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[")?;
        for (i, (a, s)) in self.axes.iter().enumerate() {
            write!(f, "{}{a}: {s}", if i > 0 { ", " } else { "" })?;
        }
        f.write_str("]")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nested_ragged_parts_cover_the_dimension_once() {
        for (size, sizes) in [(509, [4, 3]), (7, [4, 4]), (5, [3, 2]), (64, [2, 4]), (1, [2, 2])] {
            let mesh = Mesh::new(&[("a", sizes[0]), ("b", sizes[1])]);
            let axes = [Axis::new("a"), Axis::new("b")];
            let dim = Dim { name: "v".into(), size, axes: axes.to_vec() };
            let mut seen = vec![0; size];
            for r in 0..mesh.ranks() {
                let p = mesh.part(size, &axes, &mesh.coords(r));
                assert!(p.len <= mesh.local_size(&dim));
                (p.start..p.start + p.len).for_each(|i| seen[i] += 1);
            }
            assert!(seen.iter().all(|c| *c == 1), "{size} {sizes:?} {seen:?}");
        }
    }
}

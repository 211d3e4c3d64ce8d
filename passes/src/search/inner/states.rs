//! States of one value, as numbers, and what a change between two of them costs.
//!
//! Per mesh axis a value is whole, split on one dimension, or partial. The order of the axes that split one
//! dimension is that of the mesh: it changes neither sizes nor bytes, so the search does not see it.

use super::{MeshAxis, Rates};
use autoshard_ir::core::Type;

/// Most mesh axes of one search, so that a state fits a few bytes.
pub(super) const MAX_AXES: usize = 4;

/// Where a value is on one mesh axis.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Place {
    /// Every rank has all of it.
    #[default]
    Whole,
    /// Each rank has its part of this dimension.
    Split(u8),
    /// Each rank has a term of the sum.
    Partial,
}

/// A value's place on each axis, outermost axis first; axes that the mesh does not have are whole.
pub type State = [Place; MAX_AXES];

/// The state that is whole everywhere.
pub const WHOLE: State = [Place::Whole; MAX_AXES];

/// Sizes of a value, its changes of state, and their costs so far.
#[derive(Clone, Debug)]
pub(super) struct Shape {
    /// Global sizes.
    sizes: Vec<usize>,
    /// Bytes of an element.
    element: f64,
    /// Seconds by (from, to), NaN where nobody asked yet.
    known: Vec<f64>,
    axes: usize,
}

impl Shape {
    pub(super) fn new(ty: &Type, axes: usize) -> Shape {
        let states = (ty.dims.len() + 2).pow(axes as u32);
        Shape { sizes: ty.sizes(), element: ty.dtype.bytes() as f64, known: vec![f64::NAN; states * states], axes }
    }

    /// Number of dimensions.
    pub(super) fn rank(&self) -> usize {
        self.sizes.len()
    }

    /// Bytes of one rank's buffer, tails included. A partial value has its whole size.
    pub(super) fn bytes(&self, state: &State, mesh: &[MeshAxis]) -> f64 {
        let mut elements = 1.0;
        for (d, size) in self.sizes.iter().enumerate() {
            let ways: usize =
                mesh.iter().zip(state).filter(|(_, p)| **p == Place::Split(d as u8)).map(|(a, _)| a.ways).product();
            elements *= size.div_ceil(ways) as f64;
        }
        elements * self.element
    }

    /// Whether each split leaves every rank at least an entry.
    pub(super) fn fits(&self, state: &State, mesh: &[MeshAxis]) -> bool {
        self.sizes.iter().enumerate().all(|(d, size)| {
            let ways: usize =
                mesh.iter().zip(state).filter(|(_, p)| **p == Place::Split(d as u8)).map(|(a, _)| a.ways).product();
            ways <= *size
        })
    }

    /// Seconds of the change; see [`seconds`].
    pub(super) fn change(&mut self, from: &State, to: &State, mesh: &[MeshAxis], rates: &Rates) -> f64 {
        if from == to {
            return 0.0;
        }
        let states = (self.rank() + 2).pow(self.axes as u32);
        let at = self.code(from) * states + self.code(to);
        if self.known[at].is_nan() {
            self.known[at] = seconds(self, from, to, &[false; MAX_AXES], mesh, rates);
        }
        self.known[at]
    }

    fn code(&self, state: &State) -> usize {
        state[..self.axes].iter().fold(0, |code, p| {
            code * (self.rank() + 2)
                + match p {
                    Place::Whole => 0,
                    Place::Split(d) => 1 + *d as usize,
                    Place::Partial => 1 + self.rank(),
                }
        })
    }
}

/// Seconds of a change of state, planned over all axes at once like [`crate::reshard`]: slices first (free),
/// then reduce-scatters and all-to-alls, then all-reduces, then gathers, so that what shrinks a value comes
/// before what grows it; a change to partial keeps one copy or pads with zeros, and is free.
///
/// Axes come outermost (slowest) first. Gathers start with the slow axes, while the value is small;
/// reductions end with them.
///
/// Between tokens and the slots of experts each row has one place, so on axes with `routed` a rank sends rows to
/// their owners instead of a term of every row: an all-to-all of its part in place of the gather (S → R) and of
/// the reduce-scatter (P → S).
///
/// Bytes on the wire of n ranks, S what one holds before: reduce-scatter and all-to-all (n−1)/n·S, gather
/// (n−1)·S, all-reduce 2(n−1)/n·S.
pub(super) fn seconds(
    shape: &Shape,
    from: &State,
    to: &State,
    routed: &[bool; MAX_AXES],
    mesh: &[MeshAxis],
    rates: &Rates,
) -> f64 {
    use Place::{Partial, Split, Whole};
    let message = |axis: usize, bytes: f64| {
        let link = &rates.links[axis];
        let n = mesh[axis].ways as f64;
        if mesh[axis].ways == 1 {
            return 0.0;
        }
        link.latency + bytes * (1.0 - 1.0 / n) / link.bandwidth
    };
    let (mut now, mut total) = (*from, 0.0);
    // A slice goes behind the outer axes of its dimension: it waits for a reduction that puts one there.
    let waits = |i: usize| (0..i).any(|k| to[k] == to[i] && from[k] == Partial);
    for i in 0..mesh.len() {
        match (from[i], to[i]) {
            (Whole, Split(_)) if !waits(i) => now[i] = to[i],
            (Partial, Split(_)) if routed[i] => now[i] = to[i],
            _ => {}
        }
    }
    for i in (0..mesh.len()).rev() {
        if matches!((from[i], to[i]), (Partial, Split(_))) && !routed[i] {
            total += message(i, shape.bytes(&now, mesh));
            now[i] = to[i];
        }
    }
    // One all-to-all over all axes that need one: what leaves a node does not travel inside it too.
    let mut part = 1.0;
    for i in 0..mesh.len() {
        let exchanged = match (from[i], to[i]) {
            (Split(a), Split(b)) => a != b,
            (Split(_), Whole) | (Partial, Split(_)) => routed[i],
            _ => false,
        };
        if exchanged {
            total += message(i, shape.bytes(&now, mesh) / part);
            part *= mesh[i].ways as f64;
            now[i] = if routed[i] { now[i] } else { to[i] };
        }
    }
    for i in 0..mesh.len() {
        if matches!((from[i], to[i]), (Whole, Split(_))) {
            now[i] = to[i];
        }
    }
    // Hierarchical all-reduce: the slow axes see the part that a fast one has reduced and scattered.
    let mut part = 1.0;
    for i in (0..mesh.len()).rev() {
        if (from[i], to[i]) == (Partial, Whole) {
            total += 2.0 * message(i, shape.bytes(&now, mesh) / part);
            part *= mesh[i].ways as f64;
            now[i] = Whole;
        }
    }
    for i in 0..mesh.len() {
        if matches!((from[i], to[i]), (Split(_), Whole)) && !routed[i] {
            now[i] = Whole;
            total += message(i, shape.bytes(&now, mesh));
        }
    }
    total
}

//! What a profile was made from, for people who ask why: which axis carries each factor of a node, and how the
//! tensor-parallel ranks hold each value.

use super::forward::Forward;
use super::messages::State;
use super::roles::{Shards, Split, Takes};
use super::walk::walked;
use super::{Axis, ProfileError};
use autoshard_cost::stack::Habits;
use autoshard_ir::core::{Def, Factor, FactorKind, ValueId};

/// A factor of a node and what splits it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Carried {
    /// Name of the factor.
    pub factor: String,
    /// Its values on all ranks that share a micro-batch.
    pub size: usize,
    /// What splitting it means.
    pub kind: FactorKind,
    /// Axes that split it, and over how many ranks.
    pub axes: Vec<(Axis, u64)>,
    /// Why none does; `None` where some do.
    pub left: Option<Left>,
}

/// Why no axis splits a factor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Left {
    /// Data ranks take whole sequences, so a micro-batch is not split.
    Batch,
    /// Queries of a rank see the keys of all positions, which context parallelism brings to them.
    Keys,
    /// No axis has the role to take it.
    NoRole,
    /// The operation needs all of it on each rank.
    Whole,
    /// tp (etp in experts) takes these in this node.
    Taken(&'static str),
    /// The axis that could take it has one rank, or leaves it to other nodes.
    NoAxis,
}

/// How the tensor-parallel ranks hold a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holding {
    /// Everyone has all of what its other axes leave.
    Whole,
    /// Along the dimensions that tp splits.
    Split,
    /// Everyone has a term of a sum.
    Partial,
}

/// A function under a layout.
#[derive(Clone, Debug, PartialEq)]
pub struct Explained {
    /// By node: its factors; empty for nodes that only prepare weights or constants.
    pub nodes: Vec<Vec<Carried>>,
    /// By value: how tp ranks hold it.
    pub holding: Vec<Holding>,
    /// By value and dimension: axes that split it, outermost first.
    pub dims: Vec<Vec<Vec<(Axis, u64)>>>,
}

/// Tells what the walk of [`super::profile`] decides about a function's nodes and values.
///
/// # Errors
/// A node whose rule does not hold.
pub fn explain(forward: &Forward, shards: &Shards, habits: &Habits) -> Result<Explained, ProfileError> {
    let f = &forward.f;
    let walk = walked(forward, shards, habits)?;
    let node = |i: usize| {
        let split = walk.split(i);
        let factors = walk.rules[i].iter().flat_map(|r| &r.factors);
        let one = |x: &Factor| Carried {
            factor: x.name.clone(),
            size: x.size,
            kind: x.kind,
            axes: axes(&split, &x.name),
            left: axes(&split, &x.name).is_empty().then(|| left(x, &split)),
        };
        if walk.idle[i] {
            Vec::new()
        } else {
            factors.map(one).collect()
        }
    };
    let holding = |state: &State| match state {
        State::Whole => Holding::Whole,
        State::Split(_) => Holding::Split,
        State::Partial => Holding::Partial,
    };
    let dims = |at: usize| {
        let v = ValueId(at as u32);
        let split = match f.value(v).def {
            Def::Result(n, _) if !walk.idle[n.0 as usize] => Some(walk.split(n.0 as usize)),
            Def::Result(..) | Def::Param(_) => walk.user(v).filter(|_| walk.weight[at]).map(|i| walk.split(i)),
        };
        let of = |dim: &str| match (&split, walk.state[at]) {
            // Experts' values and weights are split as their node splits them.
            (Some(split), _) if split.expert || walk.weight[at] => axes(split, dim),
            (_, State::Split(takes)) => held(shards, dim, takes.splits(dim), split.as_ref()),
            (_, State::Whole | State::Partial) => held(shards, dim, false, None),
        };
        f.ty(v).dims.iter().map(|d| of(&d.name)).collect()
    };
    Ok(Explained {
        nodes: (0..f.nodes.len()).map(node).collect(),
        holding: walk.state.iter().map(holding).collect(),
        dims: (0..f.values.len()).map(dims).collect(),
    })
}

/// Axes of a dimension of an activation: cp takes positions, tp what its state says.
fn held(shards: &Shards, dim: &str, split: bool, by: Option<&Split>) -> Vec<(Axis, u64)> {
    let mut out = Vec::new();
    if dim == "s" && shards.cp > 1 {
        out.push((Axis::Cp, shards.cp));
    }
    let heads = by.map(|s| axes(s, dim)).filter(|_| dim == "g" || dim == "r");
    match heads {
        Some(axes) if split => out.extend(axes),
        _ if split && shards.tp > 1 => out.push((Axis::Tp, shards.tp)),
        _ => {}
    }
    out
}

/// Axes that split a factor of a node.
fn axes(split: &Split, factor: &str) -> Vec<(Axis, u64)> {
    let (s, ways) = (split.shards, split.ways(factor));
    let mut out = match (split.expert, factor) {
        (true, "E") => vec![(Axis::Ep, s.ep)],
        (true, "f") => vec![(Axis::Etp, ways as u64)],
        (true, _) => Vec::new(),
        (false, "s") => vec![(Axis::Cp, s.cp), (Axis::Tp, (ways / s.cp as f64) as u64)],
        (false, _) => vec![(Axis::Tp, ways as u64)],
    };
    out.retain(|(_, n)| *n > 1);
    out
}

/// Why a factor is left whole.
fn left(factor: &Factor, split: &Split) -> Left {
    let taken = match split.takes {
        Takes::None => None,
        Takes::Heads => Some("heads (g, then r)"),
        Takes::Width => Some("the MLP width (f)"),
        Takes::Vocabulary => Some("the vocabulary (v)"),
        Takes::Positions => Some("positions (s)"),
    };
    let role = ["s", "g", "r", "f", "v", "E", "c"].contains(&factor.name.as_str());
    match (factor.kind, role, taken) {
        _ if factor.name == "b" => Left::Batch,
        _ if factor.name == "t" && split.shards.cp > 1 => Left::Keys,
        (FactorKind::Whole, ..) => Left::Whole,
        (_, false, _) => Left::NoRole,
        (_, true, Some(taken)) => Left::Taken(taken),
        (_, true, None) => Left::NoAxis,
    }
}

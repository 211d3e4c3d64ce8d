//! The reshard planner: the steps from one state of a value to another, planned over all axes at
//! once.
//!
//! Order of steps: slices (free), reduce-scatter, all-to-all, all-reduce, all-gather, and last the
//! free change from replicated to partial: what shrinks a value comes before what grows it. Axes that
//! take the same step share one collective. A step never gathers what it then slices.

use autoshard_ir::core::{Axis, Partial, Type};
use autoshard_ir::program::CollectiveKind;
use autoshard_ir::Mesh;

/// One step of a plan.
#[derive(Clone, Debug, PartialEq)]
pub struct Move {
    /// Kind.
    pub kind: CollectiveKind,
    /// Axes that it spans, in mesh order.
    pub axes: Vec<Axis>,
    /// State after it.
    pub to: Type,
}

/// The steps from `from` to `to`, types of one shape. Empty when the states are equal.
pub fn plan(from: &Type, to: &Type, mesh: &Mesh) -> Vec<Move> {
    let mut moves = Vec::new();
    let mut cur = from.clone();
    split_to_partial(&mut cur, to, mesh, &mut moves);
    while push(&mut cur, to, mesh, &mut moves, false) {}
    if blocked(&cur, to) {
        while push(&mut cur, to, mesh, &mut moves, true) {}
        all_to_all(&mut cur, to, mesh, &mut moves);
    }
    all_reduce(&mut cur, to, mesh, &mut moves);
    all_gather(&mut cur, to, mesh, &mut moves);
    to_partial(&mut cur, to, mesh, &mut moves);
    debug_assert!(cur.same_state(to), "{from} -> {to} ended at {cur}");
    moves
}

fn record(kind: CollectiveKind, mut axes: Vec<Axis>, cur: &Type, mesh: &Mesh, moves: &mut Vec<Move>) {
    mesh.sort(&mut axes);
    moves.push(Move { kind, axes, to: cur.clone() });
}

fn is_partial(ty: &Type, a: &Axis) -> bool {
    ty.partial_axes().contains(a)
}

fn splits(ty: &Type, a: &Axis) -> bool {
    ty.dims.iter().any(|d| d.axes.contains(a))
}

fn drop_partial(ty: &mut Type, axes: &[Axis]) {
    if let Some(p) = &mut ty.partial {
        p.axes.retain(|a| !axes.contains(a));
        if p.axes.is_empty() {
            ty.partial = None;
        }
    }
}

/// Split to partial: own part among zeros, no communication.
fn split_to_partial(cur: &mut Type, to: &Type, mesh: &Mesh, moves: &mut Vec<Move>) {
    let axes: Vec<Axis> = to.partial_axes().iter().filter(|a| splits(cur, a)).cloned().collect();
    if axes.is_empty() {
        return;
    }
    for d in &mut cur.dims {
        d.axes.retain(|a| !axes.contains(a));
    }
    add_partial(cur, to, &axes, mesh);
    record(CollectiveKind::Local, axes, cur, mesh, moves);
}

fn to_partial(cur: &mut Type, to: &Type, mesh: &Mesh, moves: &mut Vec<Move>) {
    let axes: Vec<Axis> = to.partial_axes().iter().filter(|a| !is_partial(cur, a)).cloned().collect();
    if axes.is_empty() {
        return;
    }
    add_partial(cur, to, &axes, mesh);
    record(CollectiveKind::Local, axes, cur, mesh, moves);
}

fn add_partial(cur: &mut Type, to: &Type, axes: &[Axis], mesh: &Mesh) {
    let Some(target) = &to.partial else { return };
    let mut all = cur.partial_axes().to_vec();
    all.extend(axes.iter().cloned());
    mesh.sort(&mut all);
    cur.partial = Some(Partial { monoid: target.monoid, axes: all });
}

/// Pushes axes that are replicated (a slice) or partial (a reduce-scatter) onto the dimensions that
/// want them. Without `force` only where that leaves the dimension a prefix of its target; with
/// `force` also behind axes that are out of order, which an all-to-all then sorts.
fn push(cur: &mut Type, to: &Type, mesh: &Mesh, moves: &mut Vec<Move>, force: bool) -> bool {
    for kind in [CollectiveKind::Local, CollectiveKind::ReduceScatter] {
        let mut axes = Vec::new();
        for d in 0..cur.dims.len() {
            while let Some(a) = next_axis(cur, to, d, kind, force) {
                cur.dims[d].axes.push(a.clone());
                axes.push(a);
            }
        }
        if axes.is_empty() {
            continue;
        }
        if kind == CollectiveKind::ReduceScatter {
            drop_partial(cur, &axes);
        }
        record(kind, axes, cur, mesh, moves);
        return true;
    }
    false
}

fn next_axis(cur: &Type, to: &Type, d: usize, kind: CollectiveKind, force: bool) -> Option<Axis> {
    let (have, want) = (&cur.dims[d].axes, &to.dims[d].axes);
    let fits = |a: &&Axis| {
        let free = !splits(cur, a);
        match kind {
            CollectiveKind::ReduceScatter => free && is_partial(cur, a) && !is_partial(to, a),
            _ => free && !is_partial(cur, a),
        }
    };
    if force {
        return want.iter().filter(|a| !have.contains(a)).find(fits).cloned();
    }
    if !want.starts_with(have) {
        return None;
    }
    want.get(have.len()).filter(fits).cloned()
}

/// Whether some dimension needs axes that it does not have, or has them in another order.
fn blocked(cur: &Type, to: &Type) -> bool {
    cur.dims.iter().zip(&to.dims).any(|(c, t)| !c.axes.starts_with(&t.axes))
}

fn all_to_all(cur: &mut Type, to: &Type, mesh: &Mesh, moves: &mut Vec<Move>) {
    let before = cur.clone();
    let disturbed: Vec<usize> =
        (0..cur.dims.len()).filter(|d| !cur.dims[*d].axes.starts_with(&to.dims[*d].axes)).collect();
    if disturbed.is_empty() {
        return;
    }
    let arriving: Vec<Axis> = disturbed.iter().flat_map(|d| to.dims[*d].axes.clone()).collect();
    for d in 0..cur.dims.len() {
        if disturbed.contains(&d) || cur.dims[d].axes.iter().any(|a| arriving.contains(a)) {
            cur.dims[d].axes = to.dims[d].axes.clone();
        }
    }
    let mut axes: Vec<Axis> = Vec::new();
    for (b, c) in before.dims.iter().zip(&cur.dims) {
        let keep = b.axes.iter().zip(&c.axes).take_while(|(x, y)| x == y).count();
        for a in b.axes[keep..].iter().chain(&c.axes[keep..]) {
            if !axes.contains(a) {
                axes.push(a.clone());
            }
        }
    }
    record(CollectiveKind::AllToAll, axes, cur, mesh, moves);
}

fn all_reduce(cur: &mut Type, to: &Type, mesh: &Mesh, moves: &mut Vec<Move>) {
    let axes: Vec<Axis> = cur.partial_axes().iter().filter(|a| !is_partial(to, a)).cloned().collect();
    if !axes.is_empty() {
        drop_partial(cur, &axes);
        record(CollectiveKind::AllReduce, axes, cur, mesh, moves);
    }
}

fn all_gather(cur: &mut Type, to: &Type, mesh: &Mesh, moves: &mut Vec<Move>) {
    let mut axes = Vec::new();
    for (c, t) in cur.dims.iter_mut().zip(&to.dims) {
        axes.extend(c.axes.drain(t.axes.len().min(c.axes.len())..));
    }
    if !axes.is_empty() {
        record(CollectiveKind::AllGather, axes, cur, mesh, moves);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use autoshard_ir::core::{DType, Dim};
    use autoshard_ir::Monoid;

    fn ty(dims: &[&[&str]], partial: &[&str]) -> Type {
        let axes = |l: &[&str]| l.iter().map(|a| Axis::new(a)).collect::<Vec<_>>();
        Type {
            dtype: DType::F32,
            dims: dims.iter().enumerate().map(|(i, d)| Dim { name: format!("d{i}"), size: 8, axes: axes(d) }).collect(),
            partial: (!partial.is_empty()).then(|| Partial { monoid: Monoid::Sum, axes: axes(partial) }),
        }
    }

    fn kinds(from: &Type, to: &Type) -> Vec<String> {
        let mesh = Mesh::new(&[("a", 2), ("b", 2), ("c", 2)]);
        plan(from, to, &mesh)
            .iter()
            .map(|m| format!("{} {}", m.kind.name(), m.axes.iter().map(Axis::name).collect::<Vec<_>>().join("·")))
            .collect()
    }

    #[test]
    fn the_cheap_step_is_taken() {
        assert_eq!(kinds(&ty(&[&[], &[]], &["a"]), &ty(&[&["a"], &[]], &[])), ["reduce_scatter a"]);
        assert_eq!(kinds(&ty(&[&["a"], &[]], &[]), &ty(&[&[], &["a"]], &[])), ["all_to_all a"]);
        assert_eq!(kinds(&ty(&[&["a", "b"], &[]], &[]), &ty(&[&[], &[]], &[])), ["all_gather a·b"]);
        assert_eq!(
            kinds(&ty(&[&[], &[]], &["a", "b"]), &ty(&[&["a"], &[]], &[])),
            ["reduce_scatter a", "all_reduce b"]
        );
        assert_eq!(kinds(&ty(&[&["b", "a"], &[]], &[]), &ty(&[&["a", "b"], &[]], &[])), ["all_to_all a·b"]);
        assert_eq!(kinds(&ty(&[&[], &[]], &[]), &ty(&[&["a"], &[]], &["b"])), ["shard a", "shard b"]);
        assert_eq!(
            kinds(&ty(&[&["b"], &[]], &["a"]), &ty(&[&["a", "b"], &[]], &[])),
            ["reduce_scatter a", "all_to_all a·b"]
        );
    }

    #[test]
    fn every_transition_of_two_dims_and_three_axes_arrives() {
        let places = |i: usize| -> Vec<Type> {
            // Every placement of three axes on two dimensions (all orders), replicated, or partial.
            let names = ["a", "b", "c"];
            let mut out = Vec::new();
            for code in 0..4usize.pow(3) {
                let place: Vec<usize> = (0..3).map(|k| code / 4usize.pow(k) % 4).collect();
                for order in [[0, 1, 2], [2, 1, 0], [1, 0, 2], [1, 2, 0], [0, 2, 1], [2, 0, 1]] {
                    let pick =
                        |w: usize| order.iter().filter(|k| place[**k] == w).map(|k| names[*k]).collect::<Vec<_>>();
                    let mut partial = pick(3);
                    partial.sort_unstable();
                    let t = ty(&[&pick(1), &pick(2)], &partial);
                    if !out.contains(&t) {
                        out.push(t);
                    }
                }
            }
            let _ = i;
            out
        };
        let mesh = Mesh::new(&[("a", 2), ("b", 2), ("c", 2)]);
        let all = places(0);
        for from in &all {
            for to in &all {
                let moves = plan(from, to, &mesh);
                let end = moves.last().map_or(from, |m| &m.to);
                assert!(end.same_state(to), "{from} -> {to}: {moves:?}");
            }
        }
    }
}

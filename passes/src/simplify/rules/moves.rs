//! Rules of copies: transposes and broadcasts go towards the results, vanish, or become part of a sum's spec.

use super::pointwise::filled;
use crate::simplify::term::{
    apply, build, fill, head, heads, reapply, ty, Contraction, Form, Graph, Head, Source, Term,
};
use autoshard_ir::core::{Attrs, Type};
use autoshard_ir::ops::spec::{self, Spec};
use egg::Id;

/// The copies that a class is: `(operand, dimensions)`, see [`Form::Move`].
pub(super) fn copies(graph: &Graph, class: Id) -> Vec<(Id, Vec<Option<usize>>)> {
    let terms = heads(graph, class);
    let found = terms.iter().filter_map(|(t, h)| match &h.form {
        Form::Move(dims) => Some((t.inputs[0], dims.clone())),
        _ => None,
    });
    found.collect()
}

/// The copy of `x` with these dimensions, called like `like`.
pub(super) fn copy(graph: &mut Graph, x: Id, dims: &[Option<usize>], like: &Type) -> Option<Id> {
    let from = ty(graph, x);
    let still = dims.len() == from.dims.len() && dims.iter().enumerate().all(|(i, d)| *d == Some(i));
    if still && *from == *like {
        return Some(x);
    }
    let names: Vec<String> = like.dims.iter().map(|d| d.name.clone()).collect();
    let operand = (0..from.dims.len())
        .map(|k| Some(names[dims.iter().position(|d| *d == Some(k))?].clone()))
        .collect::<Option<Vec<String>>>()?;
    let attrs = Attrs::new().text("spec", spec::print(&[operand], &names));
    let new: Vec<usize> = dims.iter().zip(like.sizes()).filter(|(d, _)| d.is_none()).map(|(_, s)| s).collect();
    if new.is_empty() {
        return build(graph, "transpose", attrs, &[x], Some(like));
    }
    build(graph, "broadcast", attrs.ints("sizes", new), &[x], Some(like))
}

/// The operation of a sum with another spec.
pub(super) fn respec(graph: &mut Graph, head: &Head, spec: &Spec, inputs: &[Id], like: Option<&Type>) -> Option<Id> {
    let Source::Node(node) = &head.source else { return None };
    let attrs = Attrs::new().text("spec", spec::print(&spec.operands, &spec.result));
    apply(graph, node.op, attrs, inputs, like)
}

pub(super) fn twice(graph: &mut Graph, class: Id, term: &Term) -> Vec<Id> {
    let Form::Move(outer) = &head(graph, term).form else { return Vec::new() };
    let like = ty(graph, class);
    let mut equal = Vec::new();
    for (x, inner) in copies(graph, term.inputs[0]) {
        let dims: Vec<Option<usize>> = outer.iter().map(|d| d.and_then(|d| inner[d])).collect();
        equal.extend(copy(graph, x, &dims, &like));
    }
    equal
}

/// A scalar function of copies that are alike is the copy of the function, on fewer numbers.
pub(super) fn map(graph: &mut Graph, class: Id, term: &Term) -> Vec<Id> {
    let outer = head(graph, term);
    if !matches!(outer.form, Form::Pointwise(_)) {
        return Vec::new();
    }
    let Some(first) = term.inputs.iter().find(|i| fill(graph, **i).is_none()) else { return Vec::new() };
    let like = ty(graph, class);
    let mut equal = Vec::new();
    for (x, dims) in copies(graph, *first) {
        let operands = operands_before(graph, term, &ty(graph, x), &dims);
        let value = operands.and_then(|o| reapply(graph, &outer, &o, None));
        equal.extend(value.and_then(|v| copy(graph, v, &dims, &like)));
    }
    equal
}

/// The operands of a term before the copy with these dimensions: copied values and constants.
fn operands_before(graph: &mut Graph, term: &Term, shape: &Type, dims: &[Option<usize>]) -> Option<Vec<Id>> {
    let mut operands = Vec::new();
    for input in &term.inputs {
        operands.push(match fill(graph, *input) {
            Some(value) => {
                let dtype = ty(graph, *input).dtype;
                filled(graph, value, &Type { dtype, ..shape.clone() })?
            }
            None => {
                let found = copies(graph, *input)
                    .into_iter()
                    .find(|(y, d)| d == dims && ty(graph, *y).sizes() == shape.sizes());
                found?.0
            }
        });
    }
    Some(operands)
}

pub(super) fn into_sum(graph: &mut Graph, class: Id, term: &Term) -> Vec<Id> {
    into(graph, class, term, true)
}

pub(super) fn into_sum_reordered(graph: &mut Graph, class: Id, term: &Term) -> Vec<Id> {
    into(graph, class, term, false)
}

fn into(graph: &mut Graph, class: Id, term: &Term, in_order: bool) -> Vec<Id> {
    let outer = head(graph, term);
    let Form::Contraction(c) = &outer.form else { return Vec::new() };
    let like = ty(graph, class);
    let mut equal = Vec::new();
    for i in 0..term.inputs.len() {
        for (x, dims) in copies(graph, term.inputs[i]) {
            let Some(spec) = before(c, i, &dims, ty(graph, x).dims.len()) else { continue };
            if (order(&spec) == order(&c.spec)) != in_order {
                continue;
            }
            let mut inputs = term.inputs.clone();
            inputs[i] = x;
            equal.extend(respec(graph, &outer, &spec, &inputs, Some(&like)));
        }
    }
    equal
}

/// The spec whose operand `i` is the one that was copied. A factor along which it was repeated must be known
/// from another operand.
fn before(c: &Contraction, i: usize, dims: &[Option<usize>], rank: usize) -> Option<Spec> {
    let mut spec = c.spec.clone();
    let names = &c.spec.operands[i];
    spec.operands[i] = (0..rank)
        .map(|k| Some(names[dims.iter().position(|d| *d == Some(k))?].clone()))
        .collect::<Option<Vec<String>>>()?;
    let known = names.iter().all(|n| spec.operands.iter().flatten().any(|m| m == n));
    known.then_some(spec)
}

/// The summed factors in the order of the sum.
fn order(spec: &Spec) -> Vec<&String> {
    let mut order: Vec<&String> = Vec::new();
    for n in spec.operands.iter().flatten() {
        if !spec.result.contains(n) && !order.contains(&n) {
            order.push(n);
        }
    }
    order
}

pub(super) fn of_sum(graph: &mut Graph, class: Id, term: &Term) -> Vec<Id> {
    let Form::Move(dims) = &head(graph, term).form else { return Vec::new() };
    let Some(dims) = dims.iter().copied().collect::<Option<Vec<usize>>>() else { return Vec::new() };
    let like = ty(graph, class);
    let mut equal = Vec::new();
    for (inner, h) in heads(graph, term.inputs[0]) {
        let Form::Contraction(c) = &h.form else { continue };
        let result = dims.iter().map(|d| c.spec.result[*d].clone()).collect();
        let spec = Spec { result, ..c.spec.clone() };
        equal.extend(respec(graph, &h, &spec, &inner.inputs, Some(&like)));
    }
    equal
}

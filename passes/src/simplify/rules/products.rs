//! Rules of sums of products: scales pass through them, and products associate.

use super::moves::{copies, copy, respec};
use super::pointwise::{affine, multiples, scalar};
use crate::simplify::term::{build, head, heads, reapply, ty, Contraction, Form, Graph, Term};
use autoshard_ir::core::{Attrs, Scalar};
use autoshard_ir::ops::spec::{self, Spec};
use egg::Id;

pub(super) fn scale_out(graph: &mut Graph, class: Id, term: &Term) -> Vec<Id> {
    let outer = head(graph, term);
    let Form::Contraction(c) = &outer.form else { return Vec::new() };
    if !c.is_sum() {
        return Vec::new();
    }
    let like = ty(graph, class);
    let mut equal = Vec::new();
    for i in 0..term.inputs.len() {
        for (x, k) in multiples(graph, term.inputs[i]) {
            let mut inputs = term.inputs.clone();
            inputs[i] = x;
            let sum = reapply(graph, &outer, &inputs, Some(&like));
            equal.extend(sum.and_then(|v| affine(graph, v, k, 0.0, &like)));
        }
    }
    equal
}

pub(super) fn scale_in(graph: &mut Graph, class: Id, term: &Term) -> Vec<Id> {
    let Some(Scalar::Affine { mul, add }) = scalar(graph, term) else { return Vec::new() };
    if add.get() != 0.0 {
        return Vec::new();
    }
    let like = ty(graph, class);
    let mut equal = Vec::new();
    for (inner, h) in heads(graph, term.inputs[0]) {
        let Form::Contraction(c) = &h.form else { continue };
        for i in (0..inner.inputs.len()).filter(|_| c.is_sum()) {
            let mut inputs = inner.inputs.clone();
            let operand = ty(graph, inputs[i]);
            let Some(scaled) = affine(graph, inputs[i], mul.get(), 0.0, &operand) else { continue };
            inputs[i] = scaled;
            equal.extend(reapply(graph, &h, &inputs, Some(&like)));
        }
    }
    equal
}

/// A product of two of which one is a product of two: the three in the two other orders.
pub(super) fn associate(graph: &mut Graph, class: Id, term: &Term) -> Vec<Id> {
    let outer = head(graph, term);
    let Some(c) = product_of_two(&outer.form) else { return Vec::new() };
    let like = ty(graph, class);
    let mut equal = Vec::new();
    for i in 0..2 {
        for (inner, h) in heads(graph, term.inputs[i]) {
            let Some(d) = product_of_two(&h.form) else { continue };
            let names = outside_names(&d.spec, &c.spec, i);
            for p in 0..2 {
                let (first, second) = other_order(&names[p], &names[1 - p], &c.spec.operands[1 - i], &c.spec.result);
                let part = respec(graph, &outer, &first, &[inner.inputs[1 - p], term.inputs[1 - i]], None);
                let whole = part.and_then(|v| respec(graph, &outer, &second, &[inner.inputs[p], v], Some(&like)));
                equal.extend(whole);
            }
        }
    }
    equal
}

fn product_of_two(form: &Form) -> Option<&Contraction> {
    match form {
        Form::Contraction(c) if c.product && c.is_sum() && c.spec.operands.len() == 2 => Some(c),
        _ => None,
    }
}

/// The factors of the operands of the inner product, which is operand `i` of the outer one, by the outer one's
/// names. Those that the inner product sums get names that the outer one does not use.
fn outside_names(inner: &Spec, outer: &Spec, i: usize) -> Vec<Vec<String>> {
    let mut used: Vec<String> = outer.operands.iter().flatten().cloned().collect();
    let mut names: Vec<(&String, String)> = inner.result.iter().zip(outer.operands[i].iter().cloned()).collect();
    for n in inner.operands.iter().flatten() {
        if names.iter().any(|(m, _)| *m == n) {
            continue;
        }
        let mut fresh = n.clone();
        while used.contains(&fresh) {
            fresh.push('\'');
        }
        used.push(fresh.clone());
        names.push((n, fresh));
    }
    let outside = |n: &String| names.iter().find(|(m, _)| *m == n).map_or_else(|| n.clone(), |(_, name)| name.clone());
    inner.operands.iter().map(|o| o.iter().map(outside).collect()).collect()
}

/// `x·(y·z)`: first y and z, over the factors that neither x nor the result needs, then x and that.
fn other_order(x: &[String], y: &[String], z: &[String], result: &[String]) -> (Spec, Spec) {
    let mut middle: Vec<String> = Vec::new();
    for n in y.iter().chain(z) {
        if (x.contains(n) || result.contains(n)) && !middle.contains(n) {
            middle.push(n.clone());
        }
    }
    let first = Spec { operands: vec![y.to_vec(), z.to_vec()], result: middle.clone() };
    (first, Spec { operands: vec![x.to_vec(), middle], result: result.to_vec() })
}

/// Two products of one kind that share an operand.
pub(super) fn factor_out(graph: &mut Graph, class: Id, term: &Term) -> Vec<Id> {
    let (Some(Scalar::Add | Scalar::Sub), [l, r]) = (scalar(graph, term), term.inputs.as_slice()) else {
        return Vec::new();
    };
    let (addition, like) = (head(graph, term), ty(graph, class));
    let mut equal = Vec::new();
    for (a, h) in heads(graph, *l) {
        let Some(c) = product_of_two(&h.form) else { continue };
        for (b, g) in heads(graph, *r) {
            let alike = product_of_two(&g.form).is_some_and(|d| numbered(&d.spec) == numbered(&c.spec));
            for i in (0..2).filter(|i| alike && a.inputs[*i] == b.inputs[*i]) {
                let operand = ty(graph, a.inputs[1 - i]);
                let both = [a.inputs[1 - i], b.inputs[1 - i]];
                let Some(added) = reapply(graph, &addition, &both, Some(&operand)) else { continue };
                let mut inputs = a.inputs.clone();
                inputs[1 - i] = added;
                equal.extend(reapply(graph, &h, &inputs, Some(&like)));
            }
        }
    }
    equal
}

/// A spec with its factors numbered by first appearance.
fn numbered(spec: &Spec) -> Vec<Vec<usize>> {
    let mut seen: Vec<&String> = Vec::new();
    let mut number = |n| {
        seen.iter().position(|m| *m == n).unwrap_or_else(|| {
            seen.push(n);
            seen.len() - 1
        })
    };
    spec.operands.iter().chain([&spec.result]).map(|names| names.iter().map(&mut number).collect()).collect()
}

/// The factors of a sum of one operand.
fn lone_sum(form: &Form) -> Option<&Spec> {
    match form {
        Form::Contraction(c) if c.is_sum() && c.spec.operands.len() == 1 => Some(&c.spec),
        _ => None,
    }
}

pub(super) fn sum_of_sum(graph: &mut Graph, class: Id, term: &Term) -> Vec<Id> {
    let outer = head(graph, term);
    let Some(spec) = lone_sum(&outer.form) else { return Vec::new() };
    let like = ty(graph, class);
    let mut equal = Vec::new();
    for (inner, h) in heads(graph, term.inputs[0]) {
        let Form::Contraction(c) = &h.form else { continue };
        if !c.is_sum() {
            continue;
        }
        let inside = |n: &String| spec.operands[0].iter().position(|m| m == n).map(|k| c.spec.result[k].clone());
        let Some(result) = spec.result.iter().map(inside).collect::<Option<Vec<String>>>() else { continue };
        equal.extend(respec(graph, &h, &Spec { result, ..c.spec.clone() }, &inner.inputs, Some(&like)));
    }
    equal
}

pub(super) fn sum_first(graph: &mut Graph, class: Id, term: &Term) -> Vec<Id> {
    let outer = head(graph, term);
    let Some(c) = product_of_two(&outer.form) else { return Vec::new() };
    let like = ty(graph, class);
    let mut equal = Vec::new();
    for i in 0..2 {
        let needed = |n: &&String| c.spec.result.contains(n) || c.spec.operands[1 - i].contains(n);
        let kept: Vec<String> = c.spec.operands[i].iter().filter(needed).cloned().collect();
        if kept.len() == c.spec.operands[i].len() {
            continue;
        }
        let attrs = Attrs::new().text("spec", spec::print(&c.spec.operands[i..=i], &kept));
        let Some(sum) = build(graph, "reduce_sum", attrs, &[term.inputs[i]], None) else { continue };
        let (mut spec, mut inputs) = (c.spec.clone(), term.inputs.clone());
        (spec.operands[i], inputs[i]) = (kept, sum);
        equal.extend(respec(graph, &outer, &spec, &inputs, Some(&like)));
    }
    equal
}

pub(super) fn sum_of_move(graph: &mut Graph, class: Id, term: &Term) -> Vec<Id> {
    let outer = head(graph, term);
    let Some(spec) = lone_sum(&outer.form) else { return Vec::new() };
    let like = ty(graph, class);
    let sizes = ty(graph, term.inputs[0]).sizes();
    let names = &spec.operands[0];
    let mut equal = Vec::new();
    for (x, dims) in copies(graph, term.inputs[0]) {
        let repeated: Vec<usize> = (0..dims.len()).filter(|j| dims[*j].is_none()).collect();
        if repeated.is_empty() || repeated.iter().any(|j| spec.result.contains(&names[*j])) {
            continue;
        }
        let times: f64 = repeated.iter().map(|j| sizes[*j] as f64).product();
        let operand: Vec<String> = (0..ty(graph, x).dims.len())
            .filter_map(|k| dims.iter().position(|d| *d == Some(k)))
            .map(|j| names[j].clone())
            .collect();
        let sum = if operand.len() == spec.result.len() {
            let from: Vec<Option<usize>> = spec.result.iter().map(|n| operand.iter().position(|m| m == n)).collect();
            copy(graph, x, &from, &like)
        } else {
            respec(graph, &outer, &Spec { operands: vec![operand], result: spec.result.clone() }, &[x], Some(&like))
        };
        equal.extend(sum.and_then(|v| affine(graph, v, times, 0.0, &like)));
    }
    equal
}

//! Rules of scalar functions: constants, casts and scales.

use crate::simplify::term::{build, fill, head, heads, reapply, ty, Form, Graph, Term};
use autoshard_ir::core::{Attrs, Bits, Scalar, Type};
use autoshard_ir::DType;
use egg::Id;

/// The scalar function of a term.
pub(super) fn scalar(graph: &Graph, term: &Term) -> Option<Scalar> {
    match head(graph, term).form {
        Form::Pointwise(s) => Some(s),
        _ => None,
    }
}

/// `x·mul + add`, called like `like`.
pub(super) fn affine(graph: &mut Graph, x: Id, mul: f64, add: f64, like: &Type) -> Option<Id> {
    if !mul.is_finite() || !add.is_finite() {
        return None;
    }
    build(graph, "affine", Attrs::new().float("mul", mul).float("add", add), &[x], Some(like))
}

/// Everything that a class is a multiple of: `(x, c)` with the class being c·x.
pub(super) fn multiples(graph: &Graph, class: Id) -> Vec<(Id, f64)> {
    let terms = heads(graph, class);
    let found = terms.iter().filter_map(|(t, h)| match h.form {
        Form::Pointwise(Scalar::Affine { mul, add }) if add.get() == 0.0 => Some((t.inputs[0], mul.get())),
        _ => None,
    });
    found.collect()
}

/// A tensor of one number: a scalar constant, repeated.
pub(super) fn filled(graph: &mut Graph, value: f64, like: &Type) -> Option<Id> {
    if !value.is_finite() || like.dtype.round(value) != value {
        return None;
    }
    let attrs = Attrs::new().floats("values", vec![value]).text("dtype", like.dtype.name());
    let constant = build(graph, "constant", attrs, &[], None)?;
    if like.dims.is_empty() {
        return Some(constant);
    }
    let names: Vec<&str> = like.dims.iter().map(|d| d.name.as_str()).collect();
    let attrs = Attrs::new().text("spec", format!("-> {}", names.join(" "))).ints("sizes", like.sizes());
    build(graph, "broadcast", attrs, &[constant], Some(like))
}

pub(super) fn constant(graph: &mut Graph, class: Id, term: &Term) -> Vec<Id> {
    let form = head(graph, term).form.clone();
    let Some(value) = fill(graph, class).filter(|_| matches!(form, Form::Pointwise(_) | Form::Move(_))) else {
        return Vec::new();
    };
    let like = ty(graph, class);
    filled(graph, value, &like).into_iter().collect()
}

pub(super) fn commute(graph: &mut Graph, class: Id, term: &Term) -> Vec<Id> {
    use Scalar::{Add, Equal, Max, Min, Mul};
    let (Some(Add | Mul | Max | Min | Equal), [x, y]) = (scalar(graph, term), term.inputs.as_slice()) else {
        return Vec::new();
    };
    // The first operand names the factors of the node.
    if ty(graph, *x).dims != ty(graph, *y).dims {
        return Vec::new();
    }
    let (head, like) = (head(graph, term), ty(graph, class));
    reapply(graph, &head, &[*y, *x], Some(&like)).into_iter().collect()
}

pub(super) fn same_operands(graph: &mut Graph, _: Id, term: &Term) -> Vec<Id> {
    match (scalar(graph, term), term.inputs.as_slice()) {
        (Some(Scalar::Max | Scalar::Min), [x, y]) if x == y => vec![*x],
        (Some(Scalar::Select), [_, x, y]) if x == y => vec![*x],
        _ => Vec::new(),
    }
}

pub(super) fn neutral(graph: &mut Graph, _: Id, term: &Term) -> Vec<Id> {
    let is = |id: Id, x: f64| fill(graph, id) == Some(x);
    match (scalar(graph, term), term.inputs.as_slice()) {
        (Some(Scalar::Add), [x, y]) if is(*x, 0.0) => vec![*y],
        (Some(Scalar::Add | Scalar::Sub), [x, y]) if is(*y, 0.0) => vec![*x],
        (Some(Scalar::Mul), [x, y]) if is(*x, 1.0) => vec![*y],
        (Some(Scalar::Mul | Scalar::Div), [x, y]) if is(*y, 1.0) => vec![*x],
        (Some(Scalar::Affine { mul, add }), [x]) if mul.get() == 1.0 && add.get() == 0.0 => vec![*x],
        _ => Vec::new(),
    }
}

pub(super) fn double_negation(graph: &mut Graph, _: Id, term: &Term) -> Vec<Id> {
    if scalar(graph, term) != Some(Scalar::Neg) {
        return Vec::new();
    }
    let inner = heads(graph, term.inputs[0]);
    inner.iter().filter(|(_, h)| h.form == Form::Pointwise(Scalar::Neg)).map(|(t, _)| t.inputs[0]).collect()
}

pub(super) fn negation(graph: &mut Graph, class: Id, term: &Term) -> Vec<Id> {
    if scalar(graph, term) != Some(Scalar::Neg) || !ty(graph, class).dtype.is_float() {
        return Vec::new();
    }
    let like = ty(graph, class);
    affine(graph, term.inputs[0], -1.0, 0.0, &like).into_iter().collect()
}

/// One multiplication or one addition, so the number is rounded once as before.
pub(super) fn constant_operand(graph: &mut Graph, class: Id, term: &Term) -> Vec<Id> {
    let (Some(scalar), [x, y]) = (scalar(graph, term), term.inputs.as_slice()) else { return Vec::new() };
    let like = ty(graph, class);
    if !like.dtype.is_float() {
        return Vec::new();
    }
    let (a, b) = (fill(graph, *x), fill(graph, *y));
    let found = match (scalar, a, b) {
        (Scalar::Add, _, Some(c)) => Some((*x, 1.0, c)),
        (Scalar::Add, Some(c), _) => Some((*y, 1.0, c)),
        (Scalar::Sub, _, Some(c)) => Some((*x, 1.0, -c)),
        (Scalar::Sub, Some(c), _) => Some((*y, -1.0, c)),
        (Scalar::Mul, _, Some(c)) => Some((*x, c, 0.0)),
        (Scalar::Mul, Some(c), _) => Some((*y, c, 0.0)),
        (Scalar::Div, _, Some(c)) if power_of_two(c) => Some((*x, 1.0 / c, 0.0)),
        _ => None,
    };
    found.and_then(|(x, mul, add)| affine(graph, x, mul, add, &like)).into_iter().collect()
}

/// Whether the number and its inverse are powers of two that f32 holds too.
fn power_of_two(x: f64) -> bool {
    let fraction = Bits::new(x) == Bits::new(f64::from_bits(x.to_bits() & !((1 << 52) - 1)));
    fraction && (2f64.powi(-100)..=2f64.powi(100)).contains(&x.abs())
}

/// Whether every value of one type is a value of the other.
fn holds(wide: DType, narrow: DType) -> bool {
    use DType::{Bf16, F32, F64, I32};
    narrow == wide || matches!((narrow, wide), (Bf16, F32 | F64) | (F32 | I32, F64))
}

pub(super) fn cast_cast(graph: &mut Graph, class: Id, term: &Term) -> Vec<Id> {
    if scalar(graph, term) != Some(Scalar::Identity) {
        return Vec::new();
    }
    let (like, middle) = (ty(graph, class), ty(graph, term.inputs[0]));
    let mut equal = Vec::new();
    for (inner, h) in heads(graph, term.inputs[0]) {
        let from = h.form == Form::Pointwise(Scalar::Identity);
        let Some(x) = inner.inputs.first().copied().filter(|_| from) else { continue };
        let dtype = ty(graph, x).dtype;
        if !holds(middle.dtype, dtype) {
            continue;
        }
        equal.extend(match dtype == like.dtype {
            true => Some(x),
            false => build(graph, "cast", Attrs::new().text("dtype", like.dtype.name()), &[x], Some(&like)),
        });
    }
    equal
}

pub(super) fn scale_scale(graph: &mut Graph, class: Id, term: &Term) -> Vec<Id> {
    let Some(Scalar::Affine { mul: c, add: d }) = scalar(graph, term) else { return Vec::new() };
    let like = ty(graph, class);
    let mut equal = Vec::new();
    for (inner, h) in heads(graph, term.inputs[0]) {
        let Form::Pointwise(Scalar::Affine { mul: a, add: b }) = h.form else { continue };
        let (mul, add) = (a.get() * c.get(), b.get() * c.get() + d.get());
        equal.extend(affine(graph, inner.inputs[0], mul, add, &like));
    }
    equal
}

pub(super) fn scale_of_product(graph: &mut Graph, class: Id, term: &Term) -> Vec<Id> {
    let operands: &[usize] = match scalar(graph, term) {
        Some(Scalar::Mul) => &[0, 1],
        Some(Scalar::Div) => &[0],
        _ => return Vec::new(),
    };
    let (outer, like) = (head(graph, term), ty(graph, class));
    let mut equal = Vec::new();
    for i in operands {
        for (x, c) in multiples(graph, term.inputs[*i]) {
            let mut inputs = term.inputs.clone();
            inputs[*i] = x;
            let inner = reapply(graph, &outer, &inputs, Some(&like));
            equal.extend(inner.and_then(|v| affine(graph, v, c, 0.0, &like)));
        }
    }
    equal
}

pub(super) fn scale_of_addition(graph: &mut Graph, class: Id, term: &Term) -> Vec<Id> {
    let (Some(Scalar::Add | Scalar::Sub), [l, r]) = (scalar(graph, term), term.inputs.as_slice()) else {
        return Vec::new();
    };
    let (outer, like) = (head(graph, term), ty(graph, class));
    let mut equal = Vec::new();
    for (x, a) in multiples(graph, *l) {
        for (y, b) in multiples(graph, *r) {
            if a == b {
                let inner = reapply(graph, &outer, &[x, y], Some(&like));
                equal.extend(inner.and_then(|v| affine(graph, v, a, 0.0, &like)));
            }
        }
    }
    equal
}

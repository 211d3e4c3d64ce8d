//! Windows of a dimension: slice, concat, pad. The dimension itself cannot be split.

use super::{arity, Factors};
use crate::core::{
    AttrDef, AttrKind, Attrs, BuildError, Builder, DimMap, FactorKind, Gradient, Linearity, NodeId, OpDef, Rule,
    Scalar, ScalarBody, Semantics, Template, Type, ValueId,
};
use crate::Monoid;

const DIM: AttrDef = AttrDef { name: "dim", kind: AttrKind::Str, required: true };

pub(super) const OPS: &[OpDef] = &[
    OpDef {
        name: "slice",
        doc: "Entries start .. start+size of a dimension.",
        attrs: &[
            DIM,
            AttrDef { name: "start", kind: AttrKind::Int, required: true },
            AttrDef { name: "size", kind: AttrKind::Int, required: true },
        ],
        template: Template::View,
        semantics: Semantics::Primitive(slice),
        gradient: Gradient::Derived(slice_gradient),
    },
    OpDef {
        name: "concat",
        doc: "Operands one after another along a dimension.",
        attrs: &[DIM],
        template: Template::View,
        semantics: Semantics::Primitive(concat),
        gradient: Gradient::Derived(concat_gradient),
    },
    OpDef {
        name: "pad",
        doc: "Adds entries of a value before and after a dimension.",
        attrs: &[
            DIM,
            AttrDef { name: "before", kind: AttrKind::Int, required: true },
            AttrDef { name: "after", kind: AttrKind::Int, required: true },
            AttrDef { name: "value", kind: AttrKind::Float, required: true },
        ],
        template: Template::View,
        semantics: Semantics::Primitive(pad),
        gradient: Gradient::Derived(pad_gradient),
    },
];

/// Position of the attribute's dimension.
fn dim_of(ty: &Type, attrs: &Attrs) -> Result<usize, String> {
    let name = attrs.get_text("dim")?;
    ty.dim(name).ok_or_else(|| format!("{ty} has no dimension {name}"))
}

fn count(attrs: &Attrs, name: &str) -> Result<usize, String> {
    let v = attrs.get_int(name)?;
    usize::try_from(v).map_err(|_| format!("attribute {name} is {v}; it must be at least 0"))
}

/// A rule whose operands are indexed like the result, except for an offset along one dimension.
fn windowed(
    inputs: &[&Type],
    dim: usize,
    size: usize,
    offsets: &[isize],
    body: ScalarBody,
    linear: Linearity,
) -> Result<Rule, String> {
    let mut result = inputs[0].global();
    result.dims[dim].size = size;
    let mut factors = Factors::default();
    let map = factors.map(&result)?;
    let mut list = factors.with_monoid(Monoid::Sum);
    list[dim].kind = FactorKind::Whole;
    let operands = offsets
        .iter()
        .map(|offset| {
            let mut m = map.clone();
            m[dim] = DimMap { factors: vec![dim], offset: *offset };
            m
        })
        .collect();
    Ok(Rule { factors: list, operands, results: vec![map], result_types: vec![result], body: Some(body), linear })
}

fn slice(inputs: &[&Type], attrs: &Attrs) -> Result<Rule, String> {
    arity(inputs, 1)?;
    let dim = dim_of(inputs[0], attrs)?;
    let (start, size) = (count(attrs, "start")?, attrs.get_size("size")?);
    let have = inputs[0].dims[dim].size;
    if start.saturating_add(size) > have {
        return Err(format!(
            "entries {start}..{} of dimension {}, which has {have}",
            start.saturating_add(size),
            inputs[0].dims[dim].name
        ));
    }
    windowed(inputs, dim, size, &[start as isize], ScalarBody::Map(Scalar::Identity), Linearity::Joint)
}

fn concat(inputs: &[&Type], attrs: &Attrs) -> Result<Rule, String> {
    let first = *inputs.first().ok_or("takes at least one operand")?;
    let dim = dim_of(first, attrs)?;
    let (mut size, mut offsets) = (0usize, Vec::new());
    for ty in inputs {
        let same = ty.dims.len() == first.dims.len()
            && ty.dtype == first.dtype
            && ty.dims.iter().zip(&first.dims).enumerate().all(|(i, (a, b))| i == dim || a.size == b.size);
        if !same {
            return Err(format!("operands differ outside the dimension: {first} and {ty}"));
        }
        offsets.push(-(size as isize));
        size += ty.dims[dim].size;
    }
    windowed(inputs, dim, size, &offsets, ScalarBody::Sum(0.0), Linearity::Joint)
}

fn pad(inputs: &[&Type], attrs: &Attrs) -> Result<Rule, String> {
    arity(inputs, 1)?;
    let dim = dim_of(inputs[0], attrs)?;
    let (before, after) = (count(attrs, "before")?, count(attrs, "after")?);
    let value = attrs.get_float("value")?;
    let linear = if value == 0.0 { Linearity::Joint } else { Linearity::None };
    let size = inputs[0].dims[dim].size + before + after;
    windowed(inputs, dim, size, &[-(before as isize)], ScalarBody::Sum(value), linear)
}

fn slice_gradient(b: &mut Builder, node: NodeId, cots: &[Option<ValueId>]) -> Result<Vec<Option<ValueId>>, BuildError> {
    let Some(dy) = cots[0] else {
        return Ok(vec![None]);
    };
    let n = b.func.node(node);
    let (x, attrs) = (n.inputs[0], n.attrs.clone());
    let ty = b.ty(x);
    let dim = dim_of(ty, &attrs).map_err(BuildError::Malformed)?;
    let start = attrs.get_int("start").unwrap_or(0);
    let after = ty.dims[dim].size as i64 - start - attrs.get_int("size").unwrap_or(0);
    // The cotangent's dimension may go by another name than the operand's.
    let name = b.ty(dy).dims[dim].name.clone();
    let attrs = Attrs::new().text("dim", name).int("before", start).int("after", after).float("value", 0.0);
    Ok(vec![Some(b.op("d", "pad", &[dy], attrs)?)])
}

fn part(b: &mut Builder, dy: ValueId, dim: usize, start: usize, size: usize) -> Result<ValueId, BuildError> {
    let name = b.ty(dy).dims[dim].name.clone();
    b.op("d", "slice", &[dy], Attrs::new().text("dim", name).int("start", start as i64).int("size", size as i64))
}

fn concat_gradient(
    b: &mut Builder,
    node: NodeId,
    cots: &[Option<ValueId>],
) -> Result<Vec<Option<ValueId>>, BuildError> {
    let n = b.func.node(node);
    let (inputs, attrs) = (n.inputs.clone(), n.attrs.clone());
    let Some(dy) = cots[0] else {
        return Ok(vec![None; inputs.len()]);
    };
    let dim = dim_of(b.ty(inputs[0]), &attrs).map_err(BuildError::Malformed)?;
    let (mut start, mut out) = (0, Vec::new());
    for x in inputs {
        let size = b.ty(x).dims[dim].size;
        out.push(Some(part(b, dy, dim, start, size)?));
        start += size;
    }
    Ok(out)
}

fn pad_gradient(b: &mut Builder, node: NodeId, cots: &[Option<ValueId>]) -> Result<Vec<Option<ValueId>>, BuildError> {
    let Some(dy) = cots[0] else {
        return Ok(vec![None]);
    };
    let n = b.func.node(node);
    let (x, attrs) = (n.inputs[0], n.attrs.clone());
    let dim = dim_of(b.ty(x), &attrs).map_err(BuildError::Malformed)?;
    let size = b.ty(x).dims[dim].size;
    let before = attrs.get_int("before").unwrap_or(0) as usize;
    Ok(vec![Some(part(b, dy, dim, before, size)?)])
}

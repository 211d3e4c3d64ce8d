//! Rearrangements: broadcast, transpose, reshape.

use super::{arity, repeated, spec, Factors};
use crate::core::{
    AttrDef, AttrKind, Attrs, BuildError, Builder, Dim, DimMap, FactorKind, Gradient, Linearity, NodeId, OpDef, Rule,
    Scalar, ScalarBody, Semantics, Template, Type, ValueId,
};
use crate::Monoid;

const SPEC: AttrDef = AttrDef { name: "spec", kind: AttrKind::Str, required: true };
const SIZES: AttrDef = AttrDef { name: "sizes", kind: AttrKind::Ints, required: false };

pub(super) const OPS: &[OpDef] = &[
    OpDef {
        name: "broadcast",
        doc: "Repeats along new dimensions, whose sizes are given in order of appearance.",
        attrs: &[SPEC, SIZES],
        template: Template::Loop,
        semantics: Semantics::Primitive(broadcast),
        gradient: Gradient::Derived(broadcast_gradient),
    },
    OpDef {
        name: "transpose",
        doc: "Permutes dimensions.",
        attrs: &[SPEC],
        template: Template::Loop,
        semantics: Semantics::Primitive(transpose),
        gradient: Gradient::Derived(transpose_gradient),
    },
    OpDef {
        name: "reshape",
        doc: "Splits and merges dimensions: \"b (g r) -> b g r\"; sizes are those of the names that a \
              parenthesis on the left splits.",
        attrs: &[SPEC, SIZES],
        template: Template::View,
        semantics: Semantics::Primitive(reshape),
        gradient: Gradient::Derived(reshape_gradient),
    },
];

fn broadcast(inputs: &[&Type], attrs: &Attrs) -> Result<Rule, String> {
    arity(inputs, 1)?;
    let text = attrs.get_text("spec")?;
    let (left, right) = text.split_once("->").ok_or_else(|| format!("spec {text:?} has no \"->\""))?;
    let names = |s: &str| s.split_whitespace().map(str::to_string).collect::<Vec<_>>();
    let (left, right) = (names(left), names(right));
    if let Some(n) = repeated(left.iter().map(String::as_str)) {
        return Err(format!("spec {text:?} names {n} twice in one tensor"));
    }
    let mut new = attrs.get_sizes("sizes")?.into_iter();
    let mut factors = Factors::default();
    let operand = factors.map_as(inputs[0], &left)?;
    let mut dims = Vec::new();
    for n in &right {
        let size = match factors.0.iter().find(|f| &f.name == n) {
            Some(f) => f.size,
            None => new.next().ok_or_else(|| format!("spec {text:?}: sizes has no entry for new dimension {n}"))?,
        };
        dims.push(Dim::new(n.clone(), size));
    }
    if let Some(extra) = new.next() {
        return Err(format!("spec {text:?}: size {extra} is for no new dimension"));
    }
    if let Some(n) = left.iter().find(|n| !right.contains(n)) {
        return Err(format!("spec {text:?} drops {n}; reduce_sum drops dimensions"));
    }
    let result = Type { dtype: inputs[0].dtype, dims, partial: None };
    Ok(Rule {
        operands: vec![operand],
        results: vec![factors.map(&result)?],
        result_types: vec![result],
        factors: factors.with_monoid(Monoid::Sum),
        body: Some(ScalarBody::Map(Scalar::Identity)),
        linear: Linearity::Joint,
    })
}

fn broadcast_gradient(
    b: &mut Builder,
    node: NodeId,
    cots: &[Option<ValueId>],
) -> Result<Vec<Option<ValueId>>, BuildError> {
    let Some(dy) = cots[0] else {
        return Ok(vec![None]);
    };
    let swapped = swap(b.func.node(node).attrs.get_text("spec").unwrap_or_default());
    Ok(vec![Some(b.reduce(Monoid::Sum, dy, &swapped)?)])
}

fn transpose(inputs: &[&Type], attrs: &Attrs) -> Result<Rule, String> {
    arity(inputs, 1)?;
    let text = attrs.get_text("spec")?;
    let spec = spec::parse(text)?;
    if spec.result.len() != spec.operands[0].len() {
        return Err(format!("spec {text:?} is not a permutation"));
    }
    let mut factors = Factors::default();
    let operand = factors.map_as(inputs[0], &spec.operands[0])?;
    let dims = spec
        .result
        .iter()
        .filter_map(|n| factors.0.iter().find(|f| &f.name == n).map(|f| Dim::new(n.clone(), f.size)))
        .collect();
    let result = Type { dtype: inputs[0].dtype, dims, partial: None };
    Ok(Rule {
        operands: vec![operand],
        results: vec![factors.map(&result)?],
        result_types: vec![result],
        factors: factors.with_monoid(Monoid::Sum),
        body: Some(ScalarBody::Map(Scalar::Identity)),
        linear: Linearity::Joint,
    })
}

fn transpose_gradient(
    b: &mut Builder,
    node: NodeId,
    cots: &[Option<ValueId>],
) -> Result<Vec<Option<ValueId>>, BuildError> {
    let Some(dy) = cots[0] else {
        return Ok(vec![None]);
    };
    let swapped = swap(b.func.node(node).attrs.get_text("spec").unwrap_or_default());
    Ok(vec![Some(b.op("d", "transpose", &[dy], Attrs::new().text("spec", swapped))?)])
}

/// Both sides of a spec exchanged.
fn swap(text: &str) -> String {
    match text.split_once("->") {
        Some((l, r)) => format!("{} -> {}", r.trim(), l.trim()).trim().to_string(),
        None => text.to_string(),
    }
}

fn reshape(inputs: &[&Type], attrs: &Attrs) -> Result<Rule, String> {
    arity(inputs, 1)?;
    let text = attrs.get_text("spec")?;
    let (left, right) = text.split_once("->").ok_or_else(|| format!("spec {text:?} has no \"->\""))?;
    let (left, right) = (spec::groups(left)?, spec::groups(right)?);
    if left.len() != inputs[0].dims.len() {
        return Err(format!("{} has {} dimensions, the spec names {}", inputs[0], inputs[0].dims.len(), left.len()));
    }
    let flat = |side: &[Vec<String>]| side.iter().flatten().cloned().collect::<Vec<_>>();
    if flat(&left) != flat(&right) {
        return Err(format!("spec {text:?}: both sides must name the same factors in the same order"));
    }
    if let Some(n) = repeated(left.iter().flatten().map(String::as_str)) {
        return Err(format!("spec {text:?} names {n} twice in one tensor"));
    }
    let mut sizes = attrs.get_sizes("sizes")?.into_iter();
    let mut factors = Factors::default();
    let mut operand = Vec::new();
    for (group, dim) in left.iter().zip(&inputs[0].dims) {
        let mut product = 1usize;
        for n in group {
            let size = if group.len() == 1 {
                dim.size
            } else {
                sizes.next().ok_or_else(|| format!("spec {text:?}: sizes has no entry for {n}"))?
            };
            factors.get(n, size)?;
            product = product.saturating_mul(size);
        }
        if product != dim.size {
            return Err(format!(
                "spec {text:?}: ({}) is {product}, dimension {} is {}",
                group.join(" "),
                dim.name,
                dim.size
            ));
        }
        operand.push(group_map(group, &factors));
    }
    let results: Vec<DimMap> = right.iter().map(|g| group_map(g, &factors)).collect();
    let dims = right
        .iter()
        .zip(&results)
        .map(|(g, m)| Dim::new(g.concat(), m.factors.iter().map(|f| factors.0[*f].size).product()))
        .collect();
    // Only the major factor of a group keeps a shard contiguous.
    let mut list = factors.with_monoid(Monoid::Sum);
    for map in operand.iter().chain(&results) {
        for f in map.factors.iter().skip(1) {
            list[*f].kind = FactorKind::Whole;
        }
    }
    Ok(Rule {
        factors: list,
        operands: vec![operand],
        results: vec![results],
        result_types: vec![Type { dtype: inputs[0].dtype, dims, partial: None }],
        body: Some(ScalarBody::Map(Scalar::Identity)),
        linear: Linearity::Joint,
    })
}

fn group_map(group: &[String], factors: &Factors) -> DimMap {
    let factors = group.iter().filter_map(|n| factors.0.iter().position(|f| &f.name == n)).collect();
    DimMap { factors, offset: 0 }
}

fn reshape_gradient(
    b: &mut Builder,
    node: NodeId,
    cots: &[Option<ValueId>],
) -> Result<Vec<Option<ValueId>>, BuildError> {
    let Some(dy) = cots[0] else {
        return Ok(vec![None]);
    };
    let (x, attrs) = {
        let n = b.func.node(node);
        (n.inputs[0], n.attrs.clone())
    };
    let types = b.ty(x).global();
    let rule = reshape(&[&types], &attrs).map_err(BuildError::Malformed)?;
    // Sizes of the factors that a group of the result (now the operand) splits.
    let sizes = rule.results[0]
        .iter()
        .filter(|m| m.factors.len() > 1)
        .flat_map(|m| m.factors.iter().map(|f| rule.factors[*f].size).collect::<Vec<_>>());
    let swapped = swap(attrs.get_text("spec").unwrap_or_default());
    let dx =
        b.op("d", "reshape", &[dy], Attrs::new().text("spec", swapped).ints("sizes", sizes.collect::<Vec<_>>()))?;
    Ok(vec![Some(dx)])
}

//! Reductions over dimensions.

use super::{arity, spec, Factors};
use crate::core::{
    AttrDef, AttrKind, Attrs, BuildError, Builder, Gradient, Linearity, NodeId, OpDef, Rule, Scalar, ScalarBody,
    Semantics, Template, Type, ValueId,
};
use crate::Monoid;

const SPEC: &[AttrDef] = &[AttrDef { name: "spec", kind: AttrKind::Str, required: true }];

pub(super) const OPS: &[OpDef] = &[
    OpDef {
        name: "reduce_sum",
        doc: "Sum over the dimensions that the spec drops.",
        attrs: SPEC,
        template: Template::Loop,
        semantics: Semantics::Primitive(sum),
        gradient: Gradient::Derived(sum_gradient),
    },
    OpDef {
        name: "reduce_max",
        doc: "Maximum over the dimensions that the spec drops.",
        attrs: SPEC,
        template: Template::Loop,
        semantics: Semantics::Primitive(max),
        gradient: Gradient::Derived(max_gradient),
    },
];

fn sum(inputs: &[&Type], attrs: &Attrs) -> Result<Rule, String> {
    rule(inputs, attrs, Monoid::Sum)
}

fn max(inputs: &[&Type], attrs: &Attrs) -> Result<Rule, String> {
    rule(inputs, attrs, Monoid::Max)
}

fn rule(inputs: &[&Type], attrs: &Attrs, monoid: Monoid) -> Result<Rule, String> {
    arity(inputs, 1)?;
    let spec = spec::parse(attrs.get_text("spec")?)?;
    let mut factors = Factors::default();
    let operand = factors.map_as(inputs[0], &spec.operands[0])?;
    let sizes: Vec<(&str, usize)> = spec
        .result
        .iter()
        .filter_map(|n| factors.0.iter().find(|f| &f.name == n).map(|f| (n.as_str(), f.size)))
        .collect();
    let result = Type::new(inputs[0].dtype, &sizes);
    Ok(Rule {
        operands: vec![operand],
        results: vec![factors.map(&result)?],
        result_types: vec![result],
        factors: factors.with_monoid(monoid),
        body: Some(ScalarBody::Map(Scalar::Identity)),
        linear: if monoid == Monoid::Sum { Linearity::Joint } else { Linearity::None },
    })
}

/// Broadcasts a cotangent of the reduced value back over the dropped dimensions.
fn spread(b: &mut Builder, node: NodeId, v: ValueId) -> Result<ValueId, BuildError> {
    let n = b.func.node(node);
    let (x, text) = (n.inputs[0], n.attrs.get_text("spec").unwrap_or_default().to_string());
    let spec = spec::parse(&text).map_err(BuildError::Malformed)?;
    let sizes: Vec<usize> = spec.operands[0]
        .iter()
        .zip(b.ty(x).sizes())
        .filter(|(n, _)| !spec.result.contains(n))
        .map(|(_, s)| s)
        .collect();
    let text = spec::print(&[spec.result], &spec.operands[0]);
    b.op("d", "broadcast", &[v], Attrs::new().text("spec", text).ints("sizes", sizes))
}

fn sum_gradient(b: &mut Builder, node: NodeId, cots: &[Option<ValueId>]) -> Result<Vec<Option<ValueId>>, BuildError> {
    let Some(dy) = cots[0] else {
        return Ok(vec![None]);
    };
    Ok(vec![Some(spread(b, node, dy)?)])
}

/// The cotangent goes to the entry that equals the maximum, in equal parts where several do.
fn max_gradient(b: &mut Builder, node: NodeId, cots: &[Option<ValueId>]) -> Result<Vec<Option<ValueId>>, BuildError> {
    let Some(dy) = cots[0] else {
        return Ok(vec![None]);
    };
    let (x, y) = (b.func.node(node).inputs[0], b.func.node(node).results[0]);
    let spec = b.func.node(node).attrs.get_text("spec").unwrap_or_default().to_string();
    let top = spread(b, node, y)?;
    let hit = b.map("equal", &[x, top])?;
    let count = b.reduce(Monoid::Sum, hit, &spec)?;
    let part = b.map("div", &[dy, count])?;
    let part = spread(b, node, part)?;
    Ok(vec![Some(b.map("mul", &[hit, part])?)])
}

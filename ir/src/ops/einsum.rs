//! `einsum`: products and sums over named factors.

use super::{spec, Factors};
use crate::core::{
    AttrDef, AttrKind, Attrs, BuildError, Builder, Gradient, Linearity, NodeId, OpDef, Rule, ScalarBody, Semantics,
    Template, Type, ValueId,
};
use crate::Monoid;

pub(super) const OPS: &[OpDef] = &[OpDef {
    name: "einsum",
    doc: "Product of the operands, summed over the factors that the result lacks.",
    attrs: &[AttrDef { name: "spec", kind: AttrKind::Str, required: true }],
    template: Template::Gemm,
    semantics: Semantics::Primitive(rule),
    gradient: Gradient::Derived(gradient),
}];

fn rule(inputs: &[&Type], attrs: &Attrs) -> Result<Rule, String> {
    let text = attrs.get_text("spec")?;
    let spec = spec::parse(text)?;
    if spec.operands.len() != inputs.len() {
        return Err(format!("spec {text:?} is for {} operands, got {}", spec.operands.len(), inputs.len()));
    }
    let dtype = inputs[0].dtype;
    if let Some(other) = inputs.iter().find(|t| t.dtype != dtype) {
        return Err(format!("operands have different element types: {dtype} and {}", other.dtype));
    }
    let mut factors = Factors::default();
    let operands = inputs
        .iter()
        .zip(&spec.operands)
        .map(|(ty, names)| factors.map_as(ty, names))
        .collect::<Result<Vec<_>, _>>()?;
    let sizes: Vec<(&str, usize)> = spec
        .result
        .iter()
        .map(|n| {
            let f = factors.0.iter().find(|f| &f.name == n).ok_or_else(|| format!("no factor {n}"))?;
            Ok((n.as_str(), f.size))
        })
        .collect::<Result<_, String>>()?;
    let result = Type::new(dtype, &sizes);
    Ok(Rule {
        results: vec![factors.map(&result)?],
        result_types: vec![result],
        operands,
        factors: factors.with_monoid(Monoid::Sum),
        body: Some(ScalarBody::Product),
        linear: Linearity::Each,
    })
}

/// The roles of operand and result swap. A factor that only this operand has was summed alone: its
/// cotangent is constant along it.
fn gradient(b: &mut Builder, node: NodeId, cots: &[Option<ValueId>]) -> Result<Vec<Option<ValueId>>, BuildError> {
    let Some(dy) = cots[0] else {
        return Ok(vec![None; b.func.node(node).inputs.len()]);
    };
    let (inputs, text) = {
        let n = b.func.node(node);
        (n.inputs.clone(), n.attrs.get_text("spec").unwrap_or_default().to_string())
    };
    let spec = spec::parse(&text).map_err(BuildError::Malformed)?;
    let mut out = Vec::new();
    for (i, x) in inputs.iter().enumerate() {
        let mut values = vec![dy];
        let mut names = vec![spec.result.clone()];
        for (j, other) in inputs.iter().enumerate().filter(|(j, _)| *j != i) {
            values.push(*other);
            names.push(spec.operands[j].clone());
        }
        let have: Vec<String> =
            spec.operands[i].iter().filter(|n| names.iter().flatten().any(|m| m == *n)).cloned().collect();
        let mut dx = b.einsum("d", &values, &spec::print(&names, &have))?;
        if have.len() < spec.operands[i].len() {
            let sizes: Vec<usize> = spec.operands[i]
                .iter()
                .zip(b.ty(*x).sizes())
                .filter(|(n, _)| !have.contains(n))
                .map(|(_, s)| s)
                .collect();
            let text = spec::print(&[have], &spec.operands[i]);
            dx = b.op("d", "broadcast", &[dx], Attrs::new().text("spec", text).ints("sizes", sizes))?;
        }
        out.push(Some(dx));
    }
    Ok(out)
}

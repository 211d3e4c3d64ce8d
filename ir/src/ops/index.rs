//! Rows of a table by index, and the transposed addition.

use super::{arity, Factors};
use crate::core::{
    AttrDef, AttrKind, Attrs, BuildError, Builder, DType, Dim, DimMap, Gradient, Linearity, NodeId, OpDef, Rule,
    ScalarBody, Semantics, Template, Type, ValueId,
};
use crate::Monoid;

pub(super) const OPS: &[OpDef] = &[
    OpDef {
        name: "gather",
        doc: "table[v, d], ids[..] → rows[.., d]. Split over v, each rank gives its own rows and zero elsewhere.",
        attrs: &[],
        template: Template::Gather,
        semantics: Semantics::Primitive(gather),
        gradient: Gradient::Derived(gather_gradient),
    },
    OpDef {
        name: "scatter_add",
        doc: "rows[.., d], ids[..] → table[v, d]: rows added at their indices. Split over v, the owner keeps.",
        attrs: &[
            AttrDef { name: "rows", kind: AttrKind::Int, required: true },
            AttrDef { name: "dim", kind: AttrKind::Str, required: false },
        ],
        template: Template::Scatter,
        semantics: Semantics::Primitive(scatter),
        gradient: Gradient::Derived(scatter_gradient),
    },
];

fn ids(ty: &Type) -> Result<(), String> {
    match ty.dtype {
        DType::I32 => Ok(()),
        other => Err(format!("indices must be i32, got {other}")),
    }
}

fn gather(inputs: &[&Type], _: &Attrs) -> Result<Rule, String> {
    arity(inputs, 2)?;
    ids(inputs[1])?;
    let [v, d] = &inputs[0].dims[..] else {
        return Err(format!("the table must have two dimensions, got {}", inputs[0]));
    };
    let mut factors = Factors::default();
    let rows = factors.map(inputs[1])?;
    if let Some(clash) = inputs[1].dims.iter().find(|i| i.name == v.name || i.name == d.name) {
        return Err(format!("dimension {} is in the table and in the indices", clash.name));
    }
    let table = vec![DimMap::factor(factors.get(&v.name, v.size)?), DimMap::factor(factors.get(&d.name, d.size)?)];
    let result = Type {
        dtype: inputs[0].dtype,
        dims: inputs[1].dims.iter().chain([d]).map(|d| Dim::new(d.name.clone(), d.size)).collect(),
        partial: None,
    };
    Ok(Rule {
        operands: vec![table, rows],
        results: vec![factors.map(&result)?],
        result_types: vec![result],
        factors: factors.with_monoid(Monoid::Sum),
        body: Some(ScalarBody::Gather),
        linear: Linearity::First,
    })
}

fn gather_gradient(
    b: &mut Builder,
    node: NodeId,
    cots: &[Option<ValueId>],
) -> Result<Vec<Option<ValueId>>, BuildError> {
    let Some(dy) = cots[0] else {
        return Ok(vec![None, None]);
    };
    let n = b.func.node(node);
    let (table, ids) = (n.inputs[0], n.inputs[1]);
    let v = &b.ty(table).dims[0];
    let attrs = Attrs::new().int("rows", v.size as i64).text("dim", v.name.clone());
    Ok(vec![Some(b.op("d", "scatter_add", &[dy, ids], attrs)?), None])
}

/// Every row went to its index, so its cotangent is what stands there.
fn scatter_gradient(
    b: &mut Builder,
    node: NodeId,
    cots: &[Option<ValueId>],
) -> Result<Vec<Option<ValueId>>, BuildError> {
    let Some(dy) = cots[0] else { return Ok(vec![None, None]) };
    let ids = b.func.node(node).inputs[1];
    Ok(vec![Some(b.op("d", "gather", &[dy, ids], Attrs::new())?), None])
}

fn scatter(inputs: &[&Type], attrs: &Attrs) -> Result<Rule, String> {
    arity(inputs, 2)?;
    ids(inputs[1])?;
    let (d, lead) = inputs[0].dims.split_last().ok_or("rows must have at least one dimension")?;
    if lead.iter().map(|x| x.size).ne(inputs[1].dims.iter().map(|x| x.size)) {
        return Err(format!("rows {} and indices {} do not match", inputs[0], inputs[1]));
    }
    let name = match attrs.get("dim") {
        Some(_) => attrs.get_text("dim")?,
        None => "v",
    };
    if inputs[0].dims.iter().any(|x| x.name == name) {
        return Err(format!(
            "dimension {name} of the table is also one of the rows {}; name another by `dim`",
            inputs[0]
        ));
    }
    let mut factors = Factors::default();
    let rows = factors.map(inputs[0])?;
    let result = Type::new(inputs[0].dtype, &[(name, attrs.get_size("rows")?), (&d.name, d.size)]);
    let table = factors.map(&result)?;
    Ok(Rule {
        operands: vec![rows.clone(), rows[..lead.len()].to_vec()],
        results: vec![table],
        result_types: vec![result],
        factors: factors.with_monoid(Monoid::Sum),
        body: Some(ScalarBody::ScatterAdd),
        linear: Linearity::First,
    })
}

//! Routing tokens to experts (Shazeer and others 2017, arXiv 1701.06538): each token chooses k of E experts,
//! each expert has c slots. `top_k` chooses, `take` reads the chosen scores, `slots` numbers the choices of
//! each expert in order and drops those beyond its slots, `dispatch` puts tokens into slots, `combine` adds
//! up what experts made of them.
//!
//! A slot is one number, expert·c + place, or −1 for a dropped choice: so tokens and experts are split by
//! the same rule as rows of a table (a rank keeps what falls into its part).

use super::{arity, Factors};
use crate::core::{
    AttrDef, AttrKind, Attrs, BuildError, Builder, DType, Dim, DimMap, FactorKind, Gradient, Linearity, NodeId, OpDef,
    Rule, ScalarBody, Semantics, Template, Type, ValueId,
};
use crate::Monoid;

const EXPERTS: AttrDef = AttrDef { name: "experts", kind: AttrKind::Int, required: true };
const CAPACITY: AttrDef = AttrDef { name: "capacity", kind: AttrKind::Int, required: true };

pub(super) const OPS: &[OpDef] = &[
    OpDef {
        name: "top_k",
        doc: "x[.., n] → i32[.., k]: where the k largest of the last dimension stand, largest first, of equals \
              the one that comes first.",
        attrs: &[AttrDef { name: "k", kind: AttrKind::Int, required: true }],
        template: Template::Sort,
        semantics: Semantics::Primitive(top_k),
        gradient: Gradient::None("positions are piecewise constant"),
    },
    OpDef {
        name: "take",
        doc: "x[.., n], ids[.., k] → [.., k]: entries of the last dimension by index.",
        attrs: &[],
        template: Template::Loop,
        semantics: Semantics::Composite(include_str!("take.shard")),
        gradient: Gradient::Body,
    },
    OpDef {
        name: "slots",
        doc: "choice[..] → i32[..]: expert·capacity + place, where place counts the choices of the same expert \
              that come before in row-major order; −1 where place would reach capacity.",
        attrs: &[EXPERTS, CAPACITY],
        template: Template::Sort,
        semantics: Semantics::Primitive(slots),
        gradient: Gradient::None("positions are piecewise constant"),
    },
    OpDef {
        name: "dispatch",
        doc: "x[.., d], slot[.., k], w[.., k] → y[E, c, d]: rows added at their k slots, times w where that is \
              given; a slot of −1 drops, empty slots are 0. Split over E or c, the owner keeps.",
        attrs: &[EXPERTS, CAPACITY],
        template: Template::Scatter,
        semantics: Semantics::Primitive(dispatch),
        gradient: Gradient::Derived(dispatch_gradient),
    },
    OpDef {
        name: "combine",
        doc: "y[E, c, d], slot[.., k], w[.., k] → z[.., d]: the sum over k of w·y at the slot; nothing for a slot \
              of −1. Split over E or c, each rank adds its own rows.",
        attrs: &[],
        template: Template::Gather,
        semantics: Semantics::Primitive(combine),
        gradient: Gradient::Derived(combine_gradient),
    },
];

fn top_k(inputs: &[&Type], attrs: &Attrs) -> Result<Rule, String> {
    arity(inputs, 1)?;
    let k = attrs.get_size("k")?;
    let (last, lead) = inputs[0].dims.split_last().ok_or("x must have at least one dimension")?;
    if k == 0 || k > last.size {
        return Err(format!("k is {k}; it must be between 1 and {}, the size of {}", last.size, last.name));
    }
    let dims = lead.iter().map(|d| Dim::new(d.name.clone(), d.size)).chain([Dim::new("k", k)]).collect();
    let result = Type { dtype: DType::I32, dims, partial: None };
    let mut factors = Factors::default();
    let results = factors.map(&result)?;
    // All of the last dimension is compared, so nothing indexes it.
    let operand = results[..lead.len()].iter().cloned().chain([DimMap::default()]).collect();
    Ok(Rule {
        operands: vec![operand],
        results: vec![results],
        result_types: vec![result],
        factors: factors.with_monoid(Monoid::Sum),
        body: Some(ScalarBody::TopK),
        linear: Linearity::None,
    })
}

/// Places depend on all choices before, so their dimensions stay whole; over experts the largest is the
/// answer, since all but one of them say −1.
fn slots(inputs: &[&Type], attrs: &Attrs) -> Result<Rule, String> {
    arity(inputs, 1)?;
    ids(inputs[0], "choices")?;
    let (experts, capacity) = sizes(attrs)?;
    let mut factors = Factors::default();
    let maps = factors.map(inputs[0])?;
    for f in &mut factors.0 {
        f.kind = FactorKind::Whole;
    }
    free_name(inputs[0], "E")?;
    factors.get("E", experts)?;
    Ok(Rule {
        operands: vec![maps.clone()],
        results: vec![maps],
        result_types: vec![inputs[0].global()],
        factors: factors.with_monoid(Monoid::Max),
        body: Some(ScalarBody::Slots { capacity }),
        linear: Linearity::None,
    })
}

fn dispatch(inputs: &[&Type], attrs: &Attrs) -> Result<Rule, String> {
    if inputs.len() != 3 {
        arity(inputs, 2)?;
    }
    let (experts, capacity) = sizes(attrs)?;
    let (d, _) = rows(inputs[0], inputs[1])?;
    let result = Type::new(inputs[0].dtype, &[("E", experts), ("c", capacity), (&d.name, d.size)]);
    weights(inputs, 2)?;
    let mut factors = Factors::default();
    let slot = factors.map(inputs[1])?;
    let token = by_position(inputs[0], &slot, factors.get(&d.name, d.size)?);
    let results = factors.map(&result)?;
    let operands = [token, slot.clone(), slot].into_iter().take(inputs.len()).collect();
    Ok(Rule {
        operands,
        results: vec![results],
        result_types: vec![result],
        factors: factors.with_monoid(Monoid::Sum),
        body: Some(ScalarBody::Dispatch),
        linear: Linearity::First,
    })
}

fn combine(inputs: &[&Type], _: &Attrs) -> Result<Rule, String> {
    arity(inputs, 3)?;
    let [expert, place, d] = &inputs[0].dims[..] else {
        return Err(format!("y must have three dimensions, got {}", inputs[0]));
    };
    ids(inputs[1], "slots")?;
    weights(inputs, 2)?;
    let (_, lead) = inputs[1].dims.split_last().ok_or("slots must have at least one dimension")?;
    for name in [&expert.name, &place.name, &d.name] {
        free_name(inputs[1], name)?;
    }
    let dims = lead.iter().chain([d]).map(|x| Dim::new(x.name.clone(), x.size)).collect();
    let result = Type { dtype: inputs[0].dtype, dims, partial: None };
    let mut factors = Factors::default();
    let (slot, y) = (factors.map(inputs[1])?, factors.map(inputs[0])?);
    Ok(Rule {
        results: vec![factors.map(&result)?],
        operands: vec![y, slot.clone(), slot],
        result_types: vec![result],
        factors: factors.with_monoid(Monoid::Sum),
        body: Some(ScalarBody::Combine),
        linear: Linearity::First,
    })
}

fn sizes(attrs: &Attrs) -> Result<(usize, usize), String> {
    let (experts, capacity) = (attrs.get_size("experts")?, attrs.get_size("capacity")?);
    match (experts, capacity) {
        (0, _) | (_, 0) => Err(format!("{experts} experts with {capacity} slots; both must be at least 1")),
        // Slots are i32.
        _ if experts.saturating_mul(capacity) > i32::MAX as usize => {
            Err(format!("{experts} experts with {capacity} slots are more slots than i32 counts; use a smaller batch"))
        }
        sizes => Ok(sizes),
    }
}

fn ids(ty: &Type, what: &str) -> Result<(), String> {
    match ty.dtype {
        DType::I32 => Ok(()),
        other => Err(format!("{what} must be i32, got {other}")),
    }
}

/// Checks that rows `x[.., d]` go to `slot[.., k]`; returns d and the leading dimensions.
fn rows<'a>(x: &'a Type, slot: &'a Type) -> Result<(&'a Dim, &'a [Dim]), String> {
    ids(slot, "slots")?;
    let (d, lead) = x.dims.split_last().ok_or("rows must have at least one dimension")?;
    let (_, of) = slot.dims.split_last().ok_or("slots must have at least one dimension")?;
    if lead.iter().map(|x| x.size).ne(of.iter().map(|x| x.size)) {
        return Err(format!("rows {x} and slots {slot} do not match"));
    }
    for name in ["E", "c", &d.name] {
        free_name(slot, name)?;
    }
    Ok((d, lead))
}

/// Weights stand beside slots and have the type of the rows.
fn weights(inputs: &[&Type], at: usize) -> Result<(), String> {
    match inputs.get(at) {
        Some(w) if w.sizes() != inputs[1].sizes() || w.dtype != inputs[0].dtype => {
            Err(format!("weights {w} must be as many as slots {} and of type {}", inputs[1], inputs[0].dtype))
        }
        _ => Ok(()),
    }
}

fn free_name(ty: &Type, name: &str) -> Result<(), String> {
    match ty.dim(name) {
        Some(_) => Err(format!("{ty} has a dimension {name}, which names another here; rename it")),
        None => Ok(()),
    }
}

/// Rows are indexed like their slots, whatever their dimensions are called.
fn by_position(x: &Type, slot: &[DimMap], d: usize) -> Vec<DimMap> {
    slot[..x.dims.len() - 1].iter().cloned().chain([DimMap::factor(d)]).collect()
}

fn dispatch_gradient(
    b: &mut Builder,
    node: NodeId,
    cots: &[Option<ValueId>],
) -> Result<Vec<Option<ValueId>>, BuildError> {
    let n = b.func.node(node);
    let (x, slot, w) = (n.inputs[0], n.inputs[1], n.inputs.get(2).copied());
    let Some(dy) = cots[0] else { return Ok(vec![None; n.inputs.len()]) };
    let Some(w) = w else {
        let ones = ones(b, slot, x)?;
        return Ok(vec![Some(b.op("d", "combine", &[dy, slot, ones], Attrs::new())?), None]);
    };
    let dx = b.op("d", "combine", &[dy, slot, w], Attrs::new())?;
    let dw = products(b, dy, slot, x)?;
    Ok(vec![Some(dx), None, Some(dw)])
}

fn combine_gradient(
    b: &mut Builder,
    node: NodeId,
    cots: &[Option<ValueId>],
) -> Result<Vec<Option<ValueId>>, BuildError> {
    let Some(dz) = cots[0] else { return Ok(vec![None; 3]) };
    let n = b.func.node(node);
    let (y, slot, w) = (n.inputs[0], n.inputs[1], n.inputs[2]);
    let size = |i: usize| b.ty(y).dims[i].size as i64;
    let attrs = Attrs::new().int("experts", size(0)).int("capacity", size(1));
    let dy = b.op("d", "dispatch", &[dz, slot, w], attrs)?;
    let dw = products(b, y, slot, dz)?;
    Ok(vec![Some(dy), None, Some(dw)])
}

/// Ones beside slots, of the type of `like`.
fn ones(b: &mut Builder, slot: ValueId, like: ValueId) -> Result<ValueId, BuildError> {
    let dtype = b.ty(like).dtype;
    let cast = b.op("d", "cast", &[slot], Attrs::new().text("dtype", dtype.name()))?;
    b.affine(cast, 0.0, 1.0)
}

/// For each slot the product of its row of `y` with the row of its token: every choice is a token of its
/// own, which combine gives its row.
fn products(b: &mut Builder, y: ValueId, slot: ValueId, x: ValueId) -> Result<ValueId, BuildError> {
    let names: Vec<String> = b.ty(slot).dims.iter().map(|d| d.name.clone()).collect();
    let (apart, lead) = (names.join(" "), names[..names.len() - 1].join(" "));
    let sizes = b.ty(slot).sizes();
    let flat = b.op("d", "reshape", &[slot], Attrs::new().text("spec", format!("{apart} -> ({apart})")))?;
    let one = Attrs::new().text("spec", "n -> n one").ints("sizes", [1]);
    let single = b.op("d", "broadcast", &[flat], one)?;
    let ones = ones(b, single, y)?;
    let rows = b.op("d", "combine", &[y, single, ones], Attrs::new())?;
    let split = Attrs::new().text("spec", format!("({apart}) row -> {apart} row")).ints("sizes", sizes);
    let rows = b.op("d", "reshape", &[rows], split)?;
    b.einsum("d", &[rows, x], &format!("{apart} row, {lead} row -> {apart}"))
}

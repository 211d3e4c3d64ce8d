//! Changes of state. On global tensors each is the identity; on shards each moves data as the types
//! of its operand and result say.

use super::{arity, elementwise};
use crate::core::{AttrDef, AttrKind, Gradient, Linearity, OpDef, Rule, Scalar, ScalarBody, Semantics, Template, Type};

const ATTRS: &[AttrDef] = &[
    AttrDef { name: "axes", kind: AttrKind::Str, required: true },
    AttrDef { name: "control", kind: AttrKind::Int, required: false },
];
const WHY: Gradient = Gradient::None("collectives are inserted after differentiation");

macro_rules! collectives {
    ($($name:literal, $doc:literal;)*) => {
        pub(super) const OPS: &[OpDef] = &[$(OpDef {
            name: $name,
            doc: $doc,
            attrs: ATTRS,
            template: Template::Collective,
            semantics: Semantics::Collective,
            gradient: WHY,
        },)*];
    };
}

collectives! {
    "all_reduce", "Partial to replicated.";
    "all_gather", "Split to replicated.";
    "reduce_scatter", "Partial to split.";
    "all_to_all", "Split to split: another dimension or another order of axes.";
    "shard", "Without communication: replicated to split, replicated to partial, split to partial.";
}

pub(super) fn rule(inputs: &[&Type]) -> Result<Rule, String> {
    arity(inputs, 1)?;
    elementwise(inputs, inputs[0].global(), ScalarBody::Map(Scalar::Identity), Linearity::None)
}

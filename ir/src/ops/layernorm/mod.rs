//! `layernorm`: (x − mean)/√(var + eps)·w + b over the last dimension, biased variance (Ba, Kiros,
//! Hinton 2016, arXiv 1607.06450).

use crate::core::{AttrDef, AttrKind, GradArg, Gradient, OpDef, Semantics, Template};

const EPS: &[AttrDef] = &[AttrDef { name: "eps", kind: AttrKind::Float, required: true }];

pub(super) const OPS: &[OpDef] = &[
    OpDef {
        name: "layernorm",
        doc: "x[.., d], w[d], b[d] → (x − mean)/√(var + eps)·w + b.",
        attrs: EPS,
        template: Template::Loop,
        semantics: Semantics::Composite(include_str!("forward.shard")),
        gradient: Gradient::Backward {
            op: "layernorm_bwd",
            args: &[GradArg::Operand(0), GradArg::Operand(1), GradArg::Cotangent(0)],
            wrt: &[0, 1, 2],
            attrs: &["eps"],
        },
    },
    OpDef {
        name: "layernorm_bwd",
        doc: "x, w, dy → dx, dw, db; mean and variance are computed again.",
        attrs: EPS,
        template: Template::Loop,
        semantics: Semantics::Composite(include_str!("backward.shard")),
        gradient: Gradient::Body,
    },
];

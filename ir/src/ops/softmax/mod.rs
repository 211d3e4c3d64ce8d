//! `softmax` over the last dimension.

use crate::core::{GradArg, Gradient, OpDef, Semantics, Template};

pub(super) const OPS: &[OpDef] = &[
    OpDef {
        name: "softmax",
        doc: "x[.., n] → eˣ/Σeˣ over the last dimension.",
        attrs: &[],
        template: Template::Loop,
        semantics: Semantics::Composite(include_str!("forward.shard")),
        gradient: Gradient::Backward {
            op: "softmax_bwd",
            args: &[GradArg::Result(0), GradArg::Cotangent(0)],
            wrt: &[0],
            attrs: &[],
        },
    },
    OpDef {
        name: "softmax_bwd",
        doc: "y, dy → dx = y·(dy − Σ y·dy).",
        attrs: &[],
        template: Template::Loop,
        semantics: Semantics::Composite(include_str!("backward.shard")),
        gradient: Gradient::Body,
    },
];

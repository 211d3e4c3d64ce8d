//! `rmsnorm`: x·w/√(mean(x²) + eps) over the last dimension (Zhang, Sennrich 2019, arXiv 1910.07467).

use crate::core::{AttrDef, AttrKind, GradArg, Gradient, OpDef, Semantics, Template};

const EPS: &[AttrDef] = &[AttrDef { name: "eps", kind: AttrKind::Float, required: true }];

pub(super) const OPS: &[OpDef] = &[
    OpDef {
        name: "rmsnorm",
        doc: "x[.., d], w[d] → x·w/√(mean(x²) + eps).",
        attrs: EPS,
        template: Template::Loop,
        semantics: Semantics::Composite(include_str!("forward.shard")),
        gradient: Gradient::Backward {
            op: "rmsnorm_bwd",
            args: &[GradArg::Operand(0), GradArg::Operand(1), GradArg::Cotangent(0)],
            wrt: &[0, 1],
            attrs: &["eps"],
        },
    },
    OpDef {
        name: "rmsnorm_bwd",
        doc: "x, w, dy → dx, dw; the root mean square is computed again.",
        attrs: EPS,
        template: Template::Loop,
        semantics: Semantics::Composite(include_str!("backward.shard")),
        gradient: Gradient::Body,
    },
];

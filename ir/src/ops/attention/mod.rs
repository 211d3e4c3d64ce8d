//! Attention over grouped queries: `g` key/value heads with `r` queries each. The kernel template is
//! blocked online softmax (Dao 2023, arXiv 2307.08691); the bodies below are what it must equal.

use crate::core::{AttrDef, AttrKind, GradArg, Gradient, OpDef, Semantics, Template};

const ATTRS: &[AttrDef] = &[
    AttrDef { name: "scale", kind: AttrKind::Float, required: true },
    AttrDef { name: "causal", kind: AttrKind::Int, required: true },
    AttrDef { name: "window", kind: AttrKind::Int, required: true },
];

pub(super) const OPS: &[OpDef] = &[
    OpDef {
        name: "attention",
        doc: "q[b, s, g, r, e], k[b, t, g, e], v[b, t, g, h] → o[b, s, g, r, h], lse[b, s, g, r]. Query i sees key \
              j if j ≤ i (causal) and i − j < window (window > 0).",
        attrs: ATTRS,
        template: Template::Attention,
        semantics: Semantics::Composite(include_str!("forward.shard")),
        gradient: Gradient::Backward {
            op: "attention_bwd",
            args: &[
                GradArg::Operand(0),
                GradArg::Operand(1),
                GradArg::Operand(2),
                GradArg::Result(0),
                GradArg::Result(1),
                GradArg::Cotangent(0),
            ],
            wrt: &[0, 1, 2],
            attrs: &["scale", "causal", "window"],
        },
    },
    OpDef {
        name: "attention_bwd",
        doc: "q, k, v, o, lse, do → dq, dk, dv; probabilities are computed again from lse.",
        attrs: ATTRS,
        template: Template::AttentionBackward,
        semantics: Semantics::Composite(include_str!("backward.shard")),
        gradient: Gradient::Body,
    },
];

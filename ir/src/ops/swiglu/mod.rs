//! Gated and plain activations: `swiglu` (Shazeer 2020, arXiv 2002.05202), `silu`, `gelu_tanh`
//! (Hendrycks, Gimpel 2016, arXiv 1606.08415, the tanh form), `relu`, `relu2` (So and others 2021, arXiv
//! 2109.08668).

use crate::core::{GradArg, Gradient, OpDef, Semantics, Template};

pub(super) const OPS: &[OpDef] = &[
    OpDef {
        name: "swiglu",
        doc: "gate, up → gate·sigmoid(gate)·up.",
        attrs: &[],
        template: Template::Loop,
        semantics: Semantics::Composite(include_str!("forward.shard")),
        gradient: Gradient::Backward {
            op: "swiglu_bwd",
            args: &[GradArg::Operand(0), GradArg::Operand(1), GradArg::Cotangent(0)],
            wrt: &[0, 1],
            attrs: &[],
        },
    },
    OpDef {
        name: "swiglu_bwd",
        doc: "gate, up, dy → dgate, dup.",
        attrs: &[],
        template: Template::Loop,
        semantics: Semantics::Composite(include_str!("backward.shard")),
        gradient: Gradient::Body,
    },
    OpDef {
        name: "silu",
        doc: "x·sigmoid(x).",
        attrs: &[],
        template: Template::Loop,
        semantics: Semantics::Composite(include_str!("silu.shard")),
        gradient: Gradient::Body,
    },
    OpDef {
        name: "gelu_tanh",
        doc: "x·(1 + tanh(√(2/π)·(x + 0.044715·x³)))/2.",
        attrs: &[],
        template: Template::Loop,
        semantics: Semantics::Composite(include_str!("gelu_tanh.shard")),
        gradient: Gradient::Body,
    },
    OpDef {
        name: "relu",
        doc: "max(x, 0).",
        attrs: &[],
        template: Template::Loop,
        semantics: Semantics::Composite(include_str!("relu.shard")),
        gradient: Gradient::Body,
    },
    OpDef {
        name: "relu2",
        doc: "max(x, 0)².",
        attrs: &[],
        template: Template::Loop,
        semantics: Semantics::Composite(include_str!("relu2.shard")),
        gradient: Gradient::Body,
    },
];

//! Rotary position embedding (Su et al. 2021, arXiv 2104.09864), Hugging Face's half-split pairing:
//! entry i turns with entry i + e/2.
//!
//! The table is one operation, so that all calls of a step share it; its attributes hold the f32
//! inverse frequencies and a multiplier, computed by import for every kind of scaling. The angle is
//! f32(position)·f32(frequency), rounded once to f32; its sine and cosine are taken in f64.

use crate::core::{AttrDef, AttrKind, GradArg, Gradient, OpDef, Semantics, Template};

pub(super) const OPS: &[OpDef] = &[
    OpDef {
        name: "rope_table",
        doc: "→ cos[s, h], sin[s, h] of position·inv_freq, times multiplier.",
        attrs: &[
            AttrDef { name: "inv_freq", kind: AttrKind::Floats, required: true },
            AttrDef { name: "multiplier", kind: AttrKind::Float, required: true },
            AttrDef { name: "size", kind: AttrKind::Int, required: true },
            AttrDef { name: "dtype", kind: AttrKind::Str, required: true },
        ],
        template: Template::Loop,
        semantics: Semantics::Composite(include_str!("table.shard")),
        gradient: Gradient::None("it has no operands"),
    },
    OpDef {
        name: "rope",
        doc: "x[b, s, .., e], cos[s, h], sin[s, h] → x turned by its position; e = 2·h.",
        attrs: &[],
        template: Template::Loop,
        semantics: Semantics::Composite(include_str!("forward.shard")),
        gradient: Gradient::Backward {
            op: "rope_bwd",
            args: &[GradArg::Cotangent(0), GradArg::Operand(1), GradArg::Operand(2)],
            wrt: &[0],
            attrs: &[],
        },
    },
    OpDef {
        name: "rope_bwd",
        doc: "dy, cos, sin → dx: the turn backwards.",
        attrs: &[],
        template: Template::Loop,
        semantics: Semantics::Composite(include_str!("backward.shard")),
        gradient: Gradient::Body,
    },
];

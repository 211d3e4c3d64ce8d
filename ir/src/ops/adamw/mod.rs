//! `adamw`: one optimizer step (Loshchilov, Hutter 2017, arXiv 1711.05101), as torch.optim.AdamW.

use crate::core::{AttrDef, AttrKind, Gradient, OpDef, Semantics, Template};

pub(super) const OPS: &[OpDef] = &[OpDef {
    name: "adamw",
    doc: "p, g, m, v, t → p', m', v'. t counts steps from 1; bias corrections are computed in f64.",
    attrs: &[
        AttrDef { name: "lr", kind: AttrKind::Float, required: true },
        AttrDef { name: "beta1", kind: AttrKind::Float, required: true },
        AttrDef { name: "beta2", kind: AttrKind::Float, required: true },
        AttrDef { name: "eps", kind: AttrKind::Float, required: true },
        AttrDef { name: "weight_decay", kind: AttrKind::Float, required: true },
    ],
    template: Template::Loop,
    semantics: Semantics::Composite(include_str!("step.shard")),
    gradient: Gradient::None("an update is not differentiated"),
}];

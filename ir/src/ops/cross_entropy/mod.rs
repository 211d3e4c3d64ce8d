//! `cross_entropy` of logits against class indices, in natural logarithm. Over a split vocabulary the
//! maximum, the sum and the target's logit are each combined inside (Megatron-LM, arXiv 1909.08053).

use crate::core::{GradArg, Gradient, OpDef, Semantics, Template};

pub(super) const OPS: &[OpDef] = &[
    OpDef {
        name: "cross_entropy",
        doc: "logits[.., v], labels[..] → loss[..] = lse − logits[label], lse[..].",
        attrs: &[],
        template: Template::Loop,
        semantics: Semantics::Composite(include_str!("forward.shard")),
        gradient: Gradient::Backward {
            op: "cross_entropy_bwd",
            args: &[GradArg::Operand(0), GradArg::Operand(1), GradArg::Result(1), GradArg::Cotangent(0)],
            wrt: &[0],
            attrs: &[],
        },
    },
    OpDef {
        name: "cross_entropy_bwd",
        doc: "logits, labels, lse, dloss → dlogits = (softmax − onehot)·dloss; free over the vocabulary.",
        attrs: &[],
        template: Template::Loop,
        semantics: Semantics::Composite(include_str!("backward.shard")),
        gradient: Gradient::Body,
    },
];

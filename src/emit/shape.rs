//! A decoder as frameworks describe one: a layer, and which layers differ how.

use crate::decoder::{Attention, Decoder, Experts, Ffn, Layer, Mlp};

/// The one layer that a framework's flags describe, and what differs from layer to layer.
#[derive(Clone, Debug)]
pub(super) struct Shape<'a> {
    /// The last layer, which has experts where any has.
    pub layer: &'a Layer,
    /// The dense network of layers that have one.
    pub dense: Option<&'a Ffn>,
    /// The experts of layers that have them.
    pub experts: Option<&'a Experts>,
    /// By layer: whether it has experts.
    pub with_experts: Vec<bool>,
    /// By layer: the window of its attention.
    pub windows: Vec<Option<usize>>,
    /// Whether layers differ in anything else.
    pub differ: bool,
}

impl<'a> Shape<'a> {
    /// Of a decoder; `None` where it has no layers.
    pub fn of(decoder: &'a Decoder) -> Option<Shape<'a>> {
        let layer = &decoder.layers.last()?.layer;
        let layers = || decoder.layers.iter().flat_map(|r| std::iter::repeat_n(&r.layer, r.count));
        let mut dense = layers().filter_map(|l| match &l.mlp {
            Mlp::Dense(ffn) => Some(ffn),
            Mlp::Experts(_) => None,
        });
        let mut experts = layers().filter_map(|l| match &l.mlp {
            Mlp::Experts(experts) => Some(experts),
            Mlp::Dense(_) => None,
        });
        let (first_dense, first_experts) = (dense.next(), experts.next());
        let differ = dense.any(|d| Some(d) != first_dense)
            || experts.any(|e| Some(e) != first_experts)
            || layers().any(|l| unlike(l, layer));
        Some(Shape {
            layer,
            dense: first_dense,
            experts: first_experts,
            with_experts: layers().map(|l| matches!(l.mlp, Mlp::Experts(_))).collect(),
            windows: layers().map(|l| l.attention.window).collect(),
            differ,
        })
    }

    /// Its attention.
    pub fn attention(&self) -> &'a Attention {
        &self.layer.attention
    }

    /// The network whose activation and gate stand for all.
    pub fn network(&self) -> Option<&'a Ffn> {
        self.dense.or(self.experts.map(|e| &e.each))
    }
}

/// Whether layers differ in more than their window and their second half.
fn unlike(a: &Layer, b: &Layer) -> bool {
    let attention = Attention { window: b.attention.window, ..a.attention.clone() };
    a.norm != b.norm || a.form != b.form || attention != b.attention
}

/// Runs of equal values, as (value, count).
pub(super) fn runs<T: PartialEq + Clone>(values: &[T]) -> Vec<(T, usize)> {
    let mut out: Vec<(T, usize)> = Vec::new();
    for value in values {
        match out.last_mut() {
            Some((last, count)) if last == value => *count += 1,
            _ => out.push((value.clone(), 1)),
        }
    }
    out
}

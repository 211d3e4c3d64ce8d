//! Which part of the forward is computed again before the backward.

use super::{Item, Profile, Work};
use autoshard_cost::collectives::Kind;
use autoshard_ir::core::Template;

/// A recomputation policy.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub enum Recompute {
    /// Everything that the backward reads is kept.
    #[default]
    None,
    /// Only the inputs of a call are kept.
    Full,
    /// These parts are computed again.
    Parts(Vec<Part>),
}

/// A part of a layer that can be computed again by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Part {
    /// Attention between its projections.
    Attention,
    /// Norms.
    Norms,
    /// The MLP: its products and its activation.
    Mlp,
    /// The activation inside the MLP or the experts alone.
    Activation,
    /// Routing and experts, with their messages.
    Experts,
    /// The products that make heads from a latent (MLA).
    LatentHeads,
    /// Every second product, attention kept, loops again (torchtitan's selective policy by operation).
    HalfProducts,
}

/// What of `profile.forward` runs again.
pub(super) fn again(profile: &Profile, policy: &Recompute) -> Vec<Item> {
    match policy {
        Recompute::None => Vec::new(),
        Recompute::Full => profile.forward.clone(),
        Recompute::Parts(parts) => {
            let mut out = Vec::new();
            let mut products = 0usize;
            for item in &profile.forward {
                if matches!(item.work, Work::Product { weights: true, .. }) {
                    products += 1;
                }
                if parts.iter().any(|p| p.covers(item, products)) {
                    out.push(item.clone());
                }
            }
            out
        }
    }
}

impl Part {
    /// Whether the part computes a value again: by its name, its producer's template and whether it is of experts;
    /// `products` counts products with weights up to it.
    pub(super) fn makes(self, name: &str, template: Template, expert: bool, products: usize) -> bool {
        let head = name.split('.').next().unwrap_or(name);
        let is_loop = matches!(template, Template::Loop | Template::View | Template::Gather);
        let inner = ["gate", "up", "act"].contains(&head);
        match self {
            // The output is the projection's input; what the backward reads beside it comes again.
            Part::Attention => name == "lse",
            Part::Norms => is_loop && (["a", "m", "h"].contains(&head) || name.ends_with(".normed")),
            // Megatron's `mlp` is that of layers without experts.
            Part::Mlp => inner && !expert,
            Part::Activation => is_loop && (head == "act" || name.ends_with(".act")),
            Part::Experts => {
                let routing = ["router", "scores", "ranked", "choice", "weights", "inputs", "shared"];
                (inner && expert) || routing.contains(&head)
            }
            Part::LatentHeads => ["q", "k", "v", "kv"].contains(&head) && !name.contains("latent") && name != "kv.down",
            Part::HalfProducts => is_loop || (template == Template::Gemm && products.is_multiple_of(2)),
        }
    }

    /// Whether an item belongs to the part. Items are told apart by what they are and by the names that
    /// builders give to values: `act` for activations, `a`, `m` for norms.
    fn covers(self, item: &Item, products: usize) -> bool {
        let name = item.value.as_str();
        let head = name.split('.').next().unwrap_or(name);
        let is_loop = matches!(item.work, Work::Loop { .. });
        let is_product = matches!(item.work, Work::Product { .. });
        let mlp = ["gate", "up", "act", "down"].contains(&head);
        let routing = ["router", "scores", "ranked", "choice", "weights", "slot", "inputs", "experts"];
        let expert = mlp || routing.contains(&head);
        match self {
            Part::Attention => matches!(item.work, Work::Attention { .. }) || name.starts_with("attention."),
            Part::Norms => is_loop && (["a", "m", "h"].contains(&head) || name.ends_with(".normed")),
            Part::Mlp => mlp && !matches!(item.work, Work::Message(_)),
            Part::Activation => is_loop && (head == "act" || name.ends_with(".act")),
            Part::Experts => expert,
            Part::LatentHeads => is_product && (name == "q" || name == "kv"),
            // Inputs of products are gathered again, sums are kept.
            Part::HalfProducts => {
                let gathers = matches!(item.work, Work::Message(m) if m.kind == Kind::AllGather);
                is_loop || gathers || (is_product && products.is_multiple_of(2))
            }
        }
    }
}

//! What a plan may compute again.

use super::Ask;
use crate::predict::{Module, Recompute};

/// A way to need less memory.
#[derive(Clone, Debug, PartialEq)]
pub enum Policy {
    /// Nothing, or whole layers: as few of each stage as memory wants.
    Layers,
    /// As it is said.
    Said(Recompute),
}

impl Policy {
    /// The recomputation whose profile prices it.
    pub fn priced_as(&self) -> Recompute {
        match self {
            Policy::Layers => Recompute::Full,
            Policy::Said(said) => said.clone(),
        }
    }
}

/// The policies of a space, [`Policy::Layers`] first where nothing is fixed: the others are tried where it has to
/// compute something again.
pub fn policies(ask: &Ask) -> Vec<Policy> {
    if let Some(fixed) = &ask.fix.recompute {
        return vec![Policy::Said(fixed.clone())];
    }
    let mut light = vec![Module::LayerNorm];
    light.extend((ask.facts.experts > 0).then_some(Module::MoeAct));
    let selective = |modules: Vec<Module>| Policy::Said(Recompute::Selective(modules));
    vec![Policy::Layers, selective(vec![Module::CoreAttn]), selective(light), selective(vec![Module::Mlp])]
}

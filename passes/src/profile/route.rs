//! Tokens on their way to experts and back.

use super::walk::Walk;
use super::{Axis, Behind, Item, Message, Spread, Work};
use autoshard_cost::collectives::Kind;
use autoshard_ir::core::{Node, Type, ValueId};

/// Direction of a routing node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    /// Tokens to slots.
    Out,
    /// Slots to tokens.
    Back,
}

impl Walk<'_> {
    /// Whether a value holds the slots of experts.
    fn is_slots(&self, v: ValueId) -> bool {
        let ty = self.f.ty(v);
        ty.dim("E").is_some() && ty.dim("c").is_some() && ty.dtype.is_float()
    }

    /// Whether a node sends tokens to the slots of experts, or brings them back.
    pub(super) fn routes(&self, node: &Node) -> Option<Side> {
        match (node.inputs.iter().any(|v| self.is_slots(*v)), node.results.iter().any(|v| self.is_slots(*v))) {
            (false, true) => Some(Side::Out),
            (true, false) => Some(Side::Back),
            _ => None,
        }
    }

    /// Slots over tokens at a node that routes: the copies of each token.
    fn copies(&self, node: &Node, slots: &Type) -> Option<f64> {
        let token = |v: &&ValueId| {
            let ty = self.f.ty(**v);
            ty.dtype.is_float() && ty.dim("E").is_none() && ty.dim("s").is_some() && ty.dim("d").is_some()
        };
        let tokens = node.inputs.iter().chain(&node.results).find(token)?;
        Some(slots.elements() as f64 / self.f.ty(*tokens).elements() as f64)
    }

    /// Tokens to experts or back: permutations on both ends of an all-to-all, and its transpose.
    pub(super) fn route(&mut self, i: usize, side: Side) {
        let node = &self.f.nodes[i];
        let Some(slots) = node.inputs.iter().chain(&node.results).find(|v| self.is_slots(**v)) else { return };
        let ty = self.f.ty(*slots);
        let s = self.shards;
        let experts = ty.dim("E").map_or(1.0, |d| ty.dims[d].size as f64);
        let copies = self.copies(node, ty);
        let spread = copies.filter(|_| self.habits.dispatch_once).map(|copies| Spread { experts, copies });
        let bytes = ty.elements() as f64 * ty.dtype.bytes() as f64 / (s.cp * s.tp) as f64;
        // What a rank sends: a copy for each expert, or one for each rank that has some.
        let sent = bytes * spread.map_or(1.0, |c| c.share(s.ep as f64));
        // Tokens are copied in the order of their experts before the message: each is read once, its copies are
        // written. After it what came is put in the order of the rank's experts, unless it has one.
        let mut permute = (bytes + bytes / copies.unwrap_or(1.0).max(1.0), 1.0);
        if s.ep > 1 && experts > s.ep as f64 {
            permute = (permute.0 + bytes + sent, 2.0);
        }
        let value = self.f.value(node.results[0]).name.clone();
        let permute = Item::new(value.clone(), Work::Loop { bytes: permute.0, launches: permute.1 });
        let message = |kind: Kind, axis: Axis, bytes: f64, spread: Option<Spread>| {
            let m = Message { kind, axis, bytes, count: 1.0, behind: Behind::Nothing, beside: None, spread };
            Item::new(value.clone(), Work::Message(m))
        };
        let exchange = (s.ep > 1).then(|| message(Kind::AllToAll, Axis::Ep, sent, spread));
        let wide = |kind: Kind| (s.etp > 1).then(|| message(kind, Axis::Etp, bytes * s.etp as f64, None));
        let (there, back) = match side {
            Side::Out => (Kind::AllGather, Kind::ReduceScatter),
            Side::Back => (Kind::ReduceScatter, Kind::AllGather),
        };
        self.out.forward.push(permute.clone());
        self.out.forward.extend(exchange.clone());
        self.out.forward.extend(wide(there));
        self.out.backward_input.push(permute);
        self.out.backward_input.extend(exchange);
        self.out.backward_input.extend(wide(back));
    }
}

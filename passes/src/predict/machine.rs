//! A cluster's tables and links as rates.

use super::{Group, Rates, Transfer};
use crate::profile::Spread;
use autoshard_cost::cluster::Medium;
use autoshard_cost::collectives::{Collectives, Kind};
use autoshard_cost::kernels::{Attention, How, Kernels, Product, Time};
use autoshard_cost::layout::{Placement, Span};

/// Kernel tables and links.
#[derive(Clone, Debug)]
pub struct Machine<'a> {
    /// Times of one device, in bursts.
    pub kernels: &'a Kernels,
    /// Times of messages.
    pub collectives: &'a Collectives,
    /// Where the ranks of each group sit. A group that is not listed has one rank.
    pub placements: &'a [(Group, Placement)],
}

impl Machine<'_> {
    fn placement(&self, group: Group) -> Option<&Placement> {
        self.placements.iter().find(|(g, _)| *g == group).map(|(_, p)| p)
    }
}

impl Rates for Machine<'_> {
    fn product(&self, p: &Product) -> Time {
        self.kernels.product_of_narrow(p)
    }

    fn attention(&self, a: &Attention) -> Time {
        self.kernels.attention(a)
    }

    fn memory(&self, bytes: f64) -> Time {
        self.kernels.loop_(bytes)
    }

    fn transfer(&self, kind: Kind, group: Group, bytes: f64) -> Transfer {
        let Some(placement) = self.placement(group) else {
            return Transfer { seconds: 0.0, tier: 0, load: 0.0, network: false, how: How::Interpolated };
        };
        let t = self.collectives.seconds(kind, placement, bytes);
        let network = placement.spans.iter().any(|s| s.members > 1 && s.medium == Medium::Network);
        Transfer { seconds: t.seconds, tier: t.tier as u16, load: t.load as f32, network, how: t.how }
    }

    /// A token crosses the network once for each node, and goes on inside it to each rank. Both parts are
    /// all-to-alls of their own groups and run at the same time (DeepEP forwards from rank to rank of a node
    /// while it receives).
    fn dispatch(&self, group: Group, bytes: f64, spread: &Spread) -> Transfer {
        let whole = self.transfer(Kind::AllToAll, group, bytes);
        let outside = |s: &Span| s.members > 1 && s.medium == Medium::Network;
        let Some(placement) = self.placement(group) else { return whole };
        let nodes: u64 = placement.spans.iter().filter(|s| outside(s)).map(|s| s.members).product();
        if nodes == 1 {
            return whole;
        }
        // Inside a node as if the group were there alone.
        let mut local = placement.clone();
        for s in local.spans.iter_mut().filter(|s| outside(s)) {
            s.members = 1;
        }
        local.size = placement.size / nodes;
        let within = self.collectives.seconds(Kind::AllToAll, &local, bytes);
        let fewer = spread.share(nodes as f64) / spread.share(placement.size as f64);
        let across = self.transfer(Kind::AllToAll, group, bytes * fewer);
        Transfer { seconds: across.seconds.max(within.seconds), ..across }
    }
}

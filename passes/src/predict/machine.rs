//! A cluster's tables and links as rates.

use super::{Group, Rates, Transfer};
use autoshard_cost::collectives::{Collectives, Kind};
use autoshard_cost::kernels::{Attention, How, Kernels, Product, Time};
use autoshard_cost::layout::Placement;

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
        self.kernels.product(p)
    }

    fn attention(&self, a: &Attention) -> Time {
        self.kernels.attention(a)
    }

    fn memory(&self, bytes: f64) -> Time {
        self.kernels.loop_(bytes)
    }

    fn transfer(&self, kind: Kind, group: Group, bytes: f64) -> Transfer {
        let Some(placement) = self.placement(group) else {
            return Transfer { seconds: 0.0, tier: 0, load: 0.0, how: How::Interpolated };
        };
        let t = self.collectives.seconds(kind, placement, bytes);
        Transfer { seconds: t.seconds, tier: t.tier as u16, load: t.load as f32, how: t.how }
    }
}

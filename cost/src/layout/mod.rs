//! Where the ranks of a group sit on a cluster's tiers.
//!
//! Ranks are nested axes, the innermost fastest, and rank r is device r: tiers are filled from the inside
//! out. A group is the set of ranks that differ only in the named axes. [`place`] counts, tier by tier, how
//! its ranks spread, and says what one of them can send while all groups of these axes do the same.

mod axes;
mod count;
mod error;
mod fill;
#[cfg(test)]
mod tests;
mod torus;

pub use axes::{default_layout, MeshAxis, ORDER};
pub use error::LayoutError;
pub use fill::filled;

use crate::cluster::{Cluster, Medium, Tier};
use count::{counts, merged, Digit, MOST_ENUMERATED};

/// The ranks of a group, seen from each tier, innermost first.
///
/// A group of `size` ranks touches `members[t]` members of tier t−1 within each member of tier t that it
/// touches, so the product of `members` is `size`.
///
/// Where sizes do not divide (a group of 6 in nodes of 8), units of a tier hold different numbers of a
/// group's ranks. Then the unit with the fewest, over all groups, counts for all: what its ranks have to
/// fetch from outside is the most and their ways out are the fewest, so it is the last to finish. Its number
/// is rounded down to a divisor of the group, and the span that joins such units is marked
/// [`uneven`](Span::uneven).
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Placement {
    /// Ranks in the group.
    pub size: u64,
    /// Per tier of the cluster, innermost first.
    pub spans: Vec<Span>,
    /// Whether the axes need more devices than the tiers join: the last tier is then taken to be wider.
    pub replicated: bool,
}

/// One tier's part of a [`Placement`].
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Span {
    /// Members of the tier below that one group joins here; 1 where it does not cross this tier.
    pub members: u64,
    /// Bytes/s that one rank of the group can send across this tier, in one direction, while all other
    /// groups of the same axes do the same: bandwidth of a device over oversubscription, held by the
    /// narrowest tier of the same medium on the way, and on a torus by the axes that the group spans. A
    /// device's bandwidth is its fair share of the node's interfaces.
    pub bandwidth: f64,
    /// Seconds of one step across this tier.
    pub latency: f64,
    /// What carries it.
    pub medium: Medium,
    /// Whether its switches add up reductions.
    pub in_network_reduction: bool,
    /// Whether `bandwidth` is a usable rate, see [`Tier::effective`].
    pub effective: bool,
    /// Groups of the same axes that share the links of one member of this tier; 1 where the group does not
    /// cross it. `bandwidth` holds for each rank whatever this is.
    pub concurrent: u64,
    /// Whether members hold different numbers of a group's ranks, so that `members` is the worst group's.
    pub uneven: bool,
}

impl Placement {
    /// The outermost tier that the group crosses; `None` for a group of one.
    pub fn outermost(&self) -> Option<usize> {
        self.spans.iter().rposition(|s| s.members > 1)
    }

    /// Ranks of the group within one unit of a tier (the product of `members` up to it).
    pub fn within(&self, tier: usize) -> u64 {
        self.spans.iter().take(tier + 1).map(|s| s.members).product()
    }
}

/// Places a group on a cluster: `axes` innermost first, `group` the names of those in which its ranks
/// differ. An axis of size 1 may be named; an empty group is every rank by itself.
///
/// # Errors
/// Axes that are empty, unknown or named twice, too many ranks, or a cluster whose tiers join nothing.
pub fn place(cluster: &Cluster, axes: &[MeshAxis], group: &[&str]) -> Result<Placement, LayoutError> {
    let world = axes::world(axes)?;
    axes::known(axes, group)?;
    check(cluster)?;
    let digits = axes.iter().map(|a| Digit { size: a.size, varies: group.contains(&a.name.as_str()) });
    let filled = filled(cluster, world);
    let cluster = filled.as_ref();
    let grid = Grid { cluster, units: cluster.unit_sizes(), digits: merged(digits), world };
    let size = grid.digits.iter().filter(|d| d.varies).map(|d| d.size).product();
    let mut spans = Vec::with_capacity(cluster.tiers.len());
    // From the outside in: the last tier joins all there is.
    let mut outer = size;
    for at in (0..cluster.tiers.len()).rev() {
        let part = grid.part(outer, grid.below(at)).ok_or_else(|| uncountable(cluster, at))?;
        spans.push(grid.span(at, outer, part).ok_or_else(|| uncountable(cluster, at))?);
        outer = part.ranks;
    }
    spans.reverse();
    Ok(Placement { size, spans, replicated: cluster.capacity().is_some_and(|most| most < world) })
}

/// Ranks on devices.
struct Grid<'a> {
    cluster: &'a Cluster,
    /// Devices in a unit of each tier.
    units: Vec<Option<u64>>,
    digits: Vec<Digit>,
    /// All ranks.
    world: u64,
}

/// What a unit holds of a group.
#[derive(Clone, Copy)]
struct Part {
    /// Ranks of a group in each unit; divides those of the next tier.
    ranks: u64,
    /// Whether units differ.
    uneven: bool,
}

impl Grid<'_> {
    /// Ranks on each member that a tier joins.
    fn below(&self, tier: usize) -> u64 {
        let unit = tier.checked_sub(1).map_or(Some(1), |inner| self.units[inner]);
        unit.map_or(self.world, |u| u.min(self.world))
    }

    /// The ranks of a group in units of `unit` devices, out of `outer` in units of the next tier; `None` where
    /// they are too many to count.
    fn part(&self, outer: u64, unit: u64) -> Option<Part> {
        if unit >= self.world {
            return Some(Part { ranks: outer, uneven: false });
        }
        let found = counts(&self.digits, unit)?;
        let ranks = (1..=found.least).rev().find(|d| outer.is_multiple_of(*d))?;
        Some(Part { ranks, uneven: found.least != found.most || ranks != found.least })
    }

    fn span(&self, at: usize, outer: u64, part: Part) -> Option<Span> {
        let tier = &self.cluster.tiers[at];
        let members = outer / part.ranks;
        let share = match tier.medium {
            Medium::Torus => self.torus_share(at),
            _ => 1.0,
        };
        Some(Span {
            members,
            bandwidth: share * reach(&self.cluster.tiers[..=at]),
            latency: tier.latency,
            medium: tier.medium,
            in_network_reduction: tier.in_network_reduction,
            effective: tier.effective,
            concurrent: if members > 1 { self.below(at).div_ceil(part.ranks) } else { 1 },
            uneven: part.uneven,
        })
    }

    /// The part of its links that a rank can use in a torus: of the axes of its slice that the group has, two
    /// links where the axis wraps around and one where it does not. A torus is the innermost tier.
    fn torus_share(&self, at: usize) -> f64 {
        let pod = &self.cluster.tiers[at].torus;
        let below = self.below(at);
        let devices = self.units[at].map_or(self.world, |u| u.min(self.world)) / below.max(1);
        let taken = torus::taken(&torus::slice(pod, devices), &self.digits);
        let links: u32 = taken.iter().map(|a| if a.wraps { 2 } else { 1 }).sum();
        let all = 2 * pod.len();
        if links == 0 || all == 0 {
            1.0
        } else {
            (f64::from(links) / all as f64).min(1.0)
        }
    }
}

/// Bytes/s of a device across the last of these tiers. What leaves through it came through the inner tiers
/// of the same medium (a spine is reached through leaves), so the narrowest of them holds.
fn reach(tiers: &[Tier]) -> f64 {
    let medium = tiers.last().map(|t| t.medium);
    let same = tiers.iter().filter(|t| Some(t.medium) == medium);
    same.map(|t| t.bandwidth / t.oversubscription).fold(f64::INFINITY, f64::min)
}

/// What the arithmetic here rests on.
fn check(cluster: &Cluster) -> Result<(), LayoutError> {
    let Some((_, inner)) = cluster.tiers.split_last() else {
        return Err(LayoutError::NoTiers { cluster: cluster.id.clone() });
    };
    if let Some(tier) = inner.iter().find(|t| t.fanout.is_none()) {
        return Err(LayoutError::Unbounded { cluster: cluster.id.clone(), tier: tier.name.clone() });
    }
    match cluster.tiers.iter().find(|t| t.fanout == Some(0)) {
        Some(tier) => Err(LayoutError::ZeroFanout { cluster: cluster.id.clone(), tier: tier.name.clone() }),
        None => Ok(()),
    }
}

fn uncountable(cluster: &Cluster, at: usize) -> LayoutError {
    LayoutError::Uncountable { tier: cluster.tiers[at].name.clone(), most: MOST_ENUMERATED }
}

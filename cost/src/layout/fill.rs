//! How many devices of each rack a job takes.

use crate::cluster::{Cluster, Medium};
use std::borrow::Cow;

/// Devices of a scale-up domain beyond which it is a rack's and a job takes equal parts of several.
const MOST_PER_SERVER: u64 = 16;

/// The cluster with the part of each rack-scale domain that a job of `world` devices uses, where it needs several.
///
/// A scheduler gives a job as many devices of each domain (Slurm's `--segment` with block topology: 16 of the 18
/// servers of an NVL72 rack), so that groups of a power of two do not straddle domains. The part is the largest
/// that divides the job, if that leaves no more than a quarter of the domain idle and the domains are there.
pub fn filled(cluster: &Cluster, world: u64) -> Cow<'_, Cluster> {
    let Some(part) = part(cluster, world) else { return Cow::Borrowed(cluster) };
    let mut out = cluster.clone();
    out.tiers[0].fanout = Some(part);
    Cow::Owned(out)
}

/// Devices of each domain, where they are not all.
fn part(cluster: &Cluster, world: u64) -> Option<u64> {
    let inner = cluster.tiers.first()?;
    let domain = inner.fanout.filter(|d| inner.medium == Medium::ScaleUp && *d > MOST_PER_SERVER && world > *d)?;
    let part = (1..domain).rev().find(|d| world.is_multiple_of(*d))?;
    let most = cluster.devices.or(cluster.capacity());
    let there = most.is_none_or(|most| (world / part).saturating_mul(domain) <= most);
    (!world.is_multiple_of(domain) && 4 * part >= 3 * domain && there).then_some(part)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::Tier;

    fn racks(domain: u64, devices: Option<u64>) -> Cluster {
        let tier = |fanout| Tier { fanout, medium: Medium::ScaleUp, oversubscription: 1.0, ..Tier::default() };
        let racks = devices.map(|d| d / domain);
        Cluster { tiers: vec![tier(Some(domain)), tier(racks)], ..Cluster::default() }
    }

    #[test]
    fn racks_are_filled_equally() {
        let taken = |world, cluster: &Cluster| filled(cluster, world).tiers[0].fanout;
        let any = racks(72, None);
        assert_eq!([64, 128, 256, 2048].map(|n| taken(n, &any)), [72, 64, 64, 64].map(Some));
        // Whole racks, and parts that would leave more than a quarter idle.
        assert_eq!([144, 576, 96, 79].map(|n| taken(n, &any)), [72, 72, 72, 72].map(Some));
        // Five racks of 72 hold five times 64, not six.
        let five = racks(72, Some(360));
        assert_eq!([320, 384].map(|n| taken(n, &five)), [64, 72].map(Some));
        // Servers are taken whole.
        assert_eq!(taken(12, &racks(8, None)), Some(8));
    }
}

//! How many devices of each unit a job takes.

use crate::cluster::{Cluster, Medium};
use std::borrow::Cow;

/// The cluster as a job of `world` devices uses it: of each unit as many devices as let all units be equal, if
/// that is more than half of them. 256 devices of racks of 72 are four times 64, because a job that filled
/// racks would have its groups cross them (dgxc's and Megatron-Bridge's runs on NVL72 are multiples of 64).
///
/// Tori are taken as they are, and so is everything where the whole units would not be there.
pub fn filled(cluster: &Cluster, world: u64) -> Cow<'_, Cluster> {
    let mut out = Cow::Borrowed(cluster);
    let mut inner = 1u64;
    let last = cluster.tiers.len().saturating_sub(1);
    for (at, tier) in cluster.tiers.iter().enumerate().take(last) {
        let Some(fanout) = tier.fanout else { break };
        let taken = match tier.medium {
            Medium::Torus => fanout,
            _ => equal_share(fanout, inner, world),
        };
        let units = world / inner.saturating_mul(taken).max(1);
        let there = cluster.capacity().is_none_or(|most| {
            let unit = cluster.unit_sizes().get(at).copied().flatten().unwrap_or(most);
            units.saturating_mul(unit) <= most
        });
        if taken != fanout && there {
            out.to_mut().tiers[at].fanout = Some(taken);
            inner = inner.saturating_mul(taken);
        } else {
            inner = inner.saturating_mul(fanout);
        }
    }
    out
}

/// Members of a unit that are taken: the most that divide the job, more than half; else all.
fn equal_share(fanout: u64, inner: u64, world: u64) -> u64 {
    if inner == 0 || !world.is_multiple_of(inner) || world <= inner.saturating_mul(fanout) {
        return fanout;
    }
    let members = world / inner;
    (fanout / 2 + 1..=fanout).rev().find(|k| members.is_multiple_of(*k)).unwrap_or(fanout)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::Tier;

    fn racks(fanout: u64, devices: Option<u64>) -> Cluster {
        let tier = |fanout| Tier { fanout, oversubscription: 1.0, ..Tier::default() };
        let racks = devices.map(|d| d / fanout);
        Cluster { tiers: vec![tier(Some(fanout)), tier(racks)], ..Cluster::default() }
    }

    #[test]
    fn racks_are_filled_equally() {
        let taken = |world, cluster: &Cluster| filled(cluster, world).tiers[0].fanout;
        let any = racks(72, None);
        assert_eq!([64, 128, 256, 2048].map(|n| taken(n, &any)), [72, 64, 64, 64].map(Some));
        assert_eq!([144, 576, 96, 100].map(|n| taken(n, &any)), [72, 72, 48, 50].map(Some));
        // 74 = 2 · 37, 79 is prime.
        assert_eq!([74, 79].map(|n| taken(n, &any)), [37, 72].map(Some));
        // Five racks of 72 hold no six times 64.
        assert_eq!(taken(384 - 64, &racks(72, Some(360))), Some(64));
        assert_eq!(taken(384, &racks(72, Some(360))), Some(72));
        assert_eq!(taken(24, &racks(8, None)), Some(8));
    }
}

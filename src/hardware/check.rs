//! Whether a cluster's figures agree with each other.

use autoshard_cost::cluster::Cluster;

use super::read::{Place, Read};
use super::tier::MOST_PER_SERVER;

/// Refuses figures that contradict each other, naming both.
pub(super) fn check(cluster: &Cluster, row: &Place) -> Read<()> {
    check_size(cluster, row)?;
    check_nodes(cluster, row)
}

/// Devices against the product of the fan-outs.
fn check_size(cluster: &Cluster, row: &Place) -> Read<()> {
    let fields = row.fields();
    let unbounded = cluster.tiers.last().is_some_and(|t| t.fanout.is_none());
    let fanouts: Vec<String> = cluster.tiers.iter().filter_map(|t| t.fanout).map(|n| n.to_string()).collect();
    let fanouts = fanouts.join("x");
    match (cluster.devices, cluster.capacity()) {
        (_, None) if !unbounded => {
            Err(fields.invalid("tiers", format!("the fan-outs {fanouts} multiply to more than 2^64 devices")).into())
        }
        (Some(devices), Some(most)) if devices > most => {
            let why = format!(
                "is {devices}, but the tiers join at most {most} ({fanouts}); widen the last fan-out, or make it null for any number"
            );
            Err(fields.invalid("devices", why).into())
        }
        (Some(devices), Some(most)) if devices < most => {
            let why = format!("is {devices}, but the fan-outs {fanouts} multiply to {most}; make the two agree");
            Err(fields.invalid("devices", why).into())
        }
        _ => Ok(()),
    }
}

/// Devices of a node against the inner tiers, and times the nodes against all devices.
fn check_nodes(cluster: &Cluster, row: &Place) -> Read<()> {
    let fields = row.fields();
    let per_node = cluster.devices_per_node;
    let units: Vec<u64> = cluster.unit_sizes().into_iter().flatten().collect();
    // A rack-scale domain joins several servers: its tier is wider than any server.
    let in_domain = units.first().is_some_and(|first| *first > MOST_PER_SERVER && first.is_multiple_of(per_node));
    if per_node > 1 && !units.contains(&per_node) && !in_domain && !within_unbounded(cluster, &units, per_node) {
        let products: Vec<String> = units.iter().map(u64::to_string).collect();
        let why = format!(
            "is {per_node}, but the tiers from the inside out join {} devices; a node is one of these",
            if products.is_empty() { "any number of".to_string() } else { products.join(", ") }
        );
        return Err(fields.invalid("devices_per_node", why).into());
    }
    match (row.count("nodes")?, cluster.devices) {
        (Some(nodes), Some(devices)) if nodes.checked_mul(per_node) != Some(devices) => {
            let why =
                format!("{nodes} nodes of {per_node} devices are not the {devices} of `devices`; make them agree");
            Err(fields.invalid("nodes", why).into())
        }
        _ => Ok(()),
    }
}

/// One unbounded tier alone says nothing of nodes.
fn within_unbounded(cluster: &Cluster, units: &[u64], per_node: u64) -> bool {
    units.is_empty() && cluster.devices.is_none_or(|d| d.is_multiple_of(per_node))
}

//! The machine of a row.
//!
//! Where a row names a cluster, that preset is its machine. Where it does not (the network is not known to be
//! a listed one), the machine is made of the row's accelerator, its devices a server, and the bandwidths that
//! it states; a bandwidth that it does not state is the device's own. Such a machine is marked.

use super::RunRow;
use autoshard_cost::cluster::{Cluster, Medium, Tier};
use autoshard_cost::device::Device;

/// Seconds of a step inside a server and between servers, where nothing is stated: what the presets of
/// NVLink and InfiniBand systems have (from NCCL's tuner constants).
const LATENCY_INSIDE: f64 = 4e-6;
const LATENCY_BETWEEN: f64 = 14e-6;

/// Which machine a row ran on.
#[derive(Clone, Debug, PartialEq)]
pub enum Machine {
    /// The preset of this name.
    Preset(String),
    /// Made from what the row states, with what was assumed.
    Made(Box<Cluster>, String),
}

/// Chooses the machine of a row; `device` is its accelerator's.
///
/// # Errors
/// Where the row uses several servers and nothing says how fast they are joined.
pub fn machine(row: &RunRow, device: &Device) -> Result<Machine, String> {
    if let Some(cluster) = &row.cluster {
        return Ok(Machine::Preset(cluster.clone()));
    }
    let mut assumed = Vec::new();
    let own = (device.scale_up.bandwidth > 0.0).then_some(device.scale_up.bandwidth);
    let inside = bandwidth(row.bandwidth_inside, own.or(device.host_bandwidth), "in a server", &mut assumed);
    let between = bandwidth(row.bandwidth_between, device.network_bandwidth, "between servers", &mut assumed);
    let inside = inside.ok_or("the row and its accelerator state no bandwidth in a server")?;
    let medium = if own.is_some() { Medium::ScaleUp } else { Medium::Pcie };
    let mut tiers = vec![tier("server", Some(row.gpus_per_node), inside, LATENCY_INSIDE, medium)];
    match between {
        Some(b) => tiers.push(tier("network", None, b, LATENCY_BETWEEN, Medium::Network)),
        None if row.gpus > row.gpus_per_node => {
            return Err("the row and its accelerator state no bandwidth between servers".into())
        }
        None => {}
    }
    let mark = match assumed.is_empty() {
        true => "machine made of the row's bandwidths".to_string(),
        false => format!("machine made of the row's bandwidths; {} as the accelerator's", assumed.join(", ")),
    };
    let cluster = Cluster {
        id: format!("{}x{}", row.gpus_per_node, device.id),
        device: device.clone(),
        devices_per_node: row.gpus_per_node,
        devices: None,
        tiers,
        failures: None,
        price: None,
        price_source: String::new(),
        unverified_fields: Vec::new(),
        verified: false,
        sources: vec![format!("run {}", row.id)],
        notes: mark.clone(),
    };
    Ok(Machine::Made(Box::new(cluster), mark))
}

fn bandwidth(stated: Option<f64>, own: Option<f64>, place: &str, assumed: &mut Vec<String>) -> Option<f64> {
    if stated.is_none() && own.is_some() {
        assumed.push(format!("bandwidth {place}"));
    }
    stated.or(own)
}

fn tier(name: &str, fanout: Option<u64>, bandwidth: f64, latency: f64, medium: Medium) -> Tier {
    Tier {
        name: name.into(),
        fanout,
        bandwidth,
        oversubscription: 1.0,
        latency,
        medium,
        nics_per_node: None,
        in_network_reduction: false,
        torus: Vec::new(),
        effective: false,
        assumed: vec!["latency".into(), "oversubscription".into()],
        notes: String::new(),
    }
}

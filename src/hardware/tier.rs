//! A tier from its row, with what the row leaves open filled in and marked.

use autoshard_cost::cluster::{Medium, Tier};
use autoshard_cost::device::Device;

use super::error::{no_other_keys, suggest};
use super::read::{Place, Read};

const KEYS: [&str; 14] = [
    "name",
    "fanout",
    "gbs_per_dir_per_device",
    "topology",
    "latency_us",
    "oversubscription",
    "medium",
    "nic",
    "nics_per_node",
    "in_network_reduction",
    "torus",
    "effective",
    "below_device",
    "notes",
];

const GIGA: f64 = 1e9;

/// The most accelerators of one server: a scale-up domain that joins more spans several servers.
pub(super) const MOST_PER_SERVER: u64 = 16;

/// What a tier's row does not say itself.
pub(super) struct Around<'a> {
    pub device: &'a Device,
    pub devices_per_node: u64,
    /// Devices in one unit of the tier below.
    pub below: Option<u64>,
    /// Whether the cluster's bandwidths are usable rates.
    pub effective: bool,
}

/// Whether a row describes links within one device: `below_device`, or the name `in-package`, as for the two
/// halves of an MI250X.
pub(super) fn below_device(row: &Place) -> Read<bool> {
    Ok(row.flag("below_device")? || row.text("name")? == "in-package")
}

/// Reads a tier.
pub(super) fn read_tier(row: &Place, around: &Around) -> Read<Tier> {
    let fields = row.fields();
    no_other_keys(&fields, &KEYS)?;
    let name = fields.text("name")?.ok_or_else(|| fields.missing("name"))?.to_string();
    if !fields.map.contains_key("fanout") {
        return Err(fields.missing("fanout").into());
    }
    let fanout = row.count("fanout")?;
    let mut assumed = Vec::new();
    let topology = row.text("topology")?;
    let torus = row.counts("torus")?;
    let medium = read_medium(row, &name, &topology, fanout, around)?;
    let nic = row.text("nic")?;
    if !torus.is_empty() && fanout != product(&torus) {
        return Err(fields
            .invalid("torus", "its axes do not multiply to the tier's fan-out; make the two agree")
            .into());
    }
    let bandwidth = read_bandwidth(row, medium, around.device, &mut assumed)?;
    let latency = read_latency(row, "latency_us", medium, &mut assumed)?;
    let in_network_reduction = match fields.flag("in_network_reduction")? {
        Some(says) => says,
        None => {
            let adds = adds_up(medium, around.device, &topology);
            if adds {
                assumed.push("in_network_reduction".to_string());
            }
            adds
        }
    };
    Ok(Tier {
        name,
        fanout,
        bandwidth,
        oversubscription: read_oversubscription(row, &mut assumed)?,
        latency,
        medium,
        nics_per_node: row.small("nics_per_node")?.or_else(|| interfaces(&nic)),
        in_network_reduction,
        torus,
        effective: around.effective || row.flag("effective")?,
        assumed,
        notes: joined([topology, nic, row.text("notes")?]),
    })
}

/// The row's, else what the name says, else: within the device's fast domain scale-up, within a server PCIe,
/// beyond it a network.
fn read_medium(row: &Place, name: &str, topology: &str, fanout: Option<u64>, around: &Around) -> Read<Medium> {
    let fields = row.fields();
    if let Some(text) = fields.text("medium")? {
        let known = Medium::ALL.map(Medium::name);
        let unknown = || {
            let near = suggest(text, known.into_iter());
            fields.invalid("medium", format!("unknown medium {text}{near}; known: {}", known.join(", ")))
        };
        return Ok(Medium::from_name(text).ok_or_else(unknown)?);
    }
    let lower = name.to_lowercase();
    let says = |words: &[&str]| words.iter().any(|w| lower.contains(w));
    let within = |most: u64| {
        let unit = around.below.and_then(|below| below.checked_mul(fanout?));
        unit.is_some_and(|unit| unit <= most)
    };
    Ok(if row.has("torus") || says(&["torus"]) {
        Medium::Torus
    } else if says(&["nvlink", "xgmi", "neuronlink"]) {
        Medium::ScaleUp
    } else if says(&["pcie"]) || topology.starts_with("PCIe") {
        Medium::Pcie
    } else if within(around.device.scale_up.domain) && around.device.scale_up.bandwidth > 0.0 {
        Medium::ScaleUp
    } else if within(around.devices_per_node) {
        Medium::Pcie
    } else {
        Medium::Network
    })
}

/// The row's; where it is null, the device's own figure for the medium, marked.
fn read_bandwidth(row: &Place, medium: Medium, device: &Device, assumed: &mut Vec<String>) -> Read<f64> {
    let key = "gbs_per_dir_per_device";
    if let Some(found) = row.quantity(key, GIGA)? {
        return Ok(found);
    }
    let of_device = match medium {
        Medium::ScaleUp | Medium::Torus => Some(device.scale_up.bandwidth).filter(|b| *b > 0.0),
        Medium::Pcie => device.host_bandwidth,
        Medium::Network => device.network_bandwidth,
        Medium::Shared => None,
    };
    let there = row.fields().map.contains_key(key);
    let found = of_device.filter(|_| there).ok_or_else(|| row.fields().missing(key))?;
    assumed.push("bandwidth".to_string());
    Ok(found)
}

/// Seconds from the row's microseconds; where it has none, the medium's default, marked.
pub(super) fn read_latency(row: &Place, key: &str, medium: Medium, assumed: &mut Vec<String>) -> Read<f64> {
    Ok(row.at_least_zero(key, 1.0)?.map(|us| us / 1e6).unwrap_or_else(|| {
        assumed.push("latency".to_string());
        medium.default_latency()
    }))
}

fn read_oversubscription(row: &Place, assumed: &mut Vec<String>) -> Read<f64> {
    let fields = row.fields();
    match row.quantity("oversubscription", 1.0)? {
        None => {
            assumed.push("oversubscription".to_string());
            Ok(1.0)
        }
        Some(times) if times < 1.0 => {
            let why = format!("is {times}, but must be at least 1 (1 is full bisection; for 1:7 write 7)");
            Err(fields.invalid("oversubscription", why).into())
        }
        Some(times) => Ok(times),
    }
}

/// NVLink switches add up reductions since NVLink 4 (NVLink SHARP; NCCL calls its use NVLS).
fn adds_up(medium: Medium, device: &Device, topology: &str) -> bool {
    let link = &device.scale_up;
    let new = ["NVLink4", "NVLink5"].iter().any(|name| link.name.starts_with(name));
    let switched = format!("{topology} {}", link.topology).to_lowercase().contains("switch");
    medium == Medium::ScaleUp && new && switched && !topology.contains("mesh")
}

/// The count in `8x NDR 400G`; a text without one says nothing of interfaces.
fn interfaces(nic: &str) -> Option<u32> {
    nic.split_once('x').and_then(|(count, _)| count.trim().parse().ok()).filter(|n| *n > 0)
}

pub(super) fn product(sizes: &[u64]) -> Option<u64> {
    sizes.iter().try_fold(1u64, |p, n| p.checked_mul(*n))
}

/// The texts that are not empty, separated.
pub(super) fn joined<const N: usize>(texts: [String; N]) -> String {
    let given: Vec<&str> = texts.iter().map(String::as_str).filter(|t| !t.is_empty()).collect();
    given.join("; ")
}

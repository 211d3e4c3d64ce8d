//! A cluster from a row of `clusters.json`, or from a file of the user's in the same keys:
//!
//! ```json
//! {
//!   "device": "h100-sxm5", "devices_per_node": 8, "devices": null,
//!   "tiers": [
//!     {"name": "nvlink", "fanout": 8, "gbs_per_dir_per_device": 450, "latency_us": 4},
//!     {"name": "ib", "fanout": null, "gbs_per_dir_per_device": 50, "oversubscription": 2}
//!   ]
//! }
//! ```
//!
//! `device` (or `accelerator`) is a preset's name or an object as in `accelerators.json`. Tiers go from the
//! inside out; a fan-out of null, in the last tier only, is any number. What is null or left out and has a
//! safe default is filled in and named in [`Tier::assumed`]. In place of tiers, `torus` gives the axes of a
//! slice (`dims`), which becomes one tier; tiers beside it join slices.
//!
//! Two readings are worth knowing. Links within one device (a first tier `in-package`, or one with
//! `below_device`) are left out: a rank is a device. And a tier whose figure *times* its oversubscription is
//! the figure of the tier below it, of the same medium, is read as giving what oversubscription leaves: 50,
//! then 7.14 at 1:7, is the same network as 50, then 50 at 1:7.

use autoshard_cost::cluster::{Cluster, Failures, Medium, Tier};
use autoshard_cost::device::Device;
use serde_json::Value;

use super::catalogue::Catalogue;
use super::check::check;
use super::device::{read_device, read_sources};
use super::error::no_other_keys;
use super::read::{Place, Read};
use super::tier::{below_device, joined, product, read_latency, read_tier, Around};
use super::HardwareError;

const KEYS: [&str; 19] = [
    "id",
    "device",
    "accelerator",
    "devices_per_node",
    "nodes",
    "devices",
    "tiers",
    "torus",
    "dcn_gbps_per_device",
    "slice_max",
    "host",
    "failures",
    "price_usd_per_device_hour",
    "bw_effective",
    "sources",
    "verified",
    "unverified_fields",
    "second_hand",
    "notes",
];
const TORUS_KEYS: [&str; 5] = ["dims", "wrap", "link_gbs_per_dir", "links", "hop_us"];
const FAILURE_KEYS: [&str; 4] = ["per_thousand_node_days", "restart_seconds", "restart_seconds_per_device", "source"];

/// The most tiers of a cluster; real ones have up to five.
pub(super) const MOST_TIERS: usize = 64;

/// Reads a cluster; `default_id` is its name where it gives none.
pub(super) fn read_cluster(row: &Place, known: &Catalogue, default_id: &str) -> Read<Cluster> {
    let fields = row.fields();
    no_other_keys(&fields, &KEYS)?;
    let id = fields.text("id")?.unwrap_or(default_id).to_string();
    let (device, host) = read_host(row, read_its_device(row, known, &id)?)?;
    let devices_per_node = row.count("devices_per_node")?.ok_or_else(|| fields.missing("devices_per_node"))?;
    let devices = row.count("devices")?;
    let tiers = read_tiers(row, &device, devices_per_node, devices)?;
    let (price, price_source) = match row.at_least_zero("price_usd_per_device_hour", 1.0)? {
        Some(price) => (Some(price), "its own".to_string()),
        None => (device.price, device.price_source.clone()),
    };
    let mut cluster = Cluster {
        failures: Some(read_failures(row, known, &id)?),
        id,
        device,
        devices_per_node,
        devices,
        tiers,
        price,
        price_source,
        verified: row.flag("verified")?,
        unverified_fields: row.texts("unverified_fields")?,
        sources: read_sources(row)?,
        notes: joined([row.text("notes")?, host, slice_note(row)?]),
    };
    check(&cluster, row)?;
    cluster.devices = cluster.devices.or(cluster.capacity());
    Ok(cluster)
}

/// The preset that `device` or `accelerator` names, or the object that it holds.
fn read_its_device(row: &Place, known: &Catalogue, cluster: &str) -> Read<Device> {
    let fields = row.fields();
    let key = match (row.has("device"), row.has("accelerator")) {
        (true, true) => {
            return Err(fields.invalid("accelerator", "`device` is given too; they mean the same, keep one").into())
        }
        (false, true) => "accelerator",
        _ => "device",
    };
    match fields.given(key)? {
        None => Err(fields.missing(key).into()),
        Some(Value::Object(_)) => {
            let wanted = "a device's name or an object";
            let own = row.object(key, wanted)?.ok_or_else(|| fields.missing(key))?;
            read_device(&own, &format!("{cluster}-device"))
        }
        Some(_) => {
            let name = fields.text(key)?.unwrap_or_default();
            known.device(name).map_err(|e| match e {
                HardwareError::UnknownDevice { name, hint, .. } => {
                    HardwareError::UnknownDevice { place: format!("{}: `{key}`: ", fields.place(key)), name, hint }
                }
                other => other,
            })
        }
    }
}

/// A server's own link between host and device replaces the device's; the rest of `host` is told in the notes.
fn read_host(row: &Place, mut device: Device) -> Read<(Device, String)> {
    let Some(host) = row.object("host", "an object")? else { return Ok((device, String::new())) };
    for key in ["h2d_gbs_per_dir", "c2c_gbs_per_dir"] {
        if let Some(bandwidth) = host.quantity(key, 1e9)? {
            device.host_bandwidth = Some(bandwidth);
            device.host_link = format!("the server's ({key})");
        }
    }
    let fields = host.fields();
    let parts: Vec<String> =
        fields.map.iter().map(|(k, v)| format!("{k} {}", v.to_string().trim_matches('"'))).collect();
    let told = if parts.is_empty() { String::new() } else { format!("host: {}", parts.join(", ")) };
    Ok((device, told))
}

/// What `slice_max` and `dcn_gbps_per_device` say beside the tiers.
fn slice_note(row: &Place) -> Read<String> {
    let most = row.count("slice_max")?.map_or_else(String::new, |n| format!("slices of at most {n} devices"));
    let network = row.quantity("dcn_gbps_per_device", 1.0)?;
    let network = network.map_or_else(String::new, |n| format!("data-centre network {n} Gb/s a device"));
    Ok(joined([most, network]))
}

fn read_tiers(row: &Place, device: &Device, devices_per_node: u64, devices: Option<u64>) -> Read<Vec<Tier>> {
    let fields = row.fields();
    let mut rows = row.objects("tiers", "a tier: an object with name, fanout and gbs_per_dir_per_device")?;
    if rows.len() > MOST_TIERS {
        let why = format!("has {} tiers, but at most {MOST_TIERS} are read; join equal ones", rows.len());
        return Err(fields.invalid("tiers", why).into());
    }
    if rows.first().map(below_device).transpose()? == Some(true) {
        rows.remove(0);
    }
    let mut tiers = Vec::new();
    if let Some(torus) = row.object("torus", "an object with dims, link_gbs_per_dir and links")? {
        tiers.push(read_torus(&torus, row.count("slice_max")?.or(devices))?);
    }
    let effective = row.flag("bw_effective")?;
    let mut below = tiers.last().map_or(Some(1), |t: &Tier| t.fanout);
    for (at, tier_row) in rows.iter().enumerate() {
        let tier = read_tier(tier_row, &Around { device, devices_per_node, below, effective })?;
        if tiers.iter().any(|t: &Tier| t.name == tier.name) {
            let why = format!("two tiers are called {}; give each a name of its own", tier.name);
            return Err(tier_row.fields().invalid("name", why).into());
        }
        if tier.fanout.is_none() && at + 1 < rows.len() {
            let why = "is null (any number), which only the last tier may be; give the members that this tier joins";
            return Err(tier_row.fields().invalid("fanout", why).into());
        }
        below = below.and_then(|b| b.checked_mul(tier.fanout?));
        tiers.push(tier);
    }
    if tiers.is_empty() {
        return Err(fields
            .invalid("tiers", "there are none; a cluster needs at least one that joins its devices")
            .into());
    }
    Ok(tiers
        .iter()
        .enumerate()
        .map(|(at, t)| before_oversubscription(t, at.checked_sub(1).map(|b| &tiers[b])))
        .collect())
}

/// A tier whose figure is what oversubscription leaves of the tier below, with the figure before it.
fn before_oversubscription(tier: &Tier, below: Option<&Tier>) -> Tier {
    let whole = tier.bandwidth * tier.oversubscription;
    let left = |b: &Tier| b.medium == tier.medium && (whole / b.bandwidth - 1.0).abs() < 0.01;
    if tier.oversubscription <= 1.0 || !below.is_some_and(left) {
        return tier.clone();
    }
    let note = format!("{:.3} GB/s given: what oversubscription leaves", tier.bandwidth / 1e9);
    Tier { bandwidth: whole, notes: joined([tier.notes.clone(), note]), ..tier.clone() }
}

/// A slice as one tier: all links of a device together, latency of one hop.
fn read_torus(torus: &Place, devices: Option<u64>) -> Read<Tier> {
    let fields = torus.fields();
    no_other_keys(&fields, &TORUS_KEYS)?;
    let dims = torus.counts("dims")?;
    let links = torus.required("links", 1.0)?;
    let link = torus.required("link_gbs_per_dir", 1e9)?;
    let mut assumed = Vec::new();
    let fanout = if dims.is_empty() { devices } else { product(&dims) };
    if dims.is_empty() {
        assumed.push("torus".to_string());
    } else if fanout.is_none() || devices.is_some_and(|d| Some(d) != fanout) {
        let why = format!("{dims:?} do not multiply to the {} devices of a slice", devices.unwrap_or_default());
        return Err(fields.invalid("dims", why).into());
    }
    if fanout.is_none() {
        return Err(fields
            .invalid("dims", "is null and the number of devices is not known; give one of the two")
            .into());
    }
    let latency = read_latency(torus, "hop_us", Medium::Torus, &mut assumed)?;
    let wrap = torus.text("wrap")?;
    let shape: Vec<String> = dims.iter().map(u64::to_string).collect();
    let shape = if shape.is_empty() { "shape not known".to_string() } else { format!("torus {}", shape.join("x")) };
    Ok(Tier {
        name: "torus".to_string(),
        fanout,
        bandwidth: link * links,
        oversubscription: 1.0,
        latency,
        medium: Medium::Torus,
        torus: dims,
        assumed,
        notes: joined([
            shape,
            format!("{links} links of {} GB/s", link / 1e9),
            if wrap.is_empty() { wrap } else { format!("wraps around: {wrap}") },
        ]),
        ..Tier::default()
    })
}

/// The file's, else the published ones of this preset, else the general default.
fn read_failures(row: &Place, known: &Catalogue, id: &str) -> Read<Failures> {
    let default = known.failures(id);
    let Some(own) = row.object("failures", "an object with per_thousand_node_days")? else { return Ok(default) };
    no_other_keys(&own.fields(), &FAILURE_KEYS)?;
    let source = own.text("source")?;
    let restart = own.at_least_zero("restart_seconds", 1.0)?;
    // Who gives a restart time means the whole of it.
    let growth = restart.map_or(default.restart_seconds_per_device, |_| 0.0);
    Ok(Failures {
        per_thousand_node_days: own
            .at_least_zero("per_thousand_node_days", 1.0)?
            .ok_or_else(|| own.fields().missing("per_thousand_node_days"))?,
        restart_seconds: restart.unwrap_or(default.restart_seconds),
        restart_seconds_per_device: own.at_least_zero("restart_seconds_per_device", 1.0)?.unwrap_or(growth),
        assumed: false,
        source: if source.is_empty() { "its own".to_string() } else { source },
    })
}

//! Hardware as JSON, in plain units: FLOP/s, bytes, bytes/s, seconds, watts, US dollars an hour.

use autoshard::hardware::{Catalogue, Cluster, Device};
use serde_json::{json, Map, Value};

/// One line.
pub fn line(value: &Value) -> String {
    format!("{value}\n")
}

/// All devices and clusters.
pub fn all(known: &Catalogue) -> Value {
    json!({
        "devices": known.devices().iter().map(device).collect::<Vec<_>>(),
        "clusters": known.clusters().iter().map(cluster).collect::<Vec<_>>(),
    })
}

/// A device.
pub fn device(d: &Device) -> Value {
    let peak: Map<String, Value> = d.peak.iter().map(|(f, p)| (f.name().to_string(), json!(p))).collect();
    json!({
        "kind": "device",
        "id": d.id,
        "vendor": d.vendor,
        "year": d.year,
        "form": d.form,
        "peak_flops": peak,
        "vector_peak_flops": d.vector_peak,
        "memory_bytes": d.memory,
        "memory_kind": d.memory_kind,
        "memory_visible_bytes": d.memory_visible,
        "memory_bandwidth": d.memory_bandwidth,
        "cache_bytes": d.cache,
        "units": d.units,
        "clock_hz": d.clock,
        "scale_up": {
            "name": d.scale_up.name,
            "bandwidth": d.scale_up.bandwidth,
            "link_bandwidth": d.scale_up.link_bandwidth,
            "links": d.scale_up.links,
            "domain": d.scale_up.domain,
            "topology": d.scale_up.topology,
        },
        "host_bandwidth": d.host_bandwidth,
        "host_link": d.host_link,
        "network_bandwidth": d.network_bandwidth,
        "power_w": d.power,
        "price_usd_per_hour": d.price,
        "price_source": d.price_source,
        "sustained": d.sustained,
        "sustained_eight_bit": d.sustained_eight_bit,
        "sustained_source": d.sustained_source,
        "verified": d.verified,
        "unverified_fields": d.unverified_fields,
        "sources": d.sources,
        "notes": d.notes,
    })
}

/// A cluster.
pub fn cluster(c: &Cluster) -> Value {
    let tiers = c.tiers.iter().zip(c.unit_sizes()).map(|(t, unit)| {
        json!({
            "name": t.name,
            "fanout": t.fanout,
            "devices": unit,
            "bandwidth": t.bandwidth,
            "oversubscription": t.oversubscription,
            "bandwidth_when_all_talk": t.bandwidth / t.oversubscription,
            "latency_seconds": t.latency,
            "medium": t.medium.name(),
            "nics_per_node": t.nics_per_node,
            "in_network_reduction": t.in_network_reduction,
            "torus": t.torus,
            "effective": t.effective,
            "assumed": t.assumed,
            "notes": t.notes,
        })
    });
    let (format, peak) = super::text::main_rate(&c.device);
    let total = c.devices.map(|n| {
        json!({
            "format": format.name(),
            "peak_flops": n as f64 * peak,
            "memory_bytes": n as f64 * c.device.memory,
        })
    });
    let failures = c.failures.as_ref().map(|f| {
        json!({
            "per_thousand_node_days": f.per_thousand_node_days,
            "restart_seconds": f.restart_seconds,
            "restart_seconds_per_device": f.restart_seconds_per_device,
            "assumed": f.assumed,
            "source": f.source,
        })
    });
    json!({
        "kind": "cluster",
        "id": c.id,
        "device": device(&c.device),
        "devices_per_node": c.devices_per_node,
        "devices": c.devices,
        "tiers": tiers.collect::<Vec<_>>(),
        "total": total,
        "failures": failures,
        "price_usd_per_device_hour": c.price,
        "price_source": c.price_source,
        "verified": c.verified,
        "unverified_fields": c.unverified_fields,
        "sources": c.sources,
        "notes": c.notes,
    })
}

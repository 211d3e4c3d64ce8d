//! A device from a row of `accelerators.json`, or from a cluster file that describes its own.

use autoshard_cost::device::{Device, Format, ScaleUp};

use super::error::no_other_keys;
use super::read::{Place, Read};

/// Keys that a device may have.
const KEYS: [&str; 24] = [
    "id",
    "vendor",
    "year",
    "form",
    "tflops_dense",
    "fp32_vector_tflops",
    "mem_gb",
    "mem_gib_visible",
    "mem_type",
    "mem_bw_gbs",
    "l2_or_onchip_mb",
    "sm_cu_count",
    "clock_mhz",
    "scaleup",
    "pcie",
    "tdp_w",
    "nic_gbps_per_device",
    "sources",
    "verified",
    "unverified_fields",
    "notes",
    "aliases",
    "second_hand",
    "price_usd_per_device_hour",
];
const SCALE_UP_KEYS: [&str; 7] =
    ["name", "gbs_per_dir", "domain_size", "topology", "link_gbs_per_dir", "links", "spec_bidir_total_gbs"];
const PCIE_KEYS: [&str; 3] = ["gen", "lanes", "gbs_per_dir"];

const GIGA: f64 = 1e9;
/// Bytes of 1 MiB: caches are counted in powers of two, whatever the `mb` of the key says.
const MEBI: f64 = 1048576.0;
const GIBI: f64 = 1024.0 * MEBI;

/// What a device counts as until its sustained rate is fitted.
pub(super) const NOT_FITTED: &str = "not fitted";

/// Reads a device; needed are `tflops_dense` with at least one rate, `mem_gb` and `mem_bw_gbs`.
pub(super) fn read_device(row: &Place, default_id: &str) -> Read<Device> {
    no_other_keys(&row.fields(), &KEYS)?;
    let id = row.text("id")?;
    let (host_bandwidth, host_link) = read_host_link(row)?;
    let price = row.at_least_zero("price_usd_per_device_hour", 1.0)?;
    Ok(Device {
        id: if id.is_empty() { default_id.to_string() } else { id },
        vendor: row.text("vendor")?,
        year: row.small("year")?,
        form: row.fields().text("form")?.map(str::to_string),
        peak: read_peaks(row)?,
        vector_peak: row.quantity("fp32_vector_tflops", 1e12)?,
        memory: row.required("mem_gb", GIGA)?,
        memory_kind: row.text("mem_type")?,
        memory_visible: row.quantity("mem_gib_visible", GIBI)?,
        memory_bandwidth: row.required("mem_bw_gbs", GIGA)?,
        cache: row.quantity("l2_or_onchip_mb", MEBI)?,
        units: row.small("sm_cu_count")?,
        clock: row.quantity("clock_mhz", 1e6)?,
        scale_up: read_scale_up(row)?,
        host_bandwidth,
        host_link,
        network_bandwidth: row.quantity("nic_gbps_per_device", GIGA / 8.0)?,
        power: row.quantity("tdp_w", 1.0)?,
        price,
        price_source: if price.is_some() { "its own".to_string() } else { String::new() },
        sustained: 1.0,
        sustained_eight_bit: 1.0,
        sustained_source: NOT_FITTED.to_string(),
        verified: row.flag("verified")?,
        unverified_fields: row.texts("unverified_fields")?,
        sources: read_sources(row)?,
        notes: read_notes(row)?,
    })
}

fn read_peaks(row: &Place) -> Read<Vec<(Format, f64)>> {
    let wanted = "an object of dense TFLOP/s by format, such as {\"bf16\": 989.4}";
    let peaks = row.object("tflops_dense", wanted)?.ok_or_else(|| row.fields().missing("tflops_dense"))?;
    no_other_keys(&peaks.fields(), &Format::ALL.map(Format::name))?;
    let mut found = Vec::new();
    for format in Format::ALL {
        if let Some(rate) = peaks.quantity(format.name(), 1e12)? {
            found.push((format, rate));
        }
    }
    if found.is_empty() {
        return Err(row.fields().invalid("tflops_dense", "no rate is given; a device needs at least one").into());
    }
    Ok(found)
}

fn read_scale_up(row: &Place) -> Read<ScaleUp> {
    let Some(link) = row.object("scaleup", "an object")? else {
        return Ok(ScaleUp { domain: 1, ..ScaleUp::default() });
    };
    no_other_keys(&link.fields(), &SCALE_UP_KEYS)?;
    let mut topology = link.text("topology")?;
    if let Some(total) = link.quantity("spec_bidir_total_gbs", 1.0)? {
        topology += &format!("; specified as {total} GB/s over all links and both directions");
    }
    Ok(ScaleUp {
        name: link.text("name")?,
        bandwidth: link.at_least_zero("gbs_per_dir", GIGA)?.unwrap_or(0.0),
        link_bandwidth: link.quantity("link_gbs_per_dir", GIGA)?,
        links: link.small("links")?,
        domain: link.count("domain_size")?.unwrap_or(1),
        topology,
    })
}

fn read_host_link(row: &Place) -> Read<(Option<f64>, String)> {
    let Some(link) = row.object("pcie", "an object")? else { return Ok((None, String::new())) };
    no_other_keys(&link.fields(), &PCIE_KEYS)?;
    let name = match (link.count("gen")?, link.count("lanes")?) {
        (Some(generation), Some(lanes)) => format!("PCIe {generation} x{lanes}"),
        (Some(generation), None) => format!("PCIe {generation}"),
        _ => "PCIe".to_string(),
    };
    Ok((link.quantity("gbs_per_dir", GIGA)?, name))
}

/// `sources`, marked where they were quoted by another text.
pub(super) fn read_sources(row: &Place) -> Read<Vec<String>> {
    let mut sources = row.texts("sources")?;
    if row.flag("second_hand")? {
        sources.push("second hand: a text quoting the source was read".to_string());
    }
    Ok(sources)
}

fn read_notes(row: &Place) -> Read<String> {
    let mut notes = row.text("notes")?;
    let aliases = row.texts("aliases")?;
    if !aliases.is_empty() {
        notes += &format!("; also called {}", aliases.join(", "));
    }
    Ok(notes)
}

//! Hardware as text.

use autoshard::hardware::{Catalogue, Cluster, Device, Preset};
use autoshard_cost::cluster::Tier;
use autoshard_cost::device::Format;
use std::fmt::Write;

/// All devices by maker, then all clusters.
pub fn all(known: &Catalogue) -> String {
    let mut out = String::from("devices (dense rate, memory, bandwidth of memory, fast domain):\n");
    let mut maker = "";
    for device in known.devices().iter().filter(|d| d.id != Catalogue::this_machine()) {
        if device.vendor != maker {
            maker = &device.vendor;
            let _ = writeln!(out, "  {maker}");
        }
        let _ = writeln!(out, "    {:<22} {}", device.id, device_line(device));
    }
    out += "\nclusters (device, devices; tiers from the inside out with GB/s per device and direction):\n";
    for cluster in known.clusters() {
        let tiers: Vec<String> = cluster.tiers.iter().map(tier_short).collect();
        let devices = cluster.devices.map_or_else(|| "any number".to_string(), |n| n.to_string());
        let _ = writeln!(out, "    {:<24} {}, {devices}; {}", cluster.id, cluster.device.id, tiers.join(" → "));
    }
    out
}

fn device_line(d: &Device) -> String {
    let (format, peak) = main_rate(d);
    let link = &d.scale_up;
    let domain = match link.domain > 1 && link.bandwidth > 0.0 {
        true => format!("{} devices at {} GB/s", link.domain, number(link.bandwidth / 1e9)),
        false => "none".to_string(),
    };
    let unverified = if d.verified { "" } else { "; not verified" };
    format!(
        "{} {format} TFLOP/s, {} GB, {} GB/s, {domain}{unverified}",
        number(peak / 1e12),
        number(d.memory / 1e9),
        number(d.memory_bandwidth / 1e9)
    )
}

fn tier_short(t: &Tier) -> String {
    let fanout = t.fanout.map_or_else(|| "any".to_string(), |n| n.to_string());
    format!("{fanout} × {}", number(reach(t) / 1e9))
}

/// Bytes/s of a device across a tier when all talk.
fn reach(t: &Tier) -> f64 {
    t.bandwidth / t.oversubscription
}

/// The rate that training would use: bf16, else the widest 16-bit or 32-bit one that there is.
pub fn main_rate(d: &Device) -> (Format, f64) {
    let order = [Format::Bf16, Format::Fp16, Format::Fp32];
    let found = order.into_iter().find_map(|f| Some((f, d.peak_of(f)?)));
    found.or_else(|| d.peak.first().copied()).unwrap_or((Format::Bf16, 0.0))
}

/// One device: every figure with its unit, `not verified` where no source was read for it.
pub fn device(d: &Device) -> String {
    let mut out = format!("{}, a device\n", d.id);
    let year = d.year.map_or_else(String::new, |y| format!(", {y}"));
    let form = d.form.as_deref().map_or_else(String::new, |f| format!(", {f}"));
    let _ = writeln!(out, "  {}{year}{form}", d.vendor);
    for (format, peak) in &d.peak {
        row(&mut out, &format!("dense {format}"), number(peak / 1e12), "TFLOP/s", "");
    }
    let known = |out: &mut String, what: &str, value: Option<f64>, unit: &str, note: &str| match value {
        Some(value) => row(out, what, number(value), unit, note),
        None => row(out, what, "not known".to_string(), "", ""),
    };
    known(&mut out, "vector fp32", d.vector_peak.map(|x| x / 1e12), "TFLOP/s", "");
    row(&mut out, "memory", number(d.memory / 1e9), "GB", &format!("{} as sold", d.memory_kind));
    known(&mut out, "memory visible", d.memory_visible.map(|x| x / GIBI), "GiB", "as the driver reports");
    row(&mut out, "memory bandwidth", number(d.memory_bandwidth / 1e9), "GB/s", "");
    known(&mut out, "cache", d.cache.map(|x| x / MEBI), "MiB", "last level, or on chip");
    known(&mut out, "units", d.units.map(f64::from), "", "SMs, CUs or cores");
    known(&mut out, "clock", d.clock.map(|x| x / 1e6), "MHz", "of the peak rates");
    let link = &d.scale_up;
    if link.bandwidth > 0.0 {
        let each = link.link_bandwidth.zip(link.links);
        let each = each.map_or_else(String::new, |(b, n)| format!("{n} links of {}; ", number(b / 1e9)));
        let note = format!("{}: {each}{} devices, {}", link.name, link.domain, link.topology);
        row(&mut out, "scale-up", number(link.bandwidth / 1e9), "GB/s", &note);
    }
    known(&mut out, "host link", d.host_bandwidth.map(|x| x / 1e9), "GB/s", &d.host_link);
    known(&mut out, "network", d.network_bandwidth.map(|x| x / 1e9), "GB/s", "a device");
    known(&mut out, "power", d.power, "W", "limit");
    known(&mut out, "price", d.price, "$/h", &d.price_source);
    row(&mut out, "sustained", number(d.sustained), "", &format!("of a burst's rate: {}", d.sustained_source));
    out += "  bandwidths are per device and direction\n";
    provenance(&mut out, d.verified, &d.unverified_fields, &d.sources, &d.notes);
    out
}

/// One cluster: its tiers, what it adds up to, and how each figure was got.
pub fn cluster(c: &Cluster, also_device: Option<&str>) -> String {
    let mut out = format!("{}, a cluster of {}\n", c.id, c.device.id);
    if let Some(device) = also_device.filter(|d| *d != c.id) {
        let _ =
            writeln!(out, "  where a device is asked for, this name means {device} (`autoshard hardware {device}`)");
    }
    let devices = c.devices.map_or_else(|| "any number of".to_string(), |n| n.to_string());
    let _ = writeln!(out, "  {devices} devices, {} a node", c.devices_per_node);
    let _ = writeln!(out, "  each: {}", device_line(&c.device));
    tiers(&mut out, c);
    totals(&mut out, c);
    if let Some(f) = &c.failures {
        let mark = if f.assumed { "*" } else { "" };
        let _ = writeln!(
            out,
            "  failures  {}{mark} a node in 1,000 days, restart {} s + {} s a device: {}",
            number(f.per_thousand_node_days),
            number(f.restart_seconds),
            f.restart_seconds_per_device,
            f.source
        );
    }
    let _ = match c.price {
        Some(price) => writeln!(out, "  price     {} $ per device and hour: {}", number(price), c.price_source),
        None => writeln!(out, "  price     not known"),
    };
    out += "  how       GB/s: the source's, one direction of one device when all talk, over the oversubscription beside it;\n";
    out += "            latency: of one step; *: not given, filled in by a default (latency of the medium, oversubscription 1,\n";
    out += "            bandwidth of the device, reductions in the switch by the link's generation)\n";
    provenance(&mut out, c.verified, &c.unverified_fields, &c.sources, &c.notes);
    out
}

fn tiers(out: &mut String, c: &Cluster) {
    let _ = writeln!(
        out,
        "  {:<20} {:>7} {:>9} {:>9} {:>8} {:>11}  medium",
        "tier", "joins", "devices", "GB/s", "1:n", "latency µs"
    );
    for (tier, unit) in c.tiers.iter().zip(c.unit_sizes()) {
        let mark = |field: &str| if tier.assumed.iter().any(|a| a == field) { "*" } else { "" };
        let any = |n: Option<u64>| n.map_or_else(|| "any".to_string(), |n| n.to_string());
        let mut medium = tier.medium.to_string();
        if tier.in_network_reduction {
            medium += &format!(", switches reduce{}", mark("in_network_reduction"));
        }
        if let Some(n) = tier.nics_per_node {
            medium += &format!(", {n} interfaces a node");
        }
        if tier.effective {
            medium += ", usable rate";
        }
        let _ = writeln!(
            out,
            "  {:<20} {:>7} {:>9} {:>9} {:>8} {:>11}  {medium}",
            tier.name,
            any(tier.fanout),
            any(unit),
            format!("{}{}", number(reach(tier) / 1e9), mark("bandwidth")),
            format!("{}{}", number(tier.oversubscription), mark("oversubscription")),
            format!("{}{}", number(tier.latency * 1e6), mark("latency")),
        );
        if !tier.notes.is_empty() {
            let _ = writeln!(out, "    {}", tier.notes);
        }
    }
}

/// What all devices have together, where their number is known.
fn totals(out: &mut String, c: &Cluster) {
    let Some(devices) = c.devices else { return };
    let n = devices as f64;
    let (format, peak) = main_rate(&c.device);
    let _ = writeln!(
        out,
        "  total     {}FLOP/s dense {format}, {}B of memory",
        scaled(n * peak),
        scaled(n * c.device.memory)
    );
}

/// A large number with the prefix of its unit.
fn scaled(x: f64) -> String {
    let (unit, prefix) =
        [(1e18, "E"), (1e15, "P"), (1e12, "T")].into_iter().find(|(u, _)| x >= *u).unwrap_or((1e9, "G"));
    format!("{} {prefix}", number(x / unit))
}

fn provenance(out: &mut String, verified: bool, unverified: &[String], sources: &[String], notes: &str) {
    let all = unverified.iter().any(|f| f == "*");
    let state = match (verified, unverified.is_empty()) {
        (true, true) => "yes".to_string(),
        (true, false) => format!("the main figures; not: {}", unverified.join(", ")),
        (false, _) if all || unverified.is_empty() => "no".to_string(),
        (false, _) => format!("no; in particular not: {}", unverified.join(", ")),
    };
    let _ = writeln!(out, "  verified  {state}");
    for source in sources {
        let _ = writeln!(out, "  source    {source}");
    }
    if !notes.is_empty() {
        let _ = writeln!(out, "  notes     {notes}");
    }
}

const MEBI: f64 = 1048576.0;
const GIBI: f64 = 1024.0 * MEBI;

fn row(out: &mut String, what: &str, value: String, unit: &str, note: &str) {
    let line = format!("  {what:<18} {value:>9} {unit:<8} {note}");
    let _ = writeln!(out, "{}", line.trim_end());
}

/// Up to two decimals, without zeros at the end; small numbers with three figures.
fn number(x: f64) -> String {
    if x != 0.0 && x.abs() < 0.1 {
        return format!("{x:.3e}");
    }
    let text = format!("{x:.2}");
    text.trim_end_matches('0').trim_end_matches('.').to_string()
}

/// The preset of CPU ranks, with the source of each figure.
pub fn this_machine(m: &Preset) -> String {
    let mut out = format!("{} ({})\n{}\n", m.name, m.kind, m.about);
    let source = |key: &str| m.sources.get(key).map_or("no source", String::as_str);
    let peaks = m
        .peak_flops
        .iter()
        .map(|(dtype, peak)| ("peak_flops", format!("peak {dtype}"), format!("{:.1} GFLOP/s", peak / 1e9)));
    let others = [
        ("memory", format!("{:.1} GB", m.memory / 1e9)),
        ("memory_bandwidth", format!("{:.1} GB/s", m.memory_bandwidth / 1e9)),
        ("link_bandwidth", format!("{:.1} GB/s", m.link_bandwidth / 1e9)),
        ("collective_latency", format!("{:.1} µs", m.collective_latency * 1e6)),
        ("kernel_latency", format!("{:.1} µs", m.kernel_latency * 1e6)),
    ];
    let others = others.into_iter().map(|(key, value)| (key, key.replace('_', " "), value));
    for (key, what, value) in peaks.chain(others) {
        let _ = writeln!(out, "  {what:<20} {value:>12}  {}", source(key));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short_and_keep_what_is_small() {
        let shown = [989.4, 7.142857, 50.0, 0.0, 0.009, 1978.9].map(number);
        assert_eq!(shown, ["989.4", "7.14", "50", "0", "9.000e-3", "1978.9"]);
        assert_eq!([24.3155e18, 1.966e15, 5e10].map(scaled), ["24.32 E", "1.97 P", "50 G"]);
    }
}

//! `docs/lecture.md` against the presets: every number on the page is computed here, and none is left over.

use autoshard::hardware::{cluster, device, Cluster, Device};
use autoshard_cost::device::Format;
use autoshard_cost::layout::{place, MeshAxis, Placement};
use std::collections::BTreeMap;

/// Tensor cores and fp32 cores of one SM of an H100 (NVIDIA, H100 Tensor Core GPU Architecture).
const TENSOR_CORES: f64 = 4.0;
const FP32_CORES: f64 = 128.0;

/// A section whose title has these words is not held: its figures are measurements.
const NOT_HELD: &str = "not held by the test";

/// The page's numbers by name: as printed, and the unit behind.
fn page() -> BTreeMap<String, (String, String)> {
    let text = include_str!("../docs/lecture.md");
    let mut found = BTreeMap::new();
    let mut held = true;
    for line in text.lines() {
        if line.starts_with('#') {
            held = !line.contains(NOT_HELD);
        }
        let Some((name, rest)) = line.strip_prefix("- `").and_then(|l| l.split_once("` = ")).filter(|_| held) else {
            continue;
        };
        let (value, unit) = rest.split_once(' ').unwrap_or((rest, ""));
        let twice = found.insert(name.to_string(), (value.to_string(), unit.to_string()));
        assert!(twice.is_none(), "{name} is given twice");
    }
    found
}

/// Half a unit of the last digit printed.
fn tolerance(printed: &str) -> f64 {
    let decimals = printed.split_once('.').map_or(0, |(_, d)| d.len());
    0.5 * 10f64.powi(-(decimals as i32)) * (1.0 + 1e-9)
}

type Figures = Vec<(&'static str, f64, &'static str)>;

fn one_chip(d: &Device) -> Figures {
    let (sms, clock, peak) = (f64::from(d.units.unwrap()), d.clock.unwrap(), d.peak_of(Format::Bf16).unwrap());
    let per_clock = peak / sms / clock;
    let fp32 = d.vector_peak.unwrap();
    // The fp32 cores do a sixteenth of the tensor cores; each does a multiplication and an addition.
    assert_eq!((per_clock / 16.0 / 2.0).round(), FP32_CORES);
    vec![
        ("h100_sms", sms, ""),
        ("h100_flop_per_clock_and_sm", per_clock, "FLOP"),
        ("h100_clock", clock / 1e9, "GHz"),
        ("h100_bf16", sms * per_clock.round() * clock / 1e12, "TFLOP/s"),
        ("h100_flop_per_clock_and_tensor_core", per_clock / TENSOR_CORES, "FLOP"),
        ("h100_fp32_cores_per_sm", per_clock / 16.0 / 2.0, ""),
        ("h100_fp32_at_same_clock", peak / 16.0 / 1e12, "TFLOP/s"),
        ("h100_fp32_in_data_sheet", fp32 / 1e12, "TFLOP/s"),
        ("h100_boost_clock", fp32 / (sms * FP32_CORES * 2.0) / 1e9, "GHz"),
    ]
}

fn whole_cluster(c: &Cluster) -> Figures {
    let gpus = c.devices.unwrap() as f64;
    let sms = gpus * f64::from(c.device.units.unwrap());
    vec![
        ("cluster_gpus", gpus, ""),
        ("cluster_bf16", gpus * c.device.peak_of(Format::Bf16).unwrap() / 1e18, "EFLOP/s"),
        ("cluster_fp32_cores", sms * FP32_CORES / 1e6, "M"),
        ("cluster_tensor_cores", sms * TENSOR_CORES / 1e6, "M"),
        ("cluster_memory", gpus * c.device.memory / 1e15, "PB"),
    ]
}

fn distance(c: &Cluster) -> Figures {
    let peak = c.device.peak_of(Format::Bf16).unwrap();
    let reach = |tier: usize| c.tiers[tier].bandwidth / c.tiers[tier].oversubscription;
    let memory = c.device.memory_bandwidth;
    assert_eq!(c.tiers[1].bandwidth, c.tiers[2].bandwidth, "one network in a pod");
    vec![
        ("memory_bandwidth", memory / 1e9, "GB/s"),
        ("nvlink_bandwidth", reach(0) / 1e9, "GB/s"),
        ("network_bandwidth", reach(2) / 1e9, "GB/s"),
        ("oversubscription", c.tiers[3].oversubscription, ""),
        ("cross_pod_bandwidth", reach(3) / 1e9, "GB/s"),
        ("flop_per_byte_of_memory", peak / memory, "FLOP"),
        ("flop_per_byte_of_nvlink", peak / reach(0), "FLOP"),
        ("flop_per_byte_of_network", peak / reach(2), "FLOP"),
        ("flop_per_byte_across_pods", peak / reach(3), "FLOP"),
    ]
}

fn layout(c: &Cluster) -> Figures {
    let axes = [("tp", 8), ("dp", 128), ("pp", 16)].map(MeshAxis::from);
    let on = |group: &str| place(c, &axes, &[group]).unwrap();
    let members = |p: &Placement, tier: usize| p.spans[tier].members as f64;
    let (tp, dp, pp) = (on("tp"), on("dp"), on("pp"));
    assert_eq!((dp.outermost(), pp.outermost()), (Some(2), Some(3)));
    vec![
        ("tp_ranks_in_a_server", members(&tp, 0), ""),
        ("dp_ranks_in_a_server", members(&dp, 0), ""),
        ("dp_servers_in_a_rack", members(&dp, 1), ""),
        ("dp_racks_in_a_pod", members(&dp, 2), ""),
        ("dp_bandwidth", dp.spans[2].bandwidth / 1e9, "GB/s"),
        ("pp_bandwidth", pp.spans[3].bandwidth / 1e9, "GB/s"),
        ("dp_groups_that_share_a_server", dp.spans[1].concurrent as f64, ""),
    ]
}

fn states(d: &Device) -> Figures {
    let (pure, mixed) = ([2.0; 4].iter().sum::<f64>(), [2.0, 4.0, 4.0, 4.0, 4.0].iter().sum::<f64>());
    let all = 405e9 * mixed;
    vec![
        ("bytes_pure_bf16", pure, "B"),
        ("parameters_pure_bf16", d.memory / pure / 1e9, "G"),
        ("bytes_mixed", mixed, "B"),
        ("parameters_mixed", d.memory / mixed / 1e9, "G"),
        ("states_405b_mixed", all / 1e12, "TB"),
        ("gpus_for_states_405b", (all / d.memory).ceil(), ""),
    ]
}

fn eleven_years(old: &Device, new: &Device) -> Figures {
    assert_eq!(new.year.unwrap() - old.year.unwrap(), 11);
    let (was, is) = (old.peak_of(Format::Fp32).unwrap(), new.peak_of(Format::Bf16).unwrap());
    vec![
        ("k40_rate", was / 1e12, "TFLOP/s"),
        ("b200_rate", is / 1e12, "TFLOP/s"),
        ("rate_grew", is / was, "times"),
        ("memory_grew", new.memory / old.memory, "times"),
        ("memory_bandwidth_grew", new.memory_bandwidth / old.memory_bandwidth, "times"),
        ("power_grew", new.power.unwrap() / old.power.unwrap(), "times"),
        ("k40_flop_per_byte", was / old.memory_bandwidth, "FLOP"),
        ("b200_flop_per_byte", is / new.memory_bandwidth, "FLOP"),
    ]
}

fn failures_and_money(c: &Cluster) -> Figures {
    let gpus = 16384;
    let servers = (gpus / c.devices_per_node) as f64;
    let failures = c.failures.as_ref().unwrap();
    let a_day = servers * failures.per_thousand_node_days / 1000.0;
    vec![
        ("servers", servers, ""),
        ("failures_a_day", a_day, ""),
        ("hours_between_failures", 24.0 / a_day, "h"),
        ("restart", failures.restart(gpus), "s"),
        ("price_an_hour", gpus as f64 * c.price.unwrap(), "$"),
    ]
}

#[test]
fn every_number_of_the_page_follows_from_the_presets() {
    let c = cluster("meta-llama3-roce-24k").unwrap();
    let h100 = device("h100-sxm5").unwrap();
    let computed = [
        one_chip(&h100),
        whole_cluster(&c),
        distance(&c),
        layout(&c),
        states(&h100),
        eleven_years(&device("k40").unwrap(), &device("b200-sxm").unwrap()),
        failures_and_money(&c),
    ]
    .concat();
    let mut page = page();
    for (name, value, unit) in computed {
        let (printed, found) = page.remove(name).unwrap_or_else(|| panic!("`{name}` is not on the page"));
        let number: f64 = printed.replace(',', "").parse().unwrap();
        assert!((number - value).abs() <= tolerance(&printed), "{name}: {printed} on the page, {value} computed");
        assert_eq!(found, unit, "{name}");
    }
    assert!(page.is_empty(), "on the page, but not computed: {:?}", page.keys());
}

#[test]
fn a_digit_that_is_off_would_be_seen() {
    assert!((989.0f64 - 989.4).abs() <= tolerance("989"));
    assert!((988.0f64 - 989.4).abs() > tolerance("988"));
    assert!((7.15f64 - 50.0 / 7.0).abs() > tolerance("7.15"));
}

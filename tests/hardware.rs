//! The hardware that ships: every preset loads, no figure of its files is lost, and the command prints it.

use autoshard::hardware::{cluster, clusters, device, devices, Device};
use autoshard_cost::cluster::Medium;
use autoshard_cost::device::Format;
use autoshard_cost::layout::{place, MeshAxis};
use serde_json::Value;
use std::process::Command;

fn shipped(name: &str) -> Value {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("data/hardware").join(name);
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

fn rows(name: &str, key: &str) -> Vec<Value> {
    shipped(name)[key].as_array().unwrap().clone()
}

fn id(row: &Value) -> &str {
    row["id"].as_str().unwrap()
}

/// Runs the command: exit code, stdout, stderr.
fn autoshard(args: &[&str]) -> (i32, String, String) {
    let out = Command::new(env!("CARGO_BIN_EXE_autoshard")).args(args).output().unwrap();
    let text = |b: &[u8]| String::from_utf8(b.to_vec()).unwrap();
    (out.status.code().unwrap(), text(&out.stdout), text(&out.stderr))
}

#[test]
fn all_presets_are_there_and_load_by_name() {
    let (accelerators, systems) = (rows("accelerators.json", "accelerators"), rows("clusters.json", "clusters"));
    assert_eq!((accelerators.len(), systems.len()), (43, 47));
    assert_eq!((devices().unwrap().len(), clusters().unwrap().len()), (44, 48), "and this machine");
    for row in accelerators {
        assert_eq!(device(id(&row)).unwrap().id, id(&row));
    }
    for row in systems {
        let c = cluster(id(&row)).unwrap();
        assert_eq!((c.id.as_str(), c.device.id.as_str()), (id(&row), row["accelerator"].as_str().unwrap()));
    }
    let aliases = shipped("aliases.json")["aliases"].as_object().unwrap().clone();
    let known = autoshard::hardware::Catalogue::shipped().unwrap();
    assert!(aliases.len() > 140);
    for (spelling, id) in aliases {
        assert_eq!(known.device(&spelling).unwrap().id, id.as_str().unwrap(), "{spelling}");
    }
}

/// A device's figures under the keys and in the units of its row.
fn figures(d: &Device) -> Vec<(String, Option<f64>)> {
    let peaks = Format::ALL.into_iter().filter(|f| *f != Format::Fp64);
    let mut out: Vec<_> = peaks.map(|f| (format!("/tflops_dense/{f}"), d.peak_of(f).map(|x| x / 1e12))).collect();
    let gibi = 1024f64.powi(3);
    let link = &d.scale_up;
    let others = [
        ("/year", d.year.map(f64::from)),
        ("/fp32_vector_tflops", d.vector_peak.map(|x| x / 1e12)),
        ("/mem_gb", Some(d.memory / 1e9)),
        ("/mem_gib_visible", d.memory_visible.map(|x| x / gibi)),
        ("/mem_bw_gbs", Some(d.memory_bandwidth / 1e9)),
        ("/l2_or_onchip_mb", d.cache.map(|x| x / 1024f64.powi(2))),
        ("/sm_cu_count", d.units.map(f64::from)),
        ("/clock_mhz", d.clock.map(|x| x / 1e6)),
        ("/scaleup/gbs_per_dir", Some(link.bandwidth / 1e9)),
        ("/scaleup/domain_size", Some(link.domain as f64)),
        ("/scaleup/link_gbs_per_dir", link.link_bandwidth.map(|x| x / 1e9)),
        ("/scaleup/links", link.links.map(f64::from)),
        ("/pcie/gbs_per_dir", d.host_bandwidth.map(|x| x / 1e9)),
        ("/tdp_w", d.power),
        ("/nic_gbps_per_device", d.network_bandwidth.map(|x| x * 8.0 / 1e9)),
    ];
    out.extend(others.map(|(key, value)| (key.to_string(), value)));
    out
}

fn strings(value: &Value) -> Vec<String> {
    value.as_array().unwrap().iter().map(|v| v.as_str().unwrap().to_string()).collect()
}

#[test]
fn no_figure_of_a_device_is_lost() {
    let mut compared = 0;
    for row in rows("accelerators.json", "accelerators") {
        let d = device(id(&row)).unwrap();
        for (key, got) in figures(&d) {
            let wanted = row.pointer(&key).and_then(Value::as_f64);
            let same = match (wanted, got) {
                (Some(a), Some(b)) => (a - b).abs() <= 1e-9 * a.abs(),
                (a, b) => a == b,
            };
            assert!(same, "{} {key}: {wanted:?} in the file, {got:?} read", d.id);
            compared += usize::from(wanted.is_some());
        }
        assert_eq!(d.vendor, row["vendor"].as_str().unwrap());
        assert_eq!(d.verified, row["verified"].as_bool().unwrap());
        assert_eq!(d.unverified_fields, strings(&row["unverified_fields"]));
        assert!(strings(&row["sources"]).iter().all(|s| d.sources.contains(s)));
        assert!(d.notes.starts_with(row["notes"].as_str().unwrap()));
    }
    assert!(compared > 700, "{compared} figures were compared");
}

#[test]
fn no_figure_of_a_cluster_is_lost() {
    for row in rows("clusters.json", "clusters") {
        let c = cluster(id(&row)).unwrap();
        assert_eq!(Some(c.devices_per_node), row["devices_per_node"].as_u64(), "{}", c.id);
        assert_eq!(c.devices, row["devices"].as_u64(), "{}", c.id);
        assert!(c.notes.contains(row["notes"].as_str().unwrap()));
        assert!(strings(&row["sources"]).iter().all(|s| c.sources.contains(s)));
        assert_eq!(c.unverified_fields, strings(&row["unverified_fields"]));
        for tier in row["tiers"].as_array().into_iter().flatten().filter(|t| t["name"] != "in-package") {
            let got = c.tiers.iter().find(|t| t.name == tier["name"].as_str().unwrap()).unwrap();
            let label = format!("{} {}", c.id, got.name);
            let marked = |field: &str| got.assumed.iter().any(|a| a == field);
            assert_eq!(got.fanout, tier["fanout"].as_u64(), "{label}");
            match tier["gbs_per_dir_per_device"].as_f64() {
                // The one tier with an oversubscription is given after it.
                Some(gbs) => assert!((got.bandwidth / got.oversubscription / 1e9 - gbs).abs() < 1e-9, "{label}"),
                None => assert!(marked("bandwidth"), "{label}"),
            }
            match tier["latency_us"].as_f64() {
                Some(us) => assert!((got.latency * 1e6 - us).abs() < 1e-9, "{label}"),
                None => assert!(marked("latency") && got.latency == got.medium.default_latency(), "{label}"),
            }
            match tier["oversubscription"].as_f64() {
                Some(times) => assert_eq!(got.oversubscription, times, "{label}"),
                None => assert!(marked("oversubscription") && got.oversubscription == 1.0, "{label}"),
            }
            assert!(got.notes.contains(tier["topology"].as_str().unwrap()), "{label}");
            assert!(got.notes.contains(tier["nic"].as_str().unwrap_or("")), "{label}");
        }
        if let Some(torus) = row["torus"].as_object() {
            let tier = &c.tiers[0];
            let link = torus["link_gbs_per_dir"].as_f64().unwrap() * torus["links"].as_f64().unwrap();
            assert_eq!((tier.medium, tier.bandwidth), (Medium::Torus, link * 1e9), "{}", c.id);
            assert_eq!(tier.bandwidth, c.device.scale_up.bandwidth, "{}: the device says the same", c.id);
            assert_eq!(tier.torus.is_empty(), torus["dims"].is_null());
        }
    }
}

#[test]
fn every_cluster_is_one_that_ranks_can_be_placed_on() {
    for c in clusters().unwrap() {
        let node = c.devices_per_node;
        let axes = [MeshAxis::new("tp", node), MeshAxis::new("dp", c.devices.unwrap_or(64 * node) / node)];
        for group in [&["tp"][..], &["dp"], &["tp", "dp"]] {
            let p = place(&c, &axes, group).unwrap();
            assert_eq!(p.spans.iter().map(|s| s.members).product::<u64>(), p.size, "{} {group:?}", c.id);
            assert!(p.spans.iter().all(|s| s.bandwidth > 0.0 && s.latency > 0.0 && s.bandwidth.is_finite()));
            assert!(!p.replicated, "{}", c.id);
        }
        // The inner tiers are never slower than the outer ones when all talk.
        let reach: Vec<f64> = c.tiers.iter().map(|t| t.bandwidth / t.oversubscription).collect();
        assert!(reach.is_sorted_by(|a, b| a >= b), "{}: {reach:?}", c.id);
    }
}

#[test]
fn media_follow_from_the_device_and_the_node() {
    let media = |name: &str| cluster(name).unwrap().tiers.iter().map(|t| t.medium).collect::<Vec<_>>();
    use Medium::{Network, Pcie, ScaleUp, Shared, Torus};
    assert_eq!(media("meta-llama3-roce-24k"), [ScaleUp, Network, Network, Network]);
    assert_eq!(media("gb200-nvl72"), [ScaleUp, Network]);
    assert_eq!(media("consumer-8x4090"), [Pcie, Pcie]);
    assert_eq!(media("simumax-a100-pcie"), [Pcie]);
    assert_eq!(media("frontier"), [ScaleUp, Network]);
    assert_eq!(media("tpu-v5p-multislice"), [Torus, Network]);
    assert_eq!(media("this-machine"), [Shared]);
    let reduces = |name: &str| cluster(name).unwrap().tiers[0].in_network_reduction;
    assert_eq!(["dgx-h100", "gb300-nvl72", "dgx-a100", "azure-nd-mi300x-v5"].map(reduces), [true, true, false, false]);
    assert!(cluster("vtrain-a100").unwrap().tiers.iter().all(|t| t.effective));
}

#[test]
fn failures_are_published_ones_or_marked() {
    let table = shipped("failures.json");
    let rate = |name: &str| cluster(name).unwrap().failures.unwrap();
    let llama = &table["llama3_405b"];
    let number = |key: &str| llama[key].as_f64().unwrap();
    let published = 1000.0 * number("unexpected") / (number("nodes") * number("days"));
    let found = rate("meta-llama3-roce-24k");
    assert!((found.per_thousand_node_days - published).abs() < 5e-4 && !found.assumed);
    let rsc1 = table["meta_rsc"]["node_failures_per_1000_node_days"]["RSC1"].as_f64().unwrap();
    assert_eq!(rate("meta-rsc1").per_thousand_node_days, rsc1);
    assert!((rate("jeanzay-bloom").per_thousand_node_days - 1000.0 / (7.0 * 48.0)).abs() < 5e-4);
    let default = rate("dgx-h100");
    assert_eq!((default.per_thousand_node_days, default.assumed), (4.0, true));
}

#[test]
fn prices_are_defaults_or_medians_and_say_so() {
    let price = |name: &str| {
        let d = device(name).unwrap();
        (d.price, d.price_source)
    };
    assert_eq!(price("h100-sxm5").0, Some(3.0));
    assert!(price("h100-sxm5").1.contains("suggested_defaults"));
    assert_eq!(price("v100-sxm2-16gb").0, Some(0.79));
    assert!(price("v100-sxm2-16gb").1.contains("median of 1 on-demand"), "{}", price("v100-sxm2-16gb").1);
    assert_eq!(price("k40"), (None, String::new()));
    assert_eq!(cluster("aws-p5").unwrap().price, Some(3.0));
}

#[test]
fn sustained_rates_ship_unfitted_or_with_a_source() {
    for d in devices().unwrap() {
        assert!((0.75..=1.0).contains(&d.sustained) && !d.sustained_source.is_empty(), "{}", d.id);
        assert!(d.sustained == 1.0 || !d.sustained_source.starts_with("not fitted"), "{}", d.id);
    }
}

#[test]
fn the_command_lists_and_prints_both_kinds() {
    let (code, list, _) = autoshard(&["hardware"]);
    assert_eq!(code, 0);
    let names = devices().unwrap().into_iter().map(|d| d.id).chain(clusters().unwrap().into_iter().map(|c| c.id));
    for name in names {
        assert!(list.lines().any(|l| l.trim_start().starts_with(&format!("{name} "))), "{name} is not in\n{list}");
    }
    let printed = |name: &str, parts: &[&str]| {
        let (code, out, err) = autoshard(&["hardware", name]);
        assert_eq!(code, 0, "{err}");
        for part in parts {
            assert!(out.contains(part), "{name}: {part:?} is not in\n{out}");
        }
    };
    printed("gb200", &["gb200, a device", "2500 TFLOP/s", "900 GB/s"]);
    printed("gb200-nvl72", &["gb200-nvl72, a cluster of gb200", "this name means gb200", "72"]);
    printed("meta-llama3-roce-24k", &["24.32 EFLOP/s", "1.97 PB", "7.14", "14*", "3 $"]);
    printed("H100", &["h100-sxm5, a device", "H100: 80 GB SXM assumed"]);
    printed("DGX-H100", &["dgx-h100, a cluster", "this name means h100-sxm5"]);
    printed("selene", &["verified  no"]);
    printed("this-machine", &["peak f32", "350.0 GFLOP/s"]);
}

#[test]
fn the_command_prints_json_and_files() {
    let value = |args: &[&str]| -> Value {
        let (code, out, err) = autoshard(args);
        assert_eq!(code, 0, "{err}");
        serde_json::from_str(&out).unwrap()
    };
    let c = value(&["hardware", "meta-llama3-roce-24k", "--json"]);
    assert_eq!((c["kind"].as_str(), c["devices"].as_u64()), (Some("cluster"), Some(24576)));
    assert_eq!(c["tiers"][3]["bandwidth"].as_f64(), Some(50e9));
    assert_eq!(value(&["hardware", "gb200", "--json"])["kind"], "device");
    assert_eq!(value(&["hardware", "--json"])["clusters"].as_array().unwrap().len(), 48);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("mine.json");
    // A row of clusters.json is a file of the user's.
    let row = rows("clusters.json", "clusters").into_iter().find(|r| id(r) == "frontier").unwrap();
    std::fs::write(&path, row.to_string()).unwrap();
    let path = path.display().to_string();
    let (mine, preset) = (cluster(&path).unwrap(), cluster("frontier").unwrap());
    assert_eq!(mine, preset);
    std::fs::write(&path, "{\"device\": \"h100\", \"devices_per_node\": 8, \"tiers\": []}").unwrap();
    let (code, _, err) = autoshard(&["hardware", &path]);
    assert!(code == 1 && err.contains("mine.json:1:") && err.contains("at least one"), "{code} {err}");
}

#[test]
fn unknown_names_are_a_usage_error_with_the_nearest() {
    for (name, near) in [("h100-sxm4", "`h100-sxm5`"), ("gb20", "`gb200`"), ("dgx-h10", "`dgx-h100`")] {
        let (code, _, err) = autoshard(&["hardware", name]);
        assert!(code == 2 && err.contains(&format!("unknown machine {name}")) && err.contains(near), "{code} {err}");
    }
    let (code, _, err) = autoshard(&["hardware", "zebra"]);
    assert!(code == 2 && !err.contains("did you mean"), "{err}");
}

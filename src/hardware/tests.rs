//! Clusters that users write, and what is wrong with them.

use super::*;
use crate::json::Document;
use autoshard_cost::cluster::Medium;
use autoshard_cost::device::Format;
use serde_json::{json, Value};

fn known() -> Catalogue {
    Catalogue::shipped().unwrap()
}

fn read(text: &str) -> Result<Cluster, HardwareError> {
    known().read(&Document::parse("c.json", text.as_bytes()).unwrap(), "c")
}

/// Eight H100 a node, any number of nodes, with changes; `null` in a change stays a null.
fn dgx(changes: Value) -> Value {
    let mut file = json!({
        "device": "h100-sxm5",
        "devices_per_node": 8,
        "tiers": [
            {"name": "nvlink", "fanout": 8, "gbs_per_dir_per_device": 450},
            {"name": "ib", "fanout": null, "gbs_per_dir_per_device": 50, "nic": "8x NDR 400G"},
        ],
    });
    for (key, value) in changes.as_object().unwrap() {
        file[key] = value.clone();
    }
    file
}

fn accepted(file: Value) -> Cluster {
    read(&file.to_string()).unwrap()
}

/// The message of a refusal: it must name the file and be one line.
fn refused(file: Value) -> String {
    let message = read(&file.to_string()).unwrap_err().to_string();
    assert!(message.starts_with("c.json") && !message.contains('\n'), "{message}");
    message
}

/// The outer tier of [`dgx`] with a change.
fn outer(key: &str, value: Value) -> Value {
    let mut file = dgx(json!({}));
    file["tiers"][1][key] = value;
    file
}

#[test]
fn what_a_file_leaves_open_is_filled_in_and_marked() {
    let c = accepted(dgx(json!({})));
    assert_eq!((c.id.as_str(), c.device.id.as_str(), c.devices), ("c", "h100-sxm5", None));
    let [nvlink, ib] = &c.tiers[..] else { panic!("{c:?}") };
    assert_eq!((nvlink.medium, ib.medium), (Medium::ScaleUp, Medium::Network));
    assert_eq!((nvlink.latency, ib.latency), (4e-6, 14e-6));
    assert_eq!(nvlink.assumed, ["latency", "in_network_reduction", "oversubscription"]);
    assert_eq!(ib.assumed, ["latency", "oversubscription"]);
    assert_eq!((nvlink.in_network_reduction, ib.in_network_reduction), (true, false));
    assert_eq!((ib.bandwidth, ib.nics_per_node), (50e9, Some(8)));
    assert_eq!((c.price, c.verified), (Some(3.0), false));
    let failures = c.failures.unwrap();
    assert_eq!((failures.per_thousand_node_days, failures.assumed), (4.0, true));
    assert!((failures.restart(16384) - 197.456).abs() < 1e-9);
    assert_eq!(c.sources, ["c.json"]);
}

#[test]
fn what_a_file_says_itself_holds() {
    let file = outer("latency_us", json!(20));
    let file = {
        let mut file = file;
        file["tiers"][1]["oversubscription"] = json!(2.5);
        file["tiers"][1]["in_network_reduction"] = json!(true);
        file["tiers"][1]["nics_per_node"] = json!(4);
        file["tiers"][0]["medium"] = json!("pcie");
        file["price_usd_per_device_hour"] = json!(1.25);
        file["failures"] = json!({"per_thousand_node_days": 7, "restart_seconds": 600});
        file["id"] = json!("mine");
        file
    };
    let c = accepted(file);
    let ib = &c.tiers[1];
    assert_eq!((ib.latency, ib.oversubscription, ib.nics_per_node), (20e-6, 2.5, Some(4)));
    assert!(ib.in_network_reduction && ib.assumed.is_empty(), "{ib:?}");
    assert_eq!((c.tiers[0].medium, c.tiers[0].latency), (Medium::Pcie, 5.7e-6));
    assert_eq!((c.id.as_str(), c.price, c.price_source.as_str()), ("mine", Some(1.25), "its own"));
    let failures = c.failures.unwrap();
    assert_eq!((failures.per_thousand_node_days, failures.restart(9999), failures.assumed), (7.0, 600.0, false));
}

#[test]
fn a_device_may_be_described_in_place() {
    let own = json!({"tflops_dense": {"bf16": 500}, "mem_gb": 64, "mem_bw_gbs": 2000});
    let c = accepted(dgx(json!({"device": own})));
    assert_eq!((c.device.id.as_str(), c.device.peak_of(Format::Bf16)), ("c-device", Some(500e12)));
    assert_eq!((c.price, c.device.sustained), (None, 1.0));
    let alias = accepted(dgx(json!({"device": "nvidia_h100 80gb-HBM3"})));
    assert_eq!(alias.device.id, "h100-sxm5");
    for (own, part) in [
        (json!({"mem_gb": 64, "mem_bw_gbs": 2000}), "`device.tflops_dense` is missing"),
        (json!({"tflops_dense": {"bf16": null}, "mem_gb": 64, "mem_bw_gbs": 2000}), "at least one"),
        (
            json!({"tflops_dense": {"bf16": 5}, "mem_gb": -1, "mem_bw_gbs": 2000}),
            "`device.mem_gb` is -1, but must be a number above zero",
        ),
        (
            json!({"tflops_dense": {"bf61": 5}, "mem_gb": 1, "mem_bw_gbs": 2000}),
            "unknown key `device.tflops_dense.bf61`; did you mean `bf16`?",
        ),
    ] {
        let message = refused(dgx(json!({"device": own})));
        assert!(message.contains(part), "{message}");
    }
}

#[test]
fn impossible_figures_are_refused_with_their_place() {
    let bandwidth = "gbs_per_dir_per_device";
    let cases = [
        (outer(bandwidth, json!(0)), "`tiers.1.gbs_per_dir_per_device` is 0, but must be a number above zero"),
        (outer(bandwidth, json!(-50)), "is -50, but must be"),
        (outer(bandwidth, json!("50")), "is \"50\", but must be"),
        (outer("fanout", json!(0)), "`tiers.1.fanout` is 0, but must be a whole number of at least 1"),
        (outer("fanout", json!(-2)), "is -2, but must be"),
        (outer("fanout", json!(2.5)), "is 2.5, but must be"),
        (outer("oversubscription", json!(0.5)), "`tiers.1.oversubscription`: is 0.5, but must be at least 1"),
        (outer("latency_us", json!(-1)), "`tiers.1.latency_us` is -1, but must be a number of at least zero"),
        (outer("name", json!("nvlink")), "two tiers are called nvlink"),
        (outer("medium", json!("netwrok")), "unknown medium netwrok; did you mean `network`?"),
        (outer("bandwith", json!(5)), "unknown key `tiers.1.bandwith`"),
        (outer("latency", json!(5)), "unknown key `tiers.1.latency`; did you mean `latency_us`?"),
        (dgx(json!({"tiers": []})), "there are none"),
        (dgx(json!({"tiers": 3})), "`tiers` is 3, but must be a list"),
        (dgx(json!({"tiers": [3]})), "`tiers.0` is 3, but must be a tier"),
        (dgx(json!({"device": "h100-sxm6"})), "unknown device h100-sxm6; did you mean `h100-sxm5`"),
        (dgx(json!({"device": "frontier"})), "frontier is a cluster, of mi250x"),
        (dgx(json!({"device": null})), "the key `device` is null"),
        (dgx(json!({"accelerator": "a100-sxm4-80gb"})), "`device` is given too"),
        (
            dgx(json!({"devices_per_node": 6})),
            "`devices_per_node`: is 6, but the tiers from the inside out join 8 devices",
        ),
        (dgx(json!({"devices_per_node": 4})), "is 4, but the tiers"),
        (dgx(json!({"devices": 64, "nodes": 9})), "9 nodes of 8 devices are not the 64"),
        (dgx(json!({"device_per_node": 6})), "unknown key `device_per_node`; did you mean `devices_per_node`?"),
    ];
    for (file, part) in cases {
        let message = refused(file);
        assert!(message.contains(part), "{part:?} is not in {message:?}");
        assert!(message.starts_with("c.json:1:"), "{message}");
    }
}

#[test]
fn figures_that_contradict_each_other_are_refused() {
    let bounded = |devices: u64| {
        let mut file = outer("fanout", json!(4));
        file["devices"] = json!(devices);
        file
    };
    assert_eq!(accepted(bounded(32)).devices, Some(32));
    let more = refused(bounded(33));
    assert!(more.contains("is 33, but the tiers join at most 32 (8x4)"), "{more}");
    let fewer = refused(bounded(24));
    assert!(fewer.contains("is 24, but the fan-outs 8x4 multiply to 32"), "{fewer}");
    let mut inner = dgx(json!({}));
    inner["tiers"][0]["fanout"] = Value::Null;
    assert!(refused(inner).contains("which only the last tier may be"));
    let mut huge = outer("fanout", json!(u64::MAX));
    assert!(refused(huge.clone()).contains("multiply to more than 2^64"));
    let tier = |n: usize| json!({"name": format!("t{n}"), "fanout": 1, "gbs_per_dir_per_device": 1});
    huge["tiers"] = (0..65).map(tier).collect();
    assert!(refused(huge).contains("has 65 tiers, but at most 64"));
    let many = dgx(json!({"devices_per_node": 1, "tiers": (0..64).map(tier).collect::<Vec<_>>()}));
    assert_eq!(accepted(many).devices, Some(1));
}

#[test]
fn numbers_beyond_json_are_refused_by_name() {
    let text = dgx(json!({})).to_string();
    for bad in ["NaN", "Infinity", "1e999"] {
        let message = read(&text.replace("450", bad)).unwrap_err().to_string();
        assert!(message.contains("`tiers.0.gbs_per_dir_per_device` is") && message.contains("finite"), "{message}");
    }
    let missing = read(&text.replace("\"fanout\":8,", "")).unwrap_err().to_string();
    assert!(missing.contains("`tiers.0.fanout` is missing"), "{missing}");
}

#[test]
fn a_figure_after_oversubscription_is_the_same_network_as_one_before() {
    let network = |outer: f64| {
        let mut file = dgx(json!({}));
        file["tiers"][1]["fanout"] = json!(4);
        let spine = json!({"name": "spine", "fanout": null, "gbs_per_dir_per_device": outer, "oversubscription": 7});
        file["tiers"].as_array_mut().unwrap().push(spine);
        accepted(file).tiers[2].bandwidth
    };
    assert!((network(50.0) - 50e9).abs() < 1.0);
    assert!((network(50.0 / 7.0) - 50e9).abs() < 1.0);
    assert!((network(25.0) - 25e9).abs() < 1.0, "no relation to the tier below: as given");
}

#[test]
fn a_null_bandwidth_is_the_devices_own() {
    let c = accepted(outer("gbs_per_dir_per_device", Value::Null));
    assert_eq!(c.tiers[1].bandwidth, c.device.network_bandwidth.unwrap());
    assert!(c.tiers[1].assumed.contains(&"bandwidth".to_string()));
    let own = json!({"tflops_dense": {"bf16": 500}, "mem_gb": 64, "mem_bw_gbs": 2000});
    let mut unknown = outer("gbs_per_dir_per_device", Value::Null);
    unknown["device"] = own;
    assert!(refused(unknown).contains("`tiers.1.gbs_per_dir_per_device` is null"));
}

#[test]
fn names_are_found_as_they_are_written_around() {
    let known = known();
    let id = |name: &str| known.device(name).unwrap().id;
    assert_eq!(id("H100_SXM5-80gb"), "h100-sxm5");
    assert_eq!(id("a100 80gb"), "a100-sxm4-80gb");
    assert_eq!(id("gb200-nvl72"), "gb200");
    assert_eq!(known.cluster("GB200_NVL72").unwrap().id, "gb200-nvl72");
    assert_eq!(known.cluster("DGX-H100").unwrap().id, "dgx-h100");
    assert_eq!(id("DGX-H100"), "h100-sxm5");
    assert!(known.device("A100").unwrap().notes.starts_with("A100: 80 GB SXM assumed"));
    assert!(known.device("MI250X GCD-64GB").unwrap().notes.contains("half of the mi250x"));
    let device = known.device("h100-sxm").map(|d| d.id).unwrap();
    assert_eq!(device, "h100-sxm5");
    let message = |name: &str| known.cluster(name).unwrap_err().to_string();
    assert!(message("h100-sxm5").contains("it is a device (h100-sxm5); clusters of it: dgx-h100, meta-llama3-roce-24k"));
    assert!(message("dgx-h10").contains("did you mean `dgx-h100`"), "{}", message("dgx-h10"));
    assert!(message("no/such.json").starts_with("no/such.json: cannot read the file"));
    assert!(known.device("zebra").unwrap_err().to_string().starts_with("unknown device zebra (`autoshard"));
}

#[test]
fn sustained_rates_are_read_inherited_and_checked() {
    use super::defaults::Sustained;
    let read = |text: &str| Sustained::read(&Document::parse("s.json", text.as_bytes()).unwrap());
    let table = r#"{"h100-sxm5": {"factor": 0.9, "source": "here"}, "h200-sxm": {"parent": "h100-sxm5"}}"#;
    let table = read(table).unwrap();
    let with = |id: &str| {
        let mut device = known().device(id).unwrap();
        table.fill(&mut device);
        (device.sustained, device.sustained_source)
    };
    assert_eq!(with("h100-sxm5"), (0.9, "here".to_string()));
    assert_eq!(with("h200-sxm"), (0.9, "that of h100-sxm5: here".to_string()));
    assert_eq!(with("k40").0, 1.0);
    let wrong = read(r#"{"h100-sxm5": {"factor": 0.5, "source": ""}}"#).unwrap_err().to_string();
    assert!(wrong.contains("`h100-sxm5.factor` is 0.5, but must be from 0.75 to 1"), "{wrong}");
    let unknown = read(r#"{"h100-sxm6": {"parent": "h100-sxm5"}}"#).unwrap();
    assert!(unknown.check(known().devices()).is_err());
}

thread_local! {
    /// Read once for the many cases below.
    static KNOWN: Catalogue = known();
}

proptest::proptest! {
    #[test]
    fn any_values_of_the_keys_are_read_or_refused(
        fanout in -2i64..70, bandwidth in -1.0f64..500.0, times in 0.0f64..9.0,
        devices in 0u64..600, per_node in 0u64..20,
    ) {
        let mut file = dgx(json!({"devices": devices, "devices_per_node": per_node}));
        file["tiers"][1]["fanout"] = json!(fanout);
        file["tiers"][1]["gbs_per_dir_per_device"] = json!(bandwidth);
        file["tiers"][1]["oversubscription"] = json!(times);
        let doc = Document::parse("c.json", file.to_string().as_bytes()).unwrap();
        if let Ok(c) = KNOWN.with(|known| known.read(&doc, "c")) {
            proptest::prop_assert_eq!(c.capacity(), Some(devices));
            proptest::prop_assert!(c.tiers.iter().all(|t| t.bandwidth > 0.0 && t.oversubscription >= 1.0));
        }
    }
}

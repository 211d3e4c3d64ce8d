//! The shipped tables and constants: what they predict, what must hold for any size and group.

use super::accuracy::published;
use super::{rows, shipped};
use autoshard_cost::cluster::{Cluster, Medium, Tier};
use autoshard_cost::collectives::evaluate::{evaluate, left_out, more_ranks, score, Check};
use autoshard_cost::collectives::{Algorithm, Collectives, DeviceTable, Estimate, InNode, Kind, Row, Tables};
use autoshard_cost::device::Device;
use autoshard_cost::kernels::How;
use autoshard_cost::layout::{place, MeshAxis, Placement, Span};

const KINDS: [Kind; 5] = [Kind::AllReduce, Kind::AllGather, Kind::ReduceScatter, Kind::AllToAll, Kind::SendRecv];

fn tier(medium: Medium, fanout: Option<u64>, gbs: f64, us: f64) -> Tier {
    Tier {
        name: format!("{medium:?}"),
        fanout,
        bandwidth: gbs * 1e9,
        oversubscription: 1.0,
        latency: us * 1e-6,
        medium,
        nics_per_node: None,
        in_network_reduction: false,
        torus: Vec::new(),
        assumed: Vec::new(),
        notes: String::new(),
        ..Default::default()
    }
}

fn cluster(device: &str, tiers: Vec<Tier>) -> Cluster {
    Cluster {
        id: "test".to_string(),
        device: Device { id: device.to_string(), ..Device::default() },
        devices_per_node: 8,
        devices: None,
        tiers,
        failures: None,
        price: None,
        verified: true,
        sources: Vec::new(),
        notes: String::new(),
        ..Default::default()
    }
}

/// Eight of a device in a node, any number of nodes.
fn nodes_of(device: &str, gbs: f64) -> Cluster {
    let mut inside = tier(Medium::ScaleUp, Some(8), gbs, 4.0);
    inside.in_network_reduction = device.starts_with('h') || device.starts_with('b');
    cluster(device, vec![inside, tier(Medium::Network, None, 50.0, 14.0)])
}

/// A group with these members of each tier.
fn group(cluster: &Cluster, members: &[u64]) -> Placement {
    let spans = cluster.tiers.iter().zip(members);
    let spans = spans
        .map(|(t, m)| Span {
            members: *m,
            bandwidth: t.bandwidth,
            latency: t.latency,
            medium: t.medium,
            ..Span::default()
        })
        .collect();
    Placement { size: members.iter().product(), spans, replicated: false }
}

fn one_node(table: &DeviceTable) -> DeviceTable {
    DeviceTable { rows: table.rows.iter().filter(|r| r.ranks <= 8).copied().collect(), ..table.clone() }
}

#[test]
fn what_ships_reads() {
    let tables = shipped().unwrap();
    assert_eq!(tables.devices.len(), 7);
    assert_eq!(tables.devices.iter().map(|t| t.rows.len()).sum::<usize>(), 6 * 199 + 133 + 5);
    for (device, other) in &tables.related {
        assert!(tables.own(device).is_none() && tables.related(device).is_some_and(|t| &t.device == other), "{device}");
    }
    assert!(published().unwrap().len() > 90);
}

#[test]
fn left_out_rows_are_predicted() {
    let tables = shipped().unwrap();
    let mut all = Vec::new();
    for table in &tables.devices {
        let checks: Vec<Check> = (0..3).flat_map(|s| left_out(&one_node(table), s, &tables.constants)).collect();
        let s = score(&checks).unwrap();
        let (median, p90) = if table.device == "l40s" { (0.06, 0.24) } else { (0.04, 0.14) };
        assert!(s.median_ape < median && s.p90_ape < p90, "{}: {s:?}", table.device);
        all.extend(checks);
    }
    let s = score(&all).unwrap();
    assert!(s.median_ape < 0.035 && s.p90_ape < 0.14, "{s:?}");
}

#[test]
fn eight_ranks_follow_from_two_and_four() {
    let tables = shipped().unwrap();
    for table in tables.devices.iter().filter(|t| t.device != "gb200") {
        let checks = more_ranks(&one_node(table), 8, &tables.constants);
        for kind in Kind::MEASURED {
            let of: Vec<Check> = checks.iter().filter(|c| c.row.kind == kind).copied().collect();
            let s = score(&of).unwrap();
            // The L40S box scatters by half from one size to the next at 8 ranks.
            let most = if table.device == "l40s" { 0.21 } else { 0.15 };
            assert!(s.median_ape < most, "{} {kind}: {s:?}", table.device);
        }
    }
}

#[test]
fn times_in_a_node_never_fall() {
    let tables = shipped().unwrap();
    for table in &tables.devices {
        let model = InNode::new(table, 72, &tables.constants);
        for kind in Kind::MEASURED {
            let of = |g: f64, b: f64| model.point(kind, g, b).unwrap().seconds;
            for g in [2.0, 3.0, 5.0, 6.0, 7.0, 8.0, 16.0, 32.0, 64.0, 72.0] {
                let sizes = (0..600).map(|i| 1.06f64.powi(i));
                let times: Vec<f64> = sizes.map(|b| of(g, b)).collect();
                assert!(times.windows(2).all(|w| w[0] <= w[1]), "{} {kind} {g}", table.device);
                assert!(times.iter().all(|t| t.is_finite() && *t > 1e-6));
            }
            for part in (0..36).map(|i| 2f64.powi(i)) {
                let times: Vec<f64> = (2..=80).map(|g| of(g as f64, part * g as f64)).collect();
                assert!(times.windows(2).all(|w| w[0] <= w[1] * (1.0 + 1e-12)), "{} {kind} {part}", table.device);
            }
        }
    }
}

#[test]
fn times_across_nodes_never_fall() {
    let tables = shipped().unwrap();
    for (device, gbs) in [("h100-sxm5", 450.0), ("a100-sxm4-80gb", 300.0), ("unknown", 200.0)] {
        let c = nodes_of(device, gbs);
        let model = Collectives::new(&c, tables.clone());
        let of = |kind, members: &[u64], b: f64| model.seconds(kind, &group(&c, members), b).seconds;
        for kind in KINDS {
            for members in [[1, 2], [1, 64], [3, 2], [8, 2], [8, 3], [8, 100]] {
                let times: Vec<f64> = (0..500).map(|i| of(kind, &members, 1.07f64.powi(i))).collect();
                assert!(times.windows(2).all(|w| w[0] <= w[1]), "{device} {kind} {members:?}");
            }
            for part in (0..34).map(|i| 2f64.powi(i)) {
                let whole = |g: u64| if kind == Kind::SendRecv { part } else { part * g as f64 };
                let times: Vec<f64> = (1..60).map(|n| of(kind, &[8, n], whole(8 * n))).collect();
                assert!(times.windows(2).all(|w| w[0] <= w[1] * (1.0 + 1e-9)), "{device} {kind} {part} {times:?}");
            }
        }
    }
}

#[test]
fn a_group_of_one_takes_no_time() {
    let c = nodes_of("h100-sxm5", 450.0);
    let model = Collectives::new(&c, shipped().unwrap());
    for kind in KINDS {
        let e = model.seconds(kind, &group(&c, &[1, 1]), 1e9);
        assert_eq!((e.seconds, e.algorithm), (0.0, Algorithm::None));
        assert_eq!(model.seconds(kind, &group(&c, &[8, 1]), 0.0).seconds, 0.0);
    }
}

#[test]
fn a_node_takes_the_table_and_its_switch() {
    let c = nodes_of("h100-sxm5", 450.0);
    let model = Collectives::new(&c, shipped().unwrap());
    let of = |kind, members: &[u64], b| model.seconds(kind, &group(&c, members), b);
    let large = of(Kind::AllReduce, &[8, 1], 2f64.powi(29));
    assert_eq!((large.how, large.algorithm, large.tier), (How::Interpolated, Algorithm::Nvls, 0));
    assert!((large.seconds / 2111e-6 - 1.0).abs() < 0.03, "{large:?}");
    assert!(large.load > 0.5 && large.load <= 1.0);
    assert_eq!(of(Kind::AllReduce, &[8, 1], 2f64.powi(33)).how, How::Extrapolated);
    assert_eq!(of(Kind::AllReduce, &[8, 2], 2f64.powi(30)).tier, 1);
}

#[test]
fn placement_decides_how_many_interfaces_a_group_has() {
    let c = nodes_of("h100-sxm5", 450.0);
    let model = Collectives::new(&c, shipped().unwrap());
    let of = |members: &[u64]| model.seconds(Kind::AllGather, &group(&c, members), 2f64.powi(30)).seconds;
    // Two nodes with eight ranks each have eight interfaces; eight nodes with two have two.
    assert!(of(&[2, 8]) > 3.0 * of(&[8, 2]), "{} {}", of(&[2, 8]), of(&[8, 2]));
    assert!(of(&[1, 16]) > 6.0 * of(&[8, 2]));
}

#[test]
fn related_devices_scale_with_their_links() {
    let tables = shipped().unwrap();
    let of = |device: &str, gbs: f64| -> Estimate {
        let c = nodes_of(device, gbs);
        Collectives::new(&c, tables.clone()).seconds(Kind::AllGather, &group(&c, &[8, 1]), 2f64.powi(29))
    };
    let (h100, h800) = (of("h100-sxm5", 450.0), of("h800-sxm", 200.0));
    assert_eq!(h800.how, How::Related);
    let ratio = h800.seconds / h100.seconds;
    assert!((ratio / (450.0 / 200.0) - 1.0).abs() < 0.15, "{ratio}");
}

#[test]
fn a_users_rows_replace_ours() {
    let mut tables = shipped().unwrap();
    let text = "op,ranks,bytes,us,nodes\nall_reduce,8,1024,100,1\nall_reduce,8,536870912,9000,1\n\
                all_reduce,16,1048576,777,2\nall_reduce,16,4194304,999,2\n";
    let own = rows(text).unwrap();
    let before = tables.own("h100-sxm5").unwrap().clone();
    tables.replace(before.clone(), own);
    let after = tables.own("h100-sxm5").unwrap();
    let eight = |t: &DeviceTable| t.rows.iter().filter(|r| (r.kind, r.ranks) == (Kind::AllReduce, 8)).count();
    assert_eq!((eight(&before), eight(after)), (19, 2));
    let c = nodes_of("h100-sxm5", 450.0);
    let model = Collectives::new(&c, tables);
    let inside = model.seconds(Kind::AllReduce, &group(&c, &[8, 1]), 536870912.0).seconds;
    assert!((inside / 9e-3 - 1.0).abs() < 1e-9, "{inside}");
    let beyond = model.seconds(Kind::AllReduce, &group(&c, &[8, 1]), 2f64.powi(31));
    assert!(beyond.how == How::Extrapolated && beyond.seconds > 30e-3, "{beyond:?}");
    let across = model.seconds(Kind::AllReduce, &group(&c, &[8, 2]), 1048576.0);
    assert!((across.seconds / 777e-6 - 1.0).abs() < 1e-9);
    assert_eq!(across.how, How::Interpolated);
    // Another group of 16 keeps the model.
    assert_eq!(model.seconds(Kind::AllReduce, &group(&c, &[4, 4]), 1048576.0).how, How::Roofline);
}

#[test]
fn validation_counts_what_it_extrapolates() {
    let tables = shipped().unwrap();
    let mut own: Vec<Row> = tables.own("h100-sxm5").unwrap().rows.clone();
    let s = evaluate(&own, "h100-sxm5", &tables).unwrap();
    assert_eq!((s.rows, s.extrapolated), (199, 0));
    assert!(s.median_ape < 0.03 && s.p90_ape < 0.12, "{s:?}");
    own[0].bytes = 2f64.powi(40);
    assert_eq!(evaluate(&own, "h100-sxm5", &tables).unwrap().extrapolated, 1);
    assert!(evaluate(&own, "tpu-v4", &tables).is_none());
}

#[test]
fn a_torus_rings_along_its_axes() {
    let mut ici = tier(Medium::Torus, Some(256), 180.0, 1.0);
    ici.torus = vec![16, 16];
    let c = cluster("tpu-v5e", vec![ici]);
    let model = Collectives::new(&c, shipped().unwrap());
    let of = |m: u64| {
        let mesh = [MeshAxis::new("tp", m), MeshAxis::new("dp", 256 / m)];
        model.seconds(Kind::AllGather, &place(&c, &mesh, &["tp"]).unwrap(), 2f64.powi(34)).seconds
    };
    // One axis of two, both ways, is half of what all four links carry: 90 GB/s; the whole torus has all.
    assert!((of(16) / (2f64.powi(34) * (15.0 / 16.0) / 90e9) - 1.0).abs() < 0.01);
    assert!((of(256) / (2f64.powi(34) * (255.0 / 256.0) / 180e9) - 1.0).abs() < 0.01);
    // Half an axis does not wrap around.
    assert!(of(8) > 1.5 * of(16));
}

#[test]
fn published_points_hold_where_the_model_claims_them() {
    let tables: Tables = shipped().unwrap();
    for p in published().unwrap() {
        let error = p.predict(&tables).seconds * 1e6 / p.us - 1.0;
        let claimed = ["dgx-a100-2", "gb200-72", "a100-1", "h200-1", "h800-1", "ndr400-pair", "h100-ibsharp-8"];
        if claimed.contains(&p.name.as_str()) {
            assert!(error.abs() < 0.09, "{p:?}: {error}");
        }
        assert!(error.abs() < 0.9, "{p:?}: {error}");
    }
}

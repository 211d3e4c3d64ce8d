//! Textbook placements, and counting against a walk over all ranks.

use super::*;
use std::collections::{BTreeMap, BTreeSet};

fn tier(fanout: Option<u64>, bandwidth: f64, medium: Medium) -> Tier {
    Tier { name: format!("{bandwidth}"), fanout, bandwidth, oversubscription: 1.0, medium, ..Tier::default() }
}

/// 8 devices a node, 2 nodes a rack, 192 racks a pod, 8 pods at 1:7.
fn clos() -> Cluster {
    let mut tiers = vec![tier(Some(8), 450e9, Medium::ScaleUp)];
    tiers.extend([2, 192, 8].map(|n| tier(Some(n), 50e9, Medium::Network)));
    tiers[3].oversubscription = 7.0;
    Cluster { tiers, ..Cluster::default() }
}

fn axes(text: &[(&str, u64)]) -> Vec<MeshAxis> {
    text.iter().map(|a| MeshAxis::from(*a)).collect()
}

fn members(p: &Placement) -> Vec<u64> {
    p.spans.iter().map(|s| s.members).collect()
}

#[test]
fn a_mesh_that_divides_its_tiers_is_placed_by_division() {
    let mesh = axes(&[("tp", 8), ("cp", 2), ("dp", 64), ("pp", 16)]);
    let on = |group: &[&str]| place(&clos(), &mesh, group).unwrap();
    assert_eq!(members(&on(&["tp"])), [8, 1, 1, 1]);
    assert_eq!(members(&on(&["cp"])), [1, 2, 1, 1]);
    assert_eq!(members(&on(&["dp"])), [1, 1, 64, 1]);
    assert_eq!(members(&on(&["tp", "cp", "dp"])), [8, 2, 64, 1]);
    let cp = on(&["cp"]).spans[1];
    assert_eq!((cp.bandwidth, cp.concurrent), (50e9, 8), "eight groups leave a node, each on its share");
    assert_eq!(on(&["tp"]).spans[0].bandwidth, 450e9);
    assert_eq!(on(&["pp"]).spans[3].bandwidth, 50e9 / 7.0);
    assert_eq!(on(&[]).outermost(), None);
    assert_eq!(on(&["dp"]).outermost(), Some(2));
}

#[test]
fn groups_that_do_not_divide_a_tier_are_those_of_the_worst_unit() {
    // Groups of 6 in nodes of 8: two ranks of the third, 12 to 17, are in the next rack. Three such parts.
    let p = place(&clos(), &axes(&[("tp", 6), ("dp", 4)]), &["tp"]).unwrap();
    assert_eq!(members(&p), [2, 1, 3, 1]);
    assert!(p.spans[2].uneven && !p.spans[3].uneven && !p.spans[0].uneven);
    // Nodes of 12 and groups of 8: the second group has 4 ranks in the first node.
    let nodes = Cluster {
        tiers: vec![tier(Some(12), 900e9, Medium::ScaleUp), tier(None, 50e9, Medium::Network)],
        ..Cluster::default()
    };
    let two = place(&nodes, &axes(&[("dp", 8), ("pp", 2)]), &["dp"]).unwrap();
    assert_eq!((members(&two), two.spans[1].uneven), (vec![4, 2], true));
}

#[test]
fn a_job_takes_equal_parts_of_rack_scale_domains() {
    let rack = Cluster {
        tiers: vec![tier(Some(72), 900e9, Medium::ScaleUp), tier(None, 50e9, Medium::Network)],
        ..Cluster::default()
    };
    let two = place(&rack, &axes(&[("dp", 64), ("pp", 2)]), &["dp"]).unwrap();
    assert_eq!(members(&two), [64, 1], "64 of the 72 in each");
    let all = place(&rack, &axes(&[("tp", 8), ("dp", 18)]), &["tp", "dp"]).unwrap();
    assert_eq!(members(&all), [72, 2], "144 devices fill two");
    // No part of three quarters divides 2 × 73 ranks.
    let odd = place(&rack, &axes(&[("dp", 73), ("pp", 2)]), &["dp"]).unwrap();
    assert!(odd.spans[1].uneven);
}

#[test]
fn more_devices_than_there_are_widen_the_last_tier_and_say_so() {
    let mesh = |dp| axes(&[("tp", 8), ("dp", dp)]);
    let fits = place(&clos(), &mesh(3072), &["dp"]).unwrap();
    assert_eq!((members(&fits), fits.replicated), (vec![1, 2, 192, 8], false));
    let wider = place(&clos(), &mesh(4 * 3072), &["dp"]).unwrap();
    assert_eq!((members(&wider), wider.replicated), (vec![1, 2, 192, 32], true));
}

#[test]
fn a_narrow_tier_holds_what_goes_on_through_it() {
    let mut cluster = clos();
    cluster.tiers[1].oversubscription = 4.0;
    let p = place(&cluster, &axes(&[("tp", 8), ("cp", 2), ("dp", 4)]), &["dp"]).unwrap();
    assert_eq!(p.spans[2].bandwidth, 12.5e9);
    assert_eq!(p.spans[0].bandwidth, 450e9, "NVLink is no part of that way");
}

#[test]
fn a_group_on_one_axis_of_a_torus_has_its_links_alone() {
    let torus = Tier { torus: vec![16, 16], ..tier(Some(256), 180e9, Medium::Torus) };
    let pod = Cluster { tiers: vec![torus], ..Cluster::default() };
    let mesh = axes(&[("tp", 16), ("dp", 16)]);
    let bandwidth = |mesh: &[MeshAxis], group: &[&str]| place(&pod, mesh, group).unwrap().spans[0].bandwidth;
    assert_eq!(bandwidth(&mesh, &["tp"]), 90e9);
    assert_eq!(bandwidth(&mesh, &["dp"]), 90e9);
    assert_eq!(bandwidth(&mesh, &["tp", "dp"]), 180e9);
    // A part of an axis has no way around: one link of four.
    assert_eq!(bandwidth(&axes(&[("tp", 4), ("dp", 64)]), &["tp"]), 45e9);
}

#[test]
fn what_has_no_meaning_is_refused() {
    let refuse = |cluster: &Cluster, mesh: &[(&str, u64)], group: &[&str]| {
        place(cluster, &axes(mesh), group).unwrap_err().to_string()
    };
    assert!(refuse(&clos(), &[("tp", 0)], &[]).contains("tp has size 0"));
    assert!(refuse(&clos(), &[("tp", 2), ("tp", 2)], &[]).contains("given twice"));
    assert!(refuse(&clos(), &[("tp", 2)], &["dp"]).contains("none of tp=2"));
    assert!(refuse(&clos(), &[("a", 1 << 40), ("b", 1 << 40)], &[]).contains("2^64"));
    assert!(refuse(&Cluster::default(), &[("tp", 2)], &[]).contains("no tiers"));
    let mut broken = clos();
    broken.tiers[1].fanout = None;
    assert!(refuse(&broken, &[("tp", 2)], &[]).contains("only the last tier"));
    broken.tiers[1].fanout = Some(0);
    assert!(refuse(&broken, &[("tp", 2)], &[]).contains("fan-out 0"));
    let primes = [("tp", 5003), ("dp", 5009)];
    assert!(refuse(&clos(), &primes, &["dp"]).contains("do not divide"));
}

#[test]
fn the_default_order_puts_what_talks_most_inside() {
    let order = default_layout(&axes(&[("pp", 2), ("x", 2), ("dp", 2), ("tp", 2), ("ep", 2), ("cp", 2), ("fsdp", 2)]));
    let names: Vec<&str> = order.iter().map(|a| a.name.as_str()).collect();
    assert_eq!(names, ["tp", "cp", "ep", "fsdp", "dp", "pp", "x"]);
}

/// A small generator (xorshift), so that the cases are the same on every run.
struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % n
    }
}

/// A cluster, a mesh and a group of its axes; sizes 1 to 12, few of which divide each other.
fn case(random: &mut Random) -> (Cluster, Vec<MeshAxis>, Vec<&'static str>) {
    let depth = 1 + random.below(4);
    let mut tiers: Vec<Tier> =
        (0..depth).map(|n| tier(Some(1 + random.below(9)), 1e9 + n as f64, Medium::Network)).collect();
    if random.below(2) == 0 {
        tiers.last_mut().unwrap().fanout = None;
    }
    let names = &["tp", "cp", "ep", "dp"][..1 + random.below(4) as usize];
    let mesh = names.iter().map(|n| MeshAxis::new(*n, 1 + random.below(12))).collect();
    let group = names.iter().copied().filter(|_| random.below(2) == 0).collect();
    (Cluster { tiers, ..Cluster::default() }, mesh, group)
}

/// Ranks of each group in each unit of `unit` devices, by walking over all ranks.
fn walk(mesh: &[MeshAxis], group: &[&str], unit: u64) -> BTreeMap<(Vec<u64>, u64), u64> {
    let world: u64 = mesh.iter().map(|a| a.size).product();
    let mut found = BTreeMap::new();
    for rank in 0..world {
        let mut rest = rank;
        let mut others = Vec::new();
        for axis in mesh {
            if !group.contains(&axis.name.as_str()) {
                others.push(rest % axis.size);
            }
            rest /= axis.size;
        }
        *found.entry((others, rank / unit)).or_insert(0) += 1;
    }
    found
}

#[test]
fn counting_agrees_with_a_walk_over_all_ranks() {
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let (mut even, mut uneven) = (0, 0);
    for number in 0..1000 {
        let (cluster, mesh, group) = case(&mut random);
        let placed = place(&cluster, &mesh, &group).unwrap();
        let label = format!("case {number}: {cluster:?} {mesh:?} {group:?}");
        assert_eq!(members(&placed).iter().product::<u64>(), placed.size, "{label}");
        let mut outer = placed.size;
        for at in (1..cluster.tiers.len()).rev() {
            let unit: u64 = cluster.tiers[..at].iter().map(|t| t.fanout.unwrap()).product();
            let seen: BTreeSet<u64> = walk(&mesh, &group, unit).into_values().collect();
            let least = *seen.first().unwrap();
            let within = placed.within(at - 1);
            if seen.len() == 1 && outer.is_multiple_of(least) {
                assert_eq!((within, placed.spans[at].uneven), (least, false), "{label} tier {at}");
                even += 1;
            } else {
                // The largest divisor of the group that the emptiest unit holds.
                assert!(within <= least && outer.is_multiple_of(within), "{label} tier {at}");
                assert!((within + 1..=least).all(|d| !outer.is_multiple_of(d)), "{label} tier {at}");
                assert!(placed.spans[at].uneven, "{label} tier {at}");
                uneven += 1;
            }
            outer = within;
        }
    }
    assert!(even > 500 && uneven > 300, "{even} even, {uneven} uneven: both kinds must be seen");
}

#[test]
fn equal_tiers_may_change_places() {
    let mut random = Random(7);
    for _ in 0..500 {
        let (mut cluster, mesh, group) = case(&mut random);
        let twin = Tier { fanout: Some(1 + random.below(6)), ..cluster.tiers[0].clone() };
        cluster.tiers.splice(0..1, [twin.clone(), Tier { name: "twin".to_string(), ..twin }]);
        let before = place(&cluster, &mesh, &group).unwrap();
        cluster.tiers.swap(0, 1);
        assert_eq!(place(&cluster, &mesh, &group).unwrap(), before);
    }
}

#[test]
fn merging_two_tiers_keeps_what_they_hold_together() {
    let mut random = Random(11);
    for _ in 0..500 {
        let (cluster, mesh, group) = case(&mut random);
        let Some((last, inner)) = cluster.tiers.split_last().filter(|(_, inner)| inner.len() > 1) else { continue };
        let apart = place(&cluster, &mesh, &group).unwrap();
        let whole = inner.iter().map(|t| t.fanout.unwrap()).product();
        let one =
            Cluster { tiers: vec![Tier { fanout: Some(whole), ..inner[0].clone() }, last.clone()], ..cluster.clone() };
        assert_eq!(place(&one, &mesh, &group).unwrap().within(0), apart.within(inner.len() - 1));
    }
}

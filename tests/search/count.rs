//! The candidates of a space, counted again from the words that say what a candidate is: one (tp, cp and method, pp,
//! vpp, schedule, ep, etp, dp, zero, shard group, micro-batch, sp, order of axes on the tiers).
//!
//! Loops over all whole numbers; [`settle`] says which combinations can be, and of several that say the same one is
//! counted.

use super::brute;
use super::case::Case;
use autoshard::cost::cluster::Tier;
use autoshard::predict::fix::Fix;
use autoshard::predict::settings::{settle, Job};
use autoshard::predict::{CpMethod, Order, Role, Schedule};
use autoshard::search::{space, Ask};
use std::collections::BTreeSet;

#[test]
fn candidates_at_8_devices_are_those_of_nested_loops() {
    for (seed, (fanouts, batch)) in [([2, 2], 6), ([4, 2], 8), ([2, 4], 4)].into_iter().enumerate() {
        for mixed in [false, true] {
            let mut case = case(seed as u64, mixed, fanouts, batch);
            case.cluster.tiers[2].bandwidth = 0.5 * case.cluster.tiers[1].bandwidth;
            agree(&case);
        }
    }
}

#[test]
fn orders_that_differ_on_equal_tiers_alone_are_one_candidate() {
    let mut case = case(0, false, [2, 2], 6);
    case.cluster.tiers[2] = Tier { fanout: None, ..case.cluster.tiers[1].clone() };
    agree(&case);
}

fn agree(case: &Case) {
    let (found, by_hand) = (space::size(&case.ask()), size(&case.ask()));
    println!("{}\n  {found:?}", case.text());
    assert_eq!(found, by_hand, "{}", case.text());
    assert!(found.whole > found.without_orders && found.idle > 0, "{found:?}");
}

/// A random question, told whether it has experts.
fn case(seed: u64, mixed: bool, fanouts: [u64; 2], batch: u64) -> Case {
    let mut drawn = (100 * seed..).map(|seed| Case::random(seed, true));
    let mut case = drawn.find(|c| (c.facts.experts > 0) == mixed).unwrap();
    for (tier, fanout) in case.cluster.tiers.iter_mut().zip(fanouts) {
        tier.fanout = Some(fanout);
    }
    (case.devices, case.global_batch, case.seq_len) = (8, batch, 96);
    case
}

fn size(ask: &Ask) -> space::Size {
    let mut out = space::Size::default();
    for [tp, cp, pp, dp] in degrees(ask.devices) {
        let fix = Fix { tp: Some(tp), cp: Some(cp), pp: Some(pp), dp: Some(dp), ..Fix::default() };
        let ways = candidates(ask, &fix, [tp, cp, pp, dp]);
        if tp * cp * pp * dp == ask.devices {
            out.without_orders += ways;
            out.whole += ways * orders(&ask.cluster.tiers, [tp, cp, dp, pp]);
        } else {
            out.idle += ways;
        }
    }
    out
}

/// tp, cp, pp, dp on at most so many devices.
fn degrees(devices: u64) -> Vec<[u64; 4]> {
    let mut out = Vec::new();
    for tp in 1..=devices {
        for cp in 1..=devices {
            for pp in 1..=devices {
                out.extend((1..=devices).map(|dp| [tp, cp, pp, dp]).filter(|d| d.iter().product::<u64>() <= devices));
            }
        }
    }
    out
}

/// All of what else is decided; each loop leaves out what cannot be with the loops around it.
fn candidates(ask: &Ask, degrees: &Fix, [tp, cp, pp, dp]: [u64; 4]) -> u64 {
    let can = |fix: &Fix| can_be(ask, fix, tp * cp * pp * dp);
    let mut out = 0;
    for mbs in 1..=ask.global_batch {
        for method in CpMethod::ALL {
            for sp in [false, true] {
                let inside = Fix { mbs: Some(mbs), cp_method: Some(*method), sp: Some(sp), ..degrees.clone() };
                // Without cp there is no method: the first stands for all.
                if (cp == 1 && *method != CpMethod::ALL[0]) || !can(&inside) {
                    continue;
                }
                for (ep, etp) in pairs(ask.facts.experts.max(1), tp * cp * dp) {
                    let with_experts = Fix { ep: Some(ep), etp: Some(etp), ..inside.clone() };
                    if !can(&with_experts) {
                        continue;
                    }
                    out += schedules(ask, pp).into_iter().fold(0, |n, (schedule, vpp)| {
                        let with = Fix { schedule: Some(schedule), vpp: Some(vpp), ..with_experts.clone() };
                        if can(&with) {
                            n + sharings(cp * dp, |fix| can(fix), &with)
                        } else {
                            n
                        }
                    });
                }
            }
        }
    }
    out
}

fn pairs(first: u64, second: u64) -> Vec<(u64, u64)> {
    (1..=first).flat_map(|a| (1..=second).map(move |b| (a, b))).collect()
}

/// Schedules and chunks that say something else than another pair does.
fn schedules(ask: &Ask, pp: u64) -> Vec<(Schedule, u64)> {
    let mut out = Vec::new();
    for schedule in Schedule::ALL {
        for vpp in 1..=ask.facts.layers + 2 {
            let says_more = match schedule {
                // Without stages there is nothing to order.
                _ if pp == 1 => *schedule == Schedule::OneFOneB,
                // One chunk is not interleaved.
                Schedule::Interleaved => vpp > 1,
                // A V has two chunks, said or not.
                Schedule::ZbV | Schedule::DualPipeV => vpp == 2,
                _ => true,
            };
            if says_more {
                out.push((*schedule, vpp));
            }
        }
    }
    out
}

/// What is shared by groups of more than one rank, or nothing.
fn sharings(data_ranks: u64, can: impl Fn(&Fix) -> bool, fix: &Fix) -> u64 {
    let all = pairs(4, data_ranks).into_iter().map(|(zero, group)| (zero as u8 - 1, group));
    let says_more = all.filter(|(zero, group)| (*zero == 0) == (*group == 1));
    let with = |(zero, group)| Fix { zero: Some(zero), shard_group: Some(group), ..fix.clone() };
    says_more.filter(|s| can(&with(*s))).count() as u64
}

fn can_be(ask: &Ask, fix: &Fix, devices: u64) -> bool {
    let job = Job {
        facts: ask.facts,
        devices,
        seq_len: Some(ask.seq_len),
        global_batch: Some(ask.global_batch),
        stack: &ask.stack.name,
        order: Order::STAGES_OUTSIDE,
    };
    settle(fix, &job).is_ok()
}

/// Orders of the axes that put the groups of some axis on tiers differently. Sizes of tp, cp, dp, pp.
fn orders(tiers: &[Tier], sizes: [u64; 4]) -> u64 {
    let all = brute::orders();
    all.iter().map(|order| seats(tiers, order, sizes)).collect::<BTreeSet<_>>().len() as u64
}

/// By axis of more than one rank and by tier: how many ranks of each of its groups are in one unit of the tier. The
/// tiers of these tests hold whole groups or equal parts of them.
fn seats(tiers: &[Tier], order: &Order, sizes: [u64; 4]) -> Vec<Vec<u64>> {
    let size = |role: Role| sizes[[Role::Tp, Role::Cp, Role::Dp, Role::Pp].iter().position(|r| *r == role).unwrap()];
    let mut out = Vec::new();
    for role in [Role::Tp, Role::Cp, Role::Dp, Role::Pp].into_iter().filter(|r| size(*r) > 1) {
        let stride: u64 = order.0.iter().take_while(|r| **r != role).map(|r| size(*r)).product();
        let first_group: Vec<u64> = (0..size(role)).map(|i| i * stride).collect();
        out.push(
            boundaries(tiers).iter().map(|unit| first_group.iter().filter(|r| *r / unit == 0).count() as u64).collect(),
        );
    }
    out
}

/// Devices of a unit of each tier but the last; a tier that is like the next one is no boundary.
fn boundaries(tiers: &[Tier]) -> Vec<u64> {
    let mut unit = 1;
    let mut out = Vec::new();
    for pair in tiers.windows(2) {
        unit *= pair[0].fanout.unwrap();
        if !alike(&pair[0], &pair[1]) {
            out.push(unit);
        }
    }
    out
}

fn alike(a: &Tier, b: &Tier) -> bool {
    let unlike =
        |t: &Tier| Tier { name: String::new(), fanout: None, notes: String::new(), assumed: Vec::new(), ..t.clone() };
    unlike(a) == unlike(b)
}

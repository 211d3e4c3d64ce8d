//! What is said where nothing fits, and what the space does not have.

use super::brute;
use super::case::{cases, Case, GIB};
use autoshard::predict::fix::{self, Fix};
use autoshard::predict::predictor::Predictor;
use autoshard::predict::{Layout, Recompute};
use autoshard::report::stages::Room;
use autoshard::search::{check, fewest_devices, infeasible, rejected, search, Ask, Rejected};

/// Bytes of the smallest plan, tried one by one: all cuts, everything computed again or parts of it.
fn smallest(ask: &Ask, predictor: &Predictor) -> (f64, Option<Layout>) {
    let mut policies = check::recomputations(ask);
    policies.extend([Recompute::Full, Recompute::None]);
    let mut least = (f64::INFINITY, None);
    brute::each_layout(ask, |layout| {
        for layers in check::cuts(ask, predictor, &layout).unwrap() {
            for recompute in &policies {
                let layout = Layout { recompute: recompute.clone(), ..layout.clone() };
                let stages = predictor.memory(&ask.job(&layout, layers.as_deref())).unwrap();
                let bytes = stages.iter().map(|m| m.device).fold(0.0, f64::max);
                if bytes < least.0 {
                    least = (bytes, Some(layout));
                }
            }
        }
    });
    least
}

#[test]
fn the_smallest_plan_is_the_smallest() {
    let (mut nothing, mut more_devices_help) = (0, 0);
    for seed in 4000..4000 + cases(8) {
        let mut case = Case::random(seed, true);
        let predictor = Predictor::default();
        let (least, by) = smallest(&case.ask(), &predictor);
        // Just too little for it.
        case.room = Room { bytes: 0.999 * least * 1.08, given: true, margin: 0.08 };
        assert_eq!(search(&case.ask(), &predictor).unwrap().best, [], "{}", case.text());
        let said = infeasible(&case.ask(), &predictor).unwrap();
        // Other schedules than those that hold least cut layers in other ways, which matters where there are few.
        let near = (least..1.1 * least).contains(&said.smallest_memory);
        assert!(near, "{}\n{said:?}\n{least} {by:?}", case.text());
        let stages = predictor.memory(&case.ask().job(&said.smallest, said.smallest_layers.as_deref())).unwrap();
        assert_eq!(stages.iter().map(|m| m.device).fold(0.0, f64::max), said.smallest_memory, "{said:?}");
        let gib = format!("{:.2} GiB", said.smallest_memory / GIB);
        assert!(said.reason.contains(&gib), "{gib}: {}", said.reason);
        nothing += 1;
        // On so many devices a plan fits, on one less none does.
        let Some(fewest) = said.fewest_devices else { continue };
        assert!(fewest > case.devices, "{said:?}");
        let on = |devices| search(&Case { devices, ..case.clone() }.ask(), &predictor).unwrap();
        assert!(!on(fewest).best.is_empty(), "{}\n{said:?}", case.text());
        assert_eq!(on(fewest - 1).best, [], "{}\n{said:?}", case.text());
        more_devices_help += 1;
    }
    println!("{nothing} questions without a plan, {more_devices_help} of which have one on more devices");
    assert!(more_devices_help > 0);
}

#[test]
fn fewest_devices_are_those_of_one_search_after_the_other() {
    let mut found = 0;
    for seed in 4500..4500 + cases(6) {
        let case = Case { devices: 12, ..Case::random(seed, true) };
        let predictor = Predictor::default();
        let fits = |devices: &u64| {
            let case = Case { devices: *devices, ..case.clone() };
            !search(&case.ask(), &predictor).unwrap().best.is_empty()
        };
        let first = (1..=12).find(fits);
        let said = fewest_devices(&case.ask(), &predictor).unwrap();
        match (first, said) {
            (Some(first), Some(said)) => {
                assert_eq!(said.devices, first, "{}\n{said:?}", case.text());
                found += 1;
            }
            (None, said) => assert!(said.as_ref().is_none_or(|s| s.devices > 12), "{}\n{said:?}", case.text()),
            (first, None) => panic!("{} fits on {first:?}", case.text()),
        }
    }
    assert!(found > 0);
}

#[test]
fn known_models_need_what_they_need() {
    // 16 B of states a parameter: 117e9 of a mixture in 80 GiB are 22 devices at the least.
    let case = Case::known("meta-llama-3.1-70b", "dgx-h100", 8, (4096, 64));
    let said = infeasible(&case.ask(), &Predictor::default()).unwrap();
    let states = 16.0 * case.facts.parameters as f64;
    assert!(said.smallest_memory > states / 8.0, "{said:?}");
    let fewest = said.fewest_devices.unwrap();
    assert!(fewest as f64 >= states / case.room.bytes && fewest < 64, "{said:?}");
    assert!(said.reason.contains("no plan of") && said.reason.contains("at most 8 devices"), "{}", said.reason);
}

/// A question about a dense model with 64 heads, 8 of them of keys, and 80 layers.
fn about(fixed: &str) -> Vec<Rejected> {
    let fix = if fixed.is_empty() { Fix::default() } else { fix::parse(fixed).unwrap() };
    rejected(&Case { fix, ..Case::known("meta-llama-3.1-70b", "dgx-h100", 96, (4096, 96)) }.ask())
}

#[test]
fn what_is_rejected_breaks_its_rule() {
    let all = about("");
    let of = |key: &str| all.iter().filter(|r| r.decision == key).collect::<Vec<_>>();
    // Divisors of 96 devices, 64 heads and 8 devices of a server: what has a factor 3 does not split heads.
    let [heads] = of("tp")[..] else { panic!("{all:?}") };
    assert_eq!(heads.values, [3, 6, 12, 24, 48, 96]);
    for part in ["tp=3", "64 heads", "8 kv heads", "1,2,4,8,16,32,64", "pp"] {
        assert!(heads.rule.contains(part), "{part}: {}", heads.rule);
    }
    // 2·cp has to divide 4,096 positions.
    let [positions] = of("cp")[..] else { panic!("{all:?}") };
    assert_eq!(positions.values, [3, 6, 12, 24, 48, 96]);
    assert!(positions.rule.contains("2·cp must divide"), "{}", positions.rule);
    // 80 layers with embedding and head are 82 chunks at the most.
    let [chunks] = of("pp")[..] else { panic!("{all:?}") };
    assert_eq!(chunks.values, [96]);
    assert!(chunks.rule.contains("80 layers") && chunks.rule.contains("at most 82"), "{}", chunks.rule);
    // 64 heads, 64 at the most.
    let ulysses = of("cp with cp_method=ulysses");
    assert!(ulysses.iter().all(|r| r.values.iter().all(|v| !64u64.is_multiple_of(*v))), "{ulysses:?}");
}

#[test]
fn all_rules_that_decisions_break_are_told_at_once() {
    let all = about("tp=3,cp=5,pp=100,mbs=7,ep=2");
    for (key, value) in [("tp", 3), ("cp", 5), ("pp", 100), ("mbs", 7), ("ep", 2)] {
        let has = |r: &&Rejected| r.decision == key && r.values.contains(&value);
        assert!(all.iter().any(|r| has(&r)), "{key}={value}: {all:?}");
    }
    // What is possible alone and not together.
    let together = about("tp=8,pp=24");
    assert!(together.iter().any(|r| r.decision == "fix" && r.rule.contains("96")), "{together:?}");
}

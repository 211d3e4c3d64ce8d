//! Lower bounds of single plans against their simulation.

use super::case::{number, Case, Random};
use super::plans;
use autoshard::predict::predictor::Predictor;
use autoshard::predict::{Layout, Schedule};
use autoshard::search::{check, space};
use std::collections::BTreeMap;

/// Known models on known machines: devices, positions, sequences.
const KNOWN: [(&str, &str, u64, u64, u64); 7] = [
    ("meta-llama-3.1-8b", "dgx-h100", 64, 8192, 128),
    ("meta-llama-3.1-70b", "dgx-a100", 256, 4096, 512),
    ("mixtral-8x7b-v0.1", "dgx-h100", 128, 4096, 256),
    ("qwen3-30b-a3b", "dgx-h100", 96, 4096, 288),
    ("deepseek-v3", "dgx-h800", 1024, 4096, 1024),
    ("gpt3-175b", "selene", 1024, 2048, 512),
    ("meta-llama-3.1-405b", "meta-llama3-roce-24k", 2048, 8192, 512),
];

/// Plans of one question that are bounded together.
const TOGETHER: usize = 100;

#[test]
fn no_bound_is_above_the_simulation() {
    let all = number("AUTOSHARD_SEARCH_PLANS", 3000);
    let mut seen = Seen::default();
    for round in 0.. {
        if seen.plans >= all {
            break;
        }
        // Every fourth question is one of a known model; there are fewer models than seeds.
        let case = match round % 4 {
            3 => {
                let (model, cluster, devices, seq_len, batch) = KNOWN[round as usize / 4 % KNOWN.len()];
                Case::known(model, cluster, devices, (seq_len, batch))
            }
            _ => Case::random(5000 + round, round % 4 == 0),
        };
        bound(&case, &mut Random::new(round), &mut seen);
    }
    println!("{} plans, the largest bound is {:.6} of its simulation: {}", seen.plans, seen.most, seen.of);
    seen.kinds.iter().for_each(|(kind, (n, most))| println!("  {kind:<12} {n:>7} {most:.6}"));
    assert_eq!(seen.above, 0, "bounds are above simulations: {:?}", seen.above_of);
    let each = ["moe", "cp", "keep", "hsdp", "zero 0", "zero 1", "zero 2", "zero 3"].into_iter();
    for kind in each.chain(Schedule::ALL.iter().map(|s| s.name())) {
        assert!(seen.kinds.contains_key(kind), "no {kind} among {} plans", seen.plans);
    }
    // A bound of nothing is below everything.
    assert!(seen.most > 0.99, "{}", seen.most);
}

/// What was bounded.
#[derive(Default)]
struct Seen {
    plans: u64,
    /// The largest share of a simulation that a bound is.
    most: f64,
    of: String,
    /// Bounds that are above, and of what.
    above: u64,
    above_of: BTreeMap<String, u64>,
    /// Plans and that share by what they have.
    kinds: BTreeMap<String, (u64, f64)>,
}

fn bound(case: &Case, r: &mut Random, seen: &mut Seen) {
    let ask = &case.ask();
    let predictor = Predictor::default();
    let all = space::insides(ask);
    // What is inside costs most to price, so some are drawn and their plans share it.
    let insides: Vec<space::Inside> = (0..8).map(|_| r.one(&all)).collect();
    let mut plans: Vec<check::Plan> = Vec::new();
    for _ in 0..TOGETHER {
        let Some(layout) = plans::draw(ask, &insides, r).filter(is_quick) else { continue };
        plans.push(match r.next().is_multiple_of(3) {
            true => plans::moved(ask, &predictor, &layout, r),
            false => (layout, None),
        });
    }
    let bounds = check::lower_bounds(ask, &predictor, &plans).unwrap();
    assert_eq!(bounds.len(), plans.len());
    for ((layout, layers), bound) in plans.iter().zip(bounds) {
        let prediction = predictor.predict(&ask.job(layout, layers.as_deref())).unwrap();
        let value = prediction.step_seconds * ask.objective.weight(ask, layout.devices());
        let share = bound / value;
        let text = || format!("{}\n{layout:?}\nlayers {layers:?}: bound {bound}, simulated {value}", case.text());
        assert!(share > 0.0, "{share}: {}", text());
        if share > 1.0 + 1e-9 {
            seen.above += 1;
            *seen.above_of.entry(kinds(layout)[..2].join(", ")).or_default() += 1;
        }
        seen.plans += 1;
        if share > seen.most {
            (seen.most, seen.of) = (share, text());
        }
        for kind in kinds(layout) {
            let (n, most) = seen.kinds.entry(kind).or_default();
            *n += 1;
            *most = most.max(share);
        }
    }
}

/// Whether its simulation has few enough steps for a test.
fn is_quick(l: &Layout) -> bool {
    l.pp * l.vpp * l.microbatches <= 20_000
}

/// What a plan has that its bound has terms for.
fn kinds(l: &Layout) -> Vec<String> {
    let schedule = if l.pp > 1 { l.schedule.name() } else { "one stage" };
    let mut out = vec![schedule.to_string(), format!("zero {}", l.zero)];
    let parts = [
        ("moe", l.ep > 1 || l.etp > 1),
        ("cp", l.cp > 1),
        ("tp", l.tp > 1),
        ("keep", l.keep),
        ("hsdp", l.shard_group > 1 && l.shard_group < l.dp * l.cp),
    ];
    out.extend(parts.iter().filter(|(_, has)| *has).map(|(name, _)| name.to_string()));
    out
}

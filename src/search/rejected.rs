//! What the space does not have, and why: every value that one would try, with the rule that it breaks.
//!
//! The judge is [`settle`], so the words are those of a layout that is refused. All decisions are told at once.

use super::Ask;
use crate::predict::fix::Fix;
use crate::predict::settings::{self, divisors, settle, Impossible};
use crate::predict::{CpMethod, Order, Schedule};

/// Values of a decision that the space does not have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rejected {
    /// A key of `--fix`, with what else it depends on; `fix` for decisions that are only wrong together.
    pub decision: String,
    /// The values, rising; empty for decisions that are only wrong together.
    pub values: Vec<u64>,
    /// The rule that they break, with the numbers of the first of them and what works.
    pub rule: String,
}

/// For each decision the values that one would try and that no plan has, by the rule that they break; and what is
/// wrong with the decisions that are made, taken together.
///
/// What one would try: degrees that divide the devices, a server, or what they split; powers of two for micro-batches;
/// and whatever is fixed. A value is tried alone, with one rank for everything else, so no other decision could mend it.
pub fn rejected(ask: &Ask) -> Vec<Rejected> {
    let mut out: Vec<Rejected> = Vec::new();
    for decision in decisions(ask) {
        for value in decision.values {
            let fix = (decision.set)(value);
            let Err(e) = alone(ask, &fix) else { continue };
            let rule = words(&e);
            let same = |r: &&mut Rejected| kind(&r.rule) == kind(&rule);
            match out.iter_mut().find(|r| same(r)) {
                // The same value breaks the same rule whatever else it is asked with.
                Some(r) if r.values.contains(&value) => {}
                Some(r) if r.decision == decision.key => r.values.push(value),
                _ => out.push(Rejected { decision: decision.key.into(), values: vec![value], rule }),
            }
        }
    }
    let more = together(ask).filter(|e| out.iter().all(|r| kind(&r.rule) != kind(&words(e))));
    out.extend(more.map(|e| Rejected { decision: "fix".into(), values: Vec::new(), rule: words(&e) }));
    out
}

/// A decision with the values to try.
struct Decision {
    key: &'static str,
    values: Vec<u64>,
    set: fn(u64) -> Fix,
}

fn decisions(ask: &Ask) -> Vec<Decision> {
    let (f, facts) = (ask.fix, ask.facts);
    let server = ask.cluster.tiers.first().and_then(|t| t.fanout).unwrap_or(1);
    let of = |numbers: &[u64], fixed: Option<u64>| {
        let small = |d: &u64| *d <= ask.devices;
        let divisors = numbers.iter().copied().flat_map(divisors).filter(small);
        let mut all: Vec<u64> = divisors.chain(fixed).collect();
        all.sort_unstable();
        all.dedup();
        all
    };
    let tps = of(&[ask.devices, facts.heads, server], f.tp);
    let cps = of(&[ask.devices, ask.seq_len], f.cp);
    let experts = if facts.experts > 0 { of(&[ask.devices, facts.experts], f.ep) } else { of(&[], f.ep) };
    let stages = of(&[ask.devices, facts.layers], f.pp);
    let few: Vec<u64> = (0..8).map(|e| 1 << e).filter(|n| *n <= ask.global_batch).chain(f.mbs).collect();
    vec![
        Decision { key: "tp", values: tps.clone(), set: |n| Fix { tp: Some(n), sp: Some(false), ..Fix::default() } },
        Decision { key: "tp with sp=1", values: tps, set: |n| Fix { tp: Some(n), sp: Some(n > 1), ..Fix::default() } },
        Decision {
            key: "cp",
            values: cps.clone(),
            set: |n| Fix { cp: Some(n), cp_method: Some(CpMethod::Ring), ..Fix::default() },
        },
        Decision {
            key: "cp with cp_method=ulysses",
            values: cps,
            set: |n| Fix { cp: Some(n), cp_method: Some(CpMethod::Ulysses), ..Fix::default() },
        },
        Decision { key: "pp", values: stages.clone(), set: |n| Fix { pp: Some(n), ..Fix::default() } },
        Decision {
            key: "pp with schedule=interleaved",
            values: stages,
            set: |n| Fix { pp: Some(n), schedule: Some(Schedule::Interleaved), ..Fix::default() },
        },
        Decision {
            key: "dp",
            values: of(&[ask.devices, ask.global_batch], f.dp),
            set: |n| Fix { dp: Some(n), ..Fix::default() },
        },
        Decision { key: "ep", values: experts, set: |n| Fix { ep: Some(n), etp: Some(1), ..Fix::default() } },
        Decision { key: "mbs", values: few, set: |n| Fix { mbs: Some(n), ..Fix::default() } },
    ]
}

/// Settles a decision with one rank for everything else.
fn alone(ask: &Ask, fix: &Fix) -> Result<(), Impossible> {
    let ranks = [fix.tp, fix.cp, fix.pp, fix.dp, fix.ep].into_iter().flatten();
    // Experts are split over ranks that may split anything else, so the batch does not bind them.
    let batch = fix.ep.is_none().then_some(ask.global_batch);
    settle(fix, &job(ask, ranks.product(), batch)).map(|_| ())
}

/// What is wrong with all decisions that are made, on as many devices as they name.
fn together(ask: &Ask) -> Option<Impossible> {
    let f = ask.fix;
    let [tp, cp, pp, dp] = [f.tp, f.cp, f.pp, f.dp].map(|n| n.unwrap_or(1));
    let product = [cp, pp, dp].iter().fold(tp, |n, d| n.saturating_mul(*d));
    let (devices, inner) = (ask.devices, tp.saturating_mul(cp).saturating_mul(pp));
    if inner > devices {
        let works = format!("at most {devices}");
        return Some(Impossible::Devices { tp, cp, pp, product: inner, devices, works });
    }
    if product > devices {
        return Some(Impossible::World { tp, cp, pp, dp, product, devices, right: devices / inner });
    }
    // Without dp nothing is known of what is shared out over data ranks.
    match f.dp {
        Some(_) => settle(f, &job(ask, product, Some(ask.global_batch))).err(),
        None => {
            let open = Fix { ep: None, etp: None, shard_group: None, ..f.clone() };
            settle(&open, &job(ask, product, None)).err()
        }
    }
}

fn job<'a>(ask: &Ask<'a>, devices: u64, global_batch: Option<u64>) -> settings::Job<'a> {
    settings::Job {
        facts: ask.facts,
        devices,
        seq_len: Some(ask.seq_len),
        global_batch,
        stack: &ask.stack.name,
        order: Order::of(ask.stack.habits.stages_inside),
    }
}

/// What a rule says, its numbers left out.
fn kind(rule: &str) -> String {
    rule.split(';').next().unwrap_or(rule).chars().filter(|c| !c.is_ascii_digit()).collect()
}

/// The rule in its own words; where heads do not split, with the way round it.
fn words(e: &Impossible) -> String {
    match e {
        Impossible::Heads { .. } => format!("{e}; or split layers instead, which needs no heads: pp"),
        other => other.to_string(),
    }
}

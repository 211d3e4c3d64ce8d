//! How two plans differ, and what each difference costs by itself.

use super::change::{apply, Change, Outcome};
use super::Subject;
use crate::planfile::decisions;
use crate::predict::fix::lines;
use crate::predict::fix::Fix;
use crate::predict::predictor::Predictor;
use crate::predict::{Layout, Part, Prediction};

/// Two plans side by side.
#[derive(Clone, Debug)]
pub struct Difference {
    /// What they were made for, where that differs: key, first, second.
    pub asked: Vec<[String; 3]>,
    /// Decisions that differ.
    pub decisions: Vec<[String; 3]>,
    /// Exposed seconds of the step by part, in the order of the first.
    pub time: Vec<(String, f64, f64)>,
    /// Bytes of the fullest stage by part.
    pub memory: Vec<(String, f64, f64)>,
    /// From the first plan, one group of the second's decisions at a time; empty where they answer different
    /// questions.
    pub single: Vec<(String, Outcome)>,
}

/// Compares two plans.
pub fn difference(a: &Subject, b: &Subject, predictor: &Predictor) -> Difference {
    let asked = asked(a, b);
    let decisions = decided(a, b);
    let single = match asked.is_empty() {
        true => changes(a, b).into_iter().map(|c| (c.name.clone(), apply(a, &c, predictor))).collect(),
        false => Vec::new(),
    };
    let memory = |p: &Prediction| {
        let parts = p.fullest().map(|(_, m)| m.parts.clone()).unwrap_or_default();
        parts.into_iter().map(|p| (p.name.to_string(), p.bytes)).collect()
    };
    let exposed = |p: &Prediction| p.parts.iter().filter(|x| x.exposed).map(named).collect();
    Difference {
        asked,
        decisions,
        time: beside(exposed(&a.prediction), exposed(&b.prediction)),
        memory: beside(memory(&a.prediction), memory(&b.prediction)),
        single,
    }
}

fn named(p: &Part) -> (String, f64) {
    // What crosses other tiers is another part.
    let name = if p.tier.is_empty() { p.name.clone() } else { format!("{} ({})", p.name, p.tier) };
    (name, p.seconds)
}

/// Two lists by name: those of the first, then what only the second has.
fn beside(a: Vec<(String, f64)>, b: Vec<(String, f64)>) -> Vec<(String, f64, f64)> {
    let mut out: Vec<(String, f64, f64)> = Vec::with_capacity(a.len() + b.len());
    for (list, second) in [(a, false), (b, true)] {
        for (name, x) in list {
            let at = out.iter().position(|(n, ..)| *n == name).unwrap_or_else(|| {
                out.push((name, 0.0, 0.0));
                out.len() - 1
            });
            *(if second { &mut out[at].2 } else { &mut out[at].1 }) += x;
        }
    }
    out
}

fn differing(rows: Vec<(&str, String, String)>) -> Vec<[String; 3]> {
    rows.into_iter().filter(|(_, a, b)| a != b).map(|(key, a, b)| [key.to_string(), a, b]).collect()
}

fn asked(a: &Subject, b: &Subject) -> Vec<[String; 3]> {
    let (p, q) = (&a.plan, &b.plan);
    let model = |p: &crate::planfile::PlanFile| format!("{} {:.8}", p.model.name, p.model.sha256);
    differing(vec![
        ("model", model(p), model(q)),
        ("cluster", p.cluster.clone(), q.cluster.clone()),
        ("stack", p.stack.clone(), q.stack.clone()),
        ("precision", p.precision.to_string(), q.precision.to_string()),
        ("seq_len", p.seq_len.to_string(), q.seq_len.to_string()),
        ("global_batch", p.global_batch.to_string(), q.global_batch.to_string()),
        ("devices", p.layout.devices().to_string(), q.layout.devices().to_string()),
    ])
}

fn decided(a: &Subject, b: &Subject) -> Vec<[String; 3]> {
    let rows = |s: &Subject| {
        let layout = Layout { order: Some(s.order()), ..s.plan.layout.clone() };
        let mut out = lines(&layout);
        out.push(("layers_per_stage", runs(&s.plan.layers_per_stage)));
        out
    };
    differing(rows(a).into_iter().zip(rows(b)).map(|((key, a), (_, b))| (key, a, b)).collect())
}

/// Equal neighbours together: `7+14×8+7`.
fn runs(list: &[u64]) -> String {
    let mut out: Vec<(u64, usize)> = Vec::new();
    for n in list {
        match out.last_mut() {
            Some((last, count)) if last == n => *count += 1,
            _ => out.push((*n, 1)),
        }
    }
    let words = out.iter().map(|(n, count)| if *count > 1 { format!("{count}×{n}") } else { n.to_string() });
    words.collect::<Vec<_>>().join("+")
}

/// Copies some decisions from one fix to another.
type Take = fn(&mut Fix, &Fix);

/// Decisions that are taken over together, because one without the others means little.
const GROUPS: [(&[&str], Take); 8] = [
    (&["tp", "sp"], |f, b| (f.tp, f.sp) = (b.tp, b.sp)),
    (&["cp", "cp_method"], |f, b| (f.cp, f.cp_method) = (b.cp, b.cp_method)),
    (&["pp", "vpp", "schedule"], |f, b| (f.pp, f.vpp, f.schedule) = (b.pp, b.vpp, b.schedule)),
    (&["ep", "etp"], |f, b| (f.ep, f.etp) = (b.ep, b.etp)),
    (&["zero", "shard_group", "keep"], |f, b| (f.zero, f.shard_group, f.keep) = (b.zero, b.shard_group, b.keep)),
    (&["mbs"], |f, b| f.mbs = b.mbs),
    (&["recompute"], |f, b| f.recompute = b.recompute.clone()),
    (&["layout"], |f, b| f.order = b.order),
];

/// The groups in which the second plan differs from the first, each as a change of the first. A shard group of all
/// data ranks is all of them in the first, too.
fn changes(a: &Subject, b: &Subject) -> Vec<Change<'static>> {
    let ordered = |s: &Subject| Layout { order: Some(s.order()), ..s.plan.layout.clone() };
    let all = |l: &Layout| l.zero > 0 && l.shard_group == l.dp * l.cp;
    let said = |l: &Layout| {
        let word = |(key, value)| (key, if key == "shard_group" && all(l) { "all".to_string() } else { value });
        lines(l).into_iter().map(word).collect::<Vec<_>>()
    };
    let (first, second) = (ordered(a), ordered(b));
    let mut from = decisions(&second);
    from.shard_group = from.shard_group.filter(|_| !all(&second));
    from.sp = from.sp.filter(|_| second.tp > 1);
    let mut out = Vec::new();
    for (keys, take) in GROUPS {
        let rows = said(&first).into_iter().zip(said(&second)).filter(|(x, y)| keys.contains(&x.0) && x != y);
        let words: Vec<String> = rows.map(|(_, (key, value))| format!("{key}={value}")).collect();
        if !words.is_empty() {
            let from = from.clone();
            out.push(Change { name: words.join(","), set: Box::new(move |f| take(f, &from)) });
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_stages_are_counted_and_parts_are_matched_by_name() {
        assert_eq!(runs(&[7, 8, 8, 8, 7]), "7+3×8+7");
        let list = |x: &[(&str, f64)]| x.iter().map(|(n, v)| (n.to_string(), *v)).collect::<Vec<_>>();
        let rows = beside(list(&[("p", 1.0), ("q", 2.0)]), list(&[("q", 3.0), ("r", 4.0)]));
        assert_eq!(rows, [("p".into(), 1.0, 0.0), ("q".into(), 2.0, 3.0), ("r".into(), 0.0, 4.0)]);
    }
}

//! The neighbours of a plan: for every decision the next values, the others kept or following.

use super::change::{apply, Change, Outcome};
use super::Subject;
use crate::predict::predictor::Predictor;
use crate::predict::{CpMethod, Layout, Module, Order, Recompute, Role, Schedule};

/// A change of one decision and what became of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Alternative {
    /// What is changed, as `--fix` says it.
    pub name: String,
    /// What became of it.
    pub outcome: Outcome,
}

/// All neighbours, the fastest first; those that cannot be behind them, in the order of the decisions. A layout
/// that two changes lead to is told once.
pub fn alternatives(subject: &Subject, predictor: &Predictor) -> Vec<Alternative> {
    let mut out: Vec<Alternative> = Vec::new();
    for change in changes(subject) {
        let outcome = apply(subject, &change, predictor);
        let layout = |o: &Outcome| match o {
            Outcome::Changed(c) => Some(c.layout.clone()),
            Outcome::Same | Outcome::Refused(_) => None,
        };
        let known = layout(&outcome).is_some_and(|l| out.iter().any(|a| layout(&a.outcome).as_ref() == Some(&l)));
        if !known && outcome != Outcome::Same {
            out.push(Alternative { name: change.name, outcome });
        }
    }
    let seconds = |a: &Alternative| match &a.outcome {
        Outcome::Changed(c) => c.prediction.step_seconds,
        Outcome::Same | Outcome::Refused(_) => f64::INFINITY,
    };
    out.sort_by(|a, b| seconds(a).total_cmp(&seconds(b)));
    out
}

fn changes(subject: &Subject) -> Vec<Change<'_>> {
    let l = &subject.plan.layout;
    let mut out = Vec::new();
    degrees(&mut out, subject);
    pipeline(&mut out, l, subject.facts.layers);
    if subject.facts.experts > 0 {
        experts(&mut out, l, subject.facts.experts);
    }
    sharding(&mut out, l);
    batches(&mut out, subject);
    activations(&mut out, l, subject.facts.layers);
    orders(&mut out, l, subject.order());
    out
}

fn push<'a>(out: &mut Vec<Change<'a>>, name: String, set: impl Fn(&mut crate::predict::fix::Fix) + 'a) {
    out.push(Change { name, set: Box::new(set) });
}

/// Whether a split of positions is off only because tp is 1, or asked for where it would be.
fn sp_follows(l: &Layout, tp: u64) -> bool {
    l.tp == 1 || tp == 1
}

fn degrees<'a>(out: &mut Vec<Change<'a>>, subject: &'a Subject) {
    let l = &subject.plan.layout;
    let devices = l.devices();
    for tp in neighbours(l.tp, devices / (l.cp * l.pp).max(1)) {
        let follows = sp_follows(l, tp);
        push(out, format!("tp={tp}"), move |f| {
            f.tp = Some(tp);
            f.sp = f.sp.filter(|_| !follows);
        });
    }
    for cp in neighbours(l.cp, devices / (l.tp * l.pp).max(1)) {
        push(out, format!("cp={cp}"), move |f| f.cp = Some(cp));
    }
    if l.cp > 1 {
        for method in CpMethod::ALL.iter().filter(|m| **m != l.cp_method) {
            push(out, format!("cp_method={method}"), move |f| f.cp_method = Some(*method));
        }
    }
    if l.tp > 1 {
        let sp = !l.sp;
        push(out, format!("sp={}", u8::from(sp)), move |f| f.sp = Some(sp));
    }
}

fn pipeline<'a>(out: &mut Vec<Change<'a>>, l: &'a Layout, layers: u64) {
    for pp in neighbours(l.pp, l.devices() / (l.tp * l.cp).max(1)) {
        push(out, format!("pp={pp}"), move |f| f.pp = Some(pp));
    }
    if l.pp == 1 {
        return;
    }
    // Layers of a stage; embedding and head may count as a layer each.
    let stage = [layers, layers + 2].into_iter().find(|n| n.is_multiple_of(l.pp)).map_or(1, |n| n / l.pp);
    for vpp in neighbours(l.vpp, stage) {
        let schedule = if vpp > 1 { Schedule::Interleaved } else { Schedule::OneFOneB };
        push(out, format!("vpp={vpp}"), move |f| (f.vpp, f.schedule) = (Some(vpp), Some(schedule)));
    }
    for schedule in Schedule::ALL.iter().filter(|s| **s != l.schedule) {
        let chunks = if *schedule == Schedule::Interleaved { Some(l.vpp.max(2)) } else { None };
        push(out, format!("schedule={schedule}"), move |f| (f.vpp, f.schedule) = (chunks, Some(*schedule)));
    }
}

fn experts<'a>(out: &mut Vec<Change<'a>>, l: &'a Layout, experts: u64) {
    for ep in neighbours(l.ep, experts) {
        push(out, format!("ep={ep}"), move |f| f.ep = Some(ep));
    }
    for etp in neighbours(l.etp, l.tp * l.cp * l.dp / l.ep.max(1)) {
        push(out, format!("etp={etp}"), move |f| f.etp = Some(etp));
    }
}

fn sharding<'a>(out: &mut Vec<Change<'a>>, l: &'a Layout) {
    if l.dp * l.cp == 1 {
        return;
    }
    for zero in (0..=3u8).filter(|z| *z != l.zero) {
        // A group of one is what zero=0 has; anything else starts from all ranks.
        let group = (zero > 0 && l.zero > 0).then_some(l.shard_group);
        let keep = if zero == 3 { Some(l.keep) } else { None };
        push(out, format!("zero={zero}"), move |f| (f.zero, f.shard_group, f.keep) = (Some(zero), group, keep));
    }
    if l.zero > 0 {
        for group in neighbours(l.shard_group, l.dp * l.cp) {
            push(out, format!("shard_group={group}"), move |f| f.shard_group = Some(group));
        }
    }
    if l.zero == 3 {
        let keep = !l.keep;
        push(out, format!("keep={}", u8::from(keep)), move |f| f.keep = Some(keep));
    }
}

fn batches<'a>(out: &mut Vec<Change<'a>>, subject: &'a Subject) {
    let l = &subject.plan.layout;
    for mbs in neighbours(l.micro_batch, subject.plan.global_batch / l.dp.max(1)) {
        push(out, format!("mbs={mbs}"), move |f| f.mbs = Some(mbs));
    }
}

fn activations<'a>(out: &mut Vec<Change<'a>>, l: &'a Layout, layers: u64) {
    let half = Recompute::Layers((layers / 2).max(1));
    let all = [Recompute::None, Recompute::Selective(vec![Module::CoreAttn]), half, Recompute::Full];
    for again in all.into_iter().filter(|r| *r != l.recompute) {
        push(out, format!("recompute={again}"), move |f| f.recompute = Some(again.clone()));
    }
}

/// Neighbouring axes of more than one rank, exchanged.
fn orders<'a>(out: &mut Vec<Change<'a>>, l: &'a Layout, order: Order) {
    let size = |r: &Role| match r {
        Role::Tp => l.tp,
        Role::Cp => l.cp,
        Role::Dp => l.dp,
        Role::Pp => l.pp,
    };
    let places: Vec<usize> = (0..4).filter(|i| size(&order.0[*i]) > 1).collect();
    for pair in places.windows(2) {
        let mut other = order;
        other.0.swap(pair[0], pair[1]);
        push(out, format!("layout={other}"), move |f| f.order = Some(other));
    }
}

/// The next divisors of `n` below and above `x`.
fn neighbours(x: u64, n: u64) -> Vec<u64> {
    let low = (1..).take_while(|d| d * d <= n).filter(|d| n.is_multiple_of(*d));
    let divisors: Vec<u64> = low.flat_map(|d| [d, n / d]).collect();
    let below = divisors.iter().filter(|d| **d < x).max();
    let above = divisors.iter().filter(|d| **d > x).min();
    below.into_iter().chain(above).copied().collect()
}

#[cfg(test)]
mod tests {
    use super::neighbours;

    #[test]
    fn neighbours_are_the_next_divisors() {
        assert_eq!(neighbours(8, 64), [4, 16]);
        assert_eq!(neighbours(8, 24), [6, 12]);
        assert_eq!(neighbours(1, 7), [7]);
        assert_eq!(neighbours(7, 7), [1]);
        assert_eq!(neighbours(3, 0), [] as [u64; 0]);
    }
}

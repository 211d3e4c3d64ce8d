//! Loop nests: chains that become one nest, and nests of one form in one launch.

use super::drafts::{index, Body, Draft, Drafts, Id};
use autoshard_ir::core::{DType, Scalar, ValueId};
use autoshard_ir::kernel::{Extent, Instr, LoopKernel, LoopOp, Reg, View};
use std::collections::HashMap;

/// Most nests of one launch.
const MOST: usize = 32;

/// Joins a nest with the nests that compute what it reads.
pub(super) fn chain(d: &mut Drafts) {
    for id in d.ids() {
        let mut at = id;
        while let Some(merged) = join_one(d, at) {
            at = merged;
        }
    }
}

/// Merges the group with one of the nests that it reads from; returns where the result is.
fn join_one(d: &mut Drafts, id: Id) -> Option<Id> {
    let group = d.get(id)?;
    let makers: Vec<Id> = group.inputs.iter().filter_map(|v| d.maker(*v)).collect();
    for maker in makers {
        let (Some(a), Some(b)) = (d.get(maker), d.get(id)) else { continue };
        let (Body::Nests(x), Body::Nests(y)) = (&a.body, &b.body) else { continue };
        let ([x], [y]) = (x.as_slice(), y.as_slice()) else { continue };
        let Some(mut nest) = join(x, y) else { continue };
        if d.detour(maker, id) {
            continue;
        }
        let gone: Vec<ValueId> = a.results.iter().copied().filter(|v| d.is_private(*v, &[id])).collect();
        nest.stores.retain(|s| !gone.iter().any(|v| index(*v) == s.view.buffer));
        prune(&mut nest);
        d.merge(maker, id, Body::Nests(vec![nest]), &gone);
        return Some(maker);
    }
    None
}

/// One nest that does what `producer` and then `consumer` do, if every value between them is written
/// and read at the same point.
fn join(producer: &LoopKernel, consumer: &LoopKernel) -> Option<LoopKernel> {
    let combines = |k: &LoopKernel| k.stores.iter().any(|s| s.combine.is_some());
    // The cut of reduced rows into chunks must not change, or sums would round differently.
    if combines(producer) && combines(consumer) || doubles(producer) != doubles(consumer) {
        return None;
    }
    let places = align(producer, consumer)?;
    let wider = consumer.loops.len() > producer.loops.len();
    if wider && !rowwise(producer) {
        return None;
    }
    let mut nest = LoopKernel { loops: consumer.loops.clone(), instrs: Vec::new(), stores: Vec::new() };
    // A producer whose lane is a row loop of the consumer has one number a row.
    let by_row = places.last().is_some_and(|lane| *lane + 1 < consumer.loops.len());
    for i in &producer.instrs {
        nest.instrs.push(spread(i, &places, nest.loops.len(), by_row));
    }
    for s in &producer.stores {
        let mut s = s.clone();
        s.view.strides = moved(&s.view.strides, &places, nest.loops.len());
        nest.stores.push(s);
    }
    append(&mut nest, consumer, producer)?;
    Some(nest)
}

/// For every loop of the producer its place among the consumer's loops.
fn align(producer: &LoopKernel, consumer: &LoopKernel) -> Option<Vec<usize>> {
    let mut places: Vec<Option<usize>> = vec![None; producer.loops.len()];
    let mut shared = 0;
    for load in consumer.loads() {
        for store in producer.stores.iter().filter(|s| s.view.buffer == load.buffer) {
            if store.combine.is_some() || store.view.offset != load.offset || store.view.dtype != load.dtype {
                return None;
            }
            shared += 1;
            match_loops(producer, &store.view, consumer, load, &mut places)?;
        }
    }
    // Loops that no shared value has must be the same on both sides, in order.
    if producer.loops.len() == consumer.loops.len() {
        for (i, place) in places.iter_mut().enumerate() {
            if !place.is_none_or(|p| p == i) || !same_range(&producer.loops[i], &consumer.loops[i]) {
                return None;
            }
            *place = Some(i);
        }
    }
    let places = places.into_iter().collect::<Option<Vec<usize>>>()?;
    (shared > 0 && places.windows(2).all(|w| w[0] < w[1])).then_some(places)
}

/// Matches the loops that move a value on both sides.
fn match_loops(
    producer: &LoopKernel,
    store: &View,
    consumer: &LoopKernel,
    load: &View,
    places: &mut [Option<usize>],
) -> Option<()> {
    let mut left: Vec<usize> = (0..consumer.loops.len()).filter(|j| load.strides[*j] > 0).collect();
    for (i, stride) in store.strides.iter().enumerate().filter(|(_, s)| **s > 0) {
        let fits = |j: &usize| load.strides[*j] == *stride && same_range(&producer.loops[i], &consumer.loops[*j]);
        let at = left.iter().position(fits)?;
        let j = left.remove(at);
        if places[i].is_some_and(|p| p != j) {
            return None;
        }
        places[i] = Some(j);
    }
    left.iter().all(|j| consumer.loops[*j].size == 1).then_some(())
}

/// Names of loops differ between operations.
fn same_range(a: &Extent, b: &Extent) -> bool {
    a.size == b.size && a.global == b.global && a.axes == b.axes
}

/// Whether vectors are computed in f64.
fn doubles(k: &LoopKernel) -> bool {
    k.instrs.iter().any(|i| !i.uniform && i.dtype == DType::F64) || k.stores.iter().any(|s| s.view.dtype == DType::F64)
}

/// Whether the nest is cheap enough to be computed again for every row of a larger one, and computes the
/// same bits as one number a row: those are computed in f64 and then rounded, which is exact for these
/// functions.
fn rowwise(k: &LoopKernel) -> bool {
    let exact = |i: &Instr| match &i.op {
        LoopOp::Load(_) | LoopOp::Const(_) => true,
        LoopOp::Map(s) => {
            let plain = matches!(s, Scalar::Add | Scalar::Sub | Scalar::Mul | Scalar::Neg | Scalar::Identity);
            plain || i.uniform || (matches!(s, Scalar::Affine { .. }) && i.dtype == DType::F64)
        }
        _ => false,
    };
    k.instrs.iter().all(exact) && k.stores.iter().all(|s| s.combine.is_none())
}

/// Strides by the loops of the larger nest.
fn moved(strides: &[usize], places: &[usize], loops: usize) -> Vec<usize> {
    let mut out = vec![0; loops];
    strides.iter().zip(places).for_each(|(s, p)| out[*p] = *s);
    out
}

/// An instruction of the producer in the joined nest; `by_row`: it has become one number a row.
fn spread(i: &Instr, places: &[usize], loops: usize, by_row: bool) -> Instr {
    let mut out = i.clone();
    out.uniform |= by_row;
    match &mut out.op {
        LoopOp::Load(v) => v.strides = moved(&v.strides, places, loops),
        LoopOp::Random(_, s) => *s = moved(s, places, loops),
        LoopOp::Table(l, _) | LoopOp::Index(l) => *l = places[*l],
        LoopOp::Map(_) | LoopOp::Const(_) | LoopOp::Reduce(_) => {}
    }
    out
}

/// Adds the consumer's instructions and stores; loads of what the producer stores become registers,
/// and equal loads are one.
fn append(nest: &mut LoopKernel, consumer: &LoopKernel, producer: &LoopKernel) -> Option<()> {
    let mut regs: Vec<Reg> = Vec::new();
    for i in &consumer.instrs {
        let reg = match &i.op {
            LoopOp::Load(v) => match producer.stores.iter().find(|s| s.view.buffer == v.buffer) {
                Some(s) if nest.instrs[s.reg].dtype == v.dtype => Some(s.reg),
                Some(_) => return None,
                None => nest.instrs.iter().position(|j| j.op == i.op && j.dtype == i.dtype),
            },
            _ => None,
        };
        regs.push(reg.unwrap_or_else(|| {
            let args = i.args.iter().map(|a| regs[*a]).collect();
            nest.instrs.push(Instr { args, ..i.clone() });
            nest.instrs.len() - 1
        }));
    }
    nest.stores.extend(consumer.stores.iter().map(|s| {
        let mut s = s.clone();
        s.reg = regs[s.reg];
        s
    }));
    Some(())
}

/// Removes instructions that no store needs.
fn prune(nest: &mut LoopKernel) {
    let mut needed = vec![false; nest.instrs.len()];
    nest.stores.iter().for_each(|s| needed[s.reg] = true);
    // Arguments come before their users.
    for i in (0..nest.instrs.len()).rev() {
        if needed[i] {
            nest.instrs[i].args.iter().for_each(|a| needed[*a] = true);
        }
    }
    let mut place = vec![0; needed.len()];
    let mut kept = Vec::new();
    for (i, mut instr) in std::mem::take(&mut nest.instrs).into_iter().enumerate() {
        if needed[i] {
            instr.args.iter_mut().for_each(|a| *a = place[*a]);
            place[i] = kept.len();
            kept.push(instr);
        }
    }
    nest.instrs = kept;
    nest.stores.iter_mut().for_each(|s| s.reg = place[s.reg]);
}

/// Joins groups of nests of one form (the same instructions, whatever the shapes) that do not depend on
/// each other: rope of q and k, norms of heads, the update of many tensors. Updates wait for the same
/// call, so that those of one layer need not wait for the gradients of another.
pub(super) fn batch(d: &mut Drafts) {
    let mut open: HashMap<(String, Option<Id>), Id> = HashMap::new();
    for id in d.ids() {
        let Some(form) = d.get(id).and_then(form) else { continue };
        let form = (form, last_call(d, id));
        let Some(first) = open.get(&form).copied() else {
            open.insert(form, id);
            continue;
        };
        let (Some(a), Some(b)) = (d.get(first), d.get(id)) else { continue };
        let (Body::Nests(x), Body::Nests(y)) = (&a.body, &b.body) else { continue };
        if x.len() + y.len() > MOST || d.depends(first, id) {
            open.insert(form, id);
            continue;
        }
        let all = [x.clone(), y.clone()].concat();
        d.merge(first, id, Body::Nests(all), &[]);
    }
}

/// The last call whose results reach the group through collectives and nests.
fn last_call(d: &Drafts, id: Id) -> Option<Id> {
    let inputs = &d.get(id)?.inputs;
    let through = |m: Id| match d.get(m).map(|g| &g.body) {
        Some(Body::Call) => Some(m),
        Some(Body::Collective | Body::Nests(_)) => last_call(d, m),
        _ => None,
    };
    inputs.iter().filter_map(|v| d.maker(*v)).filter_map(through).max()
}

/// What nests of one form have in common.
fn form(draft: &Draft) -> Option<String> {
    let Body::Nests(nests) = &draft.body else { return None };
    let nest = nests.first()?;
    let mut out = String::new();
    for i in &nest.instrs {
        let op = match &i.op {
            LoopOp::Load(v) => format!("load {}", v.dtype),
            LoopOp::Table(..) => "table".to_string(),
            LoopOp::Random(..) => "random".to_string(),
            other => format!("{other:?}"),
        };
        out += &format!("{op} {:?} {} {};", i.args, i.dtype, i.uniform);
    }
    let stores = nest.stores.iter().map(|s| format!("{} {:?} {}", s.reg, s.combine, s.view.dtype));
    Some(out + &stores.collect::<Vec<_>>().join(";"))
}

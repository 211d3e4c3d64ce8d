//! From groups to units: buffers by position, an order in which they can run.

use super::drafts::{dedup, index, rename, rename_product, Body, Draft, Drafts};
use super::{Unit, Work};
use autoshard_ir::core::{Function, ValueId};
use autoshard_ir::kernel::{GemmKernel, Init, Kernel, KernelBody, LoopKernel, LoopOp};
use std::collections::{BTreeSet, HashMap};

/// The units in order: each after those it reads from, and else by its first node.
pub(super) fn finish(d: Drafts) -> Vec<Unit> {
    let mut waits: HashMap<usize, usize> = HashMap::new();
    let mut ready: BTreeSet<usize> = BTreeSet::new();
    for id in d.ids() {
        let Some(group) = d.get(id) else { continue };
        let mut makers: Vec<usize> = group.inputs.iter().filter_map(|v| d.maker(*v)).collect();
        makers.sort_unstable();
        makers.dedup();
        match makers.len() {
            0 => {
                ready.insert(id);
            }
            n => {
                waits.insert(id, n);
            }
        }
    }
    let mut out = Vec::new();
    while let Some(id) = ready.pop_first() {
        let Some(group) = d.get(id) else { continue };
        let mut next: Vec<usize> = group.results.iter().flat_map(|v| d.readers[index(*v)].clone()).collect();
        next.sort_unstable();
        next.dedup();
        for n in next {
            let left = waits.entry(n).or_insert(1);
            *left -= 1;
            if *left == 0 {
                ready.insert(n);
            }
        }
        out.push(unit(d.f, group));
    }
    out
}

fn unit(f: &Function, group: &Draft) -> Unit {
    let nodes = group.nodes.clone();
    let first = f.node(nodes[0]);
    let (inputs, results) = match &group.body {
        Body::Nests(nests) => (loaded(nests), stored(nests)),
        Body::Products(products, epilogue) => {
            let mut read: Vec<ValueId> = Vec::new();
            for p in products {
                read.extend([value(p.a), value(p.b)]);
                if let Init::Operand(i) = p.init {
                    read.push(value(i));
                }
            }
            let written: Vec<ValueId> = products.iter().map(|p| value(p.c)).chain(stored(epilogue)).collect();
            (read.into_iter().chain(loaded(epilogue)).collect(), written)
        }
        Body::Fixed(_) | Body::Collective | Body::Call => (first.inputs.clone(), first.results.clone()),
    };
    let (mut inputs, mut results) = (inputs, results);
    let work = match &group.body {
        Body::Collective => Work::Collective(nodes[0]),
        Body::Call => Work::Call(nodes[0]),
        Body::Fixed(kernel) => Work::Kernel(kernel.clone()),
        Body::Nests(_) | Body::Products(..) => {
            dedup(&mut results);
            inputs.retain(|v| !results.contains(v));
            dedup(&mut inputs);
            Work::Kernel(Box::new(kernel(f, group, &inputs, &results)))
        }
    };
    Unit { work, nodes, inputs, results }
}

fn kernel(f: &Function, group: &Draft, inputs: &[ValueId], results: &[ValueId]) -> Kernel {
    let places: HashMap<usize, usize> = inputs.iter().chain(results).enumerate().map(|(i, v)| (index(*v), i)).collect();
    let place = |b: usize| places.get(&b).copied().unwrap_or(usize::MAX);
    let renamed = |nests: &[LoopKernel]| {
        let mut nests = nests.to_vec();
        nests.iter_mut().for_each(|n| rename(n, &place));
        nests
    };
    let body = match &group.body {
        Body::Products(products, epilogue) => {
            let mut products = products.clone();
            products.iter_mut().for_each(|p| rename_product(p, &place));
            KernelBody::Gemm(GemmKernel { products, epilogue: renamed(epilogue) })
        }
        Body::Nests(nests) => KernelBody::Loop(renamed(nests)),
        Body::Fixed(_) | Body::Collective | Body::Call => KernelBody::Loop(Vec::new()),
    };
    let (operands, results_n) = (inputs.len(), results.len());
    let mut kernel =
        Kernel { name: name(f, group), operands, results: results_n, flops: group.flops, bytes: 0.0, body };
    kernel.bytes = kernel.touched().iter().map(|b| *b as f64).sum();
    kernel
}

/// Operations of the group, each once, and its last value: `einsum·3+rope·2 %k.turned`.
fn name(f: &Function, group: &Draft) -> String {
    let mut ops: Vec<(&str, usize)> = Vec::new();
    for n in &group.nodes {
        let op = f.node(*n).op.name;
        match ops.iter_mut().find(|(o, _)| *o == op) {
            Some((_, n)) => *n += 1,
            None => ops.push((op, 1)),
        }
    }
    let ops: Vec<String> = ops.iter().map(|(o, n)| if *n > 1 { format!("{o}·{n}") } else { o.to_string() }).collect();
    let last = group.nodes.last().and_then(|n| f.node(*n).results.first());
    match last {
        Some(v) => format!("{} %{}", ops.join("+"), f.value(*v).name),
        None => ops.join("+"),
    }
}

fn value(buffer: usize) -> ValueId {
    ValueId(buffer as u32)
}

fn loaded(nests: &[LoopKernel]) -> Vec<ValueId> {
    let loads = nests.iter().flat_map(|n| &n.instrs).filter_map(|i| match &i.op {
        LoopOp::Load(v) => Some(value(v.buffer)),
        _ => None,
    });
    loads.collect()
}

fn stored(nests: &[LoopKernel]) -> Vec<ValueId> {
    nests.iter().flat_map(|n| &n.stores).map(|s| value(s.view.buffer)).collect()
}

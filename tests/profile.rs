//! The predictor's view of a layer against the program that the compiler makes of it: the same messages, byte
//! for byte, and the same products, FLOP for FLOP.

mod common;

use autoshard::compile::plan_mesh;
use autoshard::cost::collectives::Kind;
use autoshard::ir::core::{Function, Module, Template};
use autoshard::ir::{ops, DType, Mesh};
use autoshard::model::{Model, StepShape};
use autoshard::passes::autodiff::AdamW;
use autoshard::passes::profile::{profile, Forward, Item, Profile, Recompute, Shards, Work};
use autoshard::passes::search::localize;
use autoshard::stacks;
use common::degrees;
use std::path::Path;

const BATCH: usize = 4;
const SEQ: usize = 64;

fn model() -> Model {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/tiny-llama");
    Model::load(&path, StepShape { batch: BATCH, seq_len: SEQ, dtype: DType::F32 }).unwrap()
}

/// Kinds and payload bytes of the collectives of a function, sorted.
fn collectives(m: &Module, f: &Function) -> Vec<(String, u64)> {
    let whole = |mesh: &Mesh, tys: [&autoshard::ir::core::Type; 2]| tys.map(|t| mesh.local_bytes(t)).into_iter().max();
    let mut out: Vec<(String, u64)> = f
        .nodes
        .iter()
        .filter(|n| n.op.template == Template::Collective && n.op.name != "slice_local")
        .map(|n| {
            let bytes = whole(&m.mesh, [f.ty(n.inputs[0]), f.ty(n.results[0])]).unwrap_or(0);
            (n.op.name.to_string(), bytes as u64)
        })
        .collect();
    out.sort();
    out
}

fn messages(items: &[&Item]) -> Vec<(String, u64)> {
    let name = |k: Kind| match k {
        Kind::AllReduce => "all_reduce",
        Kind::AllGather => "all_gather",
        Kind::ReduceScatter => "reduce_scatter",
        Kind::AllToAll => "all_to_all",
        Kind::SendRecv => "send",
    };
    let mut out: Vec<(String, u64)> = items
        .iter()
        .filter_map(|i| match i.work {
            Work::Message(m) => Some((name(m.kind).to_string(), (m.bytes * m.count) as u64)),
            _ => None,
        })
        .collect();
    out.sort();
    out
}

/// FLOPs of a function's products on one rank.
fn product_flops(m: &Module, f: &Function) -> f64 {
    let local = |dim: &autoshard::ir::core::Dim| m.mesh.local_size(dim) as f64;
    f.nodes
        .iter()
        .filter(|n| n.op.template == Template::Gemm)
        .map(|n| {
            let types: Vec<_> = n.inputs.iter().map(|v| f.ty(*v)).collect();
            let rule = ops::rule(n.op, &types, &n.attrs).unwrap();
            let size = |name: &str| {
                let dims = n.inputs.iter().flat_map(|v| &f.ty(*v).dims);
                dims.filter(|d| d.name == name).map(local).fold(f64::INFINITY, f64::min)
            };
            2.0 * rule.factors.iter().map(|x| size(&x.name)).product::<f64>()
        })
        .sum()
}

fn profiled_flops(items: &[&Item]) -> f64 {
    let of = |i: &&Item| match i.work {
        Work::Product { product: p, .. } => 2.0 * p.m * p.n * p.k * p.count,
        _ => 0.0,
    };
    items.iter().map(of).sum()
}

fn both(mesh: &str, shards: Shards) -> (Module, Profile) {
    let model = model();
    let mut degrees = degrees(mesh);
    degrees.sequence_parallel = shards.sp;
    let plan = plan_mesh(&model, &degrees).unwrap();
    let local = localize(&model.module, &plan, &AdamW::default()).unwrap();
    let block = model.module.function("block").unwrap();
    let stack = stacks::find("autoshard").unwrap().stack;
    let habits = autoshard::cost::stack::Habits { joint_products: false, ..stack.habits };
    (local, profile(&Forward::new(block.clone()).unwrap(), &shards, &habits, &Recompute::None).unwrap())
}

#[test]
fn a_layers_messages_and_products_are_those_of_the_compiled_program() {
    for (mesh, sp) in [("tp=4", false), ("tp=4", true), ("tp=2", true)] {
        let tp = mesh[3..].parse().unwrap();
        let (local, p) = both(mesh, Shards { tp, sp, ..Shards::default() });
        let function = |name: &str| local.function(name).unwrap_or_else(|| panic!("no @{name}"));
        let (fwd, bwd) = (function("block.fwd"), function("block.bwd"));
        let forward: Vec<&Item> = p.forward.iter().collect();
        let backward: Vec<&Item> = p.backward_input.iter().chain(&p.backward_weight).collect();
        assert_eq!(messages(&forward), collectives(&local, fwd), "{mesh} sp={sp} forward");
        assert_eq!(messages(&backward), collectives(&local, bwd), "{mesh} sp={sp} backward");
        assert_eq!(profiled_flops(&forward), product_flops(&local, fwd), "{mesh} sp={sp} forward");
        assert_eq!(profiled_flops(&backward), product_flops(&local, bwd), "{mesh} sp={sp} backward");
    }
}

//! The inner search on whole models: roles against the unrestricted search, and its strategies as the partitioner
//! runs them.

use autoshard::decoder::{Decoder, ModuleShape};
use autoshard::ir::core::{Function, Module};
use autoshard::ir::plan::Plan;
use autoshard::ir::{DType, Mesh};
use autoshard::passes::autodiff::AdamW;
use autoshard::passes::search::inner::{cheapest, BlockOption, Limits, Link, MeshAxis, Rates, Role};
use autoshard::passes::search::localize;
use std::path::Path;

const MODELS: [&str; 13] = [
    "deepseek-v3",
    "gpt-oss-20b",
    "gpt3-175b",
    "meta-llama-3.1-405b",
    "meta-llama-3.1-70b",
    "meta-llama-3.1-8b",
    "mixtral-8x22b-v0.1",
    "mixtral-8x7b-v0.1",
    "mt-nlg-530b",
    "qwen3-235b-a22b",
    "qwen3-30b-a3b",
    "qwen3-32b",
    "qwen3-8b",
];

/// `None` where the model has fewer positions.
fn module(name: &str, batch: usize, seq_len: usize) -> Option<Module> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/data/models/{name}.json"));
    let shape = ModuleShape { batch, seq_len, dtype: DType::Bf16, capacity: 1.0 };
    let decoder = Decoder::load(&path).unwrap_or_else(|e| panic!("{name}: {e}"));
    let short = decoder.max_positions.is_some_and(|p| p < seq_len);
    (!short).then(|| decoder.module(&shape).unwrap_or_else(|e| panic!("{name}: {e}")))
}

/// 0.55 PFLOP/s, 2.8 TB/s; 45 GB/s between nodes, 350 GB/s inside one. All messages exposed, gradients in bf16.
fn rates() -> Rates {
    let links = vec![Link { bandwidth: 45e9, latency: 12e-6 }, Link { bandwidth: 350e9, latency: 4e-6 }];
    Rates { flops: 0.55e15, memory_bandwidth: 2.8e12, links, exposed_weights: 1.0, gradient_bytes: 2.0 }
}

fn solve(f: &Function, roles: [Role; 2], price: f64) -> (f64, BlockOption) {
    let mesh = [MeshAxis::new("outer", 8, roles[0]), MeshAxis::new("inner", 8, roles[1])];
    cheapest(f, &mesh, &rates(), &Limits::NONE, price).unwrap_or_else(|e| panic!("{e}"))
}

/// The roles that are cheapest.
fn by_roles(f: &Function, price: f64) -> (f64, [Role; 2], BlockOption) {
    let all = [Role::Dp, Role::Fsdp, Role::Ep, Role::Cp, Role::Tp];
    let pairs = all.iter().flat_map(|o| all.iter().map(move |i| [*o, *i]));
    let solved = pairs.map(|roles| {
        let (sum, option) = solve(f, roles, price);
        (sum, roles, option)
    });
    solved.min_by(|a, b| a.0.total_cmp(&b.0)).unwrap()
}

/// On 8 × 8 ranks, at no price on memory and at a high one, roles lose at most 3 % against any factor on any axis.
#[test]
fn roles_lose_nothing() {
    let mut worst: Vec<String> = Vec::new();
    for name in MODELS {
        for (batch, seq_len) in [(64, 2048), (1, 32768)] {
            let Some(m) = module(name, batch, seq_len) else { continue };
            for f in m.functions.iter().filter(|f| f.name.starts_with("block")) {
                for price in [0.0, 1e-12] {
                    let (free, best) = solve(f, [Role::Any; 2], price);
                    let (sum, roles, own) = by_roles(f, price);
                    let gap = (sum / free - 1.0) * 100.0;
                    let case = format!("{name} @{} {batch} x {seq_len} at {price:e}: {roles:?} {gap:.2} %", f.name);
                    println!("{case}");
                    assert!(gap > -1e-6, "{case}: the restricted search beats the unrestricted one");
                    if gap > 3.0 {
                        println!("{}", differences(&best, &own));
                        worst.push(case);
                    }
                }
            }
        }
    }
    assert!(worst.is_empty(), "a row of the table is missing:\n{}", worst.join("\n"));
}

/// Nodes that the two treat differently.
fn differences(free: &BlockOption, own: &BlockOption) -> String {
    let text = |o: &BlockOption, v: &str| format!("{:?}", o.strategies[v].axes());
    let differ = free.strategies.keys().filter(|v| text(free, v) != text(own, v) && !v.ends_with(".copy"));
    differ.map(|v| format!("  %{v}: free {}, roles {}\n", text(free, v), text(own, v))).collect()
}

/// The strategies found for tensor parallelism, partitioned: the forward of a layer has two gathers and two
/// reduce-scatters and no other collective.
#[test]
fn found_strategies_partition_as_priced() {
    let m = module("meta-llama-3.1-70b", 1, 8192).unwrap();
    let f = m.function("block").unwrap();
    let mesh = [MeshAxis::new("tp", 8, Role::Tp)];
    let rates = Rates { links: rates().links[1..].to_vec(), ..rates() };
    let (_, option) = cheapest(f, &mesh, &rates, &Limits::NONE, 0.0).unwrap_or_else(|e| panic!("{e}"));
    let mut plan = Plan { mesh: Mesh::new(&[("tp", 8)]), ..Plan::default() };
    plan.strategies.insert("block".to_string(), option.strategies);
    let local = localize(&m, &plan, &AdamW::default()).unwrap_or_else(|e| panic!("{e}"));
    let count = |function: &str, op: &str| {
        let f = local.functions.iter().find(|f| f.name == function).unwrap_or_else(|| panic!("no @{function}"));
        f.nodes.iter().filter(|n| n.op.name == op).count()
    };
    for function in ["block.fwd", "block.bwd"] {
        let found = ["all_gather", "reduce_scatter", "all_reduce", "all_to_all"].map(|op| count(function, op));
        println!("{function}: {found:?}");
        if function == "block.fwd" {
            assert_eq!(found, [2, 2, 0, 0], "{function}");
        }
    }
}

//! Fusion changes no number: loop nests bit for bit, products that were merged or start from a sum
//! within rounding.

mod common;

use autoshard::compile::Options;
use autoshard::ir::DType;
use common::{build_with, golden, relative_l2, train, Outcome};

/// Model and mesh: one rank, sharded parameters, tensor parallelism with and without sequence
/// parallelism, biases, norms of heads, tied weights.
const CASES: [(&str, &str); 7] = [
    ("llama_tiny", ""),
    ("llama_tiny", "tp=2,dp=2"),
    ("llama_tiny_tied", "fsdp=4"),
    ("llama_bias_tiny", "tp=2,dp=2,sp=0"),
    ("qwen2_tiny", "fsdp=2,tp=2"),
    ("qwen3_tiny", "tp=2,dp=2"),
    ("mistral_tiny", "dp=4"),
];

fn run(name: &str, mesh: &str, fusion: &str, dtype: DType) -> Outcome {
    let options = Options { fusion: fusion.to_string(), ..Options::default() };
    train(build_with(name, mesh, dtype, &options), &golden(name))
}

#[test]
fn fused_loops_give_the_same_bits() {
    for (name, mesh) in CASES {
        for dtype in [DType::F64, DType::F32] {
            let (off, on) = (run(name, mesh, "none", dtype), run(name, mesh, "loops", dtype));
            assert_eq!(off.losses, on.losses, "{name} {mesh} {dtype}: losses");
            assert_eq!(off.grads.len(), on.grads.len());
            for (k, g) in &off.grads {
                assert!(g == &on.grads[k], "{name} {mesh} {dtype}: gradient of {k}");
            }
            assert_eq!(off.norms, on.norms, "{name} {mesh} {dtype}: parameters");
        }
    }
}

#[test]
fn fused_products_differ_by_rounding_alone() {
    for (name, mesh) in CASES {
        let (off, on) = (run(name, mesh, "none", DType::F64), run(name, mesh, "all", DType::F64));
        let (a, b) = (off.losses[0], on.losses[0]);
        assert!((a - b).abs() <= 1e-12 * a.abs(), "{name} {mesh}: loss {a} and {b}");
        for (k, g) in &off.grads {
            let apart = relative_l2(&on.grads[k], g);
            assert!(apart <= 1e-12, "{name} {mesh}: gradient of {k} is {apart:e} apart");
        }
    }
}

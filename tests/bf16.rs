//! Training in bf16: parameters kept in f32, sums in f32, rounded where values leave kernels.

mod common;

use autoshard::compile::Options;
use autoshard::ir::DType;
use common::{build_with, compare, golden, train};

/// Eight binary places leave about 0.4 % in a value; losses are means over many.
const LOSS: f64 = 1e-3;
/// Gradient tensors, relative to their norm.
const GRADIENT: f64 = 6e-2;

#[test]
fn goldens_in_bf16_are_near_those_in_f64() {
    for (name, mesh) in [
        ("llama_tiny", ""),
        ("llama_tiny", "tp=2,dp=2"),
        ("llama_tiny", "tp=2,dp=2,sp=0"),
        ("llama_tiny_tied", "fsdp=4"),
        ("qwen2_tiny", "tp=2,fsdp=2"),
        ("qwen3_deep", "dp=2,tp=2"),
        ("mistral_tiny", "dp=4"),
    ] {
        let g = golden(name);
        let run = train(build_with(name, mesh, DType::Bf16, &Options::default()), &g);
        let e = compare(name, &run, &g);
        println!("{name} {mesh}: {e:?}");
        assert!(e.loss <= LOSS, "{name} {mesh}: losses are {:e} apart", e.loss);
        assert!(e.grad <= GRADIENT, "{name} {mesh}: gradient of {} is {:e} apart", e.worst, e.grad);
        // Not f32 by accident.
        assert!(e.loss > 1e-7 && e.grad > 1e-4, "{name} {mesh}: {e:?}");
    }
}

#[test]
fn fused_loops_of_bf16_give_the_same_bits() {
    for (name, mesh) in [("llama_tiny", "tp=2,dp=2"), ("qwen2_tiny", "fsdp=2")] {
        let run = |fusion: &str| {
            let options = Options { fusion: fusion.to_string(), ..Options::default() };
            train(build_with(name, mesh, DType::Bf16, &options), &golden(name))
        };
        let (off, on) = (run("none"), run("loops"));
        assert_eq!(off.losses, on.losses, "{name} {mesh}");
        assert!(off.grads == on.grads, "{name} {mesh}: gradients");
    }
}

//! Whole models against an independent framework's numbers, on every mesh, in f64 through an `.asx`.

mod common;

use autoshard::ir::DType;
use common::{build, build_asx, compare, golden, train};

/// Runs a golden on meshes in f64 at the tolerances that sharding must keep, and in f32.
fn check(name: &str, meshes: &[&str]) {
    let g = golden(name);
    for mesh in meshes {
        let e = compare(name, &train(build_asx(name, mesh, DType::F64), &g), &g);
        println!("{name} f64 {mesh:20} {e:?}");
        let ok = e.loss <= 1e-9 && e.grad <= 1e-7 && e.norm <= 1e-8 && e.delta <= 1e-8;
        assert!(ok, "{name} f64 on {mesh:?}: {e:?}");
        let e = compare(name, &train(build(name, mesh, DType::F32), &g), &g);
        println!("{name} f32 {mesh:20} {e:?}");
        assert!(e.loss <= 2e-6 && e.grad <= 5e-6, "{name} f32 on {mesh:?}: {e:?}");
    }
}

const FOUR: &[&str] = &["", "dp=4", "fsdp=4", "tp=4", "tp=2,fsdp=2", "tp=2,dp=2", "tp=4,sp=0", "tp=2,dp=2,sp=0"];
const EIGHT: &[&str] = &["dp=8", "fsdp=8", "tp=4,dp=2", "tp=2,fsdp=2,dp=2"];

#[test]
fn llama_tiny() {
    check("llama_tiny", FOUR);
}

#[test]
fn llama_tiny_tied() {
    check("llama_tiny_tied", FOUR);
}

#[test]
fn llama_tiny_fixed() {
    check("llama_tiny_fixed", FOUR);
}

#[test]
fn qwen2_tiny() {
    check("qwen2_tiny", FOUR);
}

#[test]
fn qwen3_tiny() {
    check("qwen3_tiny", FOUR);
}

#[test]
fn llama_tiny_b8() {
    check("llama_tiny_b8", FOUR);
    check("llama_tiny_b8", EIGHT);
}

#[test]
fn llama_deep() {
    check("llama_deep", FOUR);
    check("llama_deep", EIGHT);
    check("llama_deep", &["tp=8", "tp=8,sp=0"]);
}

#[test]
fn qwen3_deep() {
    check("qwen3_deep", FOUR);
    check("qwen3_deep", EIGHT);
    check("qwen3_deep", &["tp=8", "tp=8,sp=0"]);
}

#[test]
fn llama31_tiny() {
    check("llama31_tiny", FOUR);
}

#[test]
fn llama_bias_tiny() {
    check("llama_bias_tiny", FOUR);
}

#[test]
fn mistral_tiny() {
    check("mistral_tiny", FOUR);
}

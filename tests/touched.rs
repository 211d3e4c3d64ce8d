//! Bytes: what kernels touch is what the cost model charges, element by element.

mod common;

use autoshard::cuda::check::reference::{shapes, touched};
use autoshard::cuda::check::tensor::Tensor;
use autoshard::ir::kernel::{Kernel, KernelBody};
use autoshard::ir::DType;
use autoshard::runtime::cpu::Prepared;
use common::{build_with, golden_dir};

/// Every loop nest of every golden's training step, fused in every way, on meshes that split evenly:
/// the elements that its loads and stores reach, counted one by one, are the bytes that it is charged.
#[test]
fn loops_are_charged_what_they_touch() {
    let mut counted = 0;
    for entry in std::fs::read_dir(golden_dir("")).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        for (mesh, fusion, dtype) in [
            ("", "none", DType::F32),
            ("", "loops", DType::Bf16),
            ("tp=2,dp=2", "loops", DType::F32),
            ("tp=2,fsdp=2", "all", DType::F64),
        ] {
            let options = autoshard::compile::Options { fusion: fusion.to_string(), ..Default::default() };
            let exe = build_with(&name, mesh, dtype, &options);
            let program = &exe.program;
            for k in program.kernels.iter().filter(|k| matches!(k.body, KernelBody::Loop(_))) {
                let charged: f64 = k.touched().iter().map(|b| *b as f64).sum();
                assert_eq!(charged, k.bytes, "{name} {mesh} {fusion} {dtype}: {}", k.name);
                let told = format!("{name} {mesh} {fusion} {dtype}: {}", k.name);
                assert_eq!(k.touched(), count(k, &program.mesh), "{told}");
                // What the CPU's vector machine really walks: its own resolved views.
                let machine = Prepared::new(k, &program.mesh, &program.mesh.coords(0)).unwrap();
                assert_eq!(k.touched(), machine.touched(), "{told}");
                counted += 1;
            }
        }
    }
    assert!(counted > 300, "{counted} kernels");
}

/// Bytes of the elements that rank 0 loads or stores, by buffer.
fn count(k: &Kernel, mesh: &autoshard::ir::mesh::Mesh) -> Vec<usize> {
    let shapes = shapes(k);
    let operands: Vec<Tensor> =
        shapes[..k.operands].iter().map(|s| Tensor { dtype: s.dtype, values: vec![0.0; s.len] }).collect();
    let t = touched(k, mesh, &mesh.coords(0), &operands);
    let bytes = |b: usize| {
        let elements = t.loaded[b].iter().zip(&t.stored[b]).filter(|(l, s)| **l || **s).count();
        elements * shapes[b].dtype.bytes()
    };
    (0..shapes.len()).map(bytes).collect()
}

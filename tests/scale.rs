//! Programs cost as much for 126 layers as for 2: Llama 3.1 405B for 16,384 ranks.

mod common;

use autoshard::compile::{compile, plan_mesh};
use autoshard::ir::DType;
use autoshard::model::{Model, StepShape};
use autoshard::passes::autodiff::AdamW;
use common::degrees;
use std::path::Path;
use std::time::Instant;

#[test]
fn one_program_serves_16384_ranks() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/models/meta-llama-3.1-405b.json");
    let start = Instant::now();
    let shape = StepShape { batch: 2048, seq_len: 8192, dtype: DType::F32 };
    let model = Model::load(&path, shape).unwrap();
    println!("model {:?}", start.elapsed());
    let plan = plan_mesh(&model, &degrees("tp=8,fsdp=2048")).unwrap();
    println!("plan {:?}", start.elapsed());
    let exe = compile(&model, &plan, &AdamW::default()).unwrap();
    println!("compiled in {:?}", start.elapsed());
    let p = &exe.program;
    assert_eq!(p.mesh.ranks(), 16_384);
    assert_eq!(model.params(), 405_853_388_800);
    // tables, embed, block and head forward; block, head and embed backward; the step.
    assert_eq!(p.functions.len(), 8);
    let calls = |name: &str| {
        let f = p.functions.iter().position(|f| f.name == name).unwrap();
        let entry = &p.functions[p.entry].steps;
        entry
            .iter()
            .filter(|s| matches!(s, autoshard::ir::program::Step::Call { function, .. } if *function == f))
            .count()
    };
    assert_eq!((calls("block.fwd"), calls("block.bwd")), (126, 126));
    // Kernels do not grow with layers: those of one block, of the edges, and one update per shape.
    println!("{} kernels, {} collectives", p.kernels.len(), p.collectives.len());
    assert!(p.kernels.len() < 80, "{}", p.kernels.len());
}

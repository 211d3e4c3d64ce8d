//! The library's front door: load a model, choose a plan, compile, train.
//!
//! `cargo run --release --example train`
use autoshard::compile::{compile, plan};
use autoshard::data::Dataset;
use autoshard::hardware::Preset;
use autoshard::ir::DType;
use autoshard::model::{Model, StepShape};
use autoshard::passes::autodiff::AdamW;
use autoshard::runtime::Options;
use autoshard::train::Trainer;
use autoshard::weights::Weights;
use std::path::Path;
use std::sync::Arc;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/examples/tiny-llama"));
    let (ranks, batch, seq_len) = (4, 8, 64);
    let machine = Preset::this_machine()?;

    let model = Model::load(folder, StepShape { batch, seq_len, dtype: DType::F32 })?;
    let meshes = plan(&model, ranks, &machine.rank(ranks))?;
    let best = meshes.first().ok_or("no mesh is legal")?;
    println!("mesh {}", best.plan.mesh);

    let executable = compile(&model, &best.plan, &AdamW { lr: 2e-3, ..AdamW::default() })?;
    let data = Dataset::open(&folder.join("train.txt"), model.vocab, seq_len, batch, false)?;
    let weights = Weights::Init { seed: 0 };
    let mut trainer = Trainer::new(Arc::new(executable), &weights, data, &machine, Options::default())?;
    for _ in 0..20 {
        let step = trainer.step()?;
        println!("step {:>2}  loss {:.4}", step.step, step.loss);
    }
    Ok(())
}

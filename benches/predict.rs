//! Microseconds of one prediction without a pipeline, once what it needs is there:
//! `cargo bench --bench predict`.

use autoshard::cost::stack::Stack;
use autoshard::decoder::Decoder;
use autoshard::predict::predictor::{Job, Predictor, Says};
use autoshard::predict::{CpMethod, Layout, Precision, Recompute, Schedule};
use autoshard::{hardware, stacks};
use std::error::Error;
use std::path::Path;
use std::time::Instant;

/// Model, stack, tp, dp, ZeRO stage, micro-batches.
type Case = (&'static str, &'static str, u64, u64, u8, u64);

const CASES: [Case; 6] = [
    ("meta-llama-3.1-8b", "torchtitan-2024", 1, 8, 3, 1),
    ("meta-llama-3.1-8b", "torchtitan-2024", 1, 128, 3, 8),
    ("meta-llama-3.1-70b", "torchtitan-2024", 8, 32, 3, 1),
    ("meta-llama-3.1-70b", "megatron-core-2025", 8, 8, 1, 16),
    ("mixtral-8x7b-v0.1", "megatron-core-2025", 2, 32, 1, 8),
    ("qwen3-30b-a3b", "fsdp1-2023", 1, 64, 3, 4),
];

fn layout(tp: u64, dp: u64, zero: u8, microbatches: u64) -> Layout {
    Layout {
        tp,
        cp: 1,
        pp: 1,
        ep: 1,
        etp: 1,
        dp,
        vpp: 1,
        zero,
        keep: false,
        shard_group: dp,
        sp: tp > 1,
        cp_method: CpMethod::Ring,
        micro_batch: 1,
        microbatches,
        recompute: Recompute::None,
        schedule: Schedule::OneFOneB,
        order: None,
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let cluster = hardware::cluster("dgx-h100")?;
    let predictor = Predictor::default();
    println!(
        "{:<22} {:<20} {:>4} {:>4} {:>5} {:>3} {:>10} {:>10}",
        "model", "stack", "tp", "dp", "zero", "m", "first µs", "warm µs"
    );
    for (model, stack, tp, dp, zero, microbatches) in CASES {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/models").join(format!("{model}.json"));
        let decoder = Decoder::load(&path)?;
        let stack: Stack = stacks::find(stack)?.stack;
        let layout = layout(tp, dp, zero, microbatches);
        let job = Job {
            key: model,
            decoder: &decoder,
            cluster: &cluster,
            stack: &stack,
            layout: &layout,
            layers_per_stage: None,
            seq_len: 4096,
            precision: Precision::Bf16,
            says: Says::default(),
        };
        let start = Instant::now();
        predictor.predict(&job)?;
        let first = start.elapsed();
        let mut best = f64::INFINITY;
        for _ in 0..20 {
            let start = Instant::now();
            for _ in 0..50 {
                std::hint::black_box(predictor.predict(std::hint::black_box(&job))?);
            }
            best = best.min(start.elapsed().as_secs_f64() / 50.0);
        }
        println!(
            "{model:<22} {:<20} {tp:>4} {dp:>4} {zero:>5} {microbatches:>3} {:>10.0} {:>10.1}",
            stack.name,
            first.as_secs_f64() * 1e6,
            best * 1e6
        );
    }
    Ok(())
}

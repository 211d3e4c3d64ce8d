//! Bytes on the wire, counted where they are copied; expected values written by hand.

mod common;

use autoshard::compile::{compile, plan_mesh, Executable};
use autoshard::data::Dataset;
use autoshard::hardware::Preset;
use autoshard::ir::DType;
use autoshard::model::{Model, StepShape};
use autoshard::passes::autodiff::AdamW;
use autoshard::runtime::comm::Counted;
use autoshard::runtime::exec::RankReport;
use autoshard::runtime::Options;
use autoshard::train::Trainer;
use autoshard::weights::Weights;
use common::degrees;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

/// One step of a configuration on a mesh; what each rank counted.
fn step(config: &str, batch: usize, seq_len: usize, mesh: &str) -> Vec<RankReport> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(config);
    let model = Model::load(&path, StepShape { batch, seq_len, dtype: DType::F32 }).unwrap();
    let exe: Executable = compile(&model, &plan_mesh(&model, &degrees(mesh)).unwrap(), &AdamW::default()).unwrap();
    let data = Dataset::golden(0, model.vocab, seq_len, batch, false).unwrap();
    let weights = Weights::Init { seed: 0 };
    let preset = Preset::this_machine().unwrap();
    let mut t = Trainer::new(Arc::new(exe), &weights, data, &preset, Options::default()).unwrap();
    t.step().unwrap().report.ranks
}

/// Collectives by (function, kind, axes), each with its payloads; control traffic left out.
fn table(rank: &RankReport) -> BTreeMap<(String, &'static str, String), Vec<u64>> {
    let mut out: BTreeMap<_, Vec<u64>> = BTreeMap::new();
    for c in rank.counts.collectives.iter().filter(|c: &&Counted| !c.control) {
        let function = c.name.split_whitespace().next().unwrap_or_default().to_string();
        out.entry((function, c.kind, c.key.to_string())).or_default().push(c.payload);
    }
    out
}

/// Bytes of one activation of `small` on two data ranks: [8/2, 256, 256] in f32.
const ACTIVATION: u64 = 1_048_576;
/// Per-token statistics of the split cross-entropy (maximum, sum, target's logit): [8/2, 256] in f32.
const STATISTIC: u64 = 4_096;
const SMALL: &str = "tests/data/configs/peer_small.json";

#[test]
fn tensor_parallelism_reduces_four_times_a_layer() {
    for rank in step(SMALL, 8, 256, "tp=4,dp=2,sp=0") {
        let t = table(&rank);
        let of = |f: &str, kind, key: &str| t.get(&(f.to_string(), kind, key.to_string())).cloned().unwrap_or_default();
        // Four layers, each two reductions forward and two backward.
        assert_eq!(of("@block.fwd", "all_reduce", "tp"), vec![ACTIVATION; 8]);
        assert_eq!(of("@block.bwd", "all_reduce", "tp"), vec![ACTIVATION; 8]);
        // The split embedding's rows, and the cotangent of the head's input.
        assert_eq!(of("@step", "all_reduce", "tp"), vec![ACTIVATION]);
        assert_eq!(of("@head.bwd", "all_reduce", "tp"), vec![ACTIVATION]);
        assert_eq!(of("@head.fwd", "all_reduce", "tp"), vec![STATISTIC; 3]);
        // Gradients: every parameter's share once, norms whole.
        assert_eq!(of("@step", "all_reduce", "dp").iter().sum::<u64>(), 5_006_336);
        assert_eq!(t.len(), 6, "{t:?}");
        assert_eq!(rank.counts.payload["tp"], 18 * ACTIVATION + 3 * STATISTIC);
        assert_eq!(rank.counts.payload["dp"], 5_006_336);
        // Twice (g−1)/g of the payload.
        assert_eq!(rank.counts.wire["tp"], (18 * ACTIVATION + 3 * STATISTIC) * 3 / 2);
        assert_eq!(rank.counts.wire["dp"], 5_006_336);
        assert_eq!(rank.counts.padding, 0);
        // Token hashes of the seven other ranks, and the loss over two data ranks.
        assert_eq!(rank.counts.control, 7 * 8 + 4);
    }
}

#[test]
fn sequence_parallelism_gathers_and_scatters() {
    for rank in step(SMALL, 8, 256, "tp=4,dp=2,sp=1") {
        let t = table(&rank);
        let of = |f: &str, kind, key: &str| t.get(&(f.to_string(), kind, key.to_string())).cloned().unwrap_or_default();
        // A layer: gathers before attention and MLP, again for their weight gradients, and of the
        // two cotangents; scatters after both, and of the two input cotangents.
        assert_eq!(of("@block.fwd", "all_gather", "tp"), vec![ACTIVATION; 8]);
        assert_eq!(of("@block.fwd", "reduce_scatter", "tp"), vec![ACTIVATION; 8]);
        assert_eq!(of("@block.bwd", "all_gather", "tp"), vec![ACTIVATION; 16]);
        assert_eq!(of("@block.bwd", "reduce_scatter", "tp"), vec![ACTIVATION; 8]);
        assert!(of("@block.fwd", "all_reduce", "tp").is_empty() && of("@block.bwd", "all_reduce", "tp").is_empty());
        // Norm gradients are sums over tokens, so over tp too: two a layer and the last norm.
        assert_eq!(of("@step", "all_reduce", "dp·tp"), vec![1024; 9]);
        let norms = 9 * 1024;
        assert_eq!(of("@step", "all_reduce", "dp").iter().sum::<u64>(), 5_006_336 - norms);
    }
}

#[test]
fn fully_sharded_parameters_are_gathered_twice_and_the_embedding_once() {
    for rank in step("tests/data/goldens/llama_tiny", 4, 64, "fsdp=4") {
        let sum = |kind| {
            let all = rank.counts.collectives.iter().filter(|c| c.kind == kind && !c.control);
            all.map(|c| c.payload).sum::<u64>()
        };
        assert_eq!(sum("all_gather"), 924_160);
        assert_eq!(sum("reduce_scatter"), 494_848);
        assert_eq!(rank.counts.payload["fsdp"], 924_160 + 494_848);
        assert_eq!(rank.counts.wire["fsdp"], (924_160 + 494_848) / 4 * 3);
        assert_eq!(rank.counts.padding, 0);
    }
}

//! The predictor as it ships: every model on every cluster, and what must hold between predictions.

use autoshard::decoder::Decoder;
use autoshard::hardware::{self, Cluster};
use autoshard::predict::predictor::{Job, Overrides, Predictor, Says};
use autoshard::predict::{CpMethod, Layout, PartKind, Precision, Prediction, Recompute, Schedule};
use autoshard::stacks;
use std::path::{Path, PathBuf};

fn models() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/models");
    let files = std::fs::read_dir(folder).unwrap().map(|e| e.unwrap().path());
    let mut files: Vec<PathBuf> = files.filter(|p| p.extension().is_some_and(|e| e == "json")).collect();
    files.sort();
    files
}

fn layout(tp: u64, dp: u64, zero: u8) -> Layout {
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
        shard_group: if zero == 0 { 1 } else { dp },
        sp: tp > 1,
        cp_method: CpMethod::Ring,
        micro_batch: 1,
        microbatches: 2,
        recompute: Recompute::None,
        schedule: Schedule::OneFOneB,
        order: None,
    }
}

fn model(name: &str) -> Decoder {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/models").join(format!("{name}.json"));
    Decoder::load(&path).unwrap()
}

fn predict(p: &Predictor, name: &str, cluster: &Cluster, layout: &Layout, precision: Precision) -> Prediction {
    let stack = stacks::find("megatron-core-2025").unwrap().stack;
    let decoder = model(name);
    let (key, seq_len, says) = (name, 4096, Says::default());
    p.predict(&Job {
        key,
        decoder: &decoder,
        cluster,
        stack: &stack,
        layout,
        layers_per_stage: None,
        seq_len,
        precision,
        says,
    })
    .unwrap()
}

#[test]
fn every_model_is_predicted_on_every_cluster() {
    let predictor = Predictor::default();
    let stack = stacks::find("megatron-core-2025").unwrap().stack;
    let clusters = hardware::clusters().unwrap();
    assert!(clusters.len() >= 47);
    for path in models() {
        let decoder = Decoder::load(&path).unwrap();
        for cluster in &clusters {
            let layout = layout(1, 4, 3);
            let job = Job {
                key: &path.display().to_string(),
                decoder: &decoder,
                cluster,
                stack: &stack,
                layout: &layout,
                layers_per_stage: None,
                seq_len: 2048,
                precision: Precision::Bf16,
                says: Says::default(),
            };
            let what = format!("{} on {}", path.display(), cluster.id);
            let p = predictor.predict(&job).unwrap_or_else(|e| panic!("{what}: {e}"));
            assert!(p.step_seconds.is_finite() && p.step_seconds > 0.0, "{what}: {}", p.step_seconds);
            let exposed: f64 = p.parts.iter().filter(|x| x.exposed).map(|x| x.seconds).sum();
            assert!((exposed / p.step_seconds - 1.0).abs() < 0.02, "{what}: parts {exposed}, step {}", p.step_seconds);
        }
    }
}

#[test]
fn utilisation_falls_from_a100_to_h100_at_one_plan() {
    let predictor = Predictor::default();
    let layout = layout(8, 8, 1);
    let mfu = |name: &str| {
        let cluster = hardware::cluster(name).unwrap();
        let p = predict(&predictor, "meta-llama-3.1-70b", &cluster, &layout, Precision::Bf16);
        let peak = cluster.device.peak_of(Precision::Bf16.format()).unwrap();
        (p.step_seconds, p.utilisation(p.model_flops_causal, 64, peak))
    };
    let ((slow, a100), (fast, h100)) = (mfu("dgx-a100"), mfu("dgx-h100"));
    assert!(fast < slow && h100 < a100, "A100 {slow} s at {a100}, H100 {fast} s at {h100}");
}

#[test]
fn the_same_question_has_the_same_answer_in_any_order() {
    let cluster = hardware::cluster("dgx-h100").unwrap();
    let ask = |p: &Predictor, tp| predict(p, "meta-llama-3.1-8b", &cluster, &layout(tp, 8, 3), Precision::Bf16);
    let (a, b) = (Predictor::default(), Predictor::default());
    let forward: Vec<_> = [1, 2, 4].map(|tp| ask(&a, tp)).into();
    let mut backward: Vec<_> = [4, 2, 1].map(|tp| ask(&b, tp)).into();
    backward.reverse();
    assert_eq!(forward, backward);
    assert_eq!(ask(&a, 2), forward[1]);
}

#[test]
fn more_work_takes_longer_and_more_ranks_do_not_add_flops() {
    let predictor = Predictor::default();
    let cluster = hardware::cluster("dgx-h100").unwrap();
    let ask = |l: &Layout, precision| predict(&predictor, "meta-llama-3.1-8b", &cluster, l, precision);
    let base = ask(&layout(2, 4, 1), Precision::Bf16);
    let twice = ask(&Layout { microbatches: 4, ..layout(2, 4, 1) }, Precision::Bf16);
    assert!(twice.step_seconds > base.step_seconds);
    let products = |p: &Prediction| p.exposed(PartKind::Products);
    assert!((products(&twice) / products(&base) - 2.0).abs() < 1e-9);
    assert_eq!(twice.model_flops_causal, 2.0 * base.model_flops_causal);
    let again = ask(&Layout { recompute: Recompute::Full, ..layout(2, 4, 1) }, Precision::Bf16);
    assert!(again.step_seconds > base.step_seconds && again.hardware_flops > base.hardware_flops);
    assert_eq!(again.model_flops_causal, base.model_flops_causal);
    let many = layout(8, 4096, 1);
    let meta = hardware::cluster("meta-llama3-roce-24k").unwrap();
    let p = predict(&predictor, "meta-llama-3.1-8b", &meta, &many, Precision::Bf16);
    assert!(p.marks.iter().any(|m| m.contains("24576 devices; for 32768 its last tier is repeated")), "{:?}", p.marks);
    let other = ask(&layout(4, 4, 1), Precision::Bf16);
    assert!((other.model_flops_causal / base.model_flops_causal - 1.0).abs() < 1e-12);
    assert!(ask(&layout(2, 4, 1), Precision::Fp8).step_seconds < base.step_seconds);
    // Experts: six FLOPs a token and active parameter, to the few percent of attention and norms.
    let p = predict(&predictor, "mixtral-8x7b-v0.1", &cluster, &Layout { ep: 8, ..layout(1, 8, 1) }, Precision::Bf16);
    let tokens = 8.0 * 2.0 * 4096.0;
    let active = model("mixtral-8x7b-v0.1").active_parameters() as f64;
    let ratio = p.model_flops_causal / (6.0 * tokens * active);
    assert!((0.97..1.06).contains(&ratio), "{ratio}");
}

#[test]
fn a_users_tables_take_the_place_of_those_that_ship() {
    let folder = tempfile::tempdir().unwrap();
    let kernels = folder.path().join("mine.csv");
    // A device on which every product takes ten milliseconds.
    let mut text = String::from("dtype,m,n,k,us\n");
    for m in [64, 512, 4096, 16384] {
        for n in [64, 1024, 16384] {
            for k in [64, 1024, 16384] {
                text += &format!("bfloat16,{m},{n},{k},10000\n");
            }
        }
    }
    std::fs::write(&kernels, text).unwrap();
    let nccl = folder.path().join("mine_nccl.csv");
    std::fs::write(&nccl, "op,ranks,bytes,us\nall_gather,8,1048576,100000\nall_gather,8,1073741824,100000\n").unwrap();
    let overrides = Overrides::of_files(&[kernels.clone(), nccl.clone()]).unwrap();
    assert_eq!((overrides.kernels.as_slice(), overrides.collectives.as_slice()), (&[kernels][..], &[nccl][..]));
    let cluster = hardware::cluster("dgx-h100").unwrap();
    let ask = |p: &Predictor| predict(p, "meta-llama-3.1-8b", &cluster, &layout(1, 8, 3), Precision::Bf16);
    let (ours, theirs) = (ask(&Predictor::default()), ask(&Predictor::with_tables(overrides)));
    assert!(theirs.step_seconds > 5.0 * ours.step_seconds, "{} {}", theirs.step_seconds, ours.step_seconds);
    assert!(Overrides::of_files(&[folder.path().join("none.csv")]).unwrap_err().to_string().contains("none.csv"));
}

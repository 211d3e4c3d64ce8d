//! Shared by the whole-model tests: goldens, runs on ranks, comparisons.
#![allow(dead_code)] // each test binary uses its part

use autoshard::artifact::{self, Artifact, DataSource, RunOptions, WeightsSource};
use autoshard::compile::{self, plan_mesh, Executable};
use autoshard::cuda::check::manifest::PackedModel;
use autoshard::data::Dataset;
use autoshard::hardware::Preset;
use autoshard::ir::plan::Plan;
use autoshard::ir::DType;
use autoshard::model::{Model, StepShape};
use autoshard::passes::autodiff::AdamW;
use autoshard::passes::search::Degrees;
use autoshard::runtime::Options;
use autoshard::train::{Norms, Trainer};
use autoshard::weights::Weights;
use autoshard_codegen::nvrtc::Nvrtc;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

/// Folder of a golden.
pub fn golden_dir(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data/goldens").join(name)
}

/// A golden's recorded numbers.
pub fn golden(name: &str) -> Value {
    let text = std::fs::read_to_string(golden_dir(name).join("golden_f64.json")).unwrap();
    serde_json::from_str(&text).unwrap()
}

/// Degrees from `dp=2,fsdp=2,tp=2` (`sp=0` turns sequence parallelism off).
pub fn degrees(mesh: &str) -> Degrees {
    let mut d = Degrees { dp: 1, fsdp: 1, tp: 1, sequence_parallel: true };
    for part in mesh.split(',').filter(|p| !p.is_empty()) {
        let (axis, n) = part.split_once('=').unwrap();
        let n: usize = n.parse().unwrap();
        match axis {
            "dp" => d.dp = n,
            "fsdp" => d.fsdp = n,
            "tp" => d.tp = n,
            "sp" => d.sequence_parallel = n != 0,
            other => panic!("axis {other}"),
        }
    }
    d
}

/// What a run gave.
pub struct Outcome {
    pub losses: Vec<f64>,
    pub grads: BTreeMap<String, Vec<f64>>,
    pub norms: BTreeMap<String, Norms>,
}

/// Compiles a golden model on a mesh.
pub fn build(name: &str, mesh: &str, dtype: DType) -> Executable {
    compiled(name, mesh, dtype).0
}

/// The same, written to an `.asx` file's bytes and read back.
pub fn build_asx(name: &str, mesh: &str, dtype: DType) -> Executable {
    let (executable, plan) = compiled(name, mesh, dtype);
    let options = RunOptions { steps: 1, weights: WeightsSource::Init, data: DataSource::Golden };
    let bytes = artifact::pack(&Artifact { executable, plan, options });
    artifact::unpack(&bytes, "golden.asx".as_ref()).unwrap_or_else(|e| panic!("{name} {mesh}: {e}")).executable
}

/// The same, made into a program in another way.
pub fn build_with(name: &str, mesh: &str, dtype: DType, options: &compile::Options) -> Executable {
    compiled_with(name, mesh, dtype, options).0
}

fn compiled(name: &str, mesh: &str, dtype: DType) -> (Executable, Plan) {
    compiled_with(name, mesh, dtype, &compile::Options::default())
}

fn compiled_with(name: &str, mesh: &str, dtype: DType, options: &compile::Options) -> (Executable, Plan) {
    let g = golden(name);
    let size = |key: &str| g[key].as_u64().unwrap() as usize;
    let shape = StepShape { batch: size("batch"), seq_len: size("seq"), dtype };
    let model = Model::load(&golden_dir(name), shape).unwrap();
    let plan = plan_mesh(&model, &degrees(mesh)).unwrap_or_else(|e| panic!("{name} {mesh}: {e}"));
    let exe = compile::compile_with(&model, &plan, &AdamW::default(), options);
    (exe.unwrap_or_else(|e| panic!("{name} {mesh}: {e}")), plan)
}

/// Trains an executable on golden tokens for the golden's steps.
pub fn train(exe: Executable, g: &Value) -> Outcome {
    let fixed = g["fixed_batch"].as_bool().unwrap();
    let m = exe.meta.clone();
    let data = Dataset::golden(0, m.vocab, m.seq_len, m.batch, fixed).unwrap();
    let weights = Weights::Init { seed: 0 };
    let preset = Preset::this_machine().unwrap();
    // Fixed batches are the same on all steps, not on all ranks.
    let mut t = Trainer::new(Arc::new(exe), &weights, data, &preset, Options::default()).unwrap();
    t.keep_start().unwrap();
    let mut losses = Vec::new();
    let mut grads = BTreeMap::new();
    for step in 0..g["loss"].as_array().unwrap().len() {
        losses.push(t.step().unwrap_or_else(|e| panic!("step {step}: {e}")).loss);
        if step == 0 {
            for tensor in &m.tensors {
                grads.insert(tensor.name.clone(), t.gradient(&tensor.name).unwrap());
            }
        }
    }
    Outcome { losses, grads, norms: t.norms().unwrap() }
}

/// The recorded gradients of step 1.
pub fn golden_grads(name: &str) -> BTreeMap<String, Vec<f64>> {
    let bytes = std::fs::read(golden_dir(name).join("grads_step1_f64.safetensors")).unwrap();
    let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let mut out = BTreeMap::new();
    for (n, t) in file.tensors() {
        let values = match t.dtype() {
            safetensors::Dtype::F64 => {
                t.data().chunks_exact(8).map(|c| f64::from_le_bytes(c.try_into().unwrap())).collect()
            }
            safetensors::Dtype::F32 => {
                t.data().chunks_exact(4).map(|c| f64::from(f32::from_le_bytes(c.try_into().unwrap()))).collect()
            }
            other => panic!("{n}: {other:?}"),
        };
        out.insert(n.to_string(), values);
    }
    out
}

/// ‖a − b‖ / ‖b‖.
pub fn relative_l2(a: &[f64], b: &[f64]) -> f64 {
    assert_eq!(a.len(), b.len());
    let d: f64 = a.iter().zip(b).map(|(x, y)| (x - y).powi(2)).sum();
    let n: f64 = b.iter().map(|y| y * y).sum();
    (d / n).sqrt()
}

/// `a` within `tolerance` of `b`, relatively; NaN never is.
pub fn close(a: f64, b: f64, tolerance: f64) -> bool {
    ((a - b) / b).abs() <= tolerance
}

/// Largest errors of a run against its golden: losses, gradients, norms, changes.
#[derive(Debug, Default)]
pub struct Errors {
    pub loss: f64,
    pub grad: f64,
    pub norm: f64,
    pub delta: f64,
    pub worst: String,
}

pub fn compare(name: &str, run: &Outcome, g: &Value) -> Errors {
    let mut e = Errors::default();
    let want: Vec<f64> = g["loss"].as_array().unwrap().iter().map(|x| x.as_f64().unwrap()).collect();
    assert_eq!(run.losses.len(), want.len());
    let max = |a: f64, b: f64| if b.is_nan() { f64::NAN } else { a.max(b) };
    for (a, b) in run.losses.iter().zip(&want) {
        e.loss = max(e.loss, ((a - b) / b).abs());
    }
    let grads = golden_grads(name);
    assert_eq!(grads.keys().collect::<Vec<_>>(), run.grads.keys().collect::<Vec<_>>());
    for (n, want) in &grads {
        let err = relative_l2(&run.grads[n], want);
        if err.is_nan() || err > e.grad {
            e.worst = n.clone();
        }
        e.grad = max(e.grad, err);
    }
    for (n, want) in g["param_after_steps"].as_object().unwrap() {
        let (norm, delta) = (want["l2"].as_f64().unwrap(), want["delta_l2"].as_f64().unwrap());
        e.norm = max(e.norm, ((run.norms[n].norm - norm) / norm).abs());
        e.delta = max(e.delta, ((run.norms[n].delta - delta) / delta).abs());
    }
    e
}

/// Every golden, as the models of a check of CUDA kernels.
pub fn models() -> Vec<PackedModel> {
    let mut folders: Vec<PathBuf> = std::fs::read_dir(golden_dir("")).unwrap().map(|e| e.unwrap().path()).collect();
    folders.sort();
    let model = |folder: &PathBuf| {
        let name = folder.file_name().unwrap().to_str().unwrap().to_string();
        let g = golden(&name);
        let size = |key: &str| g[key].as_u64().unwrap() as usize;
        PackedModel { batch: size("batch"), seq_len: size("seq"), name }
    };
    folders.iter().map(model).collect()
}

/// Says something that is seen even where the test passes: what was skipped, what was counted.
pub fn say(text: &str) {
    use std::io::Write;
    // The macros' output is kept back by the test harness; a write to the stream is not.
    let _ = writeln!(std::io::stderr(), "\n{text}");
}

/// NVRTC, fetched if need be; without it the test says so and is skipped.
pub fn nvrtc() -> Option<Nvrtc> {
    let script = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("scripts/get-nvrtc");
    let fetched = std::process::Command::new(&script).output().is_ok_and(|o| o.status.success());
    Nvrtc::find(None).map_err(|e| say(&format!("skipped: NVRTC (1 test): {e} (get-nvrtc: {fetched})"))).ok()
}

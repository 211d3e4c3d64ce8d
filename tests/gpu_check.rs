//! The checks of a machine with a GPU, as far as they run without one: what they expect is held
//! against two other executions, and what is packed is read again.

mod common;
#[path = "cuda-emulation/harness/mod.rs"]
#[allow(dead_code)]
mod harness;

use autoshard::cuda::check::kernels::{cases, has_text};
use autoshard::cuda::check::manifest::{Manifest, PackedModel};
use autoshard::cuda::check::pack::{pack, Options};
use autoshard::cuda::check::primitives::{self, Expected, BLOCK};
use autoshard::cuda::check::report::{Failure, Status};
use autoshard::cuda::check::stages::{self, kernel_checks, KernelCheck, Packed};
use autoshard::cuda::check::tensor::Tensor;
use autoshard::cuda::check::trial::{guarded, Job, Machine, Trial};
use autoshard::ir::DType;
use autoshard::runtime::cpu::{execute, Buffer, Pool};
use autoshard::runtime::cuda::{probe, CudaError};
use autoshard_codegen::emit;
use autoshard_codegen::nvrtc::{Cache, Target};
use harness::jobs::{self, Arg, Order, Role};
use harness::toolchain::{self, Text};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;

/// What the checks expect of primitives is what their bodies under emulation compute.
#[test]
fn primitives_are_what_the_emulation_computes() {
    if !toolchain::available() {
        common::say("skipped: g++ (1 test): no g++ for x86-64 Linux here");
        return;
    }
    let all: Vec<_> = primitives::all().into_iter().filter(|p| p.emulated).collect();
    let texts: Vec<Text> =
        all.iter().enumerate().map(|(i, p)| Text { name: format!("p{i}"), source: p.source.clone() }).collect();
    let dir = toolchain::scratch("primitives").unwrap();
    let driver = toolchain::build(&dir, &texts).unwrap();
    // As integers, so that every pattern of bits comes through.
    let raw = |bytes: &Vec<u8>| Tensor::from_bytes(DType::I32, bytes);
    let list: Vec<jobs::Job> = all
        .iter()
        .zip(&texts)
        .map(|(p, t)| {
            let mut buffers: Vec<_> = p.inputs.iter().map(|b| (Role::Operand, raw(b))).collect();
            buffers.push((Role::Result, raw(&vec![0xff; p.expected.bytes()])));
            let args = (0..buffers.len()).map(Arg::Buffer).collect();
            let entry = format!("{}.{}", t.name, p.entry);
            let launch = jobs::Launch { entry, grid: [p.blocks, 1, 1], block: [BLOCK, 1, 1], args };
            jobs::Job { name: t.name.clone(), order: Order::Forward, check: true, buffers, launches: vec![launch] }
        })
        .collect();
    let outcomes = jobs::run(&driver, &dir, &list).unwrap();
    let (mut elements, mut failures) = (0, vec![]);
    for (p, o) in all.iter().zip(&outcomes) {
        assert!(o.done && o.reports.is_empty(), "{}: {}", p.name, o.explain(&driver));
        let memory: Vec<Vec<u8>> = o.buffers.iter().map(|t| guarded(&t.bytes())).collect();
        let size = if let Expected::Bits(_, size) = p.expected { size } else { 4 };
        elements += p.expected.bytes() / size;
        if let Err(f) = Trial::primitive(p).judge(&memory) {
            failures.push(format!("{}: {}: {}", p.name, f.kind, f.text));
        }
    }
    println!("{} primitives, {elements} elements", all.len());
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

fn models() -> Vec<PackedModel> {
    let mut names: Vec<String> = std::fs::read_dir(common::golden_dir(""))
        .unwrap()
        .map(|e| e.unwrap().file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    let model = |name: String| {
        let g = common::golden(&name);
        let size = |key: &str| g[key].as_u64().unwrap() as usize;
        PackedModel { batch: size("batch"), seq_len: size("seq"), name }
    };
    names.into_iter().map(model).collect()
}

/// The CPU's kernels in the place of a device.
struct Cpu<'a>(&'a KernelCheck, &'a Pool);

impl Machine for Cpu<'_> {
    fn run(&mut self, _: &[u8], job: &Job) -> Result<Vec<Vec<u8>>, CudaError> {
        // Words, so that memory is aligned to every type.
        let words = |bytes: &Vec<u8>| -> Vec<u64> {
            let mut out = vec![0u64; bytes.len().div_ceil(8)];
            for (i, b) in bytes.iter().enumerate() {
                out[i / 8] |= u64::from(*b) << (8 * (i % 8));
            }
            out
        };
        let mut memory: Vec<Vec<u64>> = job.memory.iter().map(words).collect();
        let mut place = |slot: usize| Buffer { ptr: memory[slot].as_mut_ptr().cast(), bytes: job.memory[slot].len() };
        let buffers: Vec<Buffer> = job.buffers.iter().map(|s| place(*s)).collect();
        let (case, coords) = (&self.0.case, self.0.case.mesh.coords(self.0.rank));
        // SAFETY: buffers are of `memory`, which lives; results share memory only where programs do.
        unsafe { execute(&case.kernel, &case.mesh, &coords, &buffers, self.1) }.unwrap();
        let bytes = |(words, before): (&Vec<u64>, &Vec<u8>)| {
            let all: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).take(before.len()).collect();
            guarded(&all)
        };
        Ok(memory.iter().zip(&job.memory).map(bytes).collect())
    }
}

/// The judgement of kernels passes what the CPU computes, on every model and mesh.
#[test]
fn kernels_that_are_right_pass() {
    let pool = Pool::new(2);
    let root = common::golden_dir("");
    let mut failures: Vec<String> = vec![];
    let (mut checks, mut in_place, mut skipped) = (0, 0, 0);
    for case in cases(&models(), &root).unwrap() {
        assert!(has_text(&case.kernel));
        let Ok(text) = emit(&case.kernel) else {
            skipped += 1;
            continue;
        };
        in_place += case.in_place.len();
        let last = case.mesh.ranks() - 1;
        for rank in if last == 0 { vec![0] } else { vec![0, last] } {
            let check = KernelCheck { case: case.clone(), rank, text: Ok(text.clone()) };
            let trial = Trial::kernel(&check.case, &case.mesh.coords(rank), &text).unwrap();
            checks += 1;
            if let Err(f) = trial.run(&mut Cpu(&check, &pool), &[]).map_err(|f| f.failure()) {
                failures.push(format!("{}: {}: {}", check.label(), f.kind, f.text));
            }
        }
    }
    println!("{checks} kernels on ranks, {in_place} updates in place; skipped: {skipped} without a text");
    assert!(failures.is_empty(), "{} of {checks}:\n{}", failures.len(), failures[..failures.len().min(10)].join("\n"));
}

/// A device that is never right.
struct Untouched;

impl Machine for Untouched {
    fn run(&mut self, _: &[u8], job: &Job) -> Result<Vec<Vec<u8>>, CudaError> {
        Ok(job.memory.iter().map(|m| guarded(m)).collect())
    }
}

/// What is packed is what a run looks for.
#[test]
fn what_is_packed_is_found_again() {
    let Some(nvrtc) = common::nvrtc() else { return };
    let dir = tempfile::tempdir().unwrap();
    let options = Options {
        goldens: common::golden_dir(""),
        only: vec!["llama_tiny_tied".into()],
        large: None,
        targets: vec![Target::Sm90a],
        threads: 2,
        cache: Some(Cache::new(PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("cuda-cache"))),
    };
    let done = pack(dir.path(), &nvrtc, &options).unwrap();
    let manifest = Manifest::read(dir.path()).unwrap();
    assert_eq!((&manifest, &done.over_budget[..]), (&done.manifest, &[][..]));
    let packed = Packed { dir: dir.path(), manifest: &manifest, target: "sm_90a" };
    let kernels = kernel_checks(packed).unwrap();
    let mut kinds: BTreeMap<String, usize> = BTreeMap::new();
    let mut count = |status: Status, failure: Option<Failure>| {
        let kind = failure.map_or(format!("{status:?}"), |f| f.kind);
        *kinds.entry(kind).or_default() += 1;
    };
    for p in primitives::all() {
        assert!(manifest.image(dir.path(), &p.entry, "sm_90a").unwrap().starts_with(b"\x7fELF"));
        let (status, _, failure, _) = stages::primitive(&p, packed, &mut Untouched);
        count(status, failure);
    }
    for k in &kernels {
        let (status, _, failure, _) = stages::kernel(k, packed, &mut Untouched);
        // The part of a rank may be empty: nothing is to be done, then.
        let trial = k.text.as_ref().ok().map(|t| Trial::kernel(&k.case, &k.case.mesh.coords(k.rank), t).unwrap());
        let nothing = trial.is_some_and(|t| t.written() == 0);
        assert_eq!(status == Status::Passed, nothing, "{}", k.label());
        count(status, failure);
    }
    println!("{} images, {} MiB; a device that does nothing: {kinds:?}", manifest.images.len(), manifest.bytes() >> 20);
    // Every image is found, and no check passes memory that nobody wrote.
    assert!(!kinds.contains_key("pack"), "{kinds:?}");
    let other = Packed { target: "sm_80", ..packed };
    let (status, _, failure, _) = stages::kernel(&kernels[0], other, &mut Untouched);
    assert_eq!((status, failure.map(|f| f.kind)), (Status::Failed, Some("pack".into())));
}

/// Without a GPU a run says so, writes it, and is no failure.
#[test]
fn without_a_gpu_nothing_runs() {
    if !probe().devices().is_empty() {
        common::say("skipped: (1 test) there is a GPU here");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out.json");
    let run = Command::new(env!("CARGO_BIN_EXE_gpu-check")).arg("run").arg(dir.path()).arg(&out).output().unwrap();
    let text = String::from_utf8(run.stdout).unwrap();
    assert!(run.status.success() && text.starts_with("skipped: "), "{text}");
    let json: serde_json::Value = serde_json::from_slice(&std::fs::read(&out).unwrap()).unwrap();
    assert_eq!(json["skipped"].as_str(), text.trim_end().strip_prefix("skipped: "));
}

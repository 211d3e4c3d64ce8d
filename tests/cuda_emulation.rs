//! The CUDA text of kernels, run without a device: compiled as C++ under fibres and a checker of
//! races, bounds and uninitialised reads, and compared with an f64 reference.

mod common;
#[path = "cuda-emulation/harness/mod.rs"]
mod harness;

use autoshard::cuda::check::compare::{compare, Tolerance, CANARY};
use autoshard::cuda::check::kernels::{self, Case};
use autoshard::cuda::check::tensor::Tensor;
use autoshard::ir::DType;
use harness::emulate;
use harness::jobs::{self, Arg, Job, Launch, Outcome, Role, ORDERS};
use harness::synthetic;
use harness::toolchain::{self, Text};
use std::path::Path;
use std::time::Instant;

/// Whether to go on; says so if not.
fn compiler() -> bool {
    let found = toolchain::available();
    if !found {
        common::say("skipped: g++ (1 test): no g++ 12 or later for x86-64 Linux here");
    }
    found
}

/// A correct text and broken versions of it, each with the report that it must give in every order
/// (or the kind of a wrong result) and whether it ends there.
struct Bugs {
    file: &'static str,
    entry: &'static str,
    bugs: &'static [(&'static str, &'static str, bool)],
    /// Contents before the launch: the result first.
    buffers: Vec<(Role, Tensor)>,
    scalars: Vec<Arg>,
    blocks: usize,
    want: Vec<f64>,
    /// Bytes of the correct version, per buffer.
    loaded: Vec<u64>,
    stored: Vec<u64>,
}

fn noise(n: usize, seed: usize) -> Tensor {
    let value = |i: usize| ((i * 37 + seed * 11) % 97) as f64 / 64.0 - 0.7578125;
    Tensor { dtype: DType::F32, values: (0..n).map(value).collect() }
}

impl Bugs {
    fn run(&self) {
        let source = std::fs::read_to_string(toolchain::sources().join("bugs").join(self.file)).unwrap();
        let names = ["CLEAN"].into_iter().chain(self.bugs.iter().map(|b| b.0));
        let text = |n: &str| Text { name: n.to_string(), source: format!("#define {n}\n{source}#undef {n}\n") };
        let texts: Vec<Text> = names.map(text).collect();
        let dir = toolchain::scratch("bugs").unwrap();
        let driver = toolchain::build(&dir, &texts).unwrap();
        let jobs: Vec<Job> = texts.iter().flat_map(|t| ORDERS.map(|order| self.job(&t.name, order))).collect();
        let outcomes = jobs::run(&driver, &dir, &jobs).unwrap();
        outcomes.iter().for_each(|o| self.judge(o, &driver));
        // Without the checker: the same numbers, and nothing counted.
        let fast = Job { check: false, ..self.job("CLEAN", ORDERS[0]) };
        let fast = &jobs::run(&driver, &dir, &[fast]).unwrap()[0];
        assert_eq!((&fast.buffers, fast.accesses, fast.done), (&outcomes[0].buffers, 0, true));
        let reports: usize = outcomes.iter().map(|o| o.reports.len()).sum();
        println!("{}: {} texts, {} jobs, {reports} reports", self.file, texts.len(), outcomes.len());
        std::fs::remove_dir_all(&dir).unwrap();
    }

    fn job(&self, name: &str, order: jobs::Order) -> Job {
        let pointers = (0..self.buffers.len()).map(Arg::Buffer);
        let launch = Launch {
            entry: format!("{name}.{}", self.entry),
            grid: [self.blocks, 1, 1],
            block: [64, 1, 1],
            args: pointers.chain(self.scalars.iter().cloned()).collect(),
        };
        Job { name: name.to_string(), order, check: true, buffers: self.buffers.clone(), launches: vec![launch] }
    }

    fn judge(&self, o: &Outcome, driver: &Path) {
        let told = format!("{} {}:{}", o.kernel, o.order, o.explain(driver));
        println!("{told}");
        let want: Vec<Option<f64>> = self.want.iter().map(|w| Some(*w)).collect();
        let numbers = compare(&o.buffers[0], &want, Tolerance::of(DType::F32));
        let Some((_, kind, ends)) = self.bugs.iter().find(|b| b.0 == o.kernel) else {
            assert!(o.done && o.reports.is_empty(), "{told}");
            assert_eq!((&o.loaded, &o.stored), (&self.loaded, &self.stored), "{told}");
            numbers.unwrap();
            return;
        };
        let reported = o.reports.iter().any(|r| r.kind == *kind);
        let compared = numbers.as_ref().err().is_some_and(|e| e.kind == *kind);
        assert!(reported || compared, "{told}\nno {kind}: {numbers:?}");
        assert_eq!(o.done, !ends, "{told}");
    }
}

#[test]
fn seeded_bugs_of_blocks_are_caught_in_every_order() {
    if !compiler() {
        return;
    }
    // Columns are not a multiple of the block.
    let (rows, columns) = (3, 72);
    let (x, w) = (noise(rows * columns, 1), noise(columns, 2));
    let value = |i: usize| {
        let row = &x.values[i / columns * columns..][..columns];
        let mean = row.iter().map(|v| v * v).sum::<f64>() / columns as f64;
        x.values[i] * w.values[i % columns] / (mean + 1e-5).sqrt()
    };
    let want = (0..rows * columns).map(value).collect();
    let y = Tensor { dtype: DType::F32, values: vec![CANARY; rows * columns] };
    let (matrix, row) = ((rows * columns * 4) as u64, (columns * 4) as u64);
    let bugs = Bugs {
        file: "rmsnorm.cu",
        entry: "rmsnorm",
        bugs: &[
            ("BUG_NO_BARRIER", "race", false),
            ("BUG_READ", "out-of-bounds", true),
            ("BUG_WRITE", "out-of-bounds", true),
            ("BUG_DIVERGENT_BARRIER", "divergent-barrier", false),
            ("BUG_EXITED", "divergent-barrier", false),
            ("BUG_PARTIAL_WARP", "warp-lanes", true),
            ("BUG_MASK", "warp-lanes", true),
            ("BUG_UNINITIALISED", "uninitialised", false),
            ("BUG_SHARED_READ", "out-of-bounds", true),
            ("BUG_MISALIGNED", "misaligned", false),
            ("BUG_BLOCK_RACE", "block-race", false),
            ("BUG_OPERAND", "operand-write", false),
            ("BUG_NAN", "nan", false),
            ("BUG_TAIL", "value", false),
        ],
        buffers: vec![(Role::Result, y), (Role::Operand, x.clone()), (Role::Operand, w.clone())],
        scalars: vec![Arg::Bytes((columns as i32).to_le_bytes().to_vec())],
        blocks: rows,
        want,
        loaded: vec![0, matrix, row],
        stored: vec![matrix, 0, 0],
    };
    bugs.run();
}

#[test]
fn seeded_bugs_of_warps_are_caught_in_every_order() {
    if !compiler() {
        return;
    }
    let x = noise(128, 3);
    let want = (0..128).map(|i| 2.0 * x.values[i ^ 1]).collect();
    let y = Tensor { dtype: DType::F32, values: vec![CANARY; 128] };
    let bugs = Bugs {
        file: "warp.cu",
        entry: "exchange",
        bugs: &[
            ("BUG_SHUFFLE_ORDERS", "race", false),
            ("BUG_PART_OF_WARP", "race", false),
            ("BUG_OTHER_LINE", "warp-lanes", false),
            ("BUG_LEAVES", "warp-lanes", false),
            ("BUG_TWO_WRITERS", "race", false),
            ("BUG_NO_END", "warp-lanes", true),
            ("BUG_TABLE", "out-of-bounds", true),
            ("BUG_OTHER_BLOCK", "block-race", false),
            ("BUG_STACK", "out-of-bounds", true),
        ],
        buffers: vec![(Role::Result, y), (Role::Operand, x)],
        scalars: vec![],
        blocks: 2,
        want,
        loaded: vec![0, 512],
        stored: vec![512, 0],
    };
    bugs.run();
}

/// Runs kernels, says what came of it, and wants nothing to complain of.
fn emulated(cases: &[Case]) {
    let start = Instant::now();
    let s = emulate::run(cases).unwrap();
    common::say(&format!(
        "{} kernels, {} texts, {} jobs in {} orders, {} reports, {} blank, {} accesses, {} switches, {:.0?}",
        cases.len(),
        s.texts,
        s.jobs,
        ORDERS.len(),
        s.reports,
        s.blank,
        s.accesses,
        s.switches,
        start.elapsed()
    ));
    println!("elements compared, largest relative L2 error: {:?}", s.compared);
    println!("refused by the emitter: {:?}", s.refused);
    let first: Vec<&str> = s.failures.iter().take(12).map(String::as_str).collect();
    assert!(first.is_empty(), "{} jobs failed:\n{}", s.failures.len(), first.join("\n"));
    assert!(s.refused.is_empty(), "the emitter refuses kernels");
}

#[test]
fn kernels_that_no_model_has() {
    if compiler() {
        emulated(&synthetic::cases());
    }
}

#[test]
fn kernels_of_whole_models() {
    if !compiler() {
        return;
    }
    // On one rank and on a mesh that splits everything, parts ragged, f32 and bf16.
    emulated(&kernels::cases(&common::models(), &common::golden_dir("")).unwrap());
}

//! Times of the kernels of a training step, one by one: the least of several runs each, in CPU seconds
//! of all threads, which a busy machine disturbs little (`--wall`: in seconds that pass).
//!
//!     cargo bench --bench kernels -- tests/data/configs/peer_small.json 8 256 [--threads 2] [--rounds 20]
//!         [--dp 1] [--fsdp 1] [--tp 1] [--bf16] [--wall] [--list 40]
//!
//! Prints the sum over a step by template with GFLOP/s and GB/s, then the kernels that take most,
//! and beside them a plain product of 1024³ measured in the same minute. The kernels are those of
//! one rank.

use autoshard::compile::{compile, plan_mesh};
use autoshard::ir::core::DType;
use autoshard::ir::kernel::{Extent, GemmKernel, GemmLoop, Init, Kernel, KernelBody, Product};
use autoshard::ir::program::{Program, Step};
use autoshard::ir::Mesh;
use autoshard::model::{Model, StepShape};
use autoshard::passes::autodiff::AdamW;
use autoshard::passes::search::Degrees;
use autoshard::runtime::cpu::{Buffer, Pool, Prepared};
use std::collections::BTreeMap;
use std::error::Error;
use std::path::Path;
use std::time::Instant;

/// CPU seconds of this process so far.
fn cpu_seconds() -> f64 {
    #[repr(C)]
    struct Time {
        seconds: i64,
        nanoseconds: i64,
    }
    unsafe extern "C" {
        fn clock_gettime(clock: i32, time: *mut Time) -> i32;
    }
    const PROCESS: i32 = 2;
    let mut t = Time { seconds: 0, nanoseconds: 0 };
    // SAFETY: the function of POSIX, with Linux's number of the clock and its layout on 64 bits.
    unsafe { clock_gettime(PROCESS, &mut t) };
    t.seconds as f64 + 1e-9 * t.nanoseconds as f64
}

/// Seconds of the fastest run.
fn fastest(kernel: &Kernel, mesh: &Mesh, pool: &Pool, rounds: usize, wall: bool) -> Result<f64, Box<dyn Error>> {
    let prepared = Prepared::new(kernel, mesh, &mesh.coords(0))?;
    let mut memory: Vec<Vec<u64>> = vec![];
    for (bytes, dtype) in prepared.needs() {
        // Small numbers, and indices that every table has.
        let word = match dtype {
            Some(DType::F64) => 0.01f64.to_bits(),
            Some(DType::F32) => 0x3C23_D70A_3C23_D70A,
            Some(DType::Bf16) => 0x3C23_3C23_3C23_3C23,
            _ => 0,
        };
        memory.push(vec![word; bytes.div_ceil(8) + 8]);
    }
    let buffers: Vec<Buffer> =
        memory.iter_mut().map(|m| Buffer { ptr: m.as_mut_ptr().cast(), bytes: m.len() * 8 }).collect();
    let mut best = f64::INFINITY;
    for _ in 0..rounds {
        let (start, cpu) = (Instant::now(), cpu_seconds());
        // SAFETY: the buffers are live, large enough, and each kernel has its own.
        unsafe { prepared.run(&buffers, pool)? };
        best = best.min(if wall { start.elapsed().as_secs_f64() } else { cpu_seconds() - cpu });
    }
    Ok(best)
}

/// How often each kernel runs in a step.
fn count(program: &Program, function: usize, times: usize, counts: &mut BTreeMap<usize, usize>) {
    for step in &program.functions[function].steps {
        match step {
            Step::Kernel { kernel, .. } => *counts.entry(*kernel).or_default() += times,
            Step::Call { function, .. } => count(program, *function, times, counts),
            _ => {}
        }
    }
}

fn template(kernel: &Kernel) -> &'static str {
    match kernel.body {
        KernelBody::Loop(_) => "loop",
        KernelBody::Gemm(_) => "gemm",
        KernelBody::Attention(_) => "attention",
        KernelBody::AttentionBackward(_) => "attention_bwd",
        KernelBody::Gather(_) => "gather",
        KernelBody::Scatter(_) => "scatter",
        KernelBody::Copy(_) => "copy",
    }
}

/// Loops in short, to tell kernels of one name apart.
fn shape(kernel: &Kernel) -> String {
    let sizes = |loops: &[GemmLoop]| loops.iter().map(|l| l.extent.size.to_string()).collect::<Vec<_>>().join("·");
    match &kernel.body {
        KernelBody::Loop(nests) => {
            let sizes = |l: &[Extent]| l.iter().map(|e| e.size.to_string()).collect::<Vec<_>>().join("·");
            let each = nests.iter().map(|n| format!("{} ({} instructions)", sizes(&n.loops), n.instrs.len()));
            each.take(3).collect::<Vec<_>>().join(", ")
        }
        KernelBody::Gemm(g) => {
            let each = g.products.iter().map(|p| format!("{} × {} × {}", sizes(&p.m), sizes(&p.n), sizes(&p.k)));
            format!("{} +{}", each.collect::<Vec<_>>().join(", "), g.epilogue.len())
        }
        _ => String::new(),
    }
}

/// A product of 1024³.
fn reference() -> Kernel {
    let side = |name: &str, a, b, c| {
        let extent = Extent { name: name.into(), size: 1024, global: 1024, axes: vec![] };
        vec![GemmLoop { extent, a, b, c }]
    };
    let (m, n, k) = (side("m", 1024, 0, 1024), side("n", 0, 1, 1), side("k", 1, 1024, 0));
    let product = Product { a: 0, b: 1, c: 2, init: Init::Zero, batch: vec![], m, n, k, dtype: DType::F32 };
    let body = KernelBody::Gemm(GemmKernel::single(product));
    Kernel { name: "1024³".into(), operands: 2, results: 1, flops: 2.0 * 1024f64.powi(3), bytes: 12e6, body }
}

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).filter(|a| a != "--bench").collect();
    let option = |name: &str, default: usize| {
        let value = args.iter().position(|a| a == name).and_then(|i| args.get(i + 1));
        value.map_or(Ok(default), |v| v.parse::<usize>())
    };
    let [config, batch, seq, ..] = &args[..] else {
        println!("cargo bench --bench kernels -- CONFIG BATCH SEQ [--threads N] [--rounds N] [--dp N] [--fsdp N] [--tp N] [--bf16] [--wall] [--list N]");
        return Ok(());
    };
    let dtype = if args.iter().any(|a| a == "--bf16") { DType::Bf16 } else { DType::F32 };
    let shape_of_step = StepShape { batch: batch.parse()?, seq_len: seq.parse()?, dtype };
    let model = Model::load(Path::new(config), shape_of_step)?;
    let wall = args.iter().any(|a| a == "--wall");
    let (dp, fsdp, tp) = (option("--dp", 1)?, option("--fsdp", 1)?, option("--tp", 1)?);
    let degrees = Degrees { dp, fsdp, tp, sequence_parallel: tp > 1 };
    let exe = compile(&model, &plan_mesh(&model, &degrees)?, &AdamW::default())?;
    let program = &exe.program;
    let (pool, rounds) = (Pool::new(option("--threads", 0)?), option("--rounds", 20)?);

    let mut counts = BTreeMap::new();
    count(program, program.entry, 1, &mut counts);
    let mut rows = vec![];
    let mut sums: BTreeMap<&str, (usize, f64, f64, f64)> = BTreeMap::new();
    for (k, n) in counts {
        let kernel = &program.kernels[k];
        let seconds = fastest(kernel, &program.mesh, &pool, rounds, wall)?;
        let sum = sums.entry(template(kernel)).or_default();
        let times = n as f64;
        *sum = (sum.0 + n, sum.1 + times * seconds, sum.2 + times * kernel.flops, sum.3 + times * kernel.bytes);
        rows.push((times * seconds, n, kernel, seconds));
    }
    let total: f64 = rows.iter().map(|r| r.0).sum();
    let plain = reference();
    let rate = plain.flops / fastest(&plain, &Mesh::new(&[]), &pool, rounds, wall)? / 1e9;
    println!("{:.2} ms a step on {pool:?}; 1024³: {rate:.0} GFLOP/s", 1e3 * total);
    for (name, (n, s, flops, bytes)) in &sums {
        let (f, b) = (flops / s / 1e9, bytes / s / 1e9);
        println!("{name:14} {:9.3} ms {n:5}×  {f:7.1} GFLOP/s {b:6.1} GB/s", 1e3 * s);
    }
    rows.sort_by(|a, b| b.0.total_cmp(&a.0));
    for (s, n, k, each) in rows.iter().take(option("--list", 40)?) {
        let (f, b) = (k.flops / each / 1e9, k.bytes / each / 1e9);
        println!("{:9.3} ms {n:4}×  {f:6.1} GFLOP/s {b:6.1} GB/s  {} {} | {}", 1e3 * s, template(k), k.name, shape(k));
    }
    Ok(())
}

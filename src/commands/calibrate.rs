//! `autoshard calibrate`: measures this machine's products and memory.

use super::Failure;
use autoshard::ir::core::DType;
use autoshard::ir::kernel::{Extent, GemmKernel, GemmLoop, Init, Kernel, KernelBody, Product};
use autoshard::ir::Mesh;
use autoshard::runtime::cpu::{Buffer, KernelError, Pool, Prepared};
use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::Instant;

/// Measure this machine's products by shape and its memory, as a table for `--kernels`.
///
/// Times are of all threads together, the least of several runs: leave the machine alone meanwhile.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  autoshard calibrate -o this-machine.csv")]
pub struct Args {
    /// Table to write, with the columns dtype,m,n,k,us
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    /// Threads of the products; all cores by default
    #[arg(long)]
    threads: Option<usize>,
    /// Largest side of a product
    #[arg(long, default_value_t = 1024)]
    largest: usize,
}

/// Sides from which shapes are combined.
const SIDES: [usize; 6] = [32, 128, 512, 1024, 2048, 4096];
/// Runs of a shape: the first warms up, the least of the others counts.
const RUNS: usize = 4;
/// Bytes of the copy: larger than any cache.
const COPY: usize = 256 << 20;

/// Measures, writes the table, prints figures.
pub fn calibrate(args: &Args) -> Result<(), Failure> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let pool = Pool::new(args.threads.unwrap_or(cores).max(1));
    let sides: Vec<usize> = SIDES.into_iter().filter(|s| *s <= args.largest).collect();
    let mut table = String::from("dtype,m,n,k,us\n");
    let mut best = [(DType::F32, "float32", 0.0f64), (DType::F64, "float64", 0.0)];
    for (dtype, name, top) in &mut best {
        for &m in &sides {
            for &n in &sides {
                for &k in &sides {
                    let seconds = product(*dtype, m, n, k, &pool)?;
                    *top = top.max(2.0 * m as f64 * n as f64 * k as f64 / seconds);
                    // Writing to a string cannot fail.
                    let _ = writeln!(table, "{name},{m},{n},{k},{:.3}", seconds * 1e6);
                }
            }
        }
    }
    let failed = |e| Failure::Failed(format!("{}: cannot write the table: {e}", args.output.display()));
    std::fs::write(&args.output, table).map_err(failed)?;
    println!("{} threads", pool.width());
    for (_, name, top) in best {
        println!("{name}: {:.1} GFLOP/s in the best shape", top / 1e9);
    }
    println!("memory: {:.1} GB/s of one thread's copy, read plus write", copy() / 1e9);
    println!("wrote {}", args.output.display());
    Ok(())
}

/// Seconds of the fastest of some runs of a product.
fn product(dtype: DType, m: usize, n: usize, k: usize, pool: &Pool) -> Result<f64, KernelError> {
    let mesh = Mesh::default();
    let prepared = Prepared::new(&kernel(dtype, m, n, k), &mesh, &[])?;
    // 64-bit words, so that every type is aligned; zeros are as slow as other numbers.
    let mut memory: Vec<Vec<u64>> = prepared.needs().map(|(bytes, _)| vec![0; bytes.div_ceil(8)]).collect();
    let buffers: Vec<Buffer> =
        memory.iter_mut().map(|w| Buffer { ptr: w.as_mut_ptr().cast(), bytes: w.len() * 8 }).collect();
    let mut best = f64::INFINITY;
    for run in 0..RUNS {
        let start = Instant::now();
        // SAFETY: the buffers live in `memory`, are as large as the kernel needs, and nobody else has them.
        unsafe { prepared.run(&buffers, pool)? };
        if run > 0 {
            best = best.min(start.elapsed().as_secs_f64());
        }
    }
    Ok(best.max(1e-9))
}

/// Row-major C = A·B.
fn kernel(dtype: DType, m: usize, n: usize, k: usize) -> Kernel {
    let side = |name: &str, size: usize, a, b, c| {
        let extent = Extent { name: name.into(), size, global: size, axes: vec![] };
        vec![GemmLoop { extent, a, b, c }]
    };
    let flops = 2.0 * m as f64 * n as f64 * k as f64;
    let bytes = dtype.bytes() as f64 * (m * k + n * k + m * n) as f64;
    let (name, m, n, k) = (format!("{m}·{n}·{k}"), side("m", m, k, 0, n), side("n", n, 0, 1, 1), side("k", k, 1, n, 0));
    let product = Product { a: 0, b: 1, c: 2, init: Init::Zero, batch: vec![], m, n, k, dtype };
    let body = KernelBody::Gemm(GemmKernel::single(product));
    Kernel { name, operands: 2, results: 1, flops, bytes, body }
}

/// Bytes/s of a copy, read plus write.
fn copy() -> f64 {
    let from = vec![1u64; COPY / 8];
    let mut to = vec![0u64; COPY / 8];
    let mut best = f64::INFINITY;
    for _ in 0..RUNS {
        let start = Instant::now();
        to.copy_from_slice(&from);
        std::hint::black_box(&mut to);
        best = best.min(start.elapsed().as_secs_f64());
    }
    2.0 * COPY as f64 / best.max(1e-9)
}

//! `gpu-check`: packs the checks of a machine with a GPU, and runs them there. `scripts/gpu-check` is
//! how to call it; the checks are in the library.

use autoshard::cuda::check::pack::{counts, pack, Counts, Done, Options};
use autoshard::cuda::check::run::{run, stage, summary, Ran};
use autoshard::cuda::check::CheckError;
use autoshard_codegen::nvrtc::{Cache, Nvrtc, Target};
use clap::{Parser, Subcommand};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

/// Checks of CUDA kernels on a machine with a GPU.
#[derive(Debug, Parser)]
#[command(version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Compile everything into a folder; needs NVRTC and no GPU
    Pack {
        /// Folder to fill
        dir: PathBuf,
        /// Folder of models with recorded numbers
        #[arg(long)]
        goldens: PathBuf,
        /// Configuration of the model whose kernels are measured
        #[arg(long)]
        large: Option<PathBuf>,
        /// Folder of NVRTC
        #[arg(long)]
        nvrtc: Option<PathBuf>,
        /// Folder of images that were compiled before
        #[arg(long)]
        cache: Option<PathBuf>,
        /// Only these models
        #[arg(long)]
        only: Vec<String>,
    },
    /// Run everything in a packed folder; needs a GPU and no compiler
    Run {
        /// Packed folder
        dir: PathBuf,
        /// Report to write
        out: PathBuf,
    },
    /// Run one stage; `run` calls this
    #[command(hide = true)]
    Stage {
        /// Name
        name: String,
        /// Packed folder
        dir: PathBuf,
        /// File to add lines to
        lines: PathBuf,
        /// First check
        #[arg(long, default_value_t = 0)]
        from: usize,
    },
}

/// Packs; prints what and how long.
fn packed(dir: PathBuf, nvrtc: Option<PathBuf>, options: Options) -> Result<bool, CheckError> {
    let begin = Instant::now();
    let nvrtc = Nvrtc::find(nvrtc.as_deref())?;
    let Done { manifest, over_budget } = pack(&dir, &nvrtc, &options)?;
    over_budget.iter().for_each(|o| println!("over budget: {o}"));
    let Counts { primitives, kernels, large, skipped } = counts(&dir, &manifest)?;
    skipped.iter().for_each(|s| println!("will be skipped: {s}"));
    let images: usize = manifest.images.values().map(|t| t.len()).sum();
    println!(
        "packed {images} images of {} texts for {}, {:.1} MiB, by NVRTC {} in {:.0} s: {primitives} checks of primitives, {kernels} of kernels, {large} of speed",
        manifest.images.len(),
        manifest.targets.join(", "),
        manifest.bytes() as f64 / (1u64 << 20) as f64,
        manifest.nvrtc,
        begin.elapsed().as_secs_f64()
    );
    Ok(true)
}

fn ran(dir: PathBuf, out: PathBuf) -> Result<bool, CheckError> {
    let program = std::env::current_exe().map_err(|source| CheckError::Io { path: "this program".into(), source })?;
    match run(&dir, &out, &program)? {
        Ran::Skipped(reason) => {
            println!("skipped: {reason}");
            Ok(true)
        }
        Ran::Done(report) => {
            print!("{}", summary(&report));
            Ok(report.fine())
        }
    }
}

fn main() -> ExitCode {
    let done = match Cli::parse().command {
        Command::Pack { dir, goldens, large, nvrtc, cache, only } => {
            let threads = std::thread::available_parallelism().map_or(1, |n| n.get());
            let (targets, cache) = (Target::CUBINS.to_vec(), cache.map(Cache::new));
            packed(dir, nvrtc, Options { goldens, only, large, targets, threads, cache })
        }
        Command::Run { dir, out } => ran(dir, out),
        Command::Stage { name, dir, lines, from } => stage(&name, &dir, &lines, from).map(|()| true),
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(e) => {
            eprintln!("error: {e}");
            ExitCode::FAILURE
        }
    }
}

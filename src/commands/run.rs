//! `autoshard run`: trains on the ranks of this machine.

use super::args::{size, Build};
use super::job::{self, Job};
use super::progress::Progress;
use super::{output, print, say, Failure};
use autoshard::artifact;
use autoshard::compile::Meta;
use autoshard::data::Dataset;
use autoshard::hardware::Preset;
use autoshard::ir::DType;
use autoshard::report::{self, Summary};
use autoshard::runtime::Options;
use autoshard::train::{Step, Trainer};
use autoshard::weights::{Checkpoint, Weights};
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Train a model, or an executable file, on CPU ranks
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  autoshard run examples/tiny-llama --devices 8\n  autoshard run examples/tiny-llama --mesh dp=2,tp=4 --steps 20 --json\n  autoshard run tiny.asx"
)]
pub struct Args {
    /// An .asx file, or a model: a Hugging Face config.json, a folder holding one, a .shard file
    #[arg(value_name = "out.asx|M")]
    model: PathBuf,
    #[command(flatten)]
    build: Build,
    /// Number of steps [default: M's run.json, else 200]
    #[arg(long, value_name = "K", value_parser = size, allow_negative_numbers = true)]
    steps: Option<usize>,
    /// Seed of the init rule and of golden data
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
    /// A text file (a byte is a token), a file of little-endian token ids (NAME.u16.bin or NAME.u32.bin; a
    /// plain NAME.bin is u16), or `golden` for synthetic tokens [default: train.txt in M's folder, else golden]
    #[arg(long, value_name = "FILE|golden")]
    data: Option<PathBuf>,
    /// Train on the first batch at every step
    #[arg(long)]
    fixed_batch: bool,
    /// Write the weights after the last step, and the configuration, into this folder; the optimizer's
    /// moments are not saved
    #[arg(long, value_name = "DIR")]
    save: Option<PathBuf>,
    /// Write the first step's gradients, whole, under the checkpoint's names
    #[arg(long, value_name = "OUT.safetensors")]
    grads: Option<PathBuf>,
    /// Print a JSON line per step and a summary; everything else goes to stderr
    #[arg(long)]
    json: bool,
    /// Let data ranks train on the same tokens
    #[arg(long)]
    allow_duplicate_data: bool,
    /// Compute threads that all ranks share; 0 is one per core
    #[arg(long, value_name = "N", default_value_t = 0)]
    threads: usize,
    /// Longest wait of a rank for the others, seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    timeout: u64,
}

impl Args {
    /// Header and plan: results for a reader, diagnostics beside JSON.
    fn tell(&self, text: &str) -> Result<(), Failure> {
        if self.json {
            say(text);
            return Ok(());
        }
        print(text)
    }
}

/// Compiles or reads, trains, reports.
pub fn run(args: &Args) -> Result<(), Failure> {
    let start = Instant::now();
    let job = match artifact::is_artifact(&args.model) {
        true => job::from_artifact(&args.model, &args.build, args.data.is_some())?,
        false => job::from_model(&args.model, &args.build)?,
    };
    let mut summary = Summary { compile_seconds: start.elapsed().as_secs_f64(), ..Summary::default() };
    let steps = args.steps.map_or(job.steps, |n| (n, "--steps"));
    let (data, why_data) = data(args, &job)?;
    let _folder = outputs(args, &job)?;
    args.tell(&job.title)?;
    args.tell(&job.settings_text(&run_settings(args, &job, steps, why_data)))?;
    args.tell(&format!("{}\n", data.report()))?;
    args.tell(&job.choice)?;
    args.tell(&report::plan(&job.plan, &job.executable.program))?;
    say(&job.unused_weights()?);
    let entropy = data.unigram_entropy();
    let meta = job.executable.meta.clone();
    let mut trainer = trainer(args, job, data)?;
    let last = train(args, &mut trainer, steps.0, &mut summary)?;
    if let Some(folder) = &args.save {
        trainer.save(folder)?;
        args.tell(&format!("saved weights to {} (the optimizer's moments are not saved)\n", folder.display()))?;
    }
    if args.json {
        summary.params_after = trainer.norms()?;
        return print(&format!("{}\n", report::summary_line(&summary)));
    }
    print(&result(&meta, &summary, entropy, trainer.memory(), last.as_ref())?)
}

/// Checks what the run will write, before it.
fn outputs(args: &Args, job: &Job) -> Result<Option<output::SaveFolder>, Failure> {
    let folder = args.save.as_deref().map(output::save).transpose()?;
    let weights = [("--save", args.save.as_deref()), ("this run", job.weights.as_deref())];
    let weights: Vec<_> = weights.into_iter().filter_map(|(what, path)| Some((what, path?))).collect();
    args.grads.as_deref().map(|path| output::grads(path, &weights)).transpose()?;
    Ok(folder)
}

fn trainer(args: &Args, job: Job, data: Dataset) -> Result<Trainer, Failure> {
    let weights = match &job.weights {
        Some(folder) => Weights::Files(Checkpoint::open(folder)?),
        None => Weights::Init { seed: args.seed },
    };
    let options = Options {
        threads: args.threads,
        timeout: Duration::from_secs(args.timeout),
        allow_duplicate_data: args.allow_duplicate_data,
    };
    let mut trainer = Trainer::new(Arc::new(job.executable), &weights, data, &Preset::this_machine()?, options)?;
    if args.json {
        trainer.keep_start()?;
    }
    Ok(trainer)
}

/// The data of the run, and why these.
fn data(args: &Args, job: &Job) -> Result<(Dataset, &'static str), Failure> {
    let m = &job.executable.meta;
    let golden = || Dataset::golden(args.seed, m.vocab, m.seq_len, m.batch, args.fixed_batch);
    let open = |path: &Path| Dataset::open(path, m.vocab, m.seq_len, m.batch, args.fixed_batch);
    match (&args.data, &job.data) {
        (Some(p), _) if p.as_os_str() == "golden" => Ok((golden()?, "--data")),
        (Some(p), _) => Ok((open(p)?, "--data")),
        (None, Some(p)) => Ok((open(p)?, "beside the model")),
        (None, None) => Ok((golden()?, "default")),
    }
}

fn run_settings(args: &Args, job: &Job, steps: (usize, &str), why_data: &str) -> Vec<(&'static str, String, String)> {
    let weights = match (&job.weights, &args.build.weights) {
        (Some(folder), given) => {
            let why = if given.is_some() { "--weights" } else { "beside the model" };
            (folder.display().to_string(), why.to_string())
        }
        (None, _) => ("init rule".to_string(), format!("seed {}", args.seed)),
    };
    let data = match (&args.data, &job.data) {
        (Some(p), _) | (None, Some(p)) => p.display().to_string(),
        (None, None) => "golden".to_string(),
    };
    let fixed = if args.fixed_batch { ", the first batch at every step" } else { "" };
    vec![
        ("steps", steps.0.to_string(), steps.1.to_string()),
        ("seed", args.seed.to_string(), "--seed, or 0".to_string()),
        ("weights", weights.0, weights.1),
        ("data", data, format!("{why_data}{fixed}")),
    ]
}

/// All steps; the last one is returned.
fn train(args: &Args, trainer: &mut Trainer, steps: usize, summary: &mut Summary) -> Result<Option<Step>, Failure> {
    let progress = Progress::new(steps);
    let mut last = None;
    for n in 0..steps {
        let step = trainer.step()?;
        if !step.loss.is_finite() {
            progress.finish();
            return Err(Failure::Failed(format!(
                "step {n}: the loss is {}; the run stops here and saves nothing: a smaller --lr, or weights and data without such values, may help",
                step.loss
            )));
        }
        if let (0, Some(path)) = (n, &args.grads) {
            trainer.write_gradients(path)?;
        }
        summary.add(&step);
        progress.step(&step);
        if args.json {
            print(&format!("{}\n", report::step_line(&step)))?;
        }
        last = Some(step);
    }
    progress.finish();
    Ok(last)
}

/// The figures of a finished run.
fn result(
    meta: &Meta,
    s: &Summary,
    entropy: Option<f64>,
    memory: usize,
    last: Option<&Step>,
) -> Result<String, Failure> {
    let (first, end) = (s.losses.first().copied().unwrap_or(f64::NAN), s.last_losses());
    // A first loss of 0 has no multiples.
    let ratio = if first == 0.0 { String::new() } else { format!(": {:.2} of the first", end / first) };
    let count = s.losses.len().min(10);
    let mut out =
        format!("result:\n  loss       {first:.4} at first, {end:.4} as the mean of the last {count}{ratio}\n");
    if let Some(h) = entropy {
        let side = if end < h { "below" } else { "not below" };
        let _ = writeln!(out, "  entropy    {h:.4} nats, of single bytes of the text; the last losses are {side} it");
    }
    let median = s.median_step();
    let peak =
        DType::from_name(&meta.precision).map_or(f64::NAN, |d| Preset::this_machine().map_or(f64::NAN, |p| p.peak(d)));
    let _ = writeln!(
        out,
        "  speed      {} a step (median), {} tokens/s, MFU {:.2} % of {:.0} GFLOP/s",
        report::seconds(median),
        report::grouped((meta.batch * meta.seq_len) as f64 / median),
        meta.flops / median / peak * 100.0,
        peak / 1e9
    );
    let _ = writeln!(
        out,
        "  memory     {} per rank, {:.0} MiB at most in the process",
        report::bytes(memory as f64),
        report::peak_memory_mib()
    );
    if let Some(counts) = last.and_then(|l| l.report.ranks.first()).map(|r| &r.counts) {
        for (axes, payload) in &counts.payload {
            let wire = counts.wire.get(axes).copied().unwrap_or(0);
            let (p, w) = (report::bytes(*payload as f64), report::bytes(wire as f64));
            let _ = writeln!(out, "  bytes      {axes}: {p} payload, {w} wire a step (rank 0)");
        }
    }
    Ok(out)
}

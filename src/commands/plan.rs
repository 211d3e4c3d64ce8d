//! `autoshard plan`: what a training step takes on a machine that need not be here.

use super::validate::failure;
use super::{print, say, suggestion, Failure};
use autoshard::predict::settings::{settle, Job};
use autoshard::predict::{backend_with, fix, Backend, Order, Precision, Request};
use autoshard::report;
use autoshard::report::prediction::{json, text, Planned};
use autoshard::report::stages::Room;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Predict the time of a training step under a layout
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example:\n  autoshard plan --model llama-70b/ --cluster dgx-h100 --devices 64 --seq-len 8192 --global-batch 128 \\\n    --fix tp=8,mbs=1,zero=1 --tokens 15T"
)]
pub struct Args {
    /// A Hugging Face config.json, or a folder holding one
    #[arg(long, value_name = "M")]
    model: PathBuf,
    /// A machine: a preset's name, this-machine, or a JSON file
    #[arg(long, value_name = "C")]
    cluster: String,
    /// Devices to use
    #[arg(long, value_name = "N", value_parser = super::args::size, allow_negative_numbers = true)]
    devices: usize,
    /// Tokens of a sequence [default: min(4096, max_position_embeddings)]
    #[arg(long, value_name = "S", value_parser = super::args::size, allow_negative_numbers = true)]
    seq_len: Option<usize>,
    /// Sequences of a step over all data ranks [default: one per data rank and micro-batch]
    #[arg(long, value_name = "B", value_parser = super::args::size, allow_negative_numbers = true)]
    global_batch: Option<usize>,
    /// Number format of products: f32, f16, bf16, fp8, mxfp8 or nvfp4 [default: bf16, f32 on this-machine]
    #[arg(long, value_name = "P")]
    precision: Option<String>,
    /// The framework [default: megatron-core-2025, autoshard on this-machine]
    #[arg(long, value_name = "NAME")]
    stack: Option<String>,
    /// Decisions, any subset: tp, cp, pp, ep, dp, vpp, mbs, microbatches, zero, shard_group, keep, etp, sp,
    /// cp_method, schedule, recompute; what is left out takes a default that is printed
    #[arg(long, value_name = "KEY=VALUE,…")]
    fix: Option<String>,
    /// Tokens to train on, as in 15T or 300B: prints days and cost
    #[arg(long, value_name = "N", value_parser = tokens, allow_negative_numbers = true)]
    tokens: Option<f64>,
    /// Memory of a device that may be used, GiB [default: what the device has]
    #[arg(long, value_name = "GiB", value_parser = limit, allow_negative_numbers = true)]
    memory_limit: Option<f64>,
    /// Share of the predicted memory that has to fit beside it [default: 8%]
    #[arg(long, value_name = "SHARE", value_parser = margin, allow_negative_numbers = true)]
    memory_margin: Option<f64>,
    /// What to make small: step-time [default: step-time]
    #[arg(long, value_name = "WHAT")]
    objective: Option<String>,
    /// How many plans to tell: 1
    #[arg(long, value_name = "K", value_parser = super::args::size, allow_negative_numbers = true)]
    top: Option<usize>,
    /// Try several values of a flag (not yet)
    #[arg(long, value_name = "devices=8..16384")]
    sweep: Option<String>,
    /// Check every plan (not yet)
    #[arg(long)]
    exhaustive: bool,
    /// Write the simulated step's timeline, for Chrome's about:tracing or Perfetto
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Write the framework's own flags: megatron, torchtitan, deepspeed, maxtext (not yet)
    #[arg(long, value_name = "FRAMEWORK")]
    emit: Option<String>,
    /// Your own measurements in place of the tables that ship: CSV files of products, attention or collectives
    /// (columns as in data/kernels), or what nccl-tests printed
    #[arg(long, value_name = "FILE")]
    tables: Vec<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Write the plan to a file (not yet)
    #[arg(short, value_name = "plan.json")]
    output: Option<PathBuf>,
}

/// Predicts one layout.
pub fn plan(args: &Args) -> Result<(), Failure> {
    plan_with(args, &backend_with(&args.tables).map_err(failure)?)
}

fn plan_with(args: &Args, backend: &dyn Backend) -> Result<(), Failure> {
    let started = Instant::now();
    let fixed = decisions(args)?;
    let cpu = args.cluster == "this-machine";
    let precision = precision(args.precision.as_deref(), cpu)?;
    let stack_name = args.stack.as_deref().unwrap_or(if cpu { "autoshard" } else { "megatron-core-2025" });
    let facts = backend.model(&args.model).map_err(failure)?;
    let stack = backend.stack(stack_name).map_err(failure)?;
    let job = Job {
        facts: &facts,
        devices: args.devices as u64,
        seq_len: args.seq_len.map(|n| n as u64),
        global_batch: args.global_batch.map(|n| n as u64),
        stack: stack_name,
        order: Order::of(stack.habits.stages_inside),
    };
    let settings = settle(&fixed, &job).map_err(|e| Failure::Usage(format!("--fix: {e}")))?;
    let cluster = backend.cluster(&args.cluster).map_err(failure)?;
    let devices = args.devices as u64;
    if let Some(most) = cluster.devices.filter(|most| devices > *most) {
        say(&format!("note: {} has {most} devices; its last tier is repeated for {devices}\n", cluster.id));
    }
    let request = Request {
        model: &args.model,
        facts: &facts,
        cluster: &cluster,
        devices,
        seq_len: settings.seq_len,
        precision,
        stack: &stack,
        layout: &settings.layout,
    };
    let prediction = backend.predict(&request).map_err(failure)?;
    if let Some(file) = &args.trace {
        trace(file, backend, &request)?;
    }
    let planned = Planned {
        facts: &facts,
        cluster: &cluster,
        devices,
        precision,
        stack: &stack.name,
        settings: &settings,
        prediction: &prediction,
        room: Room::new(&cluster.device, args.memory_limit, args.memory_margin),
        tokens: args.tokens,
        seconds: started.elapsed().as_secs_f64(),
    };
    match args.json {
        true => print(&format!("{}\n", json(&planned))),
        false => print(&text(&planned)),
    }
}

/// The decisions of `--fix`; what would need a search is refused.
fn decisions(args: &Args) -> Result<fix::Fix, Failure> {
    let later = |what: String, instead: &str| Err(Failure::Failed(format!("{what}: not there yet; {instead}")));
    if let Some(sweep) = &args.sweep {
        return later(format!("--sweep {sweep}"), "call plan once for each value");
    }
    if args.exhaustive {
        return later("--exhaustive".into(), "it checks a search; leave it out and name a layout by --fix");
    }
    if let Some(framework) = &args.emit {
        let known = ["megatron", "torchtitan", "deepspeed", "maxtext"];
        if !known.contains(&framework.as_str()) {
            let near = suggestion(framework, known);
            return Err(Failure::Usage(format!("unknown --emit {framework}; known: {}{near}", known.join(", "))));
        }
        return later(format!("--emit {framework}"), "set the framework's flags from the printed settings");
    }
    if let Some(file) = &args.output {
        return later(format!("-o {}", file.display()), "use --json and send stdout to the file");
    }
    if args.top.is_some_and(|k| k > 1) {
        return later("--top above 1".into(), "alternatives need a search; leave it out");
    }
    match args.objective.as_deref() {
        None | Some("step-time") => {}
        Some(what @ ("goodput" | "cost")) => {
            return later(format!("--objective {what}"), "one layout is predicted, and none is chosen; leave it out")
        }
        Some(what) => {
            let near = suggestion(what, ["step-time", "goodput", "cost"]);
            return Err(Failure::Usage(format!("unknown --objective {what}; known: step-time, goodput, cost{near}")));
        }
    }
    let Some(text) = &args.fix else {
        return later("searching for a layout".into(), "name one by --fix, as in --fix tp=8,pp=1");
    };
    fix::parse(text).map_err(|e| match e.is_later() {
        true => Failure::Failed(format!("--fix: {e}")),
        false => Failure::Usage(format!("--fix: {e}")),
    })
}

/// Writes the timeline of a step.
fn trace(file: &Path, backend: &dyn Backend, request: &Request) -> Result<(), Failure> {
    let events = backend.trace(request).map_err(failure)?;
    let text = format!("{}\n", report::trace::json(&events));
    let wrong = |e| Failure::Failed(format!("--trace {}: cannot write: {e}", file.display()));
    std::fs::write(file, text).map_err(wrong)
}

fn precision(text: Option<&str>, cpu: bool) -> Result<Precision, Failure> {
    let Some(text) = text else {
        return Ok(if cpu { Precision::F32 } else { Precision::Bf16 });
    };
    Precision::from_name(text).ok_or_else(|| {
        let names = || Precision::ALL.iter().map(|p| p.name());
        let known = names().collect::<Vec<_>>().join(", ");
        Failure::Usage(format!("unknown --precision {text}; known: {known}{}", suggestion(text, names())))
    })
}

/// A number of tokens with K, M, B or T.
fn tokens(text: &str) -> Result<f64, String> {
    let (number, unit) = match text.char_indices().last() {
        Some((at, 'K' | 'k')) => (&text[..at], 1e3),
        Some((at, 'M')) => (&text[..at], 1e6),
        Some((at, 'B' | 'G')) => (&text[..at], 1e9),
        Some((at, 'T')) => (&text[..at], 1e12),
        _ => (text, 1.0),
    };
    let n = number.parse::<f64>().ok().map(|n| n * unit).filter(|n| n.is_finite() && *n > 0.0);
    n.ok_or_else(|| "it must be a number above 0, as in 15T, 300B or 2e12".to_string())
}

fn limit(text: &str) -> Result<f64, String> {
    let gib = text.parse::<f64>().ok().filter(|x| x.is_finite() && *x > 0.0);
    gib.ok_or_else(|| "it must be a number of GiB above 0, as in 74.5".to_string())
}

/// A share: `8%` or `0.08`.
fn margin(text: &str) -> Result<f64, String> {
    let share = match text.strip_suffix('%') {
        Some(percent) => percent.trim().parse::<f64>().ok().map(|p| p / 100.0),
        None => text.parse::<f64>().ok(),
    };
    share.filter(|s| (0.0..1.0).contains(s)).ok_or_else(|| "it must be a share from 0% to below 100%, as in 8%".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn budgets_limits_and_margins_have_units() {
        assert_eq!((tokens("15T"), tokens("2.5B"), tokens("300")), (Ok(15e12), Ok(2.5e9), Ok(300.0)));
        assert!(["", "T", "-1T", "0", "nan", "1X", "é"].iter().all(|t| tokens(t).is_err()));
        assert_eq!((margin("8%"), margin("0.08"), limit("74.5")), (Ok(0.08), Ok(0.08), Ok(74.5)));
        assert!(["100%", "-1%", "x", "1.5"].iter().all(|t| margin(t).is_err()));
        assert!(["0", "-3", "inf", "nan", ""].iter().all(|t| limit(t).is_err()));
    }
}

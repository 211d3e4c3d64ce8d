//! `autoshard plan`: how to spread a training step over a machine that need not be here, and what it takes.

mod answer;
mod question;
mod sweep;
mod values;
mod write;

use super::progress::Spinner;
use super::validate::failure;
use super::{output, print, say, Failure};
use answer::{answer, nothing_fits, Answer, Chosen};
use autoshard::planfile::{execution, Bound};
use autoshard::predict::backend_with;
use autoshard::predict::wired::Wired;
use autoshard::report::prediction::text;
use autoshard::report::search::{self as report, infeasible_json, Searched};
use autoshard::search::Rejected;
use question::Question;
use serde_json::{json, Value};
use std::path::PathBuf;

/// Shares of the memory that `--pareto` plans within, beside all of it.
const SHARES: [f64; 4] = [0.75, 0.5, 0.35, 0.25];
/// What `--rejected` tells where it has nothing to tell.
const NOTHING_REJECTED: &str = "no value that one would try is rejected: each is one of some layout\n";
/// Bytes of a GiB.
const GIB: f64 = (1u64 << 30) as f64;

/// Find the fastest layout of a training step, or predict one
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  autoshard plan --model llama-70b/ --cluster dgx-h100 --devices 64 --seq-len 8192 --global-batch 128 -o plan.json\n  autoshard plan --model llama-70b/ --cluster dgx-h100 --devices 64 --fix tp=8,zero=1 --emit megatron\n  autoshard plan --model llama-8b/ --cluster dgx-h100 --sweep devices=8..1024"
)]
pub struct Args {
    /// A Hugging Face config.json, or a folder holding one
    #[arg(long, value_name = "M")]
    model: PathBuf,
    /// A machine: a preset's name, this-machine, or a JSON file
    #[arg(long, value_name = "C")]
    cluster: String,
    /// Devices that may be used
    #[arg(long, value_name = "N", value_parser = super::args::size, allow_negative_numbers = true)]
    devices: Option<usize>,
    /// Tokens of a sequence [default: min(4096, max_position_embeddings)]
    #[arg(long, value_name = "S", value_parser = super::args::size, allow_negative_numbers = true)]
    seq_len: Option<usize>,
    /// Sequences of a step over all data ranks [default: one for each device; of a layout that is wholly
    /// fixed one for each data rank and micro-batch]
    #[arg(long, value_name = "B", value_parser = super::args::size, allow_negative_numbers = true)]
    global_batch: Option<usize>,
    /// Number format of products: f32, f16, bf16, fp8, mxfp8 or nvfp4 [default: bf16, f32 on this-machine]
    #[arg(long, value_name = "P")]
    precision: Option<String>,
    /// The framework [default: megatron-core-2025, autoshard on this-machine]
    #[arg(long, value_name = "NAME")]
    stack: Option<String>,
    /// Decisions, any subset: tp, cp, pp, ep, dp, vpp, mbs, microbatches, zero, shard_group, keep, etp, sp,
    /// cp_method, schedule, recompute, layout; what is left out is searched
    #[arg(long, value_name = "KEY=VALUE,…")]
    fix: Option<String>,
    /// Tokens to train on, as in 15T or 300B: prints days and cost
    #[arg(long, value_name = "N", value_parser = values::tokens, allow_negative_numbers = true)]
    tokens: Option<f64>,
    /// Memory of a device that may be used, GiB [default: what the device has]
    #[arg(long, value_name = "GiB", value_parser = values::limit, allow_negative_numbers = true)]
    memory_limit: Option<f64>,
    /// Share of the predicted memory that has to fit beside it [default: 8%]
    #[arg(long, value_name = "SHARE", value_parser = values::margin, allow_negative_numbers = true)]
    memory_margin: Option<f64>,
    /// What to make small: step-time, goodput (time over what failures leave) or cost (device-seconds)
    /// [default: step-time]
    #[arg(long, value_name = "WHAT")]
    objective: Option<String>,
    /// How many plans to tell, best first [default: 1]
    #[arg(long, value_name = "K", value_parser = super::args::size, allow_negative_numbers = true)]
    top: Option<usize>,
    /// Plan for several devices, seq or batch and print a table: ranges double, lists are as written, several keys
    /// with ; between them make a grid
    #[arg(long, value_name = "devices=8..16384")]
    sweep: Option<String>,
    /// Bound every plan by itself, none by a bound of many: finds the same plan, and is there to check that
    #[arg(long)]
    exhaustive: bool,
    /// Tell values that no layout can have, with the rule that they break
    #[arg(long)]
    rejected: bool,
    /// Plan again within 75, 50, 35 and 25 % of the memory: time against memory (a plan that was told is not told again)
    #[arg(long)]
    pareto: bool,
    /// Write the simulated step's timeline, for Chrome's about:tracing or Perfetto
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Write launch files of a framework: megatron, torchtitan, deepspeed or maxtext
    #[arg(long, value_name = "FRAMEWORK")]
    emit: Option<String>,
    /// The folder of the launch files [default: launch-FRAMEWORK]
    #[arg(long, value_name = "DIR", requires = "emit")]
    emit_dir: Option<PathBuf>,
    /// Your own measurements in place of the tables that ship: CSV files of products, attention or collectives
    /// (columns as in data/kernels), or what nccl-tests printed
    #[arg(long, value_name = "FILE")]
    tables: Vec<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Write the plan to a file, which why, diff, compile and run read
    #[arg(short, value_name = "plan.json")]
    output: Option<PathBuf>,
}

/// Plans.
pub fn plan(args: &Args) -> Result<(), Failure> {
    let lists = match &args.sweep {
        Some(text) => sweep::parse(text).map_err(|e| Failure::Usage(format!("--sweep {text}: {e}")))?,
        None => Vec::new(),
    };
    let devices = devices(args, &lists)?;
    let framework = args.emit.as_deref().map(values::framework).transpose()?;
    args.output.as_deref().map_or(Ok(()), output::plan)?;
    let backend = backend_with(&args.tables).map_err(failure)?;
    let question = Question::read(args, devices, &backend)?;
    if args.sweep.is_some() {
        one_plan_only(args)?;
        return sweep::sweep(args, &lists, &question, &backend);
    }
    let most = question.cluster.devices.filter(|most| devices > *most);
    if let Some(most) = most {
        say(&format!("note: {} has {most} devices; its last tier is repeated for {devices}\n", question.cluster.id));
    }
    let (device, format) = (&question.cluster.device, question.precision.format());
    if device.peak_of(format).is_none() {
        say(&format!(
            "note: {} has no rate of {format} products: they are timed by a format that it has, and MFU is unknown\n",
            device.id
        ));
    }
    let spinner = Spinner::new(&format!("planning for {devices} devices"));
    let (plans, searched) = match answer(&question, &backend)? {
        Answer::Found(plans, searched) => (plans, searched),
        Answer::Nothing(n) => {
            drop(spinner);
            if args.json {
                let why = infeasible_json(&n.reason, n.smallest_memory, n.fewest_devices);
                print(&format!("{}\n", json!({ "infeasible": why })))?;
            }
            return Err(Failure::Failed(nothing_fits(&question, &n)));
        }
    };
    let smaller = if args.pareto { pareto(&question, &backend)? } else { Vec::new() };
    drop(spinner);
    let Some((best, others)) = plans.split_first() else {
        return Err(Failure::Failed("an answer without a plan".into()));
    };
    if let Some(file) = &args.trace {
        write::trace(file, &question, best, &backend)?;
    }
    if let Some(file) = &args.output {
        write::plan(file, best)?;
    }
    let emit = |f| write::launch(f, args.emit_dir.as_deref(), &question, best);
    let written = framework.map(emit).transpose()?;
    let told = Told { args, question: &question, best, others, searched: &searched, smaller, written };
    print(&if args.json { told.json() } else { told.text() })
}

/// Devices of the question, or of a sweep's first point.
fn devices(args: &Args, lists: &[(sweep::Key, Vec<u64>)]) -> Result<u64, Failure> {
    let swept = lists.iter().find(|(key, _)| *key == sweep::Key::Devices).and_then(|(_, v)| v.first().copied());
    let usage = |what: &str| Err(Failure::Usage(what.to_string()));
    let flags = lists.iter().map(|(key, _)| match key {
        sweep::Key::Devices => ("--devices", args.devices.is_some()),
        sweep::Key::SeqLen => ("--seq-len", args.seq_len.is_some()),
        sweep::Key::Batch => ("--global-batch", args.global_batch.is_some()),
    });
    if let Some((flag, _)) = flags.into_iter().find(|(_, given)| *given) {
        return usage(&format!("{flag} and --sweep both say it; leave one out"));
    }
    match (args.devices, swept) {
        (Some(n), _) => Ok(n as u64),
        (None, Some(n)) => Ok(n),
        (None, None) => usage("--devices is missing; say how many may be used, as in --devices 64"),
    }
}

/// Refuses what is about one plan beside a sweep.
fn one_plan_only(args: &Args) -> Result<(), Failure> {
    let flags = [
        ("-o", args.output.is_some()),
        ("--emit", args.emit.is_some()),
        ("--trace", args.trace.is_some()),
        ("--pareto", args.pareto),
        ("--rejected", args.rejected),
        ("--top", args.top.is_some()),
    ];
    match flags.into_iter().find(|(_, given)| *given) {
        Some((flag, _)) => Err(Failure::Usage(format!("{flag} is of one plan, and --sweep makes many; leave one out"))),
        None => Ok(()),
    }
}

/// The fastest plan within each of [`SHARES`] of the memory.
fn pareto(q: &Question, backend: &Wired) -> Result<Vec<(f64, Option<Chosen>)>, Failure> {
    let mut out = Vec::new();
    for share in SHARES {
        let bound = Bound { limit_gib: Some(share * q.room().bytes / GIB), ..q.bound };
        let smaller = Question { bound, top: 1, ..q.clone() };
        let found = match answer(&smaller, backend)? {
            Answer::Found(plans, _) => plans.into_iter().next(),
            Answer::Nothing(_) => None,
        };
        out.push((share, found));
    }
    Ok(out)
}

/// Everything that is told of an answer.
struct Told<'a> {
    args: &'a Args,
    question: &'a Question,
    best: &'a Chosen,
    others: &'a [Chosen],
    searched: &'a Searched,
    smaller: Vec<(f64, Option<Chosen>)>,
    written: Option<write::Written>,
}

impl Told<'_> {
    fn planned<'b>(&'b self, chosen: &'b Chosen) -> autoshard::report::prediction::Planned<'b> {
        chosen.planned(self.question, self.args.tokens)
    }

    fn rejected(&self) -> Vec<Rejected> {
        autoshard::search::rejected(&self.question.ask(&self.question.fix))
    }

    /// The best plan and those that need less memory, each once.
    fn points(&self) -> Vec<report::Point<'_>> {
        let mut out = vec![(1.0, Some(self.planned(self.best)))];
        let mut last = &self.best.plan;
        for (share, chosen) in &self.smaller {
            match chosen {
                Some(c) if c.plan.layout == last.layout && c.plan.layers_per_stage == last.layers_per_stage => {}
                Some(c) => {
                    last = &c.plan;
                    out.push((*share, Some(self.planned(c))));
                }
                None => out.push((*share, None)),
            }
        }
        out
    }

    fn json(&self) -> String {
        let others: Vec<_> = self.others.iter().map(|c| self.planned(c)).collect();
        let mut out = report::json(&self.planned(self.best), &others, self.searched);
        let mut add = |key: &str, value: Value| out.insert(key.to_string(), value);
        if self.args.pareto {
            add("pareto", report::pareto_json(&self.points()));
        }
        if self.args.rejected {
            let one = |r: Rejected| json!({"decision": r.decision, "values": r.values, "rule": r.rule});
            add("rejected", self.rejected().into_iter().map(one).collect());
        }
        if let Some(written) = &self.written {
            add("emitted", written.json());
        }
        format!("{}\n", Value::Object(out))
    }

    fn text(&self) -> String {
        let best = self.planned(self.best);
        let others: Vec<_> = self.others.iter().map(|c| self.planned(c)).collect();
        let mut out = text(&best) + &report::text(&best, self.searched) + &report::alternatives(&best, &others);
        if self.args.pareto {
            out += &report::pareto(&self.points());
        }
        if self.args.rejected {
            let rejected = self.rejected();
            out += if rejected.is_empty() { NOTHING_REJECTED } else { "values that no layout can have:\n" };
            for r in rejected {
                let values: Vec<String> = r.values.iter().map(u64::to_string).collect();
                out += &format!("  {}={}: {}\n", r.decision, values.join(","), r.rule);
            }
        }
        if self.best.stated.is_some() {
            out += &format!(
                "note: {} layers a stage are not the usual cut: -o plan.json keeps them, --fix has no key for them\n",
                report::sum_of(&self.best.plan.layers_per_stage)
            );
        }
        if let (true, Err(e)) = (self.question.is_run_here(), execution(&self.best.plan)) {
            out += &format!("note: compile and run do not take this plan: {e}\n");
        }
        out += &self.written.as_ref().map_or(String::new(), write::Written::text);
        if let Some(file) = &self.args.output {
            out += &format!("wrote {0}: `autoshard why {0}` tells what other decisions would cost\n", file.display());
        }
        out
    }
}

//! What `plan` is asked: arguments, read and checked, with the model and the machine they name.

use super::{values, Args};
use crate::commands::validate::failure;
use crate::commands::Failure;
use autoshard::cost::cluster::Cluster;
use autoshard::cost::stack::Stack;
use autoshard::planfile::{Bound, ModelRef};
use autoshard::predict::fix::{self, Fix};
use autoshard::predict::settings::Job;
use autoshard::predict::wired::{Named, Wired};
use autoshard::predict::{machine, Backend, ModelFacts, Order, Precision, Recompute, Schedule, THIS_MACHINE};
use autoshard::report::stages::Room;
use autoshard::search::{Ask, Objective};
use std::path::PathBuf;

/// The framework that this build runs.
const OWN_STACK: &str = "autoshard";

/// A question.
#[derive(Clone)]
pub struct Question {
    /// The model's file or folder, as it was given.
    pub model: PathBuf,
    /// The model.
    pub named: Named,
    /// The model, as plan files name it.
    pub reference: ModelRef,
    /// Its sizes.
    pub facts: ModelFacts,
    /// The machine, as it was given.
    pub cluster_name: String,
    /// The machine.
    pub cluster: Cluster,
    /// The framework.
    pub stack: Stack,
    /// Number format of products.
    pub precision: Precision,
    /// Devices that may be used.
    pub devices: u64,
    /// Positions of a sequence, if they were given.
    pub seq_len: Option<u64>,
    /// Sequences of a step, if they were given.
    pub global_batch: Option<u64>,
    /// Decisions of `--fix`.
    pub fix: Fix,
    /// Memory that may be used.
    pub bound: Bound,
    /// What is made small.
    pub objective: Objective,
    /// How many plans are wanted.
    pub top: usize,
    /// Whether every plan's bound is computed.
    pub exhaustive: bool,
}

impl Question {
    /// Reads what the arguments name. `devices` stands in for `--devices` where a sweep says them.
    ///
    /// # Errors
    /// Unknown names and values; a model that cannot be read.
    pub fn read(args: &Args, devices: u64, backend: &Wired) -> Result<Question, Failure> {
        let fix = followed(decisions(args.fix.as_deref())?);
        let objective = values::objective(args.objective.as_deref())?;
        let cpu = args.cluster == THIS_MACHINE;
        let precision = values::precision(args.precision.as_deref(), cpu)?;
        let stack_name = args.stack.as_deref().unwrap_or(if cpu { OWN_STACK } else { "megatron-core-2025" });
        let facts = backend.model(&args.model).map_err(failure)?;
        let stack = backend.stack(stack_name).map_err(failure)?;
        let cluster = machine(&args.cluster, devices).map_err(failure)?;
        Ok(Question {
            model: args.model.clone(),
            named: backend.file(&args.model).map_err(failure)?,
            reference: ModelRef::of(&args.model, &facts.name)?,
            facts,
            cluster_name: args.cluster.clone(),
            cluster,
            stack,
            precision,
            devices,
            seq_len: args.seq_len.map(|n| n as u64),
            global_batch: args.global_batch.map(|n| n as u64),
            fix,
            bound: Bound { limit_gib: args.memory_limit, margin: args.memory_margin },
            objective,
            top: args.top.unwrap_or(1),
            exhaustive: args.exhaustive,
        })
    }

    /// The same question for so many devices.
    ///
    /// # Errors
    /// As [`Question::read`].
    pub fn on(&self, devices: u64) -> Result<Question, Failure> {
        let cluster = machine(&self.cluster_name, devices).map_err(failure)?;
        Ok(Question { devices, cluster, ..self.clone() })
    }

    /// Positions of a sequence.
    pub fn positions(&self) -> u64 {
        self.seq_len.unwrap_or(self.facts.max_positions.unwrap_or(4096).min(4096))
    }

    /// Sequences of a step that a search is for: fixed before the mesh is chosen.
    pub fn batch(&self) -> u64 {
        self.global_batch.unwrap_or(self.devices)
    }

    /// Memory that a plan may take.
    pub fn room(&self) -> Room {
        Room::new(&self.cluster.device, self.bound.limit_gib, self.bound.margin)
    }

    /// How the framework lays ranks out.
    pub fn order(&self) -> Order {
        Order::of(self.stack.habits.stages_inside)
    }

    /// What a layout on so many devices is made for.
    pub fn job(&self, devices: u64, global_batch: Option<u64>) -> Job<'_> {
        Job {
            facts: &self.facts,
            devices,
            seq_len: self.seq_len,
            global_batch,
            stack: &self.stack.name,
            order: self.order(),
        }
    }

    /// Whether nothing is left to search. What `--fix` need not say (sp, keep, etp, the method of cp, the order of
    /// axes) takes its default then; dp follows from the other degrees.
    pub fn is_decided(&self) -> bool {
        let f = &self.fix;
        let (Some(tp), Some(_), Some(pp)) = (f.tp, f.cp, f.pp) else { return false };
        let data_ranks = self.devices / tp.saturating_mul(pp);
        let shared = match (f.zero, f.shard_group) {
            _ if data_ranks <= 1 => true,
            (Some(zero), group) => zero == 0 || group.is_some(),
            (None, group) => group == Some(1),
        };
        let ordered = match (f.schedule, f.vpp) {
            _ if pp == 1 => true,
            (Some(Schedule::Interleaved), vpp) => vpp.is_some(),
            (Some(_), _) => true,
            (None, vpp) => vpp.is_some_and(|v| v > 1),
        };
        let experts = self.facts.experts == 0 || f.ep.is_some();
        let batch = f.mbs.is_some() || f.microbatches.is_some();
        shared && ordered && experts && batch && f.recompute.is_some()
    }

    /// Whether plans are made for this computer's own ranks.
    pub fn is_run_here(&self) -> bool {
        self.cluster_name == THIS_MACHINE && self.stack.name == OWN_STACK
    }

    /// The spaces that are searched, by their decisions: one, or where plans are to be run here those that execution
    /// has so far: data ranks that share nothing, and those that share parameters too.
    pub fn spaces(&self) -> Vec<Fix> {
        match (self.is_run_here(), self.fix.zero) {
            (false, _) => vec![self.fix.clone()],
            (true, Some(zero)) => vec![executed(&self.fix, zero)],
            (true, None) => vec![executed(&self.fix, 0), executed(&self.fix, 3)],
        }
    }

    /// What the search is asked.
    pub fn ask<'a>(&'a self, fix: &'a Fix) -> Ask<'a> {
        Ask {
            key: &self.named.0,
            decoder: &self.named.1,
            facts: &self.facts,
            cluster: &self.cluster,
            stack: &self.stack,
            devices: self.devices,
            seq_len: self.positions(),
            global_batch: self.batch(),
            precision: self.precision,
            fix,
            room: self.room(),
            objective: self.objective,
            top: self.top,
            exhaustive: self.exhaustive,
        }
    }
}

/// The decisions with those that follow from them whatever else is decided.
fn followed(fix: Fix) -> Fix {
    let stages = match &fix.recompute {
        Some(Recompute::Stages(counts)) => Some(counts.len() as u64),
        _ => None,
    };
    // Only FSDP keeps gathered parameters.
    let zero = (fix.keep == Some(true)).then_some(3);
    Fix { pp: fix.pp.or(stages), zero: fix.zero.or(zero), ..fix }
}

/// The decisions with those that execution has, where they are open.
fn executed(fix: &Fix, zero: u8) -> Fix {
    let one = |x: Option<u64>| x.or(Some(1));
    Fix {
        cp: one(fix.cp),
        pp: one(fix.pp),
        ep: one(fix.ep),
        etp: one(fix.etp),
        vpp: one(fix.vpp),
        microbatches: one(fix.microbatches),
        zero: Some(zero),
        keep: fix.keep.or(Some(false)),
        recompute: fix.recompute.clone().or(Some(Recompute::None)),
        order: fix.order.or(Some(Order::STAGES_OUTSIDE)),
        ..fix.clone()
    }
}

/// The decisions of `--fix`.
fn decisions(text: Option<&str>) -> Result<Fix, Failure> {
    fix::parse(text.unwrap_or("")).map_err(|e| match e.is_later() {
        true => Failure::Failed(format!("--fix: {e}")),
        false => Failure::Usage(format!("--fix: {e}")),
    })
}

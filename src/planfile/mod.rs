//! `plan.json`: a plan as a file, for people and tools to keep.
//!
//! A plan file holds decisions and what they were made for, never costs: who reads it predicts again. It names
//! the model by its configuration and the SHA-256 of that file, so a plan of another model is noticed. Keys that
//! follow from others (`devices_used`, `layout`, `mesh`) are written for readers and checked when they are there.
//! The schema is `docs/plan.schema.json`.
//!
//! [`write()`] and [`read()`] are inverse; [`read()`] also takes what `plan --json` prints, whose `plan` is the same
//! object ([`value`]).

mod execute;
mod model;
mod read;

pub use execute::{execution, Execution, NotExecuted};
pub use model::{ModelError, ModelRef};
pub use read::{read, PlanFileError};

use crate::predict::axes::{to_axes, Degrees};
use crate::predict::fix::Fix;
use crate::predict::settings::{settle, Impossible, Job, Settings};
use crate::predict::{Layout, ModelFacts, Order, Precision, Role, Schedule};
use serde_json::{json, Value};

/// Version of the format that is written, and the only one that is read.
pub const VERSION: u64 = 1;

/// A plan: what was decided, and for what.
#[derive(Clone, Debug, PartialEq)]
pub struct PlanFile {
    /// The model.
    pub model: ModelRef,
    /// The machine: a preset's name, `this-machine`, or a JSON file.
    pub cluster: String,
    /// The framework.
    pub stack: String,
    /// Number format of products.
    pub precision: Precision,
    /// Positions of a sequence.
    pub seq_len: u64,
    /// Sequences of a step over all data ranks: dp·micro_batch·microbatches.
    pub global_batch: u64,
    /// Devices that were asked for; the layout may use fewer.
    pub devices: u64,
    /// Memory that the plan had to fit into.
    pub memory: Bound,
    /// How the step is spread.
    pub layout: Layout,
    /// Decoder layers of each pipeline stage.
    pub layers_per_stage: Vec<u64>,
}

/// Memory that a plan may use; what is `None` was left to the defaults of `plan`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Bound {
    /// GiB of a device.
    pub limit_gib: Option<f64>,
    /// Share (0–1) of the predicted memory that has to fit beside it.
    pub margin: Option<f64>,
}

/// The file's text: JSON, a key a line where that reads well.
pub fn write(plan: &PlanFile) -> String {
    // Values of our own making are always written.
    serde_json::to_string_pretty(&value(plan)).unwrap_or_default() + "\n"
}

/// The plan as a JSON object, as the file holds it and `plan --json` prints it under `plan`.
pub fn value(p: &PlanFile) -> Value {
    let l = &p.layout;
    json!({
        "version": VERSION,
        "model": {"file": p.model.file, "sha256": p.model.sha256, "name": p.model.name},
        "cluster": p.cluster, "stack": p.stack, "precision": p.precision.name(),
        "seq_len": p.seq_len, "global_batch": p.global_batch, "devices": p.devices,
        "memory": {"limit_gib": p.memory.limit_gib, "margin": p.memory.margin},
        "tp": l.tp, "cp": l.cp, "pp": l.pp, "ep": l.ep, "etp": l.etp, "dp": l.dp, "vpp": l.vpp,
        "zero": l.zero, "shard_group": l.shard_group, "keep": l.keep, "sp": l.sp,
        "cp_method": l.cp_method.name(), "micro_batch": l.micro_batch, "microbatches": l.microbatches,
        "recompute": l.recompute.to_string(), "schedule": l.schedule.name(),
        "order": l.order.map(|o| o.to_string()),
        "layers_per_stage": p.layers_per_stage,
        "devices_used": l.devices(), "layout": axis_names(l), "mesh": mesh(l)
    })
}

/// Names of the axes of more than one rank, innermost first, data ranks as the mesh splits them. A layout that
/// leaves the order to its stack is named in the usual order.
pub fn axis_names(l: &Layout) -> Vec<&'static str> {
    let mesh = to_axes(&degrees(l)).ok();
    let of = |role: &Role| match (role, &mesh) {
        (Role::Tp, _) => vec![("tp", l.tp)],
        (Role::Cp, _) => vec![("cp", l.cp)],
        (Role::Pp, _) => vec![("pp", l.pp)],
        (Role::Dp, Some(a)) => vec![("ep", a.ep), ("fsdp", a.fsdp), ("dp", a.dp)],
        (Role::Dp, None) => vec![("dp", l.dp)],
    };
    let axes = l.order.unwrap_or(Order::STAGES_OUTSIDE).0;
    axes.iter().flat_map(of).filter(|(_, n)| *n > 1).map(|(name, _)| name).collect()
}

/// The layout as `--mesh` takes it; `None` where axes cannot say it.
pub fn mesh(l: &Layout) -> Option<String> {
    to_axes(&degrees(l)).ok().map(|axes| axes.to_string())
}

fn degrees(l: &Layout) -> Degrees {
    Degrees { pp: l.pp, dp: l.dp, ep: l.ep, cp: l.cp, tp: l.tp, zero: l.zero, shard_group: l.shard_group }
}

/// Every decision of a layout, as `--fix` would give it.
pub fn decisions(l: &Layout) -> Fix {
    // A schedule in a V has its two chunks whether vpp says so or not.
    let v = matches!(l.schedule, Schedule::ZbV | Schedule::DualPipeV);
    Fix {
        tp: Some(l.tp),
        cp: Some(l.cp),
        pp: Some(l.pp),
        ep: Some(l.ep),
        dp: Some(l.dp),
        vpp: (!v).then_some(l.vpp),
        mbs: Some(l.micro_batch),
        microbatches: Some(l.microbatches),
        zero: Some(l.zero),
        shard_group: Some(l.shard_group),
        keep: Some(l.keep),
        etp: Some(l.etp),
        sp: Some(l.sp),
        cp_method: Some(l.cp_method),
        schedule: Some(l.schedule),
        recompute: Some(l.recompute.clone()),
        order: l.order,
    }
}

impl PlanFile {
    /// What its layout is made for, given the model and how the stack lays ranks out.
    pub fn job<'a>(&'a self, facts: &'a ModelFacts, order: Order) -> Job<'a> {
        Job {
            facts,
            devices: self.layout.devices(),
            seq_len: Some(self.seq_len),
            global_batch: Some(self.global_batch),
            stack: &self.stack,
            order,
        }
    }

    /// Holds the layout against the model by the rules of `--fix`.
    ///
    /// # Errors
    /// Decisions that cannot be, as [`settle`] tells them.
    pub fn settle(&self, facts: &ModelFacts, order: Order) -> Result<Settings, Impossible> {
        settle(&decisions(&self.layout), &self.job(facts, order))
    }
}

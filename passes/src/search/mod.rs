//! Search, in the breadth that execution has so far: the mesh over dp, fsdp and tp (with sequence
//! parallelism), chosen by the roofline of the partitioned step; strategies by roles.

mod roles;

pub use roles::{apply, assign, head_degrees, Degrees};

use crate::autodiff::{self, AdamW, AutodiffError};
use crate::cost::{self, Cost, Machine};
use crate::lower::LowerError;
use crate::partition::{self, PartitionError};
use autoshard_ir::core::Module;
use autoshard_ir::plan::Plan;

/// Why there is no plan.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum SearchError {
    /// The batch does not divide over the data axes.
    #[error("batch {batch} does not divide over dp·fsdp = {data} data ranks; it must be a multiple of {data}")]
    Batch {
        /// Sequences of a step.
        batch: usize,
        /// Data ranks.
        data: usize,
    },
    /// The tensor degree does not fit the heads.
    #[error("tp = {tp} does not fit attention with {heads} heads over {kv} key/value heads; tp can be {allowed}")]
    Heads {
        /// Wanted degree.
        tp: usize,
        /// Query heads.
        heads: usize,
        /// Key/value heads.
        kv: usize,
        /// Degrees that work.
        allowed: String,
    },
    /// No mesh of this many devices is legal.
    #[error("no mesh of {devices} devices fits batch {batch} and tp in {allowed}; tried {tried}")]
    NoMesh {
        /// Devices.
        devices: usize,
        /// Sequences of a step.
        batch: usize,
        /// Tensor degrees that fit the heads.
        allowed: String,
        /// Meshes tried.
        tried: usize,
    },
    /// A plan that names nodes or parameters which the module does not have.
    #[error("the plan does not fit the module: {0}")]
    Plan(String),
    /// The training step could not be made.
    #[error(transparent)]
    Autodiff(#[from] AutodiffError),
    /// A plan could not be partitioned.
    #[error(transparent)]
    Partition(#[from] PartitionError),
    /// A node has no kernel.
    #[error(transparent)]
    Lower(#[from] LowerError),
}

/// A mesh with its price.
#[derive(Clone, Debug)]
pub struct Candidate {
    /// Degrees.
    pub degrees: Degrees,
    /// Its plan.
    pub plan: Plan,
    /// Its cost.
    pub cost: Cost,
}

/// The local training module of `module` under `plan`.
pub fn localize(module: &Module, plan: &Plan, optimizer: &AdamW) -> Result<Module, SearchError> {
    let annotated = apply(module, plan)?;
    let training = crate::simplify::simplify(&autodiff::differentiate(&annotated, optimizer)?);
    Ok(partition::partition(&training)?)
}

/// Every legal mesh of `devices` ranks with its price, best first; equal prices keep the order of
/// enumeration (more data parallelism first).
pub fn search(module: &Module, devices: usize, machine: &Machine) -> Result<Vec<Candidate>, SearchError> {
    let mut out: Vec<Candidate> = Vec::new();
    let mut tried = 0;
    for degrees in meshes(devices) {
        tried += 1;
        let plan = match assign(module, &degrees) {
            Ok(plan) => plan,
            Err(SearchError::Batch { .. } | SearchError::Heads { .. }) => continue,
            Err(e) => return Err(e),
        };
        let local = localize(module, &plan, &AdamW::default())?;
        let cost = cost::price(&local, machine)?;
        out.push(Candidate { degrees, plan, cost });
    }
    if out.is_empty() {
        return Err(SearchError::NoMesh {
            devices,
            batch: roles::batch(module).unwrap_or(1),
            allowed: list(&head_degrees(module)),
            tried,
        });
    }
    out.sort_by(|a, b| a.cost.seconds().total_cmp(&b.cost.seconds()));
    Ok(out)
}

/// dp × fsdp × tp of `devices`, tp with and without sequence parallelism.
fn meshes(devices: usize) -> Vec<Degrees> {
    let divisors = |n: usize| (1..=n).filter(move |d| n.is_multiple_of(*d));
    let mut out = Vec::new();
    for tp in divisors(devices) {
        for fsdp in divisors(devices / tp) {
            let dp = devices / tp / fsdp;
            out.push(Degrees { dp, fsdp, tp, sequence_parallel: tp > 1 });
            if tp > 1 {
                out.push(Degrees { dp, fsdp, tp, sequence_parallel: false });
            }
        }
    }
    out
}

pub(crate) fn list(xs: &[usize]) -> String {
    xs.iter().map(usize::to_string).collect::<Vec<_>>().join(", ")
}

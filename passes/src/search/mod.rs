//! Search, in the breadth that execution has so far: the mesh over dp, fsdp and tp (with sequence
//! parallelism), chosen by the roofline of the partitioned step; strategies by roles.

pub mod inner;
mod roles;
mod sample;

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
    #[error("no mesh of {devices} devices fits: dp·fsdp must divide batch {batch} and tp be one of {allowed} (tried {tried}); give a larger --batch or fewer devices")]
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
        let cost = price(module, &degrees, machine)?;
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

/// Price of one rank's step. From the second on, layers of one kind cost the same (the first may need
/// no cotangent of its input): the price is affine in the number of calls of each function, so two calls
/// of each are priced, and for each that is called more often, three.
fn price(module: &Module, degrees: &Degrees, machine: &Machine) -> Result<Cost, SearchError> {
    let with_three = |name: Option<&str>| -> Result<Cost, SearchError> {
        let few = sample::sample(module, &|f| if Some(f) == name { 3 } else { 2 });
        let plan = assign(&few, degrees)?;
        Ok(cost::price(&localize(&few, &plan, &AdamW::default())?, machine)?)
    };
    let base = with_three(None)?;
    let mut total = base;
    for (name, count) in sample::calls(module).into_iter().filter(|(_, count)| *count > 2) {
        total.add_scaled(&with_three(Some(name))?, (count - 2) as f64);
        total.add_scaled(&base, -((count - 2) as f64));
    }
    Ok(total)
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

#[cfg(test)]
mod tests {
    use super::*;
    use autoshard_ir::{text, DType};

    /// A model of `layers` calls of one block.
    fn model(layers: usize) -> Module {
        let mut source = String::from(
            "func @block(%x: f32[b=4, s=6, d=8], param %w: f32[f=12, d], param %v: f32[d, f]) -> (f32[b, s, d]) {
  %h = einsum %x, %w {spec=\"b s d, f d -> b s f\"} : f32[b, s, f]
  %p = einsum %h, %v {spec=\"b s f, d f -> b s d\"} : f32[b, s, d]
  %y = add %x, %p : f32[b, s, d]
  return %y
}
func @head(%x: f32[b=4, s=6, d=8]) -> (f32[]) {
  %l = reduce_sum %x {spec=\"b s d ->\"} : f32[]
  return %l
}
func @main(%x0: f32[b=4, s=6, d=8]",
        );
        for l in 0..layers {
            source += &format!(", param %w{l}: f32[f=12, d=8], param %v{l}: f32[d=8, f=12]");
        }
        source += ") -> (f32[]) {\n";
        for l in 0..layers {
            source += &format!("  %x{} = call @block(%x{l}, %w{l}, %v{l}) : f32[b=4, s=6, d=8]\n", l + 1);
        }
        source += &format!("  %loss = call @head(%x{layers}) : f32[]\n  return %loss\n}}\nentry @main\n");
        text::parse(&source, "model").unwrap_or_else(|e| panic!("{e}"))
    }

    #[test]
    fn the_price_of_many_layers_follows_from_two() {
        let machine = Machine {
            name: "test".to_string(),
            peak: vec![(DType::F32, 1e9)],
            memory_bandwidth: 1e9,
            link_bandwidth: 1e8,
            collective_latency: 1e-5,
            kernel_latency: 1e-6,
        };
        let module = model(7);
        for degrees in meshes(4) {
            let plan = assign(&module, &degrees).unwrap();
            let whole = cost::price(&localize(&module, &plan, &AdamW::default()).unwrap(), &machine).unwrap();
            let quick = price(&module, &degrees, &machine).unwrap();
            let close = |a: f64, b: f64| (a - b).abs() <= 1e-9 * b.abs().max(1e-12);
            assert!(
                close(quick.seconds(), whole.seconds())
                    && close(quick.flops, whole.flops)
                    && close(quick.wire, whole.wire),
                "{degrees:?}: {quick:?} against {whole:?}"
            );
        }
    }
}

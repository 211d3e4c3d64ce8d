//! The time of a training step: profiles priced by a machine's rates, played by the event simulator.
//!
//! [`price`] turns one function's [`Profile`](crate::profile::Profile) into seconds of each phase;
//! [`step`] lays the phases of all units (embedding, layers, head) and the messages of data parallelism out as
//! tasks and plays them; [`pipeline`] does so for stages, by their schedule. What a machine can do is behind [`Rates`], so both can be tried with plain numbers.

pub mod machine;
pub mod parts;
pub mod pipeline;
#[cfg(test)]
mod pipeline_tests;
pub mod price;
pub mod step;
#[cfg(test)]
mod tests;
pub mod trace;

use crate::profile::{Axis, Spread};
use autoshard_cost::collectives::Kind;
use autoshard_cost::kernels::{Attention, How, Product, Time};

/// Ranks of a group of messages of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Group {
    /// An axis that splits the work of a micro-batch.
    Inside(Axis),
    /// Ranks that share a copy of dense parameters.
    Shard,
    /// Ranks that hold the same share of dense parameters.
    Replicas,
    /// The same two for experts.
    ExpertShard,
    /// See there.
    ExpertReplicas,
    /// Stages of a pipeline that hand activations on.
    Pipeline,
}

impl Group {
    /// As reports name it.
    pub fn name(self) -> &'static str {
        match self {
            Group::Inside(axis) => axis.name(),
            Group::Shard | Group::Replicas => "dp",
            Group::ExpertShard | Group::ExpertReplicas => "edp",
            Group::Pipeline => "pp",
        }
    }
}

/// A message's time alone.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Transfer {
    /// Seconds.
    pub seconds: f64,
    /// The outermost tier that it crosses: the link that it shares with others.
    pub tier: u16,
    /// Share of that link that it takes when alone, 0–1.
    pub load: f32,
    /// Whether that is a network: beyond the ranks that write into one another's memory.
    pub network: bool,
    /// How the time was got.
    pub how: How,
}

/// Times over those of the tables.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Factors {
    /// Rate of the device that lasts over that of a burst, for products and attention.
    pub sustained: f64,
    /// The same for products of eight bits and fewer.
    pub sustained_eight_bit: f64,
    /// Products.
    pub products: f64,
    /// Attention.
    pub attention: f64,
    /// Loops.
    pub loops: f64,
    /// Messages.
    pub collectives: f64,
}

/// What a machine can do, by its tables: bursts, before a stack's factors.
pub trait Rates {
    /// A product whose operands are in its format already.
    fn product(&self, p: &Product) -> Time;
    /// An attention kernel.
    fn attention(&self, a: &Attention) -> Time;
    /// One loop kernel over these bytes.
    fn memory(&self, bytes: f64) -> Time;
    /// A message of `bytes` (the whole buffer) in a group.
    fn transfer(&self, kind: Kind, group: Group, bytes: f64) -> Transfer;
    /// Tokens to the ranks of their experts: `bytes` is what a rank sends, one copy for each rank; `spread` says
    /// how many of them go to the same node.
    fn dispatch(&self, group: Group, bytes: f64, spread: &Spread) -> Transfer {
        let _ = spread;
        self.transfer(Kind::AllToAll, group, bytes)
    }
}

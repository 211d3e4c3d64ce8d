//! Published, measured training runs: what the predictor is judged by.
//!
//! A file of runs is an array of rows in the full schema, or one table of `common` facts and short `rows`
//! (vTrain's runs on one server); [`read()`] takes both. Either becomes a list of [`Entry`]: a [`RunRow`] that
//! can be simulated, or the reason why it cannot. Fields with a closed vocabulary are exact, and a word that is
//! not in it is an error that names row and field; text fields are nobody's business.

mod convention;
mod fields;
mod machine;
mod read;
mod single;
#[cfg(test)]
mod tests;

pub use convention::{Convention, Unit};
pub use machine::{machine, Machine};
pub use read::read;

use crate::json::JsonError;
use crate::predict::{Layout, Precision};
use serde_json::Value;

/// One measured run.
#[derive(Clone, Debug, PartialEq)]
pub struct RunRow {
    /// Name in its file.
    pub id: String,
    /// The source that it belongs to.
    pub tag: String,
    /// Name of the model, as printed.
    pub name: String,
    /// The framework, by the words of `norm.stack`.
    pub stack: String,
    /// Release of the framework, where stated.
    pub release: Option<String>,
    /// What is left out together when constants are judged on runs that they have not seen.
    pub group: GroupKey,
    /// Model that this one is a cut or a proxy of; it has the parent's hidden size and heads, so it is in
    /// the parent's group.
    pub cut_of: Option<String>,
    /// Accelerator id.
    pub accelerator: String,
    /// Cluster id; `None` where the network is not known.
    pub cluster: Option<String>,
    /// Devices.
    pub gpus: u64,
    /// Devices of one server.
    pub gpus_per_node: u64,
    /// Bytes/s of a device in one direction inside a server.
    pub bandwidth_inside: Option<f64>,
    /// Bytes/s of a device in one direction between servers.
    pub bandwidth_between: Option<f64>,
    /// Whether these are rates that were reached, instead of nominal ones.
    pub bandwidth_effective: bool,
    /// How the step is spread.
    pub layout: Layout,
    /// Everything that makes a layout, as text: what tells two layouts of a regret group apart.
    pub layout_key: String,
    /// Transformer layers by pipeline rank; `None` where not known.
    pub layers_per_stage: Option<Vec<u64>>,
    /// Decoder layers.
    pub layers: u64,
    /// Width of a token.
    pub hidden: u64,
    /// Number of token ids.
    pub vocab: u64,
    /// Positions of a sequence.
    pub seq_len: u64,
    /// Sequences of a step.
    pub global_batch: u64,
    /// `model` as the file has it, for whoever builds the model.
    pub model: Value,
    /// `block` as the file has it.
    pub block: Value,
    /// Number format of products.
    pub precision: Precision,
    /// Format in which gradients are accumulated and reduced; `None` where not known.
    pub grad_dtype: Option<GradDtype>,
    /// Whether tensor-parallel communication overlaps products.
    pub tp_overlap: Option<bool>,
    /// Whether data-parallel communication overlaps computation.
    pub dp_overlap: Option<bool>,
    /// Whether a compiler saw the whole model.
    pub compile: Option<bool>,
    /// Whether dropout ran.
    pub dropout: Option<bool>,
    /// The optimizer.
    pub optimizer: Option<Optimizer>,
    /// Extra prediction layers.
    pub mtp: u64,
    /// Layers whose activations go to the host.
    pub offload_activation_layers: Option<u64>,
    /// Whether the optimizer runs on the host.
    pub offload_optimizer: bool,
    /// What was measured.
    pub measured: Measured,
    /// In what unit the time is compared.
    pub unit: Unit,
    /// The same configuration measured again has the same key.
    pub repeat_key: Option<String>,
    /// Fields of `norm` and `block` that are not in the row's source.
    pub inferred: Vec<String>,
    /// What to know about the row.
    pub marks: Vec<String>,
}

impl RunRow {
    /// Whether memory can be compared, though the time perhaps not: it was read, or there was too little.
    pub fn has_memory(&self) -> bool {
        self.measured.memory_gib.is_some() || self.measured.out_of_memory
    }

    /// Tokens of a step.
    pub fn tokens(&self) -> f64 {
        self.global_batch as f64 * self.seq_len as f64
    }
}

/// What is left out together.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GroupKey {
    /// The framework.
    pub stack: String,
    /// Width of a token.
    pub hidden: u64,
    /// Query heads.
    pub heads: u64,
    /// Accelerator id.
    pub accelerator: String,
}

impl std::fmt::Display for GroupKey {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        f.pad(&format!("{} · {}/{} · {}", self.stack, self.hidden, self.heads, self.accelerator))
    }
}

/// Format in which gradients are accumulated and reduced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GradDtype {
    /// fp32.
    F32,
    /// bfloat16.
    Bf16,
    /// IEEE half.
    F16,
}

/// The optimizer of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Optimizer {
    /// Adam with decoupled decay.
    AdamW,
    /// Adam with a trust ratio by layer.
    Lamb,
}

/// What a memory reading counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryKind {
    /// Bytes in tensors.
    Allocated,
    /// Bytes that the allocator holds.
    Reserved,
    /// Bytes of the device, as its driver reports.
    Device,
}

/// What was measured; `None` where it was not.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Measured {
    /// Seconds of a step: printed, or tokens of a step over printed tokens/s.
    pub step_seconds: Option<f64>,
    /// Tokens/s of one device.
    pub tokens_per_second: Option<f64>,
    /// FLOP/s of one device, under the row's convention.
    pub flops_per_second: Option<f64>,
    /// Share of the peak rate (0–1), under the row's convention.
    pub mfu: Option<f64>,
    /// Highest memory of a device, GiB.
    pub memory_gib: Option<f64>,
    /// What that counts; `None` where not stated.
    pub memory_kind: Option<MemoryKind>,
    /// Whether it ran out of memory.
    pub out_of_memory: bool,
}

impl Measured {
    /// The same without times and rates.
    pub fn without_times(&self) -> Measured {
        Measured {
            memory_gib: self.memory_gib,
            memory_kind: self.memory_kind,
            out_of_memory: self.out_of_memory,
            ..Measured::default()
        }
    }

    /// Whether a time or a rate was measured.
    pub fn has_time(&self) -> bool {
        self.step_seconds.is_some() || self.flops_per_second.is_some() || self.mfu.is_some()
    }
}

/// A row of a file: one that can be simulated, or why not.
#[derive(Clone, Debug, PartialEq)]
pub enum Entry {
    /// It has all that a simulation needs.
    Ready(Box<RunRow>),
    /// It has not.
    Skipped(Skipped),
}

/// A row that cannot be simulated.
#[derive(Clone, Debug, PartialEq)]
pub struct Skipped {
    /// Name in its file.
    pub id: String,
    /// The source that it belongs to.
    pub tag: String,
    /// The framework.
    pub stack: String,
    /// Seconds of a step, where measured.
    pub step_seconds: Option<f64>,
    /// GiB of a device, where measured.
    pub memory_gib: Option<f64>,
    /// What is missing, in words that many rows share.
    pub why: String,
    /// Whether its file marks it as ready to be simulated.
    pub ready: bool,
}

/// Why a file of runs could not be read.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum RunsError {
    #[error(transparent)]
    Json(#[from] JsonError),
    #[error("{file}: neither an array of rows nor an object with `common` and `rows`; give a file in the schema of runs.json or vtrain_single_node.json")]
    Shape { file: String },
    #[error("{place}: {field} is {value}, which is not one of {known}")]
    Word { place: String, field: String, value: String, known: String },
    #[error("{place}: {field} is {value}; it must be {expected}")]
    Type { place: String, field: String, value: String, expected: &'static str },
    #[error("{file}: row {row}: two rows have this id; every row needs its own")]
    Twice { file: String, row: String },
}

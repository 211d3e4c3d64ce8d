//! Launch files: a plan in the words of the frameworks that run it.
//!
//! [`emit`] writes what a framework reads (flags, a configuration file) with a Slurm script around it. What a
//! framework cannot say is never left out in silence: [`Emitted::cannot`] names the decision as `--fix` spells
//! it and what the framework does instead, and the script carries the same lines as comments. Flags are those
//! of the versions in [`Framework::tool`]; `tests/emit.rs` holds every one against the tools' own definitions
//! (`tests/data/launch`, written by `scripts/check-launch`).

mod args;
mod deepspeed;
mod facts;
mod maxtext;
mod megatron;
mod megatron_model;
mod shape;
mod slurm;
mod torchtitan;

use crate::cost::cluster::Cluster;
use crate::decoder::Decoder;
use crate::predict::{Layout, Precision};
use std::fmt;
use std::path::Path;

/// A framework that launch files are written for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Framework {
    /// Megatron-Core with `pretrain_gpt.py`.
    Megatron,
    /// torchtitan.
    TorchTitan,
    /// DeepSpeed with a training script of the user's.
    DeepSpeed,
    /// MaxText.
    MaxText,
}

impl Framework {
    /// All of them.
    pub const ALL: [Framework; 4] =
        [Framework::Megatron, Framework::TorchTitan, Framework::DeepSpeed, Framework::MaxText];

    /// Its spelling on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Framework::Megatron => "megatron",
            Framework::TorchTitan => "torchtitan",
            Framework::DeepSpeed => "deepspeed",
            Framework::MaxText => "maxtext",
        }
    }

    /// The one that is spelt so.
    pub fn from_name(name: &str) -> Option<Framework> {
        Framework::ALL.into_iter().find(|f| f.name() == name)
    }

    /// The tool and the version whose flags are written.
    pub fn tool(self) -> &'static str {
        match self {
            Framework::Megatron => "Megatron-Core 0.19.2",
            Framework::TorchTitan => "torchtitan 0.3.0",
            Framework::DeepSpeed => "DeepSpeed 0.19.8",
            Framework::MaxText => "MaxText 0.2.5",
        }
    }
}

impl fmt::Display for Framework {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A plan to be launched.
#[derive(Clone, Copy, Debug)]
pub struct Launch<'a> {
    /// The model.
    pub decoder: &'a Decoder,
    /// Its file or folder, as the user gave it.
    pub model_file: &'a Path,
    /// Where it runs.
    pub cluster: &'a Cluster,
    /// How it is spread; its devices are used, others of the cluster are left alone.
    pub layout: &'a Layout,
    /// Decoder layers of each pipeline stage.
    pub layers_per_stage: &'a [u64],
    /// Positions of a sequence.
    pub seq_len: u64,
    /// Sequences of a step.
    pub global_batch: u64,
    /// The number format.
    pub precision: Precision,
}

/// What was written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Emitted {
    /// Names and texts of the files; all belong into one folder.
    pub files: Vec<(String, String)>,
    /// What of the plan the framework cannot say, and what it will do instead; each starts with the decision as
    /// `--fix` spells it (`schedule=zb-v: ...`), or with `model`.
    pub cannot: Vec<String>,
}

/// Writes the launch files of a plan.
pub fn emit(framework: Framework, launch: &Launch) -> Emitted {
    match framework {
        Framework::Megatron => megatron::emit(launch),
        Framework::TorchTitan => torchtitan::emit(launch),
        Framework::DeepSpeed => deepspeed::emit(launch),
        Framework::MaxText => maxtext::emit(launch),
    }
}

/// What a framework cannot say, as it is found.
#[derive(Default)]
struct Cannot(Vec<String>);

impl Cannot {
    /// Names a decision, as `--fix` spells it, and what happens instead.
    fn say(&mut self, decision: impl fmt::Display, instead: impl fmt::Display) {
        self.0.push(format!("{decision}: {instead}"));
    }
}

//! autoshard: a compiler and planner for training neural networks on many accelerators.
//!
//! A model (a Hugging Face `config.json` or IR text) becomes a [`model::Model`]; a plan for it says
//! which dimension of which tensor lives on which ranks ([`compile::plan`], [`compile::plan_mesh`]);
//! [`compile::compile`] turns both into a sharded [`compile::Executable`]; a [`train::Trainer`] runs
//! it. [`predict`] says what a step takes on machines that are not there, [`runs`] and [`accuracy`] hold that
//! against measured runs. The command line makes the same calls.
#![warn(missing_docs)]

pub mod accuracy;
pub mod artifact;
pub mod collectives;
pub mod compile;
pub mod cuda;
pub mod data;
pub mod decoder;
pub mod emit;
pub mod explain;
pub mod hardware;
pub mod import;
pub mod json;
pub mod kernels;
pub mod model;
pub mod planfile;
pub mod predict;
pub mod report;
pub mod runs;
pub mod search;
pub mod stacks;
pub mod train;
pub mod weights;
pub mod words;

pub use autoshard_cost as cost;
pub use autoshard_ir as ir;
pub use autoshard_passes as passes;
pub use autoshard_runtime as runtime;

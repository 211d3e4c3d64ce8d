//! From a model and a plan to an executable.

use crate::model::{Model, Tensor};
use autoshard_ir::core::Module;
use autoshard_ir::plan::Plan;
use autoshard_ir::program::Program;
use autoshard_ir::verify::{verify, VerifyError};
use autoshard_ir::DType;
use autoshard_passes::autodiff::AdamW;
use autoshard_passes::cost::Machine;
use autoshard_passes::fuse::Fusion;
use autoshard_passes::play::{self, PlayError};
use autoshard_passes::schedule::{self, CheckError, ScheduleError};
use autoshard_passes::search::{self, Candidate, Degrees, SearchError};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// What an executable is besides its code.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Meta {
    /// Family of the model.
    pub family: String,
    /// Code generation target: `cpu`.
    pub target: String,
    /// Element type of parameters and activations.
    pub precision: String,
    /// Sequences of a step over all data ranks.
    pub batch: usize,
    /// Positions per sequence.
    pub seq_len: usize,
    /// Number of token ids.
    pub vocab: usize,
    /// Learning rate.
    pub lr: f64,
    /// What is fused: `all`, `loops` or `none` ([`Fusion::LEVELS`]).
    pub fusion: String,
    /// Whether communication overlaps computation.
    pub overlap: bool,
    /// FLOPs of a training step of the whole model.
    pub flops: f64,
    /// Checkpoint tensors, in the order of the entry's trainable parameters.
    pub tensors: Vec<Tensor>,
    /// The model's configuration, if it came from one.
    pub config: Option<serde_json::Value>,
}

/// A sharded executable: one local module and its program, for all ranks.
#[derive(Clone, Debug)]
pub struct Executable {
    /// What it computes.
    pub meta: Meta,
    /// Local module: what one rank computes, as IR.
    pub local: Module,
    /// Steps, kernels and memory plan.
    pub program: Arc<Program>,
}

/// Why a model could not be compiled.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum CompileError {
    #[error(transparent)]
    Search(#[from] SearchError),
    #[error(transparent)]
    Schedule(#[from] ScheduleError),
    #[error("the local module is not valid:\n{}", .0.iter().map(|e| format!("  {e}")).collect::<Vec<_>>().join("\n"))]
    Verify(Vec<VerifyError>),
    #[error("the programs do not play together: {0}")]
    Play(#[from] PlayError),
    #[error("the memory plan is not sound: {0}")]
    Check(#[from] CheckError),
    #[error("unknown fusion level {0:?}; known: all, loops, none")]
    Fusion(String),
    #[error("precision {0} is not executed; use f32, bf16 or f64")]
    Precision(DType),
}

/// Every legal mesh of `devices` ranks with its plan and price, best first.
pub fn plan(model: &Model, devices: usize, machine: &Machine) -> Result<Vec<Candidate>, CompileError> {
    Ok(search::search(&model.module, devices, machine)?)
}

/// The plan of a given mesh.
pub fn plan_mesh(model: &Model, degrees: &Degrees) -> Result<Plan, CompileError> {
    Ok(search::assign(&model.module, degrees)?)
}

/// How a step is made into a program.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// Level of fusion, by name ([`Fusion::LEVELS`]).
    pub fusion: String,
    /// Whether communication overlaps computation.
    pub overlap: bool,
}

impl Default for Options {
    fn default() -> Options {
        Options { fusion: "all".to_string(), overlap: true }
    }
}

/// Compiles the training step of `model` under `plan`, fused and overlapped.
pub fn compile(model: &Model, plan: &Plan, optimizer: &AdamW) -> Result<Executable, CompileError> {
    compile_with(model, plan, optimizer, &Options::default())
}

/// Compiles the training step of `model` under `plan`.
pub fn compile_with(
    model: &Model,
    plan: &Plan,
    optimizer: &AdamW,
    options: &Options,
) -> Result<Executable, CompileError> {
    if !model.shape.dtype.is_float() {
        return Err(CompileError::Precision(model.shape.dtype));
    }
    let local = search::localize(&model.module, plan, optimizer)?;
    let meta = Meta {
        family: model.family.clone(),
        target: "cpu".to_string(),
        precision: model.shape.dtype.name().to_string(),
        batch: model.shape.batch,
        seq_len: model.shape.seq_len,
        vocab: model.vocab,
        lr: optimizer.lr,
        fusion: options.fusion.clone(),
        overlap: options.overlap,
        flops: model.flops,
        tensors: model.tensors.clone(),
        config: model.config.clone(),
    };
    assemble(meta, local)
}

/// Makes the executable of a local module: verifies it, schedules it, plays its programs.
pub fn assemble(meta: Meta, local: Module) -> Result<Executable, CompileError> {
    verify(&local).map_err(CompileError::Verify)?;
    let fusion = Fusion::from_name(&meta.fusion).ok_or_else(|| CompileError::Fusion(meta.fusion.clone()))?;
    let program = schedule::schedule(&local, &schedule::Options { fusion, overlap: meta.overlap })?;
    schedule::check(&program)?;
    play::verify(&program)?;
    Ok(Executable { meta, local, program: Arc::new(program) })
}

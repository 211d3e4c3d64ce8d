//! Models: what a step computes, from a Hugging Face configuration or from IR text.

use crate::import::{self, build, ConfigError, ModelConfig};
use crate::weights::init::InitKind;
use autoshard_ir::core::{BuildError, Function, Module, Template, Type};
use autoshard_ir::text::{self, Diagnostics};
use autoshard_ir::verify::{verify, VerifyError};
use autoshard_ir::{ops, DType};
use autoshard_passes::{outline, simplify};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

pub use build::StepShape;

/// A trainable tensor as a checkpoint stores it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Tensor {
    /// Name in the checkpoint and in the entry.
    pub name: String,
    /// Shape in the checkpoint, row-major; the entry's parameter splits dimensions of it.
    pub shape: Vec<usize>,
    /// How it is initialised without a checkpoint.
    pub kind: InitKind,
}

/// A forward module whose entry is calls only, with its parameters and data.
#[derive(Clone, Debug)]
pub struct Model {
    /// Where it was read from.
    pub path: PathBuf,
    /// Family of the configuration, or `shard`.
    pub family: String,
    /// The module; its entry returns the mean loss.
    pub module: Module,
    /// Checkpoint tensors, in the order of the entry's trainable parameters.
    pub tensors: Vec<Tensor>,
    /// Sequences, positions, element type.
    pub shape: StepShape,
    /// Number of token ids.
    pub vocab: usize,
    /// FLOPs of one training step: three times the forward's products, causal attention counted
    /// once (half of the full square), nothing recomputed.
    pub flops: f64,
    /// What the reader of a plan should know about the configuration.
    pub notes: Vec<String>,
    /// The configuration as it was read, for saving beside weights.
    pub config: Option<serde_json::Value>,
}

/// Why a model could not be read.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum ModelError {
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error("{path}: {source}")]
    Io { path: PathBuf, source: std::io::Error },
    #[error("{0}")]
    Text(Diagnostics),
    #[error("{path}: the module is not valid:\n{}", .errors.iter().map(|e| format!("  {e}")).collect::<Vec<_>>().join("\n"))]
    Invalid { path: PathBuf, errors: Vec<VerifyError> },
    #[error("{path}: {source}")]
    Build { path: PathBuf, source: BuildError },
    #[error("{path}: besides its parameters (marked `param`) the entry @{entry} must take i32 tensors %tokens[b, s] and %labels[b, s] and nothing else, since nothing else can be fed; it takes {}", if .got.is_empty() { "nothing" } else { .got })]
    Inputs { path: PathBuf, entry: String, got: String },
    #[error(
        "{path}: the entry @{entry} has nothing to train: mark the trained inputs `param`, as in `param %w: f32[d=8]`"
    )]
    Untrainable { path: PathBuf, entry: String },
    #[error("{path}: {what} would be ignored: a model is read without placement, and --mesh or --devices gives the plan; remove the mesh line and the strategies")]
    Placed { path: PathBuf, what: String },
    #[error("{path}: the entry's parameter %{name} has a name that the training step uses (t, m.NAME, v.NAME, NAME.new); rename it")]
    Reserved { path: PathBuf, name: String },
    #[error("{path}: {what} of {value} does not fit: {reason}")]
    Shape { path: PathBuf, what: &'static str, value: usize, reason: String },
}

/// Largest sizes that a step may have; beyond them index arithmetic could overflow.
const MOST: usize = 1 << 31;

impl Model {
    /// Reads a `config.json`, a folder holding one, or a `.shard` file.
    ///
    /// `shape` gives batch, positions and type; a `.shard` file brings its own and only the type of
    /// the result is taken from it.
    pub fn load(path: &Path, shape: StepShape) -> Result<Model, ModelError> {
        if path.extension().is_some_and(|e| e == "shard") {
            return Model::from_text(path);
        }
        Model::from_config(path, &import::load(path)?, shape)
    }

    /// Builds the module of a configuration.
    pub fn from_config(path: &Path, config: &ModelConfig, shape: StepShape) -> Result<Model, ModelError> {
        for (what, value) in [("batch", shape.batch), ("seq-len", shape.seq_len)] {
            if value == 0 || value > MOST {
                let reason = format!("it must be between 1 and {MOST}");
                return Err(ModelError::Shape { path: path.into(), what, value, reason });
            }
        }
        let built = build::build(config, shape).map_err(|source| ModelError::Build { path: path.into(), source })?;
        let tensors =
            built.params.iter().map(|p| Tensor { name: p.name.clone(), shape: p.shape.clone(), kind: p.kind });
        let module = simplify::simplify(&built.module);
        Ok(Model {
            path: path.into(),
            family: config.family.model_type.to_string(),
            tensors: tensors.collect(),
            flops: step_flops(path, &module)?,
            module,
            shape,
            vocab: config.vocab,
            notes: config.notes.clone(),
            config: Some(config.raw.clone()),
        })
    }

    /// Reads a module from its text.
    pub fn from_text(path: &Path) -> Result<Model, ModelError> {
        let source = std::fs::read_to_string(path).map_err(|source| ModelError::Io { path: path.into(), source })?;
        let module = text::parse(&source, &path.display().to_string()).map_err(ModelError::Text)?;
        verify(&module).map_err(|errors| ModelError::Invalid { path: path.into(), errors })?;
        let module = simplify::simplify(&outline::outline(&module));
        let Some(entry) = module.entry_function() else {
            return Err(ModelError::Inputs { path: path.into(), entry: module.entry.clone(), got: "nothing".into() });
        };
        let ty = check_entry(path, entry)?;
        if let Some(what) = placed(&module) {
            return Err(ModelError::Placed { path: path.into(), what });
        }
        let shape = StepShape { batch: ty.dims[0].size, seq_len: ty.dims[1].size, dtype: float_type(entry) };
        let tensors = entry.params.iter().filter(|p| p.trainable).map(|p| {
            let v = entry.value(p.value);
            Tensor { name: v.name.clone(), shape: v.ty.sizes(), kind: kind_of(&v.name, &v.ty) }
        });
        Ok(Model {
            path: path.into(),
            family: "shard".to_string(),
            tensors: tensors.collect(),
            vocab: vocabulary(&module),
            flops: step_flops(path, &module)?,
            shape,
            module,
            notes: Vec::new(),
            config: None,
        })
    }

    /// Number of trained parameters.
    pub fn params(&self) -> usize {
        self.tensors.iter().map(|t| t.shape.iter().product::<usize>()).sum()
    }
}

/// Checks that a step can be fed and trained; returns the type of the tokens.
fn check_entry<'f>(path: &Path, entry: &'f Function) -> Result<&'f Type, ModelError> {
    let inputs = |got: String| ModelError::Inputs { path: path.into(), entry: entry.name.clone(), got };
    let list = |trainable: bool| {
        let picked = entry.params.iter().filter(|p| p.trainable == trainable);
        picked.map(|p| format!("%{}: {}", entry.value(p.value).name, entry.ty(p.value))).collect::<Vec<_>>().join(", ")
    };
    let (tokens, labels) = (input(entry, build::TOKENS), input(entry, build::LABELS));
    let (Some(tokens), Some(_), 2) = (tokens, labels, entry.params.iter().filter(|p| !p.trainable).count()) else {
        return Err(inputs(list(false)));
    };
    if entry.params.iter().all(|p| !p.trainable) {
        return Err(ModelError::Untrainable { path: path.into(), entry: entry.name.clone() });
    }
    if let Some(p) = entry.params.iter().map(|p| &entry.value(p.value).name).find(|n| reserved(n)) {
        return Err(ModelError::Reserved { path: path.into(), name: p.clone() });
    }
    Ok(tokens)
}

/// The first placement that a module carries: a forward module has none, the plan gives it.
fn placed(module: &Module) -> Option<String> {
    if !module.mesh.axes.is_empty() {
        return Some(format!("the mesh {}", module.mesh));
    }
    let node = |f: &Function| {
        let placed = f.nodes.iter().find(|n| n.strategy != autoshard_ir::Strategy::None)?;
        Some(format!("the strategy of %{} in @{}", f.value(*placed.results.first()?).name, f.name))
    };
    module.functions.iter().find_map(node)
}

fn input<'f>(entry: &'f Function, name: &str) -> Option<&'f Type> {
    let ty = entry.params.iter().map(|p| p.value).find(|v| entry.value(*v).name == name).map(|v| entry.ty(v))?;
    (ty.dtype == DType::I32 && ty.dims.len() == 2).then_some(ty)
}

/// Names of the training step's own parameters and results.
fn reserved(name: &str) -> bool {
    name == "t" || name.starts_with("m.") || name.starts_with("v.") || name.ends_with(".new")
}

fn float_type(entry: &Function) -> DType {
    entry.params.iter().filter(|p| p.trainable).map(|p| entry.ty(p.value).dtype).next().unwrap_or(DType::F32)
}

/// The init rule by name and rank: biases, gains of one dimension, matrices.
fn kind_of(name: &str, ty: &Type) -> InitKind {
    match ty.dims.last() {
        _ if name.ends_with(".bias") => InitKind::Bias,
        Some(last) if ty.dims.len() > 1 => InitKind::Matrix { fan_in: last.size },
        _ => InitKind::Gain,
    }
}

/// Rows of the smallest table that tokens index.
fn vocabulary(module: &Module) -> usize {
    let tables = module.functions.iter().flat_map(|f| {
        let tables = f.nodes.iter().filter(|n| n.op.template == Template::Gather).map(|n| f.ty(n.inputs[0]));
        // Rows of experts are three-dimensional.
        tables.filter(|ty| ty.dims.len() == 2).map(|ty| ty.dims[0].size)
    });
    tables.min().unwrap_or(1 << 16)
}

/// FLOPs of a training step: three times the forward's products over all calls of the entry.
fn step_flops(path: &Path, module: &Module) -> Result<f64, ModelError> {
    let mut total = 0.0;
    let calls = module.entry_function().into_iter().flat_map(|e| &e.nodes);
    for f in calls.filter_map(|n| module.function(n.callee.as_deref()?)) {
        for node in &f.nodes {
            total += node_flops(f, node).map_err(|message| {
                let source = BuildError::Rule { op: node.op.name.to_string(), operands: String::new(), message };
                ModelError::Build { path: path.into(), source }
            })?;
        }
    }
    Ok(3.0 * total)
}

fn node_flops(f: &Function, node: &autoshard_ir::Node) -> Result<f64, String> {
    let types: Vec<&Type> = node.inputs.iter().map(|v| f.ty(*v)).collect();
    Ok(match node.op.template {
        Template::Gemm if types.len() > 1 => {
            let rule = ops::rule(node.op, &types, &node.attrs)?;
            2.0 * rule.factors.iter().map(|f| f.size as f64).product::<f64>()
        }
        Template::Attention => {
            let d = |t: usize, i: usize| types[t].dims[i].size as f64;
            let seen = if node.attrs.get_int("causal")? != 0 { 0.5 } else { 1.0 };
            let window = node.attrs.get_int("window")? as f64;
            let all = d(0, 1) * d(1, 1) * seen;
            let pairs = if window > 0.0 { all.min(d(0, 1) * window) } else { all };
            2.0 * d(0, 0) * d(0, 2) * d(0, 3) * pairs * (d(0, 4) + d(2, 3))
        }
        _ => 0.0,
    })
}

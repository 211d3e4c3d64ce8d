//! Runs an executable: weights in, steps, weights and gradients out.

use crate::compile::Executable;
use crate::data::{token_hash, DataError, Dataset};
use crate::hardware::Preset;
use crate::import::build::{LABELS, TOKENS};
use crate::model::Tensor;
use crate::weights::safetensors::{self, Values};
use crate::weights::{Weights, WeightsError};
use autoshard_ir::core::{Axis, Type};
use autoshard_ir::program::Buf;
use autoshard_ir::DType;
use autoshard_runtime::{Options, Runtime, RuntimeError, StepReport, TokenCheck};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

/// Why a run failed.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum TrainError {
    #[error(transparent)]
    Runtime(#[from] RuntimeError),
    #[error("step {step}: {source}")]
    Step { step: u64, source: Box<RuntimeError> },
    #[error(transparent)]
    Data(#[from] DataError),
    #[error(transparent)]
    Weights(#[from] WeightsError),
    #[error("the executable has no {what} %{name}; it was not made by this version of autoshard")]
    Missing { what: &'static str, name: String },
    #[error("precision {0:?} of the executable is unknown")]
    Precision(String),
}

/// Fewest tokens of a rank for which ranks compare what they train on: 32 bytes of prose hold some 60
/// bits, so two ranks do not have the same by chance.
const FEWEST: usize = 32;

/// What one step reports.
#[derive(Clone, Debug)]
pub struct Step {
    /// Counted from 0.
    pub step: u64,
    /// Mean loss over all positions of the batch, before the update.
    pub loss: f64,
    /// What the ranks did.
    pub report: StepReport,
    /// CPU seconds of the process during the step.
    pub cpu_seconds: f64,
    /// Tokens per second over all ranks.
    pub tokens_per_second: f64,
    /// Model FLOPs over what the preset's peak allows.
    pub mfu: f64,
}

/// Norm of a tensor and of its change since the start.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Norms {
    /// L2 norm.
    pub norm: f64,
    /// L2 norm of the change.
    pub delta: f64,
}

/// A training run in progress.
pub struct Trainer {
    exe: Arc<Executable>,
    runtime: Runtime,
    data: Dataset,
    dtype: DType,
    peak: f64,
    step: u64,
    /// Initial values, kept only where changes are asked for.
    start: Option<BTreeMap<String, Vec<f64>>>,
}

impl Trainer {
    /// Loads weights onto the ranks and proves that the data are dealt out disjoint and complete.
    pub fn new(
        exe: Arc<Executable>,
        weights: &Weights,
        data: Dataset,
        preset: &Preset,
        options: Options,
    ) -> Result<Trainer, TrainError> {
        let dtype =
            DType::from_name(&exe.meta.precision).ok_or_else(|| TrainError::Precision(exe.meta.precision.clone()))?;
        let runtime = Runtime::new(exe.program.clone(), options)?;
        weights.check(exe.meta.tensors.iter().map(|t| (t.name.as_str(), &t.shape[..])))?;
        let mut t = Trainer { peak: preset.peak(dtype), exe, runtime, data, dtype, step: 0, start: None };
        t.data.check_epoch(t.data_ranks()? as u64)?;
        for tensor in t.exe.clone().meta.tensors.iter() {
            t.load(tensor, weights)?;
        }
        Ok(t)
    }

    fn param(&self, what: &'static str, name: &str) -> Result<usize, TrainError> {
        self.runtime.param_index(name).ok_or_else(|| TrainError::Missing { what, name: name.to_string() })
    }

    /// Reads each rank's part of a tensor. The parameter's dimensions split those of the checkpoint
    /// in place, so its part is a list of runs of the checkpoint's row-major order.
    fn load(&mut self, tensor: &Tensor, weights: &Weights) -> Result<(), TrainError> {
        let index = self.param("parameter", &tensor.name)?;
        let ty = self.runtime.describe(Buf::Param(index))?.1.clone();
        let whole = ty.used_axes().next().is_none();
        let mut shared: Option<Vec<f64>> = None;
        for rank in 0..self.runtime.ranks() {
            if whole {
                if shared.is_none() {
                    shared = Some(self.read_part(tensor, weights, &ty, rank, index)?);
                }
                if let Some(values) = &shared {
                    self.runtime.write_f64(rank, index, values)?;
                }
                continue;
            }
            let values = self.read_part(tensor, weights, &ty, rank, index)?;
            self.runtime.write_f64(rank, index, &values)?;
        }
        Ok(())
    }

    fn read_part(
        &self,
        tensor: &Tensor,
        weights: &Weights,
        ty: &Type,
        rank: usize,
        index: usize,
    ) -> Result<Vec<f64>, TrainError> {
        let parts = self.runtime.parts(rank, Buf::Param(index))?;
        let start: Vec<usize> = parts.iter().map(|p| p.start).collect();
        let size: Vec<usize> = parts.iter().map(|p| p.len).collect();
        Ok(weights.read_view(&tensor.name, &tensor.shape, tensor.kind, &ty.sizes(), &start, &size)?)
    }

    /// Axes that split the batch.
    fn data_axes(&self) -> Result<Vec<Axis>, TrainError> {
        let index = self.param("input", TOKENS)?;
        let ty = &self.runtime.describe(Buf::Param(index))?.1;
        Ok(ty.dims.first().map(|d| d.axes.clone()).unwrap_or_default())
    }

    fn data_ranks(&self) -> Result<usize, TrainError> {
        Ok(self.exe.program.mesh.span(&self.data_axes()?))
    }

    /// Keeps a copy of the initial values, so that [`Trainer::norms`] can tell changes.
    pub fn keep_start(&mut self) -> Result<(), TrainError> {
        let mut start = BTreeMap::new();
        for t in &self.exe.meta.tensors {
            start.insert(t.name.clone(), self.value(&t.name)?);
        }
        self.start = Some(start);
        Ok(())
    }

    /// Runs one step.
    pub fn step(&mut self) -> Result<Step, TrainError> {
        let (tokens, labels, t) =
            (self.param("input", TOKENS)?, self.param("input", LABELS)?, self.param("input", "t")?);
        let mut hashes = Vec::new();
        let mut per_rank = 0;
        for rank in 0..self.runtime.ranks() {
            let part = self.runtime.parts(rank, Buf::Param(tokens))?[0];
            let (mut ids, mut next) = (Vec::new(), Vec::new());
            for b in part.start..part.start + part.len {
                let row: Vec<i32> = self.data.row(self.step, b)?.iter().map(|x| *x as i32).collect();
                ids.extend_from_slice(&row[..row.len() - 1]);
                next.extend_from_slice(&row[1..]);
            }
            hashes.push(token_hash(&ids));
            per_rank = ids.len();
            self.runtime.write(rank, tokens, &bytes_of(&ids))?;
            self.runtime.write(rank, labels, &bytes_of(&next))?;
            self.runtime.write_f64(rank, t, &[(self.step + 1) as f64])?;
        }
        // A few tokens repeat by chance in any text; equal hashes of them prove nothing.
        let check = TokenCheck { hashes, data_axes: self.data_axes()?, may_repeat: per_rank < FEWEST };
        let cpu = cpu_seconds();
        let report = self
            .runtime
            .step(Some(&check))
            .map_err(|source| TrainError::Step { step: self.step, source: Box::new(source) })?;
        let cpu_seconds = cpu_seconds() - cpu;
        let loss = self.runtime.read_f64(0, Buf::Result(0))?.first().copied().unwrap_or(f64::NAN);
        let tokens = (self.exe.meta.batch * self.exe.meta.seq_len) as f64;
        let step = Step {
            step: self.step,
            loss,
            cpu_seconds,
            tokens_per_second: tokens / report.seconds,
            mfu: self.exe.meta.flops / (report.seconds * self.peak),
            report,
        };
        self.step += 1;
        Ok(step)
    }

    /// A trained tensor, whole, row-major.
    pub fn value(&self, name: &str) -> Result<Vec<f64>, TrainError> {
        let index = self.param("parameter", name)?;
        Ok(self.runtime.read_global(Buf::Param(index))?)
    }

    /// The last step's gradient of a tensor, whole.
    pub fn gradient(&self, name: &str) -> Result<Vec<f64>, TrainError> {
        let entry = &self.exe.program.functions[self.exe.program.entry];
        let updated = format!("{name}.new");
        let at = entry.results.iter().position(|(n, _)| *n == updated);
        let at = at.ok_or(TrainError::Missing { what: "gradient of parameter", name: name.to_string() })?;
        // Results of a parameter: value, two moments, gradient.
        Ok(self.runtime.read_global(Buf::Result(at + 3))?)
    }

    /// Norms of every tensor and of its change.
    pub fn norms(&self) -> Result<BTreeMap<String, Norms>, TrainError> {
        let mut out = BTreeMap::new();
        for t in &self.exe.meta.tensors {
            let now = self.value(&t.name)?;
            let norm = now.iter().map(|x| x * x).sum::<f64>().sqrt();
            let start = self.start.as_ref().and_then(|s| s.get(&t.name));
            let delta = start.map_or(f64::NAN, |s| now.iter().zip(s).map(|(a, b)| (a - b).powi(2)).sum::<f64>().sqrt());
            out.insert(t.name.clone(), Norms { norm, delta });
        }
        Ok(out)
    }

    /// Writes the last step's gradients: F64 in f64 runs, else F32.
    pub fn write_gradients(&self, path: &Path) -> Result<(), TrainError> {
        let read = |name: &str| self.gradient(name);
        self.write_tensors(path, &read)
    }

    /// Writes the weights, and the configuration beside them, into a folder.
    pub fn save(&self, folder: &Path) -> Result<(), TrainError> {
        std::fs::create_dir_all(folder).map_err(|e| WeightsError::io(folder, e))?;
        let read = |name: &str| self.value(name);
        self.write_tensors(&folder.join("model.safetensors"), &read)?;
        if let Some(config) = &self.exe.meta.config {
            let path = folder.join("config.json");
            let text = format!("{config:#}\n");
            std::fs::write(&path, text).map_err(|e| WeightsError::io(&path, e))?;
        }
        Ok(())
    }

    fn write_tensors(
        &self,
        path: &Path,
        read: &dyn Fn(&str) -> Result<Vec<f64>, TrainError>,
    ) -> Result<(), TrainError> {
        let tensors = &self.exe.meta.tensors;
        let values = tensors.iter().map(|t| read(&t.name)).collect::<Result<Vec<_>, _>>()?;
        let narrow: Vec<Vec<f32>> = match self.dtype {
            DType::F64 => Vec::new(),
            _ => values.iter().map(|v| v.iter().map(|x| *x as f32).collect()).collect(),
        };
        let out: Vec<safetensors::Tensor> = tensors
            .iter()
            .enumerate()
            .map(|(i, t)| safetensors::Tensor {
                name: &t.name,
                shape: &t.shape,
                values: if narrow.is_empty() { Values::F64(&values[i]) } else { Values::F32(&narrow[i]) },
            })
            .collect();
        Ok(safetensors::write(path, &out)?)
    }

    /// The ranks.
    pub fn runtime(&self) -> &Runtime {
        &self.runtime
    }

    /// Memory of the largest rank, bytes.
    pub fn memory(&self) -> usize {
        (0..self.runtime.ranks()).map(|r| self.runtime.memory(r)).max().unwrap_or(0)
    }
}

fn bytes_of(ids: &[i32]) -> Vec<u8> {
    ids.iter().flat_map(|x| x.to_le_bytes()).collect()
}

/// User and system seconds of this process so far (0 where the system does not tell).
pub fn cpu_seconds() -> f64 {
    let Ok(stat) = std::fs::read_to_string("/proc/self/stat") else { return 0.0 };
    // Fields after the command in parentheses: 12 and 13 are user and system ticks of 1/100 s.
    let Some((_, rest)) = stat.rsplit_once(')') else { return 0.0 };
    let ticks: f64 = rest.split_whitespace().skip(11).take(2).filter_map(|x| x.parse::<f64>().ok()).sum();
    ticks / 100.0
}

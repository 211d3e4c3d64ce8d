//! The predictor as the commands' [`Backend`]: models and machines by name, rows of run files.

use super::predictor::{Job, Overrides, Predictor, Says};
use super::range::{range, Likeness, Validated};
use super::{Backend, ModelFacts, PredictError, Prediction, Request, Stage, TableKind, TableScore, Timer};
use crate::accuracy::knobs::with_values;
use crate::decoder::{Decoder, RowError};
use crate::runs::{GradDtype, GroupKey, RunRow};
use crate::words::suggestion;
use crate::{collectives, hardware, kernels, stacks};
use autoshard_cost::cluster::Cluster;
use autoshard_cost::device::Device;
use autoshard_cost::stack::Stack;
use autoshard_passes::predict::step::Scratch;
use autoshard_passes::predict::trace::Event;
use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// A decoder behind the name that its profiles are kept by.
pub type Named = Arc<(String, Decoder)>;

/// The predictor with the models that it has read.
#[derive(Debug, Default)]
pub struct Wired {
    predictor: Predictor,
    rows: Mutex<HashMap<String, Result<Named, RowError>>>,
    files: Mutex<HashMap<String, Named>>,
    validated: OnceLock<Vec<Validated>>,
}

impl Wired {
    /// One that uses a user's tables in place of those that ship.
    pub fn with_tables(tables: Overrides) -> Wired {
        Wired { predictor: Predictor::with_tables(tables), ..Wired::default() }
    }

    /// What predicts: for a search, which asks it thousands of times.
    pub fn predictor(&self) -> &Predictor {
        &self.predictor
    }

    /// The model of a configuration, read once.
    ///
    /// # Errors
    /// Where it cannot be read.
    pub fn file(&self, path: &Path) -> Result<Named, PredictError> {
        let key = path.display().to_string();
        let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(found) = files.get(&key) {
            return Ok(found.clone());
        }
        let decoder = Decoder::load(path).map_err(|e| unreadable(path, e.to_string()))?;
        let made = Arc::new((key.clone(), decoder));
        files.insert(key, made.clone());
        Ok(made)
    }

    /// Predicts, with the range that validated runs like it give.
    fn predicted(&self, job: &Job, group: &GroupKey) -> Result<Prediction, PredictError> {
        let mut p = self.predictor.predict(job)?;
        if self.validated.get().is_none() {
            let runs = stacks::validated::validated().map_err(|e| PredictError::Json(e.to_string()))?;
            let _ = self.validated.set(runs);
        }
        let kind = (super::facts::of(job.decoder).experts > 0, job.precision.format().bytes() < 2.0);
        let like = Likeness::new(group, kind, job.layout.devices(), &p, job.cluster);
        if let Some(r) = range(&like, self.validated.get().into_iter().flatten()) {
            (p.low, p.high) = (r.low * p.step_seconds, r.high * p.step_seconds);
            if r.borrowed > 0.5 {
                p.marks.push(format!("few runs of {} were validated: the range is other frameworks'", like.stack));
            }
        }
        Ok(p)
    }

    fn row(&self, row: &RunRow) -> Result<Named, PredictError> {
        let mut rows = self.rows.lock().unwrap_or_else(PoisonError::into_inner);
        let key = || format!("{} {}", row.block, row.model);
        let found = rows
            .entry(row.id.clone())
            .or_insert_with(|| Decoder::from_row(&row.block, &row.model).map(|d| Arc::new((key(), d))));
        found.clone().map_err(|e| PredictError::Missing {
            entity: row.id.clone(),
            what: format!("a model ({e})"),
            instead: "state block and model as data/runs does".to_string(),
        })
    }
}

/// Why a model's file cannot be read; the path once.
fn unreadable(path: &Path, why: String) -> PredictError {
    match why.starts_with(&path.display().to_string()) {
        true => PredictError::Json(why),
        false => PredictError::Model { path: path.to_path_buf(), why },
    }
}

/// A request as a job.
fn asked<'a>(r: &'a Request, model: &'a Named) -> Job<'a> {
    Job {
        key: &model.0,
        decoder: &model.1,
        cluster: r.cluster,
        stack: r.stack,
        layout: r.layout,
        layers_per_stage: r.layers_per_stage,
        seq_len: r.seq_len,
        precision: r.precision,
        says: Says::default(),
    }
}

/// A row as a job.
fn job<'a>(row: &'a RunRow, model: &'a Named, machine: &'a Cluster, stack: &'a Stack) -> Result<Job<'a>, PredictError> {
    if row.offload_optimizer || row.offload_activation_layers.is_some_and(|n| n > 0) {
        return Err(PredictError::Later {
            what: "offloading to the host".to_string(),
            instead: "leave such runs out".to_string(),
        });
    }
    Ok(Job {
        key: &model.0,
        decoder: &model.1,
        cluster: machine,
        stack,
        layout: &row.layout,
        layers_per_stage: row.layers_per_stage.as_deref(),
        seq_len: row.seq_len,
        precision: row.precision,
        says: Says {
            tensor_overlap: row.tp_overlap,
            data_overlap: row.dp_overlap,
            gradient_bytes: row.grad_dtype.map(|d| match d {
                GradDtype::F32 => 4.0,
                GradDtype::Bf16 | GradDtype::F16 => 2.0,
            }),
            compiled: row.compile,
            dropout: row.dropout,
        },
    })
}

impl Backend for Wired {
    fn model(&self, path: &Path) -> Result<ModelFacts, PredictError> {
        if path.extension().is_some_and(|e| e == "shard") {
            return super::facts::read(path);
        }
        Ok(super::facts::of(&self.file(path)?.1))
    }

    fn cluster(&self, name: &str) -> Result<Cluster, PredictError> {
        hardware::cluster(name).map_err(|e| PredictError::Json(e.to_string()))
    }

    fn device(&self, name: &str) -> Result<Device, PredictError> {
        hardware::device(name).map_err(|e| PredictError::Json(e.to_string()))
    }

    fn stack(&self, name: &str) -> Result<Stack, PredictError> {
        stacks::find(name).map(|s| s.stack).map_err(|_| {
            let names: Vec<&str> = stacks::names().collect();
            let near = suggestion(name, names.iter().copied());
            PredictError::Unknown { what: "stack", name: name.to_string(), known: names.join(", "), near }
        })
    }

    fn predict(&self, r: &Request) -> Result<Prediction, PredictError> {
        let model = self.file(r.model)?;
        let facts = super::facts::of(&model.1);
        let group = GroupKey {
            stack: r.stack.name.clone(),
            hidden: model.1.hidden as u64,
            heads: facts.heads,
            accelerator: r.cluster.device.id.clone(),
        };
        self.predicted(&asked(r, &model), &group)
    }

    fn trace(&self, r: &Request) -> Result<Vec<Event>, PredictError> {
        self.predictor.trace(&asked(r, &self.file(r.model)?))
    }

    fn predict_row(&self, row: &RunRow, machine: &Cluster, stack: &Stack) -> Result<Prediction, PredictError> {
        let model = self.row(row)?;
        let group = GroupKey { stack: stack.name.clone(), ..row.group.clone() };
        let job = job(row, &model, machine, stack)?;
        match self.predicted(&job, &group) {
            // Where no time is compared, a layout without one can still be judged.
            Err(e) if row.has_memory() && !row.measured.has_time() => {
                let stage = |memory| Stage { memory: Some(memory), ..Stage::default() };
                let stages = self.predictor.memory(&job)?.into_iter().map(stage).collect();
                Ok(Prediction { stages, marks: vec![format!("no time: {e}")], ..Prediction::default() })
            }
            answer => answer,
        }
    }

    fn timer<'a>(&'a self, row: &'a RunRow, machine: &'a Cluster, stack: &'a Stack) -> Timer<'a> {
        let ready = self.row(row).and_then(|model| {
            let ready = self.predictor.prepare(&job(row, &model, machine, stack)?)?;
            Ok((model, ready))
        });
        let Ok((model, ready)) = ready else { return Box::new(|_| f64::NAN) };
        let scratch = Mutex::new(Scratch::default());
        Box::new(move |values| {
            let Ok(job) = job(row, &model, machine, stack) else { return f64::NAN };
            let stack = with_values(stack, values);
            let mut scratch = scratch.lock().unwrap_or_else(PoisonError::into_inner);
            ready.play(&job, &stack, &mut scratch, false).map_or(f64::NAN, |(_, t)| t.seconds)
        })
    }
    fn score_kernels(&self, _: TableKind, device: &Device, file: &str, text: &str) -> Result<TableScore, PredictError> {
        let refuse = |e: String| PredictError::Json(format!("{file}: {e}"));
        let rows = autoshard_cost::kernels::rows::parse(text).map_err(|e| refuse(e.to_string()))?;
        let kernels = kernels::shipped(device).map_err(|e| refuse(e.to_string()))?;
        let e = autoshard_cost::kernels::evaluate(&kernels, &rows).ok_or_else(|| refuse("no rows".to_string()))?;
        Ok(TableScore {
            rows: e.rows,
            median_ape: e.median_ape,
            p90_ape: e.p90_ape,
            bias: e.bias,
            extrapolated: e.extrapolated,
        })
    }

    fn score_collectives(&self, device: &Device, file: &str, text: &str) -> Result<TableScore, PredictError> {
        let refuse = |e: String| PredictError::Json(format!("{file}: {e}"));
        let rows = collectives::rows(text).map_err(|e| refuse(e.to_string()))?;
        let tables = collectives::shipped().map_err(|e| refuse(e.to_string()))?;
        let e = autoshard_cost::collectives::evaluate::evaluate(&rows, &device.id, &tables)
            .ok_or_else(|| refuse(format!("no table of collectives for {}", device.id)))?;
        Ok(TableScore {
            rows: e.rows,
            median_ape: e.median_ape,
            p90_ape: e.p90_ape,
            bias: e.bias,
            extrapolated: e.extrapolated,
        })
    }
}

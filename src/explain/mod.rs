//! Why a plan is as it is: what binds, what each other decision would cost, what happens to one value, and how
//! two plans differ.
//!
//! A plan file holds no costs, so all of it is predicted again ([`Subject`]). An alternative is a change of one
//! decision ([`change`]); the others are kept, and those that cannot stay follow.

pub mod alternatives;
pub mod change;
pub mod diff;
pub mod text;
pub mod value;

use crate::decoder::Decoder;
use crate::planfile::{ModelError, PlanFile};
use crate::predict::predictor::{Job, Predictor, Says};
use crate::predict::settings::Impossible;
use crate::predict::{facts, machine, Layout, ModelFacts, Order, PredictError, Prediction};
use crate::report::stages::Room;
use crate::stacks;
use crate::words::suggestion;
use autoshard_cost::cluster::Cluster;
use autoshard_cost::stack::Stack;
use std::path::Path;

/// Why a plan is not explained.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum ExplainError {
    #[error(transparent)]
    Model(#[from] ModelError),
    #[error("{0}")]
    Configuration(String),
    #[error("the plan's cluster: {0}")]
    Cluster(String),
    #[error("the plan's stack {name:?} is unknown; known: {known}{near}")]
    Stack { name: String, known: String, near: String },
    #[error("the plan cannot be: {0}")]
    Impossible(#[from] Impossible),
    #[error("the plan's `layers_per_stage` has {stated} layers, and the model {layers}; plan again")]
    Layers { stated: u64, layers: u64 },
    #[error(transparent)]
    Predict(#[from] PredictError),
    #[error("no value and no operation is named {name:?}{near}; the functions are {functions}: `%NAME` and operations in their text")]
    Unknown { name: String, near: String, functions: String },
}

/// A plan with everything that it names.
#[derive(Clone, Debug)]
pub struct Subject {
    /// The plan.
    pub plan: PlanFile,
    /// What checks know of the model.
    pub facts: ModelFacts,
    /// The model.
    pub decoder: Decoder,
    /// The machine.
    pub cluster: Cluster,
    /// The framework.
    pub stack: Stack,
    /// Memory that it may use.
    pub room: Room,
    /// Layers by stage where they are not those of the usual cut, which may split a stage's chunks in its own way.
    pub stated: Option<Vec<u64>>,
    /// What its step takes.
    pub prediction: Prediction,
}

/// Reads what a plan names and predicts it. `model` is where the model is, if that is not where the plan says;
/// `folder` is the plan's, from which it is also looked for.
///
/// # Errors
/// A model that is not the plan's, names that are not there, decisions that the model does not allow.
pub fn load(
    plan: PlanFile,
    folder: &Path,
    model: Option<&Path>,
    predictor: &Predictor,
) -> Result<Subject, ExplainError> {
    let path = match model {
        Some(path) => path.to_path_buf(),
        None => plan.model.find(folder)?,
    };
    plan.model.check(&path)?;
    let decoder = Decoder::load(&path).map_err(|e| ExplainError::Configuration(e.to_string()))?;
    let cluster = machine(&plan.cluster, plan.devices).map_err(|e| ExplainError::Cluster(e.to_string()))?;
    let stack = stack(&plan.stack)?;
    let facts = facts::of(&decoder);
    plan.settle(&facts, Order::of(stack.habits.stages_inside))?;
    let stated: u64 = plan.layers_per_stage.iter().sum();
    if stated != facts.layers {
        return Err(ExplainError::Layers { stated, layers: facts.layers });
    }
    let room = Room::new(&cluster.device, plan.memory.limit_gib, plan.memory.margin);
    let prediction = Prediction::default();
    let mut out = Subject { plan, facts, decoder, cluster, stack, room, stated: None, prediction };
    out.prediction = out.predict(&out.plan.layout, None, predictor)?;
    let usual: Vec<u64> = out.prediction.stages.iter().map(|s| s.layers).collect();
    if usual != out.plan.layers_per_stage {
        out.stated = Some(out.plan.layers_per_stage.clone());
        out.prediction = out.predict(&out.plan.layout, out.stated.as_deref(), predictor)?;
    }
    Ok(out)
}

fn stack(name: &str) -> Result<Stack, ExplainError> {
    stacks::find(name).map(|s| s.stack).map_err(|_| {
        let names: Vec<&str> = stacks::names().collect();
        let near = suggestion(name, names.iter().copied());
        ExplainError::Stack { name: name.to_string(), known: names.join(", "), near }
    })
}

impl Subject {
    /// The job of a layout on the plan's machine.
    pub fn job<'a>(&'a self, layout: &'a Layout, layers_per_stage: Option<&'a [u64]>) -> Job<'a> {
        Job {
            key: &self.plan.model.sha256,
            decoder: &self.decoder,
            cluster: &self.cluster,
            stack: &self.stack,
            layout,
            layers_per_stage,
            seq_len: self.plan.seq_len,
            precision: self.plan.precision,
            says: Says::default(),
        }
    }

    /// What a step of a layout takes on the plan's machine.
    ///
    /// # Errors
    /// As [`Predictor::predict`].
    pub fn predict(
        &self,
        layout: &Layout,
        layers_per_stage: Option<&[u64]>,
        predictor: &Predictor,
    ) -> Result<Prediction, PredictError> {
        predictor.predict(&self.job(layout, layers_per_stage))
    }

    /// Tokens of a step.
    pub fn tokens(&self) -> f64 {
        self.plan.global_batch as f64 * self.plan.seq_len as f64
    }

    /// How the stack lays ranks out where a plan does not say.
    pub fn order(&self) -> Order {
        self.plan.layout.order.unwrap_or(Order::of(self.stack.habits.stages_inside))
    }
}

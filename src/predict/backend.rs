//! Who answers: the seam between what asks for predictions (commands, validation, fitting) and what makes
//! them.

use super::{Layout, Precision, Prediction};
use crate::runs::RunRow;
use autoshard_cost::cluster::Cluster;
use autoshard_cost::device::Device;
use autoshard_cost::stack::Stack;
use autoshard_passes::predict::trace::Event;
use std::path::{Path, PathBuf};

pub use super::facts::ModelFacts;

/// What a prediction is asked for.
#[derive(Clone, Debug)]
pub struct Request<'a> {
    /// The model's configuration.
    pub model: &'a Path,
    /// What checks have read of it.
    pub facts: &'a ModelFacts,
    /// The machine.
    pub cluster: &'a Cluster,
    /// Devices that are used.
    pub devices: u64,
    /// Positions of a sequence.
    pub seq_len: u64,
    /// Number format of products.
    pub precision: Precision,
    /// The framework.
    pub stack: &'a Stack,
    /// The layout; its batch is dp·micro_batch·microbatches.
    pub layout: &'a Layout,
    /// Decoder layers of each pipeline stage, where they are not those of the usual cut.
    pub layers_per_stage: Option<&'a [u64]>,
}

/// Why there is no prediction.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs)]
pub enum PredictError {
    #[error("{path}: {why}")]
    Model { path: PathBuf, why: String },
    /// The file is no JSON; the message names it.
    #[error("{0}")]
    Json(String),
    #[error("unknown {what} {name:?}; known: {known}{near}")]
    Unknown { what: &'static str, name: String, known: String, near: String },
    /// It is understood and not served; `instead` says what to do.
    #[error("{what} is not predicted yet; {instead}")]
    Later { what: String, instead: String },
    /// Something that a prediction needs is not there.
    #[error("{entity}: {what} is missing; {instead}")]
    Missing { entity: String, what: String, instead: String },
}

/// Seconds of a row's step by values of its stack's constants, in their order.
pub type Timer<'a> = Box<dyn Fn(&[f64]) -> f64 + Send + Sync + 'a>;

/// Loads machines, models and stacks by name, and predicts.
pub trait Backend: Sync {
    /// What checks need to know of a model.
    ///
    /// # Errors
    /// Where it cannot be read.
    fn model(&self, path: &Path) -> Result<ModelFacts, PredictError>;

    /// The machine of a preset's name or a JSON file.
    ///
    /// # Errors
    /// Where there is none, naming the nearest.
    fn cluster(&self, name: &str) -> Result<Cluster, PredictError>;

    /// The device of an accelerator id or alias.
    ///
    /// # Errors
    /// Where there is none, naming the nearest.
    fn device(&self, name: &str) -> Result<Device, PredictError>;

    /// The framework of a name.
    ///
    /// # Errors
    /// Where there is none, naming the nearest.
    fn stack(&self, name: &str) -> Result<Stack, PredictError>;

    /// The time of a step.
    ///
    /// # Errors
    /// Where the model, the layout or the machine is not served.
    fn predict(&self, request: &Request) -> Result<Prediction, PredictError>;

    /// What runs when in a step.
    ///
    /// # Errors
    /// As [`Backend::predict`], and where the backend keeps no timeline.
    fn trace(&self, request: &Request) -> Result<Vec<Event>, PredictError> {
        let what = format!("the timeline of a step on {}", request.cluster.id);
        Err(PredictError::Later { what, instead: "leave --trace out".to_string() })
    }

    /// The time of a measured run's step, by the constants of `stack`. `machine` is the row's cluster as
    /// [`crate::runs::machine()`] chooses it.
    ///
    /// # Errors
    /// Where the row is not served: it is skipped with this reason, which is counted over rows, so it should
    /// not name the row.
    fn predict_row(&self, row: &RunRow, machine: &Cluster, stack: &Stack) -> Result<Prediction, PredictError>;

    /// The same row many times, by other values of the stack's constants: what a search for constants calls
    /// thousands of times. A backend that can keep what does not depend on them should. A step that cannot be
    /// predicted is NaN.
    fn timer<'a>(&'a self, row: &'a RunRow, machine: &'a Cluster, stack: &'a Stack) -> Timer<'a> {
        Box::new(move |values| {
            let stack = crate::accuracy::knobs::with_values(stack, values);
            self.predict_row(row, machine, &stack).map_or(f64::NAN, |p| p.step_seconds)
        })
    }

    /// Holds a table of measured products or attention against the device's prices. `file` is its name in
    /// messages, `text` the CSV with its header.
    ///
    /// # Errors
    /// Where a row cannot be read or the device has no prices.
    fn score_kernels(
        &self,
        kind: TableKind,
        device: &Device,
        file: &str,
        text: &str,
    ) -> Result<TableScore, PredictError>;

    /// The same for a table of collectives.
    ///
    /// # Errors
    /// Where a row cannot be read or the device has no prices.
    fn score_collectives(&self, device: &Device, file: &str, text: &str) -> Result<TableScore, PredictError>;
}

/// How far a table of measured kernels or messages is from what the same sizes are priced at.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TableScore {
    /// Rows of the table.
    pub rows: usize,
    /// Median absolute relative error.
    pub median_ape: f64,
    /// Nine of ten absolute errors are below it.
    pub p90_ape: f64,
    /// Mean signed relative error: above 0 is priced too slow.
    pub bias: f64,
    /// Rows outside of what the device's own table covers.
    pub extrapolated: usize,
}

/// What a table measures, told by its columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TableKind {
    /// `dtype,m,n,k,us`.
    Products,
    /// `batch,seq,heads,kv_heads,head_dim,us`.
    Attention,
    /// `op,ranks,bytes,us`.
    Collectives,
}

impl TableKind {
    /// The kind of a table with these columns.
    ///
    /// # Errors
    /// Where there is no such kind, naming those that are.
    pub fn of_columns(header: &str) -> Result<TableKind, PredictError> {
        let header = header.trim().trim_start_matches('\u{feff}');
        let known = [
            ("dtype,m,n,k,us", TableKind::Products),
            ("batch,seq,heads,kv_heads,head_dim,us", TableKind::Attention),
            ("op,ranks,bytes,us", TableKind::Collectives),
        ];
        known.iter().find(|(columns, _)| *columns == header).map(|(_, kind)| *kind).ok_or_else(|| {
            let columns: Vec<&str> = known.iter().map(|(c, _)| *c).collect();
            let near = crate::words::suggestion(header, columns.iter().copied());
            let name = header.chars().take(80).collect();
            PredictError::Unknown { what: "columns", name, known: columns.join("; "), near }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_are_told_by_their_columns() {
        assert_eq!(TableKind::of_columns("op,ranks,bytes,us\r"), Ok(TableKind::Collectives));
        let e = TableKind::of_columns("op,rank,bytes,us").unwrap_err().to_string();
        assert!(e.contains("did you mean `op,ranks,bytes,us`?"), "{e}");
    }
}

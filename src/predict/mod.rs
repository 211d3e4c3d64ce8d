//! Prediction of a training step on a cluster: what is asked, what comes out, and who answers.

mod answer;
pub mod axes;
pub mod backend;
pub mod cut;
pub mod facts;
pub mod fix;
pub(crate) mod memory;
pub(crate) mod places;
pub mod predictor;
pub(crate) mod prices;
pub mod range;
pub mod settings;
mod shaped;
mod trace;
mod types;
pub mod wired;

pub use backend::{Backend, ModelFacts, PredictError, Request, TableKind, TableScore, Timer};
pub use types::*;

use crate::hardware::{self, Preset};
use autoshard_cost::cluster::Cluster;
use std::path::PathBuf;

/// The cluster whose ranks are threads of the computer that plans.
pub const THIS_MACHINE: &str = "this-machine";

/// The machine of a name or a file, for so many devices: ranks of this machine share it, however many there are.
///
/// # Errors
/// Unknown names, naming the nearest; files that are no cluster.
pub fn machine(name: &str, devices: u64) -> Result<Cluster, PredictError> {
    let wrong = |e: &dyn std::fmt::Display| PredictError::Json(e.to_string());
    match name {
        THIS_MACHINE => {
            let preset = Preset::this_machine().map_err(|e| wrong(&e))?;
            Ok(preset.cluster(usize::try_from(devices).unwrap_or(usize::MAX)))
        }
        _ => hardware::cluster(name).map_err(|e| wrong(&e)),
    }
}

/// Who answers in this build.
pub fn backend() -> impl Backend {
    wired::Wired::default()
}

/// The same with a user's tables of kernels and collectives in place of those that ship.
///
/// # Errors
/// A file that cannot be read.
pub fn backend_with(files: &[PathBuf]) -> Result<wired::Wired, PredictError> {
    Ok(wired::Wired::with_tables(predictor::Overrides::of_files(files)?))
}

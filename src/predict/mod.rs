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

use std::path::PathBuf;

/// Who answers in this build.
pub fn backend() -> impl Backend {
    wired::Wired::default()
}

/// The same with a user's tables of kernels and collectives in place of those that ship.
///
/// # Errors
/// A file that cannot be read.
pub fn backend_with(files: &[PathBuf]) -> Result<impl Backend, PredictError> {
    Ok(wired::Wired::with_tables(predictor::Overrides::of_files(files)?))
}

//! From a model's description to what the compiler works on.
//!
//! A Hugging Face `config.json` becomes a [`config::ModelConfig`]: sizes, switches, rotary frequencies and
//! windows, all resolved, nothing left to a default that was not looked up in [`families`]. The families
//! are data; a new one is a table entry, not a branch.

pub mod build;
pub mod config;
pub mod families;
mod foreign;
pub mod params;
pub(crate) mod read;
pub mod rope;
#[cfg(test)]
mod tests;

pub use config::{load, ConfigError, ModelConfig};
pub use families::{Family, Role};
pub use params::{num_params, params, ParamSpec};
pub use rope::Rope;

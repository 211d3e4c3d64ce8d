//! The model that a plan was made for, and whether it is still the same.

use crate::artifact;
use std::path::{Path, PathBuf};

/// A model by its configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ModelRef {
    /// The `config.json` or the folder holding one, as it was given; relative to the folder of the command, or to
    /// the plan's.
    pub file: String,
    /// SHA-256 of the bytes of `config.json`, in lower-case hexadecimal.
    pub sha256: String,
    /// Its family, for people: `model_type`.
    pub name: String,
}

/// Why a plan's model cannot be used.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum ModelError {
    #[error("{path}: plans are of configurations; give a config.json or a folder holding one")]
    Text { path: PathBuf },
    #[error("{path}: cannot read the configuration: {why}")]
    Unreadable { path: PathBuf, why: String },
    #[error(
        "the plan's model {file} is neither here nor beside the plan in {folder}; say where it is by --model, or run from the \
         folder where the plan was made"
    )]
    Absent { file: String, folder: PathBuf },
    #[error(
        "{path} is not the configuration that the plan was made for: its SHA-256 is {now}, the plan's {then}; give \
         the model of the plan, or plan again"
    )]
    Changed { path: PathBuf, now: String, then: String },
}

impl ModelRef {
    /// Names the model of a path.
    ///
    /// # Errors
    /// IR text, or a configuration that cannot be read.
    pub fn of(path: &Path, name: &str) -> Result<ModelRef, ModelError> {
        Ok(ModelRef { file: path.display().to_string(), sha256: checksum(path)?, name: name.to_string() })
    }

    /// Where the model is: as it was given, or from `folder`, the plan's.
    ///
    /// # Errors
    /// Where it is in neither place.
    pub fn find(&self, folder: &Path) -> Result<PathBuf, ModelError> {
        let places = [PathBuf::from(&self.file), folder.join(&self.file)];
        let found = places.into_iter().find(|p| p.exists());
        found.ok_or_else(|| ModelError::Absent { file: self.file.clone(), folder: folder.to_path_buf() })
    }

    /// Holds a model against this one.
    ///
    /// # Errors
    /// Another configuration, or none.
    pub fn check(&self, path: &Path) -> Result<(), ModelError> {
        match checksum(path)? {
            now if now == self.sha256 => Ok(()),
            now => Err(ModelError::Changed { path: configuration(path), now, then: self.sha256.clone() }),
        }
    }
}

/// The file of a model that is a file or a folder.
fn configuration(path: &Path) -> PathBuf {
    if path.is_dir() {
        path.join("config.json")
    } else {
        path.to_path_buf()
    }
}

fn checksum(path: &Path) -> Result<String, ModelError> {
    if path.extension().is_some_and(|e| e == "shard") {
        return Err(ModelError::Text { path: path.to_path_buf() });
    }
    let file = configuration(path);
    artifact::checksum(&file).map_err(|e| ModelError::Unreadable { path: file, why: e.to_string() })
}

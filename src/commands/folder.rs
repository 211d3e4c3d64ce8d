//! What lies beside a model: `run.json`, `train.txt`, weights.

use super::{suggestion, Failure};
use autoshard::json::Document;
use autoshard::weights::safetensors::{INDEX, SINGLE};
use serde_json::Value;
use std::path::{Path, PathBuf};

/// What an example's `run.json` sets.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct RunFile {
    /// Number of steps.
    pub steps: Option<usize>,
    /// Learning rate.
    pub lr: Option<f64>,
    /// Tokens of a sequence.
    pub seq_len: Option<usize>,
}

/// The folder of a model that is a folder or a file.
pub fn of(model: &Path) -> PathBuf {
    match model.parent() {
        _ if model.is_dir() => model.to_path_buf(),
        Some(parent) if !parent.as_os_str().is_empty() => parent.to_path_buf(),
        _ => PathBuf::from("."),
    }
}

/// The folder's text, if it has one.
pub fn text(folder: &Path) -> Option<PathBuf> {
    Some(folder.join("train.txt")).filter(|p| p.is_file())
}

/// The folder, if it holds weights.
pub fn weights(folder: &Path) -> Option<PathBuf> {
    let holds = [SINGLE, INDEX].iter().any(|name| folder.join(name).is_file());
    holds.then(|| folder.to_path_buf())
}

/// Reads `run.json`, if there is one.
pub fn run_file(folder: &Path) -> Result<RunFile, Failure> {
    let path = folder.join("run.json");
    if !path.is_file() {
        return Ok(RunFile::default());
    }
    let doc = Document::read(&path)?;
    let wrong = |message: String| Failure::Failed(format!("{}: {message}", path.display()));
    let Value::Object(map) = &doc.value else {
        return Err(wrong("it must be an object with the keys steps, lr, seq_len".to_string()));
    };
    let mut out = RunFile::default();
    for (key, value) in map {
        let whole = || {
            let n = super::args::size(&value.to_string());
            n.map(Some).map_err(|m| wrong(format!("`{key}` is {value}: {m}")))
        };
        match key.as_str() {
            "steps" => out.steps = whole()?,
            "seq_len" => out.seq_len = whole()?,
            "lr" => {
                let x = super::args::rate(&value.to_string());
                out.lr = Some(x.map_err(|m| wrong(format!("`lr` is {value}: {m}")))?);
            }
            _ => {
                let near = suggestion(key, ["steps", "lr", "seq_len"]);
                return Err(wrong(format!("unknown key `{key}`; the keys are steps, lr, seq_len{near}")));
            }
        }
    }
    Ok(out)
}

//! Files of a plan: the plan itself, launch files, the timeline of a step.

use super::answer::{request, Chosen};
use super::question::Question;
use crate::commands::validate::failure;
use crate::commands::Failure;
use autoshard::emit::{emit, Emitted, Framework, Launch};
use autoshard::planfile;
use autoshard::predict::wired::Wired;
use autoshard::predict::Backend;
use autoshard::report;
use serde_json::{json, Value};
use std::fmt::Write;
use std::path::{Path, PathBuf};

fn cannot(flag: &str, path: &Path, e: &std::io::Error) -> Failure {
    Failure::Failed(format!("{flag} {}: cannot write: {e}", path.display()))
}

/// Writes the plan.
pub fn plan(file: &Path, chosen: &Chosen) -> Result<(), Failure> {
    std::fs::write(file, planfile::write(&chosen.plan)).map_err(|e| cannot("-o", file, &e))
}

/// Writes the timeline of a step.
pub fn trace(file: &Path, q: &Question, chosen: &Chosen, backend: &Wired) -> Result<(), Failure> {
    let asked = request(q, &chosen.plan.layout, chosen.plan.seq_len, chosen.stated.as_deref());
    let events = backend.trace(&asked).map_err(failure)?;
    let text = format!("{}\n", report::trace::json(&events));
    std::fs::write(file, text).map_err(|e| cannot("--trace", file, &e))
}

/// Launch files that were written.
pub struct Written {
    framework: Framework,
    folder: PathBuf,
    emitted: Emitted,
}

/// Writes the launch files of a plan into a folder; its own older ones are replaced.
pub fn launch(framework: Framework, folder: Option<&Path>, q: &Question, chosen: &Chosen) -> Result<Written, Failure> {
    let folder = folder.map_or_else(|| PathBuf::from(format!("launch-{framework}")), Path::to_path_buf);
    let plan = &chosen.plan;
    let emitted = emit(
        framework,
        &Launch {
            decoder: &q.named.1,
            model_file: &q.model,
            cluster: &q.cluster,
            layout: &plan.layout,
            layers_per_stage: &plan.layers_per_stage,
            seq_len: plan.seq_len,
            global_batch: plan.global_batch,
            precision: plan.precision,
        },
    );
    let mut emitted = emitted;
    let vendor = q.cluster.device.vendor.to_lowercase();
    if framework != Framework::MaxText && !["nvidia", "amd"].contains(&vendor.as_str()) {
        emitted.cannot.push(format!("the cluster: it runs on GPUs, and the devices are {}", q.cluster.device.id));
    }
    std::fs::create_dir_all(&folder).map_err(|e| cannot("--emit-dir", &folder, &e))?;
    for (name, text) in &emitted.files {
        let file = folder.join(name);
        std::fs::write(&file, text).map_err(|e| cannot("--emit-dir", &file, &e))?;
    }
    Ok(Written { framework, folder, emitted })
}

impl Written {
    /// Names of the files, and what the framework cannot say.
    pub fn text(&self) -> String {
        let mut out = format!("launch files for {}:\n", self.framework.tool());
        for file in self.files() {
            let _ = writeln!(out, "  {file}");
        }
        for line in &self.emitted.cannot {
            let _ = writeln!(out, "  {} cannot say {line}", self.framework);
        }
        out
    }

    /// The object `emitted` of `plan --json`.
    pub fn json(&self) -> Value {
        json!({"files": self.files(), "cannot": self.emitted.cannot})
    }

    fn files(&self) -> Vec<String> {
        self.emitted.files.iter().map(|(name, _)| self.folder.join(name).display().to_string()).collect()
    }
}

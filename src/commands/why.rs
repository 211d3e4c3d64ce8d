//! `autoshard why`: what binds a plan, and what each other decision would cost.

use super::validate::failure;
use super::{folder, print, Failure};
use autoshard::explain::{self, alternatives::alternatives, text, value, ExplainError, Subject};
use autoshard::planfile;
use autoshard::predict::predictor::{Overrides, Predictor};
use std::path::{Path, PathBuf};

/// Tell why a plan is as it is: what binds, what each alternative costs, what happens to a value
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  autoshard why plan.json\n  autoshard why plan.json logits\n  autoshard why plan.json attention"
)]
pub struct Args {
    /// A plan: what `plan -o` writes, or `plan --json` prints
    #[arg(value_name = "plan.json")]
    plan: PathBuf,
    /// A value of the model's functions, or an operation: its factors, state and messages
    #[arg(value_name = "VALUE")]
    value: Option<String>,
    #[command(flatten)]
    sources: Sources,
}

/// Where a plan's model and times come from.
#[derive(Debug, clap::Args)]
pub struct Sources {
    /// Where the plan's model is [default: where the plan says, from here or from the plan's folder]
    #[arg(long, value_name = "M")]
    model: Option<PathBuf>,
    /// Your own measurements in place of the tables that ship, as for `plan`
    #[arg(long, value_name = "FILE")]
    tables: Vec<PathBuf>,
}

impl Sources {
    /// The predictor with these tables.
    pub fn predictor(&self) -> Result<Predictor, Failure> {
        Ok(Predictor::with_tables(Overrides::of_files(&self.tables).map_err(failure)?))
    }

    /// Reads a plan and what it names.
    pub fn load(&self, file: &Path, predictor: &Predictor) -> Result<Subject, Failure> {
        let plan = read(file)?;
        let wrong = |e: ExplainError| Failure::Failed(format!("{}: {e}", file.display()));
        explain::load(plan, &folder::of(file), self.model.as_deref(), predictor).map_err(wrong)
    }
}

/// Reads a plan file.
pub fn read(file: &Path) -> Result<planfile::PlanFile, Failure> {
    let name = file.display().to_string();
    let text = std::fs::read(file).map_err(|e| Failure::Failed(format!("{name}: cannot read the plan: {e}")))?;
    Ok(planfile::read(&String::from_utf8_lossy(&text), &name)?)
}

/// Explains a plan, or a value under it.
pub fn why(args: &Args) -> Result<(), Failure> {
    let predictor = args.sources.predictor()?;
    let subject = args.sources.load(&args.plan, &predictor)?;
    match &args.value {
        None => print(&text::why(&subject, &alternatives(&subject, &predictor))),
        Some(name) => {
            let sites = value::sites(&subject, name, &predictor).map_err(|e| match e {
                ExplainError::Unknown { .. } => Failure::Usage(e.to_string()),
                _ => Failure::Failed(e.to_string()),
            })?;
            print(&text::value(&subject, &sites))
        }
    }
}

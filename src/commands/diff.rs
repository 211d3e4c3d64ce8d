//! `autoshard diff`: how two plans differ, and what that costs.

use super::why::Sources;
use super::{print, Failure};
use autoshard::explain::{diff::difference, text};
use std::path::PathBuf;

/// Compare two plans: decisions, time and memory by parts, and what each difference costs by itself
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  autoshard diff ours.json theirs.json")]
pub struct Args {
    /// A plan
    #[arg(value_name = "a.json")]
    first: PathBuf,
    /// Another plan
    #[arg(value_name = "b.json")]
    second: PathBuf,
    #[command(flatten)]
    sources: Sources,
}

/// Predicts both and compares.
pub fn diff(args: &Args) -> Result<(), Failure> {
    let predictor = args.sources.predictor()?;
    let a = args.sources.load(&args.first, &predictor)?;
    let b = args.sources.load(&args.second, &predictor)?;
    print(&text::diff(&a, &b, &difference(&a, &b, &predictor)))
}

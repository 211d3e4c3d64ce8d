//! `autoshard validate`: predictions against measured runs, or prices against measured kernels.

use super::{print, Failure};
use autoshard::accuracy::score::{score, summarise};
use autoshard::json::Document;
use autoshard::predict::{backend_with, Backend, PredictError, TableKind, TableScore};
use autoshard::report::validation;
use autoshard::runs;
use std::path::{Path, PathBuf};

/// Threads that predict rows.
const THREADS: usize = 2;

/// Compare predictions with measured runs, or kernel prices with measured kernels
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example:\n  autoshard validate runs.json --json\n  autoshard validate --kernels gemm_h100_sxm.csv --device h100_sxm"
)]
pub struct Args {
    /// A file of runs, or vTrain's table of runs on one server
    #[arg(required_unless_present = "kernels", conflicts_with = "kernels")]
    runs: Option<PathBuf>,
    /// Predict every row as if this framework had run it [default: the row's own]
    #[arg(long, value_name = "NAME", conflicts_with = "kernels")]
    stack: Option<String>,
    /// A table of measured kernels: products, attention or collectives, told by its columns
    #[arg(long, value_name = "FILE.csv", requires = "device")]
    kernels: Option<PathBuf>,
    /// The device of the table
    #[arg(long, value_name = "NAME", requires = "kernels")]
    device: Option<String>,
    /// Your own measurements in place of the tables that ship, as for `plan`
    #[arg(long, value_name = "FILE", conflicts_with = "kernels")]
    tables: Vec<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Reads, predicts, compares, prints.
pub fn validate(args: &Args) -> Result<(), Failure> {
    let backend = backend_with(&args.tables).map_err(failure)?;
    if let (Some(file), Some(device)) = (&args.kernels, &args.device) {
        let score = table(file, device, &backend)?;
        return match args.json {
            true => print(&format!("{}\n", validation::kernels_json(&score))),
            false => print(&validation::kernels_text(&score)),
        };
    }
    let Some(file) = &args.runs else {
        return Err(Failure::Usage("give a file of runs, or --kernels FILE.csv --device NAME".into()));
    };
    if let Some(name) = &args.stack {
        backend.stack(name).map_err(failure)?;
    }
    let entries = runs::read(&Document::read(file)?)?;
    let outcomes = score(&entries, &backend, args.stack.as_deref(), THREADS);
    let summaries = summarise(&entries, &outcomes);
    match args.json {
        true => print(&format!("{}\n", validation::json(&outcomes, &summaries))),
        false => print(&validation::text(&outcomes, &summaries)),
    }
}

/// Scores a table by the prices of its device.
pub fn table(file: &Path, device: &str, backend: &dyn Backend) -> Result<TableScore, Failure> {
    let name = file.display().to_string();
    let text =
        std::fs::read_to_string(file).map_err(|e| Failure::Failed(format!("{name}: cannot read the file: {e}")))?;
    let header = text.lines().next().unwrap_or("");
    let kind = TableKind::of_columns(header).map_err(|e| Failure::Failed(format!("{name}: {e}")))?;
    let device = backend.device(device).map_err(failure)?;
    let scored = match kind {
        TableKind::Collectives => backend.score_collectives(&device, &name, &text),
        kind => backend.score_kernels(kind, &device, &name, &text),
    };
    scored.map_err(failure)
}

/// A name that nobody knows is a mistake in usage, the rest are failures.
pub fn failure(e: PredictError) -> Failure {
    match e {
        PredictError::Unknown { .. } => Failure::Usage(e.to_string()),
        _ => Failure::Failed(e.to_string()),
    }
}

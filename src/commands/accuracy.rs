//! `autoshard accuracy`: the page that says how far predictions are from measurements.

use super::validate::table;
use super::{print, say, Failure};
use autoshard::accuracy::assumed::assumed;
use autoshard::accuracy::evaluate::{evaluate, Report, Searched, TableLine};
use autoshard::accuracy::fit::Options;
use autoshard::accuracy::page::page;
use autoshard::json::Document;
use autoshard::predict::{backend, Backend};
use autoshard::runs;
use autoshard::stacks::validated;
use std::path::{Path, PathBuf};

/// Find constants, judge them on runs that they have not seen, and write the page
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example:\n  autoshard accuracy runs.json --single vtrain_single_node.json --kernels kernels/ -o docs/accuracy.md"
)]
pub struct Args {
    /// A file of runs
    runs: PathBuf,
    /// A second file: vTrain's table of runs on one server
    #[arg(long, value_name = "FILE")]
    single: Option<PathBuf>,
    /// A folder of tables named gemm_DEVICE.csv, attention_fwd_DEVICE.csv, nccl_DEVICE.csv
    #[arg(long, value_name = "DIR")]
    kernels: Option<PathBuf>,
    /// Write the constants that are found to the stacks of this folder, NAME.json, and what ranges of
    /// predictions are made of to its validated.json
    #[arg(long, value_name = "DIR")]
    write: Option<PathBuf>,
    /// Constants that an earlier run found are read from this file, and those that this one finds are written to
    /// it: a search takes minutes, the page a second. Leave it out, or remove the file, when a mechanism changes
    #[arg(long, value_name = "FILE.json")]
    searched: Option<PathBuf>,
    /// Where to write [default: stdout]
    #[arg(short, value_name = "FILE.md")]
    output: Option<PathBuf>,
}

/// Reads, fits, writes.
pub fn accuracy(args: &Args) -> Result<(), Failure> {
    let backend = backend();
    let (mut entries, mut told) = (Vec::new(), Vec::new());
    for file in [Some(&args.runs), args.single.as_ref()].into_iter().flatten() {
        let document = Document::read(file)?;
        entries.extend(runs::read(&document)?);
        told.extend(assumed(&document, &backend)?);
    }
    say(&format!("{} rows; finding constants by framework\n", entries.len()));
    let mut searched = match args.searched.as_ref().filter(|f| f.exists()) {
        Some(file) => read_searched(file)?,
        None => Searched::new(),
    };
    let mut report = evaluate(&entries, &backend, &Options::default(), &mut searched)?;
    if let Some(file) = &args.searched {
        let text = serde_json::to_string(&searched)?;
        std::fs::write(file, text)
            .map_err(|e| Failure::Failed(format!("--searched {}: cannot write: {e}", file.display())))?;
    }
    report.assumed = told;
    if let Some(folder) = &args.kernels {
        (report.kernels, report.collectives) = tables(folder, &backend)?;
    }
    if let Some(folder) = &args.write {
        write(folder, &report)?;
    }
    let text = page(&report);
    match &args.output {
        None => print(&text),
        Some(path) => {
            std::fs::write(path, text).map_err(|e| Failure::Failed(format!("-o {}: cannot write: {e}", path.display())))
        }
    }
}

/// Constants that an earlier run found.
fn read_searched(file: &Path) -> Result<Searched, Failure> {
    let refuse = |e: String| Failure::Failed(format!("--searched {}: {e}", file.display()));
    let text = std::fs::read_to_string(file).map_err(|e| refuse(format!("cannot read: {e}")))?;
    serde_json::from_str(&text).map_err(|e| refuse(format!("no constants that a run has found: {e}")))
}

/// Puts the constants of fitted stacks into their files, the rest of which stays as it is, and writes the runs
/// that ranges are made of.
fn write(folder: &Path, report: &Report) -> Result<(), Failure> {
    let path = folder.join(validated::FILE);
    std::fs::write(&path, validated::text(&report.validated)?)
        .map_err(|e| Failure::Failed(format!("--write {}: cannot write: {e}", path.display())))?;
    for lines in report.stacks.iter().filter(|s| s.fitted) {
        let path = folder.join(format!("{}.json", lines.stack));
        let place = || format!("--write {}", path.display());
        let mut file = Document::read(&path)?.value;
        let Some(object) = file.as_object_mut() else {
            return Err(Failure::Failed(format!("{}: it is no object", place())));
        };
        let word = |label: &str| label.replace(' ', "_");
        let four = |x: f64| format!("{x:.3e}").parse::<f64>().unwrap_or(x);
        let constants: serde_json::Map<String, serde_json::Value> = lines
            .constants
            .iter()
            .map(|c| (word(c.name), serde_json::json!(four(c.fitted.unwrap_or(c.shipped)))))
            .collect();
        object.insert("constants".into(), constants.into());
        object.insert("error".into(), serde_json::json!(lines.error.map(four)));
        let fitted = serde_json::json!({ "rows": lines.rows, "groups": lines.groups });
        object.insert("fitted_on".into(), fitted);
        let text = serde_json::to_string_pretty(&file)? + "\n";
        std::fs::write(&path, text).map_err(|e| Failure::Failed(format!("{}: cannot write: {e}", place())))?;
    }
    Ok(())
}

/// Scores every table of a folder, in order of their names: kernels, then collectives.
fn tables(folder: &Path, backend: &dyn Backend) -> Result<(Vec<TableLine>, Vec<TableLine>), Failure> {
    let unreadable = |e: std::io::Error| Failure::Failed(format!("--kernels {}: cannot read: {e}", folder.display()));
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(unreadable)? {
        files.push(entry.map_err(unreadable)?.path());
    }
    files.sort();
    let (mut kernels, mut collectives) = (Vec::new(), Vec::new());
    for file in files.iter().filter(|f| f.extension().is_some_and(|e| e == "csv")) {
        let stem = file.file_stem().map(|s| s.to_string_lossy().into_owned()).unwrap_or_default();
        let named = ["gemm_", "attention_fwd_", "nccl_"].iter().find_map(|p| Some((*p, stem.strip_prefix(p)?)));
        let Some((prefix, device)) = named else {
            say(&format!(
                "note: {} is not named gemm_, attention_fwd_ or nccl_ and a device; left out\n",
                file.display()
            ));
            continue;
        };
        let line = TableLine { table: stem.clone(), device: device.into(), score: table(file, device, backend)? };
        if prefix == "nccl_" { &mut collectives } else { &mut kernels }.push(line);
    }
    Ok((kernels, collectives))
}

//! `autoshard inspect`: what is in a file.

use super::{print, Failure};
use autoshard::artifact;
use autoshard::ir::program::Program;
use autoshard::ir::text;
use autoshard::ir::verify::verify;
use autoshard::ir::Module;
use autoshard::model::ModelError;
use autoshard::passes::schedule;
use std::path::{Path, PathBuf};

/// Print the module in a .shard or .asx file, or the program and kernels it becomes
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  autoshard inspect tiny.asx --kernels")]
pub struct Args {
    /// A .shard or .asx file
    file: PathBuf,
    /// The program: kernels, collectives and every step with its buffers
    #[arg(long, conflicts_with = "kernels")]
    program: bool,
    /// The kernels: template, shape, FLOPs and bytes
    #[arg(long)]
    kernels: bool,
}

/// Reads, checks, prints.
pub fn inspect(args: &Args) -> Result<(), Failure> {
    let path = &args.file;
    let module = match artifact::is_artifact(path) {
        true => artifact::read(path)?.executable.local,
        false => read(path)?,
    };
    match (args.program, args.kernels) {
        (true, _) => print(&artifact::list(&program(path, &module)?)),
        (_, true) => print(&artifact::kernels(&program(path, &module)?)),
        _ => print(&text::print(&module)),
    }
}

fn read(path: &Path) -> Result<Module, Failure> {
    let configuration = path.extension().is_some_and(|e| e == "json") && path.exists();
    let special = path.exists() && !path.is_file();
    if configuration || special {
        return Err(Failure::Failed(format!(
            "{}: inspect takes a .shard or an .asx file; `autoshard compile` makes an .asx file of a config.json or of a folder holding one",
            path.display()
        )));
    }
    let source = std::fs::read_to_string(path).map_err(|source| ModelError::Io { path: path.into(), source })?;
    let module = text::parse(&source, &path.display().to_string())?;
    verify(&module).map_err(|errors| ModelError::Invalid { path: path.into(), errors })?;
    Ok(module)
}

fn program(path: &Path, module: &Module) -> Result<Program, Failure> {
    schedule::schedule(module, &schedule::Options::default())
        .map_err(|e| Failure::Failed(format!("{}: no program: {e}", path.display())))
}

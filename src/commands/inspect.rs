//! `autoshard inspect`: what is in a file.

use super::{print, Failure};
use autoshard::artifact;
use autoshard::ir::program::Program;
use autoshard::ir::text;
use autoshard::ir::verify::verify;
use autoshard::ir::Module;
use autoshard::model::ModelError;
use autoshard::passes::fuse::{self, Fusion};
use autoshard::passes::schedule::{self, Options};
use std::fmt::Write;
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
    /// The kernels: template, shape, FLOPs and bytes; then each function's nodes by kernel, with the bytes
    /// moved beside the fewest possible
    #[arg(long)]
    kernels: bool,
}

/// Reads, checks, prints.
pub fn inspect(args: &Args) -> Result<(), Failure> {
    let path = &args.file;
    let (module, options) = match artifact::is_artifact(path) {
        true => {
            let exe = artifact::read(path)?.executable;
            let fusion = Fusion::from_name(&exe.meta.fusion).unwrap_or(Fusion::ALL);
            (exe.local, Options { fusion, overlap: exe.meta.overlap })
        }
        false => (read(path)?, Options::default()),
    };
    match (args.program, args.kernels) {
        (true, _) => print(&artifact::list(&program(path, &module, &options)?)),
        (_, true) => {
            let kernels = artifact::kernels(&program(path, &module, &options)?);
            print(&format!("{kernels}\n{}", groups(path, &module, &options)?))
        }
        _ => print(&text::print(&module)),
    }
}

/// Each function that computes: its nodes by kernel, and the bytes they move beside the fewest possible.
fn groups(path: &Path, module: &Module, options: &Options) -> Result<String, Failure> {
    let mut out = String::new();
    for f in module.functions.iter().filter(|f| f.nodes.iter().all(|n| n.callee.is_none())) {
        let units = fuse::fuse(f, &module.mesh, &options.fusion)
            .map_err(|e| Failure::Failed(format!("{}: no kernels: {e}", path.display())))?;
        let s = fuse::summary(f, &units, &module.mesh);
        out += &fuse::list(f, &units, &module.mesh);
        let _ = writeln!(
            out,
            "; @{}: {} kernels of products, {} of attention, {} others, {} collectives; {} bytes moved, {:.3} of the ideal {}\n",
            f.name,
            s.products,
            s.attention,
            s.others,
            s.collectives,
            s.bytes,
            if s.ideal > 0.0 { s.bytes / s.ideal } else { 1.0 },
            s.ideal
        );
    }
    Ok(out)
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

fn program(path: &Path, module: &Module, options: &Options) -> Result<Program, Failure> {
    schedule::schedule(module, options).map_err(|e| Failure::Failed(format!("{}: no program: {e}", path.display())))
}

//! `autoshard compile`: a model becomes an `.asx` file.

use super::args::Build;
use super::{job, output, print, say, Failure};
use autoshard::{artifact, report};
use std::path::{Path, PathBuf};

/// Compile a model into an executable file
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  autoshard compile examples/tiny-llama --devices 8 -o tiny.asx\n  autoshard run tiny.asx\n  autoshard compile examples/tiny-llama --plan plan.json -o tiny.asx"
)]
pub struct Args {
    /// A Hugging Face config.json, a folder holding one, or a .shard file
    #[arg(value_name = "M")]
    model: PathBuf,
    #[command(flatten)]
    build: Build,
    /// The file to write [default: the model's name with .asx, in this folder]
    #[arg(short, long, value_name = "FILE.asx")]
    output: Option<PathBuf>,
}

/// Plans, compiles, writes.
pub fn compile(args: &Args) -> Result<(), Failure> {
    let file = args.output.clone().unwrap_or_else(|| default_output(&args.model));
    output::executable(&file)?;
    let job = job::from_model(&args.model, &args.build)?;
    say(&job.title);
    say(&job.settings_text(&[]));
    say(&job.choice);
    let weights = match &job.weights {
        Some(folder) => format!("weights: {} (its checksum goes into the file)\n", folder.display()),
        None => "weights: the init rule; the seed is the run's\n".to_string(),
    };
    say(&weights);
    say(&job.unused_weights()?);
    print(&report::plan(&job.plan, &job.executable.program))?;
    let bytes = artifact::write(&job.artifact()?, &file)?;
    print(&format!("wrote {} ({})\n", file.display(), report::bytes(bytes as f64)))
}

/// `tiny-llama.asx` for `examples/tiny-llama`, `examples/tiny-llama/config.json` and
/// `tiny-llama.json`.
fn default_output(model: &Path) -> PathBuf {
    let named = match model.file_name() {
        Some(n) if n == "config.json" => model.parent().filter(|p| p.file_name().is_some()).unwrap_or(model),
        _ => model,
    };
    let stem = if named.is_dir() { named.file_name() } else { named.file_stem() };
    let mut name = stem.unwrap_or("model".as_ref()).to_os_string();
    name.push(".asx");
    PathBuf::from(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_file_is_named_after_the_model() {
        let of = |m: &str| default_output(Path::new(m)).display().to_string();
        assert_eq!(of("a/llama-3.1-8b.json"), "llama-3.1-8b.asx");
        assert_eq!(of("examples/tiny-llama"), "tiny-llama.asx");
        assert_eq!(of("examples/tiny-llama/config.json"), "tiny-llama.asx");
        assert_eq!(of("config.json"), "config.asx");
    }
}

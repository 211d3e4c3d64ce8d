//! The command line: one file per command.
//!
//! Results go to stdout, progress and diagnostics to stderr. Exit codes: 0 done, 1 a clear failure,
//! 2 usage.

mod accuracy;
mod args;
mod calibrate;
mod compile;
mod diff;
mod folder;
mod hardware;
mod inspect;
mod job;
mod mesh;
mod output;
mod plan;
mod progress;
mod run;
mod validate;
mod why;

pub use autoshard::words::suggestion;
use clap::{Parser, Subcommand};
use std::io::Write;
use std::process::ExitCode;

/// A compiler and planner for training neural networks on many accelerators.
#[derive(Debug, Parser)]
#[command(version, after_help = "Example:\n  autoshard run examples/tiny-llama --devices 8")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Compile(Box<compile::Args>),
    Run(Box<run::Args>),
    Inspect(inspect::Args),
    Hardware(hardware::Args),
    Plan(Box<plan::Args>),
    Why(why::Args),
    Diff(diff::Args),
    Validate(validate::Args),
    Accuracy(accuracy::Args),
    Calibrate(calibrate::Args),
}

/// Why a command did not do what it was asked.
#[derive(Debug)]
pub enum Failure {
    /// The arguments are wrong: exit code 2.
    Usage(String),
    /// The work failed: exit code 1.
    Failed(String),
}

impl<E: std::error::Error> From<E> for Failure {
    fn from(e: E) -> Failure {
        Failure::Failed(e.to_string())
    }
}

/// Runs the command of this process.
pub fn main() -> ExitCode {
    let done = match Cli::parse().command {
        Command::Compile(args) => compile::compile(&args),
        Command::Run(args) => run::run(&args),
        Command::Inspect(args) => inspect::inspect(&args),
        Command::Hardware(args) => hardware::hardware(&args),
        Command::Plan(args) => plan::plan(&args),
        Command::Why(args) => why::why(&args),
        Command::Diff(args) => diff::diff(&args),
        Command::Validate(args) => validate::validate(&args),
        Command::Accuracy(args) => accuracy::accuracy(&args),
        Command::Calibrate(args) => calibrate::calibrate(&args),
    };
    let (message, code) = match done {
        Ok(()) => return ExitCode::SUCCESS,
        Err(Failure::Failed(message)) => (message, 1),
        Err(Failure::Usage(message)) => (message, 2),
    };
    say(&format!("error: {}\n", message.trim_end()));
    ExitCode::from(code)
}

/// Writes a result. A reader that went away is a failure like any other.
pub fn print(text: &str) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    let written = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    written.map_err(|e| Failure::Failed(format!("cannot write to stdout: {e}")))
}

/// Writes a diagnostic. Nobody is left to tell where that fails.
pub fn say(text: &str) {
    let _ = std::io::stderr().lock().write_all(text.as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn every_command_has_help_with_an_example() {
        let mut cli = Cli::command();
        cli.clone().debug_assert();
        for command in cli.get_subcommands_mut() {
            let help = command.render_long_help().to_string();
            assert!(help.contains("Example"), "{}", command.get_name());
        }
    }
}

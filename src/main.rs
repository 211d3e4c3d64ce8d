//! The `autoshard` command: reads its arguments, calls the library, prints.

mod commands;

use std::process::ExitCode;

fn main() -> ExitCode {
    commands::main()
}

//! Prints how well the shipped tables and models of collectives predict what they were not given:
//! `cargo run --release --bin collective-accuracy`.

use autoshard::collectives::{accuracy, shipped, Error};
use std::process::ExitCode;

fn main() -> ExitCode {
    match report() {
        Ok(text) => {
            print!("{text}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("collective-accuracy: {error}");
            ExitCode::FAILURE
        }
    }
}

fn report() -> Result<String, Error> {
    accuracy::report(&shipped()?)
}

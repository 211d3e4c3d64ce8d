//! Progress of a run on stderr: a bar on a terminal, a line now and then elsewhere.

use super::say;
use autoshard::report;
use autoshard::train::Step;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::IsTerminal;

/// Shows steps as they come.
pub enum Progress {
    /// On a terminal.
    Bar(ProgressBar),
    /// Elsewhere: steps in all, and how many lie between two lines.
    Lines {
        /// Steps in all.
        steps: usize,
        /// Steps between lines.
        every: usize,
    },
}

impl Progress {
    /// For a run of this many steps.
    pub fn new(steps: usize) -> Progress {
        if !std::io::stderr().is_terminal() {
            return Progress::Lines { steps, every: steps.div_ceil(10).max(1) };
        }
        let bar = ProgressBar::with_draw_target(Some(steps as u64), ProgressDrawTarget::stderr());
        if let Ok(style) = ProgressStyle::with_template("{bar:24} {pos}/{len}  {msg}  {elapsed} of {duration}") {
            bar.set_style(style);
        }
        Progress::Bar(bar)
    }

    /// Shows one step.
    pub fn step(&self, step: &Step) {
        let text = || {
            format!(
                "loss {:.4}  {} tokens/s  MFU {:.2} %  memory {:.0} MiB",
                step.loss,
                report::grouped(step.tokens_per_second),
                step.mfu * 100.0,
                report::peak_memory_mib()
            )
        };
        match self {
            Progress::Bar(bar) => {
                bar.set_message(text());
                bar.inc(1);
            }
            Progress::Lines { steps, every } => {
                let done = step.step as usize + 1;
                if done == 1 || done.is_multiple_of(*every) || done == *steps {
                    say(&format!("step {done:>5}/{steps}  {}\n", text()));
                }
            }
        }
    }

    /// Leaves the terminal as it was.
    pub fn finish(&self) {
        if let Progress::Bar(bar) = self {
            bar.finish();
        }
    }
}

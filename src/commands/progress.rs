//! Progress on stderr: of a run a bar on a terminal and a line now and then elsewhere; of a search that takes over a
//! second a spinner on a terminal.

use super::say;
use autoshard::report;
use autoshard::train::Step;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::IsTerminal;
use std::sync::mpsc::{channel, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::Duration;

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

/// Shows on a terminal that something is being worked on, once it takes over a second; gone when it is dropped.
pub struct Spinner {
    running: Option<(Sender<()>, JoinHandle<()>)>,
}

impl Spinner {
    /// For work that is told in these words.
    pub fn new(message: &str) -> Spinner {
        if !std::io::stderr().is_terminal() {
            return Spinner { running: None };
        }
        let (stop, stopped) = channel::<()>();
        let message = message.to_string();
        let thread = std::thread::spawn(move || {
            if stopped.recv_timeout(Duration::from_secs(1)) != Err(RecvTimeoutError::Timeout) {
                return;
            }
            let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
            if let Ok(style) = ProgressStyle::with_template("{spinner} {msg}  {elapsed}") {
                bar.set_style(style);
            }
            bar.set_message(message);
            bar.enable_steady_tick(Duration::from_millis(100));
            // Ends when the other side is dropped.
            let _ = stopped.recv();
            bar.finish_and_clear();
        });
        Spinner { running: Some((stop, thread)) }
    }
}

impl Drop for Spinner {
    fn drop(&mut self) {
        if let Some((stop, thread)) = self.running.take() {
            drop(stop);
            // Nothing in it fails but drawing, which nobody misses.
            let _ = thread.join();
        }
    }
}

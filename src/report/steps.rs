//! The figures of steps: JSON lines and the summary.

use crate::train::{Norms, Step};
use serde_json::{json, Map, Value};
use std::collections::BTreeMap;

/// Steps at the start that medians leave out: caches and pages warm up.
const WARM: usize = 2;

/// What a run gathers while it goes.
#[derive(Clone, Debug, Default)]
pub struct Summary {
    /// Loss of every step.
    pub losses: Vec<f64>,
    /// Wall seconds of every step.
    pub seconds: Vec<f64>,
    /// CPU seconds of every step.
    pub cpu: Vec<f64>,
    /// Seconds from the command's start to the executable.
    pub compile_seconds: f64,
    /// Norms of every tensor after the last step.
    pub params_after: BTreeMap<String, Norms>,
}

impl Summary {
    /// Adds a step.
    pub fn add(&mut self, step: &Step) {
        self.losses.push(step.loss);
        self.seconds.push(step.report.seconds);
        self.cpu.push(step.cpu_seconds);
    }

    /// Median wall seconds of a step after the first two (of all, where there are no others).
    pub fn median_step(&self) -> f64 {
        median(warm(&self.seconds))
    }

    /// Mean of the last ten losses.
    pub fn last_losses(&self) -> f64 {
        let last = &self.losses[self.losses.len().saturating_sub(10)..];
        last.iter().sum::<f64>() / last.len() as f64
    }
}

fn warm(all: &[f64]) -> &[f64] {
    if all.len() > WARM {
        &all[WARM..]
    } else {
        all
    }
}

fn median(values: &[f64]) -> f64 {
    let mut v = values.to_vec();
    v.sort_by(f64::total_cmp);
    match v.len() {
        0 => f64::NAN,
        n if n % 2 == 1 => v[n / 2],
        n => (v[n / 2 - 1] + v[n / 2]) / 2.0,
    }
}

/// The line of one step. Bytes and communication are rank 0's, memory the process's, which holds all
/// ranks. Of the communication what is exposed kept the rank from computing.
pub fn step_line(step: &Step) -> Value {
    let rank = step.report.ranks.first();
    let counts = rank.map(|r| r.counts.clone()).unwrap_or_default();
    json!({
        "step": step.step,
        "loss": step.loss,
        "step_seconds": step.report.seconds,
        "tokens_per_second": step.tokens_per_second,
        "mfu": step.mfu,
        "peak_memory_mib": peak_memory_mib(),
        "communication_seconds": rank.map_or(0.0, |r| r.communication_seconds),
        "exposed_communication_seconds": rank.map_or(0.0, |r| r.exposed_communication_seconds),
        "payload_bytes": counts.payload,
        "wire_bytes": counts.wire,
        "control_bytes": counts.control,
        "padding_bytes": counts.padding,
    })
}

/// The last line of a run.
pub fn summary_line(s: &Summary) -> Value {
    let norms = |n: &Norms| json!({"norm": n.norm, "delta_norm": n.delta});
    let params: Map<String, Value> = s.params_after.iter().map(|(name, n)| (name.clone(), norms(n))).collect();
    let least = warm(&s.seconds).iter().copied().fold(f64::INFINITY, f64::min);
    json!({"summary": {
        "losses": s.losses,
        "median_step_seconds": s.median_step(),
        "step_median_s": s.median_step(),
        "step_min_s": least,
        "cpu_median_s": median(warm(&s.cpu)),
        "compile_seconds": s.compile_seconds,
        "params_after": params,
    }})
}

/// Largest resident memory of this process so far, MiB (0 where the system does not tell).
pub fn peak_memory_mib() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:"));
    let kib = line.and_then(|l| l.split_whitespace().next()).and_then(|n| n.parse::<f64>().ok());
    kib.unwrap_or(0.0) / 1024.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_leave_out_the_first_two() {
        let s = Summary { seconds: vec![9.0, 9.0, 1.0, 2.0, 4.0], losses: vec![1.0; 12], ..Summary::default() };
        assert_eq!(s.median_step(), 2.0);
        assert_eq!(s.last_losses(), 1.0);
        let short = Summary { seconds: vec![3.0], ..Summary::default() };
        assert_eq!(short.median_step(), 3.0);
        assert_eq!(summary_line(&s)["summary"]["step_min_s"], 1.0);
    }
}

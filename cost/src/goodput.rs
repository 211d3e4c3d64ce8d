//! What failures leave of a job's time, and how often to write checkpoints.
//!
//! Failures are independent with a mean time M between them (exponential). A job works τ seconds, writes a
//! checkpoint in δ, and so on; a failure throws away what came after the last checkpoint and costs a restart of
//! R, during which it may fail again. For τ seconds of useful work it then takes M e^(R/M) (e^((τ+δ)/M) − 1)
//! seconds on average: J. T. Daly, "A higher order estimate of the optimum checkpoint interval for restart
//! dumps", Future Generation Computer Systems 22 (2006). The best τ solves (1 − τ/M) e^((τ+δ)/M) = 1
//! whatever R is; its first order is J. W. Young's √(2 δ M) (Communications of the ACM 17, 1974).

use crate::cluster::Failures;

/// Bytes of a checkpoint for each parameter: bf16 weights or none, fp32 master and two moments. Published
/// checkpoints have 12.9 to 13.1 (`data/hardware/failures.json`).
pub const CHECKPOINT_BYTES: f64 = 13.0;

/// Bytes/s that a node writes to storage where nothing is known of it: BLOOM-176B's 2.3 TB in 40 s from 48
/// nodes (`data/hardware/failures.json`).
pub const WRITE_RATE: f64 = 2.3e12 / 40.0 / 48.0;

/// What decides the goodput of a job.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Losses {
    /// Seconds between failures of the job; infinite where it never fails.
    pub between_failures: f64,
    /// Seconds in which training stands still for a checkpoint.
    pub write: f64,
    /// Seconds from a failure to the next step.
    pub restart: f64,
}

/// How a job's time is spent: the shares add up to 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Goodput {
    /// Seconds of work between checkpoints; infinite where none is worth its time.
    pub interval: f64,
    /// Share of useful work.
    pub useful: f64,
    /// Share spent on checkpoints that were finished.
    pub checkpoints: f64,
    /// Share of work (and of checkpoints not finished) that failures threw away.
    pub rework: f64,
    /// Share spent on restarts.
    pub restarts: f64,
}

/// Seconds between failures of a job on so many nodes; infinite where nodes do not fail.
pub fn between_failures(failures: &Failures, nodes: f64) -> f64 {
    const DAY: f64 = 86_400.0;
    let a_day = failures.per_thousand_node_days / 1e3 * nodes;
    if a_day > 0.0 {
        DAY / a_day
    } else {
        f64::INFINITY
    }
}

/// Seconds to write a checkpoint of a model from so many nodes at [`WRITE_RATE`].
pub fn write_seconds(parameters: f64, nodes: f64) -> f64 {
    parameters * CHECKPOINT_BYTES / (nodes.max(1.0) * WRITE_RATE)
}

/// How the time of a job is spent that writes a checkpoint after every `interval` seconds of work.
pub fn at_interval(l: &Losses, interval: f64) -> Goodput {
    let period = interval + l.write;
    // Young and Daly's expression over M(e^(L/M) − 1), which stays finite for any L/M.
    let running = (-l.restart / l.between_failures).exp();
    let kept = |x: f64| if x > 0.0 { x / x.exp_m1() } else { 1.0 };
    let kept = running * kept(period / l.between_failures);
    let work = match () {
        () if interval.is_infinite() => 1.0,
        () if period > 0.0 => interval / period,
        () => 1.0,
    };
    let (useful, checkpoints) = (kept * work, kept * (1.0 - work));
    Goodput { interval, useful, checkpoints, rework: (running - kept).max(0.0), restarts: 1.0 - running }
}

/// The interval between checkpoints that leaves most useful time, and what it leaves.
pub fn best(l: &Losses) -> Goodput {
    let m = l.between_failures;
    if m.is_infinite() {
        return at_interval(l, f64::INFINITY);
    }
    // ln(1 − x) + x + δ/M falls from δ/M at x = 0 to −∞ at 1.
    let (mut low, mut high) = (0.0, 1.0);
    for _ in 0..200 {
        let x = f64::midpoint(low, high);
        if f64::ln_1p(-x) + x + l.write / m > 0.0 {
            low = x;
        } else {
            high = x;
        }
    }
    at_interval(l, low * m)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn losses(between_failures: f64, write: f64, restart: f64) -> Losses {
        Losses { between_failures, write, restart }
    }

    #[test]
    fn llama_3_was_interrupted_every_2_8_hours() {
        // 466 interruptions in 54 days of 2,048 nodes, 419 of them unexpected.
        let rate = |n: f64| Failures { per_thousand_node_days: n / 54.0 / 2.048, ..Failures::default() };
        let hours = |n| between_failures(&rate(n), 2048.0) / 3600.0;
        assert!((hours(466.0) - 2.781).abs() < 1e-3 && (hours(419.0) - 3.093).abs() < 1e-3);
        // The paper tells of more than 90 % effective training time.
        let l = losses(hours(466.0) * 3600.0, write_seconds(405e9, 2048.0), 50.0 + 0.009 * 16_384.0);
        let g = best(&l);
        assert!((0.9..1.0).contains(&g.useful), "{g:?}");
    }

    #[test]
    fn the_best_interval_beats_its_neighbours_and_shares_add_up() {
        for (m, write, restart) in [(1e4, 40.0, 200.0), (1e5, 1.0, 0.0), (600.0, 300.0, 100.0), (50.0, 400.0, 10.0)] {
            let l = losses(m, write, restart);
            let g = best(&l);
            for near in [0.5, 0.9, 1.1, 2.0] {
                assert!(at_interval(&l, g.interval * near).useful < g.useful, "{l:?} {near}");
            }
            let sum = g.useful + g.checkpoints + g.rework + g.restarts;
            assert!((sum - 1.0).abs() < 1e-12, "{g:?}");
            assert!([g.useful, g.checkpoints, g.rework, g.restarts].iter().all(|s| *s >= 0.0), "{g:?}");
        }
    }

    #[test]
    fn rare_failures_give_youngs_interval() {
        let l = losses(1e8, 10.0, 100.0);
        assert!((best(&l).interval / (2.0 * 10.0 * 1e8f64).sqrt() - 1.0).abs() < 1e-3);
        // First order of what is lost: δ/τ + τ/2M + R/M.
        let g = best(&l);
        let lost = 10.0 / g.interval + g.interval / 2e8 + 1e-6;
        assert!(((1.0 - g.useful) / lost - 1.0).abs() < 1e-2, "{g:?}");
    }

    #[test]
    fn limits_are_numbers() {
        // It never fails; checkpoints are free; it fails faster than it can write.
        let g = best(&losses(f64::INFINITY, 10.0, 60.0));
        assert_eq!((g.useful, g.checkpoints, g.restarts, g.interval), (1.0, 0.0, 0.0, f64::INFINITY));
        let g = best(&losses(1e4, 0.0, 100.0));
        assert!((g.useful - (-0.01f64).exp()).abs() < 1e-6, "{g:?}");
        let g = best(&losses(1.0, 1e4, 1e4));
        assert!(g.useful.abs() < 1e-12 && (g.restarts - 1.0).abs() < 1e-12, "{g:?}");
    }
}

//! Tests of the simulator against a naive one, against what is known in closed form, and against itself.

mod errors;
mod laws;
mod periodic;
mod reference;

use super::*;

/// Random numbers that are the same on every run (xorshift, Marsaglia 2003).
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    /// A number below n.
    pub(super) fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        ((self.0 >> 11) % n as u64) as usize
    }

    /// A number from 0 to 1.
    pub(super) fn unit(&mut self) -> f64 {
        self.below(1 << 30) as f64 / (1u64 << 30) as f64
    }

    /// Seconds: often round, so that events coincide, sometimes 0.
    pub(super) fn seconds(&mut self) -> f64 {
        match self.below(3) {
            0 => self.below(4) as f64,
            1 => self.below(9) as f64 * 0.25,
            _ => 3.0 * self.unit(),
        }
    }
}

/// Streams on random devices, half of them beside another, and contention in two of three cases.
pub(super) fn random_rules(random: &mut Random) -> Rules {
    let n = 1 + random.below(9);
    let devices = 1 + random.below(n);
    let stream = |r: &mut Random| Stream {
        device: r.below(devices) as u32,
        beside: (r.below(2) == 0).then(|| r.below(n) as StreamId),
    };
    let streams = (0..n).map(|_| stream(random)).collect();
    let contention = match random.below(3) {
        0 => Contention::NONE,
        1 => Contention { compute: 1.1256, communication: 1.1256 },
        _ => Contention { compute: 1.0 + random.unit(), communication: 1.0 + random.unit() },
    };
    Rules { streams, contention }
}

/// A task behind `before` others.
pub(super) fn random_task(random: &mut Random, rules: &Rules, before: usize) -> Task {
    let demand = [0.25, 0.5, 0.6, 1.0][random.below(4)];
    let wait =
        |r: &mut Random| (before > 0 && r.below(3) > 0).then(|| (before - 1 - r.below(before.min(12))) as TaskId);
    Task {
        stream: random.below(rules.streams.len()) as StreamId,
        seconds: random.seconds(),
        link: (random.below(2) == 0).then(|| (random.below(3) as LinkId, demand)),
        after: [wait(random), wait(random)],
    }
}

/// Up to 60 tasks.
pub(super) fn random_list(random: &mut Random, rules: &Rules) -> Vec<Task> {
    (0..random.below(60)).map(|id| random_task(random, rules, id)).collect()
}

/// Whether two numbers differ by less than 10⁻⁹ of their size, or of 1.
pub(super) fn close(a: f64, b: f64) -> bool {
    (a - b).abs() <= 1e-9 * a.abs().max(1.0)
}

/// A task of computation.
pub(super) fn compute(stream: StreamId, seconds: f64, after: &[TaskId]) -> Task {
    Task { stream, seconds, link: None, after: [after.first().copied(), after.get(1).copied()] }
}

/// A task of communication.
pub(super) fn send(stream: StreamId, seconds: f64, link: (LinkId, f32), after: &[TaskId]) -> Task {
    Task { link: Some(link), ..compute(stream, seconds, after) }
}

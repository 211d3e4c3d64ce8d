//! Times on a grid of ranks and part sizes, on which they never fall.
//!
//! The axes are log2 of the ranks and log2 of *the part*, bytes ÷ ranks: what a rank contributes to a gather,
//! keeps of a scatter, sends to each peer. Times grow along both, by construction and by interpolation: more
//! bytes between the same ranks, and more ranks with the same part each, never take less time.

use super::Algorithm;

/// log2 of the smallest part, bytes.
const FIRST: f64 = 0.0;
/// Octaves between two parts.
const STEP: f64 = 0.5;
/// Parts: up to 2^36 bytes.
const PARTS: usize = 73;

/// Times of one operation.
#[derive(Clone, Debug)]
pub struct Grid {
    /// log2 of the ranks, ascending.
    ranks: Vec<f64>,
    /// log2 of the seconds, `PARTS` for each rank count.
    times: Vec<f64>,
    /// What is fastest there.
    algorithms: Vec<Algorithm>,
}

impl Grid {
    /// Tabulates `seconds(ranks, bytes)` at these rank counts (ascending, at least two, none below 2).
    /// Where times fall, the grid takes the middle between what they must not be below and not be above.
    pub fn new(ranks: &[f64], seconds: impl Fn(f64, f64) -> (f64, Algorithm)) -> Grid {
        let mut grid = Grid { ranks: Vec::new(), times: Vec::new(), algorithms: Vec::new() };
        for g in ranks {
            grid.ranks.push(g.log2());
            for i in 0..PARTS {
                let part = (FIRST + STEP * i as f64).exp2();
                let (time, algorithm) = seconds(*g, part * g);
                grid.times.push(time.log2());
                grid.algorithms.push(algorithm);
            }
        }
        grid.raise();
        grid
    }

    /// Makes times grow along both axes.
    fn raise(&mut self) {
        let rows = self.ranks.len();
        let mut least = self.times.clone();
        for at in 0..least.len() {
            let below = if at >= PARTS { least[at - PARTS] } else { f64::NEG_INFINITY };
            let before = if at % PARTS > 0 { least[at - 1] } else { f64::NEG_INFINITY };
            least[at] = least[at].max(below).max(before);
        }
        let mut most = self.times.clone();
        for at in (0..most.len()).rev() {
            let above = if at / PARTS + 1 < rows { most[at + PARTS] } else { f64::INFINITY };
            let after = if at % PARTS + 1 < PARTS { most[at + 1] } else { f64::INFINITY };
            most[at] = most[at].min(above).min(after);
        }
        for ((t, l), m) in self.times.iter_mut().zip(least).zip(most) {
            *t = (l + m) / 2.0;
        }
    }

    /// Seconds between `ranks` ranks. Below the smallest part a message costs what that costs; above the
    /// largest, and above the largest rank count, times grow on as they did last.
    pub fn seconds(&self, ranks: f64, bytes: f64) -> (f64, Algorithm) {
        let g = ranks.log2();
        let part = ((bytes / ranks).log2() - FIRST) / STEP;
        let last = self.ranks.len() - 2;
        let row = self.ranks[1..=last].iter().take_while(|r| **r <= g).count();
        let across = ((g - self.ranks[row]) / (self.ranks[row + 1] - self.ranks[row])).max(0.0);
        let column = (part.max(0.0) as usize).min(PARTS - 2);
        let along = part.max(0.0) - column as f64;
        let at = row * PARTS + column;
        let line = |at: usize| self.times[at] + along * (self.times[at + 1] - self.times[at]);
        let (low, high) = (line(at), line(at + PARTS));
        let nearest = at + if across > 0.5 { PARTS } else { 0 } + if along > 0.5 { 1 } else { 0 };
        ((low + across * (high - low)).exp2(), self.algorithms[nearest])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_that_fall_are_evened_out() {
        let noisy = |g: f64, b: f64| (g * (1.0 + b / 1e6) * if b == 4096.0 { 3.0 } else { 1.0 }, Algorithm::Ring);
        let grid = Grid::new(&[2.0, 4.0, 8.0], noisy);
        let mut before = 0.0;
        for i in 0..200 {
            let (t, _) = grid.seconds(4.0, 64.0 * 1.1f64.powi(i));
            assert!(t >= before, "{i}");
            before = t;
        }
        assert!((grid.seconds(2.0, 1024.0).0 / (2.0 * (1.0 + 1024.0 / 1e6)) - 1.0).abs() < 1e-9);
    }
}

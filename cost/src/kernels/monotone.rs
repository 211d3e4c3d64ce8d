//! The nearest function that does not fall, on a grid of three axes.

/// Values may fall by this much of their logarithm in all, over any growth of the sizes: measurements do,
/// where a library changes its kernel between two sizes. What is left to the two per cent that users are
/// promised is for rounding.
pub const SLACK: f64 = 0.019;

/// Rounds of alternating projections; more change no value by a thousandth.
const ROUNDS: usize = 8;

/// Moves `values` (logarithms, last axis fastest) as little as `weights` allow so that none falls by more
/// than [`SLACK`] along any axis.
///
/// Dykstra's alternating projections onto the three cones of functions that do not fall along one axis,
/// each by pooling adjacent violators; what is left after the last round is lifted.
pub fn project(values: &mut [f64], weights: &[f64], shape: [usize; 3]) {
    let mut x = values.to_vec();
    let mut corrections = [vec![0.0; x.len()], vec![0.0; x.len()], vec![0.0; x.len()]];
    for _ in 0..ROUNDS {
        for (axis, correction) in corrections.iter_mut().enumerate() {
            for (v, c) in x.iter_mut().zip(correction.iter()) {
                *v += c;
            }
            let before = x.clone();
            for_lines(shape, axis, |line| pool(&mut x, weights, line));
            for ((c, b), v) in correction.iter_mut().zip(&before).zip(&x) {
                *c = b - v;
            }
        }
    }
    for axis in 0..3 {
        for_lines(shape, axis, |line| {
            for i in 1..line.count {
                let below = x[line.at(i - 1)];
                let v = &mut x[line.at(i)];
                *v = v.max(below);
            }
        });
    }
    for (v, g) in values.iter_mut().zip(&x) {
        *v = v.clamp(g - SLACK / 2.0, g + SLACK / 2.0);
    }
}

/// Elements `start + i·step` of a flat array.
#[derive(Clone, Copy)]
struct Line {
    start: usize,
    step: usize,
    count: usize,
}

impl Line {
    fn at(self, i: usize) -> usize {
        self.start + i * self.step
    }
}

fn for_lines(shape: [usize; 3], axis: usize, mut f: impl FnMut(Line)) {
    let steps = [shape[1] * shape[2], shape[2], 1];
    let (a, b) = match axis {
        0 => (1, 2),
        1 => (0, 2),
        _ => (0, 1),
    };
    for i in 0..shape[a] {
        for j in 0..shape[b] {
            f(Line { start: i * steps[a] + j * steps[b], step: steps[axis], count: shape[axis] });
        }
    }
}

/// Weighted isotonic regression of one line, by pooling adjacent violators.
fn pool(x: &mut [f64], weights: &[f64], line: Line) {
    // (mean, weight, members) of each pool.
    let mut pools: Vec<(f64, f64, usize)> = Vec::with_capacity(line.count);
    for i in 0..line.count {
        let mut last = (x[line.at(i)], weights[line.at(i)], 1);
        while let Some(&(mean, weight, members)) = pools.last() {
            if mean <= last.0 {
                break;
            }
            let sum = weight + last.1;
            last = ((mean * weight + last.0 * last.1) / sum, sum, members + last.2);
            pools.pop();
        }
        pools.push(last);
    }
    let mut i = 0;
    for (mean, _, members) in pools {
        for _ in 0..members {
            x[line.at(i)] = mean;
            i += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_rises_stays_and_what_falls_is_pooled() {
        let mut up = vec![0.0, 1.0, 2.0, 3.0];
        project(&mut up, &[1.0; 4], [1, 1, 4]);
        assert_eq!(up, [0.0, 1.0, 2.0, 3.0]);
        let mut down = vec![1.0, 0.0];
        project(&mut down, &[3.0, 1.0], [2, 1, 1]);
        assert!((down[0] - (0.75 + SLACK / 2.0)).abs() < 1e-12 && (down[1] - (0.75 - SLACK / 2.0)).abs() < 1e-12);
    }
}

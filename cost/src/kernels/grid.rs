//! Times on a grid of three sizes, complete and without falls, and what lies between its points.

use super::rows::TableError;
use std::fmt::Write;

/// Logarithms of times on three rising axes.
///
/// Between its points the logarithm of time is linear in the logarithms of the sizes, so a grid whose
/// values do not fall answers with times that do not fall. Below the first line of an axis time is that of
/// the line; beyond the last it is proportional.
#[derive(Clone, Debug, PartialEq)]
pub struct Grid {
    /// Rising sizes of each axis.
    pub axes: [Vec<f64>; 3],
    /// Least and greatest measured size of each axis; beyond it the values are a formula's.
    pub measured: [(f64, f64); 3],
    /// Logarithms of microseconds, last axis fastest, in thousandths (a tenth of a per cent).
    pub values: Vec<i32>,
    /// Logarithms of the axes.
    logs: [Vec<f64>; 3],
    /// Seconds of the least value.
    least: f64,
}

/// A unit of [`Grid::values`].
const UNIT: f64 = 1e-3;

impl Grid {
    /// A grid of logarithms of microseconds, last axis fastest; `values` has one number a point.
    pub fn new(axes: [Vec<f64>; 3], measured: [(f64, f64); 3], values: &[f64]) -> Grid {
        let values = values.iter().map(|v| (v / UNIT).round() as i32).collect();
        Grid::of_units(axes, measured, values)
    }

    fn of_units(axes: [Vec<f64>; 3], measured: [(f64, f64); 3], values: Vec<i32>) -> Grid {
        let logs = [0, 1, 2].map(|i| axes[i].iter().map(|v| v.ln()).collect());
        let least = values.iter().min().map_or(0.0, |v| (f64::from(*v) * UNIT).exp() * 1e-6);
        Grid { axes, measured, values, logs, least }
    }

    /// Lines of each axis.
    pub fn shape(&self) -> [usize; 3] {
        [0, 1, 2].map(|i| self.axes[i].len())
    }

    /// Whether sizes lie within what was measured, axis by axis.
    pub fn covers(&self, sizes: [f64; 3]) -> bool {
        sizes.iter().zip(&self.measured).all(|(s, (a, b))| a <= s && s <= b)
    }

    /// Seconds of the least time of the grid: what a launch takes.
    pub fn floor(&self) -> f64 {
        self.least
    }

    /// Seconds at sizes above zero.
    pub fn seconds(&self, sizes: [f64; 3]) -> f64 {
        let mut beyond = 0.0;
        let mut place = [(0usize, 0.0f64); 3];
        for axis in 0..3 {
            let logs = &self.logs[axis];
            let x = sizes[axis].ln();
            let last = logs.len() - 1;
            place[axis] = if x <= logs[0] || last == 0 {
                (0, 0.0)
            } else if x >= logs[last] {
                beyond += x - logs[last];
                (last - 1, 1.0)
            } else {
                let i = logs.partition_point(|l| *l <= x) - 1;
                (i, (x - logs[i]) / (logs[i + 1] - logs[i]))
            };
        }
        ((self.between(place)) * UNIT + beyond).exp() * 1e-6
    }

    fn between(&self, place: [(usize, f64); 3]) -> f64 {
        let [a, b, c] = self.shape();
        let [(i, u), (j, v), (k, w)] = place;
        let next = |i: usize, n: usize| (i + 1).min(n - 1);
        let at = |i: usize, j: usize| {
            let row = &self.values[(i * b + j) * c..][..c];
            let (x, y) = (f64::from(row[k]), f64::from(row[next(k, c)]));
            x + w * (y - x)
        };
        let plane = |i: usize| {
            let (x, y) = (at(i, j), at(i, next(j, b)));
            x + v * (y - x)
        };
        let (x, y) = (plane(i), plane(next(i, a)));
        x + u * (y - x)
    }

    /// Text that [`Grid::parse`] reads: for each axis its measured range and its lines; then a line of text
    /// for each pair of the first two axes, with the values of the third.
    pub fn print(&self) -> String {
        let mut out = String::new();
        let join = |v: &mut dyn Iterator<Item = String>| v.collect::<Vec<_>>().join(" ");
        for (axis, (a, b)) in self.axes.iter().zip(self.measured) {
            let lines = join(&mut axis.iter().map(f64::to_string));
            // Writing to a string cannot fail.
            let _ = writeln!(out, "axis {a} {b} : {lines}");
        }
        for row in self.values.chunks(self.axes[2].len()) {
            let _ = writeln!(out, "{}", join(&mut row.iter().map(i32::to_string)));
        }
        out
    }

    /// Reads what [`Grid::print`] wrote from numbered lines, and no line more.
    ///
    /// # Errors
    /// The first line that is not as expected.
    pub fn parse<'a>(lines: &mut impl Iterator<Item = (usize, &'a str)>) -> Result<Grid, TableError> {
        let a = axis(lines.next())?;
        let b = axis(lines.next())?;
        let c = axis(lines.next())?;
        let rows = a.1.len() * b.1.len();
        let mut values = Vec::with_capacity(rows * c.1.len());
        for _ in 0..rows {
            let (line, text) = lines.next().ok_or_else(|| damaged(0, "the grid ends early", ""))?;
            let before = values.len();
            for word in text.split_ascii_whitespace() {
                values.push(word.parse().map_err(|_| damaged(line, "not a row of whole numbers", text))?);
            }
            if values.len() - before != c.1.len() {
                return Err(damaged(line, "not as many values as the third axis has lines", text));
            }
        }
        Ok(Grid::of_units([a.1, b.1, c.1], [a.0, b.0, c.0], values))
    }
}

/// Range and lines of an axis.
type Axis = ((f64, f64), Vec<f64>);

fn axis(line: Option<(usize, &str)>) -> Result<Axis, TableError> {
    let (line, text) = line.ok_or_else(|| damaged(0, "an axis was expected where the file ends", ""))?;
    let wrong = || damaged(line, "not an axis `axis LEAST GREATEST : RISING NUMBERS`", text);
    let (range, lines) = text.strip_prefix("axis ").and_then(|t| t.split_once(" : ")).ok_or_else(wrong)?;
    let numbers = |t: &str| t.split_ascii_whitespace().map(str::parse).collect::<Result<Vec<f64>, _>>();
    let (range, lines) = (numbers(range).map_err(|_| wrong())?, numbers(lines).map_err(|_| wrong())?);
    let rising = lines.windows(2).all(|w| w[0] < w[1]) && lines.iter().all(|v| *v > 0.0 && v.is_finite());
    match range[..] {
        [a, b] if rising && !lines.is_empty() => Ok(((a, b), lines)),
        _ => Err(wrong()),
    }
}

pub(super) fn damaged(line: usize, message: &'static str, text: &str) -> TableError {
    TableError::Grid { line, message, text: text.chars().take(60).collect() }
}

/// Lines of an axis: the distinct sizes, thinned to `most` by leaving out what is nearest to its
/// predecessor, and beyond the greatest its doubles up to `limit`.
pub(super) fn lines(sizes: impl Iterator<Item = f64>, most: usize, limit: f64) -> Vec<f64> {
    let mut all: Vec<f64> = sizes.collect();
    all.sort_by(f64::total_cmp);
    all.dedup();
    let mut ratio = 1.0f64;
    let mut kept = all.clone();
    while kept.len() > most {
        ratio = 1.0 + (ratio - 1.0).max(0.001) * 1.3;
        kept.clear();
        for &v in &all {
            if kept.last().is_none_or(|last| v >= last * ratio) {
                kept.push(v);
            }
        }
    }
    let mut next = kept.last().map_or(limit, |v| v * 2.0);
    while next <= limit {
        kept.push(next);
        next *= 2.0;
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    fn small() -> Grid {
        let axes = [vec![1.0, 4.0], vec![2.0], vec![1.0, 2.0, 4.0]];
        Grid::new(axes, [(1.0, 4.0), (2.0, 2.0), (1.0, 4.0)], &[0.0, 0.1, 0.4, 1.0, 1.1, 1.2])
    }

    #[test]
    fn points_are_met_and_between_them_logarithms_are_linear() {
        let g = small();
        let ln = |m, n, k| (g.seconds([m, n, k]) * 1e6).ln();
        assert!((ln(4.0, 2.0, 2.0) - 1.1).abs() < 1e-9);
        assert!((ln(2.0, 2.0, 1.0) - 0.5).abs() < 1e-9);
        assert!((ln(0.5, 1.0, 0.5) - 0.0).abs() < 1e-9, "below the grid: its first lines");
        assert!((ln(8.0, 2.0, 4.0) - 1.2 - 2f64.ln()).abs() < 1e-9, "beyond: proportional");
    }

    #[test]
    fn text_reads_back_and_damage_is_named() {
        let text = small().print();
        let read = |t: &str| Grid::parse(&mut t.lines().enumerate().map(|(i, l)| (i + 1, l)));
        assert_eq!(read(&text).unwrap(), small());
        let broken = text.replace("1100", "11x");
        assert!(read(&broken).unwrap_err().to_string().contains("line 5"));
        assert!(read("axis 1 2 : 2 1").unwrap_err().to_string().contains("RISING"));
    }

    #[test]
    fn an_axis_is_thinned_and_extended() {
        let l = lines((1..1000).map(f64::from), 20, 3000.0);
        assert!(l.len() <= 22 && l.windows(2).all(|w| w[0] < w[1]) && l[l.len() - 1] <= 3000.0);
    }
}

//! Finding constants: bounded, robust, deterministic.
//!
//! The loss is the mean of |ln(predicted / measured)| over votes, so one bad row pulls no harder than another
//! and twice too slow weighs what twice too fast does; a weak prior pulls towards the start, and decides where
//! the rows do not. It is minimised by Nelder and Mead's simplex (Computer Journal 7, 1965) over variables
//! scaled to 0–1 (logarithmic where the lower bound is above 0), started again from its best until that gains
//! nothing: the loss has kinks, on which a first simplex can stall. At most [`MOST`] constants.

use super::stats::Vote;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Mutex;

/// The most constants that are fitted at once.
pub const MOST: usize = 8;

/// A constant to find.
#[derive(Clone, Debug, PartialEq)]
pub struct Knob {
    /// Its name.
    pub name: String,
    /// Its unit; empty for a ratio.
    pub unit: &'static str,
    /// The least value that makes sense.
    pub low: f64,
    /// The greatest.
    pub high: f64,
    /// Where the search starts, and where the prior pulls.
    pub start: f64,
    /// Keep it at its start.
    pub fixed: bool,
}

/// A row to fit to.
#[derive(Clone, Debug)]
pub struct Sample<R> {
    /// What is predicted.
    pub row: R,
    /// What was measured; above 0.
    pub measured: f64,
    /// Its share of a vote.
    pub weight: f64,
    /// What is left out together.
    pub group: String,
    /// Samples with the same number have the same prediction, which is then made once; `None` is like no other.
    pub alike: Option<u64>,
}

/// How to search.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Options {
    /// Loss of a constant that stands a whole range away from its start. Weak: 0.01 is 1 % of mean error.
    pub prior: f64,
    /// Most evaluations of all rows.
    pub evaluations: usize,
    /// Threads.
    pub threads: usize,
}

impl Default for Options {
    fn default() -> Options {
        Options { prior: 0.03, evaluations: 1200, threads: 2 }
    }
}

/// What was found.
#[derive(Clone, Debug, PartialEq)]
pub struct Fit {
    /// Values in the order of the knobs.
    pub values: Vec<f64>,
    /// Mean |ln(predicted / measured)| of the rows, without the prior.
    pub loss: f64,
    /// How often all rows were predicted.
    pub evaluations: usize,
    /// Knobs that stand within a hundredth of their range of a bound: the mechanism may be another.
    pub at_bound: Vec<bool>,
}

/// Why constants cannot be found.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[allow(missing_docs)]
pub enum FitError {
    #[error("{0} constants are free; at most {MOST} are fitted, so fix some")]
    TooMany(usize),
    #[error("constant {name}: {low} ≤ start {start} ≤ {high} does not hold; its range must hold its start")]
    Range { name: String, low: f64, start: f64, high: f64 },
    #[error("a row of group {group} was measured as {measured}, with weight {weight}; both must be above 0")]
    Sample { group: String, measured: f64, weight: f64 },
}

/// Loss of a row whose prediction is no number above 0: a factor of e¹⁰.
const HOPELESS: f64 = 10.0;

/// Weight of each row where rows of one key share a vote.
pub fn votes(keys: &[Option<&str>]) -> Vec<f64> {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for key in keys.iter().flatten() {
        *counts.entry(key).or_default() += 1;
    }
    keys.iter().map(|k| k.map_or(1.0, |k| 1.0 / counts[k] as f64)).collect()
}

/// Finds the free constants that predict the rows best. Without rows they stay at their start.
///
/// # Errors
/// On ranges that do not hold their start, measurements that are no numbers above 0, too many constants.
pub fn fit<R: Sync>(
    knobs: &[Knob],
    samples: &[&Sample<R>],
    predict: &(impl Fn(&[f64], &R) -> f64 + Sync),
    options: &Options,
) -> Result<Fit, FitError> {
    check(knobs, samples)?;
    let free: Vec<usize> = (0..knobs.len()).filter(|i| !knobs[*i].fixed && knobs[*i].high > knobs[*i].low).collect();
    let values = |u: &[f64]| -> Vec<f64> {
        let mut all: Vec<f64> = knobs.iter().map(|k| k.start).collect();
        for (i, u) in free.iter().zip(u) {
            all[*i] = unscale(&knobs[*i], *u);
        }
        all
    };
    let origin: Vec<f64> = free.iter().map(|i| scale(&knobs[*i], knobs[*i].start)).collect();
    let (firsts, place) = firsts(samples);
    let rows = |u: &[f64]| loss(&values(u), samples, (&firsts, &place), predict, options.threads);
    let pull = |u: &[f64]| options.prior * u.iter().zip(&origin).map(|(u, o)| (u - o).powi(2)).sum::<f64>();
    let (best, evaluations) = match free.is_empty() || samples.is_empty() {
        true => (origin.clone(), 0),
        false => minimise(&origin, |u| rows(u) + pull(u), options.evaluations),
    };
    let near = |u: &f64| !(0.01..=0.99).contains(u);
    let at_bound = (0..knobs.len()).map(|i| free.iter().position(|f| *f == i).is_some_and(|p| near(&best[p])));
    Ok(Fit { at_bound: at_bound.collect(), loss: rows(&best), values: values(&best), evaluations })
}

fn check<R>(knobs: &[Knob], samples: &[&Sample<R>]) -> Result<(), FitError> {
    let free = knobs.iter().filter(|k| !k.fixed).count();
    if free > MOST {
        return Err(FitError::TooMany(free));
    }
    let holds = |k: &&Knob| k.low.is_finite() && k.high.is_finite() && (k.low..=k.high).contains(&k.start);
    if let Some(k) = knobs.iter().find(|k| !holds(k)) {
        return Err(FitError::Range { name: k.name.clone(), low: k.low, start: k.start, high: k.high });
    }
    let positive = |x: f64| x.is_finite() && x > 0.0;
    match samples.iter().find(|s| !(positive(s.measured) && positive(s.weight))) {
        Some(s) => Err(FitError::Sample { group: s.group.clone(), measured: s.measured, weight: s.weight }),
        None => Ok(()),
    }
}

/// A value's place in its range, 0–1: logarithmic where the range stays above 0.
fn scale(k: &Knob, x: f64) -> f64 {
    match (k.high > k.low, k.low > 0.0) {
        (false, _) => 0.0,
        (_, true) => (x / k.low).ln() / (k.high / k.low).ln(),
        (_, false) => (x - k.low) / (k.high - k.low),
    }
}

fn unscale(k: &Knob, u: f64) -> f64 {
    let x = if k.low > 0.0 { k.low * (k.high / k.low).powf(u) } else { k.low + u * (k.high - k.low) };
    x.clamp(k.low, k.high)
}

/// Mean |ln(predicted / measured)| over votes; 0 without rows. `firsts` are [`firsts`] of the samples.
fn loss<R: Sync>(
    values: &[f64],
    samples: &[&Sample<R>],
    (firsts, place): (&[usize], &[usize]),
    predict: &(impl Fn(&[f64], &R) -> f64 + Sync),
    threads: usize,
) -> f64 {
    let predicted = parallel(firsts, threads, |i| predict(values, &samples[*i].row));
    let error = |(s, at): (&&Sample<R>, &usize)| {
        let error = (predicted[*at] / s.measured).ln().abs();
        s.weight * if error.is_finite() { error.min(HOPELESS) } else { HOPELESS }
    };
    let weight: f64 = samples.iter().map(|s| s.weight).sum();
    if weight > 0.0 {
        samples.iter().zip(place).map(error).sum::<f64>() / weight
    } else {
        0.0
    }
}

/// The first of all samples that are alike, and for each sample its place among these.
fn firsts<R>(samples: &[&Sample<R>]) -> (Vec<usize>, Vec<usize>) {
    let (mut firsts, mut place) = (Vec::new(), Vec::with_capacity(samples.len()));
    let mut seen: BTreeMap<u64, usize> = BTreeMap::new();
    for (i, s) in samples.iter().enumerate() {
        let known = s.alike.and_then(|key| seen.get(&key).copied());
        place.push(known.unwrap_or(firsts.len()));
        if known.is_none() {
            s.alike.map(|key| seen.insert(key, firsts.len()));
            firsts.push(i);
        }
    }
    (firsts, place)
}

/// `f` of every item, in order, on a few threads that take one item after the other.
pub fn parallel<T: Sync, U: Send>(items: &[T], threads: usize, f: impl Fn(&T) -> U + Sync) -> Vec<U> {
    if threads <= 1 || items.len() < 2 {
        return items.iter().map(f).collect();
    }
    let next = AtomicUsize::new(0);
    let done: Mutex<Vec<(usize, U)>> = Mutex::new(Vec::with_capacity(items.len()));
    let work = || {
        let mut mine = Vec::new();
        while let Some((i, item)) = Some(next.fetch_add(1, Ordering::Relaxed)).and_then(|i| Some((i, items.get(i)?))) {
            mine.push((i, f(item)));
        }
        // A poisoned lock means that another thread panicked, and the scope passes that on.
        done.lock().unwrap_or_else(|e| e.into_inner()).extend(mine);
    };
    std::thread::scope(|scope| {
        for _ in 1..threads.min(items.len()) {
            scope.spawn(work);
        }
        work();
    });
    let mut all = done.into_inner().unwrap_or_else(|e| e.into_inner());
    all.sort_by_key(|(i, _)| *i);
    all.into_iter().map(|(_, u)| u).collect()
}

/// Simplex after simplex, each a smaller one round the best of the last, until one gains nothing.
fn minimise(origin: &[f64], f: impl Fn(&[f64]) -> f64, most: usize) -> (Vec<f64>, usize) {
    let mut best = origin.to_vec();
    let mut value = f(&best);
    let mut used = 1;
    let mut size = 0.25;
    for _ in 0..6 {
        let (found, v, n) = simplex(&best, value, size, &f, most.saturating_sub(used));
        used += n;
        let gained = value - v;
        (best, value) = (found, v);
        size = f64::max(size * 0.6, 0.05);
        if gained < 1e-4 || used >= most {
            break;
        }
    }
    (best, used)
}

/// One run of the simplex, inside the unit cube: points are moved back to its faces.
fn simplex(start: &[f64], value: f64, size: f64, f: &impl Fn(&[f64]) -> f64, most: usize) -> (Vec<f64>, f64, usize) {
    let n = start.len();
    let mut used = 0;
    let mut at = |x: Vec<f64>| {
        let x: Vec<f64> = x.into_iter().map(|u| u.clamp(0.0, 1.0)).collect();
        used += 1;
        (f(&x), x)
    };
    let mut points = vec![(value, start.to_vec())];
    for i in 0..n {
        let mut x = start.to_vec();
        // Towards the farther face, so that the corner is not cut off by it.
        x[i] += if x[i] <= 0.5 { size } else { -size };
        points.push(at(x));
    }
    let budget = most.saturating_sub(n);
    for _ in 0..budget {
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        let (low, high) = (points[0].0, points[n].0);
        let width = (0..n).map(|i| spread(points.iter().map(|p| p.1[i]))).fold(0.0, f64::max);
        if width < 2e-4 || (high - low < 1e-9 && width < 1e-2) {
            break;
        }
        let centre: Vec<f64> = (0..n).map(|i| points[..n].iter().map(|p| p.1[i]).sum::<f64>() / n as f64).collect();
        let along = |t: f64| -> Vec<f64> { (0..n).map(|i| centre[i] + t * (points[n].1[i] - centre[i])).collect() };
        let reflected = at(along(-1.0));
        let replacement = if reflected.0 < low {
            let further = at(along(-2.0));
            Some(if further.0 < reflected.0 { further } else { reflected })
        } else if reflected.0 < points[n - 1].0 {
            Some(reflected)
        } else {
            let side = if reflected.0 < high { -0.5 } else { 0.5 };
            let closer = at(along(side));
            (closer.0 < high.min(reflected.0)).then_some(closer)
        };
        match replacement {
            Some(point) => points[n] = point,
            None => {
                let best = points[0].1.clone();
                for p in &mut points[1..] {
                    *p = at(p.1.iter().zip(&best).map(|(x, b)| (x + b) / 2.0).collect());
                }
            }
        }
    }
    points.sort_by(|a, b| a.0.total_cmp(&b.0));
    let (value, x) = points.swap_remove(0);
    (x, value, used)
}

fn spread(values: impl Iterator<Item = f64>) -> f64 {
    let (low, high) = values.fold((f64::INFINITY, f64::NEG_INFINITY), |(l, h), x| (l.min(x), h.max(x)));
    high - low
}

/// A row's prediction by constants that were found without its group.
#[derive(Clone, Debug, PartialEq)]
pub struct LeftOut {
    /// The group.
    pub group: String,
    /// The prediction.
    pub predicted: f64,
    /// What was measured.
    pub measured: f64,
    /// The row's share of a vote.
    pub weight: f64,
}

impl LeftOut {
    /// The signed relative error with its vote.
    pub fn vote(&self) -> Vote {
        Vote { value: self.predicted / self.measured - 1.0, weight: self.weight }
    }
}

/// Constants found on `on` without each group of the samples, by group; groups are spread over the threads. Nothing of a group reaches
/// the constants that predict it: every search starts at the knobs' start. Where there is one group only, nothing
/// is left to find constants on, and they stay at their start.
///
/// # Errors
/// As [`fit`].
pub fn without_each_group<R: Sync>(
    knobs: &[Knob],
    samples: &[Sample<R>],
    on: &[&Sample<R>],
    predict: &(impl Fn(&[f64], &R) -> f64 + Sync),
    options: &Options,
) -> Result<BTreeMap<String, Vec<f64>>, FitError> {
    let mut groups: Vec<&str> = samples.iter().map(|s| s.group.as_str()).collect();
    groups.sort_unstable();
    groups.dedup();
    let inner = Options { threads: 1, ..*options };
    let fits = parallel(&groups, options.threads, |group| {
        let others: Vec<&Sample<R>> = on.iter().copied().filter(|s| s.group != **group).collect();
        fit(knobs, &others, predict, &inner)
    });
    groups.into_iter().zip(fits).map(|(g, f)| f.map(|f| (g.to_string(), f.values))).collect()
}

/// Predicts every row by the constants that were found without its group, in the rows' order. A row whose group
/// has none is left out.
pub fn left_out<R>(
    samples: &[Sample<R>],
    fits: &BTreeMap<String, Vec<f64>>,
    predict: &impl Fn(&[f64], &R) -> f64,
) -> Vec<LeftOut> {
    let out = |s: &Sample<R>| {
        let predicted = predict(fits.get(&s.group)?, &s.row);
        Some(LeftOut { group: s.group.clone(), predicted, measured: s.measured, weight: s.weight })
    };
    samples.iter().filter_map(out).collect()
}

#[cfg(test)]
#[path = "fit_tests.rs"]
mod tests;

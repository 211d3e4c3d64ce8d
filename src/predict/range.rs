//! How far a measurement may be from a prediction: as far as those of the validated runs most like it were.
//!
//! Every measured run that `autoshard accuracy` evaluates is kept with a *likeness*: the framework, whether the
//! model has experts, whether products are narrower than 16 bits, how many devices, and what the step is made
//! of. A step made of launch gaps errs otherwise than one of large products or of messages between servers,
//! whatever the model. A prediction takes the errors of the [`NEAREST`] configurations like it, nearer ones
//! counting more, and four of five of them are within its range, which is as wide up as down: a sign that the
//! errors share says little about a model that nobody has measured.
//!
//! A run is kept with two errors. Constants have seen the models and machines (*groups*) that they were found
//! on, and err less there: a prediction of such a group takes the errors of constants found on all runs, one of
//! any other the errors of constants found without the run's group.

use super::{PartKind, Prediction};
use crate::runs::GroupKey;
use autoshard_cost::cluster::Cluster;

/// Share of measurements that a range is to hold.
pub const HELD: f64 = 0.8;

/// Votes that decide a range: configurations, however often each was measured.
pub const NEAREST: f64 = 10.0;

/// Distance that another framework adds; two steps made of nothing in common are √2 apart.
const OTHER_STACK: f64 = 1.0;
/// Distance that experts, or narrow formats, make.
const OTHER_KIND: f64 = 0.5;
/// Distance of ten times the devices.
const TENFOLD: f64 = 0.1;
/// Runs nearer than this are as good as equal.
const EQUAL: f64 = 0.02;
/// Weights reach zero at so many times the distance of the last vote.
const REACH: f64 = 1.3;

/// What a step's time is made of, as [`Likeness::shares`] counts it.
pub const SHARES: [&str; 9] = [
    "products",
    "attention",
    "loops",
    "launch gaps",
    "messages inside a server",
    "messages between servers",
    "optimizer",
    "overhead",
    "bubble",
];

/// What makes runs err alike.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Likeness {
    /// The framework.
    pub stack: String,
    /// Model sizes and machine with the framework, as [`GroupKey`] prints them.
    pub group: String,
    /// Whether the model has experts.
    pub experts: bool,
    /// Whether products have operands of less than 16 bits.
    pub narrow: bool,
    /// Devices.
    pub devices: f64,
    /// Shares (0–1) of the step by what is exposed, in the order of [`SHARES`].
    pub shares: [f64; SHARES.len()],
}

/// A measured run and how far it was from its prediction.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Validated {
    /// What it is like.
    pub like: Likeness,
    /// |ln(measured / predicted)| by constants that have not seen its group.
    pub unseen: f64,
    /// The same by constants found on all runs.
    pub seen: f64,
    /// Its share of a vote: repeats of a configuration share one.
    pub weight: f64,
}

/// What is expected of measured / predicted.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Range {
    /// Lower end.
    pub low: f64,
    /// Upper end.
    pub high: f64,
    /// Whether runs of its group were validated.
    pub known: bool,
    /// Share of its weight that runs of other frameworks have.
    pub borrowed: f64,
}

impl Likeness {
    /// What a prediction is like.
    pub fn new(
        group: &GroupKey,
        (experts, narrow): (bool, bool),
        devices: u64,
        prediction: &Prediction,
        cluster: &Cluster,
    ) -> Likeness {
        let innermost = cluster.tiers.first().map_or("", |t| t.name.as_str());
        let mut shares = [0.0; SHARES.len()];
        for part in prediction.parts.iter().filter(|p| p.exposed) {
            let at = match part.kind {
                PartKind::Products => 0,
                PartKind::Attention => 1,
                PartKind::Loops => 2,
                PartKind::LaunchGaps => 3,
                PartKind::Collective if part.tier == innermost => 4,
                PartKind::Collective => 5,
                PartKind::Optimizer => 6,
                PartKind::Overhead => 7,
                PartKind::Bubble => 8,
            };
            shares[at] += part.seconds / prediction.step_seconds;
        }
        let (stack, group) = (group.stack.clone(), group.to_string());
        Likeness { stack, group, experts, narrow, devices: devices as f64, shares }
    }

    /// How unlike two runs are; 0 is alike.
    pub fn distance(&self, other: &Likeness) -> f64 {
        let flag = |differs: bool, size: f64| if differs { size * size } else { 0.0 };
        let mut square = flag(self.experts != other.experts, OTHER_KIND);
        square += flag(self.narrow != other.narrow, OTHER_KIND);
        square += (TENFOLD * (self.devices / other.devices).log10()).powi(2);
        square += self.shares.iter().zip(&other.shares).map(|(a, b)| (a - b).powi(2)).sum::<f64>();
        square.sqrt() + if self.stack == other.stack { 0.0 } else { OTHER_STACK }
    }
}

/// The range of a prediction by runs that were validated; `None` without any.
pub fn range<'a>(of: &Likeness, runs: impl Iterator<Item = &'a Validated>) -> Option<Range> {
    let mut near: Vec<(f64, &Validated)> =
        runs.map(|v| (of.distance(&v.like), v)).filter(|(d, _)| d.is_finite()).collect();
    near.sort_by(|a, b| a.0.total_cmp(&b.0));
    let known = near.iter().any(|(_, v)| v.like.group == of.group);
    let mut votes = 0.0;
    let last = near.iter().find(|(_, v)| {
        votes += v.weight;
        votes >= NEAREST
    });
    let reach = REACH * last.or(near.last())?.0.max(EQUAL);
    let mut errors = Vec::with_capacity(near.len());
    let (mut all, mut others) = (0.0, 0.0);
    for (d, v) in near.iter().take_while(|(d, _)| *d < reach) {
        let w = v.weight * (1.0 - (d / reach).powi(2));
        errors.push((if known { v.seen } else { v.unseen }, w));
        all += w;
        others += if v.like.stack == of.stack { 0.0 } else { w };
    }
    errors.sort_by(|a, b| a.0.total_cmp(&b.0));
    let width = quantile(&errors, HELD)?.exp();
    Some(Range { low: 1.0 / width, high: width, known, borrowed: others / all })
}

/// The `q`-quantile of sorted (value, weight), linear between the middles of their weights.
fn quantile(sorted: &[(f64, f64)], q: f64) -> Option<f64> {
    let total: f64 = sorted.iter().map(|(_, w)| w).sum();
    let target = q * total;
    let (mut before, mut last) = (0.0, None::<(f64, f64)>);
    for (value, w) in sorted {
        let here = before + w / 2.0;
        if here >= target {
            return Some(last.map_or(*value, |(at, low)| low + (value - low) * (target - at) / (here - at)));
        }
        (before, last) = (before + w, Some((here, *value)));
    }
    last.map(|(_, value)| value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn like(stack: &str, gaps: f64) -> Likeness {
        let mut shares = [0.0; SHARES.len()];
        (shares[0], shares[3]) = (1.0 - gaps, gaps);
        Likeness { stack: stack.into(), group: "known".into(), devices: 8.0, shares, ..Likeness::default() }
    }

    /// Twenty runs of large products within 2 %, twenty of launch gaps within 20 %; half as much where seen.
    fn runs() -> Vec<Validated> {
        let one = |i: usize, gaps: f64, width: f64| {
            let unseen = width * (i as f64 + 0.5) / 20.0;
            Validated { like: like("s", gaps), unseen, seen: unseen / 2.0, weight: 1.0 }
        };
        (0..20).flat_map(|i| [one(i, 0.0, 0.02), one(i, 0.6, 0.2)]).collect()
    }

    #[test]
    fn ranges_are_those_of_runs_that_are_made_of_the_same() {
        let runs = runs();
        let of = |gaps, group: &str| range(&Likeness { group: group.into(), ..like("s", gaps) }, runs.iter()).unwrap();
        let width = |r: Range| r.high.ln();
        let (narrow, wide) = (of(0.0, "new"), of(0.6, "new"));
        assert!((width(narrow) - 0.016).abs() < 1e-9 && (narrow.low * narrow.high - 1.0).abs() < 1e-12, "{narrow:?}");
        assert!((width(wide) - 0.16).abs() < 1e-9 && !wide.known, "{wide:?}");
        // Of a group that was measured, constants know more.
        let known = of(0.6, "known");
        assert!(known.known && (width(known) - 0.08).abs() < 1e-9, "{known:?}");
        assert_eq!((narrow.borrowed, range(&like("t", 0.0), runs.iter()).unwrap().borrowed), (0.0, 1.0));
        assert_eq!(range(&like("s", 0.0), [].iter()), None);
    }

    #[test]
    fn repeats_of_a_configuration_share_a_vote() {
        let once = runs();
        let third = |v: &Validated| Validated { weight: v.weight / 3.0, ..v.clone() };
        let thrice: Vec<Validated> = once.iter().flat_map(|v| vec![third(v); 3]).collect();
        let of = |runs: &[Validated]| range(&like("s", 0.0), runs.iter()).unwrap().high;
        assert!((of(&once) - of(&thrice)).abs() < 1e-3, "{} {}", of(&once), of(&thrice));
    }

    #[test]
    fn experts_formats_and_frameworks_are_further_away_than_a_few_devices() {
        let a = like("s", 0.1);
        let other = |change: fn(&mut Likeness)| {
            let mut b = a.clone();
            change(&mut b);
            a.distance(&b)
        };
        assert_eq!(other(|_| ()), 0.0);
        assert!((other(|b| b.devices = 80.0) - TENFOLD).abs() < 1e-12);
        assert_eq!((other(|b| b.experts = true), other(|b| b.narrow = true)), (OTHER_KIND, OTHER_KIND));
        assert_eq!(other(|b| b.stack = "t".into()), OTHER_STACK);
    }
}

//! Judged rows, and lines of them: by source, by group, and by what sets rows of one source apart.

use super::stats::{errors, mean, quantile, Errors, Vote};
use crate::predict::range::{range, Range, Validated};
use crate::runs::RunRow;
use std::collections::{BTreeMap, BTreeSet};

/// Errors of one row, with its vote.
#[derive(Clone, Debug, PartialEq)]
pub struct Judged {
    /// Its place in the files.
    pub index: usize,
    /// Its id.
    pub id: String,
    /// Its source.
    pub tag: String,
    /// What is left out together.
    pub group: String,
    /// Key of the same configuration in other releases.
    pub repeat: Option<String>,
    /// What sets it apart from others of its source.
    pub traits: Traits,
    /// Seconds measured.
    pub measured: f64,
    /// Seconds predicted by constants that have not seen its group.
    pub predicted: f64,
    /// Seconds predicted by constants found on all rows of the framework.
    pub known: f64,
    /// Error by those that have not seen its group.
    pub left_out: Vote,
    /// Error by constants found on all rows of the framework.
    pub in_sample: Vote,
    /// Error by the constants in the product.
    pub shipped: Vote,
    /// Whether the measurement is in the range that the shipped prediction states: 1 or 0.
    pub covered: Vote,
    /// Error of the roofline.
    pub roofline: Option<Vote>,
    /// What other rows' ranges are made of.
    pub validated: Validated,
    /// Range of measured / predicted, found without its group.
    pub unseen: Option<Range>,
    /// The same, found without its own configuration only; of `predicted` where nothing else of its group is
    /// known, else of `known`.
    pub seen: Option<Range>,
}

/// What sets rows of one source apart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traits {
    /// The model has experts.
    pub experts: bool,
    /// Ranks that share activations (tp·cp) are on several servers.
    pub across: bool,
    /// It has pipeline stages.
    pub pipeline: bool,
}

impl Traits {
    /// Those of a row.
    pub fn of(row: &RunRow) -> Traits {
        let l = &row.layout;
        Traits {
            experts: row.model.get("moe").is_some_and(|m| !m.is_null()),
            across: l.tp.saturating_mul(l.cp) > row.gpus_per_node,
            pipeline: l.pp > 1,
        }
    }
}

/// How ranges of predictions hold what was measured.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Held {
    /// Share of votes (0–1) inside.
    pub share: f64,
    /// Median half-width, as a share of the prediction.
    pub half_width: f64,
}

/// Errors of a set of rows by every way of predicting.
#[derive(Clone, Debug, PartialEq)]
pub struct Line {
    /// Tag or group.
    pub name: String,
    /// Rows.
    pub rows: usize,
    /// Distinct configurations: votes.
    pub votes: f64,
    /// Groups that were left out one by one.
    pub groups: usize,
    /// By constants that have not seen the row's group.
    pub left_out: Option<Errors>,
    /// By constants found on all rows of the framework.
    pub in_sample: Option<Errors>,
    /// By the constants in the product.
    pub shipped: Option<Errors>,
    /// Share of measured times (0–1) inside the range that the shipped prediction states.
    pub covered: Option<f64>,
    /// By ranges found without the row's group.
    pub unseen: Option<Held>,
    /// By ranges found without the row's configuration.
    pub seen: Option<Held>,
    /// By FLOPs over a fixed share of the peak.
    pub roofline: Option<Errors>,
    /// What no predictor that knows the configuration alone can get below: how far repeats of one
    /// configuration are from their mean. `None` without repeats.
    pub floor: Option<f64>,
}

/// Finds the ranges of every row by the others: without its group, and without its configuration.
pub fn find_ranges(judged: &mut [Judged]) {
    let found: Vec<_> = judged
        .iter()
        .map(|j| {
            let same = |o: &Judged| match &j.repeat {
                Some(key) => o.repeat.as_ref() == Some(key),
                None => o.index == j.index,
            };
            let of = |keep: &dyn Fn(&Judged) -> bool| {
                range(&j.validated.like, judged.iter().filter(|o| keep(o)).map(|o| &o.validated))
            };
            (of(&|o| o.group != j.group), of(&|o| !same(o)))
        })
        .collect();
    for (j, (unseen, seen)) in judged.iter_mut().zip(found) {
        (j.unseen, j.seen) = (unseen, seen);
    }
}

/// Lines by a name, in order; with `all` after them where asked.
pub fn lines(judged: &[Judged], name: impl Fn(&Judged) -> &str, total: bool) -> Vec<Line> {
    let mut sets: BTreeMap<&str, Vec<&Judged>> = BTreeMap::new();
    for j in judged {
        sets.entry(name(j)).or_default().push(j);
    }
    let mut out: Vec<Line> = sets.iter().map(|(name, set)| line(name, set)).collect();
    if total {
        out.push(line("all", &judged.iter().collect::<Vec<_>>()));
    }
    out
}

/// Sources whose rows are of two kinds, with what tells these apart and both names.
type Parted = (&'static str, fn(&Traits) -> bool, [&'static str; 2]);
const PARTED: [Parted; 5] = [
    ("vtrain_multi", |t| t.across, ["tp inside a server", "tp across servers"]),
    ("dgxc", |t| t.experts, ["dense", "experts"]),
    ("simumax_b200", |t| t.experts, ["dense", "experts"]),
    ("mbridge", |t| t.experts, ["dense", "experts"]),
    ("moezoo", |t| t.pipeline, ["one stage", "pipeline"]),
];

/// Lines of the sources whose rows are of two kinds.
pub fn parted(judged: &[Judged]) -> Vec<Line> {
    let mut out = Vec::new();
    for (tag, apart, names) in PARTED {
        for (side, name) in names.into_iter().enumerate() {
            let set: Vec<&Judged> =
                judged.iter().filter(|j| j.tag == tag && usize::from(apart(&j.traits)) == side).collect();
            if !set.is_empty() {
                out.push(line(&format!("{tag}, {name}"), &set));
            }
        }
    }
    out
}

/// One line of a set.
pub fn line(name: &str, set: &[&Judged]) -> Line {
    let of = |vote: fn(&Judged) -> Option<Vote>| {
        let votes: Vec<Vote> = set.iter().filter_map(|j| vote(j)).collect();
        errors(&votes)
    };
    let groups: BTreeSet<&str> = set.iter().map(|j| j.group.as_str()).collect();
    Line {
        name: name.into(),
        rows: set.len(),
        votes: set.iter().map(|j| j.left_out.weight).sum(),
        groups: groups.len(),
        left_out: of(|j| Some(j.left_out)),
        in_sample: of(|j| Some(j.in_sample)),
        shipped: of(|j| Some(j.shipped)),
        covered: mean(&set.iter().map(|j| j.covered).collect::<Vec<_>>()),
        unseen: held(set, |j| j.unseen),
        seen: held(set, |j| j.seen),
        roofline: of(|j| j.roofline),
        floor: floor(set),
    }
}

/// How ranges hold a set's measurements: each round the prediction whose errors it is made of.
fn held(set: &[&Judged], of: fn(&Judged) -> Option<Range>) -> Option<Held> {
    let vote = |j: &Judged, value: f64| Vote { value, weight: j.left_out.weight };
    let (mut inside, mut widths) = (Vec::new(), Vec::new());
    for (j, r) in set.iter().filter_map(|j| Some((j, of(j)?))) {
        let over = j.measured / if r.known { j.known } else { j.predicted };
        inside.push(vote(j, f64::from(u8::from((r.low..=r.high).contains(&over)))));
        widths.push(vote(j, (r.high - r.low) / 2.0));
    }
    Some(Held { share: mean(&inside)?, half_width: quantile(&widths, 0.5)? })
}

/// Mean distance of repeats from the mean of their configuration, each configuration one vote.
fn floor(set: &[&Judged]) -> Option<f64> {
    let distance = |times: &Vec<f64>| {
        let centre = times.iter().sum::<f64>() / times.len() as f64;
        times.iter().map(|t| (t / centre - 1.0).abs()).sum::<f64>() / times.len() as f64
    };
    let keys = repeats(set);
    let votes: Vec<Vote> =
        keys.values().filter(|t| t.len() > 1).map(|t| Vote { value: distance(t), weight: 1.0 }).collect();
    mean(&votes)
}

/// Measured times by configuration.
fn repeats<'a>(set: &[&'a Judged]) -> BTreeMap<&'a str, Vec<f64>> {
    let mut keys: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
    for j in set {
        if let Some(key) = &j.repeat {
            keys.entry(key).or_default().push(j.measured);
        }
    }
    keys
}

/// A row of a source that contradicts the source's own releases.
#[derive(Clone, Debug, PartialEq)]
pub struct Disagreement {
    /// The row.
    pub id: String,
    /// The configuration.
    pub configuration: String,
    /// Seconds measured.
    pub measured: f64,
    /// Median over releases, s.
    pub median: f64,
}

/// How far from the median of its releases a row may be, before its source disagrees with itself.
pub const DISAGREES: f64 = 0.10;

/// A source judged against the median of each configuration's releases, one vote a configuration, and the rows
/// that are more than [`DISAGREES`] from that.
pub fn against_median(judged: &[Judged], tag: &str) -> (Option<Errors>, Vec<Disagreement>) {
    let set: Vec<&Judged> = judged.iter().filter(|j| j.tag == tag).collect();
    let equal = |times: &[f64]| times.iter().map(|t| Vote { value: *t, weight: 1.0 }).collect::<Vec<_>>();
    let keys = repeats(&set);
    let median = |j: &Judged| {
        let times = j.repeat.as_deref().and_then(|k| keys.get(k));
        times.and_then(|t| quantile(&equal(t), 0.5)).unwrap_or(j.measured)
    };
    let vote = |j: &&Judged| Vote { value: j.predicted / median(j) - 1.0, weight: j.left_out.weight };
    let apart = |j: &&&Judged| (j.measured / median(j) - 1.0).abs() > DISAGREES;
    let told = |j: &&Judged| Disagreement {
        id: j.id.clone(),
        configuration: j.repeat.clone().unwrap_or_default(),
        measured: j.measured,
        median: median(j),
    };
    let votes: Vec<Vote> = set.iter().map(vote).collect();
    (errors(&votes), set.iter().filter(apart).map(told).collect())
}

/// One row, told by itself.
#[derive(Clone, Debug, PartialEq)]
pub struct RowLine {
    /// Its id.
    pub id: String,
    /// Seconds measured.
    pub measured: f64,
    /// Error by constants that have not seen its group.
    pub left_out: f64,
    /// Error by the constants in the product.
    pub shipped: f64,
}

/// The rows of some sources, one by one.
pub fn one_by_one(judged: &[Judged], tags: &[&str]) -> Vec<RowLine> {
    let told = |j: &Judged| RowLine {
        id: j.id.clone(),
        measured: j.measured,
        left_out: j.left_out.value,
        shipped: j.shipped.value,
    };
    judged.iter().filter(|j| tags.contains(&j.tag.as_str())).map(told).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::predict::range::Likeness;

    fn judged(index: usize, repeat: Option<&str>, measured: f64, predicted: f64) -> Judged {
        let vote = Vote { value: predicted / measured - 1.0, weight: 1.0 };
        let group = format!("g{}", index % 2);
        let like = Likeness { devices: 8.0, group: group.clone(), ..Likeness::default() };
        let error = (measured / predicted).ln().abs();
        Judged {
            index,
            id: format!("r{index}"),
            tag: "mbridge".into(),
            group,
            repeat: repeat.map(str::to_string),
            traits: Traits { experts: index == 0, ..Traits::default() },
            measured,
            predicted,
            known: predicted,
            left_out: vote,
            in_sample: vote,
            shipped: vote,
            covered: vote,
            roofline: None,
            validated: Validated { like, unseen: error, seen: error, weight: 1.0 },
            unseen: None,
            seen: None,
        }
    }

    #[test]
    fn releases_are_judged_by_their_median_and_those_apart_are_listed() {
        let all = [
            judged(0, Some("k"), 10.0, 11.0),
            judged(1, Some("k"), 10.5, 11.0),
            judged(2, Some("k"), 13.0, 11.0),
            judged(3, None, 2.0, 2.0),
        ];
        let (e, apart) = against_median(&all, "mbridge");
        let expected = (3.0 * (11.0 / 10.5 - 1.0)) / 4.0;
        assert!((e.unwrap().mape - expected).abs() < 1e-12);
        assert_eq!(apart.iter().map(|d| d.id.as_str()).collect::<Vec<_>>(), ["r2"]);
        let parts = parted(&all);
        assert_eq!(
            parts.iter().map(|l| (l.name.as_str(), l.rows)).collect::<Vec<_>>(),
            [("mbridge, dense", 3), ("mbridge, experts", 1)]
        );
    }

    #[test]
    fn a_range_does_not_see_what_it_is_judged_on() {
        // One group is right, the other 30 % slower than predicted.
        let mut all: Vec<Judged> = (0..12).map(|i| judged(i, None, if i % 2 == 0 { 1.0 } else { 1.3 }, 1.0)).collect();
        find_ranges(&mut all);
        let l = line("all", &all.iter().collect::<Vec<_>>());
        // Found on the other group, no range holds a slow row; found on all but the row, many do.
        let slow: Vec<&Judged> = all.iter().filter(|j| j.measured > 1.1).collect();
        assert_eq!(line("slow", &slow).unseen.unwrap().share, 0.0);
        assert!(line("slow", &slow).seen.unwrap().share > 0.9);
        assert!(l.seen.unwrap().half_width > 0.1, "{l:?}");
    }
}

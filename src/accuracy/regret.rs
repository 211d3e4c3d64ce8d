//! Is the predicted-best layout a good one?
//!
//! Rows that differ in the layout only form a group. The regret of a group is how much slower the measured
//! time of the layout that is predicted to be best is than the best measured time. Where the best two
//! measured times lie closer than the same configuration measured twice, the group cannot tell: it is listed,
//! and not counted in the maximum.

use super::stats::{equal, mean, quantile};
use std::collections::BTreeMap;

/// Fewest distinct layouts of a group.
pub const FEWEST: usize = 3;

/// One measured row and its prediction.
#[derive(Clone, Debug, PartialEq)]
pub struct Trial {
    /// Source.
    pub tag: String,
    /// All that a group has in common.
    pub group: String,
    /// All that differs.
    pub layout: String,
    /// Key of the same configuration in other releases.
    pub repeat: Option<String>,
    /// Seconds measured.
    pub measured: f64,
    /// Seconds predicted.
    pub predicted: f64,
}

/// How far repeats of one configuration lie apart: the slowest over the fastest, minus 1.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Spreads {
    /// Median over a tag's repeated configurations.
    pub by_tag: BTreeMap<String, f64>,
    /// Median over all; 0 where nothing was repeated.
    pub all: f64,
}

impl Spreads {
    /// The tag's own, or that of all where the tag repeats nothing.
    pub fn of(&self, tag: &str) -> f64 {
        self.by_tag.get(tag).copied().unwrap_or(self.all)
    }
}

/// Spreads of what was measured more than once: equal layouts of a group, and equal repeat keys.
pub fn spreads(trials: &[Trial]) -> Spreads {
    let mut sets: BTreeMap<(&str, &str, &str), Vec<f64>> = BTreeMap::new();
    for t in trials {
        let key = match &t.repeat {
            Some(repeat) => (t.tag.as_str(), repeat.as_str(), ""),
            None => (t.tag.as_str(), t.group.as_str(), t.layout.as_str()),
        };
        sets.entry(key).or_default().push(t.measured);
    }
    let ratio = |v: &Vec<f64>| v.iter().copied().fold(0.0, f64::max) / v.iter().copied().fold(f64::INFINITY, f64::min);
    let repeated: Vec<(&str, f64)> =
        sets.iter().filter(|(_, v)| v.len() > 1).map(|(k, v)| (k.0, ratio(v) - 1.0)).collect();
    let median = |values: Vec<f64>| quantile(&equal(&values), 0.5);
    let mut tags: Vec<&str> = repeated.iter().map(|(t, _)| *t).collect();
    tags.dedup();
    let of = |tag: &str| repeated.iter().filter(|(t, _)| *t == tag).map(|(_, s)| *s).collect();
    Spreads {
        by_tag: tags.iter().filter_map(|t| Some((t.to_string(), median(of(t))?))).collect(),
        all: median(repeated.iter().map(|(_, s)| *s).collect()).unwrap_or(0.0),
    }
}

/// One group, judged.
#[derive(Clone, Debug, PartialEq)]
pub struct Group {
    /// What its rows have in common.
    pub name: String,
    /// Distinct layouts.
    pub layouts: usize,
    /// How much slower the predicted-best layout is than the best: 0 is the best.
    pub regret: f64,
    /// The same of a layout drawn at random.
    pub random: f64,
    /// How much slower the second-best measured layout is than the best.
    pub gap: f64,
    /// Whether that is less than repeats differ, so that the group cannot tell.
    pub close: bool,
}

/// Groups of at least [`FEWEST`] layouts, in order of their names.
pub fn groups(trials: &[&Trial], spreads: &Spreads) -> Vec<Group> {
    let mut all: BTreeMap<&str, (f64, BTreeMap<&str, Vec<&Trial>>)> = BTreeMap::new();
    for t in trials {
        let group = all.entry(&t.group).or_insert_with(|| (spreads.of(&t.tag), BTreeMap::new()));
        group.1.entry(&t.layout).or_default().push(t);
    }
    all.into_iter().filter_map(|(name, (spread, layouts))| group(name, spread, &layouts)).collect()
}

fn group(name: &str, spread: f64, layouts: &BTreeMap<&str, Vec<&Trial>>) -> Option<Group> {
    let average = |trials: &[&Trial], of: fn(&Trial) -> f64| {
        let values: Vec<f64> = trials.iter().map(|t| of(t)).collect();
        mean(&equal(&values))
    };
    let times: Vec<(f64, f64)> =
        layouts.values().filter_map(|t| Some((average(t, |t| t.measured)?, average(t, |t| t.predicted)?))).collect();
    if times.len() < FEWEST {
        return None;
    }
    let mut measured: Vec<f64> = times.iter().map(|(m, _)| *m).collect();
    measured.sort_by(f64::total_cmp);
    let best = measured[0];
    let chosen = times.iter().min_by(|a, b| a.1.total_cmp(&b.1)).map(|(m, _)| *m)?;
    let slower: Vec<f64> = measured.iter().map(|m| m / best - 1.0).collect();
    let gap = slower[1];
    Some(Group {
        name: name.into(),
        layouts: times.len(),
        regret: chosen / best - 1.0,
        random: mean(&equal(&slower))?,
        gap,
        close: gap < spread,
    })
}

/// Regret over groups.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Regret {
    /// Groups.
    pub groups: usize,
    /// Mean regret of all of them.
    pub mean: Option<f64>,
    /// Largest regret of those that can tell.
    pub max: Option<f64>,
    /// Mean regret of random layouts.
    pub random: Option<f64>,
    /// Groups that cannot tell.
    pub close: Vec<String>,
}

/// Sums groups up.
pub fn regret(groups: &[Group]) -> Regret {
    let over = |of: fn(&Group) -> f64| mean(&equal(&groups.iter().map(of).collect::<Vec<_>>()));
    Regret {
        groups: groups.len(),
        mean: over(|g| g.regret),
        max: groups.iter().filter(|g| !g.close).map(|g| g.regret).reduce(f64::max),
        random: over(|g| g.random),
        close: groups.iter().filter(|g| g.close).map(|g| g.name.clone()).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trial(group: &str, layout: &str, measured: f64, predicted: f64) -> Trial {
        let (tag, group, layout) = ("t".to_string(), group.to_string(), layout.to_string());
        Trial { tag, group, layout, repeat: None, measured, predicted }
    }

    fn judged(trials: &[Trial]) -> Vec<Group> {
        groups(&trials.iter().collect::<Vec<_>>(), &spreads(trials))
    }

    #[test]
    fn the_predicted_best_is_held_against_the_best() {
        let t = [trial("g", "a", 10.0, 9.0), trial("g", "b", 8.0, 9.5), trial("g", "c", 12.0, 20.0)];
        let g = &judged(&t)[0];
        assert!((g.regret - 0.25).abs() < 1e-12 && !g.close, "{g:?}");
        // (0 + 0.25 + 0.5) / 3
        assert!((g.random - 0.25).abs() < 1e-12, "{g:?}");
        // The right choice has none.
        let t = [trial("g", "a", 10.0, 9.0), trial("g", "b", 8.0, 8.5), trial("g", "c", 12.0, 20.0)];
        assert_eq!(judged(&t)[0].regret, 0.0);
        // Two layouts are no choice.
        assert!(judged(&t[..2]).is_empty());
    }

    #[test]
    fn repeats_are_averaged_and_say_what_a_group_can_tell() {
        let t = [
            trial("g", "a", 9.0, 9.0),
            trial("g", "a", 11.0, 9.0),
            trial("g", "b", 10.5, 10.0),
            trial("g", "c", 20.0, 8.0),
        ];
        let s = spreads(&t);
        assert!((s.of("t") - (11.0 / 9.0 - 1.0)).abs() < 1e-12);
        assert_eq!(s.of("another"), s.all);
        let g = judged(&t);
        assert_eq!((g[0].layouts, g[0].regret, g[0].close), (3, 1.0, true));
        let r = regret(&g);
        assert_eq!((r.groups, r.mean, r.max, r.close.len()), (1, Some(1.0), None, 1));
        assert_eq!(regret(&[]), Regret::default());
    }

    #[test]
    fn releases_of_a_configuration_are_repeats() {
        let mut t = [trial("g1", "a", 10.0, 1.0), trial("g2", "a", 12.0, 1.0)];
        assert_eq!(spreads(&t).all, 0.0);
        t.iter_mut().for_each(|t| t.repeat = Some("k".into()));
        assert!((spreads(&t).all - 0.2).abs() < 1e-12);
    }
}

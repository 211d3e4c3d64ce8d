//! The validated runs that ranges of predictions are made of: `data/stacks/validated.json`, written by
//! `autoshard accuracy --write`.

use super::{damaged, StackError};
use crate::predict::range::{Likeness, Validated, SHARES};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Name of the file beside the stacks.
pub const FILE: &str = "validated.json";

const TEXT: &str = include_str!("../../data/stacks/validated.json");

/// A run, short: experts, narrow (0 or 1), devices, shares in 1/1000, |ln(measured / predicted)| in 1/10000 by
/// constants that have not seen its group and by those that have, vote in 1/1000.
type Short = (u8, u8, u64, [u32; SHARES.len()], u32, u32, u32);

#[derive(Default, Deserialize, Serialize)]
struct File {
    about: String,
    shares: Vec<String>,
    /// By framework, by group.
    runs: BTreeMap<String, BTreeMap<String, Vec<Short>>>,
}

/// The runs that ship.
///
/// # Errors
/// Only if the embedded file is damaged, which a test rules out.
pub fn validated() -> Result<Vec<Validated>, StackError> {
    let bad = |message: &str| damaged("validated", message);
    let file: File = serde_json::from_str(TEXT).map_err(|e| bad(&e.to_string()))?;
    if file.shares != SHARES {
        return Err(bad("its shares are not those of this version; run `autoshard accuracy --write`"));
    }
    let mut out = Vec::new();
    for (stack, groups) in &file.runs {
        for (group, runs) in groups {
            out.extend(runs.iter().map(|run| long(stack, group, run)));
        }
    }
    Ok(out)
}

fn long(stack: &str, group: &str, short: &Short) -> Validated {
    let (experts, narrow, devices, shares, unseen, seen, weight) = *short;
    let like = Likeness {
        stack: stack.into(),
        group: group.into(),
        experts: experts == 1,
        narrow: narrow == 1,
        devices: devices as f64,
        shares: shares.map(|s| f64::from(s) / 1e3),
    };
    let error = |e: u32| f64::from(e) / 1e4;
    Validated { like, unseen: error(unseen), seen: error(seen), weight: f64::from(weight) / 1e3 }
}

/// The text of the file that holds these runs.
///
/// # Errors
/// Numbers that are none.
pub fn text(runs: &[Validated]) -> Result<String, serde_json::Error> {
    let mut file = File {
        about: "Measured runs by framework: experts, narrow formats, devices, shares of the step in 1/1000, \
                |ln(measured / predicted)| in 1/10000 by constants found without the group and with it, share of \
                a vote in 1/1000"
            .into(),
        shares: SHARES.map(String::from).to_vec(),
        ..File::default()
    };
    for v in runs {
        let l = &v.like;
        let shares = l.shares.map(|s| (s * 1e3).round() as u32);
        let error = |e: f64| (e * 1e4).round() as u32;
        let weight = ((v.weight * 1e3).round() as u32).max(1);
        let (experts, narrow) = (u8::from(l.experts), u8::from(l.narrow));
        let short = (experts, narrow, l.devices as u64, shares, error(v.unseen), error(v.seen), weight);
        file.runs.entry(l.stack.clone()).or_default().entry(l.group.clone()).or_default().push(short);
    }
    // A run a line: whoever reads a change sees which runs moved.
    let mut out = format!("{{\n\"about\": {},\n", serde_json::to_string(&file.about)?);
    out += &format!("\"shares\": {},\n\"runs\": {{\n", serde_json::to_string(&file.shares)?);
    let mut stacks = Vec::new();
    for (stack, groups) in &file.runs {
        let mut told = Vec::new();
        for (group, runs) in groups {
            let lines: Vec<String> = runs.iter().map(serde_json::to_string).collect::<Result<_, _>>()?;
            told.push(format!("{}: [\n{}\n]", serde_json::to_string(group)?, lines.join(",\n")));
        }
        stacks.push(format!("{}: {{\n{}\n}}", serde_json::to_string(stack)?, told.join(",\n")));
    }
    Ok(out + &stacks.join(",\n") + "\n}\n}\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::predict::range::range;

    #[test]
    fn the_file_that_ships_is_read_and_written_back() {
        let runs = validated().unwrap();
        assert_eq!(text(&runs).unwrap(), TEXT);
        for v in &runs {
            let sum: f64 = v.like.shares.iter().sum();
            assert!((sum - 1.0).abs() < 0.02 && v.weight > 0.0 && v.unseen < 5.0 && v.seen < 5.0, "{v:?}");
        }
    }

    #[test]
    fn ranges_hold_about_four_of_five_runs() {
        // Each run by the others: of its group where that was measured more than once, of left-out errors else.
        let runs = validated().unwrap();
        let (mut held, mut votes) = (0.0, 0.0);
        for (i, v) in runs.iter().enumerate() {
            let others = runs.iter().enumerate().filter(|(j, _)| *j != i).map(|(_, o)| o);
            let r = range(&v.like, others).unwrap();
            let error = if r.known { v.seen } else { v.unseen };
            votes += v.weight;
            held += if error <= r.high.ln() { v.weight } else { 0.0 };
        }
        assert!((0.75..=0.85).contains(&(held / votes)), "{held} of {votes}");
    }
}

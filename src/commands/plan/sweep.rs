//! `plan --sweep`: the same question for several devices, sequences or batches.

use super::answer::{answer, Answer, Chosen};
use super::question::Question;
use super::Args;
use crate::commands::progress::Spinner;
use crate::commands::{print, suggestion, Failure};
use autoshard::predict::wired::Wired;
use autoshard::report::search::Searched;
use autoshard::report::sweep::{json, text, Nothing, Row};
use autoshard::search::Infeasible;

/// Largest value and most points of a sweep.
const MOST: u64 = 1 << 30;
const MOST_POINTS: usize = 4096;

/// What a sweep changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Key {
    /// Devices that may be used.
    Devices,
    /// Positions of a sequence.
    SeqLen,
    /// Sequences of a step.
    Batch,
}

const KEYS: [(&str, Key); 3] = [("devices", Key::Devices), ("seq", Key::SeqLen), ("batch", Key::Batch)];

/// The lists of a sweep: each key once, the first changes slowest.
///
/// # Errors
/// What is wrong with it and what is right.
pub fn parse(text: &str) -> Result<Vec<(Key, Vec<u64>)>, String> {
    let mut out: Vec<(Key, Vec<u64>)> = Vec::new();
    for part in text.split(';').map(str::trim).filter(|p| !p.is_empty()) {
        let example = "as in devices=8..1024 or seq=2048,8192";
        let (key, values) = part.split_once('=').ok_or_else(|| format!("{part:?} is not KEY=VALUES, {example}"))?;
        let known = KEYS.iter().find(|(name, _)| *name == key.trim()).map(|(_, k)| *k);
        let near = suggestion(key, KEYS.map(|(name, _)| name));
        let key = known.ok_or_else(|| format!("unknown key {key:?}; the keys are devices, seq, batch{near}"))?;
        if out.iter().any(|(k, _)| *k == key) {
            return Err(format!("{part:?}: its key is given twice"));
        }
        out.push((key, list(values.trim())?));
    }
    let points = out.iter().map(|(_, v)| v.len()).try_fold(1usize, |n, len| n.checked_mul(len)).unwrap_or(usize::MAX);
    match () {
        () if out.is_empty() => Err("it is empty; say what changes, as in devices=8..1024".into()),
        () if points > MOST_POINTS => Err(format!("{points} points are more than {MOST_POINTS}; give fewer values")),
        () => Ok(out),
    }
}

/// `8..1024`, doubling and ending with the last; or `8,16,24`.
fn list(text: &str) -> Result<Vec<u64>, String> {
    let number = |t: &str| {
        let n = t.trim().parse::<u64>().ok().filter(|n| (1..=MOST).contains(n));
        n.ok_or_else(|| format!("{t:?} is not a whole number from 1 to {MOST}"))
    };
    let Some((first, last)) = text.split_once("..") else { return text.split(',').map(number).collect() };
    let (first, last) = (number(first)?, number(last)?);
    if first > last {
        return Err(format!("{text}: a range goes up, as in {last}..{first}"));
    }
    let mut out: Vec<u64> = std::iter::successors(Some(first), |n| Some(2 * n)).take_while(|n| *n <= last).collect();
    if out.last() != Some(&last) {
        out.push(last);
    }
    Ok(out)
}

/// Every point of the grid.
fn grid(lists: &[(Key, Vec<u64>)]) -> Vec<Vec<(Key, u64)>> {
    lists.iter().fold(vec![Vec::new()], |points, (key, values)| {
        let longer = |p: Vec<(Key, u64)>| values.iter().map(move |v| [p.clone(), vec![(*key, *v)]].concat());
        points.into_iter().flat_map(longer).collect()
    })
}

/// A point's best plan, or what is in its way.
type Point = Result<(Chosen, Searched), Infeasible>;

/// Answers every point and prints one table.
pub fn sweep(args: &Args, lists: &[(Key, Vec<u64>)], base: &Question, backend: &Wired) -> Result<(), Failure> {
    let mut answered: Vec<(Question, Point)> = Vec::new();
    for point in grid(lists) {
        let q = at(base, &point)?;
        let spinner = Spinner::new(&format!("{} devices, {} × {}", q.devices, q.batch(), q.positions()));
        let a = match answer(&q, backend)? {
            Answer::Found(plans, searched) => {
                let best = plans.into_iter().next();
                Ok((best.ok_or_else(|| Failure::Failed("an answer without a plan".into()))?, searched))
            }
            Answer::Nothing(n) => Err(*n),
        };
        drop(spinner);
        answered.push((q, a));
    }
    let rows: Vec<Row> = answered.iter().map(|(q, a)| row(q, a, args.tokens)).collect();
    match args.json {
        true => print(&format!("{}\n", json(&rows))),
        false => print(&text(&rows)),
    }
}

/// The question of a point.
fn at(base: &Question, point: &[(Key, u64)]) -> Result<Question, Failure> {
    let of = |key| point.iter().find(|(k, _)| *k == key).map(|(_, v)| *v);
    let mut q = base.on(of(Key::Devices).unwrap_or(base.devices))?;
    q.seq_len = of(Key::SeqLen).or(q.seq_len);
    q.global_batch = of(Key::Batch).or(q.global_batch);
    Ok(q)
}

fn row<'a>(q: &'a Question, a: &'a Point, tokens: Option<f64>) -> Row<'a> {
    let answer = match a {
        Ok((chosen, searched)) => Ok((chosen.planned(q, tokens), *searched)),
        Err(n) => Err(Nothing { reason: &n.reason, smallest: n.smallest_memory, fewest_devices: n.fewest_devices }),
    };
    let global_batch = answer.as_ref().map_or(q.batch(), |(p, _)| p.plan.global_batch);
    Row { devices: q.devices, seq_len: q.positions(), global_batch, answer }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_double_and_lists_are_as_written() {
        let of = |t: &str| parse(t).unwrap();
        assert_eq!(of("devices=8..64"), [(Key::Devices, vec![8, 16, 32, 64])]);
        assert_eq!(of("devices=8..40"), [(Key::Devices, vec![8, 16, 32, 40])]);
        assert_eq!(of("seq=2048,8192; batch=4"), [(Key::SeqLen, vec![2048, 8192]), (Key::Batch, vec![4])]);
        assert_eq!(grid(&of("seq=1,2;batch=3,4")).len(), 4);
        assert_eq!(grid(&of("seq=1,2;batch=3,4"))[1], [(Key::SeqLen, 1), (Key::Batch, 4)]);
    }

    #[test]
    fn mistakes_in_a_sweep_are_named() {
        for (text, part) in [
            ("", "it is empty"),
            ("devices", "not KEY=VALUES"),
            ("device=8", "did you mean `devices`?"),
            ("devices=8;devices=16", "given twice"),
            ("devices=0..8", "from 1 to"),
            ("devices=64..8", "as in 8..64"),
            ("devices=8..x", "\"x\" is not a whole number"),
            ("seq=1,,2", "\"\" is not a whole number"),
        ] {
            let e = parse(text).unwrap_err();
            assert!(e.contains(part), "{text}: {e}");
        }
        let many: Vec<String> = (1..=100).map(|n| n.to_string()).collect();
        let many = many.join(",");
        assert!(parse(&format!("devices={many};seq={many}")).unwrap_err().contains("more than"));
    }
}

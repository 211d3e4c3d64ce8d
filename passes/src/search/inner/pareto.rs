//! The same elimination over two objectives: each entry of a table is the set of (seconds, bytes) that no other
//! assignment of the eliminated variables beats in both. Exact: dominated points never become part of an undominated sum.

use super::eliminate::{index, order, size, strides, Var, Walk};
use super::problem::{Cost, Term};

/// Undominated costs by the choices that lead to them, fastest first.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Front {
    /// Cost and values of all variables.
    pub points: Vec<(Cost, Vec<usize>)>,
    /// Largest set that an entry had.
    pub most: usize,
}

#[derive(Clone, Copy)]
struct Point {
    cost: Cost,
    trace: u32,
}

/// How a point came about.
#[derive(Clone, Copy)]
enum Trace {
    Start,
    Both(u32, u32),
    Choose(Var, u32, u32),
}

struct Sets {
    vars: Vec<Var>,
    sets: Vec<Vec<Point>>,
}

/// The undominated sums of `terms` with at most `most` bytes.
pub fn front(terms: &[Term], domains: &[usize], most: f64) -> Front {
    let scopes: Vec<&[Var]> = terms.iter().map(|t| &t.vars[..]).collect();
    let order = order(&scopes, domains, &[]);
    let mut traces = vec![Trace::Start];
    let mut tables: Vec<Sets> = terms.iter().map(|t| sets(t, most)).collect();
    let mut largest = 0;
    for (v, scope) in order {
        let (with, without): (Vec<Sets>, Vec<Sets>) = tables.into_iter().partition(|t| t.vars.contains(&v));
        tables = without;
        let mut all = scope.clone();
        all.push(v);
        let mut walks: Vec<Walk> =
            with.iter().map(|t| Walk::new(&all, &strides(&t.vars, &all, domains), domains)).collect();
        let mut out = Vec::with_capacity(size(&scope, domains));
        for _ in 0..size(&scope, domains) {
            let mut bag = Vec::new();
            for value in 0..domains[v.at()] {
                let parts: Vec<&[Point]> = with.iter().zip(&walks).map(|(t, w)| &t.sets[w.at][..]).collect();
                let sum = sum(&parts, most, &mut traces);
                bag.extend(sum.into_iter().map(|p| (p.cost, (value as u32, p.trace))));
                walks.iter_mut().for_each(Walk::next);
            }
            let kept = undominated(bag);
            largest = largest.max(kept.len());
            let mut chosen = |(value, trace)| push(&mut traces, Trace::Choose(v, value, trace));
            out.push(kept.into_iter().map(|(cost, from)| Point { cost, trace: chosen(from) }).collect());
        }
        tables.push(Sets { vars: scope, sets: out });
    }
    let last: Vec<&[Point]> = tables.iter().map(|t| &t.sets[index(&t.vars, &[], domains)][..]).collect();
    let points = sum(&last, most, &mut traces);
    let values = |p: &Point| {
        let mut values = vec![0; domains.len()];
        read(&traces, p.trace, &mut values);
        (p.cost, values)
    };
    Front { points: points.iter().map(values).collect(), most: largest }
}

/// Undominated alternatives of each entry.
fn sets(t: &Term, most: f64) -> Sets {
    let entry = |i: usize| {
        let all = t.columns.iter().map(|c| (c[i], ())).filter(|(c, ())| c.seconds.is_finite() && c.bytes <= most);
        undominated(all.collect()).into_iter().map(|(cost, ())| Point { cost, trace: 0 }).collect()
    };
    Sets { vars: t.vars.clone(), sets: (0..t.columns[0].len()).map(entry).collect() }
}

/// Sums of one point of each set.
fn sum(parts: &[&[Point]], most: f64, traces: &mut Vec<Trace>) -> Vec<Point> {
    let mut total = vec![Point { cost: Cost::default(), trace: 0 }];
    for part in parts {
        let mut bag = Vec::with_capacity(total.len() * part.len());
        for a in &total {
            for b in *part {
                let cost = Cost { seconds: a.cost.seconds + b.cost.seconds, bytes: a.cost.bytes + b.cost.bytes };
                if cost.bytes <= most {
                    bag.push((cost, (a.trace, b.trace)));
                }
            }
        }
        let kept = if total.len() > 1 && part.len() > 1 { undominated(bag) } else { bag };
        total = kept
            .into_iter()
            .map(|(cost, (a, b))| {
                let trace = match (a, b) {
                    (0, t) | (t, 0) => t,
                    (a, b) => push(traces, Trace::Both(a, b)),
                };
                Point { cost, trace }
            })
            .collect();
    }
    total
}

fn push(traces: &mut Vec<Trace>, t: Trace) -> u32 {
    traces.push(t);
    traces.len() as u32 - 1
}

/// Those that no other beats in both, fastest first; of equals the first.
fn undominated<T>(mut bag: Vec<(Cost, T)>) -> Vec<(Cost, T)> {
    bag.sort_by(|(a, _), (b, _)| a.seconds.total_cmp(&b.seconds).then(a.bytes.total_cmp(&b.bytes)));
    let mut least = f64::INFINITY;
    bag.retain(|(c, _)| {
        let better = c.bytes < least;
        if better {
            least = c.bytes;
        }
        better
    });
    bag
}

fn read(traces: &[Trace], from: u32, values: &mut [usize]) {
    let mut stack = vec![from];
    while let Some(t) = stack.pop() {
        match traces[t as usize] {
            Trace::Start => {}
            Trace::Both(a, b) => stack.extend([a, b]),
            Trace::Choose(v, value, rest) => {
                values[v.at()] = value as usize;
                stack.push(rest);
            }
        }
    }
}

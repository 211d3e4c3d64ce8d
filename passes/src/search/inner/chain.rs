//! Calls in a row: whether neighbours should differ, by min-plus products over the states between them.

use super::eliminate::{minimize, Table};
use super::problem::Problem;
use super::{InnerError, Limits, MeshAxis, Rates};
use autoshard_ir::core::Function;

/// The best states between calls.
#[derive(Clone, Debug, PartialEq)]
pub struct Chain {
    /// Index of the state before each call and behind the last: equal neighbours are equal strategies.
    pub states: Vec<usize>,
    /// Seconds of all calls.
    pub seconds: f64,
    /// Seconds with one state everywhere.
    pub alike: f64,
}

/// The fastest strategies of `calls` calls of `f`, each free to differ from its neighbours. `None` if a result of one
/// call cannot be the input of the next.
///
/// # Errors
/// As [`super::options`].
pub fn chain(f: &Function, mesh: &[MeshAxis], rates: &Rates, calls: usize) -> Result<Option<Chain>, InnerError> {
    super::check(mesh, rates)?;
    let limits = Limits::NONE;
    let p = Problem::new(f, mesh, rates, &limits, false)?;
    let Some((x, y)) = p.boundary else { return Ok(None) };
    let (Some(x), Some(y)) = (p.use_vars[x.0 as usize], p.use_vars[y.0 as usize]) else { return Ok(None) };
    let tables = p.terms.iter().map(|t| t.table(0.0, 2)).collect();
    let table = minimize(tables, &p.domains, &[x, y]).table;
    Ok(Some(walk(&table, p.domains[x.at()], calls)))
}

/// The cheapest walk of `calls` steps, where entry (i, j) of the table is a step from i to j.
pub fn walk(table: &Table, states: usize, calls: usize) -> Chain {
    let step = |i: usize, j: usize| table.costs[i * states + j];
    let mut cost = vec![0.0; states];
    let mut from: Vec<Vec<usize>> = Vec::new();
    for _ in 0..calls {
        let best = |j: usize| {
            let at = |i: usize| cost[i] + step(i, j);
            (0..states).map(|i| (i, at(i))).fold((0, f64::INFINITY), |b, c| if c.1 < b.1 { c } else { b })
        };
        let (origins, costs): (Vec<usize>, Vec<f64>) = (0..states).map(best).unzip();
        from.push(origins);
        cost = costs;
    }
    let least = |costs: &mut dyn Iterator<Item = f64>| {
        costs.enumerate().fold((0, f64::INFINITY), |b, c| if c.1 < b.1 { c } else { b })
    };
    let (mut at, seconds) = least(&mut cost.iter().copied());
    let mut path = vec![at];
    for origins in from.iter().rev() {
        at = origins[at];
        path.push(at);
    }
    path.reverse();
    let alike = least(&mut (0..states).map(|i| step(i, i))).1 * calls as f64;
    Chain { states: path, seconds, alike }
}

//! What a call keeps for its backward under given strategies, exactly: per node, whether its results are kept as they are
//! used, kept as they are made and brought to their state of use again, or computed again.
//!
//! A node that is computed again needs its operands: each is kept, computed again itself, or an input of the call.

use super::block::{at, Kind};
use super::eliminate::Var;
use super::pareto;
use super::problem::{Cost, Problem, Term};
use autoshard_ir::core::Def;

/// What happens to the results of a node between forward and backward.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// Kept in their states of use.
    Used,
    /// Kept as made, in fewer bytes; the change to the state of use runs again.
    Made,
    /// Computed again.
    Again,
    /// Gone: nobody reads them again.
    Gone,
}

const FATES: [Fate; 4] = [Fate::Used, Fate::Made, Fate::Again, Fate::Gone];

/// One undominated set of fates, and what it adds.
#[derive(Clone, Debug)]
pub(super) struct Kept {
    /// Seconds on top of those with everything kept as used, and bytes held for all micro-batches in flight.
    pub cost: Cost,
    /// Per node; `None` for nodes that the search does not see.
    pub fates: Vec<Option<Fate>>,
}

/// The undominated fates under an assignment, with at most `most` bytes.
pub(super) fn kept(p: &mut Problem, assignment: &[usize], most: f64) -> Vec<Kept> {
    let mut vars: Vec<Option<Var>> = vec![None; p.node_vars.len()];
    let mut terms = Vec::new();
    let mut count = 0;
    for i in 0..p.node_vars.len() {
        if p.node_vars[i].is_none() {
            continue;
        }
        let var = Var(count);
        (vars[i], count) = (Some(var), count + 1);
        terms.push(Term { vars: vec![var], columns: vec![FATES.map(|f| cost(p, assignment, i, f)).to_vec()] });
        for maker in makers(p, i, &vars) {
            let allowed = |maker: Fate, reader: Fate| maker != Fate::Gone || reader != Fate::Again;
            let pairs = FATES.iter().flat_map(|m| FATES.iter().map(move |r| allowed(*m, *r)));
            let column = pairs.map(|ok| if ok { Cost::default() } else { Cost::NEVER }).collect();
            terms.push(Term { vars: vec![maker, var], columns: vec![column] });
        }
    }
    let front = pareto::front(&terms, &vec![FATES.len(); count as usize], most);
    let fates = |values: &[usize]| vars.iter().map(|v| v.map(|v| FATES[values[v.at()]])).collect();
    front.points.iter().map(|(cost, values)| Kept { cost: *cost, fates: fates(values) }).collect()
}

/// Variables of the nodes that make a node's operands.
fn makers(p: &Problem, i: usize, vars: &[Option<Var>]) -> Vec<Var> {
    let f = p.block.f;
    let maker = |v: &autoshard_ir::core::ValueId| match f.value(*v).def {
        Def::Result(n, _) => vars[n.0 as usize],
        Def::Param(_) => None,
    };
    let mut out: Vec<Var> = f.nodes[i].inputs.iter().filter_map(maker).collect();
    out.sort();
    out.dedup();
    out
}

/// Seconds that a fate adds, and bytes that it holds for all micro-batches in flight.
fn cost(p: &mut Problem, assignment: &[usize], i: usize, fate: Fate) -> Cost {
    let f = p.block.f;
    let Some(choice) = p.node_vars[i].map(|v| assignment[v.at()]) else { return Cost::default() };
    let saved = |v: usize| p.block.saved[v];
    let needed = f.nodes[i].results.iter().any(|r| saved(at(*r)));
    let read = |v: usize| f.nodes.iter().any(|n| n.inputs.iter().any(|x| at(*x) == v));
    let kept: Vec<usize> = (0..f.nodes[i].results.len())
        .filter(|k| {
            let v = at(f.nodes[i].results[*k]);
            if needed {
                saved(v)
            } else {
                read(v)
            }
        })
        .collect();
    let mut total = Cost::default();
    for k in kept {
        let Some(use_) = p.use_vars[at(f.nodes[i].results[k])].map(|v| assignment[v.at()]) else { continue };
        let [used, made] = p.held(i, k, choice, use_);
        let change = p.make_change(i, k, choice, use_).0;
        match fate {
            Fate::Used => total.bytes += used * p.limits.in_flight,
            Fate::Made => {
                total.bytes += made * p.limits.in_flight;
                total.seconds += change;
            }
            Fate::Again => total.seconds += change,
            Fate::Gone => {}
        }
    }
    match fate {
        Fate::Gone if needed => Cost::NEVER,
        Fate::Again => {
            total.seconds += p.seconds[i][choice].forward + operands_again(p, assignment, i, choice);
            total
        }
        Fate::Used | Fate::Made | Fate::Gone => total,
    }
}

/// Changes of operands that only the repetition needs; those that the backward reads are brought again anyway.
fn operands_again(p: &mut Problem, assignment: &[usize], i: usize, choice: usize) -> f64 {
    let f = p.block.f;
    let mut total = 0.0;
    for (k, v) in f.nodes[i].inputs.iter().enumerate() {
        let repeats = p.block.operators[i].as_ref().is_some_and(|o| o.repeats(k));
        if let (Kind::Stream, false, Some(var)) = (p.block.kinds[at(*v)], repeats, p.use_vars[at(*v)]) {
            total += p.read_change(i, k, choice, assignment[var.at()]).0;
        }
    }
    total
}

/// Kept as used or as made, whichever is cheaper at a price in seconds a byte; nothing is computed again.
pub(super) fn as_priced(p: &mut Problem, assignment: &[usize], price: f64) -> Kept {
    let mut total = Cost::default();
    let mut fates = vec![None; p.node_vars.len()];
    for i in (0..p.node_vars.len()).filter(|i| p.node_vars[*i].is_some()).collect::<Vec<_>>() {
        if !p.block.f.nodes[i].results.iter().any(|r| p.block.saved[at(*r)]) {
            fates[i] = Some(Fate::Gone);
            continue;
        }
        let [used, made] = [Fate::Used, Fate::Made].map(|f| (f, cost(p, assignment, i, f)));
        let sum = |c: &Cost| c.seconds + price * c.bytes;
        let (fate, best) = if sum(&made.1) < sum(&used.1) { made } else { used };
        total = Cost { seconds: total.seconds + best.seconds, bytes: total.bytes + best.bytes };
        fates[i] = Some(fate);
    }
    Kept { cost: total, fates }
}

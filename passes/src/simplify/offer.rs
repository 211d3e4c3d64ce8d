//! Cheaper bodies of a function, found by rewriting an e-graph.

use super::body::{fixed, read, write, Body};
use super::cost::{dag_cost, Cost};
use super::extract::best;
use super::fold::fold;
use super::rules::{rewrite, up_to, Exactness, Rule};
use super::term::{Graph, Heads, Term};
use autoshard_ir::core::{Function, Module};
use autoshard_ir::verify::verify;
use egg::{Id, Rewrite, Runner, SimpleScheduler, StopReason};
use std::time::Duration;

/// How far to search, by which rules, and what a byte costs.
#[derive(Clone, Debug, PartialEq)]
pub struct Limits {
    /// Terms of the e-graph. Growth stops there, and the best body among what is found counts.
    pub nodes: usize,
    /// Rounds of all rules.
    pub iterations: usize,
    /// Seconds, or no limit. Where time ends the search depends on the machine, so nothing is offered then.
    pub seconds: Option<f64>,
    /// Rules that may be used.
    pub exactness: Exactness,
    /// FLOPs that cost as much as a byte moved.
    pub flops_per_byte: f64,
}

impl Default for Limits {
    /// 4,000 terms, 12 rounds and 10 seconds, all rules. 100 FLOPs a byte lie between what devices do in f32
    /// without matrix units (about 20) and in bf16 with them (about 300).
    fn default() -> Limits {
        Limits {
            nodes: 4_000,
            iterations: 12,
            seconds: Some(10.0),
            exactness: Exactness::Reassociates,
            flops_per_byte: 100.0,
        }
    }
}

/// A cheaper body.
#[derive(Clone, Debug, PartialEq)]
pub struct Offer {
    /// The function with the new body: the same name, parameters and results.
    pub body: Function,
    /// Cost of the old body.
    pub before: Cost,
    /// Cost of the new one; its total is lower.
    pub after: Cost,
    /// Names of the rules that it takes, in the order of the table: without any of them it is not found.
    pub rules: Vec<&'static str>,
    /// Whether every bit stays, which is so if all of these rules are exact.
    pub exactness: Exactness,
    /// Why the search ended.
    pub stop: Stop,
}

/// Why a search ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// No rule finds anything new.
    Saturated,
    /// [`Limits::nodes`] or [`Limits::iterations`].
    Limit,
}

/// Why the body stays as it is.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Kept {
    /// Shard states never enter an e-graph, and neither do calls.
    #[error("@{function}: %{value} {reason}")]
    Fixed {
        /// The function.
        function: String,
        /// A value that is the reason.
        value: String,
        /// The reason.
        reason: &'static str,
    },
    /// It differentiates another function, whose values its nodes name.
    #[error("@{function} is the backward of @{of}; bodies are rewritten before gradients are taken")]
    Backward {
        /// The function.
        function: String,
        /// Its forward function.
        of: String,
    },
    /// Its backward names values of its body.
    #[error("@{function} is differentiated by @{by}; bodies are rewritten before gradients are taken")]
    Differentiated {
        /// The function.
        function: String,
        /// Its backward function.
        by: String,
    },
    /// Nothing cheaper was found.
    #[error("@{function}: no cheaper body among {nodes} terms; it costs {} FLOPs and {} bytes", .cost.flops, .cost.bytes)]
    Cheapest {
        /// The function.
        function: String,
        /// Its cost.
        cost: Cost,
        /// Terms looked at.
        nodes: usize,
    },
    /// The search took too long.
    #[error("@{function}: the search took longer than {seconds} s and its result would depend on the machine; allow more seconds or fewer terms")]
    TimedOut {
        /// The function.
        function: String,
        /// The limit.
        seconds: f64,
    },
    /// The body does not hold together, before or after.
    #[error("@{function}: {message}")]
    Malformed {
        /// The function.
        function: String,
        /// What does not.
        message: String,
    },
}

/// A body that computes the same at a lower cost, or why there is none.
///
/// The function must be of a verified module and come before gradients and plans, since values that backward
/// nodes name may vanish; [`offers`] sees to the latter.
pub fn offer(f: &Function, limits: &Limits) -> Result<Offer, Kept> {
    let rules: Vec<&'static Rule> = up_to(limits.exactness).collect();
    offer_by(f, &rules, limits)
}

/// Offers for all functions of a module, in order, and the module that takes them.
pub fn offers(module: &Module, limits: &Limits) -> (Module, Vec<Result<Offer, Kept>>) {
    let backward = |f: &Function| {
        let by = module.functions.iter().find(|b| b.backward.as_ref().is_some_and(|b| b.of == f.name))?;
        Some(Kept::Differentiated { function: f.name.clone(), by: by.name.clone() })
    };
    let offers: Vec<Result<Offer, Kept>> =
        module.functions.iter().map(|f| backward(f).map_or_else(|| offer(f, limits), Err)).collect();
    let taken = module.functions.iter().zip(&offers);
    let functions = taken.map(|(f, o)| o.as_ref().map_or_else(|_| f.clone(), |o| o.body.clone())).collect();
    (Module { functions, ..module.clone() }, offers)
}

/// [`offer`] by some rules alone.
pub fn offer_by(f: &Function, rules: &[&'static Rule], limits: &Limits) -> Result<Offer, Kept> {
    let mut found = search(f, rules, limits)?;
    let mut used = found.applied.clone();
    // A rule is said to be used if without it the body is not found. What is left explains the body. The table
    // has the simpler rules first, so the last are tried first.
    for rule in found.applied.clone().into_iter().rev() {
        let fewer: Vec<&'static Rule> = used.iter().copied().filter(|r| r.name != rule.name).collect();
        match search(f, &fewer, limits) {
            Ok(other) if !found.after.is_below(&other.after, limits.flops_per_byte) => {
                (used, found) = (fewer, other);
            }
            Err(Kept::TimedOut { function, seconds }) => return Err(Kept::TimedOut { function, seconds }),
            _ => {}
        }
    }
    let exactness = used.iter().map(|r| r.exactness).max().unwrap_or(Exactness::Exact);
    let rules = used.iter().map(|r| r.name).collect();
    Ok(Offer { body: found.body, before: dag_cost(f), after: found.after, rules, exactness, stop: found.stop })
}

/// What one search finds.
pub(super) struct Found {
    /// The cheaper body.
    pub body: Function,
    /// Its cost.
    after: Cost,
    /// The rules that changed the graph.
    applied: Vec<&'static Rule>,
    stop: Stop,
}

/// One search by these rules.
pub(super) fn search(f: &Function, rules: &[&'static Rule], limits: &Limits) -> Result<Found, Kept> {
    let function = f.name.clone();
    let malformed = |message: String| Kept::Malformed { function: function.clone(), message };
    if let Some(b) = &f.backward {
        return Err(Kept::Backward { function, of: b.of.clone() });
    }
    if let Some((v, reason)) = fixed(f) {
        return Err(Kept::Fixed { function, value: f.value(v).name.clone(), reason });
    }
    let mut body = read(f).map_err(&malformed)?;
    let old: Vec<(Id, Term)> = old_terms(&body);
    let (stop, applied) = saturate(&f.name, &mut body.graph, rules, limits)?;
    let roots: Vec<Id> = f.results.iter().map(|r| body.classes[r.0 as usize]).collect();
    let choice = best(&body.graph, &old, &roots, limits.flops_per_byte);
    let new = fold(&write(f, &body, &choice));
    let (before, after) = (dag_cost(f), dag_cost(&new));
    if !after.is_below(&before, limits.flops_per_byte) {
        return Err(Kept::Cheapest { function, cost: before, nodes: body.graph.total_number_of_nodes() });
    }
    let module = Module { functions: vec![new], entry: f.name.clone(), ..Module::default() };
    verify(&module).map_err(|errors| malformed(errors.iter().map(|e| format!("{e}\n")).collect()))?;
    let body = module.functions.into_iter().next().unwrap_or_default();
    Ok(Found { body, after, applied, stop })
}

/// The terms of the body as it was, in execution order.
fn old_terms(body: &Body) -> Vec<(Id, Term)> {
    // Nothing has been united yet, so every class has one term, and classes were made in execution order.
    let mut old: Vec<(Id, Term)> =
        body.graph.classes().flat_map(|c| c.nodes.iter().map(|t| (c.id, t.clone()))).collect();
    old.sort_by_key(|(c, _)| *c);
    old
}

/// Applies rules to the graph of this function until nothing changes or a limit is met, and says which changed
/// something.
pub(super) fn saturate(
    function: &str,
    graph: &mut Graph,
    rules: &[&'static Rule],
    limits: &Limits,
) -> Result<(Stop, Vec<&'static Rule>), Kept> {
    let malformed = |message: String| Kept::Malformed { function: function.to_string(), message };
    let rewrites: Vec<Rewrite<Term, Heads>> =
        rules.iter().map(|r| rewrite(r, limits.nodes)).collect::<Result<_, String>>().map_err(&malformed)?;
    let seconds = limits.seconds.map_or(Duration::MAX, |s| Duration::try_from_secs_f64(s).unwrap_or(Duration::ZERO));
    let runner = Runner::<Term, Heads>::new(Heads::default())
        .with_egraph(std::mem::replace(graph, Graph::new(Heads::default())))
        .with_scheduler(SimpleScheduler)
        .with_node_limit(limits.nodes)
        .with_iter_limit(limits.iterations)
        .with_time_limit(seconds)
        .run(&rewrites);
    *graph = runner.egraph;
    let applied = |r: &&&'static Rule| runner.iterations.iter().any(|i| i.applied.keys().any(|k| k.as_str() == r.name));
    let applied = rules.iter().filter(applied).copied().collect();
    match runner.stop_reason {
        Some(StopReason::Saturated) => Ok((Stop::Saturated, applied)),
        Some(StopReason::TimeLimit(_)) | None => {
            let seconds = limits.seconds.unwrap_or(f64::INFINITY);
            Err(Kept::TimedOut { function: function.to_string(), seconds })
        }
        Some(StopReason::Other(message)) => Err(malformed(message)),
        Some(StopReason::IterationLimit(_) | StopReason::NodeLimit(_)) => Ok((Stop::Limit, applied)),
    }
}

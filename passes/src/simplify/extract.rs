//! Which term of each class a body is made of.
//!
//! egg's extractor finds, for every class, the cheapest *tree*: a value that two terms read counts twice. So
//! its choice is a start. From it, and from the body as it was, one class after another tries its other terms,
//! and keeps one if the *DAG* cost of the whole body falls.

use super::cost::{bytes, flops};
use super::term::{heads, ty, Graph, Source, Term};
use autoshard_ir::core::Type;
use egg::{CostFunction, Extractor, Id, Language};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::rc::Rc;

/// A term for each class. Following it from any class never comes back to that class.
#[derive(Clone, Debug, Default)]
pub(super) struct Choice(BTreeMap<Id, Term>);

impl Choice {
    /// The term of a class.
    pub fn term(&self, graph: &Graph, class: Id) -> Term {
        let class = graph.find(class);
        self.0[&class].clone()
    }

    /// All classes that these need, themselves included.
    pub fn reached(&self, graph: &Graph, roots: impl Iterator<Item = Id>) -> BTreeSet<Id> {
        let mut reached = BTreeSet::new();
        let mut stack: Vec<Id> = roots.map(|r| graph.find(r)).collect();
        while let Some(class) = stack.pop() {
            if reached.insert(class) {
                stack.extend(self.0[&class].inputs.iter().copied());
            }
        }
        reached
    }

    /// Whether a term needs this class.
    fn needs(&self, graph: &Graph, term: &Term, class: Id) -> bool {
        self.reached(graph, term.inputs.iter().copied()).contains(&class)
    }
}

/// Cost of terms in bytes; see [`super::cost::Cost::total`].
pub(super) struct Prices<'g> {
    graph: &'g Graph,
    flops_per_byte: f64,
    known: HashMap<Term, f64>,
}

impl<'g> Prices<'g> {
    pub fn new(graph: &'g Graph, flops_per_byte: f64) -> Prices<'g> {
        Prices { graph, flops_per_byte, known: HashMap::new() }
    }

    /// Price of a term alone. The first result of a node pays for its operands and work, each result for itself.
    fn of(&mut self, term: &Term) -> f64 {
        if let Some(price) = self.known.get(term) {
            return *price;
        }
        let head = self.graph.analysis.get(term.head);
        let price = match &head.source {
            Source::Param(_) => 0.0,
            Source::Node(_) if head.result > 0 => bytes(head.ty()),
            Source::Node(node) => {
                let types: Vec<Rc<Type>> = term.inputs.iter().map(|i| ty(self.graph, *i)).collect();
                let distinct: BTreeSet<Id> = term.inputs.iter().map(|i| self.graph.find(*i)).collect();
                let read: f64 = distinct.iter().map(|i| bytes(&ty(self.graph, *i))).sum();
                let work = flops(node, &types.iter().map(Rc::as_ref).collect::<Vec<_>>());
                read + bytes(head.ty()) + work / self.flops_per_byte
            }
        };
        self.known.insert(term.clone(), price);
        price
    }

    /// Price of all that these classes need, each class once.
    fn dag(&mut self, choice: &Choice, roots: &[Id]) -> f64 {
        let reached = choice.reached(self.graph, roots.iter().copied());
        reached.iter().map(|c| self.of(&choice.0[c])).sum()
    }
}

impl CostFunction<Term> for Prices<'_> {
    type Cost = f64;

    fn cost<C: FnMut(Id) -> f64>(&mut self, term: &Term, mut costs: C) -> f64 {
        self.of(term) + term.inputs.iter().map(|i| costs(*i)).sum::<f64>()
    }
}

/// The choice of cheapest trees. Every term costs more than its operands, so it has no cycles.
fn trees(graph: &Graph, flops_per_byte: f64) -> Choice {
    let extractor = Extractor::new(graph, Prices::new(graph, flops_per_byte));
    let term = |c: Id| extractor.find_best_node(c).clone().map_children(|i| graph.find(i));
    Choice(graph.classes().map(|c| (c.id, term(c.id))).collect())
}

/// The cheapest choice found for these roots. `old` are the terms of the body as it was, in execution order.
pub(super) fn best(graph: &Graph, old: &[(Id, Term)], roots: &[Id], flops_per_byte: f64) -> Choice {
    let trees = trees(graph, flops_per_byte);
    let mut prices = Prices::new(graph, flops_per_byte);
    let mut kept = trees.clone();
    // Of two old terms of a class the first: what it needs stands before it, so there is no cycle.
    for (class, term) in old.iter().rev() {
        kept.0.insert(graph.find(*class), term.clone().map_children(|i| graph.find(i)));
    }
    let kept = improved(&mut prices, kept, roots);
    let trees = improved(&mut prices, trees, roots);
    if prices.dag(&trees, roots) < prices.dag(&kept, roots) {
        trees
    } else {
        kept
    }
}

/// Rounds over all classes that [`improved`] makes at most.
const ROUNDS: usize = 8;

/// Exchanges one term at a time as long as the body becomes cheaper.
fn improved(prices: &mut Prices, mut choice: Choice, roots: &[Id]) -> Choice {
    let graph = prices.graph;
    let mut least = prices.dag(&choice, roots);
    for _ in 0..ROUNDS {
        let before = least;
        for class in choice.reached(graph, roots.iter().copied()) {
            for (term, _) in heads(graph, class) {
                if choice.0[&class] == term || choice.needs(graph, &term, class) {
                    continue;
                }
                let old = choice.0.insert(class, term);
                let price = prices.dag(&choice, roots);
                if price < least {
                    least = price;
                } else if let Some(old) = old {
                    choice.0.insert(class, old);
                }
            }
        }
        if least == before {
            break;
        }
    }
    choice
}

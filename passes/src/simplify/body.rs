//! Between a function's body and an e-graph.

use super::extract::Choice;
use super::term::{form, Form, Graph, Head, Heads, Source, Term};
use autoshard_ir::core::{Function, Node, Semantics, Strategy, Type, ValueId};
use autoshard_ir::ops;
use egg::Id;
use std::collections::HashMap;

/// A body as an e-graph.
pub(super) struct Body {
    /// The e-graph.
    pub graph: Graph,
    /// Class of each value of the function.
    pub classes: Vec<Id>,
}

/// The e-graph of a function: a term for every result of every node.
///
/// Errors are messages about a node that has no rule or whose results are not what it says.
pub(super) fn read(f: &Function) -> Result<Body, String> {
    let mut graph = Graph::new(Heads::default());
    let mut classes: Vec<Id> = vec![Id::from(0); f.values.len()];
    for (i, p) in f.params.iter().enumerate() {
        let types = vec![f.ty(p.value).clone()];
        let head = graph.analysis.intern(Source::Param(i), types, Form::Opaque);
        classes[p.value.0 as usize] = graph.add(Term { head, inputs: Vec::new() });
    }
    for node in &f.nodes {
        let operands: Vec<&Type> = node.inputs.iter().map(|v| f.ty(*v)).collect();
        let rule = ops::rule(node.op, &operands, &node.attrs)
            .map_err(|message| format!("{} of @{}: {message}", node.op.name, f.name))?;
        let types: Vec<Type> = node.results.iter().map(|r| f.ty(*r).clone()).collect();
        if types.len() != rule.result_types.len() || types.iter().zip(&rule.result_types).any(|(a, b)| !a.same_shape(b))
        {
            return Err(format!("{} of @{}: its results are not of the types that it gives", node.op.name, f.name));
        }
        let form = form(node, &rule, &operands);
        let inputs: Vec<Id> = node.inputs.iter().map(|v| classes[v.0 as usize]).collect();
        let source = Source::Node(Node { inputs: Vec::new(), results: Vec::new(), ..node.clone() });
        let head = graph.analysis.intern(source, types, form);
        for (i, r) in node.results.iter().enumerate() {
            let head = graph.analysis.sibling(head, i);
            classes[r.0 as usize] = graph.add(Term { head, inputs: inputs.clone() });
        }
    }
    graph.rebuild();
    Ok(Body { graph, classes })
}

/// What makes a function's body one that must not be rewritten: the value and the reason.
pub(super) fn fixed(f: &Function) -> Option<(ValueId, &'static str)> {
    if let Some(v) = f.values.iter().position(|v| v.ty.used_axes().next().is_some()) {
        return Some((ValueId(v as u32), "is placed on a mesh; bodies are rewritten before a plan is applied"));
    }
    let reason = |node: &Node| match (&node.op.semantics, &node.strategy) {
        (Semantics::Call, _) => Some("is the result of a call; only bodies without calls are rewritten"),
        (Semantics::Collective, _) => Some("comes from another rank; bodies are rewritten before partition"),
        (_, Strategy::Axes(_)) => Some("is split over a mesh; bodies are rewritten before a plan is applied"),
        (_, Strategy::None | Strategy::Follow) => None,
    };
    f.nodes.iter().find_map(|n| Some((*n.results.first()?, reason(n)?)))
}

/// The function whose body is the chosen terms. Values of the old body that are still computed keep their names
/// and their order.
pub(super) fn write(f: &Function, body: &Body, choice: &Choice) -> Function {
    let mut writer = Writer {
        graph: &body.graph,
        choice,
        names: HashMap::new(),
        values: HashMap::new(),
        out: Function { name: f.name.clone(), backward: f.backward.clone(), ..Function::default() },
    };
    for p in &f.params {
        let v = f.value(p.value);
        writer.out.add_param(&v.name, v.ty.clone(), p.trainable);
    }
    for (v, class) in f.values.iter().zip(&body.classes) {
        writer.names.entry(body.graph.find(*class)).or_insert(&v.name);
    }
    let reached = choice.reached(&body.graph, f.results.iter().map(|r| body.classes[r.0 as usize]));
    for class in &body.classes {
        let class = body.graph.find(*class);
        if reached.contains(&class) {
            writer.value(class);
        }
    }
    let results = f.results.iter().map(|r| writer.value(body.graph.find(body.classes[r.0 as usize]))).collect();
    Function { results, ..writer.out }
}

struct Writer<'a> {
    graph: &'a Graph,
    choice: &'a Choice,
    /// Names of the old values.
    names: HashMap<Id, &'a str>,
    /// Values of the new body.
    values: HashMap<Id, ValueId>,
    out: Function,
}

impl Writer<'_> {
    /// The value of a class, with all that it needs. Choices have no cycles, see [`Choice`].
    fn value(&mut self, class: Id) -> ValueId {
        // A stack of our own: chains of nodes may be as long as the function.
        let mut stack = vec![class];
        while let Some(top) = stack.last().copied() {
            let term = self.choice.term(self.graph, top);
            let missing: Vec<Id> = term.inputs.iter().copied().filter(|i| !self.values.contains_key(i)).collect();
            if self.values.contains_key(&top) {
                stack.pop();
            } else if missing.is_empty() {
                self.emit(top, &term);
                stack.pop();
            } else {
                stack.extend(missing.into_iter().rev());
            }
        }
        self.values[&class]
    }

    /// Adds the node of a term whose operands are there; its other results are there then too.
    fn emit(&mut self, class: Id, term: &Term) {
        let head: &Head = self.graph.analysis.get(term.head);
        let node = match &head.source {
            Source::Param(i) => {
                self.values.insert(class, self.out.params[*i].value);
                return;
            }
            Source::Node(node) => node,
        };
        let inputs = term.inputs.iter().map(|i| self.values[i]).collect();
        let classes: Vec<Option<Id>> = (0..head.types.len())
            .map(|r| {
                let head = self.graph.analysis.sibling(term.head, r);
                self.graph.lookup(Term { head, inputs: term.inputs.clone() })
            })
            .collect();
        let name = |c: &Option<Id>| c.and_then(|c| self.names.get(&c).copied()).unwrap_or(node.op.name).to_string();
        let results = classes.iter().map(name).zip(head.types.iter().cloned()).collect();
        let id = self.out.add_node(Node { inputs, results: Vec::new(), ..node.clone() }, results);
        for (class, value) in classes.iter().zip(self.out.node(id).results.clone()) {
            if let Some(class) = class {
                self.values.entry(*class).or_insert(value);
            }
        }
    }
}

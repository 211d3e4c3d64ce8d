//! The verifier: what must hold of a module between passes. Every rule is checked everywhere, and all
//! violations are returned.
//!
//! A *local* module is one in which some type carries axes. There every node must also be computable
//! from what a rank holds: operands in the states that the strategy asks for, results in those that
//! follow ([`infer_states`]); only collectives change a state.
//!
//! Invariant: a node's result types are written down, never trusted: they are compared with what its
//! rule gives.

mod checks;
mod states;

pub use checks::{check_attr, check_mesh, check_strategy, check_type, missing_attr, MAX_ELEMENTS};
pub(crate) use checks::{join_axes, join_types};
pub use states::infer_states;

use crate::core::{
    Axis, Backward, Def, FactorKind, Function, Module, Node, NodeId, ParamOf, Rule, Semantics, Strategy, Type, ValueId,
};
use crate::ops;
use crate::program::CollectiveKind;
use crate::text::{name_char, print_node};
use checks::printable;
use std::collections::HashSet;

/// One violation.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum VerifyError {
    /// Of the module: its mesh, entry, function names.
    #[error("module: {message}")]
    Module {
        /// What is wrong.
        message: String,
    },
    /// Of a function: its values, results, header.
    #[error("function @{function}: {message}")]
    Function {
        /// Its name.
        function: String,
        /// What is wrong.
        message: String,
    },
    /// Of a node: attributes, operands, result types, callee.
    #[error("function @{function}: {message}\n  {node}")]
    Node {
        /// Name of the function.
        function: String,
        /// The node as text.
        node: String,
        /// What is wrong.
        message: String,
    },
    /// Of a node's strategy.
    #[error("function @{function}: strategy: {message}\n  {node}")]
    Strategy {
        /// Name of the function.
        function: String,
        /// The node as text.
        node: String,
        /// What is wrong.
        message: String,
    },
    /// Of the states around a node of a local module.
    #[error("function @{function}: state: {message}\n  {node}")]
    State {
        /// Name of the function.
        function: String,
        /// The node as text.
        node: String,
        /// What is wrong.
        message: String,
    },
}

/// Checks a module; all violations are returned.
pub fn verify(module: &Module) -> Result<(), Vec<VerifyError>> {
    let mut errors = Vec::new();
    let mut module_error = |message: String| errors.push(VerifyError::Module { message });
    if let Err(message) = check_mesh(&module.mesh) {
        module_error(message);
    }
    let mut names = HashSet::new();
    for f in &module.functions {
        if !names.insert(&f.name) {
            module_error(format!("function @{} is defined twice", f.name));
        }
        if !printable(&f.name, name_char) {
            module_error(format!("function name {:?} cannot be written", f.name));
        }
    }
    if !names.contains(&module.entry) {
        module_error(format!("entry @{} is not a function of the module", module.entry));
    }
    let mut values = module.functions.iter().flat_map(|f| &f.values);
    let local = values.any(|v| v.ty.used_axes().next().is_some());
    for (i, function) in module.functions.iter().enumerate() {
        let mut scope = Scope { module, before: &module.functions[..i], function, local, errors: Vec::new() };
        // Nodes are looked at only if every index is in range.
        if scope.structure() {
            function.node_ids().for_each(|n| scope.node(n));
        }
        errors.extend(scope.errors);
    }
    if errors.is_empty() {
        Ok(())
    } else {
        Err(errors)
    }
}

/// Violations of one function.
struct Scope<'m> {
    module: &'m Module,
    /// Functions that this one may call.
    before: &'m [Function],
    function: &'m Function,
    local: bool,
    errors: Vec<VerifyError>,
}

impl<'m> Scope<'m> {
    fn error(&mut self, message: String) {
        self.errors.push(VerifyError::Function { function: self.function.name.clone(), message });
    }

    fn node_error(&mut self, node: NodeId, message: String) {
        let (function, node) = (self.function.name.clone(), print_node(self.function, node));
        self.errors.push(VerifyError::Node { function, node, message });
    }

    fn strategy_error(&mut self, node: NodeId, message: String) {
        let (function, node) = (self.function.name.clone(), print_node(self.function, node));
        self.errors.push(VerifyError::Strategy { function, node, message });
    }

    fn state_error(&mut self, node: NodeId, message: String) {
        let (function, node) = (self.function.name.clone(), print_node(self.function, node));
        self.errors.push(VerifyError::State { function, node, message });
    }

    /// Values, definitions, header. Returns whether every index is in range.
    fn structure(&mut self) -> bool {
        let f = self.function;
        let exists = |v: &ValueId| (v.0 as usize) < f.values.len();
        let params = f.params.iter().map(|p| &p.value);
        let nodes = f.nodes.iter().flat_map(|n| n.inputs.iter().chain(&n.results));
        if let Some(v) = params.chain(nodes).chain(&f.results).find(|v| !exists(v)) {
            self.error(format!("value {} does not exist; there are {}", v.0, f.values.len()));
            return false;
        }
        self.values();
        for n in f.node_ids() {
            let late = f.node(n).inputs.iter().find(|v| match f.value(**v).def {
                Def::Param(_) => false,
                Def::Result(m, _) => m >= n,
            });
            if let Some(v) = late {
                self.node_error(n, format!("%{} is used before it is defined", f.value(*v).name));
            }
        }
        if let Some(b) = &f.backward {
            self.backward(b);
        }
        true
    }

    fn values(&mut self) {
        let f = self.function;
        let mut names = HashSet::new();
        for (i, v) in f.values.iter().enumerate() {
            let id = ValueId(i as u32);
            if !names.insert(&v.name) {
                self.error(format!("%{} is defined twice", v.name));
            }
            if !printable(&v.name, name_char) {
                self.error(format!("value name {:?} cannot be written", v.name));
            }
            if let Err(message) = check_type(&v.ty, &self.module.mesh) {
                self.error(format!("%{}: {message}", v.name));
            }
            let defined = match v.def {
                Def::Param(p) => f.params.get(p).map(|p| p.value),
                Def::Result(n, r) => f.nodes.get(n.0 as usize).and_then(|n| n.results.get(r).copied()),
            };
            if defined != Some(id) {
                self.error(format!("%{} is not what its definition ({:?}) defines", v.name, v.def));
            }
        }
    }

    fn backward(&mut self, b: &Backward) {
        let f = self.function;
        let Some(forward) = self.module.function(&b.of) else {
            return self.error(format!("backward of @{}, which does not exist", b.of));
        };
        if (b.params.len(), b.results.len()) != (f.params.len(), f.results.len()) {
            self.error(format!(
                "backward of @{} names {} parameters and {} results; the function has {} and {}",
                b.of,
                b.params.len(),
                b.results.len(),
                f.params.len(),
                f.results.len()
            ));
        }
        let (params, results) = (forward.params.len(), forward.results.len());
        let out = b.params.iter().find(|p| match p {
            ParamOf::Param(i) => *i >= params,
            ParamOf::Result(i) | ParamOf::Cotangent(i) => *i >= results,
        });
        if let Some(p) = out {
            self.error(format!("backward of @{}, which has no {p:?}", b.of));
        }
        if let Some(i) = b.results.iter().find(|i| **i >= params) {
            self.error(format!("backward of @{}, which has no parameter {i}", b.of));
        }
    }

    /// One node, whose indices are in range.
    fn node(&mut self, n: NodeId) {
        let node = self.function.node(n);
        let misfit = node.attrs.0.iter().find_map(|(name, value)| check_attr(node.op, name, value).err());
        if let Some(message) = misfit.or_else(|| missing_attr(node.op, &node.attrs)) {
            return self.node_error(n, message);
        }
        if matches!(node.op.semantics, Semantics::Call) || node.callee.is_some() {
            return self.call(n, node);
        }
        let types: Vec<Type> = node.inputs.iter().map(|v| self.function.ty(*v).global()).collect();
        let rule = match ops::rule(node.op, &types.iter().collect::<Vec<_>>(), &node.attrs) {
            Ok(rule) => rule,
            Err(message) => return self.node_error(n, message),
        };
        if !self.result_shapes(n, &rule.result_types) {
            return;
        }
        if let Err(message) = check_strategy(&rule, &node.strategy, &self.module.mesh) {
            return self.strategy_error(n, message);
        }
        if matches!(node.op.semantics, Semantics::Collective) {
            self.collective(n, node);
        } else if self.local {
            self.states(n, node, &rule);
        }
    }

    /// Whether the results have these sizes and element types.
    fn result_shapes(&mut self, n: NodeId, want: &[Type]) -> bool {
        let f = self.function;
        let got: Vec<Type> = f.node(n).results.iter().map(|r| f.ty(*r).clone()).collect();
        if got.len() != want.len() {
            self.node_error(n, format!("gives {} results, not {}", want.len(), got.len()));
            return false;
        }
        let wrong = got.iter().zip(want).find(|(g, w)| !g.same_shape(w));
        if let Some((got, want)) = wrong {
            self.node_error(n, format!("gives {want}, not {}", got.global()));
        }
        wrong.is_none()
    }

    fn call(&mut self, n: NodeId, node: &Node) {
        let Some(name) = &node.callee else { return self.node_error(n, "a call without a function".to_string()) };
        if !matches!(node.op.semantics, Semantics::Call) {
            return self.node_error(n, format!("{} calls no function, but names @{name}", node.op.name));
        }
        if node.strategy != Strategy::None {
            self.strategy_error(n, "a call takes no strategy; the nodes of the function it calls do".to_string());
        }
        let Some(callee) = self.before.iter().find(|f| f.name == *name) else {
            let message = match self.module.function(name) {
                Some(_) => format!("@{name} is not written before its caller; calls must not form a cycle"),
                None => format!("unknown function @{name}"),
            };
            return self.node_error(n, message);
        };
        let params: Vec<ValueId> = callee.params.iter().map(|p| p.value).collect();
        self.match_types(n, "argument", &node.inputs, callee, &params);
        self.match_types(n, "result", &node.results, callee, &callee.results);
    }

    /// That the values have the types, states included, of the callee's.
    fn match_types(&mut self, n: NodeId, what: &str, values: &[ValueId], callee: &Function, theirs: &[ValueId]) {
        let name = &callee.name;
        if values.len() != theirs.len() {
            return self.node_error(n, format!("@{name} has {} {what}s, the call {}", theirs.len(), values.len()));
        }
        for (i, (v, w)) in values.iter().zip(theirs).enumerate() {
            // A broken callee is reported where it stands.
            let Some(want) = callee.values.get(w.0 as usize).map(|w| &w.ty) else { continue };
            let ty = self.function.ty(*v);
            if !ty.same_shape(want) || !ty.same_state(want) {
                self.node_error(n, format!("{what} {i} of @{name} is {want}, the call has {ty}"));
            }
        }
    }

    /// A change of state: the sizes stay (the rule says so), and what each kind cannot do is refused.
    fn collective(&mut self, n: NodeId, node: &Node) {
        let ([from], [to]) = (node.inputs.as_slice(), node.results.as_slice()) else {
            return self.node_error(n, "a collective has one operand and one result".to_string());
        };
        let (from, to) = (self.function.ty(*from), self.function.ty(*to));
        if let Some(message) = CollectiveKind::from_name(node.op.name).and_then(|k| impossible(k, from, to)) {
            self.state_error(n, message);
        }
    }

    fn states(&mut self, n: NodeId, node: &Node, rule: &Rule) {
        let inner = node
            .strategy
            .axes()
            .iter()
            .find(|(_, f)| rule.factor(f).is_some_and(|f| rule.factors[f].kind == FactorKind::Inner));
        if let Some((axis, factor)) = inner {
            let message = format!(
                "factor {factor} is combined inside {} and split over {axis}; expand its body first",
                node.op.name
            );
            return self.state_error(n, message);
        }
        let f = self.function;
        let operands: Vec<&Type> = node.inputs.iter().map(|v| f.ty(*v)).collect();
        let want = match infer_states(rule, &node.strategy, &operands, &self.module.mesh) {
            Ok(want) => want,
            Err(message) => return self.state_error(n, message),
        };
        for (r, want) in node.results.iter().zip(&want) {
            let got = f.ty(*r);
            if !got.same_state(want) {
                self.state_error(n, format!("%{} is {got}, but the strategy gives {want}", f.value(*r).name));
            }
        }
    }
}

/// What this kind of collective cannot do, if it is asked to.
fn impossible(kind: CollectiveKind, from: &Type, to: &Type) -> Option<String> {
    use CollectiveKind::*;
    let name = kind.name();
    let split = |ty: &Type| ty.dims.iter().flat_map(|d| d.axes.clone()).collect::<Vec<Axis>>();
    let lost = |a: &[Axis], b: &[Axis]| a.iter().find(|x| !b.contains(x)).cloned();
    let reduced = lost(from.partial_axes(), to.partial_axes());
    if let Some(axis) = reduced.filter(|_| !matches!(kind, AllReduce | ReduceScatter)) {
        return Some(format!(
            "{name} does not reduce, but {axis} is no longer partial; use all_reduce or reduce_scatter"
        ));
    }
    if from.partial.is_some()
        && to.partial.is_some()
        && from.partial.as_ref().map(|p| p.monoid) != to.partial.as_ref().map(|p| p.monoid)
    {
        return Some(format!("{name} cannot change how parts combine"));
    }
    if let Some(axis) = lost(to.partial_axes(), from.partial_axes()).filter(|_| kind != Local) {
        return Some(format!("{name} cannot make a value partial over {axis}; `shard` does"));
    }
    let gathered = lost(&split(from), &split(to)).filter(|a| !to.partial_axes().contains(a));
    if let Some(axis) = gathered.filter(|_| !matches!(kind, AllGather | AllToAll)) {
        return Some(format!("{name} does not gather, but {axis} no longer splits the value; use all_gather"));
    }
    let cut = lost(&split(to), &split(from));
    if let Some(axis) = cut.filter(|_| kind == AllReduce) {
        return Some(format!("all_reduce does not split, but {axis} now does; use reduce_scatter or shard"));
    }
    None
}

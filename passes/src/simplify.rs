//! Simplification without e-graphs: constants folded, equal nodes merged, dead nodes removed.
//!
//! Numbers do not change: a node is folded by the interpreter, and only exact identities are used.

use autoshard_ir::core::{Attrs, Def, Function, Module, Node, Scalar, ScalarBody, Semantics, ValueId};
use autoshard_ir::interp::{self, Tensor};
use autoshard_ir::{ops, Type};
use std::collections::{HashMap, HashSet};

/// Simplifies every function.
pub fn simplify(module: &Module) -> Module {
    let functions = module.functions.iter().map(|f| dead(&merge(f))).collect();
    Module { functions, ..module.clone() }
}

/// Folds constants and identities, and merges nodes that compute the same.
fn merge(f: &Function) -> Function {
    let mut out = Function { name: f.name.clone(), backward: f.backward.clone(), ..Function::default() };
    let mut env: HashMap<ValueId, ValueId> = HashMap::new();
    for p in &f.params {
        let v = f.value(p.value);
        env.insert(p.value, out.add_param(&v.name, v.ty.clone(), p.trainable));
    }
    let mut seen: HashMap<String, Vec<ValueId>> = HashMap::new();
    for old in &f.nodes {
        let inputs: Vec<ValueId> = old.inputs.iter().map(|v| env[v]).collect();
        let mut node = Node { inputs, results: Vec::new(), ..old.clone() };
        if let Some(v) = identity(&out, &node, f.ty(old.results[0])) {
            env.insert(old.results[0], v);
            continue;
        }
        fold(&out, &mut node);
        let key = format!("{:?} {:?} {:?} {:?} {:?}", node.op, node.callee, node.attrs, node.inputs, node.strategy);
        if let Some(results) = seen.get(&key).filter(|_| pure(&node)) {
            env.extend(old.results.iter().copied().zip(results.iter().copied()));
            continue;
        }
        let results = old.results.iter().map(|v| (f.value(*v).name.clone(), f.ty(*v).clone())).collect();
        let id = out.add_node(node, results);
        let results = out.node(id).results.clone();
        env.extend(old.results.iter().copied().zip(results.iter().copied()));
        seen.insert(key, results);
    }
    out.results = f.results.iter().map(|r| env[r]).collect();
    out
}

/// Calls are kept apart: each has its own saved values and gathers.
fn pure(node: &Node) -> bool {
    !matches!(node.op.semantics, Semantics::Call)
}

fn body_of(f: &Function, node: &Node) -> Option<ScalarBody> {
    let types: Vec<&Type> = node.inputs.iter().map(|v| f.ty(*v)).collect();
    match node.op.semantics {
        Semantics::Primitive(rule) => rule(&types, &node.attrs).ok()?.body,
        _ => None,
    }
}

/// The operand that the node returns unchanged: a cast to the same type, ×1 + 0.
fn identity(f: &Function, node: &Node, result: &Type) -> Option<ValueId> {
    let x = *node.inputs.first()?;
    let same = f.ty(x) == result;
    match body_of(f, node)? {
        ScalarBody::Map(Scalar::Identity) if same => Some(x),
        ScalarBody::Map(Scalar::Affine { mul, add }) if same && mul.get() == 1.0 && add.get() == 0.0 => Some(x),
        _ => None,
    }
}

/// A pointwise node over scalar constants becomes a constant.
fn fold(f: &Function, node: &mut Node) {
    if node.inputs.is_empty() || !matches!(body_of(f, node), Some(ScalarBody::Map(_))) {
        return;
    }
    let constant = |v: &ValueId| -> Option<Tensor> {
        let Def::Result(n, _) = f.value(*v).def else { return None };
        let n = f.node(n);
        match body_of(f, n)? {
            ScalarBody::Values(values) if f.ty(*v).dims.is_empty() => Some(Tensor::new(f.ty(*v).clone(), values)),
            _ => None,
        }
    };
    let Some(args) = node.inputs.iter().map(constant).collect::<Option<Vec<_>>>() else { return };
    let types: Vec<&Type> = args.iter().map(|t| &t.ty).collect();
    let Ok(rule) = ops::rule(node.op, &types, &node.attrs) else { return };
    let (Ok(value), Some(op)) = (interp::primitive(&rule, &args), ops::find("constant")) else { return };
    if !value.ty.dims.is_empty() {
        return;
    }
    node.attrs = Attrs::new().floats("values", value.data).text("dtype", value.ty.dtype.name());
    node.op = op;
    node.inputs.clear();
}

/// Removes nodes that no result needs.
fn dead(f: &Function) -> Function {
    let mut needed: HashSet<ValueId> = f.results.iter().copied().collect();
    let mut keep = vec![false; f.nodes.len()];
    for (i, n) in f.nodes.iter().enumerate().rev() {
        if n.results.iter().any(|r| needed.contains(r)) {
            keep[i] = true;
            needed.extend(n.inputs.iter().copied());
        }
    }
    let mut out = Function { name: f.name.clone(), backward: f.backward.clone(), ..Function::default() };
    let mut env: HashMap<ValueId, ValueId> = HashMap::new();
    for p in &f.params {
        let v = f.value(p.value);
        env.insert(p.value, out.add_param(&v.name, v.ty.clone(), p.trainable));
    }
    for (old, _) in f.nodes.iter().zip(&keep).filter(|(_, k)| **k) {
        let inputs = old.inputs.iter().map(|v| env[v]).collect();
        let results = old.results.iter().map(|v| (f.value(*v).name.clone(), f.ty(*v).clone())).collect();
        let id = out.add_node(Node { inputs, results: Vec::new(), ..old.clone() }, results);
        let results = out.node(id).results.clone();
        env.extend(old.results.iter().copied().zip(results));
    }
    out.results = f.results.iter().map(|r| env[r]).collect();
    out
}

//! One walk over the nodes, without an e-graph: constants folded, equal nodes merged, dead nodes removed.
//!
//! Numbers do not change: a node is folded by the interpreter, and only exact identities are used. What a node
//! is split over and what forward node it belongs to stay as they are, so this is for every module, whatever
//! its stage.

use autoshard_ir::core::{Attrs, Def, Function, Node, Rule, Scalar, ScalarBody, Semantics, ValueId};
use autoshard_ir::interp::{self, Tensor};
use autoshard_ir::{ops, Type};
use std::collections::{HashMap, HashSet};

/// The function with constants folded, equal nodes merged and without dead nodes.
pub(super) fn fold(f: &Function) -> Function {
    dead(&merge(f))
}

/// Folds constants and identities, and merges nodes that compute the same.
fn merge(f: &Function) -> Function {
    let mut out = Function { name: f.name.clone(), backward: f.backward.clone(), ..Function::default() };
    let mut env: HashMap<ValueId, ValueId> = HashMap::new();
    out.copy_params(f, &mut env);
    let mut seen: HashMap<String, Vec<ValueId>> = HashMap::new();
    for old in &f.nodes {
        let inputs: Vec<ValueId> = old.inputs.iter().map(|v| env[v]).collect();
        let mut node = Node { inputs, results: Vec::new(), ..old.clone() };
        if let Some(v) = identity(&out, &node, f.ty(old.results[0])) {
            env.insert(old.results[0], v);
            continue;
        }
        constants(&out, &mut node);
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

fn rule_of(f: &Function, node: &Node) -> Option<Rule> {
    let types: Vec<&Type> = node.inputs.iter().map(|v| f.ty(*v)).collect();
    match node.op.semantics {
        Semantics::Primitive(rule) => rule(&types, &node.attrs).ok(),
        _ => None,
    }
}

fn body_of(f: &Function, node: &Node) -> Option<ScalarBody> {
    rule_of(f, node)?.body
}

/// The operand that the node returns unchanged: a cast to the same type, ×1 + 0.
fn identity(f: &Function, node: &Node, result: &Type) -> Option<ValueId> {
    let x = *node.inputs.first()?;
    let rule = rule_of(f, node)?;
    // A square matrix and its transpose may have one type.
    let same = f.ty(x) == result && rule.operands[0] == rule.results[0];
    match rule.body? {
        ScalarBody::Map(Scalar::Identity) if same => Some(x),
        ScalarBody::Map(Scalar::Affine { mul, add }) if same && mul.get() == 1.0 && add.get() == 0.0 => Some(x),
        _ => None,
    }
}

/// A pointwise node over scalar constants becomes a constant.
fn constants(f: &Function, node: &mut Node) {
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

/// For each node, whether a result of the function needs it.
pub(super) fn needed(f: &Function) -> Vec<bool> {
    let mut needed: HashSet<ValueId> = f.results.iter().copied().collect();
    let mut keep = vec![false; f.nodes.len()];
    for (i, n) in f.nodes.iter().enumerate().rev() {
        if n.results.iter().any(|r| needed.contains(r)) {
            keep[i] = true;
            needed.extend(n.inputs.iter().copied());
        }
    }
    keep
}

/// Removes nodes that no result needs.
fn dead(f: &Function) -> Function {
    let keep = needed(f);
    let mut out = Function { name: f.name.clone(), backward: f.backward.clone(), ..Function::default() };
    let mut env: HashMap<ValueId, ValueId> = HashMap::new();
    out.copy_params(f, &mut env);
    for (old, _) in f.nodes.iter().zip(&keep).filter(|(_, k)| **k) {
        out.copy_node(f, old, &mut env);
    }
    out.results = f.results.iter().map(|r| env[r]).collect();
    out
}

#[cfg(test)]
mod tests {
    use crate::simplify::simplify;
    use autoshard_ir::text;

    fn simplified(body: &str) -> String {
        let source = format!("func @f(%x: f32[n=2]) -> (f32[n]) {{\n{body}}}\n");
        let m = simplify(&text::parse(&source, "simplify").unwrap_or_else(|e| panic!("{e}")));
        let printed = text::print(&m);
        let lines = printed.lines().filter(|l| l.starts_with("  %"));
        lines.map(|l| l.trim().split(" : ").next().unwrap_or_default().to_string()).collect::<Vec<_>>().join("; ")
    }

    #[test]
    fn equal_nodes_are_one_and_dead_nodes_go() {
        let body = "  %a = exp %x : f32[n]\n  %b = exp %x : f32[n]\n  %dead = log %x : f32[n]\n  %c = add %a, %b : f32[n]\n  return %c\n";
        assert_eq!(simplified(body), "%a = exp %x; %c = add %a, %a");
    }

    #[test]
    fn nodes_with_other_attributes_or_strategies_stay_apart() {
        let body = "  %a = affine %x {mul=2.0, add=0.0} : f32[n]\n  %b = affine %x {mul=2.0, add=1.0} : f32[n]\n  %c = add %a, %b : f32[n]\n  return %c\n";
        assert_eq!(simplified(body).matches("affine").count(), 2);
    }

    #[test]
    fn constants_are_folded_at_their_type() {
        let body = "  %k = constant {values=[0.1], dtype=\"f32\"} : f32[]\n  %t = constant {values=[0.2], dtype=\"f32\"} : f32[]\n  %s = add %k, %t : f32[]\n  %b = broadcast %s {spec=\"-> n\", sizes=[2]} : f32[n]\n  %y = mul %x, %b : f32[n]\n  return %y\n";
        // The sum of the f32 numbers nearest to 0.1 and 0.2, rounded to f32.
        let sum = f64::from(0.1f32 + 0.2f32);
        assert!(simplified(body).contains(&format!("values=[{sum:?}]")), "{}", simplified(body));
    }

    #[test]
    fn a_square_matrix_is_not_its_transpose() {
        let source = "func @f(%x: f32[m=2, n=2]) -> (f32[m, n]) {\n  %t = transpose %x {spec=\"m n -> n m\"} : f32[m=2, n=2]\n  return %t\n}\n";
        let m = text::parse(source, "simplify").unwrap_or_else(|e| panic!("{e}"));
        assert_eq!(simplify(&m), m);
    }

    #[test]
    fn identities_vanish_and_what_rounds_stays() {
        let body = "  %a = cast %x {dtype=\"f32\"} : f32[n]\n  %b = affine %a {mul=1.0, add=0.0} : f32[n]\n  %h = cast %b {dtype=\"bf16\"} : bf16[n]\n  %y = cast %h {dtype=\"f32\"} : f32[n]\n  return %y\n";
        assert_eq!(simplified(body), "%h = cast %x {dtype=\"bf16\"}; %y = cast %h {dtype=\"f32\"}");
    }
}

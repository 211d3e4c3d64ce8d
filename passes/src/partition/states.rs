//! States that strategies ask for, and the states of parameters.

use autoshard_ir::core::{
    Axis, DimMap, FactorKind, Function, Module, Node, Param, ParamOf, Rule, Semantics, Strategy, Type,
};
use autoshard_ir::{ops, Mesh};

/// The rule of a node of a global function.
pub fn rule_of(f: &Function, node: &Node) -> Result<Rule, String> {
    let types: Vec<&Type> = node.inputs.iter().map(|v| f.ty(*v)).collect();
    ops::rule(node.op, &types, &node.attrs)
}

/// The type with the axes that the strategy gives to its dimensions, nothing partial.
pub fn demanded(ty: &Type, maps: &[DimMap], rule: &Rule, strategy: &Strategy) -> Type {
    let mut out = ty.global();
    for (d, m) in out.dims.iter_mut().zip(maps) {
        if let Some(f) = m.factors.first() {
            d.axes = strategy.of_factor(&rule.factors[*f].name);
        }
    }
    out
}

/// Checks that the strategy is legal for the node; returns whether it splits an inner factor.
pub fn check(rule: &Rule, node: &Node, mesh: &Mesh) -> Result<bool, String> {
    let mut inner = false;
    let mut seen: Vec<&Axis> = Vec::new();
    for (axis, factor) in node.strategy.axes() {
        if mesh.position(axis).is_none() {
            return Err(format!("axis {axis} is not in the mesh {mesh}"));
        }
        if seen.contains(&axis) {
            return Err(format!("axis {axis} takes two factors"));
        }
        seen.push(axis);
        let names = || rule.factors.iter().map(|f| f.name.as_str()).collect::<Vec<_>>().join(", ");
        let f = rule.factor(factor).ok_or_else(|| format!("no factor {factor}; it has {}", names()))?;
        match rule.factors[f].kind {
            FactorKind::Free(_) => {}
            FactorKind::Inner => inner = true,
            FactorKind::Whole => return Err(format!("factor {factor} cannot be split")),
        }
        check_groups(rule, f, node, mesh)?;
    }
    Ok(inner)
}

/// A dimension made of several factors is split evenly or not at all: otherwise the shard is not
/// contiguous.
fn check_groups(rule: &Rule, f: usize, node: &Node, mesh: &Mesh) -> Result<(), String> {
    let grouped = rule.operands.iter().chain(&rule.results).flatten().any(|m| m.factors.len() > 1 && m.factors[0] == f);
    let ways = mesh.span(&node.strategy.of_factor(&rule.factors[f].name));
    if grouped && !rule.factors[f].size.is_multiple_of(ways) {
        return Err(format!(
            "factor {} of {} is split {ways} ways across a reshape; it must divide",
            rule.factors[f].name, rule.factors[f].size
        ));
    }
    Ok(())
}

/// States of a function's parameters.
pub fn parameters(module: &Module, done: &Module, f: &Function) -> Result<Vec<Type>, String> {
    if super::is_entry(module, f) {
        return Ok(f.params.iter().map(|p| f.ty(p.value).clone()).collect());
    }
    let Some(b) = &f.backward else {
        return f.params.iter().map(|p| first_use(f, p)).collect();
    };
    let forward = done.function(&b.of).ok_or_else(|| format!("@{} must stand before its backward", b.of))?;
    f.params
        .iter()
        .zip(&b.params)
        .map(|(p, from)| {
            let source = match from {
                ParamOf::Param(i) => forward.ty(forward.params[*i].value),
                ParamOf::Result(i) | ParamOf::Cotangent(i) => forward.ty(forward.results[*i]),
            };
            Ok(with_state(f.ty(p.value), &dual(source)))
        })
        .collect()
}

/// The state of a cotangent: its primal's, with partial sums reduced.
pub fn dual(primal: &Type) -> Type {
    Type { partial: None, ..primal.clone() }
}

/// `ty` in the state of `like`.
pub fn with_state(ty: &Type, like: &Type) -> Type {
    let mut out = ty.global();
    for (d, l) in out.dims.iter_mut().zip(&like.dims) {
        d.axes = l.axes.clone();
    }
    out.partial = like.partial.clone();
    out
}

/// The state that the first use of a parameter asks for; whole on every rank if there is none.
pub(crate) fn first_use(f: &Function, p: &Param) -> Result<Type, String> {
    for node in &f.nodes {
        let Some(i) = node.inputs.iter().position(|v| *v == p.value) else { continue };
        if node.strategy == Strategy::Follow || matches!(node.op.semantics, Semantics::Call) {
            continue;
        }
        let rule = rule_of(f, node)?;
        return Ok(demanded(f.ty(p.value), &rule.operands[i], &rule, &node.strategy));
    }
    Ok(f.ty(p.value).global())
}

//! Forward and backward of one function.

use super::AutodiffError;
use autoshard_ir::core::{
    Attrs, Backward, BuildError, Builder, Def, Function, GradArg, Gradient, Node, NodeId, ParamOf, Scalar, ScalarBody,
    Semantics, Strategy, Type, ValueId,
};
use autoshard_ir::ops;
use std::collections::{BTreeSet, HashMap};

/// A function's forward and backward.
pub struct Pair {
    /// Results of the original, then the saved values.
    pub forward: Function,
    /// Cotangents of the wanted parameters.
    pub backward: Function,
}

/// Differentiates `f` with respect to the parameters `wanted`, given cotangents of the results
/// `given` (positions).
pub fn differentiate(f: &Function, wanted: &[usize], given: &[usize]) -> Result<Pair, AutodiffError> {
    let mut all = f.clone();
    let forward_nodes = all.nodes.len();
    let mut seeds = Vec::new();
    for r in given {
        let v = f.results[*r];
        let name = format!("d.{}", f.value(v).name);
        let ty = f.ty(v).global();
        seeds.push((*r, all.add_param(&name, ty, false)));
    }
    let active = activity(f, wanted);
    let mut cots: HashMap<ValueId, Vec<ValueId>> = HashMap::new();
    for (r, seed) in &seeds {
        cots.entry(f.results[*r]).or_default().push(*seed);
    }
    for i in (0..forward_nodes as u32).rev() {
        node_gradient(&mut all, NodeId(i), &active, &mut cots).map_err(|source| AutodiffError::Node {
            function: f.name.clone(),
            node: describe(f, NodeId(i)),
            source,
        })?;
    }
    let mut out = Vec::new();
    for w in wanted {
        let v = f.params[*w].value;
        let cot = match total(&mut all, v, &mut cots)? {
            Some(c) => c,
            None => {
                let ty = all.ty(v).global();
                zeros(&mut all, "zeros", &ty)?
            }
        };
        out.push(cot);
    }
    Ok(split(f, &all, forward_nodes, &seeds, &out, wanted))
}

fn describe(f: &Function, n: NodeId) -> String {
    let node = f.node(n);
    node.results.first().map_or(node.op.name.to_string(), |r| format!("%{} = {}", f.value(*r).name, node.op.name))
}

/// Values whose cotangents are needed: float values that depend on a wanted parameter.
fn activity(f: &Function, wanted: &[usize]) -> Vec<bool> {
    let mut active = vec![false; f.values.len()];
    for w in wanted {
        active[f.params[*w].value.0 as usize] = true;
    }
    for n in &f.nodes {
        if n.inputs.iter().any(|v| active[v.0 as usize]) {
            for r in &n.results {
                active[r.0 as usize] = f.ty(*r).dtype.is_float();
            }
        }
    }
    active
}

/// The sum of the contributions to a value's cotangent, in the order in which they arose.
fn total(
    f: &mut Function,
    v: ValueId,
    cots: &mut HashMap<ValueId, Vec<ValueId>>,
) -> Result<Option<ValueId>, BuildError> {
    let Some(parts) = cots.get(&v).cloned() else {
        return Ok(None);
    };
    let mut sum = parts[0];
    for p in &parts[1..] {
        let of = Some(f.value(v).name.clone());
        let mut b = Builder { func: f, strategy: Strategy::Follow, of };
        let name = format!("d.{}", b.func.value(v).name);
        sum = b.op(&name, "add", &[sum, *p], Attrs::new())?;
        b.name_like(sum, v);
    }
    cots.insert(v, vec![sum]);
    Ok(Some(sum))
}

pub(super) fn zeros(f: &mut Function, name: &str, ty: &Type) -> Result<ValueId, BuildError> {
    let mut b = Builder::new(f);
    let zero = b.constant(0.0, ty.dtype)?;
    if ty.dims.is_empty() {
        return Ok(zero);
    }
    let names: Vec<&str> = ty.dims.iter().map(|d| d.name.as_str()).collect();
    let attrs = Attrs::new().text("spec", format!("-> {}", names.join(" "))).ints("sizes", ty.sizes());
    b.op(name, "broadcast", &[zero], attrs)
}

fn node_gradient(
    f: &mut Function,
    n: NodeId,
    active: &[bool],
    cots: &mut HashMap<ValueId, Vec<ValueId>>,
) -> Result<(), BuildError> {
    let node = f.node(n).clone();
    let wanted = |v: &ValueId| active.get(v.0 as usize).copied().unwrap_or(false);
    if !node.inputs.iter().any(wanted) || !node.results.iter().any(|r| cots.contains_key(r)) {
        return Ok(());
    }
    let mut given = Vec::new();
    for r in &node.results {
        given.push(total(f, *r, cots)?);
    }
    let of = node.results.first().map(|r| f.value(*r).name.clone());
    let mut b = Builder { func: f, strategy: node.strategy.clone(), of };
    let asked: Vec<bool> = node.inputs.iter().map(wanted).collect();
    let grads = operand_gradients(&mut b, n, &node, &given, &asked)?;
    for (x, g) in node.inputs.iter().zip(grads) {
        if let (Some(g), true) = (g, wanted(x)) {
            b.name_like(g, *x);
            cots.entry(*x).or_default().push(g);
        }
    }
    Ok(())
}

fn operand_gradients(
    b: &mut Builder,
    n: NodeId,
    node: &Node,
    given: &[Option<ValueId>],
    asked: &[bool],
) -> Result<Vec<Option<ValueId>>, BuildError> {
    match &node.op.gradient {
        Gradient::Derived(rule) => rule(b, n, given),
        Gradient::None(reason) => {
            Err(BuildError::NoGradient { op: node.op.name.to_string(), reason: (*reason).to_string() })
        }
        Gradient::Backward { op, args, wrt, attrs } => {
            let covered = |i: usize| args.contains(&GradArg::Cotangent(i));
            // What the hand-written backward leaves out, the body gives.
            let ignored = given.iter().enumerate().any(|(i, g)| g.is_some() && !covered(i));
            if ignored || asked.iter().enumerate().any(|(i, a)| *a && !wrt.contains(&i)) {
                return inline_gradient(b, node, given);
            }
            let mut inputs = Vec::new();
            for a in *args {
                inputs.push(match a {
                    GradArg::Operand(i) => node.inputs[*i],
                    GradArg::Result(i) => node.results[*i],
                    GradArg::Cotangent(i) => match given[*i] {
                        Some(c) => c,
                        None => return inline_gradient(b, node, given),
                    },
                });
            }
            let mut kept = node.attrs.clone();
            kept.0.retain(|(name, _)| attrs.contains(&name.as_str()));
            let names: Vec<String> = wrt.iter().map(|i| format!("d.{}", b.func.value(node.inputs[*i]).name)).collect();
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            let results = b.ops(&names, op, &inputs, kept)?;
            let mut out = vec![None; node.inputs.len()];
            for (i, r) in wrt.iter().zip(results) {
                out[*i] = Some(r);
            }
            Ok(out)
        }
        Gradient::Body => inline_gradient(b, node, given),
    }
}

/// Differentiates a composite by its body, computed again inside the backward.
fn inline_gradient(
    b: &mut Builder,
    node: &Node,
    given: &[Option<ValueId>],
) -> Result<Vec<Option<ValueId>>, BuildError> {
    let Semantics::Composite(source) = node.op.semantics else {
        return Err(BuildError::NoGradient { op: node.op.name.to_string(), reason: "it has no body".to_string() });
    };
    let types: Vec<_> = node.inputs.iter().map(|v| b.ty(*v).global()).collect();
    let body = ops::compose::body(source, &types.iter().collect::<Vec<_>>(), &node.attrs)
        .map_err(|message| BuildError::Rule { op: node.op.name.to_string(), operands: String::new(), message })?;
    let first = b.func.nodes.len();
    let mut env: HashMap<ValueId, ValueId> = HashMap::new();
    for (p, v) in body.params.iter().zip(&node.inputs) {
        env.insert(p.value, named(b, *v, body.ty(p.value))?);
    }
    for inner in &body.nodes {
        let inputs: Vec<ValueId> = inner.inputs.iter().map(|v| env[v]).collect();
        let names: Vec<&str> = inner.results.iter().map(|r| body.value(*r).name.as_str()).collect();
        let results = b.ops(&names, inner.op.name, &inputs, inner.attrs.clone())?;
        for (r, new) in inner.results.iter().zip(results) {
            rename(b.func, new, body.ty(*r));
            env.insert(*r, new);
        }
    }
    let end = b.func.nodes.len();
    let mut cots: HashMap<ValueId, Vec<ValueId>> = HashMap::new();
    for (r, g) in body.results.iter().zip(given) {
        if let Some(g) = g {
            cots.entry(env[r]).or_default().push(*g);
        }
    }
    let mut active = vec![false; b.func.values.len()];
    for v in &node.inputs {
        active[v.0 as usize] = b.ty(*v).dtype.is_float();
    }
    for inner in &b.func.nodes[first..end] {
        if inner.inputs.iter().any(|v| active[v.0 as usize]) {
            for r in &inner.results {
                active[r.0 as usize] = b.func.ty(*r).dtype.is_float();
            }
        }
    }
    for i in (first..end).rev() {
        node_gradient(b.func, NodeId(i as u32), &active, &mut cots)?;
    }
    let mut out = Vec::new();
    for (i, v) in node.inputs.iter().enumerate() {
        // A value that is several operands has one cotangent, the sum of theirs.
        out.push(if node.inputs[..i].contains(v) { None } else { total(b.func, *v, &mut cots)? });
    }
    // The nodes just made differentiate the composite, as far as origin goes.
    for made in &mut b.func.nodes[first..] {
        made.of = b.of.clone();
    }
    Ok(out)
}

/// The value under the dimension names of a body's parameter: bodies name dimensions in attributes.
fn named(b: &mut Builder, v: ValueId, like: &Type) -> Result<ValueId, BuildError> {
    if b.ty(v).dims.iter().zip(&like.dims).all(|(a, b)| a.name == b.name) {
        return Ok(v);
    }
    let names = like.dims.iter().map(|d| d.name.as_str()).collect::<Vec<_>>().join(" ");
    let name = b.func.value(v).name.clone();
    b.op(&name, "transpose", &[v], Attrs::new().text("spec", format!("{names} -> {names}")))
}

fn rename(f: &mut Function, v: ValueId, ty: &Type) {
    for (d, n) in f.values[v.0 as usize].ty.dims.iter_mut().zip(&ty.dims) {
        d.name = n.name.clone();
    }
}

/// Cuts the joint function into forward and backward.
fn split(
    f: &Function,
    all: &Function,
    forward_nodes: usize,
    seeds: &[(usize, ValueId)],
    out: &[ValueId],
    wanted: &[usize],
) -> Pair {
    let live = live_backward(all, forward_nodes, out);
    let mut used: BTreeSet<ValueId> = out.iter().copied().collect();
    for n in &live {
        used.extend(all.node(*n).inputs.iter().copied());
    }
    let casts = recast(all, forward_nodes, &mut used);
    let is_forward = |v: &ValueId| matches!(all.value(*v).def, Def::Result(n, _) if (n.0 as usize) < forward_nodes);
    let mut forward = f.clone();
    forward.name = format!("{}.fwd", f.name);
    forward.results.extend(used.iter().filter(|v| is_forward(v) && !f.results.contains(v)).copied());

    let mut backward = Function::new(format!("{}.bwd", f.name));
    let mut env: HashMap<ValueId, ValueId> = HashMap::new();
    let mut params = Vec::new();
    let mut add = |v: ValueId, from: ParamOf, trainable: bool, g: &mut Function| {
        env.insert(v, g.add_param(&all.value(v).name, all.ty(v).clone(), trainable));
        params.push(from);
    };
    for (i, p) in f.params.iter().enumerate().filter(|(_, p)| used.contains(&p.value)) {
        add(p.value, ParamOf::Param(i), p.trainable, &mut backward);
    }
    for (i, r) in forward.results.iter().enumerate() {
        if used.contains(r) && is_forward(r) && !forward.results[..i].contains(r) {
            add(*r, ParamOf::Result(i), false, &mut backward);
        }
    }
    for (r, v) in seeds.iter().filter(|(_, v)| used.contains(v)) {
        add(*v, ParamOf::Cotangent(*r), false, &mut backward);
    }
    for n in casts.into_iter().chain(live) {
        backward.copy_node(all, all.node(n), &mut env);
    }
    backward.results = out.iter().map(|v| env[v]).collect();
    backward.backward = Some(Backward { of: forward.name.clone(), params, results: wanted.to_vec() });
    Pair { forward, backward }
}

/// Casts of parameters that the backward computes again rather than keeping a copy of the weight: they
/// leave `used`, and what they read enters.
fn recast(all: &Function, forward_nodes: usize, used: &mut BTreeSet<ValueId>) -> Vec<NodeId> {
    let casts_param = |n: &Node| {
        let param = n.inputs.len() == 1 && matches!(all.value(n.inputs[0]).def, Def::Param(_));
        let types = || (all.ty(n.inputs[0]).dtype, all.ty(n.results[0]).dtype);
        let rule = || ops::rule(n.op, &[all.ty(n.inputs[0])], &n.attrs).ok();
        param && types().0 != types().1 && rule().is_some_and(|r| r.body == Some(ScalarBody::Map(Scalar::Identity)))
    };
    let again = |v: &ValueId| match all.value(*v).def {
        Def::Result(n, _) if (n.0 as usize) < forward_nodes && casts_param(all.node(n)) => Some(n),
        _ => None,
    };
    let casts: BTreeSet<NodeId> = used.iter().filter_map(again).collect();
    for n in &casts {
        all.node(*n).results.iter().for_each(|r| {
            used.remove(r);
        });
        used.extend(all.node(*n).inputs.iter().copied());
    }
    casts.into_iter().collect()
}

/// Backward nodes that the results need, in order.
fn live_backward(all: &Function, forward_nodes: usize, out: &[ValueId]) -> Vec<NodeId> {
    let mut needed: BTreeSet<ValueId> = out.iter().copied().collect();
    let mut live = Vec::new();
    for i in (forward_nodes..all.nodes.len()).rev() {
        let n = &all.nodes[i];
        if n.results.iter().any(|r| needed.contains(r)) {
            needed.extend(n.inputs.iter().copied());
            live.push(NodeId(i as u32));
        }
    }
    live.reverse();
    live
}

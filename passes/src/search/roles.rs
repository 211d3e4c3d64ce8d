//! Roles: which factor each mesh axis takes in each node.
//!
//! dp and fsdp take the batch (`b`). tp takes heads (`g`, then `r`), the MLP width (`f`) or the
//! vocabulary (`v`) where a node has them; with sequence parallelism it takes positions (`s`) in the
//! other nodes over activations (those with `d`). Heads that one axis cannot split are split by two
//! pieces of it: tp = tp.0·tp.1 with tp.0 over g and tp.1 over r.

use super::{list, SearchError};
use autoshard_ir::core::{Axis, Dim, FactorKind, Function, Module, Node, Rule, Semantics, Strategy, Template, Type};
use autoshard_ir::plan::Plan;
use autoshard_ir::{ops, Mesh};
use std::collections::BTreeMap;

/// Degrees of the mesh axes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Degrees {
    /// Data-parallel replicas.
    pub dp: usize,
    /// Ranks that share a parameter's storage (ZeRO-3).
    pub fsdp: usize,
    /// Tensor-parallel ranks.
    pub tp: usize,
    /// Sequence parallelism: tp splits positions outside tensor-parallel regions.
    pub sequence_parallel: bool,
}

/// Key/value heads and queries per head of the attention nodes.
fn heads(module: &Module) -> Vec<(usize, usize)> {
    let mut out = Vec::new();
    for f in &module.functions {
        for n in f.nodes.iter().filter(|n| n.op.template == Template::Attention) {
            let q = &f.ty(n.inputs[0]).dims;
            if q.len() == 5 && !out.contains(&(q[2].size, q[3].size)) {
                out.push((q[2].size, q[3].size));
            }
        }
    }
    out
}

/// The cut of tp into a part over g and a part over r, if there is one.
fn cut(tp: usize, g: usize, r: usize) -> Option<(usize, usize)> {
    (1..=tp)
        .rev()
        .filter(|t0| tp.is_multiple_of(*t0))
        .map(|t0| (t0, tp / t0))
        .find(|(t0, t1)| g.is_multiple_of(*t0) && r.is_multiple_of(*t1))
}

/// Tensor degrees that fit the heads of every attention node: t₀·t₁ with t₀ | g and t₁ | r.
pub fn head_degrees(module: &Module) -> Vec<usize> {
    let heads = heads(module);
    let most = heads.iter().map(|(g, r)| g * r).min().unwrap_or(1);
    (1..=most).filter(|t| heads.iter().all(|(g, r)| cut(*t, *g, *r).is_some())).collect()
}

/// Sequences of a step: the size of `b` among the entry's inputs.
pub fn batch(module: &Module) -> Option<usize> {
    let entry = module.entry_function()?;
    entry
        .params
        .iter()
        .filter(|p| !p.trainable)
        .find_map(|p| entry.ty(p.value).dims.iter().find(|d| d.name == "b").map(|d| d.size))
}

/// The plan of these degrees for a forward module whose entry is outlined.
pub fn assign(module: &Module, degrees: &Degrees) -> Result<Plan, SearchError> {
    let data = degrees.dp * degrees.fsdp;
    if let Some(batch) = batch(module).filter(|b| b % data != 0) {
        return Err(SearchError::Batch { batch, data });
    }
    let tp = tensor_axes(module, degrees.tp)?;
    let mut axes: Vec<(Axis, usize)> = Vec::new();
    for (name, size) in [("dp", degrees.dp), ("fsdp", degrees.fsdp)] {
        if size > 1 {
            axes.push((Axis::new(name), size));
        }
    }
    let data: Vec<Axis> = axes.iter().map(|(a, _)| a.clone()).collect();
    axes.extend(tp.clone());
    let roles = Roles { data, tp, sequence: degrees.sequence_parallel };
    let mut plan =
        Plan { mesh: Mesh { axes }, sequence_parallel: degrees.sequence_parallel && degrees.tp > 1, ..Plan::default() };
    for f in module.functions.iter().filter(|f| f.name != module.entry) {
        plan.strategies.insert(f.name.clone(), roles.function(f)?);
    }
    let annotated = apply(module, &plan)?;
    plan.stored = stored(&annotated, &roles, degrees.fsdp);
    Ok(plan)
}

fn tensor_axes(module: &Module, tp: usize) -> Result<Vec<(Axis, usize)>, SearchError> {
    if tp == 1 {
        return Ok(Vec::new());
    }
    let mut axes = vec![(Axis::new("tp"), tp)];
    for (g, r) in heads(module) {
        let (t0, t1) = cut(tp, g, r).ok_or_else(|| SearchError::Heads {
            tp,
            heads: g * r,
            kv: g,
            allowed: list(&head_degrees(module)),
        })?;
        if t0 > 1 && t1 > 1 {
            axes = vec![(Axis::new("tp.0"), t0), (Axis::new("tp.1"), t1)];
        }
    }
    Ok(axes)
}

struct Roles {
    data: Vec<Axis>,
    tp: Vec<(Axis, usize)>,
    sequence: bool,
}

impl Roles {
    fn function(&self, f: &Function) -> Result<BTreeMap<String, Strategy>, SearchError> {
        let mut out = BTreeMap::new();
        for n in f.nodes.iter().filter(|n| !matches!(n.op.semantics, Semantics::Call)) {
            let types: Vec<&Type> = n.inputs.iter().map(|v| f.ty(*v)).collect();
            let rule = ops::rule(n.op, &types, &n.attrs).map_err(SearchError::Plan)?;
            if let Some(r) = n.results.first() {
                out.insert(f.value(*r).name.clone(), self.node(n, &rule));
            }
        }
        Ok(out)
    }

    fn node(&self, node: &Node, rule: &Rule) -> Strategy {
        if node.inputs.is_empty() {
            return Strategy::None; // made where it is used, whole
        }
        let size = |name: &str| {
            rule.factor(name).filter(|f| rule.factors[*f].kind != FactorKind::Whole).map(|f| rule.factors[f].size)
        };
        let mut axes: Vec<(Axis, String)> = Vec::new();
        if size("b").is_some() {
            axes.extend(self.data.iter().map(|a| (a.clone(), "b".to_string())));
        }
        if size("g").is_some() || size("r").is_some() {
            axes.extend(self.heads(size("g"), size("r")));
        } else if let Some(name) = ["f", "v"].into_iter().find(|n| size(n).is_some()) {
            axes.extend(self.tp.iter().map(|(a, _)| (a.clone(), name.to_string())));
        } else if self.sequence && size("s").is_some() && size("d").is_some() {
            axes.extend(self.tp.iter().map(|(a, _)| (a.clone(), "s".to_string())));
        }
        Strategy::from_axes(axes)
    }

    /// tp over heads: the piece that divides g takes g, the piece that divides r takes r.
    fn heads(&self, g: Option<usize>, r: Option<usize>) -> Vec<(Axis, String)> {
        let mut out = Vec::new();
        let mut first = true;
        for (axis, size) in &self.tp {
            if first && g.is_some_and(|g| g % size == 0) {
                out.push((axis.clone(), "g".to_string()));
            } else if r.is_some_and(|r| r % size == 0) && (self.tp.len() == 1 || !first) {
                out.push((axis.clone(), "r".to_string()));
            }
            first = false;
        }
        out
    }
}

/// Stored states: inputs split over the data axes by batch; parameters as their first use has them,
/// with fsdp minor on the first dimension that it divides (else the largest).
fn stored(module: &Module, roles: &Roles, fsdp: usize) -> BTreeMap<String, Vec<Vec<Axis>>> {
    let mut out = BTreeMap::new();
    let Some(entry) = module.entry_function() else { return out };
    for p in &entry.params {
        let value = entry.value(p.value);
        let mut dims: Vec<Dim> = if p.trainable {
            used_as(module, entry, p.value).unwrap_or_else(|| value.ty.global().dims)
        } else {
            let on = |d: &Dim| if d.name == "b" { roles.data.clone() } else { Vec::new() };
            value.ty.dims.iter().map(|d| Dim { axes: on(d), ..d.clone() }).collect()
        };
        if p.trainable && fsdp > 1 {
            let local = |d: &Dim| module.mesh.local_size(d);
            let divides = dims.iter().position(|d| local(d) % fsdp == 0 && module.mesh.even(d));
            let at = divides.or_else(|| (0..dims.len()).max_by_key(|i| (local(&dims[*i]), std::cmp::Reverse(*i))));
            if let Some(at) = at {
                dims[at].axes.push(Axis::new("fsdp"));
            }
        }
        out.insert(value.name.clone(), dims.into_iter().map(|d| d.axes).collect());
    }
    out
}

/// Dimensions of a parameter in the state in which its first user wants it.
fn used_as(module: &Module, entry: &Function, v: autoshard_ir::ValueId) -> Option<Vec<Dim>> {
    for n in &entry.nodes {
        let Some(i) = n.inputs.iter().position(|x| *x == v) else { continue };
        let f = module.function(n.callee.as_deref()?)?;
        let p = f.params.get(i)?;
        return Some(crate::partition::first_use(f, p).ok()?.dims);
    }
    None
}

/// The module with a plan's strategies on its nodes and stored states on its entry's parameters.
pub fn apply(module: &Module, plan: &Plan) -> Result<Module, SearchError> {
    let mut out = module.clone();
    out.mesh = plan.mesh.clone();
    for (name, nodes) in &plan.strategies {
        let f = out.functions.iter_mut().find(|f| &f.name == name);
        let f = f.ok_or_else(|| SearchError::Plan(format!("no function @{name}")))?;
        for (value, strategy) in nodes {
            let v = f.find(value).ok_or_else(|| SearchError::Plan(format!("@{name} has no value %{value}")))?;
            let node = f.nodes.iter_mut().find(|n| n.results.first() == Some(&v));
            let node =
                node.ok_or_else(|| SearchError::Plan(format!("@{name}: %{value} is not the first result of a node")))?;
            node.strategy = strategy.clone();
        }
    }
    let entry_name = out.entry.clone();
    let Some(entry) = out.functions.iter_mut().find(|f| f.name == entry_name) else { return Ok(out) };
    for (name, dims) in &plan.stored {
        let v = entry.find(name).ok_or_else(|| SearchError::Plan(format!("no parameter %{name}")))?;
        let ty = &mut entry.values[v.0 as usize].ty;
        if ty.dims.len() != dims.len() {
            return Err(SearchError::Plan(format!(
                "%{name} has {} dimensions, the plan places {}",
                ty.dims.len(),
                dims.len()
            )));
        }
        for (d, axes) in ty.dims.iter_mut().zip(dims) {
            d.axes = axes.clone();
        }
    }
    Ok(out)
}

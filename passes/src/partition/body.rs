//! Localizes one function.

use super::states::{check, demanded, dual, parameters, rule_of, with_state};
use super::{is_entry, PartitionError};
use crate::reshard;
use autoshard_ir::core::{
    Attrs, Axis, Def, Function, Linearity, Module, Node, NodeId, OpDef, Partial, Rule, Semantics, Strategy, Type,
    ValueId,
};
use autoshard_ir::{ops, text, verify, Mesh, Monoid};
use std::collections::HashMap;

/// The local form of `f`; `done` holds the local functions before it.
pub fn localize(module: &Module, done: &Module, f: &Function) -> Result<Function, PartitionError> {
    let fail = |message| PartitionError::Illegal { function: f.name.clone(), node: "parameters".to_string(), message };
    let params = parameters(module, done, f).map_err(fail)?;
    let mut out = Function::new(f.name.clone());
    out.backward = f.backward.clone();
    let mut l = Localizer { module, done, global: f, out, cache: HashMap::new(), reduced: HashMap::new() };
    let mut env: HashMap<ValueId, ValueId> = HashMap::new();
    for (p, ty) in f.params.iter().zip(params) {
        let name = &f.value(p.value).name;
        env.insert(p.value, l.out.add_param(name, ty, p.trainable));
    }
    for node in &f.nodes {
        l.node(f, node, &mut env).map_err(|e| locate(e, f, node))?;
    }
    l.results(&env).map_err(fail)?;
    Ok(l.out)
}

/// Failure inside a node: a message, or an error that is complete already.
enum Fail {
    Message(String),
    Whole(PartitionError),
}

impl From<String> for Fail {
    fn from(m: String) -> Fail {
        Fail::Message(m)
    }
}

fn locate(e: Fail, f: &Function, node: &Node) -> PartitionError {
    match e {
        Fail::Whole(e) => e,
        Fail::Message(message) => {
            PartitionError::Illegal { function: f.name.clone(), node: describe(f, node), message }
        }
    }
}

fn describe(f: &Function, node: &Node) -> String {
    match f.nodes.iter().position(|n| n == node) {
        Some(i) => text::print_node(f, NodeId(i as u32)).trim().to_string(),
        None => node.op.name.to_string(),
    }
}

/// The operation of a node that partition adds.
fn operation(name: &str) -> Result<&'static OpDef, String> {
    ops::find(name).ok_or_else(|| format!("there is no operation {name}"))
}

struct Localizer<'a> {
    module: &'a Module,
    done: &'a Module,
    global: &'a Function,
    out: Function,
    /// Values already brought to a state: q, k and v share one gather.
    cache: HashMap<(ValueId, String), ValueId>,
    /// For a partial value, what it was first reduced to. Later uses start from that: the sum is
    /// formed once, so all its readers see the same bits, and a gather of it costs less than a second
    /// reduction.
    reduced: HashMap<ValueId, ValueId>,
}

impl Localizer<'_> {
    fn mesh(&self) -> &Mesh {
        &self.module.mesh
    }

    /// Emits the local form of a node of `f` (the function itself, or the body of a composite).
    fn node(&mut self, f: &Function, node: &Node, env: &mut HashMap<ValueId, ValueId>) -> Result<(), Fail> {
        if matches!(node.op.semantics, Semantics::Call) {
            return self.call(f, node, env);
        }
        let rule = rule_of(f, node)?;
        let inputs: Vec<ValueId> = node.inputs.iter().map(|v| env[v]).collect();
        if node.strategy == Strategy::Follow {
            let r = self.follow(f, node, &rule, &inputs)?;
            env.insert(node.results[0], r);
            return Ok(());
        }
        if check(&rule, node, self.mesh())? {
            return self.expand(f, node, env);
        }
        let mut local = Vec::new();
        for (i, v) in inputs.iter().enumerate() {
            let mut want = demanded(self.out.ty(*v), &rule.operands[i], &rule, &node.strategy);
            want.partial = self.travels(&rule, node, *v);
            local.push(self.bring(*v, &want, false)?);
        }
        let types: Vec<Type> = local.iter().map(|v| self.out.ty(*v).clone()).collect();
        let states = verify::infer_states(&rule, &node.strategy, &types.iter().collect::<Vec<_>>(), self.mesh())?;
        let results = self.emit(f, node, local, node.strategy.clone(), states);
        env.extend(node.results.iter().copied().zip(results));
        Ok(())
    }

    /// The partial sum that passes through the node unreduced: a linear node of one operand that does
    /// not grow it. Reducing after it moves as many bytes or fewer, and sums that meet later are
    /// reduced once.
    fn travels(&self, rule: &Rule, node: &Node, v: ValueId) -> Option<Partial> {
        let ty = self.out.ty(v);
        let grows = rule.result_types.iter().any(|r| r.elements() > ty.elements());
        let partial = ty.partial.as_ref().filter(|p| p.monoid == Monoid::Sum)?;
        let split = partial.axes.iter().any(|a| node.strategy.axes().iter().any(|(b, _)| a == b));
        let passes = rule.linear == Linearity::Joint && rule.operands.len() == 1 && !grows && !split;
        passes.then(|| partial.clone())
    }

    fn emit(
        &mut self,
        f: &Function,
        node: &Node,
        inputs: Vec<ValueId>,
        strategy: Strategy,
        states: Vec<Type>,
    ) -> Vec<ValueId> {
        let results = node
            .results
            .iter()
            .zip(states)
            .map(|(r, s)| (f.value(*r).name.clone(), with_state(f.ty(*r), &s)))
            .collect();
        let new = Node { inputs, results: Vec::new(), strategy, ..node.clone() };
        let id = self.out.add_node(new, results);
        self.out.node(id).results.clone()
    }

    /// A composite split along an inner factor: its body, node by node, each under the part of the
    /// strategy that names factors it has.
    fn expand(&mut self, f: &Function, node: &Node, env: &mut HashMap<ValueId, ValueId>) -> Result<(), Fail> {
        let Semantics::Composite(source) = node.op.semantics else {
            return Err(Fail::Message("an inner factor outside a composite".to_string()));
        };
        let types: Vec<&Type> = node.inputs.iter().map(|v| f.ty(*v)).collect();
        let mut body = ops::compose::body(source, &types, &node.attrs)?;
        let mut inner: HashMap<ValueId, ValueId> = HashMap::new();
        for (p, v) in body.params.iter().zip(&node.inputs) {
            inner.insert(p.value, self.renamed(env[v], body.ty(p.value))?);
        }
        for i in 0..body.nodes.len() {
            let rule = rule_of(&body, &body.nodes[i])?;
            let axes = node.strategy.axes().iter().filter(|(_, name)| rule.factor(name).is_some()).cloned().collect();
            body.nodes[i].strategy = Strategy::from_axes(axes);
            body.nodes[i].of = node.of.clone();
            let n = body.nodes[i].clone();
            self.node(&body, &n, &mut inner)?;
        }
        for (outer, r) in node.results.iter().zip(&body.results) {
            let named = self.renamed(inner[r], f.ty(*outer))?;
            env.insert(*outer, named);
        }
        Ok(())
    }

    /// The value with the dimension names that a composite's body gives it, which its strategies refer
    /// to.
    fn renamed(&mut self, v: ValueId, like: &Type) -> Result<ValueId, String> {
        let have = self.out.ty(v).clone();
        if have.dims.iter().zip(&like.dims).all(|(a, b)| a.name == b.name) {
            return Ok(v);
        }
        let op = operation("transpose")?;
        let names = have.dims.iter().map(|d| d.name.as_str()).collect::<Vec<_>>().join(" ");
        let axes = have.dims.iter().flat_map(|d| d.axes.iter().map(|a| (a.clone(), d.name.clone()))).collect();
        let strategy = Strategy::from_axes(axes);
        let node = Node {
            op,
            attrs: Attrs::new().text("spec", format!("{names} -> {names}")),
            callee: None,
            inputs: vec![v],
            results: Vec::new(),
            strategy,
            of: None,
        };
        let name = self.out.value(v).name.clone();
        let id = self.out.add_node(node, vec![(name, with_state(like, &have))]);
        Ok(self.out.node(id).results[0])
    }

    /// A sum that takes the state of its operands. Partial sums over different axes meet in the union
    /// of the axes: what is whole becomes partial by keeping it on the first rank, which is free.
    fn follow(&mut self, f: &Function, node: &Node, rule: &Rule, inputs: &[ValueId]) -> Result<ValueId, Fail> {
        if rule.linear != Linearity::Joint {
            return Err(Fail::Message(format!("{} is not a sum; only sums can follow their operands", node.op.name)));
        }
        let types: Vec<Type> = inputs.iter().map(|v| self.out.ty(*v).clone()).collect();
        let target = self.meeting_state(&types);
        let local = inputs.iter().map(|v| self.bring(*v, &target, false)).collect::<Result<Vec<ValueId>, String>>()?;
        let states = vec![with_state(f.ty(node.results[0]), &target)];
        Ok(self.emit(f, node, local, Strategy::Follow, states)[0])
    }

    fn meeting_state(&self, types: &[Type]) -> Type {
        let same_dims = types.iter().all(|t| t.dims.iter().zip(&types[0].dims).all(|(a, b)| a.axes == b.axes));
        if !same_dims {
            // Different placements: the one that is split most, nothing partial.
            let most = types.iter().max_by_key(|t| t.dims.iter().map(|d| d.axes.len()).sum::<usize>());
            return dual(most.unwrap_or(&types[0]));
        }
        let mut axes: Vec<Axis> = Vec::new();
        for a in types.iter().flat_map(|t| t.partial_axes()) {
            if !axes.contains(a) {
                axes.push(a.clone());
            }
        }
        self.mesh().sort(&mut axes);
        let monoid = types.iter().find_map(|t| t.partial.as_ref().map(|p| p.monoid));
        let partial = monoid.map(|monoid| Partial { monoid, axes });
        Type { partial, ..types[0].clone() }
    }

    fn call(&mut self, f: &Function, node: &Node, env: &mut HashMap<ValueId, ValueId>) -> Result<(), Fail> {
        let name = node.callee.clone().unwrap_or_default();
        let callee = self.done.function(&name).ok_or_else(|| {
            Fail::Whole(PartitionError::Callee { function: self.global.name.clone(), callee: name.clone() })
        })?;
        let mut args = Vec::new();
        for (v, p) in node.inputs.iter().zip(&callee.params) {
            let have = env[v];
            let want = with_state(self.out.ty(have), callee.ty(p.value));
            args.push(self.bring(have, &want, false)?);
        }
        let states: Vec<Type> = callee.results.iter().map(|r| callee.ty(*r).clone()).collect();
        let results = self.emit(f, node, args, Strategy::None, states);
        env.extend(node.results.iter().copied().zip(results));
        Ok(())
    }

    /// The value in the wanted state. Gathered parameters are not kept: they live for one use.
    fn bring(&mut self, v: ValueId, want: &Type, control: bool) -> Result<ValueId, String> {
        if self.out.ty(v).same_state(want) {
            return Ok(v);
        }
        let entry_param = self.global.name == self.module.entry
            && matches!(self.out.value(v).def, Def::Param(i) if self.out.params[i].trainable);
        let key = (v, state_key(want));
        if let Some(done) = self.cache.get(&key).filter(|_| !entry_param) {
            return Ok(*done);
        }
        let mut cur = match self.reduced.get(&v) {
            Some(r) if want.partial.is_none() => *r,
            _ => v,
        };
        for m in reshard::plan(self.out.ty(cur), want, self.mesh()) {
            cur = self.collective(cur, &m, control)?;
            if self.out.ty(v).partial.is_some() && self.out.ty(cur).partial.is_none() {
                self.reduced.entry(v).or_insert(cur);
            }
        }
        self.cache.insert(key, cur);
        Ok(cur)
    }

    fn collective(&mut self, v: ValueId, m: &reshard::Move, control: bool) -> Result<ValueId, String> {
        let op = operation(m.kind.name())?;
        let axes: Vec<&str> = m.axes.iter().map(Axis::name).collect();
        let mut attrs = Attrs::new().text("axes", axes.join("·"));
        if control {
            attrs = attrs.int("control", 1);
        }
        let base = self.out.value(v).name.clone();
        let node =
            Node { op, attrs, callee: None, inputs: vec![v], results: Vec::new(), strategy: Strategy::None, of: None };
        let ty = with_state(self.out.ty(v), &m.to);
        let id = self.out.add_node(node, vec![(format!("{base}.{}", suffix(m)), ty)]);
        Ok(self.out.node(id).results[0])
    }

    /// Results: the entry's are brought to the state that their type states; cotangents of
    /// activations to the state of their primal; saved values are reduced; the rest leave as they are.
    fn results(&mut self, env: &HashMap<ValueId, ValueId>) -> Result<(), String> {
        let f = self.global;
        for (i, r) in f.results.iter().enumerate() {
            let v = env[r];
            let want = self.result_state(i, v)?;
            // A scalar result of the entry is the loss: control traffic, not the model's.
            let control = is_entry(self.module, f) && f.ty(*r).dims.is_empty();
            let v = self.bring(v, &want, control)?;
            self.out.results.push(v);
        }
        Ok(())
    }

    fn result_state(&self, i: usize, v: ValueId) -> Result<Type, String> {
        let (f, have) = (self.global, self.out.ty(v));
        if is_entry(self.module, f) {
            return Ok(with_state(have, f.ty(f.results[i])));
        }
        let Some(b) = &f.backward else {
            let saved = self.module.functions.iter().any(|g| {
                g.backward
                    .as_ref()
                    .is_some_and(|b| b.of == f.name && b.params.contains(&autoshard_ir::core::ParamOf::Result(i)))
            });
            let kept = self.reduced.get(&v).map(|r| self.out.ty(*r));
            return Ok(match kept {
                Some(kept) if saved => kept.clone(),
                None if saved => dual(have),
                _ => have.clone(),
            });
        };
        let forward = self.done.function(&b.of).ok_or_else(|| format!("@{} must stand before its backward", b.of))?;
        let p = forward.params[b.results[i]];
        Ok(if p.trainable { have.clone() } else { with_state(have, &dual(forward.ty(p.value))) })
    }
}

fn state_key(ty: &Type) -> String {
    let dims: Vec<String> =
        ty.dims.iter().map(|d| d.axes.iter().map(Axis::name).collect::<Vec<_>>().join("·")).collect();
    let partial: Vec<&str> = ty.partial_axes().iter().map(Axis::name).collect();
    format!("{}|{}", dims.join(","), partial.join("·"))
}

fn suffix(m: &reshard::Move) -> &'static str {
    use autoshard_ir::program::CollectiveKind::*;
    match m.kind {
        AllReduce => "ar",
        AllGather => "ag",
        ReduceScatter => "rs",
        AllToAll => "a2a",
        Local => "cut",
    }
}

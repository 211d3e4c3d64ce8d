//! The training step: forward calls, backward calls, updates.

use super::{function, AdamW, AutodiffError, Pair};
use autoshard_ir::core::{Attrs, Builder, Function, Module, ParamOf, Strategy, Type, ValueId};
use autoshard_ir::{Axis, DType};
use std::collections::{BTreeMap, BTreeSet, HashMap};

pub(super) fn build(module: &Module, optimizer: &AdamW) -> Result<Module, AutodiffError> {
    let entry = module.entry_function().ok_or(AutodiffError::NoEntry)?;
    let loss = *entry.results.first().ok_or(AutodiffError::NoEntry)?;
    if !entry.ty(loss).dims.is_empty() || !entry.ty(loss).dtype.is_float() {
        return Err(AutodiffError::Loss { name: entry.value(loss).name.clone(), ty: entry.ty(loss).to_string() });
    }
    if let Some(n) = entry.nodes.iter().find(|n| n.callee.is_none()) {
        let name = n.results.first().map_or("", |r| &entry.value(*r).name);
        return Err(AutodiffError::NotOutlined(name.to_string()));
    }
    let pairs = pairs(module, entry)?;
    let mut out = Module { mesh: module.mesh.clone(), functions: Vec::new(), entry: "step".to_string() };
    for f in module.functions.iter().filter(|f| f.name != entry.name) {
        if let Some(p) = pairs.get(f.name.as_str()) {
            out.functions.push(p.forward.clone());
            if !p.backward.results.is_empty() {
                out.functions.push(p.backward.clone());
            }
        }
    }
    let step = Step { entry, pairs: &pairs, func: Function::new("step"), env: HashMap::new(), optimizer };
    out.functions.push(step.run(loss)?);
    Ok(out)
}

/// Differentiates every called function once, for the union of what its calls need.
fn pairs<'m>(module: &'m Module, entry: &Function) -> Result<BTreeMap<&'m str, Pair>, AutodiffError> {
    let mut active: BTreeSet<ValueId> = entry.params.iter().filter(|p| p.trainable).map(|p| p.value).collect();
    let mut wanted: BTreeMap<&str, BTreeSet<usize>> = BTreeMap::new();
    for n in &entry.nodes {
        let name = n.callee.as_deref().unwrap_or_default();
        let args: Vec<usize> = (0..n.inputs.len()).filter(|i| active.contains(&n.inputs[*i])).collect();
        if !args.is_empty() {
            active.extend(n.results.iter().filter(|r| entry.ty(**r).dtype.is_float()));
        }
        wanted.entry(name).or_default().extend(args);
    }
    let loss = entry.results[0];
    let mut useful: BTreeSet<ValueId> = BTreeSet::from([loss]);
    let mut given: BTreeMap<&str, BTreeSet<usize>> = BTreeMap::new();
    for n in entry.nodes.iter().rev() {
        let name = n.callee.as_deref().unwrap_or_default();
        let hit: Vec<usize> = (0..n.results.len())
            .filter(|i| useful.contains(&n.results[*i]) && active.contains(&n.results[*i]))
            .collect();
        if !hit.is_empty() {
            useful.extend(wanted[name].iter().filter_map(|i| n.inputs.get(*i)).filter(|v| active.contains(v)));
        }
        given.entry(name).or_default().extend(hit);
    }
    let mut pairs = BTreeMap::new();
    for (name, wanted) in wanted {
        let f = module.function(name).ok_or_else(|| AutodiffError::UnknownFunction(name.to_string()))?;
        let given: Vec<usize> = given.get(name).into_iter().flatten().copied().collect();
        let wanted: Vec<usize> = if given.is_empty() { Vec::new() } else { wanted.into_iter().collect() };
        pairs.insert(f.name.as_str(), function::differentiate(f, &wanted, &given)?);
    }
    Ok(pairs)
}

/// The step under construction.
struct Step<'a> {
    entry: &'a Function,
    pairs: &'a BTreeMap<&'a str, Pair>,
    func: Function,
    env: HashMap<ValueId, ValueId>,
    optimizer: &'a AdamW,
}

impl Step<'_> {
    fn run(mut self, loss: ValueId) -> Result<Function, AutodiffError> {
        for p in &self.entry.params {
            let v = self.entry.value(p.value);
            let new = self.func.add_param(&v.name, v.ty.clone(), p.trainable);
            self.env.insert(p.value, new);
        }
        let t = self.func.add_param("t", Type::new(DType::F64, &[]), false);
        let moments = self.moments();
        let calls = self.forward();
        let cots = self.backward(loss, &calls)?;
        self.func.results = vec![self.env[&loss]];
        let trained: Vec<ValueId> = self.entry.params.iter().filter(|p| p.trainable).map(|p| p.value).collect();
        for (p, (m, v)) in trained.into_iter().zip(moments) {
            let g = self.gradient(p, cots.get(&p).map(Vec::as_slice).unwrap_or_default())?;
            self.update(self.env[&p], g, m, v, t)?;
        }
        Ok(self.func)
    }

    /// Parameters for the moments of each trainable parameter, stored like it.
    fn moments(&mut self) -> Vec<(ValueId, ValueId)> {
        let trained = self.entry.params.iter().filter(|p| p.trainable);
        trained
            .map(|p| {
                let v = self.entry.value(p.value);
                let m = self.func.add_param(&format!("m.{}", v.name), v.ty.clone(), false);
                let s = self.func.add_param(&format!("v.{}", v.name), v.ty.clone(), false);
                (m, s)
            })
            .collect()
    }

    /// Forward calls; returns each call's results, saved values included.
    fn forward(&mut self) -> Vec<Vec<ValueId>> {
        let mut calls = Vec::new();
        for n in &self.entry.nodes {
            let pair = &self.pairs[n.callee.as_deref().unwrap_or_default()];
            let args: Vec<ValueId> = n.inputs.iter().map(|v| self.env[v]).collect();
            let names: Vec<String> = (0..pair.forward.results.len())
                .map(|i| match n.results.get(i) {
                    Some(r) => self.entry.value(*r).name.clone(),
                    None => format!("saved.{}", pair.forward.value(pair.forward.results[i]).name),
                })
                .collect();
            let results = Builder::new(&mut self.func).call(&pair.forward, &args, &names);
            self.env.extend(n.results.iter().copied().zip(results.iter().copied()));
            calls.push(results);
        }
        calls
    }

    /// Backward calls in reverse order; returns the cotangents of the entry's parameters.
    fn backward(
        &mut self,
        loss: ValueId,
        calls: &[Vec<ValueId>],
    ) -> Result<HashMap<ValueId, Vec<ValueId>>, AutodiffError> {
        let mut cots: HashMap<ValueId, Vec<ValueId>> = HashMap::new();
        let seed = Builder::new(&mut self.func).constant(1.0, self.entry.ty(loss).dtype)?;
        cots.insert(loss, vec![seed]);
        for (n, results) in self.entry.nodes.iter().zip(calls).rev() {
            let pair = &self.pairs[n.callee.as_deref().unwrap_or_default()];
            let Some(backward) = &pair.backward.backward else { continue };
            if pair.backward.results.is_empty() || !n.results.iter().any(|r| cots.contains_key(r)) {
                continue;
            }
            let mut args = Vec::new();
            for p in &backward.params {
                args.push(match p {
                    ParamOf::Param(i) => self.env[&n.inputs[*i]],
                    ParamOf::Result(i) => results[*i],
                    ParamOf::Cotangent(i) => {
                        let parts = cots.get(&n.results[*i]).cloned().unwrap_or_default();
                        self.gradient(n.results[*i], &parts)?
                    }
                });
            }
            let names: Vec<String> =
                backward.results.iter().map(|i| format!("d.{}", self.entry.value(n.inputs[*i]).name)).collect();
            let out = Builder::new(&mut self.func).call(&pair.backward, &args, &names);
            for (i, d) in backward.results.iter().zip(out) {
                cots.entry(n.inputs[*i]).or_default().push(d);
            }
        }
        Ok(cots)
    }

    /// The sum of a value's cotangents (zeros if there are none).
    fn gradient(&mut self, of: ValueId, parts: &[ValueId]) -> Result<ValueId, AutodiffError> {
        let ty = self.entry.ty(of).global();
        let name = format!("d.{}", self.entry.value(of).name);
        let Some((first, rest)) = parts.split_first() else {
            return Ok(function::zeros(&mut self.func, &name, &ty)?);
        };
        let mut b = Builder { func: &mut self.func, strategy: Strategy::Follow, of: None };
        let mut sum = *first;
        for p in rest {
            sum = b.op(&name, "add", &[sum, *p], Attrs::new())?;
        }
        Ok(sum)
    }

    /// AdamW in the state in which the parameter is stored.
    fn update(&mut self, p: ValueId, g: ValueId, m: ValueId, v: ValueId, t: ValueId) -> Result<(), AutodiffError> {
        let ty = self.func.ty(p).clone();
        let axes: Vec<(Axis, String)> =
            ty.dims.iter().flat_map(|d| d.axes.iter().map(|a| (a.clone(), d.name.clone()))).collect();
        let name = self.func.value(p).name.clone();
        let names = [format!("{name}.new"), format!("m.{name}.new"), format!("v.{name}.new")];
        let o = self.optimizer;
        let attrs = Attrs::new()
            .float("lr", o.lr)
            .float("beta1", o.beta1)
            .float("beta2", o.beta2)
            .float("eps", o.eps)
            .float("weight_decay", o.weight_decay);
        let mut b = Builder { func: &mut self.func, strategy: Strategy::from_axes(axes), of: None };
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let results = b.ops(&names, "adamw", &[p, g, m, v, t], attrs)?;
        for r in results.iter().chain([&g]) {
            self.func.values[r.0 as usize].ty = ty.clone();
        }
        self.func.results.extend(results);
        self.func.results.push(g);
        Ok(())
    }
}

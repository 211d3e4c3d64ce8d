//! A module with fewer calls of what it repeats, for pricing.

use autoshard_ir::core::{Function, Module, ValueId};
use std::collections::{BTreeMap, HashMap};

/// How often the entry calls each function.
pub fn calls(module: &Module) -> BTreeMap<&str, usize> {
    let mut out = BTreeMap::new();
    for n in module.entry_function().into_iter().flat_map(|e| &e.nodes) {
        *out.entry(n.callee.as_deref().unwrap_or_default()).or_default() += 1;
    }
    out
}

/// The module with at most `keep(f)` calls of each function. A call can be left out if its results
/// have the types of different arguments, which then stand for them; parameters that nothing reads any
/// more go too.
pub fn sample(module: &Module, keep: &dyn Fn(&str) -> usize) -> Module {
    let Some(entry) = module.entry_function() else { return module.clone() };
    let mut body = Function::new(entry.name.clone());
    let mut env: HashMap<ValueId, ValueId> = HashMap::new();
    body.copy_params(entry, &mut env);
    let mut seen: BTreeMap<&str, usize> = BTreeMap::new();
    for n in &entry.nodes {
        let count = seen.entry(n.callee.as_deref().unwrap_or_default()).or_default();
        *count += 1;
        match stand_ins(entry, &n.inputs, &n.results) {
            Some(same) if *count > keep(n.callee.as_deref().unwrap_or_default()) => {
                env.extend(n.results.iter().zip(same).map(|(r, v)| (*r, env[&v])).collect::<Vec<_>>());
            }
            _ => {
                body.copy_node(entry, n, &mut env);
            }
        }
    }
    body.results = entry.results.iter().map(|r| env[r]).collect();
    let mut out = module.clone();
    out.functions.retain(|f| f.name != module.entry);
    out.functions.push(without_unread(&body));
    out
}

/// For each result, an argument of its type that is no parameter of the entry.
fn stand_ins(entry: &Function, inputs: &[ValueId], results: &[ValueId]) -> Option<Vec<ValueId>> {
    let mut out: Vec<ValueId> = Vec::new();
    for r in results {
        let fits = |v: &&ValueId| {
            entry.ty(**v).same_shape(entry.ty(*r))
                && !out.contains(v)
                && entry.params.iter().all(|p| p.value != **v || !p.trainable)
        };
        let v = *inputs.iter().find(fits)?;
        out.push(v);
    }
    Some(out)
}

fn without_unread(f: &Function) -> Function {
    let read = |v: ValueId| f.results.contains(&v) || f.nodes.iter().any(|n| n.inputs.contains(&v));
    let mut out = Function::new(f.name.clone());
    let mut env: HashMap<ValueId, ValueId> = HashMap::new();
    for p in f.params.iter().filter(|p| !p.trainable || read(p.value)) {
        let v = f.value(p.value);
        env.insert(p.value, out.add_param(&v.name, v.ty.clone(), p.trainable));
    }
    for n in &f.nodes {
        out.copy_node(f, n, &mut env);
    }
    out.results = f.results.iter().map(|r| env[r]).collect();
    out
}

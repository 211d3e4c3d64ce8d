//! Outlining: the entry becomes straight-line calls. Every maximal run of other nodes in it turns
//! into a function of its own, since the call is the unit of gathering, of saving values and of
//! repetition.

use autoshard_ir::core::{Def, Function, Module, Node, Param, ValueId};
use autoshard_ir::ops;
use std::collections::HashMap;

/// The module with an entry that holds calls only.
pub fn outline(module: &Module) -> Module {
    let Some(entry) = module.entry_function() else { return module.clone() };
    if entry.nodes.iter().all(|n| n.callee.is_some()) {
        return module.clone();
    }
    let mut out = Module { mesh: module.mesh.clone(), functions: Vec::new(), entry: module.entry.clone() };
    out.functions.extend(module.functions.iter().filter(|f| f.name != module.entry).cloned());
    let mut new = Function::new(entry.name.clone());
    let mut env: HashMap<ValueId, ValueId> = HashMap::new();
    new.copy_params(entry, &mut env);
    let mut at = 0;
    while at < entry.nodes.len() {
        let run = entry.nodes[at..].iter().take_while(|n| n.callee.is_none()).count();
        if run == 0 {
            new.copy_node(entry, &entry.nodes[at], &mut env);
            at += 1;
            continue;
        }
        let name = (0..).map(|i| format!("{}.{i}", entry.name)).find(|n| out.function(n).is_none()).unwrap_or_default();
        let (body, inputs, outputs) = extract(entry, at, at + run, &name);
        let call = Node {
            op: &ops::CALL,
            attrs: Default::default(),
            callee: Some(name),
            inputs: inputs.iter().map(|v| env[v]).collect(),
            results: Vec::new(),
            strategy: Default::default(),
            of: None,
        };
        let results = outputs.iter().map(|v| (entry.value(*v).name.clone(), entry.ty(*v).clone())).collect();
        let id = new.add_node(call, results);
        let results = new.node(id).results.clone();
        env.extend(outputs.into_iter().zip(results));
        out.functions.push(body);
        at += run;
    }
    new.results = entry.results.iter().map(|r| env[r]).collect();
    out.functions.push(new);
    out
}

/// Nodes `from..to` as a function, with the outer values it reads and those of its that are read
/// outside.
fn extract(entry: &Function, from: usize, to: usize, name: &str) -> (Function, Vec<ValueId>, Vec<ValueId>) {
    let inside = |v: &ValueId| matches!(entry.value(*v).def, Def::Result(n, _) if (from..to).contains(&(n.0 as usize)));
    let mut inputs: Vec<ValueId> = Vec::new();
    for v in entry.nodes[from..to].iter().flat_map(|n| &n.inputs) {
        if !inside(v) && !inputs.contains(v) {
            inputs.push(*v);
        }
    }
    let read_later = |v: &ValueId| entry.nodes[to..].iter().any(|n| n.inputs.contains(v)) || entry.results.contains(v);
    let outputs: Vec<ValueId> =
        entry.nodes[from..to].iter().flat_map(|n| &n.results).filter(|v| read_later(v)).copied().collect();
    let mut body = Function::new(name);
    let mut env: HashMap<ValueId, ValueId> = HashMap::new();
    for v in &inputs {
        let trainable = entry.params.iter().any(|p: &Param| p.value == *v && p.trainable);
        let value = entry.value(*v);
        env.insert(*v, body.add_param(&value.name, value.ty.global(), trainable));
    }
    for old in &entry.nodes[from..to] {
        body.copy_node(entry, old, &mut env);
    }
    body.results = outputs.iter().map(|v| env[v]).collect();
    (body, inputs, outputs)
}

#[cfg(test)]
mod tests {
    use super::*;
    use autoshard_ir::{text, verify};

    #[test]
    fn runs_of_nodes_become_functions_between_the_calls() {
        let source = "func @main.0(%x: f32[n=2]) -> (f32[n]) {
  %y = exp %x : f32[n]
  return %y
}
func @main(%x: f32[n=2], param %w: f32[n]) -> (f32[], f32[n]) {
  %a = mul %x, %w : f32[n]
  %b = exp %a : f32[n]
  %c = call @main.0(%b) : f32[n]
  %d = add %c, %a : f32[n]
  %s = reduce_sum %d {spec=\"n ->\"} : f32[]
  return %s, %a
}
entry @main
";
        let m = outline(&text::parse(source, "outline").unwrap());
        verify::verify(&m).unwrap();
        let entry = m.entry_function().unwrap();
        let calls: Vec<&str> = entry.nodes.iter().filter_map(|n| n.callee.as_deref()).collect();
        // A name that is taken is not taken again.
        assert_eq!(calls, ["main.1", "main.0", "main.2"]);
        let first = m.function("main.1").unwrap();
        assert_eq!(first.params.iter().map(|p| p.trainable).collect::<Vec<_>>(), [false, true]);
        // What is read later or returned leaves the function: %a and %b.
        assert_eq!(first.results.len(), 2);
        assert_eq!(outline(&m), m);
    }
}

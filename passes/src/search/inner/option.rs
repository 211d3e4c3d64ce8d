//! From the values of variables to what a reader wants: strategies, states, bytes, messages.

use super::block::{at, Choice, Kind};
use super::problem::Problem;
use super::remat::{Fate, Kept};
use super::states::{Place, State, WHOLE};
use super::table::{Role, Take};
use super::MeshAxis;
use autoshard_ir::core::{Axis, Function, Node, Strategy, Type};
use autoshard_ir::ops;
use std::collections::BTreeMap;

/// One way to run a call.
#[derive(Clone, Debug, PartialEq)]
pub struct BlockOption {
    /// Strategies by the name of the node's first result.
    pub strategies: BTreeMap<String, Strategy>,
    /// Where parameters and inputs are between calls: axes by dimension.
    pub stored: BTreeMap<String, Vec<Vec<Axis>>>,
    /// Seconds of one micro-batch, forward and backward, nothing overlapped but what the rates say.
    pub seconds: f64,
    /// Bytes of parameters, gradients and optimizer on one rank.
    pub state_bytes: f64,
    /// Bytes kept from the forward to the backward of one micro-batch, the input included.
    pub held_bytes: f64,
    /// Bytes only while the call runs: gathered copies of parameters, gradients before their reduction, and what is
    /// computed or gathered again.
    pub transient_bytes: f64,
    /// Nodes that are computed again, by their first result.
    pub recompute: Vec<String>,
    /// Values that are kept as they are made, and whose change of state runs again.
    pub regather: Vec<String>,
    /// Changes of state that move bytes, in order: forward, then the transposed ones.
    pub messages: Vec<Message>,
}

/// A change of state that moves bytes.
#[derive(Clone, Debug, PartialEq)]
pub struct Message {
    /// The value, or the parameter.
    pub value: String,
    /// The node that reads it there; empty between its maker and its state of use.
    pub reader: String,
    /// Whether it is the cotangent that moves.
    pub cotangent: bool,
    /// Whether it is a parameter.
    pub weight: bool,
    /// From.
    pub from: State,
    /// To.
    pub to: State,
    /// Seconds.
    pub seconds: f64,
}

/// Costs of an assignment with everything kept as it is used.
pub(super) struct Base {
    pub seconds: f64,
    /// Bytes of state.
    pub state: f64,
    /// Bytes of state and of the inputs of all micro-batches in flight.
    pub bytes: f64,
    /// Gathered copies of parameters, and gradients before their reduction.
    pub gathered: f64,
}

/// An option before it is written out.
pub(super) struct Draft {
    values: Vec<usize>,
    seconds: f64,
    pub bytes: f64,
    pub transient: f64,
    state: f64,
    kept: Kept,
}

pub(super) fn base(p: &Problem, values: &[usize]) -> Base {
    let mut base = Base { seconds: 0.0, state: 0.0, bytes: 0.0, gathered: gathered(p, values) };
    for t in &p.terms {
        let c = t.columns[0][super::eliminate::index(&t.vars, values, &p.domains)];
        base.seconds += c.seconds;
        if let [v] = t.vars[..] {
            base.bytes += c.bytes;
            base.state += if p.stored_vars.contains(&Some(v)) { c.bytes } else { 0.0 };
        }
    }
    base
}

/// Bytes of parameters as they are used and not stored, and of gradients that are not yet reduced.
fn gathered(p: &Problem, values: &[usize]) -> f64 {
    let (f, mesh) = (p.block.f, p.block.mesh);
    let mut total = 0.0;
    for (i, k, param, choice) in weights(p, values) {
        let (want, cotangent) = choice.operands[k];
        let Some(stored) = p.stored_vars[param].map(|v| &p.stored[param][values[v.at()]]) else { continue };
        if *stored != want {
            total += p.block.shapes[at(f.nodes[i].inputs[k])].bytes(&want, mesh);
        }
        if *stored != cotangent {
            let element = f.ty(f.params[param].value).dtype.bytes() as f64;
            let bytes = p.block.shapes[at(f.params[param].value)].bytes(&cotangent, mesh);
            total += bytes / element * p.rates.gradient_bytes;
        }
    }
    total
}

/// Uses of parameters: node, operand, parameter, the node's strategy.
fn weights<'p>(p: &'p Problem, values: &'p [usize]) -> impl Iterator<Item = (usize, usize, usize, &'p Choice)> {
    let f = p.block.f;
    (0..f.nodes.len()).filter_map(|i| choice(p, values, i).map(|c| (i, c))).flat_map(move |(i, c)| {
        f.nodes[i].inputs.iter().enumerate().filter_map(move |(k, v)| match p.block.kinds[at(*v)] {
            Kind::Param(param) => Some((i, k, param, c)),
            Kind::Stream | Kind::Constant => None,
        })
    })
}

fn choice<'p>(p: &'p Problem, values: &[usize], i: usize) -> Option<&'p Choice> {
    Some(&p.block.operators[i].as_ref()?.choices[values[p.node_vars[i]?.at()]])
}

pub(super) fn draft(p: &mut Problem, values: &[usize], base: &Base, kept: Kept) -> Draft {
    let mut again = 0.0;
    for (i, n) in p.block.f.nodes.iter().enumerate() {
        if !matches!(kept.fates[i], Some(Fate::Again | Fate::Made)) {
            continue;
        }
        for r in &n.results {
            let used = p.use_vars[at(*r)].map_or(WHOLE, |v| p.uses[at(*r)][values[v.at()]].forward);
            again += p.block.shapes[at(*r)].bytes(&used, p.block.mesh);
        }
    }
    Draft {
        values: values.to_vec(),
        seconds: base.seconds + kept.cost.seconds,
        bytes: base.bytes + kept.cost.bytes,
        transient: base.gathered + again,
        state: base.state,
        kept,
    }
}

/// Those that no other beats in seconds, bytes and transient bytes, fastest first; of equals the first.
pub(super) fn undominated(mut drafts: Vec<Draft>) -> Vec<Draft> {
    drafts.sort_by(|a, b| {
        a.seconds.total_cmp(&b.seconds).then(a.bytes.total_cmp(&b.bytes)).then(a.transient.total_cmp(&b.transient))
    });
    let mut out: Vec<Draft> = Vec::new();
    for d in drafts {
        if !out.iter().any(|o| o.bytes <= d.bytes && o.transient <= d.transient) {
            out.push(d);
        }
    }
    out
}

pub(super) fn finish(p: &mut Problem, d: Draft) -> BlockOption {
    let f = p.block.f;
    let named = |fate: Fate| {
        let with = |i: &usize| d.kept.fates[*i] == Some(fate);
        let name = |i: usize| f.nodes[i].results.first().map(|r| f.value(*r).name.clone());
        (0..f.nodes.len()).filter(with).filter_map(name).collect()
    };
    BlockOption {
        strategies: strategies(p, &d.values),
        stored: stored(p, &d.values),
        seconds: d.seconds,
        state_bytes: d.state,
        held_bytes: (d.bytes - d.state) / p.limits.in_flight,
        transient_bytes: d.transient,
        recompute: named(Fate::Again),
        regather: named(Fate::Made),
        messages: messages(p, &d.values),
    }
}

fn strategies(p: &Problem, values: &[usize]) -> BTreeMap<String, Strategy> {
    let mut out = BTreeMap::new();
    for (i, n) in p.block.f.nodes.iter().enumerate() {
        let Some(r) = n.results.first() else { continue };
        let strategy = match choice(p, values, i) {
            Some(c) if c.follows => Strategy::Follow,
            Some(c) => Strategy::from_axes(factors(p, i, c)),
            None => copies(p, values, n),
        };
        out.insert(p.block.f.value(*r).name.clone(), strategy);
    }
    out
}

fn factors(p: &Problem, i: usize, c: &Choice) -> Vec<(Axis, String)> {
    let Some(o) = &p.block.operators[i] else { return Vec::new() };
    let factor = |(a, t): (&MeshAxis, &Take)| match t {
        Take::Factor(f) => Some((a.name.clone(), o.rule.factors[*f].name.clone())),
        Take::None | Take::Follow => None,
    };
    p.block.mesh.iter().zip(&c.takes).filter_map(factor).collect()
}

/// A copy of a parameter is split as its first reader wants it.
fn copies(p: &Problem, values: &[usize], n: &Node) -> Strategy {
    let f = p.block.f;
    let (Some(r), types) = (n.results.first(), n.inputs.iter().map(|v| f.ty(*v)).collect::<Vec<&Type>>()) else {
        return Strategy::None;
    };
    let Kind::Param(param) = p.block.kinds[at(*r)] else { return Strategy::None };
    let Some((_, k, _, c)) = weights(p, values).find(|(_, _, w, _)| *w == param) else { return Strategy::None };
    let Ok(rule) = ops::rule(n.op, &types, &n.attrs) else { return Strategy::None };
    let factor = |(a, place): (&MeshAxis, &Place)| match place {
        Place::Split(d) => {
            let f = *rule.operands[0][*d as usize].factors.first()?;
            Some((a.name.clone(), rule.factors[f].name.clone()))
        }
        Place::Whole | Place::Partial => None,
    };
    Strategy::from_axes(p.block.mesh.iter().zip(&c.operands[k].0).filter_map(factor).collect())
}

fn stored(p: &Problem, values: &[usize]) -> BTreeMap<String, Vec<Vec<Axis>>> {
    let f = p.block.f;
    let mut out = BTreeMap::new();
    for (i, param) in f.params.iter().enumerate() {
        let v = at(param.value);
        let state = match (p.stored_vars[i], p.use_vars[v]) {
            (Some(var), _) => p.stored[i][values[var.at()]],
            (None, Some(var)) => p.uses[v][values[var.at()]].forward,
            (None, None) => continue,
        };
        let dims = (0..f.ty(param.value).dims.len()).map(|d| axes_of(&state, d, p.block.mesh)).collect();
        out.insert(f.value(param.value).name.clone(), dims);
    }
    out
}

/// Axes that split a dimension, fsdp minor: gathering it then leaves contiguous shards of the others.
fn axes_of(state: &State, d: usize, mesh: &[MeshAxis]) -> Vec<Axis> {
    let mut axes: Vec<&MeshAxis> =
        mesh.iter().zip(state).filter(|(_, p)| **p == Place::Split(d as u8)).map(|(a, _)| a).collect();
    axes.sort_by_key(|a| a.role == Role::Fsdp);
    axes.iter().map(|a| a.name.clone()).collect()
}

fn messages(p: &mut Problem, values: &[usize]) -> Vec<Message> {
    let f = p.block.f;
    let (mut forward, mut back) = (Vec::new(), Vec::new());
    for i in 0..f.nodes.len() {
        let Some(var) = p.node_vars[i] else { continue };
        let (c, name) = (values[var.at()], |v: usize| f.values[v].name.clone());
        let reader = f.nodes[i].results.first().map(|r| name(at(*r))).unwrap_or_default();
        let states = |p: &Problem, i: usize| choice(p, values, i).cloned();
        let Some(own) = states(p, i) else { continue };
        let mut add = |v: usize, reader: &str, weight: bool, change: [(State, State, f64); 2]| {
            for (cotangent, (from, to, seconds)) in [false, true].into_iter().zip(change) {
                let m = Message { value: name(v), reader: reader.into(), cotangent, weight, from, to, seconds };
                if seconds > 0.0 {
                    if cotangent {
                        back.push(m)
                    } else {
                        forward.push(m)
                    }
                }
            }
        };
        for (k, v) in f.nodes[i].inputs.iter().enumerate() {
            let (want, cotangent) = own.operands[k];
            if let (Kind::Stream, Some(u)) = (p.block.kinds[at(*v)], p.use_vars[at(*v)]) {
                let u = values[u.at()];
                let at_use = p.uses[at(*v)][u];
                let (there, both) = p.read_change(i, k, c, u);
                let again = p.block.operators[i].as_ref().is_some_and(|o| o.repeats(k));
                let home = both - if again { there } else { 0.0 };
                add(at(*v), &reader, false, [(at_use.forward, want, there), (cotangent, at_use.cotangent, home)]);
            }
            if let Kind::Param(w) = p.block.kinds[at(*v)] {
                let Some(s) = p.stored_vars[w].map(|s| values[s.at()]) else { continue };
                let [gather, reduce] = p.weight_change(i, k, w, c, s);
                let state = p.stored[w][s];
                add(at(f.params[w].value), &reader, true, [(state, want, gather), (cotangent, state, reduce)]);
            }
        }
        for (k, r) in f.nodes[i].results.iter().enumerate() {
            let Some(u) = p.use_vars[at(*r)].map(|u| values[u.at()]) else { continue };
            let (made, need) = own.results[k];
            let at_use = p.uses[at(*r)][u];
            let (there, home) = p.make_change(i, k, c, u);
            add(at(*r), "", false, [(made, at_use.forward, there), (at_use.cotangent, need, home)]);
        }
    }
    back.reverse();
    forward.extend(back);
    forward
}

/// The function with an option's strategies on its nodes and stored states on its parameters.
pub fn annotate(f: &Function, option: &BlockOption) -> Function {
    let mut out = f.clone();
    for n in &mut out.nodes {
        let name = n.results.first().map(|r| f.value(*r).name.as_str()).unwrap_or_default();
        if let Some(s) = option.strategies.get(name) {
            n.strategy = s.clone();
        }
    }
    for p in &f.params {
        let Some(dims) = option.stored.get(&f.value(p.value).name) else { continue };
        for (d, axes) in out.values[at(p.value)].ty.dims.iter_mut().zip(dims) {
            d.axes = axes.clone();
        }
    }
    out
}

//! What happens to one value, or to the nodes of one operation.

use super::{ExplainError, Subject};
use crate::predict::predictor::{Predictor, Told, ToldMessage, When};
use crate::words::suggestion;
use autoshard_cost::collectives::Kind;
use autoshard_ir::core::{Def, Function, NodeId, ValueId};
use autoshard_ir::text;
use autoshard_passes::profile::{Axis, Behind, Carried, Holding, Left};

/// A node or a parameter and what the plan does with it.
#[derive(Clone, Debug, PartialEq)]
pub struct Site {
    /// Its function.
    pub function: String,
    /// Calls of the function in the model.
    pub calls: usize,
    /// Its text: a node, or a parameter with its type.
    pub text: String,
    /// Whether it is a parameter that is trained.
    pub trained: bool,
    /// Factors of the node, each with what carries it, or why nothing does.
    pub factors: Vec<(String, String)>,
    /// Values and how ranks hold them: the node's results, or the parameter.
    pub states: Vec<(String, String)>,
    /// Messages of one call and micro-batch with their cause.
    pub messages: Vec<(ToldMessage, &'static str)>,
}

/// Every place where a model's functions have a value or an operation of this name, as `inspect` prints them.
///
/// # Errors
/// A name that is nowhere, with the nearest; sizes that no module has.
pub fn sites(subject: &Subject, name: &str, predictor: &Predictor) -> Result<Vec<Site>, ExplainError> {
    let name = name.strip_prefix('%').unwrap_or(name);
    let wanted = |f: &Function, value: &str| places(f, name).iter().any(|p| moved_at(f, *p).contains(&value));
    let job = subject.job(&subject.plan.layout, subject.stated.as_deref());
    let told = predictor.explain(&job, &wanted)?;
    let one = |t: &Told| places(&t.function, name).into_iter().map(|p| site(t, p)).collect::<Vec<_>>();
    let sites: Vec<Site> = told.iter().flat_map(one).collect();
    if !sites.is_empty() {
        return Ok(sites);
    }
    let known = |t: &Told| {
        let values = t.function.values.iter().map(|v| v.name.clone());
        values.chain(t.function.nodes.iter().map(|n| n.op.name.to_string())).collect::<Vec<_>>()
    };
    let known: Vec<String> = told.iter().flat_map(known).collect();
    let functions: Vec<String> = told.iter().map(|t| format!("@{}", t.function.name)).collect();
    Err(ExplainError::Unknown {
        name: name.chars().take(60).collect(),
        near: suggestion(name, known.iter().map(String::as_str)),
        functions: functions.join(", "),
    })
}

/// A node, or a parameter.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Node(NodeId),
    Parameter(ValueId),
}

/// Where a function has a name: the value of that name, or else the nodes of the operation.
fn places(f: &Function, name: &str) -> Vec<Place> {
    match f.find(name) {
        Some(v) => match f.value(v).def {
            Def::Result(n, _) => vec![Place::Node(n)],
            Def::Param(_) => vec![Place::Parameter(v)],
        },
        None => f.node_ids().filter(|n| f.node(*n).op.name == name).map(Place::Node).collect(),
    }
}

/// Values whose messages belong to a place.
fn moved_at(f: &Function, place: Place) -> Vec<&str> {
    match place {
        Place::Node(n) => f.node(n).results.iter().map(|r| f.value(*r).name.as_str()).collect(),
        Place::Parameter(v) => vec![f.value(v).name.as_str()],
    }
}

fn site(t: &Told, place: Place) -> Site {
    let f = &t.function;
    let (text, values, factors) = match place {
        Place::Node(n) => (text::print_node(f, n), f.node(n).results.clone(), &t.explained.nodes[n.0 as usize][..]),
        Place::Parameter(v) => (parameter(f, v), vec![v], &[][..]),
    };
    let moved = moved_at(f, place);
    let messages = t.messages.iter().filter(|m| moved.contains(&m.value.as_str()));
    Site {
        function: f.name.clone(),
        calls: t.calls,
        text,
        trained: matches!(place, Place::Parameter(v) if f.params.iter().any(|p| p.value == v && p.trainable)),
        factors: factors.iter().map(|x| (format!("{} = {}", x.factor, x.size), carrier(x))).collect(),
        states: values.iter().map(|v| (format!("%{}", f.value(*v).name), state(t, *v))).collect(),
        messages: messages.map(|m| (m.clone(), cause(m))).collect(),
    }
}

fn parameter(f: &Function, v: ValueId) -> String {
    let dims: Vec<String> = f.ty(v).dims.iter().map(|d| format!("{}={}", d.name, d.size)).collect();
    let kind = if f.params.iter().any(|p| p.value == v && p.trainable) { "param " } else { "" };
    format!("{kind}%{}: {}[{}]", f.value(v).name, f.ty(v).dtype, dims.join(", "))
}

/// What carries a factor, or why nothing does.
fn carrier(x: &Carried) -> String {
    if !x.axes.is_empty() {
        return axes(&x.axes, ", ");
    }
    match x.left {
        Some(Left::Batch) => "none: data ranks take whole sequences".to_string(),
        Some(Left::Keys) => "none: queries of a rank see the keys of all positions, which cp brings".to_string(),
        Some(Left::NoRole) => "none: no axis has the role to take it".to_string(),
        Some(Left::Whole) => "none: the operation needs all of it on each rank".to_string(),
        Some(Left::Taken(taken)) => format!("none: tp takes {taken} in this node"),
        Some(Left::NoAxis) | None => "none: no axis of this plan takes it here".to_string(),
    }
}

/// `tp 8` for each axis.
fn axes(list: &[(Axis, u64)], between: &str) -> String {
    let words: Vec<String> = list.iter().map(|(a, n)| format!("{} {n}", a.name())).collect();
    words.join(between)
}

/// A value's type with its axes, as `bf16[b=1, s=4096@cp·tp, d=4096] partial(sum: tp)`.
fn state(t: &Told, v: ValueId) -> String {
    let (f, at) = (&t.function, v.0 as usize);
    let dim = |(d, axes): (&autoshard_ir::core::Dim, &Vec<(Axis, u64)>)| {
        let names: Vec<&str> = axes.iter().map(|(a, _)| a.name()).collect();
        let split = if names.is_empty() { String::new() } else { format!("@{}", names.join("·")) };
        format!("{}={}{split}", d.name, d.size)
    };
    let dims: Vec<String> = f.ty(v).dims.iter().zip(&t.explained.dims[at]).map(dim).collect();
    let partial = match t.explained.holding[at] {
        Holding::Partial => " partial(sum: tp)",
        Holding::Whole | Holding::Split => "",
    };
    format!("{}[{}]{partial}", f.ty(v).dtype, dims.join(", "))
}

/// Why a message is there.
fn cause(m: &ToldMessage) -> &'static str {
    let forward = matches!(m.phase, When::Forward | When::Recompute);
    match (m.axis, m.kind) {
        (Axis::Tp, Kind::AllGather) if m.phase == When::BackwardWeight => {
            "the gathered input is not kept, and the weight gradient reads all of it"
        }
        (Axis::Tp, Kind::AllGather) if forward => "it is split over tp, and its readers want all of it",
        (Axis::Tp, Kind::AllGather) => "the forward reduced and split it, so its cotangent is gathered",
        (Axis::Tp, Kind::ReduceScatter) if forward => "each tp rank has a term of the sum, and readers want a part",
        (Axis::Tp, Kind::ReduceScatter) => "the forward gathered it, so terms of its cotangent are summed and split",
        (Axis::Tp, Kind::AllReduce) if forward => "each tp rank has a term of the sum, and readers want all of it",
        (Axis::Tp, Kind::AllReduce) => "tp ranks read it whole, so each has a term of its cotangent",
        (Axis::Tp, Kind::AllToAll) => "tp splits it one way, and its readers want it another way",
        (Axis::Cp, Kind::SendRecv) => "positions are split over cp: keys and values of the others come round a ring",
        (Axis::Cp, Kind::AllToAll) => {
            "positions are split over cp: attention takes all of them, and splits heads instead"
        }
        (Axis::Cp, _) => "positions are split over cp: keys and values of the others are gathered",
        (Axis::Ep, _) => "experts are split over ep: tokens go to the ranks of their experts, or come back",
        (Axis::Etp, _) => {
            "the matrices of an expert are split over etp, so its tokens are gathered and its results summed"
        }
        (Axis::Tp, Kind::SendRecv) => "a neighbour has what its readers want",
    }
}

/// What a message may hide behind, in words; empty for nothing.
pub fn behind(m: &ToldMessage) -> &'static str {
    match m.behind {
        Behind::Nothing => "",
        Behind::Product(_) => "beside a product",
        Behind::Attention => "beside the ring's attention",
    }
}

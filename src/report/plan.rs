//! The plan in words: meshes with their prices, strategies, stored states, collectives, memory.

use super::{bytes, pattern, seconds};
use crate::artifact::strategy;
use autoshard_ir::mesh::{Mesh, Part};
use autoshard_ir::plan::Plan;
use autoshard_ir::program::{Collective, CollectiveKind, Program, Step};
use autoshard_ir::Axis;
use autoshard_passes::search::{Candidate, Degrees};
use autoshard_runtime::comm::{axes_key, parts};
use std::collections::BTreeMap;
use std::fmt::Write;

/// Longest line of names that is printed whole.
const WIDTH: usize = 96;

/// Degrees as `--mesh` takes them.
pub fn degrees(d: &Degrees) -> String {
    let sp = match d.tp {
        1 => "",
        _ if d.sequence_parallel => ",sp=1",
        _ => ",sp=0",
    };
    format!("dp={},fsdp={},tp={}{sp}", d.dp, d.fsdp, d.tp)
}

/// The best candidates with their roofline prices.
pub fn candidates(all: &[Candidate], shown: usize, machine: &str) -> String {
    let best = all.len().min(shown);
    let mut out = format!(
        "meshes: the best {best} of {} that are legal, by the roofline of one rank's step on {machine} (a price to choose by, not a prediction)\n",
        all.len()
    );
    for (i, c) in all.iter().take(shown).enumerate() {
        let mark = if i == 0 { "*" } else { " " };
        let _ = writeln!(
            out,
            "  {mark} {:<26} {:>10} = {:>10} in kernels + {:>10} in collectives ({} received)",
            degrees(&c.degrees),
            seconds(c.cost.seconds()),
            seconds(c.cost.compute),
            seconds(c.cost.communication),
            bytes(c.cost.wire)
        );
    }
    out
}

/// The decisions of a plan, then the collectives of a step, then memory.
pub fn plan(plan: &Plan, program: &Program) -> String {
    let sp = if plan.sequence_parallel { ", positions split over tp between its regions (sp=1)" } else { "" };
    let mut out = format!("plan: mesh {}, {} ranks{sp}\n", plan.mesh, plan.mesh.ranks());
    strategies(&mut out, plan);
    stored(&mut out, plan);
    out.push_str(
        "collectives of one step, as rank 0 counts them (payload: the tensor once; wire: what it receives):\n",
    );
    let lines = collectives(program);
    if lines.is_empty() {
        out.push_str("  none\n");
    }
    for l in &lines {
        let control = if l.control { ", control" } else { "" };
        let _ = writeln!(
            out,
            "  {:>4} × {:<14} {:<9} {:>11} each ({:>11} wire{control})  {}",
            l.count,
            l.kind.name(),
            l.axes,
            bytes(l.payload as f64),
            bytes(l.wire as f64),
            wrapped(&l.names)
        );
    }
    let _ = writeln!(out, "memory: {} per rank", bytes(memory(program) as f64));
    out
}

/// Strategies, nodes with the same one on a line.
fn strategies(out: &mut String, plan: &Plan) {
    for (function, nodes) in &plan.strategies {
        let mut groups: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for (value, s) in nodes {
            groups.entry(strategy(s)).or_default().push(format!("%{value}"));
        }
        for (text, values) in groups.iter().filter(|(text, _)| *text != "none") {
            let _ = writeln!(out, "  @{function:<12} {{{text}}}: {}", wrapped(values));
        }
    }
}

/// Stored states of parameters, layers together.
fn stored(out: &mut String, plan: &Plan) {
    let mut groups: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (name, dims) in &plan.stored {
        let dims: Vec<String> = dims.iter().map(|axes| state(axes)).collect();
        let names = groups.entry(format!("[{}]", dims.join(", "))).or_default();
        let name = format!("%{}", pattern(name));
        if !names.contains(&name) {
            names.push(name);
        }
    }
    for (state, names) in groups {
        let _ = writeln!(out, "  stored {state}: {}", wrapped(&names));
    }
}

fn state(axes: &[Axis]) -> String {
    match axes {
        [] => "-".to_string(),
        _ => axes.iter().map(Axis::name).collect::<Vec<_>>().join("·"),
    }
}

/// Names up to the width of a line, then how many more.
fn wrapped(names: &[String]) -> String {
    let mut out = String::new();
    for (i, name) in names.iter().enumerate() {
        if i > 0 && out.chars().count() + name.chars().count() > WIDTH {
            let _ = write!(out, ", and {} more", names.len() - i);
            return out;
        }
        let _ = write!(out, "{}{name}", if i > 0 { ", " } else { "" });
    }
    out
}

/// Collectives of one kind, group and size in one function. Figures are rank 0's.
#[derive(Clone, Debug, PartialEq)]
pub struct CollectiveLine {
    /// How often rank 0 takes part in a step.
    pub count: usize,
    /// Kind.
    pub kind: CollectiveKind,
    /// Axes, as byte counts name them.
    pub axes: String,
    /// Payload of one, bytes.
    pub payload: u64,
    /// Wire bytes of one.
    pub wire: u64,
    /// Whether it is control traffic.
    pub control: bool,
    /// Functions and values, layers together.
    pub names: Vec<String>,
}

/// All communication of one step, calls counted, in the order of the program.
pub fn collectives(program: &Program) -> Vec<CollectiveLine> {
    let mut out: Vec<CollectiveLine> = Vec::new();
    for (f, calls) in program.functions.iter().zip(calls(program)).filter(|(_, calls)| *calls > 0) {
        for step in &f.steps {
            let Step::Issue { collective, .. } = step else { continue };
            let Some(c) = program.collectives.get(*collective) else { continue };
            if c.kind != CollectiveKind::Local && program.mesh.span(&c.axes) > 1 {
                book(&mut out, c, calls, &program.mesh);
            }
        }
    }
    out
}

fn book(out: &mut Vec<CollectiveLine>, c: &Collective, calls: usize, mesh: &Mesh) {
    let (axes, (payload, wire), name) = (axes_key(&c.axes), moved(c, mesh), pattern(&c.name));
    let function = |n: &str| n.split(' ').next().unwrap_or_default().to_string();
    let same = |l: &&mut CollectiveLine| {
        l.kind == c.kind
            && l.axes == axes
            && (l.payload, l.wire) == (payload, wire)
            && l.control == c.control
            && l.names.first().is_some_and(|n| function(n) == function(&name))
    };
    if let Some(line) = out.iter_mut().find(same) {
        line.count += calls;
        let value = name.split(' ').nth(1).unwrap_or_default().to_string();
        if !line.names.iter().any(|n| n.split(' ').next_back() == Some(&value)) {
            line.names.push(value);
        }
        return;
    }
    out.push(CollectiveLine { count: calls, kind: c.kind, axes, payload, wire, control: c.control, names: vec![name] });
}

/// Payload and wire bytes of one collective on rank 0: what the runtime counts there while it copies.
///
/// An all-reduce has two rounds: each rank reduces its share of the elements (rank 0's is the first, rounded
/// down) and copies the other shares. Else every element of the output is read from all ranks that
/// contribute to it, of which rank 0 itself is one where it holds the element.
fn moved(c: &Collective, mesh: &Mesh) -> (u64, u64) {
    let coords = mesh.coords(0);
    let (have, want) = (parts(mesh, &c.from, &coords), parts(mesh, &c.to, &coords));
    let all: usize = want.iter().map(|p| p.len).product();
    let (payload, wire) = match c.kind {
        CollectiveKind::AllReduce => {
            let group = mesh.span(&c.axes);
            let share = all / group;
            (all, (group - 1) * share + (all - share))
        }
        _ => {
            let after = c.to.partial_axes();
            let reduced = c.from.partial_axes().iter().filter(|a| !after.contains(a));
            let read = all * reduced.map(|a| mesh.size(a)).product::<usize>();
            (read, read - overlap(&have, &want))
        }
    };
    let width = c.to.dtype.bytes();
    ((payload * width) as u64, (wire * width) as u64)
}

/// Elements that two boxes have in common.
fn overlap(a: &[Part], b: &[Part]) -> usize {
    let common = |(a, b): (&Part, &Part)| (a.start + a.len).min(b.start + b.len).saturating_sub(a.start.max(b.start));
    a.iter().zip(b).map(common).product()
}

/// How often a step runs each function. Callees come before callers.
fn calls(program: &Program) -> Vec<usize> {
    let mut counts = vec![0; program.functions.len()];
    if let Some(entry) = counts.get_mut(program.entry) {
        *entry = 1;
    }
    for f in (0..counts.len()).rev() {
        for step in &program.functions[f].steps {
            if let Step::Call { function, .. } = step {
                if *function < f {
                    counts[*function] += counts[f];
                }
            }
        }
    }
    counts
}

/// Memory of one rank in bytes: parameters, results that do not live in one, and the frames of all
/// functions that run. This is what the runtime allocates.
pub fn memory(program: &Program) -> usize {
    let Some(entry) = program.functions.get(program.entry) else { return 0 };
    let aligned = |ty| program.mesh.local_bytes(ty).next_multiple_of(64);
    let params: usize = entry.params.iter().map(|(_, ty)| aligned(ty)).sum();
    let own = entry.results.iter().zip(&entry.in_place).filter(|(_, p)| p.is_none());
    let results: usize = own.map(|((_, ty), _)| aligned(ty)).sum();
    let run = program.functions.iter().zip(calls(program)).filter(|(_, calls)| *calls > 0);
    params + results + run.map(|(f, _)| f.frame).sum::<usize>()
}

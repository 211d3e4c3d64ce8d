//! Schedule: local functions become programs — steps in order over a static memory plan.
//!
//! `fuse` makes units, `order` puts them in order with an issue and a wait for each collective,
//! `memory` places their values, and [`check()`] looks at the result without trusting any of them.

mod check;
mod memory;
mod order;
#[cfg(test)]
mod tests;

pub use check::{check, CheckError, Fault, SpanError};

use crate::fuse::{fuse, Fusion, Unit, Work};
use crate::lower::LowerError;
use autoshard_ir::core::{Def, Function, Module, Node, ValueId};
use autoshard_ir::kernel::Kernel;
use autoshard_ir::program::{Buf, Collective, CollectiveKind, Program, ProgramFunction, Step};
use memory::{Lifetimes, MemoryPlan, Request};
use order::{Action, Overlap};
use std::collections::HashMap;

/// Why a local module has no program.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ScheduleError {
    /// A node has no kernel.
    #[error(transparent)]
    Lower(#[from] LowerError),
    /// A collective that cannot be read.
    #[error("@{function}: {message}")]
    Collective {
        /// Function.
        function: String,
        /// What is wrong.
        message: String,
    },
    /// The entry or a callee is missing.
    #[error("no function @{0}")]
    Missing(String),
    /// A parameter that is updated in place is read afterwards.
    #[error("%{0} is read after its update in place")]
    ReadAfterUpdate(String),
}

/// How a program is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// What is fused.
    pub fusion: Fusion,
    /// Whether communication is issued early and waited for late.
    pub overlap: bool,
}

impl Default for Options {
    fn default() -> Options {
        Options { fusion: Fusion::ALL, overlap: true }
    }
}

/// The program of a local module. Results of the entry that are updates (`NAME.new`) live in the
/// buffer of the parameter `NAME`.
pub fn schedule(module: &Module, options: &Options) -> Result<Program, ScheduleError> {
    let ordered = all_ordered(module, options)?;
    let mut s = Scheduler {
        program: Program {
            mesh: module.mesh.clone(),
            kernels: Vec::new(),
            collectives: Vec::new(),
            functions: Vec::new(),
            entry: position(module, &module.entry)?,
        },
        module,
        kernels: HashMap::new(),
    };
    for o in &ordered {
        let done = s.function(o)?;
        s.program.functions.push(done);
    }
    Ok(s.program)
}

/// A function with its units in order.
struct Ordered<'a> {
    function: &'a Function,
    /// For a result that lives in a parameter's buffer: that parameter.
    in_place: Vec<Option<usize>>,
    /// Per parameter, whether every call gives the argument away.
    donated: Vec<bool>,
    units: Vec<Unit>,
    actions: Vec<Action>,
}

/// All functions in order. Callers stand after their callees and come first here: what they give away
/// decides what an order costs.
fn all_ordered<'a>(module: &'a Module, options: &Options) -> Result<Vec<Ordered<'a>>, ScheduleError> {
    let mut donated: Vec<Option<Vec<bool>>> = vec![None; module.functions.len()];
    let mut out = Vec::new();
    for (g, f) in module.functions.iter().enumerate().rev() {
        // Nobody but the world calls the entry.
        let given = donated[g].take().filter(|_| f.name != module.entry);
        let o = ordered(module, f, given.unwrap_or_else(|| vec![false; f.params.len()]), options)?;
        donate(module, &o, &mut donated)?;
        out.push(o);
    }
    out.reverse();
    Ok(out)
}

fn ordered<'a>(
    module: &'a Module,
    f: &'a Function,
    donated: Vec<bool>,
    options: &Options,
) -> Result<Ordered<'a>, ScheduleError> {
    let in_place = if f.name == module.entry { updates(f)? } else { vec![None; f.results.len()] };
    let units = fuse(f, &module.mesh, &options.fusion)?;
    let pairs = f.results.iter().zip(&in_place).filter_map(|(r, p)| Some((f.params[(*p)?].value, *r)));
    let pairs: Vec<(ValueId, ValueId)> = pairs.collect();
    let early = |put_off: &[usize]| order::order(f, &units, &module.mesh, &pairs, Overlap::Early(put_off));
    let frame = |actions: &[Action]| {
        memory::plan(&Request { function: f, units: &units, actions, mesh: &module.mesh, donated: &donated }).frame
    };
    let actions = match options.overlap {
        false => order::order(f, &units, &module.mesh, &pairs, Overlap::None),
        true => put_off(&order::products(f, &units), early, frame),
    };
    Ok(Ordered { function: f, in_place, donated, units, actions })
}

/// The early order with those of the products put off that cost no memory there.
fn put_off(
    products: &[usize],
    early: impl Fn(&[usize]) -> Vec<Action>,
    frame: impl Fn(&[Action]) -> usize,
) -> Vec<Action> {
    let mut actions = early(&[]);
    let most = if products.is_empty() { 0 } else { frame(&actions) };
    let mut chosen = Vec::new();
    for product in products {
        chosen.push(*product);
        let moved = early(&chosen);
        if moved != actions && frame(&moved) <= most {
            actions = moved;
        } else {
            chosen.pop();
        }
    }
    actions
}

/// Position of a function by its name.
fn position(module: &Module, name: &str) -> Result<usize, ScheduleError> {
    let at = module.functions.iter().position(|f| f.name == name);
    at.ok_or_else(|| ScheduleError::Missing(name.to_string()))
}

/// Notes what the calls of a function give away: an argument that lies in its frame, or in a parameter
/// given away to it, and that nothing reads after the call.
fn donate(module: &Module, o: &Ordered, donated: &mut [Option<Vec<bool>>]) -> Result<(), ScheduleError> {
    let lifetimes = Lifetimes::new(o.function, &o.units, &o.actions);
    for (t, action) in o.actions.iter().enumerate() {
        let Action::Run(u) = action else { continue };
        let Work::Call(n) = o.units[*u].work else { continue };
        let callee = position(module, o.function.node(n).callee.as_deref().unwrap_or_default())?;
        let args = &o.units[*u].inputs;
        let given = donated[callee].get_or_insert_with(|| vec![true; args.len()]);
        for (v, given) in args.iter().zip(given) {
            let ours = match o.function.value(*v).def {
                Def::Param(p) => o.donated.get(p) == Some(&true),
                Def::Result(..) => true,
            };
            let once = args.iter().filter(|w| *w == v).count() == 1;
            *given &= ours && once && lifetimes.last(*v) == t;
        }
    }
    Ok(())
}

struct Scheduler<'a> {
    module: &'a Module,
    program: Program,
    /// Kernels by what determines them: layers of one kind share theirs.
    kernels: HashMap<String, usize>,
}

impl Scheduler<'_> {
    fn function(&mut self, o: &Ordered) -> Result<ProgramFunction, ScheduleError> {
        let (f, mesh) = (o.function, &self.module.mesh);
        let (units, actions, donated) = (&o.units, &o.actions, &o.donated);
        let plan = memory::plan(&Request { function: f, units, actions, mesh, donated });
        let mut consumed = plan.consumed.clone();
        let mut steps = Vec::new();
        let mut issues = vec![0; o.units.len()];
        for (t, action) in o.actions.iter().enumerate() {
            let step = match action {
                Action::Wait(u) => Step::Wait { issue: issues[*u] },
                Action::Run(u) | Action::Issue(u) => {
                    issues[*u] = t;
                    self.step(f, &o.units[*u], &plan)?
                }
            };
            self.passed_on(&step, &mut consumed);
            steps.push(step);
        }
        steps.extend(copies(f, &plan, mesh));
        let named = |v: ValueId| (f.value(v).name.clone(), f.ty(v).clone());
        Ok(ProgramFunction {
            name: f.name.clone(),
            params: f.params.iter().map(|p| named(p.value)).collect(),
            results: f.results.iter().map(|r| named(*r)).collect(),
            in_place: o.in_place.clone(),
            consumed,
            frame: plan.frame,
            steps,
        })
    }

    /// A parameter that a callee overwrites is overwritten here.
    fn passed_on(&self, step: &Step, consumed: &mut [bool]) {
        let Step::Call { function, args, .. } = step else { return };
        for (arg, taken) in args.iter().zip(&self.program.functions[*function].consumed) {
            if let (Buf::Param(p), true) = (arg, taken) {
                consumed[*p] = true;
            }
        }
    }

    fn step(&mut self, f: &Function, unit: &Unit, plan: &MemoryPlan) -> Result<Step, ScheduleError> {
        let buf = |v: &ValueId| plan.buffers[v.0 as usize];
        let inputs = unit.inputs.iter().map(buf);
        let results = unit.results.iter().map(buf);
        Ok(match &unit.work {
            Work::Call(n) => {
                let name = f.node(*n).callee.as_deref().unwrap_or_default();
                let function = position(self.module, name)?;
                if function >= self.program.functions.len() {
                    return Err(ScheduleError::Missing(name.to_string()));
                }
                Step::Call { function, args: inputs.collect(), results: results.collect() }
            }
            Work::Collective(n) => {
                let node = f.node(*n);
                let collective = self.collective(f, node)?;
                Step::Issue { collective, input: buf(&node.inputs[0]), output: buf(&node.results[0]) }
            }
            Work::Kernel(kernel) => {
                Step::Kernel { kernel: self.kernel(kernel), buffers: inputs.chain(results).collect() }
            }
        })
    }

    /// The position of a kernel: layers of one kind share theirs, under the first one's name.
    fn kernel(&mut self, kernel: &Kernel) -> usize {
        let key = format!("{} {} {:?}", kernel.operands, kernel.results, kernel.body);
        *self.kernels.entry(key).or_insert_with(|| {
            self.program.kernels.push(kernel.clone());
            self.program.kernels.len() - 1
        })
    }

    fn collective(&mut self, f: &Function, node: &Node) -> Result<usize, ScheduleError> {
        let fail = |message: String| ScheduleError::Collective { function: f.name.clone(), message };
        let axes = node.attrs.get_text("axes").map_err(fail)?;
        let kind = CollectiveKind::from_name(node.op.name)
            .ok_or_else(|| fail(format!("{} is no kind of communication", node.op.name)))?;
        self.program.collectives.push(Collective {
            kind,
            axes: axes.split('·').filter(|a| !a.is_empty()).map(autoshard_ir::Axis::new).collect(),
            from: f.ty(node.inputs[0]).clone(),
            to: f.ty(node.results[0]).clone(),
            name: format!("@{} %{}", f.name, f.value(node.results[0]).name),
            control: node.attrs.get_int("control").is_ok_and(|c| c != 0),
        });
        Ok(self.program.collectives.len() - 1)
    }
}

/// Results of the entry that live in a parameter's buffer.
fn updates(f: &Function) -> Result<Vec<Option<usize>>, ScheduleError> {
    let mut out = Vec::new();
    for r in &f.results {
        let name = &f.value(*r).name;
        let param = name.strip_suffix(".new").and_then(|n| f.find(n));
        let position = param.and_then(|v| f.params.iter().position(|p| p.value == v));
        if let (Some(v), Some(_), Def::Result(at, _)) = (param, position, f.value(*r).def) {
            if f.nodes[at.0 as usize + 1..].iter().any(|n| n.inputs.contains(&v)) {
                return Err(ScheduleError::ReadAfterUpdate(f.value(v).name.clone()));
            }
        }
        out.push(position);
    }
    Ok(out)
}

/// Copies for results that are parameters, or that repeat an earlier result.
fn copies(f: &Function, plan: &MemoryPlan, mesh: &autoshard_ir::Mesh) -> Vec<Step> {
    let mut out = Vec::new();
    for (i, r) in f.results.iter().enumerate() {
        let from = plan.buffers[r.0 as usize];
        if from != Buf::Result(i) {
            out.push(Step::Copy { from, to: Buf::Result(i), bytes: mesh.local_bytes(f.ty(*r)) });
        }
    }
    out
}

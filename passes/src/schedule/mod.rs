//! Schedule: local functions become programs — steps in order over a static memory plan.

mod check;
mod memory;

pub use check::{check, CheckError, Fault, SpanError};

use crate::fuse::{fuse, Fusion, Unit, Work};
use crate::lower::LowerError;
use autoshard_ir::core::{Def, Function, Module, Node, ValueId};
use autoshard_ir::kernel::Kernel;
use autoshard_ir::program::{Buf, Collective, CollectiveKind, Program, ProgramFunction, Step};
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
    let mut s = Scheduler {
        module,
        options,
        program: Program {
            mesh: module.mesh.clone(),
            kernels: Vec::new(),
            collectives: Vec::new(),
            functions: Vec::new(),
            entry: 0,
        },
        kernels: HashMap::new(),
        functions: HashMap::new(),
    };
    for f in &module.functions {
        let done = s.function(f)?;
        s.functions.insert(f.name.clone(), s.program.functions.len());
        s.program.functions.push(done);
    }
    s.program.entry = *s.functions.get(&module.entry).ok_or_else(|| ScheduleError::Missing(module.entry.clone()))?;
    Ok(s.program)
}

struct Scheduler<'a> {
    module: &'a Module,
    options: &'a Options,
    program: Program,
    /// Kernels by what determines them: layers of one kind share theirs.
    kernels: HashMap<String, usize>,
    functions: HashMap<String, usize>,
}

impl Scheduler<'_> {
    fn function(&mut self, f: &Function) -> Result<ProgramFunction, ScheduleError> {
        let in_place = if f.name == self.module.entry { updates(f)? } else { vec![None; f.results.len()] };
        let units = fuse(f, &self.module.mesh, &self.options.fusion)?;
        let plan = memory::plan(f, &units, &self.module.mesh);
        let mut steps = Vec::new();
        for unit in &units {
            let step = self.step(f, unit, &plan)?;
            steps.push(step);
        }
        steps.extend(copies(f, &plan, &self.module.mesh));
        let named = |v: ValueId| (f.value(v).name.clone(), f.ty(v).clone());
        Ok(ProgramFunction {
            name: f.name.clone(),
            params: f.params.iter().map(|p| named(p.value)).collect(),
            results: f.results.iter().map(|r| named(*r)).collect(),
            in_place,
            frame: plan.frame,
            steps,
        })
    }

    fn step(&mut self, f: &Function, unit: &Unit, plan: &memory::MemoryPlan) -> Result<Step, ScheduleError> {
        let buf = |v: &ValueId| plan.buffers[v.0 as usize];
        let inputs = unit.inputs.iter().map(buf);
        let results = unit.results.iter().map(buf);
        Ok(match &unit.work {
            Work::Call(n) => {
                let name = f.node(*n).callee.clone().unwrap_or_default();
                let function = *self.functions.get(&name).ok_or(ScheduleError::Missing(name))?;
                Step::Call { function, args: inputs.collect(), results: results.collect() }
            }
            Work::Collective(n) => {
                let node = f.node(*n);
                let collective = self.collective(f, node)?;
                Step::Collective { collective, input: buf(&node.inputs[0]), output: buf(&node.results[0]) }
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
fn copies(f: &Function, plan: &memory::MemoryPlan, mesh: &autoshard_ir::Mesh) -> Vec<Step> {
    let mut out = Vec::new();
    for (i, r) in f.results.iter().enumerate() {
        let from = plan.buffers[r.0 as usize];
        if from != Buf::Result(i) {
            out.push(Step::Copy { from, to: Buf::Result(i), bytes: mesh.local_bytes(f.ty(*r)) });
        }
    }
    out
}

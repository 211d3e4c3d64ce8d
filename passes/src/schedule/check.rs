//! Check of the static memory plan: a program reads only what was written and still stands.
//!
//! The steps of every function are walked once. The frame is a map of the buffers that stand in it,
//! with the size that their writer gave them; parameters and results have the sizes of their types.
//! A collective is under way from its issue to its wait: nothing else writes what it reads or touches
//! what it writes. A parameter that a function consumes is like its frame, and gone for the caller.
//! A kernel does not name its buffer sizes: they are the spans of its views.

mod fault;
mod memory;
mod span;
#[cfg(test)]
mod tests;

pub use fault::{CheckError, Fault};
pub use span::SpanError;

use autoshard_ir::program::{Buf, CollectiveKind, Program, ProgramFunction, Step};
use autoshard_ir::Mesh;
use memory::{Memory, Need, Region};
use span::spans;
use std::collections::HashSet;

/// Checks the static memory plan of every function.
pub fn check(program: &Program) -> Result<(), CheckError> {
    let functions = program.functions.len();
    if program.entry >= functions {
        return Err(CheckError::Entry { entry: program.entry, functions });
    }
    let spans = program.kernels.iter().map(spans).collect();
    let mut checker = Checker { program, spans, done: HashSet::new(), open: vec![false; functions] };
    for (i, f) in program.functions.iter().enumerate() {
        checker.function(i, f.in_place.clone())?;
    }
    Ok(())
}

/// For every result of a function the parameter that holds it, if one does.
type InPlace = Vec<Option<usize>>;

struct Checker<'a> {
    program: &'a Program,
    /// Bytes of each kernel's buffers.
    spans: Vec<Result<Vec<usize>, SpanError>>,
    /// Functions that are sound, with the results that live in a parameter's buffer: those that the
    /// function declares, and those that a call makes so by passing one buffer for both.
    done: HashSet<(usize, InPlace)>,
    /// Functions whose walk has begun and not ended.
    open: Vec<bool>,
}

impl Checker<'_> {
    fn function(&mut self, index: usize, in_place: InPlace) -> Result<(), CheckError> {
        let f = &self.program.functions[index];
        let name = f.name.clone();
        if self.open[index] {
            return Err(CheckError::Recursion { function: name });
        }
        let key = (index, in_place);
        if self.done.contains(&key) {
            return Ok(());
        }
        check_in_place(f, &key.1, &self.program.mesh)?;
        check_consumed(f, &key.1, index == self.program.entry)?;
        self.open[index] = true;
        let mut memory = Memory::new(f, &key.1, &self.program.mesh);
        for (i, step) in f.steps.iter().enumerate() {
            memory.step = i;
            let callee = self.step(&mut memory, step).map_err(|fault| CheckError::Step {
                function: name.clone(),
                step: i,
                what: self.what(step),
                fault,
            })?;
            if let Some((callee, in_place)) = callee {
                self.function(callee, in_place)?;
            }
        }
        self.open[index] = false;
        if let Some(step) = memory.under_way() {
            return Err(CheckError::Unwaited { function: name, step, what: self.what(&f.steps[step]) });
        }
        if let Some(i) = memory.results.iter().position(|by| by.is_none()) {
            return Err(CheckError::Unwritten { function: name, result: memory.name(Buf::Result(i)) });
        }
        self.done.insert(key);
        Ok(())
    }

    /// Applies a step; returns the callee to check, with its updates in place.
    fn step(&self, memory: &mut Memory, step: &Step) -> Result<Option<(usize, InPlace)>, Fault> {
        match step {
            Step::Kernel { kernel, buffers } => self.kernel(memory, *kernel, buffers)?,
            Step::Issue { collective, input, output } => {
                let missing = Fault::Missing { what: "collective", index: *collective };
                let c = self.program.collectives.get(*collective).ok_or(missing)?;
                // Communication runs in the order of its issues, so it may read what an earlier one
                // still writes. A local move runs beside it.
                let need = Need::exactly(self.program.mesh.local_bytes(&c.from));
                let read = match c.kind {
                    CollectiveKind::Local => memory.read(*input, need)?,
                    _ => memory.read_in_order(*input, need)?,
                };
                let write = memory.place(*output, self.program.mesh.local_bytes(&c.to))?;
                memory.apart(&write, &read)?;
                memory.write(write)?;
                memory.issue(read, write);
            }
            Step::Wait { issue } => memory.wait(*issue)?,
            Step::Call { function, args, results } => {
                return self.call(memory, *function, args, results).map(Some);
            }
            Step::Copy { from, to, bytes } => {
                let read = memory.read(*from, Need::at_least(*bytes))?;
                let write = memory.place(*to, *bytes)?;
                memory.apart(&write, &read)?;
                memory.write(write)?;
            }
        }
        Ok(None)
    }

    fn kernel(&self, memory: &mut Memory, index: usize, buffers: &[Buf]) -> Result<(), Fault> {
        let kernel = self.program.kernels.get(index).ok_or(Fault::Missing { what: "kernel", index })?;
        let spans = self.spans[index].as_ref().map_err(Clone::clone)?;
        if buffers.len() != spans.len() {
            return Err(Fault::Count { what: "buffers", got: buffers.len(), expected: spans.len() });
        }
        let mut reads = Vec::new();
        for (buf, span) in buffers.iter().zip(spans).take(kernel.operands) {
            reads.push(memory.read(*buf, Need::at_least(*span))?);
        }
        let mut writes: Vec<Region> = Vec::new();
        for (i, (buf, span)) in buffers.iter().zip(spans).enumerate().skip(kernel.operands) {
            let write = memory.place(*buf, *span)?;
            for (operand, read) in reads.iter().enumerate() {
                let in_place = write.same_start(read) && kernel.may_overwrite(operand, i - kernel.operands);
                if !in_place {
                    memory.apart(&write, read)?;
                }
            }
            for other in &writes {
                memory.apart(&write, other)?;
            }
            writes.push(write);
        }
        writes.into_iter().try_for_each(|w| memory.write(w))
    }

    fn call(
        &self,
        memory: &mut Memory,
        index: usize,
        args: &[Buf],
        results: &[Buf],
    ) -> Result<(usize, InPlace), Fault> {
        let mesh = &self.program.mesh;
        let callee = self.program.functions.get(index).ok_or(Fault::Missing { what: "function", index })?;
        for (what, got, expected) in
            [("arguments", args.len(), callee.params.len()), ("results", results.len(), callee.results.len())]
        {
            if got != expected {
                return Err(Fault::Count { what, got, expected });
            }
        }
        let mut reads = Vec::new();
        for (arg, (_, ty)) in args.iter().zip(&callee.params) {
            reads.push(memory.read(*arg, Need::exactly(mesh.local_bytes(ty)))?);
        }
        let mut in_place = vec![None; results.len()];
        let mut writes: Vec<Region> = Vec::new();
        for (i, (result, (_, ty))) in results.iter().zip(&callee.results).enumerate() {
            let write = memory.place(*result, mesh.local_bytes(ty))?;
            if let Some(p) = callee.in_place.get(i).copied().flatten() {
                // A parameter out of range is reported when the callee is checked.
                if reads.get(p).is_some_and(|r| !write.same_start(r)) {
                    let argument = memory.name(args[p]);
                    return Err(Fault::NotInPlace { argument, result: memory.name(*result) });
                }
                in_place[i] = Some(p);
            }
            for (a, read) in reads.iter().enumerate() {
                // One buffer for both: the callee must be sound with the result in that parameter.
                if write.same_start(read) && write.bytes == read.bytes && in_place[i].is_none_or(|p| p == a) {
                    in_place[i] = Some(a);
                } else {
                    memory.apart(&write, read)?;
                }
            }
            for other in &writes {
                memory.apart(&write, other)?;
            }
            writes.push(write);
        }
        for (a, read) in reads.iter().enumerate().filter(|(a, _)| callee.consumed.get(*a) == Some(&true)) {
            let others = reads.iter().enumerate().filter(|(b, _)| *b != a).map(|(_, r)| r).chain(&writes);
            memory.consume(read, others)?;
        }
        writes.into_iter().try_for_each(|w| memory.write(w))?;
        Ok((index, in_place))
    }

    /// Names a step.
    fn what(&self, step: &Step) -> String {
        let p = self.program;
        match step {
            Step::Kernel { kernel, .. } => p.kernels.get(*kernel).map_or("kernel".into(), |k| k.name.clone()),
            Step::Wait { .. } => "wait".into(),
            Step::Issue { collective, .. } => {
                let c = p.collectives.get(*collective);
                c.map_or("collective".into(), |c| format!("{} {}", c.kind.name(), c.name))
            }
            Step::Call { function, .. } => {
                p.functions.get(*function).map_or("call".into(), |f| format!("call @{}", f.name))
            }
            Step::Copy { .. } => "copy".into(),
        }
    }
}

/// Every update in place names a parameter of the same size, and no parameter is updated twice.
fn check_in_place(f: &ProgramFunction, in_place: &[Option<usize>], mesh: &Mesh) -> Result<(), CheckError> {
    let fail = |result: usize, problem: String| {
        let result = f.results.get(result).map_or(format!("{result}"), |(n, _)| format!("%{n}"));
        Err(CheckError::InPlace { function: f.name.clone(), result, problem })
    };
    if in_place.len() != f.results.len() {
        let problem = format!("{} entries for {} results", in_place.len(), f.results.len());
        return fail(in_place.len().min(f.results.len()), problem);
    }
    for (i, p) in in_place.iter().enumerate() {
        let Some(p) = p else { continue };
        let Some((name, ty)) = f.params.get(*p) else {
            return fail(i, format!("no parameter {p}"));
        };
        let (from, to) = (mesh.local_bytes(ty), mesh.local_bytes(&f.results[i].1));
        if from != to {
            return fail(i, format!("parameter %{name} has {from} bytes, the result {to}"));
        }
        if in_place[..i].contains(&Some(*p)) {
            return fail(i, format!("parameter %{name} already holds another result"));
        }
    }
    Ok(())
}

/// The entry's arguments are the world's, and a parameter that holds a result is that result.
fn check_consumed(f: &ProgramFunction, in_place: &[Option<usize>], entry: bool) -> Result<(), CheckError> {
    let fail =
        |parameter: String, problem: String| Err(CheckError::Consumed { function: f.name.clone(), parameter, problem });
    if f.consumed.len() != f.params.len() {
        return fail("the list".into(), format!("{} entries for {} parameters", f.consumed.len(), f.params.len()));
    }
    for (p, (name, _)) in f.params.iter().enumerate().filter(|(p, _)| f.consumed[*p]) {
        let name = format!("%{name}");
        if entry {
            return fail(name, "the entry's parameters stay".into());
        }
        if in_place.contains(&Some(p)) {
            return fail(name, "it holds a result".into());
        }
    }
    Ok(())
}

//! Check of the static memory plan: a program reads only what was written and still stands.
//!
//! The steps of every function are walked once. The frame is a map of the buffers that stand in it,
//! with the size that their writer gave them; parameters and results have the sizes of their types.
//! A kernel does not name its buffer sizes: they are the spans of its views.

mod span;
#[cfg(test)]
mod tests;

pub use span::SpanError;

use autoshard_ir::core::Type;
use autoshard_ir::kernel::{Kernel, KernelBody, LoopKernel, LoopOp, View};
use autoshard_ir::program::{Buf, Program, ProgramFunction, Step};
use autoshard_ir::Mesh;
use span::spans;
use std::collections::{BTreeMap, HashMap, HashSet};

/// Why a program is not sound.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum CheckError {
    /// The entry does not exist.
    #[error("no function {entry}: the program has {functions}")]
    Entry {
        /// Index of the entry.
        entry: usize,
        /// Number of functions.
        functions: usize,
    },
    /// A function calls itself, directly or not: its frame is not static.
    #[error("@{function} calls itself")]
    Recursion {
        /// Function.
        function: String,
    },
    /// The list of updates in place is malformed.
    #[error("@{function}: result {result} cannot be in place: {problem}")]
    InPlace {
        /// Function.
        function: String,
        /// Result.
        result: String,
        /// What is wrong.
        problem: String,
    },
    /// A result is never written.
    #[error("@{function}: result {result} is never written")]
    Unwritten {
        /// Function.
        function: String,
        /// Result.
        result: String,
    },
    /// A step is wrong.
    #[error("@{function}: step {step} ({what}): {fault}")]
    Step {
        /// Function.
        function: String,
        /// Position of the step.
        step: usize,
        /// Its kernel, collective or callee.
        what: String,
        /// What is wrong.
        fault: Fault,
    },
}

/// What is wrong with a step. Buffers are named as in the function: `%x`, or `frame+128`.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Fault {
    /// An index is out of range.
    #[error("no {what} {index}")]
    Missing {
        /// Kernel, collective, function, parameter or result.
        what: &'static str,
        /// Index.
        index: usize,
    },
    /// Wrong number of buffers.
    #[error("{got} {what}, expected {expected}")]
    Count {
        /// Buffers, arguments or results.
        what: &'static str,
        /// Number given.
        got: usize,
        /// Number that the kernel or callee has.
        expected: usize,
    },
    /// The kernel contradicts itself.
    #[error(transparent)]
    Kernel(#[from] SpanError),
    /// A buffer is read that nothing has written.
    #[error("reads {buffer}, which nothing has written")]
    ReadBeforeWrite {
        /// Buffer.
        buffer: String,
    },
    /// A buffer is read that another one has overwritten.
    #[error("reads {buffer}, which step {by} has overwritten")]
    Overwritten {
        /// Buffer.
        buffer: String,
        /// Position of the step that wrote over it.
        by: usize,
    },
    /// A parameter is read after its update in place.
    #[error("reads {buffer}, which step {by} has updated in place")]
    ReadAfterUpdate {
        /// Parameter.
        buffer: String,
        /// Position of the step that updated it.
        by: usize,
    },
    /// A buffer has another size than the step reads or writes.
    #[error("{buffer} has {has} bytes, expected {expected}")]
    Size {
        /// Buffer.
        buffer: String,
        /// Bytes written, or bytes of its type.
        has: usize,
        /// Bytes that the step reads or writes.
        expected: usize,
    },
    /// A buffer does not lie in the frame.
    #[error("{buffer} ends at {end}, the frame at {frame}")]
    Frame {
        /// Buffer.
        buffer: String,
        /// First byte after it.
        end: usize,
        /// Bytes of the frame.
        frame: usize,
    },
    /// The step writes a buffer over one that it reads or writes as well.
    #[error("writes {written} over {other}")]
    Overlap {
        /// Written.
        written: String,
        /// Read or written by the same step.
        other: String,
    },
    /// A parameter is written that no result updates.
    #[error("writes {buffer}, a parameter without an update in place")]
    ReadOnly {
        /// Parameter.
        buffer: String,
    },
    /// A result is written a second time.
    #[error("writes {buffer} again, after step {by}")]
    WrittenTwice {
        /// Result.
        buffer: String,
        /// Position of the step that wrote it first.
        by: usize,
    },
    /// The callee updates a parameter in place, but the call gives it two buffers.
    #[error("the callee updates {argument} in place, but its result goes to {result}")]
    NotInPlace {
        /// Argument.
        argument: String,
        /// Buffer of the result.
        result: String,
    },
}

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
            Step::Collective { collective, input, output } => {
                let missing = Fault::Missing { what: "collective", index: *collective };
                let c = self.program.collectives.get(*collective).ok_or(missing)?;
                let read = memory.read(*input, Need::exactly(self.program.mesh.local_bytes(&c.from)))?;
                let write = memory.place(*output, self.program.mesh.local_bytes(&c.to))?;
                memory.apart(&write, &read)?;
                memory.write(write)?;
            }
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
                let in_place = write.same_start(read) && elementwise(kernel, operand, i);
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
        writes.into_iter().try_for_each(|w| memory.write(w))?;
        Ok((index, in_place))
    }

    /// Names a step.
    fn what(&self, step: &Step) -> String {
        let p = self.program;
        match step {
            Step::Kernel { kernel, .. } => p.kernels.get(*kernel).map_or("kernel".into(), |k| k.name.clone()),
            Step::Collective { collective, .. } => {
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

/// Whether a kernel may write this result over this operand: every element is read at the place
/// where it is written, and nothing is combined.
fn elementwise(kernel: &Kernel, operand: usize, result: usize) -> bool {
    let KernelBody::Loop(nests) = &kernel.body else {
        return false;
    };
    let loads = |k: &LoopKernel| -> Vec<View> {
        let views = k.instrs.iter().filter_map(|i| match &i.op {
            LoopOp::Load(view) if view.buffer == operand => Some(view.clone()),
            _ => None,
        });
        views.collect()
    };
    let stores = |k: &LoopKernel| k.stores.iter().any(|s| s.view.buffer == result);
    // Nests run in any order: the one that writes must be the only one that reads.
    let together = nests.iter().all(|k| loads(k).is_empty() || stores(k));
    let here = |k: &LoopKernel| {
        let mut stores = k.stores.iter().filter(|s| s.view.buffer == result);
        stores.all(|s| s.combine.is_none() && loads(k).iter().all(|l| same_view(k, l, &s.view)))
    };
    together && nests.iter().filter(|k| stores(k)).count() == 1 && nests.iter().all(here)
}

fn same_view(k: &LoopKernel, a: &View, b: &View) -> bool {
    let moves = |i: usize| k.loops.get(i).is_some_and(|l| l.size > 1);
    let strides =
        |v: &View| -> Vec<usize> { v.strides.iter().enumerate().filter(|(i, _)| moves(*i)).map(|(_, s)| *s).collect() };
    a.offset == b.offset && a.dtype.bytes() == b.dtype.bytes() && strides(a) == strides(b)
}

/// How many bytes a step reads of a buffer.
#[derive(Clone, Copy)]
struct Need {
    bytes: usize,
    /// The buffer must have exactly this size.
    exact: bool,
}

impl Need {
    fn exactly(bytes: usize) -> Need {
        Need { bytes, exact: true }
    }

    fn at_least(bytes: usize) -> Need {
        Need { bytes, exact: false }
    }
}

/// Physical memory of a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Space {
    Frame,
    Param(usize),
    Result(usize),
}

/// A range of physical memory that a step reads or writes.
#[derive(Clone, Copy, Debug)]
struct Region {
    /// As the step names it.
    buf: Buf,
    space: Space,
    start: usize,
    bytes: usize,
}

impl Region {
    fn same_start(&self, other: &Region) -> bool {
        self.space == other.space && self.start == other.start
    }

    /// First byte after the region. Empty buffers take one byte, so that each has its own place.
    fn end(&self) -> usize {
        self.start.saturating_add(self.bytes.max(1))
    }

    fn overlaps(&self, other: &Region) -> bool {
        self.space == other.space && self.start < other.end() && other.start < self.end()
    }
}

/// What stands in the buffers of one function between two steps.
struct Memory<'a> {
    function: &'a ProgramFunction,
    /// Parameter that holds each result.
    in_place: &'a [Option<usize>],
    /// Bytes of parameters and results.
    param_bytes: Vec<usize>,
    result_bytes: Vec<usize>,
    /// What stands in the frame, by offset. Regions do not overlap.
    frame: BTreeMap<usize, Region>,
    /// Offsets of what stood there, with the step that wrote over it.
    lost: HashMap<usize, usize>,
    /// Step that wrote each result.
    results: InPlace,
    /// Current step.
    step: usize,
}

impl<'a> Memory<'a> {
    fn new(function: &'a ProgramFunction, in_place: &'a [Option<usize>], mesh: &Mesh) -> Memory<'a> {
        let bytes = |of: &[(String, Type)]| of.iter().map(|(_, t)| mesh.local_bytes(t)).collect();
        Memory {
            function,
            in_place,
            param_bytes: bytes(&function.params),
            result_bytes: bytes(&function.results),
            frame: BTreeMap::new(),
            lost: HashMap::new(),
            results: vec![None; function.results.len()],
            step: 0,
        }
    }

    fn name(&self, buf: Buf) -> String {
        match buf {
            Buf::Frame(offset) => format!("frame+{offset}"),
            Buf::Param(i) => self.function.params.get(i).map_or(format!("parameter {i}"), |(n, _)| format!("%{n}")),
            Buf::Result(i) => self.function.results.get(i).map_or(format!("result {i}"), |(n, _)| format!("%{n}")),
        }
    }

    /// Where a result lives.
    fn home(&self, result: usize) -> Space {
        self.in_place[result].map_or(Space::Result(result), Space::Param)
    }

    /// The result that lives in a parameter.
    fn update_of(&self, param: usize) -> Option<usize> {
        self.in_place.iter().position(|p| *p == Some(param))
    }

    /// The region that a step reads; it must stand.
    fn read(&self, buf: Buf, need: Need) -> Result<Region, Fault> {
        let (space, start, has) = match buf {
            Buf::Param(i) => {
                let has = *self.param_bytes.get(i).ok_or(Fault::Missing { what: "parameter", index: i })?;
                if let Some(by) = self.update_of(i).and_then(|r| self.results[r]) {
                    return Err(Fault::ReadAfterUpdate { buffer: self.name(buf), by });
                }
                (Space::Param(i), 0, has)
            }
            Buf::Result(i) => {
                let has = *self.result_bytes.get(i).ok_or(Fault::Missing { what: "result", index: i })?;
                if self.results[i].is_none() {
                    return Err(Fault::ReadBeforeWrite { buffer: self.name(buf) });
                }
                (self.home(i), 0, has)
            }
            Buf::Frame(offset) => {
                self.in_frame(buf, offset, need.bytes)?;
                (Space::Frame, offset, self.standing(offset)?)
            }
        };
        if has < need.bytes || (need.exact && has > need.bytes) {
            return Err(Fault::Size { buffer: self.name(buf), has, expected: need.bytes });
        }
        // A reader sees the whole buffer: what is written over its tail is written over it.
        Ok(Region { buf, space, start, bytes: has })
    }

    /// Bytes that stand at an offset of the frame.
    fn standing(&self, offset: usize) -> Result<usize, Fault> {
        if let Some(region) = self.frame.get(&offset) {
            return Ok(region.bytes);
        }
        let buffer = self.name(Buf::Frame(offset));
        Err(match self.lost.get(&offset) {
            Some(by) => Fault::Overwritten { buffer, by: *by },
            None => Fault::ReadBeforeWrite { buffer },
        })
    }

    fn in_frame(&self, buf: Buf, offset: usize, bytes: usize) -> Result<(), Fault> {
        let end = offset.saturating_add(bytes);
        if end > self.function.frame {
            return Err(Fault::Frame { buffer: self.name(buf), end, frame: self.function.frame });
        }
        Ok(())
    }

    /// The region that a step writes; nothing changes yet.
    fn place(&self, buf: Buf, bytes: usize) -> Result<Region, Fault> {
        let (space, start) = match buf {
            Buf::Frame(offset) => {
                self.in_frame(buf, offset, bytes)?;
                (Space::Frame, offset)
            }
            Buf::Param(_) | Buf::Result(_) => {
                let result = self.written(buf)?;
                let expected = self.result_bytes[result];
                if bytes != expected {
                    return Err(Fault::Size { buffer: self.name(buf), has: expected, expected: bytes });
                }
                return Ok(Region { buf, space: self.home(result), start: 0, bytes: expected });
            }
        };
        Ok(Region { buf, space, start, bytes })
    }

    /// The result that a step writes under this name: a parameter is written for its update.
    fn written(&self, buf: Buf) -> Result<usize, Fault> {
        match buf {
            Buf::Param(i) if i >= self.param_bytes.len() => Err(Fault::Missing { what: "parameter", index: i }),
            Buf::Param(i) => self.update_of(i).ok_or_else(|| Fault::ReadOnly { buffer: self.name(buf) }),
            Buf::Result(i) if i < self.result_bytes.len() => Ok(i),
            Buf::Result(index) | Buf::Frame(index) => Err(Fault::Missing { what: "result", index }),
        }
    }

    /// Two regions of one step must not overlap.
    fn apart(&self, written: &Region, other: &Region) -> Result<(), Fault> {
        if written.overlaps(other) {
            return Err(Fault::Overlap { written: self.name(written.buf), other: self.name(other.buf) });
        }
        Ok(())
    }

    /// Writes a region.
    fn write(&mut self, region: Region) -> Result<(), Fault> {
        if region.space != Space::Frame {
            let result = self.written(region.buf)?;
            if let Some(by) = self.results[result] {
                return Err(Fault::WrittenTwice { buffer: self.name(region.buf), by });
            }
            self.results[result] = Some(self.step);
            return Ok(());
        }
        // Regions in the frame do not overlap: the last that starts before the end may, and so on down.
        while let Some((start, old)) = self.frame.range(..region.end()).next_back() {
            if !old.overlaps(&region) {
                break;
            }
            let start = *start;
            self.frame.remove(&start);
            self.lost.insert(start, self.step);
        }
        self.frame.insert(region.start, region);
        Ok(())
    }
}

//! Loop kernels: a small vector machine.
//!
//! For every row (index of the outer loops) the instructions run over the lane, cut into tiles that
//! stay in cache unless an instruction needs the whole lane. Rows are cut into tasks: the loops
//! that every result has are spread over tasks freely; the loops that combining stores lack are
//! reduced inside a task in f64, and where that leaves too few tasks, in fixed chunks whose partial
//! results are combined in order.

mod code;
pub(crate) mod lanes;
mod machine;
mod memory;
mod nest;
mod rows;
mod touched;

use super::elem::{Elem, Simd};
use super::{unpack, Call, KernelError, Task};
use autoshard_ir::kernel::LoopKernel;
use code::Code;
use machine::Machine;
pub(super) use rows::{Cut, Epilogue, Rows};
use std::cell::UnsafeCell;
pub(super) use touched::Touched;

/// Elements of work per task, and longest piece of a lane.
const GRAIN: usize = 1 << 15;
/// Fewer independent rows than this: reduced loops are cut into chunks.
const FEW: usize = 8;
/// Most chunks.
const CHUNKS: usize = 16;

/// Nests of a kernel, resolved. They do not depend on each other.
#[derive(Debug)]
pub(super) struct Plan {
    nests: Vec<(Code, Schedule)>,
}

impl Plan {
    /// Resolves the nests.
    pub fn new(task: &Task, nests: &[LoopKernel]) -> Result<Plan, KernelError> {
        let resolve = |k| {
            let code = Code::new(task, k, &[])?;
            let schedule = Schedule::new(&code, true);
            Ok((code, schedule))
        };
        Ok(Plan { nests: nests.iter().map(resolve).collect::<Result<_, _>>()? })
    }

    /// Runs all nests as one list of tasks.
    ///
    /// # Safety
    /// As for [`super::Prepared::run`].
    pub unsafe fn run(&self, call: &Call) {
        let runs: Vec<Run> = self.nests.iter().map(|(code, schedule)| Run::new(call, code, schedule)).collect();
        let mut ends = Vec::with_capacity(runs.len());
        let mut total = 0;
        for r in &runs {
            total += r.schedule.tasks();
            ends.push(total);
        }
        call.pool.run(total, &|t| {
            let nest = ends.partition_point(|end| *end <= t);
            let run = &runs[nest];
            // SAFETY: `Code` checked all views; the caller's promise covers the rest. Tasks write
            // disjoint elements.
            unsafe { run.task(t + run.schedule.tasks() - ends[nest]) };
        });
        for r in &runs {
            // SAFETY: the tasks are done; this thread alone goes on.
            unsafe { r.finish() };
        }
    }
}

/// How the rows are cut. Decided by shapes alone.
#[derive(Debug)]
struct Schedule {
    /// Kept rows, and reduced rows inside each.
    kept: usize,
    reduced: usize,
    /// Pieces of the lane and their length.
    pieces: usize,
    piece: usize,
    /// Chunks that the reduced rows are cut into.
    chunks: usize,
    /// Units (kept row, piece of the lane) per task.
    group: usize,
    /// Where each store's accumulator starts within a unit's, and at the end the total.
    starts: Vec<usize>,
}

impl Schedule {
    /// `cut`: reduced rows may be cut into chunks.
    fn new(code: &Code, cut: bool) -> Schedule {
        let (lane, outer) = (code.nest.lane(), code.nest.outer());
        let (kept, reduced) = outer.split_at(code.nest.kept);
        let (kept, reduced) = (kept.iter().product::<usize>(), reduced.iter().product::<usize>());
        let whole = code.reduces || code.stores.iter().any(|s| code.nest.is_uniform(s.column));
        let piece = if whole { lane } else { lane.min(GRAIN) }.max(1);
        let pieces = lane.div_ceil(piece).max(1);
        let starts = code.accumulators(piece);
        let accumulated = starts.last().copied().unwrap_or(0);
        let work = reduced * piece;
        // Partial results must be small beside what they summarise.
        let most = work / (4 * accumulated).max(1);
        let combines = code.stores.iter().any(|s| s.combine.is_some());
        let chunks = if cut && combines && kept * pieces < FEW {
            work.div_ceil(GRAIN).min(most).min(reduced).clamp(1, CHUNKS)
        } else {
            1
        };
        let group = (GRAIN / (work / chunks).max(1)).max(1);
        Schedule { kept, reduced, pieces, piece, chunks, group, starts }
    }

    fn units(&self) -> usize {
        self.kept * self.pieces
    }

    fn tasks(&self) -> usize {
        match self.chunks {
            1 => self.units().div_ceil(self.group),
            n => self.units() * n,
        }
    }

    /// Elements that one unit's combining stores accumulate.
    fn accumulated(&self) -> usize {
        self.starts.last().copied().unwrap_or(0)
    }

    /// Reduced rows of a chunk.
    fn rows(&self, chunk: usize) -> std::ops::Range<usize> {
        let size = self.reduced.div_ceil(self.chunks);
        (chunk * size).min(self.reduced)..((chunk + 1) * size).min(self.reduced)
    }
}

impl Code {
    /// Where each store's accumulator starts within a unit's, and at the end the total: an entry
    /// per element of the reduced loops that the store has, and of the piece of the lane.
    fn accumulators(&self, piece: usize) -> Vec<usize> {
        let mut starts = vec![0];
        for s in &self.stores {
            let mut len = 0;
            if s.combine.is_some() {
                let has = |l: &usize| self.nest.columns[s.column].strides[*l] != 0;
                let loops = self.nest.kept..self.nest.outer().len();
                len = loops.filter(has).map(|l| self.nest.lens[l]).product();
                len *= if self.nest.lane_stride(s.column) == 0 { 1 } else { piece };
            }
            starts.push(starts[starts.len() - 1] + len);
        }
        starts
    }
}

/// Partial results of chunks. Each task writes its own.
struct Partials(UnsafeCell<Vec<f64>>);

// SAFETY: tasks use disjoint ranges (see `Partials::of`).
unsafe impl Sync for Partials {}

impl Partials {
    /// The accumulators of a unit's chunk.
    ///
    /// # Safety
    /// No two threads ask for the same one at the same time.
    #[allow(clippy::mut_from_ref)]
    unsafe fn of(&self, index: usize, len: usize) -> &mut [f64] {
        // SAFETY: the vector is never resized while tasks run; ranges of different indices are
        // disjoint, and inside: one per unit and chunk was allocated.
        unsafe {
            let start = (*self.0.get()).as_mut_ptr();
            std::slice::from_raw_parts_mut(start.add(index * len), len)
        }
    }
}

/// A nest while it runs.
struct Run<'a> {
    call: &'a Call<'a>,
    code: &'a Code,
    schedule: &'a Schedule,
    simd: Simd,
    /// What is added to each column; empty: nothing.
    shift: Vec<usize>,
    /// Accumulators of chunks, if rows are cut into chunks.
    partials: Partials,
}

impl<'a> Run<'a> {
    fn new(call: &'a Call<'a>, code: &'a Code, schedule: &'a Schedule) -> Run<'a> {
        let len = match schedule.chunks {
            1 => 0,
            n => schedule.units() * n * schedule.accumulated(),
        };
        let partials = Partials(UnsafeCell::new(vec![0.0; len]));
        Run { call, code, schedule, simd: Simd::detect(), shift: vec![], partials }
    }

    /// # Safety
    /// Each task is run once; buffers are as for [`super::Prepared::run`].
    unsafe fn task(&self, t: usize) {
        // SAFETY: the caller's promise.
        unsafe {
            if self.code.double {
                self.typed::<f64>(t);
            } else {
                self.typed::<f32>(t);
            }
        }
    }

    unsafe fn typed<E: Elem>(&self, t: usize) {
        let schedule = self.schedule;
        let (chunks, len) = (schedule.chunks, schedule.accumulated());
        Machine::<E>::with(self, |machine| {
            if chunks > 1 {
                // SAFETY: every task has partials of its own.
                unsafe { machine.reduce(t / chunks, t % chunks, self.partials.of(t, len)) };
                return;
            }
            let mut acc = vec![0.0; len];
            for unit in t * schedule.group..schedule.units().min((t + 1) * schedule.group) {
                // SAFETY: units write disjoint elements.
                unsafe {
                    machine.reduce(unit, 0, &mut acc);
                    machine.finish(unit, &acc);
                }
            }
        });
    }

    /// Combines the partial results of chunks, in order.
    ///
    /// # Safety
    /// All tasks are done; buffers are as for [`super::Prepared::run`].
    unsafe fn finish(&self) {
        let (chunks, len) = (self.schedule.chunks, self.schedule.accumulated());
        if chunks == 1 {
            return;
        }
        // Results are written from f64: the type of vectors does not matter.
        Machine::<f64>::with(self, |machine| {
            for unit in 0..self.schedule.units() {
                // SAFETY: the caller's promise.
                unsafe {
                    let total = self.partials.of(unit * chunks, len);
                    for chunk in 1..chunks {
                        machine.combine(total, self.partials.of(unit * chunks + chunk, len));
                    }
                    machine.finish(unit, total);
                }
            }
        });
    }
}

#[cfg(test)]
#[path = "loops/kernel_tests.rs"]
mod kernel_tests;
#[cfg(test)]
#[path = "loops/tests.rs"]
mod tests;

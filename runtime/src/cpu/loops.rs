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

use super::elem::{Elem, Simd};
use super::{unpack, KernelError, Task};
use autoshard_ir::kernel::LoopKernel;
use code::Code;
use machine::Machine;
use std::cell::UnsafeCell;

/// Elements of work per task, and longest piece of a lane.
const GRAIN: usize = 1 << 15;
/// Fewer independent rows than this: reduced loops are cut into chunks.
const FEW: usize = 8;
/// Most chunks.
const CHUNKS: usize = 16;

/// Runs the kernel.
///
/// # Safety
/// As for [`super::execute`].
pub(super) unsafe fn execute(task: &Task, nests: &[LoopKernel]) -> Result<(), KernelError> {
    for k in nests {
        let code = Code::new(task, k)?;
        // SAFETY: `Code` checked all views; the caller's promise covers the rest.
        unsafe {
            if code.double {
                run::<f64>(task, &code);
            } else {
                run::<f32>(task, &code);
            }
        }
    }
    Ok(())
}

/// How the rows are cut. Decided by shapes alone.
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
    /// Elements that one unit's combining stores accumulate.
    accumulated: usize,
}

impl Schedule {
    fn new(code: &Code) -> Schedule {
        let (lane, outer) = (code.nest.lane(), code.nest.outer());
        let (kept, reduced) = outer.split_at(code.nest.kept);
        let (kept, reduced) = (kept.iter().product::<usize>(), reduced.iter().product::<usize>());
        let whole = code.reduces || code.stores.iter().any(|s| code.nest.is_uniform(s.column));
        let piece = if whole { lane } else { lane.min(GRAIN) }.max(1);
        let pieces = lane.div_ceil(piece).max(1);
        let accumulated = code.accumulators(piece).last().copied().unwrap_or(0);
        let work = reduced * piece;
        // Partial results must be small beside what they summarise.
        let most = work / (4 * accumulated).max(1);
        let combines = code.stores.iter().any(|s| s.combine.is_some());
        let chunks = if combines && kept * pieces < FEW {
            work.div_ceil(GRAIN).min(most).min(reduced).clamp(1, CHUNKS)
        } else {
            1
        };
        let group = (GRAIN / (work / chunks).max(1)).max(1);
        Schedule { kept, reduced, pieces, piece, chunks, group, accumulated }
    }

    fn units(&self) -> usize {
        self.kept * self.pieces
    }

    /// Reduced rows of a chunk.
    fn rows(&self, chunk: usize) -> std::ops::Range<usize> {
        let size = self.reduced.div_ceil(self.chunks);
        (chunk * size).min(self.reduced)..((chunk + 1) * size).min(self.reduced)
    }
}

impl Code<'_> {
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

unsafe fn run<E: Elem>(task: &Task, code: &Code) {
    let schedule = Schedule::new(code);
    let simd = Simd::detect();
    let (units, chunks, len) = (schedule.units(), schedule.chunks, schedule.accumulated);
    if chunks == 1 {
        task.pool.run(units.div_ceil(schedule.group), &|t| {
            Machine::<E>::with(code, &schedule, simd, |machine| {
                let mut acc = vec![0.0; len];
                for unit in t * schedule.group..units.min((t + 1) * schedule.group) {
                    // SAFETY: units write disjoint elements.
                    unsafe {
                        machine.reduce(unit, 0, &mut acc);
                        machine.finish(unit, &acc);
                    }
                }
            });
        });
        return;
    }
    let partials = Partials(UnsafeCell::new(vec![0.0; units * chunks * len]));
    task.pool.run(units * chunks, &|t| {
        Machine::<E>::with(code, &schedule, simd, |machine| {
            // SAFETY: every task has partials of its own.
            unsafe { machine.reduce(t / chunks, t % chunks, partials.of(t, len)) };
        });
    });
    Machine::<E>::with(code, &schedule, simd, |machine| {
        for unit in 0..units {
            // SAFETY: the tasks are done; this thread alone goes on.
            unsafe {
                let total = partials.of(unit * chunks, len);
                for chunk in 1..chunks {
                    machine.combine(total, partials.of(unit * chunks + chunk, len));
                }
                machine.finish(unit, total);
            }
        }
    });
}

#[cfg(test)]
#[path = "loops/tests.rs"]
mod tests;

//! Products over packed panels, and what follows them row by row.
//!
//! A kernel is a list of [`Stage`]s. In a stage all second operands are packed first; then tasks,
//! each a panel of rows (and a range of columns, where rows are few), pack their part of the first
//! operands, multiply tile by tile, and run the epilogue on their rows. Tasks are cut by shapes
//! alone, and every element is summed by one task in one order.

pub(crate) mod micro;
pub(crate) mod pack;
mod panel;
mod plan;
mod turn;

pub(super) use plan::Plan;

use super::elem::{with_scratch, Elem, Simd};
use super::loops::Rows;
use super::{Call, Pointer};
use autoshard_ir::core::DType;
use micro::Compute;
use pack::Bf16;
use panel::{Columns, Panel};
use plan::Stage;

/// Packed second operands of one stage: at most this many bytes, unless one range of columns needs
/// more.
const PACKED_BYTES: usize = 8 << 20;

/// Fewer packed elements than this are packed by the caller alone: waking a thread takes longer.
const SHARED: usize = 1 << 16;

impl Plan {
    /// Runs the kernel.
    ///
    /// # Safety
    /// As for [`super::Prepared::run`].
    pub unsafe fn run(&self, call: &Call) {
        // SAFETY: the caller's promise.
        unsafe {
            match self.dtype {
                DType::F64 => self.stages::<f64, f64>(call),
                DType::Bf16 => self.stages::<f32, Bf16>(call),
                _ => self.stages::<f32, f32>(call),
            }
        }
    }

    unsafe fn stages<E: Compute, S: Stored<E>>(&self, call: &Call) {
        let simd = Simd::detect();
        let rows = self.epilogue.as_ref().map(|e| e.start(call));
        for stage in &self.stages {
            // SAFETY: the caller's promise.
            unsafe { stage.run::<E, S>(call, simd, rows.as_ref().filter(|_| stage.fused)) };
        }
        if let Some(rows) = rows {
            // SAFETY: the caller's promise; all products are done.
            unsafe { rows.finish() };
        }
    }
}

/// How elements lie in memory.
pub(crate) trait Stored<E: Elem>: pack::Source<E> {
    /// The nearest stored value.
    fn narrow(x: E) -> Self;
}

impl<E: Elem> Stored<E> for E {
    #[inline(always)]
    fn narrow(x: E) -> E {
        x
    }
}

impl Stored<f32> for Bf16 {
    #[inline(always)]
    fn narrow(x: f32) -> Bf16 {
        Bf16(super::elem::to_bf16(x))
    }
}

impl Stage {
    unsafe fn run<E: Compute, S: Stored<E>>(&self, call: &Call, simd: Simd, rows: Option<&Rows>) {
        let tile = E::tile(simd);
        // Columns are taken a range at a time, to bound what is packed.
        let per_column: usize = self.products.iter().map(|p| p.items * p.k).sum::<usize>() * E::DTYPE.bytes();
        let most = self.products.iter().map(|p| p.n).max().unwrap_or(0);
        let width = (PACKED_BYTES / per_column.max(1)).max(256).next_multiple_of(tile.columns());
        let chunks = most.div_ceil(width).max(1);
        for chunk in 0..chunks {
            let range = |n: usize| (chunk * width).min(n)..((chunk + 1) * width).min(n);
            let columns: Vec<Columns> = self.products.iter().map(|p| Columns::new(p, range(p.n), tile)).collect();
            // The epilogue needs whole rows.
            let rows = rows.filter(|_| chunk + 1 == chunks);
            // SAFETY: the caller's promise.
            unsafe { self.chunk::<E, S>(call, simd, &columns, rows) };
        }
    }

    /// Packs these columns of the second operands, then multiplies.
    unsafe fn chunk<E: Compute, S: Stored<E>>(
        &self,
        call: &Call,
        simd: Simd,
        columns: &[Columns],
        rows: Option<&Rows>,
    ) {
        let mut starts = vec![0];
        let mut packs = vec![];
        for (i, (p, c)) in self.products.iter().zip(columns).enumerate() {
            let start = starts[i];
            starts.push(start + p.items * c.elements(p.k));
            packs.extend((0..p.items).flat_map(|item| c.jobs(p.k).map(move |job| (i, item, job))));
        }
        with_scratch::<E, _>(starts[columns.len()], |packed| {
            let to = Pointer(packed.as_mut_ptr().cast());
            let pack = |t: usize| {
                let (i, item, job) = &packs[t];
                let (p, c) = (&self.products[*i], &columns[*i]);
                // SAFETY: jobs write disjoint parts of the scratch.
                unsafe {
                    let dst = to.at::<E>(starts[*i] + item * c.elements(p.k));
                    c.pack::<E, S>(call, simd, p, *item, job, dst);
                }
            };
            if packed.len() < SHARED {
                (0..packs.len()).for_each(pack);
            } else {
                call.pool.run(packs.len(), &pack);
            }
            let tasks = self.tasks();
            call.pool.run(tasks, &|t| {
                let panel = self.panel(t);
                let operands = |i: usize| {
                    let (p, c) = (&self.products[i], &columns[i]);
                    // SAFETY: where it was packed.
                    unsafe { to.at::<E>(starts[i] + panel.item * c.elements(p.k)).cast_const() }
                };
                // SAFETY: views were checked; panels write disjoint blocks of the results.
                unsafe {
                    panel::multiply::<E, S>(call, simd, self, &panel, columns, &operands);
                    if let Some(rows) = rows {
                        rows.run(t);
                    }
                }
            });
        });
    }

    /// The panel of a task.
    fn panel(&self, t: usize) -> Panel {
        let (cut, parts) = (t / self.parts, t % self.parts);
        let group = self.groups.iter().rposition(|g| g.first <= cut).unwrap_or(0);
        let g = &self.groups[group];
        let cut = cut - g.first;
        let (item, cut) = (cut / g.cuts.len().max(1), cut % g.cuts.len().max(1));
        let rows = g.cuts[cut].clone();
        Panel { group, item, rows, part: parts, parts: self.parts }
    }

    fn tasks(&self) -> usize {
        self.groups.iter().map(|g| g.items * g.cuts.len()).sum::<usize>() * self.parts
    }
}

#[cfg(test)]
mod tests;

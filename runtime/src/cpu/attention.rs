//! Attention with an online softmax, forward and backward, over packed panels.
//!
//! One task works on the queries of one key head. Scores are computed transposed, `[key, query]`,
//! for a panel of as many queries as a register tile has columns: so the softmax goes down columns,
//! one query per lane, and its result is the packed operand of the next product as it lies. Keys
//! that no query of a panel sees are skipped; where only some see a key, lanes are masked.

mod backward;
mod forward;

use super::elem::{with_scratch, Elem, Simd};
use super::gemm::micro::{Compute, Out, Tile, MAX_ROWS};
use super::gemm::pack::{pack, Bf16, Part};
use super::gemm::Stored;
use super::{Call, KernelError, Range, Slot, Task};
use autoshard_ir::core::DType;
use autoshard_ir::kernel::{AttentionKernel, Extent};

/// Keys of a block.
const KEYS: usize = 512;
/// Fewer key heads than this: their queries are cut over tasks.
const FEW: usize = 16;

/// Views, real ranges and padded strides.
#[derive(Debug)]
pub(super) struct Plan {
    slots: Vec<Slot>,
    dtype: DType,
    scale: f64,
    causal: bool,
    window: usize,
    b: usize,
    s: Range,
    t: Range,
    g: usize,
    r: usize,
    e: usize,
    h: usize,
    /// Padded sizes.
    pad: Pad,
}

/// Padded sizes.
#[derive(Debug)]
struct Pad {
    s: usize,
    t: usize,
    g: usize,
    r: usize,
    e: usize,
    h: usize,
}

/// Which of the six layouts a buffer has: query or key rows, and how wide.
#[derive(Clone, Copy)]
enum Rows {
    Query(usize),
    Key(usize),
}

impl Plan {
    /// Resolves q, k, v → o, lse.
    pub fn forward(task: &Task, k: &AttentionKernel) -> Result<Plan, KernelError> {
        let mut p = Plan::new(task, k)?;
        let (e, h) = (k.e.size, k.h.size);
        let views = [Rows::Query(e), Rows::Key(e), Rows::Key(h), Rows::Query(h), Rows::Query(1)];
        p.check(task, &views, &[p.e, p.e, p.h, p.h, 1])?;
        Ok(p)
    }

    /// Resolves q, k, v, o, lse, d_o → dq, dk, dv.
    pub fn backward(task: &Task, k: &AttentionKernel) -> Result<Plan, KernelError> {
        let mut p = Plan::new(task, k)?;
        let (e, h) = (k.e.size, k.h.size);
        let (q, key, v, o) = (Rows::Query(e), Rows::Key(e), Rows::Key(h), Rows::Query(h));
        p.check(task, &[q, key, v, o, Rows::Query(1), o, q, key, v], &[p.e, p.e, p.h, p.h, 1, p.h, p.e, p.e, p.h])?;
        Ok(p)
    }

    fn new(task: &Task, k: &AttentionKernel) -> Result<Plan, KernelError> {
        if k.dtype == DType::I32 {
            return Err(task.unsupported(format!("attention in {}", k.dtype)));
        }
        let len = |e: &Extent| task.range(e).len;
        let width = k.e.size.max(k.h.size);
        task.check_packed(&[k.b.size, k.s.size, k.g.size, k.r.size, width])?;
        task.check_packed(&[k.b.size, k.t.size, k.g.size, width])?;
        Ok(Plan {
            slots: vec![],
            dtype: k.dtype,
            scale: k.scale,
            causal: k.causal,
            window: k.window,
            b: len(&k.b),
            s: task.range(&k.s),
            t: task.range(&k.t),
            g: len(&k.g),
            r: len(&k.r),
            e: len(&k.e),
            h: len(&k.h),
            pad: Pad { s: k.s.size, t: k.t.size, g: k.g.size, r: k.r.size, e: k.e.size, h: k.h.size },
        })
    }

    /// Checks the buffers, rows of padded widths, `lens` of them real.
    fn check(&mut self, task: &Task, views: &[Rows], lens: &[usize]) -> Result<(), KernelError> {
        for (buffer, (rows, len)) in views.iter().zip(lens).enumerate() {
            let p = &self.pad;
            let loops = match *rows {
                Rows::Query(w) => {
                    let row = p.g * p.r * w;
                    vec![(self.b, p.s * row), (self.s.len, row), (self.g, p.r * w), (self.r, w), (*len, 1)]
                }
                Rows::Key(w) => {
                    let row = p.g * w;
                    vec![(self.b, p.t * row), (self.t.len, row), (self.g, w), (*len, 1)]
                }
            };
            self.slots.push(task.check(buffer, self.dtype, 0, loops)?);
        }
        Ok(())
    }

    /// Offset of the queries of one head from local position `i` on, and the distance of positions.
    fn queries(&self, w: usize, [b, g, r]: [usize; 3], i: usize) -> Lines {
        let step = self.pad.g * self.pad.r * w;
        Lines { start: (b * self.pad.s + i) * step + (g * self.pad.r + r) * w, step }
    }

    /// Those of the keys or values of one head, from local position `j` on.
    fn keys(&self, w: usize, b: usize, g: usize, j: usize) -> Lines {
        let step = self.pad.g * w;
        Lines { start: (b * self.pad.t + j) * step + g * w, step }
    }

    /// The local keys that the query at local position `i` sees. Both ends grow with `i`.
    fn seen(&self, i: usize) -> (usize, usize) {
        let global = self.s.start + i;
        let to = if self.causal { global + 1 } else { usize::MAX };
        let from = match self.window {
            0 => 0,
            w => (global + 1).saturating_sub(w),
        };
        let local = |j: usize| j.saturating_sub(self.t.start).min(self.t.len);
        (local(from), local(to).max(local(from)))
    }

    /// What a panel of queries sees of the keys `block`.
    fn view(&self, i: usize, n: usize, block: &std::ops::Range<usize>) -> View {
        let mut view = View { from: [0; MAX_LANES], to: [0; MAX_LANES], full: (0, 0), any: (0, 0) };
        let clip = |j: usize| j.clamp(block.start, block.end) - block.start;
        for l in 0..MAX_LANES {
            let (from, to) = self.seen(i + l.min(n - 1));
            (view.from[l], view.to[l]) = (clip(from) as i32, clip(to) as i32);
        }
        let (first, last) = (self.seen(i), self.seen(i + n - 1));
        view.any = (clip(first.0), clip(last.1).max(clip(first.0)));
        let full = (clip(last.0), clip(first.1));
        view.full = if full.0 < full.1 { full } else { (view.any.1, view.any.1) };
        view
    }

    /// Tasks: key heads, and parts that the panels of their queries are dealt to.
    fn parts(&self, panels: usize) -> usize {
        FEW.div_ceil((self.b * self.g).max(1)).min(panels).max(1)
    }
}

/// Most lanes of a panel.
const MAX_LANES: usize = super::gemm::micro::MAX_COLUMNS;

/// Lines in memory: where the first starts, and how far apart they are.
#[derive(Clone, Copy)]
struct Lines {
    start: usize,
    step: usize,
}

impl Lines {
    fn offsets(self, n: usize) -> Vec<usize> {
        (0..n).map(|i| self.start + i * self.step).collect()
    }
}

/// Which keys of a block the lanes see, counted from its start.
struct View {
    from: [i32; MAX_LANES],
    to: [i32; MAX_LANES],
    /// Keys that every lane sees.
    full: (usize, usize),
    /// Keys that any lane sees.
    any: (usize, usize),
}

/// Parts of nearly equal size, none above `most`: the first and the length of each.
fn strips(n: usize, most: usize) -> impl Iterator<Item = (usize, usize)> + Clone {
    let pieces = n.div_ceil(most).max(1);
    (0..pieces).map(move |i| (i * n / pieces, (i + 1) * n / pieces - i * n / pieces)).filter(|s| s.1 > 0)
}

/// Blocks of keys.
fn blocks(t: usize) -> impl Iterator<Item = std::ops::Range<usize>> {
    (0..t).step_by(KEYS).map(move |j| j..t.min(j + KEYS))
}

/// Packs rows as the first operand of products: strips of lines, each with all steps.
///
/// # Safety
/// As for [`pack`], with a vector to spare after the last strip.
unsafe fn pack_rows<E: Compute, S: Stored<E>>(
    (simd, tile): (Simd, Tile),
    src: *const S,
    lines: &[usize],
    steps: &[usize],
    dst: *mut E,
) {
    let part = |(at, len)| Part { at, len, width: len, to: at * steps.len() };
    let parts: Vec<Part> = strips(lines.len(), tile.rows).map(part).collect();
    // SAFETY: the caller's promise.
    unsafe { pack(simd, src, lines, steps, &parts, dst) };
}

/// `out[row, :] = init + Σ a·b` for strips of rows: `a` as [`pack_rows`] leaves it, of which the
/// steps `steps.0..steps.1` out of `steps.2` count; `b` a packed panel of `vectors` vectors; rows of
/// `out` are `width` apart.
///
/// # Safety
/// As for [`Compute::multiply`].
#[allow(clippy::too_many_arguments)]
unsafe fn multiply_rows<E: Compute>(
    (simd, tile): (Simd, Tile),
    rows: usize,
    steps: (usize, usize, usize),
    a: *const E,
    (b, vectors): (*const E, usize),
    (out, width): (*mut E, usize),
    add: bool,
) {
    let mut offsets = [0; MAX_ROWS];
    offsets.iter_mut().enumerate().for_each(|(i, o)| *o = i * width);
    for (at, n) in strips(rows, tile.rows) {
        // SAFETY: the caller's promise.
        unsafe {
            let a = a.add(at * steps.2 + steps.0 * n);
            let b = b.add(steps.0 * vectors * tile.lanes);
            let ptr = out.add(at * width);
            let init = if add { ptr.cast_const() } else { std::ptr::null() };
            E::multiply(simd, vectors, steps.1 - steps.0, a, b, Out { ptr, init, rows: &offsets[..n] });
        }
    }
}

/// One panel of this width.
fn panel(len: usize, width: usize) -> [Part; 1] {
    [Part { at: 0, len, width, to: 0 }]
}

/// Writes `[column, lane]` as rows: `to[lines[lane] + column]`, for columns contiguous in memory.
///
/// # Safety
/// The elements exist.
unsafe fn store_turned<E: Compute, S: Stored<E>>(
    simd: Simd,
    from: &[E],
    width: usize,
    columns: usize,
    lines: Lines,
    n: usize,
    to: *mut S,
) {
    let block = E::block(simd);
    let fast = S::same(to.cast_const()).filter(|_| block > 0 && columns.is_multiple_of(block) && n == width);
    // SAFETY: the caller's promise.
    unsafe {
        if let Some(to) = fast {
            for c in (0..columns).step_by(block) {
                let rows: Vec<usize> = (c..c + block).map(|c| c * width).collect();
                for l in (0..n).step_by(block) {
                    let dst = to.cast_mut().add(lines.start + l * lines.step + c);
                    E::turn(simd, from.as_ptr().add(l), &rows, lines.step, dst);
                }
            }
            return;
        }
        for (l, c) in (0..n).flat_map(|l| (0..columns).map(move |c| (l, c))) {
            to.add(lines.start + l * lines.step + c).write(S::narrow(from[c * width + l]));
        }
    }
}

#[cfg(test)]
#[path = "attention_tests.rs"]
mod tests;

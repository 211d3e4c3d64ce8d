//! Blocked attention with an online softmax, forward and backward.
//!
//! Products of blocks go through the `gemm` crate. Blocks that no query sees are skipped; in a
//! block that some see, each row works on the range of keys that it sees.

use super::elem::{with_scratch, Elem, Simd};
use super::gemm::{multiply, Matrix};
use super::loops::lanes;
use super::{KernelError, Pointer, Range, Task};
use autoshard_ir::core::DType;
use autoshard_ir::kernel::AttentionKernel;

/// Queries and keys of a block.
const QUERIES: usize = 64;
const KEYS: usize = 128;

/// q, k, v → o, lse.
///
/// # Safety
/// As for [`super::execute`].
pub(super) unsafe fn forward(task: &Task, k: &AttentionKernel) -> Result<(), KernelError> {
    // SAFETY: the caller's promise.
    unsafe {
        match k.dtype {
            DType::F32 => run_forward::<f32>(task, k),
            DType::F64 => run_forward::<f64>(task, k),
            other => Err(task.unsupported(format!("attention in {other}"))),
        }
    }
}

/// q, k, v, o, lse, d_o → dq, dk, dv.
///
/// # Safety
/// As for [`super::execute`].
pub(super) unsafe fn backward(task: &Task, k: &AttentionKernel) -> Result<(), KernelError> {
    // SAFETY: the caller's promise.
    unsafe {
        match k.dtype {
            DType::F32 => run_backward::<f32>(task, k),
            DType::F64 => run_backward::<f64>(task, k),
            other => Err(task.unsupported(format!("attention in {other}"))),
        }
    }
}

/// Real ranges and padded strides.
struct Shape<'a> {
    kernel: &'a AttentionKernel,
    simd: Simd,
    b: usize,
    s: Range,
    t: Range,
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

impl<'a> Shape<'a> {
    fn new(task: &Task, k: &'a AttentionKernel) -> Result<Shape<'a>, KernelError> {
        let len = |e| task.range(e).len;
        let width = k.e.size.max(k.h.size);
        task.check_packed(&[k.b.size, k.s.size, k.g.size, k.r.size, width])?;
        task.check_packed(&[k.b.size, k.t.size, k.g.size, width])?;
        Ok(Shape {
            kernel: k,
            simd: Simd::detect(),
            b: len(&k.b),
            s: task.range(&k.s),
            t: task.range(&k.t),
            g: len(&k.g),
            r: len(&k.r),
            e: len(&k.e),
            h: len(&k.h),
        })
    }

    /// Checks a buffer of rows of this padded width, `len` of it real.
    fn check(&self, task: &Task, buffer: usize, rows: Rows, len: usize) -> Result<Pointer, KernelError> {
        let k = self.kernel;
        let loops = match rows {
            Rows::Query(w) => {
                let row = k.g.size * k.r.size * w;
                vec![(self.b, k.s.size * row), (self.s.len, row), (self.g, k.r.size * w), (self.r, w), (len, 1)]
            }
            Rows::Key(w) => {
                let row = k.g.size * w;
                vec![(self.b, k.t.size * row), (self.t.len, row), (self.g, w), (len, 1)]
            }
        };
        task.check(buffer, k.dtype, 0, loops)
    }

    /// The matrix of the queries of one head: rows are positions from local `i` on.
    unsafe fn queries<E>(&self, p: Pointer, w: usize, head: [usize; 3], i: usize) -> Matrix<E> {
        let k = self.kernel;
        let row = k.g.size * k.r.size * w;
        let at = (head[0] * k.s.size + i) * row + (head[1] * k.r.size + head[2]) * w;
        // SAFETY: the caller passes a checked buffer and indices of real entries.
        Matrix { ptr: unsafe { p.at(at) }, row, col: 1 }
    }

    /// The matrix of the keys or values of one head, from local position `j` on.
    unsafe fn keys<E>(&self, p: Pointer, w: usize, b: usize, g: usize, j: usize) -> Matrix<E> {
        let k = self.kernel;
        let row = k.g.size * w;
        // SAFETY: as for `queries`.
        Matrix { ptr: unsafe { p.at((b * k.t.size + j) * row + g * w) }, row, col: 1 }
    }

    /// The local keys that the query at local position `i` sees.
    fn seen(&self, i: usize) -> (usize, usize) {
        let global = self.s.start + i;
        let to = if self.kernel.causal { global + 1 } else { usize::MAX };
        let from = match self.kernel.window {
            0 => 0,
            w => (global + 1).saturating_sub(w),
        };
        let local = |j: usize| j.saturating_sub(self.t.start).min(self.t.len);
        (local(from), local(to).max(local(from)))
    }

    /// The keys of block `j..j + n` that query `i` sees, counted from `j`.
    fn seen_in(&self, i: usize, j: usize, n: usize) -> (usize, usize) {
        let (from, to) = self.seen(i);
        (from.saturating_sub(j).min(n), to.saturating_sub(j).min(n))
    }

    /// Blocks of keys that any of the queries `i..i + n` sees: (start, length). Both ends of the
    /// seen range grow with the position.
    fn key_blocks(&self, i: usize, n: usize) -> impl Iterator<Item = (usize, usize)> {
        let (from, to) = (self.seen(i).0, self.seen(i + n - 1).1);
        let first = from / KEYS * KEYS;
        (first..to.max(first)).step_by(KEYS).map(move |j| (j, KEYS.min(to - j)))
    }
}

unsafe fn run_forward<E: Elem>(task: &Task, k: &AttentionKernel) -> Result<(), KernelError> {
    let shape = Shape::new(task, k)?;
    let q = shape.check(task, 0, Rows::Query(k.e.size), shape.e)?;
    let key = shape.check(task, 1, Rows::Key(k.e.size), shape.e)?;
    let v = shape.check(task, 2, Rows::Key(k.h.size), shape.h)?;
    let o = shape.check(task, 3, Rows::Query(k.h.size), shape.h)?;
    let lse = shape.check(task, 4, Rows::Query(1), 1)?;
    let blocks = shape.s.len.div_ceil(QUERIES);
    let heads = shape.b * shape.g * shape.r;
    task.pool.run(heads * blocks, &|unit| {
        // The blocks with the most keys first: they take longest.
        let (head, block) = (unit / blocks, blocks - 1 - unit % blocks);
        let head = [head / shape.r / shape.g, head / shape.r % shape.g, head % shape.r];
        with_scratch::<E, _>(QUERIES * (KEYS + shape.h + 1), |scratch| {
            // SAFETY: buffers were checked; units write different rows.
            unsafe { forward_block(&shape, [q, key, v, o, lse], head, block * QUERIES, scratch) };
        });
    });
    Ok(())
}

/// The softmax of one block of queries: for each row the maximum so far, the sum of exponentials
/// relative to it, and the output not yet divided by the sum.
unsafe fn forward_block<E: Elem>(
    shape: &Shape,
    [q, key, v, o, lse]: [Pointer; 5],
    head: [usize; 3],
    i: usize,
    scratch: &mut [E],
) {
    let (k, n, h) = (shape.kernel, QUERIES.min(shape.s.len - i), shape.h);
    let (scores, rest) = scratch.split_at_mut(QUERIES * KEYS);
    let (out, top) = rest.split_at_mut(QUERIES * h);
    let mut sums = [0f64; QUERIES];
    out.fill(E::ZERO);
    top.fill(E::of(f64::NEG_INFINITY));
    // SAFETY: the caller's promise; scratch blocks hold QUERIES rows.
    unsafe {
        let queries = shape.queries::<E>(q, k.e.size, head, i);
        let [b, g, _] = head;
        for (j, m) in shape.key_blocks(i, n) {
            let keys = shape.keys::<E>(key, k.e.size, b, g, j).transposed();
            let tile = Matrix { ptr: scores.as_mut_ptr(), row: KEYS, col: 1 };
            multiply((n, m, shape.e), tile, false, queries, keys, E::of(k.scale));
            for row in 0..n {
                let (from, to) = shape.seen_in(i + row, j, m);
                let line = &mut scores[row * KEYS..row * KEYS + m];
                let sum = &mut sums[row];
                let acc = &mut out[row * h..(row + 1) * h];
                online_row(shape.simd, line, (from, to), &mut top[row], sum, acc);
            }
            let values = shape.keys::<E>(v, k.h.size, b, g, j);
            let tile = Matrix { ptr: scores.as_mut_ptr(), row: KEYS, col: 1 };
            let acc = Matrix { ptr: out.as_mut_ptr(), row: h, col: 1 };
            multiply((n, h, m), acc, true, tile, values, E::ONE);
        }
        let o = shape.queries::<E>(o, k.h.size, head, i);
        let lse = shape.queries::<E>(lse, 1, head, i);
        for row in 0..n {
            // A query that saw no key: zero, and the logarithm of nothing.
            let inverse = if sums[row] == 0.0 { 0.0 } else { 1.0 / sums[row] };
            for (c, x) in out[row * h..(row + 1) * h].iter().enumerate() {
                o.ptr.add(row * o.row + c).write(E::of(x.wide() * inverse));
            }
            lse.ptr.add(row * lse.row).write(E::of(top[row].wide() + sums[row].ln()));
        }
    }
}

/// Turns one row of scores into exponentials relative to the new maximum, with zeros where the
/// query sees nothing, and rescales what was accumulated under the old one.
fn online_row<E: Elem>(
    simd: Simd,
    line: &mut [E],
    (from, to): (usize, usize),
    top: &mut E,
    sum: &mut f64,
    acc: &mut [E],
) {
    line[..from].fill(E::ZERO);
    line[to..].fill(E::ZERO);
    let seen = &mut line[from..to];
    let new = top.max(lanes::max(simd, seen));
    if new == E::of(f64::NEG_INFINITY) {
        // Nothing seen yet, or only scores of −∞: they weigh nothing.
        seen.fill(E::ZERO);
        return;
    }
    if new != *top {
        let correction = (top.wide() - new.wide()).exp();
        *sum *= correction;
        lanes::scale(simd, E::of(correction), acc);
        *top = new;
    }
    lanes::exp_shifted(simd, new, seen);
    *sum += lanes::sum(simd, seen);
}

unsafe fn run_backward<E: Elem>(task: &Task, k: &AttentionKernel) -> Result<(), KernelError> {
    let shape = Shape::new(task, k)?;
    let query = |i, w: &autoshard_ir::kernel::Extent, len| shape.check(task, i, Rows::Query(w.size), len);
    let keys = |i, w: &autoshard_ir::kernel::Extent, len| shape.check(task, i, Rows::Key(w.size), len);
    let grads = Grads {
        q: query(0, &k.e, shape.e)?,
        k: keys(1, &k.e, shape.e)?,
        v: keys(2, &k.h, shape.h)?,
        o: query(3, &k.h, shape.h)?,
        lse: shape.check(task, 4, Rows::Query(1), 1)?,
        d_o: query(5, &k.h, shape.h)?,
        dq: query(6, &k.e, shape.e)?,
        dk: keys(7, &k.e, shape.e)?,
        dv: keys(8, &k.h, shape.h)?,
    };
    // dk and dv add up over r and over queries: one task per key head, so nobody else writes them.
    task.pool.run(shape.b * shape.g, &|unit| {
        let (b, g) = (unit / shape.g, unit % shape.g);
        with_scratch::<E, _>(2 * QUERIES * KEYS, |scratch| {
            // SAFETY: buffers were checked; units write different heads.
            unsafe {
                clear(shape.keys::<E>(grads.dk, k.e.size, b, g, 0), shape.t.len, shape.e);
                clear(shape.keys::<E>(grads.dv, k.h.size, b, g, 0), shape.t.len, shape.h);
                for r in 0..shape.r {
                    for i in (0..shape.s.len).step_by(QUERIES) {
                        backward_block(&shape, &grads, [b, g, r], i, scratch);
                    }
                }
            }
        });
    });
    Ok(())
}

/// Buffers of the backward.
struct Grads {
    q: Pointer,
    k: Pointer,
    v: Pointer,
    o: Pointer,
    lse: Pointer,
    d_o: Pointer,
    dq: Pointer,
    dk: Pointer,
    dv: Pointer,
}

unsafe fn clear<E: Elem>(m: Matrix<E>, rows: usize, cols: usize) {
    for row in 0..rows {
        // SAFETY: the caller's promise: the matrix has these rows, each contiguous.
        unsafe { std::slice::from_raw_parts_mut(m.ptr.add(row * m.row), cols).fill(E::ZERO) };
    }
}

/// One block of queries: writes its dq, adds to dk and dv.
///
/// With P = exp(scale·QKᵀ − lse): dV += PᵀdO, dS = P·(dOVᵀ − rowsum(dO·O))·scale, dQ += dS·K,
/// dK += dSᵀQ.
unsafe fn backward_block<E: Elem>(shape: &Shape, x: &Grads, head: [usize; 3], i: usize, scratch: &mut [E]) {
    let (k, n, simd) = (shape.kernel, QUERIES.min(shape.s.len - i), shape.simd);
    let (e, h, [b, g, _]) = (shape.e, shape.h, head);
    let (p, ds) = scratch.split_at_mut(QUERIES * KEYS);
    let mut delta = [0f64; QUERIES];
    // SAFETY: the caller's promise; scratch blocks hold QUERIES rows.
    unsafe {
        let q = shape.queries::<E>(x.q, k.e.size, head, i);
        let o = shape.queries::<E>(x.o, k.h.size, head, i);
        let d_o = shape.queries::<E>(x.d_o, k.h.size, head, i);
        let dq = shape.queries::<E>(x.dq, k.e.size, head, i);
        let lse = shape.queries::<E>(x.lse, 1, head, i);
        clear(dq, n, e);
        for (row, sum) in delta[..n].iter_mut().enumerate() {
            let line = |m: Matrix<E>| std::slice::from_raw_parts(m.ptr.add(row * m.row), h);
            *sum = lanes::dot(simd, line(d_o), line(o));
        }
        for (j, m) in shape.key_blocks(i, n) {
            let keys = shape.keys::<E>(x.k, k.e.size, b, g, j);
            let values = shape.keys::<E>(x.v, k.h.size, b, g, j);
            let (dk, dv) = (shape.keys(x.dk, k.e.size, b, g, j), shape.keys(x.dv, k.h.size, b, g, j));
            let p_tile = Matrix { ptr: p.as_mut_ptr(), row: KEYS, col: 1 };
            let ds_tile = Matrix { ptr: ds.as_mut_ptr(), row: KEYS, col: 1 };
            multiply((n, m, e), p_tile, false, q, keys.transposed(), E::of(k.scale));
            multiply((n, m, h), ds_tile, false, d_o, values.transposed(), E::ONE);
            for (row, shift) in delta[..n].iter().enumerate() {
                let (from, to) = shape.seen_in(i + row, j, m);
                let span = row * KEYS..row * KEYS + m;
                let (p, ds) = (&mut p[span.clone()], &mut ds[span]);
                for unseen in [&mut p[..from], &mut ds[..from]] {
                    unseen.fill(E::ZERO);
                }
                for unseen in [&mut p[to..], &mut ds[to..]] {
                    unseen.fill(E::ZERO);
                }
                if from < to {
                    let lse = lse.ptr.add(row * lse.row).read();
                    backward_row(simd, lse, E::of(*shift), E::of(k.scale), &mut p[from..to], &mut ds[from..to]);
                }
            }
            let p_tile = Matrix { ptr: p.as_mut_ptr(), row: KEYS, col: 1 };
            let ds_tile = Matrix { ptr: ds.as_mut_ptr(), row: KEYS, col: 1 };
            multiply((m, h, n), dv, true, p_tile.transposed(), d_o, E::ONE);
            multiply((n, e, m), dq, true, ds_tile, keys, E::ONE);
            multiply((m, e, n), dk, true, ds_tile.transposed(), q, E::ONE);
        }
    }
}

/// Scores to probabilities, and their cotangents to those of the scores.
fn backward_row<E: Elem>(simd: Simd, lse: E, shift: E, scale: E, p: &mut [E], ds: &mut [E]) {
    if lse == E::of(f64::NEG_INFINITY) {
        // Every score was −∞: the output did not depend on them.
        p.fill(E::ZERO);
        ds.fill(E::ZERO);
        return;
    }
    lanes::exp_shifted(simd, lse, p);
    lanes::weigh(simd, shift, scale, p, ds);
}

#[cfg(test)]
#[path = "attention_tests.rs"]
mod tests;

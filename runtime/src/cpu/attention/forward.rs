//! q, k, v → o, lse.

use super::*;
use crate::cpu::elem::multiversion;

impl Plan {
    /// Runs the forward.
    ///
    /// # Safety
    /// As for [`crate::cpu::Prepared::run`].
    pub unsafe fn run_forward(&self, call: &Call) {
        // SAFETY: the caller's promise.
        unsafe {
            match self.dtype {
                DType::F64 => self.forward_typed::<f64, f64>(call),
                DType::Bf16 => self.forward_typed::<f32, Bf16>(call),
                _ => self.forward_typed::<f32, f32>(call),
            }
        }
    }

    unsafe fn forward_typed<E: Compute, S: Stored<E>>(&self, call: &Call) {
        let simd = Simd::detect();
        let x = Forward::<E> { plan: self, simd, tile: E::tile(simd), to: std::marker::PhantomData };
        let panels = self.r * self.s.len.div_ceil(x.tile.columns());
        let parts = self.parts(panels);
        call.pool.run(self.b * self.g * parts, &|t| {
            let (head, part) = (t / parts, t % parts);
            // The last panels see most keys: they take longest, and come first.
            let mine = (part..panels).step_by(parts).rev();
            // SAFETY: views were checked; tasks write different queries.
            unsafe { x.head::<S>(call, (head / self.g, head % self.g), mine) };
        });
    }
}

/// What the tasks share.
struct Forward<'a, E> {
    plan: &'a Plan,
    simd: Simd,
    tile: Tile,
    to: std::marker::PhantomData<E>,
}

/// Scratch of a task.
struct Scratch<E> {
    /// Keys, and values transposed, as first operands, by blocks of keys.
    keys: *mut E,
    values: *mut E,
    /// The panel's queries as second operand.
    queries: *mut E,
    /// Scores, then exponentials, of a block of keys.
    scores: *mut E,
    /// The output, transposed.
    out: *mut E,
}

impl<E: Compute> Forward<'_, E> {
    unsafe fn head<S: Stored<E>>(&self, call: &Call, (b, g): (usize, usize), panels: impl Iterator<Item = usize>) {
        let p = self.plan;
        let (w, t, spare) = (self.tile.columns(), p.t.len, MAX_LANES);
        let sizes = [t * p.e + spare, t * p.h + spare, p.e * w, (KEYS.min(t) + MAX_ROWS) * w, p.h * w];
        with_scratch::<E, _>(sizes.iter().sum(), |scratch| {
            let mut at = scratch.as_mut_ptr();
            let [keys, values, queries, scores, out] = sizes.map(|n| {
                let here = at;
                at = at.wrapping_add(n);
                here
            });
            let x = Scratch { keys, values, queries, scores, out };
            // SAFETY: the caller's promise; the parts of the scratch are that large.
            unsafe {
                self.pack_head::<S>(call, b, g, &x);
                for panel in panels {
                    let (r, i) = (panel % p.r, panel / p.r * w);
                    self.panel::<S>(call, [b, g, r], i, &x);
                }
            }
        });
    }

    unsafe fn pack_head<S: Stored<E>>(&self, call: &Call, b: usize, g: usize, x: &Scratch<E>) {
        let p = self.plan;
        let (e, h): (Vec<usize>, Vec<usize>) = ((0..p.e).collect(), (0..p.h).collect());
        for block in blocks(p.t.len) {
            let keys = p.keys(p.pad.e, b, g, block.start).offsets(block.len());
            let values = p.keys(p.pad.h, b, g, block.start).offsets(block.len());
            // SAFETY: the caller's promise.
            unsafe {
                let (k, v) = (call.at(p.slots[1]).at::<S>(0), call.at(p.slots[2]).at::<S>(0));
                let isa = (self.simd, self.tile);
                pack_rows(isa, k.cast_const(), &keys, &e, x.keys.add(block.start * p.e));
                pack_rows(isa, v.cast_const(), &h, &values, x.values.add(block.start * p.h));
            }
        }
    }

    /// The softmax of one panel of queries: per lane the maximum so far, the sum of exponentials
    /// relative to it, and the output not yet divided by the sum.
    unsafe fn panel<S: Stored<E>>(&self, call: &Call, head: [usize; 3], i: usize, x: &Scratch<E>) {
        let p = self.plan;
        let (w, isa) = (self.tile.columns(), (self.simd, self.tile));
        let n = w.min(p.s.len - i);
        let mut softmax = Softmax::<E>::new();
        let e: Vec<usize> = (0..p.e).collect();
        // SAFETY: the caller's promise.
        unsafe {
            let queries = std::slice::from_raw_parts_mut(x.queries, p.e * w);
            let lines = p.queries(p.pad.e, head, i).offsets(n);
            pack(self.simd, call.at(p.slots[0]).at::<S>(0).cast_const(), &lines, &e, &panel(n, w), x.queries);
            crate::cpu::loops::lanes::scale(self.simd, E::of(p.scale), queries);
            let out = std::slice::from_raw_parts_mut(x.out, p.h * w);
            let mut first = true;
            for block in blocks(p.t.len) {
                let view = p.view(i, n, &block);
                if view.any.0 == view.any.1 {
                    continue;
                }
                let keys = x.keys.add(block.start * p.e);
                let rows = strips(block.len(), self.tile.rows);
                for (at, len) in rows.filter(|(at, len)| *at < view.any.1 && at + len > view.any.0) {
                    let (a, to) = (keys.add(at * p.e), x.scores.add(at * w));
                    multiply_rows(isa, len, (0, p.e, p.e), a, (x.queries, 2), (to, w), false);
                }
                let scores = std::slice::from_raw_parts_mut(x.scores, block.len() * w);
                soften(self.simd, w, scores, &view, &mut softmax);
                if !first {
                    rescale(self.simd, w, out, &softmax.correction);
                }
                let values = x.values.add(block.start * p.h);
                multiply_rows(
                    isa,
                    p.h,
                    (view.any.0, view.any.1, block.len()),
                    values,
                    (x.scores, 2),
                    (x.out, w),
                    !first,
                );
                first = false;
            }
            if first {
                out.fill(E::ZERO);
            }
            self.store::<S>(call, head, (i, n), &softmax, out);
        }
    }

    unsafe fn store<S: Stored<E>>(
        &self,
        call: &Call,
        head: [usize; 3],
        (i, n): (usize, usize),
        softmax: &Softmax<E>,
        out: &mut [E],
    ) {
        let (p, w) = (self.plan, self.tile.columns());
        // A query that saw no key: zero, and the logarithm of nothing.
        let inverse = softmax.sum.map(|s| E::of(if s == 0.0 { 0.0 } else { 1.0 / s }));
        rescale(self.simd, w, out, &inverse);
        // SAFETY: the caller's promise.
        unsafe {
            let (o, lse) = (call.at(p.slots[3]).at::<S>(0), call.at(p.slots[4]).at::<S>(0));
            store_turned::<E, S>(self.simd, out, w, p.h, p.queries(p.pad.h, head, i), n, o);
            for (l, at) in p.queries(1, head, i).offsets(n).into_iter().enumerate() {
                lse.add(at).write(S::narrow(E::of(softmax.top[l].wide() + softmax.sum[l].ln())));
            }
        }
    }
}

/// State of the softmax of a panel, by lane.
struct Softmax<E> {
    top: [E; MAX_LANES],
    sum: [f64; MAX_LANES],
    /// What earlier sums must be multiplied by after the last block.
    correction: [E; MAX_LANES],
}

impl<E: Elem> Softmax<E> {
    fn new() -> Softmax<E> {
        let top = [E::of(f64::NEG_INFINITY); MAX_LANES];
        Softmax { top, sum: [0.0; MAX_LANES], correction: [E::ONE; MAX_LANES] }
    }
}

multiversion! {
    /// Scores to exponentials relative to the new maximum, zero where a lane sees nothing.
    soften = soften_body(width: usize, scores: &mut [E], view: &View, state: &mut Softmax<E>)
}
multiversion! {
    /// Multiplies each lane by its factor.
    rescale = rescale_body(width: usize, rows: &mut [E], factors: &[E; MAX_LANES])
}

#[inline(always)]
fn soften_body<E: Elem, const FMA: bool>(width: usize, scores: &mut [E], view: &View, state: &mut Softmax<E>) {
    match width {
        32 => soften_lanes::<E, FMA, 32>(scores, view, state),
        16 => soften_lanes::<E, FMA, 16>(scores, view, state),
        _ => soften_lanes::<E, FMA, 8>(scores, view, state),
    }
}

#[inline(always)]
fn soften_lanes<E: Elem, const FMA: bool, const W: usize>(scores: &mut [E], view: &View, state: &mut Softmax<E>) {
    let nothing = E::of(f64::NEG_INFINITY);
    let (rows, _) = scores.as_chunks_mut::<W>();
    let (any, full) = (view.any, view.full);
    for (j, row) in rows.iter_mut().enumerate().take(any.1).skip(any.0) {
        if (full.0..full.1).contains(&j) {
            continue;
        }
        for ((x, from), to) in row.iter_mut().zip(&view.from).zip(&view.to) {
            let sees = *from <= j as i32 && (j as i32) < *to;
            *x = if sees { *x } else { nothing };
        }
    }
    let rows = &mut rows[any.0..any.1];
    let mut top = [nothing; W];
    for row in rows.iter() {
        for l in 0..W {
            top[l] = top[l].max(row[l]);
        }
    }
    let mut shift = [E::ZERO; W];
    for l in 0..W {
        let new = state.top[l].max(top[l]);
        // Nothing seen yet, or only scores of −∞: they weigh nothing.
        let empty = new == nothing;
        shift[l] = if empty { E::ZERO } else { new };
        state.correction[l] = if empty { E::ONE } else { (state.top[l] - new).exp::<FMA>() };
        state.top[l] = new;
    }
    let mut sums = [0f64; W];
    for rows in rows.chunks_mut(16) {
        let mut part = [E::ZERO; W];
        for row in rows {
            for l in 0..W {
                row[l] = (row[l] - shift[l]).exp::<FMA>();
                part[l] = part[l] + row[l];
            }
        }
        for l in 0..W {
            sums[l] += part[l].wide();
        }
    }
    for ((total, correction), sum) in state.sum.iter_mut().zip(&state.correction).zip(sums) {
        *total = *total * correction.wide() + sum;
    }
}

#[inline(always)]
fn rescale_body<E: Elem, const FMA: bool>(width: usize, rows: &mut [E], factors: &[E; MAX_LANES]) {
    for row in rows.chunks_exact_mut(width) {
        for (x, f) in row.iter_mut().zip(factors) {
            *x = *x * *f;
        }
    }
}

//! q, k, v, o, lse, d_o → dq, dk, dv.
//!
//! With P = exp(scale·QKᵀ − lse): dV += PᵀdO, dS = P·(dOVᵀ − rowsum(dO·O))·scale, dQ += dS·K,
//! dK += dSᵀQ. A task takes all queries of a key head, some panels at a time: P and dS of a panel
//! are made transposed, used as they lie for dQ, and turned into first operands for dK and dV, which
//! are added up in scratch over panels.

use super::*;
use crate::cpu::elem::multiversion;

/// Panels of queries that are turned and then multiplied together.
const PANELS: usize = 4;

impl Plan {
    /// Runs the backward.
    ///
    /// # Safety
    /// As for [`crate::cpu::Prepared::run`].
    pub unsafe fn run_backward(&self, call: &Call) {
        // SAFETY: the caller's promise.
        unsafe {
            match self.dtype {
                DType::F64 => self.backward_typed::<f64, f64>(call),
                DType::Bf16 => self.backward_typed::<f32, Bf16>(call),
                _ => self.backward_typed::<f32, f32>(call),
            }
        }
    }

    unsafe fn backward_typed<E: Compute, S: Stored<E>>(&self, call: &Call) {
        let simd = Simd::detect();
        // dk and dv add up over r and over queries: one task per key head, so nobody else writes them.
        call.pool.run(self.b * self.g, &|t| {
            let head = Head { plan: self, call, simd, tile: E::tile(simd), b: t / self.g, g: t % self.g };
            // SAFETY: views were checked; tasks write different heads.
            unsafe { head.run::<E, S>() };
        });
    }
}

/// One key head.
struct Head<'a> {
    plan: &'a Plan,
    call: &'a Call<'a>,
    simd: Simd,
    tile: Tile,
    b: usize,
    g: usize,
}

/// Scratch of a task. "First operand" and "second operand" name the packed form.
struct Scratch<E> {
    /// First operands, by blocks of keys: keys, values, keys transposed.
    keys: *mut E,
    values: *mut E,
    turned: *mut E,
    /// Sums, by keys: rows of whole vectors.
    dk: *mut E,
    dv: *mut E,
    /// Second operands, by panels of queries: q and d_o transposed.
    q_t: *mut E,
    do_t: *mut E,
    /// Second operands, by columns: q and d_o of all panels at hand.
    q: *mut E,
    d_o: *mut E,
    /// dq transposed, by panels.
    dq_t: *mut E,
    /// P and dS of a panel, `[key, query]`.
    p_t: *mut E,
    ds_t: *mut E,
    /// First operands of all panels at hand: P and dS, turned.
    p: *mut E,
    ds: *mut E,
}

/// Per lane of a panel: the logarithm of the softmax's sum, and Σ dO·O.
struct Rowwise<E> {
    lse: [E; MAX_LANES],
    delta: [E; MAX_LANES],
}

impl Head<'_> {
    unsafe fn run<E: Compute, S: Stored<E>>(&self) {
        let (p, w) = (self.plan, self.tile.columns());
        let (t, block, spare) = (p.t.len, KEYS.min(p.t.len), MAX_LANES);
        let (e, h) = (self.padded(p.e), self.padded(p.h));
        let rows = (block + MAX_ROWS) * w;
        let strips = block.div_ceil(self.tile.rows).max(1);
        let turned = PANELS * w * block + strips * spare;
        let sizes = [
            t * p.e + spare,
            t * p.h + spare,
            t * p.e + spare,
            t * e,
            t * h,
            PANELS * w * p.e,
            PANELS * w * p.h,
            PANELS * w * e,
            PANELS * w * h,
            PANELS * w * p.e,
            rows,
            rows,
            turned,
            turned,
        ];
        let sizes = sizes.map(|n| n.next_multiple_of(16));
        with_scratch::<E, _>(sizes.iter().sum(), |scratch| {
            let mut at = scratch.as_mut_ptr();
            let [keys, values, turned, dk, dv, q_t, do_t, q, d_o, dq_t, p_t, ds_t, p, ds] = sizes.map(|n| {
                let here = at;
                at = at.wrapping_add(n);
                here
            });
            let x = Scratch { keys, values, turned, dk, dv, q_t, do_t, q, d_o, dq_t, p_t, ds_t, p, ds };
            // SAFETY: the caller's promise; the parts of the scratch are that large.
            unsafe { self.head::<E, S>(&x) };
        });
    }

    /// Columns of a result in scratch: whole vectors.
    fn padded(&self, columns: usize) -> usize {
        columns.next_multiple_of(self.tile.lanes)
    }

    unsafe fn head<E: Compute, S: Stored<E>>(&self, x: &Scratch<E>) {
        let p = self.plan;
        let size = PANELS * self.tile.columns();
        // SAFETY: the caller's promise.
        unsafe {
            self.pack_keys::<E, S>(x);
            std::slice::from_raw_parts_mut(x.dk, p.t.len * self.padded(p.e)).fill(E::ZERO);
            std::slice::from_raw_parts_mut(x.dv, p.t.len * self.padded(p.h)).fill(E::ZERO);
            for (r, i) in (0..p.r).flat_map(|r| (0..p.s.len).step_by(size).map(move |i| (r, i))) {
                self.panels::<E, S>([self.b, self.g, r], i, size.min(p.s.len - i), x);
            }
            let (dk, dv) = (self.memory::<S>(7), self.memory::<S>(8));
            self.write(x.dk, p.e, p.keys(p.pad.e, self.b, self.g, 0), dk);
            self.write(x.dv, p.h, p.keys(p.pad.h, self.b, self.g, 0), dv);
        }
    }

    /// The memory of a buffer.
    unsafe fn memory<S>(&self, buffer: usize) -> *mut S {
        // SAFETY: the buffer starts there.
        unsafe { self.call.at(self.plan.slots[buffer]).at(0) }
    }

    /// Writes sums over all keys to a result.
    unsafe fn write<E: Compute, S: Stored<E>>(&self, from: *const E, width: usize, lines: Lines, to: *mut S) {
        for (j, at) in lines.offsets(self.plan.t.len).into_iter().enumerate() {
            // SAFETY: the caller's promise.
            unsafe {
                let sums = std::slice::from_raw_parts(from.add(j * self.padded(width)), width);
                let out = std::slice::from_raw_parts_mut(to.add(at), width);
                out.iter_mut().zip(sums).for_each(|(o, s)| *o = S::narrow(*s));
            }
        }
    }

    unsafe fn pack_keys<E: Compute, S: Stored<E>>(&self, x: &Scratch<E>) {
        let (p, isa) = (self.plan, (self.simd, self.tile));
        let (e, h): (Vec<usize>, Vec<usize>) = ((0..p.e).collect(), (0..p.h).collect());
        for block in blocks(p.t.len) {
            let keys = p.keys(p.pad.e, self.b, self.g, block.start).offsets(block.len());
            let values = p.keys(p.pad.h, self.b, self.g, block.start).offsets(block.len());
            // SAFETY: the caller's promise.
            unsafe {
                let (k, v) = (self.memory::<S>(1).cast_const(), self.memory::<S>(2).cast_const());
                pack_rows(isa, k, &keys, &e, x.keys.add(block.start * p.e));
                pack_rows(isa, v, &values, &h, x.values.add(block.start * p.h));
                pack_rows(isa, k, &e, &keys, x.turned.add(block.start * p.e));
            }
        }
    }

    /// Queries `i..i + n` of one head: writes their dq, adds to dk and dv.
    unsafe fn panels<E: Compute, S: Stored<E>>(&self, head: [usize; 3], i: usize, n: usize, x: &Scratch<E>) {
        let (p, w) = (self.plan, self.tile.columns());
        let mut rowwise = vec![];
        // SAFETY: the caller's promise.
        unsafe {
            for (panel, at) in (0..n).step_by(w).enumerate() {
                rowwise.push(self.pack_panel::<E, S>(head, i + at, w.min(n - at), panel, x));
            }
            self.pack_queries::<E, S>(head, i, n, x);
            std::slice::from_raw_parts_mut(x.dq_t, rowwise.len() * w * p.e).fill(E::ZERO);
            for block in blocks(p.t.len) {
                self.block(i, n, &block, &rowwise, x);
            }
            let dq = self.memory::<S>(6);
            for (panel, at) in (0..n).step_by(w).enumerate() {
                let from = std::slice::from_raw_parts(x.dq_t.add(panel * w * p.e), w * p.e);
                let lines = p.queries(p.pad.e, head, i + at);
                store_turned::<E, S>(self.simd, from, w, p.e, lines, w.min(n - at), dq);
            }
        }
    }

    /// Packs the queries and their cotangents as panels of lanes.
    unsafe fn pack_panel<E: Compute, S: Stored<E>>(
        &self,
        head: [usize; 3],
        i: usize,
        n: usize,
        panel: usize,
        x: &Scratch<E>,
    ) -> Rowwise<E> {
        let (p, w) = (self.plan, self.tile.columns());
        let (e, h): (Vec<usize>, Vec<usize>) = ((0..p.e).collect(), (0..p.h).collect());
        let q = p.queries(p.pad.e, head, i).offsets(n);
        let o = p.queries(p.pad.h, head, i).offsets(n);
        // Lanes without a query weigh nothing.
        let mut rowwise = Rowwise { lse: [E::of(f64::INFINITY); MAX_LANES], delta: [E::ZERO; MAX_LANES] };
        // SAFETY: the caller's promise.
        unsafe {
            let q_t = std::slice::from_raw_parts_mut(x.q_t.add(panel * w * p.e), w * p.e);
            pack(self.simd, self.memory::<S>(0).cast_const(), &q, &e, &self::panel(n, w), q_t.as_mut_ptr());
            crate::cpu::loops::lanes::scale(self.simd, E::of(p.scale), q_t);
            pack(self.simd, self.memory::<S>(5).cast_const(), &o, &h, &self::panel(n, w), x.do_t.add(panel * w * p.h));
            let (out, d_o) = (self.memory::<S>(3), self.memory::<S>(5));
            for (l, at) in p.queries(1, head, i).offsets(n).into_iter().enumerate() {
                let lse = self.memory::<S>(4).add(at).read().widen();
                // Every score was −∞: the output did not depend on them.
                rowwise.lse[l] = if lse == E::of(f64::NEG_INFINITY) { E::of(f64::INFINITY) } else { lse };
                let line = |m: *mut S| std::slice::from_raw_parts(m.add(o[l]), p.h);
                rowwise.delta[l] = E::of(dot(self.simd, line(out), line(d_o)));
            }
        }
        rowwise
    }

    /// Packs the queries and their cotangents as second operands over queries.
    unsafe fn pack_queries<E: Compute, S: Stored<E>>(&self, head: [usize; 3], i: usize, n: usize, x: &Scratch<E>) {
        let p = self.plan;
        let all = PANELS * self.tile.columns();
        for (buffer, columns, pad, to) in [(0, p.e, p.pad.e, x.q), (5, p.h, p.pad.h, x.d_o)] {
            let steps = p.queries(pad, head, i).offsets(n);
            let lines: Vec<usize> = (0..columns).collect();
            let part = |(at, len, width)| Part { at, len, width, to: at * all };
            let parts: Vec<Part> = self.columns(columns).map(part).collect();
            // SAFETY: the caller's promise. Steps beyond `n` are never multiplied.
            unsafe { pack(self.simd, self.memory::<S>(buffer).cast_const(), &lines, &steps, &parts, to) };
        }
    }

    /// Panels of columns: first, how many, how wide.
    fn columns(&self, columns: usize) -> impl Iterator<Item = (usize, usize, usize)> {
        let (w, padded) = (self.tile.columns(), self.padded(columns));
        (0..columns).step_by(w).map(move |at| (at, w.min(columns - at), w.min(padded - at)))
    }

    /// The panels' part of one block of keys.
    unsafe fn block<E: Compute>(
        &self,
        i: usize,
        n: usize,
        keys: &std::ops::Range<usize>,
        rowwise: &[Rowwise<E>],
        x: &Scratch<E>,
    ) {
        let (p, w, isa) = (self.plan, self.tile.columns(), (self.simd, self.tile));
        let strips: Vec<(usize, usize)> = strips(keys.len(), self.tile.rows).collect();
        // The panels that see something of a strip.
        let mut seen = vec![(usize::MAX, 0); strips.len()];
        // SAFETY: the caller's promise.
        unsafe {
            for (panel, rowwise) in rowwise.iter().enumerate() {
                let view = p.view(i + panel * w, w.min(n - panel * w), keys);
                let (from, to) = view.any;
                if from == to {
                    continue;
                }
                let (q_t, do_t) = (x.q_t.add(panel * w * p.e), x.do_t.add(panel * w * p.h));
                let (k, v) = (x.keys.add(keys.start * p.e), x.values.add(keys.start * p.h));
                let seen_by = |s: &(usize, usize)| s.0 < to && s.0 + s.1 > from;
                for (at, len) in strips.iter().copied().filter(seen_by) {
                    let (p_to, ds_to) = (x.p_t.add(at * w), x.ds_t.add(at * w));
                    multiply_rows(isa, len, (0, p.e, p.e), k.add(at * p.e), (q_t, 2), (p_to, w), false);
                    multiply_rows(isa, len, (0, p.h, p.h), v.add(at * p.h), (do_t, 2), (ds_to, w), false);
                }
                let p_t = std::slice::from_raw_parts_mut(x.p_t, keys.len() * w);
                let ds_t = std::slice::from_raw_parts_mut(x.ds_t, keys.len() * w);
                weigh(self.simd, w, (p_t, ds_t), &view, rowwise, E::of(p.scale));
                for (s, (at, len)) in strips.iter().enumerate().filter(|(_, s)| seen_by(s)) {
                    seen[s] = (seen[s].0.min(panel), panel + 1);
                    self.turn_strip((s, *at, *len), panel, (from, to), x);
                }
                let dq_t = x.dq_t.add(panel * w * p.e);
                let turned = x.turned.add(keys.start * p.e);
                multiply_rows(isa, p.e, (from, to, keys.len()), turned, (x.ds_t, 2), (dq_t, w), true);
            }
            for (s, (at, len)) in strips.iter().enumerate().filter(|(s, _)| seen[*s].1 > 0) {
                let queries = (seen[s].0 * w, n.min(seen[s].1 * w));
                self.add_strip((s, keys.start + at, *at, *len), queries, x);
            }
        }
    }

    /// Where a strip starts in the turned operands.
    fn strip_at(&self, s: usize, at: usize) -> usize {
        PANELS * self.tile.columns() * at + s * MAX_LANES
    }

    /// Turns a strip of P and dS, with zeros at keys that the panel does not see.
    unsafe fn turn_strip<E: Compute>(
        &self,
        (s, at, len): (usize, usize, usize),
        panel: usize,
        (from, to): (usize, usize),
        x: &Scratch<E>,
    ) {
        let (w, block) = (self.tile.columns(), E::block(self.simd));
        let lines: Vec<usize> = (at..at + len).map(|j| j * w).collect();
        for (src, dst) in [(x.p_t, x.p), (x.ds_t, x.ds)] {
            // SAFETY: the caller's promise.
            unsafe {
                for j in (at..at + len).filter(|j| *j < from || *j >= to) {
                    std::slice::from_raw_parts_mut(src.add(j * w), w).fill(E::ZERO);
                }
                let dst = dst.add(self.strip_at(s, at) + panel * w * len);
                if block >= len {
                    for l in (0..w).step_by(block) {
                        E::turn(self.simd, src.add(l), &lines, len, dst.add(l * len));
                    }
                } else {
                    for (l, j) in (0..w).flat_map(|l| (0..len).map(move |j| (l, j))) {
                        dst.add(l * len + j).write(src.add((at + j) * w + l).read());
                    }
                }
            }
        }
    }

    /// Adds a strip's products over the queries `from..to` to dk and dv.
    unsafe fn add_strip<E: Compute>(
        &self,
        (s, key, at, len): (usize, usize, usize, usize),
        (from, to): (usize, usize),
        x: &Scratch<E>,
    ) {
        let p = self.plan;
        let all = PANELS * self.tile.columns();
        for (a, b, columns, sums) in [(x.p, x.d_o, p.h, x.dv), (x.ds, x.q, p.e, x.dk)] {
            let padded = self.padded(columns);
            for (column, _, width) in self.columns(columns) {
                let vectors = width / self.tile.lanes;
                // SAFETY: the caller's promise.
                unsafe {
                    let a = a.add(self.strip_at(s, at));
                    let out = sums.add(key * padded + column);
                    let b = b.add(column * all);
                    multiply_rows((self.simd, self.tile), len, (from, to, all), a, (b, vectors), (out, padded), true);
                }
            }
        }
    }
}

/// `Σ a·b` of stored values, in f64.
fn dot<E: Compute, S: Stored<E>>(simd: Simd, a: &[S], b: &[S]) -> f64 {
    if let (Some(x), Some(y)) = (S::same(a.as_ptr()), S::same(b.as_ptr())) {
        // SAFETY: the same memory, of the same type.
        let (x, y) = unsafe { (std::slice::from_raw_parts(x, a.len()), std::slice::from_raw_parts(y, b.len())) };
        return crate::cpu::loops::lanes::dot(simd, x, y);
    }
    a.iter().zip(b).map(|(x, y)| x.widen().wide() * y.widen().wide()).sum()
}

multiversion! {
    /// Scores to probabilities, and their cotangents to those of the scores, `[key, lane]`.
    weigh = weigh_body(
        width: usize,
        x: (&mut [E], &mut [E]),
        view: &View,
        rowwise: &Rowwise<E>,
        scale: E
    )
}

#[inline(always)]
fn weigh_body<E: Elem, const FMA: bool>(
    width: usize,
    x: (&mut [E], &mut [E]),
    view: &View,
    rowwise: &Rowwise<E>,
    scale: E,
) {
    match width {
        32 => weigh_lanes::<E, FMA, 32>(x, view, rowwise, scale),
        16 => weigh_lanes::<E, FMA, 16>(x, view, rowwise, scale),
        _ => weigh_lanes::<E, FMA, 8>(x, view, rowwise, scale),
    }
}

#[inline(always)]
fn weigh_lanes<E: Elem, const FMA: bool, const W: usize>(
    (p, ds): (&mut [E], &mut [E]),
    view: &View,
    rowwise: &Rowwise<E>,
    scale: E,
) {
    let ((p, _), (ds, _)) = (p.as_chunks_mut::<W>(), ds.as_chunks_mut::<W>());
    for j in view.any.0..view.any.1 {
        let (p, ds) = (&mut p[j], &mut ds[j]);
        if !(view.full.0..view.full.1).contains(&j) {
            for l in 0..W {
                let sees = view.from[l] <= j as i32 && (j as i32) < view.to[l];
                p[l] = if sees { p[l] } else { E::of(f64::NEG_INFINITY) };
                ds[l] = if sees { ds[l] } else { E::ZERO };
            }
        }
        for l in 0..W {
            p[l] = (p[l] - rowwise.lse[l]).exp::<FMA>();
            ds[l] = p[l] * (ds[l] - rowwise.delta[l]) * scale;
        }
    }
}

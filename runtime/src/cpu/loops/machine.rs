//! Execution of resolved code: rows, tiles, instructions, stores.

use super::code::{Action, Code, Op, Out};
use super::lanes::{self, Arg};
use super::memory;
use super::nest::stretches;
use super::{unpack, Run, Schedule};
use crate::cpu::elem::{with_scratch, Elem, Simd};
use crate::cpu::Call;
use autoshard_ir::core::{BinaryMonoid, Scalar};
use autoshard_ir::ops::random_unit;

/// Elements of a tile where the lane may be cut.
const TILE: usize = 1024;

/// One worker: registers and scratch.
pub(super) struct Machine<'a, E> {
    call: &'a Call<'a>,
    code: &'a Code,
    schedule: &'a Schedule,
    /// What is added to each column; empty: nothing.
    shift: &'a [usize],
    simd: Simd,
    tile: usize,
    /// Values of uniform registers.
    uniform: Vec<f64>,
    /// Vectors: the current tile of each register.
    vectors: Vec<*const E>,
    /// Value of each column at the start of the row.
    columns: Vec<usize>,
    digits: Vec<usize>,
    scratch: *mut E,
}

/// A tile of a row.
#[derive(Clone, Copy)]
struct Tile {
    /// First lane.
    at: usize,
    /// Number of lanes.
    len: usize,
    /// Lane that the row's piece starts at.
    piece: usize,
}

/// Scratch vectors beside those of registers: uniform arguments of selections, stores of uniforms.
const SPARE: usize = 3;

impl<'a, E: Elem> Machine<'a, E> {
    /// Calls `f` with a machine on this thread's scratch.
    pub fn with<R>(run: &'a Run<'a>, f: impl FnOnce(&mut Machine<'a, E>) -> R) -> R {
        let Run { call, code, schedule, simd, ref shift, .. } = *run;
        // Slots start on cache lines.
        let tile = if code.reduces { schedule.piece } else { TILE.min(schedule.piece) };
        let tile = tile.next_multiple_of(64);
        with_scratch::<E, R>((code.slots + SPARE) * tile, |scratch| {
            f(&mut Machine {
                call,
                code,
                schedule,
                shift,
                simd,
                tile,
                uniform: vec![0.0; code.ops.len()],
                vectors: vec![std::ptr::null(); code.ops.len()],
                columns: vec![0; code.nest.columns.len()],
                digits: vec![0; code.nest.outer().len()],
                scratch: scratch.as_mut_ptr(),
            })
        })
    }

    /// Lanes of a unit's piece.
    fn piece(&self, unit: usize) -> (usize, usize) {
        let start = unit % self.schedule.pieces * self.schedule.piece;
        (start, self.code.nest.lane().min(start + self.schedule.piece))
    }

    /// Sets columns to row (kept, reduced).
    fn seek(&mut self, kept: usize, reduced: usize) {
        let nest = &self.code.nest;
        let (k, r) = self.digits.split_at_mut(nest.kept);
        unpack(kept, nest.outer()[..nest.kept].iter().copied(), k);
        unpack(reduced, nest.outer()[nest.kept..].iter().copied(), r);
        for (value, column) in self.columns.iter_mut().zip(&nest.columns) {
            *value = column.base + self.digits.iter().zip(&column.strides).map(|(d, s)| d * s).sum::<usize>();
        }
        self.columns.iter_mut().zip(self.shift).for_each(|(value, shift)| *value += shift);
    }

    /// Sets accumulators to what reductions over nothing give.
    pub fn clear(&self, acc: &mut [f64]) {
        for (i, s) in self.code.stores.iter().enumerate() {
            if let Some(m) = s.combine {
                acc[self.schedule.starts[i]..self.schedule.starts[i + 1]].fill(m.identity());
            }
        }
    }

    /// Runs the rows of a unit's chunk: writes plain stores, accumulates combining ones.
    ///
    /// # Safety
    /// No other thread works on the same unit and chunk; buffers are as for [`super::execute`].
    pub unsafe fn reduce(&mut self, unit: usize, chunk: usize, acc: &mut [f64]) {
        self.clear(acc);
        let (from, to) = self.piece(unit);
        for reduced in self.schedule.rows(chunk) {
            self.seek(unit / self.schedule.pieces, reduced);
            let mut at = from;
            loop {
                let len = self.tile.min(to - at);
                let tile = Tile { at, len, piece: from };
                // SAFETY: the caller's promise.
                unsafe { self.run_tile(tile, at == from, acc) };
                at += len;
                // An empty lane still has uniform stores.
                if at >= to {
                    break;
                }
            }
        }
    }

    unsafe fn run_tile(&mut self, tile: Tile, first: bool, acc: &mut [f64]) {
        let code = self.code;
        for (i, op) in code.ops.iter().enumerate().filter(|(_, op)| op.used) {
            // SAFETY: the caller's promise.
            unsafe {
                match op.uniform {
                    true if first => self.uniform[i] = self.run_uniform(op, tile),
                    true => {}
                    false => self.vectors[i] = self.run_vector(op, tile),
                }
            }
        }
        for (i, s) in code.stores.iter().enumerate() {
            // SAFETY: the caller's promise.
            unsafe {
                match s.combine {
                    Some(m) => self.accumulate(i, s, m, tile, first, acc),
                    None => self.write(s, tile, first),
                }
            }
        }
    }

    /// The tile of a vector register.
    unsafe fn vector(&self, reg: usize, tile: Tile) -> &'a [E] {
        // SAFETY: the register was computed for this tile; its slot is not reused before its last
        // use, and operands are not written while a vector of them is read.
        unsafe { std::slice::from_raw_parts(self.vectors[reg], tile.len) }
    }

    /// Scratch vector `slot`.
    unsafe fn slot(&self, slot: usize, tile: Tile) -> &'a mut [E] {
        // SAFETY: the machine has `slots + SPARE` of them, and the caller makes one slice of each.
        unsafe { std::slice::from_raw_parts_mut(self.scratch.add(slot * self.tile), tile.len) }
    }

    unsafe fn arg(&self, reg: usize, tile: Tile) -> Arg<'a, E> {
        if self.code.ops[reg].uniform {
            Arg::Uniform(E::of(self.uniform[reg]))
        } else {
            // SAFETY: the caller's promise.
            Arg::Lanes(unsafe { self.vector(reg, tile) })
        }
    }

    /// An argument as a vector, in spare scratch `spare` if it is uniform.
    unsafe fn spread(&self, reg: usize, spare: usize, tile: Tile) -> &'a [E] {
        // SAFETY: the caller's promise.
        match unsafe { self.arg(reg, tile) } {
            Arg::Lanes(v) => v,
            Arg::Uniform(x) => {
                // SAFETY: nothing else uses this spare slot now.
                let out = unsafe { self.slot(self.code.slots + spare, tile) };
                out.fill(x);
                out
            }
        }
    }

    unsafe fn run_uniform(&self, op: &Op, tile: Tile) -> f64 {
        let value = match op.action {
            // SAFETY: the view was checked; the element exists even if the lane is empty.
            Action::Load(p, dtype, c) => unsafe { memory::load_one(self.call.at(p), dtype, self.columns[c]) },
            Action::Index(c) => self.columns[c] as f64,
            Action::Table(t, c) => self.code.tables[t][self.columns[c]],
            Action::Random(key, c) => random_unit(key, self.columns[c] as u64),
            Action::Const(x) => x,
            Action::Map(f) => {
                let mut args = [0.0; 3];
                args.iter_mut().zip(&op.args).for_each(|(x, a)| *x = self.uniform[*a]);
                f.eval(&args)
            }
            Action::Same => self.uniform[op.args[0]],
            Action::Pick(c) => match (self.hit(c, op.args[0], tile), self.code.reduces) {
                // SAFETY: the caller's promise. The tile is the whole lane.
                (Some(lane), true) => unsafe { 0.0 + self.vector(op.args[1], tile)[lane].wide() },
                _ => 0.0,
            },
            Action::OneHot(_) => unreachable!("never uniform"),
            // SAFETY: the caller's promise.
            Action::Reduce(m) => match (unsafe { self.arg(op.args[0], tile) }, m) {
                (Arg::Lanes(v), BinaryMonoid::Sum) => lanes::sum(self.simd, v),
                (Arg::Lanes(v), BinaryMonoid::Max) => lanes::max(self.simd, v).wide(),
                (Arg::Uniform(_), _) if tile.len == 0 => m.identity(),
                (Arg::Uniform(_), BinaryMonoid::Sum) => self.uniform[op.args[0]] * tile.len as f64,
                (Arg::Uniform(_), BinaryMonoid::Max) => self.uniform[op.args[0]],
            },
        };
        op.dtype.round(value)
    }

    unsafe fn run_vector(&self, op: &Op, tile: Tile) -> *const E {
        if let Action::Same = op.action {
            return self.vectors[op.args[0]];
        }
        let Some(slot) = op.slot else {
            // SAFETY: only contiguous loads of the compute type have no slot.
            return unsafe { self.direct(op, tile) };
        };
        // SAFETY: the slot belongs to this register until its last use.
        let out = unsafe { self.slot(slot, tile) };
        match op.action {
            // SAFETY: the caller's promise, here and below.
            Action::Map(f) => unsafe { self.map(f, op, tile, out) },
            Action::Load(p, dtype, c) => self.fill(
                c,
                tile,
                |at, stride, part: &mut [E]| {
                    // SAFETY: the view was checked.
                    unsafe { memory::load(self.call.at(p), dtype, at, stride, part) };
                },
                out,
            ),
            Action::Index(c) => self.each(c, tile, out, |i| i as f64),
            Action::Table(t, c) => self.each(c, tile, out, |i| self.code.tables[t][i]),
            Action::Random(key, c) => self.each(c, tile, out, |i| random_unit(key, i as u64)),
            Action::OneHot(c) => {
                out.fill(E::ZERO);
                if let Some(lane) = self.hit(c, op.args[0], tile) {
                    out[lane] = E::ONE;
                }
            }
            Action::Const(_) | Action::Reduce(_) | Action::Same | Action::Pick(_) => {
                unreachable!("uniform, or handled above")
            }
        }
        if op.round {
            lanes::round(self.simd, op.dtype, out);
        }
        out.as_ptr()
    }

    /// The lane of the tile where a column equals a uniform register.
    fn hit(&self, c: usize, reg: usize, tile: Tile) -> Option<usize> {
        let lane = E::of(self.uniform[reg]).wide() - (self.columns[c] + tile.at) as f64;
        let found = lane >= 0.0 && lane < tile.len as f64 && lane.fract() == 0.0;
        found.then_some(lane as usize)
    }

    unsafe fn direct(&self, op: &Op, tile: Tile) -> *const E {
        match op.action {
            // SAFETY: the view was checked.
            Action::Load(p, _, c) => unsafe { self.call.at(p).at::<E>(self.columns[c] + tile.at) },
            _ => unreachable!("only loads have no slot"),
        }
    }

    unsafe fn map(&self, f: Scalar, op: &Op, tile: Tile, out: &mut [E]) {
        // SAFETY: the caller's promise; the result's slot is none of the arguments'.
        unsafe {
            match op.args[..] {
                [a] => lanes::map1(self.simd, f, self.spread(a, 0, tile), out),
                [a, b] => lanes::map2(self.simd, f, self.arg(a, tile), self.arg(b, tile), out),
                _ => {
                    let [c, a, b] = [0, 1, 2].map(|i| self.spread(op.args[i], i, tile));
                    lanes::select(self.simd, c, a, b, out);
                }
            }
        }
    }

    /// Calls `f` for every stretch of the tile with a column's value at its start, the column's
    /// stride, and the stretch of `out`.
    fn fill(&self, c: usize, tile: Tile, f: impl Fn(usize, usize, &mut [E]), out: &mut [E]) {
        let nest = &self.code.nest;
        let (stride, outer) = (nest.lane_stride(c), nest.pair_strides[c]);
        stretches(nest.inner(), tile.at, tile.len, |o, w, at, n| {
            f(self.columns[c] + o * outer + w * stride, stride, &mut out[at..at + n]);
        });
    }

    /// A function of a column's value in every lane.
    fn each(&self, c: usize, tile: Tile, out: &mut [E], f: impl Fn(usize) -> f64) {
        self.fill(
            c,
            tile,
            |at, stride, part| {
                part.iter_mut().enumerate().for_each(|(i, o)| *o = E::of(f(at + i * stride)));
            },
            out,
        );
    }

    /// A plain store.
    unsafe fn write(&self, s: &Out, tile: Tile, first: bool) {
        let nest = &self.code.nest;
        // SAFETY: the view was checked, and only this unit writes these elements. A stored vector
        // is never the operand's own memory.
        unsafe {
            if nest.is_uniform(s.column) {
                let value = match self.arg(s.reg, tile) {
                    Arg::Uniform(_) => [self.uniform[s.reg]],
                    Arg::Lanes([x, ..]) => [x.wide()],
                    Arg::Lanes([]) => return,
                };
                if first {
                    memory::store(self.call.at(s.to), s.dtype, self.columns[s.column], 1, &value);
                }
                return;
            }
            let values = self.spread(s.reg, 0, tile);
            let (stride, outer) = (nest.lane_stride(s.column), nest.pair_strides[s.column]);
            stretches(nest.inner(), tile.at, tile.len, |o, w, at, n| {
                let to = self.columns[s.column] + o * outer + w * stride;
                memory::store(self.call.at(s.to), s.dtype, to, stride, &values[at..at + n]);
            });
        }
    }

    /// Position of the current row in a store's accumulator, in units of its lane part.
    fn accumulator_row(&self, column: usize) -> usize {
        let nest = &self.code.nest;
        let has = |l: &usize| nest.columns[column].strides[*l] != 0;
        let loops = (nest.kept..nest.outer().len()).filter(has);
        loops.fold(0, |row, l| row * nest.lens[l] + self.digits[l])
    }

    /// A combining store: into the accumulator.
    unsafe fn accumulate(&self, i: usize, s: &Out, m: BinaryMonoid, tile: Tile, first: bool, acc: &mut [f64]) {
        let row = self.accumulator_row(s.column);
        let acc = &mut acc[self.schedule.starts[i]..self.schedule.starts[i + 1]];
        if self.code.nest.lane_stride(s.column) == 0 {
            // SAFETY: the caller's promise.
            let value = match (unsafe { self.arg(s.reg, tile) }, m) {
                (Arg::Uniform(_), _) if !first => return,
                (Arg::Uniform(_), _) => self.uniform[s.reg],
                (Arg::Lanes(v), BinaryMonoid::Sum) => lanes::sum(self.simd, v),
                (Arg::Lanes(v), BinaryMonoid::Max) => lanes::max(self.simd, v).wide(),
            };
            acc[row] = m.combine(acc[row], value);
            return;
        }
        let start = row * self.schedule.piece + tile.at - tile.piece;
        let acc = &mut acc[start..start + tile.len];
        // SAFETY: the caller's promise.
        match (unsafe { self.spread(s.reg, 0, tile) }, m) {
            (v, BinaryMonoid::Sum) => lanes::add_to(self.simd, acc, v),
            (v, BinaryMonoid::Max) => lanes::max_to(self.simd, acc, v),
        }
    }

    /// Combines the partial results of two chunks.
    pub fn combine(&self, total: &mut [f64], part: &[f64]) {
        for (i, s) in self.code.stores.iter().enumerate() {
            let span = self.schedule.starts[i]..self.schedule.starts[i + 1];
            match s.combine {
                Some(BinaryMonoid::Sum) => lanes::add_to(self.simd, &mut total[span.clone()], &part[span]),
                Some(BinaryMonoid::Max) => lanes::max_to(self.simd, &mut total[span.clone()], &part[span]),
                None => {}
            }
        }
    }

    /// Writes a unit's accumulators to the results.
    ///
    /// # Safety
    /// As for [`Machine::reduce`].
    pub unsafe fn finish(&mut self, unit: usize, acc: &[f64]) {
        let (from, to) = self.piece(unit);
        for (i, s) in self.code.stores.iter().enumerate().filter(|(_, s)| s.combine.is_some()) {
            self.seek(unit / self.schedule.pieces, 0);
            let nest = &self.code.nest;
            let column = &nest.columns[s.column];
            let stride = nest.lane_stride(s.column);
            let loops: Vec<usize> = (nest.kept..nest.outer().len()).filter(|l| column.strides[*l] != 0).collect();
            let lens = || loops.iter().map(|l| nest.lens[*l]);
            let mut digits = vec![0; loops.len()];
            let (width, len) = if stride == 0 { (1, 1) } else { (self.schedule.piece, to - from) };
            let acc = &acc[self.schedule.starts[i]..self.schedule.starts[i + 1]];
            for row in 0..lens().product() {
                unpack(row, lens(), &mut digits);
                let offset: usize = digits.iter().zip(&loops).map(|(d, l)| d * column.strides[*l]).sum();
                let at = self.columns[s.column] + offset + from * stride;
                let values = &acc[row * width..row * width + len];
                // SAFETY: the view was checked; units have results of their own.
                unsafe { memory::store(self.call.at(s.to), s.dtype, at, stride, values) };
            }
        }
    }
}

//! Kernels of every kind, made by hand, and NVRTC if it can be had.
#![allow(dead_code)] // Every test file uses its part.

use autoshard_codegen::nvrtc::{Cache, Nvrtc};
use autoshard_ir::core::{Axis, BinaryMonoid, Bits, DType, Scalar};
use autoshard_ir::kernel::{Extent, GatherKernel, Instr, Kernel, KernelBody, LoopKernel, LoopOp, Reg, Store, View};
use std::path::Path;
use std::process::Command;
use std::sync::Mutex;

pub const SUM: BinaryMonoid = BinaryMonoid::Sum;
pub const MAX: BinaryMonoid = BinaryMonoid::Max;
pub use DType::{Bf16, F32, F64, I32};

/// A range that is not split.
pub fn whole(name: &str, size: usize) -> Extent {
    Extent { name: name.into(), size, global: size, axes: vec![] }
}

/// A range split over an axis of `ways` ranks.
pub fn split(name: &str, global: usize, ways: usize) -> Extent {
    let axes = vec![Axis::new(&format!("x{ways}"))];
    Extent { name: name.into(), size: global.div_ceil(ways), global, axes }
}

/// Row-major strides of the loops in `has`, from padded sizes; 0 elsewhere.
pub fn packed(loops: &[Extent], has: &[usize]) -> Vec<usize> {
    let mut strides = vec![0; loops.len()];
    let mut n = 1;
    for l in has.iter().rev() {
        strides[*l] = n;
        n *= loops[*l].size;
    }
    strides
}

/// Builds a nest.
pub struct Make {
    pub k: LoopKernel,
    first_result: usize,
    results: usize,
}

impl Make {
    /// A nest whose results come after `operands` buffers.
    pub fn new(operands: usize, loops: &[Extent]) -> Make {
        let k = LoopKernel { loops: loops.to_vec(), instrs: vec![], stores: vec![] };
        Make { k, first_result: operands, results: 0 }
    }
    pub fn push(&mut self, op: LoopOp, args: &[Reg], dtype: DType, uniform: bool) -> Reg {
        self.k.instrs.push(Instr { op, args: args.to_vec(), dtype, uniform });
        self.k.instrs.len() - 1
    }
    pub fn view(&self, buffer: usize, dtype: DType, has: &[usize]) -> View {
        View { buffer, dtype, offset: 0, strides: packed(&self.k.loops, has) }
    }
    pub fn load_view(&mut self, view: View) -> Reg {
        let (dtype, uniform) = (view.dtype, view.strides.last() == Some(&0));
        self.push(LoopOp::Load(view), &[], dtype, uniform)
    }
    pub fn load(&mut self, buffer: usize, dtype: DType, has: &[usize]) -> Reg {
        self.load_view(self.view(buffer, dtype, has))
    }
    pub fn map(&mut self, f: Scalar, args: &[Reg], dtype: DType) -> Reg {
        let uniform = args.iter().all(|a| self.k.instrs[*a].uniform);
        self.push(LoopOp::Map(f), args, dtype, uniform)
    }
    pub fn affine(&mut self, x: Reg, mul: f64, add: f64, dtype: DType) -> Reg {
        self.map(Scalar::Affine { mul: Bits::new(mul), add: Bits::new(add) }, &[x], dtype)
    }
    pub fn constant(&mut self, x: f64, dtype: DType) -> Reg {
        self.push(LoopOp::Const(x), &[], dtype, true)
    }
    pub fn reduce(&mut self, m: BinaryMonoid, x: Reg, dtype: DType) -> Reg {
        self.push(LoopOp::Reduce(m), &[x], dtype, true)
    }
    /// Stores into the next result.
    pub fn store(&mut self, reg: Reg, dtype: DType, has: &[usize], combine: Option<BinaryMonoid>) {
        let view = self.view(self.first_result + self.results, dtype, has);
        self.store_view(reg, view, combine);
    }
    pub fn store_view(&mut self, reg: Reg, view: View, combine: Option<BinaryMonoid>) {
        self.results = self.results.max(view.buffer + 1 - self.first_result);
        self.k.stores.push(Store { view, reg, combine });
    }
    /// A kernel of this nest alone.
    pub fn kernel(self, name: &str) -> Kernel {
        let (operands, results) = (self.first_result, self.results);
        kernel(name, operands, results, KernelBody::Loop(vec![self.k]))
    }
}

pub fn kernel(name: &str, operands: usize, results: usize, body: KernelBody) -> Kernel {
    Kernel { name: name.into(), operands, results, flops: 0.0, bytes: 0.0, body }
}

/// y = silu(a·b + c)·d: a, b and y have `layout`, c the lane alone, d all but the lane.
pub fn chain(loops: &[Extent], layout: &[usize], t: DType) -> Kernel {
    let all: Vec<usize> = (0..loops.len()).collect();
    let lane = loops.len() - 1;
    let mut m = Make::new(4, loops);
    let a = m.load(0, t, &all);
    let b = m.load(1, t, layout);
    let c = m.load(2, t, &[lane]);
    let d = m.load(3, t, &all[..lane]);
    let x = m.map(Scalar::Mul, &[a, b], t);
    let x = m.map(Scalar::Add, &[x, c], t);
    let s = m.map(Scalar::Sigmoid, &[x], t);
    let x = m.map(Scalar::Mul, &[x, s], t);
    let y = m.map(Scalar::Mul, &[x, d], t);
    m.store(y, t, &all, None);
    m.kernel("chain")
}

/// silu(gate)·up.
pub fn swiglu(loops: &[Extent], t: DType) -> Kernel {
    let all: Vec<usize> = (0..loops.len()).collect();
    let mut m = Make::new(2, loops);
    let (g, u) = (m.load(0, t, &all), m.load(1, t, &all));
    let s = m.map(Scalar::Sigmoid, &[g], t);
    let x = m.map(Scalar::Mul, &[g, s], t);
    let y = m.map(Scalar::Mul, &[x, u], t);
    m.store(y, t, &all, None);
    m.kernel("swiglu")
}

/// The gradients of silu(gate)·up.
pub fn swiglu_backward(loops: &[Extent], t: DType) -> Kernel {
    let all: Vec<usize> = (0..loops.len()).collect();
    let mut m = Make::new(3, loops);
    let (g, u, d) = (m.load(0, t, &all), m.load(1, t, &all), m.load(2, t, &all));
    let s = m.map(Scalar::Sigmoid, &[g], t);
    let x = m.map(Scalar::Mul, &[g, s], t);
    let du = m.map(Scalar::Mul, &[d, x], t);
    let one = m.constant(1.0, t);
    let rest = m.map(Scalar::Sub, &[one, s], t);
    let slope = m.map(Scalar::Mul, &[x, rest], t);
    let slope = m.map(Scalar::Add, &[slope, s], t);
    let dx = m.map(Scalar::Mul, &[d, u], t);
    let dg = m.map(Scalar::Mul, &[dx, slope], t);
    m.store(dg, t, &all, None);
    m.store(du, t, &all, None);
    m.kernel("swiglu backward")
}

/// Softmax of each row, and its log-sum-exp.
pub fn softmax(loops: &[Extent], t: DType) -> Kernel {
    let all: Vec<usize> = (0..loops.len()).collect();
    let mut m = Make::new(1, loops);
    let a = m.load(0, t, &all);
    let top = m.reduce(MAX, a, t);
    let x = m.map(Scalar::Sub, &[a, top], t);
    let e = m.map(Scalar::Exp, &[x], t);
    let sum = m.reduce(SUM, e, t);
    let p = m.map(Scalar::Div, &[e, sum], t);
    let log = m.map(Scalar::Log, &[sum], t);
    let lse = m.map(Scalar::Add, &[log, top], t);
    m.store(p, t, &all, None);
    m.store(lse, t, &all[..all.len() - 1], None);
    m.kernel("softmax")
}

/// y = x·rsqrt(mean x² + ε)·w: statistics in f32, rows in `t`.
pub fn rmsnorm(loops: &[Extent], t: DType) -> Kernel {
    let all: Vec<usize> = (0..loops.len()).collect();
    let lane = loops.len() - 1;
    let mut m = Make::new(2, loops);
    let (x, w) = (m.load(0, t, &all), m.load(1, t, &[lane]));
    let wide = m.map(Scalar::Identity, &[x], F32);
    let square = m.map(Scalar::Mul, &[wide, wide], F32);
    let sum = m.reduce(SUM, square, F32);
    let mean = m.affine(sum, 1.0 / loops[lane].global as f64, 1e-5, F32);
    let r = m.map(Scalar::Rsqrt, &[mean], F32);
    let n = m.map(Scalar::Mul, &[wide, r], F32);
    let n = m.map(Scalar::Identity, &[n], t);
    let y = m.map(Scalar::Mul, &[n, w], t);
    m.store(y, t, &all, None);
    m.kernel("rmsnorm")
}

/// Gradients of rmsnorm: dx row by row, dw summed over rows.
pub fn rmsnorm_backward(loops: &[Extent], t: DType) -> Kernel {
    let all: Vec<usize> = (0..loops.len()).collect();
    let lane = loops.len() - 1;
    let mut m = Make::new(3, loops);
    let (x, w, d) = (m.load(0, t, &all), m.load(1, t, &[lane]), m.load(2, t, &all));
    let [x, w, d] = [x, w, d].map(|r| m.map(Scalar::Identity, &[r], F32));
    let square = m.map(Scalar::Mul, &[x, x], F32);
    let sum = m.reduce(SUM, square, F32);
    let mean = m.affine(sum, 1.0 / loops[lane].global as f64, 1e-5, F32);
    let r = m.map(Scalar::Rsqrt, &[mean], F32);
    let dw = m.map(Scalar::Mul, &[d, w], F32);
    let dot = m.map(Scalar::Mul, &[dw, x], F32);
    let dot = m.reduce(SUM, dot, F32);
    let dot = m.affine(dot, 1.0 / loops[lane].global as f64, 0.0, F32);
    let r2 = m.map(Scalar::Mul, &[r, r], F32);
    let c = m.map(Scalar::Mul, &[dot, r2], F32);
    let back = m.map(Scalar::Mul, &[x, c], F32);
    let dx = m.map(Scalar::Sub, &[dw, back], F32);
    let dx = m.map(Scalar::Mul, &[dx, r], F32);
    let dx = m.map(Scalar::Identity, &[dx], t);
    let n = m.map(Scalar::Mul, &[x, r], F32);
    let weight = m.map(Scalar::Mul, &[d, n], F32);
    m.store(dx, t, &all, None);
    m.store(weight, F32, &[lane], Some(SUM));
    m.kernel("rmsnorm backward")
}

/// Rotation of halves: `x` is `[b, s, h, 2·half]`, cosines and sines `[s, half]`.
pub fn rope(b: Extent, s: Extent, h: Extent, half: usize, t: DType) -> Kernel {
    let loops = [b, s, h, whole("e", half)];
    let mut m = Make::new(3, &loops);
    let mut strides = packed(&loops, &[0, 1, 2, 3]);
    strides[..3].iter_mut().for_each(|s| *s *= 2);
    let view = |buffer, offset| View { buffer, dtype: t, offset, strides: strides.clone() };
    let (x1, x2) = (m.load_view(view(0, 0)), m.load_view(view(0, half)));
    let (cos, sin) = (m.load(1, t, &[1, 3]), m.load(2, t, &[1, 3]));
    let a = m.map(Scalar::Mul, &[x1, cos], t);
    let b = m.map(Scalar::Mul, &[x2, sin], t);
    let y1 = m.map(Scalar::Sub, &[a, b], t);
    let a = m.map(Scalar::Mul, &[x2, cos], t);
    let b = m.map(Scalar::Mul, &[x1, sin], t);
    let y2 = m.map(Scalar::Add, &[a, b], t);
    m.store_view(y1, view(3, 0), None);
    m.store_view(y2, view(3, half), None);
    m.kernel("rope")
}

/// Cosines and sines of positions: a table of frequencies, long angles.
pub fn rope_table(s: Extent, half: usize) -> Kernel {
    let loops = [s, whole("e", half)];
    let mut m = Make::new(0, &loops);
    let position = m.push(LoopOp::Index(0), &[], I32, true);
    let position = m.map(Scalar::Identity, &[position], F32);
    let values = (0..half).map(|i| 5e5f64.powf(-(i as f64) / half as f64)).collect();
    let frequency = m.push(LoopOp::Table(1, values), &[], F32, false);
    let angle = m.map(Scalar::Mul, &[position, frequency], F32);
    let (cos, sin) = (m.map(Scalar::Cos, &[angle], F32), m.map(Scalar::Sin, &[angle], F32));
    m.store(cos, Bf16, &[0, 1], None);
    m.store(sin, Bf16, &[0, 1], None);
    m.kernel("rope table")
}

/// Loss of each row against its id, its log-sum-exp, and the sum of losses.
pub fn cross_entropy(n: Extent, v: Extent, t: DType) -> Kernel {
    let loops = [n, v];
    let mut m = Make::new(2, &loops);
    let (x, id) = (m.load(0, t, &[0, 1]), m.load(1, I32, &[0]));
    let x = m.map(Scalar::Identity, &[x], F32);
    let top = m.reduce(MAX, x, F32);
    let shifted = m.map(Scalar::Sub, &[x, top], F32);
    let e = m.map(Scalar::Exp, &[shifted], F32);
    let sum = m.reduce(SUM, e, F32);
    let log = m.map(Scalar::Log, &[sum], F32);
    let lse = m.map(Scalar::Add, &[log, top], F32);
    let index = m.push(LoopOp::Index(1), &[], I32, false);
    let hit = m.map(Scalar::Equal, &[index, id], F32);
    let picked = m.map(Scalar::Mul, &[hit, x], F32);
    let picked = m.reduce(SUM, picked, F32);
    let loss = m.map(Scalar::Sub, &[lse, picked], F32);
    m.store(loss, F32, &[], Some(SUM));
    m.store(lse, F32, &[0], None);
    m.kernel("cross entropy")
}

/// Gradient of the loss: softmax − one-hot, scaled by a number.
pub fn cross_entropy_backward(n: Extent, v: Extent, t: DType) -> Kernel {
    let loops = [n, v];
    let mut m = Make::new(4, &loops);
    let (x, id) = (m.load(0, t, &[0, 1]), m.load(1, I32, &[0]));
    let (lse, scale) = (m.load(2, F32, &[0]), m.load(3, F32, &[]));
    let x = m.map(Scalar::Identity, &[x], F32);
    let shifted = m.map(Scalar::Sub, &[x, lse], F32);
    let p = m.map(Scalar::Exp, &[shifted], F32);
    let index = m.push(LoopOp::Index(1), &[], I32, false);
    let hit = m.map(Scalar::Equal, &[index, id], F32);
    let d = m.map(Scalar::Sub, &[p, hit], F32);
    let d = m.map(Scalar::Mul, &[d, scale], t);
    m.store(d, t, &[0, 1], None);
    m.kernel("cross entropy backward")
}

/// AdamW of several tensors in one kernel: parameter, gradient and two moments each; the step count
/// is one i32, from which corrections are made in f64.
pub fn adamw(shapes: &[Vec<Extent>], gradient: DType) -> Kernel {
    let operands = 1 + 4 * shapes.len();
    let mut nests = vec![];
    for (i, loops) in shapes.iter().enumerate() {
        let all: Vec<usize> = (0..loops.len()).collect();
        let mut m = Make::new(operands, loops);
        let step = m.load(0, I32, &[]);
        let step = m.map(Scalar::Identity, &[step], F64);
        let correction = |m: &mut Make, beta: f64| {
            let base = m.constant(beta, F64);
            let power = m.map(Scalar::Pow, &[base, step], F64);
            let rest = m.affine(power, -1.0, 1.0, F64);
            m.map(Scalar::Reciprocal, &[rest], F64)
        };
        let (c1, c2) = (correction(&mut m, 0.9), correction(&mut m, 0.95));
        let [c1, c2] = [c1, c2].map(|c| m.map(Scalar::Identity, &[c], F32));
        let at = 1 + 4 * i;
        let p = m.load(at, F32, &all);
        let g = m.load(at + 1, gradient, &all);
        let g = m.map(Scalar::Identity, &[g], F32);
        let (m1, m2) = (m.load(at + 2, F32, &all), m.load(at + 3, F32, &all));
        let a = m.affine(m1, 0.9, 0.0, F32);
        let b = m.affine(g, 0.1, 0.0, F32);
        let first = m.map(Scalar::Add, &[a, b], F32);
        let square = m.map(Scalar::Mul, &[g, g], F32);
        let a = m.affine(m2, 0.95, 0.0, F32);
        let b = m.affine(square, 0.05, 0.0, F32);
        let second = m.map(Scalar::Add, &[a, b], F32);
        let mean = m.map(Scalar::Mul, &[first, c1], F32);
        let variance = m.map(Scalar::Mul, &[second, c2], F32);
        let root = m.map(Scalar::Sqrt, &[variance], F32);
        let root = m.affine(root, 1.0, 1e-8, F32);
        let ratio = m.map(Scalar::Div, &[mean, root], F32);
        let decay = m.affine(p, 0.1, 0.0, F32);
        let move_ = m.map(Scalar::Add, &[ratio, decay], F32);
        let move_ = m.affine(move_, -3e-4, 0.0, F32);
        let new = m.map(Scalar::Add, &[p, move_], F32);
        for (j, reg) in [new, first, second].into_iter().enumerate() {
            let view = m.view(operands + 3 * i + j, F32, &all);
            m.store_view(reg, view, None);
        }
        nests.push(m.k);
    }
    kernel("adamw", operands, 3 * shapes.len(), KernelBody::Loop(nests))
}

/// Products of two operands, combined over the loops that `set` lacks, beside a plain store and a
/// sum of columns.
pub fn combining(loops: &[Extent], set: &[usize], monoid: BinaryMonoid, t: DType) -> Kernel {
    let all: Vec<usize> = (0..loops.len()).collect();
    let mut m = Make::new(2, loops);
    let (a, b) = (m.load(0, t, &all), m.load(1, t, &all));
    let x = m.map(Scalar::Mul, &[a, b], t);
    m.store(x, t, set, Some(monoid));
    m.store(x, t, &all, None);
    m.store(a, t, &[loops.len() - 1], Some(SUM));
    m.kernel("combining")
}

/// Sum of squares and number of rows.
pub fn norm(loops: &[Extent], t: DType) -> Kernel {
    let all: Vec<usize> = (0..loops.len()).collect();
    let mut m = Make::new(1, loops);
    let x = m.load(0, t, &all);
    let x = m.map(Scalar::Identity, &[x], F32);
    let x = m.map(Scalar::Mul, &[x, x], F32);
    let one = m.constant(1.0, F32);
    m.store(x, F32, &[], Some(SUM));
    m.store(one, F32, &[], Some(SUM));
    m.kernel("norm")
}

/// Everything that depends on where a rank's part lies.
pub fn positions(i: Extent, j: Extent, t: DType) -> Kernel {
    let loops = [i, j];
    let global = [loops[0].global, loops[1].global];
    let mut m = Make::new(1, &loops);
    let a = m.load(0, I32, &[1]);
    let row = m.push(LoopOp::Index(0), &[], I32, true);
    let col = m.push(LoopOp::Index(1), &[], I32, false);
    let table = (0..global[1]).map(|i| (i * i) as f64 * 0.125).collect();
    let table = m.push(LoopOp::Table(1, table), &[], t, false);
    let rows = (0..global[0]).map(|i| i as f64 * 0.1).collect();
    let rows = m.push(LoopOp::Table(0, rows), &[], t, true);
    let random = m.push(LoopOp::Random(42, vec![global[1], 1]), &[], t, false);
    let causal = m.map(Scalar::Less, &[row, col], t);
    let same = m.map(Scalar::Equal, &[a, col], t);
    let x = m.map(Scalar::Select, &[causal, table, random], t);
    let x = m.map(Scalar::Add, &[x, same], t);
    let x = m.map(Scalar::Mul, &[x, rows], t);
    m.store(x, t, &[0, 1], None);
    m.store(random, t, &[1, 0], None);
    m.kernel("positions")
}

/// Every scalar function on numbers of one type.
pub fn scalars(n: Extent, t: DType) -> Kernel {
    use Scalar::*;
    let loops = [n];
    let mut m = Make::new(2, &loops);
    let (a, b) = (m.load(0, t, &[0]), m.load(1, t, &[0]));
    let affine = Affine { mul: Bits::new(-1.5), add: Bits::new(0.25) };
    for f in [Neg, Exp, Log, Sqrt, Rsqrt, Reciprocal, Sin, Cos, Tanh, Sigmoid, Abs, Identity, affine] {
        let x = m.map(f, &[a], t);
        m.store(x, t, &[0], None);
    }
    for f in [Add, Sub, Mul, Div, Max, Min, Pow, Less, Equal] {
        let x = m.map(f, &[a, b], t);
        m.store(x, t, &[0], None);
    }
    let x = m.map(Select, &[a, b, a], t);
    m.store(x, t, &[0], None);
    m.kernel("scalars")
}

/// Sums over all loops but those in `set` of x·Σx, beside the sum of rows.
pub fn scaled(loops: &[Extent], set: &[usize], t: DType) -> Kernel {
    let all: Vec<usize> = (0..loops.len()).collect();
    let mut m = Make::new(1, loops);
    let x = m.load(0, t, &all);
    let s = m.reduce(SUM, x, F32);
    let y = m.map(Scalar::Mul, &[x, s], F32);
    m.store(y, F32, set, Some(SUM));
    m.store(s, F32, &set[..set.len() - 1], Some(MAX));
    m.kernel("scaled")
}

/// Nests of several kernels in one.
pub fn together(kernels: Vec<Kernel>) -> Kernel {
    let operands: usize = kernels.iter().map(|k| k.operands).sum();
    let results: usize = kernels.iter().map(|k| k.results).sum();
    let (mut operand, mut result) = (0, operands);
    let mut nests = vec![];
    for k in kernels {
        let KernelBody::Loop(own) = k.body else { continue };
        let place = |b: usize| if b < k.operands { operand + b } else { result + b - k.operands };
        for mut nest in own {
            for i in &mut nest.instrs {
                if let LoopOp::Load(v) = &mut i.op {
                    v.buffer = place(v.buffer);
                }
            }
            nest.stores.iter_mut().for_each(|s| s.view.buffer = place(s.view.buffer));
            nests.push(nest);
        }
        operand += k.operands;
        result += k.results;
    }
    kernel("together", operands, results, KernelBody::Loop(nests))
}

/// Nests of every form in one kernel.
pub fn mixed(t: DType) -> Kernel {
    let (b, s) = (split("b", 8, 3), whole("s", 9));
    together(vec![
        swiglu(&[b.clone(), s.clone(), whole("f", 64)], t),
        rmsnorm_backward(&[b.clone(), s.clone(), whole("d", 1040)], t),
        softmax(&[s.clone(), split("v", 100, 3)], t),
        swiglu(&[b.clone(), s.clone(), whole("f", 64)], t),
        norm(&[b.clone(), s.clone(), whole("d", 40)], t),
        combining(&[b, s, whole("d", 40)], &[0, 2], MAX, t),
    ])
}

/// Random numbers whose counters need 64 bits.
pub fn far(n: Extent, t: DType) -> Kernel {
    let loops = [whole("i", 3), n];
    let mut m = Make::new(0, &loops);
    let r = m.push(LoopOp::Random(7, vec![1 << 33, 1]), &[], t, false);
    m.store(r, t, &[0, 1], None);
    m.kernel("far")
}

/// A cast.
pub fn cast(n: Extent, from: DType, to: DType) -> Kernel {
    let loops = [n];
    let mut m = Make::new(1, &loops);
    let a = m.load(0, from, &[0]);
    let a = m.affine(a, 37.3, 0.0, from);
    let b = m.map(Scalar::Identity, &[a], to);
    m.store(b, to, &[0], None);
    m.kernel("cast")
}

pub fn gather(rows: Vec<Extent>, table: Extent, d: Extent, dtype: DType) -> Kernel {
    kernel("gather", 2, 1, KernelBody::Gather(GatherKernel { rows, table, d, dtype }))
}

pub fn scatter(rows: Vec<Extent>, table: Extent, d: Extent, dtype: DType) -> Kernel {
    kernel("scatter", 2, 1, KernelBody::Scatter(GatherKernel { rows, table, d, dtype }))
}

/// NVRTC, fetched if need be; without it the test says so and is skipped.
pub fn nvrtc() -> Option<Nvrtc> {
    // One at a time: the first one fetches for all.
    static FETCH: Mutex<()> = Mutex::new(());
    let _alone = FETCH.lock().unwrap_or_else(|e| e.into_inner());
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scripts/get-nvrtc");
    let fetched = match Command::new(&script).output() {
        Ok(out) if out.status.success() => String::new(),
        Ok(out) => format!(" (get-nvrtc: {})", String::from_utf8_lossy(&out.stderr).lines().last().unwrap_or("failed")),
        Err(e) => format!(" (get-nvrtc: {e})"),
    };
    match Nvrtc::find(None) {
        Ok(n) => Some(n),
        Err(e) => {
            use std::io::Write;
            // Seen even where the test passes.
            let _ = writeln!(std::io::stderr(), "\nskipped: NVRTC: {e}{fetched} (1 test)");
            None
        }
    }
}

/// Threads that compile side by side.
pub fn threads() -> usize {
    std::thread::available_parallelism().map_or(1, |n| n.get())
}

/// Images of earlier runs.
pub fn cache() -> Cache {
    Cache::new(Path::new(env!("CARGO_TARGET_TMPDIR")).join("nvrtc-images"))
}

//! The machine against a plain evaluation of the kernel's definition in f64.

use super::super::testing::*;
use super::super::*;
use autoshard_ir::core::{BinaryMonoid, Bits, Scalar};
use autoshard_ir::kernel::{Instr, LoopKernel, LoopOp, Store, View};
use autoshard_ir::ops::random_unit;

/// Evaluates the kernel entry by entry. Untouched elements are `None`.
fn reference(k: &LoopKernel, rank: usize, operands: &[Tensor], lens: &[usize]) -> Vec<Vec<Option<f64>>> {
    let ranges: Vec<_> = k.loops.iter().map(|e| e.part(&mesh(), &[rank])).collect();
    let mut out: Vec<Vec<Option<f64>>> = lens.iter().map(|n| vec![None; *n]).collect();
    let (lane, outer) = ranges.split_last().unwrap();
    let at = |v: &View, d: &[usize]| v.offset + d.iter().zip(&v.strides).map(|(d, s)| d * s).sum::<usize>();
    // Combining results start from the identity over the loops that they have.
    for s in k.stores.iter().filter(|s| s.combine.is_some()) {
        let own = ranges.iter().zip(&s.view.strides).map(|(r, s)| if *s == 0 { 1 } else { r.len });
        each(&own.collect::<Vec<_>>(), |d| {
            out[s.view.buffer - operands.len()][at(&s.view, d)] = Some(s.combine.unwrap().identity());
        });
    }
    each(&outer.iter().map(|r| r.len).collect::<Vec<_>>(), |row| {
        let mut regs: Vec<Vec<f64>> = vec![];
        for i in &k.instrs {
            let n = if i.uniform { 1 } else { lane.len };
            let mut d: Vec<usize> = row.iter().copied().chain([0]).collect();
            let mut value = |l: usize| {
                d[row.len()] = if i.uniform { 0 } else { l };
                let arg = |a: usize| {
                    if regs[a].len() == 1 && k.instrs[a].uniform {
                        regs[a][0]
                    } else {
                        regs[a][l]
                    }
                };
                match &i.op {
                    LoopOp::Load(v) => operands[v.buffer].get(at(v, &d)),
                    LoopOp::Map(f) => {
                        let mut x = [0.0; 3];
                        x.iter_mut().zip(&i.args).for_each(|(x, a)| *x = arg(*a));
                        f.eval(&x)
                    }
                    LoopOp::Const(x) => *x,
                    LoopOp::Table(t, values) => values[ranges[*t].start + d[*t]],
                    LoopOp::Index(t) => (ranges[*t].start + d[*t]) as f64,
                    LoopOp::Random(key, strides) => {
                        let global = (0..d.len()).map(|t| (ranges[t].start + d[t]) * strides[t]).sum::<usize>();
                        random_unit(*key, global as u64)
                    }
                    LoopOp::Reduce(m) => regs[i.args[0]].iter().fold(m.identity(), |x, y| m.combine(x, *y)),
                }
            };
            regs.push((0..n).map(|l| i.dtype.round(value(l))).collect());
        }
        for s in &k.stores {
            let uniform = k.instrs[s.reg].uniform;
            let n = if uniform && s.view.strides[row.len()] == 0 { 1 } else { lane.len };
            let mut d: Vec<usize> = row.iter().copied().chain([0]).collect();
            for l in 0..n {
                d[row.len()] = l;
                let x = regs[s.reg][if uniform { 0 } else { l }];
                let element = &mut out[s.view.buffer - operands.len()][at(&s.view, &d)];
                *element = Some(s.combine.map_or(x, |m| m.combine(element.unwrap(), x)));
            }
        }
    });
    out
}

fn each(lens: &[usize], mut f: impl FnMut(&[usize])) {
    let mut d = vec![0; lens.len()];
    for i in 0..lens.iter().product() {
        unpack(i, lens.iter().copied(), &mut d);
        f(&d);
    }
}

/// Runs on every rank and compares; returns rank 0's results.
pub(super) fn check(k: &LoopKernel, operands: &[Tensor], results: &[(DType, usize)], tolerance: f64) -> Vec<Tensor> {
    let canaries: Vec<Tensor> = results.iter().map(|(t, n)| Tensor::canary(*t, *n)).collect();
    let lens: Vec<usize> = results.iter().map(|r| r.1).collect();
    let body = kernel(operands.len(), results.len(), KernelBody::Loop(vec![k.clone()]));
    let mut first = None;
    for rank in 0..3 {
        let got = run(&body, rank, operands, &canaries).unwrap();
        for (r, want) in reference(k, rank, operands, &lens).iter().enumerate() {
            for (i, w) in want.iter().enumerate() {
                let want = w.map_or(CANARY, |w| results[r].0.round(w));
                assert_near(got[r].get(i), want, tolerance, &format!("rank {rank} result {r} at {i}"));
            }
        }
        first.get_or_insert(got);
    }
    first.unwrap()
}

/// Row-major strides of the loops in `has`, from padded sizes; 0 elsewhere.
fn packed(loops: &[Extent], has: &[usize]) -> (Vec<usize>, usize) {
    let mut strides = vec![0; loops.len()];
    let mut n = 1;
    for l in has.iter().rev() {
        strides[*l] = n;
        n *= loops[*l].size;
    }
    (strides, n)
}

/// Builds kernels.
pub(super) struct Make {
    pub k: LoopKernel,
    operands: usize,
    results: usize,
}

impl Make {
    pub fn new(operands: usize, loops: &[Extent]) -> Make {
        Make { k: LoopKernel { loops: loops.to_vec(), instrs: vec![], stores: vec![] }, operands, results: 0 }
    }
    pub fn push(&mut self, op: LoopOp, args: &[usize], dtype: DType, uniform: bool) -> usize {
        self.k.instrs.push(Instr { op, args: args.to_vec(), dtype, uniform });
        self.k.instrs.len() - 1
    }
    fn view(&self, buffer: usize, dtype: DType, has: &[usize]) -> View {
        View { buffer, dtype, offset: 0, strides: packed(&self.k.loops, has).0 }
    }
    pub fn load(&mut self, buffer: usize, dtype: DType, has: &[usize]) -> usize {
        let view = self.view(buffer, dtype, has);
        let uniform = view.strides[self.k.loops.len() - 1] == 0;
        self.push(LoopOp::Load(view), &[], dtype, uniform)
    }
    pub fn map(&mut self, f: Scalar, args: &[usize], dtype: DType) -> usize {
        let uniform = args.iter().all(|a| self.k.instrs.get(*a).is_some_and(|i| i.uniform));
        self.push(LoopOp::Map(f), args, dtype, uniform)
    }
    pub fn store(&mut self, reg: usize, dtype: DType, has: &[usize], combine: Option<BinaryMonoid>) {
        let view = self.view(self.operands + self.results, dtype, has);
        self.results += 1;
        self.k.stores.push(Store { view, reg, combine });
    }
}

pub(super) const SUM: BinaryMonoid = BinaryMonoid::Sum;
const MAX: BinaryMonoid = BinaryMonoid::Max;

fn size(loops: &[Extent], has: &[usize]) -> usize {
    packed(loops, has).1
}

fn tolerance(t: DType) -> f64 {
    match t {
        DType::F64 => 1e-13,
        DType::F32 => 2e-6,
        _ => 1e-2,
    }
}

#[test]
fn a_pointwise_chain_in_every_layout() {
    // y = silu(a·b + c)·d, contiguous, transposed, broadcast, ragged, longer than a tile.
    let shapes = [
        [whole("i", 1), whole("j", 3), whole("k", 5)],
        [whole("i", 3), whole("j", 50), whole("k", 500)],
        [split("i", 7), whole("j", 3), whole("k", 16)],
        [whole("i", 3), split("j", 7), whole("k", 17)],
        [whole("i", 40), whole("j", 41), split("k", 46)],
        [whole("i", 2), whole("j", 3), split("k", 4)],
        [split("i", 1), whole("j", 3), whole("k", 1)],
    ];
    for (loops, t) in shapes.iter().flat_map(|s| [DType::F32, DType::F64, DType::Bf16].map(|t| (s, t))) {
        let mut m = Make::new(4, loops);
        let a = m.load(0, t, &[0, 1, 2]);
        let b = m.load(1, t, &[2, 0, 1]);
        let c = m.load(2, t, &[2]);
        let d = m.load(3, t, &[0, 1]);
        let x = m.map(Scalar::Mul, &[a, b], t);
        let x = m.map(Scalar::Add, &[x, c], t);
        let s = m.map(Scalar::Sigmoid, &[x], t);
        let x = m.map(Scalar::Mul, &[x, s], t);
        let y = m.map(Scalar::Mul, &[x, d], t);
        m.store(y, t, &[0, 1, 2], None);
        m.store(x, t, &[1, 2, 0], None);
        let n = size(loops, &[0, 1, 2]);
        let operands = [
            Tensor::noise(t, n, 1),
            Tensor::noise(t, n, 2),
            Tensor::noise(t, loops[2].size, 3),
            Tensor::noise(t, size(loops, &[0, 1]), 4),
        ];
        check(&m.k, &operands, &[(t, n), (t, n)], tolerance(t));
    }
}

#[test]
fn contiguous_and_long() {
    for t in [DType::F32, DType::F64] {
        let loops = [whole("i", 3), whole("j", 40_001)];
        let mut m = Make::new(2, &loops);
        let (a, b) = (m.load(0, t, &[0, 1]), m.load(1, t, &[0, 1]));
        let c = m.push(LoopOp::Const(0.5), &[], t, true);
        let x = m.map(Scalar::Max, &[a, c], t);
        let less = m.map(Scalar::Less, &[a, b], t);
        let y = m.map(Scalar::Select, &[less, x, c], t);
        let y = m.map(Scalar::Affine { mul: Bits::new(3.0), add: Bits::new(-0.25) }, &[y], t);
        m.store(y, t, &[0, 1], None);
        m.store(a, t, &[0, 1], None);
        let operands = [Tensor::noise(t, 120_003, 1), Tensor::noise(t, 120_003, 2)];
        check(&m.k, &operands, &[(t, 120_003), (t, 120_003)], tolerance(t));
    }
}

#[test]
fn casts_between_all_types() {
    for (from, to) in DType::ALL.into_iter().flat_map(|f| DType::ALL.map(|t| (f, t))) {
        let loops = [whole("i", 5), split("j", 10)];
        let mut m = Make::new(1, &loops);
        let a = m.load(0, from, &[0, 1]);
        let a = m.map(Scalar::Affine { mul: Bits::new(37.3), add: Bits::new(0.0) }, &[a], from);
        let b = m.map(Scalar::Identity, &[a], to);
        let b = m.map(Scalar::Identity, &[b], to);
        m.store(b, to, &[0, 1], None);
        let values: Vec<f64> = (0..20).map(|i| i as f64 * 7.3 - 60.0).collect();
        check(&m.k, &[Tensor::new(from, &values)], &[(to, 20)], 1e-2);
    }
}

#[test]
fn softmax_rows() {
    for (t, lane) in [DType::F32, DType::F64].into_iter().flat_map(|t| [1, 2, 7, 100, 5003].map(|n| (t, n))) {
        for loops in
            [[split("i", 7), whole("j", 2), whole("k", lane)], [whole("i", 3), whole("j", 2), split("k", lane)]]
        {
            let mut m = Make::new(2, &loops);
            let a = m.load(0, t, &[0, 1, 2]);
            let row = m.load(1, t, &[0]);
            let top = m.push(LoopOp::Reduce(MAX), &[a], t, true);
            let x = m.map(Scalar::Sub, &[a, top], t);
            let e = m.map(Scalar::Exp, &[x], t);
            let sum = m.push(LoopOp::Reduce(SUM), &[e], t, true);
            let p = m.map(Scalar::Div, &[e, sum], t);
            let log = m.map(Scalar::Log, &[sum], t);
            let lse = m.map(Scalar::Add, &[log, top], t);
            let shifted = m.map(Scalar::Add, &[sum, row], t);
            m.store(p, t, &[0, 1, 2], None);
            m.store(lse, t, &[0, 1], None);
            m.store(shifted, t, &[0, 1], None);
            let (n, rows) = (size(&loops, &[0, 1, 2]), size(&loops, &[0, 1]));
            let operands = [Tensor::noise(t, n, 5), Tensor::noise(t, loops[0].size, 6)];
            check(&m.k, &operands, &[(t, n), (t, rows), (t, rows)], tolerance(t));
        }
    }
}

#[test]
fn combining_stores_over_every_set_of_loops() {
    let shapes = [
        [whole("i", 5), split("j", 7), whole("k", 6)],
        [split("i", 2), whole("j", 3), whole("k", 5)],
        [whole("i", 40), whole("j", 60), split("k", 40)],
        [whole("i", 700), whole("j", 3), whole("k", 19)],
        [whole("i", 2), whole("j", 600), whole("k", 60)],
        [whole("i", 4), whole("j", 3), split("k", 1)],
    ];
    let sets: [&[usize]; 7] = [&[0, 1], &[0], &[1], &[0, 2], &[2], &[], &[1, 2]];
    for (loops, t) in shapes.iter().flat_map(|s| [DType::F32, DType::F64].map(|t| (s, t))) {
        let large = size(loops, &[0, 1, 2]) > 10_000;
        let sets = if large { &sets[2..6] } else { &sets[..] };
        for (set, monoid) in sets.iter().flat_map(|s| [SUM, MAX].map(|m| (s, m))) {
            let mut m = Make::new(2, loops);
            let (a, b) = (m.load(0, t, &[0, 1, 2]), m.load(1, t, &[0, 1, 2]));
            let x = m.map(Scalar::Mul, &[a, b], t);
            m.store(x, t, set, Some(monoid));
            m.store(x, t, &[0, 1, 2], None);
            m.store(a, t, &[2], Some(SUM));
            let n = size(loops, &[0, 1, 2]);
            let results = [(t, size(loops, set)), (t, n), (t, loops[2].size)];
            check(&m.k, &[Tensor::noise(t, n, 1), Tensor::noise(t, n, 2)], &results, tolerance(t));
        }
    }
}

#[test]
fn uniform_stores_that_combine() {
    // A loss: the sum over rows of a sum over the lane, and a row count.
    for t in [DType::F32, DType::F64] {
        for loops in
            [[whole("i", 2000), whole("j", 67)], [split("i", 7), whole("j", 1)], [split("i", 2), split("j", 2)]]
        {
            let mut m = Make::new(1, &loops);
            let a = m.load(0, t, &[0, 1]);
            let s = m.push(LoopOp::Reduce(SUM), &[a], t, true);
            let one = m.push(LoopOp::Const(1.0), &[], t, true);
            m.store(s, t, &[], Some(SUM));
            m.store(one, t, &[], Some(SUM));
            m.store(s, t, &[0], None);
            let operands = [Tensor::noise(t, size(&loops, &[0, 1]), 3)];
            check(&m.k, &operands, &[(t, 1), (t, 1), (t, loops[0].size)], tolerance(t));
        }
    }
}

#[test]
fn indices_tables_and_random_numbers_are_global() {
    for t in [DType::F32, DType::F64] {
        for (i, j) in [(split("i", 7), whole("j", 6)), (whole("i", 4), split("j", 8)), (whole("i", 3), split("j", 700))]
        {
            let loops = [i, j];
            let global = [loops[0].global, loops[1].global];
            let mut m = Make::new(1, &loops);
            let a = m.load(0, DType::I32, &[1]);
            let row = m.push(LoopOp::Index(0), &[], DType::I32, true);
            let col = m.push(LoopOp::Index(1), &[], DType::I32, false);
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
            let ids: Vec<f64> = (0..loops[1].size).map(|i| (i * 5 % 8) as f64).collect();
            let n = size(&loops, &[0, 1]);
            check(&m.k, &[Tensor::new(DType::I32, &ids)], &[(t, n), (t, n)], tolerance(t));
        }
    }
}

#[test]
fn a_uniform_f64_is_not_rounded_on_its_way() {
    let loops = [whole("i", 5)];
    let mut m = Make::new(0, &loops);
    let c = m.push(LoopOp::Const(0.1), &[], DType::F64, true);
    m.store(c, DType::F64, &[0], None);
    let out = check(&m.k, &[], &[(DType::F64, 5)], 0.0);
    assert_eq!(out[0].get(4), 0.1);
}

#[test]
fn f32_sums_are_accurate() {
    let loops = [whole("i", 1 << 20), whole("j", 1)];
    for has in [&[0usize, 1][..], &[1, 0]] {
        let mut m = Make::new(1, &loops);
        let a = m.load(0, DType::F32, has);
        m.store(a, DType::F32, &[], Some(SUM));
        let a = Tensor::new(DType::F32, &vec![0.1; 1 << 20]);
        let body = kernel(1, 1, KernelBody::Loop(vec![m.k]));
        let out = run(&body, 0, &[a], &[Tensor::canary(DType::F32, 1)]).unwrap();
        assert_near(out[0].get(0), (1 << 20) as f64 * 0.1f32 as f64, 1e-7, "sum");
    }
}

#[test]
fn an_update_in_place() {
    // p ← p − 0.5·g, and the old p beside it.
    let loops = [whole("i", 3000)];
    let t = DType::F32;
    let mut m = Make::new(2, &loops);
    let (p, g) = (m.load(0, t, &[0]), m.load(1, t, &[0]));
    let half = m.map(Scalar::Affine { mul: Bits::new(0.5), add: Bits::new(0.0) }, &[g], t);
    let new = m.map(Scalar::Sub, &[p, half], t);
    m.store(new, t, &[0], None);
    m.store(p, t, &[0], None);
    let k = kernel(2, 2, KernelBody::Loop(vec![m.k]));
    let (before, mut g) = (Tensor::noise(t, 3000, 1), Tensor::noise(t, 3000, 2));
    let (mut p, mut old) = (before.clone(), Tensor::canary(t, 3000));
    let buffers = [p.buffer(), g.buffer(), p.buffer(), old.buffer()];
    // SAFETY: the tensors outlive the call; the result in place has the operand's view.
    unsafe { super::super::execute(&k, &mesh(), &[0], &buffers, &Pool::new(2)) }.unwrap();
    for i in 0..3000 {
        assert_eq!(old.get(i), before.get(i));
        assert_eq!(p.get(i), before.get(i) - 0.5 * g.get(i));
    }
}

#[test]
fn contradictions_are_refused() {
    let loops = [whole("i", 3), whole("j", 4)];
    let t = DType::F32;
    let refused = |build: &dyn Fn(&mut Make)| {
        let mut m = Make::new(1, &loops);
        build(&mut m);
        let body = kernel(1, 1, KernelBody::Loop(vec![m.k]));
        run(&body, 0, &[Tensor::noise(t, 12, 1)], &[Tensor::canary(t, 12)]).unwrap_err().to_string()
    };
    let e = refused(&|m| {
        let a = m.load(0, t, &[0, 1]);
        m.store(a, t, &[1], None);
    });
    assert_eq!(e, "kernel test: the store of register 0 lacks a loop but does not combine");
    let e = refused(&|m| {
        let a = m.load(0, t, &[0, 1]);
        m.store(a, t, &[0], None);
    });
    assert_eq!(e, "kernel test: the store of register 0 lacks a loop but does not combine");
    let e = refused(&|m| {
        m.map(Scalar::Add, &[0, 1], t);
    });
    assert!(e.contains("instruction 0"), "{e}");
}

//! Kernels that no golden has: every scalar function, every cast, lanes shorter and longer than
//! warps and blocks, ragged and empty parts, stores that combine over every set of loops.

use autoshard::cuda::check::kernels::Case;
use autoshard::ir::core::{Bits, Scalar};
use autoshard::ir::kernel::{Extent, GatherKernel, Instr, Kernel, KernelBody, LoopKernel, LoopOp, Store, View};
use autoshard::ir::mesh::Mesh;
use autoshard::ir::{Axis, DType, Monoid};

const FLOATS: [DType; 3] = [DType::F32, DType::F64, DType::Bf16];

/// Three ranks: parts of 7 are 3, 3, 1; of 2 are 1, 1, 0.
fn mesh() -> Mesh {
    Mesh::new(&[("x", 3)])
}

fn whole(size: usize) -> Extent {
    Extent { name: format!("w{size}"), size, global: size, axes: vec![] }
}

fn split(global: usize) -> Extent {
    Extent { name: format!("s{global}"), size: global.div_ceil(3), global, axes: vec![Axis::new("x")] }
}

/// Builds a nest whose buffers are packed over some of its loops.
struct Nest {
    k: LoopKernel,
    /// Operands of the kernel, and the first buffer of this nest's results.
    operands: usize,
    results: usize,
    first: usize,
}

impl Nest {
    fn new(operands: usize, loops: &[Extent]) -> Nest {
        let k = LoopKernel { loops: loops.to_vec(), instrs: vec![], stores: vec![] };
        Nest { k, operands, results: 0, first: operands }
    }

    fn push(&mut self, op: LoopOp, args: &[usize], dtype: DType, uniform: bool) -> usize {
        self.k.instrs.push(Instr { op, args: args.to_vec(), dtype, uniform });
        self.k.instrs.len() - 1
    }

    fn view(&self, buffer: usize, dtype: DType, has: &[usize]) -> View {
        let mut strides = vec![0; self.k.loops.len()];
        let mut n = 1;
        for l in has.iter().rev() {
            strides[*l] = n;
            n *= self.k.loops[*l].size;
        }
        View { buffer, dtype, offset: 0, strides }
    }

    fn load(&mut self, buffer: usize, dtype: DType, has: &[usize]) -> usize {
        let view = self.view(buffer, dtype, has);
        let uniform = view.strides.last() == Some(&0);
        self.push(LoopOp::Load(view), &[], dtype, uniform)
    }

    fn map(&mut self, f: Scalar, args: &[usize], dtype: DType) -> usize {
        let uniform = args.iter().all(|a| self.k.instrs[*a].uniform);
        self.push(LoopOp::Map(f), args, dtype, uniform)
    }

    fn store(&mut self, reg: usize, dtype: DType, has: &[usize], combine: Option<Monoid>) {
        let view = self.view(self.first + self.results, dtype, has);
        self.results += 1;
        self.k.stores.push(Store { view, reg, combine });
    }

    fn case(self, label: &str) -> Case {
        let (operands, results) = (self.operands, self.results);
        case(label, operands, results, KernelBody::Loop(vec![self.k]))
    }
}

fn case(label: &str, operands: usize, results: usize, body: KernelBody) -> Case {
    let kernel = Kernel { name: label.to_string(), operands, results, flops: 0.0, bytes: 0.0, body };
    Case { label: "synthetic".to_string(), kernel, mesh: mesh(), in_place: vec![] }
}

/// All of them.
pub fn cases() -> Vec<Case> {
    let parts: [fn(&mut Vec<Case>); 12] =
        [layouts, windows, scalars, integers, not_numbers, casts, rows, combining, indices, in_place, nests, tables];
    let mut out = Vec::new();
    parts.iter().for_each(|p| p(&mut out));
    out
}

/// y = silu(a·b + c)·d, contiguous, transposed, broadcast, ragged.
fn layouts(out: &mut Vec<Case>) {
    let shapes = [
        [whole(1), whole(3), whole(5)],
        [whole(3), whole(50), whole(500)],
        [split(7), whole(3), whole(16)],
        [whole(3), split(7), whole(17)],
        [whole(40), whole(41), split(46)],
        [whole(2), whole(3), split(4)],
        [split(1), whole(3), whole(1)],
        [whole(2), split(2), whole(64)],
    ];
    for (loops, t) in shapes.iter().flat_map(|s| FLOATS.map(|t| (s, t))) {
        let mut m = Nest::new(4, loops);
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
        out.push(m.case("layout"));
    }
}

/// Views that start anywhere, rows that are longer than the lane, lanes with gaps; and no operand.
fn windows(out: &mut Vec<Case>) {
    for (t, lane) in FLOATS.into_iter().flat_map(|t| [whole(64), split(130), whole(3)].map(|l| (t, l))) {
        let n = lane.size;
        for (offset, row, step) in
            [(0, n + 3, 1), (1, n + 4, 1), (n, 2 * n, 1), (4, n + 8, 1), (1, 2 * n + 1, 2), (0, 3 * n, 3)]
        {
            let mut m = Nest::new(1, &[split(7), lane.clone()]);
            let view = |buffer, offset| View { buffer, dtype: t, offset, strides: vec![row, step] };
            let a = m.push(LoopOp::Load(view(0, offset)), &[], t, false);
            let b = m.push(LoopOp::Load(view(0, 0)), &[], t, false);
            let x = m.map(Scalar::Mul, &[a, b], t);
            m.k.stores.push(Store { view: view(1, offset), reg: x, combine: None });
            m.results += 1;
            m.store(x, t, &[0, 1], None);
            out.push(m.case("window"));
        }
        let mut m = Nest::new(0, &[split(7), lane]);
        let c = m.push(LoopOp::Const(0.375), &[], t, true);
        let r = m.push(LoopOp::Random(7, vec![500, 1]), &[], t, false);
        let x = m.map(Scalar::Mul, &[c, r], t);
        m.store(x, t, &[0, 1], None);
        m.store(c, t, &[1, 0], None);
        m.store(c, t, &[0], None);
        out.push(m.case("no operand"));
    }
}

/// Arithmetic, reductions and sums of integers.
fn integers(out: &mut Vec<Case>) {
    use Scalar::*;
    let t = DType::I32;
    for loops in [[split(7), whole(19)], [whole(70), split(300)]] {
        let mut m = Nest::new(2, &loops);
        let (a, b) = (m.load(0, t, &[0, 1]), m.load(1, t, &[1]));
        let difference = m.map(Sub, &[b, a], t);
        for f in [Neg, Abs, Add, Sub, Mul, Max, Min, Less, Equal] {
            let y = m.map(f, &[difference, a][..f.arity()], t);
            m.store(y, t, &[0, 1], None);
        }
        let s = m.map(Select, &[difference, a, b], t);
        let sum = m.push(LoopOp::Reduce(Monoid::Sum), &[s], t, true);
        let top = m.push(LoopOp::Reduce(Monoid::Max), &[difference], t, true);
        m.store(sum, t, &[0], None);
        m.store(top, t, &[0], None);
        m.store(s, t, &[1], Some(Monoid::Sum));
        m.store(difference, t, &[], Some(Monoid::Max));
        out.push(m.case("integers"));
    }
}

/// NaN stays NaN: logarithms of what is negative here and there.
fn not_numbers(out: &mut Vec<Case>) {
    use Scalar::*;
    for (t, lane) in FLOATS.into_iter().flat_map(|t| [2, 40].map(|n| (t, n))) {
        let mut m = Nest::new(2, &[whole(40), split(lane)]);
        let (a, b) = (m.load(0, t, &[0, 1]), m.load(1, t, &[0, 1]));
        let half = m.push(LoopOp::Const(0.015625), &[], t, true);
        let x = m.map(Sub, &[a, half], t);
        let x = m.map(Log, &[x], t);
        for (f, args) in [(Max, [x, b]), (Max, [b, x]), (Min, [x, b]), (Min, [b, x]), (Less, [x, b]), (Equal, [x, x])] {
            let y = m.map(f, &args, t);
            m.store(y, t, &[0, 1], None);
        }
        let s = m.map(Select, &[x, a, b], t);
        m.store(s, t, &[0, 1], None);
        let top = m.push(LoopOp::Reduce(Monoid::Max), &[x], t, true);
        m.store(top, t, &[0], None);
        m.store(x, t, &[1], Some(Monoid::Max));
        m.store(x, t, &[], Some(Monoid::Max));
        out.push(m.case("nan"));
    }
}

/// Every scalar function, of vectors and of numbers that a row has once.
fn scalars(out: &mut Vec<Case>) {
    use Scalar::*;
    let affine = Affine { mul: Bits::new(3.0), add: Bits::new(-0.25) };
    let all = [
        Neg, Exp, Log, Sqrt, Rsqrt, Reciprocal, Sin, Cos, Tanh, Sigmoid, Abs, Add, Sub, Mul, Div, Max, Min, Pow, Less,
        Equal, Select, affine, Identity,
    ];
    for (t, has) in FLOATS.into_iter().flat_map(|t| [&[0, 1][..], &[0]].map(|h| (t, h))) {
        // The roots and logarithms of a kernel decide what it is fed.
        for functions in [&all[..1], &all[1..2], &all[2..5], &all[5..17], &all[17..18], &all[18..]] {
            let mut m = Nest::new(3, &[split(7), whole(19)]);
            let most = functions.iter().map(|f| f.arity()).max().unwrap_or(0);
            let args: Vec<usize> = (0..most).map(|b| m.load(b, t, has)).collect();
            for f in functions {
                let y = m.map(*f, &args[..f.arity()], t);
                m.store(y, t, has, None);
            }
            out.push(m.case("scalars"));
        }
    }
}

fn casts(out: &mut Vec<Case>) {
    for (from, to) in DType::ALL.into_iter().flat_map(|f| DType::ALL.map(|t| (f, t))) {
        let mut m = Nest::new(1, &[whole(5), split(10)]);
        let a = m.load(0, from, &[0, 1]);
        let a = m.map(Scalar::Affine { mul: Bits::new(37.3), add: Bits::new(0.0) }, &[a], from);
        let b = m.map(Scalar::Identity, &[a], to);
        m.store(b, to, &[0, 1], None);
        out.push(m.case("cast"));
    }
}

/// Softmax: two reductions of a lane, and numbers per row.
fn rows(out: &mut Vec<Case>) {
    for (t, lane) in FLOATS.into_iter().flat_map(|t| [1, 2, 7, 33, 100, 1030, 5003].map(|n| (t, n))) {
        for loops in [[split(7), whole(2), whole(lane)], [whole(3), whole(2), split(lane)]] {
            let mut m = Nest::new(2, &loops);
            let a = m.load(0, t, &[0, 1, 2]);
            let row = m.load(1, t, &[0]);
            let top = m.push(LoopOp::Reduce(Monoid::Max), &[a], t, true);
            let x = m.map(Scalar::Sub, &[a, top], t);
            let e = m.map(Scalar::Exp, &[x], t);
            let sum = m.push(LoopOp::Reduce(Monoid::Sum), &[e], t, true);
            let p = m.map(Scalar::Div, &[e, sum], t);
            let log = m.map(Scalar::Log, &[sum], t);
            let lse = m.map(Scalar::Add, &[log, top], t);
            let shifted = m.map(Scalar::Add, &[sum, row], t);
            m.store(p, t, &[0, 1, 2], None);
            m.store(lse, t, &[0, 1], None);
            m.store(shifted, t, &[0, 1], None);
            out.push(m.case("softmax"));
        }
    }
}

/// Stores that combine over every set of loops, beside plain ones; and numbers that a row has once.
fn combining(out: &mut Vec<Case>) {
    let shapes = [
        [whole(5), split(7), whole(6)],
        [split(2), whole(3), whole(5)],
        [whole(20), whole(30), split(40)],
        [whole(300), whole(3), whole(19)],
        [whole(2), whole(60), whole(600)],
        [whole(4), whole(3), split(1)],
    ];
    let sets: [&[usize]; 7] = [&[0, 1], &[0], &[1], &[0, 2], &[2], &[], &[1, 2]];
    for (loops, has) in shapes.iter().flat_map(|s| sets.map(|h| (s, h))) {
        for (t, monoid) in [(DType::F32, Monoid::Sum), (DType::Bf16, Monoid::Max), (DType::F64, Monoid::Sum)] {
            let mut m = Nest::new(2, loops);
            let (a, b) = (m.load(0, t, &[0, 1, 2]), m.load(1, t, &[0, 1, 2]));
            let x = m.map(Scalar::Mul, &[a, b], t);
            m.store(x, t, has, Some(monoid));
            m.store(x, t, &[0, 1, 2], None);
            m.store(a, t, &[2], Some(Monoid::Sum));
            out.push(m.case("combine"));
        }
    }
    for (t, loops) in FLOATS
        .into_iter()
        .flat_map(|t| [[whole(700), whole(67)], [split(7), whole(1)], [split(2), split(2)]].map(|l| (t, l)))
    {
        let mut m = Nest::new(1, &loops);
        let a = m.load(0, t, &[0, 1]);
        let s = m.push(LoopOp::Reduce(Monoid::Sum), &[a], t, true);
        let one = m.push(LoopOp::Const(1.0), &[], t, true);
        m.store(s, t, &[], Some(Monoid::Sum));
        m.store(one, t, &[], Some(Monoid::Sum));
        m.store(s, t, &[0], None);
        out.push(m.case("combine rows"));
    }
}

/// Indices, tables and random numbers count globally.
fn indices(out: &mut Vec<Case>) {
    for (t, loops) in FLOATS
        .into_iter()
        .flat_map(|t| [[split(7), whole(6)], [whole(4), split(8)], [whole(3), split(700)]].map(|l| (t, l)))
    {
        let global = [loops[0].global, loops[1].global];
        let mut m = Nest::new(1, &loops);
        let a = m.load(0, DType::I32, &[1]);
        let row = m.push(LoopOp::Index(0), &[], DType::I32, true);
        let col = m.push(LoopOp::Index(1), &[], DType::I32, false);
        let table = (0..global[1]).map(|i| (i * i % 51) as f64 * 0.125).collect();
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
        out.push(m.case("index"));
    }
}

/// Updates in place: of elements, and of numbers that a row has once.
fn in_place(out: &mut Vec<Case>) {
    for t in FLOATS {
        for loops in [[whole(3), split(3000)], [split(7), whole(13)]] {
            let mut m = Nest::new(2, &loops);
            let (p, g) = (m.load(0, t, &[0, 1]), m.load(1, t, &[0]));
            let new = m.map(Scalar::Sub, &[p, g], t);
            let s = m.push(LoopOp::Reduce(Monoid::Sum), &[p], t, true);
            let mean = m.map(Scalar::Mul, &[s, g], t);
            m.store(new, t, &[0, 1], None);
            m.store(mean, t, &[0], None);
            m.store(p, t, &[0, 1], None);
            let c = m.case("in place");
            out.push(Case { in_place: vec![(0, 2)], ..c.clone() });
            out.push(Case { in_place: vec![(0, 2), (1, 3)], ..c });
        }
    }
}

/// Several nests in one launch: equal ones over different buffers, and some of another form.
fn nests(out: &mut Vec<Case>) {
    for (t, count) in [(DType::F32, 12), (DType::F64, 12), (DType::Bf16, 12), (DType::F32, 150)] {
        let mut nests = Vec::new();
        for i in 0..count {
            let loops = if i == 5 { [split(7), whole(300)] } else { [whole(9), split(100 + i % 20)] };
            let mut m = Nest::new(2 * count, &loops);
            m.first = 2 * count + i;
            let (a, b) = (m.load(2 * i, t, &[0, 1]), m.load(2 * i + 1, t, &[1]));
            let x = m.map(Scalar::Add, &[a, b], t);
            if i == 7 {
                m.store(x, t, &[1], Some(Monoid::Sum));
            } else {
                m.store(x, t, &[0, 1], None);
            }
            nests.push(m.k);
        }
        out.push(case("nests", 2 * count, count, KernelBody::Loop(nests)));
    }
}

/// Gathers and scatters.
fn tables(out: &mut Vec<Case>) {
    for (dtype, d) in DType::ALL.into_iter().flat_map(|t| [whole(5), split(70), whole(64)].map(|d| (t, d))) {
        let g = GatherKernel { rows: vec![whole(2), split(7)], table: split(10), d: d.clone(), dtype };
        out.push(case("gather", 2, 1, KernelBody::Gather(g)));
        if matches!(dtype, DType::F32 | DType::F64) {
            let g = GatherKernel { rows: vec![whole(3), split(500)], table: split(11), d, dtype };
            out.push(case("scatter", 2, 1, KernelBody::Scatter(g)));
        }
    }
}

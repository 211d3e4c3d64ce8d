//! Products through the `gemm` crate, which takes any row and column strides: transposes cost
//! nothing. What this file adds is the way from loops to matrices and the cut over threads.

use super::elem::Elem;
use super::{unpack, KernelError, Pointer, Task};
use autoshard_ir::core::DType;
use autoshard_ir::kernel::{self, GemmKernel, GemmLoop, Init};

/// FLOPs below which a product is not cut.
const GRAIN: usize = 2 << 20;

/// Most tasks that one product is cut into, and the smallest piece of a cut side.
const PIECES: usize = 16;
const SIDE: usize = 48;

/// Runs the kernel: the products one after another, then the epilogue.
///
/// # Safety
/// As for [`super::execute`].
pub(super) unsafe fn execute(task: &Task, k: &GemmKernel) -> Result<(), KernelError> {
    for p in &k.products {
        // SAFETY: the caller's promise.
        unsafe {
            match p.dtype {
                DType::F32 => Product::new(task, p)?.run::<f32>(task),
                DType::F64 => Product::new(task, p)?.run::<f64>(task),
                other => return Err(task.unsupported(format!("product of {other}"))),
            }
        }
    }
    // SAFETY: the caller's promise.
    unsafe { super::loops::execute(task, &k.epilogue) }
}

/// A loop over real entries: length and strides in a, b and c.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Axis {
    len: usize,
    a: usize,
    b: usize,
    c: usize,
}

/// Loops after merging: one matrix side each, and what did not merge.
struct Product {
    a: Pointer,
    b: Pointer,
    c: Pointer,
    init: Start,
    m: Axis,
    n: Axis,
    k: Axis,
    /// Batch loops, and loops of m and n that are not the side.
    outer: Vec<Axis>,
    /// Loops of k that are not the side: added up.
    inner: Vec<Axis>,
}

/// What c starts from.
#[derive(Clone, Copy)]
enum Start {
    Zero,
    Result,
    Operand(Pointer),
}

impl Product {
    fn new(task: &Task, g: &kernel::Product) -> Result<Product, KernelError> {
        let all: Vec<Axis> = g.loops().map(|l| axis(task, l)).collect();
        let strides = |f: fn(&Axis) -> usize| all.iter().map(move |x| (if f(x) == 0 { 1 } else { x.len }, f(x)));
        // An empty loop means no access at all, except that a product over no k writes zeros.
        let empty = all.iter().any(|x| x.len == 0);
        let reads = if empty { vec![(0, 0)] } else { vec![] };
        let a = task.check(g.a, g.dtype, 0, reads.iter().copied().chain(strides(|x| x.a)))?;
        let b = task.check(g.b, g.dtype, 0, reads.iter().copied().chain(strides(|x| x.b)))?;
        let c = task.check(g.c, g.dtype, 0, strides(|x| x.c))?;
        let init = match g.init {
            Init::Zero => Start::Zero,
            Init::Result => Start::Result,
            Init::Operand(i) => Start::Operand(task.check(i, g.dtype, 0, strides(|x| x.c))?),
        };
        let merge = |loops: &[GemmLoop]| merge(loops.iter().map(|l| axis(task, l)));
        let mut outer = merge(&g.batch);
        let (m, rest) = side(merge(&g.m));
        outer.extend(rest);
        let (n, rest) = side(merge(&g.n));
        outer.extend(rest);
        let (k, inner) = side(merge(&g.k));
        Ok(Product { a, b, c, init, m, n, k, outer, inner })
    }

    unsafe fn run<E: Elem>(&self, task: &Task) {
        let items: usize = self.outer.iter().map(|l| l.len).product();
        let depth: usize = self.inner.iter().map(|l| l.len).product();
        if items * self.m.len * self.n.len == 0 {
            return;
        }
        let flops = 2 * self.m.len * self.n.len * (self.k.len * depth).max(1);
        // Decided by shapes alone: results must not depend on the number of threads.
        let (step_m, step_n) = self.cut(items, flops);
        let (cuts_m, cuts_n) = (self.m.len.div_ceil(step_m), self.n.len.div_ceil(step_n));
        let units = items * cuts_m * cuts_n;
        let group = (GRAIN / (flops / (cuts_m * cuts_n)).max(1)).clamp(1, units);
        task.pool.run(units.div_ceil(group), &|t| {
            let mut digits = vec![0; self.outer.len()];
            for unit in t * group..units.min((t + 1) * group) {
                unpack(unit / (cuts_m * cuts_n), self.outer.iter().map(|l| l.len), &mut digits);
                let (i, j) = (unit / cuts_n % cuts_m * step_m, unit % cuts_n * step_n);
                let size = (step_m.min(self.m.len - i), step_n.min(self.n.len - j));
                // SAFETY: views were checked; units write disjoint blocks of c.
                unsafe { self.block::<E>(&digits, (i, j), size) };
            }
        });
    }

    /// Sizes of the blocks that one item is cut into.
    fn cut(&self, items: usize, flops: usize) -> (usize, usize) {
        let (m, n) = (self.m.len, self.n.len);
        let pieces = (PIECES / items).min(flops / GRAIN).max(1);
        // Cut the longer side; blocks are multiples of the kernel's registers.
        let step = |len: usize| len.div_ceil(pieces).next_multiple_of(SIDE);
        if m >= n {
            (step(m), n)
        } else {
            (m, step(n))
        }
    }

    /// One block of one item, all of k.
    unsafe fn block<E: Elem>(&self, digits: &[usize], at: (usize, usize), size: (usize, usize)) {
        let (mut a, mut b) = (at.0 * self.m.a, at.1 * self.n.b);
        let mut c = at.0 * self.m.c + at.1 * self.n.c;
        for (digit, l) in digits.iter().zip(&self.outer) {
            a += digit * l.a;
            b += digit * l.b;
            c += digit * l.c;
        }
        // SAFETY: the caller's promise.
        let out = unsafe { Matrix { ptr: self.c.at::<E>(c), row: self.m.c, col: self.n.c } };
        if let Start::Operand(from) = self.init {
            for (i, j) in (0..size.0).flat_map(|i| (0..size.1).map(move |j| (i, j))) {
                let at = i * self.m.c + j * self.n.c;
                // SAFETY: as above: the operand has the result's layout.
                unsafe { out.ptr.add(at).write(from.at::<E>(c).add(at).read()) };
            }
        }
        let adds = !matches!(self.init, Start::Zero);
        let mut reduced = vec![0; self.inner.len()];
        let depth: usize = self.inner.iter().map(|l| l.len).product();
        // A product over nothing still writes its zeros.
        let k = if depth == 0 { 0 } else { self.k.len };
        for d in 0..depth.max(1) {
            if depth > 0 {
                unpack(d, self.inner.iter().map(|l| l.len), &mut reduced);
            }
            let (mut a, mut b) = (a, b);
            for (digit, l) in reduced.iter().zip(&self.inner) {
                a += digit * l.a;
                b += digit * l.b;
            }
            // SAFETY: as above.
            unsafe {
                let left = Matrix { ptr: self.a.at::<E>(a), row: self.m.a, col: self.k.a };
                let right = Matrix { ptr: self.b.at::<E>(b), row: self.k.b, col: self.n.b };
                multiply((size.0, size.1, k), out, adds || d > 0, left, right, E::ONE);
            }
        }
    }
}

/// A matrix in memory.
#[derive(Clone, Copy)]
pub(super) struct Matrix<E> {
    /// First element.
    pub ptr: *mut E,
    /// Distance between rows, in elements.
    pub row: usize,
    /// Distance between columns, in elements.
    pub col: usize,
}

impl<E> Matrix<E> {
    /// Rows as columns.
    pub fn transposed(self) -> Matrix<E> {
        Matrix { ptr: self.ptr, row: self.col, col: self.row }
    }
}

/// `out = factor·a·b`, or `out += factor·a·b`, on this thread. `size` is (m, n, k).
///
/// # Safety
/// The matrices lie in memory of their sizes, and `out` in none of the others'.
pub(super) unsafe fn multiply<E: Elem>(
    size: (usize, usize, usize),
    out: Matrix<E>,
    add: bool,
    a: Matrix<E>,
    b: Matrix<E>,
    factor: E,
) {
    // The crate computes alpha·out + beta·a·b; without `add` it does not read `out`.
    let alpha = if add { E::ONE } else { E::ZERO };
    // SAFETY: the caller's promise; strides fit isize because they lie in memory.
    unsafe {
        gemm::gemm(
            size.0,
            size.1,
            size.2,
            out.ptr,
            out.col as isize,
            out.row as isize,
            add,
            a.ptr.cast_const(),
            a.col as isize,
            a.row as isize,
            b.ptr.cast_const(),
            b.col as isize,
            b.row as isize,
            alpha,
            factor,
            false,
            false,
            false,
            gemm::Parallelism::None,
        );
    }
}

fn axis(task: &Task, l: &GemmLoop) -> Axis {
    Axis { len: task.range(&l.extent).len, a: l.a, b: l.b, c: l.c }
}

/// Merges neighbours that are one loop in all three, and drops loops of one entry.
fn merge(loops: impl Iterator<Item = Axis>) -> Vec<Axis> {
    let mut merged: Vec<Axis> = vec![];
    for l in loops.filter(|l| l.len != 1) {
        match merged.last_mut() {
            Some(o) if o.a == l.a * l.len && o.b == l.b * l.len && o.c == l.c * l.len => {
                *o = Axis { len: o.len * l.len, ..l };
            }
            _ => merged.push(l),
        }
    }
    merged
}

/// The longest loop, and the others.
fn side(mut loops: Vec<Axis>) -> (Axis, Vec<Axis>) {
    let longest = (0..loops.len()).max_by_key(|i| loops[*i].len);
    // A side of one entry: its strides are never used, but 1 keeps the crate on its fast paths.
    let side = longest.map_or(Axis { len: 1, a: 1, b: 1, c: 1 }, |i| loops.remove(i));
    (side, loops)
}

#[cfg(test)]
mod tests {
    use super::super::testing::*;
    use super::*;
    use autoshard_ir::kernel::{self as ir, Extent, KernelBody};

    fn gl(extent: Extent, a: usize, b: usize, c: usize) -> GemmLoop {
        GemmLoop { extent, a, b, c }
    }

    /// Compares with plain loops over real entries; everything else must be untouched.
    fn check(g: &ir::Product, lens: [usize; 3], rank: usize) {
        let loops: Vec<&GemmLoop> = g.loops().collect();
        let sizes: Vec<usize> =
            loops.iter().map(|l| mesh().part(l.extent.global, &l.extent.axes, &[rank]).len).collect();
        let out_loops = loops.len() - g.k.len();
        let operands = [Tensor::noise(g.dtype, lens[0], 1), Tensor::noise(g.dtype, lens[1], 2)];
        let mut want: Vec<Option<f64>> = vec![None; lens[2]];
        let each = |sizes: &[usize], f: &mut dyn FnMut(&[usize])| {
            let mut d = vec![0; sizes.len()];
            for i in 0..sizes.iter().product() {
                unpack(i, sizes.iter().copied(), &mut d);
                f(&d);
            }
        };
        let at =
            |d: &[usize], s: fn(&GemmLoop) -> usize| -> usize { d.iter().zip(&loops).map(|(d, l)| d * s(l)).sum() };
        each(&sizes[..out_loops], &mut |d| want[at(d, |l| l.c)] = Some(0.0));
        each(&sizes, &mut |d| {
            let product = operands[0].get(at(d, |l| l.a)) * operands[1].get(at(d, |l| l.b));
            *want[at(d, |l| l.c)].as_mut().unwrap() += product;
        });
        let k = kernel(2, 1, KernelBody::Gemm(GemmKernel::single(g.clone())));
        let out = run(&k, rank, &operands, &[Tensor::canary(g.dtype, lens[2])]).unwrap();
        for (i, w) in want.iter().enumerate() {
            let tolerance = if g.dtype == DType::F32 { 1e-5 } else { 1e-13 };
            assert_near(out[0].get(i), w.unwrap_or(CANARY), tolerance, &format!("{} rank {rank} at {i}", g.dtype));
        }
    }

    #[test]
    fn plain_and_large_enough_to_cut() {
        for dtype in [DType::F32, DType::F64] {
            for (m, n, k) in [(1, 1, 1), (5, 7, 3), (1, 33, 65), (201, 67, 129), (67, 301, 90)] {
                let g = ir::Product {
                    a: 0,
                    b: 1,
                    c: 2,
                    init: Init::Zero,
                    batch: vec![],
                    m: vec![gl(whole("m", m), k, 0, n)],
                    n: vec![gl(whole("n", n), 0, k, 1)],
                    k: vec![gl(whole("k", k), 1, 1, 0)],
                    dtype,
                };
                check(&g, [m * k, n * k, m * n], 0);
            }
        }
    }

    #[test]
    fn many_loops_ragged_on_every_side() {
        // a [x, s, g, e], b [x, d, g, e], c [x, s, d]; each of the loops split in turn.
        for (which, rank, dtype) in
            (0..5).flat_map(|w| (0..3).map(move |r| (w, r))).flat_map(|(w, r)| [(w, r, DType::F32), (w, r, DType::F64)])
        {
            let size = [2, 7, 4, 3, 5];
            let e: Vec<Extent> =
                (0..5).map(|i| if i == which { split("x", size[i]) } else { whole("w", size[i]) }).collect();
            let [x, s, d, g, k] = [0, 1, 2, 3, 4].map(|i| e[i].size);
            let gemm = ir::Product {
                a: 0,
                b: 1,
                c: 2,
                init: Init::Zero,
                batch: vec![gl(e[0].clone(), s * g * k, d * g * k, s * d)],
                m: vec![gl(e[1].clone(), g * k, 0, d)],
                n: vec![gl(e[2].clone(), 0, g * k, 1)],
                k: vec![gl(e[3].clone(), k, k, 0), gl(e[4].clone(), 1, 1, 0)],
                dtype,
            };
            check(&gemm, [x * s * g * k, x * d * g * k, x * s * d], rank);
        }
    }

    #[test]
    fn nothing_to_reduce_writes_zeros() {
        // Four entries over three ranks, twos: the third rank holds none.
        for inner in [1, 3] {
            let g = ir::Product {
                a: 0,
                b: 1,
                c: 2,
                init: Init::Zero,
                batch: vec![],
                m: vec![gl(whole("m", 3), 2 * inner, 0, 5)],
                n: vec![gl(whole("n", 5), 0, 1, 1)],
                k: vec![gl(split("k", 4), inner, 5 * inner, 0), gl(whole("j", inner), 1, 5, 0)],
                dtype: DType::F32,
            };
            (0..3).for_each(|rank| check(&g, [6 * inner, 10 * inner, 15], rank));
        }
    }

    #[test]
    fn bf16_is_refused() {
        let init = Init::Zero;
        let (batch, m, n, k) = (vec![], vec![], vec![], vec![]);
        let g = ir::Product { a: 0, b: 1, c: 2, init, batch, m, n, k, dtype: DType::Bf16 };
        let t = || Tensor::noise(DType::Bf16, 1, 0);
        let e = run(&kernel(2, 1, KernelBody::Gemm(GemmKernel::single(g))), 0, &[t(), t()], &[t()]).unwrap_err();
        assert_eq!(e.to_string(), "kernel test: the CPU has no product of bf16");
    }
}

//! Kernels: groups lowered to one of the closed templates. The CPU runtime executes these directly;
//! code generation turns them into CUDA C.

use crate::core::{Axis, BinaryMonoid, DType, Scalar};
use crate::mesh::{Mesh, Part};
use std::collections::BTreeMap;

/// A local index range: padded size, and where it lies in the global range if it is split.
#[derive(Clone, Debug, PartialEq)]
pub struct Extent {
    /// Name of the factor (for reports).
    pub name: String,
    /// Local size, tail included: what strides are made of.
    pub size: usize,
    /// Global size.
    pub global: usize,
    /// Axes that split it, major to minor.
    pub axes: Vec<Axis>,
}

impl Extent {
    /// The real entries of the rank at `coords`.
    pub fn part(&self, mesh: &Mesh, coords: &[usize]) -> Part {
        mesh.part(self.global, &self.axes, coords)
    }
}

/// A strided view of one operand or result. Strides are in elements, one per loop.
#[derive(Clone, Debug, PartialEq)]
pub struct View {
    /// Position among the kernel's buffers: operands first, then results.
    pub buffer: usize,
    /// Element type.
    pub dtype: DType,
    /// Offset of the first element.
    pub offset: usize,
    /// Stride per loop of the kernel (0: the loop does not move it).
    pub strides: Vec<usize>,
}

/// A kernel: its template with all it needs besides buffers.
#[derive(Clone, Debug, PartialEq)]
pub struct Kernel {
    /// What it computes, for reports (`rmsnorm %a`).
    pub name: String,
    /// Number of operand buffers.
    pub operands: usize,
    /// Number of result buffers.
    pub results: usize,
    /// FLOPs of one rank's share, tails excluded where splits are even (products: 2·m·n·k).
    pub flops: f64,
    /// Bytes that loads and stores move at least: each operand and result once.
    pub bytes: f64,
    /// Template and parameters.
    pub body: KernelBody,
}

impl Kernel {
    /// Bytes of each buffer that the kernel reads or writes, every element counted once however often
    /// it is touched (padded local sizes; a gather counts as many rows as it has ids, a scatter its
    /// whole table). This is what the cost model charges.
    pub fn touched(&self) -> Vec<usize> {
        let mut out = vec![0; self.operands + self.results];
        let mut add = |buffer: usize, bytes: usize| {
            if let Some(b) = out.get_mut(buffer) {
                *b += bytes;
            }
        };
        let packed = |e: &[&Extent], t: DType| e.iter().map(|e| e.size).product::<usize>() * t.bytes();
        match &self.body {
            KernelBody::Loop(nests) => touched_by(nests, &[]).into_iter().for_each(|(b, n)| add(b, n)),
            KernelBody::Gemm(g) => touched_by(&g.epilogue, &g.products).into_iter().for_each(|(b, n)| add(b, n)),
            KernelBody::Attention(k) | KernelBody::AttentionBackward(k) => {
                let query = packed(&[&k.b, &k.s, &k.g, &k.r, &k.e], k.dtype);
                let key = packed(&[&k.b, &k.t, &k.g, &k.e], k.dtype);
                let value = packed(&[&k.b, &k.t, &k.g, &k.h], k.dtype);
                let o = packed(&[&k.b, &k.s, &k.g, &k.r, &k.h], k.dtype);
                let lse = packed(&[&k.b, &k.s, &k.g, &k.r], k.dtype.arithmetic());
                let all: &[usize] = match self.body {
                    KernelBody::Attention(_) => &[query, key, value, o, lse],
                    _ => &[query, key, value, o, lse, o, query, key, value],
                };
                all.iter().enumerate().for_each(|(i, n)| add(i, *n));
            }
            KernelBody::Gather(k) | KernelBody::Scatter(k) => {
                let ids: usize = k.rows.iter().map(|e| e.size).product();
                let (rows, table) = (ids * k.d.size * k.dtype.bytes(), packed(&[&k.table, &k.d], k.dtype));
                let first = if matches!(self.body, KernelBody::Gather(_)) { rows.min(table) } else { rows };
                let last = if matches!(self.body, KernelBody::Gather(_)) { rows } else { table };
                [first, ids * DType::I32.bytes(), last].into_iter().enumerate().for_each(|(i, n)| add(i, n));
            }
            KernelBody::Copy(k) => {
                let size = |b: &CopyBox| b.loops.iter().map(|l| l.0).product::<usize>() * k.dtype.bytes();
                k.boxes.iter().for_each(|b| add(b.source, size(b)));
                let moved: usize = k.boxes.iter().map(size).sum();
                add(self.operands, k.fill.map_or(moved, |(_, n)| n * k.dtype.bytes()));
            }
        }
        out
    }

    /// Whether the buffer of an operand may also be that of a result, `result` counted among the
    /// results: then every element is read before it is written, and only there.
    ///
    /// In a Loop kernel the one nest that writes the result is the only one that reads the operand, its
    /// stores combine nothing, and each of its loads has the view of one of these stores. A store
    /// reaches an element at most once, so whoever writes an element is the one who has read it.
    /// (`rope` reads two halves and writes two halves at the same index.) In a product the operand is
    /// what the result is added to, and nothing else.
    pub fn may_overwrite(&self, operand: usize, result: usize) -> bool {
        let result = self.operands + result;
        match &self.body {
            KernelBody::Loop(nests) => {
                let others = nests.iter().filter(|k| !k.stores_to(result));
                nests.iter().filter(|k| k.stores_to(result)).count() == 1
                    && others.flat_map(LoopKernel::loads).all(|v| v.buffer != operand)
                    && nests.iter().all(|k| k.may_overwrite(operand, result))
            }
            KernelBody::Gemm(k) => k.adds_in_place(operand, result),
            _ => false,
        }
    }
}

/// Bytes by buffer of what nests and products touch. Views of one buffer that differ touch different
/// elements (halves of a row), up to the end of the farthest.
fn touched_by(nests: &[LoopKernel], products: &[Product]) -> BTreeMap<usize, usize> {
    // Per buffer: the walks (offset, loops that move it), and its element size.
    type Walk = (usize, Vec<(usize, usize)>);
    let mut walks: BTreeMap<usize, (usize, Vec<Walk>)> = BTreeMap::new();
    let mut note = |buffer: usize, size: usize, offset: usize, loops: &mut dyn Iterator<Item = (usize, usize)>| {
        let mut moving: Vec<(usize, usize)> = loops.filter(|(_, stride)| *stride > 0).collect();
        moving.sort_unstable();
        let of = walks.entry(buffer).or_insert((size, Vec::new()));
        if !of.1.contains(&(offset, moving.clone())) {
            of.1.push((offset, moving));
        }
    };
    for k in nests {
        let sizes = || k.loops.iter().map(|l| l.size);
        for v in k.loads().chain(k.stores.iter().map(|s| &s.view)) {
            note(v.buffer, v.dtype.bytes(), v.offset, &mut sizes().zip(v.strides.iter().copied()));
        }
    }
    for p in products {
        let bytes = p.dtype.bytes();
        note(p.a, bytes, 0, &mut p.loops().map(|l| (l.extent.size, l.a)));
        note(p.b, bytes, 0, &mut p.loops().map(|l| (l.extent.size, l.b)));
        note(p.c, bytes, 0, &mut p.loops().map(|l| (l.extent.size, l.c)));
        if let Init::Operand(i) = p.init {
            note(i, bytes, 0, &mut p.loops().map(|l| (l.extent.size, l.c)));
        }
    }
    let elements = |w: &Walk| w.1.iter().map(|(n, _)| *n).product::<usize>();
    let end = |w: &Walk| w.0 + w.1.iter().map(|(n, s)| n.saturating_sub(1) * s).sum::<usize>() + 1;
    let all = |walks: &[Walk]| {
        let most = walks.iter().map(end).max().unwrap_or(0);
        walks.iter().map(elements).sum::<usize>().min(most)
    };
    walks.into_iter().map(|(b, (size, walks))| (b, size * all(&walks))).collect()
}

/// The closed set of templates.
#[derive(Clone, Debug, PartialEq)]
pub enum KernelBody {
    /// Rows of lane work: nests that do not depend on each other, in one launch.
    Loop(Vec<LoopKernel>),
    /// Batched products, and what follows them row by row.
    Gemm(GemmKernel),
    /// Attention, forward: q, k, v → o, lse.
    Attention(AttentionKernel),
    /// Attention, backward: q, k, v, o, lse, d_o → dq, dk, dv.
    AttentionBackward(AttentionKernel),
    /// Table rows by index: table, ids → out.
    Gather(GatherKernel),
    /// Rows added by index: rows, ids → table.
    Scatter(GatherKernel),
    /// Box copies.
    Copy(CopyKernel),
}

/// Register of a [`LoopKernel`].
pub type Reg = usize;

/// Rows of vector work. For every index of the outer loops (all but the last of `loops`) the
/// instructions run over the lane loop (the last). A register is a vector along the lane, or
/// uniform: one number per row. Register i is defined by instruction i.
///
/// Arithmetic is done in f32 unless any register is f64, then in f64; each result is rounded to its
/// instruction's type. Uniform registers are always computed in f64 and then rounded.
#[derive(Clone, Debug, PartialEq)]
pub struct LoopKernel {
    /// Outer loops, then the lane loop.
    pub loops: Vec<Extent>,
    /// Straight-line code.
    pub instrs: Vec<Instr>,
    /// What is written per row.
    pub stores: Vec<Store>,
}

impl LoopKernel {
    /// Views of its loads.
    pub fn loads(&self) -> impl Iterator<Item = &View> {
        self.instrs.iter().filter_map(|i| match &i.op {
            LoopOp::Load(view) => Some(view),
            _ => None,
        })
    }

    fn stores_to(&self, buffer: usize) -> bool {
        self.stores.iter().any(|s| s.view.buffer == buffer)
    }

    /// Whether this nest reads of `operand` only what it writes of `result` at the same index.
    fn may_overwrite(&self, operand: usize, result: usize) -> bool {
        let stores: Vec<&Store> = self.stores.iter().filter(|s| s.view.buffer == result).collect();
        let mut loads = self.loads().filter(|v| v.buffer == operand);
        stores.is_empty()
            || stores.iter().all(|s| s.combine.is_none())
                && loads.all(|l| stores.iter().any(|s| self.same_elements(l, &s.view)))
    }

    /// Whether two views reach the same bytes at every index.
    fn same_elements(&self, a: &View, b: &View) -> bool {
        let strides = |v: &View| -> Vec<usize> {
            self.loops.iter().zip(&v.strides).filter(|(l, _)| l.size > 1).map(|(_, s)| *s).collect()
        };
        a.offset == b.offset && a.dtype.bytes() == b.dtype.bytes() && strides(a) == strides(b)
    }
}

/// One instruction; it defines the register of its own position.
#[derive(Clone, Debug, PartialEq)]
pub struct Instr {
    /// What is computed.
    pub op: LoopOp,
    /// Registers read.
    pub args: Vec<Reg>,
    /// Type that the result is rounded to.
    pub dtype: DType,
    /// One number per row instead of a vector.
    pub uniform: bool,
}

/// Instructions of a [`LoopKernel`].
#[derive(Clone, Debug, PartialEq)]
pub enum LoopOp {
    /// Reads an operand. Uniform if the lane stride is 0.
    Load(View),
    /// Scalar function.
    Map(Scalar),
    /// A number.
    Const(f64),
    /// A number per global index of a loop.
    Table(usize, Vec<f64>),
    /// Global index of a loop.
    Index(usize),
    /// Counter-based random number in (−1, 1): key and, per loop, the stride of the global
    /// row-major index of the result.
    Random(u64, Vec<usize>),
    /// Combination of a vector over the lane: a uniform.
    Reduce(BinaryMonoid),
}

/// Writes a register to a result.
#[derive(Clone, Debug, PartialEq)]
pub struct Store {
    /// Where. Outer loops with stride 0 are reduced by `combine`.
    pub view: View,
    /// Register.
    pub reg: Reg,
    /// Combination over the loops that the view lacks; `None` if it lacks none.
    pub combine: Option<BinaryMonoid>,
}

/// Products in one launch, in order, and loop nests over their rows.
///
/// Without an epilogue the products are independent except that a later one may add to an earlier
/// one's result ([`Init::Result`]); they are merged because they share an operand or a result.
///
/// With an epilogue no product has a batch, and all have the same loops `m`, in the same order; the
/// first loops of every nest are these. A nest runs on a panel of rows as soon as all products have
/// finished it, while it is in cache. Its loads may name results of the kernel, too: those that a
/// product or an earlier nest writes, at the same row.
#[derive(Clone, Debug, PartialEq)]
pub struct GemmKernel {
    /// Products.
    pub products: Vec<Product>,
    /// Nests over the rows of their results.
    pub epilogue: Vec<LoopKernel>,
}

/// What a product adds to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Init {
    /// Nothing: the result is written.
    Zero,
    /// The result, which an earlier product of the kernel has written.
    Result,
    /// The operand at this position, which has the result's layout.
    Operand(usize),
}

/// `c[batch, m, n] = init + Σ_k a·b`. Each index is a list of loops.
#[derive(Clone, Debug, PartialEq)]
pub struct Product {
    /// Position of the first operand among the kernel's buffers.
    pub a: usize,
    /// Of the second.
    pub b: usize,
    /// Of the result.
    pub c: usize,
    /// What it adds to.
    pub init: Init,
    /// In both operands and the result.
    pub batch: Vec<GemmLoop>,
    /// In `a` and the result.
    pub m: Vec<GemmLoop>,
    /// In `b` and the result.
    pub n: Vec<GemmLoop>,
    /// In both operands, reduced.
    pub k: Vec<GemmLoop>,
    /// Element type of the three. Sums are made in f32 (f64 for f64) and rounded once a product.
    pub dtype: DType,
}

impl Product {
    /// All loops: batch, m, n, k.
    pub fn loops(&self) -> impl Iterator<Item = &GemmLoop> {
        self.batch.iter().chain(&self.m).chain(&self.n).chain(&self.k)
    }
}

impl GemmKernel {
    /// A single product of the buffers 0 and 1 into 2.
    pub fn single(product: Product) -> GemmKernel {
        GemmKernel { products: vec![product], epilogue: Vec::new() }
    }

    /// Whether one product adds to this operand and nothing else reads it.
    fn adds_in_place(&self, operand: usize, result: usize) -> bool {
        let reads = |p: &Product| [p.a, p.b].contains(&operand) || (p.init == Init::Operand(operand) && p.c != result);
        let first = self.products.iter().position(|p| p.c == result);
        first.is_some_and(|i| self.products[i].init == Init::Operand(operand))
            && self.products.iter().filter(|p| p.init == Init::Operand(operand)).count() == 1
            && !self.products.iter().any(reads)
            && self.epilogue.iter().flat_map(LoopKernel::loads).all(|v| v.buffer != operand)
    }
}

/// One loop of a product with its strides (0 where absent).
#[derive(Clone, Debug, PartialEq)]
pub struct GemmLoop {
    /// Range.
    pub extent: Extent,
    /// Stride in the first operand.
    pub a: usize,
    /// Stride in the second.
    pub b: usize,
    /// Stride in the result.
    pub c: usize,
}

/// Attention over `[b, s, g, r, e]` queries and `[b, t, g, e]` keys, `[b, t, g, h]` values, all
/// row-major and packed (padded local sizes). lse is `[b, s, g, r]`, in natural logarithm, f32 where
/// the others are bf16.
#[derive(Clone, Debug, PartialEq)]
pub struct AttentionKernel {
    /// Batch.
    pub b: Extent,
    /// Query positions.
    pub s: Extent,
    /// Key positions.
    pub t: Extent,
    /// Key/value heads.
    pub g: Extent,
    /// Queries per key/value head.
    pub r: Extent,
    /// Query and key width.
    pub e: Extent,
    /// Value width.
    pub h: Extent,
    /// Scores are multiplied by this.
    pub scale: f64,
    /// Query i sees keys j ≤ i.
    pub causal: bool,
    /// Query i sees keys with i − j < window (0: all).
    pub window: usize,
    /// Element type.
    pub dtype: DType,
}

/// `out[rows, d] = table[ids[rows], d]` or the transposed addition. Rows of the table outside this
/// rank's part are skipped (they read as zero).
#[derive(Clone, Debug, PartialEq)]
pub struct GatherKernel {
    /// Loops over `ids`, row-major and packed.
    pub rows: Vec<Extent>,
    /// Table rows.
    pub table: Extent,
    /// Row width.
    pub d: Extent,
    /// Element type of table and rows.
    pub dtype: DType,
}

/// Copies boxes between strided buffers.
#[derive(Clone, Debug, PartialEq)]
pub struct CopyKernel {
    /// Element type.
    pub dtype: DType,
    /// Value and number of elements of the whole result, written before copying, if not every
    /// element is copied.
    pub fill: Option<(f64, usize)>,
    /// Boxes.
    pub boxes: Vec<CopyBox>,
}

/// One strided box of a [`CopyKernel`].
#[derive(Clone, Debug, PartialEq)]
pub struct CopyBox {
    /// Operand position.
    pub source: usize,
    /// Offset in the operand, elements.
    pub from: usize,
    /// Offset in the result, elements.
    pub to: usize,
    /// Loops: size, stride in the operand, stride in the result. Sizes are padded local sizes:
    /// tails are copied along.
    pub loops: Vec<(usize, usize, usize)>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn extent(size: usize) -> Extent {
        Extent { name: "d".into(), size, global: size, axes: vec![] }
    }

    fn view(buffer: usize, offset: usize, strides: &[usize]) -> View {
        View { buffer, dtype: DType::F32, offset, strides: strides.to_vec() }
    }

    /// Adds all loads into every store, over `loops`.
    fn nest(loops: &[usize], loads: Vec<View>, stores: Vec<View>) -> LoopKernel {
        let instr = |op, args| Instr { op, args, dtype: DType::F32, uniform: false };
        let n = loads.len();
        let mut instrs: Vec<Instr> = loads.into_iter().map(|v| instr(LoopOp::Load(v), vec![])).collect();
        instrs.push(instr(LoopOp::Map(Scalar::Add), (0..n).collect()));
        let stores = stores.into_iter().map(|view| Store { view, reg: n, combine: None }).collect();
        LoopKernel { loops: loops.iter().map(|n| extent(*n)).collect(), instrs, stores }
    }

    fn kernel(operands: usize, results: usize, body: KernelBody) -> Kernel {
        Kernel { name: "k".into(), operands, results, flops: 0.0, bytes: 0.0, body }
    }

    #[test]
    fn what_is_read_where_it_is_written_may_be_overwritten() {
        let row = [4, 8];
        let one = |load: View, store: View| kernel(1, 1, KernelBody::Loop(vec![nest(&row, vec![load], vec![store])]));
        assert!(one(view(0, 0, &[8, 1]), view(1, 0, &[8, 1])).may_overwrite(0, 0));
        // Transposed, shifted, one row for all.
        assert!(!one(view(0, 0, &[1, 4]), view(1, 0, &[8, 1])).may_overwrite(0, 0));
        assert!(!one(view(0, 1, &[8, 1]), view(1, 0, &[8, 1])).may_overwrite(0, 0));
        assert!(!one(view(0, 0, &[0, 1]), view(1, 0, &[8, 1])).may_overwrite(0, 0));
        // Strides of a loop of one entry mean nothing.
        let flat = nest(&[1, 8], vec![view(0, 0, &[0, 1])], vec![view(1, 0, &[8, 1])]);
        assert!(kernel(1, 1, KernelBody::Loop(vec![flat])).may_overwrite(0, 0));
        // A wider element.
        let mut wide = view(1, 0, &[8, 1]);
        wide.dtype = DType::F64;
        assert!(!one(view(0, 0, &[8, 1]), wide).may_overwrite(0, 0));
    }

    #[test]
    fn halves_may_be_overwritten_in_either_order() {
        let half = |buffer, offset| view(buffer, offset, &[8, 1]);
        let rope = nest(&[4, 4], vec![half(0, 0), half(0, 4)], vec![half(1, 4), half(1, 0)]);
        assert!(kernel(1, 1, KernelBody::Loop(vec![rope])).may_overwrite(0, 0));
        // The other half is read after it may have been written by another index.
        let mixed = nest(&[4, 4], vec![half(0, 0), view(0, 5, &[8, 1])], vec![half(1, 4), half(1, 0)]);
        assert!(!kernel(1, 1, KernelBody::Loop(vec![mixed])).may_overwrite(0, 0));
    }

    #[test]
    fn sums_and_other_readers_forbid_it() {
        let (load, store) = (view(0, 0, &[1]), view(1, 0, &[1]));
        let mut sum = nest(&[8], vec![load.clone()], vec![store.clone()]);
        sum.stores[0].combine = Some(BinaryMonoid::Sum);
        assert!(!kernel(1, 1, KernelBody::Loop(vec![sum])).may_overwrite(0, 0));
        let copy = nest(&[8], vec![load.clone()], vec![store]);
        let other = nest(&[8], vec![load], vec![view(2, 0, &[1])]);
        let both = kernel(1, 2, KernelBody::Loop(vec![copy, other]));
        assert!(!both.may_overwrite(0, 0) && !both.may_overwrite(0, 1));
    }

    #[test]
    fn a_product_may_add_to_its_operand() {
        let side = |n, a, b, c| vec![GemmLoop { extent: extent(n), a, b, c }];
        let product = |a, b, init| Product {
            a,
            b,
            c: 3,
            init,
            batch: vec![],
            m: side(3, 7, 0, 5),
            n: side(5, 0, 1, 1),
            k: side(7, 1, 5, 0),
            dtype: DType::F32,
        };
        let gemm = |products, epilogue| kernel(3, 1, KernelBody::Gemm(GemmKernel { products, epilogue }));
        assert!(gemm(vec![product(0, 1, Init::Operand(2))], vec![]).may_overwrite(2, 0));
        let twice = vec![product(0, 1, Init::Operand(2)), product(0, 1, Init::Result)];
        assert!(gemm(twice, vec![]).may_overwrite(2, 0));
        assert!(!gemm(vec![product(0, 1, Init::Zero)], vec![]).may_overwrite(2, 0));
        assert!(!gemm(vec![product(0, 1, Init::Operand(2))], vec![]).may_overwrite(0, 0));
        assert!(!gemm(vec![product(2, 1, Init::Operand(2))], vec![]).may_overwrite(2, 0));
        let reads = nest(&[3, 5], vec![view(2, 0, &[5, 1])], vec![view(3, 0, &[5, 1])]);
        assert!(!gemm(vec![product(0, 1, Init::Operand(2))], vec![reads]).may_overwrite(2, 0));
    }
}

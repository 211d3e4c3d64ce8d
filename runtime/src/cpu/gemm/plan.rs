//! From loops to stages: which products run together, and how rows are cut.

use super::super::loops::{Cut, Epilogue};
use super::super::{KernelError, Slot, Task};
use autoshard_ir::core::DType;
use autoshard_ir::kernel::{self, Extent, GemmKernel, GemmLoop, Init};
use std::ops::Range;

/// Rows of a panel: enough to pay for reading the packed operand, few enough for the cache.
const ROWS: usize = 192;
/// FLOPs below which a product is not cut.
const GRAIN: usize = 3 << 20;
/// Fewer panels than this: columns are cut, too, but not below so many.
const FEW: usize = 4;
const COLUMNS: usize = 256;

/// A loop over real entries: length and strides in a, b and c.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Axis {
    pub len: usize,
    pub a: usize,
    pub b: usize,
    pub c: usize,
}

/// A kernel of products, resolved.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(super) dtype: DType,
    pub(super) stages: Vec<Stage>,
    pub(crate) epilogue: Option<Epilogue>,
}

/// Products that may run at the same time, except that those of a group go one after another on
/// each panel of rows.
#[derive(Debug)]
pub(super) struct Stage {
    pub products: Vec<Product>,
    pub groups: Vec<Group>,
    /// Ranges of columns that each panel is cut into.
    pub parts: usize,
    /// Whether the epilogue follows on each panel: the panels are its cuts.
    pub fused: bool,
}

/// Consecutive products with the same rows.
#[derive(Debug)]
pub(super) struct Group {
    /// Number of panels (items times cuts) of earlier groups.
    pub first: usize,
    pub products: Range<usize>,
    pub items: usize,
    pub cuts: Vec<Range<usize>>,
}

/// One product: sides as merged loops over real entries.
#[derive(Clone, Debug)]
pub(super) struct Product {
    pub a: Slot,
    pub b: Slot,
    pub c: Slot,
    pub init: Start,
    pub outer: Vec<Axis>,
    pub rows: Vec<Axis>,
    pub columns: Vec<Axis>,
    pub inner: Vec<Axis>,
    /// Lengths of the loops over rows, before merging.
    pub lens: Vec<usize>,
    pub items: usize,
    pub m: usize,
    pub n: usize,
    pub k: usize,
}

/// What c starts from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Start {
    Zero,
    Result,
    Operand(Slot),
}

impl Plan {
    /// Resolves a kernel.
    pub fn new(task: &Task, k: &GemmKernel) -> Result<Plan, KernelError> {
        let dtype = k.products.first().map_or(DType::F32, |p| p.dtype);
        if dtype == DType::I32 || k.products.iter().any(|p| p.dtype != dtype) {
            let types: Vec<String> = k.products.iter().map(|p| p.dtype.to_string()).collect();
            return Err(task.unsupported(format!("product of {}", types.join(", "))));
        }
        let mut products = vec![];
        for p in &k.products {
            products.push(Product::new(task, p, k.epilogue.is_empty())?);
        }
        let Some(first) = k.products.first().filter(|_| !k.epilogue.is_empty()) else {
            return Ok(Plan { dtype, stages: stages(products), epilogue: None });
        };
        let rows: Vec<Extent> = first.m.iter().map(|l| l.extent.clone()).collect();
        let joint = products.iter().all(|p| p.items == 1 && p.lens == products[0].lens);
        if !joint {
            let epilogue = Some(Epilogue::new(task, &k.epilogue, &rows, None)?);
            return Ok(Plan { dtype, stages: stages(products), epilogue });
        }
        let cuts = Cut::all(task, &rows, ROWS);
        let epilogue = Some(Epilogue::new(task, &k.epilogue, &rows, Some(&cuts))?);
        let all = 0..products.len();
        let group = Group { first: 0, products: all, items: 1, cuts: cuts.into_iter().map(|c| c.rows).collect() };
        let stages = vec![Stage { products, groups: vec![group], parts: 1, fused: true }];
        Ok(Plan { dtype, stages, epilogue })
    }
}

impl Product {
    fn new(task: &Task, g: &kernel::Product, may_swap: bool) -> Result<Product, KernelError> {
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
        let (outer, rows, columns, inner) = (merge(&g.batch), merge(&g.m), merge(&g.n), merge(&g.k));
        let len = |loops: &[Axis]| loops.iter().map(|l| l.len).product::<usize>();
        let (items, m, n, k) = (len(&outer), len(&rows), len(&columns), len(&inner));
        let lens = g.m.iter().map(|l| task.range(&l.extent).len).collect();
        let p = Product { a, b, c, init, outer, rows, columns, inner, lens, items, m, n, k };
        let contiguous = |side: &[Axis]| side.last().is_some_and(|l| l.c == 1);
        let swap = may_swap && contiguous(&p.rows) && !contiguous(&p.columns);
        Ok(if swap { p.transposed() } else { p })
    }

    /// The product of the transposed operands, into the transposed result.
    fn transposed(self) -> Product {
        let turn = |side: Vec<Axis>| side.into_iter().map(|l| Axis { a: l.b, b: l.a, ..l }).collect();
        Product {
            a: self.b,
            b: self.a,
            outer: turn(self.outer),
            rows: turn(self.columns),
            columns: turn(self.rows),
            inner: turn(self.inner),
            m: self.n,
            n: self.m,
            ..self
        }
    }

    fn flops(&self) -> usize {
        2 * self.m * self.n * self.k.max(1)
    }

    /// Whether the rows of two results are the same loops in the same places, so that both can be
    /// cut alike.
    fn same_rows(&self, other: &Product) -> bool {
        let places = |p: &Product| p.rows.iter().map(|l| (l.len, l.c)).collect::<Vec<_>>();
        places(self) == places(other)
    }

    /// Whether the first operand is the same matrix.
    pub fn same_first(&self, other: &Product) -> bool {
        let places = |side: &[Axis]| side.iter().map(|l| (l.len, l.a)).collect::<Vec<_>>();
        self.a == other.a && places(&self.rows) == places(&other.rows) && places(&self.inner) == places(&other.inner)
    }
}

/// Sorts products into stages. A product goes into the group before it if it has the same rows and
/// shares the first operand or the result; one that adds to a result of an earlier group has to
/// wait for the next stage.
fn stages(products: Vec<Product>) -> Vec<Stage> {
    let mut stages: Vec<Vec<Vec<Product>>> = vec![];
    for p in products {
        let Some(groups) = stages.last_mut() else {
            stages.push(vec![vec![p]]);
            continue;
        };
        let last = groups.len() - 1;
        let writes = |g: &[Product]| g.iter().any(|x| x.c == p.c);
        let waits = groups[..last].iter().any(|g| writes(g));
        let joins = !waits
            && groups[last].iter().all(|x| x.items == 1 && x.same_rows(&p))
            && p.items == 1
            && (writes(&groups[last]) || groups[last].iter().any(|x| x.same_first(&p)));
        match (joins, waits || writes(&groups[last])) {
            (true, _) => groups[last].push(p),
            (false, true) => stages.push(vec![vec![p]]),
            (false, false) => groups.push(vec![p]),
        }
    }
    stages.into_iter().map(stage).collect()
}

fn stage(groups: Vec<Vec<Product>>) -> Stage {
    let (mut first, mut at) = (0, 0);
    let mut cut = vec![];
    for g in &groups {
        let items = g[0].items;
        let flops: usize = g.iter().map(Product::flops).sum();
        let cuts = if g.iter().all(|p| p.n == 0) { vec![] } else { cut_rows(g[0].m, items, flops) };
        let len = items * cuts.len();
        cut.push(Group { first, products: at..at + g.len(), items, cuts });
        (first, at) = (first + len, at + g.len());
    }
    let products: Vec<Product> = groups.into_iter().flatten().collect();
    // Few panels: cut columns, too.
    let flops: usize = products.iter().map(|p| p.flops() * p.items).sum();
    let least = products.iter().map(|p| p.n).min().unwrap_or(0);
    let parts = match first {
        0 => 1,
        n if n < FEW => (FEW / n).min(least / COLUMNS).min(flops / GRAIN / n).max(1),
        _ => 1,
    };
    Stage { products, groups: cut, parts, fused: false }
}

/// Panels of equal size, an even number of them.
fn cut_rows(m: usize, items: usize, flops: usize) -> Vec<Range<usize>> {
    let most = (flops / GRAIN).max(1);
    let mut pieces = m.div_ceil(ROWS).min(most);
    if items == 1 && pieces > 1 {
        pieces = pieces.next_multiple_of(2);
    }
    let size = m.div_ceil(pieces.max(1)).max(1);
    (0..m).step_by(size).map(|i| i..m.min(i + size)).collect()
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

/// Offsets of the entries `from..from + n` of a side, along one of its strides.
pub(super) fn offsets(side: &[Axis], stride: fn(&Axis) -> usize, from: usize, n: usize, out: &mut Vec<usize>) {
    out.clear();
    let Some((last, outer)) = side.split_last() else {
        // A side without loops has one entry.
        out.resize(n, 0);
        return;
    };
    let (mut at, end) = (from, from + n);
    while at < end {
        let (mut rest, mut base) = (at / last.len, 0);
        for l in outer.iter().rev() {
            base += rest % l.len * stride(l);
            rest /= l.len;
        }
        let (start, len) = (at % last.len, (last.len - at % last.len).min(end - at));
        out.extend((start..start + len).map(|i| base + i * stride(last)));
        at += len;
    }
}

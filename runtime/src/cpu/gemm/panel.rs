//! Packed columns, and panels of rows multiplied by them.

use super::micro::{Compute, Out, Tile, MAX_COLUMNS, MAX_ROWS};
use super::pack::{pack, Part};
use super::plan::{offsets, Product, Stage, Start};
use super::{with_scratch, Simd, Stored};
use crate::cpu::Call;
use std::ops::Range;

/// Steps of k that are multiplied at once: their strip of rows stays in the first cache, their panel
/// of columns in the second.
const DEPTH: usize = 512;
/// Columns of one packing job, as tiles.
const JOB: usize = 8;

/// Steps of k, `size` at a time.
pub(super) fn depths(k: usize) -> impl Iterator<Item = Range<usize>> + Clone {
    let pieces = k.div_ceil(DEPTH).max(1);
    let size = k.div_ceil(pieces).next_multiple_of(16).max(16);
    (0..k).step_by(size).map(move |p| p..k.min(p + size))
}

/// A range of columns of a product, as packed panels: by steps of k, then by tiles of columns.
pub(super) struct Columns {
    range: Range<usize>,
    tile: Tile,
}

impl Columns {
    pub fn new(_: &Product, range: Range<usize>, tile: Tile) -> Columns {
        Columns { range, tile }
    }

    /// Columns when packed: whole vectors.
    fn padded(&self) -> usize {
        self.range.len().next_multiple_of(self.tile.lanes)
    }

    /// Elements of one item when packed.
    pub fn elements(&self, k: usize) -> usize {
        self.padded() * k
    }

    /// Packing jobs: steps of k, and the first tile of columns.
    pub fn jobs(&self, k: usize) -> impl Iterator<Item = (Range<usize>, usize)> + '_ {
        let tiles = self.padded().div_ceil(self.tile.columns());
        depths(k).flat_map(move |d| (0..tiles).step_by(JOB).map(move |t| (d.clone(), t)))
    }

    /// The tile's columns: first, how many, and how wide it is packed.
    fn tile(&self, t: usize) -> (usize, usize, usize) {
        let at = t * self.tile.columns();
        let (len, width) = (self.range.len() - at, self.padded() - at);
        (self.range.start + at, len.min(self.tile.columns()), width.min(self.tile.columns()))
    }

    /// Runs one packing job of an item whose panels start at `dst`.
    ///
    /// # Safety
    /// The product's views were checked; `dst` has room for [`Columns::elements`].
    pub unsafe fn pack<E: Compute, S: Stored<E>>(
        &self,
        call: &Call,
        simd: Simd,
        p: &Product,
        item: usize,
        (depth, first): &(Range<usize>, usize),
        dst: *mut E,
    ) {
        let (mut lines, mut steps) = (vec![], vec![]);
        offsets(&p.inner, |l| l.b, depth.start, depth.len(), &mut steps);
        let tiles = *first..self.padded().div_ceil(self.tile.columns()).min(first + JOB);
        let start = first * self.tile.columns();
        let part = |t| {
            let (at, len, width) = self.tile(t);
            let at = at - self.range.start - start;
            Part { at, len, width, to: at * depth.len() }
        };
        let parts: Vec<Part> = tiles.map(part).collect();
        let len = parts.iter().map(|p| p.len).sum();
        offsets(&p.columns, |l| l.b, self.range.start + start, len, &mut lines);
        // SAFETY: the caller's promise. Widths are whole vectors: nothing is written beyond.
        unsafe {
            let src = call.at(p.b).at::<S>(p.item(item, |l| l.b)).cast_const();
            let to = dst.add(self.padded() * depth.start + start * depth.len());
            pack(simd, src, &lines, &steps, &parts, to);
        }
    }
}

impl Product {
    /// Offset of a batch item.
    fn item(&self, item: usize, stride: fn(&super::plan::Axis) -> usize) -> usize {
        let mut offset = vec![];
        offsets(&self.outer, stride, item, 1, &mut offset);
        offset[0]
    }
}

/// The work of one task: rows of one item of a group, and which part of the columns.
pub(super) struct Panel {
    pub group: usize,
    pub item: usize,
    pub rows: Range<usize>,
    pub part: usize,
    pub parts: usize,
}

/// Multiplies a panel by the packed columns of its group's products, in order.
///
/// # Safety
/// Views were checked; `packed` gives the packed columns of a product's item; nobody else uses
/// the panel of the results.
pub(super) unsafe fn multiply<E: Compute, S: Stored<E>>(
    call: &Call,
    simd: Simd,
    stage: &Stage,
    panel: &Panel,
    columns: &[Columns],
    packed: &dyn Fn(usize) -> *const E,
) {
    let tile = E::tile(simd);
    let products = stage.groups[panel.group].products.clone();
    let most = if S::same(std::ptr::null()).is_some() { DEPTH + 16 } else { usize::MAX };
    let depth = products.clone().map(|i| stage.products[i].k).max().unwrap_or(0).min(most);
    with_scratch::<E, _>(panel.rows.len() * depth + MAX_COLUMNS, |scratch| {
        let mut i = products.start;
        while i < products.end {
            // Products that share the first operand and write different results share its packing.
            let p = &stage.products[i];
            let shares = |j: &usize| {
                let q = &stage.products[*j];
                q.same_first(p) && (i..*j).all(|x| stage.products[x].c != q.c)
            };
            let end = (i + 1..products.end).find(|j| !shares(j)).unwrap_or(products.end);
            let run = Run { call, simd, tile, panel, first: p };
            // SAFETY: the caller's promise.
            unsafe { run.products::<E, S>(stage, i..end, columns, packed, scratch) };
            i = end;
        }
    });
}

/// Products of a panel that share the first operand.
struct Run<'a> {
    call: &'a Call<'a>,
    simd: Simd,
    tile: Tile,
    panel: &'a Panel,
    first: &'a Product,
}

impl Run<'_> {
    unsafe fn products<E: Compute, S: Stored<E>>(
        &self,
        stage: &Stage,
        products: Range<usize>,
        columns: &[Columns],
        packed: &dyn Fn(usize) -> *const E,
        scratch: &mut [E],
    ) {
        let (rows, p) = (self.panel.rows.clone(), self.first);
        let (mut lines, mut steps) = (vec![], vec![]);
        offsets(&p.rows, |l| l.a, rows.start, rows.len(), &mut lines);
        let base = p.item(self.panel.item, |l| l.a);
        // Rounded storage must not see partial sums: all of k at once.
        let whole = S::same(std::ptr::null()).is_none();
        let pieces: Vec<Range<usize>> = depths(p.k).collect();
        let size = if whole || pieces.is_empty() { pieces.len().max(1) } else { 1 };
        // Nothing to reduce: a step without pieces writes what the result starts from.
        let steps_of_k = if pieces.is_empty() { vec![&pieces[..]] } else { pieces.chunks(size).collect() };
        for pieces in steps_of_k {
            // SAFETY: the caller's promise; strips are packed in order, with a vector to spare.
            unsafe {
                let src = self.call.at(p.a).at::<S>(base).cast_const();
                let mut to = scratch.as_mut_ptr();
                for depth in pieces {
                    offsets(&p.inner, |l| l.a, depth.start, depth.len(), &mut steps);
                    let part = |(at, n)| Part { at, len: n, width: n, to: at * depth.len() };
                    let parts: Vec<Part> = self.strips().map(part).collect();
                    pack(self.simd, src, &lines, &steps, &parts, to);
                    to = to.add(rows.len() * depth.len());
                }
                for i in products.clone() {
                    self.tiles::<E, S>(&stage.products[i], &columns[i], pieces, scratch.as_ptr(), packed(i));
                }
            }
        }
    }

    /// Rows of the panel as tiles of nearly equal height: first, how many.
    fn strips(&self) -> impl Iterator<Item = (usize, usize)> {
        let n = self.panel.rows.len();
        let pieces = n.div_ceil(self.tile.rows).max(1);
        (0..pieces).map(move |i| (i * n / pieces, (i + 1) * n / pieces - i * n / pieces))
    }

    /// Multiplies packed rows by packed columns over some steps of k.
    unsafe fn tiles<E: Compute, S: Stored<E>>(
        &self,
        p: &Product,
        columns: &Columns,
        pieces: &[Range<usize>],
        a: *const E,
        b: *const E,
    ) {
        let (mut rows, mut cols) = (vec![], vec![]);
        offsets(&p.rows, |l| l.c, self.panel.rows.start, self.panel.rows.len(), &mut rows);
        let base = p.item(self.panel.item, |l| l.c);
        let first = pieces.first().map_or(0, |d| d.start);
        // SAFETY: views were checked.
        let (to, init) = unsafe {
            let to = self.call.at(p.c).at::<S>(base);
            let init = match p.init {
                _ if first > 0 => to.cast_const(),
                Start::Zero => std::ptr::null(),
                Start::Result => to.cast_const(),
                Start::Operand(from) => self.call.at(from).at::<S>(base).cast_const(),
            };
            (to, init)
        };
        for t in self.part(columns) {
            let (at, len, width) = columns.tile(t);
            offsets(&p.columns, |l| l.c, at, len, &mut cols);
            let direct = len == width && cols.windows(2).all(|w| w[1] == w[0] + 1);
            for (row, n) in self.strips() {
                let piece = |d: &Range<usize>| {
                    let a_at = rows.len() * (d.start - first) + row * d.len();
                    let b_at = columns.padded() * d.start + t * self.tile.columns() * d.len();
                    // SAFETY: where they were packed.
                    unsafe { (d.len(), a.add(a_at), b.add(b_at)) }
                };
                if let Some(d) = pieces.first().filter(|_| pieces.len() == 1) {
                    // The next panel of columns lies behind this one: its part for this strip.
                    let size = self.tile.columns() * d.len();
                    let (from, to) = (size + size * row / rows.len(), size + size * (row + n) / rows.len());
                    let at = columns.padded() * d.start + t * size;
                    ahead(b.wrapping_add(at + from), to - from);
                }
                let block = Block { rows: &rows[row..row + n], cols: &cols, width, lanes: self.tile.lanes, direct };
                // SAFETY: the caller's promise.
                unsafe { block.multiply::<E, S>(self.simd, pieces.iter().map(piece), to, init) };
            }
        }
    }

    /// Tiles of columns that this task multiplies.
    fn part(&self, columns: &Columns) -> Range<usize> {
        let tiles = columns.padded().div_ceil(self.tile.columns());
        tiles * self.panel.part / self.panel.parts..tiles * (self.panel.part + 1) / self.panel.parts
    }
}

/// Asks for `n` elements to be brought into the second cache.
#[inline(always)]
fn ahead<E>(p: *const E, n: usize) {
    #[cfg(target_arch = "x86_64")]
    for line in (0..n * size_of::<E>()).step_by(64) {
        use std::arch::x86_64::{_mm_prefetch, _MM_HINT_T1};
        // SAFETY: a prefetch touches nothing, wherever it points.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(p.cast::<i8>().wrapping_add(line)) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (p, n);
}

/// Asks for `n` elements to be brought into the first cache, to be written soon.
#[inline(always)]
fn own<E>(p: *const E, n: usize) {
    #[cfg(target_arch = "x86_64")]
    for line in (0..n * size_of::<E>()).step_by(64) {
        use std::arch::x86_64::{_mm_prefetch, _MM_HINT_ET0};
        // SAFETY: a prefetch touches nothing, wherever it points.
        unsafe { _mm_prefetch::<_MM_HINT_ET0>(p.cast::<i8>().wrapping_add(line)) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (p, n);
}

/// One tile of a result: offsets of rows and columns, and how wide it is packed.
struct Block<'a> {
    rows: &'a [usize],
    cols: &'a [usize],
    width: usize,
    lanes: usize,
    /// Columns are contiguous and fill the width.
    direct: bool,
}

impl Block<'_> {
    /// `to = init + Σ a·b` over the pieces, each with its steps.
    unsafe fn multiply<E: Compute, S: Stored<E>>(
        &self,
        simd: Simd,
        pieces: impl ExactSizeIterator<Item = (usize, *const E, *const E)>,
        to: *mut S,
        init: *const S,
    ) {
        let vectors = self.width / self.lanes;
        if let (true, 1, Some(ptr), Some(start)) = (self.direct, pieces.len(), S::same(to), S::same(init)) {
            for (k, a, b) in pieces {
                let ptr = ptr.cast_mut();
                for row in self.rows {
                    own(ptr.wrapping_add(self.cols[0] + row), self.width);
                }
                let init = if init.is_null() { std::ptr::null() } else { start.wrapping_add(self.cols[0]) };
                let out = Out { ptr: ptr.wrapping_add(self.cols[0]), init, rows: self.rows };
                // SAFETY: the caller's promise.
                unsafe { E::multiply(simd, vectors, k, a, b, out) };
            }
            return;
        }
        let mut buffer = [E::ZERO; MAX_ROWS * MAX_COLUMNS];
        let mut rows = [0; MAX_ROWS];
        rows.iter_mut().enumerate().for_each(|(i, r)| *r = i * self.width);
        for (i, (k, a, b)) in pieces.enumerate() {
            let ptr = buffer.as_mut_ptr();
            let init = if i == 0 { std::ptr::null() } else { ptr.cast_const() };
            // SAFETY: the caller's promise; the buffer holds the largest tile.
            unsafe { E::multiply(simd, vectors, k, a, b, Out { ptr, init, rows: &rows[..self.rows.len()] }) };
        }
        for (row, sums) in self.rows.iter().zip(buffer.chunks(self.width)) {
            for (col, sum) in self.cols.iter().zip(sums) {
                // SAFETY: the caller's promise.
                unsafe {
                    let start = if init.is_null() { E::ZERO } else { init.add(row + col).read().widen() };
                    to.add(row + col).write(S::narrow(start + *sum));
                }
            }
        }
    }
}

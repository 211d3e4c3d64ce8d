//! Table rows by index: `out[rows, d] = table[ids[rows], d]`. Buffers: table, ids, out.

use super::error::{CodegenError, Site};
use super::nest::Len;
use super::piece::Shared;
use super::text::Text;
use super::{Extents, Parts, Point};
use autoshard_ir::core::DType;
use autoshard_ir::kernel::GatherKernel;

/// Threads of a block, and most blocks.
const BLOCK: usize = 256;
const BLOCKS: usize = 1 << 16;

/// What gathers and scatters share: sizes, lengths in C, and the position of a row.
pub(super) struct Shape {
    /// Type of counts and addresses.
    pub int: &'static str,
    /// Loops over rows.
    rows: Vec<Len>,
    /// Table rows.
    pub table: Len,
    /// Split extent of the table.
    extent: Option<usize>,
    /// Global number of table rows.
    global: usize,
    /// Row width.
    pub d: Len,
    pub dtype: DType,
    pub extents: Extents,
}

impl Shape {
    pub fn new(site: Site, k: &GatherKernel, operands: usize, results: usize) -> Result<Shape, CodegenError> {
        if (operands, results) != (2, 1) {
            return Err(site.malformed(format!("{operands} operands and {results} results instead of 2 and 1")));
        }
        let mut extents = Extents::default();
        let mut len = |e: &autoshard_ir::kernel::Extent| match extents.id(e) {
            None => Len::whole(e.size),
            Some(i) => Len { size: e.size, extent: Some(i), times: 1 },
        };
        let rows: Vec<Len> = k.rows.iter().map(&mut len).collect();
        let (table, d) = (len(&k.table), len(&k.d));
        let count = rows.iter().try_fold(1usize, |n, l| n.checked_mul(l.size));
        let largest = count.and_then(|n| n.max(table.size).checked_mul(d.size.max(1)));
        let largest =
            largest.filter(|n| *n < isize::MAX as usize / 8).ok_or_else(|| site.malformed("sizes overflow"))?;
        if k.table.global > i32::MAX as usize {
            return Err(site.unsupported(format!("a table of {} rows", k.table.global)));
        }
        if count.is_none_or(|n| n > i32::MAX as usize) {
            return Err(site.unsupported("more than 2^31 rows"));
        }
        let int = if largest >= 1 << 31 { "unsigned long long" } else { "unsigned" };
        let extent = extents.id(&k.table);
        Ok(Shape { int, rows, table, extent, global: k.table.global, d, dtype: k.dtype, extents })
    }

    /// Number of rows, padded.
    pub fn count(&self) -> usize {
        self.rows.iter().map(|l| l.size).product()
    }

    /// Real number of rows, in C.
    pub fn rows_text(&self) -> String {
        let all: Vec<String> = self.rows.iter().map(|l| l.text(self.int)).collect();
        if all.is_empty() {
            format!("({})1", self.int)
        } else {
            all.join(" * ")
        }
    }

    /// Declares `at`, the place of real row `row` in memory.
    pub fn place(&self, t: &mut Text) {
        let int = self.int;
        let mut rest = "row".to_string();
        let mut stride = 1;
        let mut terms = vec![];
        for (l, len) in self.rows.iter().enumerate().rev() {
            let index = if l == 0 { rest.clone() } else { format!("{rest} % ({})", len.text(int)) };
            terms.push(if stride == 1 { format!("({index})") } else { format!("({index}) * {stride}") });
            if l > 0 {
                t.line(format!("const {int} q{l} = {rest} / ({});", len.text(int)));
                rest = format!("q{l}");
            }
            stride *= len.size;
        }
        if terms.is_empty() {
            terms.push("0".into());
        }
        t.line(format!("const {int} at = {};", terms.join(" + ")));
    }

    /// Whether `id` names a row of this rank, and declares `local`, that row. Numbers that no rank
    /// holds are nobody's.
    pub fn local(&self, t: &mut Text) {
        let start = self.extent.map_or("0".to_string(), |e| format!("(int)s{e}"));
        t.line(format!("const int local = id >= 0 && id < {} ? id - {start} : -1;", self.global));
        t.line(format!("const int mine = local >= 0 && local < (int)({});", self.table.text("unsigned")));
    }

    /// Elements that move at once, and the bytes of one element.
    pub fn vector(&self) -> usize {
        let per = 16 / self.dtype.bytes();
        if self.d.size.is_multiple_of(per) {
            per
        } else {
            1
        }
    }
}

pub(super) fn emit(site: Site, k: &GatherKernel, operands: usize, results: usize) -> Result<Parts, CodegenError> {
    let shape = Shape::new(site, k, operands, results)?;
    let (int, per, bytes) = (shape.int, shape.vector(), shape.dtype.bytes());
    let words = per * bytes / 4;
    let chunks = shape.d.size.div_ceil(per);
    let items = shape.count().saturating_mul(chunks);
    let blocks = items.div_ceil(BLOCK).clamp(1, BLOCKS);
    let ctype = super::lanes::memory_type(shape.dtype);
    let mut t = Text::default();
    t.line(format!("const {int} length_ = {};", shape.d.text(int)));
    t.line(format!("const {int} chunks = (length_ + {}) / {per};", per - 1));
    t.line(format!("const {int} items = {} * chunks;", shape.rows_text()));
    t.open(format!(
        "for ({int} item = ({int})blockIdx.x * {BLOCK} + threadIdx.x; item < items; item += ({int}){blocks} * {BLOCK})"
    ));
    t.line(format!("const {int} lane = item % chunks * {per};"));
    t.line(format!("const {int} row = item / chunks;"));
    shape.place(&mut t);
    t.line("const int id = ((const int*)b1)[at];");
    shape.local(&mut t);
    t.line(format!("{ctype}* const to = ({ctype}*)b2 + at * {} + lane;", shape.d.size));
    t.line(format!(
        "const {ctype}* const from = (const {ctype}*)b0 + ({int})(mine ? local : 0) * {} + lane;",
        shape.d.size
    ));
    if per == 1 {
        t.line("*to = mine ? *from : 0;");
    } else {
        t.line(format!("unsigned w[{words}];"));
        let (tail, single, each) = match shape.d.ragged() {
            true => (
                "length_ - lane >= ",
                format!("load_{bytes}(w, from, 1, {per}, n);"),
                format!("store_{bytes}(to, w, 1, {per}, n);"),
            ),
            false => ("", String::new(), String::new()),
        };
        let (load, store) = (format!("load_words(w, from, {words});"), format!("store_words(to, w, {words});"));
        t.line(format!("zero_words(w, {words});"));
        if tail.is_empty() {
            t.line(format!("if (mine) {load}"));
            t.line(store);
        } else {
            t.line(format!("const int n = {tail}{per} ? {per} : (int)(length_ - lane);"));
            t.line(format!("if (mine && n == {per}) {load}"));
            t.line(format!("else if (mine) {single}"));
            t.line(format!("if (n == {per}) {store}"));
            t.line(format!("else {each}"));
        }
    }
    t.close();
    let points = vec![Point { body: t.finish(), blocks, block: BLOCK, shared: Shared::default().bytes() }];
    Ok(Parts { extents: shape.extents, tables: vec![], workspace: 0, points })
}

//! Rows added by index: `table[ids[rows], d] += rows[rows, d]` into a zeroed table. Buffers: rows,
//! ids, table.
//!
//! A block owns some table rows and a range of columns. It writes zeros, then reads all ids in
//! order, lists those of its rows, and adds their rows one after another, each thread to columns of
//! its own: the order of additions is that of the rows, whatever runs beside it.

use super::error::{CodegenError, Site};
use super::gather::Shape;
use super::piece::Shared;
use super::text::Text;
use super::{Parts, Point};
use autoshard_ir::core::DType;
use autoshard_ir::kernel::GatherKernel;

/// Threads of a block; as many ids are read at a time.
const BLOCK: usize = 256;
/// Blocks that the table is cut into, about.
const BLOCKS: usize = 2048;

pub(super) fn emit(site: Site, k: &GatherKernel, operands: usize, results: usize) -> Result<Parts, CodegenError> {
    if !matches!(k.dtype, DType::F32 | DType::F64) {
        return Err(site.unsupported(format!("adding rows of {}", k.dtype)));
    }
    let shape = Shape::new(site, k, operands, results)?;
    let (int, per, bytes, size) = (shape.int, shape.vector(), shape.dtype.bytes(), shape.d.size);
    let words = per * bytes / 4;
    let name = shape.dtype.name();
    let tiles = size.div_ceil(BLOCK * per).max(1);
    let owners = (BLOCKS / tiles).clamp(1, shape.table.size.max(1));
    let ctype = super::lanes::memory_type(shape.dtype);

    let mut t = Text::default();
    // Lists of rows and of their table rows, and the warps' counts.
    let shared = Shared { ints: 2 * BLOCK + BLOCK / 32, ..Shared::default() };
    shared.declare(&mut t);
    t.line(format!("const unsigned owner = blockIdx.x % {owners};"));
    t.line(format!("const {int} lane = (({int})(blockIdx.x / {owners}) * {BLOCK} + threadIdx.x) * {per};"));
    t.line(format!("const {int} length_ = {};", shape.d.text(int)));
    t.line(format!("const int n = lane >= length_ ? 0 : length_ - lane < {per} ? (int)(length_ - lane) : {per};"));
    t.line(format!("unsigned sum[{words}];"));
    t.line(format!("unsigned add[{words}];"));
    t.line(format!("zero_words(sum, {words});"));
    t.open(format!("for ({int} r = owner; r < {}; r += {owners})", shape.table.text(int)));
    t.line(format!("{ctype}* const to = ({ctype}*)b2 + r * {size} + lane;"));
    store(&mut t, per, bytes, words);
    t.close();

    t.line(format!("const {int} rows = {};", shape.rows_text()));
    t.open(format!("for ({int} base = 0; base < rows; base += {BLOCK})"));
    t.line("int hit = 0;");
    t.line("unsigned source = 0, target = 0;");
    t.line(format!("const {int} row = base + threadIdx.x;"));
    t.open("if (row < rows)");
    shape.place(&mut t);
    t.line("const int id = ((const int*)b1)[at];");
    shape.local(&mut t);
    t.line(format!("hit = mine && (unsigned)local % {owners} == owner;"));
    t.line("source = (unsigned)at;");
    t.line("target = (unsigned)local;");
    t.close();
    t.line("const unsigned votes = ballot(hit);");
    t.line(format!("if ((threadIdx.x & 31) == 0) ints[{} + threadIdx.x / 32] = (unsigned)popcount(votes);", 2 * BLOCK));
    t.line("__syncthreads();");
    t.line("unsigned before = 0, hits = 0;");
    t.open(format!("for (unsigned w = 0; w < {}; ++w)", BLOCK / 32));
    t.line(format!("const unsigned count = ints[{} + w];", 2 * BLOCK));
    t.line("if (w < threadIdx.x / 32) before += count;");
    t.line("hits += count;");
    t.close();
    t.open("if (hit)");
    t.line("const unsigned place = before + (unsigned)popcount(votes & ((1u << (threadIdx.x & 31)) - 1u));");
    t.line("ints[place] = source;");
    t.line(format!("ints[{BLOCK} + place] = target;"));
    t.close();
    t.line("__syncthreads();");
    t.open("if (n > 0)");
    t.open("for (unsigned h = 0; h < hits; ++h)");
    t.line(format!("const {ctype}* from = (const {ctype}*)b0 + ({int})ints[h] * {size} + lane;"));
    t.line(format!("{ctype}* to = ({ctype}*)b2 + ({int})ints[{BLOCK} + h] * {size} + lane;"));
    for (words_, pointer) in [("add", "from"), ("sum", "to")] {
        let single = format!("load_{bytes}({words_}, {pointer}, 1, {per}, n);");
        if per > 1 {
            t.line(format!("if (n == {per}) load_words({words_}, {pointer}, {words});"));
            t.line(format!("else {single}"));
        } else {
            t.line(single);
        }
    }
    t.line(format!(
        "UNROLL for (int j = 0; j < {per}; ++j) put_{name}(sum, j, lane_{name}(sum, j) + lane_{name}(add, j));"
    ));
    store(&mut t, per, bytes, words);
    t.close();
    t.close();
    t.line("__syncthreads();");
    t.close();
    let points = vec![Point { body: t.finish(), blocks: owners * tiles, block: BLOCK, shared: shared.bytes() }];
    Ok(Parts { extents: shape.extents, tables: vec![], workspace: 0, points })
}

/// Writes `sum` to `to`.
fn store(t: &mut Text, per: usize, bytes: usize, words: usize) {
    let single = format!("store_{bytes}(to, sum, 1, {per}, n);");
    if per > 1 {
        t.line(format!("if (n == {per}) store_words(to, sum, {words});"));
        t.line(format!("else {single}"));
    } else {
        t.line(single);
    }
}

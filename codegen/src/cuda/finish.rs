//! The last entry point of combining stores: parts are combined in order.

use super::code::{Code, Out};
use super::expr::{combine, identity};
use super::lanes::write;
use super::piece::{digits, product, Piece};
use super::rows::butterfly;
use super::text::Text;
use autoshard_ir::core::{BinaryMonoid, DType};

/// Threads of the blocks.
pub(super) const BLOCK: usize = 256;
/// Elements of a block, where parts lie along the lane.
const ELEMENTS: usize = 32;

/// What the parts of a store's results left in the workspace: per result row, `number` numbers, or as
/// many rows of the lane's padded size.
pub(super) struct Partials<'a> {
    pub store: &'a Out,
    /// The store has the lane.
    pub along: bool,
    pub monoid: BinaryMonoid,
    /// Type of the partial results.
    pub dtype: DType,
    pub number: usize,
    /// Their address in C.
    pub memory: String,
}

/// Writes the piece for one store of a nest whose first `kept` loops it has.
pub(super) fn emit(code: &Code, kept: usize, partials: &Partials) -> Piece {
    let (store, monoid, along) = (partials.store, partials.monoid, partials.along);
    let int = code.int;
    let results: usize = code.nest.lens[..kept].iter().map(|l| l.size).product();
    let size = code.nest.lens[code.nest.lane()].size;
    let groups = BLOCK / ELEMENTS;
    let tiles = size.div_ceil(ELEMENTS).max(1);
    let blocks = if along { results * tiles } else { results.div_ceil(BLOCK / 32) }.max(1);
    let mut piece = Piece { blocks, body: String::new(), bindings: vec![], shared: Default::default() };
    // The result keeps its pointer's name, which the address uses.
    let p = store.pointer;
    piece.bind(&format!("p{p}"), "void*", format!("b{}", code.pointers[p]));
    piece.bind("w", "void*", partials.memory.clone());
    let (read, partials) = (format!("read_{}", partials.dtype), partials.number);
    let mut t = Text::default();
    t.line(format!("const {int} keeps = {};", product(code, 0..kept, None)));
    t.line(format!("double sum = {};", identity(monoid, true)));
    let next = |at: &str| combine(monoid, true, "sum", &format!("(double){read}(w, {at})"));
    if along {
        piece.shared.doubles = BLOCK;
        let len = code.nest.lens[code.nest.lane()].text(int);
        t.line(format!("const {int} keep = (blockIdx.x - first) / {tiles};"));
        t.line(format!(
            "const {int} lane = ({int})((blockIdx.x - first) % {tiles}) * {ELEMENTS} + threadIdx.x % {ELEMENTS};"
        ));
        t.line(format!("const int live = keep < keeps && lane < {len};"));
        t.open("if (live)");
        let at = format!("(keep * {partials} + i) * {size} + lane");
        t.line(format!("for ({int} i = threadIdx.x / {ELEMENTS}; i < {partials}; i += {groups}) sum = {};", next(&at)));
        t.close();
        t.line("doubles[threadIdx.x] = sum;");
        t.line("__syncthreads();");
        t.open(format!("if (live && threadIdx.x < {ELEMENTS})"));
        let other = combine(monoid, true, "sum", &format!("doubles[g * {ELEMENTS} + threadIdx.x]"));
        t.line(format!("for (int g = 1; g < {groups}; ++g) sum = {other};"));
        digits(&mut t, code, 0..kept, "keep");
        t.line(write(store.dtype, p, &code.nest.text(store.column, "lane", int), "sum", DType::F64));
        t.close();
    } else {
        // A warp a number.
        t.line(format!("const {int} keep = ({int})(blockIdx.x - first) * {} + threadIdx.x / 32;", BLOCK / 32));
        t.open("if (keep < keeps)");
        let at = format!("keep * {partials} + i");
        t.line(format!("for ({int} i = threadIdx.x % 32; i < {partials}; i += 32) sum = {};", next(&at)));
        t.close();
        butterfly(&mut t, monoid, true, "sum", 32);
        t.open("if (keep < keeps && threadIdx.x % 32 == 0)");
        digits(&mut t, code, 0..kept, "keep");
        t.line(write(store.dtype, p, &code.nest.text(store.column, "0", int), "sum", DType::F64));
        t.close();
    }
    piece.body = t.finish();
    piece
}

//! Stores that combine over rows, in an order that depends on sizes alone: threads accumulate over
//! the rows of their part, blocks combine their threads and write a partial result to the
//! workspace, and a later entry point combines the parts in order. Where one team or block has all
//! rows of a result, it writes the result.

use super::code::{Code, Out};
use super::expr::{combine, convert, identity, register};
use super::finish;
use super::lanes::write;
use super::piece::{digits, product, Piece};
use super::rows::{butterfly, open_row, thread, Rows};
use super::text::Text;
use super::workspace::Workspace;
use autoshard_ir::core::{BinaryMonoid, DType};

/// Blocks that work on a nest of few results, where each leaves a whole row.
const BLOCKS: usize = 264;
/// The same where they leave tiles or numbers.
const MORE_BLOCKS: usize = 1056;
/// Results from which on a team each has enough to do.
const MANY: usize = 1024;
/// Rows that a team has at least.
const ROWS: usize = 8;

/// How one store accumulates.
struct Sum {
    /// Position among the nest's stores.
    store: usize,
    monoid: BinaryMonoid,
    /// It has the lane.
    along: bool,
    /// Its register is a vector.
    vector: bool,
    /// Accumulated in double.
    wide: bool,
}

impl Sum {
    fn ctype(&self) -> &'static str {
        if self.wide {
            "double"
        } else {
            "float"
        }
    }

    fn dtype(&self) -> DType {
        if self.wide {
            DType::F64
        } else {
            DType::F32
        }
    }

    fn array(&self) -> &'static str {
        if self.wide {
            "doubles"
        } else {
            "floats"
        }
    }
}

/// The combining stores of a nest; all lack the same outer loops.
pub(super) struct Combine {
    sums: Vec<Sum>,
    /// Parts that the rows of a result are cut into.
    parts: usize,
    /// A team has all rows of a result.
    by_team: bool,
}

impl Combine {
    /// Whether something is accumulated lane by lane.
    pub fn uses_lanes(&self) -> bool {
        self.sums.iter().any(|s| s.along || s.vector)
    }

    /// Sums within a chunk are float, so that few numbers are converted.
    fn chunk_wide(&self, code: &Code, s: &Sum) -> bool {
        matches!(code.ops[code.stores[s.store].reg].dtype, DType::F64 | DType::I32)
    }

    fn per_chunk(&self) -> impl Iterator<Item = &Sum> {
        self.sums.iter().filter(|s| !s.along && s.vector)
    }

    /// Before a chunk.
    pub fn open_chunk(&self, t: &mut Text, rows: &Rows) {
        for s in self.per_chunk() {
            let wide = self.chunk_wide(rows.code, s);
            let ctype = if wide { "double" } else { "float" };
            t.line(format!("{ctype} m{} = {};", s.store, identity(s.monoid, wide)));
        }
    }

    /// In lane `j`.
    pub fn lane(&self, t: &mut Text, rows: &Rows) {
        let code = rows.code;
        let guard = rows.l.guard().map(|g| format!("if ({g}) ")).unwrap_or_default();
        for s in self.sums.iter().filter(|s| s.along || s.vector) {
            let (k, reg) = (s.store, code.stores[s.store].reg);
            let wide = if s.along { s.wide } else { self.chunk_wide(code, s) };
            let to = if wide { DType::F64 } else { DType::F32 };
            let e = convert(&register(code, reg), code.ops[reg].dtype, to);
            if !s.along {
                t.line(format!("{guard}m{k} = {};", combine(s.monoid, wide, &format!("m{k}"), &e)));
            } else if rows.registers {
                let a = format!("a{k}[c * {} + j]", rows.team.lanes);
                t.line(format!("{guard}{a} = {};", combine(s.monoid, wide, &a, &e)));
            } else {
                let (name, at) = (to.name(), format!("partial * {} + lane + j", lane_size(code)));
                let old = format!("read_{name}(w{k}, {at})");
                t.line(format!("{guard}write_{name}(w{k}, {at}, {});", combine(s.monoid, wide, &old, &e)));
            }
        }
    }

    /// After a chunk.
    pub fn close_chunk(&self, t: &mut Text) {
        for s in self.per_chunk() {
            let (a, m) = (format!("a{}", s.store), format!("(double)m{}", s.store));
            t.line(format!("{a} = {};", combine(s.monoid, true, &a, &m)));
        }
    }

    /// After a row: numbers that there is one of per row.
    fn row(&self, t: &mut Text, rows: &Rows, live: Option<&str>) {
        let single: Vec<&Sum> = self.sums.iter().filter(|s| !s.along && !s.vector).collect();
        if single.is_empty() {
            return;
        }
        let live = live.map(|l| format!(" && {l}")).unwrap_or_default();
        let tile = if rows.team.tiles > 1 { " && tile == 0" } else { "" };
        t.open(format!("if (t == 0{live}{tile})"));
        for s in single {
            let reg = rows.code.stores[s.store].reg;
            let e = convert(&register(rows.code, reg), rows.code.ops[reg].dtype, DType::F64);
            let a = format!("a{}", s.store);
            t.line(format!("{a} = {};", combine(s.monoid, true, &a, &e)));
        }
        t.close();
    }
}

fn lane_size(code: &Code) -> usize {
    code.nest.lens[code.nest.lane()].size
}

/// Moves the loops that the combining stores have to the front; returns their number.
pub(super) fn sort(code: &mut Code) -> usize {
    let Some(lacked) = code.stores.iter().find(|s| s.combine.is_some()).map(|s| code.lacks(s)) else {
        return code.nest.lane();
    };
    let lane = code.nest.lane();
    let (kept, reduced): (Vec<usize>, Vec<usize>) = (0..lane).partition(|l| !lacked.contains(l));
    let order: Vec<usize> = kept.into_iter().chain(reduced).chain([lane]).collect();
    code.nest.lens = order.iter().map(|l| code.nest.lens[*l].clone()).collect();
    for c in &mut code.nest.columns {
        c.strides = order.iter().map(|l| c.strides[*l]).collect();
    }
    code.nest.merge(false);
    let store = code.stores.iter().find(|s| s.combine.is_some());
    store.map_or(code.nest.lane(), |s| code.nest.lane() - code.lacks(s).len())
}

/// Writes the nest, whose loops are sorted, and the pieces that finish it.
pub(super) fn emit(code: &Code, mut rows: Rows, kept: usize, workspace: &mut Workspace) -> (Piece, Vec<Piece>) {
    let (team, int, outer) = (rows.team, code.int, code.nest.lane());
    let size = |r: std::ops::Range<usize>| code.nest.lens[r].iter().map(|l| l.size).product::<usize>();
    let (results, reduced) = (size(0..kept), size(kept..outer));
    let sums: Vec<Sum> = code.stores.iter().enumerate().filter_map(|(i, s)| sum(code, i, s)).collect();
    let scalar = sums.iter().any(|s| !s.along);
    let units = results.saturating_mul(team.tiles);
    let by_team =
        team.threads <= 32 && rows.registers && (team.tiles == 1 || !scalar) && (units >= MANY || reduced <= ROWS / 2);
    let per_block = team.teams() * ROWS;
    let most = if code.reduces() && super::rows::along(code) > 0 { BLOCKS } else { MORE_BLOCKS };
    let parts = if by_team { 1 } else { most.div_ceil(units.max(1)).min(reduced.div_ceil(per_block)).max(1) };
    let c = Combine { sums, parts, by_team };
    let blocks = if by_team { units.div_ceil(team.teams()) } else { units * parts }.max(1);

    let mut piece = Piece::new(code, blocks);
    let mut last = vec![];
    for s in &c.sums {
        let partials = if s.along { parts } else { parts * team.tiles };
        if partials > 1 || (s.along && !rows.registers) {
            let n = results.saturating_mul(partials) * if s.along { lane_size(code) } else { 1 };
            let memory = workspace.take(n, s.dtype().bytes());
            piece.bind(&format!("w{}", s.store), "void*", memory.clone());
            let (store, along, monoid, dtype) = (&code.stores[s.store], s.along, s.monoid, s.dtype());
            last.push(finish::emit(
                code,
                kept,
                &finish::Partials { store, along, monoid, dtype, number: partials, memory },
            ));
        }
    }
    let mut t = Text::default();
    thread(&mut t, &team);
    t.line(format!("const {int} keeps = {};", product(code, 0..kept, None)));
    t.line(format!("const {int} rows = {};", product(code, kept..outer, None)));
    open_unit(&mut t, &c, &rows);
    digits(&mut t, code, 0..kept, "keep");
    declare(&mut t, &c, &rows);
    if c.by_team {
        t.open(format!("for ({int} base = 0; base < rows; ++base)"));
        digits(&mut t, code, kept..outer, "base");
        t.line(format!("const {int} length_ = live ? {} : 0;", code.nest.lens[outer].text(int)));
        rows.row(&mut t, Some("live"), Some(&c));
        c.row(&mut t, &rows, Some("live"));
        t.close();
    } else {
        t.line(format!("const {int} share = (rows + {}) / {parts};", parts - 1));
        t.line(format!("const {int} stop = (part + 1) * share < rows ? (part + 1) * share : rows;"));
        t.open(format!("for ({int} base = part * share; base < stop; base += {})", team.teams()));
        let live = open_row(&mut t, code, &team, "stop", kept..outer);
        rows.row(&mut t, live, Some(&c));
        c.row(&mut t, &rows, live);
        t.close();
    }
    piece.shared.floats = rows.floats;
    piece.shared.doubles = rows.doubles;
    for s in &c.sums {
        close(&mut t, &c, s, &rows, &mut piece);
    }
    t.close();
    piece.body = t.finish();
    (piece, last)
}

/// Opens the work on one result and tile: a loop of the team, or the block's own.
fn open_unit(t: &mut Text, c: &Combine, rows: &Rows) {
    let (team, int, parts) = (&rows.team, rows.code.int, c.parts);
    let (teams, tiles) = (team.teams(), team.tiles);
    if c.by_team {
        t.open(format!(
            "for ({int} units = ({int})(blockIdx.x - first) * {teams}; units < keeps * {tiles}; units += ({int})blocks * {teams})"
        ));
        t.line(format!("const {int} unit = units + {};", team.index()));
        t.line(format!("const int live = unit < keeps * {tiles};"));
        t.line(format!("const {int} mine = live ? unit : units;"));
        t.line(format!("const {int} tile = mine % {tiles};"));
        t.line(format!("const {int} keep = mine / {tiles};"));
    } else {
        t.line(format!("const {int} unit = blockIdx.x - first;"));
        t.line(format!("const {int} part = unit % {parts};"));
        t.line(format!("const {int} tile = unit / {parts} % {tiles};"));
        t.line(format!("const {int} keep = unit / {};", parts * tiles));
        t.open("if (keep < keeps)");
    }
}

fn sum(code: &Code, store: usize, s: &Out) -> Option<Sum> {
    let along = code.nest.lane_stride(s.column) > 0;
    let wide = !along || matches!(code.ops[s.reg].dtype, DType::F64 | DType::I32);
    Some(Sum { store, monoid: s.combine?, along, vector: !code.ops[s.reg].uniform, wide })
}

/// Declares the accumulators; those in the workspace are set to the identity.
fn declare(t: &mut Text, c: &Combine, rows: &Rows) {
    let int = rows.code.int;
    if !c.by_team {
        t.line(format!("const {int} partial = keep * {} + part;", c.parts));
    }
    for s in &c.sums {
        let (k, ctype, start) = (s.store, s.ctype(), identity(s.monoid, s.wide));
        if !s.along {
            t.line(format!("{ctype} a{k} = {start};"));
        } else if rows.registers {
            let n = rows.team.lanes * rows.team.chunks;
            t.line(format!("{ctype} a{k}[{n}];"));
            t.line(format!("UNROLL for (int i = 0; i < {n}; ++i) a{k}[i] = {start};"));
        } else {
            let size = lane_size(rows.code);
            let (threads, lanes, name) = (rows.team.threads, rows.team.lanes, s.dtype().name());
            t.open(format!("for ({int} lane = ({int})t * {lanes}; lane < {size}; lane += {})", threads * lanes));
            t.line(format!("for (int j = 0; j < {lanes} && lane + j < {size}; ++j) write_{name}(w{k}, partial * {size} + lane + j, {start});"));
            t.close();
        }
    }
}

/// Writes an accumulator where it belongs.
fn close(t: &mut Text, c: &Combine, s: &Sum, rows: &Rows, piece: &mut Piece) {
    let (team, code, k) = (&rows.team, rows.code, s.store);
    let store = &code.stores[k];
    if !s.along {
        let across = if c.by_team { team.threads } else { 32 };
        butterfly(t, s.monoid, true, &format!("a{k}"), across);
        let out = if c.parts * team.tiles > 1 {
            format!("write_f64(w{k}, partial * {0} + tile, a{k});", team.tiles)
        } else {
            write(
                store.dtype,
                store.pointer,
                &code.nest.text(store.column, "0", code.int),
                &format!("a{k}"),
                DType::F64,
            )
        };
        if c.by_team {
            t.line(format!("if (t == 0 && live) {out}"));
            return;
        }
        let warps = team.block / 32;
        piece.shared.doubles = piece.shared.doubles.max(warps);
        t.line(format!("if ((threadIdx.x & 31) == 0) doubles[threadIdx.x / 32] = a{k};"));
        t.line("__syncthreads();");
        t.open("if (threadIdx.x == 0)");
        t.line(format!("a{k} = doubles[0];"));
        let sum = combine(s.monoid, true, &format!("a{k}"), "doubles[w]");
        t.line(format!("for (int w = 1; w < {warps}; ++w) a{k} = {sum};"));
        t.line(out);
        t.close();
        t.line("__syncthreads();");
        return;
    }
    if !rows.registers {
        return;
    }
    let int = code.int;
    let len = code.nest.lens[code.nest.lane()].text(int);
    let (threads, lanes) = (team.threads, team.lanes);
    let begin = if team.tiles > 1 { format!("tile * {} + ", team.tile()) } else { String::new() };
    let out = |e: &str| {
        if c.parts > 1 {
            format!("write_{}(w{k}, partial * {} + lane, {e});", s.dtype().name(), lane_size(code))
        } else {
            let at = code.nest.text(store.column, "lane", int);
            write(store.dtype, store.pointer, &at, e, s.dtype())
        }
    };
    t.open(format!("UNROLL for (int c = 0; c < {}; ++c)", team.chunks));
    if c.by_team || team.teams() == 1 {
        let live = if c.by_team { "live && " } else { "" };
        t.open(format!("UNROLL for (int j = 0; j < {lanes}; ++j)"));
        t.line(format!("const {int} lane = {begin}(({int})c * {threads} + t) * {lanes} + j;"));
        t.line(format!("if ({live}lane < {len}) {}", out(&format!("a{k}[c * {lanes} + j]"))));
        t.close();
    } else {
        let (array, block) = (s.array(), team.block);
        if s.wide {
            piece.shared.doubles = piece.shared.doubles.max(block * lanes);
        } else {
            piece.shared.floats = piece.shared.floats.max(block * lanes);
        }
        t.line(format!(
            "UNROLL for (int j = 0; j < {lanes}; ++j) {array}[j * {block} + threadIdx.x] = a{k}[c * {lanes} + j];"
        ));
        t.line("__syncthreads();");
        t.open(format!("for (unsigned i = threadIdx.x; i < {}; i += {block})", threads * lanes));
        t.line(format!("const {int} lane = {begin}({int})c * {} + i;", threads * lanes));
        let place = format!("{array}[i % {lanes} * {block} + i / {lanes}");
        t.line(format!("{} sum = {place}];", s.ctype()));
        let next = combine(s.monoid, s.wide, "sum", &format!("{place} + m]"));
        t.line(format!("for (unsigned m = {threads}; m < {block}; m += {threads}) sum = {next};"));
        t.line(format!("if (lane < {len}) {}", out("sum")));
        t.close();
        t.line("__syncthreads();");
    }
    t.close();
}

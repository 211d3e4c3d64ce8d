//! Nests with reductions along the lane or over rows: a team of threads has a row at a time.
//!
//! A team is a power of two of at most 32 threads of one warp, or the whole block. Where words of
//! an operand are needed in several passes over the lane and fit, they stay in registers.

use super::code::{Action, Code};
use super::combine::Combine;
use super::expr::{combine, convert, declare, identity, register, value};
use super::lanes::{choose, words, write, Lanes, Tail};
use super::piece::{digits, product, Piece};
use super::text::Text;
use autoshard_ir::core::DType;

/// Most registers of a thread for words that it keeps between passes and for accumulators along the
/// lane; as many again hold what is computed.
const MOST: usize = 64;
/// Most blocks; teams then go on with the next rows.
const BLOCKS: usize = 1 << 20;
/// Most chunks of a thread where a warp has the row, and where every chunk has a tail of its own.
const PER_THREAD: usize = 4;

/// Threads per block that the nest would like.
pub(super) fn preferred_block(code: &Code) -> usize {
    if !code.reduces() {
        return 256;
    }
    // Accumulators along the lane take registers, too.
    let each = if along(code) > 0 { 2 } else { 4 };
    match chunks(code, choose(code)) {
        0..=128 => 256,
        n if n <= 128 * 2 => 128,
        n if n <= 256 * each => 256,
        _ => 512,
    }
}

/// Number of stores that combine over rows and keep the lane.
pub(super) fn along(code: &Code) -> usize {
    code.stores.iter().filter(|s| s.combine.is_some() && code.nest.lane_stride(s.column) > 0).count()
}

fn chunks(code: &Code, lanes: usize) -> usize {
    code.nest.lens[code.nest.lane()].size.div_ceil(lanes).max(1)
}

/// How the lane is cut.
#[derive(Clone, Copy, Debug)]
pub(super) struct Team {
    /// Threads of a block.
    pub block: usize,
    /// Threads of a team.
    pub threads: usize,
    /// Lanes of a thread in a chunk.
    pub lanes: usize,
    /// Chunks of a thread.
    pub chunks: usize,
    /// Chunks are unrolled, so that arrays over them are registers.
    pub unrolled: bool,
    /// Tiles that the lane is cut into, for different teams.
    pub tiles: usize,
}

impl Team {
    /// Teams of a block.
    pub fn teams(&self) -> usize {
        self.block / self.threads
    }

    /// Lanes of a tile.
    pub fn tile(&self) -> usize {
        self.threads * self.lanes * self.chunks
    }

    /// Position of the team in its block.
    pub fn index(&self) -> String {
        if self.teams() == 1 {
            "0".into()
        } else {
            format!("(threadIdx.x / {})", self.threads)
        }
    }
}

/// A nest whose rows are teams' work.
pub(super) struct Rows<'a> {
    pub code: &'a Code,
    pub team: Team,
    pub l: Lanes<'a>,
    /// Registers that each pass needs; the last one stores.
    passes: Vec<Vec<bool>>,
    /// Accumulators along the lane are registers; otherwise they are in the workspace.
    pub registers: bool,
    /// Shared memory of block reductions, in numbers.
    pub floats: usize,
    pub doubles: usize,
}

impl<'a> Rows<'a> {
    pub fn new(code: &'a Code, block: usize) -> Rows<'a> {
        let lanes = choose(code);
        let n = chunks(code, lanes);
        let mut team = Team { block, threads: 32, lanes, chunks: 1, unrolled: true, tiles: 1 };
        let along = along(code);
        if n <= 32 {
            team.threads = n.next_power_of_two();
        } else if code.reduces() || (!code.combines() && along == 0) {
            team.threads = if n <= 32 * PER_THREAD { 32 } else { block };
            team.chunks = n.div_ceil(team.threads);
        } else {
            team.chunks = if along > 0 { 1 } else { n.div_ceil(team.threads).min(16) };
            team.tiles = n.div_ceil(team.threads * team.chunks);
        }
        let passes = passes(code);
        let mut kept = kept(code, &passes);
        let accumulators = along * lanes * team.chunks;
        let registers = accumulators <= MOST;
        if !registers {
            // In memory, where one team alone may add.
            team.threads = block;
            team.chunks = n.div_ceil(block);
            team.tiles = 1;
        }
        let fits = |kept: &[bool]| words_kept(code, kept, lanes, team.chunks) + accumulators <= MOST;
        if registers && !fits(&kept) {
            // What all rows share is in the nearest cache anyway.
            (0..kept.len()).filter(|i| is_shared(code, *i)).for_each(|i| kept[i] = false);
        }
        let len = &code.nest.lens[code.nest.lane()];
        // Every chunk of a ragged lane has a tail: many of them make a long text.
        let long = !len.divides(lanes) && team.chunks > PER_THREAD;
        if !registers || !fits(&kept) || long {
            kept.fill(false);
        }
        team.unrolled = registers && (accumulators > 0 || kept.contains(&true) || team.chunks == 1);
        let tail = if !len.divides(lanes) {
            Tail::Ragged
        } else if team.unrolled && (len.ragged() || team.teams() > 1 || !len.size.is_multiple_of(team.tile())) {
            Tail::Whole
        } else {
            Tail::Full
        };
        let l = Lanes { code, lanes, tail, kept };
        Rows { code, team, l, passes, registers, floats: 0, doubles: 0 }
    }

    /// A loop over the thread's chunks of the lane.
    fn open_chunks(&self, t: &mut Text) {
        let (team, int) = (&self.team, self.code.int);
        let (threads, lanes, chunks) = (team.threads, team.lanes, team.chunks);
        let begin = if team.tiles > 1 { format!("tile * {} + ", team.tile()) } else { String::new() };
        if team.unrolled {
            t.open(format!("UNROLL for (int c = 0; c < {chunks}; ++c)"));
            t.line(format!("const {int} lane = {begin}(({int})c * {threads} + t) * {lanes};"));
        } else {
            if team.tiles > 1 {
                let end = format!("({int})(tile + 1) * {}", team.tile());
                t.line(format!("const {int} end = {end} < length_ ? {end} : length_;"));
            }
            let end = if team.tiles > 1 { "end" } else { "length_" };
            // Loads of a few bytes hide their latency behind each other.
            let unroll = if lanes == 1 { "UNROLL_SOME " } else { "" };
            let next = threads * lanes;
            t.open(format!("{unroll}for ({int} lane = {begin}({int})t * {lanes}; lane < {end}; lane += {next})"));
        }
        self.l.declare_count(t, "length_");
    }

    /// The work on one row, given the outer indices and `length_`. `live`: condition under which
    /// the row is real, unless it always is.
    pub fn row(&mut self, t: &mut Text, live: Option<&str>, sums: Option<&Combine>) {
        let code = self.code;
        let last = self.passes.len() - 1;
        let any = |i: usize| self.passes.iter().any(|p| p[i]);
        for i in (0..code.ops.len()).filter(|i| self.l.kept[*i] && any(*i)) {
            let Action::Load(_, dtype, _) = code.ops[i].action else { continue };
            t.line(format!("unsigned x{i}[{}];", self.team.chunks * words(self.team.lanes, dtype)));
        }
        let mut loaded = vec![false; code.ops.len()];
        for pass in 0..=last {
            let reductions: Vec<usize> = (0..code.ops.len()).filter(|i| self.reduces_in(*i, pass)).collect();
            self.uniforms(t, pass);
            if pass < last && reductions.is_empty() {
                continue;
            }
            for i in &reductions {
                let (ctype, start) = (self.acc_type(*i), identity(self.monoid(*i), self.wide(*i)));
                t.line(format!("{ctype} acc{i} = {start};"));
            }
            let needed = self.passes[pass].clone();
            let stores: Vec<usize> = if pass == last { self.lane_stores() } else { vec![] };
            let works = needed.iter().zip(&code.ops).any(|(n, o)| *n && !o.uniform)
                || !stores.is_empty()
                || (pass == last && sums.is_some_and(|s| s.uses_lanes()));
            if works {
                self.open_chunks(t);
                for i in (0..code.ops.len()).filter(|i| needed[*i] && !code.ops[*i].uniform && !loaded[*i]) {
                    self.l.load(t, i);
                }
                for i in (0..code.ops.len()).filter(|i| needed[*i]) {
                    loaded[i] = self.l.kept[i];
                }
                stores.iter().for_each(|s| self.l.declare_store(t, *s));
                if pass == last {
                    sums.iter().for_each(|s| s.open_chunk(t, self));
                }
                t.open(format!("UNROLL for (int j = 0; j < {}; ++j)", self.team.lanes));
                self.l.compute(t, &needed);
                for i in &reductions {
                    let arg = self.acc_value(*i, code.ops[*i].args[0]);
                    let sum = combine(self.monoid(*i), self.wide(*i), &format!("acc{i}"), &arg);
                    let guard = self.l.guard().map(|g| format!("if ({g}) ")).unwrap_or_default();
                    t.line(format!("{guard}acc{i} = {sum};"));
                }
                stores.iter().for_each(|s| self.l.put(t, *s));
                if pass == last {
                    sums.iter().for_each(|s| s.lane(t, self));
                    self.single_stores(t);
                }
                t.close();
                stores.iter().for_each(|s| self.l.store(t, *s));
                if pass == last {
                    sums.iter().for_each(|s| s.close_chunk(t));
                }
                t.close();
            }
            self.reduce(t, &reductions);
        }
        self.uniform_stores(t, live);
    }

    fn reduces_in(&self, i: usize, pass: usize) -> bool {
        let op = &self.code.ops[i];
        let vector = op.args.first().is_some_and(|a| !self.code.ops[*a].uniform);
        let needed = self.passes.iter().any(|p| p[i]);
        matches!(op.action, Action::Reduce(_)) && vector && op.pass == pass + 1 && needed
    }

    /// Declares the uniform registers that a pass is the first to need.
    fn uniforms(&self, t: &mut Text, pass: usize) {
        for (i, op) in self.code.ops.iter().enumerate() {
            let reduced = matches!(op.action, Action::Reduce(_)) && !self.code.ops[op.args[0]].uniform;
            let first = self.passes.iter().position(|p| p[i]);
            if op.uniform && !reduced && first == Some(pass) {
                declare(t, self.code, i, &value(self.code, i, "0", None));
            }
        }
    }

    pub fn wide(&self, reduction: usize) -> bool {
        let op = &self.code.ops[reduction];
        let wide = |d: DType| matches!(d, DType::F64 | DType::I32);
        wide(op.dtype) || wide(self.code.ops[op.args[0]].dtype)
    }

    fn acc_type(&self, reduction: usize) -> &'static str {
        if self.wide(reduction) {
            "double"
        } else {
            "float"
        }
    }

    fn acc_value(&self, reduction: usize, arg: usize) -> String {
        let to = if self.wide(reduction) { DType::F64 } else { DType::F32 };
        convert(&register(self.code, arg), self.code.ops[arg].dtype, to)
    }

    fn monoid(&self, reduction: usize) -> autoshard_ir::core::BinaryMonoid {
        match self.code.ops[reduction].action {
            Action::Reduce(m) => m,
            _ => autoshard_ir::core::BinaryMonoid::Sum,
        }
    }

    /// Combines the accumulators of the team's threads, and declares the results.
    fn reduce(&mut self, t: &mut Text, reductions: &[usize]) {
        if reductions.is_empty() {
            return;
        }
        let (code, threads) = (self.code, self.team.threads);
        let warps = self.team.block / 32;
        let across = threads > 32;
        let (mut floats, mut doubles) = (0, 0);
        let mut places = vec![];
        for i in reductions {
            let (wide, m) = (self.wide(*i), self.monoid(*i));
            butterfly(t, m, wide, &format!("acc{i}"), threads.min(32));
            let (array, at) = if wide { ("doubles", &mut doubles) } else { ("floats", &mut floats) };
            places.push((array, *at * warps));
            *at += 1;
        }
        if across {
            t.open("if ((threadIdx.x & 31) == 0)");
            for (i, (array, at)) in reductions.iter().zip(&places) {
                t.line(format!("{array}[{at} + threadIdx.x / 32] = acc{i};"));
            }
            t.close();
            t.line("__syncthreads();");
            for (i, (array, at)) in reductions.iter().zip(&places) {
                t.line(format!("acc{i} = {array}[{at}];"));
                let sum = combine(self.monoid(*i), self.wide(*i), &format!("acc{i}"), &format!("{array}[{at} + w]"));
                t.line(format!("UNROLL for (int w = 1; w < {warps}; ++w) acc{i} = {sum};"));
            }
            t.line("__syncthreads();");
            self.floats = self.floats.max(floats * warps);
            self.doubles = self.doubles.max(doubles * warps);
        }
        for i in reductions {
            let from = if self.wide(*i) { DType::F64 } else { DType::F32 };
            declare(t, code, *i, &convert(&format!("acc{i}"), from, code.ops[*i].dtype));
        }
    }

    /// Plain stores along the lane.
    fn lane_stores(&self) -> Vec<usize> {
        let along = |s: &usize| {
            let s = &self.code.stores[*s];
            s.combine.is_none() && self.code.nest.lane_stride(s.column) > 0
        };
        (0..self.code.stores.len()).filter(along).collect()
    }

    /// Plain stores of one number per row.
    fn row_stores(&self) -> impl Iterator<Item = &super::code::Out> {
        let once = |s: &&super::code::Out| s.combine.is_none() && self.code.nest.lane_stride(s.column) == 0;
        self.code.stores.iter().filter(once)
    }

    /// Those of a register along a lane of one entry.
    fn single_stores(&self, t: &mut Text) {
        for s in self.row_stores().filter(|s| !self.code.ops[s.reg].uniform) {
            let guard = self.l.guard().map(|g| format!("{g} && ")).unwrap_or_default();
            let at = self.code.nest.text(s.column, "0", self.code.int);
            let e = register(self.code, s.reg);
            t.line(format!(
                "if ({guard}lane + j == 0) {}",
                write(s.dtype, s.pointer, &at, &e, self.code.ops[s.reg].dtype)
            ));
        }
    }

    fn uniform_stores(&self, t: &mut Text, live: Option<&str>) {
        let stores: Vec<_> = self.row_stores().filter(|s| self.code.ops[s.reg].uniform).collect();
        if stores.is_empty() {
            return;
        }
        // An update in place: all threads must have read the number before one overwrites it.
        let in_place = |s: &&super::code::Out| {
            let here = &self.code.nest.columns[s.column];
            self.code
                .ops
                .iter()
                .any(|o| matches!(o.action, Action::Load(_, _, c) if o.uniform && self.code.nest.columns[c] == *here))
        };
        if stores.iter().any(in_place) {
            t.line("__syncthreads();");
        }
        let live = live.map(|l| format!(" && {l}")).unwrap_or_default();
        t.open(format!("if (t == 0{live})"));
        for s in stores {
            let at = self.code.nest.text(s.column, "0", self.code.int);
            t.line(write(s.dtype, s.pointer, &at, &register(self.code, s.reg), self.code.ops[s.reg].dtype));
        }
        t.close();
    }
}

/// Combines a variable over groups of `threads` of a warp; all of them have the result.
pub(super) fn butterfly(t: &mut Text, m: autoshard_ir::core::BinaryMonoid, wide: bool, name: &str, threads: usize) {
    if threads > 1 {
        let shuffle = if wide { "shfl_xor_f64" } else { "shfl_xor_f32" };
        let sum = combine(m, wide, name, &format!("{shuffle}({name}, o)"));
        t.line(format!("UNROLL for (int o = {}; o > 0; o >>= 1) {name} = {sum};", threads / 2));
    }
}

/// Registers that each pass over the lane needs: those that reductions after it combine, and in
/// the last one those that are stored.
fn passes(code: &Code) -> Vec<Vec<bool>> {
    let stored = code.needed(code.stores.iter().map(|s| s.reg));
    let mut passes = vec![];
    for pass in 0..code.passes() {
        let roots = code.ops.iter().enumerate().filter(|(i, o)| {
            matches!(o.action, Action::Reduce(_)) && stored[*i] && o.pass == pass + 1 && !code.ops[o.args[0]].uniform
        });
        let mut needed = vec![false; code.ops.len()];
        roots.flat_map(|(_, o)| &o.args).for_each(|a| needed[*a] = true);
        spread(code, &mut needed);
        passes.push(needed);
    }
    let mut needed = vec![false; code.ops.len()];
    code.stores.iter().for_each(|s| needed[s.reg] = true);
    spread(code, &mut needed);
    passes.push(needed);
    passes
}

/// Adds what registers need, up to results of reductions.
fn spread(code: &Code, needed: &mut [bool]) {
    for i in (0..code.ops.len()).rev() {
        let op = &code.ops[i];
        let reduced = matches!(op.action, Action::Reduce(_)) && !code.ops[op.args[0]].uniform;
        if needed[i] && !reduced {
            op.args.iter().for_each(|a| needed[*a] = true);
        }
    }
}

/// Loads that several passes need.
fn kept(code: &Code, passes: &[Vec<bool>]) -> Vec<bool> {
    let several = |i: usize| passes.iter().filter(|p| p[i]).count() > 1;
    let is_load = |i: usize| matches!(code.ops[i].action, Action::Load(..)) && !code.ops[i].uniform;
    (0..code.ops.len()).map(|i| is_load(i) && several(i)).collect()
}

/// Whether a load is the same in all rows.
fn is_shared(code: &Code, reg: usize) -> bool {
    let outer = code.nest.lane();
    matches!(code.ops[reg].action, Action::Load(_, _, c) if code.nest.columns[c].strides[..outer].iter().all(|s| *s == 0))
}

/// Words of a thread in these loads.
fn words_kept(code: &Code, kept: &[bool], lanes: usize, chunks: usize) -> usize {
    let of = |i: usize| match code.ops[i].action {
        Action::Load(_, dtype, _) => chunks * words(lanes, dtype),
        _ => 0,
    };
    (0..code.ops.len()).filter(|i| kept[*i]).map(of).sum()
}

/// Writes a nest whose stores are all plain.
pub(super) fn emit(code: &Code, block: usize) -> Piece {
    let mut rows = Rows::new(code, block);
    let (team, int, outer) = (rows.team, code.int, code.nest.lane());
    let count: usize = code.nest.lens[..outer].iter().map(|l| l.size).product();
    let blocks = count.div_ceil(team.teams()).clamp(1, BLOCKS);
    let mut piece = Piece::new(code, blocks);
    let mut t = Text::default();
    t.line(format!("const {int} rows = {};", product(code, 0..outer, None)));
    thread(&mut t, &team);
    t.open(format!(
        "for ({int} base = ({int})(blockIdx.x - first) * {0}; base < rows; base += ({int})blocks * {0})",
        team.teams()
    ));
    let live = open_row(&mut t, code, &team, "rows", 0..outer);
    rows.row(&mut t, live, None);
    t.close();
    piece.body = t.finish();
    piece.shared.floats = rows.floats;
    piece.shared.doubles = rows.doubles;
    piece
}

/// Declares `t`, the thread's position in its team.
pub(super) fn thread(t: &mut Text, team: &Team) {
    if team.teams() == 1 {
        t.line("const unsigned t = threadIdx.x;");
    } else {
        t.line(format!("const unsigned t = threadIdx.x % {};", team.threads));
    }
}

/// Declares the indices of `loops` for the team's row, `base` and more, and the real length of the
/// lane. Teams beyond `end` go along with a row of no length.
pub(super) fn open_row(
    t: &mut Text,
    code: &Code,
    team: &Team,
    end: &str,
    loops: std::ops::Range<usize>,
) -> Option<&'static str> {
    let int = code.int;
    let len = code.nest.lens[code.nest.lane()].text(int);
    if team.teams() == 1 {
        digits(t, code, loops, "base");
        t.line(format!("const {int} length_ = {len};"));
        return None;
    }
    t.line(format!("const {int} row = base + {};", team.index()));
    t.line(format!("const int live = row < {end};"));
    digits(t, code, loops, "live ? row : base");
    t.line(format!("const {int} length_ = live ? {len} : 0;"));
    Some("live")
}

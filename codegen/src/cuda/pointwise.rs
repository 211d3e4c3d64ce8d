//! Nests without reductions: every thread takes a few lanes of a row at a time.

use super::code::Code;
use super::expr::{declare, value};
use super::lanes::{choose, Lanes, Tail};
use super::piece::{digits, product, Piece};
use super::text::Text;

/// Most blocks of a nest; threads then go on with the next lanes.
const BLOCKS: usize = 4096;
/// The same where something is computed once per thread.
const FEW: usize = 1056;

/// Writes the nest for blocks of `block` threads.
pub(super) fn emit(code: &Code, block: usize) -> Piece {
    let lanes = choose(code);
    let lane_loop = &code.nest.lens[code.nest.lane()];
    let outer = code.nest.lane();
    let chunks = lane_loop.size.div_ceil(lanes);
    let items = code.nest.lens[..outer].iter().map(|l| l.size).product::<usize>() * chunks;
    let needed = code.needed(code.stores.iter().map(|s| s.reg));
    let fixed = fixed(code);
    let heavy = (0..code.ops.len()).any(|i| needed[i] && fixed[i] && !code.ops[i].args.is_empty());
    let blocks = items.div_ceil(block).clamp(1, if heavy { FEW } else { BLOCKS });
    let tail = if lane_loop.divides(lanes) { Tail::Full } else { Tail::Ragged };
    let l = Lanes { code, lanes, tail, kept: vec![false; code.ops.len()] };

    let mut piece = Piece::new(code, blocks);
    let int = code.int;
    // A lone loop may differ between nests that are otherwise the same.
    let length = if outer == 0 { piece.bind("length", int, lane_loop.text(int)) } else { lane_loop.text(int) };
    let mut t = Text::default();
    t.line(format!("const {int} length_ = {length};"));
    t.line(format!("const {int} chunks = (length_ + {}) / {lanes};", lanes - 1));
    t.line(format!("const {int} items = {};", product(code, 0..outer, Some("chunks"))));
    // Without entries nothing is read either.
    t.open("if (items > 0)");
    for reg in (0..code.ops.len()).filter(|i| needed[*i] && fixed[*i]) {
        declare(&mut t, code, reg, &value(code, reg, "0", None));
    }
    t.open(format!(
        "for ({int} item = ({int})(blockIdx.x - first) * {block} + threadIdx.x; item < items; item += ({int})blocks * {block})"
    ));
    if outer == 0 {
        t.line(format!("const {int} lane = item * {lanes};"));
    } else {
        t.line(format!("const {int} lane = item % chunks * {lanes};"));
        digits(&mut t, code, 0..outer, "item / chunks");
    }
    l.declare_count(&mut t, "length_");
    let wanted = |i: &usize| needed[*i] && !fixed[*i];
    for reg in (0..code.ops.len()).filter(wanted).filter(|i| code.ops[*i].uniform) {
        declare(&mut t, code, reg, &value(code, reg, "0", None));
    }
    (0..code.ops.len()).filter(|i| needed[*i] && !code.ops[*i].uniform).for_each(|reg| l.load(&mut t, reg));
    (0..code.stores.len()).for_each(|s| l.declare_store(&mut t, s));
    t.open(format!("UNROLL for (int j = 0; j < {lanes}; ++j)"));
    l.compute(&mut t, &needed);
    (0..code.stores.len()).for_each(|s| l.put(&mut t, s));
    t.close();
    (0..code.stores.len()).for_each(|s| l.store(&mut t, s));
    t.close();
    t.close();
    piece.body = t.finish();
    piece
}

/// Registers that no loop changes.
fn fixed(code: &Code) -> Vec<bool> {
    use super::code::Action::*;
    let mut fixed = vec![false; code.ops.len()];
    for (i, op) in code.ops.iter().enumerate() {
        fixed[i] = match op.action {
            Load(_, _, c) | Index(c) | Table(_, c) | Random(_, c) => code.nest.is_fixed(c),
            Const(_) => true,
            Map(_) | Reduce(_) => op.args.iter().all(|a| fixed[*a]),
        };
    }
    fixed
}

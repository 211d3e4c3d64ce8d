//! The loop template: every nest becomes a piece of text with blocks of its own.

use super::code::{Code, Tables};
use super::error::{CodegenError, Site};
use super::piece::{join, Piece, Shared};
use super::text::Text;
use super::workspace::Workspace;
use super::{combine, finish, pointwise, rows, Extents, Parts, Point};
use autoshard_ir::kernel::LoopKernel;

/// Turns nests into entry points: first sums over other rows than the main ones, then the nests,
/// then what finishes sums.
pub(super) fn emit(site: Site, nests: &[LoopKernel], operands: usize, buffers: usize) -> Result<Parts, CodegenError> {
    if nests.is_empty() {
        return Err(site.malformed("no nests"));
    }
    let mut extents = Extents::default();
    let mut tables = Tables::new();
    let mut first: Vec<Code> = vec![];
    let mut main: Vec<Code> = vec![];
    for k in nests {
        let code = Code::new(site, k, operands, buffers, &mut extents, &mut tables)?;
        split(code, &mut first, &mut main);
    }
    let mut workspace = Workspace::default();
    let mut last = vec![];
    let mut points = vec![];
    for mut codes in [first, main] {
        if codes.is_empty() {
            continue;
        }
        let block = codes.iter().map(block).max().unwrap_or(256);
        let mut pieces = vec![];
        for code in &mut codes {
            pieces.push(piece(code, block, &mut workspace, &mut last));
        }
        points.push(point(&pieces, block));
    }
    if !last.is_empty() {
        points.push(point(&last, finish::BLOCK));
    }
    Ok(Parts { extents, tables, workspace: workspace.bytes(), points })
}

/// Stores that combine over other loops than the first such store are nests of their own, which run
/// before an update in place can change what they read.
fn split(code: Code, first: &mut Vec<Code>, main: &mut Vec<Code>) {
    let mut sets: Vec<Vec<usize>> = vec![];
    for s in code.stores.iter().filter(|s| s.combine.is_some()) {
        let set = code.lacks(s);
        if !sets.contains(&set) {
            sets.push(set);
        }
    }
    for set in sets.iter().skip(1) {
        let mut own = code.clone();
        own.stores.retain(|s| s.combine.is_some() && code.lacks(s) == *set);
        first.push(own);
    }
    let mut rest = code.clone();
    rest.stores.retain(|s| s.combine.is_none() || sets.first() == Some(&code.lacks(s)));
    main.push(rest);
}

/// Whether lanes do not depend on each other.
fn is_pointwise(code: &Code) -> bool {
    let per_row =
        code.stores.iter().any(|s| code.nest.lane_stride(s.column) == 0 && code.nest.lens[code.nest.lane()].size != 1);
    !code.reduces() && !code.combines() && !per_row
}

fn block(code: &Code) -> usize {
    if is_pointwise(code) {
        256
    } else {
        rows::preferred_block(code)
    }
}

fn piece(code: &mut Code, block: usize, workspace: &mut Workspace, last: &mut Vec<Piece>) -> Piece {
    if is_pointwise(code) {
        return pointwise::emit(code, block);
    }
    if !code.combines() {
        return rows::emit(code, block);
    }
    let kept = combine::sort(code);
    let (piece, finish) = combine::emit(code, rows::Rows::new(code, block), kept, workspace);
    last.extend(finish);
    piece
}

fn point(pieces: &[Piece], block: usize) -> Point {
    let shared = pieces.iter().fold(Shared::default(), |s, p| s.or(p.shared));
    let mut text = Text::default();
    shared.declare(&mut text);
    let blocks = join(&mut text, pieces);
    Point { body: text.finish(), blocks, block, shared: shared.bytes() }
}

//! The text of one nest within an entry point, and the names that stand for what differs between
//! nests of the same form: nests whose texts are equal share one.

use super::code::Code;
use super::text::Text;
use std::ops::Range;

/// A nest's text. It uses `first` and `blocks` (its range of blocks), `p0`, `p1`, … (its buffers),
/// `workspace`, `s0`, `n0`, … (parts of the split extents) and the names that it binds.
#[derive(Clone, Debug)]
pub(super) struct Piece {
    /// Blocks that work on it.
    pub blocks: usize,
    /// Statements.
    pub body: String,
    /// Name, type and value of what is this nest's own.
    pub bindings: Vec<(String, String, String)>,
    /// Shared memory that it uses.
    pub shared: Shared,
}

/// Arrays in shared memory, by number of elements.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Shared {
    pub floats: usize,
    pub doubles: usize,
    pub ints: usize,
}

impl Shared {
    pub fn or(self, other: Shared) -> Shared {
        Shared {
            floats: self.floats.max(other.floats),
            doubles: self.doubles.max(other.doubles),
            ints: self.ints.max(other.ints),
        }
    }

    /// In bytes; arrays start at multiples of 16.
    pub fn bytes(self) -> usize {
        [self.floats * 4, self.doubles * 8, self.ints * 4].iter().map(|b| b.next_multiple_of(16)).sum()
    }

    /// Declarations.
    pub fn declare(self, text: &mut Text) {
        for (ctype, name, n) in
            [("float", "floats", self.floats), ("double", "doubles", self.doubles), ("unsigned", "ints", self.ints)]
        {
            if n > 0 {
                text.line(format!("SHARED({ctype}, {name}, {n});"));
            }
        }
    }
}

impl Piece {
    /// A piece with the nest's pointers bound.
    pub fn new(code: &Code, blocks: usize) -> Piece {
        let pointer = |(i, b): (usize, &usize)| (format!("p{i}"), "void*".to_string(), format!("b{b}"));
        let bindings = code.pointers.iter().enumerate().map(pointer).collect();
        Piece { blocks, body: String::new(), bindings, shared: Shared::default() }
    }

    /// Binds a name to a value of this nest; returns the name.
    pub fn bind(&mut self, name: &str, ctype: &str, value: impl Into<String>) -> String {
        self.bindings.push((name.to_string(), ctype.to_string(), value.into()));
        name.to_string()
    }

    /// Whether the texts are the same but for what is bound.
    fn shares(&self, other: &Piece) -> bool {
        let names = |p: &Piece| p.bindings.iter().map(|(n, t, _)| (n.clone(), t.clone())).collect::<Vec<_>>();
        self.body == other.body && names(self) == names(other)
    }
}

/// Product of real lengths, in C.
pub(super) fn product(code: &Code, loops: Range<usize>, factor: Option<&str>) -> String {
    let mut terms: Vec<String> = code.nest.lens[loops].iter().map(|l| l.text(code.int)).collect();
    terms.extend(factor.map(str::to_string));
    if terms.is_empty() {
        return format!("({})1", code.int);
    }
    terms.join(" * ")
}

/// Declares the indices of these loops, given their row-major position.
pub(super) fn digits(text: &mut Text, code: &Code, loops: Range<usize>, at: &str) {
    let int = code.int;
    let mut rest = format!("({at})");
    for l in loops.clone().rev() {
        if l == loops.start {
            text.line(format!("const {int} d{l} = {rest};"));
        } else {
            let len = code.nest.lens[l].text(int);
            text.line(format!("const {int} d{l} = {rest} % ({len});"));
            text.line(format!("const {int} q{l} = {rest} / ({len});"));
            rest = format!("q{l}");
        }
    }
}

/// Writes the body of an entry point, and counts its blocks.
pub(super) fn join(text: &mut Text, pieces: &[Piece]) -> usize {
    let mut groups: Vec<Vec<&Piece>> = vec![];
    for p in pieces {
        match groups.iter_mut().find(|g| g[0].shares(p)) {
            Some(g) => g.push(p),
            None => groups.push(vec![p]),
        }
    }
    let mut first = 0;
    let alone = groups.len() == 1;
    for group in &groups {
        let blocks: usize = group.iter().map(|p| p.blocks).sum();
        match (alone, first) {
            (true, _) => text.open(""),
            (_, 0) => text.open(format!("if (blockIdx.x < {blocks})")),
            _ => text.open(format!("else if (blockIdx.x < {})", first + blocks)),
        }
        if let [piece] = group[..] {
            text.line(format!("const unsigned first = {first}, blocks = {};", piece.blocks));
            for (name, ctype, value) in &piece.bindings {
                text.line(format!("{} {name} = {value};", constant(ctype)));
            }
        } else {
            text.line("unsigned first, blocks;");
            for (name, ctype, _) in &group[0].bindings {
                text.line(format!("{ctype} {name};"));
            }
            choose(text, group, first);
        }
        text.line(&group[0].body);
        text.close();
        first += blocks;
    }
    first
}

fn constant(ctype: &str) -> String {
    if ctype.ends_with('*') {
        format!("{ctype} const")
    } else {
        format!("const {ctype}")
    }
}

/// Binds the nest whose blocks these are, by halves.
fn choose(text: &mut Text, group: &[&Piece], first: usize) {
    if let [piece] = group {
        text.line(format!("first = {first}, blocks = {};", piece.blocks));
        for (name, _, value) in &piece.bindings {
            text.line(format!("{name} = {value};"));
        }
        return;
    }
    let (low, high) = group.split_at(group.len() / 2);
    let middle = first + low.iter().map(|p| p.blocks).sum::<usize>();
    text.open(format!("if (blockIdx.x < {middle})"));
    choose(text, low, first);
    text.close();
    text.open("else");
    choose(text, high, middle);
    text.close();
}

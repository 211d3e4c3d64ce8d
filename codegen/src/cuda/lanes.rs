//! A thread's lanes: how many it has, and how operands and results move between memory and words.

use super::code::{Action, Code, Out};
use super::expr::{convert, declare, register, suffix, value};
use super::text::Text;
use autoshard_ir::core::DType;

/// Most words that a thread's operands and results take together.
const WORDS: usize = 96;

/// Words of `lanes` elements.
pub(super) fn words(lanes: usize, dtype: DType) -> usize {
    (lanes * dtype.bytes()).div_ceil(4)
}

/// Whether `lanes` elements move as one or more whole vectors. Addresses are known but for the
/// indices, and buffers start at multiples of 64 bytes.
pub(super) fn is_vector(code: &Code, column: usize, dtype: DType, lanes: usize) -> bool {
    let bytes = lanes * dtype.bytes();
    if lanes < 2 || code.nest.lane_stride(column) != 1 || !(bytes == 8 || bytes.is_multiple_of(16)) {
        return false;
    }
    let unit = bytes.min(16) / dtype.bytes();
    let c = &code.nest.columns[column];
    let outer = &c.strides[..code.nest.lane()];
    c.base.is_multiple_of(unit) && outer.iter().all(|s| s.is_multiple_of(unit))
}

/// Operands and results that move along the lane.
fn accesses(code: &Code) -> Vec<(usize, DType)> {
    let loads = code.ops.iter().filter_map(|o| match o.action {
        Action::Load(_, dtype, c) if !o.uniform => Some((c, dtype)),
        _ => None,
    });
    let stores = code.stores.iter().filter(|s| s.combine.is_none()).map(|s| (s.column, s.dtype));
    loads.chain(stores.filter(|(c, _)| code.nest.lane_stride(*c) > 0)).collect()
}

/// Lanes per thread: as many as a vector of the smallest element type holds, as long as they help
/// and fit.
pub(super) fn choose(code: &Code) -> usize {
    let accesses = accesses(code);
    let size = code.nest.lens[code.nest.lane()].size;
    let mut best = (0, 1);
    for lanes in [2, 4, 8] {
        let total: usize = accesses.iter().map(|(_, t)| words(lanes, *t)).sum();
        let narrow = accesses.iter().map(|(_, t)| lanes * t.bytes()).min().unwrap_or(0);
        let vectors = accesses.iter().filter(|(c, t)| is_vector(code, *c, *t, lanes)).count();
        if total <= WORDS && narrow <= 16 && lanes <= size && vectors > 0 && vectors >= best.0 {
            best = (vectors, lanes);
        }
    }
    best.1
}

/// Pieces of text that walk a thread's lanes. In C, `lane` is the first lane, `n` how many of them
/// are real, if they can be fewer.
pub(super) struct Lanes<'a> {
    /// Nest.
    pub code: &'a Code,
    /// Lanes of a thread.
    pub lanes: usize,
    /// Whether some threads have fewer.
    pub tail: Tail,
    /// Registers whose words are kept between passes, in arrays with a place for each chunk.
    pub kept: Vec<bool>,
}

/// Which numbers of real lanes a thread can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tail {
    /// All.
    Full,
    /// All or none.
    Whole,
    /// Any.
    Ragged,
}

impl Lanes<'_> {
    fn count(&self) -> String {
        match self.tail {
            Tail::Full => self.lanes.to_string(),
            Tail::Whole | Tail::Ragged => "n".to_string(),
        }
    }

    /// Condition under which lane `j` is real, unless it always is.
    pub fn guard(&self) -> Option<&'static str> {
        (self.tail != Tail::Full).then_some("j < n")
    }

    /// Declares `n`, given the end of the lanes in C.
    pub fn declare_count(&self, text: &mut Text, end: &str) {
        let lanes = self.lanes;
        match self.tail {
            Tail::Full => {}
            Tail::Whole => text.line(format!("const int n = lane < {end} ? {lanes} : 0;")),
            Tail::Ragged => {
                text.line(format!(
                    "const int n = lane >= {end} ? 0 : {end} - lane < {lanes} ? (int)({end} - lane) : {lanes};"
                ));
            }
        }
    }

    /// First word of a register in its array.
    fn place(&self, reg: usize, words: usize) -> String {
        if self.kept[reg] {
            format!("x{reg} + c * {words}")
        } else {
            format!("x{reg}")
        }
    }

    /// Declares and fills the words of these loads.
    pub fn load(&self, text: &mut Text, reg: usize) {
        let Action::Load(pointer, dtype, column) = self.code.ops[reg].action else { return };
        let w = words(self.lanes, dtype);
        if !self.kept[reg] {
            text.line(format!("unsigned x{reg}[{w}];"));
        }
        let to = self.place(reg, w);
        let at = self.code.nest.text(column, "lane", self.code.int);
        let from = format!("(const {}*)p{pointer} + ({at})", memory_type(dtype));
        let (bytes, step, count) = (dtype.bytes(), self.code.nest.lane_stride(column), self.count());
        let single = format!("load_{bytes}({to}, {from}, {step}, {}, {count});", self.lanes);
        if !is_vector(self.code, column, dtype, self.lanes) {
            text.line(single);
            return;
        }
        let whole = format!("load_words({to}, {from}, {w});");
        let other = if self.tail == Tail::Whole { format!("zero_words({to}, {w});") } else { single };
        self.either(text, &whole, &other);
    }

    fn either(&self, text: &mut Text, whole: &str, other: &str) {
        if self.tail == Tail::Full {
            text.line(whole);
            return;
        }
        text.line(format!("if (n == {}) {whole}", self.lanes));
        if !other.is_empty() {
            text.line(format!("else {other}"));
        }
    }

    /// Declares vector registers of lane `j`.
    pub fn compute(&self, text: &mut Text, needed: &[bool]) {
        for (reg, op) in self.code.ops.iter().enumerate().filter(|(i, o)| needed[*i] && !o.uniform) {
            let guard = self.guard();
            let v = match op.action {
                Action::Load(_, dtype, _) => {
                    let at = self.place(reg, words(self.lanes, dtype));
                    convert(&format!("lane_{}({at}, j)", suffix(dtype)), dtype, op.dtype)
                }
                _ => value(self.code, reg, "(lane + j)", guard),
            };
            declare(text, self.code, reg, &v);
        }
    }

    /// Declares the words of a store.
    pub fn declare_store(&self, text: &mut Text, store: usize) {
        let s = &self.code.stores[store];
        text.line(format!("unsigned y{store}[{}];", words(self.lanes, s.dtype)));
    }

    /// Puts lane `j` of a store into its words.
    pub fn put(&self, text: &mut Text, store: usize) {
        let s = &self.code.stores[store];
        text.line(format!("{};", put(self.code, s, &format!("y{store}"))));
    }

    /// Writes a store's words.
    pub fn store(&self, text: &mut Text, store: usize) {
        let s = &self.code.stores[store];
        let at = self.code.nest.text(s.column, "lane", self.code.int);
        let to = format!("({}*)p{} + ({at})", memory_type(s.dtype), s.pointer);
        let (bytes, step) = (s.dtype.bytes(), self.code.nest.lane_stride(s.column));
        let single = format!("store_{bytes}({to}, y{store}, {step}, {}, {});", self.lanes, self.count());
        if !is_vector(self.code, s.column, s.dtype, self.lanes) {
            text.line(single);
            return;
        }
        let whole = format!("store_words({to}, y{store}, {});", words(self.lanes, s.dtype));
        let other = if self.tail == Tail::Whole { String::new() } else { single };
        self.either(text, &whole, &other);
    }
}

fn put(code: &Code, s: &Out, words: &str) -> String {
    let (from, reg) = (code.ops[s.reg].dtype, register(code, s.reg));
    match s.dtype {
        DType::Bf16 if from == DType::Bf16 => format!("put_exact_bf16({words}, j, {reg})"),
        DType::Bf16 => format!("put_bf16({words}, j, (float){reg})"),
        other => format!("put_{}({words}, j, {})", suffix(other), convert(&reg, from, other)),
    }
}

/// A statement that writes one element.
pub(super) fn write(dtype: DType, pointer: usize, at: &str, e: &str, from: DType) -> String {
    let e = match dtype {
        DType::Bf16 => convert(e, from, DType::F32),
        other => convert(e, from, other),
    };
    format!("write_{}(p{pointer}, {at}, {e});", suffix(dtype))
}

/// C type of elements in memory.
pub(super) fn memory_type(dtype: DType) -> &'static str {
    match dtype {
        DType::F64 => "double",
        DType::F32 => "float",
        DType::Bf16 => "unsigned short",
        DType::I32 => "int",
    }
}

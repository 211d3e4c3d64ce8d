//! A loop nest's instructions, resolved: columns instead of views, uniform registers known, and
//! the pass over the lane in which each register can be computed.

use super::error::{CodegenError, Site};
use super::nest::{Column, Len, Nest};
use super::Extents;
use autoshard_ir::core::{BinaryMonoid, DType, Scalar};
use autoshard_ir::kernel::{LoopKernel, LoopOp, View};

/// What an instruction does.
#[derive(Clone, Debug)]
pub(super) enum Action {
    /// Reads the nest's pointer at a column.
    Load(usize, DType, usize),
    /// The value of a column.
    Index(usize),
    /// Table at a column.
    Table(usize, usize),
    /// The random number that a column counts.
    Random(u64, usize),
    /// A number.
    Const(f64),
    /// Scalar function.
    Map(Scalar),
    /// Combination over the lane.
    Reduce(BinaryMonoid),
}

/// One instruction.
#[derive(Clone, Debug)]
pub(super) struct Op {
    /// What it does.
    pub action: Action,
    /// Registers it reads.
    pub args: Vec<usize>,
    /// Type that its result is rounded to.
    pub dtype: DType,
    /// One number per row.
    pub uniform: bool,
    /// Pass over the lane before which a uniform is known, or in which a vector can be computed.
    pub pass: usize,
}

/// One store.
#[derive(Clone, Debug)]
pub(super) struct Out {
    /// Pointer of the nest.
    pub pointer: usize,
    /// Element type.
    pub dtype: DType,
    /// Address.
    pub column: usize,
    /// Register.
    pub reg: usize,
    /// Combination over the outer loops that the address lacks.
    pub combine: Option<BinaryMonoid>,
}

/// A nest ready to be written.
#[derive(Clone, Debug)]
pub(super) struct Code {
    /// Instructions.
    pub ops: Vec<Op>,
    /// Stores.
    pub stores: Vec<Out>,
    /// Loops and columns.
    pub nest: Nest,
    /// Buffers that the nest's pointers stand for.
    pub pointers: Vec<usize>,
    /// Type of addresses and counts: `unsigned` or `unsigned long long`.
    pub int: &'static str,
}

/// Tables of a kernel, each with its type.
pub(super) type Tables = Vec<(DType, Vec<f64>)>;

/// Longest table.
const TABLE: usize = 1 << 16;

impl Code {
    /// Resolves a nest; checks all that does not depend on buffer sizes.
    pub fn new(
        site: Site,
        k: &LoopKernel,
        operands: usize,
        buffers: usize,
        extents: &mut Extents,
        tables: &mut Tables,
    ) -> Result<Code, CodegenError> {
        if k.loops.is_empty() {
            return Err(site.malformed("a loop kernel without loops"));
        }
        let mut b = Builder { site, k, extents, tables, columns: vec![], pointers: vec![], ids: vec![] };
        b.ids = k.loops.iter().map(|e| b.extents.id(e)).collect();
        let lens = k.loops.iter().zip(&b.ids);
        let lens =
            lens.map(|(e, id)| id.map_or(Len::whole(e.size), |i| Len { size: e.size, extent: Some(i), times: 1 }));
        let lens = lens.collect();
        let mut ops = vec![];
        for (i, instr) in k.instrs.iter().enumerate() {
            let arity = match &instr.op {
                LoopOp::Map(f) => f.arity(),
                LoopOp::Reduce(_) => 1,
                _ => 0,
            };
            if instr.args.len() != arity || instr.args.iter().any(|a| *a >= i) {
                return Err(site.malformed(format!("instruction {i} ({:?}) with arguments {:?}", instr.op, instr.args)));
            }
            let action = b.action(&instr.op, instr.dtype, operands)?;
            ops.push(Op { action, args: instr.args.clone(), dtype: instr.dtype, uniform: false, pass: 0 });
        }
        let mut stores = vec![];
        for s in &k.stores {
            if s.reg >= ops.len() || s.view.buffer < operands || s.view.buffer >= buffers {
                return Err(site.malformed(format!("store of register {} to buffer {}", s.reg, s.view.buffer)));
            }
            let (pointer, column) = b.view(&s.view)?;
            stores.push(Out { pointer, dtype: s.view.dtype, column, reg: s.reg, combine: s.combine });
        }
        let (columns, pointers) = (b.columns, b.pointers);
        let mut code = Code { ops, stores, nest: Nest { lens, columns }, pointers, int: "unsigned" };
        code.mark();
        code.simplify_stores();
        code.check_stores(site)?;
        code.reshape();
        code.mark();
        code.choose_int(site, extents)?;
        Ok(code)
    }

    /// Whether some instruction or store needs the lane as it is.
    pub fn reduces(&self) -> bool {
        self.ops.iter().any(|o| matches!(o.action, Action::Reduce(_)))
    }

    /// Whether some store combines.
    pub fn combines(&self) -> bool {
        self.stores.iter().any(|s| s.combine.is_some())
    }

    /// Number of passes over the lane that reductions need.
    pub fn passes(&self) -> usize {
        let of = |o: &Op| if matches!(o.action, Action::Reduce(_)) { o.pass } else { 0 };
        self.ops.iter().map(of).max().unwrap_or(0)
    }

    /// Marks uniform registers and passes.
    fn mark(&mut self) {
        for i in 0..self.ops.len() {
            let op = &self.ops[i];
            let args = op.args.iter().map(|a| self.ops[*a].pass).max().unwrap_or(0);
            let (uniform, pass) = match op.action {
                Action::Load(_, _, c) | Action::Index(c) | Action::Table(_, c) | Action::Random(_, c) => {
                    (self.nest.lane_stride(c) == 0, 0)
                }
                Action::Const(_) => (true, 0),
                Action::Map(_) => (op.args.iter().all(|a| self.ops[*a].uniform), args),
                Action::Reduce(_) => (true, args + usize::from(!self.ops[op.args[0]].uniform)),
            };
            self.ops[i].uniform = uniform;
            self.ops[i].pass = pass;
        }
    }

    /// Whether the loop can have more or less than one entry.
    fn counts(&self, l: usize) -> bool {
        self.nest.lens[l] != Len::whole(1)
    }

    /// Outer loops that the store's address lacks.
    pub fn lacks(&self, store: &Out) -> Vec<usize> {
        let strides = &self.nest.columns[store.column].strides;
        (0..self.nest.lane()).filter(|l| self.counts(*l) && strides[*l] == 0).collect()
    }

    /// A combining store that lacks no outer loop is a reduction of each row, or none at all.
    fn simplify_stores(&mut self) {
        for i in 0..self.stores.len() {
            let s = &self.stores[i];
            let Some(m) = s.combine else { continue };
            if !self.lacks(s).is_empty() {
                continue;
            }
            let (reg, per_row) = (s.reg, self.nest.lane_stride(s.column) == 0);
            if per_row && !self.ops[reg].uniform {
                // Sums are rounded once, by the store.
                let dtype = match self.ops[reg].dtype {
                    DType::F32 | DType::Bf16 => DType::F32,
                    DType::F64 | DType::I32 => DType::F64,
                };
                let pass = self.ops[reg].pass + 1;
                self.ops.push(Op { action: Action::Reduce(m), args: vec![reg], dtype, uniform: true, pass });
                self.stores[i].reg = self.ops.len() - 1;
            }
            self.stores[i].combine = None;
        }
    }

    /// Every entry of the loops has an element of its own in a plain store, except that a uniform
    /// needs none along the lane.
    fn check_stores(&self, site: Site) -> Result<(), CodegenError> {
        for s in self.stores.iter().filter(|s| s.combine.is_none()) {
            let strides = &self.nest.columns[s.column].strides;
            let loops = self.nest.lane() + usize::from(!self.ops[s.reg].uniform);
            if (0..loops).any(|l| self.nest.lens[l].size > 1 && strides[l] == 0) {
                return Err(
                    site.malformed(format!("the store of register {} lacks a loop but does not combine", s.reg))
                );
            }
        }
        Ok(())
    }

    fn reshape(&mut self) {
        let (reduces, combines) = (self.reduces(), self.combines());
        self.nest.drop_single(reduces || combines);
        // A uniform that is combined is counted once a row: rows stay what they are.
        let per_row = |s: &Out| s.combine.is_some() && self.nest.lane_stride(s.column) == 0;
        let lane_too = !reduces && !self.stores.iter().any(per_row);
        self.nest.merge(lane_too);
    }

    fn choose_int(&mut self, site: Site, extents: &Extents) -> Result<(), CodegenError> {
        let globals = extents.globals();
        let mut wide = false;
        for c in 0..self.nest.columns.len() {
            let last = self.nest.largest(c, &globals);
            let last = last.filter(|l| *l <= isize::MAX as usize);
            let last = last.ok_or_else(|| site.malformed("an address that overflows"))?;
            wide |= last >= 1 << 31;
        }
        let entries = self.nest.lens.iter().try_fold(1usize, |n, l| n.checked_mul(l.size.max(1)));
        let entries = entries.filter(|n| *n <= isize::MAX as usize / 64);
        let entries = entries.ok_or_else(|| site.malformed("more entries than can be counted"))?;
        if wide || entries >= 1 << 31 {
            self.int = "unsigned long long";
        }
        Ok(())
    }

    /// Registers that these need, themselves included.
    pub fn needed(&self, roots: impl Iterator<Item = usize>) -> Vec<bool> {
        let mut needed = vec![false; self.ops.len()];
        roots.for_each(|r| needed[r] = true);
        for i in (0..self.ops.len()).rev() {
            if needed[i] {
                self.ops[i].args.iter().for_each(|a| needed[*a] = true);
            }
        }
        needed
    }
}

struct Builder<'a> {
    site: Site<'a>,
    k: &'a LoopKernel,
    extents: &'a mut Extents,
    tables: &'a mut Tables,
    columns: Vec<Column>,
    pointers: Vec<usize>,
    /// Split extent of each loop.
    ids: Vec<Option<usize>>,
}

impl Builder<'_> {
    fn column(&mut self, base: usize, starts: Vec<(usize, usize)>, strides: Vec<usize>) -> usize {
        self.columns.push(Column { base, starts, strides });
        self.columns.len() - 1
    }

    /// The global index of a loop.
    fn index(&mut self, l: usize) -> Result<usize, CodegenError> {
        let id = *self.ids.get(l).ok_or_else(|| self.site.malformed(format!("no loop {l}")))?;
        let unit = (0..self.ids.len()).map(|i| usize::from(i == l)).collect();
        Ok(self.column(0, id.map(|e| (1, e)).into_iter().collect(), unit))
    }

    fn view(&mut self, view: &View) -> Result<(usize, usize), CodegenError> {
        if view.strides.len() != self.k.loops.len() {
            return Err(self.site.malformed(format!("strides {:?} do not fit the loops", view.strides)));
        }
        let pointer = self.pointers.iter().position(|b| *b == view.buffer).unwrap_or_else(|| {
            self.pointers.push(view.buffer);
            self.pointers.len() - 1
        });
        Ok((pointer, self.column(view.offset, vec![], view.strides.clone())))
    }

    fn action(&mut self, op: &LoopOp, dtype: DType, operands: usize) -> Result<Action, CodegenError> {
        Ok(match op {
            LoopOp::Load(view) if view.buffer >= operands => {
                return Err(self.site.malformed(format!("load from buffer {}, a result", view.buffer)));
            }
            LoopOp::Load(view) => {
                let (pointer, column) = self.view(view)?;
                Action::Load(pointer, view.dtype, column)
            }
            LoopOp::Map(f) => Action::Map(*f),
            LoopOp::Const(x) => Action::Const(*x),
            LoopOp::Reduce(m) => Action::Reduce(*m),
            LoopOp::Index(l) => Action::Index(self.index(*l)?),
            LoopOp::Table(l, values) => {
                let column = self.index(*l)?;
                let global = self.k.loops[*l].global;
                if values.len() < global || values.is_empty() {
                    return Err(self.site.malformed(format!("a table of {} numbers is too short", values.len())));
                }
                if values.len() > TABLE {
                    return Err(self.site.unsupported(format!("a table of {} numbers", values.len())));
                }
                let table = (dtype, values.clone());
                let same = |t: &(DType, Vec<f64>)| {
                    t.0 == dtype
                        && t.1.len() == values.len()
                        && t.1.iter().zip(values).all(|(a, b)| a.to_bits() == b.to_bits())
                };
                let at = self.tables.iter().position(same).unwrap_or_else(|| {
                    self.tables.push(table);
                    self.tables.len() - 1
                });
                Action::Table(at, column)
            }
            LoopOp::Random(key, strides) => {
                if strides.len() != self.ids.len() {
                    return Err(self.site.malformed("random strides do not fit the loops"));
                }
                let starts = strides.iter().zip(&self.ids).filter_map(|(s, id)| id.map(|e| (*s, e)));
                let starts = starts.filter(|(s, _)| *s > 0).collect();
                Action::Random(*key, self.column(0, starts, strides.clone()))
            }
        })
    }
}

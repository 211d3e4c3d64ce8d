//! A loop kernel's instructions, resolved for execution: sources point at memory and columns,
//! registers that are the same all along the lane are known, vectors have slots in scratch.

use super::nest::{Column, Nest};
use crate::cpu::{KernelError, Range, Slot, Task};
use autoshard_ir::core::{BinaryMonoid, DType, Scalar};
use autoshard_ir::kernel::{KernelBody, LoopKernel, LoopOp, View};

/// What an instruction does.
#[derive(Clone, Copy, Debug)]
pub(super) enum Action {
    /// Reads memory at a column.
    Load(Slot, DType, usize),
    /// The value of a column.
    Index(usize),
    /// A table of the code, at a column.
    Table(usize, usize),
    /// The random number that a column counts.
    Random(u64, usize),
    /// A number.
    Const(f64),
    /// Scalar function.
    Map(Scalar),
    /// The argument itself.
    Same,
    /// Combination over the lane.
    Reduce(BinaryMonoid),
    /// One where a column, which counts lanes, equals the uniform argument; zero elsewhere.
    OneHot(usize),
    /// The second argument's lane where a column equals the first, a uniform; zero if there is none.
    Pick(usize),
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
    /// Whether rounding can change anything.
    pub round: bool,
    /// One number per row.
    pub uniform: bool,
    /// Where a vector lives in scratch, if it is not the operand's own memory.
    pub slot: Option<usize>,
    /// Whether a store depends on it.
    pub used: bool,
}

/// One store.
#[derive(Clone, Copy, Debug)]
pub(super) struct Out {
    /// Result.
    pub to: Slot,
    /// Its element type.
    pub dtype: DType,
    /// Address.
    pub column: usize,
    /// Register.
    pub reg: usize,
    /// Combination over the loops that the address lacks.
    pub combine: Option<BinaryMonoid>,
}

/// A nest ready to run.
#[derive(Debug)]
pub(super) struct Code {
    /// Instructions.
    pub ops: Vec<Op>,
    /// Stores.
    pub stores: Vec<Out>,
    /// Numbers per index.
    pub tables: Vec<Vec<f64>>,
    /// Loops.
    pub nest: Nest,
    /// f64 arithmetic.
    pub double: bool,
    /// Number of scratch vectors.
    pub slots: usize,
    /// Some instruction needs the whole lane at once.
    pub reduces: bool,
    /// Per column, its strides over the loops before reshaping.
    pub strides: Vec<Vec<usize>>,
}

impl Code {
    /// Resolves a nest for the rank of `task`; checks every view. Its first loops run over `lens`
    /// entries only, from the first one on.
    pub fn new(task: &Task, k: &LoopKernel, lens: &[usize]) -> Result<Code, KernelError> {
        let ranges: Vec<Range> = k.loops.iter().map(|e| task.range(e)).collect();
        if ranges.is_empty() {
            return Err(task.malformed("a loop kernel without loops"));
        }
        let (mut columns, mut tables, mut ops) = (vec![], vec![], vec![]);
        for (i, instr) in k.instrs.iter().enumerate() {
            check_args(task, i, &instr.op, &instr.args)?;
            let action = resolve(task, &instr.op, &ranges, &mut columns, &mut tables)?;
            let (args, dtype) = (instr.args.clone(), instr.dtype);
            ops.push(Op { action, args, dtype, round: true, uniform: false, slot: None, used: true });
        }
        let stores = stores(task, k, &ranges, &mut columns)?;
        let reduces = ops.iter().any(|o| matches!(o.action, Action::Reduce(_)));
        let combining: Vec<usize> = stores.iter().filter(|s| s.combine.is_some()).map(|s| s.column).collect();
        let real = ranges.iter().map(|r| r.len);
        let strides = columns.iter().map(|c: &Column| c.strides.clone()).collect();
        let lens = lens.iter().copied().chain(real.skip(lens.len())).collect();
        let nest = Nest::new(lens, columns);
        let mut code = Code { ops, stores, tables, nest, double: false, slots: 0, reduces, strides };
        code.mark_uniform();
        code.check_stores(task)?;
        let addresses: Vec<usize> = code.stores.iter().map(|s| s.column).collect();
        code.nest.reshape(reduces, &combining, &addresses);
        code.mark_uniform();
        // A uniform in an f64 result passes through a vector, too.
        code.double = code.ops.iter().any(|o| !o.uniform && o.dtype == DType::F64)
            || code.stores.iter().any(|s| s.dtype == DType::F64);
        code.mark_rounding();
        code.find_one_hot();
        code.find_picks();
        code.mark_used();
        code.assign_slots();
        Ok(code)
    }

    /// Every entry of the loops must have an element of its own in a plain store, except that a
    /// uniform needs none along the lane.
    fn check_stores(&self, task: &Task) -> Result<(), KernelError> {
        let lane = self.nest.outer().len();
        for s in self.stores.iter().filter(|s| s.combine.is_none()) {
            let lacks = |l: &usize| self.nest.lens[*l] > 1 && self.nest.columns[s.column].strides[*l] == 0;
            let loops = lane + usize::from(!self.ops[s.reg].uniform);
            if (0..loops).any(|l| lacks(&l)) {
                return Err(
                    task.malformed(format!("the store of register {} lacks a loop but does not combine", s.reg))
                );
            }
        }
        Ok(())
    }

    /// The type of vectors.
    fn vector_type(&self) -> DType {
        if self.double {
            DType::F64
        } else {
            DType::F32
        }
    }

    fn mark_uniform(&mut self) {
        for i in 0..self.ops.len() {
            let op = &self.ops[i];
            self.ops[i].uniform = match op.action {
                Action::Load(_, _, c) | Action::Index(c) | Action::Table(_, c) | Action::Random(_, c) => {
                    self.nest.is_uniform(c)
                }
                Action::Const(_) | Action::Reduce(_) => true,
                Action::OneHot(_) => false,
                Action::Pick(_) => true,
                Action::Map(_) | Action::Same => op.args.iter().all(|a| self.ops[*a].uniform),
            };
        }
    }

    /// Which vectors need rounding after their instruction, and which are their argument.
    fn mark_rounding(&mut self) {
        let vector = self.vector_type();
        for i in 0..self.ops.len() {
            let op = &self.ops[i];
            let same = match op.action {
                Action::Load(_, stored, _) => stored == op.dtype,
                Action::Map(Scalar::Identity) => self.ops[op.args[0]].dtype == op.dtype,
                _ => false,
            };
            let round = !same && op.dtype != vector;
            let copies = matches!(op.action, Action::Map(Scalar::Identity)) && !round && !op.uniform;
            // A uniform argument still has to be spread: only vectors are shared.
            if copies && !self.ops[op.args[0]].uniform {
                self.ops[i].action = Action::Same;
            }
            self.ops[i].round = round;
        }
    }

    /// Comparisons of the lane's index with a uniform become one-hot vectors.
    fn find_one_hot(&mut self) {
        // Indices beyond these are not exact in f32.
        const EXACT: usize = 1 << 24;
        for i in 0..self.ops.len() {
            let op = &self.ops[i];
            let (Action::Map(Scalar::Equal), [a, b], false) = (op.action, &op.args[..], op.uniform) else { continue };
            for (index, other) in [(*a, *b), (*b, *a)] {
                let Action::Index(c) = self.ops[self.root(index)].action else { continue };
                let n = &self.nest;
                let small = n.columns[c].strides.iter().zip(&n.lens).map(|(s, l)| s * l).sum::<usize>();
                let exact = small + n.columns[c].base < EXACT;
                if exact && n.pair == 1 && n.lane_stride(c) == 1 && self.ops[other].uniform {
                    (self.ops[i].action, self.ops[i].args) = (Action::OneHot(c), vec![other]);
                    break;
                }
            }
        }
    }

    /// A sum over the lane of what a one-hot vector selects is one element.
    fn find_picks(&mut self) {
        for i in 0..self.ops.len() {
            let Action::Reduce(BinaryMonoid::Sum) = self.ops[i].action else { continue };
            let select = &self.ops[self.root(self.ops[i].args[0])];
            let (Action::Map(Scalar::Select), [hit, x, none], false) = (select.action, &select.args[..], select.round)
            else {
                continue;
            };
            let hit = &self.ops[self.root(*hit)];
            if let (Action::OneHot(c), Some(0.0), false) = (hit.action, self.constant(*none), self.ops[*x].uniform) {
                let args = vec![hit.args[0], *x];
                (self.ops[i].action, self.ops[i].args) = (Action::Pick(c), args);
            }
        }
    }

    /// The number that a register always holds.
    fn constant(&self, mut reg: usize) -> Option<f64> {
        loop {
            match self.ops[reg].action {
                Action::Const(x) => return Some(x),
                Action::Same | Action::Map(Scalar::Identity) => reg = self.ops[reg].args[0],
                _ => return None,
            }
        }
    }

    fn mark_used(&mut self) {
        let mut used = vec![false; self.ops.len()];
        self.stores.iter().for_each(|s| used[s.reg] = true);
        for i in (0..self.ops.len()).rev() {
            self.ops[i].used = used[i];
            if used[i] {
                self.ops[i].args.iter().for_each(|a| used[*a] = true);
            }
        }
    }

    /// The register whose vector this one is.
    fn root(&self, mut reg: usize) -> usize {
        while matches!(self.ops[reg].action, Action::Same) {
            reg = self.ops[reg].args[0];
        }
        reg
    }

    /// Whether a load can be used where it lies: contiguous, of the compute type, and not stored
    /// (a store may overwrite the operand before another store reads it).
    fn is_direct(&self, reg: usize) -> bool {
        let Action::Load(_, stored, c) = self.ops[reg].action else {
            return false;
        };
        let n = &self.nest;
        let paired = n.pair == 1 || n.pair_strides[c] == n.inner();
        let is_stored = self.stores.iter().any(|s| self.root(s.reg) == reg);
        stored == self.vector_type() && !self.ops[reg].round && n.lane_stride(c) == 1 && paired && !is_stored
    }

    /// Gives vectors slots; a slot is free again after its vector's last use.
    fn assign_slots(&mut self) {
        let mut last = vec![0; self.ops.len()];
        for i in (0..self.ops.len()).filter(|i| self.ops[*i].used) {
            for a in &self.ops[i].args {
                last[self.root(*a)] = i;
            }
        }
        for s in &self.stores {
            last[self.root(s.reg)] = usize::MAX;
        }
        let mut free = vec![];
        for i in 0..self.ops.len() {
            let op = &self.ops[i];
            if op.used && !op.uniform && !matches!(op.action, Action::Same) && !self.is_direct(i) {
                self.ops[i].slot = Some(free.pop().unwrap_or_else(|| {
                    self.slots += 1;
                    self.slots - 1
                }));
            }
            // After the result has its slot: it is never that of an argument. A result that nobody
            // reads dies at once.
            let dies = |(reg, at): &(usize, &usize)| **at == i || (*reg == i && **at < i);
            let dead = last[..=i].iter().enumerate().filter(dies);
            free.extend(dead.filter_map(|(reg, _)| self.ops[reg].slot));
        }
    }
}

fn check_args(task: &Task, at: usize, op: &LoopOp, args: &[usize]) -> Result<(), KernelError> {
    let arity = match op {
        LoopOp::Map(f) => f.arity(),
        LoopOp::Reduce(_) => 1,
        _ => 0,
    };
    if args.len() != arity || args.iter().any(|a| *a >= at) {
        return Err(task.malformed(format!("instruction {at} ({op:?}) with arguments {args:?}")));
    }
    Ok(())
}

fn resolve(
    task: &Task,
    op: &LoopOp,
    ranges: &[Range],
    columns: &mut Vec<Column>,
    tables: &mut Vec<Vec<f64>>,
) -> Result<Action, KernelError> {
    let start = |l: usize| ranges.get(l).map(|r| r.start);
    let missing = |l: usize| task.malformed(format!("no loop {l}"));
    let mut column = |base: usize, strides: Vec<usize>| {
        columns.push(Column { base, strides });
        columns.len() - 1
    };
    let unit = |l: usize| (0..ranges.len()).map(|i| usize::from(i == l)).collect::<Vec<_>>();
    Ok(match op {
        LoopOp::Load(view) => {
            // What follows a product reads its results.
            if view.buffer >= task.kernel.operands && !matches!(task.kernel.body, KernelBody::Gemm(_)) {
                return Err(task.malformed(format!("load from buffer {}, a result", view.buffer)));
            }
            let p = check_view(task, view, ranges)?;
            Action::Load(p, view.dtype, column(view.offset, view.strides.clone()))
        }
        LoopOp::Map(f) => Action::Map(*f),
        LoopOp::Const(x) => Action::Const(*x),
        LoopOp::Reduce(m) => Action::Reduce(*m),
        LoopOp::Index(l) => {
            let base = start(*l).ok_or_else(|| missing(*l))?;
            Action::Index(column(base, unit(*l)))
        }
        LoopOp::Table(l, values) => {
            let range = ranges.get(*l).ok_or_else(|| missing(*l))?;
            if range.len > 0 && range.start + range.len > values.len() {
                return Err(task.malformed(format!("a table of {} numbers is too short", values.len())));
            }
            tables.push(values.clone());
            Action::Table(tables.len() - 1, column(range.start, unit(*l)))
        }
        LoopOp::Random(key, strides) => {
            if strides.len() != ranges.len() {
                return Err(task.malformed("random strides do not fit the loops"));
            }
            let last = ranges
                .iter()
                .zip(strides)
                .try_fold(0usize, |n, (r, s)| n.checked_add((r.start + r.len).checked_mul(*s)?));
            last.ok_or_else(|| task.malformed(format!("random strides {strides:?} overflow")))?;
            let base = ranges.iter().zip(strides).map(|(r, s)| r.start * s).sum();
            Action::Random(*key, column(base, strides.clone()))
        }
    })
}

fn check_view(task: &Task, view: &View, ranges: &[Range]) -> Result<Slot, KernelError> {
    if view.strides.len() != ranges.len() {
        return Err(task.malformed(format!("strides {:?} do not fit the loops", view.strides)));
    }
    // A loop that does not move the view does not make it empty: sums over nothing are still
    // written, next to uniforms that are read.
    let loops = ranges.iter().zip(&view.strides).map(|(r, s)| (if *s == 0 { 1 } else { r.len }, *s));
    task.check(view.buffer, view.dtype, view.offset, loops)
}

fn stores(task: &Task, k: &LoopKernel, ranges: &[Range], columns: &mut Vec<Column>) -> Result<Vec<Out>, KernelError> {
    let mut out = vec![];
    for s in &k.stores {
        let v = &s.view;
        if s.reg >= k.instrs.len() || v.buffer < task.kernel.operands {
            return Err(task.malformed(format!("store of register {} to buffer {}", s.reg, v.buffer)));
        }
        let to = check_view(task, v, ranges)?;
        columns.push(Column { base: v.offset, strides: v.strides.clone() });
        let column = columns.len() - 1;
        out.push(Out { to, dtype: v.dtype, column, reg: s.reg, combine: s.combine });
    }
    Ok(out)
}

//! Loop kernels: rows of vector work along a lane.
//!
//! A composite's body uses one name for one index range throughout, so the loops are the dimensions
//! of its largest value and the lane is the last of them; a primitive is treated as a body of one
//! node whose values are named by its factors.

use super::{strides, Lowering};
use autoshard_ir::core::{DType, Dim, Function, Node, Rule, Scalar, ScalarBody, Semantics, Type, ValueId};
use autoshard_ir::kernel::{Extent, Instr, KernelBody, LoopKernel, LoopOp, Reg, Store, View};
use autoshard_ir::{ops, Monoid};
use std::collections::HashMap;

pub fn lower(l: &Lowering) -> Result<KernelBody, String> {
    let body = match l.node.op.semantics {
        Semantics::Composite(source) => ops::compose::body(source, &l.inputs, &l.node.attrs)?,
        _ => single(l)?,
    };
    let rules = rules(&body)?;
    let mut b = LoopBuilder::new(l, &body, &rules);
    for (node, rule) in body.nodes.iter().zip(&rules) {
        b.node(&body, node, rule)?;
    }
    for (i, r) in body.results.iter().enumerate() {
        b.store(&body, i, *r)?;
    }
    Ok(KernelBody::Loop(vec![b.kernel]))
}

fn rules(body: &Function) -> Result<Vec<Rule>, String> {
    let rule = |node: &Node| {
        let types: Vec<&Type> = node.inputs.iter().map(|v| body.ty(*v)).collect();
        ops::rule(node.op, &types, &node.attrs)
    };
    body.nodes.iter().map(rule).collect()
}

/// A primitive as a body of one node, its values named by factors.
fn single(l: &Lowering) -> Result<Function, String> {
    let named = |ty: &Type, maps: &[autoshard_ir::core::DimMap]| -> Result<Type, String> {
        let dims = maps
            .iter()
            .zip(&ty.dims)
            .map(|(m, d)| match m.factors[..] {
                [f] => Ok(Dim::new(l.rule.factors[f].name.clone(), d.size)),
                _ => Err("a dimension of several factors in a loop".to_string()),
            })
            .collect::<Result<_, _>>()?;
        Ok(Type { dtype: ty.dtype, dims, partial: None })
    };
    let mut f = Function::new("single");
    let mut inputs = Vec::new();
    for (i, (ty, maps)) in l.inputs.iter().zip(&l.rule.operands).enumerate() {
        inputs.push(f.add_param(&format!("x{i}"), named(ty, maps)?, false));
    }
    let node = Node { inputs, results: Vec::new(), ..l.node.clone() };
    let result = named(l.results[0], &l.rule.results[0])?;
    let id = f.add_node(node, vec![("y".to_string(), result)]);
    f.results = f.node(id).results.clone();
    Ok(f)
}

/// What a value of the body is while the kernel is built.
#[derive(Clone)]
enum Known {
    /// A register, reduced by a monoid over the outer loops that the value lacks.
    Reg(Reg, Option<Monoid>),
    /// Registers one after another along the result's last dimension, at these offsets.
    Parts(Vec<(Reg, usize)>),
}

struct LoopBuilder<'a> {
    l: &'a Lowering<'a>,
    names: Vec<String>,
    kernel: LoopKernel,
    known: HashMap<ValueId, Known>,
    /// Loads already emitted, by parameter and offset.
    loads: HashMap<(usize, usize), Reg>,
}

impl<'a> LoopBuilder<'a> {
    fn new(l: &'a Lowering<'a>, body: &Function, rules: &[Rule]) -> LoopBuilder<'a> {
        let names = loop_names(body, rules);
        let loops = names.iter().map(|n| extent(l, body, n)).collect();
        let mut kernel = LoopKernel { loops, instrs: Vec::new(), stores: Vec::new() };
        if names.is_empty() {
            kernel.loops.push(Extent { name: "one".to_string(), size: 1, global: 1, axes: Vec::new() });
        }
        LoopBuilder { l, names, kernel, known: HashMap::new(), loads: HashMap::new() }
    }

    fn lane(&self) -> Option<&str> {
        self.names.last().map(String::as_str)
    }

    fn uniform(&self, ty: &Type) -> bool {
        !ty.dims.iter().any(|d| Some(d.name.as_str()) == self.lane())
    }

    fn push(&mut self, op: LoopOp, args: Vec<Reg>, dtype: DType, uniform: bool) -> Reg {
        self.kernel.instrs.push(Instr { op, args, dtype, uniform });
        self.kernel.instrs.len() - 1
    }

    /// Strides of the loops through a buffer whose dimensions have these names.
    fn loop_strides(&self, names: &[String], local: &[usize]) -> Vec<usize> {
        let steps = strides(local);
        let mut out: Vec<usize> =
            self.names.iter().map(|n| names.iter().position(|d| d == n).map_or(0, |i| steps[i])).collect();
        if out.is_empty() {
            out.push(0);
        }
        out
    }

    /// The register of a value that a node reads.
    fn read(&mut self, body: &Function, v: ValueId) -> Result<Reg, String> {
        if let Some(k) = self.known.get(&v) {
            return match k {
                Known::Reg(r, None) => Ok(*r),
                _ => Err(format!("%{} is reduced over rows or joined, and then read", body.value(v).name)),
            };
        }
        let names: Vec<String> = body.ty(v).dims.iter().map(|d| d.name.clone()).collect();
        self.load(body, v, names, 0)
    }

    /// Loads a parameter whose dimensions go by `names`, from `offset` elements on.
    fn load(&mut self, body: &Function, v: ValueId, names: Vec<String>, offset: usize) -> Result<Reg, String> {
        let Some(p) = body.params.iter().position(|p| p.value == v) else {
            return Err(format!("%{} is not computed", body.value(v).name));
        };
        if let Some(r) = self.loads.get(&(p, offset)) {
            return Ok(*r);
        }
        let local = self.l.mesh.local_sizes(self.l.inputs[p]);
        let dtype = self.l.inputs[p].dtype;
        let strides = self.loop_strides(&names, &local);
        let uniform = strides.last() == Some(&0);
        let r = self.push(LoopOp::Load(View { buffer: p, dtype, offset, strides }), Vec::new(), dtype, uniform);
        self.loads.insert((p, offset), r);
        Ok(r)
    }

    fn node(&mut self, body: &Function, node: &Node, rule: &Rule) -> Result<(), String> {
        let result = node.results[0];
        let ty = body.ty(result);
        let (dtype, uniform) = (ty.dtype, self.uniform(ty));
        let known = match rule.body.as_ref().ok_or("a composite inside a composite")? {
            ScalarBody::Map(_) if is_window(body, node, rule) => Known::Reg(self.slice(body, node, rule, ty)?, None),
            ScalarBody::Sum(_) if node.inputs.len() > 1 => self.concat(body, node, rule)?,
            ScalarBody::Map(s) => {
                let args = node.inputs.iter().map(|v| self.read(body, *v)).collect::<Result<Vec<_>, _>>()?;
                self.map(body, node, rule, *s, args)?
            }
            ScalarBody::Product => {
                let args = node.inputs.iter().map(|v| self.read(body, *v)).collect::<Result<Vec<_>, _>>()?;
                self.product(body, node, rule, args)?
            }
            ScalarBody::Iota => {
                let index = self.index(&ty.dims[0].name)?;
                Known::Reg(self.push(LoopOp::Index(index), Vec::new(), dtype, uniform), None)
            }
            ScalarBody::Values(v) if ty.dims.is_empty() => {
                Known::Reg(self.push(LoopOp::Const(v[0]), Vec::new(), dtype, true), None)
            }
            ScalarBody::Values(v) => {
                let index = self.index(&ty.dims[0].name)?;
                Known::Reg(self.push(LoopOp::Table(index, v.clone()), Vec::new(), dtype, uniform), None)
            }
            ScalarBody::Random(key) => {
                let names: Vec<String> = ty.dims.iter().map(|d| d.name.clone()).collect();
                let steps = self.loop_strides(&names, &ty.sizes());
                Known::Reg(self.push(LoopOp::Random(*key, steps), Vec::new(), dtype, uniform), None)
            }
            ScalarBody::Sum(_)
            | ScalarBody::Gather
            | ScalarBody::ScatterAdd
            | ScalarBody::TopK
            | ScalarBody::Slots { .. }
            | ScalarBody::Dispatch
            | ScalarBody::Combine => {
                return Err(format!("{} is not loop work", node.op.name));
            }
        };
        self.known.insert(result, known);
        Ok(())
    }

    fn index(&self, name: &str) -> Result<usize, String> {
        self.names.iter().position(|n| n == name).ok_or_else(|| format!("{name} is not a loop"))
    }

    /// Pointwise work, casts, broadcasts and transposes (which only rename), reductions.
    fn map(&mut self, body: &Function, node: &Node, rule: &Rule, s: Scalar, args: Vec<Reg>) -> Result<Known, String> {
        let ty = body.ty(node.results[0]);
        let uniform = self.uniform(ty);
        let same_type = body.ty(node.inputs[0]).dtype == ty.dtype;
        let reduced = self.reduced(body, node);
        if reduced.is_empty() {
            if s == Scalar::Identity && same_type {
                return Ok(Known::Reg(args[0], None));
            }
            return Ok(Known::Reg(self.push(LoopOp::Map(s), args, ty.dtype, uniform), None));
        }
        self.reduce(args[0], rule, &reduced, ty.dtype)
    }

    fn product(&mut self, body: &Function, node: &Node, rule: &Rule, args: Vec<Reg>) -> Result<Known, String> {
        let dtype = body.ty(node.results[0]).dtype;
        let mut acc = args[0];
        let mut uniform = self.uniform(body.ty(node.inputs[0]));
        for (r, v) in args.iter().zip(&node.inputs).skip(1) {
            uniform &= self.uniform(body.ty(*v));
            acc = self.push(LoopOp::Map(Scalar::Mul), vec![acc, *r], dtype, uniform);
        }
        let reduced = self.reduced(body, node);
        if reduced.is_empty() {
            return Ok(Known::Reg(acc, None));
        }
        self.reduce(acc, rule, &reduced, dtype)
    }

    /// Names that operands have and the result lacks.
    fn reduced(&self, body: &Function, node: &Node) -> Vec<String> {
        let result = body.ty(node.results[0]);
        let mut out: Vec<String> = Vec::new();
        for d in node.inputs.iter().flat_map(|v| &body.ty(*v).dims) {
            if result.dim(&d.name).is_none() && !out.contains(&d.name) {
                out.push(d.name.clone());
            }
        }
        out
    }

    fn reduce(&mut self, arg: Reg, rule: &Rule, reduced: &[String], dtype: DType) -> Result<Known, String> {
        let monoid = rule.factor(&reduced[0]).map_or(Monoid::Sum, |f| rule.monoid(f));
        let lane = self.lane().map(str::to_string);
        let over_lane = reduced.iter().any(|n| Some(n) == lane.as_ref());
        let mut reg = arg;
        if over_lane && !self.kernel.instrs[arg].uniform {
            reg = self.push(LoopOp::Reduce(monoid), vec![arg], dtype, true);
        }
        let rows = reduced.iter().any(|n| Some(n) != lane.as_ref());
        Ok(Known::Reg(reg, rows.then_some(monoid)))
    }

    fn slice(&mut self, body: &Function, node: &Node, rule: &Rule, ty: &Type) -> Result<Reg, String> {
        let x = node.inputs[0];
        let p = body.params.iter().position(|p| p.value == x).ok_or("a slice of something computed")?;
        let steps = strides(&self.l.mesh.local_sizes(self.l.inputs[p]));
        let offset: usize = rule.operands[0].iter().zip(steps).map(|(m, s)| m.offset as usize * s).sum();
        let names = ty.dims.iter().map(|d| d.name.clone()).collect();
        self.load(body, x, names, offset)
    }

    fn concat(&mut self, body: &Function, node: &Node, rule: &Rule) -> Result<Known, String> {
        let mut parts = Vec::new();
        for (v, maps) in node.inputs.iter().zip(&rule.operands) {
            let last = maps.last().map_or(0, |m| (-m.offset) as usize);
            parts.push((self.read(body, *v)?, last));
        }
        Ok(Known::Parts(parts))
    }

    fn store(&mut self, body: &Function, i: usize, v: ValueId) -> Result<(), String> {
        let ty = self.l.results[i];
        let local = self.l.mesh.local_sizes(ty);
        let buffer = self.l.inputs.len() + i;
        let view = |offset, strides| View { buffer, dtype: ty.dtype, offset, strides };
        let mut names: Vec<String> = body.ty(v).dims.iter().map(|d| d.name.clone()).collect();
        match self.known.get(&v).cloned() {
            Some(Known::Parts(parts)) => {
                // The joined dimension takes the name of its parts, so that the lane walks it.
                if let (Some(last), Some(lane)) = (names.last_mut(), self.names.last()) {
                    *last = lane.clone();
                }
                let strides = self.loop_strides(&names, &local);
                for (reg, offset) in parts {
                    self.kernel.stores.push(Store { view: view(offset, strides.clone()), reg, combine: None });
                }
            }
            Some(Known::Reg(reg, combine)) => {
                let strides = self.loop_strides(&names, &local);
                self.kernel.stores.push(Store { view: view(0, strides), reg, combine });
            }
            None => {
                let reg = self.read(body, v)?;
                let strides = self.loop_strides(&names, &local);
                self.kernel.stores.push(Store { view: view(0, strides), reg, combine: None });
            }
        }
        Ok(())
    }
}

/// The loops: dimensions of the largest value that lives in registers, in that value's order.
fn loop_names(body: &Function, rules: &[Rule]) -> Vec<String> {
    let nodes = || body.nodes.iter().zip(rules);
    let sliced = |v: ValueId| {
        let mut uses = nodes().filter(|(n, _)| n.inputs.contains(&v)).peekable();
        uses.peek().is_some() && uses.all(|(n, r)| is_window(body, n, r))
    };
    let joined =
        |v: ValueId| nodes().any(|(n, r)| n.results.contains(&v) && matches!(r.body, Some(ScalarBody::Sum(_))));
    let lives: Vec<&Type> =
        (0..body.values.len() as u32).map(ValueId).filter(|v| !sliced(*v) && !joined(*v)).map(|v| body.ty(v)).collect();
    let mut largest: Vec<String> = Vec::new();
    for ty in &lives {
        if ty.dims.len() > largest.len() {
            largest = ty.dims.iter().map(|d| d.name.clone()).collect();
        }
    }
    // Factors that only other values have (an outer product, a reduction) come first, as rows.
    let mut extra: Vec<String> = Vec::new();
    for d in lives.iter().flat_map(|t| &t.dims) {
        if !largest.contains(&d.name) && !extra.contains(&d.name) {
            extra.push(d.name.clone());
        }
    }
    extra.extend(largest);
    extra
}

/// Whether the node reads a window of an operand: a dimension larger than the factor that walks it.
fn is_window(body: &Function, node: &Node, rule: &Rule) -> bool {
    let operands = rule.operands.iter().zip(&node.inputs);
    operands.flat_map(|(maps, v)| maps.iter().zip(&body.ty(*v).dims)).any(|(m, d)| match m.factors[..] {
        [f] => m.offset > 0 || rule.factors[f].size < d.size,
        _ => false,
    })
}

/// Local extent of a loop: the node's factor of that name, or a whole range inside the body.
fn extent(l: &Lowering, body: &Function, name: &str) -> Extent {
    if let Some(f) = l.rule.factor(name) {
        return l.extent(f);
    }
    let size = body.values.iter().flat_map(|v| &v.ty.dims).find(|d| d.name == name).map_or(1, |d| d.size);
    Extent { name: name.to_string(), size, global: size, axes: Vec::new() }
}

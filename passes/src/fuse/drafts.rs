//! Groups in the making: kernels whose views name values of the function, and who reads what.

use crate::lower::{self, LowerError};
use autoshard_ir::core::{Function, NodeId, Semantics, ValueId};
use autoshard_ir::kernel::{Kernel, KernelBody, LoopKernel, LoopOp, Product};
use autoshard_ir::Mesh;
use std::collections::HashSet;

/// Position of a group.
pub(super) type Id = usize;

/// What a group does. Buffers of nests and products are indices of values.
#[derive(Clone, Debug)]
pub(super) enum Body {
    /// Independent loop nests.
    Nests(Vec<LoopKernel>),
    /// Products, then nests over their rows.
    Products(Vec<Product>, Vec<LoopKernel>),
    /// A kernel of another template, which is not fused: operands, then results, by position.
    Fixed(Box<Kernel>),
    /// Communication.
    Collective,
    /// A call.
    Call,
}

/// A group of nodes.
#[derive(Clone, Debug)]
pub(super) struct Draft {
    pub nodes: Vec<NodeId>,
    pub body: Body,
    pub flops: f64,
    /// Values it reads from others.
    pub inputs: Vec<ValueId>,
    /// Values that its nodes define and that exist in memory or may have to.
    pub results: Vec<ValueId>,
}

/// All groups of a function.
pub(super) struct Drafts<'a> {
    pub f: &'a Function,
    /// By group; `None` where it was merged into another.
    pub groups: Vec<Option<Draft>>,
    /// The group that computes each value.
    pub maker: Vec<Option<Id>>,
    /// The groups that read each value.
    pub readers: Vec<Vec<Id>>,
    /// Whether the function returns each value.
    pub returned: Vec<bool>,
}

impl<'a> Drafts<'a> {
    /// One group a node.
    pub fn new(f: &'a Function, mesh: &Mesh) -> Result<Drafts<'a>, LowerError> {
        let n = f.values.len();
        let mut d = Drafts {
            f,
            groups: Vec::new(),
            maker: vec![None; n],
            readers: vec![Vec::new(); n],
            returned: vec![false; n],
        };
        f.results.iter().for_each(|r| d.returned[index(*r)] = true);
        for id in f.node_ids() {
            let node = f.node(id);
            let (body, flops) = match node.op.semantics {
                Semantics::Call => (Body::Call, 0.0),
                Semantics::Collective => (Body::Collective, 0.0),
                _ => {
                    let kernel = lower::lower(f, node, mesh)?;
                    let flops = kernel.flops;
                    let buffers: Vec<usize> = node.inputs.iter().chain(&node.results).map(|v| index(*v)).collect();
                    (named(kernel, &buffers), flops)
                }
            };
            let mut inputs = node.inputs.clone();
            dedup(&mut inputs);
            d.add(Draft { nodes: vec![id], body, flops, inputs, results: node.results.clone() });
        }
        Ok(d)
    }

    fn add(&mut self, draft: Draft) -> Id {
        let id = self.groups.len();
        draft.inputs.iter().for_each(|v| self.readers[index(*v)].push(id));
        draft.results.iter().for_each(|v| self.maker[index(*v)] = Some(id));
        self.groups.push(Some(draft));
        id
    }

    /// The group, if it was not merged away.
    pub fn get(&self, id: Id) -> Option<&Draft> {
        self.groups.get(id)?.as_ref()
    }

    /// Groups that are left, in order.
    pub fn ids(&self) -> Vec<Id> {
        (0..self.groups.len()).filter(|i| self.groups[*i].is_some()).collect()
    }

    /// The group that computes a value.
    pub fn maker(&self, v: ValueId) -> Option<Id> {
        self.maker[index(v)]
    }

    /// Whether a value is read only by the groups `inside`, and not returned.
    pub fn is_private(&self, v: ValueId, inside: &[Id]) -> bool {
        !self.returned[index(v)] && self.readers[index(v)].iter().all(|r| inside.contains(r))
    }

    fn successors(&self, id: Id) -> impl Iterator<Item = Id> + '_ {
        let results = self.get(id).map(|d| d.results.as_slice()).unwrap_or_default();
        results.iter().flat_map(|v| &self.readers[index(*v)]).copied()
    }

    /// Whether the result of `from` reaches `to` through a third group.
    pub fn detour(&self, from: Id, to: Id) -> bool {
        let mut stack: Vec<Id> = self.successors(from).filter(|s| *s != to && *s != from).collect();
        let mut seen: HashSet<Id> = stack.iter().copied().collect();
        while let Some(at) = stack.pop() {
            for next in self.successors(at) {
                if next == to {
                    return true;
                }
                if next != from && seen.insert(next) {
                    stack.push(next);
                }
            }
        }
        false
    }

    /// Whether one of the groups needs a result of the other, directly or not.
    pub fn depends(&self, a: Id, b: Id) -> bool {
        self.successors(a).any(|s| s == b)
            || self.successors(b).any(|s| s == a)
            || self.detour(a, b)
            || self.detour(b, a)
    }

    /// Replaces two groups by one with this body, at the place of the first. `gone`: values that exist
    /// no more.
    pub fn merge(&mut self, a: Id, b: Id, body: Body, gone: &[ValueId]) {
        let (Some(x), Some(y)) = (self.groups[a].take(), self.groups[b].take()) else { return };
        let mut nodes = [x.nodes, y.nodes].concat();
        nodes.sort_unstable();
        let results: Vec<ValueId> = [x.results, y.results].concat().into_iter().filter(|v| !gone.contains(v)).collect();
        let mut inputs = [x.inputs, y.inputs].concat();
        dedup(&mut inputs);
        for v in &inputs {
            self.readers[index(*v)].retain(|r| *r != a && *r != b);
        }
        inputs.retain(|v| !results.contains(v) && !gone.contains(v));
        inputs.iter().for_each(|v| self.readers[index(*v)].push(a));
        results.iter().for_each(|v| self.maker[index(*v)] = Some(a));
        gone.iter().for_each(|v| self.maker[index(*v)] = None);
        self.groups[a] = Some(Draft { nodes, body, flops: x.flops + y.flops, inputs, results });
    }
}

/// Index of a value, which is its buffer in drafts.
pub(super) fn index(v: ValueId) -> usize {
    v.0 as usize
}

/// Keeps the first of equal entries.
pub(super) fn dedup(values: &mut Vec<ValueId>) {
    let mut seen = HashSet::new();
    values.retain(|v| seen.insert(*v));
}

/// A kernel with its buffers named by values.
fn named(kernel: Kernel, buffers: &[usize]) -> Body {
    match kernel.body {
        KernelBody::Loop(mut nests) => {
            nests.iter_mut().for_each(|n| rename(n, &|b| buffers[b]));
            Body::Nests(nests)
        }
        KernelBody::Gemm(mut g) => {
            g.products.iter_mut().for_each(|p| rename_product(p, &|b| buffers[b]));
            g.epilogue.iter_mut().for_each(|n| rename(n, &|b| buffers[b]));
            Body::Products(g.products, g.epilogue)
        }
        _ => Body::Fixed(Box::new(kernel)),
    }
}

/// Changes the buffers of a nest.
pub(super) fn rename(nest: &mut LoopKernel, to: &dyn Fn(usize) -> usize) {
    for i in &mut nest.instrs {
        if let LoopOp::Load(view) = &mut i.op {
            view.buffer = to(view.buffer);
        }
    }
    nest.stores.iter_mut().for_each(|s| s.view.buffer = to(s.view.buffer));
}

/// Changes the buffers of a product.
pub(super) fn rename_product(p: &mut Product, to: &dyn Fn(usize) -> usize) {
    (p.a, p.b, p.c) = (to(p.a), to(p.b), to(p.c));
    if let autoshard_ir::kernel::Init::Operand(i) = &mut p.init {
        *i = to(*i);
    }
}

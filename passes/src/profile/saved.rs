//! What a call of a function keeps between its forward and its backward, and the most it needs at once.
//!
//! Kernels are those of the profile (products, attention, groups of loops). What a kernel's backward reads
//! follows from the gradient that its operation declares: the other operand of a product, the operands and
//! results that a hand-written backward names, all operands of what is not linear. Each value is kept once,
//! however many read it, in the smallest state that its producer or a reader has: under sequence parallelism a
//! product's input is gathered again, so its shard is what is kept.
//!
//! Two plays give what is live at once: the forward allocates results and lets go of what nobody reads or keeps;
//! the backward allocates cotangents, and lets go of what was kept when its last reader is through.
//!
//! Checked against Korthikanti et al. 2022 (arXiv 2205.05198, sections 4.1-4.2, table 2) in `tests/memory.rs`.

use super::forward::Forward;
use super::loops::local_bytes;
use super::recompute::{Part, Recompute};
use super::roles::Shards;
use super::walk::Walk;
use super::ProfileError;
use autoshard_cost::stack::{AttentionKernel, Fusion, Habits, LossKernel};
use autoshard_ir::core::{Def, Function, GradArg, Gradient, Linearity, Semantics, Template, ValueId};
use autoshard_ir::ops::compose;
use autoshard_ir::DType;
use std::collections::BTreeMap;

/// How activations are stored.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Storage {
    /// Whether dropout runs: its masks take a byte an element.
    pub dropout: bool,
    /// Bytes of an activation's element over those of the module's type: 2 for runs in fp32.
    pub wide: f64,
    /// Bytes of an element that a product with weights keeps of its input, over those of the module's type: 1
    /// where products run in that type, 1/2 where they run in eight bits and keep the rounded copy.
    pub narrow: f64,
    /// Whether gradients of products' weights are tensors before they are added up; not so where the product adds
    /// to the main gradient itself.
    pub weight_gradients: bool,
}

impl Default for Storage {
    fn default() -> Storage {
        Storage { dropout: false, wide: 1.0, narrow: 1.0, weight_gradients: true }
    }
}

/// The most that is live during a phase of a call, in bytes of one rank.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Peak {
    /// All of it: what this call keeps is included, what other calls keep is not.
    pub bytes: f64,
    /// Of that: logits and what the loss makes of them.
    pub logits: f64,
}

/// What a call needs under a recomputation policy.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Held {
    /// What is kept from the forward to the backward: name, bytes of one rank.
    pub kept: Vec<(String, f64)>,
    /// Most during the forward.
    pub forward: Peak,
    /// Most during the backward, what is computed again included.
    pub backward: Peak,
}

impl Held {
    /// Bytes that are kept.
    pub fn bytes(&self) -> f64 {
        self.kept.iter().map(|(_, b)| b).sum()
    }
}

/// A function's memory for one micro-batch.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Saved {
    /// Name of the function.
    pub function: String,
    /// With nothing computed again.
    pub whole: Held,
    /// Under the policy.
    pub policy: Held,
    /// Distinct matrices of products with weights on one rank, rows and columns: of one expert, of q, k and v
    /// together where products are joined.
    pub matrices: Vec<[f64; 2]>,
}

/// What a call of `f` keeps and needs.
///
/// # Errors
/// A node whose rule does not hold.
pub fn saved(
    forward: &Forward,
    shards: &Shards,
    habits: &Habits,
    policy: &Recompute,
    storage: &Storage,
) -> Result<Saved, ProfileError> {
    let walk = Walk::new(forward, shards, habits);
    let tape = Tape::new(&walk, forward.groups(habits.fusion), storage)?;
    let whole = tape.held(&Recompute::None);
    let policy = if *policy == Recompute::None { whole.clone() } else { tape.held(policy) };
    Ok(Saved { function: forward.f.name.clone(), whole, policy, matrices: tape.matrices() })
}

/// One kernel with what memory it touches.
#[derive(Default)]
pub(super) struct Kernel {
    /// Its nodes; the last names it.
    pub members: Vec<usize>,
    /// Activations from outside: value, bytes in the state that it reads.
    pub inputs: Vec<(ValueId, f64)>,
    /// What leaves it, and its bytes as it is made (a term of a sum has the whole size).
    pub outputs: Vec<(ValueId, f64)>,
    /// Values that its backward reads; whether a product with weights reads them.
    pub needs: Vec<(ValueId, bool)>,
    /// A sum or a view: cotangents pass through.
    pub passes: bool,
    /// Tensors of its own that are kept: name, bytes, the part that computes them again.
    pub own: Vec<(&'static str, f64, Option<Part>)>,
    /// Bytes that it needs beside operands and results, forward and backward.
    pub scratch: [f64; 2],
    /// Bytes of the gradients of weights that it makes, as tensors of their own.
    pub weight_bytes: f64,
    /// Whether the gradient overwrites the input (losses).
    pub in_place: bool,
    /// Whether it belongs to logits and loss.
    pub loss: bool,
}

/// A tensor that the backward reads.
#[derive(Clone, Debug)]
pub(super) struct Tensor {
    pub value: Option<ValueId>,
    pub name: String,
    pub bytes: f64,
    pub logits: bool,
    /// What computes it again; tensors with one key come together.
    pub again: Option<u32>,
    /// First kernel (in the order of the forward) whose backward reads it: it is free after that one.
    pub first: usize,
    /// Last such kernel.
    pub last: usize,
}

pub(super) struct Tape<'w, 'f> {
    pub walk: &'w Walk<'f>,
    pub storage: Storage,
    pub kernels: Vec<Kernel>,
    /// By value: bytes as it is stored; kernel that makes it.
    pub stored: Vec<f64>,
    pub maker: Vec<Option<usize>>,
    /// By value: the last kernel of the forward that reads it.
    pub last_reader: Vec<Option<usize>>,
    /// Values inside a kernel, which are never stored.
    pub inside: Vec<bool>,
}

impl<'w, 'f> Tape<'w, 'f> {
    fn new(walk: &'w Walk<'f>, groups: &[usize], storage: &Storage) -> Result<Tape<'w, 'f>, ProfileError> {
        let n = walk.f.values.len();
        let mut tape = Tape {
            walk,
            storage: *storage,
            kernels: Vec::new(),
            stored: (0..n).map(|v| stored(walk, ValueId(v as u32)) * storage.wide).collect(),
            maker: vec![None; n],
            last_reader: vec![None; n],
            inside: vec![false; n],
        };
        for last in 0..walk.f.nodes.len() {
            let members: Vec<usize> = (0..=last).filter(|i| groups[*i] == last && !walk.idle[*i]).collect();
            if !members.is_empty() && groups[last] == last {
                let kernel = tape.kernel(members).map_err(|message| walk.error(last, message))?;
                tape.kernels.push(kernel);
            }
        }
        for (k, kernel) in tape.kernels.iter().enumerate() {
            for (v, _) in &kernel.inputs {
                tape.last_reader[v.0 as usize] = Some(k);
            }
            for i in &kernel.members {
                for r in &walk.f.nodes[*i].results {
                    tape.maker[r.0 as usize] = Some(k);
                    tape.inside[r.0 as usize] = !kernel.outputs.iter().any(|(v, _)| v == r);
                }
            }
        }
        Ok(tape)
    }

    fn kernel(&self, members: Vec<usize>) -> Result<Kernel, String> {
        let (walk, f) = (self.walk, self.walk.f);
        let mut k = Kernel { passes: true, ..Kernel::default() };
        for i in &members {
            let n = &f.nodes[*i];
            let split = walk.split(*i);
            let bytes = |v: ValueId| local_bytes(f.ty(v), &split) * self.storage.wide;
            for v in n.inputs.iter().filter(|v| !walk.small(**v)) {
                let within = matches!(f.value(*v).def, Def::Result(p, _) if members.contains(&(p.0 as usize)));
                if !within && !k.inputs.iter().any(|(w, _)| w == v) {
                    // Experts' slots count whole tokens where these are spread over other axes.
                    let read = if split.expert { bytes(*v).min(self.stored[v.0 as usize]) } else { bytes(*v) };
                    k.inputs.push((*v, read));
                }
            }
            for v in n.results.iter().filter(|v| !walk.small(**v)) {
                let readers = &walk.readers[v.0 as usize];
                let leaves =
                    f.results.contains(v) || readers.is_empty() || readers.iter().any(|r| !members.contains(r));
                if leaves {
                    let made = if split.expert { self.stored[v.0 as usize] } else { bytes(*v) };
                    k.outputs.push((*v, made));
                }
            }
            k.passes &= walk.rules[*i].as_ref().is_some_and(|r| r.linear == Linearity::Joint)
                && n.op.template != Template::Gemm;
            self.node(*i, &mut k)?;
        }
        k.members = members;
        Ok(k)
    }

    /// Adds what one node keeps and needs.
    fn node(&self, i: usize, k: &mut Kernel) -> Result<(), String> {
        let (walk, f) = (self.walk, self.walk.f);
        let n = &f.nodes[i];
        let split = walk.split(i);
        let active = |v: &ValueId| walk.active[v.0 as usize];
        let is_weight = |v: &ValueId| walk.weight[v.0 as usize];
        if !n.inputs.iter().any(active) {
            return Ok(());
        }
        match n.op.template {
            Template::Gemm => {
                for (at, v) in n.inputs.iter().enumerate() {
                    let other = n.inputs.iter().enumerate().any(|(b, w)| b != at && active(w));
                    if !is_weight(v) && other {
                        let with_weights = n.inputs.iter().enumerate().any(|(b, w)| b != at && is_weight(w));
                        k.needs.push((*v, with_weights));
                    }
                    if is_weight(v) && active(v) && self.storage.weight_gradients {
                        k.weight_bytes += local_bytes(f.ty(*v), &split) * self.storage.wide;
                    }
                }
            }
            Template::Attention => self.attention(i, k),
            Template::Gather => {
                // Weights of routing are applied with the activation inside the experts (Megatron-Core 0.12,
                // `weighted_bias_swiglu`), so experts' outputs are not kept; a table's gradient is dense.
                for v in n.inputs.iter().filter(|v| is_weight(v) && active(v) && self.storage.weight_gradients) {
                    // Tables are fp32 masters here; frameworks look rows up in the copy, and a dense gradient of the
                    // copy's type comes back.
                    let elements = local_bytes(f.ty(*v), &split) / f.ty(*v).dtype.bytes() as f64;
                    let copy = f.results.first().map_or(DType::Bf16, |r| f.ty(*r).dtype);
                    k.weight_bytes += elements * copy.bytes() as f64 * self.storage.wide;
                }
            }
            Template::Loop | Template::View | Template::Scatter | Template::Sort | Template::AttentionBackward => {
                self.loops(i, k)?;
            }
            Template::Collective | Template::Call => {}
        }
        Ok(())
    }

    /// Attention keeps what its backward kernel reads; without such a kernel the scores after softmax, the mask
    /// of dropout and what it leaves.
    fn attention(&self, i: usize, k: &mut Kernel) {
        let (walk, f) = (self.walk, self.walk.f);
        let n = &f.nodes[i];
        let split = walk.split(i);
        let (q, keys) = (f.ty(n.inputs[0]), f.ty(n.inputs[1]));
        k.needs.extend(n.inputs[..3].iter().map(|v| (*v, false)));
        let size = |at: usize| q.dims.get(at).map_or(1.0, |d| d.size as f64 / split.ways(&d.name));
        // Positions of queries are those of this rank; keys come from all.
        let rows = size(0) * size(1) * size(2) * size(3);
        let one = q.dtype.bytes() as f64 * self.storage.wide;
        if walk.habits.attention == AttentionKernel::Unfused {
            let scores = rows * keys.dims.get(1).map_or(1.0, |d| d.size as f64);
            k.own.push(("attention.softmax", scores * one, Some(Part::Attention)));
            if self.storage.dropout {
                k.own.push(("attention.mask", scores, Some(Part::Attention)));
                k.own.push(("attention.dropped", scores * one, Some(Part::Attention)));
            }
            // Scores before softmax; in the backward cotangents before and after it.
            k.scratch = [scores * one, 2.0 * scores * one];
            return;
        }
        k.needs.extend(n.results.iter().map(|v| (*v, false)));
        // Kernels add up the gradient of queries in fp32 (Dao 2023, arXiv 2307.08691, algorithm 2).
        k.scratch[1] += rows * size(4) * 4.0;
        if walk.shards.cp > 1 && walk.shards.context != super::Context::Ulysses {
            let ways = if walk.shards.context == super::Context::Gather { walk.shards.cp as f64 } else { 2.0 };
            let blocks: f64 = n.inputs[1..3].iter().map(|v| self.stored[v.0 as usize]).sum();
            // Blocks that arrive while others are worked on, and in the backward their gradients.
            k.scratch[0] += ways * blocks;
            k.scratch[1] += 2.0 * ways * blocks;
        }
    }

    fn loops(&self, i: usize, k: &mut Kernel) -> Result<(), String> {
        let (walk, f) = (self.walk, self.walk.f);
        let n = &f.nodes[i];
        let rule = walk.rules[i].as_ref();
        let linear = rule.is_some_and(|r| r.linear == Linearity::Joint);
        if self.storage.dropout && linear && self.joins_stream(i) {
            // Dropout of a branch, on what is added: its mask.
            let elements =
                self.stored[n.results[0].0 as usize] / self.storage.wide / f.ty(n.results[0]).dtype.bytes() as f64;
            k.own.push(("mask", elements, None));
        }
        if linear {
            return Ok(());
        }
        if rule.is_some_and(|r| r.body.is_none() && r.factor("v").is_some()) {
            self.loss(i, k);
            return Ok(());
        }
        let whole = match &n.op.gradient {
            Gradient::Backward { args, .. } => {
                for a in *args {
                    match a {
                        GradArg::Operand(at) => k.needs.push((n.inputs[*at], false)),
                        GradArg::Result(at) => k.needs.push((n.results[*at], false)),
                        GradArg::Cotangent(_) => {}
                    }
                }
                true
            }
            _ => false,
        };
        if !whole {
            k.needs.extend(n.inputs.iter().map(|v| (*v, false)));
        }
        k.needs.retain(|(v, _)| !walk.small(*v));
        if let (Semantics::Composite(text), Fusion::Eager) = (&n.op.semantics, walk.habits.fusion) {
            if !walk.habits.one_kernel.iter().any(|o| o == n.op.name) {
                let types: Vec<_> = n.inputs.iter().map(|v| f.ty(*v)).collect();
                let body = compose::body(text, &types, &n.attrs)?;
                k.own.push(("inner", inner(&body, &walk.split(i)) * self.storage.wide, Some(Part::Norms)));
            }
        }
        Ok(())
    }

    /// Whether a node adds a branch to the residual stream.
    fn joins_stream(&self, i: usize) -> bool {
        let (walk, f) = (self.walk, self.walk.f);
        let n = &f.nodes[i];
        let dims = |v: &ValueId| f.ty(*v).dims.iter().map(|d| d.name.as_str()).collect::<Vec<_>>() == ["b", "s", "d"];
        n.inputs.len() == 2
            && n.inputs.iter().all(|v| dims(v) && !walk.weight[v.0 as usize])
            && !walk.adds_bias(i)
            && n.inputs.iter().chain(&n.results).all(dims)
            && n.inputs.iter().all(|v| !self.broadcast_bias(*v))
    }

    /// Whether a value is a parameter repeated over positions.
    fn broadcast_bias(&self, v: ValueId) -> bool {
        matches!(self.walk.f.value(v).def, Def::Result(p, _) if self.walk.idle[p.0 as usize])
    }

    /// Logits and what the loss makes of them, in bytes an element as [`LossKernel`] says.
    fn loss(&self, i: usize, k: &mut Kernel) {
        let walk = self.walk;
        let logits = walk.f.nodes[i].inputs[0];
        let narrow = self.stored[logits.0 as usize];
        let wide = narrow / self.storage.wide / walk.f.ty(logits).dtype.bytes() as f64 * 4.0;
        k.loss = true;
        match walk.habits.memory.loss {
            LossKernel::OnePass => k.needs.push((logits, false)),
            LossKernel::InPlace => {
                k.needs.push((logits, false));
                k.in_place = true;
            }
            // What calls the loss holds the logits until it is done.
            LossKernel::Pytorch => {
                k.needs.push((logits, false));
                k.own.push(("log-softmax", wide, None));
                let parts = if walk.shards.tp > 1 { 3.0 } else { 2.0 };
                k.scratch = [wide, parts * wide - narrow];
            }
            LossKernel::Megatron => k.own.push(("softmax", wide, None)),
        }
    }

    /// Distinct matrices, each once.
    fn matrices(&self) -> Vec<[f64; 2]> {
        let (walk, f) = (self.walk, self.walk.f);
        let mut joint: BTreeMap<(u32, u64), [f64; 2]> = BTreeMap::new();
        for (at, k) in self.kernels.iter().enumerate() {
            let Some(n) = k.members.last().map(|i| &f.nodes[*i]).filter(|n| n.op.template == Template::Gemm) else {
                continue;
            };
            let split = walk.split(k.members[0]);
            let (w, x) = match n.inputs[..] {
                [a, b] if walk.weight[a.0 as usize] => (a, b),
                [a, b] if walk.weight[b.0 as usize] => (b, a),
                _ => continue,
            };
            if !walk.active[w.0 as usize] {
                continue;
            }
            let inner = |name: &str| f.ty(x).dim(name).is_some();
            let local = |d: &autoshard_ir::core::Dim| d.size as f64 / split.ways(&d.name);
            let (mut rows, mut columns) = (1.0, 1.0);
            for d in f.ty(w).dims.iter().filter(|d| d.name != "E" || !split.expert) {
                if inner(&d.name) {
                    columns *= local(d);
                } else {
                    rows *= local(d);
                }
            }
            let key = if walk.habits.joint_products { (x.0, columns as u64) } else { (u32::MAX, at as u64) };
            let entry = joint.entry(key).or_insert([0.0, columns]);
            entry[0] += rows;
        }
        let mut out: Vec<[f64; 2]> = Vec::new();
        for m in joint.into_values() {
            if !out.contains(&m) {
                out.push(m);
            }
        }
        out
    }
}

/// Bytes as a value is stored: the smallest state that its producer or a reader has it in.
fn stored(walk: &Walk, v: ValueId) -> f64 {
    let f = walk.f;
    let producer = match f.value(v).def {
        Def::Result(n, _) => Some(n.0 as usize),
        Def::Param(_) => None,
    };
    let nodes = producer.iter().chain(&walk.readers[v.0 as usize]);
    let least = nodes.filter(|i| !walk.idle[**i]).map(|i| local_bytes(f.ty(v), &walk.split(*i)));
    let least = least.fold(f64::INFINITY, f64::min);
    if least.is_finite() {
        least
    } else {
        0.0
    }
}

/// Bytes that the primitives of a body keep where each is a kernel of its own, operands of the body left out:
/// operands and results of what is not linear, the large ones.
fn inner(body: &Function, split: &super::roles::Split) -> f64 {
    let largest = body.values.iter().map(|v| v.ty.elements()).max().unwrap_or(0);
    let mut kept: Vec<ValueId> = Vec::new();
    for n in &body.nodes {
        let types: Vec<_> = n.inputs.iter().map(|v| body.ty(*v)).collect();
        let linear = autoshard_ir::ops::rule(n.op, &types, &n.attrs).is_ok_and(|r| r.linear == Linearity::Joint);
        for v in n.inputs.iter().filter(|_| !linear) {
            let param = matches!(body.value(*v).def, Def::Param(_));
            let repeated = matches!(body.value(*v).def, Def::Result(p, _) if {
                let p = body.node(p);
                p.inputs.iter().all(|w| body.ty(*w).elements() < largest)
            });
            if !param && !repeated && body.ty(*v).elements() == largest && !kept.contains(v) {
                kept.push(*v);
            }
        }
    }
    kept.iter().map(|v| local_bytes(body.ty(*v), split)).sum()
}

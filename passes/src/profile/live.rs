//! What is live at once in a call: its kernels played forward and backward.

use super::recompute::{Part, Recompute};
use super::saved::{Held, Kernel, Peak, Tape, Tensor};
use autoshard_cost::stack::Fusion;
use autoshard_ir::core::{Def, Template, ValueId};
use std::collections::BTreeMap;

impl Tape<'_, '_> {
    /// What is kept and needed under a policy.
    pub(super) fn held(&self, policy: &Recompute) -> Held {
        match policy {
            Recompute::None => self.parts(&[]),
            Recompute::Parts(parts) => self.parts(parts),
            Recompute::Full => self.full(),
        }
    }

    fn parts(&self, parts: &[Part]) -> Held {
        let tensors = self.tensors(parts);
        Held {
            kept: tensors.iter().filter(|t| t.again.is_none()).map(|t| (t.name.clone(), t.bytes)).collect(),
            forward: self.forward(&tensors),
            backward: self.backward(&tensors),
        }
    }

    /// Inputs alone are kept; before the backward the forward runs again and keeps what the backward reads, with
    /// the cotangent of the result already there.
    fn full(&self) -> Held {
        let inputs: Vec<Tensor> = self.inputs();
        let all = self.tensors(&[]);
        let again = self.forward(&all);
        let backward = self.backward(&all);
        let result: f64 = self.walk.f.results.iter().map(|v| self.stored[v.0 as usize]).sum();
        let again = Peak { bytes: again.bytes + result, ..again };
        Held {
            kept: inputs.iter().map(|t| (t.name.clone(), t.bytes)).collect(),
            forward: self.forward(&inputs),
            backward: if again.bytes > backward.bytes { again } else { backward },
        }
    }

    fn inputs(&self) -> Vec<Tensor> {
        let f = self.walk.f;
        let activations = f.params.iter().filter(|p| !self.walk.small(p.value));
        let tensor = |v: ValueId| Tensor {
            value: Some(v),
            name: f.value(v).name.clone(),
            bytes: self.stored[v.0 as usize],
            logits: false,
            again: None,
            first: 0,
            last: 0,
        };
        activations.map(|p| tensor(p.value)).collect()
    }

    /// The tensors that the backward reads, and which of them are computed again.
    fn tensors(&self, parts: &[Part]) -> Vec<Tensor> {
        let f = self.walk.f;
        let products = self.product_numbers();
        let mut found: BTreeMap<(u32, bool), Tensor> = BTreeMap::new();
        let mut out = Vec::new();
        for (k, kernel) in self.kernels.iter().enumerate() {
            // An input of a product in a form of its own: rounded, or gathered and kept so.
            let read = |v: ValueId| kernel.inputs.iter().find(|(w, _)| *w == v).map_or(0.0, |(_, read)| *read);
            let keeps_whole = self.walk.habits.memory.keeps_gathered_inputs;
            let whole = |v: ValueId| keeps_whole && read(v) > self.stored[v.0 as usize];
            let mut open: Vec<(ValueId, bool)> = kernel
                .needs
                .iter()
                .map(|(v, product)| (*v, *product && (self.storage.narrow < 1.0 || whole(*v))))
                .collect();
            let mut seen = Vec::new();
            while let Some((v, narrow)) = open.pop() {
                if seen.contains(&(v, narrow)) {
                    continue;
                }
                seen.push((v, narrow));
                let made_by = self.maker[v.0 as usize];
                let again = self.again(v, parts, &products);
                if again.is_some() || self.inside[v.0 as usize] {
                    // What it is made from has to be there instead.
                    if let Def::Result(n, _) = f.value(v).def {
                        open.extend(f.node(n).inputs.iter().filter(|w| !self.walk.small(**w)).map(|w| (*w, false)));
                    }
                }
                if self.inside[v.0 as usize] {
                    continue;
                }
                let t = found.entry((v.0, narrow)).or_insert_with(|| Tensor {
                    value: Some(v),
                    name: f.value(v).name.clone(),
                    bytes: match narrow {
                        true if whole(v) => read(v) * self.storage.narrow,
                        true => self.stored[v.0 as usize] * self.storage.narrow,
                        false => self.stored[v.0 as usize],
                    },
                    logits: f.ty(v).dim("v").is_some(),
                    again,
                    first: k,
                    last: k,
                });
                (t.first, t.last) = (t.first.min(k), t.last.max(k));
                // The gradient is in the place of the logits until their product has used it.
                if kernel.in_place {
                    t.first = t.first.min(made_by.unwrap_or(k));
                }
            }
            for (name, bytes, part) in &kernel.own {
                let again = part.filter(|p| parts.contains(p) || drops_loops(parts)).map(|p| 1 << 20 | p as u32);
                let name = format!("{}.{name}", self.name(k));
                out.push(Tensor { value: None, name, bytes: *bytes, logits: kernel.loss, again, first: k, last: k });
            }
        }
        out.extend(found.into_values());
        out
    }

    fn name(&self, k: usize) -> String {
        let f = self.walk.f;
        let last = self.kernels[k].members.last().and_then(|i| f.nodes[*i].results.first());
        last.map_or(String::new(), |r| f.value(*r).name.clone())
    }

    /// By node: how many products with weights there are up to it, itself included.
    fn product_numbers(&self) -> Vec<usize> {
        let mut count = 0;
        let f = self.walk.f;
        let number = |n: &autoshard_ir::core::Node| {
            let weights = n.inputs.iter().any(|v| self.walk.weight[v.0 as usize]);
            count += usize::from(n.op.template == Template::Gemm && weights);
            count
        };
        f.nodes.iter().map(number).collect()
    }

    /// Whether a value is computed again, and the key of what comes with it.
    fn again(&self, v: ValueId, parts: &[Part], products: &[usize]) -> Option<u32> {
        let f = self.walk.f;
        let Def::Result(n, _) = f.value(v).def else { return None };
        let template = f.node(n).op.template;
        let is_loop = matches!(template, Template::Loop | Template::View);
        // A compiler computes loops again where their results are read.
        let logits = f.ty(v).dim("v").is_some();
        if self.walk.habits.fusion == Fusion::Compiled && is_loop && !logits {
            return Some(v.0);
        }
        let name = &f.value(v).name;
        let expert = f.ty(v).dim("E").is_some();
        let part = parts.iter().find(|p| p.makes(name, template, expert, products[n.0 as usize]))?;
        Some(match part {
            Part::Norms | Part::Activation | Part::HalfProducts => v.0,
            Part::Attention | Part::Mlp | Part::Experts | Part::LatentHeads => 1 << 20 | *part as u32,
        })
    }

    /// Plays the forward.
    fn forward(&self, tensors: &[Tensor]) -> Peak {
        let f = self.walk.f;
        let mut live = Live::default();
        let keeps = |v: ValueId| {
            tensors.iter().any(|t| t.value == Some(v) && t.again.is_none() && t.bytes >= self.stored[v.0 as usize])
        };
        for p in f.params.iter().filter(|p| !self.walk.small(p.value)) {
            live.add(self.stored[p.value.0 as usize], false);
        }
        for (k, kernel) in self.kernels.iter().enumerate() {
            let gathered: f64 = kernel.inputs.iter().map(|(v, read)| (read - self.stored[v.0 as usize]).max(0.0)).sum();
            let own: f64 = kernel.own.iter().map(|(_, b, _)| b).sum();
            live.add(own, kernel.loss);
            let mut more = 0.0;
            for (v, made) in &kernel.outputs {
                live.add(self.stored[v.0 as usize], f.ty(*v).dim("v").is_some());
                more += (made - self.stored[v.0 as usize]).max(0.0);
            }
            live.look(gathered + more + kernel.scratch[0], kernel.loss);
            let kept_own: f64 = tensors
                .iter()
                .filter(|t| t.value.is_none() && t.first == k && t.again.is_none())
                .map(|t| t.bytes)
                .sum();
            live.add(kept_own - own, kernel.loss);
            for (v, _) in &kernel.inputs {
                if self.last_reader[v.0 as usize] == Some(k) && !keeps(*v) && !f.results.contains(v) {
                    let narrow: f64 =
                        tensors.iter().filter(|t| t.value == Some(*v) && t.again.is_none()).map(|t| t.bytes).sum();
                    live.add(narrow - self.stored[v.0 as usize], f.ty(*v).dim("v").is_some());
                }
            }
        }
        live.peak
    }

    /// Plays the backward.
    fn backward(&self, tensors: &[Tensor]) -> Peak {
        let f = self.walk.f;
        let mut live = Live::default();
        let mut cots = Cotangents::default();
        for t in tensors.iter().filter(|t| t.again.is_none()) {
            live.add(t.bytes, t.logits);
        }
        for r in f.results.iter().filter(|r| self.walk.active[r.0 as usize]) {
            cots.set(*r, self.stored[r.0 as usize], &mut live, false);
        }
        let mut made: Vec<u32> = Vec::new();
        for (k, kernel) in self.kernels.iter().enumerate().rev() {
            for t in tensors.iter().filter(|t| t.last == k) {
                if let Some(key) = t.again.filter(|key| !made.contains(key)) {
                    made.push(key);
                    let come = tensors.iter().filter(|t| t.again == Some(key));
                    come.for_each(|t| live.add(t.bytes, t.logits));
                }
            }
            self.step_back(kernel, &mut live, &mut cots);
            for t in tensors.iter().filter(|t| t.first == k) {
                live.add(-t.bytes, t.logits);
            }
        }
        live.peak
    }

    /// The backward of one kernel.
    fn step_back(&self, kernel: &Kernel, live: &mut Live, cots: &mut Cotangents) {
        let f = self.walk.f;
        let has = kernel.outputs.iter().any(|(v, _)| cots.of.contains_key(v));
        let logits = |v: ValueId| f.ty(v).dim("v").is_some();
        let active: Vec<(ValueId, f64)> =
            kernel.inputs.iter().filter(|(v, _)| self.walk.active[v.0 as usize]).copied().collect();
        // Inputs that are gathered again, cotangents that are gathered, terms of sums before they are reduced.
        let gathered: f64 = kernel
            .needs
            .iter()
            .filter_map(|(v, _)| kernel.inputs.iter().find(|(w, _)| w == v))
            .chain(&kernel.outputs)
            .map(|(v, whole)| if *whole > self.stored[v.0 as usize] { *whole } else { 0.0 })
            .sum();
        let mut transient = gathered + kernel.scratch[1] + kernel.weight_bytes;
        if has && kernel.passes && active.len() == kernel.inputs.len() {
            let from = kernel.outputs.first().and_then(|(v, _)| cots.of.get(v).copied());
            for (v, _) in &active {
                match (cots.of.contains_key(v), from) {
                    (false, Some(buffer)) => cots.share(*v, buffer),
                    (true, _) => transient += self.stored[v.0 as usize],
                    (false, None) => {}
                }
            }
        } else {
            for (v, read) in &active {
                let stored = self.stored[v.0 as usize];
                transient += (read - stored).max(0.0);
                if cots.of.contains_key(v) {
                    // The sum of two cotangents is a third before both are free.
                    transient += stored;
                } else {
                    let bytes = if kernel.in_place { 0.0 } else { stored };
                    cots.set(*v, bytes, live, logits(*v));
                }
            }
        }
        live.look(transient, kernel.loss);
        for (v, _) in &kernel.outputs {
            cots.free(*v, live, logits(*v));
        }
    }
}

fn drops_loops(parts: &[Part]) -> bool {
    parts.contains(&Part::HalfProducts)
}

/// Bytes that are live, and the most so far.
#[derive(Default)]
struct Live {
    now: f64,
    logits: f64,
    peak: Peak,
}

impl Live {
    fn add(&mut self, bytes: f64, logits: bool) {
        self.now += bytes;
        if logits {
            self.logits += bytes;
        }
        self.look(0.0, false);
    }

    fn look(&mut self, more: f64, logits: bool) {
        if self.now + more > self.peak.bytes {
            self.peak = Peak { bytes: self.now + more, logits: self.logits + if logits { more } else { 0.0 } };
        }
    }
}

/// Cotangents by value; several may be one buffer.
#[derive(Default)]
struct Cotangents {
    of: BTreeMap<ValueId, usize>,
    buffers: Vec<(f64, usize)>,
}

impl Cotangents {
    fn set(&mut self, v: ValueId, bytes: f64, live: &mut Live, logits: bool) {
        live.add(bytes, logits);
        self.of.insert(v, self.buffers.len());
        self.buffers.push((bytes, 1));
    }

    fn share(&mut self, v: ValueId, buffer: usize) {
        self.of.insert(v, buffer);
        self.buffers[buffer].1 += 1;
    }

    fn free(&mut self, v: ValueId, live: &mut Live, logits: bool) {
        if let Some(b) = self.of.remove(&v) {
            self.buffers[b].1 -= 1;
            if self.buffers[b].1 == 0 {
                live.add(-self.buffers[b].0, logits);
            }
        }
    }
}

//! From a decoder to a forward module: `@tables`, `@embed`, a function a kind of layer, `@head`, and an
//! entry of calls.
//!
//! Dimensions: b sequences, s positions, d hidden, g key/value heads, r queries per key/value head, e
//! query/key head width, h value head width where it may differ, f MLP width (also of shared experts), E
//! experts, c slots of one expert, k chosen experts, v vocabulary, l latents, p learned positions, j the two
//! halves that a further-token layer joins.

use super::block::BlockBuilder;
use super::weights::{Use, Weight};
use super::{Decoder, Layer, Norm, NormKind, Position, Rotary};
use crate::import::build::{LABELS, TOKENS};
use crate::import::rope::{Rope, RopeScaling};
use autoshard_ir::core::{Attrs, BuildError, Builder, Function, Module, Type, ValueId};
use autoshard_ir::{DType, Monoid};

/// Sizes and type of a module.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ModuleShape {
    /// Sequences.
    pub batch: usize,
    /// Positions per sequence.
    pub seq_len: usize,
    /// Type of activations; parameters are masters, f32 where this is bf16.
    pub dtype: DType,
    /// Slots of an expert over the tokens that it gets when all experts get equally many; tokens beyond are
    /// dropped. 1 is a balanced router, as benchmarks force it.
    pub capacity: f64,
}

/// Largest sizes that a module may have; beyond them index arithmetic could overflow.
const MOST: usize = 1 << 31;

impl Decoder {
    /// The forward module; its entry returns the mean loss, further tokens' losses added.
    ///
    /// Parameters are named as in [`Decoder::layer_weights`], those of layers `layers.N.NAME` in the entry.
    /// With layers that predict further tokens the entry takes `labels.1`, … beside `labels`: the token
    /// after the next at each position, and so on.
    pub fn module(&self, shape: &ModuleShape) -> Result<Module, BuildError> {
        for (what, value) in [("batch", shape.batch), ("seq_len", shape.seq_len)] {
            if value == 0 || value > MOST {
                return Err(BuildError::Malformed(format!("{what} is {value}; it must be between 1 and {MOST}")));
            }
        }
        if !(shape.capacity > 0.0 && shape.capacity.is_finite()) {
            let message = format!("the capacity factor is {}; it must be above 0 and finite", shape.capacity);
            return Err(BuildError::Malformed(message));
        }
        ModuleBuilder { m: self, shape, c: Context { shape } }.module()
    }

    /// Slots of one expert: the balanced share of batch·seq_len·top_k, times the capacity factor, up to a
    /// whole number.
    pub(crate) fn slots(shape: &ModuleShape, experts: usize, top_k: usize) -> usize {
        let chosen = shape.batch as f64 * shape.seq_len as f64 * top_k as f64;
        ((chosen / experts as f64 * shape.capacity).ceil() as usize).max(1)
    }
}

/// What all functions share.
#[derive(Clone, Copy)]
pub(super) struct Context<'a> {
    pub shape: &'a ModuleShape,
}

/// The parameters of a function by name.
pub(super) struct Params(Vec<(String, ValueId)>);

impl Params {
    pub fn of(&self, name: &str) -> Option<ValueId> {
        self.0.iter().find(|(n, _)| n == name).map(|(_, v)| *v)
    }

    pub fn need(&self, name: &str) -> Result<ValueId, BuildError> {
        self.of(name).ok_or_else(|| BuildError::Malformed(format!("the layer has no parameter {name}")))
    }
}

impl Context<'_> {
    /// A type of activations.
    pub fn ty(&self, dims: &[(&str, usize)]) -> Type {
        Type::new(self.shape.dtype, dims)
    }

    pub fn stream(&self, hidden: usize) -> Type {
        self.ty(&[("b", self.shape.batch), ("s", self.shape.seq_len), ("d", hidden)])
    }

    fn ids(&self) -> Type {
        Type { dtype: DType::I32, ..self.ty(&[("b", self.shape.batch), ("s", self.shape.seq_len)]) }
    }

    fn weight_type(&self, w: &Weight) -> Type {
        Type { dtype: self.shape.dtype.arithmetic(), ..self.ty(&w.dims) }
    }

    /// Adds parameters to a function; those that no node reads are left out.
    pub fn add_params(&self, f: &mut Function, weights: &[Weight]) -> Params {
        let mut add = |w: &Weight| f.add_param(&w.name, self.weight_type(w), w.kind != Use::Untrained);
        Params(weights.iter().filter(|w| w.kind != Use::Unread).map(|w| (w.name.clone(), add(w))).collect())
    }

    /// A parameter as computations take it: cast from its master where that has another type.
    pub fn copy(&self, b: &mut Builder, w: ValueId) -> Result<ValueId, BuildError> {
        if b.ty(w).dtype == self.shape.dtype {
            return Ok(w);
        }
        let name = format!("{}.copy", b.func.value(w).name);
        b.op(&name, "cast", &[w], Attrs::new().text("dtype", self.shape.dtype.name()))
    }

    /// A norm of the last dimension with the parameters `key` and `key.bias`, where it has them.
    pub fn norm(
        &self,
        b: &mut Builder,
        name: &str,
        x: ValueId,
        norm: Norm,
        w: &Params,
        key: &str,
    ) -> Result<ValueId, BuildError> {
        let attrs = Attrs::new().float("eps", norm.eps);
        let gain = self.norm_operand(b, x, w.of(key), 1.0, key)?;
        match norm.kind {
            NormKind::Rms => b.op(name, "rmsnorm", &[x, gain], attrs),
            NormKind::Layer => {
                let bias_key = format!("{key}.bias");
                let bias = self.norm_operand(b, x, w.of(&bias_key), 0.0, &bias_key)?;
                b.op(name, "layernorm", &[x, gain, bias], attrs)
            }
        }
    }

    /// The parameter of a norm, or the constant that stands for a missing one.
    fn norm_operand(
        &self,
        b: &mut Builder,
        x: ValueId,
        w: Option<ValueId>,
        value: f64,
        name: &str,
    ) -> Result<ValueId, BuildError> {
        if let Some(w) = w {
            return Ok(w);
        }
        let last = b.ty(x).dims.last().cloned();
        let (dim, size) = last.map_or(("d".to_string(), 1), |d| (d.name, d.size));
        let constant = b.constant(value, self.shape.dtype.arithmetic())?;
        let attrs = Attrs::new().text("spec", format!(" -> {dim}")).ints("sizes", [size]);
        b.op(&format!("{name}.constant"), "broadcast", &[constant], attrs)
    }

    /// A product with an optional bias, which is broadcast over the dimensions that only the result has.
    pub fn linear(
        &self,
        b: &mut Builder,
        name: &str,
        x: (ValueId, &str),
        w: (ValueId, &str),
        bias: Option<(ValueId, &str)>,
        result: &str,
    ) -> Result<ValueId, BuildError> {
        let weight = self.copy(b, w.0)?;
        let y = b.einsum(name, &[x.0, weight], &format!("{}, {} -> {result}", x.1, w.1))?;
        let Some((bias, dims)) = bias else { return Ok(y) };
        let bias = self.copy(b, bias)?;
        let wide = self.spread(b, &format!("{name}.bias"), bias, dims, y, result)?;
        b.op(&format!("{name}.biased"), "add", &[y, wide], Attrs::new())
    }

    /// `x` with dimensions `from`, repeated to the dimensions `to` of `like`.
    pub fn spread(
        &self,
        b: &mut Builder,
        name: &str,
        x: ValueId,
        from: &str,
        like: ValueId,
        to: &str,
    ) -> Result<ValueId, BuildError> {
        let old: Vec<&str> = from.split_whitespace().collect();
        let sizes = b.ty(like).sizes();
        let new: Vec<usize> = to.split_whitespace().zip(sizes).filter(|(n, _)| !old.contains(n)).map(|p| p.1).collect();
        let attrs = Attrs::new().text("spec", format!("{from} -> {to}")).ints("sizes", new);
        b.op(name, "broadcast", &[x], attrs)
    }
}

struct ModuleBuilder<'a> {
    m: &'a Decoder,
    shape: &'a ModuleShape,
    c: Context<'a>,
}

impl ModuleBuilder<'_> {
    fn module(&self) -> Result<Module, BuildError> {
        let rotaries = self.rotaries();
        let mut functions: Vec<Function> = Vec::new();
        for (i, rotary) in rotaries.iter().enumerate() {
            functions.push(self.tables(i, *rotary)?);
        }
        functions.push(self.embed()?);
        let mut blocks: Vec<(&Layer, String)> = Vec::new();
        let all = self.m.layers.iter().flat_map(|r| std::iter::repeat_n(&r.layer, r.count));
        for (i, layer) in all.chain(&self.m.mtp).enumerate() {
            if !blocks.iter().any(|(l, _)| *l == layer) {
                let name = if i == 0 { "block".to_string() } else { format!("block.{i}") };
                functions.push(BlockBuilder { m: self.m, layer, c: self.c }.function(&name)?);
                blocks.push((layer, name));
            }
        }
        if !self.m.mtp.is_empty() {
            functions.extend([self.join()?, self.total()?]);
        }
        functions.push(self.head()?);
        let entry = Entry::new(self, &functions, &blocks, &rotaries).build()?;
        functions.push(entry);
        Ok(Module { mesh: Default::default(), functions, entry: "main".to_string() })
    }

    /// The distinct rotations.
    fn rotaries(&self) -> Vec<Rotary> {
        let mut out: Vec<Rotary> = Vec::new();
        for rotary in self.m.kinds().iter().filter_map(|l| l.attention.rotary) {
            if !out.contains(&rotary) {
                out.push(rotary);
            }
        }
        out
    }

    /// Cosines and sines of the positions, shared by all layers with this rotation.
    fn tables(&self, index: usize, rotary: Rotary) -> Result<Function, BuildError> {
        let name = if index == 0 { "tables".to_string() } else { format!("tables.{index}") };
        let rope = Rope::new(rotary.theta, RopeScaling::Default, rotary.width);
        let mut f = Function::new(name);
        let mut b = Builder::new(&mut f);
        let attrs = Attrs::new()
            .floats("inv_freq", rope.inv_freq.iter().map(|x| f64::from(*x)).collect())
            .float("multiplier", rope.multiplier)
            .int("size", self.shape.seq_len as i64)
            .text("dtype", self.shape.dtype.name());
        f.results = b.ops(&["cos", "sin"], "rope_table", &[], attrs)?;
        Ok(f)
    }

    /// The embedding's parameters, a table of positions as long as the sequence where none is stated.
    fn embed_weights(&self) -> Vec<Weight> {
        let mut weights = self.m.embed_weights();
        for (_, size) in weights.iter_mut().flat_map(|w| &mut w.dims).filter(|(n, size)| *n == "p" && *size == 0) {
            *size = self.shape.seq_len;
        }
        weights
    }

    fn embed(&self) -> Result<Function, BuildError> {
        let mut f = Function::new("embed");
        let tokens = f.add_param(TOKENS, self.c.ids(), false);
        let w = self.c.add_params(&mut f, &self.embed_weights());
        let mut b = Builder::new(&mut f);
        // Rows of the master are rounded, not the whole table; and its gradient adds up in its type.
        let x = b.op("x", "gather", &[w.need("embed")?, tokens], Attrs::new())?;
        let mut x = self.c.copy(&mut b, x)?;
        if let Position::Learned { .. } = self.m.position {
            let attrs = Attrs::new().text("dim", "p").int("start", 0).int("size", self.shape.seq_len as i64);
            let rows = b.op("rows", "slice", &[w.need("positions")?], attrs)?;
            let rows = self.c.copy(&mut b, rows)?;
            let wide = self.c.spread(&mut b, "rows.wide", rows, "s d", x, "b s d")?;
            x = b.op("x.placed", "add", &[x, wide], Attrs::new())?;
        }
        if let Some(norm) = self.m.embed_norm {
            x = self.c.norm(&mut b, "x.normed", x, norm, &w, "embed_norm")?;
        }
        f.results = vec![x];
        Ok(f)
    }

    /// Joins the stream with the embedding of the token that is already known.
    fn join(&self) -> Result<Function, BuildError> {
        let mut f = Function::new("join");
        let x = f.add_param("x", self.c.stream(self.m.hidden), false);
        let next = f.add_param("next", self.c.stream(self.m.hidden), false);
        let w = self.c.add_params(&mut f, &self.m.mtp_weights());
        let mut b = Builder::new(&mut f);
        let a = self.c.norm(&mut b, "a", x, self.m.final_norm, &w, "stream_norm")?;
        let n = self.c.norm(&mut b, "n", next, self.m.final_norm, &w, "token_norm")?;
        let both = b.op("both", "concat", &[a, n], Attrs::new().text("dim", "d"))?;
        let y = self.c.linear(&mut b, "y", (both, "b s j"), (w.need("w_join")?, "d j"), None, "b s d")?;
        f.results = vec![y];
        Ok(f)
    }

    /// The sum of two losses.
    fn total(&self) -> Result<Function, BuildError> {
        let mut f = Function::new("total");
        let scalar = Type::new(self.shape.dtype.arithmetic(), &[]);
        let a = f.add_param("a", scalar.clone(), false);
        let further = f.add_param("further", scalar, false);
        let y = Builder::new(&mut f).op("loss", "add", &[a, further], Attrs::new())?;
        f.results = vec![y];
        Ok(f)
    }

    /// Last norm, logits, mean cross-entropy over all positions.
    fn head(&self) -> Result<Function, BuildError> {
        let mut f = Function::new("head");
        let x = f.add_param("x", self.c.stream(self.m.hidden), false);
        let labels = f.add_param(LABELS, self.c.ids(), false);
        let w = self.c.add_params(&mut f, &self.m.head_weights(false));
        let mut b = Builder::new(&mut f);
        let h = self.c.norm(&mut b, "h", x, self.m.final_norm, &w, "norm")?;
        let bias = w.of("b_head").map(|v| (v, "v"));
        let mut logits = self.c.linear(&mut b, "logits", (h, "b s d"), (w.need("head")?, "v d"), bias, "b s v")?;
        if let Some(cap) = self.m.logit_cap {
            let scaled = b.affine(logits, 1.0 / cap, 0.0)?;
            let bent = b.map("tanh", &[scaled])?;
            logits = b.affine(bent, cap, 0.0)?;
        }
        let losses = b.ops(&["losses", "lse"], "cross_entropy", &[logits, labels], Attrs::new())?[0];
        let sum = b.reduce(Monoid::Sum, losses, "b s ->")?;
        let tokens = self.shape.batch as f64 * self.shape.seq_len as f64;
        let loss = b.op("loss", "affine", &[sum], Attrs::new().float("mul", 1.0 / tokens).float("add", 0.0))?;
        f.results = vec![loss];
        Ok(f)
    }
}

/// Parameters of a layer that predicts further tokens, as the entry takes them.
struct Further {
    join: Vec<ValueId>,
    layer: Vec<ValueId>,
    norm: Vec<ValueId>,
}

/// The entry under construction.
struct Entry<'a> {
    b: &'a ModuleBuilder<'a>,
    functions: &'a [Function],
    blocks: &'a [(&'a Layer, String)],
    rotaries: &'a [Rotary],
    f: Function,
}

impl<'a> Entry<'a> {
    fn new(
        b: &'a ModuleBuilder<'a>,
        functions: &'a [Function],
        blocks: &'a [(&'a Layer, String)],
        rotaries: &'a [Rotary],
    ) -> Entry<'a> {
        Entry { b, functions, blocks, rotaries, f: Function::new("main") }
    }

    fn build(mut self) -> Result<Function, BuildError> {
        let (m, c) = (self.b.m, self.b.c);
        let tokens = self.f.add_param(TOKENS, c.ids(), false);
        let mut labels = vec![self.f.add_param(LABELS, c.ids(), false)];
        for i in 0..m.mtp.len() {
            labels.push(self.f.add_param(&format!("{LABELS}.{}", i + 1), c.ids(), false));
        }
        let embed = self.weights("", &self.b.embed_weights());
        let mut layers = Vec::new();
        let all = m.layers.iter().flat_map(|r| std::iter::repeat_n(&r.layer, r.count));
        for (i, layer) in all.enumerate() {
            layers.push((layer, self.weights(&format!("layers.{i}."), &m.layer_weights(layer))));
        }
        let mut head = self.weights("", &m.head_weights(true));
        if m.tied {
            let at = head.len() - usize::from(m.head_bias);
            head.insert(at, embed[0]);
        }
        // Parameters come first, as the text form has them.
        let mut further = Vec::new();
        for (i, layer) in m.mtp.iter().enumerate() {
            further.push(self.further_weights(i, layer));
        }
        let tables = self.tables()?;
        let mut x = self.call("embed", &join(&[&[tokens], &embed]), &["x"])?[0];
        for (i, (layer, weights)) in layers.iter().enumerate() {
            x = self.layer(x, layer, &tables, weights, &format!("x.{}", i + 1))?;
        }
        let mut loss = self.call("head", &join(&[&[x, labels[0]], &head]), &["loss"])?[0];
        for (i, (layer, w)) in m.mtp.iter().zip(&further).enumerate() {
            // The label is the next token, which the further prediction knows.
            let next = self.call("embed", &join(&[&[labels[i]], &embed]), &[&format!("next.{i}")])?[0];
            x = self.call("join", &join(&[&[x, next], &w.join]), &[&format!("joined.{i}")])?[0];
            x = self.layer(x, layer, &tables, &w.layer, &format!("further.{i}"))?;
            // The norm before the head is its own, the matrix is shared.
            let args = join(&[&[x, labels[i + 1]], &w.norm, &head[w.norm.len()..]]);
            let more = self.call("head", &args, &[&format!("loss.{i}")])?[0];
            loss = self.call("total", &[loss, more], &[&format!("total.{i}")])?[0];
        }
        self.f.results = vec![loss];
        Ok(self.f)
    }

    /// The parameters of one layer that predicts further tokens.
    fn further_weights(&mut self, index: usize, layer: &Layer) -> Further {
        let (m, prefix) = (self.b.m, format!("mtp.{index}."));
        let norm: Vec<Weight> = m.head_weights(false).into_iter().filter(|w| w.name.starts_with("norm")).collect();
        Further {
            join: self.weights(&prefix, &m.mtp_weights()),
            layer: self.weights(&prefix, &m.layer_weights(layer)),
            norm: self.weights(&prefix, &norm),
        }
    }

    /// Adds parameters under a prefix.
    fn weights(&mut self, prefix: &str, weights: &[Weight]) -> Vec<ValueId> {
        let named: Vec<Weight> =
            weights.iter().map(|w| Weight { name: format!("{prefix}{}", w.name), ..w.clone() }).collect();
        self.b.c.add_params(&mut self.f, &named).0.into_iter().map(|(_, v)| v).collect()
    }

    fn tables(&mut self) -> Result<Vec<Vec<ValueId>>, BuildError> {
        let names: Vec<String> = self.functions[..self.rotaries.len()].iter().map(|f| f.name.clone()).collect();
        names.iter().map(|n| self.call(n, &[], &["cos", "sin"])).collect()
    }

    fn layer(
        &mut self,
        x: ValueId,
        layer: &Layer,
        tables: &[Vec<ValueId>],
        weights: &[ValueId],
        name: &str,
    ) -> Result<ValueId, BuildError> {
        let rotary = layer.attention.rotary.and_then(|r| self.rotaries.iter().position(|q| *q == r));
        let table: &[ValueId] = rotary.map_or(&[], |i| &tables[i]);
        let callee = self.blocks.iter().find(|(l, _)| *l == layer).map_or("block", |(_, n)| n);
        Ok(self.call(callee, &join(&[&[x], table, weights]), &[name])?[0])
    }

    fn call(&mut self, name: &str, args: &[ValueId], results: &[&str]) -> Result<Vec<ValueId>, BuildError> {
        let callee = self.functions.iter().find(|f| f.name == name);
        let callee = callee.ok_or_else(|| BuildError::Malformed(format!("no function @{name}")))?;
        let names: Vec<String> = results.iter().map(|s| s.to_string()).collect();
        Ok(Builder::new(&mut self.f).call(callee, args, &names))
    }
}

fn join(parts: &[&[ValueId]]) -> Vec<ValueId> {
    parts.concat()
}

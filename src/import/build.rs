//! From a resolved configuration to a module: `@tables`, `@embed`, one `@block` per kind of layer,
//! `@head`, and an entry that calls them.
//!
//! Checkpoint tensors keep their row-major order; only dimensions are split (`[out, in]` of a query
//! projection is `[g, r, e, d]`), so loading, saving and initialising a shard are views.
//!
//! Dimensions: b sequences, s positions, d hidden, g key/value heads, r queries per key/value head,
//! e head width, f MLP width, v vocabulary.

use super::config::ModelConfig;
use super::families::Role;
use super::params::{layer_roles, spec, ParamSpec};
use autoshard_ir::core::{Attrs, BuildError, Builder, Function, Module, Type, ValueId};
use autoshard_ir::{DType, Monoid};
use std::collections::BTreeMap;

/// Sizes and type of a training step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepShape {
    /// Sequences over all data ranks.
    pub batch: usize,
    /// Positions per sequence.
    pub seq_len: usize,
    /// Type of parameters and activations.
    pub dtype: DType,
}

/// Input names of an imported entry.
pub const TOKENS: &str = "tokens";
/// Name of the entry's labels: the next token at each position.
pub const LABELS: &str = "labels";

/// A module with the checkpoint tensor of each trainable parameter of its entry.
#[derive(Clone, Debug)]
pub struct Model {
    /// Forward module; its entry returns the mean loss.
    pub module: Module,
    /// Checkpoint tensors in the order of the entry's trainable parameters; each parameter has its
    /// tensor's Hugging Face name.
    pub params: Vec<ParamSpec>,
}

/// Builds the forward module of a configuration.
pub fn build(config: &ModelConfig, shape: StepShape) -> Result<Model, BuildError> {
    let b = ModelBuilder { c: config, shape };
    let mut functions: Vec<Function> = Vec::new();
    for (i, _) in config.ropes.iter().enumerate() {
        functions.push(b.tables(i)?);
    }
    functions.push(b.embed()?);
    let mut blocks: BTreeMap<(usize, Option<usize>), String> = BTreeMap::new();
    for layer in 0..config.layers {
        let kind = (config.rope_of_layer[layer], config.windows[layer]);
        if let std::collections::btree_map::Entry::Vacant(slot) = blocks.entry(kind) {
            let name = if functions.iter().any(|f| f.name == "block") {
                format!("block.{layer}")
            } else {
                "block".to_string()
            };
            functions.push(b.block(&name, kind.1)?);
            slot.insert(name);
        }
    }
    functions.push(b.head()?);
    let (entry, params) = b.entry(&functions, &blocks);
    functions.push(entry);
    Ok(Model { module: Module { mesh: Default::default(), functions, entry: "main".to_string() }, params })
}

struct ModelBuilder<'a> {
    c: &'a ModelConfig,
    shape: StepShape,
}

impl ModelBuilder<'_> {
    fn ty(&self, names: &[&str]) -> Type {
        let c = self.c;
        let dims: Vec<(&str, usize)> = names
            .iter()
            .map(|n| {
                let size = match *n {
                    "b" => self.shape.batch,
                    "s" => self.shape.seq_len,
                    "d" => c.hidden,
                    "g" => c.kv_heads,
                    "r" => c.heads / c.kv_heads,
                    "e" => c.head_dim,
                    "h" => c.head_dim / 2,
                    "f" => c.ffn,
                    _ => c.vocab,
                };
                (*n, size)
            })
            .collect();
        Type::new(self.shape.dtype, &dims)
    }

    fn ids(&self) -> Type {
        Type { dtype: DType::I32, ..self.ty(&["b", "s"]) }
    }

    /// The tensor of a role with its dimensions split. Parameters are masters: f32 where the rest is bf16.
    fn param_type(&self, role: Role) -> Type {
        let dtype = if self.shape.dtype == DType::Bf16 { DType::F32 } else { self.shape.dtype };
        let ty = self.ty(match role {
            Role::Embed | Role::Head => &["v", "d"],
            Role::Q => &["g", "r", "e", "d"],
            Role::QBias => &["g", "r", "e"],
            Role::K | Role::V => &["g", "e", "d"],
            Role::KBias | Role::VBias => &["g", "e"],
            Role::O => &["d", "g", "r", "e"],
            Role::QNorm | Role::KNorm => &["e"],
            Role::Gate | Role::Up => &["f", "d"],
            Role::GateBias | Role::UpBias => &["f"],
            Role::Down => &["d", "f"],
            Role::OBias | Role::DownBias | Role::AttnNorm | Role::MlpNorm | Role::FinalNorm => &["d"],
        });
        Type { dtype, ..ty }
    }

    /// A parameter as computations take it: cast from its master where that has another type. (Norms and
    /// the embedding take the master itself.)
    fn copy(&self, b: &mut Builder, w: ValueId) -> Result<ValueId, BuildError> {
        if b.ty(w).dtype == self.shape.dtype {
            return Ok(w);
        }
        let name = format!("{}.copy", b.func.value(w).name);
        b.op(&name, "cast", &[w], Attrs::new().text("dtype", self.shape.dtype.name()))
    }

    /// Cosines and sines of the positions, shared by all layers with this rotation.
    fn tables(&self, rope: usize) -> Result<Function, BuildError> {
        let name = if rope == 0 { "tables".to_string() } else { format!("tables.{rope}") };
        let rope = &self.c.ropes[rope];
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

    fn embed(&self) -> Result<Function, BuildError> {
        let mut f = Function::new("embed");
        let tokens = f.add_param(TOKENS, self.ids(), false);
        let table = f.add_param("embed", self.param_type(Role::Embed), true);
        let mut b = Builder::new(&mut f);
        // Rows of the master are rounded, not the whole table; and its gradient adds up in its type.
        let x = b.op("x", "gather", &[table, tokens], Attrs::new())?;
        let x = self.copy(&mut b, x)?;
        f.results = vec![x];
        Ok(f)
    }

    fn block(&self, name: &str, window: Option<usize>) -> Result<Function, BuildError> {
        let mut f = Function::new(name);
        let x = f.add_param("x", self.ty(&["b", "s", "d"]), false);
        let cos = f.add_param("cos", self.ty(&["s", "h"]), false);
        let sin = f.add_param("sin", self.ty(&["s", "h"]), false);
        let weights: BTreeMap<Role, ValueId> = layer_roles(self.c)
            .map(|role| (role, f.add_param(param_name(role), self.param_type(role), true)))
            .collect();
        let w = Weights(weights);
        let mut b = Builder::new(&mut f);
        let a = self.norm(&mut b, "a", x, w.of(Role::AttnNorm))?;
        let o = self.attention(&mut b, a, cos, sin, &w, window)?;
        let x1 = b.op("x1", "add", &[x, o], Attrs::new())?;
        let m = self.norm(&mut b, "m", x1, w.of(Role::MlpNorm))?;
        let down = self.mlp(&mut b, m, &w)?;
        let y = b.op("y", "add", &[x1, down], Attrs::new())?;
        f.results = vec![y];
        Ok(f)
    }

    fn norm(&self, b: &mut Builder, name: &str, x: ValueId, w: Option<ValueId>) -> Result<ValueId, BuildError> {
        let Some(w) = w else { return Ok(x) };
        b.op(name, "rmsnorm", &[x, w], Attrs::new().float("eps", self.c.rms_eps))
    }

    /// A product with an optional bias, broadcast over batch and positions.
    fn linear(
        &self,
        b: &mut Builder,
        name: &str,
        x: (ValueId, &str),
        w: (Option<ValueId>, &str),
        bias: Option<ValueId>,
        result: &str,
    ) -> Result<ValueId, BuildError> {
        let Some(weight) = w.0 else { return Ok(x.0) };
        let weight = self.copy(b, weight)?;
        let y = b.einsum(name, &[x.0, weight], &format!("{}, {} -> {result}", x.1, w.1))?;
        let Some(bias) = bias else { return Ok(y) };
        let bias = self.copy(b, bias)?;
        let dims = result.trim_start_matches("b s ");
        let sizes = [self.shape.batch, self.shape.seq_len];
        let attrs = Attrs::new().text("spec", format!("{dims} -> {result}")).ints("sizes", sizes);
        let wide = b.op(&format!("{name}.bias"), "broadcast", &[bias], attrs)?;
        b.op(&format!("{name}.biased"), "add", &[y, wide], Attrs::new())
    }

    fn attention(
        &self,
        b: &mut Builder,
        a: ValueId,
        cos: ValueId,
        sin: ValueId,
        w: &Weights,
        window: Option<usize>,
    ) -> Result<ValueId, BuildError> {
        let a = (a, "b s d");
        let mut q = self.linear(b, "q", a, (w.of(Role::Q), "g r e d"), w.of(Role::QBias), "b s g r e")?;
        let mut k = self.linear(b, "k", a, (w.of(Role::K), "g e d"), w.of(Role::KBias), "b s g e")?;
        let v = self.linear(b, "v", a, (w.of(Role::V), "g e d"), w.of(Role::VBias), "b s g e")?;
        q = self.norm(b, "q.normed", q, w.of(Role::QNorm))?;
        k = self.norm(b, "k.normed", k, w.of(Role::KNorm))?;
        let q = b.op("q.turned", "rope", &[q, cos, sin], Attrs::new())?;
        let k = b.op("k.turned", "rope", &[k, cos, sin], Attrs::new())?;
        let attrs = Attrs::new()
            .float("scale", 1.0 / (self.c.head_dim as f64).sqrt())
            .int("causal", 1)
            .int("window", window.unwrap_or(0) as i64);
        let o = b.ops(&["o", "lse"], "attention", &[q, k, v], attrs)?[0];
        self.linear(b, "attn", (o, "b s g r e"), (w.of(Role::O), "d g r e"), w.of(Role::OBias), "b s d")
    }

    fn mlp(&self, b: &mut Builder, m: ValueId, w: &Weights) -> Result<ValueId, BuildError> {
        let m = (m, "b s d");
        let gate = self.linear(b, "gate", m, (w.of(Role::Gate), "f d"), w.of(Role::GateBias), "b s f")?;
        let up = self.linear(b, "up", m, (w.of(Role::Up), "f d"), w.of(Role::UpBias), "b s f")?;
        let act = b.op("act", "swiglu", &[gate, up], Attrs::new())?;
        self.linear(b, "down", (act, "b s f"), (w.of(Role::Down), "d f"), w.of(Role::DownBias), "b s d")
    }

    /// Last norm, logits, mean cross-entropy over all positions.
    fn head(&self) -> Result<Function, BuildError> {
        let mut f = Function::new("head");
        let x = f.add_param("x", self.ty(&["b", "s", "d"]), false);
        let labels = f.add_param(LABELS, self.ids(), false);
        let norm = f.add_param("norm", self.param_type(Role::FinalNorm), true);
        let head = f.add_param("head", self.param_type(Role::Head), true);
        let mut b = Builder::new(&mut f);
        let h = self.norm(&mut b, "h", x, Some(norm))?;
        let head = self.copy(&mut b, head)?;
        let logits = b.einsum("logits", &[h, head], "b s d, v d -> b s v")?;
        let losses = b.ops(&["losses", "lse"], "cross_entropy", &[logits, labels], Attrs::new())?[0];
        let sum = b.reduce(Monoid::Sum, losses, "b s ->")?;
        let tokens = (self.shape.batch * self.shape.seq_len) as f64;
        let loss = b.op("loss", "affine", &[sum], Attrs::new().float("mul", 1.0 / tokens).float("add", 0.0))?;
        f.results = vec![loss];
        Ok(f)
    }

    fn entry(
        &self,
        functions: &[Function],
        blocks: &BTreeMap<(usize, Option<usize>), String>,
    ) -> (Function, Vec<ParamSpec>) {
        let c = self.c;
        let mut f = Function::new("main");
        let mut specs = Vec::new();
        let tokens = f.add_param(TOKENS, self.ids(), false);
        let labels = f.add_param(LABELS, self.ids(), false);
        let mut param = |f: &mut Function, role: Role, layer: Option<usize>| {
            let s = spec(c, role, layer);
            let v = f.add_param(&s.name, self.param_type(role), true);
            specs.push(s);
            v
        };
        let embed = param(&mut f, Role::Embed, None);
        let layers: Vec<Vec<ValueId>> =
            (0..c.layers).map(|l| layer_roles(c).map(|r| param(&mut f, r, Some(l))).collect()).collect();
        let norm = param(&mut f, Role::FinalNorm, None);
        let head = if c.tied { embed } else { param(&mut f, Role::Head, None) };
        let by_name = |name: &str| functions.iter().find(|g| g.name == name);
        let call = |f: &mut Function, callee: Option<&Function>, args: &[ValueId], names: &[String]| {
            callee.map_or(Vec::new(), |g| Builder::new(f).call(g, args, names))
        };
        let tables: Vec<Vec<ValueId>> = (0..c.ropes.len())
            .map(|i| call(&mut f, functions.get(i), &[], &["cos".to_string(), "sin".to_string()]))
            .collect();
        let mut x = call(&mut f, by_name("embed"), &[tokens, embed], &["x".to_string()]);
        for (l, weights) in layers.iter().enumerate() {
            let table = &tables[c.rope_of_layer[l]];
            let name = &blocks[&(c.rope_of_layer[l], c.windows[l])];
            let args: Vec<ValueId> = x.iter().chain(table).chain(weights).copied().collect();
            x = call(&mut f, by_name(name), &args, &[format!("x.{}", l + 1)]);
        }
        let args: Vec<ValueId> = x.into_iter().chain([labels, norm, head]).collect();
        f.results = call(&mut f, by_name("head"), &args, &["loss".to_string()]);
        (f, specs)
    }
}

/// A block's parameters by role.
struct Weights(BTreeMap<Role, ValueId>);

impl Weights {
    fn of(&self, role: Role) -> Option<ValueId> {
        self.0.get(&role).copied()
    }
}

fn param_name(role: Role) -> &'static str {
    match role {
        Role::Embed => "embed",
        Role::Q => "wq",
        Role::QBias => "bq",
        Role::K => "wk",
        Role::KBias => "bk",
        Role::V => "wv",
        Role::VBias => "bv",
        Role::O => "wo",
        Role::OBias => "bo",
        Role::QNorm => "q_norm",
        Role::KNorm => "k_norm",
        Role::Gate => "w_gate",
        Role::GateBias => "b_gate",
        Role::Up => "w_up",
        Role::UpBias => "b_up",
        Role::Down => "w_down",
        Role::DownBias => "b_down",
        Role::AttnNorm => "attn_norm",
        Role::MlpNorm => "mlp_norm",
        Role::FinalNorm => "norm",
        Role::Head => "head",
    }
}

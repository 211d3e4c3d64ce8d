//! The function of one kind of layer.

use super::build::{Context, Params};
use super::{Activation, Attention, Decoder, Experts, Ffn, Form, Heads, Layer, Mlp, QkNorm, Scores};
use autoshard_ir::core::{Attrs, BuildError, Builder, Function, ValueId};
use autoshard_ir::Monoid;

pub(super) struct BlockBuilder<'a> {
    pub m: &'a Decoder,
    pub layer: &'a Layer,
    pub c: Context<'a>,
}

impl BlockBuilder<'_> {
    pub fn function(&self, name: &str) -> Result<Function, BuildError> {
        let mut f = Function::new(name);
        let x = f.add_param("x", self.c.stream(self.m.hidden), false);
        let tables = self.layer.attention.rotary.map(|rotary| {
            let ty = self.c.ty(&[("s", self.c.shape.seq_len), ("h", rotary.width / 2)]);
            (f.add_param("cos", ty.clone(), false), f.add_param("sin", ty, false))
        });
        let w = self.c.add_params(&mut f, &self.m.layer_weights(self.layer));
        let mut b = Builder::new(&mut f);
        let y = self.layer(&mut b, x, tables, &w)?;
        f.results = vec![y];
        Ok(f)
    }

    fn layer(
        &self,
        b: &mut Builder,
        x: ValueId,
        tables: Option<(ValueId, ValueId)>,
        w: &Params,
    ) -> Result<ValueId, BuildError> {
        let form = self.layer.form;
        let norm =
            |b: &mut Builder, name: &str, x: ValueId, key: &str| self.c.norm(b, name, x, self.layer.norm, w, key);
        let before = form != Form::Post;
        let after = matches!(form, Form::Post | Form::Sandwich);
        let a = if before { norm(b, "a", x, "attn_norm")? } else { x };
        let mut o = self.attention(b, a, tables, w)?;
        if after {
            o = norm(b, "attn.normed", o, "attn_post_norm")?;
        }
        if matches!(form, Form::Parallel | Form::ParallelTwo) {
            let m = if form == Form::ParallelTwo { norm(b, "m", x, "mlp_norm")? } else { a };
            let down = self.mlp(b, m, w)?;
            let both = b.op("both", "add", &[o, down], Attrs::new())?;
            return b.op("y", "add", &[x, both], Attrs::new());
        }
        let x1 = b.op("x1", "add", &[x, o], Attrs::new())?;
        let m = if before { norm(b, "m", x1, "mlp_norm")? } else { x1 };
        let mut down = self.mlp(b, m, w)?;
        if after {
            down = norm(b, "mlp.normed", down, "mlp_post_norm")?;
        }
        b.op("y", "add", &[x1, down], Attrs::new())
    }

    /// The named product of `x`, with its bias where the layer has one of that name.
    fn product(
        &self,
        b: &mut Builder,
        name: &str,
        x: (ValueId, &str),
        w: (&Params, &str, &str),
        bias: (&str, &str),
        result: &str,
    ) -> Result<ValueId, BuildError> {
        let (params, key, dims) = w;
        let bias = params.of(bias.0).map(|v| (v, bias.1));
        self.c.linear(b, name, x, (params.need(key)?, dims), bias, result)
    }

    fn attention(
        &self,
        b: &mut Builder,
        a: ValueId,
        tables: Option<(ValueId, ValueId)>,
        w: &Params,
    ) -> Result<ValueId, BuildError> {
        let spec = &self.layer.attention;
        let (q, k, v) = match spec.kind {
            Heads::Plain { .. } => self.plain(b, a, tables, w)?,
            Heads::Latent { .. } => self.latent(b, a, tables, w)?,
        };
        let attrs = Attrs::new()
            .float("scale", 1.0 / (spec.kind.qk_width() as f64).sqrt())
            .int("causal", 1)
            .int("window", spec.window.unwrap_or(0) as i64);
        let o = b.ops(&["o", "lse"], "attention", &[q, k, v], attrs)?[0];
        let (from, of) = match spec.kind {
            Heads::Plain { .. } => ("b s g r e", "d g r e"),
            Heads::Latent { .. } => ("b s g r h", "d g r h"),
        };
        self.product(b, "attn", (o, from), (w, "wo", of), ("bo", "d"), "b s d")
    }

    fn plain(
        &self,
        b: &mut Builder,
        a: ValueId,
        tables: Option<(ValueId, ValueId)>,
        w: &Params,
    ) -> Result<(ValueId, ValueId, ValueId), BuildError> {
        let spec = &self.layer.attention;
        let a = (a, "b s d");
        let mut q = self.product(b, "q", a, (w, "wq", "g r e d"), ("bq", "g r e"), "b s g r e")?;
        let mut k = self.product(b, "k", a, (w, "wk", "g e d"), ("bk", "g e"), "b s g e")?;
        let v = self.product(b, "v", a, (w, "wv", "g e d"), ("bv", "g e"), "b s g e")?;
        q = self.qk_norm(b, "q", q, w, ("b s g r e", "b s (g r e)"))?;
        k = self.qk_norm(b, "k", k, w, ("b s g e", "b s (g e)"))?;
        if let (Some(tables), Some(rotary)) = (tables, spec.rotary) {
            let still = spec.kind.qk_width() - rotary.width;
            q = turn(b, "q", q, tables, (rotary.width, still))?;
            k = turn(b, "k", k, tables, (rotary.width, still))?;
        }
        Ok((q, k, v))
    }

    /// Norm of queries or keys; `dims` are theirs, apart and with all heads in one.
    fn qk_norm(
        &self,
        b: &mut Builder,
        name: &str,
        x: ValueId,
        w: &Params,
        dims: (&str, &str),
    ) -> Result<ValueId, BuildError> {
        let norm = super::Norm { bias: false, ..self.layer.norm };
        let (key, normed) = (format!("{name}_norm"), format!("{name}.normed"));
        match self.layer.attention.qk_norm {
            QkNorm::No => Ok(x),
            QkNorm::Head => self.c.norm(b, &normed, x, norm, w, &key),
            QkNorm::Whole => {
                let sizes: Vec<usize> = b.ty(x).sizes().into_iter().skip(2).collect();
                let merge = Attrs::new().text("spec", format!("{} -> {}", dims.0, dims.1));
                let flat = b.op(&format!("{name}.flat"), "reshape", &[x], merge)?;
                let y = self.c.norm(b, &normed, flat, norm, w, &key)?;
                let split = Attrs::new().text("spec", format!("{} -> {}", dims.1, dims.0)).ints("sizes", sizes);
                b.op(&format!("{name}.heads"), "reshape", &[y], split)
            }
        }
    }

    /// Queries, keys and values through latents; the rotated part of the key is one for all heads.
    fn latent(
        &self,
        b: &mut Builder,
        a: ValueId,
        tables: Option<(ValueId, ValueId)>,
        w: &Params,
    ) -> Result<(ValueId, ValueId, ValueId), BuildError> {
        let Attention { kind, heads, .. } = self.layer.attention;
        let Heads::Latent { q_latent, kv_latent, nope, rope, value } = kind else {
            return Err(BuildError::Malformed("a layer without latents".to_string()));
        };
        let norm = super::Norm { kind: super::NormKind::Rms, gain: true, bias: false, ..self.layer.norm };
        let a = (a, "b s d");
        let q = match q_latent {
            Some(_) => {
                let l = self.product(b, "q.latent", a, (w, "wq_down", "l d"), ("bq_down", "l"), "b s l")?;
                let l = self.c.norm(b, "q.latent.normed", l, norm, w, "q_latent_norm")?;
                self.product(b, "q", (l, "b s l"), (w, "wq", "g r e l"), ("", ""), "b s g r e")?
            }
            None => self.product(b, "q", a, (w, "wq", "g r e d"), ("", ""), "b s g r e")?,
        };
        let down = self.product(b, "kv.down", a, (w, "wkv_down", "l d"), ("bkv_down", "l"), "b s l")?;
        let latent = slice(b, "kv.latent", down, "l", 0, kv_latent)?;
        let latent = self.c.norm(b, "kv.latent.normed", latent, norm, w, "kv_latent_norm")?;
        let kv = self.product(b, "kv", (latent, "b s l"), (w, "wkv", "g e l"), ("", ""), "b s g e")?;
        let k_still = slice(b, "k.still", kv, "e", 0, nope)?;
        let v = slice(b, "v", kv, "e", nope, value)?;
        let shared = slice(b, "k.shared", down, "l", kv_latent, rope)?;
        let attrs = Attrs::new().text("spec", "b s e -> b s g e").ints("sizes", [heads]);
        let mut q_rope = slice(b, "q.rope", q, "e", nope, rope)?;
        let mut k_rope = shared;
        if let Some((cos, sin)) = tables {
            q_rope = b.op("q.turned", "rope", &[q_rope, cos, sin], Attrs::new())?;
            k_rope = b.op("k.turned", "rope", &[shared, cos, sin], Attrs::new())?;
        }
        let k_rope = b.op("k.rope", "broadcast", &[k_rope], attrs)?;
        let q_still = slice(b, "q.still", q, "e", 0, nope)?;
        let q = b.op("q.whole", "concat", &[q_still, q_rope], Attrs::new().text("dim", "e"))?;
        let k = b.op("k.whole", "concat", &[k_still, k_rope], Attrs::new().text("dim", "e"))?;
        Ok((q, k, v))
    }

    fn mlp(&self, b: &mut Builder, m: ValueId, w: &Params) -> Result<ValueId, BuildError> {
        match &self.layer.mlp {
            Mlp::Dense(ffn) => self.ffn(b, "", (m, "b s"), ffn, w),
            Mlp::Experts(experts) => self.experts(b, m, experts, w),
        }
    }

    /// A feed-forward network of x, whose leading dimensions are given: `b s`, or `E c` in experts.
    fn ffn(
        &self,
        b: &mut Builder,
        prefix: &str,
        x: (ValueId, &str),
        ffn: &Ffn,
        w: &Params,
    ) -> Result<ValueId, BuildError> {
        let (x, lead) = x;
        let own = if lead.starts_with('E') { "E " } else { "" };
        let name = |s: &str| format!("{prefix}{s}");
        let (wide, narrow) = (format!("{lead} f"), format!("{lead} d"));
        let (inward, outward) = (format!("{own}f d"), format!("{own}d f"));
        let (bias_f, bias_d) = (format!("{own}f"), format!("{own}d"));
        let into = |b: &mut Builder, what: &str| {
            let (weight, bias) = (name(&format!("w_{what}")), name(&format!("b_{what}")));
            self.product(b, &name(what), (x, &narrow), (w, &weight, &inward), (&bias, &bias_f), &wide)
        };
        let gate = if ffn.gated { Some(into(b, "gate")?) } else { None };
        let up = into(b, "up")?;
        let act = activate(b, &name("act"), gate, up, ffn.activation)?;
        let (weight, bias) = (name("w_down"), name("b_down"));
        self.product(b, &name("down"), (act, &wide), (w, &weight, &outward), (&bias, &bias_d), &narrow)
    }

    /// Router, experts over their slots, and the shared network.
    fn experts(&self, b: &mut Builder, m: ValueId, x: &Experts, w: &Params) -> Result<ValueId, BuildError> {
        let slots = Decoder::slots(self.c.shape, x.experts, x.top_k);
        let (choice, weights) = self.route(b, m, x, w)?;
        let size = Attrs::new().int("experts", x.experts as i64).int("capacity", slots as i64);
        let slot = b.op("slot", "slots", &[choice], size.clone())?;
        let inputs = b.op("inputs", "dispatch", &[m, slot], size)?;
        let outputs = self.ffn(b, "", (inputs, "E c"), &x.each, w)?;
        let mut y = b.op("experts", "combine", &[outputs, slot, weights], Attrs::new())?;
        if let Some(shared) = &x.shared {
            let mut s = self.ffn(b, "shared.", (m, "b s"), shared, w)?;
            if let Some(gate) = w.of("w_shared_gate") {
                let open = self.c.linear(b, "shared.gate_logit", (m, "b s d"), (gate, "d"), None, "b s")?;
                let open = b.op("shared.open", "sigmoid", &[open], Attrs::new())?;
                let wide = self.c.spread(b, "shared.open.wide", open, "b s", s, "b s d")?;
                s = b.op("shared.gated", "mul", &[s, wide], Attrs::new())?;
            }
            y = b.op("mlp", "add", &[y, s], Attrs::new())?;
        }
        Ok(y)
    }

    /// The chosen experts of each token and their weights.
    fn route(&self, b: &mut Builder, m: ValueId, x: &Experts, w: &Params) -> Result<(ValueId, ValueId), BuildError> {
        let r = x.router;
        let logits = self.product(b, "router", (m, "b s d"), (w, "w_router", "E d"), ("b_router", "E"), "b s E")?;
        let scores = match r.scores {
            Scores::Softmax => b.op("scores", "softmax", &[logits], Attrs::new())?,
            Scores::Sigmoid => b.op("scores", "sigmoid", &[logits], Attrs::new())?,
            Scores::SoftmaxOfChosen => logits,
        };
        let ranked = match w.of("correction") {
            Some(bias) => {
                let bias = self.c.copy(b, bias)?;
                let wide = self.c.spread(b, "correction.wide", bias, "E", scores, "b s E")?;
                b.op("ranked", "add", &[scores, wide], Attrs::new())?
            }
            None => scores,
        };
        let choice = b.op("choice", "top_k", &[ranked], Attrs::new().int("k", x.top_k as i64))?;
        let mut weights = b.op("weights", "take", &[scores, choice], Attrs::new())?;
        if r.scores == Scores::SoftmaxOfChosen {
            weights = b.op("weights.soft", "softmax", &[weights], Attrs::new())?;
        }
        if r.normalise {
            let sum = b.reduce(Monoid::Sum, weights, "b s k -> b s")?;
            let wide = self.c.spread(b, "sum.wide", sum, "b s", weights, "b s k")?;
            weights = b.op("weights.normed", "div", &[weights, wide], Attrs::new())?;
        }
        if r.scale != 1.0 {
            weights = b.affine(weights, r.scale, 0.0)?;
        }
        Ok((choice, weights))
    }
}

/// What stands between the products of a network.
fn activate(
    b: &mut Builder,
    name: &str,
    gate: Option<ValueId>,
    up: ValueId,
    activation: Activation,
) -> Result<ValueId, BuildError> {
    if let (Some(gate), Activation::Silu) = (gate, activation) {
        return b.op(name, "swiglu", &[gate, up], Attrs::new());
    }
    let op = match activation {
        Activation::Silu => "silu",
        Activation::Gelu => "gelu_tanh",
        Activation::Relu => "relu",
        Activation::Relu2 => "relu2",
    };
    match gate {
        Some(gate) => {
            let bent = b.op(&format!("{name}.gate"), op, &[gate], Attrs::new())?;
            b.op(name, "mul", &[bent, up], Attrs::new())
        }
        None => b.op(name, op, &[up], Attrs::new()),
    }
}

/// Rotates the first `widths.0` entries of the heads; `widths.1` stay.
fn turn(
    b: &mut Builder,
    name: &str,
    x: ValueId,
    (cos, sin): (ValueId, ValueId),
    widths: (usize, usize),
) -> Result<ValueId, BuildError> {
    let turned = format!("{name}.turned");
    if widths.1 == 0 {
        return b.op(&turned, "rope", &[x, cos, sin], Attrs::new());
    }
    let first = slice(b, &format!("{name}.first"), x, "e", 0, widths.0)?;
    let rest = slice(b, &format!("{name}.rest"), x, "e", widths.0, widths.1)?;
    let first = b.op(&turned, "rope", &[first, cos, sin], Attrs::new())?;
    b.op(&format!("{name}.whole"), "concat", &[first, rest], Attrs::new().text("dim", "e"))
}

fn slice(b: &mut Builder, name: &str, x: ValueId, dim: &str, start: usize, size: usize) -> Result<ValueId, BuildError> {
    let attrs = Attrs::new().text("dim", dim).int("start", start as i64).int("size", size as i64);
    b.op(name, "slice", &[x], attrs)
}

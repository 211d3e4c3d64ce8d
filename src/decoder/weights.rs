//! The parameters of a decoder, as named dimensions. Counting and building read the same lists.

use super::{Attention, Decoder, Experts, Ffn, Form, Heads, Layer, Mlp, Norm, Position, QkNorm};

/// Dimensions by name.
type Dims = [(&'static str, usize)];

/// One parameter.
#[derive(Clone, Debug, PartialEq)]
pub struct Weight {
    /// Its name in the function that takes it.
    pub name: String,
    /// Dimensions by name, row-major.
    pub dims: Vec<(&'static str, usize)>,
    /// What it is for.
    pub kind: Use,
}

/// What a parameter is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// Every token passes it.
    Dense,
    /// It belongs to experts: a token passes `top_k` of them.
    Expert,
    /// Set by a rule of its own, not by gradients.
    Untrained,
    /// It is counted, and no node reads it.
    Unread,
}

impl Weight {
    fn new(name: impl Into<String>, dims: &Dims) -> Weight {
        Weight { name: name.into(), dims: dims.to_vec(), kind: Use::Dense }
    }

    /// Number of elements.
    pub fn len(&self) -> u64 {
        self.dims.iter().fold(1, |product: u64, (_, n)| product.saturating_mul(*n as u64))
    }

    /// Whether it has no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl Decoder {
    /// Number of parameters of the model itself: a tied tensor once, layers that predict further tokens
    /// left out ([`Decoder::mtp_parameters`] counts those).
    pub fn parameters(&self) -> u64 {
        self.count(|_, w| w.len())
    }

    /// Parameters that a token passes: all, but of each layer's experts only the chosen.
    pub fn active_parameters(&self) -> u64 {
        self.count(|layer, w| match (w.kind, layer.map(|l| &l.mlp)) {
            (Use::Expert, Some(Mlp::Experts(e))) => w.len() / e.experts as u64 * e.top_k as u64,
            _ => w.len(),
        })
    }

    /// Parameters of the layers that predict further tokens; they share the embedding and the head.
    pub fn mtp_parameters(&self) -> u64 {
        // Each depth has its own norm before the shared head.
        let norm = norm_weights("norm", self.final_norm, self.hidden);
        let outer = total(self.mtp_weights().iter().chain(&norm).map(Weight::len));
        total(self.mtp.iter().flat_map(|l| self.layer_weights(l)).map(|w| w.len()))
            .saturating_add(outer.saturating_mul(self.mtp.len() as u64))
    }

    fn count(&self, size: impl Fn(Option<&Layer>, &Weight) -> u64) -> u64 {
        let outer = self.embed_weights().into_iter().chain(self.head_weights(true));
        let layers = self.layers.iter().map(|run| {
            let one = total(self.layer_weights(&run.layer).iter().map(|w| size(Some(&run.layer), w)));
            one.saturating_mul(run.count as u64)
        });
        total(outer.map(|w| size(None, &w)).chain(layers))
    }

    /// Parameters of the embedding.
    pub fn embed_weights(&self) -> Vec<Weight> {
        let mut out = vec![Weight::new("embed", &[("v", self.vocab), ("d", self.hidden)])];
        if let Position::Learned { rows } = self.position {
            let rows = rows.or(self.max_positions).unwrap_or(0);
            out.push(Weight::new("positions", &[("p", rows), ("d", self.hidden)]));
        }
        out.extend(self.embed_norm.iter().flat_map(|n| norm_weights("embed_norm", *n, self.hidden)));
        out
    }

    /// Parameters of the head; `own` leaves out a matrix that is the embedding's.
    pub fn head_weights(&self, own: bool) -> Vec<Weight> {
        let mut out = norm_weights("norm", self.final_norm, self.hidden);
        if !(own && self.tied) {
            out.push(Weight::new("head", &[("v", self.vocab), ("d", self.hidden)]));
        }
        if self.head_bias {
            out.push(Weight::new("b_head", &[("v", self.vocab)]));
        }
        out
    }

    /// Parameters that join the stream with the next token's embedding (DeepSeek-V3, arXiv 2412.19437,
    /// section 2.2): a norm of each, a product of both.
    pub fn mtp_weights(&self) -> Vec<Weight> {
        let mut out = norm_weights("stream_norm", self.final_norm, self.hidden);
        out.extend(norm_weights("token_norm", self.final_norm, self.hidden));
        out.push(Weight::new("w_join", &[("d", self.hidden), ("j", 2 * self.hidden)]));
        out
    }

    /// Parameters of a layer, in the order in which its function takes them.
    pub fn layer_weights(&self, layer: &Layer) -> Vec<Weight> {
        let mut out = attention_weights(&layer.attention, layer.norm, self.hidden);
        match &layer.mlp {
            Mlp::Dense(ffn) => out.extend(ffn_weights("", ffn, self.hidden)),
            Mlp::Experts(experts) => out.extend(expert_weights(experts, self.hidden)),
        }
        let norms: &[&str] = match layer.form {
            Form::Pre | Form::ParallelTwo => &["attn_norm", "mlp_norm"],
            Form::Post => &["attn_post_norm", "mlp_post_norm"],
            Form::Sandwich => &["attn_norm", "attn_post_norm", "mlp_norm", "mlp_post_norm"],
            Form::Parallel => &["attn_norm"],
        };
        out.extend(norms.iter().flat_map(|n| norm_weights(n, layer.norm, self.hidden)));
        out
    }
}

/// A sum that stops at the largest number instead of overflowing, whatever a file says.
fn total(sizes: impl Iterator<Item = u64>) -> u64 {
    sizes.fold(0, u64::saturating_add)
}

fn norm_weights(name: &str, norm: Norm, width: usize) -> Vec<Weight> {
    norm_over(name, norm, &[("d", width)])
}

fn norm_over(name: &str, norm: Norm, dims: &Dims) -> Vec<Weight> {
    let gain = norm.gain.then(|| Weight::new(name, dims));
    let bias = norm.bias.then(|| Weight::new(format!("{name}.bias"), dims));
    gain.into_iter().chain(bias).collect()
}

fn attention_weights(a: &Attention, norm: Norm, hidden: usize) -> Vec<Weight> {
    let (g, r, d) = (("g", a.kv_heads), ("r", a.heads / a.kv_heads), ("d", hidden));
    let e = ("e", a.kind.qk_width());
    let mut out = Vec::new();
    let mut add = |name: &str, dims: &Dims, present: bool| {
        if present {
            out.push(Weight::new(name, dims));
        }
    };
    match a.kind {
        Heads::Plain { .. } => {
            add("wq", &[g, r, e, d], true);
            add("bq", &[g, r, e], a.qkv_bias);
            add("wk", &[g, e, d], true);
            add("bk", &[g, e], a.qkv_bias);
            add("wv", &[g, e, d], true);
            add("bv", &[g, e], a.qkv_bias);
            add("wo", &[d, g, r, e], true);
        }
        Heads::Latent { q_latent, kv_latent, nope, rope, value } => {
            let down = ("l", kv_latent + rope);
            let q_in = match q_latent {
                Some(width) => {
                    add("wq_down", &[("l", width), d], true);
                    add("bq_down", &[("l", width)], a.qkv_bias);
                    add("q_latent_norm", &[("l", width)], true);
                    ("l", width)
                }
                None => d,
            };
            add("wq", &[g, r, e, q_in], true);
            add("wkv_down", &[down, d], true);
            add("bkv_down", &[down], a.qkv_bias);
            add("kv_latent_norm", &[("l", kv_latent)], true);
            add("wkv", &[g, ("e", nope + value), ("l", kv_latent)], true);
            add("wo", &[d, g, r, ("h", value)], true);
        }
    }
    add("bo", &[d], a.o_bias);
    let rms = Norm { bias: false, ..norm };
    match a.qk_norm {
        QkNorm::No => {}
        QkNorm::Head => {
            out.extend(norm_over("q_norm", rms, &[e]));
            out.extend(norm_over("k_norm", rms, &[e]));
        }
        QkNorm::Whole => {
            out.extend(norm_over("q_norm", rms, &[("gre", g.1 * r.1 * e.1)]));
            out.extend(norm_over("k_norm", rms, &[("ge", g.1 * e.1)]));
        }
    }
    if a.sinks {
        out.push(Weight { kind: Use::Unread, ..Weight::new("sinks", &[g, r]) });
    }
    out
}

fn ffn_weights(prefix: &str, ffn: &Ffn, hidden: usize) -> Vec<Weight> {
    let (f, d) = (("f", ffn.width), ("d", hidden));
    let rows: [(&str, &Dims, bool); 6] = [
        ("w_gate", &[f, d], ffn.gated),
        ("b_gate", &[f], ffn.gated && ffn.bias),
        ("w_up", &[f, d], true),
        ("b_up", &[f], ffn.bias),
        ("w_down", &[d, f], true),
        ("b_down", &[d], ffn.bias),
    ];
    let present = rows.into_iter().filter(|(_, _, present)| *present);
    present.map(|(name, dims, _)| Weight::new(format!("{prefix}{name}"), dims)).collect()
}

fn expert_weights(x: &Experts, hidden: usize) -> Vec<Weight> {
    let (n, d) = (("E", x.experts), ("d", hidden));
    let mut out = vec![Weight::new("w_router", &[n, d])];
    if x.router.bias {
        out.push(Weight::new("b_router", &[n]));
    }
    if x.router.correction {
        out.push(Weight { kind: Use::Untrained, ..Weight::new("correction", &[n]) });
    }
    out.extend(ffn_weights("", &x.each, hidden).into_iter().map(|w| {
        let dims = std::iter::once(n).chain(w.dims).collect();
        Weight { name: w.name, dims, kind: Use::Expert }
    }));
    if let Some(shared) = &x.shared {
        out.extend(ffn_weights("shared.", shared, hidden));
        if x.shared_gate {
            out.push(Weight::new("w_shared_gate", &[d]));
        }
    }
    out
}

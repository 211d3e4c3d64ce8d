//! A decoder from a row of a run file: its `block` and `model` objects, whose words are closed vocabularies.

use super::{
    Activation, Attention, Decoder, Experts, Ffn, Form, Heads, Layer, Mlp, Norm, NormKind, Position, QkNorm, Rotary,
    Router, Scores,
};
use crate::import::read::show;
use serde_json::Value;

/// Why a row gives no model. Each names the field as `block.NAME` or `model.NAME`.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum RowError {
    /// The field is absent or null: the source does not say.
    #[error("{field} is not known (null or absent), and the model cannot be built without it")]
    Unknown {
        /// The field.
        field: String,
    },
    /// The value has the wrong kind or is outside its range.
    #[error("{field} is {found}, but must be {wanted}")]
    Mistyped {
        /// The field.
        field: String,
        /// The value in the row.
        found: String,
        /// What would be accepted.
        wanted: String,
    },
    /// A word that the field's vocabulary does not have.
    #[error("{field} is {found}; known: {known}")]
    Word {
        /// The field.
        field: String,
        /// The word in the row.
        found: String,
        /// The vocabulary.
        known: String,
    },
    /// A model of a kind that has no description here.
    #[error("{field} is {found}: {meaning}")]
    Unsupported {
        /// The field.
        field: String,
        /// The value in the row.
        found: String,
        /// What is not supported.
        meaning: &'static str,
    },
}

type Read<T> = Result<T, RowError>;

/// The families of run rows, each with the router of its experts.
const FAMILIES: [(&str, Router); 12] = [
    ("gpt", TOP),
    ("mpt", TOP),
    ("bloom", TOP),
    ("nemotron", TOP),
    ("nemotron-h", TOP),
    ("maxtext", TOP),
    ("llama", TOP),
    ("grok", TOP),
    ("mixtral", NORMALISED),
    ("qwen-moe", NORMALISED),
    ("deepseek", Router { scores: Scores::Sigmoid, correction: true, ..NORMALISED }),
    ("gpt-oss", Router { scores: Scores::SoftmaxOfChosen, bias: true, ..TOP }),
];
const TOP: Router = Router { scores: Scores::Softmax, normalise: false, bias: false, correction: false, scale: 1.0 };
const NORMALISED: Router = Router { normalise: true, ..TOP };

/// Rows do not state what norms add, nor the base of rotations; both change no cost.
const EPS: f64 = 1e-5;
const THETA: f64 = 10_000.0;
/// Most layers that are accepted.
const MAX_LAYERS: usize = 65_536;

impl Decoder {
    /// The model of a run row, from its `block` and `model` objects.
    ///
    /// The table of learned positions has as many rows as the run's sequences are long, and the vocabulary
    /// is as the row gives it: what a stack pads it to is the stack's.
    pub fn from_row(block: &Value, model: &Value) -> Result<Decoder, RowError> {
        let (block, model) = (Object { value: block, path: "block" }, Object { value: model, path: "model" });
        let (family, router) = block.word("family", &FAMILIES)?;
        let hidden = model.size("hidden")?;
        let depth = model.size("layers")?;
        let norm = norm(block)?;
        let bias = block.optional_flag("bias")?.unwrap_or(false);
        let position = block.word("position", &[("rope", 0), ("learned", 1), ("alibi", 2)])?.1;
        let form = if block.flag("parallel_block")? { Form::Parallel } else { Form::Pre };
        let ffn = Ffn { width: 0, gated: block.flag("gated")?, activation: activation(block)?, bias };
        let (attention, full_every) = attention(block, bias, position == 0)?;
        // Numbers of layers that no model has would only take memory.
        if depth > MAX_LAYERS {
            return Err(model.mistyped("layers", &format!("at most {MAX_LAYERS}")));
        }
        let mlps = mlps(block, model, ffn, router, depth)?;
        let mut layers = Vec::new();
        for (i, mlp) in mlps.iter().enumerate() {
            let full = full_every.is_some_and(|n| (i + 1).is_multiple_of(n));
            let window = if full { None } else { attention.window };
            let attention = Attention { window, ..attention.clone() };
            Decoder::push(&mut layers, Layer { norm, form, attention, mlp: mlp.clone() });
        }
        let last = layers.last().map(|run| run.layer.clone());
        let mtp = block.optional_count("mtp")?.unwrap_or(0);
        if mtp > depth {
            return Err(block.mistyped("mtp", &format!("at most the {depth} layers")));
        }
        Ok(Decoder {
            family: family.to_string(),
            hidden,
            vocab: model.size("vocab")?,
            position: match position {
                0 => Position::Rotary,
                1 => Position::Learned { rows: Some(model.size("seq_len")?) },
                _ => Position::Alibi,
            },
            tied: block.flag("tied")?,
            head_bias: false,
            embed_norm: block.optional_flag("embed_norm")?.unwrap_or(false).then_some(norm),
            final_norm: norm,
            logit_cap: None,
            layers,
            mtp: last.into_iter().flat_map(|l| std::iter::repeat_n(l, mtp)).collect(),
            max_positions: model.optional_count("seq_len")?,
            notes: Vec::new(),
        })
    }
}

fn norm(block: Object) -> Read<Norm> {
    let kind = block.word("norm", &[("rmsnorm", NormKind::Rms), ("layernorm", NormKind::Layer)])?.1;
    // A layer norm keeps its bias where the products have none (Nemotron-4, arXiv 2402.16819).
    Ok(Norm { kind, gain: true, bias: kind == NormKind::Layer, eps: EPS })
}

fn activation(block: Object) -> Read<Activation> {
    let known = [("silu", Activation::Silu), ("gelu", Activation::Gelu), ("relu2", Activation::Relu2)];
    Ok(block.word("activation", &known)?.1)
}

/// Attention as the first layer has it, and which layers see all instead of a window.
fn attention(block: Object, bias: bool, rotates: bool) -> Read<(Attention, Option<usize>)> {
    let a = block.object("attention")?;
    let kind = a.word("kind", &[("full", 0), ("window", 1), ("mla", 2), ("hybrid", 3)])?.1;
    let heads = match kind {
        2 => Heads::Latent {
            q_latent: a.optional_count("q_lora")?,
            kv_latent: a.size("kv_lora")?,
            nope: a.size("nope")?,
            rope: a.size("rope")?,
            value: a.size("v")?,
        },
        3 => return Err(a.unsupported("kind", "layers without attention (Mamba) have no description here")),
        _ => Heads::Plain { width: a.size("head_dim")? },
    };
    let count = a.size("heads")?;
    let kv_heads = if kind == 2 { count } else { a.size("kv_heads")? };
    if !count.is_multiple_of(kv_heads) {
        return Err(a.mistyped("kv_heads", &format!("a divisor of the {count} heads")));
    }
    let fraction = a.optional_number("rotary_fraction")?.unwrap_or(1.0);
    let turned = match heads {
        Heads::Plain { width } => (width as f64 * fraction) as usize,
        Heads::Latent { rope, .. } => rope,
    };
    // An odd width has one entry that does not turn.
    let rotary = rotates.then_some(Rotary { width: turned / 2 * 2, theta: THETA });
    let window = if kind == 1 { Some(a.size("window")?) } else { None };
    let attention = Attention {
        heads: count,
        kv_heads,
        kind: heads,
        window,
        qk_norm: if a.optional_flag("qk_norm")?.unwrap_or(false) { QkNorm::Head } else { QkNorm::No },
        qkv_bias: bias,
        o_bias: bias,
        sinks: a.optional_flag("sinks")?.unwrap_or(false),
        rotary,
    };
    Ok((attention, a.optional_count("full_every")?))
}

/// What follows attention, layer by layer.
fn mlps(block: Object, model: Object, ffn: Ffn, router: Router, depth: usize) -> Read<Vec<Mlp>> {
    let Some(moe) = block.optional_object("moe")? else {
        return Ok(vec![Mlp::Dense(Ffn { width: model.size("ffn_hidden")?, ..ffn }); depth]);
    };
    let (experts, top_k) = (moe.size("experts")?, moe.size("top_k")?);
    if top_k > experts {
        return Err(moe.mistyped("top_k", &format!("at most the {experts} experts")));
    }
    let width = moe.size("expert_ffn")?;
    let shared = moe.optional_count("shared")?.unwrap_or(0);
    let mixed = Mlp::Experts(Experts {
        experts,
        top_k,
        each: Ffn { width, ..ffn },
        shared: (shared > 0).then_some(Ffn { width: shared * width, ..ffn }),
        shared_gate: false,
        router,
    });
    let dense = moe.optional_count("dense_layers")?.unwrap_or(0);
    if dense > depth {
        return Err(moe.mistyped("dense_layers", &format!("at most the {depth} layers")));
    }
    let mut out = Vec::new();
    if dense > 0 {
        out.resize(dense, Mlp::Dense(Ffn { width: moe.size("dense_ffn")?, ..ffn }));
    }
    out.resize(depth, mixed);
    Ok(out)
}

/// An object of a row and its path in messages.
#[derive(Clone, Copy)]
struct Object<'a> {
    value: &'a Value,
    path: &'a str,
}

impl<'a> Object<'a> {
    fn field(&self, key: &str) -> String {
        format!("{}.{key}", self.path)
    }

    fn get(&self, key: &str) -> Read<Option<&'a Value>> {
        match self.value {
            Value::Object(map) => Ok(map.get(key).filter(|v| !v.is_null())),
            Value::Null => Ok(None),
            other => Err(RowError::Mistyped {
                field: self.path.to_string(),
                found: show(other),
                wanted: "an object { … }".to_string(),
            }),
        }
    }

    fn need(&self, key: &str) -> Read<&'a Value> {
        self.get(key)?.ok_or_else(|| RowError::Unknown { field: self.field(key) })
    }

    fn mistyped(&self, key: &str, wanted: &str) -> RowError {
        let found = self.value.get(key).map_or_else(|| "absent".to_string(), show);
        RowError::Mistyped { field: self.field(key), found, wanted: wanted.to_string() }
    }

    fn unsupported(&self, key: &str, meaning: &'static str) -> RowError {
        let found = self.value.get(key).map_or_else(|| "absent".to_string(), show);
        RowError::Unsupported { field: self.field(key), found, meaning }
    }

    /// A whole number of at least 0; `None` when absent or null.
    fn optional_count(&self, key: &str) -> Read<Option<usize>> {
        let Some(value) = self.get(key)? else { return Ok(None) };
        let number = value.as_u64().and_then(|n| u32::try_from(n).ok()).map(|n| n as usize);
        number.map(Some).ok_or_else(|| self.mistyped(key, "a whole number below 2^32"))
    }

    /// A whole number of at least 1.
    fn size(&self, key: &str) -> Read<usize> {
        self.need(key)?;
        match self.optional_count(key)? {
            Some(n) if n > 0 => Ok(n),
            _ => Err(self.mistyped(key, "a whole number of at least 1")),
        }
    }

    fn optional_number(&self, key: &str) -> Read<Option<f64>> {
        let Some(value) = self.get(key)? else { return Ok(None) };
        let number = value.as_f64().filter(|x| *x > 0.0 && *x <= 1.0);
        number.map(Some).ok_or_else(|| self.mistyped(key, "a number above 0, at most 1"))
    }

    fn optional_flag(&self, key: &str) -> Read<Option<bool>> {
        let Some(value) = self.get(key)? else { return Ok(None) };
        value.as_bool().map(Some).ok_or_else(|| self.mistyped(key, "true or false"))
    }

    fn flag(&self, key: &str) -> Read<bool> {
        self.optional_flag(key)?.ok_or_else(|| RowError::Unknown { field: self.field(key) })
    }

    fn word<T: Copy>(&self, key: &str, known: &[(&'static str, T)]) -> Read<(&'static str, T)> {
        let value = self.need(key)?;
        let text = value.as_str().ok_or_else(|| self.mistyped(key, "a text in double quotes"))?;
        known.iter().find(|(n, _)| *n == text).copied().ok_or_else(|| RowError::Word {
            field: self.field(key),
            found: show(value),
            known: known.iter().map(|(n, _)| *n).collect::<Vec<_>>().join(", "),
        })
    }

    fn optional_object(&self, key: &'static str) -> Read<Option<Object<'a>>> {
        let Some(value) = self.get(key)? else { return Ok(None) };
        let path = match key {
            "moe" => "block.moe",
            _ => "block.attention",
        };
        if !value.is_object() {
            return Err(self.mistyped(key, "an object { … }"));
        }
        Ok(Some(Object { value, path }))
    }

    fn object(&self, key: &'static str) -> Read<Object<'a>> {
        self.optional_object(key)?.ok_or_else(|| RowError::Unknown { field: self.field(key) })
    }
}

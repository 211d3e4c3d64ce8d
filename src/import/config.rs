//! Reading a Hugging Face `config.json`.
//!
//! [`load`] answers with a [`ModelConfig`] in which nothing is left to interpret, or with an error that
//! names the key. What a key means is looked up in [`super::families`]; this file only knows the order in
//! which questions are asked: which family, are all keys understood, the sizes, the windows, the rotation.

use std::path::Path;

use serde_json::Value;

use super::families::{AttentionBias, Family, KeyUse, Neutral, Plain, WindowRule, FAMILIES};
use super::foreign::{foreign, TELLING};
use super::read::{nearest, show, Fields, Read};
use super::rope::{layer_type, ropes, Rope};
use crate::json::{Document, JsonError};

/// A decoder, fully resolved.
#[derive(Clone, Debug)]
pub struct ModelConfig {
    /// The family it belongs to.
    pub family: &'static Family,
    /// Width of the residual stream, `hidden_size`.
    pub hidden: usize,
    /// Number of layers.
    pub layers: usize,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads; divides `heads`.
    pub kv_heads: usize,
    /// Width of a head; even.
    pub head_dim: usize,
    /// Width of the MLP, `intermediate_size`.
    pub ffn: usize,
    /// Vocabulary size.
    pub vocab: usize,
    /// What RMS norms add to the mean square.
    pub rms_eps: f64,
    /// Longest sequence the model is meant for, tokens.
    pub max_positions: usize,
    /// Whether the head is the embedding matrix.
    pub tied: bool,
    /// Whether the query projection has a bias.
    pub q_bias: bool,
    /// Whether the key and value projections have biases.
    pub kv_bias: bool,
    /// Whether the output projection of attention has a bias.
    pub o_bias: bool,
    /// Whether gate, up and down have biases.
    pub mlp_bias: bool,
    /// Whether q and k pass a norm over each head before the rotation.
    pub qk_norm: bool,
    /// The distinct rotations; at least one.
    pub ropes: Vec<Rope>,
    /// For each layer, its index into `ropes`.
    pub rope_of_layer: Vec<usize>,
    /// For each layer, its window in tokens, the query's own position included; None is full attention.
    pub windows: Vec<Option<usize>>,
    /// What the reader of a plan should know: defaults that were taken, keys that have no effect.
    pub notes: Vec<String>,
    /// The file as it was read, for writing beside saved weights.
    pub raw: Value,
}

impl ModelConfig {
    /// The rotation of a layer; `layer` must be below `layers`.
    pub fn rope(&self, layer: usize) -> &Rope {
        &self.ropes[self.rope_of_layer[layer]]
    }
}

/// Why a configuration cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file is unreadable or not JSON.
    #[error(transparent)]
    Json(#[from] JsonError),
    /// A folder without a `config.json`.
    #[error("{folder}: no config.json in this folder{hint}")]
    NoConfig {
        /// The folder.
        folder: String,
        /// Empty, or advice.
        hint: String,
    },
    /// A key that is needed and not there, or null.
    #[error("{place}: the key `{key}` is {state}; it is needed and has no safe default")]
    Missing {
        /// File, and line and column where the key exists.
        place: String,
        /// The key.
        key: String,
        /// `missing` or `null`.
        state: &'static str,
    },
    /// A value of the wrong type or outside its range.
    #[error("{place}: `{key}` is {found}, but must be {wanted}")]
    Mistyped {
        /// File, line, column.
        place: String,
        /// The key.
        key: String,
        /// The value in the file.
        found: String,
        /// What would be accepted.
        wanted: String,
    },
    /// A value that contradicts another or has no meaning.
    #[error("{place}: `{key}`: {message}")]
    Invalid {
        /// File, line, column.
        place: String,
        /// The key.
        key: String,
        /// What is wrong and what to do.
        message: String,
    },
    /// A key that the family does not know.
    #[error("{place}: unknown key `{key}` = {value} for model_type {model_type}{near}: it may change the model, so it is not ignored; remove it if it does not")]
    UnknownKey {
        /// File, line, column.
        place: String,
        /// The key.
        key: String,
        /// Its value.
        value: String,
        /// The family.
        model_type: &'static str,
        /// Empty, or the nearest known key.
        near: String,
    },
    /// A key whose value asks for something that is not supported.
    #[error("{place}: `{key}` = {value} is not supported: {meaning} (accepted: {accepted})")]
    Unsupported {
        /// File, line, column.
        place: String,
        /// The key.
        key: String,
        /// Its value.
        value: String,
        /// What it asks for.
        meaning: &'static str,
        /// The values that are accepted.
        accepted: String,
    },
    /// A model of another family.
    #[error("{place}: model_type {model_type} is not supported (known: {known}){why}; nothing is built from defaults")]
    UnknownFamily {
        /// File, line, column.
        place: String,
        /// What the file says, quoted, or that it is missing.
        model_type: String,
        /// The supported families.
        known: String,
        /// The key that decides, and what it means.
        why: String,
    },
}

/// Most layers that are accepted; far above any model, so that a wrong number cannot exhaust memory.
const MAX_LAYERS: usize = 65_536;
/// Widest head that is accepted, for the same reason.
const MAX_HEAD_DIM: usize = 65_536;

/// Reads a `config.json`, or the one in a folder.
pub fn load(path: &Path) -> Result<ModelConfig, ConfigError> {
    from_document(&document(path)?)
}

/// The `config.json` of this path, or the one in this folder.
pub(crate) fn document(path: &Path) -> Result<Document, ConfigError> {
    let file = if path.is_dir() { path.join("config.json") } else { path.to_path_buf() };
    if path.is_dir() && !file.exists() {
        let hint = if path.join("params.json").exists() {
            "; it has a params.json, the original format, which is not supported: convert it to the Hugging Face format"
        } else {
            ""
        };
        return Err(ConfigError::NoConfig { folder: path.display().to_string(), hint: hint.to_string() });
    }
    Ok(Document::read(&file)?)
}

/// Reads the text of a `config.json`; `file` is the name that messages show.
pub fn from_text(file: &str, text: &str) -> Result<ModelConfig, ConfigError> {
    from_document(&Document::parse(file, text.as_bytes())?)
}

/// Reads a parsed `config.json`.
pub fn from_document(doc: &Document) -> Result<ModelConfig, ConfigError> {
    let fields = Fields::of(doc)?;
    let family = family(fields)?;
    check_architecture(fields, family)?;
    check_keys(fields, family)?;
    let mut notes = Vec::new();

    let hidden = fields.required_size("hidden_size")?;
    let layers = fields.required_size("num_hidden_layers")?;
    if layers > MAX_LAYERS {
        return Err(fields
            .invalid("num_hidden_layers", format!("{layers} is more than {MAX_LAYERS}, the most that is accepted")));
    }
    let heads = fields.required_size("num_attention_heads")?;
    let kv_heads = kv_heads(fields, family, heads)?;
    let head_dim = head_dim(fields, family, hidden, heads, &mut notes)?;
    let ffn = fields.required_size("intermediate_size")?;
    let vocab = fields.required_size("vocab_size")?;
    let max_positions = defaulted(
        fields.size("max_position_embeddings")?,
        family.max_positions,
        "max_position_embeddings",
        family,
        &mut notes,
    );
    let rms_eps = defaulted(fields.positive("rms_norm_eps")?, family.rms_eps, "rms_norm_eps", family, &mut notes);
    check_activation(fields)?;
    let tied = fields.flag("tie_word_embeddings")?.unwrap_or(family.tied);
    let attention_bias = family.attention_bias == AttentionBias::Key && fields.flag("attention_bias")?.unwrap_or(false);
    let qkv_bias = attention_bias || family.attention_bias == AttentionBias::Qkv;
    let mlp_bias = family.mlp_bias_key && fields.flag("mlp_bias")?.unwrap_or(false);
    let windows = windows(fields, family, layers, &mut notes)?;
    let (ropes, rope_of_layer) = ropes(fields, family, head_dim, &windows, &mut notes)?;
    if let Some(id) = fields.given("pad_token_id")? {
        notes.push(format!("pad_token_id {} has no effect: the data has no padding, so that row of the embeddings learns like any other", show(id)));
    }

    let config = ModelConfig {
        family,
        hidden,
        layers,
        heads,
        kv_heads,
        head_dim,
        ffn,
        vocab,
        rms_eps,
        max_positions,
        tied,
        q_bias: qkv_bias,
        kv_bias: qkv_bias,
        o_bias: attention_bias,
        mlp_bias,
        qk_norm: family.qk_norm,
        ropes,
        rope_of_layer,
        windows,
        notes,
        raw: doc.value.clone(),
    };
    check_sizes(fields, &config)?;
    Ok(config)
}

/// The family that `model_type` names.
fn family(fields: Fields) -> Read<&'static Family> {
    let Some(model_type) = fields.text("model_type")? else {
        return Err(refuse(fields, "(missing)", None));
    };
    Family::find(model_type).ok_or_else(|| refuse(fields, &format!("{model_type:?}"), Some(model_type)))
}

/// Refuses a model of another family, naming the key that makes it one.
fn refuse(fields: Fields, shown: &str, model_type: Option<&str>) -> ConfigError {
    let has = |key: &&&str| fields.map.get(**key).is_some_and(|v| !v.is_null());
    let known_foreign = model_type.and_then(foreign);
    let decided = known_foreign.and_then(|f| f.keys.iter().find(has).map(|k| (*k, f.meaning)));
    let decided = decided.or_else(|| TELLING.iter().find(has).map(|k| (*k, "it belongs to another kind of model")));
    let near = model_type.and_then(|m| nearest(m, FAMILIES.iter().map(|f| f.model_type)));
    let why = match (decided, near) {
        // The original Llama format: its MLP width would have to be guessed.
        (_, _) if fields.map.contains_key("dim") && fields.map.contains_key("n_layers") => {
            "; `dim` and `n_layers` are keys of an original params.json, in which `intermediate_size` is missing: use the model's Hugging Face config.json".to_string()
        }
        (Some((key, meaning)), _) => format!("; the key `{key}` = {} decides: {meaning}", show(&fields.map[key])),
        (None, Some(near)) => format!("; did you mean {near:?}?"),
        (None, None) if model_type.is_some() => match known_foreign {
            Some(f) => format!("; the key `model_type` decides: {}", f.meaning),
            None => "; the key `model_type` decides".to_string(),
        },
        (None, None) => "; add the key `model_type`".to_string(),
    };
    let known: Vec<&str> = FAMILIES.iter().map(|f| f.model_type).collect();
    ConfigError::UnknownFamily {
        place: fields.place("model_type"),
        model_type: shown.to_string(),
        known: known.join(", "),
        why,
    }
}

fn check_architecture(fields: Fields, family: &Family) -> Read<()> {
    let Some(written) = fields.texts("architectures")? else {
        return Ok(());
    };
    match written.iter().find(|a| **a != family.architecture) {
        Some(other) => Err(fields.invalid(
            "architectures",
            format!(
                "\"{other}\" is not supported; for model_type {} it must be \"{}\"",
                family.model_type, family.architecture
            ),
        )),
        None => Ok(()),
    }
}

/// Every key must be used, irrelevant, or neutral.
fn check_keys(fields: Fields, family: &'static Family) -> Read<()> {
    for (key, value) in fields.map {
        match family.key_use(key) {
            Some(KeyUse::Used | KeyUse::Irrelevant) => {}
            Some(KeyUse::Neutral(rule)) => {
                fields.get(key)?;
                check_neutral(fields, rule, value)?;
            }
            None => {
                let near =
                    nearest(key, family.known_keys()).map_or_else(String::new, |n| format!(" (did you mean `{n}`?)"));
                return Err(ConfigError::UnknownKey {
                    place: fields.place(key),
                    key: key.clone(),
                    value: show(value),
                    model_type: family.model_type,
                    near,
                });
            }
        }
    }
    Ok(())
}

fn check_neutral(fields: Fields, rule: &'static Neutral, value: &Value) -> Read<()> {
    if value.is_null() || rule.accepted.iter().any(|a| a.matches(value)) {
        return Ok(());
    }
    let mut accepted: Vec<String> = rule.accepted.iter().map(Plain::to_string).collect();
    accepted.push("null".into());
    Err(ConfigError::Unsupported {
        place: fields.place(rule.key),
        key: rule.key.to_string(),
        value: show(value),
        meaning: rule.meaning,
        accepted: accepted.join(", "),
    })
}

impl Plain {
    fn matches(&self, value: &Value) -> bool {
        match self {
            Plain::Bool(b) => value.as_bool() == Some(*b),
            Plain::Number(n) => value.as_f64() == Some(*n),
            Plain::Empty => {
                value.as_array().is_some_and(|a| a.is_empty()) || value.as_object().is_some_and(|o| o.is_empty())
            }
            Plain::AllText(t) => value.as_array().is_some_and(|a| a.iter().all(|v| v.as_str() == Some(t))),
        }
    }
}

impl std::fmt::Display for Plain {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Plain::Bool(b) => write!(f, "{b}"),
            Plain::Number(n) => write!(f, "{n}"),
            Plain::Empty => write!(f, "empty"),
            Plain::AllText(t) => write!(f, "a list of \"{t}\""),
        }
    }
}

fn defaulted<T: std::fmt::Display>(
    stated: Option<T>,
    default: T,
    key: &str,
    family: &Family,
    notes: &mut Vec<String>,
) -> T {
    stated.unwrap_or_else(|| {
        notes.push(format!("{key} is absent: {default} is taken, the default of {}", family.model_type));
        default
    })
}

/// `num_key_value_heads`: null and absent mean one per query head. Where `transformers` would take another
/// number for an absent key, and could, the file is ambiguous and the key has to be written.
fn kv_heads(fields: Fields, family: &Family, heads: usize) -> Read<usize> {
    let key = "num_key_value_heads";
    if let (false, Some(theirs)) = (fields.map.contains_key(key), family.kv_heads) {
        if theirs != heads && heads.is_multiple_of(theirs) {
            return Err(fields.invalid(key, format!("the key is missing; transformers takes {theirs} for {}, other readers num_attention_heads, {heads}: write the one that is meant", family.model_type)));
        }
    }
    let kv_heads = fields.size(key)?.unwrap_or(heads);
    if !heads.is_multiple_of(kv_heads) {
        let divisors: Vec<String> =
            (1..=heads.min(4096)).filter(|d| heads.is_multiple_of(*d)).map(|d| d.to_string()).collect();
        return Err(fields.invalid(
            key,
            format!("{kv_heads} does not divide num_attention_heads, {heads}; possible are {}", divisors.join(", ")),
        ));
    }
    Ok(kv_heads)
}

/// `head_dim`: null derives hidden_size / num_attention_heads; absent does too, unless the family says.
fn head_dim(fields: Fields, family: &Family, hidden: usize, heads: usize, notes: &mut Vec<String>) -> Read<usize> {
    let key = "head_dim";
    let absent = !fields.map.contains_key(key);
    let head_dim = match (fields.size(key)?, family.head_dim) {
        (Some(stated), _) => stated,
        (None, Some(default)) if absent => defaulted(None, default, key, family, notes),
        (None, _) if hidden.is_multiple_of(heads) => hidden / heads,
        (None, _) => return Err(fields.invalid(key, format!("is not given, and hidden_size, {hidden}, is not a multiple of num_attention_heads, {heads}; give head_dim"))),
    };
    match head_dim {
        odd if odd % 2 == 1 => {
            Err(fields.invalid(key, format!("{odd} is odd, but rotary embeddings turn pairs; it must be even")))
        }
        wide if wide > MAX_HEAD_DIM => {
            Err(fields.invalid(key, format!("{wide} is more than {MAX_HEAD_DIM}, the most that is accepted")))
        }
        fine => Ok(fine),
    }
}

fn check_activation(fields: Fields) -> Read<()> {
    match fields.text("hidden_act")? {
        None | Some("silu" | "swish") => Ok(()),
        Some(other) => Err(fields.invalid(
            "hidden_act",
            format!("\"{other}\" is not supported; the known activations are silu (also called swish)"),
        )),
    }
}

/// Each layer's window.
fn windows(fields: Fields, family: &Family, layers: usize, notes: &mut Vec<String>) -> Read<Vec<Option<usize>>> {
    match family.window {
        WindowRule::Never => {
            layer_types(fields, layers)?;
            Ok(vec![None; layers])
        }
        WindowRule::Every { absent } => {
            let window = window_size(fields, absent, family, notes)?;
            let listed = layer_types(fields, layers)?;
            if listed.is_some_and(|l| l.iter().any(|t| *t != layer_type(window))) {
                notes.push(format!(
                    "layer_types has no effect in {}: every layer has {}",
                    family.model_type,
                    window.map_or_else(|| "full attention".into(), |w| format!("a window of {w}"))
                ));
            }
            Ok(vec![window; layers])
        }
        WindowRule::Switched { absent, absent_first } => {
            let on = fields.flag("use_sliding_window")?.unwrap_or(false);
            let window = if on {
                window_size(fields, absent, family, notes)?
            } else {
                fields.size("sliding_window").map(|_| None)?
            };
            let first = fields.whole("max_window_layers", 0)?;
            let Some(listed) = layer_types(fields, layers)? else {
                let first = match first {
                    None if window.is_some() => defaulted(None, absent_first, "max_window_layers", family, notes),
                    stated => stated.unwrap_or(layers),
                };
                return Ok((0..layers).map(|l| window.filter(|_| l >= first)).collect());
            };
            if window.is_none() && listed.contains(&layer_type(Some(1))) {
                return Err(fields.invalid("layer_types", "lists sliding_attention, but there is no window: set use_sliding_window to true and give sliding_window"));
            }
            Ok(listed.iter().map(|t| window.filter(|_| *t == layer_type(window))).collect())
        }
    }
}

/// `sliding_window`: null is none, an absent key the family's default.
fn window_size(fields: Fields, absent: usize, family: &Family, notes: &mut Vec<String>) -> Read<Option<usize>> {
    match fields.map.contains_key("sliding_window") {
        true => fields.size("sliding_window"),
        false => Ok(Some(defaulted(None, absent, "sliding_window", family, notes))),
    }
}

/// `layer_types`, when it is there: one known entry a layer.
fn layer_types(fields: Fields<'_>, layers: usize) -> Read<Option<Vec<&'_ str>>> {
    let key = "layer_types";
    let Some(listed) = fields.texts(key)? else {
        return Ok(None);
    };
    if listed.len() != layers {
        return Err(
            fields.invalid(key, format!("has {} entries for {layers} layers; it must have one for each", listed.len()))
        );
    }
    let known = [layer_type(None), layer_type(Some(1))];
    match listed.iter().find(|t| !known.contains(t)) {
        Some(other) => Err(fields
            .invalid(key, format!("\"{other}\" is not supported; the known layer types are {}", known.join(" and ")))),
        None => Ok(Some(listed)),
    }
}

/// Refuses sizes whose products no memory could hold, so that all later arithmetic is safe.
fn check_sizes(fields: Fields, c: &ModelConfig) -> Read<()> {
    /// Elements a tensor or model may have: their bytes, in f64 with moments, still fit an i64.
    const MOST: usize = 1 << 56;
    let product = |names: [&str; 2], a: usize, b: usize| {
        let message = || format!("{} × {} = {a} × {b} overflows; one of them is wrong", names[0], names[1]);
        a.checked_mul(b).filter(|n| *n <= MOST).ok_or_else(|| fields.invalid(names[0], message()))
    };
    let embed = product(["vocab_size", "hidden_size"], c.vocab, c.hidden)?;
    let q_rows = product(["num_attention_heads", "head_dim"], c.heads, c.head_dim)?;
    let q = product(["num_attention_heads·head_dim", "hidden_size"], q_rows, c.hidden)?;
    let mlp = product(["intermediate_size", "hidden_size"], c.ffn, c.hidden)?;
    // Each term is at most 2^56, so the sums cannot overflow.
    let layer = product(["num_hidden_layers", "parameters of a layer"], c.layers, 5 * q + 4 * mlp)?;
    product(["the embeddings and layers", "one model"], layer + 2 * embed, 1)?;
    Ok(())
}

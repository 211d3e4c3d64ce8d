//! A decoder from a Hugging Face `config.json` of any family in [`super::families`].

use super::families::{ExpertLayers, ExpertRule, Family, Flag, FormRule, PositionRule, Shared, WindowRule};
use super::{
    Activation, Attention, Decoder, Experts, Ffn, Form, Heads, Layer, Mlp, Norm, Position, QkNorm, Rotary, Router,
    Scores,
};
use crate::import::config::{document, ConfigError};
use crate::import::read::{nearest, show, Fields, Read};
use crate::json::Document;
use serde_json::Value;
use std::path::Path;

/// Keys of one size: the first that is there counts.
type Names = &'static [&'static str];

const HIDDEN: Names = &["hidden_size", "n_embd", "n_embed", "d_model"];
const LAYERS: Names = &["num_hidden_layers", "n_layer", "n_layers", "num_layers"];
const HEADS: Names = &["num_attention_heads", "n_head", "n_heads"];
const KV_HEADS: Names =
    &["num_key_value_heads", "num_kv_heads", "n_head_kv", "multi_query_group_num", "attn_config.kv_n_heads"];
const HEAD_DIM: Names = &["head_dim", "kv_channels"];
const FFN: Names = &["intermediate_size_mlp", "intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size"];
const EXPERT_FFN: Names = &["moe_intermediate_size", "ffn_config.ffn_hidden_size", "intermediate_size"];
const EXPERTS: Names =
    &["n_routed_experts", "num_local_experts", "num_experts", "moe_num_experts", "ffn_config.moe_num_experts"];
const TOP_K: Names =
    &["num_experts_per_tok", "experts_per_token", "moe_k", "moe_topk", "top_k_experts", "ffn_config.moe_top_k"];
const VOCAB: Names = &["padded_vocab_size", "vocab_size"];
const POSITIONS: Names = &["max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "n_ctx"];
const EPS: Names =
    &["rms_norm_eps", "layer_norm_epsilon", "layer_norm_eps", "layernorm_epsilon", "norm_epsilon", "norm_eps"];
const THETA: Names = &["rope_theta", "rotary_emb_base", "rope_parameters.rope_theta", "attn_config.rope_theta"];
const FRACTION: Names = &["partial_rotary_factor", "rotary_pct", "rope_pct", "rope_parameters.partial_rotary_factor"];
const ACTIVATION: Names = &["hidden_activation", "hidden_act", "activation_function", "activation"];
const PATTERN: Names = &["sliding_window_pattern", "_sliding_window_pattern"];
const MTP: Names = &["num_nextn_predict_layers"];

/// Keys that are read beside those.
const READ: Names = &[
    "model_type",
    "architectures",
    "tie_word_embeddings",
    "layer_types",
    "sliding_window",
    "use_sliding_window",
    "max_window_layers",
    "attention_chunk_size",
    "rope_local_base_freq",
    "rotary_dim",
    "expansion_ratio",
    "attn_config",
    "ffn_config",
    "q_lora_rank",
    "kv_lora_rank",
    "qk_nope_head_dim",
    "qk_rope_head_dim",
    "v_head_dim",
    "first_k_dense_replace",
    "moe_layer_freq",
    "decoder_sparse_step",
    "mlp_only_layers",
    "interleave_moe_layer_step",
    "moe_layer_start_index",
    "moe_layer_interval",
    "shared_expert_intermediate_size",
    "n_shared_experts",
    "moe_num_shared_experts",
    "norm_topk_prob",
    "scoring_func",
    "topk_method",
    "routed_scaling_factor",
    "final_logit_softcapping",
    "new_decoder_architecture",
    "parallel_attn",
    "num_ln_in_parallel_attn",
    "word_embed_proj_dim",
    "do_layer_norm_before",
];

/// Endings and beginnings of keys that change neither sizes nor operations.
const WITHOUT_EFFECT: Names = &[
    "_token_id",
    "dropout",
    "pdrop",
    "initializer_range",
    "init_std",
    "init_config",
    "init_device",
    "transformers_version",
    "torch_dtype",
    "dtype",
    "use_cache",
    "auto_map",
    "output_router_logits",
    "aux_loss",
    "pretraining_tp",
    "ep_size",
    "rope_scaling",
    "rope_parameters",
    "n_group",
    "topk_group",
    "_softcapping",
    "query_pre_attn_scalar",
    "task_specific_params",
    "summary_",
    "_name_or_path",
    "seq_aux",
];

/// Most layers that are accepted; far above any model, so that a wrong number cannot exhaust memory.
const MAX_LAYERS: usize = 65_536;
/// Largest size of anything that is accepted.
const MAX_SIZE: usize = 1 << 31;
/// Widest head that is accepted, for the same reason.
const MAX_HEAD: usize = 65_536;

impl Decoder {
    /// The model of a `config.json`, or of the one in a folder.
    pub fn load(path: &Path) -> Result<Decoder, ConfigError> {
        from_document(&document(path)?)
    }

    /// The model of the text of a `config.json`; `file` is the name that messages show.
    pub fn from_config(file: &str, text: &str) -> Result<Decoder, ConfigError> {
        from_document(&Document::parse(file, text.as_bytes())?)
    }
}

fn from_document(doc: &Document) -> Read<Decoder> {
    let mut fields = Fields::of(doc)?;
    let mut notes = Vec::new();
    let outer_type = fields.text("model_type")?;
    if let Some(Value::Object(map)) = fields.map.get("text_config") {
        fields = Fields { doc, map, pointer: "/text_config" };
        notes.push("only text_config is read: the language model, without its other towers".to_string());
    }
    let written = [fields.text("model_type")?, outer_type];
    let named = |t: &Option<&str>| t.and_then(Family::find);
    let Some(family) = written.iter().find_map(named) else {
        return Err(unknown(fields, written.into_iter().flatten().next()));
    };
    let model_type = written.into_iter().flatten().find(|t| Family::find(t).is_some()).unwrap_or_default();
    Reader { fields, family, notes }.decoder(model_type)
}

fn unknown(fields: Fields, model_type: Option<&str>) -> ConfigError {
    let near = model_type.and_then(|m| nearest(m, Family::model_types()));
    let why = match (model_type, near) {
        (None, _) => "; add the key `model_type`".to_string(),
        (_, Some(near)) => format!("; did you mean {near:?}?"),
        _ => "; the key `model_type` decides".to_string(),
    };
    ConfigError::UnknownFamily {
        place: fields.place("model_type"),
        model_type: model_type.map_or("(missing)".to_string(), |m| format!("{m:?}")),
        known: Family::model_types().collect::<Vec<_>>().join(", "),
        why,
    }
}

struct Reader<'a> {
    fields: Fields<'a>,
    family: &'static Family,
    notes: Vec<String>,
}

impl Reader<'_> {
    fn decoder(mut self, model_type: &str) -> Read<Decoder> {
        self.refuse()?;
        let family = self.family;
        let hidden = self.need(HIDDEN)?;
        let depth = self.need(LAYERS)?;
        if depth > MAX_LAYERS {
            let message = format!("{depth} is more than {MAX_LAYERS}, the most that is accepted");
            return Err(self.fields.invalid(self.key(LAYERS), message));
        }
        let norm = self.norm()?;
        let form = self.form()?;
        let max_positions = self.size(POSITIONS)?;
        let position = self.position(max_positions)?;
        let attention = self.attention(hidden, position)?;
        let mlps = self.mlps(hidden, depth)?;
        let windows = self.windows(depth)?;
        let local = self.positive(&["rope_local_base_freq"])?;
        let mut layers = Vec::new();
        for (mlp, window) in mlps.into_iter().zip(windows) {
            let rotary = match (attention.rotary, window, local) {
                (Some(r), Some(_), Some(theta)) => Some(Rotary { theta, ..r }),
                (rotary, _, _) => rotary,
            };
            let attention = Attention { window, rotary, ..attention.clone() };
            Decoder::push(&mut layers, Layer { norm, form, attention, mlp });
        }
        let mtp = self.whole(MTP)?.unwrap_or(0);
        if mtp > depth {
            return Err(self.fields.invalid(self.key(MTP), format!("{mtp} is more than the {depth} layers")));
        }
        let last = layers.last().map(|run| run.layer.clone());
        let logit_cap = self.positive(&["final_logit_softcapping"])?;
        let tied = self.fields.flag("tie_word_embeddings")?.unwrap_or(family.tied);
        let (vocab, head_bias) = (self.need(VOCAB)?, self.flag(family.head_bias)?);
        self.passed_over();
        Ok(Decoder {
            family: model_type.to_string(),
            hidden,
            vocab,
            position,
            tied,
            head_bias,
            embed_norm: family.embed_norm.then_some(norm),
            final_norm: norm,
            logit_cap,
            layers,
            mtp: last.into_iter().flat_map(|l| std::iter::repeat_n(l, mtp)).collect(),
            max_positions,
            notes: self.notes,
        })
    }

    /// Refuses variants that have no description here.
    fn refuse(&self) -> Read<()> {
        let f = self.fields;
        if f.flag("do_layer_norm_before")? == Some(false) {
            return Err(f.invalid("do_layer_norm_before", "norms after each part with layer norms are not described"));
        }
        let projected = f.size("word_embed_proj_dim")?;
        if projected.is_some() && projected != self.size(HIDDEN)? {
            return Err(
                f.invalid("word_embed_proj_dim", "embeddings of another width than the stream are not described")
            );
        }
        Ok(())
    }

    fn norm(&self) -> Read<Norm> {
        let layer = self.family.norm == super::NormKind::Layer;
        Ok(Norm {
            kind: self.family.norm,
            gain: self.family.norm_gain,
            bias: layer && self.flag(self.family.norm_bias)?,
            eps: self.positive(EPS)?.unwrap_or(1e-5),
        })
    }

    fn form(&self) -> Read<Form> {
        Ok(match self.family.form {
            FormRule::Fixed(form) => form,
            FormRule::If(flag, form) if self.flag(flag)? => form,
            FormRule::If(..) => Form::Pre,
            FormRule::Falcon => {
                let new = self.flag(Flag::Key("new_decoder_architecture", false))?;
                let norms = self.size(&["num_ln_in_parallel_attn"])?.unwrap_or(2);
                match (new, self.flag(Flag::Key("parallel_attn", true))?) {
                    (true, _) if norms == 2 => Form::ParallelTwo,
                    (true, _) | (false, true) => Form::Parallel,
                    (false, false) => Form::Pre,
                }
            }
        })
    }

    fn position(&self, max_positions: Option<usize>) -> Read<Position> {
        let learned = |more: u64| Position::Learned { rows: max_positions.map(|p| p + more as usize) };
        Ok(match self.family.position {
            PositionRule::Rotary(_) => Position::Rotary,
            PositionRule::Learned(more) => learned(more),
            PositionRule::Alibi => Position::Alibi,
            PositionRule::AlibiOrRotary(flag) | PositionRule::AlibiOrLearned(flag) if self.flag(flag)? => {
                Position::Alibi
            }
            PositionRule::AlibiOrRotary(_) => Position::Rotary,
            PositionRule::AlibiOrLearned(_) if self.flag(Flag::Key("attn_config.rope", false))? => Position::Rotary,
            PositionRule::AlibiOrLearned(_) => learned(0),
        })
    }

    /// Attention, without the window that each layer has.
    fn attention(&mut self, hidden: usize, position: Position) -> Read<Attention> {
        let family = self.family;
        let heads = self.need(HEADS)?;
        let (kind, kv_heads) = if family.latent {
            let required = |key: &'static str| self.need(&[key]);
            let kind = Heads::Latent {
                q_latent: self.size(&["q_lora_rank"])?,
                kv_latent: required("kv_lora_rank")?,
                nope: required("qk_nope_head_dim")?,
                rope: required("qk_rope_head_dim")?,
                value: required("v_head_dim")?,
            };
            (kind, heads)
        } else {
            (Heads::Plain { width: self.head_dim(hidden, heads)? }, self.kv_heads(heads)?)
        };
        let rotary = match position {
            Position::Rotary => Some(self.rotary(kind)?),
            _ => None,
        };
        let qk_norm = match (self.flag(family.head_norm)?, self.flag(family.whole_norm)?) {
            (true, _) => QkNorm::Head,
            (_, true) => QkNorm::Whole,
            _ => QkNorm::No,
        };
        Ok(Attention {
            heads,
            kv_heads,
            kind,
            window: None,
            qk_norm,
            qkv_bias: self.flag(family.qkv_bias)?,
            o_bias: self.flag(family.o_bias)?,
            sinks: family.sinks,
            rotary,
        })
    }

    fn head_dim(&mut self, hidden: usize, heads: usize) -> Read<usize> {
        let width = match self.size(HEAD_DIM)? {
            Some(width) => width,
            None if hidden.is_multiple_of(heads) => hidden / heads,
            None => {
                let message = format!("{heads} does not divide the width {hidden}, and no head_dim is given");
                return Err(self.fields.invalid(self.key(HEADS), message));
            }
        };
        if width > MAX_HEAD {
            let message = format!("a head of {width} is wider than {MAX_HEAD}, the widest that is accepted");
            return Err(self.fields.invalid(self.key(HEAD_DIM), message));
        }
        Ok(width)
    }

    fn kv_heads(&mut self, heads: usize) -> Read<usize> {
        let new_falcon = self.flag(Flag::Key("new_decoder_architecture", false))?;
        let one = self.flag(self.family.multi_query)? && !new_falcon;
        let one = one || self.text("attn_config.attn_type")? == Some("multiquery_attention");
        let kv_heads = if one { 1 } else { self.size(KV_HEADS)?.unwrap_or(heads) };
        if !heads.is_multiple_of(kv_heads) {
            let message = format!("{kv_heads} does not divide the {heads} query heads");
            return Err(self.fields.invalid(self.key(KV_HEADS), message));
        }
        Ok(kv_heads)
    }

    fn rotary(&self, kind: Heads) -> Read<Rotary> {
        let fraction = match self.family.position {
            PositionRule::Rotary(fraction) => fraction,
            _ => 1.0,
        };
        let stated = self.size(&["rotary_dim"])?;
        let width = match kind {
            Heads::Latent { rope, .. } => rope,
            Heads::Plain { width } => {
                let fraction = self.positive(FRACTION)?.unwrap_or(fraction);
                stated.unwrap_or((width as f64 * fraction) as usize).min(width)
            }
        };
        // An odd width has one entry that does not turn.
        let width = width / 2 * 2;
        if width == 0 {
            return Err(self.fields.invalid(self.key(FRACTION), "no entry of a head would be rotated"));
        }
        Ok(Rotary { width, theta: self.positive(THETA)?.unwrap_or(10_000.0) })
    }

    /// The MLP of each layer.
    fn mlps(&mut self, hidden: usize, depth: usize) -> Read<Vec<Mlp>> {
        let ffn = Ffn {
            width: 0,
            gated: self.family.gated,
            activation: self.activation()?,
            bias: self.flag(self.family.mlp_bias)?,
        };
        let sparse = self.experts(ffn)?;
        let mut out = Vec::new();
        for i in 0..depth {
            out.push(match &sparse {
                Some((experts, layers)) if self.has_experts(*layers, i)? => Mlp::Experts(experts.clone()),
                _ => Mlp::Dense(Ffn { width: self.dense_width(hidden)?, ..ffn }),
            });
        }
        Ok(out)
    }

    fn dense_width(&self, hidden: usize) -> Read<usize> {
        if let Some(width) = self.size(FFN)? {
            return Ok(width);
        }
        match self.size(&["expansion_ratio"])? {
            Some(ratio) => Ok(hidden * ratio),
            // What GPT-2 and its kin take for an absent key.
            None if !self.family.gated => Ok(4 * hidden),
            None => Err(self.missing(&["intermediate_size"])),
        }
    }

    fn experts(&self, ffn: Ffn) -> Read<Option<(Experts, ExpertLayers)>> {
        let ExpertRule::Layers { layers, router, shared, bias } = self.family.experts else { return Ok(None) };
        let Some(experts) = self.whole(EXPERTS)?.filter(|n| *n > 0) else { return Ok(None) };
        let top_k = self.need(TOP_K)?;
        if top_k > experts {
            return Err(self.fields.invalid(self.key(TOP_K), format!("{top_k} is more than the {experts} experts")));
        }
        let each = Ffn { width: self.need(EXPERT_FFN)?, bias: ffn.bias || bias, ..ffn };
        let (width, shared_gate) = match shared {
            Shared::No => (None, false),
            Shared::One => (Some(each.width), false),
            Shared::Count(key) => (self.whole(&[key])?.map(|n| n * each.width), false),
            Shared::Gated(key) => (self.whole(&[key])?, true),
        };
        let shared = width.filter(|w| *w > 0).map(|width| Ffn { width, ..ffn });
        let shared_gate = shared_gate && shared.is_some();
        let experts = Experts { experts, top_k, each, shared, shared_gate, router: self.router(router)? };
        Ok(Some((experts, layers)))
    }

    fn router(&self, family: Router) -> Read<Router> {
        let scores = match self.fields.text("scoring_func")? {
            None => family.scores,
            Some("softmax") => Scores::Softmax,
            Some("sigmoid") => Scores::Sigmoid,
            Some(other) => {
                return Err(self.fields.mistyped("scoring_func", &format!("{other:?}"), "\"softmax\" or \"sigmoid\""))
            }
        };
        let method = self.fields.text("topk_method")?;
        Ok(Router {
            scores,
            normalise: self.fields.flag("norm_topk_prob")?.unwrap_or(family.normalise),
            bias: family.bias,
            correction: method.map_or(family.correction, |m| m == "noaux_tc"),
            scale: self.fields.positive("routed_scaling_factor")?.unwrap_or(family.scale),
        })
    }

    fn has_experts(&self, layers: ExpertLayers, i: usize) -> Read<bool> {
        let number = |key: &'static str, absent: usize| self.whole(&[key]).map(|n| n.unwrap_or(absent));
        Ok(match layers {
            ExpertLayers::All => true,
            ExpertLayers::AfterFirst => {
                i >= number("first_k_dense_replace", 0)? && i.is_multiple_of(number("moe_layer_freq", 1)?.max(1))
            }
            ExpertLayers::Sparse => {
                let only: Vec<u64> = match self.fields.given("mlp_only_layers")? {
                    Some(Value::Array(list)) => list.iter().filter_map(Value::as_u64).collect(),
                    Some(other) => return Err(self.fields.mistyped("mlp_only_layers", &show(other), "a list")),
                    None => Vec::new(),
                };
                let step = number("decoder_sparse_step", 1)?;
                (i + 1).is_multiple_of(step) && !only.contains(&(i as u64))
            }
            ExpertLayers::Interleaved => {
                let step = number("interleave_moe_layer_step", 1)?;
                (i + 1).is_multiple_of(step)
            }
            ExpertLayers::FromIndex => {
                let (start, step) = (number("moe_layer_start_index", 0)?, number("moe_layer_interval", 1)?);
                i >= start && (i + 1).is_multiple_of(step.max(1))
            }
        })
    }

    fn activation(&self) -> Read<Activation> {
        let Some((fields, key)) = self.find(ACTIVATION)? else { return Ok(self.family.activation) };
        let word = fields.text(key)?.unwrap_or_default();
        match word {
            "silu" | "swish" => Ok(Activation::Silu),
            "relu" => Ok(Activation::Relu),
            "relu2" | "squared_relu" => Ok(Activation::Relu2),
            gelu if gelu.contains("gelu") => Ok(Activation::Gelu),
            other => Err(fields.mistyped(key, &format!("{other:?}"), "silu, gelu (in any form), relu or relu2")),
        }
    }

    /// Each layer's window.
    fn windows(&self, depth: usize) -> Read<Vec<Option<usize>>> {
        let window = match self.family.window {
            WindowRule::Never => None,
            _ => self.whole(&["sliding_window"])?.filter(|w| *w > 0),
        };
        if let Some(types) = self.fields.texts("layer_types")? {
            return self.typed_windows(&types, depth, window);
        }
        let first = self.whole(&["max_window_layers"])?.unwrap_or(0);
        let switched = self.flag(Flag::Key("use_sliding_window", false))?;
        let pattern = self.size(PATTERN)?;
        let has = |i: usize| match self.family.window {
            WindowRule::Never => false,
            WindowRule::All => true,
            WindowRule::Switched => switched && i >= first,
            WindowRule::AllBut(n) => !(i + 1).is_multiple_of(pattern.unwrap_or(n)),
        };
        Ok((0..depth).map(|i| window.filter(|_| has(i))).collect())
    }

    fn typed_windows(&self, types: &[&str], depth: usize, window: Option<usize>) -> Read<Vec<Option<usize>>> {
        if types.len() != depth {
            let message = format!("{} entries for {depth} layers", types.len());
            return Err(self.fields.invalid("layer_types", message));
        }
        let chunk = self.whole(&["attention_chunk_size"])?;
        types
            .iter()
            .map(|t| match *t {
                "full_attention" => Ok(None),
                "sliding_attention" => Ok(window),
                // Chunks: a query sees at most its chunk, half of it on average; a window of half is as much.
                "chunked_attention" => Ok(chunk.map(|c| c.div_ceil(2))),
                other => Err(self.fields.mistyped(
                    "layer_types",
                    &format!("{other:?}"),
                    "a list of full_attention, sliding_attention and chunked_attention",
                )),
            })
            .collect()
    }

    // Keys by several names, some of them inside another object.

    /// The first of these keys that is there and not null, with the object that holds it.
    fn find(&self, names: &[&'static str]) -> Read<Option<(Fields<'_>, &'static str)>> {
        for name in names {
            let (fields, key) = match name.split_once('.') {
                None => (self.fields, *name),
                Some((parent, key)) => match self.fields.map.get(parent) {
                    Some(Value::Object(map)) => (Fields { doc: self.fields.doc, map, pointer: pointer(parent) }, key),
                    _ => continue,
                },
            };
            if fields.given(key)?.is_some() {
                return Ok(Some((fields, key)));
            }
        }
        Ok(None)
    }

    /// The key that messages name: the one that is there, else the first.
    fn key(&self, names: &[&'static str]) -> &'static str {
        names.iter().find(|n| self.fields.map.contains_key(**n)).unwrap_or(&names[0])
    }

    fn missing(&self, names: &[&'static str]) -> ConfigError {
        self.fields.missing(names[0])
    }

    fn size(&self, names: &[&'static str]) -> Read<Option<usize>> {
        match self.find(names)? {
            Some((fields, key)) => bounded(fields, key, fields.size(key)?),
            None => Ok(self.absent(names)),
        }
    }

    /// What the family takes for an absent size.
    fn absent(&self, names: &[&'static str]) -> Option<usize> {
        self.family.absent.iter().find(|(key, _)| names.contains(key)).map(|(_, value)| *value as usize)
    }

    fn need(&self, names: &[&'static str]) -> Read<usize> {
        self.size(names)?.ok_or_else(|| self.missing(names))
    }

    fn whole(&self, names: &[&'static str]) -> Read<Option<usize>> {
        match self.find(names)? {
            Some((fields, key)) => bounded(fields, key, fields.whole(key, 0)?),
            None => Ok(None),
        }
    }

    fn positive(&self, names: &[&'static str]) -> Read<Option<f64>> {
        match self.find(names)? {
            Some((fields, key)) => fields.positive(key),
            None => Ok(None),
        }
    }

    fn text(&self, name: &'static str) -> Read<Option<&str>> {
        match self.find(&[name])? {
            Some((fields, key)) => fields.text(key),
            None => Ok(None),
        }
    }

    fn flag(&self, flag: Flag) -> Read<bool> {
        let read = |name: &'static str| match self.find(&[name])? {
            Some((fields, key)) => fields.flag(key),
            None => Ok(None),
        };
        Ok(match flag {
            Flag::Never => false,
            Flag::Always => true,
            Flag::Key(key, absent) => read(key)?.unwrap_or(absent),
            Flag::Not(key, absent) => read(key)?.map_or(absent, |b: bool| !b),
        })
    }

    /// Notes what was taken for absent keys, and keys that were not read.
    fn passed_over(&mut self) {
        for (key, value) in self.family.absent.iter().filter(|(k, _)| !self.fields.map.contains_key(*k)) {
            self.notes.push(format!("{key} is absent: {value} is taken"));
        }
        let f = self.family;
        let flags =
            [f.norm_bias, f.qkv_bias, f.o_bias, f.mlp_bias, f.head_bias, f.head_norm, f.whole_norm, f.multi_query];
        let mut flag_keys = flags.into_iter().filter_map(Flag::key).collect::<Vec<_>>();
        flag_keys.extend(match f.form {
            FormRule::If(flag, _) => flag.key(),
            _ => None,
        });
        flag_keys.extend(match f.position {
            PositionRule::AlibiOrLearned(flag) | PositionRule::AlibiOrRotary(flag) => flag.key(),
            _ => None,
        });
        let groups = [
            HIDDEN, LAYERS, HEADS, KV_HEADS, HEAD_DIM, FFN, EXPERT_FFN, EXPERTS, TOP_K, VOCAB, POSITIONS, EPS, THETA,
            FRACTION, ACTIVATION, PATTERN, MTP, READ,
        ];
        let known = |key: &str| {
            groups.iter().any(|g| g.contains(&key))
                || flag_keys.contains(&key)
                || WITHOUT_EFFECT.iter().any(|w| key.ends_with(w) || key.starts_with(w))
        };
        let over: Vec<&str> = self.fields.map.keys().map(String::as_str).filter(|k| !known(k)).collect();
        if !over.is_empty() {
            self.notes.push(format!("passed over, as changing no size: {}", over.join(", ")));
        }
    }
}

impl Flag {
    fn key(self) -> Option<&'static str> {
        match self {
            Flag::Key(key, _) | Flag::Not(key, _) => Some(key),
            Flag::Never | Flag::Always => None,
        }
    }
}

/// Refuses sizes with which products of a few could overflow.
fn bounded(fields: Fields, key: &str, size: Option<usize>) -> Read<Option<usize>> {
    match size {
        Some(n) if n > MAX_SIZE => {
            Err(fields.invalid(key, format!("{n} is more than {MAX_SIZE}, the most that is accepted")))
        }
        size => Ok(size),
    }
}

/// JSON pointers of the objects inside a configuration that hold sizes.
fn pointer(parent: &str) -> &'static str {
    match parent {
        "attn_config" => "/attn_config",
        "ffn_config" => "/ffn_config",
        _ => "/rope_parameters",
    }
}

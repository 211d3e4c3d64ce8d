//! The supported model families as data: what each reads from `config.json`, what an absent key means to
//! it, and what its checkpoint calls each parameter.
//!
//! The defaults are those of `transformers` 5. Every key that a file holds must be one of four things to
//! its family: *used*, known to be *irrelevant* to training, *unsupported unless neutral* (refused when its
//! value would change the model), or unknown, which is an error. A key's meaning is per family: `qwen2`
//! has biases on q, k, v whatever `attention_bias` says, in `llama` that key also covers o.

/// A model family: how one `model_type` reads its configuration.
#[derive(Debug, PartialEq)]
pub struct Family {
    /// The value of `model_type` that selects this family.
    pub model_type: &'static str,
    /// The only entry of `architectures` that is accepted.
    pub architecture: &'static str,
    /// Which projections of attention have a bias.
    pub attention_bias: AttentionBias,
    /// Whether `mlp_bias` puts biases on gate, up and down; if not, there are none.
    pub mlp_bias_key: bool,
    /// Whether q and k pass an RMS norm over each head before the rotation.
    pub qk_norm: bool,
    /// How the attention window of a layer follows from the keys.
    pub window: WindowRule,
    /// `head_dim` when the key is absent; None derives hidden_size / num_attention_heads, as null does.
    pub head_dim: Option<usize>,
    /// What `transformers` takes for an absent `num_key_value_heads`; None is num_attention_heads.
    pub kv_heads: Option<usize>,
    /// `max_position_embeddings` when absent, in tokens.
    pub max_positions: usize,
    /// `rms_norm_eps` when absent.
    pub rms_eps: f64,
    /// `rope_theta` when absent.
    pub rope_theta: f64,
    /// `tie_word_embeddings` when absent.
    pub tied: bool,
    /// Keys that only this family reads.
    pub used: &'static [&'static str],
    /// Keys that this family does not read although others do.
    pub irrelevant: &'static [&'static str],
    /// Keys accepted only with a value that changes nothing.
    pub neutral: &'static [Neutral],
    /// Checkpoint names by role; `{l}` is the layer.
    pub names: &'static [(Role, &'static str)],
}

/// The bias rule of the attention projections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttentionBias {
    /// No projection has one.
    Never,
    /// q, k and v always, o never.
    Qkv,
    /// The key `attention_bias` decides for q, k, v and o together.
    Key,
}

/// How layers get their attention window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WindowRule {
    /// Attention is always full.
    Never,
    /// `sliding_window` acts in every layer; null is none.
    Every {
        /// The window when the key is absent, in tokens.
        absent: usize,
    },
    /// `sliding_window` acts when `use_sliding_window` is true, in the layers of `layer_types`, or without
    /// that list from layer `max_window_layers` on.
    Switched {
        /// The window when the key is absent, in tokens.
        absent: usize,
        /// `max_window_layers` when absent.
        absent_first: usize,
    },
}

/// A key that would change the model in a way that is not supported, with the values that do not.
#[derive(Debug, PartialEq)]
pub struct Neutral {
    /// The key.
    pub key: &'static str,
    /// The values that are accepted; null always is.
    pub accepted: &'static [Plain],
    /// What any other value would do.
    pub meaning: &'static str,
}

/// A JSON value that a table can hold.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Plain {
    /// `true` or `false`.
    Bool(bool),
    /// A number, compared as f64.
    Number(f64),
    /// `[]` or `{}`.
    Empty,
    /// A list in which every entry is this text, such as layer types.
    AllText(&'static str),
}

/// What a parameter is to the model, apart from its name in a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Role {
    /// Token embeddings, `[vocab, hidden]`; also the head where the two are tied.
    Embed,
    /// Query projection, `[heads · head_dim, hidden]`.
    Q,
    /// Bias of the query projection, `[heads · head_dim]`.
    QBias,
    /// Key projection, `[kv_heads · head_dim, hidden]`.
    K,
    /// Bias of the key projection, `[kv_heads · head_dim]`.
    KBias,
    /// Value projection, `[kv_heads · head_dim, hidden]`.
    V,
    /// Bias of the value projection, `[kv_heads · head_dim]`.
    VBias,
    /// Output projection of attention, `[hidden, heads · head_dim]`.
    O,
    /// Bias of the output projection, `[hidden]`.
    OBias,
    /// Norm of each query head, `[head_dim]`.
    QNorm,
    /// Norm of each key head, `[head_dim]`.
    KNorm,
    /// Gate projection of the MLP, `[ffn, hidden]`.
    Gate,
    /// Bias of the gate projection, `[ffn]`.
    GateBias,
    /// Up projection of the MLP, `[ffn, hidden]`.
    Up,
    /// Bias of the up projection, `[ffn]`.
    UpBias,
    /// Down projection of the MLP, `[hidden, ffn]`.
    Down,
    /// Bias of the down projection, `[hidden]`.
    DownBias,
    /// Norm before attention, `[hidden]`.
    AttnNorm,
    /// Norm before the MLP, `[hidden]`.
    MlpNorm,
    /// Norm after the last layer, `[hidden]`.
    FinalNorm,
    /// Output head, `[vocab, hidden]`; no parameter of its own where it is tied.
    Head,
}

impl Family {
    /// The family of a `model_type`.
    pub fn find(model_type: &str) -> Option<&'static Family> {
        FAMILIES.iter().find(|f| f.model_type == model_type)
    }

    /// What a key of `config.json` is to this family; None for a key that it does not know.
    pub fn key_use(&self, key: &str) -> Option<KeyUse> {
        if USED.contains(&key) || self.used.contains(&key) {
            return Some(KeyUse::Used);
        }
        if let Some(rule) = self.neutral.iter().chain(NEUTRAL).find(|n| n.key == key) {
            return Some(KeyUse::Neutral(rule));
        }
        (self.irrelevant.contains(&key) || IRRELEVANT.contains(&key)).then_some(KeyUse::Irrelevant)
    }

    /// Every key this family knows, for suggestions.
    pub fn known_keys(&self) -> impl Iterator<Item = &'static str> {
        let neutral = self.neutral.iter().chain(NEUTRAL).map(|n| n.key);
        let plain = [USED, self.used, self.irrelevant, IRRELEVANT];
        plain.into_iter().flatten().copied().chain(neutral)
    }

    /// The checkpoint name of a parameter; the layer is ignored for those outside the layers.
    pub fn name(&self, role: Role, layer: usize) -> String {
        // Invariant, tested below: every role has a name in every family.
        let pattern = self.names.iter().find(|(r, _)| *r == role).map_or("", |(_, n)| n);
        pattern.replace("{l}", &layer.to_string())
    }
}

/// What a key is to a family.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum KeyUse {
    /// Import reads it.
    Used,
    /// It does not concern training.
    Irrelevant,
    /// Only some values are accepted.
    Neutral(&'static Neutral),
}

/// The supported families, by name.
pub const FAMILIES: &[Family] = &[
    Family {
        model_type: "llama",
        architecture: "LlamaForCausalLM",
        attention_bias: AttentionBias::Key,
        mlp_bias_key: true,
        qk_norm: false,
        window: WindowRule::Never,
        head_dim: None,
        kv_heads: None,
        max_positions: 2048,
        rms_eps: 1e-6,
        rope_theta: 1e4,
        tied: false,
        used: &["attention_bias", "mlp_bias"],
        // A hint for weights trained in tensor-parallel slices: the same function either way.
        irrelevant: &["pretraining_tp"],
        neutral: &[NO_WINDOW, NO_WINDOW_SWITCH, NO_WINDOW_LAYERS, FULL_LAYERS],
        names: LLAMA_NAMES,
    },
    Family {
        model_type: "mistral",
        architecture: "MistralForCausalLM",
        attention_bias: AttentionBias::Never,
        mlp_bias_key: false,
        qk_norm: false,
        window: WindowRule::Every { absent: 4096 },
        head_dim: None,
        kv_heads: Some(8),
        max_positions: 131_072,
        rms_eps: 1e-6,
        rope_theta: 1e4,
        tied: false,
        // `layer_types` is read only to say that it has no effect.
        used: &["sliding_window", "layer_types"],
        irrelevant: &[],
        neutral: &[
            NO_ATTENTION_BIAS,
            NO_MLP_BIAS,
            Neutral {
                key: "use_sliding_window",
                accepted: &[Plain::Bool(true)],
                meaning: "in mistral the window acts whatever this says; write \"sliding_window\": null for none",
            },
            NO_WINDOW_LAYERS,
        ],
        names: LLAMA_NAMES,
    },
    Family {
        model_type: "qwen2",
        architecture: "Qwen2ForCausalLM",
        attention_bias: AttentionBias::Qkv,
        mlp_bias_key: false,
        qk_norm: false,
        window: WindowRule::Switched { absent: 4096, absent_first: 28 },
        head_dim: None,
        kv_heads: Some(32),
        max_positions: 32_768,
        rms_eps: 1e-6,
        rope_theta: 1e4,
        tied: false,
        used: WINDOW_KEYS,
        irrelevant: &["attention_bias"],
        neutral: &[NO_MLP_BIAS],
        names: LLAMA_NAMES,
    },
    Family {
        model_type: "qwen3",
        architecture: "Qwen3ForCausalLM",
        attention_bias: AttentionBias::Key,
        mlp_bias_key: false,
        qk_norm: true,
        window: WindowRule::Switched { absent: 4096, absent_first: 28 },
        head_dim: Some(128),
        kv_heads: Some(32),
        max_positions: 32_768,
        rms_eps: 1e-6,
        rope_theta: 1e4,
        tied: false,
        used: &["attention_bias", "sliding_window", "use_sliding_window", "max_window_layers", "layer_types"],
        irrelevant: &[],
        neutral: &[NO_MLP_BIAS],
        names: LLAMA_NAMES,
    },
];

const WINDOW_KEYS: &[&str] = &["sliding_window", "use_sliding_window", "max_window_layers", "layer_types"];
const NO_WINDOW: Neutral =
    Neutral { key: "sliding_window", accepted: &[], meaning: "this family has no sliding window" };
const NO_WINDOW_SWITCH: Neutral = Neutral {
    key: "use_sliding_window",
    accepted: &[Plain::Bool(false)],
    meaning: "this family has no sliding window",
};
const NO_WINDOW_LAYERS: Neutral = Neutral {
    key: "max_window_layers",
    accepted: &[],
    meaning: "this family does not choose the windowed layers by number",
};
const FULL_LAYERS: Neutral = Neutral {
    key: "layer_types",
    accepted: &[Plain::AllText("full_attention")],
    meaning: "every layer of this family has full attention",
};
const NO_ATTENTION_BIAS: Neutral = Neutral {
    key: "attention_bias",
    accepted: &[Plain::Bool(false)],
    meaning: "this family's projections have no biases",
};
const NO_MLP_BIAS: Neutral =
    Neutral { key: "mlp_bias", accepted: &[Plain::Bool(false)], meaning: "this family's MLP has no biases" };

/// Keys that import reads for every family.
const USED: &[&str] = &[
    "model_type",
    "architectures",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "intermediate_size",
    "vocab_size",
    "rms_norm_eps",
    "max_position_embeddings",
    "tie_word_embeddings",
    "hidden_act",
    "rope_theta",
    "rope_scaling",
    "rope_parameters",
];

/// Keys that say nothing about the trained function: book-keeping, generation, storage. The dtype is one:
/// it describes the stored file, the training precision is asked for on the command line.
const IRRELEVANT: &[&str] = &[
    "_attn_implementation",
    "_attn_implementation_autoset",
    "_commit_hash",
    "_experts_implementation",
    "_flash_attn_2_enabled",
    "_name_or_path",
    "attn_implementation",
    "bad_words_ids",
    "begin_suppress_tokens",
    "bos_token_id",
    "chunk_size_feed_forward",
    "decoder_start_token_id",
    "diversity_penalty",
    "do_sample",
    "dtype",
    "early_stopping",
    "encoder_no_repeat_ngram_size",
    "eos_token_id",
    "exponential_decay_length_penalty",
    "finetuning_task",
    "forced_bos_token_id",
    "forced_eos_token_id",
    "id2label",
    "initializer_range",
    "is_decoder",
    "label2id",
    "length_penalty",
    "max_length",
    "max_sequence_length",
    "min_length",
    "no_repeat_ngram_size",
    "num_beam_groups",
    "num_beams",
    "num_return_sequences",
    "output_attentions",
    "output_hidden_states",
    "output_scores",
    "pad_token_id",
    "prefix",
    "problem_type",
    "remove_invalid_values",
    "repetition_penalty",
    "return_dict",
    "return_dict_in_generate",
    "sep_token_id",
    "suppress_tokens",
    "task_specific_params",
    "temperature",
    "tf_legacy_loss",
    "tokenizer_class",
    "top_k",
    "top_p",
    "torch_dtype",
    "torchscript",
    "transformers_version",
    "typical_p",
    "unsloth_fixed",
    "unsloth_version",
    "use_bfloat16",
    "use_cache",
];

const DROPOUT: &str = "dropout is not supported";
const ENCODER: &str = "only decoders are supported";
const EXPERTS: &str = "this family has no experts";

/// Keys that would change the model, whatever the family.
const NEUTRAL: &[Neutral] = &[
    Neutral { key: "attention_dropout", accepted: &[Plain::Number(0.0)], meaning: DROPOUT },
    Neutral { key: "attn_pdrop", accepted: &[Plain::Number(0.0)], meaning: DROPOUT },
    Neutral { key: "embd_pdrop", accepted: &[Plain::Number(0.0)], meaning: DROPOUT },
    Neutral { key: "hidden_dropout", accepted: &[Plain::Number(0.0)], meaning: DROPOUT },
    Neutral { key: "resid_pdrop", accepted: &[Plain::Number(0.0)], meaning: DROPOUT },
    Neutral {
        key: "partial_rotary_factor",
        accepted: &[Plain::Number(1.0)],
        meaning: "rotating only a part of each head is not supported",
    },
    Neutral {
        key: "rope_interleaved",
        accepted: &[Plain::Bool(false)],
        meaning: "rotating neighbouring pairs is not supported",
    },
    Neutral {
        key: "original_max_position_embeddings",
        accepted: &[],
        meaning: "it belongs inside rope_scaling or rope_parameters",
    },
    Neutral {
        key: "quantization_config",
        accepted: &[],
        meaning: "quantised weights cannot be read or trained; use the unquantised checkpoint",
    },
    Neutral { key: "compression_config", accepted: &[], meaning: "compressed weights cannot be read or trained" },
    Neutral {
        key: "auto_map",
        accepted: &[Plain::Empty],
        meaning: "the model runs code of its own repository, which may differ from the family",
    },
    Neutral { key: "pruned_heads", accepted: &[Plain::Empty], meaning: "layers with fewer heads are not supported" },
    Neutral { key: "attn_logit_softcapping", accepted: &[], meaning: "soft-capped scores are not supported" },
    Neutral { key: "final_logit_softcapping", accepted: &[], meaning: "soft-capped logits are not supported" },
    Neutral { key: "use_qk_norm", accepted: &[Plain::Bool(false)], meaning: "norms of q and k follow from the family" },
    Neutral { key: "num_experts", accepted: &[Plain::Number(0.0)], meaning: EXPERTS },
    Neutral { key: "num_local_experts", accepted: &[Plain::Number(0.0)], meaning: EXPERTS },
    Neutral { key: "num_experts_per_tok", accepted: &[Plain::Number(0.0)], meaning: EXPERTS },
    Neutral { key: "block_configs", accepted: &[], meaning: "layers of different shapes are not supported" },
    Neutral {
        key: "text_config",
        accepted: &[],
        meaning: "the language model's sizes lie inside it; models with other towers are not supported",
    },
    Neutral { key: "vision_config", accepted: &[], meaning: "vision towers are not supported" },
    Neutral { key: "add_cross_attention", accepted: &[Plain::Bool(false)], meaning: ENCODER },
    Neutral { key: "cross_attention_hidden_size", accepted: &[], meaning: ENCODER },
    Neutral { key: "is_encoder_decoder", accepted: &[Plain::Bool(false)], meaning: ENCODER },
    Neutral { key: "tie_encoder_decoder", accepted: &[Plain::Bool(false)], meaning: ENCODER },
];

/// The names that all four families share.
const LLAMA_NAMES: &[(Role, &str)] = &[
    (Role::Embed, "model.embed_tokens.weight"),
    (Role::Q, "model.layers.{l}.self_attn.q_proj.weight"),
    (Role::QBias, "model.layers.{l}.self_attn.q_proj.bias"),
    (Role::K, "model.layers.{l}.self_attn.k_proj.weight"),
    (Role::KBias, "model.layers.{l}.self_attn.k_proj.bias"),
    (Role::V, "model.layers.{l}.self_attn.v_proj.weight"),
    (Role::VBias, "model.layers.{l}.self_attn.v_proj.bias"),
    (Role::O, "model.layers.{l}.self_attn.o_proj.weight"),
    (Role::OBias, "model.layers.{l}.self_attn.o_proj.bias"),
    (Role::QNorm, "model.layers.{l}.self_attn.q_norm.weight"),
    (Role::KNorm, "model.layers.{l}.self_attn.k_norm.weight"),
    (Role::Gate, "model.layers.{l}.mlp.gate_proj.weight"),
    (Role::GateBias, "model.layers.{l}.mlp.gate_proj.bias"),
    (Role::Up, "model.layers.{l}.mlp.up_proj.weight"),
    (Role::UpBias, "model.layers.{l}.mlp.up_proj.bias"),
    (Role::Down, "model.layers.{l}.mlp.down_proj.weight"),
    (Role::DownBias, "model.layers.{l}.mlp.down_proj.bias"),
    (Role::AttnNorm, "model.layers.{l}.input_layernorm.weight"),
    (Role::MlpNorm, "model.layers.{l}.post_attention_layernorm.weight"),
    (Role::FinalNorm, "model.norm.weight"),
    (Role::Head, "lm_head.weight"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_role_has_a_name_in_every_family() {
        for family in FAMILIES {
            let mut names: Vec<String> = family.names.iter().map(|(r, _)| family.name(*r, 3)).collect();
            assert_eq!(names.len(), 21, "{}", family.model_type);
            assert!(names.iter().all(|n| !n.is_empty() && !n.contains('{')));
            names.sort();
            names.dedup();
            assert_eq!(names.len(), 21, "{}", family.model_type);
        }
    }

    #[test]
    fn no_key_is_two_things() {
        for family in FAMILIES {
            let mut keys: Vec<&str> = family.known_keys().collect();
            let all = keys.len();
            keys.sort_unstable();
            keys.dedup();
            assert_eq!(keys.len(), all, "{}", family.model_type);
        }
    }

    #[test]
    fn dangerous_keys_are_never_irrelevant() {
        let keys = [
            "sliding_window",
            "use_sliding_window",
            "max_window_layers",
            "layer_types",
            "rope_scaling",
            "rope_parameters",
            "rope_theta",
            "quantization_config",
        ];
        for family in FAMILIES {
            for key in keys {
                assert!(!matches!(family.key_use(key), None | Some(KeyUse::Irrelevant)), "{} {key}", family.model_type);
            }
        }
    }
}

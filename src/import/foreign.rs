//! Families that are known and not supported, so that a refusal can name the key that decides. Reading such
//! a file as one of the supported families would build another model from the same numbers.

/// A family that is known and not supported: the keys that make it another model, and how.
#[derive(Debug)]
pub struct Foreign {
    /// Its `model_type`s.
    pub model_types: &'static [&'static str],
    /// The keys that decide, most telling first.
    pub keys: &'static [&'static str],
    /// What they mean.
    pub meaning: &'static str,
}

/// Why a `model_type` outside [`FAMILIES`] cannot be read as one of them, where that is known.
pub fn foreign(model_type: &str) -> Option<&'static Foreign> {
    FOREIGN.iter().find(|f| f.model_types.contains(&model_type))
}

const EXPERT_KEYS: &[&str] = &["num_local_experts", "num_experts", "n_routed_experts"];
const FOREIGN: &[Foreign] = &[
    Foreign {
        model_types: &["mixtral", "qwen3_moe", "qwen2_moe"],
        keys: EXPERT_KEYS,
        meaning: "its MLPs are experts with a router",
    },
    Foreign {
        model_types: &["gpt_oss"],
        keys: EXPERT_KEYS,
        meaning: "its MLPs are experts with a router, and its attention has sinks",
    },
    Foreign {
        model_types: &["deepseek_v2", "deepseek_v3"],
        keys: &["kv_lora_rank", "n_routed_experts"],
        meaning: "its keys and values come from a shared latent, and most MLPs are experts",
    },
    Foreign {
        model_types: &["nemotron-nas", "nemotron_nas", "deci"],
        keys: &["block_configs"],
        meaning: "each layer has its own heads and MLP width there, or none",
    },
    Foreign {
        model_types: &["phi"],
        keys: &["partial_rotary_factor"],
        meaning: "only a part of each head is rotated, and the MLP is not gated",
    },
    Foreign {
        model_types: &["phi3"],
        keys: &["partial_rotary_factor", "original_max_position_embeddings"],
        meaning: "its projections are fused, and its rotation may be partial or rescaled",
    },
    Foreign {
        model_types: &["qwen"],
        keys: &["intermediate_size"],
        meaning: "in this family it is twice the real width of the MLP",
    },
    Foreign {
        model_types: &["qwen2_5_vl", "qwen2_vl", "qwen3_vl", "mllama", "llava", "mistral3"],
        keys: &["text_config", "vision_config"],
        meaning: "the language model's sizes lie there, beside a vision tower",
    },
    Foreign {
        model_types: &["gemma", "gemma2", "gemma3", "gemma3_text"],
        keys: &["text_config", "layer_types", "sliding_window", "query_pre_attn_scalar", "hidden_activation"],
        meaning: "its windows, norms (1 + w), scaled embeddings and gelu are its own",
    },
    Foreign {
        model_types: &["gpt2"],
        keys: &["n_embd", "activation_function"],
        meaning: "it has learned positions, layer norms, fused attention weights and an ungated MLP",
    },
    Foreign {
        model_types: &["olmo2"],
        keys: &["rms_norm_eps"],
        meaning: "its norms stand after the blocks and over whole projections",
    },
];

/// Keys that, in a file of any family, show it to be another kind of model.
pub const TELLING: &[&str] = &[
    "text_config",
    "block_configs",
    "kv_lora_rank",
    "num_local_experts",
    "num_experts",
    "n_routed_experts",
    "partial_rotary_factor",
    "vision_config",
    "ffn_dim_multiplier",
    "n_embd",
    "quantization_config",
];

//! What each family's configuration leaves unsaid: where norms stand, which products have biases, what an
//! absent key means.
//!
//! Rows follow the models' own code in `transformers` (`models/NAME/configuration_NAME.py` and
//! `modeling_NAME.py`) unless one says otherwise; `tests/decoder.rs` holds them against the published numbers
//! of parameters. Sizes are read under the same few keys everywhere
//! ([`super::Decoder::from_config`]); a family states only how they combine.

use super::{Activation, Form, NormKind, Router, Scores};

/// How one family reads its configuration.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Family {
    /// The values of `model_type` that select it.
    pub model_types: &'static [&'static str],
    /// Norms over the stream.
    pub norm: NormKind,
    /// Whether layer norms have a bias.
    pub norm_bias: Flag,
    /// Whether norms have gains.
    pub norm_gain: bool,
    /// Where norms stand.
    pub form: FormRule,
    /// Whether the MLP has a gate.
    pub gated: bool,
    /// Its activation where no key says.
    pub activation: Activation,
    /// Biases of the query, key and value products.
    pub qkv_bias: Flag,
    /// Bias of the output product.
    pub o_bias: Flag,
    /// Biases of the MLP's products.
    pub mlp_bias: Flag,
    /// Bias of the logits.
    pub head_bias: Flag,
    /// Whether queries and keys are normed over each head.
    pub head_norm: Flag,
    /// Whether they are normed over all heads together.
    pub whole_norm: Flag,
    /// How positions enter.
    pub position: PositionRule,
    /// `tie_word_embeddings` where absent.
    pub tied: bool,
    /// Which layers have a window.
    pub window: WindowRule,
    /// Experts.
    pub experts: ExpertRule,
    /// Whether the embeddings are normed.
    pub embed_norm: bool,
    /// Whether attention has sinks.
    pub sinks: bool,
    /// Whether keys and values come from a latent.
    pub latent: bool,
    /// Whether one key decides for a single head of keys and values.
    pub multi_query: Flag,
    /// What absent keys of sizes mean.
    pub absent: &'static [(&'static str, u64)],
}

/// A yes or no.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flag {
    /// No.
    Never,
    /// Yes.
    Always,
    /// As the key says, or this where it is absent.
    Key(&'static str, bool),
    /// The opposite of the key, or this where it is absent.
    Not(&'static str, bool),
}

/// Where norms of a layer stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FormRule {
    /// Always so.
    Fixed(Form),
    /// The first form where the flag is set, else before each part.
    If(Flag, Form),
    /// Falcon: `new_decoder_architecture` has a norm for each of its two parallel parts unless
    /// `num_ln_in_parallel_attn` is 1, else `parallel_attn` decides.
    Falcon,
}

/// How positions enter.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum PositionRule {
    /// Rotation of this part of each head where no key says.
    Rotary(f64),
    /// A table, with this many rows more than positions.
    Learned(u64),
    /// ALiBi.
    Alibi,
    /// ALiBi where the flag is set, else rotation.
    AlibiOrRotary(Flag),
    /// ALiBi where the flag is set, else a table.
    AlibiOrLearned(Flag),
}

/// Which layers have a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WindowRule {
    /// None.
    Never,
    /// All, where `sliding_window` is a number.
    All,
    /// Those from `max_window_layers` on, where `use_sliding_window` is set.
    Switched,
    /// All but each n-th, where `layer_types` does not say.
    AllBut(usize),
}

/// Whether and where layers have experts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ExpertRule {
    /// Nowhere.
    Never,
    /// In the layers that `layers` says, chosen by `router`.
    Layers {
        /// Which layers.
        layers: ExpertLayers,
        /// How experts are chosen where no key says.
        router: Router,
        /// What all tokens pass beside.
        shared: Shared,
        /// Whether experts' products have biases.
        bias: bool,
    },
}

/// Which layers have experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExpertLayers {
    /// All.
    All,
    /// All but the first `first_k_dense_replace`, of the rest each `moe_layer_freq`-th.
    AfterFirst,
    /// Each `decoder_sparse_step`-th but `mlp_only_layers`.
    Sparse,
    /// Each `interleave_moe_layer_step`-th.
    Interleaved,
    /// From `moe_layer_start_index` on, each `moe_layer_interval`-th.
    FromIndex,
}

/// The network that all tokens pass beside their experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shared {
    /// None.
    No,
    /// As many experts' widths as this key says.
    Count(&'static str),
    /// As wide as this key says, scaled by a gate.
    Gated(&'static str),
    /// One as wide as an expert.
    One,
}

use ExpertLayers::{AfterFirst, All, FromIndex, Interleaved, Sparse};
use Flag::{Always, Key, Never, Not};

const ROUTER: Router = Router { scores: Scores::Softmax, normalise: true, bias: false, correction: false, scale: 1.0 };
const SIGMOID: Router = Router { scores: Scores::Sigmoid, correction: true, ..ROUTER };
const TOP: Router = Router { normalise: false, ..ROUTER };

/// RMS norms before each part, a gated SiLU network, rotation, no biases.
const LLAMA: Family = Family {
    model_types: &["llama"],
    norm: NormKind::Rms,
    norm_bias: Never,
    norm_gain: true,
    form: FormRule::Fixed(Form::Pre),
    gated: true,
    activation: Activation::Silu,
    qkv_bias: Key("attention_bias", false),
    o_bias: Key("attention_bias", false),
    mlp_bias: Key("mlp_bias", false),
    head_bias: Never,
    head_norm: Never,
    whole_norm: Never,
    position: PositionRule::Rotary(1.0),
    tied: false,
    window: WindowRule::Never,
    experts: ExpertRule::Never,
    embed_norm: false,
    sinks: false,
    latent: false,
    multi_query: Never,
    absent: &[],
};

/// Layer norms before each part, an ungated GELU network, a table of positions, biases everywhere.
const GPT2: Family = Family {
    model_types: &["gpt2"],
    norm: NormKind::Layer,
    norm_bias: Always,
    gated: false,
    activation: Activation::Gelu,
    qkv_bias: Always,
    o_bias: Always,
    mlp_bias: Always,
    position: PositionRule::Learned(0),
    tied: true,
    ..LLAMA
};

/// Keys and values from a latent, experts after the first layers.
const DEEPSEEK: Family = Family {
    model_types: &["deepseek_v3", "kimi_k2"],
    latent: true,
    mlp_bias: Never,
    experts: experts(AfterFirst, SIGMOID, Shared::Count("n_shared_experts")),
    ..LLAMA
};

const NO_BIAS: Family = Family { qkv_bias: Never, o_bias: Never, mlp_bias: Never, ..LLAMA };
const GEMMA: Family =
    Family { model_types: &["gemma"], activation: Activation::Gelu, mlp_bias: Never, tied: true, ..LLAMA };
const GEMMA2: Family =
    Family { model_types: &["gemma2"], form: FormRule::Fixed(Form::Sandwich), window: WindowRule::AllBut(2), ..GEMMA };
const PHI: Family = Family {
    model_types: &["phi"],
    form: FormRule::Fixed(Form::Parallel),
    head_bias: Always,
    position: PositionRule::Rotary(0.5),
    tied: false,
    ..GPT2
};
const COHERE: Family = Family {
    model_types: &["cohere"],
    norm: NormKind::Layer,
    form: FormRule::Fixed(Form::Parallel),
    mlp_bias: Never,
    head_norm: Key("use_qk_norm", false),
    tied: true,
    ..LLAMA
};

const fn experts(layers: ExpertLayers, router: Router, shared: Shared) -> ExpertRule {
    ExpertRule::Layers { layers, router, shared, bias: false }
}

/// The families.
pub const FAMILIES: &[Family] = &[
    LLAMA,
    Family { model_types: &["yi", "granite", "minicpm", "smollm3", "helium", "ernie4_5", "baichuan"], ..LLAMA },
    Family { model_types: &["arcee"], gated: false, activation: Activation::Relu2, ..LLAMA },
    Family {
        model_types: &["exaone", "internlm2", "internlm"],
        qkv_bias: Key("bias", false),
        o_bias: Key("bias", false),
        ..LLAMA
    },
    Family {
        model_types: &["seed_oss"],
        qkv_bias: Key("attention_bias", true),
        o_bias: Key("attention_out_bias", false),
        ..LLAMA
    },
    Family { model_types: &["mistral", "ministral"], window: WindowRule::All, ..NO_BIAS },
    Family { model_types: &["mixtral"], window: WindowRule::All, experts: experts(All, ROUTER, Shared::No), ..NO_BIAS },
    Family { model_types: &["qwen2"], qkv_bias: Always, window: WindowRule::Switched, ..NO_BIAS },
    Family { model_types: &["qwen3"], head_norm: Always, mlp_bias: Never, window: WindowRule::Switched, ..LLAMA },
    Family {
        model_types: &["qwen2_moe"],
        qkv_bias: Key("qkv_bias", true),
        window: WindowRule::Switched,
        experts: experts(Sparse, TOP, Shared::Gated("shared_expert_intermediate_size")),
        ..NO_BIAS
    },
    Family {
        model_types: &["qwen3_moe"],
        head_norm: Always,
        mlp_bias: Never,
        window: WindowRule::Switched,
        experts: experts(Sparse, TOP, Shared::No),
        ..LLAMA
    },
    Family { model_types: &["granitemoe"], experts: experts(All, ROUTER, Shared::No), ..LLAMA },
    DEEPSEEK,
    // Scores are a softmax, and its weights are not divided by their sum (arXiv 2405.04434, section 2.2).
    Family {
        model_types: &["deepseek_v2"],
        experts: experts(AfterFirst, TOP, Shared::Count("n_shared_experts")),
        ..DEEPSEEK
    },
    // The first generation: experts without latents (arXiv 2401.06066).
    Family {
        model_types: &["deepseek"],
        latent: false,
        experts: experts(AfterFirst, TOP, Shared::Count("n_shared_experts")),
        ..DEEPSEEK
    },
    // The router, all products of attention and the experts have biases (arXiv 2508.10925, section 2).
    Family {
        model_types: &["gpt_oss"],
        qkv_bias: Key("attention_bias", true),
        o_bias: Key("attention_bias", true),
        window: WindowRule::AllBut(2),
        sinks: true,
        experts: ExpertRule::Layers {
            layers: All,
            router: Router { scores: Scores::SoftmaxOfChosen, normalise: false, bias: true, ..ROUTER },
            shared: Shared::No,
            bias: true,
        },
        ..NO_BIAS
    },
    // The released code (github.com/xai-org/grok-1, model.py): four norms a layer, embeddings tied.
    Family {
        model_types: &["grok-1", "grok_1", "grok"],
        form: FormRule::Fixed(Form::Sandwich),
        activation: Activation::Gelu,
        tied: true,
        experts: experts(All, TOP, Shared::No),
        ..NO_BIAS
    },
    Family {
        model_types: &["llama4_text"],
        experts: ExpertRule::Layers {
            layers: Interleaved,
            router: Router { scores: Scores::Sigmoid, normalise: false, ..ROUTER },
            shared: Shared::One,
            bias: false,
        },
        ..LLAMA
    },
    Family {
        model_types: &["ernie4_5_moe"],
        qkv_bias: Key("use_bias", false),
        o_bias: Key("use_bias", false),
        mlp_bias: Key("use_bias", false),
        experts: experts(FromIndex, Router { correction: true, ..ROUTER }, Shared::Count("moe_num_shared_experts")),
        ..LLAMA
    },
    Family {
        model_types: &["minimax_m2"],
        whole_norm: Key("use_qk_norm", true),
        experts: experts(All, SIGMOID, Shared::No),
        ..NO_BIAS
    },
    GPT2,
    Family { model_types: &["gpt_bigcode"], multi_query: Key("multi_query", true), ..GPT2 },
    Family {
        model_types: &["gpt_neox"],
        form: FormRule::If(Key("use_parallel_residual", true), Form::ParallelTwo),
        qkv_bias: Key("attention_bias", true),
        o_bias: Key("attention_bias", true),
        position: PositionRule::Rotary(0.25),
        tied: false,
        ..GPT2
    },
    Family {
        model_types: &["gptj"],
        form: FormRule::Fixed(Form::Parallel),
        qkv_bias: Never,
        o_bias: Never,
        head_bias: Always,
        position: PositionRule::Rotary(1.0),
        tied: false,
        ..GPT2
    },
    // Its table has two rows more than positions.
    Family {
        model_types: &["opt"],
        activation: Activation::Relu,
        qkv_bias: Key("enable_bias", true),
        o_bias: Key("enable_bias", true),
        mlp_bias: Key("enable_bias", true),
        position: PositionRule::Learned(2),
        ..GPT2
    },
    Family { model_types: &["bloom"], position: PositionRule::Alibi, embed_norm: true, ..GPT2 },
    Family {
        model_types: &["mpt"],
        norm_bias: Not("no_bias", true),
        qkv_bias: Not("no_bias", true),
        o_bias: Not("no_bias", true),
        mlp_bias: Not("no_bias", true),
        position: PositionRule::AlibiOrLearned(Key("attn_config.alibi", false)),
        ..GPT2
    },
    Family { model_types: &["dbrx"], norm: NormKind::Layer, experts: experts(All, ROUTER, Shared::No), ..NO_BIAS },
    Family {
        model_types: &["falcon", "RefinedWeb", "RefinedWebModel"],
        form: FormRule::Falcon,
        qkv_bias: Key("bias", false),
        o_bias: Key("bias", false),
        mlp_bias: Key("bias", false),
        position: PositionRule::AlibiOrRotary(Key("alibi", false)),
        multi_query: Key("multi_query", true),
        ..GPT2
    },
    // Squared ReLU without a gate, half of each head rotated (arXiv 2402.16819, section 2).
    Family {
        model_types: &["nemotron"],
        norm: NormKind::Layer,
        norm_bias: Always,
        gated: false,
        activation: Activation::Relu2,
        position: PositionRule::Rotary(0.5),
        ..LLAMA
    },
    Family {
        model_types: &["stablelm"],
        norm: NormKind::Layer,
        norm_bias: Always,
        form: FormRule::If(Key("use_parallel_residual", false), Form::Parallel),
        qkv_bias: Key("use_qkv_bias", false),
        head_norm: Key("qk_layernorm", false),
        position: PositionRule::Rotary(0.25),
        ..NO_BIAS
    },
    Family {
        model_types: &["starcoder2"],
        qkv_bias: Key("use_bias", true),
        o_bias: Key("use_bias", true),
        mlp_bias: Key("use_bias", true),
        position: PositionRule::Rotary(1.0),
        window: WindowRule::All,
        ..GPT2
    },
    PHI,
    Family { model_types: &["phi3"], window: WindowRule::All, ..NO_BIAS },
    Family {
        model_types: &["phimoe"],
        norm: NormKind::Layer,
        norm_bias: Always,
        mlp_bias: Never,
        head_bias: Key("lm_head_bias", false),
        window: WindowRule::All,
        experts: experts(All, TOP, Shared::No),
        ..LLAMA
    },
    GEMMA,
    GEMMA2,
    // A language model's part may state only what differs from the 4B model.
    Family {
        model_types: &["gemma3", "gemma3_text"],
        head_norm: Always,
        window: WindowRule::AllBut(6),
        absent: &[
            ("num_attention_heads", 8),
            ("num_key_value_heads", 4),
            ("head_dim", 256),
            ("vocab_size", 262_208),
            ("max_position_embeddings", 131_072),
        ],
        ..GEMMA2
    },
    COHERE,
    Family { model_types: &["cohere2"], window: WindowRule::AllBut(4), ..COHERE },
    // Norms without parameters (arXiv 2402.00838, section 2.2).
    Family { model_types: &["olmo"], norm: NormKind::Layer, norm_gain: false, mlp_bias: Never, ..LLAMA },
    Family { model_types: &["olmo2"], form: FormRule::Fixed(Form::Post), whole_norm: Always, mlp_bias: Never, ..LLAMA },
    Family {
        model_types: &["olmo3"],
        form: FormRule::Fixed(Form::Post),
        whole_norm: Always,
        mlp_bias: Never,
        window: WindowRule::AllBut(4),
        ..LLAMA
    },
    Family {
        model_types: &["olmoe"],
        whole_norm: Always,
        mlp_bias: Never,
        experts: experts(All, TOP, Shared::No),
        ..LLAMA
    },
    Family { model_types: &["glm"], o_bias: Never, mlp_bias: Never, position: PositionRule::Rotary(0.5), ..LLAMA },
    Family {
        model_types: &["glm4"],
        form: FormRule::Fixed(Form::Sandwich),
        o_bias: Never,
        mlp_bias: Never,
        position: PositionRule::Rotary(0.5),
        ..LLAMA
    },
    Family {
        model_types: &["glm4_moe"],
        o_bias: Never,
        mlp_bias: Never,
        head_norm: Key("use_qk_norm", false),
        position: PositionRule::Rotary(0.5),
        experts: experts(AfterFirst, SIGMOID, Shared::Count("n_shared_experts")),
        ..LLAMA
    },
    // The older format of the same models.
    Family {
        model_types: &["chatglm"],
        qkv_bias: Key("add_qkv_bias", false),
        o_bias: Key("add_bias_linear", false),
        mlp_bias: Key("add_bias_linear", false),
        position: PositionRule::Rotary(0.5),
        ..LLAMA
    },
];

impl Family {
    /// The family of a `model_type`.
    pub fn find(model_type: &str) -> Option<&'static Family> {
        FAMILIES.iter().find(|f| f.model_types.contains(&model_type))
    }

    /// Every known `model_type`.
    pub fn model_types() -> impl Iterator<Item = &'static str> {
        FAMILIES.iter().flat_map(|f| f.model_types.iter().copied())
    }
}

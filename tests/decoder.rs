//! Models for planning, against what is published of them: numbers of parameters, and the operations that
//! closed formulas give.

use autoshard::decoder::{Decoder, Form, Heads, Mlp, ModuleShape, Position};
use autoshard::import;
use autoshard::import::build::{build, StepShape};
use autoshard::ir::core::{Function, Module, Template, Type};
use autoshard::ir::interp::{self, Tensor};
use autoshard::ir::verify::verify;
use autoshard::ir::{ops, text, DType};
use autoshard::passes::autodiff::{differentiate, AdamW};
use serde_json::{json, Value};
use std::path::{Path, PathBuf};

fn models() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/models")
}

fn published(name: &str) -> Decoder {
    Decoder::load(&models().join(format!("{name}.json"))).unwrap_or_else(|e| panic!("{e}"))
}

fn shape(seq_len: usize) -> ModuleShape {
    ModuleShape { batch: 1, seq_len, dtype: DType::Bf16, capacity: 1.0 }
}

fn assert_near(got: f64, want: f64, part: f64, about: &str) {
    assert!((got / want - 1.0).abs() <= part, "{about}: {got}, not {want}");
}

/// Parameters and active parameters in 10⁹, as the models' papers or cards give them.
const COUNTS: [(&str, f64, Option<f64>); 13] = [
    ("deepseek-v3", 671.0, Some(37.5)), // arXiv 2412.19437: 671 B, 37 B of them active, rounded down
    ("gpt-oss-20b", 20.91, None),       // arXiv 2508.10925, table 1
    ("gpt3-175b", 174.6, None),         // arXiv 2005.14165, by its dims
    ("meta-llama-3.1-405b", 405.85, None),
    ("meta-llama-3.1-70b", 70.55, None),
    ("meta-llama-3.1-8b", 8.03, None),
    ("mixtral-8x22b-v0.1", 140.6, Some(39.1)),
    ("mixtral-8x7b-v0.1", 46.7, Some(12.9)), // arXiv 2401.04088: 47 B, 13 B active
    ("mt-nlg-530b", 529.6, None),
    ("qwen3-235b-a22b", 235.1, Some(22.2)), // arXiv 2505.09388: 235 B, 22 B active
    ("qwen3-30b-a3b", 30.5, Some(3.35)),
    ("qwen3-32b", 32.8, None),
    ("qwen3-8b", 8.2, None),
];

#[test]
fn parameters_are_those_published() {
    for (name, want, active) in COUNTS {
        let d = published(name);
        assert_near(d.parameters() as f64 / 1e9, want, 0.003, name);
        if let Some(active) = active {
            assert_near(d.active_parameters() as f64 / 1e9, active, 0.01, name);
        } else if d.family != "gpt_oss" {
            assert_eq!(d.active_parameters(), d.parameters());
        }
    }
    // arXiv 2412.19437, section 2.2: 14 B in the module beside the 671 B, of which its embedding and head
    // (2 · 129280 · 7168) are shared.
    let own = published("deepseek-v3").mtp_parameters() as f64 / 1e9;
    assert_near(own, 14.0 - 2.0 * 129_280.0 * 7168.0 / 1e9, 0.06, "MTP");
}

#[test]
fn every_published_model_builds_prints_and_parses() {
    for (name, ..) in COUNTS {
        let d = published(name);
        let module = d.module(&shape(2048)).unwrap_or_else(|e| panic!("{name}: {e}"));
        check_module(name, &module);
        let trained: u64 = module
            .entry_function()
            .unwrap()
            .params
            .iter()
            .filter(|p| p.trainable)
            .map(|p| module.entry_function().unwrap().ty(p.value).elements() as u64)
            .sum();
        // What no node reads or no gradient trains: a number a head (sinks), a number an expert.
        let small = d.parameters() + d.mtp_parameters() - trained;
        assert!(small < 20_000, "{name}: {small} parameters are not in the module");
    }
}

fn check_module(name: &str, module: &Module) {
    verify(module).unwrap_or_else(|e| panic!("{name}: {}", e[0]));
    let printed = text::print(module);
    let parsed = text::parse(&printed, name).unwrap_or_else(|e| panic!("{e}"));
    assert!(&parsed == module, "{name}: parse∘print");
}

/// FLOPs of the products of all calls, and of attention's without a mask.
fn flops(module: &Module) -> (f64, f64) {
    let (mut products, mut attention) = (0.0, 0.0);
    for call in &module.entry_function().unwrap().nodes {
        let f = module.function(call.callee.as_deref().unwrap()).unwrap();
        for node in &f.nodes {
            let types: Vec<&Type> = node.inputs.iter().map(|v| f.ty(*v)).collect();
            let rule = ops::rule(node.op, &types, &node.attrs).unwrap();
            let size = |name: &str| rule.factors[rule.factor(name).unwrap()].size as f64;
            match node.op.template {
                Template::Gemm => products += 2.0 * rule.factors.iter().map(|f| f.size as f64).product::<f64>(),
                Template::Attention => {
                    let pairs: f64 = ["b", "s", "t", "g", "r"].map(size).iter().product();
                    attention += 2.0 * pairs * (size("e") + size("h"));
                }
                _ => {}
            }
        }
    }
    (products, attention)
}

/// FLOPs of a token's products, from the configuration's own keys: 2 a weight that it passes.
fn formula(c: &Value, seq_len: f64) -> (f64, f64) {
    let get = |keys: &[&str]| keys.iter().find_map(|k| c.get(*k).and_then(Value::as_f64));
    let need = |keys: &[&str]| get(keys).unwrap_or_else(|| panic!("{keys:?}"));
    let h = need(&["hidden_size", "n_embd"]);
    let layers = need(&["num_hidden_layers", "n_layer"]);
    let a = need(&["num_attention_heads", "n_head"]);
    let k = get(&["num_key_value_heads"]).unwrap_or(a);
    let d = get(&["head_dim"]).unwrap_or(h / a);
    let gated = if c.get("n_embd").is_some() { 2.0 } else { 3.0 };
    let (attention, widths) = match get(&["kv_lora_rank"]) {
        // DeepSeek-V2, arXiv 2405.04434, appendix C.
        Some(l) => {
            let (q, n) = (need(&["q_lora_rank"]), need(&["qk_nope_head_dim"]));
            let (r, v) = (need(&["qk_rope_head_dim"]), need(&["v_head_dim"]));
            (h * q + q * a * (n + r) + h * (l + r) + l * a * (n + v) + a * v * h, n + r + v)
        }
        None => (h * (a + 2.0 * k) * d + a * d * h, 2.0 * d),
    };
    let dense = |f: f64| gated * h * f;
    let mlps = match get(&["n_routed_experts", "num_local_experts", "num_experts"]) {
        Some(experts) => {
            let f = get(&["moe_intermediate_size"]).unwrap_or_else(|| need(&["intermediate_size"]));
            let passed = need(&["num_experts_per_tok"]) + get(&["n_shared_experts"]).unwrap_or(0.0);
            let first = get(&["first_k_dense_replace"]).unwrap_or(0.0);
            first * dense(need(&["intermediate_size"])) + (layers - first) * (h * experts + passed * dense(f))
        }
        None => layers * dense(need(&["intermediate_size", "n_inner"])),
    };
    let products = layers * attention + mlps + h * need(&["vocab_size"]);
    (2.0 * products, 2.0 * layers * a * widths * seq_len)
}

#[test]
fn products_are_those_of_the_closed_formulas() {
    let (batch, seq_len) = (2, 1024);
    for (name, ..) in COUNTS {
        let source = std::fs::read_to_string(models().join(format!("{name}.json"))).unwrap();
        let mut config: Value = serde_json::from_str(&source).unwrap();
        // Layers beside the stack are counted apart below.
        config["num_nextn_predict_layers"] = json!(0);
        let d = Decoder::from_config(name, &config.to_string()).unwrap();
        let module = d.module(&ModuleShape { batch, ..shape(seq_len) }).unwrap();
        let tokens = (batch * seq_len) as f64;
        let ((products, attention), (want, scores)) = (flops(&module), formula(&config, seq_len as f64));
        assert_near(products / tokens, want, 1e-12, name);
        assert_near(attention / tokens, scores, 1e-12, name);
    }
}

#[test]
fn a_further_layer_costs_a_layer_a_join_and_a_head() {
    let with = published("deepseek-v3");
    let without = Decoder { mtp: Vec::new(), ..with.clone() };
    let of = |d: &Decoder| flops(&d.module(&shape(512)).unwrap()).0 / 512.0;
    let (h, v) = (7168.0, 129_280.0);
    let deep = |layers: usize| {
        let mut d = without.clone();
        d.layers[1].count = layers;
        of(&d)
    };
    let layer = deep(2) - deep(1);
    assert_near(of(&with) - of(&without), layer + 2.0 * (2.0 * h * h) + 2.0 * h * v, 1e-12, "MTP");
}

/// Where a family can be executed, planning sees the functions that are executed.
#[test]
fn functions_are_those_that_run() {
    for name in ["qwen3-8b", "meta-llama-3.1-8b"] {
        let config = import::load(&models().join(format!("{name}.json"))).unwrap();
        let run = build(&config, StepShape { batch: 1, seq_len: 2048, dtype: DType::Bf16 }).unwrap().module;
        let plan = published(name).module(&shape(2048)).unwrap();
        for f in ["embed", "block", "head"] {
            assert_eq!(plan.function(f), run.function(f), "{name} @{f}");
        }
        let calls = |m: &Module| m.entry_function().unwrap().nodes.iter().map(|n| n.callee.clone()).collect::<Vec<_>>();
        assert_eq!(calls(&plan), calls(&run));
    }
}

fn row(family: &str, block: Value, model: Value) -> Decoder {
    let mut whole = json!({"family": family, "norm": "rmsnorm", "gated": true, "activation": "silu", "bias": false,
        "position": "rope", "tied": false, "parallel_block": false, "moe": null, "mtp": 0});
    for (key, value) in block.as_object().unwrap() {
        whole[key] = value.clone();
    }
    Decoder::from_row(&whole, &model).unwrap_or_else(|e| panic!("{family}: {e}"))
}

/// Rows of runs in their own words; counts in 10⁹ as published.
#[test]
fn rows_of_every_family_have_their_published_parameters() {
    let heads = |kind: &str, heads: u64, kv: u64, width: u64| json!({"kind": kind, "heads": heads, "kv_heads": kv, "head_dim": width});
    let dims = |layers: u64, hidden: u64, ffn: u64, vocab: u64| json!({"layers": layers, "hidden": hidden, "ffn_hidden": ffn, "vocab": vocab, "seq_len": 2048});
    let gpt = |position: &str, attention: Value| {
        json!({"norm": "layernorm", "gated": false, "activation": "gelu", "bias": true, "position": position,
               "tied": true, "attention": attention})
    };
    let moe = |experts: u64, top_k: u64, ffn: u64| json!({"experts": experts, "top_k": top_k, "shared": 0, "expert_ffn": ffn, "dense_layers": 0, "dense_ffn": null});
    let rows = [
        (row("gpt", gpt("learned", heads("full", 96, 96, 128)), dims(96, 12288, 49152, 51200)), 174.6),
        (row("mpt", gpt("learned", heads("full", 64, 64, 128)), dims(80, 8192, 32768, 50368)), 64.862),
        (row("bloom", gpt("alibi", heads("full", 112, 112, 128)), dims(70, 14336, 57344, 250_880)), 176.247),
        (
            row(
                "nemotron",
                json!({"norm": "layernorm", "gated": false, "activation": "relu2",
                       "attention": {"kind": "full", "heads": 48, "kv_heads": 8, "head_dim": 128, "rotary_fraction": 0.5}}),
                dims(32, 6144, 24576, 256_000),
            ),
            15.6,
        ),
        (row("llama", json!({"attention": heads("full", 64, 8, 128)}), dims(80, 8192, 28672, 128_256)), 70.55),
        (
            row(
                "grok",
                json!({"activation": "gelu", "attention": heads("full", 48, 8, 128), "moe": moe(8, 2, 32768)}),
                dims(64, 6144, 32768, 131_072),
            ),
            314.0,
        ),
        (
            row(
                "mixtral",
                json!({"attention": heads("full", 32, 8, 128), "moe": moe(8, 2, 14336)}),
                dims(32, 4096, 14336, 32000),
            ),
            46.7,
        ),
        (
            row(
                "qwen-moe",
                json!({"attention": {"kind": "full", "heads": 64, "kv_heads": 4, "head_dim": 128, "qk_norm": true},
                       "moe": moe(128, 8, 1536)}),
                dims(94, 4096, 12288, 151_936),
            ),
            235.1,
        ),
        (
            row(
                "deepseek",
                json!({"attention": {"kind": "mla", "heads": 128, "q_lora": 1536, "kv_lora": 512, "nope": 128,
                                     "rope": 64, "v": 128},
                       "moe": {"experts": 256, "top_k": 8, "shared": 1, "expert_ffn": 2048, "dense_layers": 3,
                               "dense_ffn": 18432}, "mtp": 1}),
                dims(61, 7168, 18432, 129_280),
            ),
            671.0,
        ),
        (
            row(
                "gpt-oss",
                json!({"bias": true, "moe": moe(128, 4, 2880),
                       "attention": {"kind": "window", "heads": 64, "kv_heads": 8, "head_dim": 64, "window": 128,
                                     "full_every": 2, "sinks": true}}),
                dims(36, 2880, 2880, 201_088),
            ),
            116.8,
        ),
    ];
    for (d, want) in rows {
        assert_near(d.parameters() as f64 / 1e9, want, 0.01, &d.family);
        let module = d.module(&shape(2048)).unwrap_or_else(|e| panic!("{}: {e}", d.family));
        check_module(&d.family, &module);
        // Every weight of two dimensions or more is a product, but for the two tables.
        let (products, _) = flops(&module);
        let tables = if let Position::Learned { rows } = d.position { rows.unwrap() * d.hidden } else { 0 } as f64;
        let embedding = if d.tied { 0 } else { d.vocab * d.hidden } as f64;
        let further = d.mtp.len() as f64 * (d.mtp_parameters() as f64 + (d.vocab * d.hidden) as f64);
        let passed = d.active_parameters() as f64 - embedding - tables;
        if d.mtp.is_empty() {
            assert_near(products / 2048.0, 2.0 * passed, 0.002, &d.family);
        } else {
            assert!(products / 2048.0 < 2.0 * (passed + further));
        }
    }
}

#[test]
fn windows_latents_and_forms_are_read() {
    let oss = published("gpt-oss-20b");
    let windows: Vec<Option<usize>> = oss.layers.iter().map(|r| r.layer.attention.window).collect();
    assert_eq!(windows[..4], [Some(128), None, Some(128), None]);
    let module = oss.module(&shape(2048)).unwrap();
    let names: Vec<&str> = module.functions.iter().map(|f| f.name.as_str()).collect();
    assert_eq!(names, ["tables", "embed", "block", "block.1", "head", "main"]);
    let deepseek = published("deepseek-v3");
    assert_eq!(deepseek.layers.iter().map(|r| r.count).collect::<Vec<_>>(), [3, 58]);
    let Heads::Latent { q_latent: Some(1536), kv_latent: 512, nope: 128, rope: 64, value: 128 } =
        deepseek.layers[0].layer.attention.kind
    else {
        panic!("{:?}", deepseek.layers[0].layer.attention.kind);
    };
    let Mlp::Experts(experts) = &deepseek.layers[1].layer.mlp else { panic!("no experts") };
    assert_eq!((experts.experts, experts.top_k, experts.shared.map(|s| s.width)), (256, 8, Some(2048)));
    assert!(experts.router.correction && experts.router.scale == 2.5);
}

/// Configurations of further families in the keys that they use, with the counts of their models' cards.
#[test]
fn further_families_have_their_published_parameters() {
    let cases = [
        // GPT-NeoX-20B, arXiv 2204.06745: 20.55 B.
        (
            json!({"model_type": "gpt_neox", "hidden_size": 6144, "num_hidden_layers": 44, "num_attention_heads": 64,
                "intermediate_size": 24576, "vocab_size": 50432, "rotary_pct": 0.25, "hidden_act": "gelu_fast",
                "layer_norm_eps": 1e-5, "max_position_embeddings": 2048, "use_parallel_residual": true}),
            20.55,
        ),
        // Falcon-7B: 7.217 B with its padded vocabulary.
        (
            json!({"model_type": "falcon", "hidden_size": 4544, "num_hidden_layers": 32, "num_attention_heads": 71,
                "num_kv_heads": 71, "vocab_size": 65024, "multi_query": true, "parallel_attn": true, "bias": false,
                "alibi": false, "new_decoder_architecture": false}),
            6.92,
        ),
        // Falcon-40B, with a norm for each parallel part: 41.3 B, the tied head once.
        (
            json!({"model_type": "falcon", "hidden_size": 8192, "num_hidden_layers": 60, "num_attention_heads": 128,
                "num_kv_heads": 8, "vocab_size": 65024, "parallel_attn": true, "bias": false, "alibi": false,
                "new_decoder_architecture": true}),
            41.3,
        ),
        (
            json!({"model_type": "bloom", "n_embed": 14336, "n_layer": 70, "num_attention_heads": 112,
                "vocab_size": 250_880, "seq_length": 2048}),
            176.247,
        ),
        (
            json!({"model_type": "mpt", "d_model": 4096, "n_heads": 32, "n_layers": 32, "expansion_ratio": 4,
                "max_seq_len": 2048, "vocab_size": 50432, "no_bias": true, "attn_config": {"alibi": true}}),
            6.65,
        ),
        // OPT-6.7B: 6.66 B.
        (
            json!({"model_type": "opt", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
                "ffn_dim": 16384, "vocab_size": 50272, "max_position_embeddings": 2048, "word_embed_proj_dim": 4096,
                "activation_function": "relu", "do_layer_norm_before": true}),
            6.658,
        ),
        // Phi-2: 2.78 B.
        (
            json!({"model_type": "phi", "hidden_size": 2560, "num_hidden_layers": 32, "num_attention_heads": 32,
                "num_key_value_heads": 32, "intermediate_size": 10240, "vocab_size": 51200, "hidden_act": "gelu_new",
                "partial_rotary_factor": 0.4, "max_position_embeddings": 2048}),
            2.78,
        ),
        // StarCoder2-15B: 15.96 B with an untied head.
        (
            json!({"model_type": "starcoder2", "hidden_size": 6144, "num_hidden_layers": 40, "num_attention_heads": 48,
                "num_key_value_heads": 4, "intermediate_size": 24576, "vocab_size": 49152, "use_bias": true,
                "hidden_act": "gelu_pytorch_tanh", "sliding_window": 4096, "tie_word_embeddings": false}),
            15.96,
        ),
        // Gemma 2 9B: 9.24 B, arXiv 2408.00118 (8.32 B without embeddings and 0.92 B with).
        (
            json!({"model_type": "gemma2", "hidden_size": 3584, "num_hidden_layers": 42, "num_attention_heads": 16,
                "num_key_value_heads": 8, "head_dim": 256, "intermediate_size": 14336, "vocab_size": 256_000,
                "hidden_activation": "gelu_pytorch_tanh", "sliding_window": 4096,
                "final_logit_softcapping": 30.0}),
            9.24,
        ),
        // OLMo 2 7B: 7.3 B.
        (
            json!({"model_type": "olmo2", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
                "intermediate_size": 11008, "vocab_size": 100_352, "rms_norm_eps": 1e-6}),
            7.3,
        ),
        // OLMoE: 6.92 B, arXiv 2409.02060.
        (
            json!({"model_type": "olmoe", "hidden_size": 2048, "num_hidden_layers": 16, "num_attention_heads": 16,
                "intermediate_size": 1024, "num_experts": 64, "num_experts_per_tok": 8, "vocab_size": 50304}),
            6.92,
        ),
        // Qwen1.5-MoE-A2.7B: 14.3 B.
        (
            json!({"model_type": "qwen2_moe", "hidden_size": 2048, "num_hidden_layers": 24, "num_attention_heads": 16,
                "num_key_value_heads": 16, "intermediate_size": 5632, "moe_intermediate_size": 1408,
                "shared_expert_intermediate_size": 5632, "num_experts": 60, "num_experts_per_tok": 4,
                "decoder_sparse_step": 1, "vocab_size": 151_936}),
            14.3,
        ),
        // DeepSeek-V2: 236 B, arXiv 2405.04434.
        (
            json!({"model_type": "deepseek_v2", "hidden_size": 5120, "num_hidden_layers": 60, "num_attention_heads": 128,
                "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
                "v_head_dim": 128, "intermediate_size": 12288, "moe_intermediate_size": 1536, "n_routed_experts": 160,
                "n_shared_experts": 2, "num_experts_per_tok": 6, "first_k_dense_replace": 1, "moe_layer_freq": 1,
                "vocab_size": 102_400, "scoring_func": "softmax", "norm_topk_prob": false}),
            235.7,
        ),
        // GLM-4-9B-0414: 9.4 B.
        (
            json!({"model_type": "glm4", "hidden_size": 4096, "num_hidden_layers": 40, "num_attention_heads": 32,
                "num_key_value_heads": 2, "head_dim": 128, "intermediate_size": 13696, "vocab_size": 151_552,
                "partial_rotary_factor": 0.5, "attention_bias": true}),
            9.4,
        ),
        // Mistral Large 2: 122.6 B.
        (
            json!({"model_type": "mistral", "hidden_size": 12288, "num_hidden_layers": 88, "num_attention_heads": 96,
                "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 28672, "vocab_size": 32768,
                "sliding_window": null}),
            122.6,
        ),
        // Command R: 35 B.
        (
            json!({"model_type": "cohere", "hidden_size": 8192, "num_hidden_layers": 40, "num_attention_heads": 64,
                "num_key_value_heads": 64, "intermediate_size": 22528, "vocab_size": 256_000}),
            34.98,
        ),
        // DBRX: 131.6 B.
        (
            json!({"model_type": "dbrx", "d_model": 6144, "n_layers": 40, "n_heads": 48, "vocab_size": 100_352,
                "attn_config": {"kv_n_heads": 8}, "max_seq_len": 32768,
                "ffn_config": {"ffn_hidden_size": 10752, "moe_num_experts": 16, "moe_top_k": 4}}),
            131.6,
        ),
        // Gemma 3 27B's language model: 27.0 B; the sizes lie inside, beside a tower.
        (
            json!({"model_type": "gemma3", "vision_config": {}, "text_config": {"model_type": "gemma3_text",
                "hidden_size": 5376, "num_hidden_layers": 62, "num_attention_heads": 32, "num_key_value_heads": 16,
                "head_dim": 128, "intermediate_size": 21504, "sliding_window": 1024}}),
            27.0,
        ),
        // OLMo 7B: 6.89 B.
        (
            json!({"model_type": "olmo", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
                "intermediate_size": 11008, "vocab_size": 50304}),
            6.89,
        ),
    ];
    for (config, want) in cases {
        let name = config["model_type"].as_str().unwrap().to_string();
        let d = Decoder::from_config(&name, &config.to_string()).unwrap_or_else(|e| panic!("{e}"));
        assert_near(d.parameters() as f64 / 1e9, want, 0.01, &name);
        check_module(&name, &d.module(&shape(512)).unwrap_or_else(|e| panic!("{name}: {e}")));
    }
}

#[test]
fn mistakes_name_the_key_or_the_field() {
    let error = |text: &str| Decoder::from_config("config.json", text).unwrap_err().to_string();
    let unknown = error(r#"{"model_type": "mamba2", "hidden_size": 64}"#);
    assert!(unknown.contains("\"mamba2\"") && unknown.contains("deepseek_v3") && unknown.contains(":1:"), "{unknown}");
    let missing = error(r#"{"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2}"#);
    assert!(missing.contains("`num_attention_heads` is missing"), "{missing}");
    let base = r#""model_type": "mixtral", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
        "intermediate_size": 32, "vocab_size": 100, "num_local_experts": 4"#;
    let top = error(&format!("{{{base}, \"num_experts_per_tok\": 5}}"));
    assert!(top.contains("num_experts_per_tok") && top.contains("4 experts"), "{top}");
    let act = error(&format!("{{{base}, \"num_experts_per_tok\": 2, \"hidden_act\": \"sine\"}}"));
    assert!(act.contains("hidden_act") && act.contains("silu"), "{act}");
    let block = json!({"family": "llama", "norm": "rmsnorm", "gated": true, "activation": "selu", "bias": false,
        "position": "rope", "tied": false, "parallel_block": false, "moe": null, "mtp": 0,
        "attention": {"kind": "full", "heads": 8, "kv_heads": 3, "head_dim": 8}});
    let model = json!({"layers": 2, "hidden": 64, "ffn_hidden": 128, "vocab": 100, "seq_len": 32});
    let row = |block: &Value, model: &Value| Decoder::from_row(block, model).unwrap_err().to_string();
    assert_eq!(row(&block, &model), "block.activation is \"selu\"; known: silu, gelu, relu2");
    let mut fixed = block.clone();
    fixed["activation"] = json!("silu");
    assert_eq!(row(&fixed, &model), "block.attention.kv_heads is 3, but must be a divisor of the 8 heads");
    fixed["attention"] = json!({"kind": "hybrid"});
    assert!(row(&fixed, &model).contains("Mamba"));
    let unknown = row(&block, &json!({"hidden": null}));
    assert!(unknown.starts_with("model.hidden is not known"), "{unknown}");
    let huge = error(r#"{"model_type": "llama", "hidden_size": 18446744073709551615, "num_hidden_layers": 2}"#);
    assert!(huge.contains("hidden_size") && huge.contains("2147483648"), "{huge}");
    fixed["attention"] =
        json!({"kind": "window", "heads": 8, "kv_heads": 8, "head_dim": 8, "window": 4, "full_every": 0});
    let most = json!({"layers": 65_536, "hidden": u32::MAX, "ffn_hidden": u32::MAX, "vocab": u32::MAX, "seq_len": 1});
    let largest = Decoder::from_row(&fixed, &most).unwrap();
    assert_eq!(largest.parameters(), u64::MAX, "counts stop at the largest number");
    let learned = Decoder { position: Position::Learned { rows: Some(16) }, ..published("gpt3-175b") };
    assert!(learned.module(&shape(17)).is_err(), "more positions than the table has");
    let zero = learned.module(&ModuleShape { batch: 0, ..shape(8) }).unwrap_err().to_string();
    assert!(zero.contains("batch is 0"), "{zero}");
}

/// Two layers, few sizes: latents, a dense layer first, then experts with a shared one.
fn small(model_type: &str, more: &str) -> Decoder {
    let text = format!(
        r#"{{"model_type": "{model_type}", "hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 4,
            "intermediate_size": 12, "vocab_size": 10, "rope_theta": 10000.0, "hidden_act": "silu", {more}}}"#
    );
    Decoder::from_config("config.json", &text).unwrap_or_else(|e| panic!("{e}"))
}

fn small_deepseek() -> Decoder {
    small(
        "deepseek_v3",
        r#""q_lora_rank": 6, "kv_lora_rank": 4, "qk_nope_head_dim": 4, "qk_rope_head_dim": 2, "v_head_dim": 4,
           "moe_intermediate_size": 6, "n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2,
           "first_k_dense_replace": 1, "num_nextn_predict_layers": 1, "rms_norm_eps": 1e-6,
           "norm_topk_prob": true, "routed_scaling_factor": 2.5"#,
    )
}

fn small_mixtral() -> Decoder {
    small(
        "mixtral",
        r#""num_key_value_heads": 2, "num_local_experts": 4, "num_experts_per_tok": 2, "rms_norm_eps": 1e-5"#,
    )
}

#[test]
fn golden_blocks() {
    for (name, d) in [("mixtral.forward", small_mixtral()), ("deepseek.forward", small_deepseek())] {
        let module = d.module(&ModuleShape { batch: 2, ..shape(6) }).unwrap();
        check_module(name, &module);
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/golden/{name}.shard"));
        let printed = text::print(&module);
        if std::env::var_os("AUTOSHARD_BLESS").is_some() {
            std::fs::write(&path, &printed).unwrap();
        }
        let want = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(printed == want, "{name}.shard differs; AUTOSHARD_BLESS=1 accepts the new text:\n{printed}");
    }
}

/// Deterministic arguments: ids below `ids`, gains of 1, else numbers in (−0.5, 0.5).
fn arguments(f: &Function, ids: usize) -> Vec<Tensor> {
    let argument = |(i, p): (usize, &autoshard::ir::core::Param)| {
        let (ty, name) = (f.ty(p.value).clone(), &f.value(p.value).name);
        let draw = |k: usize| ops::random_unit(ops::mix(i as u64), k as u64) / 2.0;
        let value = |k: usize| match ty.dtype {
            DType::I32 => ((draw(k) + 0.5) * ids as f64).floor(),
            _ if name.ends_with("norm") => 1.0,
            _ => draw(k),
        };
        let data = (0..ty.elements()).map(value).collect();
        Tensor::new(ty, data)
    };
    f.params.iter().enumerate().map(argument).collect()
}

#[test]
fn modules_compute_and_differentiate() {
    for d in [small_mixtral(), small_deepseek()] {
        let module = d.module(&ModuleShape { batch: 2, seq_len: 6, dtype: DType::F64, capacity: 2.0 }).unwrap();
        let entry = module.entry_function().unwrap();
        let loss = interp::run(&module, entry, &arguments(entry, d.vocab)).unwrap();
        assert!(loss[0].data[0].is_finite() && loss[0].data[0] > 1.0, "{}: {:?}", d.family, loss[0].data);
        let step = differentiate(&module, &AdamW::default()).unwrap_or_else(|e| panic!("{}: {e}", d.family));
        verify(&step).unwrap_or_else(|e| panic!("{}: {}", d.family, e[0]));
    }
}

/// Experts that are all alike, with weights that add up to 1 and no token dropped, are one dense network.
#[test]
fn equal_experts_are_a_dense_network() {
    let sparse = small_mixtral();
    let mut dense = sparse.clone();
    let Mlp::Experts(experts) = &sparse.layers[0].layer.mlp else { panic!("no experts") };
    dense.layers[0].layer.mlp = Mlp::Dense(experts.each);
    let shape = ModuleShape { batch: 2, seq_len: 6, dtype: DType::F64, capacity: 4.0 };
    let (sparse, dense) = (sparse.module(&shape).unwrap(), dense.module(&shape).unwrap());
    let (f, g) = (sparse.function("block").unwrap(), dense.function("block").unwrap());
    let plain = arguments(g, 10);
    let of = |name: &str| g.params.iter().position(|p| g.value(p.value).name == name);
    let args: Vec<Tensor> = f
        .params
        .iter()
        .map(|p| {
            let ty = f.ty(p.value).clone();
            match of(&f.value(p.value).name) {
                Some(i) => Tensor { data: plain[i].data.iter().copied().cycle().take(ty.elements()).collect(), ty },
                None => Tensor { data: (0..ty.elements()).map(|k| ops::random_unit(5, k as u64)).collect(), ty },
            }
        })
        .collect();
    let got = interp::run(&sparse, f, &args).unwrap().remove(0);
    let want = interp::run(&dense, g, &plain).unwrap().remove(0);
    for (a, b) in got.data.iter().zip(&want.data) {
        assert!((a - b).abs() < 1e-12, "{a}, not {b}");
    }
    assert_eq!(published("qwen3-8b").layers[0].layer.form, Form::Pre);
}

/// What is planned and not executed is refused by name, not by a panic.
#[test]
fn families_that_do_not_run_are_refused() {
    let error = import::load(&models().join("mixtral-8x7b-v0.1.json")).unwrap_err().to_string();
    assert!(error.contains("mixtral") && error.contains("experts with a router"), "{error}");
    let module =
        small_mixtral().module(&ModuleShape { batch: 2, seq_len: 6, dtype: DType::F32, capacity: 1.0 }).unwrap();
    let block = module.function("block").unwrap();
    for op in ["top_k", "slots", "dispatch", "combine"] {
        let node = block.nodes.iter().find(|n| n.op.name == op).unwrap();
        let error = autoshard::passes::lower::lower(block, node, &module.mesh).unwrap_err().to_string();
        assert!(error.contains(op) && error.contains("for planning"), "{error}");
    }
}

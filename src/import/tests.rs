//! What configurations mean, and what their errors say.

use serde_json::{json, Value};

use super::config::{from_text, load, ModelConfig};
use super::params::{num_params, params};
use super::rope::RopeScaling;
use crate::weights::init::InitKind;

/// A complete tiny configuration of a family.
fn base(model_type: &str) -> Value {
    let architecture = match model_type {
        "mistral" => "MistralForCausalLM",
        "qwen2" => "Qwen2ForCausalLM",
        "qwen3" => "Qwen3ForCausalLM",
        _ => "LlamaForCausalLM",
    };
    json!({
        "architectures": [architecture], "model_type": model_type, "hidden_size": 64, "intermediate_size": 172,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 256,
        "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": false, "max_position_embeddings": 64,
        "hidden_act": "silu"
    })
}

/// The base with keys replaced or added; JSON text, so that a test may edit it further.
fn text(model_type: &str, changes: Value) -> String {
    let mut config = base(model_type);
    for (key, value) in changes.as_object().unwrap() {
        config[key] = value.clone();
    }
    config.to_string()
}

fn without(model_type: &str, keys: &[&str]) -> String {
    let mut config = base(model_type);
    keys.iter().for_each(|key| {
        config.as_object_mut().unwrap().remove(*key);
    });
    config.to_string()
}

fn read(text: &str) -> ModelConfig {
    from_text("config.json", text).unwrap_or_else(|e| panic!("{e}\n{text}"))
}

fn error(text: &str) -> String {
    from_text("config.json", text).map(|c| format!("{c:?}")).unwrap_err().to_string()
}

fn sliding(config: &ModelConfig) -> Vec<usize> {
    (0..config.layers).filter(|&l| config.windows[l].is_some()).collect()
}

#[test]
fn the_four_families_load() {
    let llama = read(&text("llama", json!({"attention_bias": true, "mlp_bias": true, "pretraining_tp": 1})));
    assert_eq!(
        (llama.q_bias, llama.kv_bias, llama.o_bias, llama.mlp_bias, llama.qk_norm),
        (true, true, true, true, false)
    );
    let qwen2 = read(&text("qwen2", json!({"attention_bias": false, "mlp_bias": false, "use_sliding_window": false})));
    assert_eq!(
        (qwen2.q_bias, qwen2.kv_bias, qwen2.o_bias, qwen2.mlp_bias, qwen2.qk_norm),
        (true, true, false, false, false)
    );
    let qwen3 = read(&text("qwen3", json!({"attention_bias": false, "head_dim": 32, "tie_word_embeddings": true})));
    assert_eq!((qwen3.q_bias, qwen3.o_bias, qwen3.qk_norm, qwen3.head_dim, qwen3.tied), (false, false, true, 32, true));
    let mistral = read(&text("mistral", json!({"sliding_window": 16, "pad_token_id": null, "attention_dropout": 0.0})));
    assert_eq!(
        (mistral.q_bias, mistral.o_bias, mistral.windows.as_slice()),
        (false, false, [Some(16), Some(16)].as_slice())
    );
    assert_eq!(
        (llama.hidden, llama.ffn, llama.vocab, llama.heads, llama.kv_heads, llama.rms_eps),
        (64, 172, 256, 4, 2, 1e-5)
    );
    assert_eq!(llama.rope(1).inv_freq.len(), 8);
    assert!(llama.notes.is_empty(), "{:?}", llama.notes);
}

#[test]
fn a_published_configuration_loads() {
    // The keys and values of Llama 3.1 8B as published.
    let published = r#"{"architectures": ["LlamaForCausalLM"], "attention_bias": false, "attention_dropout": 0.0, "bos_token_id": 128000,
        "eos_token_id": [128001, 128008], "hidden_act": "silu", "hidden_size": 4096, "initializer_range": 0.02, "intermediate_size": 14336,
        "max_position_embeddings": 131072, "mlp_bias": false, "model_type": "llama", "num_attention_heads": 32, "num_hidden_layers": 32,
        "num_key_value_heads": 8, "pretraining_tp": 1, "rms_norm_eps": 1e-05, "rope_scaling": {"factor": 8.0, "low_freq_factor": 1.0,
        "high_freq_factor": 4.0, "original_max_position_embeddings": 8192, "rope_type": "llama3"}, "rope_theta": 500000.0,
        "tie_word_embeddings": false, "torch_dtype": "bfloat16", "transformers_version": "4.43.0.dev0", "use_cache": true, "vocab_size": 128256}"#;
    let config = read(published);
    assert_eq!(num_params(&config), 8_030_261_248);
    assert!(matches!(config.ropes[0].scaling, RopeScaling::Llama3 { factor: 8.0, .. }));
}

#[test]
fn parameters_have_checkpoint_names_shapes_and_kinds() {
    let config = read(&text("llama", json!({"attention_bias": false})));
    let all = params(&config);
    assert_eq!((all.len(), num_params(&config)), (21, 123_712));
    assert_eq!(all.iter().map(|p| p.len() as u64).sum::<u64>(), 123_712);
    let find = |name: &str| all.iter().find(|p| p.name == name).unwrap_or_else(|| panic!("{name}"));
    let down = find("model.layers.1.mlp.down_proj.weight");
    assert_eq!(
        (down.shape.as_slice(), down.kind, down.layer),
        ([64, 172].as_slice(), InitKind::Matrix { fan_in: 172 }, Some(1))
    );
    assert_eq!(find("model.layers.0.self_attn.k_proj.weight").shape, [32, 64]);
    assert_eq!(find("model.norm.weight").kind, InitKind::Gain);
    assert_eq!((all[0].name.as_str(), all[20].name.as_str()), ("model.embed_tokens.weight", "lm_head.weight"));

    let tied = read(&text("qwen2", json!({"tie_word_embeddings": true})));
    let names: Vec<String> = params(&tied).into_iter().map(|p| p.name).collect();
    assert!(!names.contains(&"lm_head.weight".to_string()));
    assert!(names.contains(&"model.layers.0.self_attn.k_proj.bias".to_string()));
    assert!(!names.iter().any(|n| n.ends_with("o_proj.bias")));
    let normed = params(&read(&base("qwen3").to_string()));
    assert!(normed
        .iter()
        .any(|p| p.name == "model.layers.1.self_attn.q_norm.weight" && p.shape == [16] && p.kind == InitKind::Gain));
    // The counts that the reference implementation reports for these shapes.
    let bias = read(&text(
        "llama",
        json!({"num_hidden_layers": 3, "vocab_size": 320, "attention_bias": true, "mlp_bias": true, "head_dim": null}),
    ));
    assert_eq!(num_params(&bias), 179_144);
    let wide = read(&text(
        "llama",
        json!({"num_hidden_layers": 4, "vocab_size": 320, "num_attention_heads": 8, "num_key_value_heads": 4}),
    ));
    assert_eq!(num_params(&wide), 271_936);
}

#[test]
fn head_dim_null_or_absent_is_derived() {
    for model_type in ["llama", "mistral", "qwen2", "qwen3"] {
        let null = json!({"hidden_size": 6144, "num_attention_heads": 48, "num_key_value_heads": 8, "head_dim": null});
        let absent = text(model_type, null.clone()).replace("\"head_dim\":null,", "");
        assert!(!absent.contains("head_dim"));
        let (null, absent) = (read(&text(model_type, null)), read(&absent));
        assert_eq!((null.head_dim, absent.head_dim), (128, 128), "{model_type}");
        assert_eq!(params(&null), params(&absent), "{model_type}");
    }
    // transformers gives qwen3 heads of 128 when the key is absent, whatever hidden_size is.
    assert_eq!(read(&without("qwen3", &["head_dim"])).head_dim, 128);
    assert_eq!(read(&without("llama", &["head_dim"])).head_dim, 16);
}

#[test]
fn kv_heads_null_or_absent_are_the_query_heads() {
    for model_type in ["llama", "mistral", "qwen2", "qwen3"] {
        assert_eq!(read(&text(model_type, json!({"num_key_value_heads": null}))).kv_heads, 4, "{model_type}");
        assert_eq!(read(&without(model_type, &["num_key_value_heads"])).kv_heads, 4, "{model_type}");
    }
    let ambiguous = text("mistral", json!({"num_attention_heads": 32})).replace("\"num_key_value_heads\":2,", "");
    let e = error(&ambiguous);
    assert!(e.contains("`num_key_value_heads`: the key is missing; transformers takes 8 for mistral, other readers num_attention_heads, 32"), "{e}");
}

#[test]
fn windows_follow_the_family() {
    let mistral = |changes: Value| read(&text("mistral", changes));
    assert_eq!(mistral(json!({})).windows, [Some(4096); 2]);
    assert_eq!(mistral(json!({"sliding_window": null})).windows, [None; 2]);
    let listed = mistral(json!({"sliding_window": 8, "layer_types": ["full_attention", "sliding_attention"]}));
    assert_eq!(listed.windows, [Some(8); 2]);
    assert!(
        listed.notes[0].contains("layer_types has no effect in mistral: every layer has a window of 8"),
        "{:?}",
        listed.notes
    );

    for model_type in ["qwen2", "qwen3"] {
        let qwen = |changes: Value| read(&text(model_type, changes));
        assert_eq!(sliding(&qwen(json!({"num_hidden_layers": 8, "sliding_window": 2048}))).len(), 0);
        let on = qwen(
            json!({"num_hidden_layers": 36, "use_sliding_window": true, "sliding_window": 2048, "max_window_layers": 28}),
        );
        assert_eq!(sliding(&on), (28..36).collect::<Vec<_>>());
        assert_eq!(on.windows[28], Some(2048));
        assert_eq!(sliding(&qwen(json!({"use_sliding_window": true, "max_window_layers": 0}))), [0, 1]);
        let null = qwen(json!({"use_sliding_window": true, "sliding_window": null, "max_window_layers": 0}));
        assert_eq!(sliding(&null).len(), 0);
        let explicit = qwen(
            json!({"use_sliding_window": true, "sliding_window": 9, "max_window_layers": 2, "layer_types": ["sliding_attention", "full_attention"]}),
        );
        assert_eq!(sliding(&explicit), [0]);
    }
    let short = error(&text("qwen3", json!({"use_sliding_window": true, "layer_types": ["full_attention"]})));
    assert!(short.contains("`layer_types`: has 1 entries for 2 layers"), "{short}");
    let off =
        error(&text("qwen2", json!({"sliding_window": 8, "layer_types": ["sliding_attention", "full_attention"]})));
    assert!(off.contains("set use_sliding_window to true"), "{off}");
    let kind = error(&text("qwen2", json!({"layer_types": ["chunked_attention", "full_attention"]})));
    assert!(
        kind.contains(
            "\"chunked_attention\" is not supported; the known layer types are full_attention and sliding_attention"
        ),
        "{kind}"
    );
    let llama = error(&text("llama", json!({"sliding_window": 4096})));
    assert!(
        llama.contains("`sliding_window` = 4096 is not supported: this family has no sliding window (accepted: null)"),
        "{llama}"
    );
    read(&text("llama", json!({"sliding_window": null, "layer_types": ["full_attention", "full_attention"]})));
    let zero = error(&text("mistral", json!({"sliding_window": 0})));
    assert!(zero.contains("`sliding_window` is 0, but must be a whole number of at least 1"), "{zero}");
    let switch = error(&text("mistral", json!({"use_sliding_window": false})));
    assert!(switch.contains("write \"sliding_window\": null for none"), "{switch}");
}

#[test]
fn theta_is_found_wherever_it_stands() {
    let moved = |parameters: Value| {
        let mut config = base("llama");
        config.as_object_mut().unwrap().remove("rope_theta");
        config["rope_parameters"] = parameters;
        config.to_string()
    };
    let top = read(&text("llama", json!({"rope_theta": 500000.0})));
    let flat = read(&moved(json!({"rope_type": "default", "rope_theta": 500000.0})));
    assert_eq!((top.ropes, top.rope_of_layer), (flat.ropes, flat.rope_of_layer));

    let nested = json!({"rope_theta": 777.0, "use_sliding_window": true, "sliding_window": 8, "layer_types": ["sliding_attention", "full_attention"],
        "rope_parameters": {"full_attention": {"rope_theta": 500000.0, "rope_type": "linear", "factor": 2.0}, "sliding_attention": {"rope_theta": 10000.0, "rope_type": "default"}}});
    let config = read(&text("qwen3", nested.clone()));
    assert_eq!((config.rope(0).theta, config.rope(1).theta), (1e4, 5e5));
    let mut one = nested.clone();
    one["rope_parameters"].as_object_mut().unwrap().remove("sliding_attention");
    let e = error(&text("qwen3", one));
    assert!(e.contains("the key `rope_parameters.sliding_attention` is missing"), "{e}");
    let mut partial = nested;
    partial["rope_parameters"]["full_attention"]["partial_rotary_factor"] = json!(0.5);
    let e = error(&text("qwen3", partial));
    assert!(e.contains("`rope_parameters.full_attention.partial_rotary_factor` = 0.5 is not supported"), "{e}");

    let absent = read(&without("llama", &["rope_theta"]));
    assert_eq!(absent.ropes[0].theta, 1e4);
    assert!(absent.notes[0].contains("rope_theta is absent: 10000 is taken"), "{:?}", absent.notes);
    let both = error(&text("llama", json!({"rope_parameters": {"rope_type": "default", "rope_theta": 5.0}})));
    assert!(both.contains("`rope_parameters.rope_theta`: 5 here, but 10000 at the top of the file"), "{both}");
    let null = error(&text("llama", json!({"rope_theta": null})));
    assert!(null.contains("`rope_theta` is null, but must be a number above zero"), "{null}");
    let differ = error(&text(
        "llama",
        json!({"rope_scaling": {"type": "linear", "factor": 2.0}, "rope_parameters": {"rope_type": "default"}}),
    ));
    assert!(differ.contains("rope_scaling says something else"), "{differ}");
}

#[test]
fn rope_scaling_is_checked() {
    let scaled = |scaling: Value| text("llama", json!({"rope_scaling": scaling}));
    assert_eq!(
        read(&scaled(json!({"type": "linear", "factor": 4}))).ropes[0].scaling,
        RopeScaling::Linear { factor: 4.0 }
    );
    assert_eq!(read(&scaled(json!(null))).ropes[0].scaling, RopeScaling::Default);
    let yarn = read(&scaled(json!({"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768})));
    assert!((yarn.ropes[0].multiplier - (0.1 * 4f64.ln() + 1.0)).abs() < 1e-15);
    for (scaling, expected) in [
        (json!({"rope_type": "longrope", "factor": 2.0}), "`rope_scaling.rope_type`: \"longrope\" is not supported; the known rope types are default, linear, llama3, yarn"),
        (json!({"type": "dynamic", "factor": 2.0}), "`rope_scaling.type`: \"dynamic\" is not supported"),
        (json!({"factor": 2.0}), "the key `rope_scaling.rope_type` is missing"),
        (json!({"type": "linear"}), "the key `rope_scaling.factor` is missing"),
        (json!({"type": "linear", "factor": "2"}), "`rope_scaling.factor` is \"2\", but must be a number above zero"),
        (json!({"type": "linear", "factor": 0.5}), "`rope_scaling.factor`: 0.5 must be at least 1"),
        (json!({"type": "linear", "factro": 2.0}), "did you mean factor?"),
        (json!({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 4.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 32}), "must be above low_freq_factor"),
        (json!({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}), "`rope_scaling.original_max_position_embeddings` is missing"),
        (json!({"rope_type": "linear", "type": "yarn", "factor": 8.0}), "keep one of the two"),
        (json!({"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32, "mscale": 1.0}), "`rope_scaling.mscale`: is not a key of rope type yarn"),
        (json!("llama3"), "`rope_scaling` is \"llama3\", but must be an object"),
    ] {
        let e = error(&scaled(scaling));
        assert!(e.contains(expected), "{e}\nwanted: {expected}");
    }
}

#[test]
fn missing_and_mistyped_keys_are_named() {
    for key in ["hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "vocab_size"] {
        let e = error(&without("llama", &[key]));
        assert!(e.starts_with(&format!("config.json: the key `{key}` is missing")), "{e}");
        let e = error(&text("llama", json!({key: null})));
        assert!(e.contains(&format!("the key `{key}` is null")), "{e}");
        for (wrong, shown) in [
            (json!("64"), "\"64\""),
            (json!(0), "0"),
            (json!(-4), "-4"),
            (json!(64.5), "64.5"),
            (json!([64]), "[64]"),
            (json!(1e30), "1e+30"),
        ] {
            let e = error(&text("llama", json!({key: wrong})));
            assert!(e.contains(&format!("`{key}` is {shown}, but must be a whole number of at least 1")), "{e}");
        }
    }
    let e = error(&text("llama", json!({"tie_word_embeddings": "no"})));
    assert!(e.contains("`tie_word_embeddings` is \"no\", but must be true or false"), "{e}");
    let e = error(&text("llama", json!({"rms_norm_eps": -1e-5})));
    assert!(
        e.contains("`rms_norm_eps` is -0.00001, but must be a number above zero")
            || e.contains("`rms_norm_eps` is -1e-5"),
        "{e}"
    );
    let e = error("[1, 2]");
    assert!(e.contains("the whole file` is [1,2], but must be an object"), "{e}");
    let e = error("{\n  \"model_type\": \"llama\",\n  \"hidden_size\": true\n}");
    assert!(e.starts_with("config.json:3:3: `hidden_size` is true"), "{e}");
}

#[test]
fn impossible_sizes_are_refused() {
    let e = error(&text("llama", json!({"num_attention_heads": 6, "num_key_value_heads": 4})));
    assert!(
        e.contains("`num_key_value_heads`: 4 does not divide num_attention_heads, 6; possible are 1, 2, 3, 6"),
        "{e}"
    );
    let e = error(&text("llama", json!({"head_dim": 15})));
    assert!(e.contains("`head_dim`: 15 is odd"), "{e}");
    let e = error(&text("llama", json!({"head_dim": null, "hidden_size": 66})));
    assert!(e.contains("hidden_size, 66, is not a multiple of num_attention_heads, 4; give head_dim"), "{e}");
    let huge = 1u64 << 40;
    let e = error(&text("llama", json!({"hidden_size": huge, "vocab_size": huge})));
    assert!(e.contains("vocab_size × hidden_size = 1099511627776 × 1099511627776 overflows"), "{e}");
    let e = error(&text("llama", json!({"intermediate_size": u64::MAX})));
    assert!(e.contains("intermediate_size × hidden_size"), "{e}");
    let e = error(&text("llama", json!({"num_hidden_layers": 1u64 << 40})));
    assert!(e.contains("`num_hidden_layers`: 1099511627776 is more than 65536"), "{e}");
    let e = error(&text("llama", json!({"head_dim": 1u64 << 40})));
    assert!(e.contains("`head_dim`: 1099511627776 is more than 65536"), "{e}");
}

#[test]
fn every_key_is_understood_or_refused() {
    let e = error(&text("llama", json!({"num_key_value_head": 2})));
    assert!(
        e.contains("unknown key `num_key_value_head` = 2 for model_type llama (did you mean `num_key_value_heads`?)"),
        "{e}"
    );
    let e = error(&text("llama", json!({"logit_scale": 0.5})));
    assert!(e.contains("unknown key `logit_scale` = 0.5"), "{e}");
    for (key, value, expected) in [
        (
            "attention_dropout",
            json!(0.1),
            "`attention_dropout` = 0.1 is not supported: dropout is not supported (accepted: 0, null)",
        ),
        ("quantization_config", json!({"quant_method": "fp8"}), "quantised weights cannot be read or trained"),
        ("partial_rotary_factor", json!(0.5), "`partial_rotary_factor` = 0.5"),
        ("block_configs", json!([{}]), "layers of different shapes are not supported"),
        ("num_local_experts", json!(8), "this family has no experts"),
    ] {
        let e = error(&text("llama", json!({key: value})));
        assert!(e.contains(expected), "{e}");
    }
    read(&text(
        "llama",
        json!({"attention_dropout": 0, "quantization_config": null, "partial_rotary_factor": 1.0, "auto_map": {}}),
    ));
    let e = error(&text("qwen2", json!({"mlp_bias": true})));
    assert!(
        e.contains("`mlp_bias` = true is not supported: this family's MLP has no biases (accepted: false, null)"),
        "{e}"
    );
    let e = error(&text("mistral", json!({"attention_bias": true})));
    assert!(e.contains("`attention_bias` = true is not supported"), "{e}");
    let e = error(&text("llama", json!({"hidden_act": "gelu"})));
    assert!(e.contains("`hidden_act`: \"gelu\" is not supported; the known activations are silu"), "{e}");
    let padded = read(&text("llama", json!({"pad_token_id": 3})));
    assert!(padded.notes[0].contains("pad_token_id 3 has no effect"), "{:?}", padded.notes);
}

#[test]
fn tolerated_json_is_tolerated_only_where_unused() {
    let good = text("llama", json!({"initializer_range": 1}));
    read(&format!("\u{feff}{good}"));
    read(&good.replace("\"initializer_range\":1", "\"initializer_range\":NaN"));
    let e = error(&good.replace("\"hidden_size\":64", "\"hidden_size\":NaN"));
    assert!(e.contains("`hidden_size` is NaN, but must be a finite value"), "{e}");
    let e = error(
        &text("llama", json!({"attention_dropout": 0}))
            .replace("\"attention_dropout\":0", "\"attention_dropout\":-Infinity"),
    );
    assert!(e.contains("`attention_dropout` is -Infinity"), "{e}");
    let nested = text("llama", json!({"rope_scaling": {"type": "linear", "factor": 8}}))
        .replace("\"factor\":8", "\"factor\":Infinity");
    let e = error(&nested);
    assert!(e.contains("`rope_scaling.factor` is Infinity"), "{e}");
    let e = error(&good.replace("\"initializer_range\":1", "\"hidden_size\":128"));
    assert!(e.contains("the key `hidden_size` is given twice"), "{e}");
    let e = error(&good.replace('}', ",}"));
    assert!(e.contains("trailing comma"), "{e}");
}

#[test]
fn other_families_are_refused_by_the_key_that_decides() {
    for (config, expected) in [
        (json!({"model_type": "mixtral", "num_local_experts": 8, "hidden_size": 64}), "model_type \"mixtral\" is not supported (known: llama, mistral, qwen2, qwen3); the key `num_local_experts` = 8 decides"),
        (json!({"model_type": "phi", "partial_rotary_factor": 0.5, "num_key_value_heads": null}), "`partial_rotary_factor` = 0.5 decides: only a part of each head is rotated"),
        (json!({"model_type": "nemotron-nas", "intermediate_size": null, "block_configs": [{}, {}]}), "model_type \"nemotron-nas\" is not supported (known: llama, mistral, qwen2, qwen3); the key `block_configs` = [{},{}] decides"),
        (json!({"model_type": "qwen2_5_vl", "hidden_size": 3584, "text_config": {"hidden_size": 3584}, "vision_config": {"hidden_size": 1280}}), "the key `text_config` = {\"hidden_size\":3584} decides: the language model's sizes lie there, beside a vision tower"),
        (json!({"model_type": "qwen", "intermediate_size": 27392}), "`intermediate_size` = 27392 decides: in this family it is twice the real width"),
        (json!({"model_type": "deepseek_v3", "kv_lora_rank": 512, "quantization_config": {}}), "`kv_lora_rank` = 512 decides"),
        (json!({"model_type": "gemma3_text", "sliding_window": 1024}), "`sliding_window` = 1024 decides"),
        (json!({"model_type": "gemma3_text", "num_hidden_layers": 6, "sliding_window": 1024, "layer_types": (vec!["sliding_attention"; 5])}), "`layer_types` = [… 5 entries] decides"),
        (json!({"model_type": "gpt2", "n_embd": 64}), "`n_embd` = 64 decides"),
        (json!({"model_type": "qwen3_moe", "num_experts": 128}), "`num_experts` = 128 decides"),
        (json!({"model_type": "gpt_oss", "num_local_experts": 32}), "`num_local_experts` = 32 decides"),
        (json!({"model_type": "lama"}), "did you mean \"llama\"?"),
        (json!({"model_type": "mamba"}), "the key `model_type` decides; nothing is built from defaults"),
        (json!({"dim": 2048, "n_layers": 16, "ffn_dim_multiplier": 1.5, "multiple_of": 256}), "`dim` and `n_layers` are keys of an original params.json, in which `intermediate_size` is missing"),
        (json!({"hidden_size": 64}), "model_type (missing) is not supported (known: llama, mistral, qwen2, qwen3); add the key `model_type`"),
    ] {
        let e = error(&config.to_string());
        assert!(e.contains(expected), "{e}\nwanted: {expected}");
        assert!(e.contains("nothing is built from defaults"), "{e}");
    }
    let e = error(&text("llama", json!({"architectures": ["LlamaForSequenceClassification"]})));
    assert!(
        e.contains(
            "\"LlamaForSequenceClassification\" is not supported; for model_type llama it must be \"LlamaForCausalLM\""
        ),
        "{e}"
    );
}

#[test]
fn a_folder_stands_for_its_config() {
    let dir = tempfile::tempdir().unwrap();
    let e = load(dir.path()).unwrap_err().to_string();
    assert!(e.ends_with("no config.json in this folder"), "{e}");
    std::fs::write(dir.path().join("params.json"), "{}").unwrap();
    assert!(load(dir.path()).unwrap_err().to_string().contains("it has a params.json, the original format"));
    std::fs::write(dir.path().join("config.json"), base("llama").to_string()).unwrap();
    assert_eq!(load(dir.path()).unwrap().hidden, 64);
    assert_eq!(load(&dir.path().join("config.json")).unwrap().layers, 2);
    let e = load(&dir.path().join("other.json")).unwrap_err().to_string();
    assert!(e.contains("other.json: cannot read the file"), "{e}");
}

proptest::proptest! {
    /// Any one key of a good file replaced by any plain value: an answer or an error, never a panic.
    #[test]
    fn no_value_makes_import_panic(key in 0usize..20, number: i64, pick in 0usize..7, kind in 0usize..4) {
        let keys = ["hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim", "intermediate_size", "vocab_size",
            "rms_norm_eps", "rope_theta", "max_position_embeddings", "rope_scaling", "rope_parameters", "layer_types", "sliding_window",
            "use_sliding_window", "max_window_layers", "architectures", "model_type", "hidden_act", "tie_word_embeddings"];
        let value = [json!(number), json!(number as f64 / 7.0), json!(null), json!([number]), json!({"rope_type": "yarn", "factor": number, "original_max_position_embeddings": 1}), json!("x"), json!(true)][pick].clone();
        let family = ["llama", "mistral", "qwen2", "qwen3"][kind];
        let _ = from_text("config.json", &text(family, json!({keys[key]: value})));
    }
}

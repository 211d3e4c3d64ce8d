//! What the checks of a layout need to know of a model, read from its Hugging Face configuration.

use super::PredictError;
use crate::json::Document;
use serde_json::Value;
use std::path::Path;

/// Sizes that decide which layouts are possible.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ModelFacts {
    /// Name to print: `model_type`, or the file's stem.
    pub name: String,
    /// Decoder layers.
    pub layers: u64,
    /// Query heads.
    pub heads: u64,
    /// Key/value heads; equal to `heads` where keys and values are not grouped, as in latent attention.
    pub kv_heads: u64,
    /// Experts; 0 without.
    pub experts: u64,
    /// Longest sequence that the model is made for; `None` where not stated.
    pub max_positions: Option<u64>,
}

/// Reads a `config.json` or the folder holding one.
///
/// # Errors
/// Where it is not JSON or lacks a size.
pub fn read(path: &Path) -> Result<ModelFacts, PredictError> {
    let file = if path.is_dir() { path.join("config.json") } else { path.to_path_buf() };
    let refuse = |why: String| PredictError::Model { path: path.to_path_buf(), why };
    if file.extension().is_some_and(|e| e == "shard") {
        let what = format!("the IR text {}", file.display());
        return Err(PredictError::Later { what, instead: "give a config.json or a folder holding one".into() });
    }
    let document = Document::read(&file).map_err(|e| PredictError::Json(e.to_string()))?;
    let stem = file.file_stem().map(|s| s.to_string_lossy().into_owned()).unwrap_or_default();
    from_config(&document.value, &stem).map_err(refuse)
}

/// Sizes under the keys that the families use.
fn from_config(config: &Value, stem: &str) -> Result<ModelFacts, String> {
    let first = |keys: &[&str]| keys.iter().find_map(|k| config.get(*k)?.as_u64());
    let need = |keys: [&str; 2]| {
        let found = first(&keys).filter(|n| *n > 0);
        found.ok_or_else(|| format!("the key {} (or {}) is missing or not a whole number above 0", keys[0], keys[1]))
    };
    let heads = need(["num_attention_heads", "n_head"])?;
    // Latent attention makes keys and values for every head from one compressed row.
    let latent = config.get("kv_lora_rank").is_some_and(|v| !v.is_null());
    let kv_heads = if latent { heads } else { first(&["num_key_value_heads"]).unwrap_or(heads) };
    if kv_heads == 0 || heads % kv_heads != 0 {
        return Err(format!("num_key_value_heads={kv_heads} does not divide num_attention_heads={heads}"));
    }
    Ok(ModelFacts {
        name: config.get("model_type").and_then(Value::as_str).filter(|n| !n.is_empty()).unwrap_or(stem).to_string(),
        layers: need(["num_hidden_layers", "n_layer"])?,
        heads,
        kv_heads,
        experts: first(&["n_routed_experts", "num_local_experts", "num_experts"]).unwrap_or(0),
        max_positions: first(&["max_position_embeddings", "n_positions"]),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn sizes_are_found_under_every_familys_keys() {
        let llama = json!({"model_type": "llama", "num_hidden_layers": 80, "num_attention_heads": 64, "num_key_value_heads": 8, "max_position_embeddings": 131072});
        let f = from_config(&llama, "x").unwrap();
        assert_eq!((f.name.as_str(), f.layers, f.heads, f.kv_heads, f.experts), ("llama", 80, 64, 8, 0));
        let gpt = json!({"n_layer": 96, "n_head": 96, "n_positions": 2048});
        let f = from_config(&gpt, "gpt3").unwrap();
        assert_eq!((f.name.as_str(), f.layers, f.kv_heads, f.max_positions), ("gpt3", 96, 96, Some(2048)));
        let deepseek = json!({"num_hidden_layers": 61, "num_attention_heads": 128, "num_key_value_heads": 1, "kv_lora_rank": 512, "n_routed_experts": 256});
        let f = from_config(&deepseek, "x").unwrap();
        assert_eq!((f.kv_heads, f.experts), (128, 256));
    }

    #[test]
    fn what_is_missing_is_named() {
        let e = from_config(&json!({"n_head": 4}), "x").unwrap_err();
        assert!(e.contains("num_hidden_layers (or n_layer) is missing"), "{e}");
        let e = from_config(&json!({"num_hidden_layers": 2, "num_attention_heads": 6, "num_key_value_heads": 4}), "x")
            .unwrap_err();
        assert!(e.contains("does not divide num_attention_heads=6"), "{e}");
        let e = read(Path::new("no/such/config.json")).unwrap_err().to_string();
        assert!(e.contains("no/such/config.json"), "{e}");
    }
}

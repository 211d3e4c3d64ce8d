//! What the checks of a layout need to know of a model, read from its Hugging Face configuration.

use super::PredictError;
use crate::decoder::{Decoder, Heads, Mlp};
use std::path::Path;

/// Sizes that decide which layouts are possible.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ModelFacts {
    /// Name to print: `model_type`.
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
    /// Parameters, those of layers that predict further tokens included.
    pub parameters: u64,
}

/// Reads a `config.json` or the folder holding one.
///
/// # Errors
/// Where it is no configuration of a known family.
pub fn read(path: &Path) -> Result<ModelFacts, PredictError> {
    if path.extension().is_some_and(|e| e == "shard") {
        let what = format!("the IR text {}", path.display());
        return Err(PredictError::Later { what, instead: "give a config.json or a folder holding one".into() });
    }
    // The message of a configuration names its file.
    Decoder::load(path).map(|d| of(&d)).map_err(|e| PredictError::Json(e.to_string()))
}

/// Sizes of a decoder: heads of the layer that has fewest, since tp splits all of them.
pub fn of(decoder: &Decoder) -> ModelFacts {
    let kinds = decoder.kinds();
    let fewest = kinds.iter().map(|l| &l.attention).min_by_key(|a| a.heads);
    // Latent attention makes keys and values for every head from one compressed row.
    let kv_heads = fewest.map_or(1, |a| match a.kind {
        Heads::Latent { .. } => a.heads,
        Heads::Plain { .. } => a.kv_heads,
    });
    let experts = kinds.iter().map(|l| match &l.mlp {
        Mlp::Experts(x) => x.experts,
        Mlp::Dense(_) => 0,
    });
    ModelFacts {
        name: decoder.family.clone(),
        layers: decoder.depth() as u64,
        heads: fewest.map_or(1, |a| a.heads) as u64,
        kv_heads: kv_heads as u64,
        experts: experts.max().unwrap_or(0) as u64,
        max_positions: decoder.max_positions.map(|n| n as u64),
        parameters: decoder.parameters() + decoder.mtp_parameters(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(name: &str) -> ModelFacts {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/models").join(name);
        read(&path).unwrap()
    }

    #[test]
    fn sizes_are_those_of_every_familys_decoder() {
        let f = facts("meta-llama-3.1-70b.json");
        assert_eq!((f.name.as_str(), f.layers, f.heads, f.kv_heads, f.experts), ("llama", 80, 64, 8, 0));
        assert_eq!((f.max_positions, f.parameters), (Some(131_072), 70_553_706_496));
        let f = facts("gpt3-175b.json");
        assert_eq!((f.layers, f.heads, f.kv_heads, f.max_positions), (96, 96, 96, Some(2048)));
        let f = facts("deepseek-v3.json");
        assert_eq!((f.layers, f.kv_heads, f.experts), (61, 128, 256));
        let f = facts("gpt-oss-20b.json");
        assert_eq!((f.heads, f.kv_heads, f.experts), (64, 8, 32));
    }

    #[test]
    fn what_is_not_there_is_named() {
        let e = read(Path::new("no/such/config.json")).unwrap_err().to_string();
        assert!(e.contains("no/such/config.json"), "{e}");
        let e = read(Path::new("model.shard")).unwrap_err().to_string();
        assert!(e.contains("model.shard") && e.contains("config.json"), "{e}");
    }
}

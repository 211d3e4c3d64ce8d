//! Import, weights and data against files of others: the goldens record every initial tensor and every
//! step's tokens by hash, made by an independent implementation.

use std::path::{Path, PathBuf};

use autoshard::data::{token_hash, Dataset};
use autoshard::import::{load, num_params, params};
use autoshard::weights::init::{value_hash, Stream};
use autoshard::weights::Checkpoint;
use serde_json::{json, Value};

fn goldens() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/goldens");
    let entries = std::fs::read_dir(folder).expect("tests/data/goldens");
    let mut found: Vec<PathBuf> = entries.map(|e| e.expect("an entry").path()).collect();
    found.retain(|p| p.join("golden_f64.json").exists());
    found.sort();
    assert!(found.len() >= 8, "{found:?}");
    found
}

fn golden(folder: &Path) -> Value {
    let text = std::fs::read(folder.join("golden_f64.json")).expect("golden_f64.json");
    serde_json::from_slice(&text).expect("JSON")
}

#[test]
fn initial_tensors_match_the_goldens() {
    for folder in goldens() {
        let (config, golden) = (load(&folder).expect("a config"), golden(&folder));
        let specs = params(&config);
        assert_eq!(golden["num_params"], num_params(&config), "{folder:?}");
        assert_eq!(golden["init"].as_object().map(|o| o.len()), Some(specs.len()));
        for spec in specs {
            let want = &golden["init"][&spec.name];
            assert_eq!(want["shape"], json!(spec.shape), "{}", spec.name);
            let mut values = Vec::new();
            Stream::new(&spec.name, 0).extend(spec.kind, 0..spec.len() as u64, &mut values);
            let l2 = values.iter().map(|&v| f64::from(v).powi(2)).sum::<f64>().sqrt();
            let want_l2 = want["l2"].as_f64().expect("l2");
            assert!((l2 - want_l2).abs() < 1e-12 * want_l2, "{}", spec.name);
            if let Some(hash) = want.get("fnv1a64_le_bytes") {
                assert_eq!(*hash, format!("{:016x}", value_hash(&values)), "{}", spec.name);
            }
        }
    }
}

#[test]
fn recorded_gradients_read_back_under_the_same_names() {
    for folder in goldens() {
        let (config, golden) = (load(&folder).expect("a config"), golden(&folder));
        let file = folder.join("grads_step1_f64.safetensors");
        let checkpoint = Checkpoint::open(&file).expect("gradients");
        for spec in params(&config) {
            let values = checkpoint.read(&spec.name, &spec.shape).expect("a tensor");
            let l2 = values.iter().map(|v| v * v).sum::<f64>().sqrt();
            let want = golden["grad_step1"][&spec.name]["l2"].as_f64().expect("l2");
            assert!((l2 - want).abs() < 1e-6 * want, "{} {l2} {want}", spec.name);
        }
    }
}

#[test]
fn tokens_match_the_goldens() {
    for folder in goldens() {
        let (config, golden) = (load(&folder).expect("a config"), golden(&folder));
        let size = |key: &str| golden[key].as_u64().expect("a size") as usize;
        // The hashes are of the rule's steps, whether or not the run repeated its first batch.
        let data = Dataset::golden(0, config.vocab, size("seq"), size("batch"), false).expect("data");
        let Some(hashes) = golden["tokens_fnv"].as_object() else {
            continue;
        };
        for (step, hash) in hashes {
            let number: u64 = step.trim_start_matches("step").parse().expect("a step");
            let rows = (0..data.batch()).flat_map(|b| data.row(number, b).expect("a row"));
            let tokens: Vec<i32> = rows.map(|t| t as i32).collect();
            assert_eq!(*hash, format!("{:016x}", token_hash(&tokens)), "{folder:?} {step}");
        }
    }
}

/// Published configurations: the dense ones load with their published sizes, the others are refused.
#[test]
fn published_models_load_or_are_refused_by_their_deciding_key() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/models");
    for (name, billions) in [
        ("meta-llama-3.1-8b", 8.03),
        ("meta-llama-3.1-70b", 70.55),
        ("meta-llama-3.1-405b", 405.85),
        ("qwen3-8b", 8.19),
        ("qwen3-32b", 32.76),
    ] {
        let config = load(&folder.join(format!("{name}.json"))).expect(name);
        assert!((num_params(&config) as f64 / 1e9 - billions).abs() < 0.01, "{name}");
    }
    for (name, key) in [
        ("mixtral-8x7b-v0.1", "num_local_experts"),
        ("deepseek-v3", "kv_lora_rank"),
        ("gpt-oss-20b", "num_local_experts"),
        ("qwen3-30b-a3b", "num_experts"),
        ("gpt3-175b", "n_embd"),
    ] {
        let error = load(&folder.join(format!("{name}.json"))).expect_err(name).to_string();
        assert!(error.contains(&format!("the key `{key}` = ")), "{error}");
        assert!(error.contains("known: llama, mistral, qwen2, qwen3"), "{error}");
    }
}

//! The command line on bad input: every refusal is read, message and exit code.

use serde_json::{json, Value};
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;

/// Runs the command: exit code, stdout, stderr.
fn autoshard(args: &[&str]) -> (i32, String, String) {
    let out = Command::new(env!("CARGO_BIN_EXE_autoshard")).args(args).output().unwrap();
    let text = |b: &[u8]| String::from_utf8(b.to_vec()).unwrap();
    (out.status.code().unwrap(), text(&out.stdout), text(&out.stderr))
}

/// Asserts that a command fails with this code and a message that has all these parts.
fn refused(args: &[&str], code: i32, parts: &[&str]) {
    let (got, stdout, stderr) = autoshard(args);
    for part in parts {
        assert!(stderr.contains(part), "{args:?}: {part:?} is not in:\n{stderr}");
    }
    assert_eq!(got, code, "{args:?}\n{stdout}{stderr}");
    assert!(!stderr.contains("panicked"), "{stderr}");
}

fn golden(name: &str) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/goldens").join(name);
    folder.display().to_string()
}

/// A file of this text in a folder of its own.
fn file(name: &str, text: &str) -> (TempDir, String) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(name);
    std::fs::write(&path, text).unwrap();
    let path = path.display().to_string();
    (dir, path)
}

/// llama_tiny's configuration with some keys set; `null` takes a key out.
fn config(changes: Value) -> (TempDir, String) {
    let text = std::fs::read(Path::new(&golden("llama_tiny")).join("config.json")).unwrap();
    let mut config: Value = serde_json::from_slice(&text).unwrap();
    for (key, value) in changes.as_object().unwrap() {
        match value {
            Value::Null => config.as_object_mut().unwrap().remove(key),
            _ => config.as_object_mut().unwrap().insert(key.clone(), value.clone()),
        };
    }
    file("config.json", &config.to_string())
}

/// Runs one step of a changed configuration and expects a refusal.
fn refused_config(changes: Value, parts: &[&str]) {
    let (_dir, path) = config(changes);
    refused(&["run", &path, "--steps", "1"], 1, parts);
}

#[test]
fn broken_json_is_shown_with_its_place() {
    let (_dir, path) = file("config.json", "{\n  \"hidden_size\": 64,,\n}\n");
    refused(&["run", &path], 1, &["config.json:2:", "error: "]);
}

#[test]
fn a_missing_or_mistyped_key_is_named() {
    refused_config(json!({"hidden_size": null}), &["`hidden_size` is missing"]);
    refused_config(json!({"hidden_size": "64"}), &["`hidden_size` is \"64\"", "whole number"]);
    refused_config(json!({"hiden_size": 64}), &["unknown key `hiden_size`", "hidden_size"]);
}

#[test]
fn unknown_words_are_refused_with_the_known_ones() {
    refused_config(json!({"model_type": "lama"}), &["lama", "llama", "qwen2", "qwen3", "mistral"]);
    refused_config(json!({"hidden_act": "sillu"}), &["hidden_act", "sillu", "silu"]);
    let rope = json!({"rope_scaling": {"rope_type": "spiral", "factor": 2.0}});
    refused_config(rope, &["spiral", "llama3"]);
}

#[test]
fn tensor_degrees_are_those_that_divide_the_heads() {
    let model = golden("llama_tiny_b8");
    refused(
        &["run", &model, "--mesh", "tp=8", "--data", "golden", "--steps", "1"],
        1,
        &["tp = 8 does not fit attention with 4 heads over 2 key/value heads", "1, 2, 4"],
    );
    // Fewer key/value heads than ranks: two query heads of each on a rank of its own.
    let (code, stdout, stderr) = autoshard(&["run", &model, "--mesh", "tp=4", "--steps", "1", "--json"]);
    assert_eq!(code, 0, "{stdout}{stderr}");
}

#[test]
fn a_batch_must_divide_over_the_data_ranks() {
    let model = golden("llama_tiny");
    let batch = ["--batch", "6", "--steps", "1"];
    let with = |layout: [&'static str; 2]| [&["run", &model], &layout[..], &batch[..]].concat();
    refused(&with(["--mesh", "dp=2,fsdp=2"]), 1, &["batch 6 does not divide over dp·fsdp = 4 data ranks"]);
    refused(&with(["--devices", "25"]), 1, &["no mesh of 25 devices", "batch 6", "1, 2, 4", "fewer devices"]);
}

#[test]
fn sizes_out_of_range_are_refused() {
    let model = golden("llama_tiny");
    for flag in ["--batch", "--seq-len", "--steps", "--devices"] {
        for value in ["0", "-1", "18446744073709551616", "1.5"] {
            refused(&["run", &model, flag, value], 2, &[flag, value, "whole number from 1"]);
        }
    }
    refused_config(json!({"hidden_size": 0}), &["`hidden_size` is 0", "at least 1"]);
    refused_config(json!({"num_hidden_layers": -2}), &["`num_hidden_layers` is -2", "at least 1"]);
    refused_config(json!({"intermediate_size": 1u64 << 62}), &["4611686018427387904"]);
    refused_config(json!({"vocab_size": 1e300}), &["`vocab_size` is 1e", "whole number"]);
    refused_config(json!({"num_attention_heads": 1u64 << 40, "num_key_value_heads": 1u64 << 40}), &["head"]);
}

#[test]
fn a_mesh_multiplies_to_the_devices() {
    let model = golden("llama_tiny");
    refused(&["run", &model, "--mesh", "dp=2,tp=2", "--devices", "8"], 2, &["2·1·2 = 4 ranks", "--devices is 8"]);
    refused(&["run", &model, "--mesh", "dp=2,ftsp=2"], 2, &["unknown axis \"ftsp\"", "did you mean `fsdp`?"]);
    refused(&["run", &model, "--mesh", "pp=2"], 1, &["pp=2 is not executed yet"]);
    refused(&["run", &model, "--mesh", "dp=2,microbatches=4"], 1, &["microbatches=4 is not executed yet"]);
    refused(&["run", &model, "--mesh", "dp=2,,tp=2"], 2, &["not of the form axis=degree"]);
}

#[test]
fn a_module_is_refused_where_it_is_wrong() {
    let entry =
        |body: &str| format!("func @f(%x: f32[a=2, b=3]) -> (f32[a, b]) {{\n{body}\n  return %y\n}}\nentry @f\n");
    let cases = [
        ("  %y = add %x, %z : f32[a, b]", vec!["m.shard:2:", "%z is not defined"]),
        (
            "  %w = reduce_sum %x {spec=\"a b -> b\"} : f32[b]\n  %y = add %w, %x : f32[a, b]",
            vec!["m.shard:3:", "operands have different shapes"],
        ),
        (
            "  %y = add %x, %w : f32[a, b]\n  %w = add %y, %x : f32[a, b]",
            vec!["m.shard:2:", "%w is used before it is defined"],
        ),
    ];
    for (body, parts) in cases {
        let (_dir, path) = file("m.shard", &entry(body));
        for command in ["inspect", "run"] {
            refused(&[command, &path], 1, &parts);
        }
    }
    let (_dir, path) = file("m.shard", &entry("  %y = call @f(%x) : f32[a, b]"));
    refused(&["inspect", &path], 1, &["@f calls itself"]);
    let (_dir, path) = file("m.shard", &entry("  %y = neg %x : f32[a, b]"));
    refused(&["run", &path], 1, &["must take i32 tensors %tokens[b, s] and %labels[b, s]", "%x"]);
}

/// A compiled golden and its bytes.
fn compiled() -> (TempDir, PathBuf, Vec<u8>) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("t.asx");
    let out = path.display().to_string();
    let (code, stdout, stderr) = autoshard(&["compile", &golden("llama_tiny"), "--mesh", "tp=2", "-o", &out]);
    assert_eq!(code, 0, "{stdout}{stderr}");
    let bytes = std::fs::read(&path).unwrap();
    (dir, path, bytes)
}

#[test]
fn a_damaged_executable_is_refused_by_the_command() {
    let (_dir, path, bytes) = compiled();
    let name = path.display().to_string();
    let write = |bytes: &[u8]| std::fs::write(&path, bytes).unwrap();
    write(&bytes[..bytes.len() / 2]);
    refused(&["run", &name], 1, &["t.asx: the file is cut off"]);
    write(b"PK");
    refused(&["run", &name], 1, &["this is not an .asx file"]);
    let mut flipped = bytes.clone();
    flipped[bytes.len() - 1000] ^= 4;
    write(&flipped);
    refused(&["inspect", &name], 1, &["section program.txt is damaged", "checksum"]);
    write(&bytes);
    refused(
        &["run", &name, "--mesh", "tp=4"],
        2,
        &["--mesh is dp=1,fsdp=1,tp=4,sp=1", "made for dp=1,fsdp=1,tp=2,sp=1"],
    );
    refused(&["run", &name, "--batch", "2"], 2, &["--batch is 2", "made for 1"]);
    refused(&["run", &name, "--precision", "f64"], 2, &["--precision is f64", "made for f32"]);
}

/// A folder with a safetensors file of these tensors: name, dtype, shape, bytes per element.
fn weights(tensors: &[(&str, &str, &[usize], usize)]) -> (TempDir, String) {
    let (mut header, mut offset) = (serde_json::Map::new(), 0);
    for (name, dtype, shape, width) in tensors {
        let end = offset + shape.iter().product::<usize>() * width;
        header.insert(name.to_string(), json!({"dtype": dtype, "shape": shape, "data_offsets": [offset, end]}));
        offset = end;
    }
    let header = Value::Object(header).to_string();
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend_from_slice(header.as_bytes());
    bytes.resize(bytes.len() + offset, 0);
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("model.safetensors"), bytes).unwrap();
    let path = dir.path().display().to_string();
    (dir, path)
}

#[test]
fn weights_must_fit_the_model() {
    let model = golden("llama_tiny");
    let embed = "model.embed_tokens.weight";
    let check = |folder: &str, parts: &[&str]| refused(&["run", &model, "--weights", folder, "--steps", "1"], 1, parts);
    let empty = tempfile::tempdir().unwrap();
    check(&empty.path().display().to_string(), &["no weights here", "model.safetensors"]);
    check("/nonexistent/folder", &["/nonexistent/folder", "cannot read"]);
    let (_dir, folder) = weights(&[("model.embed.weight", "F32", &[256, 64], 4)]);
    check(&folder, &["no tensor model.embed_tokens.weight", "model.embed.weight"]);
    let (_dir, folder) = weights(&[(embed, "F32", &[64, 256], 4)]);
    check(&folder, &["tensor model.embed_tokens.weight has shape [64, 256]", "needs [256, 64]"]);
    let (_dir, folder) = weights(&[(embed, "I64", &[256, 64], 8)]);
    check(&folder, &["tensor model.embed_tokens.weight has dtype I64", "F32"]);
}

#[test]
fn data_must_fill_a_batch() {
    let model = golden("llama_tiny");
    let (_dir, path) = file("short.txt", "too short");
    refused(
        &["run", &model, "--data", &path, "--batch", "4"],
        1,
        &["short.txt: too short for one batch", "257 tokens", "has 9"],
    );
    refused(&["run", &model, "--data", "/nonexistent.txt"], 1, &["/nonexistent.txt: cannot read the data"]);
}

#[test]
fn data_of_the_wrong_kind_are_refused() {
    let model = golden("llama_tiny");
    let (dir, path) = file("wide.bin", "");
    std::fs::write(&path, (0..900u32).flat_map(|i| (i % 256).to_le_bytes()).collect::<Vec<u8>>()).unwrap();
    let run = |data: &str| autoshard(&["run", &model, "--data", data, "--steps", "1"]);
    refused(&["run", &model, "--data", &path], 1, &["wide.bin", "every second one here is 0", ".u32.bin", ".u16.bin"]);
    for name in ["wide.u32.bin", "wide.u16.bin"] {
        let named = dir.path().join(name);
        std::fs::copy(&path, &named).unwrap();
        assert_eq!(run(&named.display().to_string()).0, 0, "{name}");
    }
    let folder = dir.path().display().to_string();
    for special in ["/dev/zero", folder.as_str()] {
        refused(&["run", &model, "--data", special], 1, &[special, "not a regular file"]);
    }
}

#[test]
fn outputs_are_checked_before_the_run() {
    let model = golden("llama_tiny");
    let (dir, text) = file("notes.txt", "mine");
    let inside = |name: &str| dir.path().join(name).display().to_string();
    let run = |more: &[&str], parts: &[&str]| {
        let args = [&["run", &model, "--steps", "1"], more].concat();
        refused(&args, 1, parts);
        assert!(!autoshard(&args).2.contains("step "), "{args:?} trained");
    };
    run(&["--save", &format!("{text}/deep")], &["--save", "notes.txt/deep"]);
    std::fs::create_dir_all(dir.path().join("bad/model.safetensors")).unwrap();
    run(&["--save", &inside("bad")], &["--save", "model.safetensors there is a folder"]);
    run(&["--grads", &inside("bad")], &["--grads", "this is a folder"]);
    run(&["--grads", &text], &["--grads", "does not end in .safetensors"]);
    let save = inside("new");
    run(&["--save", &save, "--grads", &format!("{save}/./model.safetensors")], &["--grads", "the weights of --save"]);
    assert!(!Path::new(&save).exists(), "a failed run leaves no folder");
    refused(&["compile", &model, "-o", &text], 1, &["-o", "notes.txt", "is not an .asx file"]);
    assert_eq!(std::fs::read(&text).unwrap(), b"mine");
    let (code, stdout, stderr) = autoshard(&["run", &model, "--steps", "1", "--save", &save]);
    assert!(code == 0 && stdout.contains("saved weights to"), "{stdout}{stderr}");
}

#[test]
fn tensors_that_are_not_used_are_noted() {
    // Two layers of weights for a model of one.
    let model = golden("llama_tiny");
    let (dir, one) = config(json!({"num_hidden_layers": 1}));
    let saved = dir.path().join("two").display().to_string();
    assert_eq!(autoshard(&["run", &model, "--steps", "1", "--save", &saved]).0, 0);
    let (code, _, stderr) = autoshard(&["run", &one, "--steps", "1", "--weights", &saved]);
    let parts = ["note: 9 tensors of", "are not used: model.layers.1.input_layernorm.weight, ", " and 6 more"];
    assert!(code == 0 && parts.iter().all(|p| stderr.contains(p)), "{stderr}");
}

#[test]
fn a_first_loss_of_zero_has_no_multiples() {
    // One word: it is always right.
    let changes = json!({"vocab_size": 1, "bos_token_id": null, "eos_token_id": null, "pad_token_id": null});
    let (_dir, path) = config(changes);
    let (code, stdout, stderr) = autoshard(&["run", &path, "--steps", "1", "--data", "golden"]);
    assert!(code == 0 && stdout.contains("loss       0.0000 at first"), "{stdout}{stderr}");
    assert!(!stdout.contains("NaN") && !stdout.contains("of the first"), "{stdout}");
}

#[test]
fn deep_nesting_is_refused() {
    let deep = |open: &str, close: &str| format!("{}1{}", open.repeat(100_000), close.repeat(100_000));
    let (_dir, path) = file("config.json", &deep("[", "]"));
    refused(&["run", &path], 1, &["nested more than 128 deep"]);
    let (_dir, path) = file("config.json", &deep("{\"a\":", "}"));
    refused(&["run", &path], 1, &["nested more than 128 deep"]);
    let (_dir, path) = file("m.shard", &deep("func @f(", ")"));
    refused(&["inspect", &path], 1, &["m.shard:1:"]);
}

#[test]
fn probing_says_what_is_there_or_what_is_missing() {
    let (code, stdout, stderr) = autoshard(&["hardware", "--probe"]);
    assert_eq!((code, stderr.as_str()), (0, ""));
    assert!(stdout.starts_with("driver: ") || stdout.starts_with("no device: "), "{stdout}");
    refused(&["hardware", "this-machine", "--probe"], 2, &["cannot be used with"]);
}

#[test]
fn unknown_flags_and_values_name_the_nearest() {
    let model = golden("llama_tiny");
    refused(&["run", &model, "--stpes", "3"], 2, &["unexpected argument '--stpes'", "'--steps'"]);
    refused(&["run", &model, "--precision", "f23"], 2, &["unknown --precision f23", "did you mean `f32`?"]);
    refused(&["run", &model, "--precision", "f16"], 1, &["--precision f16 is not executed yet; use f32, bf16 or f64"]);
    refused(&["run", &model, "--fusion", "al"], 2, &["unknown --fusion al", "did you mean `all`?"]);
    refused(&["run", &model, "--target", "cpuu"], 2, &["unknown --target cpuu", "did you mean `cpu`?"]);
    refused(&["run", &model, "--target", "cuda"], 1, &["no CUDA kernels yet"]);
    refused(&["compile", &model, "--target", "sm_90a", "-o", "x.asx"], 1, &["no CUDA kernels yet"]);
    refused(&["hardware", "this-machin"], 2, &["unknown machine this-machin", "did you mean `this-machine`?"]);
    refused(&["complie"], 2, &["unrecognized subcommand 'complie'", "'compile'"]);
    refused(&["run", "/nonexistent"], 1, &["/nonexistent"]);
}

#[test]
fn run_files_are_checked() {
    let (dir, path) = config(json!({}));
    for (text, part) in [
        ("{\"step\": 3}", "unknown key `step`"),
        ("{\"steps\": 0}", "`steps` is 0"),
        ("{\"lr\": \"x\"}", "`lr` is \"x\""),
        ("3", "must be an object"),
    ] {
        std::fs::write(dir.path().join("run.json"), text).unwrap();
        refused(&["run", &path], 1, &["run.json", part]);
    }
}

#[test]
fn a_loss_that_is_no_number_stops_the_run() {
    let model = golden("llama_tiny");
    refused(&["run", &model, "--lr", "1e30", "--steps", "9"], 1, &["the loss is", "the run stops here"]);
}

#[test]
fn json_lines_have_the_keys_that_scripts_read() {
    let model = golden("llama_tiny_b8");
    let args =
        ["run", &model, "--mesh", "tp=2,fsdp=2,dp=2", "--steps", "4", "--json", "--precision", "f64", "--batch", "8"];
    let (code, stdout, stderr) = autoshard(&args);
    assert_eq!(code, 0, "{stderr}");
    let lines: Vec<Value> = stdout.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    assert_eq!(lines.len(), 5);
    for (i, line) in lines[..4].iter().enumerate() {
        assert_eq!(line["step"], i);
        for key in
            ["loss", "step_seconds", "tokens_per_second", "mfu", "peak_memory_mib", "exposed_communication_seconds"]
        {
            assert!(line[key].as_f64().is_some_and(|x| x > 0.0), "{key}: {line}");
        }
        for key in ["payload_bytes", "wire_bytes"] {
            assert!(line[key]["tp"].as_u64().is_some_and(|x| x > 0), "{key}: {line}");
        }
    }
    let summary = &lines[4]["summary"];
    let recorded: Value =
        serde_json::from_slice(&std::fs::read(Path::new(&model).join("golden_f64.json")).unwrap()).unwrap();
    for (i, loss) in summary["losses"].as_array().unwrap().iter().enumerate() {
        let (got, want) = (loss.as_f64().unwrap(), recorded["loss"][i].as_f64().unwrap());
        assert!((got - want).abs() <= 1e-9 * want, "step {i}: {got} {want}");
    }
    for key in ["median_step_seconds", "step_median_s", "step_min_s", "cpu_median_s", "compile_seconds"] {
        assert!(summary[key].as_f64().is_some(), "{key}: {summary}");
    }
    let norm = &summary["params_after"]["lm_head.weight"];
    assert!(norm["norm"].as_f64().is_some() && norm["delta_norm"].as_f64().is_some_and(|x| x > 0.0), "{norm}");
    // Everything for people went to stderr.
    assert!(stderr.contains("plan: mesh [dp: 2, fsdp: 2, tp: 2]") && stderr.contains("settings:"), "{stderr}");
}

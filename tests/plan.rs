//! `plan`: decisions in, a predicted step out; and every refusal.

#[path = "common/fake.rs"]
mod fake;

use autoshard::predict::fix;
use autoshard::predict::settings::{settle, Job, Settings};
use autoshard::predict::{Backend, ModelFacts, Precision, Prediction, Request};
use autoshard::report::prediction::{json, text, Planned};
use fake::{cluster, stack, Answer, Fake};
use std::path::Path;
use std::process::Command;

fn model() -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/goldens/llama_tiny").display().to_string()
}

/// A layout of a model, predicted by the fake.
fn predicted(decisions: &str, facts: &ModelFacts, devices: u64) -> (Settings, Prediction) {
    let job = Job { facts, devices, seq_len: Some(4096), global_batch: Some(128), stack: "megatron-core-2025" };
    let settings = settle(&fix::parse(decisions).unwrap(), &job).unwrap();
    let (cluster, stack) = (cluster("fake"), stack("megatron-core-2025"));
    let request = Request {
        model: Path::new("model"),
        facts,
        cluster: &cluster,
        devices,
        seq_len: settings.seq_len,
        precision: Precision::Bf16,
        stack: &stack,
        layout: &settings.layout,
    };
    let prediction = Fake(Answer::Work).predict(&request).unwrap();
    (settings, prediction)
}

fn llama() -> ModelFacts {
    ModelFacts { name: "llama".into(), layers: 80, heads: 64, kv_heads: 8, experts: 0, max_positions: Some(8192) }
}

#[test]
fn the_json_has_the_keys_that_scripts_read() {
    let (facts, cluster) = (llama(), cluster("fake"));
    let (settings, prediction) = predicted("tp=8,zero=3,shard_group=4", &facts, 64);
    let planned = Planned {
        facts: &facts,
        cluster: &cluster,
        devices: 64,
        precision: Precision::Bf16,
        stack: "megatron-core-2025",
        settings: &settings,
        prediction: &prediction,
        tokens: None,
        seconds: 0.5,
    };
    let v = json(&planned);
    for (pointer, expected) in [
        ("/plan/tp", 8),
        ("/plan/dp", 8),
        ("/plan/zero", 3),
        ("/plan/shard_group", 4),
        ("/plan/micro_batch", 1),
        ("/plan/microbatches", 16),
        ("/plan/devices_used", 64),
        ("/plan/etp", 1),
        ("/search/candidates", 1),
        ("/search/evaluated", 1),
        ("/search/simulated", 1),
    ] {
        assert_eq!(v.pointer(pointer), Some(&expected.into()), "{pointer}");
    }
    assert_eq!(v["plan"]["mesh"], "dp=2,fsdp=4,tp=8");
    assert_eq!(v["plan"]["layout"], serde_json::json!(["tp", "fsdp", "dp"]));
    assert_eq!(v["plan"]["layers_per_stage"], serde_json::json!([80]));
    assert_eq!((&v["plan"]["recompute"], &v["plan"]["schedule"]), (&"none".into(), &"1f1b".into()));
    let p = &v["prediction"];
    // 128·4096 tokens at 10⁴ tokens/s and device; 2.5·10⁹ FLOPs a token of 10¹⁴ FLOP/s.
    let near = |key: &str, x: f64| assert!((p[key].as_f64().unwrap() / x - 1.0).abs() < 1e-9, "{key}: {}", p[key]);
    near("step_seconds", 0.8192);
    near("tokens_per_second_per_device", 1e4);
    near("mfu", 0.25);
    near("mfu_full_attention", 0.3125);
    near("hfu", 0.375);
    near("exposed_communication_seconds", 0.4096);
    near("step_seconds_low", 0.9 * 0.8192);
    assert_eq!(p["bubble_seconds"], 0.0);
    assert_eq!(v["search"]["optimal"], false);
    for pointer in
        ["/peak_memory_gib", "/memory_gib/allocated", "/memory_gib/device", "/stages/0/peak_memory_gib", "/goodput"]
    {
        assert_eq!(p.pointer(pointer), Some(&serde_json::Value::Null), "{pointer}");
    }
    assert_eq!(p.pointer("/stages/0/parts/products/seconds").and_then(|s| s.as_f64()), Some(0.4096));
    assert_eq!(v["alternatives"], serde_json::json!([]));
}

#[test]
fn the_report_tells_defaults_times_and_costs() {
    let (facts, cluster) = (llama(), cluster("fake"));
    let (settings, prediction) = predicted("tp=8", &facts, 64);
    let planned = Planned {
        facts: &facts,
        cluster: &cluster,
        devices: 64,
        precision: Precision::Bf16,
        stack: "megatron-core-2025",
        settings: &settings,
        prediction: &prediction,
        tokens: Some(15e12),
        seconds: 0.5,
    };
    let report = text(&planned);
    for part in [
        "llama: 80 layers, 64 heads (8 kv) on 64 devices of fake (fake-device), bf16, stack megatron-core-2025",
        "dp            8          default: 64 devices over tp·cp·pp",
        "sp            1          default: on with tp",
        "--fix  tp=8,cp=1,pp=1,ep=1,dp=8,zero=1,shard_group=8",
        "--mesh dp=8,tp=8,zero=1,shard_group=8",
        "409.60 ms  50.0 %  204.80 ms   953.67 MiB  inside",
        "MFU 25.0 % (causal attention counted once), 31.2 % (whole attention), HFU 37.5 %",
        "640,000 tokens/s, 10,000 a device",
        // 15e12 / 640,000 / 86,400 = 271.3 days; · 24 · 64 = 416,667 device-hours at $2.
        "271.3 days, 416,667 device-hours, $833,333 at $2.00",
        "note: fake",
    ] {
        assert!(report.contains(part), "{part:?} is not in:\n{report}");
    }
}

/// Runs `plan` on the tiny model: exit code and stderr.
fn plan(more: &[&str]) -> (i32, String) {
    let model = model();
    let mut args = vec!["plan", "--model", &model, "--cluster", "dgx-h100", "--devices", "8"];
    args.extend(more);
    let out = Command::new(env!("CARGO_BIN_EXE_autoshard")).args(&args).output().unwrap();
    (out.status.code().unwrap(), String::from_utf8(out.stderr).unwrap())
}

#[test]
fn what_is_wrong_is_refused_as_usage() {
    for (more, part) in [
        (vec!["--fix", "tpp=2"], "did you mean `tp`?"),
        (vec!["--fix", "tp=3"], "tp=3·cp=1·pp=1 = 3 does not divide 8 devices; the product can be 1,2,4,8"),
        (vec!["--fix", "tp=2,dp=8"], "dp would be 4"),
        (vec!["--fix", "zero=0,shard_group=2"], "contradict"),
        (vec!["--fix", "ep=2"], "no experts"),
        (vec!["--fix", "tp=1", "--global-batch", "12"], "the batch could be 8 or 16"),
        (vec!["--fix", "cp=8", "--seq-len", "24"], "cp can be 1,2,3,4,6,12"),
        (vec!["--fix", "tp=1", "--memory-limit", "0"], "above 0"),
        (vec!["--fix", "tp=1", "--memory-limit", "-3"], "above 0"),
        (vec!["--fix", "tp=1", "--memory-margin", "108%"], "below 100%"),
        (vec!["--fix", "tp=1", "--precision", "bf61"], "did you mean `bf16`?"),
        (vec!["--fix", "tp=1", "--tokens", "15X"], "as in 15T"),
        (vec!["--fix", "tp=1", "--objective", "steptime"], "did you mean `step-time`?"),
        (vec!["--fix", "tp=1", "--emit", "megatrom"], "did you mean `megatron`?"),
        (vec!["--fixx", "tp=1"], "--fix"),
    ] {
        let (code, stderr) = plan(&more);
        assert!(stderr.contains(part), "{more:?}: {part:?} is not in:\n{stderr}");
        assert_eq!(code, 2, "{more:?}: {stderr}");
        assert!(!stderr.contains("panicked"), "{stderr}");
    }
}

#[test]
fn what_comes_later_says_what_to_do_instead() {
    for (more, part) in [
        (vec![], "name one by --fix, as in --fix tp=8,pp=1"),
        (vec!["--fix", "pp=2"], "fix pp=1"),
        (vec!["--fix", "recompute=auto"], "use none, selective, full or layers:N"),
        (vec!["--fix", "tp=1", "--top", "5"], "leave it out"),
        (vec!["--fix", "tp=1", "--sweep", "devices=8..64"], "call plan once for each value"),
        (vec!["--fix", "tp=1", "--exhaustive"], "leave it out"),
        (vec!["--fix", "tp=1", "--trace", "t.json"], "leave it out"),
        (vec!["--fix", "tp=1", "--emit", "megatron"], "from the printed settings"),
        (vec!["--fix", "tp=1", "-o", "plan.json"], "use --json and send stdout to the file"),
        (vec!["--fix", "tp=1", "--objective", "cost"], "leave it out"),
    ] {
        let (code, stderr) = plan(&more);
        assert!(stderr.contains(part), "{more:?}: {part:?} is not in:\n{stderr}");
        assert_eq!(code, 1, "{more:?}: {stderr}");
    }
    let out = Command::new(env!("CARGO_BIN_EXE_autoshard"))
        .args(["plan", "--model", "no/such", "--cluster", "dgx-h100", "--devices", "8", "--fix", "tp=1"])
        .output()
        .unwrap();
    assert_eq!(out.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&out.stderr).contains("no/such"));
}

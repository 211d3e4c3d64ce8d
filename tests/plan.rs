//! `plan`: decisions in, a predicted step out; and every refusal.

#[path = "common/fake.rs"]
mod fake;

use autoshard::planfile::{Bound, ModelRef, PlanFile};
use autoshard::predict::fix;
use autoshard::predict::settings::{settle, Job, Settings};
use autoshard::predict::{Backend, Memory, MemoryPart, ModelFacts, Order, Precision, Prediction, Request, Stage};
use autoshard::report::prediction::{text, Planned};
use autoshard::report::search::{json, Searched};
use autoshard::report::stages::{self, Room};
use autoshard_cost::cluster::{Cluster, Failures};
use fake::{cluster, stack, Answer, Fake};
use std::path::Path;
use std::process::Command;

fn model() -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/goldens/llama_tiny").display().to_string()
}

/// A layout of a model, predicted by the fake.
fn predicted(decisions: &str, facts: &ModelFacts, devices: u64) -> (Settings, Prediction) {
    let job = Job {
        facts,
        devices,
        seq_len: Some(4096),
        global_batch: Some(128),
        stack: "megatron-core-2025",
        order: Order::STAGES_OUTSIDE,
    };
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
        layers_per_stage: None,
    };
    let prediction = Fake(Answer::Work).predict(&request).unwrap();
    (settings, prediction)
}

/// A predicted layout, as a plan file.
fn plan_file(settings: &Settings, prediction: &Prediction) -> PlanFile {
    PlanFile {
        model: ModelRef { file: "model".into(), sha256: "0a".repeat(32), name: "llama".into() },
        cluster: "fake".into(),
        stack: "megatron-core-2025".into(),
        precision: Precision::Bf16,
        seq_len: settings.seq_len,
        global_batch: settings.global_batch,
        devices: 64,
        memory: Bound::default(),
        layout: settings.layout.clone(),
        layers_per_stage: stages::layers(prediction, 80),
    }
}

/// What a report is told of it, within all the memory there is.
fn planned<'a>(
    facts: &'a ModelFacts,
    cluster: &'a Cluster,
    plan: &'a PlanFile,
    settings: &'a Settings,
    prediction: &'a Prediction,
) -> Planned<'a> {
    let room = Room::new(&cluster.device, None, None);
    Planned { facts, cluster, plan, settings, prediction, room, tokens: None }
}

/// What `plan --json` prints of one layout.
fn object(planned: &Planned) -> serde_json::Value {
    json(planned, &[], &Searched::one_layout(0.5)).into()
}

fn llama() -> ModelFacts {
    ModelFacts {
        name: "llama".into(),
        layers: 80,
        heads: 64,
        kv_heads: 8,
        experts: 0,
        max_positions: Some(8192),
        parameters: 70_553_706_496,
    }
}

#[test]
fn the_json_has_the_keys_that_scripts_read() {
    let (facts, cluster) = (llama(), cluster("fake"));
    let (settings, prediction) = predicted("tp=8,zero=3,shard_group=4", &facts, 64);
    let plan = plan_file(&settings, &prediction);
    let planned = Planned {
        room: Room::new(&cluster.device, Some(74.5), None),
        ..planned(&facts, &cluster, &plan, &settings, &prediction)
    };
    let v = object(&planned);
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
    // The fake predicts no memory and its cluster knows no failures.
    for pointer in [
        "/peak_memory_gib",
        "/memory_gib/allocated",
        "/memory_gib/device",
        "/stages/0/peak_memory_gib",
        "/fits",
        "/goodput",
    ] {
        assert_eq!(p.pointer(pointer), Some(&serde_json::Value::Null), "{pointer}");
    }
    assert_eq!((&p["memory_limit_gib"], &p["memory_margin"]), (&74.5.into(), &0.08.into()));
    assert_eq!((&p["stages"][0]["layers"], &p["stages"][0]["parts"]), (&80.into(), &serde_json::json!({})));
    assert_eq!(p.pointer("/parts/products/seconds").and_then(|s| s.as_f64()), Some(0.4096));
    assert_eq!(v["alternatives"], serde_json::json!([]));
}

#[test]
fn the_report_tells_defaults_times_and_costs() {
    let (facts, cluster) = (llama(), cluster("fake"));
    let (settings, prediction) = predicted("tp=8", &facts, 64);
    let plan = plan_file(&settings, &prediction);
    let planned = Planned { tokens: Some(15e12), ..planned(&facts, &cluster, &plan, &settings, &prediction) };
    let report = text(&planned);
    for part in [
        "llama: 80 layers, 64 heads (8 kv) on 64 devices of fake (fake-device), bf16, stack megatron-core-2025",
        "dp            8              default: 64 devices over tp·cp·pp",
        "sp            1              default: on with tp",
        "--fix  tp=8,cp=1,cp_method=ring,pp=1,vpp=1,schedule=1f1b,ep=1,etp=1,dp=8,zero=1,shard_group=8,keep=0,sp=1,mbs=1",
        "--mesh dp=8,tp=8,zero=1,shard_group=8",
        "409.60 ms  50.0 %  204.80 ms   953.67 MiB  inside",
        "MFU 25.0 % (causal attention counted once), 31.2 % (whole attention), HFU 37.5 %",
        "640,000 tokens/s, 10,000 a device",
        // 15e12 / 640,000 / 86,400 = 271.3 days; · 24 · 64 = 416,667 device-hours at $2.
        "271.3 days, 416,667 device-hours, $833,333 at $2.00",
        "note: fake",
        "nothing says that this layout fits",
    ] {
        assert!(report.contains(part), "{part:?} is not in:\n{report}");
    }
    assert!(!report.contains("goodput"), "{report}");
}

#[test]
fn failures_and_stages_are_told() {
    let (facts, mut cluster) = (llama(), cluster("fake"));
    // A failure a day on 8 nodes.
    let per_thousand_node_days = 125.0;
    cluster.failures = Some(Failures { per_thousand_node_days, restart_seconds: 864.0, ..Failures::default() });
    let (settings, mut prediction) = predicted("tp=8", &facts, 64);
    let gib = (1u64 << 30) as f64;
    let stage = |layers, device: f64| {
        let parts = vec![MemoryPart { name: "optimizer", bytes: device * gib }];
        let memory =
            Memory { parts, allocated: 0.8 * device * gib, reserved: 0.9 * device * gib, device: device * gib };
        Stage { layers, busy: 0.4, memory: Some(memory) }
    };
    prediction.stages = vec![stage(19, 60.0), stage(21, 50.0), stage(21, 50.0), stage(19, 40.0)];
    let plan = plan_file(&settings, &prediction);
    let planned = Planned {
        room: Room::new(&cluster.device, Some(60.0), Some(0.0)),
        ..planned(&facts, &cluster, &plan, &settings, &prediction)
    };
    let v = object(&planned);
    assert_eq!(v["plan"]["layers_per_stage"], serde_json::json!([19, 21, 21, 19]));
    let p = &v["prediction"];
    assert_eq!(
        (&p["fits"], &p["peak_memory_gib"], &p["memory_gib"]["allocated"]),
        (&true.into(), &60.0.into(), &48.0.into())
    );
    assert_eq!(p["seconds_between_failures"], 86_400.0);
    // 70.55e9·13 bytes at 1.2 GB/s from 8 nodes are δ = 95.7 s; √(2·δ·86,400) = 4,066 s between checkpoints lose
    // 2.35 % to them and 2.35 % to work done again, restarts 1 %.
    let goodput = p["goodput"].as_f64().unwrap();
    assert!((goodput - 0.943).abs() < 2e-3, "{goodput}");
    let interval = p["checkpoint_interval_seconds"].as_f64().unwrap();
    assert!((interval / 4066.0 - 1.0).abs() < 0.02, "{interval}");
    let report = text(&planned);
    for part in [
        "2–3            21",
        "memory of stage 1, the fullest:",
        "fits: 60.00 GiB with a margin of 0 %",
        "goodput 94.",
        "after every 66.7 min of work",
        "useful tokens/s",
    ] {
        assert!(report.contains(part), "{part:?} is not in:\n{report}");
    }
}

#[test]
fn an_mfu_above_one_is_an_error_that_is_told() {
    let (facts, mut cluster) = (llama(), cluster("fake"));
    cluster.device.peak = vec![(autoshard_cost::device::Format::Bf16, 2e13)];
    let (settings, prediction) = predicted("tp=8", &facts, 64);
    let plan = plan_file(&settings, &prediction);
    let planned = planned(&facts, &cluster, &plan, &settings, &prediction);
    assert!(text(&planned).contains("note: ERROR: an MFU of 125 % cannot be"));
    assert!(object(&planned)["prediction"]["marks"].to_string().contains("an MFU of 125 %"));
}

/// Case A14: 9,600 tokens/s and GPU of a 7B model are 44.7 % of the dense peak, not 22 % of the sparse one.
#[test]
fn mfu_is_of_the_dense_peak() {
    let backend = autoshard::predict::backend();
    let device = backend.device("h100-sxm5").unwrap();
    let peak = device.peak_of(Precision::Bf16.format()).unwrap();
    assert!(peak <= 990e12, "{peak}");
    let dir = tempfile::tempdir().unwrap();
    let model = dir.path().join("config.json");
    let config = serde_json::json!({
        "model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32, "intermediate_size": 11008,
        "vocab_size": 32000, "num_attention_heads": 32, "num_key_value_heads": 32, "tie_word_embeddings": false,
        "hidden_act": "silu", "max_position_embeddings": 4096, "rms_norm_eps": 1e-5, "rope_theta": 10000.0
    });
    std::fs::write(&model, config.to_string()).unwrap();
    let facts = backend.model(&model).unwrap();
    let cluster = backend.cluster("dgx-h100").unwrap();
    let stack = backend.stack("fsdp1-2023").unwrap();
    let job = Job {
        facts: &facts,
        devices: 8,
        seq_len: Some(4096),
        global_batch: Some(16),
        stack: "fsdp1-2023",
        order: Order::STAGES_OUTSIDE,
    };
    let settings = settle(&fix::parse("mbs=2").unwrap(), &job).unwrap();
    let request = Request {
        model: &model,
        facts: &facts,
        cluster: &cluster,
        devices: 8,
        seq_len: 4096,
        precision: Precision::Bf16,
        stack: &stack,
        layout: &settings.layout,
        layers_per_stage: None,
    };
    let prediction = backend.predict(&request).unwrap();
    let flops = |total: f64| total / (16.0 * 4096.0);
    for flops in [flops(prediction.model_flops_causal), flops(prediction.model_flops_full)] {
        let mfu = 9600.0 * flops / peak;
        assert!((0.40..0.47).contains(&mfu), "{mfu}");
    }
    let full = 9600.0 * flops(prediction.model_flops_full) / peak;
    assert!((0.44..0.47).contains(&full), "{full}");
    let mfu = prediction.utilisation(prediction.model_flops_causal, 8, peak);
    assert!((0.2..0.8).contains(&mfu), "{mfu}");
}

/// Case A15: an accelerator that nobody knows is an error with near names, never another's peak.
#[test]
fn an_unknown_device_is_refused() {
    let backend = autoshard::predict::backend();
    let e = backend.device("b300-sxn").unwrap_err().to_string();
    assert!(e.contains("b300-sxm"), "{e}");
    for name in ["NVIDIA B400 SXM6 AC", "h1000"] {
        let e = backend.device(name).unwrap_err().to_string();
        assert!(e.contains(name), "{e}");
    }
}

/// Case A19: data ranks are devices over tp·cp·pp, experts divide none of them, and
/// dp·micro-batch·micro-batches is the batch.
#[test]
fn batches_are_of_data_ranks() {
    let moe = ModelFacts { experts: 8, ..llama() };
    let settled = |decisions: &str, facts: &ModelFacts, devices, batch| {
        let job = Job {
            facts,
            devices,
            seq_len: Some(4096),
            global_batch: Some(batch),
            stack: "megatron-core-2025",
            order: Order::STAGES_OUTSIDE,
        };
        settle(&fix::parse(decisions).unwrap(), &job).unwrap().layout
    };
    for (split, mbs, dp, each) in [(1, 4, 16, 4), (2, 8, 8, 8), (4, 8, 4, 16)] {
        for (axes, facts) in [("tp", llama()), ("cp", llama()), ("pp", llama()), ("tp", moe.clone())] {
            let ep = if facts.experts > 0 { ",ep=2" } else { "" };
            let l = settled(&format!("{axes}={split},mbs={mbs}{ep}"), &facts, 16, 64);
            assert_eq!((l.dp, l.micro_batch * l.microbatches), (dp, each), "{axes}={split}{ep}");
            assert_eq!(l.dp * l.micro_batch * l.microbatches, 64);
        }
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

/// Decisions that leave nothing to search.
const DECIDED: &str = "tp=1,cp=1,pp=1,zero=0,mbs=1,recompute=none";

#[test]
fn what_is_wrong_is_refused_as_usage() {
    for (more, part) in [
        (vec!["--fix", "tpp=2"], "did you mean `tp`?"),
        (
            vec!["--fix", "tp=3,cp=1,pp=1,zero=0,mbs=1,recompute=none"],
            "tp=3·cp=1·pp=1 = 3 does not divide 8 devices; the product can be 1,2,4,8",
        ),
        (vec!["--fix", "tp=2,dp=8"], "dp would be 4"),
        (vec!["--fix", "zero=0,shard_group=2"], "contradict"),
        (vec!["--fix", "ep=2"], "no experts"),
        (vec!["--fix", DECIDED, "--global-batch", "12"], "the batch could be 8 or 16"),
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
    let (code, stderr) = plan(&["--fix", "recompute=every:2"]);
    assert!(code == 1 && stderr.contains("use full, layers:N"), "{stderr}");
    let out = Command::new(env!("CARGO_BIN_EXE_autoshard"))
        .args(["plan", "--model", "no/such", "--cluster", "dgx-h100", "--devices", "8", "--fix", "tp=1"])
        .output()
        .unwrap();
    assert_eq!(out.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&out.stderr).contains("no/such: cannot read"));
}

/// Case A20: interleaving wants micro-batches in groups of pp, and not of pp·vpp.
#[test]
fn interleaving_takes_micro_batches_in_groups_of_pp() {
    let facts = ModelFacts { layers: 32, ..llama() };
    for (microbatches, accepted) in [(6, false), (8, true), (12, true), (16, true)] {
        let job = Job {
            facts: &facts,
            devices: 4,
            seq_len: Some(4096),
            global_batch: None,
            stack: "megatron-core-2025",
            order: Order::STAGES_OUTSIDE,
        };
        let text = format!("pp=4,vpp=2,microbatches={microbatches}");
        let settled = settle(&fix::parse(&text).unwrap(), &job);
        assert_eq!(settled.is_ok(), accepted, "{text}");
        if let Err(e) = settled {
            assert!(e.to_string().contains("not a multiple of pp=4") && e.to_string().contains("4 or 8"), "{e}");
        }
    }
    // The command refuses it as usage.
    let (code, stderr) = plan(&["--fix", "pp=2,vpp=1,schedule=interleaved,microbatches=3"]);
    assert!(code == 2 && stderr.contains("microbatches can be 2 or 4"), "{stderr}");
}

/// The timeline of a step: JSON, inside the step, one thing at a time in a lane.
#[test]
fn a_trace_is_inside_the_step_and_its_lanes_do_not_overlap() {
    let dir = tempfile::tempdir().unwrap();
    for (name, devices, decisions, expected) in [
        ("ddp", "8", "tp=2,zero=0,microbatches=4", 2),
        ("zero1", "8", "tp=2,zero=1,shard_group=4,microbatches=1", 2),
        ("fsdp", "8", "tp=1,zero=3,shard_group=8,microbatches=4", 2),
        ("hsdp", "8", "tp=1,zero=3,shard_group=4,microbatches=2", 3),
        ("alone", "4", "tp=4,microbatches=2", 1),
    ] {
        let file = dir.path().join(format!("{name}.json"));
        let decisions = &format!("{decisions},cp=1,pp=1,mbs=1,recompute=none");
        let model = model();
        let out = Command::new(env!("CARGO_BIN_EXE_autoshard"))
            .args(["plan", "--model", &model, "--cluster", "dgx-h100", "--devices", devices, "--fix", decisions])
            .arg("--json")
            .args(["--trace", &file.display().to_string()])
            .output()
            .unwrap();
        assert!(out.status.success(), "{name}: {}", String::from_utf8_lossy(&out.stderr));
        let plan: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
        let step = plan["prediction"]["step_seconds"].as_f64().unwrap() * 1e6;
        let trace: serde_json::Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
        let events = trace["traceEvents"].as_array().unwrap();
        let mut lanes: std::collections::BTreeMap<u64, Vec<(f64, f64)>> = Default::default();
        for e in events.iter().filter(|e| e["ph"] == "X") {
            let (start, seconds) = (e["ts"].as_f64().unwrap(), e["dur"].as_f64().unwrap());
            assert!(start >= 0.0 && seconds > 0.0 && start + seconds <= step * (1.0 + 1e-9), "{name}: {e} {step}");
            lanes.entry(e["tid"].as_u64().unwrap()).or_default().push((start, start + seconds));
        }
        for (lane, spans) in &mut lanes {
            spans.sort_by(|a, b| a.0.total_cmp(&b.0));
            for pair in spans.windows(2) {
                assert!(pair[0].1 <= pair[1].0 + 1e-6 * step, "{name}: lane {lane}: {pair:?}");
            }
        }
        // Computation reaches the end of the step, and messages have lanes of their own where there are any.
        let end = lanes[&0].last().unwrap().1;
        assert!((end / step - 1.0).abs() < 1e-6, "{name}: {end} of {step}");
        assert_eq!(lanes.len(), expected, "{name}");
        assert!(events.iter().any(|e| e["name"].as_str().is_some_and(|n| n.ends_with(" backward"))), "{name}");
    }
}

//! `plan.json`: what is written is read back, what is wrong is refused by name, and the schema says the same.

#[path = "common/schema.rs"]
mod schema;

use autoshard::planfile::{execution, read, write, Bound, ModelRef, PlanFile};
use autoshard::predict::{CpMethod, Layout, Module, Order, Precision, Recompute, Schedule};
use proptest::prelude::*;
use serde_json::{json, Value};
use std::path::{Path, PathBuf};
use std::process::Command;

fn plan() -> PlanFile {
    let layout = Layout {
        tp: 4,
        cp: 1,
        pp: 2,
        ep: 1,
        etp: 1,
        dp: 8,
        vpp: 1,
        zero: 3,
        keep: false,
        shard_group: 4,
        sp: true,
        cp_method: CpMethod::Ring,
        micro_batch: 1,
        microbatches: 4,
        recompute: Recompute::Selective(vec![Module::CoreAttn, Module::Mlp]),
        schedule: Schedule::OneFOneB,
        order: Some(Order::STAGES_OUTSIDE),
    };
    PlanFile {
        model: ModelRef { file: "llama/config.json".into(), sha256: "0a".repeat(32), name: "llama".into() },
        cluster: "dgx-h100".into(),
        stack: "megatron-core-2025".into(),
        precision: Precision::Bf16,
        seq_len: 4096,
        global_batch: 32,
        devices: 64,
        memory: Bound { limit_gib: Some(74.5), margin: None },
        layout,
        layers_per_stage: vec![16, 16],
    }
}

fn object() -> Value {
    serde_json::from_str(&write(&plan())).unwrap()
}

fn changed(pointer: &str, value: Value) -> String {
    let mut v = object();
    let (parent, key) = pointer.rsplit_once('/').unwrap();
    let parent = v.pointer_mut(parent).unwrap().as_object_mut().unwrap();
    match value {
        Value::String(s) if s == "(absent)" => parent.remove(key),
        value => parent.insert(key.to_string(), value),
    };
    v.to_string()
}

fn message(text: &str) -> String {
    read(text, "plan.json").map_or_else(|e| e.to_string(), |p| format!("read {p:?}"))
}

#[test]
fn the_keys_are_those_that_scripts_read() {
    let v = object();
    for (key, expected) in [
        ("tp", json!(4)),
        ("dp", json!(8)),
        ("micro_batch", json!(1)),
        ("microbatches", json!(4)),
        ("recompute", json!("selective:core_attn+mlp")),
        ("schedule", json!("1f1b")),
        ("layers_per_stage", json!([16, 16])),
        ("devices_used", json!(64)),
        ("layout", json!(["tp", "fsdp", "dp", "pp"])),
        ("mesh", json!("pp=2,dp=2,fsdp=4,tp=4")),
        ("sp", json!(true)),
        ("memory", json!({"limit_gib": 74.5, "margin": null})),
    ] {
        assert_eq!(v[key], expected, "{key}");
    }
}

#[test]
fn what_plan_prints_is_read_too() {
    let printed = json!({"plan": object(), "prediction": {"step_seconds": 1.0}, "alternatives": [], "search": {}});
    assert_eq!(read(&printed.to_string(), "out.json").unwrap(), plan());
    let e = message(r#"{"infeasible": {"reason": "memory"}}"#);
    assert!(e.contains("nothing fits"), "{e}");
    let e = message(&json!({"plan": object(), "predictions": {}}).to_string());
    assert!(e.contains("unknown key `predictions`; did you mean `prediction`?"), "{e}");
    // Without `order`, the list of axes says it.
    let mut v = object();
    v.as_object_mut().unwrap().remove("order");
    v["layout"] = json!(["tp", "pp", "fsdp", "dp"]);
    let order = read(&v.to_string(), "plan.json").unwrap().layout.order.unwrap();
    assert_eq!(order.to_string(), "tp+pp+dp+cp");
}

#[test]
fn mistakes_are_named_with_their_place() {
    for (pointer, value, parts) in [
        ("/tpp", json!(1), &["unknown key `tpp`", "did you mean `tp`?"][..]),
        ("/version", json!(2), &["version 2 is not read", "plan again"]),
        ("/version", json!("(absent)"), &["`version` is missing"]),
        ("/model/sha256", json!("(absent)"), &["`model.sha256` is missing"]),
        ("/model/sha", json!(1), &["unknown key `sha`", "sha256"]),
        ("/model/sha256", json!("0A"), &["64 lower-case hexadecimal digits"]),
        ("/schedule", json!("1b1f"), &["did you mean `1f1b`?"]),
        ("/precision", json!("bf61"), &["did you mean `bf16`?"]),
        ("/cp_method", json!("rings"), &["did you mean `ring`?"]),
        ("/recompute", json!("selectiv"), &["`recompute` is \"selectiv\"", "did you mean `selective`?"]),
        ("/recompute", json!("none,tp=9"), &["`recompute`", "one word"]),
        ("/tp", json!(0), &["`tp` is 0", "whole number from 1"]),
        ("/tp", json!(1.5), &["`tp` is 1.5"]),
        ("/zero", json!(4), &["`zero` is 4", "from 0 to 3"]),
        ("/sp", json!(1), &["`sp` is 1", "true or false"]),
        ("/order", json!("tp+tp"), &["`order` is \"tp+tp\"", "innermost first"]),
        ("/layout", json!(["tp", "fdsp"]), &["[tp, fdsp]", "[tp, fsdp, dp, pp]"]),
        ("/devices_used", json!(32), &["`devices_used` is 32", "4·1·2·8 = 64"]),
        ("/devices", json!(32), &["uses 64 devices, more than `devices` = 32"]),
        ("/global_batch", json!(33), &["`global_batch` is 33", "8·1·4 = 32"]),
        ("/layers_per_stage", json!([32]), &["1 numbers for pp = 2"]),
        ("/recompute", json!("stages:17+0"), &["stages:17+0", "not a part of the layers"]),
        ("/mesh", json!("dp=64"), &["`mesh` is \"dp=64\"", "pp=2,dp=2,fsdp=4,tp=4"]),
        ("/memory", json!({"margin": 1.0}), &["`margin` is 1.0", "below 1"]),
        ("/memory", json!(3), &["a plan is a JSON object, and this is 3"]),
    ] {
        let e = message(&changed(pointer, value.clone()));
        for part in parts {
            assert!(e.contains(part), "{pointer} = {value}: {part:?} is not in\n{e}");
        }
        assert!(e.contains("plan.json"), "{e}");
    }
    assert!(message("[1]").contains("this is [1]"));
    assert!(message("{\"tp\": 1,}").contains("trailing comma"));
    assert!(message("{\"tp\": 1, \"tp\": 2}").contains("given twice"));
}

/// Any layout that holds together: sizes alone, no model.
fn layouts() -> impl Strategy<Value = PlanFile> {
    let degrees = (1u64..9, 1u64..5, 1u64..5, 1u64..5, 1u64..9, 1u64..4);
    let sharing = (0u8..4, 1u64..65, any::<bool>(), any::<bool>(), 1u64..5, 1u64..9);
    let words = (0..CpMethod::ALL.len(), 0..Schedule::ALL.len(), 0..Precision::ALL.len(), 0usize..6, 0usize..3);
    let memory = (proptest::option::of(0.001f64..1e4), proptest::option::of(0.0f64..0.999));
    (degrees, sharing, words, memory).prop_map(|(d, s, w, m)| {
        let (tp, cp, pp, ep, dp, vpp) = d;
        let (zero, shard_group, keep, sp, micro_batch, microbatches) = s;
        let recompute = match w.3 {
            0 => Recompute::None,
            1 => Recompute::Full,
            2 => Recompute::Layers(3),
            3 => Recompute::Stages((0..pp).collect()),
            4 => Recompute::Selective(vec![Module::CoreAttn]),
            _ => Recompute::Selective(Module::ALL.to_vec()),
        };
        let order = [None, Some(Order::STAGES_INSIDE), Order::from_name("pp+dp+cp+tp")][w.4];
        let layout = Layout {
            tp,
            cp,
            pp,
            ep,
            etp: ep,
            dp,
            vpp,
            zero,
            keep,
            shard_group,
            sp,
            cp_method: CpMethod::ALL[w.0],
            micro_batch,
            microbatches,
            recompute,
            schedule: Schedule::ALL[w.1],
            order,
        };
        PlanFile {
            precision: Precision::ALL[w.2],
            global_batch: layout.global_batch(),
            devices: layout.devices() + 3,
            memory: Bound { limit_gib: m.0, margin: m.1 },
            layers_per_stage: (0..pp).map(|i| i + 1).collect(),
            layout,
            ..plan()
        }
    })
}

fn the_schema() -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/plan.schema.json");
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

proptest! {
    #[test]
    fn what_is_written_is_read_back_and_valid(p in layouts()) {
        let text = write(&p);
        prop_assert_eq!(&read(&text, "plan.json").unwrap(), &p);
        let v: Value = serde_json::from_str(&text).unwrap();
        prop_assert_eq!(schema::check(&the_schema(), &v), Ok(()));
    }

    #[test]
    fn any_text_is_read_or_refused(text in "\\PC{0,80}") {
        let _ = read(&text, "plan.json");
    }

    /// A value anywhere is replaced: the reader refuses or reads it, and takes nothing that the schema refuses.
    #[test]
    fn any_change_is_read_or_refused(at in 0usize..64, with in 0usize..16, key in "[a-z_]{1,12}") {
        let mut v = object();
        let values = [
            json!(null), json!(true), json!(0), json!(1), json!(-1), json!(4), json!(u64::MAX), json!(1e300),
            json!(0.5), json!(""), json!("none"), json!("stages:1+"), json!([]), json!([1, 1]), json!(["tp"]),
            json!({"tp": 1}),
        ];
        let map = v.as_object_mut().unwrap();
        let keys: Vec<String> = map.keys().cloned().collect();
        match keys.get(at) {
            Some(k) => map.insert(k.clone(), values[with].clone()),
            None => map.insert(key, values[with].clone()),
        };
        if read(&v.to_string(), "plan.json").is_ok() {
            prop_assert_eq!(schema::check(&the_schema(), &v), Ok(()));
        }
    }
}

/// The schema refuses by itself what one key can be wrong in.
#[test]
fn the_schema_refuses_mutated_plans() {
    let schema = the_schema();
    assert_eq!(schema["$schema"], "https://json-schema.org/draft/2020-12/schema");
    for (pointer, value) in [
        ("/version", json!(2)),
        ("/tp", json!(0)),
        ("/tp", json!("4")),
        ("/zero", json!(4)),
        ("/keep", json!(0)),
        ("/schedule", json!("1b1f")),
        ("/recompute", json!("sometimes")),
        ("/recompute", json!("layers:0")),
        ("/order", json!("ep")),
        ("/layout", json!(["tp", "tp"])),
        ("/layers_per_stage", json!([])),
        ("/model/sha256", json!("xyz")),
        ("/model/hash", json!("xyz")),
        ("/memory", json!({"margin": 1.0})),
        ("/extra", json!(1)),
        ("/stack", json!("(absent)")),
    ] {
        let v: Value = serde_json::from_str(&changed(pointer, value.clone())).unwrap();
        assert!(schema::check(&schema, &v).is_err(), "{pointer} = {value}");
        assert!(read(&v.to_string(), "plan.json").is_err(), "{pointer} = {value}");
    }
}

/// A plan for this machine, as `compile` takes it.
fn tiny(model: &str) -> PlanFile {
    let layout = Layout {
        tp: 2,
        pp: 1,
        dp: 2,
        zero: 3,
        shard_group: 2,
        micro_batch: 1,
        microbatches: 1,
        recompute: Recompute::None,
        ..plan().layout
    };
    PlanFile {
        model: ModelRef::of(Path::new(model), "llama").unwrap(),
        cluster: "this-machine".into(),
        stack: "autoshard".into(),
        precision: Precision::F32,
        seq_len: 16,
        global_batch: 2,
        devices: 4,
        memory: Bound::default(),
        layout,
        layers_per_stage: vec![2],
    }
}

fn golden() -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/goldens/llama_tiny").display().to_string()
}

fn autoshard(args: &[&str]) -> (i32, String, String) {
    let out = Command::new(env!("CARGO_BIN_EXE_autoshard")).args(args).output().unwrap();
    let text = |b: &[u8]| String::from_utf8(b.to_vec()).unwrap();
    (out.status.code().unwrap(), text(&out.stdout), text(&out.stderr))
}

fn file(folder: &Path, plan: &PlanFile) -> String {
    let path: PathBuf = folder.join("plan.json");
    std::fs::write(&path, write(plan)).unwrap();
    path.display().to_string()
}

#[test]
fn what_is_not_executed_is_refused_by_its_key() {
    let base = tiny(&golden());
    let ok = execution(&base).unwrap();
    assert_eq!((ok.degrees.dp, ok.degrees.fsdp, ok.degrees.tp, ok.batch, ok.seq_len), (1, 2, 2, 2, 16));
    let layout = |change: fn(&mut Layout)| {
        let mut p = base.clone();
        change(&mut p.layout);
        p
    };
    for (plan, key) in [
        (PlanFile { cluster: "dgx-h100".into(), ..base.clone() }, "cluster=dgx-h100"),
        (PlanFile { precision: Precision::Fp8, ..base.clone() }, "precision=fp8"),
        (layout(|l| l.pp = 2), "pp=2"),
        (layout(|l| l.cp = 2), "cp=2"),
        (layout(|l| l.ep = 2), "ep=2"),
        (layout(|l| l.vpp = 2), "vpp=2"),
        (layout(|l| l.microbatches = 4), "microbatches=4"),
        (layout(|l| l.zero = 1), "zero=1"),
        (layout(|l| l.keep = true), "keep=1"),
        (layout(|l| l.recompute = Recompute::Full), "recompute=full"),
        (layout(|l| l.order = Order::from_name("dp+tp")), "layout=fsdp+tp"),
        (layout(|l| l.shard_group = 4), "shard_group=4"),
    ] {
        let e = execution(&plan).unwrap_err().to_string();
        assert!(e.starts_with(key) && e.contains("plan with"), "{key}: {e}");
    }
    // Without shares any zero is the same.
    let alone = layout(|l| (l.zero, l.shard_group) = (1, 1));
    assert_eq!((execution(&alone).unwrap().degrees.dp, execution(&alone).unwrap().degrees.fsdp), (2, 1));
}

#[test]
fn a_plan_runs_as_its_mesh_does() {
    let dir = tempfile::tempdir().unwrap();
    let model = golden();
    let plan = file(dir.path(), &tiny(&model));
    let asx = dir.path().join("tiny.asx").display().to_string();
    let (code, stdout, stderr) = autoshard(&["compile", &model, "--plan", &plan, "-o", &asx]);
    assert_eq!(code, 0, "{stdout}{stderr}");
    assert!(stderr.contains("--plan"), "{stderr}");
    let losses = |args: &[&str]| {
        let run = ["--steps", "2", "--data", "golden", "--json"];
        let (code, stdout, stderr) = autoshard(&[&["run"], args, &run].concat());
        assert_eq!(code, 0, "{args:?}: {stdout}{stderr}");
        let last: Value = serde_json::from_str(stdout.lines().last().unwrap()).unwrap();
        last["summary"]["losses"].clone()
    };
    let mesh = losses(&[&model, "--mesh", "fsdp=2,tp=2", "--batch", "2", "--seq-len", "16"]);
    assert_eq!(losses(&[&asx]), mesh);
    assert_eq!(losses(&[&model, "--plan", &plan]), mesh);
    let (code, _, stderr) = autoshard(&["compile", &model, "--plan", &plan, "--batch", "4", "-o", &asx]);
    assert!(code == 2 && stderr.contains("--batch is 4"), "{stderr}");
    let (code, _, stderr) = autoshard(&["run", &asx, "--plan", &plan]);
    assert!(code == 2 && stderr.contains("leave --plan out"), "{stderr}");
}

#[test]
fn a_changed_model_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let config = dir.path().join("config.json");
    let text = std::fs::read_to_string(Path::new(&golden()).join("config.json")).unwrap();
    std::fs::write(&config, &text).unwrap();
    let model = config.display().to_string();
    let mut p = tiny(&model);
    // Found beside the plan, wherever the command runs.
    p.model.file = "config.json".into();
    let plan = file(dir.path(), &p);
    let (code, stdout, stderr) = autoshard(&["why", &plan]);
    assert_eq!(code, 0, "{stdout}{stderr}");
    std::fs::write(&config, text + "\n").unwrap();
    for args in [&["why", &plan][..], &["diff", &plan, &plan], &["compile", &model, "--plan", &plan, "-o", "x.asx"]] {
        let (code, _, stderr) = autoshard(args);
        for part in [p.model.sha256.as_str(), "is not the configuration that the plan was made for", "plan again"] {
            assert!(code == 1 && stderr.contains(part), "{args:?}: {stderr}");
        }
    }
    std::fs::remove_file(&config).unwrap();
    let (code, _, stderr) = autoshard(&["why", &plan]);
    assert!(code == 1 && stderr.contains("neither here nor beside the plan"), "{stderr}");
}

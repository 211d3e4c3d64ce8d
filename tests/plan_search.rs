//! `plan` where something is left open: what is searched, what is told of it, the files that it writes, and every
//! answer to a question that has none. `AUTOSHARD_BLESS=1 cargo test --test plan_search` writes the tables anew.

#[path = "common/plan_golden.rs"]
mod plan_golden;

use plan_golden::golden;
use serde_json::Value;
use std::collections::BTreeSet;
use std::process::Command;

const LLAMA_8B: &str = "tests/data/models/meta-llama-3.1-8b.json";
const LLAMA_70B: &str = "tests/data/models/meta-llama-3.1-70b.json";

/// Every decision of CLI.md's list, so that nothing is left to search.
const DECIDED: &str = "tp=2,cp=1,pp=2,ep=1,dp=2,vpp=1,mbs=1,zero=1,shard_group=2,recompute=none,schedule=1f1b";

/// Runs the command in the folder of this repository: exit code, stdout, stderr.
fn autoshard(args: &[&str]) -> (i32, String, String) {
    let out = Command::new(env!("CARGO_BIN_EXE_autoshard"))
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .args(args)
        .output()
        .unwrap();
    let text = |b: &[u8]| String::from_utf8(b.to_vec()).unwrap();
    (out.status.code().unwrap(), text(&out.stdout), text(&out.stderr))
}

/// Runs `plan` of a model on DGX H100s with sequences of 8,192.
fn plan(model: &str, more: &[&str]) -> (i32, String, String) {
    let mut args = vec!["plan", "--model", model, "--cluster", "dgx-h100", "--seq-len", "8192"];
    args.extend(more);
    autoshard(&args)
}

/// What `plan --json` prints.
fn planned(model: &str, more: &[&str]) -> Value {
    let mut args = more.to_vec();
    args.push("--json");
    let (code, stdout, stderr) = plan(model, &args);
    assert_eq!(code, 0, "{more:?}: {stderr}");
    serde_json::from_str(&stdout).unwrap()
}

/// Eight devices, 64 sequences: a few thousand plans.
fn small(more: &[&str]) -> Value {
    let mut args = vec!["--devices", "8", "--global-batch", "64"];
    args.extend(more);
    planned(LLAMA_8B, &args)
}

fn number(v: &Value, pointer: &str) -> f64 {
    v.pointer(pointer).and_then(Value::as_f64).unwrap_or_else(|| panic!("no number at {pointer}: {v}"))
}

fn step(v: &Value) -> f64 {
    number(v, "/prediction/step_seconds")
}

fn has_keys(v: &Value, keys: &[&str]) {
    for key in keys {
        assert!(v.get(key).is_some(), "{key} is not in {v}");
    }
}

fn path(dir: &tempfile::TempDir, name: &str) -> String {
    dir.path().join(name).display().to_string()
}

/// `--fix` of every decision of a plan.
fn all_decisions(plan: &Value) -> String {
    let of = |key: &str| plan[key].to_string().trim_matches('"').to_string();
    let flag = |key: &str| u8::from(plan[key].as_bool().unwrap());
    let same = ["tp", "cp", "pp", "ep", "etp", "dp", "zero", "shard_group", "cp_method", "microbatches", "recompute"];
    let mut words: Vec<String> = same.iter().map(|key| format!("{key}={}", of(key))).collect();
    words.extend([format!("mbs={}", of("micro_batch")), format!("schedule={}", of("schedule"))]);
    words.extend([format!("vpp={}", of("vpp")), format!("layout={}", of("order"))]);
    words.extend([format!("sp={}", flag("sp")), format!("keep={}", flag("keep"))]);
    words.join(",")
}

#[test]
fn what_is_wholly_decided_is_predicted() {
    let v = small(&["--fix", DECIDED]);
    for (pointer, expected) in [
        ("/search/candidates", Value::from(1)),
        ("/search/evaluated", 1.into()),
        ("/search/simulated", 1.into()),
        ("/search/optimal", false.into()),
        ("/search/lower_bound_step_seconds", Value::Null),
        ("/plan/tp", 2.into()),
        ("/plan/pp", 2.into()),
        ("/plan/dp", 2.into()),
        ("/plan/microbatches", 32.into()),
    ] {
        assert_eq!(v.pointer(pointer), Some(&expected), "{pointer}");
    }
    assert_eq!(v["alternatives"], serde_json::json!([]));
}

#[test]
fn what_is_left_open_is_searched() {
    let (all, some, one) = (small(&[]), small(&["--fix", "tp=2,recompute=none"]), small(&["--fix", DECIDED]));
    assert_eq!((&some["plan"]["tp"], &some["plan"]["recompute"]), (&2.into(), &"none".into()));
    assert!(number(&some, "/search/candidates") > 1.0);
    assert!(number(&all, "/search/candidates") > number(&some, "/search/candidates"));
    // A part of a space has nothing better than the whole.
    assert!(step(&all) <= step(&some) && step(&some) <= step(&one), "{} {} {}", step(&all), step(&some), step(&one));
    for v in [&all, &some] {
        assert_eq!(v["search"]["optimal"], true);
        let bound = number(v, "/search/lower_bound_step_seconds");
        assert!(bound > 0.0 && bound <= step(v), "{bound}");
        assert_eq!(v["prediction"]["fits"], true);
    }
    let (code, text, _) = plan(LLAMA_8B, &["--devices", "8", "--global-batch", "64", "--fix", "tp=2"]);
    assert_eq!(code, 0);
    for part in ["tp            2              fixed", "  found\n", "optimal: of these plans", "search: "] {
        assert!(text.contains(part), "{part:?} is not in:\n{text}");
    }
}

#[test]
fn recompute_auto_is_what_the_search_does_anyway() {
    let (auto, open) = (small(&["--fix", "recompute=auto"]), small(&[]));
    assert_eq!((&auto["plan"], step(&auto)), (&open["plan"], step(&open)));
    // With everything else decided only the recomputation is searched, and it fits where none does not.
    let rest = "tp=1,cp=1,pp=1,ep=1,dp=8,vpp=1,mbs=1,zero=1,shard_group=8,schedule=1f1b";
    let none = small(&["--fix", &format!("{rest},recompute=none")]);
    let auto = small(&["--fix", &format!("{rest},recompute=auto")]);
    assert_eq!((&none["prediction"]["fits"], &auto["prediction"]["fits"]), (&false.into(), &true.into()));
    assert_ne!(auto["plan"]["recompute"], "none");
    assert_eq!(auto["search"]["optimal"], true);
}

#[test]
fn the_json_has_alternatives_and_what_the_search_did() {
    let v = small(&["--top", "3"]);
    has_keys(&v, &["plan", "prediction", "alternatives", "search"]);
    let search = ["candidates", "evaluated", "simulated", "seconds", "optimal", "lower_bound_step_seconds"];
    has_keys(&v["search"], &search);
    let alternatives = v["alternatives"].as_array().unwrap();
    assert_eq!(alternatives.len(), 2);
    let (mut last, mut plans) = (step(&v), vec![&v["plan"]]);
    for one in alternatives {
        assert!(step(one) >= last && !plans.contains(&&one["plan"]), "{one}");
        (last, _) = (step(one), plans.push(&one["plan"]));
    }
    for one in alternatives.iter().chain([&v]) {
        let plan = [
            "tp",
            "cp",
            "pp",
            "ep",
            "dp",
            "vpp",
            "zero",
            "shard_group",
            "micro_batch",
            "microbatches",
            "recompute",
            "schedule",
            "layers_per_stage",
            "devices_used",
            "layout",
            "mesh",
        ];
        has_keys(&one["plan"], &plan);
        let prediction = [
            "step_seconds",
            "step_seconds_low",
            "step_seconds_high",
            "tokens_per_second_per_device",
            "mfu",
            "mfu_full_attention",
            "hfu",
            "peak_memory_gib",
            "memory_gib",
            "stages",
            "bubble_seconds",
            "exposed_communication_seconds",
            "goodput",
        ];
        has_keys(&one["prediction"], &prediction);
        has_keys(&one["prediction"]["memory_gib"], &["allocated", "reserved", "device"]);
        has_keys(&one["prediction"]["stages"][0], &["peak_memory_gib", "parts"]);
    }
    let (_, text, _) = plan(LLAMA_8B, &["--devices", "8", "--global-batch", "64", "--top", "3"]);
    let told = text.split("the next best plans").nth(1).unwrap();
    assert_eq!(told.lines().skip(1).filter(|line| line.contains('%')).count(), 2, "{told}");
}

#[test]
fn every_plan_of_its_own_finds_the_same() {
    let (searched, all) = (small(&[]), small(&["--exhaustive"]));
    assert_eq!((&searched["plan"], step(&searched)), (&all["plan"], step(&all)));
    assert!(number(&all, "/search/evaluated") > number(&searched, "/search/evaluated"));
}

#[test]
fn nothing_that_fits_is_an_answer_with_numbers() {
    let question = ["--devices", "8", "--global-batch", "64", "--json"];
    let (code, stdout, stderr) = plan(LLAMA_70B, &question);
    assert_eq!(code, 1, "{stderr}");
    let v: Value = serde_json::from_str(&stdout).unwrap();
    let keys: Vec<&String> = v.as_object().unwrap().keys().collect();
    assert_eq!(keys, ["infeasible"]);
    let reason = v.pointer("/infeasible/reason").and_then(Value::as_str).unwrap();
    assert!(reason.contains("most of it is") && reason.contains("at most 8 devices"), "{reason}");
    let smallest = number(&v, "/infeasible/smallest_memory_gib");
    assert!(smallest * 1.08 > 79.65, "{smallest}");
    let fewest = number(&v, "/infeasible/fewest_devices");
    for part in ["nothing fits", "that plan: --fix ", &format!("--devices {fewest} or more")] {
        assert!(stderr.contains(part), "{part:?} is not in:\n{stderr}");
    }
    // It is true: on so many something fits, on one less nothing does.
    let on = |devices: f64| plan(LLAMA_70B, &["--devices", &devices.to_string(), "--global-batch", "64"]).0;
    assert_eq!((on(fewest), on(fewest - 1.0)), (0, 1));
    let (code, stdout, stderr) = plan(LLAMA_8B, &["--devices", "8", "--memory-limit", "1", "--fix", "zero=0"]);
    assert_eq!((code, stdout.as_str()), (1, ""));
    assert!(stderr.contains("more memory a device") && stderr.contains("1.00 GiB of the limit"), "{stderr}");
}

#[test]
fn rejected_values_are_told_with_their_rule() {
    let v = planned(LLAMA_8B, &["--devices", "64", "--global-batch", "64", "--rejected"]);
    let rejected = v["rejected"].as_array().unwrap();
    has_keys(&rejected[0], &["decision", "values", "rule"]);
    let mut args = vec!["--devices", "64", "--global-batch", "64", "--rejected"];
    let (code, text, stderr) = plan(LLAMA_8B, &args);
    assert_eq!(code, 0, "{stderr}");
    let told = text.split("values that no layout can have:").nth(1).unwrap();
    for part in ["tp=64: tp=64 does not split 32 heads", "pp=64: pp=64·vpp=1 = 64 chunks are more than the 32 layers"]
    {
        assert!(told.contains(part), "{part:?} is not in:\n{told}");
    }
    args.pop();
    assert!(!plan(LLAMA_8B, &args).1.contains("values that no layout can have"));
}

#[test]
fn less_memory_takes_no_less_time() {
    let v = small(&["--pareto"]);
    let points = v["pareto"].as_array().unwrap();
    assert!(points.len() > 1);
    assert_eq!((&points[0]["memory_share"], &points[0]["plan"]), (&1.0.into(), &v["plan"]));
    let room = number(&v, "/prediction/memory_limit_gib");
    let mut last = step(&v);
    for point in points.iter().filter(|p| p.get("plan").is_some()) {
        assert!(step(point) >= last, "{point}");
        last = step(point);
        let needed = 1.08 * number(point, "/prediction/peak_memory_gib");
        assert!(needed <= number(point, "/memory_share") * room, "{point}");
    }
    assert!(last > step(&v), "a quarter of the memory costs nothing?");
}

#[test]
fn cost_uses_fewer_devices_where_they_are_better_used() {
    let of =
        |objective: &str| planned(LLAMA_8B, &["--devices", "64", "--global-batch", "64", "--objective", objective]);
    let (fast, cheap) = (of("step-time"), of("cost"));
    let cost = |v: &Value| step(v) * number(v, "/plan/devices_used");
    assert!(step(&fast) < step(&cheap) && cost(&cheap) < cost(&fast), "{} {}", cost(&fast), cost(&cheap));
    assert!(number(&cheap, "/search/lower_bound_step_seconds") <= step(&cheap));
}

#[test]
fn a_plan_file_is_read_again_and_takes_the_same_time() {
    let dir = tempfile::tempdir().unwrap();
    let (a, b) = (path(&dir, "a.json"), path(&dir, "b.json"));
    let best = small(&["-o", &a, "--fix", "pp=2"]);
    let written: Value = serde_json::from_str(&std::fs::read_to_string(&a).unwrap()).unwrap();
    assert_eq!(written, best["plan"]);
    small(&["-o", &b, "--fix", DECIDED]);
    let shown = |s: f64| autoshard::report::seconds(s);
    let (code, why, stderr) = autoshard(&["why", &a]);
    assert!(code == 0 && why.contains(&format!("a step takes {}", shown(step(&best)))), "{why}{stderr}");
    let (code, same, stderr) = autoshard(&["diff", &a, &a]);
    assert!(code == 0 && same.contains("no decision differs"), "{same}{stderr}");
    let (code, diff, stderr) = autoshard(&["diff", &a, &b]);
    assert!(code == 0 && diff.contains("decisions that differ"), "{diff}{stderr}");
    // Decisions of a plan of one stage say all of it.
    let found = small(&["--fix", "pp=1"]);
    let again = small(&["--fix", &all_decisions(&found["plan"])]);
    assert_eq!((&again["plan"], step(&again)), (&found["plan"], step(&found)));
    assert_eq!(again["search"]["candidates"], 1);
}

#[test]
fn launch_files_are_written_for_every_framework() {
    let dir = tempfile::tempdir().unwrap();
    for framework in ["megatron", "torchtitan", "deepspeed", "maxtext"] {
        let folder = path(&dir, framework);
        let v = small(&["--emit", framework, "--emit-dir", &folder]);
        has_keys(&v["emitted"], &["files", "cannot"]);
        let files = v.pointer("/emitted/files").and_then(Value::as_array).unwrap();
        assert!(!files.is_empty(), "{framework}");
        for file in files {
            let text = std::fs::read_to_string(file.as_str().unwrap()).unwrap();
            assert!(text.lines().count() > 5, "{framework}: {text}");
        }
    }
}

/// Losses of three steps.
fn losses(args: &[&str]) -> Value {
    let mut all = vec!["run"];
    all.extend(args);
    all.extend(["--steps", "3", "--json"]);
    let (code, stdout, stderr) = autoshard(&all);
    assert_eq!(code, 0, "{args:?}: {stderr}");
    let last: Value = serde_json::from_str(stdout.lines().last().unwrap()).unwrap();
    assert_eq!(last.pointer("/summary/losses").and_then(Value::as_array).unwrap().len(), 3);
    last["summary"]["losses"].clone()
}

#[test]
fn a_plan_for_this_machine_is_compiled_and_run_unchanged() {
    let dir = tempfile::tempdir().unwrap();
    let (file, executable, model) = (path(&dir, "p.json"), path(&dir, "p.asx"), "examples/tiny-llama");
    let here = ["plan", "--cluster", "this-machine", "--model", model, "--devices", "8"];
    // The best plan, and one that a decision makes another.
    for more in [vec![], vec!["--fix", "tp=4", "--seq-len", "32"]] {
        let (code, stdout, stderr) = autoshard(&[&here[..], &more, &["-o", &file, "--json"]].concat());
        assert_eq!(code, 0, "{stderr}");
        let v: Value = serde_json::from_str(&stdout).unwrap();
        assert_eq!((&v["search"]["optimal"], &v["plan"]["devices_used"]), (&true.into(), &8.into()));
        let (code, _, stderr) = autoshard(&["compile", model, "--plan", &file, "-o", &executable]);
        assert_eq!(code, 0, "{stderr}");
        let planned = losses(&[model, "--plan", &file]);
        let sp = if v["plan"]["sp"] == true { ",sp=1" } else { ",sp=0" };
        let mesh = v["plan"]["mesh"].as_str().unwrap().to_string() + if mesh_has_tp(&v) { sp } else { "" };
        let (batch, length) = (v["plan"]["global_batch"].to_string(), v["plan"]["seq_len"].to_string());
        let by_hand = losses(&[model, "--mesh", &mesh, "--batch", &batch, "--seq-len", &length]);
        assert_eq!(planned, by_hand, "{mesh}");
        assert_eq!(planned, losses(&[&executable]), "{mesh}");
    }
}

fn mesh_has_tp(v: &Value) -> bool {
    v["plan"]["tp"] != 1
}

#[test]
fn devices_may_idle_and_that_is_said() {
    let question = ["--devices", "7", "--global-batch", "4"];
    let v = planned(LLAMA_8B, &question);
    assert!(number(&v, "/plan/devices_used") < 7.0 && v["plan"]["devices"] == 7, "{}", v["plan"]);
    let (_, text, _) = plan(LLAMA_8B, &question);
    assert!(text.contains("of 7 devices idle: tp·cp·pp·dp = "), "{text}");
    // 641 is a prime: no plan uses 8·641 devices with 1,024 sequences.
    let (code, text, _) =
        plan(LLAMA_8B, &["--devices", "5128", "--global-batch", "1024", "--fix", "pp=1,recompute=none"]);
    assert!(code == 0 && text.contains("search: no candidate on 5,128 devices and "), "{text}");
}

/// The decisions that a plan prints are taken back, also where devices idle, and where a schedule of chunks was asked
/// for it has stages.
#[test]
fn what_is_printed_as_fix_is_taken_back() {
    for (devices, fix) in [("16", "pp=5"), ("8", "schedule=zb-v"), ("7", "tp=2")] {
        let given = ["--devices", devices, "--global-batch", "32", "--fix"];
        let found = planned(LLAMA_8B, &[&given[..], &[fix]].concat());
        assert!(fix != "schedule=zb-v" || found["plan"]["pp"].as_u64() > Some(1), "{found}");
        let again = planned(LLAMA_8B, &[&given[..], &[&all_decisions(&found["plan"])]].concat());
        assert_eq!(again["search"]["candidates"], 1);
        for key in ["tp", "cp", "pp", "dp", "zero", "micro_batch", "devices_used"] {
            assert_eq!(again["plan"][key], found["plan"][key], "{fix}: {key}");
        }
        if again["plan"]["layers_per_stage"] == found["plan"]["layers_per_stage"] {
            assert!((step(&again) / step(&found) - 1.0).abs() < 1e-12, "{fix}");
        }
    }
}

/// A batch of which no module could hold a single micro-batch is planned in smaller ones.
#[test]
fn batches_beyond_any_micro_batch_are_planned() {
    let few = "tp=2,cp=1,pp=1,zero=1";
    for (model, batch) in [(LLAMA_8B, "536870912"), ("tests/data/models/qwen3-30b-a3b.json", "1048576")] {
        let found = planned(model, &["--devices", "64", "--global-batch", batch, "--fix", few]);
        assert_eq!(found["plan"]["global_batch"].to_string(), batch);
    }
}

#[test]
fn odd_questions_have_an_answer() {
    for (more, part) in [
        (&["--devices", "64", "--seq-len", "1"][..], "optimal: "),
        (&["--devices", "64", "--seq-len", "4097", "--global-batch", "127"], "optimal: "),
        (&["--devices", "64", "--global-batch", "4"], "optimal: "),
    ] {
        let args = [&["plan", "--model", LLAMA_8B, "--cluster", "dgx-h100"], more].concat();
        let (code, stdout, stderr) = autoshard(&args);
        assert!(code == 0 && stdout.contains(part), "{more:?}: {stdout}{stderr}");
    }
    let args = ["plan", "--model", LLAMA_8B, "--cluster", "selene", "--devices", "8192", "--fix", "pp=1,zero=1,mbs=1"];
    let (code, _, stderr) = autoshard(&args);
    assert!(code == 0 && stderr.contains("note: selene has 4480 devices"), "{stderr}");
    // Experts are split over ranks that the batch has no sequences for.
    let (code, stdout, stderr) =
        plan("tests/data/models/mixtral-8x7b-v0.1.json", &["--devices", "16", "--global-batch", "4", "--fix", "ep=8"]);
    assert!(code == 0 && stdout.contains("ep            8              fixed"), "{stdout}{stderr}");
}

#[test]
fn what_cannot_be_names_what_can() {
    for (more, part) in [
        (&["--devices", "0"][..], "a whole number from 1"),
        (&["--devices", "-3"], "a whole number from 1"),
        (&[], "--devices is missing"),
        (&["--devices", "8", "--fix", "tp=3"], "tp=3 does not split 32 heads"),
        (&["--devices", "8", "--fix", "tp=3"], "or split layers instead"),
        (&["--devices", "8", "--fix", "tp=3,cp=5"], "and cp=5 does not split 8192 positions"),
        (&["--devices", "8", "--fix", "tp=16"], "16 does not divide 8 devices"),
        (&["--devices", "8", "--fix", "tp=8,dp=2"], "dp would be 1"),
        (&["--devices", "8", "--fix", "dp=3"], "the batch could be 6 or 9"),
        (&["--devices", "8", "--fix", "mbs=3"], "mbs 1,2,4,8"),
        (&["--devices", "8", "--fix", "keep=1,zero=2"], "keep=1 and zero=2 contradict each other"),
        (&["--devices", "8", "--fix", "shard_group=3"], "shard_group can be 1,2,4,8"),
        (&["--devices", "8", "--fix", "recompute=layers:99"], "the model has 32 layers"),
        (&["--devices", "8", "--fix", "recompute=stages:3+2,pp=4"], "there are 4 stages"),
        (&["--devices", "8", "--fix", "schedule=zb-v,vpp=3"], "set vpp=2"),
        (&["--devices", "8", "--fix", "schedule=interleaved,pp=2,microbatches=3"], "microbatches can be 2 or 4"),
        (&["--devices", "8", "--fix", "recompute=ful"], "did you mean `full`?"),
        (&["--devices", "8", "--fix", "cp_method=ulysse"], "did you mean `ulysses`?"),
        (&["--devices", "8", "--stack", "torchtitan-2023"], "did you mean `torchtitan-2024`?"),
        (&["--devices", "8", "--objectiv", "cost"], "'--objective'"),
        (&["--devices", "8", "--top", "0"], "a whole number from 1"),
        (&["--devices", "8", "--emit-dir", "x"], "--emit"),
        (&["--devices", "8", "--sweep", "devices=8..16"], "leave one out"),
        (&["--sweep", "device=8..16"], "did you mean `devices`?"),
        (&["--sweep", "devices=8..16", "--top", "2"], "--sweep makes many"),
        (&["--devices", "4096", "--global-batch", "4096", "--exhaustive"], "at most 512 devices"),
    ] {
        let (code, stdout, stderr) = plan(LLAMA_8B, more);
        assert!(stderr.contains(part), "{more:?}: {part:?} is not in:\n{stderr}");
        assert_eq!((code, stdout.as_str()), (2, ""), "{more:?}: {stderr}");
        assert!(!stderr.contains("panicked"), "{stderr}");
    }
}

#[test]
fn sequences_that_no_layout_can_have_are_refused() {
    let long = |model: &str, positions: &str| {
        autoshard(&["plan", "--model", model, "--cluster", "dgx-h100", "--devices", "64", "--seq-len", positions])
    };
    let (code, _, stderr) = long("tests/data/models/gpt3-175b.json", "4096");
    assert!(code == 2 && stderr.contains("the 2048 positions that the model has a trained table of"), "{stderr}");
    let (code, _, stderr) = long(LLAMA_8B, "10000000");
    assert!(code == 2 && stderr.contains("give shorter sequences"), "{stderr}");
}

#[test]
fn a_sweep_marks_where_the_kind_of_plan_changes() {
    let sweep = |more: &[&str]| {
        let (code, stdout, stderr) = plan(LLAMA_8B, more);
        assert_eq!(code, 0, "{stderr}");
        stdout
    };
    let whole = ["--sweep", "devices=8..1024", "--global-batch", "1024"];
    golden("sweep.8b.txt", &sweep(&whole));
    let fsdp = sweep(&["--sweep", "devices=4..16384", "--global-batch", "2048", "--fix", "zero=3"]);
    golden("sweep.8b.fsdp.txt", &fsdp);
    // FSDP first, in groups once there are many ranks, other axes when there is a sequence for each rank.
    let order: Vec<usize> = ["FSDP", "HSDP", "− PP", "+ TP", "+ CP"].iter().filter_map(|w| fsdp.rfind(w)).collect();
    assert!(order.len() == 5 && order.is_sorted(), "{fsdp}");
    // The rows are the plans of single questions, and more devices are never slower.
    let v: Value = serde_json::from_str(&sweep(&[&whole[..], &["--json"]].concat())).unwrap();
    let rows = v["sweep"].as_array().unwrap();
    assert_eq!(rows.len(), 8);
    assert!(rows.windows(2).all(|w| step(&w[1]) < step(&w[0])));
    let one = planned(LLAMA_8B, &["--devices", "64", "--global-batch", "1024"]);
    assert_eq!((&rows[3]["plan"], step(&rows[3])), (&one["plan"], step(&one)));
    let kinds: BTreeSet<String> = rows.iter().map(|r| r["kinds"].to_string()).collect();
    assert!(kinds.len() > 2, "{kinds:?}");
}

//! Launch files: golden text, flags against the tools' own tables, and no decision lost.

use autoshard::decoder::Decoder;
use autoshard::emit::{emit, Emitted, Framework, Launch};
use autoshard::hardware;
use autoshard::predict::fix::parse;
use autoshard::predict::settings::{settle, Job};
use autoshard::predict::{facts, CpMethod, Layout, Module, Order, Precision, Recompute, Role, Schedule};
use proptest::prelude::*;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

fn here(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

fn model(name: &str) -> Decoder {
    Decoder::load(&here("tests/data/models").join(format!("{name}.json"))).unwrap()
}

/// A plan whose launch files are kept.
struct Case {
    name: &'static str,
    model: &'static str,
    cluster: &'static str,
    devices: u64,
    batch: u64,
    seq_len: u64,
    fix: &'static str,
    layers: Vec<u64>,
    precision: Precision,
}

fn cases() -> Vec<Case> {
    let mut llama_stages = vec![8; 16];
    (llama_stages[0], llama_stages[15]) = (7, 7);
    let mut deepseek_stages = vec![4; 16];
    (deepseek_stages[0], deepseek_stages[1], deepseek_stages[2]) = (3, 3, 3);
    vec![
        Case {
            name: "llama-405b",
            model: "meta-llama-3.1-405b",
            cluster: "meta-llama3-roce-24k",
            devices: 16_384,
            batch: 2048,
            seq_len: 8192,
            fix: "tp=8,cp=1,pp=16,vpp=8,zero=1,schedule=interleaved,layout=tp+cp+pp+dp",
            layers: llama_stages,
            precision: Precision::Bf16,
        },
        Case {
            name: "deepseek-v3",
            model: "deepseek-v3",
            cluster: "dgx-h800",
            devices: 2048,
            batch: 15_360,
            seq_len: 4096,
            fix: "pp=16,ep=64,zero=1,schedule=dualpipe-v,recompute=selective:mla_up_proj+layernorm",
            layers: deepseek_stages,
            precision: Precision::Fp8,
        },
        Case {
            name: "llama-8b-hsdp",
            model: "meta-llama-3.1-8b",
            cluster: "dgx-h100",
            devices: 64,
            batch: 128,
            seq_len: 8192,
            fix: "zero=3,shard_group=8,mbs=2,recompute=selective:op_sac",
            layers: vec![32],
            precision: Precision::Bf16,
        },
        Case {
            name: "mixtral-etp",
            model: "mixtral-8x7b-v0.1",
            cluster: "dgx-h100",
            devices: 64,
            batch: 256,
            seq_len: 4096,
            fix: "tp=2,cp=2,ep=8,etp=1,zero=1,cp_method=allgather",
            layers: vec![32],
            precision: Precision::Bf16,
        },
        Case {
            name: "llama-70b-counts",
            model: "meta-llama-3.1-70b",
            cluster: "dgx-h100",
            devices: 256,
            batch: 512,
            seq_len: 8192,
            fix: "tp=8,pp=4,zero=1,recompute=stages:9+6+3+0",
            layers: vec![20; 4],
            precision: Precision::Bf16,
        },
    ]
}

/// The layout of a case, settled as the command line does.
fn layout(case: &Case, decoder: &Decoder) -> Layout {
    let facts = facts::of(decoder);
    let job = Job {
        facts: &facts,
        devices: case.devices,
        seq_len: Some(case.seq_len),
        global_batch: Some(case.batch),
        stack: "megatron-core-2025",
        order: Order::STAGES_OUTSIDE,
    };
    settle(&parse(case.fix).unwrap(), &job).unwrap().layout
}

fn of_case(case: &Case, framework: Framework) -> Emitted {
    let decoder = model(case.model);
    let layout = layout(case, &decoder);
    let file = PathBuf::from(format!("models/{}/config.json", case.model));
    let launch = Launch {
        decoder: &decoder,
        model_file: &file,
        cluster: &hardware::cluster(case.cluster).unwrap(),
        layout: &layout,
        layers_per_stage: &case.layers,
        seq_len: case.seq_len,
        global_batch: case.batch,
        precision: case.precision,
    };
    emit(framework, &launch)
}

/// Files one behind another, each under its name, then what cannot be said.
fn printed(e: &Emitted) -> String {
    let mut out = String::new();
    for (name, text) in &e.files {
        out += &format!("==> {name} <==\n{text}");
    }
    out + "==> cannot <==\n" + &e.cannot.iter().map(|c| format!("{c}\n")).collect::<String>()
}

#[test]
fn launch_files_are_those_that_are_kept() {
    for case in cases() {
        for framework in Framework::ALL {
            let got = printed(&of_case(&case, framework));
            let path = here("tests/golden/launch").join(format!("{}.{framework}.txt", case.name));
            if std::env::var_os("AUTOSHARD_BLESS").is_some() {
                std::fs::write(&path, &got).unwrap();
            }
            let want = std::fs::read_to_string(&path).unwrap_or_default();
            assert!(got == want, "{} differs; AUTOSHARD_BLESS=1 accepts the new text:\n{got}", path.display());
        }
    }
}

/// Words of a line of a shell script as the shell takes them apart.
fn words(line: &str) -> Vec<String> {
    let (mut out, mut word, mut inside, mut any) = (Vec::new(), String::new(), false, false);
    let mut chars = line.chars();
    while let Some(c) = chars.next() {
        match c {
            '\'' => (inside, any) = (!inside, true),
            '\\' if !inside => word.extend(chars.next()),
            c if c.is_whitespace() && !inside => {
                if any || !word.is_empty() {
                    out.push(std::mem::take(&mut word));
                }
                any = false;
            }
            c => word.push(c),
        }
    }
    if any || !word.is_empty() {
        out.push(word);
    }
    out
}

/// What a framework is told: flags of arrays in scripts, keys of configuration files by their paths.
fn told(framework: Framework, e: &Emitted) -> Vec<(String, Vec<String>)> {
    let file = |end: &str| e.files.iter().find(|(name, _)| name.ends_with(end)).map(|(_, text)| text.as_str());
    match framework {
        Framework::Megatron | Framework::TorchTitan => {
            let script = file(".sbatch").unwrap();
            let lines = script.lines().filter_map(|l| l.strip_prefix("  "));
            lines.map(|l| (words(l).remove(0), words(l).split_off(1))).collect()
        }
        Framework::DeepSpeed => {
            let mut out = Vec::new();
            leaves(String::new(), &serde_json::from_str(file(".json").unwrap()).unwrap(), &mut out);
            out
        }
        Framework::MaxText => {
            let lines = file(".yml").unwrap().lines().filter(|l| !l.starts_with('#'));
            lines.map(|l| l.split_once(": ").unwrap()).map(|(k, v)| (k.to_string(), vec![v.to_string()])).collect()
        }
    }
}

fn leaves(path: String, value: &Value, out: &mut Vec<(String, Vec<String>)>) {
    match value {
        Value::Object(o) => {
            for (key, v) in o {
                leaves(if path.is_empty() { key.clone() } else { format!("{path}.{key}") }, v, out);
            }
        }
        v => out.push((path, vec![v.to_string()])),
    }
}

/// The table of a tool's flags, as `scripts/check-launch` wrote it.
fn table(framework: Framework) -> Value {
    let path = here("tests/data/launch").join(format!("{framework}.json"));
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

/// Why a value is none of a flag's, if it is not.
fn illegal(entry: &Value, values: &[String]) -> Option<String> {
    let kind = entry["type"].as_str().unwrap_or("?");
    let many = entry.get("nargs").is_some();
    match (kind, values.len()) {
        ("flag", 0) => return None,
        ("flag", _) | (_, 0) => return Some(format!("{} values of a {kind}", values.len())),
        (_, n) if n > 1 && !many => return Some(format!("{n} values where one is read")),
        _ => {}
    }
    let choices: Vec<&str> =
        entry.get("choices").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str).collect();
    values.iter().find_map(|v| {
        let fits = match kind {
            "int" => v.parse::<i64>().is_ok(),
            "float" => v.parse::<f64>().is_ok(),
            "bool" => matches!(v.as_str(), "true" | "false"),
            "list" => v.starts_with('['),
            _ => true,
        };
        let chosen = choices.is_empty() || choices.contains(&v.as_str());
        (!fits || !chosen).then(|| format!("{v} is no {kind} of {choices:?}"))
    })
}

fn hold(framework: Framework, table: &Value, e: &Emitted) {
    for (name, values) in told(framework, e) {
        let entry = table["flags"].get(&name);
        let entry = entry.unwrap_or_else(|| panic!("{} has no {name}", framework.tool()));
        if let Some(why) = illegal(entry, &values) {
            panic!("{}: {name} {values:?}: {why}", framework.tool());
        }
    }
}

#[test]
fn every_flag_is_in_its_tools_table_with_a_legal_value() {
    for framework in Framework::ALL {
        let table = table(framework);
        assert_eq!(table["tool"].as_str().unwrap(), framework.tool(), "run scripts/check-launch");
        for case in cases() {
            hold(framework, &table, &of_case(&case, framework));
        }
    }
}

#[test]
fn the_check_of_flags_can_fail() {
    let entry: Value = serde_json::json!({"type": "int"});
    assert!(illegal(&entry, &["x".into()]).is_some());
    assert!(illegal(&entry, &[]).is_some());
    assert!(illegal(&entry, &["1".into(), "2".into()]).is_some());
    assert!(illegal(&serde_json::json!({"type": "str", "choices": ["a"]}), &["b".into()]).is_some());
    assert!(illegal(&serde_json::json!({"type": "flag"}), &["b".into()]).is_some());
    assert_eq!(words("--a 'b c'\\''d' ''"), ["--a", "b c'd", ""]);
}

#[test]
fn frameworks_are_found_by_their_names() {
    for framework in Framework::ALL {
        assert_eq!(Framework::from_name(framework.name()), Some(framework));
    }
    assert_eq!(Framework::from_name("nemo"), None);
}

#[test]
fn a_path_is_a_path_and_no_command() {
    let case = cases().remove(2);
    let decoder = model(case.model);
    let layout = layout(&case, &decoder);
    let file = PathBuf::from("my model's\n$(touch x)/`y`.json");
    let launch = Launch {
        decoder: &decoder,
        model_file: &file,
        cluster: &hardware::cluster(case.cluster).unwrap(),
        layout: &layout,
        layers_per_stage: &case.layers,
        seq_len: case.seq_len,
        global_batch: case.batch,
        precision: case.precision,
    };
    for framework in Framework::ALL {
        let e = emit(framework, &launch);
        let script = &e.files[0].1;
        assert!(script.contains("\nMODEL='my model'\\''s\n$(touch x)/`y`.json'\n"), "{script}");
        let outside = script.replace("'my model'\\''s\n$(touch x)/`y`.json'", "");
        let commands = outside.lines().filter(|l| !l.starts_with('#'));
        assert!(commands.into_iter().all(|l| !l.contains("touch x")), "{script}");
        for (name, text) in &e.files[1..] {
            assert!(!text.contains("touch x"), "{name}");
        }
    }
}

/// Models and their stages' layers are drawn by these.
const MODELS: [&str; 5] = ["meta-llama-3.1-8b", "mixtral-8x7b-v0.1", "deepseek-v3", "gpt3-175b", "gpt-oss-20b"];

fn any_recompute(pp: u64, kind: u8, n: u64) -> Recompute {
    match kind {
        0 => Recompute::None,
        1 => Recompute::Full,
        2 => Recompute::Layers(n),
        3 => Recompute::Stages((0..pp).map(|i| (n + i) % 5).collect()),
        4 => Recompute::Selective(vec![Module::CoreAttn]),
        5 => Recompute::Selective(vec![Module::OpSac]),
        6 => Recompute::Selective(vec![Module::RematMinimal]),
        _ => Recompute::Selective(vec![Module::MlaUpProj, Module::LayerNorm]),
    }
}

prop_compose! {
    /// A layout in which everything divides, and the layers of its stages.
    fn any_plan()(
        model in 0..MODELS.len(), tp in 0..3u32, cp in 0..3u32, pp in 0..3u32, dp in 0..4u32, ep in 0..6u32, etp in 0..3u32,
        chunks in 1..4u64, zero in 0..4u8, keep in any::<bool>(), share in 0..5u32, sp in any::<bool>(), method in 0..3usize,
        mbs in 1..3u64, m in 1..3u64, recompute in (0..8u8, 0..40u64), schedule in 0..7usize, order in 0..4usize,
        lean in 0..3u64, precision in 0..6usize,
    ) -> (usize, Layout, Vec<u64>, Precision) {
        let (tp, cp, pp, dp) = (1 << tp, 1 << cp, 1 << pp, 1 << dp);
        let decoder = self::model(MODELS[model]);
        let experts = facts::of(&decoder).experts;
        let ranks = tp * cp * dp;
        let ep = if experts == 0 { 1 } else { (1u64 << ep).min(ranks).min(experts) };
        let etp = if experts == 0 { 1 } else { (1u64 << etp).min(ranks / ep) };
        let schedule = Schedule::ALL[schedule];
        let vpp = match schedule {
            Schedule::Interleaved if pp > 1 => chunks,
            Schedule::ZbV | Schedule::DualPipeV if pp > 1 => 2,
            _ => 1,
        };
        let zero = if dp * cp == 1 { 0 } else { zero };
        let shard_group = if zero == 0 { 1 } else { (1u64 << share).min(dp * cp) };
        let roles = [Role::Tp, Role::Cp, Role::Dp, Role::Pp];
        let order = [None, Some(Order::STAGES_OUTSIDE), Some(Order::STAGES_INSIDE), Some(Order([roles[2], roles[0], roles[1], roles[3]]))][order];
        let layers = decoder.depth() as u64;
        let mut stages = vec![layers / pp; pp as usize];
        stages[pp as usize - 1] += layers % pp;
        if pp > 1 {
            let moved = lean.min(stages[0]);
            stages[0] -= moved;
            stages[1] += moved;
        }
        let layout = Layout {
            tp, cp, pp, ep, etp, dp, vpp, zero,
            keep: keep && zero >= 2,
            shard_group,
            sp: sp && tp > 1,
            cp_method: CpMethod::ALL[method],
            micro_batch: mbs,
            microbatches: m * pp,
            recompute: any_recompute(pp, recompute.0, recompute.1),
            schedule, order,
        };
        (model, layout, stages, Precision::ALL[precision])
    }
}

/// Where a framework says a decision: flags with the values that they must have. Other ways to say it are for
/// `cannot`.
type Said = Vec<(&'static str, String)>;

/// A decision as `cannot` would name it, whether the plan makes it at all, and where it is said.
type Decision = (&'static str, bool, Said);

fn decisions(framework: Framework, l: &Layout, experts: bool, stages: &[u64], batch: u64) -> Vec<Decision> {
    let set = |name: &'static str, value: &dyn ToString| vec![(name, value.to_string())];
    let on = |name: &'static str, value: bool| if value { vec![(name, String::new())] } else { Vec::new() };
    let copies = l.dp * l.cp / l.shard_group;
    let pipeline = l.pp > 1;
    let uneven = pipeline && stages.iter().any(|n| *n != stages[0]);
    let nowhere = Vec::new;
    match framework {
        Framework::Megatron => vec![
            ("tp", true, set("--tensor-model-parallel-size", &l.tp)),
            ("sp", l.sp, on("--sequence-parallel", true)),
            ("cp", true, set("--context-parallel-size", &l.cp)),
            ("cp_method", l.cp > 1, set("--cp-comm-type", &["p2p", "a2a", "all_gather"][l.cp_method as usize])),
            ("pp", true, set("--pipeline-model-parallel-size", &l.pp)),
            ("schedule", pipeline && !matches!(l.schedule, Schedule::OneFOneB | Schedule::Interleaved), nowhere()),
            ("layers_per_stage", uneven, vec![("--pipeline-model-parallel-layout", "*".into())]),
            ("ep", experts, set("--expert-model-parallel-size", &l.ep)),
            ("etp", experts, set("--expert-tensor-parallel-size", &l.etp)),
            ("zero", l.zero == 1, on("--use-distributed-optimizer", true)),
            ("zero", l.zero == 2, set("--data-parallel-sharding-strategy", &"optim_grads")),
            ("zero", l.zero == 3 && !l.keep, set("--data-parallel-sharding-strategy", &"optim_grads_params")),
            ("keep", l.zero == 3 && l.keep, nowhere()),
            ("shard_group", l.zero > 0 && copies > 1, set("--num-distributed-optimizer-instances", &copies)),
            ("mbs", true, set("--micro-batch-size", &l.micro_batch)),
            ("microbatches", true, set("--global-batch-size", &batch)),
            ("recompute", l.recompute == Recompute::Full, set("--recompute-granularity", &"full")),
            ("recompute", l.recompute == Recompute::Selective(vec![Module::OpSac]), nowhere()),
        ],
        Framework::TorchTitan => vec![
            ("tp", true, set("--parallelism.tensor_parallel_degree", &l.tp)),
            ("sp", !l.sp, on("--parallelism.no_enable_sequence_parallel", true)),
            ("cp", true, set("--parallelism.context_parallel_degree", &l.cp)),
            ("cp_method", l.cp > 1 && l.cp_method != CpMethod::AllGather, nowhere()),
            ("pp", true, set("--parallelism.pipeline_parallel_degree", &l.pp)),
            ("schedule", pipeline && matches!(l.schedule, Schedule::Naive | Schedule::ZbH1), nowhere()),
            (
                "schedule",
                pipeline && l.schedule == Schedule::ZbV,
                set("--parallelism.pipeline_parallel_schedule", &"ZBVZeroBubble"),
            ),
            ("ep", experts, set("--parallelism.expert_parallel_degree", &l.ep)),
            ("etp", l.etp > 1, nowhere()),
            ("zero", l.zero == 1 || l.zero == 2, nowhere()),
            ("keep", l.keep, set("--parallelism.fsdp_reshard_after_forward", &"never")),
            ("zero", l.zero == 3 && !l.keep, set("--parallelism.fsdp_reshard_after_forward", &"always")),
            ("shard_group", l.zero > 0, set("--parallelism.data_parallel_replicate_degree", &copies)),
            ("mbs", !pipeline, set("--training.local_batch_size", &l.micro_batch)),
            ("mbs", pipeline, set("--parallelism.pipeline_parallel_microbatch_size", &l.micro_batch)),
            ("microbatches", true, set("--training.global_batch_size", &batch)),
            ("recompute", l.recompute == Recompute::Full, on("activation-checkpoint:full", true)),
            ("recompute", l.recompute == Recompute::None, on("activation-checkpoint:none", true)),
            ("recompute", matches!(l.recompute, Recompute::Layers(_) | Recompute::Stages(_)), nowhere()),
        ],
        Framework::DeepSpeed => vec![
            ("tp", l.tp > 1, set("tensor_parallel.autotp_size", &l.tp)),
            ("sp", l.sp, nowhere()),
            ("cp", l.cp > 1, set("sequence_parallel_size", &l.cp)),
            ("cp_method", l.cp > 1 && l.tp * l.pp == 1 && l.cp_method != CpMethod::Ulysses, nowhere()),
            ("pp", pipeline, nowhere()),
            ("schedule", pipeline && l.schedule != Schedule::OneFOneB, nowhere()),
            ("vpp", pipeline && l.vpp > 1 && l.schedule == Schedule::Interleaved, nowhere()),
            ("layers_per_stage", uneven, nowhere()),
            ("ep", experts, set("expert_parallel.autoep_size", &l.ep)),
            ("etp", experts, set("expert_parallel.expert_tensor_parallel_size", &l.etp)),
            ("zero", true, set("zero_optimization.stage", &l.zero)),
            ("keep", l.zero == 3 && l.keep, nowhere()),
            ("shard_group", l.zero > 0 && copies > 1, nowhere()),
            ("mbs", true, set("train_micro_batch_size_per_gpu", &l.micro_batch)),
            ("microbatches", true, set("gradient_accumulation_steps", &l.microbatches)),
            ("recompute", matches!(l.recompute, Recompute::Layers(_) | Recompute::Selective(_)), nowhere()),
        ],
        Framework::MaxText => vec![
            (
                "tp",
                l.tp > 1 && l.sp,
                vec![("ici_tensor_sequence_parallelism", "*".into()), ("dcn_tensor_sequence_parallelism", "*".into())],
            ),
            (
                "tp",
                l.tp > 1 && !l.sp,
                vec![("ici_tensor_parallelism", "*".into()), ("dcn_tensor_parallelism", "*".into())],
            ),
            ("cp_method", l.cp > 1 && l.cp_method == CpMethod::Ring, set("context_parallel_strategy", &"ring")),
            ("cp_method", l.cp > 1 && l.cp_method == CpMethod::Ulysses, nowhere()),
            ("schedule", pipeline && l.schedule != Schedule::GPipe, nowhere()),
            ("layers_per_stage", uneven, nowhere()),
            ("etp", experts && l.etp != l.tp, nowhere()),
            ("zero", l.zero == 2, nowhere()),
            ("zero", l.zero == 1, set("shard_optimizer_over_data", &true)),
            ("keep", l.zero == 3 && l.keep, set("pipeline_fsdp_ag_once", &true)),
            ("microbatches", !pipeline, set("gradient_accumulation_steps", &l.microbatches)),
            ("microbatches", pipeline, set("num_pipeline_microbatches", &l.microbatches)),
            ("recompute", l.recompute == Recompute::Full, set("remat_policy", &"full")),
            ("recompute", l.recompute == Recompute::None, set("remat_policy", &"none")),
            ("recompute", matches!(l.recompute, Recompute::Layers(_) | Recompute::Stages(_)), nowhere()),
        ],
    }
}

/// Whether a decision is said where the table says, or named in `cannot`.
fn said(decision: &Decision, flags: &BTreeMap<String, Vec<String>>, cannot: &[String]) -> bool {
    let (key, made, places) = decision;
    let named = cannot.iter().any(|c| c.starts_with(&format!("{key}=")));
    let there = |(flag, value): &(&str, String)| {
        flags.get(*flag).is_some_and(|values| value == "*" || values.join(" ").trim_matches('"') == value)
    };
    !made || named || (!places.is_empty() && places.iter().all(there))
}

/// Decisions that several texts may say: the order of ranks, chunks, the number format.
fn other_decisions(framework: Framework, l: &Layout, precision: Precision) -> Vec<(&'static str, Vec<&'static str>)> {
    let split = |o: Order| {
        let degree = |r: &Role| [l.tp, l.cp, l.dp, l.pp][*r as usize];
        o.0.into_iter().filter(|r| degree(r) > 1).collect::<Vec<_>>()
    };
    let mut out = Vec::new();
    if l.order.is_some_and(|o| split(o) != split(Order::STAGES_OUTSIDE)) {
        out.push(("layout", if framework == Framework::Megatron { vec!["--use-tp-pp-dp-mapping"] } else { vec![] }));
    }
    if l.pp > 1 && l.vpp > 1 && l.schedule == Schedule::Interleaved {
        out.push((
            "vpp",
            match framework {
                Framework::Megatron => {
                    vec!["--num-virtual-stages-per-pipeline-rank", "--pipeline-model-parallel-layout"]
                }
                Framework::TorchTitan => vec!["module_fqns_per_model_part"],
                Framework::DeepSpeed => vec![],
                Framework::MaxText => vec!["num_pipeline_repeats"],
            },
        ));
    }
    let place = match (framework, precision) {
        (_, Precision::F32) => return out,
        (Framework::Megatron, Precision::F16) => vec!["--fp16"],
        (Framework::Megatron, Precision::Bf16) => vec!["--bf16"],
        (Framework::Megatron, Precision::Fp8) => vec!["--fp8-recipe tensorwise"],
        (Framework::Megatron, Precision::Mxfp8) => vec!["--fp8-recipe mxfp8"],
        (Framework::Megatron, Precision::Nvfp4) => vec!["--fp4-format e2m1"],
        (Framework::TorchTitan, Precision::F16) => vec![],
        (Framework::TorchTitan, Precision::Bf16) => vec!["--training.mixed_precision_param bfloat16"],
        (Framework::TorchTitan, Precision::Fp8) => vec!["converters=[Float8LinearConverter"],
        (Framework::TorchTitan, Precision::Mxfp8) => vec!["converters=[MXFP8LinearConverter"],
        (Framework::TorchTitan, Precision::Nvfp4) => vec!["converters=[NVFP4LinearConverter"],
        (Framework::DeepSpeed, Precision::F16) => vec!["\"fp16\": {"],
        (Framework::DeepSpeed, Precision::Bf16) => vec!["\"bf16\": {"],
        (Framework::DeepSpeed, _) => vec![],
        (Framework::MaxText, Precision::F16) => vec![],
        (Framework::MaxText, Precision::Bf16) => vec!["dtype: bfloat16"],
        (Framework::MaxText, Precision::Fp8) => vec!["quantization: fp8"],
        (Framework::MaxText, Precision::Mxfp8) => vec!["quantization: te_mxfp8"],
        (Framework::MaxText, Precision::Nvfp4) => vec!["quantization: te_nvfp4"],
    };
    out.push(("precision", place));
    out
}

/// The degree of an axis of MaxText's mesh.
fn axis(flags: &BTreeMap<String, Vec<String>>, axis: &str) -> u64 {
    let part = |where_: &str| flags.get(&format!("{where_}_{axis}_parallelism")).map_or(1, |v| v[0].parse().unwrap());
    part("ici") * part("dcn")
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(192))]

    #[test]
    fn no_decision_is_lost((model, layout, stages, precision) in any_plan()) {
        let decoder = self::model(MODELS[model]);
        let experts = facts::of(&decoder).experts > 0;
        let cluster = hardware::cluster("dgx-h100").unwrap();
        let batch = layout.global_batch();
        let launch = Launch {
            decoder: &decoder, model_file: Path::new("config.json"), cluster: &cluster, layout: &layout,
            layers_per_stage: &stages, seq_len: 4096, global_batch: batch, precision,
        };
        for framework in Framework::ALL {
            let e = emit(framework, &launch);
            hold(framework, &TABLES.with(|t| t[&framework].clone()), &e);
            let flags: BTreeMap<String, Vec<String>> = told(framework, &e).into_iter().collect();
            for decision in decisions(framework, &layout, experts, &stages, batch) {
                prop_assert!(said(&decision, &flags, &e.cannot), "{framework} loses {} of {layout:?} {stages:?}:\n{}", decision.0, printed(&e));
            }
            for (what, place) in other_decisions(framework, &layout, precision) {
                let named = e.cannot.iter().any(|c| c.starts_with(&format!("{what}=")) || c.starts_with("model: torchtitan ships no"));
                let there = place.iter().any(|p| e.files.iter().any(|(_, text)| text.contains(p)));
                prop_assert!(named || there, "{framework} loses {what} of {layout:?} {precision}:\n{}", printed(&e));
            }
            for c in &e.cannot {
                prop_assert!(e.files[0].1.contains(c.as_str()), "the script of {framework} does not tell: {c}");
            }
            if framework == Framework::MaxText {
                let all = ["tensor", "tensor_sequence", "context", "expert", "fsdp", "data", "pipeline"];
                prop_assert_eq!(all.iter().map(|a| axis(&flags, a)).product::<u64>(), layout.devices());
                let each: f64 = flags["per_device_batch_size"][0].parse().unwrap();
                let steps: u64 = flags["gradient_accumulation_steps"][0].parse().unwrap();
                prop_assert_eq!((each * layout.devices() as f64) as u64 * steps, batch);
            }
        }
    }
}

thread_local! {
    static TABLES: BTreeMap<Framework, Value> = Framework::ALL.into_iter().map(|f| (f, table(f))).collect();
}

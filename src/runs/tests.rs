use super::*;
use crate::json::Document;
use crate::predict::{Module, Recompute, Schedule};
use autoshard_cost::device::{Device, ScaleUp};
use serde_json::json;

const ROWS: &str = include_str!("../../tests/data/runs/rows.json");
const SINGLE: &str = include_str!("../../tests/data/runs/single.json");

fn parse(text: &str) -> Result<Vec<Entry>, RunsError> {
    read(&Document::parse("runs.json", text.as_bytes()).unwrap())
}

/// The rows of the test file, with changes to one of them.
fn changed(id: &str, change: impl Fn(&mut Value)) -> Result<Vec<Entry>, RunsError> {
    let mut rows: Value = serde_json::from_str(ROWS).unwrap();
    let row = rows.as_array_mut().unwrap().iter_mut().find(|r| r["id"] == id).unwrap();
    change(row);
    parse(&rows.to_string())
}

fn ready(entries: &[Entry], id: &str) -> RunRow {
    let found = entries.iter().find_map(|e| match e {
        Entry::Ready(r) if r.id == id => Some(r.as_ref().clone()),
        _ => None,
    });
    found.unwrap_or_else(|| panic!("{id} is not ready"))
}

fn why(entries: &[Entry], id: &str) -> String {
    let found = entries.iter().find_map(|e| match e {
        Entry::Skipped(s) if s.id == id => Some(s.why.clone()),
        _ => None,
    });
    found.unwrap_or_else(|| panic!("{id} is not skipped"))
}

#[test]
fn rows_of_every_kind_are_read() {
    let all = parse(ROWS).unwrap();
    assert_eq!(all.len(), 18);
    let r = ready(&all, "vtrain_multi-001");
    assert_eq!((r.gpus, r.layout.devices(), r.global_batch, r.layout.global_batch()), (64, 64, 512, 512));
    assert_eq!((r.precision, r.layout.recompute.clone(), r.layout.zero), (Precision::F16, Recompute::Full, 0));
    assert_eq!(r.group.to_string(), "megatron-deepspeed-2022 · 3072/32 · a100-sxm4-80gb");
    assert_eq!((r.bandwidth_inside, r.bandwidth_effective, r.unit), (Some(150e9), true, Unit::Seconds));
    // Tokens/s are compared in seconds.
    let r = ready(&all, "mosaic-001");
    let tokens = r.measured.tokens_per_second.unwrap() * r.measured.step_seconds.unwrap() * r.gpus as f64;
    assert!((tokens / r.tokens() - 1.0).abs() < 1e-3);
    assert!(ready(&all, "mosaic-014").layout.keep);
    // A rate is compared as a rate, although somebody derived a step of it.
    let r = ready(&all, "sc21_t2-001");
    assert_eq!((r.unit, r.measured.step_seconds), (Unit::Flops(Convention::Sc21), None));
    assert!(r.marks.iter().any(|m| m.contains("SC'21")));
    let r = ready(&all, "torchtitan-031");
    assert_eq!(r.layout.recompute, Recompute::Layers(16));
    let r = ready(&all, "mbridge-006");
    assert_eq!((r.layout.ep > 1, r.layout.expert_data_ranks().is_some()), (true, true));
    let r = ready(&all, "simumax_b200-001");
    assert_eq!((r.cut_of.is_some(), r.measured.memory_kind.is_some()), (true, true));
    assert_eq!(ready(&all, "fms-002").cluster, None);
    assert_eq!(ready(&all, "dgxc-001").repeat_key, ready(&all, "dgxc-059").repeat_key);
}

#[test]
fn rows_that_lack_something_say_what() {
    let all = parse(ROWS).unwrap();
    assert_eq!(why(&all, "mbridge-038"), "no norm.recompute.kind");
    // Whether memory is enough is judged by the layout alone.
    let r = ready(&all, "bloom-076");
    assert!(r.has_memory() && r.measured.step_seconds.is_none() && r.measured.out_of_memory);
    assert!(r.marks.iter().any(|m| m == "memory alone is compared"));
    assert!(why(&all, "levanter-001").contains("no "));
    let id = "vtrain_multi-001";
    let of = |change: fn(&mut Value)| why(&changed(id, change).unwrap(), id);
    assert_eq!(of(|r| r["micro_batch"] = Value::Null), "no micro_batch");
    assert_eq!(of(|r| r["model"]["heads"] = json!(0)), "no model.heads");
    assert_eq!(of(|r| r["gpus"] = json!(63)), "tp·cp·pp·dp is not the number of devices");
    assert_eq!(of(|r| r["global_batch"] = json!(511)), "the global batch is not a multiple of dp·micro-batch");
    assert_eq!(of(|r| r["result"] = Value::Null), "no time or rate");
    assert_eq!(of(|r| r["norm"]["recompute"] = json!({"kind": "layers"})), "no norm.recompute.layers");
    assert!(of(|r| r["sim_ready"] = json!(false)).contains("not ready"));
    assert!(of(|r| r["parallel"]["extra"] = json!({"schedule": "V-half"})).contains("schedule V-half"));
    // With a reading of memory it is judged by that alone.
    let memory = changed("simumax_b200-001", |r| r["sim_ready"] = json!(false)).unwrap();
    let r = ready(&memory, "simumax_b200-001");
    assert!(r.has_memory() && !r.measured.has_time());
    let rate = of(|r| {
        (r["result"], r["flop_convention"]) = (json!({"tflops_per_gpu": 100}), json!("as the moon stood"));
        r["derived"] = Value::Null;
    });
    assert!(rate.contains("convention is not known: as the moon stood"), "{rate}");
}

#[test]
fn closed_vocabularies_are_exact_and_text_is_free() {
    let id = "vtrain_multi-002";
    let of = |change: fn(&mut Value)| changed(id, change).unwrap_err().to_string();
    let e = of(|r| r["norm"]["compute"] = json!("bf61"));
    assert!(e.contains("row vtrain_multi-002: norm.compute is \"bf61\", which is not one of"), "{e}");
    assert!(e.contains("did you mean `bf16`?"), "{e}");
    for change in [
        (|r| r["norm"]["grad_dtype"] = json!("f64")) as fn(&mut Value),
        |r| r["norm"]["zero"] = json!(4),
        |r| r["norm"]["recompute"]["kind"] = json!("some"),
        |r| r["norm"]["recompute"]["modules"] = json!(["core_attn", "attention"]),
        |r| r["norm"]["mem_kind"] = json!("peak"),
        |r| r["norm"]["optimizer"] = json!("sgd"),
        |r| r["block"]["norm"] = json!("batchnorm"),
        |r| r["block"]["attention"]["kind"] = json!("sliding"),
        |r| r["gpus"] = json!("many"),
        |r| r["gpus"] = json!(-8),
        |r| r["result"]["step_s"] = json!(0),
        |r| r["norm"]["sp"] = json!("yes"),
    ] {
        let e = of(change);
        assert!(e.contains("row vtrain_multi-002: "), "{e}");
    }
    // A mistyped word is found in a row that lacks something, too.
    let e = of(|r| (r["gpus"], r["norm"]["compute"]) = (Value::Null, json!("bf61")));
    assert!(e.contains("norm.compute"), "{e}");
    let free = changed(id, |r| {
        r["notes"] = json!({"anything": [1]});
        r["new_key"] = json!("of a later version");
        r["recompute"] = json!("some text");
        r["parallel"]["zero"] = json!("words");
    });
    assert_eq!(ready(&free.unwrap(), id), ready(&parse(ROWS).unwrap(), id));
}

#[test]
fn files_that_are_none_are_one_clear_error() {
    for (text, part) in [
        ("{}", "neither an array of rows nor an object"),
        ("3", "neither an array of rows nor an object"),
        ("[3]", "row 1 (counted from 1): id is missing"),
        ("[{\"id\": 7}]", "id is 7; it must be a text"),
        ("[{\"id\": \"a\"}, {\"id\": \"a\"}]", "row a: two rows have this id"),
        ("{\"common\": {\"zero\": \"full\"}, \"rows\": []}", "row common: zero is \"full\""),
        ("{\"common\": {}, \"rows\": 3}", "neither"),
    ] {
        let e = parse(text).unwrap_err().to_string();
        assert!(e.starts_with("runs.json: ") && e.contains(part), "{text}: {e}");
    }
    assert_eq!(parse("[]").unwrap(), []);
    assert!(why(&parse("[{\"id\": \"a\"}]").unwrap(), "a").starts_with("no gpus, model.layers"));
}

#[test]
fn runs_on_one_server_become_the_same_rows() {
    let all = parse(SINGLE).unwrap();
    assert_eq!(all.len(), 8);
    let r = ready(&all, "vtrain_single-0001");
    assert_eq!((r.gpus, r.layout.tp, r.layout.dp, r.layout.pp), (8, 2, 2, 2));
    assert_eq!((r.layout.micro_batch, r.layout.microbatches, r.layers_per_stage), (4, 4, Some(vec![12, 12])));
    assert_eq!((r.vocab, r.model["ffn_hidden"].as_u64(), r.measured.step_seconds), (50257, Some(4096), Some(0.219733)));
    assert_eq!((r.layout.schedule, r.stack.as_str()), (Schedule::OneFOneB, "megatron-deepspeed-2022"));
    let broken = SINGLE.replacen("\"hidden\": 1024", "\"hidden\": null", 1);
    assert_eq!(why(&parse(&broken).unwrap(), "vtrain_single-0001"), "no hidden");
    let broken = SINGLE.replacen("\"tp\": 2", "\"tp\": 3", 1);
    assert!(why(&parse(&broken).unwrap(), "vtrain_single-0001").contains("not the number of devices"));
}

#[test]
fn a_row_without_cluster_gets_a_machine_of_its_bandwidths() {
    let all = parse(ROWS).unwrap();
    let device = Device {
        id: "a100-sxm4-80gb".into(),
        scale_up: ScaleUp { bandwidth: 300e9, ..ScaleUp::default() },
        ..Device::default()
    };
    let named = ready(&all, "vtrain_multi-001");
    assert_eq!(machine(&named, &device), Ok(Machine::Preset("vtrain-a100".into())));
    let mut row = ready(&all, "fms-002");
    (row.bandwidth_inside, row.bandwidth_between) = (None, Some(50e9));
    let Ok(Machine::Made(cluster, mark)) = machine(&row, &device) else { panic!("no machine") };
    assert_eq!((cluster.tiers[0].bandwidth, cluster.tiers[1].bandwidth), (300e9, 50e9));
    assert!(mark.contains("bandwidth in a server as the accelerator's"), "{mark}");
    (row.bandwidth_between, row.gpus) = (None, 128);
    assert!(machine(&row, &device).unwrap_err().contains("between servers"));
    row.gpus = 8;
    assert!(matches!(machine(&row, &device), Ok(Machine::Made(c, _)) if c.tiers.len() == 1));
}

#[test]
fn rates_are_compared_under_their_convention() {
    let r = ready(&parse(ROWS).unwrap(), "sc21_t2-001");
    let p = crate::predict::Prediction { step_seconds: 1.0, model_flops_causal: 2e15, ..Default::default() };
    // The source's own formula gives the step that its row derives: 81.6 s.
    let s = r.unit.measured_seconds(&r, &p, None).unwrap();
    assert!((s - 81.579).abs() < 0.01, "{s}");
    let mut other = r.clone();
    other.measured.flops_per_second = Some(1e12);
    let s = Unit::Flops(Convention::Causal).measured_seconds(&other, &p, None).unwrap();
    assert!((s - 2e15 / 1e12 / r.gpus as f64).abs() < 1e-9);
    other.measured.mfu = Some(0.5);
    assert_eq!(Unit::Mfu(Convention::Causal).measured_seconds(&other, &p, None), None);
    assert_eq!(Unit::Mfu(Convention::Causal).measured_seconds(&other, &p, Some(2e12)), Some(s));
}

#[test]
fn modules_are_those_of_the_file() {
    let all =
        changed("mosaic-001", |r| r["norm"]["recompute"] = json!({"kind": "selective", "modules": ["mlp", "op_sac"]}));
    assert_eq!(
        ready(&all.unwrap(), "mosaic-001").layout.recompute,
        Recompute::Selective(vec![Module::Mlp, Module::OpSac])
    );
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig::with_cases(48))]
    #[test]
    fn damaged_files_never_panic(at in 0usize..46000, junk in "[\\[\\]{}\",:0-9a-z.-]{0,6}") {
        let mut text = ROWS.to_string();
        let at = (0..=at.min(text.len())).rev().find(|i| text.is_char_boundary(*i)).unwrap_or(0);
        text.insert_str(at, &junk);
        if let Ok(document) = Document::parse("runs.json", text.as_bytes()) {
            let _ = read(&document);
        }
    }
}

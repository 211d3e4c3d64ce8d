//! Predictions held against measured runs, from file to JSON.

#[path = "common/fake.rs"]
mod fake;

use autoshard::accuracy::evaluate::{evaluate, Searched};
use autoshard::accuracy::fit::Options;
use autoshard::accuracy::page::page;
use autoshard::accuracy::score::{score, summarise};
use autoshard::json::Document;
use autoshard::report::validation;
use autoshard::runs::{read, Entry};
use fake::{work, Answer, Fake};
use serde_json::Value;
use std::process::Command;

const ROWS: &str = include_str!("data/runs/rows.json");
const SINGLE: &str = include_str!("data/runs/single.json");

fn entries(text: &str) -> Vec<Entry> {
    read(&Document::parse("runs.json", text.as_bytes()).unwrap()).unwrap()
}

fn validated(answer: Answer) -> Value {
    let entries = entries(ROWS);
    let outcomes = score(&entries, &Fake(answer), None, 2);
    validation::json(&outcomes, &summarise(&entries, &outcomes))
}

fn row<'a>(v: &'a Value, id: &str) -> &'a Value {
    v["rows"].as_array().unwrap().iter().find(|r| r["id"] == id).unwrap()
}

#[test]
fn the_json_has_the_keys_that_scripts_read() {
    let v = validated(Answer::Scaled(1.1));
    let r = row(&v, "vtrain_multi-001");
    assert_eq!(
        (&r["status"], &r["tag"], &r["stack"]),
        (&"ok".into(), &"vtrain_multi".into(), &"megatron-deepspeed-2022".into())
    );
    assert_eq!(r["measured"]["step_seconds"], 3.5665);
    assert!((r["predicted"]["step_seconds"].as_f64().unwrap() - 1.1 * 3.5665).abs() < 1e-9);
    assert!((r["error"]["step"].as_f64().unwrap() - 0.1).abs() < 1e-9);
    assert!(r["low"].as_f64() < r["high"].as_f64());
    for path in ["/fits", "/error/memory", "/predicted/peak_memory_gib", "/measured/peak_memory_gib"] {
        assert_eq!(r.pointer(path), Some(&Value::Null), "{path}");
    }
    let all = &v["summary"]["all"];
    for (key, expected) in [("step_mape", 0.1), ("step_median_ape", 0.1), ("step_p90_ape", 0.1), ("step_bias", 0.1)] {
        let tag = &v["summary"]["mosaic"];
        assert!((tag[key].as_f64().unwrap() - expected).abs() < 1e-9, "{key}: {tag}");
        assert!(all[key].is_number(), "{key}");
    }
    assert_eq!((&all["memory_rows"], &all["memory_mape"]), (&0.into(), &Value::Null));
    // vtrain_multi has one group of five layouts without a pipeline, and the right one is chosen.
    let tag = &v["summary"]["vtrain_multi"];
    assert_eq!((&tag["rows"], &tag["regret_groups"], &tag["regret_mean"]), (&5.into(), &1.into(), &0.0.into()));
    assert!(tag["regret_random"].as_f64().unwrap() > 0.03, "{tag}");
}

#[test]
fn skipped_rows_say_why_and_count_nowhere() {
    let v = validated(Answer::Scaled(1.0));
    assert_eq!(row(&v, "bloom-076")["status"], "skipped: ran out of memory: no time");
    assert_eq!(row(&v, "vtrain_multi-012")["status"], "skipped: a pipeline is not predicted yet; leave it out");
    assert_eq!(v["summary"]["bloom"]["rows"], 0);
    assert_eq!(v["summary"]["bloom"]["step_mape"], Value::Null);
    let counted = v["rows"].as_array().unwrap().iter().filter(|r| r["status"] == "ok").count();
    assert_eq!(v["summary"]["all"]["rows"], counted);
    assert!(counted >= 12, "{counted}");
    // A row of a cluster that nobody knows is marked.
    let marks = row(&v, "fms-002")["marks"].to_string();
    assert!(marks.contains("machine made of the row's bandwidths"), "{marks}");
    // A rate's error has the sign of its time's: one second is far too fast.
    assert!(row(&v, "sc21_t2-001")["error"]["step"].as_f64().unwrap() < -0.9);
}

#[test]
fn another_framework_can_be_asked_for() {
    let entries = entries(SINGLE);
    let outcomes = score(&entries, &Fake(Answer::Scaled(2.0)), Some("mine"), 1);
    assert!(outcomes.iter().all(|o| o.stack == "mine" || o.skipped.is_some()));
    assert!(outcomes.iter().any(|o| o.step_error == Some(1.0)));
    let text = validation::text(&outcomes, &summarise(&entries, &outcomes));
    assert!(text.contains("+100.0 %") && text.contains("a pipeline is not predicted yet"), "{text}");
    // A framework that is not known skips the row, and does not stop the file.
    let none = score(&entries, &Fake(Answer::Work), Some("other"), 1);
    assert!(none.iter().all(|o| o.skipped.as_ref().is_some_and(|w| w.contains("unknown stack"))));
}

/// Hidden sizes of made groups, and the one that follows no constants.
const HIDDEN: [u64; 6] = [1024, 2048, 3072, 4096, 6144, 8192];
const ODD: usize = 3;

/// Rows of several groups whose times follow the fake's formula at these constants.
fn made(products: f64, overhead: f64) -> Vec<Entry> {
    let mut out = Vec::new();
    for (g, hidden) in HIDDEN.into_iter().enumerate() {
        for entry in entries(SINGLE) {
            let Entry::Ready(mut row) = entry else { continue };
            row.id = format!("{}-{hidden}", row.id);
            (row.hidden, row.group.hidden) = (hidden, hidden);
            row.layout.pp = 1;
            row.layout.dp = row.gpus / row.layout.tp;
            let off = if g == ODD { 1.5 } else { 1.0 };
            row.measured.step_seconds = Some((products * work(&row) + overhead) * off);
            out.push(Entry::Ready(row));
        }
    }
    out
}

#[test]
fn constants_are_judged_on_groups_that_they_have_not_seen() {
    let entries = made(1.4, 0.05);
    let options = Options { prior: 0.0, ..Options::default() };
    let report = evaluate(&entries, &Fake(Answer::Work), &options, &mut Searched::new()).unwrap();
    assert_eq!((report.rows, report.evaluated, report.groups.len()), (entries.len(), entries.len(), HIDDEN.len()));
    for group in &report.groups {
        let e = group.left_out.unwrap();
        // The odd group is 1.5 times slower than the others say: 1/1.5 − 1.
        let expected = if group.name.contains(" 4096/") { -1.0 / 3.0 } else { 0.0 };
        assert!((e.bias - expected).abs() < 0.02, "{group:?}");
    }
    let found = &report.stacks[0].constants;
    assert!((found[0].fitted.unwrap() - 1.4).abs() < 0.03, "{found:?}");
    assert!((found[1].fitted.unwrap() - 0.05).abs() < 0.01, "{found:?}");
    assert_eq!(report.tags.last().map(|t| (t.name.as_str(), t.rows)), Some(("all", entries.len())));
    // The roofline is executed FLOPs, 1.5 times the work, at 0.45 of 100 TFLOP/s: a third of the work's time.
    let tag = &report.tags[0];
    assert!(tag.roofline.unwrap().bias < -0.5, "{tag:?}");
    let text = page(&report);
    assert!(text.contains("| vtrain_single | ") && text.contains("| products | ratio | 0.800 to 1.80 |"), "{text}");
}

#[test]
fn a_framework_of_one_group_is_predicted_by_its_parent() {
    let mut entries = made(1.4, 0.05);
    let child = entries.iter().take(8).cloned().map(|e| match e {
        Entry::Ready(mut row) => {
            row.id = format!("child-{}", row.id);
            (row.stack, row.group.stack, row.tag) = ("child".into(), "child".into(), "child".into());
            Entry::Ready(row)
        }
        skipped => skipped,
    });
    // The child's rows come first, and its constants still wait for the parent's.
    entries = child.collect::<Vec<_>>().into_iter().chain(entries).collect();
    let report =
        evaluate(&entries, &Fake(Answer::Work), &Options { prior: 0.0, ..Options::default() }, &mut Searched::new())
            .unwrap();
    let line = report.tags.iter().find(|t| t.name == "child").unwrap();
    assert!(line.left_out.unwrap().mape < 0.05, "{line:?}");
    assert!(line.shipped.unwrap().bias < -0.2, "{line:?}");
}

#[test]
fn the_page_of_real_rows_tells_what_is_left_out() {
    let report = evaluate(&entries(ROWS), &Fake(Answer::Work), &Options::default(), &mut Searched::new()).unwrap();
    let skipped: usize = report.skipped.iter().map(|(.., n)| n).sum();
    assert_eq!(report.evaluated + skipped, report.rows);
    let text = page(&report);
    assert!(text.contains("| vtrain_multi | a pipeline is not predicted yet; leave it out |"), "{text}");
    assert!(report.ready.rows > report.ready.predicted && report.ready.predicted > 10, "{:?}", report.ready);
    // Two releases of one configuration: one vote, and a floor.
    let dgxc = report.tags.iter().find(|t| t.name == "dgxc").unwrap();
    assert_eq!((dgxc.rows, dgxc.votes), (2, 1.0));
    let floor = dgxc.floor.unwrap();
    assert!((floor - (12.78 - 12.27) / (12.78 + 12.27)).abs() < 1e-9, "{floor}");
}

/// Runs the command: exit code, stdout, stderr.
fn autoshard(args: &[&str]) -> (i32, String, String) {
    let out = Command::new(env!("CARGO_BIN_EXE_autoshard")).args(args).output().unwrap();
    let text = |b: &[u8]| String::from_utf8(b.to_vec()).unwrap();
    (out.status.code().unwrap(), text(&out.stdout), text(&out.stderr))
}

#[test]
fn the_command_refuses_what_is_no_file_of_runs() {
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = dir.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    let broken = file("broken.json", "[{\"id\": \"a\",}]");
    let table = file("t.csv", "op,rank,bytes,us\n");
    let typo = file("typo.json", &ROWS.replacen("\"compute\": \"f16\"", "\"compute\": \"f61\"", 1));
    for (args, code, part) in [
        (vec!["validate"], 2, "required"),
        (vec!["validate", "no/such.json"], 1, "no/such.json: cannot read the file"),
        (vec!["validate", &broken], 1, "trailing comma"),
        (vec!["validate", &typo], 1, "norm.compute is \"f61\""),
        (vec!["validate", &broken, "--kernels", &table], 2, "cannot be used with"),
        (vec!["validate", "--kernels", &table], 2, "--device"),
        (vec!["validate", "--kernels", &table, "--device", "h100"], 1, "did you mean `op,ranks,bytes,us`?"),
        (vec!["accuracy", "no/such.json"], 1, "no/such.json: cannot read the file"),
    ] {
        let (got, _, stderr) = autoshard(&args);
        assert!(stderr.contains(part), "{args:?}: {stderr}");
        assert_eq!(got, code, "{args:?}: {stderr}");
    }
}

#[test]
fn the_command_prints_one_object() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/runs/rows.json");
    let (code, stdout, stderr) = autoshard(&["validate", file, "--json"]);
    assert_eq!(code, 0, "{stderr}");
    let v: Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!(v["rows"].as_array().map(Vec::len), Some(18));
    assert!(v["summary"]["all"]["rows"].is_number());
    // Twice the same bytes.
    assert_eq!(stdout, autoshard(&["validate", file, "--json"]).1);
}

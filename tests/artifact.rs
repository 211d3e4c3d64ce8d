//! Executable files: the same numbers as without, the same bytes every time, damage refused; weights
//! and gradients out and in again.

mod common;

use autoshard::artifact::{pack, unpack, write, Artifact, DataSource, RunOptions, WeightsSource};
use autoshard::ir::DType;
use autoshard::report;
use autoshard::weights::Checkpoint;
use common::{build, golden, golden_dir, golden_grads, relative_l2, train};
use serde_json::Value;
use std::path::Path;
use std::process::Command;

const MESH: &str = "tp=2,fsdp=2";

fn artifact(mesh: &str) -> Artifact {
    let executable = build("llama_tiny", mesh, DType::F64);
    let shape = autoshard::model::StepShape { batch: 4, seq_len: 64, dtype: DType::F64 };
    let model = autoshard::model::Model::load(&golden_dir("llama_tiny"), shape).unwrap();
    let plan = autoshard::compile::plan_mesh(&model, &common::degrees(mesh)).unwrap();
    let options = RunOptions { steps: 5, weights: WeightsSource::Init, data: DataSource::Golden };
    Artifact { executable, plan, options }
}

/// Runs the command; its JSON lines.
fn lines(args: &[&str]) -> Vec<Value> {
    let out = Command::new(env!("CARGO_BIN_EXE_autoshard")).args(args).output().unwrap();
    assert!(out.status.success(), "{args:?}\n{}", String::from_utf8_lossy(&out.stderr));
    let text = String::from_utf8(out.stdout).unwrap();
    text.lines().filter_map(|l| serde_json::from_str(l).ok()).collect()
}

fn losses(lines: &[Value]) -> Vec<f64> {
    let all = lines.last().unwrap()["summary"]["losses"].as_array().unwrap();
    all.iter().map(|x| x.as_f64().unwrap()).collect()
}

#[test]
fn what_is_packed_is_unpacked() {
    let a = artifact(MESH);
    let bytes = pack(&a);
    let b = unpack(&bytes, Path::new("t.asx")).unwrap();
    assert_eq!(b.executable.local, a.executable.local);
    assert_eq!(b.executable.program, a.executable.program);
    assert_eq!(b.executable.meta, a.executable.meta);
    assert_eq!((b.plan, b.options), (a.plan.clone(), a.options.clone()));
    assert_eq!(pack(&artifact(MESH)), bytes, "the same input gives the same bytes");
    // What the report says of memory is what the runtime allocates.
    let runtime = autoshard::runtime::Runtime::new(a.executable.program.clone(), Default::default()).unwrap();
    assert_eq!(report::memory(&a.executable.program), runtime.memory(0));
}

/// The table of collectives says what rank 0 counts, where ranks hold unequal parts too.
#[test]
fn the_plan_tells_the_bytes_that_are_counted() {
    let dir = tempfile::tempdir().unwrap();
    for mesh in ["tp=2,fsdp=3", "dp=3,tp=4", "fsdp=2,dp=2,tp=2,sp=0"] {
        let (model, asx) = (golden_dir("llama_tiny").display().to_string(), dir.path().join("t.asx"));
        let make = ["compile", &model, "--mesh", mesh, "--batch", "12", "-o", asx.to_str().unwrap()];
        lines(&make);
        let program = autoshard::artifact::read(&asx).unwrap().executable.program;
        let step = &lines(&["run", asx.to_str().unwrap(), "--steps", "1", "--json"])[0];
        let mut told = std::collections::BTreeMap::<String, (u64, u64)>::new();
        for l in report::collectives(&program).iter().filter(|l| !l.control) {
            let sum = told.entry(l.axes.clone()).or_default();
            *sum = (sum.0 + l.count as u64 * l.payload, sum.1 + l.count as u64 * l.wire);
        }
        assert!(!told.is_empty());
        for (axes, (payload, wire)) in told {
            assert_eq!(step["payload_bytes"][&axes], payload, "{mesh} {axes}");
            assert_eq!(step["wire_bytes"][&axes], wire, "{mesh} {axes}");
        }
    }
}

#[test]
fn a_file_trains_to_the_same_bits() {
    let (a, g) = (artifact(MESH), golden("llama_tiny"));
    let direct = train(a.executable.clone(), &g);
    let read = train(unpack(&pack(&a), Path::new("t.asx")).unwrap().executable, &g);
    assert_eq!(direct.losses, read.losses);
    assert_eq!(direct.grads, read.grads);
    // And through the command, from the model and from the file that it makes of it.
    let dir = tempfile::tempdir().unwrap();
    let (model, asx) = (golden_dir("llama_tiny").display().to_string(), dir.path().join("t.asx").display().to_string());
    let make = ["--mesh", MESH, "--batch", "4", "--precision", "f64"];
    let straight = lines(&[&["run", &model, "--steps", "5", "--json"], &make[..]].concat());
    lines(&[&["compile", &model, "-o", &asx], &make[..]].concat());
    let through = lines(&["run", &asx, "--steps", "5", "--json"]);
    assert_eq!(losses(&straight), direct.losses);
    assert_eq!(losses(&through), direct.losses);
    let last = |l: &[Value]| l.last().unwrap()["summary"]["params_after"].clone();
    assert_eq!(last(&straight), last(&through));
    let again = dir.path().join("again.asx").display().to_string();
    lines(&[&["compile", &model, "-o", &again], &make[..]].concat());
    assert_eq!(std::fs::read(&asx).unwrap(), std::fs::read(&again).unwrap());
}

#[test]
fn every_damage_is_refused_with_the_part_it_hit() {
    let bytes = pack(&artifact("tp=2"));
    let path = Path::new("t.asx");
    let refuse = |damaged: &[u8], what: &str| match unpack(damaged, path) {
        Ok(_) => panic!("{what} was not noticed"),
        Err(e) => e.to_string(),
    };
    // Header, some of the manifest, samples of the rest, the closing checksum: all bits of each byte.
    let samples = (0..200).chain((200..bytes.len()).step_by(971)).chain(bytes.len() - 32..bytes.len());
    for at in samples {
        for bit in 0..8 {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1 << bit;
            let message = refuse(&damaged, &format!("bit {bit} of byte {at}"));
            let part = ["not an .asx", "format", "cut off", "too long", "manifest", "section", "the file is damaged"];
            assert!(part.iter().any(|p| message.contains(p)), "byte {at}: {message}");
        }
    }
    for length in (0..bytes.len()).step_by(577).chain([bytes.len() - 1]) {
        let message = refuse(&bytes[..length], &format!("a cut at {length}"));
        assert!(message.contains("cut off") || length == 0, "{length}: {message}");
    }
    let message = refuse(&[&bytes[..], b"x"].concat(), "a byte more");
    assert!(message.contains("too long"), "{message}");
}

#[test]
fn a_file_of_another_compiler_is_refused() {
    let mut a = artifact("tp=2");
    let mut program = (*a.executable.program).clone();
    program.functions[0].frame += 64;
    a.executable.program = std::sync::Arc::new(program);
    let message = unpack(&pack(&a), Path::new("t.asx")).unwrap_err().to_string();
    assert!(message.contains("refused") && message.contains("frame of"), "{message}");
}

#[test]
fn changed_weights_and_data_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("m");
    std::fs::create_dir(&folder).unwrap();
    std::fs::copy(golden_dir("llama_tiny").join("config.json"), folder.join("config.json")).unwrap();
    std::fs::write(folder.join("train.txt"), "some text, over and over. ".repeat(40)).unwrap();
    let (m, asx) = (folder.display().to_string(), dir.path().join("t.asx").display().to_string());
    // One step leaves weights beside the model; the file then names them.
    lines(&["run", &m, "--steps", "1", "--json", "--save", &m]);
    lines(&["compile", &m, "-o", &asx]);
    assert_eq!(
        losses(&lines(&["run", &asx, "--steps", "2", "--json"])),
        losses(&lines(&["run", &m, "--steps", "2", "--json"]))
    );
    let fail = |what: &str| {
        let out = Command::new(env!("CARGO_BIN_EXE_autoshard")).args(["run", &asx, "--steps", "1"]).output().unwrap();
        let text = String::from_utf8_lossy(&out.stderr).to_string();
        assert!(out.status.code() == Some(1) && text.contains(what), "{what}: {text}");
    };
    std::fs::write(folder.join("train.txt"), "another text, over and over. ".repeat(40)).unwrap();
    fail("compiled for the data in");
    lines(&["run", &asx, "--steps", "1", "--json", "--data", "golden"]);
    lines(&["run", &m, "--steps", "1", "--json", "--save", &m]);
    fail("compiled for the weights in");
    std::fs::remove_file(folder.join("model.safetensors")).unwrap();
    fail("no weights here");
}

#[test]
fn gradients_and_weights_come_out_and_go_in() {
    let dir = tempfile::tempdir().unwrap();
    let (model, saved) =
        (golden_dir("llama_tiny").display().to_string(), dir.path().join("saved").display().to_string());
    let grads = dir.path().join("g.safetensors");
    let common = ["--batch", "4", "--precision", "f64", "--fixed-batch", "--json"];
    let run = |model: &str, more: &[&str]| losses(&lines(&[&["run", model], &common[..], more].concat()));
    let path = grads.display().to_string();
    run(&model, &["--mesh", MESH, "--steps", "2", "--save", &saved, "--grads", &path]);
    let three = run(&model, &["--mesh", MESH, "--steps", "3"]);
    // What was saved is the state after two steps: its first loss is the third.
    let resumed = run(&model, &["--mesh", MESH, "--steps", "1", "--weights", &saved]);
    assert_eq!(resumed[0], three[2]);
    // The saved folder is a model of its own, on another mesh too.
    let whole = run(&saved, &["--steps", "1"]);
    assert!((whole[0] - three[2]).abs() <= 1e-12 * three[2]);
    let file = Checkpoint::open(&grads).unwrap();
    let wanted = golden_grads("llama_tiny");
    assert_eq!(file.names().collect::<Vec<_>>(), wanted.keys().collect::<Vec<_>>());
    for (name, want) in &wanted {
        let got = file.read(name, file.shape(name).unwrap()).unwrap();
        assert!(relative_l2(&got, want) <= 1e-7, "{name}");
    }
    write(&artifact("dp=2"), &dir.path().join("no/such/folder.asx")).unwrap_err();
}

//! Known models on known machines: published layouts are not better, and every model has an answer.

use super::case::{all, Case};
use autoshard::json::Document;
use autoshard::predict::fix::{self, Fix};
use autoshard::predict::predictor::Predictor;
use autoshard::predict::Layout;
use autoshard::runs::{self, Entry, RunRow};
use autoshard::search::{infeasible, search};
use autoshard::stacks;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// The rows of Llama 3's Table 4, each with either number of chunks that may be meant.
fn llama3() -> Vec<RunRow> {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/runs/llama3.json");
    let entries = runs::read(&Document::read(&file).unwrap()).unwrap();
    entries.into_iter().map(|e| if let Entry::Ready(row) = e { *row } else { panic!("{e:?}") }).collect()
}

/// The plan found is at least as fast as Meta's by either framework's habits; by those of the default one tensor
/// parallelism stays inside the server.
#[test]
fn llama_3_is_planned_no_slower_than_by_meta() {
    let rows = llama3();
    assert_eq!(rows.len(), 6);
    for name in ["megatron-core-2025", "meta-llama3"] {
        let stack = stacks::find(name).unwrap().stack;
        for pair in rows.chunks(2) {
            let sizes = (pair[0].seq_len, pair[0].global_batch);
            let case = Case::known("meta-llama-3.1-405b", "meta-llama3-roce-24k", pair[0].layout.devices(), sizes);
            let case = Case { stack: stack.clone(), ..case };
            let (predictor, started) = (Predictor::default(), Instant::now());
            let outcome = search(&case.ask(), &predictor).unwrap();
            let found = &outcome.best[0];
            let words = fix::words(&found.layout);
            println!("{name} {}: {:.3} s by {words} {:?}", pair[0].id, found.seconds, started.elapsed());
            assert!(found.layout.tp <= 8 || name == "meta-llama3", "{found:?}");
            for row in pair {
                let metas = metas(&case, row, &predictor);
                println!("  {}: {metas:.3} s", row.id);
                assert!(found.seconds <= metas * (1.0 + 1e-12), "{}: {found:?}", row.id);
            }
        }
    }
}

/// Seconds of a published layout: what is not published of it (cut, recomputation, sharing) as told where that fits by
/// prediction, else the best.
fn metas(case: &Case, row: &RunRow, predictor: &Predictor) -> f64 {
    let (ask, layers) = (case.ask(), row.layers_per_stage.as_deref());
    let told = ask.job(&row.layout, layers);
    if predictor.memory(&told).unwrap().iter().all(|m| case.room.holds(m)) {
        return predictor.predict(&told).unwrap().step_seconds;
    }
    search(&Case { fix: degrees(&row.layout), ..case.clone() }.ask(), predictor).unwrap().best[0].seconds
}

/// A layout's degrees, micro-batch and schedule; what it shares and computes again is open.
fn degrees(l: &Layout) -> Fix {
    Fix {
        tp: Some(l.tp),
        cp: Some(l.cp),
        pp: Some(l.pp),
        dp: Some(l.dp),
        mbs: Some(l.micro_batch),
        vpp: Some(l.vpp),
        schedule: Some(l.schedule),
        ..Fix::default()
    }
}

/// 280 servers of 8, of which the published runs used all; and 641 servers, a prime number.
#[test]
fn mt_nlg_leaves_devices_idle_where_they_do_not_divide() {
    for (cluster, devices) in [("selene", 4480), ("dgx-a100", 5128)] {
        let case = Case::known("mt-nlg-530b", cluster, devices, (2048, 1920));
        let started = Instant::now();
        let outcome = search(&case.ask(), &Predictor::default()).unwrap();
        let found = &outcome.best[0];
        let used = found.layout.devices();
        println!(
            "{cluster}: {:.3} s on {used} of {devices} by {} {:?}",
            found.seconds,
            fix::words(&found.layout),
            started.elapsed()
        );
        assert_eq!(found.layout.global_batch(), 1920);
        // 641 divides neither heads nor layers nor the batch, so not all of its servers can work.
        assert!(if devices == 5128 { used < devices } else { used <= devices }, "{found:?}");
    }
}

fn models() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/models");
    let mut files: Vec<PathBuf> = std::fs::read_dir(folder).unwrap().map(|e| e.unwrap().path()).collect();
    files.retain(|f| f.extension().is_some_and(|e| e == "json"));
    files.sort();
    files
}

/// A plan that fits and has the batch, or what would be needed. By default of a few models on few devices; with
/// `AUTOSHARD_SEARCH_ALL=1` of all on all.
#[test]
fn every_model_has_an_answer() {
    let devices: &[u64] = if all() { &[8, 64, 512, 4096] } else { &[8] };
    let (mut plans, mut nothing) = (0, 0);
    let few = ["gpt-oss-20b", "meta-llama-3.1-70b", "meta-llama-3.1-8b", "qwen3-8b"];
    let asked = |f: &PathBuf| all() || few.iter().any(|name| f.file_stem().is_some_and(|stem| stem == *name));
    for file in models().into_iter().filter(asked) {
        let name = file.file_stem().unwrap().to_str().unwrap().to_string();
        for devices in devices {
            let case = Case::known(&name, "dgx-h100", *devices, (4096, *devices));
            let most = case.facts.max_positions.unwrap_or(4096).min(4096);
            let case = Case { seq_len: most, ..case };
            let (predictor, started) = (Predictor::default(), Instant::now());
            let outcome = search(&case.ask(), &predictor).unwrap();
            match outcome.best.first() {
                Some(found) => {
                    let l = &found.layout;
                    assert!(l.devices() <= *devices && l.global_batch() == *devices, "{name}: {found:?}");
                    let stages = predictor.memory(&case.ask().job(l, found.stated.as_deref())).unwrap();
                    assert!(stages.iter().all(|m| case.room.holds(m)), "{name}: {found:?}");
                    assert!(outcome.counts.least_bound <= found.value, "{name}: {outcome:?}");
                    plans += 1;
                    println!("{name:<22} {devices:>5} {:>8.2?} {}", started.elapsed(), fix::words(l));
                }
                None => {
                    let said = infeasible(&case.ask(), &predictor).unwrap();
                    let room = case.room.bytes / (1.0 + case.room.margin);
                    assert!(said.smallest_memory > room, "{name}: {said:?}");
                    assert!(said.fewest_devices.is_none_or(|n| n > *devices), "{name}: {said:?}");
                    nothing += 1;
                    println!("{name:<22} {devices:>5} {:>8.2?} {}", started.elapsed(), said.reason);
                }
            }
        }
    }
    println!("{plans} plans, {nothing} times nothing fits");
    assert!(plans > 0 && nothing > 0);
}

//! Pipelines as they ship: every schedule on a whole model, its timeline, and Llama 3's published layouts.

use autoshard::decoder::Decoder;
use autoshard::hardware;
use autoshard::json::Document;
use autoshard::predict::predictor::{Job, Predictor, Says};
use autoshard::predict::{backend, Backend, CpMethod, Layout, PartKind, Precision, Prediction, Recompute, Schedule};
use autoshard::runs::{self, Entry};
use autoshard::stacks;
use std::collections::BTreeMap;
use std::path::Path;

const STAGES: u64 = 4;
const MICROBATCHES: u64 = 12;

fn layout(schedule: Schedule) -> Layout {
    let vpp = if schedule == Schedule::Interleaved { 2 } else { 1 };
    Layout {
        tp: 2,
        cp: 1,
        pp: STAGES,
        ep: 1,
        etp: 1,
        dp: 2,
        vpp,
        zero: 1,
        keep: false,
        shard_group: 2,
        sp: true,
        cp_method: CpMethod::Ring,
        micro_batch: 1,
        microbatches: MICROBATCHES,
        recompute: Recompute::None,
        schedule,
        order: None,
    }
}

/// Llama 3.1 8B on two servers.
fn with_job<T>(layout: &Layout, stages: Option<&[u64]>, f: impl FnOnce(&Job) -> T) -> T {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/models/meta-llama-3.1-8b.json");
    let decoder = Decoder::load(&path).unwrap();
    let cluster = hardware::cluster("dgx-h100").unwrap();
    let stack = stacks::find("megatron-core-2025").unwrap().stack;
    f(&Job {
        key: "8b",
        decoder: &decoder,
        cluster: &cluster,
        stack: &stack,
        layout,
        layers_per_stage: stages,
        seq_len: 8192,
        precision: Precision::Bf16,
        says: Says::default(),
    })
}

fn predict(layout: &Layout, stages: Option<&[u64]>) -> Prediction {
    with_job(layout, stages, |job| Predictor::default().predict(job).unwrap())
}

#[test]
fn parts_of_every_schedule_add_up_and_bubbles_are_ordered() {
    let mut bubble = BTreeMap::new();
    for schedule in Schedule::ALL {
        let p = predict(&layout(*schedule), None);
        let sum: f64 = p.parts.iter().filter(|x| x.exposed).map(|x| x.seconds).sum();
        assert!((sum / p.step_seconds - 1.0).abs() < 1e-9, "{schedule}: {sum} of {}", p.step_seconds);
        assert_eq!(p.stages.iter().map(|s| s.layers).sum::<u64>(), 32, "{schedule}");
        assert!(p.stages.iter().all(|s| s.busy > 0.0 && s.busy < p.step_seconds && s.memory.is_some()));
        bubble.insert(schedule.name(), p.exposed(PartKind::Bubble));
    }
    assert!(bubble["naive"] > 5.0 * bubble["1f1b"], "{bubble:?}");
    assert!(bubble["interleaved"] < bubble["1f1b"] && bubble["zb-h1"] < bubble["1f1b"], "{bubble:?}");
    assert!(bubble["zb-v"] < bubble["interleaved"], "{bubble:?}");
}

#[test]
fn memory_follows_the_schedule() {
    let saved = |schedule, stage: usize| {
        let p = predict(&layout(schedule), None);
        let m = p.stages[stage].memory.clone().unwrap();
        m.parts.iter().find(|p| p.name == "saved activations").unwrap().bytes
    };
    // GPipe keeps all micro-batches, 1F1B as many as stages follow.
    let ratio = saved(Schedule::GPipe, 1) / saved(Schedule::OneFOneB, 1);
    assert!((ratio - MICROBATCHES as f64 / 3.0).abs() < 0.2, "{ratio}");
    let ratio = saved(Schedule::OneFOneB, 0) / saved(Schedule::OneFOneB, 2);
    assert!((1.8..2.6).contains(&ratio), "{ratio}");
}

#[test]
fn stages_are_cut_as_stated() {
    let even = predict(&layout(Schedule::OneFOneB), None);
    let short = predict(&layout(Schedule::OneFOneB), Some(&[7, 9, 9, 7]));
    assert_eq!(short.stages.iter().map(|s| s.layers).collect::<Vec<_>>(), [7, 9, 9, 7]);
    // The head makes the last stage the longest, so a shorter one is faster than an even cut.
    assert!(even.stages[3].busy > even.stages[1].busy && short.stages[3].busy < short.stages[1].busy);
}

#[test]
fn the_timeline_of_every_schedule_is_whole() {
    for schedule in Schedule::ALL {
        let l = layout(*schedule);
        let (events, step) = with_job(&l, None, |job| {
            let p = Predictor::default();
            (p.trace(job).unwrap(), p.predict(job).unwrap().step_seconds)
        });
        let mut lanes: BTreeMap<_, Vec<_>> = BTreeMap::new();
        for e in &events {
            assert!(e.start >= 0.0 && e.start + e.seconds <= step * (1.0 + 1e-9), "{schedule}: {e:?} of {step}");
            lanes.entry((e.rank, e.lane)).or_default().push((e.start, e.start + e.seconds));
        }
        for (lane, times) in &mut lanes {
            times.sort_by(|a, b| a.0.total_cmp(&b.0));
            for pair in times.windows(2) {
                assert!(pair[1].0 >= pair[0].1 - 1e-9, "{schedule} {lane:?}: {pair:?}");
            }
        }
        let chunks = match schedule {
            Schedule::Interleaved | Schedule::ZbV | Schedule::DualPipeV => 2,
            _ => 1,
        };
        let forwards = |rank| events.iter().filter(|e| e.rank == rank && e.name.starts_with('F')).count() as u64;
        assert!((0..STAGES as u32).all(|r| forwards(r) == MICROBATCHES * chunks), "{schedule}");
    }
}

#[test]
fn llama_3s_layouts_lose_what_their_bubbles_say() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/runs/llama3.json");
    let entries = runs::read(&Document::read(&file).unwrap()).unwrap();
    let backend = backend();
    let mut mfu = BTreeMap::new();
    for entry in &entries {
        let Entry::Ready(row) = entry else { panic!("{entry:?}") };
        let cluster = backend.cluster(row.cluster.as_deref().unwrap()).unwrap();
        let stack = backend.stack(&row.stack).unwrap();
        let p = backend.predict_row(row, &cluster, &stack).unwrap();
        let peak = cluster.device.peak_of(Precision::Bf16.format()).unwrap();
        mfu.insert(row.id.clone(), p.utilisation(p.model_flops_causal, row.gpus, peak));
    }
    let of = |row: u32, chunks: u32| mfu[&format!("llama3_t4-00{row}-v{chunks}")];
    // 32 micro-batches on 16 stages and 8 chunks: a bubble of 15 / (8 · 32); half as many micro-batches, twice
    // that. What else a step has that does not shrink with it comes on top.
    let textbook = (1.0 + 15.0 / 128.0) / (1.0 + 15.0 / 256.0);
    let ratio = of(1, 8) / of(2, 8);
    assert!(ratio > textbook && ratio < textbook + 0.07, "{ratio}: {mfu:?}");
    for row in 1..=3 {
        assert!(of(row, 8) > of(row, 4), "{mfu:?}");
    }
}

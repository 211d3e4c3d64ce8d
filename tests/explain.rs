//! `why` and `diff`: golden texts on fixed machines, and what must hold between the answers.
//! `AUTOSHARD_BLESS=1 cargo test --test explain` writes what is printed now.

#[path = "common/plan_golden.rs"]
mod plan_golden;

use autoshard::explain::alternatives::alternatives;
use autoshard::explain::change::Outcome;
use autoshard::explain::diff::difference;
use autoshard::explain::{load, text, value, Subject};
use autoshard::planfile::{self, Bound, ModelRef, PlanFile};
use autoshard::predict::predictor::Predictor;
use autoshard::predict::settings::{settle, Job};
use autoshard::predict::{facts, fix, Order, Precision};
use plan_golden::golden;
use std::path::Path;

const MODELS: &str = "tests/data/models";

/// A plan by its decisions, as `plan -o` would write it.
fn plan(model: &str, devices: u64, batch: u64, decisions: &str, layers: &[u64]) -> PlanFile {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(MODELS).join(format!("{model}.json"));
    let facts = facts::read(&path).unwrap();
    let job = Job {
        facts: &facts,
        devices,
        seq_len: Some(8192),
        global_batch: Some(batch),
        stack: "megatron-core-2025",
        order: Order::STAGES_OUTSIDE,
    };
    let settings = settle(&fix::parse(decisions).unwrap(), &job).unwrap();
    PlanFile {
        model: ModelRef::of(&path, &facts.name).unwrap(),
        cluster: "dgx-h100".into(),
        stack: "megatron-core-2025".into(),
        precision: Precision::Bf16,
        seq_len: settings.seq_len,
        global_batch: settings.global_batch,
        devices,
        memory: Bound::default(),
        layout: settings.layout,
        layers_per_stage: layers.to_vec(),
    }
}

fn subject(plan: PlanFile, predictor: &Predictor) -> Subject {
    // Through the file, as the commands do.
    let plan = planfile::read(&planfile::write(&plan), "plan.json").unwrap();
    load(plan, Path::new("."), None, predictor).unwrap_or_else(|e| panic!("{e}"))
}

const PIPELINE: &str = "tp=2,pp=4,mbs=1,zero=1,recompute=full";
const SHARDED: &str = "tp=1,pp=1,mbs=1,zero=3,recompute=full";

#[test]
fn why_a_pipeline() {
    let predictor = Predictor::default();
    let s = subject(plan("meta-llama-3.1-8b", 16, 64, PIPELINE, &[8; 4]), &predictor);
    let all = alternatives(&s, &predictor);
    golden("why.8b.txt", &text::why(&s, &all));
    // Sorted by time, and each is what predicting its layout says.
    let times: Vec<f64> = all
        .iter()
        .filter_map(|a| match &a.outcome {
            Outcome::Changed(c) => Some(c.prediction.step_seconds),
            Outcome::Same | Outcome::Refused(_) => None,
        })
        .collect();
    assert!(times.len() > 10 && times.windows(2).all(|w| w[0] <= w[1]), "{times:?}");
    for a in &all {
        if let Outcome::Changed(c) = &a.outcome {
            assert_eq!(c.layout.devices(), 16, "{}", a.name);
            assert_eq!(c.layout.global_batch(), 64, "{}", a.name);
            let again = Predictor::default();
            let p = s.predict(&c.layout, None, &again).unwrap();
            assert_eq!(p.step_seconds, c.prediction.step_seconds, "{}", a.name);
        }
    }
}

#[test]
fn why_a_value_is_as_it_is() {
    let predictor = Predictor::default();
    let s = subject(plan("meta-llama-3.1-8b", 16, 64, "tp=4,cp=2,mbs=1,zero=1,recompute=full", &[32]), &predictor);
    let mut out = String::new();
    for name in ["attention", "%down", "%w_gate", "cross_entropy"] {
        out += &text::value(&s, &value::sites(&s, name, &predictor).unwrap());
        out.push('\n');
    }
    golden("why.value.txt", &out);
    let e = value::sites(&s, "attentoin", &predictor).unwrap_err().to_string();
    assert!(e.contains("\"attentoin\"; did you mean `attention`?"), "{e}");
}

/// What single messages cost adds up to what the prediction says of them.
#[test]
fn messages_of_all_values_are_those_of_the_step() {
    let predictor = Predictor::default();
    let s = subject(plan("meta-llama-3.1-8b", 16, 32, "tp=8,mbs=1,zero=1", &[32]), &predictor);
    let all = predictor.explain(&s.job(&s.plan.layout, None), &|_, _| true).unwrap();
    let m = s.plan.layout.microbatches as f64;
    let of = |t: &autoshard::predict::predictor::Told| {
        let one: f64 = t.messages.iter().map(|m| m.bytes).sum();
        let seen: f64 = t.messages.iter().map(|m| m.exposed).sum();
        (one * t.calls as f64 * m, seen * t.calls as f64 * m)
    };
    let (bytes, exposed) = all.iter().map(of).fold((0.0, 0.0), |a, b| (a.0 + b.0, a.1 + b.1));
    let tp = || s.prediction.parts.iter().filter(|p| p.name.starts_with("tp ") && p.exposed);
    let (want_bytes, want): (f64, f64) = tp().fold((0.0, 0.0), |a, p| (a.0 + p.bytes, a.1 + p.seconds));
    assert!((bytes / want_bytes - 1.0).abs() < 1e-9, "{bytes} bytes, {want_bytes} in the step");
    assert!((exposed / want - 1.0).abs() < 1e-6, "{exposed} s, {want} in the step");
}

#[test]
fn two_plans_side_by_side() {
    let predictor = Predictor::default();
    let a = subject(plan("meta-llama-3.1-8b", 16, 64, PIPELINE, &[8; 4]), &predictor);
    let b = subject(plan("meta-llama-3.1-8b", 16, 64, SHARDED, &[32]), &predictor);
    let d = difference(&a, &b, &predictor);
    golden("diff.8b.txt", &text::diff(&a, &b, &d));
    // The parts are the whole.
    let sum = |f: fn(&(String, f64, f64)) -> f64| d.time.iter().map(f).sum::<f64>();
    let near = |x: f64, y: f64| assert!((x / y - 1.0).abs() < 0.02, "{x} and {y}");
    near(sum(|r| r.1), a.prediction.step_seconds);
    near(sum(|r| r.2), b.prediction.step_seconds);
    let none = difference(&a, &a, &predictor);
    assert!(none.asked.is_empty() && none.decisions.is_empty() && none.single.is_empty());
    let other = PlanFile { seq_len: 4096, ..a.plan.clone() };
    let d = difference(&a, &subject(other, &predictor), &predictor);
    assert_eq!((d.asked.len(), d.single.len()), (1, 0));
}

/// A cut of one's own is kept where the pipeline is, and cut anew where it is not.
#[test]
fn stated_stages_are_predicted_as_stated() {
    let predictor = Predictor::default();
    let even = subject(plan("meta-llama-3.1-8b", 16, 64, PIPELINE, &[8; 4]), &predictor);
    let s = subject(plan("meta-llama-3.1-8b", 16, 64, PIPELINE, &[11, 7, 7, 7]), &predictor);
    assert_eq!((even.stated.clone(), s.stated.clone()), (None, Some(vec![11, 7, 7, 7])));
    assert!(s.prediction.step_seconds > even.prediction.step_seconds);
    for a in alternatives(&s, &predictor) {
        if let Outcome::Changed(c) = a.outcome {
            let layers: Vec<u64> = c.prediction.stages.iter().map(|s| s.layers).collect();
            assert_eq!(
                layers == [11, 7, 7, 7],
                !(a.name.starts_with("pp") || a.name.starts_with("vpp") || a.name.starts_with("schedule")),
                "{}: {layers:?}",
                a.name
            );
        }
    }
    let e = load(PlanFile { layers_per_stage: vec![8, 8, 8, 9], ..s.plan }, Path::new("."), None, &predictor);
    let e = e.map(|_| ()).unwrap_err().to_string();
    assert!(e.contains("has 33 layers, and the model 32"), "{e}");
}

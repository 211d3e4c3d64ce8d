//! Models in the project's own text form: what is trained, what is refused.

use autoshard::compile::{compile, plan_mesh};
use autoshard::data::Dataset;
use autoshard::hardware::Preset;
use autoshard::model::{Model, StepShape};
use autoshard::passes::autodiff::AdamW;
use autoshard::passes::search::Degrees;
use autoshard::runtime::Options;
use autoshard::train::Trainer;
use autoshard::weights::Weights;
use autoshard::{ir::DType, weights::InitKind};
use std::sync::Arc;

/// Reads a module whose entry has these parameters and this first line of body.
fn read(head: &str, params: &str, line: &str) -> Result<Model, String> {
    let source = format!(
        "{head}func @main(%tokens: i32[b=4, s=3], %labels: i32[b, s], {params}) -> (f64[]) {{
  %x = gather %w, %tokens : f64[b, s, d]
  %z = einsum %x, %w {{spec=\"b s d, v d -> b s v\"}} : f64[b, s, v]
{line}  %loss, %lse = cross_entropy %z, %labels : f64[b, s], f64[b, s]
  %sum = reduce_sum %loss {{spec=\"b s ->\"}} : f64[]
  return %sum
}}
"
    );
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m.shard");
    std::fs::write(&path, source).unwrap();
    let shape = StepShape { batch: 1, seq_len: 1, dtype: DType::F32 };
    Model::load(&path, shape).map_err(|e| e.to_string())
}

const TABLE: &str = "param %w: f64[v=5, d=2]";

#[test]
fn a_module_brings_its_sizes() {
    let m = read("", TABLE, "").unwrap();
    assert_eq!((m.shape.batch, m.shape.seq_len, m.shape.dtype, m.vocab), (4, 3, DType::F64, 5));
    assert_eq!(m.tensors[0].kind, InitKind::Matrix { fan_in: 2 });
}

#[test]
fn an_input_that_nothing_feeds_is_refused() {
    let e = read("", &format!("{TABLE}, %mask: f64[b, s]"), "").unwrap_err();
    assert!(e.contains("nothing else can be fed") && e.contains("%mask: f64[b=4, s=3]"), "{e}");
}

#[test]
fn a_module_without_parameters_is_refused() {
    let e = read("", "%w: f64[v=5, d=2]", "").unwrap_err();
    assert!(e.contains("marked `param`") && e.contains("%w"), "{e}");
}

#[test]
fn a_placement_that_would_be_ignored_is_refused() {
    let e = read("mesh @m = [tp: 2]\n", TABLE, "").unwrap_err();
    assert!(e.contains("the mesh [tp: 2] would be ignored") && e.contains("--mesh"), "{e}");
}

#[test]
fn names_of_the_step_are_refused() {
    let e = read("", &format!("{TABLE}, param %t: f64[d]"), "").unwrap_err();
    assert!(e.contains("%t") && e.contains("rename it"), "{e}");
}

#[test]
fn a_parameter_without_effect_has_a_gradient_of_zero() {
    let model = read("", &format!("{TABLE}, param %idle: f64[k=6]"), "").unwrap();
    for (dp, fsdp) in [(1, 1), (2, 1), (1, 4)] {
        let degrees = Degrees { dp, fsdp, tp: 1, sequence_parallel: false };
        let exe = Arc::new(compile(&model, &plan_mesh(&model, &degrees).unwrap(), &AdamW::default()).unwrap());
        let data = Dataset::golden(0, model.vocab, 3, 4, false).unwrap();
        let preset = Preset::this_machine().unwrap();
        let mut t = Trainer::new(exe, &Weights::Init { seed: 0 }, data, &preset, Options::default()).unwrap();
        let before = t.value("idle").unwrap();
        t.step().unwrap();
        assert_eq!(t.gradient("idle").unwrap(), [0.0; 6]);
        // Only the weight decay acts: 1 − lr·wd.
        for (a, b) in t.value("idle").unwrap().iter().zip(before) {
            assert!((a - b * (1.0 - 1e-3 * 0.1)).abs() < 1e-15, "{a} {b}");
        }
    }
}

//! Golden text, stage by stage. `AUTOSHARD_BLESS=1 cargo test --test golden` writes what is printed
//! now; the difference is then read like any other change.

use autoshard::import::config::from_text;
use autoshard::ir::text;
use autoshard::ir::verify::verify;
use autoshard::ir::{DType, Module};
use autoshard::model::{Model, StepShape};
use autoshard::passes::autodiff::{differentiate, AdamW};
use autoshard::passes::search::{apply, assign, localize, Degrees};
use autoshard::passes::simplify::simplify;
use std::path::{Path, PathBuf};

/// One layer, few sizes, every kind of node of a Qwen 3 block.
fn model() -> Model {
    let config = from_text(
        "config.json",
        r#"{"model_type": "qwen3", "hidden_size": 8, "intermediate_size": 12, "num_hidden_layers": 1,
            "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 4, "vocab_size": 10,
            "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "max_position_embeddings": 6, "hidden_act": "silu",
            "tie_word_embeddings": true, "attention_bias": false}"#,
    )
    .unwrap();
    let shape = StepShape { batch: 4, seq_len: 6, dtype: DType::F32 };
    Model::from_config(Path::new("config.json"), &config, shape).unwrap()
}

fn check(name: &str, module: &Module) {
    let printed = text::print(module);
    assert_eq!(&text::parse(&printed, name).unwrap_or_else(|e| panic!("{e}")), module, "{name}: parse∘print");
    compare(name, &printed);
}

fn compare(name: &str, printed: &str) {
    let path: PathBuf = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(format!("{name}.shard"));
    if std::env::var_os("AUTOSHARD_BLESS").is_some() {
        std::fs::write(&path, printed).unwrap();
        return;
    }
    let want = std::fs::read_to_string(&path).unwrap_or_default();
    if printed != want {
        let at = printed.lines().zip(want.lines()).position(|(a, b)| a != b).unwrap_or(0);
        let line = |s: &str| s.lines().nth(at).unwrap_or("(end)").to_string();
        panic!(
            "{name}.shard differs from line {}:\n- {}\n+ {}\nAUTOSHARD_BLESS=1 accepts the new text",
            at + 1,
            line(&want),
            line(printed)
        );
    }
}

#[test]
fn forward() {
    let m = model().module;
    verify(&m).unwrap_or_else(|e| panic!("{}", e[0]));
    check("qwen3.forward", &m);
}

#[test]
fn training() {
    let m = simplify(&differentiate(&model().module, &AdamW::default()).unwrap());
    verify(&m).unwrap_or_else(|e| panic!("{}", e[0]));
    check("qwen3.training", &m);
}

#[test]
fn local() {
    let model = model();
    let meshes = [("fsdp2", 1, 2, 1, false), ("dp2_tp2_sp", 2, 1, 2, true), ("tp4", 1, 1, 4, false)];
    for (name, dp, fsdp, tp, sequence_parallel) in meshes {
        let plan = assign(&model.module, &Degrees { dp, fsdp, tp, sequence_parallel }).unwrap();
        assert_eq!(apply(&model.module, &plan).unwrap().mesh, plan.mesh);
        let m = localize(&model.module, &plan, &AdamW::default()).unwrap();
        verify(&m).unwrap_or_else(|e| panic!("{name}: {}", e[0]));
        check(&format!("qwen3.local.{name}"), &m);
    }
}

/// A Llama block, forward and backward, as the kernels that run: on one rank, sharded, and with tensor
/// parallelism.
#[test]
fn kernels() {
    use autoshard::passes::fuse::{fuse, list, summary, Fusion};
    let config = from_text(
        "config.json",
        r#"{"model_type": "llama", "hidden_size": 8, "intermediate_size": 12, "num_hidden_layers": 2,
            "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 10, "rms_norm_eps": 1e-6,
            "rope_theta": 10000.0, "max_position_embeddings": 6, "hidden_act": "silu",
            "tie_word_embeddings": false, "attention_bias": false}"#,
    )
    .unwrap();
    let shape = StepShape { batch: 4, seq_len: 6, dtype: DType::F32 };
    let model = Model::from_config(Path::new("config.json"), &config, shape).unwrap();
    for (name, dp, tp) in [("one", 1, 1), ("dp2_tp2_sp", 2, 2)] {
        let plan = assign(&model.module, &Degrees { dp, fsdp: 1, tp, sequence_parallel: true }).unwrap();
        let m = localize(&model.module, &plan, &AdamW::default()).unwrap();
        for (level, fusion) in [("", Fusion::ALL), (".loops", Fusion::LOOPS)] {
            let mut text = String::new();
            let (mut others, mut moved, mut ideal) = (0, 0.0, 0.0);
            for f in ["block.fwd", "block.bwd"].map(|n| m.function(n).unwrap()) {
                let units = fuse(f, &m.mesh, &fusion).unwrap();
                let s = summary(f, &units, &m.mesh);
                (others, moved, ideal) = (others + s.others, moved + s.bytes, ideal + s.ideal);
                text += &list(f, &units, &m.mesh);
                text += &format!(
                    "; {} products, {} attention, {} others, {} collectives: {} bytes, ideal {}\n\n",
                    s.products, s.attention, s.others, s.collectives, s.bytes, s.ideal
                );
            }
            compare(&format!("llama.kernels.{name}{level}"), &text);
            assert!(others <= 12, "{name}{level}: {others} kernels besides products and attention");
            assert!(moved <= 1.1 * ideal, "{name}{level}: {moved} bytes, ideal {ideal}");
        }
    }
}

/// The reference page of the operations follows from their declarations.
#[test]
fn operations_page() {
    use autoshard::ir::core::{Gradient, Semantics};
    let mut page = String::from(
        "# Operations\n\nWritten by `AUTOSHARD_BLESS=1 cargo test --test golden` from the declarations in `ir/src/ops`.\n\n\
         | operation | kind | template | attributes (optional in brackets) | gradient | what it computes |\n|---|---|---|---|---|---|\n",
    );
    for op in autoshard::ir::ops::all() {
        let kind = match op.semantics {
            Semantics::Primitive(_) => "primitive",
            Semantics::Composite(_) => "composite",
            Semantics::Collective => "collective",
            Semantics::Call => "call",
        };
        let gradient = match &op.gradient {
            Gradient::Derived(_) => "derived".to_string(),
            Gradient::Backward { op, .. } => format!("`{op}`"),
            Gradient::Body => "of its body".to_string(),
            Gradient::None(reason) => format!("none: {reason}"),
        };
        let attrs: Vec<String> =
            op.attrs.iter().map(|a| if a.required { a.name.to_string() } else { format!("[{}]", a.name) }).collect();
        let doc = op.doc.replace('|', "\\|");
        page +=
            &format!("| `{}` | {kind} | {:?} | {} | {gradient} | {doc} |\n", op.name, op.template, attrs.join(", "));
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/operations.md");
    if std::env::var_os("AUTOSHARD_BLESS").is_some() {
        std::fs::write(&path, &page).unwrap();
    }
    let want = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(page == want, "docs/operations.md is not what the declarations say; AUTOSHARD_BLESS=1 writes it");
}

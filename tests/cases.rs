//! Reports of what went wrong in other tools, and sizes that divide nothing.

mod common;

use autoshard::compile::{compile, plan_mesh};
use autoshard::data::Dataset;
use autoshard::hardware::Preset;
use autoshard::ir::core::{Axis, Function, Strategy, Type};
use autoshard::ir::interp::{self, Tensor};
use autoshard::ir::kernel::KernelBody;
use autoshard::ir::program::{Buf, CollectiveKind, Program};
use autoshard::ir::{text, verify, Module};
use autoshard::model::{Model, StepShape};
use autoshard::passes::autodiff::AdamW;
use autoshard::passes::{cost, partition, schedule};
use autoshard::runtime::{Options, Runtime};
use autoshard::train::Trainer;
use autoshard::weights::Weights;
use autoshard::{import, ir};
use common::{build, degrees, golden, golden_dir, relative_l2, train};
use ir::DType;
use std::path::Path;
use std::sync::Arc;

/// Parses a module whose entry `@main` calls one function, gives the entry's values these states and
/// partitions it.
fn local(source: &str, states: &[(&str, &[&[&str]])]) -> Module {
    let mut module = text::parse(source, "case").unwrap_or_else(|e| panic!("{e}"));
    let entry = module.functions.iter_mut().find(|f| f.name == "main").unwrap();
    for (name, dims) in states {
        let v = entry.find(name).unwrap();
        for (d, axes) in entry.values[v.0 as usize].ty.dims.iter_mut().zip(*dims) {
            d.axes = axes.iter().map(|a| Axis::new(a)).collect();
        }
    }
    let local = partition::partition(&module).unwrap();
    verify::verify(&local).unwrap_or_else(|e| panic!("{}\n{}", e[0], text::print(&local)));
    local
}

fn run(program: &Program, args: &[Vec<f64>]) -> Vec<Vec<f64>> {
    let mut r = Runtime::new(Arc::new(program.clone()), Options::default()).unwrap();
    for (i, a) in args.iter().enumerate() {
        r.write_global(i, a).unwrap();
    }
    r.step(None).unwrap();
    let results = program.functions[program.entry].results.len();
    (0..results).map(|i| r.read_global(Buf::Result(i)).unwrap()).collect()
}

/// C06: the gradient of a norm's weight is a sum over tokens, so under sequence parallelism over tp
/// too; q and k norms are sums over heads even without it.
#[test]
fn c06_norm_gradients_are_summed_over_tp() {
    for (mesh, name) in
        [("tp=2", "model.layers.0.input_layernorm.weight"), ("tp=2,sp=0", "model.layers.1.self_attn.q_norm.weight")]
    {
        let one = train(build("qwen3_tiny", "", DType::F64), &golden("qwen3_tiny"));
        let exe = Arc::new(build("qwen3_tiny", mesh, DType::F64));
        let m = &exe.meta;
        let data = Dataset::golden(0, m.vocab, m.seq_len, m.batch, false).unwrap();
        let preset = Preset::this_machine().unwrap();
        let mut t = Trainer::new(exe.clone(), &Weights::Init { seed: 0 }, data, &preset, Options::default()).unwrap();
        t.step().unwrap();
        assert!(relative_l2(&t.gradient(name).unwrap(), &one.grads[name]) < 1e-12, "{mesh} {name}");
        let entry = &exe.program.functions[exe.program.entry];
        let at = entry.results.iter().position(|(n, _)| *n == format!("{name}.new")).unwrap() + 3;
        let copies: Vec<Vec<u8>> = (0..2).map(|r| t.runtime().read(r, Buf::Result(at)).unwrap()).collect();
        assert_eq!(copies[0], copies[1], "{mesh} {name}: the ranks' gradients differ");
    }
}

/// C08: partial over both axes to split over one, replicated over the other: a reduce-scatter and an
/// all-reduce, in the program and in the numbers.
#[test]
fn c08_partial_to_mixed_is_reduced_over_both_axes() {
    let source = "mesh @m = [a: 2, b: 2]
func @f(%x: f64[k=4, n=4]) -> (f64[n]) {
  %y = reduce_sum %x {spec=\"k n -> n\"} : f64[n] @ {a: k, b: k}
  return %y
}
func @main(%x: f64[k=4, n=4]) -> (f64[n]) {
  %y = call @f(%x) : f64[n]
  return %y
}
entry @main
";
    let local = local(source, &[("x", &[&["a", "b"], &[]]), ("y", &[&["a"]])]);
    let program = schedule::schedule(&local, &Default::default()).unwrap();
    let kinds: Vec<(CollectiveKind, String)> =
        program.collectives.iter().map(|c| (c.kind, c.axes.iter().map(Axis::name).collect())).collect();
    assert_eq!(kinds, [(CollectiveKind::ReduceScatter, "a".to_string()), (CollectiveKind::AllReduce, "b".to_string())]);
    // Rank r holds row r, all r + 1.
    let x: Vec<f64> = (0..16).map(|i| (i / 4 + 1) as f64).collect();
    assert_eq!(run(&program, &[x]), [vec![10.0; 4]]);
}

/// C12: a tied matrix is one parameter: one gradient (the sum of both uses), one moment, one entry in
/// the checkpoint, whatever the layout.
#[test]
fn c12_a_tied_matrix_is_one_parameter() {
    let g = golden("llama_tiny_tied");
    let table = "model.embed_tokens.weight";
    let one = train(build("llama_tiny_tied", "", DType::F64), &g);
    assert!(!one.grads.contains_key("lm_head.weight"));
    for mesh in ["fsdp=2", "tp=2"] {
        let run = train(build("llama_tiny_tied", mesh, DType::F64), &g);
        assert!(relative_l2(&run.grads[table], &one.grads[table]) < 1e-12, "{mesh}");
        assert!((run.norms[table].norm / one.norms[table].norm - 1.0).abs() < 1e-12, "{mesh}");
        assert!((run.norms[table].delta / one.norms[table].delta - 1.0).abs() < 1e-9, "{mesh}");
    }
    let exe = Arc::new(build("llama_tiny_tied", "tp=2", DType::F32));
    let m = &exe.meta;
    let data = Dataset::golden(0, m.vocab, m.seq_len, m.batch, false).unwrap();
    let preset = Preset::this_machine().unwrap();
    let t = Trainer::new(exe.clone(), &Weights::Init { seed: 0 }, data, &preset, Options::default()).unwrap();
    let folder = tempfile::tempdir().unwrap();
    t.save(folder.path()).unwrap();
    let bytes = std::fs::read(folder.path().join("model.safetensors")).unwrap();
    let names: Vec<String> =
        safetensors::SafeTensors::deserialize(&bytes).unwrap().names().iter().map(|n| n.to_string()).collect();
    assert!(names.contains(&table.to_string()) && !names.iter().any(|n| n.contains("lm_head")), "{names:?}");
}

/// C18: rows split four ways, columns two ways, the result wanted two by four ways: each rank computes
/// an eighth and moves at most its result; no operand is gathered.
#[test]
fn c18_no_operand_of_a_product_is_gathered() {
    let source = "mesh @m = [a: 2, b: 2, c: 2]
func @f(%x: f32[m=8192, k=8192], %w: f32[k, n=8192]) -> (f32[m, n]) {
  %y = einsum %x, %w {spec=\"m k, k n -> m n\"} : f32[m, n] @ {a: m, b: m, c: n}
  return %y
}
func @main(%x: f32[m=8192, k=8192], %w: f32[k, n=8192]) -> (f32[m, n]) {
  %y = call @f(%x, %w) : f32[m, n]
  return %y
}
entry @main
";
    let local = local(source, &[("x", &[&["a", "b"], &[]]), ("w", &[&[], &["c"]]), ("y", &[&["a"], &["c", "b"]])]);
    let program = schedule::schedule(&local, &Default::default()).unwrap();
    assert!(matches!(program.kernels[..], [ref k] if matches!(k.body, KernelBody::Gemm(_))));
    assert!(program.kernels[0].flops <= 1.5e11, "{}", program.kernels[0].flops);
    let [c] = &program.collectives[..] else { panic!("{:?}", program.collectives) };
    assert_eq!(c.kind, CollectiveKind::AllToAll);
    assert!(cost::wire_bytes(c.kind, &c.from, &c.to, &program.mesh) <= 32.0 * 1024.0 * 1024.0);
}

/// Rows of a split table: repeated ids add up on the rank that owns the row, and only there.
#[test]
fn repeated_ids_add_up_under_a_vocabulary_split() {
    let source = "mesh @m = [tp: 3]
func @f(%dy: f64[b=1, s=6, d=2], %ids: i32[b, s]) -> (f64[v=7, d]) {
  %t = scatter_add %dy, %ids {rows=7, dim=\"v\"} : f64[v=7, d] @ {tp: v}
  return %t
}
func @main(%dy: f64[b=1, s=6, d=2], %ids: i32[b, s]) -> (f64[v=7, d]) {
  %t = call @f(%dy, %ids) : f64[v=7, d]
  return %t
}
entry @main
";
    let local = local(source, &[("t", &[&["tp"], &[]])]);
    let program = schedule::schedule(&local, &Default::default()).unwrap();
    let dy: Vec<f64> = (0..12).map(f64::from).collect();
    let table = run(&program, &[dy, vec![6.0, 2.0, 6.0, 3.0, 2.0, 6.0]]);
    // Rows 6 = 0 + 2 + 5, 2 = 1 + 4, 3 = 3; columns 2·s and 2·s + 1.
    let mut want = vec![0.0; 14];
    (want[12], want[13]) = (0.0 + 4.0 + 10.0, 1.0 + 5.0 + 11.0);
    (want[4], want[5]) = (2.0 + 8.0, 3.0 + 9.0);
    (want[6], want[7]) = (6.0, 7.0);
    assert_eq!(table, [want]);
}

/// The vocabulary-parallel loss with its target on each rank, the vocabulary split unevenly.
#[test]
fn the_split_loss_finds_its_target_on_every_rank() {
    let source = "mesh @m = [tp: 3]
func @f(%z: f64[b=1, s=7, v=7], %labels: i32[b, s]) -> (f64[b, s]) {
  %loss, %lse = cross_entropy %z, %labels : f64[b, s], f64[b, s] @ {tp: v}
  return %loss
}
func @main(%z: f64[b=1, s=7, v=7], %labels: i32[b, s]) -> (f64[b, s]) {
  %loss = call @f(%z, %labels) : f64[b, s]
  return %loss
}
entry @main
";
    let local = local(source, &[("z", &[&[], &[], &["tp"]])]);
    let z: Vec<f64> = (0..49).map(|i| f64::from(i * 37 % 11) / 3.0).collect();
    let labels: Vec<f64> = (0..7).map(f64::from).collect();
    let got = run(&schedule::schedule(&local, &Default::default()).unwrap(), &[z.clone(), labels.clone()]);
    for (s, (row, loss)) in z.chunks(7).zip(&got[0]).enumerate() {
        let want = row.iter().map(|x| x.exp()).sum::<f64>().ln() - row[s];
        assert!((loss - want).abs() < 1e-12, "target {s}: {loss} against {want}");
    }
}

/// A query whose window lies beyond the keys sees none: its output is zero, forward and backward, in
/// the interpreter and in the kernel.
#[test]
fn a_query_that_sees_no_key_gives_zero() {
    let source = "mesh @m = [tp: 1]
func @f(%q: f64[b=1, s=5, g=1, r=1, e=2], %k: f64[b, t=2, g, e], %v: f64[b, t, g, h=2]) -> (f64[b, s, g, r, h], f64[b, s, g, r, e], f64[b, t, g, e], f64[b, t, g, h]) {
  %o, %lse = attention %q, %k, %v {scale=0.5, causal=1, window=2} : f64[b, s, g, r, h], f64[b, s, g, r]
  %dq, %dk, %dv = attention_bwd %q, %k, %v, %o, %lse, %o {scale=0.5, causal=1, window=2} : f64[b, s, g, r, e], f64[b, t, g, e], f64[b, t, g, h]
  return %o, %dq, %dk, %dv
}
func @main(%q: f64[b=1, s=5, g=1, r=1, e=2], %k: f64[b, t=2, g, e], %v: f64[b, t, g, h=2]) -> (f64[b, s, g, r, h], f64[b, s, g, r, e], f64[b, t, g, e], f64[b, t, g, h]) {
  %o, %dq, %dk, %dv = call @f(%q, %k, %v) : f64[b, s, g, r, h], f64[b, s, g, r, e], f64[b, t, g, e], f64[b, t, g, h]
  return %o, %dq, %dk, %dv
}
entry @main
";
    let local = local(source, &[]);
    let args: Vec<Vec<f64>> =
        [10, 4, 4].iter().map(|n| (0..*n).map(|i| f64::from(i * 7 % 5) - 1.5).collect()).collect();
    let got = run(&schedule::schedule(&local, &Default::default()).unwrap(), &args);
    let entry = local.entry_function().unwrap();
    let tensors: Vec<Tensor> =
        entry.params.iter().zip(&args).map(|(p, a)| Tensor::new(entry.ty(p.value).clone(), a.clone())).collect();
    let want = interp::run(&local, entry, &tensors).unwrap();
    assert_eq!(got[0][6..], [0.0; 4], "queries 3 and 4 see keys 2.. and 3..");
    assert_eq!(got[1][6..], [0.0; 4]);
    for (g, w) in got.iter().zip(&want) {
        assert!(g.iter().zip(&w.data).all(|(a, b)| (a - b).abs() < 1e-12), "{g:?} against {:?}", w.data);
    }
}

/// A configuration of odd sizes: vocabulary 509, 6 heads over 2 key/value heads, 3 layers.
fn odd() -> import::ModelConfig {
    let text = r#"{"model_type": "llama", "hidden_size": 30, "intermediate_size": 77, "num_hidden_layers": 3,
        "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 10, "vocab_size": 509,
        "rms_norm_eps": 1e-05, "rope_theta": 10000.0, "max_position_embeddings": 64, "hidden_act": "silu",
        "tie_word_embeddings": false}"#;
    import::config::from_text("odd.json", text).unwrap()
}

#[test]
fn odd_sizes_on_uneven_meshes_equal_one_rank() {
    let shape = StepShape { batch: 6, seq_len: 19, dtype: DType::F64 };
    let model = Model::from_config(Path::new("odd.json"), &odd(), shape).unwrap();
    let losses = |mesh: &str| {
        let plan = plan_mesh(&model, &degrees(mesh)).unwrap();
        let exe = Arc::new(compile(&model, &plan, &AdamW::default()).unwrap());
        let data = Dataset::golden(0, model.vocab, shape.seq_len, shape.batch, false).unwrap();
        let preset = Preset::this_machine().unwrap();
        let mut t = Trainer::new(exe, &Weights::Init { seed: 0 }, data, &preset, Options::default()).unwrap();
        (0..3).map(|_| t.step().unwrap().loss).collect::<Vec<_>>()
    };
    let one = losses("");
    for mesh in ["tp=2", "tp=3", "tp=6", "tp=6,sp=0", "fsdp=3", "dp=3,tp=2", "fsdp=2,tp=3", "dp=2,fsdp=3,tp=6"] {
        for (a, b) in losses(mesh).iter().zip(&one) {
            assert!(((a - b) / b).abs() < 1e-9, "{mesh}: {a} against {b}");
        }
    }
    let error = plan_mesh(&model, &degrees("tp=4")).unwrap_err().to_string();
    assert!(error.contains("1, 2, 3, 6"), "{error}");
}

/// The whole training step through the reference interpreter equals the golden: the interpreter and
/// the kernels are two implementations of one text.
#[test]
fn the_interpreter_agrees_with_the_golden() {
    let g = golden("llama_tiny");
    let shape = StepShape { batch: 4, seq_len: 64, dtype: DType::F64 };
    let model = Model::load(&golden_dir("llama_tiny"), shape).unwrap();
    let entry: &Function = model.module.entry_function().unwrap();
    let data = Dataset::golden(0, model.vocab, 64, 4, false).unwrap();
    let rows: Vec<Vec<f64>> = (0..4).map(|b| data.row(0, b).unwrap().iter().map(|x| f64::from(*x)).collect()).collect();
    let ids = |from: usize| rows.iter().flat_map(|r| r[from..from + 64].to_vec()).collect::<Vec<f64>>();
    let weights = Weights::Init { seed: 0 };
    let args: Vec<Tensor> = entry
        .params
        .iter()
        .map(|p| {
            let v = entry.value(p.value);
            let data = match v.name.as_str() {
                "tokens" => ids(0),
                "labels" => ids(1),
                name => {
                    let t = model.tensors.iter().find(|t| t.name == name).unwrap();
                    weights.read_box(name, &t.shape, t.kind, &vec![0; t.shape.len()], &t.shape).unwrap()
                }
            };
            Tensor::new(Type { partial: None, ..v.ty.clone() }, data)
        })
        .collect();
    let loss = interp::run(&model.module, entry, &args).unwrap()[0].data[0];
    let want = g["loss"][0].as_f64().unwrap();
    assert!(((loss - want) / want).abs() < 1e-12, "{loss} against {want}");
}

/// Strategies are data: an illegal one is refused with the node as text.
#[test]
fn an_illegal_strategy_is_refused_naming_the_factors() {
    let source = "mesh @m = [tp: 2]
func @f(%x: f32[b=2, n=4]) -> (f32[b, n]) {
  %y = exp %x : f32[b, n]
  return %y
}
func @main(%x: f32[b=2, n=4]) -> (f32[b, n]) {
  %y = call @f(%x) : f32[b, n]
  return %y
}
entry @main
";
    let mut module = text::parse(source, "case").unwrap();
    module.functions[0].nodes[0].strategy = Strategy::Axes(vec![(Axis::new("tp"), "k".to_string())]);
    let error = partition::partition(&module).unwrap_err().to_string();
    assert!(error.contains("%y = exp %x") && error.contains("it has b, n"), "{error}");
}

/// Ranks that train on the same tokens are stopped, naming the step, unless that is allowed; a few
/// tokens that repeat by chance are no evidence.
#[test]
fn duplicate_data_is_noticed_and_chance_is_not() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("same.txt");
    std::fs::write(&path, "a".repeat(1000)).unwrap();
    let run = |seq_len: usize, allow_duplicate_data: bool| {
        let shape = StepShape { batch: 2, seq_len, dtype: DType::F32 };
        let model = Model::load(&golden_dir("llama_tiny"), shape).unwrap();
        let exe = Arc::new(compile(&model, &plan_mesh(&model, &degrees("dp=2")).unwrap(), &AdamW::default()).unwrap());
        let data = Dataset::open(&path, model.vocab, seq_len, 2, false).unwrap();
        let options = Options { allow_duplicate_data, ..Options::default() };
        let preset = Preset::this_machine().unwrap();
        let mut t = Trainer::new(exe, &Weights::Init { seed: 0 }, data, &preset, options).unwrap();
        t.step().map(|s| s.loss).map_err(|e| e.to_string())
    };
    let error = run(32, false).unwrap_err();
    assert!(
        error.contains("step 0") && error.contains("ranks 0 and 1") && error.contains("--allow-duplicate-data"),
        "{error}"
    );
    assert!(run(32, true).is_ok() && run(4, false).is_ok());
}

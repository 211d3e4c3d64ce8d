//! Every operation against numbers made by someone else (numpy and JAX, `tests/vectors`), and through
//! the text form.

mod common;

use autoshard_ir::core::{Attrs, Builder, DType, Function, Module, Semantics, Type};
use autoshard_ir::text::{parse, print};
use autoshard_ir::verify::verify;
use autoshard_ir::{ops, Mesh};
use common::{assert_close, cases, computing};

/// Operations without rounding: they move, compare or draw.
const EXACT: &[&str] = &[
    "neg",
    "abs",
    "max",
    "min",
    "less",
    "equal",
    "select",
    "cast",
    "reduce_max",
    "broadcast",
    "transpose",
    "reshape",
    "slice",
    "concat",
    "pad",
    "gather",
    "top_k",
    "take",
    "slots",
    "iota",
    "constant",
    "random_uniform",
];

#[test]
fn every_operation_has_two_vectors() {
    let cases = cases();
    for op in computing() {
        let n = cases.iter().filter(|c| c.op == op).count();
        assert!(n >= 2, "{} has {n} vectors; add some to tests/vectors/make.py", op.name);
    }
}

#[test]
fn the_interpreter_equals_the_vectors() {
    for case in cases() {
        let got = case.run();
        assert_eq!(got.len(), case.outputs.len(), "{case}");
        let tolerance = if EXACT.contains(&case.op.name) { 0.0 } else { 1e-12 };
        for (i, (got, want)) in got.iter().zip(&case.outputs).enumerate() {
            assert_close(got, want, tolerance, &format!("result {i} of {case}"));
            // A composite names the dimensions of its results as its body does.
            if let Semantics::Primitive(_) = case.op.semantics {
                assert_eq!(got.ty, want.ty, "{case}");
            }
        }
    }
}

/// A module with a function for each vector, and one with every collective and a call.
fn every_op() -> Module {
    let mut functions = Vec::new();
    for (i, case) in cases().iter().enumerate() {
        let mut f = Function::new(format!("{}.{i}", case.op.name));
        case.build(&mut f).unwrap_or_else(|e| panic!("{case}: {e}"));
        functions.push(f);
    }
    let mut callee = Function::new("callee");
    let ty = Type::new(DType::F32, &[("b", 4)]);
    let x = callee.add_param("x", ty.clone(), true);
    callee.results.push(x);
    let mut main = Function::new("main");
    let mut x = main.add_param("x", ty, false);
    let mut b = Builder::new(&mut main);
    for op in ops::all().filter(|o| matches!(o.semantics, Semantics::Collective)) {
        let attrs = Attrs::new().text("axes", "tp").int("control", 1);
        x = b.op(op.name, op.name, &[x], attrs).unwrap_or_else(|e| panic!("{e}"));
    }
    let results = b.call(&callee, &[x], &["y".to_string()]);
    main.results = results;
    functions.extend([callee, main]);
    Module { mesh: Mesh::new(&[("tp", 2)]), functions, entry: "main".to_string() }
}

#[test]
fn every_operation_round_trips() {
    let m = every_op();
    let used = |name: &str| m.functions.iter().flat_map(|f| &f.nodes).any(|n| n.op.name == name);
    assert_eq!(ops::names().find(|n| !used(n)), None);
    assert_eq!(verify(&m), Ok(()));
    let text = print(&m);
    let again = parse(&text, "ops.shard").unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(m, again);
    assert_eq!(print(&again), text);
}

/// A composite of bf16 operands computes in f32 and rounds what leaves: each result is the nearest bf16
/// of what f64 gives for the same operands, and results of type A are not rounded to it.
#[test]
fn composites_of_bf16_round_once() {
    use autoshard_ir::core::Attr;
    use autoshard_ir::interp::Tensor;
    use autoshard_ir::text::template_header;
    let mut seen = 0;
    for case in cases() {
        let Semantics::Composite(source) = case.op.semantics else { continue };
        if case.inputs.iter().chain(&case.outputs).any(|t| t.data.iter().any(|x| x.abs() > 1e6)) {
            continue; // far from what sixteen bits tell apart
        }
        let header = template_header(source).unwrap();
        let typed = |dtype: DType, arithmetic: DType| {
            let mut c = case.clone();
            for (t, h) in c.inputs.iter_mut().zip(&header.params) {
                let to = match h.dtype.as_str() {
                    "T" => dtype,
                    "A" => arithmetic,
                    _ => continue,
                };
                let rounded = t.data.iter().map(|x| DType::Bf16.round(*x)).collect();
                *t = Tensor::new(Type { dtype: to, ..t.ty.clone() }, rounded);
            }
            for (_, a) in c.attrs.0.iter_mut().filter(|(n, _)| n == "dtype") {
                *a = Attr::Str(dtype.name().to_string());
            }
            c.run()
        };
        let (narrow, wide) = (typed(DType::Bf16, DType::F32), typed(DType::F64, DType::F64));
        for (i, (got, want)) in narrow.iter().zip(&wide).enumerate() {
            let rounded = header.results[i] == "T";
            assert_eq!(got.ty.dtype, if rounded { DType::Bf16 } else { DType::F32 }, "result {i} of {case}");
            // Half a unit in the last of eight places, or of f32's arithmetic.
            let tolerance = if rounded { 1.0 / 256.0 } else { 1e-5 };
            assert_close(
                got,
                &Tensor::new(got.ty.clone(), want.data.clone()),
                tolerance,
                &format!("result {i} of {case}"),
            );
            seen += 1;
        }
    }
    assert!(seen >= 30, "{seen} results");
}

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

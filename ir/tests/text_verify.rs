//! The verifier: what it accepts, and each violation it names.

use autoshard_ir::core::{Attrs, Axis, Def, Dim, DimMap, Factor, FactorKind, Linearity, Partial, Rule, ScalarBody};
use autoshard_ir::text::parse;
use autoshard_ir::verify::{infer_states, verify, VerifyError};
use autoshard_ir::{ops, DType, Mesh, Module, Monoid, Strategy, Type, ValueId};

fn module(source: &str) -> Module {
    parse(source, "t").unwrap_or_else(|e| panic!("{e}"))
}

fn errors(m: &Module) -> String {
    match verify(m) {
        Ok(()) => String::new(),
        Err(e) => e.iter().map(|e| format!("{e}\n")).collect(),
    }
}

/// A local function over dp, tp with the given parameters, results and statements.
fn local(params: &str, results: &str, body: &str) -> Module {
    module(&format!("mesh @m = [dp: 2, tp: 2]\nfunc @f({params}) -> ({results}) {{\n{body}\n}}\n"))
}

const COLUMN_ROW: &str = r#"
  %h = einsum %x, %w {spec="b d, d f -> b f"} : f32[b@dp, f@tp] @ {dp: b, tp: f}
  %p = einsum %h, %v {spec="b f, f d -> b d"} : f32[b@dp, d] partial(sum: tp) @ {dp: b, tp: f}
  %q = neg %p : f32[b@dp, d] partial(sum: tp) @ {dp: b}
  %r = add %p, %q : f32[b@dp, d] partial(sum: tp) @ follow
  %y = all_reduce %r {axes="tp"} : f32[b@dp, d]
  return %y"#;
const WEIGHTS: &str = "%x: f32[b=4@dp, d=8], %w: f32[d, f=8@tp], %v: f32[f@tp, d]";

#[test]
fn a_column_row_pair_is_accepted() {
    assert_eq!(errors(&local(WEIGHTS, "f32[b@dp, d]", COLUMN_ROW)), "");
}

#[test]
fn state_errors() {
    let cases = [
        // The strategy splits f, the operand does not.
        (COLUMN_ROW.replace("f32[b@dp, f@tp] @ {dp: b, tp: f}", "f32[b@dp, f] @ {dp: b}"), "dimension f of operand 1 (f32[d=8, f=8@tp]) is split over tp, but the strategy asks that it be whole"),
        // A result that the strategy does not give.
        (COLUMN_ROW.replace("partial(sum: tp) @ {dp: b, tp: f}", "@ {dp: b, tp: f}"), "%p is f32[b=4@dp, d=8], but the strategy gives f32[b=4@dp, d=8] partial(sum: tp)"),
        (COLUMN_ROW.replace("%q = neg %p", "%q = exp %p"), "operand 0 is partial over tp, and the operation is not linear in it"),
        (COLUMN_ROW.replace("neg %p : f32[b@dp, d] partial(sum: tp) @ {dp: b}", "neg %p : f32[b@dp, d] @ {dp: b, tp: d}"), "operand 0 (f32[b=4@dp, d=8] partial(sum: tp)) is whole, but the strategy asks that it be split over tp"),
        (COLUMN_ROW.replace("add %p, %q", "mul %p, %q"), "operands 0 and 1 are both partial, and a product of sums"),
        (COLUMN_ROW.replace("add %p, %q : f32[b@dp, d] partial(sum: tp) @ follow", "add %p, %x : f32[b@dp, d] partial(sum: tp) @ {dp: b}"), "operand 0 is partial over tp and operand 1 is not: it would be added once per rank; make it partial with `shard` (R→P)"),
        (COLUMN_ROW.replace("add %p, %q", "add %p, %x"), "follows its operands, so they must have one state"),
        (COLUMN_ROW.replace("all_reduce %r", "all_gather %r"), "all_gather does not reduce, but tp is no longer partial"),
        (COLUMN_ROW.replace("all_reduce %r {axes=\"tp\"} : f32[b@dp, d]", "all_reduce %r {axes=\"tp\"} : f32[b, d]"), "all_reduce does not gather, but dp no longer splits the value"),
        (COLUMN_ROW.replace("all_reduce %r {axes=\"tp\"} : f32[b@dp, d]", "all_reduce %r {axes=\"tp\"} : f32[b@dp, d@tp]"), "all_reduce does not split, but tp now does; use reduce_scatter"),
    ];
    for (body, want) in cases {
        let results = if body.contains("f32[b, d]\n") {
            "f32[b, d]"
        } else if body.contains("d@tp]\n  return") {
            "f32[b@dp, d@tp]"
        } else {
            "f32[b@dp, d]"
        };
        let got = errors(&local(WEIGHTS, results, &body));
        assert!(got.contains(want), "want {want}\ngot {got}\n{body}");
        assert!(got.contains("function @f: state: ") && got.contains("\n  %"), "{got}");
    }
}

#[test]
fn collectives_change_states_in_their_ways_only() {
    let ok = [
        ("f32[b=4]", "shard", "f32[b@tp]"),
        ("f32[b=4]", "shard", "f32[b] partial(sum: tp)"),
        ("f32[b=4@tp]", "shard", "f32[b] partial(sum: tp)"),
        ("f32[b=4@tp]", "all_gather", "f32[b]"),
        ("f32[b=4@dp·tp]", "all_gather", "f32[b@dp]"),
        ("f32[b=4] partial(sum: dp·tp)", "reduce_scatter", "f32[b@tp] partial(sum: dp)"),
        ("f32[b=4@dp·tp]", "all_to_all", "f32[b@tp·dp]"),
    ];
    for (from, op, to) in ok {
        let m = local(&format!("%x: {from}"), to, &format!("  %y = {op} %x {{axes=\"tp\"}} : {to}\n  return %y"));
        assert_eq!(errors(&m), "", "{from} {op} {to}");
    }
    let bad = [
        ("f32[b=4] partial(sum: tp)", "shard", "f32[b]", "shard does not reduce"),
        ("f32[b=4]", "all_reduce", "f32[b] partial(sum: tp)", "cannot make a value partial over tp"),
        ("f32[b=4@tp]", "shard", "f32[b]", "shard does not gather"),
        ("f32[b=4] partial(sum: tp)", "shard", "f32[b] partial(max: tp)", "cannot change how parts combine"),
    ];
    for (from, op, to, want) in bad {
        let m = local(&format!("%x: {from}"), to, &format!("  %y = {op} %x {{axes=\"tp\"}} : {to}\n  return %y"));
        assert!(errors(&m).contains(want), "{from} {op} {to}: {}", errors(&m));
    }
}

#[test]
fn inner_factors_are_split_in_global_modules_only() {
    let text = "mesh @m = [tp: 2]\nfunc @f(%x: f32[b=4, d=8], %w: f32[d]) -> (f32[b, d]) {\n  %y = rmsnorm %x, %w {eps=1e-5} : f32[b, d] @ {tp: d}\n  return %y\n}\n";
    assert_eq!(errors(&module(text)), "");
    let local = text.replace("d=8", "d=8@tp").replace("f32[b, d]", "f32[b, d@tp]").replace("f32[d]", "f32[d@tp]");
    assert!(errors(&module(&local))
        .contains("factor d is combined inside rmsnorm and split over tp; expand its body first"));
}

#[test]
fn calls_match_states_too() {
    let text = "mesh @m = [tp: 2]\nfunc @g(%x: f32[b=4@tp]) -> (f32[b@tp]) { return %x }\nfunc @f(%x: f32[b=4@tp]) -> (f32[b@tp]) {\n  %y = call @g(%x) : f32[b@tp]\n  return %y\n}\nentry @f\n";
    let mut m = module(text);
    assert_eq!(errors(&m), "");
    m.functions[1].values[1].ty.dims[0].axes.clear();
    assert!(errors(&m).contains("result 0 of @g is f32[b=4@tp], the call has f32[b=4]"), "{}", errors(&m));
    m.functions.swap(0, 1);
    assert!(errors(&m).contains("@g is not written before its caller; calls must not form a cycle"));
}

/// Damage that no text can express.
#[test]
fn broken_structure() {
    let text = "mesh @m = [tp: 2]\nfunc @f(%x: f32[b=4]) -> (f32[b]) {\n  %y = neg %x : f32[b] @ {tp: b}\n  %z = affine %y {mul=2.0, add=1.0} : f32[b]\n  return %z\n}\n";
    type Damage = fn(&mut Module);
    let cases: [(Damage, &str); 17] = [
        (|m| m.entry = "g".into(), "module: entry @g is not a function"),
        (|m| m.functions.push(m.functions[0].clone()), "module: function @f is defined twice"),
        (|m| m.functions[0].name = "a b".into(), "cannot be written"),
        (|m| m.mesh.axes.push((Axis::new("tp"), 2)), "mesh axis tp is given twice"),
        (|m| m.functions[0].nodes[0].inputs[0] = ValueId(9), "value 9 does not exist"),
        (|m| m.functions[0].nodes[0].inputs[0] = ValueId(2), "%z is used before it is defined\n  %y = neg %z"),
        (|m| m.functions[0].results[0] = ValueId(7), "value 7 does not exist"),
        (|m| m.functions[0].values[1].name = "x".into(), "%x is defined twice"),
        (|m| m.functions[0].values[1].def = Def::Param(3), "is not what its definition"),
        (|m| m.functions[0].values[1].ty.dims[0].size = 5, "gives f32[b=4], not f32[b=5]\n  %y = neg %x"),
        (|m| m.functions[0].values[1].ty.dims[0].name = "b c".into(), "dimension name \"b c\" cannot be written"),
        (|m| m.functions[0].nodes[1].attrs = Attrs::new(), "affine needs the attribute `mul`"),
        (|m| m.functions[0].nodes[0].attrs = Attrs::new().int("k", 1), "neg has no attribute `k`"),
        (
            |m| m.functions[0].nodes[0].strategy = Strategy::Axes(vec![(Axis::new("tp"), "q".into())]),
            "strategy: no factor q (for tp); its factors: b",
        ),
        (|m| m.functions[0].nodes[0].callee = Some("g".into()), "neg calls no function"),
        (|m| m.functions[0].nodes[0].inputs.clear(), "takes 1 operand, got 0"),
        (|m| m.functions[0].nodes[0].op = &ops::CALL, "a call without a function"),
    ];
    for (damage, want) in cases {
        let mut m = module(text);
        assert_eq!(errors(&m), "");
        damage(&mut m);
        assert!(errors(&m).contains(want), "want {want}\ngot {}", errors(&m));
    }
}

#[test]
fn backward_headers_are_checked() {
    let f = "func @f(%x: f32[b=4]) -> (f32[b]) { return %x }\n";
    let g = |head: &str| {
        errors(&module(&format!("{f}func @g(%x: f32[b=4]) -> (f32[b]) backward of {head} {{ return %x }}\nentry @f\n")))
    };
    assert_eq!(g("@f (c0) -> (0)"), "");
    assert!(g("@h (c0) -> (0)").contains("backward of @h, which does not exist"));
    assert!(g("@f (c1) -> (0)").contains("which has no Cotangent(1)"));
    assert!(g("@f (c0) -> (1)").contains("which has no parameter 1"));
    assert!(g("@f () -> (0)").contains("names 0 parameters and 1 results"));
}

#[test]
fn every_violation_is_returned() {
    let mut m =
        module("func @f(%x: f32[b=4]) -> (f32[b]) {\n  %y = neg %x : f32[b]\n  %z = neg %y : f32[b]\n  return %z\n}\n");
    m.entry = "g".into();
    m.functions[0].nodes[0].attrs = Attrs::new().int("k", 1);
    m.functions[0].nodes[1].attrs = Attrs::new().int("k", 1);
    let e = verify(&m).unwrap_err();
    assert_eq!(e.len(), 3);
    assert!(matches!(&e[0], VerifyError::Module { .. }));
    assert!(
        matches!(&e[2], VerifyError::Node { function, node, .. } if function == "f" && node.starts_with("%z = neg %y"))
    );
}

/// `a[m] → [m/2·r]`-like maps: only even splits of the major factor of a merged dimension.
#[test]
fn merged_dimensions_split_by_their_major_factor() {
    let free = |name: &str, size| Factor { name: name.into(), size, kind: FactorKind::Free(Monoid::Sum) };
    let rule = |g| Rule {
        factors: vec![free("g", g), free("r", 2)],
        operands: vec![vec![DimMap { factors: vec![0, 1], offset: 0 }]],
        results: vec![vec![DimMap::factor(0), DimMap::factor(1)]],
        result_types: vec![Type::new(DType::F32, &[("g", g), ("r", 2)])],
        body: Some(ScalarBody::Sum(0.0)),
        linear: Linearity::Joint,
    };
    let mesh = Mesh::new(&[("dp", 2), ("tp", 2)]);
    let h = |size, axes: &[&str]| Type {
        dtype: DType::F32,
        dims: vec![Dim { name: "h".into(), size, axes: axes.iter().map(|a| Axis::new(a)).collect() }],
        partial: None,
    };
    let on = |factor: &str| Strategy::Axes(vec![(Axis::new("tp"), factor.into())]);
    let even = infer_states(&rule(4), &on("g"), &[&h(8, &["tp"])], &mesh).unwrap();
    assert_eq!(even[0].to_string(), "f32[g=4@tp, r=2]");
    let uneven = infer_states(&rule(3), &on("g"), &[&h(6, &["tp"])], &mesh).unwrap_err();
    assert!(uneven.contains("the axes tp must divide it"), "{uneven}");
    let minor = infer_states(&rule(4), &on("r"), &[&h(8, &[])], &mesh).unwrap_err();
    assert!(minor.contains("factor r is not the major factor of dimension h"), "{minor}");
    // A maximum passes through a node that only moves elements.
    let mut max = h(8, &[]);
    max.partial = Some(Partial { monoid: Monoid::Max, axes: vec![Axis::new("dp")] });
    let moved = infer_states(&rule(4), &Strategy::Follow, &[&max], &mesh).unwrap();
    assert_eq!(moved[0].to_string(), "f32[g=4, r=2] partial(max: dp)");
    let wrong = infer_states(&rule(4), &Strategy::None, &[], &mesh).unwrap_err();
    assert!(wrong.contains("takes 1 operands, 0 are given"));
}

//! Every rule of simplification: a body before and after as text, and equal numbers.
//!
//! `tests/simplify/RULE.shard` holds `@before`; `AUTOSHARD_BLESS=1 cargo test -p autoshard-passes --test simplify`
//! writes what becomes of it as `@after`, with the rules that it took and what both cost.

use autoshard_ir::core::{Function, Module};
use autoshard_ir::interp::{self, Tensor};
use autoshard_ir::verify::verify;
use autoshard_ir::{ops, text};
use autoshard_passes::simplify::{dag_cost, offer, offers, simplify, Exactness, Kept, Limits, Offer, Rule, RULES};
use std::path::PathBuf;

fn path(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/simplify").join(format!("{name}.shard"))
}

fn parse(source: &str) -> Module {
    let module = text::parse(source, "simplify").unwrap_or_else(|e| panic!("{e}"));
    verify(&module).unwrap_or_else(|e| panic!("{}", e[0]));
    module
}

/// The body that a rule's text starts from.
fn before(rule: &Rule) -> (String, Function) {
    let source = std::fs::read_to_string(path(rule.name)).unwrap_or_else(|e| panic!("{}: {e}", rule.name));
    let function = parse(&source).function("before").unwrap().clone();
    (source, function)
}

/// An exact rule by exact rules alone, if they do it.
fn limits(rule: &Rule, f: &Function) -> Limits {
    let all = Limits { seconds: None, ..Limits::default() };
    let alone = Limits { exactness: rule.exactness, ..all.clone() };
    if offer(f, &alone).is_ok() {
        alone
    } else {
        all
    }
}

fn offered(rule: &Rule, f: &Function) -> Offer {
    offer(f, &limits(rule, f)).unwrap_or_else(|e| panic!("{}: {e}", rule.name))
}

fn module(functions: Vec<Function>) -> Module {
    let entry = functions[0].name.clone();
    Module { functions, entry, ..Module::default() }
}

fn show(rule: &Rule, f: &Function, offer: &Offer) -> String {
    let condition = if rule.condition.is_empty() { String::new() } else { format!(", where {}", rule.condition) };
    let body = Function { name: "after".to_string(), ..offer.body.clone() };
    format!(
        "; {}: {} = {}{condition} ({:?})\n; by {}: {} FLOPs and {} bytes become {} and {}\n{}",
        rule.name,
        rule.left,
        rule.right,
        rule.exactness,
        offer.rules.join(", "),
        offer.before.flops,
        offer.before.bytes,
        offer.after.flops,
        offer.after.bytes,
        text::print(&module(vec![f.clone(), body]))
    )
}

#[test]
fn every_rule_as_text() {
    for rule in RULES {
        let (source, f) = before(rule);
        let offer = offered(rule, &f);
        assert!(offer.rules.contains(&rule.name), "{} is not among {:?}", rule.name, offer.rules);
        let shown = show(rule, &f, &offer);
        parse(&shown);
        if shown == source {
            continue;
        }
        assert!(
            std::env::var_os("AUTOSHARD_BLESS").is_some(),
            "{}.shard would be\n{shown}\nAUTOSHARD_BLESS=1 accepts it",
            rule.name
        );
        std::fs::write(path(rule.name), &shown).unwrap();
    }
    // A text without a rule would be read by nobody.
    let files = std::fs::read_dir(path("").parent().unwrap()).unwrap().count();
    assert_eq!(files, RULES.len());
}

/// Numbers in (−1, 1), in quarters where a 0 is to be met too.
fn tensors(f: &Function, seed: u64, quarters: bool) -> Vec<Tensor> {
    let tensor = |(i, p): (usize, &autoshard_ir::core::Param)| {
        let ty = f.ty(p.value).clone();
        let key = ops::mix(seed * 64 + i as u64);
        let number = |k| match ops::random_unit(key, k) {
            x if quarters => (x * 4.0).round() / 4.0,
            x => x,
        };
        Tensor::new(ty.clone(), (0..ty.elements() as u64).map(number).collect())
    };
    f.params.iter().enumerate().map(tensor).collect()
}

fn run(f: &Function, args: &[Tensor]) -> Vec<Tensor> {
    interp::run(&module(vec![f.clone()]), f, args).unwrap_or_else(|e| panic!("{e}"))
}

/// Equal numbers: all bits but the sign of zero, or 10⁻¹² of the tensor's largest.
fn compare(what: &str, exactness: Exactness, old: &[Tensor], new: &[Tensor]) {
    assert_eq!(old.len(), new.len());
    for (a, b) in old.iter().zip(new) {
        assert_eq!(a.ty, b.ty, "{what}");
        let largest = a.data.iter().fold(0.0, |m: f64, x| m.max(x.abs()));
        for (x, y) in a.data.iter().zip(&b.data) {
            let same = x == y || (x.is_nan() && y.is_nan());
            let near = exactness == Exactness::Reassociates && (x - y).abs() <= 1e-12 * largest;
            assert!(same || near, "{what}: {x} became {y}");
        }
    }
}

#[test]
fn every_rule_keeps_the_numbers() {
    for rule in RULES {
        let (_, f) = before(rule);
        let offer = offered(rule, &f);
        for seed in 0..8 {
            let args = tensors(&f, seed, seed % 2 == 1);
            compare(rule.name, offer.exactness, &run(&f, &args), &run(&offer.body, &args));
        }
    }
}

#[test]
fn an_offered_body_costs_less_and_is_not_offered_again() {
    for rule in RULES {
        let (_, f) = before(rule);
        let found = offered(rule, &f);
        let limits = limits(rule, &f);
        assert_eq!((found.before, found.after), (dag_cost(&f), dag_cost(&found.body)));
        assert!(found.after.is_below(&found.before, limits.flops_per_byte), "{}", rule.name);
        let again = offer(&found.body, &limits);
        assert!(matches!(again, Err(Kept::Cheapest { .. })), "{}: {again:?}", rule.name);
        let once = simplify(&module(vec![found.body.clone()]));
        assert_eq!(once.functions[0], found.body, "{}: nothing is left to fold", rule.name);
    }
}

/// What composites compute is closed to rules, what they read is not; two results stay one node.
#[test]
fn operands_of_composites_are_rewritten() {
    let source = r#"
func @f(%x: bf16[m=2, d=4], %w: f32[d], %dy: bf16[d, m]) -> (bf16[m, d], f32[d]) {
  %a = neg %x : bf16[m, d]
  %b = neg %a : bf16[m, d]
  %t = transpose %dy {spec="d m -> m d"} : bf16[m, d]
  %u = transpose %t {spec="m d -> d m"} : bf16[d, m]
  %v = transpose %u {spec="d m -> m d"} : bf16[m, d]
  %dx, %dw = rmsnorm_bwd %b, %w, %v {eps=1e-6} : bf16[m, d], f32[d]
  return %dx, %dw
}
"#;
    let offer = offer(&parse(source).functions[0], &Limits::default()).unwrap();
    let want = r#"func @f(%x: bf16[m=2, d=4], %w: f32[d], %dy: bf16[d, m]) -> (bf16[m, d], f32[d]) {
  %t = transpose %dy {spec="d m -> m d"} : bf16[m, d]
  %dx, %dw = rmsnorm_bwd %x, %w, %t {eps=1e-6} : bf16[m, d], f32[d]
  return %dx, %dw
}

entry @f
"#;
    assert_eq!(text::print(&module(vec![offer.body])), want);
    assert_eq!((offer.rules, offer.exactness), (vec!["double-negation", "move-move"], Exactness::Exact));
}

/// A value that two nodes read is computed once: the tree of a shared value would cost more than what replaces
/// it, the DAG costs less.
#[test]
fn shared_values_cost_once() {
    let source = r#"
func @f(%x: f64[m=8, d=8], %a: f64[d, r=8], %b: f64[r, f=2]) -> (f64[m, f], f64[m, r]) {
  %h = einsum %x, %a {spec="m d, d r -> m r"} : f64[m, r]
  %y = einsum %h, %b {spec="m r, r f -> m f"} : f64[m, f]
  return %y, %h
}
"#;
    // Without the second result, x·(a·b) is cheaper. With it x·a is there anyhow.
    let mut f = parse(source).functions[0].clone();
    let limits = Limits { flops_per_byte: 1.0, ..Limits::default() };
    assert!(matches!(offer(&f, &limits), Err(Kept::Cheapest { .. })));
    f.results.pop();
    assert_eq!(offer(&f, &limits).unwrap().rules, ["associate"]);
}

/// Where a rule's condition does not hold, it does nothing: by exact rules alone these stay as they are.
#[test]
fn conditions_hold() {
    let bodies = [
        // The inner cast loses digits.
        "%a = cast %x {dtype=\"bf16\"} : bf16[m=3, n=3]\n  %y = cast %a {dtype=\"f32\"} : f32[m=3, n=3]",
        // A third is no f32, so a division is not a product.
        "%c = constant {values=[3.0], dtype=\"f32\"} : f32[]\n  %b = broadcast %c {spec=\"-> m n\", sizes=[3, 3]} : f32[m=3, n=3]\n  %y = div %x, %b : f32[m=3, n=3]",
        // The sum would run over n first.
        "%a = transpose %x {spec=\"m n -> n m\"} : f32[n=3, m=3]\n  %y = reduce_sum %a {spec=\"n m ->\"} : f32[]",
        // A transpose of a square matrix is not that matrix, whatever its dimensions are called.
        "%a = transpose %x {spec=\"m n -> n m\"} : f32[m=3, n=3]\n  %y = sub %x, %a : f32[m=3, n=3]",
        // Both products are the same numbers, but their dimensions have other names.
        "%a = mul %x, %z : f32[m=3, n=3]\n  %b = mul %z, %x : f32[p=3, q=3]\n  %y = einsum %a, %b {spec=\"m n, p q -> m q\"} : f32[m=3, q=3]",
        // The repeated factor is in no other operand: the sum counts it three times.
        "%r = reduce_max %x {spec=\"m n -> m\"} : f32[m=3]\n  %a = broadcast %r {spec=\"m -> m n\", sizes=[3]} : f32[m=3, n=3]\n  %y = einsum %a {spec=\"m n -> m\"} : f32[m=3]",
        // Composed, the scales would be rounded once.
        "%a = affine %x {mul=0.1, add=0.0} : f32[m=3, n=3]\n  %y = affine %a {mul=3.0, add=0.0} : f32[m=3, n=3]",
    ];
    for body in bodies {
        let result = body.rsplit(" : ").next().unwrap();
        let f = format!("func @f(%x: f32[m=3, n=3], %z: f32[p=3, q=3]) -> ({result}) {{\n  {body}\n  return %y\n}}\n");
        let kept = offer(&parse(&f).functions[0], &Limits { exactness: Exactness::Exact, ..Limits::default() });
        assert!(matches!(kept, Err(Kept::Cheapest { .. })), "{body}\n{kept:?}");
    }
}

/// bf16 values are their roundings: nothing that rounds is moved.
#[test]
fn rounded_values_stay_rounded() {
    let source = r#"
func @f(%x: bf16[m=16, d=12], %down: bf16[r=2, d], %up: bf16[f=20, r]) -> (bf16[m, f]) {
  %w = einsum %up, %down {spec="f r, r d -> f d"} : bf16[f, d]
  %y = einsum %x, %w {spec="m d, f d -> m f"} : bf16[m, f]
  %z = affine %y {mul=0.1, add=0.0} : bf16[m, f]
  %s = affine %z {mul=0.5, add=0.0} : bf16[m, f]
  return %s
}
"#;
    let kept = offer(&parse(source).functions[0], &Limits::default());
    assert!(matches!(kept, Err(Kept::Cheapest { .. })), "{kept:?}");
}

/// Functions that are placed, call others, or belong to a gradient stay, and the message says why.
#[test]
fn what_is_not_rewritten_says_why() {
    let why = |source: &str| -> Vec<String> {
        let (module, offers) = offers(&parse(source), &Limits::default());
        assert_eq!(module, parse(source));
        offers.into_iter().map(|o| o.unwrap_err().to_string()).collect()
    };
    let call = "func @f(%x: f64[n=2]) -> (f64[n]) {\n  %y = neg %x : f64[n=2]\n  return %y\n}\n\
        func @main(%x: f64[n=2]) -> (f64[n]) {\n  %y = call @f(%x) : f64[n=2]\n  return %y\n}\nentry @main\n";
    assert_eq!(
        why(call),
        [
            "@f: no cheaper body among 3 terms; it costs 2 FLOPs and 32 bytes",
            "@main: %y is the result of a call; only bodies without calls are rewritten",
        ]
    );
    let split =
        "mesh @m = [dp: 2]\nfunc @f(%x: f64[n=2]) -> (f64[n]) {\n  %y = neg %x : f64[n=2] @ {dp: n}\n  return %y\n}\n";
    assert_eq!(why(split), ["@f: %y is split over a mesh; bodies are rewritten before a plan is applied"]);
    let placed = "mesh @m = [dp: 2]\nfunc @f(%x: f64[n=2@dp]) -> (f64[n=2@dp]) {\n  return %x\n}\n";
    assert_eq!(why(placed), ["@f: %x is placed on a mesh; bodies are rewritten before a plan is applied"]);
    let training = "func @f.fwd(%x: f64[n=2]) -> (f64[n]) {\n  %y = neg %x : f64[n=2]\n  return %y\n}\n\
        func @f.bwd(%x: f64[n=2], %d.y: f64[n=2]) -> (f64[n]) backward of @f.fwd (p0, c0) -> (0) {\n  \
        %d = neg %d.y : f64[n=2] of %y\n  return %d\n}\nentry @f.fwd\n";
    assert_eq!(
        why(training),
        [
            "@f.fwd is differentiated by @f.bwd; bodies are rewritten before gradients are taken",
            "@f.bwd is the backward of @f.fwd; bodies are rewritten before gradients are taken",
        ]
    );
}

/// Terms and rounds bound what is found; time bounds whether it is offered.
#[test]
fn limits_bound_the_search() {
    let (_, f) = before(RULES.iter().find(|r| r.name == "associate").unwrap());
    let none = offer(&f, &Limits { iterations: 0, ..Limits::default() });
    assert!(matches!(none, Err(Kept::Cheapest { .. })), "{none:?}");
    let few = offer(&f, &Limits { nodes: 4, ..Limits::default() });
    assert!(matches!(few, Err(Kept::Cheapest { nodes: 5, .. })), "{few:?}");
    let late = offer(&f, &Limits { seconds: Some(0.0), ..Limits::default() }).unwrap_err();
    assert_eq!(
        late.to_string(),
        "@before: the search took longer than 0 s and its result would depend on the machine; allow more seconds or fewer terms"
    );
}

/// Models as builders write them have nothing to gain: their scales are single, their transposes part of specs.
#[test]
fn models_are_as_cheap_as_the_rules_make_them() {
    for name in ["qwen3", "mixtral", "deepseek"] {
        let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(format!("../tests/golden/{name}.forward.shard"));
        let m = parse(&std::fs::read_to_string(path).unwrap());
        let (taken, offers) = offers(&m, &Limits::default());
        for (f, o) in m.functions.iter().zip(offers) {
            assert!(matches!(o, Err(Kept::Cheapest { .. } | Kept::Fixed { .. })), "{name} @{}: {o:?}", f.name);
        }
        assert_eq!(taken, m);
    }
}

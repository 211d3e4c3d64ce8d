//! Laws on random functions: all terms of a class are one value, and offered bodies compute the same.

use super::body::read;
use super::offer::saturate;
use super::rules::{up_to, Exactness};
use super::term::{terms, Graph, Source};
use super::{dag_cost, offer, simplify, Kept, Limits};
use autoshard_ir::core::{Attrs, BuildError, Builder, DType, Function, Module, Node, Type, ValueId};
use autoshard_ir::interp::{self, Tensor};
use autoshard_ir::verify::verify;
use autoshard_ir::{ops, text, Monoid};
use egg::Id;
use proptest::prelude::*;
use std::collections::HashMap;

/// Digits of a random number, least first.
struct Choices(u64);

impl Choices {
    fn below(&mut self, n: usize) -> usize {
        let x = self.0 % n as u64;
        self.0 /= n as u64;
        x as usize
    }

    fn of<T: Copy>(&mut self, list: &[T]) -> T {
        list[self.below(list.len())]
    }
}

/// A function of one node for each number whose choice fits. With `exact` it has casts and comparisons, and is
/// of any type; else everything is f64 and continuous, so that rounding errors stay small.
fn function(numbers: &[u64], dtype: DType, exact: bool) -> Function {
    let mut f = Function::new("f");
    // m and k are equal, so that square matrices and their transposes meet.
    let shapes: [&[(&str, usize)]; 6] =
        [&[("m", 2), ("n", 3)], &[("n", 3), ("k", 2)], &[("m", 2), ("k", 2)], &[("n", 3)], &[("m", 2), ("n", 3)], &[]];
    for (i, shape) in shapes.iter().enumerate() {
        f.add_param(&format!("x{i}"), Type::new(dtype, shape), true);
    }
    let mut b = Builder::new(&mut f);
    for n in numbers {
        step(&mut b, &mut Choices(*n), exact);
    }
    let count = f.values.len();
    f.results = (count.saturating_sub(3)..count).map(|v| ValueId(v as u32)).collect();
    f
}

/// Adds one node, if the choices fit.
fn step(b: &mut Builder, c: &mut Choices, exact: bool) {
    let kind = c.below(if exact { 14 } else { 11 });
    let pick = |b: &Builder, c: &mut Choices| {
        // Late values more often, so that chains grow.
        let (count, back) = (b.func.values.len(), c.below(8));
        ValueId((if back < 5 { count - 1 - back } else { c.below(count) }) as u32)
    };
    let x = pick(b, c);
    let ty = b.ty(x).clone();
    let names: Vec<String> = ty.dims.iter().map(|d| d.name.clone()).collect();
    let _ = match kind {
        0 => b.map(c.of(&["neg", "tanh", "sin", "abs"]), &[x]),
        1 => b.affine(x, c.of(&[-1.0, 0.5, 1.0, 0.1, 3.0]), c.of(&[0.0, 0.0, 1.0, -0.3])),
        2 | 3 => {
            let alike: Vec<ValueId> = (0..b.func.values.len() as u32)
                .map(ValueId)
                .filter(|y| b.ty(*y).dtype == ty.dtype && b.ty(*y).sizes() == ty.sizes())
                .collect();
            let y = c.of(&alike);
            let op = c.of(&["add", "sub", "mul", "max", "min"]);
            if c.below(2) == 0 {
                b.map(op, &[x, y])
            } else {
                b.map(op, &[y, x])
            }
        }
        4 => {
            let mut order = names.clone();
            order.rotate_left(c.below(3).min(names.len()));
            let spec = format!("{} -> {}", names.join(" "), order.join(" "));
            let y = b.op("t", "transpose", &[x], Attrs::new().text("spec", spec));
            // Written as the square matrix that it came from, the type says nothing of the transposition.
            if let (Ok(y), 0, true) = (&y, c.below(2), b.ty(x).sizes().windows(2).all(|w| w[0] == w[1])) {
                b.name_like(*y, x);
            }
            y
        }
        5 => {
            let new = c.of(&["j", "m", "n", "k"]);
            let size = if new == "n" { 3 } else { 2 };
            let spec = format!("{} -> {new} {}", names.join(" "), names.join(" "));
            b.op("b", "broadcast", &[x], Attrs::new().text("spec", spec).ints("sizes", [size]))
        }
        6 => filled(b, &ty, c.of(&[0.0, 1.0, 2.0, -1.0, 0.1])),
        7 | 8 => {
            let y = pick(b, c);
            let others: Vec<String> = b.ty(y).dims.iter().map(|d| d.name.clone()).collect();
            let mut result: Vec<String> = Vec::new();
            for n in others.iter().chain(&names) {
                if !result.contains(n) && c.below(3) > 0 {
                    result.push(n.clone());
                }
            }
            b.einsum("e", &[x, y], &ops::spec::print(&[names, others], &result))
        }
        9 => {
            let kept: Vec<String> = names.iter().filter(|_| c.below(2) == 0).cloned().collect();
            let monoid = if c.below(3) == 0 { Monoid::Max } else { Monoid::Sum };
            b.reduce(monoid, x, &ops::spec::print(&[names], &kept))
        }
        10 => b.map("softmax", &[x]),
        11 => {
            // Twice, because what casts lose shows in the next one.
            let mut cast =
                |b: &mut Builder, x| b.op("c", "cast", &[x], Attrs::new().text("dtype", c.of(&["f64", "f32", "bf16"])));
            cast(b, x).and_then(|y| cast(b, y))
        }
        12 => filled(b, &ty, c.of(&[0.1, -4.0, 3.0, 1.0])).and_then(|k| b.map("div", &[x, k])),
        _ => filled(b, &ty, 0.0).and_then(|zero| b.map(c.of(&["less", "equal"]), &[x, zero])),
    };
}

/// A number repeated.
fn filled(b: &mut Builder, ty: &Type, value: f64) -> Result<ValueId, BuildError> {
    let names: Vec<&str> = ty.dims.iter().map(|d| d.name.as_str()).collect();
    let attrs = Attrs::new().text("spec", format!("-> {}", names.join(" "))).ints("sizes", ty.sizes());
    let k = b.constant(value, ty.dtype)?;
    b.op("k", "broadcast", &[k], attrs)
}

fn module(f: &Function) -> Module {
    Module { functions: vec![f.clone()], entry: f.name.clone(), ..Module::default() }
}

fn arguments(f: &Function, seed: u64) -> Vec<Tensor> {
    let tensor = |(i, p): (usize, &autoshard_ir::core::Param)| {
        let ty = f.ty(p.value).clone();
        let key = ops::mix(seed.wrapping_add(i as u64));
        Tensor::new(ty.clone(), (0..ty.elements() as u64).map(|k| ops::random_unit(key, k)).collect())
    };
    f.params.iter().enumerate().map(tensor).collect()
}

/// Equal numbers: bits but for the sign of zero, or within 10⁻¹² of the largest number met anywhere.
fn compare(what: &str, exactness: Exactness, scale: f64, a: &Tensor, b: &Tensor) {
    assert_eq!(a.ty, b.ty, "{what}");
    for (x, y) in a.data.iter().zip(&b.data) {
        let near = exactness == Exactness::Reassociates && (x - y).abs() <= 1e-12 * scale;
        assert!(x == y || near || (x.is_nan() && y.is_nan()), "{what}: {x} became {y}");
    }
}

/// A class's value by one of its terms.
fn evaluate(graph: &Graph, node: &Node, types: &[Type], inputs: &[Tensor]) -> Vec<Tensor> {
    let mut f = Function::new("term");
    let inputs_of_f: Vec<ValueId> =
        inputs.iter().enumerate().map(|(i, t)| f.add_param(&format!("x{i}"), t.ty.clone(), false)).collect();
    let results = types.iter().map(|t| ("y".to_string(), t.clone())).collect();
    let id = f.add_node(Node { inputs: inputs_of_f, ..node.clone() }, results);
    f.results = f.node(id).results.clone();
    let m = module(&f);
    verify(&m).unwrap_or_else(|e| panic!("{}\n{} classes", e[0], graph.number_of_classes()));
    interp::run(&m, &f, inputs).unwrap_or_else(|e| panic!("{e}"))
}

/// Every term of every class, on random arguments.
fn one_value_a_class(f: &Function, exactness: Exactness, seed: u64) {
    let mut graph = read(f).unwrap().graph;
    let rules: Vec<_> = up_to(exactness).collect();
    let limits = Limits { nodes: 400, iterations: 4, seconds: None, ..Limits::default() };
    assert!(saturate("f", &mut graph, &rules, &limits).is_ok());
    let arguments = arguments(f, seed);
    let mut values: HashMap<Id, Tensor> = HashMap::new();
    let mut classes: Vec<Id> = graph.classes().map(|c| c.id).collect();
    classes.sort_unstable();
    let mut scale: f64 = 1.0;
    // The first round that reaches a class gives it a value, the last compares.
    loop {
        let known = values.len();
        for class in &classes {
            for term in terms(&graph, *class) {
                let head = graph.analysis.get(term.head);
                let inputs: Option<Vec<Tensor>> = term.inputs.iter().map(|i| values.get(i).cloned()).collect();
                let Some(inputs) = inputs else { continue };
                let value = match &head.source {
                    Source::Param(i) => arguments[*i].clone(),
                    Source::Node(node) => evaluate(&graph, node, &head.types, &inputs)[head.result].clone(),
                };
                scale = value.data.iter().fold(scale, |m, x| m.max(x.abs()));
                let what = || format!("{term:?} = {:?} of\n{}", head.source, text::print(&module(f)));
                match values.get(class) {
                    Some(old) if known == classes.len() => compare(&what(), exactness, scale, old, &value),
                    Some(_) => {}
                    None => {
                        values.insert(*class, value);
                    }
                }
            }
        }
        if known == classes.len() {
            return;
        }
        assert!(values.len() > known, "a class without a value");
    }
}

/// What is offered for a function is valid, cheaper, found again, simple and of equal value.
fn keeps_values(f: &Function, exactness: Exactness, seed: u64) {
    let limits = Limits { nodes: 400, iterations: 4, seconds: None, exactness, ..Limits::default() };
    let offered = match offer(f, &limits) {
        Ok(offered) => offered,
        Err(Kept::Cheapest { .. }) => return,
        Err(other) => panic!("{other}"),
    };
    assert_eq!(offer(f, &limits), Ok(offered.clone()), "the same input, the same output");
    assert!(offered.after.is_below(&offered.before, limits.flops_per_byte));
    assert_eq!((offered.before, offered.after), (dag_cost(f), dag_cost(&offered.body)));
    let (old, new) = (module(f), module(&offered.body));
    verify(&new).unwrap_or_else(|e| panic!("{}", e[0]));
    assert_eq!(simplify(&new), new);
    let arguments = arguments(f, seed);
    let want = interp::run(&old, f, &arguments).unwrap();
    let got = interp::run(&new, &offered.body, &arguments).unwrap();
    // Intermediate values of these functions stay below this, as those of the law above show.
    let scale = want.iter().flat_map(|t| &t.data).fold(1e3, |m: f64, x| m.max(x.abs()));
    for (a, b) in want.iter().zip(&got) {
        compare(&text::print(&new), exactness, scale, a, b);
    }
}

fn numbers() -> impl Strategy<Value = Vec<u64>> {
    prop::collection::vec(any::<u64>(), 1..14)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn exact_rules_make_classes_of_one_value(n in numbers(), dtype in 0usize..3, seed in any::<u64>()) {
        let f = function(&n, [DType::F64, DType::F32, DType::Bf16][dtype], true);
        one_value_a_class(&f, Exactness::Exact, seed);
    }

    #[test]
    fn all_rules_make_classes_of_one_value(n in numbers(), seed in any::<u64>()) {
        one_value_a_class(&function(&n, DType::F64, false), Exactness::Reassociates, seed);
    }

    #[test]
    fn offers_by_exact_rules_keep_every_bit(n in numbers(), dtype in 0usize..3, seed in any::<u64>()) {
        let f = function(&n, [DType::F64, DType::F32, DType::Bf16][dtype], true);
        keeps_values(&f, Exactness::Exact, seed);
    }

    #[test]
    fn offers_by_all_rules_keep_values(n in numbers(), seed in any::<u64>()) {
        keeps_values(&function(&n, DType::F64, false), Exactness::Reassociates, seed);
    }
}

/// The functions above have what every rule is about.
#[test]
fn random_functions_meet_every_rule() {
    let mut met: Vec<&str> = Vec::new();
    for seed in 0..400u64 {
        let numbers: Vec<u64> = (0..12).map(|i| ops::mix(seed * 64 + i)).collect();
        for exact in [true, false] {
            let mut graph = read(&function(&numbers, DType::F64, exact)).unwrap().graph;
            let rules: Vec<_> = up_to(Exactness::Reassociates).collect();
            let limits = Limits { nodes: 300, iterations: 2, seconds: None, ..Limits::default() };
            if let Ok((_, applied)) = saturate("f", &mut graph, &rules, &limits) {
                met.extend(applied.iter().map(|r| r.name));
            }
        }
    }
    let missed: Vec<&str> = super::RULES.iter().map(|r| r.name).filter(|n| !met.contains(n)).collect();
    assert!(missed.is_empty(), "{missed:?}");
}

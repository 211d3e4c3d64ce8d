//! Gradients of every operation against central differences, and hand-written backwards against the
//! derived gradient of the body.

use autoshard_ir::core::{Attrs, Builder, DType, Function, Gradient, OpDef, ParamOf, Semantics, Type};
use autoshard_ir::interp::{self, Tensor};
use autoshard_ir::verify::verify;
use autoshard_ir::{ops, Module, ValueId};
use autoshard_passes::autodiff::{differentiate, AdamW};
use std::collections::BTreeMap;

type Dims = &'static [(&'static str, usize)];

/// What an operand holds.
#[derive(Clone, Copy, PartialEq)]
enum Fill {
    /// Numbers in (−1, 1); trained.
    Real,
    /// Numbers in (0.5, 1.5); trained.
    Positive,
    /// 0.0 or 1.0; not trained, as no difference can be taken.
    Flag,
    /// Indices below this number.
    Index(usize),
}
use Fill::{Flag, Index, Positive, Real};

/// An operation on named shapes. `args` says which operand each argument is, if not one each.
#[derive(Clone)]
struct Case {
    op: &'static OpDef,
    attrs: Attrs,
    operands: Vec<(Fill, Dims)>,
    args: Vec<usize>,
}

fn case(op: &str, attrs: Attrs, operands: &[(Fill, Dims)]) -> Case {
    let op = ops::find(op).unwrap_or_else(|| panic!("no operation {op}"));
    Case { op, attrs, operands: operands.to_vec(), args: (0..operands.len()).collect() }
}

/// The operand itself given for several arguments.
fn repeated(op: &str, attrs: Attrs, operands: &[(Fill, Dims)], args: &[usize]) -> Case {
    Case { args: args.to_vec(), ..case(op, attrs, operands) }
}

impl Case {
    fn ty(&self, i: usize) -> Type {
        let (fill, dims) = self.operands[i];
        Type::new(if let Index(_) = fill { DType::I32 } else { DType::F64 }, dims)
    }

    fn trained(&self, i: usize) -> bool {
        matches!(self.operands[i].0, Real | Positive)
    }

    fn values(&self) -> Vec<Tensor> {
        let value = |i: usize| {
            let map = |x: f64| match self.operands[i].0 {
                Real => x,
                Positive => 1.0 + x / 2.0,
                Flag => f64::from(x > 0.0),
                Index(n) => ((x + 1.0) / 2.0 * n as f64).floor(),
            };
            let ty = self.ty(i);
            Tensor::new(ty.clone(), numbers(ty.elements(), i as u64 + 1).map(map).collect())
        };
        (0..self.operands.len()).map(value).collect()
    }

    fn argument_types(&self) -> Vec<Type> {
        self.args.iter().map(|i| self.ty(*i)).collect()
    }

    fn results(&self) -> usize {
        let types = self.argument_types();
        ops::rule(self.op, &types.iter().collect::<Vec<_>>(), &self.attrs).unwrap().result_types.len()
    }
}

impl std::fmt::Display for Case {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let types: Vec<String> = self.argument_types().iter().map(Type::to_string).collect();
        write!(f, "{}({}) {:?}", self.op.name, types.join(", "), self.attrs.0)
    }
}

/// Deterministic numbers in (−1, 1).
fn numbers(n: usize, seed: u64) -> impl Iterator<Item = f64> {
    (0..n as u64).map(move |i| ops::random_unit(ops::mix(seed), i))
}

fn cases() -> Vec<Case> {
    let none = Attrs::new;
    let spec = |s: &str| Attrs::new().text("spec", s);
    const X: Dims = &[("b", 2), ("s", 3), ("d", 2)];
    const ROWS: Dims = &[("b", 2), ("s", 3)];
    let mut out = Vec::new();
    for op in ["neg", "exp", "sin", "cos", "tanh", "sigmoid", "abs", "silu", "gelu_tanh", "relu", "relu2"] {
        out.push(case(op, none(), &[(Real, X)]));
    }
    for op in ["log", "sqrt", "rsqrt", "reciprocal"] {
        out.push(case(op, none(), &[(Positive, X)]));
    }
    for op in ["add", "sub", "mul", "max", "min", "less", "equal"] {
        // Dimensions go by position: the second operand may call them otherwise.
        out.push(case(op, none(), &[(Real, X), (Real, &[("p", 2), ("q", 3), ("r", 2)])]));
    }
    out.push(case("div", none(), &[(Real, X), (Positive, X)]));
    out.push(case("pow", none(), &[(Positive, X), (Real, X)]));
    for op in ["add", "sub", "mul", "div", "pow"] {
        out.push(repeated(op, none(), &[(Positive, X)], &[0, 0]));
    }
    out.push(case("select", none(), &[(Flag, X), (Real, X), (Real, X)]));
    out.push(case("affine", none().float("mul", -1.7).float("add", 0.3), &[(Real, X)]));
    out.push(case("cast", none().text("dtype", "f64"), &[(Real, X)]));
    for s in ["b s d -> b s", "b s d -> d", "b s d -> b d", "b s d ->"] {
        out.push(case("reduce_sum", spec(s), &[(Real, X)]));
        out.push(case("reduce_max", spec(s), &[(Real, X)]));
    }
    for (s, operands) in [
        ("b s d, d e -> b s e", &[(Real, X), (Real, &[("d", 2), ("e", 3)])] as &[(Fill, Dims)]),
        ("b s d, e d -> e b", &[(Real, X), (Real, &[("e", 3), ("d", 2)])]),
        ("b s, b s ->", &[(Real, ROWS), (Real, ROWS)]),
        ("s, b -> b s", &[(Real, &[("s", 3)]), (Real, &[("b", 2)])]),
        ("b s d -> d b", &[(Real, X)]),
        ("b s, s d, d e -> b e", &[(Real, ROWS), (Real, &[("s", 3), ("d", 2)]), (Real, &[("d", 2), ("e", 2)])]),
    ] {
        out.push(case("einsum", spec(s), operands));
    }
    out.push(repeated("einsum", spec("b s, b t -> s t"), &[(Real, ROWS)], &[0, 0]));
    out.push(case("broadcast", spec("s d -> s b d e").ints("sizes", [2, 4]), &[(Real, &[("s", 3), ("d", 2)])]));
    out.push(case("transpose", spec("b s d -> d b s"), &[(Real, X)]));
    out.push(case(
        "reshape",
        spec("b (g r) (h e) -> b g (r h) e").ints("sizes", [3, 2, 2, 2]),
        &[(Real, &[("b", 2), ("gr", 6), ("he", 4)])],
    ));
    out.push(case("slice", none().text("dim", "s").int("start", 1).int("size", 2), &[(Real, X)]));
    out.push(case("concat", none().text("dim", "s"), &[(Real, X), (Real, &[("b", 2), ("s", 1), ("d", 2)]), (Real, X)]));
    out.push(repeated("concat", none().text("dim", "d"), &[(Real, X)], &[0, 0]));
    out.push(case("pad", none().text("dim", "s").int("before", 2).int("after", 1).float("value", 0.5), &[(Real, X)]));
    out.push(case("gather", none(), &[(Real, &[("v", 4), ("d", 2)]), (Index(4), ROWS)]));
    let rows: Dims = &[("b", 2), ("s", 2), ("d", 3)];
    out.push(case("scatter_add", none().int("rows", 3), &[(Real, rows), (Index(3), &rows[..2])]));
    // Several choices may share a slot here, as they never do behind `slots`.
    let tokens: Dims = &[("b", 2), ("s", 2), ("d", 3)];
    let choices: Dims = &[("b", 2), ("s", 2), ("k", 2)];
    let slots: Dims = &[("E", 3), ("c", 2), ("d", 3)];
    let size = || none().int("experts", 3).int("capacity", 2);
    out.push(case("take", none(), &[(Real, &[("b", 2), ("s", 2), ("n", 4)]), (Index(4), choices)]));
    out.push(case("dispatch", size(), &[(Real, tokens), (Index(6), choices)]));
    out.push(case("dispatch", size(), &[(Real, tokens), (Index(6), choices), (Real, choices)]));
    out.push(case("combine", none(), &[(Real, slots), (Index(6), choices), (Real, choices)]));
    out.extend(composites());
    out
}

fn composites() -> Vec<Case> {
    let none = Attrs::new;
    const X: Dims = &[("b", 2), ("s", 2), ("d", 3)];
    const N: Dims = &[("b", 2), ("n", 4)];
    const W: Dims = &[("d", 3)];
    let eps = || Attrs::new().float("eps", 0.01);
    let mut out = vec![
        case("softmax", none(), &[(Real, N)]),
        case("softmax_bwd", none(), &[(Real, N), (Real, N)]),
        repeated("softmax_bwd", none(), &[(Real, N)], &[0, 0]),
        case("rmsnorm", eps(), &[(Real, X), (Real, W)]),
        case("rmsnorm", eps(), &[(Real, &[("b", 2), ("e", 4)]), (Real, &[("f", 4)])]),
        repeated("rmsnorm", eps(), &[(Real, W)], &[0, 0]),
        case("rmsnorm_bwd", eps(), &[(Real, X), (Real, W), (Real, X)]),
        repeated("rmsnorm_bwd", eps(), &[(Real, X), (Real, W)], &[0, 1, 0]),
        case("layernorm", eps(), &[(Real, X), (Real, W), (Real, W)]),
        case("layernorm_bwd", eps(), &[(Real, X), (Real, W), (Real, X)]),
        case("swiglu", none(), &[(Real, X), (Real, X)]),
        repeated("swiglu", none(), &[(Real, X)], &[0, 0]),
        case("swiglu_bwd", none(), &[(Real, X), (Real, X), (Real, X)]),
        repeated("swiglu_bwd", none(), &[(Real, X)], &[0, 0, 0]),
        case("cross_entropy", none(), &[(Real, &[("b", 3), ("v", 4)]), (Index(4), &[("b", 3)])]),
        case(
            "cross_entropy_bwd",
            none(),
            &[(Real, &[("b", 3), ("v", 4)]), (Index(4), &[("b", 3)]), (Real, &[("b", 3)]), (Real, &[("b", 3)])],
        ),
    ];
    for op in ["rope", "rope_bwd"] {
        const TABLE: Dims = &[("s", 2), ("h", 2)];
        out.push(case(op, none(), &[(Real, &[("b", 2), ("s", 2), ("g", 2), ("e", 4)]), (Flag, TABLE), (Flag, TABLE)]));
        // A trained table, and names that are not those of the body.
        out.push(case(
            op,
            none(),
            &[(Real, &[("n", 2), ("p", 2), ("c", 4)]), (Real, TABLE), (Real, &[("p", 2), ("q", 2)])],
        ));
    }
    for (causal, window) in [(1, 0), (1, 2), (0, 0)] {
        let attrs = || none().float("scale", 0.7).int("causal", causal).int("window", window);
        const Q: Dims = &[("b", 1), ("s", 3), ("g", 2), ("r", 2), ("e", 2)];
        const K: Dims = &[("b", 1), ("t", 3), ("g", 2), ("e", 2)];
        const V: Dims = &[("b", 1), ("t", 3), ("g", 2), ("h", 3)];
        const O: Dims = &[("b", 1), ("s", 3), ("g", 2), ("r", 2), ("h", 3)];
        const LSE: Dims = &[("b", 1), ("s", 3), ("g", 2), ("r", 2)];
        out.push(case("attention", attrs(), &[(Real, Q), (Real, K), (Real, V)]));
        out.push(repeated("attention", attrs(), &[(Real, Q), (Real, K)], &[0, 1, 1]));
        let all = [(Real, Q), (Real, K), (Real, V), (Real, O), (Real, LSE), (Real, O)];
        out.push(case("attention_bwd", attrs(), &all));
    }
    out
}

/// `@f` with the loss Σ result·weights over the results `used`, called by the entry. The operation is
/// one node, or the nodes of its body.
fn model(case: &Case, used: &[usize], body: bool) -> (Module, Vec<Tensor>) {
    let (mut f, results) = if body { of_body(case) } else { of_node(case) };
    let mut args = case.values();
    let mut loss: Option<ValueId> = None;
    for r in used {
        let ty = f.ty(results[*r]).clone();
        let w = f.add_param("weights", ty.clone(), false);
        args.push(Tensor::new(ty.clone(), numbers(ty.elements(), 100 + *r as u64).collect()));
        let names = ty.dims.iter().map(|d| d.name.as_str()).collect::<Vec<_>>().join(" ");
        let mut b = Builder::new(&mut f);
        let part = b.einsum("part", &[results[*r], w], &format!("{names}, {names} ->")).unwrap();
        loss = Some(match loss {
            Some(sum) => b.map("add", &[sum, part]).unwrap(),
            None => part,
        });
    }
    f.results = vec![loss.unwrap()];
    let mut main = Function::new("main");
    let params = f.params.iter().map(|p| main.add_param(&f.value(p.value).name, f.ty(p.value).clone(), p.trainable));
    let params: Vec<ValueId> = params.collect();
    main.results = Builder::new(&mut main).call(&f, &params, &["loss".to_string()]);
    (Module { functions: vec![f, main], entry: "main".to_string(), ..Module::default() }, args)
}

fn of_node(case: &Case) -> (Function, Vec<ValueId>) {
    let mut f = Function::new("f");
    let operands: Vec<ValueId> =
        (0..case.operands.len()).map(|i| f.add_param(&format!("x{i}"), case.ty(i), case.trained(i))).collect();
    let inputs: Vec<ValueId> = case.args.iter().map(|i| operands[*i]).collect();
    let results = Builder::new(&mut f).ops(&["y"], case.op.name, &inputs, case.attrs.clone());
    let results = results.unwrap_or_else(|e| panic!("{case}: {e}"));
    (f, results)
}

fn of_body(case: &Case) -> (Function, Vec<ValueId>) {
    let Semantics::Composite(source) = case.op.semantics else { panic!("{case} has no body") };
    let types = case.argument_types();
    let mut f = ops::compose::body(source, &types.iter().collect::<Vec<_>>(), &case.attrs).unwrap();
    f.name = "f".to_string();
    for (i, p) in f.params.iter_mut().enumerate() {
        p.trainable = case.trained(i);
    }
    let results = std::mem::take(&mut f.results);
    (f, results)
}

/// Gradients of `@f`'s trained parameters by `@f.fwd` and `@f.bwd`, by position.
fn gradients(module: &Module, args: &[Tensor]) -> BTreeMap<usize, Tensor> {
    let step = differentiate(module, &AdamW::default()).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(verify(&step), Ok(()));
    let forward = step.function("f.fwd").unwrap();
    let saved = interp::run(&step, forward, args).unwrap();
    assert_eq!(saved[0].data, loss(module, args).data);
    let bwd = step.function("f.bwd").unwrap();
    let header = bwd.backward.as_ref().unwrap();
    let one = Tensor::new(Type::new(DType::F64, &[]), vec![1.0]);
    let given: Vec<Tensor> = header
        .params
        .iter()
        .map(|p| match p {
            ParamOf::Param(i) => args[*i].clone(),
            ParamOf::Result(i) => saved[*i].clone(),
            ParamOf::Cotangent(_) => one.clone(),
        })
        .collect();
    header.results.iter().copied().zip(interp::run(&step, bwd, &given).unwrap()).collect()
}

fn loss(module: &Module, args: &[Tensor]) -> Tensor {
    interp::run(module, module.function("f").unwrap(), args).unwrap().remove(0)
}

fn assert_close(got: f64, want: f64, tolerance: f64, about: &str) {
    assert!((got - want).abs() <= tolerance * (1.0 + want.abs()), "{about} is {got}, not {want}");
}

/// Compares gradients with (f(x + h) − f(x − h))/2h.
fn check_differences(case: &Case, used: &[usize]) {
    let (module, args) = model(case, used, false);
    let got = gradients(&module, &args);
    let trained: Vec<usize> = (0..case.operands.len()).filter(|i| case.trained(*i)).collect();
    assert_eq!(got.keys().copied().collect::<Vec<_>>(), trained, "{case}");
    for (i, g) in got {
        assert!(g.ty.same_shape(&args[i].ty), "{case}: operand {i}: {}", g.ty);
        for k in 0..args[i].data.len() {
            let h = 1e-5;
            let at = |x: f64| {
                let mut args = args.clone();
                args[i].data[k] += x;
                loss(&module, &args).data[0]
            };
            let want = (at(h) - at(-h)) / (2.0 * h);
            assert_close(g.data[k], want, 1e-6, &format!("{case}, results {used:?}: gradient {k} of operand {i}"));
        }
    }
}

#[test]
fn every_differentiable_operation_has_a_case() {
    let cases = cases();
    for op in ops::all().filter(|o| !matches!(o.gradient, Gradient::None(_))) {
        assert!(cases.iter().any(|c| c.op == op), "{}", op.name);
    }
}

#[test]
fn gradients_are_differences() {
    for case in cases() {
        let n = case.results();
        check_differences(&case, &(0..n).collect::<Vec<_>>());
        if n > 1 {
            (0..n).for_each(|r| check_differences(&case, &[r]));
        }
    }
}

/// A hand-written backward and the derived gradient of the body are two ways to one number.
#[test]
fn hand_written_backwards_are_derived_gradients() {
    let mut checked = 0;
    for case in cases() {
        let Gradient::Backward { op, wrt, .. } = &case.op.gradient else {
            continue;
        };
        let plain = case.args.iter().enumerate().all(|(i, a)| i == *a);
        if !plain || (0..case.args.len()).any(|i| case.trained(i) && !wrt.contains(&i)) {
            continue;
        }
        let (by_hand, args) = model(&case, &[0], false);
        let step = differentiate(&by_hand, &AdamW::default()).unwrap();
        assert!(step.functions.iter().flat_map(|f| &f.nodes).any(|n| n.op.name == *op), "{case} does not use {op}");
        let (by_body, _) = model(&case, &[0], true);
        let (got, want) = (gradients(&by_hand, &args), gradients(&by_body, &args));
        assert_eq!(got.keys().collect::<Vec<_>>(), want.keys().collect::<Vec<_>>());
        for (i, want) in &want {
            for (g, w) in got[i].data.iter().zip(&want.data) {
                assert_close(*g, *w, 1e-10, &format!("{case}: gradient of operand {i}"));
            }
        }
        checked += 1;
    }
    assert!(checked >= 9, "{checked}");
}

/// Where several entries are the largest, they share the cotangent.
#[test]
fn ties_share_the_gradient_of_a_maximum() {
    let case = case("reduce_max", Attrs::new().text("spec", "b n -> b"), &[(Real, &[("b", 2), ("n", 3)])]);
    let (module, mut args) = model(&case, &[0], false);
    args[0].data = vec![1.0, 2.0, 2.0, 0.5, 0.5, 0.5];
    let w = args[1].data.clone();
    let (a, b) = (w[0] / 2.0, w[1] / 3.0);
    assert_eq!(gradients(&module, &args)[&0].data, [0.0, a, a, b, b, b]);
}

/// A cotangent goes back in the element type of its primal.
#[test]
fn cotangents_of_casts_are_cast_back() {
    let case = case("cast", Attrs::new().text("dtype", "f32"), &[(Real, &[("n", 5)])]);
    let (module, args) = model(&case, &[0], false);
    assert_eq!(args[1].ty.dtype, DType::F32);
    let step = differentiate(&module, &AdamW::default()).unwrap();
    let bwd = step.function("f.bwd").unwrap();
    assert_eq!(bwd.ty(bwd.results[0]).dtype, DType::F64);
    let header = bwd.backward.as_ref().unwrap();
    assert_eq!(header.params, [ParamOf::Param(1), ParamOf::Cotangent(0)]);
    let one = Tensor::new(Type::new(DType::F32, &[]), vec![1.0]);
    let got = interp::run(&step, bwd, &[args[1].clone(), one]).unwrap();
    assert_eq!(got[0].data, args[1].data);
}

/// The power's derivative in its base exists at 0.
#[test]
fn powers_have_a_gradient_at_zero() {
    let case = case("pow", Attrs::new(), &[(Real, &[("n", 3)]), (Flag, &[("n", 3)])]);
    let (module, mut args) = model(&case, &[0], false);
    args[0].data = vec![0.0, 0.0, -2.0];
    args[1].data = vec![1.0, 2.0, 3.0];
    let w = args[2].data.clone();
    assert_eq!(gradients(&module, &args)[&0].data, [w[0], 0.0, 12.0 * w[2]]);
}

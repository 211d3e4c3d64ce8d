//! Laws over random programs: a random graph under a random legal plan computes what one device
//! computes, loss, gradients and updates, in f64.

use autoshard::ir::core::{Attrs, Axis, Builder, FactorKind, Function, Module, Strategy, Type, ValueId};
use autoshard::ir::interp::{self, Tensor};
use autoshard::ir::program::Buf;
use autoshard::ir::{ops, text, verify, DType, Mesh, Monoid};
use autoshard::passes::autodiff::{self, AdamW};
use autoshard::passes::{outline, partition, play, schedule, simplify};
use autoshard::runtime::{Options, Runtime};
use proptest::prelude::*;
use std::sync::Arc;

/// Random choices, consumed one by one; a shrunk case has small numbers, so simple choices.
struct Dice(Vec<u32>, usize);

impl Dice {
    fn roll(&mut self, n: usize) -> usize {
        let v = self.0.get(self.1).copied().unwrap_or(0) as usize;
        self.1 += 1;
        v % n.max(1)
    }
}

/// Sizes are odd on purpose: most splits are uneven.
const DIMS: [(&str, usize); 5] = [("b", 4), ("s", 5), ("d", 6), ("f", 7), ("v", 9)];

fn ty(names: &[&str]) -> Type {
    let size = |n: &str| DIMS.iter().find(|(d, _)| *d == n).unwrap().1;
    Type::new(DType::F64, &names.iter().map(|n| (*n, size(n))).collect::<Vec<_>>())
}

/// A random model over x[b, s, d]: a chain of layers with a residual now and then, and a loss.
fn graph(dice: &mut Dice) -> Module {
    let mut f = Function::new("main");
    let ids = f.add_param("ids", Type { dtype: DType::I32, ..ty(&["b", "s"]) }, false);
    let labels = f.add_param("labels", Type { dtype: DType::I32, ..ty(&["b", "s"]) }, false);
    let table = f.add_param("table", ty(&["v", "d"]), true);
    let mut x = Builder::new(&mut f).op("x", "gather", &[table, ids], Attrs::new()).unwrap();
    for layer in 0..1 + dice.roll(4) {
        x = layer_of(&mut f, x, layer, dice);
    }
    let head = if dice.roll(2) == 0 { table } else { f.add_param("head", ty(&["v", "d"]), true) };
    let mut b = Builder::new(&mut f);
    let logits = b.einsum("logits", &[x, head], "b s d, v d -> b s v").unwrap();
    let losses = match dice.roll(3) {
        0 => {
            let p = b.op("p", "softmax", &[logits], Attrs::new()).unwrap();
            b.reduce(Monoid::Sum, p, "b s v -> b s").unwrap();
            b.reduce(Monoid::Max, logits, "b s v -> b s").unwrap()
        }
        _ => b.ops(&["losses", "lse"], "cross_entropy", &[logits, labels], Attrs::new()).unwrap()[0],
    };
    let sum = b.reduce(Monoid::Sum, losses, "b s ->").unwrap();
    let loss = b.affine(sum, 0.05, 0.0).unwrap();
    f.results = vec![loss];
    Module { mesh: Mesh::default(), functions: vec![f], entry: "main".to_string() }
}

fn layer_of(f: &mut Function, x: ValueId, layer: usize, dice: &mut Dice) -> ValueId {
    let w = |f: &mut Function, n: &str, names: &[&str]| f.add_param(&format!("{n}{layer}"), ty(names), true);
    match dice.roll(7) {
        0 => {
            let w = w(f, "w", &["d"]);
            Builder::new(f).op("norm", "rmsnorm", &[x, w], Attrs::new().float("eps", 1e-5)).unwrap()
        }
        1 => {
            let (w, c) = (w(f, "w", &["d"]), w(f, "c", &["d"]));
            Builder::new(f).op("norm", "layernorm", &[x, w, c], Attrs::new().float("eps", 1e-5)).unwrap()
        }
        2 | 3 => {
            let (g, u, d) = (w(f, "g", &["f", "d"]), w(f, "u", &["f", "d"]), w(f, "dn", &["d", "f"]));
            let mut b = Builder::new(f);
            let g = b.einsum("gate", &[x, g], "b s d, f d -> b s f").unwrap();
            let u = b.einsum("up", &[x, u], "b s d, f d -> b s f").unwrap();
            let mut a = b.op("act", "swiglu", &[g, u], Attrs::new()).unwrap();
            if dice.roll(3) == 1 {
                // The norm calls its last dimension d, the value calls it f.
                let w = b.func.add_param(&format!("n{layer}"), ty(&["f"]), true);
                a = b.op("act.normed", "rmsnorm", &[a, w], Attrs::new().float("eps", 1e-5)).unwrap();
                b.func.values[a.0 as usize].ty = ty(&["b", "s", "f"]);
            }
            let y = b.einsum("down", &[a, d], "b s f, d f -> b s d").unwrap();
            b.op("res", "add", &[x, y], Attrs::new()).unwrap()
        }
        4 => {
            let bias = w(f, "bias", &["d"]);
            let mut b = Builder::new(f);
            let attrs = Attrs::new().text("spec", "d -> b s d").ints("sizes", [4, 5]);
            let wide = b.op("wide", "broadcast", &[bias], attrs).unwrap();
            let y = b.op("biased", "add", &[x, wide], Attrs::new()).unwrap();
            b.map(["tanh", "sigmoid", "silu", "gelu_tanh"][dice.roll(4)], &[y]).unwrap()
        }
        5 => attention(f, x, layer, dice),
        _ => {
            let mut b = Builder::new(f);
            let cut = |b: &mut Builder, start| {
                let attrs = Attrs::new().text("dim", "d").int("start", start).int("size", 3);
                b.op("cut", "slice", &[x], attrs).unwrap()
            };
            let (lo, hi) = (cut(&mut b, 0), cut(&mut b, 3));
            let p = b
                .op(
                    "padded",
                    "pad",
                    &[hi],
                    Attrs::new().text("dim", "d").int("before", 1).int("after", 2).float("value", 0.0),
                )
                .unwrap();
            let y = b.op("joined", "concat", &[hi, lo], Attrs::new().text("dim", "d")).unwrap();
            let z = b.op("sum", "add", &[y, p], Attrs::new()).unwrap();
            b.map("sin", &[z]).unwrap()
        }
    }
}

/// Grouped-query attention with 2 key/value heads, 3 queries each, width 2.
fn attention(f: &mut Function, x: ValueId, layer: usize, dice: &mut Dice) -> ValueId {
    let dims = |names: &[(&str, usize)]| Type::new(DType::F64, names);
    let mut w = |n: &str, t: Type| f.add_param(&format!("{n}{layer}"), t, true);
    let wq = w("wq", dims(&[("g", 2), ("r", 3), ("e", 2), ("d", 6)]));
    let wk = w("wk", dims(&[("g", 2), ("e", 2), ("d", 6)]));
    let wv = w("wv", dims(&[("g", 2), ("e", 2), ("d", 6)]));
    let wo = w("wo", dims(&[("d", 6), ("g", 2), ("r", 3), ("e", 2)]));
    let mut b = Builder::new(f);
    let q = b.einsum("q", &[x, wq], "b s d, g r e d -> b s g r e").unwrap();
    let k = b.einsum("k", &[x, wk], "b s d, g e d -> b s g e").unwrap();
    let v = b.einsum("v", &[x, wv], "b s d, g e d -> b s g e").unwrap();
    let attrs = Attrs::new().floats("inv_freq", vec![0.5]).float("multiplier", 1.0).int("size", 5).text("dtype", "f64");
    let t = b.ops(&["cos", "sin"], "rope_table", &[], attrs).unwrap();
    let q = b.op("qr", "rope", &[q, t[0], t[1]], Attrs::new()).unwrap();
    let k = b.op("kr", "rope", &[k, t[0], t[1]], Attrs::new()).unwrap();
    let attrs = Attrs::new().float("scale", 0.7).int("causal", 1).int("window", [0, 3][dice.roll(2)]);
    let o = b.ops(&["o", "lse"], "attention", &[q, k, v], attrs).unwrap()[0];
    let y = b.einsum("proj", &[o, wo], "b s g r e, d g r e -> b s d").unwrap();
    b.op("res", "add", &[x, y], Attrs::new()).unwrap()
}

fn mesh(dice: &mut Dice) -> Mesh {
    let shapes: [&[(&str, usize)]; 6] = [
        &[("dp", 2)],
        &[("tp", 3)],
        &[("dp", 2), ("tp", 2)],
        &[("fsdp", 3), ("tp", 2)],
        &[("dp", 2), ("fsdp", 2), ("tp", 2)],
        &[("dp", 2), ("tp.0", 2), ("tp.1", 3)],
    ];
    Mesh::new(shapes[dice.roll(6)])
}

/// Gives every node a random legal strategy (any axis on any factor that can be split, in any order)
/// and every parameter a random stored state.
fn place(module: &mut Module, mesh: &Mesh, dice: &mut Dice) {
    module.mesh = mesh.clone();
    let entry = module.entry.clone();
    for f in &mut module.functions {
        if f.name == entry {
            for p in f.params.clone() {
                let dims = f.ty(p.value).dims.len();
                for (a, _) in &mesh.axes {
                    let at = dice.roll(dims + 1);
                    if at < dims {
                        f.values[p.value.0 as usize].ty.dims[at].axes.push(a.clone());
                    }
                }
            }
            continue;
        }
        for n in 0..f.nodes.len() {
            let node = &f.nodes[n];
            let types: Vec<&Type> = node.inputs.iter().map(|v| f.ty(*v)).collect();
            let rule = ops::rule(node.op, &types, &node.attrs).unwrap();
            let free: Vec<String> =
                rule.factors.iter().filter(|f| f.kind != FactorKind::Whole).map(|f| f.name.clone()).collect();
            let mut axes: Vec<(Axis, String)> = Vec::new();
            for (a, _) in &mesh.axes {
                let k = dice.roll(free.len() + 1);
                if k > 0 {
                    axes.insert(dice.roll(axes.len() + 1), (a.clone(), free[k - 1].clone()));
                }
            }
            f.nodes[n].strategy = Strategy::from_axes(axes);
        }
    }
}

fn values(name: &str, t: &Type) -> Vec<f64> {
    let key = ops::mix(ops::fnv1a64(name.as_bytes()));
    (0..t.elements() as u64)
        .map(|i| {
            let r = ops::random_unit(key, i);
            match t.dtype {
                DType::I32 => ((r + 1.0) * 4.5).floor(),
                _ if name.starts_with("v.") => r * r * 0.1,
                _ => r * 0.7,
            }
        })
        .collect()
}

fn check(dice: &mut Dice) -> Result<(), TestCaseError> {
    let mut module = outline::outline(&graph(dice));
    verify::verify(&module).map_err(|e| TestCaseError::fail(format!("{e:?}")))?;
    let mesh = mesh(dice);
    place(&mut module, &mesh, dice);
    let training = simplify::simplify(&autodiff::differentiate(&module, &AdamW::default()).unwrap());
    let local = match partition::partition(&training) {
        Ok(local) => local,
        Err(e) => return Err(TestCaseError::fail(format!("{e}\n{}", text::print(&training)))),
    };
    verify::verify(&local).map_err(|e| TestCaseError::fail(format!("{}\n{}", e[0], text::print(&local))))?;
    prop_assert_eq!(&text::parse(&text::print(&local), "law").unwrap(), &local);
    let program = schedule::schedule(&local, &Default::default()).unwrap();
    let told = |e: &dyn std::fmt::Display| {
        TestCaseError::fail(format!("{e}\n{}\n{}", autoshard::artifact::list(&program), text::print(&local)))
    };
    schedule::check(&program).map_err(|e| told(&e))?;
    play::verify(&program).map_err(|e| told(&e))?;

    let entry = training.entry_function().unwrap();
    let args: Vec<Tensor> = entry
        .params
        .iter()
        .map(|p| {
            let v = entry.value(p.value);
            let data = if v.name == "t" { vec![3.0] } else { values(&v.name, &v.ty) };
            Tensor::new(v.ty.global(), data)
        })
        .collect();
    let want = interp::run(&training, entry, &args).unwrap();
    let mut r = Runtime::new(Arc::new(program), Options::default()).unwrap();
    for (i, a) in args.iter().enumerate() {
        r.write_global(i, &a.data).unwrap();
    }
    r.step(None).map_err(|e| TestCaseError::fail(format!("{e}\n{}", text::print(&local))))?;
    for (i, w) in want.iter().enumerate() {
        let got = r.read_global(Buf::Result(i)).unwrap();
        let scale = w.data.iter().fold(1e-3, |m: f64, x| m.max(x.abs()));
        for (g, x) in got.iter().zip(&w.data) {
            let name = &entry.value(entry.results[i]).name;
            // Updates divide by the gradient's size, so they are compared where that is not tiny.
            let ok = ((g - x) / scale).abs() <= 1e-9;
            if !ok {
                return Err(TestCaseError::fail(format!("%{name}: {g} against {x}\n{}", text::print(&local))));
            }
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn partition_equals_one_device(rolls in prop::collection::vec(0u32..1_000_000, 220)) {
        check(&mut Dice(rolls, 0))?;
    }
}

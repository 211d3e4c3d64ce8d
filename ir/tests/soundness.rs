//! Sharding rules against arithmetic: an operation computed on shards, by a rank that holds nothing
//! else, and put together as its rule says, is the operation.
//!
//! The evaluator here is apart from the interpreter on purpose. It runs the primitives of a composite's
//! body under one split factor without ever combining, so a factor that needs a combination inside
//! (`Inner`) must come out wrong.

mod common;

use autoshard_ir::core::{
    Attr, Attrs, Axis, DType, DimMap, FactorId, FactorKind, Linearity, OpDef, Rule, Scalar, ScalarBody, Semantics,
    Strategy, Type, ValueId,
};
use autoshard_ir::interp::{self, Tensor};
use autoshard_ir::verify::infer_states;
use autoshard_ir::{ops, Mesh, Monoid};
use common::{assert_close, cases, close, computing, Case};
use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

const TOLERANCE: f64 = 1e-12;

/// Element type and dimensions of an operand.
type Operand<'a> = (DType, &'a [(&'a str, usize)]);

/// One rank's part of one factor.
#[derive(Clone, Copy)]
struct Split<'a> {
    factor: &'a str,
    shards: usize,
    rank: usize,
}

impl Split<'_> {
    /// The indices of the factor that the rank takes: ⌈n/k⌉ each, the last ones fewer or none.
    fn range(&self, size: usize) -> Range<usize> {
        let chunk = size.div_ceil(self.shards);
        let start = (self.rank * chunk).min(size);
        start..(start + chunk).min(size)
    }

    /// The range of a factor of a rule: all of it, unless it is the split one.
    fn of(&self, rule: &Rule, f: FactorId) -> Range<usize> {
        let factor = &rule.factors[f];
        if factor.name == self.factor {
            self.range(factor.size)
        } else {
            0..factor.size
        }
    }
}

/// Results of an operation on one rank. `types` are those of the whole operands, `inputs` what the
/// rank holds of them.
fn local(op: &OpDef, attrs: &Attrs, types: &[&Type], inputs: &[&Tensor], split: Split) -> Vec<Tensor> {
    match op.semantics {
        Semantics::Primitive(rule) => vec![primitive(&rule(types, attrs).unwrap(), inputs, split)],
        Semantics::Composite(source) => {
            let body = ops::compose::body(source, types, attrs).unwrap();
            let mut env: HashMap<ValueId, Tensor> = HashMap::new();
            for (p, t) in body.params.iter().zip(inputs) {
                env.insert(p.value, (*t).clone());
            }
            for n in body.node_ids() {
                let node = body.node(n);
                let held: Vec<&Tensor> = node.inputs.iter().map(|v| &env[v]).collect();
                let out = local(node.op, &node.attrs, &body.input_types(n), &held, split);
                env.extend(node.results.iter().copied().zip(out));
            }
            body.results.iter().map(|r| env[r].clone()).collect()
        }
        Semantics::Collective | Semantics::Call => panic!("{} has no local form", op.name),
    }
}

/// A primitive on one rank: its scalar body at every point of the factors' ranges.
fn primitive(rule: &Rule, inputs: &[&Tensor], split: Split) -> Tensor {
    let ranges: Vec<Range<usize>> = (0..rule.factors.len()).map(|f| split.of(rule, f)).collect();
    let starts: Vec<usize> = ranges.iter().map(|r| r.start).collect();
    let sizes: Vec<usize> = ranges.iter().map(Range::len).collect();
    let whole: Vec<usize> = rule.factors.iter().map(|f| f.size).collect();
    let maps = &rule.results[0];
    let reduced = (0..sizes.len()).find(|f| !maps.iter().any(|m| m.factors.contains(f)));
    let monoid = reduced.map(|f| rule.monoid(f));
    let mut ty = rule.result_types[0].clone();
    for (d, m) in ty.dims.iter_mut().zip(maps) {
        d.size = m.factors.iter().map(|f| sizes[*f]).product();
    }
    let mut data = vec![monoid.map_or(0.0, Monoid::identity); ty.elements()];
    for k in 0..sizes.iter().product() {
        let point = unravel(k, &sizes);
        let global: Vec<usize> = point.iter().zip(&starts).map(|(p, s)| p + s).collect();
        let read = |i: usize| at(&rule.operands[i], &inputs[i].ty, &point, &sizes).map(|k| inputs[i].data[k]);
        let all = || (0..inputs.len()).map(|i| read(i).unwrap_or(0.0)).collect::<Vec<_>>();
        let x = match rule.body.as_ref().unwrap() {
            ScalarBody::Map(Scalar::Identity) => all()[0],
            ScalarBody::Map(s) => s.eval(&all()),
            ScalarBody::Product => all().iter().product(),
            ScalarBody::Sum(fill) if inputs.len() == 1 => read(0).unwrap_or(*fill),
            ScalarBody::Sum(_) => all().iter().sum(),
            ScalarBody::Iota => global[0] as f64,
            ScalarBody::Values(v) => v[global.first().copied().unwrap_or(0)],
            ScalarBody::Random(key) => {
                let counter = at(maps, &rule.result_types[0], &global, &whole).unwrap();
                ops::random_unit(*key, counter as u64)
            }
            // Sums over rows of a table and over the rows added, where the index meets the row.
            ScalarBody::Gather => hit(global[rule.operands[0][0].factors[0]], all()[1]) * all()[0],
            ScalarBody::ScatterAdd => hit(global[maps[0].factors[0]], all()[1]) * all()[0],
            ScalarBody::TopK => {
                let n = inputs[0].ty.dims.last().unwrap().size;
                let row = at(maps, &ty, &point, &sizes).unwrap() / sizes[sizes.len() - 1] * n;
                ranked(&inputs[0].data[row..row + n], global[global.len() - 1])
            }
            ScalarBody::Slots { capacity } => {
                let expert = global[global.len() - 1];
                let here = at(maps, &ty, &point, &sizes).unwrap();
                let place = (0..here).map(|i| hit(expert, inputs[0].data[i])).sum::<f64>();
                let mine = expert as f64 == all()[0] && place < *capacity as f64;
                if mine {
                    (expert * capacity) as f64 + place
                } else {
                    -1.0
                }
            }
            // Sums over slots and over choices, where the two meet.
            ScalarBody::Dispatch => {
                let (e, c) = (maps[0].factors[0], maps[1].factors[0]);
                let w = all().get(2).copied().unwrap_or(1.0);
                hit(global[e] * whole[c] + global[c], all()[1]) * w * all()[0]
            }
            ScalarBody::Combine => {
                let (e, c) = (rule.operands[0][0].factors[0], rule.operands[0][1].factors[0]);
                hit(global[e] * whole[c] + global[c], all()[1]) * all()[2] * all()[0]
            }
        };
        let to = at(maps, &ty, &point, &sizes).unwrap();
        data[to] = monoid.map_or(x, |m| m.combine(data[to], x));
    }
    Tensor::new(ty, data)
}

/// Where the entry stands that this many are larger than, or equal and before.
fn ranked(row: &[f64], rank: usize) -> f64 {
    let before = |i: usize| (0..row.len()).filter(|j| row[*j] > row[i] || (row[*j] == row[i] && *j < i)).count();
    (0..row.len()).find(|i| before(*i) == rank).unwrap() as f64
}

fn hit(row: usize, id: f64) -> f64 {
    f64::from(row as f64 == id)
}

fn unravel(mut k: usize, sizes: &[usize]) -> Vec<usize> {
    let mut point = vec![0; sizes.len()];
    for (p, s) in point.iter_mut().zip(sizes).rev() {
        *p = k % s;
        k /= s;
    }
    point
}

/// Row-major position at a point, or `None` outside the tensor.
fn at(maps: &[DimMap], ty: &Type, point: &[usize], sizes: &[usize]) -> Option<usize> {
    maps.iter().zip(&ty.dims).try_fold(0, |k, (m, d)| {
        let index = m.factors.iter().fold(0, |i, f| i * sizes[*f] + point[*f]) as isize + m.offset;
        usize::try_from(index).ok().filter(|i| *i < d.size).map(|i| k * d.size + i)
    })
}

/// The part of a dimension that a split leaves, if it carries the factor: rows of its major factor.
fn part(map: &DimMap, rule: &Rule, split: Split) -> Option<Range<usize>> {
    let (major, minor) = map.factors.split_first()?;
    if rule.factors[*major].name != split.factor {
        return None;
    }
    let rows: usize = minor.iter().map(|f| rule.factors[*f].size).product();
    let range = split.range(rule.factors[*major].size);
    Some(range.start * rows..range.end * rows)
}

/// What one rank holds of an operand.
fn shard(t: &Tensor, maps: &[DimMap], rule: &Rule, split: Split) -> Tensor {
    let mut out = t.clone();
    for (i, m) in maps.iter().enumerate() {
        let Some(range) = part(m, rule, split) else {
            continue;
        };
        let inner: usize = out.ty.dims[i + 1..].iter().map(|d| d.size).product();
        let rows = out.data.chunks(inner * out.ty.dims[i].size);
        out.data = rows.flat_map(|r| r[range.start * inner..range.end * inner].to_vec()).collect();
        out.ty.dims[i].size = range.len();
    }
    out
}

/// Parts one after another along a dimension.
fn concat(parts: &[Tensor], dim: usize, ty: &Type) -> Tensor {
    let inner: usize = ty.dims[dim + 1..].iter().map(|d| d.size).product();
    let outer: usize = ty.dims[..dim].iter().map(|d| d.size).product();
    let mut data = Vec::new();
    for o in 0..outer {
        for p in parts {
            let row = inner * p.ty.dims[dim].size;
            data.extend_from_slice(&p.data[o * row..(o + 1) * row]);
        }
    }
    Tensor { ty: ty.clone(), data }
}

/// The operation on every rank.
fn on_shards(case: &Case, rule: &Rule, factor: &str, shards: usize) -> Vec<Vec<Tensor>> {
    (0..shards)
        .map(|rank| {
            let split = Split { factor, shards, rank };
            let held: Vec<Tensor> =
                case.inputs.iter().zip(&rule.operands).map(|(t, m)| shard(t, m, rule, split)).collect();
            local(case.op, &case.attrs, &case.types(), &held.iter().collect::<Vec<_>>(), split)
        })
        .collect()
}

/// Puts one result together in the state that it is said to have.
fn assemble(parts: &[Tensor], state: &Type) -> Option<Tensor> {
    let ty = state.global();
    if let Some(dim) = state.dims.iter().position(|d| !d.axes.is_empty()) {
        return Some(concat(parts, dim, &ty));
    }
    if let Some(partial) = &state.partial {
        let sum = |i: usize| parts.iter().map(|p| p.data[i]).reduce(|a, b| partial.monoid.combine(a, b)).unwrap();
        return Some(Tensor { data: (0..ty.elements()).map(sum).collect(), ty });
    }
    // Replicated: every rank must have all of it.
    let same = parts.iter().all(|p| p.data.iter().zip(&parts[0].data).all(|(a, b)| close(*a, *b, TOLERANCE)));
    same.then(|| Tensor { ty, data: parts[0].data.clone() })
}

/// States of the results that the verifier infers when one axis takes this factor.
fn states(rule: &Rule, types: &[&Type], factor: &str, shards: usize) -> Result<Vec<Type>, String> {
    let axis = Axis::new("x");
    let mesh = Mesh::new(&[("x", shards)]);
    let mut operands: Vec<Type> = types.iter().map(|t| (*t).clone()).collect();
    for (ty, maps) in operands.iter_mut().zip(&rule.operands) {
        for (d, m) in ty.dims.iter_mut().zip(maps) {
            if m.factors.first().is_some_and(|f| rule.factors[*f].name == factor) {
                d.axes = vec![axis.clone()];
            }
        }
    }
    let strategy = Strategy::Axes(vec![(axis, factor.to_string())]);
    infer_states(rule, &strategy, &operands.iter().collect::<Vec<_>>(), &mesh)
}

/// Deterministic numbers in (−1, 1).
fn numbers(n: usize, seed: u64) -> impl Iterator<Item = f64> {
    (0..n as u64).map(move |i| ops::random_unit(ops::mix(seed), i))
}

/// A case of these shapes; integers are indices below `ids`.
fn case(op: &str, attrs: Attrs, operands: &[Operand], ids: usize) -> Case {
    let tensor = |(i, (dtype, dims)): (usize, &Operand)| {
        let ty = Type::new(*dtype, dims);
        let data = numbers(ty.elements(), i as u64).map(|x| match dtype {
            DType::I32 => ((x + 1.0) / 2.0 * ids as f64).floor(),
            _ => x,
        });
        Tensor::new(ty.clone(), data.collect())
    };
    let inputs = operands.iter().enumerate().map(tensor).collect();
    Case { op: ops::find(op).unwrap(), attrs, inputs, outputs: Vec::new(), note: "larger".to_string() }
}

/// Cases where 2 and 4 divide every factor, beside the vectors, whose shapes are odd.
fn larger() -> Vec<Case> {
    use DType::{F64, I32};
    let none = Attrs::new;
    let spec = |s: &str| Attrs::new().text("spec", s);
    let mask = |causal, window| none().float("scale", 0.4).int("causal", causal).int("window", window);
    let q: &[(&str, usize)] = &[("b", 2), ("s", 8), ("g", 4), ("r", 4), ("e", 4)];
    let k: &[(&str, usize)] = &[("b", 2), ("t", 8), ("g", 4), ("e", 4)];
    let v: &[(&str, usize)] = &[("b", 2), ("t", 8), ("g", 4), ("h", 4)];
    let o: &[(&str, usize)] = &[("b", 2), ("s", 8), ("g", 4), ("r", 4), ("h", 4)];
    let lse: &[(&str, usize)] = &[("b", 2), ("s", 8), ("g", 4), ("r", 4)];
    let mut out = vec![
        case("iota", none().text("dim", "s").int("size", 8).text("dtype", "i32"), &[], 0),
        case(
            "constant",
            none().floats("values", numbers(8, 1).collect()).text("dim", "h").text("dtype", "f64"),
            &[],
            0,
        ),
        case(
            "random_uniform",
            none().text("name", "w").int("seed", 3).text("dims", "a b c").ints("sizes", [4, 8, 4]).text("dtype", "f32"),
            &[],
            0,
        ),
        case(
            "reshape",
            spec("(b s) (g r) -> b s g r").ints("sizes", [4, 3, 4, 3]),
            &[(F64, &[("bs", 12), ("gr", 12)])],
            0,
        ),
        case("reshape", spec("b s g r -> (b s) (g r)"), &[(F64, &[("b", 4), ("s", 3), ("g", 4), ("r", 3)])], 0),
        case("reshape", spec("a (b c) -> (a b) c").ints("sizes", [2, 3]), &[(F64, &[("a", 4), ("bc", 6)])], 0),
        case("gather", none(), &[(F64, &[("v", 8), ("d", 4)]), (I32, &[("b", 4), ("s", 8)])], 8),
        case(
            "scatter_add",
            none().int("rows", 8),
            &[(F64, &[("b", 4), ("s", 8), ("d", 4)]), (I32, &[("b", 4), ("s", 8)])],
            8,
        ),
        case("top_k", none().int("k", 4), &[(F64, &[("b", 4), ("s", 8), ("E", 8)])], 0),
        case("take", none(), &[(F64, &[("b", 4), ("s", 8), ("n", 8)]), (I32, &[("b", 4), ("s", 8), ("k", 4)])], 8),
        case("slots", none().int("experts", 8).int("capacity", 12), &[(I32, &[("b", 4), ("s", 8), ("k", 4)])], 8),
        case(
            "dispatch",
            none().int("experts", 8).int("capacity", 4),
            &[
                (F64, &[("b", 4), ("s", 8), ("d", 4)]),
                (I32, &[("b", 4), ("s", 8), ("k", 4)]),
                (F64, &[("b", 4), ("s", 8), ("k", 4)]),
            ],
            32,
        ),
        case(
            "combine",
            none(),
            &[
                (F64, &[("E", 8), ("c", 4), ("d", 4)]),
                (I32, &[("b", 4), ("s", 8), ("k", 4)]),
                (F64, &[("b", 4), ("s", 8), ("k", 4)]),
            ],
            32,
        ),
        case("cross_entropy", none(), &[(F64, &[("b", 4), ("s", 8), ("v", 8)]), (I32, &[("b", 4), ("s", 8)])], 8),
        case(
            "rope_table",
            none()
                .floats("inv_freq", numbers(4, 1).collect())
                .float("multiplier", 1.5)
                .int("size", 8)
                .text("dtype", "f64"),
            &[],
            0,
        ),
        case("rope", none(), &[(F64, q), (F64, &[("s", 8), ("h", 2)]), (F64, &[("s", 8), ("h", 2)])], 0),
    ];
    for (causal, window) in [(1, 0), (1, 3), (0, 0)] {
        out.push(case("attention", mask(causal, window), &[(F64, q), (F64, k), (F64, v)], 0));
        let all: [Operand; 6] = [(F64, q), (F64, k), (F64, v), (F64, o), (F64, lse), (F64, o)];
        out.push(case("attention_bwd", mask(causal, window), &all, 0));
    }
    out
}

fn all_cases() -> Vec<Case> {
    cases().into_iter().chain(larger()).collect()
}

fn rule(case: &Case) -> Rule {
    ops::rule(case.op, &case.types(), &case.attrs).unwrap_or_else(|e| panic!("{case}: {e}"))
}

/// Whether the factor is the major part of a dimension that it shares: then it must divide.
fn leads_a_group(rule: &Rule, f: FactorId) -> bool {
    let maps = rule.operands.iter().chain(&rule.results).flatten();
    maps.into_iter().any(|m| m.factors.first() == Some(&f) && m.factors.len() > 1)
}

#[test]
fn free_factors_are_sound() {
    let mut checked: BTreeMap<&str, usize> = BTreeMap::new();
    for case in all_cases() {
        let (rule, want) = (rule(&case), case.run());
        for (f, factor) in rule.factors.iter().enumerate() {
            if !matches!(factor.kind, FactorKind::Free(_)) {
                continue;
            }
            for shards in [2, 3, 4] {
                let about = format!("{case}: factor {} over {shards}", factor.name);
                let states = match states(&rule, &case.types(), &factor.name, shards) {
                    Ok(states) => states,
                    Err(_) if leads_a_group(&rule, f) && !factor.size.is_multiple_of(shards) => continue,
                    Err(e) => panic!("{about}: {e}"),
                };
                let ranks = on_shards(&case, &rule, &factor.name, shards);
                for (r, (state, want)) in states.iter().zip(&want).enumerate() {
                    let parts: Vec<Tensor> = ranks.iter().map(|r_| r_[r].clone()).collect();
                    let got = assemble(&parts, state).unwrap_or_else(|| panic!("{about}: result {r} differs by rank"));
                    assert_close(&got, want, TOLERANCE, &format!("{about}: result {r}"));
                }
                *checked.entry(case.op.name).or_default() += 1;
            }
        }
    }
    // Elementwise work on scalars aside, every operation has a factor to split.
    for op in computing() {
        assert!(checked.contains_key(op.name), "no factor of {} was checked", op.name);
    }
}

/// Without a combination inside, an inner factor gives wrong results.
#[test]
fn inner_factors_need_a_combination() {
    for case in all_cases() {
        let (mut rule, want) = (rule(&case), case.run());
        for f in 0..rule.factors.len() {
            let factor = rule.factors[f].clone();
            if factor.kind != FactorKind::Inner || factor.size < 2 {
                continue;
            }
            rule.factors[f].kind = FactorKind::Free(Monoid::Sum);
            let ranks = on_shards(&case, &rule, &factor.name, 2);
            let states = states(&rule, &case.types(), &factor.name, 2).unwrap();
            rule.factors[f].kind = FactorKind::Inner;
            let right = states.iter().zip(&want).enumerate().all(|(r, (state, want))| {
                let parts: Vec<Tensor> = ranks.iter().map(|r_| r_[r].clone()).collect();
                let got = assemble(&parts, state);
                got.is_some_and(|g| g.data.iter().zip(&want.data).all(|(a, b)| close(*a, *b, TOLERANCE)))
            });
            assert!(!right, "{case}: factor {} is free, not inner", factor.name);
        }
    }
}

/// Factors of the first case of an operation with their kinds, as `b free, d inner`.
fn kinds(cases: &[Case], op: &str, of: impl Fn(&Case) -> bool) -> String {
    let case = cases.iter().find(|c| c.op.name == op && of(c)).unwrap_or_else(|| panic!("no case of {op}"));
    let text = |f: &autoshard_ir::core::Factor| {
        let kind = match f.kind {
            FactorKind::Free(Monoid::Sum) => "free",
            FactorKind::Free(Monoid::Max) => "max",
            FactorKind::Inner => "inner",
            FactorKind::Whole => "whole",
        };
        format!("{} {kind}", f.name)
    };
    rule(case).factors.iter().map(text).collect::<Vec<_>>().join(", ")
}

#[test]
fn kinds_are_as_expected() {
    let cases = all_cases();
    for (op, want) in [
        ("rmsnorm", "b free, s free, d inner"),
        ("rmsnorm_bwd", "b free, s free, d inner"),
        ("layernorm", "b free, s free, d inner"),
        ("layernorm_bwd", "b free, s free, d inner"),
        ("softmax", "b free, s free, n inner"),
        ("softmax_bwd", "b free, s free, n inner"),
        ("cross_entropy", "b free, s free, v inner"),
        ("cross_entropy_bwd", "b free, s free, v free"),
        // Every rank of a split h would have the whole lse, which is no state of a free factor.
        ("attention", "b free, s free, g free, r free, e inner, t inner, h inner"),
        ("attention_bwd", "b free, s free, g free, r free, e inner, t free, h free"),
        ("rope_table", "s free, h free"),
        ("rope", "b free, s free, g free, r free, e whole, h whole"),
        ("rope_bwd", "b free, s free, g free, r free, e whole, h whole"),
        ("swiglu", "b free, s free, f free"),
        ("swiglu_bwd", "b free, s free, f free"),
        ("adamw", "d free, e free"),
        ("gather", "b free, s free, v free, d free"),
        ("scatter_add", "b free, s free, d free, v free"),
        ("top_k", "b free, s free, k free"),
        ("take", "b free, s free, n free, k free"),
        ("slots", "b whole, s whole, k whole, E max"),
        ("dispatch", "b free, s free, k free, d free, E free, c free"),
        ("combine", "b free, s free, k free, E free, c free, d free"),
        ("reduce_max", "b max, s max, d max"),
        ("slice", "b free, s whole, d free"),
        ("concat", "b free, s free, d whole"),
        ("pad", "b free, s whole, d free"),
    ] {
        assert_eq!(kinds(&cases, op, |_| true), want, "{op}");
    }
    let reshape = |spec: &str| {
        let same = |c: &Case| c.attrs.get("spec") == Some(&Attr::Str(spec.to_string()));
        kinds(&cases, "reshape", same)
    };
    assert_eq!(reshape("b (g r) -> b g r"), "b free, g free, r whole");
    assert_eq!(reshape("b s d -> (b s) d"), "b free, s whole, d free");
    assert_eq!(reshape("a (b c) -> (a b) c"), "a free, b whole, c whole");
}

/// Which operands a rule lets be partial together.
fn partial_sets(linear: Linearity, operands: usize) -> Vec<Vec<usize>> {
    match linear {
        Linearity::None => Vec::new(),
        Linearity::Joint if operands == 0 => Vec::new(),
        Linearity::Joint => vec![(0..operands).collect()],
        Linearity::Each => (0..operands).map(|i| vec![i]).collect(),
        Linearity::First => vec![vec![0]],
    }
}

/// Partial sums pass where the rule says so: f(a + b) = f(a) + f(b).
#[test]
fn linearity_is_sound() {
    let mut checked = 0;
    for case in all_cases() {
        let (rule, want) = (rule(&case), case.run());
        for set in partial_sets(rule.linear, case.inputs.len()) {
            let run = |share: fn(f64, f64) -> f64| {
                let mut inputs = case.inputs.clone();
                for i in &set {
                    let cut = numbers(inputs[*i].data.len(), 7);
                    inputs[*i].data = inputs[*i].data.iter().zip(cut).map(|(x, c)| share(*x, c)).collect();
                }
                interp::primitive(&rule, &inputs).unwrap()
            };
            let (first, second) = (run(|_, c| c), run(|x, c| x - c));
            let data = first.data.iter().zip(&second.data).map(|(a, b)| a + b).collect();
            let got = Tensor { ty: first.ty.clone(), data };
            assert_close(&got, &want[0], TOLERANCE, &format!("{case}: partial operands {set:?}"));
            checked += 1;
        }
    }
    assert!(checked > 50, "{checked}");
}

//! Composites: matching operands with the header of a body, instantiating the body, and finding out
//! what splitting each factor means.

use super::{arity, Factors};
use crate::core::{
    Attrs, DType, Dim, Factor, FactorKind, Function, Linearity, Node, Rule, Semantics, Template, Type, ValueId,
};
use crate::text::{self, HeaderParam, TemplateEnv};
use crate::Monoid;
use std::collections::HashMap;

/// The body of a composite at these operand types (taken as global) and attributes.
///
/// In a header `T` is the operands' element type, `A` the type of the arithmetic inside: f32 where `T`
/// is bf16, else `T`. So statistics, losses and gradients that are sums over rows are not rounded to
/// bf16, and everything else is rounded once, where it leaves.
pub fn body(source: &str, inputs: &[&Type], attrs: &Attrs) -> Result<Function, String> {
    let header = text::template_header(source).map_err(|e| e.to_string())?;
    arity(inputs, header.params.len())?;
    let mut env = bind(&header.params, inputs, attrs)?;
    let dtype = env.dtype;
    env.dtype = dtype.arithmetic();
    let body = text::parse_template(source, &env).map_err(|e| e.to_string())?;
    if env.dtype == dtype {
        return Ok(body);
    }
    round_edges(&body, &header, dtype)
}

/// The body with its operands and results of type `T` in `dtype`: casts stand where they enter and
/// leave, inside a slice or a concatenation at the edge, which then remains a view.
fn round_edges(body: &Function, header: &text::Header, dtype: DType) -> Result<Function, String> {
    let mut out = Function::new(body.name.clone());
    let mut env: HashMap<ValueId, ValueId> = HashMap::new();
    let view = |n: &Node| n.op.template == Template::View;
    let narrow_param = |v: &ValueId| {
        let at = body.params.iter().position(|p| p.value == *v);
        at.is_some_and(|i| header.params[i].dtype == "T")
    };
    let narrow_result = |v: &ValueId| {
        let at = body.results.iter().position(|r| r == v);
        at.is_some_and(|i| header.results.get(i).is_some_and(|t| t == "T"))
    };
    let sliced = |v: ValueId| body.nodes.iter().filter(|n| n.inputs.contains(&v)).all(view);
    for (p, h) in body.params.iter().zip(&header.params) {
        let value = body.value(p.value);
        let ty = Type { dtype: if h.dtype == "T" { dtype } else { value.ty.dtype }, ..value.ty.clone() };
        env.insert(p.value, out.add_param(&value.name, ty, p.trainable));
    }
    for (p, h) in body.params.iter().zip(&header.params) {
        if h.dtype == "T" && !sliced(p.value) {
            let v = cast(&mut out, env[&p.value], body.ty(p.value).dtype)?;
            env.insert(p.value, v);
        }
    }
    for node in &body.nodes {
        let enters = view(node) && node.inputs.iter().all(|v| narrow_param(v) && sliced(*v));
        let leaves = view(node) && node.results.iter().all(narrow_result);
        let mut copy = node.clone();
        copy.inputs.iter_mut().for_each(|v| *v = env[v]);
        if leaves {
            for v in &mut copy.inputs {
                *v = cast(&mut out, *v, dtype)?;
            }
        }
        copy.results = Vec::new();
        let types = node.results.iter().map(|r| {
            let value = body.value(*r);
            let ty = if enters || leaves { Type { dtype, ..value.ty.clone() } } else { value.ty.clone() };
            (value.name.clone(), ty)
        });
        let id = out.add_node(copy, types.collect());
        for (r, new) in node.results.iter().zip(out.node(id).results.clone()) {
            let wide = if enters { cast(&mut out, new, body.ty(*r).dtype)? } else { new };
            env.insert(*r, wide);
        }
    }
    for r in &body.results {
        let v = env[r];
        let rounded = if narrow_result(r) && out.ty(v).dtype != dtype { cast(&mut out, v, dtype)? } else { v };
        out.results.push(rounded);
    }
    Ok(out)
}

fn cast(f: &mut Function, v: ValueId, dtype: DType) -> Result<ValueId, String> {
    let op = super::find("cast").ok_or("there is no cast")?;
    let (name, ty) = (f.value(v).name.clone(), Type { dtype, ..f.ty(v).clone() });
    let attrs = Attrs::new().text("dtype", dtype.name());
    let node =
        Node { op, attrs, callee: None, inputs: vec![v], results: Vec::new(), strategy: Default::default(), of: None };
    let id = f.add_node(node, vec![(name, ty)]);
    Ok(f.node(id).results[0])
}

/// Binds the dimension names of a header to the operands' sizes.
fn bind<'a>(header: &[HeaderParam], inputs: &[&Type], attrs: &'a Attrs) -> Result<TemplateEnv<'a>, String> {
    let mut env =
        TemplateEnv { dtype: template_dtype(header, inputs, attrs)?, rest: Vec::new(), dims: Vec::new(), attrs };
    let mut rest_known = false;
    for (param, ty) in header.iter().zip(inputs) {
        let want = match param.dtype.as_str() {
            "A" => env.dtype.arithmetic(),
            other => DType::from_name(other).unwrap_or(env.dtype),
        };
        if ty.dtype != want {
            return Err(format!("operand {} must be {want}, got {}", param.name, ty.dtype));
        }
        let fixed = param.dims.iter().filter(|d| *d != "..").count();
        let open = fixed < param.dims.len();
        if ty.dims.len() < fixed || (!open && ty.dims.len() != fixed) {
            return Err(format!("operand {} must be [{}], got {ty}", param.name, param.dims.join(", ")));
        }
        let mut dims = ty.dims.iter();
        for name in &param.dims {
            if name == ".." {
                let rest: Vec<Dim> = dims.by_ref().take(ty.dims.len() - fixed).cloned().collect();
                bind_rest(&mut env.rest, &mut rest_known, rest, &param.name)?;
            } else if let Some(d) = dims.next() {
                bind_dim(&mut env.dims, name, d.size, &param.name)?;
            }
        }
    }
    if let Some(d) = env.rest.iter().find(|d| env.dims.iter().any(|(n, _)| n == &d.name)) {
        return Err(format!("dimension name {} stands for two different dimensions; rename one", d.name));
    }
    Ok(env)
}

fn template_dtype(header: &[HeaderParam], inputs: &[&Type], attrs: &Attrs) -> Result<DType, String> {
    match header.iter().zip(inputs).find(|(p, _)| p.dtype == "T") {
        Some((_, ty)) if ty.dtype.is_float() => Ok(ty.dtype),
        Some((p, ty)) => Err(format!("operand {} must be a float tensor, got {ty}", p.name)),
        None => crate::core::dtype_attr(attrs),
    }
}

fn bind_rest(rest: &mut Vec<Dim>, known: &mut bool, dims: Vec<Dim>, operand: &str) -> Result<(), String> {
    let dims: Vec<Dim> = dims.into_iter().map(|d| Dim::new(d.name, d.size)).collect();
    if *known {
        let same = rest.len() == dims.len() && rest.iter().zip(&dims).all(|(a, b)| a.size == b.size);
        return if same {
            Ok(())
        } else {
            Err(format!("the leading dimensions of operand {operand} do not match those of the first operand"))
        };
    }
    *rest = dims;
    *known = true;
    Ok(())
}

fn bind_dim(dims: &mut Vec<(String, usize)>, name: &str, size: usize, operand: &str) -> Result<(), String> {
    match dims.iter().find(|(n, _)| n == name) {
        Some((_, s)) if *s != size => Err(format!("factor {name} is {s}, but operand {operand} gives it {size}")),
        Some(_) => Ok(()),
        None => {
            dims.push((name.to_string(), size));
            Ok(())
        }
    }
}

/// The rule of a composite: factors are the dimension names of the body's parameters and results.
pub fn rule(source: &str, inputs: &[&Type], attrs: &Attrs) -> Result<Rule, String> {
    let body = body(source, inputs, attrs)?;
    let mut factors = Factors::default();
    let operands = body.params.iter().map(|p| factors.map(body.ty(p.value))).collect::<Result<Vec<_>, _>>()?;
    let results = body.results.iter().map(|r| factors.map(body.ty(*r))).collect::<Result<Vec<_>, _>>()?;
    let rules = node_rules(&body)?;
    let kinds = classify_all(&body, &rules, &factors.0);
    for (f, kind) in factors.0.iter_mut().zip(kinds) {
        f.kind = kind;
    }
    Ok(Rule {
        factors: factors.0,
        operands,
        results,
        result_types: body.results.iter().map(|r| named_like(body.ty(*r), &body, inputs)).collect(),
        body: None,
        linear: Linearity::None,
    })
}

/// A result's type with the names that the operands have for its dimensions (those of the header where
/// that would name two dimensions alike).
fn named_like(result: &Type, body: &Function, inputs: &[&Type]) -> Type {
    let outer = |name: &str| {
        let mut pairs = body.params.iter().zip(inputs).flat_map(|(p, ty)| body.ty(p.value).dims.iter().zip(&ty.dims));
        pairs.find(|(inner, _)| inner.name == name).map(|(_, d)| d.name.clone())
    };
    let mut named = result.clone();
    for d in &mut named.dims {
        d.name = outer(&d.name).unwrap_or_else(|| d.name.clone());
    }
    let unique = named.dims.iter().enumerate().all(|(i, d)| named.dims[..i].iter().all(|e| e.name != d.name));
    if unique {
        named
    } else {
        result.clone()
    }
}

fn node_rules(body: &Function) -> Result<Vec<Rule>, String> {
    body.node_ids()
        .map(|n| {
            let node = body.node(n);
            let types = body.input_types(n);
            match node.op.semantics {
                Semantics::Call | Semantics::Collective => Err(format!("{} inside a composite", node.op.name)),
                _ => super::rule(node.op, &types, &node.attrs),
            }
        })
        .collect()
}

fn classify_all(body: &Function, rules: &[Rule], factors: &[Factor]) -> Vec<FactorKind> {
    factors.iter().map(|f| classify(body, rules, &f.name)).collect()
}

/// State of a value of the body when one axis splits the factor.
#[derive(Clone, Copy, PartialEq)]
enum State {
    Whole,
    Split,
    Partial(Monoid),
}

/// Follows one split factor through the body.
fn classify(body: &Function, rules: &[Rule], factor: &str) -> FactorKind {
    let carries = |v: ValueId| body.ty(v).dim(factor).is_some();
    let mut states = vec![State::Whole; body.values.len()];
    for p in &body.params {
        if carries(p.value) {
            states[p.value.0 as usize] = State::Split;
        }
    }
    for (n, rule) in body.nodes.iter().zip(rules) {
        let inputs: Vec<State> = n.inputs.iter().map(|v| states[v.0 as usize]).collect();
        match step(rule, factor, &inputs) {
            Ok(out) => {
                for (r, s) in n.results.iter().zip(out) {
                    // Names in the body are written out: a result that carries the factor under
                    // another name than the operation derived is a slice of it.
                    if carries(*r) != (s == State::Split) {
                        return FactorKind::Whole;
                    }
                    states[r.0 as usize] = s;
                }
            }
            Err(kind) => return kind,
        }
    }
    let mut monoid = None;
    for r in &body.results {
        match states[r.0 as usize] {
            State::Partial(m) if monoid.is_some_and(|k| k != m) => return FactorKind::Inner,
            State::Partial(m) => monoid = Some(m),
            State::Split => {}
            // Every rank has it all (attention's lse, under a split of v's columns), which a rule
            // cannot say of one result: only the body can.
            State::Whole => return FactorKind::Inner,
        }
    }
    FactorKind::Free(monoid.unwrap_or(Monoid::Sum))
}

/// States of a node's results, or the kind that its operands force.
fn step(rule: &Rule, factor: &str, inputs: &[State]) -> Result<Vec<State>, FactorKind> {
    let f = rule.factor(factor);
    let own = match f.map(|f| rule.factors[f].kind) {
        Some(FactorKind::Free(m)) => Some(m),
        Some(kind) => return Err(kind),
        None => None,
    };
    let partial: Vec<usize> = (0..inputs.len()).filter(|i| matches!(inputs[*i], State::Partial(_))).collect();
    let passes = match rule.linear {
        _ if partial.is_empty() => true,
        Linearity::None => false,
        Linearity::Joint => partial.len() == inputs.len(),
        Linearity::Each => partial.len() == 1,
        Linearity::First => partial == [0],
    };
    let carried = partial.first().map(|i| inputs[*i]);
    if !passes || (carried.is_some() && own.is_some()) || matches!(carried, Some(State::Partial(Monoid::Max))) {
        return Err(FactorKind::Inner);
    }
    // A factor that only operands carry under this name must really be split there.
    Ok(rule
        .results
        .iter()
        .map(|maps| {
            let has = f.is_some_and(|f| maps.iter().any(|m| m.factors.contains(&f)));
            match (carried, own) {
                (Some(p), _) => p,
                (None, Some(_)) if has => State::Split,
                (None, Some(m)) if inputs.contains(&State::Split) || has => State::Partial(m),
                _ => State::Whole,
            }
        })
        .collect())
}

//! The reference interpreter: every primitive by its rule, one scalar at a time. Slow and plain on
//! purpose; it is what kernels and partitions are compared with.
//!
//! Placement is ignored: collectives are the identity, and a local function computes the same as the
//! global one it came from.

use crate::core::{DimMap, FactorKind, Function, Module, NodeId, Rule, Scalar, ScalarBody, Semantics, Type};
use crate::ops;

mod route;

/// A tensor: global type and row-major values, each already rounded to its element type.
#[derive(Clone, Debug, PartialEq)]
pub struct Tensor {
    /// Type.
    pub ty: Type,
    /// Values, row-major.
    pub data: Vec<f64>,
}

impl Tensor {
    /// A tensor; values are rounded to the type.
    pub fn new(ty: Type, data: Vec<f64>) -> Tensor {
        let data = data.into_iter().map(|x| ty.dtype.round(x)).collect();
        Tensor { ty, data }
    }
}

/// Why a function could not be interpreted.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum InterpError {
    /// Wrong number or shape of arguments.
    #[error("@{function}: argument {index} must be {want}, got {got}")]
    Argument {
        /// Function.
        function: String,
        /// Position.
        index: usize,
        /// Wanted type.
        want: String,
        /// Given type.
        got: String,
    },
    /// A node cannot be evaluated.
    #[error("@{function}: {node}: {message}")]
    Node {
        /// Function.
        function: String,
        /// Operation and first result.
        node: String,
        /// Reason.
        message: String,
    },
}

/// Runs a function of the module.
pub fn run(module: &Module, function: &Function, args: &[Tensor]) -> Result<Vec<Tensor>, InterpError> {
    check_args(function, args)?;
    let mut env: Vec<Option<Tensor>> = vec![None; function.values.len()];
    for (p, a) in function.params.iter().zip(args) {
        // Names are the function's: attributes speak of dimensions by name.
        env[p.value.0 as usize] = Some(Tensor { ty: function.ty(p.value).clone(), data: a.data.clone() });
    }
    for n in function.node_ids() {
        let node = function.node(n);
        let inputs: Vec<Tensor> = node.inputs.iter().filter_map(|v| env[v.0 as usize].clone()).collect();
        let out = eval(module, function, n, &inputs)?;
        for (r, mut t) in node.results.iter().zip(out) {
            t.ty = function.ty(*r).clone();
            env[r.0 as usize] = Some(t);
        }
    }
    Ok(function.results.iter().filter_map(|r| env[r.0 as usize].clone()).collect())
}

fn check_args(function: &Function, args: &[Tensor]) -> Result<(), InterpError> {
    let wrong = |index: usize, want: String, got: String| InterpError::Argument {
        function: function.name.clone(),
        index,
        want,
        got,
    };
    if args.len() != function.params.len() {
        return Err(wrong(args.len(), format!("one of {}", function.params.len()), "none".into()));
    }
    for (i, (p, a)) in function.params.iter().zip(args).enumerate() {
        if !function.ty(p.value).same_shape(&a.ty) {
            return Err(wrong(i, function.ty(p.value).to_string(), a.ty.to_string()));
        }
    }
    Ok(())
}

fn eval(module: &Module, function: &Function, n: NodeId, inputs: &[Tensor]) -> Result<Vec<Tensor>, InterpError> {
    let node = function.node(n);
    let fail = |message: String| InterpError::Node {
        function: function.name.clone(),
        node: match node.results.first() {
            Some(r) => format!("{} %{}", node.op.name, function.value(*r).name),
            None => node.op.name.to_string(),
        },
        message,
    };
    let types: Vec<Type> = inputs.iter().map(|t| t.ty.global()).collect();
    let refs: Vec<&Type> = types.iter().collect();
    match node.op.semantics {
        Semantics::Primitive(rule) => {
            let rule = rule(&refs, &node.attrs).map_err(fail)?;
            Ok(vec![primitive(&rule, inputs).map_err(fail)?])
        }
        Semantics::Composite(source) => {
            let body = ops::compose::body(source, &refs, &node.attrs).map_err(fail)?;
            run(module, &body, inputs)
        }
        Semantics::Collective => Ok(vec![inputs[0].clone()]),
        Semantics::Call => {
            let name = node.callee.as_deref().unwrap_or_default();
            let callee = module.function(name).ok_or_else(|| fail(format!("no function @{name}")))?;
            run(module, callee, inputs)
        }
    }
}

/// Evaluates a primitive by its rule: over all points of the factor space, the scalar body combined
/// by the monoid.
pub fn primitive(rule: &Rule, inputs: &[Tensor]) -> Result<Tensor, String> {
    let result = rule.result_types[0].clone();
    let body = rule.body.as_ref().ok_or("no scalar body")?;
    match body {
        ScalarBody::Gather => return gather(result, inputs),
        ScalarBody::ScatterAdd => return scatter(result, inputs),
        ScalarBody::TopK => return route::top_k(result, &inputs[0]),
        ScalarBody::Slots { capacity } => {
            let experts = rule.factor("E").map_or(0, |f| rule.factors[f].size);
            return route::slots(result, experts, *capacity, &inputs[0]);
        }
        ScalarBody::Dispatch => return route::dispatch(result, inputs),
        ScalarBody::Combine => return route::combine(result, inputs),
        _ => {}
    }
    let sizes: Vec<usize> = rule.factors.iter().map(|f| f.size).collect();
    let monoid = rule.factors.iter().find_map(|f| match f.kind {
        FactorKind::Free(m) => Some(m),
        _ => None,
    });
    let reduces = rule.factors.iter().enumerate().any(|(i, _)| !rule.results[0].iter().any(|m| m.factors.contains(&i)));
    let monoid = if reduces { monoid } else { None };
    let mut data = vec![monoid.map_or(0.0, |m| m.identity()); result.elements()];
    let mut point = vec![0usize; sizes.len()];
    if sizes.contains(&0) {
        return Ok(Tensor { ty: result, data });
    }
    loop {
        let at = flat(&rule.results[0], &result, &point, &sizes).ok_or("result index out of range")?;
        let x = scalar(rule, body, inputs, &point, &sizes, at);
        data[at] = match monoid {
            Some(m) => m.combine(data[at], x),
            None => x,
        };
        if !advance(&mut point, &sizes) {
            break;
        }
    }
    Ok(Tensor::new(result, data))
}

fn scalar(rule: &Rule, body: &ScalarBody, inputs: &[Tensor], point: &[usize], sizes: &[usize], at: usize) -> f64 {
    let read = |i: usize| flat(&rule.operands[i], &inputs[i].ty, point, sizes).map(|k| inputs[i].data[k]);
    let all = || (0..inputs.len()).map(|i| read(i).unwrap_or(0.0)).collect::<Vec<_>>();
    match body {
        ScalarBody::Map(Scalar::Identity) => all()[0],
        ScalarBody::Map(s) => s.eval(&all()),
        ScalarBody::Product => all().iter().product(),
        ScalarBody::Sum(fill) if inputs.len() == 1 => read(0).unwrap_or(*fill),
        ScalarBody::Sum(_) => all().iter().sum(),
        ScalarBody::Iota => point[0] as f64,
        ScalarBody::Values(v) => v[point.first().copied().unwrap_or(0)],
        ScalarBody::Random(key) => ops::random_unit(*key, at as u64),
        // Evaluated whole, above.
        ScalarBody::Gather
        | ScalarBody::ScatterAdd
        | ScalarBody::TopK
        | ScalarBody::Slots { .. }
        | ScalarBody::Dispatch
        | ScalarBody::Combine => f64::NAN,
    }
}

/// Row-major position that the maps give at a point, or `None` outside the tensor.
fn flat(maps: &[DimMap], ty: &Type, point: &[usize], sizes: &[usize]) -> Option<usize> {
    let mut at = 0;
    for (m, d) in maps.iter().zip(&ty.dims) {
        let index = m.factors.iter().fold(0usize, |i, f| i * sizes[*f] + point[*f]) as isize + m.offset;
        if index < 0 || index as usize >= d.size {
            return None;
        }
        at = at * d.size + index as usize;
    }
    Some(at)
}

fn advance(point: &mut [usize], sizes: &[usize]) -> bool {
    for (p, s) in point.iter_mut().zip(sizes).rev() {
        *p += 1;
        if *p < *s {
            return true;
        }
        *p = 0;
    }
    false
}

fn index(id: f64, rows: usize) -> Result<usize, String> {
    if id < 0.0 || id >= rows as f64 {
        return Err(format!("index {id} is outside the table of {rows} rows"));
    }
    Ok(id as usize)
}

fn gather(result: Type, inputs: &[Tensor]) -> Result<Tensor, String> {
    let (rows, d) = (inputs[0].ty.dims[0].size, inputs[0].ty.dims[1].size);
    let mut data = Vec::with_capacity(result.elements());
    for id in &inputs[1].data {
        let i = index(*id, rows)?;
        data.extend_from_slice(&inputs[0].data[i * d..(i + 1) * d]);
    }
    Ok(Tensor { ty: result, data })
}

fn scatter(result: Type, inputs: &[Tensor]) -> Result<Tensor, String> {
    let (rows, d) = (result.dims[0].size, result.dims[1].size);
    let mut data = vec![0.0; rows * d];
    for (k, id) in inputs[1].data.iter().enumerate() {
        let i = index(*id, rows)?;
        for c in 0..d {
            data[i * d + c] += inputs[0].data[k * d + c];
        }
    }
    Ok(Tensor::new(result, data))
}

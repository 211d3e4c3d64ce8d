//! The pointwise table: scalar functions of tensors of one shape, and casts.

use super::{arity, elementwise};
use crate::core::{
    AttrDef, AttrKind, Attrs, Bits, BuildError, Builder, DType, Gradient, Linearity, NodeId, OpDef, Rule, Scalar,
    ScalarBody, Semantics, Template, Type, ValueId,
};

/// Declares one row: name, scalar, doc, linearity.
macro_rules! pointwise {
    ($($name:literal, $scalar:ident, $linear:ident, $gradient:expr, $doc:literal;)*) => {
        pub(super) const OPS: &[OpDef] = &[
            $(OpDef {
                name: $name,
                doc: $doc,
                attrs: &[],
                template: Template::Loop,
                semantics: Semantics::Primitive(|inputs, _| map(inputs, Scalar::$scalar, Linearity::$linear)),
                gradient: $gradient,
            },)*
            OpDef {
                name: "affine",
                doc: "x·mul + add, with constants.",
                attrs: &[
                    AttrDef { name: "mul", kind: AttrKind::Float, required: true },
                    AttrDef { name: "add", kind: AttrKind::Float, required: true },
                ],
                template: Template::Loop,
                semantics: Semantics::Primitive(affine),
                gradient: Gradient::Derived(gradient),
            },
            OpDef {
                name: "cast",
                doc: "The nearest value of another element type. No reduction crosses it, except where the type is wider.",
                attrs: &[AttrDef { name: "dtype", kind: AttrKind::Str, required: true }],
                template: Template::Loop,
                semantics: Semantics::Primitive(cast),
                gradient: Gradient::Derived(cast_gradient),
            },
        ];
    };
}

const D: Gradient = Gradient::Derived(gradient);

pointwise! {
    "neg", Neg, Joint, D, "−x.";
    "exp", Exp, None, D, "eˣ.";
    "log", Log, None, D, "Natural logarithm.";
    "sqrt", Sqrt, None, D, "Square root.";
    "rsqrt", Rsqrt, None, D, "1/√x.";
    "reciprocal", Reciprocal, None, D, "1/x.";
    "sin", Sin, None, D, "Sine.";
    "cos", Cos, None, D, "Cosine.";
    "tanh", Tanh, None, D, "Hyperbolic tangent.";
    "sigmoid", Sigmoid, None, D, "1/(1+e⁻ˣ).";
    "abs", Abs, None, D, "|x|.";
    "add", Add, Joint, D, "x + y.";
    "sub", Sub, Joint, D, "x − y.";
    "mul", Mul, Each, D, "x·y.";
    "div", Div, First, D, "x/y.";
    "max", Max, None, D, "The larger.";
    "min", Min, None, D, "The smaller.";
    "pow", Pow, None, D, "xʸ; the gradient of y is xʸ·ln x.";
    "less", Less, None, D, "1 where x < y, else 0.";
    "equal", Equal, None, D, "1 where x = y, else 0.";
    "select", Select, None, D, "y where x ≠ 0, else z.";
}

fn map(inputs: &[&Type], scalar: Scalar, linear: Linearity) -> Result<Rule, String> {
    arity(inputs, scalar.arity())?;
    same_dtype(inputs)?;
    elementwise(inputs, inputs[0].global(), ScalarBody::Map(scalar), linear)
}

fn same_dtype(inputs: &[&Type]) -> Result<(), String> {
    match inputs.iter().find(|t| t.dtype != inputs[0].dtype) {
        Some(other) => Err(format!(
            "operands have different element types: {} and {}; cast one of them",
            inputs[0].dtype, other.dtype
        )),
        None => Ok(()),
    }
}

fn affine(inputs: &[&Type], attrs: &Attrs) -> Result<Rule, String> {
    arity(inputs, 1)?;
    let (mul, add) = (attrs.get_float("mul")?, attrs.get_float("add")?);
    let linear = if add == 0.0 { Linearity::Joint } else { Linearity::None };
    let scalar = Scalar::Affine { mul: Bits::new(mul), add: Bits::new(add) };
    elementwise(inputs, inputs[0].global(), ScalarBody::Map(scalar), linear)
}

fn cast(inputs: &[&Type], attrs: &Attrs) -> Result<Rule, String> {
    arity(inputs, 1)?;
    let result = Type { dtype: crate::core::dtype_attr(attrs)?, ..inputs[0].global() };
    // Widening is exact, so a sum may pass through it; rounding parts is not rounding their sum.
    let widens =
        matches!((inputs[0].dtype, result.dtype), (DType::Bf16, DType::F32 | DType::F64) | (DType::F32, DType::F64));
    let linear = if widens { Linearity::Joint } else { Linearity::None };
    elementwise(inputs, result, ScalarBody::Map(Scalar::Identity), linear)
}

fn cast_gradient(b: &mut Builder, node: NodeId, cots: &[Option<ValueId>]) -> Result<Vec<Option<ValueId>>, BuildError> {
    let Some(dy) = cots[0] else {
        return Ok(vec![None]);
    };
    let dtype = b.ty(b.func.node(node).inputs[0]).dtype;
    if !dtype.is_float() {
        return Ok(vec![None]);
    }
    Ok(vec![Some(b.op("d", "cast", &[dy], Attrs::new().text("dtype", dtype.name()))?)])
}

/// The scalar derivatives: the one place where they are written.
fn gradient(b: &mut Builder, node: NodeId, cots: &[Option<ValueId>]) -> Result<Vec<Option<ValueId>>, BuildError> {
    let (x, y, op) = {
        let n = b.func.node(node);
        (n.inputs.clone(), n.results[0], n.op)
    };
    let Some(d) = cots[0] else {
        return Ok(vec![None; x.len()]);
    };
    let types: Vec<Type> = x.iter().map(|v| b.ty(*v).global()).collect();
    let attrs = b.func.node(node).attrs.clone();
    let rule = super::rule(op, &types.iter().collect::<Vec<_>>(), &attrs).map_err(BuildError::Malformed)?;
    let Some(ScalarBody::Map(scalar)) = rule.body else {
        return Ok(vec![None; x.len()]);
    };
    use Scalar::*;
    let out = match scalar {
        Identity => vec![Some(d)],
        Neg => vec![Some(b.map("neg", &[d])?)],
        Exp => vec![Some(b.map("mul", &[d, y])?)],
        Log => vec![Some(b.map("div", &[d, x[0]])?)],
        Sqrt => {
            let half = b.affine(d, 0.5, 0.0)?;
            vec![Some(b.map("div", &[half, y])?)]
        }
        Rsqrt => {
            let r3 = cube(b, y)?;
            let k = b.map("mul", &[d, r3])?;
            vec![Some(b.affine(k, -0.5, 0.0)?)]
        }
        Reciprocal => {
            let y2 = b.map("mul", &[y, y])?;
            let k = b.map("mul", &[d, y2])?;
            vec![Some(b.map("neg", &[k])?)]
        }
        Sin => {
            let c = b.map("cos", &[x[0]])?;
            vec![Some(b.map("mul", &[d, c])?)]
        }
        Cos => {
            let s = b.map("sin", &[x[0]])?;
            let k = b.map("mul", &[d, s])?;
            vec![Some(b.map("neg", &[k])?)]
        }
        Tanh => {
            let y2 = b.map("mul", &[y, y])?;
            let k = b.affine(y2, -1.0, 1.0)?;
            vec![Some(b.map("mul", &[d, k])?)]
        }
        Sigmoid => {
            let k = b.affine(y, -1.0, 1.0)?;
            let k = b.map("mul", &[y, k])?;
            vec![Some(b.map("mul", &[d, k])?)]
        }
        Abs => {
            let zero = b.affine(x[0], 0.0, 0.0)?;
            let negative = b.map("less", &[x[0], zero])?;
            let minus = b.map("neg", &[d])?;
            vec![Some(b.map("select", &[negative, minus, d])?)]
        }
        Add => vec![Some(d), Some(d)],
        Sub => vec![Some(d), Some(b.map("neg", &[d])?)],
        Mul => vec![Some(b.map("mul", &[d, x[1]])?), Some(b.map("mul", &[d, x[0]])?)],
        Div => {
            let dx = b.map("div", &[d, x[1]])?;
            let k = b.map("mul", &[dx, y])?;
            vec![Some(dx), Some(b.map("neg", &[k])?)]
        }
        Max | Min => {
            let (lo, hi) = if scalar == Max { (x[1], x[0]) } else { (x[0], x[1]) };
            let first = b.map("less", &[lo, hi])?;
            let zero = b.affine(d, 0.0, 0.0)?;
            let dx = b.map("select", &[first, d, zero])?;
            let dy = b.map("select", &[first, zero, d])?;
            vec![Some(dx), Some(dy)]
        }
        Pow => {
            // y·xʸ⁻¹ rather than y·xʸ/x, which is not a number at 0.
            let less = b.affine(x[1], 1.0, -1.0)?;
            let power = b.map("pow", &[x[0], less])?;
            let k = b.map("mul", &[power, x[1]])?;
            let log = b.map("log", &[x[0]])?;
            let l = b.map("mul", &[y, log])?;
            vec![Some(b.map("mul", &[d, k])?), Some(b.map("mul", &[d, l])?)]
        }
        Select => {
            let zero = b.affine(d, 0.0, 0.0)?;
            let yes = b.map("select", &[x[0], d, zero])?;
            let no = b.map("select", &[x[0], zero, d])?;
            vec![None, Some(yes), Some(no)]
        }
        Affine { mul, .. } => vec![Some(b.affine(d, mul.get(), 0.0)?)],
        // Piecewise constant: nothing flows.
        Less | Equal => vec![None, None],
    };
    Ok(out)
}

fn cube(b: &mut Builder, y: ValueId) -> Result<ValueId, BuildError> {
    let y2 = b.map("mul", &[y, y])?;
    b.map("mul", &[y2, y])
}

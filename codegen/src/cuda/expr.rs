//! Registers as C expressions.

use super::code::{Action, Code, Op};
use super::text::{ctype, double, float, number, Text};
use autoshard_ir::core::{BinaryMonoid, DType, Scalar};

/// Name of a register: `u3` if uniform, `r3` within a lane.
pub(super) fn register(code: &Code, reg: usize) -> String {
    format!("{}{reg}", if code.ops[reg].uniform { 'u' } else { 'r' })
}

/// An expression of register type `from` as one of type `to`, rounded to it.
pub(super) fn convert(e: &str, from: DType, to: DType) -> String {
    let (source, target) = (ctype(from), ctype(to));
    match to {
        DType::Bf16 if from == DType::Bf16 => e.to_string(),
        DType::Bf16 if source == "float" => format!("round_bf16({e})"),
        DType::Bf16 => format!("round_bf16((float)({e}))"),
        _ if source == target => e.to_string(),
        DType::I32 if source == "double" => format!("f64_to_i32({e})"),
        DType::I32 => format!("f32_to_i32({e})"),
        DType::F32 | DType::F64 => format!("({target})({e})"),
    }
}

/// Combination of two accumulators.
pub(super) fn combine(m: BinaryMonoid, wide: bool, a: &str, b: &str) -> String {
    let suffix = if wide { "f64" } else { "f32" };
    format!("{}_{suffix}({a}, {b})", m.name())
}

/// The neutral element of a monoid.
pub(super) fn identity(m: BinaryMonoid, wide: bool) -> String {
    number(m.identity(), if wide { DType::F64 } else { DType::F32 })
}

/// Text name of an element type in the helper functions.
pub(super) fn suffix(dtype: DType) -> &'static str {
    dtype.name()
}

/// Whether a function of bf16 numbers needs no rounding.
fn is_exact(f: Scalar) -> bool {
    use Scalar::*;
    matches!(f, Neg | Abs | Max | Min | Less | Equal | Select | Identity)
}

/// A scalar function of registers, rounded.
fn map(code: &Code, f: Scalar, op: &Op) -> String {
    let dtypes: Vec<DType> = op.args.iter().map(|a| code.ops[*a].dtype).collect();
    let int = |d: &DType| *d == DType::I32;
    // Integers of 32 bits are exact in double.
    let wide = op.dtype == DType::F64
        || dtypes.contains(&DType::F64)
        || (op.dtype == DType::I32 && dtypes.iter().any(int) && f != Scalar::Select);
    let (compute, suffix) = if wide { (DType::F64, "") } else { (DType::F32, "f") };
    let plain = |i: usize| register(code, op.args[i]);
    let arg =
        |i: usize| if ctype(dtypes[i]) == ctype(compute) { plain(i) } else { convert(&plain(i), dtypes[i], compute) };
    let lit = |x: f64| if wide { double(x) } else { float(x as f32) };
    let call = |name: &str| format!("{name}{suffix}({})", arg(0));
    let infix = |sign: &str| format!("{} {sign} {}", arg(0), arg(1));
    let max = if wide { "max_f64" } else { "max_f32" };
    let truth = |sign: &str| {
        // Integers compare as integers.
        let (a, b) = if dtypes.iter().all(int) { (plain(0), plain(1)) } else { (arg(0), arg(1)) };
        format!("{a} {sign} {b} ? {} : {}", number(1.0, op.dtype), number(0.0, op.dtype))
    };
    use Scalar::*;
    let value = match f {
        Neg => format!("-{}", arg(0)),
        Exp => call("exp"),
        Log => call("log"),
        Sqrt => call("sqrt"),
        Rsqrt => format!("{} / sqrt{suffix}({})", lit(1.0), arg(0)),
        Reciprocal => format!("{} / {}", lit(1.0), arg(0)),
        Sin => call("sin"),
        Cos => call("cos"),
        Tanh => call("tanh"),
        Sigmoid => format!("{} / ({} + exp{suffix}(-{}))", lit(1.0), lit(1.0), arg(0)),
        Abs => call("fabs"),
        Add => infix("+"),
        Sub => infix("-"),
        Mul => infix("*"),
        Div => infix("/"),
        Max => format!("{max}({}, {})", arg(0), arg(1)),
        Min => format!("-{max}(-{}, -{})", arg(0), arg(1)),
        Pow => format!("pow{suffix}({}, {})", arg(0), arg(1)),
        Affine { mul, add } => format!("{} * {} + {}", arg(0), lit(mul.get()), lit(add.get())),
        Less => return truth("<"),
        Equal => return truth("=="),
        Identity => return convert(&plain(0), dtypes[0], op.dtype),
        Select => {
            let chosen = |i: usize| convert(&plain(i), dtypes[i], op.dtype);
            return format!("{} != 0 ? {} : {}", plain(0), chosen(1), chosen(2));
        }
    };
    if op.dtype == DType::Bf16 && is_exact(f) && dtypes.iter().all(|d| *d == DType::Bf16) {
        return value;
    }
    convert(&value, compute, op.dtype)
}

/// What a register that needs no pass over the lane holds. `lane`: index of the lane in C; `guard`:
/// a condition without which tables are not read.
pub(super) fn value(code: &Code, reg: usize, lane: &str, guard: Option<&str>) -> String {
    let op = &code.ops[reg];
    let column = |c: usize| code.nest.text(c, lane, code.int);
    match &op.action {
        Action::Load(pointer, dtype, c) => {
            convert(&format!("read_{}(p{pointer}, {})", suffix(*dtype), column(*c)), *dtype, op.dtype)
        }
        Action::Index(c) => match op.dtype {
            DType::I32 => format!("(int)({})", column(*c)),
            other => convert(&format!("(double)({})", column(*c)), DType::F64, other),
        },
        Action::Table(t, c) => {
            let read = format!("table{t}[{}]", column(*c));
            guard.map_or(read.clone(), |g| format!("{g} ? {read} : {}", number(0.0, op.dtype)))
        }
        Action::Random(key, c) => {
            convert(&format!("random_unit({key:#x}ull, {})", wide_column(code, *c, lane)), DType::F32, op.dtype)
        }
        Action::Const(x) => number(*x, op.dtype),
        Action::Map(f) => map(code, *f, op),
        // The lane is the same everywhere.
        Action::Reduce(m) => {
            let arg = register(code, op.args[0]);
            let from = code.ops[op.args[0]].dtype;
            let lane = code.nest.lens[code.nest.lane()].text(code.int);
            let wide = convert(&arg, from, DType::F64);
            let result = match m {
                BinaryMonoid::Sum => format!("{wide} * (double)({lane})"),
                BinaryMonoid::Max => format!("{lane} > 0 ? {wide} : {}", identity(*m, true)),
            };
            convert(&format!("({result})"), DType::F64, op.dtype)
        }
    }
}

/// Random counters may exceed addresses.
fn wide_column(code: &Code, c: usize, lane: &str) -> String {
    code.nest.text(c, lane, "unsigned long long")
}

/// Declares a register.
pub(super) fn declare(text: &mut Text, code: &Code, reg: usize, value: &str) {
    text.line(format!("const {} {} = {value};", ctype(code.ops[reg].dtype), register(code, reg)));
}

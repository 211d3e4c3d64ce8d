//! Vector instructions of the loop machine: tight loops over slices, compiled once per instruction
//! set.

use crate::cpu::elem::{multiversion, Elem, Simd};
use autoshard_ir::core::{DType, Scalar};

/// Argument of a vector instruction.
#[derive(Clone, Copy)]
pub(crate) enum Arg<'a, E> {
    /// One value per lane.
    Lanes(&'a [E]),
    /// The same value in every lane.
    Uniform(E),
}

multiversion! {
    /// A function of one argument.
    pub(crate) map1 = map1_body(op: Scalar, a: &[E], out: &mut [E])
}
multiversion! {
    /// A function of two arguments.
    pub(crate) map2 = map2_body(op: Scalar, a: Arg<'_, E>, b: Arg<'_, E>, out: &mut [E])
}
multiversion! {
    /// `a` where `c` is not zero, `b` elsewhere.
    pub(crate) select = select_body(c: &[E], a: &[E], b: &[E], out: &mut [E])
}
multiversion! {
    /// Rounds in place.
    pub(crate) round = round_body(dtype: DType, values: &mut [E])
}
multiversion! {
    /// Sum, in f64 and in an order that depends on the length alone.
    pub(crate) sum = sum_body(a: &[E]) -> f64
}
multiversion! {
    /// Maximum; NaN wins.
    pub(crate) max = max_body(a: &[E]) -> E
}
multiversion! {
    /// `acc += a`.
    pub(crate) add_to = add_to_body(acc: &mut [f64], a: &[E])
}
multiversion! {
    /// `acc = max(acc, a)`; NaN wins.
    pub(crate) max_to = max_to_body(acc: &mut [f64], a: &[E])
}
multiversion! {
    /// `a *= factor`.
    pub(crate) scale = scale_body(factor: E, a: &mut [E])
}
multiversion! {
    /// `Σ a·b` in f64.
    pub(crate) dot = dot_body(a: &[E], b: &[E]) -> f64
}

#[inline(always)]
fn each1<E: Elem>(a: &[E], out: &mut [E], f: impl Fn(E) -> E) {
    for (o, a) in out.iter_mut().zip(a) {
        *o = f(*a);
    }
}

#[inline(always)]
fn each2<E: Elem>(a: Arg<'_, E>, b: Arg<'_, E>, out: &mut [E], f: impl Fn(E, E) -> E) {
    match (a, b) {
        (Arg::Lanes(a), Arg::Lanes(b)) => {
            for ((o, a), b) in out.iter_mut().zip(a).zip(b) {
                *o = f(*a, *b);
            }
        }
        (Arg::Lanes(a), Arg::Uniform(b)) => each1(a, out, |a| f(a, b)),
        (Arg::Uniform(a), Arg::Lanes(b)) => each1(b, out, |b| f(a, b)),
        (Arg::Uniform(a), Arg::Uniform(b)) => out.fill(f(a, b)),
    }
}

#[inline(always)]
fn map1_body<E: Elem, const FMA: bool>(op: Scalar, a: &[E], out: &mut [E]) {
    use Scalar::*;
    match op {
        Neg => each1(a, out, |x| -x),
        Exp => each1(a, out, |x| x.exp::<FMA>()),
        Log => each1(a, out, |x| x.ln::<FMA>()),
        Tanh => each1(a, out, |x| x.tanh::<FMA>()),
        Sigmoid => each1(a, out, |x| x.sigmoid::<FMA>()),
        Sqrt => each1(a, out, |x| x.sqrt()),
        Rsqrt => each1(a, out, |x| E::ONE / x.sqrt()),
        Reciprocal => each1(a, out, |x| E::ONE / x),
        Abs => each1(a, out, |x| x.abs()),
        Identity => each1(a, out, |x| x),
        Affine { mul, add } => {
            let (mul, add) = (E::of(mul.get()), E::of(add.get()));
            each1(a, out, |x| x * mul + add);
        }
        // Rare: one lane at a time, in f64.
        _ => each1(a, out, |x| E::of(op.eval(&[x.wide()]))),
    }
}

#[inline(always)]
fn map2_body<E: Elem, const FMA: bool>(op: Scalar, a: Arg<'_, E>, b: Arg<'_, E>, out: &mut [E]) {
    use Scalar::*;
    let truth = |yes: bool| if yes { E::ONE } else { E::ZERO };
    match op {
        Add => each2(a, b, out, |a, b| a + b),
        Sub => each2(a, b, out, |a, b| a - b),
        Mul => each2(a, b, out, |a, b| a * b),
        Div => each2(a, b, out, |a, b| a / b),
        Max => each2(a, b, out, |a, b| a.max(b)),
        Min => each2(a, b, out, |a, b| -(-a).max(-b)),
        Less => each2(a, b, out, |a, b| truth(a < b)),
        Equal => each2(a, b, out, |a, b| truth(a == b)),
        // Powers: one lane at a time, in f64.
        _ => each2(a, b, out, |a, b| E::of(op.eval(&[a.wide(), b.wide()]))),
    }
}

#[inline(always)]
fn select_body<E: Elem, const FMA: bool>(c: &[E], a: &[E], b: &[E], out: &mut [E]) {
    for (((o, c), a), b) in out.iter_mut().zip(c).zip(a).zip(b) {
        *o = if *c != E::ZERO { *a } else { *b };
    }
}

#[inline(always)]
fn round_body<E: Elem, const FMA: bool>(dtype: DType, values: &mut [E]) {
    match dtype {
        DType::F64 => {}
        DType::F32 => values.iter_mut().for_each(|v| *v = v.round_to(DType::F32)),
        DType::Bf16 => values.iter_mut().for_each(|v| *v = v.round_to(DType::Bf16)),
        DType::I32 => values.iter_mut().for_each(|v| *v = v.round_to(DType::I32)),
    }
}

/// Accumulators that run side by side: enough to hide the latency of an addition.
const LANES: usize = 16;

#[inline(always)]
fn sum_body<E: Elem, const FMA: bool>(a: &[E]) -> f64 {
    let mut acc = [0f64; LANES];
    let blocks = a.chunks_exact(LANES);
    let rest = blocks.remainder();
    for block in blocks {
        for (s, x) in acc.iter_mut().zip(block) {
            *s += x.wide();
        }
    }
    for (s, x) in acc.iter_mut().zip(rest) {
        *s += x.wide();
    }
    tree(acc)
}

#[inline(always)]
fn dot_body<E: Elem, const FMA: bool>(a: &[E], b: &[E]) -> f64 {
    let mut acc = [0f64; LANES];
    for (a, b) in a.chunks(LANES).zip(b.chunks(LANES)) {
        for ((s, x), y) in acc.iter_mut().zip(a).zip(b) {
            *s += x.wide() * y.wide();
        }
    }
    tree(acc)
}

/// Pairwise sum of the accumulators.
#[inline(always)]
fn tree(mut acc: [f64; LANES]) -> f64 {
    let mut width = LANES / 2;
    while width > 0 {
        for i in 0..width {
            acc[i] += acc[i + width];
        }
        width /= 2;
    }
    acc[0]
}

#[inline(always)]
fn max_body<E: Elem, const FMA: bool>(a: &[E]) -> E {
    let mut acc = [E::of(f64::NEG_INFINITY); LANES];
    let blocks = a.chunks_exact(LANES);
    let rest = blocks.remainder();
    for block in blocks {
        for (m, x) in acc.iter_mut().zip(block) {
            *m = m.max(*x);
        }
    }
    for (m, x) in acc.iter_mut().zip(rest) {
        *m = m.max(*x);
    }
    acc.into_iter().fold(E::of(f64::NEG_INFINITY), |m, x| m.max(x))
}

#[inline(always)]
fn add_to_body<E: Elem, const FMA: bool>(acc: &mut [f64], a: &[E]) {
    for (s, x) in acc.iter_mut().zip(a) {
        *s += x.wide();
    }
}

#[inline(always)]
fn max_to_body<E: Elem, const FMA: bool>(acc: &mut [f64], a: &[E]) {
    for (m, x) in acc.iter_mut().zip(a) {
        *m = Elem::max(*m, x.wide());
    }
}

#[inline(always)]
fn scale_body<E: Elem, const FMA: bool>(factor: E, a: &mut [E]) {
    for x in a {
        *x = *x * factor;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reductions_agree_with_plain_loops() {
        for n in [0usize, 1, 15, 16, 17, 1000, 100_003] {
            let a: Vec<f32> = (0..n).map(|i| 1.0 + (i % 7) as f32 * 0.1).collect();
            let want: f64 = a.iter().map(|x| *x as f64).sum();
            for simd in [Simd::detect(), Simd::Base] {
                assert!((sum(simd, &a) - want).abs() <= 1e-12 * want, "{n}");
                let want = a.iter().fold(f32::NEG_INFINITY, |m, x| if *x > m { *x } else { m });
                assert_eq!(max(simd, &a), want);
            }
        }
    }

    #[test]
    fn nan_wins_wherever_it_stands() {
        for at in 0..40 {
            let mut a = vec![1f64; 40];
            a[at] = f64::NAN;
            assert!(max(Simd::detect(), &a).is_nan());
            let mut acc = vec![0.0; 40];
            max_to(Simd::detect(), &mut acc, &a);
            max_to(Simd::detect(), &mut acc, &[2.0f64; 40]);
            assert!(acc[at].is_nan());
        }
    }

    #[test]
    fn every_function_agrees_with_its_definition() {
        use autoshard_ir::core::Bits;
        let a: Vec<f32> = (0..67).map(|i| 0.1 + i as f32 * 0.37).collect();
        let b: Vec<f32> = (0..67).map(|i| 9.0 - i as f32 * 0.21).collect();
        let affine = Scalar::Affine { mul: Bits::new(-1.5), add: Bits::new(0.25) };
        let one = [
            Scalar::Neg,
            Scalar::Exp,
            Scalar::Log,
            Scalar::Sqrt,
            Scalar::Rsqrt,
            Scalar::Reciprocal,
            Scalar::Sin,
            Scalar::Cos,
            Scalar::Tanh,
            Scalar::Sigmoid,
            Scalar::Abs,
            Scalar::Identity,
            affine,
        ];
        let two = [
            Scalar::Add,
            Scalar::Sub,
            Scalar::Mul,
            Scalar::Div,
            Scalar::Max,
            Scalar::Min,
            Scalar::Pow,
            Scalar::Less,
            Scalar::Equal,
        ];
        let mut out = vec![0f32; 67];
        let near = |got: f32, want: f64| (got as f64 - want).abs() <= 4e-7 * want.abs().max(1e-3);
        for simd in [Simd::detect(), Simd::Base] {
            for op in one {
                map1(simd, op, &a, &mut out);
                (0..67).for_each(|i| assert!(near(out[i], op.eval(&[a[i] as f64])), "{op:?}"));
            }
            for op in two {
                map2(simd, op, Arg::Lanes(&a), Arg::Lanes(&b), &mut out);
                (0..67).for_each(|i| assert!(near(out[i], op.eval(&[a[i] as f64, b[i] as f64])), "{op:?}"));
                map2(simd, op, Arg::Uniform(2.5), Arg::Lanes(&b), &mut out);
                (0..67).for_each(|i| assert!(near(out[i], op.eval(&[2.5, b[i] as f64])), "{op:?}"));
                map2(simd, op, Arg::Lanes(&a), Arg::Uniform(2.5), &mut out);
                (0..67).for_each(|i| assert!(near(out[i], op.eval(&[a[i] as f64, 2.5])), "{op:?}"));
            }
        }
    }
}

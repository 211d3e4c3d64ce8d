//! Elementary functions of f32 without branches, so that loops over them vectorise. Errors are
//! below 3e-7 relative (tested against f64); special values are those of the C library.
//!
//! The polynomials are those of Cephes (S. Moshier), single precision.

/// `a·b + c`, fused where that is an instruction.
#[inline(always)]
fn fma<const FMA: bool>(a: f32, b: f32, c: f32) -> f32 {
    if FMA {
        a.mul_add(b, c)
    } else {
        a * b + c
    }
}

/// Horner's rule, highest coefficient first.
#[inline(always)]
fn poly<const FMA: bool, const N: usize>(x: f32, coefficients: [f32; N]) -> f32 {
    let mut y = coefficients[0];
    for c in &coefficients[1..] {
        y = fma::<FMA>(y, x, *c);
    }
    y
}

/// ln 2 in two parts; products of the first with small integers are exact.
const LN2_HIGH: f32 = 0.693_359_4;
const LN2_LOW: f32 = -2.121_944_4e-4;

/// e^x.
#[inline(always)]
pub(super) fn exp<const FMA: bool>(x: f32) -> f32 {
    // Beyond these the result is 0 or infinity; comparisons leave NaN alone.
    let x = if x > 89.0 { 89.0 } else { x };
    let x = if x < -104.5 { -104.5 } else { x };
    // Adding 1.5·2^23 leaves the nearest integer in the low bits of the sum.
    const MAGIC: f32 = 12_582_912.0;
    let shifted = fma::<FMA>(x, std::f32::consts::LOG2_E, MAGIC);
    let n = shifted - MAGIC;
    let i = (shifted.to_bits() as i32).wrapping_sub(MAGIC.to_bits() as i32);
    let r = fma::<FMA>(n, -LN2_LOW, fma::<FMA>(n, -LN2_HIGH, x));
    let p = poly::<FMA, 6>(r, [1.987_569_1e-4, 1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 5e-1]);
    let y = fma::<FMA>(p, r * r, r) + 1.0;
    // 2^i in two factors: i reaches beyond the exponents of normal numbers at both ends.
    let half = i >> 1;
    let power = |k: i32| f32::from_bits((k.wrapping_add(127) as u32) << 23);
    y * power(half) * power(i.wrapping_sub(half))
}

/// Natural logarithm.
#[inline(always)]
pub(super) fn ln<const FMA: bool>(x: f32) -> f32 {
    let tiny = x < f32::MIN_POSITIVE;
    let scaled = if tiny { x * 8_388_608.0 } else { x };
    // x = m·2^e with m in [√½, √2).
    let bits = scaled.to_bits().wrapping_sub(0x3F35_04F3);
    let e = ((bits as i32) >> 23) as f32 - if tiny { 23.0 } else { 0.0 };
    let m = f32::from_bits((bits & 0x007F_FFFF).wrapping_add(0x3F35_04F3)) - 1.0;
    let z = m * m;
    let p = poly::<FMA, 9>(
        m,
        [
            7.037_683_6e-2,
            -1.151_461e-1,
            1.167_699_9e-1,
            -1.242_014_1e-1,
            1.424_932_3e-1,
            -1.666_805_8e-1,
            2.000_071_5e-1,
            -2.499_999_4e-1,
            3.333_333e-1,
        ],
    );
    let y = fma::<FMA>(-0.5, z, fma::<FMA>(e, LN2_LOW, m * z * p));
    let y = fma::<FMA>(e, LN2_HIGH, m + y);
    let y = if x == 0.0 { f32::NEG_INFINITY } else { y };
    let y = if x < 0.0 { f32::NAN } else { y };
    // Infinity and NaN are their own logarithms.
    if x < f32::INFINITY {
        y
    } else {
        x
    }
}

/// Hyperbolic tangent.
#[inline(always)]
pub(super) fn tanh<const FMA: bool>(x: f32) -> f32 {
    let a = x.abs();
    let z = x * x;
    let p = poly::<FMA, 5>(z, [-5.704_988_7e-3, 2.063_909e-2, -5.373_971_6e-2, 1.333_144_2e-1, -3.333_328e-1]);
    let near = fma::<FMA>(p * z, x, x);
    let far = (1.0 - 2.0 / (exp::<FMA>(a + a) + 1.0)).copysign(x);
    if a < 0.625 {
        near
    } else {
        far
    }
}

/// 1 / (1 + e^−x), from an exponential that cannot overflow.
#[inline(always)]
pub(super) fn sigmoid<const FMA: bool>(x: f32) -> f32 {
    let e = exp::<FMA>(-x.abs());
    (if x >= 0.0 { 1.0 } else { e }) / (1.0 + e)
}

#[cfg(test)]
mod tests {
    use super::super::elem::Simd;
    use super::super::loops::lanes;
    use autoshard_ir::core::Scalar;

    fn worst(op: Scalar, simd: Simd, inputs: &[f32]) -> f64 {
        let mut got = vec![0f32; inputs.len()];
        lanes::map1(simd, op, inputs, &mut got);
        let mut worst = 0f64;
        for (x, y) in inputs.iter().zip(&got) {
            let want = op.eval(&[*x as f64]);
            if want.abs() > f32::MAX as f64 {
                assert!((*y as f64 - want).abs().is_nan() || y.is_infinite(), "{op:?}({x}) = {y}");
                continue;
            }
            // Below the normal numbers an ulp is absolute.
            let error = (*y as f64 - want).abs() / want.abs().max(f32::MIN_POSITIVE as f64);
            assert!(error <= 3e-7, "{op:?}({x}) = {y}, not {want}: {error:e} with {simd:?}");
            worst = worst.max(error);
        }
        worst
    }

    #[test]
    fn errors_are_below_3e_7_everywhere() {
        let mut inputs: Vec<f32> = (0..200_001).map(|i| (i as f32 - 1e5) * 1.1e-3).collect();
        inputs.extend((0..60_000u32).map(|i| f32::from_bits(i * 0x8000 + 1)));
        inputs.retain(|x| x.is_finite());
        let negative: Vec<f32> = inputs.iter().map(|x| -x).collect();
        inputs.extend(negative);
        let positive: Vec<f32> = inputs.iter().copied().filter(|x| *x > 0.0).collect();
        for simd in [Simd::detect(), Simd::Base] {
            for op in [Scalar::Exp, Scalar::Tanh, Scalar::Sigmoid] {
                worst(op, simd, &inputs);
            }
            worst(Scalar::Log, simd, &positive);
        }
    }

    #[test]
    fn special_values() {
        let (inf, nan) = (f32::INFINITY, f32::NAN);
        let x = [0.0, -0.0, inf, -inf, nan, -1.0, 1e30, -1e30];
        for simd in [Simd::detect(), Simd::Base] {
            for (op, want) in [
                (Scalar::Exp, [1.0, 1.0, inf, 0.0, nan, (-1f32).exp(), inf, 0.0]),
                (Scalar::Log, [-inf, -inf, inf, nan, nan, nan, 1e30f32.ln(), nan]),
                (Scalar::Tanh, [0.0, -0.0, 1.0, -1.0, nan, (-1f32).tanh(), 1.0, -1.0]),
                (Scalar::Sigmoid, [0.5, 0.5, 1.0, 0.0, nan, 0.26894143, 1.0, 0.0]),
            ] {
                let mut got = [0f32; 8];
                lanes::map1(simd, op, &x, &mut got);
                for i in 0..8 {
                    let close = (got[i] - want[i]).abs() <= 2e-7 * want[i].abs();
                    let same = got[i] == want[i] || (got[i].is_nan() && want[i].is_nan());
                    assert!(close || same, "{op:?}({}) = {}, not {}", x[i], got[i], want[i]);
                }
            }
        }
    }
}

//! The two types that kernels compute in, conversions of stored types, and the choice of vector
//! instructions.

use super::math;
use autoshard_ir::core::DType;
use std::cell::RefCell;
use std::ops::{Add, Div, Mul, Neg, Sub};
use std::sync::Mutex;

/// Vector instructions of this machine, detected once per kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Simd {
    /// AVX-512 with FMA.
    Avx512,
    /// AVX2 with FMA.
    Avx2,
    /// What the compiler's target has.
    Base,
}

impl Simd {
    /// The best that this machine runs.
    pub fn detect() -> Simd {
        #[cfg(target_arch = "x86_64")]
        {
            let fma = is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma");
            let wide = is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512vl")
                && is_x86_feature_detected!("avx512dq");
            match (fma, wide) {
                (true, true) => return Simd::Avx512,
                (true, false) => return Simd::Avx2,
                _ => {}
            }
        }
        Simd::Base
    }
}

/// Defines `fn name<E: Elem>(simd, args..)` that runs `body::<E, FMA>(args..)` compiled
/// once per instruction set. `FMA` says whether a fused multiply-add is an instruction: elsewhere
/// it would be a call of the C library.
macro_rules! multiversion {
    ($(#[$doc:meta])* $vis:vis $name:ident = $body:ident($($arg:ident: $ty:ty),*) $(-> $ret:ty)?) => {
        $(#[$doc])*
        $vis fn $name<E: Elem>(simd: Simd, $($arg: $ty),*) $(-> $ret)? {
            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx512f,avx512vl,avx512dq,avx2,fma")]
                fn avx512<E: Elem>($($arg: $ty),*) $(-> $ret)? {
                    $body::<E, true>($($arg),*)
                }
                #[target_feature(enable = "avx2,fma")]
                fn avx2<E: Elem>($($arg: $ty),*) $(-> $ret)? {
                    $body::<E, true>($($arg),*)
                }
                match simd {
                    // SAFETY: `Simd::detect` found these instructions.
                    Simd::Avx512 => return unsafe { avx512::<E>($($arg),*) },
                    // SAFETY: as above.
                    Simd::Avx2 => return unsafe { avx2::<E>($($arg),*) },
                    Simd::Base => {}
                }
            }
            $body::<E, false>($($arg),*)
        }
    };
}
pub(crate) use multiversion;

/// A type that kernels compute in. Functions are written so that loops over them vectorise.
pub(crate) trait Elem:
    Copy
    + PartialOrd
    + Send
    + Sync
    + 'static
    + Add<Output = Self>
    + Sub<Output = Self>
    + Mul<Output = Self>
    + Div<Output = Self>
    + Neg<Output = Self>
{
    /// As an element type.
    const DTYPE: DType;
    /// Zero.
    const ZERO: Self;
    /// One.
    const ONE: Self;
    /// Nearest value.
    fn of(x: f64) -> Self;
    /// Exact value.
    fn wide(self) -> f64;
    /// Rounded to an element type.
    fn round_to(self, dtype: DType) -> Self;
    /// Square root.
    fn sqrt(self) -> Self;
    /// Absolute value.
    fn abs(self) -> Self;
    /// e^x.
    fn exp<const FMA: bool>(self) -> Self;
    /// Natural logarithm.
    fn ln<const FMA: bool>(self) -> Self;
    /// Hyperbolic tangent.
    fn tanh<const FMA: bool>(self) -> Self;
    /// 1 / (1 + e^−x).
    fn sigmoid<const FMA: bool>(self) -> Self;

    /// The larger; NaN wins.
    #[inline(always)]
    #[allow(clippy::eq_op)] // `self != self` is how NaN is seen without a method that hides the loop.
    fn max(self, other: Self) -> Self {
        if self > other || self != self {
            self
        } else {
            other
        }
    }
}

impl Elem for f32 {
    const DTYPE: DType = DType::F32;
    const ZERO: f32 = 0.0;
    const ONE: f32 = 1.0;
    #[inline(always)]
    fn of(x: f64) -> f32 {
        x as f32
    }
    #[inline(always)]
    fn wide(self) -> f64 {
        self as f64
    }
    #[inline(always)]
    fn round_to(self, dtype: DType) -> f32 {
        match dtype {
            DType::F64 | DType::F32 => self,
            DType::Bf16 => from_bf16(to_bf16(self)),
            DType::I32 => self.trunc(),
        }
    }
    #[inline(always)]
    fn sqrt(self) -> f32 {
        self.sqrt()
    }
    #[inline(always)]
    fn abs(self) -> f32 {
        self.abs()
    }
    #[inline(always)]
    fn exp<const FMA: bool>(self) -> f32 {
        math::exp::<FMA>(self)
    }
    #[inline(always)]
    fn ln<const FMA: bool>(self) -> f32 {
        math::ln::<FMA>(self)
    }
    #[inline(always)]
    fn tanh<const FMA: bool>(self) -> f32 {
        math::tanh::<FMA>(self)
    }
    #[inline(always)]
    fn sigmoid<const FMA: bool>(self) -> f32 {
        math::sigmoid::<FMA>(self)
    }
}

impl Elem for f64 {
    const DTYPE: DType = DType::F64;
    const ZERO: f64 = 0.0;
    const ONE: f64 = 1.0;
    #[inline(always)]
    fn of(x: f64) -> f64 {
        x
    }
    #[inline(always)]
    fn wide(self) -> f64 {
        self
    }
    #[inline(always)]
    fn round_to(self, dtype: DType) -> f64 {
        dtype.round(self)
    }
    #[inline(always)]
    fn sqrt(self) -> f64 {
        self.sqrt()
    }
    #[inline(always)]
    fn abs(self) -> f64 {
        self.abs()
    }
    // The library's functions: f64 runs are for accuracy.
    #[inline(always)]
    fn exp<const FMA: bool>(self) -> f64 {
        self.exp()
    }
    #[inline(always)]
    fn ln<const FMA: bool>(self) -> f64 {
        self.ln()
    }
    #[inline(always)]
    fn tanh<const FMA: bool>(self) -> f64 {
        self.tanh()
    }
    #[inline(always)]
    fn sigmoid<const FMA: bool>(self) -> f64 {
        let e = (-self.abs()).exp();
        (if self >= 0.0 { 1.0 } else { e }) / (1.0 + e)
    }
}

/// The nearest bfloat16, ties to even; NaN stays NaN.
#[inline(always)]
pub(crate) fn to_bf16(x: f32) -> u16 {
    let bits = x.to_bits();
    let rounded = (bits.wrapping_add(0x7FFF + ((bits >> 16) & 1)) >> 16) as u16;
    // A NaN must not round up into an infinity: keep its sign, set the quiet bit.
    let nan = ((bits >> 16) as u16) | 0x0040;
    if x.is_nan() {
        nan
    } else {
        rounded
    }
}

/// A bfloat16 as a float.
#[inline(always)]
pub(crate) fn from_bf16(x: u16) -> f32 {
    f32::from_bits((x as u32) << 16)
}

/// Scratch that belongs to no thread now: what threads leave behind when they end.
static SPARE: Mutex<Vec<Vec<u64>>> = Mutex::new(Vec::new());

/// Takes the largest spare scratch: what fits need not be allocated, and touched, anew.
fn largest_spare() -> Option<Vec<u64>> {
    let mut spare = SPARE.lock().ok()?;
    let largest = (0..spare.len()).max_by_key(|i| spare[*i].len())?;
    Some(spare.swap_remove(largest))
}

/// Scratch of a thread: the last is that of the outermost call.
struct Scratch(Vec<Vec<u64>>);

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Ok(mut spare) = SPARE.lock() {
            spare.append(&mut self.0);
        }
    }
}

thread_local! {
    /// Kept between kernels.
    static SCRATCH: RefCell<Scratch> = const { RefCell::new(Scratch(Vec::new())) };
}

/// Calls `f` with `len` elements of this thread's scratch, aligned to a cache line. What they hold
/// is left over from earlier kernels. A nested call gets memory of its own.
pub(crate) fn with_scratch<E: Elem, R>(len: usize, f: impl FnOnce(&mut [E]) -> R) -> R {
    const LINE: usize = 64;
    let words = (len * E::DTYPE.bytes() + LINE).div_ceil(8);
    let mut memory = SCRATCH.with(|s| s.borrow_mut().0.pop()).unwrap_or_default();
    if memory.is_empty() {
        memory = largest_spare().unwrap_or_default();
    }
    if memory.len() < words {
        // Nothing of the old contents is worth copying.
        drop(std::mem::take(&mut memory));
        memory = vec![0; words];
    }
    let start = memory.as_mut_ptr().cast::<u8>();
    // SAFETY: `words` leaves a line for the alignment; every bit pattern is a valid float; the
    // vector is borrowed for the slice's life.
    let slice = unsafe { std::slice::from_raw_parts_mut(start.add(start.align_offset(LINE)).cast::<E>(), len) };
    let result = f(slice);
    SCRATCH.with(|s| s.borrow_mut().0.push(memory));
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bf16_rounds_to_nearest_even_like_the_type() {
        for x in [0.0f32, -0.0, 1.0, 1.0 + 1.0 / 256.0, 1.0 + 3.0 / 256.0, 3.4e38, -1e-40, f32::INFINITY, 0.1] {
            assert_eq!(from_bf16(to_bf16(x)) as f64, DType::Bf16.round(x as f64), "{x}");
        }
        assert!(from_bf16(to_bf16(f32::from_bits(0x7FFF_FFFF))).is_nan());
    }

    #[test]
    fn scratch_is_aligned_and_nests() {
        with_scratch::<f32, _>(100, |a| {
            a.fill(1.0);
            with_scratch::<f64, _>(100, |b| b.fill(2.0));
            assert!(a.iter().all(|x| *x == 1.0));
            assert_eq!(a.as_ptr() as usize % 64, 0);
        });
    }
}

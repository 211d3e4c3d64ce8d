//! Copy, combine and fill of elements by type.

use crate::cpu::elem::{from_bf16, to_bf16};
use autoshard_ir::{DType, Monoid};

/// Elements that one pass of a reduction handles, so that the partial result stays in cache.
pub(crate) const BLOCK: usize = 4096;

trait Element: Copy {
    fn identity(monoid: Monoid) -> Self;
    fn sum(a: Self, b: Self) -> Self;
    fn max(a: Self, b: Self) -> Self;
}

macro_rules! float_element {
    ($t:ty) => {
        impl Element for $t {
            fn identity(monoid: Monoid) -> Self {
                monoid.identity() as $t
            }
            fn sum(a: Self, b: Self) -> Self {
                a + b
            }
            // NaN wins, so that a broken value is never hidden.
            fn max(a: Self, b: Self) -> Self {
                if a.is_nan() || a > b {
                    a
                } else {
                    b
                }
            }
        }
    };
}

float_element!(f32);
float_element!(f64);

impl Element for i32 {
    fn identity(monoid: Monoid) -> Self {
        match monoid {
            Monoid::Sum => 0,
            Monoid::Max => i32::MIN,
        }
    }
    fn sum(a: Self, b: Self) -> Self {
        a.wrapping_add(b)
    }
    fn max(a: Self, b: Self) -> Self {
        a.max(b)
    }
}

/// Copies `n` elements from element `from_at` of `from` to element `to_at` of `to`.
///
/// # Safety
/// Both ranges lie in live memory, do not overlap, and nobody writes the first or touches the second
/// meanwhile.
pub(crate) unsafe fn copy(dtype: DType, (from, from_at): (*const u8, usize), (to, to_at): (*mut u8, usize), n: usize) {
    let e = dtype.bytes();
    // SAFETY: by contract.
    unsafe { std::ptr::copy_nonoverlapping(from.add(from_at * e), to.add(to_at * e), n * e) }
}

/// `to[i] = combine(to[i], from[i])` for `n` elements; see [`copy`] for the arguments. Elements of bf16 are
/// combined by [`combine_bf16`], which rounds once.
///
/// # Safety
/// As [`copy`]; both pointers are aligned to the element.
pub(crate) unsafe fn combine(
    dtype: DType,
    monoid: Monoid,
    (from, from_at): (*const u8, usize),
    (to, to_at): (*mut u8, usize),
    n: usize,
) {
    // SAFETY: by contract.
    unsafe {
        match dtype {
            DType::F32 => combine_as::<f32>(monoid, from.cast(), from_at, to.cast(), to_at, n),
            DType::F64 => combine_as::<f64>(monoid, from.cast(), from_at, to.cast(), to_at, n),
            DType::I32 => combine_as::<i32>(monoid, from.cast(), from_at, to.cast(), to_at, n),
            DType::Bf16 => debug_assert!(false, "bf16 has a routine of its own"),
        }
    }
}

/// Combines `n` ≤ [`BLOCK`] elements of bf16 of all `parts` into `to`, in f32 and rounded once.
///
/// # Safety
/// As [`combine`], for every part.
pub(crate) unsafe fn combine_bf16(
    monoid: Monoid,
    parts: impl Iterator<Item = (*const u8, usize)>,
    (to, to_at): (*mut u8, usize),
    n: usize,
) {
    let mut wide = [monoid.identity() as f32; BLOCK];
    let wide = &mut wide[..n];
    for (from, from_at) in parts {
        // SAFETY: by contract.
        let from = unsafe { std::slice::from_raw_parts(from.cast::<u16>().add(from_at), n) };
        let values = from.iter().map(|x| from_bf16(*x));
        match monoid {
            Monoid::Sum => wide.iter_mut().zip(values).for_each(|(w, x)| *w += x),
            Monoid::Max => wide.iter_mut().zip(values).for_each(|(w, x)| *w = Element::max(*w, x)),
        }
    }
    // SAFETY: by contract.
    let to = unsafe { std::slice::from_raw_parts_mut(to.cast::<u16>().add(to_at), n) };
    to.iter_mut().zip(wide).for_each(|(t, w)| *t = to_bf16(*w));
}

unsafe fn combine_as<T: Element>(monoid: Monoid, from: *const T, from_at: usize, to: *mut T, to_at: usize, n: usize) {
    // SAFETY: by the contract of `combine`.
    let (from, to) =
        unsafe { (std::slice::from_raw_parts(from.add(from_at), n), std::slice::from_raw_parts_mut(to.add(to_at), n)) };
    match monoid {
        Monoid::Sum => to.iter_mut().zip(from).for_each(|(t, f)| *t = T::sum(*t, *f)),
        Monoid::Max => to.iter_mut().zip(from).for_each(|(t, f)| *t = T::max(*t, *f)),
    }
}

/// Writes the identity of the monoid to `n` elements.
///
/// # Safety
/// The range lies in live memory that nobody else touches, aligned to the element.
pub(crate) unsafe fn fill(dtype: DType, monoid: Monoid, to: *mut u8, n: usize) {
    // SAFETY: by contract.
    unsafe {
        match dtype {
            DType::F32 => fill_with(to.cast(), n, f32::identity(monoid)),
            DType::F64 => fill_with(to.cast(), n, f64::identity(monoid)),
            DType::I32 => fill_with(to.cast(), n, i32::identity(monoid)),
            DType::Bf16 => fill_with(to.cast(), n, ((monoid.identity() as f32).to_bits() >> 16) as u16),
        }
    }
}

unsafe fn fill_with<T: Copy>(to: *mut T, n: usize, value: T) {
    // SAFETY: by the contract of `fill`; the memory is initialised (arenas are zeroed).
    unsafe { std::slice::from_raw_parts_mut(to, n) }.fill(value);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_of_bf16_round_once() {
        // 1 + 3·2⁻⁹: every addition alone would round back to 1 (half a unit goes to even).
        let parts: Vec<Vec<u16>> = [1.0f32, 0.001953125, 0.001953125, 0.001953125].map(|x| vec![to_bf16(x); 70]).into();
        for monoid in [Monoid::Sum, Monoid::Max] {
            let mut out = vec![to_bf16(-7.0); 72];
            let parts = parts.iter().map(|p| (p.as_ptr().cast::<u8>(), 1));
            // SAFETY: 69 elements from the second on lie in every part and in the output.
            unsafe { combine_bf16(monoid, parts, (out.as_mut_ptr().cast(), 2), 69) };
            let want = if monoid == Monoid::Sum { 1.0078125 } else { 1.0 };
            assert_eq!(
                (from_bf16(out[1]), from_bf16(out[2]), from_bf16(out[70]), from_bf16(out[71])),
                (-7.0, want, want, -7.0)
            );
        }
    }
}

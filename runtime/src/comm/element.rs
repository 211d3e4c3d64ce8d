//! Copy, combine and fill of elements by type.

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

/// Whether [`combine`] knows the type.
pub(crate) fn reducible(dtype: DType) -> bool {
    dtype != DType::Bf16
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

/// `to[i] = combine(to[i], from[i])` for `n` elements; see [`copy`] for the arguments. Types that are
/// not [`reducible`] are left alone.
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
            DType::Bf16 => debug_assert!(false, "refused when the collective was planned"),
        }
    }
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

//! Between memory of any element type and stride and vectors of the compute type.

use crate::cpu::elem::{from_bf16, to_bf16, Elem};
use crate::cpu::Pointer;
use autoshard_ir::core::DType;

/// Reads `out.len()` elements from element `at` on, `stride` apart.
///
/// # Safety
/// The elements lie in the buffer and nobody writes them meanwhile.
pub(super) unsafe fn load<E: Elem>(p: Pointer, dtype: DType, at: usize, stride: usize, out: &mut [E]) {
    // SAFETY: the caller's promise.
    unsafe {
        match dtype {
            DType::F64 => convert(p.at::<f64>(at), stride, out, |x| E::of(x)),
            // Widening is exact: through f64 is the same as directly, and compiles to that.
            DType::F32 => convert(p.at::<f32>(at), stride, out, |x| E::of(x as f64)),
            DType::I32 => convert(p.at::<i32>(at), stride, out, |x| E::of(x as f64)),
            DType::Bf16 => convert(p.at::<u16>(at), stride, out, |x| E::of(from_bf16(x) as f64)),
        }
    }
}

#[inline(always)]
unsafe fn convert<S: Copy, E: Elem>(from: *const S, stride: usize, out: &mut [E], f: impl Fn(S) -> E) {
    // SAFETY: the caller's promise.
    unsafe {
        match stride {
            0 if out.is_empty() => {}
            0 => out.fill(f(from.read())),
            1 => {
                let n = out.len();
                let from = std::slice::from_raw_parts(from, n);
                out.iter_mut().zip(from).for_each(|(o, x)| *o = f(*x));
            }
            _ => out.iter_mut().enumerate().for_each(|(i, o)| *o = f(from.add(i * stride).read())),
        }
    }
}

/// Reads one element.
///
/// # Safety
/// As for [`load`].
pub(super) unsafe fn load_one(p: Pointer, dtype: DType, at: usize) -> f64 {
    let mut value = [0f64];
    // SAFETY: the caller's promise.
    unsafe { load(p, dtype, at, 0, &mut value) };
    value[0]
}

/// Writes `values` from element `at` on, `stride` apart, each rounded to the element type.
///
/// # Safety
/// The elements lie in the buffer, `values` does not, and nobody else uses them meanwhile.
pub(super) unsafe fn store<E: Elem>(p: Pointer, dtype: DType, at: usize, stride: usize, values: &[E]) {
    // SAFETY: the caller's promise.
    unsafe {
        match dtype {
            DType::F64 => spread(p.at::<f64>(at), stride, values, |x| x.wide()),
            DType::F32 => spread(p.at::<f32>(at), stride, values, |x| x.wide() as f32),
            DType::I32 => spread(p.at::<i32>(at), stride, values, |x| x.wide() as i32),
            DType::Bf16 => spread(p.at::<u16>(at), stride, values, |x| to_bf16(x.wide() as f32)),
        }
    }
}

#[inline(always)]
unsafe fn spread<E: Elem, D>(to: *mut D, stride: usize, values: &[E], f: impl Fn(E) -> D) {
    // SAFETY: the caller's promise.
    unsafe {
        if stride == 1 {
            let to = std::slice::from_raw_parts_mut(to, values.len());
            to.iter_mut().zip(values).for_each(|(t, v)| *t = f(*v));
        } else {
            values.iter().enumerate().for_each(|(i, v)| to.add(i * stride).write(f(*v)));
        }
    }
}

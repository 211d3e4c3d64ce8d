//! Packing: operands in any layout and storage type into the panels that tiles read.

use super::micro::Compute;
use crate::cpu::elem::{from_bf16, Elem, Simd};

/// A storage type that `E` is computed from.
pub(crate) trait Source<E>: Copy + 'static {
    /// Exact value.
    fn widen(self) -> E;
    /// The same memory as the compute type itself, if it is that.
    fn same(p: *const Self) -> Option<*const E>;
}

impl<E: Elem> Source<E> for E {
    #[inline(always)]
    fn widen(self) -> E {
        self
    }
    fn same(p: *const E) -> Option<*const E> {
        Some(p)
    }
}

/// A bfloat16 in memory.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(crate) struct Bf16(pub u16);

impl Source<f32> for Bf16 {
    #[inline(always)]
    fn widen(self) -> f32 {
        from_bf16(self.0)
    }
    fn same(_: *const Bf16) -> Option<*const f32> {
        None
    }
}

/// Whether each offset is one more than the one before.
fn contiguous(offsets: &[usize]) -> bool {
    offsets.windows(2).all(|w| w[1] == w[0].wrapping_add(1))
}

/// Some of the lines to pack, and where they go.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Part {
    /// First line, and how many.
    pub at: usize,
    pub len: usize,
    /// Entries of a step when packed; zero where there is no line.
    pub width: usize,
    /// Where the part starts in the packed memory.
    pub to: usize,
}

/// `dst[part.to + p·part.width + i] = src[lines[part.at + i] + depth[p]]` for every part. A part may
/// write up to a vector beyond its end if its width is not a multiple of a vector: the parts lie one
/// after the other, with room after the last.
///
/// # Safety
/// The elements exist; `dst` has room for `depth.len() · width` elements of each part (and that
/// vector), and is no operand; `simd` was detected.
pub(crate) unsafe fn pack<E: Compute, S: Source<E>>(
    simd: Simd,
    src: *const S,
    lines: &[usize],
    depth: &[usize],
    parts: &[Part],
    dst: *mut E,
) {
    if lines.is_empty() || depth.is_empty() {
        return;
    }
    // SAFETY: the caller's promise.
    unsafe {
        if let Some(src) = S::same(src) {
            if contiguous(lines) && parts.iter().all(|p| p.len == p.width) {
                // Step by step over all parts: memory is read once, in order.
                let src = src.add(lines[0]);
                if !E::copy(simd, src, depth, parts, dst) {
                    copy(simd, Steps { src, depth, parts, dst });
                }
                return;
            }
        }
        for part in parts {
            let lines = &lines[part.at..part.at + part.len];
            let dst = dst.add(part.to);
            if let (Some(src), true) = (S::same(src), contiguous(depth)) {
                if transpose(simd, src.add(depth[0]), lines, depth.len(), part.width, dst) {
                    continue;
                }
            }
            for (p, d) in depth.iter().enumerate() {
                let out = std::slice::from_raw_parts_mut(dst.add(p * part.width), part.width);
                for (o, l) in out.iter_mut().zip(lines) {
                    *o = src.add(l + d).read().widen();
                }
                out[lines.len()..].fill(E::ZERO);
            }
        }
    }
}

/// Contiguous lines to copy, step by step.
struct Steps<'a, E> {
    src: *const E,
    depth: &'a [usize],
    parts: &'a [Part],
    dst: *mut E,
}

#[inline(always)]
unsafe fn copy_body<E: Elem>(x: Steps<E>) {
    macro_rules! widths {
        ($width:expr, $from:expr, $to:expr, $($w:literal)*) => {
            match $width {
                // Arrays of constant size are copied in registers.
                $($w => $to.cast::<[E; $w]>().write_unaligned($from.cast::<[E; $w]>().read_unaligned()),)*
                w => $to.copy_from_nonoverlapping($from, w),
            }
        };
    }
    for (p, d) in x.depth.iter().enumerate() {
        for part in x.parts {
            // SAFETY: the caller of `pack` promises the elements.
            unsafe {
                let (from, to) = (x.src.add(d + part.at), x.dst.add(part.to + p * part.width));
                widths!(part.width, from, to, 4 5 6 8 9 10 11 12 13 14 16 32);
            }
        }
    }
}

unsafe fn copy<E: Elem>(simd: Simd, x: Steps<E>) {
    #[cfg(target_arch = "x86_64")]
    {
        #[target_feature(enable = "avx512f,avx512vl,avx512dq,avx2,fma")]
        unsafe fn avx512<E: Elem>(x: Steps<E>) {
            // SAFETY: the caller's promise.
            unsafe { copy_body(x) }
        }
        #[target_feature(enable = "avx2,fma")]
        unsafe fn avx2<E: Elem>(x: Steps<E>) {
            // SAFETY: the caller's promise.
            unsafe { copy_body(x) }
        }
        match simd {
            // SAFETY: the caller's promise.
            Simd::Avx512 => return unsafe { avx512(x) },
            // SAFETY: the caller's promise.
            Simd::Avx2 => return unsafe { avx2(x) },
            Simd::Base => {}
        }
    }
    let _ = simd;
    // SAFETY: the caller's promise.
    unsafe { copy_body(x) }
}

/// Contiguous steps, in blocks. False if there is no fast way.
unsafe fn transpose<E: Compute>(
    simd: Simd,
    src: *const E,
    lines: &[usize],
    depth: usize,
    width: usize,
    dst: *mut E,
) -> bool {
    let size = E::block(simd);
    if size == 0 || (!width.is_multiple_of(size) && width > size) {
        return false;
    }
    let blocks = depth / size * size;
    // SAFETY: the caller's promise. Blocks go upwards: what one writes beyond its lines, the next
    // step overwrites.
    unsafe {
        for p in (0..blocks).step_by(size) {
            for group in (0..width).step_by(size) {
                let lines = &lines[group.min(lines.len())..lines.len().min(group + size)];
                E::turn(simd, src.add(p), lines, width, dst.add(p * width + group));
            }
        }
        for p in blocks..depth {
            for i in 0..width {
                let x = lines.get(i).map_or(E::ZERO, |l| src.add(l + p).read());
                dst.add(p * width + i).write(x);
            }
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check<E: Compute>(simd: Simd) {
        let tile = E::tile(simd);
        let src: Vec<E> = (0..90_000).map(|i| E::of(f64::from(i))).collect();
        let widths = (1..=tile.rows).map(|w| (w, w)).chain([(tile.columns(), tile.columns()), (5, tile.columns())]);
        for ((len, width), steps) in widths.flat_map(|w| [1, 7, 16, 37].map(|s| (w, s))) {
            for (line, step) in [(1, 100), (200, 1), (3, 700)] {
                let lines: Vec<usize> = (0..2 * len).map(|i| 2 + i * line).collect();
                let depth: Vec<usize> = (0..steps).map(|p| 5 + p * step).collect();
                let parts = [0, 1].map(|i| Part { at: i * len, len, width, to: i * steps * width });
                let mut dst = vec![E::of(-1.0); 2 * steps * width + 16];
                // SAFETY: all offsets lie in `src`, and `dst` has room for a vector more.
                unsafe { pack(simd, src.as_ptr(), &lines, &depth, &parts, dst.as_mut_ptr()) };
                for (part, p, i) in
                    (0..2).flat_map(|x| (0..steps).flat_map(move |p| (0..width).map(move |i| (x, p, i))))
                {
                    let want = if i < len { (lines[part * len + i] + depth[p]) as f64 } else { 0.0 };
                    let got = dst[part * steps * width + p * width + i].wide();
                    assert_eq!(got, want, "{simd:?} {len} of {width}, {steps} steps, {line} {step}");
                }
            }
        }
    }

    #[test]
    fn every_layout_packs() {
        let second = if Simd::detect() == Simd::Avx512 { Simd::Avx2 } else { Simd::Base };
        for simd in [Simd::detect(), second, Simd::Base] {
            check::<f32>(simd);
            check::<f64>(simd);
        }
    }
}

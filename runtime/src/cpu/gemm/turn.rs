//! Small blocks moved through registers: transposition, and copies of short lines.

use super::pack::Part;
use crate::cpu::elem::Simd;

/// No block.
pub(super) fn no_block(_: Simd) -> usize {
    0
}

/// Never called.
pub(super) unsafe fn no_turn<E>(_: Simd, _: *const E, _: &[usize], _: usize, _: *mut E) {
    unreachable!("there is no block to turn")
}

/// No fast way to copy.
pub(super) unsafe fn no_copy<E>(_: Simd, _: *const E, _: &[usize], _: &[Part], _: *mut E) -> bool {
    false
}

/// See [`super::micro::Compute::copy`].
///
/// # Safety
/// As there.
pub(super) unsafe fn copy_f32(simd: Simd, src: *const f32, depth: &[usize], parts: &[Part], dst: *mut f32) -> bool {
    #[cfg(target_arch = "x86_64")]
    if simd == Simd::Avx512 && parts.iter().all(|p| p.width <= 16) {
        // SAFETY: the caller's promise.
        unsafe { x86::copy_16(src, depth, parts, dst) };
        return true;
    }
    let _ = (simd, src, depth, parts, dst);
    false
}

/// See [`super::micro::Compute::block`].
pub(super) fn block_f32(simd: Simd) -> usize {
    match simd {
        Simd::Avx512 => 16,
        Simd::Avx2 => 8,
        Simd::Base => 0,
    }
}

/// See [`super::micro::Compute::turn`].
///
/// # Safety
/// As there.
pub(super) unsafe fn turn_f32(simd: Simd, src: *const f32, lines: &[usize], stride: usize, dst: *mut f32) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the caller's promise.
    unsafe {
        match simd {
            Simd::Avx512 => x86::block_16(src, lines, stride, dst),
            _ => x86::block_8(src, lines, stride, dst),
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    no_turn(simd, src, lines, stride, dst)
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::Part;
    use std::arch::x86_64::*;

    /// `dst[part.to + p·part.width + i] = src[part.at + depth[p] + i]`, up to 16 at a time.
    ///
    /// # Safety
    /// The elements exist.
    #[target_feature(enable = "avx512f,avx512vl,avx512dq,avx2,fma")]
    pub(super) unsafe fn copy_16(src: *const f32, depth: &[usize], parts: &[Part], dst: *mut f32) {
        for (p, d) in depth.iter().enumerate() {
            for part in parts {
                let mask = ((1u32 << part.width) - 1) as __mmask16;
                // SAFETY: the caller's promise; lanes outside the mask are not touched.
                unsafe {
                    let line = _mm512_maskz_loadu_ps(mask, src.add(d + part.at));
                    _mm512_mask_storeu_ps(dst.add(part.to + p * part.width), mask, line);
                }
            }
        }
    }

    /// Transposes 16 steps of up to 16 lines: `to[p·width + i] = src[lines[i] + p]`.
    ///
    /// # Safety
    /// The elements exist, and 16 may be written at every step.
    #[target_feature(enable = "avx512f,avx512vl,avx512dq,avx2,fma")]
    pub(super) unsafe fn block_16(src: *const f32, lines: &[usize], width: usize, to: *mut f32) {
        let mut r = [_mm512_setzero_ps(); 16];
        for (i, r) in r.iter_mut().enumerate() {
            if let Some(l) = lines.get(i) {
                // SAFETY: the caller's promise.
                *r = unsafe { _mm512_loadu_ps(src.add(*l)) };
            }
        }
        let mut t = [_mm512_setzero_ps(); 16];
        // Pairs, then fours of lines within each 128-bit part, then the parts.
        for i in 0..8 {
            t[2 * i] = _mm512_unpacklo_ps(r[2 * i], r[2 * i + 1]);
            t[2 * i + 1] = _mm512_unpackhi_ps(r[2 * i], r[2 * i + 1]);
        }
        for i in 0..4 {
            let (a, b, c, d) = (t[4 * i], t[4 * i + 1], t[4 * i + 2], t[4 * i + 3]);
            r[4 * i] = _mm512_shuffle_ps::<0x44>(a, c);
            r[4 * i + 1] = _mm512_shuffle_ps::<0xEE>(a, c);
            r[4 * i + 2] = _mm512_shuffle_ps::<0x44>(b, d);
            r[4 * i + 3] = _mm512_shuffle_ps::<0xEE>(b, d);
        }
        for i in 0..4 {
            t[i] = _mm512_shuffle_f32x4::<0x88>(r[i], r[4 + i]);
            t[4 + i] = _mm512_shuffle_f32x4::<0xDD>(r[i], r[4 + i]);
            t[8 + i] = _mm512_shuffle_f32x4::<0x88>(r[8 + i], r[12 + i]);
            t[12 + i] = _mm512_shuffle_f32x4::<0xDD>(r[8 + i], r[12 + i]);
        }
        for i in 0..4 {
            r[i] = _mm512_shuffle_f32x4::<0x88>(t[i], t[8 + i]);
            r[8 + i] = _mm512_shuffle_f32x4::<0xDD>(t[i], t[8 + i]);
            r[4 + i] = _mm512_shuffle_f32x4::<0x88>(t[4 + i], t[12 + i]);
            r[12 + i] = _mm512_shuffle_f32x4::<0xDD>(t[4 + i], t[12 + i]);
        }
        for (p, r) in r.iter().enumerate() {
            // SAFETY: the caller's promise.
            unsafe { _mm512_storeu_ps(to.add(p * width), *r) };
        }
    }

    /// Transposes 8 steps of up to 8 lines.
    ///
    /// # Safety
    /// The elements exist, and 8 may be written at every step.
    #[target_feature(enable = "avx2,fma")]
    pub(super) unsafe fn block_8(src: *const f32, lines: &[usize], width: usize, to: *mut f32) {
        let mut r = [_mm256_setzero_ps(); 8];
        for (i, r) in r.iter_mut().enumerate() {
            if let Some(l) = lines.get(i) {
                // SAFETY: the caller's promise.
                *r = unsafe { _mm256_loadu_ps(src.add(*l)) };
            }
        }
        let mut t = [_mm256_setzero_ps(); 8];
        for i in 0..4 {
            t[2 * i] = _mm256_unpacklo_ps(r[2 * i], r[2 * i + 1]);
            t[2 * i + 1] = _mm256_unpackhi_ps(r[2 * i], r[2 * i + 1]);
        }
        for i in 0..2 {
            let (a, b, c, d) = (t[4 * i], t[4 * i + 1], t[4 * i + 2], t[4 * i + 3]);
            r[4 * i] = _mm256_shuffle_ps::<0x44>(a, c);
            r[4 * i + 1] = _mm256_shuffle_ps::<0xEE>(a, c);
            r[4 * i + 2] = _mm256_shuffle_ps::<0x44>(b, d);
            r[4 * i + 3] = _mm256_shuffle_ps::<0xEE>(b, d);
        }
        for i in 0..4 {
            t[i] = _mm256_permute2f128_ps::<0x20>(r[i], r[4 + i]);
            t[4 + i] = _mm256_permute2f128_ps::<0x31>(r[i], r[4 + i]);
        }
        for (p, t) in t.iter().enumerate() {
            // SAFETY: the caller's promise.
            unsafe { _mm256_storeu_ps(to.add(p * width), *t) };
        }
    }
}

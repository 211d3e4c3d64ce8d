//! Register tiles: a few rows times one or two vectors of columns, over packed panels. One body per
//! instruction set and type; rows and vectors are constants, so that sums live in registers.

use super::pack::Part;
use crate::cpu::elem::{Elem, Simd};

/// Most rows of a tile.
pub(crate) const MAX_ROWS: usize = 14;
/// Most columns of a tile.
pub(crate) const MAX_COLUMNS: usize = 32;

/// The largest tile of an instruction set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tile {
    /// Rows.
    pub rows: usize,
    /// Columns of one vector; a tile has one or two.
    pub lanes: usize,
}

impl Tile {
    /// Columns of a full tile.
    pub fn columns(self) -> usize {
        2 * self.lanes
    }
}

/// Where a tile goes: `rows[i]` is the offset of row i, columns are contiguous.
#[derive(Clone, Copy)]
pub(crate) struct Out<'a, E> {
    /// What the offsets count from.
    pub ptr: *mut E,
    /// What is added, at the same offsets; null: nothing.
    pub init: *const E,
    /// Offsets of rows.
    pub rows: &'a [usize],
}

/// A type with tiles.
pub(crate) trait Compute: Elem {
    /// The largest tile.
    fn tile(simd: Simd) -> Tile;

    /// `out = init + Σ_p a[p, :]·b[p, :]` for `k` steps: `a` has `out.rows.len()` entries a step,
    /// `b` has `vectors` vectors.
    ///
    /// # Safety
    /// The panels have that many entries; every row of `out` has room for the vectors; no more rows
    /// and vectors than [`Compute::tile`] says, at least one of each; `simd` was detected.
    unsafe fn multiply(simd: Simd, vectors: usize, k: usize, a: *const Self, b: *const Self, out: Out<Self>);

    /// Steps and most lines of a block of [`Compute::turn`]; 0: there is none.
    fn block(simd: Simd) -> usize;

    /// `dst[p·stride + i] = src[lines[i] + p]` for the steps p of one block. Each step writes a
    /// block's lines, zero where there are fewer.
    ///
    /// # Safety
    /// The elements exist, no more lines than [`Compute::block`], which is not 0; `dst` has room;
    /// `simd` was detected.
    unsafe fn turn(simd: Simd, src: *const Self, lines: &[usize], stride: usize, dst: *mut Self);

    /// `dst[part.to + p·part.width + i] = src[part.at + depth[p] + i]`. False if there is no fast way.
    ///
    /// # Safety
    /// The elements exist; `simd` was detected.
    unsafe fn copy(simd: Simd, src: *const Self, depth: &[usize], parts: &[Part], dst: *mut Self) -> bool;
}

/// One tile in plain Rust.
unsafe fn plain<E: Elem, const LANES: usize>(k: usize, vectors: usize, a: *const E, b: *const E, out: Out<E>) {
    let rows = out.rows.len();
    for (i, row) in out.rows.iter().enumerate() {
        for v in 0..vectors {
            let mut acc = [E::ZERO; LANES];
            for p in 0..k {
                // SAFETY: the caller's promise.
                let (x, b) = unsafe { (*a.add(p * rows + i), &*b.add((p * vectors + v) * LANES).cast::<[E; LANES]>()) };
                acc.iter_mut().zip(b).for_each(|(s, y)| *s = *s + x * *y);
            }
            for (j, s) in acc.iter().enumerate() {
                // SAFETY: the caller's promise.
                unsafe {
                    let at = row + v * LANES + j;
                    let start = if out.init.is_null() { E::ZERO } else { out.init.add(at).read() };
                    out.ptr.add(at).write(start + *s);
                }
            }
        }
    }
}

/// Steps of k that columns are brought into the first cache ahead of their use.
#[cfg(target_arch = "x86_64")]
const AHEAD: usize = 12;

/// Defines a module with the tiles of one instruction set and type.
#[cfg(target_arch = "x86_64")]
macro_rules! tiles {
    ($name:ident, $features:literal, $elem:ty, $lanes:literal, [$($rows:literal)*],
     $zero:ident, $load:ident, $store:ident, $set1:ident, $fma:ident, $add:ident) => {
        mod $name {
            use super::{Out, AHEAD};
            use std::arch::x86_64::*;

            #[target_feature(enable = $features)]
            unsafe fn tile<const ROWS: usize, const VECTORS: usize>(
                k: usize,
                mut a: *const $elem,
                mut b: *const $elem,
                out: Out<$elem>,
            ) {
                // Of constant length, so that the stores unroll and sums never leave the registers.
                let Some(rows) = out.rows.first_chunk::<ROWS>() else { return };
                let mut acc = [[$zero(); VECTORS]; ROWS];
                // SAFETY: the caller's promise: k steps of each panel exist, and the rows of `out`.
                unsafe {
                    for _ in 0..k {
                        let mut y = [$zero(); VECTORS];
                        for (v, y) in y.iter_mut().enumerate() {
                            // Wherever that points: a prefetch touches nothing.
                            let ahead = b.wrapping_add((AHEAD * VECTORS + v) * $lanes);
                            _mm_prefetch::<_MM_HINT_T0>(ahead.cast());
                            *y = $load(b.add(v * $lanes));
                        }
                        for (r, acc) in acc.iter_mut().enumerate() {
                            let x = $set1(*a.add(r));
                            for (s, y) in acc.iter_mut().zip(y) {
                                *s = $fma(x, y, *s);
                            }
                        }
                        a = a.add(ROWS);
                        b = b.add(VECTORS * $lanes);
                    }
                    if !out.init.is_null() {
                        for r in 0..ROWS {
                            for v in 0..VECTORS {
                                acc[r][v] = $add($load(out.init.add(rows[r] + v * $lanes)), acc[r][v]);
                            }
                        }
                    }
                    for r in 0..ROWS {
                        for v in 0..VECTORS {
                            $store(out.ptr.add(rows[r] + v * $lanes), acc[r][v]);
                        }
                    }
                }
            }

            /// # Safety
            /// As for `Compute::multiply`.
            pub(super) unsafe fn multiply(
                vectors: usize,
                k: usize,
                a: *const $elem,
                b: *const $elem,
                out: Out<$elem>,
            ) {
                // SAFETY: the caller's promise.
                unsafe {
                    match (out.rows.len(), vectors) {
                        $(
                            ($rows, 1) => tile::<$rows, 1>(k, a, b, out),
                            ($rows, 2) => tile::<$rows, 2>(k, a, b, out),
                        )*
                        _ => unreachable!("a tile has no such size"),
                    }
                }
            }
        }
    };
}

#[cfg(target_arch = "x86_64")]
tiles!(f32_avx512, "avx512f,avx512vl,avx512dq,avx2,fma", f32, 16, [1 2 3 4 5 6 7 8 9 10 11 12 13 14],
    _mm512_setzero_ps, _mm512_loadu_ps, _mm512_storeu_ps, _mm512_set1_ps, _mm512_fmadd_ps, _mm512_add_ps);
#[cfg(target_arch = "x86_64")]
tiles!(f64_avx512, "avx512f,avx512vl,avx512dq,avx2,fma", f64, 8, [1 2 3 4 5 6 7 8 9 10 11 12 13 14],
    _mm512_setzero_pd, _mm512_loadu_pd, _mm512_storeu_pd, _mm512_set1_pd, _mm512_fmadd_pd, _mm512_add_pd);
#[cfg(target_arch = "x86_64")]
tiles!(f32_avx2, "avx2,fma", f32, 8, [1 2 3 4 5 6],
    _mm256_setzero_ps, _mm256_loadu_ps, _mm256_storeu_ps, _mm256_set1_ps, _mm256_fmadd_ps, _mm256_add_ps);
#[cfg(target_arch = "x86_64")]
tiles!(f64_avx2, "avx2,fma", f64, 4, [1 2 3 4 5 6],
    _mm256_setzero_pd, _mm256_loadu_pd, _mm256_storeu_pd, _mm256_set1_pd, _mm256_fmadd_pd, _mm256_add_pd);

/// Lanes of the plain tile.
const PLAIN: usize = 8;

macro_rules! compute {
    ($elem:ty, $avx512:ident, $lanes512:literal, $avx2:ident, $lanes2:literal, $block:path, $turn:path, $copy:path) => {
        impl Compute for $elem {
            fn tile(simd: Simd) -> Tile {
                match simd {
                    Simd::Avx512 => Tile { rows: MAX_ROWS, lanes: $lanes512 },
                    Simd::Avx2 => Tile { rows: 6, lanes: $lanes2 },
                    Simd::Base => Tile { rows: 4, lanes: PLAIN },
                }
            }

            unsafe fn multiply(
                simd: Simd,
                vectors: usize,
                k: usize,
                a: *const $elem,
                b: *const $elem,
                out: Out<$elem>,
            ) {
                // SAFETY: the caller's promise, in every branch.
                unsafe {
                    match simd {
                        #[cfg(target_arch = "x86_64")]
                        Simd::Avx512 => $avx512::multiply(vectors, k, a, b, out),
                        #[cfg(target_arch = "x86_64")]
                        Simd::Avx2 => $avx2::multiply(vectors, k, a, b, out),
                        _ => plain::<$elem, PLAIN>(k, vectors, a, b, out),
                    }
                }
            }

            fn block(simd: Simd) -> usize {
                $block(simd)
            }

            unsafe fn turn(simd: Simd, src: *const $elem, lines: &[usize], stride: usize, dst: *mut $elem) {
                // SAFETY: the caller's promise.
                unsafe { $turn(simd, src, lines, stride, dst) }
            }

            unsafe fn copy(simd: Simd, src: *const $elem, depth: &[usize], parts: &[Part], dst: *mut $elem) -> bool {
                // SAFETY: the caller's promise.
                unsafe { $copy(simd, src, depth, parts, dst) }
            }
        }
    };
}

compute!(f32, f32_avx512, 16, f32_avx2, 8, super::turn::block_f32, super::turn::turn_f32, super::turn::copy_f32);
compute!(f64, f64_avx512, 8, f64_avx2, 4, super::turn::no_block, super::turn::no_turn, super::turn::no_copy);

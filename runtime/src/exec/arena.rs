//! Aligned memory of one rank.

use std::alloc::{alloc_zeroed, dealloc, Layout};
use std::ptr::NonNull;

/// Alignment of arenas and of the buffers laid out in them, in bytes: a cache line, and the widest
/// vector.
pub(crate) const ALIGN: usize = 64;

/// A block of zeroed memory. It hands out raw pointers, because peers read it during collectives.
#[derive(Debug)]
pub(crate) struct Arena {
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: an arena owns its memory and does nothing with it but free it; who touches the memory
// through the pointers is governed by the contracts of the kernels and of `Comm::collective`.
unsafe impl Send for Arena {}
// SAFETY: as above.
unsafe impl Sync for Arena {}

impl Arena {
    /// Zeroed memory of this size, or `None` if there is not enough.
    pub(crate) fn new(bytes: usize) -> Option<Arena> {
        let layout = Layout::from_size_align(bytes, ALIGN).ok()?;
        if bytes == 0 {
            // Never dereferenced; aligned all the same, for slices of length 0.
            let start = NonNull::new(std::ptr::without_provenance_mut(ALIGN))?;
            return Some(Arena { start, bytes });
        }
        // SAFETY: the size is not zero.
        let start = NonNull::new(unsafe { alloc_zeroed(layout) })?;
        Some(Arena { start, bytes })
    }

    /// First byte.
    pub(crate) fn start(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// Size in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        if let (1.., Ok(layout)) = (self.bytes, Layout::from_size_align(self.bytes, ALIGN)) {
            // SAFETY: allocated in `new` with this layout.
            unsafe { dealloc(self.start.as_ptr(), layout) }
        }
    }
}

/// Offsets of buffers of these sizes laid one after the other, and the total; `None` on overflow.
pub(crate) fn lay_out(sizes: &[usize]) -> Option<(Vec<usize>, usize)> {
    let mut end: usize = 0;
    let mut offsets = Vec::with_capacity(sizes.len());
    for size in sizes {
        offsets.push(end);
        end = end.checked_add(size.checked_next_multiple_of(ALIGN)?)?;
    }
    Some((offsets, end))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_aligned_and_zeroed() {
        for bytes in [0, 1, 64, 1000] {
            let arena = Arena::new(bytes).unwrap();
            assert_eq!(arena.start() as usize % ALIGN, 0);
            // SAFETY: just allocated.
            let all = unsafe { std::slice::from_raw_parts(arena.start(), bytes) };
            assert!(all.iter().all(|b| *b == 0));
        }
        assert!(Arena::new(usize::MAX).is_none());
        assert!(Arena::new(isize::MAX as usize - 64).is_none());
    }

    #[test]
    fn layout_keeps_the_alignment() {
        assert_eq!(lay_out(&[1, 0, 65, 64]), Some((vec![0, 64, 64, 192], 256)));
        assert_eq!(lay_out(&[usize::MAX]), None);
    }
}

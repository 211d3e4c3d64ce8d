//! Device memory that a process takes besides its tensors.
//!
//! Sources: the recommended workspace of cuBLAS is 4 MiB, and 32 MiB from Hopper on (cuBLAS's
//! documentation of `cublasSetWorkspace`; pytorch#120925 and MatX#545 met the difference). It exists
//! once a handle and stream (pytorch#182669 under-counted it by ignoring pools). A context was
//! reported to take 300 to 500 MB; the upper end is charged.

use autoshard_runtime::cuda::Capability;

/// Bytes of the context: what the driver keeps for a process before anything is allocated.
pub const CONTEXT: u64 = 500 << 20;

/// First capability of Hopper.
const HOPPER: Capability = Capability { major: 9, minor: 0 };

/// Bytes of one workspace of cuBLAS.
pub fn blas_workspace(device: Capability) -> u64 {
    if device >= HOPPER {
        32 << 20
    } else {
        4 << 20
    }
}

/// Fixed memory of a process on one device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Overhead {
    /// Workspaces of cuBLAS.
    pub blas: u64,
    /// Context.
    pub context: u64,
}

impl Overhead {
    /// All of it.
    pub fn bytes(&self) -> u64 {
        self.blas.saturating_add(self.context)
    }
}

/// Estimates it for handles of cuBLAS that are each used on so many streams.
pub fn overhead(device: Capability, handles: u64, streams: u64) -> Overhead {
    let blas = blas_workspace(device).saturating_mul(handles.saturating_mul(streams));
    Overhead { blas, context: CONTEXT }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workspaces_are_counted_per_handle_and_stream() {
        // The reported case: one handle, three streams.
        for (device, each, all) in [((8, 0), 4, 12), ((9, 0), 32, 96), ((10, 0), 32, 96), ((8, 9), 4, 12)] {
            let device = Capability::new(device.0, device.1);
            assert_eq!(blas_workspace(device), each << 20);
            let o = overhead(device, 1, 3);
            assert_eq!((o.blas, o.bytes()), (all << 20, (all + 500) << 20));
            assert!((300_000_000..600_000_000).contains(&o.context));
        }
        assert_eq!(overhead(Capability::new(9, 0), 2, 3).blas, 192 << 20);
        assert_eq!(overhead(Capability::new(9, 0), 0, 3).blas, 0);
    }
}

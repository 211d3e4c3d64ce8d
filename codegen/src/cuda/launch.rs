//! Launching: geometry and scalar arguments for the parts that a rank holds.

use super::{CodegenError, CudaKernel};
use autoshard_ir::mesh::{Mesh, Part};

/// One launch of an entry point.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Launch {
    /// Name of the function.
    pub entry: String,
    /// Blocks.
    pub grid: [u32; 3],
    /// Threads of a block.
    pub block: [u32; 3],
    /// Bytes of dynamic shared memory.
    pub dynamic_shared: u32,
    /// Arguments after the pointers.
    pub scalars: Vec<u32>,
}

impl CudaKernel {
    /// The parts of the split extents that the rank at `coords` holds.
    pub fn parts(&self, mesh: &Mesh, coords: &[usize]) -> Vec<Part> {
        self.extents.iter().map(|e| e.part(mesh, coords)).collect()
    }

    /// Launches in order, given the real parts of [`CudaKernel::extents`]. The grid comes from
    /// padded sizes: it is the same on every rank.
    pub fn launches(&self, parts: &[Part]) -> Result<Vec<Launch>, CodegenError> {
        if parts.len() != self.extents.len() {
            let (kernel, expected) = (self.name.clone(), self.extents.len());
            return Err(CodegenError::Parts { kernel, expected, found: parts.len() });
        }
        let mut scalars = vec![];
        for (e, p) in self.extents.iter().zip(parts) {
            let end = p.start.saturating_add(p.len);
            if p.len > e.size || end > e.global {
                return Err(CodegenError::Part {
                    kernel: self.name.clone(),
                    extent: e.name.clone(),
                    size: e.size,
                    start: p.start,
                    end,
                    global: e.global,
                });
            }
            // Both are at most the global size, which fits.
            scalars.extend([p.start as u32, p.len as u32]);
        }
        let launch = |e: &super::Entry| Launch {
            entry: e.name.clone(),
            grid: [e.grid, 1, 1],
            block: [e.block, 1, 1],
            dynamic_shared: e.dynamic,
            scalars: scalars.clone(),
        };
        Ok(self.entries.iter().map(launch).collect())
    }
}

//! Arguments of kernels, as a list that is built and checked without a device.
//!
//! The calling convention is that of generated texts: a pointer per buffer; a pointer to workspace,
//! if there is any; then, for each split extent, the first global index of the rank's part and its
//! length, each an unsigned int.

use super::error::CudaError;

/// What a kernel takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Abi {
    /// Kernel, for errors.
    pub kernel: String,
    /// Buffers: operands, then results.
    pub buffers: usize,
    /// Bytes of workspace, 0 for none.
    pub workspace: usize,
    /// Split extents.
    pub extents: usize,
}

/// Memory of a device that is passed to a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pointer {
    /// First byte.
    pub address: u64,
    /// Bytes from there on.
    pub bytes: usize,
}

/// Alignment of every pointer.
const ALIGNMENT: u64 = 64;

/// A kernel's arguments in order, each of them 8 or 4 bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arguments {
    kernel: String,
    /// Pointers, the workspace last.
    pointers: Vec<u64>,
    scalars: Vec<u32>,
}

impl Abi {
    /// The arguments, if they are what the kernel takes. `scalars` are starts and lengths of the
    /// extents' parts.
    pub fn arguments(
        &self,
        buffers: &[Pointer],
        workspace: Option<Pointer>,
        scalars: &[u32],
    ) -> Result<Arguments, CudaError> {
        let problem = |problem: String| Err(CudaError::Arguments { kernel: self.kernel.clone(), problem });
        if buffers.len() != self.buffers {
            return problem(format!("{} buffers were given, it takes {}", buffers.len(), self.buffers));
        }
        if scalars.len() != 2 * self.extents {
            return problem(format!("{} numbers were given, {} extents take two each", scalars.len(), self.extents));
        }
        let room = workspace.map_or(0, |w| w.bytes);
        if room < self.workspace {
            return problem(format!("{room} bytes of workspace were given, it needs {}", self.workspace));
        }
        let workspace = workspace.filter(|_| self.workspace > 0);
        let pointers: Vec<u64> = buffers.iter().chain(&workspace).map(|p| p.address).collect();
        if let Some(i) = pointers.iter().position(|p| *p == 0 || p % ALIGNMENT != 0) {
            return problem(format!("pointer {i} is {:#x}, not a multiple of {ALIGNMENT}", pointers[i]));
        }
        Ok(Arguments { kernel: self.kernel.clone(), pointers, scalars: scalars.to_vec() })
    }
}

impl Arguments {
    /// The kernel that they are for.
    pub fn kernel(&self) -> &str {
        &self.kernel
    }

    /// Size of each argument in bytes.
    pub fn sizes(&self) -> Vec<usize> {
        self.pointers.iter().map(|_| 8).chain(self.scalars.iter().map(|_| 4)).collect()
    }

    /// Each argument's bytes, as the device reads them.
    pub fn bytes(&self) -> Vec<Vec<u8>> {
        let pointers = self.pointers.iter().map(|p| p.to_le_bytes().to_vec());
        pointers.chain(self.scalars.iter().map(|s| s.to_le_bytes().to_vec())).collect()
    }

    /// Addresses of the arguments, valid as long as `self` is neither moved out of nor changed.
    pub(super) fn addresses(&mut self) -> Vec<*mut std::ffi::c_void> {
        let pointers = self.pointers.iter_mut().map(|p| std::ptr::from_mut(p).cast());
        pointers.chain(self.scalars.iter_mut().map(|s| std::ptr::from_mut(s).cast())).collect()
    }
}

/// Geometry of a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grid {
    /// Blocks.
    pub grid: [u32; 3],
    /// Threads of a block.
    pub block: [u32; 3],
    /// Bytes of dynamic shared memory.
    pub dynamic_shared: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_pointers_workspace_then_parts() {
        let abi = Abi { kernel: "k".into(), buffers: 2, workspace: 128, extents: 1 };
        let p = |address, bytes| Pointer { address, bytes };
        let (a, b, w) = (p(0x100, 4), p(0x140, 4), p(0x10_0000_0000, 128));
        let mut args = abi.arguments(&[a, b], Some(w), &[7, 9]).unwrap();
        assert_eq!(args.sizes(), [8, 8, 8, 4, 4]);
        let bytes = args.bytes();
        assert_eq!(bytes[2], [0, 0, 0, 0, 0x10, 0, 0, 0]);
        assert_eq!((&bytes[3][..], &bytes[4][..]), (&[7u8, 0, 0, 0][..], &[9u8, 0, 0, 0][..]));
        // SAFETY: the addresses are those of `args`, which lives.
        let read = args.addresses().iter().map(|a| unsafe { a.cast::<u32>().read() }).collect::<Vec<_>>();
        assert_eq!(read, [0x100, 0x140, 0, 7, 9]);
        // A workspace that nobody wants is not passed.
        let none = Abi { workspace: 0, ..abi.clone() };
        assert_eq!(none.arguments(&[a, b], Some(w), &[7, 9]).unwrap().sizes(), [8, 8, 4, 4]);
    }

    #[test]
    fn arguments_that_do_not_fit_are_refused() {
        let abi = Abi { kernel: "k".into(), buffers: 1, workspace: 128, extents: 1 };
        let p = |address, bytes| Pointer { address, bytes };
        let told = |buffers: &[Pointer], w: Option<Pointer>, scalars: &[u32]| {
            abi.arguments(buffers, w, scalars).unwrap_err().to_string()
        };
        let (a, w) = (p(0x100, 4), Some(p(0x200, 128)));
        assert_eq!(told(&[], w, &[0, 1]), "kernel k: 0 buffers were given, it takes 1");
        assert_eq!(told(&[a], w, &[0]), "kernel k: 1 numbers were given, 1 extents take two each");
        assert_eq!(told(&[a], None, &[0, 1]), "kernel k: 0 bytes of workspace were given, it needs 128");
        assert_eq!(told(&[p(0x104, 4)], w, &[0, 1]), "kernel k: pointer 0 is 0x104, not a multiple of 64");
        assert_eq!(told(&[p(0, 4)], w, &[0, 1]), "kernel k: pointer 0 is 0x0, not a multiple of 64");
    }
}

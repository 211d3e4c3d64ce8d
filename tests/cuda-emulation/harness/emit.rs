//! The emitter's answer for a kernel and a rank, as launches of a job.

use super::jobs::{Arg, Launch};
use autoshard::ir::kernel::Kernel;
use autoshard::ir::mesh::Mesh;
use autoshard_codegen::cuda;

/// A text and how it is launched.
#[derive(Clone, Debug)]
pub struct Emitted {
    pub source: String,
    /// Buffers are the kernel's; one more is the workspace.
    pub launches: Vec<Launch>,
    /// Bytes of scratch memory.
    pub workspace: usize,
    /// Most bytes of shared memory that an entry says to declare.
    pub shared: u64,
}

/// Emits a kernel for the rank at `coords`.
pub fn emit(kernel: &Kernel, mesh: &Mesh, coords: &[usize]) -> Result<Emitted, String> {
    let k = cuda::emit(kernel).map_err(|e| e.to_string())?;
    let pointers = (0..k.buffers + usize::from(k.workspace > 0)).map(Arg::Buffer);
    let launch = |l: cuda::Launch| {
        let scalars = l.scalars.iter().map(|s| Arg::Bytes(s.to_le_bytes().to_vec()));
        let [grid, block] = [l.grid, l.block].map(|d| d.map(|n| n as usize));
        Launch { entry: l.entry, grid, block, args: pointers.clone().chain(scalars).collect() }
    };
    let launches = k.launches(&k.parts(mesh, coords)).map_err(|e| e.to_string())?;
    let shared = k.entries.iter().map(|e| u64::from(e.shared)).max().unwrap_or(0);
    let launches = launches.into_iter().map(launch).collect();
    Ok(Emitted { source: k.source, launches, workspace: k.workspace, shared })
}

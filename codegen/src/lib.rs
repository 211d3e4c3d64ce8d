//! From [`autoshard_ir::kernel::Kernel`] to CUDA C, and from there, where NVRTC can be loaded, to
//! machine code. Nothing needs a GPU, and nothing has run on one yet.
#![warn(missing_docs)]

pub mod cuda;
pub mod nvrtc;

pub use cuda::{emit, CodegenError, CudaKernel, Entry, Launch};

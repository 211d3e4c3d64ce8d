//! From [`autoshard_ir::kernel::Kernel`] to CUDA C. Nothing is generated yet: the CPU runtime executes
//! kernels directly, and `--target cuda` is refused.
#![warn(missing_docs)]

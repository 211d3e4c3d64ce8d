//! Runs the CUDA text of kernels without a device: as C++ on fibres, under a checker, against an f64
//! reference. See `tests/cuda-emulation/emulation.h`.

pub mod emit;
pub mod emulate;
pub mod jobs;
pub mod synthetic;
pub mod toolchain;

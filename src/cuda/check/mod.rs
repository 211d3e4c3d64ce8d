//! Checks that a machine with a GPU runs: every device primitive bit for bit, every generated kernel
//! of whole training steps against f64, and the speed of large ones.
//!
//! [`pack::pack`] compiles everything to machine code on a machine without a GPU;
//! [`run::run`] runs it on one with a GPU and without a compiler. All that judges results is here and
//! runs in tests on made-up results; only [`device`] needs a GPU. `docs/gpu-results.md` says how to
//! use it, and what has been run.

pub mod compare;
pub mod device;
pub mod kernels;
pub mod large;
pub mod manifest;
pub mod pack;
pub mod primitives;
pub mod reference;
pub mod report;
pub mod run;
pub mod stages;
pub mod supervise;
pub mod tensor;
pub mod trial;

use autoshard_codegen::nvrtc::{CompileError, MissingNvrtc};
use autoshard_codegen::CodegenError;
use autoshard_runtime::cuda::CudaError;
use std::path::{Path, PathBuf};

/// Why checks cannot be packed or run.
#[derive(Debug, thiserror::Error)]
pub enum CheckError {
    /// A file.
    #[error("{}: {source}", path.display())]
    Io {
        /// File or folder.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A model that does not become kernels.
    #[error("{}: {problem}", path.display())]
    Model {
        /// Its folder.
        path: PathBuf,
        /// What is wrong.
        problem: String,
    },
    /// A manifest that is none, or an image that is not the manifest's.
    #[error("{}: {problem}", path.display())]
    Manifest {
        /// File.
        path: PathBuf,
        /// What is wrong.
        problem: String,
    },
    /// A text without an image.
    #[error(
        "{kernel} was not packed for {target}: the folder was packed by another version of this program; pack it again"
    )]
    NotPacked {
        /// Name of the text.
        kernel: String,
        /// Architecture.
        target: String,
    },
    /// Nothing was packed that the device runs.
    #[error("{card} has compute capability {capability}; the folder holds machine code for {packed} only")]
    Target {
        /// Card.
        card: String,
        /// Its capability.
        capability: String,
        /// What was packed.
        packed: String,
    },
    /// The driver does not run what was packed.
    #[error("the folder was compiled by NVRTC {nvrtc}, whose machine code needs a driver for CUDA {needed}.0 or later; this one is for CUDA {driver}: update it, or pack with an older NVRTC")]
    Driver {
        /// Version of NVRTC.
        nvrtc: String,
        /// Major version that the driver must have.
        needed: u32,
        /// Version of the driver.
        driver: String,
    },
    /// A stage that there is not.
    #[error("there is no stage {0:?}; the stages are primitives, kernels and speed")]
    Stage(String),
    /// A kernel without text.
    #[error(transparent)]
    Emit(#[from] CodegenError),
    /// A text that does not compile.
    #[error(transparent)]
    Compile(#[from] CompileError),
    /// No compiler.
    #[error(transparent)]
    Nvrtc(#[from] MissingNvrtc),
    /// The device.
    #[error(transparent)]
    Cuda(#[from] CudaError),
}

impl CheckError {
    /// What makes an error of a path from one of the operating system.
    pub(crate) fn io(path: &Path) -> impl FnOnce(std::io::Error) -> CheckError {
        let path = path.to_path_buf();
        move |source| CheckError::Io { path, source }
    }
}

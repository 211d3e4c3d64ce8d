//! The runtime of autoshard: ranks as threads that execute [`autoshard_ir::program::Program`]s.
//!
//! [`cpu`] executes kernels, [`comm`] moves values between ranks and counts the bytes, [`exec`] holds
//! the memory of the ranks and runs the steps. [`cuda`] finds CUDA devices and launches kernels on
//! them.
//!
//! Invariant: nothing here plans, rewrites or parses; the runtime obeys a program. It does not trust
//! one either: what a damaged program asks for is refused with an error before any byte is touched.
#![warn(missing_docs)]

pub mod comm;
pub mod cpu;
pub mod cuda;
pub mod exec;

pub use comm::{CommError, World};
pub use exec::{Options, Runtime, RuntimeError, StepReport, TokenCheck};

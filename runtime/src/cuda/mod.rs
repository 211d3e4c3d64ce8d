//! CUDA devices: what is there ([`probe`](fn@probe)), memory, modules of machine code, launches and
//! events. The driver's library is loaded when it is asked for; where it is missing, errors say so
//! and nothing panics.
//!
//! Nothing here has run on a GPU yet.
//!
//! Invariant: no function of the driver is called before [`probe`](fn@probe) has found its library
//! and all that is used of it.

mod device;
mod driver;
mod error;
mod launch;
mod memory;
mod module;
mod probe;

pub use device::{Device, Event};
pub use error::{CudaError, ErrorCode};
pub use launch::{Abi, Arguments, Grid, Pointer};
pub use memory::Buffer;
pub use module::{Function, Module};
pub use probe::{probe, Capability, CudaVersion, DeviceInfo, Probe, State};

//! Passes over the IR: what rewrites it or judges it. Every pass is a pure function.
//!
//! Invariant: no pass performs I/O, executes a kernel or reads a clock.
#![warn(missing_docs)]

pub mod autodiff;
pub mod cost;
pub mod fuse;
pub mod lower;
pub mod outline;
pub mod partition;
pub mod play;
pub mod predict;
pub mod profile;
pub mod reshard;
pub mod schedule;
pub mod search;
pub mod simplify;

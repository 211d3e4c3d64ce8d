//! The vocabulary of autoshard: types, functions and modules ([`core`]), their text form ([`text`]),
//! the operations ([`ops`]), the reference interpreter ([`interp`]), device meshes ([`mesh`]),
//! plans ([`plan`]), kernels ([`kernel`]) and per-rank programs ([`program`]).
//!
//! Invariant: this crate performs no I/O and knows no other crate of the workspace.
#![warn(missing_docs)]

pub mod core;
pub mod interp;
pub mod kernel;
pub mod mesh;
pub mod ops;
pub mod plan;
pub mod program;
pub mod text;
pub mod verify;

pub use crate::core::{
    Attr, Attrs, Axis, BinaryMonoid as Monoid, Builder, DType, Dim, FuncId, Function, Module, Node, NodeId, Strategy,
    Type, Value, ValueId,
};
pub use crate::mesh::Mesh;

//! Plain data: element types, tensor types, attributes, nodes, functions, modules.
//!
//! A [`Module`] is a list of [`Function`]s. A function is an arena of [`Node`]s in execution order
//! and of the [`Value`]s they define; both are addressed by newtype indices. Nothing here knows an
//! operation by name: a node points at the [`OpDef`] that declares it.

mod attr;
mod build;
mod function;
mod op;
mod types;

pub use attr::{Attr, Attrs};
pub use build::{BuildError, Builder};
pub use function::{
    Backward, Def, FuncId, Function, Module, NameIndex, Node, NodeId, Param, ParamOf, Strategy, Value, ValueId,
};
pub(crate) use op::dtype_attr;
pub use op::{
    AttrDef, AttrKind, Bits, DimMap, Factor, FactorId, FactorKind, GradArg, Gradient, GradientFn, Linearity, OpDef,
    Rule, RuleFn, Scalar, ScalarBody, Semantics, Template,
};
pub use types::{Axis, BinaryMonoid, DType, Dim, Partial, Type};

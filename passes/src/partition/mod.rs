//! Partition: from an annotated module (strategies on nodes, states on the entry's parameters) to
//! local functions: what one rank computes, with the collectives as ordinary nodes.
//!
//! A local value's type keeps global sizes and says which axes split each dimension and over which
//! the value is partial; the rank's share follows from its coordinates. One local module therefore
//! serves all ranks.
//!
//! Who moves what: the *caller* brings arguments to the state that the callee's parameters have, so
//! gathers of weights and reductions of their gradients are the caller's; changes of state of
//! activations inside a function are the function's. A parameter of a forward function has the state
//! that its first use asks for; parameters of a backward function follow the forward's values, and
//! cotangents have the state of their primal with partial sums reduced.

mod body;
mod states;

pub(crate) use states::first_use;

use autoshard_ir::core::{Function, Module};

/// Why a module could not be partitioned.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum PartitionError {
    /// A strategy or state that is not legal.
    #[error("@{function}: {node}: {message}")]
    Illegal {
        /// Function.
        function: String,
        /// Node, as IR text.
        node: String,
        /// What is wrong and what would be right.
        message: String,
    },
    /// A call of a function that is not in the module, or comes after its caller.
    #[error("@{function} calls @{callee}, which is not defined before it")]
    Callee {
        /// Caller.
        function: String,
        /// Callee.
        callee: String,
    },
}

/// The local module of `module`, whose functions stand before their callers and forward functions
/// before their backward functions.
pub fn partition(module: &Module) -> Result<Module, PartitionError> {
    let mut out = Module { mesh: module.mesh.clone(), functions: Vec::new(), entry: module.entry.clone() };
    for f in &module.functions {
        let local = body::localize(module, &out, f)?;
        out.functions.push(local);
    }
    Ok(out)
}

/// Whether the function is the entry.
pub(crate) fn is_entry(module: &Module, f: &Function) -> bool {
    f.name == module.entry
}

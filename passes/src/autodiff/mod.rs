//! Differentiation: a model becomes a training step.
//!
//! The entry of the input holds calls only (see [`crate::outline`]) and returns the loss. Each called
//! function `@f` becomes `@f.fwd`, which also returns the values it saves, and `@f.bwd`, whose nodes
//! say by `of` which forward node they differentiate and take its strategy. The new entry `@step`
//! runs the calls forward, then backward, and updates every parameter by AdamW in the state in which
//! it is stored.

mod function;
mod step;

use autoshard_ir::core::{BuildError, Module};

pub use function::Pair;

/// Constants of AdamW (`torch.optim.AdamW`).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdamW {
    /// Learning rate.
    pub lr: f64,
    /// Decay of the first moment.
    pub beta1: f64,
    /// Decay of the second moment.
    pub beta2: f64,
    /// Added to the denominator.
    pub eps: f64,
    /// Decoupled weight decay.
    pub weight_decay: f64,
}

impl Default for AdamW {
    fn default() -> AdamW {
        AdamW { lr: 1e-3, beta1: 0.9, beta2: 0.95, eps: 1e-8, weight_decay: 0.1 }
    }
}

/// Why a module could not be differentiated.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum AutodiffError {
    /// The entry is missing.
    #[error("the module has no entry function")]
    NoEntry,
    /// The entry's first result is not a scalar.
    #[error("the loss %{name} must be a float scalar, got {ty}")]
    Loss {
        /// Name of the result.
        name: String,
        /// Its type.
        ty: String,
    },
    /// The entry holds something else than calls.
    #[error("the entry holds %{0}, which is not the result of a call; outline it first")]
    NotOutlined(String),
    /// A call to an unknown function.
    #[error("call of unknown function @{0}")]
    UnknownFunction(String),
    /// A node could not be differentiated.
    #[error("@{function}: gradient of {node}: {source}")]
    Node {
        /// Function.
        function: String,
        /// Node, as operation and result.
        node: String,
        /// Reason.
        source: BuildError,
    },
    /// The step could not be built.
    #[error("training step: {0}")]
    Step(#[from] BuildError),
}

/// The training module of `module`, whose entry is outlined.
///
/// Parameters of `@step`: those of the entry in their order, `t` (f64 scalar, the step count from 1),
/// then `m.NAME` and `v.NAME` for each trainable parameter. Results: the loss, then for each trainable
/// parameter `NAME.new`, `m.NAME.new`, `v.NAME.new` and its gradient.
pub fn differentiate(module: &Module, optimizer: &AdamW) -> Result<Module, AutodiffError> {
    step::build(module, optimizer)
}

//! What one rank does for a function of the forward module: products, attention, loops and messages, in the
//! forward and in the backward.
//!
//! [`profile`] walks the nodes of a function once. A node's rule names its factors; the roles of the mesh axes
//! say which factor each splits (`roles`), so local sizes follow. Where a value's state is not the one that
//! its reader wants there is a message (`messages`); its transpose is in the backward. Neighbouring loops
//! are one kernel where the stack fuses them (`loops`).
//!
//! A profile holds sizes, never times: it is the same for every device, and is priced by [`crate::predict`].
//! Sizes are real numbers, because a share need not be whole.

mod batch;
mod explain;
mod forward;
mod live;
pub(crate) mod loops;
mod messages;
mod recompute;
mod roles;
mod route;
mod saved;
#[cfg(test)]
mod tests;
mod walk;

pub use batch::between;
pub use explain::{explain, Carried, Explained, Holding, Left};
pub use forward::Forward;
pub use recompute::{Part, Recompute};
pub use roles::Shards;
pub use saved::{saved, Held, Peak, Saved, Storage};
pub use walk::profile;

use autoshard_cost::collectives::Kind;
use autoshard_cost::kernels::{Attention, Product};

/// Ranks that exchange a message inside a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Axis {
    /// Tensor (and sequence) parallel ranks.
    Tp,
    /// Context-parallel ranks.
    Cp,
    /// Expert-parallel ranks.
    Ep,
    /// Tensor-parallel ranks of an expert.
    Etp,
}

impl Axis {
    /// As the command line names it.
    pub fn name(self) -> &'static str {
        match self {
            Axis::Tp => "tp",
            Axis::Cp => "cp",
            Axis::Ep => "ep",
            Axis::Etp => "etp",
        }
    }
}

/// How context parallelism brings keys to queries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Context {
    /// Keys and values travel around a ring while attention works on those that are here.
    #[default]
    Ring,
    /// All-to-alls turn a split of positions into a split of heads, and back (DeepSpeed-Ulysses).
    Ulysses,
    /// Keys and values are gathered before attention (Llama 3).
    Gather,
}

/// What a message may hide behind, besides what the stack overlaps anyway.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Behind {
    /// Nothing: the next kernel needs it.
    Nothing,
    /// A product that is independent of it and runs at the same time (Megatron's asynchronous gather and
    /// reduction of the backward), or the product that it feeds or follows, piece by piece.
    Product(Product),
    /// The steps of ring attention.
    Attention,
}

/// A message between the ranks of an axis.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Message {
    /// What they do.
    pub kind: Kind,
    /// Who.
    pub axis: Axis,
    /// The whole buffer, as [`autoshard_cost::collectives`] counts; for a send, what one rank sends.
    pub bytes: f64,
    /// How many of them.
    pub count: f64,
    /// What it may hide behind without the stack's help.
    pub behind: Behind,
    /// The product that it feeds or follows: what tensor-parallel overlap splits into pieces.
    pub beside: Option<Product>,
    /// For tokens on their way to experts, how their copies share ways, where the stack sends one for several.
    pub spread: Option<Spread>,
}

/// Copies of a token for its experts, of which one is sent where several go the same way.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    /// Experts.
    pub experts: f64,
    /// Copies of a token: the experts that it goes to.
    pub copies: f64,
}

impl Spread {
    /// Messages over copies, when `places` hold as many experts each and a token's experts are any of them: the
    /// expected number of places that hold at least one, over the copies.
    pub fn share(&self, places: f64) -> f64 {
        let each = self.experts / places.max(1.0);
        let whole = self.copies.ceil().max(1.0) as u64;
        let without = |i: u64| ((self.experts - each - i as f64) / (self.experts - i as f64)).max(0.0);
        let missed: f64 = (0..whole).map(without).product();
        (places * (1.0 - missed) / whole as f64).min(1.0)
    }
}

/// One piece of work.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Work {
    /// A product; `weights` where one operand is a parameter (what low precision applies to).
    Product {
        /// Its sizes. The format is bf16 here; the price sets it.
        product: Product,
        /// Whether low-precision formats apply.
        weights: bool,
    },
    /// Attention, `count` kernels of it.
    Attention {
        /// One kernel.
        attention: Attention,
        /// How many.
        count: f64,
    },
    /// Loops over memory.
    Loop {
        /// Bytes read and written.
        bytes: f64,
        /// Kernels.
        launches: f64,
    },
    /// A message.
    Message(Message),
}

/// A piece of work and the value that it makes.
#[derive(Clone, Debug, PartialEq)]
pub struct Item {
    /// Name of the node's first result.
    pub value: String,
    /// What is to be done.
    pub work: Work,
    /// Whether it is of experts: what ep and etp change.
    pub expert: bool,
}

impl Item {
    /// Work that is not of experts.
    pub(crate) fn new(value: String, work: Work) -> Item {
        Item { value, work, expert: false }
    }
}

/// A function's trainable parameters, as one rank uses them.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Parameters {
    /// Elements on this rank, experts not counted.
    pub dense: f64,
    /// Elements of experts on this rank.
    pub expert: f64,
    /// Tensors.
    pub tensors: f64,
}

/// One rank's share of a function, for one micro-batch.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Profile {
    /// Name of the function.
    pub function: String,
    /// In order.
    pub forward: Vec<Item>,
    /// What is computed again before the backward.
    pub recompute: Vec<Item>,
    /// Cotangents of activations, and everything else that they need.
    pub backward_input: Vec<Item>,
    /// Cotangents of parameters.
    pub backward_weight: Vec<Item>,
    /// Parameters.
    pub parameters: Parameters,
    /// FLOPs of the forward of all ranks that share the micro-batch, products without attention.
    pub product_flops: f64,
    /// FLOPs of attention's forward over all scores, of the same ranks.
    pub attention_flops: f64,
    /// The same, of the scores that are not masked.
    pub attention_flops_causal: f64,
    /// Bytes of the activation that goes to the next function, on one rank.
    pub boundary_bytes: f64,
}

impl Profile {
    /// The lists that a walk makes.
    fn lists(&mut self) -> [&mut Vec<Item>; 3] {
        [&mut self.forward, &mut self.backward_input, &mut self.backward_weight]
    }
}

/// Why a function has no profile.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ProfileError {
    /// A node whose rule does not hold.
    #[error("@{function}: %{value}: {message}")]
    Node {
        /// Function.
        function: String,
        /// First result of the node.
        value: String,
        /// What is wrong.
        message: String,
    },
}

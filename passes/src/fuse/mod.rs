//! Fusion: the nodes of a local function become units, each executed at once. A group of nodes is one
//! kernel; a collective or a call is a unit of its own.
//!
//! Every node is lowered by itself first; fusion then works on kernels, whose views name the
//! function's values. So what may be fused is decided by loops and strides, never by operations, and
//! an operation needs to know nothing of it. In order:
//!
//! 1. `products`: a sum whose operand is a product that nobody else reads becomes that product's
//!    start; products that contract a shared operand over the same loops become one kernel.
//! 2. `nests`: a loop nest that reads what another one writes, point by point, joins it.
//! 3. `epilogue`: nests that work row by row on the results of products follow them.
//! 4. `nests` again: nests of the same form become one launch.
//!
//! Each step merges a pair of groups only if no path leads from one to the other through a third.
//!
//! Invariant: fused nests compute the same bits as separate ones. Only a product that adds to
//! something rounds differently than a product and a sum.

mod drafts;
mod epilogue;
mod listing;
mod nests;
mod products;
mod units;

pub use listing::{list, summary, Summary};

use crate::lower::LowerError;
use autoshard_ir::core::{Function, NodeId, ValueId};
use autoshard_ir::kernel::Kernel;
use autoshard_ir::Mesh;
use drafts::Drafts;

/// What is fused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fusion {
    /// Loop nests with loop nests.
    pub loops: bool,
    /// Products that share an operand, sums into their products.
    pub products: bool,
    /// Loop nests into the products before them, row panel by row panel.
    pub epilogues: bool,
}

impl Fusion {
    /// Everything.
    pub const ALL: Fusion = Fusion { loops: true, products: true, epilogues: true };
    /// Loop nests alone.
    pub const LOOPS: Fusion = Fusion { loops: true, products: false, epilogues: false };
    /// One kernel a node.
    pub const NONE: Fusion = Fusion { loops: false, products: false, epilogues: false };

    /// The named levels.
    pub const LEVELS: [(&'static str, Fusion); 3] =
        [("all", Fusion::ALL), ("loops", Fusion::LOOPS), ("none", Fusion::NONE)];

    /// The level of this name.
    pub fn from_name(name: &str) -> Option<Fusion> {
        Fusion::LEVELS.into_iter().find(|(n, _)| *n == name).map(|(_, f)| f)
    }
}

/// Something that is executed at once.
#[derive(Clone, Debug, PartialEq)]
pub struct Unit {
    /// What.
    pub work: Work,
    /// Its nodes, in the function's order.
    pub nodes: Vec<NodeId>,
    /// Values that it reads and does not compute.
    pub inputs: Vec<ValueId>,
    /// Values that it writes to memory.
    pub results: Vec<ValueId>,
}

/// Kinds of unit.
#[derive(Clone, Debug, PartialEq)]
pub enum Work {
    /// A kernel; its operands are the unit's inputs, its results the unit's results.
    Kernel(Box<Kernel>),
    /// Communication.
    Collective(NodeId),
    /// A call.
    Call(NodeId),
}

/// The units of a local function, in an order in which they can be executed.
pub fn fuse(f: &Function, mesh: &Mesh, fusion: &Fusion) -> Result<Vec<Unit>, LowerError> {
    let mut drafts = Drafts::new(f, mesh)?;
    if fusion.products {
        products::start_from_sums(&mut drafts);
        products::join(&mut drafts);
    }
    if fusion.loops {
        nests::chain(&mut drafts);
    }
    if fusion.epilogues {
        epilogue::attach(&mut drafts);
    }
    if fusion.loops {
        nests::batch(&mut drafts);
    }
    Ok(units::finish(drafts))
}

#[cfg(test)]
mod tests;

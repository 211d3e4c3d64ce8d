//! Fusion: the nodes of a local function become units, each executed at once. A group of nodes is one
//! kernel; a collective or a call is a unit of its own.

use crate::lower::{self, LowerError};
use autoshard_ir::core::{Function, NodeId, Semantics, ValueId};
use autoshard_ir::kernel::Kernel;
use autoshard_ir::Mesh;

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
}

/// Something that is executed at once.
#[derive(Clone, Debug)]
pub struct Unit {
    /// What.
    pub work: Work,
    /// Its nodes, in the function's order.
    pub nodes: Vec<NodeId>,
    /// Values that it reads and does not compute.
    pub inputs: Vec<ValueId>,
    /// Values of it that others read, or that the function returns.
    pub results: Vec<ValueId>,
}

/// Kinds of unit.
#[derive(Clone, Debug)]
pub enum Work {
    /// A kernel; its operands are the unit's inputs, its results the unit's results.
    Kernel(Kernel),
    /// Communication.
    Collective(NodeId),
    /// A call.
    Call(NodeId),
}

/// The units of a local function, in an order in which they can be executed.
pub fn fuse(f: &Function, mesh: &Mesh, _fusion: &Fusion) -> Result<Vec<Unit>, LowerError> {
    f.node_ids().map(|n| unit(f, n, mesh)).collect()
}

/// The unit of a single node.
fn unit(f: &Function, n: NodeId, mesh: &Mesh) -> Result<Unit, LowerError> {
    let node = f.node(n);
    let work = match node.op.semantics {
        Semantics::Call => Work::Call(n),
        Semantics::Collective => Work::Collective(n),
        _ => Work::Kernel(lower::lower(f, node, mesh)?),
    };
    Ok(Unit { work, nodes: vec![n], inputs: node.inputs.clone(), results: node.results.clone() })
}

//! Plans: decisions only, never costs.

use crate::core::Strategy;
use crate::mesh::Mesh;
use std::collections::BTreeMap;

/// Where every tensor and every node of a module lives.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// Mesh, sub-axes cut.
    pub mesh: Mesh,
    /// Sequence parallelism over the tensor axis outside tensor-parallel regions.
    pub sequence_parallel: bool,
    /// Strategies by function name, then by the name of the node's first result.
    pub strategies: BTreeMap<String, BTreeMap<String, Strategy>>,
    /// Stored state of the entry's parameters and inputs: per name, axes by dimension.
    pub stored: BTreeMap<String, Vec<Vec<crate::core::Axis>>>,
}

//! Why a layout has no meaning.

/// Why a group cannot be placed.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum LayoutError {
    /// An axis that splits nothing.
    #[error("the mesh axis {axis} has size 0; an axis has at least 1 rank (leave it out for 1)")]
    EmptyAxis {
        /// Its name.
        axis: String,
    },
    /// Two axes of one name.
    #[error("the mesh axis {axis} is given twice; give each axis once")]
    TwiceAxis {
        /// The name.
        axis: String,
    },
    /// A group over an axis that is not there.
    #[error("a group names the mesh axis {axis}, which is none of {known}")]
    UnknownAxis {
        /// What the group names.
        axis: String,
        /// The axes that there are.
        known: String,
    },
    /// The sizes multiply to more than a 64-bit number.
    #[error("the mesh {mesh} has more ranks than can be counted (2^64); use smaller axes")]
    TooManyRanks {
        /// The axes.
        mesh: String,
    },
    /// Sizes that do not divide each other and are too large to be looked at one by one.
    #[error("the mesh and the tier {tier} do not divide each other, and over {most} ranks would have to be looked at; use axes that divide the tier's devices")]
    Uncountable {
        /// The tier.
        tier: String,
        /// The most ranks that are.
        most: u64,
    },
    /// A cluster without tiers.
    #[error("the cluster {cluster} has no tiers; it needs at least one that joins its devices")]
    NoTiers {
        /// Its name.
        cluster: String,
    },
    /// An inner tier of any size.
    #[error("the tier {tier} of the cluster {cluster} has no fan-out; only the last tier may be unbounded")]
    Unbounded {
        /// The cluster.
        cluster: String,
        /// The tier.
        tier: String,
    },
    /// A tier that joins nothing.
    #[error("the tier {tier} of the cluster {cluster} has fan-out 0; a tier joins at least 1 member")]
    ZeroFanout {
        /// The cluster.
        cluster: String,
        /// The tier.
        tier: String,
    },
}

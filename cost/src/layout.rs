//! Where the ranks of a group sit on a cluster's tiers.

/// The ranks of a group, seen from each tier, innermost first.
///
/// A group of `size` ranks touches `members[t]` members of tier t−1 within each member of tier t that it
/// touches, so the product of `members` is `size`.
#[derive(Clone, Debug, PartialEq)]
pub struct Placement {
    /// Ranks in the group.
    pub size: u64,
    /// Per tier of the cluster, innermost first.
    pub spans: Vec<Span>,
}

/// One tier's part of a [`Placement`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Span {
    /// Members of the tier below that one group joins here; 1 where it does not cross this tier.
    pub members: u64,
    /// Bytes/s that one rank of the group can send across this tier, in one direction, while all other
    /// groups of the same axes do the same: bandwidth of a device over oversubscription, and over the ranks
    /// that share an interface.
    pub bandwidth: f64,
    /// Seconds of one step across this tier.
    pub latency: f64,
}

impl Placement {
    /// The outermost tier that the group crosses; `None` for a group of one.
    pub fn outermost(&self) -> Option<usize> {
        self.spans.iter().rposition(|s| s.members > 1)
    }
}

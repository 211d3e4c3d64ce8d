//! Times of collectives between the ranks of a group.
//!
//! `bytes` is always the whole buffer, as nccl-tests counts: what an all-gather ends with, what a
//! reduce-scatter starts with, what one rank sends in an all-to-all (its own part included).

/// What the ranks do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Everyone ends with the sum.
    AllReduce,
    /// Everyone ends with all parts.
    AllGather,
    /// Everyone ends with its part of the sum.
    ReduceScatter,
    /// Everyone sends a part to everyone.
    AllToAll,
    /// One rank sends to its neighbour while it receives from the other (pipelines, rings).
    SendRecv,
}

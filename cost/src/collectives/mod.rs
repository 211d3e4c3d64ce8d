//! Times of collectives between the ranks of a group.
//!
//! `bytes` is always the whole buffer, as nccl-tests counts: what an all-gather ends with, what a
//! reduce-scatter starts with, what one rank sends in an all-to-all (its own part included). For a
//! send/receive it is the message.
//!
//! Inside a node (or any domain that a scale-up fabric or PCI Express joins) a time is a [`law`] with ten
//! constants, fitted to the device's measured [`table`] by [`fit`], times what is left over, interpolated in
//! log(bytes) and log(ranks) by [`kriging`], on a [`grid`] on which times never fall when bytes or ranks
//! grow. Where no table is known the law stands alone, with bandwidths from the links. Between nodes a time
//! is [`network`]'s: the fastest of the ways that NCCL knows, over the links that the group really has.
//! [`evaluate`] says how well all of this does on rows that it was not given.
//!
//! ```
//! use autoshard_cost::collectives::Kind;
//! assert_eq!(Kind::AllReduce.wire(8.0), 2.0 * Kind::AllGather.wire(8.0));
//! ```

pub mod curve;
pub mod evaluate;
pub mod fit;
pub mod grid;
pub mod kriging;
pub mod law;
pub mod network;
mod place;
pub mod table;
mod text;

#[cfg(test)]
mod tests;

pub use place::{Collectives, InNode};
pub use table::{DeviceTable, Row, TableError, Tables};

use crate::kernels::How;
use std::fmt;

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

impl Kind {
    /// The kinds that tables have, in the order of their indices.
    pub const MEASURED: [Kind; 4] = [Kind::AllReduce, Kind::AllGather, Kind::ReduceScatter, Kind::AllToAll];

    /// Name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Kind::AllReduce => "all_reduce",
            Kind::AllGather => "all_gather",
            Kind::ReduceScatter => "reduce_scatter",
            Kind::AllToAll => "alltoall",
            Kind::SendRecv => "sendrecv",
        }
    }

    /// The kind of this name, with or without the underscores and the `_perf` of nccl-tests.
    pub fn from_name(name: &str) -> Option<Kind> {
        let plain = |s: &str| s.to_ascii_lowercase().replace('_', "");
        let wanted = plain(name.strip_suffix("_perf").unwrap_or(name));
        [Kind::SendRecv].into_iter().chain(Kind::MEASURED).find(|k| plain(k.name()) == wanted)
    }

    /// Bytes that a rank sends over the bytes of the buffer, in a ring (nccl-tests, doc/PERFORMANCE.md):
    /// bus bandwidth = bytes × wire / seconds.
    pub fn wire(self, ranks: f64) -> f64 {
        match self {
            Kind::AllReduce => 2.0 * (ranks - 1.0) / ranks,
            Kind::AllGather | Kind::ReduceScatter | Kind::AllToAll => (ranks - 1.0) / ranks,
            Kind::SendRecv => 1.0,
        }
    }

    /// Messages one after the other: the steps of a ring, the peers of an all-to-all.
    pub fn steps(self, ranks: f64) -> f64 {
        match self {
            Kind::AllReduce => 2.0 * (ranks - 1.0),
            Kind::AllGather | Kind::ReduceScatter | Kind::AllToAll => ranks - 1.0,
            Kind::SendRecv => 1.0,
        }
    }

    /// Index into tables by kind; `None` for a send/receive, which has none.
    pub(crate) fn index(self) -> Option<usize> {
        Kind::MEASURED.iter().position(|k| *k == self)
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// How the ranks do it, as far as the model tells it apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Algorithm {
    /// Nothing to do: a group of one.
    None,
    /// A ring, low-latency protocol (4 bytes of data and 4 of flag).
    RingLowLatency,
    /// A ring, 128-byte low-latency protocol.
    RingLow128,
    /// A ring, plain copies with a handshake.
    Ring,
    /// A tree over nodes, low-latency protocol.
    TreeLowLatency,
    /// A tree over nodes, plain copies.
    Tree,
    /// The scale-up switch adds up.
    Nvls,
    /// The scale-up switch adds up in a node, a tree joins the nodes.
    NvlsTree,
    /// The network's switches add up.
    Sharp,
    /// All pairs, each on its own.
    Pairwise,
    /// Rings along the axes of a torus, in both directions.
    TorusRings,
    /// One message to the next rank.
    Message,
}

/// A time, and where it came from.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    /// Seconds.
    pub seconds: f64,
    /// How far from a measurement.
    pub how: How,
    /// What is fastest.
    pub algorithm: Algorithm,
    /// The outermost tier that the group crosses, as an index into the cluster's tiers.
    pub tier: usize,
    /// Share of that tier's bandwidth of a device that is in use while the collective runs, 0–1.
    pub load: f64,
}

//! Collectives between nodes: the ways that NCCL knows, over the links that a group has.
//!
//! A group of g ranks has q on each of K nodes. Its data enters and leaves a node over `rails` of the q network
//! interfaces, so the *bus* of a ring or tree is rails × the bandwidth of one rank. Latencies are those of
//! NCCL's tuner (src/graph/tuning.cc): a ring takes its steps one after the other, of which one in q crosses
//! the network; a tree goes up and down once. What an operation takes is the fastest way.
//! The part inside the nodes runs at the same time (it is pipelined); [`super::Collectives`] takes the larger.

use super::{Algorithm, Kind};

/// Constants of the network. Seconds, shares; low latency first, plain copies second where there are two.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NetworkConstants {
    /// Share of an interface's nominal bandwidth that large messages reach.
    pub efficiency: f64,
    /// Most interfaces of a node that one group uses at once.
    pub rails: f64,
    /// Seconds that any operation across the network takes more than NCCL's tuner says.
    pub entry: f64,
    /// Fixed seconds of a ring.
    pub ring_fixed: [f64; 2],
    /// Seconds of a ring's step inside a node.
    pub ring_step: [f64; 2],
    /// Seconds of a ring's step over the network, over the tier's latency.
    pub ring_hop: [f64; 2],
    /// Fixed seconds of a tree.
    pub tree_fixed: [f64; 2],
    /// Seconds of a tree's step inside a node.
    pub tree_step: [f64; 2],
    /// Seconds of a tree's level, over the tier's latency.
    pub tree_hop: [f64; 2],
    /// Bandwidth of low-latency messages over that of plain copies.
    pub low_latency: f64,
    /// Bandwidth of a tree over a ring's.
    pub tree_bandwidth: f64,
    /// Fixed seconds of a reduction in the switches of the nodes, joined by a tree.
    pub nvls_tree_fixed: f64,
    /// Seconds of a level of that tree, over the tier's latency.
    pub nvls_tree_hop: f64,
    /// Fixed seconds of a reduction in the network's switches.
    pub sharp_fixed: f64,
    /// Fixed seconds of a logarithmic gather or scatter between single ranks of nodes.
    pub pat_fixed: f64,
    /// Its bandwidth over a ring's.
    pub pat_bandwidth: f64,
    /// Seconds for each peer of an all-to-all.
    pub peer: f64,
}

/// The links of one group. The network's tiers count once, as the slowest of them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Links {
    /// Ranks on each node.
    pub local: f64,
    /// Nodes.
    pub nodes: f64,
    /// Nominal bytes/s of a ring of all the group's ranks over the network.
    pub bus: f64,
    /// Nominal bytes/s at which one rank sends to ranks of other nodes, all pairs at once.
    pub pairs: f64,
    /// Nominal bytes/s at which one rank sends one message.
    pub message: f64,
    /// Seconds of a plain message's step.
    pub hop: f64,
    /// Whether the switches of the nodes add up.
    pub nvls: bool,
    /// Whether the network's switches add up.
    pub sharp: bool,
}

/// A time across the network.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Crossing {
    /// Seconds.
    pub seconds: f64,
    /// The fastest way.
    pub algorithm: Algorithm,
}

/// No way at all.
const NONE: Crossing = Crossing { seconds: f64::INFINITY, algorithm: Algorithm::None };

/// The faster of two ways. No smooth minimum here: several ways are equally fast at large sizes, and a smooth
/// one would count that as faster than each.
fn faster(a: Crossing, b: Crossing) -> Crossing {
    if b.seconds < a.seconds {
        b
    } else {
        a
    }
}

/// Seconds of an operation between nodes, the part inside them left out.
pub fn crossing(kind: Kind, bytes: f64, on: &Links, of: &NetworkConstants) -> Crossing {
    match kind {
        Kind::AllReduce => all_reduce(bytes, on, of),
        Kind::AllGather | Kind::ReduceScatter => gather(kind, bytes, on, of),
        Kind::AllToAll => all_to_all(bytes, on, of),
        Kind::SendRecv => message(bytes, on, of),
    }
}

fn all_reduce(bytes: f64, on: &Links, of: &NetworkConstants) -> Crossing {
    let bus = on.bus * of.efficiency;
    let mut best = NONE;
    for (i, (ring_way, tree_way)) in
        [(Algorithm::RingLowLatency, Algorithm::TreeLowLatency), (Algorithm::Ring, Algorithm::Tree)]
            .into_iter()
            .enumerate()
    {
        best = faster(best, Crossing { algorithm: ring_way, seconds: ring(Kind::AllReduce, i, bytes, on, of) });
        let inside = (on.local - 1.0) * of.tree_step[i];
        let latency = of.entry + of.tree_fixed[i] + 2.0 * (inside + on.nodes.log2() * on.hop * of.tree_hop[i]);
        let rate = bus * if i == 0 { of.low_latency } else { of.tree_bandwidth };
        best = faster(best, Crossing { algorithm: tree_way, seconds: latency + 2.0 * bytes / rate });
    }
    if on.nvls {
        // Interfaces of a leaf carry the buffer up and down once, those of an inner node twice; two nodes and
        // three have no inner node in both of the trees (SimAI calbusbw.cc: 2 and 4/3 of the bus).
        let passes = (on.nodes / 2.0).clamp(1.0, 2.0);
        let latency = of.entry + of.nvls_tree_fixed + 2.0 * on.nodes.log2() * on.hop * of.nvls_tree_hop;
        best = faster(best, Crossing { algorithm: Algorithm::NvlsTree, seconds: latency + passes * bytes / bus });
    }
    if on.sharp {
        // Measured at a ring's bandwidth (64 H100, 384 GB/s of bus): what it saves is latency.
        let latency = of.entry + of.sharp_fixed + 2.0 * on.hop;
        best = faster(
            best,
            Crossing {
                algorithm: Algorithm::Sharp,
                seconds: latency + bytes * Kind::AllReduce.wire(on.local * on.nodes) / bus,
            },
        );
    }
    best
}

fn gather(kind: Kind, bytes: f64, on: &Links, of: &NetworkConstants) -> Crossing {
    let mut best = NONE;
    best = faster(best, Crossing { algorithm: Algorithm::RingLowLatency, seconds: ring(kind, 0, bytes, on, of) });
    best = faster(best, Crossing { algorithm: Algorithm::Ring, seconds: ring(kind, 1, bytes, on, of) });
    if on.local == 1.0 {
        let latency = of.entry + of.pat_fixed + on.nodes.log2() * on.hop;
        let bus = on.bus * of.efficiency * of.pat_bandwidth;
        best =
            faster(best, Crossing { algorithm: Algorithm::Tree, seconds: latency + bytes * kind.wire(on.nodes) / bus });
    }
    best
}

/// Seconds of a ring through all ranks; `way` 0 is low latency, 1 plain copies.
fn ring(kind: Kind, way: usize, bytes: f64, on: &Links, of: &NetworkConstants) -> f64 {
    let ranks = on.local * on.nodes;
    let hops = kind.steps(on.nodes);
    let latency = (kind.steps(ranks) - hops) * of.ring_step[way] + hops * on.hop * of.ring_hop[way];
    let rate = on.bus * of.efficiency * if way == 0 { of.low_latency } else { 1.0 };
    of.entry + of.ring_fixed[way] + latency + bytes * kind.wire(ranks) / rate
}

fn all_to_all(bytes: f64, on: &Links, of: &NetworkConstants) -> Crossing {
    let ranks = on.local * on.nodes;
    let away = ranks - on.local;
    let latency = of.entry + of.ring_fixed[1] + on.hop + of.peer * away;
    let seconds = latency + bytes * away / ranks / (on.pairs * of.efficiency);
    Crossing { seconds, algorithm: Algorithm::Pairwise }
}

fn message(bytes: f64, on: &Links, of: &NetworkConstants) -> Crossing {
    let mut best = NONE;
    for way in [0, 1] {
        let rate = on.message * of.efficiency * if way == 0 { of.low_latency } else { 1.0 };
        best = faster(
            best,
            Crossing {
                algorithm: Algorithm::Message,
                seconds: of.entry + of.ring_fixed[way] + on.hop * of.ring_hop[way] + bytes / rate,
            },
        );
    }
    best
}

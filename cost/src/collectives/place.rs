//! Collectives of a cluster: which model answers for which group.

use super::curve::{curves, Curve, Point};
use super::law::{Fabric, Law};
use super::network::{crossing, Links};
use super::table::{Constants, DeviceTable, Tables};
use super::{Algorithm, Estimate, Kind, Row};
use crate::cluster::{Cluster, Medium};
use crate::kernels::How;
use crate::layout::{Placement, Span};

/// Times inside one kind of node, by operation and ranks alone.
#[derive(Clone, Debug)]
pub struct InNode {
    curves: [Option<Curve>; 4],
}

impl InNode {
    /// Curves of a device's table, as it was measured.
    pub fn new(table: &DeviceTable, domain: u64, of: &Constants) -> InNode {
        InNode { curves: curves(table, 1.0, false, domain, of) }
    }

    /// Seconds of an operation between ranks of one node; `None` where the table has no rows of it. A send and
    /// receive is an all-to-all of two whose halves are the message.
    pub fn point(&self, kind: Kind, ranks: f64, bytes: f64) -> Option<Point> {
        match kind.index() {
            Some(i) => Some(self.curves[i].as_ref()?.point(ranks, bytes)),
            None => {
                let point = self.curves[3].as_ref()?.point(2.0, 2.0 * bytes);
                Some(Point { algorithm: Algorithm::Message, ..point })
            }
        }
    }

    /// The law of an operation.
    pub fn law(&self, kind: Kind) -> Option<&Law> {
        Some(&self.curves[kind.index()?].as_ref()?.law)
    }
}

/// Bus bandwidth of the largest all-reduce that a table holds, bytes/s; its nominal rate where it holds none.
fn reached(table: &DeviceTable) -> f64 {
    let largest = table.rows.iter().filter(|r| r.kind == Kind::AllReduce && r.nodes == 1);
    let largest = largest.max_by(|a, b| a.bytes.total_cmp(&b.bytes));
    largest.map_or(table.nominal, |r| r.bytes * Kind::AllReduce.wire(r.ranks as f64) / r.seconds)
}

/// What a tier is, as far as collectives ask.
#[derive(Clone, Debug)]
struct TierKind {
    medium: Medium,
    adds: bool,
    axes: Vec<u64>,
    /// Bytes/s of a device over all links of the tier.
    bandwidth: f64,
}

/// A user's measurements of one operation of one group, which stand for themselves.
#[derive(Clone, Debug)]
struct Own {
    kind: Kind,
    ranks: u64,
    nodes: u64,
    /// (log2 bytes, log2 seconds), ascending in both.
    points: Vec<(f64, f64)>,
}

/// Times of all collectives of a cluster.
#[derive(Clone, Debug)]
pub struct Collectives {
    constants: Constants,
    tiers: Vec<TierKind>,
    in_node: Option<InNode>,
    own: Vec<Own>,
}

impl Collectives {
    /// Fits the tables to a cluster. A related device's table, or the device's own on other links than it was
    /// measured on, is scaled by the bandwidth of the innermost tier.
    pub fn new(cluster: &Cluster, tables: Tables) -> Collectives {
        let tiers = cluster.tiers.iter().map(|t| TierKind {
            medium: t.medium,
            adds: t.in_network_reduction,
            axes: t.torus.clone(),
            bandwidth: t.bandwidth.max(1.0),
        });
        let tiers: Vec<TierKind> = tiers.collect();
        let device = &cluster.device.id;
        let measured = matches!(tiers.first().map(|t| t.medium), Some(Medium::ScaleUp | Medium::Pcie));
        let fitted = |table: &DeviceTable, related: bool| {
            let ratio = ratio(table, cluster);
            curves(table, ratio, related || ratio != 1.0, domain(cluster), &tables.constants)
        };
        let found = tables.own(device).filter(|_| measured).map(|t| fitted(t, false));
        let other = tables.related(device).filter(|_| measured).map(|t| fitted(t, true));
        let in_node = match (found, other) {
            // What a user's rows leave out, a related device's table still says.
            (Some(own), Some(other)) => {
                let mut pairs = own.into_iter().zip(other);
                Some(InNode { curves: std::array::from_fn(|_| pairs.next().and_then(|(own, other)| own.or(other))) })
            }
            (one, two) => one.or(two).map(|curves| InNode { curves }),
        };
        let own = tables.own(device).map_or(Vec::new(), |table| own(&table.own));
        Collectives { constants: tables.constants, tiers, in_node, own }
    }

    /// Seconds of one collective of a group, alone on its links but for the other groups of the same axes.
    /// A group of one, or a group without bytes, takes none.
    pub fn seconds(&self, kind: Kind, placement: &Placement, bytes: f64) -> Estimate {
        let none = Estimate { seconds: 0.0, how: How::Interpolated, algorithm: Algorithm::None, tier: 0, load: 0.0 };
        let Some(tier) = placement.outermost().filter(|_| bytes > 0.0) else { return none };
        let network = |t: usize| self.tiers.get(t).is_some_and(|t| t.medium == Medium::Network);
        let first = (0..=tier).find(|t| placement.spans[*t].members > 1 && network(*t)).unwrap_or(tier + 1);
        let spans = &placement.spans[..=tier];
        let local: f64 = spans[..first.min(tier + 1)].iter().map(|s| s.members as f64).product();
        let ranks = spans.iter().map(|s| s.members as f64).product::<f64>();
        let model = |bytes: f64| {
            if first > tier {
                let point = self.inside(kind, spans, ranks, bytes);
                let nvls = point.algorithm == Algorithm::Nvls;
                (point, if nvls { 1.0 + 1.0 / ranks } else { kind.wire(ranks) })
            } else {
                self.between(kind, spans, first, local, ranks, bytes)
            }
        };
        let (mut point, sent) = model(bytes);
        if let Some(own) = self.own.iter().find(|o| o.is_of(kind, ranks, ranks / local)) {
            point = own.point(bytes, point.algorithm, |bytes| model(bytes).0.seconds);
        }
        let load = (bytes * sent / point.seconds / spans[tier].bandwidth).clamp(0.0, 1.0);
        Estimate { seconds: point.seconds, how: point.how, algorithm: point.algorithm, tier, load }
    }

    /// A group that stays inside scale-up fabrics and PCI Express.
    fn inside(&self, kind: Kind, spans: &[Span], ranks: f64, bytes: f64) -> Point {
        let outer = spans.iter().rposition(|s| s.members > 1).unwrap_or(0);
        let tier = &self.tiers[outer.min(self.tiers.len() - 1)];
        if tier.medium == Medium::Torus {
            return torus(kind, &spans[outer], tier, ranks, bytes);
        }
        let measured = self.in_node.as_ref().and_then(|n| n.point(kind, ranks, bytes));
        measured.unwrap_or_else(|| self.generic(kind, spans, outer, ranks, bytes))
    }

    /// The law alone, on the bandwidths and latencies of the tiers.
    fn generic(&self, kind: Kind, spans: &[Span], outer: usize, ranks: f64, bytes: f64) -> Point {
        let of = &self.constants.law;
        let tier = &self.tiers[outer.min(self.tiers.len() - 1)];
        let (bus, _) = rates(kind, spans, ranks, 1.0);
        let step = spans.iter().filter(|s| s.members > 1).map(|s| s.latency).fold(0.0, f64::max);
        if tier.medium == Medium::Shared {
            // Threads copy from each other: nothing between a step and a transfer.
            let seconds = kind.steps(ranks) * step + bytes * kind.wire(ranks) / bus;
            return Point { seconds, how: How::Roofline, algorithm: Algorithm::Ring };
        }
        let (fabric, efficiency, usual) = match tier.medium {
            Medium::Pcie => (Fabric::Pcie, of.pcie_efficiency, of.pcie_latency),
            _ => (Fabric::Switch { nvls: tier.adds.then_some(of.nvls_share) }, of.switch_efficiency, of.switch_latency),
        };
        let law_kind = if kind == Kind::SendRecv { Kind::AllToAll } else { kind };
        let mut law = Law::prior(law_kind, fabric, bus * efficiency, of);
        for p in &mut law.protocols {
            p.step *= step / usual;
        }
        if spans.iter().filter(|s| s.members > 1).count() > 1 {
            law.scaling = 0.0; // Tiers say themselves how bandwidth falls with ranks.
        }
        let (g, bytes) = if kind == Kind::SendRecv { (2.0, 2.0 * bytes) } else { (ranks, bytes) };
        let (seconds, algorithm) = law.fastest(g, bytes, of);
        Point { seconds, how: How::Roofline, algorithm }
    }

    /// A group that crosses the network, and bytes that a rank sends over its outermost tier per byte of buffer.
    fn between(&self, kind: Kind, spans: &[Span], first: usize, local: f64, ranks: f64, bytes: f64) -> (Point, f64) {
        let of = &self.constants.network;
        let nodes = ranks / local;
        let outer = &spans[first..];
        let (bus, pairs) = rates(kind, outer, nodes, of.rails.min(local));
        let crossed = || outer.iter().filter(|s| s.members > 1);
        let adds = |t: usize| self.tiers[t].adds;
        let links = Links {
            local,
            nodes,
            bus,
            pairs,
            message: crossed().map(|s| s.bandwidth).fold(f64::INFINITY, f64::min),
            hop: crossed().map(|s| s.latency).fold(0.0, f64::max),
            nvls: local >= self.constants.law.nvls_ranks && (0..first).any(adds),
            sharp: (first..spans.len()).filter(|t| spans[*t].members > 1).all(adds),
        };
        let crossing = crossing(kind, bytes, &links, of);
        // What the interfaces of one rank carry: the ring's bytes are the node's, shared by its ranks.
        let sent = match kind {
            Kind::AllToAll => (ranks - local) / ranks,
            Kind::SendRecv => 1.0,
            _ => kind.wire(ranks) / local,
        };
        let mut seconds = crossing.seconds;
        if local > 1.0 && kind != Kind::SendRecv {
            let share = if kind == Kind::AllToAll { local / ranks } else { 1.0 };
            seconds = seconds.max(self.inside(kind, &spans[..first], local, bytes * share).seconds);
        }
        (Point { seconds, how: How::Roofline, algorithm: crossing.algorithm }, sent)
    }
}

impl Own {
    fn is_of(&self, kind: Kind, ranks: f64, nodes: f64) -> bool {
        self.kind == kind && self.ranks as f64 == ranks && self.nodes as f64 == nodes
    }

    /// Between two sizes along a line in the logarithms; beyond them as the model goes on from the last.
    fn point(&self, bytes: f64, algorithm: Algorithm, model: impl Fn(f64) -> f64) -> Point {
        let x = bytes.log2();
        let above = self.points.partition_point(|p| p.0 < x);
        let beyond = |end: (f64, f64)| (end.1.exp2() * model(bytes) / model(end.0.exp2()), How::Extrapolated);
        let (seconds, how) = match (above.checked_sub(1).map(|i| self.points[i]), self.points.get(above)) {
            (_, Some(b)) if b.0 == x => (b.1.exp2(), How::Interpolated),
            (Some(a), Some(b)) => ((a.1 + (x - a.0) / (b.0 - a.0) * (b.1 - a.1)).exp2(), How::Interpolated),
            (Some(end), None) => beyond(end),
            (None, Some(end)) => beyond(*end),
            (None, None) => (model(bytes), How::Roofline),
        };
        Point { seconds, how, algorithm }
    }
}

/// Nominal bytes/s of a ring through all ranks, and of a rank that sends to all ranks of other members.
///
/// A ring crosses tier t once for each of its members, over the links of all ranks below: those of one member of
/// the innermost tier (`rails`) times the members of the tiers between. So an outer tier limits a ring less than
/// its share of a device. Pairs cross a tier in proportion to the ranks beyond it. `members`: of all these tiers.
fn rates(kind: Kind, spans: &[Span], members: f64, rails: f64) -> (f64, f64) {
    let (mut bus, mut pairs, mut below) = (f64::INFINITY, f64::INFINITY, 1.0);
    let mut through = 1.0;
    for span in spans.iter().filter(|s| s.members > 1) {
        bus = f64::min(bus, rails * through * span.bandwidth);
        pairs = f64::min(pairs, span.bandwidth * (members - 1.0) / (members - below));
        through *= span.members as f64;
        below *= span.members as f64;
    }
    if kind == Kind::AllToAll {
        bus = pairs;
    }
    (bus, pairs)
}

/// Rings along the axes of a torus, in both directions.
///
/// The span's bandwidth is that of the links on the axes that the group has ([`Span::bandwidth`]): gathers and
/// reductions use all of them at once. In an all-to-all half of the data crosses the middle of an axis of n chips:
/// n/4 times the bytes of a rank over the axis's links (jax-ml/scaling-book, sharding: a quarter of a gather).
fn torus(kind: Kind, span: &Span, tier: &TierKind, ranks: f64, bytes: f64) -> Point {
    let all = tier.axes.len().max(1) as f64;
    let axes = (all * span.bandwidth / tier.bandwidth).round().clamp(1.0, all);
    let length = ranks.powf(1.0 / axes);
    let transfer = match kind {
        Kind::AllToAll => bytes * (length / 4.0) / (span.bandwidth / axes),
        Kind::SendRecv => bytes / (tier.bandwidth / all / 2.0),
        _ => bytes * kind.wire(ranks) / span.bandwidth,
    };
    let passes = if kind == Kind::AllReduce { 2.0 } else { 1.0 };
    let steps = if kind == Kind::SendRecv { 1.0 } else { passes * f64::max(axes * length / 2.0, 1.0) };
    Point { seconds: steps * span.latency + transfer, how: How::Roofline, algorithm: Algorithm::TorusRings }
}

/// Bandwidth of a cluster's innermost tier over what a table was measured on; 1 where they are alike.
fn ratio(table: &DeviceTable, cluster: &Cluster) -> f64 {
    match (table.fabric, cluster.tiers.first()) {
        (Fabric::Switch { .. }, Some(tier)) => {
            // A usable rate is what large messages reach, not what the links are sold as.
            let sold = if tier.effective { reached(table) } else { table.nominal };
            let ratio = tier.bandwidth / sold;
            if (ratio - 1.0).abs() > 0.02 {
                ratio
            } else {
                1.0
            }
        }
        // Nominal rates of PCI Express say little; the box that was measured says more.
        _ => 1.0,
    }
}

/// Devices of the tiers inside the network: how far grids must reach.
fn domain(cluster: &Cluster) -> u64 {
    let inside = cluster.tiers.iter().take_while(|t| t.medium != Medium::Network);
    inside.map(|t| t.fanout.unwrap_or(cluster.devices_per_node)).product()
}

/// A user's rows by operation and group; times that fall with bytes are raised to those before.
fn own(rows: &[Row]) -> Vec<Own> {
    let mut out: Vec<Own> = Vec::new();
    let mut rows: Vec<&Row> = rows.iter().collect();
    rows.sort_by(|a, b| a.bytes.total_cmp(&b.bytes));
    for r in rows {
        let same = |o: &Own| (o.kind, o.ranks, o.nodes) == (r.kind, r.ranks, r.nodes);
        let at = out.iter().position(same).unwrap_or_else(|| {
            out.push(Own { kind: r.kind, ranks: r.ranks, nodes: r.nodes, points: Vec::new() });
            out.len() - 1
        });
        let least = out[at].points.last().map_or(f64::NEG_INFINITY, |p| p.1);
        out[at].points.push((r.bytes.log2(), r.seconds.log2().max(least)));
    }
    out
}

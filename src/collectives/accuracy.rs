//! How well collectives are predicted: left-out rows, rank counts never seen, points across nodes.

use super::Error;
use autoshard_cost::cluster::{Cluster, Medium, Tier};
use autoshard_cost::collectives::evaluate::{left_out, more_ranks, score, Check, Score};
use autoshard_cost::collectives::{Collectives, DeviceTable, Estimate, Kind, TableError, Tables};
use autoshard_cost::device::{Device, ScaleUp};
use autoshard_cost::layout::{Placement, Span};
use std::fmt::Write;

/// Measurements across nodes, and beyond the tables inside one.
const POINTS: &str = include_str!("../../data/collectives/multi-node.csv");

/// Draws of the fifths that are left out, for which errors are pooled.
const SEEDS: u64 = 3;

/// One published measurement of a cluster.
#[derive(Clone, Debug, PartialEq)]
pub struct Published {
    /// Its name.
    pub name: String,
    /// The device.
    pub device: String,
    /// Ranks of the group on each node.
    pub local: u64,
    /// Nominal GB/s of a device inside its node, one direction.
    pub scale_up_gbs: f64,
    /// Nominal GB/s of network a device, one direction.
    pub nic_gbs: f64,
    /// Microseconds of one step over the network.
    pub latency_us: f64,
    /// Whether the node's switches add up.
    pub nvls: bool,
    /// Whether the network's switches add up.
    pub sharp: bool,
    /// The operation.
    pub kind: Kind,
    /// Ranks.
    pub ranks: u64,
    /// Nodes, or scale-up domains.
    pub nodes: u64,
    /// Whole buffer.
    pub bytes: f64,
    /// Measured microseconds.
    pub us: f64,
    /// Where it was read.
    pub source: String,
    /// What to know.
    pub note: String,
}

/// The published measurements that ship.
///
/// # Errors
/// Only if the embedded file is damaged, which a test rules out.
pub fn published() -> Result<Vec<Published>, Error> {
    let damaged = |source| Error::Embedded { file: "multi-node.csv".to_string(), source };
    POINTS.lines().enumerate().skip(1).map(|(i, text)| point(i + 1, text).map_err(damaged)).collect()
}

fn point(line: usize, text: &str) -> Result<Published, TableError> {
    let fields: Vec<&str> = text.split(',').collect();
    let field =
        |at: usize, column| fields.get(at).copied().ok_or(TableError::Short { line, text: text.into(), column });
    let number = |at: usize, column| -> Result<f64, TableError> {
        let text = field(at, column)?;
        text.parse().map_err(|_| TableError::Number { line, column, text: text.to_string() })
    };
    let op = field(8, "op")?;
    Ok(Published {
        name: field(0, "name")?.to_string(),
        device: field(1, "device")?.to_string(),
        local: number(2, "local")? as u64,
        scale_up_gbs: number(3, "scale_up_gbs")?,
        nic_gbs: number(4, "nic_gbs")?,
        latency_us: number(5, "latency_us")?,
        nvls: number(6, "nvls")? > 0.0,
        sharp: number(7, "sharp")? > 0.0,
        kind: Kind::from_name(op).ok_or(TableError::Operation { line, text: op.to_string() })?,
        ranks: number(9, "ranks")? as u64,
        nodes: number(10, "nodes")? as u64,
        bytes: number(11, "bytes")?,
        us: number(12, "us")?,
        source: field(13, "source")?.to_string(),
        note: field(14, "note")?.to_string(),
    })
}

impl Published {
    /// What the model says.
    pub fn predict(&self, tables: &Tables) -> Estimate {
        let cluster = self.cluster();
        let collectives = Collectives::new(&cluster, tables.clone());
        collectives.seconds(self.kind, &self.placement(&cluster), self.bytes)
    }

    /// Two tiers: the node and the network.
    fn cluster(&self) -> Cluster {
        let tier = |name: &str, gbs: f64, us: f64, medium, adds| Tier {
            name: name.to_string(),
            fanout: None,
            bandwidth: gbs * 1e9,
            oversubscription: 1.0,
            latency: us * 1e-6,
            medium,
            nics_per_node: None,
            in_network_reduction: adds,
            torus: Vec::new(),
            effective: false,
            assumed: Vec::new(),
            notes: String::new(),
        };
        let mut inside = tier("scale-up", self.scale_up_gbs, 4.0, Medium::ScaleUp, self.nvls);
        inside.fanout = Some((self.ranks / self.nodes).max(8));
        let scale_up = ScaleUp { bandwidth: self.scale_up_gbs * 1e9, ..ScaleUp::default() };
        Cluster {
            id: self.name.clone(),
            device: Device { id: self.device.clone(), scale_up, ..Device::default() },
            devices_per_node: 8,
            devices: None,
            tiers: vec![inside, tier("network", self.nic_gbs, self.latency_us, Medium::Network, self.sharp)],
            failures: None,
            price: None,
            price_source: String::new(),
            unverified_fields: Vec::new(),
            verified: true,
            sources: Vec::new(),
            notes: String::new(),
        }
    }

    fn placement(&self, cluster: &Cluster) -> Placement {
        let members = [self.ranks / self.nodes, self.nodes];
        let spans = cluster.tiers.iter().zip(members);
        let spans = spans
            .map(|(t, members)| Span {
                members,
                bandwidth: t.bandwidth,
                latency: t.latency,
                medium: t.medium,
                ..Span::default()
            })
            .collect();
        Placement { size: self.ranks, spans, replicated: false }
    }
}

/// The whole report, as text.
///
/// # Errors
/// Only if an embedded file is damaged, which a test rules out.
pub fn report(tables: &Tables) -> Result<String, Error> {
    let mut out = String::from("Left-out rows: a fifth at random, five times, three draws; by device and operation\n");
    let mut all = Vec::new();
    for table in &tables.devices {
        let measured = one_node(table);
        let checks: Vec<Check> = (0..SEEDS).flat_map(|s| left_out(&measured, s, &tables.constants)).collect();
        section(&mut out, &table.device, &checks);
        all.extend(checks);
    }
    line(&mut out, "all devices", score(&all));
    out.push_str("\n8 ranks predicted from 2 and 4 ranks\n");
    for table in tables.devices.iter().filter(|t| t.rows.iter().any(|r| r.ranks == 8)) {
        section(&mut out, &table.device, &more_ranks(&one_node(table), 8, &tables.constants));
    }
    out.push_str("\nPublished points, one by one: across nodes, and inside one beyond the tables\n");
    for p in published()? {
        point_line(&mut out, &p, &p.predict(tables));
    }
    Ok(out)
}

/// The table without groups that no single node holds.
fn one_node(table: &DeviceTable) -> DeviceTable {
    let rows = table.rows.iter().filter(|r| r.ranks <= 8).copied().collect();
    DeviceTable { rows, ..table.clone() }
}

fn section(out: &mut String, device: &str, checks: &[Check]) {
    line(out, device, score(checks));
    for kind in Kind::MEASURED {
        let of: Vec<Check> = checks.iter().filter(|c| c.row.kind == kind).copied().collect();
        line(out, &format!("  {kind}"), score(&of));
    }
}

fn line(out: &mut String, name: &str, score: Option<Score>) {
    let Some(s) = score else { return };
    let percent = [s.median_ape, s.p90_ape, s.bias].map(|x| 100.0 * x);
    let [median, p90, bias] = percent;
    // Writing to a String cannot fail.
    let _ = writeln!(
        out,
        "{name:<22} rows {:>5}  median {median:>5.1} %  p90 {p90:>5.1} %  bias {bias:>+5.1} %  extrapolated {}",
        s.rows, s.extrapolated
    );
}

fn point_line(out: &mut String, p: &Published, said: &Estimate) {
    let bus = |seconds: f64| p.bytes * p.kind.wire(p.ranks as f64) / seconds / 1e9;
    let error = 100.0 * (said.seconds * 1e6 / p.us - 1.0);
    let _ = writeln!(
        out,
        "{:<17} {:<14} {:>4} ranks {:>3} nodes {:>12} B  measured {:>9.1} us {:>6.1} GB/s  predicted {:>9.1} us {:>6.1} GB/s  {error:>+6.1} %  {:?}  {} {}",
        p.name,
        p.kind.name(),
        p.ranks,
        p.nodes,
        p.bytes,
        p.us,
        bus(p.us * 1e-6),
        said.seconds * 1e6,
        bus(said.seconds),
        said.algorithm,
        p.source,
        p.note,
    );
}

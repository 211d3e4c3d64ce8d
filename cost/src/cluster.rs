//! Devices joined by tiers of links, from the inside out.

use crate::device::Device;

/// What carries a tier's messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Medium {
    /// A scale-up fabric such as NVLink, xGMI or Infinity Fabric.
    ScaleUp,
    /// PCI Express.
    Pcie,
    /// Inter-chip links of a torus.
    Torus,
    /// A network between servers: InfiniBand, RoCE, EFA, Ethernet.
    Network,
    /// Memory that the ranks share (threads of one process).
    Shared,
}

/// One level: it joins `fanout` members of the level below.
#[derive(Clone, Debug, PartialEq)]
pub struct Tier {
    /// Name, such as `nvlink`, `ib-leaf`.
    pub name: String,
    /// Members of the lower tier that it joins; `None`, in the last tier only, is any number.
    pub fanout: Option<u64>,
    /// Bytes/s of one device in one direction when all devices talk across this tier, before
    /// oversubscription.
    pub bandwidth: f64,
    /// How many times more bandwidth enters the tier than leaves it; 1 is full bisection.
    pub oversubscription: f64,
    /// Seconds of one step of a message; the medium's default where the preset gives none.
    pub latency: f64,
    /// What carries it.
    pub medium: Medium,
    /// Network interfaces of a node, where they are counted.
    pub nics_per_node: Option<u32>,
    /// Whether switches add up reductions (NVLink SHARP, InfiniBand SHARP).
    pub in_network_reduction: bool,
    /// Lengths of the torus's axes that wrap around; empty for a switch.
    pub torus: Vec<u64>,
    /// Figures that were filled in by a default or are not verified, by field name.
    pub assumed: Vec<String>,
    /// What to know.
    pub notes: String,
}

/// Where checkpoints and failures come in; see `failures.json`.
#[derive(Clone, Debug, PartialEq)]
pub struct Failures {
    /// Failures of a node in 1,000 days.
    pub per_thousand_node_days: f64,
    /// Seconds from failure to the next step.
    pub restart_seconds: f64,
    /// Where the figures come from.
    pub source: String,
}

/// A machine: a device and the tiers that join it.
#[derive(Clone, Debug, PartialEq)]
pub struct Cluster {
    /// Preset name, or the file's.
    pub id: String,
    /// The accelerator.
    pub device: Device,
    /// Devices of one server.
    pub devices_per_node: u64,
    /// Devices of the whole system; `None` is any number.
    pub devices: Option<u64>,
    /// From the inside out; at least one.
    pub tiers: Vec<Tier>,
    /// How often it fails; `None` where not known.
    pub failures: Option<Failures>,
    /// US dollars per device and hour; `None` where not known.
    pub price: Option<f64>,
    /// Whether the figures were read in a source.
    pub verified: bool,
    /// Where the figures come from.
    pub sources: Vec<String>,
    /// What to know.
    pub notes: String,
}

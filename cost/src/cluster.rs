//! Devices joined by tiers of links, from the inside out.

use crate::device::Device;
use std::fmt;

/// What carries a tier's messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Medium {
    /// A scale-up fabric such as NVLink, xGMI or Infinity Fabric.
    ScaleUp,
    /// PCI Express.
    Pcie,
    /// Inter-chip links of a torus.
    Torus,
    /// A network between servers: InfiniBand, RoCE, EFA, Ethernet.
    #[default]
    Network,
    /// Memory that the ranks share (threads of one process).
    Shared,
}

impl Medium {
    /// All media, fastest first.
    pub const ALL: [Medium; 5] = [Medium::ScaleUp, Medium::Torus, Medium::Pcie, Medium::Network, Medium::Shared];

    /// Name in cluster files.
    pub fn name(self) -> &'static str {
        match self {
            Medium::ScaleUp => "scale-up",
            Medium::Pcie => "pcie",
            Medium::Torus => "torus",
            Medium::Network => "network",
            Medium::Shared => "shared",
        }
    }

    /// The medium of this name.
    pub fn from_name(name: &str) -> Option<Medium> {
        Medium::ALL.into_iter().find(|m| m.name() == name)
    }

    /// Seconds of one step of a message where a cluster gives none.
    ///
    /// Scale-up, PCIe and network: NCCL's tuner constants of the Simple protocol (`src/graph/tuning.cc` at
    /// 5067397: tree over NVLink 4.0 µs, ring over PCI 5.7 µs, network 14 µs). Torus: 1 µs a hop, as measured
    /// on TPU slices. Shared memory: two barriers between thread ranks, from the preset `this-machine`.
    pub fn default_latency(self) -> f64 {
        match self {
            Medium::ScaleUp => 4.0e-6,
            Medium::Pcie => 5.7e-6,
            Medium::Torus => 1.0e-6,
            Medium::Network => 14.0e-6,
            Medium::Shared => 5.0e-5,
        }
    }
}

impl fmt::Display for Medium {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// One level: it joins `fanout` members of the level below.
#[derive(Clone, Debug, Default, PartialEq)]
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
    /// Lengths of the torus's axes that wrap around, innermost first; empty for a switch, or where the shape
    /// is not known.
    pub torus: Vec<u64>,
    /// Whether `bandwidth` is a usable rate, from which no protocol losses are to be taken again.
    pub effective: bool,
    /// Figures that were filled in by a default or are not verified, by field name.
    pub assumed: Vec<String>,
    /// What to know.
    pub notes: String,
}

/// Where checkpoints and failures come in; see `failures.json`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Failures {
    /// Failures of a node in 1,000 days.
    pub per_thousand_node_days: f64,
    /// Seconds from failure to the next step, without the part that grows with the job.
    pub restart_seconds: f64,
    /// Further seconds for each device of the job.
    pub restart_seconds_per_device: f64,
    /// Whether the rate is a general default, not one published for this cluster.
    pub assumed: bool,
    /// Where the figures come from.
    pub source: String,
}

impl Failures {
    /// Seconds from failure to the next step of a job of so many devices.
    pub fn restart(&self, devices: u64) -> f64 {
        self.restart_seconds + self.restart_seconds_per_device * devices as f64
    }
}

/// A machine: a device and the tiers that join it.
#[derive(Clone, Debug, Default, PartialEq)]
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
    /// Where the price comes from; empty where there is none.
    pub price_source: String,
    /// Whether the figures were read in a source.
    pub verified: bool,
    /// Figures that were not.
    pub unverified_fields: Vec<String>,
    /// Where the figures come from.
    pub sources: Vec<String>,
    /// What to know.
    pub notes: String,
}

impl Cluster {
    /// Devices within one unit of each tier, innermost first: the product of the fan-outs so far; `None` from
    /// an unbounded tier on, or beyond `u64`.
    pub fn unit_sizes(&self) -> Vec<Option<u64>> {
        let mut product = Some(1u64);
        let mut next = |tier: &Tier| {
            product = product.and_then(|p| p.checked_mul(tier.fanout?));
            product
        };
        self.tiers.iter().map(&mut next).collect()
    }

    /// The most devices that the tiers join; `None` is any number.
    pub fn capacity(&self) -> Option<u64> {
        self.unit_sizes().last().copied().flatten()
    }
}

//! The law of one operation inside a node: ten constants, three protocols, and the switch that adds up.
//!
//! A protocol takes `latency + transfer`: latency = fixed + step × steps(ranks), transfer = bytes × wire ÷
//! bandwidth(ranks). Part of the latency hides in the transfer, more where flags are polled than where copies are
//! handed over: they add as a power mean of exponent `overlap`. An operation takes the fastest protocol, as a
//! smooth minimum. NCCL's tuner has the same shape (src/graph/tuning.cc), with its own constants; these are
//! fitted, with NCCL's as the prior.
//!
//! How bandwidth depends on ranks is the fabric's:
//! - *Switch*: a ring of two uses links worse than a longer one: B(g) ∝ (1 − c/g), c fitted.
//! - *PCI Express*: hops share root complexes and host memory: transfer ∝ (g/2)^q. Plain copies saturate
//!   once every hop is as slow as the slowest: their exponent falls by `curvature` a doubling, down to 0.

use super::{Algorithm, Kind};

/// Protocols of an operation, fastest start first.
pub const PROTOCOLS: usize = 3;

/// Constants of a law: three per protocol, and the scaling with ranks.
pub const CONSTANTS: usize = 3 * PROTOCOLS + 1;

/// What joins the devices of a node.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Fabric {
    /// Links to a switch, or to every other device.
    Switch {
        /// Bandwidth of a reduction in the switch over that of a ring of plain copies; `None` where the
        /// switch only forwards.
        nvls: Option<f64>,
    },
    /// PCI Express, through root complexes and host memory.
    Pcie,
}

/// What all laws share. Units: seconds, bytes/s.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LawConstants {
    /// Exponent of the smooth minimum over protocols.
    pub sharpness: i32,
    /// Exponent of the power mean of latency and transfer, by protocol; 1 adds.
    pub overlap: [f64; PROTOCOLS],
    /// By how much the exponent of PCI Express falls with each doubling of the ranks.
    pub curvature: f64,
    /// Seconds that a reduction in the switch takes to start.
    pub nvls_fixed: f64,
    /// Fewest ranks that reduce in the switch.
    pub nvls_ranks: f64,
    /// Prior: fixed seconds by protocol.
    pub fixed: [f64; PROTOCOLS],
    /// Prior: seconds of a ring's step, by protocol.
    pub step: [f64; PROTOCOLS],
    /// Prior: seconds per peer of an all-to-all, by protocol.
    pub peer: [f64; PROTOCOLS],
    /// Prior: bandwidth over the link's, by protocol, on a switch.
    pub switch_share: [f64; PROTOCOLS],
    /// Prior: the same on PCI Express.
    pub pcie_share: [f64; PROTOCOLS],
    /// Prior: c of a switch.
    pub switch_scaling: f64,
    /// Prior: q of PCI Express.
    pub pcie_scaling: f64,
    /// Rings on a new fabric reach this share of the links' nominal bandwidth.
    pub switch_efficiency: f64,
    /// The same on PCI Express.
    pub pcie_efficiency: f64,
    /// Seconds of a step that the prior of a switch stands for; other latencies scale it.
    pub switch_latency: f64,
    /// The same of PCI Express.
    pub pcie_latency: f64,
    /// Reduction in the switch over a ring where the device has no table.
    pub nvls_share: f64,
}

/// One protocol.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Protocol {
    /// Seconds, whatever the ranks.
    pub fixed: f64,
    /// Seconds a step.
    pub step: f64,
    /// Bytes/s of two ranks.
    pub bandwidth: f64,
}

/// The law of one operation on one fabric.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Law {
    /// The operation.
    pub kind: Kind,
    /// What joins the ranks.
    pub fabric: Fabric,
    /// Low latency, 128-byte low latency, plain copies.
    pub protocols: [Protocol; PROTOCOLS],
    /// c or q, by the fabric.
    pub scaling: f64,
}

impl Law {
    /// The law before any measurement.
    ///
    /// `link`: bytes/s that a ring of plain copies reaches on this fabric.
    pub fn prior(kind: Kind, fabric: Fabric, link: f64, of: &LawConstants) -> Law {
        let (share, scaling) = match fabric {
            Fabric::Switch { .. } => (of.switch_share, of.switch_scaling),
            Fabric::Pcie => (of.pcie_share, of.pcie_scaling),
        };
        let step = if kind == Kind::AllToAll { of.peer } else { of.step };
        let protocols = [0, 1, 2].map(|i| Protocol { fixed: of.fixed[i], step: step[i], bandwidth: link * share[i] });
        Law { kind, fabric, protocols, scaling }
    }

    /// Seconds of the operation between `ranks` ranks: smooth, and never less where bytes grow.
    pub fn seconds(&self, ranks: f64, bytes: f64, of: &LawConstants) -> f64 {
        self.fastest(ranks, bytes, of).0
    }

    /// Seconds, and the fastest protocol at this size.
    pub fn fastest(&self, ranks: f64, bytes: f64, of: &LawConstants) -> (f64, Algorithm) {
        let times = self.times(ranks, bytes, of);
        let best = (1..times.len()).fold(0, |best, i| if times[i] < times[best] { i } else { best });
        let sum: f64 = times.iter().map(|t| (times[best] / t).powi(of.sharpness)).sum();
        let algorithm = match (best, self.kind) {
            (_, Kind::AllToAll | Kind::SendRecv) => Algorithm::Pairwise,
            (0, _) => Algorithm::RingLowLatency,
            (1, _) => Algorithm::RingLow128,
            (2, _) => Algorithm::Ring,
            _ => Algorithm::Nvls,
        };
        (times[best] * sum.powf(-1.0 / of.sharpness as f64), algorithm)
    }

    /// Seconds of each protocol, and last of the switch (infinite where it does not add up).
    fn times(&self, ranks: f64, bytes: f64, of: &LawConstants) -> [f64; PROTOCOLS + 1] {
        let mut times = [f64::INFINITY; PROTOCOLS + 1];
        for (i, p) in self.protocols.iter().enumerate() {
            let latency = p.fixed + p.step * self.kind.steps(ranks);
            let transfer = bytes * self.sent(i, ranks) * self.slowdown(i, ranks, of) / p.bandwidth;
            times[i] = power_mean_sum(latency, transfer, of.overlap[i]);
        }
        if let (Kind::AllReduce, Fabric::Switch { nvls: Some(share) }) = (self.kind, self.fabric) {
            if ranks >= of.nvls_ranks {
                // Each rank's link carries its whole buffer and its part of the result (NVLink SHARP).
                let latency = of.nvls_fixed + self.protocols[2].fixed + 2.0 * self.protocols[2].step;
                times[PROTOCOLS] = latency + bytes * (1.0 + 1.0 / ranks) / (share * self.bus(8.0, of));
            }
        }
        times
    }

    /// Share of the buffer whose transfer a protocol waits for.
    fn sent(&self, protocol: usize, ranks: f64) -> f64 {
        match (self.kind, self.fabric, protocol) {
            // Peers have channels of their own, which the low-latency protocol does not fill.
            (Kind::AllToAll, Fabric::Switch { .. }, 0) => 1.0 / ranks,
            _ => self.kind.wire(ranks),
        }
    }

    /// Transfer time over that of two ranks at the same wire bytes.
    fn slowdown(&self, protocol: usize, ranks: f64, of: &LawConstants) -> f64 {
        let q = self.scaling;
        match self.fabric {
            Fabric::Switch { .. } => (1.0 - q / 2.0) / (1.0 - q / ranks),
            Fabric::Pcie if protocol + 1 < PROTOCOLS || of.curvature <= 0.0 => (ranks / 2.0).powf(q),
            Fabric::Pcie => {
                let doublings = (ranks / 2.0).log2().min(q / of.curvature);
                (q * doublings - of.curvature * doublings * doublings / 2.0).exp2()
            }
        }
    }

    /// Bytes/s of a ring of plain copies between `ranks` ranks.
    pub fn bus(&self, ranks: f64, of: &LawConstants) -> f64 {
        self.protocols[PROTOCOLS - 1].bandwidth / self.slowdown(PROTOCOLS - 1, ranks, of)
    }

    /// The law on links that are `ratio` times as fast. Low-latency rates are the copying cores' and stay.
    pub fn scaled(&self, ratio: f64) -> Law {
        let mut law = *self;
        for p in &mut law.protocols[1..] {
            p.bandwidth *= ratio;
        }
        law
    }

    /// The constants in the logarithm (but for the scaling), as the fit moves them.
    pub fn constants(&self) -> [f64; CONSTANTS] {
        let mut out = [self.scaling; CONSTANTS];
        for (i, p) in self.protocols.iter().enumerate() {
            out[3 * i..3 * i + 3].copy_from_slice(&[p.fixed.ln(), p.step.ln(), p.bandwidth.ln()]);
        }
        out
    }

    /// The law with these constants; the scaling is held to where the fabric's formula means something.
    pub fn with_constants(&self, c: &[f64; CONSTANTS]) -> Law {
        let protocols = [0, 1, 2].map(|i| Protocol {
            fixed: c[3 * i].exp(),
            step: c[3 * i + 1].exp(),
            bandwidth: c[3 * i + 2].exp(),
        });
        let most = match self.fabric {
            Fabric::Switch { .. } => 0.9,
            Fabric::Pcie => 3.5,
        };
        Law { protocols, scaling: c[CONSTANTS - 1].clamp(0.0, most), ..*self }
    }
}

/// (a^h + b^h)^(1/h): a sum for h = 1, the larger of both for large h.
fn power_mean_sum(a: f64, b: f64, h: f64) -> f64 {
    if h == 1.0 {
        return a + b;
    }
    let (large, small) = if a > b { (a, b) } else { (b, a) };
    let share = small / large;
    if h == 1.5 {
        // The usual exponent, without the two powers.
        let root = (1.0 + share * share.sqrt()).cbrt();
        return large * root * root;
    }
    large * (1.0 + share.powf(h)).powf(1.0 / h)
}

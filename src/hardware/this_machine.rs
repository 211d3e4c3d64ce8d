//! The machine that CPU ranks run on.

use autoshard_cost::cluster::{Cluster, Medium, Tier};
use autoshard_cost::device::{Device, Format};
use autoshard_ir::DType;
use autoshard_passes::cost::Machine;
use serde::Deserialize;
use std::collections::BTreeMap;

/// A preset: figures of a whole machine, which its ranks share.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Preset {
    /// Name, as the command line takes it.
    pub name: String,
    /// `cpu`.
    pub kind: String,
    /// What it stands for.
    pub about: String,
    /// FLOP/s of the machine by element type.
    pub peak_flops: BTreeMap<String, f64>,
    /// Bytes of memory.
    pub memory: f64,
    /// Bytes/s to memory, read plus write.
    pub memory_bandwidth: f64,
    /// Bytes/s that all ranks together copy from each other.
    pub link_bandwidth: f64,
    /// Seconds per collective.
    pub collective_latency: f64,
    /// Seconds per kernel.
    pub kernel_latency: f64,
    /// Where each figure comes from.
    pub sources: BTreeMap<String, String>,
}

/// The text of the embedded preset of this machine.
const THIS_MACHINE: &str = include_str!("../../data/hardware/this-machine.json");

impl Preset {
    /// The preset of the machine that CPU ranks run on.
    ///
    /// # Errors
    /// Only if the embedded file is damaged, which a test rules out.
    pub fn this_machine() -> Result<Preset, serde_json::Error> {
        serde_json::from_str(THIS_MACHINE)
    }

    /// Peak FLOP/s of the whole machine at an element type.
    pub fn peak(&self, dtype: DType) -> f64 {
        let found = self.peak_flops.get(dtype.name()).copied();
        found.unwrap_or_else(|| self.peak_flops.values().copied().fold(f64::INFINITY, f64::min))
    }

    /// Figures of one of `ranks` ranks that share the machine.
    pub fn rank(&self, ranks: usize) -> Machine {
        let share = ranks.max(1) as f64;
        let peak = self.peak_flops.iter().filter_map(|(n, p)| Some((DType::from_name(n)?, p / share))).collect();
        Machine {
            name: self.name.clone(),
            peak,
            memory_bandwidth: self.memory_bandwidth / share,
            link_bandwidth: self.link_bandwidth / share,
            // Ranks take turns on the cores, so latencies add up.
            collective_latency: self.collective_latency * share,
            kernel_latency: self.kernel_latency * share,
        }
    }
}

impl Preset {
    /// The machine as a cluster of `ranks` devices, each of them one rank's share of the machine, joined by
    /// memory: the figures of [`Preset::rank`].
    pub fn cluster(&self, ranks: usize) -> Cluster {
        let ranks = ranks.max(1);
        let (share, rank) = (ranks as f64, self.rank(ranks));
        let sources: Vec<String> = self.sources.iter().map(|(what, source)| format!("{what}: {source}")).collect();
        // bf16 is storage here: its arithmetic is f32.
        let formats = [(DType::F64, Format::Fp64), (DType::F32, Format::Fp32), (DType::F32, Format::Bf16)];
        let device = Device {
            id: self.name.clone(),
            vendor: "nominal".to_string(),
            peak: formats.map(|(dtype, format)| (format, self.peak(dtype) / share)).to_vec(),
            vector_peak: Some(self.peak(DType::F32) / share),
            memory: self.memory / share,
            memory_bandwidth: rank.memory_bandwidth,
            sustained: 1.0,
            sustained_eight_bit: 1.0,
            sustained_source: "the rates are measured over whole runs".to_string(),
            verified: true,
            sources: sources.clone(),
            notes: format!("one of {ranks} ranks that share the machine"),
            ..Device::default()
        };
        let tier = Tier {
            name: "memory".to_string(),
            fanout: Some(ranks as u64),
            bandwidth: rank.link_bandwidth,
            oversubscription: 1.0,
            latency: rank.collective_latency,
            medium: Medium::Shared,
            effective: true,
            notes: "threads copy from each other's buffers".to_string(),
            ..Tier::default()
        };
        Cluster {
            id: self.name.clone(),
            device,
            devices_per_node: ranks as u64,
            devices: Some(ranks as u64),
            tiers: vec![tier],
            verified: true,
            sources,
            notes: self.about.clone(),
            ..Cluster::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_share_what_the_machine_has() {
        let p = Preset::this_machine().unwrap();
        for ranks in [1, 2, 8] {
            let c = p.cluster(ranks);
            assert_eq!(c.device.peak_of(Format::Fp32).unwrap() * ranks as f64, p.peak(DType::F32));
            assert_eq!(c.tiers[0].bandwidth * ranks as f64, p.link_bandwidth);
            assert_eq!(c.capacity(), Some(ranks as u64));
        }
    }

    #[test]
    fn the_embedded_preset_reads() {
        let p = Preset::this_machine().unwrap();
        assert_eq!(p.peak(DType::F32), 2.0 * p.peak(DType::F64));
        assert_eq!(p.rank(8).peak_of(DType::F32) * 8.0, p.peak(DType::F32));
    }
}

//! The constants of `data/collectives/constants.json`: each a value with its unit and source.

use super::Error;
use autoshard_cost::collectives::fit::FitConstants;
use autoshard_cost::collectives::kriging::KrigingConstants;
use autoshard_cost::collectives::law::LawConstants;
use autoshard_cost::collectives::network::NetworkConstants;
use autoshard_cost::collectives::table::Constants;
use serde::Deserialize;

const TEXT: &str = include_str!("../../data/collectives/constants.json");

/// A value that says what it is and where it comes from.
#[derive(Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
struct Figure<T> {
    value: T,
    #[serde(rename = "unit")]
    _unit: Stated,
    #[serde(rename = "source")]
    _source: Stated,
}

/// A text that must be there; the program does not read it.
#[derive(Clone, Copy)]
struct Stated;

impl<'de> Deserialize<'de> for Stated {
    fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Stated, D::Error> {
        match String::deserialize(d)? {
            text if text.trim().is_empty() => Err(serde::de::Error::custom("a unit or source is empty")),
            _ => Ok(Stated),
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    law: Law,
    fit: Fit,
    kriging: Kriging,
    network: Network,
}

/// The constants that ship.
pub(super) fn read() -> Result<Constants, Error> {
    let file: File = serde_json::from_str(TEXT).map_err(|source| Error::Json { file: "constants.json", source })?;
    Ok(Constants {
        law: file.law.into(),
        fit: file.fit.into(),
        kriging: file.kriging.into(),
        network: file.network.into(),
    })
}

fn seconds(us: Figure<f64>) -> f64 {
    us.value * 1e-6
}

fn all_seconds<const N: usize>(us: Figure<[f64; N]>) -> [f64; N] {
    us.value.map(|t| t * 1e-6)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Law {
    sharpness: Figure<i32>,
    overlap: Figure<[f64; 3]>,
    curvature: Figure<f64>,
    nvls_fixed: Figure<f64>,
    nvls_ranks: Figure<f64>,
    fixed: Figure<[f64; 3]>,
    step: Figure<[f64; 3]>,
    peer: Figure<[f64; 3]>,
    switch_share: Figure<[f64; 3]>,
    pcie_share: Figure<[f64; 3]>,
    switch_scaling: Figure<f64>,
    pcie_scaling: Figure<f64>,
    switch_efficiency: Figure<f64>,
    pcie_efficiency: Figure<f64>,
    switch_latency: Figure<f64>,
    pcie_latency: Figure<f64>,
    nvls_share: Figure<f64>,
}

impl From<Law> for LawConstants {
    fn from(f: Law) -> LawConstants {
        LawConstants {
            sharpness: f.sharpness.value,
            overlap: f.overlap.value,
            curvature: f.curvature.value,
            nvls_fixed: seconds(f.nvls_fixed),
            nvls_ranks: f.nvls_ranks.value,
            fixed: all_seconds(f.fixed),
            step: all_seconds(f.step),
            peer: all_seconds(f.peer),
            switch_share: f.switch_share.value,
            pcie_share: f.pcie_share.value,
            switch_scaling: f.switch_scaling.value,
            pcie_scaling: f.pcie_scaling.value,
            switch_efficiency: f.switch_efficiency.value,
            pcie_efficiency: f.pcie_efficiency.value,
            switch_latency: seconds(f.switch_latency),
            pcie_latency: seconds(f.pcie_latency),
            nvls_share: f.nvls_share.value,
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Fit {
    prior: Figure<f64>,
    spread: Figure<f64>,
    switch_spread: Figure<f64>,
    pcie_spread: Figure<f64>,
    pooled_spread: Figure<f64>,
    outlier: Figure<f64>,
}

impl From<Fit> for FitConstants {
    fn from(f: Fit) -> FitConstants {
        FitConstants {
            prior: f.prior.value,
            spread: f.spread.value,
            switch_spread: f.switch_spread.value,
            pcie_spread: f.pcie_spread.value,
            pooled_spread: f.pooled_spread.value,
            outlier: f.outlier.value,
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Kriging {
    size: Figure<f64>,
    ranks: Figure<f64>,
    noise: Figure<f64>,
    shift: Figure<f64>,
    peer_shift: Figure<f64>,
    own: Figure<f64>,
    own_size: Figure<f64>,
    outlier: Figure<f64>,
}

impl From<Kriging> for KrigingConstants {
    fn from(f: Kriging) -> KrigingConstants {
        KrigingConstants {
            size: f.size.value,
            ranks: f.ranks.value,
            noise: f.noise.value,
            shift: f.shift.value,
            peer_shift: f.peer_shift.value,
            own: f.own.value,
            own_size: f.own_size.value,
            outlier: f.outlier.value,
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Network {
    efficiency: Figure<f64>,
    rails: Figure<f64>,
    entry: Figure<f64>,
    ring_fixed: Figure<[f64; 2]>,
    ring_step: Figure<[f64; 2]>,
    ring_hop: Figure<[f64; 2]>,
    tree_fixed: Figure<[f64; 2]>,
    tree_step: Figure<[f64; 2]>,
    tree_hop: Figure<[f64; 2]>,
    low_latency: Figure<f64>,
    tree_bandwidth: Figure<f64>,
    nvls_tree_fixed: Figure<f64>,
    nvls_tree_hop: Figure<f64>,
    sharp_fixed: Figure<f64>,
    pat_fixed: Figure<f64>,
    pat_bandwidth: Figure<f64>,
    peer: Figure<f64>,
}

impl From<Network> for NetworkConstants {
    fn from(f: Network) -> NetworkConstants {
        NetworkConstants {
            efficiency: f.efficiency.value,
            rails: f.rails.value,
            entry: seconds(f.entry),
            ring_fixed: all_seconds(f.ring_fixed),
            ring_step: all_seconds(f.ring_step),
            ring_hop: f.ring_hop.value,
            tree_fixed: all_seconds(f.tree_fixed),
            tree_step: all_seconds(f.tree_step),
            tree_hop: f.tree_hop.value,
            low_latency: f.low_latency.value,
            tree_bandwidth: f.tree_bandwidth.value,
            nvls_tree_fixed: seconds(f.nvls_tree_fixed),
            nvls_tree_hop: f.nvls_tree_hop.value,
            sharp_fixed: seconds(f.sharp_fixed),
            pat_fixed: seconds(f.pat_fixed),
            pat_bandwidth: f.pat_bandwidth.value,
            peer: seconds(f.peer),
        }
    }
}

//! Measured collectives that ship, and a user's own.
//!
//! The tables are embedded, so that the same input gives the same plan everywhere. [`shipped`] reads them,
//! [`user_rows`] reads a file of nccl-tests' output or a CSV. [`accuracy`] says how well the models do.

pub mod accuracy;
mod constants;

use autoshard_cost::collectives::law::Fabric;
use autoshard_cost::collectives::{DeviceTable, Row, TableError, Tables};
use autoshard_cost::device::Device;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use thiserror::Error;

const TABLES: &str = include_str!("../../data/collectives/tables.json");

/// The CSV files that `tables.json` names.
const FILES: [(&str, &str); 8] = [
    ("a100-sxm4-80gb.csv", include_str!("../../data/collectives/a100-sxm4-80gb.csv")),
    ("h100-sxm5.csv", include_str!("../../data/collectives/h100-sxm5.csv")),
    ("h200-sxm.csv", include_str!("../../data/collectives/h200-sxm.csv")),
    ("b200-sxm.csv", include_str!("../../data/collectives/b200-sxm.csv")),
    ("gb200.csv", include_str!("../../data/collectives/gb200.csv")),
    ("gb200-nvl72.csv", include_str!("../../data/collectives/gb200-nvl72.csv")),
    ("l40s.csv", include_str!("../../data/collectives/l40s.csv")),
    ("rtx-pro-6000-server.csv", include_str!("../../data/collectives/rtx-pro-6000-server.csv")),
];

/// Why tables cannot be read.
#[derive(Debug, Error)]
pub enum Error {
    /// JSON that ships is damaged, which a test rules out.
    #[error("embedded {file}: {source}")]
    Json {
        /// Which.
        file: &'static str,
        /// What the parser says.
        source: serde_json::Error,
    },
    /// A table that ships is damaged or missing, which a test rules out.
    #[error("embedded {file}: {source}")]
    Embedded {
        /// Which.
        file: String,
        /// What the parser says.
        source: TableError,
    },
    /// `tables.json` names a file that is not embedded.
    #[error("embedded tables.json names `{0}`, which is not there")]
    Missing(String),
    /// A user's file cannot be read.
    #[error("{}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A user's file is no table.
    #[error("{}: {source}", path.display())]
    Table {
        /// The file.
        path: PathBuf,
        /// Why.
        source: TableError,
    },
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Manifest {
    source: String,
    tables: Vec<Entry>,
    related: BTreeMap<String, String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    device: String,
    files: Vec<String>,
    fabric: FabricName,
    nvls: Option<f64>,
    nominal_gbs: f64,
    link_gbs: f64,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
enum FabricName {
    Switch,
    Pcie,
}

/// The tables and constants that ship.
///
/// # Errors
/// Only if an embedded file is damaged, which a test rules out.
pub fn shipped() -> Result<Tables, Error> {
    let manifest: Manifest =
        serde_json::from_str(TABLES).map_err(|source| Error::Json { file: "tables.json", source })?;
    let devices = manifest.tables.iter().map(|e| table(e, &manifest.source)).collect::<Result<Vec<_>, Error>>()?;
    Ok(Tables { constants: constants::read()?, devices, related: manifest.related.into_iter().collect() })
}

fn table(entry: &Entry, source: &str) -> Result<DeviceTable, Error> {
    let mut rows = Vec::new();
    for file in &entry.files {
        let (_, text) = FILES.iter().find(|(name, _)| name == file).ok_or_else(|| Error::Missing(file.clone()))?;
        rows.extend(Tables::from_csv(text).map_err(|source| Error::Embedded { file: file.clone(), source })?);
    }
    let fabric = match entry.fabric {
        FabricName::Switch => Fabric::Switch { nvls: entry.nvls },
        FabricName::Pcie => Fabric::Pcie,
    };
    let (nominal, link) = (entry.nominal_gbs * 1e9, entry.link_gbs * 1e9);
    let (device, source) = (entry.device.clone(), source.to_string());
    Ok(DeviceTable { device, fabric, nominal, link, rows, own: Vec::new(), source })
}

/// Reads a user's measurements: CSV with `op,ranks,bytes,us[,nodes]`, or what nccl-tests printed (its `#` lines
/// included). The first line that is not blank tells them apart.
///
/// # Errors
/// Names the file, and the line that cannot be read.
pub fn user_rows(path: &Path) -> Result<Vec<Row>, Error> {
    let text = std::fs::read_to_string(path).map_err(|source| Error::Read { path: path.to_path_buf(), source })?;
    rows(&text).map_err(|source| Error::Table { path: path.to_path_buf(), source })
}

/// The tables that ship, with a user's files in place of the rows that they measure again. A device without a
/// table gets one of its own, on its scale-up fabric.
///
/// # Errors
/// A file that cannot be read or is no table.
pub fn with_files(device: &Device, files: &[PathBuf]) -> Result<Tables, Error> {
    let mut tables = shipped()?;
    for file in files {
        let rows = user_rows(file)?;
        let link = if device.scale_up.bandwidth > 0.0 {
            device.scale_up.bandwidth
        } else {
            device.host_bandwidth.unwrap_or(device.memory_bandwidth)
        };
        let switched = device.scale_up.bandwidth > 0.0;
        let fabric = if switched { Fabric::Switch { nvls: None } } else { Fabric::Pcie };
        let source = file.display().to_string();
        let new = DeviceTable {
            device: device.id.clone(),
            fabric,
            nominal: link,
            link,
            rows: Vec::new(),
            own: Vec::new(),
            source,
        };
        tables.replace(new, rows);
    }
    Ok(tables)
}

/// The rows of a text in either form; see [`user_rows`].
///
/// # Errors
/// Names the line that cannot be read.
pub fn rows(text: &str) -> Result<Vec<Row>, TableError> {
    let first = text.lines().find(|l| !l.trim().is_empty() && !l.trim_start().starts_with('#')).unwrap_or("");
    if first.contains(',') && first.to_ascii_lowercase().contains("op") {
        Tables::from_csv(text)
    } else {
        Tables::from_nccl_tests(text)
    }
}

#[cfg(test)]
mod tests;

//! Kernel times that ship, whose table a device without one takes, and a user's own.
//!
//! `data/kernels/README.md` describes the files.

use autoshard_cost::device::Device;
use autoshard_cost::kernels::{Kernels, Rates, TableError, Tables};
use std::path::Path;

/// Grids that ship: the device's name and the file's text.
const SHIPPED: [(&str, &str); 6] = [
    ("a100-sxm4-80gb", include_str!("../../data/kernels/a100-sxm4-80gb.txt")),
    ("h100-sxm5", include_str!("../../data/kernels/h100-sxm5.txt")),
    ("h200-sxm", include_str!("../../data/kernels/h200-sxm.txt")),
    ("b200-sxm", include_str!("../../data/kernels/b200-sxm.txt")),
    ("gb200", include_str!("../../data/kernels/gb200.txt")),
    ("l40s", include_str!("../../data/kernels/l40s.txt")),
];

const RATES: &str = include_str!("../../data/kernels/rates.csv");
const RELATED: &str = include_str!("../../data/kernels/related.csv");

/// Why kernel times could not be had.
#[derive(Debug, thiserror::Error)]
pub enum KernelsError {
    /// The file could not be read.
    #[error("{file}: cannot read the table of kernel times: {source}")]
    Io {
        /// The file, as it was named.
        file: String,
        /// What the system said.
        source: std::io::Error,
    },
    /// The file, or one that ships, is not a table.
    #[error("{file}: {source}")]
    Table {
        /// The file.
        file: String,
        /// Where and what.
        source: TableError,
    },
}

/// Kernel times of a device: from its own table, a related device's, or peak rates; see
/// [`autoshard_cost::kernels::How`].
///
/// # Errors
/// Only if an embedded file is damaged, which a test rules out.
pub fn shipped(device: &Device) -> Result<Kernels, KernelsError> {
    Ok(Kernels::new(device, tables(&device.id)?, rates(&device.id)?))
}

/// Kernel times with the tables of CSV files in place of those that ship: products, attention, or both.
///
/// # Errors
/// A file that cannot be read, or the first line of it that is not as its header says.
pub fn with_files<'a>(device: &Device, files: impl IntoIterator<Item = &'a Path>) -> Result<Kernels, KernelsError> {
    let mut all = tables(&device.id)?;
    for path in files {
        let file = path.display().to_string();
        let text = std::fs::read_to_string(path).map_err(|source| KernelsError::Io { file: file.clone(), source })?;
        let own = Tables::from_csv(&text, device).map_err(|source| KernelsError::Table { file, source })?;
        all = all.replaced_by(own, device);
    }
    Ok(Kernels::new(device, all, rates(&device.id)?))
}

/// The tables that ship for a device or for the one that `related.csv` names; empty where neither is.
fn tables(id: &str) -> Result<Tables, KernelsError> {
    let find = |id: &str| SHIPPED.iter().find(|(name, _)| *name == id);
    let Some((name, text)) = find(id).or_else(|| find(relative(id)?)) else { return Ok(Tables::default()) };
    Tables::parse(text).map_err(|source| KernelsError::Table { file: format!("data/kernels/{name}.txt"), source })
}

/// The device whose tables a device without any takes.
pub fn relative(id: &str) -> Option<&'static str> {
    RELATED.lines().skip(1).find_map(|l| {
        let mut columns = l.splitn(3, ',');
        (columns.next() == Some(id)).then(|| columns.next()).flatten()
    })
}

fn rates(id: &str) -> Result<Rates, KernelsError> {
    Rates::parse(RATES, id).map_err(|source| KernelsError::Table { file: "data/kernels/rates.csv".into(), source })
}

#[cfg(test)]
mod tests;

//! Measured times of collectives, and the constants of the models around them.

use super::fit::FitConstants;
use super::kriging::KrigingConstants;
use super::law::{Fabric, LawConstants};
use super::network::NetworkConstants;
use super::{text, Kind};
use thiserror::Error;

/// One measurement.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Row {
    /// The operation.
    pub kind: Kind,
    /// Ranks in the group.
    pub ranks: u64,
    /// Nodes (or scale-up domains) that they fill evenly; 1 is inside one.
    pub nodes: u64,
    /// The whole buffer.
    pub bytes: f64,
    /// How long it took.
    pub seconds: f64,
}

/// Why a text is not a table.
#[derive(Clone, Debug, Error, PartialEq)]
pub enum TableError {
    /// The header lacks a column.
    #[error("line {line}: the header `{header}` has no column `{column}`: it needs op, ranks, bytes, us")]
    NoColumn {
        /// Line of the header.
        line: usize,
        /// Its text.
        header: String,
        /// What is missing.
        column: &'static str,
    },
    /// A row has too few fields.
    #[error("line {line}: `{text}` has no field for `{column}`")]
    Short {
        /// Its line.
        line: usize,
        /// Its text.
        text: String,
        /// The column that it does not reach.
        column: &'static str,
    },
    /// A field is not a positive number.
    #[error("line {line}: {column} `{text}` is not a positive number")]
    Number {
        /// Its line.
        line: usize,
        /// Which column.
        column: &'static str,
        /// What stands there.
        text: String,
    },
    /// No such operation.
    #[error("line {line}: no operation `{text}`: one of all_reduce, all_gather, reduce_scatter, alltoall")]
    Operation {
        /// Its line.
        line: usize,
        /// What stands there.
        text: String,
    },
    /// A collective of fewer than two ranks, or of ranks that do not fill their nodes.
    #[error("line {line}: {ranks} ranks on {nodes} nodes are no group: it takes at least 2, as many on each node")]
    Ranks {
        /// Its line.
        line: usize,
        /// Ranks that were read.
        ranks: u64,
        /// Nodes that were read.
        nodes: u64,
    },
    /// nccl-tests output that does not say what was measured.
    #[error("line {line}: a row, but before it no {what}: keep the whole output of nccl-tests, or write the `#` lines above it")]
    Unnamed {
        /// The first row.
        line: usize,
        /// What should have been said.
        what: &'static str,
    },
    /// Nothing to read.
    #[error("no rows: {wanted}")]
    Empty {
        /// What a row looks like.
        wanted: &'static str,
    },
}

/// Measurements of one device.
#[derive(Clone, Debug, PartialEq)]
pub struct DeviceTable {
    /// The device's preset name.
    pub device: String,
    /// What joins the devices that were measured.
    pub fabric: Fabric,
    /// Nominal bytes/s of a device on that fabric, one direction.
    pub nominal: f64,
    /// Bytes/s that a ring of plain copies reaches there: the prior of the fit.
    pub link: f64,
    /// The measurements.
    pub rows: Vec<Row>,
    /// Those of them that a user made: groups like theirs take just these times, whatever the others say.
    pub own: Vec<Row>,
    /// Where they come from.
    pub source: String,
}

/// Constants that belong to no device.
#[derive(Clone, Debug, PartialEq)]
pub struct Constants {
    /// Of laws inside a node.
    pub law: LawConstants,
    /// Of their fit.
    pub fit: FitConstants,
    /// Of what they leave over.
    pub kriging: KrigingConstants,
    /// Of the network.
    pub network: NetworkConstants,
}

/// All that is known of collectives.
#[derive(Clone, Debug, PartialEq)]
pub struct Tables {
    /// Constants of the models.
    pub constants: Constants,
    /// By device.
    pub devices: Vec<DeviceTable>,
    /// Devices without a table, and whose they take, scaled by the bandwidth of the scale-up fabric.
    pub related: Vec<(String, String)>,
}

impl Tables {
    /// The table of a device.
    pub fn own(&self, device: &str) -> Option<&DeviceTable> {
        self.devices.iter().find(|t| t.device == device)
    }

    /// The table of the device that stands for this one.
    pub fn related(&self, device: &str) -> Option<&DeviceTable> {
        let (_, other) = self.related.iter().find(|(d, _)| d == device)?;
        self.own(other)
    }

    /// Reads rows of a CSV file with the columns `op,ranks,bytes,us` and, if it has one, `nodes`, in any order.
    ///
    /// # Errors
    /// Names the line that cannot be read; a text without rows is an error too.
    pub fn from_csv(text: &str) -> Result<Vec<Row>, TableError> {
        text::from_csv(text)
    }

    /// Reads the output of nccl-tests (`all_reduce_perf` and its like), one run or several after each other:
    /// whole buffers and out-of-place times. Ranks and nodes are those of its `Rank` lines.
    ///
    /// # Errors
    /// Names the line that cannot be read; a text without rows is an error too.
    pub fn from_nccl_tests(text: &str) -> Result<Vec<Row>, TableError> {
        text::from_nccl_tests(text)
    }

    /// Puts a user's rows in the place of those of the same operation, ranks and nodes.
    ///
    /// A device without a table of its own gets one: `new` says what it is like (its rows are not read).
    pub fn replace(&mut self, new: DeviceTable, rows: Vec<Row>) {
        let known = self.devices.iter().position(|t| t.device == new.device);
        let at = known.unwrap_or_else(|| {
            self.devices.push(DeviceTable { rows: Vec::new(), own: Vec::new(), ..new });
            self.devices.len() - 1
        });
        let table = &mut self.devices[at];
        let same = |a: &Row, b: &Row| (a.kind, a.ranks, a.nodes) == (b.kind, b.ranks, b.nodes);
        for kept in [&mut table.rows, &mut table.own] {
            kept.retain(|old| !rows.iter().any(|r| same(old, r)));
            kept.extend(&rows);
        }
    }
}

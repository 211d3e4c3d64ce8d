//! Times of products, attention and loops on one device.
//!
//! Times are bursts, as the tables measure them; the caller divides by [`crate::device::Device::sustained`].
//!
//! Measured rows ([`rows`]) are fitted by a formula ([`base`]) and trees on what it leaves ([`trees`]), which
//! complete a [`grid`] that is made free of falls ([`monotone`]): [`products`], [`attention`]. [`tables`]
//! holds the grids of a device as text that ships or from a user's measurements; [`Kernels`] answers from
//! them, from those of a related device, or from peak rates; [`evaluate()`] says how far it is off.

pub mod attention;
pub mod base;
pub mod evaluate;
pub mod grid;
pub mod monotone;
mod price;
pub mod products;
pub mod rows;
pub mod tables;
pub mod trees;

pub use evaluate::{evaluate, Errors};
pub use price::Kernels;
pub use rows::{Rows, TableError};
pub use tables::{Rates, Tables};

use crate::device::Format;

/// A time and how it was got.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Time {
    /// Seconds.
    pub seconds: f64,
    /// How.
    pub how: How,
}

/// How far an estimate is from a measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum How {
    /// Inside the measured range.
    Interpolated,
    /// Beyond the measured range of this device's table.
    Extrapolated,
    /// From the table of a related device, scaled.
    Related,
    /// From peak rates alone.
    Roofline,
}

/// `C[m, n] = A[m, k] · B[k, n]`, `count` of them at once (grouped or batched).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Product {
    /// Format of the operands.
    pub format: Format,
    /// Rows.
    pub m: f64,
    /// Columns.
    pub n: f64,
    /// Contracted.
    pub k: f64,
    /// How many, with the same sizes, in one launch.
    pub count: f64,
    /// Whether C is added to in fp32 (weight gradients into main gradients): 8 bytes an element more.
    pub accumulate: bool,
}

/// Fused attention of one rank.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Attention {
    /// Sequences.
    pub batch: f64,
    /// Query positions.
    pub queries: f64,
    /// Key positions; equal to `queries` but for context parallelism.
    pub keys: f64,
    /// Query heads.
    pub heads: f64,
    /// Key/value heads.
    pub kv_heads: f64,
    /// Width of a query or key head.
    pub head_dim: f64,
    /// Width of a value head.
    pub value_dim: f64,
    /// Share of the queries × keys scores that are computed: about 1/2 where causal, 1 where not, less
    /// with a window.
    pub share: f64,
    /// The backward, instead of the forward.
    pub backward: bool,
}

impl Attention {
    /// FLOPs of the scores that are computed: two products, or the five of a backward that makes the scores again
    /// (Dao 2023, arXiv 2307.08691, section 3.1).
    pub fn flops(&self) -> f64 {
        let products = if self.backward { 2.5 } else { 1.0 };
        let scores = self.batch * self.heads * self.queries * self.keys * self.share;
        2.0 * products * scores * (self.head_dim + self.value_dim)
    }
}

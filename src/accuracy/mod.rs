//! How far predictions are from measurements.
//!
//! [`score`] compares rows, [`stats`] sums up, [`fit`] finds constants and judges them on groups that they
//! have not seen, [`regret`] asks whether the predicted-best layout is a good one, [`memory`] compares memory,
//! [`assumed`] predicts rows with what they do not state, [`lines`] sums rows up, [`evaluate`] does all of it
//! for a file of runs, and [`page`] writes `docs/accuracy.md`.

pub mod assumed;
pub mod evaluate;
pub mod fit;
pub mod knobs;
pub mod lines;
pub mod memory;
pub mod page;
pub mod regret;
pub mod score;
pub mod stats;

//! In what unit a row's time is compared, and which FLOPs a printed rate counts.
//!
//! Rows that print seconds or tokens/s are compared in seconds. A row that prints only TFLOP/s or MFU is
//! compared in that unit, and then it matters what was counted: the same run reads 5–12 % higher with the
//! whole square of attention than with its causal half, and a third higher with the recomputed forward.
//! `flop_convention` is free text, so the phrases that are understood are listed here; others are skipped.

use super::RunRow;
use crate::predict::Prediction;

/// What a printed rate counts as FLOPs of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Convention {
    /// Forward and backward products, causal attention once, nothing recomputed.
    Causal,
    /// The same with the whole square of attention.
    Full,
    /// 96·B·s·L·h²·(1 + s/(6h) + V/(16·L·h)): four forwards' worth, of whole attention (Narayanan et al.
    /// 2021, arXiv 2104.04473, eq. 3).
    Sc21,
    /// 8·N·tokens, of N parameters: the same without attention (BigScience).
    EightN,
}

/// Phrases at the start of `flop_convention`, the first that fits counts.
const PHRASES: [(&str, Convention); 14] = [
    ("megatron_sc21", Convention::Sc21),
    ("bigscience approx: 8*N", Convention::EightN),
    ("megatron-bridge/automodel", Convention::Causal),
    ("ml-engineering: model FLOPs with causal attention", Convention::Causal),
    // Recomputed for the table's other rows: causal attention and the output layer give 1.000.
    ("megatron-core (causal not checked)", Convention::Causal),
    ("Megatron-LM v0.12 log-throughput", Convention::Causal),
    ("megatron-core r0.8", Convention::Full),
    ("korthikanti", Convention::Full),
    ("dgxc", Convention::Full),
    ("llm-foundry", Convention::Full),
    ("palm/torchtitan", Convention::Full),
    ("nnscaler", Convention::Full),
    ("maxtext", Convention::Full),
    ("megatron-core", Convention::Causal),
];

impl Convention {
    /// The convention of a row's `flop_convention`, and whether its text leaves a doubt.
    pub fn of(text: &str) -> Option<(Convention, bool)> {
        let doubt = ["not checked", "likely", "depends on version", "about 3% low"].iter().any(|d| text.contains(d));
        let bare = text == "megatron-core" || text == "Megatron-LM v0.12 log-throughput";
        PHRASES.iter().find(|(p, _)| text.starts_with(p)).map(|(_, c)| (*c, doubt || bare))
    }

    /// Its name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Convention::Causal => "causal model FLOPs",
            Convention::Full => "model FLOPs with whole attention",
            Convention::Sc21 => "SC'21 hardware FLOPs",
            Convention::EightN => "8·N·tokens",
        }
    }

    /// FLOPs of a step on all devices as this convention counts them. `None` where the row lacks a size.
    pub fn flops(self, row: &RunRow, prediction: &Prediction) -> Option<f64> {
        let (b, s, l, h, v) =
            (row.global_batch as f64, row.seq_len as f64, row.layers as f64, row.hidden as f64, row.vocab as f64);
        match self {
            Convention::Causal => Some(prediction.model_flops_causal),
            Convention::Full => Some(prediction.model_flops_full),
            Convention::Sc21 => Some(96.0 * b * s * l * h * h * (1.0 + s / (6.0 * h) + v / (16.0 * l * h))),
            Convention::EightN => Some(8.0 * row.model.get("params_b")?.as_f64()? * 1e9 * row.tokens()),
        }
    }
}

/// In what unit a row's time is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Seconds of a step.
    Seconds,
    /// FLOP/s of a device.
    Flops(Convention),
    /// Share of the device's peak.
    Mfu(Convention),
}

impl Unit {
    /// Seconds of the measured step in this unit: printed, or the step in which the convention's FLOPs make
    /// the printed rate. A rate's relative error is then that of its time, with one sign for all units: above
    /// 0 is predicted too slow. `peak` is the device's FLOP/s, for MFU.
    pub fn measured_seconds(self, row: &RunRow, prediction: &Prediction, peak: Option<f64>) -> Option<f64> {
        let seconds = |convention: Convention, rate: f64| {
            Some(convention.flops(row, prediction)? / (rate * row.gpus as f64)).filter(|s| s.is_finite() && *s > 0.0)
        };
        match self {
            Unit::Seconds => row.measured.step_seconds,
            Unit::Flops(c) => seconds(c, row.measured.flops_per_second?),
            Unit::Mfu(c) => seconds(c, row.measured.mfu? * peak?),
        }
    }
}

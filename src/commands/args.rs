//! Arguments that several commands share, and the values they take.

use super::{suggestion, Failure};
use autoshard::ir::DType;
use autoshard::passes::fuse::Fusion;
use std::path::PathBuf;

/// Largest size or count that a flag takes; beyond it index arithmetic could overflow.
const MOST: usize = 1 << 30;

/// What is built: the layout, the sizes and the element type.
#[derive(Clone, Debug, clap::Args)]
pub struct Build {
    /// A plan for this-machine: its degrees, batch, sequence and precision; what execution does not have yet is
    /// refused by its key
    #[arg(long, value_name = "plan.json", conflicts_with = "mesh")]
    pub plan: Option<PathBuf>,
    /// Degrees of the mesh axes: dp replicates, fsdp shards parameters, tp splits heads, MLP and
    /// vocabulary; sp=0 turns off the split of positions over tp
    #[arg(long, value_name = "dp=D,fsdp=F,tp=T")]
    pub mesh: Option<String>,
    /// Number of ranks; without --mesh, the cheapest legal mesh of that many is chosen
    #[arg(long, value_name = "N", value_parser = size, allow_negative_numbers = true)]
    pub devices: Option<usize>,
    /// Sequences of a step over all data ranks [default: one per data rank; N with --devices alone]
    #[arg(long, value_name = "B", value_parser = size, allow_negative_numbers = true)]
    pub batch: Option<usize>,
    /// Tokens of a sequence [default: M's run.json, else min(4096, max_position_embeddings)]
    #[arg(long, value_name = "S", value_parser = size, allow_negative_numbers = true)]
    pub seq_len: Option<usize>,
    /// Element type of parameters and activations: f32, bf16 (parameters are kept in f32) or f64 [default: f32]
    #[arg(long, value_name = "P")]
    pub precision: Option<String>,
    /// Learning rate of AdamW [default: M's run.json, else 1e-3]
    #[arg(long, value_name = "X", value_parser = rate, allow_negative_numbers = true)]
    pub lr: Option<f64>,
    /// What code is made for: cpu [default: cpu]
    #[arg(long, value_name = "T")]
    pub target: Option<String>,
    /// What is fused into one kernel: all, loops (nests of loops only) or none [default: all]
    #[arg(long, value_name = "LEVEL")]
    pub fusion: Option<String>,
    /// Wait for every collective where it is issued, instead of computing meanwhile
    #[arg(long)]
    pub no_overlap: bool,
    /// Initial weights: a folder with safetensors [default: M's folder if it holds some, else the init rule]
    #[arg(long, value_name = "DIR")]
    pub weights: Option<PathBuf>,
}

/// A size: at least 1, small enough to count with.
pub fn size(text: &str) -> Result<usize, String> {
    let n = text.parse::<usize>().ok().filter(|n| (1..=MOST).contains(n));
    n.ok_or_else(|| format!("it must be a whole number from 1 to {MOST}"))
}

/// A learning rate: finite, not negative.
pub fn rate(text: &str) -> Result<f64, String> {
    let x = text.parse::<f64>().ok().filter(|x| x.is_finite() && *x >= 0.0);
    x.ok_or_else(|| "it must be a finite number, 0 or above".to_string())
}

/// The element type of `--precision`.
pub fn precision(text: &str) -> Result<DType, Failure> {
    const LATER: [&str; 4] = ["f16", "fp8", "mxfp8", "nvfp4"];
    match DType::from_name(text) {
        Some(d) if d.is_float() => Ok(d),
        _ if LATER.contains(&text) => {
            Err(Failure::Failed(format!("--precision {text} is not executed yet; use f32, bf16 or f64")))
        }
        _ => {
            let near = suggestion(text, ["f64", "f32", "bf16"].into_iter().chain(LATER));
            Err(Failure::Usage(format!("unknown --precision {text}; f64, f32 and bf16 are executed{near}")))
        }
    }
}

/// The level of `--fusion`.
pub fn fusion(text: &str) -> Result<String, Failure> {
    let known = || Fusion::LEVELS.into_iter().map(|(name, _)| name);
    match Fusion::from_name(text) {
        Some(_) => Ok(text.to_string()),
        None => {
            let names = known().collect::<Vec<_>>().join(", ");
            Err(Failure::Usage(format!("unknown --fusion {text}; known: {names}{}", suggestion(text, known()))))
        }
    }
}

/// Checks `--target`: `cpu` is the one of this build.
pub fn target(text: Option<&str>) -> Result<(), Failure> {
    match text {
        None | Some("cpu") => Ok(()),
        Some(t @ ("cuda" | "sm_80" | "sm_90a" | "sm_100")) => {
            Err(Failure::Failed(format!(
                "--target {t}: products and attention have no CUDA kernels yet, so no whole step runs on a GPU; use --target cpu"
            )))
        }
        Some(t) => {
            let near = suggestion(t, ["cpu", "cuda", "sm_80", "sm_90a", "sm_100"]);
            Err(Failure::Usage(format!("unknown --target {t}; this build makes code for cpu{near}")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_rates_have_ranges() {
        assert_eq!(size("8"), Ok(8));
        for bad in ["0", "-1", "1e3", "18446744073709551616", "1073741825", ""] {
            assert!(size(bad).is_err(), "{bad}");
        }
        assert_eq!(rate("1e-3"), Ok(1e-3));
        assert!(["-1", "nan", "inf", "x"].iter().all(|t| rate(t).is_err()));
    }
}

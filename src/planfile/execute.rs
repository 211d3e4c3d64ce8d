//! Which plans can be executed: the axes that programs have so far, and the formats that kernels have.

use super::{axis_names, PlanFile};
use crate::predict::{Precision, Recompute};
use autoshard_passes::search::Degrees;

/// A plan as `compile` takes it.
#[derive(Clone, Debug, PartialEq)]
pub struct Execution {
    /// Degrees of the mesh.
    pub degrees: Degrees,
    /// Sequences of a step over all data ranks.
    pub batch: usize,
    /// Positions of a sequence.
    pub seq_len: usize,
    /// Element type, as `--precision` takes it.
    pub precision: &'static str,
}

/// A decision that is not executed yet.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{key}={value} is not executed yet: {instead}")]
pub struct NotExecuted {
    /// Key of the plan.
    pub key: &'static str,
    /// Its value.
    pub value: String,
    /// What is, and how to plan for it.
    pub instead: String,
}

/// The degrees and sizes of a plan that execution has; a search for `this-machine` can ask it which plans count.
///
/// # Errors
/// The first decision that is not executed, by its key.
pub fn execution(plan: &PlanFile) -> Result<Execution, NotExecuted> {
    let l = &plan.layout;
    let refuse = |key: &'static str, value: &dyn ToString, instead: &str| NotExecuted {
        key,
        value: value.to_string(),
        instead: instead.to_string(),
    };
    if plan.cluster != "this-machine" {
        return Err(refuse("cluster", &plan.cluster, "ranks of this machine are; plan with --cluster this-machine"));
    }
    for (key, n) in [("pp", l.pp), ("cp", l.cp), ("ep", l.ep), ("etp", l.etp), ("vpp", l.vpp)] {
        if n > 1 {
            return Err(refuse(key, &n, &format!("dp, tp and shard_group (with zero=3) are; plan with --fix {key}=1")));
        }
    }
    if l.microbatches > 1 {
        let instead = "a step is one micro-batch; plan with --fix microbatches=1, or a smaller --global-batch";
        return Err(refuse("microbatches", &l.microbatches, instead));
    }
    // Where one rank holds a copy, nothing is shared, whatever zero says.
    let shares = l.shard_group > 1;
    if shares && l.zero != 3 {
        let instead = "data ranks share parameters too, or nothing; plan with --fix zero=3 or zero=0";
        return Err(refuse("zero", &l.zero, instead));
    }
    if shares && l.keep {
        return Err(refuse("keep", &1, "parameters are gathered for each use; plan with --fix keep=0"));
    }
    if l.recompute != Recompute::None {
        return Err(refuse("recompute", &l.recompute, "all activations are kept; plan with --fix recompute=none"));
    }
    let names = axis_names(l);
    if l.tp > 1 && names.first() != Some(&"tp") {
        return Err(refuse("layout", &names.join("+"), "tp ranks are neighbours; plan with --fix layout=tp+dp"));
    }
    let precision = match plan.precision {
        Precision::F32 => "f32",
        Precision::Bf16 => "bf16",
        p @ (Precision::F16 | Precision::Fp8 | Precision::Mxfp8 | Precision::Nvfp4) => {
            return Err(refuse("precision", &p, "f32 and bf16 are; plan with --precision f32"))
        }
    };
    let fsdp = if shares { l.shard_group } else { 1 };
    if !l.dp.is_multiple_of(fsdp) {
        return Err(refuse("shard_group", &fsdp, "a group divides dp; plan with a shard_group that does"));
    }
    let size = |n: u64| usize::try_from(n).unwrap_or(usize::MAX);
    let degrees =
        Degrees { dp: size(l.dp / fsdp), fsdp: size(fsdp), tp: size(l.tp), sequence_parallel: l.sp || l.tp == 1 };
    Ok(Execution { degrees, batch: size(plan.global_batch), seq_len: size(plan.seq_len), precision })
}

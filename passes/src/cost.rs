//! Roofline cost of a local module: for each kernel, as fused, the larger of its FLOPs over the peak and its bytes
//! over the memory bandwidth, for each collective its wire bytes over the link plus a latency.
//!
//! This is the estimate by which `--devices N` chooses a mesh; it is not a prediction of step time.

use crate::fuse::{fuse, Fusion, Work};
use crate::lower::LowerError;
use autoshard_ir::core::{Axis, Function, Module, Type};
use autoshard_ir::program::CollectiveKind;
use autoshard_ir::{DType, Mesh};
use std::collections::HashMap;

/// Figures of the machine that a step runs on. Rates are those of one rank.
#[derive(Clone, Debug, PartialEq)]
pub struct Machine {
    /// Preset name.
    pub name: String,
    /// FLOP/s by element type.
    pub peak: Vec<(DType, f64)>,
    /// Bytes/s to memory.
    pub memory_bandwidth: f64,
    /// Bytes/s between ranks, per rank and direction.
    pub link_bandwidth: f64,
    /// Seconds per collective.
    pub collective_latency: f64,
    /// Seconds per kernel.
    pub kernel_latency: f64,
}

impl Machine {
    /// Peak FLOP/s of an element type (the lowest known if it is not listed).
    pub fn peak_of(&self, dtype: DType) -> f64 {
        let found = self.peak.iter().find(|(d, _)| *d == dtype).map(|(_, p)| *p);
        found.unwrap_or_else(|| self.peak.iter().map(|(_, p)| *p).fold(f64::INFINITY, f64::min))
    }
}

/// Cost of one rank's step, in parts.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Cost {
    /// Seconds in kernels.
    pub compute: f64,
    /// Seconds in collectives.
    pub communication: f64,
    /// FLOPs.
    pub flops: f64,
    /// Bytes received from other ranks.
    pub wire: f64,
}

impl Cost {
    /// Seconds, nothing overlapped.
    pub fn seconds(&self) -> f64 {
        self.compute + self.communication
    }

    /// Adds `times` the other cost.
    pub(crate) fn add_scaled(&mut self, other: &Cost, times: f64) {
        self.compute += times * other.compute;
        self.communication += times * other.communication;
        self.flops += times * other.flops;
        self.wire += times * other.wire;
    }
}

/// Cost of the module's entry.
pub fn price(module: &Module, machine: &Machine) -> Result<Cost, LowerError> {
    let mut done: HashMap<&str, Cost> = HashMap::new();
    for f in &module.functions {
        let cost = function(module, f, machine, &done)?;
        done.insert(&f.name, cost);
    }
    Ok(done.get(module.entry.as_str()).copied().unwrap_or_default())
}

fn function(module: &Module, f: &Function, machine: &Machine, done: &HashMap<&str, Cost>) -> Result<Cost, LowerError> {
    let mut total = Cost::default();
    for unit in fuse(f, &module.mesh, &Fusion::ALL)? {
        match &unit.work {
            Work::Call(n) => {
                let callee = f.node(*n).callee.as_deref().unwrap_or_default();
                total.add_scaled(&done.get(callee).copied().unwrap_or_default(), 1.0);
            }
            Work::Collective(n) => {
                let node = f.node(*n);
                let kind = CollectiveKind::from_name(node.op.name).ok_or_else(|| LowerError::Node {
                    function: f.name.clone(),
                    node: node.op.name.to_string(),
                    message: "it is no kind of communication".to_string(),
                })?;
                let wire = wire_bytes(kind, f.ty(node.inputs[0]), f.ty(node.results[0]), &module.mesh);
                let latency =
                    if kind == CollectiveKind::Local { machine.kernel_latency } else { machine.collective_latency };
                total.wire += wire;
                total.communication += wire / machine.link_bandwidth + latency;
            }
            Work::Kernel(kernel) => {
                let dtype = unit.results.first().map_or(DType::F32, |r| f.ty(*r).dtype);
                let time = (kernel.flops / machine.peak_of(dtype)).max(kernel.bytes / machine.memory_bandwidth);
                total.flops += kernel.flops;
                total.compute += time + machine.kernel_latency;
            }
        }
    }
    Ok(total)
}

/// Bytes that a rank receives: (g−1)/g·S for gathers, reduce-scatters and all-to-alls, twice that for
/// all-reduces, with S the tensor that the group holds together.
pub fn wire_bytes(kind: CollectiveKind, from: &Type, to: &Type, mesh: &Mesh) -> f64 {
    let bytes = |ty: &Type| mesh.local_bytes(ty) as f64;
    let ways = |a: &Type, b: &Type| -> f64 {
        let gone: Vec<Axis> = a.used_axes().filter(|x| !b.used_axes().any(|y| y == *x)).cloned().collect();
        mesh.span(&gone) as f64
    };
    match kind {
        CollectiveKind::AllGather => bytes(to) * (1.0 - 1.0 / ways(from, to)),
        CollectiveKind::AllReduce => 2.0 * bytes(from) * (1.0 - 1.0 / ways(from, to)),
        CollectiveKind::ReduceScatter => bytes(from) - bytes(to),
        CollectiveKind::AllToAll => bytes(to),
        CollectiveKind::Local => 0.0,
    }
}

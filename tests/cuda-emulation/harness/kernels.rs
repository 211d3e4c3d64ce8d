//! The kernels of whole training steps, and what to feed them.

use super::jobs::Tensor;
use super::reference::{self, shapes};
use autoshard::compile::plan_mesh;
use autoshard::ir::kernel::{Extent, Kernel, KernelBody, LoopOp};
use autoshard::ir::mesh::Mesh;
use autoshard::ir::program::{Buf, Step};
use autoshard::ir::DType;
use autoshard::model::{Model, StepShape};
use autoshard::passes::autodiff::AdamW;
use autoshard::passes::fuse::Fusion;
use autoshard::passes::schedule::{self, Options};
use autoshard::passes::search::{self, Degrees};
use std::path::Path;

/// The kernels of a program.
pub struct Program {
    pub mesh: Mesh,
    pub kernels: Vec<Kernel>,
    /// Per kernel: operands and results that share memory in its last step.
    pub in_place: Vec<Vec<(usize, usize)>>,
}

/// The training step of a configuration on a mesh.
pub fn program(folder: &Path, shape: StepShape, degrees: &Degrees) -> Result<Program, String> {
    let said = |e: &dyn std::fmt::Display| format!("{}: {e}", folder.display());
    let model = Model::load(folder, shape).map_err(|e| said(&e))?;
    let plan = plan_mesh(&model, degrees).map_err(|e| said(&e))?;
    let local = search::localize(&model.module, &plan, &AdamW::default()).map_err(|e| said(&e))?;
    let options = Options { fusion: Fusion::LOOPS, overlap: false };
    let program = schedule::schedule(&local, &options).map_err(|e| said(&e))?;
    let in_place = in_place(&program);
    Ok(Program { mesh: program.mesh, kernels: program.kernels, in_place })
}

fn in_place(program: &autoshard::ir::program::Program) -> Vec<Vec<(usize, usize)>> {
    let mut out = vec![Vec::new(); program.kernels.len()];
    for f in &program.functions {
        // A result that lives in a parameter's buffer is that buffer.
        let place = |b: &Buf| match b {
            Buf::Result(i) => f.in_place.get(*i).copied().flatten().map_or(*b, Buf::Param),
            _ => *b,
        };
        for step in &f.steps {
            let Step::Kernel { kernel, buffers } = step else { continue };
            let (operands, results) = buffers.split_at(program.kernels[*kernel].operands);
            out[*kernel].clear();
            for (r, result) in results.iter().enumerate() {
                if let Some(o) = operands.iter().position(|o| place(o) == place(result)) {
                    out[*kernel].push((o, operands.len() + r));
                }
            }
        }
    }
    out
}

/// Whether a kernel is of a template that is run here.
pub fn is_loop(kernel: &Kernel) -> bool {
    matches!(kernel.body, KernelBody::Loop(_) | KernelBody::Gather(_) | KernelBody::Scatter(_))
}

/// The kernel with one global entry less in every split range, if local sizes stay: the last rank's
/// part is then shorter than the others'.
pub fn ragged(kernel: &Kernel, mesh: &Mesh) -> Kernel {
    let mut kernel = kernel.clone();
    let shorten = |e: &mut Extent| {
        let local = |global: usize| e.axes.iter().fold(global, |n, a| n.div_ceil(mesh.size(a)));
        let split = e.axes.iter().any(|a| mesh.size(a) > 1);
        if split && e.global > 1 && local(e.global - 1) == e.size {
            e.global -= 1;
        }
    };
    match &mut kernel.body {
        KernelBody::Loop(nests) => nests.iter_mut().flat_map(|n| &mut n.loops).for_each(shorten),
        KernelBody::Gather(g) | KernelBody::Scatter(g) => {
            g.rows.iter_mut().chain([&mut g.table, &mut g.d]).for_each(shorten);
        }
        _ => {}
    }
    kernel
}

/// Number of a counter: 7 bits, exact in every float type, never zero.
fn noise(seed: u64, i: usize) -> f64 {
    let word = (i as u64 + seed * 7919).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 57;
    (2.0 * word as f64 - 127.0) / 128.0
}

/// Operands, and the results that they give: numbers in (−1, 1), or in (0, 1) where those give
/// roots or logarithms of negative numbers. Elements that the kernel has no business with are NaN.
pub fn operands(kernel: &Kernel, mesh: &Mesh, coords: &[usize]) -> (Vec<Tensor>, Vec<Vec<Option<f64>>>) {
    let mut last = None;
    for positive in [false, true] {
        let mut tensors = fill(kernel, positive);
        let results = reference::reference(kernel, mesh, coords, &tensors);
        let touched = reference::touched(kernel, mesh, coords, &tensors);
        for (t, (used, besides)) in tensors.iter_mut().zip(touched.loaded.iter().zip(&touched.optional)) {
            let unused = if t.dtype == DType::I32 { f64::from(i32::MIN) } else { f64::NAN };
            for ((value, used), besides) in t.values.iter_mut().zip(used).zip(besides) {
                if !used && !besides {
                    *value = unused;
                }
            }
        }
        let numbers = results.iter().flatten().flatten().all(|v| v.is_finite());
        last = Some((tensors, results));
        if numbers {
            break;
        }
    }
    last.unwrap_or_default()
}

fn fill(kernel: &Kernel, positive: bool) -> Vec<Tensor> {
    // Ids name table rows; other integers are compared with indices, or count from 1.
    let (first, ids) = match &kernel.body {
        KernelBody::Gather(g) | KernelBody::Scatter(g) => (0, g.table.global),
        KernelBody::Loop(nests) => {
            let compared =
                nests.iter().flat_map(|n| n.instrs.iter().map(move |i| (n, i))).filter_map(|(n, i)| match i.op {
                    LoopOp::Index(t) => Some(n.loops[t].global),
                    _ => None,
                });
            compared.max().map_or((1, 7), |global| (0, global))
        }
        _ => (0, 1),
    };
    let shapes = shapes(kernel);
    let tensor = |(k, s): (usize, &reference::Shape)| {
        let value = |i: usize| match s.dtype {
            DType::I32 => (first + (i * i + 3 * i + k) % ids.max(1)) as f64,
            _ if positive => noise(k as u64 + 1, i).abs(),
            _ => noise(k as u64 + 1, i),
        };
        Tensor { dtype: s.dtype, values: (0..s.len).map(value).collect() }
    };
    shapes[..kernel.operands].iter().enumerate().map(tensor).collect()
}

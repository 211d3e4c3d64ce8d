//! The kernels of whole training steps, and what to feed them.

use super::manifest::PackedModel;
use super::reference::{self, shapes};
use super::tensor::Tensor;
use super::CheckError;
use crate::compile::plan_mesh;
use crate::model::{Model, StepShape};
use autoshard_ir::kernel::{Extent, Kernel, KernelBody, LoopOp};
use autoshard_ir::mesh::Mesh;
use autoshard_ir::program::{Buf, Program, Step};
use autoshard_ir::DType;
use autoshard_passes::autodiff::AdamW;
use autoshard_passes::fuse::Fusion;
use autoshard_passes::schedule::{self, Options};
use autoshard_passes::search::{self, Degrees};
use std::collections::BTreeSet;
use std::path::Path;

/// A kernel to check, on a mesh.
#[derive(Clone, Debug)]
pub struct Case {
    /// Where it comes from: model, mesh and type.
    pub label: String,
    /// The kernel.
    pub kernel: Kernel,
    /// Mesh that its split extents are split over.
    pub mesh: Mesh,
    /// Operands and results that share memory.
    pub in_place: Vec<(usize, usize)>,
}

/// Meshes of the models: one rank, and one that splits everything that can be split.
const MESHES: [Degrees; 2] = [degrees(1, 1), degrees(2, 2)];

const fn degrees(fsdp: usize, tp: usize) -> Degrees {
    Degrees { dp: 1, fsdp, tp, sequence_parallel: true }
}

/// The distinct kernels of the models' training steps on all meshes, in f32 and bf16. Split ranges
/// are made ragged.
pub fn cases(models: &[PackedModel], root: &Path) -> Result<Vec<Case>, CheckError> {
    let mut seen = BTreeSet::new();
    let mut out = vec![];
    for model in models {
        for dtype in [DType::F32, DType::Bf16] {
            for mesh in &MESHES {
                of_model(model, root, dtype, mesh, &mut |case| {
                    // Layers and models share kernels.
                    if seen.insert(format!("{:?} {:?} {:?}", case.mesh, case.kernel.body, case.in_place)) {
                        out.push(case);
                    }
                })?;
            }
        }
    }
    Ok(out)
}

/// Calls `f` with the kernels of one training step that have CUDA text.
pub fn of_model(
    model: &PackedModel,
    root: &Path,
    dtype: DType,
    degrees: &Degrees,
    f: &mut dyn FnMut(Case),
) -> Result<(), CheckError> {
    let shape = StepShape { batch: model.batch, seq_len: model.seq_len, dtype };
    let program = program(&root.join(&model.name), shape, degrees)?;
    let in_place = in_place(&program);
    let label = format!("{} {} {dtype}", model.name, program.mesh);
    for (kernel, in_place) in program.kernels.iter().zip(in_place).filter(|(k, _)| has_text(k)) {
        let kernel = ragged(kernel, &program.mesh);
        f(Case { label: label.clone(), kernel, mesh: program.mesh.clone(), in_place });
    }
    Ok(())
}

/// The training step of a configuration on a mesh: only loops are fused.
fn program(folder: &Path, shape: StepShape, degrees: &Degrees) -> Result<Program, CheckError> {
    let said = |e: &dyn std::fmt::Display| CheckError::Model { path: folder.into(), problem: e.to_string() };
    let model = Model::load(folder, shape).map_err(|e| said(&e))?;
    let plan = plan_mesh(&model, degrees).map_err(|e| said(&e))?;
    let local = search::localize(&model.module, &plan, &AdamW::default()).map_err(|e| said(&e))?;
    let options = Options { fusion: Fusion::LOOPS, overlap: false };
    schedule::schedule(&local, &options).map_err(|e| said(&e))
}

/// Per kernel: operands and results that share memory wherever it is used.
fn in_place(program: &Program) -> Vec<Vec<(usize, usize)>> {
    let mut out: Vec<Option<Vec<(usize, usize)>>> = vec![None; program.kernels.len()];
    for f in &program.functions {
        // A result that lives in a parameter's buffer is that buffer.
        let place = |b: &Buf| match b {
            Buf::Result(i) => f.in_place.get(*i).copied().flatten().map_or(*b, Buf::Param),
            _ => *b,
        };
        for step in &f.steps {
            let Step::Kernel { kernel, buffers } = step else { continue };
            let (operands, results) = buffers.split_at(program.kernels[*kernel].operands);
            let shared = results.iter().enumerate().filter_map(|(r, result)| {
                let o = operands.iter().position(|o| place(o) == place(result))?;
                Some((o, operands.len() + r))
            });
            let shared: Vec<_> = shared.collect();
            let all = out[*kernel].get_or_insert_with(|| shared.clone());
            all.retain(|pair| shared.contains(pair));
        }
    }
    out.into_iter().map(Option::unwrap_or_default).collect()
}

/// Whether a kernel is of a template that has CUDA text.
pub fn has_text(kernel: &Kernel) -> bool {
    matches!(kernel.body, KernelBody::Loop(_) | KernelBody::Gather(_) | KernelBody::Scatter(_))
}

/// The kernel with one global entry less in every split range, if local sizes stay: the last rank's
/// part is then shorter than the others'.
fn ragged(kernel: &Kernel, mesh: &Mesh) -> Kernel {
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
            let all = t.values.iter_mut().zip(used.iter().zip(besides));
            all.filter(|(_, (used, besides))| !**used && !**besides).for_each(|(v, _)| *v = unused);
        }
        let numbers = results.iter().flatten().flatten().all(|v| v.is_finite());
        last = Some((tensors, results));
        if numbers {
            break;
        }
    }
    last.unwrap_or_default()
}

/// First integer and number of integers that an i32 operand takes: ids name table rows, others are
/// compared with indices or count from 1.
pub fn integers(kernel: &Kernel) -> (usize, usize) {
    match &kernel.body {
        KernelBody::Gather(g) | KernelBody::Scatter(g) => (0, g.table.global),
        KernelBody::Loop(nests) => {
            let indices = nests.iter().flat_map(|n| n.instrs.iter().map(move |i| (n, i)));
            let compared = indices.filter_map(|(n, i)| match i.op {
                LoopOp::Index(t) => Some(n.loops[t].global),
                _ => None,
            });
            compared.max().map_or((1, 7), |global| (0, global))
        }
        _ => (0, 1),
    }
}

fn fill(kernel: &Kernel, positive: bool) -> Vec<Tensor> {
    let (first, ids) = integers(kernel);
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

/// The type of a kernel's arithmetic that keeps the fewest digits.
pub fn loosest(kernel: &Kernel) -> DType {
    let mut types: Vec<DType> = shapes(kernel).iter().map(|s| s.dtype).collect();
    if let KernelBody::Loop(nests) = &kernel.body {
        types.extend(nests.iter().flat_map(|n| n.instrs.iter().map(|i| i.dtype)));
    }
    let order = [DType::Bf16, DType::F32, DType::F64];
    order.into_iter().find(|t| types.contains(t)).unwrap_or(DType::I32)
}

//! CUDA C of kernels, as text without includes. A pure function: the same kernel gives the same
//! text, and kernels that differ only in their reported names give the same text, too.
//!
//! Nothing that is generated here has run on a GPU yet; it is compiled for its targets, and its own
//! text runs as C++ under an emulation of the primitives.
//!
//! # Calling convention
//!
//! A kernel is one or more entry points, launched in order with the same arguments:
//!
//! 1. a pointer per buffer of the kernel, operands first, then results; 64-byte aligned;
//! 2. if [`CudaKernel::workspace`] is not 0, a pointer to as many bytes, 64-byte aligned, with
//!    undefined contents;
//! 3. for each of [`CudaKernel::extents`], in order, the first global index and the number of
//!    entries of this rank's part, each an unsigned int.
//!
//! `CudaKernel::launches` gives these numbers and the grid. Sizes of whole extents are constants of
//! the text; so are all strides, which come from padded sizes. Elements beyond a part's length are
//! neither read nor written.
//!
//! A result may be the same memory as an operand of the same view (an update in place); other
//! results and the workspace overlap nothing. Arguments take up to 32 KiB, which needs a driver of
//! CUDA 12.1 or later where they exceed 4 KiB.
//!
//! # Arithmetic
//!
//! Each instruction is computed in float, or in double if its result or an argument is f64, and
//! rounded to its type; products and sums may be fused. Unlike on the CPU, uniform registers are
//! computed like the others. i32 registers are integers. Sums along a lane are made in float (double
//! for f64 and i32), sums of whole rows over rows in double, sums over rows that keep the lane in
//! float within a part. The order of all sums depends on sizes alone. There are no atomics.

mod code;
mod combine;
mod error;
mod expr;
mod finish;
mod gather;
mod lanes;
mod launch;
mod loops;
mod nest;
mod piece;
mod pointwise;
mod rows;
mod scatter;
mod text;
mod workspace;

pub use error::CodegenError;
pub use launch::Launch;

use autoshard_ir::core::DType;
use autoshard_ir::kernel::{Extent, Kernel, KernelBody};
use error::Site;
use sha2::{Digest, Sha256};
use text::Text;

/// The device primitives that texts start with.
pub const PRIMITIVES: &str = include_str!("primitives.cuh");
/// Plain C++ on top of them, which follows.
pub const SUPPORT: &str = include_str!("support.cuh");

/// A kernel's text, with all that is known about calling it.
#[derive(Clone, Debug, PartialEq)]
pub struct CudaKernel {
    /// Name from a hash of the text: equal texts have equal names.
    pub name: String,
    /// The text.
    pub source: String,
    /// Entry points in the order in which they are launched.
    pub entries: Vec<Entry>,
    /// Number of buffers.
    pub buffers: usize,
    /// Bytes of workspace, 0 for none.
    pub workspace: usize,
    /// Split extents whose parts are arguments.
    pub extents: Vec<Extent>,
}

/// An entry point.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Name of the function.
    pub name: String,
    /// Blocks.
    pub grid: u32,
    /// Threads of a block.
    pub block: u32,
    /// Bytes of shared memory that the text declares.
    pub shared: u32,
    /// Bytes of dynamic shared memory.
    pub dynamic: u32,
}

/// Writes a kernel's text.
pub fn emit(kernel: &Kernel) -> Result<CudaKernel, CodegenError> {
    let template = template(&kernel.body);
    let site = Site { kernel: &kernel.name, template };
    let buffers = kernel.operands.saturating_add(kernel.results);
    let parts = match &kernel.body {
        KernelBody::Loop(nests) => loops::emit(site, nests, kernel.operands, buffers)?,
        KernelBody::Gather(k) => gather::emit(site, k, kernel.operands, kernel.results)?,
        KernelBody::Scatter(k) => scatter::emit(site, k, kernel.operands, kernel.results)?,
        _ => return Err(CodegenError::Template { kernel: kernel.name.clone(), template }),
    };
    assemble(site, buffers, parts)
}

/// Name of a template.
fn template(body: &KernelBody) -> &'static str {
    match body {
        KernelBody::Loop(_) => "loop",
        KernelBody::Gemm(_) => "gemm",
        KernelBody::Attention(_) => "attention",
        KernelBody::AttentionBackward(_) => "attention backward",
        KernelBody::Gather(_) => "gather",
        KernelBody::Scatter(_) => "scatter",
        KernelBody::Copy(_) => "copy",
    }
}

/// What a template contributes.
struct Parts {
    extents: Extents,
    tables: code::Tables,
    workspace: usize,
    points: Vec<Point>,
}

/// An entry point without its head.
struct Point {
    body: String,
    blocks: usize,
    block: usize,
    shared: usize,
}

/// Split extents of a kernel, each once.
#[derive(Default)]
struct Extents(Vec<Extent>);

impl Extents {
    /// Position of an extent, if it is split.
    fn id(&mut self, e: &Extent) -> Option<usize> {
        if e.axes.is_empty() {
            return None;
        }
        let same = |x: &Extent| (x.size, x.global, &x.axes) == (e.size, e.global, &e.axes);
        Some(self.0.iter().position(same).unwrap_or_else(|| {
            self.0.push(e.clone());
            self.0.len() - 1
        }))
    }

    fn globals(&self) -> Vec<usize> {
        self.0.iter().map(|e| e.global).collect()
    }
}

/// Most bytes of arguments.
const ARGUMENTS: usize = 32_764;
/// Stands for the kernel's name until the text is known.
const NAME: &str = "NAME_OF_THE_KERNEL";

fn assemble(site: Site, buffers: usize, parts: Parts) -> Result<CudaKernel, CodegenError> {
    if let Some(e) = parts.extents.0.iter().find(|e| e.global > u32::MAX as usize || e.size > u32::MAX as usize) {
        return Err(site.unsupported(format!("an extent of {} entries ({})", e.global, e.name)));
    }
    let pointers = buffers.saturating_add(usize::from(parts.workspace > 0));
    let arguments = pointers.saturating_add(parts.extents.0.len()).saturating_mul(8);
    if arguments > ARGUMENTS {
        return Err(site.unsupported(format!("{arguments} bytes of arguments")));
    }
    let mut text = Text::default();
    for (i, (dtype, values)) in parts.tables.iter().enumerate() {
        table(&mut text, i, *dtype, values);
    }
    let head = parameters(buffers, parts.workspace > 0, parts.extents.0.len());
    let mut entries = vec![];
    for (i, point) in parts.points.iter().enumerate() {
        let name = if i == 0 { NAME.to_string() } else { format!("{NAME}_{i}") };
        let grid = u32::try_from(point.blocks).ok().filter(|b| *b <= i32::MAX as u32);
        let grid = grid.ok_or_else(|| site.unsupported(format!("{} blocks", point.blocks)))?;
        text.open(format!("\nKERNEL({}) {name}({head})", point.block));
        text.line(&point.body);
        text.close();
        text.line(format!("EXPORT_KERNEL({name})"));
        let (block, shared) = (point.block as u32, point.shared as u32);
        entries.push(Entry { name, grid, block, shared, dynamic: 0 });
    }
    let source = format!("{PRIMITIVES}\n{SUPPORT}\n{}", text.finish());
    let hash = Sha256::digest(source.as_bytes());
    let name = hash[..8].iter().fold("k".to_string(), |s, b| format!("{s}{b:02x}"));
    let source = source.replace(NAME, &name);
    entries.iter_mut().for_each(|e| e.name = e.name.replace(NAME, &name));
    Ok(CudaKernel { name, source, entries, buffers, workspace: parts.workspace, extents: parts.extents.0 })
}

fn parameters(buffers: usize, workspace: bool, extents: usize) -> String {
    let mut all: Vec<String> = (0..buffers).map(|b| format!("void* b{b}")).collect();
    if workspace {
        all.push("void* workspace".into());
    }
    all.extend((0..extents).map(|e| format!("unsigned s{e}, unsigned n{e}")));
    all.join(", ")
}

fn table(text: &mut Text, i: usize, dtype: DType, values: &[f64]) {
    let numbers: Vec<String> = values.iter().map(|x| text::number(*x, dtype)).collect();
    text.line(format!("CONSTANT {} table{i}[{}] = {{", text::ctype(dtype), values.len()));
    numbers.chunks(8).for_each(|row| text.line(format!("  {},", row.join(", "))));
    text.line("};");
}

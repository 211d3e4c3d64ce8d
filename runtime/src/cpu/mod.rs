//! The CPU device: executes [`Kernel`]s directly, without generating code.
//!
//! Every template has a file or folder. What they share: only the *real* entries of an [`Extent`] are read
//! and written (strides come from padded sizes, tails are never touched), reductions over nothing
//! give the monoid's identity, and work is cut by shapes alone, so that results do not depend on
//! the number of threads.

mod attention;
mod copy;
pub(crate) mod elem;
mod gather;
mod gemm;
mod loops;
mod math;
pub mod pool;

pub use pool::Pool;

use autoshard_ir::core::DType;
use autoshard_ir::kernel::{Extent, Kernel, KernelBody};
use autoshard_ir::mesh::Mesh;
use std::cell::RefCell;

/// Memory of one operand or result.
#[derive(Clone, Copy, Debug)]
pub struct Buffer {
    /// First byte, aligned to the element type at least.
    pub ptr: *mut u8,
    /// Size: at least that of the value.
    pub bytes: usize,
}

/// Why a kernel did not run.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum KernelError {
    /// The executor handed over memory that the kernel's views leave.
    #[error("kernel {kernel}: buffer {buffer} has {have} bytes, its views need {need}")]
    TooSmall {
        /// Kernel.
        kernel: String,
        /// Position of the buffer, operands first.
        buffer: usize,
        /// Bytes that the views reach.
        need: usize,
        /// Bytes there are.
        have: usize,
    },
    /// An index outside the table.
    #[error("kernel {kernel}: row {row} asks for id {id}, but the table has {size} rows")]
    Id {
        /// Kernel.
        kernel: String,
        /// Local row, counted over real entries.
        row: usize,
        /// The id.
        id: i32,
        /// Global number of table rows.
        size: usize,
    },
    /// The CPU does not execute this.
    #[error("kernel {kernel}: the CPU has no {what}")]
    Unsupported {
        /// Kernel.
        kernel: String,
        /// What is missing.
        what: String,
    },
    /// The kernel contradicts itself.
    #[error("kernel {kernel}: {what}")]
    Malformed {
        /// Kernel.
        kernel: String,
        /// The contradiction.
        what: String,
    },
}

/// Runs a kernel for the rank at `coords`. `buffers` are the operands, then the results.
///
/// # Errors
/// Those of [`Prepared::new`] and [`Prepared::run`].
///
/// # Safety
/// That of [`Prepared::run`].
pub unsafe fn execute(
    kernel: &Kernel,
    mesh: &Mesh,
    coords: &[usize],
    buffers: &[Buffer],
    pool: &Pool,
) -> Result<(), KernelError> {
    // SAFETY: the caller's promise, passed on.
    unsafe { Prepared::new(kernel, mesh, coords)?.run(buffers, pool) }
}

/// A kernel resolved for one rank: all that does not depend on where its buffers lie.
#[derive(Debug)]
pub struct Prepared {
    name: String,
    operands: usize,
    needs: Vec<Need>,
    body: Body,
}

/// Bytes that the views of a buffer reach, and their alignment.
#[derive(Clone, Copy, Debug, Default)]
struct Need {
    bytes: usize,
    dtype: Option<DType>,
}

/// The template, resolved.
#[derive(Debug)]
enum Body {
    Loop(loops::Plan),
    Gemm(gemm::Plan),
    Attention(attention::Plan),
    AttentionBackward(attention::Plan),
    Gather(gather::Plan),
    Scatter(gather::Plan),
    Copy(copy::Plan),
}

impl Prepared {
    /// Resolves a kernel for the rank at `coords`.
    ///
    /// # Errors
    /// [`KernelError::Malformed`] and [`KernelError::Unsupported`].
    pub fn new(kernel: &Kernel, mesh: &Mesh, coords: &[usize]) -> Result<Prepared, KernelError> {
        let buffers = kernel.operands.saturating_add(kernel.results);
        let needs = RefCell::new(vec![Need::default(); buffers.min(MAX_BUFFERS)]);
        let task = Task { kernel, mesh, coords, needs };
        if buffers > MAX_BUFFERS {
            return Err(task.malformed(format!("{buffers} buffers")));
        }
        task.check_arity()?;
        let body = match &kernel.body {
            KernelBody::Loop(k) => Body::Loop(loops::Plan::new(&task, k)?),
            KernelBody::Gemm(k) => Body::Gemm(gemm::Plan::new(&task, k)?),
            KernelBody::Attention(k) => Body::Attention(attention::Plan::forward(&task, k)?),
            KernelBody::AttentionBackward(k) => Body::AttentionBackward(attention::Plan::backward(&task, k)?),
            KernelBody::Gather(k) => Body::Gather(gather::Plan::gather(&task, k)?),
            KernelBody::Scatter(k) => Body::Scatter(gather::Plan::scatter(&task, k)?),
            KernelBody::Copy(k) => Body::Copy(copy::Plan::new(&task, k)?),
        };
        let (name, operands) = (kernel.name.clone(), kernel.operands);
        Ok(Prepared { name, operands, needs: task.needs.into_inner(), body })
    }

    /// Runs the kernel on the operands, then the results.
    ///
    /// # Errors
    /// [`KernelError::TooSmall`], [`KernelError::Id`], and [`KernelError::Malformed`] for buffers
    /// that are too many, too few or misaligned.
    ///
    /// # Safety
    /// Every buffer's `ptr` must be valid for `bytes` bytes for the whole call: readable if it is an
    /// operand, writable if it is a result, and not written by anybody else meanwhile. A result may
    /// be an operand's memory only in a Loop kernel that reads and writes it through the same views,
    /// all within one of its nests. The kernel's stores reach every element of a result at most once
    /// (sizes and strides of lowering do).
    pub unsafe fn run(&self, buffers: &[Buffer], pool: &Pool) -> Result<(), KernelError> {
        self.check(buffers)?;
        let call = Call { name: &self.name, buffers, pool };
        // SAFETY: the caller's promise; the buffers are as large as the views need.
        unsafe {
            match &self.body {
                Body::Loop(p) => p.run(&call),
                Body::Gemm(p) => p.run(&call),
                Body::Attention(p) => p.run_forward(&call),
                Body::AttentionBackward(p) => p.run_backward(&call),
                Body::Gather(p) => return p.run_gather(&call),
                Body::Scatter(p) => return p.run_scatter(&call),
                Body::Copy(p) => p.run(&call),
            }
        }
        Ok(())
    }

    /// Bytes that each buffer must have, and the widest type that it is read or written as.
    pub fn needs(&self) -> impl Iterator<Item = (usize, Option<DType>)> + '_ {
        self.needs.iter().map(|n| (n.bytes, n.dtype))
    }

    /// How many distinct bytes of each buffer the loads and stores of loop nests touch: what a cost
    /// model should charge for them.
    pub fn touched(&self) -> Vec<usize> {
        let mut touched = loops::Touched(vec![vec![]; self.needs.len()]);
        match &self.body {
            Body::Loop(p) => touched.plan(p),
            Body::Gemm(p) => p.epilogue.iter().for_each(|e| touched.epilogue(e)),
            _ => {}
        }
        touched.0.iter().map(|bytes| bytes.iter().filter(|b| **b).count()).collect()
    }

    fn check(&self, buffers: &[Buffer]) -> Result<(), KernelError> {
        let malformed = |what| Err(KernelError::Malformed { kernel: self.name.clone(), what });
        if buffers.len() != self.needs.len() {
            let (given, results) = (buffers.len(), self.needs.len() - self.operands);
            return malformed(format!("{given} buffers for {} operands and {results} results", self.operands));
        }
        for (buffer, (memory, need)) in buffers.iter().zip(&self.needs).enumerate() {
            let Some(dtype) = need.dtype else { continue };
            if !(memory.ptr as usize).is_multiple_of(dtype.bytes()) {
                return malformed(format!("buffer {buffer} is not aligned to {dtype}"));
            }
            if need.bytes > memory.bytes {
                let kernel = self.name.clone();
                return Err(KernelError::TooSmall { kernel, buffer, need: need.bytes, have: memory.bytes });
            }
        }
        Ok(())
    }
}

/// More buffers than any kernel has.
const MAX_BUFFERS: usize = 1 << 20;

/// A kernel being resolved.
pub(crate) struct Task<'a> {
    kernel: &'a Kernel,
    mesh: &'a Mesh,
    coords: &'a [usize],
    /// What its views need so far, by buffer.
    needs: RefCell<Vec<Need>>,
}

/// A kernel about to run.
pub(crate) struct Call<'a> {
    name: &'a str,
    buffers: &'a [Buffer],
    pool: &'a Pool,
}

// SAFETY: buffers are addresses; see `Pointer`.
unsafe impl Sync for Call<'_> {}

impl Call<'_> {
    /// The memory of a buffer that a view was checked for.
    fn at(&self, slot: Slot) -> Pointer {
        Pointer(self.buffers[slot.0].ptr)
    }
}

/// A buffer that some view was checked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Slot(usize);

/// The real entries of a loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Range {
    /// Global index of the first.
    start: usize,
    /// How many.
    len: usize,
}

impl Task<'_> {
    /// Templates find their buffers by position.
    fn check_arity(&self) -> Result<(), KernelError> {
        let (operands, results) = (self.kernel.operands, self.kernel.results);
        let (takes, gives) = match self.kernel.body {
            KernelBody::Loop(_) | KernelBody::Gemm(_) => (operands, results),
            KernelBody::Gather(_) | KernelBody::Scatter(_) => (2, 1),
            KernelBody::Attention(_) => (3, 2),
            KernelBody::AttentionBackward(_) => (6, 3),
            KernelBody::Copy(_) => (operands, 1),
        };
        if (operands, results) != (takes, gives) {
            return Err(self.malformed(format!(
                "{operands} operands and {results} results, but its template has {takes} and {gives}"
            )));
        }
        Ok(())
    }

    /// The size of a packed buffer of these padded sizes, if it can exist at all.
    fn check_packed(&self, sizes: &[usize]) -> Result<(), KernelError> {
        match sizes.iter().try_fold(8usize, |n, s| n.checked_mul((*s).max(1))) {
            Some(n) if isize::try_from(n).is_ok() => Ok(()),
            _ => Err(self.malformed(format!("sizes {sizes:?} overflow"))),
        }
    }

    /// The part of `extent` that this rank holds.
    fn range(&self, extent: &Extent) -> Range {
        let part = extent.part(self.mesh, self.coords);
        Range { start: part.start, len: part.len }
    }

    /// The buffer of a view over loops of these lengths and strides (in elements of `dtype`).
    /// Running the kernel will check that the view stays inside.
    fn check(
        &self,
        buffer: usize,
        dtype: DType,
        offset: usize,
        loops: impl IntoIterator<Item = (usize, usize)>,
    ) -> Result<Slot, KernelError> {
        let mut needs = self.needs.borrow_mut();
        let Some(need) = needs.get_mut(buffer) else {
            return Err(self.malformed(format!("a view of buffer {buffer}, which does not exist")));
        };
        if need.dtype.is_none_or(|d| d.bytes() < dtype.bytes()) {
            need.dtype = Some(dtype);
        }
        let mut last = Some(offset);
        for (len, stride) in loops {
            if len == 0 {
                return Ok(Slot(buffer));
            }
            last = last.and_then(|l| l.checked_add((len - 1).checked_mul(stride)?));
        }
        let bytes = last.and_then(|l| l.checked_add(1)?.checked_mul(dtype.bytes())).unwrap_or(usize::MAX);
        need.bytes = need.bytes.max(bytes);
        Ok(Slot(buffer))
    }

    fn malformed(&self, what: impl Into<String>) -> KernelError {
        KernelError::Malformed { kernel: self.kernel.name.clone(), what: what.into() }
    }

    fn unsupported(&self, what: impl Into<String>) -> KernelError {
        KernelError::Unsupported { kernel: self.kernel.name.clone(), what: what.into() }
    }
}

/// An address that tasks on several threads may use; each writes elements of its own.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pointer(*mut u8);

// SAFETY: an address is a number; whoever dereferences it promises that no two tasks touch the same
// element unless all of them read.
unsafe impl Send for Pointer {}
// SAFETY: as above.
unsafe impl Sync for Pointer {}

impl Pointer {
    /// The address of element `index` of an array of `T` that starts here.
    ///
    /// # Safety
    /// The element lies in the buffer.
    unsafe fn at<T>(self, index: usize) -> *mut T {
        // SAFETY: the caller's promise.
        unsafe { self.0.cast::<T>().add(index) }
    }
}

/// The digits of `n` in the mixed radix `lens`, last fastest (0 for a loop without entries).
pub(crate) fn unpack(mut n: usize, lens: impl DoubleEndedIterator<Item = usize>, out: &mut [usize]) {
    for (digit, len) in out.iter_mut().rev().zip(lens.rev()) {
        *digit = n % len.max(1);
        n /= len.max(1);
    }
}

#[cfg(test)]
pub(crate) mod testing {
    //! What the tests of the templates share.

    use super::*;
    use autoshard_ir::core::Axis;

    /// A value that no kernel may leave where it should have written, nor overwrite in a tail.
    pub const CANARY: f64 = -77.0;

    /// A tensor in memory.
    #[derive(Clone, Debug, PartialEq)]
    pub struct Tensor {
        /// Type.
        pub dtype: DType,
        /// Storage, aligned for every type.
        pub words: Vec<u64>,
        /// Elements.
        pub len: usize,
    }

    impl Tensor {
        /// From numbers.
        pub fn new(dtype: DType, values: &[f64]) -> Tensor {
            let bytes = values.len() * dtype.bytes();
            let mut t = Tensor { dtype, words: vec![0; bytes.div_ceil(8)], len: values.len() };
            values.iter().enumerate().for_each(|(i, v)| t.set(i, *v));
            t
        }

        /// Full of canaries.
        pub fn canary(dtype: DType, len: usize) -> Tensor {
            Tensor::new(dtype, &vec![CANARY; len])
        }

        /// Deterministic numbers in (−1, 1), exact in every float type.
        pub fn noise(dtype: DType, len: usize, seed: u64) -> Tensor {
            let word = |i: u64| (i + seed * 7919).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 57;
            let values: Vec<f64> = (0..len as u64).map(|i| (word(i) as f64 - 63.5) / 64.0).collect();
            Tensor::new(dtype, &values)
        }

        /// Element i.
        pub fn get(&self, i: usize) -> f64 {
            let p = self.words.as_ptr();
            assert!(i < self.len);
            // SAFETY: the element lies in `words`.
            unsafe {
                match self.dtype {
                    DType::F64 => *p.cast::<f64>().add(i),
                    DType::F32 => *p.cast::<f32>().add(i) as f64,
                    DType::I32 => *p.cast::<i32>().add(i) as f64,
                    DType::Bf16 => elem::from_bf16(*p.cast::<u16>().add(i)) as f64,
                }
            }
        }

        fn set(&mut self, i: usize, v: f64) {
            let p = self.words.as_mut_ptr();
            // SAFETY: the element lies in `words`.
            unsafe {
                match self.dtype {
                    DType::F64 => *p.cast::<f64>().add(i) = v,
                    DType::F32 => *p.cast::<f32>().add(i) = v as f32,
                    DType::I32 => *p.cast::<i32>().add(i) = v as i32,
                    DType::Bf16 => *p.cast::<u16>().add(i) = elem::to_bf16(v as f32),
                }
            }
        }

        /// The buffer.
        pub fn buffer(&mut self) -> Buffer {
            Buffer { ptr: self.words.as_mut_ptr().cast(), bytes: self.len * self.dtype.bytes() }
        }
    }

    /// A whole loop.
    pub fn whole(name: &str, size: usize) -> Extent {
        Extent { name: name.into(), size, global: size, axes: vec![] }
    }

    /// A loop split over the axis `x` of three ranks.
    pub fn split(name: &str, global: usize) -> Extent {
        let axes = vec![Axis::new("x")];
        Extent { name: name.into(), size: global.div_ceil(3), global, axes }
    }

    /// The mesh of [`split`].
    pub fn mesh() -> Mesh {
        Mesh::new(&[("x", 3)])
    }

    /// A kernel of this body.
    pub fn kernel(operands: usize, results: usize, body: KernelBody) -> Kernel {
        Kernel { name: "test".into(), operands, results, flops: 0.0, bytes: 0.0, body }
    }

    /// Runs a kernel at coordinate `rank` with one thread and with several, which must agree bit
    /// for bit, and returns the results.
    pub fn run(
        kernel: &Kernel,
        rank: usize,
        operands: &[Tensor],
        results: &[Tensor],
    ) -> Result<Vec<Tensor>, KernelError> {
        let mut outcomes = vec![];
        for width in [1, 2, 3] {
            let mut tensors: Vec<Tensor> = operands.iter().chain(results).cloned().collect();
            let buffers: Vec<Buffer> = tensors.iter_mut().map(Tensor::buffer).collect();
            // SAFETY: the tensors live until the end of the iteration and nobody else has them.
            unsafe { execute(kernel, &mesh(), &[rank], &buffers, &Pool::new(width)) }?;
            assert_eq!(&tensors[..operands.len()], operands, "an operand changed");
            outcomes.push(tensors.split_off(operands.len()));
        }
        let first = outcomes.swap_remove(0);
        for other in outcomes {
            for (a, b) in first.iter().zip(&other) {
                assert_eq!(a.words, b.words, "the width changed the result");
            }
        }
        Ok(first)
    }

    /// Asserts that a result is within `tolerance` of `want` relative to `scale`.
    pub fn assert_near(got: f64, want: f64, tolerance: f64, what: &str) {
        let same = got == want || (got.is_nan() && want.is_nan());
        assert!(same || (got - want).abs() <= tolerance * want.abs().max(1.0), "{what}: {got}, not {want}");
    }
}

#[cfg(test)]
mod tests {
    use super::testing::*;
    use super::*;
    use autoshard_ir::kernel::{CopyBox, CopyKernel};

    #[test]
    fn a_buffer_too_small_is_named() {
        let boxes = vec![CopyBox { source: 0, from: 3, to: 0, loops: vec![(4, 2, 1)] }];
        let body = KernelBody::Copy(CopyKernel { dtype: DType::F32, fill: None, boxes });
        let k = kernel(1, 1, body);
        let result = Tensor::canary(DType::F32, 4);
        let e = run(&k, 0, &[Tensor::noise(DType::F32, 9, 0)], std::slice::from_ref(&result)).unwrap_err();
        assert_eq!(e.to_string(), "kernel test: buffer 0 has 36 bytes, its views need 40");
        assert!(run(&k, 0, &[Tensor::noise(DType::F32, 10, 0)], &[result]).is_ok());
        let e = run(&k, 0, &[], &[]).unwrap_err();
        assert_eq!(e.to_string(), "kernel test: 0 buffers for 1 operands and 1 results");
    }
}

//! How many bytes of each of its buffers a kernel touches.

use autoshard_ir::core::DType;
use autoshard_ir::kernel::{AttentionKernel, CopyKernel, Extent, GatherKernel, GemmKernel, Kernel, KernelBody};
use autoshard_ir::kernel::{Init, LoopKernel, LoopOp};

/// A kernel that contradicts itself.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum SpanError {
    /// The template has another number of buffers than the kernel says.
    #[error("kernel {kernel} has {operands} operands and {results} results, its template {expected}")]
    Arity {
        /// Kernel.
        kernel: String,
        /// Operands.
        operands: usize,
        /// Results.
        results: usize,
        /// Those of the template.
        expected: &'static str,
    },
    /// A view names a buffer that is not there, or that it may not touch.
    #[error("kernel {kernel} {does} buffer {buffer}, but has {operands} operands and {results} results")]
    View {
        /// Kernel.
        kernel: String,
        /// Loads or stores.
        does: &'static str,
        /// Position of the buffer.
        buffer: usize,
        /// Operands.
        operands: usize,
        /// Results.
        results: usize,
    },
    /// Products and nests of one kernel that undo each other.
    #[error("kernel {kernel}: {what} buffer {buffer}")]
    Order {
        /// Kernel.
        kernel: String,
        /// What happens.
        what: &'static str,
        /// Position of the buffer.
        buffer: usize,
    },
    /// A result that the kernel does not write.
    #[error("kernel {kernel} never stores its buffer {buffer}")]
    NoStore {
        /// Kernel.
        kernel: String,
        /// Position of the buffer.
        buffer: usize,
    },
}

/// Bytes that a kernel reads or writes of each buffer, from its start to its last element: operands,
/// then results.
pub(crate) fn spans(kernel: &Kernel) -> Result<Vec<usize>, SpanError> {
    let template = match &kernel.body {
        KernelBody::Loop(_) | KernelBody::Gemm(_) => None,
        KernelBody::Attention(_) => Some((3, 2, "3 and 2")),
        KernelBody::AttentionBackward(_) => Some((6, 3, "6 and 3")),
        KernelBody::Gather(_) | KernelBody::Scatter(_) => Some((2, 1, "2 and 1")),
        KernelBody::Copy(_) => Some((kernel.operands, 1, "any and 1")),
    };
    if let Some((operands, results, expected)) = template {
        if (operands, results) != (kernel.operands, kernel.results) {
            let (kernel, operands, results) = (kernel.name.clone(), kernel.operands, kernel.results);
            return Err(SpanError::Arity { kernel, operands, results, expected });
        }
    }
    match &kernel.body {
        KernelBody::Loop(k) => loops(kernel, k),
        KernelBody::Gemm(k) => gemm(kernel, k),
        KernelBody::Attention(k) => {
            let [q, key, v, o, lse] = attention(k);
            Ok(vec![q, key, v, o, lse])
        }
        KernelBody::AttentionBackward(k) => {
            let [q, key, v, o, lse] = attention(k);
            Ok(vec![q, key, v, o, lse, o, q, key, v])
        }
        KernelBody::Gather(k) => {
            let [table, ids, rows] = gather(k);
            Ok(vec![table, ids, rows])
        }
        KernelBody::Scatter(k) => {
            let [table, ids, rows] = gather(k);
            Ok(vec![rows, ids, table])
        }
        KernelBody::Copy(k) => copies(kernel, k),
    }
}

/// Elements up to the last one of a strided walk; 0 if a loop is empty.
fn extent(offset: usize, loops: impl Iterator<Item = (usize, usize)>) -> usize {
    let mut last = offset;
    for (size, stride) in loops {
        let Some(steps) = size.checked_sub(1) else {
            return 0;
        };
        last = last.saturating_add(steps.saturating_mul(stride));
    }
    last.saturating_add(1)
}

fn bytes(elements: usize, dtype: DType) -> usize {
    elements.saturating_mul(dtype.bytes())
}

/// A packed buffer.
fn packed(extents: &[&Extent], dtype: DType) -> usize {
    let elements = extents.iter().fold(1_usize, |n, e| n.saturating_mul(e.size));
    bytes(elements, dtype)
}

/// Spans as they are found, and which buffers are stored.
struct Spans<'a> {
    kernel: &'a Kernel,
    spans: Vec<usize>,
    stored: Vec<bool>,
}

impl Spans<'_> {
    fn new(kernel: &Kernel) -> Spans<'_> {
        let n = kernel.operands + kernel.results;
        Spans { kernel, spans: vec![0; n], stored: vec![false; n] }
    }

    /// Notes that `buffer` is walked up to byte `end`.
    fn touch(&mut self, does: &'static str, buffer: usize, end: usize) -> Result<(), SpanError> {
        let (operands, results) = (self.kernel.operands, self.kernel.results);
        let legal = match does {
            "stores" => operands..operands + results,
            // What follows a product reads its results.
            _ if matches!(self.kernel.body, KernelBody::Gemm(_)) => 0..operands + results,
            _ => 0..operands,
        };
        if !legal.contains(&buffer) {
            return Err(SpanError::View { kernel: self.kernel.name.clone(), does, buffer, operands, results });
        }
        self.spans[buffer] = self.spans[buffer].max(end);
        self.stored[buffer] |= does == "stores";
        Ok(())
    }

    fn nest(&mut self, k: &LoopKernel) -> Result<(), SpanError> {
        let loads = k.instrs.iter().filter_map(|i| match &i.op {
            LoopOp::Load(view) => Some(("loads", view)),
            _ => None,
        });
        for (does, view) in loads.chain(k.stores.iter().map(|s| ("stores", &s.view))) {
            let walk = k.loops.iter().map(|l| l.size).zip(view.strides.iter().copied());
            self.touch(does, view.buffer, bytes(extent(view.offset, walk), view.dtype))?;
        }
        Ok(())
    }

    fn finish(self) -> Result<Vec<usize>, SpanError> {
        let (operands, results) = (self.kernel.operands, self.kernel.results);
        match (operands..operands + results).find(|b| !self.stored[*b]) {
            Some(buffer) => Err(SpanError::NoStore { kernel: self.kernel.name.clone(), buffer }),
            None => Ok(self.spans),
        }
    }
}

fn loops(kernel: &Kernel, nests: &[LoopKernel]) -> Result<Vec<usize>, SpanError> {
    let mut spans = Spans::new(kernel);
    nests.iter().try_for_each(|k| spans.nest(k))?;
    spans.finish()
}

fn gemm(kernel: &Kernel, k: &GemmKernel) -> Result<Vec<usize>, SpanError> {
    let mut spans = Spans::new(kernel);
    let wrong = |what, buffer| Err(SpanError::Order { kernel: kernel.name.clone(), what, buffer });
    let mut written = vec![false; kernel.operands + kernel.results];
    for p in &k.products {
        match (p.init, written.get(p.c)) {
            (Init::Result, Some(false)) => return wrong("a product adds to what nothing has written in", p.c),
            (Init::Zero | Init::Operand(_), Some(true)) => return wrong("two products write", p.c),
            _ => {}
        }
        for read in [p.a, p.b] {
            if read >= kernel.operands {
                return wrong("a product reads its own kernel's", read);
            }
        }
        if let Some(w) = written.get_mut(p.c) {
            *w = true;
        }
        // A buffer is walked by the loops that its index has; an empty reduction still writes zeros.
        let a = bytes(extent(0, p.loops().map(|l| (l.extent.size, l.a))), p.dtype);
        let b = bytes(extent(0, p.loops().map(|l| (l.extent.size, l.b))), p.dtype);
        let written = p.batch.iter().chain(&p.m).chain(&p.n);
        let c = bytes(extent(0, written.map(|l| (l.extent.size, l.c))), p.dtype);
        spans.touch("loads", p.a, a)?;
        spans.touch("loads", p.b, b)?;
        if let Init::Operand(i) = p.init {
            spans.touch("loads", i, c)?;
        }
        spans.touch("stores", p.c, c)?;
    }
    for nest in &k.epilogue {
        let early = nest.loads().find(|v| v.buffer >= kernel.operands && written.get(v.buffer) == Some(&false));
        if let Some(v) = early {
            return wrong("a nest reads what nothing has written in", v.buffer);
        }
        spans.nest(nest)?;
        nest.stores.iter().for_each(|s| {
            if let Some(w) = written.get_mut(s.view.buffer) {
                *w = true;
            }
        });
    }
    spans.finish()
}

/// q, k, v, o, lse.
fn attention(k: &AttentionKernel) -> [usize; 5] {
    [
        packed(&[&k.b, &k.s, &k.g, &k.r, &k.e], k.dtype),
        packed(&[&k.b, &k.t, &k.g, &k.e], k.dtype),
        packed(&[&k.b, &k.t, &k.g, &k.h], k.dtype),
        packed(&[&k.b, &k.s, &k.g, &k.r, &k.h], k.dtype),
        packed(&[&k.b, &k.s, &k.g, &k.r], k.dtype.arithmetic()),
    ]
}

/// Table, ids, rows.
fn gather(k: &GatherKernel) -> [usize; 3] {
    let rows: Vec<&Extent> = k.rows.iter().collect();
    let wide: Vec<&Extent> = k.rows.iter().chain([&k.d]).collect();
    [packed(&[&k.table, &k.d], k.dtype), packed(&rows, DType::I32), packed(&wide, k.dtype)]
}

fn copies(kernel: &Kernel, k: &CopyKernel) -> Result<Vec<usize>, SpanError> {
    let mut spans = vec![0; kernel.operands + 1];
    spans[kernel.operands] = k.fill.map_or(0, |(_, n)| bytes(n, k.dtype));
    for b in &k.boxes {
        if b.source >= kernel.operands {
            let (operands, results) = (kernel.operands, kernel.results);
            let (kernel, buffer) = (kernel.name.clone(), b.source);
            return Err(SpanError::View { kernel, does: "loads", buffer, operands, results });
        }
        let read = bytes(extent(b.from, b.loops.iter().map(|(n, s, _)| (*n, *s))), k.dtype);
        let written = bytes(extent(b.to, b.loops.iter().map(|(n, _, s)| (*n, *s))), k.dtype);
        spans[b.source] = spans[b.source].max(read);
        spans[kernel.operands] = spans[kernel.operands].max(written);
    }
    Ok(spans)
}

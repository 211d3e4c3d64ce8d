//! Table rows by index, and rows added by index.

use super::elem::Elem;
use super::{unpack, Call, KernelError, Pointer, Range, Slot, Task};
use autoshard_ir::core::DType;
use autoshard_ir::kernel::GatherKernel;

/// Elements per task.
const GRAIN: usize = 1 << 15;

/// Views and sizes.
#[derive(Debug)]
pub(super) struct Plan {
    dtype: DType,
    table: Slot,
    ids: Slot,
    rows: Slot,
    /// Row width in memory, and its real part.
    stride: usize,
    d: usize,
    /// Real table rows of this rank.
    part: Range,
    /// Global number of table rows.
    size: usize,
    /// Lengths and strides of the loops over ids.
    lens: Vec<usize>,
    strides: Vec<usize>,
}

impl Plan {
    /// Resolves `out[rows, d] = table[ids[rows], d]`.
    pub fn gather(task: &Task, k: &GatherKernel) -> Result<Plan, KernelError> {
        Plan::new(task, k, [0, 1, 2])
    }

    /// Resolves `table[ids[rows], d] += rows[rows, d]`.
    pub fn scatter(task: &Task, k: &GatherKernel) -> Result<Plan, KernelError> {
        match k.dtype {
            DType::F32 | DType::F64 => Plan::new(task, k, [2, 1, 0]),
            other => Err(task.unsupported(format!("scatter of {other}"))),
        }
    }

    fn new(task: &Task, k: &GatherKernel, [table, ids, rows]: [usize; 3]) -> Result<Plan, KernelError> {
        let (part, d) = (task.range(&k.table), task.range(&k.d).len);
        let lens: Vec<usize> = k.rows.iter().map(|e| task.range(e).len).collect();
        let sizes = |last: &[usize]| k.rows.iter().map(|e| e.size).chain(last.iter().copied()).collect::<Vec<_>>();
        task.check_packed(&sizes(&[k.d.size]))?;
        task.check_packed(&[k.table.size, k.d.size])?;
        let mut strides = vec![1; k.rows.len()];
        for i in (1..k.rows.len()).rev() {
            strides[i - 1] = strides[i] * k.rows[i].size;
        }
        let stride = k.d.size;
        let loops = || lens.iter().copied().zip(strides.iter().copied());
        let table = task.check(table, k.dtype, 0, [(part.len, stride), (d, 1)])?;
        let rows = task.check(rows, k.dtype, 0, loops().map(|(l, s)| (l, s * stride)).chain([(d, 1)]))?;
        let ids = task.check(ids, DType::I32, 0, loops())?;
        let (dtype, size) = (k.dtype, k.table.global);
        Ok(Plan { dtype, table, ids, rows, stride, d, part, size, lens, strides })
    }

    /// Gathers; ids of other ranks' rows read as zero.
    ///
    /// # Safety
    /// As for [`super::Prepared::run`].
    pub unsafe fn run_gather(&self, call: &Call) -> Result<(), KernelError> {
        // SAFETY: the caller's promise.
        unsafe {
            let shape = self.resolve(call)?;
            match self.dtype.bytes() {
                2 => shape.gather::<u16>(call),
                4 => shape.gather::<u32>(call),
                _ => shape.gather::<u64>(call),
            }
        }
        Ok(())
    }

    /// Adds into a zeroed table; ids of other ranks' rows are skipped.
    ///
    /// # Safety
    /// As for [`super::Prepared::run`].
    pub unsafe fn run_scatter(&self, call: &Call) -> Result<(), KernelError> {
        // SAFETY: the caller's promise.
        unsafe {
            let shape = self.resolve(call)?;
            match self.dtype {
                DType::F64 => shape.scatter::<f64>(call),
                _ => shape.scatter::<f32>(call),
            }
        }
        Ok(())
    }

    /// Reads every id of a real row, and refuses those that no rank holds.
    unsafe fn resolve(&self, call: &Call) -> Result<Shape, KernelError> {
        let ids = call.at(self.ids);
        let mut digits = vec![0; self.lens.len()];
        let rows = self.lens.iter().product();
        let mut targets = Vec::with_capacity(rows);
        for row in 0..rows {
            unpack(row, self.lens.iter().copied(), &mut digits);
            let at = digits.iter().zip(&self.strides).map(|(d, s)| d * s).sum();
            // SAFETY: the view was checked.
            let id = unsafe { ids.at::<i32>(at).read() };
            match usize::try_from(id) {
                Ok(global) if global < self.size => {
                    let local = global.checked_sub(self.part.start).filter(|l| *l < self.part.len);
                    targets.push((at, local));
                }
                _ => return Err(KernelError::Id { kernel: call.name.into(), row, id, size: self.size }),
            }
        }
        let (table, rows) = (call.at(self.table), call.at(self.rows));
        Ok(Shape { table, rows, stride: self.stride, d: self.d, part: self.part.len, targets })
    }
}

/// Buffers and sizes, with every id resolved.
struct Shape {
    table: Pointer,
    rows: Pointer,
    /// Row width in memory, and its real part.
    stride: usize,
    d: usize,
    /// Real table rows of this rank.
    part: usize,
    /// Per real row: its position in `rows`, and its local table row if this rank holds it.
    targets: Vec<(usize, Option<usize>)>,
}

impl Shape {
    unsafe fn gather<T: Copy + Default>(&self, call: &Call) {
        let group = (GRAIN / self.d.max(1)).max(1);
        call.pool.run(self.targets.len().div_ceil(group), &|t| {
            let end = self.targets.len().min((t + 1) * group);
            for (row, target) in &self.targets[t * group..end] {
                // SAFETY: both rows lie in views that were checked; tasks write different rows.
                unsafe {
                    let out = self.rows.at::<T>(row * self.stride);
                    match target {
                        Some(r) => out.copy_from_nonoverlapping(self.table.at(r * self.stride), self.d),
                        None => std::slice::from_raw_parts_mut(out, self.d).fill(T::default()),
                    }
                }
            }
        });
    }

    /// Cut over columns, so that repeated ids add up in row order.
    unsafe fn scatter<E: Elem>(&self, call: &Call) {
        let work = self.part.max(self.targets.len()) * self.d;
        let width = self.d.div_ceil(work.div_ceil(GRAIN).clamp(1, 16)).max(16);
        call.pool.run(self.d.div_ceil(width), &|t| {
            let (from, to) = (t * width, self.d.min((t + 1) * width));
            // SAFETY: as in `gather`, with columns for rows. The rows are not the table.
            unsafe {
                let row = |p: Pointer, r: usize| p.at::<E>(r * self.stride + from);
                for r in 0..self.part {
                    std::slice::from_raw_parts_mut(row(self.table, r), to - from).fill(E::ZERO);
                }
                for (source, target) in &self.targets {
                    let Some(target) = target else { continue };
                    let sum = std::slice::from_raw_parts_mut(row(self.table, *target), to - from);
                    let add = std::slice::from_raw_parts(row(self.rows, *source), to - from);
                    sum.iter_mut().zip(add).for_each(|(s, a)| *s = *s + *a);
                }
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::*;
    use super::*;
    use autoshard_ir::kernel::KernelBody;

    fn ids(n: usize, size: usize) -> Tensor {
        let values: Vec<f64> = (0..n).map(|i| ((i * i + 3 * i) % size) as f64).collect();
        Tensor::new(DType::I32, &values)
    }

    #[test]
    fn gather_reads_its_part_and_zeros_elsewhere() {
        for (dtype, rank) in DType::ALL.into_iter().flat_map(|d| (0..3).map(move |r| (d, r))) {
            // Rows [2, 7 over 3]: local [2, 3]; table 10 over 3: local 4.
            let rows = vec![whole("b", 2), split("s", 7)];
            let k = GatherKernel { rows, table: split("v", 10), d: whole("d", 5), dtype };
            let (srange, vrange) = (mesh().part(7, &k.rows[1].axes, &[rank]), mesh().part(10, &k.table.axes, &[rank]));
            let operands = [Tensor::noise(dtype, 20, 1), ids(6, 10)];
            let body = KernelBody::Gather(k);
            let out = run(&kernel(2, 1, body), rank, &operands, &[Tensor::canary(dtype, 30)]).unwrap();
            for (b, s, d) in (0..30).map(|i| (i / 15, i / 5 % 3, i % 5)) {
                let id = operands[1].get(b * 3 + s) as usize;
                let want = match id.checked_sub(vrange.start) {
                    _ if s >= srange.len => CANARY,
                    Some(l) if l < vrange.len => operands[0].get(l * 5 + d),
                    _ => 0.0,
                };
                assert_eq!(out[0].get((b * 3 + s) * 5 + d), want, "{dtype} rank {rank}");
            }
        }
    }

    #[test]
    fn scatter_adds_repeated_ids_in_row_order() {
        for (dtype, rank) in [DType::F32, DType::F64].into_iter().flat_map(|d| (0..3).map(move |r| (d, r))) {
            let (rows, d) = (500, 70);
            let k = GatherKernel { rows: vec![whole("n", rows)], table: split("v", 11), d: whole("d", d), dtype };
            let part = mesh().part(11, &k.table.axes, &[rank]);
            let operands = [Tensor::noise(dtype, rows * d, 2), ids(rows, 11)];
            let body = KernelBody::Scatter(k);
            let out = run(&kernel(2, 1, body), rank, &operands, &[Tensor::canary(dtype, 4 * d)]).unwrap();
            for (v, c) in (0..4 * d).map(|i| (i / d, i % d)) {
                let hits = (0..rows).filter(|r| operands[1].get(*r) as usize == part.start + v);
                let sum: f64 = hits.map(|r| operands[0].get(r * d + c)).sum();
                // Sums of 64ths are exact.
                assert_eq!(out[0].get(v * d + c), if v < part.len { sum } else { CANARY });
            }
        }
    }

    #[test]
    fn a_wrong_id_is_named() {
        for bad in [10.0, -1.0] {
            let k =
                GatherKernel { rows: vec![whole("n", 3)], table: split("v", 10), d: whole("d", 2), dtype: DType::F32 };
            let operands = [Tensor::noise(DType::F32, 8, 1), Tensor::new(DType::I32, &[0.0, bad, 1.0])];
            let out = [Tensor::canary(DType::F32, 6)];
            let e = run(&kernel(2, 1, KernelBody::Gather(k)), 0, &operands, &out).unwrap_err();
            assert_eq!(e.to_string(), format!("kernel test: row 1 asks for id {bad}, but the table has 10 rows"));
        }
    }
}

//! Box copies: reshape, slice, concat, pad, transpose.

use super::{unpack, Call, KernelError, Pointer, Slot, Task};
use crate::cpu::elem::to_bf16;
use autoshard_ir::core::DType;
use autoshard_ir::kernel::{CopyBox, CopyKernel};

/// Elements per task.
const GRAIN: usize = 1 << 17;

/// Boxes, checked.
#[derive(Debug)]
pub(super) struct Plan {
    dtype: DType,
    fill: Option<(f64, usize, Slot)>,
    boxes: Vec<Box>,
}

impl Plan {
    /// Resolves a kernel.
    pub fn new(task: &Task, k: &CopyKernel) -> Result<Plan, KernelError> {
        let boxes = k.boxes.iter().map(|b| Box::new(task, k.dtype, b)).collect::<Result<Vec<_>, _>>()?;
        let result = task.kernel.operands;
        let fill = match k.fill {
            Some((value, len)) => Some((value, len, task.check(result, k.dtype, 0, [(len, 1)])?)),
            None => None,
        };
        Ok(Plan { dtype: k.dtype, fill, boxes })
    }

    /// Runs the kernel.
    ///
    /// # Safety
    /// As for [`super::Prepared::run`].
    pub unsafe fn run(&self, call: &Call) {
        // SAFETY: the views were checked; the caller's promise covers the rest.
        unsafe {
            if let Some((value, len, out)) = self.fill {
                fill(call.at(out), self.dtype, value, len);
            }
            for b in &self.boxes {
                match self.dtype.bytes() {
                    2 => b.run::<u16>(call),
                    4 => b.run::<u32>(call),
                    _ => b.run::<u64>(call),
                }
            }
        }
    }
}

/// Writes `value` to the whole result.
unsafe fn fill(out: Pointer, dtype: DType, value: f64, len: usize) {
    // SAFETY: `len` elements fit.
    unsafe {
        match dtype {
            DType::F64 => std::slice::from_raw_parts_mut(out.at(0), len).fill(value),
            DType::F32 => std::slice::from_raw_parts_mut(out.at(0), len).fill(value as f32),
            DType::I32 => std::slice::from_raw_parts_mut(out.at(0), len).fill(value as i32),
            DType::Bf16 => std::slice::from_raw_parts_mut(out.at(0), len).fill(to_bf16(value as f32)),
        }
    }
}

/// A box whose loops were merged where both sides nest.
#[derive(Debug)]
struct Box {
    from: Slot,
    to: Slot,
    first: (usize, usize),
    outer: Vec<(usize, usize, usize)>,
    lane: (usize, usize, usize),
}

impl Box {
    fn new(task: &Task, dtype: DType, b: &CopyBox) -> Result<Box, KernelError> {
        if b.source >= task.kernel.operands {
            return Err(task.malformed(format!("a copy from operand {}, which does not exist", b.source)));
        }
        let from = task.check(b.source, dtype, b.from, b.loops.iter().map(|l| (l.0, l.1)))?;
        let to = task.check(task.kernel.operands, dtype, b.to, b.loops.iter().map(|l| (l.0, l.2)))?;
        let mut outer: Vec<(usize, usize, usize)> = vec![];
        for (len, from, to) in b.loops.iter().copied().filter(|l| l.0 != 1) {
            match outer.last_mut() {
                Some(last) if last.1 == len * from && last.2 == len * to => {
                    *last = (last.0 * len, from, to);
                }
                _ => outer.push((len, from, to)),
            }
        }
        let lane = outer.pop().unwrap_or((1, 1, 1));
        Ok(Box { from, to, first: (b.from, b.to), outer, lane })
    }

    unsafe fn run<T: Copy + 'static>(&self, call: &Call) {
        let rows: usize = self.outer.iter().map(|l| l.0).product();
        if rows * self.lane.0 == 0 {
            return;
        }
        // Cut the lane too: a whole tensor may be one row.
        let piece = self.lane.0.min(GRAIN);
        let pieces = self.lane.0.div_ceil(piece);
        let group = (GRAIN / piece).max(1);
        let units = rows * pieces;
        call.pool.run(units.div_ceil(group), &|t| {
            let mut digits = vec![0; self.outer.len()];
            for unit in t * group..units.min((t + 1) * group) {
                unpack(unit / pieces, self.outer.iter().map(|l| l.0), &mut digits);
                let start = unit % pieces * piece;
                let len = piece.min(self.lane.0 - start);
                // SAFETY: the box was checked; units write disjoint elements.
                unsafe { self.row::<T>(call, &digits, start, len) };
            }
        });
    }

    unsafe fn row<T: Copy>(&self, call: &Call, digits: &[usize], start: usize, len: usize) {
        let (mut from, mut to) = self.first;
        for (digit, (_, f, t)) in digits.iter().zip(&self.outer) {
            from += digit * f;
            to += digit * t;
        }
        let (_, f, t) = self.lane;
        // SAFETY: the caller's promise.
        unsafe {
            let from = call.at(self.from).at::<T>(from + start * f);
            let to = call.at(self.to).at::<T>(to + start * t);
            if f == 1 && t == 1 {
                std::ptr::copy(from, to, len);
            } else {
                (0..len).for_each(|i| to.add(i * t).write(from.add(i * f).read()));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::*;
    use super::*;
    use autoshard_ir::kernel::KernelBody;

    #[test]
    fn boxes_of_every_element_size() {
        for dtype in DType::ALL {
            // A transpose of [5, 7] into columns 2.. of [7, 8], and one strided row elsewhere.
            let boxes = vec![
                CopyBox { source: 0, from: 0, to: 2, loops: vec![(5, 7, 1), (7, 1, 8)] },
                CopyBox { source: 1, from: 1, to: 0, loops: vec![(7, 2, 8)] },
            ];
            let body = KernelBody::Copy(CopyKernel { dtype, fill: Some((3.0, 56)), boxes });
            let values: Vec<f64> = (0..35).map(|i| i as f64).collect();
            let operands = [Tensor::new(dtype, &values), Tensor::new(dtype, &values[..15])];
            let out = run(&kernel(2, 1, body), 0, &operands, &[Tensor::canary(dtype, 56)]).unwrap();
            for (i, j) in (0..7).flat_map(|i| (0..8).map(move |j| (i, j))) {
                let want = match j {
                    0 => (1 + 2 * i) as f64,
                    2..=6 => ((j - 2) * 7 + i) as f64,
                    _ => 3.0,
                };
                assert_eq!(out[0].get(i * 8 + j), want, "{dtype} {i} {j}");
            }
        }
    }

    #[test]
    fn large_and_merged() {
        let n = 300_000;
        let loops = vec![(3, n / 3, n / 3), (n / 3, 1, 1)];
        let boxes = vec![CopyBox { source: 0, from: 0, to: 0, loops }];
        let body = KernelBody::Copy(CopyKernel { dtype: DType::F32, fill: None, boxes });
        let a = Tensor::noise(DType::F32, n, 1);
        let out = run(&kernel(1, 1, body), 0, std::slice::from_ref(&a), &[Tensor::canary(DType::F32, n)]);
        assert_eq!(out.unwrap()[0], a);
        let boxes = vec![CopyBox { source: 0, from: 0, to: 0, loops: vec![(0, 1, 1)] }];
        let body = KernelBody::Copy(CopyKernel { dtype: DType::F32, fill: None, boxes });
        let out = run(&kernel(1, 1, body), 0, &[a], &[Tensor::canary(DType::F32, 2)]).unwrap();
        assert_eq!(out[0].get(1), CANARY);
    }
}

//! Which bytes nests read and write: what a cost model should charge.

use super::code::{Action, Code};
use super::{unpack, Epilogue, Plan};
use autoshard_ir::core::DType;

/// Per buffer, a mark per byte.
pub(crate) struct Touched(pub Vec<Vec<bool>>);

impl Touched {
    fn mark(&mut self, buffer: usize, dtype: DType, element: usize) {
        let (size, bytes) = (dtype.bytes(), &mut self.0[buffer]);
        let end = (element + 1) * size;
        if bytes.len() < end {
            bytes.resize(end, false);
        }
        bytes[end - size..end].fill(true);
    }

    /// Marks the loads and stores of a nest, its columns shifted.
    fn nest(&mut self, code: &Code, shift: &[usize]) {
        let loads = code.ops.iter().filter(|o| o.used).filter_map(|o| match o.action {
            Action::Load(slot, dtype, column) => Some((slot.0, dtype, column)),
            _ => None,
        });
        let stores = code.stores.iter().map(|s| (s.to.0, s.dtype, s.column));
        let nest = &code.nest;
        let mut digits = vec![0; nest.lens.len()];
        for (buffer, dtype, column) in loads.chain(stores) {
            let strides = &nest.columns[column].strides;
            // A loop that does not move the view is walked once.
            let lens: Vec<usize> = nest.lens.iter().zip(strides).map(|(l, s)| if *s == 0 { 1 } else { *l }).collect();
            let pair = if nest.pair_strides[column] == 0 { 1 } else { nest.pair };
            let start = nest.columns[column].base + shift.get(column).copied().unwrap_or(0);
            for i in 0..lens.iter().product() {
                unpack(i, lens.iter().copied(), &mut digits);
                let at = start + digits.iter().zip(strides).map(|(d, s)| d * s).sum::<usize>();
                (0..pair).for_each(|p| self.mark(buffer, dtype, at + p * nest.pair_strides[column]));
            }
        }
    }

    /// Marks what a loop kernel touches.
    pub fn plan(&mut self, plan: &Plan) {
        plan.nests.iter().for_each(|(code, _)| self.nest(code, &[]));
    }

    /// Marks what an epilogue touches.
    pub fn epilogue(&mut self, epilogue: &Epilogue) {
        epilogue.codes().for_each(|(code, shift)| self.nest(code, &shift));
    }
}

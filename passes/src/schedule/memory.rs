//! Static memory plan: a fixed offset for every value of a function, by first fit over lifetimes.

use crate::fuse::Unit;
use autoshard_ir::core::{Def, Function, ValueId};
use autoshard_ir::program::Buf;
use autoshard_ir::Mesh;

/// Every offset and size is a multiple of this, so that vector loads are aligned.
const ALIGN: usize = 64;

/// Buffers of a function's values.
pub struct MemoryPlan {
    /// By value index.
    pub buffers: Vec<Buf>,
    /// Bytes of the frame.
    pub frame: usize,
}

/// Plans a function. A value that is a result lives in the result's buffer.
pub fn plan(f: &Function, units: &[Unit], mesh: &Mesh) -> MemoryPlan {
    let mut buffers = vec![Buf::Frame(0); f.values.len()];
    let mut in_frame = vec![true; f.values.len()];
    for (i, p) in f.params.iter().enumerate() {
        buffers[p.value.0 as usize] = Buf::Param(i);
        in_frame[p.value.0 as usize] = false;
    }
    for (i, r) in f.results.iter().enumerate().rev() {
        if matches!(f.value(*r).def, Def::Result(..)) {
            buffers[r.0 as usize] = Buf::Result(i);
            in_frame[r.0 as usize] = false;
        }
    }
    let last = last_uses(f, units);
    let mut expiring: Vec<Vec<ValueId>> = vec![Vec::new(); units.len()];
    let mut live: Vec<(usize, usize, ValueId)> = Vec::new(); // offset, end, value; by offset
    let mut frame = 0;
    for (n, unit) in units.iter().enumerate() {
        for r in &unit.results {
            if !in_frame[r.0 as usize] {
                continue;
            }
            let size = mesh.local_bytes(f.ty(*r)).max(1).next_multiple_of(ALIGN);
            let offset = first_fit(&mut live, size, *r);
            frame = frame.max(offset + size);
            buffers[r.0 as usize] = Buf::Frame(offset);
            expiring[last[r.0 as usize].max(n)].push(*r);
        }
        let gone = std::mem::take(&mut expiring[n]);
        if !gone.is_empty() {
            live.retain(|(_, _, v)| !gone.contains(v));
        }
    }
    MemoryPlan { buffers, frame }
}

/// Position of the last unit that reads each value (0 if none does).
fn last_uses(f: &Function, units: &[Unit]) -> Vec<usize> {
    let mut last = vec![0; f.values.len()];
    for (n, unit) in units.iter().enumerate() {
        for v in &unit.inputs {
            last[v.0 as usize] = n;
        }
    }
    last
}

fn first_fit(live: &mut Vec<(usize, usize, ValueId)>, size: usize, v: ValueId) -> usize {
    let mut offset = 0;
    let mut at = live.len();
    for (i, (start, end, _)) in live.iter().enumerate() {
        if offset + size <= *start {
            at = i;
            break;
        }
        offset = (*end).max(offset);
    }
    live.insert(at, (offset, offset + size, v));
    offset
}

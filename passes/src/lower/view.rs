//! Reshape, slice, concat and pad: copies of boxes.

use super::Lowering;
use autoshard_ir::core::ScalarBody;
use autoshard_ir::kernel::{CopyBox, CopyKernel};

pub fn lower(l: &Lowering) -> Result<CopyKernel, String> {
    let dtype = l.results[0].dtype;
    let grouped = l.rule.operands.iter().chain(&l.rule.results).flatten().any(|m| m.factors.len() != 1);
    if grouped {
        let n: usize = l.mesh.local_sizes(l.results[0]).iter().product();
        let whole = CopyBox { source: 0, from: 0, to: 0, loops: vec![(n, 1, 1)] };
        return Ok(CopyKernel { dtype, fill: None, boxes: vec![whole] });
    }
    let out = l.mesh.local_sizes(l.results[0]);
    let to_strides = l.strides(l.results[0]);
    let mut boxes = Vec::new();
    for (i, ty) in l.inputs.iter().enumerate() {
        let sizes = l.mesh.local_sizes(ty);
        let steps = l.strides(ty);
        let mut b = CopyBox { source: i, from: 0, to: 0, loops: Vec::new() };
        for (d, m) in l.rule.operands[i].iter().enumerate() {
            // A positive offset skips entries of the operand (slice), a negative one of the result.
            let (skip, place) = (m.offset.max(0) as usize, (-m.offset).max(0) as usize);
            b.from += skip * steps[d];
            b.to += place * to_strides[d];
            let size = (sizes[d] - skip).min(out[d] - place);
            b.loops.push((size, steps[d], to_strides[d]));
        }
        boxes.push(b);
    }
    let fill = match l.rule.body {
        Some(ScalarBody::Sum(value)) if l.inputs.len() == 1 => Some((value, out.iter().product())),
        _ => None,
    };
    Ok(CopyKernel { dtype, fill, boxes })
}

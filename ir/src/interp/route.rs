//! Routing, said by loops over tokens.

use super::Tensor;
use crate::core::Type;

/// Positions of the largest entries of each row, largest first, of equals the first.
pub(super) fn top_k(result: Type, x: &Tensor) -> Result<Tensor, String> {
    let n = x.ty.dims.last().map_or(1, |d| d.size);
    let k = result.dims.last().map_or(1, |d| d.size);
    let mut data = Vec::with_capacity(result.elements());
    for row in x.data.chunks(n) {
        let mut order: Vec<usize> = (0..n).collect();
        order.sort_by(|i, j| row[*j].total_cmp(&row[*i]).then(i.cmp(j)));
        data.extend(order[..k].iter().map(|i| *i as f64));
    }
    Ok(Tensor { ty: result, data })
}

/// The slot of each choice: places of an expert are given in order, −1 when they are used up.
pub(super) fn slots(result: Type, experts: usize, capacity: usize, choice: &Tensor) -> Result<Tensor, String> {
    let mut used = vec![0usize; experts];
    let mut data = Vec::with_capacity(choice.data.len());
    for id in &choice.data {
        let expert = super::index(*id, experts)?;
        let place = used[expert];
        used[expert] += 1;
        data.push(if place < capacity { (expert * capacity + place) as f64 } else { -1.0 });
    }
    Ok(Tensor { ty: result, data })
}

/// Rows at their slots.
pub(super) fn dispatch(result: Type, inputs: &[Tensor]) -> Result<Tensor, String> {
    let d = result.dims.last().map_or(1, |d| d.size);
    let k = inputs[1].ty.dims.last().map_or(1, |d| d.size);
    let mut data = vec![0.0; result.elements()];
    for (i, id) in inputs[1].data.iter().enumerate() {
        let Some(at) = row(*id, data.len() / d.max(1))? else { continue };
        let w = inputs.get(2).map_or(1.0, |w| w.data[i]);
        for c in 0..d {
            data[at * d + c] += w * inputs[0].data[i / k * d + c];
        }
    }
    Ok(Tensor::new(result, data))
}

/// For each token the weighted sum of the rows at its slots.
pub(super) fn combine(result: Type, inputs: &[Tensor]) -> Result<Tensor, String> {
    let d = result.dims.last().map_or(1, |d| d.size);
    let k = inputs[1].ty.dims.last().map_or(1, |d| d.size);
    let rows = inputs[0].data.len() / d.max(1);
    let mut data = vec![0.0; result.elements()];
    for (i, id) in inputs[1].data.iter().enumerate() {
        let Some(at) = row(*id, rows)? else { continue };
        for c in 0..d {
            data[i / k * d + c] += inputs[2].data[i] * inputs[0].data[at * d + c];
        }
    }
    Ok(Tensor::new(result, data))
}

/// The row of a slot; none for a dropped choice.
fn row(id: f64, rows: usize) -> Result<Option<usize>, String> {
    if id == -1.0 {
        return Ok(None);
    }
    super::index(id, rows).map(Some)
}

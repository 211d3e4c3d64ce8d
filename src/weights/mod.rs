//! Where parameters come from and go to: the init rule, or safetensors files under Hugging Face names.
//!
//! Both answer for any box of a tensor, so a rank makes or reads only the part it holds.

pub mod init;
pub mod safetensors;

use std::ops::Range;

pub use init::{token_hash, InitKind};
pub use safetensors::{Checkpoint, WeightsError};

/// A source of initial weights.
#[derive(Debug)]
pub enum Weights {
    /// The deterministic rule of [`init`].
    Init {
        /// The run's seed.
        seed: u64,
    },
    /// Files.
    Files(Checkpoint),
}

impl Weights {
    /// One box of a tensor, row-major: `size` elements per dimension from `start` on, out of the
    /// checkpoint's `shape`. Values of the init rule are f32, widened.
    pub fn read_box(
        &self,
        name: &str,
        shape: &[usize],
        kind: InitKind,
        start: &[usize],
        size: &[usize],
    ) -> Result<Vec<f64>, WeightsError> {
        self.read_view(name, shape, kind, shape, start, size)
    }

    /// One box of a tensor seen under another shape: `view` splits or merges dimensions of `shape` and
    /// keeps the row-major order.
    pub fn read_view(
        &self,
        name: &str,
        shape: &[usize],
        kind: InitKind,
        view: &[usize],
        start: &[usize],
        size: &[usize],
    ) -> Result<Vec<f64>, WeightsError> {
        match self {
            Weights::Init { seed } => {
                check_box(name, view, start, size)?;
                let stream = init::Stream::new(name, *seed);
                let values = runs(view, start, size).flatten();
                Ok(values.map(|i| f64::from(stream.value(kind, i as u64))).collect())
            }
            Weights::Files(checkpoint) => checkpoint.read_view(name, shape, view, start, size),
        }
    }

    /// Whether every tensor is there with its shape and a readable dtype, before anything is read.
    pub fn check<'a>(&self, tensors: impl IntoIterator<Item = (&'a str, &'a [usize])>) -> Result<(), WeightsError> {
        match self {
            Weights::Init { .. } => Ok(()),
            Weights::Files(checkpoint) => {
                tensors.into_iter().try_for_each(|(name, shape)| checkpoint.check(name, shape))
            }
        }
    }
}

/// Refuses a box that does not lie inside its tensor.
pub(crate) fn check_box(name: &str, shape: &[usize], start: &[usize], size: &[usize]) -> Result<(), WeightsError> {
    let inside = |((&n, &s), &z): ((&usize, &usize), &usize)| s.checked_add(z).is_some_and(|end| end <= n);
    let same_rank = shape.len() == start.len() && shape.len() == size.len();
    if same_rank && shape.iter().zip(start).zip(size).all(inside) {
        return Ok(());
    }
    Err(WeightsError::Outside { name: name.into(), shape: shape.to_vec(), start: start.to_vec(), size: size.to_vec() })
}

/// The row-major index ranges that make up a box, in order, each as long as memory is contiguous. The box
/// must lie inside the shape.
pub fn runs(shape: &[usize], start: &[usize], size: &[usize]) -> impl Iterator<Item = Range<usize>> {
    let rank = shape.len();
    // Dimensions from `inner` on are taken whole, so `inner - 1` and they form one run.
    let inner = (0..rank).rev().find(|&d| size[d] != shape[d]).map_or(0, |d| d + 1);
    let outer = inner.saturating_sub(1);
    let stride = |d: usize| shape[d + 1..].iter().product::<usize>();
    let length: usize = size[outer..].iter().product();
    let base: usize = (0..rank).map(|d| start[d] * stride(d)).sum();
    let steps: Vec<(usize, usize)> = (0..outer).map(|d| (size[d], stride(d))).collect();
    let count = if length == 0 { 0 } else { steps.iter().map(|(n, _)| n).product() };
    (0..count).map(move |mut k| {
        let offset: usize = steps
            .iter()
            .rev()
            .map(|(n, stride)| {
                let index = k % n;
                k /= n;
                index * stride
            })
            .sum();
        base + offset..base + offset + length
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The indices of a box the slow way.
    fn indices(shape: &[usize], start: &[usize], size: &[usize]) -> Vec<usize> {
        let total: usize = size.iter().product();
        let linear = |mut k: usize| {
            let mut at = vec![0; shape.len()];
            for d in (0..shape.len()).rev() {
                at[d] = start[d] + k % size[d];
                k /= size[d];
            }
            shape.iter().zip(&at).fold(0, |l, (n, i)| l * n + i)
        };
        (0..total).map(linear).collect()
    }

    #[test]
    fn runs_cover_a_box_in_order() {
        for (shape, start, size) in [
            (vec![], vec![], vec![]),
            (vec![5], vec![2], vec![3]),
            (vec![4, 6], vec![1, 0], vec![2, 6]),
            (vec![4, 6], vec![0, 2], vec![4, 3]),
            (vec![2, 3, 4], vec![0, 1, 0], vec![2, 2, 4]),
            (vec![2, 3, 4], vec![1, 0, 1], vec![1, 3, 2]),
            (vec![3, 4], vec![0, 0], vec![0, 4]),
        ] {
            let got: Vec<usize> = runs(&shape, &start, &size).flatten().collect();
            assert_eq!(got, indices(&shape, &start, &size), "{shape:?} {start:?} {size:?}");
        }
        assert_eq!(runs(&[4, 6], &[1, 0], &[2, 6]).count(), 1);
        assert_eq!(runs(&[2, 3, 4], &[0, 0, 0], &[2, 3, 4]).count(), 1);
    }

    #[test]
    fn a_box_of_the_rule_is_the_box_of_the_tensor() {
        let weights = Weights::Init { seed: 7 };
        let kind = InitKind::Matrix { fan_in: 6 };
        let whole = weights.read_box("w", &[4, 6], kind, &[0, 0], &[4, 6]).unwrap();
        let part = weights.read_box("w", &[4, 6], kind, &[1, 2], &[2, 3]).unwrap();
        assert_eq!(part, [8, 9, 10, 14, 15, 16].map(|i| whole[i]));
        let outside = weights.read_box("w", &[4, 6], kind, &[3, 0], &[2, 6]).unwrap_err().to_string();
        assert_eq!(outside, "w: the box of [2, 6] elements from [3, 0] on does not lie inside the shape [4, 6]");
    }
}

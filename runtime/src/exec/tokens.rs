//! Do the ranks train on the tokens they should?

use super::error::RuntimeError;
use autoshard_ir::{Axis, Mesh};
use std::collections::HashMap;

/// What each rank is about to train on.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TokenCheck {
    /// Hash of the token ids of each rank.
    pub hashes: Vec<u64>,
    /// Axes that split the data: ranks that differ on them must have different tokens, all others
    /// the same.
    pub data_axes: Vec<Axis>,
    /// Whether ranks that must differ may have the same tokens by chance: too few of them.
    pub may_repeat: bool,
}

/// Compares the exchanged hashes of all ranks.
///
/// # Errors
/// [`RuntimeError::DuplicateData`] or [`RuntimeError::DifferentData`], naming two ranks.
pub(crate) fn compare(mesh: &Mesh, axes: &[Axis], hashes: &[u64], allow_duplicates: bool) -> Result<(), RuntimeError> {
    let names = || axes.iter().map(Axis::name).collect::<Vec<_>>().join("·");
    let place = |rank| {
        let coords = mesh.coords(rank);
        axes.iter().map(|a| mesh.coord(&coords, a)).collect::<Vec<usize>>()
    };
    let mut by_place: HashMap<Vec<usize>, usize> = HashMap::new();
    let mut by_hash: HashMap<u64, usize> = HashMap::new();
    for (rank, hash) in hashes.iter().enumerate() {
        let first = *by_place.entry(place(rank)).or_insert(rank);
        if hashes[first] != *hash {
            let (first_hash, second_hash) = (hashes[first], *hash);
            return Err(RuntimeError::DifferentData { first, second: rank, axes: names(), first_hash, second_hash });
        }
        let same = *by_hash.entry(*hash).or_insert(rank);
        if !allow_duplicates && place(same) != place(rank) {
            return Err(RuntimeError::DuplicateData { first: same, second: rank, axes: names(), hash: *hash });
        }
    }
    Ok(())
}

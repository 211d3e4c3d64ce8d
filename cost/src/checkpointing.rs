//! Activation checkpointing of a chain of blocks: how far apart to keep inputs.
//!
//! A block's backward needs what its forward left. Of n blocks in a chain, those inputs that are kept (a_in bytes
//! each) cut the chain into segments; before a segment's backward its forward runs again from its kept input and
//! leaves what its blocks need (a_block bytes each). With segments of k blocks, ⌈n/k⌉ inputs and k blocks are in
//! memory at once, so that the peak is least about k = √(n · a_in / a_block), which is √n for blocks that leave as
//! much as they read (Chen et al., 2016, "Training Deep Nets with Sublinear Memory Cost", section 4.1), and every
//! block's forward runs twice.
//!
//! Other ways to spend memory on a chain of unit blocks: all is kept (n and n evaluations), or nothing but the first
//! input (each block's backward starts again from it: n (n + 1) / 2 evaluations, and one block at a time in memory).
//! Between them are chains of which k inputs are kept and nothing else ([`kept`]).
//!
//! ```
//! use autoshard_cost::checkpointing::{evaluations, peak, spacing, without, Chain};
//!
//! println!("blocks | all kept: peak, forwards | spacing: peak, forwards | nothing kept: peak, forwards");
//! let mut rows = vec![];
//! for blocks in [4, 9, 16, 64, 100] {
//!     let chain = Chain { blocks, input: 1.0, block: 1.0 };
//!     let k = spacing(chain)?;
//!     let none = without(chain)?;
//!     let row = (k, peak(chain, k)?, evaluations(chain, k)?, none.peak, none.evaluations);
//!     println!("{blocks:6} | {blocks:4} {blocks:4} | {k:3}: {:3} {:4} | {:2} {:5}", row.1, row.2, row.3, row.4);
//!     rows.push(row);
//! }
//! assert_eq!(
//!     rows,
//!     [
//!         (2, 4.0, 8, 2.0, 10),
//!         (3, 6.0, 18, 2.0, 45),
//!         (4, 8.0, 32, 2.0, 136),
//!         (8, 16.0, 128, 2.0, 2080),
//!         (10, 20.0, 200, 2.0, 5050),
//!     ]
//! );
//! # Ok::<(), autoshard_cost::checkpointing::ChainError>(())
//! ```

use thiserror::Error;

/// A chain of blocks that are alike.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Chain {
    /// How many there are.
    pub blocks: u32,
    /// What a block reads, in any unit (bytes): what is kept of it where its forward runs again.
    pub input: f64,
    /// What a block's backward needs of its forward, in the same unit, its input included.
    pub block: f64,
}

/// What keeping some of a chain takes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Kept {
    /// Memory at once, in the chain's unit.
    pub peak: f64,
    /// How often the forward of a block runs.
    pub evaluations: u64,
}

/// A chain, or a spacing, that there is not.
#[derive(Clone, Copy, Debug, PartialEq, Error)]
pub enum ChainError {
    /// Nothing, or what has no size.
    #[error(
        "a chain of {} blocks that read {} and leave {}: it has at least one block, and both sizes are finite and \
         above 0", .0.blocks, .0.input, .0.block
    )]
    Chain(Chain),
    /// Segments that are empty or longer than the chain.
    #[error("segments of {length} blocks in a chain of {blocks}: their length is between 1 and that of the chain")]
    Length {
        /// The length asked for.
        length: u32,
        /// Blocks of the chain.
        blocks: u32,
    },
}

fn check(chain: Chain, length: u32) -> Result<(), ChainError> {
    let size = |s: f64| s > 0.0 && s.is_finite();
    match (chain.blocks > 0 && size(chain.input) && size(chain.block), length) {
        (false, _) => Err(ChainError::Chain(chain)),
        (true, length) if length == 0 || length > chain.blocks => {
            Err(ChainError::Length { length, blocks: chain.blocks })
        }
        _ => Ok(()),
    }
}

/// Memory at once where every `length`-th input is kept: ⌈n/k⌉ inputs and what a segment's blocks leave while its
/// backward runs.
///
/// # Errors
/// Where there is no such chain or segment.
pub fn peak(chain: Chain, length: u32) -> Result<f64, ChainError> {
    check(chain, length)?;
    Ok(f64::from(chain.blocks.div_ceil(length)) * chain.input + f64::from(length) * chain.block)
}

/// How often the forward of a block runs where every `length`-th input is kept: once in the forward and once more
/// before the backward, in all segments (frameworks run the last one again too).
///
/// # Errors
/// Where there is no such chain or segment.
pub fn evaluations(chain: Chain, length: u32) -> Result<u64, ChainError> {
    check(chain, length)?;
    Ok(2 * u64::from(chain.blocks))
}

/// The length of segments by formula: √(n · a_in / a_block), rounded to the nearest whole number that there is.
///
/// For unit blocks no other length has a lower peak, though some have the same ([`best_spacing`] tries all; of two
/// blocks it is 3 with 1 and with 2); for others it is within one input or one block, whichever is more, of the lowest.
///
/// # Errors
/// Where there is no such chain.
pub fn spacing(chain: Chain) -> Result<u32, ChainError> {
    check(chain, 1)?;
    let length = (f64::from(chain.blocks) * chain.input / chain.block).sqrt().round();
    Ok((length as u32).clamp(1, chain.blocks))
}

/// The length of segments with the lowest peak, found by trying all; the shortest where several are as good.
///
/// # Errors
/// Where there is no such chain.
pub fn best_spacing(chain: Chain) -> Result<u32, ChainError> {
    let (mut best, mut lowest) = (1, peak(chain, 1)?);
    for length in 2..=chain.blocks {
        let peak = peak(chain, length)?;
        if peak < lowest {
            (best, lowest) = (length, peak);
        }
    }
    Ok(best)
}

/// Nothing is kept but the chain's first input, and one block at a time is in memory: before each backward the chain
/// runs from its start up to that block, n (n + 1) / 2 forwards in all, the first pass among them as that of the last
/// block.
///
/// # Errors
/// Where there is no such chain.
pub fn without(chain: Chain) -> Result<Kept, ChainError> {
    kept(chain, 1)
}

/// So many inputs are kept, the chain's first among them and as even as can be, and nothing else: before each
/// backward its segment runs from its start up to that block. Forwards: one pass, and in a segment of l blocks
/// l (l + 1) / 2, of which the pass has done those of the last segment's last block.
///
/// With one input it is [`without`], with n every block's forward runs twice but the last.
///
/// # Errors
/// Where there is no such chain or it has fewer inputs.
pub fn kept(chain: Chain, inputs: u32) -> Result<Kept, ChainError> {
    check(chain, inputs)?;
    let (short, more) = (chain.blocks / inputs, chain.blocks % inputs);
    let again = |length: u32| u64::from(length) * (u64::from(length) + 1) / 2;
    let last = short;
    let evaluations =
        u64::from(chain.blocks) + u64::from(more) * again(short + 1) + u64::from(inputs - more) * again(short)
            - u64::from(last);
    Ok(Kept { peak: f64::from(inputs) * chain.input + chain.block, evaluations })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unit(blocks: u32) -> Chain {
        Chain { blocks, input: 1.0, block: 1.0 }
    }

    /// Runs a chain's backward from the kept inputs, counting forwards and what is in memory.
    fn run(chain: Chain, starts: &[u32], segment_at_once: bool) -> Kept {
        let inputs = starts.len() as f64 * chain.input;
        let (mut evaluations, mut peak) = (u64::from(chain.blocks), 0.0f64);
        let mut end = chain.blocks;
        for start in starts.iter().rev() {
            if segment_at_once {
                evaluations += u64::from(end - start);
                peak = peak.max(inputs + f64::from(end - start) * chain.block);
            }
            for block in (*start..end).rev().filter(|_| !segment_at_once) {
                // The first pass ends at the last block.
                let fresh = block + 1 == chain.blocks;
                evaluations += if fresh { 0 } else { u64::from(block - start + 1) };
                peak = peak.max(inputs + chain.block);
            }
            end = *start;
        }
        Kept { peak, evaluations }
    }

    #[test]
    fn formulas_count_what_a_run_takes() {
        for blocks in 1..=40 {
            let chain = Chain { blocks, input: 0.5, block: 3.0 };
            for length in 1..=blocks {
                let starts: Vec<u32> = (0..blocks).step_by(length as usize).collect();
                let expected = run(chain, &starts, true);
                assert_eq!(peak(chain, length), Ok(expected.peak), "{blocks}, {length}");
                assert_eq!(evaluations(chain, length), Ok(expected.evaluations));
            }
            for inputs in 1..=blocks {
                // The longer segments come first.
                let (short, more) = (blocks / inputs, blocks % inputs);
                let starts: Vec<u32> = (0..inputs).map(|i| i * short + i.min(more)).collect();
                assert_eq!(kept(chain, inputs), Ok(run(chain, &starts, false)), "{blocks}, {inputs}");
            }
        }
    }

    #[test]
    fn the_best_spacing_of_unit_blocks_is_the_root() {
        for blocks in 1..=400 {
            let (formula, tried) = (spacing(unit(blocks)).unwrap(), best_spacing(unit(blocks)).unwrap());
            assert_eq!(peak(unit(blocks), formula), peak(unit(blocks), tried), "{blocks}: {formula} or {tried}");
            assert_eq!(formula, f64::from(blocks).sqrt().round() as u32);
            assert_eq!(evaluations(unit(blocks), formula), Ok(2 * u64::from(blocks)));
            // A square's root has no equal but itself.
            let root = f64::from(formula);
            if root * root == f64::from(blocks) {
                assert_eq!(formula, tried);
                assert_eq!(peak(unit(blocks), formula), Ok(2.0 * root));
            }
        }
    }

    #[test]
    fn blocks_that_leave_more_than_they_read_are_kept_closer() {
        // From far more kept of a block than of its input (34 n h and 2 n h in a layer under selective recomputation,
        // Korthikanti et al., 2022) to the contrary.
        let sizes = [(2.0, 34.0), (1.0, 16.0), (2.0, 9.5), (1.0, 4.0), (1.0, 1.7), (1.0, 1.0), (3.0, 1.0), (40.0, 1.0)];
        for (blocks, (input, block)) in (1..=200).flat_map(|n| sizes.map(|s| (n, s))) {
            let chain = Chain { blocks, input, block };
            let root = (f64::from(blocks) * input / block).sqrt();
            let formula = spacing(chain).unwrap();
            let inside = root.clamp(1.0, f64::from(blocks));
            assert!((f64::from(formula) - inside).abs() <= 0.5);
            let (got, best) = (peak(chain, formula).unwrap(), peak(chain, best_spacing(chain).unwrap()).unwrap());
            // No spacing is below 2 √(n · a_in · a_block).
            let bound = 2.0 * (f64::from(blocks) * input * block).sqrt();
            assert!(bound <= best + 1e-9 && best <= got, "{chain:?}: {got}, {best}, {bound}");
            assert!(got <= best + input.max(block), "{chain:?}: {got}, {best}");
        }
        let quarter = Chain { blocks: 64, input: 1.0, block: 4.0 };
        assert_eq!((spacing(quarter), best_spacing(quarter)), (Ok(4), Ok(4)));
    }

    #[test]
    fn nothing_kept_takes_all_forwards_again_and_again() {
        assert_eq!(without(unit(4)), Ok(Kept { peak: 2.0, evaluations: 10 }));
        for blocks in 1..=100 {
            let n = u64::from(blocks);
            assert_eq!(without(unit(blocks)).unwrap().evaluations, n * (n + 1) / 2);
            assert_eq!(kept(unit(blocks), blocks).unwrap().evaluations, 2 * n - 1);
            // The more is kept, the less runs again.
            let all: Vec<Kept> = (1..=blocks).map(|k| kept(unit(blocks), k).unwrap()).collect();
            assert!(all.windows(2).all(|w| w[1].peak > w[0].peak && w[1].evaluations <= w[0].evaluations));
        }
    }

    #[test]
    fn what_there_is_not() {
        for chain in [unit(0), Chain { input: 0.0, ..unit(4) }, Chain { block: f64::NAN, ..unit(4) }] {
            assert!(matches!(spacing(chain), Err(ChainError::Chain(_))));
        }
        assert_eq!(peak(unit(4), 5), Err(ChainError::Length { length: 5, blocks: 4 }));
        let text = "segments of 0 blocks in a chain of 4: their length is between 1 and that of the chain";
        assert_eq!(evaluations(unit(4), 0).unwrap_err().to_string(), text);
    }
}

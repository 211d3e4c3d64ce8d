//! Errors of the executor.

use crate::comm::CommError;
use crate::cpu::KernelError;

/// Why a program cannot run, or stopped.
#[derive(Debug, thiserror::Error)]
pub enum RuntimeError {
    /// The program contradicts itself; nothing has run.
    #[error("program: {function}: {place}: {reason}")]
    Program {
        /// Function of the program.
        function: String,
        /// Step or parameter.
        place: String,
        /// What is wrong.
        reason: String,
    },
    /// Not enough memory for a rank.
    #[error("rank {rank}: no memory for {bytes} bytes of {what}")]
    Memory {
        /// The rank.
        rank: usize,
        /// Bytes asked for.
        bytes: usize,
        /// What they are for.
        what: String,
    },
    /// A kernel refused its buffers.
    #[error("rank {rank}: {function}: kernel {kernel}: {source}")]
    Kernel {
        /// The rank.
        rank: usize,
        /// Function of the program.
        function: String,
        /// Name of the kernel.
        kernel: String,
        /// The kernel's error.
        source: KernelError,
    },
    /// Ranks could not communicate.
    #[error("{0}")]
    Comm(#[from] CommError),
    /// No such rank.
    #[error("there is no rank {rank}; the mesh has {ranks}")]
    NoRank {
        /// The rank asked for.
        rank: usize,
        /// Ranks of the mesh.
        ranks: usize,
    },
    /// No such parameter or result of the entry.
    #[error("the entry has no {what} {index}; it has {count}")]
    NoBuffer {
        /// `parameter`, `result` or `accessible frame offset`.
        what: &'static str,
        /// Index asked for.
        index: usize,
        /// How many there are.
        count: usize,
    },
    /// Data of the wrong length.
    #[error("{name}: {given} {unit} given, rank {rank} holds {expected}")]
    Length {
        /// Parameter.
        name: String,
        /// The rank.
        rank: usize,
        /// `bytes` or `elements`.
        unit: &'static str,
        /// Length given.
        given: usize,
        /// Length of the rank's real part.
        expected: usize,
    },
    /// A number that an integer parameter cannot hold.
    #[error("{name}: {value} is not a 32-bit integer")]
    Integer {
        /// Parameter.
        name: String,
        /// The number.
        value: f64,
    },
    /// A value that is still partial has no global tensor.
    #[error("{name} is partial over {axes}; it must be reduced before it is read whole")]
    Partial {
        /// Parameter or result.
        name: String,
        /// Its partial axes.
        axes: String,
    },
    /// Two data-parallel ranks train on the same tokens.
    #[error(
        "ranks {first} and {second} differ on {axes}, yet have the same tokens (hash {hash:016x}); \
         --allow-duplicate-data permits this"
    )]
    DuplicateData {
        /// A rank.
        first: usize,
        /// Another.
        second: usize,
        /// Axes that split the data.
        axes: String,
        /// Hash of the tokens of both.
        hash: u64,
    },
    /// Two ranks that must work on the same tokens do not.
    #[error(
        "ranks {first} and {second} agree on {axes}, yet have different tokens (hashes \
         {first_hash:016x} and {second_hash:016x})"
    )]
    DifferentData {
        /// A rank.
        first: usize,
        /// Another.
        second: usize,
        /// Axes that split the data.
        axes: String,
        /// Hash of the first rank's tokens.
        first_hash: u64,
        /// Hash of the second rank's tokens.
        second_hash: u64,
    },
    /// Not one token hash per rank.
    #[error("{given} token hashes for {ranks} ranks")]
    Hashes {
        /// Hashes given.
        given: usize,
        /// Ranks of the mesh.
        ranks: usize,
    },
    /// An option that makes no sense.
    #[error("option {option}: {reason}")]
    Option {
        /// Name of the option.
        option: &'static str,
        /// What is wrong.
        reason: String,
    },
}

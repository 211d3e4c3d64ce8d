//! What can go wrong between ranks, with names.

use std::time::Duration;

/// A failed communication. The first failure of any rank stops the whole [`crate::comm::World`].
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum CommError {
    /// The mesh cannot be a world of threads.
    #[error("mesh {mesh}: {reason}")]
    Mesh {
        /// The mesh.
        mesh: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A collective that makes no sense, refused before anything moves.
    #[error("{call}: {reason}")]
    Invalid {
        /// The collective with its types.
        call: String,
        /// What is wrong with it.
        reason: String,
    },
    /// Input and output share memory, so peers would read what this rank writes.
    #[error("rank {rank}: {call}: input and output overlap")]
    Overlap {
        /// The rank.
        rank: usize,
        /// The collective with its types.
        call: String,
    },
    /// Two ranks of one group met with different calls.
    #[error(
        "rank {rank} called {call}, but rank {other} of the same group called {other_call} \
         (meeting {meeting} of ranks {members:?})"
    )]
    Mismatch {
        /// The rank that noticed.
        rank: usize,
        /// Its call.
        call: String,
        /// A rank that was there before.
        other: usize,
        /// That rank's call.
        other_call: String,
        /// Count of meetings of this group, from 0.
        meeting: u64,
        /// All ranks of the group.
        members: Vec<usize>,
    },
    /// The watchdog: not every rank came.
    #[error(
        "{call}: gave up after {} ms in meeting {meeting}: ranks {arrived:?} arrived, ranks \
         {missing:?} are missing ({whereabouts})", waited.as_millis()
    )]
    Timeout {
        /// The call.
        call: String,
        /// Count of meetings of this group, from 0.
        meeting: u64,
        /// How long the first rank to give up had waited.
        waited: Duration,
        /// Ranks that came.
        arrived: Vec<usize>,
        /// Ranks that did not.
        missing: Vec<usize>,
        /// What the missing ranks were doing.
        whereabouts: String,
    },
    /// A received message is not the one that was expected.
    #[error(
        "rank {to} expected {name} ({bytes} bytes) from rank {from}, which sent {sent_name} \
         ({sent_bytes} bytes)"
    )]
    Message {
        /// Receiver.
        to: usize,
        /// Sender.
        from: usize,
        /// Expected name.
        name: String,
        /// Expected size.
        bytes: usize,
        /// Name that came.
        sent_name: String,
        /// Size that came.
        sent_bytes: usize,
    },
    /// No such rank, or it is not in the group.
    #[error("{call}: rank {rank} is not one of {members:?}")]
    NoRank {
        /// The call.
        call: String,
        /// The rank.
        rank: usize,
        /// Ranks that there are.
        members: Vec<usize>,
    },
    /// A rank's code panicked.
    #[error("rank {rank} panicked: {message}")]
    Panic {
        /// The rank.
        rank: usize,
        /// The panic's text.
        message: String,
    },
    /// A rank stopped with an error of its own.
    #[error("rank {rank} failed: {message}")]
    Rank {
        /// The rank.
        rank: usize,
        /// The error's text.
        message: String,
    },
    /// The number of states given to [`crate::comm::World::run`] is not the number of ranks.
    #[error("{given} states for {ranks} ranks")]
    Ranks {
        /// States given.
        given: usize,
        /// Ranks of the mesh.
        ranks: usize,
    },
    /// The operating system gave no thread.
    #[error("no thread for rank {rank}: {message}")]
    Spawn {
        /// The rank.
        rank: usize,
        /// The system's text.
        message: String,
    },
    /// This rank was stopped because of another's failure.
    #[error("stopped: {0}")]
    Stopped(Box<CommError>),
}

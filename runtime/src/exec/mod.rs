//! The executor: memory of all ranks, and steps of a program on them.
//!
//! [`Runtime::new`] checks the program once and allocates everything; a step then allocates nothing
//! large. Parameters are written and results read between steps ([`Runtime::write_f64`],
//! [`Runtime::read_f64`], …).
//!
//! Communication that is not waited for at once runs on a rank's communication thread (see
//! [`crate::comm`]) while the rank goes on.
//!
//! Invariant: all memory of the ranks belongs to the [`Runtime`] and outlives their threads, so that
//! a rank may read from a peer that has already failed.

mod access;
mod arena;
mod check;
mod error;
mod rank;
mod tokens;

pub use error::RuntimeError;
pub use tokens::TokenCheck;

use crate::comm::{Comm, Counts, World};
use crate::cpu::pool::Pool;
use autoshard_ir::program::{Program, ProgramFunction};
use rank::Rank;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Most compute threads that may be asked for.
const MAX_THREADS: usize = 1024;

/// How to run.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// Compute threads that all ranks share; 0: one per core.
    pub threads: usize,
    /// Longest wait of a rank for others.
    pub timeout: Duration,
    /// Data-parallel ranks may train on the same tokens.
    pub allow_duplicate_data: bool,
}

impl Default for Options {
    fn default() -> Options {
        Options { threads: 0, timeout: Duration::from_secs(60), allow_duplicate_data: false }
    }
}

/// A program with the memory of its ranks.
#[derive(Debug)]
pub struct Runtime {
    program: Arc<Program>,
    options: Options,
    world: World,
    /// Each rank's share of the compute threads.
    pool: Pool,
    ranks: Vec<Rank>,
}

/// What one step did.
#[derive(Clone, Debug, PartialEq)]
pub struct StepReport {
    /// Wall time of the step, in seconds.
    pub seconds: f64,
    /// Per rank.
    pub ranks: Vec<RankReport>,
}

/// What one step did on one rank.
#[derive(Clone, Debug, PartialEq)]
pub struct RankReport {
    /// Bytes communicated.
    pub counts: Counts,
    /// Seconds in which the rank communicated, beside its computation or not.
    pub communication_seconds: f64,
    /// Seconds in which the rank did not compute because of communication: it ran a collective itself
    /// or waited for its communication thread.
    pub exposed_communication_seconds: f64,
    /// Part of `communication_seconds` that passed waiting for other ranks.
    pub waiting_seconds: f64,
    /// Memory of the rank, in bytes: parameters, results and frames.
    pub memory_bytes: usize,
}

impl Runtime {
    /// Checks `program` and allocates the memory of its ranks, zeroed.
    ///
    /// # Errors
    /// [`RuntimeError::Program`] or [`RuntimeError::Comm`] for a program that contradicts itself,
    /// [`RuntimeError::Memory`] if there is not enough, [`RuntimeError::Option`].
    pub fn new(program: Arc<Program>, options: Options) -> Result<Runtime, RuntimeError> {
        if options.threads > MAX_THREADS {
            let reason = format!("{} threads; at most {MAX_THREADS}", options.threads);
            return Err(RuntimeError::Option { option: "threads", reason });
        }
        // The world checks the mesh, on which all sizes rest.
        let world = World::new(&program.mesh, options.timeout)?;
        let reached = check::check(&program)?;
        let collectives: Vec<_> = program.collectives.iter().map(|c| Arc::new(c.clone())).collect();
        let count = program.mesh.ranks();
        let ranks = (0..count).map(|r| Rank::new(&program, &collectives, &reached, &world, r));
        let ranks = ranks.collect::<Result<Vec<_>, _>>()?;
        let pool = Pool::new(options.threads).share(count);
        Ok(Runtime { program, options, world, pool, ranks })
    }

    /// The program.
    pub fn program(&self) -> &Program {
        &self.program
    }

    /// Number of ranks.
    pub fn ranks(&self) -> usize {
        self.ranks.len()
    }

    /// Memory of a rank in bytes: parameters, results and frames (0 if there is no such rank).
    pub fn memory(&self, rank: usize) -> usize {
        self.ranks.get(rank).map_or(0, Rank::bytes)
    }

    /// Runs the entry function once on every rank.
    ///
    /// With `tokens`, the ranks first exchange the hashes of their tokens and compare them.
    ///
    /// # Errors
    /// The first rank's failure: [`RuntimeError::Kernel`], [`RuntimeError::Comm`] (a mismatch, the
    /// watchdog, a panic), [`RuntimeError::DuplicateData`], [`RuntimeError::DifferentData`]. After
    /// a failure the memory is in an unknown state, and every later step fails with the same cause.
    pub fn step(&mut self, tokens: Option<&TokenCheck>) -> Result<StepReport, RuntimeError> {
        let count = self.ranks.len();
        if let Some(given) = tokens.map(|t| t.hashes.len()).filter(|n| *n != count) {
            return Err(RuntimeError::Hashes { given, ranks: count });
        }
        let start = Instant::now();
        let (program, options, pool) = (&*self.program, &self.options, &self.pool);
        let ranks = self.world.run(self.ranks.iter_mut().collect(), |comm, rank: &mut Rank| {
            if let Some(tokens) = tokens {
                let hashes = comm.exchange(tokens.hashes[rank.rank])?;
                let repeats = options.allow_duplicate_data || tokens.may_repeat;
                tokens::compare(&program.mesh, &tokens.data_axes, &hashes, repeats)?;
            }
            rank.run(program, comm, pool)?;
            Ok::<_, RuntimeError>(report(comm, rank))
        })?;
        Ok(StepReport { seconds: start.elapsed().as_secs_f64(), ranks })
    }

    fn entry(&self) -> &ProgramFunction {
        // `check` found it.
        &self.program.functions[self.program.entry]
    }
}

fn report(comm: &mut Comm<'_>, rank: &Rank) -> RankReport {
    let counts = std::mem::take(&mut comm.counts);
    RankReport {
        communication_seconds: counts.communicating.as_secs_f64(),
        exposed_communication_seconds: counts.exposed.as_secs_f64(),
        waiting_seconds: counts.waiting.as_secs_f64(),
        memory_bytes: rank.bytes(),
        counts,
    }
}

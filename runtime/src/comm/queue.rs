//! Communication beside computation: the queue of one rank, and the thread that works it off.
//!
//! Collectives run one after another in the order in which they were issued, on the rank's
//! communication thread or, if that has not got to them yet, on the thread that waits for them. The
//! communication thread is woken when the rank goes on to compute, once for all that it has issued by
//! then. The thread starts with the first collective that is queued and ends with the world. Who
//! waits, parks.
//!
//! Invariant: a wait ends, because every collective does: with its result, with the watchdog's error,
//! or because the world has stopped.

use super::count::Counts;
use super::error::CommError;
use super::plan::CollectivePlan;
use super::world::{lock, panic_text, World};
use super::Comm;
use std::collections::VecDeque;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// A collective to run.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) world: World,
    pub(crate) plan: Arc<CollectivePlan>,
    /// Addresses, under the contract of [`Comm::issue`].
    pub(crate) input: usize,
    pub(crate) output: usize,
    /// Position among all that the rank communicates.
    pub(crate) order: u64,
}

/// The collectives that one rank has issued.
#[derive(Debug)]
pub(crate) struct Queue {
    rank: usize,
    state: Mutex<State>,
    /// There is something to run, or nothing will come.
    work: Condvar,
    /// Something is complete.
    done: Condvar,
}

#[derive(Debug, Default)]
struct State {
    jobs: VecDeque<Job>,
    /// Jobs ever issued.
    issued: u64,
    /// Jobs complete.
    done: u64,
    /// A thread runs the job after those that are complete.
    busy: bool,
    /// Why a job failed; there are no further ones.
    failed: Option<CommError>,
    /// The communication thread exists.
    served: bool,
    /// The world ends.
    closed: bool,
    /// What complete jobs have counted.
    counts: Counts,
}

impl Queue {
    pub(crate) fn new(rank: usize) -> Queue {
        Queue { rank, state: Mutex::default(), work: Condvar::new(), done: Condvar::new() }
    }

    /// Whether nothing is under way.
    pub(crate) fn idle(&self) -> bool {
        let state = lock(&self.state);
        state.issued == state.done
    }

    /// Adds a job and returns its number. `serve` starts the communication thread, once.
    pub(crate) fn issue(&self, job: Job, serve: impl FnOnce() -> Result<(), CommError>) -> Result<u64, CommError> {
        let mut state = lock(&self.state);
        if let Some(error) = &state.failed {
            return Err(error.clone());
        }
        if !state.served {
            serve()?;
            state.served = true;
        }
        state.jobs.push_back(job);
        state.issued += 1;
        Ok(state.issued - 1)
    }

    /// Sets the communication thread to work.
    pub(crate) fn start(&self) {
        self.work.notify_one();
    }

    /// Waits until a job is complete, and adds what complete jobs have counted.
    ///
    /// # Errors
    /// That of the job, or of one before it.
    pub(crate) fn wait(&self, number: u64, counts: &mut Counts) -> Result<(), CommError> {
        let mut state = lock(&self.state);
        while state.done <= number {
            if let Some(error) = &state.failed {
                return Err(error.clone());
            }
            state = self.progress(state);
        }
        counts.add(std::mem::take(&mut state.counts));
        Ok(())
    }

    /// Waits until nothing runs, and drops what has not begun if the rank has failed.
    ///
    /// # Errors
    /// The error of a job that nobody waited for.
    pub(crate) fn drain(&self, failed: bool) -> Result<(), CommError> {
        let mut state = lock(&self.state);
        if failed {
            state.jobs.clear();
        }
        while state.busy || !state.jobs.is_empty() {
            state = self.progress(state);
        }
        state.counts = Counts::default();
        state.failed.clone().map_or(Ok(()), Err)
    }

    /// Runs the next job on this thread, or parks while another thread runs it.
    fn progress<'a>(&'a self, mut state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        let next = if state.busy { None } else { state.jobs.pop_front() };
        match next {
            Some(job) => {
                state.busy = true;
                drop(state);
                self.run(job);
                lock(&self.state)
            }
            None => self.done.wait(state).unwrap_or_else(PoisonError::into_inner),
        }
    }

    /// Runs a job and notes what became of it.
    fn run(&self, job: Job) {
        let (mut comm, plan) = (Comm::new(&job.world, self.rank, job.order), &job.plan);
        let (input, output) = (job.input as *const u8, job.output as *mut u8);
        // SAFETY: by the contract of `Comm::issue`.
        let run = AssertUnwindSafe(|| unsafe { comm.collective(plan, input, output) });
        let result =
            catch_unwind(run).unwrap_or_else(|p| Err(CommError::Panic { rank: self.rank, message: panic_text(&*p) }));
        let counts = std::mem::take(&mut comm.counts);
        if let Err(error) = &result {
            // The rank hears of it when it waits; the others should not wait for that.
            job.world.stop(self.rank, CommError::Rank { rank: self.rank, message: error.to_string() });
        }
        // The world may end as soon as nothing is under way: its owner takes it down, not this thread.
        drop(job);
        let mut state = lock(&self.state);
        state.busy = false;
        match result {
            Ok(()) => {
                state.done += 1;
                state.counts.add(Counts { exposed: std::time::Duration::ZERO, ..counts });
            }
            Err(error) => {
                state.failed = Some(error);
                state.jobs.clear();
            }
        }
        if !state.jobs.is_empty() {
            self.work.notify_one();
        }
        self.done.notify_all();
    }

    /// The communication thread.
    pub(crate) fn serve(&self) {
        loop {
            let mut state = lock(&self.state);
            while !state.closed && (state.busy || state.jobs.is_empty()) {
                state = self.work.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
            if state.closed {
                return;
            }
            drop(self.progress(state));
        }
    }

    /// Ends the communication thread.
    pub(crate) fn close(&self) {
        lock(&self.state).closed = true;
        self.work.notify_all();
    }
}

//! The world: all ranks, their groups, and the end of all waiting.

use super::error::CommError;
use super::group::{Call, Group};
use super::message::Inbox;
use super::queue::Queue;
use super::Comm;
use autoshard_ir::{Axis, Mesh};
use std::collections::HashMap;
use std::fmt::Display;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// Most ranks that one process runs as threads.
pub const MAX_RANKS: usize = 4096;

/// All ranks of a mesh, as threads of this process.
///
/// The first failure of any rank (its error, its panic, a mismatch, the watchdog) stops the world:
/// every rank that waits, and every later call, returns [`CommError::Stopped`] with that cause.
#[derive(Debug)]
pub struct World {
    shared: Arc<Shared>,
}

/// What the ranks and their communication threads share.
#[derive(Debug)]
struct Shared {
    mesh: Mesh,
    timeout: Duration,
    stopped: AtomicBool,
    /// First cause and the rank that met it.
    cause: Mutex<Option<(usize, CommError)>>,
    groups: Mutex<HashMap<Vec<usize>, Arc<Group>>>,
    everyone: Arc<Group>,
    places: Vec<Mutex<Place>>,
    inboxes: Vec<Inbox>,
    /// What each rank has issued; none in a world of one.
    queues: Vec<Arc<Queue>>,
    /// Communication threads.
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.queues.iter().for_each(|q| q.close());
        for thread in lock(&self.threads).drain(..) {
            // A thread that panics has told the world; this is the world's end.
            let _ = thread.join();
        }
    }
}

/// What a rank is doing, for the watchdog's report.
#[derive(Clone, Debug)]
enum Place {
    Computing,
    Waiting(Arc<Call>),
    Finished,
}

impl World {
    /// A world of `mesh.ranks()` ranks; a wait longer than `timeout` stops it.
    ///
    /// # Errors
    /// [`CommError::Mesh`] for an axis of size 0 or given twice, and for more than [`MAX_RANKS`].
    pub fn new(mesh: &Mesh, timeout: Duration) -> Result<World, CommError> {
        check_mesh(mesh).map_err(|reason| CommError::Mesh { mesh: mesh.to_string(), reason })?;
        let members: Vec<usize> = (0..mesh.ranks()).collect();
        let everyone = Arc::new(Group::new(members.clone()));
        let ranks = mesh.ranks();
        let queued = if ranks == 1 { 0 } else { ranks };
        let shared = Shared {
            mesh: mesh.clone(),
            timeout,
            stopped: AtomicBool::new(false),
            cause: Mutex::new(None),
            groups: Mutex::new(HashMap::from([(members, everyone.clone())])),
            everyone,
            places: (0..ranks).map(|_| Mutex::new(Place::Computing)).collect(),
            inboxes: (0..ranks).map(|_| Inbox::default()).collect(),
            queues: (0..queued).map(|r| Arc::new(Queue::new(r))).collect(),
            threads: Mutex::default(),
        };
        Ok(World { shared: Arc::new(shared) })
    }

    /// Another handle on the same world, for a communication thread while it communicates.
    pub(crate) fn share(&self) -> World {
        World { shared: self.shared.clone() }
    }

    /// What a rank has issued; `None` in a world of one.
    pub(crate) fn queue(&self, rank: usize) -> Option<&Queue> {
        self.shared.queues.get(rank).map(|q| &**q)
    }

    /// Starts the communication thread of a rank.
    pub(crate) fn serve(&self, rank: usize) -> Result<(), CommError> {
        let Some(queue) = self.shared.queues.get(rank).cloned() else { return Ok(()) };
        // The thread holds the queue, not the world, which ends it.
        let thread = std::thread::Builder::new().name(format!("comm {rank}")).spawn(move || queue.serve());
        let thread = thread.map_err(|e| CommError::Spawn { rank, message: e.to_string() })?;
        lock(&self.shared.threads).push(thread);
        Ok(())
    }

    /// The mesh.
    pub fn mesh(&self) -> &Mesh {
        &self.shared.mesh
    }

    /// Longest wait.
    pub fn timeout(&self) -> Duration {
        self.shared.timeout
    }

    /// The ranks that differ from `rank` on `axes` alone; made once, then shared.
    pub fn group(&self, rank: usize, axes: &[Axis]) -> Arc<Group> {
        let mut members = self.shared.mesh.group(rank, axes);
        members.sort_unstable();
        members.dedup();
        let mut groups = lock(&self.shared.groups);
        groups.entry(members.clone()).or_insert_with(|| Arc::new(Group::new(members))).clone()
    }

    /// All ranks.
    pub(crate) fn everyone(&self) -> &Arc<Group> {
        &self.shared.everyone
    }

    pub(crate) fn inbox(&self, rank: usize) -> Option<&Inbox> {
        self.shared.inboxes.get(rank)
    }

    /// Runs `f` once per rank, each on its own thread with its own state (on the caller's thread if
    /// there is one rank), and returns the results by rank.
    ///
    /// # Errors
    /// The error of the rank that failed first. A panic in `f` is such an error too.
    pub fn run<S, R, E>(&self, states: Vec<S>, f: impl Fn(&mut Comm<'_>, S) -> Result<R, E> + Sync) -> Result<Vec<R>, E>
    where
        S: Send,
        R: Send,
        E: From<CommError> + Display + Send,
    {
        let ranks = self.shared.mesh.ranks();
        if states.len() != ranks {
            return Err(CommError::Ranks { given: states.len(), ranks }.into());
        }
        self.check()?;
        let results = if ranks == 1 {
            states.into_iter().map(|s| self.run_rank(0, s, &f)).collect()
        } else {
            self.run_threads(states, &f)
        };
        let first = lock(&self.shared.cause).as_ref().map(|(rank, _)| *rank);
        first_error(results, first)
    }

    fn run_threads<S, R, E>(
        &self,
        states: Vec<S>,
        f: &(impl Fn(&mut Comm<'_>, S) -> Result<R, E> + Sync),
    ) -> Vec<Result<R, E>>
    where
        S: Send,
        R: Send,
        E: From<CommError> + Display + Send,
    {
        std::thread::scope(|scope| {
            let spawn = |(rank, state)| {
                let builder = std::thread::Builder::new().name(format!("rank {rank}"));
                let thread = builder.spawn_scoped(scope, move || self.run_rank(rank, state, f));
                thread.map_err(|e| {
                    let error = CommError::Spawn { rank, message: e.to_string() };
                    self.stop(rank, error.clone());
                    error
                })
            };
            let threads: Vec<_> = states.into_iter().enumerate().map(spawn).collect();
            let join = |(rank, thread): (usize, Result<std::thread::ScopedJoinHandle<_>, CommError>)| {
                let joined = thread?.join();
                joined.unwrap_or_else(|p| Err(CommError::Panic { rank, message: panic_text(&*p) }.into()))
            };
            threads.into_iter().enumerate().map(join).collect()
        })
    }

    fn run_rank<S, R, E>(&self, rank: usize, state: S, f: &impl Fn(&mut Comm<'_>, S) -> Result<R, E>) -> Result<R, E>
    where
        E: From<CommError> + Display,
    {
        *lock(&self.shared.places[rank]) = Place::Computing;
        let mut comm = Comm::new(self, rank, 0);
        // A state that a panic leaves half-changed is not used again: the world stops for good.
        let result = match catch_unwind(AssertUnwindSafe(|| f(&mut comm, state))) {
            Ok(result) => result.inspect_err(|e| {
                self.stop(rank, CommError::Rank { rank, message: e.to_string() });
            }),
            Err(panic) => {
                let error = CommError::Panic { rank, message: panic_text(&*panic) };
                self.stop(rank, error.clone());
                Err(error.into())
            }
        };
        let result = self.end_rank(rank, result);
        *lock(&self.shared.places[rank]) = Place::Finished;
        result
    }

    /// Ends what a rank has issued. Where its communication failed, that is why the rank did.
    fn end_rank<R, E>(&self, rank: usize, result: Result<R, E>) -> Result<R, E>
    where
        E: From<CommError>,
    {
        let Some(queue) = self.queue(rank) else { return result };
        match (queue.drain(result.is_err()), result) {
            (Ok(()), result) => result,
            (Err(CommError::Stopped(_)), Err(e)) => Err(e),
            (Err(e), _) => Err(e.into()),
        }
    }

    /// Stops the world. Only the first cause counts.
    pub fn stop(&self, rank: usize, cause: CommError) {
        {
            let mut first = lock(&self.shared.cause);
            if first.is_some() {
                return;
            }
            *first = Some((rank, cause));
        }
        self.shared.stopped.store(true, Ordering::SeqCst);
        // Waiters test the flag under the lock that `wake` takes, so none misses it.
        let groups: Vec<_> = lock(&self.shared.groups).values().cloned().collect();
        groups.iter().for_each(|g| g.wake());
        self.shared.inboxes.iter().for_each(Inbox::wake);
    }

    /// Why the world stopped, if it did.
    pub fn cause(&self) -> Option<CommError> {
        lock(&self.shared.cause).as_ref().map(|(_, cause)| cause.clone())
    }

    /// An error if the world has stopped.
    pub fn check(&self) -> Result<(), CommError> {
        if !self.shared.stopped.load(Ordering::SeqCst) {
            return Ok(());
        }
        match self.cause() {
            Some(cause) => Err(CommError::Stopped(Box::new(cause))),
            None => Ok(()),
        }
    }

    /// Notes what a rank waits in.
    pub(crate) fn place(&self, rank: usize, call: Option<&Arc<Call>>) {
        *lock(&self.shared.places[rank]) = call.map_or(Place::Computing, |c| Place::Waiting(c.clone()));
    }

    /// What these ranks are doing, in words.
    pub(crate) fn whereabouts(&self, ranks: &[usize]) -> String {
        let say = |rank: &usize| match &*lock(&self.shared.places[*rank]) {
            Place::Computing => format!("rank {rank} is computing"),
            Place::Waiting(call) => format!("rank {rank} waits in {call}"),
            Place::Finished => format!("rank {rank} has finished"),
        };
        ranks.iter().map(say).collect::<Vec<_>>().join("; ")
    }
}

fn check_mesh(mesh: &Mesh) -> Result<(), String> {
    let mut ranks: usize = 1;
    for (i, (axis, size)) in mesh.axes.iter().enumerate() {
        if mesh.axes[..i].iter().any(|(a, _)| a == axis) {
            return Err(format!("axis {axis} appears twice"));
        }
        if *size == 0 {
            return Err(format!("axis {axis} has size 0"));
        }
        ranks = ranks.saturating_mul(*size);
    }
    if ranks > MAX_RANKS {
        return Err(format!("{ranks} ranks; one process runs at most {MAX_RANKS}"));
    }
    Ok(())
}

/// All results, or the error of rank `first`, or any error.
fn first_error<R, E>(results: Vec<Result<R, E>>, first: Option<usize>) -> Result<Vec<R>, E> {
    let mut good = Vec::with_capacity(results.len());
    let mut bad = None;
    for (rank, result) in results.into_iter().enumerate() {
        match result {
            Ok(r) => good.push(r),
            Err(e) if bad.is_none() || first == Some(rank) => bad = Some(e),
            Err(_) => {}
        }
    }
    bad.map_or(Ok(good), Err)
}

/// The text of a panic.
pub(crate) fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|s| s.to_string());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "no message".into())
}

/// Locks, whatever happened to other holders: the data are consistent at every unlock.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

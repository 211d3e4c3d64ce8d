//! One set of threads for all ranks of a process.

use std::any::Any;
use std::collections::VecDeque;
use std::panic::{catch_unwind, resume_unwind, AssertUnwindSafe};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

/// Handle on the threads that kernels run on. All ranks share them; a rank's handle says how many
/// it may occupy at once, itself included: a caller works on its own tasks, and parks when there are
/// none left to start.
///
/// Invariant: the number of threads never decides *what* is computed. Kernels cut their work into
/// tasks by shapes alone, and a task's result depends on nothing but its index.
#[derive(Clone)]
pub struct Pool {
    threads: Option<Arc<Threads>>,
    total: usize,
    width: usize,
}

/// How often a thread without work looks again before it parks: a few microseconds, about what
/// waking it would take.
const LOOKS: usize = 200;

/// The helping threads; they end when the last handle goes.
struct Threads {
    shared: Arc<Shared>,
    handles: Vec<JoinHandle<()>>,
}

/// What callers and helpers share.
#[derive(Default)]
struct Shared {
    queue: Mutex<Queue>,
    /// Entries of the queue, to look without locking.
    waiting: AtomicUsize,
    wake: Condvar,
}

#[derive(Default)]
struct Queue {
    /// One entry per helper that a job asks for.
    jobs: VecDeque<Arc<Job>>,
    stop: bool,
}

/// The function of a job, with its lifetime erased.
struct Work(*const (dyn Fn(usize) + Sync));

// SAFETY: the function is `Sync`; `Pool::run` does not return while anybody may call it.
unsafe impl Send for Work {}
// SAFETY: as above.
unsafe impl Sync for Work {}

/// One call of [`Pool::run`].
struct Job {
    work: Work,
    tasks: usize,
    next: AtomicUsize,
    /// Helpers at work.
    helpers: AtomicUsize,
    state: Mutex<State>,
    done: Condvar,
}

struct State {
    /// Helpers may join.
    open: bool,
    panic: Option<Box<dyn Any + Send>>,
}

/// A lock that a panic elsewhere does not break: what it guards is valid at every moment.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Looks a while; whether `ready` came true.
fn look(ready: impl Fn() -> bool) -> bool {
    (0..LOOKS).any(|_| {
        std::hint::spin_loop();
        ready()
    })
}

impl Job {
    /// Runs tasks until none is left to start.
    fn work(&self) {
        // Relaxed: the counter only hands out indices; the state's lock orders the results.
        while let Some(task) = Some(self.next.fetch_add(1, Ordering::Relaxed)).filter(|t| *t < self.tasks) {
            // SAFETY: the job is open or this helper counted, so the caller still waits.
            let run = AssertUnwindSafe(|| unsafe { (*self.work.0)(task) });
            if let Err(panic) = catch_unwind(run) {
                self.next.store(self.tasks, Ordering::Relaxed);
                lock(&self.state).panic.get_or_insert(panic);
            }
        }
    }

    /// Helps, unless the caller has already gone on.
    fn help(&self) {
        {
            let state = lock(&self.state);
            if !state.open {
                return;
            }
            self.helpers.fetch_add(1, Ordering::Relaxed);
        }
        self.work();
        let _state = lock(&self.state);
        // Release: what this helper wrote is seen by who reads zero.
        if self.helpers.fetch_sub(1, Ordering::Release) == 1 {
            self.done.notify_one();
        }
    }

    /// Waits until no helper is left; the panic of a task, if there was one.
    fn close(&self) -> Option<Box<dyn Any + Send>> {
        lock(&self.state).open = false;
        let gone = || self.helpers.load(Ordering::Acquire) == 0;
        look(gone);
        let mut state = lock(&self.state);
        while !gone() {
            state = self.done.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.panic.take()
    }
}

impl Shared {
    /// A helper's life.
    fn serve(&self) {
        loop {
            look(|| self.waiting.load(Ordering::Relaxed) > 0);
            let mut queue = lock(&self.queue);
            let job = loop {
                if queue.stop {
                    return;
                }
                match queue.jobs.pop_front() {
                    Some(job) => break job,
                    None => queue = self.wake.wait(queue).unwrap_or_else(PoisonError::into_inner),
                }
            };
            self.waiting.store(queue.jobs.len(), Ordering::Relaxed);
            drop(queue);
            job.help();
        }
    }

    fn push(&self, job: &Arc<Job>, helpers: usize) {
        let mut queue = lock(&self.queue);
        queue.jobs.extend((0..helpers).map(|_| job.clone()));
        self.waiting.store(queue.jobs.len(), Ordering::Relaxed);
        drop(queue);
        (0..helpers).for_each(|_| self.wake.notify_one());
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        lock(&self.shared.queue).stop = true;
        self.shared.wake.notify_all();
        for handle in self.handles.drain(..) {
            // A helper catches the panics of tasks; it has none of its own.
            let _ = handle.join();
        }
    }
}

impl Pool {
    /// A pool of `threads` threads (0: one per core), one of which is the caller.
    ///
    /// # Panics
    /// If the operating system refuses to start a thread, as [`std::thread::spawn`] does.
    pub fn new(threads: usize) -> Pool {
        let total = match threads {
            0 => std::thread::available_parallelism().map_or(1, |n| n.get()),
            n => n,
        };
        let threads = (total > 1).then(|| {
            let shared = Arc::new(Shared::default());
            let start = |i| {
                let shared = shared.clone();
                let named = std::thread::Builder::new().name(format!("kernel-{i}"));
                named.spawn(move || shared.serve()).expect("cannot start the kernel threads")
            };
            let handles = (1..total).map(start).collect();
            Arc::new(Threads { shared, handles })
        });
        Pool { threads, total, width: total }
    }

    /// The handle of one of `ranks` ranks that work at the same time: the same threads, an equal
    /// share of them.
    pub fn share(&self, ranks: usize) -> Pool {
        let width = (self.total / ranks.max(1)).max(1);
        Pool { threads: self.threads.clone(), total: self.total, width }
    }

    /// How many tasks of this handle may run at once.
    pub fn width(&self) -> usize {
        self.width
    }

    /// Calls `f` with every index below `tasks`, in any order, and returns when all are done. With
    /// a width of 1 the caller does all the work, in order.
    ///
    /// # Panics
    /// If a task does.
    pub fn run(&self, tasks: usize, f: &(dyn Fn(usize) + Sync)) {
        let workers = self.width.min(tasks);
        let threads = match &self.threads {
            Some(threads) if workers > 1 => threads,
            _ => return (0..tasks).for_each(f),
        };
        // SAFETY: only the lifetime changes; `close` waits for everybody who may call it.
        let f = unsafe {
            std::mem::transmute::<*const (dyn Fn(usize) + Sync + '_), *const (dyn Fn(usize) + Sync + 'static)>(f)
        };
        let job = Arc::new(Job {
            work: Work(f),
            tasks,
            next: AtomicUsize::new(0),
            helpers: AtomicUsize::new(0),
            state: Mutex::new(State { open: true, panic: None }),
            done: Condvar::new(),
        });
        threads.shared.push(&job, workers - 1);
        job.work();
        if let Some(panic) = job.close() {
            resume_unwind(panic);
        }
    }
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Pool({} of {} threads)", self.width, self.total)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_task_runs_once_whatever_the_width() {
        let pool = Pool::new(3);
        for (ranks, width) in [(1, 3), (2, 1), (3, 1), (7, 1)] {
            let share = pool.share(ranks);
            assert_eq!(share.width(), width);
            for tasks in [0, 1, 2, 100] {
                let seen: Vec<_> = (0..tasks).map(|_| AtomicUsize::new(0)).collect();
                share.run(tasks, &|t| {
                    seen[t].fetch_add(1, Ordering::Relaxed);
                });
                assert!(seen.iter().all(|s| s.load(Ordering::Relaxed) == 1));
            }
        }
    }

    #[test]
    fn ranks_share_the_threads_at_the_same_time() {
        let pool = Pool::new(2);
        let sum = AtomicUsize::new(0);
        std::thread::scope(|s| {
            for _ in 0..4 {
                s.spawn(|| {
                    for _ in 0..200 {
                        pool.run(50, &|t| {
                            sum.fetch_add(t, Ordering::Relaxed);
                        });
                    }
                });
            }
        });
        assert_eq!(sum.into_inner(), 200 * 4 * 49 * 50 / 2);
    }

    #[test]
    fn a_panic_reaches_the_caller_and_leaves_the_pool_usable() {
        let pool = Pool::new(3);
        let caught = catch_unwind(AssertUnwindSafe(|| pool.run(20, &|t| assert_ne!(t, 7, "seven"))));
        assert!(caught.is_err());
        let sum = AtomicUsize::new(0);
        pool.run(10, &|t| {
            // A task may run tasks.
            pool.run(3, &|i| {
                sum.fetch_add(t * i, Ordering::Relaxed);
            });
        });
        assert_eq!(sum.into_inner(), 3 * 45);
    }
}

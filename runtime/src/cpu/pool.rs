//! One set of threads for all ranks of a process.

use rayon::ThreadPool;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Arc;

/// Handle on the threads that kernels run on. All ranks share them; a rank's handle says how many
/// it may occupy at once. A caller parks while its tasks run.
///
/// Invariant: the number of threads never decides *what* is computed. Kernels cut their work into
/// tasks by shapes alone, and a task's result depends on nothing but its index.
#[derive(Clone)]
pub struct Pool {
    threads: Option<Arc<ThreadPool>>,
    total: usize,
    width: usize,
}

impl Pool {
    /// A pool of `threads` threads (0: one per core).
    ///
    /// # Panics
    /// If the operating system refuses to start a thread, as [`std::thread::spawn`] does.
    pub fn new(threads: usize) -> Pool {
        let total = match threads {
            0 => std::thread::available_parallelism().map_or(1, |n| n.get()),
            n => n,
        };
        let threads = (total > 1).then(|| {
            let built =
                rayon::ThreadPoolBuilder::new().num_threads(total).thread_name(|i| format!("kernel-{i}")).build();
            Arc::new(built.expect("cannot start the kernel threads"))
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
    /// a width of 1 the caller does the work itself, in order.
    pub fn run(&self, tasks: usize, f: &(dyn Fn(usize) + Sync)) {
        let workers = self.width.min(tasks);
        let pool = match &self.threads {
            Some(pool) if workers > 1 => pool,
            _ => return (0..tasks).for_each(f),
        };
        let next = AtomicUsize::new(0);
        // Relaxed: the counter only hands out indices; `scope` orders the results.
        let work = || {
            while let Some(task) = Some(next.fetch_add(1, Ordering::Relaxed)).filter(|t| *t < tasks) {
                f(task);
            }
        };
        pool.scope(|s| (0..workers).for_each(|_| s.spawn(|_| work())));
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
                    pool.run(50, &|t| {
                        sum.fetch_add(t, Ordering::Relaxed);
                    });
                });
            }
        });
        assert_eq!(sum.into_inner(), 4 * 49 * 50 / 2);
    }
}

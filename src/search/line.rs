//! Work in a line, on as many threads as there are cores, with the same results on any number of them: what an item
//! knows of the items before it is fixed by its place.

use super::run::{Best, Counts};
use crate::predict::PredictError;
use autoshard_passes::predict::step::Scratch;
use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// What an item comes to: the best plans with its own, and what was done; nothing where it was not worth a look.
pub(crate) type Done = Option<(Best, Counts)>;

/// A line of items.
pub(crate) struct Line {
    state: Mutex<State>,
    moved: Condvar,
}

struct State {
    next: usize,
    /// The best plans of the first n items, by n.
    best: Vec<Arc<Best>>,
    /// Items that are done before some that stand before them.
    ahead: BTreeMap<usize, Done>,
    counts: Counts,
    expanded: usize,
    error: Option<PredictError>,
}

/// Items that one item need not wait for, at most.
const FARTHEST: usize = 32;

/// The items whose results an item knows: all but some just before it.
fn known(item: usize) -> usize {
    item - (item / 2).min(FARTHEST)
}

impl Line {
    /// Nothing done yet; so many plans are wanted.
    pub fn new(top: usize) -> Line {
        let state = State {
            next: 0,
            best: vec![Arc::new(Best::new(top))],
            ahead: BTreeMap::new(),
            counts: Counts::default(),
            expanded: 0,
            error: None,
        };
        Line { state: Mutex::new(state), moved: Condvar::new() }
    }

    /// Works on all items.
    ///
    /// # Errors
    /// The first that comes.
    pub fn work<T: Sync>(
        &self,
        items: &[T],
        work: impl Fn(&T, Best, &mut Scratch) -> Result<Done, PredictError> + Sync,
    ) -> Result<(), PredictError> {
        let threads = std::thread::available_parallelism().map_or(1, |n| n.get()).min(items.len().max(1));
        let run = || {
            let _watch = Watch(self);
            let mut scratch = Scratch::default();
            while let Some((at, best)) = self.take(items.len()) {
                self.put(at, work(&items[at], Best::clone(&best), &mut scratch));
            }
        };
        std::thread::scope(|s| {
            for _ in 1..threads {
                s.spawn(run);
            }
            run();
        });
        self.lock().error.take().map_or(Ok(()), Err)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next item, once what it has to know is there.
    fn take(&self, items: usize) -> Option<(usize, Arc<Best>)> {
        let mut state = self.lock();
        let at = state.next;
        if at >= items {
            return None;
        }
        state.next += 1;
        let ready = |s: &State| s.best.len() > known(at) || s.error.is_some();
        while !ready(&state) {
            state = self.moved.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        if state.error.is_some() {
            return None;
        }
        Some((at, state.best[known(at)].clone()))
    }

    fn put(&self, at: usize, done: Result<Done, PredictError>) {
        let mut state = self.lock();
        match done {
            Ok(done) => state.ahead.insert(at, done).map_or((), |_| ()),
            Err(e) => state.error = state.error.take().or(Some(e)),
        }
        state.join();
        self.moved.notify_all();
    }

    /// The best plans, what was done, and on how many items.
    pub fn end(self) -> (Best, Counts, usize) {
        let state = self.state.into_inner().unwrap_or_else(PoisonError::into_inner);
        let best = state.best.last().map_or_else(|| Best::new(1), |best| Best::clone(best));
        (best, state.counts, state.expanded)
    }
}

/// Sees to it that nobody waits for a thread that came to a sudden end.
struct Watch<'a>(&'a Line);

impl Drop for Watch<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.lock().error = Some(PredictError::Missing {
                entity: "the search".to_string(),
                what: "one of its threads".to_string(),
                instead: "report this as a bug".to_string(),
            });
            self.0.moved.notify_all();
        }
    }
}

impl State {
    /// Takes in what is done, in the order of the items.
    fn join(&mut self) {
        while let Some(done) = self.ahead.remove(&(self.best.len() - 1)) {
            let mut best = self.best[self.best.len() - 1].clone();
            if let Some((more, counts)) = done {
                more.all.into_iter().for_each(|found| Arc::make_mut(&mut best).add(found));
                self.counts.add(&counts);
                self.expanded += 1;
            }
            self.best.push(best);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_item_knows_of_all_before_it_but_some() {
        assert_eq!([0, 1, 2, 3, 4, 10].map(known), [0, 1, 1, 2, 2, 5]);
        assert_eq!(known(1000), 1000 - FARTHEST);
        // Whoever knows is behind whom it knows, and what is known grows.
        assert!((1..200).all(|at| known(at) <= at && known(at - 1) <= known(at)));
    }

    #[test]
    fn all_items_are_worked_on_and_the_first_error_ends_the_line() {
        let items: Vec<u64> = (0..100).collect();
        let line = Line::new(1);
        line.work(&items, |n, best, _| Ok(Some((best, Counts { evaluated: *n, ..Counts::default() })))).unwrap();
        let (_, counts, expanded) = line.end();
        assert_eq!((counts.evaluated, expanded), (4950, 100));
        let error = || PredictError::Json("item 7".into());
        let line = Line::new(1);
        assert!(line.work(&items, |n, _, _| if *n == 7 { Err(error()) } else { Ok(None) }).is_err());
    }
}

//! Lists of which a part repeats.

use super::engine::{Engine, Supply};
use super::{Place, Rules, SimError, Skip, Task, NONE};

/// Tasks that are simulated of a list that never settles (about 1 GB of them); more are refused.
const MOST: usize = 1 << 24;

/// A list that holds a few copies of a part which repeats more often: a training step written down for a few
/// micro-batches, to be played for thousands.
///
/// The list is `prologue, copy, …, copy, epilogue`. Copies have equal streams, seconds and links. The copies to
/// come are like the last one. What it waits for says what they wait for:
/// - a task of the copies: the one as far before them, so write more copies than periods lie between a task
///   and what it waits for;
/// - a task of the prologue: that task.
///
/// What the epilogue waits for among the copies is counted from the end: with three copies, a task of the first
/// stands for that of the last period but two.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Periodic<'a> {
    /// The tasks, with few copies of the period.
    pub tasks: &'a [Task],
    /// The first task of the first copy.
    pub start: u32,
    /// Tasks of a copy.
    pub length: u32,
    /// Copies in the list.
    pub copies: u32,
    /// Copies to play.
    pub count: u32,
    /// Periods after which the mean over the last half of them, or more, stands for a repetition that has not
    /// been found; `None` plays on. With contention a pipeline that waits for its messages may come close to
    /// earlier states again and again and never return to one. A mean is taken only where no stream has fallen
    /// back by more than a period meanwhile, so that it is off by at most one period in the length of the half.
    pub settle: Option<u32>,
}

impl Periodic<'_> {
    /// The tasks written out, without looking for a steady state.
    pub fn unrolled(&self, rules: &Rules) -> Result<Vec<Task>, SimError> {
        self.check(rules)?;
        let more = (self.count - self.copies) as usize * self.length as usize;
        if self.tasks.len() + more >= NONE as usize {
            return Err(SimError::TooManyTasks(self.tasks.len() + more));
        }
        let mut tasks = self.tasks[..self.end()].to_vec();
        (self.copies..self.count).for_each(|_| self.append_period(&mut tasks));
        self.append_epilogue(&mut tasks, self.count);
        Ok(tasks)
    }

    /// Behind the last copy.
    fn end(&self) -> usize {
        self.start as usize + self.copies as usize * self.length as usize
    }

    /// Whether the copies are there and alike, and the epilogue is behind them.
    pub(super) fn check(&self, rules: &Rules) -> Result<(), SimError> {
        let &Periodic { tasks, start, length, copies, count, .. } = self;
        let within = u64::from(start) + u64::from(copies) * u64::from(length) <= tasks.len() as u64;
        if length == 0 || copies == 0 || copies > count || !within {
            return Err(SimError::BadPeriod { start, length, copies, count, tasks: tasks.len() });
        }
        let (start, length, end) = (start as usize, length as usize, self.end());
        for id in start..end - length {
            let last = end - length + (id - start) % length;
            let (a, b) = (&tasks[id], &tasks[last]);
            if (a.stream, a.seconds, a.link) != (b.stream, b.seconds, b.link) {
                return Err(SimError::UnequalCopies { place: Place::of(tasks, id), last: Place::of(tasks, last) });
            }
        }
        let mut behind = vec![false; rules.streams.len()];
        tasks[end - length..end].iter().for_each(|t| behind[t.stream as usize] = true);
        for (id, task) in tasks.iter().enumerate().skip(end) {
            let waits = task.after.into_iter().flatten().any(|a| a as usize >= start);
            if !waits && !behind[task.stream as usize] {
                return Err(SimError::EarlyEpilogue(Place::of(tasks, id)));
            }
            behind[task.stream as usize] = true;
        }
        Ok(())
    }

    /// How many periods lie between the last and the first that the epilogue waits for.
    fn depth(&self) -> u32 {
        let waits = self.tasks[self.end()..].iter().flat_map(|t| t.after).flatten();
        let inside = waits.filter(|a| (self.start as usize..self.end()).contains(&(*a as usize)));
        inside.map(|a| self.copies - 1 - (a - self.start) / self.length).max().unwrap_or(0)
    }

    /// Appends a copy to a list that ends with one.
    fn append_period(&self, tasks: &mut Vec<Task>) {
        let shift = (tasks.len() - self.end()) as u32 + self.length;
        self.append(tasks, self.end() - self.length as usize..self.end(), shift);
    }

    /// Appends what follows `made` copies.
    fn append_epilogue(&self, tasks: &mut Vec<Task>, made: u32) {
        self.append(tasks, self.end()..self.tasks.len(), (made - self.copies) * self.length);
    }

    /// Appends tasks that wait for tasks of the prologue, or `shift` tasks behind those that they name.
    fn append(&self, tasks: &mut Vec<Task>, range: std::ops::Range<usize>, shift: u32) {
        let moved = |a: u32| if a < self.start { a } else { a + shift };
        tasks.extend(self.tasks[range].iter().map(|t| Task { after: t.after.map(|a| a.map(moved)), ..*t }));
    }
}

/// What a run keeps between lists.
#[derive(Debug)]
pub(super) struct Scratch {
    /// Tasks that are played at most.
    pub(super) most: usize,
    tasks: Vec<Task>,
    now: State,
    previous: State,
    reference: State,
}

impl Default for Scratch {
    fn default() -> Scratch {
        Scratch {
            most: MOST,
            tasks: vec![],
            now: State::default(),
            previous: State::default(),
            reference: State::default(),
        }
    }
}

impl Scratch {
    /// The tasks of the last run.
    pub(super) fn tasks(&self) -> &[Task] {
        &self.tasks
    }

    /// What feeds a checked list to the engine.
    pub(super) fn supply<'a>(&'a mut self, list: &'a Periodic<'a>) -> Repeat<'a> {
        self.tasks.clear();
        self.tasks.extend_from_slice(&list.tasks[..list.end()]);
        self.previous.lanes.clear();
        self.reference.lanes.clear();
        let (made, target, depth) = (list.copies, list.count, list.depth());
        let mut repeat =
            Repeat { list, scratch: self, made, target, depth, entered: 0, crossed: None, limit: 0, skip: None };
        repeat.extend();
        repeat
    }
}

/// A lane: its head, counted from the first task of a period, and the seconds of work left if it runs.
type Head = (u32, Option<f64>);

/// Where all streams are when the first of them enters a period.
#[derive(Debug, Default)]
struct State {
    period: u32,
    time: f64,
    lanes: Vec<Head>,
}

impl State {
    fn take(&mut self, engine: &Engine, period: u32, first: u32, time: f64) {
        (self.period, self.time) = (period, time);
        self.lanes.clear();
        self.lanes.extend(engine.heads(time).map(|(head, left)| match head {
            NONE => (NONE, None),
            head => (head.wrapping_sub(first), left),
        }));
    }

    /// Whether no stream has fallen back or caught up by more than a period.
    fn keeps(&self, before: &State, length: u32) -> bool {
        let near = |(a, b): (&Head, &Head)| match (a.0, b.0) {
            (NONE, b) => b == NONE,
            (a, b) => b != NONE && (a.wrapping_sub(b) as i32).unsigned_abs() <= length,
        };
        self.time > before.time && self.lanes.iter().zip(&before.lanes).all(near)
    }

    /// Whether another state is this one some time before, within rounding: 10⁻¹² of the time between, and a
    /// few units in the last place of the clock.
    fn repeats(&self, before: &State) -> bool {
        let close = 1e-12 * (self.time - before.time) + 4e-15 * self.time;
        let equal = |(a, b): (&Head, &Head)| match (a.1, b.1) {
            (Some(x), Some(y)) => a.0 == b.0 && (x - y).abs() <= close,
            (None, None) => a.0 == b.0,
            _ => false,
        };
        self.time > before.time
            && self.lanes.len() == before.lanes.len()
            && self.lanes.iter().zip(&before.lanes).all(equal)
    }
}

/// Feeds a list to the engine, period by period, until a state repeats.
///
/// Each time that a stream enters a period as the first to do so, the state of all streams is compared with
/// that of the period before and with that of a reference, which is renewed whenever the number of periods
/// since has doubled (Brent's search for a cycle). So a state that repeats every c periods is found after at
/// most about twice the periods that settle, plus 2c. Then as many whole repetitions are left out as there
/// are, and the rest is played to its end.
///
/// The epilogue is appended before any task that it waits for can have ended, so that it comes in time.
pub(super) struct Repeat<'a> {
    list: &'a Periodic<'a>,
    scratch: &'a mut Scratch,
    /// Copies in the list so far, and copies that it will get.
    made: u32,
    target: u32,
    depth: u32,
    /// The last period that a stream has entered, and when, if it has not been looked at yet.
    entered: u32,
    crossed: Option<f64>,
    limit: u32,
    skip: Option<Skip>,
}

impl Repeat<'_> {
    /// What was left out.
    pub(super) fn skip(&self) -> Option<Skip> {
        self.skip
    }

    /// The length of the list if nothing is left out from here on, where that is too long to play.
    pub(super) fn overflow(&self) -> Option<usize> {
        (self.made < self.target)
            .then(|| self.list.tasks.len() + (self.target - self.list.copies) as usize * self.list.length as usize)
    }

    /// Adds periods to be ahead of the streams, and the epilogue when all are there.
    fn extend(&mut self) {
        let list = self.list;
        let ahead = self.target.min(self.entered + 2 + self.depth);
        while self.made < ahead {
            if self.scratch.tasks.len() + list.length as usize > self.scratch.most {
                self.limit = NONE;
                return;
            }
            list.append_period(&mut self.scratch.tasks);
            self.made += 1;
        }
        self.limit = list.start + (self.entered + 1) * list.length;
        if self.made == self.target {
            list.append_epilogue(&mut self.scratch.tasks, self.made);
            self.limit = NONE;
        }
    }

    /// Looks whether the state has been seen.
    fn look(&mut self, engine: &Engine, time: f64) {
        let first = self.list.start + self.entered * self.list.length;
        let Scratch { now, previous, reference, .. } = &mut *self.scratch;
        now.take(engine, self.entered, first, time);
        let found = [&*previous, &*reference].into_iter().find(|before| now.repeats(before));
        let doubled = !reference.lanes.is_empty() && now.period >= 2 * reference.period;
        let late = self.list.settle.is_some_and(|s| now.period >= s);
        let mean = doubled && late && now.keeps(reference, self.list.length);
        if let Some(before) = found.or(mean.then_some(&*reference)) {
            let periods = now.period - before.period;
            let repeats = (self.target - self.made) / periods;
            if repeats > 0 {
                self.target -= repeats * periods;
                let (from, until) = (before.time, now.time);
                self.skip = Some(Skip { from, until, periods, repeats, exact: found.is_some() });
            }
            return;
        }
        if reference.lanes.is_empty() || doubled {
            reference.period = now.period;
            reference.time = now.time;
            reference.lanes.clone_from(&now.lanes);
        }
        std::mem::swap(now, previous);
    }
}

impl Supply for Repeat<'_> {
    fn tasks(&self) -> &[Task] {
        &self.scratch.tasks
    }

    fn limit(&self) -> u32 {
        self.limit
    }

    fn reached(&mut self, head: u32, now: f64) {
        if head == NONE {
            return;
        }
        self.entered = (head - self.list.start) / self.list.length;
        self.crossed = Some(now);
        self.extend();
    }

    fn watch(&mut self, engine: &Engine, next: f64) {
        // What happens at the same time belongs to the state, so that rounding decides nothing.
        let Some(time) = self.crossed.filter(|t| next > t * (1.0 + 1e-13)) else { return };
        self.crossed = None;
        if self.skip.is_none() && self.limit != NONE {
            self.look(engine, time);
        }
    }
}

//! When tasks ran.

use super::{Rules, Task, NONE};

/// When the tasks of a list ran, in seconds from the start.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Timeline {
    /// By task: its start.
    pub start: Vec<f64>,
    /// By task: its end.
    pub end: Vec<f64>,
    /// The last end; 0 for an empty list. Counts what was skipped.
    pub makespan: f64,
    /// By stream: seconds in which it runs a task. Counts what was skipped.
    pub busy: Vec<f64>,
    /// By task, 0 unless its stream is beside another: seconds of it in which that other stream is idle and
    /// has a task left, so that it waits. Empty where no stream is beside another.
    pub exposed: Vec<f64>,
    /// By task, 0 unless its stream is beside another: seconds of it after the other stream's last task. Empty
    /// where no stream is beside another.
    pub tail: Vec<f64>,
    /// By stream: sum of `exposed`. Counts what was skipped.
    pub stream_exposed: Vec<f64>,
    /// By stream: sum of `tail`. Counts what was skipped.
    pub stream_tail: Vec<f64>,
    /// What was not simulated of a list with a period.
    pub skip: Option<Skip>,
}

/// A stretch that repeats. Tasks are listed, and timed, as if it ran once only; those that start at `until` or
/// later run `seconds()` later than the timeline says.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Skip {
    /// Where the stretch starts, in seconds.
    pub from: f64,
    /// Where it ends, in seconds.
    pub until: f64,
    /// Periods that it runs through.
    pub periods: u32,
    /// How often it runs again.
    pub repeats: u32,
    /// Whether it ends in the state in which it starts; else it stands for what comes by its mean
    /// ([`Periodic::settle`](super::Periodic::settle)).
    pub exact: bool,
}

impl Skip {
    /// Seconds that the repetitions take.
    pub fn seconds(&self) -> f64 {
        (self.until - self.from) * f64::from(self.repeats)
    }

    /// Seconds from a to b, counting each second of the stretch as often as it runs.
    fn repeated(&self, a: f64, b: f64) -> f64 {
        (b.min(self.until) - a.max(self.from)).max(0.0) * f64::from(self.repeats)
    }
}

impl Timeline {
    /// By task: seconds of it in which the stream beside it runs a task; all of it where no stream is.
    pub fn hidden(&self, task: usize) -> f64 {
        let part = |v: &[f64]| v.get(task).copied().unwrap_or(0.0);
        self.end[task] - self.start[task] - part(&self.exposed) - part(&self.tail)
    }

    /// Empties it for `tasks` tasks; starts are 0 and ends infinite.
    pub(super) fn reset(&mut self, tasks: usize, streams: usize) {
        let fill = |v: &mut Vec<f64>, n, value| {
            v.clear();
            v.resize(n, value);
        };
        fill(&mut self.start, tasks, 0.0);
        fill(&mut self.end, tasks, f64::INFINITY);
        fill(&mut self.busy, streams, 0.0);
        fill(&mut self.stream_exposed, streams, 0.0);
        fill(&mut self.stream_tail, streams, 0.0);
        self.exposed.clear();
        self.tail.clear();
        self.makespan = 0.0;
        self.skip = None;
    }

    /// Makespan and seconds by stream, from starts and ends.
    pub(super) fn add_up(&mut self, tasks: &[Task], rules: &Rules, scratch: &mut Sweep) {
        let skip = self.skip.unwrap_or(Skip { from: 0.0, until: 0.0, periods: 0, repeats: 0, exact: true });
        let (mut last, repeats) = (0f64, skip.repeats > 0);
        for (task, (&start, &end)) in tasks.iter().zip(self.start.iter().zip(&self.end)) {
            last = last.max(end);
            let again = if repeats { skip.repeated(start, end) } else { 0.0 };
            self.busy[task.stream as usize] += end - start + again;
        }
        self.makespan = last + skip.seconds();
        if rules.streams.iter().any(|s| s.beside.is_some()) {
            self.exposed.resize(tasks.len(), 0.0);
            self.tail.resize(tasks.len(), 0.0);
            self.expose(tasks, rules, scratch, &skip);
        }
    }

    /// What is exposed of tasks whose streams are beside others: walks each such stream together with the one
    /// beside it. Both run their tasks one after the other, so each walk goes forward only.
    fn expose(&mut self, tasks: &[Task], rules: &Rules, scratch: &mut Sweep, skip: &Skip) {
        scratch.link(tasks, rules.streams.len());
        for (id, task) in tasks.iter().enumerate() {
            let stream = task.stream as usize;
            let Some(beside) = rules.streams[stream].beside else { continue };
            let (from, until) = (self.start[id], self.end[id]);
            let close = match scratch.last[beside as usize] {
                NONE => 0.0,
                last => self.end[last as usize],
            };
            self.tail[id] = (until - from.max(close)).max(0.0);
            self.stream_tail[stream] += self.tail[id] + skip.repeated(from.max(close), until);
            // What is neither covered nor behind the last task is exposed.
            let until = until.min(close);
            let mut open = (until - from).max(0.0);
            let mut again = skip.repeated(from, until);
            let at = &mut scratch.at[stream];
            if *at == NONE {
                *at = scratch.first[beside as usize];
            }
            while *at != NONE && self.start[*at as usize] < until {
                let (a, b) = (self.start[*at as usize].max(from), self.end[*at as usize].min(until));
                if b > a {
                    open -= b - a;
                    again -= skip.repeated(a, b);
                }
                // One that lasts longer than this task may cover the next, too.
                if self.end[*at as usize] > until || scratch.next[*at as usize] == NONE {
                    break;
                }
                *at = scratch.next[*at as usize];
            }
            self.exposed[id] = open.max(0.0);
            self.stream_exposed[stream] += self.exposed[id] + again.max(0.0);
        }
    }
}

/// Scratch of [`Timeline::expose`].
#[derive(Debug, Default)]
pub(super) struct Sweep {
    /// By task: the next on its stream.
    next: Vec<u32>,
    /// By stream: its first task.
    first: Vec<u32>,
    /// By stream: its last task.
    last: Vec<u32>,
    /// By stream: where its walk along the stream beside it is.
    at: Vec<u32>,
}

impl Sweep {
    /// Links the tasks of each stream.
    fn link(&mut self, tasks: &[Task], streams: usize) {
        for (v, n) in [(&mut self.next, tasks.len()), (&mut self.first, streams), (&mut self.last, streams)] {
            v.clear();
            v.resize(n, NONE);
        }
        self.at.clear();
        self.at.resize(streams, NONE);
        for (id, task) in tasks.iter().enumerate() {
            let stream = task.stream as usize;
            match std::mem::replace(&mut self.last[stream], id as u32) {
                NONE => self.first[stream] = id as u32,
                last => self.next[last as usize] = id as u32,
            }
        }
    }
}

//! What can be wrong with a list of tasks.

use super::{LinkId, StreamId, Task, TaskId};
use std::fmt;
use thiserror::Error;

/// A task of the list, as errors name it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Place {
    /// Which one.
    pub id: TaskId,
    /// What it is.
    pub task: Task,
}

impl Place {
    /// The task `id` of a list.
    pub(super) fn of(tasks: &[Task], id: usize) -> Place {
        Place { id: id as TaskId, task: tasks[id] }
    }
}

/// `task 3 (stream 1, 0.25 s, link 2 × 0.5, after 0 and 1)`.
impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let Task { stream, seconds, link, after } = self.task;
        write!(f, "task {} (stream {stream}, {seconds} s", self.id)?;
        if let Some((link, demand)) = link {
            write!(f, ", link {link} × {demand}")?;
        }
        let mut word = ", after";
        for other in after.into_iter().flatten() {
            write!(f, "{word} {other}")?;
            word = " and";
        }
        write!(f, ")")
    }
}

/// Why a list of tasks cannot be played.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum SimError {
    /// More tasks than can be numbered.
    #[error("{0} tasks are more than a list can number: cut the list, or let a part of it repeat (`Periodic`)")]
    TooManyTasks(usize),
    /// A task on a stream that the rules do not have.
    #[error("{place}: there is no such stream; the rules have {streams}: add a stream or correct the task's")]
    UnknownStream {
        /// The task.
        place: Place,
        /// How many streams there are.
        streams: usize,
    },
    /// A duration that is none.
    #[error("{0}: a duration has to be finite and 0 or more; correct what computed it")]
    BadSeconds(Place),
    /// A demand that is no share of a link.
    #[error(
        "{place}: a task takes more than 0 and at most 1 of link {link}; scale its demand by the link's bandwidth"
    )]
    BadDemand {
        /// The task.
        place: Place,
        /// The link.
        link: LinkId,
    },
    /// A task waits for itself or for a task further down.
    #[error(
        "{place}: it waits for task {after}, which is not before it in the list; `sim::order` puts a list in an order \
         that can run"
    )]
    Forward {
        /// The task that waits.
        place: Place,
        /// What it waits for.
        after: TaskId,
    },
    /// A task waits for one that is not in the list.
    #[error("{place}: it waits for task {after}, and the list has {tasks}: add that task or drop the dependency")]
    UnknownTask {
        /// The task that waits.
        place: Place,
        /// What it waits for.
        after: TaskId,
        /// Tasks of the list.
        tasks: usize,
    },
    /// Tasks that wait for one another.
    #[error("{}", Cycle(.0))]
    Cycle(
        /// Each cannot start before the next has ended, the last not before the first.
        Vec<Place>,
    ),
    /// A stream whose device does not exist, or which stands beside a stream that does not.
    #[error(
        "stream {stream} (device {device}, beside {beside:?}): its device and the stream beside it have to be below \
         {streams}, the number of streams; correct the rules"
    )]
    BadStream {
        /// The stream.
        stream: usize,
        /// Its device.
        device: u32,
        /// The stream beside it.
        beside: Option<StreamId>,
        /// How many streams there are.
        streams: usize,
    },
    /// More streams than can be numbered.
    #[error("{0} streams are more than tasks can name (65,536); simulate one rank of each pipeline stage")]
    TooManyStreams(usize),
    /// A factor of contention that is none.
    #[error(
        "contention {compute} of computation and {communication} of communication: a factor is finite and 1 or more; \
         give time beside the other over time alone"
    )]
    BadContention {
        /// The factor of computation.
        compute: f64,
        /// The factor of communication.
        communication: f64,
    },
    /// A repeated part that is not in the list, or is there more often than it repeats.
    #[error(
        "a period of {length} tasks from task {start}, {copies} times in a list of {tasks} tasks and {count} times in \
         all: the list has to hold the copies, at least one of at least one task and no more than there are in all"
    )]
    BadPeriod {
        /// First task of the first copy.
        start: u32,
        /// Tasks of a copy.
        length: u32,
        /// Copies in the list.
        copies: u32,
        /// Copies in all.
        count: u32,
        /// Tasks in the list.
        tasks: usize,
    },
    /// A copy of the period that differs from the last.
    #[error(
        "{place} differs from {last}, which has its place in the last copy of the period: copies have equal streams, \
         seconds and links; count a first copy that differs to the prologue"
    )]
    UnequalCopies {
        /// The task.
        place: Place,
        /// Its counterpart in the last copy.
        last: Place,
    },
    /// A list that would have to be played whole, and is too long for that.
    #[error(
        "the periods do not come to repeat, and {tasks} tasks are too many to play one by one: play fewer periods, or \
         give streams that drift apart something to wait for"
    )]
    NeverSettles {
        /// Tasks of the whole list.
        tasks: usize,
    },
    /// A task of the epilogue that would run beside the periods.
    #[error(
        "{0}: it is behind the period but waits for nothing of it, directly or by its stream; move it before the period"
    )]
    EarlyEpilogue(Place),
}

/// The text of a cycle.
struct Cycle<'a>(&'a [Place]);

impl fmt::Display for Cycle<'_> {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let Some(first) = self.0.first() else { return write!(f, "tasks wait for one another") };
        write!(f, "{first} can never run: it")?;
        for (i, place) in self.0.iter().enumerate() {
            let next = self.0.get(i + 1).unwrap_or(first);
            let how = match place.task.after.contains(&Some(next.id)) {
                true => "waits for",
                false => "is listed behind",
            };
            match i + 1 == self.0.len() {
                true => write!(f, " {how} task {} again", next.id)?,
                false => write!(f, " {how} {next}, which")?,
            }
        }
        write!(f, "; drop one of these dependencies, or list the tasks of a stream in another order")
    }
}

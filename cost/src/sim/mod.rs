//! An event simulator: tasks that compete for streams, links and devices.
//!
//! A *stream* runs its tasks one after the other, in the order in which they are listed. A task starts as soon
//! as its stream is free and the tasks that it waits for have ended. Because it may wait for earlier tasks
//! only, every list can run; [`order`] puts a list with references in both directions in such an order, or
//! names the cycle.
//!
//! What a task costs alone is given. Two things make it take longer:
//! - *Links.* A task with a link takes a share of that link's bandwidth. Tasks that use a link at the same time
//!   divide it by max-min fairness ([`level`]).
//! - *Contention.* A task with a link is communication, one without is computation. While both run on one
//!   device both slow down ([`Contention`]).
//!
//! ```
//! use autoshard_cost::sim::{Contention, Rules, Simulator, Stream, Task};
//!
//! // A device that computes on stream 0 and communicates on stream 1.
//! let streams = vec![Stream { device: 0, beside: None }, Stream { device: 0, beside: Some(0) }];
//! let rules = Rules { streams, contention: Contention { compute: 1.0, communication: 1.0 } };
//! let tasks = [
//!     Task { stream: 1, seconds: 2.0, link: Some((0, 1.0)), after: [None, None] },
//!     Task { stream: 0, seconds: 1.0, link: None, after: [None, None] },
//!     Task { stream: 0, seconds: 1.0, link: None, after: [Some(0), None] },
//! ];
//! let mut simulator = Simulator::new();
//! let timeline = simulator.run(&tasks, &rules)?;
//! assert_eq!(timeline.makespan, 3.0);
//! assert_eq!(timeline.exposed[0], 1.0);
//! # Ok::<(), autoshard_cost::sim::SimError>(())
//! ```
//!
//! # How it runs
//!
//! Where nothing slows anything down, a task's end is known when it starts, and one pass over the list does
//! (`simulator`). Otherwise a tournament of the devices' next ends gives the next event (`engine`, `queue`), and
//! an event touches the streams of the devices and links that it concerns, no others. Neither allocates once
//! its scratch is large enough. [`Simulator::run_periodic`] stops simulating when the streams are found where
//! they were some periods before (`periodic`).

mod engine;
mod error;
mod order;
mod periodic;
mod queue;
mod share;
mod simulator;
#[cfg(test)]
mod tests;
mod timeline;

pub use error::{Place, SimError};
pub use order::{order, Ordered};
pub use periodic::Periodic;
pub use share::level;
pub use simulator::Simulator;
pub use timeline::{Skip, Timeline};

/// Index of a task in the list.
pub type TaskId = u32;

/// Index of a stream in [`Rules::streams`].
pub type StreamId = u16;

/// Number of a link; any numbering does.
pub type LinkId = u16;

/// One task.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Task {
    /// The stream that runs it, in list order.
    pub stream: StreamId,
    /// Seconds where it runs alone: finite, zero or more.
    pub seconds: f64,
    /// The link that it uses, and the share of that link's bandwidth that it takes when alone: above 0, at
    /// most 1. A task with a link is communication, one without is computation.
    pub link: Option<(LinkId, f32)>,
    /// Up to two tasks, earlier in the list, that must have ended.
    pub after: [Option<TaskId>; 2],
}

/// One stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stream {
    /// The device that it belongs to, below the number of streams. Streams of one device slow each other down
    /// by [`Contention`]; one that should not has a device of its own.
    pub device: u32,
    /// The stream of computation whose idling exposes what this stream communicates; `None` where nobody asks.
    pub beside: Option<StreamId>,
}

/// How much longer tasks take while computation and communication run on the same device. Both are 1 or more;
/// several communications at once slow computation down as much as one does.
///
/// Galvatron measured 1.1256 for both (its profile of A100 nodes, Miao et al., VLDB 2023). Calculon lets
/// communication take 15 % (NVLink) or 2 % (network) of the computation's speed and none of its own.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Contention {
    /// Time of computation beside communication, over its time alone.
    pub compute: f64,
    /// Time of communication beside computation, over its time alone.
    pub communication: f64,
}

impl Contention {
    /// Computation and communication do not disturb each other.
    pub const NONE: Contention = Contention { compute: 1.0, communication: 1.0 };
}

/// Where tasks run.
#[derive(Clone, Debug, PartialEq)]
pub struct Rules {
    /// The streams, by [`StreamId`].
    pub streams: Vec<Stream>,
    /// What computation and communication on one device do to each other.
    pub contention: Contention,
}

/// Stands for no task, no stream, no link.
const NONE: u32 = u32::MAX;

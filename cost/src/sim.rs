//! An event simulator: tasks that compete for streams and links.
//!
//! A stream runs its tasks one after the other, in the order in which they are listed. A task starts when its
//! stream is free and the tasks that it waits for have ended. Tasks that use the same link at the same time
//! share it by max-min fairness; computation slows down by `contention` while any link is busy.

/// Index of a task in the list.
pub type TaskId = u32;

/// One task.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Task {
    /// The stream that runs it, in list order.
    pub stream: u8,
    /// Seconds where it runs alone.
    pub seconds: f64,
    /// The link that it uses, and the share of that link's bandwidth that it takes when alone (0–1).
    pub link: Option<(u8, f32)>,
    /// Up to two tasks, earlier in the list, that must have ended.
    pub after: [Option<TaskId>; 2],
}

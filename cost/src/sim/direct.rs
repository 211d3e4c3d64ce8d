//! Lists in which nothing slows anything down.

use super::{Task, Timeline};

/// Plays the tasks in list order: each starts when its stream is free and what it waits for has ended, and
/// takes the time that it takes alone. `free` is scratch by stream. The tasks are checked.
pub(super) fn play(tasks: &[Task], streams: usize, free: &mut Vec<f64>, timeline: &mut Timeline) {
    free.clear();
    free.resize(streams, 0.0);
    for (id, task) in tasks.iter().enumerate() {
        let mut start = free[task.stream as usize];
        for wait in task.after.into_iter().flatten() {
            start = start.max(timeline.end[wait as usize]);
        }
        timeline.start[id] = start;
        timeline.end[id] = start + task.seconds;
        free[task.stream as usize] = timeline.end[id];
    }
}

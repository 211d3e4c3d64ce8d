//! An order in which a list can run.

use super::{Place, SimError, Task, TaskId, NONE};

/// A list of tasks without forward references.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Ordered {
    /// The tasks, in an order that can run.
    pub tasks: Vec<Task>,
    /// By the place in the given list: the place in `tasks`.
    pub place: Vec<TaskId>,
}

/// Puts a list whose tasks may wait for any other in an order in which they wait for earlier ones only. The
/// tasks of a stream keep their order. Of the streams that can go on, the one that could first goes first, so
/// that lists of several streams are interleaved about as they will run.
///
/// Fails where a task waits for one that is not in the list, and where tasks wait for one another.
pub fn order(tasks: &[Task]) -> Result<Ordered, SimError> {
    // Waits are numbered too, three to a task.
    if tasks.len() >= NONE as usize / 3 {
        return Err(SimError::TooManyTasks(tasks.len()));
    }
    for (id, task) in tasks.iter().enumerate() {
        if let Some(after) = task.after.into_iter().flatten().find(|a| *a as usize >= tasks.len()) {
            return Err(SimError::UnknownTask { place: Place::of(tasks, id), after, tasks: tasks.len() });
        }
    }
    let before = predecessors(tasks);
    // What each task still waits for, and who waits for each, as chains through (task, which of its waits).
    let mut open = vec![0u8; tasks.len()];
    let mut waiters = vec![NONE; tasks.len()];
    let mut chain = vec![[NONE; 3]; tasks.len()];
    for id in 0..tasks.len() {
        for (k, wait) in waits(tasks, &before, id).into_iter().enumerate() {
            let Some(wait) = wait else { continue };
            open[id] += 1;
            chain[id][k] = std::mem::replace(&mut waiters[wait as usize], (id * 3 + k) as u32);
        }
    }
    let mut ready: std::collections::VecDeque<usize> = (0..tasks.len()).filter(|id| open[*id] == 0).collect();
    let mut ordered = Ordered { tasks: Vec::with_capacity(tasks.len()), place: vec![NONE; tasks.len()] };
    while let Some(id) = ready.pop_front() {
        ordered.place[id] = ordered.tasks.len() as TaskId;
        let after = tasks[id].after.map(|a| a.map(|a| ordered.place[a as usize]));
        ordered.tasks.push(Task { after, ..tasks[id] });
        let mut link = waiters[id];
        while link != NONE {
            let (waiter, k) = (link as usize / 3, link as usize % 3);
            open[waiter] -= 1;
            if open[waiter] == 0 {
                ready.push_back(waiter);
            }
            link = chain[waiter][k];
        }
    }
    match open.iter().position(|o| *o > 0) {
        Some(stuck) => Err(cycle(tasks, &before, &open, stuck)),
        None => Ok(ordered),
    }
}

/// The task before each on its stream.
fn predecessors(tasks: &[Task]) -> Vec<Option<TaskId>> {
    let streams = tasks.iter().map(|t| t.stream as usize + 1).max().unwrap_or(0);
    let mut last = vec![None; streams];
    let step = |(id, t): (usize, &Task)| last[t.stream as usize].replace(id as TaskId);
    tasks.iter().enumerate().map(step).collect()
}

/// What a task waits for: two tasks and the one before it on its stream.
fn waits(tasks: &[Task], before: &[Option<TaskId>], id: usize) -> [Option<TaskId>; 3] {
    let [a, b] = tasks[id].after;
    [a, b, before[id]]
}

/// Follows waits from a task that cannot run, each to another that cannot, until one comes again.
fn cycle(tasks: &[Task], before: &[Option<TaskId>], open: &[u8], stuck: usize) -> SimError {
    let mut seen = vec![NONE; tasks.len()];
    let mut path = vec![];
    let mut at = stuck;
    while seen[at] == NONE {
        seen[at] = path.len() as u32;
        path.push(at);
        let next = waits(tasks, before, at).into_iter().flatten().find(|w| open[*w as usize] > 0);
        // A task that waits has something to wait for that waits too.
        let Some(next) = next else { break };
        at = next as usize;
    }
    SimError::Cycle(path[seen[at] as usize..].iter().map(|id| Place::of(tasks, *id)).collect())
}

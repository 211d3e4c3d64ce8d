//! The simulator: checks, and the choice of how to play.

use super::engine::Engine;
use super::periodic::{self, Periodic};
use super::timeline::Sweep;
use super::{Contention, Place, Rules, SimError, Task, TaskId, Timeline, NONE};

/// Plays lists of tasks. Keeps its scratch and its timeline, so that it allocates nothing for a list that is no
/// larger than one before.
#[derive(Debug, Default)]
pub struct Simulator {
    engine: Engine,
    timeline: Timeline,
    sweep: Sweep,
    /// Scratch of a direct play, by stream.
    free: Vec<f64>,
    /// Scratch of the checks.
    uses: Uses,
    periodic: periodic::Scratch,
}

impl Simulator {
    /// One without scratch.
    pub fn new() -> Simulator {
        Simulator::default()
    }

    /// When the tasks of the last list that was played ran; empty before the first.
    pub fn timeline(&self) -> &Timeline {
        &self.timeline
    }

    /// Plays a list. Fails where a task names what does not exist or waits for a later one, or where a number
    /// is none.
    pub fn run(&mut self, tasks: &[Task], rules: &Rules) -> Result<&Timeline, SimError> {
        check_rules(rules)?;
        self.uses.check(tasks, rules)?;
        let streams = rules.streams.len();
        self.timeline.reset(tasks.len(), streams);
        if self.uses.independent(rules.contention) {
            play_directly(tasks, streams, &mut self.free, &mut self.timeline);
        } else {
            self.engine.play(&mut &*tasks, rules, &self.uses.shared, &mut self.timeline);
        }
        self.timeline.add_up(tasks, rules, &mut self.sweep);
        Ok(&self.timeline)
    }

    /// Plays a list of which a part repeats: as [`Simulator::run`] would play the list with all repetitions
    /// written out, but for what the timeline's [`Skip`](super::Skip) leaves out.
    ///
    /// A stretch is skipped when every stream is found at the same place of the same task as some periods
    /// before; as the future depends on nothing else, it repeats. Where that never happens, as with streams
    /// that drift apart for ever, all periods are played.
    pub fn run_periodic(&mut self, list: &Periodic, rules: &Rules) -> Result<&Timeline, SimError> {
        check_rules(rules)?;
        self.uses.check(list.tasks, rules)?;
        list.check(rules)?;
        self.timeline.reset(0, rules.streams.len());
        let mut supply = self.periodic.supply(list);
        self.engine.play(&mut supply, rules, &self.uses.shared, &mut self.timeline);
        if let Some(tasks) = supply.overflow() {
            return Err(SimError::NeverSettles { tasks });
        }
        self.timeline.skip = supply.skip();
        self.timeline.add_up(self.periodic.tasks(), rules, &mut self.sweep);
        Ok(&self.timeline)
    }

    /// The tasks of the last periodic run, by the timeline's numbers.
    pub fn periodic_tasks(&self) -> &[Task] {
        self.periodic.tasks()
    }

    /// For tests: refuses longer lists that never settle.
    #[cfg(test)]
    pub(super) fn limit(&mut self, most: usize) {
        self.periodic.most = most;
    }

    /// For tests: plays event by event also where that is not needed.
    #[cfg(test)]
    pub(super) fn run_events(&mut self, tasks: &[Task], rules: &Rules) -> Result<&Timeline, SimError> {
        check_rules(rules)?;
        self.uses.check(tasks, rules)?;
        self.timeline.reset(tasks.len(), rules.streams.len());
        self.engine.play(&mut &*tasks, rules, &self.uses.shared, &mut self.timeline);
        self.timeline.add_up(tasks, rules, &mut self.sweep);
        Ok(&self.timeline)
    }
}

/// Plays tasks that do not slow each other down, in list order: each starts when its stream is free and what it
/// waits for has ended, and takes the time that it takes alone. `free` is scratch by stream. The tasks are
/// checked.
fn play_directly(tasks: &[Task], streams: usize, free: &mut Vec<f64>, timeline: &mut Timeline) {
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

/// Streams are numbered 0 to 65,535, devices as streams at most; factors are factors.
fn check_rules(rules: &Rules) -> Result<(), SimError> {
    let streams = rules.streams.len();
    if streams > 1 << 16 {
        return Err(SimError::TooManyStreams(streams));
    }
    for (stream, s) in rules.streams.iter().enumerate() {
        if s.device as usize >= streams || s.beside.is_some_and(|b| b as usize >= streams) {
            return Err(SimError::BadStream { stream, device: s.device, beside: s.beside, streams });
        }
    }
    let Contention { compute, communication } = rules.contention;
    let factor = |f: f64| f.is_finite() && f >= 1.0;
    match factor(compute) && factor(communication) {
        true => Ok(()),
        false => Err(SimError::BadContention { compute, communication }),
    }
}

/// Who uses what.
#[derive(Debug, Default)]
struct Uses {
    /// By link: whether several streams use it.
    shared: Vec<bool>,
    /// By link: a stream that uses it.
    owner: Vec<u32>,
    /// By device: 1 if it computes, plus 2 if it communicates.
    kinds: Vec<u8>,
}

impl Uses {
    /// Checks the tasks and notes what they use.
    fn check(&mut self, tasks: &[Task], rules: &Rules) -> Result<(), SimError> {
        if tasks.len() >= NONE as usize {
            return Err(SimError::TooManyTasks(tasks.len()));
        }
        let streams = rules.streams.len();
        self.shared.clear();
        self.owner.clear();
        self.kinds.clear();
        self.kinds.resize(streams, 0);
        for (id, task) in tasks.iter().enumerate() {
            let place = || Place::of(tasks, id);
            let Some(stream) = rules.streams.get(task.stream as usize) else {
                return Err(SimError::UnknownStream { place: place(), streams });
            };
            if !(task.seconds >= 0.0 && task.seconds < f64::INFINITY) {
                return Err(SimError::BadSeconds(place()));
            }
            let forward = |wait: Option<TaskId>| wait.filter(|w| *w as usize >= id);
            if let Some(after) = forward(task.after[0]).or(forward(task.after[1])) {
                return Err(match (after as usize) < tasks.len() {
                    true => SimError::Forward { place: place(), after },
                    false => SimError::UnknownTask { place: place(), after, tasks: tasks.len() },
                });
            }
            self.kinds[stream.device as usize] |= 1 + u8::from(task.link.is_some());
            let Some((link, demand)) = task.link else { continue };
            if !(demand > 0.0 && demand <= 1.0) {
                return Err(SimError::BadDemand { place: place(), link });
            }
            self.note(link as usize, u32::from(task.stream));
        }
        Ok(())
    }

    /// A stream uses a link.
    #[inline]
    fn note(&mut self, link: usize, stream: u32) {
        if link >= self.owner.len() {
            self.owner.resize(link + 1, NONE);
            self.shared.resize(link + 1, false);
        }
        self.shared[link] |= self.owner[link] != NONE && self.owner[link] != stream;
        self.owner[link] = stream;
    }

    /// Whether no task can slow another down.
    fn independent(&self, contention: Contention) -> bool {
        let contends = contention != Contention::NONE && self.kinds.contains(&3);
        !contends && !self.shared.contains(&true)
    }
}

//! A schedule as tasks of the simulator.

use super::build::MOST;
use super::{Kind, ScheduleError, Step, Work};
use crate::sim::{order, Contention, LinkId, Ordered, Rules, SimError, Stream, StreamId, Task, TaskId};

/// The tasks of a schedule.
#[derive(Clone, Debug, PartialEq)]
pub struct Lowered {
    /// The tasks, in an order that can run.
    pub tasks: Vec<Task>,
    /// By stage and step: its task.
    pub steps: Vec<Vec<TaskId>>,
}

/// Streams of a stage: what it computes, what it sends on, and what it sends back.
const STREAMS: usize = 3;

/// Where the tasks of [`lower`] run: stage i is device i, computes on stream 3i, sends to the next part on
/// 3i + 1 and to the one before on 3i + 2. Every stage has a link of its own for each direction.
pub fn rules(stages: u32, contention: Contention) -> Rules {
    let stream = |s: usize| {
        let beside = (!s.is_multiple_of(STREAMS)).then_some((s / STREAMS * STREAMS) as StreamId);
        Stream { device: (s / STREAMS) as u32, beside }
    };
    Rules { streams: (0..stages as usize * STREAMS).map(stream).collect(), contention }
}

/// Most steps at once between a micro-batch's forward through a chunk and the end of its backward there, weights
/// included: how many times what one forward saves has to be kept.
pub fn in_flight(steps: &[Step]) -> usize {
    let (mut now, mut most) = (0usize, 0);
    for step in steps {
        match step.work {
            Work::Forward => now += 1,
            Work::BackwardInput => (),
            Work::Backward | Work::BackwardWeight => now = now.saturating_sub(1),
        }
        most = most.max(now);
    }
    most
}

/// Turns the steps of all stages into tasks. `seconds` says how long a step of a stage takes; `message` how long
/// it takes to send what a part hands to the one after or before it. Nothing is sent between two parts of one
/// stage, and messages that take no time are left out.
///
/// Fails where a step is missing or there twice, and where stages wait for one another.
pub fn lower(
    kind: Kind,
    steps: &[Vec<Step>],
    seconds: impl Fn(u32, Step) -> f64,
    message: f64,
) -> Result<Lowered, ScheduleError> {
    let draft = draft(kind, steps, seconds, message)?;
    let all: Vec<TaskId> = (0..draft.tasks.len() as TaskId).collect();
    let ordered = draft.order(&draft.tasks, &all)?;
    let place = |at: &TaskId| ordered.place[*at as usize];
    let steps = draft.steps.iter().map(|stage| stage.iter().map(place).collect()).collect();
    Ok(Lowered { tasks: ordered.tasks, steps })
}

/// Tasks stage by stage, which wait for any others.
pub(super) struct Draft {
    pub(super) tasks: Vec<Task>,
    /// By task: whose it is.
    pub(super) owner: Vec<(u32, Step)>,
    /// By stage and step: its task, behind which its message is.
    pub(super) steps: Vec<Vec<TaskId>>,
}

impl Draft {
    /// Puts a list of tasks in order, of which `owners` says which of these they are.
    pub(super) fn order(&self, tasks: &[Task], owners: &[TaskId]) -> Result<Ordered, ScheduleError> {
        order(tasks).map_err(|error| match error {
            SimError::Cycle(places) => {
                let owner = |at: TaskId| self.owner[owners[at as usize] as usize];
                let mut steps: Vec<(u32, Step)> = places.iter().map(|p| owner(p.id)).collect();
                // A step and its message are one.
                steps.dedup();
                ScheduleError::Deadlock(steps)
            }
            other => other.into(),
        })
    }
}

/// The tasks of all stages. A step that comes after another of its stage anyway does not wait for it as well.
pub(super) fn draft(
    kind: Kind,
    steps: &[Vec<Step>],
    seconds: impl Fn(u32, Step) -> f64,
    message: f64,
) -> Result<Draft, ScheduleError> {
    if steps.len() * STREAMS > 1 << 16 {
        return Err(ScheduleError::Stages(steps.len()));
    }
    let shape = Shape::of(kind, steps)?;
    let mut done = vec![None; shape.len()];
    let mut draft = Draft { tasks: vec![], owner: vec![], steps: vec![vec![]; steps.len()] };
    // Every step is followed by its message, so that messages have the order of the steps.
    for (stage, step) in walk(steps) {
        let at = draft.tasks.len() as TaskId;
        let stream = (stage as usize * STREAMS) as StreamId;
        draft.tasks.push(Task { stream, seconds: seconds(stage, step), link: None, after: [None; 2] });
        draft.owner.push((stage, step));
        draft.steps[stage as usize].push(at);
        // NaN is sent too, for the simulator to refuse.
        let sends = shape.sends(stage, step).filter(|_| message != 0.0);
        if let Some(back) = sends {
            let (stream, link) = (stream + 1 + StreamId::from(back), 2 * stage as LinkId + LinkId::from(back));
            draft.tasks.push(Task { stream, seconds: message, link: Some((link, 1.0)), after: [Some(at), None] });
            draft.owner.push((stage, step));
        }
        let arrives = at + TaskId::from(sends.is_some());
        if done[shape.index(stage, step)].replace((at, arrives)).is_some() {
            return Err(ScheduleError::Twice { stage, step });
        }
    }
    for (stage, step) in walk(steps) {
        let Some((at, _)) = done[shape.index(stage, step)] else { continue };
        let stream = draft.tasks[at as usize].stream;
        let behind = |wait: &TaskId| draft.tasks[*wait as usize].stream != stream || *wait >= at;
        draft.tasks[at as usize].after = shape.waits(stage, step, &done)?.map(|wait| wait.filter(behind));
    }
    Ok(draft)
}

/// All steps, with their stages.
fn walk(steps: &[Vec<Step>]) -> impl Iterator<Item = (u32, Step)> + '_ {
    (0u32..).zip(steps).flat_map(|(stage, steps)| steps.iter().map(move |step| (stage, *step)))
}

/// How many of everything there are.
struct Shape {
    kind: Kind,
    stages: u32,
    parts: u32,
    microbatches: u32,
}

impl Shape {
    fn of(kind: Kind, steps: &[Vec<Step>]) -> Result<Shape, ScheduleError> {
        let count = |number: fn(&Step) -> u32| walk(steps).map(|(_, s)| u64::from(number(&s)) + 1).max().unwrap_or(0);
        let (chunks, microbatches) = (count(|s| s.chunk), count(|s| s.microbatch));
        let parts = chunks * steps.len() as u64;
        let all = parts.saturating_mul(3 * microbatches);
        if all > MOST {
            return Err(ScheduleError::TooMany { kind, steps: all });
        }
        Ok(Shape { kind, stages: steps.len() as u32, parts: parts as u32, microbatches: microbatches as u32 })
    }

    /// Places of steps in a table.
    fn len(&self) -> usize {
        3 * self.parts as usize * self.microbatches as usize
    }

    /// The place of a step: both backwards from which another stage takes gradients have the same.
    fn index(&self, stage: u32, step: Step) -> usize {
        self.place(step.work, step.microbatch, self.kind.part(self.stages, stage, step.chunk))
    }

    fn place(&self, work: Work, microbatch: u32, part: u32) -> usize {
        let work = match work {
            Work::Forward => 0,
            Work::Backward | Work::BackwardInput => 1,
            Work::BackwardWeight => 2,
        };
        (work * self.microbatches as usize + microbatch as usize) * self.parts as usize + part as usize
    }

    /// Whether a step hands something to another stage, and if so, whether to the part before.
    fn sends(&self, stage: u32, step: Step) -> Option<bool> {
        let part = self.kind.part(self.stages, stage, step.chunk);
        let (to, back) = match step.work {
            Work::Forward => (Some(part + 1).filter(|to| *to < self.parts), false),
            Work::Backward | Work::BackwardInput => (part.checked_sub(1), true),
            Work::BackwardWeight => (None, false),
        };
        to.filter(|to| self.kind.holder(self.stages, *to).0 != stage).map(|_| back)
    }

    /// The tasks that a step waits for. `done` has the tasks of the steps, and of their messages.
    fn waits(
        &self,
        stage: u32,
        step: Step,
        done: &[Option<(TaskId, TaskId)>],
    ) -> Result<[Option<TaskId>; 2], ScheduleError> {
        let part = self.kind.part(self.stages, stage, step.chunk);
        let find = |needs: Work, part: u32| {
            let missing = ScheduleError::Missing { stage, step, needs, part };
            done[self.place(needs, step.microbatch, part)].ok_or(missing)
        };
        Ok(match step.work {
            Work::Forward if part == 0 => [None, None],
            Work::Forward => [Some(find(Work::Forward, part - 1)?.1), None],
            Work::BackwardWeight => [Some(find(Work::BackwardInput, part)?.0), None],
            Work::Backward | Work::BackwardInput => {
                let own = find(Work::Forward, part)?.0;
                let next = part + 1 < self.parts;
                [Some(own), if next { Some(find(step.work, part + 1)?.1) } else { None }]
            }
        })
    }
}

//! Schedules of many micro-batches, as tasks of which a part repeats.

use super::build::check;
use super::lower::{draft, Draft};
use super::{schedule, Kind, ScheduleError, Step};
use crate::sim::{Periodic, Task, TaskId};

/// The tasks of a schedule, with a few copies of the part that repeats.
#[derive(Clone, Debug, PartialEq)]
pub struct Repeated {
    /// The tasks.
    pub tasks: Vec<Task>,
    /// The first task of the first copy.
    pub start: u32,
    /// Tasks of a copy.
    pub length: u32,
    /// Copies in the list.
    pub copies: u32,
    /// Copies in all.
    pub count: u32,
}

/// Periods that are played of a schedule that does not come back to a state that it was in.
const SETTLE: u32 = 512;

impl Repeated {
    /// The list to simulate: exactly where a state comes back, else by the mean of at least 256 periods once
    /// 512 have been played.
    pub fn list(&self) -> Periodic<'_> {
        let &Repeated { ref tasks, start, length, copies, count } = self;
        Periodic { tasks, start, length, copies, count, settle: Some(SETTLE) }
    }
}

/// Turns a schedule into tasks as [`lower`](super::lower) does, with no more of them for more micro-batches.
/// `seconds` must not depend on the micro-batch. `None` where nothing repeats: in GPipe, which has no steady
/// state, and where there are too few micro-batches.
///
/// A schedule of one more round of micro-batches (one; for interleaved 1F1B as many as stages) has in every
/// stage the same steps, but for a block that is added. If the steps before it are such blocks too, they are
/// the stage's periods. What is the same period on two stages is free to choose: a stage is put off by as many
/// as it takes for nothing to wait for a later period.
pub fn lower_periodic(
    kind: Kind,
    stages: u32,
    chunks: u32,
    microbatches: u32,
    seconds: impl Fn(u32, Step) -> f64,
    message: f64,
) -> Result<Option<Repeated>, ScheduleError> {
    check(kind, stages, chunks, microbatches)?;
    let round = if kind == Kind::Interleaved { stages } else { 1 };
    if kind == Kind::GPipe {
        return Ok(None);
    }
    // Few copies do where nothing waits for what is several periods back, and few rounds where a pipeline fills
    // and drains fast; so try more and more of both.
    for (copies, fill) in [(3, 1), (3, 2), (3, 4), (6, 4), (12, 4), (24, 4)] {
        let rounds = copies + 2 + fill * stages.div_ceil(round);
        if rounds >= microbatches / round {
            return Ok(None);
        }
        let more = microbatches / round - rounds;
        let base = Base {
            copies,
            steps: schedule(kind, stages, chunks, rounds * round)?,
            longer: schedule(kind, stages, chunks, (rounds + 1) * round)?,
            round,
        };
        let Some(blocks) = base.blocks() else { continue };
        let draft = draft(kind, &base.steps, &seconds, message)?;
        if let Some(groups) = groups(&draft, &base, &blocks) {
            return write(&draft, &groups, copies, copies + more).map(Some);
        }
    }
    Ok(None)
}

/// A schedule of few micro-batches, and of one round more.
struct Base {
    copies: u32,
    steps: Vec<Vec<Step>>,
    longer: Vec<Vec<Step>>,
    round: u32,
}

/// The blocks of a stage's steps: their length, where the last one ends, and how many there are.
#[derive(Clone, Copy)]
struct Blocks {
    length: usize,
    end: usize,
    count: usize,
}

impl Base {
    /// The blocks of all stages; `None` where one has none.
    fn blocks(&self) -> Option<Vec<Blocks>> {
        self.steps.iter().zip(&self.longer).map(|(a, b)| self.blocks_of(a, b)).collect()
    }

    fn blocks_of(&self, steps: &[Step], longer: &[Step]) -> Option<Blocks> {
        let next = |s: &Step| Step { microbatch: s.microbatch + self.round, ..*s };
        let follows = |a: &[Step], b: &[Step]| a.iter().map(next).eq(b.iter().copied());
        let length = longer.len() - steps.len();
        let end = steps.iter().zip(longer).take_while(|(a, b)| a == b).count();
        // The last steps are the same, for later micro-batches.
        if !follows(&steps[end..], longer.get(end + length..)?) {
            return None;
        }
        let mut count = 0;
        while end >= (count + 1) * length {
            let at = end - (count + 1) * length;
            if !follows(&steps[at..at + length], &longer[at + length..at + 2 * length]) {
                break;
            }
            count += 1;
        }
        (count >= self.copies as usize).then_some(Blocks { length, end, count })
    }
}

/// Stands for what is before and behind all blocks.
const FAR: i64 = 1 << 40;

/// By task: 0 before the copies, 1 to `copies` in one of them, and more behind them. `None` where there are too
/// few blocks or a copy waits for one further back than there are copies.
fn groups(draft: &Draft, base: &Base, blocks: &[Blocks]) -> Option<Vec<u32>> {
    let copies = i64::from(base.copies);
    let numbers = numbers(draft, blocks);
    let waits: Vec<(usize, usize)> = (0..draft.tasks.len())
        .flat_map(|task| draft.tasks[task].after.into_iter().flatten().map(move |wait| (task, wait as usize)))
        .collect();
    let stage = |task: usize| draft.owner[task].0 as usize;
    // By stage: by how many periods it is put off, so that this many of its blocks are behind the copies.
    let mut off = vec![0; blocks.len()];
    let mut settled = false;
    while !settled {
        settled = true;
        for &(task, wait) in waits.iter().filter(|(a, b)| numbers[*a].abs() < FAR && numbers[*b].abs() < FAR) {
            let late = numbers[wait] + off[stage(wait)] - numbers[task] - off[stage(task)];
            if late > 0 {
                off[stage(task)] += late;
                settled = false;
            }
        }
        if blocks.iter().zip(&off).any(|(blocks, off)| (blocks.count as i64) < copies + off) {
            return None;
        }
    }
    let group = |task: usize| (numbers[task] + off[stage(task)] + copies).clamp(0, copies + 1) as u32;
    let groups: Vec<u32> = (0..draft.tasks.len()).map(group).collect();
    let inside = |(task, wait): &(usize, usize)| {
        groups[*wait] <= groups[*task] && (groups[*task] != base.copies || groups[*wait] > 0)
    };
    waits.iter().all(inside).then_some(groups)
}

/// By task: the number of its block, counted up to 0, which is the last of its stage.
fn numbers(draft: &Draft, blocks: &[Blocks]) -> Vec<i64> {
    let mut numbers = vec![0; draft.tasks.len()];
    for (blocks, steps) in blocks.iter().zip(&draft.steps) {
        for (step, task) in steps.iter().enumerate() {
            let before = blocks.end as i64 - 1 - step as i64;
            let number = match before {
                ..0 => FAR,
                _ if before as usize >= blocks.count * blocks.length => -FAR,
                _ => -(before / blocks.length as i64),
            };
            // A step's message is in its block.
            let until = steps.get(step + 1).map_or(numbers.len(), |next| *next as usize);
            let same = |t: &usize| draft.owner[*t] == draft.owner[*task as usize];
            (*task as usize..until).take_while(same).for_each(|t| numbers[t] = number);
        }
    }
    numbers
}

/// Writes the groups one behind the other, each in an order that can run, and all copies in the same.
fn write(draft: &Draft, groups: &[u32], copies: u32, count: u32) -> Result<Repeated, ScheduleError> {
    let mut members: Vec<Vec<TaskId>> = vec![vec![]; copies as usize + 2];
    groups.iter().enumerate().for_each(|(task, group)| members[*group as usize].push(task as TaskId));
    let mut place = vec![0; draft.tasks.len()];
    let mut from = 0;
    let mut order: Vec<TaskId> = vec![];
    for (group, members) in members.iter().enumerate() {
        if group <= 1 || group > copies as usize {
            order = draft.order(&inside(draft, members), members)?.place;
        }
        members.iter().zip(&order).for_each(|(task, at)| place[*task as usize] = from + at);
        from += members.len() as TaskId;
    }
    let mut tasks = draft.tasks.clone();
    for (task, at) in draft.tasks.iter().zip(&place) {
        tasks[*at as usize] = Task { after: task.after.map(|wait| wait.map(|w| place[w as usize])), ..*task };
    }
    let (start, length) = (members[0].len() as u32, members[1].len() as u32);
    Ok(Repeated { tasks, start, length, copies, count })
}

/// Some tasks as a list of their own, which waits for nothing outside of it.
fn inside(draft: &Draft, members: &[TaskId]) -> Vec<Task> {
    let at = |wait: TaskId| members.binary_search(&wait).ok().map(|at| at as TaskId);
    let task = |task: &TaskId| draft.tasks[*task as usize];
    members.iter().map(task).map(|t| Task { after: t.after.map(|wait| wait.and_then(at)), ..t }).collect()
}

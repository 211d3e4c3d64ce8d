//! A training step of one rank without a pipeline: its units' phases and the messages of data parallelism as
//! tasks, played by the event simulator.
//!
//! A *unit* is a call of a function: what is gathered, reduced and computed together. Parameters of the next
//! unit are gathered while one computes (FSDP), gradients are reduced behind it; the optimizer waits for the
//! last reduction. Micro-batches between the first and the last repeat, so two are played at most
//! and the rest follow from the second.

use super::parts::{Compute, Messages, Traffic};
use super::price::{Phase, Priced};
use super::trace::{Event, Lane, Recorder};
use super::{Group, Rates, Transfer};
use autoshard_cost::collectives::Kind;
use autoshard_cost::schedule::Player;
use autoshard_cost::sim::{Contention, Rules, SimError, Simulator, Stream, Task, TaskId};

/// Equal calls in a row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Unit {
    /// Which of the priced functions.
    pub function: usize,
    /// How many calls.
    pub count: usize,
    /// Dense parameters of one call on this rank, before data parallelism shares them, elements.
    pub dense: f64,
    /// The same of experts.
    pub expert: f64,
    /// How much of its recomputation runs: 1 for all calls, less where only some layers are recomputed.
    pub recompute: f64,
}

/// How data-parallel ranks hold parameters.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Data {
    /// What they share: 0 nothing, 1 optimizer state, 2 gradients too, 3 parameters too.
    pub zero: u8,
    /// Whether gathered parameters are kept from the forward to the backward.
    pub keep: bool,
    /// Ranks that share a copy of dense parameters, and of experts.
    pub shard: [u64; 2],
    /// Ranks that hold the same share, dense and experts.
    pub replicas: [u64; 2],
    /// Bytes of an element that is gathered.
    pub copy_bytes: f64,
    /// Bytes of an element of a gradient that is reduced.
    pub gradient_bytes: f64,
    /// Whether messages run beside computation.
    pub overlap: bool,
    /// Whether the next unit is gathered before this one is done.
    pub prefetch: bool,
}

/// A step to be timed.
#[derive(Clone, Debug, PartialEq)]
pub struct Step<'a> {
    /// Functions.
    pub priced: &'a [Priced],
    /// In order of the forward.
    pub units: &'a [Unit],
    /// Micro-batches of a data rank; at least one.
    pub microbatches: u64,
    /// Data parallelism.
    pub data: Data,
    /// Slow-down of computation and communication side by side.
    pub contention: f64,
    /// Bytes that the optimizer moves for an element of its share.
    pub optimizer_bytes: f64,
    /// Time of its loops over their bytes.
    pub optimizer_factor: f64,
    /// Seconds that nothing else explains.
    pub overhead: f64,
    /// Time of messages over their rates.
    pub collectives: f64,
}

/// What a step takes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StepTime {
    /// Seconds.
    pub seconds: f64,
    /// Computation of all micro-batches.
    pub compute: Compute,
    /// Messages of all micro-batches.
    pub messages: Messages,
    /// Seconds of the optimizer.
    pub optimizer: f64,
    /// Seconds of overhead.
    pub overhead: f64,
    /// Seconds by which computation took longer beside communication.
    pub contention: f64,
    /// Seconds in which the stage that ends last waits for others.
    pub bubble: f64,
    /// By pipeline stage: seconds in which it works; empty without a pipeline.
    pub stages: Vec<f64>,
}

const COMPUTE: u16 = 0;
const DATA: u16 = 1;
const OUTER: u16 = 2;

/// The two sides of a unit's parameters with their groups.
const SIDES: [(Group, Group); 2] = [(Group::Shard, Group::Replicas), (Group::ExpertShard, Group::ExpertReplicas)];

/// Scratch of [`time`], kept between calls.
#[derive(Debug, Default)]
pub struct Scratch {
    pub(super) player: Player,
    simulator: Simulator,
    tasks: Vec<Task>,
    notes: Vec<Note>,
    /// Keeps the timeline, where that is asked for.
    pub recorder: Option<Recorder>,
}

/// What a message task is, for the report.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Note {
    task: TaskId,
    kind: Kind,
    group: Group,
    tier: u16,
    load: f32,
    bytes: f64,
    /// Whether it stands for those of later micro-batches, too.
    repeats: bool,
}

/// Times a step.
///
/// # Errors
/// Durations that are not numbers, which rates should never give.
pub fn time(step: &Step, rates: &impl Rates, scratch: &mut Scratch) -> Result<StepTime, SimError> {
    let mut out = inside(step);
    let m = step.microbatches.max(1);
    let busy = out.compute.seconds() + out.messages.exposed();
    let d = &step.data;
    let shares = d.shard.iter().chain(&d.replicas).any(|n| *n > 1);
    let optimizer = optimizer(step, rates);
    out.optimizer = optimizer;
    out.overhead = step.overhead;
    if step.units.is_empty() || !shares && scratch.recorder.is_none() {
        out.seconds = busy + optimizer + step.overhead;
        return Ok(out);
    }
    // Only micro-batches with messages are played; the others are as long as their kernels. Where each has its
    // own, the second repeats; else gathers are those of the first and reductions those of the last, which
    // are played as one.
    let every = d.zero >= 2;
    let played = if every { m.min(2) } else { 1 };
    let ends = play(step, played, rates, scratch)?;
    let skipped = (m - played) as f64;
    let period = match ends[..] {
        [a, b] if every => b - a,
        _ => busy / m as f64,
    };
    let timeline = scratch.simulator.timeline();
    for n in &scratch.notes {
        let at = n.task as usize;
        let (exposed, tail) = (timeline.exposed[at], timeline.tail[at]);
        let times = if n.repeats && every { 1.0 + skipped } else { 1.0 };
        let seconds = timeline.end[at] - timeline.start[at];
        out.messages.push(Traffic {
            kind: n.kind,
            group: n.group,
            tier: n.tier,
            load: n.load,
            count: times,
            bytes: n.bytes * times,
            exposed: exposed * times + tail,
            hidden: (seconds - exposed - tail).max(0.0) * times,
        });
    }
    out.seconds = timeline.makespan + skipped * period + optimizer + step.overhead;
    let seen = optimizer + step.overhead + out.compute.seconds() + out.messages.exposed();
    out.contention = (out.seconds - seen).max(0.0);
    if scratch.recorder.is_some() {
        record(step, scratch, played, (period, optimizer));
    }
    Ok(out)
}

/// A micro-batch of the step's units alone, with the messages before and behind it.
pub(super) fn played(step: &Step, rates: &impl Rates, scratch: &mut Scratch) -> Result<StepTime, SimError> {
    let one = Step { microbatches: 1, optimizer_bytes: 0.0, overhead: 0.0, ..step.clone() };
    let mut out = time(&one, rates, scratch)?;
    // What is left are the messages of data parallelism.
    out.messages.0.retain(|t| !matches!(t.group, Group::Inside(_)));
    Ok(out)
}

/// Puts the played micro-batches, those that repeat them, the optimizer and what is left into the recorder.
fn record(step: &Step, scratch: &mut Scratch, played: u64, (period, optimizer): (f64, f64)) {
    let Some(recorder) = &mut scratch.recorder else { return };
    let timeline = scratch.simulator.timeline();
    let event = |lane, name, start, seconds| Event { rank: 0, lane, name, start, seconds };
    let played_at = |task: TaskId| {
        let (start, end) = (timeline.start[task as usize], timeline.end[task as usize]);
        (start, end - start)
    };
    let mut events = Vec::with_capacity(recorder.labels.len() + scratch.notes.len() + 3);
    for (task, function, phase) in &recorder.labels {
        let (start, seconds) = played_at(*task);
        events.push(event(Lane::Compute, recorder.name(*function, phase), start, seconds));
    }
    for n in &scratch.notes {
        let lane = if scratch.tasks[n.task as usize].stream == OUTER { Lane::Replicas } else { Lane::Data };
        let (start, seconds) = played_at(n.task);
        events.push(event(lane, format!("{} {}", n.group.name(), n.kind.name().replace('_', "-")), start, seconds));
    }
    let mut at = timeline.makespan;
    let m = step.microbatches.max(1);
    let again = match m - played {
        1 => format!("micro-batch {m}, as long as the one before"),
        _ => format!("micro-batches {} to {m}, each as long as the one before", played + 1),
    };
    let rest = [
        (again, (m - played) as f64 * period),
        ("optimizer".to_string(), optimizer),
        ("step overhead".to_string(), step.overhead),
    ];
    for (name, seconds) in rest {
        events.push(event(Lane::Compute, name, at, seconds));
        at += seconds;
    }
    events.retain(|e| e.seconds > 0.0);
    recorder.events = events;
}

/// Plays so many micro-batches; returns when the kernels of each end. The timeline stays with the simulator.
fn play(step: &Step, played: u64, rates: &impl Rates, scratch: &mut Scratch) -> Result<Vec<f64>, SimError> {
    let carried = step.units.iter().map(|u| Carried::of(u, step, rates)).collect();
    let sum = |f: fn(&Unit) -> f64| step.units.iter().map(|u| u.count as f64 * f(u)).sum::<f64>();
    let all = Unit { function: 0, count: 1, dense: sum(|u| u.dense), expert: sum(|u| u.expert), recompute: 1.0 };
    let all = Carried::of(&all, step, rates);
    let mut builder = Builder { step, carried, all, scratch, last: None, repeats: false };
    builder.begin();
    let mut last = Vec::with_capacity(2);
    for i in 0..played {
        builder.repeats = i > 0;
        builder.micro_batch();
        last.extend(builder.last);
    }
    let streams = vec![
        Stream { device: 0, beside: None },
        Stream { device: 0, beside: Some(COMPUTE) },
        Stream { device: 0, beside: Some(COMPUTE) },
    ];
    let rules = Rules { streams, contention: Contention { compute: step.contention, communication: step.contention } };
    let timeline = scratch.simulator.run(&scratch.tasks, &rules)?;
    Ok(last.iter().map(|t| timeline.end[*t as usize]).collect())
}

/// Everything that runs on the compute stream in all micro-batches.
pub(super) fn inside(step: &Step) -> StepTime {
    let mut out = StepTime::default();
    let m = step.microbatches.max(1) as f64;
    for u in step.units {
        let p = &step.priced[u.function];
        let times = m * u.count as f64;
        for (phase, times) in [
            (&p.forward, times),
            (&p.recompute, times * u.recompute),
            (&p.backward_input, times),
            (&p.backward_weight, times),
        ] {
            out.compute.add(&phase.compute, times);
            out.messages.add(&phase.messages, times);
        }
    }
    out
}

/// Seconds of the optimizer's loops over this rank's share.
pub(super) fn optimizer(step: &Step, rates: &impl Rates) -> f64 {
    let d = &step.data;
    let share = |side: usize| if d.zero >= 1 { d.shard[side] as f64 } else { 1.0 };
    let elements: f64 = step.units.iter().map(|u| u.count as f64 * (u.dense / share(0) + u.expert / share(1))).sum();
    if elements == 0.0 {
        return 0.0;
    }
    rates.memory(elements * step.optimizer_bytes).seconds * step.optimizer_factor
}

/// The messages of one unit: of its dense parameters and of its experts.
#[derive(Clone, Copy, Debug, Default)]
struct Carried {
    gather: [Option<Transfer>; 2],
    /// Within the shard group.
    reduce: [Option<Transfer>; 2],
    /// Between replicas.
    replicas: [Option<Transfer>; 2],
}

impl Carried {
    fn of(u: &Unit, step: &Step, rates: &impl Rates) -> Carried {
        let d = &step.data;
        let mut out = Carried::default();
        for (side, elements) in [u.dense, u.expert].into_iter().enumerate() {
            let (shard, replicas) = (d.shard[side], d.replicas[side]);
            let send = |kind, group, bytes| {
                let t = rates.transfer(kind, group, bytes);
                Transfer { seconds: t.seconds * step.collectives, load: t.load.clamp(1e-3, 1.0), ..t }
            };
            if elements > 0.0 && shard > 1 {
                let group = SIDES[side].0;
                out.gather[side] = Some(send(Kind::AllGather, group, elements * d.copy_bytes));
                out.reduce[side] = Some(send(Kind::ReduceScatter, group, elements * d.gradient_bytes));
            }
            if elements > 0.0 && replicas > 1 {
                let share = elements * d.gradient_bytes / shard.max(1) as f64;
                out.replicas[side] = Some(send(Kind::AllReduce, SIDES[side].1, share));
            }
        }
        out
    }
}

struct Builder<'a> {
    step: &'a Step<'a>,
    /// By unit, and of all units in one message.
    carried: Vec<Carried>,
    all: Carried,
    scratch: &'a mut Scratch,
    /// The last task of the compute stream.
    last: Option<TaskId>,
    /// Whether the micro-batch stands for later ones, too.
    repeats: bool,
}

impl Builder<'_> {
    fn begin(&mut self) {
        self.scratch.tasks.clear();
        self.scratch.notes.clear();
        if let Some(r) = &mut self.scratch.recorder {
            r.labels.clear();
        }
    }

    /// Lists a micro-batch with the gathers of a step's first and the reductions of its last.
    fn micro_batch(&mut self) {
        let d = &self.step.data;
        let zero = d.zero;
        // ZeRO-1 gathers updated parameters once a step, before they are used.
        let gathers = zero >= 1;
        let again = zero == 3 && !d.keep;
        let calls: Vec<usize> =
            self.step.units.iter().enumerate().flat_map(|(i, u)| std::iter::repeat_n(i, u.count)).collect();
        if gathers && !d.overlap {
            self.all_at_once(Side::Gather, None);
        }
        let gathers = gathers && d.overlap;
        let again_early = again && d.overlap;
        let mut ready = if gathers { self.gather(calls[0], self.last) } else { None };
        for (i, u) in calls.iter().enumerate() {
            // What comes next: a unit of the forward, or the first of the backward.
            let next = match calls.get(i + 1) {
                Some(next) => Some(*next).filter(|_| gathers),
                None => Some(*u).filter(|_| again_early),
            };
            let function = self.step.units[*u].function;
            let p = &self.step.priced[function];
            ready = self.unit((function, "forward"), &[(&p.forward, 1.0)], ready, next);
        }
        for (i, u) in calls.iter().enumerate().rev() {
            if again && !d.overlap {
                self.all_at_once(Side::Gather, Some(*u));
            }
            let next = i.checked_sub(1).map(|i| calls[i]).filter(|_| again_early);
            let unit = &self.step.units[*u];
            let p = &self.step.priced[unit.function];
            let phases = [(&p.recompute, unit.recompute), (&p.backward_input, 1.0), (&p.backward_weight, 1.0)];
            ready = self.unit((unit.function, "backward"), &phases, ready, next);
            if d.overlap {
                self.reduce(*u);
            }
        }
        if !d.overlap {
            self.all_at_once(Side::Reduce, None);
        }
    }

    /// A unit's phases after its gather; the gather of the next unit, with prefetch, starts together with them.
    fn unit(
        &mut self,
        what: (usize, &'static str),
        phases: &[(&Phase, f64)],
        ready: Option<TaskId>,
        next: Option<usize>,
    ) -> Option<TaskId> {
        let start = self.last;
        let prefetch = self.step.data.prefetch;
        let early = next.filter(|_| prefetch).and_then(|u| self.gather(u, start));
        self.compute(what, phases, ready);
        early.or_else(|| next.filter(|_| !prefetch).and_then(|u| self.gather(u, self.last)))
    }

    /// Compute tasks of some phases; messages that they wait for use their link.
    fn compute(&mut self, what: (usize, &'static str), phases: &[(&Phase, f64)], after: Option<TaskId>) {
        let kernels: f64 = phases.iter().map(|(p, n)| p.compute.seconds() * n).sum();
        let waits: f64 = phases.iter().map(|(p, n)| p.messages.exposed() * n).sum();
        let most = phases
            .iter()
            .flat_map(|(p, _)| &p.messages.0)
            .max_by(|a, b| a.exposed.total_cmp(&b.exposed))
            .filter(|t| t.exposed > 0.0);
        let task = self.push(Task { stream: COMPUTE, seconds: kernels, link: None, after: [after, None] });
        self.label(task, what);
        if let Some(t) = most {
            let link = Some((t.tier, t.load.clamp(1e-3, 1.0)));
            let task = self.push(Task { stream: COMPUTE, seconds: waits, link, after: [None, None] });
            let waits = if what.1 == "forward" { "forward: its messages" } else { "backward: its messages" };
            self.label(task, (what.0, waits));
        }
    }

    /// Makes a task the last of the compute stream, and names it where the timeline is kept.
    fn label(&mut self, task: TaskId, (function, phase): (usize, &'static str)) {
        self.last = Some(task);
        if let Some(r) = &mut self.scratch.recorder {
            r.labels.push((task, function, phase));
        }
    }

    fn push(&mut self, task: Task) -> TaskId {
        self.scratch.tasks.push(task);
        self.scratch.tasks.len() as TaskId - 1
    }

    /// Gathers a unit's parameters in their shard groups; None where nothing is shared.
    fn gather(&mut self, u: usize, after: Option<TaskId>) -> Option<TaskId> {
        let mut done = None;
        for (side, t) in self.carried[u].gather.into_iter().enumerate() {
            if let Some(t) = t {
                let bytes = self.bytes(u, side, self.step.data.copy_bytes);
                done = Some(self.send(DATA, Kind::AllGather, (SIDES[side].0, t), bytes, after));
            }
        }
        done
    }

    /// Reduces a unit's gradients: scattered in the shard group, then summed over replicas.
    fn reduce(&mut self, u: usize) {
        let carried = self.carried[u];
        for (side, groups) in SIDES.into_iter().enumerate() {
            let bytes = self.bytes(u, side, self.step.data.gradient_bytes);
            let mut after = self.last;
            if let Some(t) = carried.reduce[side] {
                after = Some(self.send(DATA, Kind::ReduceScatter, (groups.0, t), bytes, after));
            }
            if let Some(t) = carried.replicas[side] {
                let share = bytes / self.step.data.shard[side].max(1) as f64;
                self.send(OUTER, Kind::AllReduce, (groups.1, t), share, after);
            }
        }
    }

    fn bytes(&self, u: usize, side: usize, each: f64) -> f64 {
        let unit = &self.step.units[u];
        each * if side == 0 { unit.dense } else { unit.expert }
    }

    /// Messages of one unit, or of all together, with nothing beside them.
    fn all_at_once(&mut self, what: Side, unit: Option<usize>) {
        let d = self.step.data;
        let carried = unit.map_or(self.all, |u| self.carried[u]);
        for (side, groups) in SIDES.into_iter().enumerate() {
            let (kind, each, inner, outer) = match what {
                Side::Gather => (Kind::AllGather, d.copy_bytes, carried.gather[side], None),
                Side::Reduce => (Kind::ReduceScatter, d.gradient_bytes, carried.reduce[side], carried.replicas[side]),
            };
            let count = |u: usize| self.step.units[u].count as f64;
            let bytes = match unit {
                Some(u) => self.bytes(u, side, each),
                None => (0..self.step.units.len()).map(|u| self.bytes(u, side, each) * count(u)).sum(),
            };
            if let Some(t) = inner {
                let task = self.send(DATA, kind, (groups.0, t), bytes, self.last);
                self.join(task);
            }
            if let Some(t) = outer {
                let share = bytes / d.shard[side].max(1) as f64;
                let task = self.send(OUTER, Kind::AllReduce, (groups.1, t), share, self.last);
                self.join(task);
            }
        }
    }

    /// Lets the compute stream wait for a message.
    fn join(&mut self, task: TaskId) {
        let wait = self.push(Task { stream: COMPUTE, seconds: 0.0, link: None, after: [Some(task), None] });
        self.last = Some(wait);
    }

    fn send(
        &mut self,
        stream: u16,
        kind: Kind,
        (group, t): (Group, Transfer),
        bytes: f64,
        after: Option<TaskId>,
    ) -> TaskId {
        let link = Some((t.tier, t.load));
        let task = self.push(Task { stream, seconds: t.seconds, link, after: [after, None] });
        self.scratch.notes.push(Note { task, kind, group, tier: t.tier, load: t.load, bytes, repeats: self.repeats });
        task
    }
}

/// What is sent at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    /// Parameters.
    Gather,
    /// Gradients.
    Reduce,
}

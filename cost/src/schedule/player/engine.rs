//! Goes through the steps of all stages: upwards and downwards through the stages, each of which goes on until it
//! waits for something or has done a period.

use super::super::order::Cursor;
use super::channels::Channels;
use super::steady::Steady;
use super::time::{Choices, Time};
use super::{class, Pipeline, Played, ScheduleError, Step, Work};

/// A kind of work on a chunk, as steps see it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Link {
    seconds: f64,
    /// Before which it does not start.
    ready: f64,
    /// The channels of what it waits for, and of what it hands on.
    pub(super) from: u32,
    pub(super) to: u32,
    /// Whether that goes to another stage.
    pub(super) sends: bool,
}

/// A message that blocks its sender.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pending {
    pub(super) channel: u32,
    pub(super) microbatch: u32,
    /// Class of the work whose result it is.
    pub(super) class: usize,
}

/// A stage under way.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stage {
    pub(super) cursor: Cursor,
    /// When it can go on.
    pub(super) free: Time,
    /// When what it sent last to the part after, and to the part before, has arrived.
    pub(super) sent: [Time; 2],
    pub(super) start: f64,
    pub(super) sending: Time,
    pub(super) played: u64,
    /// Steps that it may take before all others have taken theirs.
    pub(super) budget: u32,
    /// The message that keeps it, where messages block.
    pub(super) pending: Option<Pending>,
    /// Whether it has come to receive what its next step needs, where messages block.
    pub(super) asks: bool,
    /// Whether what its last step left is sent and what its next one needs is received, where messages block.
    pub(super) met: bool,
}

impl Stage {
    /// Goes on behind a step. A stage takes as many steps of a period in each sweep; the steps before and behind all at
    /// once.
    pub(super) fn pass(&mut self) {
        if self.cursor.steady() > 0 {
            self.budget = self.budget.min(self.cursor.period()) - 1;
        }
        self.cursor.advance();
        self.played += 1;
    }

    /// Computes a step once the stage is free and its input is there. The start, s; then it is free.
    pub(super) fn compute<const RATES: bool>(&mut self, link: &Link, arrived: Time, choices: &mut Choices) -> f64 {
        let ready = Time { at: link.ready, rate: 0.0 };
        let start = self.free.later::<RATES>(arrived, choices).later::<RATES>(ready, choices);
        self.free = start.after(link.seconds);
        if self.played == 0 {
            self.start = start.at;
        }
        start.at
    }

    /// Sends a result in one of the two directions, in which one message follows the other. When it is there.
    fn send<const RATES: bool>(&mut self, direction: usize, message: f64, choices: &mut Choices) -> Time {
        let sent = &mut self.sent[direction];
        *sent = sent.later::<RATES>(self.free, choices).after(message);
        *sent
    }

    /// Waits for a message that it sends.
    pub(super) fn wait_until(&mut self, sent: Time) {
        self.sending.at += sent.at - self.free.at;
        self.sending.rate += sent.rate - self.free.rate;
        self.free = sent;
    }
}

/// The state of a play.
#[derive(Clone, Debug, Default)]
pub(super) struct Engine {
    pub(super) stages: Vec<Stage>,
    /// By stage, chunk and [`Work`].
    links: Vec<Link>,
    pub(super) channels: Channels,
    chunks_of_a_stage: usize,
    pub(super) message: f64,
    blocking: bool,
    rendezvous: bool,
    pub(super) record: bool,
    pub(super) events: Vec<Played>,
    pub(super) steady: Steady,
    pub(super) choices: Choices,
}

impl Default for Choices {
    fn default() -> Choices {
        Choices { limit: f64::INFINITY, tolerance: 0.0 }
    }
}

/// Times in all rings at most: 512 MiB of them.
const MOST: u64 = 1 << 26;

impl Engine {
    /// Gets ready for a pipeline that can be played.
    pub(super) fn reset(&mut self, p: &Pipeline, record: bool) -> Result<(), ScheduleError> {
        let parts = p.stages as usize * p.chunks as usize;
        self.steady.reset(p);
        // At most 2p micro-batches are between two parts, one round more where chunks take turns.
        let room = (4 * p.stages).min(p.microbatches) + 1;
        self.rendezvous = p.blocking && p.chunks == 1;
        let all = Channels::size(parts, self.rendezvous, room, self.steady.reach());
        if all > MOST {
            return Err(ScheduleError::TooMany { kind: p.kind, steps: all });
        }
        self.channels.reset(parts, self.rendezvous, room, self.steady.reach());
        self.chunks_of_a_stage = p.chunks as usize;
        (self.message, self.blocking, self.record) = (p.message, p.blocking, record);
        self.events.clear();
        self.choices = Choices::default();
        self.links.clear();
        for (stage, chunk) in (0..p.stages).flat_map(|s| (0..p.chunks).map(move |c| (s, c))) {
            self.links.extend_from_slice(&links(p, stage, chunk));
        }
        self.stages.clear();
        self.stages.extend((0..p.stages).map(|s| Stage {
            cursor: Cursor::new(p.kind, p.stages, s, p.chunks, p.microbatches),
            free: Time::default(),
            sent: [Time::default(); 2],
            start: f64::NAN,
            sending: Time::default(),
            played: 0,
            budget: 0,
            pending: None,
            asks: false,
            met: false,
        }));
        Ok(())
    }

    pub(super) fn exact(&self) -> bool {
        !self.steady.mean
    }

    /// Plays to the end.
    pub(super) fn run(&mut self) -> Result<(), ScheduleError> {
        loop {
            let moved = match self.steady.rates() {
                true => self.sweep::<true>(),
                false => self.sweep::<false>(),
            };
            let ended = |s: &Stage| s.cursor.step().is_none() && s.pending.is_none();
            match (0u32..).zip(&self.stages).find(|(_, s)| !ended(s)) {
                Some((stage, s)) if !moved => return Err(ScheduleError::Stuck { stage, step: s.cursor.step() }),
                Some(_) => (),
                None => return Ok(()),
            }
            if !self.record {
                self.look();
            }
        }
    }

    /// Up and down until every stage has taken the steps of a period or none can go on. Whether anything moved.
    fn sweep<const RATES: bool>(&mut self) -> bool {
        let stages = self.stages.len();
        self.stages.iter_mut().for_each(|s| s.budget = u32::MAX);
        let mut moved = false;
        loop {
            let mut more = false;
            for s in 0..stages {
                more |= self.visit::<RATES>(s);
            }
            for s in (0..stages - 1).rev() {
                more |= self.visit::<RATES>(s);
            }
            moved |= more;
            if !more || self.stages.iter().all(|s| s.budget == 0) {
                return moved;
            }
        }
    }

    /// Goes on with a stage as far as it gets. Whether it did anything.
    fn visit<const RATES: bool>(&mut self, s: usize) -> bool {
        match self.rendezvous {
            true => self.exchange::<RATES>(s),
            false => self.advance::<RATES>(s),
        }
    }

    /// Takes steps of a stage while what they wait for is there. Whether there was one.
    fn advance<const RATES: bool>(&mut self, s: usize) -> bool {
        let Engine { stages, links, channels, choices, events, .. } = self;
        let (stage, per_stage) = (&mut stages[s], self.chunks_of_a_stage * WORKS);
        let links = &links[s * per_stage..(s + 1) * per_stage];
        let before = stage.played;
        while let Some(step) = stage.cursor.step().filter(|_| stage.budget > 0) {
            let link = &links[step.chunk as usize * WORKS + step.work as usize];
            if !channels.holds(link.from, step.microbatch) || channels.full(link.to, step.microbatch) {
                break;
            }
            let arrived = channels.take::<RATES>(link.from, step.microbatch);
            let start = stage.compute::<RATES>(link, arrived, choices);
            if self.record {
                events.push(Played { stage: s as u32, step, start, end: stage.free.at });
            }
            let mut there = stage.free;
            if link.sends {
                there = stage.send::<RATES>(class(step.work) & 1, self.message, choices);
                if self.blocking {
                    stage.wait_until(there);
                }
            }
            channels.hand_on::<RATES>(link.to, step.microbatch, there);
            stage.pass();
        }
        stage.played > before
    }

    pub(super) fn link(&self, s: usize, step: Step) -> Link {
        self.links[(s * self.chunks_of_a_stage + step.chunk as usize) * WORKS + step.work as usize]
    }
}

/// Kinds of work.
const WORKS: usize = 4;

/// The links of a chunk, by [`Work`].
fn links(p: &Pipeline, stage: u32, chunk: u32) -> [Link; WORKS] {
    let parts = p.stages * p.chunks;
    let part = p.kind.part(p.stages, stage, chunk);
    let (last, first) = (part + 1 == parts, part == 0);
    let cost = &p.costs[(stage * p.chunks + chunk) as usize];
    let elsewhere = |part: u32| p.kind.holder(p.stages, part).0 != stage;
    let nobody = 2 * parts;
    let (on, sends_on) = if last { (nobody, false) } else { (part + 1, elsewhere(part + 1)) };
    let (back, sends_back) = if first { (nobody, false) } else { (parts + part - 1, elsewhere(part - 1)) };
    let backward =
        |work| Link { seconds: cost.seconds(work), ready: 0.0, from: parts + part, to: back, sends: sends_back };
    let weight = cost.backward_weight;
    [
        Link { seconds: cost.forward, ready: cost.ready, from: part, to: on, sends: sends_on },
        backward(Work::Backward),
        backward(Work::BackwardInput),
        // Gradients of weights wait for nothing, as the first part's forward.
        Link { seconds: weight, ready: 0.0, from: 0, to: nobody, sends: false },
    ]
}

//! Lists in which tasks slow each other down: one event after the other.
//!
//! The state is one *lane* a stream: the task at its head, whether it runs, and how much of it is left. An
//! event is the end of a task. It moves its lane on and wakes the lanes whose heads wait for it (a lane waits
//! for one task at a time, so those lanes are a chain through the lanes). Then the links and devices that it
//! touched give their tasks new speeds, and each such device enters its next end in the queue.
//!
//! All computation of a device goes at one speed, and so does all its communication but for what links do. So
//! a device has two clocks of work, which run at those speeds. A lane's head ends at a fixed time of its clock,
//! and a change of speed concerns the clocks alone.

use super::queue::Tournament;
use super::share::level;
use super::{Contention, Rules, Task, Timeline, NONE};
use std::hint::select_unpredictable;

/// Where an engine takes tasks from.
pub(super) trait Supply {
    /// The tasks so far.
    fn tasks(&self) -> &[Task];
    /// Is told of the first lane whose head is at `limit()` or behind, and may add tasks then.
    fn reached(&mut self, head: u32, now: f64);
    /// See `reached`.
    fn limit(&self) -> u32;
    /// Sees the engine after all that happened before `next`.
    fn watch(&mut self, engine: &Engine, next: f64);
}

/// A whole list.
impl Supply for &[Task] {
    fn tasks(&self) -> &[Task] {
        self
    }
    fn reached(&mut self, _: u32, _: f64) {}
    fn limit(&self) -> u32 {
        NONE
    }
    fn watch(&mut self, _: &Engine, _: f64) {}
}

/// A stream at work.
#[derive(Clone, Copy, Debug)]
struct Lane {
    /// The task that runs or waits; `NONE` where there is none.
    head: u32,
    device: u32,
    /// The link of the head while it runs, if the link can be shared.
    link: u32,
    /// Which of the device's clocks the head goes by: 0 if it computes, 1 if it communicates.
    clock: u32,
    /// When the head ends by that clock; infinite where it does not run.
    end: f64,
    /// How many times longer the head takes because of its link.
    stretch: f64,
}

/// What a lane needs less often.
#[derive(Clone, Copy, Debug)]
struct Chains {
    /// The last task of the stream.
    last: u32,
    /// The next lane that waits for the same task.
    waits: u32,
    /// The next lane on the same link.
    link: u32,
    /// Share of the link that the head takes alone.
    demand: f32,
}

/// A device: what computes (0) and what communicates (1) on it.
#[derive(Clone, Copy, Debug, Default)]
struct Device {
    /// Its lanes.
    lanes: (u32, u32),
    dirty: bool,
    /// The next of the chain of dirty ones.
    next_dirty: u32,
    /// Lanes that run: those that compute, plus 2³² times those that communicate. (One word, as the two are
    /// written one at a time and read together.)
    running: u64,
    /// Seconds of work done at `since` by a lane that always ran.
    clock: [f64; 2],
    /// Seconds of work done in a second.
    speed: [f64; 2],
    since: f64,
}

impl Device {
    /// The clocks at a time since which no speed has changed.
    #[inline]
    fn clocks(&self, now: f64) -> [f64; 2] {
        let passed = now - self.since;
        [self.clock[0] + passed * self.speed[0], self.clock[1] + passed * self.speed[1]]
    }
}

#[derive(Clone, Copy, Debug)]
struct Link {
    /// The first of the chain of lanes that use it.
    lanes: u32,
    dirty: bool,
}

/// By task: the next on its stream, and the first lane that waits for it.
#[derive(Clone, Copy, Debug)]
struct Node {
    next: u32,
    waiter: u32,
}

/// The scratch of a run.
#[derive(Debug, Default)]
pub(super) struct Engine {
    lanes: Vec<Lane>,
    chains: Vec<Chains>,
    devices: Vec<Device>,
    links: Vec<Link>,
    nodes: Vec<Node>,
    /// By stream: its lane. Lanes of a device are neighbours.
    slot: Vec<u32>,
    /// The first of the chain of dirty devices.
    dirty_device: u32,
    dirty_links: Vec<u32>,
    demands: Vec<f64>,
    woken: Vec<u32>,
    queue: Tournament,
}

impl Engine {
    /// Plays the tasks; they and the rules are checked. `shared` says of each link whether several streams use
    /// it; starts and ends go to the timeline.
    pub(super) fn play(&mut self, supply: &mut impl Supply, rules: &Rules, shared: &[bool], timeline: &mut Timeline) {
        self.reset(rules, shared.len());
        let Contention { compute, communication } = rules.contention;
        let contended = ([compute, communication], [1.0 / compute, 1.0 / communication]);
        Run { engine: self, supply, timeline, contended, shared }.play();
    }

    fn reset(&mut self, rules: &Rules, links: usize) {
        let streams = rules.streams.len();
        self.devices.clear();
        let devices = rules.streams.iter().map(|s| s.device as usize + 1).max().unwrap_or(0);
        self.devices.resize(devices, Device::default());
        for stream in &rules.streams {
            self.devices[stream.device as usize].lanes.1 += 1;
        }
        let mut from = 0;
        for device in &mut self.devices {
            let count = device.lanes.1;
            device.lanes = (from, from);
            from += count;
        }
        let lane = Lane { head: NONE, device: 0, link: NONE, clock: 0, end: f64::INFINITY, stretch: 1.0 };
        self.lanes.clear();
        self.lanes.resize(streams, lane);
        self.chains.clear();
        self.chains.resize(streams, Chains { last: NONE, waits: NONE, link: NONE, demand: 1.0 });
        self.slot.clear();
        for stream in &rules.streams {
            let lanes = &mut self.devices[stream.device as usize].lanes;
            self.slot.push(lanes.1);
            self.lanes[lanes.1 as usize].device = stream.device;
            lanes.1 += 1;
        }
        self.links.clear();
        self.links.resize(links, Link { lanes: NONE, dirty: false });
        self.nodes.clear();
        self.dirty_device = NONE;
        self.dirty_links.clear();
        self.queue.reset(devices);
    }

    /// Sets a device's clocks, before something changes on it.
    #[inline]
    fn touch_device(&mut self, device: u32, now: f64) -> &mut Device {
        let d = &mut self.devices[device as usize];
        if !d.dirty {
            d.dirty = true;
            d.clock = d.clocks(now);
            d.since = now;
            d.next_dirty = std::mem::replace(&mut self.dirty_device, device);
        }
        d
    }

    #[inline]
    fn touch_link(&mut self, link: u32) {
        let l = &mut self.links[link as usize];
        if !l.dirty {
            l.dirty = true;
            self.dirty_links.push(link);
        }
    }

    /// Divides a link among the lanes on it.
    fn divide(&mut self, link: u32, now: f64) {
        self.links[link as usize].dirty = false;
        self.demands.clear();
        let mut at = self.links[link as usize].lanes;
        while at != NONE {
            self.demands.push(f64::from(self.chains[at as usize].demand));
            at = self.chains[at as usize].link;
        }
        let level = level(&mut self.demands);
        let mut at = self.links[link as usize].lanes;
        while at != NONE {
            let Chains { demand, link: next, .. } = self.chains[at as usize];
            let Lane { device, clock, end, stretch, .. } = self.lanes[at as usize];
            let longer = (f64::from(demand) / level).max(1.0);
            if longer != stretch {
                let clock = self.touch_device(device, now).clock[clock as usize];
                self.lanes[at as usize].end = clock + (end - clock) * (longer / stretch);
                self.lanes[at as usize].stretch = longer;
            }
            at = next;
        }
    }

    /// Gives a device's clocks their speeds and enters its next end.
    #[inline]
    fn drive(&mut self, device: u32, now: f64, contended: ([f64; 2], [f64; 2])) {
        let d = &mut self.devices[device as usize];
        d.dirty = false;
        self.dirty_device = d.next_dirty;
        let both = d.running as u32 > 0 && d.running >> 32 > 0;
        let (slow, speed) = if both { contended } else { ([1.0; 2], [1.0; 2]) };
        d.speed = speed;
        let (mut least, mut first) = (f64::INFINITY, d.lanes.0);
        let lanes = &self.lanes[d.lanes.0 as usize..d.lanes.1 as usize];
        for (i, lane) in (d.lanes.0..).zip(lanes) {
            let clock = (lane.clock & 1) as usize;
            let left = (lane.end - d.clock[clock]) * slow[clock];
            // Who is first is a toss-up: no branch.
            first = select_unpredictable(left < least, i, first);
            least = if left < least { left } else { least };
        }
        // Rounding may have left less than nothing.
        self.queue.set(device, if least > 0.0 { now + least } else { now }, first);
    }

    /// By lane: its head, and the seconds by its clock until that ends, if it runs.
    pub(super) fn heads(&self, now: f64) -> impl Iterator<Item = (u32, Option<f64>)> + '_ {
        self.lanes.iter().map(move |lane| {
            let left = lane.end - self.devices[lane.device as usize].clocks(now)[lane.clock as usize];
            (lane.head, left.is_finite().then_some(left))
        })
    }

    /// Adds a lane to its link, or takes it away.
    fn join(&mut self, slot: u32, link: u32) {
        self.chains[slot as usize].link = std::mem::replace(&mut self.links[link as usize].lanes, slot);
        self.touch_link(link);
    }

    fn leave(&mut self, slot: u32, link: u32) {
        let next = self.chains[slot as usize].link;
        let mut at = self.links[link as usize].lanes;
        if at == slot {
            self.links[link as usize].lanes = next;
        } else {
            while self.chains[at as usize].link != slot {
                at = self.chains[at as usize].link;
            }
            self.chains[at as usize].link = next;
        }
        self.touch_link(link);
    }
}

/// A run, with all that it needs.
struct Run<'a, S> {
    engine: &'a mut Engine,
    supply: &'a mut S,
    timeline: &'a mut Timeline,
    /// The times and the speeds of computation and communication where both run on a device.
    contended: ([f64; 2], [f64; 2]),
    shared: &'a [bool],
}

impl<S: Supply> Run<'_, S> {
    fn play(&mut self) {
        self.append(0.0);
        self.settle(0.0);
        loop {
            let (now, slot) = self.engine.queue.first();
            self.supply.watch(self.engine, now);
            if now == f64::INFINITY {
                return;
            }
            self.finish(slot, now);
            self.settle(now);
        }
    }

    /// Links the tasks that are new and starts lanes that had none left.
    fn append(&mut self, now: f64) {
        let Engine { lanes, chains, nodes, slot, woken, .. } = &mut *self.engine;
        let tasks = self.supply.tasks();
        for (id, task) in tasks.iter().enumerate().skip(nodes.len()) {
            let slot = slot[task.stream as usize];
            match std::mem::replace(&mut chains[slot as usize].last, id as u32) {
                NONE => (),
                last => nodes[last as usize].next = id as u32,
            }
            nodes.push(Node { next: NONE, waiter: NONE });
            if lanes[slot as usize].head == NONE {
                lanes[slot as usize].head = id as u32;
                woken.push(slot);
            }
        }
        self.timeline.start.resize(tasks.len(), 0.0);
        self.timeline.end.resize(tasks.len(), f64::INFINITY);
        while let Some(slot) = self.engine.woken.pop() {
            self.begin(slot, now);
        }
    }

    /// Starts the head of a lane, or has the lane wait.
    #[inline(always)]
    fn begin(&mut self, slot: u32, now: f64) {
        let engine = &mut *self.engine;
        let id = engine.lanes[slot as usize].head as usize;
        let Some(task) = self.supply.tasks().get(id) else { return };
        let open = |wait: Option<u32>| wait.filter(|w| self.timeline.end[*w as usize] == f64::INFINITY);
        if let Some(wait) = open(task.after[0]).or_else(|| open(task.after[1])) {
            engine.chains[slot as usize].waits = std::mem::replace(&mut engine.nodes[wait as usize].waiter, slot);
            return;
        }
        self.timeline.start[id] = now;
        let clock = usize::from(task.link.is_some());
        let device = engine.lanes[slot as usize].device;
        let device = engine.touch_device(device, now);
        device.running += 1 << (32 * clock);
        let end = device.clock[clock] + task.seconds;
        let lane = &mut engine.lanes[slot as usize];
        (lane.clock, lane.end, lane.stretch) = (clock as u32, end, 1.0);
        if let Some((link, demand)) = task.link.filter(|(link, _)| self.shared[*link as usize]) {
            lane.link = u32::from(link);
            engine.chains[slot as usize].demand = demand;
            engine.join(slot, u32::from(link));
        }
    }

    /// Ends the head of a lane and begins what that lets begin.
    #[inline]
    fn finish(&mut self, slot: u32, now: f64) {
        let engine = &mut *self.engine;
        let Lane { head, device, link, clock, .. } = engine.lanes[slot as usize];
        self.timeline.end[head as usize] = now;
        engine.touch_device(device, now).running -= 1 << (32 * clock);
        let Node { next, mut waiter } = engine.nodes[head as usize];
        let lane = &mut engine.lanes[slot as usize];
        (lane.head, lane.link, lane.end) = (next, NONE, f64::INFINITY);
        if link != NONE {
            engine.leave(slot, link);
        }
        if next >= self.supply.limit() {
            self.supply.reached(next, now);
            self.append(now);
        }
        // What may begin: the lane itself and those that waited.
        let mut slot = slot;
        while slot != NONE {
            let next = waiter;
            if waiter != NONE {
                waiter = self.engine.chains[waiter as usize].waits;
            }
            self.begin(slot, now);
            slot = next;
        }
    }

    /// New speeds where something changed.
    #[inline]
    fn settle(&mut self, now: f64) {
        while let Some(link) = self.engine.dirty_links.pop() {
            self.engine.divide(link, now);
        }
        while self.engine.dirty_device != NONE {
            self.engine.drive(self.engine.dirty_device, now, self.contended);
        }
    }
}

//! Lists in which tasks slow each other down: one event after the other.
//!
//! The state is one *lane* a stream: the task at its head, whether it runs, and how much of it is left. An
//! event is the end of a task. It moves its lane on and wakes the lanes whose heads wait for it (a lane waits
//! for one task at a time, so those lanes are a chain through the lanes). Then the links and devices that it
//! touched give their tasks new speeds, and each such device enters its next end in the queue.

use super::queue::Tournament;
use super::share::level;
use super::{Contention, Rules, Task, Timeline, NONE};

/// Where an engine takes tasks from.
pub(super) trait Supply {
    /// The tasks so far.
    fn tasks(&self) -> &[Task];
    /// Is told of the first lane whose head is at `limit()` or behind, and may add tasks then.
    fn reached(&mut self, head: u32, now: f64);
    /// See `reached`.
    fn limit(&self) -> u32;
    /// Sees the lanes after all that happened before `next`.
    fn watch(&mut self, lanes: &[Lane], next: f64);
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
    fn watch(&mut self, _: &[Lane], _: f64) {}
}

/// A stream at work.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lane {
    /// The task that runs or waits; `NONE` where there is none.
    pub(super) head: u32,
    /// Whether the head runs.
    pub(super) running: bool,
    communicates: bool,
    device: u32,
    /// The link of the head while it runs, if the link can be shared.
    link: u32,
    /// Seconds of work that were left at `since`.
    remaining: f64,
    since: f64,
    /// Seconds that pass for a second of work.
    slow: f64,
    /// The part of `slow` that is the link's.
    stretch: f64,
    /// When the head ends.
    end: f64,
}

impl Lane {
    /// Seconds of work of the head that are left at a time.
    pub(super) fn left(&self, now: f64) -> f64 {
        if !self.running {
            return 0.0;
        }
        (self.remaining - (now - self.since) / self.slow).max(0.0)
    }
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

#[derive(Clone, Copy, Debug, Default)]
struct Device {
    /// Its lanes.
    lanes: (u32, u32),
    /// Of them: the one that ends first.
    first: u32,
    computing: u32,
    communicating: u32,
    dirty: bool,
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
    dirty_devices: Vec<u32>,
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
        Run { engine: self, supply, timeline, contention: rules.contention, shared }.play();
    }

    fn reset(&mut self, rules: &Rules, links: usize) {
        let streams = rules.streams.len();
        self.devices.clear();
        self.devices.resize(streams, Device::default());
        for stream in &rules.streams {
            self.devices[stream.device as usize].lanes.1 += 1;
        }
        let mut from = 0;
        for device in &mut self.devices {
            let count = device.lanes.1;
            device.lanes = (from, from);
            from += count;
        }
        let lane = Lane {
            head: NONE,
            running: false,
            communicates: false,
            device: 0,
            link: NONE,
            remaining: 0.0,
            since: 0.0,
            slow: 1.0,
            stretch: 1.0,
            end: f64::INFINITY,
        };
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
        self.dirty_devices.clear();
        self.dirty_links.clear();
        self.queue.reset(streams);
    }

    #[inline]
    fn touch_device(&mut self, device: u32) {
        let d = &mut self.devices[device as usize];
        if !d.dirty {
            d.dirty = true;
            self.dirty_devices.push(device);
        }
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
    fn divide(&mut self, link: u32) {
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
            let chain = &self.chains[at as usize];
            let stretch = (f64::from(chain.demand) / level).max(1.0);
            let next = chain.link;
            if self.lanes[at as usize].stretch != stretch {
                self.lanes[at as usize].stretch = stretch;
                self.touch_device(self.lanes[at as usize].device);
            }
            at = next;
        }
    }

    /// Gives the lanes of a device their speeds and enters its next end.
    #[inline]
    fn drive(&mut self, device: u32, now: f64, contention: Contention) {
        let d = &mut self.devices[device as usize];
        d.dirty = false;
        let slow = [
            if d.communicating > 0 { contention.compute } else { 1.0 },
            if d.computing > 0 { contention.communication } else { 1.0 },
        ];
        let mut end = f64::INFINITY;
        let (from, until) = (d.lanes.0 as usize, d.lanes.1 as usize);
        for (i, lane) in self.lanes[from..until].iter_mut().enumerate() {
            if !lane.running {
                continue;
            }
            let slow = slow[usize::from(lane.communicates)] * lane.stretch;
            if slow != lane.slow {
                lane.remaining = lane.left(now);
                lane.since = now;
                lane.slow = slow;
                lane.end = now + lane.remaining * slow;
            }
            if lane.end < end {
                end = lane.end;
                d.first = (from + i) as u32;
            }
        }
        self.queue.set(device, end);
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
    contention: Contention,
    shared: &'a [bool],
}

impl<S: Supply> Run<'_, S> {
    fn play(&mut self) {
        self.append(0.0);
        self.settle(0.0);
        loop {
            let (now, device) = self.engine.queue.first();
            self.supply.watch(&self.engine.lanes, now);
            if now == f64::INFINITY {
                return;
            }
            self.finish(self.engine.devices[device as usize].first, now);
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
    #[inline]
    fn begin(&mut self, slot: u32, now: f64) {
        let engine = &mut *self.engine;
        let lane = &mut engine.lanes[slot as usize];
        let id = lane.head as usize;
        let Some(task) = self.supply.tasks().get(id) else { return };
        for wait in task.after.into_iter().flatten() {
            if self.timeline.end[wait as usize] == f64::INFINITY {
                engine.chains[slot as usize].waits = std::mem::replace(&mut engine.nodes[wait as usize].waiter, slot);
                return;
            }
        }
        self.timeline.start[id] = now;
        let device = lane.device;
        lane.running = true;
        lane.communicates = task.link.is_some();
        (lane.remaining, lane.since) = (task.seconds, now);
        (lane.slow, lane.stretch) = (1.0, 1.0);
        lane.end = now + task.seconds;
        match task.link {
            None => engine.devices[device as usize].computing += 1,
            Some((link, demand)) => {
                engine.devices[device as usize].communicating += 1;
                if self.shared[link as usize] {
                    lane.link = u32::from(link);
                    engine.chains[slot as usize].demand = demand;
                    engine.join(slot, u32::from(link));
                }
            }
        }
        engine.touch_device(device);
    }

    /// Ends the head of a lane and begins what that lets begin.
    #[inline]
    fn finish(&mut self, slot: u32, now: f64) {
        let engine = &mut *self.engine;
        let lane = &mut engine.lanes[slot as usize];
        let (id, device) = (lane.head as usize, lane.device);
        self.timeline.end[id] = now;
        lane.running = false;
        match lane.communicates {
            false => engine.devices[device as usize].computing -= 1,
            true => engine.devices[device as usize].communicating -= 1,
        }
        let Node { next, mut waiter } = engine.nodes[id];
        lane.head = next;
        let link = std::mem::replace(&mut lane.link, NONE);
        if link != NONE {
            engine.leave(slot, link);
        }
        engine.touch_device(device);
        if next >= self.supply.limit() {
            self.supply.reached(next, now);
            self.append(now);
        }
        self.begin(slot, now);
        while waiter != NONE {
            let next = self.engine.chains[waiter as usize].waits;
            self.begin(waiter, now);
            waiter = next;
        }
    }

    /// New speeds where something changed.
    #[inline]
    fn settle(&mut self, now: f64) {
        while let Some(link) = self.engine.dirty_links.pop() {
            self.engine.divide(link);
        }
        while let Some(device) = self.engine.dirty_devices.pop() {
            self.engine.drive(device, now, self.contention);
        }
    }
}

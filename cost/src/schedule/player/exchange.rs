//! Messages that keep their sender and their receiver: each moves once both have come to it.

use super::channels::EVER;
use super::engine::{Engine, Pending};
use super::time::Time;
use super::{class, Played, Step};

impl Engine {
    /// Takes steps of a stage, as far as it gets. Whether it did anything.
    pub(super) fn exchange<const RATES: bool>(&mut self, s: usize) -> bool {
        let mut moved = false;
        loop {
            let step = self.stages[s].cursor.step();
            if !self.stages[s].met {
                match self.meet::<RATES>(s, step) {
                    Met::Wait(asked) => return moved | asked,
                    Met::Sent => moved = true,
                    Met::Ready => (self.stages[s].met, moved) = (true, true),
                }
                continue;
            }
            let Some(step) = step.filter(|_| self.stages[s].budget > 0) else { return moved };
            self.work::<RATES>(s, step);
            moved = true;
        }
    }

    /// Sends what the last step left and receives what the next one needs: at once between a forward and a backward,
    /// else one after the other.
    fn meet<const RATES: bool>(&mut self, s: usize, step: Option<Step>) -> Met {
        let needs = step.and_then(|step| self.needs(s, step));
        let (pending, free) = (self.stages[s].pending, self.stages[s].free);
        let together = |class: usize| pending.is_none_or(|p| p.class != class);
        let mut asked = false;
        let receives = needs.filter(|n| together(n.class));
        if let Some(n) = receives.filter(|_| !self.stages[s].asks) {
            self.stages[s].asks = true;
            self.channels.hand_on::<RATES>(self.channels.asks(n.channel), n.microbatch, free);
            asked = true;
        }
        let asked_for = |p: Pending| self.channels.holds(self.channels.asks(p.channel), p.microbatch);
        let there = |n: Pending| self.channels.holds(n.channel, n.microbatch);
        if !pending.is_none_or(asked_for) || !receives.is_none_or(there) {
            return Met::Wait(asked);
        }
        if let Some(p) = pending {
            let other = self.channels.take::<RATES>(self.channels.asks(p.channel), p.microbatch);
            let sent = self.move_message::<RATES>(free, other);
            self.stages[s].wait_until(sent);
            self.stages[s].pending = None;
        }
        if let Some(n) = receives {
            let other = self.channels.take::<RATES>(n.channel, n.microbatch);
            let received = self.move_message::<RATES>(free, other);
            let stage = &mut self.stages[s];
            stage.free = stage.free.later::<RATES>(received, &mut self.choices);
            stage.asks = false;
        }
        match needs.is_some() && receives.is_none() {
            true => Met::Sent,
            false => Met::Ready,
        }
    }

    /// When a message has moved for which both sides are there.
    fn move_message<const RATES: bool>(&mut self, one: Time, other: Time) -> Time {
        one.later::<RATES>(other, &mut self.choices).after(self.message)
    }

    /// The message that a step needs.
    fn needs(&self, s: usize, step: Step) -> Option<Pending> {
        let channel = self.link(s, step).from;
        // What is there from the start is no message.
        let message = !self.channels.holds(channel, EVER - 1);
        message.then_some(Pending { channel, microbatch: step.microbatch, class: class(step.work) })
    }

    /// Computes a step; what it hands on waits for its receiver.
    fn work<const RATES: bool>(&mut self, s: usize, step: Step) {
        let link = self.link(s, step);
        let stage = &mut self.stages[s];
        let start = stage.compute::<RATES>(&link, Time::default(), &mut self.choices);
        if self.record {
            self.events.push(Played { stage: s as u32, step, start, end: stage.free.at });
        }
        if link.sends {
            self.channels.hand_on::<RATES>(link.to, step.microbatch, stage.free);
            let pending = Pending { channel: link.to, microbatch: step.microbatch, class: class(step.work) };
            stage.pending = Some(pending);
        }
        stage.met = false;
        stage.pass();
    }
}

/// What came of messages.
enum Met {
    /// The other side of one is not there yet; whether this one has come to one.
    Wait(bool),
    /// What was to be sent has moved.
    Sent,
    /// The next step can be taken.
    Ready,
}

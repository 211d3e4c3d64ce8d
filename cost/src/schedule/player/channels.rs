//! What stages hand to one another.

use super::time::Time;

/// What one part hands to another, micro-batch by micro-batch.
#[derive(Clone, Copy, Debug, Default)]
struct Channel {
    /// Micro-batches that were handed on.
    count: u32,
    /// Micro-batches that were taken.
    taken: u32,
}

/// More micro-batches than there are, for channels that hold something from the start or never hold too much.
pub(super) const EVER: u32 = u32::MAX;

/// Channels: by part for what its forwards wait for, by part for what its backwards wait for, and one for what nobody
/// waits for. Where messages block, as many on which receivers say that they have come to receive.
#[derive(Clone, Debug, Default)]
pub(super) struct Channels {
    list: Vec<Channel>,
    /// When what was handed on is there, in rings by channel and micro-batch, and the rates of these times.
    times: Vec<f64>,
    rates: Vec<f64>,
    /// Binary logarithm of the places of a ring.
    shift: u32,
    /// Micro-batches that a channel may hold.
    room: u32,
    parts: usize,
}

impl Channels {
    /// How many times rings hold in which there is room for some micro-batches, and which keep some more.
    pub(super) fn size(parts: usize, both: bool, room: u32, kept: u32) -> u64 {
        let places = u64::from((room + kept).next_power_of_two());
        (2 * parts as u64 + 1) * places * if both { 2 } else { 1 }
    }

    /// Empties all channels.
    pub(super) fn reset(&mut self, parts: usize, both: bool, room: u32, kept: u32) {
        let all = Channels::size(parts, both, room, kept) as usize;
        (self.parts, self.room) = (parts, room);
        self.shift = (room + kept).next_power_of_two().trailing_zeros();
        self.list.clear();
        self.list.resize(all >> self.shift, Channel::default());
        if self.times.len() < all {
            self.times.resize(all, 0.0);
            self.rates.resize(all, 0.0);
        }
        // What the first part's forward and the last part's backward wait for is there from the start.
        for source in [0, 2 * parts - 1] {
            self.list[source].count = EVER;
            let ring = source << self.shift..(source + 1) << self.shift;
            self.times[ring.clone()].fill(0.0);
            self.rates[ring].fill(0.0);
        }
        // What nobody waits for is never too much.
        self.list[2 * parts].taken = EVER;
    }

    /// Whether a channel has been handed something.
    pub(super) fn holds(&self, channel: u32, microbatch: u32) -> bool {
        self.list[channel as usize].count > microbatch
    }

    /// Whether a channel holds as much as it can.
    pub(super) fn full(&self, channel: u32, microbatch: u32) -> bool {
        microbatch >= self.list[channel as usize].taken.saturating_add(self.room)
    }

    /// Hands on what will be there at a time.
    pub(super) fn hand_on<const RATES: bool>(&mut self, channel: u32, microbatch: u32, there: Time) {
        let place = self.place(channel, microbatch);
        self.times[place] = there.at;
        if RATES {
            self.rates[place] = there.rate;
        }
        self.list[channel as usize].count = microbatch + 1;
    }

    /// Takes what was handed on.
    pub(super) fn take<const RATES: bool>(&mut self, channel: u32, microbatch: u32) -> Time {
        self.list[channel as usize].taken = microbatch + 1;
        let place = self.place(channel, microbatch);
        Time { at: self.times[place], rate: if RATES { self.rates[place] } else { 0.0 } }
    }

    /// The channel on which the receiver of another says that it has come to receive.
    pub(super) fn asks(&self, channel: u32) -> u32 {
        channel + 2 * self.parts as u32 + 1
    }

    /// Where the time of a micro-batch is in the rings.
    fn place(&self, channel: u32, microbatch: u32) -> usize {
        ((channel as usize) << self.shift) + (microbatch as usize & ((1 << self.shift) - 1))
    }

    /// Gives what waits the rate that it had over some micro-batches; `false` where there are too few.
    pub(super) fn start(&mut self, back: u32) -> bool {
        self.each(|channels, channel, microbatch| {
            let Some(before) = microbatch.checked_sub(back) else { return false };
            let (now, before) = (channels.place(channel, microbatch), channels.place(channel, before));
            channels.rates[now] = channels.times[now] - channels.times[before];
            true
        })
    }

    /// Whether all that waits is later by its rate than what is some micro-batches before, and has the same rate.
    pub(super) fn keep(&mut self, back: u32, same: impl Fn(f64, f64) -> bool) -> bool {
        self.each(|channels, channel, microbatch| {
            let Some(before) = microbatch.checked_sub(back) else { return false };
            let (now, before) = (channels.place(channel, microbatch), channels.place(channel, before));
            let rate = channels.rates[now];
            same(channels.times[now] - channels.times[before], rate) && same(channels.rates[before], rate)
        })
    }

    /// Puts off all that waits by so many seconds for a rate.
    pub(super) fn postpone(&mut self, seconds: impl Fn(f64) -> f64) {
        self.each(|channels, channel, microbatch| {
            let place = channels.place(channel, microbatch);
            channels.times[place] += seconds(channels.rates[place]);
            true
        });
    }

    /// Calls a function with all that has been handed on and not been taken, a channel and a micro-batch, as long as it
    /// says so.
    fn each(&mut self, f: impl Fn(&mut Channels, u32, u32) -> bool) -> bool {
        let all = 2 * self.parts + 1;
        for channel in 0..self.list.len() {
            let real = (1..2 * self.parts - 1).contains(&(channel % all));
            let Channel { count, taken } = self.list[channel];
            if real && !(taken..count).all(|microbatch| f(self, channel as u32, microbatch)) {
                return false;
            }
        }
        true
    }
}

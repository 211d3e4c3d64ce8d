//! Where the time of a step goes.

use super::Group;
use autoshard_cost::collectives::Kind;

/// Seconds of computation by what is computed.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Compute {
    /// Products.
    pub products: f64,
    /// Attention kernels.
    pub attention: f64,
    /// Loops over memory.
    pub loops: f64,
    /// Waiting for the host to launch.
    pub gaps: f64,
    /// Bytes that loops move.
    pub loop_bytes: f64,
}

impl Compute {
    /// All of it.
    pub fn seconds(&self) -> f64 {
        self.products + self.attention + self.loops + self.gaps
    }

    /// Adds `times` the other.
    pub fn add(&mut self, other: &Compute, times: f64) {
        self.products += times * other.products;
        self.attention += times * other.attention;
        self.loops += times * other.loops;
        self.gaps += times * other.gaps;
        self.loop_bytes += times * other.loop_bytes;
    }
}

/// Messages of one kind between the same ranks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Traffic {
    /// What they do.
    pub kind: Kind,
    /// Who.
    pub group: Group,
    /// Outermost tier.
    pub tier: u16,
    /// Load of that tier, by the heaviest of them.
    pub load: f32,
    /// How many.
    pub count: f64,
    /// Payload bytes of all of them.
    pub bytes: f64,
    /// Seconds that the step waits for them.
    pub exposed: f64,
    /// Seconds beside computation.
    pub hidden: f64,
}

/// A list of traffic with one entry for each kind, group and tier.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Messages(pub Vec<Traffic>);

impl Messages {
    /// Adds messages to the entry of their kind.
    pub fn push(&mut self, t: Traffic) {
        let same = self.0.iter_mut().find(|o| (o.kind, o.group, o.tier) == (t.kind, t.group, t.tier));
        match same {
            Some(o) => {
                o.load = o.load.max(t.load);
                o.count += t.count;
                o.bytes += t.bytes;
                o.exposed += t.exposed;
                o.hidden += t.hidden;
            }
            None => self.0.push(t),
        }
    }

    /// Adds `times` the other list.
    pub fn add(&mut self, other: &Messages, times: f64) {
        for t in &other.0 {
            let (count, bytes) = (t.count * times, t.bytes * times);
            self.push(Traffic { count, bytes, exposed: t.exposed * times, hidden: t.hidden * times, ..*t });
        }
    }

    /// Seconds that the step waits.
    pub fn exposed(&self) -> f64 {
        self.0.iter().map(|t| t.exposed).sum()
    }
}

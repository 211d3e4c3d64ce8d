//! Byte counters. They are fed at the copies, never from a formula.

use autoshard_ir::Axis;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// One collective as one rank saw it.
#[derive(Clone, Debug, PartialEq)]
pub struct Counted {
    /// Name of the value.
    pub name: Arc<str>,
    /// Name of the operation (`all_gather`).
    pub kind: &'static str,
    /// Root names of its axes (`dp·fsdp`).
    pub key: Arc<str>,
    /// Payload bytes.
    pub payload: u64,
    /// Wire bytes.
    pub wire: u64,
    /// Whether it is control traffic.
    pub control: bool,
    /// Position among all that the rank has communicated, in the order of issue.
    pub order: u64,
}

/// What one rank communicated, in bytes of real elements.
///
/// *Wire* is what this rank copied out of other ranks' buffers. *Payload* is the tensor once: for an
/// all-gather and an all-to-all the bytes placed in the output, own part included; for a
/// reduce-scatter the bytes read to make this rank's part, own contribution included; for an
/// all-reduce the bytes placed in the output. A group of one rank communicates nothing.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Counts {
    /// Payload bytes by axes.
    pub payload: BTreeMap<String, u64>,
    /// Wire bytes by axes.
    pub wire: BTreeMap<String, u64>,
    /// Wire bytes of control traffic: token hashes and collectives marked `control`.
    pub control: u64,
    /// Tail bytes moved. The collectives here move real elements only, so this is 0.
    pub padding: u64,
    /// Every collective over more than one rank, in the order of issue.
    pub collectives: Vec<Counted>,
    /// Part of `communicating` that passed waiting for other ranks.
    pub waiting: Duration,
    /// Time in which the rank communicated, on its own thread or on its communication thread.
    pub communicating: Duration,
    /// Time that the rank's own thread spent communicating or waiting for its communication thread.
    pub exposed: Duration,
}

impl Counts {
    /// Books one collective.
    pub(crate) fn book(&mut self, counted: Counted) {
        if counted.control {
            self.control += counted.wire;
        } else {
            add(&mut self.payload, &counted.key, counted.payload);
            add(&mut self.wire, &counted.key, counted.wire);
        }
        self.list(counted);
    }

    /// Adds what another thread of the rank has counted.
    pub(crate) fn add(&mut self, other: Counts) {
        other.payload.iter().for_each(|(key, n)| add(&mut self.payload, key, *n));
        other.wire.iter().for_each(|(key, n)| add(&mut self.wire, key, *n));
        self.control += other.control;
        self.padding += other.padding;
        self.waiting += other.waiting;
        self.communicating += other.communicating;
        self.exposed += other.exposed;
        other.collectives.into_iter().for_each(|c| self.list(c));
    }

    /// Adds to the list; it was issued after most of it.
    fn list(&mut self, counted: Counted) {
        let after = self.collectives.iter().rev().take_while(|c| c.order > counted.order).count();
        self.collectives.insert(self.collectives.len() - after, counted);
    }
}

fn add(map: &mut BTreeMap<String, u64>, key: &str, bytes: u64) {
    match map.get_mut(key) {
        Some(sum) => *sum += bytes,
        None => {
            map.insert(key.to_string(), bytes);
        }
    }
}

/// `dp·fsdp`: root names of the axes, each once (`tp.0` and `tp.1` are both `tp`).
pub fn axes_key(axes: &[Axis]) -> String {
    let mut roots: Vec<&str> = Vec::new();
    for axis in axes {
        if !roots.contains(&axis.root()) {
            roots.push(axis.root());
        }
    }
    roots.join("·")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn collectives_are_listed_in_the_order_of_issue() {
        let counted = |order, control| Counted {
            name: "x".into(),
            kind: "all_gather",
            key: "dp".into(),
            payload: 10,
            wire: 5,
            control,
            order,
        };
        let (mut a, mut b) = (Counts::default(), Counts::default());
        [0, 3, 4].iter().for_each(|n| a.book(counted(*n, false)));
        [1, 2, 5].iter().for_each(|n| b.book(counted(*n, *n == 5)));
        a.add(b);
        assert_eq!(a.collectives.iter().map(|c| c.order).collect::<Vec<_>>(), [0, 1, 2, 3, 4, 5]);
        assert_eq!((a.payload["dp"], a.wire["dp"], a.control), (50, 25, 5));
    }

    #[test]
    fn keys_name_roots_once() {
        let key = |names: &[&str]| axes_key(&names.iter().map(|n| Axis::new(n)).collect::<Vec<_>>());
        assert_eq!(key(&["tp.0", "tp.1"]), "tp");
        assert_eq!(key(&["dp", "fsdp"]), "dp·fsdp");
        assert_eq!(key(&["dp", "tp.0", "tp.1"]), "dp·tp");
        assert_eq!(key(&[]), "");
    }
}

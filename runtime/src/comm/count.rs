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
    /// Every collective over more than one rank, in order.
    pub collectives: Vec<Counted>,
    /// Time spent waiting for other ranks.
    pub waiting: Duration,
    /// Time spent in communication calls, waiting included.
    pub communicating: Duration,
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
        self.collectives.push(counted);
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
    fn keys_name_roots_once() {
        let key = |names: &[&str]| axes_key(&names.iter().map(|n| Axis::new(n)).collect::<Vec<_>>());
        assert_eq!(key(&["tp.0", "tp.1"]), "tp");
        assert_eq!(key(&["dp", "fsdp"]), "dp·fsdp");
        assert_eq!(key(&["dp", "tp.0", "tp.1"]), "dp·tp");
        assert_eq!(key(&[]), "");
    }
}

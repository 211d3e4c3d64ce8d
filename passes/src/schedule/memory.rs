//! Static memory plan: a fixed place for every value of a function, from lifetimes in the order in
//! which it runs.
//!
//! A value lives from the action that computes it to the last that reads it. A collective reads its
//! input until it is waited for, and its output is taken from the issue on. A result whose kernel
//! allows it takes over the buffer of an operand that dies there, and in a function whose caller does
//! not read an argument again, that of a parameter.

use super::order::Action;
use crate::fuse::{Unit, Work};
use autoshard_ir::core::{Def, Function, ValueId};
use autoshard_ir::kernel::Kernel;
use autoshard_ir::program::Buf;
use autoshard_ir::Mesh;

/// Every offset and size is a multiple of this, so that vector loads are aligned.
const ALIGN: usize = 64;

/// A function in its order, with what its callers give away.
pub struct Request<'a> {
    /// Function.
    pub function: &'a Function,
    /// Its units.
    pub units: &'a [Unit],
    /// The order of the units.
    pub actions: &'a [Action],
    /// Mesh, for sizes.
    pub mesh: &'a Mesh,
    /// Per parameter: no caller reads the argument after the call.
    pub donated: &'a [bool],
}

/// Buffers of a function's values.
pub struct MemoryPlan {
    /// By value index.
    pub buffers: Vec<Buf>,
    /// Bytes of the frame.
    pub frame: usize,
    /// Parameters that a value took over.
    pub consumed: Vec<bool>,
}

/// When each value is alive: positions of actions, both included.
pub struct Lifetimes {
    /// The action that computes it.
    first: Vec<usize>,
    /// The last that needs it.
    last: Vec<usize>,
}

impl Lifetimes {
    /// Of all values of a function.
    pub fn new(f: &Function, units: &[Unit], actions: &[Action]) -> Lifetimes {
        let mut l = Lifetimes { first: vec![0; f.values.len()], last: vec![0; f.values.len()] };
        for (t, action) in actions.iter().enumerate() {
            let (Action::Run(u) | Action::Issue(u) | Action::Wait(u)) = action;
            units[*u].inputs.iter().for_each(|v| l.last[v.0 as usize] = t);
            for r in &units[*u].results {
                if !matches!(action, Action::Wait(_)) {
                    l.first[r.0 as usize] = t;
                }
                l.last[r.0 as usize] = t;
            }
        }
        // What the caller gets is needed to the end.
        f.results.iter().for_each(|r| l.last[r.0 as usize] = usize::MAX);
        l
    }

    /// The last action that needs a value.
    pub fn last(&self, v: ValueId) -> usize {
        self.last[v.0 as usize]
    }
}

/// Plans a function. A value that is a result lives in the result's buffer. Of first fit and the
/// largest first, the smaller frame is taken.
pub fn plan(r: &Request) -> MemoryPlan {
    let f = r.function;
    let lifetimes = Lifetimes::new(f, r.units, r.actions);
    let mut homes = Homes { request: r, lifetimes: &lifetimes, of: homes(f), slots: Vec::new() };
    for (t, action) in r.actions.iter().enumerate() {
        match action {
            Action::Run(u) => homes.run(t, &r.units[*u]),
            Action::Issue(u) => r.units[*u].results.iter().for_each(|v| homes.slot(*v)),
            Action::Wait(_) => {}
        }
    }
    let (in_turn, frame) = first_fit(&homes.slots);
    let (by_size, smaller) = largest_first(&homes.slots);
    let (offsets, frame) = if smaller < frame { (by_size, smaller) } else { (in_turn, frame) };
    let buffer = |(home, v): (&Home, &autoshard_ir::core::Value)| match (home, &v.def) {
        (Home::Slot(s), _) => Buf::Frame(offsets[*s]),
        (Home::Fixed(buf), _) => *buf,
        // Never computed.
        (Home::Open, _) => Buf::Frame(0),
    };
    let buffers = homes.of.iter().zip(&f.values).map(buffer).collect();
    let taken = |p: usize| {
        let takes = |(home, v): (&Home, &autoshard_ir::core::Value)| {
            *home == Home::Fixed(Buf::Param(p)) && matches!(v.def, Def::Result(..))
        };
        homes.of.iter().zip(&f.values).any(takes)
    };
    MemoryPlan { buffers, frame, consumed: (0..f.params.len()).map(taken).collect() }
}

/// Where a value lives.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Home {
    /// Not known yet.
    Open,
    /// A parameter or a result.
    Fixed(Buf),
    /// A range of the frame.
    Slot(usize),
}

/// A range of the frame that is taken for some time.
#[derive(Clone, Copy, Debug)]
struct Slot {
    size: usize,
    first: usize,
    last: usize,
}

fn homes(f: &Function) -> Vec<Home> {
    let mut homes = vec![Home::Open; f.values.len()];
    for (i, p) in f.params.iter().enumerate() {
        homes[p.value.0 as usize] = Home::Fixed(Buf::Param(i));
    }
    for (i, r) in f.results.iter().enumerate().rev() {
        if matches!(f.value(*r).def, Def::Result(..)) {
            homes[r.0 as usize] = Home::Fixed(Buf::Result(i));
        }
    }
    homes
}

struct Homes<'a> {
    request: &'a Request<'a>,
    lifetimes: &'a Lifetimes,
    of: Vec<Home>,
    slots: Vec<Slot>,
}

impl Homes<'_> {
    /// Places the results of a unit that runs as action `t`.
    fn run(&mut self, t: usize, unit: &Unit) {
        let mut taken: Vec<Home> = Vec::new();
        for (i, r) in unit.results.iter().enumerate() {
            if self.of[r.0 as usize] != Home::Open {
                continue;
            }
            let over = match &unit.work {
                Work::Kernel(k) => self.overwritten(t, unit, k, (i, *r), &taken),
                _ => None,
            };
            match over {
                Some(home) => {
                    taken.push(home);
                    self.of[r.0 as usize] = home;
                    if let Home::Slot(s) = home {
                        self.slots[s].last = self.lifetimes.last(*r);
                    }
                }
                None => self.slot(*r),
            }
        }
    }

    /// A slot of its own for a value that lives in the frame.
    fn slot(&mut self, v: ValueId) {
        let index = v.0 as usize;
        if self.of[index] == Home::Open {
            let (f, mesh) = (self.request.function, self.request.mesh);
            let size = mesh.local_bytes(f.ty(v)).max(1).next_multiple_of(ALIGN);
            self.of[index] = Home::Slot(self.slots.len());
            self.slots.push(Slot { size, first: self.lifetimes.first[index], last: self.lifetimes.last[index] });
        }
    }

    /// The home of an operand that dies in this action and whose buffer the result may take; a
    /// parameter's first, because its memory is there anyway.
    fn overwritten(
        &self,
        t: usize,
        unit: &Unit,
        kernel: &Kernel,
        (result, r): (usize, ValueId),
        taken: &[Home],
    ) -> Option<Home> {
        let (f, mesh) = (self.request.function, self.request.mesh);
        let bytes = mesh.local_bytes(f.ty(r));
        let legal = |v: &ValueId| {
            let home = self.of[v.0 as usize];
            let mut same = unit.inputs.iter().enumerate().filter(|(_, w)| self.of[w.0 as usize] == home);
            self.lifetimes.last(*v) == t
                && self.ours(home)
                && !taken.contains(&home)
                && mesh.local_bytes(f.ty(*v)) == bytes
                && same.all(|(operand, _)| kernel.may_overwrite(operand, result))
        };
        let all = || unit.inputs.iter().filter(|v| legal(v)).map(|v| self.of[v.0 as usize]);
        all().find(|h| matches!(h, Home::Fixed(_))).or_else(|| all().next())
    }

    /// Whether the function may write there.
    fn ours(&self, home: Home) -> bool {
        match home {
            Home::Slot(_) => true,
            Home::Fixed(Buf::Param(p)) => self.request.donated.get(p).is_some_and(|d| *d),
            Home::Fixed(_) | Home::Open => false,
        }
    }
}

/// Offsets by slot and the end of the last: each slot, in the order of their starts, at the lowest
/// offset that is free.
fn first_fit(slots: &[Slot]) -> (Vec<usize>, usize) {
    let mut live: Vec<(usize, usize, usize)> = Vec::new(); // offset, end, last; by offset
    let mut offsets = Vec::with_capacity(slots.len());
    let mut frame = 0;
    for s in slots {
        live.retain(|(_, _, last)| *last >= s.first);
        let at = lowest(live.iter().map(|(start, end, _)| (*start, *end)), s.size);
        let position = live.partition_point(|(start, ..)| *start < at);
        live.insert(position, (at, at + s.size, s.last));
        offsets.push(at);
        frame = frame.max(at + s.size);
    }
    (offsets, frame)
}

/// The same with the largest slots first.
fn largest_first(slots: &[Slot]) -> (Vec<usize>, usize) {
    let mut turn: Vec<usize> = (0..slots.len()).collect();
    turn.sort_by_key(|i| (std::cmp::Reverse(slots[*i].size), *i));
    let mut placed: Vec<(usize, usize, usize)> = Vec::new(); // offset, end, slot; by offset
    let mut offsets = vec![0; slots.len()];
    let mut frame = 0;
    for i in turn {
        let s = slots[i];
        let beside = placed.iter().filter(|(_, _, o)| slots[*o].first <= s.last && s.first <= slots[*o].last);
        let at = lowest(beside.map(|(start, end, _)| (*start, *end)), s.size);
        let position = placed.partition_point(|(start, ..)| *start < at);
        placed.insert(position, (at, at + s.size, i));
        offsets[i] = at;
        frame = frame.max(at + s.size);
    }
    (offsets, frame)
}

/// The lowest offset at which `size` bytes are free of these ranges, which are sorted by start.
fn lowest(ranges: impl Iterator<Item = (usize, usize)>, size: usize) -> usize {
    let mut at = 0;
    for (start, end) in ranges {
        if at + size <= start {
            break;
        }
        at = at.max(end);
    }
    at
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_that_live_together_lie_apart() {
        // Counter-based noise: sizes of one to eight lines, lives of up to 20 actions.
        let noise = |i: usize| (i as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40;
        for seed in 0..20 {
            let slot = |i: usize| {
                let n = noise(i + 1000 * seed) as usize;
                Slot { size: (n % 8 + 1) * ALIGN, first: i, last: i + n / 8 % 20 }
            };
            let slots: Vec<Slot> = (0..100).map(slot).collect();
            let alive = |t: usize| slots.iter().filter(move |s| s.first <= t && t <= s.last).map(|s| s.size).sum();
            let least: usize = (0..120).map(alive).max().unwrap_or(0);
            for (offsets, frame) in [first_fit(&slots), largest_first(&slots)] {
                assert!((least..2 * least).contains(&frame), "{frame} for {least}");
                for (i, a) in slots.iter().enumerate() {
                    assert!(offsets[i] + a.size <= frame);
                    for (j, b) in slots.iter().enumerate().take(i) {
                        let together = a.first <= b.last && b.first <= a.last;
                        let apart = offsets[i] + a.size <= offsets[j] || offsets[j] + b.size <= offsets[i];
                        assert!(apart || !together, "{i} and {j}");
                    }
                }
            }
        }
    }
}

//! The order of a function's units: where each collective is issued and where it is waited for.
//!
//! A gather of what is there early (a parameter) is issued [`AHEAD`] anchors before its first reader;
//! every other collective as soon as its input is computed. A wait stands just before the first
//! reader. Updates that read a reduced gradient are put off by [`BEHIND`] anchors, so that the
//! reduction runs beside the next call; then they run at once, so that what was reduced is freed.
//! *Anchors* are the units that take time: calls, and in functions without calls products and
//! attention.
//!
//! One total order for all ranks: it depends on the function alone.

#[cfg(test)]
mod tests;

use crate::fuse::{Unit, Work};
use autoshard_ir::core::{Def, Function, ValueId};
use autoshard_ir::kernel::KernelBody;
use autoshard_ir::program::CollectiveKind;
use autoshard_ir::Mesh;
use std::collections::BTreeSet;

/// Anchors between the issue of a gather and its first reader. One: while a layer runs, the next
/// layer's weights arrive, so that two layers' gathered weights are alive at most. More would help only
/// where a gather takes longer than a whole call, and then communication bounds the step anyway.
const AHEAD: usize = 1;

/// Anchors that run before the readers of a reduction, for the same reason.
const BEHIND: usize = 1;

/// Anchors for which a product that nobody waits for is put off so that it can run beside a collective.
const PUT_OFF: usize = 2;

/// One step of a function, by the position of its unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// Runs a kernel or a call.
    Run(usize),
    /// Issues a collective.
    Issue(usize),
    /// Waits for a collective.
    Wait(usize),
}

/// How units are ordered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Overlap<'a> {
    /// As they come; each collective is waited for at once.
    None,
    /// Collectives early, waits late, and these of the [`products`] put off until something waits.
    Early(&'a [usize]),
}

/// Products whose results leave the function, before a collective that they might run beside.
pub fn products(f: &Function, units: &[Unit]) -> Vec<usize> {
    let uses = Uses::new(f, units);
    let product = |u: &Unit| matches!(&u.work, Work::Kernel(k) if matches!(k.body, KernelBody::Gemm(_)));
    let collective = |u: &Unit| matches!(u.work, Work::Collective(_)) && !is_local(f, u);
    let last = units.iter().rposition(collective).unwrap_or(0);
    (0..last).filter(|i| product(&units[*i]) && uses.leaf(&units[*i])).collect()
}

/// The order of `units`. `updates` names parameters that are overwritten by a result: all their other
/// readers come before.
pub fn order(f: &Function, units: &[Unit], mesh: &Mesh, updates: &[(ValueId, ValueId)], how: Overlap) -> Vec<Action> {
    let Overlap::Early(put_off) = how else {
        let step = |(i, u): (usize, &Unit)| match u.work {
            Work::Collective(_) => vec![Action::Issue(i), Action::Wait(i)],
            _ => vec![Action::Run(i)],
        };
        return units.iter().enumerate().flat_map(step).collect();
    };
    let uses = Uses::new(f, units);
    let roles = Roles::new(f, units, mesh, &uses, put_off);
    let mut order = Order {
        units,
        uses: &uses,
        roles: &roles,
        updates: update_of(units, updates),
        actions: Vec::new(),
        emitted: vec![false; units.len()],
        pending: vec![false; units.len()],
        passed: 0,
        behind: BTreeSet::new(),
        put_off: Vec::new(),
    };
    order.all();
    order.actions
}

/// Who computes and who reads each value.
struct Uses {
    producer: Vec<Option<usize>>,
    readers: Vec<Vec<usize>>,
}

impl Uses {
    fn new(f: &Function, units: &[Unit]) -> Uses {
        let mut uses = Uses { producer: vec![None; f.values.len()], readers: vec![Vec::new(); f.values.len()] };
        for (i, u) in units.iter().enumerate() {
            u.results.iter().for_each(|r| uses.producer[r.0 as usize] = Some(i));
            for v in &u.inputs {
                let readers = &mut uses.readers[v.0 as usize];
                if readers.last() != Some(&i) {
                    readers.push(i);
                }
            }
        }
        uses
    }

    fn producer(&self, v: ValueId) -> Option<usize> {
        self.producer[v.0 as usize]
    }

    fn readers(&self, v: ValueId) -> &[usize] {
        &self.readers[v.0 as usize]
    }

    /// Whether no unit reads what this one computes.
    fn leaf(&self, u: &Unit) -> bool {
        u.results.iter().all(|r| self.readers(*r).is_empty())
    }

    /// The first unit that reads a collective's result, collectives looked through.
    fn first_reader(&self, units: &[Unit], collective: usize) -> usize {
        let readers = units[collective].results.iter().flat_map(|r| self.readers(*r));
        let through = readers.map(|r| match units[*r].work {
            Work::Collective(_) => self.first_reader(units, *r),
            _ => *r,
        });
        through.min().unwrap_or(units.len())
    }
}

/// What the order does with a unit.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Role {
    /// Runs where it stands.
    Here { anchor: bool },
    /// A leaf that reads a reduction.
    Behind,
    /// A product that is a leaf, run beside a wait.
    PutOff,
    /// A collective, issued as soon as its input is there.
    AtOnce,
    /// A collective, issued when so many anchors have run.
    Ahead(usize),
    /// No communication.
    Local,
}

struct Roles {
    of: Vec<Role>,
    /// Collectives by the anchor before which they are issued.
    ahead: Vec<Vec<usize>>,
}

impl Roles {
    fn new(f: &Function, units: &[Unit], mesh: &Mesh, uses: &Uses, put_off: &[usize]) -> Roles {
        let leaf = |u: &Unit| uses.leaf(u);
        let calls = units.iter().any(|u| matches!(u.work, Work::Call(_)));
        let anchors: Vec<usize> = (0..units.len()).filter(|i| is_anchor(&units[*i], calls, leaf(&units[*i]))).collect();
        let mut roles = Roles { of: Vec::new(), ahead: vec![Vec::new(); anchors.len() + 1] };
        for (i, u) in units.iter().enumerate() {
            let role = match &u.work {
                Work::Call(_) => Role::Here { anchor: true },
                Work::Collective(_) => collective(f, units, mesh, uses, (i, &anchors)),
                Work::Kernel(_) if leaf(u) && reads_reduction(units, uses, &roles.of, u) => Role::Behind,
                Work::Kernel(_) if put_off.contains(&i) => Role::PutOff,
                Work::Kernel(_) => Role::Here { anchor: anchors.binary_search(&i).is_ok() },
            };
            if let Role::Ahead(at) = role {
                roles.ahead[at].push(i);
            }
            roles.of.push(role);
        }
        roles
    }
}

fn is_anchor(u: &Unit, calls: bool, leaf: bool) -> bool {
    match &u.work {
        Work::Call(_) => true,
        Work::Kernel(k) if !calls && !leaf => {
            matches!(k.body, KernelBody::Gemm(_) | KernelBody::Attention(_) | KernelBody::AttentionBackward(_))
        }
        _ => false,
    }
}

/// The role of a collective: what grows, or comes from a parameter, waits for its readers to be near.
fn collective(f: &Function, units: &[Unit], mesh: &Mesh, uses: &Uses, (i, anchors): (usize, &[usize])) -> Role {
    let u = &units[i];
    if is_local(f, u) {
        return Role::Local;
    }
    let bytes = |values: &[ValueId]| values.iter().map(|v| mesh.local_bytes(f.ty(*v))).sum::<usize>();
    let grows = bytes(&u.results) > bytes(&u.inputs);
    if !grows && !from_parameter(f, units, uses, i) {
        return Role::AtOnce;
    }
    let reader = uses.first_reader(units, i);
    Role::Ahead(anchors.partition_point(|a| *a < reader).saturating_sub(AHEAD))
}

fn is_local(f: &Function, u: &Unit) -> bool {
    match u.work {
        Work::Collective(n) => CollectiveKind::from_name(f.node(n).op.name) == Some(CollectiveKind::Local),
        _ => false,
    }
}

/// Whether only collectives lie between a unit and a parameter.
fn from_parameter(f: &Function, units: &[Unit], uses: &Uses, i: usize) -> bool {
    units[i].inputs.iter().all(|v| match uses.producer(*v) {
        None => matches!(f.value(*v).def, Def::Param(_)),
        Some(p) => matches!(units[p].work, Work::Collective(_)) && from_parameter(f, units, uses, p),
    })
}

fn reads_reduction(units: &[Unit], uses: &Uses, roles: &[Role], u: &Unit) -> bool {
    let reduction = |v: &ValueId| match uses.producer(*v) {
        Some(p) if matches!(units[p].work, Work::Collective(_)) => roles[p] == Role::AtOnce,
        _ => false,
    };
    u.inputs.iter().any(reduction)
}

/// Parameters that each unit overwrites.
fn update_of(units: &[Unit], updates: &[(ValueId, ValueId)]) -> Vec<Vec<ValueId>> {
    let of = |u: &Unit| updates.iter().filter(|(_, new)| u.results.contains(new)).map(|(old, _)| *old).collect();
    units.iter().map(of).collect()
}

struct Order<'a> {
    units: &'a [Unit],
    uses: &'a Uses,
    roles: &'a Roles,
    /// Parameters that each unit overwrites.
    updates: Vec<Vec<ValueId>>,
    actions: Vec<Action>,
    /// Units that run, or collectives that are issued.
    emitted: Vec<bool>,
    /// Collectives that are issued and not waited for.
    pending: Vec<bool>,
    /// Anchors that have run.
    passed: usize,
    /// Leaves whose inputs are there: when they are due, in anchors, and which.
    behind: BTreeSet<(usize, usize)>,
    /// Products to run beside a wait: when they run at the latest, and which.
    put_off: Vec<(usize, usize)>,
}

impl Order<'_> {
    fn all(&mut self) {
        self.issue_ahead();
        for i in 0..self.units.len() {
            match self.roles.of[i] {
                Role::Here { .. } => self.run(i),
                Role::PutOff => {
                    self.put_off.push((self.passed + PUT_OFF, i));
                    self.run_put_off(false);
                }
                Role::Behind | Role::AtOnce | Role::Ahead(_) | Role::Local => {}
            }
        }
        self.passed = usize::MAX;
        self.run_put_off(false);
        for i in 0..self.units.len() {
            match self.roles.of[i] {
                _ if self.emitted[i] => {}
                Role::AtOnce | Role::Ahead(_) | Role::Local => self.issue(i),
                _ => self.run(i),
            }
        }
        (0..self.units.len()).for_each(|i| self.wait(i));
    }

    /// Issues the gathers whose anchor comes next.
    fn issue_ahead(&mut self) {
        let Some(next) = self.roles.ahead.get(self.passed) else { return };
        for c in next {
            if !self.emitted[*c] && self.computed(&self.units[*c].inputs) {
                self.issue(*c);
            }
        }
    }

    fn run(&mut self, i: usize) {
        if self.emitted[i] {
            return;
        }
        let anchor = self.roles.of[i] == Role::Here { anchor: true };
        if anchor {
            self.issue_ahead();
        }
        for v in &self.units[i].inputs {
            self.settle(*v);
        }
        for p in 0..self.updates[i].len() {
            self.release(i, self.updates[i][p]);
        }
        if self.emitted[i] {
            return;
        }
        self.actions.push(Action::Run(i));
        self.emitted[i] = true;
        if anchor {
            self.passed = self.passed.saturating_add(1);
        }
        self.after(i);
        if anchor {
            self.run_put_off(false);
            self.run_behind();
        }
    }

    /// What a unit makes possible: collectives that start at once, leaves that are complete.
    fn after(&mut self, i: usize) {
        let uses = self.uses;
        for reader in self.units[i].results.iter().flat_map(|r| uses.readers(*r)) {
            let start = match self.roles.of[*reader] {
                Role::AtOnce => true,
                Role::Ahead(at) => at <= self.passed,
                Role::Behind if self.computed(&self.units[*reader].inputs) => {
                    self.behind.insert((self.passed.saturating_add(BEHIND), *reader));
                    false
                }
                _ => false,
            };
            if start && !self.emitted[*reader] && self.computed(&self.units[*reader].inputs) {
                self.issue(*reader);
            }
        }
    }

    /// Whether all values have been computed, or their collectives issued.
    fn computed(&self, values: &[ValueId]) -> bool {
        values.iter().all(|v| self.uses.producer(*v).is_none_or(|p| self.emitted[p]))
    }

    fn issue(&mut self, c: usize) {
        if self.emitted[c] {
            return;
        }
        let local = self.roles.of[c] == Role::Local;
        for v in &self.units[c].inputs {
            // Communication runs in the order of its issues; a local move runs in the rank's own.
            match self.uses.producer(*v) {
                Some(p) if !local && matches!(self.units[p].work, Work::Collective(_)) => self.issue(p),
                _ => self.settle(*v),
            }
        }
        // What an input makes possible may have been this very collective.
        if self.emitted[c] {
            return;
        }
        self.actions.push(Action::Issue(c));
        self.emitted[c] = true;
        self.pending[c] = true;
        if local {
            self.wait(c);
        }
        self.after(c);
    }

    /// Makes a value readable.
    fn settle(&mut self, v: ValueId) {
        let Some(p) = self.uses.producer(v) else { return };
        if !matches!(self.units[p].work, Work::Collective(_)) {
            // Producers stand before their readers; only leaves are moved back.
            debug_assert!(self.emitted[p], "unit {p} is read before it runs");
            return;
        }
        self.issue(p);
        if self.pending[p] {
            self.run_put_off(true);
        }
        self.wait(p);
    }

    fn wait(&mut self, c: usize) {
        if std::mem::take(&mut self.pending[c]) {
            self.actions.push(Action::Wait(c));
        }
    }

    /// Everybody but `i` has read the parameter.
    fn release(&mut self, i: usize, param: ValueId) {
        let uses = self.uses;
        for reader in uses.readers(param).iter().filter(|r| **r != i) {
            if matches!(self.units[*reader].work, Work::Collective(_)) {
                self.issue(*reader);
                self.wait(*reader);
            } else {
                self.run(*reader);
            }
        }
    }

    /// Runs the products that were put off: those that are due, or all that wait for nothing.
    fn run_put_off(&mut self, all: bool) {
        let waits = |o: &Order, i: usize| {
            let pending = |v: &ValueId| o.uses.producer(*v).is_some_and(|p| o.pending[p] || !o.emitted[p]);
            o.units[i].inputs.iter().any(pending)
        };
        let list = std::mem::take(&mut self.put_off);
        let (now, later): (Vec<_>, Vec<_>) =
            list.into_iter().partition(|(due, i)| if all { !waits(self, *i) } else { *due <= self.passed });
        self.put_off = later;
        now.into_iter().for_each(|(_, i)| self.run(i));
    }

    /// Runs the leaves that are due, unless they would overwrite a parameter that is still read.
    fn run_behind(&mut self) {
        let due: Vec<(usize, usize)> = self.behind.range(..=(self.passed, usize::MAX)).copied().collect();
        for (at, i) in due {
            let read = |p: &ValueId| self.uses.readers(*p).iter().all(|r| *r == i || self.emitted[*r]);
            if self.updates[i].iter().all(read) {
                self.behind.remove(&(at, i));
                self.run(i);
            }
        }
    }
}

//! The space: which layouts there are.

use super::Ask;
use crate::predict::places::{joined, Places};
use crate::predict::settings::{divisors, splits_heads};
use crate::predict::{CpMethod, Layout, Order, Recompute, Role, Schedule};
use autoshard_cost::cluster::Medium;
use autoshard_cost::layout::{Placement, Span};
use autoshard_ir::verify::MAX_ELEMENTS;
use rustc_hash::FxHashMap;
use std::sync::{Mutex, PoisonError};

/// What decides the kernels of a micro-batch on one rank, experts left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Inside {
    /// Ranks that split heads.
    pub tp: u64,
    /// Whether they split positions elsewhere.
    pub sp: bool,
    /// Ranks that split positions.
    pub cp: u64,
    /// How attention sees other positions.
    pub cp_method: CpMethod,
    /// Sequences of a micro-batch.
    pub micro_batch: u64,
}

/// Whether a decision that is made allows a value.
fn allows<T: PartialEq>(fixed: Option<T>, value: T) -> bool {
    fixed.is_none_or(|f| f == value)
}

/// All of them, those with the fewest ranks and the smallest micro-batch first.
pub fn insides(ask: &Ask) -> Vec<Inside> {
    let mut out = Vec::new();
    let f = ask.fix;
    let tps = divisors(ask.facts.heads).into_iter().filter(|t| splits_heads(*t, ask.facts));
    for tp in tps.filter(|t| *t <= ask.devices && allows(f.tp, *t)) {
        for cp in contexts(ask.seq_len).into_iter().filter(|c| c * tp <= ask.devices && allows(f.cp, *c)) {
            for cp_method in methods(ask, tp, cp) {
                let even = (ask.seq_len / cp).is_multiple_of(tp);
                let kinds = [tp > 1 && even, false];
                let kinds = if kinds[0] { &kinds[..] } else { &kinds[1..] };
                for sp in kinds.iter().copied().filter(|sp| allows(f.sp, *sp)) {
                    for micro_batch in micro_batches(ask) {
                        out.push(Inside { tp, sp, cp, cp_method, micro_batch });
                    }
                }
            }
        }
    }
    out
}

/// Sequences of a micro-batch: as many as divide the batch, up to the largest tensors that a module can have (far
/// beyond what any device holds).
fn micro_batches(ask: &Ask) -> Vec<u64> {
    let width = (ask.facts.heads * ask.seq_len).max(ask.decoder.vocab as u64);
    // Copies of tokens for experts are counted in 32 bits.
    let copies = ask.decoder.most_experts_of_a_token() as u64;
    let slots = (i32::MAX as u64).saturating_sub(ask.facts.experts) / ask.seq_len.saturating_mul(copies).max(1);
    let most = (MAX_ELEMENTS as u64 / ask.seq_len.saturating_mul(width).max(1)).min(slots.max(1));
    divisors(ask.global_batch).into_iter().filter(|b| *b <= most && allows(ask.fix.mbs, *b)).collect()
}

/// Degrees that split so many positions: each rank takes two chunks.
fn contexts(seq_len: u64) -> Vec<u64> {
    let mut out = vec![1];
    if seq_len.is_multiple_of(2) {
        out.extend(divisors(seq_len / 2).into_iter().filter(|c| *c > 1));
    }
    out
}

fn methods(ask: &Ask, tp: u64, cp: u64) -> Vec<CpMethod> {
    if cp == 1 {
        // Without ranks that split positions there is no method; the first stands for it.
        return vec![ask.fix.cp_method.unwrap_or(CpMethod::Ring)];
    }
    let heads = ask.facts.heads / tp;
    let legal = |m: &CpMethod| allows(ask.fix.cp_method, *m) && (*m != CpMethod::Ulysses || heads.is_multiple_of(cp));
    CpMethod::ALL.iter().copied().filter(legal).collect()
}

/// Stages and data ranks of an [`Inside`]: pp, dp.
pub fn pipelines(ask: &Ask, inside: &Inside) -> Vec<(u64, u64)> {
    let ranks = inside.tp * inside.cp;
    let f = ask.fix;
    let sets: Vec<u64> = divisors(ask.global_batch / inside.micro_batch);
    let mut out = Vec::new();
    for pp in (1..=ask.facts.layers + 2).filter(|p| p * ranks <= ask.devices && allows(f.pp, *p)) {
        for dp in sets.iter().copied().filter(|d| d * pp * ranks <= ask.devices && allows(f.dp, *d)) {
            if allows(f.microbatches, ask.global_batch / inside.micro_batch / dp) {
                out.push((pp, dp));
            }
        }
    }
    out
}

/// Experts' ranks over those of a stage: ep, etp.
pub fn experts(ask: &Ask, stage_ranks: u64) -> Vec<(u64, u64)> {
    if ask.facts.experts == 0 {
        let none = ask.fix.ep.is_none_or(|n| n == 1) && ask.fix.etp.is_none_or(|n| n == 1);
        return if none { vec![(1, 1)] } else { Vec::new() };
    }
    let mut out = Vec::new();
    for ep in divisors(ask.facts.experts).into_iter().filter(|e| stage_ranks.is_multiple_of(*e)) {
        for etp in divisors(stage_ranks / ep) {
            if allows(ask.fix.ep, ep) && allows(ask.fix.etp, etp) {
                out.push((ep, etp));
            }
        }
    }
    out
}

/// Micro-batches on all chunks of a stage that a player counts, at the most (`autoshard_cost::schedule`).
const MOST_STEPS: u64 = 1 << 26;

/// Schedules with their chunks a rank, as `vpp`.
pub fn schedules(ask: &Ask, pp: u64, microbatches: u64) -> Vec<(Schedule, u64)> {
    let f = ask.fix;
    if pp == 1 {
        // Without stages there is nothing to order.
        let only = f.schedule.unwrap_or(Schedule::OneFOneB);
        let chunks = matches!(only, Schedule::Interleaved | Schedule::ZbV | Schedule::DualPipeV);
        return if allows(f.vpp, 1) && !chunks { vec![(only, 1)] } else { Vec::new() };
    }
    let most = (ask.facts.layers + 2) / pp;
    let mut out = Vec::new();
    for schedule in Schedule::ALL.iter().copied().filter(|s| allows(f.schedule, *s)) {
        let chunks = match schedule {
            Schedule::Naive | Schedule::GPipe | Schedule::OneFOneB | Schedule::ZbH1 => 1..=1,
            Schedule::ZbV | Schedule::DualPipeV => 2..=2,
            Schedule::Interleaved if microbatches.is_multiple_of(pp) => 2..=most,
            Schedule::Interleaved => continue,
        };
        let countable = |v: &u64| microbatches.saturating_mul(*v) <= MOST_STEPS;
        out.extend(chunks.filter(|v| *v <= most && allows(f.vpp, *v) && countable(v)).map(|v| (schedule, v)));
    }
    out
}

/// What data ranks share and between how many: zero, shard group.
pub fn sharings(ask: &Ask, data_ranks: u64) -> Vec<(u8, u64)> {
    let f = ask.fix;
    let mut out = Vec::new();
    if allows(f.zero, 0) && allows(f.shard_group, 1) {
        out.push((0, 1));
    }
    let groups: Vec<u64> = divisors(data_ranks).into_iter().filter(|g| *g > 1 && allows(f.shard_group, *g)).collect();
    for zero in (1..=3).filter(|z| allows(f.zero, *z)) {
        out.extend(groups.iter().map(|g| (zero, *g)));
    }
    // Whoever fixes a stage that one data rank cannot share gets it all the same.
    if out.is_empty() && data_ranks == 1 {
        if let Some(zero) = f.zero.filter(|_| allows(f.shard_group, 1)) {
            out.push((zero, 1));
        }
    }
    out
}

/// Whether gathered parameters are kept, for a ZeRO stage.
pub fn keeps(ask: &Ask, zero: u8) -> Vec<bool> {
    [false, true].into_iter().filter(|k| allows(ask.fix.keep, *k) && (!*k || zero == 3)).collect()
}

/// Orders that were found, by tp, cp, dp, pp.
pub(crate) type Orders = Mutex<FxHashMap<[u64; 4], Vec<Order>>>;

/// Orders of the axes of a layout that put ranks on tiers differently, the stack's own first.
pub(crate) fn orders(ask: &Ask, places: &Places, known: &Orders, l: &Layout) -> Vec<Order> {
    let mut known = known.lock().unwrap_or_else(PoisonError::into_inner);
    known.entry([l.tp, l.cp, l.dp, l.pp]).or_insert_with(|| distinct(ask, places, l)).clone()
}

fn distinct(ask: &Ask, places: &Places, l: &Layout) -> Vec<Order> {
    if let Some(order) = ask.fix.order {
        return vec![order];
    }
    let own = Order::of(ask.stack.habits.stages_inside);
    let sizes = [(Role::Tp, l.tp), (Role::Cp, l.cp), (Role::Dp, l.dp), (Role::Pp, l.pp)];
    let size = |role: &Role| sizes.iter().find(|(r, _)| r == role).map_or(1, |(_, n)| *n);
    let mut seen: Vec<Vec<Vec<Crossed>>> = Vec::new();
    let mut out = Vec::new();
    for order in std::iter::once(own).chain(permutations()) {
        // Axes of one rank stand where they stand in the stack's own order.
        if order != own && unneeded(&order, &own, &size) {
            continue;
        }
        let group = |role: &Role| {
            let digits = joined(order.0.iter().map(|r| (size(r), r == role)));
            places.of(&digits).map(|placement| crossed(&placement))
        };
        let placed = Role::ALL.iter().filter(|r| size(r) > 1).map(group).collect::<Result<Vec<_>, _>>();
        if let Some(placed) = placed.ok().filter(|placed| !seen.contains(placed)) {
            seen.push(placed);
            out.push(order);
        }
    }
    out
}

/// A tier that a group crosses: what it is, and how many members of the tier below it joins.
#[derive(PartialEq)]
struct Crossed {
    tier: Span,
    members: u64,
}

/// The tiers that a group crosses; neighbours of a network that are alike are one.
fn crossed(placement: &Placement) -> Vec<Crossed> {
    let mut out: Vec<Crossed> = Vec::new();
    for span in placement.spans.iter().filter(|s| s.members > 1) {
        // What the others of the same axes do does not depend on more.
        let tier = Span { members: 1, concurrent: 1, uneven: false, ..*span };
        match out.last_mut() {
            Some(last) if last.tier == tier && tier.medium == Medium::Network => last.members *= span.members,
            _ => out.push(Crossed { tier, members: span.members }),
        }
    }
    out
}

/// Whether axes of one rank stand elsewhere than last: the same ranks as another order.
fn unneeded(order: &Order, own: &Order, size: &impl Fn(&Role) -> u64) -> bool {
    let single = |o: &Order| o.0.iter().copied().filter(|r| size(r) == 1).collect::<Vec<_>>();
    let first = order.0.iter().position(|r| size(r) == 1).unwrap_or(4);
    order.0[first..].iter().any(|r| size(r) > 1) || single(order) != single(own)
}

fn permutations() -> impl Iterator<Item = Order> {
    let all = Role::ALL;
    (0..4).flat_map(move |a| {
        (0..4).filter(move |b| *b != a).flat_map(move |b| {
            (0..4).filter(move |c| *c != a && *c != b).map(move |c| {
                let d = 6 - a - b - c;
                Order([all[a], all[b], all[c], all[d]])
            })
        })
    })
}

/// A layout with everything decided but recomputation and order.
#[allow(clippy::too_many_arguments)]
pub fn layout(
    ask: &Ask,
    i: &Inside,
    (pp, dp): (u64, u64),
    (ep, etp): (u64, u64),
    (schedule, vpp): (Schedule, u64),
    (zero, shard_group): (u8, u64),
    keep: bool,
) -> Layout {
    Layout {
        tp: i.tp,
        cp: i.cp,
        pp,
        ep,
        etp,
        dp,
        // Only interleaving is said by vpp; a V has its two chunks anyway.
        vpp,
        zero,
        keep,
        shard_group,
        sp: i.sp,
        cp_method: i.cp_method,
        micro_batch: i.micro_batch,
        microbatches: ask.global_batch / dp / i.micro_batch,
        recompute: Recompute::None,
        schedule,
        order: None,
    }
}

/// Candidates: layouts on all devices, and on fewer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Size {
    /// Layouts that use all devices; cuts, recomputation and FSDP's keep are not counted, orders of axes are.
    pub whole: u64,
    /// The same before orders of axes.
    pub without_orders: u64,
    /// Layouts that leave some idle, orders not counted.
    pub idle: u64,
}

/// Counts the space.
pub fn size(ask: &Ask) -> Size {
    let mut out = Size::default();
    let (places, known) = (Places::new(ask.cluster), Orders::default());
    let mut counts = Counts::default();
    let insides = insides(ask);
    // All that follows depends on these three alone.
    let mut kinds: FxHashMap<(u64, u64, u64), (Inside, u64)> = FxHashMap::default();
    for i in insides {
        kinds.entry((i.tp, i.cp, i.micro_batch)).or_insert((i, 0)).1 += 1;
    }
    for (i, ways) in kinds.into_values() {
        for (pp, dp) in pipelines(ask, &i) {
            let m = ask.global_batch / dp / i.micro_batch;
            let each = ways * counts.of(ask, (i.tp, i.cp), (pp, dp), m);
            if i.tp * i.cp * pp * dp != ask.devices {
                out.idle += each;
                continue;
            }
            let l = layout(ask, &i, (pp, dp), (1, 1), (Schedule::OneFOneB, 1), (0, 1), false);
            out.whole += each * orders(ask, &places, &known, &l).len() as u64;
            out.without_orders += each;
        }
    }
    out
}

/// How many there are of what a pipeline decides, by what that depends on.
#[derive(Default)]
struct Counts {
    experts: FxHashMap<u64, u64>,
    schedules: FxHashMap<(u64, u64, bool), u64>,
    sharings: FxHashMap<u64, u64>,
}

impl Counts {
    /// Ways to split experts, to order micro-batches and to share.
    fn of(&mut self, ask: &Ask, (tp, cp): (u64, u64), (pp, dp): (u64, u64), microbatches: u64) -> u64 {
        let of = |n: usize| n as u64;
        let (ranks, whole) = (tp * cp * dp, microbatches.is_multiple_of(pp));
        *self.experts.entry(ranks).or_insert_with(|| of(experts(ask, ranks).len()))
            * *self
                .schedules
                .entry((pp, microbatches, whole))
                .or_insert_with(|| of(schedules(ask, pp, microbatches).len()))
            * *self.sharings.entry(cp * dp).or_insert_with(|| of(sharings(ask, cp * dp).len()))
    }
}

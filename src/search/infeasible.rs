//! When nothing fits: how much the smallest plan needs, what takes it, and how many devices would do.
//!
//! Of a plan's decisions most only ever add memory, so few plans can be the smallest. One sequence a micro-batch: more
//! hold as many activations more. Every layer computed again, so that a call keeps its input alone, or the parts of it
//! that the search tries. The naive schedule: one micro-batch in flight, which is the least there can be; and a V, whose
//! first stage has embedding and head. ZeRO in one group of all data ranks, at each stage: the larger the group, the
//! smaller the share. As many data ranks as there is room for: their shares are smaller, and each has fewer
//! micro-batches (experts' ranks have to divide those of a stage, so with experts some fewer are tried, too); or as few
//! as can be, since their groups take buffers of their own, more than a small model's states. Sequence parallelism
//! wherever it can be. No parameters kept gathered. What is left is tried: tensor, context, pipeline and expert
//! parallelism against each other, by both cuts of the search. The figure is the smallest of these; what the search
//! knows beside them (other schedules) may be a little smaller. Decisions that are made (`--fix`) are kept.

use super::policy::{policies, Policy};
use super::run::side_by_side;
use super::variant::{places, Variants};
use super::{room, space, Ask, Context};
use crate::predict::predictor::Predictor;
use crate::predict::prices::nearest;
use crate::predict::{Layout, Memory, PredictError, Recompute, Schedule};
use std::collections::HashSet;

/// Most devices that are tried.
const MOST_DEVICES: u64 = 1 << 20;

/// Bytes of a GiB.
const GIB: f64 = (1u64 << 30) as f64;

/// Why no plan fits, in numbers.
#[derive(Clone, Debug, PartialEq)]
pub struct Infeasible {
    /// What the smallest plan needs, of what there is, and what takes most of it.
    pub reason: String,
    /// Bytes of the fullest device in the smallest plan, the margin not included.
    pub smallest_memory: f64,
    /// The smallest plan.
    pub smallest: Layout,
    /// Its layers by stage, where they are not those of the usual cut.
    pub smallest_layers: Option<Vec<u64>>,
    /// The fewest devices on which something fits with the same batch; `None` where 2^20 do not do.
    pub fewest_devices: Option<u64>,
    /// A plan that fits on so many.
    pub fewest: Option<Layout>,
}

/// The fewest devices that something fits on.
#[derive(Clone, Debug, PartialEq)]
pub struct Fewest {
    /// How many.
    pub devices: u64,
    /// A plan that fits on them.
    pub layout: Layout,
}

/// Tells why nothing fits on `ask.devices`, and what would.
///
/// # Errors
/// As predictions; and where the decisions that are made leave no layout at all, naming the rules.
pub fn infeasible(ask: &Ask, predictor: &Predictor) -> Result<Infeasible, PredictError> {
    let smallest = smallest(ask, predictor, 0.0)?.ok_or_else(|| nothing(ask))?;
    let fewest = fewest_devices(ask, predictor)?;
    Ok(Infeasible {
        reason: reason(ask, &smallest),
        smallest_memory: smallest.memory.device,
        smallest: smallest.layout,
        smallest_layers: smallest.layers,
        fewest_devices: fewest.as_ref().map(|f| f.devices),
        fewest: fewest.map(|f| f.layout),
    })
}

/// How often the devices are doubled without need for a percent less of each.
const DOUBLINGS: usize = 3;

/// The fewest devices on which something fits with the batch of `ask`; `None` where 2^20 do not do, or where ever more
/// need no less of each. Plans on fewer devices are among those on more, so the answer is found by doubling and
/// bisection.
///
/// # Errors
/// As predictions.
pub fn fewest_devices(ask: &Ask, predictor: &Predictor) -> Result<Option<Fewest>, PredictError> {
    let limit = limit(ask);
    let on = |devices: u64, enough: f64| smallest(&Ask { devices, ..ask.clone() }, predictor, enough);
    // The states alone need so many. `low` devices do not do, `high` do.
    let states = Context::new(ask, predictor)?.fewest;
    let (mut low, mut high) = (states.saturating_sub(1), ask.devices.max(states).clamp(1, MOST_DEVICES));
    let (mut least, mut without_gain) = (f64::INFINITY, 0);
    let mut found = loop {
        let tried = on(high, limit)?;
        let bytes = tried.as_ref().map_or(f64::INFINITY, |s| s.memory.device);
        match tried.filter(|_| bytes <= limit) {
            Some(found) => break found,
            None if high == MOST_DEVICES || without_gain == DOUBLINGS => return Ok(None),
            None => without_gain = if bytes < 0.99 * least { 0 } else { without_gain + 1 },
        }
        (least, low, high) = (least.min(bytes), high, (2 * high).min(MOST_DEVICES));
    };
    // A plan that fits may leave devices idle, and then fits on fewer at once.
    high = found.layout.devices().min(high);
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        match on(middle, limit)?.filter(|s| s.memory.device <= limit) {
            Some(less) => {
                high = less.layout.devices().min(middle);
                found = less;
            }
            None => low = middle,
        }
    }
    Ok(Some(Fewest { devices: high, layout: found.layout }))
}

/// Bytes of a device that a plan may be predicted to take.
fn limit(ask: &Ask) -> f64 {
    ask.room.bytes / (1.0 + ask.room.margin)
}

/// A plan with the memory of its fullest stage.
struct Small {
    layout: Layout,
    /// Where they are not those of the usual cut.
    layers: Option<Vec<u64>>,
    stage: usize,
    memory: Memory,
}

/// The smallest plan, or one of the first that take no more than `enough` bytes of a device.
fn smallest(ask: &Ask, predictor: &Predictor, enough: f64) -> Result<Option<Small>, PredictError> {
    let mut best: Option<Small> = None;
    let context = Context::new(ask, predictor)?;
    // What may be smaller in parts, with the bytes that it takes whatever is computed again, and those that it takes.
    let mut others = Vec::new();
    for some in small_layouts(ask).chunks(SIDE_BY_SIDE) {
        let found = side_by_side(some, |layout, _| fullest(&context, layout.clone(), None))?;
        others.extend(found.iter().flatten().map(|s| (resting(&s.memory), s.memory.device, s.layout.clone())));
        if keep_smaller(&mut best, found, enough) {
            return Ok(best);
        }
    }
    for some in others.chunks(SIDE_BY_SIDE) {
        let least = best.as_ref().map_or(f64::INFINITY, |b| b.memory.device);
        let found = side_by_side(some, |(resting, device, layout), _| {
            let parts = || again(ask).into_iter().map(|recompute| Layout { recompute, ..layout.clone() });
            let mut tries: Vec<(Layout, Option<Vec<u64>>)> = Vec::new();
            if *resting < least {
                tries.extend(parts().skip(1).map(|layout| (layout, None)));
            }
            if *device < NEAR * least && layout.pp > 1 {
                let layers = balanced(&context, layout)?;
                tries.extend(layers.iter().flat_map(|l| parts().map(|layout| (layout, Some(l.clone())))));
            }
            let all = tries.into_iter().map(|(l, layers)| fullest(&context, l, layers.as_deref()));
            let all = all.collect::<Result<Vec<_>, _>>()?;
            Ok(all.into_iter().flatten().min_by(|a, b| a.memory.device.total_cmp(&b.memory.device)))
        })?;
        if keep_smaller(&mut best, found, enough) {
            return Ok(best);
        }
    }
    Ok(best)
}

/// How many times as large as the smallest a plan may be by the usual cut that another cut is tried.
const NEAR: f64 = 1.2;

/// The other cut of a layout that the search tries.
fn balanced(context: &Context, layout: &Layout) -> Result<Option<Vec<u64>>, PredictError> {
    let plain = Layout { recompute: Recompute::None, ..layout.clone() };
    let near = nearest(&places(context, &plain));
    let variant = Variants::default().get(context, &plain, 0, &near)?;
    let usual = room::usual(context, layout);
    Ok(usual.and_then(|usual| room::balanced(&context.calls.layer, layout, &usual, &variant.calls)))
}

/// Plans that are looked at between two looks at the smallest.
const SIDE_BY_SIDE: usize = 256;

/// A plan with its fullest stage; `None` where the model has no layers for its stages.
fn fullest(context: &Context, layout: Layout, layers: Option<&[u64]>) -> Result<Option<Small>, PredictError> {
    if room::usual(context, &layout).is_none() {
        return Ok(None);
    }
    let stages = context.predictor.memory(&context.ask.job(&layout, layers))?;
    let fullest = stages.into_iter().enumerate().max_by(|a, b| a.1.device.total_cmp(&b.1.device));
    Ok(fullest.map(|(stage, memory)| Small { layout, layers: layers.map(<[u64]>::to_vec), stage, memory }))
}

/// Keeps the smallest; whether that is small enough.
fn keep_smaller(best: &mut Option<Small>, found: Vec<Option<Small>>, enough: f64) -> bool {
    for found in found.into_iter().flatten() {
        if best.as_ref().is_none_or(|b| found.memory.device < b.memory.device) {
            *best = Some(found);
        }
    }
    best.as_ref().is_some_and(|b| b.memory.device <= enough)
}

/// Bytes of states and of what is outside of the allocator.
fn resting(memory: &Memory) -> f64 {
    let rests = ["parameters", "master weights", "optimizer moments", "context", "communicators"];
    memory.parts.iter().filter(|p| rests.contains(&p.name)).map(|p| p.bytes).sum()
}

/// The layouts that can be the smallest, those on most devices first.
fn small_layouts(ask: &Ask) -> Vec<Layout> {
    let mut out = Vec::new();
    for same in space::insides(ask).chunk_by(|a, b| without_micro_batch(a) == without_micro_batch(b)) {
        if same[0].tp > 1
            && !same[0].sp
            && ask.fix.sp.is_none()
            && (ask.seq_len / same[0].cp).is_multiple_of(same[0].tp)
        {
            continue;
        }
        // Whatever data ranks larger micro-batches allow, the smallest one allows, unless their number is decided.
        let few = if ask.fix.microbatches.is_none() { 1 } else { same.len() };
        let mut known = HashSet::new();
        for inside in &same[..few] {
            let mut pipelines = space::pipelines(ask, inside);
            pipelines.sort_by_key(|(pp, dp)| (*pp, std::cmp::Reverse(*dp)));
            for same_stages in pipelines.chunk_by(|a, b| a.0 == b.0) {
                let (most, least) = (same_stages[0].1, same_stages[same_stages.len() - 1].1);
                for at in same_stages.iter().filter(|(_, dp)| 2 * dp > most || *dp == least) {
                    let new = |l: &Layout| known.insert((l.dp == least, kind(l)));
                    out.extend(at_most(ask, inside, *at).into_iter().filter(new));
                }
            }
        }
    }
    out.sort_by_key(|l| std::cmp::Reverse(l.devices()));
    out
}

fn without_micro_batch(i: &space::Inside) -> space::Inside {
    space::Inside { micro_batch: 1, ..*i }
}

/// What tells layouts of one inside apart that have as many data ranks as there is room for.
fn kind(l: &Layout) -> (u64, u64, u64, Schedule, u64, u8) {
    (l.pp, l.ep, l.etp, l.schedule, l.vpp, l.zero)
}

/// The layouts with these stages and data ranks that can be the smallest.
fn at_most(ask: &Ask, inside: &space::Inside, (pp, dp): (u64, u64)) -> Vec<Layout> {
    let microbatches = ask.global_batch / dp / inside.micro_batch;
    let schedules = least_in_flight(space::schedules(ask, pp, microbatches));
    let sharings = largest_groups(space::sharings(ask, inside.cp * dp));
    // An expert is split over the tensor-parallel ranks or not at all.
    let usual = |etp: u64| etp == 1 || etp == inside.tp || ask.fix.etp.is_some();
    let experts = space::experts(ask, inside.tp * inside.cp * dp).into_iter().filter(|(_, etp)| usual(*etp));
    let mut out = Vec::new();
    for experts in experts {
        for schedule in &schedules {
            for sharing in &sharings {
                let keep = ask.fix.keep == Some(true) && sharing.0 == 3;
                let l = space::layout(ask, inside, (pp, dp), experts, *schedule, *sharing, keep);
                out.push(Layout { recompute: again(ask).swap_remove(0), ..l });
            }
        }
    }
    out
}

/// The naive schedule where it is allowed, and a V, which cuts layers in another way; else all that are.
fn least_in_flight(all: Vec<(Schedule, u64)>) -> Vec<(Schedule, u64)> {
    match all.iter().any(|(s, _)| *s == Schedule::Naive) {
        true => all.into_iter().filter(|(s, _)| matches!(s, Schedule::Naive | Schedule::ZbV)).collect(),
        false => all,
    }
}

/// Of each ZeRO stage the largest group.
fn largest_groups(all: Vec<(u8, u64)>) -> Vec<(u8, u64)> {
    let largest = |zero: u8| all.iter().copied().filter(|(z, _)| *z == zero).max();
    (0..=3).filter_map(largest).collect()
}

/// Everything computed again, or what the search tries beside it: while a layer is computed again all that it saves is
/// there, which can be more than a few layers save without some part.
fn again(ask: &Ask) -> Vec<Recompute> {
    policies(ask).iter().map(Policy::priced_as).collect()
}

fn reason(ask: &Ask, s: &Small) -> String {
    let gib = |bytes: f64| format!("{:.2} GiB", bytes / GIB);
    let l = &s.layout;
    let most = s.memory.parts.iter().max_by(|a, b| a.bytes.total_cmp(&b.bytes));
    let part = most.map_or(String::new(), |p| format!("; most of it is {}, {}", p.name, gib(p.bytes)));
    let whose = if ask.room.given { "the limit" } else { "a device" };
    let stage = match l.pp {
        1 => "every device".to_string(),
        pp => format!("stage {} of {pp}", s.stage + 1),
    };
    format!(
        "no plan of {} fits: the smallest on at most {} devices (tp={}, cp={}, pp={}, ep={}, dp={}, zero={}, \
         recompute={}) takes {} on {stage}{part}; {} of {whose} leave {} beside a margin of {:.0} %",
        ask.facts.name,
        ask.devices,
        l.tp,
        l.cp,
        l.pp,
        l.ep,
        l.dp,
        l.zero,
        l.recompute,
        gib(s.memory.device),
        gib(ask.room.bytes),
        gib(limit(ask)),
        100.0 * ask.room.margin,
    )
}

/// The decisions that are made leave nothing.
fn nothing(ask: &Ask) -> PredictError {
    let rules: Vec<String> = super::rejected(ask).into_iter().map(|r| r.rule).collect();
    PredictError::Missing {
        entity: format!("{} on {} devices", ask.facts.name, ask.devices),
        what: "a layout that the decisions of --fix allow".to_string(),
        instead: match rules.is_empty() {
            true => "leave one of them out".to_string(),
            false => rules.join("; "),
        },
    }
}

//! What follows from a plan for every framework: chunks, groups, the order of ranks.

use super::Launch;
use crate::predict::cut::{chunks_of, cut};
use crate::predict::{Layout, Order, Recompute, Role, Schedule};

/// The layout as `--fix` takes it, every key.
pub(super) fn words(l: &Layout) -> String {
    let mut out = format!(
        "tp={},cp={},pp={},ep={},etp={},dp={},vpp={},mbs={},microbatches={},zero={},shard_group={},keep={},sp={},\
         cp_method={},schedule={},recompute={}",
        l.tp,
        l.cp,
        l.pp,
        l.ep,
        l.etp,
        l.dp,
        l.vpp,
        l.micro_batch,
        l.microbatches,
        l.zero,
        l.shard_group,
        u8::from(l.keep),
        u8::from(l.sp),
        l.cp_method,
        l.schedule,
        l.recompute
    );
    if let Some(order) = l.order {
        out += &format!(",layout={order}");
    }
    out
}

/// Numbers joined by plus signs, as `--fix` takes a list.
pub(super) fn sum_of(numbers: &[u64]) -> String {
    let words: Vec<String> = numbers.iter().map(u64::to_string).collect();
    words.join("+")
}

/// Layers of every chunk of a pipeline, in the order of the forward. `None` where the stages' layers are not
/// those of the model.
pub(super) fn chunks(launch: &Launch) -> Option<Vec<u64>> {
    let (l, layers) = (launch.layout, launch.decoder.depth());
    let count = l.pp.checked_mul(chunks_of(l.schedule, l.vpp))?;
    // More chunks than layers and ends are no layout, and may be too many to list.
    if launch.layers_per_stage.len() as u64 != l.pp || count > layers as u64 + 2 {
        return None;
    }
    // Embedding, layers, head: only the layers are counted.
    let calls = [(0, 1), (1, layers), (2, 1)];
    let cut = cut(&calls, &[false, true, false], l.schedule, (l.pp, l.vpp), Some(launch.layers_per_stage)).ok()?;
    let mut parts = vec![0; (l.pp as usize) * cut.chunks()];
    for (stage, of_stage) in cut.stages.iter().enumerate() {
        for (chunk, calls) in of_stage.iter().enumerate() {
            let part = l.schedule.kind().part(l.pp as u32, stage as u32, chunk as u32);
            let layers = calls.iter().filter(|(f, _)| *f == 1).map(|(_, n)| *n as u64).sum();
            *parts.get_mut(part as usize)? = layers;
        }
    }
    Some(parts)
}

/// The number that all are, if they are one.
pub(super) fn same(numbers: &[u64]) -> Option<u64> {
    let first = *numbers.first()?;
    numbers.iter().all(|n| *n == first).then_some(first)
}

/// Whether ranks lie as in an order: axes of one rank lie anywhere.
pub(super) fn lies_as(order: Order, wanted: Order, l: &Layout) -> bool {
    let degree = |role: &Role| match role {
        Role::Tp => l.tp,
        Role::Cp => l.cp,
        Role::Dp => l.dp,
        Role::Pp => l.pp,
    };
    let split = |o: Order| o.0.into_iter().filter(|r| degree(r) > 1).collect::<Vec<_>>();
    split(order) == split(wanted)
}

/// Whole layers that are computed again, where a framework counts them by chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Again {
    /// None at all.
    Nothing,
    /// All.
    All,
    /// The first so many of each chunk.
    Each(u64),
    /// No such number gives the plan's; with this one every stage computes again at least what it should.
    NoLess(u64),
}

/// What recomputation of whole layers is by chunk; `None` where it is not about whole layers.
pub(super) fn again(launch: &Launch, chunks: &[u64]) -> Option<Again> {
    let layers: u64 = chunks.iter().sum();
    let stages = launch.layers_per_stage;
    match &launch.layout.recompute {
        Recompute::None => Some(Again::Nothing),
        Recompute::Full => Some(Again::All),
        Recompute::Selective(_) => None,
        Recompute::Layers(0) => Some(Again::Nothing),
        Recompute::Layers(n) if *n >= layers => Some(Again::All),
        Recompute::Layers(n) => Some(first_of_each(chunks, |k| {
            let all: u64 = chunks.iter().map(|c| k.min(*c)).sum();
            (all >= *n, all == *n)
        })),
        Recompute::Stages(counts) if counts.iter().all(|n| *n == 0) => Some(Again::Nothing),
        Recompute::Stages(counts) if counts.iter().zip(stages).all(|(n, all)| n >= all) => Some(Again::All),
        Recompute::Stages(counts) => {
            let of_stage = by_stage(launch.layout.schedule, stages.len(), chunks);
            Some(first_of_each(chunks, |k| {
                let got = of_stage.iter().map(|c| c.iter().map(|size| k.min(*size)).sum::<u64>());
                let pairs: Vec<(u64, u64)> = got.zip(counts.iter().copied()).collect();
                (pairs.iter().all(|(got, n)| got >= n), pairs.iter().all(|(got, n)| got == n))
            }))
        }
    }
}

/// The least number of first layers that is enough, and whether it is exact.
fn first_of_each(chunks: &[u64], enough: impl Fn(u64) -> (bool, bool)) -> Again {
    let most = chunks.iter().copied().max().unwrap_or(0);
    match (0..=most).find(|k| enough(*k).0) {
        Some(k) if enough(k).1 => Again::Each(k),
        Some(k) => Again::NoLess(k),
        None => Again::All,
    }
}

/// Chunks of each stage, from chunks in the order of the forward.
fn by_stage(schedule: Schedule, stages: usize, chunks: &[u64]) -> Vec<Vec<u64>> {
    let mut out = vec![Vec::new(); stages];
    for (part, layers) in chunks.iter().enumerate() {
        let (stage, _) = schedule.kind().holder(stages as u32, part as u32);
        if let Some(of_stage) = out.get_mut(stage as usize) {
            of_stage.push(*layers);
        }
    }
    out
}

/// Copies of what `zero` shards: data ranks over a shard group.
pub(super) fn copies(l: &Layout) -> u64 {
    l.dp.saturating_mul(l.cp) / l.shard_group.max(1)
}

/// The greatest common divisor.
pub(super) fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 {
        a
    } else {
        gcd(b, a % b)
    }
}

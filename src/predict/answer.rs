//! From a played step to a [`Prediction`].

use super::cut::Cut;
use super::predictor::Job;
use super::{Part, PartKind, Prediction, Stage};
use autoshard_cost::collectives::Kind;
use autoshard_cost::kernels::How;
use autoshard_cost::layout::filled;
use autoshard_passes::predict::price::Priced;
use autoshard_passes::predict::step::StepTime;
use autoshard_passes::profile::{Item, Profile, Work};
use std::sync::Arc;

/// What a step takes, where its time goes, and what to know about it.
pub(super) fn answer(
    job: &Job,
    functions: &[Arc<Profile>],
    calls: &[(usize, usize)],
    cut: &Cut,
    priced: &[Priced],
    time: &StepTime,
) -> Prediction {
    let l = job.layout;
    // A function's FLOPs are those of all ranks that share a micro-batch.
    let times = (l.dp * l.microbatches) as f64;
    let ranks = (l.tp * l.cp) as f64;
    let mut forward = [0.0; 3];
    for (f, count) in calls {
        let (p, n) = (&functions[*f], *count as f64 * times);
        forward[0] += n * (p.product_flops + p.attention_flops_causal);
        forward[1] += n * (p.product_flops + p.attention_flops);
        forward[2] += n * ranks * flops(&p.recompute);
    }
    // Of the model's layers, stage by stage.
    let again = cut.layers.iter().enumerate().map(|(i, n)| l.recompute.share(i, &cut.layers) * *n as f64);
    let share = again.sum::<f64>() / cut.layers.iter().sum::<u64>().max(1) as f64;
    let width = job.stack.error;
    Prediction {
        step_seconds: time.seconds,
        // A share of the time either way, so that a range is never below zero.
        low: time.seconds / (1.0 + width),
        high: time.seconds * (1.0 + width),
        parts: parts(job, time),
        model_flops_causal: 3.0 * forward[0],
        model_flops_full: 3.0 * forward[1],
        hardware_flops: 3.0 * forward[0] + forward[2] * share,
        stages: stages(cut, time),
        marks: marks(job, cut, priced),
    }
}

/// FLOPs of a list of items on one rank.
fn flops(items: &[Item]) -> f64 {
    let of = |w: &Work| match w {
        Work::Product { product: p, .. } => 2.0 * p.m * p.n * p.k * p.count,
        Work::Attention { attention: a, count } => {
            2.0 * a.batch * a.heads * a.queries * a.keys * (a.head_dim + a.value_dim) * a.share * count
        }
        Work::Loop { .. } | Work::Message(_) => 0.0,
    };
    items.iter().map(|i| of(&i.work)).sum()
}

fn stages(cut: &Cut, time: &StepTime) -> Vec<Stage> {
    let busy = |i: usize| match time.stages.get(i) {
        Some(busy) => *busy,
        None => time.compute.seconds() + time.messages.exposed(),
    };
    cut.layers.iter().enumerate().map(|(i, n)| Stage { layers: *n, busy: busy(i), memory: None }).collect()
}

fn parts(job: &Job, time: &StepTime) -> Vec<Part> {
    let part = |name: &str, kind, seconds, bytes| Part {
        name: name.to_string(),
        kind,
        seconds,
        exposed: true,
        bytes,
        tier: String::new(),
    };
    let c = &time.compute;
    let mut out = vec![
        part("products", PartKind::Products, c.products, 0.0),
        part("attention", PartKind::Attention, c.attention, 0.0),
        part("loops", PartKind::Loops, c.loops, c.loop_bytes),
        part("launch gaps", PartKind::LaunchGaps, c.gaps, 0.0),
    ];
    for t in &time.messages.0 {
        let name = format!("{} {}", t.group.name(), spelt(t.kind));
        let tier = job.cluster.tiers.get(t.tier as usize).map_or(String::new(), |t| t.name.clone());
        let one = |seconds: f64, exposed| Part {
            name: name.clone(),
            kind: PartKind::Collective,
            seconds,
            exposed,
            bytes: t.bytes,
            tier: tier.clone(),
        };
        out.push(one(t.exposed, true));
        out.push(one(t.hidden, false));
    }
    out.push(part("optimizer", PartKind::Optimizer, time.optimizer, 0.0));
    out.push(part("pipeline bubble", PartKind::Bubble, time.bubble, 0.0));
    out.push(part("slower beside messages", PartKind::Overhead, time.contention, 0.0));
    out.push(part("step overhead", PartKind::Overhead, time.overhead, 0.0));
    out.retain(|p| p.seconds > 0.0);
    out
}

fn spelt(kind: Kind) -> &'static str {
    match kind {
        Kind::AllReduce => "all-reduce",
        Kind::AllGather => "all-gather",
        Kind::ReduceScatter => "reduce-scatter",
        Kind::AllToAll => "all-to-all",
        Kind::SendRecv => "send",
    }
}

/// What the estimates lean on beyond measurements.
fn marks(job: &Job, cut: &Cut, priced: &[Priced]) -> Vec<String> {
    let mut out: Vec<String> = cut.note.iter().cloned().collect();
    let devices = job.layout.devices();
    if let Some(most) = job.cluster.devices.or(job.cluster.capacity()).filter(|most| devices > *most) {
        out.push(format!("{} has {most} devices; for {devices} its last tier is repeated", job.cluster.id));
    }
    let used = filled(job.cluster, devices);
    for (tier, used) in job.cluster.tiers.iter().zip(&used.tiers) {
        if let (Some(all), Some(some)) = (tier.fanout, used.fanout) {
            if some < all {
                out.push(format!("{some} of {all} members of each {} are used, so that all are equal", tier.name));
            }
        }
    }
    let worst = priced
        .iter()
        .flat_map(|p| [&p.forward, &p.recompute, &p.backward_input, &p.backward_weight])
        .filter_map(|p| p.how)
        .max();
    out.extend(
        match worst {
            None | Some(How::Interpolated) => None,
            Some(How::Extrapolated) => Some("some kernels or messages are beyond their tables"),
            Some(How::Related) => Some("some times are a related device's, scaled"),
            Some(How::Roofline) => Some("some times are from the rates of units and links alone, without a table"),
        }
        .map(str::to_string),
    );
    out
}

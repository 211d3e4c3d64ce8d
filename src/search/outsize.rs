//! What is too large for any plan: micro-batches by what a call takes, models by their states.

use super::base::alone;
use super::policy::{policies, Policy};
use super::space::Inside;
use super::{Ask, Context};
use crate::predict::memory::{Functions, Stage, StageMoments};
use crate::predict::predictor::data;
use crate::predict::{CpMethod, Layout, PredictError};
use autoshard_passes::predict::step::Data;
use autoshard_passes::profile::{Parameters, Saved};

/// Bytes that the allocator of a device may hold.
pub(crate) fn limit(ask: &Ask) -> f64 {
    ask.room.bytes / (1.0 + ask.room.margin) / ask.stack.habits.memory.allocator
}

/// Whether one call of some function by itself does not fit a device, however it computes again and whatever else is
/// split: its states left out, nothing held beside it. Then no plan with this inside fits, and none with larger
/// micro-batches.
///
/// # Errors
/// As predictions.
pub(crate) fn is_too_large(context: &Context, inside: &Inside) -> Result<bool, PredictError> {
    let ask = context.ask;
    let limit = limit(ask);
    // Where gradients are shared calls save less.
    let layout = Layout { zero: 2, ..alone(ask, inside) };
    // The least by function over all ways to recompute; what is no layer is the same in all.
    let mut least: Vec<f64> = Vec::new();
    for policy in policies(ask) {
        let layout = Layout { recompute: policy.priced_as(), ..layout.clone() };
        let saved = context.predictor.saved(&ask.job(&layout, None))?;
        let shares: &[f64] = if policy == Policy::Layers { &[0.0, 1.0] } else { &[1.0] };
        for share in shares {
            let bytes = moving(context, &layout, &saved, *share);
            least.resize(bytes.len(), f64::INFINITY);
            least.iter_mut().zip(bytes).for_each(|(least, bytes)| *least = least.min(bytes));
        }
        let beside = least.iter().zip(&context.calls.layer).any(|(bytes, layer)| !layer && *bytes > limit);
        if beside || least.iter().all(|bytes| *bytes <= limit) {
            return Ok(beside);
        }
    }
    Ok(true)
}

/// Bytes of a model's states on all devices together, at the least: each parameter once, however it is split and shared.
///
/// # Errors
/// As predictions.
pub(crate) fn least_states(context: &Context) -> Result<f64, PredictError> {
    let ask = context.ask;
    let inside = Inside { tp: 1, sp: false, cp: 1, cp_method: CpMethod::Ring, micro_batch: 1 };
    // Gradients that come to be in the one backward of a step are no states.
    let layout = Layout { microbatches: 1, ..alone(ask, &inside) };
    let job = ask.job(&layout, None);
    let saved = context.predictor.saved(&job)?;
    let parameters: Vec<Parameters> = context.unsplit.functions.iter().map(|f| f.parameters).collect();
    let f = Functions { saved: &saved, parameters: &parameters, layer: &context.calls.layer, boundary: 0.0 };
    let of = |zero: u8| {
        let data = Data { zero, ..data(&job) };
        let chunks = [context.calls.order.clone()];
        let stage = Stage { job: &job, f: &f, data: &data, chunks: &chunks, share: 0.0 };
        stage.still(stage.elements(), 0.0)
    };
    Ok((0..=3).map(of).fold(f64::INFINITY, f64::min))
}

/// Bytes that a call of each function needs by itself. Experts depend on how they are split: what has some counts
/// nothing.
fn moving(context: &Context, layout: &Layout, saved: &[Saved], share: f64) -> Vec<f64> {
    let calls = &context.calls;
    let job = context.ask.job(layout, None);
    let (data, moments) = (data(&job), StageMoments::of_one_call());
    let parameters = vec![Parameters::default(); saved.len()];
    let f = Functions { saved, parameters: &parameters, layer: &calls.layer, boundary: 0.0 };
    let of = |i: usize| match calls.experts[i] {
        true => 0.0,
        false => Stage { job: &job, f: &f, data: &data, chunks: &[vec![(i, 1)]], share }.moving(&moments),
    };
    (0..saved.len()).map(of).collect()
}

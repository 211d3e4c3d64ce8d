//! What decides a micro-batch's kernels, and the bound of all plans that are made of it.

use super::space::{self, Inside};
use super::{Ask, Context, Objective};
use crate::predict::places::groups;
use crate::predict::prices::nearest;
use crate::predict::{Layout, PredictError, Schedule};
use autoshard_cost::kernels::Product;
use autoshard_passes::predict::price::Priced;
use autoshard_passes::profile::{Profile, Work};

/// Seconds of one call of a function.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Seconds {
    /// Forward.
    pub forward: f64,
    /// Gradients of activations.
    pub input: f64,
    /// Gradients of weights.
    pub weight: f64,
    /// What is computed again.
    pub again: f64,
}

impl Seconds {
    /// Of a function's phases.
    pub fn of(p: &Priced) -> Seconds {
        Seconds {
            forward: p.forward.seconds(),
            input: p.backward_input.seconds(),
            weight: p.backward_weight.seconds(),
            again: p.recompute.seconds(),
        }
    }

    /// Without recomputation.
    pub fn once(&self) -> f64 {
        self.forward + self.input + self.weight
    }
}

/// An [`Inside`] with its bound.
#[derive(Clone, Copy, Debug)]
pub struct Base {
    /// Its degrees.
    pub inside: Inside,
    /// Seconds of a micro-batch through the whole model, at the least.
    pub work: f64,
    /// What every plan of it counts at the least, by the objective.
    pub bound: f64,
}

/// The layout whose profile stands for an [`Inside`]: experts not split.
fn alone(ask: &Ask, i: &Inside) -> Layout {
    space::layout(ask, i, (1, 1), (1, 1), (Schedule::OneFOneB, 1), (0, 1), false)
}

/// Prices an [`Inside`]. Experts depend on how they are split: of them only FLOPs count, at the fastest rate.
///
/// # Errors
/// Sizes that no module has.
pub(crate) fn base(context: &Context, i: Inside, expert_flops: f64) -> Result<Base, PredictError> {
    let ask = context.ask;
    let layout = alone(ask, &i);
    let profiles = context.predictor.profiles_anew(&ask.job(&layout, None))?;
    let without: Vec<Profile>;
    let functions = match expert_flops > 0.0 {
        true => {
            without = profiles.functions.iter().map(without_experts).collect();
            &without
        }
        false => &profiles.functions,
    };
    let places = nearest(&groups(&ask.job(&layout, None)));
    let priced = context.prices.price(functions, &places, i.tp)?;
    let once = |(f, n): &(usize, usize)| *n as f64 * Seconds::of(&priced[*f]).once();
    let experts = expert_flops * i.micro_batch as f64 / (i.tp * i.cp) as f64 / context.fastest;
    let work = profiles.calls.iter().map(once).sum::<f64>() + EXPERTS_AT_LEAST * experts;
    let sets = (ask.global_batch / i.micro_batch) as f64;
    let device_seconds = work * sets * (i.tp * i.cp) as f64;
    let bound = match ask.objective {
        // Failures only make it longer.
        Objective::StepTime | Objective::Goodput => device_seconds / ask.devices as f64,
        Objective::Cost => device_seconds,
    };
    Ok(Base { inside: i, work, bound })
}

/// Share of the time at the fastest known rate that products of experts take at least: some shape may be faster than
/// the one that the rate is of.
const EXPERTS_AT_LEAST: f64 = 0.9;

fn without_experts(p: &Profile) -> Profile {
    let mut out = p.clone();
    for list in [&mut out.forward, &mut out.backward_input, &mut out.backward_weight] {
        list.retain(|item| !item.expert);
    }
    out
}

/// FLOPs of all experts' products, forward and backward, for one sequence.
///
/// # Errors
/// As [`base`].
pub(crate) fn expert_flops(context: &Context) -> Result<f64, PredictError> {
    let ask = context.ask;
    if ask.facts.experts == 0 {
        return Ok(0.0);
    }
    let inside = Inside { tp: 1, sp: false, cp: 1, cp_method: crate::predict::CpMethod::Ring, micro_batch: 1 };
    let layout = alone(ask, &inside);
    let profiles = context.predictor.profiles_anew(&ask.job(&layout, None))?;
    let flops = |p: &Profile| -> f64 {
        let lists = [&p.forward, &p.backward_input, &p.backward_weight];
        lists.into_iter().flatten().filter(|item| item.expert).map(|item| product_flops(&item.work)).sum()
    };
    Ok(profiles.calls.iter().map(|(f, n)| *n as f64 * flops(&profiles.functions[*f])).sum())
}

fn product_flops(work: &Work) -> f64 {
    match work {
        Work::Product { product: Product { m, n, k, count, .. }, .. } => 2.0 * m * n * k * count,
        Work::Attention { .. } | Work::Loop { .. } | Work::Message(_) => 0.0,
    }
}

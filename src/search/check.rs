//! The lower bounds of plans that no search has chosen: what a certificate is checked with.

use super::expand::Expansion;
use super::policy::{policies, Policy};
use super::space::Inside;
use super::variant::{places, Variants};
use super::{room, Ask, Context};
use crate::predict::predictor::{cut_of, Predictor};
use crate::predict::prices::nearest;
use crate::predict::{Layout, Module, PredictError, Recompute};
use std::collections::HashMap;

/// A plan to bound: its layout, and the decoder layers of each stage where it is not the usual cut.
pub type Plan = (Layout, Option<Vec<u64>>);

/// The lower bound of a plan by the objective, as the search computes it before it simulates the plan: with every
/// group where the layout's order of axes puts it, the larger of the closed form and of the pipeline that is played
/// without data parallelism.
///
/// # Errors
/// As predictions: sizes that no module has, a cut that cannot be, a group that the cluster has no place for.
pub fn lower_bound(
    ask: &Ask,
    predictor: &Predictor,
    layout: &Layout,
    layers: Option<&[u64]>,
) -> Result<f64, PredictError> {
    let plans = [(layout.clone(), layers.map(<[u64]>::to_vec))];
    lower_bounds(ask, predictor, &plans).map(|bounds| bounds[0])
}

/// The lower bounds of many plans, in their order. What plans share is priced once.
///
/// # Errors
/// As [`lower_bound`], on the first plan that has one.
pub fn lower_bounds(ask: &Ask, predictor: &Predictor, plans: &[Plan]) -> Result<Vec<f64>, PredictError> {
    let context = Context::new(ask, predictor)?;
    let mut expansions: HashMap<(Inside, Vec<Module>), Expansion> = HashMap::new();
    plans
        .iter()
        .map(|(layout, layers)| {
            let key = (inside(layout), modules(&layout.recompute));
            let expansion = expansions.entry(key).or_insert_with(|| Expansion::of(&context));
            let job = ask.job(layout, layers.as_deref());
            let cut = cut_of(&job, &*predictor.profiles(&job)?)?;
            let groups = places(&context, layout);
            let closed = expansion.bound(layout, &cut, 0, &groups, false)?;
            Ok(closed.max(expansion.bound(layout, &cut, 0, &groups, true)?))
        })
        .collect()
}

/// What the search may compute again in a plan of a model, as layouts say it: nothing stands for as few whole layers
/// as memory wants.
pub fn recomputations(ask: &Ask) -> Vec<Recompute> {
    let said = |policy| match policy {
        Policy::Layers => Recompute::None,
        Policy::Said(said) => said,
    };
    policies(ask).into_iter().map(said).collect()
}

/// The cuts of a layout that the search tries, as decoder layers of each stage: `None` is the usual one, behind it the
/// balanced one where that differs. Empty where the model has no layers for so many chunks.
///
/// # Errors
/// As [`lower_bound`].
pub fn cuts(ask: &Ask, predictor: &Predictor, layout: &Layout) -> Result<Vec<Option<Vec<u64>>>, PredictError> {
    let context = Context::new(ask, predictor)?;
    let near = nearest(&places(&context, layout));
    let plain = Layout { recompute: Recompute::None, ..layout.clone() };
    let variant = Variants::default().get(&context, &plain, 0, &near)?;
    let Some(usual) = room::usual(&context, layout) else { return Ok(Vec::new()) };
    let balanced = room::balanced(&context.calls.layer, layout, &usual, &variant.calls);
    Ok(std::iter::once(None).chain(balanced.map(Some)).collect())
}

fn inside(l: &Layout) -> Inside {
    Inside { tp: l.tp, sp: l.sp, cp: l.cp, cp_method: l.cp_method, micro_batch: l.micro_batch }
}

/// What selective recomputation computes again; expansions tell such sets apart by numbers of their own.
fn modules(recompute: &Recompute) -> Vec<Module> {
    match recompute {
        Recompute::Selective(modules) => modules.clone(),
        Recompute::None | Recompute::Full | Recompute::Layers(_) | Recompute::Stages(_) => Vec::new(),
    }
}

//! What experts take at the least, by how they are split: known before anything else of a plan is.

use super::base::alone;
use super::space::Inside;
use super::{Ask, Context};
use crate::predict::places::groups;
use crate::predict::prices::nearest;
use crate::predict::{CpMethod, Layout, PredictError};
use autoshard_passes::predict::price::{Phase, Priced};
use autoshard_passes::profile::Profile;
use rustc_hash::FxHashMap;
use std::sync::{Mutex, PoisonError};

/// Seconds of experts for a micro-batch through the whole model on one rank.
#[derive(Debug, Default)]
pub(crate) struct Experts {
    known: Mutex<FxHashMap<Key, f64>>,
}

/// Sequences over ranks that share them, as a fraction in lowest terms; experts' degrees.
type Key = ((u64, u64), (u64, u64));

impl Experts {
    /// Seconds of the work and messages of experts with their ranks next to each other, what the host adds left out.
    /// Experts see tokens, however these came to be on a rank: of all insides with as many tokens a rank one is priced.
    ///
    /// # Errors
    /// As predictions.
    pub fn seconds(&self, context: &Context, i: &Inside, degrees: (u64, u64)) -> Result<f64, PredictError> {
        let tokens = lowest(i.micro_batch, i.tp * i.cp);
        let key = (tokens, degrees);
        let known = || self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(found) = known().get(&key) {
            return Ok(*found);
        }
        let made = priced(context, tokens, degrees)?;
        known().insert(key, made);
        Ok(made)
    }
}

fn priced(context: &Context, tokens: (u64, u64), (ep, etp): (u64, u64)) -> Result<f64, PredictError> {
    let ask: &Ask = context.ask;
    let (micro_batch, cp) = tokens;
    let inside = Inside { tp: 1, sp: false, cp, cp_method: CpMethod::Ring, micro_batch };
    let layout = Layout { ep, etp, ..alone(ask, &inside) };
    let job = ask.job(&layout, None);
    let profiles = context.predictor.profiles_anew(&job, Some(&context.unsplit))?;
    let price = context.prices.at(&nearest(&groups(&job)), 1)?;
    let of = |f: usize| {
        let p = &profiles.functions[f];
        if p.parameters.expert > 0.0 {
            device_seconds(&price(&part(p, true)))
        } else {
            0.0
        }
    };
    Ok(profiles.calls.iter().map(|(f, n)| *n as f64 * of(*f)).sum())
}

/// A profile's items that are of experts, or the others.
pub(crate) fn part(p: &Profile, experts: bool) -> Profile {
    let mut out = p.clone();
    for list in [&mut out.forward, &mut out.backward_input, &mut out.backward_weight] {
        list.retain(|item| item.expert == experts);
    }
    out
}

/// Seconds of a call, forward and backward, what is computed again and what the host adds left out.
pub(crate) fn device_seconds(p: &Priced) -> f64 {
    let of = |phase: &Phase| phase.seconds() - phase.compute.gaps;
    of(&p.forward) + of(&p.backward_input) + of(&p.backward_weight)
}

fn lowest(a: u64, b: u64) -> (u64, u64) {
    let (mut x, mut y) = (a, b);
    while y > 0 {
        (x, y) = (y, x % y);
    }
    (a / x.max(1), b / x.max(1))
}

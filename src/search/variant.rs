//! Functions of the model under the degrees that decide their kernels, priced once for many plans.

use super::base::Seconds;
use super::bound::DataSeconds;
use super::Context;
use crate::predict::places::{groups, Digits};
use crate::predict::predictor::{data, Profiles};
use crate::predict::prices::Groups;
use crate::predict::{Layout, PredictError, Recompute};
use autoshard_passes::predict::Group;
use autoshard_passes::profile::Parameters;
use std::collections::HashMap;
use std::sync::Arc;

/// Functions with their times.
pub(crate) struct Variant {
    pub profiles: Arc<Profiles>,
    pub calls: Vec<Seconds>,
    pub parameters: Vec<Parameters>,
    /// Seconds of a micro-batch through all of it, without recomputation.
    pub work: f64,
}

/// What decides a variant within a base: experts' degrees, what is computed again, and where groups sit.
type Key = (u64, u64, u8, Vec<Option<Digits>>);

/// Variants of one base.
#[derive(Default)]
pub(crate) struct Variants {
    known: HashMap<Key, Arc<Variant>>,
    profiles: HashMap<(u64, u64, u8), Arc<Profiles>>,
    data: HashMap<(u64, u64, Vec<Option<Digits>>), Arc<DataSeconds>>,
}

/// Digits of some groups, in a fixed order.
fn digits(places: &Groups, inside: bool) -> Vec<Option<Digits>> {
    let of = |(group, digits): &(Group, Digits)| (matches!(group, Group::Inside(_)) == inside).then(|| digits.clone());
    places.iter().map(of).collect()
}

/// Recomputation as profiles tell it apart; `policy` numbers what selective recomputation computes again.
fn kind(recompute: &Recompute, policy: u8) -> u8 {
    match recompute {
        Recompute::None => 0,
        Recompute::Full | Recompute::Layers(_) | Recompute::Stages(_) => 1,
        Recompute::Selective(_) => 2 + policy,
    }
}

impl Variants {
    /// The variant of a layout with its groups at these places. Layouts of one `policy` recompute the same.
    ///
    /// # Errors
    /// As predictions.
    pub fn get(
        &mut self,
        context: &Context,
        l: &Layout,
        policy: u8,
        places: &Groups,
    ) -> Result<Arc<Variant>, PredictError> {
        let kind = kind(&l.recompute, policy);
        let key = (l.ep, l.etp, kind, digits(places, true));
        if let Some(found) = self.known.get(&key) {
            return Ok(found.clone());
        }
        let profiles = match self.profiles.get(&(l.ep, l.etp, kind)) {
            Some(found) => found.clone(),
            None => {
                let made = Arc::new(context.predictor.profiles_anew(&context.ask.job(l, None))?);
                self.profiles.insert((l.ep, l.etp, kind), made.clone());
                made
            }
        };
        let priced = context.prices.price(&profiles.functions, places, l.tp)?;
        let calls: Vec<Seconds> = priced.iter().map(Seconds::of).collect();
        let work = profiles.calls.iter().map(|(f, n)| *n as f64 * calls[*f].once()).sum();
        let parameters = profiles.functions.iter().map(|f| f.parameters).collect();
        let made = Arc::new(Variant { profiles, calls, parameters, work });
        self.known.insert(key, made.clone());
        Ok(made)
    }

    /// Messages of data parallelism of a layout.
    ///
    /// # Errors
    /// As predictions.
    pub fn data(
        &mut self,
        context: &Context,
        l: &Layout,
        variant: &Variant,
        places: &Groups,
    ) -> Result<Arc<DataSeconds>, PredictError> {
        let key = (l.ep, l.etp, digits(places, false));
        if let Some(found) = self.data.get(&key) {
            return Ok(found.clone());
        }
        let data = data(&context.ask.job(l, None));
        let made = Arc::new(DataSeconds::new(&context.prices, places, &data, &variant.parameters)?);
        self.data.insert(key, made.clone());
        Ok(made)
    }
}

/// The groups of a layout at their places.
pub(crate) fn places(context: &Context, l: &Layout) -> Groups {
    groups(&context.ask.job(l, None))
}

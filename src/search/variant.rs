//! Functions of the model under the degrees that decide their kernels, priced once for many plans.

use super::base::Seconds;
use super::bound::DataSeconds;
use super::Context;
use crate::predict::places::groups;
use crate::predict::predictor::{data, Job, Profiles};
use crate::predict::prices::Groups;
use crate::predict::{Layout, PredictError, Recompute};
use autoshard_passes::predict::Group;
use autoshard_passes::profile::{Axis, Parameters, Profile, Saved};
use rustc_hash::FxHashMap;
use std::sync::Arc;

/// What all layouts of a model share: its functions and their calls.
#[derive(Clone, Debug, Default)]
pub(crate) struct Calls {
    /// In order, equal neighbours together: function, count.
    pub order: Vec<(usize, usize)>,
    /// Which functions are decoder layers.
    pub layer: Vec<bool>,
    /// Which have experts.
    pub experts: Vec<bool>,
}

impl Calls {
    pub fn of(profiles: &Profiles) -> Calls {
        let experts = profiles.functions.iter().map(|f| f.parameters.expert > 0.0).collect();
        Calls { order: profiles.calls.clone(), layer: profiles.layer.clone(), experts }
    }
}

/// Functions with their times.
#[derive(Debug)]
pub(crate) struct Variant {
    /// By function.
    pub calls: Vec<Seconds>,
    /// By function, on one rank.
    pub parameters: Vec<Parameters>,
    /// Bytes of the activation between layers, on one rank.
    pub boundary: f64,
    /// Seconds of a micro-batch through all of it, without recomputation.
    pub work: f64,
}

impl Variant {
    /// Prices profiles with their groups at these places. Functions without experts are taken from a variant that
    /// differs in experts' degrees alone, where one is known.
    ///
    /// # Errors
    /// Groups that the cluster has no place for.
    pub fn new(
        context: &Context,
        profiles: &Profiles,
        places: &Groups,
        tp: u64,
        like: Option<&Variant>,
    ) -> Result<Variant, PredictError> {
        let price = context.prices.at(places, tp)?;
        let of = |(i, f): (usize, &Arc<Profile>)| match like.filter(|_| f.parameters.expert == 0.0) {
            Some(like) => like.calls[i],
            None => Seconds::of(&price(f)),
        };
        let calls: Vec<Seconds> = profiles.functions.iter().enumerate().map(of).collect();
        let work = profiles.calls.iter().map(|(f, n)| *n as f64 * calls[*f].once()).sum();
        let parameters = profiles.functions.iter().map(|f| f.parameters).collect();
        Ok(Variant { calls, parameters, boundary: profiles.boundary_bytes(), work })
    }
}

/// What decides a variant within a base: experts' degrees, what is computed again, and where groups sit.
type Key = (u64, u64, u8, Groups);

/// Variants of one base.
#[derive(Default)]
pub(crate) struct Variants {
    known: FxHashMap<Key, Arc<Variant>>,
    profiles: FxHashMap<(u64, u64, u8), Arc<Profiles>>,
    like: Like,
    data: FxHashMap<DataKey, Arc<DataSeconds>>,
    saved: FxHashMap<(u64, u64, u8, bool), Arc<Vec<Saved>>>,
}

/// What layouts share that differ in experts' degrees alone.
#[derive(Default)]
struct Like {
    /// By recomputation.
    profiles: FxHashMap<u8, Arc<Profiles>>,
    /// By recomputation and the places of tp and cp.
    variants: FxHashMap<(u8, Groups), Arc<Variant>>,
}

/// What decides messages of data parallelism: experts' degrees, how many ranks share and how many hold the same share,
/// and where groups sit.
type DataKey = (u64, u64, [[u64; 2]; 2], Groups);

/// Groups whose messages functions without experts have.
const DENSE: [Group; 2] = [Group::Inside(Axis::Tp), Group::Inside(Axis::Cp)];

/// The groups that exchange messages inside a micro-batch, or the others.
fn some(places: &Groups, inside: bool) -> Groups {
    places.iter().filter(|(group, _)| matches!(group, Group::Inside(_)) == inside).copied().collect()
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
    /// Starts with what a base knows: nothing computed again, groups nearest; experts not split.
    pub fn knowing(layout: &Layout, places: &Groups, variant: &Arc<Variant>) -> Variants {
        let mut out = Variants::default();
        out.known.insert((layout.ep, layout.etp, kind(&Recompute::None, 0), some(places, true)), variant.clone());
        out
    }

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
        let key = (l.ep, l.etp, kind, some(places, true));
        if let Some(found) = self.known.get(&key) {
            return Ok(found.clone());
        }
        let profiles = self.profiles(context, l, kind)?;
        let dense: Groups = places.iter().filter(|(g, _)| DENSE.contains(g)).copied().collect();
        let like = self.like.variants.get(&(kind, dense.clone()));
        let made = Arc::new(Variant::new(context, &profiles, places, l.tp, like.map(|v| &**v))?);
        self.like.variants.entry((kind, dense)).or_insert_with(|| made.clone());
        self.known.insert(key, made.clone());
        Ok(made)
    }

    fn profiles(&mut self, context: &Context, l: &Layout, kind: u8) -> Result<Arc<Profiles>, PredictError> {
        if let Some(found) = self.profiles.get(&(l.ep, l.etp, kind)) {
            return Ok(found.clone());
        }
        let like = self.like.profiles.get(&kind).map(|p| &**p);
        let made = Arc::new(context.predictor.profiles_anew(&context.ask.job(l, None), like)?);
        self.like.profiles.entry(kind).or_insert_with(|| made.clone());
        self.profiles.insert((l.ep, l.etp, kind), made.clone());
        Ok(made)
    }

    /// What calls of a layout save under a policy.
    ///
    /// # Errors
    /// As predictions.
    pub fn saved(&mut self, context: &Context, job: &Job, policy: u8) -> Result<Arc<Vec<Saved>>, PredictError> {
        let key = (job.layout.ep, job.layout.etp, policy, job.layout.zero >= 2);
        if let Some(found) = self.saved.get(&key) {
            return Ok(found.clone());
        }
        let made = context.predictor.saved(job)?;
        self.saved.insert(key, made.clone());
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
        let data = data(&context.ask.job(l, None));
        let key = (l.ep, l.etp, [data.shard, data.replicas], some(places, false));
        if let Some(found) = self.data.get(&key) {
            return Ok(found.clone());
        }
        let made = Arc::new(DataSeconds::new(&context.prices, places, &data, &variant.parameters)?);
        self.data.insert(key, made.clone());
        Ok(made)
    }
}

/// The groups of a layout at their places.
pub(crate) fn places(context: &Context, l: &Layout) -> Groups {
    groups(&context.ask.job(l, None))
}

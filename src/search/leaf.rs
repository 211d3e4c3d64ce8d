//! The plans of a pipeline: what data ranks share, and what is computed again so that it fits.

use super::expand::{Alone, Expansion, Pipeline};
use super::policy::Policy;
use super::room::{self, Fit, Rooms};
use super::space;
use super::variant::{places, Variant};
use super::Ask;
use crate::predict::cut::Cut;
use crate::predict::memory::Play;
use crate::predict::prices::{nearest, Groups};
use crate::predict::{Layout, PredictError, Recompute};
use std::sync::Arc;

/// A plan before orders of axes, with its bound.
#[derive(Clone, Debug)]
pub(crate) struct Leaf {
    pub bound: f64,
    pub layout: Layout,
    pub cut: Arc<Cut>,
    pub layers: Option<Vec<u64>>,
    pub policy: u8,
}

/// A pipeline whose plans are looked at.
pub(crate) struct Leaves<'e, 'a> {
    of: &'e mut Expansion<'a>,
    p: &'e Pipeline,
    /// Functions by policy, at the nearest places.
    variants: Vec<Option<Arc<Variant>>>,
    /// Seconds of chains that were bounded, by policy and recomputation.
    chains: Vec<((usize, Recompute), f64)>,
    /// Seconds of a micro-batch on each stage, and what computing all layers again adds.
    once: Vec<f64>,
    again: Vec<f64>,
    out: Vec<Leaf>,
}

impl<'e, 'a> Leaves<'e, 'a> {
    pub fn new(of: &'e mut Expansion<'a>, p: &'e Pipeline) -> Leaves<'e, 'a> {
        let n = of.policies.len();
        let variants = vec![None; n];
        let once = p.cut.stages.iter().map(|s| seconds(s, |f| p.variant.calls[f].once())).collect();
        Leaves { of, p, variants, chains: Vec::new(), once, again: Vec::new(), out: Vec::new() }
    }

    /// The plans that fit and whose bounds are below the threshold, those left out that a bound of many rules out.
    ///
    /// # Errors
    /// As predictions.
    pub fn below(mut self, threshold: f64) -> Result<Vec<Leaf>, PredictError> {
        let ask = self.of.context.ask;
        let data_ranks = self.p.layout.cp * self.p.layout.dp;
        if self.of.policies[0] == Policy::Layers && !self.may_be_below(data_ranks, threshold)? {
            return Ok(self.out);
        }
        for (zero, keep) in kinds(ask) {
            // The largest groups first: where they do not fit, smaller ones do not.
            let mut fits = true;
            for (_, shard_group) in space::sharings(ask, data_ranks).iter().rev().filter(|(z, _)| *z == zero) {
                if fits {
                    let layout = Layout { zero, shard_group: *shard_group, keep, ..self.p.layout.clone() };
                    fits = self.plan(layout, threshold)?;
                }
                self.of.counts.too_large += u64::from(!fits);
            }
        }
        Ok(self.out)
    }

    /// All plans that fit, each bounded by itself.
    ///
    /// # Errors
    /// As predictions.
    pub fn all(mut self) -> Result<Vec<Leaf>, PredictError> {
        let ask = self.of.context.ask;
        for (zero, keep) in kinds(ask) {
            let sharings = space::sharings(ask, self.p.layout.cp * self.p.layout.dp);
            for (_, shard_group) in sharings.into_iter().filter(|(z, _)| *z == zero) {
                let layout = Layout { zero, shard_group, keep, ..self.p.layout.clone() };
                let fits = self.plan(layout, f64::INFINITY)?;
                self.of.counts.too_large += u64::from(!fits);
            }
        }
        Ok(self.out)
    }

    /// Whether some plan of the pipeline may fit and be below the threshold, whatever data ranks share: with as few layers
    /// computed again as memory wants at the best of all sharings, or another way to compute something again.
    fn may_be_below(&mut self, data_ranks: u64, threshold: f64) -> Result<bool, PredictError> {
        let (p, ask) = (self.p, self.of.context.ask);
        let layout = Layout { zero: 3, shard_group: data_ranks, recompute: Recompute::Full, ..p.layout.clone() };
        let job = ask.job(&layout, p.layers.as_deref());
        let weight = ask.objective.weight(ask, layout.devices());
        let counts = match self.room(&layout, 0)?.first_may_fit(&job, &p.cut) {
            true => match self.least_counts(&layout, weight, threshold)? {
                // The lightest policy is too slow already.
                Fit::TooSlow => return Ok(false),
                Fit::Counts(counts) if counts.iter().all(|n| *n == 0) => return Ok(p.bound < threshold),
                Fit::Counts(counts) => Some(counts),
                Fit::No => None,
            },
            // Parts of a layer may fit where a whole one does not while it is computed again.
            false => None,
        };
        for at in 0..self.of.policies.len() {
            let recompute = match (&self.of.policies[at], &counts) {
                (Policy::Layers, Some(counts)) => room::said(counts, &p.cut),
                (Policy::Layers, None) => continue,
                (Policy::Said(said), _) => said.clone(),
            };
            let said = self.of.policies[at] != Policy::Layers;
            // What rules out more comes first.
            if said && counts.is_none() && !self.may_fit(&layout, at, &recompute)? {
                continue;
            }
            if (self.chains(at, &recompute)? + self.of.overhead()) * weight >= threshold {
                continue;
            }
            if !said || counts.is_none() || self.may_fit(&layout, at, &recompute)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Whether the pipeline may fit with this computed again.
    fn may_fit(&mut self, layout: &Layout, policy: usize, recompute: &Recompute) -> Result<bool, PredictError> {
        let p = self.p;
        let layout = Layout { recompute: recompute.clone(), ..layout.clone() };
        let job = self.of.context.ask.job(&layout, p.layers.as_deref());
        Ok(self.room(&layout, policy)?.may_fit(&job, &p.cut, &room::counts(recompute, &p.cut)))
    }

    /// The fewest layers that each stage computes again however data ranks share, unless a stage is too slow then by
    /// every policy.
    fn least_counts(&mut self, layout: &Layout, weight: f64, threshold: f64) -> Result<Fit, PredictError> {
        let p = self.p;
        let job = self.of.context.ask.job(layout, p.layers.as_deref());
        let again = self.again()?;
        let once = std::mem::take(&mut self.once);
        let too_slow = |stage: usize, count: u64| {
            let whole = again[0][stage] * count as f64 / p.cut.layers[stage].max(1) as f64;
            let parts = again[1..].iter().map(|a| a[stage]).fold(f64::INFINITY, f64::min);
            let more = if count == 0 { 0.0 } else { whole.min(parts) };
            layout.microbatches as f64 * (once[stage] + more) * weight >= threshold
        };
        let fit = self.room(layout, 0)?.least_counts(&job, &p.cut, too_slow);
        (self.once, self.again) = (once, again.into_iter().next().unwrap_or_default());
        Ok(fit)
    }

    /// Seconds that each policy adds to a micro-batch on each stage where it recomputes all that it may.
    fn again(&mut self) -> Result<Vec<Vec<f64>>, PredictError> {
        let mut out = Vec::with_capacity(self.of.policies.len());
        for at in 0..self.of.policies.len() {
            let variant = self.variant(at, &self.of.policies[at].priced_as())?;
            out.push(self.p.cut.stages.iter().map(|s| seconds(s, |f| variant.calls[f].again)).collect());
        }
        Ok(out)
    }

    /// The functions of a recomputation under a policy.
    fn variant(&mut self, policy: usize, recompute: &Recompute) -> Result<Arc<Variant>, PredictError> {
        if *recompute == Recompute::None {
            return Ok(self.p.variant.clone());
        }
        if let Some(found) = &self.variants[policy] {
            return Ok(found.clone());
        }
        let layout = Layout { recompute: recompute.clone(), ..self.p.layout.clone() };
        let near = self.near(&layout);
        let made = self.of.variants.get(self.of.context, &layout, policy as u8, &near)?;
        self.variants[policy] = Some(made.clone());
        Ok(made)
    }

    fn near(&self, layout: &Layout) -> Groups {
        nearest(&places(self.of.context, layout))
    }

    /// Seconds of the pipeline's longest chain.
    fn chains(&mut self, policy: usize, recompute: &Recompute) -> Result<f64, PredictError> {
        if *recompute == Recompute::None {
            return Ok(self.p.chains);
        }
        let known = self.chains.iter().find(|((p, r), _)| *p == policy && r == recompute);
        if let Some((_, seconds)) = known {
            return Ok(*seconds);
        }
        let variant = self.variant(policy, recompute)?;
        let stages = room::costs(&self.p.cut, &variant.calls, recompute);
        let seconds = self.of.chain(&self.p.layout, self.p.hop, &stages).seconds(|_| 0.0, 0.0, |_| 0.0);
        self.chains.push(((policy, recompute.clone()), seconds));
        Ok(seconds)
    }

    fn room(&mut self, layout: &Layout, policy: usize) -> Result<&mut Rooms, PredictError> {
        let (p, context) = (self.p, self.of.context);
        let play = Play::of(layout, p.cut.chunks());
        let key = (policy, layout.zero >= 2, (layout.ep, layout.etp), Arc::as_ptr(&p.cut), play);
        if !self.of.rooms.contains_key(&key) {
            let variant = self.variant(policy, &layout.recompute)?;
            let job = context.ask.job(layout, p.layers.as_deref());
            let saved = self.of.variants.saved(context, &job, policy as u8)?;
            let mut made = Rooms::new(context, &job, saved, &variant, &p.cut)?;
            // What recomputation does not change is the same in all rooms of a cut.
            let sizes = self.of.sizes.entry((Arc::as_ptr(&p.cut), key.2));
            made.stages = sizes.or_insert_with(|| made.sizes(&job, &p.cut).into()).clone();
            self.of.rooms.insert(key, made);
        }
        self.of.rooms.get_mut(&key).ok_or_else(|| PredictError::Missing {
            entity: format!("{:?}", layout.recompute),
            what: "its memory".to_string(),
            instead: "report this as a bug".to_string(),
        })
    }

    /// A plan under each policy. Whether it fits under one; where it is too slow by the threshold, it counts as fitting.
    fn plan(&mut self, layout: Layout, threshold: f64) -> Result<bool, PredictError> {
        let mut fits = false;
        for policy in 0..self.of.policies.len() {
            self.of.counts.evaluated += 1;
            let layout = match self.fit(layout.clone(), policy, threshold)? {
                Fitted::No => continue,
                Fitted::TooSlow => {
                    fits = true;
                    continue;
                }
                Fitted::As(layout) => layout,
            };
            fits = true;
            if self.is_like_another(&layout) {
                break;
            }
            let bound = self.bound(&layout, policy)?;
            self.of.counts.least_bound = self.of.counts.least_bound.min(bound);
            let again = layout.recompute != Recompute::None;
            if bound < threshold {
                let (cut, layers) = (self.p.cut.clone(), self.p.layers.clone());
                self.out.push(Leaf { bound, layout, cut, layers, policy: policy as u8 });
            }
            if !again {
                break;
            }
        }
        Ok(fits)
    }

    /// A pipeline reduces gradients once, so sharing them or keeping what was gathered takes as long as ZeRO-1.
    fn is_like_another(&self, l: &Layout) -> bool {
        let late = l.pp > 1 && (l.zero == 2 || l.keep);
        let alike = |o: &Layout| o.zero == 1 && o.shard_group == l.shard_group && o.recompute == l.recompute;
        late && self.out.iter().any(|leaf| alike(&leaf.layout))
    }

    /// The layout with its recomputation, if it fits.
    fn fit(&mut self, mut layout: Layout, policy: usize, threshold: f64) -> Result<Fitted, PredictError> {
        let p = self.p;
        layout.recompute = self.of.policies[policy].priced_as();
        if matches!(&layout.recompute, Recompute::Stages(counts) if counts.len() as u64 != layout.pp) {
            return Ok(Fitted::No);
        }
        let ask = self.of.context.ask;
        let weight = ask.objective.weight(ask, layout.devices());
        let job = ask.job(&layout, p.layers.as_deref());
        let said = match &self.of.policies[policy] {
            Policy::Layers => None,
            Policy::Said(said) => Some(said.clone()),
        };
        if let Some(said) = said {
            // Time is known sooner than memory.
            if (self.chains(policy, &said)? + self.of.overhead()) * weight >= threshold {
                return Ok(Fitted::TooSlow);
            }
            let counts = room::counts(&said, &p.cut);
            let fits = self.room(&layout, policy)?.fits(&job, &p.cut, &counts);
            return Ok(if fits { Fitted::As(layout) } else { Fitted::No });
        }
        if self.again.is_empty() {
            self.again = self.again()?.swap_remove(policy);
        }
        let (once, again) = (std::mem::take(&mut self.once), std::mem::take(&mut self.again));
        let too_slow = |stage: usize, count: u64| {
            let more = again[stage] * count as f64 / p.cut.layers[stage].max(1) as f64;
            layout.microbatches as f64 * (once[stage] + more) * weight >= threshold
        };
        let fit = self.room(&layout, policy)?.counts(&job, &p.cut, too_slow);
        (self.once, self.again) = (once, again);
        Ok(match fit {
            Fit::No => Fitted::No,
            Fit::TooSlow => Fitted::TooSlow,
            Fit::Counts(counts) => Fitted::As(Layout { recompute: room::said(&counts, &p.cut), ..layout }),
        })
    }

    /// Lower bound with every group at its nearest place.
    fn bound(&mut self, l: &Layout, policy: usize) -> Result<f64, PredictError> {
        let p = self.p;
        let variant = self.variant(policy, &l.recompute)?;
        let alone = Alone::Chains(self.chains(policy, &l.recompute)?);
        let near = self.near(l);
        // Stages are read where a pipeline gathers for every micro-batch, or is none.
        let every = l.pp == 1 || (l.zero == 3 && !l.keep);
        let stages = if every { room::costs(&p.cut, &variant.calls, &l.recompute) } else { vec![Vec::new(); 2] };
        let chain = self.of.chain(l, p.hop, &stages);
        self.of.bound_of(l, &p.cut, &variant, &near, (&chain, alone))
    }
}

/// ZeRO stages, with whether what was gathered is kept.
fn kinds(ask: &Ask) -> Vec<(u8, bool)> {
    (0..=3).flat_map(|zero| space::keeps(ask, zero).into_iter().map(move |keep| (zero, keep))).collect()
}

/// Whether a plan fits, and as what.
enum Fitted {
    No,
    /// It is slower than the threshold whatever else it does.
    TooSlow,
    As(Layout),
}

/// Seconds of a stage's calls for a micro-batch.
fn seconds(chunks: &[Vec<(usize, usize)>], of: impl Fn(usize) -> f64) -> f64 {
    chunks.iter().flatten().map(|(f, n)| *n as f64 * of(*f)).sum()
}

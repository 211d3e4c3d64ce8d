//! Prices for bounds: of functions and messages whose groups sit where one says, a layout's own places or the nearest.
//!
//! A layout has several groups, of which one alone can be the innermost. Priced as if the ranks of every group were
//! the nearest neighbours that they can be, a plan takes no longer than in any order of its axes on the tiers.

use super::places::{Digits, Places};
use super::predictor::{factors, formats, generation, manner, Job, Predictor};
use super::PredictError;
use autoshard_cost::collectives::{Collectives, Kind};
use autoshard_cost::kernels::{Kernels, Product};
use autoshard_cost::layout::Placement;
use autoshard_passes::predict::machine::Machine;
use autoshard_passes::predict::price::{price, quote, Formats, Manner, Priced};
use autoshard_passes::predict::{Factors, Group, Rates};
use autoshard_passes::profile::Profile;
use std::sync::Arc;

/// Groups with where they sit.
pub(crate) type Groups = Vec<(Group, Digits)>;

/// The same groups, each the innermost.
pub(crate) fn nearest(groups: &Groups) -> Groups {
    groups.iter().map(|(group, digits)| (*group, Digits::neighbours(digits.ranks()))).collect()
}

/// Prices of a job's machine and stack.
#[derive(Debug)]
pub(crate) struct Prices {
    /// Places on the cluster.
    pub places: Places,
    kernels: Arc<Kernels>,
    collectives: Arc<Collectives>,
    factors: Factors,
    manner: Manner,
    formats: Formats,
}

impl Prices {
    /// # Errors
    /// Tables that cannot be read.
    pub fn new(predictor: &Predictor, job: &Job) -> Result<Prices, PredictError> {
        Ok(Prices {
            places: Places::new(job.cluster),
            kernels: predictor.kernels(job)?,
            collectives: predictor.links(job)?,
            factors: factors(job, job.stack, generation(job)?),
            manner: manner(job, job.stack),
            formats: formats(job),
        })
    }

    /// What prices functions' phases with the groups inside a micro-batch at their places.
    ///
    /// # Errors
    /// Groups that the cluster has no place for.
    pub fn at(&self, groups: &Groups, tp: u64) -> Result<impl Fn(&Profile) -> Priced + '_, PredictError> {
        let inside = groups.iter().filter(|(group, _)| matches!(group, Group::Inside(_)));
        let placed = inside.map(|(group, digits)| Ok((*group, Placement::clone(&*self.places.of(digits)?))));
        let placements = placed.collect::<Result<Vec<_>, PredictError>>()?;
        let formats = Formats { tp, ..self.formats };
        Ok(move |f: &Profile| price(&quote(f, &self.machine(&placements), &formats), &self.factors, &self.manner))
    }

    fn machine<'a>(&'a self, placements: &'a [(Group, Placement)]) -> Machine<'a> {
        Machine { kernels: &self.kernels, collectives: &self.collectives, placements }
    }

    /// Seconds of a message of `bytes` between the ranks of a group; 0 where the group has one.
    ///
    /// # Errors
    /// As [`Prices::at`].
    pub fn message(&self, kind: Kind, group: Group, groups: &Groups, bytes: f64) -> Result<f64, PredictError> {
        let Some((_, digits)) = groups.iter().find(|(g, _)| *g == group).filter(|_| bytes > 0.0) else {
            return Ok(0.0);
        };
        let placement = self.places.of(digits)?;
        Ok(self.collectives.seconds(kind, &placement, bytes).seconds * self.factors.collectives)
    }

    /// Seconds of a loop over memory, by the tables.
    pub fn memory(&self, bytes: f64) -> f64 {
        self.machine(&[]).memory(bytes).seconds
    }

    /// FLOP/s of the fastest products of layers, as they last, the stack's factor included.
    pub fn fastest(&self) -> f64 {
        let format = self.formats.narrow;
        let p = Product { format, m: 8192.0, n: 16384.0, k: 16384.0, count: 1.0, accumulate: false };
        let burst = 2.0 * p.m * p.n * p.k / self.machine(&[]).product(&p).seconds;
        let lasting = if format.bytes() < 2.0 { self.factors.sustained_eight_bit } else { self.factors.sustained };
        burst * lasting / self.factors.products
    }
}

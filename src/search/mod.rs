//! The search over layouts: the fastest plan of a stated space, with a proof.
//!
//! The *space* ([`space`]) is every legal layout on at most so many devices: tp, sp, cp and its method, pp with every
//! schedule and number of chunks, ep and etp, dp, ZeRO stage and shard group, micro-batch, and the order of the axes on
//! the cluster's tiers. For each, how layers are cut into stages and how many of them each stage computes again are
//! decided inside (`room`): as few as memory wants.
//!
//! The search goes from the inside out. A `base` is what decides a micro-batch's kernels (tp, sp, cp, micro-batch);
//! its work alone bounds every plan that is made of it. Bases are taken by that bound, side by side (`line`); each is
//! expanded (`expand`) to pipelines and experts, to schedules, to what data ranks share (`leaf`), to orders of axes,
//! each with its own lower bound (`bound`): of what is open the least bound is looked at next (`open`), and what is
//! not below the best time so far goes. What is left is simulated ([`crate::predict`]). So when the search ends no plan
//! that was left out has a lower bound below the best simulated time: that is what `optimal` says.
//!
//! Nothing here depends on time or on the number of threads: which results a base knows of is fixed (`line`), and of
//! equal plans the first of the space wins.

mod base;
mod bound;
pub mod check;
mod expand;
mod experts;
mod infeasible;
mod leaf;
mod line;
mod open;
mod outsize;
mod policy;
mod rejected;
mod room;
mod run;
pub mod space;
mod variant;

pub use infeasible::{fewest_devices, infeasible, Fewest, Infeasible};
pub use rejected::{rejected, Rejected};
pub use run::{search, Counts, Found, Outcome};

use crate::decoder::Decoder;
use crate::predict::fix::Fix;
use crate::predict::predictor::{Job, Predictor, Profiles, Says};
use crate::predict::prices::Prices;
use crate::predict::{CpMethod, Layout, ModelFacts, Precision, PredictError, Schedule};
use crate::report::stages::Room;
use autoshard_cost::cluster::Cluster;
use autoshard_cost::stack::Stack;

/// What is asked.
#[derive(Clone, Debug)]
pub struct Ask<'a> {
    /// A name of the model that no other model has.
    pub key: &'a str,
    /// The model.
    pub decoder: &'a Decoder,
    /// Its sizes.
    pub facts: &'a ModelFacts,
    /// The machine.
    pub cluster: &'a Cluster,
    /// The framework.
    pub stack: &'a Stack,
    /// Devices that may be used.
    pub devices: u64,
    /// Positions of a sequence.
    pub seq_len: u64,
    /// Sequences of a step.
    pub global_batch: u64,
    /// Format of products.
    pub precision: Precision,
    /// Decisions that are made already.
    pub fix: &'a Fix,
    /// Memory that a plan may take.
    pub room: Room,
    /// What is made small.
    pub objective: Objective,
    /// How many plans are wanted.
    pub top: usize,
    /// Whether every plan's bound is computed, none left out by a bound of many.
    pub exhaustive: bool,
}

impl Ask<'_> {
    /// The job of a layout.
    pub fn job<'a>(&'a self, layout: &'a Layout, layers_per_stage: Option<&'a [u64]>) -> Job<'a> {
        Job {
            key: self.key,
            decoder: self.decoder,
            cluster: self.cluster,
            stack: self.stack,
            layout,
            layers_per_stage,
            seq_len: self.seq_len,
            precision: self.precision,
            says: Says::default(),
        }
    }
}

/// What a search makes small.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Objective {
    /// Seconds of a step.
    StepTime,
    /// Seconds of a step over the share of time that failures leave.
    Goodput,
    /// Device-seconds of a step: what it costs at any price of a device.
    Cost,
}

impl Objective {
    /// What a second of a step on so many devices counts.
    pub fn weight(self, ask: &Ask, devices: u64) -> f64 {
        match self {
            Objective::StepTime => 1.0,
            Objective::Cost => devices as f64,
            Objective::Goodput => 1.0 / useful(ask, devices),
        }
    }
}

/// Share of time that failures of so many devices leave; 1 where they are not known.
fn useful(ask: &Ask, devices: u64) -> f64 {
    use autoshard_cost::goodput;
    let Some(failures) = ask.cluster.failures.as_ref() else { return 1.0 };
    let nodes = (devices as f64 / ask.cluster.devices_per_node.max(1) as f64).ceil();
    let losses = goodput::Losses {
        between_failures: goodput::between_failures(failures, nodes),
        write: goodput::write_seconds(ask.facts.parameters as f64, nodes),
        restart: failures.restart(devices),
    };
    goodput::best(&losses).useful.max(1e-9)
}

/// A search's scratch and what all of it shares.
pub(crate) struct Context<'a> {
    pub ask: &'a Ask<'a>,
    pub predictor: &'a Predictor,
    pub prices: Prices,
    pub calls: variant::Calls,
    /// Functions as one rank does all of them.
    pub unsplit: Profiles,
    pub experts: experts::Experts,
    /// Ranks that a plan needs at the least, for the model's states alone.
    pub fewest: u64,
    /// FLOP/s of the fastest products.
    pub fastest: f64,
    pub cuts: room::Cuts,
    pub orders: space::Orders,
}

impl<'a> Context<'a> {
    /// Nothing searched yet.
    ///
    /// # Errors
    /// As predictions.
    pub fn new(ask: &'a Ask<'a>, predictor: &'a Predictor) -> Result<Context<'a>, PredictError> {
        let any = space::Inside { tp: 1, sp: false, cp: 1, cp_method: CpMethod::Ring, micro_batch: 1 };
        let layout = space::layout(ask, &any, (1, 1), (1, 1), (Schedule::OneFOneB, 1), (0, 1), false);
        let job = ask.job(&layout, None);
        let prices = Prices::new(predictor, &job)?;
        let fastest = prices.fastest();
        let unsplit = predictor.profiles_anew(&job, None)?;
        let calls = variant::Calls::of(&unsplit);
        let (cuts, orders, experts) = Default::default();
        let mut out = Context { ask, predictor, prices, calls, unsplit, experts, fewest: 1, fastest, cuts, orders };
        // Rounded down: sums of shares may be a little less than the whole.
        out.fewest = ((1.0 - 1e-9) * outsize::least_states(&out)? / outsize::limit(ask).max(1.0)).ceil() as u64;
        Ok(out)
    }
}

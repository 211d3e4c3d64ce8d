//! What a prediction was made from, node by node: for `why plan.json VALUE`.

use super::{formats, habits, missing, shards, Job, Predictor, Ready};
use crate::predict::PredictError;
use autoshard_cost::collectives::Kind;
use autoshard_ir::core::Function;
use autoshard_passes::predict::parts::{Messages, Traffic};
use autoshard_passes::predict::price::{quote, Phase, Priced};
use autoshard_passes::predict::step::Scratch;
use autoshard_passes::predict::Group;
use autoshard_passes::profile::{self, Axis, Behind, Explained, Item, Profile, Work};

/// A function that a step calls, under a layout.
#[derive(Clone, Debug)]
pub struct Told {
    /// It, at the sizes of one micro-batch.
    pub function: Function,
    /// Calls in the model.
    pub calls: usize,
    /// Which axes carry its factors and values.
    pub explained: Explained,
    /// Its messages in the order of each phase.
    pub messages: Vec<ToldMessage>,
}

/// A message inside a function, for one call and micro-batch.
#[derive(Clone, Debug, PartialEq)]
pub struct ToldMessage {
    /// The value that is moved, or whose node moves it.
    pub value: String,
    /// When.
    pub phase: When,
    /// What the ranks do.
    pub kind: Kind,
    /// Who.
    pub axis: Axis,
    /// Ranks of the group.
    pub ranks: u64,
    /// How many messages.
    pub count: f64,
    /// Payload bytes of all of them.
    pub bytes: f64,
    /// The outermost tier that they cross.
    pub tier: String,
    /// Seconds, hidden and not.
    pub seconds: f64,
    /// Seconds that the next kernel waits.
    pub exposed: f64,
    /// What it may hide behind.
    pub behind: Behind,
}

/// The phases of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// The forward.
    Forward,
    /// What is computed again before the backward.
    Recompute,
    /// Cotangents of activations.
    BackwardInput,
    /// Cotangents of parameters.
    BackwardWeight,
}

impl When {
    const ALL: [When; 4] = [When::Forward, When::Recompute, When::BackwardInput, When::BackwardWeight];

    /// As reports name it.
    pub fn name(self) -> &'static str {
        match self {
            When::Forward => "forward",
            When::Recompute => "recompute",
            When::BackwardInput => "backward",
            When::BackwardWeight => "weight gradient",
        }
    }

    fn items(self, p: &Profile) -> &[Item] {
        match self {
            When::Forward => &p.forward,
            When::Recompute => &p.recompute,
            When::BackwardInput => &p.backward_input,
            When::BackwardWeight => &p.backward_weight,
        }
    }

    fn alone(self, items: Vec<Item>) -> Profile {
        let mut out = Profile::default();
        match self {
            When::Forward => out.forward = items,
            When::Recompute => out.recompute = items,
            When::BackwardInput => out.backward_input = items,
            When::BackwardWeight => out.backward_weight = items,
        }
        out
    }

    fn of(self, p: &Priced) -> &Phase {
        match self {
            When::Forward => &p.forward,
            When::Recompute => &p.recompute,
            When::BackwardInput => &p.backward_input,
            When::BackwardWeight => &p.backward_weight,
        }
    }
}

impl Predictor {
    /// The functions of a job. Messages are priced for the values that `wanted` names: those of a node for its
    /// results, or for a value that it reads.
    ///
    /// # Errors
    /// As [`Predictor::predict`].
    pub fn explain(&self, job: &Job, wanted: &dyn Fn(&Function, &str) -> bool) -> Result<Vec<Told>, PredictError> {
        let mut ready = self.prepare(job)?;
        let (shape, habits, shards) = (self.shape(job)?, habits(job), shards(job.layout));
        let mut out = Vec::with_capacity(shape.functions.len());
        for (i, forward) in shape.functions.iter().enumerate() {
            let function = &forward.f;
            let explained = profile::explain(forward, &shards, &habits).map_err(|e| missing(job, e.to_string()))?;
            let calls = shape.calls.iter().filter(|(f, _)| *f == i).map(|(_, n)| n).sum();
            let messages = ready.messages(job, i, &|value| wanted(function, value))?;
            out.push(Told { function: function.clone(), calls, explained, messages });
        }
        Ok(out)
    }
}

impl Ready {
    /// The messages of a function whose value is wanted. What a message hides depends on what ran before it in
    /// its phase, so each is what the phase costs up to it beyond what it costs up to the one before.
    fn messages(
        &mut self,
        job: &Job,
        function: usize,
        wanted: &dyn Fn(&str) -> bool,
    ) -> Result<Vec<ToldMessage>, PredictError> {
        let profiles = self.profiles.clone();
        let whole = self.quoted[function].clone();
        let mut out = Vec::new();
        for phase in When::ALL {
            let items = phase.items(&profiles.functions[function]);
            for (at, item) in items.iter().enumerate() {
                let Work::Message(m) = &item.work else { continue };
                if !wanted(&item.value) {
                    continue;
                }
                let before = self.phase(job, function, phase, &items[..at])?;
                let with = self.phase(job, function, phase, &items[..=at])?;
                let Some(t) = difference(&before, &with) else { continue };
                out.push(ToldMessage {
                    value: item.value.clone(),
                    phase,
                    kind: m.kind,
                    axis: m.axis,
                    ranks: self.ranks(Group::Inside(m.axis)),
                    count: m.count,
                    bytes: t.bytes,
                    tier: job.cluster.tiers.get(t.tier as usize).map_or(String::new(), |t| t.name.clone()),
                    seconds: t.exposed + t.hidden,
                    exposed: t.exposed,
                    behind: m.behind,
                });
            }
        }
        self.quoted[function] = whole;
        Ok(out)
    }

    fn ranks(&self, group: Group) -> u64 {
        self.placements.iter().find(|(g, _)| *g == group).map_or(1, |(_, p)| p.size)
    }

    /// The messages of a phase that has only these items.
    fn phase(&mut self, job: &Job, function: usize, when: When, items: &[Item]) -> Result<Messages, PredictError> {
        let alone = when.alone(items.to_vec());
        self.quoted[function] = quote(&alone, &self.machine(), &formats(job));
        let (priced, _) = self.play(job, job.stack, &mut Scratch::default(), false)?;
        Ok(when.of(&priced[function]).messages.clone())
    }
}

/// What one more message has added to a list that keeps an entry for each kind, group and tier.
fn difference(before: &Messages, with: &Messages) -> Option<Traffic> {
    let same = |a: &Traffic, b: &Traffic| (a.kind, a.group, a.tier) == (b.kind, b.group, b.tier);
    with.0.iter().find_map(|t| match before.0.iter().find(|b| same(b, t)) {
        None => Some(*t),
        Some(b) if b.count == t.count => None,
        Some(b) => Some(Traffic {
            count: t.count - b.count,
            bytes: t.bytes - b.bytes,
            exposed: (t.exposed - b.exposed).max(0.0),
            hidden: (t.hidden - b.hidden).max(0.0),
            ..*t
        }),
    })
}

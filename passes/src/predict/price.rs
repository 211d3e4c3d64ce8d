//! One function's profile as seconds.

use super::parts::{Compute, Messages, Traffic};
use super::{Group, Rates};
use crate::profile::{Behind, Item, Message, Profile, Work};
use autoshard_cost::device::Format;
use autoshard_cost::kernels::{How, Product};

/// What a stack does while it runs a function.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Manner {
    /// Format of products with weights inside layers.
    pub format: Format,
    /// Format of the head's product and of those without weights.
    pub wide: Format,
    /// Seconds that the host needs to launch a kernel: a function takes at least this for each.
    pub launch: f64,
    /// Whether tensor-parallel messages run piece by piece beside the product that they feed or follow.
    pub tensor_overlap: bool,
    /// Slow-down of computation and communication that run side by side.
    pub contention: f64,
}

/// One phase of a function on one rank.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Phase {
    /// Computation.
    pub compute: Compute,
    /// Messages of the phase; exposed seconds are part of the phase.
    pub messages: Messages,
    /// The least certain of the estimates.
    pub how: Option<How>,
}

impl Phase {
    /// Seconds from its first kernel to its last.
    pub fn seconds(&self) -> f64 {
        self.compute.seconds() + self.messages.exposed()
    }
}

/// The phases of a function.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Priced {
    /// Forward.
    pub forward: Phase,
    /// What is computed again.
    pub recompute: Phase,
    /// Cotangents of activations.
    pub backward_input: Phase,
    /// Cotangents of parameters.
    pub backward_weight: Phase,
    /// Seconds that the host needs for forward, and for everything else.
    pub host: [f64; 2],
}

/// Prices a profile.
pub fn price(profile: &Profile, rates: &impl Rates, manner: &Manner) -> Priced {
    let mut out = Priced {
        forward: phase(&profile.forward, rates, manner),
        recompute: phase(&profile.recompute, rates, manner),
        backward_input: phase(&profile.backward_input, rates, manner),
        backward_weight: phase(&profile.backward_weight, rates, manner),
        host: [0.0; 2],
    };
    // The host runs ahead of the device and is waited for only where it is slower over a whole pass.
    let launches = |items: &[Item]| items.iter().map(|i| i.work.launches()).sum::<f64>();
    let forward = launches(&profile.forward) * manner.launch;
    let backward =
        launches(&profile.recompute) + launches(&profile.backward_input) + launches(&profile.backward_weight);
    out.host = [forward, backward * manner.launch];
    wait(&mut [&mut out.forward], forward);
    let back = &mut [&mut out.backward_input, &mut out.recompute, &mut out.backward_weight];
    wait(back, backward * manner.launch);
    out
}

/// Adds what the host needs beyond the phases' seconds to the first of them.
fn wait(phases: &mut [&mut Phase], host: f64) {
    let device: f64 = phases.iter().map(|p| p.seconds()).sum();
    if let Some(first) = phases.first_mut() {
        first.compute.gaps += (host - device).max(0.0);
    }
}

fn phase(items: &[Item], rates: &impl Rates, manner: &Manner) -> Phase {
    let mut out = Phase::default();
    for item in items {
        match &item.work {
            Work::Product { product, weights } => {
                let format = if *weights && !is_head(item) { manner.format } else { manner.wide };
                let time = rates.product(&Product { format, ..*product });
                out.compute.products += time.seconds;
                out.note(time.how);
                if format.bytes() < 2.0 {
                    let bytes = quantise(product);
                    out.compute.loops += rates.memory(bytes).seconds;
                    out.compute.loop_bytes += bytes;
                }
            }
            Work::Attention { attention, count } => {
                let time = rates.attention(attention);
                out.compute.attention += time.seconds * count;
                out.note(time.how);
            }
            Work::Loop { bytes, launches } => {
                // Without a launch of its own it rides on another kernel.
                let kernels = launches.max(1.0);
                out.compute.loops += rates.memory(bytes / kernels).seconds * kernels;
                out.compute.loop_bytes += bytes;
            }
            Work::Message(m) => {
                let attention = out.compute.attention;
                out.message(m, attention, rates, manner);
            }
        }
    }
    out
}

/// The head's product stays wide: its result goes into the loss.
fn is_head(item: &Item) -> bool {
    item.value.starts_with("logits")
}

/// Bytes of bringing a product's operands to eight bits: each is read in bf16 and written once, and once more
/// transposed for the other product that reads it. Half of each is charged to either product.
fn quantise(p: &Product) -> f64 {
    let operand = |elements: f64| elements * p.count * (2.0 + 1.0 + 1.0) / 2.0;
    operand(p.m * p.k) + operand(p.n * p.k)
}

impl Phase {
    fn note(&mut self, how: How) {
        self.how = Some(self.how.map_or(how, |h| h.max(how)));
    }

    fn message(&mut self, m: &Message, attention: f64, rates: &impl Rates, manner: &Manner) {
        let group = Group::Inside(m.axis);
        let one = rates.transfer(m.kind, group, m.bytes);
        self.note(one.how);
        let product = |p: &Product| rates.product(&Product { format: manner.format, ..*p }).seconds;
        let seconds = one.seconds * m.count;
        let exposed = match (m.behind, m.beside.filter(|_| manner.tensor_overlap)) {
            (Behind::Product(p), _) => beyond(seconds, product(&p), manner.contention),
            // The first piece cannot hide (nor the last, of a reduction), the others do beside the product.
            (Behind::Nothing, Some(p)) => {
                let pieces = PIECES;
                seconds / pieces + beyond(seconds * (1.0 - 1.0 / pieces), product(&p), manner.contention)
            }
            (Behind::Nothing, None) => seconds,
            (Behind::Attention, _) => {
                // Steps of a ring: each message beside one step of attention, one step has none.
                let steps = m.count + 1.0;
                m.count * beyond(one.seconds, attention / steps, manner.contention)
            }
        };
        self.messages.push(Traffic {
            kind: m.kind,
            group,
            tier: one.tier,
            load: one.load,
            count: m.count,
            bytes: m.bytes * m.count,
            exposed,
            hidden: (seconds - exposed).max(0.0),
        });
    }
}

/// Pieces of a tensor-parallel message that overlaps its product (Transformer Engine's user buffers split by
/// rank; four is their default for pipelined collectives).
const PIECES: f64 = 4.0;

/// What is left of a message beside a product that both slow down: they run together until one ends, then the
/// other alone. Returns the seconds by which the pair takes longer than the product alone.
fn beyond(message: f64, product: f64, contention: f64) -> f64 {
    let (m, p) = (message * contention, product * contention);
    if m <= p {
        // The product is slowed while the message runs.
        m - m / contention
    } else {
        p - product + (m - p) / contention
    }
}

impl Work {
    /// Kernels that it launches.
    fn launches(&self) -> f64 {
        match self {
            Work::Product { .. } => 1.0,
            Work::Attention { count, .. } => *count,
            Work::Loop { launches, .. } => *launches,
            Work::Message(m) => m.count,
        }
    }
}

//! One function's profile as seconds.

use super::parts::{Compute, Messages, Traffic};
use super::{Factors, Group, Rates, Transfer};
use crate::profile::{Axis, Behind, Item, Message, Profile, Work};
use autoshard_cost::collectives::Kind;
use autoshard_cost::device::Format;
use autoshard_cost::kernels::{Attention, How, Product};

/// What a stack does while it runs a function.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Manner {
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
}

/// A piece of work with its time by the tables, before a stack's factors.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Quote {
    /// A product of operands that are in its format.
    Product { seconds: f64, narrow: bool, activity: f64 },
    /// Attention kernels.
    Attention { seconds: f64, activity: f64 },
    /// Loop kernels.
    Loop { seconds: f64, bytes: f64 },
    /// Messages: one of them, what hides it, and the product beside it.
    Message { message: Message, one: Transfer, behind: f64, beside: Option<f64> },
}

/// A profile's phases with times by the tables: what all stacks with these habits share.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Quoted {
    /// Forward, recomputation, cotangents of activations, cotangents of parameters.
    phases: [Quotes; 4],
}

#[derive(Clone, Debug, Default, PartialEq)]
struct Quotes {
    items: Vec<Quote>,
    launches: f64,
    how: Option<How>,
}

impl Quotes {
    /// Adds loop kernels that bring operands to a format. The casts of a group run close behind each
    /// other and are timed as one; those that are `apart` take a launch of the device each.
    fn kernels(&mut self, rates: &impl Rates, bytes: f64, count: f64, apart: bool) {
        let seconds = if apart { count * rates.memory(bytes / count).seconds } else { rates.memory(bytes).seconds };
        self.launches += count;
        self.items.push(Quote::Loop { seconds, bytes });
    }
}

/// Elements that share a scale (OCP Microscaling Formats 1.0: 32; NVFP4 has 16).
const BLOCK: f64 = 32.0;

/// Formats of products, and the tensor-parallel ranks that bring operands to them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Formats {
    /// Of products with weights inside layers.
    pub narrow: Format,
    /// Of the head's product and of those without weights.
    pub wide: Format,
    /// Whether narrow operands have scales by block (MXFP8, NVFP4).
    pub blocks: bool,
    /// Tensor-parallel ranks.
    pub tp: u64,
}

/// Looks up the times of a profile's work.
///
/// Operands of products with weights inside layers are brought to the narrow format by kernels of their own: inputs
/// in the forward, cotangents in the backward. Inputs that are gathered are brought to it before (Transformer
/// Engine and torchao do): the message has fewer bytes, and each rank casts its share.
pub fn quote(profile: &Profile, rates: &impl Rates, formats: &Formats) -> Quoted {
    let lists = [
        (&profile.forward, Side::Forward),
        (&profile.recompute, Side::Forward),
        (&profile.backward_input, Side::Cotangents),
        (&profile.backward_weight, Side::Weights),
    ];
    let busiest = (busiest(rates, formats.wide), busiest(rates, formats.narrow));
    Quoted { phases: lists.map(|(items, side)| quotes(items, rates, formats, side, busiest)) }
}

/// Which operands of a list's products are new.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    /// Inputs.
    Forward,
    /// Cotangents of results, which are gathered as they are.
    Cotangents,
    /// None: inputs and cotangents were brought to the format before.
    Weights,
}

/// Bytes that move for each element that is brought to a narrow format: it is read in 16 bits and written twice,
/// by rows and by columns, because the weight gradient contracts the other dimension (Transformer Engine's
/// cast-and-transpose and MXFP8 kernels). NVFP4 scales blocks relative to the largest value of the tensor, for
/// which it is read once before.
fn cast_bytes(format: Format) -> f64 {
    let reads = if format == Format::Fp4 { 2.0 } else { 1.0 };
    2.0 * reads + 2.0 * format.bytes()
}

/// `busiest` are the best rates of wide and of narrow products, FLOP/s.
fn quotes(items: &[Item], rates: &impl Rates, formats: &Formats, side: Side, busiest: (f64, f64)) -> Quotes {
    let mut out = Quotes::default();
    let (format, wide) = (formats.narrow, formats.wide);
    let narrow = format.bytes() < 2.0;
    // The product whose input was gathered last.
    let mut gathered: Option<Product> = None;
    for item in items {
        out.launches += item.work.launches();
        let (quote, how) = match &item.work {
            Work::Product { product, weights } => {
                let layers = *weights && !is_head(item);
                let format = if layers { format } else { wide };
                let time = rates.product(&Product { format, ..*product });
                let kernels = item.work.launches();
                if layers && narrow && side != Side::Weights {
                    // Each rank casts its share of what is gathered. As many kernels as products.
                    let share = if gathered == Some(*product) { formats.tp as f64 } else { 1.0 };
                    let bytes = cast_bytes(format) * product.m * product.k * product.count / share;
                    out.kernels(rates, bytes, kernels, false);
                }
                if layers && narrow && formats.blocks {
                    // cuBLAS wants the scales of both operands in an order of its own: a kernel for each.
                    let elements = product.count * (product.m * product.k + product.k * product.n);
                    out.kernels(rates, 2.0 * elements / BLOCK, 2.0 * kernels, true);
                }
                let narrow = format.bytes() < 2.0;
                let best = if narrow { busiest.1 } else { busiest.0 };
                let flops = 2.0 * product.m * product.n * product.k * product.count;
                let activity = flops / time.seconds / best;
                (Quote::Product { seconds: time.seconds, narrow, activity }, time.how)
            }
            Work::Attention { attention, count } => {
                let time = rates.attention(attention);
                // A backward is its forward times a published ratio: what it leans on is the forward.
                let how = rates.attention(&Attention { backward: false, ..*attention }).how;
                let activity = attention.flops() / time.seconds / busiest.0;
                (Quote::Attention { seconds: time.seconds * count, activity }, how)
            }
            Work::Loop { bytes, launches } => {
                // Without a launch of its own it rides on another kernel.
                let kernels = launches.max(1.0);
                let time = rates.memory(bytes / kernels);
                // Loops are bytes over a bandwidth everywhere; only products and attention are marked.
                (Quote::Loop { seconds: time.seconds * kernels, bytes: *bytes }, How::Interpolated)
            }
            Work::Message(m) => {
                let input =
                    side != Side::Cotangents && m.kind == Kind::AllGather && m.axis == Axis::Tp && m.beside.is_some();
                let share = if narrow && input { format.bytes() / 2.0 } else { 1.0 };
                let m = &Message { bytes: m.bytes * share, ..*m };
                gathered = m.beside.filter(|_| input);
                let group = Group::Inside(m.axis);
                let one = match &m.spread {
                    Some(spread) => rates.dispatch(group, m.bytes, spread),
                    None => rates.transfer(m.kind, group, m.bytes),
                };
                let product = |p: &Product| rates.product(&Product { format, ..*p }).seconds;
                let behind = if let Behind::Product(p) = &m.behind { product(p) } else { 0.0 };
                // Pieces go straight into other ranks' memory (Transformer Engine's user buffers), which ends where a
                // network begins.
                let beside = m.beside.as_ref().filter(|_| !one.network).map(product);
                (Quote::Message { message: *m, one, behind, beside }, one.how)
            }
        };
        out.how = Some(out.how.map_or(how, |h| h.max(how)));
        out.items.push(quote);
    }
    out
}

/// FLOP/s of a product that keeps a device's units busiest.
fn busiest(rates: &impl Rates, format: Format) -> f64 {
    let p = Product { format, m: 8192.0, n: 16384.0, k: 16384.0, count: 1.0, accumulate: false };
    2.0 * p.m * p.n * p.k / rates.product(&p).seconds
}

/// Seconds that last over those of a burst, for a kernel that works at `activity` (0–1) of a device's best rate.
///
/// Dynamic power grows with the activity and with the cube of the clock (voltage follows it), and its limit is
/// what holds the busiest kernels to `sustained`: so a clock f is reached with activity·f³ = sustained³, and
/// kernels below sustained³ run as in a burst.
fn lasting(activity: f64, sustained: f64) -> f64 {
    (activity.clamp(0.0, 1.0).cbrt() / sustained).max(1.0)
}

/// Prices quotes by a stack's factors and manner.
pub fn price(quoted: &Quoted, factors: &Factors, manner: &Manner) -> Priced {
    let [forward, recompute, backward_input, backward_weight] =
        [0, 1, 2, 3].map(|i| phase(&quoted.phases[i], factors, manner));
    let mut out = Priced { forward, recompute, backward_input, backward_weight };
    // The host runs ahead of the device and is waited for only where it is slower over a whole pass.
    let launches = [0, 1, 2, 3].map(|i| quoted.phases[i].launches);
    wait(&mut [&mut out.forward], launches[0] * manner.launch);
    let back = &mut [&mut out.backward_input, &mut out.recompute, &mut out.backward_weight];
    wait(back, (launches[1] + launches[2] + launches[3]) * manner.launch);
    out
}

/// Adds what the host needs beyond the phases' seconds to the first of them.
fn wait(phases: &mut [&mut Phase], host: f64) {
    let device: f64 = phases.iter().map(|p| p.seconds()).sum();
    if let Some(first) = phases.first_mut() {
        first.compute.gaps += (host - device).max(0.0);
    }
}

fn phase(quotes: &Quotes, factors: &Factors, manner: &Manner) -> Phase {
    let mut out = Phase { how: quotes.how, ..Phase::default() };
    // Products that hide messages are large.
    let products = factors.products / factors.sustained;
    for quote in &quotes.items {
        match quote {
            Quote::Product { seconds, narrow, activity } => {
                let sustained = if *narrow { factors.sustained_eight_bit } else { factors.sustained };
                out.compute.products += seconds * factors.products * lasting(*activity, sustained);
            }
            Quote::Attention { seconds, activity } => {
                out.compute.attention += seconds * factors.attention * lasting(*activity, factors.sustained);
            }
            Quote::Loop { seconds, bytes } => {
                out.compute.loops += seconds * factors.loops;
                out.compute.loop_bytes += bytes;
            }
            Quote::Message { message, one, behind, beside } => {
                let one = Transfer { seconds: one.seconds * factors.collectives, ..*one };
                let sides = (behind * products, beside.map(|b| b * products), out.compute.attention);
                let traffic = traffic(message, &one, sides, manner);
                out.messages.push(traffic);
            }
        }
    }
    out
}

/// The head's product stays wide: its result goes into the loss.
fn is_head(item: &Item) -> bool {
    item.value.starts_with("logits")
}

/// A message and how much of it is seen, given the seconds of the product that it hides behind, of the one
/// beside it, and of the attention before it.
fn traffic(m: &Message, one: &Transfer, sides: (f64, Option<f64>, f64), manner: &Manner) -> Traffic {
    let (behind, beside, attention) = sides;
    let seconds = one.seconds * m.count;
    let exposed = match (m.behind, beside.filter(|_| manner.tensor_overlap)) {
        (Behind::Product(_), _) => beyond(seconds, behind, manner.contention),
        // The first piece cannot hide (nor the last, of a reduction), the others do beside the product.
        (Behind::Nothing, Some(product)) => {
            seconds / PIECES + beyond(seconds * (1.0 - 1.0 / PIECES), product, manner.contention)
        }
        (Behind::Nothing, None) => seconds,
        // Steps of a ring: each message beside one step of attention, one step has none.
        (Behind::Attention, _) => m.count * beyond(one.seconds, attention / (m.count + 1.0), manner.contention),
    };
    Traffic {
        kind: m.kind,
        group: Group::Inside(m.axis),
        tier: one.tier,
        load: one.load,
        count: m.count,
        bytes: m.bytes * m.count,
        exposed,
        hidden: (seconds - exposed).max(0.0),
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
            // Experts' products are launched one by one, on several streams (Transformer Engine's grouped linear
            // layer calls cuBLAS for each); products without weights are batched.
            Work::Product { product, weights } => {
                if *weights {
                    product.count
                } else {
                    1.0
                }
            }
            Work::Attention { count, .. } => *count,
            Work::Loop { launches, .. } => *launches,
            Work::Message(m) => m.count,
        }
    }
}

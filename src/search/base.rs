//! What decides a micro-batch's kernels, and the bound of all plans that are made of it.

use super::experts::{device_seconds, part};
use super::space::{self, Inside};
use super::variant::Variant;
use super::{Ask, Context, Objective};
use crate::predict::places::groups;
use crate::predict::predictor::Profiles;
use crate::predict::prices::nearest;
use crate::predict::{Layout, PredictError, Schedule};
use autoshard_cost::kernels::Product;
use autoshard_passes::predict::price::Priced;
use autoshard_passes::profile::{self, Profile, Work};
use std::sync::Arc;

/// Seconds of one call of a function.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Seconds {
    /// Forward.
    pub forward: f64,
    /// Gradients of activations.
    pub input: f64,
    /// Gradients of weights.
    pub weight: f64,
    /// What is computed again.
    pub again: f64,
}

impl Seconds {
    /// Of a function's phases.
    pub fn of(p: &Priced) -> Seconds {
        Seconds {
            forward: p.forward.seconds(),
            input: p.backward_input.seconds(),
            weight: p.backward_weight.seconds(),
            again: p.recompute.seconds(),
        }
    }

    /// Without recomputation.
    pub fn once(&self) -> f64 {
        self.forward + self.input + self.weight
    }
}

/// An [`Inside`] with its bound.
#[derive(Clone, Debug)]
pub(crate) struct Base {
    /// Its degrees.
    pub inside: Inside,
    /// Seconds of a micro-batch through the whole model, at the least.
    pub work: f64,
    /// The same without experts and without what the host adds; 0 where there are no experts.
    pub dense: f64,
    /// What every plan of it counts at the least, by the objective.
    pub bound: f64,
    /// Its functions, where experts do not depend on more.
    pub variant: Option<Arc<Variant>>,
}

/// The layout whose profile stands for an [`Inside`]: experts not split.
pub(crate) fn alone(ask: &Ask, i: &Inside) -> Layout {
    space::layout(ask, i, (1, 1), (1, 1), (Schedule::OneFOneB, 1), (0, 1), false)
}

/// Bases of insides that differ in their micro-batch alone. Sizes are linear in it, so two profiles give all.
///
/// # Errors
/// Sizes that no module has.
pub(crate) fn bases(context: &Context, kind: &[Inside], expert_flops: f64) -> Result<Vec<Base>, PredictError> {
    let profiles = |i: &Inside| {
        let layout = alone(context.ask, i);
        let made = context.predictor.profiles_anew(&context.ask.job(&layout, None), None)?;
        // Experts depend on how they are split.
        let functions = made.functions.iter().map(|f| match expert_flops > 0.0 {
            true => Arc::new(part(f, false)),
            false => f.clone(),
        });
        Ok::<_, PredictError>(Profiles { functions: functions.collect(), ..made })
    };
    let mut known: Vec<(u64, Profiles)> = Vec::with_capacity(2);
    let mut out = Vec::with_capacity(kind.len());
    for i in kind {
        let between = match &known[..] {
            [one, two] => between((one.0, &one.1), (two.0, &two.1), i.micro_batch),
            _ => None,
        };
        let made = match between {
            Some(made) => made,
            None => profiles(i)?,
        };
        out.push(base(context, *i, &made, expert_flops)?);
        if known.len() < 2 {
            known.push((i.micro_batch, made));
        }
    }
    Ok(out)
}

fn between((one, a): (u64, &Profiles), (two, b): (u64, &Profiles), batch: u64) -> Option<Profiles> {
    let share = (batch as f64 - one as f64) / (two as f64 - one as f64);
    let pairs = a.functions.iter().zip(&b.functions);
    let functions = pairs.map(|(a, b)| profile::between(a, b, share).map(Arc::new)).collect::<Option<Vec<_>>>()?;
    Some(Profiles { functions, calls: a.calls.clone(), layer: a.layer.clone() })
}

/// Prices an [`Inside`]. Of experts only FLOPs count, at the fastest rate.
fn base(context: &Context, i: Inside, profiles: &Profiles, expert_flops: f64) -> Result<Base, PredictError> {
    let ask = context.ask;
    let layout = alone(ask, &i);
    let places = nearest(&groups(&ask.job(&layout, None)));
    let (work, dense, variant) = if expert_flops > 0.0 {
        let price = context.prices.at(&places, i.tp)?;
        let (mut work, mut dense) = (0.0, 0.0);
        for (f, n) in &profiles.calls {
            let priced = price(&profiles.functions[*f]);
            work += *n as f64 * Seconds::of(&priced).once();
            dense += *n as f64 * device_seconds(&priced);
        }
        let experts = expert_flops * i.micro_batch as f64 / (i.tp * i.cp) as f64 / context.fastest;
        (work + EXPERTS_AT_LEAST * experts, dense, None)
    } else {
        let variant = Variant::new(context, profiles, &places, i.tp, None)?;
        (variant.work, 0.0, Some(Arc::new(variant)))
    };
    let sets = (ask.global_batch / i.micro_batch) as f64;
    let device_seconds = work * sets * (i.tp * i.cp) as f64;
    let bound = match ask.objective {
        // Failures only make it longer.
        Objective::StepTime | Objective::Goodput => device_seconds / ask.devices as f64,
        Objective::Cost => device_seconds,
    };
    Ok(Base { inside: i, work, dense, bound, variant })
}

/// Share of the time at the fastest known rate that products of experts take at least: some shape may be faster than
/// the one that the rate is of.
const EXPERTS_AT_LEAST: f64 = 0.9;

/// FLOPs of all experts' products, forward and backward, for one sequence.
///
/// # Errors
/// As [`base`].
pub(crate) fn expert_flops(context: &Context) -> Result<f64, PredictError> {
    let ask = context.ask;
    if ask.facts.experts == 0 {
        return Ok(0.0);
    }
    let inside = Inside { tp: 1, sp: false, cp: 1, cp_method: crate::predict::CpMethod::Ring, micro_batch: 1 };
    let layout = alone(ask, &inside);
    let profiles = context.predictor.profiles_anew(&ask.job(&layout, None), None)?;
    let flops = |p: &Profile| -> f64 {
        let lists = [&p.forward, &p.backward_input, &p.backward_weight];
        lists.into_iter().flatten().filter(|item| item.expert).map(|item| product_flops(&item.work)).sum()
    };
    Ok(profiles.calls.iter().map(|(f, n)| *n as f64 * flops(&profiles.functions[*f])).sum())
}

fn product_flops(work: &Work) -> f64 {
    match work {
        Work::Product { product: Product { m, n, k, count, .. }, .. } => 2.0 * m * n * k * count,
        Work::Attention { .. } | Work::Loop { .. } | Work::Message(_) => 0.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decoder::Decoder;
    use crate::predict::fix::Fix;
    use crate::predict::predictor::Predictor;
    use crate::predict::{facts, CpMethod, Precision};
    use crate::report::stages::Room;
    use crate::{hardware, stacks};
    use autoshard_passes::profile::{Item, Message};
    use std::path::Path;

    /// Every number of the items that are not of experts, in order.
    fn numbers(p: &Profile) -> Vec<f64> {
        let product = |p: &Product| vec![p.m, p.n, p.k, p.count];
        let message = |m: &Message| {
            let beside = m.beside.iter().flat_map(product).collect::<Vec<_>>();
            [vec![m.bytes, m.count], beside].concat()
        };
        let item = |i: &Item| match &i.work {
            Work::Product { product: p, .. } => product(p),
            Work::Attention { attention: a, count } => {
                vec![a.batch, a.queries, a.keys, a.heads, a.kv_heads, a.head_dim, a.value_dim, a.share, *count]
            }
            Work::Loop { bytes, launches } => vec![*bytes, *launches],
            Work::Message(m) => message(m),
        };
        let lists = [&p.forward, &p.backward_input, &p.backward_weight];
        lists.into_iter().flatten().flat_map(item).chain([p.boundary_bytes, p.attention_flops]).collect()
    }

    #[test]
    fn sizes_are_linear_in_the_micro_batch() {
        let cluster = hardware::cluster("dgx-h100").unwrap();
        let stack = stacks::find("megatron-core-2025").unwrap().stack;
        let (predictor, fix) = (Predictor::default(), Fix::default());
        for name in ["meta-llama-3.1-8b", "deepseek-v3", "mixtral-8x7b-v0.1", "gpt-oss-20b", "gpt3-175b"] {
            let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/models").join(format!("{name}.json"));
            let decoder = Decoder::load(&path).unwrap();
            let facts = facts::of(&decoder);
            let ask = Ask {
                key: name,
                decoder: &decoder,
                facts: &facts,
                cluster: &cluster,
                stack: &stack,
                devices: 64,
                seq_len: 2048,
                global_batch: 60,
                precision: Precision::Bf16,
                fix: &fix,
                room: Room::new(&cluster.device, None, None),
                objective: Objective::StepTime,
                top: 1,
                exhaustive: false,
            };
            for (tp, cp) in [(1, 1), (4, 1), (2, 2)] {
                let of = |micro_batch: u64| {
                    let i = Inside { tp, sp: tp > 1, cp, cp_method: CpMethod::Ring, micro_batch };
                    let layout = alone(&ask, &i);
                    let made = predictor.profiles_anew(&ask.job(&layout, None), None).unwrap();
                    let functions = made.functions.iter().map(|f| Arc::new(part(f, false))).collect();
                    Profiles { functions, ..made }
                };
                let (one, two, five) = (of(1), of(2), of(5));
                let made = between((1, &one), (2, &two), 5).unwrap();
                for (made, real) in made.functions.iter().zip(&five.functions) {
                    let (made, real) = (numbers(made), numbers(real));
                    assert_eq!(made.len(), real.len());
                    let near = |(a, b): (&f64, &f64)| (a - b).abs() <= 1e-12 * b.abs();
                    assert!(made.iter().zip(&real).all(near), "{name} tp={tp} cp={cp}");
                }
            }
        }
    }
}

//! Every plan of a small space, each simulated: no bounds, no short cuts, no memory of what was seen.

use super::case::Case;
use autoshard::predict::predictor::Predictor;
use autoshard::predict::{Layout, Order, Recompute, Role};
use autoshard::search::{check, space, Ask};

/// The best plan, and how many there are.
pub struct Answer {
    pub value: f64,
    pub layout: Option<Layout>,
    /// Plans that were tried, those that do not fit included; orders of axes counted.
    pub plans: u64,
}

/// Simulates all plans of a case.
pub fn best(case: &Case, predictor: &Predictor) -> Answer {
    let ask = &case.ask();
    let mut out = Answer { value: f64::INFINITY, layout: None, plans: 0 };
    let policies = check::recomputations(ask);
    each_layout(ask, |layout| {
        for layers in check::cuts(ask, predictor, &layout).unwrap() {
            let layers = layers.as_deref();
            for recompute in recomputations(ask, predictor, &layout, layers, &policies) {
                for order in orders() {
                    let layout = Layout { order: Some(order), recompute: recompute.clone(), ..layout.clone() };
                    out.plans += 1;
                    let prediction = predictor.predict(&ask.job(&layout, layers)).unwrap();
                    if !prediction.stages.iter().all(|s| ask.room.holds(s.memory.as_ref().unwrap())) {
                        continue;
                    }
                    let value = prediction.step_seconds * ask.objective.weight(ask, layout.devices());
                    if value < out.value {
                        out.value = value;
                        out.layout = Some(layout);
                    }
                }
            }
        }
    });
    out
}

/// Layouts before cuts, recomputation and orders of axes.
pub fn each_layout(ask: &Ask, mut of: impl FnMut(Layout)) {
    for inside in space::insides(ask) {
        for (pp, dp) in space::pipelines(ask, &inside) {
            let microbatches = ask.global_batch / dp / inside.micro_batch;
            for experts in space::experts(ask, inside.tp * inside.cp * dp) {
                for schedule in space::schedules(ask, pp, microbatches) {
                    for sharing in space::sharings(ask, inside.cp * dp) {
                        for keep in space::keeps(ask, sharing.0) {
                            of(space::layout(ask, &inside, (pp, dp), experts, schedule, sharing, keep));
                        }
                    }
                }
            }
        }
    }
}

/// What a plan may compute again: as few whole layers of each stage as memory wants, counted up one by one; and where
/// that is some, each of the other policies.
fn recomputations(
    ask: &Ask,
    predictor: &Predictor,
    layout: &Layout,
    layers: Option<&[u64]>,
    policies: &[Recompute],
) -> Vec<Recompute> {
    let memory = |recompute: Recompute| {
        let layout = Layout { recompute, ..layout.clone() };
        predictor.memory(&ask.job(&layout, layers)).unwrap()
    };
    let held = |recompute| memory(recompute).iter().map(|m| ask.room.holds(m)).collect::<Vec<bool>>();
    let held_without = held(Recompute::None);
    if held_without.iter().all(|held| *held) {
        return vec![Recompute::None];
    }
    let mut counts: Vec<Option<u64>> = held_without.iter().map(|held| held.then_some(0)).collect();
    for n in 1..=ask.facts.layers {
        let held = held(Recompute::Stages(vec![n; layout.pp as usize]));
        for (count, held) in counts.iter_mut().zip(held) {
            if held && count.is_none() {
                *count = Some(n);
            }
        }
    }
    let fewest = counts.into_iter().collect::<Option<Vec<u64>>>().map(Recompute::Stages);
    let others = policies.iter().filter(|p| **p != Recompute::None).cloned();
    fewest.into_iter().chain(others).collect()
}

/// All orders of the axes.
pub fn orders() -> Vec<Order> {
    let mut out = Vec::new();
    for a in Role::ALL {
        for b in Role::ALL {
            for c in Role::ALL {
                for d in Role::ALL {
                    let all = [*a, *b, *c, *d];
                    if Role::ALL.iter().all(|r| all.contains(r)) {
                        out.push(Order(all));
                    }
                }
            }
        }
    }
    out
}

//! Plans of a space, drawn at random.

use super::brute;
use super::case::Random;
use autoshard::predict::predictor::Predictor;
use autoshard::predict::{Layout, Module, Recompute};
use autoshard::search::check::Plan;
use autoshard::search::{space, Ask};

/// A layout of some insides with its axes in any order and anything computed again. `None` where what was drawn first
/// leaves nothing.
pub fn draw(ask: &Ask, insides: &[space::Inside], r: &mut Random) -> Option<Layout> {
    let inside = some(r, insides)?;
    let pipelines = space::pipelines(ask, &inside);
    // Every other one with stages, where there are such.
    let with_stages: Vec<(u64, u64)> = pipelines.iter().copied().filter(|(pp, _)| *pp > 1).collect();
    let from = if r.next().is_multiple_of(2) && !with_stages.is_empty() { &with_stages } else { &pipelines };
    let (pp, dp) = some(r, from)?;
    let experts = some(r, &space::experts(ask, inside.tp * inside.cp * dp))?;
    let schedule = some(r, &space::schedules(ask, pp, ask.global_batch / dp / inside.micro_batch))?;
    let zero = r.next() as u8 % 4;
    let sharings = space::sharings(ask, inside.cp * dp);
    let of_stage: Vec<(u8, u64)> = sharings.iter().copied().filter(|(z, _)| *z == zero).collect();
    let sharing = some(r, &of_stage).or_else(|| some(r, &sharings))?;
    let keep = some(r, &space::keeps(ask, sharing.0))?;
    let layout = space::layout(ask, &inside, (pp, dp), experts, schedule, sharing, keep);
    let (recompute, order) = (recompute(ask, pp, r), r.one(&brute::orders()));
    Some(Layout { recompute, order: Some(order), ..layout })
}

fn some<T: Clone>(r: &mut Random, of: &[T]) -> Option<T> {
    (!of.is_empty()).then(|| r.one(of))
}

fn recompute(ask: &Ask, pp: u64, r: &mut Random) -> Recompute {
    let each = ask.facts.layers / pp + 1;
    match r.next() % 6 {
        0 => Recompute::Full,
        1 => Recompute::Stages((0..pp).map(|_| r.next() % (each + 1)).collect()),
        2 => Recompute::Layers(1 + r.next() % ask.facts.layers),
        3 => Recompute::Selective(r.one(&[
            vec![Module::CoreAttn],
            vec![Module::LayerNorm],
            vec![Module::Mlp],
            vec![Module::CoreAttn, Module::LayerNorm],
        ])),
        _ => Recompute::None,
    }
}

/// The plan with a layer moved from a stage to another one, where it can be.
pub fn moved(ask: &Ask, predictor: &Predictor, layout: &Layout, r: &mut Random) -> Plan {
    let usual = (layout.clone(), None);
    if layout.pp < 2 {
        return usual;
    }
    let Ok(prediction) = predictor.predict(&ask.job(layout, None)) else { return usual };
    let mut layers: Vec<u64> = prediction.stages.iter().map(|s| s.layers).collect();
    let (from, to) = (r.next() as usize % layers.len(), r.next() as usize % layers.len());
    if layers[from] == 0 || from == to {
        return usual;
    }
    layers[from] -= 1;
    layers[to] += 1;
    match predictor.memory(&ask.job(layout, Some(&layers))) {
        Ok(_) => (layout.clone(), Some(layers)),
        Err(_) => usual,
    }
}

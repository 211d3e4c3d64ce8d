//! Answers: a layout that is decided is predicted, anything else is searched.

use super::question::Question;
use crate::commands::validate::failure;
use crate::commands::Failure;
use autoshard::decoder::Position;
use autoshard::planfile::{decisions, PlanFile};
use autoshard::predict::fix::{words, Fix};
use autoshard::predict::settings::{settle, Impossible, Settings};
use autoshard::predict::wired::Wired;
use autoshard::predict::{Backend, Layout, Prediction, Request};
use autoshard::report::prediction::Planned;
use autoshard::report::search::{sum_of, Searched};
use autoshard::report::stages;
use autoshard::search::{self, infeasible, space, Found, Infeasible};
use std::time::Instant;

/// Devices above which a search without bounds is refused unless its space is small.
const EXHAUSTIVE_DEVICES: u64 = 512;
/// How small.
const EXHAUSTIVE_CANDIDATES: u64 = 1_000_000;

/// A plan with what it takes.
pub struct Chosen {
    /// What is decided, and for what.
    pub plan: PlanFile,
    /// The same with who decided.
    pub settings: Settings,
    /// Layers by stage, where they are not those of the usual cut.
    pub stated: Option<Vec<u64>>,
    /// What its step takes.
    pub prediction: Prediction,
}

/// An answer.
pub enum Answer {
    /// Plans, best first, and how they were found.
    Found(Vec<Chosen>, Searched),
    /// No plan of the space fits.
    Nothing(Box<Infeasible>),
}

/// Answers a question.
///
/// # Errors
/// Decisions that cannot hold together; as predictions.
pub fn answer(q: &Question, backend: &Wired) -> Result<Answer, Failure> {
    let started = Instant::now();
    positions(q)?;
    if !q.is_decided() {
        return searched(q, backend, started);
    }
    let f = &q.fix;
    // With dp decided, too, all that are left may idle.
    let used = f.dp.map(|dp| [f.tp, f.cp, f.pp].into_iter().flatten().fold(dp, u64::saturating_mul));
    let devices = used.filter(|used| *used <= q.devices).unwrap_or(q.devices);
    let settings = settle(f, &q.job(devices, q.global_batch)).map_err(impossible)?;
    let chosen = chosen(q, settings, None, backend)?;
    Ok(Answer::Found(vec![chosen], Searched::one_layout(started.elapsed().as_secs_f64())))
}

/// Refuses sequences that no layout of the model can have.
fn positions(q: &Question) -> Result<(), Failure> {
    let asked = q.positions();
    if let Position::Learned { rows: Some(rows) } = q.named.1.position {
        if asked > rows as u64 {
            return Err(Failure::Usage(format!(
                "--seq-len {asked} is more than the {rows} positions that the model has a trained table of; give {rows} \
                 or fewer"
            )));
        }
    }
    if space::insides(&q.ask(&Fix::default())).is_empty() {
        return Err(Failure::Usage(format!(
            "--seq-len {asked}: one sequence has more attention scores or logits than a tensor may have elements (2^48); \
             give shorter sequences"
        )));
    }
    Ok(())
}

fn impossible(e: Impossible) -> Failure {
    Failure::Usage(format!("--fix: {e}"))
}

fn searched(q: &Question, backend: &Wired, started: Instant) -> Result<Answer, Failure> {
    contradiction(q).map_or(Ok(()), |e| Err(impossible(e)))?;
    let spaces = q.spaces();
    let sizes: Vec<space::Size> = spaces.iter().map(|fix| space::size(&q.ask(fix))).collect();
    let total = |of: fn(&space::Size) -> u64| sizes.iter().map(of).sum::<u64>();
    let (whole, idle) = (total(|s| s.whole), total(|s| s.idle));
    if whole + idle == 0 {
        return Err(empty(q, &spaces));
    }
    exhaustive_is_small(q, whole + idle)?;
    let (mut found, mut out): (Vec<Found>, Searched) = (Vec::new(), Searched::default());
    let mut bound = f64::INFINITY;
    for fix in &spaces {
        let outcome = search::search(&q.ask(fix), backend.predictor()).map_err(failure)?;
        found.extend(outcome.best);
        out.evaluated += outcome.counts.evaluated;
        out.simulated += outcome.counts.simulated;
        bound = bound.min(outcome.counts.least_bound);
    }
    // Stable: of equal plans the first space's first.
    found.sort_by(|a, b| a.value.total_cmp(&b.value));
    found.truncate(q.top.max(1));
    let Some(best) = found.first() else { return Ok(Answer::Nothing(Box::new(smallest(q, &spaces, backend)?))) };
    let weight = q.objective.weight(&q.ask(&q.fix), best.layout.devices());
    out.lower_bound = Some((bound / weight).min(best.seconds));
    out.candidates = if whole > 0 { whole } else { idle };
    (out.before_orders, out.idle, out.optimal) = (total(|s| s.without_orders), idle, true);
    let all = found.into_iter().map(|f| planned(q, f, backend)).collect::<Result<Vec<_>, _>>()?;
    out.seconds = started.elapsed().as_secs_f64();
    Ok(Answer::Found(all, out))
}

/// What is wrong with the decisions that are about stages and what they keep: no other decision can mend it. The
/// space is not counted by all of them, so it need not be empty.
fn contradiction(q: &Question) -> Option<Impossible> {
    let f = &q.fix;
    let chunked = f.vpp.is_some_and(|v| v > 1);
    let pp = f.pp.unwrap_or(if chunked { 2 } else { 1 });
    let only = Fix {
        pp: Some(pp),
        vpp: f.vpp,
        schedule: f.schedule,
        // Groups of micro-batches are of so many stages as are decided.
        microbatches: f.microbatches.filter(|_| f.pp.is_some()),
        recompute: f.recompute.clone(),
        ..Fix::default()
    };
    if let (Some(zero), Some(true)) = (f.zero.filter(|z| *z < 3), f.keep) {
        return Some(Impossible::Keep { zero });
    }
    settle(&only, &q.job(pp, None)).err()
}

/// Why no layout has these decisions: the rule that they break on as many devices as they name, or on all of them
/// with defaults beside them.
fn empty(q: &Question, spaces: &[Fix]) -> Failure {
    let on = |fix: &Fix, devices: u64| settle(fix, &q.job(devices, Some(q.batch()))).err();
    let f = &q.fix;
    let product = [f.tp, f.cp, f.pp, f.dp].into_iter().flatten().fold(1, u64::saturating_mul);
    // What is shared out over data ranks and experts' ranks is right or wrong by their number.
    let open = Fix { ep: None, etp: None, shard_group: None, ..f.clone() };
    let named = if product <= q.devices { on(&open, product) } else { None };
    let broken = named.or_else(|| on(f, q.devices)).or_else(|| spaces.iter().find_map(|fix| on(fix, q.devices)));
    let rules = rules_of_each(q);
    match (broken, rules.len()) {
        (_, 1..) => Failure::Usage(format!("--fix: {}", rules.join("; and "))),
        (Some(broken), _) => impossible(broken),
        (None, _) => Failure::Usage(format!(
            "--fix: no layout on at most {} devices with {} sequences of {} has all of these decisions; leave some out",
            q.devices,
            q.batch(),
            q.positions()
        )),
    }
}

/// The rules that decisions of `--fix` break each by itself.
fn rules_of_each(q: &Question) -> Vec<String> {
    let f = &q.fix;
    let fixed = |decision: &str| match decision.split(' ').next() {
        Some("tp") => f.tp,
        Some("cp") => f.cp,
        Some("pp") => f.pp,
        Some("dp") => f.dp,
        Some("ep") => f.ep,
        Some("mbs") => f.mbs,
        _ => None,
    };
    let mut out: Vec<String> = Vec::new();
    for r in search::rejected(&q.ask(f)) {
        // What is wrong with one value in several ways is told once.
        if fixed(&r.decision).is_some_and(|value| r.values.contains(&value)) && !out.contains(&r.rule) {
            out.push(r.rule);
        }
    }
    out
}

fn exhaustive_is_small(q: &Question, candidates: u64) -> Result<(), Failure> {
    if !q.exhaustive || q.devices <= EXHAUSTIVE_DEVICES || candidates <= EXHAUSTIVE_CANDIDATES {
        return Ok(());
    }
    Err(Failure::Usage(format!(
        "--exhaustive bounds each of {candidates} plans on {} devices one by one: that is for at most \
         {EXHAUSTIVE_DEVICES} devices or {EXHAUSTIVE_CANDIDATES} plans; decide more by --fix, or leave it out: the \
         search proves the same",
        q.devices
    )))
}

/// The space that comes nearest to fitting.
fn smallest(q: &Question, spaces: &[Fix], backend: &Wired) -> Result<Infeasible, Failure> {
    let asked = spaces.iter().filter(|fix| {
        let size = space::size(&q.ask(fix));
        size.whole + size.idle > 0
    });
    let all = asked.map(|fix| infeasible(&q.ask(fix), backend.predictor())).collect::<Result<Vec<_>, _>>();
    let all = all.map_err(failure)?;
    let least = all.into_iter().min_by(|a, b| a.smallest_memory.total_cmp(&b.smallest_memory));
    least.ok_or_else(|| empty(q, spaces))
}

/// A plan that was found: every decision with who made it, and its prediction.
fn planned(q: &Question, found: Found, backend: &Wired) -> Result<Chosen, Failure> {
    let Found { layout, stated, .. } = found;
    let mut settings = settle(&decisions(&layout), &q.job(layout.devices(), Some(q.batch())))
        .map_err(|e| Failure::Failed(format!("the search found a layout that cannot be ({}): {e}", words(&layout))))?;
    let keys = q.fix.keys();
    let executed: Vec<&str> = q.spaces().iter().flat_map(Fix::keys).collect();
    for line in &mut settings.lines {
        line.default = match line.key {
            "seq-len" => continue,
            "global-batch" if q.global_batch.is_none() => "default: one for each device".into(),
            key if key == "global-batch" || keys.contains(&key) => String::new(),
            "zero" => "found".into(),
            key if executed.contains(&key) => "default: what is executed so far".into(),
            _ => "found".into(),
        };
    }
    chosen(q, settings, stated, backend)
}

fn chosen(q: &Question, settings: Settings, stated: Option<Vec<u64>>, backend: &Wired) -> Result<Chosen, Failure> {
    let prediction = backend.predict(&request(q, &settings.layout, settings.seq_len, stated.as_deref()));
    let prediction = prediction.map_err(failure)?;
    let plan = PlanFile {
        model: q.reference.clone(),
        cluster: q.cluster_name.clone(),
        stack: q.stack.name.clone(),
        precision: q.precision,
        seq_len: settings.seq_len,
        global_batch: settings.global_batch,
        devices: q.devices,
        memory: q.bound,
        layout: settings.layout.clone(),
        layers_per_stage: stages::layers(&prediction, q.facts.layers),
    };
    Ok(Chosen { plan, settings, stated, prediction })
}

/// What a plan's prediction is asked by.
pub fn request<'a>(q: &'a Question, layout: &'a Layout, seq_len: u64, stated: Option<&'a [u64]>) -> Request<'a> {
    Request {
        model: &q.model,
        facts: &q.facts,
        cluster: &q.cluster,
        devices: layout.devices(),
        seq_len,
        precision: q.precision,
        stack: &q.stack,
        layout,
        layers_per_stage: stated,
    }
}

impl Chosen {
    /// What a report tells of it.
    pub fn planned<'a>(&'a self, q: &'a Question, tokens: Option<f64>) -> Planned<'a> {
        Planned {
            facts: &q.facts,
            cluster: &q.cluster,
            plan: &self.plan,
            settings: &self.settings,
            prediction: &self.prediction,
            room: q.room(),
            tokens,
        }
    }
}

/// Why nothing fits, with what would.
pub fn nothing_fits(q: &Question, n: &Infeasible) -> String {
    let fewer = if q.fix.keys().is_empty() { "" } else { ", or decide less by --fix" };
    let instead = match n.fewest_devices {
        Some(devices) if devices > q.devices => {
            format!("plan with --devices {devices} or more, or with more memory a device{fewer}")
        }
        _ => format!(
            "more devices do not help with a batch of {}: plan with more memory a device, shorter sequences or a \
             larger batch{fewer}",
            q.batch()
        ),
    };
    let layers = n.smallest_layers.as_ref().map_or(String::new(), |l| format!(" with {} layers a stage", sum_of(l)));
    format!("nothing fits: {}\n  that plan: --fix {}{layers}\n  instead: {instead}", n.reason, words(&n.smallest))
}

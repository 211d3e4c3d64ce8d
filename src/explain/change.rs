//! A change of a layout: some decisions are set, the others kept where they can be.

use super::Subject;
use crate::planfile::{decisions, execution, PlanFile};
use crate::predict::fix::{lines, Fix};
use crate::predict::predictor::Predictor;
use crate::predict::settings::{settle, Impossible};
use crate::predict::{Layout, Order, Prediction, Recompute, THIS_MACHINE};

/// A decision that is set, and how.
pub struct Change<'a> {
    /// What is changed, as `--fix` says it.
    pub name: String,
    /// Sets it.
    pub set: Box<dyn Fn(&mut Fix) + 'a>,
}

/// A changed plan and what its step takes.
#[derive(Clone, Debug, PartialEq)]
pub struct Changed {
    /// The whole layout.
    pub layout: Layout,
    /// What it takes.
    pub prediction: Prediction,
    /// Whether its fullest stage fits; `None` where memory is not predicted.
    pub fits: Option<bool>,
    /// Decisions that followed, as `--fix` says them.
    pub followed: Vec<String>,
}

/// What became of a change.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// It was there already.
    Same,
    /// It can be.
    Changed(Box<Changed>),
    /// It breaks this rule, or is not predicted for this reason.
    Refused(String),
}

/// Applies a change to a plan. dp and the micro-batches follow what is set; if that breaks a rule, so do, one
/// after the other, what data ranks share, the split of experts, the split of positions, chunks and schedule.
pub fn apply(subject: &Subject, change: &Change, predictor: &Predictor) -> Outcome {
    let base = &subject.plan.layout;
    let layout = match resettle(subject, &*change.set) {
        Ok(layout) if layout == resolved(base, subject.order()) => return Outcome::Same,
        Ok(layout) => layout,
        Err(e) => return Outcome::Refused(e.to_string()),
    };
    // The stages of the plan are those of its pipeline; another one is cut anew.
    let pipeline = |l: &Layout| (l.pp, l.vpp, l.schedule);
    let stated = subject.stated.as_deref().filter(|_| pipeline(&layout) == pipeline(base));
    if let Some(why) = not_executed(subject, &layout) {
        return Outcome::Refused(why);
    }
    match subject.predict(&layout, stated, predictor) {
        Err(e) => Outcome::Refused(e.to_string()),
        Ok(prediction) => {
            let fits = crate::report::stages::fits(&prediction, &subject.room);
            let followed = followed(&resolved(base, subject.order()), &layout, &change.name);
            Outcome::Changed(Box::new(Changed { layout, prediction, fits, followed }))
        }
    }
}

/// Why a plan that is made to be run here could not be run with this layout, where the plan itself can.
fn not_executed(subject: &Subject, layout: &Layout) -> Option<String> {
    let here = subject.plan.cluster == THIS_MACHINE && execution(&subject.plan).is_ok();
    let plan = PlanFile { layout: layout.clone(), ..subject.plan.clone() };
    execution(&plan).err().filter(|_| here).map(|e| e.to_string())
}

/// The layout with its order said.
fn resolved(layout: &Layout, order: Order) -> Layout {
    Layout { order: Some(order), ..layout.clone() }
}

type Follow = fn(&mut Fix);

/// What may follow a change, in this order.
const FOLLOWERS: [Follow; 5] = [
    |f| f.shard_group = None,
    |f| f.keep = None,
    |f| f.etp = None,
    |f| f.sp = None,
    |f| (f.vpp, f.schedule) = (None, None),
];

fn resettle(subject: &Subject, set: &dyn Fn(&mut Fix)) -> Result<Layout, Impossible> {
    let (plan, order) = (&subject.plan, subject.order());
    let base = resolved(&plan.layout, order);
    let job = plan.job(&subject.facts, order);
    let mut kept = decisions(&base);
    (kept.dp, kept.microbatches) = (None, None);
    if base.zero > 0 && base.shard_group == base.dp.saturating_mul(base.cp) {
        // All ranks stay all ranks.
        kept.shard_group = None;
    }
    let tried = |kept: &Fix| {
        let mut fix = kept.clone();
        set(&mut fix);
        if let (Some(Recompute::Stages(counts)), Some(pp)) = (&fix.recompute, fix.pp) {
            if counts.len() as u64 != pp {
                // As many layers of the model, spread over other stages.
                let all: u64 = counts.iter().sum();
                fix.recompute = Some(if all == 0 { Recompute::None } else { Recompute::Layers(all) });
            }
        }
        settle(&fix, &job).map(|s| s.layout)
    };
    let mut last = tried(&kept);
    for follow in FOLLOWERS {
        if last.is_ok() {
            break;
        }
        follow(&mut kept);
        last = tried(&kept);
    }
    last
}

/// Decisions that differ and are not in the change's name.
fn followed(base: &Layout, layout: &Layout, name: &str) -> Vec<String> {
    let differing = lines(base).into_iter().zip(lines(layout)).filter(|(a, b)| a != b);
    let words = differing.map(|(_, (key, value))| format!("{key}={value}"));
    words.filter(|word| !name.split(',').any(|said| said == word)).collect()
}

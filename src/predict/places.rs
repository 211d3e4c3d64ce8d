//! Where the groups of a layout sit, each kept once it was counted.

use super::predictor::{spread, Job};
use super::{Order, PredictError, Role};
use autoshard_cost::cluster::Cluster;
use autoshard_cost::layout::{place, MeshAxis, Placement};
use autoshard_passes::predict::Group;
use autoshard_passes::profile::Axis;
use rustc_hash::FxHashMap;
use std::sync::{Arc, Mutex, PoisonError};

/// A group among all ranks: axes from the innermost, with whether the group's ranks differ in them. Axes of one rank
/// are left out and neighbours of one kind joined, so equal digits are equal groups.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Digits {
    len: usize,
    /// Behind `len` nothing.
    all: [(u64, bool); AXES],
}

/// Axes of a layout at the most: tp, cp, data ranks inside a shard group and outside, stages; as many of experts.
const AXES: usize = 5;

impl Digits {
    /// A group whose ranks are neighbours.
    pub fn neighbours(ranks: u64) -> Digits {
        joined(std::iter::once((ranks, true)))
    }

    /// From the innermost.
    pub fn iter(&self) -> impl Iterator<Item = &(u64, bool)> {
        self.all[..self.len].iter()
    }

    /// Ranks of the group.
    pub fn ranks(&self) -> u64 {
        self.iter().filter(|(_, varies)| *varies).map(|(n, _)| n).product()
    }

    fn last_mut(&mut self) -> Option<&mut (u64, bool)> {
        self.all[..self.len].last_mut()
    }
}

/// Axes with their sizes, from the innermost.
type Axes<'a> = &'a [(u8, u64)];

/// Axes of a layout, one bit each.
const TP: u8 = 1;
const CP: u8 = 2;
const SHARD: u8 = 4;
const REPLICA: u8 = 8;
const PP: u8 = 16;
/// Those of the same ranks that split experts.
const ETP: u8 = 1;
const EP: u8 = 2;

/// The groups of a layout that have more than one rank. The ranks of a stage are experts' ranks, too: those that split
/// experts stand where the stage's innermost axes do, their data ranks behind them.
pub(crate) fn groups(job: &Job) -> Vec<(Group, Digits)> {
    let (l, s) = (job.layout, spread(job.layout));
    let order = l.order.unwrap_or(Order::of(job.stack.habits.stages_inside));
    let of = |role: &Role| match role {
        Role::Tp => [(TP, l.tp), (0, 1)],
        Role::Cp => [(CP, l.cp), (0, 1)],
        Role::Dp => [(SHARD, s.inner), (REPLICA, s.outer)],
        Role::Pp => [(PP, l.pp), (0, 1)],
    };
    let mut dense = [(0, 1); 8];
    dense.iter_mut().zip(order.0.iter().flat_map(of)).for_each(|(axis, found)| *axis = found);
    let inside: u64 = dense.iter().take_while(|(axis, _)| *axis != PP).map(|(_, n)| n).product();
    let experts = [(ETP, l.etp), (EP, l.ep), (SHARD, s.expert[0]), (REPLICA, s.expert[1])];
    let experts = with_stages(&experts, inside, l.pp);
    let whole = l.zero == 0;
    let dense_replicas = if whole { CP | SHARD | REPLICA } else { REPLICA };
    let all: [(Group, Axes, u8); 9] = [
        (Group::Inside(Axis::Tp), &dense, TP),
        (Group::Inside(Axis::Cp), &dense, CP),
        (Group::Inside(Axis::Ep), &experts, EP),
        (Group::Inside(Axis::Etp), &experts, ETP),
        (Group::Shard, &dense, CP | SHARD),
        (Group::Replicas, &dense, dense_replicas),
        (Group::Pipeline, &dense, PP),
        (Group::ExpertShard, &experts, SHARD),
        (Group::ExpertReplicas, &experts, if whole { SHARD | REPLICA } else { REPLICA }),
    ];
    let mut out = Vec::with_capacity(all.len());
    for (group, axes, names) in all {
        let digits = joined(axes.iter().map(|(axis, n)| (*n, axis & names != 0)));
        if digits.ranks() > 1 {
            out.push((group, digits));
        }
    }
    out
}

/// Axes of a stage's ranks with `stages` outside of as many ranks as are `inside` of them: between two axes, or inside
/// one. Where that parts an axis unevenly they stand inside of all of it.
fn with_stages(axes: &[(u8, u64); 4], inside: u64, stages: u64) -> [(u8, u64); 6] {
    let mut out = [(0, 1); 6];
    let (mut at, mut below, mut placed) = (0, 1, false);
    let mut add = |axis| {
        out[at] = axis;
        at += 1;
    };
    for (axis, n) in axes {
        let within = inside / below;
        if placed || within >= *n {
            add((*axis, *n));
        } else {
            let part = if inside.is_multiple_of(below) && n.is_multiple_of(within.max(1)) { within.max(1) } else { 1 };
            [(*axis, part), (PP, stages), (*axis, n / part)].into_iter().for_each(&mut add);
            placed = true;
        }
        below *= n;
    }
    if !placed {
        add((PP, stages));
    }
    out
}

/// Digits of at most [`AXES`] axes.
pub(crate) fn joined(axes: impl Iterator<Item = (u64, bool)>) -> Digits {
    let mut out = Digits::default();
    for (size, varies) in axes.filter(|(size, _)| *size > 1) {
        match out.last_mut() {
            Some(last) if last.1 == varies => last.0 = last.0.saturating_mul(size),
            _ => {
                out.all[out.len] = (size, varies);
                out.len += 1;
            }
        }
    }
    out
}

/// Places on one cluster.
#[derive(Debug)]
pub(crate) struct Places {
    cluster: Cluster,
    known: Mutex<FxHashMap<Digits, Arc<Placement>>>,
}

impl Places {
    pub fn new(cluster: &Cluster) -> Places {
        Places { cluster: cluster.clone(), known: Mutex::default() }
    }

    /// Where a group sits.
    ///
    /// # Errors
    /// A group that the cluster has no place for.
    pub fn of(&self, digits: &Digits) -> Result<Arc<Placement>, PredictError> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(found) = known.get(digits) {
            return Ok(found.clone());
        }
        let made = Arc::new(located(&self.cluster, digits)?);
        known.insert(*digits, made.clone());
        Ok(made)
    }

    /// Where the groups of a layout sit.
    ///
    /// # Errors
    /// As [`Places::of`].
    pub fn layout(&self, job: &Job) -> Result<Vec<(Group, Placement)>, PredictError> {
        groups(job).iter().map(|(group, digits)| Ok((*group, Placement::clone(&*self.of(digits)?)))).collect()
    }
}

fn located(cluster: &Cluster, digits: &Digits) -> Result<Placement, PredictError> {
    let axes: Vec<MeshAxis> = digits.iter().enumerate().map(|(i, (n, _))| MeshAxis::new(i.to_string(), *n)).collect();
    let names = axes.iter().zip(digits.iter()).filter(|(_, (_, varies))| *varies).map(|(a, _)| a.name.as_str());
    place(cluster, &axes, &names.collect::<Vec<_>>()).map_err(|e| PredictError::Missing {
        entity: cluster.id.clone(),
        what: format!("a place for this layout ({e})"),
        instead: "use fewer devices or another cluster".to_string(),
    })
}

/// Where the groups of a layout sit, counted anew.
///
/// # Errors
/// As [`Places::of`].
pub(crate) fn placements(job: &Job) -> Result<Vec<(Group, Placement)>, PredictError> {
    groups(job).into_iter().map(|(group, digits)| Ok((group, located(job.cluster, &digits)?))).collect()
}

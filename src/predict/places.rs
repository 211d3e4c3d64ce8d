//! Where the groups of a layout sit, each kept once it was counted.

use super::predictor::{spread, Job};
use super::{Order, PredictError, Role};
use autoshard_cost::cluster::Cluster;
use autoshard_cost::layout::{place, MeshAxis, Placement};
use autoshard_passes::predict::Group;
use autoshard_passes::profile::Axis;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

/// A group among all ranks: axes from the innermost, with whether the group's ranks differ in them. Axes of one rank
/// are left out and neighbours of one kind joined, so equal digits are equal groups.
pub(crate) type Digits = Vec<(u64, bool)>;

/// The groups of a layout that have more than one rank. The ranks of a stage are experts' ranks, too: those that split
/// experts stand where the stage's innermost axes do, their data ranks where dp does.
pub(crate) fn groups(job: &Job) -> Vec<(Group, Digits)> {
    let (l, s) = (job.layout, spread(job.layout));
    let order = l.order.unwrap_or(Order::of(job.stack.habits.stages_inside));
    let of = |role: &Role| match role {
        Role::Tp => [("tp", l.tp), ("", 1)],
        Role::Cp => [("cp", l.cp), ("", 1)],
        Role::Dp => [("shard", s.inner), ("replica", s.outer)],
        Role::Pp => [("pp", l.pp), ("", 1)],
    };
    let dense: Vec<(&str, u64)> = order.0.iter().flat_map(of).collect();
    let stages = order.0.iter().position(|r| *r == Role::Pp).unwrap_or(3);
    let mut experts = vec![("etp", l.etp), ("ep", l.ep), ("eshard", s.expert[0]), ("ereplica", s.expert[1])];
    experts.insert(if stages == 3 { 4 } else { stages }, ("pp", l.pp));
    let whole = l.zero == 0;
    let all: [(Group, &[(&str, u64)], &[&str]); 9] = [
        (Group::Inside(Axis::Tp), &dense, &["tp"]),
        (Group::Inside(Axis::Cp), &dense, &["cp"]),
        (Group::Inside(Axis::Ep), &experts, &["ep"]),
        (Group::Inside(Axis::Etp), &experts, &["etp"]),
        (Group::Shard, &dense, &["cp", "shard"]),
        (Group::Replicas, &dense, if whole { &["cp", "shard", "replica"] } else { &["replica"] }),
        (Group::Pipeline, &dense, &["pp"]),
        (Group::ExpertShard, &experts, &["eshard"]),
        (Group::ExpertReplicas, &experts, if whole { &["eshard", "ereplica"] } else { &["ereplica"] }),
    ];
    let digits = |axes: &[(&str, u64)], names: &[&str]| joined(axes.iter().map(|(n, size)| (*size, names.contains(n))));
    let all = all.into_iter().map(|(group, axes, names)| (group, digits(axes, names)));
    all.filter(|(_, digits)| digits.iter().any(|(_, varies)| *varies)).collect()
}

/// Digits of axes.
pub(crate) fn joined(axes: impl Iterator<Item = (u64, bool)>) -> Digits {
    let mut out = Digits::with_capacity(4);
    for (size, varies) in axes.filter(|(size, _)| *size > 1) {
        match out.last_mut() {
            Some(last) if last.1 == varies => last.0 = last.0.saturating_mul(size),
            _ => out.push((size, varies)),
        }
    }
    out
}

/// Places on one cluster.
#[derive(Debug)]
pub(crate) struct Places {
    cluster: Cluster,
    known: Mutex<HashMap<Digits, Arc<Placement>>>,
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
        known.insert(digits.clone(), made.clone());
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
    let names = axes.iter().zip(digits).filter(|(_, (_, varies))| *varies).map(|(a, _)| a.name.as_str());
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

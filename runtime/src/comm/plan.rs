//! Who copies what from whom: a collective worked out for one rank, once.
//!
//! The output of a rank is cut into boxes by which peers hold them. Per group axis, the peers asked
//! are: all coordinates where the axis splits the input (boxes tell which hold something) or where
//! it is reduced; this rank's own coordinate everywhere else, where peers hold the same.

use super::count::axes_key;
use super::error::CommError;
use super::group::{Call, Group};
use super::region::{checked_bytes, intersect, parts, volume, BoxCopy};
use super::world::World;
use autoshard_ir::core::Partial;
use autoshard_ir::mesh::Part;
use autoshard_ir::program::{Collective, CollectiveKind};
use autoshard_ir::{Axis, Mesh, Monoid, Type};
use std::sync::Arc;

/// A collective, ready to run on one rank.
#[derive(Clone, Debug)]
pub struct CollectivePlan {
    pub(crate) call: Arc<Call>,
    pub(crate) collective: Arc<Collective>,
    pub(crate) group: Arc<Group>,
    pub(crate) rank: usize,
    /// This rank's position in the group.
    pub(crate) me: usize,
    pub(crate) key: Arc<str>,
    pub(crate) name: Arc<str>,
    /// How contributions combine, where several do.
    pub(crate) monoid: Monoid,
    /// The whole output is set to the identity first.
    pub(crate) fill: bool,
    /// Bytes of this rank's input buffer.
    pub(crate) from_bytes: usize,
    /// Bytes of this rank's output buffer.
    pub(crate) to_bytes: usize,
    pub(crate) sources: Vec<Source>,
}

/// A box of the output and the positions of the members that hold it, in rank order. With several,
/// their values are combined.
#[derive(Clone, Debug)]
pub(crate) struct Source {
    pub(crate) members: Vec<usize>,
    pub(crate) copy: BoxCopy,
}

impl CollectivePlan {
    /// Bytes that the input buffer must have.
    pub fn input_bytes(&self) -> usize {
        self.from_bytes
    }

    /// Bytes that the output buffer must have.
    pub fn output_bytes(&self) -> usize {
        self.to_bytes
    }

    /// Works out `collective` for `rank`.
    ///
    /// # Errors
    /// [`CommError::Invalid`] if the change of state is not of the stated kind, or no exchange within
    /// the group can bring it about.
    pub fn new(world: &World, rank: usize, collective: &Arc<Collective>) -> Result<Self, CommError> {
        let call = Call::Collective(collective.clone());
        let c = &**collective;
        if rank >= world.mesh().ranks() {
            let members = world.everyone().members.clone();
            return Err(CommError::NoRank { call: call.to_string(), rank, members });
        }
        let invalid = |reason: String| CommError::Invalid { call: call.to_string(), reason };
        let change = Change::new(world.mesh(), c).map_err(invalid)?;
        let local = c.kind == CollectiveKind::Local;
        let group = world.group(rank, if local { &[] } else { &c.axes });
        let sources = sources(world.mesh(), c, &change, rank, &group.members).map_err(invalid)?;
        let mut axes = c.axes.clone();
        world.mesh().sort(&mut axes);
        Ok(CollectivePlan {
            me: group.members.iter().position(|m| *m == rank).unwrap_or(0),
            group,
            rank,
            key: axes_key(&axes).into(),
            name: c.name.as_str().into(),
            monoid: change.monoid,
            fill: !change.created.is_empty(),
            from_bytes: world.mesh().local_bytes(&c.from),
            to_bytes: world.mesh().local_bytes(&c.to),
            sources,
            collective: collective.clone(),
            call: Arc::new(call),
        })
    }
}

/// What happens to the partial axes.
struct Change {
    monoid: Monoid,
    /// Partial before, not after.
    reduced: Vec<Axis>,
    /// Partial after, not before.
    created: Vec<Axis>,
}

impl Change {
    /// Checks that the types agree and that the change is one of the kind.
    fn new(mesh: &Mesh, c: &Collective) -> Result<Change, String> {
        check_types(mesh, c)?;
        let lacks = |a: &[Axis], b: &[Axis]| -> Vec<Axis> { a.iter().filter(|x| !b.contains(x)).cloned().collect() };
        let (from, to) = (c.from.partial_axes(), c.to.partial_axes());
        let change = Change { monoid: monoid(c)?, reduced: lacks(from, to), created: lacks(to, from) };
        let outside = change.reduced.iter().chain(&change.created).find(|a| !c.axes.contains(a));
        if let Some(axis) = outside {
            return Err(format!("the partial state on {axis} changes, but the group does not span it"));
        }
        let same_split = c.from.dims.iter().zip(&c.to.dims).all(|(a, b)| a.axes == b.axes);
        let (reduces, creates) = (!change.reduced.is_empty(), !change.created.is_empty());
        let every_axis_reduced = c.axes.iter().all(|a| change.reduced.contains(a));
        let fits = match c.kind {
            CollectiveKind::AllReduce => reduces && !creates && same_split && every_axis_reduced,
            CollectiveKind::ReduceScatter => reduces && !creates,
            CollectiveKind::AllGather | CollectiveKind::AllToAll => !reduces && !creates,
            CollectiveKind::Local => !reduces,
        };
        match fits {
            true => Ok(change),
            false => Err("this change of state is of another kind".to_string()),
        }
    }
}

fn check_types(mesh: &Mesh, c: &Collective) -> Result<(), String> {
    if !c.from.same_shape(&c.to) {
        return Err("element type or sizes change".to_string());
    }
    for ty in [&c.from, &c.to] {
        let used: Vec<&Axis> = ty.used_axes().collect();
        for (i, axis) in used.iter().enumerate() {
            if mesh.position(axis).is_none() {
                return Err(format!("the mesh has no axis {axis}"));
            }
            if used[..i].contains(axis) {
                return Err(format!("axis {axis} is used twice in {ty}"));
            }
        }
        if checked_bytes(mesh, ty).is_none() {
            return Err(format!("{ty} is too large"));
        }
    }
    match c.axes.iter().find(|a| mesh.position(a).is_none()) {
        Some(axis) => Err(format!("the mesh has no axis {axis}")),
        None => Ok(()),
    }
}

/// The monoid of the partial states.
fn monoid(c: &Collective) -> Result<Monoid, String> {
    match (&c.from.partial, &c.to.partial) {
        (Some(a), Some(b)) if a.monoid != b.monoid => {
            Err(format!("a partial {} cannot become a partial {}", a.monoid.name(), b.monoid.name()))
        }
        (Some(Partial { monoid, .. }), _) | (None, Some(Partial { monoid, .. })) => Ok(*monoid),
        (None, None) => Ok(Monoid::Sum),
    }
}

/// The boxes of `rank`'s output with their holders.
fn sources(
    mesh: &Mesh,
    c: &Collective,
    change: &Change,
    rank: usize,
    members: &[usize],
) -> Result<Vec<Source>, String> {
    let coords = mesh.coords(rank);
    let want = parts(mesh, &c.to, &coords);
    let to_sizes = mesh.local_sizes(&c.to);
    let from_sizes = mesh.local_sizes(&c.from);
    let mut boxes: Vec<(Vec<Part>, Source)> = Vec::new();
    let mut covered = 0;
    for (position, member) in members.iter().enumerate() {
        let theirs = mesh.coords(*member);
        if !asked(mesh, c, change, &coords, &theirs) {
            continue;
        }
        let have = parts(mesh, &c.from, &theirs);
        let region = intersect(&have, &want);
        if volume(&region) == 0 {
            continue;
        }
        match boxes.iter_mut().find(|(r, _)| *r == region) {
            Some((_, source)) => source.members.push(position),
            None => {
                covered += volume(&region);
                let copy = BoxCopy::new(&region, (&from_sizes, &have), (&to_sizes, &want));
                boxes.push((region, Source { members: vec![position], copy }));
            }
        }
    }
    if !change.created.is_empty() {
        covered = spread(mesh, c, change, rank);
    }
    if covered != volume(&want) {
        return Err(format!("the group holds {covered} of the {} elements of rank {rank}", volume(&want)));
    }
    let holders = mesh.span(&change.reduced);
    match boxes.iter().find(|(_, s)| s.members.len() != holders) {
        Some((_, s)) => Err(format!("{} ranks hold a part that {holders} should", s.members.len())),
        None => Ok(boxes.into_iter().map(|(_, s)| s).collect()),
    }
}

/// Elements of `rank`'s output box that the ranks on the new partial axes place between them. Their
/// boxes do not meet, so the whole box is there when the numbers agree.
fn spread(mesh: &Mesh, c: &Collective, change: &Change, rank: usize) -> usize {
    let place = |peer: &usize| {
        let coords = mesh.coords(*peer);
        match asked(mesh, c, change, &coords, &coords) {
            true => volume(&intersect(&parts(mesh, &c.from, &coords), &parts(mesh, &c.to, &coords))),
            false => 0,
        }
    };
    mesh.group(rank, &change.created).iter().map(place).sum()
}

/// Whether the rank at `mine` takes anything from the member at `theirs`.
fn asked(mesh: &Mesh, c: &Collective, change: &Change, mine: &[usize], theirs: &[usize]) -> bool {
    let splits = |ty: &Type, axis: &Axis| ty.dims.iter().any(|d| d.axes.contains(axis));
    c.axes.iter().all(|axis| {
        let (me, them) = (mesh.coord(mine, axis), mesh.coord(theirs, axis));
        if change.created.contains(axis) {
            // Replicated to partial: the first rank keeps the value.
            me == them && (splits(&c.from, axis) || me == 0)
        } else {
            me == them || change.reduced.contains(axis) || splits(&c.from, axis)
        }
    })
}

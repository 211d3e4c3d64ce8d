//! Play: the communication of all ranks with rendezvous semantics, before anything runs.
//!
//! A rank's next event completes when every rank of its group stands at an event over the same
//! axes; kinds and sizes must then agree. The play is linear in the number of events of all ranks:
//! a rank waits in at most one group, so arrivals are only counted.

use autoshard_ir::core::Axis;
use autoshard_ir::program::{CollectiveKind, Program, Step};
use autoshard_ir::Mesh;
use std::collections::{HashMap, VecDeque};
use std::fmt;

/// Coordinates per axis that [`verify`] keeps: a first, a middle and a last rank.
const COORDINATES: usize = 3;

/// One communication of one rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// Kind; never [`CollectiveKind::Local`].
    pub kind: CollectiveKind,
    /// Axes that the group spans.
    pub axes: Vec<Axis>,
    /// Bytes that the rank contributes.
    pub bytes_in: usize,
    /// Bytes that the rank receives.
    pub bytes_out: usize,
    /// Name of the value.
    pub name: String,
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let axes: Vec<&str> = self.axes.iter().map(Axis::name).collect();
        write!(f, "{} {} over {}", self.kind.name(), self.name, axes.join("·"))
    }
}

/// What a play that ended did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PlayReport {
    /// Ranks that played.
    pub ranks: usize,
    /// Events of all ranks.
    pub events: usize,
    /// Collectives that completed: each counts once for its whole group.
    pub meetings: usize,
}

/// Why a play does not end well.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum PlayError {
    /// Not one list of events per rank.
    #[error("the mesh {mesh} has {ranks} ranks, but {lists} of them have events")]
    Ranks {
        /// Mesh.
        mesh: String,
        /// Its ranks.
        ranks: usize,
        /// Lists given.
        lists: usize,
    },
    /// An event names an axis twice, or one that the mesh does not have.
    #[error("rank {rank}: {event}: axis {axis} {problem}")]
    Axis {
        /// Rank.
        rank: usize,
        /// Event.
        event: Box<Event>,
        /// Axis.
        axis: Axis,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// Two ranks meet with different events.
    #[error("{0}")]
    Mismatch(Box<Mismatch>),
    /// Nothing can move: each wait is for the rank of the next one, the last for `last`.
    #[error("{}", stuck(.waits, *.finished))]
    Deadlock {
        /// The cycle, or the chain to a rank that has finished.
        waits: Vec<Wait>,
        /// The last wait is for a rank without further events; otherwise for the first wait's rank.
        finished: bool,
    },
}

/// Two ranks of one group whose events differ.
#[derive(Clone, Debug, PartialEq)]
pub struct Mismatch {
    /// Rank and its event.
    pub first: (usize, Event),
    /// Another rank and its event.
    pub second: (usize, Event),
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ((ra, a), (rb, b)) = (&self.first, &self.second);
        write!(f, "rank {ra} is in {a}, rank {rb} in {b}: ")?;
        let mut differences = Vec::new();
        if a.kind != b.kind {
            differences.push(format!("kind {} against {}", a.kind.name(), b.kind.name()));
        }
        for (what, x, y) in [("in", a.bytes_in, b.bytes_in), ("out", a.bytes_out, b.bytes_out)] {
            if x != y {
                differences.push(format!("{x} against {y} bytes {what}"));
            }
        }
        f.write_str(&differences.join(", "))
    }
}

/// A rank that cannot move.
#[derive(Clone, Debug, PartialEq)]
pub struct Wait {
    /// Rank.
    pub rank: usize,
    /// Position of its event.
    pub position: usize,
    /// The event.
    pub event: Event,
    /// A rank of the group that is not there.
    pub waits_for: usize,
}

fn stuck(waits: &[Wait], finished: bool) -> String {
    let mut out = String::from("deadlock: ");
    for (i, w) in waits.iter().enumerate() {
        let rank = if i == 0 { format!("rank {}", w.rank) } else { "which".to_string() };
        let sep = if i == 0 { "" } else { ", " };
        out += &format!("{sep}{rank} waits in {} (event {}) for rank {}", w.event, w.position, w.waits_for);
    }
    if finished {
        out += ", which has finished";
    }
    out
}

/// The communication of the entry in order, with calls inlined. Sizes are those of the program's
/// mesh. Steps that [`crate::schedule::check`] rejects (bad indices, recursion) contribute nothing.
pub fn events(program: &Program) -> Vec<Event> {
    let mut done = HashMap::new();
    inline(program, program.entry, &mut done);
    done.remove(&program.entry).unwrap_or_default()
}

/// Fills `done` with the events of a function and of what it calls.
fn inline(program: &Program, function: usize, done: &mut HashMap<usize, Vec<Event>>) {
    let Some(f) = program.functions.get(function) else {
        return;
    };
    done.insert(function, Vec::new()); // a recursive call sees no events
    let mut out = Vec::new();
    for step in &f.steps {
        match step {
            Step::Call { function, .. } => {
                if !done.contains_key(function) {
                    inline(program, *function, done);
                }
                out.extend(done.get(function).into_iter().flatten().cloned());
            }
            Step::Collective { collective, .. } => {
                let Some(c) = program.collectives.get(*collective) else {
                    continue;
                };
                if c.kind != CollectiveKind::Local {
                    out.push(Event {
                        kind: c.kind,
                        axes: c.axes.clone(),
                        bytes_in: program.mesh.local_bytes(&c.from),
                        bytes_out: program.mesh.local_bytes(&c.to),
                        name: c.name.clone(),
                    });
                }
            }
            Step::Kernel { .. } | Step::Copy { .. } => {}
        }
    }
    done.insert(function, out);
}

/// Plays the program on all ranks of its mesh, cut to at most three coordinates per axis; sizes stay
/// those of the full mesh. Axes over which nothing communicates are cut to one coordinate: ranks
/// that differ on them alone never meet and do the same.
pub fn verify(program: &Program) -> Result<PlayReport, PlayError> {
    let events = events(program);
    let used: std::collections::HashSet<&Axis> = events.iter().flat_map(|e| &e.axes).collect();
    let cut = |(axis, size): &(Axis, usize)| {
        let most = if used.contains(axis) { COORDINATES } else { 1 };
        (axis.clone(), (*size).min(most))
    };
    let mesh = Mesh { axes: program.mesh.axes.iter().map(cut).collect() };
    play(&mesh, &vec![events.as_slice(); mesh.ranks()])
}

/// Plays one list of events per rank.
pub fn play<E: AsRef<[Event]>>(mesh: &Mesh, per_rank: &[E]) -> Result<PlayReport, PlayError> {
    let lists: Vec<&[Event]> = per_rank.iter().map(AsRef::as_ref).collect();
    if lists.len() != mesh.ranks() {
        return Err(PlayError::Ranks { mesh: mesh.to_string(), ranks: mesh.ranks(), lists: lists.len() });
    }
    let mut player = Player::new(mesh, lists)?;
    player.run()?;
    player.report()
}

/// The groups of one list of axes.
struct Groups {
    /// Group of each rank.
    of: Vec<usize>,
    /// Members of each group.
    members: Vec<Vec<usize>>,
    /// Members of each group that stand at an event over these axes.
    arrived: Vec<usize>,
}

impl Groups {
    fn new(mesh: &Mesh, axes: &[Axis]) -> Groups {
        let mut groups = Groups { of: vec![usize::MAX; mesh.ranks()], members: Vec::new(), arrived: Vec::new() };
        for rank in 0..mesh.ranks() {
            if groups.of[rank] == usize::MAX {
                let members = mesh.group(rank, axes);
                members.iter().for_each(|m| groups.of[*m] = groups.members.len());
                groups.members.push(members);
                groups.arrived.push(0);
            }
        }
        groups
    }
}

struct Player<'a> {
    /// Events by rank.
    lists: Vec<&'a [Event]>,
    /// Distinct lists as positions in `groups`, by event.
    axes: Vec<Vec<usize>>,
    /// Position in `axes` by rank: ranks with the same list share it.
    axes_of: Vec<usize>,
    groups: Vec<Groups>,
    /// Position of each rank in its list.
    at: Vec<usize>,
    report: PlayReport,
}

impl<'a> Player<'a> {
    fn new(mesh: &Mesh, lists: Vec<&'a [Event]>) -> Result<Player<'a>, PlayError> {
        let mut player = Player {
            at: vec![0; lists.len()],
            axes: Vec::new(),
            axes_of: Vec::new(),
            groups: Vec::new(),
            report: PlayReport { ranks: lists.len(), ..PlayReport::default() },
            lists,
        };
        let mut known: HashMap<&'a [Axis], usize> = HashMap::new();
        let mut shared: HashMap<(*const Event, usize), usize> = HashMap::new();
        for rank in 0..player.lists.len() {
            let list = player.lists[rank];
            let next = player.axes.len();
            let index = *shared.entry((list.as_ptr(), list.len())).or_insert(next);
            player.axes_of.push(index);
            if index < next {
                continue;
            }
            let mut positions = Vec::with_capacity(list.len());
            for event in list {
                let position = match known.get(event.axes.as_slice()) {
                    Some(p) => *p,
                    None => {
                        check_axes(mesh, rank, event)?;
                        player.groups.push(Groups::new(mesh, &event.axes));
                        known.insert(&event.axes, player.groups.len() - 1);
                        player.groups.len() - 1
                    }
                };
                positions.push(position);
            }
            player.axes.push(positions);
        }
        Ok(player)
    }

    /// The position in `groups` of the event at which a rank stands; `None` when it has finished.
    fn standing(&self, rank: usize) -> Option<usize> {
        self.axes[self.axes_of[rank]].get(self.at[rank]).copied()
    }

    fn run(&mut self) -> Result<(), PlayError> {
        let mut moved: VecDeque<usize> = (0..self.lists.len()).collect();
        while let Some(rank) = moved.pop_front() {
            let Some(axes) = self.standing(rank) else {
                continue;
            };
            let groups = &mut self.groups[axes];
            let group = groups.of[rank];
            groups.arrived[group] += 1;
            if groups.arrived[group] == groups.members[group].len() {
                groups.arrived[group] = 0;
                self.meet(axes, group)?;
                for member in &self.groups[axes].members[group] {
                    self.at[*member] += 1;
                    moved.push_back(*member);
                }
            }
        }
        Ok(())
    }

    /// All members of a group are there: their events must agree.
    fn meet(&mut self, axes: usize, group: usize) -> Result<(), PlayError> {
        let members = &self.groups[axes].members[group];
        let event = |rank: usize| &self.lists[rank][self.at[rank]];
        let first = members[0];
        let a = event(first);
        for rank in &members[1..] {
            let b = event(*rank);
            if (a.kind, a.bytes_in, a.bytes_out) != (b.kind, b.bytes_in, b.bytes_out) {
                let (first, second) = ((first, a.clone()), (*rank, b.clone()));
                return Err(PlayError::Mismatch(Box::new(Mismatch { first, second })));
            }
        }
        self.report.events += members.len();
        self.report.meetings += 1;
        Ok(())
    }

    /// The report if every rank has finished, else the waits from the first rank that has not.
    fn report(&self) -> Result<PlayReport, PlayError> {
        let Some(start) = (0..self.lists.len()).find(|r| self.standing(*r).is_some()) else {
            return Ok(self.report);
        };
        let mut waits: Vec<Wait> = Vec::new();
        let mut seen = HashMap::new();
        let mut rank = start;
        while let Some(axes) = self.standing(rank) {
            if let Some(cycle) = seen.insert(rank, waits.len()) {
                return Err(PlayError::Deadlock { waits: waits.split_off(cycle), finished: false });
            }
            let groups = &self.groups[axes];
            let absent = || {
                let members = groups.members[groups.of[rank]].iter().copied();
                members.filter(|m| self.standing(*m) != Some(axes))
            };
            // A rank that has finished explains more than one that is stuck itself. A group with all
            // its members would have met, so the rank itself is never the answer.
            let waits_for = absent().find(|m| self.standing(*m).is_none()).or_else(|| absent().next()).unwrap_or(rank);
            let position = self.at[rank];
            waits.push(Wait { rank, position, event: self.lists[rank][position].clone(), waits_for });
            rank = waits_for;
        }
        Err(PlayError::Deadlock { waits, finished: true })
    }
}

fn check_axes(mesh: &Mesh, rank: usize, event: &Event) -> Result<(), PlayError> {
    for (i, axis) in event.axes.iter().enumerate() {
        let problem = if mesh.position(axis).is_none() {
            "is not in the mesh"
        } else if event.axes[..i].contains(axis) {
            "is named twice"
        } else {
            continue;
        };
        return Err(PlayError::Axis { rank, event: Box::new(event.clone()), axis: axis.clone(), problem });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use autoshard_ir::core::{DType, Type};
    use autoshard_ir::program::{Buf, Collective, ProgramFunction};

    fn event(kind: CollectiveKind, axes: &[&str], bytes: usize, name: &str) -> Event {
        let axes = axes.iter().map(|a| Axis::new(a)).collect();
        Event { kind, axes, bytes_in: bytes, bytes_out: bytes, name: name.into() }
    }

    fn reduce(axes: &[&str], name: &str) -> Event {
        event(CollectiveKind::AllReduce, axes, 64, name)
    }

    fn mesh() -> Mesh {
        Mesh::new(&[("dp", 2), ("tp", 2)])
    }

    /// All ranks with the same three events.
    fn lists() -> Vec<Vec<Event>> {
        vec![vec![reduce(&["tp"], "%a"), reduce(&["dp"], "%b"), reduce(&["dp", "tp"], "%c")]; 4]
    }

    fn message(lists: &[Vec<Event>]) -> String {
        play(&mesh(), lists).expect_err("must not end").to_string()
    }

    #[test]
    fn equal_lists_end() {
        let report = play(&mesh(), &lists());
        assert_eq!(report, Ok(PlayReport { ranks: 4, events: 12, meetings: 2 + 2 + 1 }));
    }

    #[test]
    fn a_wrong_kind_names_both_ranks() {
        let mut l = lists();
        l[3][1].kind = CollectiveKind::AllGather;
        assert_eq!(
            message(&l),
            "rank 1 is in all_reduce %b over dp, rank 3 in all_gather %b over dp: kind all_reduce against all_gather"
        );
    }

    #[test]
    fn a_wrong_size_names_both_sizes() {
        let mut l = lists();
        l[1][0].bytes_out = 128;
        assert_eq!(
            message(&l),
            "rank 0 is in all_reduce %a over tp, rank 1 in all_reduce %a over tp: 64 against 128 bytes out"
        );
    }

    #[test]
    fn a_missing_collective_is_waited_for() {
        let mut l = lists();
        l[2].remove(0);
        // Rank 2 is a step ahead: it meets rank 0 over dp, then ends in the wrong group.
        assert_eq!(
            message(&l),
            "deadlock: rank 1 waits in all_reduce %b over dp (event 1) for rank 3, which waits in all_reduce %a over tp \
             (event 0) for rank 2, which waits in all_reduce %c over dp·tp (event 1) for rank 1"
        );
        let mut l = lists();
        l[2].pop();
        assert_eq!(
            message(&l),
            "deadlock: rank 0 waits in all_reduce %c over dp·tp (event 2) for rank 2, which has finished"
        );
    }

    #[test]
    fn swapped_collectives_print_the_cycle() {
        let mut l = lists();
        l[0].swap(0, 1);
        l[3].swap(0, 1);
        assert_eq!(
            message(&l),
            "deadlock: rank 0 waits in all_reduce %b over dp (event 0) for rank 2, which waits in all_reduce %a over \
             tp (event 0) for rank 3, which waits in all_reduce %b over dp (event 0) for rank 1, which waits in \
             all_reduce %a over tp (event 0) for rank 0"
        );
    }

    #[test]
    fn lists_and_axes_must_fit_the_mesh() {
        assert_eq!(message(&lists()[..3]), "the mesh [dp: 2, tp: 2] has 4 ranks, but 3 of them have events");
        let mut l = lists();
        l[1][2].axes[0] = Axis::new("pp");
        assert_eq!(message(&l), "rank 1: all_reduce %c over pp·tp: axis pp is not in the mesh");
        l[1][2].axes[0] = Axis::new("tp");
        assert_eq!(message(&l), "rank 1: all_reduce %c over tp·tp: axis tp is named twice");
    }

    /// `entry` calls `body` `calls` times; the body reduces over tp, then keeps its part (local).
    fn program(calls: usize) -> Program {
        let whole = Type::new(DType::F32, &[("d", 64)]);
        let mut split = whole.clone();
        split.dims[0].axes = vec![Axis::new("tp")];
        let collective = |kind, from: &Type, to: &Type, name: &str| Collective {
            kind,
            axes: vec![Axis::new("tp")],
            from: from.clone(),
            to: to.clone(),
            name: name.into(),
            control: false,
        };
        let step =
            |collective, from, to| Step::Collective { collective, input: Buf::Frame(from), output: Buf::Frame(to) };
        let function = |name: &str, steps| ProgramFunction {
            name: name.into(),
            params: vec![],
            results: vec![],
            in_place: vec![],
            frame: 512,
            steps,
        };
        let call = Step::Call { function: 0, args: vec![], results: vec![] };
        let mut steps = vec![call; calls];
        steps.push(step(0, 256, 0));
        Program {
            mesh: Mesh::new(&[("dp", 100), ("tp", 8)]),
            kernels: vec![],
            collectives: vec![
                collective(CollectiveKind::AllGather, &split, &whole, "%g"),
                collective(CollectiveKind::Local, &whole, &split, "%l"),
                collective(CollectiveKind::AllReduce, &whole, &whole, "%r"),
            ],
            functions: vec![function("body", vec![step(2, 0, 256), step(1, 256, 0)]), function("entry", steps)],
            entry: 1,
        }
    }

    #[test]
    fn calls_are_inlined_and_sizes_are_those_of_the_full_mesh() {
        let p = program(2);
        let got = events(&p);
        assert_eq!(got.iter().map(|e| e.name.as_str()).collect::<Vec<_>>(), ["%r", "%r", "%g"]);
        assert_eq!((got[2].bytes_in, got[2].bytes_out), (32, 256));
        assert_eq!(verify(&p), Ok(PlayReport { ranks: 3, events: 9, meetings: 3 }));
    }

    #[test]
    fn recursion_ends() {
        let mut p = program(1);
        p.functions[0].steps.push(Step::Call { function: 0, args: vec![], results: vec![] });
        assert_eq!(events(&p).len(), 2);
    }

    #[test]
    fn large_programs_are_played_quickly() {
        let mesh = Mesh::new(&[("dp", 3), ("cp", 3), ("tp", 3), ("ep", 3)]);
        let axes: [&[&str]; 4] = [&["tp"], &["dp", "cp"], &["ep"], &["cp"]];
        let list: Vec<Event> = (0..10_000).map(|i| reduce(axes[i % 4], "%x")).collect();
        let start = std::time::Instant::now();
        let report = play(&mesh, &vec![list; mesh.ranks()]).expect("ends");
        assert_eq!(report.events, 810_000);
        assert!(start.elapsed().as_secs() < 20, "{:?}", start.elapsed());
    }
}

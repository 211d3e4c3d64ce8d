//! Play: the communication of all ranks with rendezvous semantics, before anything runs.
//!
//! A rank issues events and waits for them; issued events complete in the order of their issues, each
//! when every rank of its group stands at an event over the same axes; kinds and sizes must then
//! agree. A rank that waits issues nothing until the event is complete. The play is linear in the
//! number of events of all ranks: a rank stands in at most one group, so arrivals are only counted.

#[cfg(test)]
mod tests;

use autoshard_ir::core::Axis;
use autoshard_ir::program::{Collective, CollectiveKind, Program, Step};
use autoshard_ir::Mesh;
use std::collections::{HashMap, HashSet, VecDeque};
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

/// What a rank does, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Move {
    /// Issues an event.
    Issue(Event),
    /// Waits for the rank's n-th event, counted from 0.
    Wait(usize),
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
    /// A rank waits for what is not under way, or does not wait for what is.
    #[error("rank {rank}: {problem} event {event}")]
    Waits {
        /// Rank.
        rank: usize,
        /// Position of the event among the rank's.
        event: usize,
        /// What is wrong.
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

/// What a rank issues and waits for, in order, with the calls of the entry inlined. Sizes are those of
/// the program's mesh. Steps that [`crate::schedule::check`] rejects (bad indices, recursion)
/// contribute nothing.
pub fn moves(program: &Program) -> Vec<Move> {
    let mut done = HashMap::new();
    inline(program, program.entry, &mut done);
    done.remove(&program.entry).unwrap_or_default()
}

/// Fills `done` with the moves of a function and of what it calls; events are counted from the
/// function's first.
fn inline(program: &Program, function: usize, done: &mut HashMap<usize, Vec<Move>>) {
    let Some(f) = program.functions.get(function) else {
        return;
    };
    done.insert(function, Vec::new()); // a recursive call sees no events
    let mut out: Vec<Move> = Vec::new();
    let mut issued = 0;
    let mut events = HashMap::new(); // by step
    for (at, step) in f.steps.iter().enumerate() {
        match step {
            Step::Call { function, .. } => {
                if !done.contains_key(function) {
                    inline(program, *function, done);
                }
                let first = issued;
                for m in done.get(function).into_iter().flatten() {
                    issued += usize::from(matches!(m, Move::Issue(_)));
                    out.push(match m {
                        Move::Issue(e) => Move::Issue(e.clone()),
                        Move::Wait(n) => Move::Wait(first + n),
                    });
                }
            }
            Step::Issue { collective, .. } => {
                if let Some(event) = program.collectives.get(*collective).and_then(|c| Event::new(program, c)) {
                    events.insert(at, issued);
                    issued += 1;
                    out.push(Move::Issue(event));
                }
            }
            Step::Wait { issue } => out.extend(events.get(issue).map(|n| Move::Wait(*n))),
            Step::Kernel { .. } | Step::Copy { .. } => {}
        }
    }
    done.insert(function, out);
}

impl Event {
    /// The event of a collective, unless it is a local move.
    fn new(program: &Program, c: &Collective) -> Option<Event> {
        (c.kind != CollectiveKind::Local).then(|| Event {
            kind: c.kind,
            axes: c.axes.clone(),
            bytes_in: program.mesh.local_bytes(&c.from),
            bytes_out: program.mesh.local_bytes(&c.to),
            name: c.name.clone(),
        })
    }
}

/// Plays the program on all ranks of its mesh, cut to at most three coordinates per axis; sizes stay
/// those of the full mesh. Axes over which nothing communicates are cut to one coordinate: ranks
/// that differ on them alone never meet and do the same.
pub fn verify(program: &Program) -> Result<PlayReport, PlayError> {
    let moves = moves(program);
    let used: HashSet<&Axis> = events(&moves).flat_map(|e| &e.axes).collect();
    let cut = |(axis, size): &(Axis, usize)| {
        let most = if used.contains(axis) { COORDINATES } else { 1 };
        (axis.clone(), (*size).min(most))
    };
    let mesh = Mesh { axes: program.mesh.axes.iter().map(cut).collect() };
    play(&mesh, &vec![moves.as_slice(); mesh.ranks()])
}

/// The events among moves.
fn events(moves: &[Move]) -> impl Iterator<Item = &Event> {
    moves.iter().filter_map(|m| match m {
        Move::Issue(event) => Some(event),
        Move::Wait(_) => None,
    })
}

/// Plays one list of moves per rank.
pub fn play<E: AsRef<[Move]>>(mesh: &Mesh, per_rank: &[E]) -> Result<PlayReport, PlayError> {
    let lists: Vec<&[Move]> = per_rank.iter().map(AsRef::as_ref).collect();
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

/// A rank in the middle of the play.
#[derive(Clone, Default)]
struct Rank {
    /// Moves made.
    at: usize,
    /// Events issued.
    issued: usize,
    /// Events completed.
    done: usize,
    /// Whether the group of its next event knows that it is there.
    arrived: bool,
}

/// A list of moves; ranks with the same list share it.
struct List<'a> {
    moves: &'a [Move],
    /// Its events, with the position of their axes in [`Player::groups`].
    events: Vec<(&'a Event, usize)>,
}

struct Player<'a> {
    lists: Vec<List<'a>>,
    /// Position in `lists` by rank.
    list_of: Vec<usize>,
    groups: Vec<Groups>,
    ranks: Vec<Rank>,
    report: PlayReport,
}

impl<'a> Player<'a> {
    fn new(mesh: &Mesh, per_rank: Vec<&'a [Move]>) -> Result<Player<'a>, PlayError> {
        let ranks = per_rank.len();
        let mut player = Player {
            lists: Vec::new(),
            list_of: Vec::new(),
            groups: Vec::new(),
            ranks: vec![Rank::default(); ranks],
            report: PlayReport { ranks, ..PlayReport::default() },
        };
        let mut known: HashMap<&'a [Axis], usize> = HashMap::new();
        let mut shared: HashMap<(*const Move, usize), usize> = HashMap::new();
        for (rank, moves) in per_rank.into_iter().enumerate() {
            let next = player.lists.len();
            let index = *shared.entry((moves.as_ptr(), moves.len())).or_insert(next);
            player.list_of.push(index);
            if index < next {
                continue;
            }
            check_waits(rank, moves)?;
            let mut list = List { moves, events: Vec::new() };
            for event in events(moves) {
                let position = match known.get(event.axes.as_slice()) {
                    Some(p) => *p,
                    None => {
                        check_axes(mesh, rank, event)?;
                        player.groups.push(Groups::new(mesh, &event.axes));
                        known.insert(&event.axes, player.groups.len() - 1);
                        player.groups.len() - 1
                    }
                };
                list.events.push((event, position));
            }
            player.lists.push(list);
        }
        Ok(player)
    }

    /// The event that a rank's communication has come to, and the position of its axes; `None` when it
    /// has finished: a rank that waits, waits for an event that it has issued.
    fn standing(&self, rank: usize) -> Option<(&'a Event, usize)> {
        let r = &self.ranks[rank];
        (r.done < r.issued).then(|| self.lists[self.list_of[rank]].events[r.done])
    }

    /// Makes moves up to a wait for an event that is not complete.
    fn advance(&mut self, rank: usize) {
        let moves = self.lists[self.list_of[rank]].moves;
        let r = &mut self.ranks[rank];
        while let Some(m) = moves.get(r.at) {
            match m {
                Move::Issue(_) => r.issued += 1,
                Move::Wait(n) if *n >= r.done => return,
                Move::Wait(_) => {}
            }
            r.at += 1;
        }
    }

    fn run(&mut self) -> Result<(), PlayError> {
        let mut moved: VecDeque<usize> = (0..self.ranks.len()).collect();
        while let Some(rank) = moved.pop_front() {
            self.advance(rank);
            let Some((_, axes)) = self.standing(rank).filter(|_| !self.ranks[rank].arrived) else {
                continue;
            };
            self.ranks[rank].arrived = true;
            let groups = &mut self.groups[axes];
            let group = groups.of[rank];
            groups.arrived[group] += 1;
            if groups.arrived[group] == groups.members[group].len() {
                groups.arrived[group] = 0;
                self.meet(axes, group)?;
                for member in &self.groups[axes].members[group] {
                    self.ranks[*member].done += 1;
                    self.ranks[*member].arrived = false;
                    moved.push_back(*member);
                }
            }
        }
        Ok(())
    }

    /// All members of a group are there: their events must agree.
    fn meet(&mut self, axes: usize, group: usize) -> Result<(), PlayError> {
        let members = &self.groups[axes].members[group];
        let event = |rank: usize| self.lists[self.list_of[rank]].events[self.ranks[rank].done].0;
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
        let Some(start) = (0..self.ranks.len()).find(|r| self.standing(*r).is_some()) else {
            return Ok(self.report);
        };
        let mut waits: Vec<Wait> = Vec::new();
        let mut seen = HashMap::new();
        let mut rank = start;
        while let Some((event, axes)) = self.standing(rank) {
            if let Some(cycle) = seen.insert(rank, waits.len()) {
                return Err(PlayError::Deadlock { waits: waits.split_off(cycle), finished: false });
            }
            let groups = &self.groups[axes];
            let absent = || {
                let members = groups.members[groups.of[rank]].iter().copied();
                members.filter(|m| self.standing(*m).is_none_or(|(_, a)| a != axes))
            };
            // A rank that has finished explains more than one that is stuck itself. A group with all
            // its members would have met, so the rank itself is never the answer.
            let waits_for = absent().find(|m| self.standing(*m).is_none()).or_else(|| absent().next()).unwrap_or(rank);
            waits.push(Wait { rank, position: self.ranks[rank].done, event: event.clone(), waits_for });
            rank = waits_for;
        }
        Err(PlayError::Deadlock { waits, finished: true })
    }
}

/// Every event is waited for once, after its issue.
fn check_waits(rank: usize, moves: &[Move]) -> Result<(), PlayError> {
    let fail = |event, problem| Err(PlayError::Waits { rank, event, problem });
    let mut waited: Vec<bool> = Vec::new();
    for m in moves {
        match m {
            Move::Issue(_) => waited.push(false),
            Move::Wait(n) if *n >= waited.len() => return fail(*n, "waits without end for"),
            Move::Wait(n) if waited[*n] => return fail(*n, "waits twice for"),
            Move::Wait(n) => waited[*n] = true,
        }
    }
    match waited.iter().position(|w| !w) {
        Some(event) => fail(event, "never waits for"),
        None => Ok(()),
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

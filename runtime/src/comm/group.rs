//! Rendezvous of a group of ranks, with a watchdog.

use super::error::CommError;
use super::world::World;
use autoshard_ir::program::Collective;
use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// What a rank asks its group to do. All ranks of a group must ask for the same.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Call {
    /// A change of state.
    Collective(Arc<Collective>),
    /// Bytes from one rank to all.
    Broadcast { name: String, root: usize, bytes: usize },
    /// One number from every rank to every rank.
    Exchange,
    /// A message; only for reports, it has no group.
    Message { name: String, from: usize, to: usize },
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Call::Collective(c) => {
                let axes: Vec<&str> = c.axes.iter().map(|a| a.name()).collect();
                write!(f, "{} %{} over {}: {} to {}", c.kind.name(), c.name, axes.join("·"), c.from, c.to)
            }
            Call::Broadcast { name, root, bytes } => {
                write!(f, "broadcast %{name} from rank {root} ({bytes} bytes)")
            }
            Call::Exchange => f.write_str("exchange of token hashes"),
            Call::Message { name, from, to } => {
                write!(f, "message %{name} from rank {from} to rank {to}")
            }
        }
    }
}

/// What a rank publishes when it arrives.
#[derive(Clone, Debug)]
pub(crate) struct Offer {
    /// What it wants.
    pub(crate) call: Arc<Call>,
    /// Address of its input, or the number it exchanges.
    pub(crate) input: usize,
    /// Address of its output.
    pub(crate) output: usize,
}

/// What a peer published.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Peer {
    /// See [`Offer::input`].
    pub(crate) input: usize,
    /// See [`Offer::output`].
    pub(crate) output: usize,
}

/// Ranks that communicate with each other.
#[derive(Debug)]
pub struct Group {
    /// The ranks, ascending.
    pub(crate) members: Vec<usize>,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug)]
struct State {
    /// Completed meetings.
    meeting: u64,
    arrived: Vec<bool>,
    /// Last offers; they stay until the next [`Group::meet`].
    offers: Vec<Option<Offer>>,
}

impl Group {
    pub(crate) fn new(members: Vec<usize>) -> Group {
        let n = members.len();
        let state = State { meeting: 0, arrived: vec![false; n], offers: vec![None; n] };
        Group { members, state: Mutex::new(state), changed: Condvar::new() }
    }

    /// Ranks of the group, ascending.
    pub fn members(&self) -> &[usize] {
        &self.members
    }

    /// Publishes `offer`, waits for all members and returns what they published, by position. The
    /// offers stay valid until this rank's next [`Group::barrier`].
    pub(crate) fn meet(
        &self,
        world: &World,
        me: usize,
        offer: Offer,
        waiting: &mut Duration,
    ) -> Result<Vec<Peer>, CommError> {
        let call = offer.call.clone();
        let mut state = self.lock();
        if let Some(error) = self.clash(&state, me, &call) {
            drop(state);
            world.stop(self.members[me], error.clone());
            return Err(error);
        }
        state.offers[me] = Some(offer);
        let state = self.arrive(world, me, &call, state, waiting)?;
        let peers = state.offers.iter().flatten().map(|o| Peer { input: o.input, output: o.output });
        Ok(peers.collect())
    }

    /// Waits until all members are here.
    pub(crate) fn barrier(
        &self,
        world: &World,
        me: usize,
        call: &Arc<Call>,
        waiting: &mut Duration,
    ) -> Result<(), CommError> {
        self.arrive(world, me, call, self.lock(), waiting).map(drop)
    }

    /// Wakes all waiting members, so that they see that the world has stopped.
    pub(crate) fn wake(&self) {
        let _state = self.lock();
        self.changed.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The first member that arrived with another call.
    fn clash(&self, state: &State, me: usize, call: &Arc<Call>) -> Option<CommError> {
        let (other, offer) = (0..self.members.len()).filter(|p| state.arrived[*p]).find_map(|p| {
            let offer = state.offers[p].as_ref()?;
            // Ranks of one program share the call; only others are compared field by field.
            (!Arc::ptr_eq(&offer.call, call) && offer.call != *call).then_some((p, offer))
        })?;
        Some(CommError::Mismatch {
            rank: self.members[me],
            call: call.to_string(),
            other: self.members[other],
            other_call: offer.call.to_string(),
            meeting: state.meeting,
            members: self.members.clone(),
        })
    }

    fn arrive<'a>(
        &'a self,
        world: &World,
        me: usize,
        call: &Arc<Call>,
        mut state: MutexGuard<'a, State>,
        waiting: &mut Duration,
    ) -> Result<MutexGuard<'a, State>, CommError> {
        world.check()?;
        state.arrived[me] = true;
        if state.arrived.iter().all(|a| *a) {
            state.arrived.fill(false);
            state.meeting += 1;
            self.changed.notify_all();
            return Ok(state);
        }
        let (meeting, start) = (state.meeting, Instant::now());
        world.place(self.members[me], Some(call));
        loop {
            let left = world.timeout().saturating_sub(start.elapsed());
            if left.is_zero() {
                let error = self.late(world, &state, call, start.elapsed());
                drop(state);
                world.stop(self.members[me], error.clone());
                return Err(error);
            }
            let wait = self.changed.wait_timeout(state, left);
            state = wait.unwrap_or_else(PoisonError::into_inner).0;
            world.check()?;
            if state.meeting != meeting {
                break;
            }
        }
        world.place(self.members[me], None);
        *waiting += start.elapsed();
        Ok(state)
    }

    fn late(&self, world: &World, state: &State, call: &Call, waited: Duration) -> CommError {
        let ranks = |here: bool| {
            let all = self.members.iter().zip(&state.arrived);
            all.filter(|(_, a)| **a == here).map(|(r, _)| *r).collect::<Vec<_>>()
        };
        let missing = ranks(false);
        CommError::Timeout {
            call: call.to_string(),
            meeting: state.meeting,
            waited,
            arrived: ranks(true),
            whereabouts: world.whereabouts(&missing),
            missing,
        }
    }
}

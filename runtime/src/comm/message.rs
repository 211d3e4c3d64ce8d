//! Messages between two ranks. A send copies and returns; a receive waits.

use super::error::CommError;
use super::group::Call;
use super::world::{lock, World};
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Messages that one rank may have under way to another before a send waits.
const DEPTH: usize = 64;

/// Messages for one rank, in order per sender.
#[derive(Debug, Default)]
pub(crate) struct Inbox {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    queues: HashMap<usize, VecDeque<Message>>,
    /// Buffers of received messages, for the next sends.
    free: Vec<Vec<u8>>,
}

#[derive(Debug)]
struct Message {
    name: String,
    data: Vec<u8>,
}

/// Who talks to whom about what.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Route<'a> {
    pub(crate) world: &'a World,
    pub(crate) name: &'a str,
    pub(crate) from: usize,
    pub(crate) to: usize,
}

impl Inbox {
    /// Wakes all who wait, so that they see that the world has stopped.
    pub(crate) fn wake(&self) {
        let _state = lock(&self.state);
        self.changed.notify_all();
    }

    /// Queues a copy of `data`; waits only while [`DEPTH`] messages are under way.
    pub(crate) fn send(&self, route: Route, data: &[u8], waiting: &mut Duration) -> Result<(), CommError> {
        let full = |s: &mut State| s.queues.get(&route.from).is_some_and(|q| q.len() >= DEPTH);
        let post = |s: &mut State| {
            let mut copy = s.free.pop().unwrap_or_default();
            copy.clear();
            copy.extend_from_slice(data);
            let message = Message { name: route.name.to_string(), data: copy };
            s.queues.entry(route.from).or_default().push_back(message);
        };
        self.when(route, (route.from, route.to), waiting, |s| (!full(s)).then(|| post(s)))
    }

    /// Takes the next message of the sender, which must have this name and size.
    pub(crate) fn receive(&self, route: Route, out: &mut [u8], waiting: &mut Duration) -> Result<(), CommError> {
        let message = self.when(route, (route.to, route.from), waiting, |s| {
            s.queues.get_mut(&route.from).and_then(VecDeque::pop_front)
        })?;
        if message.name != route.name || message.data.len() != out.len() {
            return Err(CommError::Message {
                to: route.to,
                from: route.from,
                name: route.name.to_string(),
                bytes: out.len(),
                sent_name: message.name,
                sent_bytes: message.data.len(),
            });
        }
        out.copy_from_slice(&message.data);
        let mut state = lock(&self.state);
        if state.free.len() < DEPTH {
            state.free.push(message.data);
        }
        Ok(())
    }

    /// Waits until `attempt` succeeds. `me` waits for `other`.
    fn when<T>(
        &self,
        route: Route,
        (me, other): (usize, usize),
        waiting: &mut Duration,
        mut attempt: impl FnMut(&mut State) -> Option<T>,
    ) -> Result<T, CommError> {
        let (world, start) = (route.world, Instant::now());
        let mut state = lock(&self.state);
        let mut placed = false;
        loop {
            world.check()?;
            if let Some(done) = attempt(&mut state) {
                self.changed.notify_all();
                if placed {
                    world.place(me, None);
                    *waiting += start.elapsed();
                }
                return Ok(done);
            }
            let call = Call::Message { name: route.name.to_string(), from: route.from, to: route.to };
            let left = world.timeout().saturating_sub(start.elapsed());
            if left.is_zero() {
                drop(state);
                let error = CommError::Timeout {
                    call: call.to_string(),
                    meeting: 0,
                    waited: start.elapsed(),
                    arrived: vec![me],
                    missing: vec![other],
                    whereabouts: world.whereabouts(&[other]),
                };
                world.stop(me, error.clone());
                return Err(error);
            }
            if !placed {
                world.place(me, Some(&Arc::new(call)));
                placed = true;
            }
            let wait = self.changed.wait_timeout(state, left);
            state = wait.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

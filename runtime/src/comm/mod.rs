//! Communication between ranks that are threads of one process.
//!
//! A collective is a change of state of one value: two types with the same global sizes, and the axes
//! that its group spans. Each rank of the group publishes the address of its input, waits for the
//! others, *pulls* from their buffers what its own output needs, and waits again, after which inputs
//! may be reused. One routine serves gathers, scatters, exchanges and ragged parts alike, because
//! [`CollectivePlan`] reduces them all to boxes; an all-reduce takes two rounds so that each rank
//! moves 2(g−1)/g of the tensor. Contributions are combined in rank order: every rank gets the same
//! bits.
//!
//! A rank runs a collective itself ([`Comm::collective`]), or issues it to its communication thread
//! and goes on computing until it waits ([`Comm::issue`], [`Comm::wait`]). Either way its collectives
//! run in the order of their issues.
//!
//! Invariant: bytes are counted where they are copied, and nothing waits longer than
//! [`World::timeout`].

mod count;
mod element;
mod error;
mod group;
mod message;
mod plan;
mod queue;
mod region;
mod world;

pub use count::{axes_key, Counted, Counts};
pub use error::CommError;
pub use group::Group;
pub use plan::CollectivePlan;
pub use region::parts;
pub use world::{World, MAX_RANKS};

pub(crate) use region::{checked_bytes, BoxCopy};

use autoshard_ir::program::CollectiveKind;
use autoshard_ir::DType;
use group::{Call, Offer, Peer};
use message::Route;
use plan::Source;
use queue::{Job, Queue};
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

/// One rank's end of the world.
#[derive(Debug)]
pub struct Comm<'w> {
    world: &'w World,
    rank: usize,
    /// What this rank has communicated since it started (or since the counts were taken). Of what is
    /// issued it holds what was waited for.
    pub counts: Counts,
    /// Position of the next communication in the order of issue.
    order: u64,
    /// Something was issued that the communication thread has not been woken for.
    waking: bool,
}

/// A collective that was issued.
#[derive(Debug)]
#[must_use = "what is issued must be waited for"]
pub struct Ticket(Option<u64>);

/// Bytes of one collective.
#[derive(Default)]
struct Moved {
    payload: u64,
    wire: u64,
}

impl<'w> Comm<'w> {
    pub(crate) fn new(world: &'w World, rank: usize, order: u64) -> Comm<'w> {
        Comm { world, rank, counts: Counts::default(), order, waking: false }
    }

    /// This rank.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// The world.
    pub fn world(&self) -> &'w World {
        self.world
    }

    /// Issues a collective that was planned for this rank, to be run after all that were issued before:
    /// from [`Comm::start`] on by the communication thread, or by [`Comm::wait`]. With `soon` the
    /// caller is about to wait: if nothing is under way, the collective runs here and now. So it does
    /// in a world of one rank, and so does a local move, whatever is under way.
    ///
    /// # Errors
    /// Those of [`Comm::collective`]; [`CommError::Spawn`] if there is no thread to run it.
    ///
    /// # Safety
    /// As for [`Comm::collective`], until [`Comm::wait`] has returned. The input may be the output of
    /// a collective that was issued before, unless this one is [`CollectiveKind::Local`].
    pub unsafe fn issue(
        &mut self,
        plan: &Arc<CollectivePlan>,
        input: *const u8,
        output: *mut u8,
        soon: bool,
    ) -> Result<Ticket, CommError> {
        let local = plan.collective.kind == CollectiveKind::Local;
        let here = |queue: &Queue| local || (soon && queue.idle());
        let Some(queue) = self.world.queue(self.rank).filter(|q| !here(q)) else {
            // SAFETY: by contract.
            return unsafe { self.collective(plan, input, output) }.map(|()| Ticket(None));
        };
        let (input, output) = (input as usize, output as usize);
        let job = Job { world: self.world.share(), plan: plan.clone(), input, output, order: self.next() };
        let number = queue.issue(job, || self.world.serve(self.rank))?;
        self.waking = true;
        Ok(Ticket(Some(number)))
    }

    /// Sets the communication thread to work on what was issued, because this thread goes on to
    /// something else.
    pub fn start(&mut self) {
        if std::mem::take(&mut self.waking) {
            self.world.queue(self.rank).into_iter().for_each(Queue::start);
        }
    }

    /// Waits for a collective that this rank has issued.
    ///
    /// # Errors
    /// Those of the collective, or of one issued before it.
    pub fn wait(&mut self, ticket: Ticket) -> Result<(), CommError> {
        let (Some(number), Some(queue)) = (ticket.0, self.world.queue(self.rank)) else {
            return Ok(());
        };
        let start = Instant::now();
        let done = queue.wait(number, &mut self.counts);
        self.counts.exposed += start.elapsed();
        done
    }

    /// The position of the next communication.
    fn next(&mut self) -> u64 {
        self.order += 1;
        self.order - 1
    }

    /// Counts time of this thread since `start`.
    fn spent(&mut self, start: Instant) {
        self.counts.communicating += start.elapsed();
        self.counts.exposed += start.elapsed();
    }

    /// Runs a collective that was planned for this rank. Unless it is a local move, nothing that was
    /// issued may be under way.
    ///
    /// # Errors
    /// [`CommError::Timeout`], [`CommError::Mismatch`], [`CommError::Overlap`], or
    /// [`CommError::Stopped`].
    ///
    /// # Safety
    /// `input` and `output` point to [`CollectivePlan::input_bytes`] and
    /// [`CollectivePlan::output_bytes`] of initialised memory, aligned to the element type, that
    /// nobody else writes (or, for the output, reads) meanwhile. Both stay allocated until
    /// [`World::run`] returns, even after an error: peers may still be reading.
    pub unsafe fn collective(
        &mut self,
        plan: &CollectivePlan,
        input: *const u8,
        output: *mut u8,
    ) -> Result<(), CommError> {
        let start = Instant::now();
        let (i, o) = (input as usize, output as usize);
        if i < o + plan.to_bytes && o < i + plan.from_bytes {
            return Err(CommError::Overlap { rank: self.rank, call: plan.call.to_string() });
        }
        if plan.rank != self.rank {
            let call = plan.call.to_string();
            return Err(CommError::NoRank { call, rank: self.rank, members: vec![plan.rank] });
        }
        // SAFETY: by contract; the peers' addresses come from their own calls of this function.
        let moved = unsafe { self.run(plan, input, output)? };
        let order = self.next();
        if plan.group.members.len() > 1 {
            self.counts.book(Counted {
                name: plan.name.clone(),
                kind: plan.collective.kind.name(),
                key: plan.key.clone(),
                payload: moved.payload,
                wire: moved.wire,
                control: plan.collective.control,
                order,
            });
        }
        self.spent(start);
        Ok(())
    }

    /// # Safety
    /// As [`Comm::collective`].
    unsafe fn run(&mut self, plan: &CollectivePlan, input: *const u8, output: *mut u8) -> Result<Moved, CommError> {
        let peers = self.meet(plan, input, output)?;
        let mut moved = Moved::default();
        // SAFETY: peers are at this same call, so that their inputs are alive, initialised and not
        // written until the barrier below; the plan keeps all offsets within the local sizes.
        unsafe {
            if plan.fill {
                let n = plan.to_bytes / plan.collective.to.dtype.bytes();
                element::fill(plan.collective.to.dtype, plan.monoid, output, n);
            }
            if plan.collective.kind == CollectiveKind::AllReduce && peers.len() > 1 {
                self.all_reduce(plan, &peers, output, &mut moved)?;
            } else {
                for source in &plan.sources {
                    pull(plan, source, 0..source.copy.elements(), &peers, output, &mut moved);
                }
            }
        }
        if peers.len() > 1 {
            plan.group.barrier(self.world, plan.me, &plan.call, &mut self.counts.waiting)?;
        }
        Ok(moved)
    }

    /// Publishes the buffers and learns those of the peers. A group of one does not wait.
    fn meet(&mut self, plan: &CollectivePlan, input: *const u8, output: *mut u8) -> Result<Vec<Peer>, CommError> {
        let (input, output) = (input as usize, output as usize);
        if plan.group.members.len() == 1 {
            return Ok(vec![Peer { input, output }]);
        }
        let offer = Offer { call: plan.call.clone(), input, output };
        plan.group.meet(self.world, plan.me, offer, &mut self.counts.waiting)
    }

    /// Reduces this rank's share of the elements from all inputs, then copies the other shares from
    /// the outputs of the ranks that reduced them.
    ///
    /// # Safety
    /// As [`Comm::collective`].
    unsafe fn all_reduce(
        &mut self,
        plan: &CollectivePlan,
        peers: &[Peer],
        output: *mut u8,
        moved: &mut Moved,
    ) -> Result<(), CommError> {
        let dtype = plan.collective.to.dtype;
        // All members hold the same box; there is one source, or none if the box is empty.
        let Some(source) = plan.sources.first() else {
            return plan.group.barrier(self.world, plan.me, &plan.call, &mut self.counts.waiting);
        };
        let n = source.copy.elements();
        let share = |p: usize| n * p / peers.len()..n * (p + 1) / peers.len();
        let mut read = Moved::default();
        // SAFETY: as in `run`.
        unsafe { pull(plan, source, share(plan.me), peers, output, &mut read) };
        moved.wire += read.wire;
        moved.payload += read.payload / peers.len() as u64;
        plan.group.barrier(self.world, plan.me, &plan.call, &mut self.counts.waiting)?;
        for (p, peer) in peers.iter().enumerate().filter(|(p, _)| *p != plan.me) {
            source.copy.rows(share(p), |_, to, n| {
                // SAFETY: peer p wrote its share before the barrier and writes only other shares
                // until the next; shares do not overlap.
                unsafe { element::copy(dtype, (peer.output as *const u8, to), (output, to), n) };
                let bytes = (n * dtype.bytes()) as u64;
                moved.payload += bytes;
                moved.wire += bytes;
            });
        }
        Ok(())
    }

    /// One number from every rank, by rank.
    ///
    /// # Errors
    /// [`CommError::Timeout`], [`CommError::Mismatch`] or [`CommError::Stopped`].
    pub fn exchange(&mut self, word: u64) -> Result<Vec<u64>, CommError> {
        let start = Instant::now();
        let group = self.world.everyone();
        let call = Arc::new(Call::Exchange);
        let offer = Offer { call: call.clone(), input: word as usize, output: 0 };
        let peers = group.meet(self.world, self.rank, offer, &mut self.counts.waiting)?;
        group.barrier(self.world, self.rank, &call, &mut self.counts.waiting)?;
        self.counts.control += (peers.len() as u64 - 1) * 8;
        self.spent(start);
        Ok(peers.iter().map(|p| p.input as u64).collect())
    }

    /// Copies `data` of rank `root` to all ranks of the group. `key` is what the bytes count under.
    ///
    /// # Errors
    /// [`CommError::NoRank`] if this rank or the root is not in the group, and those of
    /// [`Comm::exchange`].
    pub fn broadcast(
        &mut self,
        group: &Group,
        root: usize,
        name: &str,
        key: &str,
        data: &mut [u8],
    ) -> Result<(), CommError> {
        let start = Instant::now();
        let call = Call::Broadcast { name: name.to_string(), root, bytes: data.len() };
        let position = |rank: usize| {
            group.members.iter().position(|m| *m == rank).ok_or_else(|| CommError::NoRank {
                call: call.to_string(),
                rank,
                members: group.members.clone(),
            })
        };
        let (me, from) = (position(self.rank)?, position(root)?);
        if group.members.len() == 1 {
            return Ok(());
        }
        // Peers leave this function only when all have copied, but an error lets the root go while
        // they read: a private copy stays alive as long as any of them does.
        let shared: Option<Arc<[u8]>> = (me == from).then(|| Arc::from(&*data));
        let address = shared.as_ref().map_or(0, |s| s.as_ptr() as usize);
        let call = Arc::new(call);
        let offer = Offer { call: call.clone(), input: address, output: 0 };
        let peers = group.meet(self.world, me, offer, &mut self.counts.waiting)?;
        let mut moved = Moved { payload: data.len() as u64, wire: 0 };
        if me != from {
            // SAFETY: the root offered this many bytes under an equal call, and it keeps them alive
            // until the barrier, which it passes only after this copy.
            unsafe {
                let source = std::slice::from_raw_parts(peers[from].input as *const u8, data.len());
                data.copy_from_slice(source);
            }
            moved.wire = data.len() as u64;
        }
        let done = group.barrier(self.world, me, &call, &mut self.counts.waiting);
        if done.is_err() {
            // Someone may still be copying; the process is about to report the error and end.
            std::mem::forget(shared);
        }
        done?;
        self.book(name, "broadcast", key, moved);
        self.spent(start);
        Ok(())
    }

    /// Sends a copy of `data` to rank `to`. Does not wait for the receiver, unless it is far behind.
    ///
    /// # Errors
    /// [`CommError::NoRank`], [`CommError::Timeout`] or [`CommError::Stopped`].
    pub fn send(&mut self, to: usize, name: &str, data: &[u8]) -> Result<(), CommError> {
        let start = Instant::now();
        let route = Route { world: self.world, name, from: self.rank, to };
        let inbox = self.world.inbox(to).ok_or_else(|| self.no_rank(name, self.rank, to, to))?;
        inbox.send(route, data, &mut self.counts.waiting)?;
        self.spent(start);
        Ok(())
    }

    /// Receives the next message of rank `from`, which must have this name and size. Its bytes count
    /// under `key`.
    ///
    /// # Errors
    /// [`CommError::Message`] if another came, and those of [`Comm::send`].
    pub fn receive(&mut self, from: usize, name: &str, key: &str, out: &mut [u8]) -> Result<(), CommError> {
        let start = Instant::now();
        let no_rank = |rank| self.no_rank(name, from, self.rank, rank);
        self.world.inbox(from).ok_or_else(|| no_rank(from))?;
        let inbox = self.world.inbox(self.rank).ok_or_else(|| no_rank(self.rank))?;
        let route = Route { world: self.world, name, from, to: self.rank };
        inbox.receive(route, out, &mut self.counts.waiting)?;
        let wire = if from == self.rank { 0 } else { out.len() as u64 };
        self.book(name, "receive", key, Moved { payload: out.len() as u64, wire });
        self.spent(start);
        Ok(())
    }

    fn book(&mut self, name: &str, kind: &'static str, key: &str, moved: Moved) {
        let (name, key) = (name.into(), key.into());
        let Moved { payload, wire } = moved;
        let order = self.next();
        self.counts.book(Counted { name, kind, key, payload, wire, control: false, order });
    }

    fn no_rank(&self, name: &str, from: usize, to: usize, rank: usize) -> CommError {
        let call = Call::Message { name: name.to_string(), from, to }.to_string();
        CommError::NoRank { call, rank, members: self.world.everyone().members.clone() }
    }
}

/// Copies or combines the elements `range` of a source into the output.
///
/// # Safety
/// As [`Comm::collective`], with the peers' inputs for `input`.
unsafe fn pull(
    plan: &CollectivePlan,
    source: &Source,
    range: Range<usize>,
    peers: &[Peer],
    output: *mut u8,
    moved: &mut Moved,
) {
    let dtype = plan.collective.from.dtype;
    source.copy.rows(range, |from, to, n| {
        for at in (0..n).step_by(element::BLOCK) {
            let n = element::BLOCK.min(n - at);
            if dtype == DType::Bf16 && source.members.len() > 1 {
                let parts = source.members.iter().map(|m| (peers[*m].input as *const u8, from + at));
                // SAFETY: by contract.
                unsafe { element::combine_bf16(plan.monoid, parts, (output, to + at), n) };
            }
            for (i, member) in source.members.iter().enumerate() {
                let input = (peers[*member].input as *const u8, from + at);
                // SAFETY: by contract.
                unsafe {
                    match i {
                        _ if dtype == DType::Bf16 && source.members.len() > 1 => {}
                        0 => element::copy(dtype, input, (output, to + at), n),
                        _ => element::combine(dtype, plan.monoid, input, (output, to + at), n),
                    }
                }
                let bytes = (n * dtype.bytes()) as u64;
                moved.payload += bytes;
                moved.wire += if *member == plan.me { 0 } else { bytes };
            }
        }
    });
}

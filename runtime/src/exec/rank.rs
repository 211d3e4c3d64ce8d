//! One rank: its memory, and the walk through the steps.

use super::arena::{lay_out, Arena};
use super::error::RuntimeError;
use crate::comm::{CollectivePlan, Comm, Ticket, World};
use crate::cpu::pool::Pool;
use crate::cpu::{Buffer, KernelError, Prepared};
use autoshard_ir::program::{Buf, Collective, Program, ProgramFunction, Step};
use std::sync::{Arc, OnceLock};

/// Memory and collectives of one rank.
#[derive(Debug)]
pub(crate) struct Rank {
    pub(crate) rank: usize,
    pub(crate) coords: Vec<usize>,
    /// Parameters of the entry, and its results that do not live in one.
    entry: Arena,
    pub(crate) params: Vec<Place>,
    pub(crate) results: Vec<Place>,
    /// By function; `None` where the entry does not reach it.
    frames: Vec<Option<Arena>>,
    /// By collective; `None` where the entry does not reach it.
    plans: Vec<Option<Arc<CollectivePlan>>>,
    /// By kernel; resolved when first run.
    kernels: Vec<OnceLock<Prepared>>,
}

/// A buffer in the entry arena.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    offset: usize,
    bytes: usize,
}

impl Rank {
    /// Allocates the memory of a checked program.
    ///
    /// # Errors
    /// [`RuntimeError::Memory`], and [`RuntimeError::Comm`] for a collective that makes no sense.
    pub(crate) fn new(
        program: &Program,
        collectives: &[Arc<Collective>],
        reached: &[usize],
        world: &World,
        rank: usize,
    ) -> Result<Rank, RuntimeError> {
        let memory = |bytes: usize, what: String| Arena::new(bytes).ok_or(RuntimeError::Memory { rank, bytes, what });
        let entry = &program.functions[program.entry];
        let (params, results, total) = lay_out_entry(program, entry).unwrap_or((vec![], vec![], usize::MAX));
        let mut frames: Vec<Option<Arena>> = program.functions.iter().map(|_| None).collect();
        let mut plans: Vec<Option<Arc<CollectivePlan>>> = collectives.iter().map(|_| None).collect();
        for f in reached {
            let function = &program.functions[*f];
            frames[*f] = Some(memory(function.frame, format!("frame of {}", function.name))?);
            for step in &function.steps {
                if let Step::Issue { collective: c, .. } = step {
                    if plans[*c].is_none() {
                        plans[*c] = Some(Arc::new(CollectivePlan::new(world, rank, &collectives[*c])?));
                    }
                }
            }
        }
        Ok(Rank {
            rank,
            coords: program.mesh.coords(rank),
            entry: memory(total, "parameters and results".into())?,
            params,
            results,
            frames,
            plans,
            kernels: program.kernels.iter().map(|_| OnceLock::new()).collect(),
        })
    }

    /// All memory of this rank, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.entry.bytes() + self.frames.iter().flatten().map(Arena::bytes).sum::<usize>()
    }

    /// A buffer of the entry. The memory lives as long as this rank.
    pub(crate) fn buffer(&self, place: Place) -> Buffer {
        // Never past the arena: `place` was laid out in it.
        Buffer { ptr: self.entry.start().wrapping_add(place.offset), bytes: place.bytes }
    }

    /// Runs the entry function once.
    pub(crate) fn run(&mut self, program: &Program, comm: &mut Comm<'_>, pool: &Pool) -> Result<(), RuntimeError> {
        let buffers = |places: &[Place]| places.iter().map(|p| self.buffer(*p)).collect::<Vec<_>>();
        let (params, results) = (buffers(&self.params), buffers(&self.results));
        let mut walk = Walk { rank: self, program, comm, pool, scratch: Vec::new() };
        walk.function(program.entry, &params, &results)
    }
}

type EntryLayout = (Vec<Place>, Vec<Place>, usize);

/// Places of the entry's parameters and results, and the bytes of all; `None` on overflow.
fn lay_out_entry(program: &Program, entry: &ProgramFunction) -> Option<EntryLayout> {
    let size = |ty| program.mesh.local_bytes(ty);
    let mut sizes: Vec<usize> = entry.params.iter().map(|(_, t)| size(t)).collect();
    let own = entry.results.iter().zip(&entry.in_place).filter(|(_, p)| p.is_none());
    sizes.extend(own.map(|((_, t), _)| size(t)));
    let (offsets, total) = lay_out(&sizes)?;
    let mut places = offsets.into_iter().zip(sizes).map(|(offset, bytes)| Place { offset, bytes });
    let params: Vec<Place> = places.by_ref().take(entry.params.len()).collect();
    let place = |p: &Option<usize>| match p {
        Some(p) => params.get(*p).copied(),
        None => places.next(),
    };
    let results = entry.in_place.iter().map(place).collect::<Option<Vec<Place>>>()?;
    Some((params, results, total))
}

/// The walk of one rank through one step of training.
struct Walk<'a, 'w> {
    rank: &'a Rank,
    program: &'a Program,
    comm: &'a mut Comm<'w>,
    pool: &'a Pool,
    /// Buffers of the kernel at hand.
    scratch: Vec<Buffer>,
}

impl Walk<'_, '_> {
    /// Depth of the recursion is that of the call graph, which has no cycle.
    fn function(&mut self, f: usize, params: &[Buffer], results: &[Buffer]) -> Result<(), RuntimeError> {
        let program = self.program;
        let function = &program.functions[f];
        let rank = self.rank;
        let Some(frame) = &rank.frames[f] else {
            return Ok(());
        };
        let resolve = |buf: &Buf| match *buf {
            Buf::Frame(at) => Buffer { ptr: frame.start().wrapping_add(at), bytes: frame.bytes() - at },
            Buf::Param(p) => params[p],
            Buf::Result(r) => results[r],
        };
        let mut issued: Vec<(usize, Ticket)> = Vec::new();
        for (at, step) in function.steps.iter().enumerate() {
            self.comm.world().check()?;
            if !matches!(step, Step::Issue { .. } | Step::Wait { .. }) {
                self.comm.start();
            }
            match step {
                Step::Kernel { kernel, buffers } => {
                    self.scratch.clear();
                    self.scratch.extend(buffers.iter().map(resolve));
                    self.kernel(&function.name, *kernel)?;
                }
                Step::Issue { collective, input, output } => {
                    let Some(plan) = &rank.plans[*collective] else {
                        continue;
                    };
                    let soon = function.steps.get(at + 1) == Some(&Step::Wait { issue: at });
                    let (input, output) = (resolve(input).ptr, resolve(output).ptr);
                    // SAFETY: `check` found both buffers large enough and aligned, and no step between
                    // here and the wait that touches them; the memory is this rank's alone and lives in
                    // `Runtime` until all ranks have returned.
                    issued.push((at, unsafe { self.comm.issue(plan, input, output, soon)? }));
                }
                Step::Wait { issue } => {
                    // `check` found that it is there.
                    if let Some(i) = issued.iter().position(|(at, _)| at == issue) {
                        self.comm.wait(issued.swap_remove(i).1)?;
                    }
                }
                Step::Call { function, args, results } => {
                    let args: Vec<Buffer> = args.iter().map(resolve).collect();
                    let results: Vec<Buffer> = results.iter().map(resolve).collect();
                    self.function(*function, &args, &results)?;
                }
                Step::Copy { from, to, bytes } => {
                    let (from, to) = (resolve(from).ptr, resolve(to).ptr);
                    // SAFETY: `check` found both buffers large enough; `copy` allows overlap.
                    unsafe { std::ptr::copy(from, to, *bytes) };
                }
            }
        }
        Ok(())
    }

    fn kernel(&mut self, function: &str, kernel: usize) -> Result<(), RuntimeError> {
        let (prepared, kernel) = (&self.rank.kernels[kernel], &self.program.kernels[kernel]);
        let resolve = || Prepared::new(kernel, &self.program.mesh, &self.rank.coords);
        let run = || -> Result<(), KernelError> {
            let prepared = match prepared.get() {
                Some(prepared) => prepared,
                None => {
                    let resolved = resolve()?;
                    prepared.get_or_init(|| resolved)
                }
            };
            // SAFETY: the buffers are live memory of this rank, of the stated sizes; `run` checks
            // what the kernel's views need against them.
            unsafe { prepared.run(&self.scratch, self.pool) }
        };
        let done = run();
        done.map_err(|source| RuntimeError::Kernel {
            rank: self.rank.rank,
            function: function.to_string(),
            kernel: kernel.name.clone(),
            source,
        })
    }
}

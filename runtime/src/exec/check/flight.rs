//! What a function may touch while collectives are under way.

use super::home;
use autoshard_ir::program::{Buf, CollectiveKind, Program, ProgramFunction, Step};
use autoshard_ir::Type;
use std::ops::Range;

/// Memory of a function: a range of the frame, or a whole parameter or result.
#[derive(Clone, Debug)]
struct Place {
    home: Buf,
    bytes: Range<usize>,
}

impl Place {
    fn new(f: &ProgramFunction, buf: Buf, bytes: usize) -> Place {
        match home(f, buf) {
            Buf::Frame(at) => Place { home: Buf::Frame(0), bytes: at..at.saturating_add(bytes.max(1)) },
            home => Place { home, bytes: 0..1 },
        }
    }

    fn meets(&self, other: &Place) -> bool {
        self.home == other.home && self.bytes.start < other.bytes.end && other.bytes.start < self.bytes.end
    }
}

/// Where buffers of unknown sizes begin.
fn all(f: &ProgramFunction, bufs: &[Buf]) -> Vec<Place> {
    bufs.iter().map(|b| Place::new(f, *b, 1)).collect()
}

/// Parameters are written for an update in place, or where they are the function's own.
fn written(f: &ProgramFunction, bufs: &[Buf]) -> Result<(), String> {
    let foreign = bufs.iter().find_map(|b| match b {
        Buf::Param(p) if !f.in_place.contains(&Some(*p)) && f.consumed.get(*p) != Some(&true) => Some(*p),
        _ => None,
    });
    match foreign {
        Some(p) => Err(format!("writes parameter {p}, which is neither updated nor consumed")),
        None => Ok(()),
    }
}

/// A collective between its issue and its wait.
pub(super) struct Pending {
    pub(super) issue: usize,
    input: Place,
    output: Place,
}

/// The collectives under way, step by step. Kernels do not tell the sizes of their buffers: of these
/// the first byte is looked at.
#[derive(Default)]
pub(super) struct Flight {
    pub(super) pending: Vec<Pending>,
}

impl Flight {
    /// Applies a step, whose indices are in range.
    pub(super) fn step(&mut self, program: &Program, f: &ProgramFunction, at: usize) -> Result<(), String> {
        let size = |ty: &Type| program.mesh.local_bytes(ty);
        let place = |buf: &Buf, bytes| Place::new(f, *buf, bytes);
        let (reads, writes) = match &f.steps[at] {
            Step::Kernel { kernel, buffers } => {
                let (operands, results) = buffers.split_at(program.kernels[*kernel].operands);
                written(f, results)?;
                (all(f, operands), all(f, results))
            }
            Step::Call { function, args, results } => {
                let callee = &program.functions[*function];
                let sized = |bufs: &[Buf], types: &[(String, Type)]| -> Vec<Place> {
                    bufs.iter().zip(types).map(|(b, (_, ty))| place(b, size(ty))).collect()
                };
                let taken = args.iter().zip(&callee.consumed).filter(|(_, taken)| **taken).map(|(a, _)| *a);
                let taken: Vec<Buf> = taken.collect();
                let given: Vec<Buf> = results.iter().chain(&taken).copied().collect();
                written(f, &given)?;
                let mut writes = sized(results, &callee.results);
                writes.extend(all(f, &taken));
                (sized(args, &callee.params), writes)
            }
            Step::Copy { from, to, bytes } => {
                written(f, &[*to])?;
                (vec![place(from, *bytes)], vec![place(to, *bytes)])
            }
            Step::Issue { collective, input, output } => {
                let c = &program.collectives[*collective];
                written(f, &[*output])?;
                let (input, output) = (place(input, size(&c.from)), place(output, size(&c.to)));
                // Communication comes in the order of its issues; a local move does not wait for it.
                let reads = if c.kind == CollectiveKind::Local { vec![input.clone()] } else { vec![] };
                self.touch(&reads, std::slice::from_ref(&output))?;
                self.pending.push(Pending { issue: at, input, output });
                return Ok(());
            }
            Step::Wait { issue } => {
                let Some(i) = self.pending.iter().position(|p| p.issue == *issue) else {
                    return Err(format!("waits for step {issue}, which is not under way"));
                };
                self.pending.remove(i);
                return Ok(());
            }
        };
        self.touch(&reads, &writes)
    }

    fn touch(&self, reads: &[Place], writes: &[Place]) -> Result<(), String> {
        for p in &self.pending {
            let read = reads.iter().any(|r| r.meets(&p.output));
            let written = writes.iter().any(|w| w.meets(&p.output) || w.meets(&p.input));
            if read || written {
                return Err(format!("touches what step {} is moving", p.issue));
            }
        }
        Ok(())
    }
}

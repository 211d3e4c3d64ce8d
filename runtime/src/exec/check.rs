//! Checks a program once, so that executing it needs no bounds checks of its own.

mod flight;

use super::error::RuntimeError;
use crate::comm::checked_bytes;
use autoshard_ir::kernel::Kernel;
use autoshard_ir::program::{Buf, Program, ProgramFunction, Step};
use autoshard_ir::{Mesh, Type};
use flight::Flight;

/// Offsets into a frame must be multiples of this many bytes: the widest element.
const FRAME_ALIGN: usize = 8;

/// Calls may nest this deep: ranks walk them recursively.
const MAX_DEPTH: usize = 256;

/// Functions that the entry reaches, callees first. All that they do lies within their buffers.
///
/// # Errors
/// [`RuntimeError::Program`] for an index out of range, a recursive call, a buffer that is too small
/// or misaligned for what a step does with it, results in place that do not fit, writes to a parameter
/// that is neither updated nor consumed, and steps that touch what a collective is moving.
pub(crate) fn check(program: &Program) -> Result<Vec<usize>, RuntimeError> {
    let mut order = Vec::new();
    // Depth first without recursion: a damaged program may chain as many calls as it likes.
    let mut state = vec![State::New; program.functions.len()];
    let mut stack = vec![(program.entry, 0)];
    while let Some((f, step)) = stack.pop() {
        let Some(function) = program.functions.get(f) else {
            let reason = format!("there is no function {f}");
            return Err(error("program", "entry", reason));
        };
        if step == 0 {
            check_function(program, function)?;
            state[f] = State::Open;
        }
        let callee = function.steps.iter().enumerate().skip(step).find_map(|(i, s)| match s {
            Step::Call { function, .. } if state[*function] != State::Done => Some((i, *function)),
            _ => None,
        });
        match callee {
            None => {
                state[f] = State::Done;
                order.push(f);
            }
            Some((i, callee)) if state[callee] == State::Open => {
                let reason = format!("{} calls itself", program.functions[callee].name);
                return Err(error(&function.name, &format!("step {i}"), reason));
            }
            Some((i, _)) if stack.len() >= MAX_DEPTH => {
                let reason = format!("calls nest deeper than {MAX_DEPTH}");
                return Err(error(&function.name, &format!("step {i}"), reason));
            }
            Some((i, callee)) => {
                stack.push((f, i + 1));
                stack.push((callee, 0));
            }
        }
    }
    Ok(order)
}

#[derive(Clone, Copy, PartialEq)]
enum State {
    New,
    Open,
    Done,
}

fn error(function: &str, place: &str, reason: String) -> RuntimeError {
    RuntimeError::Program { function: function.into(), place: place.into(), reason }
}

fn check_function(program: &Program, f: &ProgramFunction) -> Result<(), RuntimeError> {
    for (name, ty) in f.params.iter().chain(&f.results) {
        check_type(&program.mesh, ty).map_err(|reason| error(&f.name, &format!("%{name}"), reason))?;
    }
    if f.in_place.len() != f.results.len() {
        let reason = format!("{} entries for {} results", f.in_place.len(), f.results.len());
        return Err(error(&f.name, "in_place", reason));
    }
    for ((name, ty), p) in f.results.iter().zip(&f.in_place) {
        let Some(p) = p else { continue };
        let fits = f.params.get(*p).is_some_and(|(_, t)| t.same_shape(ty) && t.same_state(ty));
        if !fits {
            let reason = format!("parameter {p} cannot hold this result in place");
            return Err(error(&f.name, &format!("%{name}"), reason));
        }
    }
    if f.consumed.len() != f.params.len() {
        let reason = format!("{} entries for {} parameters", f.consumed.len(), f.params.len());
        return Err(error(&f.name, "consumed", reason));
    }
    let mut flight = Flight::default();
    for (i, step) in f.steps.iter().enumerate() {
        let sound = check_step(program, f, step).and_then(|()| flight.step(program, f, i));
        sound.map_err(|reason| error(&f.name, &format!("step {i}"), reason))?;
    }
    match flight.pending.first() {
        Some(p) => Err(error(&f.name, &format!("step {}", p.issue), "is never waited for".into())),
        None => Ok(()),
    }
}

fn check_type(mesh: &Mesh, ty: &Type) -> Result<usize, String> {
    checked_bytes(mesh, ty).ok_or_else(|| format!("{ty} is too large"))
}

fn check_step(program: &Program, f: &ProgramFunction, step: &Step) -> Result<(), String> {
    let needs = |buf: &Buf, bytes: usize| {
        let have = available(&program.mesh, f, *buf)?;
        if have < bytes {
            return Err(format!("{buf:?} has {have} bytes, {bytes} are needed"));
        }
        Ok(())
    };
    match step {
        Step::Kernel { kernel, buffers } => {
            let k = program.kernels.get(*kernel).ok_or(format!("there is no kernel {kernel}"))?;
            let want = k.operands.saturating_add(k.results);
            if buffers.len() != want {
                return Err(format!("{} has {want} buffers, not {}", k.name, buffers.len()));
            }
            check_kernel(f, k, buffers)?;
            buffers.iter().try_for_each(|b| needs(b, 0))
        }
        // See `Flight`.
        Step::Wait { .. } => Ok(()),
        Step::Issue { collective, input, output } => {
            let c = program.collectives.get(*collective);
            let c = c.ok_or(format!("there is no collective {collective}"))?;
            needs(input, check_type(&program.mesh, &c.from)?)?;
            needs(output, check_type(&program.mesh, &c.to)?)
        }
        Step::Call { function, args, results } => {
            let callee = program.functions.get(*function);
            let callee = callee.ok_or(format!("there is no function {function}"))?;
            check_call(program, f, callee, args, results)?;
            for (buf, (_, ty)) in args.iter().chain(results).zip(callee.params.iter().chain(&callee.results)) {
                needs(buf, check_type(&program.mesh, ty)?)?;
            }
            Ok(())
        }
        Step::Copy { from, to, bytes } => {
            needs(from, *bytes)?;
            needs(to, *bytes)
        }
    }
}

/// What `cpu::execute` cannot see for itself.
fn check_kernel(f: &ProgramFunction, k: &Kernel, buffers: &[Buf]) -> Result<(), String> {
    let (operands, results) = buffers.split_at(k.operands);
    for (i, r) in results.iter().enumerate() {
        for (operand, _) in operands.iter().enumerate().filter(|(_, o)| home(f, **o) == home(f, *r)) {
            if !k.may_overwrite(operand, i) {
                return Err(format!("{} writes a result over an operand", k.name));
            }
        }
    }
    Ok(())
}

/// Counts of arguments and results, and results in place.
fn check_call(
    program: &Program,
    f: &ProgramFunction,
    callee: &ProgramFunction,
    args: &[Buf],
    results: &[Buf],
) -> Result<(), String> {
    let counts = [("arguments", args.len(), callee.params.len()), ("results", results.len(), callee.results.len())];
    for (what, given, want) in counts {
        if given != want {
            return Err(format!("{} takes {want} {what}, not {given}", callee.name));
        }
    }
    for (i, p) in callee.in_place.iter().enumerate() {
        let Some(p) = p else { continue };
        let same = match (results.get(i), args.get(*p)) {
            (Some(r), Some(a)) => home(f, *r) == home(f, *a),
            _ => false,
        };
        if !same {
            let name = &callee.name;
            return Err(format!("result {i} of {name} lives in argument {p}, but has another buffer"));
        }
    }
    // The callee's sizes are checked with the callee; here they may still overflow.
    callee.params.iter().try_for_each(|(_, t)| check_type(&program.mesh, t).map(drop))
}

/// Where a buffer really lies: a result in place is its parameter.
fn home(f: &ProgramFunction, buf: Buf) -> Buf {
    match buf {
        Buf::Result(r) => match f.in_place.get(r) {
            Some(Some(p)) => Buf::Param(*p),
            _ => buf,
        },
        _ => buf,
    }
}

/// Bytes from the start of a buffer to the end of what it lies in.
fn available(mesh: &Mesh, f: &ProgramFunction, buf: Buf) -> Result<usize, String> {
    let ty = match buf {
        Buf::Frame(at) if at > f.frame => {
            return Err(format!("offset {at} is outside the frame of {} bytes", f.frame));
        }
        Buf::Frame(at) if at % FRAME_ALIGN != 0 => {
            return Err(format!("frame offset {at} is not a multiple of {FRAME_ALIGN}"));
        }
        Buf::Frame(at) => return Ok(f.frame - at),
        Buf::Param(p) => f.params.get(p),
        Buf::Result(r) => f.results.get(r),
    };
    match ty {
        Some((_, ty)) => check_type(mesh, ty),
        None => Err(format!("there is no {buf:?}")),
    }
}

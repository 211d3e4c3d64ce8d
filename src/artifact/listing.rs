//! The listing of a program: a line a step, kernel and collective, the same for the same program.

use autoshard_ir::kernel::{AttentionKernel, Extent, GemmLoop, Init, Kernel, KernelBody, LoopKernel, Product};
use autoshard_ir::program::{Buf, Collective, Program, ProgramFunction, Step};
use autoshard_ir::Axis;
use sha2::{Digest, Sha256};
use std::fmt::Write;

/// The whole listing: mesh, kernels, collectives, functions with their steps.
pub fn list(program: &Program) -> String {
    let mut out = format!("mesh {}\n\nkernels\n", program.mesh);
    out.push_str(&kernels(program));
    out.push_str("\ncollectives\n");
    for (i, c) in program.collectives.iter().enumerate() {
        let _ = writeln!(out, "  c{i:<4} {}", collective(c));
    }
    for (i, f) in program.functions.iter().enumerate() {
        let entry = if i == program.entry { " entry" } else { "" };
        let _ = writeln!(out, "\nfunction @{}{entry}, frame of {} bytes", f.name, f.frame);
        signature(&mut out, f);
        f.steps.iter().enumerate().for_each(|(at, s)| step(&mut out, program, at, s));
    }
    out
}

/// The kernels: template, name, shape, FLOPs, bytes, digest of every detail.
pub fn kernels(program: &Program) -> String {
    let mut out = String::new();
    for (i, k) in program.kernels.iter().enumerate() {
        let _ = writeln!(
            out,
            "  k{i:<4} {:<18} {:<34} {:<58} {} FLOP, {} bytes, #{}",
            template(&k.body),
            k.name,
            shape(k),
            k.flops,
            k.bytes,
            digest(k)
        );
    }
    out
}

/// Name of a kernel's template.
fn template(body: &KernelBody) -> &'static str {
    match body {
        KernelBody::Loop(_) => "loop",
        KernelBody::Gemm(_) => "gemm",
        KernelBody::Attention(_) => "attention",
        KernelBody::AttentionBackward(_) => "attention_backward",
        KernelBody::Gather(_) => "gather",
        KernelBody::Scatter(_) => "scatter",
        KernelBody::Copy(_) => "copy",
    }
}

fn shape(kernel: &Kernel) -> String {
    match &kernel.body {
        KernelBody::Loop(nests) => nests.iter().map(nest).collect::<Vec<_>>().join("; "),
        KernelBody::Gemm(k) => {
            let parts = k.products.iter().map(product).chain(k.epilogue.iter().map(|k| format!("then {}", nest(k))));
            parts.collect::<Vec<_>>().join("; ")
        }
        KernelBody::Attention(k) | KernelBody::AttentionBackward(k) => attention(k),
        KernelBody::Gather(k) | KernelBody::Scatter(k) => {
            let rows = extents(&k.rows);
            format!("{} rows={rows} of {}", k.dtype, extents(&[k.table.clone(), k.d.clone()]))
        }
        KernelBody::Copy(k) => {
            let moved: usize = k.boxes.iter().map(|b| b.loops.iter().map(|l| l.0).product::<usize>()).sum();
            format!("{} {} boxes, {moved} elements", k.dtype, k.boxes.len())
        }
    }
}

fn nest(k: &LoopKernel) -> String {
    format!("{}, {} instructions", extents(&k.loops), k.instrs.len())
}

fn product(p: &Product) -> String {
    let side = |name: &str, loops: &[GemmLoop]| {
        let all: Vec<Extent> = loops.iter().map(|l| l.extent.clone()).collect();
        (!all.is_empty()).then(|| format!("{name}={}", extents(&all)))
    };
    let sides = [side("batch", &p.batch), side("m", &p.m), side("n", &p.n), side("k", &p.k)];
    let adds = match p.init {
        Init::Zero => "",
        Init::Result | Init::Operand(_) => "+ ",
    };
    format!("{adds}{} {}", p.dtype, sides.into_iter().flatten().collect::<Vec<_>>().join(" "))
}

fn attention(k: &AttentionKernel) -> String {
    let all = [&k.b, &k.s, &k.t, &k.g, &k.r, &k.e, &k.h].map(Clone::clone);
    let causal = if k.causal { " causal" } else { "" };
    let window = if k.window > 0 { format!(" window={}", k.window) } else { String::new() };
    format!("{} {}{causal}{window}", k.dtype, extents(&all))
}

/// `[b=2/8@dp, s=64]`: local sizes, and the global size where a loop is split.
fn extents(all: &[Extent]) -> String {
    let one = |e: &Extent| match e.axes.as_slice() {
        [] => format!("{}={}", e.name, e.size),
        axes => format!("{}={}/{}@{}", e.name, e.size, e.global, join(axes)),
    };
    format!("[{}]", all.iter().map(one).collect::<Vec<_>>().join(", "))
}

fn join(axes: &[Axis]) -> String {
    axes.iter().map(Axis::name).collect::<Vec<_>>().join("·")
}

/// Eight bytes over everything that a kernel is: strides, constants, instructions.
fn digest(kernel: &Kernel) -> String {
    super::hex(&Sha256::digest(format!("{kernel:?}"))[..8])
}

fn collective(c: &Collective) -> String {
    let control = if c.control { " control" } else { "" };
    format!("{} over {}: {} -> {}, {}{control}", c.kind.name(), join(&c.axes), c.from, c.to, c.name)
}

fn signature(out: &mut String, f: &ProgramFunction) {
    for (i, (name, ty)) in f.params.iter().enumerate() {
        let consumed = if f.consumed.get(i) == Some(&true) { " consumed" } else { "" };
        let _ = writeln!(out, "  p{i:<4} %{name}: {ty}{consumed}");
    }
    for (i, (name, ty)) in f.results.iter().enumerate() {
        let place = match f.in_place.get(i) {
            Some(Some(p)) => format!(" in p{p}"),
            _ => String::new(),
        };
        let _ = writeln!(out, "  r{i:<4} %{name}: {ty}{place}");
    }
}

/// A step; an issue shows its position, which its wait names.
fn step(out: &mut String, program: &Program, at: usize, step: &Step) {
    let bufs = |all: &[Buf]| all.iter().map(buf).collect::<Vec<_>>().join(", ");
    let _ = match step {
        Step::Kernel { kernel, buffers } => {
            let (operands, results) = match program.kernels.get(*kernel) {
                Some(k) => buffers.split_at(k.operands.min(buffers.len())),
                None => (&buffers[..], &[][..]),
            };
            writeln!(out, "  {} = k{kernel} {}", bufs(results), bufs(operands))
        }
        Step::Issue { collective, input, output } => {
            writeln!(out, "  {} = c{collective} {} issued at {at}", buf(output), buf(input))
        }
        Step::Wait { issue } => writeln!(out, "  wait for {issue}"),
        Step::Call { function, args, results } => {
            let name = program.functions.get(*function).map_or("?", |f| &f.name);
            writeln!(out, "  {} = @{name} {}", bufs(results), bufs(args))
        }
        Step::Copy { from, to, bytes } => writeln!(out, "  {} = {} ({bytes} bytes)", buf(to), buf(from)),
    };
}

fn buf(b: &Buf) -> String {
    match b {
        Buf::Frame(at) => format!("+{at}"),
        Buf::Param(i) => format!("p{i}"),
        Buf::Result(i) => format!("r{i}"),
    }
}

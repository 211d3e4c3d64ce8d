//! Kernels evaluated entry by entry in f64, every instruction rounded to its type, and the elements
//! that they touch. Written from the definitions in `ir/src/kernel.rs` alone.

use super::tensor::Tensor;
use autoshard_ir::kernel::{Extent, GatherKernel, Kernel, KernelBody, LoopKernel, LoopOp, View};
use autoshard_ir::mesh::{Mesh, Part};
use autoshard_ir::ops::random_unit;
use autoshard_ir::DType;

/// A buffer of a kernel: its type and padded number of elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Element type.
    pub dtype: DType,
    /// Elements.
    pub len: usize,
}

/// The buffers that a kernel's views reach, operands first. Buffers that nothing names have no type
/// and get one element.
pub fn shapes(kernel: &Kernel) -> Vec<Shape> {
    let mut out = vec![Shape { dtype: DType::F32, len: 1 }; kernel.operands + kernel.results];
    match &kernel.body {
        KernelBody::Loop(nests) => {
            for (nest, view) in views(nests) {
                let last =
                    nest.loops.iter().zip(&view.strides).map(|(l, s)| l.size.saturating_sub(1) * s).sum::<usize>();
                let shape = &mut out[view.buffer];
                *shape = Shape { dtype: view.dtype, len: shape.len.max(view.offset + last + 1) };
            }
        }
        KernelBody::Gather(g) | KernelBody::Scatter(g) => {
            let rows: usize = g.rows.iter().map(|e| e.size).product();
            let table = Shape { dtype: g.dtype, len: g.table.size * g.d.size };
            let wide = Shape { dtype: g.dtype, len: rows * g.d.size };
            let gather = matches!(kernel.body, KernelBody::Gather(_));
            out = vec![
                if gather { table } else { wide },
                Shape { dtype: DType::I32, len: rows },
                if gather { wide } else { table },
            ];
        }
        _ => {}
    }
    out
}

/// Views of all nests: loads, then stores.
fn views(nests: &[LoopKernel]) -> impl Iterator<Item = (&LoopKernel, &View)> {
    nests.iter().flat_map(|n| {
        let loads = n.instrs.iter().filter_map(|i| match &i.op {
            LoopOp::Load(v) => Some(v),
            _ => None,
        });
        loads.chain(n.stores.iter().map(|s| &s.view)).map(move |v| (n, v))
    })
}

/// Calls `f` with every index of a box, last fastest.
fn each(lens: &[usize], mut f: impl FnMut(&[usize])) {
    let mut d = vec![0; lens.len()];
    for n in 0..lens.iter().product() {
        let mut rest: usize = n;
        for (digit, len) in d.iter_mut().zip(lens).rev() {
            *digit = rest % len;
            rest /= len;
        }
        f(&d);
    }
}

fn at(view: &View, d: &[usize]) -> usize {
    view.offset + d.iter().zip(&view.strides).map(|(d, s)| d * s).sum::<usize>()
}

fn parts(loops: &[Extent], mesh: &Mesh, coords: &[usize]) -> Vec<Part> {
    loops.iter().map(|e| e.part(mesh, coords)).collect()
}

/// Which elements of each buffer a rank must load and store.
#[derive(Clone, Debug)]
pub struct Touched {
    /// By buffer and element.
    pub loaded: Vec<Vec<bool>>,
    /// The same.
    pub stored: Vec<Vec<bool>>,
    /// What may be loaded besides: where a loop has no entries, what the others reach.
    pub optional: Vec<Vec<bool>>,
}

/// The elements that a kernel touches. A gather's and a scatter's depend on the ids in `operands`.
pub fn touched(kernel: &Kernel, mesh: &Mesh, coords: &[usize], operands: &[Tensor]) -> Touched {
    let empty: Vec<Vec<bool>> = shapes(kernel).iter().map(|s| vec![false; s.len]).collect();
    let mut out = Touched { optional: empty.clone(), loaded: empty.clone(), stored: empty };
    match &kernel.body {
        KernelBody::Loop(nests) => {
            for nest in nests {
                let lens: Vec<usize> = parts(&nest.loops, mesh, coords).iter().map(|p| p.len).collect();
                for i in &nest.instrs {
                    let LoopOp::Load(view) = &i.op else { continue };
                    let all: Vec<usize> = lens.iter().map(|l| (*l).max(1)).collect();
                    let flags = if all == lens { &mut out.loaded } else { &mut out.optional };
                    each(&all, |d| flags[view.buffer][at(view, d)] = true);
                }
                for s in &nest.stores {
                    // A combining store gives the identity where it reduces over nothing.
                    let own: Vec<usize> =
                        lens.iter().zip(&s.view.strides).map(|(l, s)| if *s == 0 { 1 } else { *l }).collect();
                    each(&own, |d| out.stored[s.view.buffer][at(&s.view, d)] = true);
                }
            }
        }
        KernelBody::Gather(g) | KernelBody::Scatter(g) => {
            let gather = matches!(kernel.body, KernelBody::Gather(_));
            let (wide, table) = if gather { (2, 0) } else { (0, 2) };
            let (d, part) = (g.d.part(mesh, coords).len, g.table.part(mesh, coords));
            let mark = |flags: &mut Vec<bool>, row: usize| flags[row * g.d.size..][..d].fill(true);
            rows(g, mesh, coords, &operands[1], |row, target| {
                out.loaded[1][row] = true;
                if gather {
                    mark(&mut out.stored[wide], row);
                    target.into_iter().for_each(|t| mark(&mut out.loaded[table], t));
                } else if let Some(t) = target {
                    mark(&mut out.loaded[wide], row);
                    // Rows are added where they lie: what has been written is read again.
                    mark(&mut out.loaded[table], t);
                }
            });
            if !gather {
                (0..part.len).for_each(|row| mark(&mut out.stored[table], row));
            }
        }
        _ => {}
    }
    out
}

/// Real rows with the local table row that their id names, if this rank holds it.
fn rows(g: &GatherKernel, mesh: &Mesh, coords: &[usize], ids: &Tensor, mut f: impl FnMut(usize, Option<usize>)) {
    let lens: Vec<usize> = parts(&g.rows, mesh, coords).iter().map(|p| p.len).collect();
    let part = g.table.part(mesh, coords);
    each(&lens, |d| {
        let row = d.iter().zip(&g.rows).fold(0, |row, (d, e)| row * e.size + d);
        let local = (ids.values[row] as usize).checked_sub(part.start);
        f(row, local.filter(|l| *l < part.len));
    });
}

/// Results of a kernel; `None` where it must not write.
pub fn reference(kernel: &Kernel, mesh: &Mesh, coords: &[usize], operands: &[Tensor]) -> Vec<Vec<Option<f64>>> {
    let shapes = shapes(kernel);
    let mut out: Vec<Vec<Option<f64>>> = shapes[kernel.operands..].iter().map(|s| vec![None; s.len]).collect();
    match &kernel.body {
        KernelBody::Loop(nests) => {
            nests.iter().for_each(|n| nest(n, &parts(&n.loops, mesh, coords), operands, &mut out));
        }
        KernelBody::Gather(g) => {
            let d = g.d.part(mesh, coords).len;
            rows(g, mesh, coords, &operands[1], |row, target| {
                for c in 0..d {
                    let value = target.map_or(0.0, |t| operands[0].values[t * g.d.size + c]);
                    out[0][row * g.d.size + c] = Some(value);
                }
            });
        }
        KernelBody::Scatter(g) => {
            let d = g.d.part(mesh, coords).len;
            let part = g.table.part(mesh, coords);
            each(&[part.len, d], |i| out[0][i[0] * g.d.size + i[1]] = Some(0.0));
            rows(g, mesh, coords, &operands[1], |row, target| {
                let Some(t) = target else { return };
                for c in 0..d {
                    let sum = &mut out[0][t * g.d.size + c];
                    *sum = sum.map(|s| s + operands[0].values[row * g.d.size + c]);
                }
            });
        }
        _ => {}
    }
    // Sums are rounded once.
    for (values, shape) in out.iter_mut().zip(&shapes[kernel.operands..]) {
        values.iter_mut().for_each(|v| *v = v.map(|v| shape.dtype.round(v)));
    }
    out
}

/// Which registers are one number per row, by what they are made of. A kernel's own marks are not
/// relied on: no backend does, and lowering is known to mark the cast of a broadcast row.
fn uniform(k: &LoopKernel) -> Vec<bool> {
    let lane = k.loops.len().saturating_sub(1);
    let mut out: Vec<bool> = vec![];
    for i in &k.instrs {
        out.push(match &i.op {
            LoopOp::Load(v) => v.strides.last() == Some(&0),
            LoopOp::Table(l, _) | LoopOp::Index(l) => *l != lane,
            LoopOp::Random(_, strides) => strides.last() == Some(&0),
            LoopOp::Const(_) | LoopOp::Reduce(_) => true,
            LoopOp::Map(_) => i.args.iter().all(|a| out[*a]),
        });
    }
    out
}

fn nest(k: &LoopKernel, parts: &[Part], operands: &[Tensor], out: &mut [Vec<Option<f64>>]) {
    let lens: Vec<usize> = parts.iter().map(|p| p.len).collect();
    let Some((lane, outer)) = lens.split_last() else { return };
    for s in &k.stores {
        let Some(monoid) = s.combine else { continue };
        let own: Vec<usize> = lens.iter().zip(&s.view.strides).map(|(l, s)| if *s == 0 { 1 } else { *l }).collect();
        each(&own, |d| out[s.view.buffer - operands.len()][at(&s.view, d)] = Some(monoid.identity()));
    }
    let uniform = uniform(k);
    let mut regs: Vec<Vec<f64>> = Vec::with_capacity(k.instrs.len());
    each(outer, |row| {
        regs.clear();
        let mut d: Vec<usize> = row.iter().copied().chain([0]).collect();
        for i in &k.instrs {
            let entries = if uniform[regs.len()] { 1 } else { *lane };
            let mut vector = Vec::with_capacity(entries);
            for l in 0..entries {
                d[row.len()] = l;
                let value = match &i.op {
                    LoopOp::Load(v) => operands[v.buffer].values[at(v, &d)],
                    LoopOp::Map(f) => {
                        let arg = |a: &usize| regs[*a][if uniform[*a] { 0 } else { l }];
                        let mut args = [0.0; 3];
                        args.iter_mut().zip(&i.args).for_each(|(x, a)| *x = arg(a));
                        f.eval(&args)
                    }
                    LoopOp::Const(x) => *x,
                    LoopOp::Table(t, values) => values[parts[*t].start + d[*t]],
                    LoopOp::Index(t) => (parts[*t].start + d[*t]) as f64,
                    LoopOp::Random(key, strides) => {
                        let index: usize = (0..d.len()).map(|t| (parts[t].start + d[t]) * strides[t]).sum();
                        random_unit(*key, index as u64)
                    }
                    LoopOp::Reduce(m) => regs[i.args[0]].iter().fold(m.identity(), |x, y| m.combine(x, *y)),
                };
                vector.push(i.dtype.round(value));
            }
            regs.push(vector);
        }
        for s in &k.stores {
            let uniform = uniform[s.reg];
            // A number that a row has once is stored, or combined, once.
            let entries = if uniform && s.view.strides[row.len()] == 0 { 1 } else { *lane };
            for l in 0..entries {
                d[row.len()] = l;
                let x = regs[s.reg][if uniform { 0 } else { l }];
                let element = &mut out[s.view.buffer - operands.len()][at(&s.view, &d)];
                *element = Some(match (s.combine, *element) {
                    (Some(m), Some(old)) => m.combine(old, x),
                    _ => x,
                });
            }
        }
    });
}

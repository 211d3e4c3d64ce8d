//! Groups as text, and the bytes that they move beside the fewest possible.

use super::drafts::index;
use super::{Unit, Work};
use autoshard_ir::core::{Function, Node, Semantics, Template, ValueId};
use autoshard_ir::kernel::{Kernel, KernelBody};
use autoshard_ir::text;
use autoshard_ir::Mesh;
use std::collections::BTreeSet;

/// What one function's kernels do together, on one rank.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Summary {
    /// Kernels that are products, whatever follows them.
    pub products: usize,
    /// Attention, forward and backward.
    pub attention: usize,
    /// All other kernels.
    pub others: usize,
    /// Collectives.
    pub collectives: usize,
    /// Bytes that kernels and collectives read and write: each operand and result of a kernel once.
    pub bytes: f64,
    /// The fewest: see [`summary`].
    pub ideal: f64,
}

/// Counts kernels and bytes. The ideal moves each operand and result of a product, of attention, of
/// another kernel that is not loops, and of a collective, and each parameter and result of the function,
/// once per writer and reader; values between loops are free, as if all loops that touch each other were
/// one kernel. Calls count nothing.
pub fn summary(f: &Function, units: &[Unit], mesh: &Mesh) -> Summary {
    let mut s = Summary { ideal: ideal(f, mesh), ..Summary::default() };
    for unit in units {
        match &unit.work {
            Work::Kernel(k) => {
                s.bytes += k.bytes;
                match &k.body {
                    KernelBody::Gemm(_) => s.products += 1,
                    KernelBody::Attention(_) | KernelBody::AttentionBackward(_) => s.attention += 1,
                    _ => s.others += 1,
                }
            }
            Work::Collective(_) => {
                s.collectives += 1;
                s.bytes += bytes(f, mesh, unit.inputs.iter().chain(&unit.results));
            }
            Work::Call(_) => {}
        }
    }
    s
}

fn bytes<'v>(f: &Function, mesh: &Mesh, values: impl Iterator<Item = &'v ValueId>) -> f64 {
    values.map(|v| mesh.local_bytes(f.ty(*v)) as f64).sum()
}

fn ideal(f: &Function, mesh: &Mesh) -> f64 {
    let is_loop = |n: usize| f.nodes[n].op.template == Template::Loop;
    // Loops that touch each other: the first node stands for all.
    let mut component: Vec<usize> = (0..f.nodes.len()).collect();
    fn root(c: &[usize], mut n: usize) -> usize {
        while c[n] != n {
            n = c[n];
        }
        n
    }
    let mut maker: Vec<Option<usize>> = vec![None; f.values.len()];
    for (n, node) in f.nodes.iter().enumerate() {
        node.results.iter().for_each(|r| maker[index(*r)] = Some(n));
        for m in node.inputs.iter().filter_map(|v| maker[index(*v)]).filter(|m| is_loop(n) && is_loop(*m)) {
            let (a, b) = (root(&component, m), root(&component, n));
            component[a.max(b)] = a.min(b);
        }
    }
    let mut readers: Vec<BTreeSet<usize>> = vec![BTreeSet::new(); f.values.len()];
    for (n, node) in f.nodes.iter().enumerate().filter(|(_, n)| moves(n)) {
        node.inputs.iter().for_each(|v| {
            readers[index(*v)].insert(root(&component, n));
        });
    }
    let mut total = 0.0;
    for (i, value) in f.values.iter().enumerate() {
        let v = ValueId(i as u32);
        let made = maker[i];
        let own = made.map(|m| root(&component, m));
        let returned = f.results.contains(&v);
        let counts = made.is_some_and(|m| moves(&f.nodes[m]));
        let inside = made.is_some_and(is_loop) && !returned && readers[i].iter().all(|r| Some(*r) == own);
        if inside {
            continue;
        }
        let times =
            usize::from(counts) + readers[i].iter().filter(|r| Some(**r) != own || !made.is_some_and(is_loop)).count();
        total += times as f64 * mesh.local_bytes(&value.ty) as f64;
    }
    total
}

/// Whether a node moves bytes itself.
fn moves(node: &Node) -> bool {
    !matches!(node.op.semantics, Semantics::Call)
}

/// The function in the order of its units, a comment before each: still valid IR text.
pub fn list(f: &Function, units: &[Unit], mesh: &Mesh) -> String {
    let order: Vec<usize> = units.iter().flat_map(|u| &u.nodes).map(|n| n.0 as usize).collect();
    let nodes = order.iter().map(|n| f.nodes[*n].clone()).collect();
    let printed = text::print_function(&Function { nodes, ..f.clone() }, mesh);
    let lines: Vec<&str> = printed.lines().collect();
    // One line a node; then the return and the brace.
    let (head, rest) = lines.split_at(lines.len().saturating_sub(order.len() + 2));
    let mut out: Vec<String> = head.iter().map(|l| l.to_string()).collect();
    let mut at = 0;
    for unit in units {
        if let Work::Kernel(k) = &unit.work {
            out.push(format!("  ; {}", describe(k)));
        }
        out.extend(rest[at..at + unit.nodes.len()].iter().map(|l| l.to_string()));
        at += unit.nodes.len();
    }
    out.extend(rest[at..].iter().map(|l| l.to_string()));
    out.push(String::new());
    out.join("\n")
}

fn describe(k: &Kernel) -> String {
    let what = match &k.body {
        KernelBody::Loop(nests) if nests.len() == 1 => "loops".to_string(),
        KernelBody::Loop(nests) => format!("loops, {} nests", nests.len()),
        KernelBody::Gemm(g) => {
            let plural = |n: usize, s: &str| if n == 1 { format!("1 {s}") } else { format!("{n} {s}s") };
            match g.epilogue.len() {
                0 => plural(g.products.len(), "product"),
                n => format!("{}, then {}", plural(g.products.len(), "product"), plural(n, "nest")),
            }
        }
        KernelBody::Attention(_) => "attention".to_string(),
        KernelBody::AttentionBackward(_) => "attention backward".to_string(),
        KernelBody::Gather(_) => "gather".to_string(),
        KernelBody::Scatter(_) => "scatter".to_string(),
        KernelBody::Copy(_) => "copy".to_string(),
    };
    format!("{what}: {} buffers, {} bytes", k.operands + k.results, k.bytes)
}

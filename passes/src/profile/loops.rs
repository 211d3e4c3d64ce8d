//! Loops over memory: which neighbours are one kernel, and the bytes that each kernel moves.
//!
//! A kernel reads what comes from outside it and writes what leaves it, each once. Its backward reads the
//! cotangents of what left, reads what came from outside again unless it is linear, and writes the cotangents
//! of that. Where nothing is fused ([`Fusion::Eager`]) a composite is one kernel for each primitive of its
//! body, unless the framework has a library kernel for it.

use super::forward::Forward;
use super::roles::Split;
use super::walk::Walk;
use autoshard_cost::stack::Fusion;
use autoshard_ir::core::{Def, Function, Linearity, Node, NodeId, Semantics, Template, Type, ValueId};
use autoshard_ir::ops::compose;

/// Bytes and kernels of one group of loops.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Traffic {
    /// Bytes of the forward.
    pub forward: f64,
    /// Kernels of the forward.
    pub forward_launches: f64,
    /// Bytes of the backward.
    pub backward: f64,
    /// Kernels of the backward.
    pub backward_launches: f64,
}

/// Elements of a type that one rank has, with this split, times their bytes.
pub(super) fn local_bytes(ty: &Type, split: &Split) -> f64 {
    ty.dims.iter().map(|d| d.size as f64 / split.ways(&d.name)).product::<f64>() * ty.dtype.bytes() as f64
}

/// Whether a node is a loop over memory that can join others.
fn is_loop(n: &Node) -> bool {
    matches!(n.op.template, Template::Loop | Template::View)
}

/// For each node, the group that it is in: the index of the group's last node.
pub(super) fn groups(forward: &Forward, fusion: Fusion) -> Vec<usize> {
    let f = &forward.f;
    let mut group: Vec<usize> = (0..f.nodes.len()).collect();
    if fusion == Fusion::Eager {
        return group;
    }
    for (i, n) in f.nodes.iter().enumerate() {
        if !is_loop(n) || forward.idle[i] {
            continue;
        }
        for v in &n.inputs {
            let Def::Result(p, _) = f.value(*v).def else { continue };
            let producer = f.node(p);
            let at = p.0 as usize;
            let alone = forward.readers[v.0 as usize].len() == 1;
            let primitive = matches!(producer.op.semantics, Semantics::Primitive(_));
            let joins = match fusion {
                Fusion::Eager => false,
                // Hand-written kernels take in biases and sums that only they read.
                Fusion::Fused => alone && primitive,
                Fusion::Compiled => true,
            };
            if is_loop(producer) && !forward.idle[at] && joins && same_space(f, n, producer) {
                let (from, to) = (group[at], group[i]);
                for g in group.iter_mut().filter(|g| **g == from) {
                    *g = to;
                }
            }
        }
    }
    group
}

/// Whether two nodes run over the same points: their largest tensors have the same size.
fn same_space(f: &Function, a: &Node, b: &Node) -> bool {
    let most = |n: &Node| n.inputs.iter().chain(&n.results).map(|v| f.ty(*v).elements()).max();
    most(a) == most(b)
}

/// The traffic of the group whose last node is `last`.
pub(super) fn traffic(walk: &Walk, group: &[usize], last: usize, fusion: Fusion) -> Result<Traffic, String> {
    let members: Vec<usize> = (0..group.len()).filter(|i| group[*i] == last && !walk.idle[*i]).collect();
    if let [only] = members[..] {
        let loss = walk.rules[only].as_ref().is_some_and(|r| r.body.is_none() && r.factor("v").is_some());
        if loss && !walk.habits.fused_loss {
            return Ok(unfused_loss(walk, only));
        }
        if fusion == Fusion::Eager && !loss {
            return eager(walk, NodeId(only as u32));
        }
        if fusion == Fusion::Fused && walk.adds_bias(only) && walk.split(only).expert {
            return Ok(expert_bias(walk, only));
        }
    }
    let f = walk.f;
    let inside = |v: ValueId| matches!(f.value(v).def, Def::Result(n, _) if members.contains(&(n.0 as usize)));
    let mut inputs: Vec<(ValueId, usize)> = Vec::new();
    let mut outputs: Vec<(ValueId, usize)> = Vec::new();
    let mut linear = true;
    for i in &members {
        let n = &f.nodes[*i];
        linear &= walk.rules[*i].as_ref().is_some_and(|r| r.linear == Linearity::Joint);
        for v in n.inputs.iter().filter(|v| !inside(**v) && !walk.small(**v)) {
            if !inputs.iter().any(|(w, _)| w == v) {
                inputs.push((*v, *i));
            }
        }
        for v in &n.results {
            let readers = &walk.readers[v.0 as usize];
            let leaves = f.results.contains(v) || readers.is_empty() || readers.iter().any(|r| !members.contains(r));
            if leaves && !walk.small(*v) {
                outputs.push((*v, *i));
            }
        }
    }
    let size =
        |list: &[(ValueId, usize)]| -> f64 { list.iter().map(|(v, i)| local_bytes(f.ty(*v), &walk.split(*i))).sum() };
    let graded = |list: &[(ValueId, usize)]| -> Vec<(ValueId, usize)> {
        list.iter().filter(|(v, _)| walk.active[v.0 as usize]).copied().collect()
    };
    let (read, written) = (size(&inputs), size(&outputs));
    let (back_in, back_out) = (size(&graded(&inputs)), size(&graded(&outputs)));
    let kept: Vec<ValueId> = inputs.iter().chain(&outputs).map(|(v, _)| *v).collect();
    let again = size(&needed(walk, &members, &kept));
    let bias = members.iter().any(|i| walk.adds_bias(*i));
    let backward = match (linear, bias) {
        // A sum passes its cotangent on; the gradient of a bias reads it once.
        (true, false) => 0.0,
        (true, true) => back_out,
        (false, _) => back_out + again + back_in,
    };
    let differentiates = back_in > 0.0 && back_out > 0.0 && backward > 0.0;
    Ok(Traffic {
        forward: read + written,
        forward_launches: 1.0,
        backward: if differentiates { backward } else { 0.0 },
        backward_launches: if differentiates { 1.0 } else { 0.0 },
    })
}

/// What the backward of a group reads again: operands of members that are not linear, or what these are made
/// from where they stay inside.
fn needed(walk: &Walk, members: &[usize], kept: &[ValueId]) -> Vec<(ValueId, usize)> {
    let f = walk.f;
    let linear = |i: usize| walk.rules[i].as_ref().is_some_and(|r| r.linear == Linearity::Joint);
    let mut open: Vec<(ValueId, usize)> =
        members.iter().filter(|i| !linear(**i)).flat_map(|i| f.nodes[*i].inputs.iter().map(|v| (*v, *i))).collect();
    let mut seen: Vec<ValueId> = Vec::new();
    let mut out = Vec::new();
    while let Some((v, i)) = open.pop() {
        if seen.contains(&v) || walk.small(v) {
            continue;
        }
        seen.push(v);
        match f.value(v).def {
            _ if kept.contains(&v) => out.push((v, i)),
            Def::Result(n, _) => open.extend(f.node(n).inputs.iter().map(|w| (*w, n.0 as usize))),
            Def::Param(_) => out.push((v, i)),
        }
    }
    out
}

/// The loss as a cast of the logits to fp32, a logarithm of softmax, and a look-up. Bytes an element forward:
/// read 2, write 4, read 4, write 4; backward: read 4 and 4, write 4, and cast back, read 4, write 2.
fn unfused_loss(walk: &Walk, node: usize) -> Traffic {
    let split = walk.split(node);
    let logits = walk.f.nodes[node].inputs.first().map_or(0.0, |v| local_bytes(walk.f.ty(*v), &split));
    Traffic { forward: 7.0 * logits, forward_launches: 3.0, backward: 9.0 * logits, backward_launches: 3.0 }
}

/// A bias of experts that no activation takes in, as Megatron adds it: expert by expert, times the token's weight,
/// in fp32 (`TEGroupedMLP._apply_bias`, core/transformer/moe/experts.py). Bytes an element of 16 bits forward: the
/// bias times the weight, write 4; the sum, read 2 and 4, write 4; all experts joined, read 4, write 4; cast back,
/// read 4, write 2. Backward: cast, read 2, write 4; cotangent of the product, read 4, write 2; of the bias and of
/// the weight, each a product and a sum, read 4, write 4, read 4; experts joined, read 2, write 2.
fn expert_bias(walk: &Walk, node: usize) -> Traffic {
    let split = walk.split(node);
    let f = walk.f;
    let whole: f64 = f.nodes[node].results.iter().map(|v| local_bytes(f.ty(*v), &split)).sum();
    let result = f.nodes[node].results.first().map(|v| f.ty(*v));
    let experts = result.and_then(|ty| Some(ty.dims[ty.dim("E")?].size as f64)).unwrap_or(1.0) / split.ways("E");
    Traffic {
        forward: 28.0 / 2.0 * whole,
        forward_launches: 2.0 * experts + 2.0,
        backward: 40.0 / 2.0 * whole,
        backward_launches: 5.0 * experts + 2.0,
    }
}

/// A node by itself, as frameworks without fusion run it.
fn eager(walk: &Walk, id: NodeId) -> Result<Traffic, String> {
    let f = walk.f;
    let n = f.node(id);
    let i = id.0 as usize;
    let split = walk.split(i);
    let whole: f64 =
        n.inputs.iter().chain(&n.results).filter(|v| !walk.small(**v)).map(|v| local_bytes(f.ty(*v), &split)).sum();
    let active = n.results.iter().any(|v| walk.active[v.0 as usize]);
    let rule = walk.rules[i].as_ref();
    if let Semantics::Composite(text) = n.op.semantics {
        if !walk.habits.one_kernel.iter().any(|o| o == n.op.name) {
            let types: Vec<&Type> = n.inputs.iter().map(|v| f.ty(*v)).collect();
            let (bytes, launches) = by_primitives(&compose::body(text, &types, &n.attrs)?, &split);
            let back = if active { 2.0 } else { 0.0 };
            return Ok(Traffic {
                forward: bytes,
                forward_launches: launches,
                backward: back * bytes,
                backward_launches: back * launches,
            });
        }
    }
    if walk.adds_bias(i) || (n.inputs.len() == 1 && walk.small(n.inputs[0])) {
        // The product adds its bias; its gradient is a reduction of the cotangent.
        let out: f64 = n.results.iter().map(|v| local_bytes(f.ty(*v), &split)).sum();
        let bias = walk.adds_bias(i);
        return Ok(Traffic {
            backward: if bias { out } else { 0.0 },
            backward_launches: f64::from(u8::from(bias)),
            ..Traffic::default()
        });
    }
    let linear = rule.is_some_and(|r| r.linear == Linearity::Joint);
    let back = if active && !linear { 1.5 * whole } else { 0.0 };
    Ok(Traffic {
        forward: whole,
        forward_launches: 1.0,
        backward: back,
        backward_launches: f64::from(u8::from(back > 0.0)),
    })
}

/// Bytes and kernels of a body whose primitives each read their operands and write their results.
fn by_primitives(body: &Function, split: &Split) -> (f64, f64) {
    let largest = body.values.iter().map(|v| v.ty.elements()).max().unwrap_or(0);
    let mut bytes = 0.0;
    let mut launches = 0.0;
    for n in &body.nodes {
        // Broadcasts are strides, constants are arguments; what is small costs a launch and no more.
        let moves = n.inputs.iter().chain(&n.results).any(|v| body.ty(*v).elements() == largest);
        if n.inputs.is_empty() || repeats(body, n) {
            continue;
        }
        launches += 1.0;
        if moves {
            let real = |v: &&ValueId| !is_broadcast(body, **v);
            bytes +=
                n.inputs.iter().filter(real).chain(&n.results).map(|v| local_bytes(body.ty(*v), split)).sum::<f64>();
        }
    }
    (bytes, launches)
}

/// Whether a node only repeats its operand.
fn repeats(f: &Function, n: &Node) -> bool {
    matches!(n.inputs[..], [v] if f.ty(v).elements() < n.results.iter().map(|r| f.ty(*r).elements()).sum())
}

fn is_broadcast(f: &Function, v: ValueId) -> bool {
    matches!(f.value(v).def, Def::Result(n, _) if f.node(n).inputs.is_empty() || repeats(f, f.node(n)))
}

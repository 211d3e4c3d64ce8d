//! What a body costs: FLOPs and bytes by the declared rules, each node once.
//!
//! A value that two nodes read is computed once, so costs are added over nodes (a DAG) and not over paths (a
//! tree). It is a measure to compare two bodies of one function by, not a time: kernels are not fused here.

use super::fold;
use autoshard_ir::core::{Function, Node, Rule, Scalar, ScalarBody, Semantics, Type};
use autoshard_ir::ops;
use std::ops::AddAssign;

/// Work of a body.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Cost {
    /// Floating-point operations: one for a scalar function or an addition, two for a multiplication that is
    /// added to a sum.
    pub flops: f64,
    /// Bytes read and written: every distinct operand and every result of a node, whole.
    pub bytes: f64,
}

impl Cost {
    /// The two as one number, in bytes: what a device computes while it moves a byte counts as one.
    pub fn total(&self, flops_per_byte: f64) -> f64 {
        self.bytes + self.flops / flops_per_byte
    }

    /// Whether it is lower than another. Where a rate makes no sense (0, NaN) nothing is.
    pub fn is_below(&self, other: &Cost, flops_per_byte: f64) -> bool {
        self.total(flops_per_byte) < other.total(flops_per_byte)
    }
}

impl AddAssign for Cost {
    fn add_assign(&mut self, other: Cost) {
        self.flops += other.flops;
        self.bytes += other.bytes;
    }
}

/// Cost of a function's body: of the nodes that its results need. Calls cost their arguments and results.
pub fn dag_cost(f: &Function) -> Cost {
    let keep = fold::needed(f);
    let mut total = Cost::default();
    for (node, _) in f.nodes.iter().zip(&keep).filter(|(_, k)| **k) {
        let operands: Vec<&Type> = node.inputs.iter().map(|v| f.ty(*v)).collect();
        let mut distinct = node.inputs.clone();
        distinct.sort_unstable();
        distinct.dedup();
        total += Cost {
            flops: flops(node, &operands),
            bytes: distinct.iter().chain(&node.results).map(|v| bytes(f.ty(*v))).sum(),
        };
    }
    total
}

/// Bytes of a value.
pub(super) fn bytes(ty: &Type) -> f64 {
    (ty.elements() * ty.dtype.bytes()) as f64
}

/// FLOPs of a node on operands of these types.
pub(super) fn flops(node: &Node, operands: &[&Type]) -> f64 {
    if matches!(node.op.semantics, Semantics::Call) {
        return 0.0;
    }
    ops::rule(node.op, operands, &node.attrs).map_or(0.0, |rule| of_rule(&rule))
}

fn of_rule(rule: &Rule) -> f64 {
    let points: f64 = rule.factors.iter().map(|f| f.size as f64).product();
    let carried = |f: usize| rule.results.iter().flatten().any(|m| m.factors.contains(&f));
    let reduces = (0..rule.factors.len()).any(|f| !carried(f));
    let added = if reduces { 1.0 } else { 0.0 };
    let operands = rule.operands.len() as f64;
    let each = match &rule.body {
        Some(ScalarBody::Map(Scalar::Identity)) => added,
        Some(ScalarBody::Product | ScalarBody::Sum(_)) => operands - 1.0 + added,
        Some(ScalarBody::Values(_)) => 0.0,
        // Composites and tables: at least one operation a point. Rewrites leave them as they are, so it only
        // counts when two become one.
        _ => 1.0 + added,
    };
    points * each
}

//! The table of roles: which factors of a node an axis of each role may take.
//!
//! | role | nodes over tokens | experts (`E` and `c`, no `b`) | stored parameters |
//! |---|---|---|---|
//! | dp | `b` | `c` | whole |
//! | fsdp | `b` | `c` | split |
//! | ep | `b` | `E` or `c` | experts split over `E`, others whole |
//! | cp | `s`; attention `s` (keys and values gathered) or `g` (Ulysses) | `c` | whole |
//! | tp | `g`, `r`, `f`, `v`, `d`, `l`, `E`, `s`, none | `f`, `E`, `c`, `d`, none | split or whole |
//!
//! [`Role::Any`] takes every factor: it is how a test shows that the table lacks no row.

use autoshard_ir::core::{Factor, FactorKind, Rule, Template};

/// What a mesh axis is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Role {
    /// Replicas that share the batch.
    Dp,
    /// Ranks that share the batch and the storage of parameters.
    Fsdp,
    /// Ranks that share the batch and the experts.
    Ep,
    /// Ranks that share the positions of a sequence.
    Cp,
    /// Ranks that share heads, widths, the vocabulary or positions.
    Tp,
    /// Anything: the unrestricted search.
    Any,
}

/// What one axis does in a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Take {
    /// Nothing: its ranks repeat the work.
    None,
    /// It splits this factor of the node's rule.
    Factor(usize),
    /// It passes partial sums through a sum.
    Follow,
}

/// What an axis of this role may do in a node, best first where the role leaves no choice.
///
/// Factors smaller than the axis, and those that cannot be split, are left out; `sums` says that the node adds
/// operands of one shape.
pub(super) fn takes(role: Role, ways: usize, rule: &Rule, template: Template, sums: bool) -> Vec<Take> {
    let usable =
        |f: &Factor| f.kind != FactorKind::Whole && f.size >= ways && (!exact(&f.name) || f.size.is_multiple_of(ways));
    let find = |name: &str| rule.factors.iter().position(|f| f.name == name && usable(f)).map(Take::Factor);
    let has = |name: &str| rule.factor(name).is_some();
    let expert = has("E") && has("c") && !has("b");
    let only = |names: &[&str]| vec![names.iter().find_map(|n| find(n)).unwrap_or(Take::None)];
    let some = |names: &[&str]| -> Vec<Take> {
        let out: Vec<Take> = names.iter().filter_map(|n| find(n)).collect();
        if out.is_empty() {
            vec![Take::None]
        } else {
            out
        }
    };
    match role {
        Role::Dp | Role::Fsdp if expert => only(&["c"]),
        Role::Dp | Role::Fsdp => only(&["b"]),
        Role::Ep if expert => some(&["E", "c"]),
        Role::Ep => only(&["b"]),
        Role::Cp if expert => only(&["c"]),
        Role::Cp if template == Template::Attention => some(&["s", "g"]),
        Role::Cp => only(&["s"]),
        Role::Tp | Role::Any => {
            let named = |f: &Factor| role == Role::Any || TENSOR.contains(&f.name.as_str());
            let mut out = vec![Take::None];
            out.extend(
                (0..rule.factors.len())
                    .filter(|i| usable(&rule.factors[*i]) && named(&rule.factors[*i]))
                    .map(Take::Factor),
            );
            if sums {
                out.push(Take::Follow);
            }
            out
        }
    }
}

/// Factors of tensor parallelism.
const TENSOR: [&str; 9] = ["g", "r", "f", "v", "d", "l", "E", "s", "c"];

/// Factors that are split evenly or not at all.
pub(super) fn exact(factor: &str) -> bool {
    matches!(factor, "b" | "g" | "r" | "E")
}

/// Whether an axis of this role may split a stored parameter on a dimension, and whether it may leave it whole.
pub(super) fn stores(role: Role, dim: &str, dims: &[&str]) -> (bool, bool) {
    match role {
        Role::Dp | Role::Cp => (false, true),
        Role::Fsdp => (true, false),
        Role::Ep => (dim == "E", !dims.contains(&"E")),
        Role::Tp | Role::Any => (true, true),
    }
}

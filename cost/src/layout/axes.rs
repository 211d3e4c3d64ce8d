//! The axes of a mesh, innermost first.

use super::LayoutError;

/// One axis of a mesh of ranks.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct MeshAxis {
    /// Name, such as `tp`.
    pub name: String,
    /// Ranks along it, at least 1.
    pub size: u64,
}

impl MeshAxis {
    /// An axis.
    pub fn new(name: impl Into<String>, size: u64) -> MeshAxis {
        MeshAxis { name: name.into(), size }
    }
}

impl From<(&str, u64)> for MeshAxis {
    fn from((name, size): (&str, u64)) -> MeshAxis {
        MeshAxis::new(name, size)
    }
}

/// The order of axes, innermost first, in which training frameworks place ranks unless told otherwise:
/// what talks most and waits for it (tensor, then context and expert parallelism) sits on the fastest tier,
/// pipeline stages on the slowest. Megatron-LM writes it `tp-cp-ep-dp-pp`. `fsdp` is the inner part of dp.
pub const ORDER: [&str; 6] = ["tp", "cp", "ep", "fsdp", "dp", "pp"];

/// Axes in the default [`ORDER`]; those that it does not name follow, outermost, in the order given.
pub fn default_layout(axes: &[MeshAxis]) -> Vec<MeshAxis> {
    let mut out = axes.to_vec();
    // Stable, so that unnamed axes keep their order.
    out.sort_by_key(|axis| ORDER.iter().position(|name| *name == axis.name).unwrap_or(ORDER.len()));
    out
}

/// The number of ranks, if the axes are well formed.
pub(super) fn world(axes: &[MeshAxis]) -> Result<u64, LayoutError> {
    let mut world = 1u64;
    for (at, axis) in axes.iter().enumerate() {
        if axes[..at].iter().any(|a| a.name == axis.name) {
            return Err(LayoutError::TwiceAxis { axis: axis.name.clone() });
        }
        if axis.size == 0 {
            return Err(LayoutError::EmptyAxis { axis: axis.name.clone() });
        }
        world = world.checked_mul(axis.size).ok_or_else(|| LayoutError::TooManyRanks { mesh: text(axes) })?;
    }
    Ok(world)
}

/// Checks that a group names axes that exist.
pub(super) fn known(axes: &[MeshAxis], group: &[&str]) -> Result<(), LayoutError> {
    match group.iter().find(|name| axes.iter().all(|a| a.name != **name)) {
        Some(axis) => Err(LayoutError::UnknownAxis { axis: axis.to_string(), known: text(axes) }),
        None => Ok(()),
    }
}

/// `tp=8,dp=4`.
fn text(axes: &[MeshAxis]) -> String {
    let parts: Vec<String> = axes.iter().map(|a| format!("{}={}", a.name, a.size)).collect();
    parts.join(",")
}

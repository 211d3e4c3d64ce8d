//! Checks of one thing at a time, shared by the parser and the verifier. Each returns a message that
//! names what is wrong; the caller knows where it stands.

use crate::core::{Attr, AttrKind, Attrs, Axis, FactorKind, OpDef, Rule, Strategy, Type};
use crate::mesh::Mesh;

/// Largest number of elements of a tensor, and of ranks of a mesh: far above any machine, and far
/// below where products of two such numbers by an element size overflow.
pub const MAX_ELEMENTS: usize = 1 << 48;

/// Axes as types print them: `dp·fsdp`.
pub(crate) fn join_axes(axes: &[Axis]) -> String {
    axes.iter().map(Axis::name).collect::<Vec<_>>().join("·")
}

/// Types as messages print them.
pub(crate) fn join_types(types: &[Type]) -> String {
    types.iter().map(Type::to_string).collect::<Vec<_>>().join(", ")
}

/// A mesh: axes named once, sizes at least 1, a countable number of ranks.
pub fn check_mesh(mesh: &Mesh) -> Result<(), String> {
    let mut ranks = 1usize;
    for (i, (axis, size)) in mesh.axes.iter().enumerate() {
        if !printable(axis.name(), crate::text::word_char) {
            return Err(format!("axis name {:?} cannot be written; use letters, digits, `_` and `.`", axis.name()));
        }
        if mesh.axes[..i].iter().any(|(a, _)| a == axis) {
            return Err(format!("mesh axis {axis} is given twice"));
        }
        ranks = match ranks.checked_mul(*size) {
            Some(0) => return Err(format!("mesh axis {axis} has size 0; the smallest is 1")),
            Some(ranks) if ranks <= MAX_ELEMENTS => ranks,
            _ => return Err("the mesh has more than 2^48 ranks".to_string()),
        };
    }
    Ok(())
}

/// A type: names once, sizes in range, axes of the mesh, each axis once.
pub fn check_type(ty: &Type, mesh: &Mesh) -> Result<(), String> {
    let mut elements = 1usize;
    for (i, dim) in ty.dims.iter().enumerate() {
        let name = &dim.name;
        if !printable(name, crate::text::dim_char) {
            return Err(format!("dimension name {name:?} cannot be written; use letters, digits, `_` and `'`"));
        }
        if ty.dims[..i].iter().any(|d| d.name == *name) {
            return Err(format!("dimension `{name}` appears twice in one type; rename one of them"));
        }
        if dim.size == 0 {
            return Err(format!("dimension `{name}` has size 0; the smallest is 1"));
        }
        elements = match elements.checked_mul(dim.size) {
            Some(elements) if elements <= MAX_ELEMENTS => elements,
            _ => return Err("the tensor has more than 2^48 elements".to_string()),
        };
    }
    check_axes(ty.used_axes(), mesh)?;
    match &ty.partial {
        Some(p) if p.axes.is_empty() => Err("partial over no axis; leave `partial` out".to_string()),
        Some(p) if !p.axes.is_sorted_by_key(|a| mesh.position(a)) => {
            Err(format!("the partial axes {} are not in the order of the mesh", join_axes(&p.axes)))
        }
        _ => Ok(()),
    }
}

fn check_axes<'a>(axes: impl Iterator<Item = &'a Axis>, mesh: &Mesh) -> Result<(), String> {
    let mut seen: Vec<&Axis> = Vec::new();
    for axis in axes {
        if mesh.position(axis).is_none() {
            return Err(match mesh.axes.as_slice() {
                [] => format!("unknown axis {axis}: there is no mesh; start with `mesh @m = [{axis}: 2]`"),
                axes => {
                    let known: Vec<_> = axes.iter().map(|(a, _)| a.name()).collect();
                    format!("unknown axis {axis}: the mesh has {}", known.join(", "))
                }
            });
        }
        if seen.contains(&axis) {
            return Err(format!("axis {axis} is used twice; a value is split or partial over an axis at most once"));
        }
        seen.push(axis);
    }
    Ok(())
}

/// A strategy: axes of the mesh, each once, taken by factors of the node that can be split.
pub fn check_strategy(rule: &Rule, strategy: &Strategy, mesh: &Mesh) -> Result<(), String> {
    check_axes(strategy.axes().iter().map(|(a, _)| a), mesh)?;
    for (axis, factor) in strategy.axes() {
        match rule.factor(factor).map(|f| rule.factors[f].kind) {
            Some(FactorKind::Free(_) | FactorKind::Inner) => {}
            Some(FactorKind::Whole) => {
                let list = splittable(rule);
                return Err(format!("factor {factor} cannot be split (over {axis}); those that can: {list}"));
            }
            None => return Err(format!("no factor {factor} (for {axis}); its factors: {}", splittable(rule))),
        }
    }
    Ok(())
}

fn splittable(rule: &Rule) -> String {
    let can = rule.factors.iter().filter(|f| f.kind != FactorKind::Whole);
    let names: Vec<_> = can.map(|f| f.name.as_str()).collect();
    if names.is_empty() {
        "none".to_string()
    } else {
        names.join(", ")
    }
}

/// One attribute against the operation's declaration. Integers stand for real numbers too.
pub fn check_attr(op: &OpDef, name: &str, value: &Attr) -> Result<(), String> {
    let Some(def) = op.attrs.iter().find(|a| a.name == name) else {
        let hint = crate::text::suggest(name, "", op.attrs.iter().map(|a| a.name));
        let known: Vec<_> = op.attrs.iter().map(|a| a.name).collect();
        return Err(match known.as_slice() {
            [] => format!("{} has no attribute `{name}`; it takes none", op.name),
            _ => format!("{} has no attribute `{name}`; it takes {}{hint}", op.name, known.join(", ")),
        });
    };
    let fits = match value {
        Attr::Int(_) => matches!(def.kind, AttrKind::Int | AttrKind::Float),
        Attr::Float(_) => def.kind == AttrKind::Float,
        Attr::Str(_) => def.kind == AttrKind::Str,
        Attr::Ints(_) => matches!(def.kind, AttrKind::Ints | AttrKind::Floats),
        Attr::Floats(_) => def.kind == AttrKind::Floats,
    };
    if fits {
        return Ok(());
    }
    let want = match def.kind {
        AttrKind::Int => "an integer",
        AttrKind::Float => "a number",
        AttrKind::Str => "a text in quotes",
        AttrKind::Ints => "a list of integers",
        AttrKind::Floats => "a list of numbers",
    };
    Err(format!("attribute `{name}` of {} must be {want}", op.name))
}

/// The message that a required attribute is missing.
pub fn missing_attr(op: &OpDef, attrs: &Attrs) -> Option<String> {
    let missing = op.attrs.iter().find(|a| a.required && attrs.get(a.name).is_none())?;
    Some(format!("{} needs the attribute `{name}`; write `{{{name}=...}}`", op.name, name = missing.name))
}

/// Whether a name survives printing and parsing.
pub(super) fn printable(name: &str, accept: fn(char) -> bool) -> bool {
    !name.is_empty() && name.chars().all(accept)
}

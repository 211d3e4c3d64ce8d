//! The operations. Each lives in its own file or folder; this file only lists them.
//!
//! A *primitive* is one tensor expression: factors, maps, a scalar body and a monoid. A *composite*
//! is a function of primitives written as IR text beside its declaration. From these follow shape
//! inference, sharding rules, the reference interpreter, gradients and loop kernels.

mod adamw;
mod attention;
mod call;
mod collective;
pub mod compose;
mod cross_entropy;
mod einsum;
mod index;
mod layernorm;
mod pointwise;
mod reduce;
mod rmsnorm;
mod rope;
mod route;
mod shape;
mod softmax;
mod source;
pub mod spec;
mod swiglu;
mod window;

use crate::core::{Attrs, DimMap, Factor, FactorKind, Linearity, OpDef, Rule, Semantics, Type};
use crate::Monoid;

pub use call::CALL;
pub use source::{fnv1a64, mix, random_unit, GOLDEN};

/// Every operation, by file.
pub fn all() -> impl Iterator<Item = &'static OpDef> {
    let groups: [&'static [OpDef]; 18] = [
        einsum::OPS,
        pointwise::OPS,
        reduce::OPS,
        shape::OPS,
        window::OPS,
        source::OPS,
        index::OPS,
        route::OPS,
        softmax::OPS,
        rmsnorm::OPS,
        layernorm::OPS,
        rope::OPS,
        attention::OPS,
        cross_entropy::OPS,
        swiglu::OPS,
        adamw::OPS,
        collective::OPS,
        std::slice::from_ref(&CALL),
    ];
    groups.into_iter().flatten()
}

/// The operation of this name.
pub fn find(name: &str) -> Option<&'static OpDef> {
    all().find(|d| d.name == name)
}

/// Names of all operations.
pub fn names() -> impl Iterator<Item = &'static str> {
    all().map(|d| d.name)
}

/// Solves a node: factor sizes, maps, result types. Operand types are taken as global.
///
/// Errors name the factor or attribute that does not fit.
pub fn rule(def: &'static OpDef, inputs: &[&Type], attrs: &Attrs) -> Result<Rule, String> {
    let rule = match def.semantics {
        Semantics::Primitive(f) => f(inputs, attrs),
        Semantics::Composite(body) => compose::rule(body, inputs, attrs),
        Semantics::Collective => collective::rule(inputs),
        Semantics::Call => Err("a call takes its types from its function".to_string()),
    }?;
    let twice = rule.result_types.iter().find_map(|t| repeated(t.dims.iter().map(|d| d.name.as_str())));
    match twice {
        Some(name) => Err(format!("dimension {name} would be twice in the result; rename one of them")),
        None => Ok(rule),
    }
}

/// The first name that is listed twice.
fn repeated<'a>(names: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let mut seen = Vec::new();
    for name in names {
        if seen.contains(&name) {
            return Some(name);
        }
        seen.push(name);
    }
    None
}

/// Checks the number of operands.
fn arity(inputs: &[&Type], want: usize) -> Result<(), String> {
    if inputs.len() == want {
        return Ok(());
    }
    Err(format!("takes {want} operand{}, got {}", if want == 1 { "" } else { "s" }, inputs.len()))
}

/// Collects factors by name while maps are built.
#[derive(Default)]
struct Factors(Vec<Factor>);

impl Factors {
    /// The factor of this name, which must have this size wherever it occurs.
    fn get(&mut self, name: &str, size: usize) -> Result<usize, String> {
        if let Some(i) = self.0.iter().position(|f| f.name == name) {
            if self.0[i].size != size {
                return Err(format!("factor {name} is {} in one place and {size} in another", self.0[i].size));
            }
            return Ok(i);
        }
        self.0.push(Factor { name: name.to_string(), size, kind: FactorKind::Free(Monoid::Sum) });
        Ok(self.0.len() - 1)
    }

    /// Maps the dimensions of a type, each by one factor named like the dimension.
    fn map(&mut self, ty: &Type) -> Result<Vec<DimMap>, String> {
        ty.dims.iter().map(|d| Ok(DimMap::factor(self.get(&d.name, d.size)?))).collect()
    }

    /// Maps the dimensions of a type by factors with these names.
    fn map_as(&mut self, ty: &Type, names: &[String]) -> Result<Vec<DimMap>, String> {
        if names.len() != ty.dims.len() {
            return Err(format!("{ty} has {} dimensions, the spec names {}", ty.dims.len(), names.len()));
        }
        names.iter().zip(&ty.dims).map(|(n, d)| Ok(DimMap::factor(self.get(n, d.size)?))).collect()
    }

    fn with_monoid(mut self, monoid: Monoid) -> Vec<Factor> {
        for f in &mut self.0 {
            if let FactorKind::Free(m) = &mut f.kind {
                *m = monoid;
            }
        }
        self.0
    }
}

/// Rule of an elementwise operation over operands of one shape, named by the first operand.
fn elementwise(
    inputs: &[&Type],
    result: Type,
    body: crate::core::ScalarBody,
    linear: Linearity,
) -> Result<Rule, String> {
    let first = inputs.first().ok_or("takes at least one operand")?;
    let mut factors = Factors::default();
    let map = factors.map(first)?;
    for ty in &inputs[1..] {
        if ty.sizes() != first.sizes() {
            return Err(format!("operands have different shapes: {first} and {ty}"));
        }
    }
    Ok(Rule {
        factors: factors.with_monoid(Monoid::Sum),
        operands: vec![map.clone(); inputs.len()],
        results: vec![map],
        result_types: vec![result],
        body: Some(body),
        linear,
    })
}

//! The states that a strategy asks of operands and gives to results: DESIGN section 3, as a function.

use super::checks::{check_strategy, join_axes};
use crate::core::{
    Axis, BinaryMonoid, Dim, DimMap, FactorKind, Linearity, Partial, Rule, Scalar, ScalarBody, Strategy, Type,
};
use crate::mesh::Mesh;

/// Result types of a node, placement included, from the states of its operands.
///
/// An operand must be split on the dimensions that carry a factor by the axes which that factor
/// takes, and on no others. A result is split likewise; it is partial over the axes of the free
/// factors it lacks (an inner factor is combined inside), and over those that its operands are
/// partial over, if the operation is linear in them. With [`Strategy::Follow`] the operands' common
/// state says what each factor takes.
pub fn infer_states(rule: &Rule, strategy: &Strategy, operands: &[&Type], mesh: &Mesh) -> Result<Vec<Type>, String> {
    if operands.len() != rule.operands.len() {
        return Err(format!("takes {} operands, {} are given", rule.operands.len(), operands.len()));
    }
    check_strategy(rule, strategy, mesh)?;
    let taken = match strategy {
        Strategy::Follow => followed(rule, operands)?,
        Strategy::None | Strategy::Axes(_) => rule.factors.iter().map(|f| strategy.of_factor(&f.name)).collect(),
    };
    let split = Split { rule, taken, mesh };
    for (i, (ty, maps)) in operands.iter().zip(&rule.operands).enumerate() {
        split.check_operand(i, ty, maps)?;
    }
    let passed = split.passed(operands)?;
    rule.result_types.iter().zip(&rule.results).map(|(ty, maps)| split.result(ty, maps, passed.as_ref())).collect()
}

/// The axes of each factor under `follow`: those of the first operand, whose state all share.
fn followed(rule: &Rule, operands: &[&Type]) -> Result<Vec<Vec<Axis>>, String> {
    let mut taken = vec![Vec::new(); rule.factors.len()];
    let (Some(first), Some(maps)) = (operands.first(), rule.operands.first()) else { return Ok(taken) };
    if let Some(i) = operands.iter().position(|t| !t.same_state(first)) {
        return Err(format!(
            "follows its operands, so they must have one state, but operand 0 is {first} and operand {i} is {}; reshard one of them",
            operands[i]
        ));
    }
    for (dim, map) in first.dims.iter().zip(maps) {
        match map.factors.first() {
            Some(f) => taken[*f] = dim.axes.clone(),
            None if dim.axes.is_empty() => {}
            None => {
                return Err(format!("dimension {} of operand 0 is split, but it cannot be; gather it first", dim.name))
            }
        }
    }
    match rule.factors.iter().zip(&taken).find(|(f, axes)| f.kind == FactorKind::Whole && !axes.is_empty()) {
        Some((f, axes)) => {
            Err(format!("factor {} is split over {}, but it cannot be; gather it first", f.name, join_axes(axes)))
        }
        None => Ok(taken),
    }
}

/// A rule with the axes that each of its factors takes.
struct Split<'a> {
    rule: &'a Rule,
    taken: Vec<Vec<Axis>>,
    mesh: &'a Mesh,
}

impl Split<'_> {
    /// The axes of a dimension: those of its major factor. A minor factor cannot be split (its parts
    /// are not contiguous), nor a major one unevenly (its parts would not be whole rows of minors).
    fn axes(&self, dim: &Dim, map: &DimMap) -> Result<Vec<Axis>, String> {
        let Some((major, minor)) = map.factors.split_first() else { return Ok(Vec::new()) };
        if let Some(f) = minor.iter().find(|f| !self.taken[**f].is_empty()) {
            let (f, axes) = (&self.rule.factors[*f], &self.taken[*f]);
            return Err(format!(
                "factor {} is not the major factor of dimension {}, so it cannot be split over {}",
                f.name,
                dim.name,
                join_axes(axes)
            ));
        }
        let axes = &self.taken[*major];
        let factor = &self.rule.factors[*major];
        if !minor.is_empty() && !factor.size.is_multiple_of(self.mesh.span(axes).max(1)) {
            return Err(format!(
                "factor {} of size {} is the major part of dimension {}, so the axes {} must divide it",
                factor.name,
                factor.size,
                dim.name,
                join_axes(axes)
            ));
        }
        Ok(axes.clone())
    }

    fn check_operand(&self, i: usize, ty: &Type, maps: &[DimMap]) -> Result<(), String> {
        for (dim, map) in ty.dims.iter().zip(maps) {
            let want = self.axes(dim, map)?;
            if dim.axes != want {
                return Err(format!(
                    "dimension {} of operand {i} ({ty}) is {}, but the strategy asks that it be {}; reshard it first",
                    dim.name,
                    split_text(&dim.axes),
                    split_text(&want)
                ));
            }
        }
        Ok(())
    }

    /// The partial sum that passes from operands to results.
    fn passed(&self, operands: &[&Type]) -> Result<Option<Partial>, String> {
        let Some(i) = operands.iter().position(|t| t.partial.is_some()) else { return Ok(None) };
        let Some(partial) = &operands[i].partial else { return Ok(None) };
        let axes = join_axes(&partial.axes);
        if let Some(axis) = partial.axes.iter().find(|a| self.taken.iter().flatten().any(|t| t == *a)) {
            return Err(format!("operand {i} is partial over {axis}, which also splits this node; reduce it first"));
        }
        let other = operands.iter().enumerate().find(|(j, t)| *j != i && t.partial.is_some()).map(|(j, _)| j);
        match (self.rule.linear, other) {
            (Linearity::None, _) => {
                return Err(format!(
                    "operand {i} is partial over {axes}, and the operation is not linear in it; reduce it first"
                ));
            }
            (Linearity::Each, Some(j)) => {
                return Err(format!("operands {i} and {j} are both partial, and a product of sums is not a sum of products; reduce one first"));
            }
            (Linearity::First, Some(j)) => {
                return Err(format!(
                    "operand {j} is partial, and the operation is linear in operand 0 alone; reduce it first"
                ))
            }
            (Linearity::First, None) if i > 0 => {
                return Err(format!("operand {i} is partial over {axes}, and the operation is linear in operand 0 alone; reduce it first"));
            }
            (Linearity::Joint, _) => all_partial(operands, i, partial)?,
            (Linearity::Each | Linearity::First, None) => {}
        }
        if partial.monoid != BinaryMonoid::Sum && !self.copies() {
            let monoid = partial.monoid.name();
            return Err(format!("operand {i} is a partial {monoid} over {axes}, and only partial sums pass through arithmetic; reduce it first"));
        }
        Ok(Some(partial.clone()))
    }

    /// Whether the node only moves its one operand's elements, reducing none: then every monoid passes.
    fn copies(&self) -> bool {
        let [operand] = self.rule.operands.as_slice() else { return false };
        let kept = |f| self.rule.results.iter().all(|maps| maps.iter().any(|m| m.factors.contains(f)));
        operand.iter().flat_map(|m| &m.factors).all(kept)
            && matches!(self.rule.body, Some(ScalarBody::Sum(_) | ScalarBody::Map(Scalar::Identity)))
    }

    fn result(&self, ty: &Type, maps: &[DimMap], passed: Option<&Partial>) -> Result<Type, String> {
        let mut out = ty.global();
        for (dim, map) in out.dims.iter_mut().zip(maps) {
            dim.axes = self.axes(dim, map)?;
        }
        let mut partial = passed.cloned();
        for (f, axes) in self.taken.iter().enumerate().filter(|(_, axes)| !axes.is_empty()) {
            let FactorKind::Free(monoid) = self.rule.factors[f].kind else { continue };
            if maps.iter().any(|m| m.factors.contains(&f)) {
                continue;
            }
            let whole = partial.get_or_insert(Partial { monoid, axes: Vec::new() });
            if whole.monoid != monoid {
                return Err(format!(
                    "the result would be a partial {} over {} and a partial {} over {}; reduce one first",
                    whole.monoid.name(),
                    join_axes(&whole.axes),
                    monoid.name(),
                    join_axes(axes)
                ));
            }
            whole.axes.extend(axes.iter().cloned());
        }
        if let Some(p) = &mut partial {
            self.mesh.sort(&mut p.axes);
        }
        out.partial = partial;
        Ok(out)
    }
}

/// That every summand is partial like operand `i`: a replicated one would be counted on every rank.
fn all_partial(operands: &[&Type], i: usize, partial: &Partial) -> Result<(), String> {
    let Some(j) = operands.iter().position(|t| t.partial.as_ref() != Some(partial)) else { return Ok(()) };
    let axes = join_axes(&partial.axes);
    Err(match &operands[j].partial {
        None => format!(
            "operand {i} is partial over {axes} and operand {j} is not: it would be added once per rank; make it partial with `shard` (R→P), or reduce operand {i} first"
        ),
        Some(p) => format!(
            "operand {i} is a partial {} over {axes} and operand {j} a partial {} over {}; bring both to one state first",
            partial.monoid.name(),
            p.monoid.name(),
            join_axes(&p.axes)
        ),
    })
}

fn split_text(axes: &[Axis]) -> String {
    if axes.is_empty() {
        "whole".to_string()
    } else {
        format!("split over {}", join_axes(axes))
    }
}

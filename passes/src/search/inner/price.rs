//! Seconds of a node's own work on one rank: its products' FLOPs or the bytes it moves, whichever take longer,
//! and the messages inside a composite whose inner factor is split.

use super::block::{at, body_of, Block, Choice, Operator};
use super::states::{seconds, Place, Shape, State, MAX_AXES, WHOLE};
use super::table::Take;
use super::Rates;
use autoshard_ir::core::{FactorKind, Function, Node, Rule, Template, Type};
use autoshard_ir::ops;
use autoshard_ir::DType;

/// Seconds of one node under one strategy.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Seconds {
    pub forward: f64,
    pub backward: f64,
}

/// A node's work as products of factor sizes, found once and evaluated under each strategy.
pub(super) struct Work {
    /// Factors whose sizes, times two, are the FLOPs of one product; ranges inside a composite's body count in
    /// the constant.
    products: Vec<(f64, Vec<usize>)>,
    /// For each inner factor, what has to be summed over its ranks: elements as above, bytes of an element.
    sums: Vec<(usize, f64, Vec<usize>, DType)>,
    /// FLOPs of the backward over those of the forward.
    backward: f64,
}

impl Work {
    pub(super) fn new(f: &Function, n: &Node, operator: &Operator, active: &[bool]) -> Result<Work, String> {
        let rule = &operator.rule;
        let mut work = Work { products: Vec::new(), sums: Vec::new(), backward: 0.0 };
        match body_of(f, n)? {
            None if operator.template == Template::Gemm => {
                work.products.push((1.0, (0..rule.factors.len()).collect()));
            }
            None => {}
            Some(body) => work.body(&body, rule)?,
        }
        let live = n.inputs.iter().filter(|v| active[at(**v)]).count() as f64;
        work.backward = match operator.template {
            _ if !operator.active => 0.0,
            // One product for each operand that has a cotangent.
            Template::Gemm => live,
            // Scores again, and the gradients of both products: five products for two.
            Template::Attention => 2.5,
            _ => 2.0,
        };
        Ok(work)
    }

    fn body(&mut self, body: &Function, outer: &Rule) -> Result<(), String> {
        for n in &body.nodes {
            let types: Vec<&Type> = n.inputs.iter().map(|v| body.ty(*v)).collect();
            let rule = ops::rule(n.op, &types, &n.attrs)?;
            if n.op.template == Template::Gemm {
                self.products.push(monomial(rule.factors.iter().map(|f| (f.name.as_str(), f.size)), outer));
            }
            let Some(r) = n.results.first() else { continue };
            let ty = body.ty(*r);
            for (i, f) in outer.factors.iter().enumerate().filter(|(_, f)| f.kind == FactorKind::Inner) {
                if rule.factor(&f.name).is_some() && ty.dim(&f.name).is_none() {
                    let (constant, factors) = monomial(ty.dims.iter().map(|d| (d.name.as_str(), d.size)), outer);
                    self.sums.push((i, constant, factors, ty.dtype));
                }
            }
        }
        Ok(())
    }

    /// Seconds under a strategy.
    pub(super) fn seconds(&self, block: &Block, n: &Node, o: &Operator, choice: &Choice, rates: &Rates) -> Seconds {
        let local = |f: usize| -> f64 {
            let ways: usize = block
                .mesh
                .iter()
                .zip(&choice.takes)
                .filter(|(_, t)| **t == Take::Factor(f))
                .map(|(a, _)| a.ways)
                .product();
            o.rule.factors[f].size.div_ceil(ways) as f64
        };
        let size =
            |(constant, factors): &(f64, Vec<usize>)| constant * factors.iter().map(|f| local(*f)).product::<f64>();
        let flops: f64 = 2.0 * self.products.iter().map(size).sum::<f64>() * unmasked(n);
        let bytes_of = |v, s| block.shapes[at(v)].bytes(s, block.mesh);
        let operands = n.inputs.iter().zip(&choice.operands).enumerate().map(|(k, (v, states))| {
            bytes_of(*v, &states.0) / if o.routed_operand == Some(k) { owners(block, states) } else { 1.0 }
        });
        let results =
            n.results.iter().zip(&choice.results).map(|(v, states)| {
                bytes_of(*v, &states.0) / if o.routed_result { makers(block, &states.0) } else { 1.0 }
            });
        let bytes: f64 = operands.chain(results).sum();
        let busy = |times: f64, moves: f64| (times * flops / rates.flops).max(moves * bytes / rates.memory_bandwidth);
        let inside = self.inside(block, choice, &local, rates);
        let moves = self.backward.min(2.0);
        let both = if o.active { inside } else { 0.0 };
        Seconds { forward: busy(1.0, 1.0) + inside, backward: busy(self.backward, moves) + both }
    }

    /// All-reduces inside, one for each sum over an inner factor.
    fn inside(&self, block: &Block, choice: &Choice, local: &dyn Fn(usize) -> f64, rates: &Rates) -> f64 {
        let mut total = 0.0;
        for (factor, constant, factors, dtype) in &self.sums {
            let split = |i: usize| choice.takes[i] == Take::Factor(*factor);
            let partial: State = std::array::from_fn(|i| if split(i) { Place::Partial } else { Place::Whole });
            let elements = constant * factors.iter().map(|f| local(*f)).product::<f64>();
            let shape = Shape::new(&Type::new(*dtype, &[("n", elements as usize)]), 0);
            total += seconds(&shape, &partial, &WHOLE, &[false; MAX_AXES], block.mesh, rates);
        }
        total
    }
}

/// Ranks that each read their own rows of an operand with one place a row.
fn owners(block: &Block, (want, cotangent): &(State, State)) -> f64 {
    let own = |i: &usize| want[*i] == Place::Whole && cotangent[*i] == Place::Partial;
    (0..block.mesh.len()).filter(own).map(|i| block.mesh[i].ways as f64).product()
}

/// Ranks that each make their own rows of such a result.
fn makers(block: &Block, made: &State) -> f64 {
    let own = |i: &usize| made[*i] == Place::Partial;
    (0..block.mesh.len()).filter(own).map(|i| block.mesh[i].ways as f64).product()
}

/// Named sizes as factors of the node, and the product of the sizes that it does not have.
fn monomial<'a>(sizes: impl Iterator<Item = (&'a str, usize)>, outer: &Rule) -> (f64, Vec<usize>) {
    let (mut constant, mut factors) = (1.0, Vec::new());
    for (name, size) in sizes {
        match outer.factor(name) {
            Some(f) => factors.push(f),
            None => constant *= size as f64,
        }
    }
    (constant, factors)
}

/// Part of the scores that a mask leaves: half of a causal square.
fn unmasked(n: &Node) -> f64 {
    if n.op.template == Template::Attention && n.attrs.get_int("causal").is_ok_and(|c| c == 1) {
        0.5
    } else {
        1.0
    }
}

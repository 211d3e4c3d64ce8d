//! What the search has to know of a function before it prices anything: which values move, which parameters stand
//! behind them, what the backward reads, and what each node may do.

use super::states::{Place, Shape, State, MAX_AXES, WHOLE};
use super::table::{self, Take};
use super::{InnerError, MeshAxis};
use autoshard_ir::core::{
    DimMap, FactorKind, Function, GradArg, Gradient, Linearity, Node, Rule, Scalar, ScalarBody, Semantics, Template,
    Type, ValueId,
};
use autoshard_ir::ops;

/// What a value is to the search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Made by a node or given by the caller: it has a state.
    Stream,
    /// A parameter of this position, or its copy in another element type.
    Param(usize),
    /// The same on every rank and cheap to have: constants, tables, statistics that are not trained.
    Constant,
}

/// One node with what it may do.
#[derive(Clone, Debug)]
pub(super) struct Operator {
    pub rule: Rule,
    pub template: Template,
    /// Whether its results have cotangents.
    pub active: bool,
    /// Per operand, whether the backward reads it.
    pub reads: Vec<bool>,
    /// Strategies, at least one.
    pub choices: Vec<Choice>,
    /// The operand that is slots of experts, or `None` as result: where rows have one place.
    pub routed_operand: Option<usize>,
    /// Whether its result is slots of experts.
    pub routed_result: bool,
}

impl Operator {
    /// Whether the backward brings operand `k` to the node's state once more. Rows that went to their owners are kept
    /// there: they are as many bytes as at home.
    pub(super) fn repeats(&self, k: usize) -> bool {
        self.reads[k] && self.routed_operand != Some(k)
    }
}

/// One strategy of a node, with the states that follow from it.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Choice {
    pub takes: [Take; MAX_AXES],
    /// Per operand: state that it must have, and state of its cotangent.
    pub operands: Vec<(State, State)>,
    /// Per result: state that it has, and state that its cotangent must have.
    pub results: Vec<(State, State)>,
    /// Whether partial sums pass: operands then have their states already.
    pub follows: bool,
}

/// A function as the search sees it.
#[derive(Clone, Debug)]
pub(super) struct Block<'f> {
    pub f: &'f Function,
    pub mesh: &'f [MeshAxis],
    /// Per node; `None` for nodes that only make constants or copies of parameters.
    pub operators: Vec<Option<Operator>>,
    /// Per value.
    pub kinds: Vec<Kind>,
    /// Per value.
    pub shapes: Vec<Shape>,
    /// Per value: whether its cotangent is wanted.
    pub active: Vec<bool>,
    /// Per value: whether the backward reads it.
    pub saved: Vec<bool>,
}

impl<'f> Block<'f> {
    /// # Errors
    /// A node whose rule does not hold, a call, or a value of more dimensions than a state can name.
    pub(super) fn new(f: &'f Function, mesh: &'f [MeshAxis]) -> Result<Block<'f>, InnerError> {
        let values = f.values.len();
        let mut block = Block {
            f,
            mesh,
            operators: Vec::with_capacity(f.nodes.len()),
            kinds: vec![Kind::Constant; values],
            shapes: f.values.iter().map(|v| Shape::new(&v.ty, mesh.len())).collect(),
            active: vec![false; values],
            saved: vec![false; values],
        };
        for (i, p) in f.params.iter().enumerate() {
            let (at, ty) = (p.value.0 as usize, f.ty(p.value));
            if p.trainable {
                block.kinds[at] = Kind::Param(i);
                block.active[at] = true;
            } else if ty.dim("b").is_some() {
                block.kinds[at] = Kind::Stream;
                block.active[at] = ty.dtype.is_float();
            }
        }
        for n in &f.nodes {
            let operator = block.operator(n)?;
            block.operators.push(operator);
        }
        Ok(block)
    }

    fn operator(&mut self, n: &Node) -> Result<Option<Operator>, InnerError> {
        let types: Vec<&Type> = n.inputs.iter().map(|v| self.f.ty(*v)).collect();
        let rule = ops::rule(n.op, &types, &n.attrs).map_err(|message| self.error(n, message))?;
        if n.inputs.iter().all(|v| self.kinds[v.0 as usize] == Kind::Constant) {
            return Ok(None);
        }
        if let (Some(param), Some(copy)) = (self.copied(n, &rule), n.results.first()) {
            self.kinds[copy.0 as usize] = Kind::Param(param);
            self.active[copy.0 as usize] = true;
            return Ok(None);
        }
        let live: Vec<bool> = n.inputs.iter().map(|v| self.active[v.0 as usize]).collect();
        let active = live.iter().any(|l| *l) && n.results.iter().any(|r| self.f.ty(*r).dtype.is_float());
        for r in &n.results {
            self.kinds[r.0 as usize] = Kind::Stream;
            self.active[r.0 as usize] = active && self.f.ty(*r).dtype.is_float();
        }
        let (operands, results) = if active { read(n, &rule, &live) } else { Default::default() };
        let reads: Vec<bool> = (0..n.inputs.len()).map(|i| operands.contains(&i)).collect();
        for v in operands.iter().map(|i| n.inputs[*i]).chain(results.iter().map(|i| n.results[*i])) {
            self.saved[v.0 as usize] |= self.kinds[v.0 as usize] == Kind::Stream;
        }
        let choices = self.choices(n, &rule);
        if choices.is_empty() {
            return Err(self.error(n, "no strategy fits".to_string()));
        }
        Ok(Some(Operator {
            template: n.op.template,
            active,
            reads,
            choices,
            routed_operand: (rule.body == Some(ScalarBody::Combine)).then_some(0),
            routed_result: rule.body == Some(ScalarBody::Dispatch),
            rule,
        }))
    }

    /// The parameter that a node copies entry by entry.
    fn copied(&self, n: &Node, rule: &Rule) -> Option<usize> {
        let [v] = n.inputs[..] else { return None };
        let Kind::Param(i) = self.kinds[v.0 as usize] else { return None };
        let identity = rule.body == Some(ScalarBody::Map(Scalar::Identity));
        (identity && rule.operands == rule.results && self.f.ty(n.results[0]).dtype.is_float()).then_some(i)
    }

    pub(super) fn error(&self, n: &Node, message: String) -> InnerError {
        let value = n.results.first().map_or("", |r| &self.f.value(*r).name).to_string();
        InnerError::Node { function: self.f.name.clone(), value, message }
    }

    /// Every strategy: the product of what each axis may take, without those that split a factor too often.
    fn choices(&self, n: &Node, rule: &Rule) -> Vec<Choice> {
        let float = n.results.iter().all(|r| self.f.ty(*r).dtype.is_float());
        let sums = float && adds(rule);
        let single: Vec<Vec<Take>> =
            self.mesh.iter().map(|a| table::takes(a.role, a.ways, rule, n.op.template, sums)).collect();
        let fits = |single: &[Vec<Take>]| -> Vec<Choice> {
            together(single).into_iter().filter_map(|takes| self.choice(n, rule, takes)).collect()
        };
        let out = fits(&single);
        if !out.is_empty() {
            return out;
        }
        // Axes that each may take a factor can be too many for it together: some then take none.
        let looser: Vec<Vec<Take>> = single.iter().map(|t| t.iter().copied().chain([Take::None]).collect()).collect();
        let idle = |c: &Choice| c.takes.iter().filter(|t| **t == Take::None).count();
        let all = fits(&looser);
        let least = all.iter().map(idle).min();
        all.into_iter().filter(|c| Some(idle(c)) == least).collect()
    }

    fn choice(&self, n: &Node, rule: &Rule, takes: [Take; MAX_AXES]) -> Option<Choice> {
        for (f, factor) in rule.factors.iter().enumerate() {
            let ways: usize =
                self.mesh.iter().zip(&takes).filter(|(_, t)| **t == Take::Factor(f)).map(|(a, _)| a.ways).product();
            if ways > factor.size || (table::exact(&factor.name) && !factor.size.is_multiple_of(ways)) {
                return None;
            }
            let maps = || rule.operands.iter().chain(&rule.results).flatten();
            let minor = maps().any(|m| m.factors.iter().skip(1).any(|g| *g == f));
            let grouped = maps().any(|m| m.factors.len() > 1 && m.factors[0] == f);
            if ways > 1 && (minor || (grouped && !factor.size.is_multiple_of(ways))) {
                return None;
            }
        }
        let operands = rule.operands.iter().map(|m| operand_states(m, &takes)).collect();
        let results = rule.results.iter().map(|m| result_states(m, rule, &takes)).collect();
        let follows = n.inputs.len() > 1 && takes.contains(&Take::Follow);
        Some(Choice { takes, operands, results, follows })
    }
}

/// Every combination of what the axes may take.
fn together(single: &[Vec<Take>]) -> Vec<[Take; MAX_AXES]> {
    let mut out = vec![[Take::None; MAX_AXES]];
    for (i, takes) in single.iter().enumerate() {
        let with = |c: &[Take; MAX_AXES], t: &Take| {
            let mut c = *c;
            c[i] = *t;
            c
        };
        out = out.iter().flat_map(|c| takes.iter().map(move |t| with(c, t))).collect();
    }
    out
}

/// Whether a node is a sum through which partial sums may pass: it adds operands of one shape, or is linear in
/// its one operand and does not make it larger.
fn adds(rule: &Rule) -> bool {
    let alike = rule.operands.iter().all(|m| Some(m) == rule.results.first());
    let elements =
        |maps: &[DimMap]| -> usize { maps.iter().flat_map(|m| &m.factors).map(|f| rule.factors[*f].size).product() };
    let shrinks = rule.operands.len() == 1 && rule.results.iter().all(|r| elements(r) <= elements(&rule.operands[0]));
    rule.linear == Linearity::Joint && (alike || shrinks)
}

fn split_at(maps: &[DimMap], f: usize) -> Option<Place> {
    maps.iter().position(|m| m.factors.first() == Some(&f)).map(|d| Place::Split(d as u8))
}

/// An operand is split where it carries the factor; the cotangent of one that lacks it is partial.
fn operand_states(maps: &[DimMap], takes: &[Take; MAX_AXES]) -> (State, State) {
    let (mut want, mut cotangent) = (WHOLE, WHOLE);
    for (i, take) in takes.iter().enumerate() {
        match take {
            Take::None => {}
            Take::Follow => want[i] = Place::Partial,
            Take::Factor(f) => {
                let place = split_at(maps, *f);
                want[i] = place.unwrap_or(Place::Whole);
                cotangent[i] = place.unwrap_or(Place::Partial);
            }
        }
    }
    (want, cotangent)
}

/// A result is split where it carries the factor, partial where a free factor is missing. Each term of a sum has
/// the cotangent of the sum.
fn result_states(maps: &[DimMap], rule: &Rule, takes: &[Take; MAX_AXES]) -> (State, State) {
    let (mut made, mut need) = (WHOLE, WHOLE);
    for (i, take) in takes.iter().enumerate() {
        match take {
            Take::None => {}
            Take::Follow => made[i] = Place::Partial,
            Take::Factor(f) => match (split_at(maps, *f), rule.factors[*f].kind) {
                (Some(place), _) => (made[i], need[i]) = (place, place),
                (None, FactorKind::Free(_)) => made[i] = Place::Partial,
                (None, FactorKind::Inner | FactorKind::Whole) => {}
            },
        }
    }
    (made, need)
}

/// Operands and results that the backward of a node reads, from the gradient that its operation declares:
/// a product reads the other operand, what is linear in its first operand reads the rest, sums read nothing.
fn read(n: &Node, rule: &Rule, live: &[bool]) -> (Vec<usize>, Vec<usize>) {
    let all = 0..n.inputs.len();
    let beside = |i: &usize| live.iter().enumerate().any(|(j, l)| *l && j != *i);
    match &n.op.gradient {
        Gradient::None(_) => (Vec::new(), Vec::new()),
        Gradient::Backward { args, .. } => {
            let operand = |a: &GradArg| if let GradArg::Operand(i) = a { Some(*i) } else { None };
            let result = |a: &GradArg| if let GradArg::Result(i) = a { Some(*i) } else { None };
            (args.iter().filter_map(operand).collect(), args.iter().filter_map(result).collect())
        }
        Gradient::Body => (all.collect(), Vec::new()),
        Gradient::Derived(_) => match rule.linear {
            Linearity::Joint => (Vec::new(), Vec::new()),
            Linearity::Each => (all.filter(beside).collect(), Vec::new()),
            Linearity::First => (all.filter(|i| *i > 0 || beside(i)).collect(), Vec::new()),
            Linearity::None => (all.collect(), Vec::new()),
        },
    }
}

/// The body of a composite, for what only it tells.
pub(super) fn body_of(f: &Function, n: &Node) -> Result<Option<Function>, String> {
    let types: Vec<&Type> = n.inputs.iter().map(|v| f.ty(*v)).collect();
    match n.op.semantics {
        Semantics::Composite(source) => ops::compose::body(source, &types, &n.attrs).map(Some),
        Semantics::Primitive(_) | Semantics::Collective | Semantics::Call => Ok(None),
    }
}

/// Position of a value in a function's values.
pub(super) fn at(v: ValueId) -> usize {
    v.0 as usize
}

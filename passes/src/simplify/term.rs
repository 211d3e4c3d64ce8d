//! The language of the e-graph: one term for one node of a function.
//!
//! A term is a *head* (operation, attributes, result types) and the classes of its operands. Heads are kept in
//! a table and compared by number. What rules look at is a head's [`Form`], found once from the operation's
//! declared rule: its maps, its scalar body and its monoid, never its name.

use autoshard_ir::core::{
    Attrs, DimMap, FactorId, FactorKind, Node, OpDef, Rule, Scalar, ScalarBody, Semantics, Strategy, Type,
};
use autoshard_ir::mesh::Mesh;
use autoshard_ir::ops::{self, spec::Spec};
use autoshard_ir::verify::check_type;
use autoshard_ir::Monoid;
use egg::{Analysis, DidMerge, EGraph, Id, Language};
use std::collections::HashMap;
use std::rc::Rc;

/// The e-graph of a function's body. All terms of a class have one type, names of dimensions included.
pub(super) type Graph = EGraph<Term, Heads>;

/// Index of a head in its table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct HeadId(pub u32);

/// A node of the e-graph: a head applied to classes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Term {
    /// What is applied.
    pub head: HeadId,
    /// To which classes.
    pub inputs: Vec<Id>,
}

impl Language for Term {
    type Discriminant = HeadId;

    fn discriminant(&self) -> HeadId {
        self.head
    }

    fn matches(&self, other: &Term) -> bool {
        self.head == other.head && self.inputs.len() == other.inputs.len()
    }

    fn children(&self) -> &[Id] {
        &self.inputs
    }

    fn children_mut(&mut self) -> &mut [Id] {
        &mut self.inputs
    }
}

/// Where a term's value comes from.
#[derive(Clone, Debug)]
pub(super) enum Source {
    /// The parameter of this position. Nothing is known of its values.
    Param(usize),
    /// A node, without operands and results.
    Node(Node),
}

/// One result of an operation.
#[derive(Clone, Debug)]
pub(super) struct Head {
    /// What computes it.
    pub source: Source,
    /// Types of all results, as the function writes them.
    pub types: Vec<Type>,
    /// Which of them this is.
    pub result: usize,
    /// How rules see it.
    pub form: Form,
}

impl Head {
    /// Type of the value.
    pub fn ty(&self) -> &Type {
        &self.types[self.result]
    }
}

/// What rules may know of a node: a closed set, read off its declared rule.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Form {
    /// Nothing: parameters, composites, nodes that are split over a mesh or belong to a forward node, and
    /// every primitive that is none of the following. Its operands may still be replaced by equal ones.
    Opaque,
    /// One number everywhere.
    Constant(f64),
    /// A scalar function of operands of one shape. `Identity` is a change of element type.
    Pointwise(Scalar),
    /// A copy. For each dimension of the result, the operand's dimension that it is, or `None` where the
    /// operand is repeated. Every dimension of the operand appears.
    Move(Vec<Option<usize>>),
    /// A product of operands (or one operand), combined over the factors that the result lacks.
    Contraction(Contraction),
}

/// Factors by name, and how the missing ones are combined.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Contraction {
    /// Factors of each operand and of the result.
    pub spec: Spec,
    /// How factors that the result lacks are combined.
    pub monoid: Monoid,
    /// Whether more than one operand is accepted.
    pub product: bool,
}

impl Contraction {
    /// Whether it is a sum of products, so that it is linear in each operand.
    pub fn is_sum(&self) -> bool {
        self.monoid == Monoid::Sum
    }
}

/// The table of heads. It is the analysis of the e-graph too: it knows types and constants of classes.
#[derive(Default)]
pub(super) struct Heads {
    list: Vec<Rc<Head>>,
    index: HashMap<String, HeadId>,
}

impl Heads {
    /// The head with this index.
    pub fn get(&self, id: HeadId) -> &Rc<Head> {
        &self.list[id.0 as usize]
    }

    /// The head of another result of the same node.
    pub fn sibling(&self, id: HeadId, result: usize) -> HeadId {
        HeadId(id.0 - self.get(id).result as u32 + result as u32)
    }

    /// The first head of this source, new or known; those of its other results follow it.
    pub fn intern(&mut self, source: Source, types: Vec<Type>, form: Form) -> HeadId {
        // Attributes hold real numbers, which their text compares by value, NaN and the sign of 0 included. The
        // form counts because the same cast of another element type is another function.
        let key = format!("{source:?} {types:?} {form:?}");
        if let Some(id) = self.index.get(&key) {
            return *id;
        }
        let id = HeadId(self.list.len() as u32);
        let heads = (0..types.len())
            .map(|result| Rc::new(Head { source: source.clone(), types: types.clone(), result, form: form.clone() }));
        self.list.extend(heads);
        self.index.insert(key, id);
        id
    }
}

/// What is known of a class.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Known {
    /// Its type.
    pub ty: Rc<Type>,
    /// The number that all its values are.
    pub fill: Option<f64>,
}

impl Analysis<Term> for Heads {
    type Data = Known;

    fn make(graph: &mut Graph, term: &Term, _: Id) -> Known {
        let head = graph.analysis.get(term.head).clone();
        let ty = head.ty();
        let fills = || term.inputs.iter().map(|i| graph[*i].data.fill).collect::<Option<Vec<f64>>>();
        let fill = match &head.form {
            Form::Constant(c) => Some(*c),
            Form::Pointwise(scalar) => fills().map(|x| scalar.eval(&x)),
            Form::Move(_) => fills().map(|x| x[0]),
            Form::Opaque | Form::Contraction(_) => None,
        };
        Known { ty: Rc::new(ty.clone()), fill: fill.map(|x| ty.dtype.round(x)) }
    }

    fn merge(&mut self, a: &mut Known, b: Known) -> DidMerge {
        debug_assert_eq!(a.ty, b.ty, "a class has one type");
        match (a.fill, b.fill) {
            (None, Some(x)) => {
                a.fill = Some(x);
                DidMerge(true, false)
            }
            (Some(_), None) => DidMerge(false, true),
            _ => DidMerge(false, false),
        }
    }
}

/// Terms of a class, their operands up to date.
pub(super) fn terms(graph: &Graph, class: Id) -> Vec<Term> {
    graph[class].nodes.iter().map(|t| t.clone().map_children(|i| graph.find(i))).collect()
}

/// Head of a term.
pub(super) fn head(graph: &Graph, term: &Term) -> Rc<Head> {
    graph.analysis.get(term.head).clone()
}

/// Terms of a class with their heads.
pub(super) fn heads(graph: &Graph, class: Id) -> Vec<(Term, Rc<Head>)> {
    terms(graph, class).into_iter().map(|t| (t.clone(), head(graph, &t))).collect()
}

/// Type of a class.
pub(super) fn ty(graph: &Graph, class: Id) -> Rc<Type> {
    graph[class].data.ty.clone()
}

/// The number that all values of a class are.
pub(super) fn fill(graph: &Graph, class: Id) -> Option<f64> {
    graph[class].data.fill
}

/// Adds the operation of this name with one result. Its dimensions are called as those of `like`, if given.
/// `None` if the operands do not fit, or the result is not of `like`'s shape or too large to exist.
pub(super) fn build(graph: &mut Graph, op: &str, attrs: Attrs, inputs: &[Id], like: Option<&Type>) -> Option<Id> {
    apply(graph, ops::find(op)?, attrs, inputs, like)
}

/// The same for an operation that is at hand.
pub(super) fn apply(
    graph: &mut Graph,
    op: &'static OpDef,
    attrs: Attrs,
    inputs: &[Id],
    like: Option<&Type>,
) -> Option<Id> {
    let types: Vec<Rc<Type>> = inputs.iter().map(|i| ty(graph, *i)).collect();
    let rule = ops::rule(op, &types.iter().map(Rc::as_ref).collect::<Vec<_>>(), &attrs).ok()?;
    let [result] = rule.result_types.as_slice() else { return None };
    let ty = like.unwrap_or(result).clone();
    if !ty.same_shape(result) || check_type(&ty, &Mesh::default()).is_err() {
        return None;
    }
    let node =
        Node { op, attrs, callee: None, inputs: Vec::new(), results: Vec::new(), strategy: Strategy::None, of: None };
    let form = form(&node, &rule, &types.iter().map(Rc::as_ref).collect::<Vec<_>>());
    let head = graph.analysis.intern(Source::Node(node), vec![ty], form);
    Some(graph.add(Term { head, inputs: inputs.to_vec() }))
}

/// A node's operation on other operands.
pub(super) fn reapply(graph: &mut Graph, head: &Head, inputs: &[Id], like: Option<&Type>) -> Option<Id> {
    match &head.source {
        Source::Param(_) => None,
        Source::Node(node) => apply(graph, node.op, node.attrs.clone(), inputs, like),
    }
}

/// How rules see a node.
pub(super) fn form(node: &Node, rule: &Rule, operands: &[&Type]) -> Form {
    let placed = node.strategy != Strategy::None || node.of.is_some();
    if placed || !matches!(node.op.semantics, Semantics::Primitive(_)) {
        return Form::Opaque;
    }
    let ([result], [maps]) = (rule.result_types.as_slice(), rule.results.as_slice()) else { return Form::Opaque };
    match &rule.body {
        Some(ScalarBody::Values(values)) => match values.split_first() {
            Some((x, rest)) if rest.iter().all(|y| y.to_bits() == x.to_bits()) => {
                Form::Constant(result.dtype.round(*x))
            }
            _ => Form::Opaque,
        },
        Some(ScalarBody::Map(scalar)) => {
            let renames = *scalar == Scalar::Identity && operands[0].dtype == result.dtype;
            if rule.operands.iter().all(|o| o == maps) && !reduces(rule) && !renames {
                return Form::Pointwise(*scalar);
            }
            if *scalar != Scalar::Identity || operands.len() != 1 {
                return Form::Opaque;
            }
            copy(rule).or_else(|| contraction(rule, false)).unwrap_or(Form::Opaque)
        }
        Some(ScalarBody::Product) => contraction(rule, true).unwrap_or(Form::Opaque),
        _ => Form::Opaque,
    }
}

/// Whether some factor is missing from the result.
fn reduces(rule: &Rule) -> bool {
    (0..rule.factors.len()).any(|f| !rule.results[0].iter().any(|m| m.factors.contains(&f)))
}

/// The factor of a dimension that is one factor.
fn single(map: &DimMap) -> Option<FactorId> {
    match map.factors.as_slice() {
        [f] if map.offset == 0 => Some(*f),
        _ => None,
    }
}

fn copy(rule: &Rule) -> Option<Form> {
    if reduces(rule) {
        return None;
    }
    let from = rule.operands[0].iter().map(single).collect::<Option<Vec<_>>>()?;
    let to = rule.results[0].iter().map(single).collect::<Option<Vec<_>>>()?;
    let all = from.iter().all(|f| to.contains(f));
    all.then(|| Form::Move(to.iter().map(|f| from.iter().position(|g| g == f)).collect()))
}

fn contraction(rule: &Rule, product: bool) -> Option<Form> {
    let names = |maps: &Vec<DimMap>| -> Option<Vec<String>> {
        maps.iter().map(|m| Some(rule.factors[single(m)?].name.clone())).collect()
    };
    let spec = Spec {
        operands: rule.operands.iter().map(names).collect::<Option<Vec<_>>>()?,
        result: names(&rule.results[0])?,
    };
    let monoid = rule.factors.iter().find_map(|f| match f.kind {
        FactorKind::Free(m) => Some(m),
        FactorKind::Inner | FactorKind::Whole => None,
    });
    Some(Form::Contraction(Contraction { spec, monoid: monoid.unwrap_or(Monoid::Sum), product }))
}

//! Builds functions node by node: result types come from the operation's rule.

use super::{Attrs, BinaryMonoid, DType, Def, Function, Node, NodeId, OpDef, Strategy, Type, ValueId};
use crate::ops;

/// Why a node could not be built.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum BuildError {
    /// No operation of this name.
    #[error("unknown operation {0:?}")]
    UnknownOp(String),
    /// A node that gradients are taken of does not hold together.
    #[error("{0}")]
    Malformed(String),
    /// The operands or attributes do not fit the operation.
    #[error("{op}({operands}): {message}")]
    Rule {
        /// Operation.
        op: String,
        /// Operand names with types.
        operands: String,
        /// What does not fit.
        message: String,
    },
    /// A gradient does not exist.
    #[error("{op} has no gradient: {reason}")]
    NoGradient {
        /// Operation.
        op: String,
        /// Why.
        reason: String,
    },
}

/// Appends nodes to a function.
pub struct Builder<'f> {
    /// The function under construction.
    pub func: &'f mut Function,
    /// Strategy given to every new node whose operation has the named factors.
    pub strategy: Strategy,
    /// `of` given to every new node.
    pub of: Option<String>,
}

impl<'f> Builder<'f> {
    /// Builds into this function.
    pub fn new(func: &'f mut Function) -> Builder<'f> {
        Builder { func, strategy: Strategy::None, of: None }
    }

    /// Type of a value.
    pub fn ty(&self, v: ValueId) -> &Type {
        self.func.ty(v)
    }

    /// Applies an operation that has one result.
    pub fn op(&mut self, name: &str, op: &str, inputs: &[ValueId], attrs: Attrs) -> Result<ValueId, BuildError> {
        Ok(self.ops(&[name], op, inputs, attrs)?[0])
    }

    /// Applies an operation; `names` are those of its results (the last is repeated).
    pub fn ops(
        &mut self,
        names: &[&str],
        op: &str,
        inputs: &[ValueId],
        attrs: Attrs,
    ) -> Result<Vec<ValueId>, BuildError> {
        let def = ops::find(op).ok_or_else(|| BuildError::UnknownOp(op.to_string()))?;
        let id = self.node(def, names, inputs, attrs)?;
        Ok(self.func.node(id).results.clone())
    }

    fn node(
        &mut self,
        def: &'static OpDef,
        names: &[&str],
        inputs: &[ValueId],
        attrs: Attrs,
    ) -> Result<NodeId, BuildError> {
        let types: Vec<Type> = inputs.iter().map(|v| self.func.ty(*v).global()).collect();
        let rule = ops::rule(def, &types.iter().collect::<Vec<_>>(), &attrs).map_err(|message| BuildError::Rule {
            op: def.name.to_string(),
            operands: inputs
                .iter()
                .map(|v| format!("%{}: {}", self.func.value(*v).name, self.func.ty(*v)))
                .collect::<Vec<_>>()
                .join(", "),
            message,
        })?;
        let strategy = match &self.strategy {
            Strategy::Axes(axes) => {
                Strategy::from_axes(axes.iter().filter(|(_, f)| rule.factor(f).is_some()).cloned().collect())
            }
            other => other.clone(),
        };
        let results = rule
            .result_types
            .into_iter()
            .enumerate()
            .map(|(i, ty)| {
                let name = names.get(i).or(names.last()).copied().unwrap_or("v");
                (name.to_string(), ty)
            })
            .collect();
        let node = Node {
            op: def,
            attrs,
            callee: None,
            inputs: inputs.to_vec(),
            results: Vec::new(),
            strategy,
            of: self.of.clone(),
        };
        Ok(self.func.add_node(node, results))
    }

    /// Calls `callee`, whose result types are given.
    pub fn call(&mut self, callee: &Function, inputs: &[ValueId], names: &[String]) -> Vec<ValueId> {
        let results = callee.results.iter().zip(names).map(|(r, n)| (n.clone(), callee.ty(*r).global())).collect();
        let node = Node {
            op: &ops::CALL,
            attrs: Attrs::new(),
            callee: Some(callee.name.clone()),
            inputs: inputs.to_vec(),
            results: Vec::new(),
            strategy: Strategy::None,
            of: self.of.clone(),
        };
        let id = self.func.add_node(node, results);
        self.func.node(id).results.clone()
    }

    /// Renames the dimensions of a value to those of `like`, which has the same sizes: a cotangent
    /// carries the names of its primal, whatever the operation that made it called them.
    pub fn name_like(&mut self, v: ValueId, like: ValueId) {
        let names: Vec<String> = self.func.ty(like).dims.iter().map(|d| d.name.clone()).collect();
        let value = &mut self.func.values[v.0 as usize];
        if matches!(value.def, Def::Result(..)) {
            for (d, n) in value.ty.dims.iter_mut().zip(names) {
                d.name = n;
            }
        }
    }

    /// A scalar constant.
    pub fn constant(&mut self, value: f64, dtype: DType) -> Result<ValueId, BuildError> {
        let attrs = Attrs::new().floats("values", vec![value]).text("dtype", dtype.name());
        self.op("c", "constant", &[], attrs)
    }

    /// Unary or binary pointwise operation.
    pub fn map(&mut self, op: &str, inputs: &[ValueId]) -> Result<ValueId, BuildError> {
        self.op(op, op, inputs, Attrs::new())
    }

    /// `x·mul + add`.
    pub fn affine(&mut self, x: ValueId, mul: f64, add: f64) -> Result<ValueId, BuildError> {
        self.op("affine", "affine", &[x], Attrs::new().float("mul", mul).float("add", add))
    }

    /// Products and sums by an einsum spec.
    pub fn einsum(&mut self, name: &str, inputs: &[ValueId], spec: &str) -> Result<ValueId, BuildError> {
        self.op(name, "einsum", inputs, Attrs::new().text("spec", spec))
    }

    /// Reduction over the dimensions that `spec` drops.
    pub fn reduce(&mut self, monoid: BinaryMonoid, x: ValueId, spec: &str) -> Result<ValueId, BuildError> {
        let op = format!("reduce_{}", monoid.name());
        self.op(&op, &op, &[x], Attrs::new().text("spec", spec))
    }
}

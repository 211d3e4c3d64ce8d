//! Nodes, functions and modules.

use super::{Attrs, Axis, OpDef, Type};
use crate::mesh::Mesh;
use std::collections::HashMap;

/// Index of a node in its function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeId(pub u32);

/// Index of a value in its function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ValueId(pub u32);

/// Index of a function in its module.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FuncId(pub u32);

/// Where a value comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Def {
    /// Parameter of this position.
    Param(usize),
    /// Result `.1` of node `.0`.
    Result(NodeId, usize),
}

/// A value: its name (unique in the function, printed with `%`), type and definition.
#[derive(Clone, Debug, PartialEq)]
pub struct Value {
    /// Name without the `%`.
    pub name: String,
    /// Type with state.
    pub ty: Type,
    /// Definition.
    pub def: Def,
}

/// How a node is split over the mesh.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Strategy {
    /// Each listed axis takes one factor of the node (by name), axes of one factor major to minor;
    /// the other axes take none.
    #[default]
    None,
    /// As listed.
    Axes(Vec<(Axis, String)>),
    /// An elementwise sum that takes the state of its operands, partial sums included.
    Follow,
}

impl Strategy {
    /// The listed axes and factors.
    pub fn axes(&self) -> &[(Axis, String)] {
        match self {
            Strategy::Axes(a) => a,
            Strategy::None | Strategy::Follow => &[],
        }
    }

    /// The axes that take this factor, major to minor.
    pub fn of_factor(&self, factor: &str) -> Vec<Axis> {
        self.axes().iter().filter(|(_, f)| f == factor).map(|(a, _)| a.clone()).collect()
    }

    /// From a list; an empty list is `None`.
    pub fn from_axes(axes: Vec<(Axis, String)>) -> Strategy {
        if axes.is_empty() {
            Strategy::None
        } else {
            Strategy::Axes(axes)
        }
    }
}

/// One operation applied to values.
#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    /// Its declaration.
    pub op: &'static OpDef,
    /// Attributes.
    pub attrs: Attrs,
    /// Called function, for calls.
    pub callee: Option<String>,
    /// Operands.
    pub inputs: Vec<ValueId>,
    /// Results.
    pub results: Vec<ValueId>,
    /// Split over the mesh.
    pub strategy: Strategy,
    /// For a backward node: the name of the first result of the forward node it differentiates.
    pub of: Option<String>,
}

/// A parameter of a function.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Param {
    /// Its value.
    pub value: ValueId,
    /// Whether it is trained: its gradient is wanted, and it is stored in the state its type gives.
    pub trainable: bool,
}

/// Where a parameter of a backward function comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParamOf {
    /// Parameter of this position of the forward function.
    Param(usize),
    /// Result of this position of the forward function.
    Result(usize),
    /// Cotangent of that result.
    Cotangent(usize),
}

/// Ties a backward function to its forward function.
#[derive(Clone, Debug, PartialEq)]
pub struct Backward {
    /// Name of the forward function.
    pub of: String,
    /// Source of each parameter.
    pub params: Vec<ParamOf>,
    /// For each result, the forward parameter that it is the cotangent of.
    pub results: Vec<usize>,
}

/// A function: values and nodes, nodes in execution order.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Function {
    /// Name without the `@`.
    pub name: String,
    /// Parameters.
    pub params: Vec<Param>,
    /// Nodes, each after those it reads.
    pub nodes: Vec<Node>,
    /// Values.
    pub values: Vec<Value>,
    /// Results.
    pub results: Vec<ValueId>,
    /// For a backward function, its forward.
    pub backward: Option<Backward>,
    /// Values by name.
    pub index: NameIndex,
}

/// Values of a function by name. It follows from the values, so it does not count in comparisons.
#[derive(Clone, Debug, Default)]
pub struct NameIndex(HashMap<String, ValueId>);

impl PartialEq for NameIndex {
    fn eq(&self, _: &NameIndex) -> bool {
        true
    }
}

impl Function {
    /// An empty function.
    pub fn new(name: impl Into<String>) -> Function {
        Function { name: name.into(), ..Function::default() }
    }

    /// The value with this index.
    pub fn value(&self, v: ValueId) -> &Value {
        &self.values[v.0 as usize]
    }

    /// Type of a value.
    pub fn ty(&self, v: ValueId) -> &Type {
        &self.value(v).ty
    }

    /// The node with this index.
    pub fn node(&self, n: NodeId) -> &Node {
        &self.nodes[n.0 as usize]
    }

    /// Node indices in execution order.
    pub fn node_ids(&self) -> impl Iterator<Item = NodeId> {
        (0..self.nodes.len() as u32).map(NodeId)
    }

    /// Types of a node's operands.
    pub fn input_types(&self, n: NodeId) -> Vec<&Type> {
        self.node(n).inputs.iter().map(|v| self.ty(*v)).collect()
    }

    /// The value of this name.
    pub fn find(&self, name: &str) -> Option<ValueId> {
        if self.index.0.len() == self.values.len() {
            return self.index.0.get(name).copied();
        }
        // Values that were added without the function's knowledge (or share a name): look at all.
        self.values.iter().position(|v| v.name == name).map(|i| ValueId(i as u32))
    }

    /// Adds a parameter.
    pub fn add_param(&mut self, name: &str, ty: Type, trainable: bool) -> ValueId {
        let value = self.add_value(name, ty, Def::Param(self.params.len()));
        self.params.push(Param { value, trainable });
        value
    }

    /// Adds a node whose results have these names and types. Names that are taken get a suffix.
    pub fn add_node(&mut self, mut node: Node, results: Vec<(String, Type)>) -> NodeId {
        let id = NodeId(self.nodes.len() as u32);
        node.results = results
            .into_iter()
            .enumerate()
            .map(|(i, (name, ty))| self.add_value(&name, ty, Def::Result(id, i)))
            .collect();
        self.nodes.push(node);
        id
    }

    /// Adds the parameters of another function, in order; `env` then maps them to their copies.
    pub fn copy_params(&mut self, from: &Function, env: &mut HashMap<ValueId, ValueId>) {
        for p in &from.params {
            let v = from.value(p.value);
            env.insert(p.value, self.add_param(&v.name, v.ty.clone(), p.trainable));
        }
    }

    /// Adds a copy of a node of another function. `env` maps that function's values to this one's: it
    /// must hold the operands, and it gets the results.
    pub fn copy_node(&mut self, from: &Function, node: &Node, env: &mut HashMap<ValueId, ValueId>) -> NodeId {
        let inputs = node.inputs.iter().map(|v| env[v]).collect();
        let results = node.results.iter().map(|v| (from.value(*v).name.clone(), from.ty(*v).clone())).collect();
        let id = self.add_node(Node { inputs, results: Vec::new(), ..node.clone() }, results);
        env.extend(node.results.iter().copied().zip(self.node(id).results.iter().copied()));
        id
    }

    /// A name that no value has: the base itself or `base.N`.
    pub fn fresh_name(&self, base: &str) -> String {
        if self.find(base).is_none() {
            return base.to_string();
        }
        // Counting from the number of values keeps long functions linear: the first try is free
        // unless a program already uses such a name.
        (self.values.len()..).map(|i| format!("{base}.{i}")).find(|n| self.find(n).is_none()).unwrap_or_default()
    }

    fn add_value(&mut self, name: &str, ty: Type, def: Def) -> ValueId {
        let name = self.fresh_name(name);
        let id = ValueId(self.values.len() as u32);
        self.index.0.insert(name.clone(), id);
        self.values.push(Value { name, ty, def });
        id
    }
}

/// Functions over one mesh; `entry` is the one that a step runs.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Module {
    /// Mesh that strategies and states refer to.
    pub mesh: Mesh,
    /// Functions, callees before callers.
    pub functions: Vec<Function>,
    /// Name of the entry function.
    pub entry: String,
}

impl Module {
    /// The function of this name.
    pub fn function(&self, name: &str) -> Option<&Function> {
        self.functions.iter().find(|f| f.name == name)
    }

    /// The entry function.
    ///
    /// Invariant: a verified module has one.
    pub fn entry_function(&self) -> Option<&Function> {
        self.function(&self.entry)
    }
}

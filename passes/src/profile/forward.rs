//! A function of the forward module with what all layouts share: its rules, who reads what, which nodes are one kernel.

use super::loops;
use super::roles::Traits;
use super::ProfileError;
use autoshard_cost::stack::Fusion;
use autoshard_ir::core::{Function, Linearity, Node, Rule, Template, Type};
use autoshard_ir::ops;

/// A forward function at the sizes of one micro-batch (all ranks that share it), with the rules of its nodes and what
/// follows from them: what all layouts share.
#[derive(Clone, Debug)]
pub struct Forward {
    /// The function.
    pub f: Function,
    /// By node; None for calls.
    pub rules: Vec<Option<Rule>>,
    /// What tp and experts may split, by node.
    pub(super) traits: Vec<Traits>,
    /// Nodes that do nothing on activations.
    pub(super) idle: Vec<bool>,
    /// Nodes that read each value.
    pub(super) readers: Vec<Vec<usize>>,
    /// Values that depend on parameters and constants alone.
    pub(super) weight: Vec<bool>,
    /// Values whose cotangent is wanted.
    pub(super) active: Vec<bool>,
    /// Which nodes are one kernel, by fusion.
    groups: [(Fusion, Vec<usize>); 3],
}

impl Forward {
    /// Reads the rules.
    ///
    /// # Errors
    /// A node whose rule does not hold.
    pub fn new(f: Function) -> Result<Forward, ProfileError> {
        let rule = |n: &Node| {
            let types: Vec<&Type> = n.inputs.iter().map(|v| f.ty(*v)).collect();
            let rule = if n.callee.is_some() { None } else { Some(ops::rule(n.op, &types, &n.attrs)) };
            rule.transpose().map_err(|message| error(&f, n, message))
        };
        let rules = f.nodes.iter().map(rule).collect::<Result<Vec<_>, _>>()?;
        let traits = rules.iter().map(|r| Traits::of(r.as_ref().unwrap_or(&NO_FACTORS))).collect();
        let n = f.values.len();
        let none = [Fusion::Eager, Fusion::Fused, Fusion::Compiled].map(|fusion| (fusion, Vec::new()));
        let (idle, readers) = (vec![false; f.nodes.len()], vec![Vec::new(); n]);
        let (weight, active) = (vec![false; n], vec![false; n]);
        let mut out = Forward { f, rules, traits, idle, readers, weight, active, groups: none };
        out.read();
        out.groups = [Fusion::Eager, Fusion::Fused, Fusion::Compiled].map(|how| (how, loops::groups(&out, how)));
        Ok(out)
    }

    /// Who reads what, and what depends on parameters alone.
    fn read(&mut self) {
        for p in &self.f.params {
            let (i, ty) = (p.value.0 as usize, self.f.ty(p.value));
            let activation = is_activation(p.trainable, ty);
            self.weight[i] = !activation;
            self.active[i] = p.trainable || (activation && ty.dtype.is_float());
        }
        for (i, node) in self.f.nodes.iter().enumerate() {
            let constant = node.inputs.iter().all(|v| self.weight[v.0 as usize]);
            // Rows of a table by positions are work over parameters all the same.
            let looks_up = node.op.template == Template::Gather;
            self.idle[i] = node.callee.is_some() || (constant && !looks_up);
            for v in &node.inputs {
                if !self.readers[v.0 as usize].contains(&i) {
                    self.readers[v.0 as usize].push(i);
                }
            }
            let active = node.inputs.iter().any(|v| self.active[v.0 as usize]);
            for r in &node.results {
                self.weight[r.0 as usize] = self.idle[i];
                self.active[r.0 as usize] = active && self.f.ty(*r).dtype.is_float();
            }
        }
    }

    /// For each node the kernel that it is in: the index of the kernel's last node.
    pub(super) fn groups(&self, fusion: Fusion) -> &[usize] {
        self.groups.iter().find(|(how, _)| *how == fusion).map_or(&[], |(_, groups)| groups)
    }
}

pub(super) fn is_activation(trainable: bool, ty: &Type) -> bool {
    !trainable && ty.dim("b").is_some()
}

pub(super) fn error(f: &Function, node: &Node, message: String) -> ProfileError {
    let value = node.results.first().map_or("", |r| &f.value(*r).name).to_string();
    ProfileError::Node { function: f.name.clone(), value, message }
}

static NO_FACTORS: Rule = Rule {
    factors: Vec::new(),
    operands: Vec::new(),
    results: Vec::new(),
    result_types: Vec::new(),
    body: None,
    linear: Linearity::None,
};

//! Lowering: a local node becomes a kernel of its template. Groups are single nodes; a composite is
//! one loop kernel made of its body.

mod attention;
mod gemm;
mod index;
mod loops;
mod view;

use autoshard_ir::core::{Axis, Factor, Function, Node, Rule, Semantics, Template, Type};
use autoshard_ir::kernel::{Extent, Kernel, KernelBody};
use autoshard_ir::{ops, Mesh};

/// Why a node has no kernel.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum LowerError {
    /// The template cannot execute the node.
    #[error("@{function}: no kernel for {node}: {message}")]
    Node {
        /// Function.
        function: String,
        /// Operation and first result.
        node: String,
        /// Reason.
        message: String,
    },
}

/// A node with what lowering needs of it.
pub(crate) struct Lowering<'a> {
    pub node: &'a Node,
    pub rule: Rule,
    pub inputs: Vec<&'a Type>,
    pub results: Vec<&'a Type>,
    pub mesh: &'a Mesh,
}

/// The kernel of a node of a local function (not a call, not a collective).
pub fn lower(f: &Function, node: &Node, mesh: &Mesh) -> Result<Kernel, LowerError> {
    let name = match node.results.first() {
        Some(r) => format!("{} %{}", node.op.name, f.value(*r).name),
        None => node.op.name.to_string(),
    };
    let fail = |message| LowerError::Node { function: f.name.clone(), node: name.clone(), message };
    let inputs: Vec<&Type> = node.inputs.iter().map(|v| f.ty(*v)).collect();
    let rule = ops::rule(node.op, &inputs, &node.attrs).map_err(fail)?;
    let results: Vec<&Type> = node.results.iter().map(|r| f.ty(*r)).collect();
    let l = Lowering { node, rule, inputs, results, mesh };
    let body = match node.op.template {
        Template::Loop => loops::lower(&l),
        Template::Gemm => gemm::lower(&l),
        Template::Attention => attention::lower(&l).map(KernelBody::Attention),
        Template::AttentionBackward => attention::lower(&l).map(KernelBody::AttentionBackward),
        Template::Gather => index::lower(&l, 0, 1).map(KernelBody::Gather),
        Template::Scatter => index::lower_scatter(&l).map(KernelBody::Scatter),
        Template::Sort => Err("there is no kernel that sorts: modules with experts are for planning".to_string()),
        Template::View => view::lower(&l).map(KernelBody::Copy),
        Template::Collective | Template::Call => Err("it is a step of its own".to_string()),
    }
    .map_err(fail)?;
    let flops = flops(&l).map_err(fail)?;
    let (operands, results) = (node.inputs.len(), node.results.len());
    let mut kernel = Kernel { name, operands, results, flops, bytes: 0.0, body };
    kernel.bytes = kernel.touched().iter().map(|b| *b as f64).sum();
    Ok(kernel)
}

impl Lowering<'_> {
    /// Local extent of a factor under the node's strategy. Under `Follow` the operands' own axes
    /// count.
    fn extent(&self, factor: usize) -> Extent {
        let f = &self.rule.factors[factor];
        let mut axes: Vec<Axis> = self.node.strategy.of_factor(&f.name);
        if axes.is_empty() {
            axes = self.placed(factor);
        }
        let size = axes.iter().fold(f.size, |n, a| n.div_ceil(self.mesh.size(a)));
        Extent { name: f.name.clone(), size, global: f.size, axes }
    }

    /// Axes that split the dimension of this factor where it occurs alone.
    fn placed(&self, factor: usize) -> Vec<Axis> {
        let sides = self.rule.operands.iter().zip(&self.inputs).chain(self.rule.results.iter().zip(&self.results));
        for (maps, ty) in sides {
            for (m, d) in maps.iter().zip(&ty.dims) {
                if m.factors.first() == Some(&factor) {
                    return d.axes.clone();
                }
            }
        }
        Vec::new()
    }

    fn strides(&self, ty: &Type) -> Vec<usize> {
        strides(&self.mesh.local_sizes(ty))
    }
}

/// Row-major strides.
pub(crate) fn strides(sizes: &[usize]) -> Vec<usize> {
    let mut out = vec![1; sizes.len()];
    for i in (1..sizes.len()).rev() {
        out[i - 1] = out[i] * sizes[i];
    }
    out
}

/// FLOPs of one rank's share: 2·(product of factors) for products, one per point for the rest; for a
/// composite the sum over its body, for attention over the products of its body (the full square).
fn flops(l: &Lowering) -> Result<f64, String> {
    // A factor of the node counts with its local size, a range inside the body with its whole.
    let points = |rule: &Rule| -> f64 {
        let size = |f: &Factor| l.rule.factor(&f.name).map_or(f.size, |own| l.extent(own).size) as f64;
        rule.factors.iter().map(size).product()
    };
    let cost = |node: &Node, rule: &Rule| -> f64 {
        let product = node.op.template == Template::Gemm && node.inputs.len() > 1;
        points(rule) * if product { 2.0 } else { 1.0 }
    };
    let source = match l.node.op.semantics {
        Semantics::Primitive(_) => return Ok(cost(l.node, &l.rule)),
        Semantics::Composite(source) => source,
        Semantics::Collective | Semantics::Call => return Ok(0.0),
    };
    let attention = matches!(l.node.op.template, Template::Attention | Template::AttentionBackward);
    let body = ops::compose::body(source, &l.inputs, &l.node.attrs)?;
    let mut total = 0.0;
    for node in body.nodes.iter().filter(|n| !attention || n.op.template == Template::Gemm) {
        let types: Vec<&Type> = node.inputs.iter().map(|v| body.ty(*v)).collect();
        total += cost(node, &ops::rule(node.op, &types, &node.attrs)?);
    }
    Ok(total)
}

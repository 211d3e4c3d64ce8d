//! The inner search: strategies of one function, exactly.
//!
//! Each mesh axis has a role, and a table (`table`) says which factors of a node a role may take. Variables are
//! the strategies of nodes, a state of use for each value (so q, k and v share one gather) and stored states of
//! parameters; costs are tables over one or two of them (`problem`), so the least sum is found by eliminating one variable
//! after the other (`eliminate`), without limits on time and without a solver.
//!
//! Priced are a node's FLOPs or bytes, whichever take longer, forward and backward (`price`), and the bytes of every
//! change of state on its axis (`states`): of values, of cotangents by the transposed change, of parameters from where
//! they are stored to where they are used (twice) and of their gradients back. Column and row parallelism, sequence
//! parallelism, FSDP, HSDP and expert parallelism are not named anywhere: they are what is cheapest.
//!
//! [`options`] trades time for memory. Its first stage is exact over strategies, stored states and what is kept, except
//! that computing a value again is charged for its own node alone; the second stage is exact over what is kept and computed
//! again under each of the strategies that the first finds (`remat`). So times and bytes of options are exact, and no option
//! beats the first stage's front, which is a bound.

mod block;
mod chain;
pub mod eliminate;
mod option;
pub mod pareto;
mod price;
mod problem;
mod remat;
mod states;
mod table;
#[cfg(test)]
mod tests;

pub use chain::{chain, walk, Chain};
pub use option::{annotate, BlockOption, Message};
pub use problem::{Cost, Term};
pub use states::{Place, State};
pub use table::{Role, Take};

use autoshard_ir::core::{Axis, Function};
use eliminate::minimize;
use problem::Problem;
use std::collections::BTreeSet;

/// Bytes of a stored parameter: a copy in bf16; gradient, master and two moments in f32: 2 + 4 + 4 + 4 + 4.
pub const BYTES_PER_PARAMETER: f64 = 18.0;

/// One axis of the mesh.
#[derive(Clone, Debug, PartialEq)]
pub struct MeshAxis {
    /// Name, as strategies print it.
    pub name: Axis,
    /// Ranks along it; at least 1.
    pub ways: usize,
    /// What it may do.
    pub role: Role,
}

impl MeshAxis {
    /// An axis.
    pub fn new(name: &str, ways: usize, role: Role) -> MeshAxis {
        MeshAxis { name: Axis::new(name), ways, role }
    }
}

/// The link of a mesh axis.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Link {
    /// Bytes/s of one rank in one direction.
    pub bandwidth: f64,
    /// Seconds of a message without bytes.
    pub latency: f64,
}

/// What a rank and its links sustain.
#[derive(Clone, Debug, PartialEq)]
pub struct Rates {
    /// FLOP/s of products.
    pub flops: f64,
    /// Bytes/s to memory.
    pub memory_bandwidth: f64,
    /// One per mesh axis, outermost (slowest) first.
    pub links: Vec<Link>,
    /// Part of the time of parameters' messages that nothing hides, 0 to 1.
    pub exposed_weights: f64,
    /// Bytes of an element of a gradient on its way: 4 where gradients are reduced in f32.
    pub gradient_bytes: f64,
}

impl Rates {
    fn without_latency(&self) -> Rates {
        Rates { links: self.links.iter().map(|l| Link { latency: 0.0, ..*l }).collect(), ..self.clone() }
    }
}

/// What a plan has to fit into.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limits {
    /// Bytes of a rank for one call: state, held for all micro-batches in flight, transient.
    pub bytes: f64,
    /// Micro-batches whose activations are held at once.
    pub in_flight: f64,
}

impl Limits {
    /// One micro-batch, and memory without end.
    pub const NONE: Limits = Limits { bytes: f64::INFINITY, in_flight: 1.0 };
}

/// Why there are no strategies.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum InnerError {
    /// A mesh that the search cannot work on.
    #[error("mesh of the inner search: {0}")]
    Mesh(String),
    /// A node whose rule does not hold, or that is a call.
    #[error("@{function}: %{value}: {message}")]
    Node {
        /// Function.
        function: String,
        /// First result of the node.
        value: String,
        /// What is wrong.
        message: String,
    },
    /// Nothing fits.
    #[error(
        "@{function}: no strategies fit {limit:.0} bytes a rank and call; the smallest need {need:.0}: use more ranks, \
         shorter sequences or fewer micro-batches in flight"
    )]
    Memory {
        /// Function.
        function: String,
        /// Bytes that are there.
        limit: f64,
        /// Bytes of the smallest plan that was found; without its transient bytes where already the others do not fit.
        need: f64,
    },
}

/// Undominated options of a call, fastest first. In order of the fields that count: seconds; bytes of state and of
/// what is held for all micro-batches in flight; transient bytes.
///
/// # Errors
/// [`InnerError`]: a mesh or node that does not hold, or nothing that fits the limits.
pub fn options(
    f: &Function,
    mesh: &[MeshAxis],
    rates: &Rates,
    limits: &Limits,
) -> Result<Vec<BlockOption>, InnerError> {
    check(mesh, rates)?;
    let mut p = Problem::new(f, mesh, rates, limits, true)?;
    let front = pareto::front(&p.terms, &p.domains, limits.bytes);
    let seeds: BTreeSet<Vec<usize>> = front.points.into_iter().map(|(_, values)| values).collect();
    let (mut drafts, mut need) = (Vec::new(), f64::INFINITY);
    for values in seeds {
        let base = option::base(&p, &values);
        let most = limits.bytes - base.bytes;
        for kept in remat::kept(&mut p, &values, most) {
            let draft = option::draft(&mut p, &values, &base, kept);
            need = need.min(draft.bytes + draft.transient);
            drafts.push(draft);
        }
    }
    drafts.retain(|d| d.bytes + d.transient <= limits.bytes);
    let kept = option::undominated(drafts);
    if kept.is_empty() {
        let need = if need.is_finite() { need } else { least_bytes(&p) };
        return Err(InnerError::Memory { function: f.name.clone(), limit: limits.bytes, need });
    }
    Ok(kept.into_iter().map(|d| option::finish(&mut p, d)).collect())
}

/// The strategies with the least seconds + `price` · bytes, nothing computed again; `price` is in seconds a byte.
/// The first of the pair is that sum.
///
/// # Errors
/// A mesh or node that does not hold.
pub fn cheapest(
    f: &Function,
    mesh: &[MeshAxis],
    rates: &Rates,
    limits: &Limits,
    price: f64,
) -> Result<(f64, BlockOption), InnerError> {
    Prepared::new(f, mesh, rates, limits).map(|mut p| p.cheapest(price))?
}

/// A function with its tables, to be solved at several prices.
pub struct Prepared<'f>(Problem<'f>);

impl<'f> Prepared<'f> {
    /// # Errors
    /// A mesh or node that does not hold.
    pub fn new(
        f: &'f Function,
        mesh: &'f [MeshAxis],
        rates: &'f Rates,
        limits: &'f Limits,
    ) -> Result<Prepared<'f>, InnerError> {
        check(mesh, rates)?;
        Ok(Prepared(Problem::new(f, mesh, rates, limits, true)?))
    }

    /// As [`cheapest`].
    ///
    /// # Errors
    /// No strategies go together.
    pub fn cheapest(&mut self, price: f64) -> Result<(f64, BlockOption), InnerError> {
        let (sum, values) = self.solve(price);
        if !sum.is_finite() {
            let function = self.0.block.f.name.clone();
            return Err(InnerError::Node {
                function,
                value: String::new(),
                message: "no strategies go together".into(),
            });
        }
        Ok((sum, self.written(&values, price)))
    }

    /// An assignment of all variables written out, everything kept as it is used.
    pub fn option(&mut self, values: &[usize]) -> BlockOption {
        self.written(values, 0.0)
    }

    fn written(&mut self, values: &[usize], price: f64) -> BlockOption {
        let p = &mut self.0;
        let base = option::base(p, values);
        let kept = remat::as_priced(p, values, price);
        let draft = option::draft(p, values, &base, kept);
        option::finish(p, draft)
    }

    /// The least sum and the values of all variables.
    pub fn solve(&self, price: f64) -> (f64, Vec<usize>) {
        let tables = self.0.terms.iter().map(|t| t.table(price, 2)).collect();
        let reduced = minimize(tables, &self.0.domains, &[]);
        (reduced.table.costs[0], reduced.assignment(&[], &self.0.domains))
    }

    /// The tables, and how many values each variable has.
    pub fn tables(&self) -> (&[Term], &[usize]) {
        (&self.0.terms, &self.0.domains)
    }
}

/// Bytes of state and of what is held, in the smallest plan that computes nothing but inputs again.
fn least_bytes(p: &Problem) -> f64 {
    let bytes = |t: &Term| {
        let least = |i: usize| t.columns.iter().map(|c| c[i].bytes).fold(f64::INFINITY, f64::min);
        eliminate::Table { vars: t.vars.clone(), costs: (0..t.columns[0].len()).map(least).collect() }
    };
    minimize(p.terms.iter().map(bytes).collect(), &p.domains, &[]).table.costs[0]
}

fn check(mesh: &[MeshAxis], rates: &Rates) -> Result<(), InnerError> {
    let fail = |m: String| Err(InnerError::Mesh(m));
    if mesh.len() > states::MAX_AXES {
        return fail(format!("{} axes; at most {} can be searched at once", mesh.len(), states::MAX_AXES));
    }
    if rates.links.len() != mesh.len() {
        return fail(format!("{} axes, but rates of {} links; give one link an axis", mesh.len(), rates.links.len()));
    }
    let positive = |x: f64| x.is_finite() && x > 0.0;
    if !positive(rates.flops) || !positive(rates.memory_bandwidth) || rates.links.iter().any(|l| !positive(l.bandwidth))
    {
        return fail("a rate is not a positive number; give FLOP/s and bytes/s".to_string());
    }
    for (i, a) in mesh.iter().enumerate() {
        if a.ways == 0 || mesh[..i].iter().any(|b| b.name == a.name) {
            return fail(format!("axis {} has no ranks or comes twice", a.name));
        }
    }
    Ok(())
}

//! Simplification: the same numbers from less work.
//!
//! Two things live here. [`simplify`] is a pass of the compile path: one walk over the nodes that folds
//! constants, merges equal nodes and drops dead ones, at every stage of a module. [`offer`] looks further: it
//! searches for a cheaper body of one function, and a caller may take what it finds.
//!
//! # How an offer is found
//!
//! Take the adapter of a low-rank update, folded into its weight:
//!
//! ```text
//! func @f(%x: f32[m=512, d=1024], %down: f32[r=8, d], %up: f32[f=1024, r]) -> (f32[m, f]) {
//!   %w = einsum %up, %down {spec="f r, r d -> f d"} : f32[f, d]
//!   %y = einsum %x, %w {spec="m d, f d -> m f"} : f32[m, f]
//!   return %y
//! }
//! ```
//!
//! 1. *Read* (`body`). Every result of every node becomes a term: its operation, attributes and
//!    types, and the *classes* of its operands. A class is a set of terms of one value. At first every class has
//!    one term. Parameters are terms without operands, and nothing is known of their values.
//! 2. *Rewrite* (`rules`). A rule says of a term which other terms are equal to it; these join its class, and
//!    the old ones stay. `associate` finds that %y is also up·(down·x), and adds both products. Because nothing
//!    is thrown away the order of rules does not matter, and a step that costs more may lead to one that costs
//!    less. Rules run in rounds until nothing is new or a limit of [`Limits`] is met.
//! 3. *Choose* (`extract`). One term for each class that the results need, so that the cost is low: FLOPs and
//!    bytes by the operations' declared rules (`cost`), each node once however many read it.
//! 4. *Write* (`body`). The chosen terms become nodes again. Values that are still computed keep their names.
//! 5. *Compare*. The new body is verified and priced like the old one, and is offered only if it costs less.
//!    Else the answer is why not ([`Kept`]).
//!
//! ```
//! # use autoshard_ir::text;
//! # use autoshard_passes::simplify::{offer, Limits};
//! let source = r#"
//! func @f(%x: f32[m=512, d=1024], %down: f32[r=8, d], %up: f32[f=1024, r]) -> (f32[m, f]) {
//!   %w = einsum %up, %down {spec="f r, r d -> f d"} : f32[f, d]
//!   %y = einsum %x, %w {spec="m d, f d -> m f"} : f32[m, f]
//!   return %y
//! }"#;
//! let module = text::parse(source, "low-rank").unwrap();
//! let offer = offer(&module.functions[0], &Limits::default()).unwrap();
//! assert_eq!(offer.rules, ["associate"]);
//! assert!(offer.after.flops < offer.before.flops / 60.0);
//! ```
//!
//! # What rules may do
//!
//! A rule matches on a term's form, which is read off the operation's declared rule: scalar
//! functions, copies (transposes, broadcasts), sums of products, constants. It never asks for an operation's
//! name. All else is opaque: composites, tables, nodes that follow their operands' state. Operands of opaque
//! nodes may still change; what is inside may not.
//!
//! - All terms of a class have one type, names of dimensions included, because composites and strategies know
//!   dimensions by name. A rule whose result has another type changes nothing.
//! - [`Exactness::Exact`] rules keep every bit, the sign of a zero apart.
//! - [`Exactness::Reassociates`] rules are identities of real numbers that round elsewhere. They apply where all
//!   is f32 or f64. A bf16 value is its rounding and is never computed otherwise.
//! - Shard states never enter: a function that is placed, split over a mesh, or has calls or collectives is
//!   refused. So is one that gradients were taken of, since its backward names its values.
//!
//! [`simplify`] uses none of this. An exact rule keeps the bits of a function's results, but the gradient of the
//! new body may add the same numbers in another order, and the compile path promises that a model's numbers
//! come from its text. To train on an offered body is the caller's decision.
//!
//! # Limits
//!
//! Terms and rounds decide what is found, so the same input gives the same offer on every machine. Seconds only
//! refuse: a search that takes too long offers nothing ([`Kept::TimedOut`]).
//!
//! Products that share an input (q, k, v; gate, up) are not joined here: that would copy weights. Their group is
//! made by fusion.

mod body;
mod cost;
mod extract;
mod fold;
#[cfg(test)]
mod laws;
mod offer;
mod rules;
mod term;

pub use cost::{dag_cost, Cost};
pub use offer::{offer, offer_by, offers, Kept, Limits, Offer, Stop};
pub use rules::{Exactness, Rule, RULES};

use autoshard_ir::core::Module;

/// Folds constants, merges equal nodes and drops dead ones, in every function. Numbers stay as they are.
pub fn simplify(module: &Module) -> Module {
    let functions = module.functions.iter().map(fold::fold).collect();
    Module { functions, ..module.clone() }
}

//! Calls: the unit of repetition, of weight gathering and of rematerialisation.

use crate::core::{Gradient, OpDef, Semantics, Template};

/// `call @f(...)`.
pub static CALL: OpDef = OpDef {
    name: "call",
    doc: "Runs a function of the module.",
    attrs: &[],
    template: Template::Call,
    semantics: Semantics::Call,
    gradient: Gradient::None("calls are differentiated function by function"),
};

//! The constants of a framework as things to fit: their ranges, and where they start.
//!
//! The start is what a mechanism without losses would have, or what was found for the framework's parent, never
//! a value in the product: constants that are judged on groups that they have not seen must not know them from
//! their start.

use super::fit::Knob;
use autoshard_cost::stack::{Constant, ConstantName, Stack};

/// Range, start and meaning of a constant.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Range {
    /// Which.
    pub name: ConstantName,
    /// How it prints.
    pub label: &'static str,
    /// Its unit; empty for a ratio.
    pub unit: &'static str,
    /// The least value that makes sense.
    pub low: f64,
    /// The greatest.
    pub high: f64,
    /// Where a search starts.
    pub start: f64,
    /// Why this range.
    pub why: &'static str,
}

/// Every constant that a stack may fit.
pub const RANGES: [Range; 8] = [
    range(
        ConstantName::Products,
        "products",
        "",
        (0.8, 1.8, 1.0),
        "tables are bursts of warm caches: training's operands are colder, transposed, accumulated in fp32",
    ),
    range(
        ConstantName::Attention,
        "attention",
        "",
        (0.7, 2.5, 1.0),
        "kernels of other versions than the table's, and their backward",
    ),
    range(
        ConstantName::Loops,
        "loops",
        "",
        (0.8, 4.0, 1.2),
        "unfused kernels read and write what a group keeps in registers",
    ),
    range(
        ConstantName::LaunchGap,
        "launch gap",
        "s",
        (0.0, 80e-6, 20e-6),
        "0 with graphs or a host far ahead; an eager host issues an operation in 5–30 µs, and in more with hooks, timers and Python checks around each",
    ),
    range(
        ConstantName::Collectives,
        "collectives",
        "",
        (0.7, 3.0, 1.0),
        "tables and fits are of idle devices; other traffic and stragglers slow a message down",
    ),
    range(
        ConstantName::Contention,
        "contention",
        "",
        (1.0, 1.6, 1.1),
        "communication takes SMs and memory bandwidth; 1.13 measured (Galvatron), 1.02–1.15 assumed (Calculon)",
    ),
    range(
        ConstantName::StepOverhead,
        "step overhead",
        "s",
        (0.0, 1.0, 0.01),
        "logging, data, clipping, synchronisation once a step",
    ),
    range(
        ConstantName::Optimizer,
        "optimizer",
        "",
        (0.5, 4.0, 1.0),
        "passes beyond the update's own bytes: zeroing, norm, unscaling, copies",
    ),
];

const fn range(
    name: ConstantName,
    label: &'static str,
    unit: &'static str,
    (low, high, start): (f64, f64, f64),
    why: &'static str,
) -> Range {
    Range { name, label, unit, low, high, start, why }
}

/// The range of a constant.
pub fn range_of(name: ConstantName) -> &'static Range {
    // The array holds every name; a test holds it to that.
    RANGES.iter().find(|r| r.name == name).unwrap_or(&RANGES[0])
}

/// Knobs of the constants that a stack names. They start at `parent`'s values, where it has found some, so that
/// a framework with few rows stays near the one that it is made of.
pub fn knobs(stack: &Stack, parent: &[Constant]) -> Vec<Knob> {
    let one = |c: &Constant| {
        let r = range_of(c.name);
        let start = parent.iter().find(|p| p.name == c.name).map_or(r.start, |p| p.value.clamp(r.low, r.high));
        Knob { name: r.label.into(), unit: r.unit, low: r.low, high: r.high, start, fixed: false }
    };
    stack.constants.iter().map(one).collect()
}

/// The stack with these values of its constants, in their order.
pub fn with_values(stack: &Stack, values: &[f64]) -> Stack {
    let constants = stack.constants.iter().zip(values).map(|(c, v)| Constant { name: c.name, value: *v });
    Stack { constants: constants.collect(), ..stack.clone() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_constant_has_a_range_that_holds_its_start() {
        use ConstantName::*;
        for name in [Products, Attention, Loops, LaunchGap, Collectives, Contention, StepOverhead, Optimizer] {
            let r = range_of(name);
            assert_eq!(r.name, name);
            assert!(r.low <= r.start && r.start <= r.high && r.low < r.high, "{r:?}");
        }
    }
}

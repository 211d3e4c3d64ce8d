//! The rules: one table, and how a row becomes a rewrite of the e-graph.
//!
//! A rule is a function from a term to terms that are equal to it. It looks at forms alone
//! ([`Form`](super::term::Form)), and its condition is in the row. Whether a rule keeps every bit is part of
//! the row too: an [`Exactness::Exact`] rule keeps all numbers (the sign of a zero apart), an
//! [`Exactness::Reassociates`] rule is an identity of real numbers, rounds in other places, and therefore
//! applies to f32 and f64 only: a bf16 value is its rounding.

mod moves;
mod pointwise;
mod products;

use super::term::{terms, ty, Graph, Heads, Term};
use autoshard_ir::DType;
use egg::{Applier, Id, PatternAst, Rewrite, SearchMatches, Searcher, Subst, Symbol, Var};

/// What a rule does to the numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Exactness {
    /// The same bits, the sign of a zero apart, in the order of sums of the reference interpreter.
    Exact,
    /// The same real number, rounded in other places.
    Reassociates,
}

/// A row of the table.
#[derive(Clone, Copy)]
pub struct Rule {
    /// Name, as offers list it.
    pub name: &'static str,
    /// What it matches.
    pub left: &'static str,
    /// What is equal to that.
    pub right: &'static str,
    /// When; empty if always.
    pub condition: &'static str,
    /// What it does to the numbers.
    pub exactness: Exactness,
    /// The classes that are equal to this term of this class.
    apply: fn(&mut Graph, Id, &Term) -> Vec<Id>,
}

impl std::fmt::Debug for Rule {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {} = {}", self.name, self.left, self.right)
    }
}

/// Declares rows: name, exactness, left = right, condition, function.
macro_rules! rules {
    ($($name:literal, $exactness:ident, $left:literal = $right:literal, $condition:literal, $apply:expr;)*) => {
        /// Every rule. `x`, `y` are values, `c`, `k` constants, `A·B` is a sum of products over named factors.
        pub const RULES: &[Rule] = &[
            $(Rule {
                name: $name,
                left: $left,
                right: $right,
                condition: $condition,
                exactness: Exactness::$exactness,
                apply: $apply,
            },)*
        ];
    };
}

rules! {
    "constant", Exact, "f(c, k, ..)" = "the number", "copies and scalar functions; the number is finite",
        pointwise::constant;
    "commute", Exact, "f(x, y)" = "f(y, x)", "f is +, ·, max, min or =; x and y name their dimensions alike",
        pointwise::commute;
    "same-operands", Exact, "f(x, x)" = "x", "f is max or min, or a choice between x and x", pointwise::same_operands;
    "neutral", Exact, "x + 0, x − 0, x·1, x/1" = "x", "", pointwise::neutral;
    "double-negation", Exact, "−(−x)" = "x", "", pointwise::double_negation;
    "negation", Exact, "−x" = "x·(−1) + 0", "", pointwise::negation;
    "constant-operand", Exact, "x + c, x − c, c − x, x·c, x/c" = "x·k + l", "x/c: c is a power of two",
        pointwise::constant_operand;
    "cast-cast", Exact, "cast(cast(x))" = "cast(x)", "the inner cast loses nothing", pointwise::cast_cast;
    "move-move", Exact, "move(move(x))" = "move(x)", "", moves::twice;
    "map-of-moves", Exact, "f(move(x), move(y), c)" = "move(f(x, y, c))", "the moves are alike", moves::map;
    "move-into-sum", Exact, "move(A)·B" = "A·B",
        "a repeated factor is in another operand; sums keep their order", moves::into_sum;
    "move-of-sum", Exact, "transpose(A·B)" = "A·B", "", moves::of_sum;
    "move-into-sum-reordered", Reassociates, "move(A)·B" = "A·B", "a repeated factor is in another operand",
        moves::into_sum_reordered;
    "scale-scale", Reassociates, "(x·a + b)·c + d" = "x·ac + (bc + d)", "", pointwise::scale_scale;
    "scale-of-product", Reassociates, "(c·x)·y, (c·x)/y" = "c·(x·y), c·(x/y)", "", pointwise::scale_of_product;
    "scale-of-addition", Reassociates, "c·x ± c·y" = "c·(x ± y)", "", pointwise::scale_of_addition;
    "scale-out-of-sum", Reassociates, "(c·A)·B" = "c·(A·B)", "", products::scale_out;
    "scale-into-sum", Reassociates, "c·(A·B)" = "(c·A)·B", "", products::scale_in;
    "associate", Reassociates, "(A·B)·C" = "A·(B·C)", "", products::associate;
    "factor-out", Reassociates, "A·B ± A·C" = "A·(B ± C)", "", products::factor_out;
    "sum-of-sum", Reassociates, "Σ(A·B)" = "A·B with fewer factors", "", products::sum_of_sum;
    "sum-first", Reassociates, "A·B" = "(Σ A)·B", "Σ is over factors that only A has, and the result has not",
        products::sum_first;
    "sum-of-move", Reassociates, "Σ move(x)" = "n·Σ x", "n entries are repeated and summed", products::sum_of_move;
}

/// The rules up to this exactness.
pub(super) fn up_to(exactness: Exactness) -> impl Iterator<Item = &'static Rule> {
    RULES.iter().filter(move |r| r.exactness <= exactness)
}

/// The rule as a rewrite. `most` bounds the terms of the graph inside one application.
pub(super) fn rewrite(rule: &'static Rule, most: usize) -> Result<Rewrite<Term, Heads>, String> {
    Rewrite::new(rule.name, Every, Row { rule, most })
}

/// Finds every class: a rule's function says itself which terms it matches.
struct Every;

impl Searcher<Term, Heads> for Every {
    fn search_eclass_with_limit(&self, _: &Graph, eclass: Id, _: usize) -> Option<SearchMatches<'_, Term>> {
        Some(SearchMatches { eclass, substs: vec![Subst::default()], ast: None })
    }

    fn vars(&self) -> Vec<Var> {
        Vec::new()
    }
}

struct Row {
    rule: &'static Rule,
    most: usize,
}

impl Applier<Term, Heads> for Row {
    fn apply_one(
        &self,
        graph: &mut Graph,
        class: Id,
        _: &Subst,
        _: Option<&PatternAst<Term>>,
        name: Symbol,
    ) -> Vec<Id> {
        let mut changed = Vec::new();
        for term in terms(graph, class) {
            if graph.total_size() > self.most {
                break;
            }
            if self.rule.exactness == Exactness::Reassociates && !reassociates(graph, class, &term) {
                continue;
            }
            for equal in (self.rule.apply)(graph, class, &term) {
                // A class has one type. A value whose dimensions have other names is another value, because
                // composites and strategies speak of dimensions by name.
                if ty(graph, equal) == ty(graph, class) && graph.union_trusted(class, equal, name) {
                    changed.push(graph.find(class));
                }
            }
        }
        changed
    }
}

/// Whether sums of this term may be rounded in another order.
fn reassociates(graph: &Graph, class: Id, term: &Term) -> bool {
    let wide = |id: Id| matches!(ty(graph, id).dtype, DType::F32 | DType::F64);
    wide(class) && term.inputs.iter().all(|i| wide(*i))
}

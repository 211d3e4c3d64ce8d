//! The text form: what every dump prints and every tool reads, `parse(print(m)) == m`.
//!
//! ```text
//! mesh @m = [dp: 2, tp.0: 2, tp.1: 2]                          ; a comment, to the end of the line
//! func @block(%x: f32[b=8, s=64, d=64], param %w: f32[d]) -> (f32[b, s, d]) {
//!   %a = rmsnorm %x, %w {eps=1e-5} : f32[b, s, d] @ {dp: b}
//!   %y = call @mlp(%a) : f32[b, s, d]
//!   return %y
//! }
//! func @block.bwd(...) -> (...) backward of @block (p0, c0) -> (0) { ... }
//! entry @block
//! ```
//!
//! A dimension is `name=size`, or the bare name for the size last given to it in this function;
//! `@axis·axis` (or `*`) after it is its placement, `partial(sum: tp)` after the brackets the axes
//! still to be reduced. Types are always printed. `@ {axis: factor}` or `@ follow` is a node's
//! strategy, `of %name` the forward node that it differentiates.
//!
//! The parser collects errors: after one it goes on at the next line, and a value whose definition
//! failed is not reported again where it is used. [`parse_template`] reads the bodies of composite
//! operations, which are written over a given element type and given sizes.

mod attrs;
mod cursor;
mod diagnostic;
mod node;
mod parse;
mod print;
mod template;
mod types;

pub use diagnostic::{Diagnostic, Diagnostics};
pub use parse::parse;
pub use print::{print, print_function, print_node};
pub use template::{parse_template, template_header, Header, HeaderParam, TemplateEnv};

/// Characters of function and value names.
pub(crate) fn name_char(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '$' | '-')
}

/// Characters of dimension names.
pub(crate) fn dim_char(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '_' | '\'')
}

/// Characters of axis, operation, attribute and factor names.
pub(crate) fn word_char(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '\'')
}

/// ` did you mean NAME?` for the candidate nearest to `name`, or nothing if none is near.
pub(crate) fn suggest<'c>(name: &str, sigil: &str, candidates: impl Iterator<Item = &'c str>) -> String {
    let limit = 1 + name.len() / 3;
    candidates
        .map(|c| (distance(name, c), c))
        .filter(|(d, _)| *d <= limit)
        .min()
        .map_or(String::new(), |(_, c)| format!("; did you mean {sigil}{c}?"))
}

/// Edit distance. Names beyond 64 bytes count as far apart: nobody mistypes those.
fn distance(a: &str, b: &str) -> usize {
    if a.len() > 64 || b.len() > 64 {
        return usize::MAX;
    }
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.bytes().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.bytes().enumerate() {
            let replace = diagonal + usize::from(x != y);
            diagonal = row[j + 1];
            row[j + 1] = replace.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn suggestions_are_near_or_absent() {
        let known = ["attention", "add", "einsum"];
        assert_eq!(suggest("atention", "", known.into_iter()), "; did you mean attention?");
        assert_eq!(suggest("zzzzzz", "", known.into_iter()), "");
        assert_eq!(distance("kitten", "sitting"), 3);
    }
}

//! Templates: bodies of composite operations, written over an element type `T`, spliced dimensions
//! `..`, given sizes and the attributes of the operation.

use super::cursor::{Cursor, Parsed};
use super::parse::Parser;
use super::{word_char, Diagnostic, Diagnostics};
use crate::core::{Attrs, DType, Dim, Function};

/// File name that errors in templates carry.
const FILE: &str = "<template>";

/// What a template is instantiated with.
///
/// In types, `T` and `A` are `dtype` ([`crate::ops::compose`] rounds what a header calls `T` where that
/// is a narrower type), `..` splices `rest`, a dimension without size takes its size from
/// `dims`, a size may be `$name` (an integer attribute) or `#name` (the length of a list). In
/// attribute values, `$name` is the attribute of that name, `1-$name` one minus it, `#name` the length
/// of a list, `<d>` the size of dimension d, `1/<d>` its inverse, `<..>` the sizes of `rest`, and `$T`
/// the name of the element type; lists inside lists are spliced. In texts, `..` is replaced by the
/// names of `rest`. Result types of nodes may be left out: the rule gives them.
pub struct TemplateEnv<'a> {
    /// Element type of the arithmetic.
    pub dtype: DType,
    /// Dimensions `..`.
    pub rest: Vec<Dim>,
    /// Sizes of the other dimensions of the header.
    pub dims: Vec<(String, usize)>,
    /// Attributes of the operation.
    pub attrs: &'a Attrs,
}

/// A parameter of a template, its type not yet read: sizes are unknown until operands are matched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeaderParam {
    /// Name without the `%`.
    pub name: String,
    /// Element type as written: `T`, `f32`, ...
    pub dtype: String,
    /// Dimensions as written: `..`, `d`, `s=$size`, ...
    pub dims: Vec<String>,
}

/// The header of a template.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// Parameters.
    pub params: Vec<HeaderParam>,
    /// Element types of the results, as written.
    pub results: Vec<String>,
}

/// Reads the one function of a template.
pub fn parse_template(source: &str, env: &TemplateEnv) -> Result<Function, Diagnostics> {
    let module = Parser::new(source, FILE, Some(env)).module()?;
    match <[Function; 1]>::try_from(module.functions) {
        Ok([function]) => Ok(function),
        Err(functions) => {
            let message = format!("a template is one function, this text has {}", functions.len());
            Err(Diagnostics(vec![Diagnostic::new(message, FILE, source, 0, 0)]))
        }
    }
}

/// Reads only the header of a template: patterns to match operands with, and the types of results.
pub fn template_header(source: &str) -> Result<Header, Diagnostics> {
    let mut cur = Cursor::new(source);
    cur.multiline = true;
    header(&mut cur).map_err(|fault| Diagnostics(super::parse::diagnostic(fault, FILE, source).into_iter().collect()))
}

fn header(cur: &mut Cursor) -> Parsed<Header> {
    let mut params = Vec::new();
    if !cur.eat_word("func") {
        return cur.unexpected("`func`");
    }
    cur.sigil("@", "the name of the function, as in `@name`")?;
    cur.expect("(", "after the function's name")?;
    while !cur.eat(")") {
        if !params.is_empty() {
            cur.expect(",", "or `)` after a parameter")?;
        }
        cur.eat_word("param");
        let (name, _) = cur.sigil("%", "a parameter, as in `%x: T[d]`")?;
        cur.expect(":", "after the parameter's name")?;
        let (dtype, dims) = pattern(cur)?;
        params.push(HeaderParam { name: name.to_string(), dtype, dims });
    }
    cur.expect("->", "and the types of the results")?;
    cur.expect("(", "before the types of the results")?;
    let mut results = Vec::new();
    while !cur.eat(")") {
        if !results.is_empty() {
            cur.expect(",", "or `)` after a type")?;
        }
        results.push(pattern(cur)?.0);
    }
    Ok(Header { params, results })
}

/// An element type and dimensions as they are written.
fn pattern(cur: &mut Cursor) -> Parsed<(String, Vec<String>)> {
    let (dtype, _) = cur.word(word_char, "an element type")?;
    cur.expect("[", "after the element type")?;
    let (dims, _) = cur.run(|c| !matches!(c, ']' | '(' | ')' | '{' | '}'));
    cur.expect("]", "after the dimensions")?;
    let dims = dims.split(',').map(|d| d.trim().to_string()).filter(|d| !d.is_empty()).collect();
    Ok((dtype.to_string(), dims))
}

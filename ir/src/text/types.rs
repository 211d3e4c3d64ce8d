//! Types: element type, dimensions with sizes and placement, partial axes.

use super::cursor::{fault, Parsed, Span};
use super::parse::Parser;
use super::{dim_char, word_char};
use crate::core::{Attr, Axis, BinaryMonoid, DType, Dim, Partial, Type};
use crate::verify::check_type;

impl Parser<'_> {
    /// A type.
    pub(super) fn ty(&mut self) -> Parsed<Type> {
        self.cur.space();
        let start = self.cur.pos;
        let dtype = self.dtype()?;
        self.cur.expect("[", "after the element type")?;
        let mut dims = Vec::new();
        if !self.cur.eat("]") {
            loop {
                self.dim(&mut dims)?;
                if self.cur.eat("]") {
                    break;
                }
                self.cur.expect(",", "or `]` after a dimension")?;
            }
        }
        let partial = self.partial()?;
        let ty = Type { dtype, dims, partial };
        match check_type(&ty, &self.mesh) {
            Ok(()) => Ok(ty),
            Err(message) => fault(self.cur.span(start), message),
        }
    }

    fn dtype(&mut self) -> Parsed<DType> {
        let (name, span) = self.cur.word(word_char, "an element type")?;
        if let (Some(env), "T" | "A") = (self.env, name) {
            return Ok(env.dtype);
        }
        match DType::from_name(name) {
            Some(dtype) => Ok(dtype),
            None => {
                let known: Vec<_> = DType::ALL.iter().map(|d| d.name()).collect();
                fault(span, format!("unknown element type `{name}`; use one of {}", known.join(", ")))
            }
        }
    }

    /// One dimension; `..` in a template is as many as the environment says.
    fn dim(&mut self, dims: &mut Vec<Dim>) -> Parsed<()> {
        if let Some(env) = self.env {
            if self.cur.eat("..") {
                dims.extend(env.rest.iter().cloned());
                return Ok(());
            }
        }
        let (name, span) = self.cur.word(dim_char, "a dimension name")?;
        let size = if self.cur.eat("=") {
            let size = self.size()?;
            self.scope.sizes.insert(name.to_string(), size);
            size
        } else {
            self.size_of(name, span)?
        };
        let axes = if self.cur.eat("@") { self.axes()? } else { Vec::new() };
        dims.push(Dim { name: name.to_string(), size, axes });
        Ok(())
    }

    /// The size last given to a dimension name.
    pub(super) fn size_of(&self, name: &str, span: Span) -> Parsed<usize> {
        match self.scope.sizes.get(name) {
            Some(size) => Ok(*size),
            None => fault(
                span,
                format!("the size of dimension `{name}` is not known yet; write `{name}=SIZE` where it first appears"),
            ),
        }
    }

    fn size(&mut self) -> Parsed<usize> {
        if self.env.is_some() && (self.cur.sees("$") || self.cur.sees("#")) {
            let start = self.cur.pos;
            let value = self.substitution()?;
            let size = match value {
                Attr::Int(v) => usize::try_from(v).ok(),
                _ => None,
            };
            return match size {
                Some(size) => Ok(size),
                None => fault(self.cur.span(start), format!("a size must be an integer above 0, not {value:?}")),
            };
        }
        let (text, span) = self.cur.word(|c| c.is_ascii_alphanumeric(), "a size")?;
        match text.parse() {
            Ok(size) => Ok(size),
            Err(e) => fault(span, format!("`{text}` is not a size: {e}")),
        }
    }

    /// `dp·fsdp`.
    fn axes(&mut self) -> Parsed<Vec<Axis>> {
        let mut axes = Vec::new();
        loop {
            let (name, _) = self.cur.word(word_char, "a mesh axis")?;
            axes.push(Axis::new(name));
            if !self.cur.eat("·") && !self.cur.eat("*") {
                return Ok(axes);
            }
        }
    }

    fn partial(&mut self) -> Parsed<Option<Partial>> {
        if !self.cur.eat_word("partial") {
            return Ok(None);
        }
        self.cur.expect("(", "after `partial`")?;
        let (name, span) = self.cur.word(word_char, "`sum` or `max`")?;
        let monoid = match name {
            "sum" => BinaryMonoid::Sum,
            "max" => BinaryMonoid::Max,
            _ => return fault(span, format!("unknown reduction `{name}`; use `sum` or `max`")),
        };
        self.cur.expect(":", "before the partial axes")?;
        let mut axes = self.axes()?;
        self.cur.expect(")", "after the partial axes")?;
        self.mesh.sort(&mut axes);
        Ok(Some(Partial { monoid, axes }))
    }
}

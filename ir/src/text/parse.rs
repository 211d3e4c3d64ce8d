//! The parser: modules, meshes and functions. Statements are in [`super::node`].

use super::cursor::{fault, Cursor, Fault, Parsed, Span};
use super::{suggest, word_char, Diagnostic, Diagnostics, TemplateEnv};
use crate::core::{Axis, Backward, Function, Module, ParamOf, Type, ValueId};
use crate::mesh::Mesh;
use crate::verify::check_mesh;
use std::collections::{HashMap, HashSet};

/// Errors after which the parser gives up.
const MAX_ERRORS: usize = 20;

/// Reads a module. `file` is the name that errors carry.
pub fn parse(source: &str, file: &str) -> Result<Module, Diagnostics> {
    // Windows editors begin files with a byte order mark.
    let source = source.strip_prefix('\u{feff}').unwrap_or(source);
    Parser::new(source, file, None).module()
}

/// What a call needs to know of a function.
pub(super) struct Signature {
    /// Parameter types.
    pub params: Vec<Type>,
    /// Result types.
    pub results: Vec<Type>,
}

/// What is known inside the function being read.
#[derive(Default)]
pub(super) struct Scope {
    /// The function so far.
    pub function: Function,
    /// Result types that the header promises.
    pub results: Vec<Type>,
    /// Values by name, and where they were defined.
    pub values: HashMap<String, (ValueId, usize)>,
    /// Names whose definition failed: their uses are no news.
    pub broken: HashSet<String>,
    /// Last size given to each dimension name.
    pub sizes: HashMap<String, usize>,
}

/// State of one parse.
pub(super) struct Parser<'s> {
    pub cur: Cursor<'s>,
    pub mesh: Mesh,
    /// What templates substitute; `None` for modules.
    pub env: Option<&'s TemplateEnv<'s>>,
    /// Functions whose header was read; `None` for those whose header failed.
    pub signatures: HashMap<String, Option<Signature>>,
    pub scope: Scope,
    source: &'s str,
    file: &'s str,
    functions: Vec<Function>,
    entry: Option<(String, Span)>,
    errors: Vec<Diagnostic>,
}

/// The diagnostic of a fault, unless it is a consequence of another.
pub(super) fn diagnostic(fault: Fault, file: &str, source: &str) -> Option<Diagnostic> {
    match fault {
        Fault::At(span, message) => Some(Diagnostic::new(message, file, source, span.start, span.end)),
        Fault::Silent => None,
    }
}

impl<'s> Parser<'s> {
    pub(super) fn new(source: &'s str, file: &'s str, env: Option<&'s TemplateEnv<'s>>) -> Parser<'s> {
        Parser {
            cur: Cursor::new(source),
            mesh: Mesh::default(),
            env,
            signatures: HashMap::new(),
            scope: Scope::default(),
            source,
            file,
            functions: Vec::new(),
            entry: None,
            errors: Vec::new(),
        }
    }

    /// Reads the whole text.
    pub(super) fn module(mut self) -> Result<Module, Diagnostics> {
        loop {
            self.cur.multiline = false;
            self.cur.blank();
            if self.cur.at_end() || self.errors.len() >= MAX_ERRORS {
                break;
            }
            if let Err(fault) = self.item() {
                self.report(fault);
                self.skip_to_item();
            }
        }
        match self.finish() {
            Ok(module) if self.errors.is_empty() => Ok(module),
            Ok(_) => Err(Diagnostics(self.errors)),
            Err(fault) => {
                self.report(fault);
                Err(Diagnostics(self.errors))
            }
        }
    }

    pub(super) fn report(&mut self, fault: Fault) {
        if self.errors.len() < MAX_ERRORS {
            self.errors.extend(diagnostic(fault, self.file, self.source));
        }
    }

    fn item(&mut self) -> Parsed<()> {
        if self.cur.eat_word("func") {
            self.function()
        } else if self.cur.eat_word("mesh") {
            self.mesh_line()
        } else if self.cur.eat_word("entry") {
            let (name, span) = self.cur.sigil("@", "a function, as in `entry @step`")?;
            if self.entry.replace((name.to_string(), span)).is_some() {
                return fault(span, "a second entry; a module has one");
            }
            self.end_of_line("after the entry")
        } else {
            self.cur.unexpected("`mesh`, `func` or `entry`")
        }
    }

    /// After an error outside a body: on to the next line that starts an item.
    fn skip_to_item(&mut self) {
        self.cur.multiline = false;
        loop {
            self.cur.skip_line();
            if self.cur.at_end() || self.sees_item() {
                return;
            }
        }
    }

    /// Lines from number `first` on, with their numbers.
    pub(super) fn source_lines(&self, first: usize) -> impl Iterator<Item = (usize, &'s str)> {
        self.source.lines().enumerate().map(|(i, l)| (i + 1, l)).skip(first - 1)
    }

    pub(super) fn sees_item(&mut self) -> bool {
        ["func", "mesh", "entry"].into_iter().any(|w| self.cur.sees_word(w))
    }

    pub(super) fn end_of_line(&mut self, context: &str) -> Parsed<()> {
        self.cur.space();
        if self.cur.at_end() || self.cur.rest().starts_with('\n') {
            return Ok(());
        }
        self.cur.unexpected(&format!("the end of the line {context}"))
    }

    /// What only the whole text decides: the entry, and that there is something.
    fn finish(&mut self) -> Parsed<Module> {
        let end = Span { start: self.source.len(), end: self.source.len() };
        let entry = match self.entry.take() {
            Some((name, _)) if self.signatures.contains_key(&name) => name,
            Some((name, span)) => {
                let hint = suggest(&name, "@", self.signatures.keys().map(String::as_str));
                return fault(span, format!("entry @{name} is not a function of this module{hint}"));
            }
            None if self.signatures.len() == 1 => self.signatures.keys().next().cloned().unwrap_or_default(),
            // An earlier error may be why: do not ask for what is there.
            None if !self.errors.is_empty() => return Err(Fault::Silent),
            None if self.signatures.is_empty() => {
                return fault(end, "the text ends without a function; a module has at least one");
            }
            None => {
                return fault(end, "the module has several functions and no entry; add a line `entry @name`");
            }
        };
        Ok(Module { mesh: std::mem::take(&mut self.mesh), functions: std::mem::take(&mut self.functions), entry })
    }

    fn mesh_line(&mut self) -> Parsed<()> {
        let (_, span) = self.cur.sigil("@", "the name of the mesh, as in `mesh @m = [dp: 2]`")?;
        if !self.mesh.axes.is_empty() || !self.signatures.is_empty() {
            return fault(span, "the mesh must be given once, before the functions");
        }
        self.cur.expect("=", "after the name of the mesh")?;
        self.cur.expect("[", "before the axes")?;
        let start = self.cur.pos;
        self.cur.multiline = true;
        while !self.cur.eat("]") {
            if !self.mesh.axes.is_empty() {
                self.cur.expect(",", "or `]` after an axis")?;
            }
            let (name, _) = self.cur.word(word_char, "an axis name")?;
            self.cur.expect(":", "after the axis name")?;
            let (text, span) = self.cur.word(|c| c.is_ascii_digit(), "the size of the axis")?;
            let Ok(size) = text.parse() else { return fault(span, format!("axis size {text} is too large")) };
            self.mesh.axes.push((Axis::new(name), size));
        }
        self.cur.multiline = false;
        if let Err(message) = check_mesh(&self.mesh) {
            return fault(self.cur.span(start), message);
        }
        self.end_of_line("after the mesh")
    }

    fn function(&mut self) -> Parsed<()> {
        self.scope = Scope::default();
        if let Some(env) = self.env {
            let rest = env.rest.iter().map(|d| (d.name.clone(), d.size));
            self.scope.sizes = rest.chain(env.dims.iter().cloned()).collect();
        }
        let (name, span) = self.cur.sigil("@", "the name of the function, as in `@name`")?;
        let duplicate = self.signatures.contains_key(name);
        if !duplicate {
            self.signatures.insert(name.to_string(), None);
        }
        self.scope.function.name = name.to_string();
        self.cur.multiline = true;
        self.header()?;
        self.cur.multiline = false;
        if duplicate {
            self.report(Fault::At(span, format!("function @{name} is defined twice; rename one of them")));
        }
        let errors = self.errors.len();
        self.body()?;
        let function = std::mem::take(&mut self.scope.function);
        if !duplicate {
            let types = function.params.iter().map(|p| function.ty(p.value).clone()).collect();
            let signature = Signature { params: types, results: std::mem::take(&mut self.scope.results) };
            self.signatures.insert(function.name.clone(), Some(signature));
        }
        if errors == self.errors.len() {
            self.functions.push(function);
        }
        Ok(())
    }

    fn header(&mut self) -> Parsed<()> {
        self.cur.expect("(", "after the function's name")?;
        while !self.cur.eat(")") {
            if !self.scope.function.params.is_empty() {
                self.cur.expect(",", "or `)` after a parameter")?;
            }
            let trainable = self.cur.eat_word("param");
            let (name, span) = self.cur.sigil("%", "a parameter, as in `%x: f32[d=8]`")?;
            self.cur.expect(":", "after the parameter's name")?;
            let ty = self.ty()?;
            self.check_new(name, span)?;
            let value = self.scope.function.add_param(name, ty, trainable);
            self.scope.values.insert(name.to_string(), (value, span.start));
        }
        self.cur.expect("->", "and the result types after the parameters")?;
        self.cur.expect("(", "before the result types")?;
        while !self.cur.eat(")") {
            if !self.scope.results.is_empty() {
                self.cur.expect(",", "or `)` after a result type")?;
            }
            let ty = self.ty()?;
            self.scope.results.push(ty);
        }
        if self.cur.eat_word("backward") {
            self.scope.function.backward = Some(self.backward()?);
        }
        self.cur.expect("{", "before the body of the function")
    }

    /// `of @name (p0, r1, c0) -> (0, 1)`.
    fn backward(&mut self) -> Parsed<Backward> {
        if !self.cur.eat_word("of") {
            return self.cur.unexpected("`of` after `backward`");
        }
        let (of, _) = self.cur.sigil("@", "the forward function")?;
        let (of, mut params, mut results) = (of.to_string(), Vec::new(), Vec::new());
        self.cur.expect("(", "before the sources of the parameters")?;
        while !self.cur.eat(")") {
            if !params.is_empty() {
                self.cur.expect(",", "or `)` after a source")?;
            }
            let (word, span) = self.cur.word(word_char, "`p0`, `r0` or `c0`")?;
            let source = match (word.get(..1), word.get(1..).and_then(|n| n.parse().ok())) {
                (Some("p"), Some(i)) => ParamOf::Param(i),
                (Some("r"), Some(i)) => ParamOf::Result(i),
                (Some("c"), Some(i)) => ParamOf::Cotangent(i),
                _ => {
                    let message = "a source is `p0` (parameter 0 of the forward function), `r0` (result 0) or `c0` (its cotangent)";
                    return fault(span, message);
                }
            };
            params.push(source);
        }
        self.cur.expect("->", "after the sources of the parameters")?;
        self.cur.expect("(", "before the forward parameters that the results belong to")?;
        while !self.cur.eat(")") {
            if !results.is_empty() {
                self.cur.expect(",", "or `)` after a position")?;
            }
            let (word, span) = self.cur.word(word_char, "the position of a forward parameter")?;
            match word.parse() {
                Ok(i) => results.push(i),
                Err(_) => return fault(span, format!("`{word}` is not the position of a forward parameter")),
            }
        }
        Ok(Backward { of, params, results })
    }

    /// That a value may be called so.
    pub(super) fn check_new(&self, name: &str, span: Span) -> Parsed<()> {
        match self.scope.values.get(name) {
            None => Ok(()),
            Some((_, at)) => fault(
                span,
                format!(
                    "%{name} is already defined on line {}; every value has one definition, so rename this one",
                    self.cur.line(*at)
                ),
            ),
        }
    }

    /// The statements up to the closing brace. An error in one is reported, and reading goes on at
    /// the next line.
    fn body(&mut self) -> Parsed<()> {
        let mut returned = false;
        loop {
            self.cur.blank();
            let start = self.cur.pos;
            let name = &self.scope.function.name;
            if self.cur.at_end() {
                let message = format!("the text ends inside function @{name}; close it with `}}`");
                return fault(self.cur.span(start), message);
            }
            if self.cur.eat("}") {
                break;
            }
            if self.sees_item() {
                let message = format!("function @{} has no closing `}}`", self.scope.function.name);
                self.report(Fault::At(self.cur.span(start), message));
                return Ok(());
            }
            if self.errors.len() >= MAX_ERRORS {
                return Err(Fault::Silent);
            }
            let outcome = if returned {
                self.cur.unexpected("`}` after the return")
            } else if self.cur.eat_word("return") {
                returned = true;
                self.return_values(start)
            } else {
                self.statement()
            };
            if let Err(fault) = outcome.and_then(|()| self.end_of_statement()) {
                self.report(fault);
                if self.skip_statement(start) {
                    returned = true;
                    break;
                }
            }
        }
        if returned {
            return Ok(());
        }
        let start = self.cur.pos - 1;
        fault(
            self.cur.span(start),
            format!("function @{} has no return; end it with `return %value, ...`", self.scope.function.name),
        )
    }

    fn end_of_statement(&mut self) -> Parsed<()> {
        if self.cur.sees("}") {
            return Ok(());
        }
        self.end_of_line("after the statement")
    }

    /// Goes to the next line; whether the function was closed on the rest of this one.
    fn skip_statement(&mut self, start: usize) -> bool {
        self.cur.skip_line();
        let line = self.cur.since(start);
        let line = line.split(';').next().unwrap_or(line);
        line.matches('}').count() > line.matches('{').count()
    }
}

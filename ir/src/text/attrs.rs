//! Attribute lists, and what templates substitute in them.

use super::cursor::{fault, Parsed};
use super::parse::Parser;
use super::{dim_char, word_char};
use crate::core::{Attr, Attrs, OpDef};
use crate::verify::{check_attr, missing_attr};

/// What substitutions in templates start with.
const SIGILS: [&str; 5] = ["$", "#", "<", "1/<", "1-$"];

impl Parser<'_> {
    /// `{name=value, ...}`, or nothing.
    pub(super) fn attrs(&mut self, op: &OpDef) -> Parsed<Attrs> {
        let mut attrs = Attrs::new();
        self.cur.space();
        let start = self.cur.pos;
        if self.cur.eat("{") && !self.cur.eat("}") {
            loop {
                self.attr(op, &mut attrs)?;
                if self.cur.eat("}") {
                    break;
                }
                self.cur.expect(",", "or `}` after an attribute")?;
            }
        }
        match missing_attr(op, &attrs) {
            None => Ok(attrs),
            Some(message) => fault(self.cur.span(start), message),
        }
    }

    fn attr(&mut self, op: &OpDef, attrs: &mut Attrs) -> Parsed<()> {
        let (name, span) = self.cur.word(word_char, "an attribute name")?;
        if attrs.get(name).is_some() {
            return fault(span, format!("attribute `{name}` is given twice"));
        }
        self.cur.expect("=", "after the attribute name")?;
        let value = self.attr_value()?;
        if let Err(message) = check_attr(op, name, &value) {
            return fault(self.cur.span(span.start), message);
        }
        attrs.0.push((name.to_string(), value));
        Ok(())
    }

    fn attr_value(&mut self) -> Parsed<Attr> {
        if self.cur.sees("\"") {
            return Ok(Attr::Str(self.text()?));
        }
        if self.cur.eat("[") {
            return self.list();
        }
        if self.env.is_some() && SIGILS.into_iter().any(|s| self.cur.sees(s)) {
            return self.substitution();
        }
        self.number()
    }

    /// What a template may write instead of a value: see [`super::TemplateEnv`].
    pub(super) fn substitution(&mut self) -> Parsed<Attr> {
        self.cur.space();
        let start = self.cur.pos;
        let found = SIGILS.into_iter().find(|s| self.cur.eat(s));
        let (Some(env), Some(sigil)) = (self.env, found) else { return self.cur.unexpected("a value") };
        if sigil.ends_with('<') {
            if sigil == "<" && self.cur.eat("..") {
                self.cur.expect(">", "after `<..`")?;
                return Ok(Attr::Ints(env.rest.iter().map(|d| d.size as i64).collect()));
            }
            let (name, span) = self.cur.word(dim_char, "a dimension name")?;
            let size = self.size_of(name, span)?;
            self.cur.expect(">", "after the dimension name")?;
            return Ok(if sigil == "<" { Attr::Int(size as i64) } else { Attr::Float(1.0 / size as f64) });
        }
        let (name, _) = self.cur.word(word_char, "an attribute name")?;
        let span = self.cur.span(start);
        if (sigil, name) == ("$", "T") {
            return Ok(Attr::Str(env.dtype.name().to_string()));
        }
        match (sigil, env.attrs.get(name)) {
            (_, None) => fault(span, format!("the operation was not given an attribute `{name}`")),
            ("$", Some(value)) => Ok(value.clone()),
            ("1-$", Some(Attr::Float(v))) => Ok(Attr::Float(1.0 - v)),
            ("1-$", Some(Attr::Int(v))) => Ok(Attr::Float(1.0 - *v as f64)),
            ("#", Some(Attr::Ints(v))) => Ok(Attr::Int(v.len() as i64)),
            ("#", Some(Attr::Floats(v))) => Ok(Attr::Int(v.len() as i64)),
            (_, Some(value)) => {
                fault(span, format!("attribute `{name}` is {value:?}, which `{sigil}` does not apply to"))
            }
        }
    }

    /// A list. It is one of real numbers if any entry is; in a template, lists in it are spliced.
    fn list(&mut self) -> Parsed<Attr> {
        let (mut ints, mut floats, mut real, mut first) = (Vec::new(), Vec::new(), false, true);
        while !self.cur.eat("]") {
            if !std::mem::take(&mut first) {
                self.cur.expect(",", "or `]` after a list entry")?;
            }
            self.cur.space();
            let start = self.cur.pos;
            let entry = match self.env {
                Some(_) if SIGILS.into_iter().any(|s| self.cur.sees(s)) => self.substitution()?,
                _ => self.number()?,
            };
            let (whole, number) = match entry {
                Attr::Int(v) => (vec![v], vec![v as f64]),
                Attr::Ints(v) => (v.clone(), v.iter().map(|v| *v as f64).collect()),
                Attr::Float(v) => (Vec::new(), vec![v]),
                Attr::Floats(v) => (Vec::new(), v),
                Attr::Str(_) => return fault(self.cur.span(start), "a list holds numbers, not texts"),
            };
            real |= whole.len() != number.len();
            ints.extend(whole);
            floats.extend(number);
        }
        Ok(if real { Attr::Floats(floats) } else { Attr::Ints(ints) })
    }

    fn number(&mut self) -> Parsed<Attr> {
        let accept = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '+' | '-');
        let (text, span) = self.cur.word(accept, "a value: a number, a text in quotes or a list")?;
        if let Ok(v) = text.parse::<i64>() {
            return Ok(Attr::Int(v));
        }
        let digits = text.trim_start_matches(['-', '+']);
        if digits.chars().all(|c| c.is_ascii_digit()) && !digits.is_empty() {
            return fault(
                span,
                format!("integer `{text}` does not fit in 64 bits; write `{text}.0` for a real number"),
            );
        }
        match text.parse::<f64>() {
            Ok(v) => Ok(Attr::Float(v)),
            Err(_) => fault(span, format!("`{text}` is neither a number nor a text in quotes")),
        }
    }

    fn text(&mut self) -> Parsed<String> {
        let start = self.cur.pos;
        self.cur.eat("\"");
        let mut out = String::new();
        let mut chars = self.cur.rest().char_indices();
        while let Some((i, c)) = chars.next() {
            match c {
                '"' => {
                    self.cur.pos += i + 1;
                    return Ok(self.splice_rest(out));
                }
                '\n' => break,
                '\\' => match chars.next().map(|(_, e)| e) {
                    Some('n') => out.push('\n'),
                    Some('r') => out.push('\r'),
                    Some('t') => out.push('\t'),
                    Some(e @ ('"' | '\\')) => out.push(e),
                    _ => {
                        let at = self.cur.pos + i;
                        let span = super::cursor::Span { start: at, end: at + 1 };
                        return fault(span, "unknown escape; use \\\", \\\\, \\n, \\r or \\t");
                    }
                },
                c => out.push(c),
            }
        }
        let span = super::cursor::Span { start, end: start + 1 };
        fault(span, "the text that starts here has no closing quote on its line")
    }

    /// In a template, `..` in a text stands for the names of the spliced dimensions.
    fn splice_rest(&self, text: String) -> String {
        let Some(env) = self.env.filter(|_| text.contains("..")) else { return text };
        let names: Vec<&str> = env.rest.iter().map(|d| d.name.as_str()).collect();
        let spliced = text.replace("..", &names.join(" "));
        spliced.split_whitespace().collect::<Vec<_>>().join(" ")
    }
}

//! A position in the source. There is no token list: what `1e-5` or `2x` is depends on where it
//! stands (a number, a dimension), so each rule of the grammar reads the characters it accepts.

/// A range of bytes of the source.
#[derive(Clone, Copy, Debug)]
pub(super) struct Span {
    /// First byte.
    pub start: usize,
    /// After the last byte.
    pub end: usize,
}

/// Why a rule of the grammar did not match.
#[derive(Debug)]
pub(super) enum Fault {
    /// An error to report.
    At(Span, String),
    /// A consequence of an error already reported.
    Silent,
}

pub(super) type Parsed<T> = Result<T, Fault>;

/// An error about `span`.
pub(super) fn fault<T>(span: Span, message: impl Into<String>) -> Parsed<T> {
    Err(Fault::At(span, message.into()))
}

/// The reading position.
pub(super) struct Cursor<'s> {
    src: &'s str,
    /// Byte offset.
    pub pos: usize,
    /// Whether newlines are space (function headers) or end a statement (bodies).
    pub multiline: bool,
}

impl<'s> Cursor<'s> {
    /// At the start of `src`.
    pub fn new(src: &'s str) -> Cursor<'s> {
        Cursor { src, pos: 0, multiline: false }
    }

    /// What is left.
    pub fn rest(&self) -> &'s str {
        &self.src[self.pos..]
    }

    /// The text that starts at `start` and ends here.
    pub fn since(&self, start: usize) -> &'s str {
        &self.src[start..self.pos]
    }

    /// From `start` to here.
    pub fn span(&self, start: usize) -> Span {
        Span { start, end: self.pos }
    }

    /// Number of the line that holds this byte, from 1.
    pub fn line(&self, offset: usize) -> usize {
        self.src[..offset].matches('\n').count() + 1
    }

    /// Skips space and comments, and newlines where these are space.
    pub fn space(&mut self) {
        loop {
            let rest = self.rest();
            let text = rest.trim_start_matches(|c: char| c != '\n' && c.is_whitespace());
            self.pos += rest.len() - text.len();
            if text.starts_with(';') {
                self.pos += text.find('\n').unwrap_or(text.len());
            } else if self.multiline && text.starts_with('\n') {
                self.pos += 1;
            } else {
                return;
            }
        }
    }

    /// Skips space, comments and newlines.
    pub fn blank(&mut self) {
        let before = std::mem::replace(&mut self.multiline, true);
        self.space();
        self.multiline = before;
    }

    /// Goes to the start of the next line.
    pub fn skip_line(&mut self) {
        self.pos = self.rest().find('\n').map_or(self.src.len(), |i| self.pos + i + 1);
    }

    /// Whether the text is over.
    pub fn at_end(&self) -> bool {
        self.pos == self.src.len()
    }

    /// Whether `token` is next, after space.
    pub fn sees(&mut self, token: &str) -> bool {
        self.space();
        self.rest().starts_with(token)
    }

    /// Reads `token` if it is next.
    pub fn eat(&mut self, token: &str) -> bool {
        let found = self.sees(token);
        if found {
            self.pos += token.len();
        }
        found
    }

    /// Whether the whole word `word` is next.
    pub fn sees_word(&mut self, word: &str) -> bool {
        self.sees(word) && !self.rest()[word.len()..].starts_with(super::name_char)
    }

    /// Reads the whole word `word` if it is next.
    pub fn eat_word(&mut self, word: &str) -> bool {
        let found = self.sees_word(word);
        if found {
            self.pos += word.len();
        }
        found
    }

    /// Reads `token`; `context` tells where it belongs ("after the operands").
    pub fn expect(&mut self, token: &str, context: &str) -> Parsed<()> {
        if self.eat(token) {
            return Ok(());
        }
        self.unexpected(&format!("`{token}` {context}"))
    }

    /// The longest run of such characters, after space; it may be empty.
    pub fn run(&mut self, accept: fn(char) -> bool) -> (&'s str, Span) {
        self.space();
        let start = self.pos;
        let rest = self.rest();
        self.pos += rest.find(|c| !accept(c)).unwrap_or(rest.len());
        (self.since(start), self.span(start))
    }

    /// A non-empty run of such characters; `what` says what is expected.
    pub fn word(&mut self, accept: fn(char) -> bool, what: &str) -> Parsed<(&'s str, Span)> {
        let (text, span) = self.run(accept);
        if text.is_empty() {
            return self.unexpected(what);
        }
        Ok((text, span))
    }

    /// `%name` or `@name`, without the sigil.
    pub fn sigil(&mut self, sigil: &str, what: &str) -> Parsed<(&'s str, Span)> {
        self.space();
        let start = self.pos;
        if !self.eat(sigil) {
            return self.unexpected(what);
        }
        let rest = self.rest();
        let name = &rest[..rest.find(|c| !super::name_char(c)).unwrap_or(rest.len())];
        self.pos += name.len();
        if name.is_empty() {
            return fault(self.span(start), format!("expected a name after `{sigil}`"));
        }
        Ok((name, self.span(start)))
    }

    /// The error that something else was expected here.
    pub fn unexpected<T>(&mut self, what: &str) -> Parsed<T> {
        self.space();
        let (start, rest) = (self.pos, self.rest());
        if rest.is_empty() {
            return fault(self.span(start), format!("expected {what}, but the text ends here"));
        }
        if rest.starts_with('\n') {
            return fault(self.span(start), format!("expected {what}, but the line ends here"));
        }
        let stop = |c: char| c.is_whitespace() || matches!(c, ',' | ')' | ']' | '}' | '(' | '[' | '{' | ':' | '=');
        let first = rest.chars().next().map_or(0, char::len_utf8);
        let end = rest[first..].find(stop).map_or(rest.len(), |i| first + i);
        let shown: String = rest[..end].chars().take(32).collect();
        let span = Span { start, end: start + shown.len() };
        fault(span, format!("expected {what}, found `{shown}`"))
    }
}

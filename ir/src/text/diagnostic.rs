//! What the parser reports: a message and the place it speaks of.

use std::fmt;

/// Characters of a line that are shown whole.
const LONGEST: usize = 400;

/// One error with its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Diagnostic {
    /// What is wrong, and what to do about it.
    pub message: String,
    /// Name of the file, as given to the parser.
    pub file: String,
    /// Line, from 1.
    pub line: usize,
    /// Column in characters, from 1.
    pub column: usize,
    /// Number of characters that the error is about.
    pub width: usize,
    /// Text of that line.
    pub source: String,
}

impl Diagnostic {
    /// An error about the bytes `start..end` of `source`.
    pub(super) fn new(message: String, file: &str, source: &str, start: usize, end: usize) -> Diagnostic {
        let before = &source[..start];
        let line_start = before.rfind('\n').map_or(0, |i| i + 1);
        let line_end = source[start..].find('\n').map_or(source.len(), |i| start + i);
        let end = end.clamp(start, line_end);
        Diagnostic {
            message,
            file: file.to_string(),
            line: before.matches('\n').count() + 1,
            column: source[line_start..start].chars().count() + 1,
            width: source[start..end].chars().count().max(1),
            source: source[line_start..line_end].trim_end().to_string(),
        }
    }
}

impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Diagnostic { message, file, line, column, width, source } = self;
        writeln!(f, "{file}:{line}:{column}: error: {message}")?;
        // Of a very long line, the part around the error.
        let start = if source.chars().count() > LONGEST { column.saturating_sub(LONGEST / 4) } else { 0 };
        let shown: String = source.chars().skip(start).take(LONGEST).collect();
        let (left, right) = (if start > 0 { "…" } else { "" }, if source.len() > LONGEST { "…" } else { "" });
        writeln!(f, "{left}{shown}{right}")?;
        // Tabs stay tabs, so that the caret is under its text whatever the terminal makes of them.
        let indent: String = left
            .chars()
            .chain(shown.chars())
            .chain(std::iter::repeat(' '))
            .take(left.chars().count() + column - 1 - start)
            .map(|c| if c == '\t' { '\t' } else { ' ' })
            .collect();
        writeln!(f, "{indent}{}", "^".repeat((*width).min(LONGEST)))
    }
}

/// Every error that one parse found (at most 20).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Diagnostics(pub Vec<Diagnostic>);

impl fmt::Display for Diagnostics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|d| d.fmt(f))
    }
}

impl std::error::Error for Diagnostics {}

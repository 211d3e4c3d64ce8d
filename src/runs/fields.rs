//! Typed access to the fields of one row. A field that is absent is `None`, like one that is null; a field of
//! another type or with a word out of its vocabulary is an error that names row and field.

use super::RunsError;
use crate::words::suggestion;
use serde_json::Value;

/// One row of a file.
#[derive(Clone, Copy)]
pub struct Fields<'a> {
    /// The file's name.
    pub file: &'a str,
    /// The row's id, or its place in the file.
    pub row: &'a str,
    /// The row.
    pub value: &'a Value,
}

type Got<T> = Result<Option<T>, RunsError>;

impl<'a> Fields<'a> {
    /// The value at a dotted path, unless absent or null.
    pub fn get(&self, path: &str) -> Option<&'a Value> {
        let found = path.split('.').try_fold(self.value, |v, key| v.get(key));
        found.filter(|v| !v.is_null())
    }

    /// Text.
    pub fn text(&self, path: &str) -> Got<&'a str> {
        self.typed(path, "a text", Value::as_str)
    }

    /// A truth value.
    pub fn flag(&self, path: &str) -> Got<bool> {
        self.typed(path, "true or false", Value::as_bool)
    }

    /// A whole number, 0 or above and small enough to multiply a few times.
    pub fn count(&self, path: &str) -> Got<u64> {
        // Some writers print whole numbers as 8.0.
        let whole = |v: &Value| {
            let float = || v.as_f64().filter(|x| x.fract() == 0.0 && (0.0..1e12).contains(x)).map(|x| x as u64);
            v.as_u64().or_else(float).filter(|n| *n < 1 << 40)
        };
        self.typed(path, "a whole number", whole)
    }

    /// A finite number above 0.
    pub fn positive(&self, path: &str) -> Got<f64> {
        self.typed(path, "a number above 0", |v| v.as_f64().filter(|x| x.is_finite() && *x > 0.0))
    }

    /// Whole numbers.
    pub fn counts(&self, path: &str) -> Got<Vec<u64>> {
        self.typed(path, "a list of whole numbers", |v| v.as_array()?.iter().map(Value::as_u64).collect())
    }

    /// Texts.
    pub fn texts(&self, path: &str) -> Got<Vec<&'a str>> {
        self.typed(path, "a list of texts", |v| v.as_array()?.iter().map(Value::as_str).collect())
    }

    /// A word of a closed vocabulary.
    pub fn word<T: Copy>(&self, path: &str, words: &[(&str, T)]) -> Got<T> {
        self.text(path)?.map(|w| self.one_of(path, w, words)).transpose()
    }

    /// Words of a closed vocabulary.
    pub fn words<T: Copy>(&self, path: &str, words: &[(&str, T)]) -> Got<Vec<T>> {
        let texts = self.texts(path)?;
        texts.map(|all| all.into_iter().map(|w| self.one_of(path, w, words)).collect()).transpose()
    }

    fn one_of<T: Copy>(&self, path: &str, word: &str, words: &[(&str, T)]) -> Result<T, RunsError> {
        let names = || words.iter().map(|(w, _)| *w);
        words.iter().find(|(w, _)| *w == word).map(|(_, t)| *t).ok_or_else(|| RunsError::Word {
            place: self.place(),
            field: path.into(),
            value: format!("{word:?}"),
            known: names().collect::<Vec<_>>().join(", ") + &suggestion(word, names()),
        })
    }

    /// File and row, as messages show them.
    pub fn place(&self) -> String {
        format!("{}: row {}", self.file, self.row)
    }

    /// The error of a field that is not what it must be.
    pub fn wrong(&self, path: &str, value: String, expected: &'static str) -> RunsError {
        RunsError::Type { place: self.place(), field: path.into(), value, expected }
    }

    fn typed<T>(&self, path: &str, expected: &'static str, read: impl Fn(&'a Value) -> Option<T>) -> Got<T> {
        let Some(value) = self.get(path) else { return Ok(None) };
        read(value).map(Some).ok_or_else(|| self.wrong(path, shortened(value), expected))
    }
}

/// A value's text, cut where it is long.
fn shortened(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(60) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text,
    }
}

//! Typed reading of a JSON object's keys: every mistake names the key, its place, what stands there and
//! what would be accepted.

use serde_json::{Map, Value};

use super::config::ConfigError;
use crate::json::Document;

/// One object of a document.
#[derive(Clone, Copy)]
pub(crate) struct Fields<'a> {
    pub doc: &'a Document,
    pub map: &'a Map<String, Value>,
    /// JSON pointer of the object; empty for the outermost.
    pub pointer: &'a str,
}

pub(crate) type Read<T> = Result<T, ConfigError>;

impl<'a> Fields<'a> {
    /// The outermost object.
    pub fn of(doc: &'a Document) -> Read<Fields<'a>> {
        match &doc.value {
            Value::Object(map) => Ok(Fields { doc, map, pointer: "" }),
            other => Err(ConfigError::Mistyped {
                place: doc.file.clone(),
                key: "the whole file".into(),
                found: show(other),
                wanted: "an object { … }".into(),
            }),
        }
    }

    /// `file:line:column` of a key.
    pub fn place(&self, key: &str) -> String {
        self.doc.place(&self.path(key))
    }

    fn path(&self, key: &str) -> String {
        format!("{}/{}", self.pointer, key.replace('~', "~0").replace('/', "~1"))
    }

    /// The name of a key in messages, with the object it is in.
    pub fn name(&self, key: &str) -> String {
        match self.pointer {
            "" => key.to_string(),
            pointer => format!("{}.{key}", pointer[1..].replace('/', ".")),
        }
    }

    /// The value of a key, `Value::Null` included; a value that JSON cannot hold is an error.
    pub fn get(&self, key: &str) -> Read<Option<&'a Value>> {
        match self.doc.non_finite(&self.path(key)) {
            Some(found) => Err(self.mistyped(key, found, "a finite value")),
            None => Ok(self.map.get(key)),
        }
    }

    /// The value of a key that is neither absent nor null.
    pub fn given(&self, key: &str) -> Read<Option<&'a Value>> {
        Ok(self.get(key)?.filter(|v| !v.is_null()))
    }

    /// A whole number of at least 1; None when absent or null.
    pub fn size(&self, key: &str) -> Read<Option<usize>> {
        self.whole(key, 1)
    }

    /// A whole number of at least `least`; None when absent or null.
    pub fn whole(&self, key: &str, least: usize) -> Read<Option<usize>> {
        let Some(value) = self.given(key)? else {
            return Ok(None);
        };
        let number = value.as_u64().and_then(|n| usize::try_from(n).ok()).filter(|n| *n >= least);
        number.map(Some).ok_or_else(|| self.mistyped(key, &show(value), &format!("a whole number of at least {least}")))
    }

    /// A whole number of at least 1 that must be there.
    pub fn required_size(&self, key: &str) -> Read<usize> {
        self.size(key)?.ok_or_else(|| self.missing(key))
    }

    /// A finite number above zero; None when absent. Null is an error: nobody means it.
    pub fn positive(&self, key: &str) -> Read<Option<f64>> {
        let Some(value) = self.get(key)? else {
            return Ok(None);
        };
        let number = value.as_f64().filter(|n| *n > 0.0 && n.is_finite());
        number.map(Some).ok_or_else(|| self.mistyped(key, &show(value), "a number above zero"))
    }

    /// A truth value; None when absent or null.
    pub fn flag(&self, key: &str) -> Read<Option<bool>> {
        let Some(value) = self.given(key)? else {
            return Ok(None);
        };
        value.as_bool().map(Some).ok_or_else(|| self.mistyped(key, &show(value), "true or false"))
    }

    /// A text; None when absent or null.
    pub fn text(&self, key: &str) -> Read<Option<&'a str>> {
        let Some(value) = self.given(key)? else {
            return Ok(None);
        };
        value.as_str().map(Some).ok_or_else(|| self.mistyped(key, &show(value), "a text in double quotes"))
    }

    /// A list of texts; None when absent or null.
    pub fn texts(&self, key: &str) -> Read<Option<Vec<&'a str>>> {
        let Some(value) = self.given(key)? else {
            return Ok(None);
        };
        let list: Option<Vec<&str>> = value.as_array().and_then(|items| items.iter().map(Value::as_str).collect());
        list.map(Some).ok_or_else(|| self.mistyped(key, &show(value), "a list of texts"))
    }

    pub fn missing(&self, key: &str) -> ConfigError {
        let state = if self.map.contains_key(key) { "null" } else { "missing" };
        ConfigError::Missing { place: self.place(key), key: self.name(key), state }
    }

    pub fn mistyped(&self, key: &str, found: &str, wanted: &str) -> ConfigError {
        ConfigError::Mistyped {
            place: self.place(key),
            key: self.name(key),
            found: found.to_string(),
            wanted: wanted.to_string(),
        }
    }

    pub fn invalid(&self, key: &str, message: impl Into<String>) -> ConfigError {
        ConfigError::Invalid { place: self.place(key), key: self.name(key), message: message.into() }
    }
}

/// A value as messages show it: short, whatever its size.
pub(crate) fn show(value: &Value) -> String {
    const LONGEST: usize = 60;
    let text = value.to_string();
    match value {
        _ if text.chars().count() <= LONGEST => text,
        Value::Array(items) => format!("[… {} entries]", items.len()),
        Value::Object(map) => format!("{{… {} keys}}", map.len()),
        _ => format!("{}…", text.chars().take(LONGEST).collect::<String>()),
    }
}

/// The known word nearest to what was written, when one is near enough to be meant.
pub(crate) fn nearest<'a>(word: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let scored = known.map(|k| (strsim::damerau_levenshtein(word, k), k)).min()?;
    (scored.0 <= 1 + word.len() / 4).then_some(scored.1)
}

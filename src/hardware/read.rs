//! Reading keys of hardware files: numbers in the files' units, lists, objects within objects.

use serde_json::Value;

use super::HardwareError;
use crate::import::read::{show, Fields};
use crate::json::Document;

pub(super) type Read<T> = Result<T, HardwareError>;

/// An object within a document, with a pointer of its own.
pub(super) struct Place<'a> {
    doc: &'a Document,
    map: &'a serde_json::Map<String, Value>,
    pointer: String,
}

impl<'a> Place<'a> {
    /// The object at a pointer, `what` in the error if it is none.
    pub fn at(doc: &'a Document, pointer: String, what: &str) -> Read<Place<'a>> {
        match doc.value.pointer(&pointer) {
            Some(Value::Object(map)) => Ok(Place { doc, map, pointer }),
            other => {
                let found = other.map_or_else(|| "missing".to_string(), show);
                let place = nearest_place(doc, &pointer);
                let key = if pointer.is_empty() { "the whole file".to_string() } else { name(&pointer) };
                Err(crate::import::ConfigError::Mistyped { place, key, found, wanted: what.to_string() }.into())
            }
        }
    }

    /// An object that a key holds; `None` where it is absent or null.
    pub fn object(&self, key: &str, what: &str) -> Read<Option<Place<'a>>> {
        match self.map.get(key) {
            None | Some(Value::Null) => Ok(None),
            Some(_) => Place::at(self.doc, format!("{}/{key}", self.pointer), what).map(Some),
        }
    }

    /// The objects of a list that a key holds; empty where it is absent or null.
    pub fn objects(&self, key: &str, what: &str) -> Read<Vec<Place<'a>>> {
        match self.map.get(key) {
            None | Some(Value::Null) => Ok(Vec::new()),
            Some(Value::Array(items)) => {
                (0..items.len()).map(|n| Place::at(self.doc, format!("{}/{key}/{n}", self.pointer), what)).collect()
            }
            Some(other) => Err(self.fields().mistyped(key, &show(other), "a list").into()),
        }
    }

    /// Its keys.
    pub fn fields(&self) -> Fields<'_> {
        Fields { doc: self.doc, map: self.map, pointer: &self.pointer }
    }

    /// Whether a key is there with anything but null.
    pub fn has(&self, key: &str) -> bool {
        self.map.get(key).is_some_and(|v| !v.is_null())
    }

    /// A finite number above zero in a unit; `None` where absent or null.
    pub fn quantity(&self, key: &str, unit: f64) -> Read<Option<f64>> {
        let fields = self.fields();
        match fields.given(key)? {
            None => Ok(None),
            Some(_) => Ok(fields.positive(key)?.map(|x| x * unit)),
        }
    }

    /// A finite number of at least zero in a unit; `None` where absent or null.
    pub fn at_least_zero(&self, key: &str, unit: f64) -> Read<Option<f64>> {
        let fields = self.fields();
        let Some(value) = fields.given(key)? else { return Ok(None) };
        let number = value.as_f64().filter(|n| *n >= 0.0);
        let wrong = || fields.mistyped(key, &show(value), "a number of at least zero");
        Ok(Some(number.ok_or_else(wrong)? * unit))
    }

    /// A number that must be there.
    pub fn required(&self, key: &str, unit: f64) -> Read<f64> {
        self.quantity(key, unit)?.ok_or_else(|| self.fields().missing(key).into())
    }

    /// A whole number of at least 1; `None` where absent or null.
    pub fn count(&self, key: &str) -> Read<Option<u64>> {
        Ok(self.fields().size(key)?.map(|n| n as u64))
    }

    /// A whole number of at least 1 that fits 32 bits.
    pub fn small(&self, key: &str) -> Read<Option<u32>> {
        let Some(n) = self.count(key)? else { return Ok(None) };
        let fits = u32::try_from(n).map_err(|_| self.fields().mistyped(key, &n.to_string(), "below 2^32"))?;
        Ok(Some(fits))
    }

    /// Whole numbers of at least 1; empty where absent or null.
    pub fn counts(&self, key: &str) -> Read<Vec<u64>> {
        let fields = self.fields();
        let Some(value) = fields.given(key)? else { return Ok(Vec::new()) };
        let list: Option<Vec<u64>> =
            value.as_array().and_then(|items| items.iter().map(|v| v.as_u64().filter(|n| *n > 0)).collect());
        Ok(list.ok_or_else(|| fields.mistyped(key, &show(value), "a list of whole numbers of at least 1"))?)
    }

    /// A text; empty where absent or null.
    pub fn text(&self, key: &str) -> Read<String> {
        Ok(self.fields().text(key)?.unwrap_or_default().to_string())
    }

    /// A list of texts; empty where absent or null.
    pub fn texts(&self, key: &str) -> Read<Vec<String>> {
        let texts = self.fields().texts(key)?.unwrap_or_default();
        Ok(texts.into_iter().map(str::to_string).collect())
    }

    /// A truth value; false where absent or null.
    pub fn flag(&self, key: &str) -> Read<bool> {
        Ok(self.fields().flag(key)?.unwrap_or(false))
    }
}

/// `tiers.0.fanout` of a pointer.
fn name(pointer: &str) -> String {
    pointer.trim_start_matches('/').replace('/', ".")
}

/// The place of a pointer, or of the innermost key around it.
fn nearest_place(doc: &Document, pointer: &str) -> String {
    let around = std::iter::successors(Some(pointer), |p| p.rfind('/').map(|cut| &p[..cut]));
    let known = around.into_iter().find(|p| doc.position(p).is_some());
    known.map_or_else(|| doc.file.clone(), |p| doc.place(p))
}

//! Spellings of devices.

use super::read::{Place, Read};
use super::HardwareError;
use crate::json::Document;

/// Spellings, each with the device that it stands for, and what an ambiguous one is taken to mean.
#[derive(Clone, Debug, Default)]
pub(super) struct Aliases {
    spellings: Vec<(String, String)>,
    assumed: Vec<(String, String)>,
}

impl Aliases {
    pub fn read(doc: &Document) -> Read<Aliases> {
        let all = Place::at(doc, String::new(), "an object")?;
        let spellings = pairs(&Place::at(doc, "/aliases".to_string(), "an object of texts")?)?;
        let assumed = match all.object("meta", "an object")? {
            Some(_) => pairs(&Place::at(doc, "/meta/assumed".to_string(), "an object of texts")?)?,
            None => Vec::new(),
        };
        Ok(Aliases { spellings, assumed })
    }

    /// The device of a spelling: exact before alike, a device's own name before an alias.
    pub fn find<'a>(&self, name: &str, ids: impl Iterator<Item = &'a str> + Clone) -> Read<Option<String>> {
        let known =
            || ids.clone().map(|id| (id, id)).chain(self.spellings.iter().map(|(s, id)| (s.as_str(), id.as_str())));
        if let Some((_, id)) = known().find(|(spelling, _)| *spelling == name) {
            return Ok(Some(id.to_string()));
        }
        let mut found: Vec<&str> = known().filter(|(spelling, _)| alike(spelling, name)).map(|(_, id)| id).collect();
        found.sort_unstable();
        found.dedup();
        match found.as_slice() {
            [] => Ok(None),
            [id] => Ok(Some(id.to_string())),
            several => Err(HardwareError::Ambiguous { name: name.to_string(), candidates: several.join(", ") }),
        }
    }

    /// What is taken for granted where a spelling leaves it open.
    pub fn assumed(&self, name: &str) -> Option<&str> {
        let exact = self.assumed.iter().find(|(spelling, _)| spelling == name);
        exact.or_else(|| self.assumed.iter().find(|(s, _)| alike(s, name))).map(|(_, what)| what.as_str())
    }

    /// All spellings.
    pub fn spellings(&self) -> impl Iterator<Item = &str> {
        self.spellings.iter().map(|(spelling, _)| spelling.as_str())
    }
}

/// Whether two names are one, whatever their case and with spaces, `_` and `-` alike.
pub(super) fn alike(a: &str, b: &str) -> bool {
    fn plain(name: &str) -> String {
        name.trim().to_lowercase().replace([' ', '_'], "-")
    }
    plain(a) == plain(b)
}

fn pairs(place: &Place) -> Read<Vec<(String, String)>> {
    let fields = place.fields();
    let text = |key: &String| Ok((key.clone(), place.text(key)?));
    fields.map.keys().map(text).collect()
}

//! Why a device or a cluster cannot be had.

use crate::import::ConfigError;

/// What went wrong, with the name or the place in the file.
#[derive(Debug, thiserror::Error)]
pub enum HardwareError {
    /// A file that is unreadable or not JSON, or a key of it that is missing or has an impossible value.
    #[error(transparent)]
    Field(#[from] ConfigError),
    /// A key that nothing reads.
    #[error("{place}: unknown key `{key}`{near}")]
    UnknownKey {
        /// File, line, column.
        place: String,
        /// The key.
        key: String,
        /// The nearest known key, else what to do.
        near: String,
    },
    /// No device of this name.
    #[error("{place}unknown device {name}{hint} (`autoshard hardware` lists all)")]
    UnknownDevice {
        /// File, line, column and `: `; empty where the name was not read in a file.
        place: String,
        /// What was asked for.
        name: String,
        /// Empty, the nearest names, or what else the name is.
        hint: String,
    },
    /// No cluster of this name, and no such file.
    #[error("unknown cluster {name}{hint} (`autoshard hardware` lists all; a cluster of your own is a JSON file)")]
    UnknownCluster {
        /// What was asked for.
        name: String,
        /// Empty, the nearest names, or what else the name is.
        hint: String,
    },
    /// A spelling that stands for several devices.
    #[error("the device name {name} may be any of {candidates}; use one of these")]
    Ambiguous {
        /// What was asked for.
        name: String,
        /// The devices.
        candidates: String,
    },
    /// The embedded preset of this machine is damaged, which a test rules out.
    #[error("the embedded preset this-machine: {0}")]
    ThisMachine(#[from] serde_json::Error),
}

impl From<crate::json::JsonError> for HardwareError {
    fn from(e: crate::json::JsonError) -> HardwareError {
        HardwareError::Field(e.into())
    }
}

/// ``; did you mean `A`, `B`?``: up to three known names that are near, nearest first and of equally near
/// ones the first; those that begin with the word are near. Of spellings that are alike the first counts.
pub(super) fn suggest<'a>(word: &str, known: impl Iterator<Item = &'a str>) -> String {
    let plain = |name: &str| name.to_lowercase().replace([' ', '_'], "-");
    let word = plain(word);
    let mut near: Vec<(usize, &str)> = Vec::new();
    for name in known {
        let distance = strsim::damerau_levenshtein(&word, &plain(name));
        let starts = word.len() >= 3 && plain(name).starts_with(&word);
        let said = near.iter().any(|(_, n)| plain(n) == plain(name));
        if !said && (starts || distance <= 1 + word.chars().count() / 3) {
            near.push((if starts { distance.min(1) } else { distance }, name));
        }
    }
    near.sort_by_key(|(distance, _)| *distance);
    let names: Vec<String> = near.iter().take(3).map(|(_, name)| format!("`{name}`")).collect();
    if names.is_empty() {
        String::new()
    } else {
        format!("; did you mean {}?", names.join(", "))
    }
}

/// An error for the first key of an object that is none of `known`.
pub(super) fn no_other_keys(fields: &crate::import::read::Fields, known: &[&str]) -> Result<(), HardwareError> {
    let Some(key) = fields.map.keys().find(|k| !known.contains(&k.as_str())) else { return Ok(()) };
    let near = suggest(key, known.iter().copied());
    Err(HardwareError::UnknownKey {
        place: fields.place(key),
        key: fields.name(key),
        near: if near.is_empty() { "; remove it, or write it into `notes`".to_string() } else { near },
    })
}

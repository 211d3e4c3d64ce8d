//! Compiled texts on disk, by a hash of all that determines them. Files are written beside their
//! place and renamed into it, and checked when they are read: a damaged one is as good as none.

use super::compile::{Image, Target};
use super::log::{EntryResources, Resources};
use sha2::{Digest, Sha256};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// First line of a file.
const HEAD: &str = "autoshard image 1";
/// Largest file that is read.
const LARGEST: u64 = 1 << 30;

/// A directory of compiled texts. Processes may share it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cache {
    directory: PathBuf,
}

/// A file of the cache that cannot be written.
#[derive(Debug, thiserror::Error)]
#[error("{}: {source}", path.display())]
pub struct CacheError {
    path: PathBuf,
    source: std::io::Error,
}

/// Distinguishes files that this process writes at the same time.
static COUNTER: AtomicU64 = AtomicU64::new(0);

impl Cache {
    /// A cache in this directory, which is made when something is written.
    pub fn new(directory: impl Into<PathBuf>) -> Cache {
        Cache { directory: directory.into() }
    }

    /// Its directory.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Hash of all that determines an image.
    pub fn key(source: &str, options: &[String], version: (i32, i32), target: Target) -> String {
        let mut hash = Sha256::new();
        let mut add = |part: &[u8]| {
            hash.update((part.len() as u64).to_le_bytes());
            hash.update(part);
        };
        add(HEAD.as_bytes());
        add(target.arch().as_bytes());
        add(format!("{}.{}", version.0, version.1).as_bytes());
        options.iter().for_each(|o| add(o.as_bytes()));
        add(source.as_bytes());
        hex(&hash.finalize())
    }

    /// Where an image of this key lies.
    pub fn path(&self, key: &str) -> PathBuf {
        self.directory.join(format!("{key}.image"))
    }

    /// The image of a key, if it is there and whole.
    pub fn read(&self, key: &str, target: Target) -> Option<Image> {
        let path = self.path(key);
        if std::fs::metadata(&path).ok()?.len() > LARGEST {
            return None;
        }
        let (resources, bytes) = decode(&std::fs::read(&path).ok()?, key)?;
        Some(Image { target, bytes, resources, time: None })
    }

    /// Writes an image.
    pub fn write(&self, key: &str, image: &Image) -> Result<(), CacheError> {
        let at = |path: &Path| {
            let path = path.to_path_buf();
            move |source| CacheError { path, source }
        };
        std::fs::create_dir_all(&self.directory).map_err(at(&self.directory))?;
        let path = self.path(key);
        let unique = COUNTER.fetch_add(1, Ordering::Relaxed);
        let beside = self.directory.join(format!("{key}.{}.{unique}.tmp", std::process::id()));
        std::fs::write(&beside, encode(key, image)).map_err(at(&beside))?;
        let renamed = std::fs::rename(&beside, &path).map_err(at(&path));
        if renamed.is_err() {
            // Nothing else refers to it; if it stays, it is only in the way.
            let _ = std::fs::remove_file(&beside);
        }
        renamed
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut s, b| {
        let _ = write!(s, "{b:02x}");
        s
    })
}

fn encode(key: &str, image: &Image) -> Vec<u8> {
    let mut head = format!("{HEAD}\nkey {key}\n");
    for e in &image.resources {
        let r = &e.resources;
        let numbers = [r.registers, r.spill_stores, r.spill_loads, r.stack, r.shared, r.constant];
        let numbers: Vec<String> = numbers.iter().map(u32::to_string).collect();
        let _ = writeln!(head, "entry {} {}", e.entry, numbers.join(" "));
    }
    let _ = writeln!(head, "bytes {}", image.bytes.len());
    let mut hash = Sha256::new();
    hash.update(head.as_bytes());
    hash.update(&image.bytes);
    let _ = writeln!(head, "sha256 {}", hex(&hash.finalize()));
    let mut out = head.into_bytes();
    out.extend(&image.bytes);
    out
}

/// The parts of a file, if it is what `encode` writes for this key.
fn decode(file: &[u8], key: &str) -> Option<(Vec<EntryResources>, Vec<u8>)> {
    let mut rest = file;
    let mut line = || {
        let end = rest.iter().position(|b| *b == b'\n')?;
        let line = std::str::from_utf8(&rest[..end]).ok()?;
        rest = &rest[end + 1..];
        Some(line)
    };
    if line()? != HEAD || line()?.strip_prefix("key ")? != key {
        return None;
    }
    let mut resources = vec![];
    let mut length: Option<usize> = None;
    while length.is_none() {
        let line = line()?;
        match line.strip_prefix("entry ") {
            Some(entry) => resources.push(entry_resources(entry)?),
            None => length = Some(line.strip_prefix("bytes ")?.parse().ok()?),
        }
    }
    let sum = line()?;
    let head = file.len() - rest.len() - sum.len() - 1;
    let mut hash = Sha256::new();
    hash.update(&file[..head]);
    hash.update(rest);
    let whole = length == Some(rest.len()) && sum.strip_prefix("sha256 ")? == hex(&hash.finalize());
    whole.then(|| (resources, rest.to_vec()))
}

fn entry_resources(line: &str) -> Option<EntryResources> {
    let mut words = line.split(' ');
    let entry = words.next()?.to_string();
    let numbers: Vec<u32> = words.map(|w| w.parse().ok()).collect::<Option<_>>()?;
    let [registers, spill_stores, spill_loads, stack, shared, constant] = numbers[..] else { return None };
    Some(EntryResources {
        entry,
        resources: Resources { registers, spill_stores, spill_loads, stack, shared, constant },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image() -> Image {
        let resources = Resources { registers: 40, stack: 8, constant: 360, ..Resources::default() };
        let entry = EntryResources { entry: "k".into(), resources };
        Image { target: Target::Sm80, bytes: (0..=255).collect(), resources: vec![entry], time: None }
    }

    #[test]
    fn what_is_written_is_read() {
        let d = tempfile::tempdir().unwrap();
        let cache = Cache::new(d.path().join("made/when/needed"));
        let key = Cache::key("text", &["-o".into()], (12, 9), Target::Sm80);
        assert_eq!(cache.read(&key, Target::Sm80), None);
        cache.write(&key, &image()).unwrap();
        assert_eq!(cache.read(&key, Target::Sm80), Some(image()));
        assert_eq!(std::fs::read_dir(cache.directory()).unwrap().count(), 1);
    }

    #[test]
    fn damage_is_noticed_wherever_it_is() {
        let d = tempfile::tempdir().unwrap();
        let cache = Cache::new(d.path());
        let key = Cache::key("text", &[], (12, 9), Target::Sm80);
        cache.write(&key, &image()).unwrap();
        let good = std::fs::read(cache.path(&key)).unwrap();
        for i in 0..good.len() {
            let mut bad = good.clone();
            bad[i] ^= 1;
            std::fs::write(cache.path(&key), &bad).unwrap();
            assert_eq!(cache.read(&key, Target::Sm80), None, "byte {i}");
            std::fs::write(cache.path(&key), &good[..i]).unwrap();
            assert_eq!(cache.read(&key, Target::Sm80), None, "cut at {i}");
        }
    }

    #[test]
    fn all_that_matters_is_in_the_key() {
        let base = Cache::key("text", &["-o".into()], (12, 9), Target::Sm80);
        assert_ne!(base, Cache::key("text2", &["-o".into()], (12, 9), Target::Sm80));
        assert_ne!(base, Cache::key("text", &["-p".into()], (12, 9), Target::Sm80));
        assert_ne!(base, Cache::key("text", &["-o".into()], (12, 8), Target::Sm80));
        assert_ne!(base, Cache::key("text", &["-o".into()], (12, 9), Target::Sm90a));
        // Boundaries between parts count.
        assert_ne!(base, Cache::key("otext", &["-".into()], (12, 9), Target::Sm80));
    }

    #[test]
    fn a_directory_that_cannot_be_made_is_an_error() {
        let d = tempfile::tempdir().unwrap();
        let file = d.path().join("file");
        std::fs::write(&file, "").unwrap();
        let e = Cache::new(&file).write("key", &image()).unwrap_err();
        assert!(e.to_string().starts_with(&file.display().to_string()), "{e}");
    }
}

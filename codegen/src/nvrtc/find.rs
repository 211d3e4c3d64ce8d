//! Finding and loading the library.

use cudarc::nvrtc::sys;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

/// Environment variable that names a directory with the libraries.
const VARIABLE: &str = "AUTOSHARD_NVRTC";
/// The library and the one that it loads.
const LIBRARY: &str = "libnvrtc.so";
const BUILTINS: &str = "libnvrtc-builtins.so";
/// Oldest version that is asked to compile.
const OLDEST: (i32, i32) = (12, 1);

/// Why NVRTC cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MissingNvrtc {
    /// A directory that was named does not hold a library.
    #[error("no {library} in {directory} ({named}); {HINT}")]
    NotThere {
        /// Library.
        library: &'static str,
        /// Directory.
        directory: String,
        /// Who named it.
        named: &'static str,
    },
    /// No directory holds it, and the dynamic linker does not know it.
    #[error("no {LIBRARY}: looked in {}; {HINT}", .looked.join(", "))]
    NotFound {
        /// Directories.
        looked: Vec<String>,
    },
    /// A library that does not load.
    #[error("{path} cannot be loaded: {reason}")]
    NotLoaded {
        /// Library.
        path: String,
        /// What the dynamic linker says.
        reason: String,
    },
    /// The libraries load, but under names that are not expected.
    #[error("{directory} holds an NVRTC of an unknown version; 12.1 to 13 are known")]
    Unknown {
        /// Directory.
        directory: String,
    },
    /// Too old.
    #[error("NVRTC {}.{} in {directory} is too old; 12.1 or later is needed, {HINT}", version.0, version.1)]
    Old {
        /// Directory.
        directory: String,
        /// Version.
        version: (i32, i32),
    },
}

/// How to get it.
const HINT: &str = "scripts/get-nvrtc fetches it into target/nvrtc, and AUTOSHARD_NVRTC names another directory";

/// The loaded library. There is one in a process: the first that is found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Nvrtc {
    /// Where it was found.
    directory: String,
    /// Major and minor version.
    version: (i32, i32),
}

/// What this process has loaded.
static LOADED: Mutex<Option<Nvrtc>> = Mutex::new(None);

impl Nvrtc {
    /// Loads NVRTC from `directory`, or else from the one that AUTOSHARD_NVRTC names, or else from
    /// `target/nvrtc` of this directory or one above, from where CUDA is usually installed, or from
    /// where the dynamic linker finds it. If the process has loaded it already, that one is given.
    pub fn find(directory: Option<&Path>) -> Result<Nvrtc, MissingNvrtc> {
        let mut loaded = LOADED.lock().unwrap_or_else(|e| e.into_inner());
        if let Some(found) = &*loaded {
            return Ok(found.clone());
        }
        let found = load(directory)?;
        *loaded = Some(found.clone());
        Ok(found)
    }

    /// Major and minor version.
    pub fn version(&self) -> (i32, i32) {
        self.version
    }

    /// Where it was found.
    pub fn directory(&self) -> &str {
        &self.directory
    }
}

fn load(directory: Option<&Path>) -> Result<Nvrtc, MissingNvrtc> {
    let variable = std::env::var_os(VARIABLE).map(PathBuf::from);
    let named = directory.map(|d| (d, "named by the caller"));
    let named = named.or(variable.as_deref().map(|d| (d, "named by AUTOSHARD_NVRTC")));
    if let Some((directory, by)) = named {
        let missing = |library| MissingNvrtc::NotThere { library, directory: text(directory), named: by };
        let library = library_in(directory, LIBRARY).ok_or_else(|| missing(LIBRARY))?;
        let builtins = library_in(directory, BUILTINS).ok_or_else(|| missing(BUILTINS))?;
        return open(directory, &[builtins, library]);
    }
    let places = places();
    for directory in &places {
        // Without its builtins the library would fail at every compilation.
        if let (Some(b), Some(l)) = (library_in(directory, BUILTINS), library_in(directory, LIBRARY)) {
            return open(directory, &[b, l]);
        }
    }
    // SAFETY: loading NVRTC runs no code but its own initialisation.
    if unsafe { sys::is_culib_present() } {
        return version(Path::new("the dynamic linker's path"));
    }
    let mut looked: Vec<String> = places.iter().map(|p| text(p)).collect();
    looked.push("the dynamic linker's path".into());
    Err(MissingNvrtc::NotFound { looked })
}

fn text(path: &Path) -> String {
    path.display().to_string()
}

/// Directories that may hold it.
fn places() -> Vec<PathBuf> {
    let mut out = vec![];
    out.extend(std::env::var_os("CARGO_TARGET_DIR").map(|d| Path::new(&d).join("nvrtc")));
    if let Ok(here) = std::env::current_dir() {
        out.extend(here.ancestors().map(|d| d.join("target/nvrtc")));
    }
    for variable in ["CUDA_HOME", "CUDA_PATH"] {
        out.extend(std::env::var_os(variable).map(|d| Path::new(&d).join("lib64")));
    }
    out.extend(["/usr/local/cuda/lib64", "/opt/cuda/lib64", "/usr/lib/x86_64-linux-gnu"].map(PathBuf::from));
    out
}

/// A library in a directory: without a version, or with the shortest name that has one.
fn library_in(directory: &Path, name: &str) -> Option<PathBuf> {
    let entries = std::fs::read_dir(directory).ok()?;
    let named = |p: &PathBuf| {
        let file = p.file_name().and_then(|f| f.to_str()).unwrap_or_default();
        file == name || file.strip_prefix(name).is_some_and(|v| v.starts_with('.'))
    };
    let mut all: Vec<PathBuf> = entries.flatten().map(|e| e.path()).filter(named).collect();
    all.sort_by_key(|p| (p.as_os_str().len(), p.clone()));
    all.into_iter().next()
}

/// Loads libraries by their full paths and keeps them: later requests for their names find them.
fn open(directory: &Path, libraries: &[PathBuf]) -> Result<Nvrtc, MissingNvrtc> {
    for path in libraries {
        let failed = |e: libloading::Error| MissingNvrtc::NotLoaded { path: text(path), reason: e.to_string() };
        // SAFETY: loading NVRTC runs no code but its own initialisation.
        std::mem::forget(unsafe { libloading::Library::new(path) }.map_err(failed)?);
    }
    // SAFETY: as above.
    if !unsafe { sys::is_culib_present() } {
        return Err(MissingNvrtc::Unknown { directory: text(directory) });
    }
    version(directory)
}

fn version(directory: &Path) -> Result<Nvrtc, MissingNvrtc> {
    let mut version = (0, 0);
    // SAFETY: both are valid for writes; the library is loaded.
    let status = unsafe { sys::nvrtcVersion(&mut version.0, &mut version.1) };
    let directory = text(directory);
    if status.result().is_err() {
        return Err(MissingNvrtc::Unknown { directory });
    }
    if version < OLDEST {
        return Err(MissingNvrtc::Old { directory, version });
    }
    Ok(Nvrtc { directory, version })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_without_it_is_named() {
        let empty = tempfile::tempdir().unwrap();
        let e = load(Some(empty.path())).unwrap_err();
        let want = format!("no libnvrtc.so in {} (named by the caller); {HINT}", empty.path().display());
        assert_eq!(e.to_string(), want);
        std::fs::write(empty.path().join("libnvrtc.so.12"), "").unwrap();
        let e = load(Some(empty.path())).unwrap_err();
        assert!(e.to_string().starts_with("no libnvrtc-builtins.so in "), "{e}");
        std::fs::write(empty.path().join("libnvrtc-builtins.so.12.9"), "").unwrap();
        let e = load(Some(empty.path())).unwrap_err();
        assert!(matches!(e, MissingNvrtc::NotLoaded { .. }), "{e}");
    }

    #[test]
    fn the_shortest_name_of_a_library_is_taken() {
        let d = tempfile::tempdir().unwrap();
        for f in ["libnvrtc.so.12.9.86", "libnvrtc.so.12", "libnvrtc.alt.so.12", "libnvrtc-builtins.so.12.9"] {
            std::fs::write(d.path().join(f), "").unwrap();
        }
        assert_eq!(library_in(d.path(), LIBRARY).unwrap(), d.path().join("libnvrtc.so.12"));
        assert_eq!(library_in(d.path(), "libcuda.so"), None);
    }
}

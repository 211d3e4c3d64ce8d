//! Files that a command will write: checked before the work, so that nothing is lost after it and nothing
//! that is there is destroyed by mistake.

use super::Failure;
use autoshard::artifact;
use autoshard::planfile;
use autoshard::weights::safetensors::{INDEX, SINGLE};
use std::fmt::Display;
use std::path::{Path, PathBuf};

/// The folder of `--save`. Dropped, it takes the folder away again if this run made it and it is empty.
pub struct SaveFolder {
    folder: PathBuf,
    made: bool,
}

impl Drop for SaveFolder {
    fn drop(&mut self) {
        if self.made {
            // Fails, as it should, where the folder holds something.
            let _ = std::fs::remove_dir(&self.folder);
        }
    }
}

/// Makes the folder of `--save` and proves that files can be written there.
pub fn save(folder: &Path) -> Result<SaveFolder, Failure> {
    let made = !folder.exists();
    std::fs::create_dir_all(folder).map_err(|e| failed("--save", folder, format!("cannot make this folder: {e}")))?;
    let made = SaveFolder { folder: folder.to_path_buf(), made };
    for name in [SINGLE, "config.json"] {
        if folder.join(name).is_dir() {
            return Err(failed("--save", folder, format!("{name} there is a folder; remove it or save elsewhere")));
        }
    }
    if folder.join(INDEX).exists() {
        let why = format!("{INDEX} there would hide the {SINGLE} that is saved; remove it or save elsewhere");
        return Err(failed("--save", folder, why));
    }
    writable("--save", folder)?;
    Ok(made)
}

/// Checks the file of `--grads`. `weights` are folders or files whose weights it must not replace, each
/// with what it is.
pub fn grads(path: &Path, weights: &[(&str, &Path)]) -> Result<(), Failure> {
    let refuse = |why: String| Err(failed("--grads", path, why));
    if path.is_dir() {
        return refuse("this is a folder; give the name of a file, as in grads.safetensors".to_string());
    }
    if path.exists() && !(path.is_file() && path.extension().is_some_and(|e| e == "safetensors")) {
        return refuse("the file exists and its name does not end in .safetensors; give another name".to_string());
    }
    for (what, source) in weights {
        let file = if source.is_dir() { source.join(SINGLE) } else { source.to_path_buf() };
        if same(path, &file) {
            return refuse(format!("gradients would replace the weights of {what}; give another name"));
        }
    }
    writable("--grads", parent(path))
}

/// Checks the file of `-o`: what is there may be replaced if it is an `.asx` file, or empty.
pub fn executable(path: &Path) -> Result<(), Failure> {
    if path.is_dir() {
        return Err(failed("-o", path, "this is a folder; give the name of a file, as in model.asx"));
    }
    let empty = path.is_file() && path.metadata().is_ok_and(|m| m.len() == 0);
    if path.exists() && !empty && !artifact::has_magic(path) {
        let why = "the file exists and is not an .asx file; give another name or remove it";
        return Err(failed("-o", path, why));
    }
    writable("-o", parent(path))
}

/// Checks the plan file of `-o`: what is there may be replaced if it is a plan, or empty.
pub fn plan(path: &Path) -> Result<(), Failure> {
    if path.is_dir() {
        return Err(failed("-o", path, "this is a folder; give the name of a file, as in plan.json"));
    }
    let name = path.display().to_string();
    let replaced = |bytes: Vec<u8>| {
        bytes.is_empty() || String::from_utf8(bytes).is_ok_and(|text| planfile::read(&text, &name).is_ok())
    };
    if path.is_file() && !std::fs::read(path).is_ok_and(replaced) {
        let why = "the file exists and is no plan; give another name or remove it";
        return Err(failed("-o", path, why));
    }
    writable("-o", parent(path))
}

/// Writes a file into a folder and removes it.
fn writable(flag: &str, folder: &Path) -> Result<(), Failure> {
    let probe = folder.join(format!(".autoshard.{}.probe", std::process::id()));
    let done = std::fs::write(&probe, b"probe");
    // Even a file that could not be filled is there.
    let removed = std::fs::remove_file(&probe);
    let cannot = |e: std::io::Error| failed(flag, folder, format!("cannot write files in this folder: {e}"));
    done.and(removed).map_err(cannot)
}

/// Whether two paths are of one file, which need not be there.
fn same(a: &Path, b: &Path) -> bool {
    let real = |p: &Path| Some(parent(p).canonicalize().ok()?.join(p.file_name()?));
    a == b || real(a).is_some_and(|a| Some(a) == real(b))
}

/// The folder of a file; this one, where the path has none.
fn parent(path: &Path) -> &Path {
    path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

fn failed(flag: &str, path: &Path, why: impl Display) -> Failure {
    Failure::Failed(format!("{flag} {}: {why}", path.display()))
}

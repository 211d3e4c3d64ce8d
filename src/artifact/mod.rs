//! The `.asx` file: a sharded executable with everything a run needs except weights and data.
//!
//! A file is, in order (integers little-endian):
//!
//! ```text
//! magic      14 bytes   "autoshard-asx\0"
//! format      4 bytes   2
//! length      8 bytes   of the whole file
//! manifest    8 bytes   its length
//! checksum   32 bytes   SHA-256 of the manifest
//! manifest              JSON: what this is, how it was made, where the sections lie
//! sections              the local module as IR text; the listing of its program
//! checksum   32 bytes   SHA-256 of everything before
//! ```
//!
//! A file is not trusted. Lengths are compared before anything is allocated for them, checksums before
//! anything is parsed; then the module is parsed, verified and scheduled anew, and a program that does
//! not list exactly as the stored one is refused: an executable never runs differently from how it was
//! compiled.
//!
//! Invariant: the same executable, plan and options give the same bytes. No time, no host, no path goes
//! into a file but those that the options name.

mod listing;
mod manifest;

pub(crate) use manifest::strategy;

pub use listing::{kernels, list};
pub use manifest::{DataSource, RunOptions, Section, WeightsSource};

use crate::compile::{assemble, CompileError, Executable};
use autoshard_ir::core::Module;
use autoshard_ir::plan::Plan;
use autoshard_ir::text::{self, Diagnostics};
use manifest::{Manifest, PlanText};
use sha2::{Digest, Sha256};
use std::io::Read;
use std::path::{Path, PathBuf};

/// The first bytes of a file.
pub const MAGIC: &[u8; 14] = b"autoshard-asx\0";
/// The format that this version writes and reads.
pub const FORMAT: u32 = 2;
/// Largest file that is read: executables are text, and 1 GiB of it is no model.
pub const MAX_BYTES: u64 = 1 << 30;
/// Name of the section with the local module.
pub const MODULE: &str = "module.shard";
/// Name of the section with the program's listing.
pub const PROGRAM: &str = "program.txt";

/// Bytes before the manifest.
const HEADER: usize = 14 + 4 + 8 + 8 + 32;
/// Bytes of a SHA-256.
const SUM: usize = 32;

/// An executable with its plan and the run it was made for.
#[derive(Clone, Debug)]
pub struct Artifact {
    /// What runs.
    pub executable: Executable,
    /// The decisions that made it.
    pub plan: Plan,
    /// What a run without further flags does.
    pub options: RunOptions,
}

/// Why a file is not an executable that can run.
#[derive(Debug, thiserror::Error)]
pub enum ArtifactError {
    /// The file cannot be read or written.
    #[error("{path}: {action}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// What was tried.
        action: &'static str,
        /// What the system said.
        source: std::io::Error,
    },
    /// Not this kind of file.
    #[error("{path}: this is not an .asx file: it does not begin with {:?}", "autoshard-asx")]
    Magic {
        /// The file.
        path: PathBuf,
    },
    /// Another version of the format.
    #[error(
        "{path}: format {found} of .asx is not read by this version, which reads {FORMAT}; compile the model again"
    )]
    Format {
        /// The file.
        path: PathBuf,
        /// Its format.
        found: u32,
    },
    /// Not as long as it says, or longer than is read.
    #[error("{path}: {reason}")]
    Length {
        /// The file.
        path: PathBuf,
        /// The lengths.
        reason: String,
    },
    /// A checksum does not fit.
    #[error("{path}: {part} is damaged: its checksum does not fit; fetch the file again or compile the model again")]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Which part.
        part: String,
    },
    /// A manifest that cannot be read.
    #[error("{path}: the manifest: {reason}")]
    Manifest {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// A module that does not parse.
    #[error("{path}: the module does not parse:\n{source}")]
    Module {
        /// The file.
        path: PathBuf,
        /// The places.
        source: Diagnostics,
    },
    /// A module that does not compile.
    #[error("{path}: {source}")]
    Compile {
        /// The file.
        path: PathBuf,
        /// Why.
        source: Box<CompileError>,
    },
    /// The module compiles to another program than it did.
    #[error("{path}: refused: the module's program is not the one that was stored by autoshard {made_by} (this is {}); {difference}; compile the model again", env!("CARGO_PKG_VERSION"))]
    Mismatch {
        /// The file.
        path: PathBuf,
        /// Version that made the file.
        made_by: String,
        /// The first line that differs.
        difference: String,
    },
}

/// Whether a path names or holds an `.asx` file.
pub fn is_artifact(path: &Path) -> bool {
    path.extension().is_some_and(|e| e == "asx") || has_magic(path)
}

/// Whether a path is of a file that begins as `.asx` files do.
pub fn has_magic(path: &Path) -> bool {
    let mut first = [0; MAGIC.len()];
    let magic = |mut f: std::fs::File| f.read_exact(&mut first).is_ok() && first == *MAGIC;
    path.is_file() && std::fs::File::open(path).is_ok_and(magic)
}

/// The bytes of an executable's file.
pub fn pack(artifact: &Artifact) -> Vec<u8> {
    let bodies = [(MODULE, text::print(&artifact.executable.local)), (PROGRAM, list(&artifact.executable.program))];
    let mut sections = Vec::new();
    let mut offset = 0u64;
    for (name, body) in &bodies {
        let length = body.len() as u64;
        sections.push(Section { name: name.to_string(), offset, length, sha256: hex(&sum(body.as_bytes())) });
        offset += length;
    }
    let manifest = Manifest {
        autoshard: env!("CARGO_PKG_VERSION").to_string(),
        options: artifact.options.clone(),
        meta: artifact.executable.meta.clone(),
        plan: PlanText::of(&artifact.plan),
        sections,
    }
    .print();
    let length = HEADER as u64 + manifest.len() as u64 + offset + SUM as u64;
    let mut out = Vec::with_capacity(length as usize);
    out.extend_from_slice(MAGIC);
    out.extend_from_slice(&FORMAT.to_le_bytes());
    out.extend_from_slice(&length.to_le_bytes());
    out.extend_from_slice(&(manifest.len() as u64).to_le_bytes());
    out.extend_from_slice(&sum(manifest.as_bytes()));
    out.extend_from_slice(manifest.as_bytes());
    bodies.iter().for_each(|(_, body)| out.extend_from_slice(body.as_bytes()));
    let whole = sum(&out);
    out.extend_from_slice(&whole);
    out
}

/// Writes an executable's file, beside its name first, so that a failure leaves no half of it.
pub fn write(artifact: &Artifact, path: &Path) -> Result<usize, ArtifactError> {
    let bytes = pack(artifact);
    let io = |source| ArtifactError::Io { path: path.into(), action: "cannot write", source };
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let part = path.with_file_name(format!(".{name}.{}.part", std::process::id()));
    let written = std::fs::write(&part, &bytes).and_then(|()| std::fs::rename(&part, path));
    if written.is_err() {
        // Best effort: the error that matters is the one returned.
        let _ = std::fs::remove_file(&part);
    }
    written.map(|()| bytes.len()).map_err(io)
}

/// Reads an executable's file.
pub fn read(path: &Path) -> Result<Artifact, ArtifactError> {
    unpack(&contents(path)?, path)
}

/// The bytes of a file of acceptable length.
fn contents(path: &Path) -> Result<Vec<u8>, ArtifactError> {
    let io = |source| ArtifactError::Io { path: path.into(), action: "cannot read", source };
    let file = std::fs::File::open(path).map_err(io)?;
    let length = file.metadata().map_err(io)?.len();
    if length > MAX_BYTES {
        let reason = format!("{length} bytes; at most {MAX_BYTES} are read");
        return Err(ArtifactError::Length { path: path.into(), reason });
    }
    let mut bytes = Vec::with_capacity(length as usize);
    // A file that grows meanwhile is not read further.
    file.take(length).read_to_end(&mut bytes).map_err(io)?;
    Ok(bytes)
}

/// The executable in the bytes of a file; `path` is only the name that messages show.
pub fn unpack(bytes: &[u8], path: &Path) -> Result<Artifact, ArtifactError> {
    let parts = split(bytes, path)?;
    let refuse = |reason: String| ArtifactError::Manifest { path: path.into(), reason };
    let manifest = Manifest::parse(parts.manifest).map_err(refuse)?;
    let module = section(&manifest, &parts, MODULE, path)?;
    let program = section(&manifest, &parts, PROGRAM, path)?;
    if sum(&bytes[..bytes.len() - SUM]) != parts.whole {
        return Err(damaged("the file", path));
    }
    let plan = manifest.plan.read().map_err(refuse)?;
    let local = parse(module, path)?;
    if local.mesh != plan.mesh {
        return Err(refuse(format!("the plan is for mesh {}, the module for {}", plan.mesh, local.mesh)));
    }
    let executable = assemble(manifest.meta, local)
        .map_err(|e| ArtifactError::Compile { path: path.into(), source: Box::new(e) })?;
    match difference(program, &list(&executable.program)) {
        None => Ok(Artifact { executable, plan, options: manifest.options }),
        Some(difference) => Err(ArtifactError::Mismatch { path: path.into(), made_by: manifest.autoshard, difference }),
    }
}

/// The parts of a file, lengths checked.
struct Parts<'a> {
    manifest: &'a [u8],
    sections: &'a [u8],
    whole: &'a [u8],
}

fn split<'a>(bytes: &'a [u8], path: &Path) -> Result<Parts<'a>, ArtifactError> {
    let length = |reason: String| ArtifactError::Length { path: path.into(), reason };
    if !bytes.starts_with(&MAGIC[..bytes.len().min(MAGIC.len())]) || bytes.is_empty() {
        return Err(ArtifactError::Magic { path: path.into() });
    }
    if bytes.len() < HEADER + SUM {
        return Err(length(format!("the file is cut off: {} bytes are fewer than any .asx has", bytes.len())));
    }
    let (header, rest) = bytes.split_at(HEADER);
    let found = u32::from_le_bytes(array(&header[14..18]));
    if found != FORMAT {
        return Err(ArtifactError::Format { path: path.into(), found });
    }
    let says = u64::from_le_bytes(array(&header[18..26]));
    if says != bytes.len() as u64 {
        let what = if says > bytes.len() as u64 { "the file is cut off" } else { "the file is too long" };
        return Err(length(format!("{what}: it has {} bytes, its header says {says}", bytes.len())));
    }
    let (body, whole) = rest.split_at(rest.len() - SUM);
    let manifest = u64::from_le_bytes(array(&header[26..34]));
    let Some((manifest, sections)) = usize::try_from(manifest).ok().and_then(|n| body.split_at_checked(n)) else {
        return Err(length(format!("the header gives the manifest {manifest} bytes, the file has {}", body.len())));
    };
    if sum(manifest) != header[34..HEADER] {
        return Err(damaged("the manifest", path));
    }
    Ok(Parts { manifest, sections, whole })
}

/// The text of a section.
fn section<'a>(manifest: &Manifest, parts: &Parts<'a>, name: &str, path: &Path) -> Result<&'a str, ArtifactError> {
    let refuse = |reason: String| ArtifactError::Manifest { path: path.into(), reason };
    let Some(s) = manifest.sections.iter().find(|s| s.name == name) else {
        return Err(refuse(format!("there is no section {name}")));
    };
    let range = |s: &Section| -> Option<std::ops::Range<usize>> {
        let (from, length) = (usize::try_from(s.offset).ok()?, usize::try_from(s.length).ok()?);
        Some(from..from.checked_add(length)?)
    };
    let Some(body) = range(s).and_then(|r| parts.sections.get(r)) else {
        return Err(refuse(format!(
            "section {name} is said to have {} bytes at {}, but the sections have {}",
            s.length,
            s.offset,
            parts.sections.len()
        )));
    };
    if hex(&sum(body)) != s.sha256 {
        return Err(damaged(&format!("section {name}"), path));
    }
    std::str::from_utf8(body).map_err(|e| refuse(format!("section {name} is not UTF-8: {e}")))
}

fn parse(module: &str, path: &Path) -> Result<Module, ArtifactError> {
    let name = format!("{}:{MODULE}", path.display());
    text::parse(module, &name).map_err(|source| ArtifactError::Module { path: path.into(), source })
}

/// The first line in which two listings differ.
fn difference(stored: &str, made: &str) -> Option<String> {
    if stored == made {
        return None;
    }
    let (mut a, mut b) = (stored.lines(), made.lines());
    for line in 1.. {
        match (a.next(), b.next()) {
            (None, None) => break,
            (x, y) if x == y => {}
            (x, y) => {
                let show = |l: Option<&str>| l.map_or_else(|| "nothing".to_string(), |l| format!("`{}`", l.trim()));
                return Some(format!("line {line} of its listing was {} and is now {}", show(x), show(y)));
            }
        }
    }
    Some("the listings differ in line ends".to_string())
}

fn damaged(part: &str, path: &Path) -> ArtifactError {
    ArtifactError::Damaged { path: path.into(), part: part.to_string() }
}

fn sum(bytes: &[u8]) -> [u8; SUM] {
    Sha256::digest(bytes).into()
}

/// Lower-case hexadecimal.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

/// SHA-256 of a file's bytes, in hexadecimal.
pub fn checksum(path: &Path) -> Result<String, ArtifactError> {
    let io = |source| ArtifactError::Io { path: path.into(), action: "cannot read", source };
    let mut hash = Sha256::new();
    let mut file = std::fs::File::open(path).map_err(io)?;
    std::io::copy(&mut file, &mut hash).map_err(io)?;
    Ok(hex(&hash.finalize()))
}

/// A slice of exactly N bytes as an array.
fn array<const N: usize>(slice: &[u8]) -> [u8; N] {
    let mut bytes = [0; N];
    bytes.copy_from_slice(slice);
    bytes
}

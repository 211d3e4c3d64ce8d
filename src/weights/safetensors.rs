//! Reading and writing safetensors, the file format of Hugging Face checkpoints.
//!
//! A [`Checkpoint`] is one file or several under an index; files are mapped into memory, and a box of a
//! tensor is read without touching the rest. Files are untrusted: sizes and offsets are checked on opening.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs::File;
use std::ops::Range;
use std::path::{Path, PathBuf};

use ::safetensors::tensor::{Metadata, View};
use ::safetensors::{Dtype, SafeTensors};
use memmap2::Mmap;
use serde_json::Value;
use sha2::{Digest, Sha256};

use super::{check_box, runs};
use crate::json::{Document, JsonError};

/// The name of a checkpoint in one file.
pub const SINGLE: &str = "model.safetensors";
/// The name of the index of a checkpoint in several files.
pub const INDEX: &str = "model.safetensors.index.json";

/// Why weights cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum WeightsError {
    /// A file cannot be opened, read or written.
    #[error("{path}: {action}: {source}")]
    Io {
        /// The file.
        path: String,
        /// What was tried.
        action: &'static str,
        /// What the system said.
        source: std::io::Error,
    },
    /// A folder without weights.
    #[error("{folder}: no weights here: neither {SINGLE} nor {INDEX}")]
    NoWeights {
        /// The folder.
        folder: String,
    },
    /// The index is unreadable.
    #[error(transparent)]
    Json(#[from] JsonError),
    /// The index does not say what it must.
    #[error("{index}: {message}")]
    Index {
        /// The index file.
        index: String,
        /// What is wrong.
        message: String,
    },
    /// A file is not valid safetensors.
    #[error("{path}: the file is damaged or not safetensors: {message}; fetch it again")]
    Damaged {
        /// The file.
        path: String,
        /// What is wrong.
        message: String,
    },
    /// A tensor is not in the checkpoint.
    #[error("{path}: no tensor {name}{near}")]
    Missing {
        /// The checkpoint.
        path: String,
        /// The tensor.
        name: String,
        /// Empty, or the nearest name.
        near: String,
    },
    /// A tensor has another shape than the model.
    #[error("{path}: tensor {name} has shape {found:?}, but the model needs {wanted:?}; the weights belong to another config.json")]
    Shape {
        /// The checkpoint.
        path: String,
        /// The tensor.
        name: String,
        /// The shape in the file.
        found: Vec<usize>,
        /// The shape of the model.
        wanted: Vec<usize>,
    },
    /// A tensor has a dtype that is not read.
    #[error("{path}: tensor {name} has dtype {dtype}, but only F64, F32, F16 and BF16 can be read")]
    Dtype {
        /// The checkpoint.
        path: String,
        /// The tensor.
        name: String,
        /// The dtype in the file.
        dtype: String,
    },
    /// A box outside its tensor.
    #[error("{name}: the box of {size:?} elements from {start:?} on does not lie inside the shape {shape:?}")]
    Outside {
        /// The tensor.
        name: String,
        /// Its shape.
        shape: Vec<usize>,
        /// First index per dimension.
        start: Vec<usize>,
        /// Elements per dimension.
        size: Vec<usize>,
    },
    /// A tensor to write whose values do not fill its shape, or whose name comes twice.
    #[error("{path}: cannot write tensor {name}: {message}")]
    Unwritable {
        /// The file.
        path: String,
        /// The tensor.
        name: String,
        /// What is wrong.
        message: String,
    },
}

/// Weights in files.
#[derive(Debug)]
pub struct Checkpoint {
    /// The folder or file as messages show it.
    path: String,
    files: Vec<(PathBuf, Mmap)>,
    tensors: BTreeMap<String, Entry>,
}

#[derive(Debug)]
struct Entry {
    file: usize,
    dtype: Dtype,
    shape: Vec<usize>,
    /// Where the bytes lie in the file.
    bytes: Range<usize>,
}

impl WeightsError {
    /// A failure to write at `path`.
    pub fn io(path: &Path, source: std::io::Error) -> WeightsError {
        WeightsError::Io { path: path.display().to_string(), action: "cannot write", source }
    }
}

impl Checkpoint {
    /// Opens a `.safetensors` file, or a folder with `model.safetensors` or an index of several files.
    pub fn open(path: &Path) -> Result<Checkpoint, WeightsError> {
        let mut checkpoint =
            Checkpoint { path: path.display().to_string(), files: Vec::new(), tensors: BTreeMap::new() };
        if !path.is_dir() {
            checkpoint.add_file(path.to_path_buf())?;
        } else if path.join(INDEX).exists() {
            checkpoint.add_index(path)?;
        } else if path.join(SINGLE).exists() {
            checkpoint.add_file(path.join(SINGLE))?;
        } else {
            return Err(WeightsError::NoWeights { folder: checkpoint.path });
        }
        Ok(checkpoint)
    }

    /// Names of the tensors, sorted.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.tensors.keys().map(String::as_str)
    }

    /// Names of the tensors that are not in a list, sorted.
    pub fn others<'a>(&'a self, list: impl IntoIterator<Item = &'a str>) -> Vec<&'a str> {
        let listed: BTreeSet<&str> = list.into_iter().collect();
        self.names().filter(|name| !listed.contains(name)).collect()
    }

    /// The shape of a tensor, when it is there.
    pub fn shape(&self, name: &str) -> Option<&[usize]> {
        self.tensors.get(name).map(|t| t.shape.as_slice())
    }

    /// Whether a tensor is there with this shape and a dtype that can be read.
    pub fn check(&self, name: &str, shape: &[usize]) -> Result<(), WeightsError> {
        self.entry(name, shape).map(|_| ())
    }

    /// One box of a tensor as f64, row-major; `shape` is the shape that the model needs.
    pub fn read_box(
        &self,
        name: &str,
        shape: &[usize],
        start: &[usize],
        size: &[usize],
    ) -> Result<Vec<f64>, WeightsError> {
        self.read_view(name, shape, shape, start, size)
    }

    /// One box of a tensor seen under another shape: `view` splits or merges dimensions of `shape` and
    /// keeps the row-major order.
    pub fn read_view(
        &self,
        name: &str,
        shape: &[usize],
        view: &[usize],
        start: &[usize],
        size: &[usize],
    ) -> Result<Vec<f64>, WeightsError> {
        let entry = self.entry(name, shape)?;
        check_box(name, view, start, size)?;
        let bytes = &self.files[entry.file].1[entry.bytes.clone()];
        let width = entry.dtype.bitsize() / 8;
        let mut out = Vec::with_capacity(size.iter().product());
        for run in runs(view, start, size) {
            decode(entry.dtype, &bytes[run.start * width..run.end * width], &mut out);
        }
        Ok(out)
    }

    /// A whole tensor as f64.
    pub fn read(&self, name: &str, shape: &[usize]) -> Result<Vec<f64>, WeightsError> {
        self.read_box(name, shape, &vec![0; shape.len()], shape)
    }

    /// SHA-256 of the names and contents of all files, in hexadecimal. It reads everything once.
    pub fn checksum(&self) -> String {
        let mut files: Vec<&(PathBuf, Mmap)> = self.files.iter().collect();
        files.sort_by(|a, b| a.0.cmp(&b.0));
        let mut hash = Sha256::new();
        for (path, bytes) in files {
            // The folder may move; the file's own name and size keep two files from being read as one.
            hash.update(path.file_name().map_or_else(Vec::new, |n| n.as_encoded_bytes().to_vec()));
            hash.update((bytes.len() as u64).to_le_bytes());
            hash.update(&bytes[..]);
        }
        hash.finalize().iter().map(|b| format!("{b:02x}")).collect()
    }

    fn entry(&self, name: &str, shape: &[usize]) -> Result<&Entry, WeightsError> {
        let path = || self.path.clone();
        let Some(entry) = self.tensors.get(name) else {
            let near = self.names().map(|n| (strsim::damerau_levenshtein(n, name), n)).min();
            let near = near.map_or_else(
                || "; it holds none".to_string(),
                |(_, n)| format!("; the nearest of {} is {n}", self.tensors.len()),
            );
            return Err(WeightsError::Missing { path: path(), name: name.into(), near });
        };
        if entry.shape != shape {
            return Err(WeightsError::Shape {
                path: path(),
                name: name.into(),
                found: entry.shape.clone(),
                wanted: shape.to_vec(),
            });
        }
        match entry.dtype {
            Dtype::F64 | Dtype::F32 | Dtype::F16 | Dtype::BF16 => Ok(entry),
            other => Err(WeightsError::Dtype { path: path(), name: name.into(), dtype: format!("{other:?}") }),
        }
    }

    fn add_index(&mut self, folder: &Path) -> Result<(), WeightsError> {
        let path = folder.join(INDEX);
        let doc = Document::read(&path)?;
        let wrong = |message: String| WeightsError::Index { index: path.display().to_string(), message };
        let Some(Value::Object(map)) = doc.value.get("weight_map") else {
            return Err(wrong("the key `weight_map` is missing or not an object".into()));
        };
        let mut files: Vec<&str> = Vec::new();
        for (tensor, file) in map {
            let Some(file) = file.as_str() else {
                return Err(wrong(format!("the file of tensor {tensor} is not a text: {file}")));
            };
            if Path::new(file).file_name() != Some(file.as_ref()) {
                return Err(wrong(format!(
                    "the file of tensor {tensor} must be a plain name in this folder, not {file:?}"
                )));
            }
            if !folder.join(file).exists() {
                return Err(wrong(format!("tensor {tensor} is said to be in {file}, which is not in this folder")));
            }
            files.push(file);
        }
        files.sort_unstable();
        files.dedup();
        files.into_iter().try_for_each(|file| self.add_file(folder.join(file)))?;
        match map.keys().find(|tensor| !self.tensors.contains_key(*tensor)) {
            Some(tensor) => {
                Err(wrong(format!("tensor {tensor} is in no file, although the index names {}", map[tensor])))
            }
            None => Ok(()),
        }
    }

    fn add_file(&mut self, path: PathBuf) -> Result<(), WeightsError> {
        let io =
            |source| WeightsError::Io { path: path.display().to_string(), action: "cannot read the weights", source };
        let damaged = |message: String| WeightsError::Damaged { path: path.display().to_string(), message };
        let file = File::open(&path).map_err(io)?;
        if file.metadata().map_err(io)?.len() < 8 {
            return Err(damaged("it is shorter than a header".into()));
        }
        // SAFETY: the map is only ever read as bytes; that nobody truncates the file meanwhile is the
        // contract every reader of mapped weights relies on.
        let map = unsafe { Mmap::map(&file) }.map_err(io)?;
        let (header, metadata) = SafeTensors::read_metadata(&map).map_err(|e| damaged(e.to_string()))?;
        let entries = entries(&metadata, 8 + header, self.files.len());
        for (name, entry) in entries {
            if self.tensors.contains_key(&name) {
                return Err(damaged(format!("tensor {name} is also in another file")));
            }
            self.tensors.insert(name, entry);
        }
        self.files.push((path, map));
        Ok(())
    }
}

/// The tensors of one file whose data begins at `data`.
fn entries(metadata: &Metadata, data: usize, file: usize) -> Vec<(String, Entry)> {
    let entry = |(name, info): (String, &::safetensors::tensor::TensorInfo)| {
        let (from, to) = info.data_offsets;
        (name, Entry { file, dtype: info.dtype, shape: info.shape.clone(), bytes: data + from..data + to })
    };
    metadata.tensors().into_iter().map(entry).collect()
}

/// Appends little-endian elements as f64. The dtype is one of the four that [`Checkpoint::check`] admits.
fn decode(dtype: Dtype, bytes: &[u8], out: &mut Vec<f64>) {
    let pairs = |b: &[u8]| u16::from_le_bytes(array(b));
    match dtype {
        Dtype::F64 => out.extend(bytes.chunks_exact(8).map(|b| f64::from_le_bytes(array(b)))),
        Dtype::F32 => out.extend(bytes.chunks_exact(4).map(|b| f64::from(f32::from_le_bytes(array(b))))),
        Dtype::BF16 => out.extend(bytes.chunks_exact(2).map(|b| f64::from(f32::from_bits(u32::from(pairs(b)) << 16)))),
        _ => out.extend(bytes.chunks_exact(2).map(|b| half_to_f64(pairs(b)))),
    }
}

/// A chunk of exactly N bytes as an array.
fn array<const N: usize>(chunk: &[u8]) -> [u8; N] {
    let mut bytes = [0; N];
    bytes.copy_from_slice(chunk);
    bytes
}

/// IEEE half precision, exactly.
fn half_to_f64(bits: u16) -> f64 {
    let sign = if bits >> 15 == 1 { -1.0 } else { 1.0 };
    let (exponent, fraction) = (i32::from(bits >> 10 & 31), f64::from(bits & 1023));
    sign * match exponent {
        0 => fraction * 2f64.powi(-24),
        31 if fraction == 0.0 => f64::INFINITY,
        31 => f64::NAN,
        _ => (1024.0 + fraction) * 2f64.powi(exponent - 25),
    }
}

/// A tensor to write.
#[derive(Clone, Copy, Debug)]
pub struct Tensor<'a> {
    /// Its Hugging Face name.
    pub name: &'a str,
    /// The checkpoint's shape.
    pub shape: &'a [usize],
    /// Its elements, row-major.
    pub values: Values<'a>,
}

/// Elements in the precision they are stored in.
#[derive(Clone, Copy, Debug)]
pub enum Values<'a> {
    /// Stored as F32.
    F32(&'a [f32]),
    /// Stored as F64.
    F64(&'a [f64]),
}

impl Values<'_> {
    fn len(&self) -> usize {
        match self {
            Values::F32(v) => v.len(),
            Values::F64(v) => v.len(),
        }
    }
}

impl View for Tensor<'_> {
    fn dtype(&self) -> Dtype {
        match self.values {
            Values::F32(_) => Dtype::F32,
            Values::F64(_) => Dtype::F64,
        }
    }

    fn shape(&self) -> &[usize] {
        self.shape
    }

    fn data(&self) -> Cow<'_, [u8]> {
        match self.values {
            Values::F32(v) => v.iter().flat_map(|x| x.to_le_bytes()).collect(),
            Values::F64(v) => v.iter().flat_map(|x| x.to_le_bytes()).collect(),
        }
    }

    fn data_len(&self) -> usize {
        self.values.len() * self.dtype().bitsize() / 8
    }
}

/// Writes tensors to one file: beside it first, then renamed, so that a reader never sees half a file.
/// The same tensors give the same bytes, in whatever order they come.
pub fn write(path: &Path, tensors: &[Tensor]) -> Result<(), WeightsError> {
    let unwritable = |name: &str, message: String| WeightsError::Unwritable {
        path: path.display().to_string(),
        name: name.into(),
        message,
    };
    let mut names = std::collections::HashSet::new();
    for t in tensors {
        let wanted: usize = t.shape.iter().product();
        if t.values.len() != wanted {
            return Err(unwritable(t.name, format!("{} values for shape {:?}", t.values.len(), t.shape)));
        }
        if !names.insert(t.name) {
            return Err(unwritable(t.name, "the name comes twice".into()));
        }
    }
    let io = |source| WeightsError::Io { path: path.display().to_string(), action: "cannot write the weights", source };
    let file_name = path.file_name().ok_or_else(|| io(std::io::ErrorKind::InvalidInput.into()))?;
    let beside = path.with_file_name(format!(".{}.{}.part", file_name.to_string_lossy(), std::process::id()));
    let written = write_beside(&beside, tensors).and_then(|()| std::fs::rename(&beside, path));
    if written.is_err() {
        // Best effort: the error that matters is the one returned.
        let _ = std::fs::remove_file(&beside);
    }
    written.map_err(io)
}

fn write_beside(path: &Path, tensors: &[Tensor]) -> std::io::Result<()> {
    // transformers refuses files that do not say which framework's layout they have.
    let metadata = HashMap::from([("format".to_string(), "pt".to_string())]);
    let data = tensors.iter().map(|t| (t.name, *t));
    ::safetensors::serialize_to_file(data, Some(metadata), path).map_err(std::io::Error::other)?;
    File::open(path)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder() -> tempfile::TempDir {
        tempfile::tempdir().unwrap()
    }

    fn write_one(path: &Path, name: &str, shape: &[usize]) {
        let values: Vec<f32> = (0..shape.iter().product::<usize>()).map(|i| i as f32 + 0.5).collect();
        write(path, &[Tensor { name, shape, values: Values::F32(&values) }]).unwrap();
    }

    fn error<T: std::fmt::Debug>(result: Result<T, WeightsError>) -> String {
        result.unwrap_err().to_string()
    }

    #[test]
    fn what_is_written_is_read_back() {
        let dir = folder();
        let path = dir.path().join(SINGLE);
        let (a, b): (Vec<f32>, Vec<f64>) = ((0..12).map(|i| i as f32).collect(), vec![0.1, 0.2]);
        let a = Tensor { name: "a", shape: &[3, 4], values: Values::F32(&a) };
        let b = Tensor { name: "b", shape: &[2], values: Values::F64(&b) };
        write(&path, &[a, b]).unwrap();
        let first = std::fs::read(&path).unwrap();
        write(&path, &[b, a]).unwrap();
        assert_eq!(first, std::fs::read(&path).unwrap(), "order must not matter");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1, "nothing is left beside");

        let checkpoint = Checkpoint::open(dir.path()).unwrap();
        assert_eq!(checkpoint.names().collect::<Vec<_>>(), ["a", "b"]);
        assert_eq!(checkpoint.read("b", &[2]).unwrap(), [0.1, 0.2]);
        assert_eq!(checkpoint.read_box("a", &[3, 4], &[1, 1], &[2, 2]).unwrap(), [5.0, 6.0, 9.0, 10.0]);
        assert_eq!(checkpoint.checksum(), Checkpoint::open(&path).unwrap().checksum());
        assert_eq!(checkpoint.checksum().len(), 64);
    }

    #[test]
    fn an_index_joins_files_and_names_what_is_absent() {
        let dir = folder();
        write_one(&dir.path().join("model-1.safetensors"), "a", &[2]);
        write_one(&dir.path().join("model-2.safetensors"), "b", &[3]);
        let index = |map: &str| {
            std::fs::write(dir.path().join(INDEX), format!("{{\"metadata\": {{}}, \"weight_map\": {map}}}")).unwrap()
        };
        index(r#"{"a": "model-1.safetensors", "b": "model-2.safetensors"}"#);
        assert_eq!(Checkpoint::open(dir.path()).unwrap().read("b", &[3]).unwrap(), [0.5, 1.5, 2.5]);
        index(r#"{"a": "model-1.safetensors", "c": "model-3.safetensors"}"#);
        assert!(error(Checkpoint::open(dir.path()))
            .ends_with("tensor c is said to be in model-3.safetensors, which is not in this folder"));
        index(r#"{"a": "model-1.safetensors", "c": "model-2.safetensors"}"#);
        assert!(error(Checkpoint::open(dir.path()))
            .contains("tensor c is in no file, although the index names \"model-2.safetensors\""));
        index(r#"{"a": "../model-1.safetensors"}"#);
        assert!(error(Checkpoint::open(dir.path())).contains("must be a plain name in this folder"));
        index("[]");
        assert!(error(Checkpoint::open(dir.path())).contains("`weight_map` is missing or not an object"));
    }

    #[test]
    fn wrong_tensors_are_named() {
        let dir = folder();
        let path = dir.path().join(SINGLE);
        assert!(
            error(Checkpoint::open(dir.path())).ends_with("neither model.safetensors nor model.safetensors.index.json")
        );
        assert!(error(Checkpoint::open(&path)).contains("cannot read the weights"));
        write_one(&path, "model.layers.0.q_proj.weight", &[2, 2]);
        let checkpoint = Checkpoint::open(&path).unwrap();
        let missing = error(checkpoint.check("model.layers.0.q_prj.weight", &[2, 2]));
        assert!(
            missing
                .ends_with("no tensor model.layers.0.q_prj.weight; the nearest of 1 is model.layers.0.q_proj.weight"),
            "{missing}"
        );
        let shape = error(checkpoint.read("model.layers.0.q_proj.weight", &[4]));
        assert!(shape.contains("has shape [2, 2], but the model needs [4]"), "{shape}");
        let bad = Tensor { name: "x", shape: &[3], values: Values::F32(&[1.0]) };
        assert!(error(write(&path, &[bad])).ends_with("cannot write tensor x: 1 values for shape [3]"));
        let good = Tensor { name: "x", shape: &[1], values: Values::F32(&[1.0]) };
        assert!(error(write(&path, &[good, good])).ends_with("the name comes twice"));
        assert!(error(write(&dir.path().join("no/such/x.safetensors"), &[good])).contains("cannot write the weights"));
    }

    #[test]
    fn half_types_are_exact_and_others_refused() {
        let dir = folder();
        let path = dir.path().join(SINGLE);
        let raw = |dtype: Dtype, bytes: &[u8]| {
            let view =
                ::safetensors::tensor::TensorView::new(dtype, vec![bytes.len() * 8 / dtype.bitsize()], bytes).unwrap();
            ::safetensors::serialize_to_file([("t", view)], None, &path).unwrap();
            Checkpoint::open(&path).unwrap()
        };
        let halves: Vec<u8> =
            [0x3c00u16, 0xc000, 0x0001, 0x7c00, 0x3555].iter().flat_map(|b| b.to_le_bytes()).collect();
        let read = raw(Dtype::F16, &halves).read("t", &[5]).unwrap();
        assert_eq!(read, [1.0, -2.0, 2f64.powi(-24), f64::INFINITY, 0.333251953125]);
        assert_eq!(raw(Dtype::BF16, &[0x80, 0x3f, 0x20, 0xc0]).read("t", &[2]).unwrap(), [1.0, -2.5]);
        let refused = error(raw(Dtype::I32, &[0; 8]).read("t", &[2]));
        assert!(refused.ends_with("tensor t has dtype I32, but only F64, F32, F16 and BF16 can be read"), "{refused}");
    }

    #[test]
    fn damage_is_found() {
        let dir = folder();
        let path = dir.path().join(SINGLE);
        write_one(&path, "a", &[8]);
        let whole = std::fs::read(&path).unwrap();
        for cut in [0, 5, 20, whole.len() - 1] {
            std::fs::write(&path, &whole[..cut]).unwrap();
            let message = error(Checkpoint::open(&path));
            assert!(message.contains("the file is damaged or not safetensors"), "cut at {cut}: {message}");
        }
        for byte in 0..40 {
            let mut flipped = whole.clone();
            flipped[byte] ^= 0xFF;
            std::fs::write(&path, &flipped).unwrap();
            let _ = Checkpoint::open(&path).map(|c| c.read("a", &[8])); // Whatever the damage, no panic.
        }
    }
}

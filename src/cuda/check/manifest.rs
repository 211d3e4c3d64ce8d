//! What was packed: models, kernels, images. One JSON file beside them.

use super::CheckError;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Name of the file.
pub const FILE: &str = "manifest.json";
/// Folder of the models' configurations.
pub const MODELS: &str = "models";
/// Version of the form.
const FORMAT: u32 = 1;

/// A model whose kernels are packed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PackedModel {
    /// Folder under the models' folder.
    pub name: String,
    /// Sequences of a step.
    pub batch: usize,
    /// Positions.
    pub seq_len: usize,
}

/// A file with a compiled text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PackedImage {
    /// Relative to the folder of the manifest.
    pub file: String,
    /// Bytes.
    pub bytes: u64,
    /// Checksum.
    pub sha256: String,
}

/// What lies in a folder.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// Version of the form.
    format: u32,
    /// Version of the program that packed it.
    pub autoshard: String,
    /// Version of NVRTC.
    pub nvrtc: String,
    /// Architectures.
    pub targets: Vec<String>,
    /// Models whose kernels are compared.
    pub models: Vec<PackedModel>,
    /// The model whose kernels are measured.
    pub large: Option<PackedModel>,
    /// By name of the text, then by target.
    pub images: BTreeMap<String, BTreeMap<String, PackedImage>>,
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

/// A name that stays inside its folder.
fn plain(name: &str) -> bool {
    !name.is_empty() && !name.starts_with('.') && name.chars().all(|c| c.is_ascii_alphanumeric() || "._-".contains(c))
}

impl Manifest {
    /// A manifest without images.
    pub fn new(nvrtc: (i32, i32), targets: &[String]) -> Manifest {
        Manifest {
            format: FORMAT,
            autoshard: env!("CARGO_PKG_VERSION").into(),
            nvrtc: format!("{}.{}", nvrtc.0, nvrtc.1),
            targets: targets.to_vec(),
            models: vec![],
            large: None,
            images: BTreeMap::new(),
        }
    }

    /// Writes an image into the folder, and notes it.
    pub fn add(&mut self, dir: &Path, kernel: &str, target: &str, bytes: &[u8]) -> Result<(), CheckError> {
        let file = format!("{target}/{kernel}.image");
        let path = dir.join(&file);
        std::fs::create_dir_all(dir.join(target)).map_err(CheckError::io(&dir.join(target)))?;
        std::fs::write(&path, bytes).map_err(CheckError::io(&path))?;
        let image = PackedImage { file, bytes: bytes.len() as u64, sha256: hex(&Sha256::digest(bytes)) };
        self.images.entry(kernel.into()).or_default().insert(target.into(), image);
        Ok(())
    }

    /// Writes the manifest.
    pub fn write(&self, dir: &Path) -> Result<(), CheckError> {
        let path = dir.join(FILE);
        super::report::write_json(&path, self).map_err(CheckError::io(&path))
    }

    /// Reads a folder's manifest.
    pub fn read(dir: &Path) -> Result<Manifest, CheckError> {
        let path = dir.join(FILE);
        let damaged = |problem: String| CheckError::Manifest { path: path.clone(), problem };
        let text = std::fs::read_to_string(&path).map_err(CheckError::io(&path))?;
        let m: Manifest = serde_json::from_str(&text).map_err(|e| damaged(e.to_string()))?;
        if m.format != FORMAT {
            return Err(damaged(format!("it is of form {}, this program reads {FORMAT}", m.format)));
        }
        if let Some(bad) = m.models.iter().chain(&m.large).find(|p| !plain(&p.name)) {
            return Err(damaged(format!("{:?} is no name of a model", bad.name)));
        }
        let files = m.images.values().flat_map(|t| t.values());
        let inside = |f: &str| f.split_once('/').is_some_and(|(d, name)| plain(d) && plain(name));
        match files.into_iter().find(|i| !inside(&i.file)) {
            Some(bad) => Err(damaged(format!("{:?} is no name of an image", bad.file))),
            None => Ok(m),
        }
    }

    /// The image of a text, checked.
    pub fn image(&self, dir: &Path, kernel: &str, target: &str) -> Result<Vec<u8>, CheckError> {
        let missing = || CheckError::NotPacked { kernel: kernel.into(), target: target.into() };
        let entry = self.images.get(kernel).and_then(|t| t.get(target)).ok_or_else(missing)?;
        let path: PathBuf = dir.join(&entry.file);
        let bytes = std::fs::read(&path).map_err(CheckError::io(&path))?;
        if bytes.len() as u64 != entry.bytes || hex(&Sha256::digest(&bytes)) != entry.sha256 {
            let problem = "its checksum is another than the manifest's".to_string();
            return Err(CheckError::Manifest { path, problem });
        }
        Ok(bytes)
    }

    /// Bytes of all images.
    pub fn bytes(&self) -> u64 {
        self.images.values().flat_map(|t| t.values()).map(|i| i.bytes).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_and_damage_is_noticed() {
        let d = tempfile::tempdir().unwrap();
        let mut m = Manifest::new((12, 9), &["sm_80".into()]);
        m.models.push(PackedModel { name: "llama_tiny".into(), batch: 2, seq_len: 32 });
        m.add(d.path(), "k1", "sm_80", b"\x7fELF1").unwrap();
        m.write(d.path()).unwrap();
        let read = Manifest::read(d.path()).unwrap();
        assert_eq!((&read, read.bytes()), (&m, 5));
        assert_eq!(read.image(d.path(), "k1", "sm_80").unwrap(), b"\x7fELF1");
        let told = |kernel: &str, target: &str| read.image(d.path(), kernel, target).unwrap_err().to_string();
        assert!(told("k2", "sm_80").starts_with("k2 was not packed for sm_80"), "{}", told("k2", "sm_80"));
        assert!(told("k1", "sm_90a").starts_with("k1 was not packed for sm_90a"));
        std::fs::write(d.path().join("sm_80/k1.image"), b"\x7fELF2").unwrap();
        assert!(told("k1", "sm_80").contains("checksum"), "{}", told("k1", "sm_80"));
        std::fs::remove_file(d.path().join("sm_80/k1.image")).unwrap();
        assert!(told("k1", "sm_80").contains("k1.image"));
    }

    #[test]
    fn manifests_that_are_none_are_refused() {
        let d = tempfile::tempdir().unwrap();
        let told = || Manifest::read(d.path()).unwrap_err().to_string();
        assert!(told().contains(FILE));
        let m = Manifest::new((12, 9), &[]);
        let mut value = serde_json::to_value(&m).unwrap();
        let mut with = |key: &str, v: serde_json::Value| {
            let old = value[key].clone();
            value[key] = v;
            std::fs::write(d.path().join(FILE), value.to_string()).unwrap();
            value[key] = old;
            told()
        };
        assert!(with("format", 2.into()).contains("form 2"));
        let model = serde_json::json!([{"name": "../x", "batch": 1, "seq_len": 1}]);
        assert!(with("models", model).contains("is no name of a model"));
        let image = serde_json::json!({"k": {"sm_80": {"file": "../../etc/x", "bytes": 1, "sha256": ""}}});
        assert!(with("images", image).contains("is no name of an image"));
        assert!(with("targets", 1.into()).contains("manifest.json"));
    }
}

//! Compiles everything that is checked, on a machine without a GPU.

use super::manifest::{Manifest, PackedModel, MODELS};
use super::primitives;
use super::stages::{kernel_checks, large_checks, Packed};
use super::CheckError;
use autoshard_codegen::nvrtc::{check, Cache, Image, Job, Limits, Nvrtc, Target};
use autoshard_codegen::{CudaKernel, Entry};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// What is packed.
#[derive(Clone, Debug)]
pub struct Options {
    /// Folder of folders with a `config.json` and recorded numbers each.
    pub goldens: PathBuf,
    /// Names of those that are taken; all, if there is none.
    pub only: Vec<String>,
    /// Configuration of the model whose kernels are measured; one layer of it.
    pub large: Option<PathBuf>,
    /// Architectures.
    pub targets: Vec<Target>,
    /// Threads that compile.
    pub threads: usize,
    /// Images that were compiled before.
    pub cache: Option<Cache>,
}

/// Folder of the large model.
const LARGE: &str = "large";
/// Positions of its step: one sequence.
const LARGE_POSITIONS: usize = 8192;

/// What came of packing.
#[derive(Clone, Debug, PartialEq)]
pub struct Done {
    /// What lies in the folder.
    pub manifest: Manifest,
    /// Entry points that exceed what a multiprocessor has, or spill registers.
    pub over_budget: Vec<String>,
}

/// A text to compile.
struct Source {
    text: String,
    /// Entry points, where budgets are checked.
    entries: Vec<Entry>,
}

impl From<CudaKernel> for Source {
    fn from(k: CudaKernel) -> Source {
        Source { text: k.source, entries: k.entries }
    }
}

/// Fills a folder.
pub fn pack(dir: &Path, nvrtc: &Nvrtc, options: &Options) -> Result<Done, CheckError> {
    let names: Vec<String> = options.targets.iter().map(|t| t.arch().to_string()).collect();
    let mut manifest = Manifest::new(nvrtc.version(), &names);
    manifest.models = goldens(dir, options)?;
    manifest.large = match &options.large {
        Some(path) => Some(one_layer(dir, path)?),
        None => None,
    };
    let texts = texts(Packed { dir, manifest: &manifest, target: "" })?;
    let jobs = texts.iter().flat_map(|(kernel, source)| {
        options.targets.iter().map(move |target| Job { kernel, source: &source.text, target: *target })
    });
    let jobs: Vec<Job> = jobs.collect();
    let images = nvrtc.compile_all(&jobs, options.threads, options.cache.as_ref());
    let mut over_budget = vec![];
    for (job, image) in jobs.iter().zip(images) {
        let image = image?;
        manifest.add(dir, job.kernel, job.target.arch(), &image.bytes)?;
        let entries = texts.get(job.kernel).map_or(&[][..], |s| &s.entries);
        over_budget.extend(over(entries, &image));
    }
    manifest.write(dir)?;
    Ok(Done { manifest, over_budget })
}

/// Entry points of an image that exceed the limits that every target has.
fn over<'a>(entries: &'a [Entry], image: &'a Image) -> impl Iterator<Item = String> + 'a {
    let found = |e: &Entry| image.resources.iter().find(|r| r.entry == e.name);
    let judged = entries.iter().filter_map(move |e| check(e, &found(e)?.resources, &Limits::default()).err());
    judged.map(|e| format!("{}: {e}", image.target.arch()))
}

/// All texts by name.
fn texts(packed: Packed) -> Result<BTreeMap<String, Source>, CheckError> {
    let mut out = BTreeMap::new();
    for p in primitives::all() {
        out.insert(p.entry, Source { text: p.source, entries: vec![] });
    }
    for check in kernel_checks(packed)?.into_iter().chain(large_checks(packed)?) {
        // Those without a text are skipped when checks run, and told of.
        if let Ok(text) = check.text {
            out.insert(text.name.clone(), text.into());
        }
    }
    Ok(out)
}

fn read(path: &Path) -> Result<Value, CheckError> {
    let text = std::fs::read(path).map_err(CheckError::io(path))?;
    serde_json::from_slice(&text).map_err(|e| CheckError::Model { path: path.into(), problem: e.to_string() })
}

/// Copies the configurations.
fn goldens(dir: &Path, options: &Options) -> Result<Vec<PackedModel>, CheckError> {
    let root = &options.goldens;
    let mut names = vec![];
    for entry in std::fs::read_dir(root).map_err(CheckError::io(root))? {
        let name = entry.map_err(CheckError::io(root))?.file_name().to_string_lossy().into_owned();
        if options.only.is_empty() || options.only.contains(&name) {
            names.push(name);
        }
    }
    names.sort();
    let mut out = vec![];
    for name in names {
        let path = root.join(&name).join("golden_f64.json");
        let numbers = read(&path)?;
        let size = |key: &str| {
            let n = numbers.get(key).and_then(Value::as_u64).and_then(|n| usize::try_from(n).ok());
            n.ok_or_else(|| CheckError::Model { path: path.clone(), problem: format!("`{key}` is missing") })
        };
        let model = PackedModel { batch: size("batch")?, seq_len: size("seq")?, name };
        write_config(dir, &model.name, &read(&root.join(&model.name).join("config.json"))?)?;
        out.push(model);
    }
    Ok(out)
}

/// A configuration with one layer: its kernels are those of all layers.
fn one_layer(dir: &Path, path: &Path) -> Result<PackedModel, CheckError> {
    let mut config = read(path)?;
    if let Some(layers) = config.get_mut("num_hidden_layers") {
        *layers = 1.into();
    }
    write_config(dir, LARGE, &config)?;
    Ok(PackedModel { name: LARGE.into(), batch: 1, seq_len: LARGE_POSITIONS })
}

fn write_config(dir: &Path, model: &str, config: &Value) -> Result<(), CheckError> {
    let folder = dir.join(MODELS).join(model);
    std::fs::create_dir_all(&folder).map_err(CheckError::io(&folder))?;
    let path = folder.join("config.json");
    std::fs::write(&path, config.to_string()).map_err(CheckError::io(&path))
}

/// What a run will do with a packed folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counts {
    /// Checks of primitives.
    pub primitives: usize,
    /// Kernels on ranks.
    pub kernels: usize,
    /// Large kernels.
    pub large: usize,
    /// Why kernels are skipped.
    pub skipped: Vec<String>,
}

/// Counts what a run will do.
pub fn counts(dir: &Path, manifest: &Manifest) -> Result<Counts, CheckError> {
    let packed = Packed { dir, manifest, target: "" };
    let (kernels, large) = (kernel_checks(packed)?, large_checks(packed)?);
    let skipped = kernels.iter().chain(&large).filter_map(|k| k.text.as_ref().err().map(|e| e.to_string()));
    let skipped = skipped.collect();
    Ok(Counts { primitives: primitives::all().len(), kernels: kernels.len(), large: large.len(), skipped })
}

//! From arguments to something that can run: a model that is planned and compiled, or an `.asx` file.

use super::args::{self, Build};
use super::{folder, mesh, why, Failure};
use autoshard::artifact::{self, Artifact, DataSource, RunOptions, WeightsSource};
use autoshard::compile::{self, Executable, Options};
use autoshard::hardware::Preset;
use autoshard::import;
use autoshard::ir::plan::Plan;
use autoshard::ir::DType;
use autoshard::model::{Model, StepShape};
use autoshard::passes::autodiff::AdamW;
use autoshard::passes::search::{Candidate, Degrees};
use autoshard::planfile;
use autoshard::report;
use autoshard::weights::Checkpoint;
use std::fmt::Display;
use std::fmt::Write;
use std::io::Read;
use std::path::{Path, PathBuf};

/// Steps where neither a flag nor `run.json` says otherwise.
const STEPS: usize = 200;
/// Unused tensors that a note names.
const UNUSED_SHOWN: usize = 3;
/// Meshes that are shown when one is chosen.
const SHOWN: usize = 5;

/// A sharded executable with the defaults of its run.
pub struct Job {
    /// What runs.
    pub executable: Executable,
    /// The decisions that made it.
    pub plan: Plan,
    /// Steps, and why so many.
    pub steps: (usize, &'static str),
    /// Weights, where they come from files.
    pub weights: Option<PathBuf>,
    /// Data, where they come from a file.
    pub data: Option<PathBuf>,
    /// What is told before anything else: the model, its notes.
    pub title: String,
    /// Meshes and prices, where one was chosen.
    pub choice: String,
    /// Values that were taken, each with its reason.
    pub settings: Vec<(&'static str, String, String)>,
}

impl Job {
    /// The settings as lines, after those that only a run has.
    pub fn settings_text(&self, more: &[(&'static str, String, String)]) -> String {
        let mut out = "settings:\n".to_string();
        for (name, value, why) in self.settings.iter().chain(more) {
            let _ = writeln!(out, "  {name:<10} {value:<12} {why}");
        }
        out
    }

    /// A note on tensors of the weights' files that the model does not use; empty where there are none.
    pub fn unused_weights(&self) -> Result<String, Failure> {
        let Some(path) = &self.weights else { return Ok(String::new()) };
        let checkpoint = Checkpoint::open(path)?;
        let others = checkpoint.others(self.executable.meta.tensors.iter().map(|t| t.name.as_str()));
        let names = others[..others.len().min(UNUSED_SHOWN)].join(", ");
        let (count, what) = (others.len(), path.display());
        Ok(match count {
            0 => String::new(),
            1 => format!("note: 1 tensor of {what} is not used: {names}\n"),
            _ if count <= UNUSED_SHOWN => format!("note: {count} tensors of {what} are not used: {names}\n"),
            _ => format!("note: {count} tensors of {what} are not used: {names} and {} more\n", count - UNUSED_SHOWN),
        })
    }

    /// The file of this job: checksums of what it names are taken here.
    pub fn artifact(self) -> Result<Artifact, Failure> {
        let text = |p: &Path| p.display().to_string();
        let weights = match &self.weights {
            Some(p) => WeightsSource::Folder { path: text(p), sha256: Checkpoint::open(p)?.checksum() },
            None => WeightsSource::Init,
        };
        let data = match &self.data {
            Some(p) => DataSource::File { path: text(p), sha256: artifact::checksum(p)? },
            None => DataSource::Golden,
        };
        let options = RunOptions { steps: self.steps.0, weights, data };
        Ok(Artifact { executable: self.executable, plan: self.plan, options })
    }
}

/// The degrees that the arguments ask for, and the number of devices to choose a mesh for.
fn layout(build: &Build) -> Result<(Option<Degrees>, usize), Failure> {
    let Some(text) = &build.mesh else { return Ok((None, build.devices.unwrap_or(1))) };
    let degrees = mesh::parse(text)?;
    let ranks = mesh::ranks(&degrees)?;
    match build.devices {
        Some(n) if n != ranks => Err(Failure::Usage(format!(
            "--mesh {text} has dp·fsdp·tp = {}·{}·{} = {ranks} ranks, but --devices is {n}; they must agree",
            degrees.dp, degrees.fsdp, degrees.tp
        ))),
        _ => Ok((Some(degrees), ranks)),
    }
}

/// Refuses what is there but is no kind of model. What claims to be JSON or a module is left to its parser.
fn check_kind(path: &Path) -> Result<(), Failure> {
    let named = path.extension().is_some_and(|e| e == "json" || e == "shard");
    let special = path.exists() && !path.is_file() && !path.is_dir();
    if !special && (named || !path.is_file() || starts_as_json(path)) {
        return Ok(());
    }
    Err(Failure::Failed(format!(
        "{}: this is not a model: give a Hugging Face config.json, a folder holding one, or a .shard file (`run` also takes an .asx file)",
        path.display()
    )))
}

/// Whether a file's first character is a JSON object's. A file that cannot be read is left to its reader.
fn starts_as_json(path: &Path) -> bool {
    let mut head = Vec::new();
    let read = std::fs::File::open(path).and_then(|f| f.take(256).read_to_end(&mut head));
    let head = head.strip_prefix(b"\xef\xbb\xbf").unwrap_or(&head);
    read.is_err() || head.trim_ascii_start().starts_with(b"{")
}

/// What a plan asks for, as the flags that say the same. Flags beside it may only repeat it.
fn planned(path: &Path, build: &Build, file: &Path) -> Result<Build, Failure> {
    let plan = why::read(file)?;
    plan.model.check(path).map_err(|e| Failure::Failed(format!("{}: {e}", file.display())))?;
    let asked = planfile::execution(&plan).map_err(|e| Failure::Failed(format!("{}: {e}", file.display())))?;
    agree(file, "--batch", build.batch, asked.batch)?;
    agree(file, "--seq-len", build.seq_len, asked.seq_len)?;
    agree(file, "--precision", build.precision.as_deref(), asked.precision)?;
    agree(file, "--devices", build.devices, mesh::ranks(&asked.degrees)?)?;
    Ok(Build {
        mesh: Some(report::degrees(&asked.degrees)),
        batch: Some(asked.batch),
        seq_len: Some(asked.seq_len),
        precision: Some(asked.precision.to_string()),
        ..build.clone()
    })
}

/// Plans and compiles a model.
pub fn from_model(path: &Path, build: &Build) -> Result<Job, Failure> {
    args::target(build.target.as_deref())?;
    let planned = build.plan.as_deref().map(|file| planned(path, build, file)).transpose()?;
    let build = planned.as_ref().unwrap_or(build);
    let precision = build.precision.as_deref().map(args::precision).transpose()?;
    let (degrees, devices) = layout(build)?;
    check_kind(path)?;
    let beside = folder::of(path);
    let run = folder::run_file(&beside)?;
    let mut settings = Vec::new();
    let model = match path.extension().is_some_and(|e| e == "shard") {
        true => from_text(path, build, precision, &mut settings)?,
        false => from_config(path, build, precision, &run, degrees.as_ref(), &mut settings)?,
    };
    let (lr, why) = chosen(build.lr, "--lr", run.lr, 1e-3, "default");
    settings.push(("lr", lr.to_string(), why.to_string()));
    settings.push(("target", "cpu".to_string(), given(build.target.is_some(), "--target")));
    let machine = Preset::this_machine()?;
    let (plan, choice) = choose(&model, degrees.as_ref(), build.devices, devices, &machine)?;
    let options = options(build)?;
    if build.fusion.is_some() {
        settings.push(("fusion", options.fusion.clone(), "--fusion".to_string()));
    }
    if build.no_overlap {
        settings.push(("overlap", "off".to_string(), "--no-overlap".to_string()));
    }
    let executable = compile::compile_with(&model, &plan, &AdamW { lr, ..AdamW::default() }, &options)?;
    let (steps, why) = chosen(None, "", run.steps, STEPS, "default");
    let weights = build.weights.clone().or_else(|| folder::weights(&beside));
    let title = title(&model);
    Ok(Job { executable, plan, steps: (steps, why), weights, data: folder::text(&beside), title, choice, settings })
}

/// How the program is made.
fn options(build: &Build) -> Result<Options, Failure> {
    let fusion = build.fusion.as_deref().map(args::fusion).transpose()?;
    Ok(Options { fusion: fusion.unwrap_or(Options::default().fusion), overlap: !build.no_overlap })
}

/// The flag, else `run.json`, else the default; with what decided.
fn chosen<T>(flag: Option<T>, name: &'static str, file: Option<T>, default: T, why: &'static str) -> (T, &'static str) {
    match (flag, file) {
        (Some(x), _) => (x, name),
        (None, Some(x)) => (x, "run.json"),
        (None, None) => (default, why),
    }
}

fn given(is: bool, flag: &str) -> String {
    if is { flag } else { "default" }.to_string()
}

type Settings = Vec<(&'static str, String, String)>;

/// A model whose sizes the arguments choose.
fn from_config(
    path: &Path,
    build: &Build,
    precision: Option<DType>,
    run: &folder::RunFile,
    degrees: Option<&Degrees>,
    settings: &mut Settings,
) -> Result<Model, Failure> {
    let config = import::load(path)?;
    let longest = config.max_positions.min(4096);
    let flag = |name: &'static str| if build.plan.is_some() { "--plan" } else { name };
    let (seq_len, why) =
        chosen(build.seq_len, flag("--seq-len"), run.seq_len, longest, "min(4096, max_position_embeddings)");
    let (batch, why_batch) = match (build.batch, degrees, build.devices) {
        (Some(b), ..) => (b, flag("--batch")),
        (None, Some(d), _) => (d.dp * d.fsdp, "one sequence per data rank"),
        (None, None, Some(n)) => (n, "one sequence per device"),
        (None, None, None) => (1, "one sequence per data rank"),
    };
    let dtype = precision.unwrap_or(DType::F32);
    settings.push(("batch", batch.to_string(), why_batch.to_string()));
    settings.push(("seq-len", seq_len.to_string(), why.to_string()));
    settings.push(("precision", dtype.to_string(), given(precision.is_some(), flag("--precision"))));
    let mut model = Model::from_config(path, &config, StepShape { batch, seq_len, dtype })?;
    if seq_len > config.max_positions {
        model.notes.push(format!(
            "sequences of {seq_len} tokens ({why}) are longer than max_position_embeddings = {} of {}",
            config.max_positions,
            path.display()
        ));
    }
    Ok(model)
}

/// A model that brings its sizes; flags may only repeat them.
fn from_text(path: &Path, build: &Build, precision: Option<DType>, settings: &mut Settings) -> Result<Model, Failure> {
    let model = Model::from_text(path)?;
    let StepShape { batch, seq_len, dtype } = model.shape;
    agree(path, "--batch", build.batch, batch)?;
    agree(path, "--seq-len", build.seq_len, seq_len)?;
    agree(path, "--precision", precision, dtype)?;
    for (name, value) in
        [("batch", batch.to_string()), ("seq-len", seq_len.to_string()), ("precision", dtype.to_string())]
    {
        settings.push((name, value, "the module's".to_string()));
    }
    Ok(model)
}

/// The plan of the mesh that was given, or of the cheapest; with the text about the choice.
fn choose(
    model: &Model,
    degrees: Option<&Degrees>,
    asked: Option<usize>,
    devices: usize,
    machine: &Preset,
) -> Result<(Plan, String), Failure> {
    match (degrees, asked) {
        (Some(d), _) => Ok((compile::plan_mesh(model, d)?, String::new())),
        (None, None) => {
            let one = Degrees { dp: 1, fsdp: 1, tp: 1, sequence_parallel: false };
            Ok((compile::plan_mesh(model, &one)?, String::new()))
        }
        (None, Some(_)) => {
            let all: Vec<Candidate> = compile::plan(model, devices, &machine.rank(devices))?;
            let text = report::candidates(&all, SHOWN, &machine.name);
            let best = all.into_iter().next().map(|c| c.plan);
            Ok((best.ok_or_else(|| Failure::Failed("no mesh is legal".to_string()))?, text))
        }
    }
}

fn title(model: &Model) -> String {
    let mut out = format!(
        "model: {} ({}), {} parameters in {} tensors, vocabulary {}\n",
        model.path.display(),
        model.family,
        report::grouped(model.params() as f64),
        model.tensors.len(),
        model.vocab
    );
    for note in &model.notes {
        let _ = writeln!(out, "note: {note}");
    }
    out
}

/// Reads an `.asx` file. What it was compiled for can be repeated by flags, not changed.
pub fn from_artifact(path: &Path, build: &Build, own_data: bool) -> Result<Job, Failure> {
    if build.plan.is_some() {
        let why = "an .asx file holds the plan that it was made by; leave --plan out";
        return Err(Failure::Usage(format!("{}: {why}", path.display())));
    }
    args::target(build.target.as_deref())?;
    let precision = build.precision.as_deref().map(args::precision).transpose()?;
    let (degrees, _) = layout(build)?;
    let Artifact { executable, plan, options } = artifact::read(path)?;
    let meta = &executable.meta;
    agree(path, "--batch", build.batch, meta.batch)?;
    agree(path, "--seq-len", build.seq_len, meta.seq_len)?;
    agree(path, "--lr", build.lr, meta.lr)?;
    agree(path, "--fusion", build.fusion.as_deref().map(args::fusion).transpose()?, meta.fusion.clone())?;
    agree(path, "--no-overlap", build.no_overlap.then_some(false), meta.overlap)?;
    agree(path, "--precision", precision.map(|p| p.to_string()), meta.precision.clone())?;
    agree(path, "--devices", build.devices, plan.mesh.ranks())?;
    let compiled = mesh::of(&plan.mesh, plan.sequence_parallel);
    let asked = degrees.map(|d| Degrees { sequence_parallel: d.sequence_parallel && d.tp > 1, ..d });
    agree(path, "--mesh", asked.map(|d| report::degrees(&d)), report::degrees(&compiled))?;
    let why = || "compiled".to_string();
    let settings = vec![
        ("batch", meta.batch.to_string(), why()),
        ("seq-len", meta.seq_len.to_string(), why()),
        ("precision", meta.precision.clone(), why()),
        ("lr", meta.lr.to_string(), why()),
        ("target", meta.target.clone(), why()),
    ];
    let title = format!("executable: {} ({}), {} tensors\n", path.display(), meta.family, meta.tensors.len());
    let weights = if build.weights.is_some() { build.weights.clone() } else { stored_weights(path, &options.weights)? };
    let data = if own_data { None } else { stored_data(path, &options.data)? };
    let steps = (options.steps, "compiled");
    Ok(Job { executable, plan, steps, weights, data, title, choice: String::new(), settings })
}

/// A flag that is given must say what was built.
fn agree<T: PartialEq + Display>(path: &Path, flag: &str, given: Option<T>, built: T) -> Result<(), Failure> {
    match given {
        Some(g) if g != built => Err(Failure::Usage(format!(
            "{}: {flag} is {g}, but the file was made for {built}; leave the flag out or make the file again",
            path.display()
        ))),
        _ => Ok(()),
    }
}

/// A path of an `.asx` file: as it was given, or beside the file.
fn find(asx: &Path, path: &str) -> Option<PathBuf> {
    [PathBuf::from(path), folder::of(asx).join(path)].into_iter().find(|p| p.exists())
}

fn stored_weights(asx: &Path, source: &WeightsSource) -> Result<Option<PathBuf>, Failure> {
    let WeightsSource::Folder { path, sha256 } = source else { return Ok(None) };
    let Some(found) = find(asx, path) else {
        return Err(refused(asx, "weights", path, &missing(asx, path, "--weights")));
    };
    if Checkpoint::open(&found)?.checksum() != *sha256 {
        return Err(refused(
            asx,
            "weights",
            path,
            "they have changed since (another checksum); give --weights to use them all the same",
        ));
    }
    Ok(Some(found))
}

fn stored_data(asx: &Path, source: &DataSource) -> Result<Option<PathBuf>, Failure> {
    let DataSource::File { path, sha256 } = source else { return Ok(None) };
    let Some(found) = find(asx, path) else {
        return Err(refused(asx, "data", path, &missing(asx, path, "--data")));
    };
    if artifact::checksum(&found)? != *sha256 {
        return Err(refused(
            asx,
            "data",
            path,
            "they have changed since (another checksum); give --data to use them all the same",
        ));
    }
    Ok(Some(found))
}

/// Where a path of an `.asx` file was looked for, and what to do.
fn missing(asx: &Path, path: &str, flag: &str) -> String {
    if Path::new(path).is_absolute() {
        return format!("they are not there; give {flag}");
    }
    let here = std::env::current_dir().unwrap_or_else(|_| PathBuf::from("."));
    let (here, beside) = (here.display(), folder::of(asx));
    format!(
        "they are not there: the path is relative to the folder of the run, which is {here}, or to the .asx file's, {}; run from the right folder or give {flag}",
        beside.display()
    )
}

fn refused(asx: &Path, what: &str, path: &str, why: &str) -> Failure {
    Failure::Failed(format!("{}: it was compiled for the {what} in {path}, but {why}", asx.display()))
}

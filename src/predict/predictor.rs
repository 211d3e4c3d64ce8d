//! The predictor: from a model, a machine, a stack and a layout to the time of a step.
//!
//! What does not depend on a stack's constants is kept: kernel tables of a device, links of a cluster, modules
//! at a micro-batch's sizes, profiles of their functions. A prediction then prices the profiles and plays the
//! step.

mod explain;

pub use explain::{Told, ToldMessage, When};

use super::cut::{cut, Cut};
use super::places::placements;
use super::shaped::Shape;
use super::{memory, CpMethod, Layout, Memory, Module, Precision, PredictError, Prediction, Recompute, Schedule};
use crate::decoder::Decoder;
use crate::{collectives, kernels, stacks};
use autoshard_cost::cluster::Cluster;
use autoshard_cost::collectives::Collectives;
use autoshard_cost::device::Format;
use autoshard_cost::kernels::Kernels;
use autoshard_cost::layout::Placement;
use autoshard_cost::schedule::Kind;
use autoshard_cost::stack::{AttentionKernel, ConstantName, Fusion, Habits, LossKernel, Stack};
use autoshard_passes::predict::machine::Machine;
use autoshard_passes::predict::pipeline::{self, Pipe};
use autoshard_passes::predict::price::{price, quote, Formats, Manner, Priced, Quoted};
use autoshard_passes::predict::step::{self, Data, Scratch, Step, StepTime, Unit};
use autoshard_passes::predict::{Factors, Group};
use autoshard_passes::profile::{self, Context, Part, Profile, Saved, Shards, Storage};
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

/// Everything that decides a step's time.
#[derive(Clone, Debug)]
pub struct Job<'a> {
    /// A name of the model that no other model has: what was kept for it is found by it.
    pub key: &'a str,
    /// The model.
    pub decoder: &'a Decoder,
    /// The machine.
    pub cluster: &'a Cluster,
    /// The framework.
    pub stack: &'a Stack,
    /// How the step is spread.
    pub layout: &'a Layout,
    /// Decoder layers of each pipeline stage, where that is known.
    pub layers_per_stage: Option<&'a [u64]>,
    /// Positions of a sequence.
    pub seq_len: u64,
    /// Format of products.
    pub precision: Precision,
    /// What a run says about itself; habits of the stack where it does not.
    pub says: Says,
}

/// What a run may say about itself.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Says {
    /// Tensor-parallel messages overlap products.
    pub tensor_overlap: Option<bool>,
    /// Data-parallel messages overlap computation.
    pub data_overlap: Option<bool>,
    /// Bytes of an element of a gradient that is reduced.
    pub gradient_bytes: Option<f64>,
    /// A compiler saw the whole model.
    pub compiled: Option<bool>,
    /// Dropout runs.
    pub dropout: Option<bool>,
}

/// Sizes of a model's functions by what decides them.
type ProfileKey = (String, u64, u64, Shards, HabitsKey, profile::Recompute);
type HabitsKey = (u8, u8, [bool; 6], Vec<String>);

/// What calls keep also depends on dropout, the format of products, whether gradients are shared out unit by unit,
/// and two of the stack's habits.
type SavedKey = (ProfileKey, bool, Precision, bool, (LossKernel, bool));

/// A user's own measurements, in place of those that ship.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Overrides {
    /// CSV files of products or attention, of the device that is predicted for.
    pub kernels: Vec<PathBuf>,
    /// CSV files or output of nccl-tests.
    pub collectives: Vec<PathBuf>,
}

impl Overrides {
    /// Sorts files by what their first line says they are; what is no table of kernels is one of collectives.
    ///
    /// # Errors
    /// A file that cannot be read.
    pub fn of_files(files: &[PathBuf]) -> Result<Overrides, PredictError> {
        let mut out = Overrides::default();
        for file in files {
            let name = file.display();
            let text = std::fs::read_to_string(file)
                .map_err(|e| PredictError::Json(format!("{name}: cannot read the table: {e}")))?;
            match super::TableKind::of_columns(text.lines().next().unwrap_or("")) {
                Ok(super::TableKind::Products | super::TableKind::Attention) => out.kernels.push(file.clone()),
                Ok(super::TableKind::Collectives) | Err(_) => out.collectives.push(file.clone()),
            }
        }
        Ok(out)
    }
}

/// Keeps what predictions share.
#[derive(Debug, Default)]
pub struct Predictor {
    tables: Overrides,
    kernels: Mutex<HashMap<String, Arc<Kernels>>>,
    links: Mutex<Vec<(Cluster, Arc<Collectives>)>>,
    shapes: Mutex<HashMap<(String, u64, u64), Arc<Shape>>>,
    profiles: Mutex<HashMap<ProfileKey, Arc<Profiles>>>,
    saved: Mutex<HashMap<SavedKey, Arc<Vec<Saved>>>>,
    moments: Mutex<HashMap<memory::Play, Arc<memory::Moments>>>,
    scratch: Mutex<Vec<Scratch>>,
}

/// A model's functions as sizes.
#[derive(Debug)]
pub(crate) struct Profiles {
    /// What one rank does.
    pub functions: Vec<Arc<Profile>>,
    /// In order, equal neighbours together: function, count.
    pub calls: Vec<(usize, usize)>,
    /// Which functions are decoder layers.
    pub layer: Vec<bool>,
}

impl Profiles {
    /// Bytes of the activation that goes from layer to layer, on one rank.
    pub fn boundary_bytes(&self) -> f64 {
        let layers = self.functions.iter().zip(&self.layer).filter(|(_, layer)| **layer);
        layers.map(|(f, _)| f.boundary_bytes).fold(0.0, f64::max)
    }
}

/// A lock whose holder panicked still guards whole values: they are replaced, never changed in place.
fn lock<T>(m: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Predictor {
    /// One that uses a user's tables in place of those that ship.
    pub fn with_tables(tables: Overrides) -> Predictor {
        Predictor { tables, ..Predictor::default() }
    }

    /// The time of a step.
    ///
    /// # Errors
    /// A layout that does not fit the machine's tiers, sizes that no module has.
    pub fn predict(&self, job: &Job) -> Result<Prediction, PredictError> {
        let ready = self.prepare(job)?;
        let mut scratch = lock(&self.scratch).pop().unwrap_or_default();
        let played = ready.play(job, job.stack, &mut scratch, true);
        lock(&self.scratch).push(scratch);
        let (priced, time) = played?;
        let p = &ready.profiles;
        let mut answer = super::answer::answer(job, &p.functions, &p.calls, &ready.cut, &priced, &time);
        let memory = self.memory_of(job, p, &ready.cut)?;
        answer.stages.iter_mut().zip(memory).for_each(|(stage, m)| stage.memory = Some(m));
        Ok(answer)
    }

    /// Peak memory of each pipeline rank, which needs no times: a layout alone can be judged.
    ///
    /// # Errors
    /// Sizes that no module has, or a cut or schedule that cannot be.
    pub fn memory(&self, job: &Job) -> Result<Vec<Memory>, PredictError> {
        let profiles = self.profiles(job)?;
        let cut = cut_of(job, &profiles)?;
        self.memory_of(job, &profiles, &cut)
    }

    fn memory_of(&self, job: &Job, profiles: &Profiles, cut: &Cut) -> Result<Vec<Memory>, PredictError> {
        let saved = self.saved(job)?;
        let moments = self.moments(&memory::Play::of(job.layout, cut.chunks()))?;
        let parameters: Vec<_> = profiles.functions.iter().map(|f| f.parameters).collect();
        let functions = memory::Functions {
            saved: &saved,
            parameters: &parameters,
            layer: &profiles.layer,
            boundary: profiles.boundary_bytes(),
        };
        Ok(memory::memory(job, &functions, &data(job), cut, &moments))
    }

    /// When stages hold most.
    pub(crate) fn moments(&self, play: &memory::Play) -> Result<Arc<memory::Moments>, PredictError> {
        if let Some(found) = lock(&self.moments).get(play) {
            return Ok(found.clone());
        }
        let made = Arc::new(play.moments()?);
        lock(&self.moments).insert(*play, made.clone());
        Ok(made)
    }

    pub(crate) fn saved(&self, job: &Job) -> Result<Arc<Vec<Saved>>, PredictError> {
        let dropout = job.says.dropout == Some(true);
        let (profile_key, policy) = profile_key(job);
        let m = &job.stack.habits.memory;
        let key = (profile_key, dropout, job.precision, job.layout.zero < 2, (m.loss, m.keeps_gathered_inputs));
        if let Some(found) = lock(&self.saved).get(&key) {
            return Ok(found.clone());
        }
        let (l, habits, shards) = (job.layout, habits(job), shards(job.layout));
        let shape = self.shape(job)?;
        let none = profile::Recompute::None;
        let mut policy = policy;
        // What goes to the host is not computed again, and not on the device either.
        let offloads =
            |m: &Recompute| matches!(m, Recompute::Selective(m) if m.contains(&Module::RematQkvProjOffloaded));
        if let (profile::Recompute::Parts(parts), true) = (&mut policy, offloads(&l.recompute)) {
            parts.push(Part::LatentHeads);
        }
        let functions = shape.functions.iter().enumerate().map(|(i, f)| {
            let layer = shape.is_layer(i);
            let storage = Storage {
                dropout,
                wide: if job.precision == Precision::F32 { 2.0 } else { 1.0 },
                narrow: if layer && job.precision.format().bytes() < 2.0 { 0.5 } else { 1.0 },
                // Embedding and head are the framework's own layers, not the kernel library's; where gradients are
                // shared out unit by unit, a unit's are counted together.
                weight_gradients: !(layer && habits.accumulate_fp32) && l.zero < 2,
            };
            let policy = if layer { &policy } else { &none };
            profile::saved(f, &shards, &habits, policy, &storage).map_err(|e| missing(job, e.to_string()))
        });
        let made = Arc::new(functions.collect::<Result<Vec<_>, _>>()?);
        lock(&self.saved).insert(key, made.clone());
        Ok(made)
    }

    /// What does not depend on the stack's constants.
    ///
    /// # Errors
    /// As [`Predictor::predict`].
    pub fn prepare(&self, job: &Job) -> Result<Ready, PredictError> {
        self.prepare_at(job, placements(job)?)
    }

    /// The same with the places of the layout's groups known.
    pub(crate) fn prepare_at(&self, job: &Job, placements: Vec<(Group, Placement)>) -> Result<Ready, PredictError> {
        let profiles = self.profiles(job)?;
        let l = job.layout;
        let cut = cut_of(job, &profiles)?;
        let stage = |(i, chunks): (usize, &Vec<Vec<(usize, usize)>>)| {
            let share = l.recompute.share(i, &cut.layers);
            chunks.iter().map(|calls| units(&profiles, calls, share)).collect()
        };
        let stages = cut.stages.iter().enumerate().map(stage).collect();
        let generation = generation(job)?;
        let (kernels, collectives) = (self.kernels(job)?, self.links(job)?);
        let quoted = Vec::new();
        let mut ready = Ready { profiles, cut, stages, kernels, collectives, placements, generation, quoted };
        let formats = formats(job);
        let machine = ready.machine();
        let quoted = ready.profiles.functions.iter().map(|p| quote(p, &machine, &formats)).collect();
        ready.quoted = quoted;
        Ok(ready)
    }

    /// The model at the sizes of a micro-batch.
    fn shape(&self, job: &Job) -> Result<Arc<Shape>, PredictError> {
        let key = (job.key.to_string(), job.layout.micro_batch, job.seq_len);
        if let Some(found) = lock(&self.shapes).get(&key) {
            return Ok(found.clone());
        }
        let made = Shape::new(job.decoder, job.layout.micro_batch, job.seq_len).map_err(|e| missing(job, e))?;
        let made = Arc::new(made);
        lock(&self.shapes).insert(key, made.clone());
        Ok(made)
    }

    pub(crate) fn profiles(&self, job: &Job) -> Result<Arc<Profiles>, PredictError> {
        let (key, _) = profile_key(job);
        if let Some(found) = lock(&self.profiles).get(&key) {
            return Ok(found.clone());
        }
        let made = Arc::new(self.profiles_anew(job, None)?);
        lock(&self.profiles).insert(key, made.clone());
        Ok(made)
    }

    /// Profiles that are not kept: a search makes thousands and comes back to few. Those of functions without experts
    /// are taken from a layout that differs in experts' degrees alone, where one is known.
    pub(crate) fn profiles_anew(&self, job: &Job, like: Option<&Profiles>) -> Result<Profiles, PredictError> {
        let (habits, shards, policy) = (habits(job), shards(job.layout), policy(&job.layout.recompute));
        let shape = self.shape(job)?;
        let none = profile::Recompute::None;
        let functions = shape.functions.iter().enumerate().map(|(i, f)| {
            let known = like.and_then(|p| p.functions.get(i)).filter(|p| p.parameters.expert == 0.0);
            if let Some(known) = known {
                return Ok(known.clone());
            }
            let policy = if shape.is_layer(i) { &policy } else { &none };
            profile::profile(f, &shards, &habits, policy).map(Arc::new).map_err(|e| missing(job, e.to_string()))
        });
        let functions = functions.collect::<Result<Vec<_>, _>>()?;
        let layer = (0..functions.len()).map(|i| shape.is_layer(i)).collect();
        Ok(Profiles { functions, calls: shape.calls.clone(), layer })
    }

    pub(super) fn kernels(&self, job: &Job) -> Result<Arc<Kernels>, PredictError> {
        let device = &job.cluster.device;
        if let Some(found) = lock(&self.kernels).get(&device.id) {
            return Ok(found.clone());
        }
        let made =
            Arc::new(kernels::with_files(device, self.tables.kernels.iter().map(PathBuf::as_path)).map_err(|e| {
                PredictError::Missing {
                    entity: device.id.clone(),
                    what: format!("a kernel table ({e})"),
                    instead: "mend or leave out the file given with --tables".to_string(),
                }
            })?);
        lock(&self.kernels).insert(device.id.clone(), made.clone());
        Ok(made)
    }

    pub(super) fn links(&self, job: &Job) -> Result<Arc<Collectives>, PredictError> {
        if let Some((_, found)) = lock(&self.links).iter().find(|(c, _)| c == job.cluster) {
            return Ok(found.clone());
        }
        let damaged = |e: collectives::Error| PredictError::Missing {
            entity: job.cluster.id.clone(),
            what: format!("times of its links ({e})"),
            instead: "mend or leave out the file given with --tables".to_string(),
        };
        let tables = collectives::with_files(&job.cluster.device, &self.tables.collectives).map_err(damaged)?;
        let made = Arc::new(Collectives::new(job.cluster, tables));
        lock(&self.links).push((job.cluster.clone(), made.clone()));
        Ok(made)
    }
}

fn profile_key(job: &Job) -> (ProfileKey, profile::Recompute) {
    let (l, policy) = (job.layout, policy(&job.layout.recompute));
    let habits = habits_key(&habits(job));
    ((job.key.to_string(), l.micro_batch, job.seq_len, shards(l), habits, policy.clone()), policy)
}

fn missing(job: &Job, what: String) -> PredictError {
    PredictError::Missing { entity: job.key.to_string(), what, instead: "use sizes that a module can have".to_string() }
}

pub(crate) fn cut_of(job: &Job, profiles: &Profiles) -> Result<Cut, PredictError> {
    let l = job.layout;
    let schedule = if l.pp > 1 { l.schedule } else { Schedule::OneFOneB };
    cut(&profiles.calls, &profiles.layer, schedule, (l.pp, l.vpp), job.layers_per_stage)
}

/// A job with everything that its stack's constants do not change.
#[derive(Debug)]
pub struct Ready {
    profiles: Arc<Profiles>,
    cut: Cut,
    /// By stage, by chunk.
    stages: Vec<Vec<Vec<Unit>>>,
    kernels: Arc<Kernels>,
    collectives: Arc<Collectives>,
    placements: Vec<(Group, Placement)>,
    /// Time of the stack's attention kernel over the table's.
    generation: f64,
    /// Functions with times by the tables.
    quoted: Vec<Quoted>,
}

impl Ready {
    /// Prices the functions by a stack's constants and plays the step. With `explain` a pipeline is also played
    /// without messages, to tell what they cost.
    ///
    /// # Errors
    /// Times that are not numbers, which constants in their ranges never give.
    pub fn play(
        &self,
        job: &Job,
        stack: &Stack,
        scratch: &mut Scratch,
        explain: bool,
    ) -> Result<(Vec<Priced>, StepTime), PredictError> {
        let constant = |name, absent| stack.value(name, absent);
        let factors = factors(job, stack, self.generation);
        let manner = manner(job, stack);
        let priced: Vec<Priced> = self.quoted.iter().map(|q| price(q, &factors, &manner)).collect();
        let step = Step {
            priced: &priced,
            units: self.stages.first().and_then(|s| s.first()).map_or(&[], Vec::as_slice),
            microbatches: job.layout.microbatches,
            data: data(job),
            contention: manner.contention,
            optimizer_bytes: OPTIMIZER_BYTES,
            optimizer_factor: constant(ConstantName::Optimizer, 1.0),
            overhead: constant(ConstantName::StepOverhead, 0.0),
            collectives: factors.collectives,
        };
        let bug = |e: String| PredictError::Missing {
            entity: job.key.to_string(),
            what: format!("a time of each task ({e})"),
            instead: "report this as a bug".to_string(),
        };
        let time = match self.stages.len() {
            0 | 1 => step::time(&step, &self.machine(), scratch).map_err(|e| bug(e.to_string()))?,
            _ => {
                let pipe = self.pipe(job.layout)?;
                let played = pipeline::time(&step, &pipe, &self.machine(), scratch, explain);
                played.map_err(|e| bug(e.to_string()))?
            }
        };
        Ok((priced, time))
    }

    fn pipe(&self, l: &Layout) -> Result<Pipe<'_>, PredictError> {
        let kind = l.schedule.kind();
        let boundary_bytes = sent_on(self.profiles.boundary_bytes(), l);
        Ok(Pipe { kind, stages: &self.stages, boundary_bytes, blocking: blocks(kind) })
    }

    /// Decoder layers of each stage.
    pub fn layers(&self) -> &[u64] {
        &self.cut.layers
    }

    /// Names of the functions that a step calls.
    pub fn names(&self) -> Vec<String> {
        self.profiles.functions.iter().map(|f| f.function.clone()).collect()
    }

    fn machine(&self) -> Machine<'_> {
        Machine { kernels: &self.kernels, collectives: &self.collectives, placements: &self.placements }
    }
}

/// Bytes that a rank sends to the next stage, of `whole` that the activation has on it. What tensor-parallel ranks all hold is sent in shares and gathered
/// behind (Megatron's scatter-gather, DeepSpeed's partitioned activations).
pub(crate) fn sent_on(whole: f64, l: &Layout) -> f64 {
    if l.sp {
        whole
    } else {
        whole / l.tp as f64
    }
}

/// Whether stages wait until what they send has arrived.
pub(crate) fn blocks(kind: Kind) -> bool {
    kind == Kind::OneForwardOneBackward
}

/// Bytes that AdamW moves for an element of its share: it reads the gradient, the fp32 master and two moments,
/// writes master, moments and a bf16 copy (30), and before that the gradient is read for its norm and
/// cleared after (8).
pub(crate) const OPTIMIZER_BYTES: f64 = 38.0;

fn shards(l: &Layout) -> Shards {
    let context = match l.cp_method {
        CpMethod::Ring => Context::Ring,
        CpMethod::Ulysses => Context::Ulysses,
        CpMethod::AllGather => Context::Gather,
    };
    Shards { tp: l.tp, sp: l.sp, cp: l.cp, context, ep: l.ep, etp: l.etp }
}

/// The stack's habits, changed by what the run says.
fn habits(job: &Job) -> Habits {
    let mut habits = job.stack.habits.clone();
    habits.dropout = job.says.dropout == Some(true);
    if job.says.compiled == Some(true) {
        habits.fusion = Fusion::Compiled;
        habits.fused_loss = true;
        // Tables of eight-bit products bring operands to eight bits; a compiler does that once for all
        // products of an input.
        habits.joint_products |= job.precision.format().bytes() < 2.0;
    }
    habits
}

fn habits_key(h: &Habits) -> HabitsKey {
    let flags =
        [h.fused_loss, h.joint_products, h.dispatch_once, h.accumulate_fp32, h.async_tensor_backward, h.dropout];
    (h.fusion as u8, h.attention as u8, flags, h.one_kernel.clone())
}

fn policy(r: &Recompute) -> profile::Recompute {
    let part = |m: &Module| match m {
        Module::CoreAttn => vec![Part::Attention],
        Module::MlaUpProj => vec![Part::LatentHeads],
        Module::LayerNorm => vec![Part::Norms],
        Module::MoeAct => vec![Part::Activation],
        Module::Mlp => vec![Part::Mlp],
        Module::Moe => vec![Part::Experts],
        Module::OpSac => vec![Part::HalfProducts],
        // MaxText saves the products and computes the rest again.
        Module::RematMinimal => vec![Part::Attention, Part::Norms, Part::Activation],
        Module::RematQkvProjOffloaded => vec![Part::Attention, Part::Norms, Part::Mlp],
    };
    match r {
        Recompute::None => profile::Recompute::None,
        Recompute::Full | Recompute::Layers(_) | Recompute::Stages(_) => profile::Recompute::Full,
        Recompute::Selective(modules) => profile::Recompute::Parts(modules.iter().flat_map(part).collect()),
    }
}

/// Calls of a step with their parameters; a share of their layers is computed again.
fn units(profiles: &Profiles, calls: &[(usize, usize)], share: f64) -> Vec<Unit> {
    let unit = |(function, count): &(usize, usize)| {
        let p = &profiles.functions[*function].parameters;
        Unit { function: *function, count: *count, dense: p.dense, expert: p.expert, recompute: share }
    };
    calls.iter().map(unit).collect()
}

pub(super) fn formats(job: &Job) -> Formats {
    let wide = match job.precision {
        Precision::F32 => Format::Fp32,
        Precision::F16 => Format::Fp16,
        Precision::Bf16 | Precision::Fp8 | Precision::Mxfp8 | Precision::Nvfp4 => Format::Bf16,
    };
    let blocks = matches!(job.precision, Precision::Mxfp8 | Precision::Nvfp4);
    Formats { narrow: job.precision.format(), wide, blocks, tp: job.layout.tp }
}

pub(super) fn manner(job: &Job, stack: &Stack) -> Manner {
    Manner {
        launch: stack.value(ConstantName::LaunchGap, 0.0),
        tensor_overlap: job.says.tensor_overlap.unwrap_or(job.stack.habits.tensor_overlap),
        contention: stack.value(ConstantName::Contention, 1.1),
    }
}

/// Sizes of the data-parallel groups of dense parameters and of experts: those that share a copy, and those
/// that hold the same share.
pub(super) struct Spread {
    /// Data ranks (without cp) inside a shard group.
    pub inner: u64,
    /// Shard groups.
    pub outer: u64,
    /// The same for experts.
    pub expert: [u64; 2],
}

pub(super) fn spread(l: &Layout) -> Spread {
    // A shard group counts dp·cp ranks, cp innermost.
    let inner = (l.shard_group / l.cp).clamp(1, l.dp.max(1));
    let inner = if l.dp.is_multiple_of(inner) { inner } else { 1 };
    let edp = l.expert_data_ranks().unwrap_or(1);
    let outer = l.dp / inner;
    // Experts are shared over all their data ranks inside a shard group.
    let replicas = if edp.is_multiple_of(outer) { outer } else { 1 };
    Spread { inner, outer, expert: [edp / replicas, replicas] }
}

pub(crate) fn data(job: &Job) -> Data {
    let (l, s) = (job.layout, spread(job.layout));
    let dense = l.dp * l.cp;
    let (shard, replicas) = match l.zero {
        0 => ([1, 1], [dense, s.expert[0] * s.expert[1]]),
        _ => {
            let shared = if l.shard_group >= l.cp { s.inner * l.cp } else { l.shard_group.max(1) };
            ([shared, s.expert[0]], [dense / shared.max(1), s.expert[1]])
        }
    };
    let wide = if job.precision == Precision::F32 { 4.0 } else { 2.0 };
    Data {
        zero: l.zero,
        keep: l.keep,
        shard,
        replicas,
        copy_bytes: wide,
        gradient_bytes: job.says.gradient_bytes.unwrap_or(job.stack.habits.gradient_bytes),
        overlap: job.says.data_overlap.unwrap_or(job.stack.habits.data_overlap),
        prefetch: job.stack.habits.prefetch,
    }
}

/// Time of the stack's attention kernel over the table's.
pub(super) fn generation(job: &Job) -> Result<f64, PredictError> {
    match job.stack.habits.attention {
        AttentionKernel::Flash2 => stacks::flash2(&job.cluster.device).map_err(|e| PredictError::Json(e.to_string())),
        AttentionKernel::Best | AttentionKernel::Unfused => Ok(1.0),
    }
}

/// A stack's times over those of the tables.
pub(super) fn factors(job: &Job, stack: &Stack, generation: f64) -> Factors {
    let constant = |name| stack.value(name, 1.0);
    Factors {
        sustained: job.cluster.device.sustained,
        sustained_eight_bit: job.cluster.device.sustained_eight_bit,
        products: constant(ConstantName::Products),
        attention: constant(ConstantName::Attention) * generation,
        loops: constant(ConstantName::Loops),
        collectives: constant(ConstantName::Collectives),
    }
}

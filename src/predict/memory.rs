//! Peak memory of each pipeline stage, in named parts.
//!
//! What stays for the whole step: parameters, masters and moments, gradients, by what data ranks share. With D the
//! ranks that share (for experts: theirs), bf16 copies, fp32 masters and moments of Adam or LAMB and fp32 main
//! gradients, bytes a parameter are 2 + 4 + 12 = 18 without sharing, 6 + 12/D in ZeRO-1, 2 + 16/D in ZeRO-2, 18/D in
//! ZeRO-3, and 16/D where the sharded parameter is its own master (Rajbhandari et al. 2020, arXiv 1910.02054,
//! section 5; FSDP's mixed precision).
//!
//! What comes and goes: a stage's schedule is played step by step. A forward adds what its chunk keeps, a backward
//! takes it away; during either, the call that needs most is the peak. The micro-batches in flight, uneven chunks
//! and the weight of embedding and head follow from the list of steps. Where a backward is split, what it reads is
//! held until the half that makes gradients of weights is done.
//!
//! Three numbers: *allocated* is bytes in tensors, *reserved* what the allocator takes from the device for them,
//! *device* that and what is outside of it.

use super::cut::Cut;
use super::predictor::Job;
use super::{Layout, Memory, MemoryPart, PredictError};
use autoshard_cost::schedule::{self, Kind};
use autoshard_passes::predict::step::Data;
use autoshard_passes::profile::{Held, Parameters, Peak, Saved};

/// Bytes of a GiB.
const GIB: f64 = (1u64 << 30) as f64;
/// What a process has on its device before its first tensor: CUDA's context, modules of kernels and the libraries'
/// handles; 0.3–0.7 GiB.
const CONTEXT: f64 = 0.6 * GIB;
/// Buffers of one communicator: NCCL holds for each of up to 32 channels and each peer of ring and tree a
/// buffer of 4 MiB for large messages and smaller ones for the other protocols; 0.1–0.4 GiB.
const COMMUNICATOR: f64 = 0.25 * GIB;
/// cuBLAS's workspace and that of the libraries over it, inside the allocator (PyTorch gives 32 MiB a handle
/// and stream on Hopper and later, 8 MiB before; Transformer Engine takes 32 MiB of its own).
const WORKSPACES: f64 = 64.0 * 1024.0 * 1024.0;

/// The functions of a model, by their places in [`Cut`].
pub(crate) struct Functions<'a> {
    /// What calls keep and need.
    pub saved: &'a [Saved],
    /// One rank's parameters of a call.
    pub parameters: &'a [Parameters],
    /// Which are decoder layers.
    pub layer: &'a [bool],
    /// Bytes that go from one stage to the next.
    pub boundary: f64,
}

/// Moments at which stages hold most.
#[derive(Clone, Debug, Default)]
pub(crate) struct Moments {
    /// By stage.
    pub stages: Vec<StageMoments>,
    /// Whether a stage never holds more micro-batches than the one before.
    pub falls: Vec<bool>,
}

/// Moments at which a stage holds most, each as what changes from the one before: most change one chunk or two.
#[derive(Clone, Debug, Default)]
pub(crate) struct StageMoments {
    all: Vec<Fullest>,
    /// Chunk, and by how many micro-batches what is held of it changes; those of a moment end where it says.
    changes: Vec<(usize, f64)>,
}

/// One of them.
#[derive(Clone, Copy, Debug)]
struct Fullest {
    /// Where its changes end.
    end: usize,
    /// The chunk that is worked on.
    chunk: usize,
    backward: bool,
}

impl StageMoments {
    fn new(moments: &[schedule::Moment]) -> StageMoments {
        let mut out = StageMoments::default();
        let mut held: Vec<u32> = Vec::new();
        for m in moments {
            held.resize(m.held.len(), 0);
            for (chunk, (before, now)) in held.iter().zip(&m.held).enumerate().filter(|(_, (a, b))| a != b) {
                out.changes.push((chunk, f64::from(*now) - f64::from(*before)));
            }
            held.clone_from(&m.held);
            out.all.push(Fullest { end: out.changes.len(), chunk: m.chunk as usize, backward: m.backward });
        }
        out
    }

    /// A call by itself, nothing held beside it: what any stage that makes the call goes through.
    pub(crate) fn of_one_call() -> StageMoments {
        let both = [false, true].map(|backward| schedule::Moment { held: vec![0], chunk: 0, backward });
        StageMoments::new(&both)
    }
}

impl Moments {
    fn new(stages: Vec<Vec<schedule::Moment>>) -> Moments {
        let within = |a: &schedule::Moment, b: &schedule::Moment| {
            (a.chunk, a.backward) == (b.chunk, b.backward) && a.held.iter().zip(&b.held).all(|(a, b)| a <= b)
        };
        let falls = |s: usize| s > 0 && stages[s].iter().all(|a| stages[s - 1].iter().any(|b| within(a, b)));
        let falls = (0..stages.len()).map(falls).collect();
        let stages = stages.iter().map(|all| StageMoments::new(all)).collect();
        Moments { stages, falls }
    }
}

/// Peak memory by pipeline rank; `moments` are those of [`Play::of`].
pub(super) fn memory(job: &Job, f: &Functions, data: &Data, cut: &Cut, moments: &Moments) -> Vec<Memory> {
    let stage = |(i, chunks): (usize, &Vec<Vec<(usize, usize)>>)| {
        let none = StageMoments::default();
        let share = job.layout.recompute.share(i, &cut.layers);
        Stage { job, f, data, chunks, share }.memory(moments.stages.get(i).unwrap_or(&none))
    };
    cut.stages.iter().enumerate().map(stage).collect()
}

/// What decides which moments are the fullest: the schedule with enough micro-batches to reach the peak, which is
/// there when the warm-up is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Play {
    kind: Kind,
    stages: u32,
    chunks: u32,
    microbatches: u32,
}

impl Play {
    pub(crate) fn of(l: &Layout, chunks: usize) -> Play {
        let (stages, chunks) = (l.pp as u32, chunks as u32);
        let kind = if stages == 1 && chunks == 1 { Kind::OneForwardOneBackward } else { l.schedule.kind() };
        let enough = match kind {
            Kind::Naive => 1,
            // It keeps them all; up to a limit, beyond which nothing fits anyway.
            Kind::GPipe => 4096,
            // A stage holds one for each stage from it to the last.
            Kind::OneForwardOneBackward => stages,
            Kind::Interleaved | Kind::ZeroBubbleH1 | Kind::ZeroBubbleV | Kind::DualPipeV => 4 * stages,
        };
        let mut microbatches = l.microbatches.clamp(1, u64::from(enough)) as u32;
        if kind == Kind::Interleaved {
            microbatches = (microbatches / stages).max(1) * stages;
        }
        Play { kind, stages, chunks, microbatches }
    }

    /// The fullest moments of each stage.
    ///
    /// # Errors
    /// A schedule that there is not.
    pub(crate) fn moments(&self) -> Result<Moments, PredictError> {
        let moments = schedule::fullest(self.kind, self.stages, self.chunks, self.microbatches);
        moments.map(Moments::new).map_err(|e| PredictError::Missing {
            entity: format!("{} on {} stages", self.kind, self.stages),
            what: format!("a list of steps ({e})"),
            instead: "use another schedule or number of micro-batches".to_string(),
        })
    }
}

/// One pipeline rank.
pub(crate) struct Stage<'a> {
    /// What is asked; its layout may leave recomputation open.
    pub job: &'a Job<'a>,
    /// The model.
    pub f: &'a Functions<'a>,
    /// How data ranks share.
    pub data: &'a Data,
    /// Calls of each chunk.
    pub chunks: &'a [Vec<(usize, usize)>],
    /// Share of its layers that are computed again.
    pub share: f64,
}

/// Bytes of a moment.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Moment {
    saved: f64,
    logits: f64,
    transient: f64,
    gathered: f64,
    /// Gradients that have been made so far, where they do not stay from step to step.
    gradients: f64,
}

impl Moment {
    fn total(&self) -> f64 {
        self.saved + self.logits + self.transient + self.gathered + self.gradients
    }

    fn max(self, other: Moment) -> Moment {
        if other.total() > self.total() {
            other
        } else {
            self
        }
    }
}

/// What a chunk does to memory.
#[derive(Clone, Copy, PartialEq)]
struct Chunk {
    kept: f64,
    /// The most of its forward, and of its backward, what it keeps itself included.
    forward: Moment,
    backward: Moment,
}

impl Stage<'_> {
    fn memory(&self, moments: &StageMoments) -> Memory {
        let elements = self.elements();
        let states = self.states(elements);
        let fixed = self.buffers();
        let peak = self.peak(moments);
        let mut parts = states;
        parts.extend([
            ("gradients", peak.gradients),
            ("saved activations", peak.saved),
            ("logits", peak.logits),
            ("transient", peak.transient),
            ("gathered parameters", peak.gathered),
        ]);
        parts.extend(fixed);
        let allocated: f64 = parts.iter().map(|(_, b)| b).sum();
        let update = self.update(elements);
        let fragmentation = (allocated + update) * (self.job.stack.habits.memory.allocator - 1.0);
        parts.extend([("update", update), ("fragmentation", fragmentation)]);
        let reserved = allocated + update + fragmentation;
        let outside = self.outside();
        parts.extend(outside);
        let device = reserved + outside.iter().map(|(_, b)| b).sum::<f64>();
        let parts = parts.into_iter().filter(|(_, b)| *b > 0.0).map(|(name, bytes)| MemoryPart { name, bytes });
        Memory { parts: parts.collect(), allocated, reserved, device }
    }

    /// Bytes that recomputation does not change, of a stage with these elements and so many bytes of buffers.
    pub(crate) fn still(&self, elements: [f64; 2], buffers: f64) -> f64 {
        self.states(elements).iter().map(|(_, b)| b).sum::<f64>() + buffers + self.update(elements)
    }

    /// Bytes that stay beside states, however data ranks share.
    pub(crate) fn buffered(&self) -> f64 {
        self.buffers().iter().map(|(_, b)| b).sum()
    }

    /// Bytes of what comes and goes, at the most.
    pub(crate) fn moving(&self, moments: &StageMoments) -> f64 {
        self.peak(moments).total()
    }

    /// Bytes outside of the allocator.
    pub(crate) fn beyond(&self) -> f64 {
        self.outside().iter().map(|(_, b)| b).sum()
    }

    /// Whether what moves depends on how many ranks share, beside on what they share.
    pub(crate) fn moves_by_share(&self) -> bool {
        self.makes_gradients()
    }

    /// Elements of parameters on this rank: dense, of experts. Embedding and head are once on a stage, however
    /// often they are called, and one matrix where they are tied.
    pub(crate) fn elements(&self) -> [f64; 2] {
        let mut out = [0.0; 2];
        let mut seen: Vec<usize> = Vec::new();
        for (f, n) in self.chunks.iter().flatten() {
            let p = &self.f.parameters[*f];
            let times = match self.f.layer[*f] {
                true => *n as f64,
                false if seen.contains(f) => 0.0,
                false => 1.0,
            };
            seen.push(*f);
            out[0] += times * p.dense;
            out[1] += times * p.expert;
        }
        let has = |name: &str| seen.iter().any(|f| self.f.saved[*f].function == name);
        if self.job.decoder.tied && has("embed") && has("head") {
            let d = self.job.decoder;
            out[0] -= d.vocab as f64 * d.hidden as f64 / self.job.layout.tp as f64;
        }
        out
    }

    /// Parameters, masters, moments and gradients.
    fn states(&self, elements: [f64; 2]) -> Vec<(&'static str, f64)> {
        let (d, habits) = (self.data, &self.job.stack.habits.memory);
        let sum = |bytes: f64, shared: bool| -> f64 {
            let share = |side: usize| if shared { d.shard[side].max(1) as f64 } else { 1.0 };
            bytes * (elements[0] / share(0) + elements[1] / share(1))
        };
        let own = habits.parameters_are_masters || d.copy_bytes >= 4.0;
        // FSDP's parameters are shares at rest, kept gathered or not; what is gathered is counted where it is.
        let at_rest = d.zero == 3 || (habits.parameters_are_masters && d.zero >= 1);
        let mut out = Vec::new();
        if own {
            out.push(("parameters", sum(4.0, at_rest)));
        } else {
            out.push(("parameters", sum(d.copy_bytes, at_rest)));
            out.push(("master weights", sum(4.0, d.zero >= 1)));
        }
        out.push(("optimizer moments", sum(8.0, d.zero >= 1)));
        if !self.makes_gradients() {
            // A pipeline reduces gradients once, in the last micro-batch, and adds them up whole before.
            let shared = d.zero >= 2 && self.job.layout.pp == 1;
            out.push(("gradients", sum(d.gradient_bytes, shared)));
        }
        if habits.low_precision_gradients && d.gradient_bytes > d.copy_bytes {
            out.push(("gradients in compute type", sum(d.copy_bytes, d.zero >= 2)));
        }
        if d.keep && d.zero >= 2 {
            out.push(("parameters kept gathered", sum(d.copy_bytes, false)));
        }
        out
    }

    /// Whether gradients come to be in the one backward of a step and go with the update, as where parameters are
    /// tensors of their own and nothing is added up over micro-batches; else their buffers stay.
    fn makes_gradients(&self) -> bool {
        let l = self.job.layout;
        self.job.stack.habits.memory.parameters_are_masters && l.microbatches == 1 && l.pp == 1
    }

    /// Bytes of the gradients of a call's parameters on this rank, where they are made anew.
    fn made(&self, f: usize) -> f64 {
        let (d, p) = (self.data, &self.f.parameters[f]);
        if !self.makes_gradients() {
            return 0.0;
        }
        let share = |side: usize| if d.zero >= 2 { d.shard[side].max(1) as f64 } else { 1.0 };
        d.gradient_bytes * (p.dense / share(0) + p.expert / share(1))
    }

    /// Bytes that the update takes anew from the device: the copy in fp32 of a share of 16-bit gradients, and the
    /// share in one piece (without sharing it is copied parameter by parameter, in ZeRO-3 it is so all along).
    fn update(&self, elements: [f64; 2]) -> f64 {
        let d = self.data;
        if !self.job.stack.habits.memory.flat_update || d.gradient_bytes > 2.0 || d.copy_bytes >= 4.0 {
            return 0.0;
        }
        let share = |side: usize| if d.zero >= 1 { d.shard[side].max(1) as f64 } else { 1.0 };
        let flat = if matches!(d.zero, 1 | 2) { d.gradient_bytes } else { 0.0 };
        (flat + 4.0) * (elements[0] / share(0) + elements[1] / share(1))
    }

    /// What stays beside states.
    fn buffers(&self) -> Vec<(&'static str, f64)> {
        let mut matrices: Vec<[f64; 2]> = Vec::new();
        for (f, _) in self.chunks.iter().flatten().filter(|(f, _)| self.f.layer[*f]) {
            for m in &self.f.saved[*f].matrices {
                if !matrices.contains(m) {
                    matrices.push(*m);
                }
            }
        }
        let dummies: f64 = matrices.iter().map(|[a, b]| a * b * self.data.copy_bytes).sum();
        let habits = &self.job.stack.habits;
        let keeps = habits.memory.dummy_weight_gradients && habits.accumulate_fp32;
        // What arrives from either neighbour while another micro-batch is worked on.
        let pipeline = if self.job.layout.pp > 1 { 2.0 * self.f.boundary } else { 0.0 };
        vec![
            ("weight-gradient buffers", if keeps { dummies } else { 0.0 }),
            ("pipeline messages", pipeline),
            ("workspaces", if self.is_gpu() { WORKSPACES } else { 0.0 }),
        ]
    }

    /// What is outside of the allocator: a process of CUDA or ROCm with its communicators. Other devices' runtimes
    /// report memory without their own.
    fn outside(&self) -> [(&'static str, f64); 2] {
        let one = |bytes: f64| if self.is_gpu() { bytes } else { 0.0 };
        [("context", one(CONTEXT)), ("communicators", one(COMMUNICATOR * self.communicators()))]
    }

    /// Whether CUDA or ROCm runs the device.
    fn is_gpu(&self) -> bool {
        ["nvidia", "amd"].contains(&self.job.cluster.device.vendor.to_lowercase().as_str())
    }

    /// Groups in which this rank exchanges messages.
    fn communicators(&self) -> f64 {
        let (l, d) = (self.job.layout, self.data);
        let sizes = [l.tp, l.cp, l.pp, l.dp * l.cp, l.ep, l.etp];
        let experts = [d.shard[1], d.replicas[1]].iter().product::<u64>();
        let more = if l.ep > 1 { vec![experts] } else { Vec::new() };
        sizes.iter().chain(&more).filter(|n| **n > 1).count() as f64
    }

    /// The most over a stage's moments.
    fn peak(&self, moments: &StageMoments) -> Moment {
        let mut layers = 0;
        let mut chunks: Vec<Chunk> = Vec::with_capacity(self.chunks.len());
        // Most chunks are like an earlier one: the same calls, as many of them computed again. Where several functions
        // take turns, which of them are depends on those before.
        let mut seen: Vec<(usize, usize)> = Vec::new();
        for calls in self.chunks {
            let again = self.again(calls, layers);
            let same = seen.iter().find(|(at, n)| *n == again && self.chunks[*at] == *calls);
            if let Some((at, _)) = same {
                chunks.push(chunks[*at]);
                layers += self.layers(calls);
                continue;
            }
            if calls.len() == 1 {
                seen.push((chunks.len(), again));
            }
            chunks.push(self.chunk(calls, &mut layers));
        }
        let (mut peak, mut held, mut at) = (Moment::default(), 0.0, 0);
        for m in &moments.all {
            let kept = |chunk: usize| chunks.get(chunk).map_or(0.0, |c| c.kept);
            held += moments.changes[at..m.end].iter().map(|(chunk, n)| n * kept(*chunk)).sum::<f64>();
            at = m.end;
            let Some(chunk) = chunks.get(m.chunk) else { continue };
            let of = if m.backward { &chunk.backward } else { &chunk.forward };
            if of.total() + held > peak.total() {
                peak = Moment { saved: of.saved + held, ..*of };
            }
        }
        peak
    }

    /// Decoder layers of some calls.
    fn layers(&self, calls: &[(usize, usize)]) -> usize {
        calls.iter().filter(|(f, _)| self.f.layer[*f]).map(|(_, n)| n).sum()
    }

    /// How many layers of some calls are computed again, behind so many of the stage.
    fn again(&self, calls: &[(usize, usize)], before: usize) -> usize {
        self.spread(before + self.layers(calls)) - self.spread(before)
    }

    /// How many of a stage's first layers are computed again.
    fn spread(&self, layers: usize) -> usize {
        (layers as f64 * self.share).round() as usize
    }

    /// Calls one by one, with what of them is computed again. `layers` counts those of the stage so far, over which
    /// recomputation is spread evenly.
    fn chunk(&self, calls: &[(usize, usize)], layers: &mut usize) -> Chunk {
        let mut runs: Vec<(usize, &Held, usize)> = Vec::with_capacity(calls.len() + 1);
        for (f, n) in calls {
            let saved = &self.f.saved[*f];
            let again = match self.f.layer[*f] {
                true => self.spread(*layers + n) - self.spread(*layers),
                false => *n,
            };
            *layers += if self.f.layer[*f] { *n } else { 0 };
            let both = [(*f, &saved.policy, again), (*f, &saved.whole, n - again)];
            runs.extend(both.into_iter().filter(|(_, _, n)| *n > 0));
        }
        // The backward starts without gradients and ends with all of them.
        let mut made: f64 = runs.iter().map(|(f, _, n)| *n as f64 * self.made(*f)).sum();
        let end = Moment { gradients: made, ..Moment::default() };
        let mut out = Chunk { kept: 0.0, forward: Moment::default(), backward: end };
        for (i, (f, held, n)) in runs.iter().enumerate() {
            let (bytes, each) = (held.bytes(), self.made(*f));
            let before = i.checked_sub(1).map(|i| runs[i].0);
            let next = runs.get(i + 1).map(|r| r.0);
            let moment = |at: usize, peak: &Peak, gathered: f64| Moment {
                saved: out.kept + at as f64 * bytes + bytes.min(peak.bytes - peak.logits),
                logits: peak.logits,
                transient: (peak.bytes - peak.logits - bytes).max(0.0),
                gathered,
                gradients: 0.0,
            };
            let (mut forward, mut backward) = (out.forward, out.backward);
            for at in self.fullest_of(*n, each) {
                let before = if at > 0 { Some(*f) } else { before };
                let next = if at + 1 < *n { Some(*f) } else { next };
                forward = forward.max(moment(at, &held.forward, self.gathered(*f, next)));
                let gathered = self.gathered(*f, before) + self.reduced(*f, next);
                let gradients = made - (at + 1) as f64 * each;
                backward = backward.max(Moment { gradients, ..moment(at, &held.backward, gathered) });
            }
            (out.forward, out.backward) = (forward, backward);
            made -= *n as f64 * each;
            out.kept += *n as f64 * bytes;
        }
        if self.job.layout.pp > 1 && self.job.stack.habits.memory.keeps_stage_outputs {
            out.kept += self.f.boundary;
            out.backward.saved += self.f.boundary;
        }
        out
    }

    /// Which of equal calls in a row may need most: more is kept at each than at the one before, so it is the last two,
    /// or the first for what comes before it; any of them where gradients come to be that stay.
    fn fullest_of(&self, n: usize, made: f64) -> impl Iterator<Item = usize> {
        (0..n).filter(move |at| made > 0.0 || *at == 0 || at + 2 >= n)
    }

    /// Elements of what is gathered at once for a call: its parameters, or its largest matrix.
    fn size(&self, f: usize) -> f64 {
        let p = &self.f.parameters[f];
        if self.job.stack.habits.memory.gathers_by_matrix {
            let largest = self.f.saved[f].matrices.iter().map(|[a, b]| a * b).fold(0.0, f64::max);
            return largest.min(p.dense + p.expert);
        }
        p.dense + p.expert
    }

    /// Gathered copies of this unit and of the one that is gathered ahead.
    fn gathered(&self, f: usize, ahead: Option<usize>) -> f64 {
        let d = self.data;
        let shares = d.shard.iter().any(|n| *n > 1);
        if d.zero != 3 || d.keep || !shares {
            // The copy in the compute type lasts as long as it is used.
            let casts = self.job.stack.habits.memory.parameters_are_masters && d.copy_bytes < 4.0 && !d.keep;
            return if casts { self.size(f) * d.copy_bytes } else { 0.0 };
        }
        let ahead = ahead.filter(|_| self.job.stack.habits.prefetch).map_or(0.0, |f| self.size(f));
        (self.size(f) + ahead) * d.copy_bytes
    }

    /// A unit's gradient before it is shared, and that of the unit before it on its way.
    fn reduced(&self, f: usize, before: Option<usize>) -> f64 {
        let d = self.data;
        if d.zero < 2 || d.shard.iter().all(|n| *n <= 1) {
            return 0.0;
        }
        self.size(f) * d.copy_bytes + before.map_or(0.0, |f| self.size(f) * d.gradient_bytes)
    }
}

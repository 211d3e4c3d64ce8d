//! Kernels, emitted, compiled, run in every order, and compared.

use super::emit::{emit, Emitted};
use super::jobs::{self, Arg, Job, Launch, Outcome, Role, ORDERS};
use super::toolchain::{self, Text};
use autoshard::cuda::check::compare::{compare, Tolerance, CANARY};
use autoshard::cuda::check::kernels::{operands, Case};
use autoshard::cuda::check::reference::{shapes, touched};
use autoshard::cuda::check::tensor::Tensor;
use autoshard::ir::kernel::{Kernel, KernelBody};
use autoshard::ir::DType;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Mutex;

/// What a run of many kernels came to.
#[derive(Clone, Debug, Default)]
pub struct Summary {
    /// Distinct texts.
    pub texts: usize,
    /// Runs of a text: buffers, parts of a rank, an order.
    pub jobs: usize,
    /// Reports of the checker.
    pub reports: usize,
    /// Jobs whose results have no number at all to compare.
    pub blank: usize,
    /// Kernels that the emitter does not take, by reason.
    pub refused: BTreeMap<String, usize>,
    /// Accesses that were checked, and switches between threads.
    pub accesses: u64,
    pub switches: u64,
    /// By type of result: elements compared, and the largest relative L2 error.
    pub compared: BTreeMap<&'static str, (usize, f64)>,
    /// What went wrong, one entry a job.
    pub failures: Vec<String>,
}

/// A text with all that it is run with: kernels that differ in sizes alone may share it.
struct Unit<'a> {
    text: Text,
    runs: Vec<Run<'a>>,
}

struct Run<'a> {
    case: &'a Case,
    coords: Vec<usize>,
    emitted: Emitted,
}

/// Texts per translation unit.
const CHUNK: usize = 24;
/// Translation units at a time.
const WORKERS: usize = 2;

/// Runs all cases.
pub fn run(cases: &[Case]) -> Result<Summary, String> {
    let mut summary = Summary::default();
    let units = units(cases, &mut summary);
    summary.texts = units.len();
    let chunks: Vec<&[Unit]> = units.chunks(CHUNK).collect();
    let (next, summary) = (AtomicUsize::new(0), Mutex::new(summary));
    std::thread::scope(|s| {
        let workers: Vec<_> = (0..WORKERS)
            .map(|_| {
                s.spawn(|| -> Result<(), String> {
                    while let Some(chunk) = chunks.get(next.fetch_add(1, Ordering::Relaxed)) {
                        let part = run_chunk(chunk)?;
                        let mut all = summary.lock().map_err(|e| e.to_string())?;
                        all.add(part);
                    }
                    Ok(())
                })
            })
            .collect();
        workers.into_iter().try_for_each(|w| w.join().map_err(|_| "a worker panicked".to_string())?)
    })?;
    summary.into_inner().map_err(|e| e.to_string())
}

impl Summary {
    fn add(&mut self, other: Summary) {
        self.jobs += other.jobs;
        self.reports += other.reports;
        self.blank += other.blank;
        self.accesses += other.accesses;
        self.switches += other.switches;
        self.failures.extend(other.failures);
        for (t, (n, e)) in other.compared {
            let all = self.compared.entry(t).or_default();
            *all = (all.0 + n, all.1.max(e));
        }
    }
}

/// Emits every case and puts equal texts, and equal runs of them, together.
fn units<'a>(cases: &'a [Case], summary: &mut Summary) -> Vec<Unit<'a>> {
    let mut units: Vec<Unit<'a>> = Vec::new();
    let mut by_text: BTreeMap<String, usize> = BTreeMap::new();
    let mut seen = BTreeSet::new();
    for case in cases {
        let last = case.mesh.ranks().saturating_sub(1);
        for rank in if last == 0 { vec![0] } else { vec![0, last] } {
            let coords = case.mesh.coords(rank);
            let emitted = match emit(&case.kernel, &case.mesh, &coords) {
                Ok(e) => e,
                Err(e) => {
                    *summary.refused.entry(e).or_default() += 1;
                    continue;
                }
            };
            let at = *by_text.entry(emitted.source.clone()).or_insert_with(|| {
                let text = Text { name: format!("k{}", units.len()), source: emitted.source.clone() };
                units.push(Unit { text, runs: vec![] });
                units.len() - 1
            });
            let key = format!("{at} {:?} {:?} {:?}", emitted.launches, shapes(&case.kernel), case.in_place);
            if seen.insert(key) {
                units[at].runs.push(Run { case, coords, emitted });
            }
        }
    }
    units
}

fn run_chunk(units: &[Unit]) -> Result<Summary, String> {
    let dir = toolchain::scratch("kernels")?;
    let texts: Vec<Text> = units.iter().map(|u| u.text.clone()).collect();
    let driver = toolchain::build(&dir, &texts)?;
    let checks: Vec<Check> =
        units.iter().flat_map(|u| u.runs.iter().map(move |r| Check::new(&u.text.name, r))).collect();
    let list: Vec<Job> = checks.iter().flat_map(|c| ORDERS.map(|order| c.job(order))).collect();
    let outcomes = jobs::run(&driver, &dir, &list)?;
    let mut summary = Summary::default();
    for (check, outcomes) in checks.iter().zip(outcomes.chunks(ORDERS.len())) {
        outcomes.iter().for_each(|o| check.judge(o, &driver, &mut summary));
        check.agree(outcomes, &mut summary);
    }
    if summary.failures.is_empty() {
        let _ = std::fs::remove_dir_all(&dir);
    }
    Ok(summary)
}

/// One run of a text: what goes in, and what must come out.
struct Check<'a> {
    text: &'a str,
    run: &'a Run<'a>,
    buffers: Vec<(Role, Tensor)>,
    /// Per buffer of the kernel: its position among the job's.
    slots: Vec<usize>,
    /// Per result.
    want: Vec<Vec<Option<f64>>>,
    /// Bytes per buffer of the job.
    loaded: Vec<u64>,
    stored: Vec<u64>,
    /// What may be loaded besides.
    optional: Vec<u64>,
    tolerance: Tolerance,
}

impl<'a> Check<'a> {
    fn new(text: &'a str, run: &'a Run) -> Check<'a> {
        let (kernel, mesh) = (&run.case.kernel, &run.case.mesh);
        let (tensors, want) = operands(kernel, mesh, &run.coords);
        let touched = touched(kernel, mesh, &run.coords, &tensors);
        let shapes = shapes(kernel);
        let mut buffers: Vec<(Role, Tensor)> = tensors.into_iter().map(|t| (Role::Operand, t)).collect();
        let mut slots: Vec<usize> = (0..shapes.len()).collect();
        for (k, s) in shapes.iter().enumerate().skip(kernel.operands) {
            match run.case.in_place.iter().find(|(_, result)| *result == k) {
                Some((operand, _)) => {
                    slots[k] = *operand;
                    let (role, tensor) = &mut buffers[*operand];
                    *role = Role::InPlace;
                    let kept = tensor.values.iter_mut().zip(&touched.stored[k]).filter(|(_, stored)| !**stored);
                    kept.for_each(|(v, _)| *v = CANARY);
                }
                None => {
                    slots[k] = buffers.len();
                    buffers.push((Role::Result, Tensor { dtype: s.dtype, values: vec![CANARY; s.len] }));
                }
            }
        }
        let zeros = vec![0; buffers.len()];
        let (mut loaded, mut stored, mut optional) = (zeros.clone(), zeros.clone(), zeros);
        for (k, slot) in slots.iter().enumerate() {
            let bytes = |flags: &[bool]| (flags.iter().filter(|f| **f).count() * shapes[k].dtype.bytes()) as u64;
            loaded[*slot] += bytes(&touched.loaded[k]);
            stored[*slot] += bytes(&touched.stored[k]);
            let besides = touched.optional[k].iter().zip(&touched.loaded[k]).map(|(o, l)| *o && !l);
            optional[*slot] += bytes(&besides.collect::<Vec<_>>());
        }
        let scratch = Tensor { dtype: DType::F32, values: vec![f64::NAN; run.emitted.workspace.div_ceil(4)] };
        buffers.push((Role::Result, scratch));
        let tolerance = Tolerance::of(loosest(kernel));
        Check { text, run, buffers, slots, want, loaded, stored, optional, tolerance }
    }

    fn job(&self, order: jobs::Order) -> Job {
        let place = |a: &Arg| match a {
            Arg::Buffer(k) => Arg::Buffer(self.slots.get(*k).copied().unwrap_or(self.buffers.len() - 1)),
            Arg::Bytes(b) => Arg::Bytes(b.clone()),
        };
        let launches = self.run.emitted.launches.iter().map(|l| Launch {
            entry: format!("{}.{}", self.text, l.entry),
            args: l.args.iter().map(place).collect(),
            ..l.clone()
        });
        Job {
            name: self.text.to_string(),
            order,
            check: true,
            buffers: self.buffers.clone(),
            launches: launches.collect(),
        }
    }

    /// Results must not depend on the order in which threads run, to the bit.
    fn agree(&self, outcomes: &[Outcome], summary: &mut Summary) {
        let bytes = |o: &Outcome| -> Vec<Vec<u8>> {
            self.slots.iter().map(|s| o.buffers.get(*s).map(Tensor::bytes).unwrap_or_default()).collect()
        };
        if let [first, others @ ..] = outcomes {
            let want = bytes(first);
            for o in others.iter().filter(|o| o.done && first.done && bytes(o) != want) {
                let name = &self.run.case.kernel.name;
                summary.failures.push(format!("{name}: {} order gives other bits than {}", o.order, first.order));
            }
        }
    }

    fn judge(&self, o: &Outcome, driver: &Path, summary: &mut Summary) {
        summary.jobs += 1;
        summary.reports += o.reports.len();
        summary.accesses += o.accesses;
        summary.switches += o.switches;
        let mut faults = Vec::new();
        if !o.done {
            faults.push("did not end".to_string());
        }
        if !o.reports.is_empty() {
            faults.push(o.explain(driver));
        }
        let shared = self.run.emitted.shared;
        if o.done && o.shared != shared {
            faults.push(format!("declares {} bytes of shared memory, but says {shared}", o.shared));
        }
        let mut numbers = false;
        for (r, want) in self.want.iter().enumerate() {
            let k = self.run.case.kernel.operands + r;
            let got = &o.buffers[self.slots[k]];
            numbers |= want.iter().flatten().any(|w| w.is_finite()) || want.iter().flatten().count() == 0;
            match compare(got, want, self.tolerance) {
                Err(e) => faults.push(format!("result {r}: {}: {}", e.kind, e.text)),
                Ok(e) => {
                    let all = summary.compared.entry(got.dtype.name()).or_default();
                    *all = (all.0 + want.iter().flatten().count(), all.1.max(e.l2));
                }
            }
        }
        summary.blank += usize::from(!numbers);
        // The last buffer is scratch.
        let n = self.loaded.len();
        let right = |k: usize| {
            let besides = o.loaded[k].checked_sub(self.loaded[k]);
            o.stored[k] == self.stored[k] && besides.is_some_and(|b| b <= self.optional[k])
        };
        if o.done && !(0..n).all(right) {
            let (loaded, stored) = (&o.loaded[..n], &o.stored[..n]);
            faults.push(format!("loaded bytes {loaded:?}, not {:?} and at most {:?} more", self.loaded, self.optional));
            faults.push(format!("stored bytes {stored:?}, not {:?}", self.stored));
        }
        if !faults.is_empty() {
            let place = driver.parent().unwrap_or(driver).join(format!("{}.cu", self.text));
            summary.failures.push(format!(
                "{} ({}), rank at {:?}, {} order, {}: {}",
                self.run.case.label,
                self.run.case.kernel.name,
                self.run.coords,
                o.order,
                place.display(),
                faults.join("\n  ")
            ));
        }
    }
}

/// The type of a kernel's arithmetic that keeps the fewest digits.
fn loosest(kernel: &Kernel) -> DType {
    let mut types: Vec<DType> = shapes(kernel).iter().map(|s| s.dtype).collect();
    if let KernelBody::Loop(nests) = &kernel.body {
        types.extend(nests.iter().flat_map(|n| n.instrs.iter().map(|i| i.dtype)));
    }
    let order = [DType::Bf16, DType::F32, DType::F64];
    order.into_iter().find(|t| types.contains(t)).unwrap_or(DType::I32)
}

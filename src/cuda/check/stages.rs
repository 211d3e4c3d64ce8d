//! The stages, check by check. Each runs in a process of its own, which can be ended and begun again
//! behind any check.

use super::compare::Errors;
use super::device::{failure, Gpu};
use super::kernels::{cases, of_model, Case};
use super::manifest::{Manifest, MODELS};
use super::primitives::{self, Expected, Primitive};
use super::report::{Failure, Line, Record, Status};
use super::trial::{Fault, Machine, Trial};
use super::{large, CheckError};
use autoshard_codegen::{emit, CodegenError, CudaKernel};
use autoshard_ir::DType;
use autoshard_passes::search::Degrees;
use autoshard_runtime::cuda::{CudaError, Device};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// Device primitives against their meaning.
pub const PRIMITIVES: &str = "primitives";
/// Generated kernels against f64.
pub const KERNELS: &str = "kernels";
/// Bytes a second of large kernels.
pub const SPEED: &str = "speed";

/// All stages in order, with the time that each gets.
pub const ALL: [(&str, Duration); 3] =
    [(PRIMITIVES, Duration::from_secs(75)), (KERNELS, Duration::from_secs(240)), (SPEED, Duration::from_secs(120))];

/// A packed folder, and the target whose images are used.
#[derive(Clone, Copy, Debug)]
pub struct Packed<'a> {
    /// The folder.
    pub dir: &'a Path,
    /// What is in it.
    pub manifest: &'a Manifest,
    /// Architecture.
    pub target: &'a str,
}

impl Packed<'_> {
    fn image(&self, kernel: &str) -> Result<Vec<u8>, Failure> {
        self.manifest.image(self.dir, kernel, self.target).map_err(|e| Failure::new("pack", e.to_string()))
    }
}

/// A kernel on a rank.
#[derive(Clone, Debug)]
pub struct KernelCheck {
    /// The kernel.
    pub case: Case,
    /// Rank.
    pub rank: usize,
    /// Its text, or why there is none: such a check is skipped.
    pub text: Result<CudaKernel, CodegenError>,
}

impl KernelCheck {
    /// Name of the check.
    pub fn label(&self) -> String {
        let text = self.text.as_ref().map_or("no text", |t| &t.name);
        format!("{}, rank {}: {} ({text})", self.case.label, self.rank, self.case.kernel.name)
    }
}

/// Checks of the models' kernels: the first and the last rank; equal launches of equal texts once.
pub fn kernel_checks(packed: Packed) -> Result<Vec<KernelCheck>, CheckError> {
    let mut out = vec![];
    let mut seen = BTreeSet::new();
    for case in cases(&packed.manifest.models, &packed.dir.join(MODELS))? {
        let text = emit(&case.kernel);
        let last = case.mesh.ranks().saturating_sub(1);
        for rank in BTreeSet::from([0, last]) {
            let coords = case.mesh.coords(rank);
            let key = match &text {
                Ok(t) => format!("{} {:?} {:?}", t.name, t.parts(&case.mesh, &coords), case.in_place),
                Err(e) => e.to_string(),
            };
            if seen.insert(key) {
                out.push(KernelCheck { case: case.clone(), rank, text: text.clone() });
            }
        }
    }
    Ok(out)
}

/// Kernels of the large model's step on one rank, in bf16.
pub fn large_checks(packed: Packed) -> Result<Vec<KernelCheck>, CheckError> {
    let mut out: Vec<KernelCheck> = vec![];
    let Some(model) = &packed.manifest.large else { return Ok(out) };
    let one = Degrees { dp: 1, fsdp: 1, tp: 1, sequence_parallel: true };
    let mut found = vec![];
    of_model(model, &packed.dir.join(MODELS), DType::Bf16, &one, &mut |case| found.push(case))?;
    for case in found {
        let text = emit(&case.kernel);
        let same = |k: &KernelCheck| match (&k.text, &text) {
            (Ok(a), Ok(b)) => a.name == b.name,
            (a, b) => a == b,
        };
        if !out.iter().any(same) {
            out.push(KernelCheck { case, rank: 0, text });
        }
    }
    Ok(out)
}

/// How a check ended, and the error of the device, if it is that.
type Verdict = (Status, BTreeMap<String, f64>, Option<Failure>, Option<CudaError>);

fn passed(figures: BTreeMap<String, f64>) -> Verdict {
    (Status::Passed, figures.into_iter().filter(|(_, v)| v.is_finite()).collect(), None, None)
}

fn failed(f: Failure, e: Option<CudaError>) -> Verdict {
    (Status::Failed, BTreeMap::new(), Some(f), e)
}

fn faulty(fault: Fault) -> Verdict {
    let failure = fault.failure();
    match fault {
        Fault::Wrong(_) => failed(failure, None),
        Fault::Machine(e) => failed(failure, Some(e)),
    }
}

fn skipped(e: &CodegenError) -> Verdict {
    (Status::Skipped, BTreeMap::new(), Some(Failure::new("text", e.to_string())), None)
}

fn named(figures: &[(&str, f64)]) -> BTreeMap<String, f64> {
    figures.iter().map(|(k, v)| (k.to_string(), *v)).collect()
}

/// A primitive on a machine.
pub fn primitive(p: &Primitive, packed: Packed, machine: &mut dyn Machine) -> Verdict {
    let image = match packed.image(&p.entry) {
        Ok(image) => image,
        Err(f) => return failed(f, None),
    };
    match Trial::primitive(p).run(machine, &image) {
        Ok(Errors { element, .. }) => passed(match p.expected {
            Expected::Bits(..) => BTreeMap::new(),
            Expected::F32(_, most) | Expected::F64(_, most) => named(&[("ulps", element), ("ulps allowed", most)]),
        }),
        Err(fault) => faulty(fault),
    }
}

/// A kernel on a machine.
pub fn kernel(k: &KernelCheck, packed: Packed, machine: &mut dyn Machine) -> Verdict {
    let text = match &k.text {
        Ok(text) => text,
        Err(e) => return skipped(e),
    };
    let image = match packed.image(&text.name) {
        Ok(image) => image,
        Err(f) => return failed(f, None),
    };
    let trial = match Trial::kernel(&k.case, &k.case.mesh.coords(k.rank), text) {
        Ok(trial) => trial,
        Err(e) => return failed(Failure::new("launch", e.to_string()), None),
    };
    match trial.run(machine, &image) {
        Ok(e) => passed(named(&[("relative L2 error", e.l2), ("largest error", e.element)])),
        Err(fault) => faulty(fault),
    }
}

/// The speed of a kernel.
fn speed(k: &KernelCheck, packed: Packed, device: &Arc<Device>) -> Verdict {
    let text = match &k.text {
        Ok(text) => text,
        Err(e) => return skipped(e),
    };
    let image = match packed.image(&text.name) {
        Ok(image) => image,
        Err(f) => return failed(f, None),
    };
    match large::measure(device, &k.case, text, &image) {
        Ok(figures) => passed(figures),
        Err(Ok(no_room)) => (Status::Skipped, BTreeMap::new(), Some(no_room), None),
        Err(Err(e)) => failed(failure(&e), Some(e)),
    }
}

/// Runs a stage on a device from check `from` on. It ends early, with an error, where the device can
/// do no more in this process.
pub fn run(
    stage: &str,
    packed: Packed,
    device: &Arc<Device>,
    from: usize,
    say: &mut dyn FnMut(Line) -> Result<(), CheckError>,
) -> Result<(), CheckError> {
    let mut gpu = Gpu(device.clone());
    match stage {
        PRIMITIVES => {
            let all = primitives::all();
            let labels: Vec<String> = all.iter().map(|p| p.name.to_string()).collect();
            each(stage, &labels, from, say, &mut |i| primitive(&all[i], packed, &mut gpu))
        }
        KERNELS => {
            let all = kernel_checks(packed)?;
            let labels: Vec<String> = all.iter().map(KernelCheck::label).collect();
            each(stage, &labels, from, say, &mut |i| kernel(&all[i], packed, &mut gpu))
        }
        SPEED => {
            let all = large_checks(packed)?;
            let labels: Vec<String> =
                [large::COPY.to_string()].into_iter().chain(all.iter().map(KernelCheck::label)).collect();
            each(stage, &labels, from, say, &mut |i| match i {
                0 => large::copy(device).map_or_else(|e| failed(failure(&e), Some(e)), passed),
                _ => speed(&all[i - 1], packed, device),
            })
        }
        other => Err(CheckError::Stage(other.into())),
    }
}

/// Calls `check` with every number from `from` on, between the lines that tell of it.
fn each(
    stage: &str,
    labels: &[String],
    from: usize,
    say: &mut dyn FnMut(Line) -> Result<(), CheckError>,
    check: &mut dyn FnMut(usize) -> Verdict,
) -> Result<(), CheckError> {
    for (number, label) in labels.iter().enumerate().skip(from) {
        say(Line::Begin { number, check: label.clone() })?;
        let (status, figures, failure, error) = check(number);
        let record = Record { stage: stage.into(), check: label.clone(), status, figures, failure };
        say(Line::End { number, record })?;
        if let Some(e) = error.filter(|e| e.code().is_some_and(|c| c.sticky())) {
            return Err(e.into());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use autoshard_runtime::cuda::ErrorCode;

    #[test]
    fn a_device_that_is_lost_ends_the_stage_behind_its_check() {
        let labels: Vec<String> = ["a", "b", "c"].map(String::from).into();
        let code = ErrorCode { code: 700, text: "illegal address".into() };
        let lost = CudaError::Call { call: "cuCtxSynchronize", code };
        let mut lines = vec![];
        let mut say = |l: Line| {
            lines.push(l);
            Ok(())
        };
        let mut check = |i: usize| {
            if i == 1 {
                failed(failure(&lost), Some(lost.clone()))
            } else {
                passed(named(&[("x", f64::NAN)]))
            }
        };
        assert!(each("s", &labels, 0, &mut say, &mut check).is_err());
        assert!(each("s", &labels, 2, &mut say, &mut check).is_ok());
        let numbers: Vec<usize> = lines
            .iter()
            .map(|l| match l {
                Line::Begin { number, .. } | Line::End { number, .. } => *number,
            })
            .collect();
        assert_eq!(numbers, [0, 0, 1, 1, 2, 2]);
        // What cannot be written as JSON is left out.
        assert!(matches!(&lines[1], Line::End { record, .. } if record.figures.is_empty()));
    }
}

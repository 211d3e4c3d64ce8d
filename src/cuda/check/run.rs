//! All stages on the machine with a GPU, and the report.

use super::large::shares;
use super::manifest::Manifest;
use super::report::{now, write_json, Failure, Line, Record, Report, Stage, Status};
use super::stages::{self, Packed};
use super::supervise::{supervise, Limits};
use super::CheckError;
use crate::cuda::select::packed;
use autoshard_codegen::nvrtc::Target;
use autoshard_runtime::cuda::{probe, CudaVersion, Device, DeviceInfo, Probe};
use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

/// What became of a run.
#[derive(Clone, Debug, PartialEq)]
pub enum Ran {
    /// There is no GPU; why.
    Skipped(String),
    /// The report.
    Done(Box<Report>),
}

/// Silence that ends a check.
const SILENCE: Duration = Duration::from_secs(30);
/// Times that a stage is begun again.
const RESTARTS: usize = 6;
/// The device that is checked.
const DEVICE: usize = 0;

/// Runs every stage, in processes of `program`, and writes the report to `out` after each.
pub fn run(dir: &Path, out: &Path, program: &Path) -> Result<Ran, CheckError> {
    let found = probe();
    if let Some(reason) = found.problem() {
        write_json(out, &serde_json::json!({ "skipped": reason })).map_err(CheckError::io(out))?;
        return Ok(Ran::Skipped(reason));
    }
    let manifest = Manifest::read(dir)?;
    let target = target(&manifest, &found)?;
    let mut report = begin(&manifest, &found, target);
    let lines = out.with_extension("lines");
    for (stage, limit) in stages::ALL {
        let begin = Instant::now();
        let limits = Limits { stage: limit, silence: SILENCE, restarts: RESTARTS };
        let mut command = |from: usize| {
            let mut c = Command::new(program);
            c.arg("stage").arg(stage).arg(dir).arg(&lines).args(["--from", &from.to_string()]);
            c
        };
        let outcome = supervise(stage, &lines, limits, &mut command).map_err(CheckError::io(&lines))?;
        let mut records = outcome.records;
        if let Some(problem) = outcome.problem {
            let failure = Some(Failure::new("crash", problem));
            let check = "the whole stage".to_string();
            let (status, figures) = (Status::Failed, Default::default());
            records.push(Record { stage: stage.into(), check, status, figures, failure });
        }
        shares(&mut records);
        report.stages.push(Stage::of(stage, &records, outcome.complete, begin.elapsed().as_secs_f64()));
        report.failures.extend(records.iter().filter(|r| r.status == Status::Failed).cloned());
        report.records.extend(records);
        write_json(out, &report).map_err(CheckError::io(out))?;
    }
    // All of it is in the report.
    let _ = std::fs::remove_file(&lines);
    Ok(Ran::Done(Box::new(report)))
}

/// Runs one stage in this process; adds lines to a file.
pub fn stage(stage: &str, dir: &Path, lines: &Path, from: usize) -> Result<(), CheckError> {
    let found = probe();
    let manifest = Manifest::read(dir)?;
    let device = Device::of(&found, DEVICE)?;
    let target = target(&manifest, &found)?;
    let mut file = File::options().append(true).create(true).open(lines).map_err(CheckError::io(lines))?;
    let mut say = |line: Line| {
        let text = serde_json::to_string(&line).map_err(|e| CheckError::io(lines)(e.into()))?;
        // One write, so that a line is there whole or not at all.
        file.write_all(format!("{text}\n").as_bytes()).map_err(CheckError::io(lines))
    };
    stages::run(stage, Packed { dir, manifest: &manifest, target: target.arch() }, &device, from, &mut say)
}

fn device(found: &Probe) -> Result<&DeviceInfo, CheckError> {
    let unavailable = autoshard_runtime::cuda::CudaError::NoDevice { ordinal: DEVICE, count: found.devices().len() };
    found.devices().get(DEVICE).ok_or_else(|| unavailable.into())
}

/// What was packed that the device and its driver run.
fn target(manifest: &Manifest, found: &Probe) -> Result<Target, CheckError> {
    let device = device(found)?;
    let names = manifest.targets.iter();
    let targets: Vec<Target> = names.filter_map(|n| Target::CUBINS.into_iter().find(|t| t.arch() == n)).collect();
    let driver = found.version().unwrap_or(CudaVersion::new(0, 0));
    let needed: u32 = manifest.nvrtc.split('.').next().and_then(|m| m.parse().ok()).unwrap_or(0);
    if driver.major < needed {
        let (nvrtc, driver) = (manifest.nvrtc.clone(), driver.to_string());
        return Err(CheckError::Driver { nvrtc, needed, driver });
    }
    packed(device.capability, &targets).ok_or_else(|| CheckError::Target {
        card: device.name.clone(),
        capability: device.capability.to_string(),
        packed: manifest.targets.join(", "),
    })
}

fn begin(manifest: &Manifest, found: &Probe, target: Target) -> Report {
    let info = found.devices().get(DEVICE);
    Report {
        date: now(),
        autoshard: env!("CARGO_PKG_VERSION").into(),
        card: info.map_or(String::new(), |d| d.name.clone()),
        capability: info.map_or(String::new(), |d| d.capability.to_string()),
        driver: found.version().map_or(String::new(), |v| v.to_string()),
        library: found.library.clone().unwrap_or_default(),
        nvrtc: manifest.nvrtc.clone(),
        target: target.arch().into(),
        stages: vec![],
        failures: vec![],
        records: vec![],
    }
}

/// A report in a few lines.
pub fn summary(report: &Report) -> String {
    let mut out = format!(
        "{} (compute capability {}), driver for CUDA {}, {} of NVRTC {}\n",
        report.card, report.capability, report.driver, report.target, report.nvrtc
    );
    for s in &report.stages {
        let rest = if s.complete { "" } else { "; not all checks were made" };
        out += &format!(
            "{:<12} {} passed, {} failed, {} skipped in {:.0} s{rest}\n",
            s.name, s.passed, s.failed, s.skipped, s.seconds
        );
    }
    for r in report.records.iter().filter(|r| r.stage == stages::SPEED) {
        if let Some(rate) = r.figures.get(super::large::RATE) {
            let share = r.figures.get(super::large::SHARE).copied().unwrap_or(0.0);
            out += &format!("  {rate:8.0} GB/s {:4.0} %  {}\n", 100.0 * share, r.check);
        }
    }
    const SHOWN: usize = 20;
    for r in report.failures.iter().take(SHOWN) {
        let (kind, text) = r.failure.as_ref().map_or(("", ""), |f| (&f.kind, &f.text));
        out += &format!("failed: {}, {}: {kind}: {text}\n", r.stage, r.check);
    }
    if report.failures.len() > SHOWN {
        out += &format!("and {} more failures\n", report.failures.len() - SHOWN);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use autoshard_runtime::cuda::{Capability, State};

    fn machine(capability: (u32, u32), driver: (u32, u32)) -> Probe {
        let info = DeviceInfo {
            ordinal: 0,
            name: "CARD".into(),
            capability: Capability::new(capability.0, capability.1),
            memory: 1 << 37,
            multiprocessors: 132,
            pci: String::new(),
        };
        let state = State::Ready { version: CudaVersion::new(driver.0, driver.1), devices: vec![info] };
        Probe { library: None, kernel_module: true, visible: None, state }
    }

    #[test]
    fn a_packed_folder_fits_a_machine_or_says_why_not() {
        let m = Manifest::new((12, 9), &Target::CUBINS.map(|t| t.arch().to_string()));
        let told = |found: Probe| target(&m, &found).map_or_else(|e| e.to_string(), |t| t.arch().to_string());
        assert_eq!(told(machine((9, 0), (12, 4))), "sm_90a");
        assert_eq!(told(machine((8, 6), (13, 0))), "sm_80");
        assert_eq!(
            told(machine((12, 0), (13, 0))),
            "CARD has compute capability 12.0; the folder holds machine code for sm_80, sm_90a, sm_100 only"
        );
        let old = told(machine((9, 0), (11, 8)));
        assert!(old.contains("NVRTC 12.9") && old.contains("CUDA 11.8"), "{old}");
    }

    #[test]
    fn a_report_names_what_failed() {
        let m = Manifest::new((12, 9), &[]);
        let mut r = begin(&m, &machine((9, 0), (12, 4)), Target::Sm90a);
        assert!(r.fine());
        let failure = Some(Failure::new("nan", "result 0: element 3 is NaN, not 1").at(3));
        let record = Record {
            stage: "kernels".into(),
            check: "k".into(),
            status: Status::Failed,
            figures: Default::default(),
            failure,
        };
        r.stages.push(Stage::of("kernels", std::slice::from_ref(&record), true, 1.0));
        r.failures.push(record);
        assert!(!r.fine());
        let text = summary(&r);
        assert!(text.contains("failed: kernels, k: nan: result 0: element 3 is NaN, not 1"), "{text}");
        r.failures.clear();
        r.stages[0].complete = false;
        assert!(!r.fine());
    }

    #[test]
    fn without_a_gpu_a_run_is_skipped_with_its_reason() {
        if !probe().devices().is_empty() {
            println!("skipped: there is a GPU here");
            return;
        }
        let d = tempfile::tempdir().unwrap();
        let out = d.path().join("out.json");
        let ran = run(d.path(), &out, Path::new("gpu-check")).unwrap();
        let Ran::Skipped(reason) = ran else { panic!("{ran:?}") };
        let written: serde_json::Value = serde_json::from_slice(&std::fs::read(&out).unwrap()).unwrap();
        assert_eq!(written, serde_json::json!({ "skipped": reason }));
        let e = stage("kernels", d.path(), &d.path().join("lines"), 0).unwrap_err().to_string();
        assert!(e.contains("manifest.json"), "{e}");
    }
}

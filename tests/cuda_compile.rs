//! Every Loop, Gather and Scatter kernel of every golden's training step becomes machine code for the
//! three targets, without spilled registers and within what a multiprocessor has. No device is needed.

mod common;

use autoshard::cuda::check::kernels::cases;
use autoshard_codegen::nvrtc::{check, Cache, Job, Limits, Target};
use autoshard_codegen::{emit, CudaKernel};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Instant;

const TARGETS: [Target; 3] = [Target::Sm80, Target::Sm90a, Target::Sm100];

#[test]
fn kernels_of_whole_models_compile_without_spills() {
    let Some(nvrtc) = common::nvrtc() else { return };
    let start = Instant::now();
    // On one rank and on a mesh that splits everything, f32 and bf16: as they run under emulation.
    let cases = cases(&common::models(), &common::golden_dir("")).unwrap();
    let texts: BTreeMap<String, CudaKernel> = cases
        .iter()
        .map(|c| emit(&c.kernel).unwrap_or_else(|e| panic!("{}: {e}", c.label)))
        .map(|k| (k.name.clone(), k))
        .collect();
    let jobs: Vec<Job> = texts.values().flat_map(|k| TARGETS.map(|t| Job::new(k, t))).collect();
    let cache = Cache::new(PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("cuda-cache"));
    let threads = std::thread::available_parallelism().map_or(2, |n| n.get());
    let images = nvrtc.compile_all(&jobs, threads, Some(&cache));
    let mut worst: BTreeMap<&str, u32> = BTreeMap::new();
    let mut faults = Vec::new();
    let mut cached = 0;
    for (job, image) in jobs.iter().zip(images) {
        let image = image.unwrap_or_else(|e| panic!("{e}"));
        cached += usize::from(image.time.is_none());
        assert!(image.bytes.starts_with(b"\x7fELF"), "{}", job.kernel);
        for entry in &texts[job.kernel].entries {
            let found = image.resources.iter().find(|r| r.entry == entry.name);
            let resources =
                &found.unwrap_or_else(|| panic!("{}: no resources of {}", job.kernel, entry.name)).resources;
            let most = worst.entry(job.target.arch()).or_default();
            *most = (*most).max(resources.registers);
            faults.extend(
                check(entry, resources, &Limits::default()).err().map(|e| format!("{}: {e}", job.target.arch())),
            );
        }
    }
    let (kernels, images) = (cases.len(), jobs.len());
    common::say(&format!(
        "{kernels} kernels, {} texts, {images} images ({cached} from the cache), most registers {worst:?}, {:.0?}",
        texts.len(),
        start.elapsed()
    ));
    assert!(faults.is_empty(), "{} faults:\n{}", faults.len(), faults.join("\n"));
    assert!(texts.len() > 200, "{} texts", texts.len());
}

//! Kernels of every kind become machine code for all targets, without spills.

mod common;

use autoshard_codegen::nvrtc::{check, Cache, Image, Job, Limits, Nvrtc, Target};
use autoshard_codegen::{emit, CudaKernel};
use autoshard_ir::kernel::Kernel;
use common::*;
use std::collections::BTreeMap;

/// Compiles for every target and checks budgets; prints a line per kernel.
fn all(nvrtc: &Nvrtc, kernels: Vec<(String, Kernel)>) -> Vec<(String, CudaKernel, Vec<Image>)> {
    let texts: Vec<(String, CudaKernel)> = kernels
        .into_iter()
        .map(|(name, k)| {
            let text = emit(&k).unwrap_or_else(|e| panic!("{name}: {e}"));
            (name, text)
        })
        .collect();
    let jobs: Vec<Job> = texts.iter().flat_map(|(_, k)| Target::CUBINS.map(|t| Job::new(k, t))).collect();
    let mut images = nvrtc.compile_all(&jobs, threads(), Some(&cache())).into_iter();
    let mut out = vec![];
    let mut problems = vec![];
    for (name, text) in texts {
        let mut mine = vec![];
        let mut line = format!("{name:40}");
        for target in Target::CUBINS {
            let image = images.next().unwrap();
            let image = match image {
                Ok(i) => i,
                Err(e) => {
                    problems.push(format!("{name}: {e}\n{}", numbered(&text.source)));
                    continue;
                }
            };
            assert_eq!(&image.bytes[..4], b"\x7fELF", "{name}");
            line += &format!(" | {}", target.arch());
            line += &image.time.map_or(String::new(), |t| format!(" {} ms", t.as_millis()));
            for e in &text.entries {
                let Some(r) = image.resources.iter().find(|r| r.entry == e.name) else {
                    problems.push(format!("{name}: the log lacks {}", e.name));
                    continue;
                };
                line += &format!(" {}r", r.resources.registers);
                if r.resources.stack > 0 {
                    line += &format!("+{}stack", r.resources.stack);
                }
                if let Err(e) = check(e, &r.resources, &Limits::default()) {
                    problems.push(format!("{name} for {}: {e}", target.arch()));
                }
            }
            mine.push(image);
        }
        println!("{line}");
        out.push((name, text, mine));
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
    out
}

fn numbered(source: &str) -> String {
    let start = source.find("KERNEL(").unwrap_or(0);
    let first = source[..start].lines().count();
    let lines = source.lines().enumerate().skip(first.saturating_sub(1));
    lines.map(|(i, l)| format!("{:4} {l}\n", i + 1)).collect()
}

fn named(list: Vec<(&str, Kernel)>, t: impl std::fmt::Display) -> Vec<(String, Kernel)> {
    list.into_iter().map(|(n, k)| (format!("{n} {t}"), k)).collect()
}

#[test]
fn every_kind_compiles_for_every_target() {
    let Some(nvrtc) = nvrtc() else { return };
    println!("NVRTC {:?} from {}", nvrtc.version(), nvrtc.directory());
    let mut kernels = vec![];
    for t in [F32, Bf16] {
        let (b, s) = (split("b", 8, 4), whole("s", 512));
        let list = vec![
            ("contiguous", swiglu(&[b.clone(), s.clone(), whole("f", 1024)], t)),
            ("broadcast", chain(&[b.clone(), s.clone(), whole("f", 1024)], &[0, 1, 2], t)),
            ("transposed", chain(&[b.clone(), s.clone(), whole("f", 1024)], &[2, 0, 1], t)),
            ("ragged lane", chain(&[whole("b", 3), whole("s", 5), split("f", 1001, 4)], &[0, 1, 2], t)),
            ("ragged rows", chain(&[whole("b", 3), split("s", 7, 3), whole("f", 17)], &[0, 1, 2], t)),
            ("softmax 100", softmax(&[b.clone(), s.clone(), whole("v", 100)], t)),
            ("softmax 1000 ragged", softmax(&[b.clone(), split("v", 4000, 4)], t)),
            ("softmax 50257", softmax(&[b.clone(), whole("v", 50257)], t)),
            ("rmsnorm", rmsnorm(&[b.clone(), s.clone(), whole("d", 4096)], t)),
            ("rmsnorm backward", rmsnorm_backward(&[b.clone(), s.clone(), whole("d", 4096)], t)),
            ("rmsnorm backward ragged", rmsnorm_backward(&[b.clone(), s.clone(), split("d", 1001, 4)], t)),
            ("cross entropy", cross_entropy(whole("n", 4096), whole("v", 50257), t)),
            ("cross entropy split", cross_entropy(whole("n", 4096), split("v", 50257, 8), t)),
            ("cross entropy backward", cross_entropy_backward(whole("n", 4096), whole("v", 50257), t)),
            ("rope 32", rope(b.clone(), s.clone(), whole("h", 8), 32, t)),
            ("rope 16", rope(b.clone(), s.clone(), split("h", 6, 4), 16, t)),
            ("combine lane", combining(&[whole("i", 700), whole("j", 3), whole("k", 19)], &[2], SUM, t)),
            ("combine middle", combining(&[whole("i", 700), whole("j", 64), whole("k", 128)], &[0, 2], MAX, t)),
            ("combine outer", combining(&[whole("i", 5), split("j", 7, 3), whole("k", 6)], &[0], SUM, t)),
            ("combine all", combining(&[whole("i", 40), whole("j", 60), split("k", 40, 3)], &[], MAX, t)),
            ("norm", norm(&[whole("n", 4096), whole("d", 4096)], t)),
            ("rmsnorm backward 50257", rmsnorm_backward(&[b.clone(), s.clone(), whole("d", 50257)], t)),
            ("scaled", scaled(&[whole("i", 700), whole("j", 64), whole("k", 128)], &[1, 2], t)),
            ("mixed", mixed(t)),
            ("far", far(split("n", 1000, 3), t)),
            ("norm of one row", norm(&[whole("n", 100_000)], t)),
            ("positions", positions(whole("i", 4), split("j", 80, 3), t)),
            ("scalars", scalars(whole("n", 1000), t)),
            ("gather", gather(vec![b.clone(), s.clone()], split("v", 50257, 8), whole("d", 4096), t)),
            ("gather ragged", gather(vec![split("s", 7, 3)], split("v", 10, 3), split("d", 22, 3), t)),
            (
                "adamw",
                adamw(
                    &[vec![whole("a", 1 << 20)], vec![whole("a", 4096)], vec![whole("a", 999), split("b", 64, 3)]],
                    t,
                ),
            ),
        ];
        kernels.extend(named(list, t));
    }
    let scatters = vec![
        ("scatter", scatter(vec![whole("b", 4), whole("s", 512)], split("v", 50257, 8), whole("d", 4096), F32)),
        ("scatter ragged", scatter(vec![split("s", 7, 3)], split("v", 10, 3), split("d", 22, 3), F32)),
        ("rope table", rope_table(split("s", 131_072, 8), 64)),
        ("beyond 32 bits", swiglu(&[whole("n", 1 << 21), whole("f", 4096)], Bf16)),
        ("rows beyond 32 bits", softmax(&[whole("n", 1 << 19), split("v", 65_536, 2)], Bf16)),
        ("sums beyond 32 bits", combining(&[whole("n", 1 << 20), whole("j", 3), whole("v", 4096)], &[1], SUM, F32)),
        ("gather beyond 32 bits", gather(vec![whole("n", 1 << 20)], whole("v", 50257), whole("d", 4096), F32)),
        ("scatter beyond 32 bits", scatter(vec![whole("n", 1 << 20)], whole("v", 50257), whole("d", 4096), F32)),
        ("adamw of 100 tensors", adamw(&(1..=100).map(|i| vec![whole("a", 4096 * i)]).collect::<Vec<_>>(), Bf16)),
        ("softmax of doubles", softmax(&[whole("n", 100), whole("v", 300)], F64)),
        ("scalars of doubles", scalars(whole("n", 1000), F64)),
        ("scalars of integers", scalars(whole("n", 1000), I32)),
    ];
    kernels.extend(named(scatters, ""));
    for (from, to) in [F64, F32, Bf16, I32].into_iter().flat_map(|f| [F64, F32, Bf16, I32].map(|t| (f, t))) {
        kernels.push((format!("cast {from} {to}"), cast(split("n", 1000, 3), from, to)));
    }
    let compiled = all(&nvrtc, kernels);
    let mut times: BTreeMap<Target, Vec<u128>> = BTreeMap::new();
    for image in compiled.iter().flat_map(|c| &c.2) {
        image.time.iter().for_each(|t| times.entry(image.target).or_default().push(t.as_millis()));
    }
    for (target, mut t) in times {
        t.sort();
        println!("{}: {} texts, median {} ms, longest {} ms", target.arch(), t.len(), t[t.len() / 2], t[t.len() - 1]);
    }
}

#[test]
fn contiguous_work_moves_16_bytes_at_a_time() {
    let Some(nvrtc) = nvrtc() else { return };
    for t in [F32, Bf16] {
        let k = emit(&swiglu(&[whole("s", 512), whole("f", 1024)], t)).unwrap();
        let ptx = nvrtc.compile(Job::new(&k, Target::Ptx), None).unwrap();
        let ptx = String::from_utf8(ptx.bytes).unwrap();
        let count = |what: &str| ptx.matches(what).count();
        assert_eq!((count("ld.global.v4"), count("st.global.v4")), (2, 1), "{ptx}");
        assert_eq!(count("ld.global.u") + count("ld.global.f") + count("ld.global.nc"), 0, "{ptx}");
    }
}

#[test]
fn the_second_compilation_reads_the_cache() {
    let Some(nvrtc) = nvrtc() else { return };
    let directory = tempfile::tempdir().unwrap();
    let cache = Cache::new(directory.path());
    let k = emit(&swiglu(&[whole("n", 1000)], F32)).unwrap();
    let job = Job::new(&k, Target::Sm80);
    let first = nvrtc.compile(job, Some(&cache)).unwrap();
    let second = nvrtc.compile(job, Some(&cache)).unwrap();
    assert!(first.time.is_some() && second.time.is_none());
    assert_eq!((&first.bytes, &first.resources), (&second.bytes, &second.resources));
    // Damaged: compiled again.
    let file = std::fs::read_dir(directory.path()).unwrap().next().unwrap().unwrap().path();
    std::fs::write(&file, b"damaged").unwrap();
    assert!(nvrtc.compile(job, Some(&cache)).unwrap().time.is_some());
    assert!(nvrtc.compile(job, Some(&cache)).unwrap().time.is_none());
}

#[test]
fn a_refused_text_is_reported_with_its_kernel() {
    let Some(nvrtc) = nvrtc() else { return };
    let job =
        Job { kernel: "broken", source: "extern \"C\" __global__ void k(float* x) { *x = y; }", target: Target::Sm80 };
    let e = nvrtc.compile(job, None).unwrap_err().to_string();
    assert!(e.starts_with("kernel broken does not compile for sm_80: broken.cu(1): error: identifier \"y\""), "{e}");
    let e = nvrtc.compile(Job { source: "\0", ..job }, None).unwrap_err().to_string();
    assert_eq!(e, "kernel broken: the text holds a NUL byte");
}

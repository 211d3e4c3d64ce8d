//! Budgets of kernels at the sizes of published models.

mod common;

use autoshard_codegen::emit;
use autoshard_codegen::nvrtc::{check, Job, Limits, Target};
use autoshard_ir::kernel::Kernel;
use common::*;

/// Hidden sizes: qwen3-30b-a3b, gpt-oss-20b, llama-3.1-8b, qwen3-32b, mixtral-8x22b, deepseek-v3,
/// llama-3.1-70b, gpt3-175b, llama-3.1-405b, mt-nlg-530b.
const HIDDEN: [usize; 10] = [2048, 2880, 4096, 5120, 6144, 7168, 8192, 12288, 16384, 20480];
/// Widths of the feed-forward part: an expert of qwen3-30b-a3b, gpt-oss-20b, llama-3.1-8b,
/// llama-3.1-405b.
const FFN: [usize; 4] = [768, 2880, 14336, 53248];
/// Widths of a head: gpt-oss-20b, the others.
const HEAD: [usize; 2] = [64, 128];
/// Vocabularies: mixtral, gpt3-175b, llama-3.1, deepseek-v3, qwen3, gpt-oss-20b.
const VOCABULARY: [usize; 6] = [32000, 50257, 128256, 129280, 151936, 201088];

fn kernels() -> Vec<(String, Kernel)> {
    let (b, s) = (split("b", 16, 8), whole("s", 4096));
    let mut out = vec![];
    for d in HIDDEN {
        let loops = [b.clone(), s.clone(), whole("d", d)];
        out.push((format!("rmsnorm {d}"), rmsnorm(&loops, Bf16)));
        out.push((format!("rmsnorm backward {d}"), rmsnorm_backward(&loops, Bf16)));
    }
    for f in FFN {
        let loops = [b.clone(), s.clone(), split("f", f, 8)];
        out.push((format!("swiglu {f}"), swiglu(&loops, Bf16)));
        out.push((format!("swiglu backward {f}"), swiglu_backward(&loops, Bf16)));
    }
    for e in HEAD {
        let loops = [b.clone(), s.clone(), whole("h", 8), whole("e", e)];
        out.push((format!("rope {e}"), rope(b.clone(), s.clone(), split("h", 64, 8), e / 2, Bf16)));
        out.push((format!("rmsnorm of heads {e}"), rmsnorm(&loops, Bf16)));
        out.push((format!("rmsnorm of heads backward {e}"), rmsnorm_backward(&loops, Bf16)));
    }
    for v in VOCABULARY {
        for (kind, v) in [("", whole("v", v)), (" split", split("v", v, 8))] {
            out.push((format!("cross entropy{kind} {}", v.global), cross_entropy(whole("n", 8192), v.clone(), Bf16)));
        }
        let loops = (whole("n", 8192), split("v", v, 8));
        out.push((format!("cross entropy backward {v}"), cross_entropy_backward(loops.0, loops.1, Bf16)));
    }
    // The tensors of a layer of llama-3.1-8b, split 8 ways.
    let sizes = [(4096, 4096), (1024, 4096), (1024, 4096), (4096, 4096), (14336, 4096), (14336, 4096), (4096, 14336)];
    let mut shapes: Vec<_> = sizes.iter().map(|(a, b)| vec![split("a", *a, 8), whole("b", *b)]).collect();
    shapes.extend([vec![whole("d", 4096)], vec![whole("d", 4096)]]);
    out.push(("adamw of a layer".into(), adamw(&shapes, Bf16)));
    out
}

#[test]
fn real_sizes_fit_without_spills() {
    let Some(nvrtc) = nvrtc() else { return };
    let texts: Vec<_> = kernels().into_iter().map(|(n, k)| (n, emit(&k).unwrap())).collect();
    let jobs: Vec<Job> = texts.iter().flat_map(|(_, k)| Target::CUBINS.map(|t| Job::new(k, t))).collect();
    let images = nvrtc.compile_all(&jobs, threads(), Some(&cache()));
    let mut problems = vec![];
    for ((name, k), images) in texts.iter().zip(images.chunks(Target::CUBINS.len())) {
        let mut line = format!("{name:36} {:>9} bytes of workspace", k.workspace);
        for (target, image) in Target::CUBINS.iter().zip(images) {
            match image {
                Ok(image) => {
                    line += &format!(" | {}", target.arch());
                    for e in &k.entries {
                        let r = image.resources.iter().find(|r| r.entry == e.name).unwrap().resources;
                        line += &format!(" {}x{} {}r", e.grid, e.block, r.registers);
                        if let Err(e) = check(e, &r, &Limits::default()) {
                            problems.push(format!("{name} for {}: {e}", target.arch()));
                        }
                    }
                }
                Err(e) => problems.push(e.to_string()),
            }
        }
        println!("{line}");
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

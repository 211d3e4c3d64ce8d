//! The text of some kernels, as it is. AUTOSHARD_BLESS=1 writes it anew.

mod common;

use autoshard_codegen::cuda::{emit, PRIMITIVES, SUPPORT};
use autoshard_ir::kernel::Kernel;
use common::*;
use std::path::Path;

fn check(name: &str, kernel: &Kernel) {
    let k = emit(kernel).unwrap();
    // The name depends on the primitives, too.
    let body = k.source.strip_prefix(&format!("{PRIMITIVES}\n{SUPPORT}\n")).unwrap().replace(&k.name, "NAME");
    let entries: String = k
        .entries
        .iter()
        .map(|e| {
            format!(
                "// {}: {} blocks of {}, {} bytes shared\n",
                e.name.replace(&k.name, "NAME"),
                e.grid,
                e.block,
                e.shared
            )
        })
        .collect();
    let extents: Vec<&str> = k.extents.iter().map(|e| e.name.as_str()).collect();
    let text = format!("{entries}// workspace: {} bytes; split: [{}]\n{body}", k.workspace, extents.join(", "));
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name);
    if std::env::var_os("AUTOSHARD_BLESS").is_some() {
        std::fs::write(&path, &text).unwrap();
    }
    let want = std::fs::read_to_string(&path).unwrap_or_default();
    let differs = text.lines().zip(want.lines()).enumerate().find(|(_, (a, b))| a != b);
    assert!(text == want, "{name} differs, first in {differs:?}; AUTOSHARD_BLESS=1 writes it");
}

#[test]
fn contiguous_work_is_one_loop() {
    check("swiglu.cu", &swiglu(&[split("b", 8, 4), whole("s", 512), whole("f", 1024)], Bf16));
}

#[test]
fn a_ragged_lane_has_a_scalar_tail() {
    check("softmax.cu", &softmax(&[whole("n", 64), split("v", 400, 4)], F32));
}

#[test]
fn sums_over_rows_go_through_the_workspace() {
    check("rmsnorm_backward.cu", &rmsnorm_backward(&[split("b", 8, 4), whole("s", 512), whole("d", 4096)], Bf16));
}

#[test]
fn tensors_of_one_form_share_a_loop() {
    check("adamw.cu", &adamw(&[vec![whole("a", 1 << 20)], vec![whole("a", 4096)], vec![whole("a", 64)]], Bf16));
}

#[test]
fn rows_are_added_by_their_owners() {
    check("scatter.cu", &scatter(vec![whole("b", 4), whole("s", 512)], split("v", 50257, 8), whole("d", 4096), F32));
}

//! What texts depend on, how they are launched, and what is refused.

mod common;

use autoshard_codegen::emit;
use autoshard_ir::core::{Axis, Scalar};
use autoshard_ir::kernel::{AttentionKernel, CopyKernel, Kernel, KernelBody, LoopOp};
use autoshard_ir::mesh::{Mesh, Part};
use common::*;

fn refused(k: &Kernel) -> String {
    emit(k).unwrap_err().to_string()
}

#[test]
fn reported_names_are_not_in_the_text() {
    let mut k = swiglu(&[split("b", 8, 4), whole("f", 1024)], Bf16);
    let first = emit(&k).unwrap();
    assert_eq!(first, emit(&k).unwrap());
    k.name = "another".into();
    if let KernelBody::Loop(nests) = &mut k.body {
        nests[0].loops[1].name = "g".into();
    }
    let second = emit(&k).unwrap();
    assert_eq!((&first.name, &first.source), (&second.name, &second.source));
    let other = emit(&swiglu(&[split("b", 8, 4), whole("f", 1032)], Bf16)).unwrap();
    assert_ne!(first.name, other.name);
}

#[test]
fn launches_carry_the_parts_of_split_extents() {
    let k = emit(&rmsnorm_backward(&[split("b", 7, 3), whole("s", 512), whole("d", 4096)], F32)).unwrap();
    assert_eq!(k.entries.len(), 2);
    assert!(k.workspace > 0);
    let mesh = Mesh::new(&[("x3", 3)]);
    for (rank, scalars) in [[0, 3], [3, 3], [6, 1]].into_iter().enumerate() {
        let launches = k.launches(&k.parts(&mesh, &[rank])).unwrap();
        assert_eq!(launches.len(), 2);
        for (l, e) in launches.iter().zip(&k.entries) {
            assert_eq!((&l.entry, l.grid, l.block), (&e.name, [e.grid, 1, 1], [e.block, 1, 1]));
            assert_eq!(l.scalars, scalars);
        }
    }
    let e = k.launches(&[]).unwrap_err().to_string();
    assert_eq!(e, format!("kernel {} has 1 split extents, but 0 parts were given", k.name));
    for part in [Part { start: 0, len: 4 }, Part { start: 6, len: 2 }, Part { start: usize::MAX, len: 2 }] {
        let e = k.launches(&[part]).unwrap_err().to_string();
        assert!(e.contains("extent b of 3 entries per rank cannot hold part"), "{e}");
    }
}

#[test]
fn the_same_split_is_passed_once() {
    let shapes: Vec<_> = (0..5).map(|i| vec![split("a", 4096, 3), whole("b", 8 + i)]).collect();
    assert_eq!(emit(&adamw(&shapes, F32)).unwrap().extents.len(), 1);
}

#[test]
fn many_tensors_make_a_short_text() {
    let shapes = |n: usize| -> Vec<_> { (0..n).map(|i| vec![whole("a", 4096 * (i + 1))]).collect() };
    let few = emit(&adamw(&shapes(2), Bf16)).unwrap();
    let many = emit(&adamw(&shapes(200), Bf16)).unwrap();
    let (few, many) = (few.source.len(), many.source.len());
    assert!(many - few < 200 * 1000, "{few} {many}");
    let e = refused(&adamw(&shapes(600), Bf16));
    assert!(e.ends_with("bytes of arguments is not supported"), "{e}");
}

#[test]
fn other_templates_are_named() {
    let copy = KernelBody::Copy(CopyKernel { dtype: F32, fill: None, boxes: vec![] });
    assert_eq!(refused(&kernel("c", 1, 1, copy)), "kernel c: no CUDA text for the template copy");
    let e = |n: &str| whole(n, 1);
    let attention = AttentionKernel {
        b: e("b"),
        s: e("s"),
        t: e("t"),
        g: e("g"),
        r: e("r"),
        e: e("e"),
        h: e("h"),
        scale: 1.0,
        causal: true,
        window: 0,
        dtype: F32,
    };
    let k = kernel("a", 3, 2, KernelBody::Attention(attention));
    assert_eq!(refused(&k), "kernel a: no CUDA text for the template attention");
}

#[test]
fn contradictions_are_refused() {
    let loops = [whole("i", 3), whole("j", 4)];
    let with = |build: &dyn Fn(&mut Make)| {
        let mut m = Make::new(1, &loops);
        build(&mut m);
        refused(&m.kernel("k"))
    };
    let lacks = "kernel k (loop): the store of register 0 lacks a loop but does not combine";
    let e = with(&|m| {
        let a = m.load(0, F32, &[0, 1]);
        m.store(a, F32, &[1], None);
    });
    assert_eq!(e, lacks);
    let e = with(&|m| {
        let a = m.load(0, F32, &[0, 1]);
        m.store(a, F32, &[0], None);
    });
    assert_eq!(e, lacks);
    let e = with(&|m| {
        m.push(LoopOp::Map(Scalar::Add), &[0, 1], F32, false);
    });
    assert!(e.starts_with("kernel k (loop): instruction 0"), "{e}");
    let e = with(&|m| {
        m.load(1, F32, &[0, 1]);
    });
    assert_eq!(e, "kernel k (loop): load from buffer 1, a result");
    let e = with(&|m| {
        let mut view = m.view(0, F32, &[0, 1]);
        view.strides.pop();
        m.load_view(view);
    });
    assert_eq!(e, "kernel k (loop): strides [4] do not fit the loops");
    let e = with(&|m| {
        let mut view = m.view(0, F32, &[0, 1]);
        view.strides[0] = usize::MAX / 2;
        m.load_view(view);
    });
    assert_eq!(e, "kernel k (loop): an address that overflows");
    let e = with(&|m| {
        m.push(LoopOp::Table(1, vec![1.0; 3]), &[], F32, false);
    });
    assert_eq!(e, "kernel k (loop): a table of 3 numbers is too short");
    let e = with(&|m| {
        m.push(LoopOp::Index(2), &[], I32, false);
    });
    assert_eq!(e, "kernel k (loop): no loop 2");
    let e = with(&|m| {
        m.push(LoopOp::Random(1, vec![1]), &[], F32, false);
    });
    assert_eq!(e, "kernel k (loop): random strides do not fit the loops");
    assert_eq!(refused(&kernel("k", 0, 0, KernelBody::Loop(vec![]))), "kernel k (loop): no nests");
    let mut k = swiglu(&[], F32);
    assert_eq!(refused(&k), "kernel swiglu (loop): a loop kernel without loops");
    k = swiglu(&[whole("a", 1 << 62)], F32);
    assert_eq!(refused(&k), "kernel swiglu (loop): more entries than can be counted");
    let axes = vec![Axis::new("x")];
    let huge = autoshard_ir::kernel::Extent { name: "a".into(), size: 1 << 30, global: 1 << 33, axes };
    assert_eq!(
        refused(&swiglu(&[huge], F32)),
        "kernel swiglu (loop): an extent of 8589934592 entries (a) is not supported"
    );
    let rows = vec![whole("n", 4)];
    let e = refused(&scatter(rows.clone(), whole("v", 4), whole("d", 4), Bf16));
    assert_eq!(e, "kernel scatter (scatter): adding rows of bf16 is not supported");
    let mut k = gather(rows, whole("v", 4), whole("d", 4), F32);
    k.operands = 3;
    assert_eq!(refused(&k), "kernel gather (gather): 3 operands and 1 results instead of 2 and 1");
}

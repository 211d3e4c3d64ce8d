//! Whole kernels: several nests, results in place, and what the machine finds in instructions.

use super::tests::{check, Make, SUM};
use crate::cpu::testing::*;
use crate::cpu::*;
use autoshard_ir::core::{BinaryMonoid, Scalar};
use autoshard_ir::kernel::{LoopKernel, LoopOp, Store, View};

/// Moves the views of a nest to other buffers.
fn moved(mut k: LoopKernel, to: &dyn Fn(usize) -> usize) -> LoopKernel {
    for i in &mut k.instrs {
        if let LoopOp::Load(v) = &mut i.op {
            v.buffer = to(v.buffer);
        }
    }
    k.stores.iter_mut().for_each(|s| s.view.buffer = to(s.view.buffer));
    k
}

#[test]
fn several_nests_are_one_list_of_tasks() {
    // A long map, a sum over many rows (cut into chunks), a short map, an f64 sum.
    let t = DType::F32;
    let mut a = Make::new(1, &[whole("i", 100_000)]);
    let x = a.load(0, t, &[0]);
    let y = a.map(Scalar::Exp, &[x], t);
    a.store(y, t, &[0], None);
    let mut b = Make::new(1, &[whole("i", 5_000), whole("j", 40)]);
    let x = b.load(0, t, &[0, 1]);
    b.store(x, t, &[1], Some(SUM));
    let mut c = Make::new(1, &[split("i", 7)]);
    let x = c.load(0, t, &[0]);
    let y = c.map(Scalar::Neg, &[x], t);
    c.store(y, t, &[0], None);
    let mut d = Make::new(1, &[whole("i", 300), whole("j", 300)]);
    let x = d.load(0, DType::F64, &[0, 1]);
    d.store(x, DType::F64, &[], Some(BinaryMonoid::Max));
    let nests = [a.k, b.k, c.k, d.k];
    let operands = [
        Tensor::noise(t, 100_000, 1),
        Tensor::noise(t, 200_000, 2),
        Tensor::noise(t, 3, 3),
        Tensor::noise(DType::F64, 90_000, 4),
    ];
    let results = [(t, 100_000), (t, 40), (t, 3), (DType::F64, 1)];
    let all: Vec<LoopKernel> =
        nests.iter().enumerate().map(|(i, k)| moved(k.clone(), &|b| if b == 0 { i } else { 4 + i })).collect();
    let canaries = results.map(|(t, n)| Tensor::canary(t, n));
    for rank in 0..3 {
        let got = run(&kernel(4, 4, KernelBody::Loop(all.clone())), rank, &operands, &canaries).unwrap();
        for i in 0..4 {
            let alone = kernel(1, 1, KernelBody::Loop(vec![nests[i].clone()]));
            let want = run(&alone, rank, &operands[i..=i], &canaries[i..=i]).unwrap();
            assert_eq!(got[i], want[0], "nest {i} on rank {rank}");
        }
    }
}

#[test]
fn results_in_place_through_the_same_set_of_views() {
    // The halves of each row are rotated into each other: two loads and two stores of one buffer.
    let (rows, half, t) = (700, 24, DType::F32);
    let mut m = Make::new(2, &[whole("i", rows), whole("h", half)]);
    let part = |buffer, offset| View { buffer, dtype: t, offset, strides: vec![2 * half, 1] };
    let lo = m.push(LoopOp::Load(part(0, 0)), &[], t, false);
    let hi = m.push(LoopOp::Load(part(0, half)), &[], t, false);
    let c = m.load(1, t, &[1]);
    let a = m.map(Scalar::Mul, &[lo, c], t);
    let x = m.map(Scalar::Sub, &[a, hi], t);
    let b = m.map(Scalar::Mul, &[hi, c], t);
    let y = m.map(Scalar::Add, &[lo, b], t);
    m.k.stores.push(Store { view: part(2, 0), reg: x, combine: None });
    m.k.stores.push(Store { view: part(2, half), reg: y, combine: None });
    // What was there, too, after it has been overwritten.
    m.k.stores.push(Store { view: View { buffer: 3, ..part(3, 0) }, reg: hi, combine: None });
    let k = kernel(2, 2, KernelBody::Loop(vec![m.k]));
    let before = Tensor::noise(t, rows * 2 * half, 1);
    let (mut p, mut c, mut old) = (before.clone(), Tensor::noise(t, half, 2), Tensor::canary(t, rows * 2 * half));
    let buffers = [p.buffer(), c.buffer(), p.buffer(), old.buffer()];
    // SAFETY: the tensors outlive the call; the result in place has the operand's views.
    unsafe { execute(&k, &mesh(), &[0], &buffers, &Pool::new(2)) }.unwrap();
    for (i, h) in (0..rows).flat_map(|i| (0..half).map(move |h| (i * 2 * half, h))) {
        let (lo, hi, c) = (before.get(i + h) as f32, before.get(i + half + h) as f32, c.get(h) as f32);
        assert_eq!(p.get(i + h), f64::from(lo * c - hi));
        assert_eq!(p.get(i + half + h), f64::from(lo + hi * c));
        assert_eq!(old.get(i + h), f64::from(hi));
    }
}

#[test]
fn a_label_selects_one_lane() {
    // Σ_j [j = label]·x, x − [j = label], and a label that is no index; the lane split and whole.
    let i32s = DType::I32;
    for (t, lane) in [DType::F32, DType::F64].into_iter().flat_map(|t| [whole("j", 50), split("j", 50)].map(|l| (t, l)))
    {
        let mut m = Make::new(2, &[whole("i", 9), lane.clone()]);
        let (x, label) = (m.load(0, t, &[0, 1]), m.load(1, i32s, &[0]));
        let index = m.push(LoopOp::Index(1), &[], i32s, false);
        let equal = m.map(Scalar::Equal, &[index, label], i32s);
        let hit = m.map(Scalar::Identity, &[equal], t);
        let zero = m.push(LoopOp::Const(0.0), &[], t, true);
        let at = m.map(Scalar::Select, &[hit, x, zero], t);
        let target = m.push(LoopOp::Reduce(SUM), &[at], t, true);
        let left = m.map(Scalar::Sub, &[x, hit], t);
        m.store(target, t, &[0], None);
        m.store(left, t, &[0, 1], None);
        m.store(hit, t, &[0, 1], None);
        let n = 9 * lane.size;
        let labels = Tensor::new(i32s, &[0.0, 49.0, 17.0, -1.0, 50.0, 16.0, 33.0, 34.0, 5.0]);
        check(&m.k, &[Tensor::noise(t, n, 1), labels], &[(t, 9), (t, n), (t, n)], 0.0);
    }
}

#[test]
fn touched_bytes_are_counted_once() {
    let t = DType::F32;
    let mut m = Make::new(3, &[whole("i", 6), whole("j", 10)]);
    let (a, b) = (m.load(0, t, &[0, 1]), m.load(1, t, &[1]));
    let again = m.load(0, t, &[0, 1]);
    let _unused = m.load(2, t, &[0]);
    let x = m.map(Scalar::Add, &[a, b], t);
    let x = m.map(Scalar::Mul, &[x, again], t);
    m.store(x, t, &[0, 1], None);
    m.store(x, DType::F64, &[0], Some(SUM));
    let k = kernel(3, 2, KernelBody::Loop(vec![m.k]));
    let touched = Prepared::new(&k, &mesh(), &[0]).unwrap().touched();
    assert_eq!(touched, [240, 40, 0, 240, 48]);
}

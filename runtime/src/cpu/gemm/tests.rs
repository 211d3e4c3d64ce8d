//! Products against plain loops.

use super::super::testing::*;
use super::super::unpack;
use autoshard_ir::core::{BinaryMonoid, DType, Scalar};
use autoshard_ir::kernel::{self as ir, Extent, GemmKernel, GemmLoop, Init, KernelBody};
use autoshard_ir::kernel::{Instr, LoopKernel, LoopOp, Store, View};

fn gl(extent: Extent, a: usize, b: usize, c: usize) -> GemmLoop {
    GemmLoop { extent, a, b, c }
}

/// Compares with plain loops over real entries; everything else must be untouched.
fn check(g: &ir::Product, lens: [usize; 3], rank: usize) {
    let loops: Vec<&GemmLoop> = g.loops().collect();
    let sizes: Vec<usize> = loops.iter().map(|l| mesh().part(l.extent.global, &l.extent.axes, &[rank]).len).collect();
    let out_loops = loops.len() - g.k.len();
    let operands = [Tensor::noise(g.dtype, lens[0], 1), Tensor::noise(g.dtype, lens[1], 2)];
    let mut want: Vec<Option<f64>> = vec![None; lens[2]];
    let each = |sizes: &[usize], f: &mut dyn FnMut(&[usize])| {
        let mut d = vec![0; sizes.len()];
        for i in 0..sizes.iter().product() {
            unpack(i, sizes.iter().copied(), &mut d);
            f(&d);
        }
    };
    let at = |d: &[usize], s: fn(&GemmLoop) -> usize| -> usize { d.iter().zip(&loops).map(|(d, l)| d * s(l)).sum() };
    each(&sizes[..out_loops], &mut |d| want[at(d, |l| l.c)] = Some(0.0));
    each(&sizes, &mut |d| {
        let product = operands[0].get(at(d, |l| l.a)) * operands[1].get(at(d, |l| l.b));
        *want[at(d, |l| l.c)].as_mut().unwrap() += product;
    });
    let k = kernel(2, 1, KernelBody::Gemm(GemmKernel::single(g.clone())));
    let out = run(&k, rank, &operands, &[Tensor::canary(g.dtype, lens[2])]).unwrap();
    for (i, w) in want.iter().enumerate() {
        let limit = tolerance(g.dtype);
        assert_near(out[0].get(i), w.unwrap_or(CANARY), limit, &format!("{} rank {rank} at {i}", g.dtype));
    }
}

#[test]
fn plain_and_large_enough_to_cut() {
    for dtype in [DType::F32, DType::F64] {
        for (m, n, k) in [(1, 1, 1), (5, 7, 3), (1, 33, 65), (201, 67, 129), (67, 301, 90)] {
            let g = ir::Product {
                a: 0,
                b: 1,
                c: 2,
                init: Init::Zero,
                batch: vec![],
                m: vec![gl(whole("m", m), k, 0, n)],
                n: vec![gl(whole("n", n), 0, k, 1)],
                k: vec![gl(whole("k", k), 1, 1, 0)],
                dtype,
            };
            check(&g, [m * k, n * k, m * n], 0);
        }
    }
}

#[test]
fn many_loops_ragged_on_every_side() {
    // a [x, s, g, e], b [x, d, g, e], c [x, s, d]; each of the loops split in turn.
    for (which, rank, dtype) in
        (0..5).flat_map(|w| (0..3).map(move |r| (w, r))).flat_map(|(w, r)| [(w, r, DType::F32), (w, r, DType::F64)])
    {
        let size = [2, 7, 4, 3, 5];
        let e: Vec<Extent> =
            (0..5).map(|i| if i == which { split("x", size[i]) } else { whole("w", size[i]) }).collect();
        let [x, s, d, g, k] = [0, 1, 2, 3, 4].map(|i| e[i].size);
        let gemm = ir::Product {
            a: 0,
            b: 1,
            c: 2,
            init: Init::Zero,
            batch: vec![gl(e[0].clone(), s * g * k, d * g * k, s * d)],
            m: vec![gl(e[1].clone(), g * k, 0, d)],
            n: vec![gl(e[2].clone(), 0, g * k, 1)],
            k: vec![gl(e[3].clone(), k, k, 0), gl(e[4].clone(), 1, 1, 0)],
            dtype,
        };
        check(&gemm, [x * s * g * k, x * d * g * k, x * s * d], rank);
    }
}

#[test]
fn nothing_to_reduce_writes_zeros() {
    // Four entries over three ranks, twos: the third rank holds none.
    for inner in [1, 3] {
        let g = ir::Product {
            a: 0,
            b: 1,
            c: 2,
            init: Init::Zero,
            batch: vec![],
            m: vec![gl(whole("m", 3), 2 * inner, 0, 5)],
            n: vec![gl(whole("n", 5), 0, 1, 1)],
            k: vec![gl(split("k", 4), inner, 5 * inner, 0), gl(whole("j", inner), 1, 5, 0)],
            dtype: DType::F32,
        };
        (0..3).for_each(|rank| check(&g, [6 * inner, 10 * inner, 15], rank));
    }
}

#[test]
fn integers_are_refused() {
    let init = Init::Zero;
    let (batch, m, n, k) = (vec![], vec![], vec![], vec![]);
    let g = ir::Product { a: 0, b: 1, c: 2, init, batch, m, n, k, dtype: DType::I32 };
    let t = || Tensor::noise(DType::I32, 1, 0);
    let e = run(&kernel(2, 1, KernelBody::Gemm(GemmKernel::single(g))), 0, &[t(), t()], &[t()]).unwrap_err();
    assert_eq!(e.to_string(), "kernel test: the CPU has no product of i32");
}

#[test]
fn every_layout_of_both_operands_and_the_result() {
    let (m, n, k) = (100, 70, 600);
    for layout in 0..8 {
        let [a, b, c] = [0, 1, 2].map(|bit| layout >> bit & 1 == 1);
        for dtype in [DType::F32, DType::F64, DType::Bf16] {
            let g = ir::Product {
                a: 0,
                b: 1,
                c: 2,
                init: Init::Zero,
                batch: vec![],
                m: vec![gl(whole("m", m), if a { 1 } else { k }, 0, if c { 1 } else { n })],
                n: vec![gl(whole("n", n), 0, if b { 1 } else { k }, if c { m } else { 1 })],
                k: vec![gl(whole("k", k), if a { m } else { 1 }, if b { n } else { 1 }, 0)],
                dtype,
            };
            check(&g, [m * k, n * k, m * n], 0);
        }
    }
}

/// A row-major product `c[m, n] = init + a[m, k]·b[k, n]` over rows `[2, m/2]`.
fn rows(m: usize, n: usize, k: usize, [a, b, c]: [usize; 3], init: Init, dtype: DType) -> ir::Product {
    let h = m / 2;
    ir::Product {
        a,
        b,
        c,
        init,
        batch: vec![],
        m: vec![gl(whole("x", 2), h * k, 0, h * n), gl(whole("m", h), k, 0, n)],
        n: vec![gl(whole("n", n), 0, 1, 1)],
        k: vec![gl(whole("k", k), 1, n, 0)],
        dtype,
    }
}

fn product(a: &Tensor, b: &Tensor, (m, n, k): (usize, usize, usize)) -> Vec<f64> {
    let at = |i: usize| (0..k).map(|p| a.get(i / n * k + p) * b.get(p * n + i % n)).sum();
    (0..m * n).map(at).collect()
}

fn tolerance(dtype: DType) -> f64 {
    match dtype {
        DType::F32 => 3e-5,
        DType::Bf16 => 1e-2,
        _ => 1e-12,
    }
}

#[test]
fn products_share_operands_and_add_up() {
    for dtype in [DType::F32, DType::F64, DType::Bf16] {
        // c0 = z + x·w0; c1 = x·w1; c0 += y·w2; c2 = c1's operand times w3, of other rows.
        let (m, n, k) = (254, 40, 300);
        let products = vec![
            rows(m, n, k, [0, 1, 6], Init::Operand(4), dtype),
            rows(m, n, k, [0, 2, 7], Init::Zero, dtype),
            rows(m, n, k, [5, 3, 6], Init::Result, dtype),
            rows(10, n, k, [0, 3, 8], Init::Zero, dtype),
        ];
        let t = |len, seed| Tensor::noise(dtype, len, seed);
        let x = [t(m * k, 1), t(k * n, 2), t(k * n, 3), t(k * n, 4), t(m * n, 5), t(m * k, 6)];
        let body = KernelBody::Gemm(GemmKernel { products, epilogue: vec![] });
        let canaries = [m * n, m * n, 10 * n].map(|len| Tensor::canary(dtype, len));
        let got = run(&kernel(6, 3, body), 0, &x, &canaries).unwrap();
        let (p0, p1, p2) =
            (product(&x[0], &x[1], (m, n, k)), product(&x[0], &x[2], (m, n, k)), product(&x[5], &x[3], (m, n, k)));
        let p3 = product(&x[0], &x[3], (10, n, k));
        for i in 0..m * n {
            let want = x[4].get(i) + p0[i] + p2[i];
            assert_near(got[0].get(i), want, 3.0 * tolerance(dtype), &format!("{dtype} first at {i}"));
            assert_near(got[1].get(i), p1[i], tolerance(dtype), &format!("{dtype} second at {i}"));
        }
        (0..10 * n).for_each(|i| assert_near(got[2].get(i), p3[i], tolerance(dtype), "third"));
    }
}

fn view(buffer: usize, dtype: DType, strides: &[usize]) -> View {
    View { buffer, dtype, offset: 0, strides: strides.to_vec() }
}

/// A nest over `[2, m/2, n]`: y = c·c + z at every entry, and the instructions' reductions.
fn squares(m: usize, n: usize, dtype: DType, c: usize, y: usize, sums: &[(usize, [usize; 3])]) -> LoopKernel {
    let strides = [m / 2 * n, n, 1];
    let vector = |op, args: &[usize]| Instr { op, args: args.to_vec(), dtype, uniform: false };
    let instrs = vec![
        vector(LoopOp::Load(view(c, dtype, &strides)), &[]),
        vector(LoopOp::Load(view(2, dtype, &strides)), &[]),
        vector(LoopOp::Map(Scalar::Mul), &[0, 0]),
        vector(LoopOp::Map(Scalar::Add), &[2, 1]),
    ];
    let mut stores = vec![Store { view: view(y, dtype, &strides), reg: 3, combine: None }];
    for (buffer, strides) in sums {
        stores.push(Store { view: view(*buffer, dtype, strides), reg: 2, combine: Some(BinaryMonoid::Sum) });
    }
    LoopKernel { loops: vec![whole("x", 2), whole("m", m / 2), whole("n", n)], instrs, stores }
}

#[test]
fn an_epilogue_follows_its_rows() {
    for dtype in [DType::F32, DType::F64] {
        // c = a·b; y = c² + z; s = Σ_rows c²; r = Σ_n y², of the second nest; q over part of the rows.
        for m in [6, 200, 254] {
            let (n, k) = (40, 30);
            let products = vec![rows(m, n, k, [0, 1, 3], Init::Zero, dtype)];
            let epilogue = vec![
                squares(m, n, dtype, 3, 4, &[(5, [0, 0, 1])]),
                squares(m, n, dtype, 4, 6, &[(7, [m / 2, 1, 0])]),
                squares(m, n, dtype, 6, 8, &[(9, [0, 1, 0])]),
            ];
            let body = KernelBody::Gemm(GemmKernel { products, epilogue });
            let x = [Tensor::noise(dtype, m * k, 1), Tensor::noise(dtype, k * n, 2), Tensor::noise(dtype, m * n, 3)];
            let lens = [m * n, m * n, n, m * n, m, m * n, m / 2];
            let canaries = lens.map(|len| Tensor::canary(dtype, len));
            let got = run(&kernel(3, 7, body), 0, &x, &canaries).unwrap();
            // Against the results before: each step is one rounding away.
            let c = product(&x[0], &x[1], (m, n, k));
            let near = |got: f64, want: f64, what: &str| assert_near(got, want, tolerance(dtype), what);
            let square = |r: usize, i: usize| got[r].get(i).powi(2);
            for (i, c) in c.iter().enumerate() {
                near(got[0].get(i), *c, "c");
                near(got[1].get(i), square(0, i) + x[2].get(i), "y");
                near(got[3].get(i), square(1, i) + x[2].get(i), "second");
                near(got[5].get(i), square(3, i) + x[2].get(i), "third");
            }
            (0..n).for_each(|j| near(got[2].get(j), (0..m).map(|i| square(0, i * n + j)).sum(), "columns"));
            (0..m).for_each(|i| near(got[4].get(i), (0..n).map(|j| square(1, i * n + j)).sum(), "rows"));
            for h in 0..m / 2 {
                let both = [0, 1].map(|x| (0..n).map(|j| square(3, (x * (m / 2) + h) * n + j)).sum::<f64>());
                near(got[6].get(h), both[0] + both[1], "half of the rows");
            }
        }
    }
}

#[test]
fn an_epilogue_has_the_products_rows() {
    let products = vec![rows(6, 4, 3, [0, 1, 3], Init::Zero, DType::F32)];
    let mut nest = squares(6, 4, DType::F32, 3, 4, &[]);
    nest.loops[1].size = 4;
    let body = KernelBody::Gemm(GemmKernel { products, epilogue: vec![nest] });
    let t = |n| Tensor::noise(DType::F32, n, 0);
    let e = run(&kernel(3, 2, body), 0, &[t(18), t(12), t(24)], &[t(24), t(24)]).unwrap_err();
    assert_eq!(e.to_string(), "kernel test: what follows a product does not begin with its rows");
}

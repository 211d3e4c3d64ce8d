//! Attention against plain loops in f64.

use super::super::testing::*;
use super::super::*;
use autoshard_ir::kernel::AttentionKernel;

/// Real parts and padded sizes, in the order b, s, t, g, r, e, h.
struct Plain<'a> {
    k: &'a AttentionKernel,
    start: [usize; 7],
    len: [usize; 7],
}

impl<'a> Plain<'a> {
    fn new(k: &'a AttentionKernel, rank: usize) -> Plain<'a> {
        let parts = [&k.b, &k.s, &k.t, &k.g, &k.r, &k.e, &k.h].map(|e| e.part(&mesh(), &[rank]));
        Plain { k, start: parts.map(|p| p.start), len: parts.map(|p| p.len) }
    }
    fn q(&self, b: usize, s: usize, g: usize, r: usize, w: usize, c: usize) -> usize {
        let k = self.k;
        (((b * k.s.size + s) * k.g.size + g) * k.r.size + r) * w + c
    }
    fn kv(&self, b: usize, t: usize, g: usize, w: usize, c: usize) -> usize {
        ((b * self.k.t.size + t) * self.k.g.size + g) * w + c
    }
    fn sees(&self, s: usize, t: usize) -> bool {
        let (i, j) = (self.start[1] + s, self.start[2] + t);
        (!self.k.causal || j <= i) && (self.k.window == 0 || i < j + self.k.window)
    }
    fn sizes(&self) -> [usize; 5] {
        let k = self.k;
        let (rows, keys) = (k.b.size * k.s.size * k.g.size * k.r.size, k.b.size * k.t.size * k.g.size);
        [rows * k.e.size, keys * k.e.size, keys * k.h.size, rows * k.h.size, rows]
    }
    fn heads(&self) -> Vec<[usize; 4]> {
        let [b, s, _, g, r, ..] = self.len;
        let all =
            (0..b).flat_map(|b| (0..s).flat_map(move |s| (0..g).flat_map(move |g| (0..r).map(move |r| [b, s, g, r]))));
        all.collect()
    }

    fn scores(&self, x: &[Tensor], [b, s, g, r]: [usize; 4]) -> Vec<Option<f64>> {
        let (k, e) = (self.k, self.k.e.size);
        let dot = |t| {
            (0..self.len[5]).map(|c| x[0].get(self.q(b, s, g, r, e, c)) * x[1].get(self.kv(b, t, g, e, c))).sum::<f64>()
        };
        (0..self.len[2]).map(|t| self.sees(s, t).then(|| k.scale * dot(t))).collect()
    }

    /// o and lse; canaries in tails.
    fn forward(&self, x: &[Tensor]) -> [Vec<f64>; 2] {
        let h = self.k.h.size;
        let (mut o, mut lse) = (vec![CANARY; self.sizes()[3]], vec![CANARY; self.sizes()[4]]);
        for at in self.heads() {
            let [b, s, g, r] = at;
            let scores = self.scores(x, at);
            let top = scores.iter().flatten().fold(f64::NEG_INFINITY, |m, x| m.max(*x));
            let weight = |t: usize| scores[t].map_or(0.0, |x| (x - top).exp());
            let sum: f64 = (0..scores.len()).map(weight).sum();
            lse[self.q(b, s, g, r, 1, 0)] = if sum == 0.0 { f64::NEG_INFINITY } else { top + sum.ln() };
            for c in 0..self.len[6] {
                let total: f64 = (0..scores.len()).map(|t| weight(t) * x[2].get(self.kv(b, t, g, h, c))).sum();
                o[self.q(b, s, g, r, h, c)] = if sum == 0.0 { 0.0 } else { total / sum };
            }
        }
        [o, lse]
    }

    /// dq, dk, dv; canaries in tails.
    fn backward(&self, x: &[Tensor], o: &[f64], lse: &[f64], d_o: &Tensor) -> [Vec<f64>; 3] {
        let (e, h, n) = (self.k.e.size, self.k.h.size, self.sizes());
        let [mut dq, mut dk, mut dv] = [n[0], n[1], n[2]].map(|n| vec![CANARY; n]);
        for (b, t, g) in
            (0..self.len[0]).flat_map(|b| (0..self.len[2]).flat_map(move |t| (0..self.len[3]).map(move |g| (b, t, g))))
        {
            (0..self.len[5]).for_each(|c| dk[self.kv(b, t, g, e, c)] = 0.0);
            (0..self.len[6]).for_each(|c| dv[self.kv(b, t, g, h, c)] = 0.0);
        }
        for at in self.heads() {
            let [b, s, g, r] = at;
            (0..self.len[5]).for_each(|c| dq[self.q(b, s, g, r, e, c)] = 0.0);
            let grad = |c: usize| d_o.get(self.q(b, s, g, r, h, c));
            let delta: f64 = (0..self.len[6]).map(|c| grad(c) * o[self.q(b, s, g, r, h, c)]).sum();
            for (t, score) in self.scores(x, at).into_iter().enumerate() {
                let Some(score) = score else { continue };
                let p = (score - lse[self.q(b, s, g, r, 1, 0)]).exp();
                let dp: f64 = (0..self.len[6]).map(|c| grad(c) * x[2].get(self.kv(b, t, g, h, c))).sum();
                let ds = p * (dp - delta) * self.k.scale;
                (0..self.len[6]).for_each(|c| dv[self.kv(b, t, g, h, c)] += p * grad(c));
                for c in 0..self.len[5] {
                    dq[self.q(b, s, g, r, e, c)] += ds * x[1].get(self.kv(b, t, g, e, c));
                    dk[self.kv(b, t, g, e, c)] += ds * x[0].get(self.q(b, s, g, r, e, c));
                }
            }
        }
        [dq, dk, dv]
    }
}

fn compare(got: &[Tensor], want: &[Vec<f64>], what: &str) {
    for (i, (g, w)) in got.iter().zip(want).enumerate() {
        let tolerance = match g.dtype {
            DType::F32 => 1e-5,
            DType::Bf16 => 5e-2,
            _ => 1e-12,
        };
        w.iter()
            .enumerate()
            .for_each(|(j, w)| assert_near(g.get(j), *w, tolerance, &format!("{what}: result {i} at {j}")));
    }
}

fn check(k: &AttentionKernel, rank: usize) {
    let plain = Plain::new(k, rank);
    let n = plain.sizes();
    let t = k.dtype;
    let x = [Tensor::noise(t, n[0], 1), Tensor::noise(t, n[1], 2), Tensor::noise(t, n[2], 3)];
    let results = [Tensor::canary(t, n[3]), Tensor::canary(t, n[4])];
    let got = run(&kernel(3, 2, KernelBody::Attention(k.clone())), rank, &x, &results).unwrap();
    let want = plain.forward(&x);
    let what = format!("{t} rank {rank} causal {} window {}", k.causal, k.window);
    compare(&got, &want, &what);

    let d_o = Tensor::noise(t, n[3], 4);
    let [q, key, v] = x.clone();
    let operands = [q, key, v, got[0].clone(), got[1].clone(), d_o.clone()];
    let results = [n[0], n[1], n[2]].map(|n| Tensor::canary(t, n));
    let got = run(&kernel(6, 3, KernelBody::AttentionBackward(k.clone())), rank, &operands, &results).unwrap();
    compare(&got, &plain.backward(&x, &want[0], &want[1], &d_o), &what);
}

fn shape(s: Extent, t: Extent, dtype: DType) -> AttentionKernel {
    AttentionKernel {
        b: whole("b", 2),
        s,
        t,
        g: whole("g", 2),
        r: whole("r", 3),
        e: whole("e", 5),
        h: whole("h", 7),
        scale: 0.7,
        causal: true,
        window: 0,
        dtype,
    }
}

#[test]
fn masks_of_every_kind() {
    for (n, dtype) in [1, 17, 200].into_iter().flat_map(|n| [DType::F32, DType::F64].map(|t| (n, t))) {
        for (causal, window) in [(false, 0), (true, 0), (true, 1), (true, 70), (false, 5)] {
            let b = whole("b", 1);
            check(&AttentionKernel { causal, window, b, ..shape(whole("s", n), whole("t", n), dtype) }, 0);
        }
    }
}

#[test]
fn positions_are_global_and_tails_untouched() {
    for (rank, dtype) in (0..3).flat_map(|r| [DType::F32, DType::F64].map(|t| (r, t))) {
        // Queries split, keys gathered; keys split; both; heads split; an empty last part.
        check(&shape(split("s", 200), whole("t", 200), dtype), rank);
        check(&shape(whole("s", 40), split("t", 40), dtype), rank);
        check(&shape(split("s", 40), split("t", 40), dtype), rank);
        check(&AttentionKernel { g: split("g", 4), ..shape(whole("s", 9), whole("t", 9), dtype) }, rank);
        check(&AttentionKernel { r: split("r", 4), ..shape(whole("s", 9), whole("t", 9), dtype) }, rank);
        check(&AttentionKernel { b: split("b", 2), ..shape(whole("s", 9), whole("t", 9), dtype) }, rank);
        check(&AttentionKernel { window: 6, ..shape(split("s", 4), split("t", 50), dtype) }, rank);
    }
}

#[test]
fn a_query_that_sees_nothing() {
    // The window has moved past the last key: 20 queries, 4 keys.
    for dtype in [DType::F32, DType::F64] {
        check(&AttentionKernel { window: 3, ..shape(whole("s", 20), whole("t", 4), dtype) }, 0);
        // The third rank's keys all lie ahead of the first queries.
        check(&shape(whole("s", 20), split("t", 20), dtype), 2);
    }
}

#[test]
fn large_scores_do_not_overflow() {
    for dtype in [DType::F32, DType::F64] {
        let k = AttentionKernel { scale: 1000.0, ..shape(whole("s", 140), whole("t", 140), dtype) };
        let plain = Plain::new(&k, 0);
        let n = plain.sizes();
        let x = [Tensor::noise(dtype, n[0], 1), Tensor::noise(dtype, n[1], 2), Tensor::noise(dtype, n[2], 3)];
        let results = [Tensor::canary(dtype, n[3]), Tensor::canary(dtype, n[4])];
        let got = run(&kernel(3, 2, KernelBody::Attention(k.clone())), 0, &x, &results).unwrap();
        let want = plain.forward(&x);
        for (got, want) in got.iter().zip(&want) {
            // Scores of thousands have few digits after the point in f32.
            want.iter().enumerate().for_each(|(i, w)| assert_near(got.get(i), *w, 2e-3, "large"));
        }
    }
}

#[test]
fn blocks_of_keys_and_heads_of_several_vectors() {
    for (dtype, (causal, window)) in
        [DType::F32, DType::F64].into_iter().flat_map(|t| [(true, 0), (false, 0), (true, 300)].map(|m| (t, m)))
    {
        let (e, h) = (whole("e", 64), whole("h", 40));
        let few = AttentionKernel {
            b: whole("b", 1),
            g: whole("g", 1),
            r: whole("r", 2),
            e,
            h,
            ..shape(whole("s", 600), whole("t", 600), dtype)
        };
        check(&AttentionKernel { scale: 0.125, causal, window, ..few }, 0);
    }
}

#[test]
fn bf16_is_computed_in_f32() {
    for n in [17, 40] {
        check(&shape(whole("s", n), whole("t", n), DType::Bf16), 0);
        check(&AttentionKernel { window: 6, ..shape(split("s", n), split("t", n), DType::Bf16) }, 1);
    }
}

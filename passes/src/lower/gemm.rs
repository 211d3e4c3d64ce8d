//! Products. A contraction of two operands is a batched matrix product over strided views; products
//! without a contraction, of more operands, or with a factor that one operand sums alone, are loops.

use super::{loops, Lowering};
use autoshard_ir::kernel::{GemmKernel, GemmLoop, Init, KernelBody, Product};

pub fn lower(l: &Lowering) -> Result<KernelBody, String> {
    match gemm(l) {
        Some(p) => Ok(KernelBody::Gemm(GemmKernel::single(p))),
        None => loops::lower(l),
    }
}

fn gemm(l: &Lowering) -> Option<Product> {
    let dtype = l.results.first()?.dtype;
    if l.inputs.len() != 2 || !dtype.is_float() {
        return None;
    }
    let (sa, sb, sc) = (l.strides(l.inputs[0]), l.strides(l.inputs[1]), l.strides(l.results[0]));
    let place = |maps: &[autoshard_ir::core::DimMap], f: usize| maps.iter().position(|m| m.factors == [f]);
    let (batch, m, n, k) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let mut g = Product { a: 0, b: 1, c: 2, init: Init::Zero, batch, m, n, k, dtype };
    for f in 0..l.rule.factors.len() {
        let at = (place(&l.rule.operands[0], f), place(&l.rule.operands[1], f), place(&l.rule.results[0], f));
        let step = |s: &[usize], i: Option<usize>| i.map_or(0, |i| s[i]);
        let one = GemmLoop { extent: l.extent(f), a: step(&sa, at.0), b: step(&sb, at.1), c: step(&sc, at.2) };
        match (at.0.is_some(), at.1.is_some(), at.2.is_some()) {
            (true, true, true) => g.batch.push(one),
            (true, false, true) => g.m.push(one),
            (false, true, true) => g.n.push(one),
            (true, true, false) => g.k.push(one),
            _ => return None,
        }
    }
    // Without a contraction there is nothing to block; a lone batch is a row-wise dot product.
    if g.k.is_empty() || (g.m.is_empty() && g.n.is_empty()) {
        return None;
    }
    // Loops in memory order of the operand that has them, so that neighbours can be merged.
    g.batch.sort_by_key(|x| std::cmp::Reverse(x.c));
    g.m.sort_by_key(|x| std::cmp::Reverse(x.c));
    g.n.sort_by_key(|x| std::cmp::Reverse(x.c));
    g.k.sort_by_key(|x| std::cmp::Reverse(x.a));
    Some(g)
}

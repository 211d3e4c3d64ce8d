//! Products: sums that become the start of a product, and products in one kernel.

use super::drafts::{Body, Drafts, Id};
use autoshard_ir::core::{Scalar, ValueId};
use autoshard_ir::kernel::{Extent, GemmLoop, Init, LoopKernel, LoopOp, Product, View};

/// Most products of one kernel.
const MOST: usize = 8;

/// Every sum of two values, one of which is a product that nobody else reads, becomes that product,
/// started from the other value.
pub(super) fn start_from_sums(d: &mut Drafts) {
    for id in d.ids() {
        let Some((x, y)) = sum(d, id) else { continue };
        // The later product takes the sum: what it starts from is then there.
        let mut order = [(x, y), (y, x)];
        if d.maker(x) > d.maker(y) {
            order.reverse();
        }
        for (other, product) in order {
            if accumulate(d, id, other, product) {
                break;
            }
        }
    }
}

/// The two values that a group adds up, point by point, with one layout for all three.
fn sum(d: &Drafts, id: Id) -> Option<(ValueId, ValueId)> {
    let Body::Nests(nests) = &d.get(id)?.body else { return None };
    let [LoopKernel { instrs, stores, .. }] = nests.as_slice() else { return None };
    let ([x, y, add], [store]) = (instrs.as_slice(), stores.as_slice()) else { return None };
    let (LoopOp::Load(a), LoopOp::Load(b), LoopOp::Map(Scalar::Add)) = (&x.op, &y.op, &add.op) else { return None };
    let same =
        |v: &View| v.offset == store.view.offset && v.strides == store.view.strides && v.dtype == store.view.dtype;
    let plain = store.combine.is_none() && store.reg == 2 && a.buffer != b.buffer;
    (plain && same(a) && same(b)).then_some((ValueId(a.buffer as u32), ValueId(b.buffer as u32)))
}

/// Merges the sum `id` = other + product into the group of the product.
fn accumulate(d: &mut Drafts, id: Id, other: ValueId, product: ValueId) -> bool {
    let (Some(host), Some(result)) = (d.maker(product), d.get(id).and_then(|g| g.results.first().copied())) else {
        return false;
    };
    let Some(Body::Products(products, epilogue)) = d.get(host).map(|g| g.body.clone()) else { return false };
    let starts = |v: ValueId, ps: &[Product]| ps.iter().filter(|p| p.c == v.0 as usize).count() == 1;
    let whole = products.iter().any(|p| p.c == product.0 as usize && p.init == Init::Zero);
    if !epilogue.is_empty() || !whole || !starts(product, &products) || !d.is_private(product, &[id]) {
        return false;
    }
    // What only this sum reads need not exist: it joins the sum, which then follows the product.
    let nests = d.maker(other).and_then(|m| d.get(m)).is_some_and(|g| matches!(g.body, Body::Nests(_)));
    if nests && d.is_private(other, &[id]) {
        return false;
    }
    // A sum of products that nobody else reads is one kernel: the first writes, the others add.
    if let Some(first) = d.maker(other).filter(|m| *m != host) {
        if let Some(Body::Products(before, e)) = d.get(first).map(|g| g.body.clone()) {
            let fits = e.is_empty() && before.len() + products.len() <= MOST && d.is_private(other, &[id]);
            if fits && !d.depends(first, host) && !d.detour(first, id) && !d.detour(host, id) {
                let mut all = renamed(before, other, result);
                all.extend(started(products, product, Init::Result, result));
                d.merge(first, host, Body::Products(Vec::new(), Vec::new()), &[]);
                d.merge(first, id, Body::Products(all, Vec::new()), &[other, product]);
                return true;
            }
        }
    }
    if d.detour(host, id) || d.maker(other) == Some(host) {
        return false;
    }
    let all = started(products, product, Init::Operand(other.0 as usize), result);
    d.merge(host, id, Body::Products(all, epilogue), &[product]);
    true
}

fn renamed(mut products: Vec<Product>, from: ValueId, to: ValueId) -> Vec<Product> {
    products.iter_mut().filter(|p| p.c == from.0 as usize).for_each(|p| p.c = to.0 as usize);
    products
}

/// The products, with the one that writes `from` started from `init` and writing `to`.
fn started(mut products: Vec<Product>, from: ValueId, init: Init, to: ValueId) -> Vec<Product> {
    for p in products.iter_mut().filter(|p| p.c == from.0 as usize) {
        (p.c, p.init) = (to.0 as usize, init);
    }
    products
}

/// Joins groups of products that contract one operand over the same loops: q, k, v; gate, up; and the
/// gradients of their weights.
pub(super) fn join(d: &mut Drafts) {
    let is_products = |id: &Id| matches!(d.get(*id).map(|g| &g.body), Some(Body::Products(..)));
    let ids: Vec<Id> = d.ids().into_iter().filter(is_products).collect();
    for (i, a) in ids.iter().enumerate() {
        for b in &ids[i + 1..] {
            let (Some(x), Some(y)) = (d.get(*a), d.get(*b)) else { continue };
            let (Body::Products(p, e), Body::Products(q, f)) = (&x.body, &y.body) else { continue };
            let legal = e.is_empty() && f.is_empty() && p.len() + q.len() <= MOST && shares(p, q);
            if legal && !d.depends(*a, *b) {
                let all = [p.clone(), q.clone()].concat();
                d.merge(*a, *b, Body::Products(all, Vec::new()), &[]);
            }
        }
    }
}

/// Whether all products contract the same operand, in the same place, over the same loops.
fn shares(p: &[Product], q: &[Product]) -> bool {
    let all = || p.iter().chain(q);
    let Some(first) = p.first() else { return false };
    let same_k =
        |x: &Product| x.k.len() == first.k.len() && x.k.iter().zip(&first.k).all(|(a, b)| a.extent == b.extent);
    let left = all().all(|x| x.a == first.a && strides(&x.k, |l| l.a) == strides(&first.k, |l| l.a));
    let right = all().all(|x| x.b == first.b && strides(&x.k, |l| l.b) == strides(&first.k, |l| l.b));
    all().all(same_k) && (left || right)
}

fn strides(loops: &[GemmLoop], side: fn(&GemmLoop) -> usize) -> Vec<usize> {
    loops.iter().map(side).collect()
}

/// The loops `m` that all products share, with the stride of each product's result, if no product has
/// a batch.
pub(super) fn rows(products: &[Product]) -> Option<Vec<Extent>> {
    let extents = |p: &Product| p.m.iter().map(|l| l.extent.clone()).collect::<Vec<_>>();
    let first = extents(products.first()?);
    let fits = |p: &Product| p.batch.is_empty() && extents(p) == first;
    products.iter().all(fits).then_some(first)
}

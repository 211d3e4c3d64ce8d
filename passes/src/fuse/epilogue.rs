//! Nests that follow products row by row, while the rows are in cache.

use super::drafts::{index, rename, Body, Drafts, Id};
use super::products::rows;
use autoshard_ir::core::ValueId;
use autoshard_ir::kernel::{Extent, LoopKernel, Product, View};

/// Attaches every group of nests that reads results of products, and nothing that depends on them in
/// another way, to these products.
pub(super) fn attach(d: &mut Drafts) {
    for id in d.ids() {
        let Some(group) = d.get(id) else { continue };
        let Body::Nests(nests) = &group.body else { continue };
        // Of several products that it reads, the last one computed.
        let hosts = group.inputs.iter().filter_map(|v| d.maker(*v));
        let Some(host) = hosts.filter(|h| is_products(d, *h)).max() else { continue };
        let Some(Body::Products(products, epilogue)) = d.get(host).map(|g| &g.body) else { continue };
        let Some(rows) = rows(products) else { continue };
        if !nests.iter().all(|n| follows(n, &rows, products, epilogue)) || d.detour(host, id) {
            continue;
        }
        let body = Body::Products(products.clone(), [epilogue.clone(), nests.clone()].concat());
        d.merge(host, id, body, &[]);
        in_place(d, host);
    }
}

fn is_products(d: &Drafts, id: Id) -> bool {
    matches!(d.get(id).map(|g| &g.body), Some(Body::Products(..)))
}

/// Whether a nest works row by row: its first loops are the rows, nothing is combined over rows, and
/// what it reads of the kernel's own results it reads at its own row.
fn follows(nest: &LoopKernel, rows: &[Extent], products: &[Product], epilogue: &[LoopKernel]) -> bool {
    let n = rows.len();
    let loops_fit = nest.loops.len() > n && nest.loops[..n].iter().zip(rows).all(|(a, b)| same_range(a, b));
    let own = |v: &View| {
        let strides = |s: &[usize]| v.strides[..n] == *s;
        let of_product = products.iter().filter(|p| p.c == v.buffer);
        let of_nest = epilogue.iter().flat_map(|e| &e.stores).filter(|s| s.view.buffer == v.buffer);
        of_product.map(|p| p.m.iter().map(|l| l.c).collect::<Vec<_>>()).all(|s| strides(&s))
            && of_nest.map(|s| &s.view.strides[..n]).all(strides)
    };
    // Rows of a result must not overlap: a store that lacks a row loop would.
    let moves = |v: &View| v.strides[..n].iter().zip(rows).all(|(s, r)| *s > 0 || r.size == 1);
    loops_fit && nest.stores.iter().all(|s| s.combine.is_none() && moves(&s.view)) && nest.loads().all(own)
}

/// Names of loops differ between operations.
fn same_range(a: &Extent, b: &Extent) -> bool {
    a.size == b.size && a.global == b.global && a.axes == b.axes
}

/// A product's result that only one nest reads, at the places where that nest writes a result of its
/// own, needs no memory: the nest works in place.
fn in_place(d: &mut Drafts, host: Id) {
    let Some(group) = d.get(host) else { return };
    let Body::Products(products, epilogue) = &group.body else { return };
    let (mut products, mut epilogue, mut gone) = (products.clone(), epilogue.clone(), Vec::new());
    for v in group.results.clone() {
        let made = products.iter().filter(|p| p.c == index(v)).count();
        if made != 1 || !d.is_private(v, &[host]) {
            continue;
        }
        let readers: Vec<usize> = (0..epilogue.len()).filter(|n| !loads(&epilogue[*n], index(v)).is_empty()).collect();
        let [reader] = readers[..] else { continue };
        // A home for one value only, and not in use before the nest.
        let free = |w: usize| products.iter().all(|p| p.c != w) && !touched(&epilogue[..reader], w);
        let Some(home) = overwrites(&epilogue[reader], index(v), free) else { continue };
        products.iter_mut().filter(|p| p.c == index(v)).for_each(|p| p.c = home);
        rename(&mut epilogue[reader], &|b| if b == index(v) { home } else { b });
        gone.push(v);
    }
    let body = Body::Products(products, epilogue);
    if let Some(group) = &mut d.groups[host] {
        group.body = body;
        group.results.retain(|v| !gone.contains(v));
    }
    gone.iter().for_each(|v: &ValueId| d.maker[index(*v)] = None);
}

fn loads(nest: &LoopKernel, buffer: usize) -> Vec<View> {
    nest.loads().filter(|v| v.buffer == buffer).cloned().collect()
}

/// The stored value, of those that are `free`, whose elements are exactly those that the nest reads of
/// `buffer`, at each point.
fn overwrites(nest: &LoopKernel, buffer: usize, free: impl Fn(usize) -> bool) -> Option<usize> {
    let key = |v: &View| (v.offset, v.strides.clone(), v.dtype);
    let read: Vec<_> = loads(nest, buffer).iter().map(key).collect();
    let mut candidates = nest.stores.iter().map(|s| s.view.buffer).filter(|w| free(*w));
    candidates.find(|w| {
        let written: Vec<_> = nest.stores.iter().filter(|s| s.view.buffer == *w).map(|s| key(&s.view)).collect();
        written.len() == read.len() && read.iter().all(|r| written.contains(r))
    })
}

/// Whether a nest reads or writes the buffer.
fn touched(nests: &[LoopKernel], buffer: usize) -> bool {
    nests.iter().any(|n| !loads(n, buffer).is_empty() || n.stores.iter().any(|s| s.view.buffer == buffer))
}

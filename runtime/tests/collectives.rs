//! Every change of state on small meshes, against a naive model of the global tensor.

mod common;

use autoshard_ir::core::Partial;
use autoshard_ir::program::{Collective, CollectiveKind};
use autoshard_ir::{Axis, DType, Dim, Mesh, Monoid, Type};
use autoshard_runtime::comm::{CollectivePlan, CommError, World};
use common::*;
use std::sync::Arc;
use std::time::Duration;
use CollectiveKind::*;

/// All states of a value of these sizes on the mesh: each axis on one dimension, partial or unused,
/// in every order where a dimension has several.
fn states(mesh: &Mesh, dtype: DType, sizes: &[usize], monoid: Monoid) -> Vec<Type> {
    let dims = sizes.iter().enumerate().map(|(i, s)| Dim::new(format!("d{i}"), *s)).collect();
    let mut all = vec![Type { dtype, dims, partial: None }];
    for (axis, _) in &mesh.axes {
        let mut next = Vec::new();
        for ty in &all {
            next.push(ty.clone());
            let mut partial = ty.clone();
            partial.partial.get_or_insert(Partial { monoid, axes: vec![] }).axes.push(axis.clone());
            next.push(partial);
            for d in 0..sizes.len() {
                for at in 0..=ty.dims[d].axes.len() {
                    let mut split = ty.clone();
                    split.dims[d].axes.insert(at, axis.clone());
                    next.push(split);
                }
            }
        }
        all = next;
    }
    all
}

/// The axes that a change of state must span: all that follow the common prefix of a dimension, and
/// the partial axes that come or go.
fn changed(mesh: &Mesh, from: &Type, to: &Type) -> Vec<Axis> {
    let mut axes: Vec<Axis> = Vec::new();
    for (a, b) in from.dims.iter().zip(&to.dims) {
        let same = a.axes.iter().zip(&b.axes).take_while(|(x, y)| x == y).count();
        axes.extend(a.axes[same..].iter().chain(&b.axes[same..]).cloned());
    }
    let (f, t) = (from.partial_axes(), to.partial_axes());
    axes.extend(f.iter().filter(|a| !t.contains(a)).chain(t.iter().filter(|a| !f.contains(a))).cloned());
    mesh.sort(&mut axes);
    axes.dedup();
    axes
}

/// The kind of a change, if one collective can do it.
fn kind(from: &Type, to: &Type) -> Option<CollectiveKind> {
    let (f, t) = (from.partial_axes(), to.partial_axes());
    let (reduces, creates) = (f.iter().any(|a| !t.contains(a)), t.iter().any(|a| !f.contains(a)));
    let same = from.dims.iter().zip(&to.dims).all(|(a, b)| a.axes == b.axes);
    match (reduces, creates) {
        _ if from == to => None,
        (true, true) => None,
        (false, true) => Some(Local),
        (true, false) => Some(if same { AllReduce } else { ReduceScatter }),
        (false, false) if to.dims.iter().all(|d| d.axes.is_empty()) => Some(AllGather),
        (false, false) => Some(AllToAll),
    }
}

/// All pairs of states. A `Local` change is tried for every pair; where it is not refused it must be
/// right.
fn all_changes(mesh: &Mesh, dtype: DType, sizes: &[usize], monoid: Monoid) -> Vec<Collective> {
    let world = World::new(mesh, Duration::from_secs(1)).unwrap();
    let states = states(mesh, dtype, sizes, monoid);
    let mut cases = Vec::new();
    for (from, to) in states.iter().flat_map(|f| states.iter().map(move |t| (f, t))) {
        let mut c = collective(Local, "", from.clone(), to.clone());
        c.axes = changed(mesh, from, to);
        let planned = (0..mesh.ranks()).all(|r| CollectivePlan::new(&world, r, &Arc::new(c.clone())).is_ok());
        if planned {
            cases.push(c.clone());
        }
        if let Some(k) = kind(from, to).filter(|k| *k != Local) {
            cases.push(Collective { kind: k, ..c });
        }
    }
    cases
}

#[test]
fn every_change_of_state_on_small_meshes() {
    let meshes = [
        Mesh::new(&[("a", 2)]),
        Mesh::new(&[("a", 3)]),
        Mesh::new(&[("a", 2), ("b", 2)]),
        Mesh::new(&[("a", 2), ("b", 3)]),
    ];
    for mesh in &meshes {
        for (sizes, dtype) in [([5, 7], DType::F64), ([4, 6], DType::F32), ([1, 9], DType::I32)] {
            for monoid in [Monoid::Sum, Monoid::Max] {
                let cases = all_changes(mesh, dtype, &sizes, monoid);
                let count = |k| cases.iter().filter(|c| c.kind == k).count();
                for k in [AllReduce, AllGather, ReduceScatter, AllToAll, Local] {
                    assert!(count(k) > 0, "{mesh}: no {}", k.name());
                }
                check_all(mesh, &cases);
            }
        }
    }
}

#[test]
fn every_change_of_state_in_three_dimensions() {
    let mesh = Mesh::new(&[("a", 2), ("b", 2)]);
    check_all(&mesh, &all_changes(&mesh, DType::F32, &[3, 5, 4], Monoid::Sum));
}

#[test]
fn three_axes_with_groups_over_two() {
    let mesh = Mesh::new(&[("a", 2), ("b", 2), ("c", 2)]);
    let t = |d0: &'static str, d1: &'static str, p: &str| ty(DType::F64, &[(7, d0), (5, d1)], p);
    let cases = [
        collective(AllGather, "a c", t("a c", "b", ""), t("", "b", "")),
        collective(AllGather, "a c", t("b c a", "", ""), t("b", "", "")),
        collective(ReduceScatter, "a c", t("b", "", "a c"), t("b c", "a", "")),
        collective(ReduceScatter, "a c", t("b", "", "a c"), t("b a c", "", "")),
        collective(AllReduce, "a c", t("", "b", "a c"), t("", "b", "")),
        collective(AllReduce, "a", t("", "b", "a c"), t("", "b", "c")),
        collective(AllToAll, "a c", t("a c", "b", ""), t("", "b c a", "")),
        collective(AllToAll, "a b c", t("a b c", "", ""), t("c b a", "", "")),
        collective(Local, "c", t("a c", "b", ""), t("a", "b", "c")),
    ];
    check_all(&mesh, &cases);
}

#[test]
fn scalars_empty_dimensions_and_bf16_copies() {
    let mesh = Mesh::new(&[("a", 3)]);
    let cases = [
        collective(AllReduce, "a", ty(DType::F64, &[], "a"), ty(DType::F64, &[], "")),
        collective(AllReduce, "a", ty(DType::F64, &[(0, "")], "a"), ty(DType::F64, &[(0, "")], "")),
        collective(AllGather, "a", ty(DType::F32, &[(0, "a")], ""), ty(DType::F32, &[(0, "")], "")),
        collective(AllGather, "a", ty(DType::Bf16, &[(4, "a")], ""), ty(DType::Bf16, &[(4, "")], "")),
        collective(Local, "a", ty(DType::Bf16, &[(4, "")], ""), ty(DType::Bf16, &[(4, "")], "a")),
    ];
    let (outputs, _) = run_all(&mesh, &cases).unwrap();
    assert_eq!(outputs[4][1].get(2), 0.0, "rank 1 writes the identity");
    check_all(&mesh, &cases[..3]);
    let value = contribution(&mesh, &cases[3].from, &[0], &[2]);
    // Truncated by the test's own bf16 store, so compare within its eight bits.
    assert!((outputs[3][2].get(2) - value).abs() <= value.abs() / 128.0);
}

/// `cases.json` C08: ranks hold rank + 1; every element of every rank must become 10.
#[test]
fn c08_partial_over_two_axes_becomes_split_and_replicated() {
    let mesh = Mesh::new(&[("a", 2), ("b", 2)]);
    let partial = ty(DType::F64, &[(4, "")], "a b");
    let whole = ty(DType::F64, &[(4, "")], "");
    let split = ty(DType::F64, &[(4, "a")], "");
    let ways: [Vec<Collective>; 3] = [
        vec![collective(ReduceScatter, "a b", partial.clone(), split.clone())],
        vec![
            collective(AllReduce, "b", partial.clone(), ty(DType::F64, &[(4, "")], "a")),
            collective(ReduceScatter, "a", ty(DType::F64, &[(4, "")], "a"), split.clone()),
        ],
        vec![
            collective(AllReduce, "a b", partial.clone(), whole.clone()),
            collective(Local, "a", whole, split.clone()),
        ],
    ];
    for way in ways {
        let world = World::new(&mesh, Duration::from_secs(5)).unwrap();
        let shared: Vec<_> = way.into_iter().map(Arc::new).collect();
        let mut buffers: Vec<Vec<Vec<f64>>> =
            (0..4).map(|r| vec![vec![r as f64 + 1.0; 4], vec![0.0; 4], vec![0.0; 4]]).collect();
        world
            .run(buffers.iter_mut().collect(), |comm, b: &mut Vec<Vec<f64>>| {
                for (i, c) in shared.iter().enumerate() {
                    let plan = CollectivePlan::new(comm.world(), comm.rank(), c)?;
                    let input = b[i].as_ptr().cast();
                    // SAFETY: four elements are enough for every state; `buffers` outlives the run.
                    unsafe { comm.collective(&plan, input, b[i + 1].as_mut_ptr().cast())? };
                }
                Ok::<_, CommError>(())
            })
            .unwrap();
        for b in &buffers {
            assert_eq!(b[shared.len()][..2], [10.0, 10.0]);
        }
    }
    // The bug of the case: the sum over b is forgotten.
    let forgotten = Arc::new(collective(ReduceScatter, "a", partial, split));
    let world = World::new(&mesh, Duration::from_secs(5)).unwrap();
    let error = CollectivePlan::new(&world, 0, &forgotten).unwrap_err().to_string();
    assert!(error.contains("the partial state on b changes, but the group does not span it"), "{error}");
}

#[test]
fn all_ranks_get_the_same_bits() {
    let mesh = Mesh::new(&[("a", 3)]);
    let n = 10_001;
    let c = Arc::new(collective(AllReduce, "a", ty(DType::F32, &[(n, "")], "a"), ty(DType::F32, &[(n, "")], "")));
    let world = World::new(&mesh, Duration::from_secs(5)).unwrap();
    // Magnitudes from 1e-10 to 1e10: the order of additions shows in the bits.
    let value = |r: usize, i: usize| {
        let h = (r * 7919 + i).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40;
        10f32.powi(h as i32 % 21 - 10) * (h as f32 - 8e6)
    };
    let input = |r: usize| (0..n).map(|i| value(r, i)).collect::<Vec<f32>>();
    let mut buffers: Vec<_> = (0..3).map(|r| (input(r), vec![0f32; n])).collect();
    world
        .run(buffers.iter_mut().collect(), |comm, b: &mut (Vec<f32>, Vec<f32>)| {
            let plan = CollectivePlan::new(comm.world(), comm.rank(), &c)?;
            // SAFETY: n elements each; `buffers` outlives the run.
            unsafe { comm.collective(&plan, b.0.as_ptr().cast(), b.1.as_mut_ptr().cast()) }
        })
        .unwrap();
    for i in 0..n {
        let want = ((value(0, i) + value(1, i)) + value(2, i)).to_bits();
        assert!(buffers.iter().all(|b| b.1[i].to_bits() == want), "element {i}");
    }
}

#[test]
fn senseless_collectives_are_refused() {
    let mesh = Mesh::new(&[("a", 2), ("b", 2)]);
    let t = |d: &'static str, p: &str| ty(DType::F32, &[(4, d)], p);
    let long = ty(DType::F32, &[(5, "")], "");
    let huge = |d: &'static str| ty(DType::F32, &[(usize::MAX / 4, d), (usize::MAX / 4, "")], "");
    let cases = [
        (collective(AllGather, "a", t("a b", ""), t("", "")), "holds 2 of the 4 elements"),
        (collective(AllGather, "a", t("a", ""), long), "element type or sizes change"),
        (collective(AllGather, "a", t("", "a"), t("", "")), "another kind"),
        (collective(AllReduce, "a b", t("", "a"), t("", "")), "another kind"),
        (collective(Local, "a", t("a", ""), t("", "")), "holds 2 of the 4 elements"),
        (collective(Local, "a b", t("b", ""), t("", "a")), "holds 2 of the 4 elements"),
        (collective(AllGather, "z", t("z", ""), t("", "")), "no axis z"),
        (collective(AllGather, "a", t("a a", ""), t("", "")), "used twice"),
        (collective(AllGather, "a", huge("a"), huge("")), "too large"),
    ];
    let world = World::new(&mesh, Duration::from_secs(5)).unwrap();
    for (c, want) in cases {
        let error = CollectivePlan::new(&world, 0, &Arc::new(c)).unwrap_err().to_string();
        assert!(error.contains(want), "{error}\nlacks {want}");
    }
    let c = Arc::new(collective(AllGather, "a", t("a", ""), t("", "")));
    assert!(matches!(CollectivePlan::new(&world, 9, &c), Err(CommError::NoRank { rank: 9, .. })));
}

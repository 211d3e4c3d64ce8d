//! Payload and wire bytes, counted at the copies; expected values written by hand.

mod common;

use autoshard_ir::program::{Collective, CollectiveKind::*};
use autoshard_ir::{DType, Mesh};
use autoshard_runtime::comm::Counts;
use common::*;

fn f32s(dims: &[(usize, &str)], partial: &str) -> autoshard_ir::Type {
    ty(DType::F32, dims, partial)
}

/// (payload, wire) of one collective by rank, under one key.
fn bytes(mesh: &Mesh, c: Collective, key: &str) -> Vec<(u64, u64)> {
    let read = |n: &Counts| {
        assert_eq!(n.payload.keys().collect::<Vec<_>>(), [key]);
        assert_eq!((n.control, n.padding, n.collectives.len()), (0, 0, 1));
        let one = &n.collectives[0];
        assert_eq!((one.payload, one.wire), (n.payload[key], n.wire[key]));
        (n.payload[key], n.wire[key])
    };
    check_all(mesh, &[c]).iter().map(read).collect()
}

#[test]
fn even_parts_on_four_ranks() {
    let mesh = Mesh::new(&[("tp", 4)]);
    let split = || f32s(&[(8, "tp"), (16, "")], "");
    let whole = || f32s(&[(8, ""), (16, "")], "");
    let partial = || f32s(&[(8, ""), (16, "")], "tp");
    // The tensor is 8 · 16 · 4 = 512 bytes.
    assert_eq!(bytes(&mesh, collective(AllGather, "tp", split(), whole()), "tp"), [(512, 384); 4]);
    assert_eq!(bytes(&mesh, collective(ReduceScatter, "tp", partial(), split()), "tp"), [(512, 384); 4]);
    assert_eq!(bytes(&mesh, collective(AllReduce, "tp", partial(), whole()), "tp"), [(512, 768); 4]);
    let other = f32s(&[(8, ""), (16, "tp")], "");
    assert_eq!(bytes(&mesh, collective(AllToAll, "tp", split(), other), "tp"), [(128, 96); 4]);
}

#[test]
fn ragged_parts_count_real_elements_only() {
    let mesh = Mesh::new(&[("tp", 4)]);
    // Five elements on four ranks: 2, 2, 1, 0.
    let (split, whole) = (|| f32s(&[(5, "tp")], ""), || f32s(&[(5, "")], ""));
    let gathered = bytes(&mesh, collective(AllGather, "tp", split(), whole()), "tp");
    assert_eq!(gathered, [(20, 12), (20, 12), (20, 16), (20, 20)]);
    let partial = || f32s(&[(5, "")], "tp");
    let scattered = bytes(&mesh, collective(ReduceScatter, "tp", partial(), split()), "tp");
    assert_eq!(scattered, [(32, 24), (32, 24), (16, 12), (0, 0)]);
    // One element: one rank reads three others, the others read the result.
    let one = bytes(&mesh, collective(AllReduce, "tp", f32s(&[(1, "")], "tp"), f32s(&[(1, "")], "")), "tp");
    assert_eq!(one.iter().map(|b| b.0).collect::<Vec<_>>(), [4; 4]);
    assert_eq!(one.iter().map(|b| b.1).sum::<u64>(), 2 * 3 * 4);
}

#[test]
fn an_all_reduce_leaves_tails_out() {
    let mesh = Mesh::new(&[("dp", 2), ("tp", 2)]);
    // Rows 3 and 2 of five, of two elements: the second dp rank has a tail of one row.
    let c = collective(AllReduce, "tp", f32s(&[(5, "dp"), (2, "")], "tp"), f32s(&[(5, "dp"), (2, "")], ""));
    assert_eq!(bytes(&mesh, c, "tp"), [(24, 24), (24, 24), (16, 16), (16, 16)]);
}

#[test]
fn keys_are_root_names_and_control_is_apart() {
    let mesh = Mesh::new(&[("dp", 2), ("tp.0", 2), ("tp.1", 2)]);
    let t = |p: &str| f32s(&[(8, "")], p);
    let mut loss = collective(AllReduce, "dp", t("dp"), t(""));
    loss.control = true;
    let cases = [
        collective(AllReduce, "tp.0 tp.1", t("tp.0 tp.1"), t("")),
        collective(AllGather, "tp.1", f32s(&[(8, "tp.1")], ""), t("")),
        collective(AllReduce, "dp tp.0", t("dp tp.0"), t("")),
        collective(Local, "dp", t(""), f32s(&[(8, "dp")], "")),
        loss,
    ];
    for n in check_all(&mesh, &cases) {
        let list = |m: &std::collections::BTreeMap<String, u64>| m.clone().into_iter().collect::<Vec<_>>();
        assert_eq!(list(&n.payload), [("dp·tp".to_string(), 32), ("tp".to_string(), 64)]);
        // All-reduce over four ranks: 2 · 3/4 · 32; all-gather over two: 16.
        assert_eq!(list(&n.wire), [("dp·tp".to_string(), 48), ("tp".to_string(), 64)]);
        assert_eq!((n.control, n.padding), (32, 0));
        let kinds: Vec<_> = n.collectives.iter().map(|c| (c.kind, &*c.key, c.control)).collect();
        assert_eq!(
            kinds,
            [
                ("all_reduce", "tp", false),
                ("all_gather", "tp", false),
                ("all_reduce", "dp·tp", false),
                ("all_reduce", "dp", true),
            ]
        );
    }
}

#[test]
fn a_group_of_one_moves_nothing() {
    let mesh = Mesh::new(&[("dp", 2), ("tp", 1)]);
    let c = collective(AllReduce, "tp", f32s(&[(8, "dp")], "tp"), f32s(&[(8, "dp")], ""));
    for n in check_all(&mesh, &[c]) {
        assert_eq!((n.payload.len(), n.wire.len(), n.collectives.len()), (0, 0, 0));
    }
}

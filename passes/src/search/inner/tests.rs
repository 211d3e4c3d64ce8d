//! Changes of state are priced as the reshard planner makes them.

use super::states::{seconds, Place, Shape, State, MAX_AXES, WHOLE};
use super::{Link, MeshAxis, Rates, Role};
use crate::cost::wire_bytes;
use crate::reshard;
use autoshard_ir::core::{Axis, DType, Dim, Partial, Type};
use autoshard_ir::program::CollectiveKind;
use autoshard_ir::{Mesh, Monoid};

/// Every state of two dimensions on two axes.
fn states() -> Vec<State> {
    let places = [Place::Whole, Place::Split(0), Place::Split(1), Place::Partial];
    let state = |a: Place, b: Place| {
        let mut s = WHOLE;
        (s[0], s[1]) = (a, b);
        s
    };
    places.iter().flat_map(|a| places.iter().map(move |b| state(*a, *b))).collect()
}

fn ty(s: &State, mesh: &Mesh) -> Type {
    let on = |place: Place| -> Vec<Axis> {
        mesh.axes.iter().zip(s).filter(|(_, p)| **p == place).map(|((a, _), _)| a.clone()).collect()
    };
    let dim = |i: u8| Dim { name: format!("d{i}"), size: 48, axes: on(Place::Split(i)) };
    let partial = Some(Partial { monoid: Monoid::Sum, axes: on(Place::Partial) }).filter(|p| !p.axes.is_empty());
    Type { dtype: DType::F32, dims: vec![dim(0), dim(1)], partial }
}

/// With links of a byte a second and no latency, seconds are wire bytes.
#[test]
fn a_change_of_state_moves_the_bytes_of_the_reshard_plan() {
    let mesh = [MeshAxis::new("a", 2, Role::Any), MeshAxis::new("b", 4, Role::Any)];
    let ranks = Mesh::new(&[("a", 2), ("b", 4)]);
    let link = Link { bandwidth: 1.0, latency: 0.0 };
    let rates =
        Rates { flops: 1.0, memory_bandwidth: 1.0, links: vec![link; 2], exposed_weights: 1.0, gradient_bytes: 4.0 };
    let mut equal = 0;
    for from in states() {
        for to in states() {
            let (a, b) = (ty(&from, &ranks), ty(&to, &ranks));
            let shape = Shape::new(&a, 2);
            let got = seconds(&shape, &from, &to, &[false; MAX_AXES], &mesh, &rates);
            let (mut now, mut want, mut sorts) = (a.clone(), 0.0, false);
            for m in reshard::plan(&a, &b, &ranks) {
                let part =
                    if m.kind == CollectiveKind::AllToAll { 1.0 - 1.0 / ranks.span(&m.axes) as f64 } else { 1.0 };
                sorts |= m.kind == CollectiveKind::AllToAll && m.axes.len() > 1;
                want += part * wire_bytes(m.kind, &now, &m.to, &ranks);
                now = m.to;
            }
            // The plan also sorts axes, which the search does not see, and makes terms of a sum first.
            let to_partial = (0..2).any(|i| to[i] == Place::Partial && from[i] != Place::Partial);
            if sorts || to_partial {
                assert!(got <= want + 1e-6, "{a} -> {b}: {got}, the plan has {want}");
            } else {
                assert!((got - want).abs() < 1e-6, "{a} -> {b}: {got}, the plan has {want}");
                equal += 1;
            }
        }
    }
    assert!(equal > 100, "only {equal} of 256 changes are comparable");
}

/// Rows that go to one place each cost the all-to-all of a part, not the reduce-scatter of the whole.
#[test]
fn routed_rows_move_once() {
    let mesh = [MeshAxis::new("a", 4, Role::Any)];
    let rates = Rates {
        flops: 1.0,
        memory_bandwidth: 1.0,
        links: vec![Link { bandwidth: 1.0, latency: 0.0 }],
        exposed_weights: 1.0,
        gradient_bytes: 4.0,
    };
    let shape = Shape::new(&Type::new(DType::F32, &[("E", 8), ("d", 16)]), 1);
    let (mut partial, mut split, mut routed) = (WHOLE, WHOLE, [false; MAX_AXES]);
    (partial[0], split[0]) = (Place::Partial, Place::Split(0));
    let bytes = 8.0 * 16.0 * 4.0;
    assert_eq!(seconds(&shape, &partial, &split, &routed, &mesh, &rates), bytes * 0.75);
    routed[0] = true;
    assert_eq!(seconds(&shape, &partial, &split, &routed, &mesh, &rates), bytes / 4.0 * 0.75);
    assert_eq!(seconds(&shape, &split, &WHOLE, &routed, &mesh, &rates), bytes / 4.0 * 0.75);
}

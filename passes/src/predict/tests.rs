//! Steps of units with plain times, against sums done by hand.

use super::parts::Compute;
use super::price::{price, quote, Formats, Manner, Phase, Priced};
use super::step::{time, Data, Scratch, Step, StepTime, Unit};
use super::{Factors, Group, Rates, Transfer};
use crate::profile::{Item, Profile, Work};
use autoshard_cost::collectives::Kind;
use autoshard_cost::device::Format;
use autoshard_cost::kernels::{Attention, How, Product, Time};

/// A second for 10 bytes of a message, a second for 100 bytes of memory.
pub(super) struct Plain;

impl Rates for Plain {
    fn product(&self, p: &Product) -> Time {
        Time { seconds: p.m * p.n * p.k, how: How::Roofline }
    }
    fn attention(&self, a: &Attention) -> Time {
        Time { seconds: a.queries * a.keys, how: How::Roofline }
    }
    fn memory(&self, bytes: f64) -> Time {
        Time { seconds: bytes / 100.0, how: How::Roofline }
    }
    fn transfer(&self, _: Kind, _: Group, bytes: f64) -> Transfer {
        Transfer { seconds: bytes / 10.0, tier: 1, load: 1.0, network: false, how: How::Roofline }
    }
}

/// A function that computes for these seconds forward and, half and half, backward.
pub(super) fn function(forward: f64, backward: f64) -> Priced {
    let phase =
        |seconds: f64| Phase { compute: Compute { products: seconds, ..Compute::default() }, ..Phase::default() };
    Priced {
        forward: phase(forward),
        backward_input: phase(backward / 2.0),
        backward_weight: phase(backward / 2.0),
        ..Priced::default()
    }
}

/// Nothing is shared.
pub(super) const ALONE: Data = Data {
    zero: 0,
    keep: false,
    shard: [1, 1],
    replicas: [1, 1],
    copy_bytes: 2.0,
    gradient_bytes: 2.0,
    overlap: true,
    prefetch: true,
};

/// Four calls of a function that takes 2 s and 4 s and has 10 elements.
fn step(data: Data, microbatches: u64) -> StepTime {
    let priced = [function(2.0, 4.0)];
    let units = [Unit { function: 0, count: 4, dense: 10.0, expert: 0.0, recompute: 0.0 }];
    let step = Step {
        priced: &priced,
        units: &units,
        microbatches,
        data,
        contention: 1.0,
        optimizer_bytes: 10.0,
        optimizer_factor: 1.0,
        overhead: 0.5,
        collectives: 1.0,
    };
    time(&step, &Plain, &mut Scratch::default()).unwrap()
}

#[test]
fn a_rank_by_itself_computes_and_updates() {
    let t = step(ALONE, 3);
    assert_eq!(t.compute.products, 3.0 * 4.0 * 6.0);
    assert_eq!(t.optimizer, 4.0 * 10.0 * 10.0 / 100.0);
    assert_eq!(t.seconds, 72.0 + 4.0 + 0.5);
}

#[test]
fn data_parallel_reductions_hide_behind_the_backward_but_for_the_last() {
    // A reduction takes 2 s, a backward 4 s: only that of the first layer has nothing beside it.
    let t = step(Data { replicas: [8, 8], ..ALONE }, 2);
    assert_eq!(t.seconds, 48.0 + 2.0 + 4.0 + 0.5);
    assert_eq!(t.messages.0.len(), 1);
    assert_eq!((t.messages.0[0].exposed, t.messages.0[0].hidden), (2.0, 6.0));
    // Without overlap all of them wait.
    let t = step(Data { replicas: [8, 8], overlap: false, ..ALONE }, 2);
    assert_eq!(t.seconds, 48.0 + 8.0 + 4.0 + 0.5);
}

#[test]
fn zero_1_gathers_and_reduces_once_a_step() {
    let t = step(Data { zero: 1, shard: [8, 8], ..ALONE }, 4);
    // The first gather and the last reduction are seen, the optimizer works on an eighth.
    assert_eq!(t.seconds, 2.0 + 96.0 + 2.0 + 0.5 + 0.5);
    let bytes = |kind| t.messages.0.iter().find(|m| m.kind == kind).map(|m| m.bytes);
    assert_eq!((bytes(Kind::AllGather), bytes(Kind::ReduceScatter)), (Some(80.0), Some(80.0)));
}

#[test]
fn fully_sharded_parameters_are_gathered_twice_in_every_micro_batch() {
    let data = Data { zero: 3, shard: [8, 8], ..ALONE };
    for m in [1u64, 2, 3, 7, 50] {
        let t = step(data, m);
        let bytes = |kind| t.messages.0.iter().find(|m| m.kind == kind).map_or(0.0, |m| m.bytes);
        assert_eq!(bytes(Kind::AllGather), 2.0 * 80.0 * m as f64, "{m}");
        assert_eq!(bytes(Kind::ReduceScatter), 80.0 * m as f64, "{m}");
        let keep = step(Data { keep: true, ..data }, m);
        assert!(keep.seconds <= t.seconds);
    }
    // Gathers run one unit ahead: after the first, each of 2 s hides behind a forward of 2 s.
    assert_eq!(step(data, 1).seconds, 2.0 + 8.0 + 16.0 + 2.0 + 0.5 + 0.5);
    // Each further micro-batch takes the same.
    let [a, b, c] = [4, 5, 6].map(|m| step(data, m).seconds);
    assert!((c - b - (b - a)).abs() < 1e-9);
}

#[test]
fn hybrid_sharding_adds_a_reduction_between_replicas() {
    let t = step(Data { zero: 3, shard: [4, 4], replicas: [2, 2], ..ALONE }, 1);
    let outer: Vec<_> = t.messages.0.iter().filter(|m| m.group == Group::Replicas).collect();
    assert_eq!(outer.len(), 1);
    assert_eq!((outer[0].kind, outer[0].bytes), (Kind::AllReduce, 80.0 / 4.0));
}

#[test]
fn experts_products_are_launched_one_by_one_and_their_operands_brought_to_the_format() {
    let product = Product { format: Format::Bf16, m: 2.0, n: 2.0, k: 2.0, count: 4.0, accumulate: false };
    let item = Item::new("up".to_string(), Work::Product { product, weights: true });
    let both = Profile { forward: vec![item.clone()], backward_weight: vec![item], ..Profile::default() };
    let ones = Factors {
        sustained: 1.0,
        sustained_eight_bit: 1.0,
        products: 1.0,
        attention: 1.0,
        loops: 1.0,
        collectives: 1.0,
    };
    let of = |narrow, blocks| {
        let formats = Formats { narrow, wide: Format::Bf16, blocks, tp: 1 };
        let manner = Manner { launch: 1000.0, tensor_overlap: false, contention: 1.0 };
        let p = price(&quote(&both, &Plain, &formats), &ones, &manner);
        // The device waits for the host, who needs 1000 s for each launch.
        let launches = |phase: &Phase| (phase.seconds() / 1000.0).round();
        let waits = [&p.backward_input, &p.backward_weight].map(|phase| phase.seconds()).iter().sum::<f64>();
        (
            launches(&p.forward),
            (waits / 1000.0).round(),
            p.forward.compute.loop_bytes,
            p.backward_weight.compute.loop_bytes,
        )
    };
    assert_eq!(of(Format::Bf16, false), (4.0, 4.0, 0.0, 0.0));
    // A cast for each, of 16 inputs of 4 bytes read and written; the weight gradient's operands are there.
    assert_eq!(of(Format::Fp8, false), (8.0, 4.0, 64.0, 0.0));
    // And two orders of scales for each: a byte for 32 of the 32 elements, read and written.
    assert_eq!(of(Format::Fp8, true), (16.0, 12.0, 66.0, 2.0));
}

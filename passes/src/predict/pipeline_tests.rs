//! Pipelines of stages with plain times, against sums done by hand.

use super::pipeline::{time, Pipe};
use super::step::{Data, Scratch, Step, StepTime, Unit};
use super::tests::{function, Plain, ALONE};
use super::Group;
use autoshard_cost::collectives::Kind as Message;
use autoshard_cost::schedule::Kind;

/// Stages of so many layers, of 1 s forward and 2 s backward and ten parameters each.
fn play(kind: Kind, layers: &[usize], chunks: usize, m: u64, data: Data, bytes: f64) -> StepTime {
    let priced = [function(1.0, 2.0)];
    let unit = |count| Unit { function: 0, count, dense: 10.0, expert: 0.0, recompute: 0.0 };
    let stages: Vec<Vec<Vec<Unit>>> = layers.iter().map(|n| vec![vec![unit(*n)]; chunks]).collect();
    let step = Step {
        priced: &priced,
        units: &[],
        microbatches: m,
        data,
        contention: 1.0,
        optimizer_bytes: 0.0,
        optimizer_factor: 1.0,
        overhead: 0.0,
        collectives: 1.0,
    };
    let pipe = Pipe { kind, stages: &stages, boundary_bytes: bytes, blocking: false };
    time(&step, &pipe, &Plain, &mut Scratch::default(), true).unwrap()
}

#[test]
fn equal_stages_with_free_messages_have_the_textbooks_bubbles() {
    // A naive pipeline of n stages works an n-th of the time.
    let t = play(Kind::Naive, &[1; 4], 1, 4, ALONE, 0.0);
    assert_eq!((t.compute.products, t.seconds), (12.0, 48.0));
    // 4 stages and 4 micro-batches: 4 of 7.
    for kind in [Kind::GPipe, Kind::OneForwardOneBackward] {
        let t = play(kind, &[1; 4], 1, 4, ALONE, 0.0);
        assert_eq!(t.compute.products / t.seconds, 4.0 / 7.0, "{kind}");
        assert_eq!(t.bubble, 9.0, "{kind}");
    }
    // (p − 1)(F + B) / v.
    let t = play(Kind::Interleaved, &[1; 4], 2, 12, ALONE, 0.0);
    assert_eq!(t.seconds, 12.0 * 6.0 + 3.0 * 6.0 / 2.0);
    // (p − 1)(F + B − 2W).
    let t = play(Kind::ZeroBubbleH1, &[1; 4], 1, 12, ALONE, 0.0);
    assert_eq!(t.seconds, 12.0 * 3.0 + 3.0);
}

#[test]
fn the_longest_stage_sets_the_pace() {
    let t = play(Kind::OneForwardOneBackward, &[1, 3, 1], 1, 100, ALONE, 0.0);
    // The second never waits once it has started: the third is done with a micro-batch before it is needed.
    assert_eq!(t.seconds, 1.0 + 100.0 * 9.0 + 2.0);
    assert_eq!(t.stages, [300.0, 900.0, 300.0]);
}

#[test]
fn gradients_are_reduced_behind_the_last_backward_and_parameters_gathered_before_the_first_forward() {
    let free = play(Kind::OneForwardOneBackward, &[1, 1], 1, 8, ALONE, 0.0).seconds;
    // 20 bytes of gradients take 2 s, none of which can hide: the first stage ends last.
    let reduced = play(Kind::OneForwardOneBackward, &[1, 1], 1, 8, Data { replicas: [4, 4], ..ALONE }, 0.0);
    assert_eq!(reduced.seconds, free + 2.0);
    // The second stage's parameters arrive while it waits for its first input.
    let sharded = Data { zero: 1, shard: [4, 4], ..ALONE };
    assert_eq!(play(Kind::OneForwardOneBackward, &[1, 1], 1, 8, sharded, 0.0).seconds, free + 2.0 + 2.0);
    // What is not kept is gathered in every micro-batch, twice; gradients are reduced once.
    let t = play(Kind::OneForwardOneBackward, &[1, 1], 1, 8, Data { zero: 3, ..sharded }, 0.0);
    let bytes = |kind| t.messages.0.iter().find(|m| m.kind == kind).map(|m| m.bytes);
    assert_eq!(bytes(Message::AllGather), Some(8.0 * 2.0 * 20.0));
    assert_eq!(bytes(Message::ReduceScatter), Some(20.0));
}

#[test]
fn messages_between_stages_fill_and_drain_with_the_pipeline() {
    let free = play(Kind::GPipe, &[1; 3], 1, 4, ALONE, 0.0);
    // A second for each of two hops, forward and back; the others overlap.
    let sent = play(Kind::GPipe, &[1; 3], 1, 4, ALONE, 10.0);
    assert_eq!(sent.seconds, free.seconds + 4.0);
    let hops = sent.messages.0.iter().find(|m| m.group == Group::Pipeline).unwrap();
    assert_eq!((hops.count, hops.bytes, hops.exposed), (8.0, 80.0, 4.0));
}

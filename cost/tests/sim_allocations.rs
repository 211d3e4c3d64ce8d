//! A simulator that has seen a list allocates nothing for it again, and neither does a player of schedules. In a program of its own, because it counts
//! what the allocator is asked.

use autoshard_cost::schedule::{Cost, Kind, Pipeline, Player};
use autoshard_cost::sim::{Contention, Periodic, Rules, Simulator, Stream, Task};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    static CALLS: Cell<usize> = const { Cell::new(0) };
}

struct Counting;

// SAFETY: hands everything to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        CALLS.with(|c| c.set(c.get() + 1));
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        unsafe { System.dealloc(pointer, layout) }
    }
    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        CALLS.with(|c| c.set(c.get() + 1));
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// Calls of the allocator in f.
fn calls(f: impl FnOnce()) -> usize {
    let before = CALLS.with(Cell::get);
    f();
    CALLS.with(Cell::get) - before
}

/// Micro-batches through four stages; messages share one link.
fn list(batches: u32) -> (Vec<Task>, Rules) {
    let streams = (0..8).map(|s| Stream { device: s / 2, beside: (s % 2 == 1).then(|| s as u16 - 1) }).collect();
    let rules = Rules { streams, contention: Contention { compute: 1.1, communication: 1.2 } };
    let mut tasks = vec![];
    for batch in 0..batches {
        for stage in 0..4u16 {
            let arrived = (stage > 0).then(|| tasks.len() as u32 - 1);
            let back = (batch > 0 && stage == 0).then(|| tasks.len() as u32 - 2);
            tasks.push(Task { stream: 2 * stage, seconds: 1.0, link: None, after: [arrived, back] });
            let computed = Some(tasks.len() as u32 - 1);
            tasks.push(Task { stream: 2 * stage + 1, seconds: 0.5, link: Some((0, 1.0)), after: [computed, None] });
        }
    }
    (tasks, rules)
}

#[test]
fn nothing_is_allocated_twice() {
    let mut simulator = Simulator::new();
    for contention in [Contention { compute: 1.1, communication: 1.2 }, Contention::NONE] {
        let (mut tasks, rules) = list(100);
        if contention == Contention::NONE {
            // Without shared links either, the list is played directly.
            tasks.iter_mut().for_each(|t| t.link = t.link.map(|l| (t.stream, l.1)));
        }
        let rules = Rules { contention, ..rules };
        assert!(calls(|| _ = simulator.run(&tasks, &rules).unwrap()) > 0);
        assert_eq!(calls(|| _ = simulator.run(&tasks, &rules).unwrap()), 0);
        assert_eq!(calls(|| _ = simulator.run(&tasks[..40], &rules).unwrap()), 0);
    }
}

#[test]
fn periods_allocate_nothing_either() {
    let mut simulator = Simulator::new();
    let (tasks, rules) = list(5);
    let run = |simulator: &mut Simulator, count| {
        let list = Periodic { tasks: &tasks, start: 8, length: 8, copies: 4, count, settle: None };
        _ = simulator.run_periodic(&list, &rules).unwrap();
    };
    run(&mut simulator, 1000);
    // The check of the list has one buffer.
    assert!(calls(|| run(&mut simulator, 1000)) <= 1);
    assert!(calls(|| run(&mut simulator, 30_000)) <= 1);
}

#[test]
fn plays_of_schedules_allocate_nothing_either() {
    let mut player = Player::default();
    let cost = Cost { forward: 1.0, backward_input: 1.1, backward_weight: 0.9, ready: 0.0 };
    let costs = [cost; 32];
    for kind in Kind::ALL {
        let chunks = match kind {
            Kind::Interleaved => 4,
            Kind::ZeroBubbleV | Kind::DualPipeV => 2,
            _ => 1,
        };
        for blocking in [false, true] {
            let costs = &costs[..8 * chunks as usize];
            let p = Pipeline { kind, stages: 8, chunks, microbatches: 64, costs, message: 0.1, blocking };
            player.play(&p, false).unwrap();
            let more = Pipeline { microbatches: 32_768, ..p };
            // Also for more micro-batches than it has seen.
            assert_eq!(calls(|| assert!(player.play(&more, false).is_ok())), 0, "{kind}, blocking {blocking}");
        }
    }
}

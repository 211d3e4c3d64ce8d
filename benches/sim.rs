//! Time of the event simulator: the least of several runs.
//!
//!     cargo bench -p autoshard-cost --bench sim -- [--rounds 50]
//!
//! Nanoseconds for a task, which are a start and an end, of 1F1B with messages: each stage has a stream of
//! computation and two of messages. It is played in four ways that need more and more: without interplay (one
//! pass over the list), with contention on each device (events), with links that both directions share, and with
//! what is exposed. Then steps of 32,768 micro-batches, of which the simulator plays what it takes to settle. Last the
//! player of schedules: nanoseconds for a step that it plays, all in, steps that it plays of more and more
//! micro-batches, and what it allocates once it has played a pipeline before.

use autoshard_cost::schedule::{
    lower, lower_periodic, rules, schedule, Cost, Kind, Pipeline, Player, ScheduleError, Step, Work,
};
use autoshard_cost::sim::{Contention, Rules, Simulator, Stream, Task};
use std::alloc::{GlobalAlloc, Layout, System};
use std::error::Error;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// Allocations so far.
static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

/// Counts allocations.
struct Counting;

// SAFETY: it hands all calls on as they are.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        // SAFETY: the caller's.
        unsafe { System.dealloc(place, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Galvatron's.
const CONTENTION: Contention = Contention { compute: 1.1256, communication: 1.1256 };

/// Seconds of a stage: some take longer.
fn seconds(stage: u32, step: Step) -> f64 {
    let work = if step.work == Work::Forward { 1.0 } else { 2.0 };
    work * (1.0 + 0.01 * f64::from(stage % 3))
}

/// The same tasks, with one link for both directions between two stages.
fn shared(tasks: &[Task]) -> Vec<Task> {
    let link = |l: u16| if l.is_multiple_of(2) { l / 2 } else { l / 2 - 1 };
    tasks.iter().map(|t| Task { link: t.link.map(|(l, demand)| (link(l), demand)), ..*t }).collect()
}

/// The same rules, where nobody asks what is exposed.
fn unasked(rules: &Rules) -> Rules {
    let streams = rules.streams.iter().map(|s| Stream { beside: None, ..*s }).collect();
    Rules { streams, ..*rules }
}

/// The least nanoseconds of a call.
fn fastest<E>(rounds: usize, mut f: impl FnMut() -> Result<(), E>) -> Result<f64, E> {
    let mut best = f64::INFINITY;
    for _ in 0..rounds {
        let start = Instant::now();
        f()?;
        best = best.min(start.elapsed().as_secs_f64() * 1e9);
    }
    Ok(best)
}

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().collect();
    let value = args.iter().position(|a| a == "--rounds").and_then(|i| args.get(i + 1));
    let rounds = value.map_or(Ok(50), |v| v.parse::<usize>())?;
    let mut simulator = Simulator::new();
    println!("stages × micro-batches, ns a task     direct   contention   + shared links   + exposed");
    for (stages, batches) in [(4, 64), (8, 64), (16, 64), (64, 256)] {
        let steps = schedule(Kind::OneForwardOneBackward, stages, 1, batches)?;
        let own = lower(Kind::OneForwardOneBackward, &steps, seconds, 0.2)?.tasks;
        let shared = shared(&own);
        let (asked, free) = (rules(stages, CONTENTION), unasked(&rules(stages, Contention::NONE)));
        let contended = unasked(&asked);
        let mut ns = vec![];
        for (tasks, rules) in [(&own, &free), (&own, &contended), (&shared, &contended), (&shared, &asked)] {
            ns.push(fastest(rounds, || simulator.run(tasks, rules).map(|_| ()))? / own.len() as f64);
        }
        let [direct, contention, links, exposed] = ns[..] else { return Err("four columns".into()) };
        println!("{stages:6} × {batches:3} {direct:33.1} {contention:12.1} {links:16.1} {exposed:11.1}");
    }
    println!("32,768 micro-batches                  periods played   tasks played   µs to lower   µs to play");
    for (name, kind, stages, chunks, message) in [
        ("1f1b, 8 stages", Kind::OneForwardOneBackward, 8, 1, 0.0),
        ("1f1b, 8 stages, messages", Kind::OneForwardOneBackward, 8, 1, 0.2),
        ("interleaved, 8 stages of 4", Kind::Interleaved, 8, 4, 0.02),
        ("zb-v, 8 stages", Kind::ZeroBubbleV, 8, 2, 0.02),
    ] {
        let lower = || lower_periodic(kind, stages, chunks, 32_768, seconds, message);
        let lowering = fastest(rounds, || lower().map(|_| ()))?;
        let repeated = lower()?.ok_or("nothing repeats")?;
        let rules = rules(stages, CONTENTION);
        let play = |simulator: &mut Simulator| {
            simulator.run_periodic(&repeated.list(), &rules).map(|t| t.skip).map_err(ScheduleError::from)
        };
        let skip = play(&mut simulator)?;
        let playing = fastest(rounds, || play(&mut simulator).map(|_| ()))?;
        let periods = repeated.count - skip.map_or(0, |s| s.periods * s.repeats);
        let tasks = simulator.periodic_tasks().len();
        println!("{name:30} {periods:21} {tasks:14} {:13.0} {:12.0}", lowering / 1e3, playing / 1e3);
    }
    players(rounds)
}

/// Micro-batches that are played.
const MICROBATCHES: [u32; 5] = [16, 64, 512, 4096, 32_768];

/// Times of the player.
fn players(rounds: usize) -> Result<(), Box<dyn Error>> {
    println!(
        "player: ns a step that is played of {MICROBATCHES:?} micro-batches; µs to play the most; steps played of a \
         stage's chunk; allocations of a play"
    );
    for (name, message, spread, blocking) in [
        ("equal stages, free messages", 0.0, 0.0, false),
        ("unequal stages, messages", 0.2, 0.01, false),
        ("the same, blocking", 0.2, 0.01, true),
    ] {
        println!("{name}");
        for (kind, chunks) in [
            (Kind::GPipe, 1),
            (Kind::OneForwardOneBackward, 1),
            (Kind::Interleaved, 4),
            (Kind::ZeroBubbleH1, 1),
            (Kind::ZeroBubbleV, 2),
            (Kind::DualPipeV, 2),
        ] {
            for stages in [8u32, 16] {
                let cost = |part: u32| {
                    let f = (1.0 + spread * f64::from(part / chunks % 3)) / f64::from(chunks);
                    Cost { forward: f, backward_input: f, backward_weight: f, ready: 0.0 }
                };
                let costs: Vec<Cost> = (0..stages * chunks).map(cost).collect();
                let (mut ns, mut steps, mut most, mut play) = (vec![], vec![], 0, 0.0);
                for microbatches in MICROBATCHES {
                    let p = Pipeline { kind, stages, chunks, microbatches, costs: &costs, message, blocking };
                    let mut player = Player::default();
                    player.play(&p, false)?;
                    let before = ALLOCATIONS.load(Ordering::Relaxed);
                    let time = fastest(rounds, || player.play(&p, false).map(|_| ()))?;
                    most = most.max((ALLOCATIONS.load(Ordering::Relaxed) - before) / rounds as u64);
                    play = time / 1e3;
                    ns.push(time / player.steps() as f64);
                    steps.push(player.steps() / u64::from(stages * chunks));
                }
                let text = |v: &[f64]| v.iter().map(|x| format!("{x:6.1}")).collect::<String>();
                println!("{:12} {stages:3} {} {play:8.1}   {steps:?} {most}", kind.name(), text(&ns));
            }
        }
    }
    Ok(())
}

//! Time of the event simulator: the least of several runs.
//!
//!     cargo bench -p autoshard-cost --bench sim -- [--rounds 50]
//!
//! Nanoseconds for a task, which are a start and an end, of 1F1B with messages: each stage has a stream of
//! computation and two of messages. It is played in four ways that need more and more: without interplay (one
//! pass over the list), with contention on each device (events), with links that both directions share, and with
//! what is exposed. Then steps of 32,768 micro-batches, of which the simulator plays what it takes to settle.

use autoshard_cost::schedule::{lower, lower_periodic, rules, schedule, Kind, ScheduleError, Step, Work};
use autoshard_cost::sim::{Contention, Rules, Simulator, Stream, Task};
use std::error::Error;
use std::time::Instant;

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
    Ok(())
}

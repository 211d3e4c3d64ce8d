//! A simulator without any bookkeeping: at every event it looks at all tasks again.

use super::*;

/// Starts and ends of a checked list.
fn naive(tasks: &[Task], rules: &Rules) -> Vec<(f64, f64)> {
    let mut left: Vec<f64> = tasks.iter().map(|t| t.seconds).collect();
    let mut times = vec![(f64::NAN, f64::NAN); tasks.len()];
    let mut now = 0.0;
    loop {
        let runnable = |id: usize, times: &[(f64, f64)]| {
            let ended = |other: usize| !times[other].1.is_nan();
            let stream = tasks[id].stream;
            let waits = tasks[id].after.iter().flatten().all(|a| ended(*a as usize));
            waits && !ended(id) && (0..id).all(|o| tasks[o].stream != stream || ended(o))
        };
        let running: Vec<usize> = (0..tasks.len()).filter(|id| runnable(*id, &times)).collect();
        if running.is_empty() {
            return times;
        }
        running
            .iter()
            .filter(|id| times[**id].0.is_nan())
            .copied()
            .collect::<Vec<_>>()
            .iter()
            .for_each(|id| times[*id].0 = now);
        let speeds: Vec<f64> = running.iter().map(|id| speed(*id, &running, tasks, rules)).collect();
        let until = |i: usize| left[running[i]] / speeds[i];
        let step = (0..running.len()).map(until).fold(f64::INFINITY, f64::min);
        now += step;
        for (i, id) in running.iter().enumerate() {
            left[*id] -= step * speeds[i];
            if left[*id] <= 1e-13 {
                times[*id].1 = now;
            }
        }
    }
}

/// Work per second of a running task.
fn speed(id: usize, running: &[usize], tasks: &[Task], rules: &Rules) -> f64 {
    let device = |t: usize| rules.streams[tasks[t].stream as usize].device;
    let other_kind = |t: &&usize| tasks[**t].link.is_some() != tasks[id].link.is_some();
    let contended = running.iter().filter(other_kind).any(|t| device(*t) == device(id));
    let Some((link, demand)) = tasks[id].link else {
        return if contended { 1.0 / rules.contention.compute } else { 1.0 };
    };
    let demands = running.iter().filter_map(|t| tasks[*t].link).filter(|l| l.0 == link).map(|l| f64::from(l.1));
    let demands: Vec<f64> = demands.collect();
    let got = fair(&demands, f64::from(demand));
    got / f64::from(demand) / if contended { rules.contention.communication } else { 1.0 }
}

/// What max-min fairness gives to one that demands `mine`: the level at which the link is full, by bisection.
fn fair(demands: &[f64], mine: f64) -> f64 {
    if demands.iter().sum::<f64>() <= 1.0 {
        return mine;
    }
    let (mut low, mut high) = (0.0, 1.0);
    for _ in 0..100 {
        let level = 0.5 * (low + high);
        let full = demands.iter().map(|d| d.min(level)).sum::<f64>() > 1.0;
        *(if full { &mut high } else { &mut low }) = level;
    }
    mine.min(low)
}

/// Seconds of a task in which the stream beside it runs, waits with a task left, or has none left.
fn beside(id: usize, tasks: &[Task], rules: &Rules, times: &[(f64, f64)]) -> (f64, f64, f64) {
    let (from, until) = times[id];
    let Some(beside) = rules.streams[tasks[id].stream as usize].beside else { return (until - from, 0.0, 0.0) };
    let others = (0..tasks.len()).filter(|t| tasks[*t].stream == beside).map(|t| times[t]);
    let covered: f64 = others.clone().map(|(a, b)| (b.min(until) - a.max(from)).max(0.0)).sum();
    let close = others.map(|t| t.1).fold(0.0, f64::max);
    let tail = (until - close.max(from)).max(0.0);
    (covered, until - from - covered - tail, tail)
}

#[test]
fn agrees_with_the_naive_simulator_on_random_lists() {
    let mut simulator = Simulator::new();
    let mut slowed = 0;
    for seed in 0..500 {
        let mut random = Random::new(seed);
        let rules = random_rules(&mut random);
        let tasks = random_list(&mut random, &rules);
        let expected = naive(&tasks, &rules);
        let timeline = simulator.run(&tasks, &rules).unwrap().clone();
        for (id, (start, end)) in expected.iter().enumerate() {
            let got = (timeline.start[id], timeline.end[id]);
            assert!(close(got.0, *start) && close(got.1, *end), "seed {seed}, task {id}: {got:?}, not {start} {end}");
            slowed += usize::from(end - start > tasks[id].seconds + 1e-9);
            let (hidden, exposed, tail) = beside(id, &tasks, &rules, &expected);
            let asked = !timeline.exposed.is_empty();
            let part = |v: &[f64]| if asked { v[id] } else { 0.0 };
            let got = (timeline.hidden(id), part(&timeline.exposed), part(&timeline.tail));
            assert!(close(got.0, hidden) && close(got.1, exposed) && close(got.2, tail), "seed {seed}, task {id}");
        }
        for stream in 0..rules.streams.len() {
            let mine = || (0..tasks.len()).filter(|t| tasks[*t].stream as usize == stream);
            let busy: f64 = mine().map(|t| expected[t].1 - expected[t].0).sum();
            assert!(close(timeline.busy[stream], busy));
            assert!(close(
                timeline.stream_exposed[stream],
                mine().map(|t| timeline.exposed.get(t).unwrap_or(&0.0)).sum()
            ));
            assert!(close(timeline.stream_tail[stream], mine().map(|t| timeline.tail.get(t).unwrap_or(&0.0)).sum()));
        }
        let last = expected.iter().map(|t| t.1).fold(0.0, f64::max);
        assert!(close(timeline.makespan, last));
    }
    assert!(slowed > 2000, "random lists that slow nothing down test nothing: {slowed}");
}

#[test]
fn playing_directly_and_by_events_is_the_same() {
    let mut simulator = Simulator::new();
    for seed in 0..300 {
        let mut random = Random::new(seed);
        let rules = Rules { contention: Contention::NONE, ..random_rules(&mut random) };
        let mut tasks = random_list(&mut random, &rules);
        tasks.iter_mut().for_each(|t| t.link = t.link.map(|(_, demand)| (t.stream, demand)));
        let direct = simulator.run(&tasks, &rules).unwrap().clone();
        assert_eq!(direct, *simulator.run_events(&tasks, &rules).unwrap(), "seed {seed}");
    }
}

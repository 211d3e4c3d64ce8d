use super::*;

fn device(streams: u16) -> Vec<Stream> {
    (0..streams).map(|_| Stream { device: 0, beside: None }).collect()
}

fn run(tasks: &[Task], rules: &Rules) -> Timeline {
    Simulator::new().run(tasks, rules).unwrap().clone()
}

#[test]
fn the_makespan_is_at_least_the_work_and_the_longest_path() {
    for seed in 1000..1500 {
        let mut random = Random::new(seed);
        let rules = random_rules(&mut random);
        let tasks = random_list(&mut random, &rules);
        let timeline = run(&tasks, &rules);
        for stream in 0..rules.streams.len() {
            let work: f64 = tasks.iter().filter(|t| t.stream as usize == stream).map(|t| t.seconds).sum();
            assert!(timeline.makespan >= work - 1e-9 && timeline.busy[stream] >= work - 1e-9);
        }
        // Bytes on a link, in seconds of the whole link.
        for link in 0..3 {
            let bytes = tasks.iter().filter_map(|t| t.link.filter(|l| l.0 == link).map(|l| t.seconds * f64::from(l.1)));
            assert!(timeline.makespan >= bytes.sum::<f64>() - 1e-9);
        }
        let mut path = vec![0f64; tasks.len()];
        for (id, task) in tasks.iter().enumerate() {
            let waits = task.after.into_iter().flatten().map(|a| path[a as usize]);
            path[id] = waits.fold(0.0, f64::max) + task.seconds;
            assert!(timeline.end[id] >= path[id] - 1e-9);
        }
    }
}

#[test]
fn without_interplay_less_work_and_fewer_dependencies_never_take_longer() {
    let mut shorter = 0;
    for seed in 0..300 {
        let mut random = Random::new(seed);
        let rules = Rules { contention: Contention::NONE, ..random_rules(&mut random) };
        let mut tasks = random_list(&mut random, &rules);
        tasks.iter_mut().for_each(|t| t.link = None);
        let Some(id) = tasks.len().checked_sub(1).map(|n| random.below(n + 1)) else { continue };
        let before = run(&tasks, &rules);
        let mut fewer = tasks.clone();
        fewer[id].after[0] = None;
        let mut faster = tasks.clone();
        faster[id].seconds *= 0.5;
        for other in [fewer, faster] {
            let after = run(&other, &rules);
            assert!(after.end.iter().zip(&before.end).all(|(a, b)| *a <= b + 1e-9), "seed {seed}");
            shorter += usize::from(after.makespan < before.makespan - 1e-9);
        }
    }
    assert!(shorter > 20);
}

#[test]
fn with_interplay_fewer_dependencies_can_take_longer() {
    // The long computation waits for the first message. If the second message need not wait for the short
    // computation, it takes half of the link from the first.
    let streams: Vec<_> = (0..4).map(|device| Stream { device, beside: None }).collect();
    let rules = Rules { streams, contention: Contention::NONE };
    let list = |waits: &[TaskId]| {
        [compute(0, 1.0, &[]), send(1, 1.0, (0, 1.0), &[]), send(2, 1.0, (0, 1.0), waits), compute(3, 5.0, &[1])]
    };
    assert_eq!(run(&list(&[0]), &rules).makespan, 6.0);
    assert_eq!(run(&list(&[]), &rules).makespan, 7.0);
}

#[test]
fn a_link_is_divided_fairly_and_never_more_than_whole() {
    assert_eq!(level(&mut []), 1.0);
    assert_eq!(level(&mut [1.0, 1.0]), 0.5);
    assert_eq!(level(&mut [0.2, 1.0, 1.0]), 0.4);
    assert_eq!(level(&mut [0.25, 0.5]), 1.0);
    for seed in 0..1000 {
        let mut random = Random::new(seed);
        let demands: Vec<f64> = (0..random.below(8)).map(|_| random.unit().max(1e-3)).collect();
        let level = level(&mut demands.clone());
        let sum: f64 = demands.iter().map(|d| d.min(level)).sum();
        let wanted: f64 = demands.iter().sum();
        assert!(sum <= 1.0 + 1e-12);
        // All of the link, or all that is wanted.
        assert!((sum - wanted.min(1.0)).abs() < 1e-12, "{demands:?}: level {level}");
    }
}

#[test]
fn a_task_alone_takes_its_time() {
    let rules = Rules { streams: device(3), contention: Contention { compute: 1.5, communication: 1.25 } };
    let chain = [send(0, 0.1, (0, 0.3), &[]), compute(1, 0.2, &[0]), send(2, 0.4, (0, 1.0), &[1])];
    assert_eq!(run(&chain, &rules).end, [0.1, 0.1 + 0.2, 0.1 + 0.2 + 0.4]);
}

#[test]
fn two_on_a_link_take_the_time_of_their_bytes() {
    let rules = Rules { streams: device(2), contention: Contention::NONE };
    // 3 s and 1 s of the whole link: halves until 2 s, then the rest alone.
    let whole = run(&[send(0, 3.0, (0, 1.0), &[]), send(1, 1.0, (0, 1.0), &[])], &rules);
    assert_eq!(whole.end, [4.0, 2.0]);
    // One demands a quarter only and is not slowed down; the other gets 3/4.
    let part = run(&[send(0, 2.0, (0, 0.25), &[]), send(1, 3.0, (0, 1.0), &[])], &rules);
    assert_eq!(part.end, [2.0, 3.5]);
    let apart = run(&[send(0, 3.0, (0, 1.0), &[]), send(1, 1.0, (1, 1.0), &[])], &rules);
    assert_eq!(apart.end, [3.0, 1.0]);
}

#[test]
fn contention_is_galvatrons() {
    // Both slow down while they overlap, the rest runs at full speed: min(x, y) κ + |x − y|.
    let kappa = 1.1256;
    let rules = Rules { streams: device(2), contention: Contention { compute: kappa, communication: kappa } };
    for (x, y) in [(2.0, 5.0), (5.0, 2.0), (3.0, 3.0)] {
        let timeline = run(&[compute(0, x, &[]), send(1, y, (0, 1.0), &[])], &rules);
        assert!(close(timeline.makespan, kappa * f64::min(x, y) + (x - y).abs()));
    }
    // Not across devices.
    let streams = vec![Stream { device: 0, beside: None }, Stream { device: 1, beside: None }];
    let apart = run(&[compute(0, 2.0, &[]), send(1, 5.0, (0, 1.0), &[])], &Rules { streams, ..rules });
    assert_eq!(apart.end, [2.0, 5.0]);
}

#[test]
fn exposed_is_what_the_computation_waits_through() {
    let mut streams = device(2);
    streams[1].beside = Some(0);
    let rules = Rules { streams, contention: Contention::NONE };
    let tasks = [compute(0, 1.0, &[]), send(1, 3.0, (0, 1.0), &[]), compute(0, 1.0, &[1]), send(1, 2.5, (0, 1.0), &[])];
    let timeline = run(&tasks, &rules);
    let parts = |t: usize| (timeline.hidden(t), timeline.exposed[t], timeline.tail[t]);
    assert_eq!(parts(1), (1.0, 2.0, 0.0));
    assert_eq!(parts(3), (1.0, 0.0, 1.5));
    assert_eq!((timeline.stream_exposed[1], timeline.stream_tail[1]), (2.0, 1.5));
}

#[test]
fn there_may_be_as_many_streams_as_can_be_named() {
    let streams: Vec<Stream> = (0..1u32 << 16).map(|s| Stream { device: s / 2, beside: None }).collect();
    let rules = Rules { streams, contention: Contention { compute: 2.0, communication: 2.0 } };
    // A message around a ring of 32,768 devices, beside computation that takes as long as it on each.
    let mut tasks = vec![];
    for device in 0..1u16 << 15 {
        let before = tasks.len().checked_sub(1).map(|t| t as TaskId);
        tasks.push(Task { after: [before, None], ..compute(2 * device, 1.0, &[]) });
        tasks.push(Task { after: [before, None], ..send(2 * device + 1, 1.0, (device, 1.0), &[]) });
    }
    assert_eq!(run(&tasks, &rules).makespan, 2.0 * 32_768.0);
}

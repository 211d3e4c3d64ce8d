use super::*;

/// A random list with a period: tasks of a copy wait for tasks of their copy, of up to two before, and of the
/// prologue; those of the epilogue for any.
struct Case {
    rules: Rules,
    tasks: Vec<Task>,
    start: u32,
    length: u32,
    copies: u32,
}

impl Case {
    fn random(seed: u64) -> Case {
        let mut random = Random::new(seed);
        let rules = random_rules(&mut random);
        let start = random.below(8);
        let mut tasks: Vec<Task> = (0..start).map(|id| random_task(&mut random, &rules, id)).collect();
        let (length, copies) = (1 + random.below(10), 3 + random.below(2));
        let tie = random.below(3);
        let period: Vec<Task> =
            (0..length).map(|id| random_task(&mut random, &rules, start + 2 * length + id)).collect();
        for copy in 0..copies {
            for (i, task) in period.iter().enumerate() {
                // Counted in the third copy; what is not there yet is not waited for.
                let own = (start + 2 * length + i) as i64;
                let here = (start + copy * length + i) as i64;
                let moved = |a: u32| match a {
                    a if (a as usize) < start => Some(a),
                    a => u32::try_from(here - (own - i64::from(a))).ok().filter(|a| *a as usize >= start),
                };
                let mut task = Task { after: task.after.map(|a| a.and_then(moved)), ..*task };
                // In two of three cases a copy is a chain, and one or two are under way at once.
                let lag = (tie * length + 1).saturating_sub(length);
                task.after[0] = match (tie, i) {
                    (0, _) => task.after[0],
                    (_, 0) => (copy >= tie).then(|| (here - lag as i64) as u32),
                    _ => Some((here - 1) as u32),
                };
                tasks.push(task);
            }
        }
        for _ in 0..random.below(6) {
            let id = tasks.len();
            tasks.push(random_task(&mut random, &rules, id));
        }
        Case { rules, tasks, start: start as u32, length: length as u32, copies: copies as u32 }
    }

    fn list(&self, count: u32) -> Periodic<'_> {
        Periodic {
            tasks: &self.tasks,
            start: self.start,
            length: self.length,
            copies: self.copies,
            count,
            settle: None,
        }
    }
}

#[test]
fn written_out_the_prologue_stays_and_the_rest_moves() {
    let rules = Rules { streams: vec![Stream { device: 0, beside: None }; 2], contention: Contention::NONE };
    let tasks = [
        compute(1, 10.0, &[]),
        // Two copies: the first task waits for the prologue and, from the second copy on, for the other before.
        compute(0, 1.0, &[0]),
        compute(1, 2.0, &[1]),
        compute(0, 1.0, &[0, 2]),
        compute(1, 2.0, &[3]),
        compute(0, 5.0, &[2, 4]),
    ];
    let list = Periodic { tasks: &tasks, start: 1, length: 2, copies: 2, count: 4, settle: None };
    let mut expected = tasks[..5].to_vec();
    expected.extend([compute(0, 1.0, &[0, 4]), compute(1, 2.0, &[5]), compute(0, 1.0, &[0, 6]), compute(1, 2.0, &[7])]);
    // The last period but one, and the last.
    expected.push(compute(0, 5.0, &[6, 8]));
    assert_eq!(list.unrolled(&rules).unwrap(), expected);
    assert_eq!(Simulator::new().run_periodic(&list, &rules).unwrap().makespan, 10.0 + 4.0 * 3.0 + 5.0);
}

#[test]
fn equals_the_list_written_out() {
    let (mut simulator, mut whole) = (Simulator::new(), Simulator::new());
    let (mut skipped, mut longer, mut played) = (0, 0, 0);
    for seed in 0..600 {
        let case = Case::random(seed);
        for count in [case.copies, 7, 100, 257] {
            let list = case.list(count);
            let got = match simulator.run_periodic(&list, &case.rules) {
                Err(SimError::EarlyEpilogue(_)) => continue,
                got => got.unwrap().clone(),
            };
            played += 1;
            let unrolled = list.unrolled(&case.rules).unwrap();
            let expected = whole.run(&unrolled, &case.rules).unwrap();
            let same = |a: f64, b: f64| (a - b).abs() <= 1e-9 * expected.makespan.max(1.0);
            assert!(
                same(got.makespan, expected.makespan),
                "seed {seed}, {count} periods: {:?}, not {}",
                got.skip,
                expected.makespan
            );
            for stream in 0..case.rules.streams.len() {
                assert!(same(got.busy[stream], expected.busy[stream]), "seed {seed}, {count} periods, stream {stream}");
                assert!(
                    same(got.stream_exposed[stream], expected.stream_exposed[stream]),
                    "seed {seed}, {count}, {stream}"
                );
                assert!(same(got.stream_tail[stream], expected.stream_tail[stream]), "seed {seed}, {count}, {stream}");
            }
            skipped += usize::from(got.skip.is_some());
            longer += usize::from(got.skip.is_some_and(|s| s.periods > 1));
        }
    }
    assert!(played > 1000 && skipped > 500 && longer > 20, "{played} {skipped} {longer}");
}

/// A pipeline of two stages that hold at most `held` micro-batches at once, with messages of `seconds`: a
/// period is one micro-batch, forward on stage 0, message, both on stage 1, message, backward on stage 0.
fn pipeline(held: u32, seconds: f64) -> (Rules, Vec<Task>) {
    let streams = [0, 0, 1, 1, 2].map(|device| Stream { device, beside: None }).to_vec();
    let rules = Rules { streams, contention: Contention::NONE };
    let mut tasks = vec![];
    for copy in 0..=held {
        let at = tasks.len() as u32;
        // The backward of the micro-batch `held` before this one, if there is one, precedes this forward.
        let free = (copy == held).then(|| at - held * 5 + 4);
        tasks.push(Task { after: [free, None], ..compute(0, 1.0, &[]) });
        tasks.push(send(1, seconds, (0, 1.0), &[at]));
        tasks.push(compute(2, 3.0, &[at + 1]));
        tasks.push(send(3, seconds, (1, 1.0), &[at + 2]));
        // On a device of its own, so that the order of forwards and backwards is free.
        tasks.push(compute(4, 2.0, &[at + 3]));
    }
    (rules, tasks)
}

#[test]
fn thousands_of_micro_batches_cost_no_more_than_the_first() {
    let contention = Contention { compute: 1.2, communication: 1.1 };
    // Two micro-batches leave stages and links idle until they return: that repeats every two periods. With
    // contention two periods differ from the two before by about 0.9 of what those did, which takes longer.
    let free = Contention::NONE;
    let cases =
        [(3, 0.1, free, 1, 12), (2, 0.1, free, 2, 12), (3, 0.1, contention, 1, 40), (2, 20.0, contention, 2, 600)];
    for (held, seconds, contention, periods, most) in cases {
        let (rules, tasks) = pipeline(held, seconds);
        let rules = Rules { contention, ..rules };
        let list = Periodic { tasks: &tasks, start: 0, length: 5, copies: held + 1, count: 32_768, settle: None };
        let mut simulator = Simulator::new();
        let timeline = simulator.run_periodic(&list, &rules).unwrap().clone();
        assert_eq!(timeline.skip.unwrap().periods, periods, "{held} held, {seconds} s");
        assert!(timeline.end.len() <= 5 * most, "{} tasks, {held} held, {seconds} s", timeline.end.len());
        let whole = simulator.run(&list.unrolled(&rules).unwrap(), &rules).unwrap();
        assert!((timeline.makespan / whole.makespan - 1.0).abs() < 1e-9);
    }
}

#[test]
fn streams_that_drift_apart_are_played_to_the_end() {
    let streams = vec![Stream { device: 0, beside: None }, Stream { device: 0, beside: None }];
    let rules = Rules { streams, contention: Contention { compute: 1.5, communication: 1.0 } };
    let tasks = [compute(0, 2.0, &[]), send(1, 1.0, (0, 1.0), &[])];
    let list = |count| Periodic { tasks: &tasks, start: 0, length: 2, copies: 1, count, settle: None };
    let mut simulator = Simulator::new();
    let timeline = simulator.run_periodic(&list(300), &rules).unwrap();
    // Messages for 300 s, beside which 200 s of computation are done.
    assert!(timeline.skip.is_none() && close(timeline.makespan, 700.0));
    simulator.limit(10_000);
    // Nor is there a mean.
    for settle in [None, Some(64)] {
        let refused = simulator.run_periodic(&Periodic { settle, ..list(1 << 20) }, &rules).unwrap_err();
        assert_eq!(refused, SimError::NeverSettles { tasks: 2 << 20 });
    }
}

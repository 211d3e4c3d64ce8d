use super::*;

fn rules(streams: u16) -> Rules {
    let streams = (0..streams).map(|_| Stream { device: 0, beside: None }).collect();
    Rules { streams, contention: Contention::NONE }
}

fn error(tasks: &[Task], rules: &Rules) -> SimError {
    Simulator::new().run(tasks, rules).unwrap_err()
}

#[test]
fn numbers_that_are_none() {
    for seconds in [f64::NAN, f64::INFINITY, -1.0] {
        assert!(matches!(error(&[compute(0, seconds, &[])], &rules(1)), SimError::BadSeconds(p) if p.id == 0));
    }
    for demand in [0.0, -0.5, 1.5, f32::NAN, f32::INFINITY] {
        let tasks = [compute(0, 1.0, &[]), send(0, 1.0, (3, demand), &[])];
        assert!(matches!(error(&tasks, &rules(1)), SimError::BadDemand { place, link: 3 } if place.id == 1));
    }
    for (compute, communication) in [(0.5, 1.0), (1.0, f64::NAN), (f64::INFINITY, 1.0)] {
        let rules = Rules { contention: Contention { compute, communication }, ..rules(1) };
        assert!(matches!(error(&[], &rules), SimError::BadContention { .. }));
    }
}

#[test]
fn what_does_not_exist() {
    let unknown = error(&[compute(0, 1.0, &[]), compute(2, 0.5, &[0])], &rules(2));
    let text = "task 1 (stream 2, 0.5 s, after 0): there is no such stream; the rules have 2: add a stream or correct \
                the task's";
    assert_eq!(unknown.to_string(), text);
    let mut wrong = rules(2);
    wrong.streams[1].device = 2;
    assert!(matches!(error(&[], &wrong), SimError::BadStream { stream: 1, device: 2, .. }));
    wrong.streams[1] = Stream { device: 0, beside: Some(7) };
    assert!(matches!(error(&[], &wrong), SimError::BadStream { stream: 1, beside: Some(7), .. }));
    let streams = vec![Stream { device: 0, beside: None }; 65_537];
    assert_eq!(error(&[], &Rules { streams, ..rules(0) }), SimError::TooManyStreams(65_537));
}

#[test]
fn forward_references() {
    for after in [1, 2] {
        let tasks = [compute(0, 1.0, &[]), compute(0, 1.0, &[0, after]), compute(0, 1.0, &[])];
        assert!(
            matches!(error(&tasks, &rules(1)), SimError::Forward { place, after: a } if place.id == 1 && a == after)
        );
    }
    let beyond = SimError::UnknownTask { place: Place { id: 0, task: compute(0, 1.0, &[4]) }, after: 4, tasks: 1 };
    assert_eq!(order(&[compute(0, 1.0, &[4])]), Err(beyond.clone()));
    assert_eq!(error(&[compute(0, 1.0, &[4])], &rules(1)), beyond);
}

#[test]
fn a_cycle_is_named() {
    // Each stream starts with what waits for the other's second task.
    let tasks = [compute(0, 1.0, &[3]), compute(0, 1.0, &[]), compute(1, 1.0, &[1]), compute(1, 1.0, &[])];
    let text = "task 0 (stream 0, 1 s, after 3) can never run: it waits for task 3 (stream 1, 1 s), which is listed \
                behind task 2 (stream 1, 1 s, after 1), which waits for task 1 (stream 0, 1 s), which is listed behind \
                task 0 again; drop one of these dependencies, or list the tasks of a stream in another order";
    assert_eq!(order(&tasks).unwrap_err().to_string(), text);
    let own = order(&[compute(0, 1.0, &[0])]).unwrap_err();
    assert!(own.to_string().starts_with("task 0 (stream 0, 1 s, after 0) can never run: it waits for task 0 again"));
}

#[test]
fn periods_that_are_none() {
    let tasks = [compute(0, 1.0, &[]), compute(0, 2.0, &[]), compute(0, 2.0, &[]), compute(1, 1.0, &[0])];
    let run = |start, length, copies, count| {
        let list = Periodic { tasks: &tasks, start, length, copies, count, settle: None };
        Simulator::new().run_periodic(&list, &rules(2)).map(|t| t.makespan)
    };
    for (start, length, copies, count) in
        [(1, 0, 1, 5), (1, 1, 0, 5), (1, 1, 3, 2), (1, 2, 2, 5), (u32::MAX, u32::MAX, u32::MAX, u32::MAX)]
    {
        assert!(matches!(run(start, length, copies, count), Err(SimError::BadPeriod { .. })));
    }
    assert!(matches!(run(0, 1, 2, 5), Err(SimError::UnequalCopies { place, last }) if place.id == 0 && last.id == 1));
    // Task 3 waits for task 0 of the prologue alone.
    assert!(matches!(run(1, 1, 2, 5), Err(SimError::EarlyEpilogue(place)) if place.id == 3));
    assert_eq!(run(0, 1, 1, 1), Ok(5.0));
}

#[test]
fn ordering_keeps_streams_and_lets_every_list_run() {
    for seed in 0..200 {
        let mut random = Random::new(seed);
        let rules = random_rules(&mut random);
        let list = random_list(&mut random, &rules);
        // The same tasks, stream by stream.
        let mut by_stream: Vec<usize> = (0..list.len()).collect();
        by_stream.sort_by_key(|id| list[*id].stream);
        let place = |id: TaskId| by_stream.iter().position(|i| *i == id as usize).unwrap() as TaskId;
        let moved: Vec<Task> =
            by_stream.iter().map(|id| Task { after: list[*id].after.map(|a| a.map(place)), ..list[*id] }).collect();
        let ordered = order(&moved).unwrap();
        let mut simulator = Simulator::new();
        let expected = simulator.run(&list, &rules).unwrap().clone();
        let timeline = simulator.run(&ordered.tasks, &rules).unwrap();
        for (at, id) in by_stream.iter().enumerate() {
            let (got, expected) = (timeline.end[ordered.place[at] as usize], expected.end[*id]);
            assert!(close(got, expected), "seed {seed}, task {id}: {got}, not {expected}");
        }
    }
}

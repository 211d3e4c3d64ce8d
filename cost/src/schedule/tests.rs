use super::*;
use crate::sim::{Contention, Periodic, Simulator, Timeline};
use Work::{Backward, BackwardInput, BackwardWeight, Forward};

/// Seconds of a stage for a micro-batch.
#[derive(Clone, Copy)]
struct Times {
    forward: f64,
    input: f64,
    weight: f64,
}

const EQUAL: Times = Times { forward: 1.0, input: 1.0, weight: 1.0 };

impl Times {
    fn of(self, work: Work) -> f64 {
        match work {
            Forward => self.forward,
            Backward => self.input + self.weight,
            BackwardInput => self.input,
            BackwardWeight => self.weight,
        }
    }

    fn all(self) -> f64 {
        self.forward + self.input + self.weight
    }
}

/// Plays a schedule of equal stages without contention. Each chunk takes its share of the stage's time.
fn play(kind: Kind, p: u32, v: u32, m: u32, times: Times, message: f64) -> Timeline {
    let steps = schedule(kind, p, v, m).unwrap();
    let lowered = lower(kind, &steps, |_, step| times.of(step.work) / f64::from(v), message).unwrap();
    Simulator::new().run(&lowered.tasks, &rules(p, Contention::NONE)).unwrap().clone()
}

/// Seconds of the step in which a stage has nothing to do, for equal stages.
fn bubble(kind: Kind, p: u32, v: u32, m: u32, times: Times) -> f64 {
    play(kind, p, v, m, times, 0.0).makespan - f64::from(m) * times.all()
}

fn close(a: f64, b: f64) -> bool {
    (a - b).abs() < 1e-9
}

/// All legal (stages, chunks, micro-batches) up to 8, 4 and 16.
fn shapes(kind: Kind) -> impl Iterator<Item = (u32, u32, u32)> {
    let all = (1..=8).flat_map(|p| (1..=4).flat_map(move |v| (1..=16).map(move |m| (p, v, m))));
    all.filter(move |(p, v, m)| match kind {
        Kind::Interleaved => m % p == 0,
        Kind::ZeroBubbleV | Kind::DualPipeV => *v == 2,
        _ => *v == 1,
    })
}

#[test]
fn every_step_is_there_once_and_none_waits_for_ever() {
    for kind in Kind::ALL {
        for (p, v, m) in shapes(kind) {
            let steps = schedule(kind, p, v, m).unwrap();
            for stage in &steps {
                let count =
                    |work, microbatch, chunk| stage.iter().filter(|s| **s == Step { work, microbatch, chunk }).count();
                for (microbatch, chunk) in (0..m).flat_map(|m| (0..v).map(move |c| (m, c))) {
                    let halves = (count(BackwardInput, microbatch, chunk), count(BackwardWeight, microbatch, chunk));
                    let whole = count(Backward, microbatch, chunk);
                    assert_eq!(count(Forward, microbatch, chunk), 1, "{kind} {p} {v} {m}");
                    assert_eq!(halves, (1 - whole, 1 - whole));
                    match kind {
                        Kind::ZeroBubbleH1 | Kind::ZeroBubbleV => assert_eq!(whole, 0),
                        Kind::DualPipeV => (),
                        _ => assert_eq!(whole, 1),
                    }
                }
                // No others.
                let halves = stage.iter().filter(|s| s.work == BackwardWeight).count();
                assert_eq!(stage.len(), (2 * m * v) as usize + halves);
            }
            for message in [0.0, 0.3] {
                let lowered = lower(kind, &steps, |_, _| 1.0, message);
                assert!(lowered.is_ok(), "{kind}, {p} stages, {v} chunks, {m}: {}", lowered.unwrap_err());
            }
        }
    }
}

#[test]
fn phases_give_the_lists() {
    for kind in Kind::ALL {
        for (p, v, m) in shapes(kind) {
            for (stage, steps) in (0..).zip(schedule(kind, p, v, m).unwrap()) {
                let expected = lists::list(kind, p, stage, v, m).unwrap_or_else(|| steps.clone());
                assert_eq!(steps, expected, "{kind}, {p} stages, {v} chunks, {m}: stage {stage}");
            }
        }
    }
}

#[test]
fn parts_and_holders_are_inverse() {
    for kind in Kind::ALL {
        for (p, v, _) in shapes(kind).filter(|s| s.2 == s.0) {
            for part in 0..p * v {
                let (stage, chunk) = kind.holder(p, part);
                assert_eq!(kind.part(p, stage, chunk), part);
                assert!(stage < p && chunk < v);
            }
        }
    }
}

#[test]
fn naive_uses_an_nth_of_n_stages() {
    for p in 1..=8 {
        let timeline = play(Kind::Naive, p, 1, 5, EQUAL, 0.0);
        let busy: f64 = timeline.busy.iter().sum();
        assert!(close(busy / (f64::from(p) * timeline.makespan), 1.0 / f64::from(p)));
    }
}

#[test]
fn four_stages_and_four_micro_batches_use_four_sevenths() {
    for kind in [Kind::GPipe, Kind::OneForwardOneBackward] {
        let timeline = play(kind, 4, 1, 4, EQUAL, 0.0);
        assert!(close(timeline.busy[0] / timeline.makespan, 4.0 / 7.0));
    }
}

#[test]
fn bubbles_are_the_textbooks() {
    let times = Times { forward: 1.0, input: 1.3, weight: 0.9 };
    for (p, v, m) in shapes(Kind::Interleaved) {
        let stages = f64::from(p - 1);
        if v == 1 {
            assert!(close(bubble(Kind::GPipe, p, 1, m, times), stages * times.all()));
            if m >= p {
                assert!(close(bubble(Kind::OneForwardOneBackward, p, 1, m, times), stages * times.all()));
            }
        }
        let interleaved = bubble(Kind::Interleaved, p, v, m, times);
        assert!(close(interleaved, stages * times.all() / f64::from(v)), "{p} {v} {m}: {interleaved}");
    }
    for (p, v, m) in shapes(Kind::ZeroBubbleH1).filter(|(p, _, m)| m >= p) {
        for times in [EQUAL, Times { forward: 1.0, input: 1.3, weight: 0.9 }] {
            let expected = f64::from(p - 1) * (times.all() - 2.0 * times.weight);
            let got = bubble(Kind::ZeroBubbleH1, p, v, m, times);
            assert!(close(got, expected), "{p} {m}: {got}, not {expected}");
        }
    }
}

#[test]
fn no_stage_of_a_v_waits_once_it_has_started() {
    for (p, _, m) in shapes(Kind::ZeroBubbleV).filter(|(p, _, m)| *m >= 2 * p - 1) {
        let steps = schedule(Kind::ZeroBubbleV, p, 2, m).unwrap();
        let lowered = lower(Kind::ZeroBubbleV, &steps, |_, _| 1.0, 0.0).unwrap();
        let mut simulator = Simulator::new();
        let timeline = simulator.run(&lowered.tasks, &rules(p, Contention::NONE)).unwrap();
        for (stage, tasks) in lowered.steps.iter().enumerate() {
            let (first, last) = (tasks[0] as usize, tasks[tasks.len() - 1] as usize);
            assert_eq!(timeline.end[last] - timeline.start[first], f64::from(6 * m), "{p} {m}, stage {stage}");
        }
    }
}

#[test]
fn micro_batches_in_flight_are_the_textbooks() {
    for kind in Kind::ALL {
        for (p, v, m) in shapes(kind) {
            for (stage, steps) in (0u32..).zip(schedule(kind, p, v, m).unwrap()) {
                let got = in_flight(&steps) as u32;
                let expected = match kind {
                    Kind::Naive => 1,
                    Kind::GPipe => m,
                    Kind::OneForwardOneBackward => m.min(p - stage),
                    // Warm-up and the forward after it; p + (p − 1) / v of a stage's micro-batches on the first.
                    Kind::Interleaved => (m * v).min(2 * (p - stage - 1) + (v - 1) * p + 1),
                    Kind::ZeroBubbleH1 => m.min(p),
                    // In chunks: p micro-batches on every stage, once there are enough.
                    Kind::ZeroBubbleV if m >= 2 * p - 1 => 2 * p,
                    // The README of DualPipe has p + 1, of 2p chunks.
                    Kind::DualPipeV if m >= 2 * p => 2 * p + 1,
                    Kind::ZeroBubbleV | Kind::DualPipeV => continue,
                };
                assert_eq!(got, expected, "{kind}, {p} stages, {v} chunks, {m}: stage {stage}");
            }
        }
    }
}

#[test]
fn messages_lengthen_the_way_there_and_back() {
    // Where stages wait for the last micro-batch's way back anyway, the messages of that way are all exposed.
    let (p, m, message) = (4, 16, 0.125);
    let without = play(Kind::GPipe, p, 1, m, EQUAL, 0.0).makespan;
    let with = play(Kind::GPipe, p, 1, m, EQUAL, message).makespan;
    assert!(close(with - without, f64::from(2 * (p - 1)) * message));
}

#[test]
fn what_there_is_not() {
    use ScheduleError::*;
    assert!(matches!(schedule(Kind::GPipe, 0, 1, 4), Err(Empty { .. })));
    assert!(matches!(schedule(Kind::GPipe, 4, 2, 4), Err(Chunks { needs: 1, .. })));
    assert!(matches!(schedule(Kind::ZeroBubbleV, 4, 1, 4), Err(Chunks { needs: 2, .. })));
    assert!(matches!(schedule(Kind::Interleaved, 4, 2, 6), Err(Groups { .. })));
    assert!(matches!(schedule(Kind::GPipe, u32::MAX, 1, u32::MAX), Err(TooMany { .. })));
    let mut steps = schedule(Kind::OneForwardOneBackward, 2, 1, 2).unwrap();
    let lower = |steps: &[Vec<Step>]| lower(Kind::OneForwardOneBackward, steps, |_, _| 1.0, 0.1).unwrap_err();
    let taken = steps[0].remove(0);
    assert!(matches!(lower(&steps), Missing { stage: 0, needs: Forward, part: 0, .. }));
    steps[0].extend([taken, taken]);
    assert!(matches!(lower(&steps), Twice { stage: 0, step } if step == taken));
    for step in
        [Step { work: Forward, microbatch: u32::MAX, chunk: 0 }, Step { work: Forward, microbatch: 0, chunk: u32::MAX }]
    {
        assert!(matches!(lower(&[vec![step]]), TooMany { .. } | Missing { .. }));
    }
    let third = [vec![Step { work: Forward, microbatch: 0, chunk: 2 }]];
    assert!(matches!(super::lower(Kind::ZeroBubbleV, &third, |_, _| 1.0, 0.0), Err(Missing { part: 1, .. })));
    // The last stage goes backward first.
    let mut steps = schedule(Kind::OneForwardOneBackward, 2, 1, 1).unwrap();
    steps[1].swap(0, 1);
    let text = "B0 of stage 1 comes after F0 of stage 1 comes after B0 of stage 1; no stage can go on: change the order of one";
    assert_eq!(lower(&steps).to_string(), text);
    assert!(matches!(super::lower(Kind::Naive, &vec![vec![]; 30_000], |_, _| 1.0, 0.0), Err(Stages(30_000))));
}

#[test]
fn repeating_parts_play_as_the_whole_schedule() {
    let times = Times { forward: 1.0, input: 1.3, weight: 0.9 };
    let uneven = |stage: u32, step: Step| {
        times.of(step.work) * (1.0 + 0.1 * f64::from(stage % 3) + 0.05 * f64::from(step.chunk))
    };
    let mut simulator = Simulator::new();
    let (mut played, mut skipped) = (0, 0);
    for kind in Kind::ALL {
        for (p, v) in (1..=8).flat_map(|p| (1..=4).map(move |v| (p, v))) {
            let m = 96 / p * p;
            if check_chunks(kind, v) || kind == Kind::GPipe {
                continue;
            }
            for (message, contention) in [(0.0, 1.0), (0.2, 1.1), (1.5, 1.0)] {
                let rules = rules(p, Contention { compute: contention, communication: contention });
                let repeated = lower_periodic(kind, p, v, m, uneven, message).unwrap();
                let Some(repeated) = repeated else {
                    assert!(p > 2, "{kind}, {p} stages, {v} chunks: nothing repeats");
                    continue;
                };
                let whole = lower(kind, &schedule(kind, p, v, m).unwrap(), uneven, message).unwrap();
                let timeline = simulator.run_periodic(&repeated.list(), &rules).unwrap();
                let (makespan, busy, skip) = (timeline.makespan, timeline.busy.clone(), timeline.skip);
                let expected = simulator.run(&whole.tasks, &rules).unwrap();
                let close = |a: f64, b: f64| (a - b).abs() < 1e-9 * expected.makespan;
                assert!(
                    close(makespan, expected.makespan),
                    "{kind}, {p} stages, {v} chunks, {message}: {makespan}, not {}",
                    expected.makespan
                );
                assert!(busy.iter().zip(&expected.busy).all(|(a, b)| close(*a, *b)));
                played += 1;
                skipped += usize::from(skip.is_some());
            }
        }
    }
    assert!(played > 100 && skipped > 80, "{played} played, {skipped} skipped");
}

/// Whether a kind has no schedule of so many chunks.
fn check_chunks(kind: Kind, v: u32) -> bool {
    schedule(kind, 1, v, 4).is_err()
}

#[test]
fn gpipe_has_no_part_that_repeats() {
    assert_eq!(lower_periodic(Kind::GPipe, 4, 1, 1000, |_, _| 1.0, 0.0), Ok(None));
    assert_eq!(lower_periodic(Kind::OneForwardOneBackward, 4, 1, 8, |_, _| 1.0, 0.0), Ok(None));
    assert!(matches!(
        lower_periodic(Kind::Interleaved, 4, 2, 1001, |_, _| 1.0, 0.0),
        Err(ScheduleError::Groups { .. })
    ));
}

#[test]
fn many_micro_batches_are_no_more_tasks() {
    for (kind, v) in
        [(Kind::OneForwardOneBackward, 1), (Kind::Interleaved, 4), (Kind::ZeroBubbleH1, 1), (Kind::ZeroBubbleV, 2)]
    {
        let (p, m) = (8, 32_768);
        let repeated =
            lower_periodic(kind, p, v, m, |_, step| EQUAL.of(step.work) / f64::from(v), 0.0).unwrap().unwrap();
        let mut simulator = Simulator::new();
        let timeline = simulator.run_periodic(&repeated.list(), &rules(p, Contention::NONE)).unwrap();
        let ideal = 3.0 * f64::from(m);
        let bubble = match kind {
            Kind::OneForwardOneBackward => 21.0,
            Kind::Interleaved => 21.0 / 4.0,
            Kind::ZeroBubbleH1 => 7.0,
            _ => timeline.makespan - ideal,
        };
        assert!((timeline.makespan - ideal - bubble).abs() < 1e-6, "{kind}: {}", timeline.makespan - ideal);
        let steps = (3 * v * p * 16 * p) as usize;
        assert!(timeline.end.len() < steps, "{kind}: {} tasks", timeline.end.len());
    }
}

#[test]
fn where_no_state_comes_back_a_mean_stands_for_it() {
    let uneven = |stage: u32, step: Step| EQUAL.of(step.work) * (1.0 + 0.1 * f64::from(stage % 3));
    let rules = rules(8, Contention { compute: 1.1256, communication: 1.1256 });
    let mut simulator = Simulator::new();
    for message in [0.2, 1.0] {
        let repeated = lower_periodic(Kind::OneForwardOneBackward, 8, 1, 8000, uneven, message).unwrap().unwrap();
        let timeline = simulator.run_periodic(&repeated.list(), &rules).unwrap();
        let (got, skip) = (timeline.makespan, timeline.skip.unwrap());
        assert!(!skip.exact && skip.periods >= 256, "{skip:?}");
        let exact = Periodic { settle: None, ..repeated.list() };
        let whole = simulator.run_periodic(&exact, &rules).unwrap();
        assert!(whole.skip.is_none());
        assert!((got / whole.makespan - 1.0).abs() < 2e-3, "{message}: {got}, not {}", whole.makespan);
    }
}

/// With equal thirds (p − 1) F of a chunk: less than (p − 1) (F&B + B − 3W), which the README of DualPipe gives with a
/// pair's overlap in F&B, as here a pair takes as long as its two steps.
#[test]
fn pairs_that_run_one_after_the_other_wait_little() {
    for (p, _, m) in shapes(Kind::DualPipeV).filter(|(p, _, m)| *m >= 2 * p) {
        let chunk = 2.0 * bubble(Kind::DualPipeV, p, 2, m, EQUAL);
        assert!(close(chunk, f64::from(p - 1)), "{p} {m}: {chunk}");
    }
}

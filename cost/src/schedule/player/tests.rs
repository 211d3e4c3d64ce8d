use super::super::{lower, rules, schedule};
use super::*;
use crate::sim::{Contention, Simulator};
use std::collections::HashMap;

/// Numbers that look random (SplitMix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: u32) -> u32 {
        (self.next() % u64::from(n)) as u32
    }

    fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// A pipeline and its costs, at random.
#[derive(Debug)]
struct Case {
    kind: Kind,
    stages: u32,
    chunks: u32,
    microbatches: u32,
    costs: Vec<Cost>,
    message: f64,
    blocking: bool,
}

impl Case {
    fn new(random: &mut Random, most: u32) -> Case {
        let kind = Kind::ALL[random.below(Kind::ALL.len() as u32) as usize];
        let stages = 1 + random.below(8);
        let chunks = match kind {
            Kind::Interleaved => 1 + random.below(4),
            Kind::ZeroBubbleV | Kind::DualPipeV => 2,
            _ => 1,
        };
        let round = if kind == Kind::Interleaved { stages } else { 1 };
        let microbatches = round * (1 + random.below(most / round));
        // Equal stages, stages that differ by little, by few steps of a grid, or by anything.
        let how = random.below(4);
        let mut factor = |_| match how {
            0 => 1.0,
            1 => 1.0 + 0.01 * random.unit(),
            2 => 1.0 + f64::from(random.below(3)) / 4.0,
            _ => 0.2 + random.unit(),
        };
        let factors: Vec<f64> = (0..stages * chunks).map(&mut factor).collect();
        let weight = [1.0, 0.9, 0.3][random.below(3) as usize];
        let late = random.below(3) == 0;
        let costs = factors.iter().map(|f| Cost {
            forward: *f,
            backward_input: 1.2 * f,
            backward_weight: weight * f,
            ready: if late { 20.0 * random.unit() } else { 0.0 },
        });
        let costs = costs.collect();
        let message = [0.0, 0.01, 0.3, 1.7][random.below(4) as usize];
        Case { kind, stages, chunks, microbatches, costs, message, blocking: random.below(2) == 0 }
    }

    fn pipeline(&self) -> Pipeline<'_> {
        let &Case { kind, stages, chunks, microbatches, ref costs, message, blocking } = self;
        Pipeline { kind, stages, chunks, microbatches, costs, message, blocking }
    }
}

/// What a stage does, where messages keep both sides.
enum Op {
    Compute(Step),
    /// A message to send, and one to receive, by part that receives, whether backward, and micro-batch.
    Exchange(Option<Message>, Option<Message>),
}

type Message = (u32, bool, u32);

fn receives(p: &Pipeline, stage: u32, step: Step) -> Option<Message> {
    let part = p.kind.part(p.stages, stage, step.chunk);
    match step.work {
        Work::Forward => (part > 0).then_some((part, false, step.microbatch)),
        Work::BackwardWeight => None,
        _ => (part + 1 < p.stages * p.chunks).then_some((part, true, step.microbatch)),
    }
}

fn sends(p: &Pipeline, stage: u32, step: Step) -> Option<Message> {
    let part = p.kind.part(p.stages, stage, step.chunk);
    match step.work {
        Work::Forward => (part + 1 < p.stages * p.chunks).then_some((part + 1, false, step.microbatch)),
        Work::BackwardWeight => None,
        _ => (part > 0).then(|| (part - 1, true, step.microbatch)),
    }
}

/// The steps of a stage with its messages, as Megatron-Core takes them.
fn operations(p: &Pipeline, stage: u32, steps: &[Step]) -> Vec<Op> {
    let mut ops = vec![];
    let mut sent: Option<Message> = None;
    for step in steps {
        let received = receives(p, stage, *step);
        match (sent, received) {
            (Some(a), Some(b)) if a.1 == b.1 => {
                ops.extend([Op::Exchange(sent, None), Op::Exchange(None, received)]);
            }
            _ => ops.push(Op::Exchange(sent, received)),
        }
        ops.push(Op::Compute(*step));
        sent = sends(p, stage, *step);
    }
    ops.push(Op::Exchange(sent, None));
    ops
}

/// Start and end of every stage, with every message as a meeting of two.
fn meetings(p: &Pipeline) -> Vec<(f64, f64)> {
    let steps = schedule(p.kind, p.stages, p.chunks, p.microbatches).unwrap();
    let ops: Vec<Vec<Op>> = (0..p.stages).map(|s| operations(p, s, &steps[s as usize])).collect();
    let mut next = vec![0; ops.len()];
    let mut free = vec![0.0f64; ops.len()];
    let mut start = vec![f64::NAN; ops.len()];
    let (mut senders, mut receivers) = (HashMap::<Message, f64>::new(), HashMap::<Message, f64>::new());
    while (0..ops.len()).any(|s| next[s] < ops[s].len()) {
        let before = next.clone();
        for s in 0..ops.len() {
            while let Some(op) = ops[s].get(next[s]) {
                match op {
                    Op::Compute(step) => {
                        let cost = &p.costs[s];
                        let ready = if step.work == Work::Forward { cost.ready } else { 0.0 };
                        let begin = free[s].max(ready);
                        start[s] = if start[s].is_nan() { begin } else { start[s] };
                        free[s] = begin + cost.seconds(step.work);
                    }
                    Op::Exchange(send, receive) => {
                        send.iter().for_each(|m| *senders.entry(*m).or_insert(free[s]) += 0.0);
                        receive.iter().for_each(|m| *receivers.entry(*m).or_insert(free[s]) += 0.0);
                        let both = |m: &Message| Some(senders.get(m)?.max(*receivers.get(m)?) + p.message);
                        let ends: Option<Vec<f64>> = send.iter().chain(receive).map(both).collect();
                        let Some(ends) = ends else { break };
                        free[s] = ends.into_iter().fold(free[s], f64::max);
                    }
                }
                next[s] += 1;
            }
        }
        assert_ne!(before, next, "{p:?} is stuck");
    }
    start.into_iter().zip(free).collect()
}

/// Start and end of every stage, of lists of all steps; where sends block, only their senders wait.
fn listed(p: &Pipeline) -> Vec<(f64, f64)> {
    let steps = schedule(p.kind, p.stages, p.chunks, p.microbatches).unwrap();
    let mut there = HashMap::<Message, f64>::new();
    let mut state = vec![(f64::NAN, 0.0f64, [0.0f64; 2], 0usize); steps.len()];
    while state.iter().zip(&steps).any(|(s, steps)| s.3 < steps.len()) {
        for (s, (start, free, queue, next)) in state.iter_mut().enumerate() {
            while let Some(step) = steps[s].get(*next) {
                let cost = &p.costs[s * p.chunks as usize + step.chunk as usize];
                let arrived = match receives(p, s as u32, *step).map(|m| there.get(&m)) {
                    Some(None) => break,
                    Some(Some(at)) => *at,
                    None => 0.0,
                };
                let ready = if step.work == Work::Forward { cost.ready } else { 0.0 };
                let begin = free.max(arrived).max(ready);
                *start = if start.is_nan() { begin } else { *start };
                *free = begin + cost.seconds(step.work);
                if let Some(message) = sends(p, s as u32, *step) {
                    let mut at = *free;
                    if p.kind.holder(p.stages, message.0).0 != s as u32 {
                        let queue = &mut queue[usize::from(message.1)];
                        *queue = queue.max(at) + p.message;
                        at = *queue;
                        *free = if p.blocking { at } else { *free };
                    }
                    there.insert(message, at);
                }
                *next += 1;
            }
        }
    }
    state.into_iter().map(|s| (s.0, s.1)).collect()
}

fn close(a: f64, b: f64) -> bool {
    (a - b).abs() <= 1e-9 * a.abs().max(b.abs())
}

/// End of every stage, as the simulator of tasks has it.
fn simulated(p: &Pipeline) -> Vec<f64> {
    let steps = schedule(p.kind, p.stages, p.chunks, p.microbatches).unwrap();
    let cost = |stage: u32, step: Step| p.costs[(stage * p.chunks + step.chunk) as usize].seconds(step.work);
    let lowered = lower(p.kind, &steps, cost, p.message).unwrap();
    let mut simulator = Simulator::new();
    let timeline = simulator.run(&lowered.tasks, &rules(p.stages, Contention::NONE)).unwrap();
    lowered.steps.iter().map(|tasks| timeline.end[tasks[tasks.len() - 1] as usize]).collect()
}

/// Holds two plays of a pipeline against each other.
fn same(got: &[StagePlay], expected: &[StagePlay]) -> bool {
    got.len() == expected.len()
        && got.iter().zip(expected).all(|(a, b)| {
            // Seconds of sending may be rounding alone.
            let sending = (a.sending - b.sending).abs() <= 1e-9 * b.end;
            close(a.start, b.start) && close(a.end, b.end) && close(a.busy, b.busy) && sending
        })
}

#[test]
fn plays_as_lists_do() {
    let (mut player, mut random) = (Player::default(), Random(1));
    let (mut left_out, mut tasks) = (0, 0);
    for round in 0..3000 {
        let case = Case::new(&mut random, 200);
        let p = case.pipeline();
        let expected = if p.blocking && p.chunks == 1 { meetings(&p) } else { listed(&p) };
        for record in [true, false] {
            let got: Vec<StagePlay> = player.play(&p, record).unwrap().to_vec();
            for (stage, (got, expected)) in got.iter().zip(&expected).enumerate() {
                assert!(
                    close(got.start, expected.0) && close(got.end, expected.1),
                    "{round}, {record}, stage {stage}: {got:?}, not {expected:?}, of {case:?}"
                );
            }
            if !p.blocking && p.costs.iter().all(|c| c.ready == 0.0) {
                assert!(got.iter().zip(simulated(&p)).all(|(a, b)| close(a.end, b)), "{round}: {case:?}");
                tasks += 1;
            }
        }
        assert!(player.exact());
        let all = schedule(p.kind, p.stages, p.chunks, p.microbatches).unwrap().iter().map(Vec::len).sum::<usize>();
        left_out += u32::from((player.steps() as usize) < all);
    }
    assert!(left_out > 1000 && tasks > 500, "{left_out} with something left out, {tasks} as tasks");
}

#[test]
fn what_is_left_out_is_what_would_be_played() {
    let (mut player, mut whole, mut random) = (Player::default(), Player::default(), Random(2));
    let mut periods = vec![];
    for round in 0..400 {
        let mut case = Case::new(&mut random, 200);
        // A multiple of all numbers of stages.
        case.microbatches = if round < 10 { 38 * 840 } else { 8 * 840 };
        let p = case.pipeline();
        let got: Vec<StagePlay> = player.play(&p, false).unwrap().to_vec();
        assert!(player.exact(), "{case:?}");
        assert!(same(&got, whole.play(&p, true).unwrap()), "{round}: {got:?} of {case:?}");
        // In micro-batches for each stage.
        periods.push(player.steps() as f64 / f64::from(2 * p.chunks * p.stages * p.stages));
    }
    // A stage that is slower by little than another builds up queues for long; all choices until then are few.
    periods.sort_by(f64::total_cmp);
    assert!(periods[200] < 8.0 && periods[399] < 80.0, "{} {}", periods[200], periods[399]);
}

#[test]
fn more_micro_batches_are_no_more_steps() {
    let mut player = Player::default();
    for kind in Kind::ALL {
        for (stages, message, spread) in [(8u32, 0.0, 0.0), (8, 0.2, 0.1), (4, 0.2, 0.1), (1, 0.0, 0.0)] {
            let chunks = match kind {
                Kind::Interleaved => 4,
                Kind::ZeroBubbleV | Kind::DualPipeV => 2,
                _ => 1,
            };
            let cost = |part: u32| {
                let f = 1.0 + spread * f64::from(part / chunks % 3);
                Cost { forward: f, backward_input: f, backward_weight: f, ready: 0.0 }
            };
            let costs: Vec<Cost> = (0..stages * chunks).map(cost).collect();
            let mut steps = |microbatches: u32, record: bool| {
                let p = Pipeline { kind, stages, chunks, microbatches, costs: &costs, message, blocking: false };
                let plays = player.play(&p, record).unwrap().to_vec();
                (plays, player.steps(), player.exact())
            };
            let (few, many, whole) = (steps(2048, false), steps(32_768, false), steps(32_768, true));
            // What is left of a multiple of the periods after which the state comes back.
            let rest = u64::from(6 * chunks * stages * stages);
            assert!(many.1 <= few.1 + rest, "{kind}, {stages} stages: {} and {}", few.1, many.1);
            assert!(many.2 && same(&many.0, &whole.0), "{kind}, {stages} stages: {:?}, not {:?}", many.0, whole.0);
            let all = 2.0 * f64::from(chunks * stages) * 32_768.0;
            assert!(whole.1 as f64 >= all && (many.1 as f64) < all / 100.0, "{kind}: {} of {}", many.1, whole.1);
        }
    }
}

#[test]
fn where_no_state_comes_back_soon_a_mean_stands_for_it() {
    let mut player = Player::default();
    // The state comes back after as many micro-batches as stages.
    let costs = vec![Cost { forward: 1.0, backward_input: 1.0, backward_weight: 1.0, ready: 0.0 }; 101];
    let p = Pipeline {
        kind: Kind::OneForwardOneBackward,
        stages: 101,
        chunks: 1,
        microbatches: 8000,
        costs: &costs,
        message: 0.3,
        blocking: false,
    };
    let got = player.play(&p, false).unwrap().to_vec();
    let (exact, steps) = (player.exact(), player.steps());
    let whole = player.play(&p, true).unwrap();
    assert!(!exact && steps < 2 * 101 * 1000, "{exact} {steps}");
    assert!((got[0].end / whole[0].end - 1.0).abs() < 2e-3, "{} not {}", got[0].end, whole[0].end);
}

/// A play of equal stages, F = 1, Bx = `input`, W = `weight` of a stage.
fn equal(kind: Kind, [p, v, m]: [u32; 3], input: f64, weight: f64, message: f64, blocking: bool) -> Vec<StagePlay> {
    let share = f64::from(v);
    let cost =
        Cost { forward: 1.0 / share, backward_input: input / share, backward_weight: weight / share, ready: 0.0 };
    let costs = vec![cost; (p * v) as usize];
    let p = Pipeline { kind, stages: p, chunks: v, microbatches: m, costs: &costs, message, blocking };
    Player::default().play(&p, false).unwrap().to_vec()
}

fn end(plays: &[StagePlay]) -> f64 {
    plays.iter().map(|p| p.end).fold(0.0, f64::max)
}

#[test]
fn bubbles_are_the_textbooks() {
    for p in 1..=8 {
        let naive = equal(Kind::Naive, [p, 1, 32], 1.0, 1.0, 0.0, false);
        assert!(close(naive.iter().map(|s| s.busy).sum::<f64>() / (f64::from(p) * end(&naive)), 1.0 / f64::from(p)));
        for m in [16, 48, 4800] {
            let (m, stages) = (m * p, f64::from(p - 1));
            let bubble = |kind, v| end(&equal(kind, [p, v, m], 1.3, 0.9, 0.0, false)) - 3.2 * f64::from(m);
            let near = |a: f64, b: f64| (a - b).abs() < 1e-9 * f64::from(m);
            assert!(near(bubble(Kind::GPipe, 1), 3.2 * stages));
            assert!(near(bubble(Kind::OneForwardOneBackward, 1), 3.2 * stages));
            assert!(near(bubble(Kind::ZeroBubbleH1, 1), (3.2 - 2.0 * 0.9) * stages));
            for v in 1..=4 {
                assert!(near(bubble(Kind::Interleaved, v), 3.2 * stages / f64::from(v)));
            }
            let vee = equal(Kind::ZeroBubbleV, [p, 2, m], 1.0, 1.0, 0.0, false);
            assert!(vee.iter().all(|s| near(s.end - s.start, s.busy)));
        }
    }
    for kind in [Kind::GPipe, Kind::OneForwardOneBackward] {
        let plays = equal(kind, [4, 1, 4], 1.0, 1.0, 0.0, false);
        assert!(close(plays[0].busy / end(&plays), 4.0 / 7.0));
    }
}

/// Micro-batches of interleaved schedules are a multiple of the stages, and need be none of stages times chunks.
#[test]
fn interleaved_takes_groups_of_as_many_micro_batches_as_stages() {
    for m in [8, 12, 16] {
        let plays = equal(Kind::Interleaved, [4, 2, m], 1.0, 1.0, 0.0, false);
        let bubble = (end(&plays) - plays[0].busy) / plays[0].busy;
        assert!(close(bubble, 3.0 / (2.0 * f64::from(m))), "{m}: {bubble}");
    }
    assert!(close(3.0 / (2.0 * 12.0), 0.125));
    let costs = [Cost::default(); 8];
    let kind = Kind::Interleaved;
    let p = Pipeline { kind, stages: 4, chunks: 2, microbatches: 6, costs: &costs, message: 0.0, blocking: false };
    let error = Player::default().play(&p, false).unwrap_err();
    assert_eq!(error, ScheduleError::Groups { stages: 4, microbatches: 6 });
    assert!(error.to_string().contains("multiple of 4") && error.to_string().ends_with("4 or 8"), "{error}");
    let few = ScheduleError::Groups { stages: 4, microbatches: 3 }.to_string();
    assert!(few.ends_with("): 4"), "{few}");
}

#[test]
fn messages_that_block_keep_both_sides() {
    // There and back: every message is exposed, and is its sender's time.
    let plays = equal(Kind::OneForwardOneBackward, [2, 1, 1], 1.0, 1.0, 0.5, true);
    assert_eq!([plays[0].start, plays[0].end, plays[0].sending], [0.0, 7.0, 0.5]);
    assert_eq!([plays[1].start, plays[1].end, plays[1].sending], [1.5, 5.0, 0.5]);
    // The first stage's second message waits until the second has done its first forward.
    let of = |forward: f64| Cost { forward, backward_input: 1.0, backward_weight: 1.0, ready: 0.0 };
    let costs = [of(1.0), of(3.0)];
    let kind = Kind::GPipe;
    let p = Pipeline { kind, stages: 2, chunks: 1, microbatches: 2, costs: &costs, message: 0.5, blocking: true };
    let mut player = Player::default();
    let plays = player.play(&p, true).unwrap();
    assert_eq!(plays[0].sending, 0.5 + 2.5);
    let second = player.events().iter().filter(|e| e.stage == 1).nth(1).unwrap();
    assert_eq!((second.start, second.end), (5.0, 8.0));
    // Many micro-batches: between a forward and a backward, a stage sends and receives at once.
    let plays = equal(Kind::OneForwardOneBackward, [2, 1, 1000], 1.0, 1.0, 0.5, true);
    let period = (end(&plays) - end(&equal(Kind::OneForwardOneBackward, [2, 1, 900], 1.0, 1.0, 0.5, true))) / 100.0;
    assert!(close(period, 3.0 + 0.5), "{period}");
}

#[test]
fn what_cannot_be_played() {
    let costs = [Cost { forward: 1.0, ..Cost::default() }; 2];
    let kind = Kind::GPipe;
    let good = Pipeline { kind, stages: 2, chunks: 1, microbatches: 3, costs: &costs, message: 0.1, blocking: false };
    let mut player = Player::default();
    let mut error = |p: Pipeline| player.play(&p, false).unwrap_err();
    let few = error(Pipeline { stages: 3, ..good });
    assert_eq!(few.to_string(), "2 costs for 3 stages of 1 chunks; give one for each chunk, stage by stage");
    let bad = [costs[0], Cost { ready: f64::NAN, ..costs[0] }];
    let nan = error(Pipeline { costs: &bad, ..good });
    assert_eq!(nan.to_string(), "stage 1, chunk 0: NaN s is no time; it has to be finite and 0 or more");
    assert_eq!(error(Pipeline { message: -1.0, ..good }), ScheduleError::Message(-1.0));
    assert!(matches!(error(Pipeline { microbatches: u32::MAX, ..good }), ScheduleError::TooMany { .. }));
    assert!(matches!(error(Pipeline { microbatches: 0, ..good }), ScheduleError::Empty { .. }));
    assert!(matches!(error(Pipeline { stages: u32::MAX, ..good }), ScheduleError::TooMany { .. }));
}

use super::*;
use autoshard_ir::core::{DType, Type};
use autoshard_ir::program::{Buf, Collective, ProgramFunction};

fn event(kind: CollectiveKind, axes: &[&str], bytes: usize, name: &str) -> Event {
    let axes = axes.iter().map(|a| Axis::new(a)).collect();
    Event { kind, axes, bytes_in: bytes, bytes_out: bytes, name: name.into() }
}

fn reduce(axes: &[&str], name: &str) -> Event {
    event(CollectiveKind::AllReduce, axes, 64, name)
}

fn mesh() -> Mesh {
    Mesh::new(&[("dp", 2), ("tp", 2)])
}

/// Each event waited for at once.
fn at_once(events: &[Event]) -> Vec<Move> {
    let both = |(i, e): (usize, &Event)| [Move::Issue(e.clone()), Move::Wait(i)];
    events.iter().enumerate().flat_map(both).collect()
}

/// All events issued, then all waited for.
fn late(events: &[Event]) -> Vec<Move> {
    let issues = events.iter().map(|e| Move::Issue(e.clone()));
    issues.chain((0..events.len()).map(Move::Wait)).collect()
}

/// All ranks with the same three events.
fn lists() -> Vec<Vec<Event>> {
    vec![vec![reduce(&["tp"], "%a"), reduce(&["dp"], "%b"), reduce(&["dp", "tp"], "%c")]; 4]
}

fn message(lists: &[Vec<Event>]) -> String {
    let lists: Vec<Vec<Move>> = lists.iter().map(|l| at_once(l)).collect();
    play(&mesh(), &lists).expect_err("must not end").to_string()
}

#[test]
fn equal_lists_end() {
    let waits = [at_once, late];
    for list in waits.iter().map(|w| lists().iter().map(|l| w(l)).collect::<Vec<_>>()) {
        let report = play(&mesh(), &list);
        assert_eq!(report, Ok(PlayReport { ranks: 4, events: 12, meetings: 2 + 2 + 1 }));
    }
}

/// When a rank waits does not change what meets what: communication runs in the order of its issues.
#[test]
fn ranks_may_wait_at_different_times() {
    let mut l: Vec<Vec<Move>> = lists().iter().map(|l| late(l)).collect();
    l[1] = at_once(&lists()[1]);
    l[2] = vec![l[2][0].clone(), l[2][1].clone(), Move::Wait(1), l[2][2].clone(), Move::Wait(0), Move::Wait(2)];
    assert_eq!(play(&mesh(), &l).map(|r| r.events), Ok(12));
    // Two orders of issues are a deadlock even if nobody waits before the end.
    let mut l: Vec<Vec<Move>> = lists().iter().map(|l| late(l)).collect();
    l[0].swap(0, 1);
    l[3].swap(0, 1);
    let error = play(&mesh(), &l).expect_err("must not end").to_string();
    assert!(error.starts_with("deadlock: rank 0 waits in all_reduce %b over dp (event 0) for rank 2"), "{error}");
}

#[test]
fn every_event_is_waited_for_once_after_its_issue() {
    let whole: Vec<Vec<Move>> = lists().iter().map(|l| late(l)).collect();
    let broken = |change: &dyn Fn(&mut Vec<Move>)| {
        let mut l = whole.clone();
        change(&mut l[2]);
        play(&mesh(), &l).expect_err("must not end").to_string()
    };
    assert_eq!(broken(&|l| l[4] = Move::Wait(0)), "rank 2: waits twice for event 0");
    assert_eq!(broken(&|l| l.swap(2, 5)), "rank 2: waits without end for event 2");
    assert_eq!(broken(&|l| drop(l.remove(4))), "rank 2: never waits for event 1");
}

#[test]
fn a_wrong_kind_names_both_ranks() {
    let mut l = lists();
    l[3][1].kind = CollectiveKind::AllGather;
    assert_eq!(
        message(&l),
        "rank 1 is in all_reduce %b over dp, rank 3 in all_gather %b over dp: kind all_reduce against all_gather"
    );
}

#[test]
fn a_wrong_size_names_both_sizes() {
    let mut l = lists();
    l[1][0].bytes_out = 128;
    assert_eq!(
        message(&l),
        "rank 0 is in all_reduce %a over tp, rank 1 in all_reduce %a over tp: 64 against 128 bytes out"
    );
}

#[test]
fn a_missing_collective_is_waited_for() {
    let mut l = lists();
    l[2].remove(0);
    // Rank 2 is a step ahead: it meets rank 0 over dp, then ends in the wrong group.
    assert_eq!(
        message(&l),
        "deadlock: rank 1 waits in all_reduce %b over dp (event 1) for rank 3, which waits in all_reduce %a over tp \
         (event 0) for rank 2, which waits in all_reduce %c over dp·tp (event 1) for rank 1"
    );
    let mut l = lists();
    l[2].pop();
    assert_eq!(
        message(&l),
        "deadlock: rank 0 waits in all_reduce %c over dp·tp (event 2) for rank 2, which has finished"
    );
}

#[test]
fn swapped_collectives_print_the_cycle() {
    let mut l = lists();
    l[0].swap(0, 1);
    l[3].swap(0, 1);
    assert_eq!(
        message(&l),
        "deadlock: rank 0 waits in all_reduce %b over dp (event 0) for rank 2, which waits in all_reduce %a over \
         tp (event 0) for rank 3, which waits in all_reduce %b over dp (event 0) for rank 1, which waits in \
         all_reduce %a over tp (event 0) for rank 0"
    );
}

#[test]
fn lists_and_axes_must_fit_the_mesh() {
    assert_eq!(message(&lists()[..3]), "the mesh [dp: 2, tp: 2] has 4 ranks, but 3 of them have events");
    let mut l = lists();
    l[1][2].axes[0] = Axis::new("pp");
    assert_eq!(message(&l), "rank 1: all_reduce %c over pp·tp: axis pp is not in the mesh");
    l[1][2].axes[0] = Axis::new("tp");
    assert_eq!(message(&l), "rank 1: all_reduce %c over tp·tp: axis tp is named twice");
}

/// `entry` calls `body` `calls` times; the body reduces over tp, then keeps its part (local).
fn program(calls: usize) -> Program {
    let whole = Type::new(DType::F32, &[("d", 64)]);
    let mut split = whole.clone();
    split.dims[0].axes = vec![Axis::new("tp")];
    let collective = |kind, from: &Type, to: &Type, name: &str| Collective {
        kind,
        axes: vec![Axis::new("tp")],
        from: from.clone(),
        to: to.clone(),
        name: name.into(),
        control: false,
    };
    let step = |collective, from, to| Step::Issue { collective, input: Buf::Frame(from), output: Buf::Frame(to) };
    let function = |name: &str, steps| ProgramFunction {
        name: name.into(),
        params: vec![],
        results: vec![],
        in_place: vec![],
        consumed: vec![],
        frame: 512,
        steps,
    };
    let call = Step::Call { function: 0, args: vec![], results: vec![] };
    let mut steps = vec![call; calls];
    // The gather is under way while the calls run.
    steps.insert(0, step(0, 256, 0));
    steps.push(Step::Wait { issue: 0 });
    Program {
        mesh: Mesh::new(&[("dp", 100), ("tp", 8)]),
        kernels: vec![],
        collectives: vec![
            collective(CollectiveKind::AllGather, &split, &whole, "%g"),
            collective(CollectiveKind::Local, &whole, &split, "%l"),
            collective(CollectiveKind::AllReduce, &whole, &whole, "%r"),
        ],
        functions: vec![
            function("body", vec![step(2, 0, 256), Step::Wait { issue: 0 }, step(1, 256, 0), Step::Wait { issue: 2 }]),
            function("entry", steps),
        ],
        entry: 1,
    }
}

#[test]
fn calls_are_inlined_and_sizes_are_those_of_the_full_mesh() {
    let p = program(2);
    let all = moves(&p);
    let got: Vec<&Event> = events(&all).collect();
    assert_eq!(got.iter().map(|e| e.name.as_str()).collect::<Vec<_>>(), ["%g", "%r", "%r"]);
    assert_eq!((got[0].bytes_in, got[0].bytes_out), (32, 256));
    let waits: Vec<usize> = all.iter().filter_map(|m| if let Move::Wait(n) = m { Some(*n) } else { None }).collect();
    assert_eq!(waits, [1, 2, 0]);
    assert_eq!(verify(&p), Ok(PlayReport { ranks: 3, events: 9, meetings: 3 }));
}

#[test]
fn recursion_ends() {
    let mut p = program(1);
    p.functions[0].steps.push(Step::Call { function: 0, args: vec![], results: vec![] });
    assert_eq!(events(&moves(&p)).count(), 2);
}

#[test]
fn large_programs_are_played_quickly() {
    let mesh = Mesh::new(&[("dp", 3), ("cp", 3), ("tp", 3), ("ep", 3)]);
    let axes: [&[&str]; 4] = [&["tp"], &["dp", "cp"], &["ep"], &["cp"]];
    let list: Vec<Event> = (0..10_000).map(|i| reduce(axes[i % 4], "%x")).collect();
    let start = std::time::Instant::now();
    let report = play(&mesh, &vec![at_once(&list); mesh.ranks()]).expect("ends");
    assert_eq!(report.events, 810_000);
    assert!(start.elapsed().as_secs() < 20, "{:?}", start.elapsed());
}

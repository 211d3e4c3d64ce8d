//! Mismatches, missing ranks, panics: everyone stops, and the first cause has names. Messages between
//! ranks.

mod common;

use autoshard_ir::program::{Collective, CollectiveKind::*};
use autoshard_ir::{DType, Mesh};
use autoshard_runtime::comm::{CollectivePlan, Comm, CommError, Ticket, World};
use common::*;
use std::sync::Arc;
use std::time::{Duration, Instant};

fn world(ranks: usize, millis: u64) -> World {
    World::new(&Mesh::new(&[("a", ranks)]), Duration::from_millis(millis)).unwrap()
}

fn gather(name: &str) -> Arc<Collective> {
    let (from, to) = (ty(DType::F64, &[(6, "a")], ""), ty(DType::F64, &[(6, "")], ""));
    Arc::new(Collective { name: name.into(), ..collective(AllGather, "a", from, to) })
}

fn reduce() -> Arc<Collective> {
    let (from, to) = (ty(DType::F64, &[(6, "")], "a"), ty(DType::F64, &[(6, "")], ""));
    Arc::new(collective(AllReduce, "a", from, to))
}

/// Two buffers per rank, large enough for the collectives above.
fn buffers(ranks: usize) -> Vec<[[f64; 6]; 2]> {
    vec![[[1.0; 6]; 2]; ranks]
}

fn go(comm: &mut Comm, c: &Arc<Collective>, b: &mut [[f64; 6]; 2]) -> Result<(), CommError> {
    let plan = CollectivePlan::new(comm.world(), comm.rank(), c)?;
    let (input, output) = (b[0].as_ptr().cast(), b[1].as_mut_ptr().cast());
    // SAFETY: six elements suffice; the buffers outlive the run.
    unsafe { comm.collective(&plan, input, output) }
}

#[test]
fn different_collectives_are_named_with_their_ranks() {
    let (w, start) = (world(3, 60_000), Instant::now());
    let (one, two) = (gather("x"), reduce());
    let mut b = buffers(3);
    let run = w.run(b.iter_mut().collect(), |comm, b: &mut [[f64; 6]; 2]| {
        go(comm, if comm.rank() == 1 { &two } else { &one }, b)
    });
    let error = run.unwrap_err();
    assert!(matches!(&error, CommError::Mismatch { rank, other, .. } if (*rank == 1) != (*other == 1)), "{error}");
    let text = error.to_string();
    assert!(text.contains("all_gather %x over a: f64[d0=6@a]") && text.contains("all_reduce %x over a"), "{text}");
    assert!(start.elapsed() < Duration::from_secs(10), "nobody waited for the watchdog");
    // The world stays stopped, and says why.
    let again = w.run(vec![(); 3], |_, ()| Ok::<_, CommError>(())).unwrap_err();
    assert_eq!(again, CommError::Stopped(Box::new(error)));
}

#[test]
fn another_name_is_a_mismatch_too() {
    let w = world(2, 60_000);
    let (one, two) = (gather("x"), gather("y"));
    let mut b = buffers(2);
    let run = w.run(b.iter_mut().collect(), |comm, b: &mut [[f64; 6]; 2]| {
        go(comm, if comm.rank() == 1 { &two } else { &one }, b)
    });
    assert!(matches!(run, Err(CommError::Mismatch { .. })));
}

#[test]
fn the_watchdog_names_arrived_and_missing() {
    let (w, c) = (world(3, 200), gather("h"));
    let mut b = buffers(3);
    let run = w.run(b.iter_mut().collect(), |comm, b: &mut [[f64; 6]; 2]| match comm.rank() {
        1 => Ok(()),
        _ => go(comm, &c, b),
    });
    let error = run.unwrap_err();
    let CommError::Timeout { call, arrived, missing, waited, whereabouts, meeting } = &error else {
        panic!("{error}");
    };
    assert!(call.starts_with("all_gather %h over a: f64"), "{call}");
    assert_eq!((&arrived[..], &missing[..], *meeting), (&[0, 2][..], &[1][..], 0));
    assert!(*waited >= Duration::from_millis(200), "{waited:?}");
    assert_eq!(whereabouts, "rank 1 has finished");
}

#[test]
fn a_deadlock_over_two_groups_ends() {
    let mesh = Mesh::new(&[("a", 2), ("b", 2)]);
    let w = World::new(&mesh, Duration::from_millis(200)).unwrap();
    let over = |axis: &str| {
        let (from, to) = (ty(DType::F64, &[(6, axis)], ""), ty(DType::F64, &[(6, "")], ""));
        Arc::new(collective(AllGather, axis, from, to))
    };
    let (a, b) = (over("a"), over("b"));
    let mut memory = buffers(4);
    let run = w.run(memory.iter_mut().collect(), |comm, m: &mut [[f64; 6]; 2]| {
        go(comm, if comm.rank() == 0 { &a } else { &b }, m)
    });
    let text = run.unwrap_err().to_string();
    // Rank 0 waits for 2 over a, rank 1 waits for 0 over b.
    assert!(
        text.contains("ranks [0] arrived, ranks [2] are missing") || text.contains("ranks [1] arrived, ranks [0]"),
        "{text}"
    );
}

#[test]
fn a_panic_stops_the_waiting_ranks() {
    let (w, c, start) = (world(3, 60_000), gather("x"), Instant::now());
    let mut b = buffers(3);
    let run = w.run(b.iter_mut().collect(), |comm, b: &mut [[f64; 6]; 2]| {
        if comm.rank() == 2 {
            std::thread::sleep(Duration::from_millis(50));
            panic!("index {} is broken", 7);
        }
        go(comm, &c, b)
    });
    assert_eq!(run, Err(CommError::Panic { rank: 2, message: "index 7 is broken".into() }));
    assert!(start.elapsed() < Duration::from_secs(10));
}

#[test]
fn an_error_of_one_rank_stops_the_others() {
    let (w, c) = (world(2, 60_000), gather("x"));
    let mut b = buffers(2);
    let run = w.run(b.iter_mut().collect(), |comm, b: &mut [[f64; 6]; 2]| match comm.rank() {
        0 => go(comm, &c, b),
        _ => Err(CommError::Rank { rank: 1, message: "disk full".into() }),
    });
    assert_eq!(run.unwrap_err().to_string(), "rank 1 failed: disk full");
}

#[test]
fn overlapping_buffers_are_refused() {
    let (w, c) = (world(2, 5_000), gather("x"));
    let mut b = buffers(2);
    let run = w.run(b.iter_mut().collect(), |comm, b: &mut [[f64; 6]; 2]| {
        let plan = CollectivePlan::new(comm.world(), comm.rank(), &c)?;
        let p: *mut u8 = b[1].as_mut_ptr().cast();
        // SAFETY: refused before any access.
        unsafe { comm.collective(&plan, p.add(16), p) }
    });
    assert!(matches!(run, Err(CommError::Overlap { .. })));
}

/// Issues a collective of `b[0]` into `b[1]` to be waited for later.
fn issue(comm: &mut Comm, c: &Arc<Collective>, b: &mut [[f64; 6]; 2]) -> Result<Ticket, CommError> {
    let plan = Arc::new(CollectivePlan::new(comm.world(), comm.rank(), c)?);
    let (input, output) = (b[0].as_ptr().cast(), b[1].as_mut_ptr().cast());
    // SAFETY: as in `go`.
    let ticket = unsafe { comm.issue(&plan, input, output, false) };
    // Some of what is issued runs when the rank waits, the rest beside it.
    if c.name != "late" {
        comm.start();
    }
    ticket
}

#[test]
fn what_is_issued_runs_in_order_and_is_counted_in_order() {
    let w = world(3, 20_000);
    let all: Vec<_> = (0..20)
        .map(|i| match i % 4 {
            1 | 3 => reduce(),
            2 => gather("late"),
            _ => gather("x"),
        })
        .collect();
    let mut memory: Vec<_> = (0..3).map(|rank| vec![[[rank as f64 + 1.0; 6], [0.0; 6]]; 20]).collect();
    let results = w.run(memory.iter_mut().collect(), |comm, memory: &mut Vec<[[f64; 6]; 2]>| {
        let mut tickets = Vec::new();
        for (c, b) in all.iter().zip(memory.iter_mut()) {
            tickets.push(issue(comm, c, b)?);
            // Ranks are not equally fast.
            std::thread::sleep(Duration::from_micros(300 * comm.rank() as u64));
        }
        // Waits may come in any order.
        while let Some(ticket) = tickets.pop() {
            comm.wait(ticket)?;
        }
        go(comm, &all[0], &mut memory[0])?;
        Ok::<_, CommError>((memory.iter().map(|b| b[1]).collect::<Vec<_>>(), comm.counts.clone()))
    });
    for (outputs, counts) in results.unwrap() {
        for (i, out) in outputs.iter().enumerate() {
            let want = if i % 2 == 0 { [1.0, 1.0, 2.0, 2.0, 3.0, 3.0] } else { [6.0; 6] };
            assert_eq!(*out, want, "{i}");
        }
        let kinds: Vec<_> = counts.collectives.iter().map(|c| c.kind).collect();
        assert_eq!(kinds, [["all_gather", "all_reduce"].repeat(10), vec!["all_gather"]].concat());
        assert!(counts.waiting <= counts.communicating && !counts.exposed.is_zero());
    }
    // The threads stay for the next run.
    let mut b = buffers(3);
    let again = w.run(b.iter_mut().collect(), |comm, b: &mut [[f64; 6]; 2]| {
        let ticket = issue(comm, &all[0], b)?;
        comm.wait(ticket)
    });
    assert_eq!(again, Ok(vec![(); 3]));
}

#[test]
fn an_error_beside_the_computation_stops_all_and_is_told() {
    let (w, c, start) = (world(2, 60_000), gather("x"), Instant::now());
    let mut b = buffers(2);
    let run = w.run(b.iter_mut().collect(), |comm, b: &mut [[f64; 6]; 2]| {
        let plan = Arc::new(CollectivePlan::new(comm.world(), comm.rank(), &c)?);
        let p: *mut u8 = b[1].as_mut_ptr().cast();
        let input = if comm.rank() == 1 { p } else { b[0].as_mut_ptr().cast() };
        // SAFETY: rank 1 is refused before any access.
        let ticket = unsafe { comm.issue(&plan, input, p, false)? };
        comm.start();
        // The rank computes until it hears of it, as the executor does.
        while comm.world().check().is_ok() {
            std::thread::sleep(Duration::from_millis(1));
        }
        comm.world().check()?;
        comm.wait(ticket)
    });
    assert!(matches!(&run, Err(CommError::Overlap { rank: 1, .. })), "{run:?}");
    assert!(start.elapsed() < Duration::from_secs(10), "nobody waited for the watchdog");
}

#[test]
fn different_issues_are_named_with_their_ranks() {
    let (w, one, two) = (world(2, 60_000), gather("x"), gather("y"));
    let mut b = buffers(2);
    let run = w.run(b.iter_mut().collect(), |comm, b: &mut [[f64; 6]; 2]| {
        let ticket = issue(comm, if comm.rank() == 1 { &two } else { &one }, b)?;
        comm.wait(ticket)
    });
    let text = run.unwrap_err().to_string();
    assert!(text.contains("all_gather %x over a") && text.contains("all_gather %y over a"), "{text}");
}

#[test]
fn the_watchdog_names_a_rank_that_never_issues() {
    for busy in [false, true] {
        let (w, c) = (world(3, 200), gather("h"));
        let mut b = buffers(3);
        let run = w.run(b.iter_mut().collect(), |comm, b: &mut [[f64; 6]; 2]| {
            if comm.rank() == 1 {
                while busy && comm.world().check().is_ok() {
                    std::thread::sleep(Duration::from_millis(5));
                }
                return Ok(());
            }
            let ticket = issue(comm, &c, b)?;
            comm.wait(ticket)
        });
        let error = run.unwrap_err();
        let CommError::Timeout { call, arrived, missing, whereabouts, .. } = &error else {
            panic!("{error}");
        };
        assert!(call.starts_with("all_gather %h over a: f64"), "{call}");
        assert_eq!((&arrived[..], &missing[..]), (&[0, 2][..], &[1][..]));
        assert_eq!(whereabouts, if busy { "rank 1 is computing" } else { "rank 1 has finished" });
    }
}

#[test]
fn a_rank_that_fails_drops_what_it_has_issued() {
    let (w, c, start) = (world(3, 60_000), gather("x"), Instant::now());
    let mut b = buffers(3);
    let run = w.run(b.iter_mut().collect(), |comm, b: &mut [[f64; 6]; 2]| {
        let _first = issue(comm, &c, b)?;
        match comm.rank() {
            0 => Err(CommError::Rank { rank: 0, message: "disk full".into() }),
            1 => panic!("index {} is broken", 7),
            _ => issue(comm, &c, b).and_then(|t| comm.wait(t)),
        }
    });
    let text = run.unwrap_err().to_string();
    assert!(text == "rank 0 failed: disk full" || text == "rank 1 panicked: index 7 is broken", "{text}");
    assert!(start.elapsed() < Duration::from_secs(10));
}

#[test]
fn meshes_that_cannot_be_are_refused() {
    let refuse = |axes: &[(&str, usize)]| World::new(&Mesh::new(axes), Duration::ZERO).unwrap_err().to_string();
    assert!(refuse(&[("a", 2), ("b", 0)]).contains("axis b has size 0"));
    assert!(refuse(&[("a", 2), ("a", 2)]).contains("axis a appears twice"));
    assert!(refuse(&[("a", usize::MAX), ("b", 9)]).contains("at most 4096"));
    let run = world(2, 10).run(vec![(); 3], |_, ()| Ok::<_, CommError>(()));
    assert_eq!(run, Err(CommError::Ranks { given: 3, ranks: 2 }));
}

#[test]
fn messages_arrive_in_order_and_are_counted_once() {
    let w = world(2, 5_000);
    let counts = w.run(vec![(); 2], |comm, ()| {
        // Both send first: sends do not wait for receivers.
        let (me, other) = (comm.rank(), 1 - comm.rank());
        for i in 0..40u8 {
            comm.send(other, &format!("x{i}"), &[me as u8, i])?;
        }
        for i in 0..40u8 {
            let mut out = [0; 2];
            comm.receive(other, &format!("x{i}"), "pp", &mut out)?;
            assert_eq!(out, [other as u8, i]);
        }
        Ok::<_, CommError>(comm.counts.clone())
    });
    for n in counts.unwrap() {
        assert_eq!((n.payload["pp"], n.wire["pp"], n.collectives.len()), (80, 80, 40));
    }
}

#[test]
fn a_fast_sender_waits_for_a_slow_receiver() {
    let w = world(2, 5_000);
    let run = w.run(vec![(); 2], |comm, ()| {
        for i in 0..1000u32 {
            let mut out = [0; 4];
            match comm.rank() {
                0 => comm.send(1, "x", &i.to_le_bytes())?,
                _ => comm.receive(0, "x", "pp", &mut out)?,
            }
            assert!(comm.rank() == 0 || u32::from_le_bytes(out) == i);
        }
        Ok::<_, CommError>(())
    });
    run.unwrap();
}

#[test]
fn wrong_and_missing_messages_have_names() {
    let wrong = world(2, 5_000).run(vec![(); 2], |comm, ()| match comm.rank() {
        0 => comm.send(1, "grad", &[0; 16]),
        _ => comm.receive(0, "act", "pp", &mut [0; 8]),
    });
    let text = wrong.unwrap_err().to_string();
    assert_eq!(text, "rank 1 expected act (8 bytes) from rank 0, which sent grad (16 bytes)");
    let missing = world(2, 200).run(vec![(); 2], |comm, ()| match comm.rank() {
        0 => Ok(()),
        _ => comm.receive(0, "act", "pp", &mut [0; 8]),
    });
    let error = missing.unwrap_err();
    assert!(matches!(&error, CommError::Timeout { missing, .. } if missing == &[0]), "{error}");
    assert!(error.to_string().contains("message %act from rank 0 to rank 1"), "{error}");
    let nobody = world(2, 200).run(vec![(); 2], |comm, ()| comm.send(5, "x", &[]));
    assert!(matches!(nobody, Err(CommError::NoRank { rank: 5, .. })));
}

#[test]
fn broadcast_reaches_the_group_and_exchange_the_world() {
    let mesh = Mesh::new(&[("a", 2), ("b", 3)]);
    let w = World::new(&mesh, Duration::from_secs(5)).unwrap();
    let results = w.run(vec![(); 6], |comm, ()| {
        let group = comm.world().group(comm.rank(), &axes("b"));
        let root = group.members()[1];
        let mut data = [comm.rank() as u8; 10];
        comm.broadcast(&group, root, "w", "b", &mut data)?;
        let words = comm.exchange(100 + comm.rank() as u64)?;
        Ok::<_, CommError>((data[9], words, comm.counts.clone()))
    });
    for (rank, (data, words, n)) in results.unwrap().into_iter().enumerate() {
        assert_eq!(data, if rank < 3 { 1 } else { 4 });
        assert_eq!(words, [100, 101, 102, 103, 104, 105]);
        let wire = if rank == 1 || rank == 4 { 0 } else { 10 };
        assert_eq!((n.payload["b"], n.wire["b"], n.control), (10, wire, 40));
    }
}

#[test]
fn a_broadcast_from_two_roots_is_a_mismatch() {
    let w = world(2, 5_000);
    let run = w.run(vec![(); 2], |comm, ()| {
        let group = comm.world().group(comm.rank(), &axes("a"));
        comm.broadcast(&group, comm.rank(), "w", "a", &mut [0; 4])
    });
    let text = run.unwrap_err().to_string();
    assert!(text.contains("broadcast %w from rank 0") && text.contains("broadcast %w from rank 1"), "{text}");
}

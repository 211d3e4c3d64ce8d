//! Programs on ranks: calls, memory, results in place, token checks, damaged programs.

mod common;

use autoshard_ir::kernel::{CopyBox, CopyKernel, Kernel, KernelBody};
use autoshard_ir::program::{Buf, Collective, CollectiveKind::*, Program, ProgramFunction, Step};
use autoshard_ir::{DType, Mesh, Type};
use autoshard_runtime::{CommError, Options, Runtime, RuntimeError, TokenCheck};
use common::*;
use std::sync::Arc;
use std::time::Duration;

/// A kernel that copies `n` contiguous elements.
fn copy(n: usize) -> Kernel {
    let boxes = vec![CopyBox { source: 0, from: 0, to: 0, loops: vec![(n, 1, 1)] }];
    let body = KernelBody::Copy(CopyKernel { dtype: DType::F64, fill: None, boxes });
    Kernel { name: "copy".into(), operands: 1, results: 1, flops: 0.0, bytes: 16.0 * n as f64, body }
}

fn function(name: &str, params: &[(&str, Type)], results: &[(&str, Type)], steps: Vec<Step>) -> ProgramFunction {
    let named = |l: &[(&str, Type)]| l.iter().map(|(n, t)| (n.to_string(), t.clone())).collect::<Vec<_>>();
    ProgramFunction {
        name: name.into(),
        params: named(params),
        results: named(results),
        in_place: vec![None; results.len()],
        consumed: vec![false; params.len()],
        frame: 128,
        steps,
    }
}

fn f64s(dims: &[(usize, &str)], partial: &str) -> Type {
    ty(DType::F64, dims, partial)
}

/// Entry: gathers `w` (five elements over a), copies it by a kernel in the callee, reduces that over
/// a (as a partial sum), and overwrites the parameter `total` with it in place.
fn program() -> Program {
    let (split, whole, partial) = (f64s(&[(5, "a")], ""), f64s(&[(5, "")], ""), f64s(&[(5, "")], "a"));
    let callee = function(
        "copy",
        &[("x", whole.clone())],
        &[("y", partial.clone())],
        vec![
            Step::Kernel { kernel: 0, buffers: vec![Buf::Param(0), Buf::Frame(64)] },
            Step::Copy { from: Buf::Frame(64), to: Buf::Result(0), bytes: 40 },
        ],
    );
    let mut entry = function(
        "main",
        &[("w", split.clone()), ("total", whole.clone())],
        &[("gathered", whole.clone()), ("total'", whole.clone())],
        vec![
            Step::Issue { collective: 0, input: Buf::Param(0), output: Buf::Result(0) },
            Step::Wait { issue: 0 },
            Step::Call { function: 0, args: vec![Buf::Result(0)], results: vec![Buf::Frame(0)] },
            Step::Issue { collective: 1, input: Buf::Frame(0), output: Buf::Result(1) },
            Step::Wait { issue: 3 },
        ],
    );
    entry.in_place[1] = Some(1);
    let named = |name: &str, c: Collective| Collective { name: name.into(), ..c };
    Program {
        mesh: Mesh::new(&[("a", 2)]),
        kernels: vec![copy(5)],
        collectives: vec![
            named("w", collective(AllGather, "a", split, whole.clone())),
            named("y", collective(AllReduce, "a", partial, whole)),
        ],
        functions: vec![callee, entry],
        entry: 1,
    }
}

fn options() -> Options {
    Options { threads: 2, timeout: Duration::from_secs(20), allow_duplicate_data: false }
}

fn runtime(program: Program) -> Result<Runtime, RuntimeError> {
    Runtime::new(Arc::new(program), options())
}

#[test]
fn a_step_runs_kernels_calls_and_collectives() {
    let mut r = runtime(program()).unwrap();
    let (w, total) = (r.param_index("w").unwrap(), r.param_index("total").unwrap());
    assert_eq!((r.param_index("x"), r.result_index("total'")), (None, Some(1)));
    r.write_global(w, &[1.0, 2.0, 3.0, 4.0, 5.0]).unwrap();
    for _ in 0..3 {
        let report = r.step(None).unwrap();
        for rank in 0..2 {
            assert_eq!(r.read_f64(rank, Buf::Result(0)).unwrap(), [1.0, 2.0, 3.0, 4.0, 5.0]);
            // The result in place is the parameter.
            assert_eq!(r.read_f64(rank, Buf::Param(total)).unwrap(), [2.0, 4.0, 6.0, 8.0, 10.0]);
            assert_eq!(r.read_f64(rank, Buf::Result(1)).unwrap(), [2.0, 4.0, 6.0, 8.0, 10.0]);
        }
        // Parts of three and two elements; the all-reduce moves 40 bytes per rank. Counts are a step's.
        let wire: Vec<u64> = report.ranks.iter().map(|n| n.counts.wire["a"]).collect();
        assert_eq!(wire, [16 + 40, 24 + 40]);
        for n in &report.ranks {
            assert_eq!((n.counts.payload["a"], n.counts.control, n.counts.padding), (80, 0, 0));
            let names: Vec<_> = n.counts.collectives.iter().map(|c| &*c.name).collect();
            assert_eq!(names, ["w", "y"]);
            // 24 → 64, 40 → 64, 40 → 64, frames of 128 each; the result in place takes nothing.
            assert_eq!(n.memory_bytes, 3 * 64 + 2 * 128);
            assert!(n.waiting_seconds <= n.communication_seconds);
            // Nothing runs beside the computation here.
            assert!(n.communication_seconds <= n.exposed_communication_seconds);
            assert!(n.exposed_communication_seconds <= report.seconds);
        }
    }
}

/// The same with both collectives under way while the rank copies and calls.
#[test]
fn collectives_run_beside_other_steps() {
    let mut p = program();
    let f = &mut p.functions[1];
    f.frame = 256;
    f.steps = vec![
        Step::Issue { collective: 0, input: Buf::Param(0), output: Buf::Frame(0) },
        Step::Copy { from: Buf::Param(0), to: Buf::Frame(64), bytes: 16 },
        Step::Wait { issue: 0 },
        Step::Call { function: 0, args: vec![Buf::Frame(0)], results: vec![Buf::Frame(128)] },
        Step::Issue { collective: 1, input: Buf::Frame(128), output: Buf::Result(1) },
        Step::Copy { from: Buf::Frame(0), to: Buf::Result(0), bytes: 40 },
        Step::Wait { issue: 4 },
    ];
    let mut r = runtime(p).unwrap();
    r.write_global(0, &[1.0, 2.0, 3.0, 4.0, 5.0]).unwrap();
    for _ in 0..50 {
        let report = r.step(None).unwrap();
        assert_eq!(r.read_f64(1, Buf::Result(1)).unwrap(), [2.0, 4.0, 6.0, 8.0, 10.0]);
        for n in &report.ranks {
            assert_eq!(n.counts.collectives.iter().map(|c| &*c.name).collect::<Vec<_>>(), ["w", "y"]);
            assert!(n.exposed_communication_seconds <= report.seconds);
        }
    }
}

#[test]
fn one_rank_runs_on_the_callers_thread() {
    let mut p = program();
    p.mesh = Mesh::new(&[("a", 1)]);
    let mut r = runtime(p).unwrap();
    r.write_f64(0, 0, &[1.0, 2.0, 3.0, 4.0, 5.0]).unwrap();
    let report = r.step(Some(&TokenCheck { hashes: vec![3], data_axes: axes("a"), may_repeat: false })).unwrap();
    assert_eq!(r.read_f64(0, Buf::Result(1)).unwrap(), [1.0, 2.0, 3.0, 4.0, 5.0]);
    assert!(report.ranks[0].counts.wire.is_empty() && report.ranks[0].counts.control == 0);
}

#[test]
fn parts_are_written_and_read_in_every_type() {
    for dtype in DType::ALL {
        let t = ty(dtype, &[(3, "b"), (5, "a")], "");
        let mesh = Mesh::new(&[("a", 2), ("b", 2)]);
        let entry = function("main", &[("x", t.clone())], &[], vec![]);
        let p = Program { mesh, kernels: vec![], collectives: vec![], functions: vec![entry], entry: 0 };
        let mut r = runtime(p).unwrap();
        let data: Vec<f64> = (0..15).map(|i| i as f64 - 7.0).collect();
        r.write_global(0, &data).unwrap();
        assert_eq!(r.read_global(Buf::Param(0)).unwrap(), data, "{dtype}");
        // Rank 3 = (a 1, b 1): row 2, columns 3 and 4.
        assert_eq!(r.read_f64(3, Buf::Param(0)).unwrap(), [6.0, 7.0]);
        let lens: Vec<_> = r.parts(3, Buf::Param(0)).unwrap().iter().map(|p| (p.start, p.len)).collect();
        assert_eq!(lens, [(2, 1), (3, 2)]);
        let bytes = r.read(3, Buf::Param(0)).unwrap();
        assert_eq!(bytes.len(), 2 * dtype.bytes());
        r.write(3, 0, &bytes).unwrap();
        r.write_f64(3, 0, &[2.0, -1.0]).unwrap();
        assert_eq!(r.read_f64(3, Buf::Param(0)).unwrap(), [2.0, -1.0]);
    }
}

#[test]
fn bad_accesses_say_what_is_wrong() {
    let mut r = runtime(program()).unwrap();
    let text = |e: RuntimeError| e.to_string();
    assert_eq!(text(r.write_f64(1, 0, &[1.0; 3]).unwrap_err()), "w: 3 elements given, rank 1 holds 2");
    assert_eq!(text(r.write(0, 0, &[0; 8]).unwrap_err()), "w: 8 bytes given, rank 0 holds 24");
    assert_eq!(text(r.write_f64(0, 9, &[]).unwrap_err()), "the entry has no parameter 9; it has 2");
    assert_eq!(text(r.read(2, Buf::Param(0)).unwrap_err()), "there is no rank 2; the mesh has 2");
    assert!(r.read(0, Buf::Frame(0)).is_err());
    let mut p = program();
    p.functions[1].params[1].1 = ty(DType::I32, &[(10, "")], "");
    p.functions[1].in_place[1] = None;
    let mut r = runtime(p).unwrap();
    assert_eq!(text(r.write_f64(0, 1, &[0.5; 10]).unwrap_err()), "total: 0.5 is not a 32-bit integer");
}

#[test]
fn tokens_must_differ_along_the_data_axes_and_agree_elsewhere() {
    let mut p = program();
    p.mesh = Mesh::new(&[("dp", 2), ("a", 2)]);
    let check = |hashes: [u64; 4], allow: bool| {
        let options = Options { allow_duplicate_data: allow, ..options() };
        let mut r = Runtime::new(Arc::new(p.clone()), options).unwrap();
        r.step(Some(&TokenCheck { hashes: hashes.to_vec(), data_axes: axes("dp"), may_repeat: false }))
    };
    // Ranks 0, 1 are one data rank, 2, 3 the other.
    let good = check([7, 7, 9, 9], false).unwrap();
    assert!(good.ranks.iter().all(|n| n.counts.control == 3 * 8));
    let same = check([7, 7, 7, 7], false).unwrap_err();
    assert!(matches!(same, RuntimeError::DuplicateData { first: 0, second: 2, .. }), "{same}");
    assert!(same.to_string().contains("ranks 0 and 2 differ on dp"), "{same}");
    check([7, 7, 7, 7], true).unwrap();
    for allow in [false, true] {
        let differ = check([7, 7, 9, 8], allow).unwrap_err();
        assert!(matches!(differ, RuntimeError::DifferentData { first: 2, second: 3, .. }), "{differ}");
    }
    let mut r = runtime(program()).unwrap();
    let few = r.step(Some(&TokenCheck { hashes: vec![1], data_axes: vec![], may_repeat: false })).unwrap_err();
    assert_eq!(few.to_string(), "1 token hashes for 2 ranks");
}

#[test]
fn a_kernel_that_leaves_its_buffer_stops_all_ranks() {
    let mut p = program();
    p.kernels[0] = copy(1000);
    let mut r = runtime(p).unwrap();
    let error = r.step(None).unwrap_err();
    assert!(
        matches!(&error, RuntimeError::Kernel { kernel, function, .. } if kernel == "copy" && function == "copy"),
        "{error}"
    );
    let again = r.step(None).unwrap_err();
    assert!(matches!(&again, RuntimeError::Comm(CommError::Stopped(_))), "{again}");
}

#[test]
fn damaged_programs_are_refused() {
    let refuse = |damage: &dyn Fn(&mut Program), want: &str| {
        let mut p = program();
        damage(&mut p);
        let error = runtime(p).err().unwrap_or_else(|| panic!("accepted; wanted {want}")).to_string();
        assert!(error.contains(want), "{error}\nlacks {want}");
    };
    let step = |p: &mut Program, s: Step| p.functions[1].steps.push(s);
    let on = |from: Buf, to: Buf, bytes: usize| Step::Copy { from, to, bytes };
    refuse(&|p| p.entry = 9, "there is no function 9");
    refuse(&|p| p.functions[0].frame = 96, "step 1: Frame(64) has 32 bytes, 40 are needed");
    refuse(&|p| step(p, on(Buf::Frame(200), Buf::Frame(0), 0)), "outside the frame of 128 bytes");
    refuse(&|p| step(p, on(Buf::Frame(4), Buf::Frame(0), 8)), "not a multiple of 8");
    refuse(&|p| step(p, on(Buf::Param(7), Buf::Frame(0), 8)), "there is no Param(7)");
    refuse(&|p| step(p, on(Buf::Param(0), Buf::Frame(0), 48)), "Param(0) has 24 bytes, 48 are needed");
    refuse(&|p| step(p, Step::Kernel { kernel: 3, buffers: vec![] }), "there is no kernel 3");
    refuse(&|p| step(p, Step::Kernel { kernel: 0, buffers: vec![] }), "copy has 2 buffers, not 0");
    let over = vec![Buf::Param(1), Buf::Result(1)];
    refuse(&|p| step(p, Step::Kernel { kernel: 0, buffers: over.clone() }), "over an operand");
    let gather = |c| Step::Issue { collective: c, input: Buf::Param(0), output: Buf::Frame(96) };
    refuse(&|p| step(p, gather(0)), "Frame(96) has 32 bytes, 40 are needed");
    refuse(&|p| step(p, gather(5)), "there is no collective 5");
    refuse(&|p| drop(p.functions[1].steps.pop()), "step 3: is never waited for");
    refuse(&|p| step(p, Step::Wait { issue: 3 }), "waits for step 3, which is not under way");
    refuse(&|p| p.functions[1].steps.swap(1, 2), "step 1: touches what step 0 is moving");
    refuse(&|p| step(p, on(Buf::Frame(0), Buf::Param(0), 8)), "writes parameter 0, which is neither");
    refuse(&|p| p.functions[1].consumed.clear(), "0 entries for 2 parameters");
    let early = |p: &mut Program| p.functions[1].steps.insert(4, on(Buf::Param(0), Buf::Frame(32), 8));
    refuse(&early, "step 4: touches what step 3 is moving");
    let call = |f, args: &[Buf]| Step::Call { function: f, args: args.to_vec(), results: vec![Buf::Frame(0)] };
    refuse(&|p| step(p, call(8, &[])), "there is no function 8");
    refuse(&|p| step(p, call(0, &[])), "copy takes 1 arguments, not 0");
    refuse(&|p| step(p, call(0, &[Buf::Param(0)])), "Param(0) has 24 bytes, 40 are needed");
    refuse(&|p| p.functions[0].steps.push(call(0, &[Buf::Param(0)])), "copy calls itself");
    refuse(&|p| p.functions[1].in_place[0] = Some(0), "parameter 0 cannot hold this result in place");
    refuse(&|p| p.functions[1].in_place.clear(), "0 entries for 2 results");
    refuse(&|p| p.functions[1].params[0].1.dims[0].size = usize::MAX, "is too large");
    refuse(&|p| p.functions[1].frame = usize::MAX - 7, "no memory");
    refuse(&|p| p.mesh = Mesh::new(&[("a", 0)]), "axis a has size 0");
    refuse(&|p| p.collectives[0].kind = AllReduce, "another kind");
    let in_place = |p: &mut Program| {
        p.functions[0].params[0].1 = f64s(&[(5, "")], "a");
        p.functions[0].in_place[0] = Some(0);
    };
    refuse(&in_place, "result 0 of copy lives in argument 0, but has another buffer");
    let chain = |p: &mut Program| {
        for i in 2..1000 {
            let next = Step::Call { function: i + 1, args: vec![], results: vec![] };
            p.functions.push(function(&format!("f{i}"), &[], &[], vec![next]));
        }
        p.functions.push(function("last", &[], &[], vec![]));
        p.entry = 2;
    };
    refuse(&chain, "calls nest deeper than 256");
    let mut threads = options();
    threads.threads = 1_000_000;
    let error = Runtime::new(Arc::new(program()), threads).err().unwrap().to_string();
    assert!(error.contains("option threads"), "{error}");
}

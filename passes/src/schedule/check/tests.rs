use super::*;
use autoshard_ir::core::{Axis, DType, Scalar, Type};
use autoshard_ir::kernel::{
    AttentionKernel, CopyBox, CopyKernel, Extent, GatherKernel, GemmKernel, GemmLoop, Init, Product,
};
use autoshard_ir::kernel::{Instr, Kernel, KernelBody, LoopKernel, LoopOp, Store, View};
use autoshard_ir::program::{Collective, CollectiveKind};

const D: usize = 16; // elements of every buffer
const BYTES: usize = 64;

fn ty() -> Type {
    Type::new(DType::F32, &[("d", D)])
}

fn extent(size: usize) -> Extent {
    Extent { name: "d".into(), size, global: size, axes: vec![] }
}

fn view(buffer: usize, offset: usize, stride: usize) -> View {
    View { buffer, dtype: DType::F32, offset, strides: vec![stride] }
}

fn kernel(name: &str, operands: usize, results: usize, body: KernelBody) -> Kernel {
    Kernel { name: name.into(), operands, results, flops: 0.0, bytes: 0.0, body }
}

/// A sum of its operands, elementwise.
fn sum(operands: usize) -> Kernel {
    let instr = |op, args| Instr { op, args, dtype: DType::F32, uniform: false };
    let mut instrs: Vec<Instr> = (0..operands).map(|i| instr(LoopOp::Load(view(i, 0, 1)), vec![])).collect();
    instrs.push(instr(LoopOp::Map(Scalar::Add), (0..operands).collect()));
    let stores = vec![Store { view: view(operands, 0, 1), reg: operands, combine: None }];
    kernel("add %z", operands, 1, KernelBody::Loop(vec![LoopKernel { loops: vec![extent(D)], instrs, stores }]))
}

fn run(kernel: usize, buffers: &[Buf]) -> Step {
    Step::Kernel { kernel, buffers: buffers.to_vec() }
}

fn gather(input: Buf, output: Buf) -> Step {
    Step::Issue { collective: 0, input, output }
}

fn call(args: &[Buf], results: &[Buf]) -> Step {
    Step::Call { function: 0, args: args.to_vec(), results: results.to_vec() }
}

fn function(name: &str, params: &[&str], results: &[&str], frame: usize, steps: Vec<Step>) -> ProgramFunction {
    let named = |names: &[&str]| names.iter().map(|n| (n.to_string(), ty())).collect();
    ProgramFunction {
        name: name.into(),
        params: named(params),
        results: named(results),
        in_place: vec![None; results.len()],
        consumed: vec![false; params.len()],
        frame,
        steps,
    }
}

use Buf::{Frame, Param, Result as Out};

/// `body(x, y) = x + y` through the frame; `step(w, g)` calls it, reduces, and updates w in place.
fn program() -> Program {
    let body = function(
        "body",
        &["x", "y"],
        &["z"],
        2 * BYTES,
        vec![
            run(0, &[Param(0), Param(1), Frame(0)]),
            run(0, &[Frame(0), Param(1), Frame(BYTES)]),
            run(0, &[Frame(0), Frame(BYTES), Out(0)]),
        ],
    );
    let mut step = function(
        "step",
        &["w", "g"],
        &["w.new"],
        2 * BYTES,
        vec![
            call(&[Param(0), Param(1)], &[Frame(0)]),
            gather(Frame(0), Frame(BYTES)),
            Step::Wait { issue: 1 },
            run(0, &[Param(0), Frame(BYTES), Out(0)]),
        ],
    );
    step.in_place = vec![Some(0)];
    Program {
        mesh: Mesh::new(&[("tp", 2)]),
        kernels: vec![sum(2)],
        collectives: vec![Collective {
            kind: CollectiveKind::AllReduce,
            axes: vec![Axis::new("tp")],
            from: ty(),
            to: ty(),
            name: "@step %r".into(),
            control: false,
        }],
        functions: vec![body, step],
        entry: 1,
    }
}

/// The message for a program after one change.
fn broken(change: impl FnOnce(&mut Program)) -> String {
    let mut p = program();
    change(&mut p);
    check(&p).expect_err("must be rejected").to_string()
}

#[test]
fn a_sound_program_passes() {
    assert_eq!(check(&program()), Ok(()));
}

#[test]
fn a_read_before_the_write() {
    assert_eq!(
        broken(|p| p.functions[0].steps.swap(0, 1)),
        "@body: step 0 (add %z): reads frame+0, which nothing has written"
    );
    assert_eq!(
        broken(|p| p.functions[0].steps.insert(0, run(0, &[Out(0), Param(0), Frame(0)]))),
        "@body: step 0 (add %z): reads %z, which nothing has written"
    );
}

#[test]
fn an_overlap_is_an_overwrite() {
    // The second buffer begins inside the first, which is read afterwards.
    assert_eq!(
        broken(|p| {
            let steps = &mut p.functions[0].steps;
            steps[1] = run(0, &[Param(0), Param(1), Frame(BYTES / 2)]);
            steps[2] = run(0, &[Frame(0), Param(1), Out(0)]);
        }),
        "@body: step 2 (add %z): reads frame+0, which step 1 has overwritten"
    );
    // The same in one step.
    assert_eq!(
        broken(|p| p.functions[0].steps[1] = run(0, &[Frame(0), Param(1), Frame(BYTES / 2)])),
        "@body: step 1 (add %z): writes frame+32 over frame+0"
    );
    assert_eq!(
        broken(|p| p.functions[1].steps[1] = gather(Frame(0), Frame(0))),
        "@step: step 1 (all_reduce @step %r): writes frame+0 over frame+0"
    );
    assert_eq!(
        broken(|p| p.functions[1].steps[1] = Step::Copy { from: Frame(0), to: Frame(32), bytes: BYTES }),
        "@step: step 1 (copy): writes frame+32 over frame+0"
    );
    assert_eq!(
        broken(|p| {
            // One that ends inside the next, and one that covers two.
            let f = &mut p.functions[0];
            f.frame = 4 * BYTES;
            f.steps[0] = run(0, &[Param(0), Param(1), Frame(BYTES)]);
            f.steps[1] = run(0, &[Param(0), Param(1), Frame(2 * BYTES)]);
            f.steps.insert(2, run(0, &[Param(0), Param(1), Frame(BYTES + 4)]));
            f.steps[3] = run(0, &[Param(0), Frame(2 * BYTES), Out(0)]);
        }),
        "@body: step 3 (add %z): reads frame+128, which step 2 has overwritten"
    );
}

#[test]
fn a_frame_that_is_too_small() {
    assert_eq!(
        broken(|p| p.functions[0].frame = BYTES),
        "@body: step 1 (add %z): frame+64 ends at 128, the frame at 64"
    );
    assert!(broken(|p| p.functions[1].steps[0] = call(&[Param(0), Param(1)], &[Frame(usize::MAX)])).contains("frame"));
}

#[test]
fn a_parameter_after_its_update() {
    assert_eq!(
        broken(|p| p.functions[1].steps.push(run(0, &[Param(0), Param(1), Frame(0)]))),
        "@step: step 4 (add %z): reads %w, which step 3 has updated in place"
    );
    // The updated value has its own name.
    let mut p = program();
    p.functions[1].steps.push(run(0, &[Out(0), Param(1), Frame(0)]));
    assert_eq!(check(&p), Ok(()));
}

#[test]
fn updates_in_place_are_elementwise() {
    let shift = |p: &mut Program| {
        let mut k = sum(2);
        let KernelBody::Loop(l) = &mut k.body else {
            return;
        };
        l[0].instrs[0].op = LoopOp::Load(view(0, D - 1, 0)); // w[15] in every element
        p.kernels.push(k);
        p.functions[1].steps[3] = run(1, &[Param(0), Frame(BYTES), Out(0)]);
    };
    assert_eq!(broken(shift), "@step: step 3 (add %z): writes %w.new over %w");
    assert_eq!(
        broken(|p| p.functions[1].steps[1] = gather(Param(0), Out(0))),
        "@step: step 1 (all_reduce @step %r): writes %w.new over %w"
    );
}

#[test]
fn a_call_in_place_checks_the_callee() {
    let update = |p: &mut Program| p.functions[1].steps = vec![call(&[Param(0), Param(1)], &[Out(0)])];
    let mut p = program();
    update(&mut p);
    assert_eq!(check(&p), Ok(()));
    // The callee reads x after it has written z: sound alone, not when both are one buffer.
    assert_eq!(
        broken(|p| {
            update(p);
            p.functions[0].steps.push(run(0, &[Param(0), Param(1), Frame(0)]));
        }),
        "@body: step 3 (add %z): reads %x, which step 2 has updated in place"
    );
    assert_eq!(
        broken(|p| p.functions[0].in_place = vec![Some(0)]),
        "@step: step 0 (call @body): the callee updates %w in place, but its result goes to frame+0"
    );
    assert_eq!(
        broken(|p| p.functions[1].steps = vec![call(&[Param(0), Param(0)], &[Out(0)])]),
        "@step: step 0 (call @body): writes %w.new over %w"
    );
}

#[test]
fn what_a_collective_touches_is_left_alone_until_the_wait() {
    let during = |s: Step| broken(|p| p.functions[1].steps.insert(2, s));
    assert_eq!(
        during(run(0, &[Param(0), Frame(BYTES), Frame(2 * BYTES)])),
        "@step: step 2 (add %z): reads frame+64, which the collective of step 1 is still writing"
    );
    assert_eq!(
        during(run(0, &[Param(0), Param(1), Frame(0)])),
        "@step: step 2 (add %z): writes frame+0, which the collective of step 1 still reads"
    );
    assert_eq!(
        during(Step::Copy { from: Param(0), to: Frame(BYTES + 60), bytes: 4 }),
        "@step: step 2 (copy): writes frame+124, which the collective of step 1 still writes"
    );
    assert_eq!(
        during(call(&[Param(0), Frame(BYTES)], &[Frame(0)])),
        "@step: step 2 (call @body): reads frame+64, which the collective of step 1 is still writing"
    );
    // Reading its input is no harm, and a later collective comes after it; a local move does not.
    let chained = |kind| {
        let mut p = program();
        let f = &mut p.functions[1];
        f.frame = 3 * BYTES;
        f.steps.insert(2, Step::Issue { collective: 1, input: Frame(BYTES), output: Frame(2 * BYTES) });
        f.steps[3] = run(0, &[Frame(0), Param(1), Out(0)]);
        f.steps[4] = Step::Wait { issue: 2 };
        f.steps.push(Step::Wait { issue: 1 });
        f.in_place = vec![None];
        p.collectives.push(Collective { kind, ..p.collectives[0].clone() });
        check(&p).map_err(|e| e.to_string())
    };
    assert_eq!(chained(CollectiveKind::AllGather), Ok(()));
    let error = chained(CollectiveKind::Local).expect_err("a local move runs at once");
    assert!(error.contains("(shard @step %r): reads frame+64, which the collective of step 1"), "{error}");
}

#[test]
fn every_issue_has_one_wait() {
    assert_eq!(
        broken(|p| p.functions[1].steps[2] = Step::Copy { from: Param(0), to: Frame(BYTES), bytes: 0 }),
        "@step: step 2 (copy): writes frame+64, which the collective of step 1 still writes"
    );
    assert_eq!(
        broken(|p| p.functions[1].steps = vec![call(&[Param(0), Param(1)], &[Out(0)]), gather(Out(0), Frame(0))]),
        "@step: step 1 (all_reduce @step %r) is never waited for"
    );
    let wait = |issue, at: usize| broken(|p| p.functions[1].steps.insert(at, Step::Wait { issue }));
    assert_eq!(wait(1, 3), "@step: step 3 (wait): waits for step 1, which has been waited for");
    assert_eq!(wait(2, 1), "@step: step 1 (wait): waits for step 2, which comes later");
    assert_eq!(wait(0, 1), "@step: step 1 (wait): waits for step 0, which is no collective");
    assert_eq!(wait(9, 1), "@step: step 1 (wait): waits for step 9, which does not exist");
}

/// `body` takes x for its own and writes its sums there; `step` gives it the sum w + g.
fn consuming() -> Program {
    let mut p = program();
    let body = &mut p.functions[0];
    body.consumed[0] = true;
    body.steps[0] = run(0, &[Param(0), Param(1), Param(0)]);
    body.steps[1] = run(0, &[Param(0), Param(1), Frame(BYTES)]);
    body.steps[2] = run(0, &[Param(0), Frame(BYTES), Out(0)]);
    let step = &mut p.functions[1];
    step.frame = 3 * BYTES;
    step.steps = vec![
        run(0, &[Param(0), Param(1), Frame(2 * BYTES)]),
        call(&[Frame(2 * BYTES), Param(1)], &[Frame(0)]),
        run(0, &[Param(0), Frame(0), Out(0)]),
    ];
    p
}

#[test]
fn a_consumed_argument_is_the_callees() {
    assert_eq!(check(&consuming()), Ok(()));
    let broken = |change: &dyn Fn(&mut Program)| {
        let mut p = consuming();
        change(&mut p);
        check(&p).expect_err("must be rejected").to_string()
    };
    assert_eq!(
        broken(&|p| p.functions[1].steps[2] = run(0, &[Param(0), Frame(2 * BYTES), Out(0)])),
        "@step: step 2 (add %z): reads frame+128, which the call in step 1 has consumed"
    );
    assert_eq!(
        broken(&|p| p.functions[1].steps[1] = call(&[Param(0), Param(1)], &[Frame(0)])),
        "@step: step 1 (call @body): the callee consumes %w, which is not in the frame nor consumed here"
    );
    assert_eq!(
        broken(&|p| p.functions[1].steps[1] = call(&[Frame(2 * BYTES), Frame(2 * BYTES)], &[Frame(0)])),
        "@step: step 1 (call @body): the callee consumes frame+128, which is also frame+128"
    );
    assert_eq!(
        broken(&|p| p.functions[0].consumed[0] = false),
        "@body: step 0 (add %z): writes %x, a parameter without an update in place"
    );
    assert_eq!(
        broken(&|p| p.functions[0].consumed = vec![]),
        "@body: the list cannot be consumed: 0 entries for 2 parameters"
    );
    assert_eq!(
        broken(&|p| p.functions[1].consumed[1] = true),
        "@step: %g cannot be consumed: the entry's parameters stay"
    );
    assert_eq!(broken(&|p| p.functions[0].in_place = vec![Some(0)]), "@body: %x cannot be consumed: it holds a result");
}

#[test]
fn a_consumed_parameter_may_be_given_on() {
    let middle = |given: bool| {
        let mut p = consuming();
        let mut f = function("middle", &["x", "y"], &["z"], 0, vec![call(&[Param(0), Param(1)], &[Out(0)])]);
        f.consumed[0] = given;
        p.functions.insert(1, f);
        p.functions[2].steps[1] =
            Step::Call { function: 1, args: vec![Frame(2 * BYTES), Param(1)], results: vec![Frame(0)] };
        p.entry = 2;
        p
    };
    assert_eq!(check(&middle(true)), Ok(()));
    assert!(check(&middle(false)).is_err());
    let mut p = middle(true);
    p.functions[1].steps.push(Step::Copy { from: Param(0), to: Frame(0), bytes: 0 });
    let error = check(&p).expect_err("must be rejected").to_string();
    assert_eq!(error, "@middle: step 1 (copy): reads %x, which the call in step 0 has consumed");
}

#[test]
fn sizes_are_those_of_the_writer() {
    assert_eq!(
        broken(|p| p.collectives[0].to = Type::new(DType::F32, &[("d", 8)])),
        "@step: step 3 (add %z): frame+64 has 32 bytes, expected 64"
    );
    assert_eq!(
        broken(|p| p.functions[0].params[0].1 = Type::new(DType::F64, &[("d", D)])),
        "@step: step 0 (call @body): %w has 64 bytes, expected 128"
    );
    assert_eq!(
        broken(|p| p.functions[0].results[0].1 = Type::new(DType::F32, &[("d", D + 1)])),
        "@body: step 2 (add %z): %z has 68 bytes, expected 64"
    );
    assert_eq!(
        broken(|p| {
            p.functions[1].results[0].1.dims[0].axes = vec![Axis::new("tp")];
        }),
        "@step: result %w.new cannot be in place: parameter %w has 64 bytes, the result 32"
    );
}

#[test]
fn results_are_written_once() {
    assert_eq!(broken(|p| p.functions[0].steps.truncate(2)), "@body: result %z is never written");
    assert_eq!(
        broken(|p| p.functions[0].steps.push(run(0, &[Param(0), Param(1), Out(0)]))),
        "@body: step 3 (add %z): writes %z again, after step 2"
    );
    assert_eq!(
        broken(|p| p.functions[0].steps[0] = run(0, &[Param(0), Param(0), Param(1)])),
        "@body: step 0 (add %z): writes %y, a parameter without an update in place"
    );
    let mut p = program();
    p.functions[1].steps[3] = run(0, &[Param(0), Frame(BYTES), Param(0)]);
    assert_eq!(check(&p), Ok(()), "a parameter is another name for its update");
}

#[test]
fn indices_and_counts() {
    assert_eq!(broken(|p| p.entry = 7), "no function 7: the program has 2");
    let fault = |step: Step| broken(|p| p.functions[1].steps[0] = step);
    assert_eq!(fault(run(9, &[])), "@step: step 0 (kernel): no kernel 9");
    assert_eq!(fault(run(0, &[Param(0), Frame(0)])), "@step: step 0 (add %z): 2 buffers, expected 3");
    assert_eq!(fault(run(0, &[Param(5), Param(0), Frame(0)])), "@step: step 0 (add %z): no parameter 5");
    assert_eq!(fault(run(0, &[Param(0), Param(0), Out(4)])), "@step: step 0 (add %z): no result 4");
    assert_eq!(fault(call(&[Param(0)], &[Frame(0)])), "@step: step 0 (call @body): 1 arguments, expected 2");
    assert_eq!(fault(call(&[Param(0), Param(1)], &[])), "@step: step 0 (call @body): 0 results, expected 1");
    assert_eq!(
        fault(Step::Issue { collective: 3, input: Param(0), output: Frame(0) }),
        "@step: step 0 (collective): no collective 3"
    );
    assert_eq!(broken(|p| p.functions[0].steps.push(call(&[Param(0), Param(1)], &[Frame(0)]))), "@body calls itself");
    assert_eq!(
        broken(|p| p.functions[1].in_place = vec![]),
        "@step: result %w.new cannot be in place: 0 entries for 1 results"
    );
    assert_eq!(
        broken(|p| p.functions[1].in_place = vec![Some(5)]),
        "@step: result %w.new cannot be in place: no parameter 5"
    );
}

#[test]
fn kernels_are_consistent() {
    assert_eq!(
        broken(|p| p.kernels[0].operands = 1),
        "@body: step 0 (add %z): kernel add %z loads buffer 1, but has 1 operands and 1 results"
    );
    assert_eq!(
        broken(|p| {
            let KernelBody::Loop(l) = &mut p.kernels[0].body else {
                return;
            };
            l[0].stores.clear();
        }),
        "@body: step 0 (add %z): kernel add %z never stores its buffer 2"
    );
    assert_eq!(
        broken(|p| p.kernels[0].body = KernelBody::Attention(attention())),
        "@body: step 0 (add %z): kernel add %z has 2 operands and 1 results, its template 3 and 2"
    );
}

#[test]
fn a_fill_writes_the_whole_buffer() {
    // pad: 4 elements at 2, the rest is filled.
    let pad = |fill| {
        let boxes = vec![CopyBox { source: 0, from: 0, to: 2, loops: vec![(4, 1, 1)] }];
        kernel("pad %z", 1, 1, KernelBody::Copy(CopyKernel { dtype: DType::F32, fill, boxes }))
    };
    let padded = |fill, at| {
        let mut p = program();
        p.kernels.push(pad(fill));
        p.functions[0].steps[0] = run(1, &[Param(0), Frame(at)]);
        p.functions[0].steps[1] = run(0, &[Param(0), Param(1), Frame(BYTES - at)]);
        check(&p)
    };
    assert_eq!(padded(Some((0.0, D)), 0), Ok(()));
    assert!(padded(None, 0).is_err());
}

fn attention() -> AttentionKernel {
    let [b, s, t, g, r, e, h] = [2, 3, 5, 7, 11, 13, 17].map(extent);
    AttentionKernel { b, s, t, g, r, e, h, scale: 1.0, causal: false, window: 0, dtype: DType::F32 }
}

#[test]
fn spans_of_templates() {
    let bytes = |operands, results, body| -> Vec<usize> {
        let spans = spans(&kernel("k", operands, results, body)).expect("consistent");
        spans.iter().map(|s| s / 4).collect()
    };
    let (q, k, v, o, lse) = (2 * 3 * 77 * 13, 2 * 5 * 7 * 13, 2 * 5 * 7 * 17, 2 * 3 * 77 * 17, 2 * 3 * 77);
    assert_eq!(bytes(3, 2, KernelBody::Attention(attention())), [q, k, v, o, lse]);
    assert_eq!(bytes(6, 3, KernelBody::AttentionBackward(attention())), [q, k, v, o, lse, o, q, k, v]);
    let rows = || GatherKernel { rows: vec![extent(3), extent(2)], table: extent(7), d: extent(5), dtype: DType::F32 };
    assert_eq!(bytes(2, 1, KernelBody::Gather(rows())), [35, 6, 30]);
    assert_eq!(bytes(2, 1, KernelBody::Scatter(rows())), [30, 6, 35]);
    // c[3, 5] = a[3, 7] · b[7, 5]
    let one = |n, a, b, c| vec![GemmLoop { extent: extent(n), a, b, c }];
    let gemm = Product {
        a: 0,
        b: 1,
        c: 2,
        init: Init::Zero,
        batch: vec![],
        m: one(3, 7, 0, 5),
        n: one(5, 0, 1, 1),
        k: one(7, 1, 5, 0),
        dtype: DType::F32,
    };
    assert_eq!(bytes(2, 1, KernelBody::Gemm(GemmKernel::single(gemm))), [21, 35, 15]);
}

#[test]
fn products_and_nests_of_one_kernel_are_checked() {
    let one = |size, a, b, c| vec![GemmLoop { extent: extent(size), a, b, c }];
    let product = |c, init| Product {
        a: 0,
        b: 1,
        c,
        init,
        batch: vec![],
        m: one(3, 7, 0, 5),
        n: one(5, 0, 1, 1),
        k: one(7, 1, 5, 0),
        dtype: DType::F32,
    };
    let nest = |from, to| LoopKernel {
        loops: vec![extent(15)],
        instrs: vec![Instr { op: LoopOp::Load(view(from, 0, 1)), args: vec![], dtype: DType::F32, uniform: false }],
        stores: vec![Store { view: view(to, 0, 1), reg: 0, combine: None }],
    };
    let spans = |results, products: Vec<Product>, epilogue: Vec<LoopKernel>| {
        let k = kernel("products", 2, results, KernelBody::Gemm(GemmKernel { products, epilogue }));
        span::spans(&k).map_err(|e| e.to_string())
    };
    assert!(spans(1, vec![product(2, Init::Zero), product(2, Init::Result)], vec![nest(2, 2)]).is_ok());
    let e = spans(1, vec![product(2, Init::Zero), product(2, Init::Zero)], vec![]).unwrap_err();
    assert_eq!(e, "kernel products: two products write buffer 2");
    let e = spans(1, vec![product(2, Init::Result)], vec![]).unwrap_err();
    assert_eq!(e, "kernel products: a product adds to what nothing has written in buffer 2");
    let e = spans(2, vec![product(2, Init::Zero)], vec![nest(3, 3)]).unwrap_err();
    assert_eq!(e, "kernel products: a nest reads what nothing has written in buffer 3");
    assert!(spans(2, vec![product(2, Init::Zero)], vec![nest(2, 3)]).is_ok());
}

use super::*;
use crate::fuse::Fusion;
use crate::play;
use autoshard_ir::text;

fn program(source: &str, overlap: bool) -> Program {
    let module = text::parse(source, "schedule").unwrap_or_else(|e| panic!("{e}"));
    let p = schedule(&module, &Options { fusion: Fusion::NONE, overlap }).unwrap();
    check(&p).unwrap_or_else(|e| panic!("{e}"));
    play::verify(&p).unwrap_or_else(|e| panic!("{e}"));
    p
}

/// `@body` makes a chain of three results out of its first argument; the entry computes that and,
/// after the call, reads it again or not.
fn chain(after: &str) -> String {
    format!(
        "mesh @m = [dp: 1]
func @body(%z: f32[n=64], %dy: f32[n]) -> (f32[n]) {{
  %a = mul %z, %dy : f32[n]
  %b = exp %a : f32[n]
  %c = mul %b, %dy : f32[n]
  return %c
}}
func @main(%x: f32[n=64]) -> (f32[n], f32[n]) {{
  %z = exp %x : f32[n]
  %y = call @body(%z, %x) : f32[n]
  %r = add %y, %{after} : f32[n]
  return %y, %r
}}
entry @main
"
    )
}

#[test]
fn results_take_the_place_of_arguments_that_nobody_reads_again() {
    let p = program(&chain("x"), true);
    let body = &p.functions[0];
    assert_eq!((body.consumed.as_slice(), body.frame), (&[true, false][..], 0));
    let kernels = [
        Step::Kernel { kernel: 0, buffers: vec![Buf::Param(0), Buf::Param(1), Buf::Param(0)] },
        Step::Kernel { kernel: 1, buffers: vec![Buf::Param(0), Buf::Param(0)] },
        Step::Kernel { kernel: 0, buffers: vec![Buf::Param(0), Buf::Param(1), Buf::Result(0)] },
    ];
    assert_eq!(body.steps, kernels);
    // An argument that is read after the call stays; the chain is in place in the frame all the same.
    let p = program(&chain("z"), true);
    assert_eq!((p.functions[0].consumed.as_slice(), p.functions[0].frame), (&[false, false][..], 256));
}

#[test]
fn arguments_given_twice_or_by_the_world_stay() {
    let twice = chain("x").replace("@body(%z, %x)", "@body(%z, %z)");
    assert_eq!(program(&twice, true).functions[0].consumed, [false, false]);
    let world = chain("x").replace("@body(%z, %x)", "@body(%x, %z)");
    assert_eq!(program(&world, true).functions[0].consumed, [false, false]);
}

#[test]
fn what_a_function_was_given_it_may_give_on() {
    let through = chain("x").replace("call @body(%z", "call @mid(%z").replace(
        "func @main",
        "func @mid(%z: f32[n=64], %dy: f32[n]) -> (f32[n]) {
  %c = call @body(%z, %dy) : f32[n]
  return %c
}
func @main",
    );
    let p = program(&through, true);
    assert_eq!((p.functions[0].consumed[0], p.functions[1].consumed[0]), (true, true));
    // Two callers, of which one needs the argument.
    let both =
        through.replace("%r = add %y, %x : f32[n]", "%u = call @body(%x, %y) : f32[n]\n  %r = add %y, %u : f32[n]");
    let p = program(&both, true);
    assert_eq!((p.functions[0].consumed[0], p.functions[1].consumed[0]), (false, false));
}

/// Two values are reduced one after the other while others are computed.
const REDUCED: &str = "mesh @m = [dp: 2]
func @half(%x: f32[n=64]) -> (f32[n] partial(sum: dp), f32[n]) {
  %g = exp %x : f32[n] partial(sum: dp)
  %y = exp %x : f32[n]
  return %g, %y
}
func @main(%x: f32[n=64], %w: f32[n]) -> (f32[n], f32[n], f32[n]) {
  %g0, %y0 = call @half(%x) : f32[n] partial(sum: dp), f32[n]
  %g1, %y1 = call @half(%y0) : f32[n] partial(sum: dp), f32[n]
  %g2, %y2 = call @half(%y1) : f32[n] partial(sum: dp), f32[n]
  %r0 = all_reduce %g0 {axes=\"dp\"} : f32[n]
  %w0 = mul %w, %r0 : f32[n]
  %r1 = all_reduce %g1 {axes=\"dp\"} : f32[n]
  %w1 = mul %w, %r1 : f32[n]
  %r2 = all_reduce %g2 {axes=\"dp\"} : f32[n]
  %w2 = mul %w, %r2 : f32[n]
  return %w0, %w1, %w2
}
entry @main
";

#[test]
fn what_is_reduced_is_freed_behind_the_next_call() {
    // At once: three gradients until the end. Behind: two, and two reduced ones.
    let (at_once, behind) = (program(REDUCED, false), program(REDUCED, true));
    let kinds = |p: &Program| -> Vec<&str> {
        let kind = |s: &Step| match s {
            Step::Call { .. } => "call",
            Step::Issue { .. } => "issue",
            Step::Wait { .. } => "wait",
            Step::Kernel { .. } => "kernel",
            Step::Copy { .. } => "copy",
        };
        p.functions[1].steps.iter().map(kind).collect()
    };
    let together = ["issue", "wait", "kernel"].repeat(3);
    assert_eq!(kinds(&at_once), [vec!["call"; 3], together].concat());
    let apart =
        ["call", "issue", "call", "issue", "wait", "kernel", "call", "issue", "wait", "kernel", "wait", "kernel"];
    assert_eq!(kinds(&behind), apart);
    let waits = |p: &Program| -> Vec<usize> {
        p.functions[1]
            .steps
            .iter()
            .filter_map(|s| if let Step::Wait { issue } = s { Some(*issue) } else { None })
            .collect()
    };
    assert_eq!((waits(&at_once), waits(&behind)), (vec![3, 6, 9], vec![1, 3, 7]));
    assert!(behind.functions[1].frame <= at_once.functions[1].frame);
}

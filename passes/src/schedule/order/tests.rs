use super::*;
use crate::fuse::{fuse, Fusion};
use autoshard_ir::text;

/// The order of the last function of a module, a line an action. Updates are results `NAME.new` of
/// parameters `NAME`.
fn listing(source: &str, how: How) -> String {
    let module = text::parse(source, "order").unwrap_or_else(|e| panic!("{e}"));
    let f = module.functions.last().unwrap();
    let units = fuse(f, &module.mesh, &Fusion::NONE).unwrap();
    let update = |r: &ValueId| Some((f.find(f.value(*r).name.strip_suffix(".new")?)?, *r));
    let updates: Vec<_> = f.results.iter().filter_map(update).collect();
    let name = |u: usize| units[u].results.iter().map(|r| f.value(*r).name.as_str()).collect::<Vec<_>>().join(" ");
    let line = |a: Action| match a {
        Action::Run(u) => name(u),
        Action::Issue(u) => format!("issue {}", name(u)),
        Action::Wait(u) => format!("wait {}", name(u)),
    };
    let products = products(f, &units);
    let how = match how {
        How::AtOnce => Overlap::None,
        How::Early => Overlap::Early(&[]),
        How::PutOff => Overlap::Early(&products),
    };
    order(f, &units, &module.mesh, &updates, how).into_iter().map(line).collect::<Vec<_>>().join("\n")
}

#[derive(Clone, Copy, Debug)]
enum How {
    AtOnce,
    Early,
    PutOff,
}

fn expect(source: &str, how: How, want: &[&str]) {
    assert_eq!(listing(source, how), want.join("\n"), "{how:?}");
}

/// Three layers whose weights are split over fsdp: forward only.
const FORWARD: &str = "mesh @m = [fsdp: 2]
func @layer(%x: f32[b=2, d=4], %w: f32[d, e=4]) -> (f32[b, e]) {
  %y = einsum %x, %w {spec=\"b d, d e -> b e\"} : f32[b, e]
  return %y
}
func @main(%x: f32[b=2, d=4], param %w0: f32[d@fsdp, e=4], param %w1: f32[e@fsdp, d], param %w2: f32[d@fsdp, e]) -> (f32[b, e]) {
  %w0.ag = all_gather %w0 {axes=\"fsdp\"} : f32[d, e]
  %a = call @layer(%x, %w0.ag) : f32[b, e]
  %w1.ag = all_gather %w1 {axes=\"fsdp\"} : f32[e, d]
  %b = call @layer(%a, %w1.ag) : f32[b, d]
  %w2.ag = all_gather %w2 {axes=\"fsdp\"} : f32[d, e]
  %c = call @layer(%b, %w2.ag) : f32[b, e]
  return %c
}
entry @main
";

#[test]
fn gathers_of_weights_are_issued_a_call_ahead() {
    let at_once =
        ["issue w0.ag", "wait w0.ag", "a", "issue w1.ag", "wait w1.ag", "b", "issue w2.ag", "wait w2.ag", "c"];
    expect(FORWARD, How::AtOnce, &at_once);
    // No more than two layers' weights are alive.
    let early = ["issue w0.ag", "issue w1.ag", "wait w0.ag", "a", "issue w2.ag", "wait w1.ag", "b", "wait w2.ag", "c"];
    expect(FORWARD, How::Early, &early);
    expect(FORWARD, How::PutOff, &early);
}

/// Gradients of three calls, reduced at the end, each read by an update of the gathered weight.
const BACKWARD: &str = "mesh @m = [fsdp: 2]
func @grad(%w: f32[d=4], %dy: f32[d]) -> (f32[d], f32[d] partial(sum: fsdp)) {
  %dx = mul %w, %dy : f32[d]
  %dw = mul %dx, %dy : f32[d] partial(sum: fsdp)
  return %dx, %dw
}
func @main(%dy: f32[d=4], param %w0: f32[d@fsdp], param %w1: f32[d@fsdp], param %w2: f32[d@fsdp]) -> (f32[d@fsdp], f32[d@fsdp], f32[d@fsdp]) {
  %w0.ag = all_gather %w0 {axes=\"fsdp\"} : f32[d]
  %d0, %g0 = call @grad(%w0.ag, %dy) : f32[d], f32[d] partial(sum: fsdp)
  %w1.ag = all_gather %w1 {axes=\"fsdp\"} : f32[d]
  %d1, %g1 = call @grad(%w1.ag, %d0) : f32[d], f32[d] partial(sum: fsdp)
  %w2.ag = all_gather %w2 {axes=\"fsdp\"} : f32[d]
  %d2, %g2 = call @grad(%w2.ag, %d1) : f32[d], f32[d] partial(sum: fsdp)
  %g0.rs = reduce_scatter %g0 {axes=\"fsdp\"} : f32[d@fsdp]
  %w0.new = sub %w0, %g0.rs : f32[d@fsdp]
  %g1.rs = reduce_scatter %g1 {axes=\"fsdp\"} : f32[d@fsdp]
  %w1.new = sub %w1, %g1.rs : f32[d@fsdp]
  %g2.rs = reduce_scatter %g2 {axes=\"fsdp\"} : f32[d@fsdp]
  %w2.new = sub %w2, %g2.rs : f32[d@fsdp]
  return %w0.new, %w1.new, %w2.new
}
entry @main
";

#[test]
fn reductions_of_gradients_are_waited_for_a_call_behind() {
    let want = [
        "issue w0.ag",
        "issue w1.ag",
        "wait w0.ag",
        "d0 g0",
        "issue g0.rs",
        "issue w2.ag",
        "wait w1.ag",
        "d1 g1",
        "issue g1.rs",
        "wait g0.rs",
        "w0.new",
        "wait w2.ag",
        "d2 g2",
        "issue g2.rs",
        "wait g1.rs",
        "w1.new",
        "wait g2.rs",
        "w2.new",
    ];
    expect(BACKWARD, How::Early, &want);
}

#[test]
fn an_update_waits_for_all_readers_of_its_parameter() {
    // The third call reads the first weight, too: its update comes after the second gather of it.
    let tied = BACKWARD.replace("all_gather %w2 ", "all_gather %w0 ");
    let got = listing(&tied, How::Early);
    let at = |line: &str| got.lines().position(|l| l == line).unwrap_or_else(|| panic!("{line}: {got}"));
    assert!(at("wait w2.ag") < at("w0.new") && at("wait g0.rs") < at("w0.new"), "{got}");
    assert!(at("wait w2.ag") < at("d2 g2"), "{got}");
}

#[test]
fn reductions_over_two_groups_follow_each_other() {
    let two = "mesh @m = [dp: 2, fsdp: 2]
func @main(%x: f32[d=4], param %w: f32[d@fsdp]) -> (f32[d@fsdp]) {
  %g = exp %x : f32[d] partial(sum: dp·fsdp)
  %h = exp %x : f32[d]
  %g.rs = reduce_scatter %g {axes=\"fsdp\"} : f32[d@fsdp] partial(sum: dp)
  %g.ar = all_reduce %g.rs {axes=\"dp\"} : f32[d@fsdp]
  %w.new = sub %w, %g.ar : f32[d@fsdp]
  return %w.new
}
entry @main
";
    let want = ["g", "issue g.rs", "issue g.ar", "h", "wait g.ar", "w.new", "wait g.rs"];
    expect(two, How::Early, &want);
}

/// A cotangent is reduced while the products of weight gradients wait for nobody.
const BODY: &str = "mesh @m = [tp: 2]
func @main(%dy: f32[b=2, d=4], %x: f32[b, e=4], %w: f32[e, d]) -> (f32[b, e], f32[e, d], f32[e]) {
  %g = einsum %x, %dy {spec=\"b e, b d -> e d\"} : f32[e, d]
  %dx = einsum %dy, %w {spec=\"b d, e d -> b e\"} : f32[b, e] partial(sum: tp)
  %dx.ar = all_reduce %dx {axes=\"tp\"} : f32[b, e]
  %n = exp %dx.ar : f32[b, e]
  %s = reduce_sum %n {spec=\"b e -> e\"} : f32[e]
  return %n, %g, %s
}
entry @main
";

#[test]
fn products_are_put_off_until_something_waits() {
    expect(BODY, How::AtOnce, &["g", "dx", "issue dx.ar", "wait dx.ar", "n", "s"]);
    expect(BODY, How::Early, &["g", "dx", "issue dx.ar", "wait dx.ar", "n", "s"]);
    expect(BODY, How::PutOff, &["dx", "issue dx.ar", "g", "wait dx.ar", "n", "s"]);
}

#[test]
fn a_gather_of_an_argument_comes_a_product_ahead() {
    let body = "mesh @m = [tp: 2]
func @main(%x: f32[b=2, d=4], %s: f32[b@tp, d], %w: f32[d, e=4]) -> (f32[b, e]) {
  %p = einsum %x, %w {spec=\"b d, d e -> b e\"} : f32[b, e]
  %q = einsum %p, %w {spec=\"b e, d e -> b d\"} : f32[b, d]
  %s.ag = all_gather %s {axes=\"tp\"} : f32[b, d]
  %t = add %q, %s.ag : f32[b, d]
  %u = einsum %t, %w {spec=\"b d, d e -> b e\"} : f32[b, e]
  %v = exp %u : f32[b, e]
  return %v
}
entry @main
";
    expect(body, How::Early, &["p", "issue s.ag", "q", "wait s.ag", "t", "u", "v"]);
}

#[test]
fn local_moves_are_no_communication() {
    let body = "mesh @m = [tp: 2]
func @main(%x: f32[b=2, d=4], %y: f32[d] partial(sum: tp)) -> (f32[b, d@tp], f32[d@tp]) {
  %y.ar = all_reduce %y {axes=\"tp\"} : f32[d]
  %a = exp %x : f32[b, d]
  %a.cut = shard %a {axes=\"tp\"} : f32[b, d@tp]
  %y.cut = shard %y.ar {axes=\"tp\"} : f32[d@tp]
  %b = exp %a.cut : f32[b, d@tp]
  return %b, %y.cut
}
entry @main
";
    // A cut of what is under way waits for it.
    let want = ["issue y.ar", "a", "issue a.cut", "wait a.cut", "b", "wait y.ar", "issue y.cut", "wait y.cut"];
    expect(body, How::Early, &want);
}

#[test]
fn a_collective_after_a_local_move_is_issued_once() {
    let body = "mesh @m = [dp: 2, tp: 2]
func @main(%x: f32[b=4, v=4@tp]) -> (f32[b@dp]) {
  %m = reduce_max %x {spec=\"b v -> b\"} : f32[b=4] partial(max: tp) @ {tp: v}
  %m.cut = shard %m {axes=\"dp\"} : f32[b@dp] partial(max: tp)
  %m.ar = all_reduce %m.cut {axes=\"tp\"} : f32[b@dp]
  %n = exp %m.ar : f32[b@dp] @ {dp: b}
  return %n
}
entry @main
";
    let want = ["m", "issue m.cut", "wait m.cut", "issue m.ar", "wait m.ar", "n"];
    expect(body, How::Early, &want);
    expect(body, How::AtOnce, &want);
}

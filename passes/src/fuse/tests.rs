//! What is fused and what must not be, on small functions.

use super::*;
use autoshard_ir::text;

/// The operations of each kernel of `@f`, in order.
fn kernels(source: &str, fusion: &Fusion) -> Vec<String> {
    let m = text::parse(source, "fuse").unwrap_or_else(|e| panic!("{e}"));
    let f = m.function("f").unwrap();
    let units = fuse(f, &m.mesh, fusion).unwrap();
    let listed = list(f, &units, &m.mesh);
    // The listing is valid text of the same nodes, each after what it reads.
    let again = text::parse(&listed, "listing").unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(again.functions[0].nodes.len(), f.nodes.len());
    let ops = |u: &Unit| u.nodes.iter().map(|n| f.node(*n).op.name).collect::<Vec<_>>().join(" ");
    units.iter().map(ops).collect()
}

const LOOPS: Fusion = Fusion::LOOPS;

#[test]
fn a_chain_is_one_kernel_and_its_inner_values_vanish() {
    let source = "func @f(%x: f32[n=4, d=8], %w: f32[d]) -> (f32[n, d]) {
  %a = exp %x : f32[n, d]
  %h = rmsnorm %a, %w {eps=1e-6} : f32[n, d]
  %y = add %h, %x : f32[n, d]
  return %y
}
";
    assert_eq!(kernels(source, &LOOPS), ["exp rmsnorm add"]);
    assert_eq!(kernels(source, &Fusion::NONE), ["exp", "rmsnorm", "add"]);
    let m = text::parse(source, "fuse").unwrap();
    let units = fuse(&m.functions[0], &m.mesh, &LOOPS).unwrap();
    // x and w are read once, y is written: nothing else touches memory.
    assert_eq!((units[0].inputs.len(), units[0].results.len()), (2, 1));
    let Work::Kernel(k) = &units[0].work else { panic!("{:?}", units[0].work) };
    assert_eq!(k.bytes, 4.0 * (32.0 + 8.0 + 32.0));
}

#[test]
fn a_value_that_others_read_stays() {
    let source = "func @f(%x: f32[n=4]) -> (f32[n], f32[n]) {
  %a = exp %x : f32[n]
  %y = neg %a : f32[n]
  return %y, %a
}
";
    assert_eq!(kernels(source, &LOOPS), ["exp neg"]);
    let m = text::parse(source, "fuse").unwrap();
    assert_eq!(fuse(&m.functions[0], &m.mesh, &LOOPS).unwrap()[0].results.len(), 2);
}

#[test]
fn what_is_read_at_another_point_is_not_joined() {
    // Transposed, sliced, or reduced over rows before it is read.
    let transposed = "func @f(%x: f32[n=4, m=4]) -> (f32[n, m]) {
  %a = exp %x : f32[n, m]
  %t = transpose %a {spec=\"n m -> m n\"} : f32[m=4, n]
  %y = add %t, %x : f32[m, n]
  return %y
}
";
    let joined = kernels(transposed, &LOOPS);
    assert!(!joined.contains(&"exp transpose add".to_string()), "{joined:?}");
    let reduced = "func @f(%x: f32[n=4, m=8]) -> (f32[n, m]) {
  %s = reduce_sum %x {spec=\"n m -> m\"} : f32[m]
  %b = broadcast %s {spec=\"m -> n m\", sizes=[4]} : f32[n, m]
  %y = mul %x, %b : f32[n, m]
  return %y
}
";
    assert_eq!(kernels(reduced, &LOOPS), ["reduce_sum", "broadcast mul"]);
}

#[test]
fn a_path_through_another_kernel_keeps_two_apart() {
    let source = "func @f(%x: f32[n=4, d=4], %w: f32[e=4, d]) -> (f32[n, e]) {
  %a = exp %x : f32[n, d]
  %p = einsum %a, %w {spec=\"n d, e d -> n e\"} : f32[n, e]
  %q = neg %p : f32[n, e]
  %z = exp %q : f32[n, e]
  return %z
}
";
    assert_eq!(kernels(source, &LOOPS), ["exp", "einsum", "neg exp"]);
    assert_eq!(kernels(source, &Fusion::ALL), ["exp", "einsum neg exp"]);
    // exp and add touch, but the product lies between them.
    let source = "func @f(%x: f32[n=4, d=4], %w: f32[e=4, d]) -> (f32[n, d], f32[n, d]) {
  %a = exp %x : f32[n, d]
  %p = einsum %a, %w {spec=\"n d, e d -> n e\"} : f32[n, e]
  %q = einsum %p, %w {spec=\"n e, e d -> n d\"} : f32[n, d]
  %z = mul %a, %q : f32[n, d]
  return %z, %q
}
";
    assert_eq!(kernels(source, &LOOPS), ["exp", "einsum", "einsum", "mul"]);
}

#[test]
fn two_sums_over_rows_and_two_types_of_arithmetic_stay_apart() {
    let sums = "func @f(%x: f32[n=4, d=8], %w: f32[d], %dy: f32[n, d]) -> (f32[n, d], f32[d], f32[d]) {
  %a, %dw = rmsnorm_bwd %x, %w, %dy {eps=1e-6} : f32[n, d], f32[d]
  %b, %dv = rmsnorm_bwd %a, %w, %dy {eps=1e-6} : f32[n, d], f32[d]
  return %b, %dw, %dv
}
";
    assert_eq!(kernels(sums, &LOOPS), ["rmsnorm_bwd", "rmsnorm_bwd"]);
    let types = "func @f(%x: f32[n=8]) -> (f64[n]) {
  %a = exp %x : f32[n]
  %b = cast %a {dtype=\"f64\"} : f64[n]
  %c = exp %b : f64[n]
  return %c
}
";
    assert_eq!(kernels(types, &LOOPS), ["exp", "cast exp"]);
}

#[test]
fn sums_start_products_unless_the_product_is_wanted_for_itself() {
    let source = |results: &str, returned: &str| {
        format!(
            "func @f(%x: f32[n=4, d=4], %w: f32[e=4, d], %r: f32[n, e]) -> ({results}) {{
  %p = einsum %x, %w {{spec=\"n d, e d -> n e\"}} : f32[n, e]
  %y = add %r, %p : f32[n, e]
  return {returned}
}}
"
        )
    };
    assert_eq!(kernels(&source("f32[n, e]", "%y"), &Fusion::ALL), ["einsum add"]);
    let m = text::parse(&source("f32[n, e]", "%y"), "fuse").unwrap();
    let units = fuse(&m.functions[0], &m.mesh, &Fusion::ALL).unwrap();
    let Work::Kernel(k) = &units[0].work else { panic!("{:?}", units[0].work) };
    let autoshard_ir::kernel::KernelBody::Gemm(g) = &k.body else { panic!("{:?}", k.body) };
    assert_eq!((g.products[0].init, g.epilogue.len()), (autoshard_ir::kernel::Init::Operand(2), 0));
    // The product leaves as well: then the sum follows it.
    let units = kernels(&source("f32[n, e], f32[n, e]", "%y, %p"), &Fusion::ALL);
    assert_eq!(units, ["einsum add"]);
    let m = text::parse(&source("f32[n, e], f32[n, e]", "%y, %p"), "fuse").unwrap();
    let units = fuse(&m.functions[0], &m.mesh, &Fusion::ALL).unwrap();
    let Work::Kernel(k) = &units[0].work else { panic!("{:?}", units[0].work) };
    let autoshard_ir::kernel::KernelBody::Gemm(g) = &k.body else { panic!("{:?}", k.body) };
    assert_eq!((g.products[0].init, g.epilogue.len()), (autoshard_ir::kernel::Init::Zero, 1));
}

#[test]
fn a_bias_follows_its_product() {
    let source = "func @f(%x: f32[n=4, d=4], %w: f32[e=4, d], %b: f32[e]) -> (f32[n, e]) {
  %p = einsum %x, %w {spec=\"n d, e d -> n e\"} : f32[n, e]
  %wide = broadcast %b {spec=\"e -> n e\", sizes=[4]} : f32[n, e]
  %y = add %p, %wide : f32[n, e]
  return %y
}
";
    assert_eq!(kernels(source, &Fusion::ALL), ["einsum broadcast add"]);
    let m = text::parse(source, "fuse").unwrap();
    let units = fuse(&m.functions[0], &m.mesh, &Fusion::ALL).unwrap();
    // x, w, b and y: neither the product nor the wide bias has memory of its own.
    assert_eq!((units[0].inputs.len(), units[0].results.len()), (3, 1));
}

#[test]
fn two_products_never_share_a_home() {
    let source = "func @f(%x: f32[n=4, d=4], %w: f32[e=4, d], %v: f32[e, d], %b: f32[e]) -> (f32[n, e], f32[n, e]) {
  %p = einsum %x, %w {spec=\"n d, e d -> n e\"} : f32[n, e]
  %q = einsum %x, %v {spec=\"n d, e d -> n e\"} : f32[n, e]
  %wide = broadcast %b {spec=\"e -> n e\", sizes=[4]} : f32[n, e]
  %y = add %p, %wide : f32[n, e]
  %z = mul %y, %q : f32[n, e]
  return %y, %z
}
";
    assert_eq!(kernels(source, &Fusion::ALL), ["einsum einsum broadcast add mul"]);
    let m = text::parse(source, "fuse").unwrap();
    let units = fuse(&m.functions[0], &m.mesh, &Fusion::ALL).unwrap();
    let Work::Kernel(k) = &units[0].work else { panic!("{:?}", units[0].work) };
    let autoshard_ir::kernel::KernelBody::Gemm(g) = &k.body else { panic!("{:?}", k.body) };
    assert_ne!(g.products[0].c, g.products[1].c);
}

/// Whether every register says truly if it is one number a row: its loads stand still along the lane, or
/// it is reduced, or all that it is made of is so.
fn marks_are_true(k: &Kernel) -> bool {
    let autoshard_ir::kernel::KernelBody::Loop(nests) = &k.body else { panic!("{:?}", k.body) };
    nests.iter().all(|n| {
        let mut uniform: Vec<bool> = Vec::new();
        for i in &n.instrs {
            use autoshard_ir::kernel::LoopOp::*;
            uniform.push(match &i.op {
                Load(v) => v.strides.last() == Some(&0),
                Const(_) | Reduce(_) => true,
                Index(l) | Table(l, _) => l + 1 < n.loops.len(),
                Random(_, s) => s.last() == Some(&0),
                Map(_) => i.args.iter().all(|a| uniform[*a]),
            });
        }
        n.instrs.iter().zip(uniform).all(|(i, u)| i.uniform == u)
    })
}

#[test]
fn a_lane_that_stays_a_lane_is_no_number_a_row() {
    for (from, spec, sizes) in [("e", "e -> n e", "4"), ("n", "n -> n e", "8")] {
        let source = format!(
            "func @f(%x: f32[n=4, e=8], %b: f32[{from}={}]) -> (f32[n, e]) {{
  %h = neg %b : f32[{from}]
  %wide = broadcast %h {{spec=\"{spec}\", sizes=[{sizes}]}} : f32[n, e]
  %y = add %x, %wide : f32[n, e]
  return %y
}}
",
            if from == "e" { 8 } else { 4 }
        );
        assert_eq!(kernels(&source, &LOOPS), ["neg broadcast add"]);
        let m = text::parse(&source, "fuse").unwrap();
        let units = fuse(&m.functions[0], &m.mesh, &LOOPS).unwrap();
        let Work::Kernel(k) = &units[0].work else { panic!("{:?}", units[0].work) };
        assert!(marks_are_true(k), "{from}: {:?}", k.body);
    }
}

#[test]
fn products_join_where_they_contract_one_operand_alike() {
    let source = "func @f(%x: f32[n=4, d=4], %dy: f32[n, e=4], %w: f32[e, d], %v: f32[e, d]) -> (f32[n, e], f32[n, e], f32[e, d]) {
  %p = einsum %x, %w {spec=\"n d, e d -> n e\"} : f32[n, e]
  %q = einsum %x, %v {spec=\"n d, e d -> n e\"} : f32[n, e]
  %g = einsum %dy, %x {spec=\"n e, n d -> e d\"} : f32[e, d]
  return %p, %q, %g
}
";
    // The gradient contracts n, the others d.
    assert_eq!(kernels(source, &Fusion::ALL), ["einsum einsum", "einsum"]);
}

#[test]
fn what_reduces_over_rows_does_not_follow_a_product() {
    let source = "func @f(%x: f32[n=4, d=4], %w: f32[e=4, d]) -> (f32[n, e], f32[e]) {
  %p = einsum %x, %w {spec=\"n d, e d -> n e\"} : f32[n, e]
  %s = reduce_sum %p {spec=\"n e -> e\"} : f32[e]
  return %p, %s
}
";
    assert_eq!(kernels(source, &Fusion::ALL), ["einsum", "reduce_sum"]);
}

#[test]
fn updates_of_many_tensors_are_few_launches() {
    let mut params = String::from("%t: f64[]");
    let (mut body, mut results) = (String::new(), Vec::new());
    for i in 0..40 {
        let n = i + 3;
        params += &format!(", %p{i}: f32[n{i}={n}], %g{i}: f32[n{i}], %m{i}: f32[n{i}], %v{i}: f32[n{i}]");
        body += &format!(
            "  %a{i}, %b{i}, %c{i} = adamw %p{i}, %g{i}, %m{i}, %v{i}, %t {{lr=0.1, beta1=0.9, beta2=0.95, eps=1e-8, weight_decay=0.1}} : f32[n{i}={n}], f32[n{i}], f32[n{i}]\n"
        );
        results.extend([format!("%a{i}"), format!("%b{i}"), format!("%c{i}")]);
    }
    let types: Vec<String> = (0..40).flat_map(|i| vec![format!("f32[n{i}={}]", i + 3); 3]).collect();
    let source = format!("func @f({params}) -> ({}) {{\n{body}  return {}\n}}\n", types.join(", "), results.join(", "));
    let units = kernels(&source, &LOOPS);
    assert_eq!(units.iter().map(|u| u.split(' ').count()).collect::<Vec<_>>(), [32, 8]);
}

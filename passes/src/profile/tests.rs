//! Profiles of a Llama layer against sizes written down by hand.

use super::*;
use autoshard_cost::stack::{AttentionKernel, Fusion, Habits};
use autoshard_ir::core::Function;

const BLOCK: &str = "
func @block(
    %x: bf16[b=2, s=64, d=32],
    %cos: bf16[s, h=4],
    %sin: bf16[s, h],
    param %wq: bf16[g=4, r=2, e=8, d],
    param %wk: bf16[g, e, d],
    param %wv: bf16[g, e, d],
    param %wo: bf16[d, g, r, e],
    param %w_gate: bf16[f=96, d],
    param %w_up: bf16[f, d],
    param %w_down: bf16[d, f],
    param %attn_norm: f32[d],
    param %mlp_norm: f32[d]
) -> (bf16[b, s, d]) {
  %a = rmsnorm %x, %attn_norm {eps=1e-6} : bf16[b, s, d]
  %q = einsum %a, %wq {spec=\"b s d, g r e d -> b s g r e\"} : bf16[b, s, g, r, e]
  %k = einsum %a, %wk {spec=\"b s d, g e d -> b s g e\"} : bf16[b, s, g, e]
  %v = einsum %a, %wv {spec=\"b s d, g e d -> b s g e\"} : bf16[b, s, g, e]
  %q.turned = rope %q, %cos, %sin : bf16[b, s, g, r, e]
  %k.turned = rope %k, %cos, %sin : bf16[b, s, g, e]
  %o, %lse = attention %q.turned, %k.turned, %v {scale=0.5, causal=1, window=0} : bf16[b, s, g, r, e], f32[b, s, g, r]
  %attn = einsum %o, %wo {spec=\"b s g r e, d g r e -> b s d\"} : bf16[b, s, d]
  %x1 = add %x, %attn : bf16[b, s, d]
  %m = rmsnorm %x1, %mlp_norm {eps=1e-6} : bf16[b, s, d]
  %gate = einsum %m, %w_gate {spec=\"b s d, f d -> b s f\"} : bf16[b, s, f]
  %up = einsum %m, %w_up {spec=\"b s d, f d -> b s f\"} : bf16[b, s, f]
  %act = swiglu %gate, %up : bf16[b, s, f]
  %down = einsum %act, %w_down {spec=\"b s f, d f -> b s d\"} : bf16[b, s, d]
  %y = add %x1, %down : bf16[b, s, d]
  return %y
}
";

fn habits() -> Habits {
    Habits {
        fusion: Fusion::Fused,
        one_kernel: Vec::new(),
        attention: AttentionKernel::Best,
        fused_loss: true,
        joint_products: false,
        dispatch_once: false,
        accumulate_fp32: true,
        async_tensor_backward: true,
        dropout: false,
        stages_inside: false,
        prefetch: true,
        tensor_overlap: false,
        data_overlap: true,
        gradient_bytes: 4.0,
        zero: 1,
        memory: Default::default(),
    }
}

fn block() -> Function {
    autoshard_ir::text::parse(BLOCK, "block").unwrap().functions[0].clone()
}

fn of(shards: &Shards, habits: &Habits, policy: &Recompute) -> Profile {
    profile(&Forward::new(block()).unwrap(), shards, habits, policy).unwrap()
}

fn products(items: &[Item]) -> Vec<[f64; 3]> {
    let size = |i: &Item| match i.work {
        Work::Product { product: p, .. } => Some([p.m, p.n, p.k]),
        _ => None,
    };
    items.iter().filter_map(size).collect()
}

fn messages(items: &[Item]) -> Vec<(Kind, Axis, f64)> {
    let message = |i: &Item| match i.work {
        Work::Message(m) => Some((m.kind, m.axis, m.bytes * m.count)),
        _ => None,
    };
    items.iter().filter_map(message).collect()
}

#[test]
fn one_rank_computes_every_product_and_its_two_gradients() {
    let p = of(&Shards::default(), &habits(), &Recompute::None);
    let n = 128.0; // tokens
    let sizes = [[n, 64.0, 32.0], [n, 32.0, 32.0], [n, 32.0, 32.0], [n, 32.0, 64.0]];
    let mlp = [[n, 96.0, 32.0], [n, 96.0, 32.0], [n, 32.0, 96.0]];
    assert_eq!(products(&p.forward), [&sizes[..], &mlp[..]].concat());
    assert!(messages(&p.forward).is_empty() && messages(&p.backward_input).is_empty());
    // Cotangents contract what the forward made, gradients of weights contract tokens.
    assert_eq!(products(&p.backward_input)[0], [n, 32.0, 64.0]);
    assert_eq!(products(&p.backward_weight)[0], [64.0, 32.0, n]);
    let parameters = 32.0 * (64.0 + 32.0 + 32.0 + 64.0) + 3.0 * 32.0 * 96.0 + 64.0;
    assert_eq!(p.parameters.dense, parameters);
    assert_eq!(p.product_flops, 2.0 * n * (parameters - 64.0));
    // Scores and their product with values, over all pairs and over those that the mask leaves.
    assert_eq!(p.attention_flops, 4.0 * 2.0 * 64.0 * 64.0 * 64.0);
    assert_eq!(p.attention_flops_causal, p.attention_flops * 65.0 / 128.0);
    assert_eq!(p.boundary_bytes, n * 32.0 * 2.0);
}

#[test]
fn tensor_parallel_layers_gather_and_reduce_as_megatron_does() {
    let whole = 2.0 * 64.0 * 32.0 * 2.0;
    let shards = Shards { tp: 4, sp: true, ..Shards::default() };
    let p = of(&shards, &habits(), &Recompute::None);
    let (ag, rs, ar) = (Kind::AllGather, Kind::ReduceScatter, Kind::AllReduce);
    let kinds = |items: &[Item]| messages(items).into_iter().map(|(k, _, b)| (k, b)).collect::<Vec<_>>();
    assert_eq!(kinds(&p.forward), [(ag, whole), (rs, whole), (ag, whole), (rs, whole)]);
    assert_eq!(kinds(&p.backward_input), [(rs, whole), (ag, whole), (rs, whole), (ag, whole)]);
    // Inputs that were gathered are gathered again for the gradients of weights.
    assert_eq!(kinds(&p.backward_weight), [(ag, whole), (ag, whole)]);
    assert_eq!(products(&p.forward)[0], [128.0, 16.0, 32.0]);
    assert_eq!(products(&p.forward)[3], [128.0, 32.0, 16.0]);
    let without = of(&Shards { sp: false, ..shards }, &habits(), &Recompute::None);
    assert_eq!(kinds(&without.forward), [(ar, whole), (ar, whole)]);
    assert_eq!(kinds(&without.backward_input), [(ar, whole), (ar, whole)]);
    assert!(messages(&without.backward_weight).is_empty());
}

#[test]
fn asynchronous_backward_hides_behind_the_other_gradient_of_the_same_product() {
    let shards = Shards { tp: 4, sp: false, ..Shards::default() };
    let p = of(&shards, &habits(), &Recompute::None);
    let behind: Vec<Behind> = p
        .backward_input
        .iter()
        .filter_map(|i| match i.work {
            Work::Message(m) => Some(m.behind),
            _ => None,
        })
        .collect();
    // The reduction of the cotangent of %a runs beside the weight gradient of %q.
    assert!(matches!(behind[0], Behind::Product(q) if [q.m, q.n, q.k] == [16.0, 32.0, 128.0]), "{behind:?}");
}

#[test]
fn products_of_one_input_are_joined_where_the_stack_joins_them() {
    let p = of(&Shards::default(), &Habits { joint_products: true, ..habits() }, &Recompute::None);
    let n = 128.0;
    assert_eq!(products(&p.forward), [[n, 128.0, 32.0], [n, 32.0, 64.0], [n, 192.0, 32.0], [n, 32.0, 96.0]]);
    assert_eq!(products(&p.backward_input)[0], [n, 32.0, 128.0]);
    assert_eq!(products(&p.backward_weight)[0], [128.0, 32.0, n]);
}

#[test]
fn key_heads_that_tp_does_not_divide_are_repeated() {
    let p = of(&Shards { tp: 8, ..Shards::default() }, &habits(), &Recompute::None);
    assert_eq!(products(&p.forward)[0], [128.0, 8.0, 32.0]);
    assert_eq!(products(&p.forward)[1], [128.0, 8.0, 32.0]);
}

#[test]
fn context_parallel_attention_moves_keys_by_its_method() {
    let of = |context| of(&Shards { cp: 2, context, ..Shards::default() }, &habits(), &Recompute::None);
    let keys = 2.0 * 2.0 * 32.0 * 32.0 * 2.0; // k and v, b, s/cp, g·e, bytes
    assert_eq!(messages(&of(Context::Ring).forward), [(Kind::SendRecv, Axis::Cp, keys)]);
    assert_eq!(messages(&of(Context::Gather).forward), [(Kind::AllGather, Axis::Cp, 2.0 * keys)]);
    let all = of(Context::Ulysses);
    assert_eq!(messages(&all.forward), [(Kind::AllToAll, Axis::Cp, keys + 2.0 * keys)]);
    let heads = |p: &Profile| {
        p.forward.iter().find_map(|i| match i.work {
            Work::Attention { attention: a, count } => Some((a.heads, a.queries, a.keys, count)),
            _ => None,
        })
    };
    assert_eq!(heads(&all), Some((4.0, 64.0, 64.0, 1.0)));
    assert_eq!(heads(&of(Context::Ring)), Some((8.0, 32.0, 32.0, 2.0)));
    assert_eq!(heads(&of(Context::Gather)), Some((8.0, 32.0, 64.0, 1.0)));
}

#[test]
fn loops_move_fewer_bytes_the_more_is_fused() {
    let bytes = |fusion| {
        let p = of(&Shards::default(), &Habits { fusion, ..habits() }, &Recompute::None);
        let loops = |items: &[Item]| -> f64 {
            items.iter().map(|i| if let Work::Loop { bytes, .. } = i.work { bytes } else { 0.0 }).sum()
        };
        (loops(&p.forward), loops(&p.backward_input))
    };
    let (eager, fused, compiled) = (bytes(Fusion::Eager), bytes(Fusion::Fused), bytes(Fusion::Compiled));
    assert!(eager.0 > fused.0 && fused.0 > compiled.0, "{eager:?} {fused:?} {compiled:?}");
    assert!(eager.1 > fused.1 && fused.1 >= compiled.1, "{eager:?} {fused:?} {compiled:?}");
    // Fused by hand: two norms and two sums of one row of 32 and their results, rope of q and k, swiglu.
    let n = 128.0 * 2.0;
    let forward = 2.0 * (n * 64.0) + 2.0 * (n * 96.0) + n * (128.0 + 64.0) + n * 288.0;
    assert_eq!(fused.0, forward);
}

#[test]
fn recomputation_repeats_what_its_policy_names() {
    let full = of(&Shards { tp: 4, sp: true, ..Shards::default() }, &habits(), &Recompute::Full);
    assert_eq!(full.recompute, full.forward);
    let parts = |part| of(&Shards::default(), &habits(), &Recompute::Parts(vec![part])).recompute;
    assert!(matches!(parts(Part::Attention)[..], [Item { work: Work::Attention { .. }, .. }]));
    assert_eq!(products(&parts(Part::Mlp)).len(), 3);
    assert_eq!(products(&parts(Part::HalfProducts)).len(), 3);
    assert_eq!(parts(Part::Norms).len(), 2);
}

#[test]
fn copies_of_a_token_share_the_way_to_a_place() {
    let of = |experts: f64, copies: f64, places: f64| Spread { experts, copies }.share(places);
    // One expert a place: every copy goes by itself. All in one place: one for all.
    assert!((of(8.0, 2.0, 8.0) - 1.0).abs() < 1e-12);
    assert!((of(64.0, 8.0, 1.0) - 1.0 / 8.0).abs() < 1e-12);
    // Two of four experts on two places: the second is with the first in one of three cases.
    assert!((of(4.0, 2.0, 2.0) - (2.0 * (1.0 - (2.0 / 4.0) * (1.0 / 3.0))) / 2.0).abs() < 1e-12);
    // 8 of 128 on 8 ranks, by counting: 8·(1 − C(112, 8)/C(128, 8))/8.
    let choose = |n: f64| (0..8).map(|i| (n - i as f64) / (8 - i) as f64).product::<f64>();
    assert!((of(128.0, 8.0, 8.0) - (1.0 - choose(112.0) / choose(128.0))).abs() < 1e-12);
}

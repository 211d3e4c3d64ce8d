//! Profiles of one function for many sizes of a micro-batch from two: every size is linear in its sequences.

use super::{Behind, Item, Message, Profile, Work};
use autoshard_cost::kernels::{Attention, Product};

/// The profile at `share` of the way from one micro-batch to another, or beyond it: of 1 and 2 sequences, that of
/// 1 + share. `None` where the two do not hold the same work in the same order. Exact but for rounding where slots of
/// experts are whole numbers of tokens; layouts and habits have to be the same.
pub fn between(one: &Profile, two: &Profile, share: f64) -> Option<Profile> {
    let list = |a: &[Item], b: &[Item]| -> Option<Vec<Item>> {
        let both = a.iter().zip(b).map(|(a, b)| item(a, b, share));
        both.collect::<Option<Vec<Item>>>().filter(|_| a.len() == b.len())
    };
    Some(Profile {
        function: one.function.clone(),
        forward: list(&one.forward, &two.forward)?,
        recompute: list(&one.recompute, &two.recompute)?,
        backward_input: list(&one.backward_input, &two.backward_input)?,
        backward_weight: list(&one.backward_weight, &two.backward_weight)?,
        parameters: one.parameters,
        product_flops: line(one.product_flops, two.product_flops, share),
        attention_flops: line(one.attention_flops, two.attention_flops, share),
        attention_flops_causal: line(one.attention_flops_causal, two.attention_flops_causal, share),
        boundary_bytes: line(one.boundary_bytes, two.boundary_bytes, share),
    })
}

fn line(one: f64, two: f64, share: f64) -> f64 {
    one + share * (two - one)
}

fn item(one: &Item, two: &Item, share: f64) -> Option<Item> {
    let on = |a: f64, b: f64| line(a, b, share);
    let work = match (&one.work, &two.work) {
        (Work::Product { product: a, weights }, Work::Product { product: b, weights: other }) if weights == other => {
            Work::Product { product: product(a, b, share)?, weights: *weights }
        }
        (Work::Attention { attention: a, count }, Work::Attention { attention: b, count: other }) => {
            Work::Attention { attention: attention(a, b, share)?, count: on(*count, *other) }
        }
        (Work::Loop { bytes: a, launches }, Work::Loop { bytes: b, launches: other }) => {
            Work::Loop { bytes: on(*a, *b), launches: on(*launches, *other) }
        }
        (Work::Message(a), Work::Message(b)) => Work::Message(message(a, b, share)?),
        _ => return None,
    };
    Some(Item { value: one.value.clone(), work, expert: one.expert }).filter(|_| one.value == two.value)
}

fn product(a: &Product, b: &Product, share: f64) -> Option<Product> {
    let on = |a: f64, b: f64| line(a, b, share);
    let made = Product { m: on(a.m, b.m), n: on(a.n, b.n), k: on(a.k, b.k), count: on(a.count, b.count), ..*a };
    Some(made).filter(|_| (a.format, a.accumulate) == (b.format, b.accumulate))
}

fn message(a: &Message, b: &Message, share: f64) -> Option<Message> {
    let beside = match (&a.beside, &b.beside) {
        (Some(a), Some(b)) => Some(product(a, b, share)?),
        (None, None) => None,
        _ => return None,
    };
    let behind = match (&a.behind, &b.behind) {
        (Behind::Product(a), Behind::Product(b)) => Behind::Product(product(a, b, share)?),
        (Behind::Nothing, Behind::Nothing) => Behind::Nothing,
        (Behind::Attention, Behind::Attention) => Behind::Attention,
        _ => return None,
    };
    let (bytes, count) = (line(a.bytes, b.bytes, share), line(a.count, b.count, share));
    Some(Message { bytes, count, beside, behind, ..*a }).filter(|_| (a.kind, a.axis) == (b.kind, b.axis))
}

fn attention(a: &Attention, b: &Attention, share: f64) -> Option<Attention> {
    let on = |a: f64, b: f64| line(a, b, share);
    let made = Attention {
        batch: on(a.batch, b.batch),
        queries: on(a.queries, b.queries),
        keys: on(a.keys, b.keys),
        heads: on(a.heads, b.heads),
        kv_heads: on(a.kv_heads, b.kv_heads),
        head_dim: on(a.head_dim, b.head_dim),
        value_dim: on(a.value_dim, b.value_dim),
        share: on(a.share, b.share),
        backward: a.backward,
    };
    Some(made).filter(|_| a.backward == b.backward)
}

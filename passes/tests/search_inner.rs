//! The inner search against enumeration, and the plans that it finds from rules alone.

use autoshard_ir::ops::{mix, GOLDEN};
use autoshard_ir::text;
use autoshard_ir::Module;
use autoshard_passes::search::inner::eliminate::{index, minimize, Table, Var};
use autoshard_passes::search::inner::{
    annotate, chain, options, pareto, walk, BlockOption, Cost, InnerError, Limits, Link, MeshAxis, Message, Place,
    Prepared, Rates, Role, State, Term,
};
use std::path::Path;

/// A Llama block: sequences, positions, width, key/value heads, queries a head, head size, MLP width.
struct Llama {
    b: usize,
    s: usize,
    d: usize,
    g: usize,
    r: usize,
    e: usize,
    f: usize,
}

const L70: Llama = Llama { b: 1, s: 8192, d: 8192, g: 8, r: 8, e: 128, f: 28672 };
const L8: Llama = Llama { b: 64, s: 8192, d: 4096, g: 8, r: 4, e: 128, f: 14336 };

impl Llama {
    fn module(&self) -> Module {
        let Llama { b, s, d, g, r, e, f } = self;
        let half = e / 2;
        let source = format!(
            r#"func @block(
    %x: bf16[b={b}, s={s}, d={d}], %cos: bf16[s, h={half}], %sin: bf16[s, h],
    param %wq: f32[g={g}, r={r}, e={e}, d], param %wk: f32[g, e, d], param %wv: f32[g, e, d], param %wo: f32[d, g, r, e],
    param %w_gate: f32[f={f}, d], param %w_up: f32[f, d], param %w_down: f32[d, f],
    param %attn_norm: f32[d], param %mlp_norm: f32[d]
) -> (bf16[b, s, d]) {{
  %a = rmsnorm %x, %attn_norm {{eps=1e-5}} : bf16[b, s, d]
  %wq.copy = cast %wq {{dtype="bf16"}} : bf16[g, r, e, d]
  %q = einsum %a, %wq.copy {{spec="b s d, g r e d -> b s g r e"}} : bf16[b, s, g, r, e]
  %wk.copy = cast %wk {{dtype="bf16"}} : bf16[g, e, d]
  %k = einsum %a, %wk.copy {{spec="b s d, g e d -> b s g e"}} : bf16[b, s, g, e]
  %wv.copy = cast %wv {{dtype="bf16"}} : bf16[g, e, d]
  %v = einsum %a, %wv.copy {{spec="b s d, g e d -> b s g e"}} : bf16[b, s, g, e]
  %q.turned = rope %q, %cos, %sin : bf16[b, s, g, r, e]
  %k.turned = rope %k, %cos, %sin : bf16[b, s, g, e]
  %o, %lse = attention %q.turned, %k.turned, %v {{scale=0.08838834764831845, causal=1, window=0}} : bf16[b, s, g, r, e], f32[b, s, g, r]
  %wo.copy = cast %wo {{dtype="bf16"}} : bf16[d, g, r, e]
  %attn = einsum %o, %wo.copy {{spec="b s g r e, d g r e -> b s d"}} : bf16[b, s, d]
  %x1 = add %x, %attn : bf16[b, s, d]
  %m = rmsnorm %x1, %mlp_norm {{eps=1e-5}} : bf16[b, s, d]
  %w_gate.copy = cast %w_gate {{dtype="bf16"}} : bf16[f, d]
  %gate = einsum %m, %w_gate.copy {{spec="b s d, f d -> b s f"}} : bf16[b, s, f]
  %w_up.copy = cast %w_up {{dtype="bf16"}} : bf16[f, d]
  %up = einsum %m, %w_up.copy {{spec="b s d, f d -> b s f"}} : bf16[b, s, f]
  %act = swiglu %gate, %up : bf16[b, s, f]
  %w_down.copy = cast %w_down {{dtype="bf16"}} : bf16[d, f]
  %down = einsum %act, %w_down.copy {{spec="b s f, d f -> b s d"}} : bf16[b, s, d]
  %y = add %x1, %down : bf16[b, s, d]
  return %y
}}
entry @block
"#
        );
        text::parse(&source, "block").unwrap_or_else(|e| panic!("{e}"))
    }
}

fn block(m: &Module) -> &autoshard_ir::Function {
    m.function("block").unwrap()
}

/// A device of 0.55 PFLOP/s and 2.8 TB/s; within a node 350 GB/s, between nodes 45 GB/s. All messages exposed, gradients
/// reduced in bf16.
fn rates(axes: usize) -> Rates {
    let all = [Link { bandwidth: 45e9, latency: 12e-6 }, Link { bandwidth: 350e9, latency: 4e-6 }];
    Rates {
        flops: 0.55e15,
        memory_bandwidth: 2.8e12,
        links: all[2 - axes..].to_vec(),
        exposed_weights: 1.0,
        gradient_bytes: 2.0,
    }
}

fn any(ways: &[usize]) -> Vec<MeshAxis> {
    let names = ["outer", "inner"];
    let skip = names.len() - ways.len();
    ways.iter().zip(&names[skip..]).map(|(w, n)| MeshAxis::new(n, *w, Role::Any)).collect()
}

/// The cheapest plan that fits: the lowest price on bytes at which it does.
fn fitting(p: &mut Prepared, bytes: f64) -> BlockOption {
    let fits = |o: &BlockOption| o.state_bytes + o.held_bytes <= bytes;
    let (mut low, mut high) = (1e-16_f64, 1e-8_f64);
    let (_, free) = p.cheapest(0.0).unwrap();
    if fits(&free) {
        return free;
    }
    for _ in 0..40 {
        let middle = (low * high).sqrt();
        if fits(&p.cheapest(middle).unwrap().1) {
            high = middle;
        } else {
            low = middle;
        }
    }
    let (_, o) = p.cheapest(high).unwrap();
    assert!(fits(&o), "nothing fits {bytes} bytes: {} of state, {} held", o.state_bytes, o.held_bytes);
    o
}

/// Messages of activations in the forward.
fn activations(o: &BlockOption) -> Vec<&Message> {
    o.messages.iter().filter(|m| !m.weight && !m.cotangent).collect()
}

fn strategy(o: &BlockOption, value: &str) -> String {
    o.strategies[value].axes().iter().map(|(a, f)| format!("{a}: {f}")).collect::<Vec<_>>().join(", ")
}

fn place(s: Place, names: &str) -> String {
    match s {
        Place::Whole => "whole".to_string(),
        Place::Partial => "partial".to_string(),
        Place::Split(d) => names.split(' ').nth(d as usize).unwrap_or("?").to_string(),
    }
}

/// The module with the option's strategies, and below it the messages that follow from them.
fn written(m: &Module, mesh: &[MeshAxis], o: &BlockOption) -> String {
    let mut out = m.clone();
    out.mesh.axes = mesh.iter().map(|a| (a.name.clone(), a.ways)).collect();
    out.functions = vec![annotate(block(m), o)];
    let printed = text::print(&out);
    assert_eq!(text::parse(&printed, "printed").unwrap_or_else(|e| panic!("{e}")), out, "parse∘print");
    let gib = |b: f64| b / (1u64 << 30) as f64;
    let mut all = format!(
        "; {:.3} ms, {:.2} GiB of state, {:.2} GiB held, {:.2} GiB transient\n; kept as made: {}\n; computed again: {}\n{printed}",
        o.seconds * 1e3,
        gib(o.state_bytes),
        gib(o.held_bytes),
        gib(o.transient_bytes),
        o.regather.join(", "),
        o.recompute.join(", "),
    );
    let f = block(m);
    for x in &o.messages {
        let dims: Vec<&str> = f.ty(f.find(&x.value).unwrap()).dims.iter().map(|d| d.name.as_str()).collect();
        let state =
            |s: &State| s[..mesh.len()].iter().map(|p| place(*p, &dims.join(" "))).collect::<Vec<_>>().join("·");
        let of = if x.cotangent { "cotangent of " } else { "" };
        let reader = if x.reader.is_empty() { String::new() } else { format!(" at %{}", x.reader) };
        all +=
            &format!("; {of}%{}{reader}: {} -> {}, {:.3} ms\n", x.value, state(&x.from), state(&x.to), x.seconds * 1e3);
    }
    all
}

/// `AUTOSHARD_BLESS=1 cargo test -p autoshard-passes --test search_inner` writes what is found now.
fn golden(name: &str, text: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden/search").join(format!("{name}.shard"));
    if std::env::var_os("AUTOSHARD_BLESS").is_some() {
        std::fs::write(&path, text).unwrap();
        return;
    }
    let want = std::fs::read_to_string(&path).unwrap_or_default();
    let at = text.lines().zip(want.lines()).position(|(a, b)| a != b).unwrap_or(0);
    let line = |s: &str| s.lines().nth(at).unwrap_or("(end)").to_string();
    assert!(text == want, "{name}: line {}:\n- {}\n+ {}\nAUTOSHARD_BLESS=1 accepts", at + 1, line(&want), line(text));
}

/// Numbers that follow from a key.
struct Draw(u64);

impl Draw {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_add(GOLDEN);
        (mix(self.0) % n as u64) as usize
    }
}

/// Every assignment of some domains.
fn assignments(domains: &[usize]) -> impl Iterator<Item = Vec<usize>> + '_ {
    (0..domains.iter().product::<usize>()).map(move |mut code| {
        let digit = |d: &usize| {
            let x = code % d;
            code /= d;
            x
        };
        domains.iter().map(digit).collect()
    })
}

fn undominated(mut all: Vec<(f64, f64)>) -> Vec<(f64, f64)> {
    all.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.total_cmp(&b.1)));
    let mut least = f64::INFINITY;
    all.retain(|(_, b)| {
        *b < least && {
            least = *b;
            true
        }
    });
    all
}

/// Sums of whole numbers, so that nothing rounds.
#[test]
fn elimination_is_enumeration_on_random_tables() {
    for case in 0..200 {
        let mut draw = Draw(case);
        let domains: Vec<usize> = (0..5).map(|_| 1 + draw.below(3)).collect();
        let terms: Vec<Term> = (0..7)
            .map(|_| {
                let mut vars: Vec<Var> = (0..1 + draw.below(3)).map(|_| Var(draw.below(5) as u32)).collect();
                vars.sort();
                vars.dedup();
                let size: usize = vars.iter().map(|v| domains[v.at()]).product();
                let mut cost = || match draw.below(10) {
                    0 => Cost::NEVER,
                    _ => Cost { seconds: draw.below(20) as f64, bytes: draw.below(20) as f64 },
                };
                let columns = (0..2).map(|_| (0..size).map(|_| cost()).collect()).collect();
                Term { vars, columns }
            })
            .collect();
        let tables: Vec<Table> = terms.iter().map(|t| t.table(0.5, 2)).collect();
        let total = |x: &[usize]| tables.iter().map(|t| t.costs[index(&t.vars, x, &domains)]).sum::<f64>();
        let keep = [Var(3), Var(0)];
        let reduced = minimize(tables.clone(), &domains, &keep);
        for d in 0..domains[3] {
            for a in 0..domains[0] {
                let fixed = |x: &Vec<usize>| x[3] == d && x[0] == a;
                let best = assignments(&domains).filter(fixed).map(|x| total(&x)).fold(f64::INFINITY, f64::min);
                assert_eq!(reduced.table.costs[d * domains[0] + a], best, "case {case}");
                if best.is_finite() {
                    assert_eq!(total(&reduced.assignment(&[d, a], &domains)), best, "case {case}");
                }
            }
        }
        front_is_enumeration(case, &terms, &domains);
    }
}

fn front_is_enumeration(case: u64, terms: &[Term], domains: &[usize]) {
    let most = 60.0;
    let mut all = Vec::new();
    for x in assignments(domains) {
        let mut sums = vec![(0.0, 0.0)];
        for t in terms {
            let at = index(&t.vars, &x, domains);
            let add = |(s, b): (f64, f64)| t.columns.iter().map(move |c| (s + c[at].seconds, b + c[at].bytes));
            sums = undominated(sums.into_iter().flat_map(add).filter(|(s, _)| s.is_finite()).collect());
        }
        all.extend(sums.into_iter().filter(|(_, b)| *b <= most));
    }
    let front = pareto::front(terms, domains, most);
    let got: Vec<(f64, f64)> = front.points.iter().map(|(c, _)| (c.seconds, c.bytes)).collect();
    assert_eq!(got, undominated(all), "case {case}");
    for (c, x) in &front.points {
        let least: f64 = terms
            .iter()
            .map(|t| t.columns.iter().map(|k| k[index(&t.vars, x, domains)].seconds).fold(f64::INFINITY, f64::min))
            .sum();
        assert!(least <= c.seconds, "case {case}: the values of a point do not give its seconds");
    }
}

/// A random function of three nodes: products, sums and norms over one stream.
fn small(key: u64) -> Module {
    let mut draw = Draw(key);
    let (mut params, mut body) = (String::new(), String::new());
    let mut streams = vec!["x".to_string()];
    for i in 0..3 {
        let x = streams[draw.below(streams.len())].clone();
        let y = streams[draw.below(streams.len())].clone();
        body += &match draw.below(4) {
            0 => {
                params += &format!(", param %w{i}: f32[d=8, k=8]");
                format!("  %v{i} = einsum %{x}, %w{i} {{spec=\"b s k, d k -> b s d\"}} : f32[b=4, s=4, d=8]\n")
            }
            1 => {
                params += &format!(", param %w{i}: f32[d=8]");
                format!("  %v{i} = rmsnorm %{x}, %w{i} {{eps=1e-5}} : f32[b=4, s=4, d=8]\n")
            }
            2 => format!("  %v{i} = add %{x}, %{y} : f32[b=4, s=4, d=8]\n"),
            _ => format!("  %v{i} = mul %{x}, %{y} : f32[b=4, s=4, d=8]\n"),
        };
        streams.push(format!("v{i}"));
    }
    let source = format!("func @block(%x: f32[b=4, s=4, d=8]{params}) -> (f32[b=4, s=4, d=8]) {{\n{body}  return %v2\n}}\nentry @block\n");
    text::parse(&source, "small").unwrap_or_else(|e| panic!("{e}"))
}

#[test]
fn search_is_brute_force_on_small_functions() {
    let mesh = [MeshAxis::new("a", 2, Role::Any)];
    let rates = Rates {
        flops: 1e6,
        memory_bandwidth: 1e6,
        links: vec![Link { bandwidth: 1e5, latency: 1e-4 }],
        exposed_weights: 1.0,
        gradient_bytes: 4.0,
    };
    let (mut tried, mut split) = (0usize, 0);
    for key in 0..60 {
        let m = small(key);
        let p = Prepared::new(block(&m), &mesh, &rates, &Limits::NONE).unwrap();
        let (terms, domains) = p.tables();
        if domains.iter().product::<usize>() > 300_000 {
            continue;
        }
        for price in [0.0, 1e-6] {
            let tables: Vec<Table> = terms.iter().map(|t| t.table(price, 2)).collect();
            let total = |x: &[usize]| tables.iter().map(|t| t.costs[index(&t.vars, x, domains)]).sum::<f64>();
            let best = assignments(domains).map(|x| total(&x)).fold(f64::INFINITY, f64::min);
            let (got, values) = p.solve(price);
            assert!((got - best).abs() <= 1e-12 * best, "{key}: search {got}, enumeration {best}");
            assert!((total(&values) - best).abs() <= 1e-12 * best, "{key}: its assignment costs {}", total(&values));
            tried += 1;
            split += usize::from(values.iter().any(|v| *v > 0));
        }
    }
    assert!(tried >= 60 && split > 0, "{tried} tried, {split} split");
}

/// One sequence: tensor parallelism with sequence parallelism (Korthikanti et al. 2022, arXiv 2205.05198, figure 5).
#[test]
fn one_long_sequence_finds_column_row_with_sequence_parallelism() {
    let m = L70.module();
    let (mesh, rates) = (any(&[8]), rates(1));
    let mut p = Prepared::new(block(&m), &mesh, &rates, &Limits::NONE).unwrap();
    let (_, o) = p.cheapest(0.0).unwrap();
    golden("llama-70b.tp8", &written(&m, &mesh, &o));
    for (value, want) in [("a", "s"), ("q", "g"), ("k", "g"), ("v", "g"), ("o", "g"), ("attn", "g"), ("x1", "s")] {
        assert_eq!(strategy(&o, value), format!("inner: {want}"), "%{value}");
    }
    for (value, want) in [("m", "s"), ("gate", "f"), ("up", "f"), ("act", "f"), ("down", "f"), ("y", "s")] {
        assert_eq!(strategy(&o, value), format!("inner: {want}"), "%{value}");
    }
    let kinds: Vec<(Place, Place)> = activations(&o).iter().map(|x| (x.from[0], x.to[0])).collect();
    let (gather, scatter) = ((Place::Split(1), Place::Whole), (Place::Partial, Place::Split(1)));
    assert_eq!(kinds, [gather, scatter, gather, scatter]);
    assert!(o.messages.iter().all(|x| !x.weight || x.value.ends_with("_norm")), "no matrix moves");
}

/// Many sequences and too little memory for whole states: the batch is split, matrices are gathered at use.
#[test]
fn many_sequences_find_fsdp() {
    let m = Llama { b: 64, ..L70 }.module();
    let (mesh, rates) = (any(&[8]), rates(1));
    let mut p = Prepared::new(block(&m), &mesh, &rates, &Limits::NONE).unwrap();
    let (_, free) = p.cheapest(0.0).unwrap();
    let o = fitting(&mut p, free.held_bytes + 2e9);
    golden("llama-70b.fsdp8", &written(&m, &mesh, &o));
    for value in ["a", "q", "k", "v", "o", "attn", "x1", "m", "gate", "up", "act", "down", "y"] {
        assert_eq!(strategy(&o, value), "inner: b", "%{value}");
    }
    assert!(activations(&o).is_empty(), "no activation moves");
    for w in ["wq", "wk", "wv", "wo", "w_gate", "w_up", "w_down"] {
        assert_eq!(o.stored[w].concat().len(), 1, "%{w} is split at rest: {:?}", o.stored[w]);
        assert!(o.messages.iter().any(|x| x.value == w && !x.cotangent), "%{w} is gathered");
        assert!(o.messages.iter().any(|x| x.value == w && x.cotangent && matches!(x.to[0], Place::Split(_))));
    }
}

/// A fast axis inside a slow one: shards inside, replicas outside.
#[test]
fn two_tiers_find_hsdp() {
    let m = L8.module();
    let (mesh, rates) = (any(&[8, 8]), rates(2));
    let mut p = Prepared::new(block(&m), &mesh, &rates, &Limits::NONE).unwrap();
    let (_, free) = p.cheapest(0.0).unwrap();
    let o = fitting(&mut p, free.held_bytes + 6e8);
    golden("llama-8b.hsdp", &written(&m, &mesh, &o));
    for value in ["a", "q", "k", "v", "o", "attn", "x1", "m", "gate", "up", "act", "down", "y"] {
        assert_eq!(strategy(&o, value), "outer: b, inner: b", "%{value}");
    }
    for w in ["wq", "wk", "wv", "wo", "w_gate", "w_up", "w_down"] {
        let axes: Vec<String> = o.stored[w].concat().iter().map(|a| a.name().to_string()).collect();
        assert_eq!(axes, ["inner"], "%{w}");
        let gradient = o.messages.iter().find(|x| x.value == w && x.cotangent).unwrap();
        assert_eq!(
            (gradient.from[0], gradient.to[0]),
            (Place::Partial, Place::Whole),
            "an all-reduce of shards outside"
        );
    }
}

/// A sequence longer than the batch can be split: what the rules find is recorded.
#[test]
fn one_very_long_sequence_is_recorded() {
    let m = Llama { b: 1, s: 131_072, ..L8 }.module();
    let (mesh, rates) = (any(&[8, 8]), rates(2));
    let mut p = Prepared::new(block(&m), &mesh, &rates, &Limits::NONE).unwrap();
    let (_, o) = p.cheapest(0.0).unwrap();
    golden("llama-8b.long", &written(&m, &mesh, &o));
}

/// Two products whose weights lie split on the width: of all strategies one has a single reduction and nothing else.
#[test]
fn column_row_is_the_only_assignment_with_one_reduction() {
    let source = r#"func @block(%x: f32[b=1, s=4, d=8], param %w: f32[f=16, d], param %v: f32[d, f]) -> (f32[b, s, d]) {
  %h = einsum %x, %w {spec="b s d, f d -> b s f"} : f32[b, s, f]
  %y = einsum %h, %v {spec="b s f, d f -> b s d"} : f32[b, s, d]
  return %y
}
entry @block
"#;
    let m = text::parse(source, "mlp").unwrap_or_else(|e| panic!("{e}"));
    let (mesh, rates) = ([MeshAxis::new("a", 4, Role::Any)], rates(1));
    let mut p = Prepared::new(block(&m), &mesh, &rates, &Limits::NONE).unwrap();
    let domains = p.tables().1.to_vec();
    let mut found = Vec::new();
    for values in assignments(&domains) {
        let o = p.option(&values);
        let at_rest = o.stored["w"][0].len() == 1 && o.stored["v"][1].len() == 1;
        let still = o.messages.iter().all(|x| !x.weight || x.cotangent);
        if !o.seconds.is_finite() || !at_rest || !still || !o.stored["x"].concat().is_empty() {
            continue;
        }
        let moves = activations(&o);
        if moves.len() == 1 && moves[0].from[0] == Place::Partial {
            found.push((strategy(&o, "h"), strategy(&o, "y")));
        }
    }
    found.dedup();
    assert_eq!(found, [("a: f".to_string(), "a: f".to_string())]);
}

#[test]
fn equal_calls_have_equal_neighbours() {
    let m = L70.module();
    let c = chain(block(&m), &any(&[8]), &rates(1), 80).unwrap().unwrap();
    assert!(c.states.windows(2).all(|w| w[0] == w[1]), "{:?}", c.states);
    assert!((c.seconds - c.alike).abs() <= 1e-9 * c.alike, "{c:?}");
    // Two states that alternate: 1 + 1 a pair, against 5 for staying.
    let table = Table { vars: vec![Var(0), Var(1)], costs: vec![5.0, 1.0, 1.0, 5.0] };
    let c = walk(&table, 2, 4);
    assert_eq!((c.seconds, c.alike), (4.0, 20.0));
    assert!(c.states.windows(2).all(|w| w[0] != w[1]));
}

#[test]
fn options_trade_time_for_memory() {
    let m = L70.module();
    let f = block(&m);
    let mesh = [MeshAxis::new("tp", 8, Role::Tp)];
    let limits = Limits { bytes: f64::INFINITY, in_flight: 4.0 };
    let all = options(f, &mesh, &rates(1), &limits).unwrap();
    let (_, fastest) = Prepared::new(f, &mesh, &rates(1), &limits).unwrap().cheapest(0.0).unwrap();
    assert!((all[0].seconds - fastest.seconds).abs() <= 1e-9 * fastest.seconds);
    assert!(all[0].recompute.is_empty() && all[0].regather.is_empty(), "{:?}", all[0].recompute);
    let bytes = |o: &BlockOption| o.state_bytes + 4.0 * o.held_bytes;
    for (i, a) in all.iter().enumerate() {
        for b in &all[..i] {
            assert!(b.seconds <= a.seconds, "not in order");
            assert!(bytes(b) > bytes(a) || b.transient_bytes > a.transient_bytes, "dominated");
        }
    }
    // Somebody computes again, somebody gathers again.
    assert!(all.iter().any(|o| !o.recompute.is_empty()) && all.iter().any(|o| !o.regather.is_empty()));
    // The smallest holds its input alone: 8192 · 8192 · 2 bytes, split 8 ways.
    let least = all.iter().map(|o| o.held_bytes).fold(f64::INFINITY, f64::min);
    assert_eq!(least, 8192.0 * 8192.0 * 2.0 / 8.0);
    let half = Limits { bytes: (bytes(&all[0]) + all[0].transient_bytes) * 0.9, ..limits };
    let some = options(f, &mesh, &rates(1), &half).unwrap();
    assert!(some.iter().all(|o| bytes(o) + o.transient_bytes <= half.bytes));
    assert!(some[0].seconds > all[0].seconds);
    let none = options(f, &mesh, &rates(1), &Limits { bytes: 1e9, ..limits }).unwrap_err();
    assert!(matches!(none, InnerError::Memory { need, .. } if need > 1e9), "{none}");
}

#[test]
fn meshes_that_do_not_hold_are_refused() {
    let m = L70.module();
    let twice = [MeshAxis::new("a", 2, Role::Tp), MeshAxis::new("a", 2, Role::Tp)];
    let e = options(block(&m), &twice, &rates(2), &Limits::NONE).unwrap_err();
    assert!(e.to_string().contains("axis a"), "{e}");
    let e = options(block(&m), &any(&[8]), &rates(2), &Limits::NONE).unwrap_err();
    assert!(e.to_string().contains("one link an axis"), "{e}");
}

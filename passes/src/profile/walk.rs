//! The walk over a function's nodes.

use super::forward::{error, is_activation, Forward};
use super::loops;
use super::messages::{change, cotangent_of, cotangent_target, wanted, State};
use super::recompute::{again, Recompute};
use super::roles::{Shards, Split, Takes, Traits};
use super::{Axis, Behind, Context, Item, Message, Parameters, Profile, ProfileError, Work};
use autoshard_cost::collectives::Kind;
use autoshard_cost::device::Format;
use autoshard_cost::kernels::{Attention, Product};
use autoshard_cost::stack::{AttentionKernel, Fusion, Habits};
use autoshard_ir::core::{Def, Function, Linearity, Node, Rule, Template, ValueId};
use autoshard_ir::DType;

/// What one rank does for a function.
///
/// # Errors
/// A node whose sizes make no sense.
pub fn profile(
    forward: &Forward,
    shards: &Shards,
    habits: &Habits,
    policy: &Recompute,
) -> Result<Profile, ProfileError> {
    let mut walk = walked(forward, shards, habits)?;
    walk.sums();
    Ok(walk.finish(policy))
}

/// The walk when it has seen every node.
pub(super) fn walked<'a>(
    forward: &'a Forward,
    shards: &'a Shards,
    habits: &'a Habits,
) -> Result<Walk<'a>, ProfileError> {
    let f = &forward.f;
    let mut walk = Walk::new(forward, shards, habits);
    let groups = forward.groups(habits.fusion);
    for i in 0..f.nodes.len() {
        if walk.idle[i] {
            continue;
        }
        walk.node(i, groups).map_err(|message| walk.error(i, message))?;
    }
    Ok(walk)
}

/// Facts about a function, and the profile in the making.
pub(super) struct Walk<'a> {
    pub f: &'a Function,
    pub shards: &'a Shards,
    pub habits: &'a Habits,
    /// By node; None for calls.
    pub rules: &'a [Option<Rule>],
    /// As in [`Forward`].
    pub traits: &'a [Traits],
    pub idle: &'a [bool],
    pub readers: &'a [Vec<usize>],
    pub weight: &'a [bool],
    pub active: &'a [bool],
    pub(super) state: Vec<State>,
    /// Changes of state that are already there: a value is gathered once for all its readers.
    moved: Vec<(ValueId, State)>,
    /// The same for cotangents.
    reduced: Vec<(ValueId, State)>,
    /// Products that later ones with the same input join, by that input.
    joint: Vec<Joint>,
    pub(super) out: Profile,
}

/// Where the products of one input are in the lists.
struct Joint {
    input: ValueId,
    k: f64,
    forward: usize,
    input_gradient: Option<usize>,
    weight_gradient: usize,
}

impl<'a> Walk<'a> {
    pub(super) fn new(forward: &'a Forward, shards: &'a Shards, habits: &'a Habits) -> Walk<'a> {
        let f = &forward.f;
        let mut walk = Walk {
            f,
            shards,
            habits,
            rules: &forward.rules,
            traits: &forward.traits,
            idle: &forward.idle,
            readers: &forward.readers,
            weight: &forward.weight,
            active: &forward.active,
            state: vec![State::Whole; f.values.len()],
            moved: Vec::new(),
            reduced: Vec::new(),
            joint: Vec::new(),
            out: Profile { function: f.name.clone(), ..Profile::default() },
        };
        for p in f.params.iter().filter(|_| shards.sp && shards.tp > 1) {
            let ty = f.ty(p.value);
            if is_activation(p.trainable, ty) && ty.dtype.is_float() && ty.dim("s").is_some() {
                walk.state[p.value.0 as usize] = State::Split(Takes::Positions);
            }
        }
        walk
    }

    pub(super) fn error(&self, node: usize, message: String) -> ProfileError {
        error(self.f, &self.f.nodes[node], message)
    }

    /// How a node's factors are split.
    pub(super) fn split(&self, node: usize) -> Split<'a> {
        Split::of(&self.traits[node], self.shards)
    }

    /// Values that cost nothing to read: weights, constants, statistics, ids.
    pub(super) fn small(&self, v: ValueId) -> bool {
        let ty = self.f.ty(v);
        self.weight[v.0 as usize] || ty.dtype == DType::I32
    }

    /// Whether a node adds a repeated parameter to an activation.
    pub(super) fn adds_bias(&self, node: usize) -> bool {
        let n = &self.f.nodes[node];
        let weights = n.inputs.iter().filter(|v| self.weight[v.0 as usize] && self.active[v.0 as usize]).count();
        let rule = self.rules[node].as_ref();
        n.inputs.len() == 2 && weights == 1 && rule.is_some_and(|r| r.linear == Linearity::Joint)
    }

    fn node(&mut self, i: usize, groups: &[usize]) -> Result<(), String> {
        let node = &self.f.nodes[i];
        let split = self.split(i);
        let routing = self.routes(node);
        let before = self.out.lists().map(|list| list.len());
        if routing.is_none() {
            self.operands(i, &split);
        }
        match (node.op.template, routing) {
            (_, Some(side)) => self.route(i, side),
            (Template::Gemm, None) => self.product(i, &split)?,
            (Template::Attention, None) => self.attention(i, &split),
            (Template::Gather, None) => self.lookup(i, &split),
            (
                Template::Loop | Template::View | Template::Scatter | Template::Sort | Template::AttentionBackward,
                None,
            ) => {
                if groups[i] == i {
                    let t = loops::traffic(self, groups, i, self.habits.fusion)?;
                    self.push_loop(i, t);
                }
            }
            (Template::Collective | Template::Call, None) => {}
        }
        self.inner(i, &split);
        if split.expert || routing.is_some() {
            for (list, before) in self.out.lists().into_iter().zip(before) {
                list[before..].iter_mut().for_each(|item| item.expert = true);
            }
        }
        for r in &self.f.nodes[i].results {
            let dims = &self.f.ty(*r).dims;
            let named = |name: &str| dims.iter().any(|d| d.name == name);
            let reduces = split.takes != Takes::None
                && matches!(self.f.nodes[i].op.template, Template::Gemm | Template::Gather)
                && self.rules[i]
                    .as_ref()
                    .is_some_and(|rule| rule.factors.iter().any(|f| split.takes.splits(&f.name) && !named(&f.name)))
                && !dims.iter().any(|d| split.takes.splits(&d.name));
            self.state[r.0 as usize] = match () {
                () if reduces && !split.expert => State::Partial,
                () if split.expert => State::Whole,
                () => wanted(split.takes, dims),
            };
        }
        Ok(())
    }

    /// Brings the operands of a node to the states that it wants, and their cotangents back.
    fn operands(&mut self, i: usize, split: &Split) {
        if split.expert {
            return;
        }
        let node = &self.f.nodes[i];
        let product = node.op.template == Template::Gemm;
        for v in &node.inputs {
            let at = v.0 as usize;
            if self.weight[at] || !self.f.ty(*v).dtype.is_float() {
                continue;
            }
            let held = self.state[at];
            let want = wanted(split.takes, &self.f.ty(*v).dims);
            let whole = self.whole_bytes(*v);
            if !self.moved.contains(&(*v, want)) {
                self.moved.push((*v, want));
                if let Some(kind) = change(held, want) {
                    let item = self.message(*v, kind, Axis::Tp, whole);
                    // A gathered input is not kept: the weight gradient gathers it again.
                    if kind == Kind::AllGather && product {
                        self.out.backward_weight.push(item.clone());
                    }
                    self.out.forward.push(item);
                }
            }
            let (cotangent, target) = (cotangent_of(want, split.takes), cotangent_target(held));
            if self.active[at] && !self.reduced.contains(&(*v, cotangent)) {
                self.reduced.push((*v, cotangent));
                if let Some(kind) = change(cotangent, target) {
                    let item = self.message(*v, kind, Axis::Tp, whole);
                    self.out.backward_input.push(item);
                }
            }
        }
    }

    fn message(&self, v: ValueId, kind: Kind, axis: Axis, bytes: f64) -> Item {
        let work = Work::Message(Message {
            kind,
            axis,
            bytes,
            count: 1.0,
            behind: Behind::Nothing,
            beside: None,
            spread: None,
        });
        Item::new(self.f.value(v).name.clone(), work)
    }

    /// Bytes of a value that the tensor-parallel ranks hold together.
    fn whole_bytes(&self, v: ValueId) -> f64 {
        let ty = self.f.ty(v);
        let share = |name: &str| if name == "s" { self.shards.cp as f64 } else { 1.0 };
        ty.dims.iter().map(|d| d.size as f64 / share(&d.name)).product::<f64>() * ty.dtype.bytes() as f64
    }

    fn product(&mut self, i: usize, split: &Split) -> Result<(), String> {
        let node = &self.f.nodes[i];
        let rule = self.rules[i].as_ref().ok_or("a product without a rule")?;
        let (left, right) = self.sides(node);
        let weights = self.weight[node.inputs[right].0 as usize];
        let [m, n, k, count] = sizes(rule, left, right, |name| split.ways(name));
        let global = sizes(rule, left, right, |_| 1.0);
        self.out.product_flops += 2.0 * global.iter().product::<f64>();
        let p = Product { format: Format::Bf16, m, n, k, count, accumulate: false };
        let name = self.f.value(node.results[0]).name.clone();
        let item = |product: Product| Item::new(name.clone(), Work::Product { product, weights });
        let input_gradient = Product { m, n: k, k: n, ..p };
        let weight_gradient = Product { m: n, n: k, k: m, accumulate: weights && self.habits.accumulate_fp32, ..p };
        let input = node.inputs[left];
        let wants_input = self.active[input.0 as usize];
        if weights && self.habits.joint_products && self.join(input, &p) {
            return Ok(());
        }
        self.out.forward.push(item(p));
        if wants_input {
            self.out.backward_input.push(item(input_gradient));
        }
        let side = if weights { &mut self.out.backward_weight } else { &mut self.out.backward_input };
        side.push(item(weight_gradient));
        if weights {
            self.joint.push(Joint {
                input,
                k,
                forward: self.out.forward.len() - 1,
                input_gradient: wants_input.then(|| self.out.backward_input.len() - 1),
                weight_gradient: self.out.backward_weight.len() - 1,
            });
        }
        Ok(())
    }

    /// Widens an earlier product of the same input instead of adding one.
    fn join(&mut self, input: ValueId, p: &Product) -> bool {
        let Some(j) = self.joint.iter().find(|j| j.input == input && j.k == p.k) else { return false };
        let same =
            |w: &Work| matches!(w, Work::Product { product, .. } if product.m == p.m && product.count == p.count);
        if !same(&self.out.forward[j.forward].work) {
            return false;
        }
        if let Work::Product { product, .. } = &mut self.out.forward[j.forward].work {
            product.n += p.n;
        }
        if let Some(Work::Product { product, .. }) = j.input_gradient.map(|at| &mut self.out.backward_input[at].work) {
            product.k += p.n;
        }
        if let Work::Product { product, .. } = &mut self.out.backward_weight[j.weight_gradient].work {
            product.m += p.n;
        }
        true
    }

    /// Which operand of a product is the activation and which the weight (or the second activation).
    fn sides(&self, node: &Node) -> (usize, usize) {
        match node.inputs[..] {
            [a, b, ..] if self.weight[a.0 as usize] && !self.weight[b.0 as usize] => (1, 0),
            _ => (0, 1),
        }
    }

    fn attention(&mut self, i: usize, split: &Split) {
        let node = &self.f.nodes[i];
        let size = |v: ValueId, at: usize| self.f.ty(v).dims.get(at).map_or(1.0, |d| d.size as f64);
        let (q, k, v) = (node.inputs[0], node.inputs[1], node.inputs[2]);
        let (b, s, g, r, e) = (size(q, 0), size(q, 1), size(q, 2), size(q, 3), size(q, 4));
        let (t, h) = (size(k, 1), size(v, 3));
        let share = causal_share(node, s, t);
        let flops = 2.0 * b * g * r * s * t * (e + h);
        self.out.attention_flops += flops;
        self.out.attention_flops_causal += flops * share;
        let cp = self.shards.cp as f64;
        let (heads, kv) = (g * r / split.ways("g") / split.ways("r"), g / split.ways("g"));
        let whole = Attention {
            batch: b,
            queries: s,
            keys: t,
            heads,
            kv_heads: kv,
            head_dim: e,
            value_dim: h,
            share,
            backward: false,
        };
        let (one, count) = match self.shards.context {
            _ if cp == 1.0 => (whole, 1.0),
            Context::Ring => (Attention { queries: s / cp, keys: t / cp, ..whole }, cp),
            Context::Ulysses => (Attention { heads: heads / cp, kv_heads: (kv / cp).max(1.0), ..whole }, 1.0),
            Context::Gather => (Attention { queries: s / cp, ..whole }, 1.0),
        };
        let value = self.f.value(node.results[0]).name.clone();
        if self.habits.attention != AttentionKernel::Unfused {
            let item = |a: Attention| Item::new(value.clone(), Work::Attention { attention: a, count });
            self.out.forward.push(item(one));
            self.out.backward_input.push(item(Attention { backward: true, ..one }));
        } else {
            self.scores(&one, count);
        }
        if cp > 1.0 {
            let width = self.f.ty(k).dtype.bytes() as f64;
            let queries = width * b * s / cp * heads;
            let keys = width * b * t / cp * kv * (e + h);
            self.context(&value, queries * e + queries * h, keys);
        }
    }

    /// Attention without a fused kernel: products over all scores, masked ones included, and a softmax kernel
    /// that reads and writes the scores once each way (Megatron's scaled masked softmax). Dropout reads and writes
    /// them again, with a mask of a byte each.
    fn scores(&mut self, a: &Attention, count: f64) {
        let n = a.batch * a.heads * count;
        let p = |m: f64, n_: f64, k: f64| Work::Product {
            product: Product { format: Format::Bf16, m, n: n_, k, count: n, accumulate: false },
            weights: false,
        };
        let named = |part: &str, work: Work| Item::new(format!("attention.{part}"), work);
        let bytes = 2.0 * n * a.queries * a.keys;
        self.out.forward.extend([
            named("qk", p(a.queries, a.keys, a.head_dim)),
            named("softmax", Work::Loop { bytes: 2.0 * bytes, launches: 1.0 }),
            named("pv", p(a.queries, a.value_dim, a.keys)),
        ]);
        self.out.backward_input.extend([
            named("dp", p(a.queries, a.keys, a.value_dim)),
            named("dv", p(a.keys, a.value_dim, a.queries)),
            named("dsoftmax", Work::Loop { bytes: 3.0 * bytes, launches: 1.0 }),
            named("dq", p(a.queries, a.head_dim, a.keys)),
            named("dk", p(a.keys, a.head_dim, a.queries)),
        ]);
        if self.habits.dropout {
            let mask = named("dropout", Work::Loop { bytes: 2.5 * bytes, launches: 1.0 });
            self.out.forward.push(mask.clone());
            self.out.backward_input.push(mask);
        }
    }

    /// Messages of context parallelism, given one rank's bytes of queries with outputs, and of keys with values.
    fn context(&mut self, value: &str, queries: f64, keys: f64) {
        let cp = self.shards.cp as f64;
        let message = |kind: Kind, bytes: f64, count: f64, behind: Behind| {
            let m = Message { kind, axis: Axis::Cp, bytes, count, behind, beside: None, spread: None };
            Item::new(value.to_string(), Work::Message(m))
        };
        let (forward, backward) = match self.shards.context {
            // Gradients of keys and values travel with them on the way back.
            Context::Ring => (
                vec![message(Kind::SendRecv, keys, cp - 1.0, Behind::Attention)],
                vec![message(Kind::SendRecv, 2.0 * keys, cp - 1.0, Behind::Attention)],
            ),
            Context::Ulysses => {
                let all = message(Kind::AllToAll, (queries + keys) / 4.0, 4.0, Behind::Nothing);
                (vec![all.clone()], vec![all])
            }
            Context::Gather => (
                vec![message(Kind::AllGather, keys * cp, 1.0, Behind::Nothing)],
                vec![
                    message(Kind::AllGather, keys * cp, 1.0, Behind::Nothing),
                    message(Kind::ReduceScatter, keys * cp, 1.0, Behind::Nothing),
                ],
            ),
        };
        self.out.forward.extend(forward);
        self.out.backward_input.extend(backward);
    }

    /// Rows of a table: read and written forward; added to the table's gradient backward.
    fn lookup(&mut self, i: usize, split: &Split) {
        let node = &self.f.nodes[i];
        // Split over the vocabulary, every rank writes rows for all tokens.
        let rows: f64 = node.results.iter().map(|r| loops::local_bytes(self.f.ty(*r), split)).sum();
        let value = self.f.value(node.results[0]).name.clone();
        let work = Work::Loop { bytes: 2.0 * rows, launches: 1.0 };
        self.out.forward.push(Item::new(value.clone(), work));
        let back = Work::Loop { bytes: 3.0 * rows, launches: 1.0 };
        self.out.backward_weight.push(Item::new(value, back));
    }

    fn push_loop(&mut self, i: usize, t: loops::Traffic) {
        let value = self.f.nodes[i].results.first().map_or(String::new(), |r| self.f.value(*r).name.clone());
        if t.forward_launches > 0.0 {
            let work = Work::Loop { bytes: t.forward, launches: t.forward_launches };
            self.out.forward.push(Item::new(value.clone(), work));
        }
        if t.backward_launches > 0.0 {
            let work = Work::Loop { bytes: t.backward, launches: t.backward_launches };
            self.out.backward_input.push(Item::new(value, work));
        }
    }

    /// Sums inside a composite over a split factor: statistics of each row, in fp32.
    fn inner(&mut self, i: usize, split: &Split) {
        let node = &self.f.nodes[i];
        let Some(rule) = &self.rules[i] else { return };
        let sums = node.op.template == Template::Loop
            && rule.body.is_none()
            && rule.factors.iter().any(|f| {
                split.takes.splits(&f.name)
                    && f.kind == autoshard_ir::core::FactorKind::Inner
                    && split.takes != Takes::Positions
            });
        if !sums || self.shards.tp == 1 {
            return;
        }
        let Some(r) = node.results.first() else { return };
        let rows = self.whole_bytes(*r) / self.f.ty(*r).dtype.bytes() as f64 * 4.0;
        let message = Message {
            kind: Kind::AllReduce,
            axis: Axis::Tp,
            bytes: rows,
            count: 3.0,
            behind: Behind::Nothing,
            beside: None,
            spread: None,
        };
        self.out.forward.push(Item::new(self.f.value(*r).name.clone(), Work::Message(message)));
    }

    /// Sums of cotangents of values that several nodes read.
    fn sums(&mut self) {
        for (at, readers) in self.readers.iter().enumerate() {
            let v = ValueId(at as u32);
            if !self.active[at] || self.weight[at] {
                continue;
            }
            let mut inputs = readers.iter().filter(|i| !self.idle[**i]).count();
            if self.habits.joint_products {
                let products = readers.iter().filter(|i| self.f.nodes[**i].op.template == Template::Gemm).count();
                inputs -= products.saturating_sub(1);
            }
            let extra = inputs.saturating_sub(1) as f64;
            if extra == 0.0 {
                continue;
            }
            let bytes = match self.f.value(v).def {
                Def::Result(n, _) => loops::local_bytes(self.f.ty(v), &self.split(n.0 as usize)),
                Def::Param(_) => {
                    let ways = if self.state[at] == State::Whole { 1.0 } else { self.shards.tp as f64 };
                    self.whole_bytes(v) / ways
                }
            };
            // A compiler adds the other cotangent where one is made: it is read once more.
            let (passes, launches) = if self.habits.fusion == Fusion::Compiled { (1.0, 0.0) } else { (3.0, extra) };
            let work = Work::Loop { bytes: passes * bytes * extra, launches };
            self.out.backward_input.push(Item::new(self.f.value(v).name.clone(), work));
        }
    }

    fn finish(mut self, policy: &Recompute) -> Profile {
        self.out.parameters = self.parameters();
        if let Some(r) = self.f.results.first() {
            let ways = match self.state[r.0 as usize] {
                State::Split(_) => self.shards.tp as f64,
                State::Whole | State::Partial => 1.0,
            };
            self.out.boundary_bytes = self.whole_bytes(*r) / ways;
            // A sum that no node of the function takes is taken before the next function.
            if self.state[r.0 as usize] == State::Partial {
                let kind = if self.shards.sp { Kind::ReduceScatter } else { Kind::AllReduce };
                let item = self.message(*r, kind, Axis::Tp, self.whole_bytes(*r));
                self.out.forward.push(item);
                if self.shards.sp {
                    let back = self.message(*r, Kind::AllGather, Axis::Tp, self.whole_bytes(*r));
                    self.out.backward_input.push(back);
                }
            }
        }
        let flags = self.habits.async_tensor_backward;
        let mut out = self.out;
        neighbours(&mut out.forward, false);
        neighbours(&mut out.backward_input, true);
        neighbours(&mut out.backward_weight, false);
        if flags {
            hide(&mut out);
        }
        out.recompute = again(&out, policy);
        out
    }

    fn parameters(&self) -> Parameters {
        let mut out = Parameters::default();
        for p in self.f.params.iter().filter(|p| p.trainable) {
            let user = self.user(p.value);
            let ty = self.f.ty(p.value);
            let split = user.map(|i| self.split(i));
            let ways = |d: &str| split.as_ref().map_or(1.0, |s| if d == "s" { 1.0 } else { s.ways(d) });
            let elements: f64 = ty.dims.iter().map(|d| d.size as f64 / ways(&d.name)).product();
            if split.as_ref().is_some_and(|s| s.expert) {
                out.expert += elements;
            } else {
                out.dense += elements;
            }
            out.tensors += 1.0;
        }
        out
    }

    /// The first node that uses a parameter with activations.
    pub(super) fn user(&self, v: ValueId) -> Option<usize> {
        let mut at = v;
        loop {
            let reader = *self.readers[at.0 as usize].first()?;
            if !self.idle[reader] {
                return Some(reader);
            }
            at = *self.f.nodes[reader].results.first()?;
        }
    }
}

/// m, n, k and count of a product: factors of the result and one operand, of both operands, of all.
fn sizes(rule: &Rule, left: usize, right: usize, ways: impl Fn(&str) -> f64) -> [f64; 4] {
    let mut out = [1.0; 4];
    let carries = |maps: &Vec<autoshard_ir::core::DimMap>, f: usize| maps.iter().any(|d| d.factors.contains(&f));
    for (i, f) in rule.factors.iter().enumerate() {
        let on = |at: usize| rule.operands.get(at).is_some_and(|m| carries(m, i));
        let result = rule.results.first().is_some_and(|m| carries(m, i));
        let slot = match (on(left), on(right), result) {
            (true, true, true) => 3,
            (true, true, false) => 2,
            (true, false, _) => 0,
            (false, _, _) => 1,
        };
        out[slot] *= f.size as f64 / ways(&f.name);
    }
    out
}

/// Share of the scores that a mask leaves.
fn causal_share(node: &Node, s: f64, t: f64) -> f64 {
    let attr = |name: &str| node.attrs.get_int(name).unwrap_or(0);
    let window = attr("window") as f64;
    let seen = match (attr("causal") != 0, window > 0.0 && window < t) {
        (true, false) => (s + 1.0) / 2.0,
        (true, true) => window - window * (window - 1.0) / (2.0 * s),
        (false, true) => (2.0 * window - 1.0).min(t),
        (false, false) => t,
    };
    seen / t
}

/// Notes beside each tensor-parallel message the product that it feeds or follows. Lists of the backward are
/// in the order of the forward, so what runs before stands behind (`mirrored`).
fn neighbours(items: &mut [Item], mirrored: bool) {
    let product = |w: &Work| match w {
        Work::Product { product, weights: true } => Some(*product),
        _ => None,
    };
    for i in 0..items.len() {
        let Work::Message(message) = items[i].work else { continue };
        let feeds = match message.kind {
            Kind::AllGather => true,
            Kind::ReduceScatter | Kind::AllReduce => false,
            Kind::AllToAll | Kind::SendRecv => continue,
        };
        let near = if feeds != mirrored {
            items[i + 1..].iter().find_map(|x| product(&x.work))
        } else {
            items[..i].iter().rev().find_map(|x| product(&x.work))
        };
        if let Work::Message(m) = &mut items[i].work {
            m.beside = near.filter(|_| message.axis == Axis::Tp);
        }
    }
}

/// Megatron's asynchronous backward: the gather of the input runs beside the input gradient, the reduction
/// of the cotangent beside the weight gradient of the same product.
fn hide(profile: &mut Profile) {
    let weight_gradient = |p: &Product| Product { m: p.k, n: p.n, k: p.m, accumulate: true, ..*p };
    for item in &mut profile.backward_weight {
        if let Work::Message(m) = &mut item.work {
            if let Some(w) = m.beside {
                m.behind = Behind::Product(Product { m: w.k, n: w.n, k: w.m, accumulate: false, ..w });
            }
        }
    }
    for item in &mut profile.backward_input {
        if let Work::Message(m) = &mut item.work {
            if matches!(m.kind, Kind::ReduceScatter | Kind::AllReduce) {
                if let Some(p) = m.beside {
                    m.behind = Behind::Product(weight_gradient(&p));
                }
            }
        }
    }
}

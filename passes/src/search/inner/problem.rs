//! The search over one function as a sum of small tables.
//!
//! Variables: a strategy for each node, a state of use for each value, a stored state for each parameter.
//! Tables: a node's own work; the change from the state in which a value is made to its state of use, and from
//! there to what a reader wants, with the transposed changes of cotangents; what is gathered of a parameter and
//! reduced of its gradient; bytes of parameters and of what the backward reads.

use super::block::{at, Block, Kind, Operator};
use super::eliminate::{Table, Var};
use super::price::{Seconds, Work};
use super::states::{seconds, Place, Shape, State, MAX_AXES, WHOLE};
use super::table::stores;
use super::{InnerError, Limits, MeshAxis, Rates, BYTES_PER_PARAMETER};
use autoshard_ir::core::{Function, ValueId};

/// Seconds and bytes: what the search adds up.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Cost {
    /// Seconds of one micro-batch, forward and backward.
    pub seconds: f64,
    /// Bytes of a rank: state, and what is held for the micro-batches in flight.
    pub bytes: f64,
}

impl Cost {
    /// What is not allowed.
    pub const NEVER: Cost = Cost { seconds: f64::INFINITY, bytes: f64::INFINITY };

    fn time(seconds: f64) -> Cost {
        Cost { seconds, bytes: 0.0 }
    }
}

/// A table whose entries offer one to three costs: keep as used, keep as made, compute again.
#[derive(Clone, Debug, PartialEq)]
pub struct Term {
    /// Variables, row-major.
    pub vars: Vec<Var>,
    /// Alternatives, each over all assignments; at least one.
    pub columns: Vec<Vec<Cost>>,
}

impl Term {
    /// The table of seconds + `price` · bytes, with the cheapest of the first `columns` alternatives of each entry.
    pub fn table(&self, price: f64, columns: usize) -> Table {
        let scalar = |c: &Cost| if c.seconds.is_finite() { c.seconds + price * c.bytes } else { f64::INFINITY };
        let least = |i: usize| self.columns.iter().take(columns).map(|c| scalar(&c[i])).fold(f64::INFINITY, f64::min);
        Table { vars: self.vars.clone(), costs: (0..self.columns[0].len()).map(least).collect() }
    }
}

/// A state of use: of the value for its readers, and in which their cotangents add up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Use {
    pub forward: State,
    pub cotangent: State,
}

/// The variables and tables of one function.
pub(super) struct Problem<'f> {
    pub block: Block<'f>,
    pub rates: &'f Rates,
    /// The rates without latencies, for parameters.
    bytes_only: Rates,
    pub limits: &'f Limits,
    /// Values of each variable.
    pub domains: Vec<usize>,
    pub terms: Vec<Term>,
    /// Per node, value and parameter: its variable.
    pub node_vars: Vec<Option<Var>>,
    pub use_vars: Vec<Option<Var>>,
    pub stored_vars: Vec<Option<Var>>,
    /// Per value and parameter: the states that the variable counts.
    pub uses: Vec<Vec<Use>>,
    pub stored: Vec<Vec<State>>,
    /// Per node, by strategy.
    pub seconds: Vec<Vec<Seconds>>,
    /// First input and first result where their types are equal: what neighbouring calls share.
    pub boundary: Option<(ValueId, ValueId)>,
}

impl<'f> Problem<'f> {
    /// With `tied`, what enters a call and what leaves it have one state, as when equal calls follow each other.
    pub(super) fn new(
        f: &'f Function,
        mesh: &'f [MeshAxis],
        rates: &'f Rates,
        limits: &'f Limits,
        tied: bool,
    ) -> Result<Problem<'f>, InnerError> {
        let block = Block::new(f, mesh)?;
        let mut p = Problem {
            boundary: boundary(f, &block),
            bytes_only: rates.without_latency(),
            rates,
            limits,
            domains: Vec::new(),
            terms: Vec::new(),
            node_vars: vec![None; f.nodes.len()],
            use_vars: vec![None; f.values.len()],
            stored_vars: vec![None; f.params.len()],
            uses: vec![Vec::new(); f.values.len()],
            stored: vec![Vec::new(); f.params.len()],
            seconds: vec![Vec::new(); f.nodes.len()],
            block,
        };
        p.nodes()?;
        p.values(tied);
        p.parameters();
        for i in 0..f.nodes.len() {
            p.edges(i);
        }
        Ok(p)
    }

    fn variable(&mut self, domain: usize) -> Var {
        self.domains.push(domain);
        Var(self.domains.len() as u32 - 1)
    }

    fn nodes(&mut self) -> Result<(), InnerError> {
        for i in 0..self.block.f.nodes.len() {
            let Some(o) = &self.block.operators[i] else { continue };
            let n = &self.block.f.nodes[i];
            let work = Work::new(self.block.f, n, o, &self.block.active).map_err(|m| self.block.error(n, m))?;
            let seconds: Vec<Seconds> =
                o.choices.iter().map(|c| work.seconds(&self.block, n, o, c, self.rates)).collect();
            let column = seconds.iter().map(|s| Cost::time(s.forward + s.backward)).collect();
            let var = self.variable(seconds.len());
            self.seconds[i] = seconds;
            self.node_vars[i] = Some(var);
            self.terms.push(Term { vars: vec![var], columns: vec![column] });
        }
        Ok(())
    }

    fn values(&mut self, tied: bool) {
        let f = self.block.f;
        for v in 0..f.values.len() {
            if self.block.kinds[v] != Kind::Stream {
                continue;
            }
            let mut uses = self.uses_of(v);
            if let Some((x, y)) = self.boundary.filter(|(x, y)| at(*x) == v || at(*y) == v) {
                uses.retain(|u| u.forward == u.cotangent);
                let other = if at(x) == v { at(y) } else { at(x) };
                let more = self.uses_of(other);
                uses.extend(
                    more.into_iter().filter(|u| u.forward == u.cotangent && !uses.contains(u)).collect::<Vec<_>>(),
                );
                uses.sort_by_key(|u| u.forward);
            } else if f.results.iter().any(|r| at(*r) == v) {
                uses.retain(|u| u.forward == u.cotangent);
            }
            let shared = self.boundary.filter(|(_, y)| tied && at(*y) == v).and_then(|(x, _)| self.use_vars[at(x)]);
            let var = shared.unwrap_or_else(|| self.variable(uses.len()));
            self.use_vars[v] = Some(var);
            self.uses[v] = uses;
        }
        for p in f.params.iter().filter(|p| self.use_vars[at(p.value)].is_some()) {
            let v = at(p.value);
            let bytes = |u: &Use| self.limits.in_flight * self.block.shapes[v].bytes(&u.forward, self.block.mesh);
            let held = |u| Cost { seconds: 0.0, bytes: if self.block.active[v] { bytes(u) } else { 0.0 } };
            let column = self.uses[v].iter().map(held).collect();
            self.terms.extend(self.use_vars[v].map(|var| Term { vars: vec![var], columns: vec![column] }));
        }
    }

    /// States of use that some neighbour makes or wants, on each axis for itself: another one would only add a change.
    fn uses_of(&self, v: usize) -> Vec<Use> {
        let b = &self.block;
        let mut places: Vec<Vec<(Place, Place)>> = vec![Vec::new(); b.mesh.len()];
        let mut add = |axis: usize, place: (Place, Place)| {
            if !places[axis].contains(&place) {
                places[axis].push(place);
            }
        };
        for (n, o) in b.f.nodes.iter().zip(&b.operators) {
            let Some(o) = o else { continue };
            for c in &o.choices {
                let results = n.results.iter().zip(&c.results).filter(|(r, _)| at(**r) == v).map(|(_, s)| (s, true));
                let inputs = n.inputs.iter().zip(&c.operands).filter(|(r, _)| at(**r) == v).map(|(_, s)| (s, false));
                for ((state, cotangent), made) in results.chain(inputs) {
                    for axis in 0..b.mesh.len() {
                        match (state[axis], cotangent[axis]) {
                            (Place::Split(d), _) => add(axis, (Place::Split(d), Place::Split(d))),
                            (Place::Partial, _) => {
                                add(axis, (Place::Partial, Place::Whole));
                                add(axis, (Place::Whole, Place::Whole));
                            }
                            (Place::Whole, Place::Partial) if !made => {
                                add(axis, (Place::Whole, Place::Whole));
                                if b.active[v] {
                                    add(axis, (Place::Whole, Place::Partial));
                                }
                            }
                            (Place::Whole, _) => add(axis, (Place::Whole, Place::Whole)),
                        }
                    }
                }
            }
        }
        let mut out = vec![Use { forward: WHOLE, cotangent: WHOLE }];
        for (axis, places) in places.iter().enumerate().filter(|(_, p)| !p.is_empty()) {
            out = product(&out, places, |u, p| {
                (u.forward[axis], u.cotangent[axis]) = *p;
            });
        }
        out.retain(|u| b.shapes[v].fits(&u.forward, b.mesh));
        out
    }

    fn parameters(&mut self) {
        let f = self.block.f;
        for (i, p) in f.params.iter().enumerate().filter(|(_, p)| p.trainable) {
            let (ty, shape) = (f.ty(p.value), &self.block.shapes[at(p.value)]);
            let names: Vec<&str> = ty.dims.iter().map(|d| d.name.as_str()).collect();
            let mut states = vec![WHOLE];
            for (axis, a) in self.block.mesh.iter().enumerate() {
                let split = |d: &usize| stores(a.role, names[*d], &names).0 && ty.dims[*d].size >= a.ways;
                let mut places: Vec<Place> = (0..names.len()).filter(split).map(|d| Place::Split(d as u8)).collect();
                let whole = names.iter().all(|n| stores(a.role, n, &names).1);
                if whole || places.is_empty() {
                    places.push(Place::Whole);
                }
                let all = product(&states, &places, |s, place| s[axis] = *place);
                let fits: Vec<State> = all.into_iter().filter(|s| shape.fits(s, self.block.mesh)).collect();
                if !fits.is_empty() {
                    states = fits; // else no dimension is long enough for one more axis: whole on it
                }
            }
            let master = ty.dtype.bytes() as f64;
            let bytes = |s: &State| Cost {
                seconds: 0.0,
                bytes: shape.bytes(s, self.block.mesh) / master * BYTES_PER_PARAMETER,
            };
            let column = states.iter().map(bytes).collect();
            let var = self.variable(states.len());
            self.stored[i] = states;
            self.stored_vars[i] = Some(var);
            self.terms.push(Term { vars: vec![var], columns: vec![column] });
        }
    }

    /// The tables between a node and its operands and results.
    fn edges(&mut self, i: usize) {
        let Some(node) = self.node_vars[i] else { return };
        let n = &self.block.f.nodes[i];
        for (k, v) in n.inputs.iter().enumerate() {
            match self.block.kinds[at(*v)] {
                Kind::Constant => {}
                Kind::Stream => self.reader(i, k, node),
                Kind::Param(p) => self.weight(i, k, p, node),
            }
        }
        for k in 0..n.results.len() {
            self.maker(i, k, node);
        }
    }

    fn reader(&mut self, i: usize, k: usize, node: Var) {
        let v = at(self.block.f.nodes[i].inputs[k]);
        let Some(var) = self.use_vars[v] else { return };
        let (choices, uses) = (self.choices(i), self.uses[v].len());
        let mut column = Vec::with_capacity(choices * uses);
        for c in 0..choices {
            for u in 0..uses {
                let (forward, backward) = self.read_change(i, k, c, u);
                column.push(if forward.is_finite() { Cost::time(forward + backward) } else { Cost::NEVER });
            }
        }
        self.terms.push(Term { vars: vec![node, var], columns: vec![column] });
    }

    fn choices(&self, i: usize) -> usize {
        self.block.operators[i].as_ref().map_or(0, |o| o.choices.len())
    }

    /// Seconds to bring operand `k` of a node from its state of use to what the node wants, and its cotangent back. If the
    /// backward reads the operand it is brought there again.
    pub(super) fn read_change(&mut self, i: usize, k: usize, choice: usize, use_: usize) -> (f64, f64) {
        let v = at(self.block.f.nodes[i].inputs[k]);
        let Some(o) = &self.block.operators[i] else { return (0.0, 0.0) };
        let (c, u) = (&o.choices[choice], self.uses[v][use_]);
        let (want, cotangent) = c.operands[k];
        if c.follows && want != u.forward {
            return (f64::INFINITY, 0.0);
        }
        let mut routed = [false; MAX_AXES];
        if o.routed_operand == Some(k) {
            routed = std::array::from_fn(|a| want[a] == Place::Whole && cotangent[a] == Place::Partial);
        }
        let again = if o.repeats(k) { 1.0 } else { 0.0 };
        let active = o.active && self.block.active[v];
        let forward = self.change(v, &u.forward, &want, &routed);
        let back = if active { self.change(v, &cotangent, &u.cotangent, &routed) } else { 0.0 };
        (forward, again * forward + back)
    }

    /// Seconds from the state in which a node makes result `k` to its state of use, and of the cotangent back.
    pub(super) fn make_change(&mut self, i: usize, k: usize, choice: usize, use_: usize) -> (f64, f64) {
        let v = at(self.block.f.nodes[i].results[k]);
        let Some(o) = &self.block.operators[i] else { return (0.0, 0.0) };
        let (made, need) = o.choices[choice].results[k];
        let u = self.uses[v][use_];
        let mut routed = [false; MAX_AXES];
        if o.routed_result {
            routed = std::array::from_fn(|a| made[a] == Place::Partial);
        }
        let forward = self.change(v, &made, &u.forward, &routed);
        let back = if self.block.active[v] { self.change(v, &u.cotangent, &need, &routed) } else { 0.0 };
        (forward, back)
    }

    fn change(&mut self, v: usize, from: &State, to: &State, routed: &[bool; MAX_AXES]) -> f64 {
        let (shape, mesh) = (&mut self.block.shapes[v], self.block.mesh);
        if routed.contains(&true) {
            seconds(shape, from, to, routed, mesh, self.rates)
        } else {
            shape.change(from, to, mesh, self.rates)
        }
    }

    fn maker(&mut self, i: usize, k: usize, node: Var) {
        let v = at(self.block.f.nodes[i].results[k]);
        let Some(var) = self.use_vars[v] else { return };
        let (choices, uses) = (self.choices(i), self.uses[v].len());
        let mut columns = vec![Vec::with_capacity(choices * uses); if self.block.saved[v] { 3 } else { 1 }];
        let first = self.first_saved(i) == Some(k);
        for c in 0..choices {
            for u in 0..uses {
                let (forward, backward) = self.make_change(i, k, c, u);
                let seconds = forward + backward;
                if !self.block.saved[v] {
                    columns[0].push(Cost::time(seconds));
                    continue;
                }
                let [used, made] = self.held(i, k, c, u).map(|b| b * self.limits.in_flight);
                let again = if first { self.seconds[i][c].forward } else { 0.0 };
                columns[0].push(Cost { seconds, bytes: used });
                columns[1].push(Cost { seconds: seconds + forward, bytes: made });
                columns[2].push(Cost::time(seconds + forward + again));
            }
        }
        self.terms.push(Term { vars: vec![node, var], columns });
    }

    /// The first result that the backward reads.
    fn first_saved(&self, i: usize) -> Option<usize> {
        self.block.f.nodes[i].results.iter().position(|r| self.block.saved[at(*r)])
    }

    /// Bytes of result `k` as it is used and as it is made.
    pub(super) fn held(&self, i: usize, k: usize, choice: usize, use_: usize) -> [f64; 2] {
        let v = at(self.block.f.nodes[i].results[k]);
        let made = self.block.operators[i].as_ref().map_or(WHOLE, |o: &Operator| o.choices[choice].results[k].0);
        let bytes = |s: &State| self.block.shapes[v].bytes(s, self.block.mesh);
        [bytes(&self.uses[v][use_].forward), bytes(&made)]
    }

    fn weight(&mut self, i: usize, k: usize, p: usize, node: Var) {
        let Some(var) = self.stored_vars[p] else { return };
        let (choices, states) = (self.choices(i), self.stored[p].len());
        let mut column = Vec::with_capacity(choices * states);
        for c in 0..choices {
            for s in 0..states {
                let [gather, reduce] = self.weight_change(i, k, p, c, s);
                column.push(Cost::time(self.rates.exposed_weights * (2.0 * gather + reduce)));
            }
        }
        self.terms.push(Term { vars: vec![node, var], columns: vec![column] });
    }

    /// Seconds to gather a parameter for one use, and to reduce its gradient into its stored state. The gather moves the
    /// copy that the node reads, the reduction as many bytes an element as the rates say. All parameters of a call are one
    /// message, so latencies are not counted.
    pub(super) fn weight_change(&self, i: usize, k: usize, p: usize, choice: usize, stored: usize) -> [f64; 2] {
        let f = self.block.f;
        let Some(o) = &self.block.operators[i] else { return [0.0; 2] };
        let (want, cotangent) = o.choices[choice].operands[k];
        let state = &self.stored[p][stored];
        let change = |shape: &Shape, from: &State, to: &State| {
            if from == to {
                return 0.0;
            }
            seconds(shape, from, to, &[false; MAX_AXES], self.block.mesh, &self.bytes_only)
        };
        let copy = &self.block.shapes[at(f.nodes[i].inputs[k])];
        let master = &self.block.shapes[at(f.params[p].value)];
        let narrow = self.rates.gradient_bytes / f.ty(f.params[p].value).dtype.bytes() as f64;
        let reduce = if o.active { narrow * change(master, &cotangent, state) } else { 0.0 };
        [change(copy, state, &want), reduce]
    }
}

/// The first input and the first result, if a result of one call may be the input of the next.
fn boundary(f: &Function, block: &Block) -> Option<(ValueId, ValueId)> {
    let y = *f.results.first()?;
    let x = f.params.iter().map(|p| p.value).find(|v| block.kinds[at(*v)] == Kind::Stream && block.active[at(*v)])?;
    (f.ty(x).same_shape(f.ty(y)) && x != y && block.kinds[at(y)] == Kind::Stream).then_some((x, y))
}

fn product<T: Clone, P>(all: &[T], places: &[P], set: impl Fn(&mut T, &P)) -> Vec<T> {
    let with = |t: &T, p: &P| {
        let mut t = t.clone();
        set(&mut t, p);
        t
    };
    all.iter().flat_map(|t| places.iter().map(move |p| (t, p))).map(|(t, p)| with(t, p)).collect()
}

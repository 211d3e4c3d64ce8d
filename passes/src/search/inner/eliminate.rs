//! Min-sum variable elimination: the least sum of tables over few variables each, exactly.
//!
//! A variable is eliminated by adding up the tables that hold it and taking the least over its values; the result
//! is a table over its neighbours (Bertelè and Brioschi 1972, *Nonserial Dynamic Programming*). The order is greedy:
//! the smallest table next. The work is that of the largest table, not of the number of assignments.

/// Index of a variable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Var(pub u32);

impl Var {
    /// As an index.
    pub fn at(self) -> usize {
        self.0 as usize
    }
}

/// A table over some variables, row-major: the last variable varies fastest.
#[derive(Clone, Debug, PartialEq)]
pub struct Table {
    /// Variables, each once.
    pub vars: Vec<Var>,
    /// One cost an assignment of them; infinite where that is not allowed.
    pub costs: Vec<f64>,
}

/// What remains of a problem over the variables that were kept.
#[derive(Clone, Debug, PartialEq)]
pub struct Reduced {
    /// Least cost by the values of the kept variables.
    pub table: Table,
    /// Largest table that was built, in variables.
    pub width: usize,
    /// Eliminated variables in order, each with its neighbours then and its best value by their values.
    steps: Vec<(Var, Vec<Var>, Vec<u32>)>,
}

impl Reduced {
    /// Values of all variables, given those of the kept ones (in the order of the table).
    pub fn assignment(&self, kept: &[usize], domains: &[usize]) -> Vec<usize> {
        let mut values = vec![0; domains.len()];
        for (v, x) in self.table.vars.iter().zip(kept) {
            values[v.at()] = *x;
        }
        for (v, scope, best) in self.steps.iter().rev() {
            values[v.at()] = best[index(scope, &values, domains)] as usize;
        }
        values
    }
}

/// Position of an assignment in a row-major table over `vars`.
pub fn index(vars: &[Var], values: &[usize], domains: &[usize]) -> usize {
    vars.iter().fold(0, |at, v| at * domains[v.at()] + values[v.at()])
}

/// Number of assignments of some variables.
pub fn size(vars: &[Var], domains: &[usize]) -> usize {
    vars.iter().map(|v| domains[v.at()]).product()
}

/// The order in which to eliminate all variables but `keep`, smallest table first, and each one's neighbours then.
pub fn order(scopes: &[&[Var]], domains: &[usize], keep: &[Var]) -> Vec<(Var, Vec<Var>)> {
    let mut scopes: Vec<Vec<Var>> = scopes.iter().map(|s| s.to_vec()).collect();
    let mut left: Vec<Var> = (0..domains.len() as u32).map(Var).filter(|v| !keep.contains(v)).collect();
    let mut out = Vec::new();
    while !left.is_empty() {
        let neighbours = |v: Var| {
            let mut all: Vec<Var> = scopes.iter().filter(|s| s.contains(&v)).flatten().copied().collect();
            all.sort();
            all.dedup();
            all.retain(|u| *u != v);
            all
        };
        let weigh = |v: &Var| (size(&neighbours(*v), domains).saturating_mul(domains[v.at()]), *v);
        let Some(next) = left.iter().copied().min_by_key(weigh) else { break };
        let scope = neighbours(next);
        scopes.retain(|s| !s.contains(&next));
        scopes.push(scope.clone());
        left.retain(|v| *v != next);
        out.push((next, scope));
    }
    out
}

/// The least sum of `tables`, by the values of `keep`.
pub fn minimize(tables: Vec<Table>, domains: &[usize], keep: &[Var]) -> Reduced {
    let scopes: Vec<&[Var]> = tables.iter().map(|t| &t.vars[..]).collect();
    let order = order(&scopes, domains, keep);
    let (mut tables, mut steps, mut width) = (tables, Vec::new(), 0);
    for (v, scope) in order {
        let (with, without): (Vec<Table>, Vec<Table>) = tables.into_iter().partition(|t| t.vars.contains(&v));
        tables = without;
        let mut all = scope.clone();
        all.push(v);
        width = width.max(all.len());
        let sum = sum(&with, &all, domains);
        let rows = sum.chunks_exact(domains[v.at()]).map(least);
        let (best, costs): (Vec<u32>, Vec<f64>) = rows.unzip();
        steps.push((v, scope.clone(), best));
        tables.push(Table { vars: scope, costs });
    }
    let costs = sum(&tables, keep, domains);
    Reduced { table: Table { vars: keep.to_vec(), costs }, width, steps }
}

/// The first of the smallest.
fn least(costs: &[f64]) -> (u32, f64) {
    let mut best = (0, f64::INFINITY);
    for (i, c) in costs.iter().enumerate() {
        if *c < best.1 {
            best = (i as u32, *c);
        }
    }
    best
}

/// Sum of tables over `vars`, which hold all of their variables.
fn sum(tables: &[Table], vars: &[Var], domains: &[usize]) -> Vec<f64> {
    let mut out = vec![0.0; size(vars, domains)];
    for t in tables {
        let strides = strides(&t.vars, vars, domains);
        let mut walk = Walk::new(vars, &strides, domains);
        for x in &mut out {
            *x += t.costs[walk.at];
            walk.next();
        }
    }
    out
}

/// Per variable of `over`, the step of its value in a table over `vars` (0 if the table lacks it).
pub fn strides(vars: &[Var], over: &[Var], domains: &[usize]) -> Vec<usize> {
    over.iter().map(|v| vars.iter().position(|u| u == v).map_or(0, |p| size(&vars[p + 1..], domains))).collect()
}

/// Walks the assignments of some variables in row-major order and keeps the place in a table of fewer.
pub struct Walk {
    /// Place in the table.
    pub at: usize,
    values: Vec<usize>,
    strides: Vec<usize>,
    sizes: Vec<usize>,
}

impl Walk {
    /// At the first assignment.
    pub fn new(vars: &[Var], strides: &[usize], domains: &[usize]) -> Walk {
        let sizes = vars.iter().map(|v| domains[v.at()]).collect();
        Walk { at: 0, values: vec![0; vars.len()], strides: strides.to_vec(), sizes }
    }

    /// To the next assignment; from the last to the first.
    #[allow(clippy::should_implement_trait)]
    pub fn next(&mut self) {
        for p in (0..self.values.len()).rev() {
            self.values[p] += 1;
            self.at += self.strides[p];
            if self.values[p] < self.sizes[p] {
                return;
            }
            self.at -= self.strides[p] * self.sizes[p];
            self.values[p] = 0;
        }
    }
}

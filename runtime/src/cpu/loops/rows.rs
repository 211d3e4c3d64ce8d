//! What follows products on each panel of rows: the nests of an epilogue, restricted to the panel.

use super::code::Code;
use super::machine::Machine;
use super::{Elem, Partials, Plan, Run, Schedule};
use crate::cpu::{Call, KernelError, Task};
use autoshard_ir::kernel::{Extent, LoopKernel, LoopOp};
use std::cell::UnsafeCell;
use std::ops::Range;

/// A panel: entries of the loops over rows, as one range of rows.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Cut {
    /// First entry of each loop.
    first: Vec<usize>,
    /// How many entries of each.
    lens: Vec<usize>,
    /// The rows, counted over all loops.
    pub rows: Range<usize>,
}

impl Cut {
    /// Cuts the real entries of `loops` into panels of at most `most` rows where the inner loops allow:
    /// a panel is a range of one loop, with one entry of each loop around and all entries inside.
    pub fn all(task: &Task, loops: &[Extent], most: usize) -> Vec<Cut> {
        let lens: Vec<usize> = loops.iter().map(|e| task.range(e).len).collect();
        let rows: usize = lens.iter().product();
        let mut at = lens.len();
        let mut inner = 1;
        while at > 0 && inner * lens[at - 1] <= most {
            at -= 1;
            inner *= lens[at];
        }
        if at == 0 || rows == 0 {
            let all = Cut { first: vec![0; lens.len()], lens, rows: 0..rows };
            return if rows == 0 { vec![] } else { vec![all] };
        }
        let len = lens[at - 1];
        let pieces = (len * inner).div_ceil(most.max(inner)).min(len).max(1);
        let size = len.div_ceil(pieces);
        let mut cuts = vec![];
        for start in (0..rows / inner).filter(|r| (r % len).is_multiple_of(size)) {
            let mut first = vec![0; lens.len()];
            crate::cpu::unpack(start, lens[..at].iter().copied(), &mut first[..at]);
            let n = size.min(len - start % len);
            let mut each = vec![1; at];
            each[at - 1] = n;
            each.extend(&lens[at..]);
            cuts.push(Cut { first, lens: each, rows: start * inner..(start + n) * inner });
        }
        cuts
    }
}

/// A nest on panels, for each size of panel.
#[derive(Debug)]
struct Panels {
    /// Sizes, and the nest resolved for each.
    sizes: Vec<(Vec<usize>, Code, Schedule)>,
    /// Its combining stores lack the rows: their accumulators are kept per panel.
    reduces_rows: bool,
}

/// The nests of an epilogue.
#[derive(Debug)]
pub(crate) struct Epilogue {
    cuts: Vec<Cut>,
    panels: Vec<Panels>,
    /// Nests that run after all panels, one after another.
    late: Vec<Plan>,
}

impl Epilogue {
    /// Resolves nests whose first loops are `rows`. Without cuts all run after the products.
    pub fn new(
        task: &Task,
        nests: &[LoopKernel],
        rows: &[Extent],
        cuts: Option<&[Cut]>,
    ) -> Result<Epilogue, KernelError> {
        let mut epilogue = Epilogue { cuts: cuts.unwrap_or_default().to_vec(), panels: vec![], late: vec![] };
        for k in nests {
            let same = |(a, b): (&Extent, &Extent)| (a.size, a.global, &a.axes) == (b.size, b.global, &b.axes);
            if k.loops.len() < rows.len() || !k.loops.iter().zip(rows).all(same) {
                return Err(task.malformed("what follows a product does not begin with its rows"));
            }
            // One nest after a late one may read its results.
            let panels = match cuts {
                Some(cuts) if epilogue.late.is_empty() => Panels::new(task, k, rows, cuts)?,
                _ => None,
            };
            match panels {
                Some(p) => epilogue.panels.push(p),
                None => epilogue.late.push(Plan::new(task, std::slice::from_ref(k))?),
            }
        }
        Ok(epilogue)
    }

    /// Begins a run.
    pub fn start<'a>(&'a self, call: &'a Call<'a>) -> Rows<'a> {
        let partials = self.panels.iter().map(|p| {
            let len = if p.reduces_rows { self.cuts.len() * p.accumulated() } else { 0 };
            Partials(UnsafeCell::new(vec![0.0; len]))
        });
        Rows { epilogue: self, call, partials: partials.collect() }
    }

    /// The nests, as resolved for whole ranges or for panels.
    pub(super) fn codes(&self) -> impl Iterator<Item = (&Code, Vec<usize>)> {
        let panels = self.panels.iter().flat_map(|p| self.cuts.iter().map(|c| (p.of(c).0, p.shift(c))));
        panels.chain(self.late.iter().flat_map(|p| p.nests.iter().map(|(code, _)| (code, vec![]))))
    }
}

impl Panels {
    /// `None` if panels cannot run the nest: a combining store has some of the rows' loops but not
    /// all, or the lane is one of them and reduced.
    fn new(task: &Task, k: &LoopKernel, rows: &[Extent], cuts: &[Cut]) -> Result<Option<Panels>, KernelError> {
        let long: Vec<usize> = (0..rows.len()).filter(|l| task.range(&rows[*l]).len > 1).collect();
        let combining = || k.stores.iter().filter(|s| s.combine.is_some());
        let has =
            |n: usize| combining().all(|s| long.iter().filter(|l| s.view.strides.get(**l) != Some(&0)).count() == n);
        let (keeps, lacks) = (has(long.len()), has(0));
        // Panels would cut a lane that is a loop over rows.
        let cuts_lane = k.loops.len() == rows.len() && k.instrs.iter().any(|i| matches!(i.op, LoopOp::Reduce(_)));
        if (!keeps && !lacks) || cuts_lane {
            return Ok(None);
        }
        let reduces_rows = combining().next().is_some() && lacks;
        let whole: Vec<usize> = rows.iter().map(|e| task.range(e).len).collect();
        let mut sizes: Vec<(Vec<usize>, Code, Schedule)> = vec![];
        // Without rows, the nest still says what reductions over nothing give.
        for lens in cuts.iter().map(|c| &c.lens).chain(cuts.is_empty().then_some(&whole)) {
            if sizes.iter().all(|s| s.0 != *lens) {
                let code = Code::new(task, k, lens)?;
                let schedule = Schedule::new(&code, false);
                sizes.push((lens.clone(), code, schedule));
            }
        }
        Ok(Some(Panels { sizes, reduces_rows }))
    }

    fn of(&self, cut: &Cut) -> (&Code, &Schedule) {
        let found = self.sizes.iter().find(|s| s.0 == cut.lens).unwrap_or(&self.sizes[0]);
        (&found.1, &found.2)
    }

    /// What the panel adds to each column.
    fn shift(&self, cut: &Cut) -> Vec<usize> {
        let offset = |strides: &Vec<usize>| cut.first.iter().zip(strides).map(|(f, s)| f * s).sum();
        self.of(cut).0.strides.iter().map(offset).collect()
    }

    /// Accumulators of a panel.
    fn accumulated(&self) -> usize {
        self.sizes[0].2.units() * self.sizes[0].2.accumulated()
    }
}

/// An epilogue while it runs.
pub(crate) struct Rows<'a> {
    epilogue: &'a Epilogue,
    call: &'a Call<'a>,
    /// Per nest, the accumulators of its panels.
    partials: Vec<Partials>,
}

impl Rows<'_> {
    /// Runs the nests on a panel.
    ///
    /// # Safety
    /// As for [`crate::cpu::Prepared::run`]; each panel is run once, after its products.
    pub unsafe fn run(&self, panel: usize) {
        let cut = &self.epilogue.cuts[panel];
        for (p, partials) in self.epilogue.panels.iter().zip(&self.partials) {
            let (code, schedule) = p.of(cut);
            let mut run = Run::new(self.call, code, schedule);
            run.shift = p.shift(cut);
            for t in 0..schedule.tasks() {
                // SAFETY: the caller's promise.
                unsafe {
                    match p.reduces_rows {
                        false => run.task(t),
                        true if code.double => reduce::<f64>(&run, t, panel, partials),
                        true => reduce::<f32>(&run, t, panel, partials),
                    }
                }
            }
        }
    }

    /// Combines the accumulators of panels in order, and runs the late nests.
    ///
    /// # Safety
    /// As for [`crate::cpu::Prepared::run`]; all panels have run.
    pub unsafe fn finish(&self) {
        for (p, partials) in self.epilogue.panels.iter().zip(&self.partials).filter(|(p, _)| p.reduces_rows) {
            let (_, code, schedule) = &p.sizes[0];
            let run = Run::new(self.call, code, schedule);
            let (units, len) = (schedule.units(), schedule.accumulated());
            Machine::<f64>::with(&run, |machine| {
                let mut total = vec![0.0; len];
                for unit in 0..units {
                    machine.clear(&mut total);
                    // SAFETY: the panels are done; this thread alone goes on.
                    unsafe {
                        for panel in 0..self.epilogue.cuts.len() {
                            machine.combine(&mut total, partials.of(panel * units + unit, len));
                        }
                        machine.finish(unit, &total);
                    }
                }
            });
        }
        for plan in &self.epilogue.late {
            // SAFETY: the caller's promise.
            unsafe { plan.run(self.call) };
        }
    }
}

/// Runs a task of a nest whose accumulators wait for the other panels.
unsafe fn reduce<E: Elem>(run: &Run, task: usize, panel: usize, partials: &Partials) {
    let (units, len) = (run.schedule.units(), run.schedule.accumulated());
    Machine::<E>::with(run, |machine| {
        for unit in task * run.schedule.group..units.min((task + 1) * run.schedule.group) {
            // SAFETY: the caller's promise; each panel's unit has accumulators of its own.
            unsafe { machine.reduce(unit, 0, partials.of(panel * units + unit, len)) };
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::testing::*;
    use autoshard_ir::kernel::KernelBody;
    use std::cell::RefCell;

    #[test]
    fn cuts_cover_the_rows_in_order() {
        let k = kernel(0, 0, KernelBody::Loop(vec![]));
        let mesh = mesh();
        let task = Task { kernel: &k, mesh: &mesh, coords: &[0], needs: RefCell::new(vec![]) };
        for (lens, most, want) in [
            (vec![8, 256], 96, 24),
            (vec![8, 256], 256, 8),
            (vec![8, 256], 600, 4),
            (vec![7, 3, 5], 4, 42),
            (vec![7, 3, 5], 1000, 1),
            (vec![10], 3, 4),
            (vec![], 3, 1),
            (vec![4, 0], 3, 0),
        ] {
            let loops: Vec<Extent> = lens.iter().map(|n| whole("x", *n)).collect();
            let cuts = Cut::all(&task, &loops, most);
            assert_eq!(cuts.len(), want, "{lens:?} {most}");
            let mut at = 0;
            for c in &cuts {
                assert_eq!(c.rows.start, at);
                assert_eq!(c.lens.iter().product::<usize>(), c.rows.len());
                at = c.rows.end;
            }
            assert_eq!(at, lens.iter().product::<usize>());
        }
    }
}

//! What is open in a base, by lower bounds: the least one is looked at next.

use super::leaf::Leaf;
use crate::predict::Layout;
use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;
use std::rc::Rc;

/// A plan in one order of its axes.
pub(crate) struct Plan {
    pub leaf: Rc<Leaf>,
    pub layout: Layout,
}

/// What may be looked at next, from what decides least to what decides all.
pub(crate) enum Step {
    /// A pipeline, by its number.
    Pipeline(usize),
    /// A plan before orders of axes.
    Leaf(Leaf),
    /// A plan bounded in closed form.
    Plan(Plan),
    /// A plan whose pipeline was played.
    Played(Plan),
}

/// Steps by their bounds; of equal ones the first that came.
#[derive(Default)]
pub(crate) struct Open {
    /// By how much a step decides.
    heaps: [BinaryHeap<Entry>; 4],
    steps: usize,
}

struct Entry {
    bound: Reverse<Total>,
    number: Reverse<usize>,
    step: Step,
}

#[derive(Clone, Copy, PartialEq)]
struct Total(f64);

impl Open {
    pub fn push(&mut self, bound: f64, step: Step) {
        let depth = match step {
            Step::Pipeline(_) => 0,
            Step::Leaf(_) => 1,
            Step::Plan(_) => 2,
            Step::Played(_) => 3,
        };
        self.steps += 1;
        self.heaps[depth].push(Entry { bound: Reverse(Total(bound)), number: Reverse(self.steps), step });
    }

    /// The step with the least bound; with `deepest` the one that decides most, which soon leads to some plan.
    pub fn pop(&mut self, deepest: bool) -> Option<(f64, Step)> {
        let mut tops = self.heaps.iter().enumerate().filter_map(|(depth, heap)| Some((depth, heap.peek()?)));
        let (depth, _) = match deepest {
            true => tops.next_back(),
            false => tops.max_by(|a, b| a.1.cmp(b.1)),
        }?;
        self.heaps[depth].pop().map(|e| (e.bound.0 .0, e.step))
    }
}

impl Eq for Total {}

impl Ord for Total {
    fn cmp(&self, other: &Total) -> Ordering {
        self.0.total_cmp(&other.0)
    }
}

impl PartialOrd for Total {
    fn partial_cmp(&self, other: &Total) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Entry {
    fn eq(&self, other: &Entry) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Entry {}

impl Ord for Entry {
    fn cmp(&self, other: &Entry) -> Ordering {
        (self.bound, self.number).cmp(&(other.bound, other.number))
    }
}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Entry) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

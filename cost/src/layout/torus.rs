//! The slice of a torus that a job gets, and the axes of it that a group of ranks has.

use super::count::Digit;

/// One axis of a slice, or what is left of it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Axis {
    /// Chips along it.
    pub length: u64,
    /// Whether the last is joined to the first.
    pub wraps: bool,
}

/// The nearest to a square or cube of `devices` chips that a pod with these axes has.
///
/// An axis wraps around where it is the pod's whole axis; in pods of three axes, which are cubes of 4×4×4 joined
/// by optical switches, also where it is a multiple of 4 (cloud.google.com/tpu/docs: v4, v5p, v5e). A job that
/// no slice holds exactly is taken to be on the whole pod.
pub(super) fn slice(pod: &[u64], devices: u64) -> Vec<Axis> {
    let cubes = pod.len() == 3;
    let axis = |length: u64| Axis {
        length,
        wraps: length > 2 && (pod.contains(&length) || (cubes && length.is_multiple_of(4))),
    };
    let mut sorted = pod.to_vec();
    sorted.sort_unstable();
    let mut best: Option<Vec<u64>> = None;
    fill(&sorted, devices, &mut Vec::new(), &mut best);
    best.unwrap_or(sorted).into_iter().map(axis).collect()
}

/// Tries all ways to write `left` as a rising product of lengths that the remaining axes have; keeps the one with
/// the smallest sum.
fn fill(axes: &[u64], left: u64, chosen: &mut Vec<u64>, best: &mut Option<Vec<u64>>) {
    let Some((axis, rest)) = axes.split_first() else {
        let shorter = |b: &Vec<u64>| chosen.iter().sum::<u64>() < b.iter().sum();
        if left == 1 && best.as_ref().is_none_or(shorter) {
            *best = Some(chosen.clone());
        }
        return;
    };
    let from = chosen.last().copied().unwrap_or(1);
    for length in (from..=*axis).filter(|l| left.is_multiple_of(*l)) {
        chosen.push(length);
        fill(rest, left / length, chosen, best);
        chosen.pop();
    }
}

/// The axes of the ranks that vary, when digits, innermost first, take axes as JAX's `create_device_mesh` does:
/// each as many whole axes as multiply to its size, else whole axes as long as they divide it and a part of the
/// next, which has no way around.
pub(super) fn taken(slice: &[Axis], digits: &[Digit]) -> Vec<Axis> {
    let mut free = slice.to_vec();
    let mut out = Vec::new();
    for digit in digits {
        let axes = whole(&mut free, digit.size).unwrap_or_else(|| parts(&mut free, digit.size));
        if digit.varies {
            out.extend(axes);
        }
    }
    out
}

/// Takes the most axes that multiply to `size`.
fn whole(free: &mut Vec<Axis>, size: u64) -> Option<Vec<Axis>> {
    let subsets = 1u32 << free.len().min(8);
    let product =
        |set: u32| free.iter().enumerate().filter(|(i, _)| set >> i & 1 == 1).map(|(_, a)| a.length).product();
    let fits = (1..subsets).filter(|set| size == product(*set)).max_by_key(|set| set.count_ones())?;
    let mut at = 0;
    let mut out = Vec::new();
    free.retain(|a| {
        let take = fits >> at & 1 == 1;
        at += 1;
        if take {
            out.push(*a);
        }
        !take
    });
    Some(out)
}

fn parts(free: &mut Vec<Axis>, mut size: u64) -> Vec<Axis> {
    let mut out = Vec::new();
    while size > 1 {
        let Some(first) = free.first_mut() else { break };
        if size.is_multiple_of(first.length) {
            size /= first.length;
            out.push(free.remove(0));
        } else {
            let part = size.min(first.length);
            out.push(Axis { length: part, wraps: false });
            *first = Axis { length: (first.length / part).max(1), wraps: false };
            break;
        }
    }
    out.retain(|a| a.length > 1);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lengths(axes: &[Axis]) -> Vec<u64> {
        axes.iter().map(|a| a.length).collect()
    }

    #[test]
    fn slices_have_the_shapes_that_are_sold() {
        let v5p = [16, 20, 28];
        for (chips, shape) in [
            (16, [2, 2, 4]),
            (64, [4, 4, 4]),
            (128, [4, 4, 8]),
            (256, [4, 8, 8]),
            (1024, [8, 8, 16]),
            (2048, [8, 16, 16]),
            (6144, [16, 16, 24]),
        ] {
            let slice = slice(&v5p, chips);
            assert_eq!(lengths(&slice), shape);
            assert_eq!(slice.iter().all(|a| a.wraps), chips >= 64, "{chips}");
        }
        assert_eq!(slice(&[16, 16], 128), [Axis { length: 8, wraps: false }, Axis { length: 16, wraps: true }]);
        assert_eq!(lengths(&slice(&v5p, 8961)), v5p);
    }

    #[test]
    fn each_digit_takes_axes_of_its_own() {
        let digit = |size, varies| Digit { size, varies };
        let cube = slice(&[16, 20, 28], 128);
        assert_eq!(lengths(&taken(&cube, &[digit(8, true), digit(16, false)])), [8]);
        assert_eq!(lengths(&taken(&cube, &[digit(8, false), digit(16, true)])), [4, 4]);
        // Half an axis has no way around; the rest has what is left.
        let half = taken(&slice(&[16, 16], 256), &[digit(8, true), digit(32, false)]);
        assert_eq!(half, [Axis { length: 8, wraps: false }]);
        let rest = taken(&slice(&[16, 16], 256), &[digit(8, false), digit(32, true)]);
        assert_eq!(lengths(&rest), [2, 16]);
    }
}

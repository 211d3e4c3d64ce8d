//! Max-min fairness on one link.

/// The level of a link of bandwidth 1 that is divided among tasks which would take `demands` (each above 0, at
/// most 1) alone: a task gets its demand, or the level where that is less. Reorders the demands.
///
/// Max-min fairness: nobody gets more than it demands, and what is left is divided evenly among those that
/// want more (Bertsekas and Gallager, *Data Networks*, section 6.5). Those that demand no more than an even
/// part get all they want, which leaves a larger part for the others: repeat until that satisfies nobody.
pub fn level(demands: &mut [f64]) -> f64 {
    let (mut left, mut open) = (1.0, demands.len());
    while open > 0 {
        let part = left / open as f64;
        // Open demands stay in front; a satisfied one gives its place to the last.
        let (before, mut i) = (open, 0);
        while i < open {
            if demands[i] <= part {
                left -= demands[i];
                open -= 1;
                demands.swap(i, open);
            } else {
                i += 1;
            }
        }
        if open == before {
            return part;
        }
    }
    1.0
}

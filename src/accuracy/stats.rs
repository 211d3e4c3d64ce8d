//! Statistics of errors. Pure functions over values with weights; nothing here knows what was measured.

/// A value and how many votes it has.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Vote {
    /// The value.
    pub value: f64,
    /// Its weight, above 0.
    pub weight: f64,
}

/// One vote for every value.
pub fn equal(values: &[f64]) -> Vec<Vote> {
    values.iter().map(|&value| Vote { value, weight: 1.0 }).collect()
}

/// The same votes with other values.
pub fn map(votes: &[Vote], f: impl Fn(f64) -> f64) -> Vec<Vote> {
    votes.iter().map(|v| Vote { value: f(v.value), weight: v.weight }).collect()
}

/// Mean. `None` without values.
pub fn mean(votes: &[Vote]) -> Option<f64> {
    let weight: f64 = votes.iter().map(|v| v.weight).sum();
    (weight > 0.0).then(|| votes.iter().map(|v| v.value * v.weight).sum::<f64>() / weight)
}

/// The `q`-quantile (0–1), linear between values: in rising order, each value stands at the middle of its
/// weight, the first at 0 and the last at 1. With equal weights that is the usual definition in which `n`
/// values stand at k/(n−1) (numpy's default); the median of an even number is the mean of the middle two.
/// `None` without values.
pub fn quantile(votes: &[Vote], q: f64) -> Option<f64> {
    let mut sorted = votes.to_vec();
    sorted.sort_by(|a, b| a.value.total_cmp(&b.value));
    let (first, last) = (sorted.first()?, sorted.last()?);
    let total: f64 = sorted.iter().map(|v| v.weight).sum();
    let span = total - (first.weight + last.weight) / 2.0;
    let target = q.clamp(0.0, 1.0) * span;
    let (mut before, mut at, mut low) = (0.0, 0.0, first.value);
    for v in &sorted {
        let here = before + v.weight / 2.0 - first.weight / 2.0;
        if here >= target {
            let share = if here > at { (target - at) / (here - at) } else { 1.0 };
            return Some(low + share * (v.value - low));
        }
        (before, at, low) = (before + v.weight, here, v.value);
    }
    Some(last.value)
}

/// Errors of a set, summed up. Errors are signed and relative: (predicted − measured) / measured.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Errors {
    /// Rows.
    pub rows: usize,
    /// Mean of absolute errors.
    pub mape: f64,
    /// Median of absolute errors.
    pub median: f64,
    /// Nine of ten absolute errors are below it.
    pub p90: f64,
    /// Mean of signed errors: above 0 is predicted too much.
    pub bias: f64,
}

/// Sums errors up. `None` without any.
pub fn errors(votes: &[Vote]) -> Option<Errors> {
    let sizes = map(votes, f64::abs);
    Some(Errors {
        rows: votes.len(),
        mape: mean(&sizes)?,
        median: quantile(&sizes, 0.5)?,
        p90: quantile(&sizes, 0.9)?,
        bias: mean(votes)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_those_of_numpy() {
        // numpy.quantile([1, 2, 3, 10], [0.5, 0.9]) = [2.5, 7.9]
        let v = equal(&[10.0, 1.0, 3.0, 2.0]);
        assert!((quantile(&v, 0.5).unwrap() - 2.5).abs() < 1e-12);
        assert!((quantile(&v, 0.9).unwrap() - 7.9).abs() < 1e-12);
        assert_eq!((quantile(&v, 0.0), quantile(&v, 1.0)), (Some(1.0), Some(10.0)));
        assert_eq!(quantile(&equal(&[4.0]), 0.9), Some(4.0));
        assert_eq!(quantile(&[], 0.5), None);
    }

    #[test]
    fn weights_count_as_votes() {
        // Three repeats with a third of a vote each are one vote.
        let third = 1.0 / 3.0;
        let repeated = [(1.0, third), (1.0, third), (1.0, third), (4.0, 1.0)];
        let votes: Vec<Vote> = repeated.iter().map(|&(value, weight)| Vote { value, weight }).collect();
        assert!((mean(&votes).unwrap() - 2.5).abs() < 1e-12);
        assert!(quantile(&votes, 0.5).unwrap() < 4.0);
        assert_eq!(mean(&[]), None);
    }

    #[test]
    fn errors_have_size_and_direction() {
        let e = errors(&equal(&[0.1, -0.3, 0.2])).unwrap();
        assert!((e.mape - 0.2).abs() < 1e-12 && (e.median - 0.2).abs() < 1e-12);
        assert!(e.bias.abs() < 1e-12);
        assert!((e.p90 - 0.28).abs() < 1e-12);
        assert_eq!(errors(&[]), None);
    }

    proptest::proptest! {
        #[test]
        fn quantiles_rise_and_stay_inside(values in proptest::collection::vec((-9.0..9.0f64, 0.1..3.0f64), 1..20), q in 0.0..1.0f64) {
            let votes: Vec<Vote> = values.iter().map(|&(value, weight)| Vote { value, weight }).collect();
            let (low, mid, high) = (quantile(&votes, 0.0), quantile(&votes, q), quantile(&votes, 1.0));
            proptest::prop_assert!(low <= mid && mid <= high);
        }
    }
}

use super::*;

/// Work of four kinds, in seconds at constants of one.
type Row = [f64; 4];

fn knob(name: &str, low: f64, high: f64, start: f64) -> Knob {
    Knob { name: name.into(), unit: "", low, high, start, fixed: false }
}

fn knobs() -> Vec<Knob> {
    vec![
        knob("products", 0.5, 2.0, 1.0),
        knob("loops", 0.5, 3.0, 1.0),
        knob("gap", 0.0, 0.1, 0.01),
        knob("overhead", 0.0, 0.5, 0.0),
    ]
}

const TRUE: [f64; 4] = [1.25, 1.8, 0.03, 0.12];

fn predict(c: &[f64], row: &Row) -> f64 {
    c.iter().zip(row).map(|(c, r)| c * r).sum()
}

/// Numbers that look random and are always the same.
fn numbers(seed: u64) -> impl FnMut() -> f64 {
    let mut state = seed;
    move || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// Rows of `groups` groups, with noise of that size; `outlier` rows are ten times too slow.
fn samples(groups: usize, noise: f64, outliers: usize) -> Vec<Sample<Row>> {
    let mut next = numbers(7);
    let one = |i: usize| {
        let row = [4.0 * next() + 0.1, 2.0 * next(), 20.0 * next(), 1.0];
        let bad = if i < outliers { 10.0 } else { 1.0 };
        let measured = predict(&TRUE, &row) * (1.0 + noise * (2.0 * next() - 1.0)) * bad;
        Sample { row, measured, weight: 1.0, group: format!("g{}", i % groups), alike: None }
    };
    (0..60).map(one).collect()
}

fn all(samples: &[Sample<Row>]) -> Vec<&Sample<Row>> {
    samples.iter().collect()
}

#[test]
fn true_constants_are_found() {
    let s = samples(6, 0.0, 0);
    let found = fit(&knobs(), &all(&s), &predict, &Options { prior: 0.0, ..Options::default() }).unwrap();
    assert!(found.loss < 1e-3, "{found:?}");
    for (f, t) in found.values.iter().zip(TRUE) {
        assert!((f - t).abs() < 0.02 * t, "{found:?}");
    }
    assert_eq!(found.at_bound, [false; 4]);
}

#[test]
fn outliers_do_not_carry_the_fit_away() {
    let s = samples(6, 0.02, 6);
    let found = fit(&knobs(), &all(&s), &predict, &Options::default()).unwrap();
    assert!((found.values[0] - TRUE[0]).abs() < 0.1, "{found:?}");
}

#[test]
fn the_same_rows_give_the_same_constants_on_any_number_of_threads() {
    let s = samples(6, 0.05, 0);
    let of = |threads| fit(&knobs(), &all(&s), &predict, &Options { threads, ..Options::default() }).unwrap();
    assert_eq!(of(1), of(2));
    assert_eq!(of(1), of(3));
}

#[test]
fn bounds_hold_and_are_told() {
    let s = samples(6, 0.0, 0);
    let mut k = knobs();
    k[0].high = 1.1;
    let found = fit(&k, &all(&s), &predict, &Options::default()).unwrap();
    assert!(found.values[0] <= 1.1 && found.at_bound[0], "{found:?}");
}

#[test]
fn fixed_constants_stay_and_the_prior_decides_what_rows_do_not() {
    let mut s = samples(6, 0.0, 0);
    let mut k = knobs();
    (k[3].fixed, k[3].start) = (true, TRUE[3]);
    for sample in &mut s {
        // No row says anything about the gap.
        sample.measured -= TRUE[2] * sample.row[2];
        sample.row[2] = 0.0;
    }
    let found = fit(&k, &all(&s), &predict, &Options::default()).unwrap();
    assert_eq!(found.values[3], TRUE[3]);
    assert!((found.values[2] - 0.01).abs() < 1e-3, "{found:?}");
    assert!((found.values[1] - TRUE[1]).abs() < 0.1, "{found:?}");
}

#[test]
fn left_out_groups_are_predicted_by_the_others() {
    let mut s = samples(6, 0.0, 0);
    // A group that no constants explain: twice as slow.
    s.iter_mut().filter(|s| s.group == "g2").for_each(|s| s.measured *= 2.0);
    let fits = without_each_group(&knobs(), &s, &all(&s), &predict, &Options::default()).unwrap();
    let out = left_out(&s, &fits, &predict);
    assert_eq!(out.len(), s.len());
    for o in &out {
        let error = o.vote().value;
        match o.group.as_str() {
            "g2" => assert!((error + 0.5).abs() < 0.05, "{o:?}"),
            _ => assert!(error.abs() < 0.05, "{o:?}"),
        }
    }
    // The one group of a set is predicted by the start.
    let alone: Vec<Sample<Row>> = s.iter().filter(|s| s.group == "g0").cloned().collect();
    let fits = without_each_group(&knobs(), &alone, &all(&alone), &predict, &Options::default()).unwrap();
    let out = left_out(&alone, &fits, &predict);
    assert_eq!(out[0].predicted, predict(&[1.0, 1.0, 0.01, 0.0], &alone[0].row));
}

#[test]
fn repeats_share_a_vote() {
    assert_eq!(votes(&[Some("a"), None, Some("a"), Some("b")]), [0.5, 1.0, 0.5, 1.0]);
    // Nine repeats of one lie weigh as one row: the other rows win.
    let mut s = samples(6, 0.0, 0);
    let lie = Sample { measured: s[0].measured * 3.0, weight: 1.0 / 100.0, ..s[0].clone() };
    s.extend(std::iter::repeat_n(lie, 100));
    let found = fit(&knobs(), &all(&s), &predict, &Options::default()).unwrap();
    assert!((found.values[0] - TRUE[0]).abs() < 0.05, "{found:?}");
}

#[test]
fn what_is_alike_is_predicted_once() {
    let mut s = samples(6, 0.0, 2);
    let alone = fit(&knobs(), &all(&s), &predict, &Options::default()).unwrap();
    // Repeats of the first row, and a number of its own for each other.
    s.iter_mut().enumerate().for_each(|(i, s)| s.alike = (i != 1).then_some(i as u64));
    let first = s[0].clone();
    s.extend(std::iter::repeat_n(Sample { weight: 1e-9, ..first }, 5));
    let calls = std::sync::atomic::AtomicUsize::new(0);
    let counted = |values: &[f64], row: &Row| {
        calls.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        predict(values, row)
    };
    let found = fit(&knobs(), &all(&s), &counted, &Options::default()).unwrap();
    for (a, b) in found.values.iter().zip(&alone.values) {
        assert!((a - b).abs() < 1e-3, "{found:?} {alone:?}");
    }
    // Sixty rows a time, not 65, for each evaluation and for the loss that is told.
    assert!(calls.into_inner() <= 60 * (found.evaluations + 1));
}

#[test]
fn predictions_that_are_no_numbers_are_survived() {
    let s = samples(3, 0.0, 0);
    let broken = |c: &[f64], row: &Row| if c[0] > 1.5 { f64::NAN } else { predict(c, row) };
    let found = fit(&knobs(), &all(&s), &broken, &Options::default()).unwrap();
    assert!(found.values[0] <= 1.5 && found.loss < 0.02, "{found:?}");
}

#[test]
fn what_cannot_be_fitted_is_said() {
    let none: [&Sample<Row>; 0] = [];
    let message = |k: &[Knob], s: &[&Sample<Row>]| fit(k, s, &predict, &Options::default()).unwrap_err().to_string();
    assert!(message(&vec![knob("x", 0.0, 1.0, 0.5); 9], &none).contains("9 constants are free"));
    assert!(message(&[knob("x", 1.0, 2.0, 0.5)], &none).contains("constant x: 1 ≤ start 0.5 ≤ 2 does not hold"));
    let bad = Sample { row: [1.0; 4], measured: 0.0, weight: 1.0, group: "g".into(), alike: None };
    assert!(message(&knobs(), &[&bad]).contains("group g was measured as 0"));
    // Without rows the constants stay.
    let start = fit(&knobs(), &none, &predict, &Options::default()).unwrap();
    assert_eq!((start.values, start.evaluations), (vec![1.0, 1.0, 0.01, 0.0], 0));
}

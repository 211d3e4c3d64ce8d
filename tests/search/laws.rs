//! What must hold between the answers to two questions.

use super::case::{cases, Case};
use autoshard::cost::cluster::Tier;
use autoshard::predict::predictor::Predictor;
use autoshard::search::{search, space, Objective, Outcome};

fn answer(case: &Case) -> Outcome {
    search(&case.ask(), &Predictor::default()).unwrap()
}

fn seconds(o: &Outcome) -> f64 {
    o.best.first().map_or(f64::INFINITY, |f| f.value)
}

#[test]
fn equal_tiers_may_change_places() {
    let (mut answered, mut fanouts_differ) = (0, 0);
    for seed in 2000..2000 + cases(6) {
        let case = Case::random(seed, seed % 2 == 0);
        let [inner, middle, outer] = &case.cluster.tiers[..] else { panic!("{}", case.text()) };
        let (other, last) = (middle.fanout.map(|f| f % 3 + 2), outer.clone());
        let with = |first: Option<u64>, second: Option<u64>| {
            let mut out = case.clone();
            let of = |name: &str, fanout| Tier { name: name.into(), fanout, ..middle.clone() };
            out.cluster.tiers = vec![inner.clone(), of("a", first), of("b", second), last.clone()];
            out
        };
        let (ab, ba) = (with(middle.fanout, other), with(other, middle.fanout));
        let [x, y] = [&ab, &ba].map(answer);
        assert!(super::equal(seconds(&x), seconds(&y)), "{}\n{:?}\n{:?}", ab.text(), x.best, y.best);
        assert!(super::equal(x.counts.least_bound, y.counts.least_bound), "{}", ab.text());
        let [x_size, y_size] = [&ab, &ba].map(|c| space::size(&c.ask()));
        assert_eq!(x_size, y_size, "{}", ab.text());
        answered += u64::from(!x.best.is_empty());
        fanouts_differ += u64::from(middle.fanout != other);
    }
    assert!(answered > 0 && fanouts_differ > 0, "{answered} {fanouts_differ}");
}

#[test]
fn more_of_anything_is_never_worse() {
    let mut better = 0;
    for seed in 3000..3000 + cases(5) {
        let case = Case { objective: Objective::StepTime, ..Case::random(seed, seed % 2 == 0) };
        let before = answer(&case);
        let mut more = [("devices", case.clone()), ("memory", case.clone()), ("bandwidth", case.clone())];
        more[0].1.devices += 1 + seed % 4;
        more[1].1.room.bytes *= 1.3;
        more[2].1.cluster.tiers.iter_mut().for_each(|t| t.bandwidth *= 1.5);
        more[2].1.cluster.id += "-faster";
        for (what, case) in &more {
            let after = answer(case);
            let (bound, time) = (after.counts.least_bound, seconds(&after));
            let text = || format!("more {what}: {}\n{before:?}\n{after:?}", case.text());
            assert!(bound <= before.counts.least_bound * (1.0 + 1e-9), "{}", text());
            // A schedule may wait more where its steps are shorter; a hundredth is what the project allows.
            assert!(time <= 1.01 * seconds(&before), "{}", text());
            better += u64::from(time < seconds(&before));
        }
    }
    assert!(better > 0);
}

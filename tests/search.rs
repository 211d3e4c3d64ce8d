//! The search against what it must agree with: every plan simulated, every bound computed, a count by hand, and laws.
//!
//! `AUTOSHARD_SEARCH_CASES=60 AUTOSHARD_SEARCH_PLANS=100000 AUTOSHARD_SEARCH_ALL=1 cargo test --release --test search`
//! tries as many random cases of each test, bounds as many plans, and does all of what takes minutes.

#[path = "search/bounds.rs"]
mod bounds;
#[path = "search/brute.rs"]
mod brute;
#[path = "search/case.rs"]
mod case;
#[path = "search/count.rs"]
mod count;
#[path = "search/infeasible.rs"]
mod infeasible;
#[path = "search/known.rs"]
mod known;
#[path = "search/laws.rs"]
mod laws;
#[path = "search/plans.rs"]
mod plans;

use autoshard::predict::predictor::Predictor;
use autoshard::search::{search, Outcome};
use case::{cases, Case};

#[test]
fn small_spaces_are_simulated_whole() {
    let (mut plans, mut nothing) = (0, 0);
    for seed in 0..cases(4) {
        let case = Case::random(seed, true);
        println!("{}", case.text());
        let predictor = Predictor::default();
        let all = brute::best(&case, &predictor);
        let found = search(&case.ask(), &predictor).unwrap();
        plans += all.plans;
        nothing += u64::from(all.layout.is_none());
        let value = found.best.first().map_or(f64::INFINITY, |f| f.value);
        println!("  {} plans, best {value} {:?}", all.plans, all.layout);
        assert!(equal(value, all.value), "{}\nfound {:?}\nbrute {:?}", case.text(), found.best.first(), all.layout);
    }
    println!("{plans} plans, {nothing} cases in which nothing fits");
}

#[test]
fn a_search_finds_what_all_bounds_find() {
    for seed in 1000..1000 + cases(6) {
        let case = Case::random(seed, false);
        println!("{}", case.text());
        let predictor = Predictor::default();
        let found = search(&case.ask(), &predictor).unwrap();
        let all = search(&Case { exhaustive: true, ..case.clone() }.ask(), &predictor).unwrap();
        println!("  {:?} {:?}", found.counts, all.counts);
        let value = |o: &Outcome| o.best.first().map_or(f64::INFINITY, |f| f.value);
        let text = || format!("{}\n{:?}\n{:?}", case.text(), found.best, all.best);
        assert!(equal(value(&found), value(&all)), "{}", text());
        // What the certificate says no plan is below.
        let [least, of_all] = [&found, &all].map(|o| o.counts.least_bound);
        assert!(equal(least, of_all), "{least} {of_all} {}", text());
    }
}

#[test]
fn parts_are_computed_again_where_whole_layers_do_not_fit() {
    let (case, predictor) = (Case::random(195, true), Predictor::default());
    let found = search(&case.ask(), &predictor).unwrap();
    assert!(equal(found.best[0].value, brute::best(&case, &predictor).value), "{}", case.text());
}

#[test]
fn a_plan_that_is_as_fast_as_its_bound_is_found_exhaustively() {
    let (case, predictor) = (Case::random(1012, false), Predictor::default());
    let found = search(&case.ask(), &predictor).unwrap();
    let all = search(&Case { exhaustive: true, ..case.clone() }.ask(), &predictor).unwrap();
    assert!(equal(found.best[0].value, all.best[0].value), "{}\n{:?}\n{:?}", case.text(), found.best, all.best);
}

/// Whether two times are one but for the order in which parts were added.
fn equal(a: f64, b: f64) -> bool {
    a == b || (a - b).abs() <= 1e-12 * a.abs()
}

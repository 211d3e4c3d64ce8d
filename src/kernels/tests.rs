use super::*;
use autoshard_cost::device::Format;
use autoshard_cost::kernels::{evaluate, rows, How, Product};

/// A device with a table's own figures.
fn device(id: &str) -> Device {
    let peak = tables(id).unwrap().peak;
    Device { id: id.into(), peak, memory_bandwidth: 2e12, units: Some(128), ..Device::default() }
}

fn product(format: Format, m: f64, n: f64, k: f64) -> Product {
    Product { format, m, n, k, count: 1.0, accumulate: false }
}

/// A fixed sequence of numbers in 0–1.
fn random(state: &mut u64) -> f64 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*state >> 11) as f64 / (1u64 << 53) as f64
}

/// Asserts that a time falls by at most 2 % where one size grows, at random sizes far beyond the tables.
fn never_falls(kernels: &Kernels, id: &str, rounds: usize) {
    let mut state = 1;
    let formats = [Format::Bf16, Format::Fp8, Format::Bf16, Format::Fp4, Format::Tf32, Format::Fp32, Format::Fp8];
    for i in 0..rounds {
        let mut size = |top: f64| (random(&mut state) * top.ln()).exp().round().max(1.0);
        let from = [size(4e6), size(1e6), size(1e6)];
        let mut to = from;
        let growth = 1.0 + 30.0 * random(&mut state).powi(6);
        to[i % 3] = (to[i % 3] * growth).ceil() + (i % 2) as f64;
        let format = formats[i % formats.len()];
        let (count, accumulate) = (if i % 5 == 0 { 8.0 } else { 1.0 }, i % 11 == 0);
        let ask = |s: [f64; 3]| Product { count, accumulate, ..product(format, s[0], s[1], s[2]) };
        let (before, after) = (kernels.product(&ask(from)).seconds, kernels.product(&ask(to)).seconds);
        assert!(after >= 0.98 * before, "{id} {format}: {from:?} takes {before} s, {to:?} {after} s");
    }
}

#[test]
fn times_never_fall_by_more_than_two_per_cent() {
    for (id, _) in SHIPPED {
        never_falls(&shipped(&device(id)).unwrap(), id, 20_000);
    }
    for line in RELATED.lines().skip(1) {
        let (id, rest) = line.split_once(',').unwrap();
        let mut related = device(id);
        // Half and twice the table's rates, in turn.
        let factor = if rest.len() % 2 == 0 { 0.5 } else { 2.0 };
        related.peak.iter_mut().for_each(|(_, p)| *p *= factor);
        never_falls(&shipped(&related).unwrap(), id, 5_000);
    }
    never_falls(&shipped(&Device { id: "none".into(), ..device("l40s") }).unwrap(), "none", 5_000);
}

#[test]
fn shipped_tables_meet_measurements() {
    // 120 rows of the measured table: a grid of another device or damaged by an edit is far off.
    let rows = rows::parse(include_str!("../../tests/data/kernels/gemm_h100_sample.csv")).unwrap();
    let own = evaluate(&shipped(&device("h100-sxm5")).unwrap(), &rows).unwrap();
    assert!(own.median_ape < 0.01 && own.p90_ape < 0.06 && own.extrapolated == 0, "{own:?}");
    let other = evaluate(&shipped(&device("a100-sxm4-80gb")).unwrap(), &rows).unwrap();
    assert!(other.median_ape > 0.3, "{other:?}");
}

#[test]
fn devices_without_a_table_take_a_relatives() {
    let pcie = Device { id: "a100-pcie-80gb".into(), ..device("a100-sxm4-80gb") };
    let p = product(Format::Bf16, 4096.0, 4096.0, 4096.0);
    assert_eq!(shipped(&pcie).unwrap().product(&p).how, How::Related);
    let tpu = Device {
        id: "tpu-v4".into(),
        peak: vec![(Format::Bf16, 275e12)],
        memory_bandwidth: 1.2e12,
        ..Device::default()
    };
    assert_eq!(shipped(&tpu).unwrap().product(&p).how, How::Roofline);
    for line in RELATED.lines().skip(1) {
        let table = line.split(',').nth(1).unwrap();
        assert!(SHIPPED.iter().any(|(id, _)| *id == table), "{line}");
    }
}

#[test]
fn a_users_file_replaces_ours_and_errors_name_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("mine.csv");
    std::fs::write(&path, "dtype,m,n,k,us\nbfloat16,4096,4096,4096,1000\nbfloat16,8192,4096,4096,2000\n").unwrap();
    let h100 = device("h100-sxm5");
    let p = product(Format::Bf16, 4096.0, 4096.0, 4096.0);
    let mine = with_files(&h100, [path.as_path()]).unwrap().product(&p).seconds;
    assert!((mine / 1e-3 - 1.0).abs() < 0.01, "{mine}");
    std::fs::write(&path, "dtype,m,n,k,us\nbfloat16,4096,4096,4096,-1\n").unwrap();
    let error = with_files(&h100, [path.as_path()]).unwrap_err().to_string();
    assert!(error.contains("mine.csv") && error.contains("line 2, column `us`: `-1`"), "{error}");
}

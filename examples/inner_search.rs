//! Times of the inner search on a layer of Llama 3.1 70B: `cargo run --example inner_search`.

use autoshard::decoder::{Decoder, ModuleShape};
use autoshard::ir::DType;
use autoshard::passes::search::inner::{options, Limits, Link, MeshAxis, Prepared, Rates, Role};
use std::path::Path;
use std::time::Instant;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/models/meta-llama-3.1-70b.json");
    let shape = ModuleShape { batch: 64, seq_len: 8192, dtype: DType::Bf16, capacity: 1.0 };
    let module = Decoder::load(&path)?.module(&shape)?;
    let f = module.function("block").ok_or("no block")?;
    let links = [Link { bandwidth: 45e9, latency: 12e-6 }, Link { bandwidth: 350e9, latency: 4e-6 }];
    let limits = Limits { bytes: f64::INFINITY, in_flight: 4.0 };
    for roles in [&[Role::Tp][..], &[Role::Any], &[Role::Dp, Role::Tp], &[Role::Cp, Role::Tp], &[Role::Any, Role::Any]]
    {
        let names = ["outer", "inner"];
        let mesh: Vec<MeshAxis> = roles.iter().zip(names).map(|(r, n)| MeshAxis::new(n, 8, *r)).collect();
        let links = links[2 - mesh.len()..].to_vec();
        let rates =
            Rates { flops: 0.55e15, memory_bandwidth: 2.8e12, links, exposed_weights: 1.0, gradient_bytes: 2.0 };
        let best = |times: usize, f: &mut dyn FnMut()| {
            let once = |_| {
                let start = Instant::now();
                f();
                start.elapsed().as_secs_f64() * 1e3
            };
            (0..times).map(once).fold(f64::INFINITY, f64::min)
        };
        let tables = best(10, &mut || drop(Prepared::new(f, &mesh, &rates, &limits).map(|_| ())));
        let p = Prepared::new(f, &mesh, &rates, &limits)?;
        let solve = best(10, &mut || drop(p.solve(0.0)));
        println!("{roles:?}: tables {tables:.2} ms, solved in {solve:.2} ms");
        if !roles.contains(&Role::Any) {
            let mut found = 0;
            let all = best(3, &mut || found = options(f, &mesh, &rates, &limits).map_or(0, |o| o.len()));
            println!("  {found} options in {all:.1} ms");
        }
    }
    Ok(())
}

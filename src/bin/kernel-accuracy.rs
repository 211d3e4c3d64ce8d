//! How far predicted kernel times are from measured ones that were left out; and the grids that ship.
//!
//!     cargo run --release --bin kernel-accuracy -- TABLES ACCELERATORS.json [--write data/kernels]
//!
//! TABLES is a folder with `gemm_NAME.csv` and `attention_fwd_NAME.csv`. For each device and format it fits
//! on part of the rows and compares with the rest: (a) a fifth of the shapes, by a hash of the shape; (b) all
//! shapes of a fifth of the (n, k) pairs, five times, each pair once; (c) all m above 8,192. `--write` fits
//! all rows and writes the grids.

use autoshard::cost::device::{Device, Format};
use autoshard::cost::kernels::products::{Figures, Model};
use autoshard::cost::kernels::rows::{parse, AttentionRow, ProductRow};
use autoshard::cost::kernels::{evaluate, Errors, Kernels, Rates, Rows, Tables};
use serde_json::Value;
use std::error::Error;
use std::path::Path;

/// Names of the tables and of the devices.
const DEVICES: [(&str, &str); 6] = [
    ("a100_sxm", "a100-sxm4-80gb"),
    ("h100_sxm", "h100-sxm5"),
    ("h200_sxm", "h200-sxm"),
    ("b200_sxm", "b200-sxm"),
    ("gb200", "gb200"),
    ("l40s", "l40s"),
];

const SOURCE: &str = "aiconfigurator-core 0.12.0 (Apache-2.0), systems/data: measured by NVIDIA's collectors; \
    fitted by kernel-accuracy";

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let (tables, hardware, write) = match &args[..] {
        [t, h] => (t, h, None),
        [t, h, flag, w] if flag == "--write" => (t, h, Some(w)),
        _ => return Err("usage: kernel-accuracy TABLES ACCELERATORS.json [--write FOLDER]".into()),
    };
    let hardware: Value = serde_json::from_str(&read(Path::new(hardware))?)?;
    for (name, id) in DEVICES {
        let device = device(&hardware, id)?;
        let Rows::Products(products) = parse(&read(&Path::new(tables).join(format!("gemm_{name}.csv")))?)? else {
            return Err(format!("gemm_{name}.csv holds no products").into());
        };
        let file = Path::new(tables).join(format!("attention_fwd_{name}.csv"));
        let Rows::Attention(attention) = parse(&read(&file)?)? else {
            return Err(format!("{} holds no attention", file.display()).into());
        };
        match write {
            None => report(&device, &products, &attention),
            Some(folder) => {
                let own = Tables::of(&Rows::Products(products), &device);
                let mut all = own.replaced_by(Tables::of(&Rows::Attention(attention), &device), &device);
                all.source = SOURCE.into();
                std::fs::write(Path::new(folder).join(format!("{id}.txt")), all.print())?;
                println!("{id}: written");
            }
        }
    }
    Ok(())
}

fn read(path: &Path) -> Result<String, String> {
    std::fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()))
}

/// The figures that fits need, from a list of accelerators.
fn device(hardware: &Value, id: &str) -> Result<Device, String> {
    let list = hardware["accelerators"].as_array().ok_or("no list `accelerators` in the hardware file")?;
    let entry = list.iter().find(|d| d["id"] == id).ok_or_else(|| format!("no accelerator `{id}`"))?;
    let peak = |f: Format| Some((f, entry["tflops_dense"][f.name()].as_f64()? * 1e12));
    Ok(Device {
        id: id.into(),
        peak: Format::ALL.into_iter().filter_map(peak).collect(),
        memory_bandwidth: entry["mem_bw_gbs"].as_f64().ok_or_else(|| format!("{id} has no mem_bw_gbs"))? * 1e9,
        units: entry["sm_cu_count"].as_u64().map(|u| u as u32),
        ..Device::default()
    })
}

/// A number in 0–1 from sizes, the same on every device.
fn hash(sizes: &[f64]) -> f64 {
    let mut z = 0x243F_6A88_85A3_08D3u64;
    for s in sizes {
        z = (z ^ (*s as u64)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z ^= z >> 27;
    }
    z as f64 / u64::MAX as f64
}

/// Prints the errors of one device.
fn report(device: &Device, products: &[ProductRow], attention: &[AttentionRow]) {
    for format in Format::ALL {
        let rows: Vec<_> = products.iter().filter(|r| r.format == format).copied().collect();
        if rows.is_empty() {
            continue;
        }
        println!("{} {format}: {:?}", device.id, Model::fit(&rows, Figures::of(device, format)).base);
        let shape = |r: &ProductRow| hash(&[r.m, r.n, r.k]) < 0.2;
        show("(a) random", &[left_out(device, &rows, shape, Rows::Products)]);
        let fold = |i: usize| left_out(device, &rows, move |r| (hash(&[r.n, r.k]) * 5.0) as usize == i, Rows::Products);
        show("(b) pairs ", &(0..5).map(fold).collect::<Vec<_>>());
        show("(c) large ", &[left_out(device, &rows, |r| r.m > 8192.0, Rows::Products)]);
        let all = Tables::of(&Rows::Products(rows.clone()), device);
        show("    fit   ", &[errors(device, all, &Rows::Products(rows.clone()))]);
    }
    println!("{} attention", device.id);
    let shape = |r: &AttentionRow| hash(&[r.batch, r.seq, r.heads, r.kv_heads, r.head_dim]) < 0.2;
    show("(a) random", &[left_out(device, attention, shape, Rows::Attention)]);
    show("(c) seq>8k", &[left_out(device, attention, |r| r.seq > 8192.0, Rows::Attention)]);
}

/// Errors at the rows that `out` picks, after a fit to the others.
fn left_out<R: Copy>(
    device: &Device,
    rows: &[R],
    out: impl Fn(&R) -> bool,
    wrap: impl Fn(Vec<R>) -> Rows,
) -> Option<Errors> {
    let (left, kept): (Vec<R>, Vec<R>) = rows.iter().copied().partition(|r| out(r));
    if left.is_empty() {
        return None;
    }
    errors(device, Tables::of(&wrap(kept), device), &wrap(left))
}

fn errors(device: &Device, tables: Tables, rows: &Rows) -> Option<Errors> {
    evaluate(&Kernels::new(device, tables, Rates::default()), rows)
}

/// One line: means over the folds, weighted by rows.
fn show(what: &str, folds: &[Option<Errors>]) {
    let folds: Vec<&Errors> = folds.iter().flatten().collect();
    let rows: usize = folds.iter().map(|e| e.rows).sum();
    if rows == 0 {
        return;
    }
    let mean =
        |f: &dyn Fn(&Errors) -> f64| 100.0 * folds.iter().map(|e| f(e) * e.rows as f64).sum::<f64>() / rows as f64;
    let (median, p90, bias) = (mean(&|e| e.median_ape), mean(&|e| e.p90_ape), mean(&|e| e.bias));
    println!("  {what} {rows:6} rows  median {median:5.2} %  p90 {p90:5.2} %  bias {bias:+5.2} %");
}

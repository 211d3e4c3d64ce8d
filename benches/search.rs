//! What a search takes, from 8 devices to a million: `cargo bench --bench search`.
//!
//! Candidates are layouts on all devices, orders of axes counted; bounds are those of single plans.

use autoshard::cost::cluster::Cluster;
use autoshard::decoder::Decoder;
use autoshard::predict::fix::{words, Fix};
use autoshard::predict::predictor::Predictor;
use autoshard::predict::{facts, ModelFacts, Precision};
use autoshard::report::stages::Room;
use autoshard::search::{check, search, space, Ask, Objective};
use autoshard::{hardware, stacks};
use std::error::Error;
use std::path::Path;
use std::time::Instant;

/// The machines' sizes in the sweep, dgx-h100.
const SIZES: [u64; 10] = [8, 32, 128, 512, 2048, 8192, 16384, 65536, 262_144, 1_048_576];

/// Model, cluster, devices, positions, sequences.
type Question = (&'static str, &'static str, u64, u64, u64);

const NAMED: [Question; 2] = [
    ("meta-llama-3.1-405b", "meta-llama3-roce-24k", 16384, 8192, 2048),
    ("deepseek-v3", "dgx-h800", 2048, 4096, 15360),
];

const EXHAUSTIVE: Question = ("meta-llama-3.1-70b", "dgx-h100", 512, 4096, 512);

fn main() -> Result<(), Box<dyn Error>> {
    let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
    println!("{cores} cores");
    println!(
        "{:<20} {:<20} {:>9} {:>12} {:>12} {:>10} {:>10} {:>10} {:>9} {:>8}",
        "model", "cluster", "devices", "candidates", "idle", "bounds", "simulated", "count s", "search s", "peak MiB"
    );
    for devices in SIZES {
        answer(("meta-llama-3.1-70b", "dgx-h100", devices, 4096, devices.clamp(512, 262_144)), false)?;
    }
    for question in NAMED {
        answer(question, false)?;
    }
    let (bounds, seconds) = answer(EXHAUSTIVE, true)?;
    println!("exhaustive: {:.0} plans bounded or found not to fit, a second and core", bounds / seconds / cores as f64);
    one_by_one()
}

/// Prints a question's line; the bounds and the seconds of its search.
fn answer(question: Question, exhaustive: bool) -> Result<(f64, f64), Box<dyn Error>> {
    let (name, on, devices, seq_len, global_batch) = question;
    let model = Model::load(name)?;
    let cluster = hardware::cluster(on)?;
    let stack = stacks::find("megatron-core-2025")?.stack;
    let fix = Fix::default();
    let ask = model.ask(&cluster, &stack, &fix, (devices, seq_len, global_batch), exhaustive);
    let predictor = Predictor::default();
    let counting = Instant::now();
    let size = space::size(&ask);
    let (counted, started) = (counting.elapsed().as_secs_f64(), Instant::now());
    let outcome = search(&ask, &predictor)?;
    let seconds = started.elapsed().as_secs_f64();
    println!(
        "{name:<20} {on:<20} {devices:>9} {:>12} {:>12} {:>10} {:>10} {counted:>10.3} {seconds:>9.3} {:>8}",
        size.whole,
        size.idle,
        outcome.counts.evaluated,
        outcome.counts.simulated,
        peak_mib().map_or("–".into(), |mib| mib.to_string())
    );
    match outcome.best.first() {
        Some(best) => println!("    {:.3} s by {}", best.seconds, words(&best.layout)),
        None => println!("    nothing fits"),
    }
    Ok((outcome.counts.evaluated as f64, seconds))
}

/// Plans of the best plan's kind, each bounded by itself on one core: in closed form, and its pipeline played.
fn one_by_one() -> Result<(), Box<dyn Error>> {
    let (name, on, devices, seq_len, global_batch) = NAMED[0];
    let model = Model::load(name)?;
    let cluster = hardware::cluster(on)?;
    let stack = stacks::find("megatron-core-2025")?.stack;
    let fix = Fix { mbs: Some(1), cp: Some(1), ..Fix::default() };
    let ask = model.ask(&cluster, &stack, &fix, (devices, seq_len, global_batch), false);
    let mut plans = Vec::new();
    for inside in space::insides(&ask) {
        for (pp, dp) in space::pipelines(&ask, &inside) {
            for schedule in space::schedules(&ask, pp, global_batch / dp) {
                for sharing in space::sharings(&ask, dp) {
                    plans.push((space::layout(&ask, &inside, (pp, dp), (1, 1), schedule, sharing, false), None));
                }
            }
        }
    }
    let some: Vec<check::Plan> = plans.iter().step_by((plans.len() / 20_000).max(1)).cloned().collect();
    let started = Instant::now();
    let bounds = check::lower_bounds(&ask, &Predictor::default(), &some)?;
    let seconds = started.elapsed().as_secs_f64();
    println!(
        "one by one, pipelines played: {} of {} plans of {name} in {seconds:.2} s, {:.0} a second on one core",
        bounds.len(),
        plans.len(),
        bounds.len() as f64 / seconds
    );
    Ok(())
}

struct Model {
    key: &'static str,
    decoder: Decoder,
    facts: ModelFacts,
}

impl Model {
    fn load(key: &'static str) -> Result<Model, Box<dyn Error>> {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/models").join(format!("{key}.json"));
        let decoder = Decoder::load(&path)?;
        Ok(Model { key, facts: facts::of(&decoder), decoder })
    }

    fn ask<'a>(
        &'a self,
        cluster: &'a Cluster,
        stack: &'a autoshard::cost::stack::Stack,
        fix: &'a Fix,
        (devices, seq_len, global_batch): (u64, u64, u64),
        exhaustive: bool,
    ) -> Ask<'a> {
        Ask {
            key: self.key,
            decoder: &self.decoder,
            facts: &self.facts,
            cluster,
            stack,
            devices,
            seq_len,
            global_batch,
            precision: Precision::Bf16,
            fix,
            room: Room::new(&cluster.device, None, None),
            objective: Objective::StepTime,
            top: 1,
            exhaustive,
        }
    }
}

/// The most memory that this process has had so far, where the system tells (Linux).
fn peak_mib() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok().map(|kib| kib / 1024)
}

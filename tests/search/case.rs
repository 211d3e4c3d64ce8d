//! Questions for the search: made up from a seed, or of known models on known machines.
#![allow(dead_code)] // each test binary uses its part

use super::plans;
use autoshard::cost::cluster::{Cluster, Tier};
use autoshard::cost::stack::{Constant, ConstantName, Stack};
use autoshard::decoder::Decoder;
use autoshard::hardware;
use autoshard::predict::facts;
use autoshard::predict::fix::Fix;
use autoshard::predict::predictor::Predictor;
use autoshard::predict::{ModelFacts, Precision};
use autoshard::report::stages::Room;
use autoshard::search::{space, Ask, Objective};
use autoshard::stacks;
use serde_json::json;
use std::path::Path;

/// Bytes of a GiB.
pub const GIB: f64 = (1u64 << 30) as f64;

/// Numbers from a seed (Marsaglia's xorshift64*).
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random((seed + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15))
    }

    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 11
    }

    pub fn one<T: Clone>(&mut self, of: &[T]) -> T {
        of[self.next() as usize % of.len()].clone()
    }
}

/// The number that an environment variable says, or few.
pub fn number(variable: &str, few: u64) -> u64 {
    std::env::var(variable).ok().and_then(|n| n.parse().ok()).unwrap_or(few)
}

/// How many random questions of each kind.
pub fn cases(few: u64) -> u64 {
    number("AUTOSHARD_SEARCH_CASES", few)
}

/// Whether tests do all of what takes minutes.
pub fn all() -> bool {
    number("AUTOSHARD_SEARCH_ALL", 0) > 0
}

/// A question that owns what it asks about.
#[derive(Clone)]
pub struct Case {
    pub key: String,
    pub decoder: Decoder,
    pub facts: ModelFacts,
    pub cluster: Cluster,
    pub stack: Stack,
    pub devices: u64,
    pub seq_len: u64,
    pub global_batch: u64,
    pub fix: Fix,
    pub room: Room,
    pub objective: Objective,
    pub top: usize,
    pub exhaustive: bool,
}

impl Case {
    pub fn ask(&self) -> Ask<'_> {
        Ask {
            key: &self.key,
            decoder: &self.decoder,
            facts: &self.facts,
            cluster: &self.cluster,
            stack: &self.stack,
            devices: self.devices,
            seq_len: self.seq_len,
            global_batch: self.global_batch,
            precision: Precision::Bf16,
            fix: &self.fix,
            room: self.room,
            objective: self.objective,
            top: self.top,
            exhaustive: self.exhaustive,
        }
    }

    /// A known model on a preset.
    pub fn known(model: &str, cluster: &str, devices: u64, (seq_len, global_batch): (u64, u64)) -> Case {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/models").join(format!("{model}.json"));
        let decoder = Decoder::load(&path).unwrap();
        let cluster = hardware::cluster(cluster).unwrap();
        Case {
            key: model.to_string(),
            facts: facts::of(&decoder),
            decoder,
            room: Room::new(&cluster.device, None, None),
            cluster,
            stack: stacks::find("megatron-core-2025").unwrap().stack,
            devices,
            seq_len,
            global_batch,
            fix: Fix::default(),
            objective: Objective::StepTime,
            top: 1,
            exhaustive: false,
        }
    }

    /// A small model on a small cluster. With `few` its space is small enough to simulate whole.
    pub fn random(seed: u64, few: bool) -> Case {
        let r = &mut Random::new(seed);
        let (decoder, seq_len) = decoder(r, few);
        let cluster = cluster(r);
        let devices = if few { r.one(&[2, 3, 4, 5, 6, 8]) } else { r.one(&[4, 6, 7, 8, 9, 12, 16, 24]) };
        let batch = if few { r.one(&[2, 3, 4, 6]) } else { r.one(&[6, 8, 9, 12, 15, 16, 24, 30]) };
        let stack = r.one(&["megatron-core-2025", "megatron-core-2025", "torchtitan-2024", "meta-llama3"]);
        let mut out = Case {
            key: format!("random-{seed}-{few}"),
            facts: facts::of(&decoder),
            decoder,
            room: Room::new(&cluster.device, None, None),
            cluster,
            stack: quick(stacks::find(stack).unwrap().stack),
            devices,
            seq_len,
            global_batch: batch,
            fix: Fix::default(),
            objective: r.one(&[Objective::StepTime, Objective::StepTime, Objective::Cost, Objective::Goodput]),
            top: 1,
            exhaustive: false,
        };
        out.room = out.tight_room(r);
        out
    }

    /// Room that decides something: about what some plan of the space takes.
    fn tight_room(&self, r: &mut Random) -> Room {
        let predictor = Predictor::default();
        let insides = space::insides(&self.ask());
        let drawn = (0..20).find_map(|_| {
            let layout = plans::draw(&self.ask(), &insides, r)?;
            predictor.memory(&self.ask().job(&layout, None)).ok()
        });
        let stages = drawn.unwrap();
        let bytes = stages.iter().map(|m| m.device).fold(0.0, f64::max);
        // What is outside of the allocator is most of so small a plan.
        let beyond = stages.iter().map(|m| m.device - m.reserved).fold(0.0, f64::max);
        let share = r.one(&[0.3, 0.6, 0.8, 0.9, 1.0, 1.0, 1.3, 10.0]);
        Room { bytes: (beyond + share * (bytes - beyond)) * 1.08, given: true, margin: 0.08 }
    }

    /// What to print where a case fails.
    pub fn text(&self) -> String {
        let fanouts: Vec<String> =
            self.cluster.tiers.iter().map(|t| t.fanout.map_or("any".into(), |n| n.to_string())).collect();
        format!(
            "{}: {:?}, tiers {}, {} devices, seq {}, batch {}, room {:.2} GiB, {}, {:?}",
            self.key,
            self.facts,
            fanouts.join("·"),
            self.devices,
            self.seq_len,
            self.global_batch,
            self.room.bytes / GIB,
            self.stack.name,
            self.objective
        )
    }
}

/// The stack with a step's overhead of a millisecond: beside its own nothing else of so small a model would count.
fn quick(mut stack: Stack) -> Stack {
    stack.constants.retain(|c| c.name != ConstantName::StepOverhead);
    stack.constants.push(Constant { name: ConstantName::StepOverhead, value: 1e-3 });
    stack
}

fn decoder(r: &mut Random, few: bool) -> (Decoder, u64) {
    let heads = if few { r.one(&[2, 3, 4]) } else { r.one(&[4, 6, 8, 12]) };
    let kv: Vec<u64> = (1..=heads).filter(|k| heads % k == 0).collect();
    let width = r.one(&[32, 64, 128]);
    let layers = if few { r.one(&[2, 3, 4]) } else { r.one(&[2, 3, 4, 5, 6, 8]) };
    let seq_len = if few { r.one(&[255, 510, 1022]) } else { r.one(&[510, 1020, 2044]) };
    let experts = if few { r.one(&[2, 3]) } else { r.one(&[4, 6, 8]) };
    let mixed = r.next().is_multiple_of(3);
    let hidden = r.one(&[256, 512, 768, 1024, 2048]);
    let moe = json!({"experts": experts, "top_k": 2, "expert_ffn": hidden / 2, "dense_layers": r.one(&[0, 1]),
        "dense_ffn": 2 * hidden});
    let block = json!({
        "family": "llama", "norm": "rmsnorm", "gated": true, "activation": "silu", "position": "rope",
        "parallel_block": false, "tied": r.one(&[true, false]),
        "attention": {"kind": "full", "heads": heads, "kv_heads": r.one(&kv), "head_dim": width},
        "moe": if mixed { moe } else { serde_json::Value::Null },
    });
    let model = json!({"hidden": hidden, "layers": layers, "ffn_hidden": r.one(&[2, 3, 4]) * hidden,
        "vocab": r.one(&[1000, 8192, 32000, 50257]), "seq_len": seq_len});
    (Decoder::from_row(&block, &model).unwrap(), seq_len)
}

fn cluster(r: &mut Random) -> Cluster {
    let mut c = hardware::cluster(r.one(&["dgx-h100", "dgx-a100"])).unwrap();
    let mut tiers = vec![Tier { fanout: Some(r.one(&[2, 3, 4, 6, 8])), ..c.tiers[0].clone() }];
    let outer = c.tiers[1].clone();
    let slower = [1.0, 0.5, 0.25];
    tiers.push(Tier { fanout: Some(r.one(&[2, 3, 4])), bandwidth: outer.bandwidth * r.one(&slower), ..outer.clone() });
    let last = Tier { fanout: None, bandwidth: tiers[1].bandwidth * r.one(&slower), ..outer };
    tiers.push(Tier { name: "outer".into(), ..last });
    c.id = format!("random-{}", r.next());
    c.devices_per_node = tiers[0].fanout.unwrap_or(1);
    c.devices = None;
    c.tiers = tiers;
    c
}

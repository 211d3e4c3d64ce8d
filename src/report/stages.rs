//! Pipeline stages and their memory: tables, JSON, and whether the fullest fits.

use super::{bytes, seconds};
use crate::predict::{Memory, Prediction, Stage};
use autoshard_cost::device::Device;
use serde_json::{json, Map, Value};
use std::fmt::Write;

/// Bytes of a GiB.
const GIB: f64 = (1u64 << 30) as f64;

/// Share of memory that stays free where nobody says it.
pub const MARGIN: f64 = 0.08;

/// Memory of a device that a plan may use.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Room {
    /// Bytes.
    pub bytes: f64,
    /// Whether that is a limit that was given, instead of what the device has.
    pub given: bool,
    /// Share of the prediction that has to fit beside it.
    pub margin: f64,
}

impl Room {
    /// The limit in GiB, or else what the driver reports, or else what is sold; the margin, or [`MARGIN`].
    pub fn new(device: &Device, limit_gib: Option<f64>, margin: Option<f64>) -> Room {
        Room {
            bytes: limit_gib.map_or(device.memory_visible.unwrap_or(device.memory), |gib| gib * GIB),
            given: limit_gib.is_some(),
            margin: margin.unwrap_or(MARGIN),
        }
    }

    /// Whether memory of a device is within it, margin included.
    pub fn holds(&self, memory: &Memory) -> bool {
        memory.device * (1.0 + self.margin) <= self.bytes
    }
}

/// Whether the fullest stage fits; `None` where memory is not predicted.
pub fn fits(prediction: &Prediction, room: &Room) -> Option<bool> {
    prediction.fullest().map(|(_, memory)| room.holds(memory))
}

/// Layers by stage; a model of one stage where the prediction tells none.
pub fn layers(prediction: &Prediction, all: u64) -> Vec<u64> {
    match prediction.stages.is_empty() {
        true => vec![all],
        false => prediction.stages.iter().map(|s| s.layers).collect(),
    }
}

/// `prediction.stages` of `plan --json`.
pub fn stages_json(prediction: &Prediction, layers: u64) -> Value {
    let whole = [Stage { layers, busy: prediction.step_seconds, memory: None }];
    let stages = if prediction.stages.is_empty() { &whole[..] } else { &prediction.stages };
    let stage = |s: &Stage| {
        let gib = |bytes: f64| bytes / GIB;
        let parts: Map<String, Value> =
            s.memory.iter().flat_map(|m| &m.parts).map(|p| (p.name.to_string(), json!(gib(p.bytes)))).collect();
        let device = s.memory.as_ref().map(|m| gib(m.device));
        json!({"peak_memory_gib": device, "layers": s.layers, "busy_seconds": s.busy, "parts": parts})
    };
    stages.iter().map(stage).collect()
}

/// The three numbers of the fullest stage; null where memory is not predicted.
pub fn memory_json(prediction: &Prediction) -> Value {
    let of = |f: fn(&Memory) -> f64| prediction.fullest().map(|(_, m)| f(m) / GIB);
    json!({"allocated": of(|m| m.allocated), "reserved": of(|m| m.reserved), "device": of(|m| m.device)})
}

/// The device number of the fullest stage, GiB.
pub fn peak_gib(prediction: &Prediction) -> Option<f64> {
    prediction.fullest().map(|(_, m)| m.device / GIB)
}

/// Stages, memory of the fullest, and whether it fits.
pub fn text(out: &mut String, prediction: &Prediction, room: &Room) {
    table(out, &prediction.stages);
    let Some((fullest, memory)) = prediction.fullest() else {
        out.push_str("memory: not predicted here, so nothing says that this layout fits\n");
        return;
    };
    let stage = match prediction.stages.len() {
        1 => "of every device".to_string(),
        _ => format!("of stage {}, the fullest", fullest + 1),
    };
    let _ = writeln!(out, "memory {stage}:");
    // All of a small model would be 0.00 GiB.
    let amount = if memory.device < GIB { bytes } else { gib };
    for part in &memory.parts {
        let share = 100.0 * part.bytes / memory.device;
        let _ = writeln!(out, "  {:<28} {:>10} {share:>5.1} %", part.name, amount(part.bytes));
    }
    let three = [memory.allocated, memory.reserved, memory.device].map(amount);
    let _ =
        writeln!(out, "  allocated {}, reserved by the allocator {}, of the device {}", three[0], three[1], three[2]);
    verdict(out, memory, room);
}

fn gib(bytes: f64) -> String {
    format!("{:.2} GiB", bytes / GIB)
}

/// A line for each run of stages that print the same.
fn table(out: &mut String, stages: &[Stage]) {
    if stages.len() < 2 {
        return;
    }
    let _ = writeln!(out, "  {:<10} {:>6} {:>10} {:>12} {:>12}", "stage", "layers", "busy", "allocated", "device");
    let cells = |s: &Stage| {
        let memory = |f: fn(&Memory) -> f64| s.memory.as_ref().map_or("–".to_string(), |m| gib(f(m)));
        let [allocated, device] = [memory(|m| m.allocated), memory(|m| m.device)];
        format!("{:>6} {:>10} {allocated:>12} {device:>12}", s.layers, seconds(s.busy))
    };
    let mut first = 0;
    for (i, stage) in stages.iter().enumerate() {
        let line = cells(stage);
        if stages.get(i + 1).is_some_and(|next| cells(next) == line) {
            continue;
        }
        let name = if first == i { (i + 1).to_string() } else { format!("{}–{}", first + 1, i + 1) };
        let _ = writeln!(out, "  {name:<10} {line}");
        first = i + 1;
    }
}

fn verdict(out: &mut String, memory: &Memory, room: &Room) {
    let needed = memory.device * (1.0 + room.margin);
    let whose = if room.given { "the limit" } else { "the device" };
    let amount = if needed < GIB { bytes } else { gib };
    let word = if room.holds(memory) { "fits" } else { "DOES NOT FIT" };
    let _ = writeln!(
        out,
        "{word}: {} with a margin of {:.0} % need {} of the {} of {whose}",
        amount(memory.device),
        100.0 * room.margin,
        amount(needed),
        gib(room.bytes)
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::predict::MemoryPart;

    fn stage(layers: u64, gib: f64) -> Stage {
        let parts = vec![MemoryPart { name: "optimizer", bytes: gib * GIB }];
        let memory = Memory { parts, allocated: 0.8 * gib * GIB, reserved: 0.9 * gib * GIB, device: gib * GIB };
        Stage { layers, busy: 0.25, memory: Some(memory) }
    }

    fn prediction(stages: Vec<Stage>) -> Prediction {
        Prediction { step_seconds: 0.5, stages, ..Prediction::default() }
    }

    #[test]
    fn equal_stages_share_a_line_and_the_fullest_is_named() {
        let p = prediction(vec![stage(7, 60.0), stage(8, 50.0), stage(8, 50.0), stage(8, 50.0), stage(7, 40.0)]);
        let room = Room { bytes: 64.0 * GIB, given: true, margin: 0.08 };
        let mut out = String::new();
        text(&mut out, &p, &room);
        for part in [
            "1               7  250.00 ms    48.00 GiB    60.00 GiB",
            "2–4             8  250.00 ms    40.00 GiB    50.00 GiB",
            "memory of stage 1, the fullest:",
            "optimizer                     60.00 GiB 100.0 %",
            "DOES NOT FIT: 60.00 GiB with a margin of 8 % need 64.80 GiB of the 64.00 GiB of the limit",
        ] {
            assert!(out.contains(part), "{part:?}\n{out}");
        }
        assert_eq!(fits(&p, &room), Some(false));
        assert_eq!(fits(&p, &Room { margin: 0.05, ..room }), Some(true));
        assert_eq!((layers(&p, 38), peak_gib(&p)), (vec![7, 8, 8, 8, 7], Some(60.0)));
        let v = stages_json(&p, 38);
        assert_eq!(
            (&v[1]["layers"], &v[1]["peak_memory_gib"], &v[0]["parts"]["optimizer"]),
            (&8.into(), &50.0.into(), &60.0.into())
        );
        assert_eq!(memory_json(&p)["reserved"], 54.0);
    }

    #[test]
    fn memory_that_is_not_predicted_is_null_and_said() {
        let p = prediction(Vec::new());
        let room = Room::new(&Device { memory: 80e9, memory_visible: Some(79e9), ..Device::default() }, None, None);
        assert_eq!((room.bytes, room.given, room.margin), (79e9, false, MARGIN));
        let mut out = String::new();
        text(&mut out, &p, &room);
        assert!(out.contains("nothing says that this layout fits"), "{out}");
        assert_eq!((fits(&p, &room), layers(&p, 12)), (None, vec![12]));
        assert_eq!(stages_json(&p, 12)[0]["peak_memory_gib"], Value::Null);
        assert_eq!(memory_json(&p)["device"], Value::Null);
    }
}

//! What a device or cluster is given where it says nothing itself: price, sustained rate, failures.

use autoshard_cost::cluster::Failures;
use autoshard_cost::device::Device;

use super::device::NOT_FITTED;
use super::read::{Place, Read};
use crate::json::Document;

/// Default prices, US dollars per device and hour.
#[derive(Clone, Debug)]
pub(super) struct Prices {
    suggested: Vec<(String, f64)>,
    /// On-demand list prices.
    listed: Vec<(String, f64)>,
}

impl Prices {
    pub fn read(doc: &Document) -> Read<Prices> {
        let all = Place::at(doc, String::new(), "an object")?;
        let defaults = Place::at(doc, "/suggested_defaults".to_string(), "an object of prices")?;
        let mut suggested = Vec::new();
        for id in defaults.fields().map.keys() {
            suggested.push((id.clone(), defaults.required(id, 1.0)?));
        }
        let mut listed = Vec::new();
        for row in all.objects("prices", "a price")? {
            if row.text("kind")? == "on demand" {
                listed.push((row.text("accelerator")?, row.required("usd_per_gpu_hour", 1.0)?));
            }
        }
        Ok(Prices { suggested, listed })
    }

    /// The suggested default of a device, else the median of its listed prices.
    pub fn fill(&self, device: &mut Device) {
        if let Some((_, price)) = self.suggested.iter().find(|(id, _)| *id == device.id) {
            device.price = Some(*price);
            device.price_source = format!("default of {} (prices.json, suggested_defaults)", device.id);
            return;
        }
        let mut listed: Vec<f64> = self.listed.iter().filter(|(id, _)| *id == device.id).map(|(_, p)| *p).collect();
        listed.sort_by(f64::total_cmp);
        if let Some(low) = listed.len().checked_sub(1).map(|last| listed[last / 2]) {
            let high = listed[listed.len() / 2];
            device.price = Some((low + high) / 2.0);
            device.price_source =
                format!("median of {} on-demand list prices of {} (prices.json)", listed.len(), device.id);
        }
    }
}

/// Fitted sustained rates by device.
#[derive(Clone, Debug)]
pub(super) struct Sustained {
    entries: Vec<(String, Entry)>,
}

#[derive(Clone, Debug)]
enum Entry {
    Factor {
        factor: f64,
        source: String,
        /// The same for tables of eight-bit products, where it is another.
        eight_bit: Option<(f64, String)>,
    },
    /// A device of the same chip.
    Parent(String),
}

impl Sustained {
    pub fn read(doc: &Document) -> Read<Sustained> {
        let all = Place::at(doc, String::new(), "an object")?;
        let mut entries = Vec::new();
        for id in all.fields().map.keys() {
            let row = Place::at(doc, format!("/{id}"), "an object with factor and source, or parent")?;
            super::error::no_other_keys(
                &row.fields(),
                &["factor", "source", "eight_bit", "eight_bit_source", "parent"],
            )?;
            let parent = row.text("parent")?;
            let entry = if parent.is_empty() {
                let eight_bit = match row.quantity("eight_bit", 1.0)? {
                    Some(_) => Some((read_factor(&row, "eight_bit")?, row.text("eight_bit_source")?)),
                    None => None,
                };
                Entry::Factor { factor: read_factor(&row, "factor")?, source: row.text("source")?, eight_bit }
            } else {
                Entry::Parent(parent)
            };
            entries.push((id.clone(), entry));
        }
        Ok(Sustained { entries })
    }

    fn entry(&self, id: &str) -> Option<&Entry> {
        self.entries.iter().find(|(name, _)| name == id).map(|(_, e)| e)
    }

    /// Sets a device's factor from its entry, or from its parent's. A parent's parent is not followed.
    pub fn fill(&self, device: &mut Device) {
        let (entry, of) = match self.entry(&device.id) {
            None => return,
            Some(Entry::Parent(parent)) => (self.entry(parent), format!("that of {parent}: ")),
            entry => (entry, String::new()),
        };
        let Some(Entry::Factor { factor, source, eight_bit }) = entry else {
            device.sustained_source = format!("{NOT_FITTED}, as {}", of.trim_end_matches(": "));
            return;
        };
        device.sustained = *factor;
        device.sustained_source = format!("{of}{source}");
        device.sustained_eight_bit = *factor;
        if let Some((factor, source)) = eight_bit {
            device.sustained_eight_bit = *factor;
            device.sustained_source += &format!("; {factor} in eight bits: {source}");
        }
    }

    /// Every entry and parent must be a device.
    pub fn check(&self, devices: &[Device]) -> Read<()> {
        for (id, entry) in &self.entries {
            let parent = match entry {
                Entry::Parent(parent) => parent,
                Entry::Factor { .. } => id,
            };
            for name in [id, parent] {
                if devices.iter().all(|d| d.id != *name) {
                    return Err(super::HardwareError::UnknownDevice {
                        place: "data/hardware/sustained.json: ".to_string(),
                        name: name.clone(),
                        hint: String::new(),
                    });
                }
            }
        }
        Ok(())
    }
}

/// The factor, 0.75 to 1: below that something else than power limits what was measured.
fn read_factor(row: &Place, key: &str) -> Read<f64> {
    let factor = row.required(key, 1.0)?;
    if (0.75..=1.0).contains(&factor) {
        return Ok(factor);
    }
    Err(row.fields().mistyped(key, &factor.to_string(), "from 0.75 to 1").into())
}

/// Failure rates.
#[derive(Clone, Debug)]
pub(super) struct Failing {
    /// Rate, in failures of a node in 1,000 days, and source.
    by_cluster: Vec<(String, f64, String)>,
    typical: f64,
    restart: (f64, f64),
}

/// The suggested restart time: seconds, and seconds for each device. The file gives it as this formula.
const RESTART: (f64, f64) = (50.0, 0.009);
const RESTART_TEXT: &str = "50 + 0.009*gpus";

impl Failing {
    pub fn read(doc: &Document) -> Read<Failing> {
        let pointer = "/suggested_defaults/node_failure_per_1000_node_days";
        let rates = Place::at(doc, pointer.to_string(), "an object of rates")?;
        let defaults = Place::at(doc, "/suggested_defaults".to_string(), "an object")?;
        if !defaults.text("restart_s")?.starts_with(RESTART_TEXT) {
            let why = format!("is not the formula {RESTART_TEXT} that is used");
            return Err(defaults.fields().invalid("restart_s", why).into());
        }
        let published = Place::at(doc, "/by_cluster".to_string(), "an object of failure rates")?;
        let mut by_cluster = Vec::new();
        for id in published.fields().map.keys() {
            let row = Place::at(doc, format!("/by_cluster/{id}"), "an object")?;
            by_cluster.push((id.clone(), row.required("rate_per_1000_node_days", 1.0)?, row.text("source")?));
        }
        Ok(Failing { by_cluster, typical: rates.required("typical", 1.0)?, restart: RESTART })
    }

    /// Failures of a cluster: the published rate, else the typical one, marked.
    pub fn of(&self, cluster: &str) -> Failures {
        let published = self.by_cluster.iter().find(|(id, ..)| id == cluster);
        let (rate, source) = match published {
            Some((_, rate, source)) => (*rate, source.clone()),
            None => (self.typical, "the typical default, chosen from published traces (failures.json)".to_string()),
        };
        Failures {
            per_thousand_node_days: rate,
            restart_seconds: self.restart.0,
            restart_seconds_per_device: self.restart.1,
            assumed: published.is_none(),
            source: format!("{source}; restart {RESTART_TEXT} s"),
        }
    }
}

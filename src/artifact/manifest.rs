//! The manifest of an `.asx` file, as JSON.

use crate::compile::Meta;
use autoshard_ir::core::{Axis, Strategy};
use autoshard_ir::mesh::Mesh;
use autoshard_ir::plan::Plan;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// What a run does where no flag says otherwise.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunOptions {
    /// Number of steps.
    pub steps: usize,
    /// Initial weights.
    pub weights: WeightsSource,
    /// Training data.
    pub data: DataSource,
}

/// Where initial weights come from. Paths are kept as they were given.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum WeightsSource {
    /// The init rule; the seed is the run's.
    Init,
    /// A folder or file of safetensors.
    Folder {
        /// Its path.
        path: String,
        /// Its checksum.
        sha256: String,
    },
}

/// Where training data come from. Paths are kept as they were given.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum DataSource {
    /// The synthetic tokens of the init rule.
    Golden,
    /// A text or token file.
    File {
        /// Its path.
        path: String,
        /// SHA-256 of its bytes.
        sha256: String,
    },
}

/// A part of the file after the manifest.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Section {
    /// Its name.
    pub name: String,
    /// Where it begins, from the end of the manifest.
    pub offset: u64,
    /// Bytes.
    pub length: u64,
    /// SHA-256, in hexadecimal.
    pub sha256: String,
}

/// Everything about an executable but its code.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Manifest {
    /// Version that made the file.
    pub autoshard: String,
    /// Defaults of a run.
    pub options: RunOptions,
    /// Sizes, target, precision, tensors.
    pub meta: Meta,
    /// Decisions.
    pub plan: PlanText,
    /// What follows the manifest.
    pub sections: Vec<Section>,
}

impl Manifest {
    pub fn print(&self) -> String {
        // Maps are sorted and floats print shortest, so the text is a function of the value. Nothing
        // here can fail: keys are texts.
        serde_json::to_string_pretty(self).unwrap_or_default()
    }

    pub fn parse(bytes: &[u8]) -> Result<Manifest, String> {
        serde_json::from_slice(bytes).map_err(|e| e.to_string())
    }
}

/// A plan in words.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PlanText {
    mesh: Vec<(String, usize)>,
    sequence_parallel: bool,
    strategies: BTreeMap<String, BTreeMap<String, String>>,
    stored: BTreeMap<String, Vec<Vec<String>>>,
}

impl PlanText {
    pub fn of(plan: &Plan) -> PlanText {
        let named = |axes: &Vec<Axis>| axes.iter().map(|a| a.name().to_string()).collect();
        let nodes =
            |nodes: &BTreeMap<String, Strategy>| nodes.iter().map(|(value, s)| (value.clone(), strategy(s))).collect();
        PlanText {
            mesh: plan.mesh.axes.iter().map(|(a, n)| (a.name().to_string(), *n)).collect(),
            sequence_parallel: plan.sequence_parallel,
            strategies: plan.strategies.iter().map(|(f, n)| (f.clone(), nodes(n))).collect(),
            stored: plan.stored.iter().map(|(p, dims)| (p.clone(), dims.iter().map(named).collect())).collect(),
        }
    }

    pub fn read(&self) -> Result<Plan, String> {
        let mut strategies = BTreeMap::new();
        for (f, nodes) in &self.strategies {
            let read = |(value, text): (&String, &String)| {
                parse_strategy(text).map(|s| (value.clone(), s)).ok_or_else(|| {
                    format!("the strategy of %{value} in @{f} is {text:?}, but must be `none`, `follow` or `axis: factor, …`")
                })
            };
            strategies.insert(f.clone(), nodes.iter().map(read).collect::<Result<_, String>>()?);
        }
        let axes = |names: &Vec<String>| names.iter().map(|n| Axis::new(n)).collect();
        Ok(Plan {
            mesh: Mesh { axes: self.mesh.iter().map(|(a, n)| (Axis::new(a), *n)).collect() },
            sequence_parallel: self.sequence_parallel,
            strategies,
            stored: self.stored.iter().map(|(p, dims)| (p.clone(), dims.iter().map(axes).collect())).collect(),
        })
    }
}

/// A strategy as plans and reports print it.
pub(crate) fn strategy(s: &Strategy) -> String {
    match s {
        Strategy::None => "none".to_string(),
        Strategy::Follow => "follow".to_string(),
        Strategy::Axes(axes) => axes.iter().map(|(a, f)| format!("{a}: {f}")).collect::<Vec<_>>().join(", "),
    }
}

fn parse_strategy(text: &str) -> Option<Strategy> {
    match text {
        "none" => Some(Strategy::None),
        "follow" => Some(Strategy::Follow),
        _ => {
            let pair = |p: &str| p.split_once(": ").map(|(a, f)| (Axis::new(a), f.to_string()));
            text.split(", ").map(pair).collect::<Option<Vec<_>>>().map(Strategy::Axes)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strategies_read_back() {
        let axes = Strategy::Axes(vec![(Axis::new("dp"), "b".into()), (Axis::new("tp.0"), "g".into())]);
        for s in [Strategy::None, Strategy::Follow, axes] {
            assert_eq!(parse_strategy(&strategy(&s)), Some(s));
        }
        assert_eq!(parse_strategy("dp b"), None);
    }
}

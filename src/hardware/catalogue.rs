//! The presets that ship, and how a name finds one.

use std::path::Path;

use autoshard_cost::cluster::{Cluster, Failures};
use autoshard_cost::device::Device;

use super::cluster::read_cluster;
use super::defaults::{Failing, Prices, Sustained};
use super::device::read_device;
use super::error::suggest;
use super::names::Aliases;
use super::read::{Place, Read};
use super::{HardwareError, Preset};
use crate::json::Document;

const ACCELERATORS: &str = include_str!("../../data/hardware/accelerators.json");
const CLUSTERS: &str = include_str!("../../data/hardware/clusters.json");
const ALIASES: &str = include_str!("../../data/hardware/aliases.json");
const PRICES: &str = include_str!("../../data/hardware/prices.json");
const FAILURES: &str = include_str!("../../data/hardware/failures.json");
const SUSTAINED: &str = include_str!("../../data/hardware/sustained.json");

/// The name of the machine that CPU ranks run on.
const THIS_MACHINE: &str = "this-machine";

/// All presets, read once; [`device`](super::device()) and [`cluster`](super::cluster()) read them anew for
/// a single question.
#[derive(Clone, Debug)]
pub struct Catalogue {
    devices: Vec<Device>,
    clusters: Vec<Cluster>,
    aliases: Aliases,
    failing: Failing,
}

impl Catalogue {
    /// The presets that are embedded in the binary.
    ///
    /// # Errors
    /// Only if an embedded file is damaged, which a test rules out.
    pub fn shipped() -> Result<Catalogue, HardwareError> {
        let prices = Prices::read(&embedded("prices.json", PRICES)?)?;
        let sustained = Sustained::read(&embedded("sustained.json", SUSTAINED)?)?;
        let rows = embedded("accelerators.json", ACCELERATORS)?;
        let mut devices = Vec::new();
        for row in Place::at(&rows, String::new(), "an object")?.objects("accelerators", "a device")? {
            let mut device = read_device(&row, "")?;
            prices.fill(&mut device);
            sustained.fill(&mut device);
            devices.push(device);
        }
        sustained.check(&devices)?;
        let mut catalogue = Catalogue {
            aliases: Aliases::read(&embedded("aliases.json", ALIASES)?)?,
            failing: Failing::read(&embedded("failures.json", FAILURES)?)?,
            devices,
            clusters: Vec::new(),
        };
        let rows = embedded("clusters.json", CLUSTERS)?;
        for row in Place::at(&rows, String::new(), "an object")?.objects("clusters", "a cluster")? {
            let cluster = read_cluster(&row, &catalogue, "")?;
            catalogue.clusters.push(cluster);
        }
        let machine = Preset::this_machine()?.cluster(2);
        catalogue.devices.push(machine.device.clone());
        catalogue.clusters.push(machine);
        Ok(catalogue)
    }

    /// All devices, by maker; last the nominal core of this machine.
    pub fn devices(&self) -> &[Device] {
        &self.devices
    }

    /// All clusters; last this machine.
    pub fn clusters(&self) -> &[Cluster] {
        &self.clusters
    }

    /// The device of a name or alias: exactly as written, else whatever its case and with spaces, `_` and
    /// `-` alike. Where a spelling leaves open which device is meant, the device's notes say what was taken.
    ///
    /// # Errors
    /// Unknown and ambiguous names.
    pub fn device(&self, name: &str) -> Result<Device, HardwareError> {
        let ids = self.devices.iter().map(|d| d.id.as_str());
        let Some(id) = self.aliases.find(name, ids)? else {
            return Err(self.no_device(name));
        };
        let found = self.devices.iter().find(|d| d.id == id).cloned();
        let mut device = found.ok_or_else(|| self.no_device(name))?;
        if let Some(assumed) = self.aliases.assumed(name) {
            device.notes = format!("{name}: {assumed}; {}", device.notes);
        }
        Ok(device)
    }

    /// The cluster of a name, or of a JSON file where the name ends in `.json`, holds a `/`, or is a file.
    ///
    /// # Errors
    /// Unknown names; files that are unreadable or contradict themselves.
    pub fn cluster(&self, name_or_path: &str) -> Result<Cluster, HardwareError> {
        if let Some(found) = self.cluster_preset(name_or_path) {
            return Ok(found.clone());
        }
        let path = Path::new(name_or_path);
        let looks_like_a_file = name_or_path.ends_with(".json") || name_or_path.contains(['/', '\\']);
        if !looks_like_a_file && !path.is_file() {
            return Err(self.no_cluster(name_or_path));
        }
        let stem = path.file_stem().and_then(|s| s.to_str()).unwrap_or("cluster");
        self.read(&Document::read(path)?, stem)
    }

    /// The cluster that a document describes; `default_id` is its name where it gives none.
    ///
    /// # Errors
    /// Whatever is wrong with the file, with its place.
    pub fn read(&self, doc: &Document, default_id: &str) -> Result<Cluster, HardwareError> {
        let row = Place::at(doc, String::new(), "an object { … } that describes a cluster")?;
        let mut cluster = read_cluster(&row, self, default_id)?;
        if cluster.sources.is_empty() {
            cluster.sources.push(doc.file.clone());
        }
        Ok(cluster)
    }

    /// Failures of a preset: published ones, else the general default.
    pub(super) fn failures(&self, cluster: &str) -> Failures {
        self.failing.of(cluster)
    }

    fn cluster_preset(&self, name: &str) -> Option<&Cluster> {
        let exact = self.clusters.iter().find(|c| c.id == name);
        exact.or_else(|| self.clusters.iter().find(|c| super::names::alike(&c.id, name)))
    }

    fn no_device(&self, name: &str) -> HardwareError {
        let hint = match self.cluster_preset(name) {
            Some(cluster) => format!(": {} is a cluster, of {}", cluster.id, cluster.device.id),
            None => suggest(name, self.devices.iter().map(|d| d.id.as_str()).chain(self.aliases.spellings())),
        };
        HardwareError::UnknownDevice { place: String::new(), name: name.to_string(), hint }
    }

    fn no_cluster(&self, name: &str) -> HardwareError {
        let hint = match self.device(name) {
            Ok(device) => {
                let with = self.clusters.iter().filter(|c| c.device.id == device.id);
                let names: Vec<&str> = with.map(|c| c.id.as_str()).collect();
                let names = if names.is_empty() { "none of the presets".to_string() } else { names.join(", ") };
                format!(": it is a device ({}); clusters of it: {names}", device.id)
            }
            Err(_) => suggest(name, self.clusters.iter().map(|c| c.id.as_str())),
        };
        HardwareError::UnknownCluster { name: name.to_string(), hint }
    }

    /// What is known under a name that is neither, for the command line: the nearest of both kinds.
    pub fn near(&self, name: &str) -> String {
        let devices = self.devices.iter().map(|d| d.id.as_str());
        let clusters = self.clusters.iter().map(|c| c.id.as_str());
        suggest(name, devices.chain(clusters).chain(self.aliases.spellings()))
    }

    /// The name of this machine's preset.
    pub fn this_machine() -> &'static str {
        THIS_MACHINE
    }
}

/// An embedded file; messages name it as it stands in the repository.
fn embedded(name: &str, text: &str) -> Read<Document> {
    Ok(Document::parse(&format!("data/hardware/{name}"), text.as_bytes())?)
}

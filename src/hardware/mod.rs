//! Devices and clusters: presets that ship, and files of the user's.
//!
//! [`device`] and [`cluster`] answer by name; a cluster may also be a JSON file (see `cluster.rs` for its
//! keys). One spelling may be both: `gb200` is a device, `gb200-nvl72` a cluster, and as a device's name the
//! latter means the former. [`Catalogue`] keeps everything for many questions. Presets are embedded: the
//! same input gives the same plan everywhere. [`Preset`] is the machine that CPU ranks run on.

mod catalogue;
mod check;
mod cluster;
mod defaults;
mod device;
mod error;
mod names;
mod read;
#[cfg(test)]
mod tests;
mod this_machine;
mod tier;

pub use autoshard_cost::cluster::Cluster;
pub use autoshard_cost::device::Device;
pub use catalogue::Catalogue;
pub use error::HardwareError;
pub use this_machine::Preset;

/// The device of a name or alias, as [`Catalogue::device`].
///
/// # Errors
/// Unknown and ambiguous names.
pub fn device(name: &str) -> Result<Device, HardwareError> {
    Catalogue::shipped()?.device(name)
}

/// The cluster of a preset's name or of a JSON file, as [`Catalogue::cluster`].
///
/// # Errors
/// Unknown names; files that are unreadable or contradict themselves.
pub fn cluster(name_or_path: &str) -> Result<Cluster, HardwareError> {
    Catalogue::shipped()?.cluster(name_or_path)
}

/// All devices that ship.
///
/// # Errors
/// Only if an embedded file is damaged, which a test rules out.
pub fn devices() -> Result<Vec<Device>, HardwareError> {
    Ok(Catalogue::shipped()?.devices().to_vec())
}

/// All clusters that ship, this machine included.
///
/// # Errors
/// Only if an embedded file is damaged, which a test rules out.
pub fn clusters() -> Result<Vec<Cluster>, HardwareError> {
    Ok(Catalogue::shipped()?.clusters().to_vec())
}

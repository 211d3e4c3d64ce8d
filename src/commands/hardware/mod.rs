//! `autoshard hardware`: the devices and clusters that are known.

mod json;
mod text;

use super::{print, Failure};
use autoshard::hardware::{Catalogue, Cluster, Device, HardwareError, Preset};
use autoshard::runtime::cuda::probe;

/// List the known devices and clusters, or print one with where its figures come from
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  autoshard hardware\n  autoshard hardware h100-sxm5\n  autoshard hardware gb200-nvl72 --json\n  autoshard hardware my-cluster.json\n  autoshard hardware --probe"
)]
pub struct Args {
    /// A device, a cluster, or a JSON file that describes a cluster
    name: Option<String>,
    /// Print one JSON object, in plain units (FLOP/s, bytes, seconds)
    #[arg(long)]
    json: bool,
    /// Print what is found of CUDA here: driver and devices, or what is missing
    #[arg(long, conflicts_with_all = ["name", "json"])]
    probe: bool,
}

/// What a name is.
enum Found {
    Device(Box<Device>),
    /// With the device that the same spelling means, if any.
    Cluster(Box<Cluster>, Option<String>),
}

/// Prints one device or cluster, or all names.
pub fn hardware(args: &Args) -> Result<(), Failure> {
    if args.probe {
        return print(&probe().to_string());
    }
    let known = Catalogue::shipped()?;
    let Some(name) = &args.name else {
        return match args.json {
            true => print(&json::line(&json::all(&known))),
            false => print(&text::all(&known)),
        };
    };
    let found = find(&known, name)?;
    if args.json {
        return print(&json::line(&match &found {
            Found::Device(device) => json::device(device),
            Found::Cluster(cluster, _) => json::cluster(cluster),
        }));
    }
    match found {
        Found::Device(device) => print(&text::device(&device)),
        Found::Cluster(cluster, _) if cluster.id == Catalogue::this_machine() => {
            print(&text::this_machine(&Preset::this_machine()?))
        }
        Found::Cluster(cluster, also) => print(&text::cluster(&cluster, also.as_deref())),
    }
}

/// A device's own name, else a cluster (a spelling may be both), else an alias of a device.
fn find(known: &Catalogue, name: &str) -> Result<Found, Failure> {
    let device = known.device(name);
    if let Some(device) = device.as_ref().ok().filter(|d| d.id == name && name != Catalogue::this_machine()) {
        return Ok(Found::Device(Box::new(device.clone())));
    }
    match (known.cluster(name), device) {
        (Ok(cluster), device) => Ok(Found::Cluster(Box::new(cluster), device.ok().map(|d| d.id))),
        (Err(_), Ok(device)) => Ok(Found::Device(Box::new(device))),
        (Err(HardwareError::UnknownCluster { .. }), Err(HardwareError::UnknownDevice { .. })) => {
            let near = known.near(name);
            Err(Failure::Usage(format!("unknown machine {name}{near} (`autoshard hardware` lists all)")))
        }
        (Err(HardwareError::UnknownCluster { .. }), Err(other)) => Err(Failure::Usage(other.to_string())),
        (Err(broken), _) => Err(broken.into()),
    }
}

//! `autoshard hardware`: the machines that are known.

use super::{print, suggestion, Failure};
use autoshard::hardware::Preset;
use autoshard::runtime::cuda::probe;
use std::fmt::Write;

/// List the known machines, or print one with the sources of its figures
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  autoshard hardware this-machine\n  autoshard hardware --probe")]
pub struct Args {
    /// A machine's name
    name: Option<String>,
    /// Print what is found of CUDA here: driver and devices, or what is missing
    #[arg(long, conflicts_with = "name")]
    probe: bool,
}

/// Prints one machine or all names.
pub fn hardware(args: &Args) -> Result<(), Failure> {
    if args.probe {
        return print(&probe().to_string());
    }
    let machine = Preset::this_machine()?;
    match &args.name {
        None => print(&format!("{}\n  {}\n", machine.name, machine.about)),
        Some(name) if *name == machine.name => print(&figures(&machine)),
        Some(name) => {
            let near = suggestion(name, [machine.name.as_str()]);
            Err(Failure::Usage(format!("unknown machine {name}; known: {}{near}", machine.name)))
        }
    }
}

fn figures(m: &Preset) -> String {
    let mut out = format!("{} ({})\n{}\n", m.name, m.kind, m.about);
    let source = |key: &str| m.sources.get(key).map_or("no source", String::as_str);
    for (dtype, peak) in &m.peak_flops {
        let _ = writeln!(
            out,
            "  {:<20} {:>12}  {}",
            format!("peak {dtype}"),
            format!("{:.1} GFLOP/s", peak / 1e9),
            source("peak_flops")
        );
    }
    let rows = [
        ("memory_bandwidth", format!("{:.1} GB/s", m.memory_bandwidth / 1e9)),
        ("link_bandwidth", format!("{:.1} GB/s", m.link_bandwidth / 1e9)),
        ("collective_latency", format!("{:.1} µs", m.collective_latency * 1e6)),
        ("kernel_latency", format!("{:.1} µs", m.kernel_latency * 1e6)),
    ];
    for (key, value) in rows {
        let _ = writeln!(out, "  {:<20} {value:>12}  {}", key.replace('_', " "), source(key));
    }
    out
}

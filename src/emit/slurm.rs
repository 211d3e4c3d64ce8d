//! The Slurm script around a framework's flags.

use super::args::{on_one_line, quoted};
use super::{facts, Cannot, Framework, Launch};

/// Servers and the devices used of each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Servers {
    /// Servers.
    pub nodes: u64,
    /// Devices of each.
    pub per_node: u64,
}

/// The servers of a plan: whole ones where its devices fill them. Ranks are started in equal numbers on each.
pub(super) fn servers(launch: &Launch, cannot: &mut Cannot) -> Servers {
    let (devices, of_server) = (launch.layout.devices().max(1), launch.cluster.devices_per_node.max(1));
    let most = devices.min(of_server);
    let per_node = (1..=most).rev().find(|n| devices.is_multiple_of(*n)).unwrap_or(1);
    let servers = Servers { nodes: devices / per_node, per_node };
    if per_node < most {
        cannot.say(
            format!("devices={devices}"),
            format!(
                "Slurm starts as many ranks on one server as on another; {} servers run {per_node} of their {of_server} \
                 devices",
                servers.nodes
            ),
        );
    }
    servers
}

/// How ranks are started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Start {
    /// One `torchrun` on each server starts its ranks.
    Torchrun,
    /// Slurm starts a process for each device.
    ProcessEach,
    /// Slurm starts one process on each server, which drives all its devices.
    ProcessPerServer,
}

/// A script that starts ranks.
pub(super) struct Script<'a> {
    /// For whom.
    pub framework: Framework,
    /// What.
    pub launch: &'a Launch<'a>,
    /// Where.
    pub servers: Servers,
    /// What cannot be said: it is told at the top.
    pub cannot: &'a [String],
    /// Lines before the start: variables, arrays.
    pub body: String,
    /// How.
    pub start: Start,
    /// The program and its arguments, as words of the shell.
    pub command: &'a str,
}

impl Script<'_> {
    /// Its name and text.
    pub fn file(&self) -> (String, String) {
        let mut out = String::from("#!/bin/bash\n");
        out.push_str(&self.directives());
        out.push_str(&self.about());
        out.push_str("set -euo pipefail\n");
        // Slurm runs a copy of the script from its own folder: files beside it are found from where it was sent.
        out.push_str("cd \"${SLURM_SUBMIT_DIR:-.}\"\n");
        out.push_str(&format!("MODEL={}\n", quoted(&self.launch.model_file.to_string_lossy())));
        out.push_str(
            "if [ -d \"$MODEL\" ]; then MODEL_FOLDER=$MODEL; else MODEL_FOLDER=$(dirname -- \"$MODEL\"); fi\n",
        );
        out.push_str("export MODEL MODEL_FOLDER\n");
        out.push_str(&self.body);
        out.push_str(&self.starter());
        (format!("{}.sbatch", self.framework), out)
    }

    fn directives(&self) -> String {
        let family: String = self.launch.decoder.family.chars().filter(|c| c.is_ascii_alphanumeric()).collect();
        let Servers { nodes, per_node } = self.servers;
        let mut out = format!("#SBATCH --job-name={family}-{}\n#SBATCH --nodes={nodes}\n", self.framework);
        let tasks = if self.start == Start::ProcessEach { per_node } else { 1 };
        out += &format!("#SBATCH --ntasks-per-node={tasks}\n");
        if self.start != Start::ProcessPerServer {
            out += &format!("#SBATCH --gpus-per-node={per_node}\n");
        }
        out + "#SBATCH --exclusive\n"
    }

    fn about(&self) -> String {
        let l = self.launch;
        let mut lines = vec![
            format!("A plan of autoshard in the words of {}.", self.framework.tool()),
            format!(
                "{} of {} on {} devices of {}: {} sequences of {} positions a step, {}.",
                l.decoder.family,
                l.model_file.to_string_lossy(),
                l.layout.devices(),
                l.cluster.id,
                l.global_batch,
                l.seq_len,
                l.precision
            ),
            format!("--fix {}", facts::words(l.layout)),
            format!("layers of the stages: {}", facts::sum_of(l.layers_per_stage)),
        ];
        if !self.cannot.is_empty() {
            lines.push("What it cannot say, and what happens instead:".to_string());
            lines.extend(self.cannot.iter().map(|c| format!("- {c}")));
        }
        lines.iter().map(|line| format!("# {}\n", on_one_line(line))).collect()
    }

    fn starter(&self) -> String {
        let command = self.command;
        let address =
            "MASTER_ADDR=$(scontrol show hostnames \"$SLURM_JOB_NODELIST\" | head -n 1)\nexport MASTER_ADDR MASTER_PORT=29500\n";
        match self.start {
            // The rank of a server is Slurm's, so that neighbours of the plan are neighbours of the network.
            Start::Torchrun => format!(
                "{address}srun bash -c 'exec torchrun --nnodes=\"$SLURM_NNODES\" --node-rank=\"$SLURM_NODEID\" \
                 --nproc-per-node={} --master-addr=\"$MASTER_ADDR\" --master-port=\"$MASTER_PORT\" \"$@\"' \
                 torchrun {command}\n",
                self.servers.per_node
            ),
            Start::ProcessEach | Start::ProcessPerServer => format!("srun {command}\n"),
        }
    }
}

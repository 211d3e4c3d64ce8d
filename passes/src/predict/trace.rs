//! The timeline of a simulated step, for people to look at.

/// One stretch of work of a rank.
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    /// Pipeline rank; 0 without a pipeline.
    pub rank: u32,
    /// Where it runs.
    pub lane: Lane,
    /// What it is: `F3`, `B3.1`, `layer forward`, `all-gather dp`.
    pub name: String,
    /// Seconds from the start of the step.
    pub start: f64,
    /// Seconds that it takes.
    pub seconds: f64,
}

/// What runs side by side on a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Lane {
    /// Kernels, and messages that they wait for.
    Compute,
    /// Messages of data parallelism, inside a shard group.
    Data,
    /// The same between shard groups.
    Replicas,
    /// Activations to the next stage.
    Forward,
    /// Their cotangents to the stage before.
    Backward,
}

impl Lane {
    /// As viewers show it.
    pub fn name(self) -> &'static str {
        match self {
            Lane::Compute => "compute",
            Lane::Data => "data parallel",
            Lane::Replicas => "data parallel, between replicas",
            Lane::Forward => "send activations",
            Lane::Backward => "send cotangents",
        }
    }
}

/// What a player keeps to tell the timeline, beside the times themselves.
#[derive(Clone, Debug, Default)]
pub struct Recorder {
    /// Names of the functions.
    pub names: Vec<String>,
    /// Tasks of kernels: task, function, phase.
    pub labels: Vec<(u32, usize, &'static str)>,
    /// The timeline of the last step.
    pub events: Vec<Event>,
}

impl Recorder {
    /// The name of a task of kernels, as people read it.
    pub fn name(&self, function: usize, phase: &str) -> String {
        format!("{} {phase}", self.names.get(function).map_or("function", String::as_str))
    }
}

//! Programs: what every rank executes, as a list of steps over fixed buffers.
//!
//! All ranks of a stage class run the same program; a rank differs by its coordinates alone.

use crate::core::{Axis, Type};
use crate::kernel::Kernel;
use crate::mesh::Mesh;

/// Where a buffer of a step lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Buf {
    /// In the function's frame, at this byte offset.
    Frame(usize),
    /// Parameter of the function.
    Param(usize),
    /// Result of the function.
    Result(usize),
}

/// Kinds of communication.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CollectiveKind {
    /// Partial to replicated.
    AllReduce,
    /// Split to replicated.
    AllGather,
    /// Partial to split.
    ReduceScatter,
    /// Split to split: another dimension, or another order of axes.
    AllToAll,
    /// No communication: replicated to split (each rank keeps its part), replicated to partial (the
    /// first rank keeps the value), split to partial (zeros elsewhere).
    Local,
}

impl CollectiveKind {
    /// Name of the operation in the text form.
    pub fn name(self) -> &'static str {
        match self {
            CollectiveKind::AllReduce => "all_reduce",
            CollectiveKind::AllGather => "all_gather",
            CollectiveKind::ReduceScatter => "reduce_scatter",
            CollectiveKind::AllToAll => "all_to_all",
            CollectiveKind::Local => "shard",
        }
    }

    /// Inverse of [`CollectiveKind::name`].
    pub fn from_name(name: &str) -> Option<CollectiveKind> {
        use CollectiveKind::*;
        [AllReduce, AllGather, ReduceScatter, AllToAll, Local].into_iter().find(|k| k.name() == name)
    }
}

/// A change of state of one value over a group of ranks.
#[derive(Clone, Debug, PartialEq)]
pub struct Collective {
    /// Kind.
    pub kind: CollectiveKind,
    /// Axes that the group spans, in mesh order.
    pub axes: Vec<Axis>,
    /// State before.
    pub from: Type,
    /// State after.
    pub to: Type,
    /// Name of the value, for reports and the watchdog.
    pub name: String,
    /// Control traffic (the loss mean), counted apart.
    pub control: bool,
}

/// One step.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// Runs a kernel.
    Kernel {
        /// Index in [`Program::kernels`].
        kernel: usize,
        /// Operands, then results.
        buffers: Vec<Buf>,
    },
    /// Begins to communicate. Until the [`Step::Wait`] nothing else writes the input, and nothing else
    /// touches the output, except that a later issue may read it: a rank's communication runs in the
    /// order of its issues. [`CollectiveKind::Local`] does no communication and is complete at once.
    Issue {
        /// Index in [`Program::collectives`].
        collective: usize,
        /// Read.
        input: Buf,
        /// Written; never the input.
        output: Buf,
    },
    /// Waits until an issue is complete. Every issue has one wait, in the same function.
    Wait {
        /// Position of the [`Step::Issue`] in the function's steps.
        issue: usize,
    },
    /// Runs another function.
    Call {
        /// Index in [`Program::functions`].
        function: usize,
        /// Arguments.
        args: Vec<Buf>,
        /// Results.
        results: Vec<Buf>,
    },
    /// Copies a buffer (a result that is also a parameter, say).
    Copy {
        /// Read.
        from: Buf,
        /// Written.
        to: Buf,
        /// Bytes.
        bytes: usize,
    },
}

/// Steps of one function with its static memory plan.
#[derive(Clone, Debug, PartialEq)]
pub struct ProgramFunction {
    /// Name.
    pub name: String,
    /// Parameter names and local types.
    pub params: Vec<(String, Type)>,
    /// Result names and local types.
    pub results: Vec<(String, Type)>,
    /// For a result that lives in a parameter's buffer (an update in place): that parameter.
    pub in_place: Vec<Option<usize>>,
    /// Per parameter, whether the function may overwrite it as it does its frame: no caller reads the
    /// argument again. Never a parameter of the entry, nor one that holds a result.
    pub consumed: Vec<bool>,
    /// Bytes of the frame.
    pub frame: usize,
    /// Steps in order.
    pub steps: Vec<Step>,
}

/// What every rank runs.
#[derive(Clone, Debug, PartialEq)]
pub struct Program {
    /// Mesh.
    pub mesh: Mesh,
    /// Kernels, shared between functions.
    pub kernels: Vec<Kernel>,
    /// Collectives.
    pub collectives: Vec<Collective>,
    /// Functions.
    pub functions: Vec<ProgramFunction>,
    /// Index of the entry function.
    pub entry: usize,
}

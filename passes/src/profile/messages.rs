//! States of values over tp, and the messages that change them.

use super::roles::Takes;
use autoshard_cost::collectives::Kind;
use autoshard_ir::core::Dim;

/// How the tensor-parallel ranks hold a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// Everyone has all of it.
    Whole,
    /// Along the dimension that this role splits.
    Split(Takes),
    /// Everyone has a term of a sum.
    Partial,
}

/// The state in which a node wants an operand with these dimensions.
pub(super) fn wanted(takes: Takes, dims: &[Dim]) -> State {
    if dims.iter().any(|d| takes.splits(&d.name)) {
        State::Split(takes)
    } else {
        State::Whole
    }
}

/// The message that brings a value from one state to another; None where nothing moves (a slice, or nothing).
pub(super) fn change(from: State, to: State) -> Option<Kind> {
    match (from, to) {
        (State::Partial, State::Whole) => Some(Kind::AllReduce),
        (State::Partial, State::Split(_)) => Some(Kind::ReduceScatter),
        (State::Split(_), State::Whole) => Some(Kind::AllGather),
        (State::Split(a), State::Split(b)) if a != b => Some(Kind::AllToAll),
        (State::Split(_), State::Split(_)) | (State::Whole | State::Partial, State::Partial) => None,
        (State::Whole, State::Whole | State::Split(_)) | (State::Split(_), State::Partial) => None,
    }
}

/// The state that a value's cotangent has to reach: that of the value, with sums taken.
pub(super) fn cotangent_target(value: State) -> State {
    match value {
        State::Partial => State::Whole,
        other => other,
    }
}

/// The state in which a reader leaves the cotangent of an operand that it wanted in `wanted`: a term of a sum
/// if the reader splits a factor that the operand lacks.
pub(super) fn cotangent_of(wanted: State, takes: Takes) -> State {
    match wanted {
        State::Whole if takes != Takes::None => State::Partial,
        other => other,
    }
}

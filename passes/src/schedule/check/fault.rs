//! What can be wrong with a program.

use super::SpanError;

/// Why a program is not sound.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum CheckError {
    /// The entry does not exist.
    #[error("no function {entry}: the program has {functions}")]
    Entry {
        /// Index of the entry.
        entry: usize,
        /// Number of functions.
        functions: usize,
    },
    /// A function calls itself, directly or not: its frame is not static.
    #[error("@{function} calls itself")]
    Recursion {
        /// Function.
        function: String,
    },
    /// The list of updates in place is malformed.
    #[error("@{function}: result {result} cannot be in place: {problem}")]
    InPlace {
        /// Function.
        function: String,
        /// Result.
        result: String,
        /// What is wrong.
        problem: String,
    },
    /// A result is never written.
    #[error("@{function}: result {result} is never written")]
    Unwritten {
        /// Function.
        function: String,
        /// Result.
        result: String,
    },
    /// The list of consumed parameters is malformed.
    #[error("@{function}: {parameter} cannot be consumed: {problem}")]
    Consumed {
        /// Function.
        function: String,
        /// Parameter.
        parameter: String,
        /// What is wrong.
        problem: String,
    },
    /// A collective is issued and never waited for.
    #[error("@{function}: step {step} ({what}) is never waited for")]
    Unwaited {
        /// Function.
        function: String,
        /// Position of the issue.
        step: usize,
        /// Its collective.
        what: String,
    },
    /// A step is wrong.
    #[error("@{function}: step {step} ({what}): {fault}")]
    Step {
        /// Function.
        function: String,
        /// Position of the step.
        step: usize,
        /// Its kernel, collective or callee.
        what: String,
        /// What is wrong.
        fault: Fault,
    },
}

/// What is wrong with a step. Buffers are named as in the function: `%x`, or `frame+128`.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Fault {
    /// An index is out of range.
    #[error("no {what} {index}")]
    Missing {
        /// Kernel, collective, function, parameter or result.
        what: &'static str,
        /// Index.
        index: usize,
    },
    /// Wrong number of buffers.
    #[error("{got} {what}, expected {expected}")]
    Count {
        /// Buffers, arguments or results.
        what: &'static str,
        /// Number given.
        got: usize,
        /// Number that the kernel or callee has.
        expected: usize,
    },
    /// The kernel contradicts itself.
    #[error(transparent)]
    Kernel(#[from] SpanError),
    /// A buffer is read that nothing has written.
    #[error("reads {buffer}, which nothing has written")]
    ReadBeforeWrite {
        /// Buffer.
        buffer: String,
    },
    /// A buffer is read that another one has overwritten.
    #[error("reads {buffer}, which step {by} has overwritten")]
    Overwritten {
        /// Buffer.
        buffer: String,
        /// Position of the step that wrote over it.
        by: usize,
    },
    /// A parameter is read after its update in place.
    #[error("reads {buffer}, which step {by} has updated in place")]
    ReadAfterUpdate {
        /// Parameter.
        buffer: String,
        /// Position of the step that updated it.
        by: usize,
    },
    /// A buffer has another size than the step reads or writes.
    #[error("{buffer} has {has} bytes, expected {expected}")]
    Size {
        /// Buffer.
        buffer: String,
        /// Bytes written, or bytes of its type.
        has: usize,
        /// Bytes that the step reads or writes.
        expected: usize,
    },
    /// A buffer does not lie in the frame.
    #[error("{buffer} ends at {end}, the frame at {frame}")]
    Frame {
        /// Buffer.
        buffer: String,
        /// First byte after it.
        end: usize,
        /// Bytes of the frame.
        frame: usize,
    },
    /// The step writes a buffer over one that it reads or writes as well.
    #[error("writes {written} over {other}")]
    Overlap {
        /// Written.
        written: String,
        /// Read or written by the same step.
        other: String,
    },
    /// A parameter is written that no result updates.
    #[error("writes {buffer}, a parameter without an update in place")]
    ReadOnly {
        /// Parameter.
        buffer: String,
    },
    /// A result is written a second time.
    #[error("writes {buffer} again, after step {by}")]
    WrittenTwice {
        /// Result.
        buffer: String,
        /// Position of the step that wrote it first.
        by: usize,
    },
    /// The callee updates a parameter in place, but the call gives it two buffers.
    #[error("the callee updates {argument} in place, but its result goes to {result}")]
    NotInPlace {
        /// Argument.
        argument: String,
        /// Buffer of the result.
        result: String,
    },
    /// A buffer is read that a callee has used as its own.
    #[error("reads {buffer}, which the call in step {by} has consumed")]
    ReadAfterConsumed {
        /// Buffer.
        buffer: String,
        /// Position of the call.
        by: usize,
    },
    /// The callee overwrites an argument that is not the caller's to give away.
    #[error("the callee consumes {argument}, which is not in the frame nor consumed here")]
    NotDonated {
        /// Argument.
        argument: String,
    },
    /// The callee overwrites an argument that it is given twice.
    #[error("the callee consumes {argument}, which is also {other}")]
    ConsumedTwice {
        /// Argument.
        argument: String,
        /// Another argument or result of the call in the same place.
        other: String,
    },
    /// A buffer is read while a collective writes it.
    #[error("reads {buffer}, which the collective of step {issue} is still writing")]
    ReadBeforeWait {
        /// Buffer.
        buffer: String,
        /// Position of the issue.
        issue: usize,
    },
    /// A buffer is written while a collective reads or writes it.
    #[error("writes {buffer}, which the collective of step {issue} still {does}")]
    WriteBeforeWait {
        /// Buffer.
        buffer: String,
        /// Position of the issue.
        issue: usize,
        /// `reads` or `writes`.
        does: &'static str,
    },
    /// A wait for something that is no collective under way.
    #[error("waits for step {issue}, {problem}")]
    Wait {
        /// Position that the wait names.
        issue: usize,
        /// What is wrong with it.
        problem: &'static str,
    },
}

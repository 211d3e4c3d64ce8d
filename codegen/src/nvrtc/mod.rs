//! NVRTC: from text to machine code, on machines without a GPU, too. The library is loaded when it
//! is there; where it is missing, an error says so and nothing panics.

mod budget;
mod cache;
mod compile;
mod find;
mod log;

pub use budget::{check, BudgetError, Limits};
pub use cache::{Cache, CacheError};
pub use compile::{CompileError, Image, Job, Target};
pub use find::{MissingNvrtc, Nvrtc};
pub use log::{parse as parse_log, EntryResources, Resources};

//! Whether an entry point fits a multiprocessor, judged by what is known without one.

use super::log::Resources;
use crate::cuda::Entry;

/// What an entry point may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Registers of a thread.
    pub registers: u32,
    /// Registers of a block.
    pub block_registers: u32,
    /// Bytes of shared memory of a block, static and dynamic.
    pub shared: u32,
    /// Threads of a block.
    pub threads: u32,
    /// Bytes of spilled registers, stores and loads together.
    pub spills: u32,
}

impl Default for Limits {
    /// What every target gives without being asked for more.
    fn default() -> Limits {
        Limits { registers: 255, block_registers: 65_536, shared: 48 << 10, threads: 1024, spills: 0 }
    }
}

/// What exceeds a limit.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BudgetError {
    /// Registers are spilled.
    #[error("{entry} spills registers: {stores} bytes written, {loads} read")]
    Spills {
        /// Entry point.
        entry: String,
        /// Bytes written.
        stores: u32,
        /// Bytes read.
        loads: u32,
    },
    /// Too many registers.
    #[error("{entry} needs {registers} registers a thread, {} for {threads} threads; {limit} a thread and {block} a block are there", *registers as u64 * *threads as u64)]
    Registers {
        /// Entry point.
        entry: String,
        /// Registers of a thread.
        registers: u32,
        /// Threads of a block.
        threads: u32,
        /// Limit of a thread.
        limit: u32,
        /// Limit of a block.
        block: u32,
    },
    /// Too much shared memory.
    #[error("{entry} needs {fixed} bytes of static and {dynamic} of dynamic shared memory; {limit} are there")]
    Shared {
        /// Entry point.
        entry: String,
        /// Static bytes.
        fixed: u32,
        /// Dynamic bytes.
        dynamic: u32,
        /// Limit.
        limit: u32,
    },
    /// Too many threads.
    #[error("{entry} has blocks of {threads} threads; {limit} are possible")]
    Threads {
        /// Entry point.
        entry: String,
        /// Threads of a block.
        threads: u32,
        /// Limit.
        limit: u32,
    },
}

/// Registers are given to warps in this unit.
const UNIT: u32 = 8;

/// Checks an entry point against limits.
pub fn check(entry: &Entry, r: &Resources, limits: &Limits) -> Result<(), BudgetError> {
    let name = || entry.name.clone();
    let threads = entry.block;
    if threads == 0 || threads > limits.threads {
        return Err(BudgetError::Threads { entry: name(), threads, limit: limits.threads });
    }
    if u64::from(r.spill_stores) + u64::from(r.spill_loads) > u64::from(limits.spills) {
        return Err(BudgetError::Spills { entry: name(), stores: r.spill_stores, loads: r.spill_loads });
    }
    let granted = u64::from(r.registers).next_multiple_of(u64::from(UNIT));
    if r.registers > limits.registers || granted * u64::from(threads) > u64::from(limits.block_registers) {
        let (limit, block) = (limits.registers, limits.block_registers);
        return Err(BudgetError::Registers { entry: name(), registers: r.registers, threads, limit, block });
    }
    // The text knows what it declares; the assembler may add to it.
    let fixed = r.shared.max(entry.shared);
    if u64::from(fixed) + u64::from(entry.dynamic) > u64::from(limits.shared) {
        return Err(BudgetError::Shared { entry: name(), fixed, dynamic: entry.dynamic, limit: limits.shared });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_limit_is_told() {
        let entry = Entry { name: "k".into(), grid: 1, block: 512, shared: 1024, dynamic: 0 };
        let fine = Resources { registers: 128, shared: 1024, ..Resources::default() };
        let limits = Limits::default();
        assert_eq!(check(&entry, &fine, &limits), Ok(()));
        let told = |e: &Entry, r: &Resources| check(e, r, &limits).unwrap_err().to_string();
        assert_eq!(
            told(&entry, &Resources { registers: 130, ..fine }),
            "k needs 130 registers a thread, 66560 for 512 threads; 255 a thread and 65536 a block are there"
        );
        assert_eq!(
            told(&entry, &Resources { spill_stores: 4, spill_loads: 8, ..fine }),
            "k spills registers: 4 bytes written, 8 read"
        );
        let large = Entry { dynamic: 48 << 10, ..entry.clone() };
        assert_eq!(
            told(&large, &fine),
            "k needs 1024 bytes of static and 49152 of dynamic shared memory; 49152 are there"
        );
        assert_eq!(check(&large, &fine, &Limits { shared: 64 << 10, ..limits }), Ok(()));
        let wide = Entry { block: 2048, ..entry };
        assert_eq!(told(&wide, &fine), "k has blocks of 2048 threads; 1024 are possible");
    }
}

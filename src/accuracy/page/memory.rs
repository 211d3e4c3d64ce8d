//! Memory against readings.

use super::{cell, percent, signed};
use crate::accuracy::memory::MemoryLine;
use std::fmt::Write;

/// Memory by source.
pub(super) fn memory(out: &mut String, lines: &[MemoryLine]) {
    if lines.is_empty() {
        return;
    }
    out.push_str(
        "## Memory\n\nPredicted peak memory of the fullest device against readings, by the kind that a reading counts \
         (allocated, reserved, or of the device; not stated: reserved). A reading that a source prints for several \
         rows has one vote. *Ran out* are rows that ran out of memory, *ran* those that did not; refused is predicted \
         not to fit into what the driver reports.\n\n\
         | source | rows | distinct readings | mean | worst | ran out: refused | ran: refused |\n|---|---:|---:|---:|---:|---:|---:|\n",
    );
    for l in lines {
        let of = |refused: usize, all: usize| if all == 0 { "–".to_string() } else { format!("{refused} of {all}") };
        let cells = [
            l.rows.to_string(),
            l.distinct.to_string(),
            l.mean.map_or("–".into(), percent),
            l.worst.map_or("–".into(), signed),
            of(l.out_refused, l.out_of_memory),
            of(l.complete_refused, l.complete),
        ];
        let _ = writeln!(out, "| {} | {} |", cell(&l.name), cells.join(" | "));
    }
    out.push('\n');
}

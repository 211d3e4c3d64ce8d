//! What the assembler says about each entry point.

/// Static resources of an entry point, per thread unless stated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Resources {
    /// Registers.
    pub registers: u32,
    /// Bytes of spilled registers written.
    pub spill_stores: u32,
    /// Bytes of spilled registers read.
    pub spill_loads: u32,
    /// Bytes of stack.
    pub stack: u32,
    /// Bytes of static shared memory of a block.
    pub shared: u32,
    /// Bytes of constant memory of a launch, arguments included.
    pub constant: u32,
}

/// An entry point's resources.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EntryResources {
    /// Name of the entry point.
    pub entry: String,
    /// Its resources, with those of the functions that it calls.
    pub resources: Resources,
}

/// Reads the log of a compilation with `--ptxas-options=-v`.
pub fn parse(log: &str) -> Vec<EntryResources> {
    let mut out: Vec<EntryResources> = vec![];
    for line in log.lines() {
        if let Some(rest) = line.split("Compiling entry function '").nth(1) {
            let entry = rest.split('\'').next().unwrap_or_default().to_string();
            out.push(EntryResources { entry, resources: Resources::default() });
            continue;
        }
        let Some(current) = out.last_mut() else { continue };
        let r = &mut current.resources;
        if line.contains("bytes stack frame") {
            r.stack = r.stack.max(before(line, "bytes stack frame"));
            r.spill_stores += before(line, "bytes spill stores");
            r.spill_loads += before(line, "bytes spill loads");
        } else if line.contains("Used ") && line.contains("registers") {
            r.registers = before(line, "registers");
            r.shared = before(line, "bytes smem");
            // Several banks.
            r.constant = line.split(',').filter(|p| p.contains("bytes cmem")).map(|p| before(p, "bytes cmem")).sum();
        }
    }
    out
}

/// The number before a phrase; 0 if it is not there.
fn before(line: &str, phrase: &str) -> u32 {
    let number = line.split(phrase).next().filter(|_| line.contains(phrase));
    number.and_then(|n| n.split_whitespace().last()).and_then(|n| n.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_with_called_functions() {
        let log = "ptxas info    : 0 bytes gmem, 24 bytes cmem[4]
ptxas info    : Compiling entry function 'k_1' for 'sm_80'
ptxas info    : Function properties for k_1
    8 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 38 registers, used 1 barriers, 2048 bytes smem, 8 bytes cumulative stack size, 400 bytes cmem[0], 8 bytes cmem[2]
ptxas info    : Function properties for slow
    40 bytes stack frame, 4 bytes spill stores, 12 bytes spill loads
ptxas info    : Compiling entry function 'k_2' for 'sm_80'
ptxas info    : Function properties for k_2
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 16 registers, used 0 barriers, 352 bytes cmem[0]
";
        let r = parse(log);
        assert_eq!(r.len(), 2);
        let first =
            Resources { registers: 38, spill_stores: 4, spill_loads: 12, stack: 40, shared: 2048, constant: 408 };
        assert_eq!((&*r[0].entry, r[0].resources), ("k_1", first));
        assert_eq!(r[1].resources, Resources { registers: 16, constant: 352, ..Resources::default() });
        assert_eq!(parse("nothing here"), []);
    }
}

//! Jobs of a driver: written, run, and read back.

use super::toolchain;
use autoshard::cuda::check::tensor::Tensor;
use serde::Deserialize;
use std::fmt::Write as _;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;

/// Order in which threads and blocks run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    Forward,
    Reverse,
    Random(u64),
}

/// All orders that a kernel is tried in.
pub const ORDERS: [Order; 3] = [Order::Forward, Order::Reverse, Order::Random(7)];

/// What a kernel may do with a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Read.
    Operand,
    /// Written before it is read.
    Result,
    /// An operand that a result replaces.
    InPlace,
}

/// An argument of an entry.
#[derive(Clone, Debug, PartialEq)]
pub enum Arg {
    /// Address of a buffer of the job.
    Buffer(usize),
    /// A number, as the device passes it.
    Bytes(Vec<u8>),
}

/// One launch.
#[derive(Clone, Debug, PartialEq)]
pub struct Launch {
    /// `TEXT.ENTRY`.
    pub entry: String,
    pub grid: [usize; 3],
    pub block: [usize; 3],
    pub args: Vec<Arg>,
}

/// Launches over the same buffers, one after another.
#[derive(Clone, Debug)]
pub struct Job {
    /// For reports; no blanks.
    pub name: String,
    pub order: Order,
    pub check: bool,
    /// Contents before, results included.
    pub buffers: Vec<(Role, Tensor)>,
    pub launches: Vec<Launch>,
}

/// A fault that the checker saw.
#[derive(Clone, Debug, Deserialize)]
pub struct Report {
    pub kind: String,
    pub text: String,
    pub pc: u64,
    pub count: u64,
}

/// What the driver says of a job.
#[derive(Clone, Debug, Deserialize)]
pub struct Outcome {
    pub kernel: String,
    pub order: String,
    /// It ran to its end.
    pub done: bool,
    pub reports: Vec<Report>,
    /// Distinct bytes, per buffer.
    pub loaded: Vec<u64>,
    pub stored: Vec<u64>,
    /// Switches between threads, and accesses that were checked.
    pub switches: u64,
    pub accesses: u64,
    /// Most shared memory of a block, in bytes, arrays rounded up to 16.
    pub shared: u64,
    /// Contents of all buffers afterwards (as before, if it did not run to its end).
    #[serde(skip)]
    pub buffers: Vec<Tensor>,
}

impl Outcome {
    /// Reports with their places, one a line.
    pub fn explain(&self, driver: &Path) -> String {
        let line =
            |r: &Report| format!("\n    {}: {} ({}x) {}", r.kind, r.text, r.count, toolchain::location(driver, r.pc));
        self.reports.iter().map(line).collect()
    }
}

/// Runs jobs in one call of the driver.
pub fn run(driver: &Path, dir: &Path, jobs: &[Job]) -> Result<Vec<Outcome>, String> {
    let (mut text, mut data) = (String::new(), Vec::new());
    let mut places: Vec<Vec<usize>> = Vec::new();
    for job in jobs {
        let (order, seed) = match job.order {
            Order::Forward => ("forward", 0),
            Order::Reverse => ("reverse", 0),
            Order::Random(seed) => ("random", seed),
        };
        let _ = writeln!(text, "job {}\norder {order} {seed}\ncheck {}", job.name, u8::from(job.check));
        let mut offsets = Vec::new();
        for (i, (role, tensor)) in job.buffers.iter().enumerate() {
            let bytes = tensor.bytes();
            let role = match role {
                Role::Operand => "operand",
                Role::Result => "result",
                Role::InPlace => "inplace",
            };
            let at = data.len();
            let _ = writeln!(text, "buffer {role} {at} {}\noutput {i} {at}", bytes.len());
            offsets.push(at);
            data.extend(bytes);
        }
        places.push(offsets);
        for l in &job.launches {
            let ([gx, gy, gz], [bx, by, bz]) = (l.grid, l.block);
            let _ = writeln!(text, "launch {} {gx} {gy} {gz} {bx} {by} {bz}", l.entry);
            for a in &l.args {
                let _ = match a {
                    Arg::Buffer(k) => writeln!(text, "arg buffer {k}"),
                    Arg::Bytes(b) => {
                        let hex: String = b.iter().map(|b| format!("{b:02x}")).collect();
                        writeln!(text, "arg bytes {hex}")
                    }
                };
            }
        }
        text.push_str("end\n");
    }
    let (list, inputs, outputs) = (dir.join("jobs.txt"), dir.join("inputs.bin"), dir.join("outputs.bin"));
    let write = |path: &Path, bytes: &[u8]| std::fs::write(path, bytes).map_err(|e| format!("{}: {e}", path.display()));
    write(&list, text.as_bytes())?;
    write(&inputs, &data)?;
    write(&outputs, &data)?;
    let out = Command::new(driver).args([&list, &inputs, &outputs]).output().map_err(|e| format!("driver: {e}"))?;
    if !out.status.success() {
        return Err(format!("driver: {}: {}", out.status, String::from_utf8_lossy(&out.stderr)));
    }
    let lines = String::from_utf8_lossy(&out.stdout).into_owned();
    let mut outcomes = Vec::new();
    for line in lines.lines() {
        outcomes.push(serde_json::from_str::<Outcome>(line).map_err(|e| format!("driver: {e}: {line}"))?);
    }
    if outcomes.len() != jobs.len() {
        return Err(format!("driver: {} jobs, {} outcomes", jobs.len(), outcomes.len()));
    }
    let file = std::fs::File::open(&outputs).map_err(|e| format!("{}: {e}", outputs.display()))?;
    for ((job, offsets), outcome) in jobs.iter().zip(&places).zip(&mut outcomes) {
        for ((_, tensor), at) in job.buffers.iter().zip(offsets) {
            let mut bytes = vec![0; tensor.values.len() * tensor.dtype.bytes()];
            file.read_exact_at(&mut bytes, *at as u64).map_err(|e| format!("{}: {e}", outputs.display()))?;
            outcome.buffers.push(Tensor::from_bytes(tensor.dtype, &bytes));
        }
    }
    Ok(outcomes)
}

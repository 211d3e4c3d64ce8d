//! Compilation of texts, many at a time.

use super::cache::{Cache, CacheError};
use super::find::Nvrtc;
use super::log::{parse, EntryResources};
use crate::cuda::CudaKernel;
use cudarc::nvrtc::{result, sys};
use std::ffi::{c_char, CStr, CString};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// What a text is compiled to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Target {
    /// Machine code of A100.
    Sm80,
    /// Machine code of H100 and H200.
    Sm90a,
    /// Machine code of B200.
    Sm100,
    /// PTX for all from A100 on: assembled by the driver.
    Ptx,
}

impl Target {
    /// Targets of machine code.
    pub const CUBINS: [Target; 3] = [Target::Sm80, Target::Sm90a, Target::Sm100];

    /// Name of the architecture, as NVRTC has it.
    pub fn arch(self) -> &'static str {
        match self {
            Target::Sm80 => "sm_80",
            Target::Sm90a => "sm_90a",
            Target::Sm100 => "sm_100",
            Target::Ptx => "compute_80",
        }
    }

    /// Options of the compiler.
    fn options(self) -> Vec<String> {
        let arch = format!("--gpu-architecture={}", self.arch());
        let mut out = vec![arch, "--std=c++17".to_string()];
        if self != Target::Ptx {
            out.push("--ptxas-options=-v".into());
        }
        out
    }
}

/// A text to compile.
#[derive(Clone, Copy, Debug)]
pub struct Job<'a> {
    /// Kernel, for reports.
    pub kernel: &'a str,
    /// Text.
    pub source: &'a str,
    /// What for.
    pub target: Target,
}

impl<'a> Job<'a> {
    /// A kernel's text for a target.
    pub fn new(kernel: &'a CudaKernel, target: Target) -> Job<'a> {
        Job { kernel: &kernel.name, source: &kernel.source, target }
    }
}

/// A compiled text.
#[derive(Clone, Debug, PartialEq)]
pub struct Image {
    /// What for.
    pub target: Target,
    /// ELF image, or PTX text.
    pub bytes: Vec<u8>,
    /// Resources of the entry points; PTX has none.
    pub resources: Vec<EntryResources>,
    /// Time that the compiler took; `None` if the image was in the cache.
    pub time: Option<Duration>,
}

/// Why a text has no image.
#[derive(Debug, thiserror::Error)]
pub enum CompileError {
    /// The compiler refuses the text.
    #[error("kernel {kernel} does not compile for {arch}: {log}", arch = target.arch())]
    Refused {
        /// Kernel.
        kernel: String,
        /// What for.
        target: Target,
        /// First lines of the log.
        log: String,
    },
    /// The library fails.
    #[error("kernel {kernel}: NVRTC cannot {step}: {code}")]
    Library {
        /// Kernel.
        kernel: String,
        /// What was asked for.
        step: &'static str,
        /// Its error.
        code: String,
    },
    /// The text has a NUL byte.
    #[error("kernel {kernel}: the text holds a NUL byte")]
    Text {
        /// Kernel.
        kernel: String,
    },
    /// The cache cannot be used.
    #[error("kernel {kernel}: {source}")]
    Cache {
        /// Kernel.
        kernel: String,
        /// Why.
        source: CacheError,
    },
    /// The thread that should have compiled it ended early.
    #[error("kernel {kernel}: the compilation was abandoned")]
    Abandoned {
        /// Kernel.
        kernel: String,
    },
}

/// Lines of a log that an error shows.
const LOG_LINES: usize = 6;

impl Nvrtc {
    /// Compiles a text; looks into the cache first.
    pub fn compile(&self, job: Job, cache: Option<&Cache>) -> Result<Image, CompileError> {
        let Some(cache) = cache else { return self.run(job) };
        let options = job.target.options();
        let key = Cache::key(job.source, &options, self.version(), job.target);
        if let Some(image) = cache.read(&key, job.target) {
            return Ok(image);
        }
        let image = self.run(job)?;
        let failed = |source| CompileError::Cache { kernel: job.kernel.into(), source };
        cache.write(&key, &image).map_err(failed)?;
        Ok(image)
    }

    /// Compiles texts on `threads` threads; results are in the order of the jobs.
    pub fn compile_all(&self, jobs: &[Job], threads: usize, cache: Option<&Cache>) -> Vec<Result<Image, CompileError>> {
        let next = AtomicUsize::new(0);
        let results: Vec<Mutex<Option<Result<Image, CompileError>>>> = jobs.iter().map(|_| Mutex::new(None)).collect();
        std::thread::scope(|s| {
            for _ in 0..threads.clamp(1, jobs.len().max(1)) {
                s.spawn(|| loop {
                    let i = next.fetch_add(1, Ordering::Relaxed);
                    let Some(job) = jobs.get(i) else { break };
                    let result = self.compile(*job, cache);
                    *results[i].lock().unwrap_or_else(|e| e.into_inner()) = Some(result);
                });
            }
        });
        let take = |(r, job): (Mutex<Option<_>>, &Job)| {
            let done = r.into_inner().unwrap_or_else(|e| e.into_inner());
            done.unwrap_or_else(|| Err(CompileError::Abandoned { kernel: job.kernel.into() }))
        };
        results.into_iter().zip(jobs).map(take).collect()
    }

    fn run(&self, job: Job) -> Result<Image, CompileError> {
        let text = |s: &str| CString::new(s).map_err(|_| CompileError::Text { kernel: job.kernel.into() });
        let (source, name) = (text(job.source)?, text(&format!("{}.cu", job.kernel))?);
        let begin = Instant::now();
        let program = Program::new(&source, &name).map_err(|e| library(job, "start", e))?;
        // SAFETY: the program lives until the end of this function; options hold no NUL.
        let compiled = unsafe { result::compile_program(program.0, &job.target.options()) };
        let log = program.log();
        match compiled {
            Ok(()) => {}
            Err(result::NvrtcError(sys::nvrtcResult::NVRTC_ERROR_COMPILATION)) => {
                return Err(CompileError::Refused {
                    kernel: job.kernel.into(),
                    target: job.target,
                    log: shorten(&log),
                });
            }
            Err(e) => {
                let code = format!("{e:?} {}", shorten(&log));
                return Err(CompileError::Library { kernel: job.kernel.into(), step: "compile", code });
            }
        }
        let bytes = match job.target {
            Target::Ptx => program.ptx(),
            _ => program.cubin(),
        };
        let bytes = bytes.map_err(|e| library(job, "give the image", e))?;
        let resources = parse(&log);
        Ok(Image { target: job.target, bytes, resources, time: Some(begin.elapsed()) })
    }
}

fn library(job: Job, step: &'static str, e: result::NvrtcError) -> CompileError {
    CompileError::Library { kernel: job.kernel.into(), step, code: format!("{e:?}") }
}

fn shorten(log: &str) -> String {
    let lines: Vec<&str> = log.lines().map(str::trim).filter(|l| !l.is_empty()).collect();
    let more =
        if lines.len() > LOG_LINES { format!(" … ({} lines more)", lines.len() - LOG_LINES) } else { String::new() };
    format!("{}{more}", lines[..lines.len().min(LOG_LINES)].join(" | "))
}

/// A program of the library, destroyed at the end. It borrows its text and name.
struct Program<'a>(sys::nvrtcProgram, std::marker::PhantomData<&'a CStr>);

impl<'a> Program<'a> {
    fn new(source: &'a CStr, name: &'a CStr) -> Result<Program<'a>, result::NvrtcError> {
        result::create_program(source, Some(name)).map(|p| Program(p, std::marker::PhantomData))
    }

    fn log(&self) -> String {
        // SAFETY: the program is alive.
        let log = unsafe { result::get_program_log(self.0) }.unwrap_or_default();
        String::from_utf8_lossy(&bytes(&log)).trim_end_matches('\0').to_string()
    }

    fn ptx(&self) -> Result<Vec<u8>, result::NvrtcError> {
        // SAFETY: the program is alive and was compiled.
        let mut out = bytes(&unsafe { result::get_ptx(self.0) }?);
        while out.last() == Some(&0) {
            out.pop();
        }
        Ok(out)
    }

    fn cubin(&self) -> Result<Vec<u8>, result::NvrtcError> {
        let mut size = 0usize;
        // SAFETY: the program is alive and was compiled; the buffer has the size that was asked for.
        unsafe {
            sys::nvrtcGetCUBINSize(self.0, &mut size).result()?;
            let mut out = vec![0u8; size];
            sys::nvrtcGetCUBIN(self.0, out.as_mut_ptr().cast::<c_char>()).result()?;
            Ok(out)
        }
    }
}

impl Drop for Program<'_> {
    fn drop(&mut self) {
        // SAFETY: nobody uses the program any more. A failure leaks it, no more.
        let _ = unsafe { result::destroy_program(self.0) };
    }
}

fn bytes(chars: &[c_char]) -> Vec<u8> {
    chars.iter().map(|c| *c as u8).collect()
}

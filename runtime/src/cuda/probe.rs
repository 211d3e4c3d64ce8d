//! What is there: the driver's library, its version, the devices; and what is missing, with what to
//! do about it.

use super::driver::{check, missing, names, path, present};
use super::error::{CudaError, ErrorCode};
use cudarc::driver::sys::{self, CUdevice_attribute};
use std::ffi::CStr;
use std::fmt;

/// A version of CUDA.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CudaVersion {
    /// Major.
    pub major: u32,
    /// Minor.
    pub minor: u32,
}

impl CudaVersion {
    /// A version.
    pub fn new(major: u32, minor: u32) -> CudaVersion {
        CudaVersion { major, minor }
    }

    /// From the driver's number, 1000·major + 10·minor.
    pub fn from_number(n: i32) -> CudaVersion {
        let n = u32::try_from(n).unwrap_or(0);
        CudaVersion { major: n / 1000, minor: n % 1000 / 10 }
    }
}

impl fmt::Display for CudaVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

/// Compute capability of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Capability {
    /// Major.
    pub major: u32,
    /// Minor.
    pub minor: u32,
}

impl Capability {
    /// A capability.
    pub fn new(major: u32, minor: u32) -> Capability {
        Capability { major, minor }
    }

    /// As architectures are numbered: 90 for 9.0.
    pub fn number(self) -> u32 {
        10 * self.major + self.minor
    }
}

impl fmt::Display for Capability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

/// A device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceInfo {
    /// Its number.
    pub ordinal: usize,
    /// Name of the card.
    pub name: String,
    /// Compute capability.
    pub capability: Capability,
    /// Bytes of memory.
    pub memory: usize,
    /// Multiprocessors.
    pub multiprocessors: u32,
    /// Place on the PCI bus.
    pub pci: String,
}

/// How far the probe came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// The dynamic linker does not find the driver's library.
    NoLibrary {
        /// Names that it was asked for.
        names: Vec<String>,
        /// LD_LIBRARY_PATH.
        path: Option<String>,
    },
    /// A library that lacks functions.
    Incomplete {
        /// The functions.
        missing: Vec<&'static str>,
    },
    /// The driver does not start.
    NotStarted {
        /// Function that fails.
        call: &'static str,
        /// Its result.
        code: ErrorCode,
    },
    /// The driver works; there may be no device.
    Ready {
        /// Version of CUDA that it is made for.
        version: CudaVersion,
        /// Devices.
        devices: Vec<DeviceInfo>,
    },
}

/// What is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Probe {
    /// File of the driver's library, where it is loaded and known.
    pub library: Option<String>,
    /// Whether the operating system has the driver's kernel module.
    pub kernel_module: bool,
    /// CUDA_VISIBLE_DEVICES.
    pub visible: Option<String>,
    /// How far it came.
    pub state: State,
}

/// Looks for the driver and its devices.
pub fn probe() -> Probe {
    let text = |name: &str| std::env::var_os(name).map(|v| v.to_string_lossy().into_owned());
    let state = if !present() { State::NoLibrary { names: names(), path: text("LD_LIBRARY_PATH") } } else { started() };
    let library = if matches!(state, State::NoLibrary { .. }) { None } else { path() };
    let kernel_module = std::path::Path::new("/proc/driver/nvidia/version").exists();
    Probe { library, kernel_module, visible: text("CUDA_VISIBLE_DEVICES"), state }
}

/// The state where the library is present.
fn started() -> State {
    let missing = missing();
    if !missing.is_empty() {
        return State::Incomplete { missing };
    }
    match devices() {
        Ok((version, devices)) => State::Ready { version, devices },
        Err(CudaError::Call { call, code } | CudaError::Kernel { call, code, .. }) => State::NotStarted { call, code },
        Err(other) => State::NotStarted { call: "probe", code: ErrorCode { code: 0, text: other.to_string() } },
    }
}

fn devices() -> Result<(CudaVersion, Vec<DeviceInfo>), CudaError> {
    let (mut version, mut count) = (0, 0);
    // SAFETY: the library has these functions; pointers are valid for writes.
    unsafe {
        check("cuInit", sys::cuInit(0))?;
        check("cuDriverGetVersion", sys::cuDriverGetVersion(&mut version))?;
        check("cuDeviceGetCount", sys::cuDeviceGetCount(&mut count))?;
    }
    let list = (0..usize::try_from(count).unwrap_or(0)).map(info).collect::<Result<_, _>>()?;
    Ok((CudaVersion::from_number(version), list))
}

fn info(ordinal: usize) -> Result<DeviceInfo, CudaError> {
    let handle = super::device::handle(ordinal)?;
    let attribute = |a: CUdevice_attribute| {
        let mut value = 0;
        // SAFETY: the driver has started; the pointer is valid for writes.
        check("cuDeviceGetAttribute", unsafe { sys::cuDeviceGetAttribute(&mut value, a, handle) })?;
        Ok(u32::try_from(value).unwrap_or(0))
    };
    let (mut name, mut pci, mut memory) = ([0u8; 256], [0u8; 32], 0usize);
    // SAFETY: the driver has started; the buffers have the sizes that are given.
    unsafe {
        check("cuDeviceGetName", sys::cuDeviceGetName(name.as_mut_ptr().cast(), name.len() as i32, handle))?;
        check("cuDeviceGetPCIBusId", sys::cuDeviceGetPCIBusId(pci.as_mut_ptr().cast(), pci.len() as i32, handle))?;
        check("cuDeviceTotalMem", sys::cuDeviceTotalMem_v2(&mut memory, handle))?;
    }
    let text = |b: &[u8]| CStr::from_bytes_until_nul(b).map_or(String::new(), |s| s.to_string_lossy().into_owned());
    use CUdevice_attribute::*;
    Ok(DeviceInfo {
        ordinal,
        name: text(&name),
        capability: Capability {
            major: attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
            minor: attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
        },
        memory,
        multiprocessors: attribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
        pci: text(&pci),
    })
}

impl Probe {
    /// Devices that can be used.
    pub fn devices(&self) -> &[DeviceInfo] {
        match &self.state {
            State::Ready { devices, .. } => devices,
            _ => &[],
        }
    }

    /// The driver's version, if it works.
    pub fn version(&self) -> Option<CudaVersion> {
        match &self.state {
            State::Ready { version, .. } => Some(*version),
            _ => None,
        }
    }

    /// What is missing, and what to do; nothing if there is a device.
    pub fn problem(&self) -> Option<String> {
        let from = self.library.as_ref().map_or(String::new(), |l| format!(" ({l})"));
        Some(match &self.state {
            State::NoLibrary { names, path } => {
                let path = match path.as_deref() {
                    None | Some("") => "LD_LIBRARY_PATH is not set".to_string(),
                    Some(p) => format!("LD_LIBRARY_PATH is {p}"),
                };
                let fix = if self.kernel_module {
                    "the driver's kernel module is loaded, so its libraries are missing here: in a container, start it with access to the GPUs; otherwise name the folder of libcuda.so.1 in LD_LIBRARY_PATH"
                } else {
                    "install an NVIDIA driver, or go on without a GPU"
                };
                format!("no driver library {}; {path}; {fix}", shown(names))
            }
            State::Incomplete { missing } => {
                format!("the driver library{from} lacks {}; update the driver", shown(missing))
            }
            State::NotStarted { call, code } => {
                format!("the driver library{from} is there, but {call} fails: {code}; {}", self.fix(code.code))
            }
            State::Ready { devices, .. } if devices.is_empty() => {
                format!("the driver library{from} works, but sees no device; {}", self.fix(100))
            }
            State::Ready { .. } => return None,
        })
    }

    /// What to do about a result of the driver's start.
    fn fix(&self, code: u32) -> String {
        match code {
            34 => "this is the stub that toolkits link with: take its folder out of LD_LIBRARY_PATH".into(),
            100 => match &self.visible {
                Some(v) => format!("CUDA_VISIBLE_DEVICES is {v:?}: name a device that is there, or unset it"),
                None if !self.kernel_module => "the driver's kernel module is not loaded".into(),
                None => "no device was given to this machine or container".into(),
            },
            803 => "library and kernel module are of different drivers: restart the machine, or, in a container, take the library of the host".into(),
            804 => "a compatibility library is loaded that this card does not allow: take it out of LD_LIBRARY_PATH".into(),
            802 | 999 => "look into the system log for messages of the driver".into(),
            _ => "ask `nvidia-smi` whether the driver works".into(),
        }
    }
}

/// The first names of a list.
fn shown<S: AsRef<str>>(list: &[S]) -> String {
    let first: Vec<&str> = list.iter().take(4).map(AsRef::as_ref).collect();
    let more = if list.len() > 4 { format!(" and {} more", list.len() - 4) } else { String::new() };
    first.join(", ") + &more
}

impl fmt::Display for Probe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let State::Ready { version, devices } = &self.state {
            let library = self.library.as_deref().unwrap_or("a file that is not known");
            writeln!(f, "driver: {library}, for CUDA {version}")?;
            for d in devices {
                let memory = d.memory as f64 / (1u64 << 30) as f64;
                let (c, n) = (d.capability, d.multiprocessors);
                writeln!(
                    f,
                    "  device {}: {}, compute capability {c}, {memory:.1} GiB, {n} multiprocessors, PCI {}",
                    d.ordinal, d.name, d.pci
                )?;
            }
        }
        match self.problem() {
            Some(problem) => writeln!(f, "no device: {problem}"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn synthetic(state: State) -> Probe {
        Probe { library: Some("/lib/libcuda.so.1".into()), kernel_module: true, visible: None, state }
    }

    fn h200() -> DeviceInfo {
        DeviceInfo {
            ordinal: 0,
            name: "NVIDIA H200".into(),
            capability: Capability::new(9, 0),
            memory: 150_121_545_728,
            multiprocessors: 132,
            pci: "0000:19:00.0".into(),
        }
    }

    #[test]
    fn probing_never_panics() {
        let first = probe();
        println!("{first}");
        assert_eq!(first.devices().is_empty(), first.problem().is_some());
        assert_eq!(probe(), first);
    }

    #[test]
    fn devices_are_listed() {
        let p = synthetic(State::Ready { version: CudaVersion::from_number(12040), devices: vec![h200()] });
        let want = "driver: /lib/libcuda.so.1, for CUDA 12.4\n  device 0: NVIDIA H200, compute capability 9.0, \
            139.8 GiB, 132 multiprocessors, PCI 0000:19:00.0\n";
        assert_eq!((p.to_string().as_str(), p.problem()), (want, None));
        assert_eq!(p.version(), Some(CudaVersion::new(12, 4)));
    }

    #[test]
    fn a_missing_library_says_where_it_was_looked_for() {
        let names = vec!["libcuda.so".into(), "libcuda.so.1".into()];
        let mut p = synthetic(State::NoLibrary { names, path: Some("/opt/x".into()) });
        p.library = None;
        p.kernel_module = false;
        let want = "no device: no driver library libcuda.so, libcuda.so.1; LD_LIBRARY_PATH is /opt/x; install an \
            NVIDIA driver, or go on without a GPU\n";
        assert_eq!(p.to_string(), want);
        p.kernel_module = true;
        assert!(p.to_string().contains("in a container"), "{p}");
    }

    #[test]
    fn what_does_not_start_says_what_to_do() {
        let told = |code: u32, visible: Option<&str>| {
            let code = ErrorCode { code, text: "TEXT".into() };
            let mut p = synthetic(State::NotStarted { call: "cuInit", code });
            p.visible = visible.map(str::to_string);
            p.to_string()
        };
        let head = "no device: the driver library (/lib/libcuda.so.1) is there, but cuInit fails: TEXT (100); ";
        assert!(told(100, None).starts_with(head), "{}", told(100, None));
        assert!(told(100, Some("7")).contains("CUDA_VISIBLE_DEVICES is \"7\""));
        assert!(told(34, None).contains("stub"));
        assert!(told(803, None).contains("different drivers"));
        assert!(told(1, None).contains("nvidia-smi"));
        let none = synthetic(State::Ready { version: CudaVersion::new(13, 0), devices: vec![] });
        assert!(none.to_string().contains("sees no device; no device was given"), "{none}");
        let old = synthetic(State::Incomplete { missing: vec!["cuInit"; 6] });
        assert!(old.to_string().contains("lacks cuInit, cuInit, cuInit, cuInit and 2 more"), "{old}");
    }
}

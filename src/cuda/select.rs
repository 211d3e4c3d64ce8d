//! What texts are compiled for: machine code of the exact architecture where the compiler knows it,
//! else the newest PTX below it that the driver understands, else a refusal that says what to change.
//!
//! The rules, all of them facts about CUDA: machine code runs on its own architecture and, without
//! architecture-specific features (the `a` in `sm_90a`), on later ones of the same major number; with
//! them on that architecture alone. A driver runs machine code of any compiler of its major version
//! or an older one. PTX runs on every later architecture, but only where the driver is at least as
//! new as the compiler.

use autoshard_codegen::nvrtc::Target;
use autoshard_runtime::cuda::{Capability, CudaVersion};
use std::fmt;

/// Oldest device that kernels run on: they convert to bf16 in hardware.
const OLDEST: Capability = Capability { major: 8, minor: 0 };

/// Architectures with specific features, and the first compiler that knows each.
const FEATURES: &[(u32, (u32, u32))] =
    &[(90, (12, 0)), (100, (12, 8)), (101, (12, 8)), (120, (12, 8)), (103, (12, 9)), (121, (12, 9))];

/// A compiler, as it describes itself.
#[derive(Clone, Copy, Debug)]
pub struct Compiler<'a> {
    /// Version of NVRTC.
    pub version: CudaVersion,
    /// Where it was loaded from.
    pub path: &'a str,
    /// Architectures that it compiles for, as numbers (80, 86, 90).
    pub archs: &'a [u32],
}

/// What is wanted.
#[derive(Clone, Copy, Debug, Default)]
pub struct Request<'a> {
    /// The device, if there is one.
    pub device: Option<Capability>,
    /// Version of CUDA that the driver is made for, if there is one.
    pub driver: Option<CudaVersion>,
    /// `--arch`, such as `sm_90a` or `compute_80`.
    pub arch: Option<&'a str>,
    /// Whether texts use architecture-specific features where they can.
    pub features: bool,
}

/// Machine code or PTX.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Machine code.
    Cubin,
    /// PTX, which the driver assembles.
    Ptx,
}

/// What to compile for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Selection {
    /// Machine code or PTX.
    pub form: Form,
    /// Architecture, as a number.
    pub arch: u32,
    /// Whether its specific features may be used: false asks for texts without them.
    pub features: bool,
}

impl fmt::Display for Selection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let prefix = if self.form == Form::Cubin { "sm" } else { "compute" };
        write!(f, "{prefix}_{}{}", self.arch, if self.features { "a" } else { "" })
    }
}

impl Selection {
    /// The target of code generation, if it has this one.
    pub fn target(self) -> Option<Target> {
        let all = Target::CUBINS.into_iter().chain([Target::Ptx]);
        let name = self.to_string();
        all.into_iter().find(|t| t.arch() == name)
    }
}

/// Why there is nothing to compile for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SelectError {
    /// Nothing says what to compile for.
    #[error("there is no CUDA device to compile for; name an architecture with --arch, such as --arch sm_90")]
    NoDevice,
    /// `--arch` is no architecture.
    #[error("--arch {0:?} is no architecture; write sm_80, sm_90a or compute_80")]
    Malformed(String),
    /// `--arch` is not the device's.
    #[error(
        "--arch {arch} does not run on this device of compute capability {device}; use --arch {use_}, or leave it out"
    )]
    OtherDevice {
        /// What was asked for.
        arch: String,
        /// The device.
        device: Capability,
        /// What would run.
        use_: String,
    },
    /// The device is too old for the kernels.
    #[error("this device has compute capability {device}; kernels need {OLDEST} or later")]
    TooOld {
        /// The device.
        device: Capability,
    },
    /// The compiler knows nothing that the device can run.
    #[error("NVRTC {version} ({path}) compiles for {}, and not for {wanted}; use {fix}", known(archs))]
    Compiler {
        /// Its version.
        version: CudaVersion,
        /// Where it is.
        path: String,
        /// What it compiles for.
        archs: Vec<u32>,
        /// What is wanted.
        wanted: String,
        /// What to do.
        fix: String,
    },
    /// The driver is older than what the compiler makes.
    #[error("NVRTC {version} ({path}) makes {what}, which this driver, made for CUDA {driver}, does not run; update the driver to CUDA {needed} or later, or use NVRTC of CUDA {fitting}")]
    Driver {
        /// The compiler's version.
        version: CudaVersion,
        /// Where it is.
        path: String,
        /// What it makes.
        what: String,
        /// The driver's version.
        driver: CudaVersion,
        /// Driver that would do.
        needed: CudaVersion,
        /// Compiler that would do.
        fitting: String,
    },
}

fn known(archs: &[u32]) -> String {
    let all: Vec<String> = archs.iter().map(|a| format!("sm_{a}")).collect();
    if all.is_empty() {
        "nothing".into()
    } else {
        all.join(", ")
    }
}

/// First version of CUDA that compiles for an architecture.
fn first_compiler(arch: u32) -> Option<(u32, u32)> {
    let all = [
        (80, (11, 0)),
        (86, (11, 1)),
        (87, (11, 4)),
        (89, (11, 8)),
        (90, (11, 8)),
        (100, (12, 8)),
        (101, (12, 8)),
        (120, (12, 8)),
        (103, (12, 9)),
        (121, (12, 9)),
    ];
    all.into_iter().find(|(a, _)| *a == arch).map(|(_, v)| v)
}

impl Compiler<'_> {
    fn knows(&self, arch: u32) -> bool {
        self.archs.contains(&arch)
    }

    fn knows_features(&self, arch: u32) -> bool {
        let first = FEATURES.iter().find(|(a, _)| *a == arch);
        self.knows(arch) && first.is_some_and(|(_, v)| self.version >= CudaVersion::new(v.0, v.1))
    }

    fn lacks(&self, wanted: String, first: Option<(u32, u32)>) -> SelectError {
        let oldest = self.archs.iter().min().copied();
        let fix = match first {
            Some((major, minor)) if CudaVersion::new(major, minor) > self.version => {
                format!(
                    "NVRTC of CUDA {major}.{minor} or later: AUTOSHARD_NVRTC names the folder that it is loaded from"
                )
            }
            Some(_) if oldest.is_some() => "an older NVRTC, or another --arch".into(),
            _ => "another NVRTC: AUTOSHARD_NVRTC names the folder that it is loaded from".into(),
        };
        SelectError::Compiler { version: self.version, path: self.path.into(), archs: self.archs.to_vec(), wanted, fix }
    }

    /// Whether a driver runs what the compiler makes.
    fn runs(&self, form: Form, driver: Option<CudaVersion>) -> bool {
        driver.is_none_or(|d| if form == Form::Cubin { d.major >= self.version.major } else { d >= self.version })
    }

    fn newer_than(&self, driver: CudaVersion, s: Selection) -> SelectError {
        let (needed, fitting) = match s.form {
            Form::Cubin => (CudaVersion::new(self.version.major, 0), format!("{}.x", driver.major)),
            Form::Ptx => (self.version, format!("{driver} or earlier")),
        };
        let what = if s.form == Form::Cubin { format!("machine code ({s})") } else { format!("PTX ({s})") };
        let path = self.path.into();
        SelectError::Driver { version: self.version, path, what, driver, needed, fitting }
    }
}

/// Chooses what to compile for.
pub fn select(request: &Request, compiler: &Compiler) -> Result<Selection, SelectError> {
    if let Some(device) = request.device.filter(|d| *d < OLDEST) {
        return Err(SelectError::TooOld { device });
    }
    let chosen = match (request.arch, request.device) {
        (Some(arch), device) => named(arch, device, compiler)?,
        (None, Some(device)) => fitting(device, request, compiler)?,
        (None, None) => return Err(SelectError::NoDevice),
    };
    match request.driver {
        Some(driver) if !compiler.runs(chosen.form, Some(driver)) => Err(compiler.newer_than(driver, chosen)),
        _ => Ok(chosen),
    }
}

/// What `--arch` names, if the compiler knows it and the device, if there is one, runs it.
fn named(text: &str, device: Option<Capability>, compiler: &Compiler) -> Result<Selection, SelectError> {
    let malformed = || SelectError::Malformed(text.into());
    let (prefix, number) = text.split_once('_').ok_or_else(malformed)?;
    let form = match prefix {
        "sm" => Form::Cubin,
        "compute" => Form::Ptx,
        _ => return Err(malformed()),
    };
    let digits = number.strip_suffix('a').unwrap_or(number);
    if digits.is_empty() || digits.len() > 3 || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return Err(malformed());
    }
    let arch: u32 = digits.parse().map_err(|_| malformed())?;
    let chosen = Selection { form, arch, features: digits.len() < number.len() };
    if arch < OLDEST.number() {
        return Err(SelectError::TooOld { device: Capability::new(arch / 10, arch % 10) });
    }
    if let Some(device) = device.filter(|d| !executes(chosen, *d)) {
        let use_ = format!("sm_{}", device.number());
        return Err(SelectError::OtherDevice { arch: text.into(), device, use_ });
    }
    let first = FEATURES.iter().find(|(a, _)| *a == arch && chosen.features).map(|(_, v)| *v);
    match chosen.features {
        true if !compiler.knows_features(arch) => Err(compiler.lacks(text.into(), first)),
        false if !compiler.knows(arch) => Err(compiler.lacks(text.into(), first_compiler(arch))),
        _ => Ok(chosen),
    }
}

/// Whether a device executes what is compiled so.
fn executes(s: Selection, device: Capability) -> bool {
    let same_major = s.arch / 10 == device.major;
    match (s.form, s.features) {
        (_, true) => s.arch == device.number(),
        (Form::Cubin, false) => same_major && s.arch <= device.number(),
        (Form::Ptx, false) => s.arch <= device.number(),
    }
}

/// The best for a device.
fn fitting(device: Capability, request: &Request, compiler: &Compiler) -> Result<Selection, SelectError> {
    let arch = device.number();
    if compiler.knows(arch) {
        let features = request.features && compiler.knows_features(arch);
        return Ok(Selection { form: Form::Cubin, arch, features });
    }
    let below = |same_major: bool| {
        let usable = |a: &&u32| **a >= OLDEST.number() && **a < arch && (!same_major || **a / 10 == device.major);
        compiler.archs.iter().filter(usable).max().copied()
    };
    let ptx = below(false).map(|arch| Selection { form: Form::Ptx, arch, features: false });
    let ptx = ptx.ok_or_else(|| compiler.lacks(format!("sm_{arch} or below"), first_compiler(arch)))?;
    if compiler.runs(Form::Ptx, request.driver) {
        return Ok(ptx);
    }
    // Machine code of an earlier sibling runs where PTX does not.
    Ok(below(true).map_or(ptx, |arch| Selection { form: Form::Cubin, arch, features: false }))
}

/// Of targets that were compiled ahead, the one that runs on a device; features first, then the
/// newest.
pub fn packed(device: Capability, targets: &[Target]) -> Option<Target> {
    let selection = |t: &Target| {
        let (form, number) = t
            .arch()
            .strip_prefix("sm_")
            .map_or_else(|| (Form::Ptx, t.arch().strip_prefix("compute_")), |number| (Form::Cubin, Some(number)));
        let number = number?;
        let digits = number.strip_suffix('a').unwrap_or(number);
        Some(Selection { form, arch: digits.parse().ok()?, features: digits.len() < number.len() })
    };
    let usable = targets.iter().filter_map(|t| Some((selection(t)?, *t))).filter(|(s, _)| executes(*s, device));
    usable.max_by_key(|(s, _)| (s.form == Form::Cubin, s.features, s.arch)).map(|(_, t)| t)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What NVRTC of some versions says that it supports.
    const CUDA_11_2: &[u32] = &[35, 37, 50, 52, 53, 60, 61, 62, 70, 72, 75, 80, 86];
    const CUDA_11_8: &[u32] = &[35, 37, 50, 52, 53, 60, 61, 62, 70, 72, 75, 80, 86, 87, 89, 90];
    const CUDA_12_4: &[u32] = &[50, 52, 53, 60, 61, 62, 70, 72, 75, 80, 86, 87, 89, 90];
    const CUDA_12_9: &[u32] = &[50, 52, 53, 60, 61, 62, 70, 72, 75, 80, 86, 87, 89, 90, 100, 101, 103, 120, 121];
    const CUDA_13_0: &[u32] = &[75, 80, 86, 87, 88, 89, 90, 100, 103, 110, 120, 121];

    fn nvrtc(major: u32, minor: u32, archs: &'static [u32]) -> Compiler<'static> {
        Compiler { version: CudaVersion::new(major, minor), path: "/opt/nvrtc/libnvrtc.so", archs }
    }

    fn device(major: u32, minor: u32, driver: (u32, u32)) -> Request<'static> {
        let driver = Some(CudaVersion::new(driver.0, driver.1));
        Request { device: Some(Capability::new(major, minor)), driver, ..Request::default() }
    }

    fn chosen(r: Request, c: Compiler) -> String {
        select(&r, &c).map_or_else(|e| e.to_string(), |s| s.to_string())
    }

    #[test]
    fn a_compiler_newer_than_the_driver_makes_machine_code() {
        // E03: 12.8 over a driver of 12.4.
        assert_eq!(chosen(device(9, 0, (12, 4)), nvrtc(12, 8, CUDA_12_9)), "sm_90");
        assert_eq!(chosen(device(8, 0, (12, 4)), nvrtc(12, 8, CUDA_12_9)), "sm_80");
        // PTX by name would not run.
        let named = Request { arch: Some("compute_80"), ..device(9, 0, (12, 4)) };
        assert_eq!(
            chosen(named, nvrtc(12, 8, CUDA_12_9)),
            "NVRTC 12.8 (/opt/nvrtc/libnvrtc.so) makes PTX (compute_80), which this driver, made for CUDA 12.4, does \
             not run; update the driver to CUDA 12.8 or later, or use NVRTC of CUDA 12.4 or earlier"
        );
        // Another major version: not even machine code.
        assert_eq!(
            chosen(device(9, 0, (12, 4)), nvrtc(13, 0, CUDA_13_0)),
            "NVRTC 13.0 (/opt/nvrtc/libnvrtc.so) makes machine code (sm_90), which this driver, made for CUDA 12.4, \
             does not run; update the driver to CUDA 13.0 or later, or use NVRTC of CUDA 12.x"
        );
        // A newer driver runs everything.
        assert_eq!(chosen(device(9, 0, (13, 0)), nvrtc(12, 8, CUDA_12_9)), "sm_90");
    }

    #[test]
    fn an_old_compiler_falls_back_to_its_newest_ptx() {
        // E05: an L40 under NVRTC 11.2 and a driver of 12.0.
        assert_eq!(chosen(device(8, 9, (12, 0)), nvrtc(11, 2, CUDA_11_2)), "compute_86");
        // A driver too old for the PTX runs the machine code of a sibling.
        assert_eq!(chosen(device(8, 9, (12, 0)), nvrtc(12, 1, CUDA_11_2)), "sm_86");
        // Without a sibling both versions are named.
        let told = chosen(device(10, 0, (12, 0)), nvrtc(12, 4, CUDA_12_4));
        assert!(told.contains("NVRTC 12.4") && told.contains("CUDA 12.0"), "{told}");
        // By name it is refused with what would do.
        let named = Request { arch: Some("sm_89"), ..device(8, 9, (12, 0)) };
        assert_eq!(
            chosen(named, nvrtc(11, 2, CUDA_11_2)),
            "NVRTC 11.2 (/opt/nvrtc/libnvrtc.so) compiles for sm_35, sm_37, sm_50, sm_52, sm_53, sm_60, sm_61, sm_62, \
             sm_70, sm_72, sm_75, sm_80, sm_86, and not for sm_89; use NVRTC of CUDA 11.8 or later: AUTOSHARD_NVRTC \
             names the folder that it is loaded from"
        );
        let told = chosen(device(8, 0, (12, 0)), nvrtc(12, 0, &[]));
        assert!(told.contains("compiles for nothing, and not for sm_80 or below"), "{told}");
    }

    #[test]
    fn features_only_where_they_are_known_and_wanted() {
        // E06.
        let wanting = |d: Request<'static>| Request { features: true, ..d };
        let h100 = device(9, 0, (12, 4));
        let old = select(&wanting(device(9, 0, (11, 8))), &nvrtc(11, 8, CUDA_11_8)).unwrap();
        assert_eq!((old.to_string().as_str(), old.features), ("sm_90", false));
        assert_eq!(chosen(wanting(h100), nvrtc(12, 4, CUDA_12_4)), "sm_90a");
        assert_eq!(chosen(h100, nvrtc(12, 4, CUDA_12_4)), "sm_90");
        let hopper = select(&wanting(h100), &nvrtc(12, 4, CUDA_12_4)).unwrap();
        assert_eq!(hopper.target(), Some(Target::Sm90a));
        assert_eq!(select(&h100, &nvrtc(12, 4, CUDA_12_4)).unwrap().target(), None);
        let nothing = chosen(Request { features: true, ..Request::default() }, nvrtc(12, 4, CUDA_12_4));
        assert_eq!(
            nothing,
            "there is no CUDA device to compile for; name an architecture with --arch, such as --arch sm_90"
        );
        // They exist on some devices alone.
        assert_eq!(chosen(wanting(device(8, 0, (12, 4))), nvrtc(12, 4, CUDA_12_4)), "sm_80");
        assert_eq!(chosen(wanting(device(10, 0, (12, 9))), nvrtc(12, 9, CUDA_12_9)), "sm_100a");
    }

    #[test]
    fn architectures_by_name() {
        let c = nvrtc(12, 9, CUDA_12_9);
        let alone = |arch: &'static str| chosen(Request { arch: Some(arch), ..Request::default() }, c);
        for arch in ["sm_80", "sm_90", "sm_90a", "sm_100", "compute_90", "compute_90a"] {
            assert_eq!(alone(arch), arch);
        }
        for bad in ["", "sm_", "sm_a", "compute_", "90", "sm_9x", "sm_-9", "sm_90b", "sm_999999999999", "SM_90"] {
            assert!(alone(bad).contains("is no architecture"), "{bad}: {}", alone(bad));
        }
        assert!(alone("sm_75").contains("compute capability 7.5"), "{}", alone("sm_75"));
        let on_h100 = |arch: &'static str| chosen(Request { arch: Some(arch), ..device(9, 0, (12, 9)) }, c);
        assert_eq!((on_h100("sm_90a"), on_h100("compute_80")), ("sm_90a".into(), "compute_80".into()));
        assert_eq!(
            on_h100("sm_80"),
            "--arch sm_80 does not run on this device of compute capability 9.0; use --arch sm_90, or leave it out"
        );
        assert!(on_h100("sm_100a").contains("does not run"));
        let named = Request { arch: Some("sm_90a"), ..Request::default() };
        let told = chosen(named, nvrtc(11, 8, CUDA_11_8));
        assert!(told.contains("and not for sm_90a; use NVRTC of CUDA 12.0 or later"), "{told}");
    }

    #[test]
    fn devices_that_kernels_do_not_run_on() {
        let told = chosen(device(7, 0, (12, 4)), nvrtc(12, 4, CUDA_12_4));
        assert_eq!(told, "this device has compute capability 7.0; kernels need 8.0 or later");
    }

    #[test]
    fn machine_code_that_was_made_ahead() {
        let of = |major, minor| packed(Capability::new(major, minor), &Target::CUBINS).map(Target::arch);
        assert_eq!((of(8, 0), of(8, 6), of(9, 0)), (Some("sm_80"), Some("sm_80"), Some("sm_90a")));
        assert_eq!((of(10, 0), of(10, 3), of(12, 0)), (Some("sm_100"), Some("sm_100"), None));
        assert_eq!(of(7, 5), None);
        assert_eq!(packed(Capability::new(12, 0), &[Target::Ptx]), Some(Target::Ptx));
    }
}

//! g++: the emulation's own sources once, and a driver per program of texts.

use std::fmt::Write as _;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::OnceLock;

/// Flags of the kernels' text. `thread` makes every access call the checker, `bounds` guards arrays
/// of constant length; variables without a value get one that no kernel computes. Products and sums
/// are not contracted: the device's are, and the comparison allows for both.
const TEXT_FLAGS: &[&str] = &[
    "-std=c++17",
    "-O1",
    "-g1",
    "-w",
    "-fno-strict-aliasing",
    "-ffp-contract=off",
    "-fno-tree-loop-distribute-patterns",
    "-ftrivial-auto-var-init=pattern",
    "-fsanitize=thread,bounds",
    "-fsanitize-undefined-trap-on-error",
    "--param=tsan-instrument-func-entry-exit=0",
    "-DAUTOSHARD_EMULATION",
];
const OWN_FLAGS: &[&str] = &["-std=c++17", "-O2", "-g1", "-Wall", "-Wextra", "-Werror"];
const OWN_SOURCES: [&str; 3] = ["runtime", "checker", "driver"];

/// One kernel's text, with the name that its entries are prefixed with.
#[derive(Clone, Debug)]
pub struct Text {
    /// Unique in a program: entry `k` is called `NAME.k`.
    pub name: String,
    /// CUDA C.
    pub source: String,
}

/// Whether there is a g++ here that knows what the emulation needs (12 or later does).
pub fn available() -> bool {
    let probe = || Command::new("g++").args(TEXT_FLAGS).args(["-fsyntax-only", "-x", "c++", "/dev/null"]).output();
    cfg!(all(target_arch = "x86_64", target_os = "linux")) && probe().is_ok_and(|o| o.status.success())
}

/// Folder of the emulation's sources.
pub fn sources() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cuda-emulation")
}

/// A fresh folder under the build folder.
pub fn scratch(name: &str) -> Result<PathBuf, String> {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    let unique = format!("{name}-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("cuda-emulation").join(unique);
    std::fs::create_dir_all(&dir).map_err(|e| format!("{}: {e}", dir.display()))?;
    Ok(dir)
}

fn gpp(args: &[&str], files: &[&Path]) -> Result<(), String> {
    let out = Command::new("g++").args(args).args(files).output().map_err(|e| format!("g++: {e}"))?;
    if out.status.success() {
        return Ok(());
    }
    let errors = String::from_utf8_lossy(&out.stderr);
    let first: Vec<&str> = errors.lines().take(30).collect();
    Err(format!(
        "g++ refuses {}:\n{}",
        files.last().map_or(String::new(), |f| f.display().to_string()),
        first.join("\n")
    ))
}

/// The emulation's own objects: built where they are not there from an earlier run.
fn objects() -> Result<&'static [PathBuf], String> {
    static OBJECTS: OnceLock<Result<Vec<PathBuf>, String>> = OnceLock::new();
    OBJECTS.get_or_init(own_objects).as_deref().map_err(Clone::clone)
}

fn own_objects() -> Result<Vec<PathBuf>, String> {
    let mut hash = DefaultHasher::new();
    OWN_FLAGS.hash(&mut hash);
    for file in
        ["emulation.h", "runtime.h"].into_iter().map(str::to_string).chain(OWN_SOURCES.map(|s| format!("{s}.cpp")))
    {
        let bytes = std::fs::read(sources().join(&file)).map_err(|e| format!("{file}: {e}"))?;
        bytes.hash(&mut hash);
    }
    let fresh = scratch("own")?;
    let done = fresh.with_file_name(format!("own-{:016x}", hash.finish()));
    if !done.is_dir() {
        std::thread::scope(|s| {
            let builds = OWN_SOURCES.map(|name| {
                let object = fresh.join(name).with_extension("o");
                s.spawn(move || {
                    let args: Vec<&str> = OWN_FLAGS.iter().copied().chain(["-c", "-o"]).collect();
                    gpp(&args, &[&object, &sources().join(name).with_extension("cpp")])
                })
            });
            builds.into_iter().try_for_each(|b| b.join().map_err(|_| "a build panicked".to_string())?)
        })?;
        // Another process may have been faster; its objects are the same.
        let moved = std::fs::rename(&fresh, &done);
        if !done.is_dir() {
            moved.map_err(|e| format!("{}: {e}", done.display()))?;
        }
    }
    let _ = std::fs::remove_dir_all(&fresh);
    Ok(OWN_SOURCES.map(|name| done.join(name).with_extension("o")).to_vec())
}

/// Builds the driver of these texts in `dir`: one translation unit, each text in a namespace of its
/// own.
pub fn build(dir: &Path, texts: &[Text]) -> Result<PathBuf, String> {
    let mut unit = String::from("#include \"emulation.h\"\n");
    for (i, t) in texts.iter().enumerate() {
        let file = format!("{}.cu", t.name);
        // Beside the unit, so that whoever reads a report can read the text.
        std::fs::write(dir.join(&file), &t.source).map_err(|e| format!("{file}: {e}"))?;
        let _ = write!(
            unit,
            "#define EMU_TEXT {:?}\nnamespace text{i} {{\n#include {file:?}\n}}\n#undef EMU_TEXT\n",
            t.name
        );
    }
    let (source, object, driver) = (dir.join("unit.cpp"), dir.join("unit.o"), dir.join("driver"));
    std::fs::write(&source, unit).map_err(|e| format!("{}: {e}", source.display()))?;
    let include = format!("-I{}", sources().display());
    let own = objects()?;
    let args: Vec<&str> = TEXT_FLAGS.iter().copied().chain([include.as_str(), "-c", "-o"]).collect();
    gpp(&args, &[&object, &source])?;
    // Linked without -fsanitize: the functions that instrumented code calls are the checker's.
    let files: Vec<&Path> =
        [driver.as_path(), object.as_path()].into_iter().chain(own.iter().map(PathBuf::as_path)).collect();
    gpp(&["-o"], &files)?;
    Ok(driver)
}

/// `file:line` of an address that a report names, as far as the machine can tell.
pub fn location(driver: &Path, pc: u64) -> String {
    if pc == 0 {
        return String::new();
    }
    // A return address: the call is before it.
    let out = Command::new("addr2line").args(["-i", "-s", "-e"]).arg(driver).arg(format!("{:#x}", pc - 1)).output();
    let text = out.map(|o| String::from_utf8_lossy(&o.stdout).into_owned()).unwrap_or_default();
    let lines = text.lines().filter(|l| !l.starts_with("emulation.h")).take(3);
    lines.map(|l| l.split(" (").next().unwrap_or(l)).collect::<Vec<_>>().join(" in ")
}

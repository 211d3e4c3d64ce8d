//! Texts of plans that are kept in `tests/golden/plan`.

use std::path::Path;

/// Compares with the text of this name; `AUTOSHARD_BLESS=1` accepts what is printed now.
pub fn golden(name: &str, printed: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/plan").join(name);
    if std::env::var_os("AUTOSHARD_BLESS").is_some() {
        std::fs::write(&path, printed).unwrap();
        return;
    }
    let want = std::fs::read_to_string(&path).unwrap_or_default();
    if printed != want {
        let at = printed.lines().zip(want.lines()).position(|(a, b)| a != b).unwrap_or(0);
        let line = |s: &str| s.lines().nth(at).unwrap_or("(end)").to_string();
        panic!(
            "{name} differs from line {}:\n- {}\n+ {}\nAUTOSHARD_BLESS=1 accepts it",
            at + 1,
            line(&want),
            line(printed)
        );
    }
}

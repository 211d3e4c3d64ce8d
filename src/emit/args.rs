//! Flags and their text in a shell script.

use std::fmt::Display;

/// A flag and its values: one line of a launch file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Flag {
    /// With its dashes.
    pub name: String,
    /// As the tool reads them, not quoted.
    pub values: Vec<String>,
}

/// Flags in the order in which they are written.
#[derive(Clone, Debug, Default)]
pub(super) struct Args(pub Vec<Flag>);

impl Args {
    /// A flag that is there or not.
    pub fn on(&mut self, name: &str) {
        self.list(name, Vec::new());
    }

    /// A flag that is there where the condition holds.
    pub fn on_if(&mut self, condition: bool, name: &str) {
        if condition {
            self.on(name);
        }
    }

    /// A flag with a value.
    pub fn set(&mut self, name: &str, value: impl Display) {
        self.list(name, vec![value.to_string()]);
    }

    /// A flag with several values.
    pub fn list(&mut self, name: &str, values: Vec<String>) {
        self.0.push(Flag { name: name.to_string(), values });
    }

    /// An array of bash, a flag a line.
    pub fn bash(&self, array: &str) -> String {
        let mut out = format!("{array}=(\n");
        for flag in &self.0 {
            let words: Vec<String> = std::iter::once(&flag.name).chain(&flag.values).map(|word| quoted(word)).collect();
            out.push_str(&format!("  {}\n", words.join(" ")));
        }
        out + ")\n"
    }
}

/// One word of a POSIX shell, whatever is in the text.
pub(super) fn quoted(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "_-./:=,+@%".contains(c);
    match !text.is_empty() && text.chars().all(plain) {
        true => text.to_string(),
        false => format!("'{}'", text.replace('\'', r"'\''")),
    }
}

/// Text that stays on the line of a comment, whatever is in it.
pub(super) fn on_one_line(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_survive_the_shell() {
        assert_eq!(quoted("a/b-c.json"), "a/b-c.json");
        assert_eq!(quoted("my model's $(rm -r .)"), r"'my model'\''s $(rm -r .)'");
        assert_eq!(quoted(""), "''");
        assert_eq!(on_one_line("a\nrm -r .\r\tb"), "a rm -r .  b");
    }

    #[test]
    fn an_array_has_a_flag_a_line() {
        let mut args = Args::default();
        args.set("--layout", "E|(t|)*4L");
        args.on_if(true, "--swiglu");
        args.on_if(false, "--bf16");
        args.list("--modules", vec!["a".into(), "b".into()]);
        assert_eq!(args.bash("args"), "args=(\n  --layout 'E|(t|)*4L'\n  --swiglu\n  --modules a b\n)\n");
    }
}

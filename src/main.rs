//! The `autoshard` command.
fn main() {}

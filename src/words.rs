//! Words that people mistype.

/// `; did you mean X?` for the known word nearest to what was written, if any is near; the first of
/// several that are equally near.
pub fn suggestion<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    let scored = known.into_iter().map(|k| (strsim::damerau_levenshtein(word, k), k)).min_by_key(|(d, _)| *d);
    match scored.filter(|(d, _)| *d <= 1 + word.chars().count() / 3) {
        Some((_, near)) => format!("; did you mean `{near}`?"),
        None => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn suggestions_are_near_or_absent() {
        assert_eq!(suggestion("fdsp", ["dp", "fsdp", "tp"]), "; did you mean `fsdp`?");
        assert_eq!(suggestion("zebra", ["dp", "tp"]), "");
    }
}

//! Counting the ranks of a group in consecutive blocks of ranks, exactly, on a mixed radix.

/// The most ranks that are looked at one by one, where sizes do not divide each other.
pub(super) const MOST_ENUMERATED: u64 = 1 << 24;

/// One digit of a rank's number, innermost first: its radix, and whether the ranks of a group differ in it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Digit {
    pub size: u64,
    pub varies: bool,
}

/// The fewest and the most ranks of one group in one unit, over all groups and all units that they touch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Counts {
    pub least: u64,
    pub most: u64,
}

impl Counts {
    fn all(count: u64) -> Counts {
        Counts { least: count, most: count }
    }
}

/// Joins neighbouring digits of one kind and drops those of size 1, so that most cases divide.
pub(super) fn merged(digits: impl IntoIterator<Item = Digit>) -> Vec<Digit> {
    let mut out: Vec<Digit> = Vec::new();
    for digit in digits.into_iter().filter(|d| d.size > 1) {
        match out.last_mut() {
            Some(last) if last.varies == digit.varies => last.size *= digit.size,
            _ => out.push(digit),
        }
    }
    out
}

/// Counts the ranks of a group in units of `unit` consecutive ranks. `digits` are [`merged`]. `None` where
/// more than [`MOST_ENUMERATED`] ranks would have to be looked at.
pub(super) fn counts(digits: &[Digit], unit: u64) -> Option<Counts> {
    let mut unit = unit;
    // Ranks of a group in a block of the digits seen so far; such blocks fill a unit evenly.
    let mut block = 1;
    for (at, digit) in digits.iter().enumerate() {
        let rest = &digits[at..];
        if size(rest) <= unit {
            return Some(Counts::all(block * group_size(rest)));
        }
        if unit.is_multiple_of(digit.size) {
            unit /= digit.size;
            block *= if digit.varies { digit.size } else { 1 };
        } else if digit.size.is_multiple_of(unit) {
            // The unit ends within this digit, at the same place in all groups.
            return Some(Counts::all(block * if digit.varies { unit } else { 1 }));
        } else {
            let Counts { least, most } = enumerate(up_to_boundary(rest, unit), unit)?;
            return Some(Counts { least: block * least, most: block * most });
        }
    }
    Some(Counts::all(block))
}

/// Ranks that digits number. The whole product was checked when the axes were read.
fn size(digits: &[Digit]) -> u64 {
    digits.iter().map(|d| d.size).product()
}

/// Ranks of a group.
fn group_size(digits: &[Digit]) -> u64 {
    digits.iter().filter(|d| d.varies).map(|d| d.size).product()
}

/// The digits up to where a boundary between units falls on one between blocks: further out all repeats.
fn up_to_boundary(digits: &[Digit], unit: u64) -> &[Digit] {
    let whole = (1..digits.len()).find(|&n| size(&digits[..n]).is_multiple_of(unit));
    &digits[..whole.unwrap_or(digits.len())]
}

/// Walks through every rank of every group.
fn enumerate(digits: &[Digit], unit: u64) -> Option<Counts> {
    if size(digits) > MOST_ENUMERATED {
        return None;
    }
    let (ranks, bases) = (offsets(digits, true), offsets(digits, false));
    let mut counts = Counts { least: u64::MAX, most: 0 };
    for base in bases {
        // Offsets rise, so the ranks of one unit follow each other.
        for run in ranks.chunk_by(|a, b| (base + a) / unit == (base + b) / unit) {
            let count = run.len() as u64;
            counts = Counts { least: counts.least.min(count), most: counts.most.max(count) };
        }
    }
    Some(counts)
}

/// The numbers that the varying (or the other) digits form while the rest is zero, rising.
fn offsets(digits: &[Digit], varies: bool) -> Vec<u64> {
    let mut out = vec![0];
    let mut stride = 1;
    for digit in digits {
        if digit.varies == varies {
            out = (0..digit.size).flat_map(|v| out.iter().map(move |x| x + v * stride)).collect();
        }
        stride *= digit.size;
    }
    out
}

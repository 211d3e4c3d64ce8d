//! Readers of measured tables: CSV and the output of nccl-tests.

use super::table::{Row, TableError};
use super::Kind;

/// See [`super::Tables::from_csv`].
pub(crate) fn from_csv(text: &str) -> Result<Vec<Row>, TableError> {
    const EMPTY: TableError = TableError::Empty { wanted: "a header op,ranks,bytes,us and at least one line under it" };
    let plain = |l: &str| !l.trim().is_empty() && !l.trim_start().starts_with('#');
    let mut lines = text.lines().enumerate().map(|(i, l)| (i + 1, l)).filter(|(_, l)| plain(l));
    let (line, header) = lines.next().ok_or(EMPTY)?;
    let names: Vec<&str> = header.trim_start_matches('\u{feff}').split(',').map(str::trim).collect();
    let find = |name: &str| names.iter().position(|n| n.eq_ignore_ascii_case(name));
    let need = |column: &'static str| {
        find(column).map(|at| (at, column)).ok_or(TableError::NoColumn { line, header: header.to_string(), column })
    };
    let (op, ranks, bytes, us) = (need("op")?, need("ranks")?, need("bytes")?, need("us")?);
    let nodes = find("nodes").map(|at| (at, "nodes"));
    let mut rows = Vec::new();
    for (line, text) in lines {
        let fields: Vec<&str> = text.split(',').map(str::trim).collect();
        let field = |(at, column): (usize, &'static str)| {
            let short = TableError::Short { line, text: text.to_string(), column };
            fields.get(at).copied().ok_or(short)
        };
        let name = field(op)?;
        let kind = measured(name).ok_or(TableError::Operation { line, text: name.to_string() })?;
        let nodes = nodes.map_or(Ok(1), |c| whole(line, c.1, field(c)?))?;
        let ranks = whole(line, ranks.1, field(ranks)?)?;
        let bytes = positive(line, bytes.1, field(bytes)?)?;
        let seconds = positive(line, us.1, field(us)?)? * 1e-6;
        rows.push(checked(line, Row { kind, ranks, nodes, bytes, seconds })?);
    }
    if rows.is_empty() {
        return Err(EMPTY);
    }
    Ok(rows)
}

/// What the comment lines of nccl-tests said so far.
#[derive(Default)]
struct Run {
    kind: Option<Kind>,
    ranks: u64,
    hosts: Vec<String>,
    /// Whether rows followed, so that the next `Rank` line belongs to another run.
    read: bool,
    /// Field of the out-of-place time.
    time: Option<usize>,
}

/// See [`super::Tables::from_nccl_tests`].
pub(crate) fn from_nccl_tests(text: &str) -> Result<Vec<Row>, TableError> {
    let mut run = Run::default();
    let mut rows = Vec::new();
    for (i, text) in text.lines().enumerate() {
        let (line, words) = (i + 1, text.split_whitespace().collect::<Vec<&str>>());
        let starts_with_size = words.first().is_some_and(|w| w.parse::<u64>().is_ok());
        if !starts_with_size || words.len() < 5 {
            run.notice(&words);
            continue;
        }
        let missing = |what| TableError::Unnamed { line, what };
        let kind = run.kind.ok_or(missing("program name such as `# all_reduce_perf`"))?;
        let time = run.time.ok_or(missing("line of column names"))?;
        if run.ranks == 0 {
            return Err(missing("`# Rank 0 ... on HOST` lines"));
        }
        run.read = true;
        let bytes: f64 = words[0].parse().unwrap_or(0.0);
        if bytes == 0.0 {
            continue; // nccl-tests may start at no bytes at all.
        }
        let column = "time";
        let field = *words.get(time).ok_or(TableError::Short { line, text: text.to_string(), column })?;
        let seconds = positive(line, column, field)? * 1e-6;
        let nodes = run.hosts.len().max(1) as u64;
        rows.push(checked(line, Row { kind, ranks: run.ranks, nodes, bytes, seconds })?);
    }
    if rows.is_empty() {
        return Err(TableError::Empty { wanted: "the output of nccl-tests has lines of size, count, type and times" });
    }
    Ok(rows)
}

impl Run {
    /// Learns from a line that is no row.
    fn notice(&mut self, words: &[&str]) {
        for word in words {
            let name = word.rsplit('/').next().unwrap_or(word);
            if let Some(kind) = name.strip_suffix("_perf").and_then(measured) {
                self.kind = Some(kind);
            }
        }
        let comment = words.first() == Some(&"#");
        if comment && words.get(1) == Some(&"Rank") && words.get(2).is_some_and(|w| w.parse::<u64>().is_ok()) {
            if self.read {
                *self = Run { kind: self.kind, ..Run::default() };
            }
            self.ranks += 1;
            let host = words.iter().position(|w| *w == "on").and_then(|i| words.get(i + 1)).unwrap_or(&"");
            if !self.hosts.iter().any(|h| h == host) {
                self.hosts.push(host.to_string());
            }
        }
        // The names of columns: the first `time` is out of place. Rows have no `#` of their own.
        if comment && words.contains(&"size") && words.contains(&"time") {
            self.time = words[1..].iter().position(|w| *w == "time");
        }
    }
}

fn measured(name: &str) -> Option<Kind> {
    Kind::from_name(name).filter(|k| k.index().is_some())
}

fn positive(line: usize, column: &'static str, text: &str) -> Result<f64, TableError> {
    let bad = TableError::Number { line, column, text: text.to_string() };
    text.parse().ok().filter(|x: &f64| x.is_finite() && *x > 0.0).ok_or(bad)
}

fn whole(line: usize, column: &'static str, text: &str) -> Result<u64, TableError> {
    let bad = TableError::Number { line, column, text: text.to_string() };
    text.parse().ok().filter(|x: &u64| *x > 0).ok_or(bad)
}

fn checked(line: usize, row: Row) -> Result<Row, TableError> {
    let Row { ranks, nodes, .. } = row;
    if ranks < 2 || ranks % nodes != 0 {
        return Err(TableError::Ranks { line, ranks, nodes });
    }
    Ok(row)
}

//! Measured times as text: one line a shape, in the columns of the tables that ship.

use super::Attention;
use crate::device::Format;

/// A measured product.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ProductRow {
    /// Format of the operands.
    pub format: Format,
    /// Rows of C.
    pub m: f64,
    /// Columns of C.
    pub n: f64,
    /// Contracted.
    pub k: f64,
    /// Microseconds.
    pub us: f64,
}

/// A measured forward of causal self-attention in bf16.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttentionRow {
    /// Sequences.
    pub batch: f64,
    /// Positions of queries and keys.
    pub seq: f64,
    /// Query heads.
    pub heads: f64,
    /// Key/value heads.
    pub kv_heads: f64,
    /// Width of a head.
    pub head_dim: f64,
    /// Microseconds.
    pub us: f64,
}

impl AttentionRow {
    /// What was measured, as a question to [`super::Kernels::attention`].
    pub fn attention(&self) -> Attention {
        Attention {
            batch: self.batch,
            queries: self.seq,
            keys: self.seq,
            heads: self.heads,
            kv_heads: self.kv_heads,
            head_dim: self.head_dim,
            value_dim: self.head_dim,
            share: 0.5,
            backward: false,
        }
    }
}

/// The rows of one file.
#[derive(Clone, Debug, PartialEq)]
pub enum Rows {
    /// Columns `dtype,m,n,k,us`.
    Products(Vec<ProductRow>),
    /// Columns `batch,seq,heads,kv_heads,head_dim,us`.
    Attention(Vec<AttentionRow>),
}

/// Why a table could not be read.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum TableError {
    /// The first line names columns of no known table.
    #[error("line 1: the columns are `{found}`; a table of kernel times starts with `dtype,m,n,k,us` (products) or `batch,seq,heads,kv_heads,head_dim,us` (attention)")]
    Header {
        /// The line.
        found: String,
    },
    /// A line has too few or too many values.
    #[error("line {line}: {found} values where the header has {expected} columns: `{text}`")]
    Columns {
        /// Line number from 1.
        line: usize,
        /// Values on it.
        found: usize,
        /// Columns of the header.
        expected: usize,
        /// The line.
        text: String,
    },
    /// A value is not what its column holds.
    #[error("line {line}, column `{column}`: `{value}` is not {expected}")]
    Value {
        /// Line number from 1.
        line: usize,
        /// Column.
        column: &'static str,
        /// The value.
        value: String,
        /// What the column holds.
        expected: &'static str,
    },
    /// No rows.
    #[error("the table has a header and no rows; measure at least one shape")]
    Empty,
    /// A table of attention or of a format that no product row has.
    #[error("line {line}: {message}: `{text}`")]
    Grid {
        /// Line number from 1.
        line: usize,
        /// What was expected.
        message: &'static str,
        /// The line, cut short where it is long.
        text: String,
    },
}

const PRODUCT: [&str; 5] = ["dtype", "m", "n", "k", "us"];
const ATTENTION: [&str; 6] = ["batch", "seq", "heads", "kv_heads", "head_dim", "us"];

/// Reads a table; which one, its header says.
///
/// # Errors
/// The first line that is not as the header says, with its number, column and value.
pub fn parse(text: &str) -> Result<Rows, TableError> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut lines = text.lines().enumerate().map(|(i, l)| (i + 1, l.trim()));
    let header = lines.next().map_or("", |(_, l)| l);
    let names: Vec<&str> = header.split(',').map(str::trim).collect();
    let lines = lines.filter(|(_, l)| !l.is_empty());
    if names == PRODUCT {
        let rows = lines.map(|(i, l)| product(i, l)).collect::<Result<Vec<_>, _>>()?;
        return if rows.is_empty() { Err(TableError::Empty) } else { Ok(Rows::Products(rows)) };
    }
    if names == ATTENTION {
        let rows = lines.map(|(i, l)| attention(i, l)).collect::<Result<Vec<_>, _>>()?;
        return if rows.is_empty() { Err(TableError::Empty) } else { Ok(Rows::Attention(rows)) };
    }
    Err(TableError::Header { found: header.chars().take(80).collect() })
}

fn product(line: usize, text: &str) -> Result<ProductRow, TableError> {
    let v = values::<5>(line, text)?;
    let format = match v[0] {
        "bfloat16" | "bf16" => Some(Format::Bf16),
        "float16" | "fp16" => Some(Format::Fp16),
        "float32" | "fp32" => Some(Format::Fp32),
        "float64" | "fp64" => Some(Format::Fp64),
        name => Format::from_name(name),
    };
    let unknown = || TableError::Value {
        line,
        column: "dtype",
        value: v[0].into(),
        expected: "one of bfloat16, float16, float32, float64, tf32, fp8, fp4, int8",
    };
    let format = format.ok_or_else(unknown)?;
    let at = |i: usize| number(line, PRODUCT[i], v[i]);
    Ok(ProductRow { format, m: at(1)?, n: at(2)?, k: at(3)?, us: at(4)? })
}

fn attention(line: usize, text: &str) -> Result<AttentionRow, TableError> {
    let v = values::<6>(line, text)?;
    let at = |i: usize| number(line, ATTENTION[i], v[i]);
    Ok(AttentionRow { batch: at(0)?, seq: at(1)?, heads: at(2)?, kv_heads: at(3)?, head_dim: at(4)?, us: at(5)? })
}

fn values<const N: usize>(line: usize, text: &str) -> Result<[&str; N], TableError> {
    let found: Vec<&str> = text.split(',').map(str::trim).collect();
    let count = found.len();
    found.try_into().map_err(|_| TableError::Columns {
        line,
        found: count,
        expected: N,
        text: text.chars().take(80).collect(),
    })
}

fn number(line: usize, column: &'static str, value: &str) -> Result<f64, TableError> {
    match value.parse::<f64>() {
        // 1e15 is beyond any size or time; larger numbers would only overflow later.
        Ok(x) if x > 0.0 && x < 1e15 => Ok(x),
        _ => Err(TableError::Value {
            line,
            column,
            value: value.chars().take(40).collect(),
            expected: "a number above zero",
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_read_and_errors_name_the_place() {
        let Rows::Products(rows) = parse("dtype,m,n,k,us\nfp8,64,32,128,4.5\n\n").unwrap() else { panic!() };
        assert_eq!(rows, [ProductRow { format: Format::Fp8, m: 64.0, n: 32.0, k: 128.0, us: 4.5 }]);
        let say = |text: &str| parse(text).unwrap_err().to_string();
        assert_eq!(
            say("dtype,m,n,k,us\nfp8,64,32,128,4.5\nfp8,64,x,128,4.5"),
            "line 3, column `n`: `x` is not a number above zero"
        );
        assert!(say("dtype,m,n,k,us\nfp7,1,1,1,1").contains("line 2, column `dtype`: `fp7`"));
        assert!(say("dtype,m,n,k,us\nfp8,1,1,1").contains("4 values where the header has 5"));
        assert!(say("m,n\n").contains("`m,n`"));
        assert!(say("dtype,m,n,k,us\nfp8,1,1,1,NaN").contains("`NaN`"));
        assert_eq!(parse("dtype,m,n,k,us\n"), Err(TableError::Empty));
    }
}

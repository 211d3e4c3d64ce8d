//! What a device's kernels were measured or fitted to take: grids with where they come from.

use super::attention::{self, Grids, HeadGrid};
use super::grid::{damaged, Grid};
use super::products::{self, Figures};
use super::rows::{self, Rows, TableError};
use crate::device::{Device, Format};
use std::fmt::Write;

/// Grids of one device. Without any, [`super::Kernels`] answers from peak rates.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Tables {
    /// The device that was measured.
    pub device: String,
    /// Where the measurements come from.
    pub source: String,
    /// Its peaks in FLOP/s, by which a related device's times are scaled.
    pub peak: Vec<(Format, f64)>,
    /// Times of products by format.
    pub products: Vec<(Format, Grid)>,
    /// Times of causal attention, forward, in bf16, by width of a head.
    pub attention: Grids,
}

/// First line of a file of grids.
const MAGIC: &str = "autoshard kernel table 1";

impl Tables {
    /// Grids fitted to a user's measurements of a device, in the columns of [`rows::parse`].
    ///
    /// # Errors
    /// The first line that is not as its header says.
    pub fn from_csv(text: &str, device: &Device) -> Result<Tables, TableError> {
        Ok(Tables::of(&rows::parse(text)?, device))
    }

    /// Grids fitted to rows: of each format in them, or of attention.
    pub fn of(rows: &Rows, device: &Device) -> Tables {
        let mut tables = Tables {
            device: device.id.clone(),
            source: "measured by the user".into(),
            peak: device.peak.clone(),
            ..Tables::default()
        };
        match rows {
            Rows::Products(rows) => {
                for format in Format::ALL {
                    let own: Vec<_> = rows.iter().filter(|r| r.format == format).copied().collect();
                    if !own.is_empty() {
                        tables.products.push((format, products::grid(&own, Figures::of(device, format))));
                    }
                }
            }
            Rows::Attention(rows) => {
                tables.attention = attention::grids(rows, Figures::of(device, Format::Bf16));
            }
        }
        tables
    }

    /// These tables with a user's in place of those of the same kind: products replace all products, attention
    /// all attention. Tables of a related device are dropped whole: they say nothing beside measurements.
    pub fn replaced_by(mut self, user: Tables, device: &Device) -> Tables {
        if self.device != device.id {
            return user;
        }
        if !user.products.is_empty() {
            self.products = user.products;
        }
        if !user.attention.is_empty() {
            self.attention = user.attention;
        }
        self.source = user.source;
        self
    }

    /// The grid of a format's products.
    pub fn product(&self, format: Format) -> Option<&Grid> {
        self.products.iter().find(|(f, _)| *f == format).map(|(_, g)| g)
    }

    /// Text that [`Tables::parse`] reads.
    pub fn print(&self) -> String {
        // Writing to a string cannot fail.
        let mut out = format!("{MAGIC}\ndevice {}\nsource {}\n", self.device, self.source.replace('\n', " "));
        for (f, p) in &self.peak {
            let _ = writeln!(out, "peak {f} {p}");
        }
        for (f, g) in &self.products {
            let _ = write!(out, "products {f}\n{}", g.print());
        }
        for g in &self.attention {
            let _ = write!(out, "attention {} {}\n{}", g.dim, g.heads, g.grid.print());
        }
        out
    }

    /// Reads a file of grids.
    ///
    /// # Errors
    /// The first line that is not as expected.
    pub fn parse(text: &str) -> Result<Tables, TableError> {
        let mut lines = text.lines().enumerate().map(|(i, l)| (i + 1, l));
        let first = lines.next().map_or("", |(_, l)| l);
        if first != MAGIC {
            return Err(damaged(1, "a file of kernel grids starts with `autoshard kernel table 1`", first));
        }
        let mut tables = Tables::default();
        while let Some((line, text)) = lines.next() {
            let (word, rest) = text.split_once(' ').unwrap_or((text, ""));
            let format = |name: &str| Format::from_name(name).ok_or_else(|| damaged(line, "not a number format", text));
            match word {
                "device" => tables.device = rest.into(),
                "source" => tables.source = rest.into(),
                "peak" => {
                    let (name, value) = rest.split_once(' ').unwrap_or((rest, ""));
                    let value = value.parse().map_err(|_| damaged(line, "not a peak `FORMAT FLOP/s`", text))?;
                    tables.peak.push((format(name)?, value));
                }
                "products" => tables.products.push((format(rest)?, Grid::parse(&mut lines)?)),
                "attention" => {
                    let wrong = || damaged(line, "not `attention WIDTH HEADS`", text);
                    let (dim, heads) = rest.split_once(' ').ok_or_else(wrong)?;
                    let dim = dim.parse().map_err(|_| wrong())?;
                    let heads = heads.parse().map_err(|_| wrong())?;
                    tables.attention.push(HeadGrid { dim, heads, grid: Grid::parse(&mut lines)? });
                }
                _ => return Err(damaged(line, "none of device, source, peak, products, attention", text)),
            }
        }
        Ok(tables)
    }
}

/// Best rates that were measured on a device, for what has no table.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Rates {
    /// Share of the peak that the best of many shapes reached, by format.
    pub products: Vec<(Format, f64)>,
    /// Share of the memory bandwidth that a large copy reached.
    pub copy: Option<f64>,
}

impl Rates {
    /// A device's rates in a table with the columns `device,what,share,source`; `what` is a format or `copy`.
    ///
    /// # Errors
    /// The first line that is not as the header says.
    pub fn parse(text: &str, device: &str) -> Result<Rates, TableError> {
        let mut rates = Rates::default();
        for (i, l) in text.lines().enumerate().skip(1).filter(|(_, l)| !l.trim().is_empty()) {
            let columns: Vec<&str> = l.splitn(4, ',').collect();
            let [id, what, share, _] = columns[..] else {
                return Err(TableError::Columns { line: i + 1, found: columns.len(), expected: 4, text: l.into() });
            };
            let wrong = |column, value: &str, expected| TableError::Value {
                line: i + 1,
                column,
                value: value.into(),
                expected,
            };
            let share: f64 = share.parse().map_err(|_| wrong("share", share, "a share of a peak"))?;
            if !(share > 0.0 && share < 2.0) {
                return Err(wrong("share", &share.to_string(), "a share of a peak"));
            }
            if id != device {
                continue;
            }
            match Format::from_name(what) {
                Some(f) => rates.products.push((f, share)),
                None if what == "copy" => rates.copy = Some(share),
                None => return Err(wrong("what", what, "a number format or `copy`")),
            }
        }
        Ok(rates)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_read_back() {
        let device =
            Device { id: "x".into(), peak: vec![(Format::Bf16, 1e14)], memory_bandwidth: 1e12, ..Device::default() };
        let csv = "dtype,m,n,k,us\nbf16,64,64,64,5\nbf16,128,64,64,6\nbf16,64,128,64,6\n";
        let attention = "batch,seq,heads,kv_heads,head_dim,us\n1,512,8,8,128,20\n1,1024,8,8,128,50\n";
        let tables =
            Tables::from_csv(csv, &device).unwrap().replaced_by(Tables::from_csv(attention, &device).unwrap(), &device);
        assert_eq!((tables.products.len(), tables.attention.len()), (1, 1));
        assert_eq!(Tables::parse(&tables.print()).unwrap(), tables);
        assert!(Tables::parse("x").is_err());
    }

    #[test]
    fn rates_are_a_devices() {
        let text = "device,what,share,source\na,bf16,0.8,here\nb,copy,0.9,there, too\n";
        assert_eq!(Rates::parse(text, "b").unwrap(), Rates { products: vec![], copy: Some(0.9) });
        assert!(Rates::parse("device,what,share,source\na,bf16,x,y", "b").is_err());
    }
}

//! One accelerator.

use std::fmt;

/// A number format of matrix products, as peak rates are listed for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Format {
    /// IEEE double.
    Fp64,
    /// IEEE single on the vector or matrix units.
    Fp32,
    /// 19-bit products of fp32 operands.
    Tf32,
    /// bfloat16.
    Bf16,
    /// IEEE half.
    Fp16,
    /// 8-bit floats, whatever their scaling (per tensor, per block, MX).
    Fp8,
    /// 4-bit floats with block scales (MXFP4, NVFP4).
    Fp4,
    /// 8-bit integers.
    Int8,
}

impl Format {
    /// All formats, widest first.
    pub const ALL: [Format; 8] =
        [Format::Fp64, Format::Fp32, Format::Tf32, Format::Bf16, Format::Fp16, Format::Fp8, Format::Fp4, Format::Int8];

    /// Name in hardware files.
    pub fn name(self) -> &'static str {
        match self {
            Format::Fp64 => "fp64",
            Format::Fp32 => "fp32",
            Format::Tf32 => "tf32",
            Format::Bf16 => "bf16",
            Format::Fp16 => "fp16",
            Format::Fp8 => "fp8",
            Format::Fp4 => "fp4",
            Format::Int8 => "int8",
        }
    }

    /// The format of this name.
    pub fn from_name(name: &str) -> Option<Format> {
        Format::ALL.into_iter().find(|f| f.name() == name)
    }

    /// Bytes of an element, without scales.
    pub fn bytes(self) -> f64 {
        match self {
            Format::Fp64 => 8.0,
            Format::Fp32 | Format::Tf32 => 4.0,
            Format::Bf16 | Format::Fp16 => 2.0,
            Format::Fp8 | Format::Int8 => 1.0,
            Format::Fp4 => 0.5,
        }
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The fast domain that a device's own links reach, such as NVLink in a server.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ScaleUp {
    /// Name of the link, such as `NVLink4`; empty where there is none.
    pub name: String,
    /// Bytes/s of one device in one direction, over all its links.
    pub bandwidth: f64,
    /// Bytes/s of one link in one direction.
    pub link_bandwidth: Option<f64>,
    /// Links of a device.
    pub links: Option<u32>,
    /// Devices that it joins.
    pub domain: u64,
    /// How, in words.
    pub topology: String,
}

/// One accelerator: figures of its maker unless a note says otherwise. `None` is not known, never zero.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Device {
    /// Preset name.
    pub id: String,
    /// Who makes it.
    pub vendor: String,
    /// Year of its introduction.
    pub year: Option<u32>,
    /// Board or package, where its name does not say it.
    pub form: Option<String>,
    /// Dense FLOP/s of matrix products by format.
    pub peak: Vec<(Format, f64)>,
    /// FLOP/s of plain fp32 arithmetic (the vector units).
    pub vector_peak: Option<f64>,
    /// Bytes of memory as sold.
    pub memory: f64,
    /// Kind of memory, such as `HBM3`; empty where not known.
    pub memory_kind: String,
    /// Bytes that the driver reports.
    pub memory_visible: Option<f64>,
    /// Bytes/s to memory.
    pub memory_bandwidth: f64,
    /// Bytes of the last cache level or on-chip memory.
    pub cache: Option<f64>,
    /// Streaming multiprocessors, compute units or cores, as the maker counts them.
    pub units: Option<u32>,
    /// Clock of the peak rates, Hz.
    pub clock: Option<f64>,
    /// Its fast domain.
    pub scale_up: ScaleUp,
    /// Bytes/s to the host, one direction.
    pub host_bandwidth: Option<f64>,
    /// The link to the host, such as `PCIe 5 x16`; empty where not known.
    pub host_link: String,
    /// Bytes/s of network a device, one direction.
    pub network_bandwidth: Option<f64>,
    /// Board power limit, W.
    pub power: Option<f64>,
    /// US dollars an hour, by default.
    pub price: Option<f64>,
    /// Where the price comes from; empty where there is none.
    pub price_source: String,
    /// Rate that lasts over the rate of a burst, 0.75–1.0: kernel tables are bursts and training is
    /// limited by power.
    pub sustained: f64,
    /// The same for products of eight bits and fewer, whose tables include bringing operands to eight bits.
    pub sustained_eight_bit: f64,
    /// Where that factor comes from.
    pub sustained_source: String,
    /// Whether the main figures were read in a source.
    pub verified: bool,
    /// Figures that were not.
    pub unverified_fields: Vec<String>,
    /// Where the figures come from.
    pub sources: Vec<String>,
    /// What to know before using them.
    pub notes: String,
}

impl Device {
    /// Dense FLOP/s of products in a format; `None` where the device has no such unit or none is known.
    pub fn peak_of(&self, format: Format) -> Option<f64> {
        self.peak.iter().find(|(f, _)| *f == format).map(|(_, p)| *p)
    }
}

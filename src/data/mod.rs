//! Training data: which tokens every rank sees at every step.
//!
//! A source of tokens (the bytes of a text, a token file, or the synthetic rule of the goldens) is cut into
//! *samples*: windows of S+1 tokens at stride S, so that every token but the first is a target once. A
//! step's global batch is B consecutive samples, an *epoch* as many whole batches as there are; what does
//! not fill a sample or a batch is left out, and [`Dataset::report`] says how much. Which samples go to
//! which rank is arithmetic in [`Epoch`], and proven disjoint and complete before the first step.
//!
//! ```
//! use autoshard::data::Dataset;
//! let data = Dataset::golden(0, 256, 64, 4, false).unwrap();
//! assert_eq!(data.row(0, 1).unwrap()[..4], [220, 146, 69, 68]);
//! assert_eq!(data.assignment(2, 1, 2).unwrap(), 10..12);
//! data.check_epoch(2).unwrap();
//! ```

mod epoch;
mod source;

use std::ops::Range;
use std::path::Path;

pub use epoch::{check_assignment, Epoch};
pub use source::{TokenWidth, Tokens};

pub use crate::weights::init::token_hash;

/// Why data cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum DataError {
    /// A file cannot be opened or read.
    #[error("{path}: cannot read the data: {source}")]
    Io {
        /// The file.
        path: String,
        /// What the system said.
        source: std::io::Error,
    },
    /// Not a file whose length is known.
    #[error("{path}: cannot read the data: not a regular file; give a text file or a token file (.u16.bin, .u32.bin)")]
    NotAFile {
        /// The path.
        path: String,
    },
    /// A plain `.bin` that holds u32, by the looks of it.
    #[error("{path}: a .bin file is read as 2-byte token ids, but every second one here is 0, so they most likely have 4 bytes; rename the file to end in .u32.bin (or in .u16.bin, if 2 bytes are right)")]
    Wide {
        /// The file.
        path: String,
    },
    /// The file does not fill one batch.
    #[error("{path}: too short for one batch: {batch} sequences of {seq_len} tokens need {needed} tokens, the file has {found}; use a smaller --batch or --seq-len, or more text")]
    TooShort {
        /// The file.
        path: String,
        /// Sequences in a batch.
        batch: usize,
        /// Tokens in a sequence.
        seq_len: usize,
        /// B·S + 1.
        needed: u128,
        /// Tokens in the file.
        found: u64,
    },
    /// A text's bytes do not fit the vocabulary.
    #[error("{path}: a text is read as bytes, which need a vocabulary of at least 256; the model has {vocab}: give a token file (.u16.bin, .u32.bin) instead")]
    ByteVocab {
        /// The file.
        path: String,
        /// The model's vocabulary.
        vocab: usize,
    },
    /// A token file whose length is not a multiple of its tokens' width.
    #[error("{path}: {bytes} bytes are not a whole number of {width}-byte tokens; the file is cut off or of another width (name it .u16.bin or .u32.bin)")]
    Ragged {
        /// The file.
        path: String,
        /// Its length, bytes.
        bytes: u64,
        /// Bytes per token.
        width: u64,
    },
    /// A token outside the vocabulary.
    #[error("{path}: token {index} is {id}, but the vocabulary has {vocab}; the file belongs to another tokenizer, or its width is not {width} bytes (name it .u16.bin or .u32.bin)")]
    OutsideVocab {
        /// The file.
        path: String,
        /// Position in the file, in tokens.
        index: u64,
        /// The id.
        id: u32,
        /// The model's vocabulary.
        vocab: usize,
        /// Bytes per token as the file was read.
        width: u64,
    },
    /// A size that must be at least one, or more than can be counted.
    #[error("{name} is {value}, but must be at least 1 and at most {most}")]
    Size {
        /// Which size.
        name: &'static str,
        /// Its value.
        value: usize,
        /// The largest that is accepted.
        most: u64,
    },
    /// A batch that the data ranks cannot share evenly.
    #[error("the batch of {batch} sequences cannot be shared evenly by {data_ranks} data ranks; use a multiple of {data_ranks}")]
    Uneven {
        /// Sequences in a global batch.
        batch: u64,
        /// Data ranks.
        data_ranks: u64,
    },
    /// An assignment of samples to ranks that is not a partition of the epoch.
    #[error("step {step}, data rank {rank} gets samples {got:?}, but {expected} comes next: samples would be {fault}")]
    Assignment {
        /// The step.
        step: u64,
        /// The data rank.
        rank: u64,
        /// What it is given.
        got: Range<u64>,
        /// The first sample that nobody has yet.
        expected: u64,
        /// `seen twice` or `left out`.
        fault: &'static str,
    },
    /// A sequence that is not in the batch.
    #[error("sequence {row} is outside the batch of {batch}")]
    OutsideBatch {
        /// The sequence asked for.
        row: usize,
        /// Sequences in a batch.
        batch: usize,
    },
}

/// Tokens, cut into samples and batches.
#[derive(Debug)]
pub struct Dataset {
    tokens: Tokens,
    vocab: usize,
    seq_len: usize,
    epoch: Epoch,
}

impl Dataset {
    /// The samples of a file. `.u16.bin` and `.u32.bin` hold little-endian token ids of that width, a plain
    /// `.bin` u16 (one that looks like u32 is refused); any other file is text, a token a byte. All ids are checked against `vocab` here.
    /// With `fixed_batch` every step sees the first batch.
    pub fn open(
        path: &Path,
        vocab: usize,
        seq_len: usize,
        batch: usize,
        fixed_batch: bool,
    ) -> Result<Dataset, DataError> {
        check_sizes(vocab, seq_len, batch)?;
        let tokens = Tokens::open(path, vocab)?;
        let found = tokens.len().unwrap_or(u64::MAX);
        let samples = found.saturating_sub(1) / seq_len as u64;
        let batches = samples / batch as u64;
        if batches == 0 {
            let needed = batch as u128 * seq_len as u128 + 1;
            return Err(DataError::TooShort { path: path.display().to_string(), batch, seq_len, needed, found });
        }
        let batches = if fixed_batch { 1 } else { batches };
        Ok(Dataset { tokens, vocab, seq_len, epoch: Epoch { batch: batch as u64, batches: Some(batches) } })
    }

    /// The endless synthetic samples that the goldens were made with.
    pub fn golden(
        seed: u64,
        vocab: usize,
        seq_len: usize,
        batch: usize,
        fixed_batch: bool,
    ) -> Result<Dataset, DataError> {
        check_sizes(vocab, seq_len, batch)?;
        let epoch = Epoch { batch: batch as u64, batches: fixed_batch.then_some(1) };
        Ok(Dataset { tokens: Tokens::golden(seed), vocab, seq_len, epoch })
    }

    /// Sequences in a global batch.
    pub fn batch(&self) -> usize {
        self.epoch.batch as usize
    }

    /// Tokens in a sequence.
    pub fn seq_len(&self) -> usize {
        self.seq_len
    }

    /// The order of samples.
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// The `seq_len + 1` tokens of sequence `b` of a step's global batch: all but the last are inputs, all
    /// but the first targets.
    pub fn row(&self, step: u64, b: usize) -> Result<Vec<u32>, DataError> {
        if b >= self.batch() {
            return Err(DataError::OutsideBatch { row: b, batch: self.batch() });
        }
        self.tokens.sample(self.epoch.first(step) + b as u64, self.seq_len, self.vocab)
    }

    /// The samples that a data rank trains on at a step, counted over the whole source.
    pub fn assignment(&self, step: u64, data_rank: u64, data_ranks: u64) -> Result<Range<u64>, DataError> {
        self.epoch.assignment(step, data_rank, data_ranks)
    }

    /// Proves that (step, data rank) → samples is disjoint and complete over an epoch.
    pub fn check_epoch(&self, data_ranks: u64) -> Result<(), DataError> {
        self.epoch.check(data_ranks)
    }

    /// What the source holds and what is left out, in one line.
    pub fn report(&self) -> String {
        let (s, b) = (self.seq_len as u64, self.epoch.batch);
        let (Some(tokens), Some(batches)) = (self.tokens.len(), self.epoch.batches) else {
            return match self.epoch.batches {
                Some(_) => format!("data: {}, one batch of {b} sequences of {s} tokens at every step", self.tokens),
                None => format!("data: {}, endless, batches of {b} sequences of {s} tokens", self.tokens),
            };
        };
        let samples = (tokens - 1) / s;
        let used = batches * b;
        format!(
            "data: {}, {tokens} tokens = {samples} sequences of {s}; an epoch is {batches} batches of {b}; left out: {} tokens at the end and {} sequences beyond the last whole batch",
            self.tokens,
            tokens - 1 - samples * s,
            samples - used,
        )
    }

    /// The entropy of single bytes in nats, where the source is a text: what a model reaches that knows
    /// only how often each byte occurs.
    pub fn unigram_entropy(&self) -> Option<f64> {
        match &self.tokens {
            Tokens::Text { bytes, .. } => Some(unigram_entropy(bytes)),
            _ => None,
        }
    }
}

/// Sizes in the range that later arithmetic can hold.
fn check_sizes(vocab: usize, seq_len: usize, batch: usize) -> Result<(), DataError> {
    let limits = [("the vocabulary", vocab, 1u64 << 32), ("--seq-len", seq_len, 1 << 30), ("--batch", batch, 1 << 30)];
    match limits.into_iter().find(|(_, value, most)| *value == 0 || *value as u64 > *most) {
        Some((name, value, most)) => Err(DataError::Size { name, value, most }),
        None => Ok(()),
    }
}

/// The entropy of single bytes in nats; zero for an empty text.
pub fn unigram_entropy(bytes: &[u8]) -> f64 {
    let mut counts = [0u64; 256];
    for &b in bytes {
        counts[b as usize] += 1;
    }
    let total = bytes.len() as f64;
    counts.iter().filter(|&&c| c > 0).map(|&c| c as f64 / total).map(|p| -p * p.ln()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(name: &str, bytes: &[u8]) -> (tempfile::TempDir, std::path::PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        (dir, path)
    }

    fn error<T: std::fmt::Debug>(result: Result<T, DataError>) -> String {
        result.unwrap_err().to_string()
    }

    #[test]
    fn golden_rows_match_the_vectors() {
        let data = Dataset::golden(0, 256, 64, 4, false).unwrap();
        let batch: Vec<i32> = (0..4).flat_map(|b| data.row(0, b).unwrap()).map(|t| t as i32).collect();
        assert_eq!(token_hash(&batch), 0x9c2fd941efb89b07);
        assert_eq!(data.row(3, 0).unwrap()[..8], [246, 198, 38, 203, 67, 134, 231, 123]);
        let fixed = Dataset::golden(0, 256, 64, 4, true).unwrap();
        assert_eq!(fixed.row(3, 1).unwrap(), data.row(0, 1).unwrap());
        let second = Dataset::golden(0, 320, 64, 8, false).unwrap();
        let batch: Vec<i32> = (0..8).flat_map(|b| second.row(0, b).unwrap()).map(|t| t as i32).collect();
        assert_eq!(token_hash(&batch), 0xf38e1369793ce125);
    }

    #[test]
    fn text_is_cut_at_stride_s() {
        // 23 bytes, S = 4: 5 samples and 2 tokens over; B = 2: 2 batches and 1 sample over.
        let (_dir, path) = file("train.txt", b"abcdefghijklmnopqrstuvw");
        let data = Dataset::open(&path, 256, 4, 2, false).unwrap();
        let text = |step, b| data.row(step, b).unwrap().iter().map(|&t| t as u8 as char).collect::<String>();
        assert_eq!([text(0, 0), text(0, 1), text(1, 0), text(1, 1)], ["abcde", "efghi", "ijklm", "mnopq"]);
        assert_eq!(text(2, 1), "efghi", "the second epoch repeats the first");
        let report = data.report();
        assert!(report.contains("23 tokens = 5 sequences of 4; an epoch is 2 batches of 2; left out: 2 tokens at the end and 1 sequences"), "{report}");
        assert!(error(data.row(0, 2)).contains("sequence 2 is outside the batch of 2"));
        let fixed = Dataset::open(&path, 256, 4, 2, true).unwrap();
        assert_eq!(fixed.row(1, 0).unwrap(), data.row(0, 0).unwrap());
    }

    #[test]
    fn token_files_have_two_widths() {
        let ids: Vec<u8> = (0..9u16).flat_map(|i| (i * 100).to_le_bytes()).collect();
        for name in ["train.bin", "train.u16.bin"] {
            let (_dir, path) = file(name, &ids);
            let data = Dataset::open(&path, 1000, 4, 2, false).unwrap();
            assert_eq!(data.row(0, 1).unwrap(), [400, 500, 600, 700, 800]);
            assert_eq!(data.unigram_entropy(), None);
        }
        let wide: Vec<u8> = [70_000u32, 1, 2].iter().flat_map(|i| i.to_le_bytes()).collect();
        let (_dir, path) = file("train.u32.bin", &wide);
        assert_eq!(Dataset::open(&path, 70_001, 2, 1, false).unwrap().row(0, 0).unwrap(), [70_000, 1, 2]);
        let outside = error(Dataset::open(&path, 70_000, 2, 1, false));
        assert!(outside.contains("token 0 is 70000, but the vocabulary has 70000"), "{outside}");
        let narrow: Vec<u8> = (0..8u32).flat_map(|i| i.to_le_bytes()).collect();
        let (_dir, path) = file("train.bin", &narrow);
        assert!(error(Dataset::open(&path, 1000, 2, 1, false)).contains("rename the file to end in .u32.bin"));
        let (_dir, path) = file("train.u16.bin", &narrow);
        assert_eq!(Dataset::open(&path, 1000, 2, 1, false).unwrap().row(0, 0).unwrap(), [0, 0, 1]);
        let (_dir, path) = file("cut.bin", &ids[..7]);
        assert!(
            error(Dataset::open(&path, 1000, 1, 1, false)).contains("7 bytes are not a whole number of 2-byte tokens")
        );
    }

    #[test]
    fn short_files_and_small_vocabularies_are_refused_with_numbers() {
        let (_dir, path) = file("train.txt", &[b'x'; 128]);
        let short = error(Dataset::open(&path, 256, 64, 2, false));
        assert!(short.contains("2 sequences of 64 tokens need 129 tokens, the file has 128"), "{short}");
        assert!(error(Dataset::open(&path, 255, 4, 1, false)).contains("at least 256; the model has 255"));
        assert!(error(Dataset::open(&path, 256, 0, 1, false)).contains("--seq-len is 0"));
        assert!(error(Dataset::open(&path, 256, 1, 0, false)).contains("--batch is 0"));
        assert!(error(Dataset::open(Path::new("no/such.txt"), 256, 1, 1, false))
            .contains("no/such.txt: cannot read the data"));
        let (_dir, path) = file("empty.txt", b"");
        assert!(error(Dataset::open(&path, 256, 1, 1, false)).contains("need 2 tokens, the file has 0"));
    }

    #[test]
    fn entropy_is_in_nats() {
        assert_eq!(unigram_entropy(b""), 0.0);
        assert_eq!(unigram_entropy(b"aaaa"), 0.0);
        assert!((unigram_entropy(b"abab") - 2f64.ln()).abs() < 1e-15);
        assert!((unigram_entropy(&(0..=255).collect::<Vec<u8>>()) - 256f64.ln()).abs() < 1e-12);
    }
}

//! Where tokens come from.

use std::fmt;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use super::DataError;
use crate::weights::init::{key, token_at};

/// A source of tokens.
#[derive(Debug)]
pub enum Tokens {
    /// A text; each byte is a token.
    Text {
        /// Its file.
        path: String,
        /// Its bytes.
        bytes: Vec<u8>,
    },
    /// A file of token ids, read where needed.
    Ids {
        /// Its name.
        path: String,
        /// The open file.
        file: File,
        /// The width of an id.
        width: TokenWidth,
        /// Tokens in the file.
        len: u64,
    },
    /// The synthetic, endless tokens of the goldens.
    Golden {
        /// The run's seed.
        seed: u64,
        /// Where the stream of words starts.
        key: u64,
    },
}

/// The width of the ids of a token file; they are little-endian.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenWidth {
    /// Two bytes.
    U16,
    /// Four bytes.
    U32,
}

impl TokenWidth {
    /// Bytes per token.
    pub fn bytes(self) -> u64 {
        match self {
            TokenWidth::U16 => 2,
            TokenWidth::U32 => 4,
        }
    }

    fn decode(self, bytes: &[u8]) -> Vec<u32> {
        match self {
            TokenWidth::U16 => bytes.chunks_exact(2).map(|b| u32::from(u16::from_le_bytes([b[0], b[1]]))).collect(),
            TokenWidth::U32 => bytes.chunks_exact(4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect(),
        }
    }

    /// The width that a file is read with: a plain `.bin` holds u16. None for a file that is not of token
    /// ids.
    fn of(path: &Path) -> Option<TokenWidth> {
        let plain = || path.extension().is_some_and(|e| e.eq_ignore_ascii_case("bin")).then_some(TokenWidth::U16);
        TokenWidth::stated(path).or_else(plain)
    }

    /// The width that a file's name states.
    fn stated(path: &Path) -> Option<TokenWidth> {
        let name = path.file_name()?.to_string_lossy().to_lowercase();
        let ends = [(".u16.bin", TokenWidth::U16), (".u32.bin", TokenWidth::U32)];
        ends.into_iter().find(|(end, _)| name.ends_with(end)).map(|(_, width)| width)
    }
}

/// Whether a token file looks like u32: whole four-byte words, the upper half of each zero, as in ids below
/// 65,536. The first 64k ids decide.
fn wide(file: &File, bytes: u64) -> std::io::Result<bool> {
    /// Bytes that are looked at.
    const LOOKED_AT: u64 = 4 << 16;
    if bytes == 0 || !bytes.is_multiple_of(4) {
        return Ok(false);
    }
    let mut head = vec![0; bytes.min(LOOKED_AT) as usize];
    file.read_exact_at(&mut head, 0)?;
    Ok(head.chunks_exact(4).all(|word| word[2] == 0 && word[3] == 0))
}

impl Tokens {
    /// Opens a file, and checks every id against the vocabulary: a wrong one should stop a run before its
    /// first step and not hours into it.
    pub(super) fn open(path: &Path, vocab: usize) -> Result<Tokens, DataError> {
        let name = path.display().to_string();
        let io = |source| DataError::Io { path: name.clone(), source };
        // Before it is opened: a pipe would wait for a writer, a device would never end.
        if !std::fs::metadata(path).map_err(io)?.is_file() {
            return Err(DataError::NotAFile { path: name });
        }
        let Some(width) = TokenWidth::of(path) else {
            let bytes = std::fs::read(path).map_err(io)?;
            if vocab < 256 {
                return Err(DataError::ByteVocab { path: name, vocab });
            }
            return Ok(Tokens::Text { path: name, bytes });
        };
        let file = File::open(path).map_err(io)?;
        let bytes = file.metadata().map_err(io)?.len();
        if bytes % width.bytes() != 0 {
            return Err(DataError::Ragged { path: name, bytes, width: width.bytes() });
        }
        if TokenWidth::stated(path).is_none() && wide(&file, bytes).map_err(io)? {
            return Err(DataError::Wide { path: name });
        }
        let tokens = Tokens::Ids { path: name, file, width, len: bytes / width.bytes() };
        tokens.scan(vocab)?;
        Ok(tokens)
    }

    /// The synthetic tokens of a seed.
    pub(super) fn golden(seed: u64) -> Tokens {
        Tokens::Golden { seed, key: key("input_ids", seed) }
    }

    /// Number of tokens; None for an endless source.
    pub fn len(&self) -> Option<u64> {
        match self {
            Tokens::Text { bytes, .. } => Some(bytes.len() as u64),
            Tokens::Ids { len, .. } => Some(*len),
            Tokens::Golden { .. } => None,
        }
    }

    /// Whether there is no token at all.
    pub fn is_empty(&self) -> bool {
        self.len() == Some(0)
    }

    /// The `seq_len + 1` tokens of a sample, which must lie inside the source.
    pub(super) fn sample(&self, sample: u64, seq_len: usize, vocab: usize) -> Result<Vec<u32>, DataError> {
        let start = sample.wrapping_mul(seq_len as u64);
        match self {
            // Invariant: samples are numbered below (len - 1) / seq_len, so the window ends inside.
            Tokens::Text { bytes, .. } => {
                Ok(bytes[start as usize..][..=seq_len].iter().map(|&b| u32::from(b)).collect())
            }
            Tokens::Ids { .. } => self.ids(start, seq_len + 1, vocab),
            Tokens::Golden { key, .. } => {
                Ok((0..=seq_len as u64).map(|j| token_at(*key, sample, j, seq_len as u64, vocab as u64)).collect())
            }
        }
    }

    /// Checks a token file from end to end.
    fn scan(&self, vocab: usize) -> Result<(), DataError> {
        /// Tokens read at once.
        const CHUNK: u64 = 1 << 18;
        let len = self.len().unwrap_or(0);
        let mut chunks = (0..len).step_by(CHUNK as usize);
        chunks.try_for_each(|start| self.ids(start, CHUNK.min(len - start) as usize, vocab).map(|_| ()))
    }

    /// Ids of a token file, checked against the vocabulary; empty for other sources.
    fn ids(&self, start: u64, count: usize, vocab: usize) -> Result<Vec<u32>, DataError> {
        let Tokens::Ids { path, file, width, .. } = self else {
            return Ok(Vec::new());
        };
        let mut bytes = vec![0; count * width.bytes() as usize];
        let read = file.read_exact_at(&mut bytes, start * width.bytes());
        read.map_err(|source| DataError::Io { path: path.clone(), source })?;
        let ids = width.decode(&bytes);
        match ids.iter().position(|&id| id as usize >= vocab) {
            Some(at) => Err(DataError::OutsideVocab {
                path: path.clone(),
                index: start + at as u64,
                id: ids[at],
                vocab,
                width: width.bytes(),
            }),
            None => Ok(ids),
        }
    }
}

impl fmt::Display for Tokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Tokens::Text { path, .. } => write!(f, "bytes of {path}"),
            Tokens::Ids { path, width, .. } => {
                write!(f, "{}-byte token ids of {path}", width.bytes())
            }
            Tokens::Golden { seed, .. } => write!(f, "golden tokens of seed {seed}"),
        }
    }
}

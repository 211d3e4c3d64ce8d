//! Reading JSON as people and tools really write it.
//!
//! `serde_json` stops at a byte-order mark and at a bare `NaN`, keeps the last of two equal keys in
//! silence, and cannot say where a key stood. Configurations in the wild carry all of these, so this
//! reader accepts the harmless ones and is exact about the rest:
//!
//! * a UTF-8 byte-order mark is skipped;
//! * bare `NaN`, `Infinity`, `-Infinity` become `null` and are remembered, so that whoever *uses* such a
//!   key can refuse it by name ([`Document::non_finite`]);
//! * a key given twice, a trailing comma, a comment, text after the value are errors with line, column,
//!   the line itself, and a hint;
//! * nesting is bounded ([`MAX_DEPTH`]), so no input can exhaust the stack.
//!
//! ```
//! use autoshard::json::Document;
//! let doc = Document::parse("c.json", b"\xEF\xBB\xBF{\"a\": 1, \"b\": NaN}").unwrap();
//! assert_eq!(doc.value["a"], 1);
//! assert_eq!(doc.non_finite("/b"), Some("NaN"));
//! ```

use std::collections::HashMap;
use std::fmt;
use std::path::Path;

use serde_json::{Map, Number, Value};

/// The deepest nesting of objects and arrays that is read; deeper input is an error.
pub const MAX_DEPTH: usize = 128;

/// A place in a text file: both numbers count from 1, columns in characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pos {
    /// Line number.
    pub line: usize,
    /// Character within the line.
    pub column: usize,
}

impl fmt::Display for Pos {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.line, self.column)
    }
}

/// Why a JSON file could not be read.
#[derive(Debug, thiserror::Error)]
pub enum JsonError {
    /// The file could not be opened or read.
    #[error("{file}: cannot read the file: {source}")]
    Io {
        /// The file, as it was named.
        file: String,
        /// What the system said.
        source: std::io::Error,
    },
    /// The text is not JSON; the message shows the line with a caret.
    #[error("{file}:{pos}: {message}\n{excerpt}")]
    Syntax {
        /// The file, as it was named.
        file: String,
        /// Where the text goes wrong.
        pos: Pos,
        /// What was found and what would be right.
        message: String,
        /// The offending line (a window of it where it is long), a caret under the character, and
        /// perhaps a hint.
        excerpt: String,
    },
}

/// A parsed file: the value, and where each of its keys stood.
#[derive(Clone, Debug)]
pub struct Document {
    /// The file's name as messages show it.
    pub file: String,
    /// The value, keys in the file's order.
    pub value: Value,
    positions: HashMap<String, Pos>,
    non_finite: HashMap<String, &'static str>,
}

impl Document {
    /// Reads and parses a file.
    pub fn read(path: &Path) -> Result<Document, JsonError> {
        let file = path.display().to_string();
        match std::fs::read(path) {
            Ok(bytes) => Document::parse(&file, &bytes),
            Err(source) => Err(JsonError::Io { file, source }),
        }
    }

    /// Parses bytes; `file` is only the name that messages show.
    pub fn parse(file: &str, bytes: &[u8]) -> Result<Document, JsonError> {
        let text = decode(file, bytes)?;
        let mut parser = Parser {
            file,
            text,
            at: 0,
            pointer: String::new(),
            mark: (0, START),
            positions: HashMap::new(),
            non_finite: HashMap::new(),
        };
        parser.space();
        if parser.at == text.len() {
            return Err(parser.error(0, "the file is empty", "a JSON value, such as an object, was expected"));
        }
        let value = parser.value(0)?;
        parser.space();
        if parser.at < text.len() {
            let message = format!("found {} after the end of the JSON value", parser.found());
            return Err(parser.error(parser.at, &message, ""));
        }
        Ok(Document { file: file.to_string(), value, positions: parser.positions, non_finite: parser.non_finite })
    }

    /// Where the key of a JSON pointer (`/rope_scaling/factor`) stands.
    pub fn position(&self, pointer: &str) -> Option<Pos> {
        self.positions.get(pointer).copied()
    }

    /// The spelling (`NaN`, `Infinity`, `-Infinity`, or a number beyond f64) of a value that JSON cannot
    /// hold, when the file had one at this JSON pointer.
    pub fn non_finite(&self, pointer: &str) -> Option<&'static str> {
        self.non_finite.get(pointer).copied()
    }

    /// `file:line:column` of a key, or just the file when the pointer is not in it.
    pub fn place(&self, pointer: &str) -> String {
        match self.position(pointer) {
            Some(pos) => format!("{}:{pos}", self.file),
            None => self.file.clone(),
        }
    }
}

/// Strips the byte-order mark and checks the encoding.
fn decode<'a>(file: &str, bytes: &'a [u8]) -> Result<&'a str, JsonError> {
    let bytes = bytes.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(bytes);
    std::str::from_utf8(bytes).map_err(|e| {
        let before = String::from_utf8_lossy(&bytes[..e.valid_up_to()]).into_owned();
        let hint = match bytes {
            [0xFF, 0xFE, ..] | [0xFE, 0xFF, ..] => "the file is UTF-16; save it as UTF-8",
            _ => "save the file as UTF-8",
        };
        syntax(file, &before, before.len(), &format!("byte 0x{:02x} is not UTF-8", bytes[e.valid_up_to()]), hint)
    })
}

/// The first character of a file.
const START: Pos = Pos { line: 1, column: 1 };

/// The position after `passed`, text that starts at `from`.
fn advance(from: Pos, passed: &str) -> Pos {
    passed.chars().fold(from, |pos, c| match c {
        '\n' => Pos { line: pos.line + 1, column: 1 },
        _ => Pos { line: pos.line, column: pos.column + 1 },
    })
}

fn syntax(file: &str, text: &str, at: usize, message: &str, hint: &str) -> JsonError {
    /// Characters shown on each side of the error; minified files are one line.
    const WINDOW: usize = 60;
    let pos = advance(START, &text[..at]);
    let start = text[..at].rfind('\n').map_or(0, |n| n + 1);
    let line: Vec<char> =
        text[start..].chars().take(pos.column - 1 + WINDOW).take_while(|c| !"\r\n".contains(*c)).collect();
    let skip = (pos.column - 1).saturating_sub(WINDOW);
    let shown: String = line[skip.min(line.len())..].iter().map(|&c| if c == '\t' { ' ' } else { c }).collect();
    let caret = " ".repeat(pos.column - 1 - skip);
    let mut excerpt = format!("  | {shown}\n  | {caret}^");
    if !hint.is_empty() {
        excerpt += &format!("\n  hint: {hint}");
    }
    JsonError::Syntax { file: file.to_string(), pos, message: message.to_string(), excerpt }
}

struct Parser<'a> {
    file: &'a str,
    text: &'a str,
    /// Byte offset of the next character.
    at: usize,
    /// JSON pointer of the value being read.
    pointer: String,
    /// The last key's offset and position: the next one is counted from here, so that a file of many keys
    /// on one line is read in linear time.
    mark: (usize, Pos),
    positions: HashMap<String, Pos>,
    non_finite: HashMap<String, &'static str>,
}

type Parsed<T> = Result<T, JsonError>;

impl Parser<'_> {
    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn space(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
    }

    /// The next character, quoted for a message.
    fn found(&self) -> String {
        match self.text[self.at..].chars().next() {
            Some(c) if c.is_control() => format!("the control character U+{:04X}", c as u32),
            Some(c) => format!("`{c}`"),
            None => "the end of the file".to_string(),
        }
    }

    fn error(&self, at: usize, message: &str, hint: &str) -> JsonError {
        syntax(self.file, self.text, at, message, hint)
    }

    /// An error at the next character: what was expected, what is there, and the usual cause.
    fn expected(&self, what: &str) -> JsonError {
        let hint = match self.peek() {
            Some(b'/' | b'#') => "JSON has no comments; remove it",
            Some(b'\'') => "JSON strings use double quotes",
            Some(b'T' | b'F') => "JSON's truth values are `true` and `false`",
            Some(b'N') if self.text[self.at..].starts_with("None") => "JSON's empty value is `null`",
            None => "the file ends too early: it may be cut off",
            _ => "",
        };
        self.error(self.at, &format!("expected {what}, found {}", self.found()), hint)
    }

    fn value(&mut self, depth: usize) -> Parsed<Value> {
        if depth > MAX_DEPTH {
            let message = format!("nested more than {MAX_DEPTH} deep");
            return Err(self.error(self.at, &message, "no configuration needs this; the file is damaged or hostile"));
        }
        self.space();
        const WORDS: [(&str, Value); 3] =
            [("true", Value::Bool(true)), ("false", Value::Bool(false)), ("null", Value::Null)];
        if let Some((word, value)) = WORDS.into_iter().find(|(w, _)| self.text[self.at..].starts_with(w)) {
            self.at += word.len();
            return Ok(value);
        }
        if let Some(word) = ["NaN", "Infinity", "-Infinity"].into_iter().find(|w| self.text[self.at..].starts_with(w)) {
            self.at += word.len();
            self.non_finite.insert(self.pointer.clone(), word);
            return Ok(Value::Null);
        }
        match self.peek() {
            Some(b'{') => self.object(depth),
            Some(b'[') => self.array(depth),
            Some(b'"') => self.string().map(Value::String),
            Some(b'-' | b'0'..=b'9') => self.number(),
            _ => Err(self.expected("a value")),
        }
    }

    fn object(&mut self, depth: usize) -> Parsed<Value> {
        let mut map = Map::new();
        let outer = self.pointer.len();
        self.at += 1;
        self.space();
        if self.peek() == Some(b'}') {
            self.at += 1;
            return Ok(Value::Object(map));
        }
        loop {
            self.space();
            let start = self.at;
            if self.peek() != Some(b'"') {
                return Err(self.expected("a key in double quotes"));
            }
            let key = self.string()?;
            self.pointer = format!("{}/{}", &self.pointer[..outer], key.replace('~', "~0").replace('/', "~1"));
            let here = advance(self.mark.1, &self.text[self.mark.0..start]);
            self.mark = (start, here);
            if let Some(first) = self.positions.insert(self.pointer.clone(), here) {
                let message = format!("the key `{key}` is given twice (first at {first})");
                return Err(self.error(start, &message, "keep one of the two"));
            }
            self.space();
            if self.peek() != Some(b':') {
                return Err(self.expected("`:` after the key"));
            }
            self.at += 1;
            let value = self.value(depth + 1)?;
            map.insert(key, value);
            self.pointer.truncate(outer);
            if self.comma_or(b'}', "key")? {
                return Ok(Value::Object(map));
            }
        }
    }

    fn array(&mut self, depth: usize) -> Parsed<Value> {
        let mut items = Vec::new();
        let outer = self.pointer.len();
        self.at += 1;
        self.space();
        if self.peek() == Some(b']') {
            self.at += 1;
            return Ok(Value::Array(items));
        }
        loop {
            self.pointer = format!("{}/{}", &self.pointer[..outer], items.len());
            items.push(self.value(depth + 1)?);
            self.pointer.truncate(outer);
            if self.comma_or(b']', "value")? {
                return Ok(Value::Array(items));
            }
        }
    }

    /// After an item: true at the closing bracket, false after a comma that another item follows.
    fn comma_or(&mut self, close: u8, item: &str) -> Parsed<bool> {
        self.space();
        if self.peek() == Some(close) {
            self.at += 1;
            return Ok(true);
        }
        if self.peek() != Some(b',') {
            return Err(self.expected(&format!("`,` or `{}`", close as char)));
        }
        let comma = self.at;
        self.at += 1;
        self.space();
        if self.peek() == Some(close) {
            let message = format!("trailing comma: no {item} follows before `{}`", close as char);
            return Err(self.error(comma, &message, "JSON allows no comma after the last item; remove it"));
        }
        Ok(false)
    }

    fn string(&mut self) -> Parsed<String> {
        let mut out = String::new();
        let start = self.at;
        self.at += 1;
        loop {
            let Some(c) = self.text[self.at..].chars().next() else {
                return Err(self.error(
                    start,
                    "this string does not end",
                    "the file ends too early: it may be cut off",
                ));
            };
            match c {
                '"' => {
                    self.at += 1;
                    return Ok(out);
                }
                '\\' => out.push(self.escape()?),
                c if c < ' ' => {
                    return Err(self.error(
                        self.at,
                        &format!("{} inside a string", self.found()),
                        "write it as an escape, such as \\n",
                    ))
                }
                c => {
                    self.at += c.len_utf8();
                    out.push(c);
                }
            }
        }
    }

    fn escape(&mut self) -> Parsed<char> {
        let start = self.at;
        self.at += 1;
        let simple = match self.peek() {
            Some(c @ (b'"' | b'\\' | b'/')) => c as char,
            Some(b'b') => '\u{8}',
            Some(b'f') => '\u{c}',
            Some(b'n') => '\n',
            Some(b'r') => '\r',
            Some(b't') => '\t',
            Some(b'u') => {
                self.at += 1;
                return self.unicode(start);
            }
            _ => return Err(self.error(start, "unknown escape in a string", "a backslash is written `\\\\`")),
        };
        self.at += 1;
        Ok(simple)
    }

    /// The character of `\uXXXX`, or of two of them that form a surrogate pair.
    fn unicode(&mut self, start: usize) -> Parsed<char> {
        let high = self.hex4(start)?;
        if let Some(c) = char::from_u32(high) {
            return Ok(c);
        }
        if (0xD800..0xDC00).contains(&high) && self.text[self.at..].starts_with("\\u") {
            self.at += 2;
            let low = self.hex4(start)?;
            if (0xDC00..0xE000).contains(&low) {
                let code = 0x10000 + ((high - 0xD800) << 10) + (low - 0xDC00);
                return char::from_u32(code).ok_or_else(|| self.error(start, "not a Unicode character", ""));
            }
        }
        Err(self.error(start, "half of a surrogate pair", "write the character itself, in UTF-8"))
    }

    fn hex4(&mut self, start: usize) -> Parsed<u32> {
        let digits = self.text.get(self.at..self.at + 4).filter(|d| d.bytes().all(|b| b.is_ascii_hexdigit()));
        let code = digits.and_then(|d| u32::from_str_radix(d, 16).ok());
        self.at += 4;
        code.ok_or_else(|| self.error(start, "expected four hexadecimal digits after \\u", ""))
    }

    fn number(&mut self) -> Parsed<Value> {
        let start = self.at;
        while matches!(self.peek(), Some(b'-' | b'+' | b'.' | b'e' | b'E' | b'0'..=b'9')) {
            self.at += 1;
        }
        let text = &self.text[start..self.at];
        if !is_json_number(text) {
            return Err(self.error(
                start,
                &format!("`{text}` is not a JSON number"),
                "numbers look like 12, -0.5 or 1e-5",
            ));
        }
        if let Ok(n) = text.parse::<u64>() {
            return Ok(Value::Number(n.into()));
        }
        if let Ok(n) = text.parse::<i64>() {
            return Ok(Value::Number(n.into()));
        }
        let number = text.parse::<f64>().ok().and_then(Number::from_f64);
        Ok(number.map_or_else(
            || {
                self.non_finite.insert(self.pointer.clone(), "a number beyond the range of f64");
                Value::Null
            },
            Value::Number,
        ))
    }
}

/// JSON's number grammar: `-? (0 | [1-9][0-9]*) (. [0-9]+)? ([eE] [+-]? [0-9]+)?`.
fn is_json_number(text: &str) -> bool {
    let digits = |s: &str| !s.is_empty() && s.bytes().all(|b| b.is_ascii_digit());
    let text = text.strip_prefix('-').unwrap_or(text);
    let (mantissa, exponent) = match text.split_once(['e', 'E']) {
        Some((m, e)) => (m, Some(e.strip_prefix(['+', '-']).unwrap_or(e))),
        None => (text, None),
    };
    let (whole, fraction) = match mantissa.split_once('.') {
        Some((w, f)) => (w, Some(f)),
        None => (mantissa, None),
    };
    digits(whole)
        && (whole == "0" || !whole.starts_with('0'))
        && fraction.is_none_or(digits)
        && exponent.is_none_or(digits)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(text: &str) -> String {
        Document::parse("c.json", text.as_bytes()).unwrap_err().to_string()
    }

    #[test]
    fn reads_what_serde_json_reads() {
        let text = r#"{"a": [1, -2, 3.5, 1e-05, true, false, null], "s": "x\n\u00e9\ud83d\ude00\"", "o": {}, "e": []}"#;
        let doc = Document::parse("c.json", text.as_bytes()).unwrap();
        assert_eq!(doc.value, serde_json::from_str::<Value>(text).unwrap());
        assert_eq!(doc.position("/a"), Some(Pos { line: 1, column: 2 }));
    }

    #[test]
    fn a_byte_order_mark_is_skipped() {
        let doc = Document::parse("c.json", b"\xEF\xBB\xBF{\"hidden_size\":64}").unwrap();
        assert_eq!(doc.value["hidden_size"], 64);
        let utf16 = Document::parse("c.json", b"\xFF\xFE{\0}\0").unwrap_err().to_string();
        assert!(utf16.contains("UTF-16; save it as UTF-8"), "{utf16}");
    }

    #[test]
    fn bare_infinities_are_remembered() {
        let doc =
            Document::parse("c.json", br#"{"a": NaN, "b": {"c": [0, -Infinity]}, "d": Infinity, "e": 1e999}"#).unwrap();
        assert!(doc.value["a"].is_null());
        assert_eq!(doc.non_finite("/a"), Some("NaN"));
        assert_eq!(doc.non_finite("/b/c/1"), Some("-Infinity"));
        assert_eq!(doc.non_finite("/d"), Some("Infinity"));
        assert_eq!(doc.non_finite("/e"), Some("a number beyond the range of f64"));
        assert_eq!(doc.non_finite("/b/c/0"), None);
    }

    #[test]
    fn a_duplicate_key_is_named_with_both_places() {
        let e = error("{\"num_hidden_layers\":2,\n \"num_hidden_layers\":32}");
        assert!(e.starts_with("c.json:2:2: the key `num_hidden_layers` is given twice (first at 1:2)"), "{e}");
        assert!(e.contains("  |  \"num_hidden_layers\":32}\n  |  ^"), "{e}");
        // The same key in two objects is not a duplicate.
        assert!(Document::parse("c.json", br#"{"a":{"x":1},"b":{"x":2}}"#).is_ok());
    }

    #[test]
    fn a_trailing_comma_has_a_place_and_a_hint() {
        let e = error("{\"hidden_size\":64,\"num_hidden_layers\":2,}");
        assert!(e.starts_with("c.json:1:40: trailing comma: no key follows before `}`"), "{e}");
        assert!(e.contains("remove it"), "{e}");
        assert!(error("[1,2,\n]").contains("c.json:1:5: trailing comma"));
    }

    #[test]
    fn deep_nesting_is_refused_without_recursion() {
        for open in ["[", "{\"a\":"] {
            let e = error(&open.repeat(100_000));
            assert!(e.contains("nested more than 128 deep"), "{e}");
        }
        let fits = format!("{}{}", "[".repeat(MAX_DEPTH), "]".repeat(MAX_DEPTH));
        assert!(Document::parse("c.json", fits.as_bytes()).is_ok());
    }

    #[test]
    fn errors_say_what_was_expected() {
        assert!(error("").contains("the file is empty"));
        assert!(error("{\"a\" 1}").contains("c.json:1:6: expected `:` after the key, found `1`"));
        assert!(error("{'a': 1}").contains("JSON strings use double quotes"));
        assert!(error("{\"a\": 1 // x\n}").contains("JSON has no comments"));
        assert!(error("{\"a\": True}").contains("`true` and `false`"));
        assert!(error("{\"a\": None}").contains("`null`"));
        assert!(error("{\"a\": 1").contains("found the end of the file"));
        assert!(error("{\"a\": \"x").contains("this string does not end"));
        assert!(error("{\"a\": 1} x").contains("found `x` after the end of the JSON value"));
        assert!(error("{\"a\": 01}").contains("`01` is not a JSON number"));
        assert!(error("[\"\\ud800\"]").contains("half of a surrogate pair"));
        assert!(error("[\"\\u12\"]").contains("four hexadecimal digits"));
        let long = error(&format!("{{\"a\": \"{}\", x}}", "y".repeat(500)));
        assert!(long.lines().all(|l| l.len() < 140), "{long}");
        let missing = Document::read(Path::new("no/such.json")).unwrap_err().to_string();
        assert!(missing.starts_with("no/such.json: cannot read the file"), "{missing}");
    }

    proptest::proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(bytes: Vec<u8>) {
            let _ = Document::parse("c.json", &bytes);
        }

        #[test]
        fn arbitrary_json_like_text_never_panics(text in "[\\[\\]{}\",:\\\\u0-9eE.+\\-NaInftyruls \né]{0,60}") {
            let _ = Document::parse("c.json", text.as_bytes());
        }
    }
}

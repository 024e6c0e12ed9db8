//! Trace files: recordings of a host, and public formats.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use infer_api::trace::Head;
use infer_sim::trace::{Empty, Format, Lines, Reader, in_order};

use super::Failure;
use crate::trace::{LeftOut, MAX_LINE_BYTES, RecordedLines, RecordedRequests};

/// Why a file can't be used where only a recording can.
pub const NO_RECORDING: &str = "not a recording of a host; make one with `infer sim record`";

/// What a trace without requests lacks.
pub const NO_REQUESTS: &str = "the trace has no requests to replay";

/// Characters shown of a line that begins no trace.
const LINE_SHOWN: usize = 120;

/// How a recording's first line begins.
const HEAD: &str = "{\"head\"";

/// A trace file and its format.
pub struct TraceFile {
    path: PathBuf,
    kind: Kind,
    closed_loop: bool,
    /// The warning that it was cut off has been printed.
    cut: Arc<AtomicBool>,
    /// What its replays leave out, as far as it was read.
    left_out: LeftOut,
    /// Rows of a public format without tokens, as far as it was read.
    empty: Empty,
}

enum Kind {
    Recording(Box<Head>),
    Public(Format),
}

impl TraceFile {
    /// Determines the format from the first line.
    pub fn find(path: &Path) -> Result<Self, Failure> {
        let wrong = |message: String| Failure::Usage(format!("{}: {message}", path.display()));
        let mut lines = Lines::up_to(MAX_LINE_BYTES, open(path).map_err(wrong)?);
        let first = lines.next().map_err(|error| wrong(error.to_string()))?;
        let (_, text) = first.ok_or_else(|| wrong("is empty".to_owned()))?;
        let kind = if text.starts_with(HEAD) {
            let mut recording = recording(path)?;
            let head = recording.head().map_err(|error| wrong(error.to_string()))?;
            Kind::Recording(Box::new(head))
        } else {
            let format = Format::of(text).ok_or_else(|| {
                let known = Format::ALL.map(|format| format!("{} ({})", format.name(), format.expects()));
                wrong(format!(
                    "not a trace; expected a recording of a host, or one of the formats {}; its first line is {}",
                    known.join(", "),
                    shown(text)
                ))
            })?;
            Kind::Public(format)
        };
        Ok(Self {
            path: path.to_owned(),
            kind,
            closed_loop: false,
            cut: Arc::default(),
            left_out: LeftOut::default(),
            empty: Empty::default(),
        })
    }

    /// Refuses `--closed-loop` unless one of the traces is a recording.
    pub fn check_closed_loop<'a>(
        closed_loop: bool,
        traces: impl IntoIterator<Item = &'a Self>,
    ) -> Result<(), Failure> {
        if closed_loop && traces.into_iter().all(|trace| trace.head().is_none()) {
            let why = "--closed-loop: only a recording of a host tells which request followed which; give one to --trace";
            return Err(Failure::Usage(why.to_owned()));
        }
        Ok(())
    }

    /// With `closed_loop`, a request that was sent right after another one finished waits for that one in the replay:
    /// see `RecordedRequests::new`.
    pub fn closed_loop(self, closed_loop: bool) -> Self {
        Self { closed_loop, ..self }
    }

    /// Whether it is a recording that is replayed so.
    pub fn is_closed_loop(&self) -> bool {
        self.closed_loop && self.head().is_some()
    }

    /// The host that was recorded; `None` for a public format.
    pub fn head(&self) -> Option<&Head> {
        match &self.kind {
            Kind::Recording(head) => Some(head),
            Kind::Public(_) => None,
        }
    }

    /// The file's name without folder and extension.
    pub fn name(&self) -> String {
        self.path.file_stem().unwrap_or_default().to_string_lossy().into_owned()
    }

    /// Its requests.
    pub fn read(&self) -> Result<Reader<'static>, String> {
        match &self.kind {
            Kind::Public(format) => Ok(format.read_counting(open(&self.path)?, &self.empty)),
            Kind::Recording(_) => Ok(in_order(RecordedRequests::new(self.lines()?, self.closed_loop))),
        }
    }

    /// The lines of a recording.
    pub fn lines(&self) -> Result<RecordedLines, String> {
        let lines = lines(&self.path, open(&self.path)?, Arc::clone(&self.cut));
        Ok(lines.counting(self.left_out.clone()))
    }

    /// Says how often its host's policies were changed, as far as it was read; `None` if they weren't.
    pub fn changes(&self) -> Option<String> {
        let often = match self.left_out.changes.load(Ordering::Relaxed) {
            0 => return None,
            1 => "once".to_owned(),
            changes => format!("{changes} times"),
        };
        Some(format!("{}: its host's policies were changed {often} while it was recorded", self.name()))
    }

    /// Says how many requests its host refused, as far as it was read; `None` if it refused none.
    pub fn refused(&self) -> Option<String> {
        let what = self.refusals()?;
        Some(format!(
            "{}: its host refused {what} while it was recorded, which no replay can send: what they would have \
             generated is unknown",
            self.name()
        ))
    }

    /// Says how many rows had no tokens, as far as it was read; `None` if all had.
    pub fn empty(&self) -> Option<String> {
        Some(format!("{}: {}", self.name(), self.empty_rows()?))
    }

    /// Adds to what is missing in a trace, read to its end, how many requests its host refused, or how many rows had no
    /// tokens.
    pub fn lacks(&self, missing: &str) -> String {
        match (self.refusals(), self.empty_rows()) {
            (Some(what), _) => {
                format!("{missing}; its host refused {what} while it was recorded, which no replay can send")
            }
            (None, Some(empty)) => format!("{missing}; {empty}"),
            (None, None) => missing.to_owned(),
        }
    }

    fn empty_rows(&self) -> Option<String> {
        let Kind::Public(format) = self.kind else { return None };
        let (rows, counts) = (self.empty.rows(), [self.empty.outputs(), self.empty.prompts()]);
        let lacking = |what: [&str; 2]| {
            let some = counts.into_iter().zip(what).filter(|(count, _)| *count > 0);
            some.map(|(count, what)| format!("{count} {what}")).collect::<Vec<_>>().join(", ")
        };
        (counts != [0, 0]).then(|| match format.leaves_out_empty() {
            true => {
                let which = lacking(["without output tokens", "without prompt tokens"]);
                format!("left out of {rows} rows read: {which}")
            }
            false => {
                let which = lacking(["as their output", "as their prompt"]);
                format!("of {rows} rows read, these have one token instead of none: {which}")
            }
        })
    }

    /// How many requests its host refused, as far as it was read.
    fn refusals(&self) -> Option<String> {
        match self.left_out.refused.load(Ordering::Relaxed) {
            0 => None,
            1 => Some("a request".to_owned()),
            requests => Some(format!("{requests} requests")),
        }
    }
}

/// A line in quotes, truncated.
fn shown(line: &str) -> String {
    let short: String = line.chars().take(LINE_SHOWN).collect();
    let rest = if short.len() < line.len() { ".." } else { "" };
    format!("{short:?}{rest}")
}

fn open(path: &Path) -> Result<BufReader<File>, String> {
    let file = File::open(path).map_err(|error| format!("can't be read: {error}"))?;
    let mut file = BufReader::new(file);
    // Reading it again says why it can't be read.
    match file.fill_buf().ok().and_then(compression) {
        Some((name, unpack)) => Err(format!("is compressed ({name}); unpack it first, with {unpack}")),
        None => Ok(file),
    }
}

/// How a file that begins with these bytes is compressed, and what unpacks it.
fn compression(begins: &[u8]) -> Option<(&'static str, &'static str)> {
    const KNOWN: [(&[u8], &str, &str); 5] = [
        (b"\x1f\x8b", "gzip", "`gunzip --keep`"),
        (b"\x28\xb5\x2f\xfd", "zstd", "`unzstd`"),
        (b"\xfd7zXZ\0", "xz", "`unxz --keep`"),
        (b"BZh", "bzip2", "`bunzip2 --keep`"),
        (b"PK\x03\x04", "zip", "`unzip`"),
    ];
    let known = KNOWN.into_iter().find(|(magic, ..)| begins.starts_with(magic))?;
    Some((known.1, known.2))
}

/// The lines of a recording, from its first. The file is opened once, so that it can be a pipe.
pub fn recording(path: &Path) -> Result<RecordedLines, Failure> {
    let wrong = |error: String| Failure::Usage(format!("{}: {error}", path.display()));
    let mut file = open(path).map_err(wrong)?;
    // Reading it again says why it can't be read.
    if file.fill_buf().is_ok_and(|begins| !may_be_recording(begins)) {
        return Err(wrong(NO_RECORDING.to_owned()));
    }
    Ok(lines(path, file, Arc::default()))
}

/// Whether a recording may begin with these bytes, which may be fewer than its first line has.
fn may_be_recording(begins: &[u8]) -> bool {
    let text = begins.strip_prefix("\u{feff}".as_bytes()).unwrap_or(begins).trim_ascii_start();
    text.starts_with(HEAD.as_bytes()) || HEAD.as_bytes().starts_with(text)
}

/// Warns once per file that it was cut off, however often it is read.
fn lines(path: &Path, file: BufReader<File>, warned: Arc<AtomicBool>) -> RecordedLines {
    let shown = path.display().to_string();
    let cut_off = move || {
        if !warned.swap(true, Ordering::Relaxed) {
            eprintln!("{shown}: the recording was cut off; requests in flight end there");
        }
    };
    RecordedLines::new(Box::new(file), Box::new(cut_off))
}

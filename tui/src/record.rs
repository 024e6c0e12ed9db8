//! Recordings of everything the host sent, with times, for demos and bug reports.
//!
//! A recording is JSON lines, so `jq` reads it too. The first line names the format, the version and the
//! host. Nothing that the console sends is recorded, so there is no token in it, and prompt text is kept only
//! on request: recordings are made to be passed on.

use std::borrow::Cow;
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, BufWriter, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use infer_api::admin::{
    AdminEvent, BlockInfo, BlockMap, CacheReport, HistoryEntry, MAX_STATE_BYTES, Policies,
};
use serde::{Deserialize, Serialize};

use crate::state::blocks::{Under, Wanted};
use crate::state::{Message, Millis, Report};

/// Longest line: the largest snapshot and its time.
const MAX_LINE_BYTES: u64 = MAX_STATE_BYTES as u64 + 1_024;
/// Version of the format, in the first line.
const FORMAT: u32 = 1;

/// A recording can't be written or played.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// The file can't be read or written.
    #[error("{}: {error}", path.display())]
    File {
        /// The recording.
        path: PathBuf,
        /// The system's error.
        error: std::io::Error,
    },
    /// A line isn't valid.
    #[error("{}, line {line}: {message}", path.display())]
    Line {
        /// The recording.
        path: PathBuf,
        /// Counted from 1.
        line: usize,
        /// What is wrong with it.
        message: String,
    },
}

#[derive(Debug, Serialize, Deserialize)]
struct Header {
    infer_tui_recording: u32,
    version: String,
    address: String,
}

#[derive(Debug, Serialize, Deserialize)]
struct Line<T> {
    at_ms: Millis,
    said: T,
}

/// A recorded message, as it is written.
#[derive(Debug, Serialize)]
#[serde(rename_all = "snake_case")]
enum Said<'a> {
    Connected,
    Lost(String),
    Event(&'a AdminEvent),
    Map(&'a BlockMap),
    Block(Cow<'a, BlockInfo>),
    Cache(Cow<'a, CacheReport>),
    Policies(&'a Policies),
    History { kind: &'a str, entries: &'a [HistoryEntry] },
}

/// The same message, as it is read.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Heard {
    Connected,
    Lost(String),
    Event(AdminEvent),
    Map(BlockMap),
    Block(BlockInfo),
    Cache(CacheReport),
    Policies(Policies),
    History { kind: String, entries: Vec<HistoryEntry> },
}

/// Writes a recording.
pub struct Recorder {
    path: PathBuf,
    out: BufWriter<File>,
    keep_text: bool,
}

impl Recorder {
    /// Creates the recording, readable only by this user. An existing file is not overwritten.
    ///
    /// # Errors
    /// [`RecordError::File`].
    pub fn create(path: &Path, address: &str, keep_text: bool) -> Result<Self, RecordError> {
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
        let file = file.map_err(|error| RecordError::File { path: path.to_owned(), error })?;
        let mut recorder = Self { path: path.to_owned(), out: BufWriter::new(file), keep_text };
        recorder.line(&Header {
            infer_tui_recording: FORMAT,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            address: address.to_owned(),
        })?;
        Ok(recorder)
    }

    /// Writes a message if it is of a recorded kind.
    ///
    /// # Errors
    /// [`RecordError::File`].
    pub fn note(&mut self, message: &Message, at_ms: Millis) -> Result<(), RecordError> {
        let said = match message {
            Message::Feed(Report::Connected) => Said::Connected,
            Message::Feed(Report::Lost { why, .. }) => Said::Lost(why.clone()),
            Message::Feed(Report::Event(event)) => Said::Event(event),
            Message::Map(Ok(map)) => Said::Map(map),
            Message::Under(_, Ok(Under::Block(block))) => Said::Block(self.block(block)),
            Message::Cache(Ok(report)) => Said::Cache(self.cache(report)),
            Message::Policies(Ok(policies)) => Said::Policies(policies),
            Message::History { kind, result: Ok(entries) } => Said::History { kind, entries },
            _ => return Ok(()),
        };
        self.line(&Line { at_ms, said })
    }

    fn block<'a>(&self, block: &'a BlockInfo) -> Cow<'a, BlockInfo> {
        if self.keep_text {
            return Cow::Borrowed(block);
        }
        Cow::Owned(BlockInfo { text: None, ..block.clone() })
    }

    fn cache<'a>(&self, report: &'a CacheReport) -> Cow<'a, CacheReport> {
        if self.keep_text {
            return Cow::Borrowed(report);
        }
        let mut report = report.clone();
        report.prefixes.iter_mut().for_each(|prefix| prefix.text = None);
        Cow::Owned(report)
    }

    /// Flushes the buffer to the file.
    ///
    /// # Errors
    /// [`RecordError::File`].
    pub fn flush(&mut self) -> Result<(), RecordError> {
        self.out.flush().map_err(|error| self.failed(error))
    }

    fn line(&mut self, line: &impl Serialize) -> Result<(), RecordError> {
        serde_json::to_writer(&mut self.out, line).map_err(|error| self.failed(error.into()))?;
        self.out.write_all(b"\n").map_err(|error| self.failed(error))
    }

    /// Ends the recording. A file that has nothing of it would only keep the next one from its name.
    fn failed(&self, error: std::io::Error) -> RecordError {
        if self.path.metadata().is_ok_and(|found| found.len() == 0) {
            let _ = std::fs::remove_file(&self.path);
        }
        RecordError::File { path: self.path.clone(), error }
    }
}

/// Reads a recording.
pub struct Player {
    path: PathBuf,
    input: BufReader<File>,
    line: usize,
    address: String,
}

impl Player {
    /// Opens a recording.
    ///
    /// # Errors
    /// [`RecordError`] if the file can't be read or is not a recording.
    pub fn open(path: &Path) -> Result<Self, RecordError> {
        let file = File::open(path).map_err(|error| RecordError::File { path: path.to_owned(), error })?;
        let mut player =
            Self { path: path.to_owned(), input: BufReader::new(file), line: 0, address: String::new() };
        let header = player.text()?.unwrap_or_default();
        let header: Header = serde_json::from_str(&header)
            .map_err(|_| player.wrong("this is not a recording of infer-tui".to_owned()))?;
        if header.infer_tui_recording != FORMAT {
            let format = header.infer_tui_recording;
            let message = format!(
                "recorded in format {format} by infer-tui {}; this version reads format {FORMAT}",
                header.version
            );
            return Err(player.wrong(message));
        }
        player.address = header.address;
        Ok(player)
    }

    /// Returns the address of the recorded host.
    #[must_use]
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Returns the next message and its time; `None` at the end. A truncated last line counts as the end.
    ///
    /// # Errors
    /// [`RecordError`].
    pub fn read(&mut self) -> Result<Option<(Millis, Message)>, RecordError> {
        let Some(text) = self.text()? else { return Ok(None) };
        let line: Line<Heard> = match serde_json::from_str(&text) {
            Ok(line) => line,
            Err(error) if error.is_eof() && !text.ends_with('\n') => return Ok(None),
            Err(error) => return Err(self.wrong(error.to_string())),
        };
        let message = match line.said {
            Heard::Connected => Message::Feed(Report::Replaying),
            Heard::Lost(why) => Message::Feed(Report::Lost { why, retry_in: std::time::Duration::ZERO }),
            Heard::Event(event) => Message::Feed(Report::Event(event)),
            Heard::Map(map) => Message::Map(Ok(map)),
            Heard::Block(block) => Message::Under(Wanted::Block { id: block.id }, Ok(Under::Block(block))),
            Heard::Cache(report) => Message::Cache(Ok(report)),
            Heard::Policies(policies) => Message::Policies(Ok(policies)),
            Heard::History { kind, entries } => Message::History { kind, result: Ok(entries) },
        };
        Ok(Some((line.at_ms, message)))
    }

    fn text(&mut self) -> Result<Option<String>, RecordError> {
        let mut bytes = Vec::new();
        let mut bounded = (&mut self.input).take(MAX_LINE_BYTES);
        let read = bounded.read_until(b'\n', &mut bytes);
        let read = read.map_err(|error| RecordError::File { path: self.path.clone(), error })?;
        self.line += 1;
        if read as u64 == MAX_LINE_BYTES {
            return Err(self.wrong(format!("longer than {MAX_LINE_BYTES} bytes")));
        }
        let text = String::from_utf8(bytes).map_err(|_| self.wrong("not UTF-8".to_owned()))?;
        Ok((read > 0).then_some(text))
    }

    fn wrong(&self, message: String) -> RecordError {
        RecordError::Line { path: self.path.clone(), line: self.line, message }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    use infer_api::admin::{PrefixInfo, State};

    #[test]
    fn what_was_said_comes_back_with_its_time() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("session.jsonl");
        let mut recorder = Recorder::create(&path, "http://host:1", false).unwrap();
        let state = State { step: 7, ..State::default() };
        let snapshot = AdminEvent::Snapshot(Box::new(state));
        let messages = [
            Message::Feed(Report::Connected),
            Message::Feed(Report::Event(snapshot.clone())),
            Message::Feed(Report::Event(AdminEvent::Preemption { id: 3 })),
            Message::Done(Ok("is not recorded".into())),
            Message::Map(Ok(BlockMap { total: 4, states: "fcus".into(), ..BlockMap::default() })),
            Message::Cache(Ok(CacheReport::default())),
            Message::History { kind: "scheduler".into(), result: Ok(vec![HistoryEntry::default()]) },
            Message::Feed(Report::Lost {
                why: "connection lost: gone".into(),
                retry_in: std::time::Duration::ZERO,
            }),
        ];
        for (at, message) in messages.iter().enumerate() {
            recorder.note(message, at as Millis * 10).unwrap();
        }
        recorder.flush().unwrap();
        let mut player = Player::open(&path).unwrap();
        assert_eq!(player.address(), "http://host:1");
        let mut heard = Vec::new();
        while let Some((at, message)) = player.read().unwrap() {
            heard.push((at, message));
        }
        assert_eq!(heard.iter().map(|(at, _)| *at).collect::<Vec<_>>(), [0, 10, 20, 40, 50, 60, 70]);
        assert!(matches!(&heard[0].1, Message::Feed(Report::Replaying)));
        assert!(matches!(&heard[1].1, Message::Feed(Report::Event(event)) if *event == snapshot));
        assert!(matches!(&heard[3].1, Message::Map(Ok(map)) if map.states == "fcus"));
        let Message::Feed(Report::Lost { why, .. }) = &heard[6].1 else { panic!("{heard:?}") };
        assert_eq!(why, "connection lost: gone");
        let again = Recorder::create(&path, "http://host:1", false).err().unwrap().to_string();
        assert!(again.contains("session.jsonl") && again.contains("exists"), "{again}");
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "it names users");
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn full_disk_leaves_no_empty_file() {
        let directory = tempfile::tempdir().unwrap();
        for (held, stays) in [("", false), ("a line\n", true)] {
            let path = directory.path().join("session.jsonl");
            std::fs::write(&path, held).unwrap();
            let full = OpenOptions::new().write(true).open("/dev/full").unwrap();
            let mut recorder = Recorder { path: path.clone(), out: BufWriter::new(full), keep_text: false };
            recorder.note(&Message::Feed(Report::Connected), 0).unwrap();
            let error = recorder.flush().unwrap_err().to_string();
            assert!(error.contains("session.jsonl"), "{error}");
            assert_eq!(path.exists(), stays, "{held:?}");
        }
    }

    #[test]
    fn prompts_are_recorded_only_on_request() {
        let directory = tempfile::tempdir().unwrap();
        let text = Some("a secret of a prompt".to_owned());
        let prefix = PrefixInfo { text: text.clone(), hash: "12ab".into(), ..PrefixInfo::default() };
        let messages = [
            Message::Cache(Ok(CacheReport { prefixes: vec![prefix], ..CacheReport::default() })),
            Message::Under(
                Wanted::Block { id: 3 },
                Ok(Under::Block(BlockInfo { id: 3, text, ..BlockInfo::default() })),
            ),
        ];
        for (keep_text, found) in [(false, 0), (true, 2)] {
            let path = directory.path().join(found.to_string());
            let mut recorder = Recorder::create(&path, "http://host:1", keep_text).unwrap();
            messages.iter().for_each(|message| recorder.note(message, 0).unwrap());
            recorder.flush().unwrap();
            let file = std::fs::read_to_string(&path).unwrap();
            assert_eq!(file.matches("a secret").count(), found, "{file}");
            assert!(file.contains("12ab"), "{file}");
        }
    }

    #[test]
    fn invalid_files_are_refused_by_line_and_a_truncated_last_line_is_the_end() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("x");
        std::fs::write(&path, "{\"not\": 1}\n").unwrap();
        let error = Player::open(&path).err().unwrap().to_string();
        assert!(error.contains("line 1: this is not a recording"), "{error}");
        let header = "{\"infer_tui_recording\":1,\"version\":\"0\",\"address\":\"a\"}\n";
        std::fs::write(&path, format!("{header}{{\"at_ms\":1,\"said\":\"connected\"}}\n{{\"at_ms\":2,\"ev"))
            .unwrap();
        let mut player = Player::open(&path).unwrap();
        assert!(player.read().unwrap().is_some());
        assert!(player.read().unwrap().is_none());
        std::fs::write(
            &path,
            format!("{header}{{\"at_ms\":1,\"sa\n{{\"at_ms\":2,\"said\":\"connected\"}}\n"),
        )
        .unwrap();
        let error = Player::open(&path).unwrap().read().err().unwrap().to_string();
        assert!(error.contains("line 2"), "only the last line may be truncated: {error}");
        std::fs::write(&path, format!("{header}{{\"at_ms\":1,\"said\":\"dance\"}}\n")).unwrap();
        let error = Player::open(&path).unwrap().read().err().unwrap().to_string();
        assert!(error.contains("line 2"), "{error}");
        assert!(Player::open(&directory.path().join("none")).err().unwrap().to_string().contains("none"));
    }
}

//! Trace files: recordings of a host, and public formats.

use std::collections::{HashMap, VecDeque};
use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use infer_api::trace::{End, FORMAT, Head, Line, Request};
use infer_sim::Subject;
use infer_sim::trace::{After, Format, Lines, Reader, Recorded, Shares, Text, TraceError, in_order};

use super::Failure;

/// Longest line of a recording, which holds the view of a full queue.
const MAX_LINE_BYTES: u64 = 64 << 20;
/// Maximum number of requests in flight in a recording.
const MAX_PENDING: usize = 1 << 20;
/// Finished requests that are remembered as possible predecessors.
const ENDS: usize = 1 << 16;
/// A client that sends its next request when one finishes does so within this time.
const AT_ONCE_US: u64 = 20_000;

/// A trace file and its format.
pub struct TraceFile {
    path: PathBuf,
    kind: Kind,
    closed_loop: bool,
    /// The warning that it was cut off has been printed.
    cut: Arc<AtomicBool>,
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
        let kind = if text.starts_with("{\"head\"") {
            let mut recording = Recording::open(path)?;
            let head = recording.head().map_err(|error| wrong(error.to_string()))?;
            Kind::Recording(Box::new(head))
        } else {
            let format = Format::of(text).ok_or_else(|| {
                let known = Format::ALL.map(Format::name).join(", ");
                wrong(format!("not a trace; expected a recording of a host, or one of the formats {known}"))
            })?;
            Kind::Public(format)
        };
        Ok(Self { path: path.to_owned(), kind, closed_loop: false, cut: Arc::default() })
    }

    /// With `closed_loop`, a request that was sent right after another one finished waits for that one in the replay,
    /// as with a client that keeps a fixed number in flight. Several requests may follow the same one, because such a
    /// client starts with a burst.
    pub fn closed_loop(self, closed_loop: bool) -> Self {
        Self { closed_loop, ..self }
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
            Kind::Public(format) => Ok(format.read(open(&self.path)?)),
            Kind::Recording(_) => Ok(in_order(Requests::new(self.lines()?, self.closed_loop))),
        }
    }

    /// The lines of a recording.
    pub fn lines(&self) -> Result<Recording, String> {
        Recording::new(&self.path, Arc::clone(&self.cut))
    }

    /// A subject for the simulator, with at most `requests` requests.
    pub fn subject(&self, requests: u64) -> Subject<'_> {
        Subject::Recorded { name: self.name(), requests, open: Box::new(|| self.read()) }
    }
}

fn open(path: &Path) -> Result<BufReader<File>, String> {
    File::open(path).map(BufReader::new).map_err(|error| format!("can't be read: {error}"))
}

/// The lines of a host's recording.
pub struct Recording {
    lines: Lines<BufReader<File>>,
    path: PathBuf,
    /// Whether the recording may end here: nothing was read yet, or its foot.
    complete: bool,
    /// The warning that it was cut off has been printed; once per file, however often it is read.
    cut: Arc<AtomicBool>,
}

impl Recording {
    fn new(path: &Path, cut: Arc<AtomicBool>) -> Result<Self, String> {
        let lines = Lines::up_to(MAX_LINE_BYTES, open(path)?);
        Ok(Self { lines, path: path.to_owned(), complete: true, cut })
    }

    /// A recording from its first line.
    pub fn open(path: &Path) -> Result<Self, Failure> {
        let wrong = |error: String| Failure::Usage(format!("{}: {error}", path.display()));
        Self::new(path, Arc::default()).map_err(wrong)
    }

    /// The next line with its number. An incomplete last line is the end: the recorder was stopped while writing it.
    pub fn next(&mut self) -> Result<Option<(u64, Line)>, TraceError> {
        let Some((line, text)) = self.lines.next()? else { return Ok(self.end()) };
        let error = match serde_json::from_str(text) {
            Ok(parsed) => {
                self.complete = matches!(parsed, Line::Foot(_));
                return Ok(Some((line, parsed)));
            }
            Err(error) => error,
        };
        if error.is_eof() && matches!(self.lines.next(), Ok(None)) {
            return Ok(self.end());
        }
        let message = error.to_string();
        let message = message.split(" at line ").next().unwrap_or_default().to_owned();
        Err(TraceError::At { line, column: error.column(), message })
    }

    fn end(&self) -> Option<(u64, Line)> {
        if !self.complete && !self.cut.swap(true, Ordering::Relaxed) {
            let shown = self.path.display();
            eprintln!("{shown}: the recording was cut off; requests in flight end there");
        }
        None
    }

    /// The error for a gap, which a reader that is too slow causes.
    pub fn lost(line: u64, happenings: u64) -> TraceError {
        let message = format!("{happenings} events are missing here; record again");
        TraceError::At { line, column: 1, message }
    }

    /// The first line.
    pub fn head(&mut self) -> Result<Head, TraceError> {
        let wrong = |message: String| TraceError::At { line: 1, column: 1, message };
        match self.next()? {
            Some((_, Line::Head(head))) if head.format == FORMAT => Ok(*head),
            Some((_, Line::Head(head))) => {
                Err(wrong(format!("format {} is not supported, only {FORMAT}", head.format)))
            }
            _ => Err(wrong("a recording must start with its head".to_owned())),
        }
    }
}

/// The requests of a recording in order of arrival. A request's output length is known only at its end, so later
/// requests are held back until then.
struct Requests {
    recording: Option<Recording>,
    begins: u64,
    block_tokens: u32,
    pending: VecDeque<Pending>,
    /// Position of each pending request, counted from the first of the recording.
    places: HashMap<u64, u64>,
    first: u64,
    ends: HashMap<u64, u64>,
    ended: VecDeque<u64>,
    closed_loop: bool,
    /// Finished requests that no request has followed yet, with their end times, oldest first.
    unfollowed: VecDeque<(u64, u64)>,
    /// The last one that was followed; more may follow it, because a client starts with a burst.
    followed: Option<(u64, u64)>,
    failed: Option<TraceError>,
}

struct Pending {
    recorded: Recorded,
    state: State,
    /// Tokens generated so far.
    drew: u32,
}

#[derive(PartialEq, Eq)]
enum State {
    Open,
    Ended,
    /// It was refused while it waited, so its output length is unknown.
    Refused,
}

impl Requests {
    fn new(recording: Recording, closed_loop: bool) -> Self {
        Self {
            recording: Some(recording),
            begins: 0,
            block_tokens: 1,
            pending: VecDeque::new(),
            places: HashMap::new(),
            first: 0,
            ends: HashMap::new(),
            ended: VecDeque::new(),
            closed_loop,
            unfollowed: VecDeque::new(),
            followed: None,
            failed: None,
        }
    }

    fn take(&mut self, line: u64, what: Line) -> Result<(), TraceError> {
        match what {
            Line::Head(head) => (self.begins, self.block_tokens) = (head.at, head.engine.block_size),
            Line::Request(request) => {
                if self.pending.len() == MAX_PENDING {
                    let message = format!("more than {MAX_PENDING} requests are under way at once");
                    return Err(TraceError::At { line, column: 1, message });
                }
                let after = self.follows(&request);
                let shares = request.shares.map(|shares| Shares { id: shares.id, tokens: shares.tokens });
                let recorded = Recorded {
                    id: request.id,
                    at_us: request.sent.saturating_sub(self.begins),
                    tenant: request.tenant,
                    session: request.session,
                    priority: request.priority,
                    ttft_us: request.ttft,
                    prompt_tokens: request.prompt.max(1),
                    output_tokens: 1,
                    max_tokens: request.max.max(1),
                    text: Text {
                        block_tokens: self.block_tokens,
                        blocks: request.blocks,
                        whole: request.whole,
                        shares,
                    },
                    after,
                    followed: true,
                };
                self.places.insert(request.id, self.first + self.pending.len() as u64);
                self.pending.push_back(Pending { recorded, state: State::Open, drew: 0 });
            }
            Line::End(End { id, at, output, .. }) => {
                self.remember(id, at);
                self.settle(id, State::Ended, output);
            }
            Line::Refused(refused) if refused.id != 0 => self.settle(refused.id, State::Refused, 0),
            Line::Step(step) => step.ids.iter().zip(&step.drew).for_each(|(id, drew)| self.drew(*id, *drew)),
            Line::Lost { happenings } => return Err(Recording::lost(line, happenings)),
            _ => {}
        }
        Ok(())
    }

    /// The request whose end triggered this one, if any.
    fn follows(&mut self, request: &Request) -> Option<After> {
        let think = |ended: u64| request.sent.saturating_sub(ended);
        while self.unfollowed.front().is_some_and(|&(_, ended)| think(ended) > AT_ONCE_US) {
            self.unfollowed.pop_front();
        }
        let turn = request.after.and_then(|id| Some((id, *self.ends.get(&id)?)));
        let slot = || {
            let waiting = self.unfollowed.front().filter(|(_, ended)| *ended <= request.sent);
            let at_once = self.followed.as_ref().filter(|(_, ended)| think(*ended) <= AT_ONCE_US);
            self.closed_loop.then(|| waiting.or(at_once).copied()).flatten()
        };
        let (id, ended) = turn.or_else(slot)?;
        self.followed = Some((id, ended));
        self.unfollowed.retain(|(other, _)| *other != id);
        Some(After { id, think_us: think(ended) })
    }

    fn remember(&mut self, id: u64, at: u64) {
        self.unfollowed.push_back((id, at));
        if self.unfollowed.len() > ENDS {
            self.unfollowed.pop_front();
        }
        self.ends.insert(id, at);
        self.ended.push_back(id);
        if self.ended.len() > ENDS
            && let Some(oldest) = self.ended.pop_front()
        {
            self.ends.remove(&oldest);
        }
    }

    fn drew(&mut self, id: u64, tokens: u8) {
        let Some(place) = self.places.get(&id) else { return };
        if let Some(pending) = self.pending.get_mut((place - self.first) as usize) {
            pending.drew = pending.drew.saturating_add(tokens.into());
        }
    }

    fn settle(&mut self, id: u64, state: State, output: u32) {
        let Some(place) = self.places.remove(&id) else { return };
        let Some(pending) = self.pending.get_mut((place - self.first) as usize) else { return };
        (pending.state, pending.drew) = (state, output);
    }
}

impl Pending {
    fn take(self) -> Recorded {
        let output_tokens = self.drew.clamp(1, self.recorded.max_tokens);
        Recorded { output_tokens, ..self.recorded }
    }
}

impl Iterator for Requests {
    type Item = Result<Recorded, TraceError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            // If the recording was cut off, requests in flight end with the tokens they had.
            let settled = |pending: &Pending| pending.state != State::Open || self.recording.is_none();
            if self.pending.front().is_some_and(settled) {
                let pending = self.pending.pop_front().expect("there is a first");
                self.first += 1;
                if pending.state == State::Refused {
                    continue;
                }
                return Some(Ok(pending.take()));
            }
            let Some(recording) = &mut self.recording else {
                return self.failed.take().map(Err);
            };
            match recording.next() {
                Ok(Some((line, what))) => {
                    if let Err(error) = self.take(line, what) {
                        self.failed = Some(error);
                        self.recording = None;
                    }
                }
                Ok(None) => self.recording = None,
                Err(error) => {
                    self.failed = Some(error);
                    self.recording = None;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn closed_loop_requests_follow_ends_and_start_with_a_burst() {
        let nothing = tempfile::NamedTempFile::new().unwrap();
        let recording = Recording::open(nothing.path()).map_err(|_| "the file exists").unwrap();
        let mut requests = Requests::new(recording, true);
        let after = |requests: &mut Requests, sent: u64| {
            let request = serde_json::json!({"id": 9, "sent": sent, "at": sent, "tenant": 0, "prompt": 1, "max": 1,
                                             "blocks": [], "whole": 0});
            let request = serde_json::from_value(request).unwrap();
            requests.follows(&request).map(|after| (after.id, after.think_us))
        };
        assert_eq!(after(&mut requests, 1_000), None, "nothing has ended");
        // A client warms up with one request, then sends three.
        requests.remember(1, 5_000);
        let burst = [6_000, 6_100, 6_200].map(|sent| after(&mut requests, sent));
        assert_eq!(burst, [Some((1, 1_000)), Some((1, 1_100)), Some((1, 1_200))]);
        // Each of them is followed by one.
        requests.remember(2, 7_000);
        requests.remember(3, 7_100);
        let next = [7_300, 7_400].map(|sent| after(&mut requests, sent));
        assert_eq!(next, [Some((2, 300)), Some((3, 300))]);
        assert_eq!(after(&mut requests, 7_101 + AT_ONCE_US), None, "too late to follow any");
        requests.closed_loop = false;
        requests.remember(4, 40_000);
        assert_eq!(after(&mut requests, 40_001), None, "an open loop has no followers");
    }
}

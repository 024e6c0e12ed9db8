//! Reads recordings: their lines, and the requests in them for a replay.

use std::collections::{HashMap, VecDeque};
use std::io::BufRead;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use infer_api::trace::{End, FORMAT, Head, Line, Policy, Request};
use infer_sim::trace::{After, Lines, MAX_TOKENS, Recorded, Shares, Text, TraceError};

/// Longest line of a recording, which holds the view of a full queue.
pub const MAX_LINE_BYTES: u64 = 64 << 20;
/// Maximum number of requests in flight in a recording.
const MAX_PENDING: usize = 1 << 20;
/// Finished requests that are remembered as possible predecessors.
const ENDS: usize = 1 << 16;
/// A client that sends its next request when one finishes does so within this time.
const AT_ONCE_US: u64 = 20_000;

/// The lines of a recording.
pub struct RecordedLines {
    lines: Lines<Box<dyn BufRead + Send>>,
    /// Whether the recording may end here: nothing was read yet, or its foot.
    complete: bool,
    /// Called if it ends elsewhere.
    cut_off: Box<dyn FnMut() + Send>,
    beside: Beside,
}

/// What a replay leaves out, as far as a recording was read: the highest counts of all its readers.
#[derive(Clone, Debug, Default)]
pub struct LeftOut {
    /// How often live policies were replaced.
    pub changes: Arc<AtomicU64>,
    /// Requests that the host refused.
    pub refused: Arc<AtomicU64>,
}

/// The same, as far as one reader has come.
#[derive(Default)]
struct Beside {
    live: Vec<Policy>,
    changes: u64,
    refused: u64,
    most: LeftOut,
}

impl Beside {
    fn note(&mut self, line: &Line) {
        match line {
            Line::Head(head) => self.live.clone_from(&head.policies),
            Line::Policy(policy) => {
                // After a loss, policies are stated again.
                let differs = |live: &&mut Policy| live.kind == policy.kind && **live != *policy;
                if let Some(live) = self.live.iter_mut().find(differs) {
                    live.clone_from(policy);
                    self.changes += 1;
                    self.most.changes.fetch_max(self.changes, Ordering::Relaxed);
                }
            }
            Line::Refused(_) => {
                self.refused += 1;
                self.most.refused.fetch_max(self.refused, Ordering::Relaxed);
            }
            _ => {}
        }
    }
}

impl RecordedLines {
    /// Reads from the first line on; `cut_off` is called at the end of a recording that lacks its last line.
    pub fn new(file: Box<dyn BufRead + Send>, cut_off: Box<dyn FnMut() + Send>) -> Self {
        Self { lines: Lines::up_to(MAX_LINE_BYTES, file), complete: true, cut_off, beside: Beside::default() }
    }

    /// Raises the counts of `most` to what is read.
    pub fn counting(mut self, most: LeftOut) -> Self {
        self.beside.most = most;
        self
    }

    /// The next line with its number. An incomplete last line is the end: the recorder was stopped while writing it.
    pub fn next_line(&mut self) -> Result<Option<(u64, Line)>, TraceError> {
        let Some((line, text)) = self.lines.next()? else { return Ok(self.end()) };
        let error = match serde_json::from_str(text) {
            Ok(parsed) => {
                self.complete = matches!(parsed, Line::Foot(_));
                self.beside.note(&parsed);
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

    fn end(&mut self) -> Option<(u64, Line)> {
        if !self.complete {
            (self.cut_off)();
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
        match self.next_line()? {
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
pub struct RecordedRequests {
    recording: Option<RecordedLines>,
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

impl RecordedRequests {
    /// With `closed_loop`, a request that was sent right after another one finished follows that one, as with a client
    /// that keeps a fixed number in flight. Several requests may follow the same one, because such a client starts with
    /// a burst.
    pub fn new(recording: RecordedLines, closed_loop: bool) -> Self {
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
                if u64::from(request.prompt.max(request.max)) > MAX_TOKENS {
                    let message = format!("a prompt or a limit of more than {MAX_TOKENS} tokens");
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
                    expected_output: request.expected.map(|tokens| tokens.max(1)),
                    continued: 0,
                    text: Text {
                        block_tokens: self.block_tokens,
                        blocks: request.blocks,
                        whole: request.whole,
                        shares,
                    },
                    after,
                    followed: true,
                    embeds: request.embed,
                    tenant_name: None,
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
            Line::Lost { happenings } => return Err(RecordedLines::lost(line, happenings)),
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

impl Iterator for RecordedRequests {
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
            match recording.next_line() {
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
    use std::io::Cursor;

    use super::*;

    fn lines(text: &str) -> RecordedLines {
        RecordedLines::new(Box::new(Cursor::new(text.to_owned())), Box::new(|| {}))
    }

    #[test]
    fn changes_of_policies_are_counted_once_each() {
        let policy = |kind: &str, name: &str| {
            let member = infer_api::trace::Member { name: name.to_owned(), ..Default::default() };
            Policy { kind: kind.to_owned(), members: vec![member] }
        };
        let policies = vec![policy("scheduler", "srpt"), policy("admission", "slo")];
        let said = [
            Line::Head(Box::new(Head { format: FORMAT, policies, ..Head::default() })),
            Line::Policy(policy("scheduler", "srpt")),
            Line::Policy(policy("scheduler", "fair")),
            Line::Policy(policy("scheduler", "fair")),
            Line::Policy(policy("scheduler", "srpt")),
            Line::Policy(policy("admission", "builtin")),
        ];
        let text: String = said.iter().map(|line| serde_json::to_string(line).unwrap() + "\n").collect();
        let most = LeftOut::default();
        // The second reader doesn't get as far.
        for end in [said.len(), 3] {
            let mut lines = lines(&text).counting(most.clone());
            (0..end).for_each(|_| assert!(lines.next_line().unwrap().is_some()));
        }
        assert_eq!(most.changes.load(Ordering::Relaxed), 3);
        assert_eq!(most.refused.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn requests_that_were_refused_are_left_out_and_counted() {
        let refused = |id| Line::Refused(infer_api::trace::Refused { id, ..Default::default() });
        let came = "{\"request\":{\"id\":7,\"sent\":1,\"at\":1,\"tenant\":0,\"prompt\":9,\"max\":9,\"blocks\":[],\
                    \"whole\":0}}\n";
        let said = [refused(0), refused(7), refused(0)].map(|line| serde_json::to_string(&line).unwrap());
        let most = LeftOut::default();
        let lines = lines(&(came.to_owned() + &said.join("\n"))).counting(most.clone());
        assert_eq!(RecordedRequests::new(lines, false).count(), 0);
        assert_eq!(most.refused.load(Ordering::Relaxed), 3);
    }

    #[test]
    fn requests_that_embed_are_told_apart() {
        let line = |id: u64, embed: &str| {
            format!(
                "{{\"request\":{{\"id\":{id},\"sent\":1,\"at\":1,\"tenant\":0,\"prompt\":9,\"max\":1{embed},\
                 \"blocks\":[],\"whole\":0}}}}\n"
            )
        };
        let both = lines(&(line(1, ",\"embed\":true") + &line(2, "")));
        let embeds: Vec<bool> = RecordedRequests::new(both, false).map(|read| read.unwrap().embeds).collect();
        assert_eq!(embeds, [true, false]);
    }

    #[test]
    fn what_clients_expected_is_read_where_it_was_recorded() {
        let line = |id: u64, expected: &str| {
            format!(
                "{{\"request\":{{\"id\":{id},\"sent\":1,\"at\":1,\"tenant\":0,\"prompt\":9,\"max\":8{expected},\
                 \"blocks\":[],\"whole\":0}}}}\n"
            )
        };
        let all = lines(&(line(1, ",\"expected\":5") + &line(2, "") + &line(3, ",\"expected\":0")));
        let expected = RecordedRequests::new(all, false).map(|read| read.unwrap().expected_output);
        assert_eq!(expected.collect::<Vec<_>>(), [Some(5), None, Some(1)], "hosts take no 0");
    }

    #[test]
    fn lengths_that_no_model_takes_are_errors() {
        for (prompt, max) in [(u64::from(u32::MAX), 1), (1, MAX_TOKENS + 1)] {
            let line = format!(
                "{{\"request\":{{\"id\":1,\"sent\":1,\"at\":1,\"tenant\":0,\"prompt\":{prompt},\"max\":{max},\
                 \"blocks\":[],\"whole\":0}}}}\n"
            );
            let error = RecordedRequests::new(lines(&line), false).next().unwrap().unwrap_err();
            assert!(error.to_string().starts_with("line 1, column 1: a prompt or a limit"), "{error}");
        }
    }

    #[test]
    fn closed_loop_requests_follow_ends_and_start_with_a_burst() {
        let mut requests = RecordedRequests::new(lines(""), true);
        let after = |requests: &mut RecordedRequests, sent: u64| {
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
